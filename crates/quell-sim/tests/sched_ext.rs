//! Quell's scheduler, as it ships, on simulated machines.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use common::{S, TICKS, add_threads as add, near, programs};
use quell_model::{CpuId, TenantWeight, Topology};
use quell_sched::Options;
use quell_sim::{Answer, Costs, GroupId, Request, SchedExt, Simulation, State, Tenant, ThreadId};

const BUSY: &str = "[{ run_us = 5000 }]";

fn machine(cpus: u32) -> Simulation {
    machine_with(cpus, Costs::TYPICAL)
}

fn machine_with(cpus: u32, costs: Costs) -> Simulation {
    let topology = Topology::flat(cpus);
    let class = SchedExt::new(&topology, &Options::default()).unwrap();
    Simulation::new(topology, costs, Box::new(class))
}

/// What part of a CPU each thread gets in twenty seconds, after two.
fn shares(simulation: &mut Simulation) -> Vec<f64> {
    common::shares(simulation, 2 * S, 22 * S)
}

#[test]
fn busy_threads_share_by_weight() {
    for cpus in [1, 2] {
        let mut simulation = machine(cpus);
        for nice in [0, 5] {
            add(&mut simulation, GroupId::ROOT, nice, 2 * cpus, BUSY);
        }
        let got = shares(&mut simulation);
        let (heavy, light) = got.split_at(2 * cpus as usize);
        near(
            "nice",
            heavy.iter().sum::<f64>() / light.iter().sum::<f64>(),
            1024.0 / 335.0,
            0.02,
        );
        for thread in heavy {
            near("alike", *thread, heavy[0], 0.02);
        }
    }
}

#[test]
fn groups_share_by_weight_whatever_is_in_them() {
    let mut simulation = machine(2);
    let weight = |weight| TenantWeight(weight);
    let one = simulation.add_group(GroupId::ROOT, weight(100));
    let outer = simulation.add_group(GroupId::ROOT, weight(300));
    let inner = simulation.add_group(outer, weight(100));
    add(&mut simulation, one, 0, 5, BUSY);
    add(&mut simulation, outer, 0, 2, BUSY);
    add(&mut simulation, inner, 0, 4, BUSY);
    let got = shares(&mut simulation);
    let sum = |threads: &[f64]| threads.iter().sum::<f64>();
    near("groups", sum(&got[5..]) / sum(&got[..5]), 3.0, 0.02);
    // The inner group counts as one more sibling of the outer group's two threads.
    near("nested", sum(&got[7..]) / sum(&got[5..7]), 0.5, 0.03);
}

#[test]
fn a_thread_that_mostly_sleeps_waits_for_nobody() {
    let mut simulation = machine(1);
    add(&mut simulation, GroupId::ROOT, 0, 3, BUSY);
    let light = "[{ run_us = 500 }, { sleep_us = 9500 }]";
    add(&mut simulation, GroupId::ROOT, 0, 1, light);
    let got = shares(&mut simulation);
    // The thread gets all that it asks for: 0.5 ms of every 10, and a cycle is longer by the way to the CPU
    // only.
    near("light", got[3], 0.05, 0.01);
}

#[test]
fn threads_run_only_where_they_may_and_no_cpu_idles_beside_a_ready_one() {
    let mut simulation = machine_with(3, TICKS);
    let program = "[{ run_us = 700 }, { sleep_us = { exponential = 600 } }]";
    add(&mut simulation, GroupId::ROOT, 0, 6, program);
    for thread in 0..2 {
        simulation.restrict(ThreadId(thread), [CpuId(1)].into_iter().collect());
    }
    simulation.run_until(S / 10);
    for step in 1..20_000 {
        simulation.run_until(S / 10 + step * 50_000);
        let machine = simulation.machine();
        for thread in &machine.threads[..2] {
            assert!(!matches!(thread.state, State::Running(cpu) if cpu != CpuId(1)));
        }
        let mut free = machine.threads[2..].iter();
        let ready = free.any(|thread| thread.state == State::Ready);
        let idle = machine.cpus.iter().any(|cpu| cpu.current.is_none());
        assert!(!(ready && idle), "at {} ns", machine.now);
    }
    let machine = simulation.machine();
    assert!(machine.threads.iter().all(|thread| thread.ran > S / 20));
}

/// The answers of a fork-join server until a time, in ns.
fn course(simulation: &mut Simulation, until: u64) -> Vec<Answer> {
    simulation.run_until(until)
}

fn server() -> Simulation {
    let threads = "[[tenant.thread]]\nname = \"m\"\nprogram = [\"request\", { fork_join = { pool = \"p\", parts = 4, \
        program = [{ run_us = { exponential = 2000 } }] } }, \"respond\"]\n\
        [[tenant.thread]]\nname = \"h\"\ncount = 3\nprogram = [{ help = \"p\" }]\n";
    let programs = programs(threads, true);
    let mut simulation = machine(2);
    for tenant in 0..3 {
        let load = (0..).map(move |number| Request {
            due: number * 17_000_000 + tenant * 1_000_000,
            seed: number * 3 + tenant,
        });
        simulation.add_tenant(Tenant::new(&programs, Some(Box::new(load))));
    }
    simulation
}

#[test]
fn the_same_seed_gives_the_same_course_alone_or_in_turns_with_another() {
    let alone = course(&mut server(), 3 * S);
    assert!(alone.len() > 400);
    let (mut one, mut other) = (server(), server());
    let (mut answers, mut others) = (Vec::new(), Vec::new());
    for step in 1..=30 {
        answers.append(&mut course(&mut one, step * S / 10));
        others.append(&mut course(&mut other, step * S / 10));
    }
    assert_eq!(answers, alone);
    assert_eq!(others, alone);
    let elsewhere = std::thread::spawn(|| course(&mut server(), 3 * S));
    assert_eq!(elsewhere.join().unwrap(), alone);
}
