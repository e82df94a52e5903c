//! Threads whose affinity changes while they run and wait, under every class.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use common::{MS, S, TICKS, batch, busy, machine, machine_with, ran, wastes};
use quell_model::{CpuId, CpuSet, Topology};
use quell_sched::Options;
use quell_sim::{
    Bvt, Class, Costs, Credit, Credit2, Edf, Fair, Fifo, Oldest, Order, Rtds, SchedExt, Server,
    Simulation, State, ThreadId,
};

/// All classes; the flag says whether no CPU ever idles while a thread is ready that may run on it.
fn classes(topology: &Topology) -> Vec<(&'static str, bool, Box<dyn Class>)> {
    let count = topology.cpus.len();
    let order = Order::Deadlines(vec![MS; 30]);
    let sched = SchedExt::new(topology, &Options::default()).unwrap();
    vec![
        ("fifo", true, Box::new(Fifo::new(Some(MS)))),
        ("oldest", true, Box::new(Oldest::default())),
        ("edf", true, Box::new(Edf::new(count, order))),
        (
            "rtds",
            true,
            Box::new(Rtds::new(count, vec![], Server::XEN)),
        ),
        ("credit", true, Box::new(Credit::new(topology))),
        ("credit2", true, Box::new(Credit2::new(topology))),
        (
            "bvt",
            true,
            Box::new(Bvt::new(count, Bvt::ALLOWANCE, vec![])),
        ),
        ("sched", true, Box::new(sched)),
        ("cfs", false, Box::new(Fair::cfs_6_1())),
        ("eevdf-6.12", false, Box::new(Fair::eevdf_6_12())),
        ("eevdf", false, Box::new(Fair::eevdf_7_2())),
    ]
}

fn cpus(first: u32, count: u32) -> CpuSet {
    (first..first + count).map(CpuId).collect()
}

fn misplaced(simulation: &Simulation) -> Option<usize> {
    let threads = &simulation.machine().threads;
    threads.iter().position(|thread| match thread.state {
        State::Running(cpu) => !thread.may_use(cpu),
        State::Ready | State::Blocked | State::Ended => false,
    })
}

#[test]
fn threads_leave_a_cpu_that_they_may_not_use_at_once_and_none_is_lost() {
    let topology = Topology::flat(4);
    for (name, conserves, class) in classes(&topology) {
        let tenants = vec![
            busy(100, 2),
            batch(100, 4, "[{ run_us = 700 }, { sleep_us = 400 }]"),
            batch(
                100,
                3,
                "[{ run_us = { exponential = 3000 } }, { sleep_us = { exponential = 5000 } }]",
            ),
        ];
        let mut simulation = machine_with(TICKS, topology.clone(), class, tenants);
        for step in 0..3_000u32 {
            let at = u64::from(step) * 310_000;
            simulation.run_until(at);
            let (first, count) = (step * 5 % 4, 1 + step % 2 * (step % 3));
            let set = (first..first + count).map(|cpu| CpuId(cpu % 4)).collect();
            simulation.restrict(ThreadId(step * 7 % 9), set);
            simulation.run_until(at);
            assert_eq!(misplaced(&simulation), None, "{name}, at {at}");
            let wasted = conserves && wastes(simulation.machine());
            assert!(!wasted, "{name}, at {at}");
        }
        let before = ran(&simulation);
        simulation.run_until(5 * S);
        for (thread, (after, before)) in ran(&simulation).into_iter().zip(before).enumerate() {
            // Under EDF threads without deadlines run until they block.
            assert!(after > before || name == "edf", "{name}: thread {thread}");
        }
        let machine = simulation.machine();
        let busy: u64 = machine.cpus.iter().map(|cpu| cpu.busy).sum();
        assert_eq!(busy, ran(&simulation).iter().sum::<u64>(), "{name}");
    }
}

#[test]
fn partitions_share_nothing() {
    // Three busy threads on one CPU and one on the other three CPUs; then the other way round.
    for (name, _, class) in classes(&Topology::flat(4)) {
        let tenants = vec![busy(100, 3), busy(100, 1)];
        let mut simulation = machine_with(TICKS, Topology::flat(4), class, tenants);
        let mut before = vec![0; 4];
        for (first, alone, each) in [(1, 1.0, 1.0 / 3.0), (3, 1.0, 1.0)] {
            for thread in 0..3 {
                simulation.restrict(ThreadId(thread), cpus(0, first));
            }
            simulation.restrict(ThreadId(3), cpus(first, 4 - first));
            let end = simulation.machine().now + 6 * S;
            simulation.run_until(end);
            let got: Vec<f64> = ran(&simulation)
                .iter()
                .zip(&before)
                .map(|(ran, before)| (ran - before) as f64 / (6 * S) as f64)
                .collect();
            let three = got[..3].iter().sum::<f64>();
            assert!(
                (three - 3.0 * each).abs() < 0.01 && (got[3] - alone).abs() < 0.01,
                "{name}: {got:?}"
            );
            let alike = got[..3].iter().all(|got| (got - each).abs() < 0.02);
            // These two classes order threads that are equal otherwise.
            let ordered = matches!(name, "edf" | "rtds");
            assert!(alike || ordered, "{name}: {got:?}");
            before = ran(&simulation);
        }
    }
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
