//! The studies' classes do what every class does.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../crates/quell-sim/tests/common/mod.rs"]
mod common;

use common::every_class::{self, Conserving, Named};
use common::{FORK_JOIN, S, TICKS, programs, threads};
use quell_model::{CpuId, Topology};
use quell_sim::{Costs, Request, Simulation, State, Tenant, ThreadId};
use quell_studies::classes::{Bvt, Credit, Credit2, Oldest};

/// All of them. Under none does a CPU idle beside a thread that may use it.
fn conserving(topology: &Topology) -> Vec<Conserving> {
    let all = classes(topology).into_iter();
    all.map(|(name, class)| (name, true, class)).collect()
}

fn classes(topology: &Topology) -> Vec<Named> {
    let cpus = topology.cpus.len();
    vec![
        ("oldest", Box::new(Oldest::default())),
        ("credit", Box::new(Credit::new(topology))),
        ("credit2", Box::new(Credit2::new(topology))),
        ("bvt", Box::new(Bvt::new(cpus, Bvt::ALLOWANCE, Vec::new()))),
    ]
}

#[test]
fn threads_leave_a_cpu_that_they_may_not_use_at_once_and_none_is_lost() {
    every_class::threads_leave_a_cpu_that_they_may_not_use_at_once_and_none_is_lost(conserving);
}

#[test]
fn partitions_share_nothing() {
    every_class::partitions_share_nothing(conserving);
}

#[test]
fn one_process_after_the_other() {
    every_class::one_process_after_the_other(classes);
}

#[test]
fn a_thread_has_so_many_processes_at_most() {
    every_class::a_thread_has_so_many_processes_at_most(classes);
}

#[test]
fn processes_of_processes() {
    every_class::processes_of_processes(classes);
}

#[test]
fn nobody_waits_beside_an_idle_cpu_and_all_get_through() {
    every_class::nobody_waits_beside_an_idle_cpu_and_all_get_through(
        classes,
        &["oldest", "bvt"],
        &[],
    );
}

#[test]
fn others_wake_and_are_moved_while_a_crowd_is_being_started() {
    every_class::others_wake_and_are_moved_while_a_crowd_is_being_started(classes);
}

#[test]
fn the_oldest_request_goes_first() {
    // The second comes while the first's parts wait for the only CPU.
    let class = Box::new(Oldest::default());
    let mut simulation = Simulation::new(Topology::flat(1), Costs::NONE, class);
    let requests = [0, 100_000].map(|due| Request { due, seed: 0 });
    let load = Box::new(requests.into_iter());
    simulation.add_tenant(Tenant::new(&programs(FORK_JOIN, true), Some(load)));
    let answers = simulation.run_until(S);
    let latencies_us: Vec<u64> = answers.iter().map(|a| (a.at - a.due) / 1000).collect();
    assert_eq!(latencies_us, [2000, 3900]);
}

#[test]
fn threads_run_only_where_they_may() {
    let programs = programs(&threads(5, "[{ run_us = 700 }, { sleep_us = 200 }]"), false);
    let class = Box::new(Oldest::default());
    let mut simulation = Simulation::new(Topology::flat(3), TICKS, class);
    simulation.add_tenant(Tenant::new(&programs, None));
    for thread in 0..3 {
        simulation.restrict(ThreadId(thread), [CpuId(1)].into_iter().collect());
    }
    simulation.run_until(S / 10);
    for step in 1..5_000 {
        simulation.run_until(S / 10 + step * 100_000);
        for thread in &simulation.machine().threads[..3] {
            assert!(!matches!(thread.state, State::Running(cpu) if cpu != CpuId(1)));
        }
    }
    let mut all = simulation.machine().threads.iter();
    assert!(all.all(|thread| thread.ran > S / 20));
}
