//! The tenants that share a scenario's CPUs, and what each would ideally get ([`quell_policy::share`]).

use quell_model::CpuSet;
use quell_model::config::TenantKind;
use quell_policy::share::{Group, Problem, Thread, ideal};
use quell_scenario::{Scenario, Step, ThreadProgram, TimeUs};
use std::collections::BTreeMap;

/// The weight of a thread of nice 0.
const NICE_0: u32 = 100;

/// A scenario's groups and threads on a host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sharers {
    problem: Problem,
    /// The tenant of each thread of the problem.
    tenants: Vec<String>,
    /// The program of each thread; empty for a vCPU.
    programs: Vec<String>,
    /// Whether the demand of each thread is known: it is for a thread that computes and sleeps, not for a
    /// thread that waits for others.
    known: Vec<bool>,
}

impl Sharers {
    /// The sharers of a scenario on a host with `cpus` CPUs. A VM's threads are its vCPUs.
    pub fn of(scenario: &Scenario, cpus: u32) -> Sharers {
        let cgroups = scenario.cgroups();
        let all = CpuSet::first(cpus);
        let groups = cgroups.all.iter().map(|group| Group {
            parent: group.parent,
            weight: group.weight.0,
            limit: group
                .max
                .map(|max| max.quota_us() as f64 / max.period_us() as f64),
        });
        let mut sharers = Sharers {
            problem: Problem {
                groups: groups.collect(),
                cpus: all.clone(),
                threads: Vec::new(),
            },
            ..Sharers::default()
        };
        for (instance, group) in scenario.instances().iter().zip(&cgroups.of) {
            let tenant = instance.table;
            let mut add = |program: &str, allowed: Option<&CpuSet>, demand: Option<f64>| {
                sharers.problem.threads.push(Thread {
                    group: *group,
                    weight: NICE_0,
                    cpus: allowed.unwrap_or(&all).clone(),
                    demand: demand.unwrap_or(1.0),
                });
                sharers.tenants.push(instance.name.to_string());
                sharers.programs.push(program.to_string());
                sharers.known.push(demand.is_some());
            };
            if tenant.spec.kind == TenantKind::Vm {
                let vcpus = tenant.spec.vcpus.unwrap_or(1);
                let of = |it: &ThreadProgram| Some(demand(it)? * f64::from(it.count.on(cpus)));
                let all: Option<f64> = tenant.threads.iter().map(of).sum();
                let each = all.map(|all| (all / f64::from(vcpus)).min(1.0));
                (0..vcpus).for_each(|_| add("", tenant.cpus.as_ref(), each));
            } else {
                for threads in &tenant.threads {
                    let demand = demand(threads);
                    let allowed = tenant.cpus_of(threads);
                    let count = threads.count.on(cpus);
                    (0..count).for_each(|_| add(&threads.name, allowed, demand));
                }
            }
        }
        sharers
    }

    /// These sharers, where a tenant uses `cpus` CPUs when it is alone, its threads alike.
    #[must_use]
    pub fn with_use(mut self, tenant: &str, cpus: f64) -> Sharers {
        let threads = self.tenants.iter().filter(|name| *name == tenant).count();
        let each = (cpus / threads.max(1) as f64).clamp(0.0, 1.0);
        for (index, name) in self.tenants.iter().enumerate() {
            if name == tenant {
                self.problem.threads[index].demand = each;
                self.known[index] = true;
            }
        }
        self
    }

    /// What each tenant would ideally get, in CPUs; `None` where a thread's demand is not known, or there are
    /// no threads.
    pub fn ideal(&self) -> Option<BTreeMap<&str, f64>> {
        self.ideal_by(&self.tenants)
    }

    /// What each thread program would ideally get, over all tenants; `None` as in [`Sharers::ideal`].
    pub fn ideal_by_program(&self) -> Option<BTreeMap<&str, f64>> {
        self.ideal_by(&self.programs)
    }

    /// The ideal by the names that threads have in `names`.
    fn ideal_by<'a>(&self, names: &'a [String]) -> Option<BTreeMap<&'a str, f64>> {
        if self.tenants.is_empty() || self.known.contains(&false) {
            return None;
        }
        let ideal = ideal(&self.problem).ok()?;
        let mut of: BTreeMap<&str, f64> = BTreeMap::new();
        for (name, share) in names.iter().zip(ideal.threads) {
            *of.entry(name).or_default() += share;
        }
        Some(of)
    }
}

/// The part of a CPU that a thread with this program uses if it never waits; `None` unless it only computes
/// and sleeps.
fn demand(threads: &ThreadProgram) -> Option<f64> {
    let (mut run, mut sleep) = (0.0, 0.0);
    for step in &threads.program {
        match step {
            Step::RunUs(TimeUs::Constant(us)) => run += us,
            Step::SleepUs(TimeUs::Constant(us)) => sleep += us,
            _ => return None,
        }
    }
    (run + sleep > 0.0).then(|| run / (run + sleep))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::CATALOGUE;

    fn scenario(name: &str, change: &[(&str, &str)]) -> Scenario {
        let (file, mut text) = CATALOGUE.scenario(&format!("groups/{name}")).unwrap();
        for (from, to) in change {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        Scenario::parse(&file, &text).unwrap()
    }

    #[test]
    fn the_four_threads_ideals_are_those_worked_by_hand() {
        // T3 wants 0.3 of its CPU. Each process should get a CPU: T0 gives way to T2, which gets what T1
        // takes of T3's CPU.
        for (name, expected) in [
            ("group", [0.3, 0.7, 0.7, 0.3]),
            ("nested", [0.3, 0.7, 0.7, 0.3]),
            ("individual", [0.5, 0.7, 0.5, 0.3]),
            ("none", [0.5, 0.7, 0.5, 0.3]),
            ("dedicated", [0.5, 0.5, 0.7, 0.3]),
        ] {
            let sharers = Sharers::of(&scenario(name, &[]), 2);
            let ideal = sharers.ideal_by_program().unwrap();
            let got = ["t0", "t1", "t2", "t3"].map(|thread| ideal[thread]);
            let close = |(got, expected): (&f64, &f64)| (got - expected).abs() < 1e-9;
            assert!(got.iter().zip(&expected).all(close), "{name}: {got:?}");
        }
    }

    #[test]
    fn a_demand_that_the_program_does_not_tell_has_to_be_measured() {
        let vm = "kind = \"vm\"\nvcpus = 8";
        for (kind, groups) in [
            ("kind = \"container\"", true),
            ("", false),
            (vm, true),
            (&format!("{vm}\nown_cgroup = false"), false),
        ] {
            let scenario = scenario("barriers", &[("kind = \"container\"", kind)]);
            let sharers = Sharers::of(&scenario, 8);
            assert_eq!(sharers.problem.groups.len(), if groups { 2 } else { 0 });
            assert_eq!(sharers.ideal(), None);
            for (alone, expected) in [(7.2, 4.0), (2.4, 2.4)] {
                let sharers = sharers.clone().with_use("primary", alone);
                let ideal = sharers.ideal().unwrap();
                assert!((ideal["primary"] - expected).abs() < 1e-9, "{ideal:?}");
                assert!((ideal["beside"] - (8.0 - expected)).abs() < 1e-9);
            }
        }
    }
}
