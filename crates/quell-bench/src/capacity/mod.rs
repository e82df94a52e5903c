//! Capacity: how many tenants of a mix fit on a machine while every tenant keeps its objective, under each
//! scheduler.
//!
//! Problem: "utilization at an objective" is a point on a curve that is not known beforehand, and the curve
//! is noisy: with one seed a number of tenants keeps the objective by chance, with another it does not.
//! Approach: on the simulator, the number of copies of the mix is doubled until it is too many, then the
//! limit is found by bisection ([`search`]), each number being judged in every pair, that is under several
//! seeds; then its neighbours are tried too. A number *fits* if the 99th percentile of every latency tenant
//! is within its objective in every pair. Two more numbers tell how certain that is: up to the first every
//! number tried fits, above the second none passes in any pair.
//!
//! Units: numbers of copies of the mix (of one tenant, where only that one grows); latency in µs, objectives
//! in ms.

mod search;

use crate::progress::Progress;
use crate::result::{ALL, BenchResult, Host, Run, SCHEMA, SideResult};
use crate::run::{BenchOptions, simulated};
use crate::side::Side;
use crate::workload::Interrupted;
use anyhow::ensure;
use quell_model::config::{ConfigError, Objective, TenantClass};
use quell_scenario::{Scenario, ScenarioTenant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// With fewer requests in a window, a 99th percentile is decided by the slowest few.
const FEW_REQUESTS: u64 = 500;

/// The greatest number of tenants of one kind that a scenario may have.
const MOST: u32 = 1024;

/// What capacity to find.
#[derive(Debug, Clone)]
pub struct CapacityOptions {
    /// How each number is measured. The scenario is one copy of the mix: its counts are proportions.
    pub bench: BenchOptions,
    /// The only tenant that grows, by its index in the scenario; `None`: all tenants grow.
    pub tenant: Option<usize>,
    /// The greatest number to try; `None`: as many as a scenario may have.
    pub most: Option<u32>,
}

/// The capacity of a machine under each side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The version of Quell that measured.
    pub quell_version: String,
    /// The scenario's name.
    pub scenario: String,
    /// When the search began, in seconds since 1970 (UTC).
    pub started_unix_s: u64,
    /// Whether the search came to its end; `false` after an interrupt.
    pub complete: bool,
    /// The simulated machine.
    pub host: Host,
    /// The seed of everything random.
    pub seed: u64,
    /// The number of windows, each with its own seed, that judge a number.
    pub pairs: u32,
    /// Length of each window, in seconds.
    pub seconds: f64,
    /// Warm-up before each window, in seconds.
    pub warmup_seconds: f64,
    /// Values of the scenario's file that were replaced, as `KEY=VALUE`.
    pub set: Vec<String>,
    /// The only tenant that grows; `null` where the whole mix does.
    pub tenant: Option<String>,
    /// The greatest number that was to be tried.
    pub most: u32,
    /// The kinds of tenants in one copy of the mix.
    pub mix: Vec<Share>,
    /// The capacity under each side, in the order asked for.
    #[serde(rename = "policies")]
    pub sides: Vec<SideCapacity>,
    /// What a reader must know before trusting the figures.
    pub notes: Vec<String>,
}

/// A kind of tenant in the mix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Its name.
    pub tenant: String,
    /// Its class.
    pub class: TenantClass,
    /// How many tenants of this kind one copy of the mix has.
    pub count: u32,
    /// Whether their number grows.
    pub grows: bool,
    /// Their objective in ms; `null` for batch tenants.
    pub p99_ms: Option<f64>,
}

/// How many tenants fit under one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideCapacity {
    /// The side's name.
    #[serde(rename = "side")]
    pub name: String,
    /// The greatest number at which every latency tenant kept its objective in every pair; 0: not even one.
    pub fits: u32,
    /// The greatest number up to which every number tried fits.
    pub low: u32,
    /// The greatest number that passes in at least one pair.
    pub high: u32,
    /// Whether no number that was tried was too many: then `fits` is only the greatest number tried.
    pub unbounded: bool,
    /// The tenant that is the first to miss its objective with more than fit.
    pub limit: Option<Limit>,
    /// The host's CPUs over `fits`: what one copy costs; `null` where none fits.
    pub cpus_each: Option<f64>,
    /// The numbers tried, rising.
    pub points: Vec<CapacityPoint>,
}

/// The worst miss at the least number above the one that fits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// The number.
    pub number: u32,
    /// The tenant with the 99th percentile furthest above its objective.
    pub tenant: String,
    /// That percentile in µs, in its worst pair.
    pub p99_us: f64,
    /// The objective in µs.
    pub objective_us: f64,
}

/// One number of copies, judged in every pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CapacityPoint {
    /// The number.
    pub number: u32,
    /// The number of tenants altogether.
    pub tenants: u32,
    /// The number of pairs in which every latency tenant kept its objective.
    pub passed: u32,
    /// The number of pairs measured.
    pub pairs: u32,
    /// By pair: the worst tenant's 99th percentile over its objective; 1 is the objective.
    pub worst: Vec<f64>,
    /// CPU time not idle, in percent of all CPUs, mean over the pairs.
    pub busy_percent: f64,
    /// Work of all batch tenants per second, in `work_unit`; `null` where there is none.
    pub work_per_s: Option<f64>,
    /// The unit of `work_per_s`.
    pub work_unit: Option<String>,
    /// The benchmark of this number, with every run.
    #[serde(skip)]
    pub result: Option<BenchResult>,
}

impl CapacityPoint {
    /// Whether the number fits.
    pub fn fits(&self) -> bool {
        self.passed == self.pairs
    }
}

impl SideCapacity {
    /// The point of this number, if it was tried.
    pub fn at(&self, number: u32) -> Option<&CapacityPoint> {
        self.points.iter().find(|point| point.number == number)
    }
}

/// Gives this objective (in ms) to every latency tenant that has none.
pub fn set_objectives(scenario: &mut Scenario, p99_ms: f64) {
    for tenant in &mut scenario.tenants {
        let spec = &mut tenant.spec;
        if spec.class == TenantClass::Latency && spec.objective.is_none() {
            spec.objective = Some(Objective { p99_ms });
        }
    }
}

/// Finds the capacity. Setting `interrupt` ends the search with the numbers tried so far.
///
/// # Errors
/// [`Interrupted`] before the first number was tried; a scenario without latency tenants or with one that has
/// no objective, a greatest number that a scenario cannot have, and else as [`simulated::run_all`].
pub fn run(
    options: &CapacityOptions,
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Capacity> {
    let most = options.check()?;
    let bench = &options.bench;
    simulated::check(bench)?;
    let labels = Side::labels(&bench.sides);
    let started_unix_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut tried: Vec<BTreeMap<u32, CapacityPoint>> = vec![BTreeMap::new(); labels.len()];
    let mut host = None;
    let complete = loop {
        let wanted: Vec<(usize, u32)> = tried
            .iter()
            .enumerate()
            .flat_map(|(side, tried)| {
                let passed = |(&number, point): (&u32, &CapacityPoint)| {
                    (number, (point.passed, point.pairs))
                };
                let tried = tried.iter().map(passed).collect();
                search::wanted(&tried, most)
                    .into_iter()
                    .map(move |n| (side, n))
            })
            .collect();
        if wanted.is_empty() {
            break true;
        }
        let names = wanted
            .iter()
            .map(|&(side, number)| format!("{} {number}", labels[side]));
        let names = names.collect::<Vec<_>>().join(", ");
        progress.step(Duration::ZERO, &format!("trying {names}"));
        let points: Vec<BenchOptions> = wanted
            .iter()
            .map(|&(side, number)| options.at(side, number))
            .collect::<Result<_, _>>()?;
        let results =
            simulated::run_all(&points, interrupt, progress).inspect_err(|_| progress.finish())?;
        for ((&(side, number), point), result) in wanted.iter().zip(&points).zip(results) {
            // A number with fewer seeds than the others would be judged more mildly.
            let Some(result) = result.filter(|result| result.complete) else {
                continue;
            };
            host.get_or_insert_with(|| result.host.clone());
            tried[side].insert(number, judge(number, &point.scenario, result));
        }
        if interrupt.load(Ordering::Relaxed) {
            break false;
        }
    };
    progress.finish();
    let host = host.ok_or(Interrupted)?;
    let sides: Vec<SideCapacity> = labels
        .into_iter()
        .zip(tried)
        .map(|(side, tried)| options.conclude(side, tried.into_values().collect(), most, host.cpus))
        .collect();
    Ok(Capacity {
        schema: SCHEMA,
        quell_version: env!("CARGO_PKG_VERSION").to_string(),
        scenario: bench.scenario.name.clone(),
        started_unix_s,
        complete,
        host,
        seed: bench.seed,
        pairs: bench.pairs,
        seconds: bench.seconds,
        warmup_seconds: bench.warmup_seconds,
        set: Vec::new(),
        tenant: options
            .tenant
            .map(|index| bench.scenario.tenants[index].spec.name.clone()),
        most,
        mix: options.mix(),
        notes: notes(&sides, bench.pairs),
        sides,
    })
}

impl CapacityOptions {
    /// Checks that there is a capacity to find; gives the greatest number to try.
    fn check(&self) -> anyhow::Result<u32> {
        let scenario = &self.bench.scenario;
        let input = |index: usize, field: &str, message: &str| {
            ConfigError::at(&scenario.file, format!("tenant[{index}]{field}"), message)
        };
        let latency = |tenant: &ScenarioTenant| tenant.spec.class == TenantClass::Latency;
        if !scenario.tenants.iter().any(latency) {
            let message = "no tenant has latency to keep; all are class = \"batch\"";
            return Err(ConfigError::at(&scenario.file, "tenant", message).into());
        }
        for (index, tenant) in scenario.tenants.iter().enumerate() {
            if latency(tenant) && tenant.spec.objective.is_none() {
                let message = format!(
                    "is missing: what 99th percentile must `{}` keep? Give it objective = {{ p99_ms = 10.0 }}, or \
                     all that have none --objective p99_ms=10",
                    tenant.spec.name
                );
                return Err(input(index, ".objective", &message).into());
            }
        }
        let greatest = self.growing().map(|index| match self.tenant {
            Some(_) => 1,
            None => scenario.tenants[index].count,
        });
        let possible = MOST / greatest.max().unwrap_or(1).max(1);
        let most = self.most.unwrap_or(possible);
        let message = format!(
            "{most} is outside 1 to {possible}, as a scenario has at most {MOST} tenants of a kind"
        );
        ensure!(
            (1..=possible).contains(&most),
            ConfigError::at(&scenario.file, "--most", message)
        );
        Ok(most)
    }

    /// The tenants that grow, by index.
    fn growing(&self) -> impl Iterator<Item = usize> {
        let all = 0..self.bench.scenario.tenants.len();
        all.filter(|&index| self.tenant.is_none_or(|only| only == index))
    }

    /// The benchmark of one side with this many copies.
    fn at(&self, side: usize, number: u32) -> Result<BenchOptions, ConfigError> {
        let mut options = self.bench.clone();
        options.sides = vec![self.bench.sides[side].clone()];
        let scenario = &mut options.scenario;
        for index in self.growing() {
            let one = match self.tenant {
                Some(_) => 1,
                None => self.bench.scenario.tenants[index].count,
            };
            scenario.tenants[index].count = one * number;
        }
        let file = scenario.file.clone();
        scenario.check(&file)?;
        Ok(options)
    }

    fn mix(&self) -> Vec<Share> {
        let tenants = self.bench.scenario.tenants.iter().enumerate();
        let share = tenants.map(|(index, tenant)| Share {
            tenant: tenant.spec.name.clone(),
            class: tenant.spec.class,
            count: match self.tenant {
                Some(only) if only == index => 1,
                _ => tenant.count,
            },
            grows: self.tenant.is_none_or(|only| only == index),
            p99_ms: (tenant.spec.class == TenantClass::Latency)
                .then(|| tenant.spec.objective.map(|objective| objective.p99_ms))
                .flatten(),
        });
        share.collect()
    }

    fn conclude(
        &self,
        side: String,
        points: Vec<CapacityPoint>,
        most: u32,
        cpus: u32,
    ) -> SideCapacity {
        let passing = points.iter().filter(|point| point.fits());
        let fits = passing.map(|point| point.number).max().unwrap_or(0);
        let first_failing = points.iter().position(|point| !point.fits());
        let before = &points[..first_failing.unwrap_or(points.len())];
        let some = points.iter().filter(|point| point.passed > 0);
        let above = points.iter().find(|point| point.number > fits);
        SideCapacity {
            name: side,
            fits,
            low: before.last().map_or(0, |point| point.number),
            high: some.map(|point| point.number).max().unwrap_or(0),
            unbounded: fits == most,
            limit: above.and_then(|point| self.limit(point)),
            cpus_each: (fits > 0).then(|| f64::from(cpus) / f64::from(fits)),
            points,
        }
    }

    fn limit(&self, point: &CapacityPoint) -> Option<Limit> {
        let result = point.result.as_ref()?;
        let scenario = self.at(0, point.number).ok()?.scenario;
        let ratios = result.runs.iter().flat_map(|run| ratios(&scenario, run));
        let worst = ratios.max_by(|a, b| a.over().total_cmp(&b.over()))?;
        Some(Limit {
            number: point.number,
            tenant: worst.tenant.to_string(),
            p99_us: worst.p99_us,
            objective_us: worst.objective_us,
        })
    }
}

/// A latency tenant's 99th percentile in one run, beside its objective.
struct Kept<'a> {
    tenant: &'a str,
    p99_us: f64,
    objective_us: f64,
}

impl Kept<'_> {
    /// The 99th percentile over the objective; 1 is the objective.
    fn over(&self) -> f64 {
        self.p99_us / self.objective_us
    }
}

/// The latency tenants of a run that got requests.
fn ratios<'a>(scenario: &Scenario, run: &'a Run) -> Vec<Kept<'a>> {
    // A run has the tenants in the scenario's order, then the classes.
    let tenants = scenario.instances().into_iter().zip(&run.tenants);
    let kept = tenants.filter_map(|(instance, found)| {
        let objective = instance
            .table
            .spec
            .objective
            .filter(|_| found.class == TenantClass::Latency)?;
        Some(Kept {
            tenant: &found.tenant,
            p99_us: found.figures.p99_us?,
            objective_us: objective.p99_ms * 1e3,
        })
    });
    kept.collect()
}

fn judge(number: u32, scenario: &Scenario, result: BenchResult) -> CapacityPoint {
    let worst_of = |run: &Run| {
        let all = ratios(scenario, run);
        all.iter().map(Kept::over).fold(0.0, f64::max)
    };
    let worst: Vec<f64> = result.runs.iter().map(worst_of).collect();
    let batch = |row: &&SideResult| row.tenant == ALL && row.class == TenantClass::Batch;
    let batch = result.results.iter().find(batch).map(|row| &row.figures);
    CapacityPoint {
        number,
        tenants: scenario.tenants.iter().map(|tenant| tenant.count).sum(),
        passed: worst.iter().filter(|&&ratio| ratio <= 1.0).count() as u32,
        pairs: worst.len() as u32,
        worst,
        busy_percent: result.sides.first().map_or(0.0, |side| side.busy_percent),
        work_per_s: batch.and_then(|figures| figures.work_per_s),
        work_unit: batch.and_then(|figures| figures.work_unit.clone()),
        result: Some(result),
    }
}

fn notes(sides: &[SideCapacity], pairs: u32) -> Vec<String> {
    let mut notes = Vec::new();
    let results = || {
        let points = sides.iter().flat_map(|side| &side.points);
        points.filter_map(|point| point.result.as_ref())
    };
    let tenants = results().flat_map(|result| result.runs.iter().flat_map(|run| &run.tenants));
    let least = tenants
        .filter(|tenant| tenant.tenant != ALL && tenant.class == TenantClass::Latency)
        .min_by_key(|tenant| tenant.figures.requests + tenant.figures.errors);
    if let Some(tenant) = least {
        let requests = tenant.figures.requests + tenant.figures.errors;
        if requests < FEW_REQUESTS {
            notes.push(format!(
                "{} got only {requests} requests in one window, so that a 99th percentile is that of the slowest {}: \
                 more --seconds make the numbers surer.",
                tenant.tenant,
                requests.div_ceil(100)
            ));
        }
    }
    if pairs < 3 {
        notes.push(format!(
            "Each number was judged under {pairs} seed{} only: more --pairs make the numbers surer.",
            if pairs == 1 { "" } else { "s" }
        ));
    }
    for side in sides.iter().filter(|side| side.unbounded) {
        notes.push(format!(
            "{} still fits {}, the most that was to be tried.",
            side.name, side.fits
        ));
    }
    notes
}

#[cfg(test)]
pub(crate) mod tests;
