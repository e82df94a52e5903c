//! The fair class against what is known of Linux: weights, groups, sleepers, balancing.

mod common;

use common::{S, TICKS, add_threads as add, close, topology};
use quell_model::{CpuId, CpuSet, TenantWeight, Topology};
use quell_sim::{Costs, Fair, GroupId, Simulation, State, ThreadId};

const BUSY: &str = "[{ run_us = 1000 }]";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kernel {
    Cfs61,
    Eevdf612,
    Eevdf72,
}

use Kernel::{Cfs61, Eevdf72, Eevdf612};
const ALL: [Kernel; 3] = [Cfs61, Eevdf612, Eevdf72];

fn machine(kernel: Kernel, topology: Topology, costs: Costs) -> Simulation {
    let class = match kernel {
        Cfs61 => Fair::cfs_6_1(),
        Eevdf612 => Fair::eevdf_6_12(),
        Eevdf72 => Fair::eevdf_7_2(),
    };
    Simulation::new(topology, costs, Box::new(class))
}

fn group(simulation: &mut Simulation, weight: u32) -> GroupId {
    simulation.add_group(GroupId::ROOT, TenantWeight(weight))
}

fn pin(simulation: &mut Simulation, thread: usize, cpu: u32) {
    simulation.restrict(ThreadId(thread as u32), [CpuId(cpu)].into_iter().collect());
}

/// The CPU time of each thread in twenty seconds, after five, in percent of a CPU.
fn shares(simulation: &mut Simulation) -> Vec<f64> {
    let shares = common::shares(simulation, 5 * S, 25 * S);
    shares.into_iter().map(|share| 100.0 * share).collect()
}

#[test]
fn busy_threads_share_alike() {
    for kernel in ALL {
        let mut one = machine(kernel, Topology::flat(1), TICKS);
        add(&mut one, GroupId::ROOT, 0, 3, BUSY);
        for share in shares(&mut one) {
            close(kernel, share, 100.0 / 3.0, 0.2);
        }
        let mut four = machine(kernel, Topology::flat(4), TICKS);
        add(&mut four, GroupId::ROOT, 0, 4, BUSY);
        for share in shares(&mut four) {
            close(kernel, share, 100.0, 0.1);
        }
    }
}

#[test]
fn nice_0_gets_3_057_times_as_much_as_nice_5() {
    for kernel in ALL {
        let mut one = machine(kernel, Topology::flat(1), TICKS);
        add(&mut one, GroupId::ROOT, 0, 1, BUSY);
        add(&mut one, GroupId::ROOT, 5, 1, BUSY);
        let got = shares(&mut one);
        close(kernel, got[0] / got[1], 1024.0 / 335.0, 0.02);
    }
}

#[test]
fn half_a_duty_in_fine_cycles_beside_a_busy_thread() {
    // CFS lets a thread that slept catch up; under EEVDF a thread gets no lag while it sleeps, so this one
    // gets half of the time in which it is ready.
    for (kernel, expected) in [(Cfs61, 50.0), (Eevdf612, 66.7), (Eevdf72, 66.7)] {
        let mut one = machine(kernel, Topology::flat(1), TICKS);
        add(&mut one, GroupId::ROOT, 0, 1, BUSY);
        add(
            &mut one,
            GroupId::ROOT,
            0,
            1,
            "[{ run_us = 100 }, { sleep_us = 100 }]",
        );
        let got = shares(&mut one);
        close(kernel, got[0], expected, 1.0);
    }
}

#[test]
fn groups_share_one_cpu_by_weight_at_all_levels() {
    for kernel in ALL {
        let mut one = machine(kernel, Topology::flat(1), TICKS);
        let light = group(&mut one, 100);
        let heavy = group(&mut one, 200);
        let below = one.add_group(heavy, TenantWeight(300));
        let beside = one.add_group(heavy, TenantWeight(100));
        add(&mut one, light, 0, 3, BUSY);
        add(&mut one, below, 0, 2, BUSY);
        add(&mut one, beside, 0, 1, BUSY);
        let got = shares(&mut one);
        close(kernel, got[..3].iter().sum(), 33.3, 0.5);
        close(kernel, got[3..5].iter().sum(), 50.0, 0.5);
        close(kernel, got[5], 16.7, 0.5);
    }
}

#[test]
fn groups_share_many_cpus_by_weight_when_all_are_busy() {
    for kernel in ALL {
        let mut four = machine(kernel, Topology::flat(4), TICKS);
        let light = group(&mut four, 100);
        let heavy = group(&mut four, 200);
        for at in [light, heavy] {
            let first = add(&mut four, at, 0, 4, BUSY);
            for cpu in 0..4 {
                pin(&mut four, first + cpu, cpu as u32);
            }
        }
        let got = shares(&mut four);
        close(kernel, got[..4].iter().sum(), 133.3, 2.0);
    }
}

#[test]
fn two_cpus_are_kept_busy_by_three_threads() {
    for kernel in ALL {
        let mut two = machine(kernel, Topology::flat(2), TICKS);
        add(&mut two, GroupId::ROOT, 0, 3, BUSY);
        let got = shares(&mut two);
        println!("{kernel:?}: {got:?}");
        close(kernel, got.iter().sum(), 200.0, 0.1);
        // Balancing moves one thread a few times a second.
        assert!(got.iter().all(|&share| share > 55.0), "{got:?}");
    }
}

/// T0, T1 and T2 are busy, T3 runs for 3 ms and sleeps for 7; two CPUs. Returns T0's and T1's CPU time in
/// percent of a CPU.
fn paper(kernel: Kernel, groups: usize, pinned: bool, costs: Costs) -> f64 {
    let mut two = machine(kernel, Topology::flat(2), costs);
    let groups: Vec<GroupId> = (0..groups).map(|_| group(&mut two, 100)).collect();
    let mut threads = Vec::new();
    for number in 0..4 {
        let program = if number == 3 {
            "[{ run_us = 3000 }, { sleep_us = 7000 }]"
        } else {
            BUSY
        };
        let at = groups[number * groups.len() / 4];
        threads.push(add(&mut two, at, 0, 1, program));
    }
    if pinned {
        for (thread, cpu) in [(0, 0), (2, 0), (1, 1), (3, 1)] {
            pin(&mut two, threads[thread], cpu);
        }
    }
    let got = shares(&mut two);
    println!(
        "{kernel:?}, {} groups, pinned {pinned}: {got:.1?}",
        groups.len()
    );
    got[0] + got[1]
}

#[test]
fn groups_on_two_cpus_as_measured_on_three_kernels() {
    // The group whose thread sleeps a lot gets less than its half. Measured on Debian's kernels with two
    // CPUs, EEVDF's (6.12.107 and 7.2.13) on the virtual clock of the kernel lab for 20 s after 5, with
    // programs that do the same: T3 runs until its CPU clock has advanced by 3 ms, then sleeps for 7.
    let measured = [
        (Cfs61, 2, true, 109.0, 1.0),
        (Cfs61, 4, true, 119.0, 1.0),
        (Cfs61, 2, false, 100.0, 1.0),
        (Eevdf612, 2, true, 116.4, 1.0),
        (Eevdf612, 4, true, 124.8, 1.0),
        (Eevdf612, 2, false, 98.6, 1.5),
        (Eevdf72, 2, true, 118.3, 1.0),
        (Eevdf72, 4, true, 126.2, 1.0),
        (Eevdf72, 2, false, 100.0, 1.0),
    ];
    for (kernel, groups, pinned, expected, tolerance) in measured {
        let got = paper(kernel, groups, pinned, Costs::TYPICAL);
        close((kernel, groups, pinned), got, expected, tolerance);
    }
}

#[test]
fn threads_of_four_groups_take_turns_on_two_cpus() {
    // Measured likewise, not pinned. Without a little noise, 6.12's balancing at ticks always finds T3 in the
    // same place.
    let costs = Costs {
        noise: 10_000,
        noise_every: 8_000_000,
        ..Costs::TYPICAL
    };
    for (kernel, expected, tolerance) in [(Eevdf612, 118.2, 4.0), (Eevdf72, 119.3, 1.5)] {
        let got = paper(kernel, 4, false, costs);
        close(kernel, got, expected, tolerance);
    }
}

#[test]
fn a_group_collapses_where_its_wakeups_do_not_preempt() {
    // Ishiguro et al. saw T3 get 0.3 % instead of 30, and G0 : G1 = 149.7 : 50.3, in CFS with 8 CPUs'
    // tunables. The collapse takes wakeups that do not preempt, so that T3 waits for a tick each time,
    // however short it runs: a wakeup granularity (4 ms) that is, in the virtual time of a group's entity,
    // longer than the credit of a sleeper (12 ms).
    let mut eight = machine(Cfs61, Topology::flat(8), Costs::TYPICAL);
    let groups = [group(&mut eight, 50), group(&mut eight, 50)];
    for (number, cpu) in [0, 1, 0, 1].into_iter().enumerate() {
        let program = if number == 3 {
            "[{ run_us = 12 }, { sleep_us = 28 }]"
        } else {
            BUSY
        };
        let thread = add(&mut eight, groups[number / 2], 0, 1, program);
        pin(&mut eight, thread, cpu);
    }
    let got = shares(&mut eight);
    close("T3", got[3], 0.3, 0.1);
    close("G0", got[0] + got[1], 149.7, 3.0);
}

#[test]
fn no_cpu_idles_for_long_beside_threads_that_wait() {
    for kernel in ALL {
        for topology in [topology(1, 8, 1), topology(2, 2, 2)] {
            let mut eight = machine(kernel, topology, Costs::TYPICAL);
            let program = "[{ run_us = { exponential = 4000 } }, { sleep_us = 3000 }]";
            add(&mut eight, GroupId::ROOT, 0, 14, program);
            let (mut lost, mut since, mut longest) = (0, [0; 8], 0);
            let steps = 40_000;
            for step in 1..=steps {
                eight.run_until(step * 250_000);
                let machine = eight.machine();
                let waits = (machine.threads.iter()).any(|it| it.state == State::Ready);
                for (cpu, since) in machine.cpus.iter().zip(&mut since) {
                    *since = if waits && cpu.current.is_none() {
                        *since + 1
                    } else {
                        0
                    };
                    lost += u64::from(*since > 0);
                    longest = longest.max(*since);
                }
            }
            let (lost, longest) = (lost as f64 / steps as f64 / 8.0, longest as f64 / 4.0);
            println!("{kernel:?}: {lost:.3} of the CPUs, {longest} ms at most");
            // Idle CPUs are balanced at a tick or at the next.
            assert!(lost < 0.15 && longest < 8.0);
        }
    }
}

#[test]
fn threads_spread_over_caches_and_cores_once_they_may() {
    let all: CpuSet = CpuSet::first(8);
    for kernel in ALL {
        // The threads are crowded on one socket, then on both hardware threads of two cores.
        for (topology, crowd) in [(topology(2, 4, 1), 4), (topology(1, 4, 2), 4)] {
            let siblings = topology.cpus[1].core == 0;
            let threads = if siblings { 4 } else { 8 };
            let mut eight = machine(kernel, topology, TICKS);
            for thread in 0..threads {
                add(&mut eight, GroupId::ROOT, 0, 1, BUSY);
                eight.restrict(ThreadId(thread), CpuSet::first(crowd));
            }
            eight.run_until(S);
            for thread in 0..threads {
                eight.restrict(ThreadId(thread), all.clone());
            }
            eight.run_until(3 * S);
            let cpus = &eight.machine().topology.cpus;
            let mut cores: Vec<u32> = (eight.machine().threads.iter())
                .map(|thread| cpus[thread.cpu.0 as usize].core)
                .collect();
            cores.sort_unstable();
            cores.dedup();
            assert_eq!(cores.len(), threads as usize, "{kernel:?}: {cores:?}");
        }
    }
}

#[test]
fn nested_groups_and_changing_affinities_lose_nobody() {
    for kernel in ALL {
        let costs = Costs {
            noise: 20_000,
            noise_every: 3_000_000,
            migrate: 5_000,
            migrate_far: 20_000,
            ..Costs::TYPICAL
        };
        let mut many = machine(kernel, topology(2, 3, 2), costs);
        let mut groups = vec![GroupId::ROOT];
        for number in 0..6 {
            let weight = TenantWeight([50, 30, 100, 400][number % 4]);
            groups.push(many.add_group(groups[number / 2], weight));
        }
        for number in 0..24 {
            let (run, sleep) = (
                [50, 700, 3_000, 9_000][number % 4],
                [0, 200, 5_000][number % 3],
            );
            let program = format!(
                "[{{ run_us = {run} }}, {{ barrier = \"b\" }}, {{ run_us = {run} }}, {{ sleep_us = {sleep} }}]"
            );
            let nice = number as i32 % 11 - 5;
            add(&mut many, groups[number % 7], nice, 2, &program);
        }
        let threads = many.machine().threads.len() as u32;
        for step in 1..=2_000u32 {
            let thread = ThreadId(step * 7 % threads);
            let first = step * 5 % 12;
            let allowed = (first..12.min(first + 3 + step % 5)).map(CpuId).collect();
            many.restrict(thread, allowed);
            many.run_until(u64::from(step) * 2_000_000);
            for (cpu, it) in many.machine().cpus.iter().enumerate() {
                if let Some(runs) = it.current {
                    let state = many.machine().thread(runs).state;
                    assert_eq!(state, State::Running(CpuId(cpu as u32)));
                }
            }
        }
        let ran: Vec<u64> = many.machine().threads.iter().map(|it| it.ran).collect();
        // This takes long, as a group in a group may weigh next to nothing on a CPU, and other threads wait
        // for its thread at a barrier.
        many.run_until(44 * S);
        let machine = many.machine();
        let stuck = (machine.threads.iter().zip(ran)).filter(|(it, ran)| it.ran == *ran);
        assert_eq!(stuck.count(), 0, "{kernel:?}");
        for thread in &machine.threads {
            assert!(!matches!(thread.state, State::Running(cpu) if !thread.may_use(cpu)));
        }
    }
}
