//! How long threads that need little wait beside crowds without end, with exact shares and under Linux's own
//! scheduler.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use quell_model::{CpuId, TenantWeight, Topology};
use quell_sched::Options;
use quell_sim::{
    Class, Costs, Fair, GroupId, Happening, Nanos, SchedExt, Simulation, Tenant, ThreadId,
};
use std::cell::RefCell;
use std::rc::Rc;

/// The threads that need little: name, CPU time and period in us, whether the thread has a group of its own,
/// and whether its affinity is CPU 0.
const VICTIMS: [(&str, u32, u32, bool, bool); 6] = [
    ("50 us", 50, 2000, false, false),
    ("50 us, group", 50, 2000, true, false),
    ("50 us, bound", 50, 2000, false, true),
    ("1 ms", 1000, 10_000, false, false),
    ("3 ms, group", 3000, 20_000, true, false),
    ("10 ms", 10_000, 100_000, false, false),
];

/// When a thread woke that does not run yet, and how long its waits before were, in ns.
type Waits = (Option<Nanos>, Vec<Nanos>);

/// How late a thread began the work that it woke for, in ms, and how often it finished that work.
#[derive(Debug)]
struct Late {
    served: u64,
    mean: f64,
    p99: f64,
    worst: f64,
}

/// Eight threads that start processes of 15 ms, one after the other.
fn makers(it: &mut Simulation) {
    for _ in 0..8 {
        let maker = "[{ spawn = { program = [{ run_us = 15000 }] } }]";
        add_threads(it, GroupId::ROOT, 0, 1, maker);
    }
}

/// Twenty threads that send without end, and twenty that receive, each from all senders.
fn messages(it: &mut Simulation) {
    let receiver = |number| {
        let receives = format!("[{{ receive = \"q{number}\" }}, {{ run_us = 3 }}]");
        threads(1, &receives).replace("\"w\"", &format!("\"r{number}\""))
    };
    let send = |number| format!("{{ run_us = 3 }}, {{ send = \"q{number}\" }}");
    let sends: Vec<String> = (0..20).map(send).collect();
    let mut text = threads(20, &format!("[{}]", sends.join(", ")));
    text.extend((0..20).map(receiver));
    it.add_tenant(Tenant::new(&programs(&text, false), None));
}

fn exact(topology: &Topology) -> Box<dyn Class> {
    let options = Options {
        share: true,
        ..Options::default()
    };
    Box::new(SchedExt::new(topology, &options).unwrap())
}

fn kernels(_: &Topology) -> Box<dyn Class> {
    Box::new(Fair::eevdf_7_2())
}

/// All victims together beside a crowd, on two CPUs, for `time` ns after a second.
fn late(
    class: fn(&Topology) -> Box<dyn Class>,
    crowd: fn(&mut Simulation),
    time: Nanos,
) -> Vec<Late> {
    let topology = Topology::flat(2);
    let mut it = Simulation::new(topology.clone(), Costs::TYPICAL, class(&topology));
    for (_, run_us, period_us, own, bound) in VICTIMS {
        let group = match own {
            true => it.add_group(GroupId::ROOT, TenantWeight::DEFAULT),
            false => GroupId::ROOT,
        };
        let program = format!("[{{ run_us = {run_us} }}, {{ timer_us = {period_us} }}]");
        let thread = add_threads(&mut it, group, 0, 1, &program);
        if bound {
            it.restrict(ThreadId(thread as u32), [CpuId(0)].into_iter().collect());
        }
    }
    crowd(&mut it);
    let waits: Rc<RefCell<Vec<Waits>>> = Rc::default();
    let told = waits.clone();
    told.borrow_mut().resize(VICTIMS.len(), (None, Vec::new()));
    it.run_until(S);
    let before: Vec<u64> = (0..VICTIMS.len()).map(|tenant| it.rounds(tenant)).collect();
    it.observe(Box::new(move |now, at, happening| {
        let at = at.max(now);
        let mut told = told.borrow_mut();
        match happening {
            Happening::Wakeup { thread, .. } if thread.index() < VICTIMS.len() => {
                told[thread.index()].0 = Some(at);
            }
            Happening::Switch {
                next: Some(next), ..
            } if next.index() < VICTIMS.len() => {
                let (woke, waits) = &mut told[next.index()];
                waits.extend(woke.take().map(|woke| at - woke));
            }
            _ => {}
        }
    }));
    it.run_until(S + time);
    let ends = it.machine().now;
    let rounds: Vec<u64> = (0..VICTIMS.len()).map(|tenant| it.rounds(tenant)).collect();
    let mut waits = waits.borrow_mut();
    let figures = waits.iter_mut().enumerate().map(|(tenant, (woke, waits))| {
        // A thread that still waits has waited for this long at least.
        waits.extend(woke.take().map(|woke| ends - woke));
        waits.sort_unstable();
        let ms = |at: usize| waits.get(at).map_or(f64::NAN, |ns| *ns as f64 / 1e6);
        Late {
            served: rounds[tenant] - before[tenant],
            mean: waits.iter().sum::<u64>() as f64 / waits.len() as f64 / 1e6,
            p99: ms(waits.len() * 99 / 100),
            worst: ms(waits.len().wrapping_sub(1)),
        }
    });
    figures.collect()
}

/// The victims that wait longer beside a crowd than under EEVDF, one line for each.
fn compare(what: &str, crowd: fn(&mut Simulation), time: Nanos) -> Vec<String> {
    let (ours, theirs) = (late(exact, crowd, time), late(kernels, crowd, time));
    let mut worse = Vec::new();
    for ((ours, theirs), (name, ..)) in ours.iter().zip(&theirs).zip(VICTIMS) {
        let line = format!(
            "{what}, {name:13}: served {:4} ({:4}), late {:7.2} ({:6.2}) on average, {:7.2} ({:6.2}) p99, {:7.2} ({:6.2}) at worst",
            ours.served,
            theirs.served,
            ours.mean,
            theirs.mean,
            ours.p99,
            theirs.p99,
            ours.worst,
            theirs.worst,
        );
        let within = |got: f64, than: f64, more: f64| got <= (1.25 * than).max(than + more);
        let fine = within(ours.mean, theirs.mean, 0.25)
            && within(ours.p99, theirs.p99, 0.25)
            && within(ours.worst, theirs.worst, 3.0);
        println!("{}{line}", if fine { "  " } else { "! " });
        if !fine {
            worse.push(line);
        }
    }
    worse
}

#[test]
fn who_needs_little_waits_no_longer_beside_processes_without_end() {
    let worse = compare("processes", makers, 4 * S);
    assert!(worse.is_empty(), "{worse:#?}");
}

#[test]
#[ignore = "does not hold yet: who runs for its request is ahead by more CPU time than it may then wait for at a small rate"]
fn who_needs_little_waits_no_longer_beside_messages_without_end() {
    let worse = compare("messages", messages, 4 * S);
    assert!(worse.is_empty(), "{worse:#?}");
}
