//! A benchmark on the simulator, from the command line.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use quell_trace::{Analyser, Reader};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn bench(seed: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["bench", "mixed", "--on", "sim", "--policy", "eevdf,sched"])
        .args([
            "--pairs",
            "2",
            "--seconds",
            "5",
            "--seed",
            seed,
            "--json",
            "-",
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_scenario_on_the_simulator_gives_what_its_seed_says() {
    let first = bench("1");
    assert_eq!(first["substrate"], "sim");
    assert_eq!(first["host"]["cpus"], 8);
    let all = |side: &str, what: &str| {
        let mut rows = first["results"].as_array().unwrap().iter();
        let row = rows.find(|row| row["side"] == side && row["tenant"] == "*");
        row.unwrap()[what].as_f64().unwrap()
    };
    // All of the load is served: 80 % of the CPUs, every request answered, and none before its work is done.
    for side in ["eevdf", "sched"] {
        assert_eq!(all(side, "errors"), 0.0);
        assert!((0.7..0.9).contains(&all(side, "cpu_share")));
        assert!(all(side, "mean_us") > 12_000.0);
    }
    assert!(all("sched", "p99_us") < all("eevdf", "p99_us"));
    assert_eq!(bench("1")["results"], first["results"]);
    assert_ne!(bench("2")["results"], first["results"]);
}

/// Shares do not cost latency: the scenarios of asymmetry, with shares and without.
#[test]
fn shares_cost_no_latency() {
    for scenario in [
        "mixed",
        "matrix-beside-key-value",
        "spinners-short",
        "fork-join-short-80",
        "fork-join-long-60",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_quell"))
            .args(["bench", scenario, "--on", "sim", "--json", "-"])
            .args(["--policy", "sched,share=quell sched --share"])
            .args(["--pairs", "12", "--seconds", "10"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = result["results"].as_array().unwrap();
        let of = |side: &str, what: &str| {
            let latency = |row: &&Value| row["tenant"] == "*" && row[what].is_number();
            let mut rows = rows.iter().filter(|row| row["side"] == side);
            rows.find(latency).unwrap()[what].as_f64().unwrap()
        };
        let [mean, p99] = ["mean_us", "p99_us"].map(|it| of("share", it) / of("sched", it));
        println!("{scenario}: mean {mean:.3}, 99th percentile {p99:.3}");
        assert!(mean <= 1.05 && p99 <= 1.05, "{scenario}: {mean} {p99}");
    }
}

fn traced(folder: &Path) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["bench", "mixed", "--on", "sim", "--policy", "eevdf,sched"])
        .args([
            "--pairs",
            "1",
            "--seconds",
            "1",
            "--set",
            "warmup_seconds=1",
        ])
        .args(["--scheduling", "--json", "-", "--trace"])
        .arg(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_trace_is_what_the_result_is_from() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("made/for it");
    let result = traced(&folder);
    for side in ["eevdf", "sched"] {
        let file = folder.join(format!("{side}-1.perfetto-trace"));
        let mut analyser = Analyser::new(1_000_000_000..2_000_000_000);
        for event in Reader::open(&file).unwrap() {
            analyser.add(&event.unwrap());
        }
        let analysis = analyser.finish(None);
        assert_eq!(analysis.cpus, 8);
        assert_eq!(analysis.gaps, quell_trace::Gaps::default());
        assert!(
            analysis
                .threads
                .iter()
                .any(|t| &*t.thread.name == "forkjoin-0/main")
        );
        let processes = analysis.processes(|_| true);
        let mut compared = 0;
        for row in result["results"].as_array().unwrap() {
            if row["side"] != side || row["tenant"] == "*" {
                continue;
            }
            let process = processes.iter().find(|p| row["tenant"] == *p.name).unwrap();
            let figures = &row["scheduling"];
            let mean = figures["run_delay_mean_us"].as_f64().unwrap();
            let traced = process.delays.mean_ns().unwrap() as f64 / 1e3;
            assert_eq!(mean, traced);
            assert_eq!(
                figures["switches_per_s"].as_f64(),
                Some(process.switches as f64)
            );
            compared += 1;
        }
        assert!(compared > 1);
    }
    let again = tempfile::tempdir().unwrap();
    traced(again.path());
    let name = "sched-1.perfetto-trace";
    let bytes = |folder: &Path| std::fs::read(folder.join(name)).unwrap();
    assert!(bytes(&folder) == bytes(again.path()), "not the same twice");
    let left = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(left, 2);
}

#[test]
fn traces_that_cannot_be_written_are_said_before_anything_runs() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let cases = [
        ("sim", file.path(), "cannot be written"),
        ("vm", Path::new("x"), "quell lab run --out FOLDER"),
    ];
    for (on, folder, says) in cases {
        let policy = if on == "sim" {
            "eevdf,sched"
        } else {
            "default,sched"
        };
        let output = Command::new(env!("CARGO_BIN_EXE_quell"))
            .args(["bench", "mixed", "--policy", policy, "--on", on, "--trace"])
            .arg(folder)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_trace_is_replayed_under_other_schedulers() {
    let folder = tempfile::tempdir().unwrap();
    traced(folder.path());
    let replay = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
        let command = command.current_dir(folder.path()).arg("replay");
        command.args(args).output().unwrap()
    };
    let trace = "eevdf-1.perfetto-trace";
    let output = replay(&[trace, "--policy", "eevdf,fifo", "--json", "-"]);
    assert!(output.status.success(), "{output:?}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&result["cpus"], &result["gaps"]), (&8.into(), &0.into()));
    assert_eq!(result["processes"].as_array().unwrap().len(), 8);
    let of = |under: &Value| under["policy"].as_str().unwrap().to_string();
    let all: Vec<String> = result["all"].as_array().unwrap().iter().map(of).collect();
    assert_eq!(all, ["recorded", "eevdf", "fifo"]);

    let one = replay(&[trace, "--process", "kv-0", "--cpus", "4"]);
    let one = String::from_utf8(one.stdout).unwrap();
    assert!(one.contains("kv-0") && !one.contains("image-0"), "{one}");
    assert!(
        one.contains("8 CPUs, replayed on 4 simulated ones"),
        "{one}"
    );

    let cases: [(&[&str], &str); 5] = [
        (&["none"], "none: cannot be read"),
        (
            &[trace, "--policy", "ideal"],
            "nothing that a trace can be replayed under",
        ),
        (&[trace, "--policy", "quell"], "tenants"),
        (&[trace, "--policy", "default"], "the host's own scheduler"),
        (&[trace, "--process", "x"], "no process `x`"),
    ];
    for (args, says) in cases {
        let output = replay(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(says), "{error}");
    }
}

/// All four mechanisms on one host: what each adds to those before it; and each keeps its promise beside the
/// others.
#[test]
fn four_mechanisms_on_one_host() {
    let sides = [
        "default",
        "asymmetry",
        "asymmetry+share",
        "asymmetry+share+criticality",
        "asymmetry+share+criticality+pools",
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["bench", "composed", "--on", "sim", "--json", "-"])
        .args(["--policy", &sides.join(","), "--pairs", "1"])
        .args(["--seconds", "10"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = result["results"].as_array().unwrap();
    let of = |side: usize, tenant: &str, what: &str| {
        let is = |row: &&Value| row["side"] == sides[side] && row["tenant"] == tenant;
        let row = rows.iter().find(is).unwrap();
        row[what].as_f64().unwrap()
    };
    let p99 = |side: usize, tenant: &str| of(side, tenant, "p99_us");
    let cpu = |side: usize, tenant: &str| 16.0 * of(side, tenant, "cpu_share");
    let teams = |side: usize| cpu(side, "team-a") / cpu(side, "team-b");
    for (side, name) in sides.iter().enumerate() {
        let latencies = ["web", "store", "control", "logs", "orders-0", "orders-1"];
        let latencies = latencies.map(|it| format!("{it} {:.2}", p99(side, it) / 1e3));
        let ratio = teams(side);
        println!("{name}: 99th percentiles in ms {latencies:?}, teams {ratio:.3} : 1");
    }
    const MS: f64 = 1e3;
    // The gain of each mechanism, and what the next ones leave of that gain.
    let adds = [
        (1, vec![("orders-0", 60.0 * MS), ("orders-1", 80.0 * MS)]),
        (3, vec![("control", 25.0 * MS), ("logs", 30.0 * MS)]),
        (4, vec![("web", 4.0 * MS), ("store", 4.0 * MS)]),
    ];
    for (side, tenants) in &adds {
        for (tenant, objective) in tenants {
            let before = p99(*side - 1, tenant);
            assert!(before > 10.0 * objective, "{tenant} without: {before}");
            for (with, name) in sides.iter().enumerate().skip(*side) {
                let p99 = p99(with, tenant);
                assert!(p99 < *objective, "{tenant}, {name}: {p99}");
            }
        }
    }
    for (side, name) in sides.iter().enumerate().skip(1) {
        assert!((teams(side) - 2.0).abs() < 0.02, "{name}: {}", teams(side));
    }
}
