//! A reproduced figure for a terminal and as an HTML page: what was measured at each point, and the paper's
//! statements beside ours.

use super::cells::with_legend;
use crate::reproduce::{ClaimResult, PointResult, Reproduction, all_latency};
use comfy_table::Table;
use quell_bench::report::escape;
use quell_bench::report::html::{close, figure, open, put, section};
use quell_bench::report::text::{right_align, table};
use quell_bench::report::{charts, words};
use quell_bench::result::{ALL, BenchResult, Comparison, Metric, SideResult};
use quell_model::config::TenantClass;
use std::fmt::Write;

/// The figure as text; `styled` for a terminal that shows colours.
pub fn text(reproduction: &Reproduction, styled: bool) -> String {
    let mut text = format!("{}.\n", reproduction.title);
    // Writing to a String cannot fail.
    let mut line = |parts: &str| {
        let _ = writeln!(text, "{parts}");
    };
    line(&format!("The paper: {}", reproduction.paper));
    if let Some(first) = first(reproduction) {
        line(&format!(
            "Here: {}. {}.",
            words::host(&first.host),
            words::method(&first)
        ));
    }
    // A table of every point of a grid would be long, and say less.
    if super::cells::is_grid(reproduction) {
        line(&super::cells::text(reproduction));
    } else if has_latencies(reproduction) {
        line(&measured(reproduction, styled).to_string());
    }
    line(&claims(reproduction, styled).to_string());
    for note in notes(reproduction) {
        line(&format!("Note: {note}"));
    }
    text
}

/// The first point's result, without settings that belong to this point alone.
fn first(reproduction: &Reproduction) -> Option<BenchResult> {
    let point = reproduction.points.first()?;
    let mut first = point.result.clone();
    first.options.set.retain(|set| !point.set.contains(set));
    Some(first)
}

/// Whether a latency was measured; if not, there are only the claims' numbers to show.
fn has_latencies(reproduction: &Reproduction) -> bool {
    let mut results = reproduction.points.iter().flat_map(|it| &it.result.results);
    results.any(|row| row.class == TenantClass::Latency)
}

fn measured(reproduction: &Reproduction, styled: bool) -> Table {
    let header = [
        "scenario",
        "ratio",
        "side",
        "mean",
        "p99",
        "throughput",
        "Δ mean",
        "Δ p99",
        "busy",
    ];
    let mut table = table(styled, &header);
    for point in &reproduction.points {
        for row in rows(point) {
            table.add_row(row.cells);
        }
    }
    right_align(&mut table);
    table
}

/// One side of one class at one point, in cells as the header of the table has them.
struct Row {
    cells: [String; 9],
    group: bool,
    side: usize,
}

fn rows(point: &PointResult) -> Vec<Row> {
    let result = &point.result;
    let of_class = |row: &&SideResult| row.tenant == ALL;
    let classes = result.results.iter().filter(of_class);
    let mut rows: Vec<Row> = Vec::new();
    let mut before = None;
    for row in classes {
        let first = before != Some(row.class);
        before = Some(row.class);
        let latency = |us: Option<f64>| us.map_or(String::new(), words::latency);
        let change = |metric| {
            let found = comparison(result, row, metric);
            found.map_or(String::new(), |found| words::change(found.ratio))
        };
        let batch = row.class == TenantClass::Batch;
        let (mean, p99) = match batch {
            false => (change(Metric::MeanUs), change(Metric::P99Us)),
            // A batch tenant gains work; it stands in the mean's column, with its unit's name before it.
            true => (change(Metric::WorkPerS), String::new()),
        };
        let busy = result.sides.iter().find(|side| side.side == row.side);
        let name = match (first, batch) {
            (false, _) => String::new(),
            (true, false) => point.scenario.clone(),
            (true, true) => format!("{}: batch work", point.scenario),
        };
        rows.push(Row {
            cells: [
                name,
                if first {
                    words::three_digits(point.ratio)
                } else {
                    String::new()
                },
                row.side.clone(),
                latency(row.figures.mean_us),
                latency(row.figures.p99_us),
                words::throughput(&row.figures).unwrap_or_default(),
                mean,
                p99,
                busy.map_or(String::new(), |side| format!("{:.0} %", side.busy_percent)),
            ],
            group: first,
            side: side_index(result, &row.side),
        });
    }
    rows
}

fn comparison<'a>(
    result: &'a BenchResult,
    row: &SideResult,
    metric: Metric,
) -> Option<&'a Comparison> {
    result.comparisons.iter().find(|c| {
        (&c.tenant, c.class, &c.side, c.metric) == (&row.tenant, row.class, &row.side, metric)
    })
}

fn side_index(result: &BenchResult, side: &str) -> usize {
    let sides = &result.options.sides;
    sides.iter().position(|other| other == side).unwrap_or(0)
}

/// Whether the paper's statements are numbers for each side, so that a column for each side shows more than a
/// sentence.
fn has_numbers(reproduction: &Reproduction) -> bool {
    reproduction.claims.iter().any(|claim| claim.of.is_some())
}

/// The header and rows of the table of numbers: the paper's, the ideal, and each side's.
fn numbers(reproduction: &Reproduction) -> (Vec<String>, Vec<Vec<String>>) {
    let sides = sides(reproduction);
    let mut header: Vec<String> = ["what", "the paper", "ideal"].map(String::from).into();
    header.extend(sides.iter().cloned());
    let row = |claim: &ClaimResult| {
        let of = claim.of.as_ref();
        let what = of.map_or(String::new(), |of| format!("{of}: ")) + &claim.what;
        let ideal = claim.ideal.map(|ideal| ideal_text(claim, ideal));
        let here = |side: &String| {
            let here = claim.here.iter().find(|here| here.side == *side);
            here.map_or(String::new(), |here| here.text.clone())
        };
        let mut row = vec![what, claim.paper.clone(), ideal.unwrap_or_default()];
        row.extend(sides.iter().map(here));
        row
    };
    (header, reproduction.claims.iter().map(row).collect())
}

/// The ideal with as many digits as the sides' values have.
fn ideal_text(claim: &ClaimResult, ideal: f64) -> String {
    let first = claim
        .here
        .first()
        .and_then(|here| here.text.split_once('.'));
    let digits = first.map_or(0, |(_, digits)| digits.len());
    format!("{ideal:.digits$}")
}

fn sides(reproduction: &Reproduction) -> Vec<String> {
    crate::reproduce::sides(&reproduction.points)
}

fn claims(reproduction: &Reproduction, styled: bool) -> Table {
    if has_numbers(reproduction) {
        let (header, rows) = numbers(reproduction);
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let mut table = table(styled, &header);
        for row in rows {
            table.add_row(row);
        }
        right_align(&mut table);
        return table;
    }
    let mut table = table(styled, &["what", "the paper", "here"]);
    for claim in &reproduction.claims {
        table.add_row([claim.what.clone(), claim.paper.clone(), here(claim)]);
    }
    table
}

fn here(claim: &ClaimResult) -> String {
    let sides = claim
        .here
        .iter()
        .map(|here| format!("{} {}", here.side, here.text));
    let text = sides.collect::<Vec<_>>().join(", ");
    if text.is_empty() {
        "not measured".to_string()
    } else {
        text
    }
}

/// What differs from the paper, then the notes of the runs, each once.
fn notes(reproduction: &Reproduction) -> Vec<String> {
    let mut notes = reproduction.differs.clone();
    if !reproduction.complete {
        notes.push("Not every point was measured to its end.".to_string());
    }
    for note in reproduction
        .points
        .iter()
        .flat_map(|point| &point.result.notes)
    {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    notes
}

/// The figure as one HTML page that works offline.
///
/// # Errors
/// Where a chart cannot be drawn.
pub fn html(reproduction: &Reproduction) -> anyhow::Result<String> {
    let mut head = format!("The paper: {}", reproduction.paper);
    if let Some(first) = first(reproduction) {
        let (host, method) = (words::host(&first.host), words::method(&first));
        let _ = write!(head, " Here: {host}. {method}.");
    }
    let mut page = open(&reproduction.title, &head);
    section(
        &mut page,
        "The paper and here",
        if has_numbers(reproduction) {
            ""
        } else {
            CLAIMS_TEXT
        },
        &claims_html(reproduction),
    );
    let charts = [
        ("Side by side", BARS_TEXT, bars_html(reproduction)?),
        ("Cells", CELLS_TEXT, super::cells::html(reproduction)),
        ("Over load", LOADS_TEXT, super::cells::charts(reproduction)?),
        (
            "Over the consolidation ratio",
            CHARTS_TEXT,
            charts_html(reproduction)?,
        ),
        (
            "Who waits while threads are ready",
            BLOCKED_TEXT,
            blocked_html(reproduction)?,
        ),
    ];
    for (title, text, charts) in charts.iter().filter(|(.., charts)| !charts.is_empty()) {
        section(&mut page, title, text, charts);
    }
    if has_latencies(reproduction) {
        section(&mut page, "Measured", "", &measured_html(reproduction));
    }
    let mut list = String::new();
    for note in notes(reproduction) {
        put(
            &mut list,
            format_args!("<p class=\"note\">{}</p>\n", escape(&note)),
        );
    }
    section(&mut page, "What differs", "", &list);
    close(&mut page);
    Ok(page)
}

const CLAIMS_TEXT: &str = "Changes against the first side; of several points the geometric mean.";
const CHARTS_TEXT: &str = "Mean and 99th percentile of all requests of the latency-critical tenants. The ratio is \
    their threads over the CPUs.";

const CELLS_TEXT: &str = "Across the first tenant's load, up the second's, in percent of what each answers in time by itself: the fewest CPUs with \
    which both keep their objectives; x where no number that was measured does.";
const LOADS_TEXT: &str =
    "Loads are of all tenants together, in percent of what one answers in time by itself.";
const BARS_TEXT: &str = "A bar for each side; the line is the ideal, the ring what the paper says.";
const BLOCKED_TEXT: &str = "Of the time in which threads of a tenant are ready and have no CPU: the part in which at most so many others of \
    it are blocked. The lower a line, the more wait for those few.";

fn claims_html(reproduction: &Reproduction) -> String {
    if has_numbers(reproduction) {
        return numbers_html(reproduction);
    }
    let mut table = String::from(
        "<div class=\"wide\"><table>\n<thead><tr><th>what</th><th>the paper</th><th>here</th></tr></thead>\n<tbody>\n",
    );
    for claim in &reproduction.claims {
        put(
            &mut table,
            format_args!(
                "<tr><th>{}</th><td class=\"left\">{}</td><td class=\"left\">{}</td></tr>\n",
                escape(&claim.what),
                escape(&claim.paper),
                escape(&here(claim))
            ),
        );
    }
    table.push_str("</tbody></table></div>\n");
    table
}

fn numbers_html(reproduction: &Reproduction) -> String {
    let (header, rows) = numbers(reproduction);
    let mut table = String::from("<div class=\"wide\"><table>\n<thead><tr>");
    for name in header {
        put(&mut table, format_args!("<th>{}</th>", escape(&name)));
    }
    table.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        table.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let tag = if column == 0 { "th" } else { "td" };
            put(&mut table, format_args!("<{tag}>{}</{tag}>", escape(cell)));
        }
        table.push_str("</tr>\n");
    }
    table.push_str("</tbody></table></div>\n");
    table
}

/// A chart for each set of numbers that belong together.
fn bars_html(reproduction: &Reproduction) -> anyhow::Result<String> {
    let sides = sides(reproduction);
    let mut all: Vec<(&str, Vec<charts::Bars>)> = Vec::new();
    for claim in &reproduction.claims {
        let Some(of) = &claim.of else { continue };
        let value = |side: &String| Some(claim.here.iter().find(|here| here.side == *side)?.value);
        let bars = charts::Bars {
            label: claim.what.clone(),
            values: sides.iter().map(value).collect(),
            ideal: claim.ideal,
            paper: claim.paper.parse().ok(),
        };
        match all.last_mut().filter(|(name, _)| name == of) {
            Some((_, several)) => several.push(bars),
            None => all.push((of, vec![bars])),
        }
    }
    let mut grid = String::new();
    for (title, bars) in &all {
        grid.push_str(&figure(title, &charts::bars(title, bars, (560, 320))?));
    }
    Ok(with_legend(&sides, &grid))
}

fn measured_html(reproduction: &Reproduction) -> String {
    let mut table = String::from(
        "<div class=\"wide\"><table>\n<thead><tr><th>scenario</th><th>ratio</th><th>side</th><th>mean</th><th>p99</th>\
         <th>throughput</th><th>change of mean or work</th><th>of p99</th><th>CPUs busy</th></tr></thead>\n<tbody>\n",
    );
    for row in reproduction.points.iter().flat_map(rows) {
        let group = if row.group { " class=\"group\"" } else { "" };
        let [scenario, ratio, side, rest @ ..] = row.cells;
        put(
            &mut table,
            format_args!(
                "<tr{group}><th>{}</th><td>{ratio}</td><td class=\"left\"><i class=\"key\" \
                 style=\"background:var(--c{})\"></i>{}</td>",
                escape(&scenario),
                row.side % charts::SERIES,
                escape(&side)
            ),
        );
        for cell in rest {
            put(&mut table, format_args!("<td>{}</td>", escape(&cell)));
        }
        table.push_str("</tr>\n");
    }
    table.push_str("</tbody></table></div>\n");
    table
}

/// Two charts for each scenario with more than one point.
fn charts_html(reproduction: &Reproduction) -> anyhow::Result<String> {
    let Some(first) = reproduction.points.first() else {
        return Ok(String::new());
    };
    let sides = &first.result.options.sides;
    let mut scenarios: Vec<&str> = Vec::new();
    for point in &reproduction.points {
        if !scenarios.contains(&point.scenario.as_str()) {
            scenarios.push(&point.scenario);
        }
    }
    let mut grid = String::new();
    for scenario in scenarios {
        let points: Vec<&PointResult> = reproduction
            .points
            .iter()
            .filter(|point| point.scenario == scenario)
            .collect();
        // Where loads are varied the ratio is constant.
        if points.len() < 2 || points.iter().any(|point| !point.loads.is_empty()) {
            continue;
        }
        for (metric, name) in [(Metric::MeanUs, "mean"), (Metric::P99Us, "99th percentile")] {
            let lines: Vec<_> = sides
                .iter()
                .enumerate()
                .map(|(index, side)| (line(&points, side, metric), charts::series(index)))
                .collect();
            let title = format!("{scenario}: {name}");
            grid.push_str(&figure(&title, &charts::lines(&title, &lines, (560, 320))?));
        }
    }
    Ok(with_legend(sides, &grid))
}

/// A chart for each point with the numbers of blocked threads.
fn blocked_html(reproduction: &Reproduction) -> anyhow::Result<String> {
    let Some(first) = reproduction.points.first() else {
        return Ok(String::new());
    };
    let sides = &first.result.options.sides;
    let mut grid = String::new();
    for point in &reproduction.points {
        let line = |(index, side): (usize, &String)| {
            let row = all_latency(&point.result, side)?;
            let parts = row.figures.scheduling.as_ref()?.parts_up_to_blocked();
            let line = parts.into_iter().enumerate();
            let line = line.map(|(blocked, part)| (blocked as f64, part)).collect();
            Some((line, charts::series(index)))
        };
        let lines: Vec<_> = sides.iter().enumerate().filter_map(line).collect();
        if lines.is_empty() {
            continue;
        }
        let ratio = words::three_digits(point.ratio);
        let title = format!("{} at ratio {ratio}: blocked threads", point.scenario);
        grid.push_str(&figure(&title, &charts::parts(&title, &lines, (560, 320))?));
    }
    Ok(with_legend(sides, &grid))
}

/// A side's latency in µs over the consolidation ratio.
fn line(points: &[&PointResult], side: &str, metric: Metric) -> Vec<(f64, f64)> {
    let value = |point: &&PointResult| {
        let row = all_latency(&point.result, side)?;
        Some((point.ratio, metric.of(&row.figures)?))
    };
    points.iter().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::tests::{reproduction, slow_downs};

    #[test]
    fn numbers_have_a_column_for_each_side_and_the_ideal() {
        let text = text(&slow_downs(), false);
        let row = text
            .lines()
            .find(|line| line.contains("barriers, VMs: groups "));
        let row = row.unwrap_or_else(|| panic!("{text}"));
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[3..], ["6", "1.50", "3.00", "3.00"], "{row}");
        assert!(!text.contains("p99"), "nobody has latencies: {text}");
        let page = html(&slow_downs()).unwrap();
        assert!(page.contains("<th>ideal</th>") && !page.contains("NaN"));
        assert!(page.contains("aria-label=\"barriers, VMs\""), "a chart");
    }

    #[test]
    fn the_text_has_the_papers_numbers_beside_ours() {
        let text = text(&reproduction(), false);
        let row = text
            .lines()
            .find(|line| line.contains("mean, over all ratios"))
            .unwrap();
        // (1.02 x 0.9 x 0.6)^(1/3) = 0.82
        assert!(
            row.contains("−17 %") && row.contains("sched −18 %"),
            "{row}"
        );
        assert!(text.contains("fork-join-sweep") && text.contains("Not every point was measured"));
        assert!(text.contains("not measured"), "p99 was not: {text}");
    }

    #[test]
    fn the_page_is_whole_and_has_a_chart_for_each_metric() {
        let page = html(&reproduction()).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
        assert_eq!(page.matches("<svg class=\"chart\"").count(), 2);
        assert!(!page.contains("NaN"));
    }
}
