//! Tests of pools as a policy: where threads run, and which machines are left alone.
#![allow(clippy::unwrap_used)]

mod common;

use common::{MS, id, snapshot, tenant, thread};
use quell_model::config::{AgentFile, Criticality, TenantSpec};
use quell_model::{
    CpuSet, GroupPlan, GuestSample, Pid, Plan, Promise, Rule, SchedClass, Snapshot, TenantSample,
    TenantWeight, ThreadRole, Topology,
};
use quell_policy::{Policy, composed};
use std::path::Path;
use std::sync::Arc;

const SECOND: u64 = 1000 * MS;

fn policy() -> Box<dyn Policy> {
    policy_of("\"pools\"")
}

fn policy_of(mechanisms: &str) -> Box<dyn Policy> {
    let feedback = "[asymmetry]\nslices = true\nlatencies = true\n";
    let text = format!("[agent]\npolicy = [{mechanisms}]\n{feedback}");
    let file = AgentFile::parse(Path::new("quell.toml"), &text).unwrap();
    composed(&file, &file.asymmetry, &[]).unwrap()
}

/// A virtual machine whose threads have ids from `first` on: the emulator's, and vCPUs that each use a part
/// of a CPU.
fn vm(name: &str, first: u32, vcpus: u32, part: f64, cpus: u32) -> TenantSample {
    let mut threads = vec![thread(first, cpus)];
    threads[0].role = ThreadRole::Emulator;
    for number in 0..vcpus {
        let mut vcpu = thread(first + 1 + number, cpus);
        vcpu.role = ThreadRole::Vcpu(number);
        vcpu.run_ns = (part * SECOND as f64) as u64;
        threads.push(vcpu);
    }
    for thread in &mut threads {
        thread.process = Pid(first);
    }
    tenant(TenantSpec::named(name), false, threads)
}

fn process(name: &str, first: u32, cpus: u32) -> TenantSample {
    tenant(TenantSpec::named(name), false, vec![thread(first, cpus)])
}

fn group<'a>(plan: &'a Plan, name: &str) -> &'a GroupPlan {
    let tenant = plan.tenants.iter().find(|it| it.name.as_str() == name);
    tenant.unwrap().group.as_ref().unwrap()
}

fn own(plan: &Plan, name: &str) -> (CpuSet, u32) {
    match group(plan, name) {
        GroupPlan::Own { cpus, online, .. } => (cpus.clone(), *online),
        other => panic!("{other:?}"),
    }
}

fn cpus_of(plan: &Plan, thread: u32) -> Option<&CpuSet> {
    common::planned(plan, id(thread)).unwrap().cpus.as_ref()
}

/// The plan after some seconds with the same observations.
fn after(policy: &mut dyn Policy, seconds: u64, tenants: &[TenantSample], cpus: u32) -> Plan {
    let plans =
        (1..=seconds).map(|at| policy.decide(&snapshot(at, cpus, SECOND, tenants.to_vec())));
    plans.last().unwrap()
}

#[test]
fn everybody_has_a_place_and_nobody_anothers() {
    let tenants = [
        vm("a", 10, 4, 0.5, 12),
        vm("b", 20, 2, 0.3, 12),
        process("c", 30, 12),
    ];
    let plan = after(policy().as_mut(), 30, &tenants, 12);
    let ((a, a_online), (b, b_online)) = (own(&plan, "a"), own(&plan, "b"));
    // Two CPUs' work on no more than 80 % of each; the same for 0.6 CPUs.
    assert_eq!((a.len(), a_online, b.len(), b_online), (3, 3, 1, 1));
    let pools = plan.pools.as_ref().unwrap();
    let all = [&a, &b, &pools.emulators, &pools.idle];
    assert_eq!(
        all.iter().map(|it| it.len()).sum::<usize>(),
        12,
        "{plan:#?}"
    );
    assert!(all.iter().flat_map(|it| it.iter()).collect::<CpuSet>() == CpuSet::first(12));
    for (thread, cpus) in [
        (10, &pools.emulators),
        (11, &a),
        (14, &a),
        (20, &pools.emulators),
        (22, &b),
        (30, &pools.idle),
    ] {
        assert_eq!(cpus_of(&plan, thread), Some(cpus), "{thread}");
    }
    assert!(pools.left.is_empty());
}

#[test]
fn machines_of_one_tenant_have_one_group_for_all_their_work() {
    let mut both = vm("a", 10, 2, 0.9, 12);
    both.threads.extend(vm("a", 20, 2, 0.9, 12).threads);
    let plan = after(policy().as_mut(), 30, &[both], 12);
    assert_eq!(own(&plan, "a").0.len(), 4);
}

#[test]
fn of_one_tenants_machines_the_bound_one_has_its_cpus() {
    let mut both = vm("a", 10, 2, 0.9, 12);
    for thread in &mut both.threads {
        thread.settings.affinity = Arc::new(CpuSet::first(2));
    }
    both.threads.extend(vm("a", 20, 2, 0.9, 12).threads);
    let tenants = [both, vm("b", 30, 2, 0.3, 12)];
    let plan = after(policy().as_mut(), 10, &tenants, 12);
    assert!(matches!(group(&plan, "a"), GroupPlan::Left { why } if why.contains("0-1")));
    assert_eq!(plan.pools.as_ref().unwrap().left, CpuSet::first(2));
    assert_eq!(own(&plan, "b").0.len(), 1);
}

#[test]
fn a_machine_that_is_real_time_in_part_is_left_alone_and_the_others_share_what_they_did() {
    let mut mixed = vm("a", 10, 4, 0.9, 12);
    let mut vcpus = mixed.threads.iter_mut();
    let mut vcpus = vcpus
        .by_ref()
        .filter(|it| matches!(it.role, ThreadRole::Vcpu(_)));
    for _ in 0..2 {
        vcpus.next().unwrap().settings.class = SchedClass::RealTime;
    }
    let tenants = [mixed.clone(), vm("b", 30, 2, 0.9, 12)];
    let mut policy = policy();
    let plan = after(policy.as_mut(), 10, &tenants, 12);
    assert!(
        matches!(group(&plan, "a"), GroupPlan::Left { why } if why.starts_with("2 of its virtual CPUs are real-time")),
        "{:?}",
        group(&plan, "a")
    );
    for thread in &mixed.threads {
        let planned = common::planned(&plan, thread.id);
        assert!(planned.is_none_or(|it| it.cpus.is_none()), "{thread:?}");
    }
    assert_eq!(own(&plan, "b").0.len(), 2);
    // All vCPUs are ordinary again: the machine has a group.
    for thread in &mut mixed.threads {
        thread.settings.class = SchedClass::Fair;
    }
    let plan = after(policy.as_mut(), 30, &[mixed, vm("b", 30, 2, 0.9, 12)], 12);
    assert!(matches!(group(&plan, "a"), GroupPlan::Own { .. }));
}

#[test]
fn within_a_second_nothing_changes_and_changes_say_why() {
    let mut policy = policy();
    let mut plans = Vec::new();
    for at in 1..=100u64 {
        let mut vm = vm("a", 10, 4, 0.0, 8);
        for thread in &mut vm.threads[1..] {
            thread.run_ns = 20 * MS;
        }
        plans.push(policy.decide(&snapshot(at, 8, 100 * MS, vec![vm])));
    }
    let sizes: Vec<usize> = plans.iter().map(|it| own(it, "a").0.len()).collect();
    let changes: Vec<usize> = (1..100).filter(|at| sizes[*at] != sizes[at - 1]).collect();
    assert!(
        !changes.is_empty() && changes.iter().all(|at| at % 10 == 0),
        "{changes:?}"
    );
    for (at, plan) in plans.iter().enumerate().skip(1) {
        let threads = plan.tenants.iter().flat_map(|it| &it.threads);
        let reasons: Vec<_> = threads.flat_map(|it| &it.reasons).collect();
        let said: Vec<_> = reasons
            .iter()
            .filter(|it| it.rule == Rule::Resized)
            .collect();
        assert_eq!(
            said.len(),
            usize::from(changes.contains(&at)),
            "{at}: {reasons:?}"
        );
        assert!(
            said.iter().all(|it| it.text.contains("CPUs: uses little")),
            "{said:?}"
        );
    }
}

#[test]
fn a_machine_that_starts_is_not_bound_before_it_has_virtual_cpus() {
    let (mut policy, other) = (policy(), vm("b", 20, 2, 0.3, 8));
    let mut decide = |at: u64, vcpus: u32| {
        let tenants = vec![vm("a", 10, vcpus, 0.5, 8), other.clone()];
        policy.decide(&snapshot(at, 8, SECOND, tenants))
    };
    for at in 1..=2 {
        assert_eq!(cpus_of(&decide(at, 0), 10), None, "{at}");
    }
    // The machine's vCPUs come, and none is bound.
    let plan = decide(3, 2);
    assert!(
        matches!(group(&plan, "a"), GroupPlan::Own { .. }),
        "{plan:?}"
    );
    assert!(cpus_of(&plan, 10).is_some());
    // A QEMU process that has no vCPU for long has a place like all others.
    let at = (4..20).find(|at| cpus_of(&decide(*at, 0), 10).is_some());
    assert_eq!(at, Some(9));
}

#[test]
fn what_operators_bound_is_left_to_them() {
    let mut bound = vm("a", 10, 2, 0.9, 8);
    let two = Arc::new(CpuSet::first(2));
    for thread in &mut bound.threads {
        thread.settings.affinity = two.clone();
    }
    let mut policy = policy();
    let plan = after(
        policy.as_mut(),
        30,
        &[bound.clone(), vm("b", 20, 4, 0.9, 8)],
        8,
    );
    assert!(
        matches!(group(&plan, "a"), GroupPlan::Left { why } if why.contains("0-1")),
        "{plan:?}"
    );
    assert!((10..13).all(|it| cpus_of(&plan, it).is_none()));
    let pools = plan.pools.as_ref().unwrap();
    assert_eq!(pools.left, CpuSet::first(2));
    let (b, _) = own(&plan, "b");
    assert!(
        [&b, &pools.idle, &pools.emulators]
            .iter()
            .all(|it| it.intersection(&two).is_empty())
    );
    // A binding by the pools themselves is not an operator's.
    let mut again = vm("b", 20, 4, 0.9, 8);
    for thread in &mut again.threads {
        thread.settings.affinity = Arc::new(b.clone());
    }
    let plan = policy.decide(&snapshot(31, 8, SECOND, vec![bound.clone(), again]));
    assert_eq!(own(&plan, "b").0, b);
    // All CPUs are bound: none is divided.
    let mut all = vm("c", 30, 8, 0.5, 8);
    all.threads[1].settings.affinity = two;
    let plan = after(
        self::policy().as_mut(),
        3,
        &[all, bound, vm("b", 20, 4, 0.9, 8)],
        8,
    );
    assert!(
        plan.pools.is_none() && cpus_of(&plan, 21).is_none(),
        "{plan:#?}"
    );
    assert!(matches!(group(&plan, "b"), GroupPlan::Left { .. }));
}

/// A guest whose scheduler switches more with more CPUs keeps them, though it uses little; false figures and
/// silence do not help.
#[test]
fn what_a_guest_says_counts_as_long_as_it_is_new_and_possible() {
    let size = |says: &dyn Fn(u64, usize) -> Option<GuestSample>| {
        let mut policy = policy();
        let mut has = 8;
        for at in 1..=60u64 {
            let mut vm = vm("a", 10, 8, 0.42, 16);
            vm.guest = says(at, has);
            let plan = policy.decide(&snapshot(at, 16, SECOND, vec![vm]));
            has = own(&plan, "a").0.len();
        }
        has
    };
    let used = |at: u64| (8.0 * 0.42 * SECOND as f64) as u64 * at;
    let sample = |at: u64, switches: u64| {
        Some(GuestSample {
            at_ns: at * SECOND,
            used_ns: used(at),
            switches,
            online: 8,
        })
    };
    let silent = size(&|_, _| None);
    let few = size(&|at, _| sample(at, at * 1000));
    let frozen = size(&|_, _| sample(1, 1000));
    // 3.4 CPUs' work.
    assert_eq!((silent, few, frozen), (5, 5, 5));
    let total = std::cell::Cell::new(0);
    let many = size(&|at, has| {
        total.set(total.get() + 1000 * (has * has) as u64);
        sample(at, total.get())
    });
    assert!(many > 5, "{many}");
    // Counters that go backwards or jump to the end.
    let absurd = size(&|at, _| sample(at, if at % 2 == 0 { u64::MAX } else { 0 }));
    assert!((5..=8).contains(&absurd), "{absurd}");
}

/// A guest that is asked more often than its CPUs are divided: its latest figures count no more than those of
/// the rest of the second.
#[test]
fn what_a_guest_says_counts_of_the_whole_second() {
    let mut policy = policy();
    // 2.6 CPUs' work in each second, in its first half; its scheduler switches as often on any number of
    // CPUs.
    let done = |tenths: u64| {
        let (seconds, rest) = (tenths / 10, tenths % 10);
        2600 * MS * seconds + 520 * MS * rest.min(5)
    };
    let sizes: Vec<usize> = (1..=600u64)
        .map(|at| {
            let mut vm = vm("a", 10, 8, 0.0, 16);
            for thread in &mut vm.threads[1..] {
                thread.run_ns = (done(at) - done(at - 1)) / 8;
            }
            vm.guest = Some(GuestSample {
                at_ns: at * 100 * MS,
                used_ns: done(at),
                switches: done(at) / 1000,
                online: 8,
            });
            let plan = policy.decide(&snapshot(at, 16, 100 * MS, vec![vm]));
            own(&plan, "a").0.len()
        })
        .collect();
    // 65 % of each of four CPUs.
    assert_eq!(sizes.last(), Some(&4), "{sizes:?}");
    let late = &sizes[300..];
    assert!(late.iter().all(|it| *it == 4), "{late:?}");
}

#[test]
fn cpus_that_go_offline_are_given_up_at_once() {
    let mut policy = policy();
    let tenants = [vm("a", 10, 4, 0.7, 8)];
    after(policy.as_mut(), 10, &tenants, 8);
    let some = |cpus: u32| -> Snapshot {
        let mut seen = snapshot(0, 8, 100 * MS, tenants.to_vec());
        seen.time_ns = 10 * SECOND + 100 * MS;
        seen.host.topology = Arc::new(Topology::flat(cpus));
        seen
    };
    let plan = policy.decide(&some(3));
    let (a, online) = own(&plan, "a");
    let pools = plan.pools.unwrap();
    let all = [&a, &pools.idle, &pools.emulators];
    assert!(
        all.iter().all(|it| it.is_subset(&CpuSet::first(3))),
        "{all:?}"
    );
    assert_eq!(a.len(), online as usize);
}

/// All four mechanisms: promises are placed first, pools divide the rest, weights and latencies are as
/// always.
#[test]
fn mechanisms_compose() {
    let mut policy = policy_of(r#""asymmetry", "share", "criticality", "pools""#);
    let mut critical = vm("a", 10, 1, 0.2, 8);
    let mut spec = (*critical.spec).clone();
    spec.criticality = Some(Criticality::High);
    spec.period_ms = Some(10.0);
    spec.budget_ms = Some(2.0);
    spec.pessimistic_budget_ms = Some(4.0);
    spec.weight = Some(TenantWeight(300));
    critical.spec = Arc::new(spec);
    let tenants = [critical, vm("b", 20, 4, 0.5, 8), process("c", 30, 8)];
    let plan = after(policy.as_mut(), 20, &tenants, 8);
    let a = &plan.tenants[0];
    let Some(Promise::Kept { cpus, .. }) = &a.promise else {
        panic!("{a:?}");
    };
    let promised: CpuSet = cpus.iter().copied().collect();
    // The tenant's vCPU is served on its promised CPU, and pools leave it there.
    assert!(matches!(&a.group, Some(GroupPlan::Left { why }) if why.contains("promised")));
    assert_eq!(cpus_of(&plan, 11), Some(&promised));
    assert_eq!(a.weight, Some(TenantWeight(300)));
    let pools = plan.pools.as_ref().unwrap();
    assert_eq!(pools.left, promised);
    let (b, online) = own(&plan, "b");
    // Two CPUs' work.
    assert_eq!((b.len(), online), (3, 3));
    let apart = [&b, &pools.idle, &pools.emulators, &promised];
    assert_eq!(apart.iter().map(|it| it.len()).sum::<usize>(), 8);
    // The time that the promise leaves is for tenants in the idle pool, too.
    let shared: CpuSet = pools.idle.iter().chain(promised.iter()).collect();
    assert_eq!(cpus_of(&plan, 30), Some(&shared));
    // The machine's emulator thread is served with its vCPU.
    assert_eq!(cpus_of(&plan, 10), Some(&promised));
    let servers: Vec<_> = a.threads.iter().map(|it| it.server).collect();
    assert_eq!(servers, [Some(1), Some(1)]);
    // Inside of tenants asymmetry decides.
    let b_threads = &plan.tenants[1].threads;
    assert!(
        b_threads
            .iter()
            .all(|it| it.weight.is_some() && it.latency_ns.is_some())
    );

    // The promise ends: its CPU is divided as well.
    let mut tenants = tenants.to_vec();
    tenants[0] = vm("a", 10, 1, 0.2, 8);
    let plans = (21..40).map(|at| policy.decide(&snapshot(at, 8, SECOND, tenants.to_vec())));
    let plan = plans.last().unwrap();
    assert!(plan.pools.as_ref().unwrap().left.is_empty() && plan.servers.is_empty());
    own(&plan, "a");
}
