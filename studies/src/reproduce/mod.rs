//! Experiments of papers, redone: a set of scenarios, and the paper's statements beside what is measured
//! here.
//!
//! Problem: a paper's machine, applications and kernel are not at hand, so its bars cannot be compared with
//! ours one by one. Approach: a [`Figure`] is scenarios with one varied number each (its points), and the
//! paper's own sentences as [`Claim`]s, each with a [`Quantity`] that can be computed from any machine's
//! results: a change against the baseline, or a growth over the consolidation ratio. What differs from the
//! paper is part of the figure.
//!
//! The consolidation ratio is threads of latency-critical tenants, of VMs their vCPUs, over CPUs.

mod akita;
mod edge;
mod groups;
mod lab;
mod loads;
mod shares;
mod ufo;

pub use loads::{Doing, Loads, Of, loads, objectives_us};
pub use shares::Sharers;

use quell_bench::result::{ALL, BenchResult, Metric, SideResult, Substrate};
use quell_model::config::{TenantClass, TenantKind};
use quell_scenario::{App, Count, Scenario, ScenarioTenant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An experiment of a paper.
#[derive(Debug)]
pub struct Figure {
    /// Its name on the command line. A figure redone at two scales stands here twice.
    pub name: &'static str,
    /// Where it can be redone at this scale, the best place first.
    pub on: &'static [Substrate],
    /// Whether the figure is about what the scheduler does ([`quell_bench::run::BenchOptions::scheduling`]).
    pub scheduling: bool,
    /// What the figure shows.
    pub title: &'static str,
    /// The paper's own setting.
    pub paper: &'static str,
    /// What differs here from the paper.
    pub differs: &'static [&'static str],
    /// The sides unless the user names others, as `--policy` takes them; the baseline first.
    pub sides: &'static str,
    /// The scenarios to run.
    pub sweeps: &'static [Sweep],
    /// The paper's statements.
    pub claims: &'static [Claim],
}

/// A scenario with numbers varied.
#[derive(Debug)]
pub struct Sweep {
    /// A built-in scenario.
    pub scenario: &'static str,
    /// Settings of every point, as `--set` takes them.
    pub set: &'static [&'static str],
    /// The numbers that are varied, the last one fastest; empty where none is.
    pub over: &'static [Axis],
    /// The only sides that the sweep suits, if not all: its settings belong to them, such as a warm-up after
    /// which one side has settled and another is about to try something.
    pub sides: Option<&'static str>,
}

/// A number that is varied.
#[derive(Debug)]
pub struct Axis {
    /// The number, as `--set` takes it.
    pub key: &'static str,
    /// Its values.
    pub values: &'static [u32],
}

/// One run of a figure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// The built-in scenario.
    pub scenario: &'static str,
    /// Settings of this point, as `--set` takes them.
    pub set: Vec<String>,
    /// The figure's sides at this point.
    pub sides: &'static str,
    /// Whether the point suits no other sides.
    pub only: bool,
}

/// A statement of the paper.
#[derive(Debug)]
pub struct Claim {
    /// What the statement is about.
    pub what: &'static str,
    /// Where it is one number of several that belong together: their common name.
    pub of: Option<&'static str>,
    /// The paper's words.
    pub paper: &'static str,
    /// The quantity to compare the statement with.
    pub quantity: Quantity,
}

/// A quantity that is computed from a figure's points.
#[derive(Debug, Clone, Copy)]
pub enum Quantity {
    /// How a metric differs from the baseline's: the geometric mean over the points from one consolidation
    /// ratio to another.
    Change {
        /// The tenants.
        tenants: Tenants,
        /// The metric.
        metric: Metric,
        /// The scenarios; all where empty.
        scenarios: &'static [&'static str],
        /// Consolidation ratios, both ends included.
        ratios: (f64, f64),
    },
    /// How the latency-critical tenants' metric grows from one consolidation ratio to another on each side,
    /// the baseline included.
    Growth {
        /// The metric.
        metric: Metric,
        /// The scenarios; all where empty.
        scenarios: &'static [&'static str],
        /// The consolidation ratios from and to which it grows.
        ratios: (f64, f64),
    },
    /// The part of the mean latency that the second side gains on the baseline which a further side does not
    /// gain. Geometric means over all points; 1 is all of it.
    PartLost,
    /// The part of the time in which threads of a latency-critical tenant are ready in which at least `least`
    /// of its other threads are blocked, on each side, the baseline included; 1 is all of it. The mean over
    /// the points from one consolidation ratio to another.
    Blocked {
        /// The least number of blocked threads.
        least: usize,
        /// The scenarios.
        scenarios: &'static [&'static str],
        /// Consolidation ratios, both ends included.
        ratios: (f64, f64),
    },
    /// The CPU time of some thread programs together on each side, the baseline included, in percent of one
    /// CPU.
    Share {
        /// The scenario.
        scenario: &'static str,
        /// Settings of the point.
        set: &'static [&'static str],
        /// The thread programs, each of one tenant.
        programs: &'static [&'static str],
    },
    /// How many times as long a batch tenant takes for equal work as at another point, on each side, the
    /// baseline included.
    SlowDown {
        /// The scenario.
        scenario: &'static str,
        /// The tenant.
        tenant: &'static str,
        /// Settings of the point where it is slow.
        set: &'static [&'static str],
        /// Settings of the point where it is not slow.
        than: &'static [&'static str],
    },
    /// How many times as high a tenant's metric is as at another point, on each side, the baseline included.
    Rise {
        /// The scenario.
        scenario: &'static str,
        /// The tenant.
        tenant: &'static str,
        /// Its metric.
        metric: Metric,
        /// Settings of the point where it is high.
        set: &'static [&'static str],
        /// Settings of the point where it is not high.
        than: &'static [&'static str],
    },
    /// A tenant's metric on each side, the baseline included: in ms, or for CPU time in percent of one CPU.
    Value {
        /// The scenario.
        scenario: &'static str,
        /// The tenant.
        tenant: &'static str,
        /// Its metric.
        metric: Metric,
        /// Settings of the point.
        set: &'static [&'static str],
    },
    /// A quantity of loads and objectives, on each side, the baseline included.
    Loads(Loads),
    /// A quantity over another side's: 1 is no difference.
    Against {
        /// The other side.
        side: &'static str,
        /// The quantity.
        quantity: &'static Quantity,
    },
    /// How many CPUs were idle on each side, the baseline included.
    IdleCpus {
        /// The scenario.
        scenario: &'static str,
        /// Settings of the point.
        set: &'static [&'static str],
    },
}

/// Tenants of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenants {
    /// All tenants of a class.
    Class(TenantClass),
    /// One tenant, or all tenants made from it by `count`.
    Named(&'static str),
}

/// The result of a reproduction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reproduction {
    /// [`quell_bench::result::SCHEMA`].
    pub schema: u32,
    /// The figure's name.
    pub figure: String,
    /// What the figure shows.
    pub title: String,
    /// Whether every point that was asked for was measured: with `--policy` the points that suit its sides.
    pub complete: bool,
    /// The points, in the order measured.
    pub points: Vec<PointResult>,
    /// The paper's statements beside ours.
    pub claims: Vec<ClaimResult>,
    /// The paper's own setting.
    pub paper: String,
    /// What differs here from the paper.
    pub differs: Vec<String>,
}

/// One point measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PointResult {
    /// The scenario.
    pub scenario: String,
    /// Settings of the point.
    #[serde(default)]
    pub set: Vec<String>,
    /// The consolidation ratio.
    pub ratio: f64,
    /// The tenants that share the CPUs; empty where the point is read from a file.
    #[serde(skip)]
    pub sharers: Sharers,
    /// The load of each tenant that has one in percent of the most that it answers in time by itself.
    #[serde(default)]
    pub loads: BTreeMap<String, f64>,
    /// Tenants' objectives: their 99th percentiles in µs.
    #[serde(default)]
    pub objectives_us: BTreeMap<String, f64>,
    /// The benchmark at this point.
    pub result: BenchResult,
}

/// A statement of the paper beside ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClaimResult {
    /// What the statement is about.
    pub what: String,
    /// Where it is one number of several that belong together: their common name.
    #[serde(default)]
    pub of: Option<String>,
    /// The paper's words.
    pub paper: String,
    /// The ideal value, where that is known, in the unit of the sides' values.
    #[serde(default)]
    pub ideal: Option<f64>,
    /// The value here, for each side that has one.
    pub here: Vec<Here>,
}

/// The value here for one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Here {
    /// The side.
    pub side: String,
    /// A change as a ratio (1 is none); for a part the part (1 is all), for CPU time percent of a CPU, for a
    /// slow-down how many times as long.
    pub value: f64,
    /// The value as the paper would print it.
    pub text: String,
}

const LATENCY: Tenants = Tenants::Class(TenantClass::Latency);
const BATCH: Tenants = Tenants::Class(TenantClass::Batch);
const EVERY_RATIO: (f64, f64) = (0.0, f64::INFINITY);

/// A scenario run once.
const fn once(scenario: &'static str, set: &'static [&'static str]) -> Sweep {
    Sweep {
        scenario,
        set,
        over: &[],
        sides: None,
    }
}

/// A claim that is a number for each side.
const fn number(
    what: &'static str,
    of: &'static str,
    paper: &'static str,
    quantity: Quantity,
) -> Claim {
    Claim {
        what,
        of: Some(of),
        paper,
        quantity,
    }
}

/// A claim on how the latency-critical tenants' metric changes against the baseline.
const fn change(
    what: &'static str,
    paper: &'static str,
    metric: Metric,
    scenarios: &'static [&'static str],
    ratios: (f64, f64),
) -> Claim {
    change_of(LATENCY, what, paper, metric, scenarios, ratios)
}

/// A claim on how the metric of some tenants changes against the baseline.
const fn change_of(
    tenants: Tenants,
    what: &'static str,
    paper: &'static str,
    metric: Metric,
    scenarios: &'static [&'static str],
    ratios: (f64, f64),
) -> Claim {
    Claim {
        what,
        of: None,
        paper,
        quantity: Quantity::Change {
            tenants,
            metric,
            scenarios,
            ratios,
        },
    }
}

/// A claim on how the latency-critical tenants' metric grows over the ratio on each side.
const fn growth(
    what: &'static str,
    paper: &'static str,
    metric: Metric,
    scenarios: &'static [&'static str],
    ratios: (f64, f64),
) -> Claim {
    Claim {
        what,
        of: None,
        paper,
        quantity: Quantity::Growth {
            metric,
            scenarios,
            ratios,
        },
    }
}

/// Every figure; of figures with one name the best first.
pub fn figures() -> impl Iterator<Item = &'static Figure> {
    let all = [
        edge::FIGURES,
        lab::FIGURES,
        groups::FIGURES,
        akita::FIGURES,
        ufo::FIGURES,
        ufo::EVALUATION,
    ];
    all.into_iter().flatten()
}

impl Figure {
    /// The figure with this name that can be redone on `on`; on any substrate where that is `None`.
    pub fn named(name: &str, on: Option<Substrate>) -> Option<&'static Figure> {
        figures().find(|figure| {
            figure.name == name && on.is_none_or(|substrate| figure.on.contains(&substrate))
        })
    }

    /// The figure's points, in order.
    pub fn points(&self) -> Vec<Point> {
        let of_sweep = |sweep: &'static Sweep| {
            let mut sets: Vec<Vec<String>> =
                vec![sweep.set.iter().map(|set| set.to_string()).collect()];
            for axis in sweep.over {
                let with = |set: Vec<String>| {
                    axis.values.iter().map(move |value| {
                        let setting = format!("{}={value}", axis.key);
                        set.iter().cloned().chain([setting]).collect()
                    })
                };
                sets = sets.into_iter().flat_map(with).collect();
            }
            sets.into_iter().map(|set| Point {
                scenario: sweep.scenario,
                set,
                sides: sweep.sides.unwrap_or(self.sides),
                only: sweep.sides.is_some(),
            })
        };
        self.sweeps.iter().flat_map(of_sweep).collect()
    }

    /// The reproduction from the points that were measured; `asked` is how many there should be without an
    /// interrupt.
    pub fn conclude(&self, points: Vec<PointResult>, asked: usize) -> Reproduction {
        let complete = |point: &PointResult| point.result.complete;
        Reproduction {
            schema: quell_bench::result::SCHEMA,
            figure: self.name.to_string(),
            title: self.title.to_string(),
            complete: points.len() == asked && points.iter().all(complete),
            claims: self.claims.iter().map(|claim| claim.of(&points)).collect(),
            points,
            paper: self.paper.to_string(),
            differs: self.differs.iter().map(|text| text.to_string()).collect(),
        }
    }
}

/// The sides of all points, each once, those of the first point first.
pub(crate) fn sides(points: &[PointResult]) -> Vec<String> {
    let mut sides: Vec<String> = Vec::new();
    for side in points.iter().flat_map(|point| &point.result.options.sides) {
        if !sides.contains(side) {
            sides.push(side.clone());
        }
    }
    sides
}

/// Threads of latency-critical tenants over CPUs; for VMs their vCPUs. `cpus` also stands for a number of
/// threads given as `"cpus"`.
pub fn consolidation_ratio(scenario: &Scenario, cpus: u32) -> f64 {
    let count = |count: &Count| count.on(cpus);
    let threads = |tenant: &ScenarioTenant| match &tenant.app {
        _ if tenant.spec.kind == TenantKind::Vm => tenant.spec.vcpus.unwrap_or(1),
        Some(App::Memcached(app)) => count(&app.threads),
        Some(App::Nginx(app)) => count(&app.workers),
        Some(App::Redis(_)) => 1,
        Some(App::Xz(app)) => count(&app.threads),
        None => tenant
            .threads
            .iter()
            .map(|thread| count(&thread.count))
            .sum(),
    };
    let latency = |tenant: &&ScenarioTenant| tenant.spec.class == TenantClass::Latency;
    let all: u32 = scenario
        .tenants
        .iter()
        .filter(latency)
        .map(|tenant| tenant.count * threads(tenant))
        .sum();
    f64::from(all) / f64::from(cpus)
}

impl Claim {
    fn of(&self, points: &[PointResult]) -> ClaimResult {
        let sides = sides(points);
        let here = sides.iter().enumerate().filter_map(|(index, side)| {
            let value = self.quantity.of(points, side, index)?;
            Some(Here {
                side: side.clone(),
                value,
                text: self.quantity.text(value),
            })
        });
        ClaimResult {
            what: self.what.to_string(),
            of: self.of.map(str::to_string),
            paper: self.paper.to_string(),
            ideal: self.quantity.ideal(points),
            here: here.collect(),
        }
    }
}

impl Quantity {
    /// The points that quantities of loads are computed from.
    #[cfg(test)]
    fn ofs(&self) -> Vec<Of> {
        match self {
            Quantity::Loads(loads) => loads.ofs(),
            Quantity::Against { quantity, .. } => quantity.ofs(),
            _ => Vec::new(),
        }
    }

    /// A value as it is printed.
    fn text(&self, value: f64) -> String {
        match self {
            Quantity::PartLost | Quantity::Blocked { .. } => {
                format!("{:.0} %", 100.0 * value).replace('-', "−")
            }
            Quantity::Share { .. } => format!("{value:.1}"),
            Quantity::SlowDown { .. } | Quantity::Rise { .. } => format!("{value:.2}"),
            Quantity::Value {
                metric: Metric::CpuShare,
                ..
            } => format!("{value:.1}"),
            Quantity::Value { .. } => quell_bench::report::latency(1e3 * value),
            Quantity::IdleCpus { .. } => format!("{value:.1}"),
            Quantity::Loads(loads) => loads.text(value),
            Quantity::Change { .. } | Quantity::Growth { .. } | Quantity::Against { .. } => {
                quell_bench::report::change(value)
            }
        }
    }

    /// The quantity's value for a side, which stands at `index`; `None` where the side has none.
    fn of(&self, points: &[PointResult], side: &str, index: usize) -> Option<f64> {
        match *self {
            Quantity::Change {
                tenants,
                metric,
                scenarios,
                ratios,
            } => {
                let changes = points
                    .iter()
                    .filter(|point| inside(point, scenarios, ratios))
                    .flat_map(|point| changes(&point.result, tenants, metric, side));
                geometric_mean(changes).filter(|_| index > 0)
            }
            Quantity::Growth {
                metric,
                scenarios,
                ratios,
            } => {
                let growth = |from: &PointResult| {
                    let same = |p: &&PointResult| {
                        p.scenario == from.scenario && (p.ratio - ratios.1).abs() < 1e-9
                    };
                    let to = points.iter().find(same)?;
                    let value = |p: &PointResult| metric.of(&all_latency(&p.result, side)?.figures);
                    Some(value(to)? / value(from)?)
                };
                let starts = points.iter().filter(|p| {
                    (scenarios.is_empty() || scenarios.contains(&&*p.scenario))
                        && (p.ratio - ratios.0).abs() < 1e-9
                });
                geometric_mean(starts.filter_map(growth))
            }
            Quantity::PartLost => {
                let mean = |side: &str| {
                    let means = points
                        .iter()
                        .filter_map(|p| all_latency(&p.result, side)?.figures.mean_us);
                    geometric_mean(means)
                };
                let sides = &points.first()?.result.options.sides;
                let (without, with) = (mean(sides.first()?)?, mean(sides.get(1)?)?);
                (index > 1).then(|| (mean(side).unwrap_or(f64::NAN) - with) / (without - with))
            }
            Quantity::Blocked {
                least,
                scenarios,
                ratios,
            } => {
                let part = |point: &PointResult| {
                    let figures = &all_latency(&point.result, side)?.figures;
                    figures.scheduling.as_ref()?.part_with_blocked(least)
                };
                let parts: Vec<f64> = points
                    .iter()
                    .filter(|point| inside(point, scenarios, ratios))
                    .filter_map(part)
                    .collect();
                (!parts.is_empty()).then(|| parts.iter().sum::<f64>() / parts.len() as f64)
            }
            Quantity::Share {
                scenario,
                set,
                programs,
            } => {
                let point = find(points, scenario, set)?;
                let share = |program: &&str| point.cpus_of_program(program, side);
                let shares: Option<f64> = programs.iter().map(share).sum();
                Some(100.0 * shares?)
            }
            Quantity::SlowDown {
                scenario,
                tenant,
                set,
                than,
            } => {
                let speed =
                    |set| metric_at(points, (scenario, set), tenant, Metric::WorkPerS, side);
                Some(speed(than)? / speed(set)?)
            }
            Quantity::Rise {
                scenario,
                tenant,
                metric,
                set,
                than,
            } => {
                let value = |set| metric_at(points, (scenario, set), tenant, metric, side);
                Some(value(set)? / value(than)?)
            }
            Quantity::Value {
                scenario,
                tenant,
                metric: Metric::CpuShare,
                set,
            } => Some(100.0 * find(points, scenario, set)?.cpus_of(tenant, side)?),
            Quantity::Value {
                scenario,
                tenant,
                metric,
                set,
            } => Some(metric_at(points, (scenario, set), tenant, metric, side)? / 1e3),
            Quantity::Loads(loads) => loads.of(points, side),
            Quantity::Against {
                side: than,
                quantity,
            } if side != than => {
                let sides = sides(points);
                let other = sides.iter().position(|it| it == than)?;
                Some(quantity.of(points, side, index)? / quantity.of(points, than, other)?)
            }
            Quantity::Against { .. } => None,
            Quantity::IdleCpus { scenario, set } => {
                let point = find(points, scenario, set)?;
                let mut sides = point.result.sides.iter();
                Some(sides.find(|it| it.side == side)?.idle_cpus)
            }
        }
        .filter(|value| value.is_finite())
    }

    /// The ideal value, where it is known. That of a slow-down follows from the CPU time that the tenant uses
    /// on the first side where it is not slow: with a part of that time it takes as many times as long.
    fn ideal(&self, points: &[PointResult]) -> Option<f64> {
        match *self {
            Quantity::Share {
                scenario,
                set,
                programs,
            } => {
                let point = find(points, scenario, set)?;
                let ideal = point.sharers.ideal_by_program()?;
                let shares: Option<f64> = programs.iter().map(|it| ideal.get(it).copied()).sum();
                Some(100.0 * shares?)
            }
            Quantity::SlowDown {
                scenario,
                tenant,
                set,
                than,
            } => {
                let slow = find(points, scenario, set)?;
                let fast = find(points, scenario, than)?;
                let used = fast.cpus_of(tenant, fast.result.options.sides.first()?)?;
                let sharers = slow.sharers.clone().with_use(tenant, used);
                let slow_down = used / sharers.ideal()?.get(tenant)?;
                slow_down.is_finite().then_some(slow_down)
            }
            _ => None,
        }
    }
}

/// The point of a scenario with these values set.
fn find<'a>(points: &'a [PointResult], scenario: &str, set: &[&str]) -> Option<&'a PointResult> {
    let name = scenario.rsplit('/').next();
    (points.iter()).find(|point| name == Some(&point.scenario) && point.set == set)
}

/// A tenant's metric on a side, at the point of a scenario with these values set.
fn metric_at(
    points: &[PointResult],
    (scenario, set): (&str, &[&str]),
    tenant: &str,
    metric: Metric,
    side: &str,
) -> Option<f64> {
    let point = find(points, scenario, set)?;
    metric.of(&tenant_row(&point.result, tenant, side)?.figures)
}

impl PointResult {
    /// The CPU time of a tenant on a side, in CPUs.
    fn cpus_of(&self, tenant: &str, side: &str) -> Option<f64> {
        let row = tenant_row(&self.result, tenant, side)?;
        Some(row.figures.cpu_share * f64::from(self.result.host.cpus))
    }

    /// The CPU time of a thread program on a side, in CPUs; of the first tenant that has a program of this
    /// name.
    fn cpus_of_program(&self, program: &str, side: &str) -> Option<f64> {
        let rows = self.result.results.iter().filter(|row| row.side == side);
        let share = rows
            .filter_map(|row| row.figures.programs.get(program))
            .next()?;
        Some(share * f64::from(self.result.host.cpus))
    }
}

/// A side's row of one tenant.
fn tenant_row<'a>(result: &'a BenchResult, tenant: &str, side: &str) -> Option<&'a SideResult> {
    let mut rows = result.results.iter();
    rows.find(|row| row.side == side && row.tenant == tenant)
}

/// Whether a point is of one of the scenarios, or of any if none are given, and between two ratios.
fn inside(point: &PointResult, scenarios: &[&str], ratios: (f64, f64)) -> bool {
    (scenarios.is_empty() || scenarios.contains(&&*point.scenario))
        && (ratios.0 - 1e-9..=ratios.1 + 1e-9).contains(&point.ratio)
}

/// A side's row of all latency-critical tenants.
pub(crate) fn all_latency<'a>(result: &'a BenchResult, side: &str) -> Option<&'a SideResult> {
    let mut rows = result.results.iter();
    rows.find(|row| row.side == side && row.tenant == ALL && row.class == TenantClass::Latency)
}

/// A side's ratios to the baseline, one for each tenant of a name or one for a class.
fn changes(result: &BenchResult, tenants: Tenants, metric: Metric, side: &str) -> Vec<f64> {
    let matches = |name: &str, class: TenantClass| match tenants {
        Tenants::Class(wanted) => name == ALL && class == wanted,
        Tenants::Named(wanted) => {
            let rest = name.strip_prefix(wanted);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        }
    };
    result
        .comparisons
        .iter()
        .filter(|c| c.side == side && c.metric == metric && matches(&c.tenant, c.class))
        .map(|c| c.ratio)
        .collect()
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0u32), |(sum, n), value| (sum + value.ln(), n + 1));
    (n > 0).then(|| (sum / f64::from(n)).exp())
}

#[cfg(test)]
pub(crate) mod tests;
