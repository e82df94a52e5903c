//! Runs a scenario once, as it is, and says what each tenant's requests took and cost:
//! `cargo run --release -p quell-bench --example measure -- scenarios/demo.toml [SECONDS]`.
//! It wants `quell-player` beside it: `cargo build --release -p quell-bench` makes it.

use anyhow::Context;
use quell_bench::workload::Workload;
use quell_model::config::Scenario;
use std::path::Path;
use std::time::Duration;

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let file = args.next().context("which scenario?")?;
    let seconds: f64 = args.next().map_or(Ok(5.0), |seconds| seconds.parse())?;
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    let scenario = Scenario::parse(Path::new(&file), &text)?;
    let player = std::env::current_exe()?.with_file_name("../quell-player");
    let mut workload = Workload::start(&scenario, &player, Default::default())?;
    let length = Duration::from_secs_f64(seconds);
    println!(
        "tenant              req/s  errors   mean us    p50 us    p99 us  cpu %  cpu us/req  work/s        late p99 us  generator cpu %"
    );
    for m in workload.measure(Duration::from_secs(1), length, 1)? {
        let per_s = |n: f64| n * 1e9 / m.length_ns as f64;
        let us = |q: f64| m.latency.value_at_quantile(q) as f64 / 1e3;
        let generator = m.generator.as_ref();
        println!(
            "{:<18} {:>6.0} {:>7} {:>9.0} {:>9.0} {:>9.0} {:>6.1} {:>11.0} {:>11.0} {:<6} {:>8.0} {:>9.1}  {}",
            m.tenant.as_str(),
            per_s(m.requests as f64),
            m.errors,
            m.latency.mean() / 1e3,
            us(0.5),
            us(0.99),
            per_s(m.cpu_ns as f64) / 1e7,
            m.cpu_ns as f64 / 1e3 / m.requests.max(1) as f64,
            per_s(m.work.unwrap_or(0.0)),
            m.work_unit,
            generator.map_or(0.0, |g| g.late_p99_ns as f64 / 1e3),
            generator.map_or(0.0, |g| per_s(g.cpu_ns as f64) / 1e7),
            generator
                .and_then(|g| g.not_realtime.clone())
                .unwrap_or_default(),
        );
    }
    workload.stop()
}
