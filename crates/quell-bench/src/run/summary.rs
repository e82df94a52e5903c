//! From the measurements of all runs to figures and comparisons.
//!
//! A tenant's figures over several runs pool the requests of all of them: mean and percentiles are of the
//! merged histogram, rates are totals over total time. The class line (tenant `*`) pools the requests of all
//! its tenants within a run in that way, so that a request counts once, of any tenant; since both sides of a
//! pair get equal arrivals, a tenant weighs equally on both. Comparisons are of these pooled figures; their
//! intervals pool other draws of the pairs ([`crate::stats`]).

use crate::result::{
    ALL, AgentCost, Comparison, Figures, GuestFigures, LatencyCurve, Metric, Pauses, Run,
    SchedulingFigures, SideResult, SideSummary, TenantRun,
};
use crate::stats::pooled_ratio;
use crate::workload::{GuestCounts, Measurement, Scheduling, Stillness, latency_histogram};
use hdrhistogram::Histogram;
use quell_model::config::TenantClass;
use std::collections::{BTreeMap, BTreeSet};

/// What was measured in one run of one side.
pub(super) struct RawRun {
    pub(super) pair: u32,
    pub(super) position: u32,
    /// The side's index.
    pub(super) side: usize,
    pub(super) seed: u64,
    pub(super) busy_percent: f64,
    pub(super) steal_percent: f64,
    pub(super) idle_cpus: u32,
    /// Switches of the host's CPUs in the window, where that is known.
    pub(super) switches: Option<u64>,
    /// CPUs that tenants had for themselves, the mean over the window; `None` where no tenant has CPUs of its
    /// own.
    pub(super) held_cpus: Option<f64>,
    pub(super) agent: Option<AgentCost>,
    pub(super) stillness: Stillness,
    pub(super) measurements: Vec<Measurement>,
}

/// How runs are summarised.
pub(super) struct Summariser<'a> {
    /// The sides' labels, the baseline first.
    pub(super) labels: &'a [String],
    /// The number of online CPUs.
    pub(super) cpus: u32,
    /// Length of a window, in s.
    pub(super) seconds: f64,
    /// The seed of the bootstrap.
    pub(super) seed: u64,
}

/// A line of the results: a tenant, or all of a class.
type Line<'a> = (&'a str, TenantClass);

impl Summariser<'_> {
    /// The runs as the JSON has them.
    pub(super) fn runs(&self, raw: &[RawRun]) -> Vec<Run> {
        raw.iter()
            .map(|run| Run {
                pair: run.pair,
                position: run.position,
                side: self.labels[run.side].clone(),
                seed: run.seed,
                busy_percent: run.busy_percent,
                steal_percent: run.steal_percent,
                idle_cpus: run.idle_cpus,
                switches_per_s: run.switches.map(|it| it as f64 / self.seconds),
                held_cpus: run.held_cpus,
                pauses: Pauses::of(&run.stillness),
                tenants: lines(raw)
                    .into_iter()
                    .map(|line| TenantRun {
                        tenant: line.0.to_string(),
                        class: line.1,
                        figures: self.figures(&[run], line),
                    })
                    .collect(),
                agent: run.agent,
            })
            .collect()
    }

    /// Each side's figures over all complete pairs.
    pub(super) fn results(&self, raw: &[RawRun]) -> Vec<SideResult> {
        let mut results = Vec::new();
        for line in lines(raw) {
            for (index, side) in self.labels.iter().enumerate() {
                results.push(SideResult {
                    side: side.clone(),
                    tenant: line.0.to_string(),
                    class: line.1,
                    figures: self.figures(&self.of_side(raw, index), line),
                });
            }
        }
        results
    }

    /// Compares each side with each of the first `baselines` sides that stand before it, over all complete
    /// pairs; comparisons with the first side come first.
    pub(super) fn comparisons(&self, raw: &[RawRun], baselines: usize) -> Vec<Comparison> {
        let first = (0..baselines.min(self.labels.len())).flat_map(|it| self.against(raw, it));
        first.collect()
    }

    fn against(&self, raw: &[RawRun], first: usize) -> Vec<Comparison> {
        let mut comparisons = Vec::new();
        for line in lines(raw) {
            let baseline = Pool::new(&self.of_side(raw, first), line, self);
            for (index, side) in self.labels.iter().enumerate().skip(first + 1) {
                let pool = Pool::new(&self.of_side(raw, index), line, self);
                for metric in Metric::ALL {
                    let ratio = |times: &[u32]| {
                        Some(pool.figure(metric, times)? / baseline.figure(metric, times)?)
                    };
                    let Some(estimate) = pooled_ratio(pool.runs.len(), self.seed, ratio) else {
                        continue;
                    };
                    comparisons.push(Comparison {
                        tenant: line.0.to_string(),
                        class: line.1,
                        metric,
                        baseline: self.labels[first].clone(),
                        side: side.clone(),
                        ratio: estimate.ratio,
                        ci_low: estimate.interval.map(|(low, _)| low),
                        ci_high: estimate.interval.map(|(_, high)| high),
                        pairs: estimate.pairs as u32,
                    });
                }
            }
        }
        comparisons
    }

    /// The host during each side.
    pub(super) fn sides(&self, raw: &[RawRun]) -> Vec<SideSummary> {
        let summary = |(index, side): (usize, &String)| {
            let runs = self.of_side(raw, index);
            let mean = |of: fn(&RawRun) -> f64| {
                runs.iter().map(|run| of(run)).sum::<f64>() / runs.len().max(1) as f64
            };
            SideSummary {
                side: side.clone(),
                busy_percent: mean(|run| run.busy_percent),
                steal_percent: mean(|run| run.steal_percent),
                idle_cpus: mean(|run| f64::from(run.idle_cpus)),
                switches_per_s: mean_of_some(
                    runs.iter()
                        .map(|run| Some(run.switches? as f64 / self.seconds)),
                ),
                held_cpus: mean_of_some(runs.iter().map(|run| run.held_cpus)),
                agent: agent_cost(runs.iter().filter_map(|run| run.agent)),
            }
        };
        self.labels.iter().enumerate().map(summary).collect()
    }

    /// Latency by percentile, for every line that has latencies.
    pub(super) fn latency(&self, raw: &[RawRun]) -> Vec<LatencyCurve> {
        let mut curves = Vec::new();
        for line in lines(raw) {
            for (index, side) in self.labels.iter().enumerate() {
                let pooled = pool(&self.of_side(raw, index), line);
                if !pooled.latency.is_empty() {
                    curves.push(LatencyCurve {
                        side: side.clone(),
                        tenant: line.0.to_string(),
                        points: curve(&pooled.latency),
                    });
                }
            }
        }
        curves
    }

    /// A side's runs in complete pairs, by pair.
    fn of_side<'r>(&self, raw: &'r [RawRun], side: usize) -> Vec<&'r RawRun> {
        let complete = complete_pairs(raw, self.labels.len());
        let mut runs: Vec<&RawRun> = raw
            .iter()
            .filter(|run| run.side == side && complete.contains(&run.pair))
            .collect();
        runs.sort_by_key(|run| run.pair);
        runs
    }

    fn figures(&self, runs: &[&RawRun], line: Line<'_>) -> Figures {
        let pooled = pool(runs, line);
        let us = |ns: u64| ns as f64 / 1e3;
        let some = !pooled.latency.is_empty();
        let quantile = |q: f64| some.then(|| us(pooled.latency.value_at_quantile(q)));
        let answered = pooled.requests.saturating_sub(pooled.errors);
        let asked_s = runs.len() as f64 * self.seconds;
        let length_s = pooled.length_ns as f64 / 1e9;
        let all_cpus_ns = pooled.length_ns.max(1) as f64 * f64::from(self.cpus);
        let share = |ns: u64| ns as f64 / all_cpus_ns;
        Figures {
            mean_us: some.then(|| pooled.latency.mean() / 1e3),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: some.then(|| us(pooled.latency.max())),
            requests_per_s: (pooled.requests > 0).then(|| answered as f64 / asked_s),
            work_per_s: pooled
                .work
                .filter(|_| length_s > 0.0)
                .map(|work| work / length_s),
            work_unit: pooled.work.map(|_| pooled.work_unit.to_string()),
            cpu_share: share(pooled.cpu_ns),
            programs: (pooled.programs_ns.into_iter())
                .map(|(program, ns)| (program, share(ns)))
                .collect(),
            requests: answered,
            errors: pooled.errors,
            late_seconds: pooled.late_seconds,
            scheduling: pooled.scheduling.map(|it| scheduling(&it, asked_s)),
            guest: pooled.guest.map(|it| guest(&it, asked_s)),
        }
    }
}

/// The mean of the values; `None` if one is missing.
fn mean_of_some(values: impl ExactSizeIterator<Item = Option<f64>>) -> Option<f64> {
    let count = values.len();
    let sum = values.sum::<Option<f64>>()?;
    (count > 0).then(|| sum / count as f64)
}

fn guest(of: &GuestCounts, seconds: f64) -> GuestFigures {
    let part = |ns: u64| ns as f64 / 1e9 / seconds;
    GuestFigures {
        switches_per_s: of.switches as f64 / seconds,
        used: part(of.used_ns),
        exits_per_s: of.exits as f64 / seconds,
        host_switches_per_s: of.loads as f64 / seconds,
        waiting: part(of.waited_ns),
        steal: part(of.steal_ns),
        vcpus: part(of.vcpus_ns),
        emulators: part(of.emulators_ns),
    }
}

fn scheduling(of: &Scheduling, seconds: f64) -> SchedulingFigures {
    let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
    let rate = |count: u64| count as f64 / seconds;
    SchedulingFigures {
        run_delay_mean_us: us(of.delays.mean_ns()),
        run_delay_p50_us: us(of.delays.quantile_ns(0.5)),
        run_delay_p99_us: us(of.delays.quantile_ns(0.99)),
        run_delay_max_us: us(of.delays.max_ns()),
        switches_per_s: rate(of.switches),
        preemptions_per_s: rate(of.preemptions),
        migrations_per_s: rate(of.migrations),
        wakeups_per_s: rate(of.wakeups),
        busy_period_mean_us: (of.occasions.busy_periods > 0)
            .then(|| of.occasions.busy_ns as f64 / 1e3 / of.occasions.busy_periods as f64),
        ready_while_blocked_us: (of.occasions.by_blocked_ns.iter())
            .map(|&ns| ns as f64 / 1e3)
            .collect(),
    }
}

/// One side's runs, prepared for pooling them many times over with given counts.
struct Pool {
    /// Each pair's figures.
    runs: Vec<Figures>,
    /// Each pair's number of requests that have a latency.
    counts: Vec<u64>,
    /// All latencies of all runs, in ns, ascending and each once.
    latencies: Vec<u64>,
    /// By latency, then by pair: the number of requests with at most this latency.
    ranks: Vec<Vec<u64>>,
}

impl Pool {
    fn new(runs: &[&RawRun], line: Line<'_>, summariser: &Summariser<'_>) -> Pool {
        let histograms: Vec<_> = runs.iter().map(|run| pool(&[run], line).latency).collect();
        let recorded = histograms.iter().flat_map(|h| h.iter_recorded());
        let latencies: BTreeSet<u64> = recorded.map(|value| value.value_iterated_to()).collect();
        let mut recorded: Vec<_> = (histograms.iter())
            .map(|h| h.iter_recorded().peekable())
            .collect();
        let mut below = vec![0; runs.len()];
        let rank = |&latency: &u64| {
            for (recorded, below) in recorded.iter_mut().zip(&mut below) {
                if let Some(value) = recorded.next_if(|v| v.value_iterated_to() == latency) {
                    *below += value.count_at_value();
                }
            }
            below.clone()
        };
        Pool {
            ranks: latencies.iter().map(rank).collect(),
            latencies: latencies.into_iter().collect(),
            counts: histograms.iter().map(|h| h.len()).collect(),
            runs: (runs.iter())
                .map(|run| summariser.figures(&[run], line))
                .collect(),
        }
    }

    /// A figure of all runs together, with run `i` counted `times[i]` times.
    fn figure(&self, metric: Metric, times: &[u32]) -> Option<f64> {
        let quantile = match metric {
            // All windows are equally long, so the rate of a pool is the mean of rates.
            Metric::RequestsPerS | Metric::WorkPerS | Metric::CpuShare => {
                return self.mean(metric, times.iter().map(|&n| u64::from(n)));
            }
            Metric::MeanUs => {
                let requests = self
                    .counts
                    .iter()
                    .zip(times)
                    .map(|(&c, &n)| c * u64::from(n));
                return self.mean(metric, requests);
            }
            Metric::P50Us => 0.5,
            Metric::P99Us => 0.99,
            Metric::P999Us => 0.999,
        };
        let counted = |by_pair: &[u64]| -> u64 {
            (by_pair.iter().zip(times))
                .map(|(&count, &n)| count * u64::from(n))
                .sum()
        };
        let rank = (counted(&self.counts) as f64 * quantile).ceil().max(1.0) as u64;
        let at = self.ranks.partition_point(|ranks| counted(ranks) < rank);
        self.latencies.get(at).map(|&ns| ns as f64 / 1e3)
    }

    /// The mean over the runs, with run `i` weighing `weights[i]`; runs without a value are left out.
    fn mean(&self, metric: Metric, weights: impl Iterator<Item = u64>) -> Option<f64> {
        let (mut sum, mut total) = (0.0, 0.0);
        for (figures, weight) in self.runs.iter().zip(weights) {
            if let Some(value) = metric.of(figures).filter(|_| weight > 0) {
                sum += value * weight as f64;
                total += weight as f64;
            }
        }
        (total > 0.0).then(|| sum / total)
    }
}

/// Mean CPU use and greatest memory of several runs' agents.
pub(super) fn agent_cost(costs: impl Iterator<Item = AgentCost>) -> Option<AgentCost> {
    let costs: Vec<AgentCost> = costs.collect();
    Some(AgentCost {
        rss_bytes: costs.iter().map(|cost| cost.rss_bytes).max()?,
        cpu_percent: costs.iter().map(|cost| cost.cpu_percent).sum::<f64>() / costs.len() as f64,
    })
}

/// The pairs in which every side was measured.
pub(super) fn complete_pairs(raw: &[RawRun], sides: usize) -> BTreeSet<u32> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for run in raw {
        *counts.entry(run.pair).or_default() += 1;
    }
    counts
        .into_iter()
        .filter(|&(_, count)| count == sides)
        .map(|(pair, _)| pair)
        .collect()
}

/// The tenants in the scenario's order, then the classes that have tenants.
fn lines(raw: &[RawRun]) -> Vec<Line<'_>> {
    let Some(first) = raw.first() else {
        return Vec::new();
    };
    let tenants = first
        .measurements
        .iter()
        .map(|m| (m.tenant.as_str(), m.class));
    let classes = [TenantClass::Latency, TenantClass::Batch]
        .into_iter()
        .filter(|class| first.measurements.iter().any(|m| m.class == *class))
        .map(|class| (ALL, class));
    tenants.chain(classes).collect()
}

struct Pooled {
    latency: Histogram<u64>,
    requests: u64,
    errors: u64,
    /// `None` where there is no work, or where units differ.
    work: Option<f64>,
    work_unit: &'static str,
    cpu_ns: u64,
    /// By thread program; empty for the line of a class.
    programs_ns: BTreeMap<String, u64>,
    /// The length of the windows, each run counted once, in ns.
    length_ns: u64,
    scheduling: Option<Scheduling>,
    guest: Option<GuestCounts>,
    /// Only for the line of a single tenant.
    late_seconds: Option<u64>,
}

fn pool(runs: &[&RawRun], line: Line<'_>) -> Pooled {
    let mut pooled = Pooled {
        latency: latency_histogram(),
        requests: 0,
        errors: 0,
        work: None,
        work_unit: "",
        cpu_ns: 0,
        programs_ns: BTreeMap::new(),
        length_ns: 0,
        scheduling: None,
        guest: None,
        late_seconds: None,
    };
    let mut units = BTreeSet::new();
    for run in runs {
        let belongs = |m: &&Measurement| {
            if line.0 == ALL {
                m.class == line.1
            } else {
                m.tenant.as_str() == line.0
            }
        };
        let members = run.measurements.iter().filter(belongs);
        pooled.length_ns += members.clone().map(|m| m.length_ns).max().unwrap_or(0);
        for m in members {
            // All histograms have equal bounds and saturate, so adding cannot fail.
            if let Err(error) = pooled.latency.add(&m.latency) {
                tracing::error!("latencies of {} are left out: {error}", m.tenant);
            }
            pooled.requests += m.requests;
            pooled.errors += m.errors;
            pooled.cpu_ns += m.cpu_ns;
            for (program, ns) in m.programs_ns.iter().filter(|_| line.0 != ALL) {
                *pooled.programs_ns.entry(program.clone()).or_default() += ns;
            }
            if let Some(scheduling) = &m.scheduling {
                pooled.scheduling.get_or_insert_default().add(scheduling);
            }
            if let Some(late) = m.late_seconds.filter(|_| line.0 != ALL) {
                *pooled.late_seconds.get_or_insert_default() += late;
            }
            if let Some(guest) = &m.guest {
                pooled.guest.get_or_insert_default().add(guest);
            }
            if let Some(work) = m.work {
                units.insert(m.work_unit);
                pooled.work = Some(pooled.work.unwrap_or(0.0) + work);
            }
        }
    }
    match units.first() {
        Some(unit) if units.len() == 1 => pooled.work_unit = unit,
        _ => pooled.work = None,
    }
    pooled
}

/// Points evenly spaced on the axis -log10(1 - q), as far as the number of requests resolves it.
fn curve(latency: &Histogram<u64>) -> Vec<(f64, f64)> {
    const PER_DECADE: usize = 24;
    let decades = (latency.len() as f64).log10();
    let steps = (decades * PER_DECADE as f64).floor() as usize;
    (0..=steps)
        .map(|step| {
            let q = 1.0 - 10f64.powf(-(step as f64) / PER_DECADE as f64);
            (q, latency.value_at_quantile(q) as f64 / 1e3)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(tenant: &str, latencies_us: &[u64]) -> Measurement {
        let mut latency = latency_histogram();
        for &us in latencies_us {
            latency.record(us * 1_000).unwrap();
        }
        Measurement {
            tenant: tenant.into(),
            class: TenantClass::Latency,
            requests: latency.len(),
            latency,
            errors: 1,
            work: None,
            work_unit: "",
            cpu_ns: 500_000_000,
            programs_ns: BTreeMap::new(),
            length_ns: 2_000_000_000,
            generator: None,
            scheduling: None,
            guest: None,
            late_seconds: None,
        }
    }

    fn batch(tenant: &str, work: f64, work_unit: &'static str) -> Measurement {
        Measurement {
            class: TenantClass::Batch,
            work: Some(work),
            work_unit,
            errors: 0,
            ..measurement(tenant, &[])
        }
    }

    fn run(pair: u32, side: usize, measurements: Vec<Measurement>) -> RawRun {
        RawRun {
            pair,
            position: side as u32,
            side,
            seed: 1,
            busy_percent: 90.0,
            steal_percent: 0.5,
            idle_cpus: 0,
            switches: Some(4000),
            held_cpus: None,
            agent: (side == 1).then_some(AgentCost {
                cpu_percent: 0.5,
                rss_bytes: 1 << 20,
            }),
            stillness: Stillness::default(),
            measurements,
        }
    }

    fn close(value: Option<f64>, expected: f64) -> bool {
        (value.unwrap() / expected - 1.0).abs() < 0.002
    }

    /// Two tenants, two pairs; on side `b` latencies are half of those on side `a`.
    fn two_pairs() -> Vec<RawRun> {
        let of = |scale: u64| {
            vec![
                measurement("a", &[100 / scale, 300 / scale]),
                measurement("b", &[500 / scale, 500 / scale, 500 / scale, 1100 / scale]),
                batch("c", 40.0 * scale as f64, "rounds"),
            ]
        };
        vec![
            run(0, 0, of(1)),
            run(0, 1, of(2)),
            run(1, 1, of(2)),
            run(1, 0, of(1)),
        ]
    }

    #[test]
    fn classes_pool_requests_and_ratios_are_those_of_the_pools() {
        let labels = ["default".to_string(), "quell".to_string()];
        let summariser = Summariser {
            labels: &labels,
            cpus: 2,
            seconds: 2.0,
            seed: 1,
        };
        let raw = two_pairs();
        let results = summariser.results(&raw);
        let find = |side: &str, tenant: &str, class: TenantClass| {
            let found = |r: &&SideResult| {
                (r.side.as_str(), r.tenant.as_str(), r.class) == (side, tenant, class)
            };
            results.iter().find(found).unwrap().figures.clone()
        };
        let all = find("default", ALL, TenantClass::Latency);
        assert!(close(all.mean_us, 500.0), "{all:?}"); // (100+300+3*500+1100)/6
        assert!(close(all.p50_us, 500.0) && close(all.p99_us, 1100.0));
        assert_eq!((all.requests, all.errors), (12 - 4, 4));
        assert!(close(all.requests_per_s, 2.0)); // 8 in two windows of 2 s
        assert!(close(Some(all.cpu_share), 0.25)); // 2 tenants, 0.5 s of 2 s on 2 CPUs
        let work = find("quell", ALL, TenantClass::Batch);
        assert!(close(work.work_per_s, 40.0) && work.mean_us.is_none());
        let comparisons = summariser.comparisons(&raw, 1);
        let ratio = |tenant: &str, metric: Metric| {
            comparisons
                .iter()
                .find(|c| c.tenant == tenant && c.metric == metric)
                .unwrap()
        };
        assert!(close(Some(ratio("a", Metric::MeanUs).ratio), 0.5));
        assert!(close(Some(ratio("c", Metric::WorkPerS).ratio), 2.0));
        assert_eq!(ratio(ALL, Metric::MeanUs).significant(), Some(true));
        assert_eq!(ratio(ALL, Metric::MeanUs).pairs, 2);
        assert!(
            !comparisons
                .iter()
                .any(|c| c.class == TenantClass::Batch && c.metric == Metric::MeanUs)
        );
        let sides = summariser.sides(&raw);
        assert_eq!((sides[0].agent, sides[0].busy_percent), (None, 90.0));
        assert_eq!(sides[1].agent.unwrap().rss_bytes, 1 << 20);
    }

    /// A pool that counts each run once has the figures of the results.
    #[test]
    fn pools_agree_with_the_results() {
        let labels = ["default".to_string(), "quell".to_string()];
        let summariser = Summariser {
            labels: &labels,
            cpus: 2,
            seconds: 2.0,
            seed: 1,
        };
        let raw: Vec<RawRun> = (0..4u32)
            .map(|pair| {
                let latencies: Vec<u64> =
                    (1..=500).map(|i| i * u64::from(7 + pair * pair)).collect();
                run(
                    pair,
                    0,
                    vec![
                        measurement("a", &latencies),
                        batch("c", f64::from(pair), "rounds"),
                    ],
                )
            })
            .collect();
        let runs: Vec<&RawRun> = raw.iter().collect();
        for line in [("a", TenantClass::Latency), ("c", TenantClass::Batch)] {
            let pool = Pool::new(&runs, line, &summariser);
            for metric in Metric::ALL {
                let expected = metric.of(&summariser.figures(&runs, line));
                let figure = pool.figure(metric, &[1; 4]);
                assert_eq!(
                    figure.is_some(),
                    expected.is_some(),
                    "{metric} of {}",
                    line.0
                );
                if let Some(expected) = expected {
                    assert!(
                        close(figure, expected),
                        "{metric} of {}: {figure:?} for {expected}",
                        line.0
                    );
                }
                // A draw of only one pair has that pair's figures.
                let single = metric.of(&summariser.figures(&[&raw[2]], line));
                assert_eq!(
                    pool.figure(metric, &[0, 0, 3, 0]).map(|v| v as f32),
                    single.map(|v| v as f32),
                    "{metric}"
                );
            }
        }
    }

    #[test]
    fn incomplete_pairs_count_only_as_raw_runs() {
        let labels = ["default".to_string(), "quell".to_string()];
        let summariser = Summariser {
            labels: &labels,
            cpus: 2,
            seconds: 2.0,
            seed: 1,
        };
        let mut raw = two_pairs();
        raw.push(run(
            2,
            0,
            vec![measurement("a", &[9_000]), measurement("b", &[9_000])],
        ));
        assert_eq!(complete_pairs(&raw, 2), BTreeSet::from([0, 1]));
        assert!(
            summariser
                .results(&raw)
                .iter()
                .all(|r| r.figures.max_us.unwrap_or(0.0) < 2_000.0)
        );
        assert_eq!(summariser.runs(&raw).len(), 5);
    }

    #[test]
    fn work_of_different_units_is_not_added() {
        let raw = run(
            0,
            0,
            vec![batch("a", 1.0, "bytes"), batch("b", 2.0, "rounds")],
        );
        assert_eq!(pool(&[&raw], (ALL, TenantClass::Batch)).work, None);
        assert_eq!(pool(&[&raw], ("b", TenantClass::Batch)).work, Some(2.0));
    }

    #[test]
    fn curves_rise_to_the_last_request_that_tells() {
        let mut latency = latency_histogram();
        for us in 1..=1_000 {
            latency.record(us * 1_000).unwrap();
        }
        let points = curve(&latency);
        assert!(
            points
                .windows(2)
                .all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1)
        );
        let (q, us) = *points.last().unwrap();
        assert!(
            (q - 0.999).abs() < 1e-9 && (us - 999.0).abs() < 2.0,
            "{q} {us}"
        );
    }
}
