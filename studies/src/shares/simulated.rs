//! Random hosts on the simulator.

use super::STEP_S;
use super::fluid::fluid;
use super::hosts::{Host, Wants};
use super::oracle_scheduler::Told;
use crate::sides::Baseline;
use quell_bench::run::simulated::engine;
use quell_bench::side::Side;
use quell_model::{TenantWeight, Topology};
use quell_scenario::{Count, HostScheduler, Step, ThreadProgram, TimeUs};
use quell_sim::{Class, Costs, GroupId, Request, Simulation, Tenant, ThreadId};

/// What each group gets up to the end of each step, in s of CPU time, under a side, from when all threads
/// have begun; threads that always want a CPU begin `before_s` earlier. `cache_cpus` CPUs share a last-level
/// cache; `None`: all.
///
/// # Errors
/// Where the side does not run on the simulator, or the fair division of the host cannot be solved.
pub(super) fn simulate(
    host: &Host,
    cache_cpus: Option<u32>,
    side: &Side,
    steps: usize,
    before_s: u32,
) -> anyhow::Result<Vec<Vec<f64>>> {
    let before = u64::from(before_s) * 1_000_000_000;
    let cpus = host.problem.cpus.len() as u32;
    let topology = Topology::of_caches(cpus, cache_cpus.unwrap_or(cpus));
    // Nothing costs any time, as the study looks at which threads get CPUs.
    let costs = Costs {
        tick_every: 4_000_000,
        ..Costs::NONE
    };
    let (class, costs) = match side {
        side if Baseline::Ideal.is(side) => {
            let told = Told::new(host, before, fluid(host, steps)?);
            (Box::new(told) as Box<dyn Class>, costs)
        }
        side => engine(side, HostScheduler::default(), &topology, costs, &[])?,
    };
    let mut it = Simulation::new(topology, costs, class);
    let mut groups: Vec<GroupId> = Vec::new();
    for group in &host.problem.groups {
        let parent = group.parent.map_or(GroupId::ROOT, |parent| groups[parent]);
        groups.push(it.add_group(parent, TenantWeight(group.weight)));
    }
    for (number, (thread, want)) in host.problem.threads.iter().zip(&host.wants).enumerate() {
        let group = thread.group.map_or(GroupId::ROOT, |group| groups[group]);
        let (run_us, period_us, first_ms) = match *want {
            Wants::Always => (100_000.0, 0, 0),
            Wants::Part(part, period) => (part * period as f64, period, 0),
            Wants::Bursts(work, every, first) => (work as f64 * 1e3, every * 1000, first),
        };
        let run = Step::RunUs(TimeUs::Constant(run_us));
        let program = match want {
            Wants::Always => vec![run],
            _ => vec![Step::Request, run, Step::Respond],
        };
        let program = [ThreadProgram::new("t", Count::Fixed(1), program)];
        let requests = (0..).map(move |number| Request {
            due: before + first_ms * 1_000_000 + number * period_us * 1000,
            seed: number,
        });
        let load = (period_us > 0).then(|| Box::new(requests) as quell_sim::Load);
        it.add_tenant(Tenant {
            group,
            ..Tenant::new(&program, load)
        });
        it.restrict(ThreadId(number as u32), thread.cpus.clone());
    }
    it.run_until(before);
    let used = |it: &Simulation| {
        let ran = it.machine().threads.iter().map(|thread| thread.ran);
        host.by_group(ran.map(|ns| ns as f64 / 1e9))
    };
    let first = used(&it);
    let mut out = Vec::new();
    for step in 0..steps {
        it.run_until(before + (step as u64 + 1) * (STEP_S * 1e9) as u64);
        let since = used(&it).into_iter().zip(&first);
        out.push(since.map(|(now, first)| now - first).collect());
    }
    Ok(out)
}
