//! Shows a result in a terminal: each tenant's figures, the changes, and what they mean in words.

use super::words;
use crate::result::{BenchResult, Comparison, Metric, SideResult};
use comfy_table::{Attribute, Cell, CellAlignment, Color, Table, TableComponent, presets};
use std::fmt::Write;

/// The result as text; `styled` for a terminal that shows colours.
pub fn text(result: &BenchResult, styled: bool) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let mut line = |parts: &str| {
        let _ = writeln!(text, "{parts}");
    };
    line(&format!(
        "Scenario `{}` on {}.",
        result.scenario,
        words::host(&result.host)
    ));
    line(&format!("{}.", words::method(result)));
    if !result.caveat.is_empty() {
        line(&format!("\nCAVEAT: {}\n", result.caveat));
    }
    line(&figures(result, styled).to_string());
    let compared = |side: &&String| result.comparisons.iter().any(|it| it.baseline == **side);
    for baseline in result.options.sides.iter().filter(compared) {
        line(&format!(
            "Change against `{baseline}`, with the 95 % interval over pairs:"
        ));
        line(&changes(result, baseline, styled).to_string());
    }
    if result
        .results
        .iter()
        .any(|row| row.figures.scheduling.is_some())
    {
        line(
            "What the scheduler did to the threads: how long they were ready before they ran, and how often in a second:",
        );
        line(&scheduling(result, styled).to_string());
    }
    for finding in words::findings(result) {
        line(&finding);
    }
    line(&words::busy(result));
    if let Some(pauses) = words::pauses(result) {
        line(&pauses);
    }
    if let Some(agent) = words::agent(result) {
        line(&agent);
    }
    for note in &result.notes {
        line(&format!("Note: {note}"));
    }
    text
}

/// An empty table in the style of all reports; `styled` for a terminal that shows colours.
pub fn table(styled: bool, header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    for lines_between_rows in [
        TableComponent::HorizontalLines,
        TableComponent::MiddleIntersections,
        TableComponent::LeftBorderIntersections,
        TableComponent::RightBorderIntersections,
    ] {
        table.remove_style(lines_between_rows);
    }
    if styled {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table.set_header(
        header
            .iter()
            .map(|name| Cell::new(name).add_attribute(Attribute::Bold)),
    );
    table
}

/// Aligns all columns but the first to the right.
pub fn right_align(table: &mut Table) {
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn figures(result: &BenchResult, styled: bool) -> Table {
    let mut table = table(
        styled,
        &[
            "tenant",
            "side",
            "mean",
            "p50",
            "p99",
            "p99.9",
            "throughput",
            "CPU",
            "errors",
        ],
    );
    let mut before = None;
    for row in &result.results {
        let SideResult {
            side,
            tenant,
            class,
            figures,
        } = row;
        let latency = |us: Option<f64>| us.map_or(String::new(), words::latency);
        let first = before != Some((tenant, class));
        before = Some((tenant, class));
        table.add_row([
            if first {
                words::tenant(tenant, *class)
            } else {
                ""
            }
            .to_string(),
            side.clone(),
            latency(figures.mean_us),
            latency(figures.p50_us),
            latency(figures.p99_us),
            latency(figures.p999_us),
            words::throughput(figures).unwrap_or_default(),
            format!("{:.1} %", figures.cpu_share * 100.0),
            if figures.errors > 0 {
                figures.errors.to_string()
            } else {
                String::new()
            },
        ]);
    }
    right_align(&mut table);
    table
}

fn scheduling(result: &BenchResult, styled: bool) -> Table {
    let header = [
        "tenant",
        "side",
        "mean delay",
        "p50",
        "p99",
        "longest",
        "switches",
        "preempted",
        "migrated",
        "woken",
    ];
    let mut table = table(styled, &header);
    for row in &result.results {
        let Some(it) = &row.figures.scheduling else {
            continue;
        };
        let delay = |us: Option<f64>| us.map_or(String::new(), words::latency);
        let rate = |per_s: f64| format!("{per_s:.0}");
        table.add_row([
            words::tenant(&row.tenant, row.class).to_string(),
            row.side.clone(),
            delay(it.run_delay_mean_us),
            delay(it.run_delay_p50_us),
            delay(it.run_delay_p99_us),
            delay(it.run_delay_max_us),
            rate(it.switches_per_s),
            rate(it.preemptions_per_s),
            rate(it.migrations_per_s),
            rate(it.wakeups_per_s),
        ]);
    }
    right_align(&mut table);
    table
}

fn changes(result: &BenchResult, baseline: &str, styled: bool) -> Table {
    let mut table = table(styled, &["tenant", "side", "mean", "p99", "throughput"]);
    let against: Vec<&Comparison> = result
        .comparisons
        .iter()
        .filter(|c| c.baseline == baseline)
        .collect();
    for row in result
        .results
        .iter()
        .filter(|row| against.iter().any(|c| c.side == row.side))
    {
        let cell = |metrics: &[Metric]| {
            let found = against.iter().find(|c| {
                (&c.tenant, c.class, &c.side) == (&row.tenant, row.class, &row.side)
                    && metrics.contains(&c.metric)
            });
            found.map_or(Cell::new(""), |it| change_cell(it))
        };
        table.add_row([
            Cell::new(words::tenant(&row.tenant, row.class)),
            Cell::new(&row.side),
            cell(&[Metric::MeanUs]),
            cell(&[Metric::P99Us]),
            cell(&[Metric::RequestsPerS, Metric::WorkPerS]),
        ]);
    }
    right_align(&mut table);
    table
}

/// Green or red where the interval excludes "no difference"; plain where it does not.
fn change_cell(comparison: &Comparison) -> Cell {
    let (change, interval) = words::change_and_interval(comparison);
    let text = if interval.is_empty() {
        change
    } else {
        format!("{change} ({interval})")
    };
    let cell = Cell::new(text);
    match (
        comparison.significant(),
        comparison.metric.lower_is_better(),
    ) {
        (Some(true), Some(lower)) if (comparison.ratio < 1.0) == lower => cell.fg(Color::Green),
        (Some(true), Some(_)) => cell.fg(Color::Red),
        _ => cell,
    }
}
