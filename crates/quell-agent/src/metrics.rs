//! `GET /metrics`: the shared state in the Prometheus (OpenMetrics) text format.
//!
//! Nothing is counted twice: every value is read from the state when it is asked for.

use crate::state::SharedState;
use crate::window::TenantSums;
use crate::wire::Status;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::encoding::{EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use quell_model::{Advice, CpuSet, Effect, Finding, GroupPlan, PoolsPlan, WhatIf};
use quell_sys::clock::monotonic_ns;
use std::fmt;
use std::sync::Arc;

/// The metrics as text.
///
/// # Errors
/// Never in practice: writing to a string does not fail.
pub fn encode(state: &Arc<SharedState>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("quell");
    registry.register_collector(Box::new(Metrics(state.clone())));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Metrics(Arc<SharedState>);

impl Collector for Metrics {
    fn encode(&self, mut to: DescriptorEncoder) -> fmt::Result {
        let status = self.0.status(10);
        agent(&mut to, &status)?;
        let rules: Vec<_> = self
            .0
            .decisions_by_rule()
            .into_iter()
            .map(|(rule, count)| ([("rule", rule.as_str())], count))
            .collect();
        counters(
            &mut to,
            "decisions",
            "Changes of plans, by rule.",
            None,
            &rules,
        )?;
        effects(&mut to, &status)?;
        tenants(&mut to, &status)?;
        if let Some(plan) = &status.pools {
            pools(&mut to, plan)?;
        }
        let totals = &self.0.total().tenants;
        times(&mut to, totals)?;
        waits(&mut to, totals)
    }
}

fn agent(to: &mut DescriptorEncoder, status: &Status) -> fmt::Result {
    let build = [([("version", status.version.as_str())], 1)];
    gauges(to, "build_info", "The agent's version.", None, &build)?;
    let source = match status.source {
        quell_model::Source::Bpf => "bpf",
        quell_model::Source::Procfs => "procfs",
        quell_model::Source::Simulator => "simulator",
    };
    let source = [([("source", source)], 1)];
    gauges(
        to,
        "source_info",
        "Where the figures come from.",
        None,
        &source,
    )?;
    let acting = i64::from(status.acting);
    gauge(
        to,
        "acting",
        "1 if the agent changes the host, 0 if it only decides.",
        None,
        acting,
    )?;
    counter(
        to,
        "periods",
        "Control periods completed.",
        None,
        status.periods,
    )?;
    counter(
        to,
        "overruns",
        "Deadlines missed because a period took too long.",
        None,
        status.overruns,
    )?;
    let help = "Periods without a snapshot because observing failed.";
    counter(to, "observe_errors", help, None, status.observe_errors)?;
    counter(
        to,
        "reloads",
        "Successful reloads of the configuration.",
        None,
        status.reloads,
    )?;
    counter(
        to,
        "changes",
        "Settings written to the host.",
        None,
        status.changes,
    )?;
    let cost = status.last_period;
    let steps = [
        ("observe", cost.observe_us),
        ("decide", cost.decide_us),
        ("act", cost.act_us),
    ]
    .map(|(step, us)| ([("step", step)], us as f64 / 1e6));
    gauges(
        to,
        "last_period",
        "Wall time of the last period's steps.",
        Some(Unit::Seconds),
        &steps,
    )?;
    let cpu_s = status.agent.cpu_ns as f64 / 1e9;
    counter(
        to,
        "agent_cpu",
        "CPU time of the agent.",
        Some(Unit::Seconds),
        cpu_s,
    )?;
    let rss = status.agent.rss_bytes as i64;
    gauge(
        to,
        "agent_resident_memory",
        "Resident memory of the agent.",
        Some(Unit::Bytes),
        rss,
    )
}

fn effects(to: &mut DescriptorEncoder, status: &Status) -> fmt::Result {
    if status.effects.is_empty() {
        return Ok(());
    }
    let each = |value: fn(&Effect) -> i64| {
        let levers = status.effects.iter();
        let levers = levers.map(|it| ([("lever", it.lever.as_str())], value(it)));
        levers.collect::<Vec<_>>()
    };
    let help = "1 if the lever acts but for the blocks of a trial, 0 if it is off.";
    gauges(
        to,
        "lever_acting",
        help,
        None,
        &each(|it| i64::from(it.acts)),
    )?;
    let help = "Pairs of blocks that what is known of the lever rests on.";
    gauges(to, "lever_pairs", help, None, &each(|it| it.pairs as i64))?;
    let findings = [
        Finding::Untried,
        Finding::Helps,
        Finding::Harms,
        Finding::NothingShown,
    ];
    let levers = status.effects.iter();
    let levers = levers.flat_map(|it| {
        findings.map(|finding| {
            let labels = [("lever", it.lever.as_str()), ("finding", finding.as_str())];
            (labels, i64::from(it.finding == finding))
        })
    });
    let help = "What trials have shown of the lever.";
    gauges(to, "lever_finding", help, None, &levers.collect::<Vec<_>>())?;
    let known = status.effects.iter();
    let known = known.filter_map(|it| Some((it.lever.as_str(), it.responses?)));
    let known = known.flat_map(|(lever, it)| {
        let bounds = [("guess", it.ratio), ("low", it.low), ("high", it.high)];
        bounds.map(|(bound, ratio)| ([("lever", lever), ("bound", bound)], ratio))
    });
    let help = "Mean responses where the lever acts over those where it rests, and the interval.";
    gauges(
        to,
        "lever_response_ratio",
        help,
        None,
        &known.collect::<Vec<_>>(),
    )
}

fn tenants(to: &mut DescriptorEncoder, status: &Status) -> fmt::Result {
    let threads: Vec<_> = status
        .tenants
        .iter()
        .map(|t| ([("tenant", t.name.as_str())], t.threads as i64))
        .collect();
    gauges(
        to,
        "tenant_threads",
        "Threads of the tenant.",
        None,
        &threads,
    )?;
    let info: Vec<_> = status
        .tenants
        .iter()
        .map(|t| {
            let own = [
                ("tenant", t.name.to_string()),
                ("class", t.class.as_str().to_string()),
                ("kind", t.kind.as_str().to_string()),
            ];
            let own = own.map(|(label, value)| (label.to_string(), value));
            let found = t.labels.iter();
            let found = found.map(|(label, value)| (label.clone(), value.clone()));
            (own.into_iter().chain(found).collect::<Vec<_>>(), 1)
        })
        .collect();
    let help = "What is known of the tenant; of one that a rule found, what its source says.";
    gauges(to, "tenant_info", help, None, &info)?;
    let promised = status.tenants.iter().filter(|t| t.promise.is_some());
    let broken: Vec<_> = promised
        .map(|t| ([("tenant", t.name.as_str())], t.broken_promises))
        .collect();
    let help = "Periods that ended before the tenant had the budget that was promised and wanted.";
    counters(to, "tenant_broken_promises", help, None, &broken)?;
    let own = |group: &GroupPlan| match group {
        GroupPlan::Own { cpus, .. } => Some(cpus.len() as i64),
        GroupPlan::Shared { .. } => Some(0),
        GroupPlan::Left { .. } => None,
    };
    let groups = status.tenants.iter();
    let groups =
        groups.filter_map(|t| Some(([("tenant", t.name.as_str())], own(t.group.as_ref()?)?)));
    let help = "CPUs of its own that the virtual machine has.";
    gauges(to, "tenant_cpus", help, None, &groups.collect::<Vec<_>>())?;
    let online = status.tenants.iter();
    let online = online.filter_map(|t| Some(([("tenant", t.name.as_str())], i64::from(t.online?))));
    let help = "Virtual CPUs that the guest has online.";
    gauges(
        to,
        "tenant_online_vcpus",
        help,
        None,
        &online.collect::<Vec<_>>(),
    )
}

fn pools(to: &mut DescriptorEncoder, pools: &PoolsPlan) -> fmt::Result {
    let count = |name: &'static str, cpus: &CpuSet| ([("pool", name)], cpus.len() as i64);
    let all = [
        count("emulators", &pools.emulators),
        count("idle", &pools.idle),
        count("left", &pools.left),
    ];
    gauges(to, "pool_cpus", "CPUs of no virtual machine.", None, &all)?;
    let is = |advice: Advice| {
        (
            [("advice", advice.as_str())],
            i64::from(advice == pools.verdict.advice),
        )
    };
    let all = [Advice::Accept, Advice::Hold, Advice::Migrate].map(is);
    gauges(
        to,
        "verdict",
        "Whether the host can take more virtual machines.",
        None,
        &all,
    )?;
    let verdict = &pools.verdict;
    let left_s = verdict.until_ns.saturating_sub(monotonic_ns()) as f64 / 1e9;
    let help = "For how long the verdict is good unless another one is given.";
    gauge(to, "verdict_good_for", help, Some(Unit::Seconds), left_s)?;
    let of = |what: fn(&WhatIf) -> i64| -> Vec<_> {
        let all = verdict.what_if.iter();
        all.map(|it| ([("tenant", it.name.as_str())], what(it)))
            .collect()
    };
    let help = "CPUs that the virtual machine's leaving would give back.";
    gauges(
        to,
        "without_tenant_freed_cpus",
        help,
        None,
        &of(|it| it.frees.into()),
    )?;
    let help = "CPUs that others would still lack without the virtual machine.";
    gauges(
        to,
        "without_tenant_lacking_cpus",
        help,
        None,
        &of(|it| it.lacking.into()),
    )?;
    let help = "Cores that would idle without the virtual machine.";
    gauges(
        to,
        "without_tenant_idle_cores",
        help,
        None,
        &of(|it| it.idle_cores as i64),
    )
}

/// The sums of the tenants' times, without the causes of waits.
fn times(to: &mut DescriptorEncoder, totals: &[Arc<TenantSums>]) -> fmt::Result {
    let run: Vec<_> = totals
        .iter()
        .map(|t| ([("tenant", t.name.as_str())], t.run_ns as f64 / 1e9))
        .collect();
    counters(
        to,
        "tenant_run",
        "CPU time of the tenant's threads.",
        Some(Unit::Seconds),
        &run,
    )?;
    let ready: Vec<_> = totals
        .iter()
        .filter_map(|t| Some(([("tenant", t.name.as_str())], t.ready_ns? as f64 / 1e9)))
        .collect();
    let help = "Time the tenant's threads were ready and not served.";
    counters(to, "tenant_ready", help, Some(Unit::Seconds), &ready)?;

    let throttled: Vec<_> = totals
        .iter()
        .filter_map(|t| Some(([("tenant", t.name.as_str())], t.throttled_ns? as f64 / 1e9)))
        .collect();
    let help = "Time for which a CPU bandwidth limit stopped the tenant's threads.";
    counters(
        to,
        "tenant_throttled",
        help,
        Some(Unit::Seconds),
        &throttled,
    )
}

fn waits(to: &mut DescriptorEncoder, totals: &[Arc<TenantSums>]) -> fmt::Result {
    let mut waits = Vec::new();
    for tenant in totals {
        let Some(by) = &tenant.waits else { continue };
        let mut add = |cause: &'static str, other: &str, ns: u64| {
            let labels = [
                ("tenant", tenant.name.to_string()),
                ("cause", cause.to_string()),
                ("other", other.to_string()),
            ];
            waits.push((labels, ns as f64 / 1e9));
        };
        add("own", "", by.own_ns);
        add("host", "", by.host_ns);
        add("bandwidth", "", by.bandwidth_ns);
        add("steal", "", by.steal_ns);
        add("unknown", "", by.unknown_ns);
        if by.others_ns > 0 {
            add("others", "", by.others_ns);
        }
        for (other, ns) in &by.tenants {
            add("tenant", other.as_str(), *ns);
        }
    }
    let help = "Ready and throttled time by cause; `other` is the tenant that had the CPU, for cause `tenant`.";
    counters(to, "tenant_wait", help, Some(Unit::Seconds), &waits)
}

fn counter<N>(
    to: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    value: N,
) -> fmt::Result
where
    N: EncodeCounterValue + Copy,
    ConstCounter<N>: EncodeMetric,
{
    let encoder = to.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
    ConstCounter::new(value).encode(encoder)
}

fn gauge<N>(
    to: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    value: N,
) -> fmt::Result
where
    N: EncodeGaugeValue + Copy,
    ConstGauge<N>: EncodeMetric,
{
    let encoder = to.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
    ConstGauge::new(value).encode(encoder)
}

fn counters<L: EncodeLabelSet, N: Copy>(
    to: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    values: &[(L, N)],
) -> fmt::Result
where
    ConstCounter<N>: EncodeMetric,
{
    if values.is_empty() {
        return Ok(());
    }
    let encoder = to.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
    family(encoder, values, ConstCounter::new)
}

fn gauges<L: EncodeLabelSet, N: Copy>(
    to: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    values: &[(L, N)],
) -> fmt::Result
where
    ConstGauge<N>: EncodeMetric,
{
    if values.is_empty() {
        return Ok(());
    }
    let encoder = to.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
    family(encoder, values, ConstGauge::new)
}

fn family<L: EncodeLabelSet, N: Copy, M: EncodeMetric>(
    mut encoder: MetricEncoder,
    values: &[(L, N)],
    metric: impl Fn(N) -> M,
) -> fmt::Result {
    for (labels, value) in values {
        metric(*value).encode(encoder.encode_family(labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{facts, plan_with_reasons, snapshot, waits};
    use crate::wire::PeriodCost;
    use quell_model::{EffectInterval, GuestSample, Lever, Promise, Verdict};
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;

    /// The metrics of an agent with every figure.
    fn all() -> String {
        let state = Arc::new(SharedState::new("quell.toml".into(), facts()));
        let mut now = snapshot(0, &[("a", 2), ("b", 1)]);
        now.tenants[0].waits = Some(waits(1_500_000_000, &[("b", 250_000_000)]));
        for tenant in &mut now.tenants {
            tenant.labels = Arc::new([("source".to_string(), "vm".to_string())].into());
        }
        now.tenants[1].guest = Some(GuestSample {
            at_ns: 0,
            used_ns: 0,
            switches: 0,
            online: 2,
        });
        let mut plan = plan_with_reasons(&now, 1);
        plan.tenants[0].promise = Some(Promise::Kept {
            cpus: Vec::new(),
            unchanged: None,
        });
        plan.tenants[1].group = Some(GroupPlan::Own {
            cpus: CpuSet::first(3),
            online: 3,
            lacks: 0,
        });
        plan.pools = Some(PoolsPlan {
            emulators: CpuSet::first(1),
            idle: CpuSet::first(5),
            left: CpuSet::new(),
            verdict: Verdict {
                advice: Advice::Hold,
                why: "so".into(),
                idle_cores: [5, 0, 5],
                until_ns: 0,
                would_free: vec![("b".into(), 3)],
                what_if: vec![WhatIf {
                    name: "b".into(),
                    frees: 3,
                    lacking: 1,
                    idle_cores: 5,
                }],
            },
        });
        plan.effects = Arc::new(vec![Effect {
            lever: Lever::Feedback,
            acts: true,
            finding: Finding::Helps,
            since_ns: 0,
            next_ns: 0,
            pairs: 7,
            void: 0,
            responses: Some(EffectInterval {
                ratio: 0.5,
                low: 0.25,
                high: 0.75,
            }),
            tenants: Vec::new(),
        }]);
        state.broke(&BTreeMap::from([("a".into(), 3)]));
        let cost = PeriodCost {
            observe_us: 1500,
            decide_us: 20,
            act_us: 0,
        };
        state.publish(now, plan, None, cost);
        encode(&state).unwrap()
    }

    #[test]
    fn every_figure_of_the_shared_state_is_there_with_its_unit() {
        let text = all();
        for line in [
            "# TYPE quell_periods counter",
            "quell_periods_total 1",
            "quell_acting 1",
            r#"quell_source_info{source="bpf"} 1"#,
            r#"quell_last_period_seconds{step="observe"} 0.0015"#,
            r#"quell_decisions_total{rule="latency_lowered"} 3"#,
            r#"quell_lever_pairs{lever="feedback"} 7"#,
            r#"quell_lever_response_ratio{lever="feedback",bound="low"} 0.25"#,
            r#"quell_tenant_threads{tenant="a"} 2"#,
            r#"quell_tenant_broken_promises_total{tenant="a"} 3"#,
            r#"quell_tenant_cpus{tenant="b"} 3"#,
            r#"quell_tenant_online_vcpus{tenant="b"} 2"#,
            r#"quell_pool_cpus{pool="idle"} 5"#,
            r#"quell_verdict{advice="hold"} 1"#,
            r#"quell_verdict{advice="accept"} 0"#,
            "quell_verdict_good_for_seconds 0.0",
            r#"quell_without_tenant_freed_cpus{tenant="b"} 3"#,
            r#"quell_without_tenant_lacking_cpus{tenant="b"} 1"#,
            r#"quell_without_tenant_idle_cores{tenant="b"} 5"#,
            r#"quell_tenant_run_seconds_total{tenant="a"} 0.04"#,
            r#"quell_tenant_wait_seconds_total{tenant="a",cause="own",other=""} 1.5"#,
            r#"quell_tenant_wait_seconds_total{tenant="a",cause="tenant",other="b"} 0.25"#,
            "# EOF",
        ] {
            assert!(
                text.lines().any(|l| l == line),
                "no line `{line}` in\n{text}"
            );
        }
    }

    /// A metric's name, its type, and the names of its labels.
    type Metric = (String, String, BTreeSet<String>);

    /// The metrics of a text for Prometheus.
    fn encoded(text: &str) -> BTreeSet<Metric> {
        let mut kind = "";
        let mut metrics = BTreeSet::new();
        for line in text.lines() {
            if let Some(described) = line.strip_prefix("# TYPE ") {
                kind = described.split(' ').nth(1).unwrap();
            }
            if line.starts_with('#') {
                continue;
            }
            let (name, labels) = match line.split_once('{') {
                Some((name, rest)) => (name, rest.split('}').next().unwrap()),
                None => (line.split(' ').next().unwrap(), ""),
            };
            let labels = labels.split(',').filter_map(|label| label.split_once('='));
            let labels = labels.map(|(label, _)| label.to_string()).collect();
            metrics.insert((name.to_string(), kind.to_string(), labels));
        }
        metrics
    }

    /// The metrics that the reference's tables list.
    fn referenced(reference: &str) -> BTreeSet<Metric> {
        let mut of_tenants = false;
        let mut metrics = BTreeSet::new();
        for line in reference.lines() {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            match cells[..] {
                [_, "metric", _, labels, ..] => of_tenants = labels == "more labels",
                [_, name, kind, labels, ..] if name.starts_with("`quell_") => {
                    let labels = labels.split('`').skip(1).step_by(2);
                    let labels = labels.chain(of_tenants.then_some("tenant"));
                    let labels = labels.map(String::from).collect();
                    metrics.insert((name.trim_matches('`').to_string(), kind.to_string(), labels));
                }
                _ => {}
            }
        }
        metrics
    }

    #[test]
    fn the_reference_lists_the_metrics_and_no_others() {
        let reference =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
        let listed = referenced(&std::fs::read_to_string(reference).unwrap());
        let encoded = encoded(&all());
        let unlisted: Vec<_> = encoded.difference(&listed).collect();
        let unknown: Vec<_> = listed.difference(&encoded).collect();
        assert!(
            unlisted.is_empty() && unknown.is_empty(),
            "not in docs/reference/metrics.md: {unlisted:?}; only there: {unknown:?}"
        );
        assert!(listed.len() > 20, "{listed:?}");
    }
}
