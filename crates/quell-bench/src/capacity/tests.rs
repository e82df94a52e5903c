//! Capacities that follow from theory, and options that are refused.

use super::*;
use quell_scenario::Scenario;
use std::path::Path;

/// One CPU that runs nothing but the tenants: `count` services of 1000 requests a second, each of 100 µs in
/// the mean, exponentially distributed, with as many threads as can matter.
fn services(extra: &str, rest: &str) -> Scenario {
    let text = format!(
        r#"
name = "x"
seconds = 6
warmup_seconds = 1
pairs = 2
[host]
cpus = 1
[host.costs]
switch_us = 0
wake_us = 0
kick_us = 0
interrupt_us = 0
request_us = 0
tick_us = 0
hz = 0
migrate_us = 0
migrate_far_us = 0
noise_us = 0
noise_per_s = 0
[[tenant]]
name = "svc"
{extra}
load = {{ rate = 1000.0 }}
[[tenant.thread]]
name = "worker"
count = 24
program = ["request", {{ run_us = {{ exponential = 100 }} }}, "respond"]
{rest}
"#
    );
    Scenario::parse(Path::new("x.toml"), &text).unwrap()
}

fn options(scenario: Scenario, sides: &str) -> CapacityOptions {
    let mut bench = BenchOptions::new(scenario, "none".into());
    bench.sides = Side::parse_list(sides).unwrap();
    CapacityOptions {
        bench,
        tenant: None,
        most: None,
    }
}

fn found(options: &CapacityOptions) -> anyhow::Result<Capacity> {
    run(options, &AtomicBool::new(false), &Progress::silent())
}

/// First come, first served, M/M/1: the 99th percentile is ln(100) / (mu - lambda). At 7 x 1000 requests a
/// second that is 1.54 ms, at 8 x 1000 it is 2.30 ms.
#[test]
fn the_greatest_number_is_the_one_of_the_closed_form() {
    let objective_ms = 1.9;
    let mu = 10_000.0;
    let theory = ((mu - 100f64.ln() / (objective_ms / 1e3)) / 1000.0).floor() as u32;
    assert_eq!(theory, 7);
    let mut scenario = services("", "");
    set_objectives(&mut scenario, objective_ms);
    let capacity = found(&options(scenario, "fifo")).unwrap();
    let fifo = &capacity.sides[0];
    assert!(fifo.fits.abs_diff(theory) <= 1, "{fifo:#?}");
    assert!(fifo.low <= fifo.fits && fifo.fits <= fifo.high);
    let limit = fifo.limit.as_ref().unwrap();
    assert!(limit.p99_us > limit.objective_us && limit.tenant.starts_with("svc-"));
    let at = fifo.at(fifo.fits).unwrap();
    assert!(
        (at.busy_percent - 10.0 * f64::from(fifo.fits)).abs() < 3.0,
        "{at:?}"
    );
    assert!((fifo.cpus_each.unwrap() - 1.0 / f64::from(fifo.fits)).abs() < 1e-12);
    assert!(capacity.complete && capacity.host.cpus == 1);
}

#[test]
fn only_one_tenant_grows_and_batch_work_is_reported() {
    let rest = "[[tenant]]\nname = \"batch\"\nclass = \"batch\"\n[[tenant.thread]]\nname = \"w\"\nprogram = [{ run_us = 100 }]";
    let mut scenario = services("objective = { p99_ms = 100.0 }", rest);
    scenario.seconds = 0.5;
    let mut options = options(scenario, "eevdf,sched");
    (options.tenant, options.most) = (Some(0), Some(4));
    let capacity = found(&options).unwrap();
    let numbers: Vec<Vec<u32>> = (capacity.sides.iter())
        .map(|side| side.points.iter().map(|point| point.number).collect())
        .collect();
    assert_eq!(numbers, [[1, 2, 4], [1, 2, 4]]);
    for side in &capacity.sides {
        assert!(side.unbounded && side.fits == 4 && side.limit.is_none());
        assert_eq!(side.at(4).unwrap().tenants, 5);
        // Ten rounds of 100 µs in each ms that the services leave.
        let work = side.at(4).unwrap().work_per_s.unwrap();
        assert!((5_000.0..6_500.0).contains(&work), "{work}");
    }
    assert_eq!(capacity.tenant.as_deref(), Some("svc"));
    assert!(
        capacity
            .notes
            .iter()
            .any(|note| note.contains("still fits 4"))
    );
    // Equal seeds give equal results; another seed gives another. This JSON leaves out when it was measured.
    let json = |capacity: &Capacity| serde_json::to_string(&capacity.sides).unwrap();
    assert_eq!(json(&found(&options).unwrap()), json(&capacity));
    options.bench.seed = 2;
    assert_ne!(json(&found(&options).unwrap()), json(&capacity));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let message = |options: &CapacityOptions| found(options).unwrap_err().to_string();
    let missing = options(services("", ""), "fifo");
    let text = message(&missing);
    assert!(
        text.contains("tenant[0].objective") && text.contains("`svc`"),
        "{text}"
    );
    assert!(text.contains("--objective p99_ms=10"), "{text}");
    let mut much = options(
        services("count = 3\nobjective = { p99_ms = 1.0 }", ""),
        "fifo",
    );
    much.most = Some(400);
    let text = message(&much);
    assert!(
        text.contains("--most") && text.contains("1 to 341"),
        "{text}"
    );
    let elsewhere = options(services("objective = { p99_ms = 1.0 }", ""), "scx_rusty");
    assert!(
        message(&elsewhere).contains("`scx_rusty`"),
        "{}",
        message(&elsewhere)
    );
}

#[test]
fn an_interrupt_before_the_first_number_leaves_nothing() {
    let options = options(services("objective = { p99_ms = 1.0 }", ""), "fifo");
    let error = run(&options, &AtomicBool::new(true), &Progress::silent()).unwrap_err();
    assert!(error.is::<Interrupted>(), "{error:#}");
}

/// A made-up capacity.
pub(crate) fn sample() -> Capacity {
    let point = |number: u32, passed: u32| CapacityPoint {
        number,
        tenants: number,
        passed,
        pairs: 5,
        worst: (0..5)
            .map(|pair| {
                if pair < passed {
                    0.7
                } else {
                    1.0 + 0.2 * f64::from(pair)
                }
            })
            .collect(),
        busy_percent: f64::from(3 * number),
        work_per_s: None,
        work_unit: None,
        result: None,
    };
    let points = |all: &[(u32, u32)]| all.iter().map(|&(n, passed)| point(n, passed)).collect();
    let side = |name: &str, (fits, low, high): (u32, u32, u32), limit, points| SideCapacity {
        name: name.to_string(),
        fits,
        low,
        high,
        unbounded: false,
        limit,
        cpus_each: Some(8.0 / f64::from(fits)),
        points,
    };
    let limit = Limit {
        number: 24,
        tenant: "svc-3".to_string(),
        p99_us: 12_000.0,
        objective_us: 10_000.0,
    };
    let sched = points(&[
        (16, 5),
        (19, 5),
        (20, 4),
        (23, 5),
        (25, 1),
        (26, 0),
        (32, 0),
    ]);
    let eevdf = points(&[(16, 5), (18, 5), (19, 0), (20, 0), (32, 0)]);
    Capacity {
        schema: SCHEMA,
        quell_version: "0".to_string(),
        scenario: "shop".to_string(),
        started_unix_s: 0,
        complete: true,
        host: Host {
            cpus: 8,
            model: "simulated".to_string(),
            kernel: "quell-sim".to_string(),
            os: "none".to_string(),
            memory_bytes: 0,
            virtualized: false,
            scheduler: Vec::new(),
        },
        seed: 1,
        pairs: 5,
        seconds: 10.0,
        warmup_seconds: 2.0,
        set: Vec::new(),
        tenant: None,
        most: 1024,
        mix: vec![Share {
            tenant: "svc".to_string(),
            class: TenantClass::Latency,
            count: 1,
            grows: true,
            p99_ms: Some(10.0),
        }],
        sides: vec![
            side("eevdf", (18, 18, 18), None, eevdf),
            side("sched", (23, 19, 25), Some(limit), sched),
        ],
        notes: Vec::new(),
    }
}
