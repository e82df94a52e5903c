//! What holds under every class: each function is a test of the classes that it is given. The studies have
//! classes of their own, and hold these to it as well.

use super::{MS, S, TICKS, add_threads as add, batch, busy, machine_with, ran, wastes};
use quell_model::{CpuId, CpuSet, Topology};
use quell_sim::{Class, Costs, GroupId, Simulation, State, ThreadId};

/// A class by its name.
pub type Named = (&'static str, Box<dyn Class>);

/// A class by its name, and whether a CPU never idles beside a thread that may use it.
pub type Conserving = (&'static str, bool, Box<dyn Class>);

pub fn cpus(first: u32, count: u32) -> CpuSet {
    (first..first + count).map(CpuId).collect()
}

fn misplaced(simulation: &Simulation) -> Option<usize> {
    let threads = &simulation.machine().threads;
    threads.iter().position(|thread| match thread.state {
        State::Running(cpu) => !thread.may_use(cpu),
        State::Ready | State::Blocked | State::Ended => false,
    })
}

pub fn threads_leave_a_cpu_that_they_may_not_use_at_once_and_none_is_lost(
    classes: impl Fn(&Topology) -> Vec<Conserving>,
) {
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
            assert!(after > before, "{name}: thread {thread}");
        }
        let machine = simulation.machine();
        let busy: u64 = machine.cpus.iter().map(|cpu| cpu.busy).sum();
        assert_eq!(busy, ran(&simulation).iter().sum::<u64>(), "{name}");
    }
}

pub fn partitions_share_nothing(classes: impl Fn(&Topology) -> Vec<Conserving>) {
    // Three busy threads and one, on one CPU and on three; then the other way round.
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
            assert!(alike, "{name}: {got:?}");
            before = ran(&simulation);
        }
    }
}

/// Starts a process of so many us of CPU time, waits for it, and starts the next.
pub fn maker(run_us: u32) -> String {
    format!("[{{ spawn = {{ program = [{{ run_us = {run_us} }}] }} }}]")
}

/// What a thread and all that descend from it used.
pub fn family(simulation: &Simulation, of: usize) -> u64 {
    let threads = simulation.machine().threads.iter();
    let own = threads.filter(|it| it.origin.index() == of);
    own.map(|it| it.ran).sum()
}

pub fn alive(simulation: &Simulation) -> usize {
    let threads = simulation.machine().threads.iter();
    threads.filter(|it| it.state != State::Ended).count()
}

pub fn one_process_after_the_other(classes: impl Fn(&Topology) -> Vec<Named>) {
    let topology = Topology::flat(1);
    for (name, class) in classes(&topology) {
        let mut it = Simulation::new(topology.clone(), Costs::NONE, class);
        add(&mut it, GroupId::ROOT, 0, 1, &maker(15_000));
        it.run_until(150 * MS + 1);
        let machine = it.machine();
        assert_eq!(it.rounds(0), 10, "{name}");
        assert_eq!(machine.threads.len(), 12, "{name}");
        for child in &machine.threads[1..11] {
            assert_eq!((child.ran, child.state), (15 * MS, State::Ended), "{name}");
        }
        assert_eq!(machine.threads[11].leader, ThreadId(11), "{name}");
        assert_eq!(machine.threads[11].origin, ThreadId(0), "{name}");
    }
}

pub fn a_thread_has_so_many_processes_at_most(classes: impl Fn(&Topology) -> Vec<Named>) {
    let program = "[{ spawn = { program = [{ run_us = { uniform = [500, 4000] } }], \
                   wait = false, most = 5 } }]";
    for (name, class) in classes(&Topology::flat(2)) {
        let mut it = Simulation::new(Topology::flat(2), TICKS, class);
        add(&mut it, GroupId::ROOT, 0, 1, program);
        it.run_until(100 * MS);
        let mut most = 0;
        for step in 0..1000 {
            it.run_until(100 * MS + step * 100_000);
            most = most.max(alive(&it));
        }
        assert_eq!(most, 6, "{name}");
    }
}

pub fn processes_of_processes(classes: impl Fn(&Topology) -> Vec<Named>) {
    let program = "[{ spawn = { program = [{ spawn = { program = [{ run_us = 300 }], wait = false } }, \
                   { spawn = { program = [{ run_us = 100 }] } }, { run_us = 100 }] } }]";
    for (name, class) in classes(&Topology::flat(1)) {
        let mut it = Simulation::new(Topology::flat(1), Costs::NONE, class);
        add(&mut it, GroupId::ROOT, 0, 1, program);
        it.run_until(50 * MS);
        assert!(
            (99..=100).contains(&it.rounds(0)),
            "{name}: {}",
            it.rounds(0)
        );
        assert_eq!(family(&it, 0), 50 * MS, "{name}");
    }
}

/// `at_once` are the classes under which no CPU idles beside a thread that was ready before, and `sleepers`
/// the classes under which a thread that sleeps has at least as much credit as a new one.
pub fn nobody_waits_beside_an_idle_cpu_and_all_get_through(
    classes: impl Fn(&Topology) -> Vec<Named>,
    at_once: &[&str],
    sleepers: &[&str],
) {
    let topology = Topology::flat(3);
    for (name, class) in classes(&topology) {
        let mut it = Simulation::new(topology.clone(), TICKS, class);
        add(&mut it, GroupId::ROOT, 0, 7, &maker(700));
        add(
            &mut it,
            GroupId::ROOT,
            0,
            1,
            "[{ run_us = 50 }, { sleep_us = 2000 }]",
        );
        it.run_until(S / 10);
        let mut wasted = 0;
        for step in 0..2000 {
            it.run_until(S / 10 + step * 50_000);
            wasted += u32::from(wastes(it.machine()));
        }
        // Under queues that are the CPUs' threads wait until the queues are balanced.
        let most = if at_once.contains(&name) { 0 } else { 200 };
        assert!(wasted <= most, "{name}: {wasted} samples with an idle CPU");
        assert!(it.rounds(0) > 600, "{name}: {} processes", it.rounds(0));
        if sleepers.contains(&name) {
            assert!(it.rounds(1) > 50, "{name}: {} wakeups", it.rounds(1));
        }
    }
}

pub fn others_wake_and_are_moved_while_a_crowd_is_being_started(
    classes: impl Fn(&Topology) -> Vec<Named>,
) {
    let crowd = "[{ repeat = { times = 20, program = [ \
                 { spawn = { program = [{ run_us = 500 }], wait = false } }] } }, { run_us = 300 }]";
    for (name, class) in classes(&Topology::flat(8)) {
        let mut it = Simulation::new(Topology::flat(8), Costs::TYPICAL, class);
        add(&mut it, GroupId::ROOT, 0, 2, crowd);
        add(
            &mut it,
            GroupId::ROOT,
            0,
            12,
            "[{ run_us = 200 }, { sleep_us = 100 }]",
        );
        it.run_until(S / 5);
        assert!(it.rounds(0) > 10, "{name}: {}", it.rounds(0));
    }
}
