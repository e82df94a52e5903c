//! Rates that follow from the machine.
//!
//! Problem: a rate that leaves room on one machine overloads a slower one, and what is compared then is who drowns later.
//! Approach: a tenant whose load has `busy_percent` is measured first, without batch tenants, under the kernel's own scheduler, at a part of
//! its scenario's rate. What a request takes of CPU time there says at which rate it keeps that part of the machine busy. Whatever that comes to is
//! said in the result.

use super::{BenchOptions, run};
use crate::progress::Progress;
use crate::report::words;
use crate::result::BenchResult;
use crate::side::Side;
use anyhow::{Context, ensure};
use quell_model::config::{Load, Scenario, TenantSpec};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Of the scenario's rate, while it is measured: a machine of a quarter of the speed is not overloaded yet.
const PART: f64 = 0.25;
/// Warm-up and measured window, in s.
const WARMUP_S: f64 = 0.5;
const SECONDS: f64 = 2.0;
/// Fewer answers than this say nothing.
const LEAST_ANSWERS: u64 = 50;

/// The options with the rates that follow from this machine, and a sentence for each tenant that has one.
///
/// # Errors
/// A tenant that could not be measured, or did not answer.
pub fn of_this_machine(
    options: BenchOptions,
    interrupt: &Arc<AtomicBool>,
    progress: &Progress,
) -> anyhow::Result<(BenchOptions, Vec<String>)> {
    let asks = |tenant: &TenantSpec| wanted(tenant).is_some();
    if !options.scenario.tenants.iter().any(asks) {
        return Ok((options, Vec::new()));
    }
    let mut probe = options.scenario.clone();
    probe.tenants.retain(asks);
    for load in probe.tenants.iter_mut().filter_map(|it| it.load.as_mut()) {
        scale(load, PART);
    }
    let measured = BenchOptions {
        scenario: probe,
        sides: vec![Side::Default],
        seconds: SECONDS,
        warmup_seconds: WARMUP_S,
        pairs: 1,
        scheduling: false,
        trace: None,
        ..options.clone()
    };
    progress.step(
        Duration::ZERO,
        "measuring what requests cost on this machine",
    );
    let result = run(&measured, interrupt, &Progress::silent())
        .context("measuring what requests cost here")?;
    let mut scenario = options.scenario.clone();
    let notes = set(&mut scenario, &result)?;
    Ok((
        BenchOptions {
            scenario,
            ..options
        },
        notes,
    ))
}

fn wanted(tenant: &TenantSpec) -> Option<f64> {
    tenant.load.as_ref()?.busy_percent
}

fn scale(load: &mut Load, by: f64) {
    for rate in [&mut load.rate, &mut load.rate_per_cpu] {
        *rate = rate.map(|it| it * by);
    }
}

/// Sets the rates by what was measured, and says so.
fn set(scenario: &mut Scenario, result: &BenchResult) -> anyhow::Result<Vec<String>> {
    let mut notes = Vec::new();
    for tenant in &mut scenario.tenants {
        let Some(percent) = wanted(tenant) else {
            continue;
        };
        let found = result.results.iter().find(|it| it.tenant == tenant.name);
        let found = found.with_context(|| {
            let name = &tenant.name;
            format!("tenant {name}: `busy_percent` is for one tenant, not for a `count` of them")
        })?;
        let figures = &found.figures;
        let per_s = figures.requests_per_s.unwrap_or(0.0);
        ensure!(
            figures.requests >= LEAST_ANSWERS && per_s > 0.0,
            "tenant {}: {} requests answered in {SECONDS} s at a quarter of its rate: too few to say what one costs here",
            tenant.name,
            figures.requests
        );
        let cost_s = figures.cpu_share * f64::from(result.host.cpus) / per_s;
        ensure!(
            cost_s > 0.0,
            "tenant {}: its requests took no CPU time",
            tenant.name
        );
        let Some(load) = &mut tenant.load else {
            continue;
        };
        // Requests a second that keep so much of one CPU busy.
        let per_cpu = percent / 100.0 / cost_s;
        let cost = words::latency(cost_s * 1e6);
        let name = &tenant.name;
        notes.push(match load.rate_per_cpu {
            Some(_) => {
                load.rate_per_cpu = Some(per_cpu);
                let all = per_cpu * f64::from(result.host.cpus);
                format!(
                    "{name}: a request takes {cost} of CPU time here, so {all:.0} a second were asked for: {percent} % of the CPUs."
                )
            }
            None => {
                load.rate = Some(per_cpu);
                format!(
                    "{name}: a request takes {cost} of CPU time here, so {per_cpu:.0} a second were asked for: {percent} % of one CPU."
                )
            }
        });
    }
    Ok(notes)
}
