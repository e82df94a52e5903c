//! BVT against figures worked out by hand from its definition.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../crates/quell-sim/tests/common/mod.rs"]
mod common;

use common::{MS, S, Spec, batch, busy, machine, near, ran, response_us, server, shares};
use quell_model::Topology;
use quell_sim::Simulation;
use quell_studies::classes::{Bvt, Warp};

fn bvt(cpus: u32, warps: Vec<Warp>, tenants: Vec<Spec>) -> Simulation {
    let class = Box::new(Bvt::new(cpus as usize, Bvt::ALLOWANCE, warps));
    machine(Topology::flat(cpus), class, tenants)
}

#[test]
fn busy_tenants_share_by_weight() {
    // Weights 1 : 2 : 4.
    let mut one = bvt(1, vec![], vec![busy(100, 1), busy(200, 1), busy(400, 1)]);
    let got = shares(&mut one, S, 61 * S);
    for (got, weight) in got.iter().zip([1.0, 2.0, 4.0]) {
        near("1 CPU", *got, weight / 7.0, 0.02);
    }
    let tenants = vec![busy(100, 4), busy(200, 4), busy(400, 4)];
    let got = shares(&mut bvt(4, vec![], tenants), S, 61 * S);
    for (number, weight) in [1.0, 2.0, 4.0].into_iter().enumerate() {
        let sum: f64 = got[number * 4..][..4].iter().sum();
        near("4 CPUs", sum, 4.0 * weight / 7.0, 0.02);
    }
    // The threads start as 4, 4 on one CPU and 1, 1 on the other; balancing finds 4, 1 for both.
    let tenants = [400, 100, 400, 100].map(|weight| busy(weight, 1));
    let mut two = bvt(2, vec![], tenants.into_iter().collect());
    let got = shares(&mut two, S, 61 * S);
    for (got, weight) in got.iter().zip([4.0, 1.0, 4.0, 1.0]) {
        near("2 CPUs", *got, weight / 5.0, 0.02);
    }
}

#[test]
fn equal_threads_share_alike() {
    for share in shares(&mut bvt(1, vec![], vec![busy(100, 5)]), S, 61 * S) {
        near("5 on 1 CPU", share, 0.2, 0.02);
    }
    // Three threads on two CPUs take turns in being alone, so none is left with half a CPU.
    let got = shares(&mut bvt(2, vec![], vec![busy(100, 3)]), S, 61 * S);
    near("3 on 2 CPUs", got.iter().sum(), 2.0, 1e-9);
    assert!(got.iter().all(|&share| share > 0.52), "{got:?}");
}

#[test]
fn a_switch_waits_for_the_allowance() {
    // A thread runs until it is C = 5 ms ahead of the other's virtual time: 5 ms at first, then 10 ms each,
    // as each starts 5 ms behind and ends 5 ms ahead.
    let mut simulation = bvt(1, vec![], vec![busy(100, 2)]);
    for (at, expected) in [(5, [5, 0]), (15, [5, 10]), (25, [15, 10]), (35, [15, 20])] {
        simulation.run_until(at * MS);
        assert_eq!(ran(&simulation), expected.map(|ms| ms * MS), "at {at} ms");
    }
}

#[test]
fn sleeping_saves_nothing_up() {
    // One thread slept for a second while the other ran; from then on they share alike.
    let late = server(10_000_000, std::iter::once(S));
    let mut simulation = bvt(1, vec![], vec![busy(100, 1), late]);
    simulation.run_until(5 * S);
    let got = ran(&simulation);
    near("awake", got[1] as f64, 2.0 * S as f64, 0.01);
}

/// How long 20 ms of work take beside a busy thread, in us.
fn burst(warp: Warp) -> Vec<u64> {
    let tenants = vec![busy(100, 1), server(20_000, std::iter::once(S))];
    let answers = bvt(1, vec![Warp::NONE, warp], tenants).run_until(2 * S);
    response_us(&answers, 1)
}

#[test]
fn warping_gets_ahead_within_its_limits() {
    // The thread wakes with the busy thread's virtual time and preempts it. 5 ms until it is C ahead, 10 ms
    // for the busy thread, 10, 10, and the last 5.
    assert_eq!(burst(Warp::NONE), [40_000]);
    // With W = 20 ms the thread may get 25 ms ahead.
    assert_eq!(burst(Warp::xen(20 * MS)), [20_000]);
    // With W = 10 ms the thread runs for 15 ms; then the busy thread, until that is C ahead of E = 5 ms, for
    // 10 ms; then the last 5 ms.
    assert_eq!(burst(Warp::xen(10 * MS)), [30_000]);
    // Unwarped after L = 10 ms, the thread is 10 ms ahead: 15 ms for the busy thread, then the last 10.
    let limited = Warp {
        value: 20 * MS,
        limit: 10 * MS,
        pause: S,
    };
    assert_eq!(burst(limited), [35_000]);
    // After U = 12 ms the thread is warped again: the busy thread had 12 ms, and the thread's E is 10 - 20
    // again.
    let soon = Warp {
        pause: 12 * MS,
        ..limited
    };
    assert_eq!(burst(soon), [32_000]);
}

#[test]
fn in_the_long_run_weights_decide() {
    // Borrowed time is given back: the threads are never more than W + C apart, to an mcu.
    let warp = Warp::xen(50 * MS);
    let mut simulation = bvt(1, vec![Warp::NONE, warp], vec![busy(100, 1), busy(100, 1)]);
    for step in 1..100 {
        simulation.run_until(step * 200 * MS);
        let got = ran(&simulation);
        assert!(got[0].abs_diff(got[1]) <= 55 * MS + MS / 10, "{got:?}");
    }
    let half = batch(100, 1, "[{ run_us = 1000 }, { sleep_us = 4000 }]");
    let mut simulation = bvt(1, vec![Warp::NONE, warp], vec![busy(100, 1), half]);
    let got = shares(&mut simulation, S, 11 * S);
    near("light", got[1], 0.2, 0.01);
}
