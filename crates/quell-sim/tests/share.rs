//! Shares of the whole host under Quell's scheduler, beside the ideal division.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use quell_model::{CpuId, CpuSet, TenantWeight};
use quell_policy::share::{Group, Problem, ideal};
use quell_sim::{GroupId, ThreadId};

/// What the four threads of Ishiguro et al. get, in percent of a CPU: T0, T1 and T2 are busy, T3 runs and
/// sleeps for the two times of `cycle`, in us. `groups` has the index of each thread's group; pinned, T0 and
/// T2 are on one CPU, T1 and T3 on the other.
fn four_threads(
    share: bool,
    weights: &[u32],
    groups: [usize; 4],
    pinned: bool,
    cycle: (u64, u64),
) -> Vec<f64> {
    let mut two = under_sched(2, share);
    let ids: Vec<GroupId> = weights
        .iter()
        .map(|weight| two.add_group(GroupId::ROOT, TenantWeight(*weight)))
        .collect();
    for thread in 0..4 {
        let (on, off) = cycle;
        let sleeps = format!("[{{ run_us = {on} }}, {{ sleep_us = {off} }}]");
        let program = if thread == 3 { &sleeps } else { BUSY };
        let number = add_threads(&mut two, ids[groups[thread]], 0, 1, program);
        if pinned {
            let cpu = CpuId(thread as u32 % 2);
            two.restrict(ThreadId(number as u32), [cpu].into_iter().collect());
        }
    }
    let got = shares(&mut two, 2 * S, 12 * S);
    got.iter().map(|part| part * 100.0).collect()
}

/// The same threads' ideal division.
fn four_threads_ideally(weights: &[u32], groups: [usize; 4], pinned: bool) -> Vec<f64> {
    let group = |weight: &u32| Group {
        parent: None,
        weight: *weight,
        limit: None,
    };
    let thread = |number: usize| quell_policy::share::Thread {
        group: Some(groups[number]),
        weight: 100,
        cpus: if pinned {
            [CpuId(number as u32 % 2)].into_iter().collect()
        } else {
            CpuSet::first(2)
        },
        demand: if number == 3 { 0.3 } else { 1.0 },
    };
    let problem = Problem {
        cpus: CpuSet::first(2),
        groups: weights.iter().map(group).collect(),
        threads: (0..4).map(thread).collect(),
    };
    let ideal = ideal(&problem).unwrap();
    ideal.threads.iter().map(|part| part * 100.0).collect()
}

/// Four threads, each in a group of its own, and one more that may run on both CPUs and does so for 2 of
/// every 220 ms.
#[test]
fn who_waits_for_a_moment_now_and_then_is_nobody_to_compete_with() {
    let mut two = under_sched(2, true);
    let programs = [
        BUSY,
        BUSY,
        BUSY,
        "[{ run_us = 300 }, { sleep_us = 700 }]",
        "[{ run_us = 2000 }, { sleep_us = 218000 }]",
    ];
    for (number, program) in programs.into_iter().enumerate() {
        let group = two.add_group(GroupId::ROOT, TenantWeight::DEFAULT);
        let thread = add_threads(&mut two, group, 0, 1, program);
        if number < 4 {
            let cpu = CpuId(number as u32 % 2);
            two.restrict(ThreadId(thread as u32), [cpu].into_iter().collect());
        }
    }
    let got = shares(&mut two, 2 * S, 12 * S);
    println!("{got:.3?}");
    assert!(got[3] >= 0.29, "{got:.3?}");
}

/// Threads of the root group that come together every 150 ms, so that some of them wait: this must not make
/// the scheduler think that the busy threads have had more than others.
#[test]
fn who_comes_for_a_moment_stands_where_those_do_who_want_its_cpus() {
    let mut two = under_sched(2, true);
    for numbers in [[0, 2], [1, 3]] {
        let group = two.add_group(GroupId::ROOT, TenantWeight::DEFAULT);
        for number in numbers {
            let sleeps = "[{ run_us = 300 }, { sleep_us = 700 }]";
            let program = if number == 3 { sleeps } else { BUSY };
            let thread = add_threads(&mut two, group, 0, 1, program);
            let cpu = CpuId(number / 2);
            two.restrict(ThreadId(thread as u32), [cpu].into_iter().collect());
        }
    }
    let visits = "[{ run_us = 300 }, { sleep_us = 150000 }]";
    add_threads(&mut two, GroupId::ROOT, 0, 4, visits);
    let got = shares(&mut two, 2 * S, 12 * S);
    println!("{got:.3?}");
    assert!(got[3] >= 0.29, "{got:.3?}");
}

const CYCLES: [(u64, u64); 4] = [(30, 70), (300, 700), (3_000, 7_000), (30_000, 70_000)];

#[test]
fn two_groups_get_a_cpu_each_whatever_their_threads_do() {
    for cycle in CYCLES {
        for pinned in [true, false] {
            let got = four_threads(true, &[100, 100], [0, 0, 1, 1], pinned, cycle);
            println!("{cycle:?}, pinned {pinned}: {got:.1?}");
            close((cycle, pinned), got[0] + got[1], 100.0, 0.8);
            close((cycle, pinned), got[2] + got[3], 100.0, 0.8);
            // Without shares, T3's sleep is the other group's gain.
            if pinned && cycle.0 == 3_000 {
                let without = four_threads(false, &[100, 100], [0, 0, 1, 1], pinned, cycle);
                assert!(without[0] + without[1] > 105.0, "{without:.1?}");
            }
        }
        let got = four_threads(true, &[100, 100], [0, 0, 1, 1], true, cycle);
        let ideal = four_threads_ideally(&[100, 100], [0, 0, 1, 1], true);
        for thread in 0..4 {
            close((cycle, thread), got[thread], ideal[thread], 0.8);
        }
    }
}

/// Two threads of a group that is due less than both want: the one that needs less than its half gets what it
/// needs whenever it wants it.
#[test]
fn who_sleeps_gets_all_that_it_is_due_of_a_smaller_group() {
    for cycle in [(300, 700), (3_000, 7_000)] {
        for pinned in [true, false] {
            let got = four_threads(true, &[200, 100], [0, 0, 1, 1], pinned, cycle);
            println!("{cycle:?}, pinned {pinned}: {got:.1?}");
            close((cycle, pinned), got[2] + got[3], 200.0 / 3.0, 0.8);
            close((cycle, pinned), got[3], 30.0, 1.0);
        }
        // A CPU for each group: T2 and T3 share one.
        let got = four_threads(true, &[100, 100], [0, 1, 0, 1], true, cycle);
        close((cycle, "a CPU each"), got[3], 30.0, 1.0);
    }
}

#[test]
fn groups_of_a_thread_each_get_what_their_weights_say() {
    for weights in [
        [100, 100, 100, 100],
        [100, 100, 200, 200],
        [1000, 1000, 100, 100],
    ] {
        for cycle in CYCLES {
            let groups = [0, 1, 2, 3];
            let got = four_threads(true, &weights, groups, true, cycle);
            let ideal = four_threads_ideally(&weights, groups, true);
            println!("{weights:?} {cycle:?}: {got:.1?}, ideally {ideal:.1?}");
            for thread in 0..4 {
                close((weights, cycle, thread), got[thread], ideal[thread], 0.5);
            }
        }
    }
}

/// No thread counts as urgent before anything is known of it.
#[test]
fn shares_hold_from_the_start_with_many_threads_on_a_cpu() {
    let mut host = under_sched(1, true);
    let weights = [1000, 400, 200, 100, 100, 50, 50, 50, 50, 50];
    for weight in weights {
        let group = host.add_group(GroupId::ROOT, TenantWeight(weight));
        add_threads(&mut host, group, 0, 6, BUSY);
    }
    let all: u32 = weights.iter().sum();
    let got = shares(&mut host, S / 2, S * 5 / 2);
    for (weight, group) in weights.iter().zip(got.chunks(6)) {
        let ideal = f64::from(*weight) / f64::from(all);
        close(weight, group.iter().sum(), ideal, 0.01);
    }
}

/// 256 CPUs of one last-level cache, split into four domains (of 64 CPUs at most): charges in steps add up.
#[test]
fn shares_hold_on_256_cpus() {
    let mut host = under_sched(256, true);
    let weights = [100, 200, 1000, 30];
    for weight in weights {
        let group = host.add_group(GroupId::ROOT, TenantWeight(weight));
        add_threads(&mut host, group, 0, 300, BUSY);
    }
    let problem = Problem {
        cpus: CpuSet::first(256),
        groups: weights
            .iter()
            .map(|weight| Group {
                parent: None,
                weight: *weight,
                limit: None,
            })
            .collect(),
        threads: (0..1200)
            .map(|number| quell_policy::share::Thread {
                group: Some(number / 300),
                weight: 100,
                cpus: CpuSet::first(256),
                demand: 1.0,
            })
            .collect(),
    };
    let due = ideal(&problem).unwrap().groups;
    let got = shares(&mut host, S, 3 * S);
    for (number, due) in due.iter().enumerate() {
        let got: f64 = got[number * 300..][..300].iter().sum();
        println!("{}: {got:.2} CPUs, {due:.2} due", weights[number]);
        close(number, got, *due, 2.56);
    }
}

/// A light group has a CPU for itself, ten times what its weight entitles it to; then a thread of a heavy
/// group, which is served on the other CPU too, comes to that CPU. Two seconds later the light group has what
/// it is due, 2/11 of the CPU: it owes little for the time before.
#[test]
fn who_had_a_cpu_for_itself_owes_little_for_it() {
    let mut two = under_sched(2, true);
    let light = two.add_group(GroupId::ROOT, TenantWeight(10));
    let heavy = two.add_group(GroupId::ROOT, TenantWeight(100));
    let comes = "[{ sleep_us = 3000000 }, { run_us = 60000000 }]";
    for (group, cpu, program) in [(light, 1, BUSY), (heavy, 0, BUSY), (heavy, 1, comes)] {
        let number = add_threads(&mut two, group, 0, 1, program);
        let own = [CpuId(cpu)].into_iter().collect();
        two.restrict(ThreadId(number as u32), own);
    }
    let got = shares(&mut two, 5 * S, 7 * S);
    println!("{got:.3?}");
    close("the light group", got[0], 2.0 / 11.0, 0.02);
}

/// A group with a CPU of its own is not ahead of any other: its thread that sleeps a lot runs before its busy
/// thread.
#[test]
fn short_sleepers_run_at_once_on_a_cpu_of_their_own() {
    for (on, off) in [(30, 70), (300, 700), (3_000, 7_000)] {
        let mut two = under_sched(2, true);
        for cpu in 0..2 {
            let group = two.add_group(GroupId::ROOT, TenantWeight(100));
            let sleeps = format!("[{{ run_us = {on} }}, {{ sleep_us = {off} }}]");
            for program in [BUSY, if cpu == 1 { &sleeps } else { BUSY }] {
                let number = add_threads(&mut two, group, 0, 1, program);
                let own = [CpuId(cpu)].into_iter().collect();
                two.restrict(ThreadId(number as u32), own);
            }
        }
        let got = shares(&mut two, S, 4 * S);
        println!("{on} and {off} us: {got:.3?}");
        close(on, got[3], 0.3, 0.005);
    }
}

/// While the first thread sleeps, CPU 0 idles and another thread waits. Only the thread of weight 50 may use
/// CPU 0; it runs on a CPU that a second thread may use, and that thread on a CPU that the waiting one may
/// use. So the two have to move in turn.
#[test]
fn threads_move_in_turn_for_one_that_waits() {
    let mut four = under_sched(4, true);
    let cpus = |from: u32, to: u32| (from..=to).map(CpuId).collect::<CpuSet>();
    for (weight, may_use, program) in [
        (
            1000,
            cpus(0, 0),
            "[{ run_us = 5000 }, { sleep_us = 45000 }]",
        ),
        (1000, cpus(3, 3), "[{ run_us = 700 }, { sleep_us = 10300 }]"),
        (10, cpus(1, 2), BUSY),
        (50, cpus(0, 3), BUSY),
        (100, cpus(1, 3), BUSY),
        (100, cpus(2, 3), BUSY),
    ] {
        let group = four.add_group(GroupId::ROOT, TenantWeight(weight));
        let number = add_threads(&mut four, group, 0, 1, program);
        four.restrict(ThreadId(number as u32), may_use);
    }
    let got = shares(&mut four, S, 9 * S);
    println!("{got:.3?}");
    // A sample is up to 1 ms late.
    close("all", got.iter().sum(), 4.0, 0.03);
}

/// Threads take the share slots of others that sleep for long, which wake while these run: neither is
/// mistaken for the other.
#[test]
fn who_slept_for_long_leaves_others_alone() {
    let mut one = under_sched(1, true);
    let naps = "[{ run_us = 1000 }, { sleep_us = 1300000 }]";
    let comes = "[{ sleep_us = 1250000 }, { run_us = 60000000 }]";
    for program in [naps, comes, comes] {
        let group = one.add_group(GroupId::ROOT, TenantWeight::DEFAULT);
        add_threads(&mut one, group, 0, 3, program);
    }
    let got = shares(&mut one, 2 * S, 4 * S);
    println!("{got:.3?}");
    for thread in &got[3..] {
        close("each", *thread, 1.0 / 6.0, 0.02);
    }
}
