//! The whole way from a scenario to its reports, for real, with the kernel's default on both sides: the
//! machinery is tested, so nothing here depends on how fast anything is.

use quell_bench::progress::Progress;
use quell_bench::report;
use quell_bench::result::{ALL, BenchResult, Metric};
use quell_bench::run::{BenchOptions, run, simulated};
use quell_bench::side::Side;
use quell_bench::workload::Interrupted;
use quell_scenario::Scenario;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SCENARIO: &str = r#"
name = "tiny"
[[tenant]]
name = "web"
load = { rate = 100.0, timeout_ms = 20000 }
[[tenant.thread]]
name = "main"
program = ["request", { run_us = 100 }, "respond"]
[[tenant]]
name = "spinner"
class = "batch"
[[tenant.thread]]
name = "spin"
program = [{ run_us = 1000 }]
"#;

#[expect(
    clippy::unwrap_used,
    reason = "a helper of tests, which clippy does not see"
)]
fn options(pairs: u32, seconds: f64) -> BenchOptions {
    let scenario = Scenario::parse(Path::new("tiny.toml"), SCENARIO).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_quell-workload")).to_path_buf();
    BenchOptions {
        sides: vec![Side::Default, Side::Default],
        warmup_seconds: 0.2,
        pairs,
        seconds,
        ..BenchOptions::new(scenario, program)
    }
}

#[test]
fn an_a_a_comparison_goes_all_the_way_to_its_reports() {
    let result = run(&options(2, 1.0), &Arc::default(), &Progress::silent()).unwrap();
    assert!(result.complete);
    assert_eq!(result.options.sides, ["default", "default-2"]);
    let order: Vec<_> = result
        .runs
        .iter()
        .map(|run| (run.pair, run.side.as_str()))
        .collect();
    let expected = [
        (0, "default"),
        (0, "default-2"),
        (1, "default-2"),
        (1, "default"),
    ];
    assert_eq!(order, expected);
    assert_eq!(result.runs[0].seed, result.runs[1].seed);
    assert_ne!(result.runs[0].seed, result.runs[2].seed);
    // Both sides of a pair got equal arrivals.
    let requests = |run: usize| {
        let web = result.runs[run]
            .tenants
            .iter()
            .find(|t| t.tenant == "web")
            .unwrap();
        (
            web.figures.requests + web.figures.errors,
            web.figures.p50_us,
        )
    };
    assert_eq!(requests(0).0, requests(1).0);
    assert!(requests(0).0 > 20 && requests(0).1.unwrap() >= 90.0);
    let spinner = result
        .results
        .iter()
        .find(|r| r.tenant == "spinner")
        .unwrap();
    assert!(spinner.figures.work_per_s.unwrap() > 0.0 && spinner.figures.cpu_share > 0.0);
    assert!(result.sides.iter().all(|side| side.busy_percent > 1.0));
    assert!(result.agent.is_none());
    let all = result
        .comparisons
        .iter()
        .find(|c| c.tenant == ALL && c.metric == Metric::MeanUs);
    assert!(all.unwrap().ci_low.unwrap() <= all.unwrap().ratio);

    let folder = tempfile::tempdir().unwrap();
    let (json, html) = (
        folder.path().join("r.json"),
        folder.path().join("deep/r.html"),
    );
    let files = report::Files {
        json: Some(&json),
        html: Some(&html),
        ..report::Files::default()
    };
    report::deliver(&result, files).unwrap();
    let read: BenchResult = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(read, result);
    assert!(std::fs::read_to_string(&html).unwrap().contains("spinner"));
}

#[test]
fn an_interrupt_ends_in_order_with_the_pairs_so_far() {
    let interrupt = Arc::new(AtomicBool::new(false));
    let options = options(1_000, 0.3);
    let worker = std::thread::spawn({
        let interrupt = interrupt.clone();
        move || run(&options, &interrupt, &Progress::silent())
    });
    // Long enough for a pair on any but a hopelessly busy machine; the benchmark may end with or without a
    // pair.
    std::thread::sleep(Duration::from_secs(4));
    interrupt.store(true, Ordering::Relaxed);
    match worker.join().unwrap() {
        Ok(result) => {
            assert!(!result.complete && result.runs.len() >= 2);
            assert!(
                result
                    .notes
                    .iter()
                    .any(|note| note.starts_with("Interrupted after"))
            );
            let error = report::deliver(&result, report::Files::default()).unwrap_err();
            assert!(error.is::<Interrupted>());
        }
        Err(error) => assert!(error.is::<Interrupted>(), "{error:#}"),
    }
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_starts() {
    let refused = |change: fn(&mut BenchOptions)| {
        let mut options = options(1, 1.0);
        change(&mut options);
        format!(
            "{:#}",
            run(&options, &Arc::default(), &Progress::silent()).unwrap_err()
        )
    };
    assert!(refused(|o| o.pairs = 0).contains("at least one pair"));
    assert!(refused(|o| o.seconds = f64::NAN).contains("seconds: NaN is outside"));
    assert!(refused(|o| o.warmup_seconds = -1.0).contains("warm-up seconds: -1"));
    assert!(refused(|o| o.sides.clear()).contains("at least one side"));
}

#[test]
fn threads_that_stand_still_on_the_simulator_are_named() {
    let text = r#"
name = "ring"
host = { cpus = 2 }
[[tenant]]
name = "pair"
class = "batch"
[[tenant.thread]]
name = "left"
program = [{ acquire = { name = "s", initial = 1 } }, { run_us = 10 }, { acquire = { name = "t", initial = 1 } }, { release = "t" }, { release = "s" }]
[[tenant.thread]]
name = "right"
program = [{ acquire = { name = "t" } }, { run_us = 10 }, { acquire = { name = "s" } }, { release = "s" }, { release = "t" }]
"#;
    let scenario = Scenario::parse(Path::new("ring.toml"), text).unwrap();
    let options = BenchOptions {
        sides: Side::parse_list("fifo,eevdf").unwrap(),
        pairs: 1,
        seconds: 1.0,
        ..BenchOptions::new(scenario, Path::new("unused").to_path_buf())
    };
    let result = simulated::run(&options, &AtomicBool::new(false), &Progress::silent());
    let error = format!("{:#}", result.unwrap_err());
    let expected = [
        "ring.toml",
        "tenant `pair`",
        "thread `left` waits for semaphore `t`",
        "thread `right` waits for semaphore `s`",
    ];
    for part in expected {
        assert!(error.contains(part), "{error}");
    }
}
