//! No thread starves under Quell's scheduler, however little it is due.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use quell_model::{CpuId, TenantWeight};
use quell_sim::{GroupId, Simulation, ThreadId};

/// The longest time for which each thread did not run, in ms, by samples of every 100 ms between two times.
fn longest_waits(it: &mut Simulation, from: u64, until: u64) -> Vec<u64> {
    it.run_until(from);
    let mut before = ran(it);
    let mut since = vec![from; before.len()];
    let mut longest = vec![0; before.len()];
    for at in (from..=until).step_by(100 * MS as usize) {
        it.run_until(at);
        let now = ran(it);
        for thread in 0..now.len() {
            if now[thread] > before[thread] {
                since[thread] = at;
            }
            longest[thread] = longest[thread].max((at - since[thread]) / MS);
        }
        before = now;
    }
    longest
}

#[test]
fn nobody_waits_so_long_that_the_kernel_ends_the_scheduler() {
    for share in [false, true] {
        for (cpus, weights, threads, bound) in [
            (1, [1, 100], [4, 1], [false; 2]),
            (1, [1, 10000], [4, 1], [false; 2]),
            (1, [1, 10000], [300, 20], [false; 2]),
            (2, [1, 10000], [4, 4], [false; 2]),
            (2, [1, 10000], [4, 4], [true; 2]),
            // One thread with an affinity of one CPU, beside a thousand that may run on both.
            (2, [1, 10000], [1, 1000], [true, false]),
        ] {
            let case = (share, cpus, weights, threads, bound);
            let mut it = under_sched(cpus, share);
            for ((count, weight), bound) in threads.into_iter().zip(weights).zip(bound) {
                let group = it.add_group(GroupId::ROOT, TenantWeight(weight));
                let first = add_threads(&mut it, group, 0, count, BUSY);
                // The threads of little weight run alone first, so that they are far ahead.
                let later = it.machine().now + 2 * S;
                it.run_until(later);
                for thread in first..first + count as usize {
                    if bound {
                        let cpu = CpuId(thread as u32 % cpus);
                        it.restrict(ThreadId(thread as u32), [cpu].into_iter().collect());
                    }
                }
            }
            let from = it.machine().now;
            let waits = longest_waits(&mut it, from, from + 60 * S);
            let longest = waits.iter().max().unwrap();
            println!("{case:?}: {longest} ms");
            assert!(*longest < 10_000, "{case:?}: {waits:?}");
            let little: u64 = ran(&it)[..threads[0] as usize].iter().sum();
            println!("{} ms in all", little / MS);
        }
    }
}
