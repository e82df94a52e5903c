//! Timers, reader-writer locks, semaphores and events against what they take by hand; programs that stand still.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use common::MS;
use quell_model::Topology;
use quell_model::config::{Count, Critical, Step, ThreadProgram, TimeUs};
use quell_sim::{Costs, Fifo, Simulation, Tenant};

fn of(programs: &[ThreadProgram], cpus: u32) -> Simulation {
    let class = Box::new(Fifo::new(None));
    let mut simulation = Simulation::new(Topology::flat(cpus), Costs::NONE, class);
    simulation.add_tenant(Tenant::new(programs, None));
    simulation
}

/// Threads of so many programs, named a, b, ..., on as many CPUs.
fn simulation(programs: &[&str]) -> Simulation {
    let mut text = String::new();
    for (program, name) in programs.iter().zip('a'..) {
        text += &format!("[[tenant.thread]]\nname = \"{name}\"\nprogram = [{program}]\n");
    }
    of(&common::programs(&text, false), programs.len() as u32)
}

fn ran_us(simulation: &Simulation) -> Vec<u64> {
    let ran = common::ran(simulation).into_iter();
    ran.map(|ran| ran / 1000).collect()
}

#[test]
fn timers_never_drift_and_skip_what_they_miss() {
    let mut it = simulation(&["{ run_us = 300 }, { timer_us = 1000 }"]);
    it.run_until(100 * MS);
    assert_eq!(ran_us(&it), [30_000]);
    // 1.3 ms of each 2: every other period is missed and skipped.
    let mut it = simulation(&["{ run_us = 1300 }, { timer_us = 1000 }"]);
    it.run_until(100 * MS);
    assert_eq!(ran_us(&it), [65_000]);
}

#[test]
fn readers_read_together_and_a_waiting_writer_goes_before_new_ones() {
    let read = "{ read = { name = \"l\", program = [{ run_us = 100 }] } }";
    let write = "{ sleep_us = 50 }, { write = { name = \"l\", program = [{ run_us = 100 }] } }";
    let mut it = simulation(&[read, read, write]);
    it.run_until(10 * MS);
    // Read to 100, write to 200, and again: the writer sleeps from 200 to 250, when the readers have read from 200 to 300.
    assert_eq!(ran_us(&it), [5000, 5000, 5000]);
    assert_eq!(it.deadlock(), None);
}

#[test]
fn a_semaphore_lets_as_many_in_as_it_has() {
    let program = "{ acquire = { name = \"s\" } }, { run_us = 100 }, { release = \"s\" }";
    let first = program.replacen("\"s\" }", "\"s\", initial = 2 }", 1);
    let mut it = simulation(&[&first, program, program, program]);
    it.run_until(10 * MS);
    assert_eq!(ran_us(&it).iter().sum::<u64>(), 20_000);
    assert_eq!(it.deadlock(), None);
}

#[test]
fn signals_are_kept_and_broadcasts_reach_everybody_once() {
    let mut it = simulation(&[
        "{ wait = \"e\" }, { run_us = 10 }",
        "{ wait = \"e\" }, { run_us = 10 }",
        "{ signal = \"e\" }, { signal = \"e\" }, { signal = \"e\" }, { sleep_us = 1000 }",
    ]);
    it.run_until(10 * MS);
    let ran = ran_us(&it);
    assert_eq!(ran[0] + ran[1], 300);
    let mut it = simulation(&[
        "{ wait = \"e\" }, { run_us = 10 }",
        "{ wait = \"e\" }, { run_us = 1500 }",
        "{ broadcast = \"e\" }, { sleep_us = 1000 }",
    ]);
    it.run_until(10 * MS);
    // The second goes on at 0, and at 1.5, 3 and 4.5 ms, since one came meanwhile.
    assert_eq!(ran_us(&it)[..2], [100, 10_000]);
    assert_eq!(it.deadlock(), None);
}

#[test]
fn waiting_in_rings_is_explained() {
    // The check of scenarios refuses this one, so it is made by hand.
    let lock = |name: &str, program| {
        let name = name.to_string();
        Step::Lock(Critical { name, program })
    };
    let run = Step::RunUs(TimeUs::Constant(10.0));
    let thread = |name: &str, outer, inner| ThreadProgram {
        name: name.to_string(),
        count: Count::Fixed(1),
        spin_us: 0.0,
        cpus: None,
        program: vec![lock(
            outer,
            vec![run.clone(), lock(inner, vec![run.clone()])],
        )],
    };
    let mut it = of(&[thread("a", "x", "y"), thread("b", "y", "x")], 2);
    assert_eq!(it.deadlock(), None);
    it.run_until(MS);
    let why = "thread `a` waits for lock `y` that `b` holds; thread `b` waits for lock `x` that `a` holds";
    assert_eq!(it.deadlock(), Some((0, why.to_string())));

    let mut it = simulation(&[
        "{ acquire = { name = \"s\", initial = 1 } }, { run_us = 10 }, { acquire = { name = \"t\", initial = 1 } }, { run_us = 10 }, { release = \"t\" }, { release = \"s\" }",
        "{ acquire = { name = \"t\" } }, { run_us = 10 }, { acquire = { name = \"s\" } }, { run_us = 10 }, { release = \"s\" }, { release = \"t\" }",
    ]);
    it.run_until(MS);
    let why = "thread `a` waits for semaphore `t`, which nobody who can go on releases; \
               thread `b` waits for semaphore `s`, which nobody who can go on releases";
    assert_eq!(it.deadlock(), Some((0, why.to_string())));
}

#[test]
fn barriers_that_never_fill_are_explained_and_sleepers_are_no_standstill() {
    let mut it = simulation(&[
        "{ run_us = 10 }, { barrier = \"b\" }",
        "{ wait = \"e\" }, { barrier = \"b\" }",
        "{ barrier = \"b\" }, { signal = \"e\" }",
    ]);
    it.run_until(MS);
    let (_, why) = it.deadlock().unwrap();
    assert!(
        why.contains("thread `a` waits for barrier `b`, to which `b` does not come"),
        "{why}"
    );
    assert!(why.contains("thread `b` waits for event `e`"), "{why}");
    let mut it = simulation(&[
        "{ run_us = 10 }, { barrier = \"b\" }",
        "{ wait = \"e\" }, { barrier = \"b\" }",
        "{ sleep_us = 5000 }, { signal = \"e\" }, { barrier = \"b\" }",
    ]);
    it.run_until(MS);
    assert_eq!(it.deadlock(), None);
}

#[test]
fn a_program_that_takes_no_time_is_stopped() {
    let mut it = simulation(&["{ send = \"q\" }, { receive = \"q\" }"]);
    it.run_until(MS);
    let (_, why) = it.deadlock().unwrap();
    assert!(
        why.contains("thread `a` goes round its program for ever"),
        "{why}"
    );
}
