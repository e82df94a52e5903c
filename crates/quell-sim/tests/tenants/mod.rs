//! Machines with tenants that differ, for tests of classes.
#![allow(dead_code, clippy::unwrap_used)] // each test binary uses its part

use quell_model::config::Scenario;
use quell_model::{Cpu, CpuId, TenantWeight, Topology};
use quell_sim::{Answer, Class, Costs, GroupId, Load, Machine, Request, Simulation, State, Tenant};
use std::path::Path;

pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000_000_000;

pub const BUSY: &str = "[{ run_us = 100000 }]";

/// Threads of one program, each tenant in a group of its own.
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

/// One thread that takes so long for each request; these come at those times.
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

/// A machine without costs.
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
    for (number, spec) in tenants.into_iter().enumerate() {
        let kind = match spec.load {
            Some(_) => "load = { rate = 1.0 }",
            None => "class = \"batch\"",
        };
        let text = format!(
            "name = \"t\"\n[[tenant]]\nname = \"t{number}\"\n{kind}\n[[tenant.thread]]\nname = \"w\"\ncount = {}\nprogram = {}\n",
            spec.count, spec.program
        );
        let scenario = Scenario::parse(Path::new("t.toml"), &text).unwrap();
        let group = simulation.add_group(GroupId::ROOT, TenantWeight(spec.weight));
        let tenant = Tenant::new(&scenario.tenants[0].threads, spec.load);
        simulation.add_tenant(Tenant { group, ..tenant });
    }
    simulation
}

/// So many sockets with a last-level cache each.
pub fn sockets(count: u32, cores: u32) -> Topology {
    let cpus = (0..count * cores).map(|number| Cpu {
        id: CpuId(number),
        core: number,
        llc: number / cores,
        socket: number / cores,
    });
    Topology {
        cpus: cpus.collect(),
    }
}

pub fn ran(simulation: &Simulation) -> Vec<u64> {
    let threads = &simulation.machine().threads;
    threads.iter().map(|thread| thread.ran).collect()
}

/// What each thread gets of a CPU in the time between.
pub fn shares(simulation: &mut Simulation, from: u64, to: u64) -> Vec<f64> {
    simulation.run_until(from);
    let before = ran(simulation);
    simulation.run_until(to);
    let after = ran(simulation);
    let got = after.iter().zip(before);
    got.map(|(after, before)| (after - before) as f64 / (to - from) as f64)
        .collect()
}

#[track_caller]
pub fn near(what: &str, got: f64, expected: f64, tolerance: f64) {
    println!("{what}: {got:.4}, expected {expected:.4}");
    assert!(
        (got / expected - 1.0).abs() <= tolerance,
        "{what}: {got:.4}, not {expected:.4}"
    );
}

/// How long a tenant's answers took, in us.
pub fn response_us(answers: &[Answer], tenant: usize) -> Vec<u64> {
    let own = answers.iter().filter(|answer| answer.tenant == tenant);
    own.map(|answer| (answer.at - answer.due) / 1000).collect()
}

/// Whether a CPU idles beside a ready thread that may use it.
pub fn wastes(machine: &Machine) -> bool {
    let ready = |thread: &&quell_sim::Thread| thread.state == State::Ready;
    machine.threads.iter().filter(ready).any(|thread| {
        let mut cpus = machine.cpu_ids().zip(&machine.cpus);
        cpus.any(|(id, cpu)| cpu.current.is_none() && thread.may_use(id))
    })
}
