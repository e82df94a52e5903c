//! Promises on a CPU, in the guest; the scheduler is loaded by this process.

use super::guest::{Failures, in_guest};
use super::load::*;
use quell_model::config::{Criticality, Server};
use quell_model::{CpuId, ServerTerms, Tid};
use quell_sched::{Options, Scheduler, ServerSetting, ThreadSetting};
use std::sync::atomic::Ordering;

const MS: u64 = 1_000_000;

/// The terms of a server; all times in ms.
fn promise(criticality: Criticality, budget: u64, most: u64, period: u64) -> Server {
    Server {
        criticality,
        period_ns: period * MS,
        budget_ns: budget * MS,
        pessimistic_ns: most * MS,
    }
}

fn low(budget: u64, period: u64) -> Server {
    promise(Criticality::Low, budget, budget, period)
}

fn set(scheduler: &mut Scheduler, number: u32, cpu: u32, server: Option<Server>) {
    let terms = |server: Server| ServerTerms {
        server,
        virtual_deadline_ns: match server.criticality {
            Criticality::High => server.period_ns / 5,
            Criticality::Low => server.period_ns,
        },
        parts: match server.criticality {
            Criticality::High => 4,
            Criticality::Low => 1,
        },
        temperature: 2,
    };
    let setting = ServerSetting {
        number,
        cpu: CpuId(cpu),
        terms: server.map(terms),
    };
    scheduler.set_server(setting).unwrap();
}

fn serve(scheduler: &mut Scheduler, load: &Load, number: u32) {
    let setting = ThreadSetting {
        server: number,
        ..ThreadSetting::default()
    };
    let tid = Tid(load.pid.as_raw() as u32);
    scheduler.set_thread(tid, setting).unwrap();
}

/// Measures three busy threads' parts of their CPU, and expects what is promised to them by now.
fn expect_parts(failures: &mut Failures, loads: &[Load], due: [(&str, f64); 3]) {
    let loads: Vec<&Load> = loads.iter().collect();
    for (got, (what, due)) in each(&loads, 3000).into_iter().zip(due) {
        failures.expect(what, got, due - 0.02, due + 0.02);
    }
}

/// A half and a fifth of CPU 1 are promised; all threads that want the rest share it.
fn budgets(failures: &mut Failures, scheduler: &mut Scheduler) {
    set(scheduler, 1, 1, Some(low(50, 100)));
    set(scheduler, 2, 1, Some(low(4, 20)));
    let loads = spinners(3, &How::on(1 << 1));
    serve(scheduler, &loads[0], 1);
    serve(scheduler, &loads[1], 2);
    sleep_ms(500);
    let due = [
        ("a half and more", 0.6),
        ("a fifth and more", 0.3),
        ("nothing promised", 0.1),
    ];
    expect_parts(failures, &loads, due);
    // A promise ends, and another one becomes less, from its next period on.
    set(scheduler, 1, 1, None);
    set(scheduler, 2, 1, Some(low(2, 20)));
    sleep_ms(200);
    let due = [
        ("a half no more", 0.3),
        ("a tenth and more", 0.4),
        ("nothing promised", 0.3),
    ];
    expect_parts(failures, &loads, due);
    set(scheduler, 2, 1, None);
}

/// Two busy threads are promised all of CPU 1 but the best-effort server's reserve. A thread that has used
/// its budget is served with the best-effort threads.
fn rest(failures: &mut Failures, scheduler: &mut Scheduler) {
    set(scheduler, 0, 1, Some(promise(Criticality::High, 5, 5, 100)));
    set(scheduler, 1, 1, Some(low(45, 100)));
    set(scheduler, 2, 1, Some(low(50, 100)));
    let loads = spinners(3, &How::on(1 << 1));
    serve(scheduler, &loads[0], 1);
    serve(scheduler, &loads[1], 2);
    sleep_ms(500);
    let of: Vec<&Load> = loads.iter().collect();
    let got = each(&of, 3000);
    // A thread that has used its budget shares the best-effort server's twentieth; how it is shared within 3
    // s is not checked.
    for (what, got, least, most) in [
        ("promised 45 %", got[0], 0.44, 0.5),
        ("promised 50 %", got[1], 0.49, 0.55),
        ("not promised anything", got[2], 0.01, 0.06),
    ] {
        failures.expect(what, got, least, most);
    }
    for number in 0..3 {
        set(scheduler, number, 1, None);
    }
}

/// A thread of high criticality needs 3 ms every 50 ms, and sometimes more, beside three threads to which a
/// quarter each is promised.
fn high(failures: &mut Failures, scheduler: &mut Scheduler) {
    let [turns, worst, ..] = shared();
    worst.store(0, Ordering::Relaxed);
    turns.store(0, Ordering::Relaxed);
    set(
        scheduler,
        1,
        1,
        Some(promise(Criticality::High, 2, 20, 100)),
    );
    let critical = periodic(&How::on(1 << 1), 3 * MS, 47 * MS, turns, worst);
    serve(scheduler, &critical, 1);
    let loads = spinners(3, &How::on(1 << 1));
    for (number, load) in (2..).zip(&loads) {
        set(scheduler, number, 1, Some(low(25, 100)));
        serve(scheduler, load, number);
    }
    sleep_ms(500);
    worst.store(0, Ordering::Relaxed);
    let before = turns.load(Ordering::Relaxed);
    sleep_ms(3000);
    let turns = turns.load(Ordering::Relaxed) - before;
    failures.expect("turns of 50 ms in 3 s", turns as f64, 57.0, 60.0);
    // In LO mode the thread is not served at once, but by its virtual deadline.
    let worst = worst.load(Ordering::Relaxed) as f64 / 1e6;
    failures.expect("worst wait of high criticality, ms", worst, 0.0, 8.0);
    for number in 1..5 {
        set(scheduler, number, 1, None);
    }
}

/// The scheduler does not queue threads that exit: the kernel puts them back before all others when they are
/// preempted. Several such threads, beside one to which nearly all of CPU 1 is promised, exit in the time
/// that it leaves.
fn exiting(failures: &mut Failures, scheduler: &mut Scheduler) {
    set(scheduler, 0, 1, Some(promise(Criticality::High, 5, 5, 100)));
    set(scheduler, 1, 1, Some(low(90, 100)));
    let [sign, ..] = shared();
    let how = How::on(1 << 1);
    let exiting: Vec<Load> = (0..4).map(|_| exits(&how, 16_384, sign)).collect();
    sleep_ms(3000);
    let busy = spin(&how);
    serve(scheduler, &busy, 1);
    sleep_ms(300);
    let gone = exiting.iter().filter(|it| has_exited(it.pid)).count();
    failures.expect("exited before they were to", gone as f64, 0.0, 0.0);
    let began = now_ns(libc::CLOCK_MONOTONIC);
    sign.store(1, Ordering::Relaxed);
    let got = each(&[&busy], 3000);
    failures.expect("promised 90 %", got[0], 0.88, 1.0);
    while !exiting.iter().all(|it| has_exited(it.pid)) && state() == "enabled" {
        sleep_ms(100);
    }
    let took = (now_ns(libc::CLOCK_MONOTONIC) - began) as f64 / 1e9;
    failures.expect("s until all have exited", took, 0.0, 15.0);
    for number in 0..2 {
        set(scheduler, number, 1, None);
    }
}

#[test]
#[ignore = "runs in the lab's guest"]
fn servers() {
    if !in_guest() {
        return;
    }
    let mut failures = Failures::new();
    let topology = quell_linux::observe::topology::read().unwrap();
    let options = Options {
        share: true,
        criticality: true,
        ..Options::default()
    };
    let mut scheduler = Scheduler::load(&topology, &options).unwrap();
    let verified = scheduler.verified().unwrap();
    failures.expect("instructions verified", verified as f64, 1e4, 3e5);
    for (name, part) in [
        ("budgets", budgets as fn(&mut Failures, &mut Scheduler)),
        ("rest", rest),
        ("high", high),
        ("exiting", exiting),
    ] {
        println!("{name}");
        part(&mut failures, &mut scheduler);
        reap();
    }
    assert!(scheduler.exited().unwrap().is_none());
    drop(scheduler);
    failures.end();
}
