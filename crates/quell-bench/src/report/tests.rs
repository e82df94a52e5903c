//! Every report of one fixed result.

use super::*;
use crate::result::*;
use quell_model::config::TenantClass;
use std::collections::BTreeMap;

fn latency_figures(scale: f64) -> Figures {
    Figures {
        mean_us: Some(800.0 * scale),
        p50_us: Some(500.0 * scale),
        p99_us: Some(4_000.0 * scale),
        p999_us: Some(9_000.0 * scale),
        max_us: Some(12_000.0 * scale),
        requests_per_s: Some(2_000.0),
        work_per_s: None,
        work_unit: None,
        cpu_share: 0.125,
        programs: BTreeMap::new(),
        requests: 16_000,
        errors: 0,
        scheduling: None,
        guest: None,
        late_seconds: None,
    }
}

fn batch_figures(scale: f64) -> Figures {
    Figures {
        work_per_s: Some(5.0e6 * scale),
        work_unit: Some("bytes".into()),
        cpu_share: 0.5,
        ..Figures::default()
    }
}

/// Two latency tenants and a batch tenant, two sides, three pairs; names that must be escaped.
pub(crate) fn sample() -> BenchResult {
    let sides = ["default", "quell"].map(String::from);
    let lines: [(&str, TenantClass); 5] = [
        ("web", TenantClass::Latency),
        ("<b>&\"cache'", TenantClass::Latency),
        ("squeeze", TenantClass::Batch),
        (ALL, TenantClass::Latency),
        (ALL, TenantClass::Batch),
    ];
    let figures = |class, side: &str, wobble: f64| match (class, side) {
        (TenantClass::Latency, "default") => latency_figures(1.0),
        (TenantClass::Latency, _) => latency_figures(0.5 * wobble),
        (TenantClass::Batch, "default") => batch_figures(1.0),
        (TenantClass::Batch, _) => batch_figures(0.98 * wobble),
    };
    let wobble = |pair: u32| [0.95, 1.0, 1.06][pair as usize];
    let agent = AgentCost {
        cpu_percent: 0.42,
        rss_bytes: 15 << 20,
    };
    let mut runs = Vec::new();
    for pair in 0..3 {
        for position in 0..2 {
            let side = &sides[(pair + position) as usize % 2];
            let quell = side == "quell";
            runs.push(Run {
                pair,
                position,
                side: side.clone(),
                seed: crate::stats::pair_seed(1, pair),
                busy_percent: 93.0,
                steal_percent: 0.25,
                idle_cpus: Default::default(),
                switches_per_s: None,
                held_cpus: None,
                pauses: Some(Pauses {
                    count: u32::from(quell),
                    total_ms: if quell { 48.0 } else { 0.0 },
                    requests_left_out: if quell { 400 } else { 0 },
                }),
                tenants: lines
                    .iter()
                    .map(|&(tenant, class)| TenantRun {
                        tenant: tenant.into(),
                        class,
                        figures: figures(class, side, wobble(pair)),
                    })
                    .collect(),
                agent: quell.then_some(agent),
            });
        }
    }
    let mut results = Vec::new();
    let mut comparisons = Vec::new();
    for &(tenant, class) in &lines {
        for side in &sides {
            let figures = figures(class, side, 1.0);
            results.push(SideResult {
                side: side.clone(),
                tenant: tenant.into(),
                class,
                figures,
            });
        }
        for metric in Metric::ALL {
            let value = |side: &str, pair| metric.of(&figures(class, side, wobble(pair)));
            let pairs: Vec<(f64, f64)> = (0..3)
                .filter_map(|p| value("default", p).zip(value("quell", p)))
                .collect();
            let pool = |times: &[u32]| {
                let counted = pairs.iter().zip(times).filter(|&(_, &n)| n > 0);
                let logs = counted.map(|(&(b, s), &n)| (s / b).ln() * f64::from(n));
                let n: u32 = times.iter().sum();
                (!pairs.is_empty()).then(|| (logs.sum::<f64>() / f64::from(n)).exp())
            };
            let Some(estimate) = crate::stats::pooled_ratio(pairs.len(), 1, pool) else {
                continue;
            };
            comparisons.push(Comparison {
                tenant: tenant.into(),
                class,
                metric,
                baseline: "default".into(),
                side: "quell".into(),
                ratio: estimate.ratio,
                ci_low: estimate.interval.map(|i| i.0),
                ci_high: estimate.interval.map(|i| i.1),
                pairs: estimate.pairs as u32,
            });
        }
    }
    let curve = |side: &str, tenant: &str, scale: f64| LatencyCurve {
        side: side.into(),
        tenant: tenant.into(),
        points: (0..=96)
            .map(|n| {
                let nines = f64::from(n) / 24.0;
                (
                    1.0 - 10f64.powf(-nines),
                    scale * (80.0 + 300.0 * nines.powf(2.2)),
                )
            })
            .collect(),
    };
    let mut latency = Vec::new();
    for tenant in ["web", "<b>&\"cache'", ALL] {
        latency.push(curve("default", tenant, 2.0));
        latency.push(curve("quell", tenant, 1.0));
    }
    let track = |tenant: &str, tid: u32, step: f64| ThreadTrack {
        tenant: tenant.into(),
        tid,
        name: format!("worker-{tid}"),
        points: (0u32..60)
            .map(|n| TrackPoint {
                at_ms: u64::from(n) * 80,
                latency_us: Some((3_000.0 * step.powi(n as i32)).clamp(100.0, 100_000.0)),
                weight: Some((1024.0 * step.powf(f64::from(n) / 8.0)).clamp(100.0, 3_000.0)),
            })
            .collect(),
    };
    let change = |tenant: &str, rule: &str, count| ChangeCount {
        at_ms: 80,
        tenant: tenant.into(),
        rule: rule.into(),
        count,
    };
    let wait = |tenant: &str, cause: &str, ready_ms| WaitCause {
        tenant: tenant.into(),
        cause: cause.into(),
        ready_ms,
    };
    BenchResult {
        schema: SCHEMA,
        quell_version: "0.1.0".into(),
        scenario: "co-located".into(),
        caveat: String::new(),
        substrate: Substrate::Host,
        started_unix_s: 1_780_000_000,
        complete: true,
        lab: None,
        host: Host {
            cpus: 2,
            model: "Example CPU @ 2.40GHz".into(),
            kernel: "6.18.0".into(),
            os: "Debian GNU/Linux 13".into(),
            memory_bytes: 8 << 30,
            virtualized: true,
            scheduler: vec!["autogroup=1".into()],
        },
        options: Options {
            seed: 1,
            pairs: 3,
            seconds: 8.0,
            warmup_seconds: 2.0,
            set: Vec::new(),
            sides: sides.to_vec(),
            confidence: 0.95,
            resamples: crate::stats::RESAMPLES,
        },
        results,
        comparisons,
        agent: Some(agent),
        sides: sides
            .iter()
            .map(|side| SideSummary {
                side: side.clone(),
                busy_percent: 93.0,
                steal_percent: 0.25,
                idle_cpus: Default::default(),
                switches_per_s: None,
                held_cpus: None,
                agent: (side == "quell").then_some(agent),
            })
            .collect(),
        runs,
        latency,
        decisions: vec![AgentLog {
            pair: 0,
            side: "quell".into(),
            period_ms: 80.0,
            effects: Vec::new(),
            changes: vec![
                change("web", "latency_lowered", 41),
                change("web", "waker_chased", 3),
                change("squeeze", "slice_depleted", 25),
            ],
            threads: vec![
                track("web", 101, 0.93),
                track("web", 102, 0.97),
                track("<b>&\"cache'", 201, 0.9),
                track("squeeze", 301, 1.05),
            ],
            waits: vec![
                wait("web", "own", 40.0),
                wait("web", "squeeze", 310.0),
                wait("web", "<b>&\"cache'", 22.0),
                wait("web", "host", 12.0),
                wait("squeeze", "web", 90.0),
                wait("squeeze", "own", 10.0),
            ],
        }],
        notes: vec!["Not available here: <custom> slices.".into()],
    }
}

/// The fixed result, shortened so that its JSON can be read as a file.
fn small() -> BenchResult {
    let mut result = sample();
    result.runs.truncate(2);
    for curve in &mut result.latency {
        curve.points = curve.points.iter().copied().step_by(24).collect();
    }
    result.latency.truncate(2);
    for track in &mut result.decisions[0].threads {
        track.points.truncate(2);
    }
    result
}

#[test]
fn json_round_trips_and_matches_the_golden_file() {
    let result = small();
    let text = json(&result).unwrap();
    assert_eq!(serde_json::from_str::<BenchResult>(&text).unwrap(), result);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/result.json");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    // Compared after parsing: the last digit of a computed float is not what this test is about, and an old
    // file must stay readable.
    let golden: BenchResult = serde_json::from_str(&golden).unwrap();
    assert_eq!(golden.results, result.results);
    assert_eq!(golden.runs, result.runs);
    assert_eq!(golden.comparisons.len(), result.comparisons.len());
    for (old, new) in golden.comparisons.iter().zip(&result.comparisons) {
        assert_eq!((&old.tenant, old.metric), (&new.tenant, new.metric));
        assert!((old.ratio - new.ratio).abs() < 1e-9);
        assert!((old.ci_low.unwrap() - new.ci_low.unwrap()).abs() < 1e-9);
    }
}

/// The names that design and documentation promise stand at the places they promise.
#[test]
fn json_has_the_promised_names() {
    let value: serde_json::Value = serde_json::from_str(&json(&sample()).unwrap()).unwrap();
    assert_eq!(value["schema"], 1);
    assert_eq!(value["substrate"], "host");
    let first = &value["results"][0];
    for name in [
        "side",
        "tenant",
        "class",
        "mean_us",
        "p50_us",
        "p99_us",
        "p999_us",
        "requests_per_s",
        "cpu_share",
    ] {
        assert!(!first[name].is_null(), "{name}");
    }
    assert_eq!(first["class"], "latency");
    let first = &value["comparisons"][0];
    for name in [
        "tenant", "metric", "baseline", "side", "ratio", "ci_low", "ci_high",
    ] {
        assert!(!first[name].is_null(), "{name}");
    }
    assert_eq!(first["metric"], "mean_us");
    assert_eq!(value["agent"]["cpu_percent"], 0.42);
    assert_eq!(value["agent"]["rss_bytes"], 15 << 20);
    assert!(
        value["results"]
            .as_array()
            .unwrap()
            .iter()
            .any(|row| row["tenant"] == "*")
    );
}

#[test]
fn the_table_says_what_happened() {
    let text = text(&sample(), false);
    assert!(!text.contains('\u{1b}'), "no colours unless asked for");
    for part in [
        "Scenario `co-located` on 2 CPUs",
        "3 interleaved pairs of 8 s each after 2 s of warm-up; seed 1",
        "all latency",
        "400 µs",
        "−50 % (−56 to −43 %)",
        "5.00 MB/s",
        "Mean latency of the latency-critical tenants: 50 % lower under quell than under default \
         (95 % interval 43 to 56 %).",
        "Work done by the batch tenants: no difference shown; 1.8 % less",
        "CPUs busy: 93 % under default, 93 % under quell; taken by the hypervisor: at most 0.2 %.",
        "The agent itself used 0.42 % of one CPU and at most 15.0 MiB of memory.",
        "Note: Not available here",
    ] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    assert!(super::text(&sample(), true).contains('\u{1b}'));
}

#[test]
fn the_page_stands_alone_and_is_escaped() {
    let page = html(&sample()).unwrap();
    if let Some(path) = std::env::var_os("QUELL_SAMPLE_REPORT") {
        std::fs::write(path, &page).unwrap();
    }
    assert!(!page.contains("<b>"), "a tenant's name became markup");
    assert!(page.contains("&lt;b&gt;&amp;&quot;cache&#39;"));
    assert!(page.contains("&lt;custom&gt;"));
    for outside in ["<script", "<link", "<img", "@import", "url(", "src="] {
        assert!(!page.contains(outside), "{outside}");
    }
    // xmlns is a name, not an address that is fetched.
    assert!(page.matches("http").count() == page.matches("xmlns=\"http").count());
    // 3 tenants' percentiles, 3 metrics' pairs, 2 timelines.
    assert_eq!(page.matches("<svg ").count(), 8);
    assert_eq!(
        page.matches("<section>").count(),
        page.matches("</section>").count()
    );
}

#[test]
fn what_hides_other_text_is_written_out_on_the_page() {
    let escaped = super::words::escape("a\u{1b}[2J\u{202e}<b>\nc");
    assert_eq!(escaped, "a\\x1b[2J\\u{202e}&lt;b&gt;\nc");
}

#[test]
fn a_result_with_next_to_nothing_still_renders() {
    let mut result = sample();
    result.comparisons.clear();
    result.runs.clear();
    result.latency.clear();
    result.decisions.clear();
    result.agent = None;
    assert!(text(&result, false).contains("all latency"));
    assert!(html(&result).unwrap().contains("</html>"));
}
