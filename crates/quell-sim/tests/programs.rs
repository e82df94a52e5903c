//! Timers, reader-writer locks, semaphores and events against figures worked out by hand; programs that
//! deadlock.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use common::MS;
use quell_model::Topology;
use quell_scenario::{Count, Critical, Step, ThreadProgram, TimeUs};
use quell_sched::Options;
use quell_sim::{Class, Costs, Fair, Fifo, SchedExt, Simulation, Tenant, ThreadId};

fn of(programs: &[ThreadProgram], cpus: u32) -> Simulation {
    let class = Box::new(Fifo::new(None));
    let mut simulation = Simulation::new(Topology::flat(cpus), Costs::NONE, class);
    simulation.add_tenant(Tenant::new(programs, None));
    simulation
}

/// One thread for each of the programs, named a, b, ..., on as many CPUs.
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
    // 1.3 ms of each 2 ms: every other period is missed and skipped.
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
    // The readers read from 0 to 100 us and the writer writes to 200, then sleeps to 250; meanwhile the
    // readers read again, from 200 to 300.
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
    // The second thread goes on at 0, 1.5, 3 and 4.5 ms, since a broadcast came each time before.
    assert_eq!(ran_us(&it)[..2], [100, 10_000]);
    assert_eq!(it.deadlock(), None);
}

#[test]
fn waiting_in_rings_is_explained() {
    // The check of scenarios refuses this scenario, so the programs are built directly.
    let lock = |name: &str, program| {
        let name = name.to_string();
        Step::Lock(Critical { name, program })
    };
    let run = Step::RunUs(TimeUs::Constant(10.0));
    let thread = |name: &str, outer, inner| {
        let program = vec![run.clone(), lock(inner, vec![run.clone()])];
        ThreadProgram::new(name, Count::Fixed(1), vec![lock(outer, program)])
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

/// The CPU time of the threads of these tables in 10 s, in percent of a CPU.
fn shares(class: Box<dyn Class>, cpus: u32, tables: &str) -> Vec<f64> {
    let mut simulation = Simulation::new(Topology::flat(cpus), common::TICKS, class);
    simulation.add_tenant(Tenant::new(&common::programs(tables, false), None));
    simulation.run_until(10 * common::S);
    let ran = common::ran(&simulation).into_iter();
    ran.map(|ran| ran as f64 / 1e8).collect()
}

fn classes(cpus: u32) -> Vec<(&'static str, Box<dyn Class>)> {
    vec![
        ("6.1", Box::new(Fair::cfs_6_1())),
        ("6.12", Box::new(Fair::eevdf_6_12())),
        ("7.2", Box::new(Fair::eevdf_7_2())),
        (
            "quell",
            Box::new(SchedExt::new(&Topology::flat(cpus), &Options::default()).unwrap()),
        ),
    ]
}

fn table(name: &str, keys: &str, program: &str) -> String {
    format!("[[tenant.thread]]\nname = \"{name}\"\n{keys}\nprogram = [{program}]\n")
}

#[test]
fn nice_values_and_the_idle_policy_are_weights() {
    let busy = "{ run_us = 1000 }";
    for (name, class) in classes(1) {
        let tables =
            table("a", "nice = -5", busy) + &table("b", "", busy) + &table("c", "nice = 5", busy);
        let got = shares(class, 1, &tables);
        // 3121 : 1024 : 335.
        for (got, due) in got.iter().zip([69.7, 22.9, 7.5]) {
            assert!((got - due).abs() < 1.5, "{name}: {got} for {due}");
        }
    }
    for (name, class) in classes(1) {
        let tables =
            table("a", "policy = \"idle\"", busy) + &table("b", "policy = \"batch\"", busy);
        let got = shares(class, 1, &tables);
        assert!(got[0] < 1.5 && got[0] + got[1] > 99.0, "{name}: {got:?}");
    }
}

#[test]
fn periodic_threads_beside_others_of_the_idle_policy_have_what_they_want() {
    // Eight threads that each run for 5.333 ms of every 7.777 ms (68.6 %), on as many CPUs, beside five
    // background threads.
    let tables = table(
        "periodic",
        "count = 8",
        "{ run_us = 5333 }, { timer = { period_us = 7777 } }",
    ) + &table(
        "background",
        "count = 5\npolicy = \"idle\"",
        "{ run_us = 3000 }",
    );
    for (name, class) in classes(8) {
        let got = shares(class, 8, &tables);
        // Under EEVDF two periodic threads share a CPU for a while now and then: a thread whose dequeue is
        // delayed wakes where it is queued, and at this utilisation no other CPU is searched for.
        let most = if ["6.12", "7.2"].contains(&name) {
            3.0
        } else {
            0.2
        };
        for got in &got[..8] {
            assert!((got - 68.57).abs() < most, "{name}: {got}");
        }
    }
}

#[test]
fn a_shorter_slice_is_served_sooner_and_is_no_larger_share() {
    let wakes = |keys: &str| {
        let tables = table(
            "often",
            keys,
            "{ run_us = 200 }, { timer = { period_us = 5000 } }",
        ) + &table("busy", "count = 4", "{ run_us = 1000 }");
        let class = Box::new(Fair::eevdf_7_2());
        let mut it = Simulation::new(Topology::flat(1), common::TICKS, class);
        it.add_tenant(Tenant::new(&common::programs(&tables, false), None));
        it.run_until(10 * common::S);
        let often = ThreadId(0);
        (common::ran(&it)[0], it.machine().waited(often))
    };
    let ((_, long), (ran, short)) = (wakes("slice_us = 20000"), wakes("slice_us = 300"));
    assert!(short < long / 2, "{short} {long}");
    assert!(ran.abs_diff(400 * MS) < 10 * MS, "{ran}");
    let both = table("a", "slice_us = 100", "{ run_us = 1000 }")
        + &table("b", "slice_us = 50000", "{ run_us = 1000 }");
    let got = shares(Box::new(Fair::eevdf_7_2()), 1, &both);
    assert!((got[0] - 50.0).abs() < 1.0, "{got:?}");
}

#[test]
fn a_signal_goes_to_who_waits_already() {
    // 100 rounds a second each: the first thread signals, waits for the other's signal, and does not take its
    // own.
    let decoder = "{ timer_us = 10000 }, { signal = \"q\" }, { wait = \"q\" }, { run_us = 150 }";
    let other = "{ wait = \"q\" }, { run_us = 300 }, { signal = \"q\" }";
    let mut it = simulation(&[decoder, other]);
    it.run_until(1000 * MS + MS);
    assert_eq!(ran_us(&it), [15_000, 30_000]);
    assert_eq!(it.rounds(0), 200);
    // The same with a lock and POSIX's condition variable.
    let decoder = "{ run_us = 1000 }, { lock = { name = \"m\", program = [{ signal = \"q\" }, { wait_next = \"q\" }] } }, { run_us = 150 }, { timer_us = 10000 }";
    let other = "{ lock = { name = \"m\", program = [{ wait_next = \"q\" }] } }, { run_us = 300 }, { lock = { name = \"m\", program = [{ signal = \"q\" }] } }";
    let mut it = simulation(&[decoder, other]);
    it.run_until(1000 * MS);
    assert_eq!(ran_us(&it), [115_000, 30_000]);
    assert_eq!(it.deadlock(), None);
}

#[test]
fn who_waits_for_the_next_does_not_take_what_came_before() {
    let early = "{ signal = \"e\" }, { run_us = 100 }, { timer_us = 1000 }";
    let late =
        |wait: &str| format!("{{ sleep_us = 1500 }}, {{ {wait} = \"e\" }}, {{ run_us = 10 }}");
    for (wait, rounds) in [("wait", 6), ("wait_next", 4)] {
        let mut it = simulation(&[early, &late(wait)]);
        it.run_until(10 * MS);
        assert_eq!(ran_us(&it), [1000, 10 * rounds], "{wait}");
    }
    // A thread has seen the broadcast that let it past.
    let all = "{ broadcast = \"a\" }, { run_us = 100 }, { timer_us = 1000 }";
    let twice = "{ wait_next = \"a\" }, { run_us = 10 }, { wait = \"a\" }, { run_us = 20 }";
    let mut it = simulation(&[twice, all]);
    it.run_until(10 * MS);
    assert_eq!(ran_us(&it), [150, 1000]);
    // A thread's own signal is for other threads, also where none has waited yet.
    let own = "{ signal = \"o\" }, { run_us = 10 }, { wait = \"o\" }";
    let mut it = simulation(&[own, own]);
    it.run_until(MS);
    assert_eq!(ran_us(&it), [1000, 1000]);
    let mut it = simulation(&[own, "{ run_us = 10 }"]);
    it.run_until(MS);
    assert!(it.deadlock().unwrap().1.contains("event `o`"));
    let never = "{ wait_next = \"e\" }, { run_us = 10 }, { signal = \"e\" }";
    let mut it = simulation(&[never, never]);
    it.run_until(MS);
    assert!(it.deadlock().unwrap().1.contains("event `e`"));
}

#[test]
fn a_thread_may_only_pass_signals_on() {
    let tick = "{ run_us = 100 }, { signal = \"f\" }, { timer_us = 10000 }";
    let forward = "{ wait = \"f\" }, { signal = \"w\" }";
    let worker = "{ wait = \"w\" }, { run_us = 500 }";
    let mut it = simulation(&[tick, forward, worker]);
    it.run_until(1000 * MS);
    assert_eq!(ran_us(&it), [10_000, 0, 50_000]);
}

#[test]
fn timers_of_ones_own_restart_or_catch_up() {
    let timer = |missed: &str| format!("{{ timer = {{ period_us = 1000{missed} }} }}");
    // A thread that is on time does the same either way: 300 us each ms.
    let mut it = simulation(&[&format!("{{ run_us = 300 }}, {}", timer(""))]);
    it.run_until(100 * MS);
    assert_eq!(ran_us(&it), [30_000]);
    // Work that is longer than the period never sleeps; with `timer_us` the thread would run for 65 % of the
    // time.
    let mut it = simulation(&[&format!("{{ run_us = 1300 }}, {}", timer(""))]);
    it.run_until(100 * MS);
    assert_eq!(ran_us(&it), [100_000]);
    // 5 ms late once: a timer that restarts has lost the periods, one that catches up does five rounds at
    // once.
    let once = |missed| {
        format!(
            "{{ run_us = 5000 }}, {{ repeat = {{ times = 1000, program = [{{ run_us = 300 }}, {}] }} }}",
            timer(missed)
        )
    };
    for (missed, ran) in [
        ("", 5000 + 96 * 300),
        (", missed = \"catch_up\"", 5000 + 100 * 300),
    ] {
        let mut it = simulation(&[&once(missed)]);
        it.run_until(100 * MS);
        assert_eq!(ran_us(&it), [ran], "{missed}");
    }
    // The periods of one timer add up; those of two timers do not.
    let two = |name| {
        format!(
            "{{ run_us = 100 }}, {{ timer = {{ period_us = 1000, name = \"a\" }} }}, {{ run_us = 100 }}, {{ timer = {{ period_us = 3000, name = \"{name}\" }} }}"
        )
    };
    for (name, rounds) in [("a", 10), ("b", 13)] {
        let mut it = simulation(&[&two(name)]);
        it.run_until(40 * MS + MS / 2);
        assert_eq!(it.rounds(0), rounds, "{name}");
    }
}

#[test]
fn threads_begin_later_and_end() {
    let tables = table(
        "a",
        "delay_us = 3000\nrounds = 4",
        "{ run_us = 1000 }, { timer = { period_us = 2000 } }",
    ) + &table("b", "", "{ run_us = 1000 }, { sleep_us = 1000 }");
    let mut it = of(&common::programs(&tables, false), 2);
    it.run_until(8 * MS);
    assert_eq!(ran_us(&it), [3000, 4000]);
    it.run_until(19 * MS + MS / 2);
    assert_eq!(ran_us(&it), [4000, 10_000]);
    assert_eq!(it.rounds(0), 13);
    assert_eq!(it.deadlock(), None);
}
