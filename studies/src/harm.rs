//! Whether a side does harm: every scenario of the repository that tenants share, against the kernel's
//! default (`quell-studies harm`).
//!
//! With `--scheduling` each row also has figures that could stand for latency without asking the application
//! (docs/design/guard.md): whether the guard's figure moves as the tenants' true latency does.

use quell_bench::report;
use quell_bench::result::{ALL, BenchResult, Comparison, Metric, SideResult};
use quell_model::config::TenantClass;
use quell_scenario::{Scenario, ScenarioTenant};
use serde::{Deserialize, Serialize};

/// The mean latency may grow by this factor.
pub const MEAN: f64 = 1.03;
/// The 99th percentile of latency may grow by this factor.
pub const P99: f64 = 1.05;
/// Requests answered and batch work may shrink to this part.
pub const WORK: f64 = 0.97;
/// Where latency moves by less than this part, a figure that should follow it shows nothing.
const MOVES: f64 = 0.05;

/// The scenarios, each with a setting or none: the sweeps at 1, 2 and 4 threads for each CPU.
pub const CASES: [(&str, Option<&str>); 24] = [
    ("fork-join-short-60", None),
    ("fork-join-short-80", None),
    ("fork-join-long-60", None),
    ("fork-join-long-80", None),
    ("mixed", None),
    ("image-beside-key-value", None),
    ("matrix-beside-key-value", None),
    ("spinners-short", None),
    ("build", None),
    ("pipeline-sweep", Some("tenant.svc.count=2")),
    ("pipeline-sweep", Some("tenant.svc.count=4")),
    ("pipeline-sweep", Some("tenant.svc.count=8")),
    ("key-value-sweep", Some("tenant.svc.count=2")),
    ("key-value-sweep", Some("tenant.svc.count=4")),
    ("key-value-sweep", Some("tenant.svc.count=8")),
    ("image-sweep", Some("tenant.svc.count=2")),
    ("image-sweep", Some("tenant.svc.count=4")),
    ("image-sweep", Some("tenant.svc.count=8")),
    ("memcached-sweep", Some("tenant.svc.count=2")),
    ("memcached-sweep", Some("tenant.svc.count=4")),
    ("memcached-sweep", Some("tenant.svc.count=8")),
    ("nginx-sweep", Some("tenant.svc.count=2")),
    ("nginx-sweep", Some("tenant.svc.count=4")),
    ("nginx-sweep", Some("tenant.svc.count=8")),
];

/// The result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Harm {
    /// The version of this JSON format.
    pub schema: u32,
    /// Quell's version.
    pub quell_version: String,
    /// A row for each scenario and each side but the first.
    pub rows: Vec<Row>,
}

/// A scenario under a side, against the first side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The scenario, with its setting.
    pub scenario: String,
    /// The side.
    pub side: String,
    /// Mean latency of all tenants of class latency; `null`: there are none.
    pub mean: Option<Change>,
    /// 99th percentile of their latency.
    pub p99: Option<Change>,
    /// Requests that they answered per second.
    pub requests: Option<Change>,
    /// Work of batch tenants per second.
    pub work: Option<Change>,
    /// Whether all changes are within the limits.
    pub holds: bool,
    /// Figures that could stand for latency; `null` without `--scheduling`.
    pub figures: Option<Figures>,
}

/// A figure over the first side's, and its interval where there are two or more pairs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The ratio of the figures, each pooled over all pairs.
    pub ratio: f64,
    /// The lower end of its interval.
    pub low: Option<f64>,
    /// The upper end of its interval.
    pub high: Option<f64>,
}

/// Ratios to the first side, geometric means over the tenants of class latency.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// True mean latency, as load generators measure it.
    pub latency: f64,
    /// Mean length of busy periods.
    pub busy_period: f64,
    /// Mean run delay of each activation.
    pub run_delay: f64,
    /// Time in which some threads are ready while other threads of the tenant are blocked.
    pub occasions: f64,
}

/// The rows of a scenario's result, one for each side but the first.
pub fn rows(scenario: &str, result: &BenchResult) -> Vec<Row> {
    let row = |side: &String| {
        let find = |class: TenantClass, metric: Metric| {
            let same = |it: &&Comparison| {
                it.side == *side && it.tenant == ALL && it.class == class && it.metric == metric
            };
            result.comparisons.iter().find(same).map(|it| Change {
                ratio: it.ratio,
                low: it.ci_low,
                high: it.ci_high,
            })
        };
        let mean = find(TenantClass::Latency, Metric::MeanUs);
        let p99 = find(TenantClass::Latency, Metric::P99Us);
        let requests = find(TenantClass::Latency, Metric::RequestsPerS);
        let work = find(TenantClass::Batch, Metric::WorkPerS);
        Row {
            scenario: scenario.to_string(),
            side: side.clone(),
            mean,
            p99,
            requests,
            work,
            holds: within(mean, p99, [requests, work]),
            figures: figures(result, side),
        }
    };
    result.options.sides.iter().skip(1).map(row).collect()
}

/// Whether every change that there is is within its limit.
fn within(mean: Option<Change>, p99: Option<Change>, work: [Option<Change>; 2]) -> bool {
    let at_most = |change: Option<Change>, limit| change.is_none_or(|it| it.ratio <= limit);
    let enough = work.iter().flatten().all(|it| it.ratio >= WORK);
    at_most(mean, MEAN) && at_most(p99, P99) && enough
}

fn figures(result: &BenchResult, side: &str) -> Option<Figures> {
    let base = result.options.sides.first()?;
    let of = |side: &str, tenant: &str| {
        let mut results = result.results.iter();
        results.find(|it| it.side == side && it.tenant == tenant)
    };
    let ratio = |figure: &dyn Fn(&SideResult) -> Option<f64>| {
        let tenants = result
            .results
            .iter()
            .filter(|it| it.side == *base && it.tenant != ALL && it.class == TenantClass::Latency);
        let logs = tenants.filter_map(|it| {
            let (without, with) = (figure(it)?, figure(of(side, &it.tenant)?)?);
            (without > 0.0 && with > 0.0).then(|| (with / without).ln())
        });
        let logs: Vec<f64> = logs.collect();
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    };
    Some(Figures {
        latency: ratio(&|it| it.figures.mean_us)?,
        busy_period: ratio(&|it| it.figures.scheduling.as_ref()?.busy_period_mean_us)?,
        run_delay: ratio(&|it| it.figures.scheduling.as_ref()?.run_delay_mean_us)?,
        occasions: ratio(&|it| {
            let times = &it.figures.scheduling.as_ref()?.ready_while_blocked_us;
            Some(times.iter().skip(1).sum())
        })?,
    })
}

impl Harm {
    /// The result of these rows.
    pub fn new(rows: Vec<Row>) -> Harm {
        Harm {
            schema: 1,
            quell_version: env!("CARGO_PKG_VERSION").to_string(),
            rows,
        }
    }

    /// Whether there are rows, and none is beyond its limits.
    pub fn holds(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|row| row.holds)
    }
}

/// The result as a table for terminals.
pub fn table(harm: &Harm) -> String {
    let watched = harm.rows.iter().any(|row| row.figures.is_some());
    let mut header = vec![
        "scenario",
        "side",
        "mean",
        "p99",
        "requests",
        "batch work",
        "",
    ];
    if watched {
        header.extend(["latency", "busy period", "run delay", "occasions"]);
    }
    let mut table = report::table(false, &header);
    for row in &harm.rows {
        let cell = |change: Option<Change>| change.map_or("-".into(), words);
        let mut cells = vec![
            row.scenario.clone(),
            row.side.clone(),
            cell(row.mean),
            cell(row.p99),
            cell(row.requests),
            cell(row.work),
            if row.holds { "holds" } else { "HARMS" }.to_string(),
        ];
        if watched {
            let of = |figure: fn(&Figures) -> f64| {
                row.figures
                    .as_ref()
                    .map_or("-".into(), |it| report::change(figure(it)))
            };
            cells.extend([
                of(|it| it.latency),
                of(|it| it.busy_period),
                of(|it| it.run_delay),
                of(|it| it.occasions),
            ]);
        }
        table.add_row(cells);
    }
    let held = harm.rows.iter().filter(|row| row.holds).count();
    let mut text = format!(
        "{table}\n{held} of {} hold: mean at most {}, p99 at most {}, requests and batch work at least {}\n",
        harm.rows.len(),
        report::change(MEAN),
        report::change(P99),
        report::change(WORK)
    );
    if watched {
        let agree = |name: &str, figure: fn(&Figures) -> f64| {
            let (agree, all) = agreement(harm, figure);
            format!("{name} {agree} of {all}")
        };
        let agree = [
            agree("busy periods", |it| it.busy_period),
            agree("run delay", |it| it.run_delay),
            agree("occasions", |it| it.occasions),
        ];
        text.push_str(&format!(
            "same sign as latency, where that moves by more than 5 %: {}\n",
            agree.join(", ")
        ));
    }
    text
}

/// In how many rows a figure moves as latency does, of how many rows in which latency moves.
fn agreement(harm: &Harm, figure: fn(&Figures) -> f64) -> (usize, usize) {
    let figures = harm.rows.iter().filter_map(|row| row.figures.as_ref());
    let moved: Vec<&Figures> = figures
        .filter(|it| (it.latency - 1.0).abs() > MOVES)
        .collect();
    let agree = moved
        .iter()
        .filter(|it| (figure(it) > 1.0) == (it.latency > 1.0));
    (agree.count(), moved.len())
}

/// A change in words: `+3 % (−1 to +7 %)`.
fn words(change: Change) -> String {
    let ratio = report::change(change.ratio);
    match change.low.zip(change.high) {
        Some((low, high)) => format!("{ratio} ({})", report::interval(low, high)),
        None => ratio,
    }
}

/// Settings with which a scenario loads a real machine of `cpus` CPUs as it loads its own host: rates that
/// are given for all CPUs of that host are scaled by the number of CPUs.
pub fn rates_for(scenario: &Scenario, cpus: usize) -> Vec<String> {
    let Some(host) = &scenario.host else {
        return Vec::new();
    };
    let part = cpus as f64 / host.topology().cpus.len() as f64;
    let rate = |tenant: &ScenarioTenant| {
        let load = tenant.load.as_ref()?;
        let rate = load.rate.filter(|_| load.busy_percent.is_none())? * part;
        Some(format!("tenant.{}.load.rate={rate}", tenant.spec.name))
    };
    scenario.tenants.iter().filter_map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(mean: f64, p99: f64, work: f64, figures: Option<[f64; 4]>) -> Row {
        let change = |ratio| {
            Some(Change {
                ratio,
                low: None,
                high: None,
            })
        };
        Row {
            scenario: "mixed".into(),
            side: "quell".into(),
            mean: change(mean),
            p99: change(p99),
            requests: change(1.0),
            work: change(work),
            holds: within(change(mean), change(p99), [change(1.0), change(work)]),
            figures: figures.map(|[latency, busy_period, run_delay, occasions]| Figures {
                latency,
                busy_period,
                run_delay,
                occasions,
            }),
        }
    }

    #[test]
    fn a_scenario_asks_as_much_of_two_cpus_as_of_its_eight() {
        let text = "name = \"x\"\n[host]\ncpus = 8\n[[tenant]]\nname = \"a\"\nload = { rate = 20.0 }\n\
             [[tenant.thread]]\nname = \"t\"\nprogram = [\"request\", { run_us = 100 }, \"respond\"]\n";
        let scenario = Scenario::parse(std::path::Path::new("x.toml"), text).unwrap();
        assert_eq!(rates_for(&scenario, 2), ["tenant.a.load.rate=5"]);
        assert_eq!(rates_for(&scenario, 8), ["tenant.a.load.rate=20"]);
    }

    #[test]
    fn a_table_says_what_harms_and_which_figures_follow_latency() {
        let harm = Harm::new(vec![
            row(0.8, 0.9, 1.0, Some([0.8, 0.9, 1.1, 0.7])),
            row(1.55, 1.5, 1.0, Some([1.5, 1.2, 0.99, 1.3])),
            // Latency hardly moves: so the way in which a figure moves shows nothing.
            row(1.0, 1.0, 1.0, Some([1.01, 0.9, 0.9, 0.9])),
            row(1.0, 1.0, 0.9, None),
        ]);
        let text = table(&harm);
        assert!(!harm.holds() && text.contains("2 of 4 hold"), "{text}");
        let agree = "busy periods 2 of 2, run delay 0 of 2, occasions 2 of 2";
        assert!(text.contains(agree), "{text}");
        assert!(!Harm::new(Vec::new()).holds(), "nothing was measured");
        let plain = table(&Harm::new(vec![row(1.0, 1.0, 1.0, None)]));
        assert!(!plain.contains("busy"), "{plain}");
    }
}
