//! Studies in the kernel lab's guests: the standard suite reports what it should, and the simulator agrees
//! with the kernel.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../crates/quell/tests/common/mod.rs"]
mod common;

use std::process::Command;

#[test]
fn a_case_of_the_standard_suite_tells_of_victims_and_load_on_both_sides() {
    if !common::lab_is_ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let output = Command::new(env!("CARGO_BIN_EXE_quell-studies"))
        .args(["standard", "--on", "vm", "--cpus", "2"])
        .args(["--policy", "default,sched", "--only", "make-like-one"])
        .args(["--only", "fork-bomb", "--seconds", "0.5"])
        .args(["--pairs", "1", "--json", "-", "--report"])
        .arg(&page)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).expect(&said);
    assert_eq!(result["complete"], true, "{said}");
    assert_eq!(result["lab"]["cpus"], 2);
    let cases = result["cases"].as_array().unwrap();
    let names: Vec<_> = cases.iter().map(|case| &case["case"]).collect();
    assert_eq!(names, ["make-like-one-process", "fork-bomb"]);
    let mut holds = Vec::new();
    for case in cases {
        let sides = case["sides"].as_array().unwrap();
        assert_eq!(sides.len(), 2, "{case}");
        for side in sides {
            assert_eq!(side["errors"].as_array().unwrap().len(), 0, "{side}");
            let victims = side["victims"].as_array().unwrap();
            assert_eq!(victims.len(), 6, "{side}");
            let served = |victim: &serde_json::Value| victim["median"]["served"].as_f64().unwrap();
            assert!(victims.iter().all(|it| served(it) >= 1.0), "{side}");
        }
        holds.push(sides[1]["holds"].as_bool().unwrap());
        assert!(sides[0]["holds"].is_null());
    }
    // The fork bomb has no throughput, the loops have one.
    let work = &cases[0]["sides"][1]["loads"][0];
    assert!(work["per_s"].as_f64().unwrap() > 10.0, "{work}");
    assert!(cases[1]["sides"][0]["loads"].as_array().unwrap().is_empty());
    // A suite with a case that fails exits with 1.
    let all_hold = holds.iter().all(|it| *it);
    assert_eq!(output.status.code(), Some(i32::from(!all_hold)), "{said}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<h2>fork-bomb</h2>") && page.contains("<svg"));
}

#[test]
fn servers_tell_what_their_clients_waited() {
    if !common::lab_is_ready() {
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_quell-studies"))
        .args(["standard", "--on", "vm", "--cpus", "2"])
        .args(["--policy", "default", "--only", "memcached"])
        .args(["--only", "pgbench", "--seconds", "0.5"])
        .args(["--pairs", "1", "--json", "-"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).expect(&said);
    let named = |values: &serde_json::Value, key: &str, name: &str| {
        let values = values.as_array().unwrap();
        let mut found = values
            .iter()
            .filter(|it| it[key].as_str().unwrap().starts_with(name));
        found.next().cloned()
    };
    for (case, clients, work) in [
        ("build-memcached-nginx", &["memcached", "nginx"][..], "make"),
        ("pgbench-redis-xz", &["pgbench", "redis"], "pgbench"),
    ] {
        let case = named(&result["cases"], "case", case).unwrap();
        if let Some(reason) = case["skipped"].as_str() {
            // The case needs a program that this machine does not have.
            assert!(reason.contains("is not installed"), "{reason}");
            eprintln!("skipped: {reason}");
            continue;
        }
        let side = &case["sides"][0];
        for client in clients {
            let figures = named(&side["victims"], "victim", client).unwrap()["median"].clone();
            assert!(
                figures["response_mean_us"].as_f64().unwrap() > 0.0,
                "{figures}"
            );
            assert!(figures["late_mean_us"].is_null(), "{figures}");
            assert!(figures["served"].as_f64().unwrap() > 10.0, "{figures}");
        }
        let work = named(&side["loads"], "load", work).unwrap();
        assert!(work["per_s"].as_f64().unwrap() > 1.0, "{work}");
        // The number of requests of an open loop is no work.
        assert_eq!(named(&side["loads"], "load", "memcached"), None);
    }
}

/// One scenario on the simulator and under the real kernel: run delays, latencies, switches, wakeups and
/// shares, under EEVDF and under Quell's scheduler, agree within what docs/results/simulator.md says.
#[test]
fn the_simulator_tells_what_the_kernel_does() {
    if !common::lab_is_ready() {
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_quell-studies"))
        .args(["calibration", "--only", "fork-join-short-60"])
        .args(["--seconds", "6"])
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{table}\n{said}");
    assert!(
        table.contains("run delay, p99") && table.contains("sched"),
        "{table}"
    );
}
