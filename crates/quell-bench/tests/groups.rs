//! Groups, and threads' CPUs: what scenarios say of them holds on the simulator and on this machine.

// clippy.toml allows it in tests, but does not know helpers of integration tests as such.
#![allow(clippy::unwrap_used)]

use quell_bench::progress::Progress;
use quell_bench::run::{BenchOptions, simulated};
use quell_bench::side::Side;
use quell_model::config::Scenario;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

const BUSY: &str = "program = [{ run_us = 1000 }]";

fn options(scenario: Scenario, sides: &str) -> BenchOptions {
    BenchOptions {
        sides: Side::parse_some(sides).unwrap(),
        pairs: 1,
        ..BenchOptions::new(scenario, PathBuf::from("quell"))
    }
}

fn scenario(text: &str) -> Scenario {
    Scenario::parse(Path::new("t.toml"), text).unwrap()
}

/// Percent of a CPU that each tenant gets on the simulator.
fn simulate(scenario: Scenario, side: &str) -> BTreeMap<String, f64> {
    let options = options(scenario, side);
    let result = simulated::run(&options, &AtomicBool::new(false), &Progress::silent()).unwrap();
    let cpus = f64::from(result.host.cpus);
    let of = |it: &quell_bench::result::SideResult| {
        let share = 100.0 * cpus * it.figures.cpu_share;
        (it.tenant.to_string(), share)
    };
    result.results.iter().map(of).collect()
}

#[track_caller]
fn close(got: f64, expected: f64, tolerance: f64) {
    assert!(
        (got - expected).abs() < tolerance,
        "{got:.2}, expected {expected}"
    );
}

#[test]
fn the_papers_configurations_share_as_measured() {
    // Percent of a CPU for T0 and T1, where 100 would be right. `group` and `individual` as on Debian's kernels 7.2.13 and
    // 6.1 (see quell-sim's tests of its fair classes). The others: T0 shares a CPU with T2, and T1 gets what T3 leaves; and
    // nested groups weigh on a CPU what groups of the same threads do.
    for (name, side, first, expected) in [
        ("none", "eevdf", ["t0", "t1"], 126.0),
        ("group", "eevdf", ["p0", ""], 118.3),
        ("group", "cfs", ["p0", ""], 109.0),
        ("individual", "eevdf", ["t0", "t1"], 126.2),
        ("individual", "cfs", ["t0", "t1"], 119.0),
        ("dedicated", "eevdf", ["p0", ""], 100.0),
        ("nested", "eevdf", ["t0", "t1"], 118.3),
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/groups");
        let file = folder.join(name).with_extension("toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let shares = simulate(Scenario::parse(&file, &text).unwrap(), side);
        println!("{name}, {side}: {shares:.1?}");
        let got = first.iter().filter_map(|tenant| shares.get(*tenant));
        close(got.sum(), expected, 1.5);
    }
}

#[test]
fn nested_groups_share_by_weight_on_the_simulator() {
    let scenario = scenario(&format!(
        r#"
name = "t"
seconds = 10
[host]
cpus = 1
[[group]]
name = "low"
within = "middle"
[[group]]
name = "middle"
weight = 100
[[group]]
name = "high"
weight = 300
[[tenant]]
name = "heavy"
kind = "container"
class = "batch"
weight = 300
within = "middle"
[[tenant.thread]]
name = "t"
{BUSY}
[[tenant]]
name = "pair"
count = 2
class = "batch"
within = "low"
[[tenant.thread]]
name = "t"
{BUSY}
[[tenant]]
name = "rest"
class = "batch"
within = "high"
[[tenant.thread]]
name = "t"
count = 2
{BUSY}
"#
    ));
    for side in ["eevdf", "eevdf-6.12", "cfs"] {
        let shares = simulate(scenario.clone(), side);
        println!("{side}: {shares:.1?}");
        close(shares["rest"], 75.0, 1.0);
        close(shares["heavy"], 18.75, 1.0);
        // Two processes in one group, which is one of two in its group.
        close(shares["pair-0"], 3.125, 0.5);
        close(shares["pair-1"], 3.125, 0.5);
    }
}

#[test]
fn threads_stay_on_their_cpus_on_the_simulator() {
    let scenario = scenario(&format!(
        r#"
name = "t"
seconds = 2
[host]
cpus = 4
[[tenant]]
name = "a"
class = "batch"
cpus = [0]
[[tenant.thread]]
name = "t"
count = 3
{BUSY}
[[tenant.thread]]
name = "u"
cpus = "1"
{BUSY}
[[tenant]]
name = "b"
kind = "container"
class = "batch"
cpus = "2"
[[tenant.thread]]
name = "t"
count = 2
{BUSY}
[[tenant]]
name = "v"
kind = "vm"
vcpus = 2
class = "batch"
cpus = [3]
[[tenant.thread]]
name = "t"
count = 2
{BUSY}
"#
    ));
    for side in ["eevdf", "sched", "credit2", "ideal"] {
        let shares = simulate(scenario.clone(), side);
        println!("{side}: {shares:.1?}");
        close(shares["a"], 200.0, 3.0);
        close(shares["b"], 100.0, 2.0);
        close(shares["v"], 100.0, 2.0);
    }
}

#[test]
fn what_the_simulator_cannot_do_is_said() {
    let with = |tenant: &str, rest: &str, sides: &str| {
        let text = format!(
            "name = \"t\"\n[host]\ncpus = 2\n[[tenant]]\nname = \"a\"\nclass = \"batch\"\n{tenant}\n\
             [[tenant.thread]]\nname = \"t\"\n{BUSY}\n{rest}"
        );
        let error = simulated::check(&options(scenario(&text), sides)).unwrap_err();
        error.to_string()
    };
    let max = "max = { quota_ms = 5 }";
    let message = with(&format!("kind = \"container\"\n{max}"), "", "eevdf");
    assert!(
        message.contains("`tenant[0].max`: the simulator does not limit"),
        "{message}"
    );
    let group = format!("[[group]]\nname = \"g\"\n{max}");
    let message = with("within = \"g\"", &group, "eevdf");
    assert!(
        message.contains("`group[0].max`: the simulator does not limit"),
        "{message}"
    );
    let message = with("cpus = [0]", "", "eevdf,isolation");
    assert!(
        message.contains("`tenant[0].cpus`: side `isolation`"),
        "{message}"
    );
}
