//! Shows a sweep in a terminal: the figures of each class of tenants at each point.

use super::text::{right_align, table};
use super::words;
use crate::result::{ALL, BenchResult, Metric, SideResult};
use crate::sweep::Swept;
use quell_model::config::TenantClass;
use std::fmt::Write;

/// The sweep as text; `styled` for a terminal that shows colours.
pub fn text(swept: &Swept, styled: bool) -> String {
    let mut text = String::new();
    if let Some(first) = swept.points.first() {
        let Swept { keys, points, .. } = swept;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "Scenario `{}` with {} varied: {} points, each in {} pairs of {} s; seed {}.",
            first.scenario,
            keys.join(", "),
            points.len(),
            first.options.pairs,
            first.options.seconds,
            first.options.seed
        );
    }
    let mut header: Vec<&str> = swept.keys.iter().map(String::as_str).collect();
    header.extend([
        "class",
        "side",
        "mean",
        "p99",
        "throughput",
        "Δ mean",
        "Δ p99",
        "busy",
    ]);
    let mut rows = table(styled, &header);
    for result in &swept.points {
        for (number, row) in classes(result).enumerate() {
            let values = swept.keys.iter().map(|key| match number {
                0 => result.options.value(key).unwrap_or_default().to_string(),
                _ => String::new(),
            });
            rows.add_row(values.chain(cells(result, row)));
        }
    }
    right_align(&mut rows);
    let _ = writeln!(text, "{rows}");
    if !swept.complete {
        let _ = writeln!(
            text,
            "Note: Interrupted: not every point was measured to its end."
        );
    }
    text
}

fn classes(result: &BenchResult) -> impl Iterator<Item = &SideResult> {
    result.results.iter().filter(|row| row.tenant == ALL)
}

fn cells(result: &BenchResult, row: &SideResult) -> [String; 8] {
    let latency = |us: Option<f64>| us.map_or(String::new(), words::latency);
    let change = |metric: Metric| {
        let found = result.comparisons.iter().find(|c| {
            (&c.tenant, c.class, &c.side, c.metric) == (&row.tenant, row.class, &row.side, metric)
        });
        found.map_or(String::new(), |found| words::change(found.ratio))
    };
    let (class, mean) = match row.class {
        TenantClass::Latency => ("latency", Metric::MeanUs),
        // A batch tenant gains work, not latency.
        TenantClass::Batch => ("batch work", Metric::WorkPerS),
    };
    let busy = result.sides.iter().find(|side| side.side == row.side);
    [
        class.to_string(),
        row.side.clone(),
        latency(row.figures.mean_us),
        latency(row.figures.p99_us),
        words::throughput(&row.figures).unwrap_or_default(),
        change(mean),
        change(Metric::P99Us),
        busy.map_or(String::new(), |side| format!("{:.0} %", side.busy_percent)),
    ]
}
