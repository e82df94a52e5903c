//! A benchmark on the simulator, from the command line.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use serde_json::Value;
use std::process::Command;

fn bench(seed: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["bench", "mixed", "--on", "sim", "--policy", "fifo,ideal"])
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
    // What is asked for is done: 80 % of the CPUs, every request answered, and none before its work is.
    for side in ["fifo", "ideal"] {
        assert_eq!(all(side, "errors"), 0.0);
        assert!((0.7..0.9).contains(&all(side, "cpu_share")));
        assert!(all(side, "mean_us") > 12_000.0);
    }
    assert!(all("ideal", "p99_us") < all("fifo", "p99_us"));
    assert_eq!(bench("1")["results"], first["results"]);
    assert_ne!(bench("2")["results"], first["results"]);
}
