//! The policy of the mechanism pools, around the policies of other mechanisms: where virtual machines and all
//! other tenants should run.
//!
//! The observations of the periods of a second are summed, and the second's end decides
//! ([`Pools::second`]); between, the division stays. A tenant with vCPU threads is a guest; all other
//! tenants are in the idle pool, of which a core is kept for them.
//!
//! Two kinds of CPUs are not divided (ours): those on which CPU time is promised, as promises decide
//! their place, and those to which an operator bound a virtual machine, seen from its vCPUs' affinity
//! when it came. Such a machine is left alone, and the plan says so. The CPU time that promises leave on
//! their CPUs is for all tenants in the idle pool.
//!
//! A machine with some vCPUs that are real-time or SCHED_IDLE is left alone as well: those vCPUs are not
//! moved, and the group of the others would be sized, and their number online chosen, by a part of the
//! machine's activity.

use super::predict::Settings;
use super::{Division, Pools, Says, Seen};
use crate::Policy;
use quell_model::config::TenantClass;
use quell_model::{
    CpuSet, GroupPlan, GuestSample, Lever, Pid, Plan, PoolsPlan, Promise, Reason, Rule, SchedClass,
    Snapshot, TenantName, TenantPlan, TenantSample, ThreadRole, ThreadSample, Topology,
};
use std::collections::{BTreeMap, BTreeSet};

/// The time between divisions, in ns (section 4.4).
const SECOND_NS: u64 = 1_000_000_000;
/// The time for which a guest's answer is valid: it is asked once a second, and an answer may be late.
const GOOD_NS: u64 = 2_500_000_000;

/// The time for which a QEMU process without vCPUs is taken to be starting, in ns. Its vCPU threads would
/// inherit a binding of its first thread, as if an operator had bound them.
const STARTS_NS: u64 = 5_000_000_000;

/// The policy of the mechanism pools, around the policy for everything else.
pub struct Pooled {
    others: Box<dyn Policy>,
    pools: Pools,
    vms: BTreeMap<TenantName, Vm>,
    /// Tenants of QEMU processes without vCPUs, and the times since when they are known.
    starting: BTreeMap<TenantName, u64>,
    /// The CPU time of tenants that are neither virtual machines nor batch since the last division.
    rest_ns: u64,
    /// The time of the last division.
    divided_ns: Option<u64>,
    division: Option<Division>,
}

/// A virtual machine, and its CPU time since the last division.
#[derive(Debug, Default)]
struct Vm {
    /// Each of the tenant's machines, and the CPUs to which an operator had bound it when it came.
    machines: BTreeMap<Pid, Option<CpuSet>>,
    /// The number of its vCPUs that are real-time or SCHED_IDLE, and so left alone.
    alone: usize,
    /// The reason of a change of its CPUs, for the next plan.
    reason: Option<Reason>,
    /// The number of its CPUs when that was reported.
    cpus: usize,
    used_ns: u64,
    emulated_ns: u64,
    /// The guest's latest answer.
    guest: Option<GuestSample>,
    /// The answer that the last division used.
    before: Option<GuestSample>,
    /// The figures of the time between these answers, when they last differed.
    says: Option<Says>,
}

impl Pooled {
    /// A policy around `others`, which decides everything else.
    pub fn new(others: Box<dyn Policy>) -> Pooled {
        Pooled {
            others,
            pools: Pools::new(Settings::default()),
            vms: BTreeMap::new(),
            starting: BTreeMap::new(),
            rest_ns: 0,
            divided_ns: None,
            division: None,
        }
    }

    /// Adds the CPU times of a period, and follows which virtual machines exist.
    fn follow(&mut self, snapshot: &Snapshot, plan: &Plan) {
        let online = snapshot.host.topology.online();
        self.vms
            .retain(|name, _| snapshot.tenant(name).is_some_and(is_vm));
        self.starting
            .retain(|name, _| snapshot.tenant(name).is_some_and(is_bare));
        for sample in snapshot.tenants.iter().filter(|it| is_bare(it)) {
            let since = self.starting.entry(sample.name.clone());
            since.or_insert(snapshot.time_ns);
        }
        for sample in snapshot.tenants.iter().filter(|it| is_vm(it)) {
            let vm = self.vms.entry(sample.name.clone()).or_default();
            vm.count(sample, &online);
            for thread in &sample.threads {
                match is_vcpu(thread) {
                    true => vm.used_ns += thread.run_ns,
                    false => vm.emulated_ns += thread.run_ns,
                }
            }
            vm.guest = sample.guest.or(vm.guest);
        }
        let rest = snapshot.tenants.iter().filter(|it| {
            let counts = it.spec.class != TenantClass::Batch && !is_promised(plan, &it.name);
            counts && !is_vm(it) && !is_bare(it)
        });
        self.rest_ns += rest
            .flat_map(|it| &it.threads)
            .map(|it| it.run_ns)
            .sum::<u64>();
    }

    /// Divides the CPUs at the end of a second, or of the part of the first one that was observed.
    fn divide(&mut self, snapshot: &Snapshot, plan: &Plan) {
        let now = snapshot.time_ns;
        let passed = now - self.divided_ns.unwrap_or(now - snapshot.period_ns);
        let topology = divided(&snapshot.host.topology, &self.left(plan));
        if topology.cpus.is_empty() || passed == 0 {
            // CPU time of the meantime belongs to no second that counts.
            self.rest_ns = 0;
            for vm in self.vms.values_mut() {
                (vm.used_ns, vm.emulated_ns) = (0, 0);
            }
            (self.division, self.divided_ns) = (None, None);
            return;
        }
        let part = |ns: u64| ns as f64 / passed as f64;
        let mut seen = Vec::new();
        for sample in &snapshot.tenants {
            let Some(vm) = self.vms.get_mut(&sample.name) else {
                continue;
            };
            let says = vm.says(now);
            if vm.is_left() || is_promised(plan, &sample.name) {
                continue;
            }
            seen.push(Seen {
                name: &sample.name,
                vcpus: vcpus(sample),
                batch: sample.spec.class == TenantClass::Batch,
                used: part(vm.used_ns),
                emulated: part(vm.emulated_ns),
                says,
            });
        }
        let others = snapshot
            .tenants
            .iter()
            .any(|it| !it.threads.is_empty() && !is_vm(it))
            .then(|| part(self.rest_ns));
        self.rest_ns = 0;
        let division = self.pools.second(now, &topology, &seen, others);
        for (name, vm) in &mut self.vms {
            (vm.used_ns, vm.emulated_ns) = (0, 0);
            let Some(group) = division.guests.get(name) else {
                continue;
            };
            let before = std::mem::replace(&mut vm.cpus, group.cpus.len());
            if let Some(why) = group.why.filter(|_| before != group.cpus.len()) {
                let text = format!("{before} -> {} CPUs: {why}", group.cpus.len());
                vm.reason = Some(Reason {
                    rule: Rule::Resized,
                    text,
                });
            }
        }
        self.divided_ns = Some(now);
        self.division = Some(division);
    }

    /// The CPUs that are not divided.
    fn left(&self, plan: &Plan) -> CpuSet {
        let bound = self.vms.values().filter_map(Vm::bound);
        let bound: Vec<CpuSet> = bound.collect();
        let promised = plan.servers.iter().map(|it| it.cpu);
        let bound = bound.iter().flat_map(CpuSet::iter);
        bound.chain(promised).collect()
    }

    /// The CPUs of cores that are not divided because CPU time is promised there, except those to which an
    /// operator bound a machine.
    fn promised(&self, plan: &Plan, topology: &Topology) -> CpuSet {
        let cores_of = |set: &CpuSet| -> BTreeSet<u32> {
            let cpus = topology.cpus.iter().filter(|it| set.contains(it.id));
            cpus.map(|it| it.core).collect()
        };
        let promised = cores_of(&plan.servers.iter().map(|it| it.cpu).collect());
        let bound = self.vms.values().filter_map(Vm::bound);
        let bound: BTreeSet<u32> = bound.flat_map(|it| cores_of(&it)).collect();
        let cpus = topology.cpus.iter();
        cpus.filter(|it| promised.contains(&it.core) && !bound.contains(&it.core))
            .map(|it| it.id)
            .collect()
    }

    /// Adds the division to a plan.
    fn fill(&mut self, plan: &mut Plan, snapshot: &Snapshot) {
        let left = self.left(plan);
        let promised = self.promised(plan, &snapshot.host.topology);
        let rest = self.division.as_ref().map(|it| match it.idle.is_empty() {
            // The host has one core only.
            true => it.emulators.clone(),
            // The CPU time that promises leave is for all tenants in the idle pool.
            false => it.idle.iter().chain(promised.iter()).collect(),
        });
        let promised: Vec<bool> = plan.tenants.iter().map(has_promise).collect();
        for (tenant, promised) in plan.tenants.iter_mut().zip(promised) {
            let Some(sample) = snapshot.tenant(&tenant.name) else {
                continue;
            };
            let since = self.starting.get(&tenant.name);
            if since.is_some_and(|since| snapshot.time_ns < since + STARTS_NS) {
                continue;
            }
            let vm = self.vms.get_mut(&tenant.name);
            let bound = vm.as_ref().and_then(|it| it.bound());
            let why = match (&vm, bound, &self.division) {
                (Some(_), ..) if promised => Some("CPU time is promised to it".into()),
                (Some(_), Some(cpus), _) => Some(format!("it is bound to CPUs {cpus}")),
                (Some(vm), ..) if vm.alone > 0 => Some(format!(
                    "{} of its virtual CPUs are real-time or SCHED_IDLE, which are left where they are, and so are the others",
                    vm.alone
                )),
                (Some(_), None, None) => {
                    Some(format!("no CPUs are divided: CPUs {left} have other uses"))
                }
                _ => None,
            };
            if let Some(why) = why {
                tenant.group = Some(GroupPlan::Left { why });
                continue;
            }
            let division = self.division.as_ref().zip(rest.as_ref());
            let Some((division, rest)) = division.filter(|_| !promised) else {
                continue;
            };
            let group = division.guests.get(&tenant.name);
            if let Some(group) = group {
                tenant.group = Some(match group.own {
                    true => GroupPlan::Own {
                        cpus: group.cpus.clone(),
                        online: group.online,
                        lacks: group.lacks,
                    },
                    false => GroupPlan::Shared {
                        online: group.online,
                    },
                });
            }
            let mut reason = vm.and_then(|vm| vm.reason.take());
            tenant.complete(sample);
            for thread in &mut tenant.threads {
                let vcpu = sample.thread(thread.id).is_some_and(is_vcpu);
                let cpus = match (group, vcpu) {
                    (Some(group), true) => &group.cpus,
                    (Some(_), false) => &division.emulators,
                    (None, _) => rest,
                };
                thread.cpus = Some(cpus.clone());
                if vcpu {
                    thread.reasons.extend(reason.take());
                }
            }
        }
        plan.pools = self.division.as_ref().map(|division| PoolsPlan {
            emulators: division.emulators.clone(),
            idle: division.idle.clone(),
            left,
            verdict: division.verdict.clone(),
        });
    }
}

impl Policy for Pooled {
    fn name(&self) -> &'static str {
        "pools"
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        let mut plan = self.others.decide(snapshot);
        self.follow(snapshot, &plan);
        let due = |at: u64| snapshot.time_ns.saturating_sub(at) >= SECOND_NS;
        let online = snapshot.host.topology.online();
        let gone = |it: &Division| !cpus_of(it).is_subset(&online);
        if self.divided_ns.is_none_or(due) || self.division.as_ref().is_some_and(gone) {
            self.divide(snapshot, &plan);
        }
        self.fill(&mut plan, snapshot);
        plan
    }

    fn allow(&mut self, lever: Lever, acts: bool) {
        self.others.allow(lever, acts);
    }
}

impl Vm {
    /// Follows the tenant's machines, and notes of new ones whether they are bound.
    fn count(&mut self, sample: &TenantSample, online: &CpuSet) {
        let vcpus = || sample.threads.iter().filter(|it| is_vcpu(it));
        let here: BTreeSet<Pid> = vcpus().map(|it| it.process).collect();
        let managed =
            |it: &&ThreadSample| matches!(it.settings.class, SchedClass::Fair | SchedClass::Ext);
        self.alone = vcpus().count() - vcpus().filter(managed).count();
        self.machines.retain(|process, _| here.contains(process));
        for process in here {
            let own = || vcpus().filter(|it| it.process == process);
            self.machines
                .entry(process)
                .or_insert_with(|| bound(own, online));
        }
    }

    /// Whether the tenant's machines are left where they are.
    fn is_left(&self) -> bool {
        self.alone > 0 || self.bound().is_some()
    }

    /// The CPUs to which the tenant's machines are bound; `None`: none is bound.
    fn bound(&self) -> Option<CpuSet> {
        let mut bound = self.machines.values().flatten().peekable();
        bound.peek()?;
        Some(bound.flat_map(CpuSet::iter).collect())
    }

    /// The guest's figures of the time since the last division, or its latest ones, if they are not too old.
    fn says(&mut self, now_ns: u64) -> Option<Says> {
        let now = self.guest?;
        let before = self.before.replace(now).unwrap_or(now);
        if now.at_ns > before.at_ns {
            let seconds = (now.at_ns - before.at_ns) as f64 / 1e9;
            // Counters that go backwards are from another boot, or wrong.
            let rate = |now: u64, before: u64| Some(now.checked_sub(before)? as f64 / seconds);
            let used = rate(now.used_ns, before.used_ns);
            self.says = used
                .zip(rate(now.switches, before.switches))
                .map(|(used, switches)| Says {
                    used: used / 1e9,
                    switches,
                });
        }
        self.says.filter(|_| now_ns <= now.at_ns + GOOD_NS)
    }
}

fn is_vcpu(thread: &ThreadSample) -> bool {
    matches!(thread.role, ThreadRole::Vcpu(_))
}

fn is_vm(sample: &TenantSample) -> bool {
    sample.threads.iter().any(is_vcpu)
}

/// Whether a tenant is a QEMU process whose vCPUs are still to come, or not known as such.
fn is_bare(sample: &TenantSample) -> bool {
    let emulates = |it: &ThreadSample| it.role == ThreadRole::Emulator;
    !is_vm(sample) && sample.threads.iter().any(emulates)
}

/// The number of a tenant's vCPUs, in all of its machines.
fn vcpus(sample: &TenantSample) -> u32 {
    let mut machines: BTreeMap<Pid, u32> = BTreeMap::new();
    for thread in &sample.threads {
        if let ThreadRole::Vcpu(number) = thread.role {
            let count = machines.entry(thread.process).or_default();
            *count = (*count).max(number.saturating_add(1));
        }
    }
    machines.into_values().fold(0, u32::saturating_add).max(1)
}

/// The CPUs to which a machine's vCPUs are bound; `None`: they are not.
fn bound<'a, T>(vcpus: impl Fn() -> T, online: &CpuSet) -> Option<CpuSet>
where
    T: Iterator<Item = &'a ThreadSample>,
{
    let all = vcpus().flat_map(|it| it.settings.affinity.iter());
    vcpus()
        .any(|it| !online.is_subset(&it.settings.affinity))
        .then(|| all.collect())
}

fn has_promise(tenant: &TenantPlan) -> bool {
    matches!(
        tenant.promise,
        Some(Promise::Kept { .. } | Promise::Awaited { .. })
    )
}

fn is_promised(plan: &Plan, name: &TenantName) -> bool {
    let mut tenants = plan.tenants.iter();
    tenants.any(|it| it.name == *name && has_promise(it))
}

/// The host's topology without every core that has a CPU in `left`.
fn divided(all: &Topology, left: &CpuSet) -> Topology {
    let used = |core: u32| {
        let mut cpus = all.cpus.iter();
        cpus.any(|it| it.core == core && left.contains(it.id))
    };
    let cpus = all.cpus.iter().filter(|it| !used(it.core));
    Topology {
        cpus: cpus.cloned().collect(),
    }
}

fn cpus_of(division: &Division) -> CpuSet {
    let groups = division.guests.values().flat_map(|it| it.cpus.iter());
    let pools = division.emulators.iter().chain(division.idle.iter());
    groups.chain(pools).collect()
}
