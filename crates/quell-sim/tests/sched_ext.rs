//! Quell's scheduler, as it ships, on simulated machines.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use quell_model::config::Scenario;
use quell_model::{CpuId, Nice, TenantWeight, Topology};
use quell_sched::Options;
use quell_sim::{Answer, Costs, GroupId, Request, SchedExt, Simulation, State, Tenant, ThreadId};
use std::path::Path;

const S: u64 = 1_000_000_000;
const BUSY: &str = "[{ run_us = 5000 }]";

fn machine(cpus: u32) -> Simulation {
    machine_with(cpus, Costs::TYPICAL)
}

fn machine_with(cpus: u32, costs: Costs) -> Simulation {
    let topology = Topology::flat(cpus);
    let class = SchedExt::new(&topology, &Options::default()).unwrap();
    Simulation::new(topology, costs, Box::new(class))
}

/// Adds a tenant of so many threads that run a program, in that group and of that nice value.
fn add(simulation: &mut Simulation, count: u32, program: &str, group: GroupId, nice: i32) {
    let text = format!(
        "name = \"t\"\n[[tenant]]\nname = \"a\"\nclass = \"batch\"\n\
         [[tenant.thread]]\nname = \"t\"\ncount = {count}\nprogram = {program}\n"
    );
    let scenario = Scenario::parse(Path::new("t.toml"), &text).unwrap();
    simulation.add_tenant(Tenant {
        group,
        nice: Nice::new(nice).unwrap(),
        ..Tenant::new(&scenario.tenants[0].threads, None)
    });
}

/// CPU time of each thread in twenty seconds, after two.
fn ran(simulation: &mut Simulation) -> Vec<f64> {
    let ran = |simulation: &Simulation| -> Vec<u64> {
        let threads = &simulation.machine().threads;
        threads.iter().map(|thread| thread.ran).collect()
    };
    simulation.run_until(2 * S);
    let before = ran(simulation);
    simulation.run_until(22 * S);
    let after = ran(simulation);
    let got = after.iter().zip(before);
    got.map(|(after, before)| (after - before) as f64).collect()
}

#[track_caller]
fn near(got: f64, expected: f64, tolerance: f64) {
    println!("{got:.3}, expected {expected:.3}");
    assert!(
        (got / expected - 1.0).abs() < tolerance,
        "{got:.3}, not {expected:.3}"
    );
}

#[test]
fn busy_threads_share_by_weight() {
    for cpus in [1, 2] {
        let mut simulation = machine(cpus);
        for nice in [0, 5] {
            add(&mut simulation, 2 * cpus, BUSY, GroupId::ROOT, nice);
        }
        let got = ran(&mut simulation);
        let (heavy, light) = got.split_at(2 * cpus as usize);
        near(
            heavy.iter().sum::<f64>() / light.iter().sum::<f64>(),
            1024.0 / 335.0,
            0.02,
        );
        for thread in heavy {
            near(*thread, heavy[0], 0.02);
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
    add(&mut simulation, 5, BUSY, one, 0);
    add(&mut simulation, 2, BUSY, outer, 0);
    add(&mut simulation, 4, BUSY, inner, 0);
    let got = ran(&mut simulation);
    let sum = |threads: &[f64]| threads.iter().sum::<f64>();
    near(sum(&got[5..]) / sum(&got[..5]), 3.0, 0.02);
    // Beside two threads of the outer group the inner one counts as one more.
    near(sum(&got[7..]) / sum(&got[5..7]), 0.5, 0.03);
}

#[test]
fn a_thread_that_mostly_sleeps_waits_for_nobody() {
    let mut simulation = machine(1);
    add(&mut simulation, 3, BUSY, GroupId::ROOT, 0);
    let light = "[{ run_us = 500 }, { sleep_us = 9500 }]";
    add(&mut simulation, 1, light, GroupId::ROOT, 0);
    let got = ran(&mut simulation);
    // It gets all that it asks for: a turn each 10 ms and what waiting adds, which is the way to the CPU.
    near(got[3], 20.0 * S as f64 * 0.05, 0.01);
}

#[test]
fn threads_run_only_where_they_may_and_no_cpu_idles_beside_a_ready_one() {
    let costs = Costs {
        tick_every: Costs::TYPICAL.tick_every,
        ..Costs::NONE
    };
    let mut simulation = machine_with(3, costs);
    let program = "[{ run_us = 700 }, { sleep_us = { exponential = 600 } }]";
    add(&mut simulation, 6, program, GroupId::ROOT, 0);
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

/// Requests to a fork-join server, and what they took.
fn course(simulation: &mut Simulation, until: u64) -> Vec<Answer> {
    simulation.run_until(until)
}

fn server() -> Simulation {
    let text = "name = \"t\"\n[[tenant]]\nname = \"a\"\nload = { rate = 1.0 }\n\
        [[tenant.thread]]\nname = \"m\"\nprogram = [\"request\", { fork_join = { pool = \"p\", parts = 4, \
        program = [{ run_us = { exponential = 2000 } }] } }, \"respond\"]\n\
        [[tenant.thread]]\nname = \"h\"\ncount = 3\nprogram = [{ help = \"p\" }]\n";
    let scenario = Scenario::parse(Path::new("t.toml"), text).unwrap();
    let mut simulation = machine(2);
    for tenant in 0..3 {
        let load = (0..).map(move |number| Request {
            due: number * 17_000_000 + tenant * 1_000_000,
            seed: number * 3 + tenant,
        });
        simulation.add_tenant(Tenant::new(
            &scenario.tenants[0].threads,
            Some(Box::new(load)),
        ));
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
