//! Runs a scenario once, as it is, and prints what each tenant's requests took and cost: `cargo run --release
//! -p quell-bench -- scenarios/demo.toml [SECONDS [WARMUP_SECONDS]]`. Meant for finding good rates; `quell
//! bench` compares schedulers.

use anyhow::Context;
use quell_bench::run::interrupt_flag;
use quell_bench::workload::{Measurement, Workload, player};
use quell_scenario::Scenario;
use std::path::Path;
use std::time::Duration;

fn main() -> anyhow::Result<()> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if args.first().is_some_and(|first| first == "player") {
        return player::main(args[1..].to_vec());
    }
    let file = Path::new(
        args.first()
            .context("usage: SCENARIO [SECONDS [WARMUP_SECONDS]]")?,
    );
    let seconds = |index: usize, default: f64| -> anyhow::Result<Duration> {
        let given = args.get(index).map(|arg| arg.to_string_lossy().parse());
        let seconds = given.transpose().context("not a number of seconds")?;
        Ok(Duration::try_from_secs_f64(seconds.unwrap_or(default))?)
    };
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let scenario = Scenario::parse(file, &text)?;
    let (length, warmup) = (
        seconds(1, scenario.seconds)?,
        seconds(2, scenario.warmup_seconds)?,
    );
    // With the flag, Ctrl-C ends the tenants' processes and removes cgroups, too.
    let interrupt = interrupt_flag()?;
    let mut workload = Workload::start(&scenario, &std::env::current_exe()?, interrupt)?;
    let pids: Vec<u32> = workload
        .tenants()
        .iter()
        .flat_map(|t| &t.pids)
        .map(|pid| pid.0)
        .collect();
    println!("running: {pids:?}");
    println!(
        "{:<16} {:>7} {:>6} {:>9} {:>9} {:>9} {:>6} {:>10} {:>18} {:>11} {:>15}",
        "tenant",
        "req/s",
        "errors",
        "mean us",
        "p50 us",
        "p99 us",
        "cpu %",
        "cpu us/req",
        "work/s",
        "late p99 us",
        "generator cpu %",
    );
    workload
        .measure(warmup, length, 1)?
        .0
        .iter()
        .for_each(print);
    workload.stop()
}

fn print(m: &Measurement) {
    let per_s = |n: f64| n * 1e9 / m.length_ns as f64;
    let us = |quantile: f64| m.latency.value_at_quantile(quantile) as f64 / 1e3;
    let work = m.work.map_or(String::new(), |work| {
        format!("{:.0} {}", per_s(work), m.work_unit)
    });
    let (late, generator) = m
        .generator
        .as_ref()
        .map_or((0, 0), |g| (g.late_p99_ns, g.cpu_ns));
    println!(
        "{:<16} {:>7.0} {:>6} {:>9.0} {:>9.0} {:>9.0} {:>6.1} {:>10.0} {:>18} {:>11.0} {:>15.1}",
        m.tenant.as_str(),
        per_s(m.requests as f64),
        m.errors,
        m.latency.mean() / 1e3,
        us(0.5),
        us(0.99),
        per_s(m.cpu_ns as f64) / 1e7,
        m.cpu_ns as f64 / 1e3 / m.requests.max(1) as f64,
        work,
        late as f64 / 1e3,
        per_s(generator as f64) / 1e7,
    );
    if let Some(reason) = m.generator.as_ref().and_then(|g| g.not_realtime.as_ref()) {
        println!("  its load generator may have been delayed by the tenants: {reason}");
    }
}
