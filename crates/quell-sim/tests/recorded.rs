//! Recorded threads, against figures worked out by hand, to the nanosecond.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use quell_model::{CpuId, Nice, Topology};
use quell_sim::Act::{Done, Run, Until, Wait, Wake};
use quell_sim::{Act, Costs, Fifo, Nanos, Simulation, ThreadId};

fn machine(cpus: u32, threads: &[&[Act]]) -> Simulation {
    let class = Box::new(Fifo::new(None));
    let mut simulation = Simulation::new(Topology::flat(cpus), Costs::NONE, class);
    let acts = |acts: &&[Act]| (Nice::default(), acts.to_vec());
    let tenant = simulation.add_recorded(threads.iter().map(acts).collect());
    assert_eq!(tenant, 0);
    simulation
}

/// When each answer was due, and when it was given.
fn answers(simulation: &mut Simulation, until: Nanos) -> Vec<(Nanos, Nanos)> {
    let answers = simulation.run_until(until).into_iter();
    let mut answers: Vec<_> = answers.map(|it| (it.due, it.at)).collect();
    answers.sort_unstable();
    answers
}

#[test]
fn a_thread_wakes_others_where_its_own_progress_brings_it() {
    let waker = [Run(50), Wake(ThreadId(1)), Run(50), Done];
    let woken = [Run(30), Done];
    for (cpus, done) in [(2, 180), (1, 230)] {
        let mut simulation = machine(cpus, &[&waker, &woken]);
        simulation.interrupt(100, CpuId(0), ThreadId(0));
        let expected = [(100, 200), (150, done)];
        assert_eq!(answers(&mut simulation, 1000), expected);
        let ran = |thread: u32| simulation.machine().thread(ThreadId(thread)).ran;
        assert_eq!([ran(0), ran(1)], [100, 30]);
    }
}

#[test]
fn a_wakeup_is_kept_for_a_thread_that_does_not_wait_yet() {
    let thread = [Run(100), Done, Wait, Run(100), Done, Wait, Run(7), Done];
    let mut simulation = machine(1, &[&thread]);
    for at in [0, 50, 60] {
        simulation.interrupt(at, CpuId(0), ThreadId(0));
    }
    let expected = [(0, 100), (50, 200), (60, 207)];
    assert_eq!(answers(&mut simulation, 1000), expected);
}

#[test]
fn a_timer_that_has_gone_off_lets_its_thread_on() {
    let thread = [
        Run(10),
        Done,
        Until(50),
        Run(30),
        Done,
        Until(60),
        Run(1),
        Done,
    ];
    let mut simulation = machine(1, &[&thread]);
    simulation.interrupt(0, CpuId(0), ThreadId(0));
    // The thread was to go on at 60, and came to that point at 80.
    let expected = [(0, 10), (50, 80), (60, 81)];
    assert_eq!(answers(&mut simulation, 1000), expected);
}

#[test]
fn a_thread_that_is_through_stays_asleep() {
    let mut simulation = machine(1, &[&[Run(10)], &[]]);
    for at in [0, 5, 100, 200] {
        simulation.interrupt(at, CpuId(0), ThreadId(0));
        simulation.interrupt(at, CpuId(0), ThreadId(1));
    }
    assert_eq!(answers(&mut simulation, 1000), []);
    let machine = simulation.machine();
    assert_eq!(machine.threads.iter().map(|it| it.ran).sum::<Nanos>(), 10);
    assert_eq!(machine.cpus[0].current, None);
    assert_eq!(simulation.deadlock(), None);
}
