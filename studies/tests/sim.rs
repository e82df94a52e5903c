//! Studies on the simulator, from the command line.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use serde_json::Value;
use std::process::Command;

fn hunt(policy: &str, more: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell-studies"));
    command.args(["hunt", "--workloads", "12", "--seconds", "2"]);
    command
        .args(["--policy", policy])
        .args(more)
        .output()
        .unwrap()
}

#[test]
fn a_hunt_ends_with_what_it_found() {
    // The result names the sides, and the exit code says whether a light task waits too long.
    let none = hunt("fifo,eevdf", &["--json", "-"]);
    let result: Value = serde_json::from_slice(&none.stdout).unwrap();
    let side = &result["sides"][0];
    assert_eq!(
        (&result["reference"], &side["side"]),
        (&"fifo".into(), &"eevdf".into())
    );
    assert_eq!(side["workloads"], 12);
    assert_eq!(none.status.success(), side["exceeding"] == 0, "{none:?}");
    // First come, first served with slices of 3 ms: a light task waits for many others.
    let keep = tempfile::tempdir().unwrap();
    let folder = keep.path().to_string_lossy().into_owned();
    let found = hunt("eevdf,fifo", &["--keep", &folder]);
    let told = String::from_utf8_lossy(&found.stderr).into_owned();
    assert_eq!(found.status.code(), Some(1), "{told}");
    assert!(told.contains("a light task waits too long on"), "{told}");
    let kept: Vec<_> = std::fs::read_dir(keep.path()).unwrap().collect();
    assert!(
        !kept.is_empty(),
        "{}",
        String::from_utf8_lossy(&found.stdout)
    );
    let text = std::fs::read_to_string(kept[0].as_ref().unwrap().path()).unwrap();
    assert!(
        text.contains("under fifo") && text.contains("[workload]"),
        "{text}"
    );
    let alone = hunt("eevdf", &[]);
    assert_eq!(alone.status.code(), Some(2));
}

/// The figure of four threads in groups: each thread's CPU time beside the ideal, and CFS's collapse where
/// wakeups never preempt.
#[test]
fn the_figure_of_four_threads_shows_each_and_the_ideal() {
    let output = Command::new(env!("CARGO_BIN_EXE_quell-studies"))
        .args(["reproduce", "groups-fig3", "--pairs", "1", "--seconds", "5"])
        .args(["--policy", "cfs,eevdf", "--json", "-"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let claims = result["claims"].as_array().unwrap();
    let number = |of: &str, what: &str| {
        let mut claims = claims.iter();
        let claim = claims.find(|it| it["of"] == of && it["what"] == what);
        let claim = claim.unwrap_or_else(|| panic!("{of}: {what}"));
        (claim["ideal"].as_f64(), claim["here"][0]["value"].as_f64())
    };
    for (of, what, ideal, cfs, tolerance) in [
        ("group", "T0 and T1", 100.0, 109.0, 1.5),
        ("group, short cycles", "T3", 30.0, 27.0, 2.0),
        ("group, short cycles, weight 50", "T3", 30.0, 0.3, 0.2),
        ("individual", "T0 and T1", 120.0, 120.0, 1.0),
        ("dedicated", "T2 and T3", 100.0, 100.0, 0.5),
    ] {
        let (expected, got) = number(of, what);
        assert!((expected.unwrap() - ideal).abs() < 1e-6, "{of}: {what}");
        let got = got.unwrap();
        assert!((got - cfs).abs() < tolerance, "{of}: {what}: {got}");
    }
    assert!(String::from_utf8_lossy(&output.stderr).contains("ideal"));
}

/// A scenario under a side of the studies', beside one of the product's.
#[test]
fn a_scenario_is_measured_under_a_baseline() {
    let output = Command::new(env!("CARGO_BIN_EXE_quell-studies"))
        .args(["bench", "mixed", "--on", "sim", "--policy", "fifo,ideal"])
        .args(["--pairs", "2", "--seconds", "5", "--json", "-"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = |side: &str, what: &str| {
        let mut rows = result["results"].as_array().unwrap().iter();
        let row = rows.find(|row| row["side"] == side && row["tenant"] == "*");
        row.unwrap()[what].as_f64().unwrap()
    };
    // What is asked for is done: 80 % of the CPUs, every request answered, and none before its work is.
    for side in ["fifo", "ideal"] {
        assert_eq!(all(side, "errors"), 0.0);
        assert!((0.7..0.9).contains(&all(side, "cpu_share")));
        assert!(all(side, "mean_us") > 12_000.0);
    }
    assert!(all("ideal", "p99_us") < all("fifo", "p99_us"));
}
