//! Processes that begin and end, under every class: which CPU they go to, and what they and their parents
//! get.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use common::every_class::{self, Named, alive, family, maker};
use common::{BUSY, MS, S, TICKS, add_threads as add, close, near, ran};
use quell_model::{CpuId, TenantWeight, Topology};
use quell_sched::Options;
use quell_sim::{
    Class, Costs, Fair, Fifo, GroupId, Happening, Monitor, SchedExt, Simulation, ThreadId,
};
use std::cell::RefCell;
use std::rc::Rc;

/// A thread that starts a process of `run_us` us of CPU time, waits for it, and starts the next.
fn sched(topology: &Topology) -> Box<dyn Class> {
    Box::new(SchedExt::new(topology, &Options::default()).unwrap())
}

/// All classes that need nothing but threads.
fn classes(topology: &Topology) -> Vec<Named> {
    let share = Options {
        share: true,
        ..Options::default()
    };
    vec![
        ("sched", sched(topology)),
        ("share", Box::new(SchedExt::new(topology, &share).unwrap())),
        ("eevdf", Box::new(Fair::eevdf_7_2())),
        ("eevdf-6.12", Box::new(Fair::eevdf_6_12())),
        ("cfs", Box::new(Fair::cfs_6_1())),
        ("fifo", Box::new(Fifo::new(Some(3 * MS)))),
    ]
}

fn fair(version: &str, cpus: u32) -> Simulation {
    let topology = Topology::flat(cpus);
    let mut classes = classes(&topology).into_iter();
    let (_, class) = classes.find(|(name, _)| *name == version).unwrap();
    Simulation::new(topology, TICKS, class)
}

/// The CPU time of a thread and of all its descendants, in ns.
#[test]
fn one_process_after_the_other() {
    every_class::one_process_after_the_other(classes);
}

#[test]
fn a_process_costs_what_it_is_said_to() {
    let costs = Costs {
        fork: 60_000,
        ..Costs::NONE
    };
    let class = Box::new(Fair::eevdf_7_2());
    let mut it = Simulation::new(Topology::flat(1), costs, class);
    add(&mut it, GroupId::ROOT, 0, 1, &maker(940));
    it.run_until(100 * MS + 1);
    assert_eq!(it.rounds(0), 100);
}

#[test]
fn a_thread_has_so_many_processes_at_most() {
    every_class::a_thread_has_so_many_processes_at_most(classes);
}

#[test]
fn a_crowd_is_waited_for() {
    let program = "[{ repeat = { times = 9, program = [ \
                   { spawn = { program = [{ run_us = 1000 }], wait = false } }] } }, \
                   { spawn = { program = [{ run_us = 1000 }, { sleep_us = 1000 }] } }, { sleep_us = 10000 }]";
    let mut it = fair("eevdf", 2);
    add(&mut it, GroupId::ROOT, 0, 1, program);
    it.run_until(1);
    assert_eq!(alive(&it), 11);
    it.run_until(7 * MS);
    assert_eq!(alive(&it), 1);
    it.run_until(S);
    // 5 to 6 ms of work, the last process's sleep if it ended last, and 10 ms of sleep.
    assert!((58..=67).contains(&it.rounds(0)), "{}", it.rounds(0));
}

#[test]
fn processes_of_processes() {
    every_class::processes_of_processes(classes);
}

#[test]
fn nobody_waits_beside_an_idle_cpu_and_all_get_through() {
    every_class::nobody_waits_beside_an_idle_cpu_and_all_get_through(
        classes,
        &["sched", "share", "fifo"],
        &["eevdf", "eevdf-6.12", "cfs", "fifo"],
    );
}

#[test]
fn a_process_runs_where_its_parent_may_and_in_its_group() {
    for name in ["eevdf", "cfs"] {
        let mut it = fair(name, 2);
        let light = it.add_group(GroupId::ROOT, TenantWeight(100));
        let heavy = it.add_group(GroupId::ROOT, TenantWeight(300));
        let first = add(&mut it, light, 0, 1, &maker(3000));
        let second = add(&mut it, heavy, 0, 1, &maker(3000));
        for thread in [first, second] {
            it.restrict(ThreadId(thread as u32), [CpuId(1)].into_iter().collect());
        }
        it.run_until(2 * S);
        let before = [first, second].map(|thread| family(&it, thread));
        it.run_until(12 * S);
        let got = [first, second]
            .map(|thread| family(&it, thread) - before[usize::from(thread == second)]);
        near(name, got[1] as f64 / got[0] as f64, 3.0, 0.15);
        assert_eq!(it.machine().cpus[0].busy, 0, "{name}");
    }
}

#[test]
fn no_share_is_made_by_forking() {
    for name in ["sched", "eevdf", "eevdf-6.12", "cfs"] {
        for run_us in [500, 5000, 50_000] {
            let mut it = fair(name, 1);
            add(&mut it, GroupId::ROOT, 0, 1, BUSY);
            let first = add(&mut it, GroupId::ROOT, 0, 1, &maker(run_us));
            it.run_until(2 * S);
            let before = (ran(&it)[0], family(&it, first));
            it.run_until(12 * S);
            let loops = (ran(&it)[0] - before.0) as f64 / 1e10;
            let makes = (family(&it, first) - before.1) as f64 / 1e10;
            close((name, run_us), loops + makes, 1.0, 0.001);
            // A process that is forked often is new each time: in CFS each starts a slice of 3 ms behind the
            // other threads.
            let right = match name {
                "cfs" => 0.1..0.7,
                "sched" => 0.4..0.51,
                _ => 0.4..0.7,
            };
            assert!(right.contains(&makes), "{name}, {run_us} us: {makes}");
        }
    }
}

#[test]
fn who_starts_processes_one_after_another_has_the_share_of_one() {
    for (cpus, loops, run_us) in [
        (1, 1, 100),
        (1, 1, 250),
        (2, 4, 100),
        (2, 4, 1000),
        (2, 4, 15_000),
        (4, 7, 3000),
    ] {
        let mut it = fair("sched", cpus);
        add(&mut it, GroupId::ROOT, 0, loops, BUSY);
        let first = add(&mut it, GroupId::ROOT, 0, 1, &maker(run_us));
        it.run_until(2 * S);
        let before = family(&it, first);
        it.run_until(12 * S);
        let makes = (family(&it, first) - before) as f64 / 1e10;
        let due = f64::from(cpus) / f64::from(loops + 1);
        // The cost of starting such short processes is a fifth of what they do.
        assert!(
            (0.74 * due..1.02 * due).contains(&makes),
            "{cpus} CPUs, {loops} loops, {run_us} us: {makes} of {due}"
        );
    }
}

/// Crowds that start short processes for ever do not delay a thread that needs more than a slice, but no more
/// than its share.
#[test]
fn who_runs_3_ms_every_20_is_not_kept_waiting_by_those_who_start_processes() {
    for run_us in [100, 300, 15_000] {
        let mut it = fair("sched", 2);
        let first = add(
            &mut it,
            GroupId::ROOT,
            0,
            1,
            "[{ run_us = 3000 }, { sleep_us = 17000 }]",
        );
        add(&mut it, GroupId::ROOT, 0, 8, &maker(run_us));
        it.run_until(10 * S);
        // 20 ms for each round, if the thread never waited.
        let rounds = it.rounds(first);
        assert!(rounds >= 485, "{run_us} us: {rounds} of 500");
    }
}

#[test]
fn eevdf_places_a_new_one_at_the_average_with_half_a_slice() {
    // Alone on a CPU with a slice of 0.7 ms: the parent goes on until it blocks, and then the loop and the
    // new thread, which are both at the average, run in the order of their deadlines.
    let mut it = Simulation::new(Topology::flat(1), TICKS, Box::new(Fair::eevdf_7_2()));
    let order: Rc<RefCell<Vec<(u64, u32)>>> = Rc::default();
    let told = order.clone();
    add(
        &mut it,
        GroupId::ROOT,
        0,
        1,
        "[{ sleep_us = 1000 }, { spawn = { program = [{ run_us = 2000 }] } }, { sleep_us = 1000000 }]",
    );
    add(&mut it, GroupId::ROOT, 0, 1, BUSY);
    it.observe(Box::new(move |_, at, happening| {
        if let Happening::Switch {
            next: Some(next), ..
        } = happening
        {
            told.borrow_mut().push((at, next.0));
        }
    }));
    it.run_until(10 * MS);
    let order = order.borrow();
    let at = order.iter().position(|&(_, thread)| thread == 2).unwrap();
    let (began, _) = order[at];
    // The new thread's deadline is 0.35 ms from the average, the loop's is up to 0.7 ms.
    assert!(began < 1_400_000, "{order:?}");
    let (left, next) = order[at + 1];
    assert!(
        next == 1 && (300_000..=800_000).contains(&(left - began)),
        "{order:?}"
    );
}

#[test]
fn the_same_course_each_time() {
    let program = "[{ spawn = { program = [{ run_us = { exponential = 900 } }], \
                   wait = false, most = 7 } }, { run_us = 30 }]";
    for name in ["sched", "eevdf"] {
        let course = || {
            let mut it = fair(name, 2);
            add(&mut it, GroupId::ROOT, 0, 2, program);
            it.run_until(S);
            ran(&it)
        };
        let one = course();
        assert!(one.len() > 1000, "{}", one.len());
        assert_eq!(one, course(), "{name}");
    }
}

#[test]
fn the_monitor_sees_processes_come_and_go() {
    let mut it = fair("sched", 1);
    let tenant = add(&mut it, GroupId::ROOT, 0, 1, &maker(10_000));
    let spec = quell_model::config::TenantSpec::named("a");
    let name = quell_model::TenantName::from("a");
    let mut monitor = Monitor::new(&mut it, vec![Some((name, spec.into()))]);
    it.run_until(95 * MS);
    let seen = monitor.snapshot(&it);
    let threads = &seen.tenants[tenant].threads;
    assert_eq!(threads.len(), 11);
    assert_eq!(threads.iter().map(|it| it.run_ns).sum::<u64>(), 95 * MS);
    it.run_until(105 * MS);
    // The parent, the process that has ended since, and the new one.
    assert_eq!(monitor.snapshot(&it).tenants[tenant].threads.len(), 3);
}

#[test]
fn others_wake_and_are_moved_while_a_crowd_is_being_started() {
    every_class::others_wake_and_are_moved_while_a_crowd_is_being_started(classes);
}
