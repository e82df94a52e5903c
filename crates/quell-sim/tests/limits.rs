//! Cgroups' bandwidth limits (`cpu.max`) under Quell's scheduler.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use quell_model::TenantWeight;
use quell_sim::{GroupId, Limit, Simulation};

fn ms(quota: u64, period: u64, burst: u64) -> Limit {
    Limit {
        quota: quota * MS,
        period: period * MS,
        burst: burst * MS,
    }
}

/// Adds a cgroup with a limit.
fn limited(it: &mut Simulation, parent: GroupId, limit: Limit) -> GroupId {
    let group = it.add_group(parent, TenantWeight(100));
    it.limit_group(group, limit);
    group
}

/// What a range of threads ran together, in ms, in each of `count` steps of `every` ns from `begin` on.
fn steps(
    it: &mut Simulation,
    threads: std::ops::Range<usize>,
    begin: u64,
    every: u64,
    count: u64,
) -> Vec<f64> {
    it.run_until(begin);
    let mut before: u64 = ran(it)[threads.clone()].iter().sum();
    (1..=count)
        .map(|step| {
            it.run_until(begin + step * every);
            let now = ran(it)[threads.clone()].iter().sum();
            let ran = now - std::mem::replace(&mut before, now);
            ran as f64 / MS as f64
        })
        .collect()
}

#[test]
fn a_limit_holds_whoever_else_wants_the_cpus() {
    for share in [false, true] {
        for (cpus, threads, others, quota, period) in [
            (1, 1, 0, 50, 100),
            (1, 1, 1, 10, 100),
            (1, 3, 2, 10, 50),
            (4, 8, 0, 120, 100),
            (4, 8, 4, 120, 100),
            (4, 40, 4, 12, 10),
            (4, 2, 4, 1, 100),
            (8, 8, 0, 1, 100),
            (8, 100, 8, 5, 100),
            // What each of this many threads may have is far less than a slice.
            (4, 100, 4, 2, 100),
            (2, 200, 2, 5, 100),
        ] {
            let case = (share, cpus, threads, others, quota, period);
            let mut it = under_sched(cpus, share);
            let group = limited(&mut it, GroupId::ROOT, ms(quota, period, 0));
            let first = add_threads(&mut it, group, 0, threads, BUSY);
            let range = first..first + threads as usize;
            if others > 0 {
                let group = it.add_group(GroupId::ROOT, TenantWeight(100));
                add_threads(&mut it, group, 0, others, BUSY);
            }
            let each = steps(&mut it, range, 3 * S, 10 * period * MS, 5);
            // Where other threads' slices are longer than the period, the group may not get all of its quota.
            let least = if period < 20 { 0.85 } else { 0.99 };
            for ten in &each {
                let part = ten / (10 * quota) as f64;
                assert!((least..1.01).contains(&part), "{case:?}: {part}");
            }
            // The other threads have the rest.
            let total: u64 = ran(&it).iter().sum();
            let least = if others >= cpus { cpus as f64 } else { 0.0 };
            assert!(
                total as f64 >= least * it.machine().now as f64 * 0.999,
                "{case:?}"
            );
        }
    }
}

/// A limit leaves far less than a slice for each thread: throttled threads go on in the order of their lag.
#[test]
fn what_a_tight_limit_leaves_is_had_by_all_alike() {
    for share in [false, true] {
        for (cpus, threads, others, quota) in [
            (2, 50, 0, 1),
            (2, 50, 2, 1),
            (2, 150, 0, 5),
            (4, 9, 4, 2),
            (8, 50, 0, 10),
        ] {
            let case = (share, cpus, threads, others, quota);
            let mut it = under_sched(cpus, share);
            let group = limited(&mut it, GroupId::ROOT, ms(quota, 100, 0));
            let first = add_threads(&mut it, group, 0, threads, BUSY);
            if others > 0 {
                let group = it.add_group(GroupId::ROOT, TenantWeight(100));
                add_threads(&mut it, group, 0, others, BUSY);
            }
            it.run_until(5 * S);
            let before = ran(&it);
            it.run_until(45 * S);
            let had = ran(&it).into_iter().zip(before).skip(first);
            let had: Vec<f64> = had
                .take(threads as usize)
                .map(|(now, then)| (now - then) as f64 / MS as f64)
                .collect();
            let least = had.iter().fold(f64::INFINITY, |one, other| one.min(*other));
            let most = had.iter().fold(0.0f64, |one, other| one.max(*other));
            assert!(most <= 2.0 * least, "{case:?}: {least:.2} to {most:.2} ms");
        }
    }
}

/// Other threads come and go so often that a throttled thread that is not urgent would wait until its period
/// is over.
#[test]
fn a_limit_that_is_less_than_a_share_is_had_in_every_period() {
    for share in [false, true] {
        for quota in [2, 5, 10] {
            let mut it = under_sched(1, share);
            let group = limited(&mut it, GroupId::ROOT, ms(quota, 100, 0));
            let first = add_threads(&mut it, group, 0, 1, BUSY);
            let group = it.add_group(GroupId::ROOT, TenantWeight(100));
            add_threads(
                &mut it,
                group,
                0,
                2,
                "[{ run_us = 3000 }, { sleep_us = 1000 }]",
            );
            for ten in steps(&mut it, first..first + 1, 3 * S, S, 6) {
                let part = ten / (10 * quota) as f64;
                assert!((0.99..1.01).contains(&part), "{share} {quota}: {part}");
            }
        }
    }
}

#[test]
fn what_is_saved_up_is_used_at_once_and_no_more_than_the_burst() {
    let mut it = under_sched(2, false);
    let group = limited(&mut it, GroupId::ROOT, ms(20, 100, 50));
    let program = "[{ sleep_us = 1000000 }, { run_us = 200000 }]";
    let first = add_threads(&mut it, group, 0, 1, program);
    // The thread sleeps for ten periods, then has the 50 ms that the group saved up, and 20 ms a period.
    let each = steps(&mut it, first..first + 1, S, 100 * MS, 7);
    assert_eq!(each.iter().sum::<f64>().round(), 190.0, "{each:.1?}");
    close("first", each[0], 70.0, 0.3);
    for later in &each[1..] {
        close("later", *later, 20.0, 0.3);
    }
}

#[test]
fn the_least_limit_of_all_that_a_thread_is_in_holds() {
    for (outer, inner, due) in [(40, 60, 40), (60, 40, 40), (30, 30, 30)] {
        let mut it = under_sched(2, false);
        let outside = limited(&mut it, GroupId::ROOT, ms(outer, 100, 0));
        let middle = it.add_group(outside, TenantWeight(100));
        let inside = limited(&mut it, middle, ms(inner, 100, 0));
        add_threads(&mut it, inside, 0, 2, BUSY);
        let [got] = steps(&mut it, 0..2, 0, 3 * S, 1)[..] else {
            unreachable!()
        };
        close((outer, inner), got / (30.0 * due as f64), 1.0, 0.01);
    }
    // Two limited groups in one whose quota is less than they ask for together.
    let mut it = under_sched(2, false);
    let outside = limited(&mut it, GroupId::ROOT, ms(50, 100, 0));
    for quota in [10, 80] {
        let inside = limited(&mut it, outside, ms(quota, 100, 0));
        add_threads(&mut it, inside, 0, 1, BUSY);
    }
    it.run_until(10 * S);
    let got = ran(&it);
    close("first", got[0] as f64 / S as f64, 1.0, 0.02);
    close("second", got[1] as f64 / S as f64, 4.0, 0.05);
}

/// Of two equal groups in a limited group one has a single thread, the other three.
#[test]
fn what_a_limited_group_has_is_shared_by_its_members() {
    for (share, limit, due, tolerance) in [
        (false, 40, 0.4, 0.01),
        (true, 40, 0.4, 0.01),
        (true, 100, 0.5, 0.05),
    ] {
        let mut it = under_sched(2, share);
        let outside = limited(&mut it, GroupId::ROOT, ms(100, 100, 0));
        let one = limited(&mut it, outside, ms(limit, 100, 0));
        let other = it.add_group(outside, TenantWeight(100));
        add_threads(&mut it, one, 0, 1, BUSY);
        add_threads(&mut it, other, 0, 3, BUSY);
        let got = shares(&mut it, 2 * S, 10 * S);
        close((share, limit), got[0], due, tolerance);
    }
}

#[test]
fn who_has_used_up_its_limit_counts_for_nobodys_weight() {
    for (share, tolerance) in [(true, 0.02), (false, 0.05)] {
        let mut it = under_sched(1, share);
        let family = it.add_group(GroupId::ROOT, TenantWeight(100));
        let little = limited(&mut it, family, ms(10, 100, 0));
        let much = it.add_group(family, TenantWeight(100));
        let other = it.add_group(GroupId::ROOT, TenantWeight(100));
        for group in [little, much, other] {
            add_threads(&mut it, group, 0, 1, BUSY);
        }
        let got = shares(&mut it, 2 * S, 10 * S);
        for (got, due) in got.iter().zip([0.1, 0.4, 0.5]) {
            close((share, due), *got, due, tolerance);
        }
    }
}

#[test]
fn nobody_waits_for_ever_for_a_tight_limit() {
    // A thousand groups with 1 ms of every 100: ten CPUs' worth, on four CPUs.
    let mut it = under_sched(4, false);
    for _ in 0..1000 {
        let group = limited(&mut it, GroupId::ROOT, ms(1, 100, 0));
        add_threads(&mut it, group, 0, 1, BUSY);
    }
    it.run_until(20 * S);
    let got = ran(&it);
    let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
    // 80 s of CPU time for all of them.
    assert!(*least > 60 * MS && *most < 100 * MS, "{least} {most}");
    // As many threads in one such group: each gets a turn.
    let mut it = under_sched(4, false);
    let group = limited(&mut it, GroupId::ROOT, ms(1, 100, 0));
    add_threads(&mut it, group, 0, 1000, BUSY);
    let used = steps(&mut it, 0..1000, S, 19 * S, 1);
    close("all of them", used[0], 190.0, 1.9);
    assert!(ran(&it).iter().all(|ran| *ran > 0));
}
