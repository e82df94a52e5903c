//! Machines, tenants and figures for all tests of the simulator.
#![allow(dead_code, clippy::unwrap_used)] // each test binary uses its part

pub mod every_class;

use quell_model::{Cpu, CpuId, Nice, TenantWeight, Topology};
use quell_scenario::{Scenario, ThreadProgram};
use quell_sched::Options;
use quell_sim::{
    Answer, Class, Costs, GroupId, Load, Machine, Request, SchedExt, Simulation, State, Tenant,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt::Debug;
use std::path::Path;

pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000_000_000;

pub const BUSY: &str = "[{ run_us = 100000 }]";

/// Kernel work costs nothing, but there are ticks.
pub const TICKS: Costs = Costs {
    tick_every: 4 * MS,
    ..Costs::NONE
};

/// A request in four parts, for which a thread has three helpers.
pub const FORK_JOIN: &str = r#"
[[tenant.thread]]
name = "main"
program = ["request", { run_us = 200 },
    { fork_join = { pool = "p", parts = 4, program = [{ run_us = 400 }] } }, { run_us = 200 }, "respond"]
[[tenant.thread]]
name = "helper"
count = 3
program = [{ help = "p" }]
"#;

/// The checked programs of thread tables, for a tenant with or without requests.
pub fn programs(threads: &str, loaded: bool) -> Vec<ThreadProgram> {
    let kind = match loaded {
        true => "load = { rate = 1.0 }",
        false => "class = \"batch\"",
    };
    let text = format!("name = \"t\"\n[[tenant]]\nname = \"a\"\n{kind}\n{threads}");
    let scenario = Scenario::parse(Path::new("t.toml"), &text).unwrap();
    scenario.tenants.into_iter().next().unwrap().threads
}

/// The table of `count` threads of a program.
pub fn threads(count: u32, program: &str) -> String {
    format!("[[tenant.thread]]\nname = \"w\"\ncount = {count}\nprogram = {program}\n")
}

/// The table of a server of `count` threads; `run_us` is the work of a request, as a scenario says it.
pub fn serving(count: u32, run_us: &str) -> String {
    threads(
        count,
        &format!("[\"request\", {{ run_us = {run_us} }}, \"respond\"]"),
    )
}

/// Adds a tenant of `count` threads of a program; returns the number of the first thread.
pub fn add_threads(
    simulation: &mut Simulation,
    group: GroupId,
    nice: i32,
    count: u32,
    program: &str,
) -> usize {
    let first = simulation.machine().threads.len();
    simulation.add_tenant(Tenant {
        group,
        nice: Nice::new(nice).unwrap(),
        ..Tenant::new(&programs(&threads(count, program), false), None)
    });
    first
}

/// Poisson arrivals, `rate` a second.
pub fn poisson(rate: f64, seed: u64) -> Load {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut at = 0.0;
    Box::new(std::iter::repeat_with(move || {
        at -= (1.0 - rng.random::<f64>()).ln() * 1e9 / rate;
        Request {
            due: at as u64,
            seed: rng.random(),
        }
    }))
}

/// A tenant: threads of one program, in a cgroup of the tenant's own.
pub struct Spec {
    pub weight: u32,
    pub count: u32,
    pub program: String,
    pub load: Option<Load>,
}

pub fn busy(weight: u32, count: u32) -> Spec {
    batch(weight, count, BUSY)
}

pub fn batch(weight: u32, count: u32, program: &str) -> Spec {
    Spec {
        weight,
        count,
        program: program.to_string(),
        load: None,
    }
}

/// A server of one thread that uses `run_us` for each request; the requests are due at `times`, in ns.
pub fn server(run_us: u64, times: impl Iterator<Item = u64> + 'static) -> Spec {
    let request = |(seed, due)| Request {
        due,
        seed: seed as u64,
    };
    Spec {
        weight: 100,
        count: 1,
        program: format!("[\"request\", {{ run_us = {run_us} }}, \"respond\"]"),
        load: Some(Box::new(times.enumerate().map(request))),
    }
}

pub fn every(period: u64, first: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |number| first + number * period)
}

/// A machine on which kernel work costs nothing.
pub fn machine(topology: Topology, class: Box<dyn Class>, tenants: Vec<Spec>) -> Simulation {
    machine_with(Costs::NONE, topology, class, tenants)
}

pub fn machine_with(
    costs: Costs,
    topology: Topology,
    class: Box<dyn Class>,
    tenants: Vec<Spec>,
) -> Simulation {
    let mut simulation = Simulation::new(topology, costs, class);
    for spec in tenants {
        let programs = programs(&threads(spec.count, &spec.program), spec.load.is_some());
        let group = simulation.add_group(GroupId::ROOT, TenantWeight(spec.weight));
        let tenant = Tenant::new(&programs, spec.load);
        simulation.add_tenant(Tenant { group, ..tenant });
    }
    simulation
}

/// A machine of flat topology under Quell's scheduler, with ticks.
pub fn under_sched(cpus: u32, share: bool) -> Simulation {
    let topology = Topology::flat(cpus);
    let options = Options {
        share,
        ..Options::default()
    };
    let class = SchedExt::new(&topology, &options).unwrap();
    Simulation::new(topology, TICKS, Box::new(class))
}

/// A topology of sockets with one last-level cache each, cores per socket, and CPUs per core. The CPUs of a
/// core have consecutive numbers.
pub fn topology(sockets: u32, cores: u32, siblings: u32) -> Topology {
    let cpu = |number: u32| Cpu {
        id: CpuId(number),
        core: number / siblings,
        llc: number / siblings / cores,
        socket: number / siblings / cores,
    };
    let cpus = (0..sockets * cores * siblings).map(cpu).collect();
    Topology { cpus }
}

/// CPU time so far, by thread, in ns.
pub fn ran(simulation: &Simulation) -> Vec<u64> {
    let threads = &simulation.machine().threads;
    threads.iter().map(|thread| thread.ran).collect()
}

/// What part of a CPU each thread gets between two times, in ns.
pub fn shares(simulation: &mut Simulation, from: u64, to: u64) -> Vec<f64> {
    simulation.run_until(from);
    let before = ran(simulation);
    simulation.run_until(to);
    let after = ran(simulation);
    let got = after.iter().zip(before);
    got.map(|(after, before)| (after - before) as f64 / (to - from) as f64)
        .collect()
}

/// Asserts that a figure is off by at most this part of what is expected.
#[track_caller]
pub fn near(what: impl Debug, got: f64, expected: f64, tolerance: f64) {
    close(what, got, expected, tolerance * expected.abs());
}

/// Asserts that a figure is off by at most `tolerance`.
#[track_caller]
pub fn close(what: impl Debug, got: f64, expected: f64, tolerance: f64) {
    println!("{what:?}: {got:.4}, expected {expected:.4}");
    assert!(
        (got - expected).abs() <= tolerance,
        "{what:?}: {got:.4}, not {expected:.4}"
    );
}

pub fn mean_us(answers: &[Answer]) -> f64 {
    let sum: u64 = answers.iter().map(|it| it.at - it.due).sum();
    sum as f64 / answers.len() as f64 / 1e3
}

/// The response times of a tenant's requests, in us.
pub fn response_us(answers: &[Answer], tenant: usize) -> Vec<u64> {
    let own = answers.iter().filter(|answer| answer.tenant == tenant);
    own.map(|answer| (answer.at - answer.due) / 1000).collect()
}

/// Whether a CPU idles while a thread is ready that may run on it.
pub fn wastes(machine: &Machine) -> bool {
    let ready = |thread: &&quell_sim::Thread| thread.state == State::Ready;
    machine.threads.iter().filter(ready).any(|thread| {
        let mut cpus = machine.cpu_ids().zip(&machine.cpus);
        cpus.any(|(id, cpu)| cpu.current.is_none() && thread.may_use(id))
    })
}
