//! Threads whose affinity changes while they run and wait, under every class.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use common::every_class::{self, Conserving, cpus};
use common::{MS, TICKS, busy, machine, machine_with};
use quell_model::{CpuId, Topology};
use quell_sched::Options;
use quell_sim::{Costs, Fair, Fifo, SchedExt, State, ThreadId};

/// All classes; the flag says whether no CPU ever idles while a thread is ready that may run on it.
fn classes(topology: &Topology) -> Vec<Conserving> {
    let sched = SchedExt::new(topology, &Options::default()).unwrap();
    vec![
        ("fifo", true, Box::new(Fifo::new(Some(MS)))),
        ("sched", true, Box::new(sched)),
        ("cfs", false, Box::new(Fair::cfs_6_1())),
        ("eevdf-6.12", false, Box::new(Fair::eevdf_6_12())),
        ("eevdf", false, Box::new(Fair::eevdf_7_2())),
    ]
}

#[test]
fn threads_leave_a_cpu_that_they_may_not_use_at_once_and_none_is_lost() {
    every_class::threads_leave_a_cpu_that_they_may_not_use_at_once_and_none_is_lost(classes);
}

#[test]
fn partitions_share_nothing() {
    every_class::partitions_share_nothing(classes);
}

#[test]
fn leaving_takes_as_long_as_the_cpu_takes_to_look() {
    let costs = Costs {
        kick: 3_000,
        ..TICKS
    };
    let class = Box::new(Fair::eevdf_7_2());
    let mut simulation = machine_with(costs, Topology::flat(2), class, vec![busy(100, 1)]);
    simulation.run_until(10 * MS);
    let State::Running(from) = simulation.machine().threads[0].state else {
        panic!("it waits");
    };
    let other = CpuId(1 - from.0);
    simulation.restrict(ThreadId(0), [other].into_iter().collect());
    simulation.run_until(10 * MS + 2_999);
    assert_eq!(simulation.machine().threads[0].state, State::Running(from));
    // The thread's CPU reschedules and kicks the other CPU, which takes a kick's time more.
    simulation.run_until(10 * MS + 3_000);
    assert_eq!(simulation.machine().threads[0].state, State::Ready);
    simulation.run_until(10 * MS + 6_000);
    assert_eq!(simulation.machine().threads[0].state, State::Running(other));
}

#[test]
fn who_must_go_spreads_over_the_new_cpus() {
    // Eight threads that shared two CPUs get four other CPUs: when each of these has two threads, there was
    // no balancing yet.
    let class = Box::new(Fair::eevdf_7_2());
    let mut simulation = machine(Topology::flat(8), class, vec![busy(100, 8)]);
    for thread in 0..8 {
        simulation.restrict(ThreadId(thread), cpus(0, 2));
    }
    simulation.run_until(50 * MS);
    for thread in 0..8 {
        simulation.restrict(ThreadId(thread), cpus(4, 4));
    }
    simulation.run_until(50 * MS);
    let machine = simulation.machine();
    for cpu in 4..8 {
        assert!(machine.cpus[cpu].current.is_some());
    }
    let idle = machine.cpus[..4].iter().all(|cpu| cpu.current.is_none());
    assert!(idle);
}
