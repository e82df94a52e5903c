//! Rates that follow from the machine.
//!
//! Problem: a rate that leaves room on one machine overloads a slower one, and a comparison then only shows
//! which side drowns later. Approach: a tenant whose load has `busy_percent` is measured first, without batch
//! tenants, under the kernel's own scheduler, at a part of its scenario's rate. The CPU time of a request
//! there gives the rate at which requests keep that part of the machine busy. The result says which rates
//! were set.

use super::{BenchOptions, run};
use crate::progress::Progress;
use crate::report::words;
use crate::result::SideResult;
use crate::side::Side;
use anyhow::{Context, ensure};
use quell_scenario::{Load, Scenario, ScenarioTenant};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The part of the scenario's rate at which a tenant is measured: so a machine of a quarter of the speed is
/// not yet overloaded.
const PART: f64 = 0.25;
/// Warm-up and measured window, in s.
const WARMUP_S: f64 = 0.5;
const SECONDS: f64 = 2.0;
/// Fewer answers than this do not tell what a request costs.
const LEAST_ANSWERS: u64 = 50;

/// The options with the rates that follow from this machine, and a sentence for each tenant whose rate was
/// set.
///
/// # Errors
/// Where a tenant cannot be measured (as [`run`]), answers fewer than 50 requests, or uses no CPU time for
/// them.
pub fn of_this_machine(
    options: BenchOptions,
    interrupt: &Arc<AtomicBool>,
    progress: &Progress,
) -> anyhow::Result<(BenchOptions, Vec<String>)> {
    let asks = |tenant: &ScenarioTenant| wanted(tenant).is_some();
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
    let notes = set(&mut scenario, &result.results, result.host.cpus)?;
    Ok((
        BenchOptions {
            scenario,
            ..options
        },
        notes,
    ))
}

fn wanted(tenant: &ScenarioTenant) -> Option<f64> {
    tenant.load.as_ref()?.busy_percent
}

fn scale(load: &mut Load, by: f64) {
    for rate in [&mut load.rate, &mut load.rate_per_cpu] {
        *rate = rate.map(|it| it * by);
    }
}

/// Sets the rates by what was measured on `cpus` CPUs; gives a sentence for each.
fn set(scenario: &mut Scenario, results: &[SideResult], cpus: u32) -> anyhow::Result<Vec<String>> {
    let mut notes = Vec::new();
    for tenant in &mut scenario.tenants {
        let Some(percent) = wanted(tenant) else {
            continue;
        };
        let found = results.iter().find(|it| it.tenant == tenant.spec.name);
        let found = found.with_context(|| format!("tenant {}: no figures", tenant.spec.name))?;
        let figures = &found.figures;
        let per_s = figures.requests_per_s.unwrap_or(0.0);
        ensure!(
            figures.requests >= LEAST_ANSWERS && per_s > 0.0,
            "tenant {}: {} requests answered in {SECONDS} s at a quarter of its rate: too few to say what one costs here",
            tenant.spec.name,
            figures.requests
        );
        let cost_s = figures.cpu_share * f64::from(cpus) / per_s;
        ensure!(
            cost_s > 0.0,
            "tenant {}: its requests took no CPU time",
            tenant.spec.name
        );
        let Some(load) = &mut tenant.load else {
            continue;
        };
        // The requests per second that keep this part of one CPU busy.
        let per_cpu = percent / 100.0 / cost_s;
        let cost = words::latency(cost_s * 1e6);
        let name = &tenant.spec.name;
        notes.push(match load.rate_per_cpu {
            Some(_) => {
                load.rate_per_cpu = Some(per_cpu);
                let all = per_cpu * f64::from(cpus);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Figures;
    use quell_model::config::TenantClass;
    use std::path::Path;

    const SCENARIO: &str = r#"
name = "t"
[[tenant]]
name = "one"
load = { rate = 100.0, busy_percent = 20.0 }
[[tenant.thread]]
name = "w"
program = ["request", { run_us = 1000 }, "respond"]
[[tenant]]
name = "each"
load = { rate_per_cpu = 100.0, busy_percent = 10.0 }
[[tenant.thread]]
name = "w"
program = ["request", { run_us = 1000 }, "respond"]
[[tenant]]
name = "fixed"
load = { rate = 7.0 }
[[tenant.thread]]
name = "w"
program = ["request", { run_us = 1000 }, "respond"]
"#;

    /// The figures of a tenant on four CPUs: the number of answered requests, their rate per second, and the
    /// share of the machine that they took.
    fn measured(tenant: &str, requests: u64, per_s: f64, cpu_share: f64) -> SideResult {
        SideResult {
            side: "default".into(),
            tenant: tenant.into(),
            class: TenantClass::Latency,
            figures: Figures {
                requests,
                requests_per_s: Some(per_s),
                cpu_share,
                ..Figures::default()
            },
        }
    }

    fn set_by(results: &[SideResult]) -> anyhow::Result<(Scenario, Vec<String>)> {
        let mut scenario = Scenario::parse(Path::new("t.toml"), SCENARIO).unwrap();
        let notes = set(&mut scenario, results, 4)?;
        Ok((scenario, notes))
    }

    #[test]
    fn rates_keep_the_asked_part_of_the_machine_busy() {
        // 50 a second that take 2.5 % of four CPUs cost 2 ms each; 25 that take as much cost 4 ms each.
        let results = [
            measured("one", 100, 50.0, 0.025),
            measured("each", 50, 25.0, 0.025),
        ];
        let (scenario, notes) = set_by(&results).unwrap();
        let load = |tenant: usize| scenario.tenants[tenant].load.as_ref().unwrap();
        // 20 % of one CPU by requests of 2 ms; 10 % of each CPU by requests of 4 ms.
        assert!((load(0).rate.unwrap() - 100.0).abs() < 1e-9, "{scenario:?}");
        assert!(
            (load(1).rate_per_cpu.unwrap() - 25.0).abs() < 1e-9,
            "{scenario:?}"
        );
        assert_eq!(load(2).rate, Some(7.0), "who does not ask keeps his rate");
        assert!(
            notes[0].contains("2.00 ms of CPU time here, so 100 a second"),
            "{notes:?}"
        );
        assert!(
            notes[1].contains("4.00 ms of CPU time here, so 100 a second"),
            "{notes:?}"
        );
    }

    #[test]
    fn what_says_nothing_is_an_error() {
        let each = measured("each", 50, 25.0, 0.025);
        for (one, expected) in [
            (measured("one", 49, 24.0, 0.02), "too few to say"),
            (measured("one", 50, 25.0, 0.0), "took no CPU time"),
            (measured("other", 50, 25.0, 0.025), "no figures"),
        ] {
            let error = set_by(&[one, each.clone()]).unwrap_err().to_string();
            assert!(
                error.starts_with("tenant one: ") && error.contains(expected),
                "{error}"
            );
        }
    }
}
