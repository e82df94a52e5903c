//! EEVDF against what is known of it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use quell_model::Topology;
use quell_model::config::Scenario;
use quell_sim::{Costs, Eevdf, Simulation, Tenant};
use std::path::Path;

/// CPU time of each thread in ten seconds, after one, as a share of a CPU.
fn shares(cpus: u32, threads: &[(u32, &str)]) -> Vec<f64> {
    let mut text = "name = \"t\"\n[[tenant]]\nname = \"a\"\nclass = \"batch\"\n".to_string();
    for (index, (count, program)) in threads.iter().enumerate() {
        text += &format!(
            "[[tenant.thread]]\nname = \"t{index}\"\ncount = {count}\nprogram = {program}\n"
        );
    }
    let scenario = Scenario::parse(Path::new("t.toml"), &text).unwrap();
    let class = Eevdf::new(cpus as usize);
    let mut simulation = Simulation::new(Topology::flat(cpus), Costs::NONE, Box::new(class));
    simulation.add_tenant(Tenant::new(&scenario.tenants[0].threads, None));
    let ran = |simulation: &Simulation| -> Vec<u64> {
        let threads = &simulation.machine().threads;
        threads.iter().map(|thread| thread.ran).collect()
    };
    simulation.run_until(1_000_000_000);
    let before = ran(&simulation);
    simulation.run_until(11_000_000_000);
    let after = ran(&simulation);
    let got = after.iter().zip(before);
    got.map(|(after, before)| (after - before) as f64 / 1e10)
        .collect()
}

const BUSY: &str = "[{ run_us = 1000 }]";

#[track_caller]
fn near(got: f64, expected: f64) {
    assert!((got - expected).abs() < 0.02, "{got:.3}, not {expected:.3}");
}

#[test]
fn busy_threads_share_alike() {
    for share in shares(1, &[(3, BUSY)]) {
        near(share, 1.0 / 3.0);
    }
    for share in shares(4, &[(4, BUSY)]) {
        near(share, 1.0);
    }
}

#[test]
fn half_a_duty_gets_a_third_beside_a_busy_thread() {
    // While it sleeps it is not behind, so it gets half of the time in which it is ready.
    let got = shares(
        1,
        &[(1, BUSY), (1, "[{ run_us = 1000 }, { sleep_us = 1000 }]")],
    );
    near(got[0], 2.0 / 3.0);
    near(got[1], 1.0 / 3.0);
}

#[test]
fn two_cpus_are_kept_busy_by_three_threads() {
    let got = shares(2, &[(3, BUSY)]);
    near(got.iter().sum::<f64>(), 2.0);
    // Balancing moves one a few times a second.
    assert!(got.iter().all(|&share| share > 0.5), "{got:?}");
}
