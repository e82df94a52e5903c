//! Faults and fairness of `quell sched`. The guest runs this same program: [`guest`] holds the attacks.

mod guest;
mod load;
mod servers;

use crate::common;
use std::path::Path;
use std::process::Command;

/// Boots a guest, runs these attacks there and shows their measurements.
fn attack(attacks: &str, options: &[&str]) {
    if !common::lab_is_ready() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command
        .args(["lab", "run", "--kernel", "sched_ext", "--limit", "900"])
        .args(options)
        .arg("--file")
        .arg(format!("{}:/root/attacks", this.display()));
    let stress = Path::new(guest::STRESS_NG);
    if stress.exists() {
        command
            .arg("--file")
            .arg(format!("{0}:{0}", stress.display()));
    } else {
        eprintln!("{} is not there: not attacked with it", stress.display());
    }
    let output = command
        .args(["--", "env", "QUELL_GUEST=1", "RUST_BACKTRACE=0"])
        .args([
            "/root/attacks",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .arg(attacks)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success(), "{said}\n{errors}");
    assert!(!said.contains("running 0 tests"), "{said}");
}

#[test]
fn shares_and_waits() {
    attack("sched::guest::shares", &["--cpus", "4", "--memory", "2G"]);
}

#[test]
fn limits_and_small_shares() {
    attack(
        "sched::guest::limits_and_small",
        &["--cpus", "4", "--memory", "2G"],
    );
}

#[test]
fn tenants_share_the_host() {
    attack("sched::guest::tenants", &["--cpus", "4", "--memory", "2G"]);
}

#[test]
fn promises_are_kept() {
    attack(
        "sched::servers::servers",
        &["--cpus", "4", "--memory", "2G"],
    );
}

#[test]
fn faults() {
    attack("sched::guest::faults", &["--cpus", "4", "--memory", "2G"]);
}
