//! The result as one HTML page: no script, font or picture from elsewhere, so that the page can be mailed and
//! opened offline. Every text from the result is escaped.

use super::charts::{self, RatioRow, Track};
use super::words::{self, escape};
use crate::result::{ALL, AgentLog, BenchResult, Comparison, Metric, SideResult};
use plotters::style::RGBColor;
use quell_model::config::TenantClass;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The result as a page.
///
/// # Errors
/// Where a chart cannot be drawn.
pub fn html(result: &BenchResult) -> anyhow::Result<String> {
    let title = format!(
        "{}: {}",
        result.scenario,
        result.options.sides.join(" and ")
    );
    let text = format!("{}. {}.", words::host(&result.host), words::method(result));
    let mut page = open(&title, &text);
    findings(&mut page, result);
    section(&mut page, "Figures", FIGURES_TEXT, &figures(result));
    section(
        &mut page,
        "Latency by percentile",
        PERCENTILES_TEXT,
        &latency(result)?,
    );
    section(&mut page, "Pair by pair", PAIRS_TEXT, &pairs(result)?);
    if let Some(log) = result.decisions.iter().max_by_key(|log| log.changes.len()) {
        section(
            &mut page,
            "What the agent decided",
            DECISIONS_TEXT,
            &decisions(result, log)?,
        );
    }
    if let Some(log) = result.decisions.iter().find(|log| !log.waits.is_empty()) {
        let text = WAITS_TEXT.replace("{side}", &escape(&log.side));
        section(&mut page, "Who made whom wait", &text, &waits(log));
    }
    section(&mut page, "How it was measured", "", &method(result));
    close(&mut page);
    Ok(page)
}

/// The beginning of a page, up to its first section.
pub fn open(title: &str, text: &str) -> String {
    let mut page = String::new();
    page.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
    put(
        &mut page,
        format_args!("<title>{} | Quell benchmark</title>\n", escape(title)),
    );
    put(
        &mut page,
        format_args!(
            "<style>\n{}{}</style>\n</head>\n<body>\n",
            STYLE,
            palette_rules()
        ),
    );
    put(
        &mut page,
        format_args!(
            "<header><p class=\"brand\">Quell benchmark</p><h1>{}</h1><p>{}</p></header>\n<main>\n",
            escape(title),
            escape(text)
        ),
    );
    page
}

/// Ends a page.
pub fn close(page: &mut String) {
    page.push_str("</main>\n</body>\n</html>\n");
}

const FIGURES_TEXT: &str = "All pairs pooled. Latency runs from the moment a request was due, not \
    from when it could be sent. \u{201c}All\u{201d} pools the requests or the work of every tenant of a class.";
const PERCENTILES_TEXT: &str = "All pairs pooled. Each further nine of the percentile gets the same \
    room, so the tail shows.";
const PAIRS_TEXT: &str = "Each dot is one pair: the side's value over the baseline's, measured one \
    after the other under the same arrivals. The tick is the ratio of all \
    pairs pooled, the bar its 95 % interval; where it crosses the vertical line, no difference is shown.";
const DECISIONS_TEXT: &str =
    "One run of the agent, the one with most changes. Each line is a thread.";
const WAITS_TEXT: &str = "Time that a tenant's threads were ready and had no CPU, by who had it, \
    during one run of {side}. Share of each tenant's total.";

/// Appends to a page; writing to a String cannot fail.
pub fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = page.write_fmt(text);
}

/// Appends a section to a page: its heading, a line of text, and `body` as HTML. Without a body there is no
/// section.
pub fn section(page: &mut String, title: &str, text: &str, body: &str) {
    if body.is_empty() {
        return;
    }
    put(page, format_args!("<section>\n<h2>{title}</h2>\n"));
    if !text.is_empty() {
        put(page, format_args!("<p class=\"hint\">{text}</p>\n"));
    }
    put(page, format_args!("{body}</section>\n"));
}

/// The cards and sentences at the top of the page.
fn findings(page: &mut String, result: &BenchResult) {
    page.push_str("<section>\n<div class=\"cards\">\n");
    let mut card = |label: &str, value: &str, class: &str, under: &str| {
        put(
            page,
            format_args!(
                "<div class=\"card\"><p>{}</p><p class=\"big {class}\">{}</p><p class=\"hint\">{}</p></div>\n",
                escape(label),
                escape(value),
                escape(under)
            ),
        );
    };
    if let Some(side) = result.options.sides.last() {
        for (class, metric, label) in [
            (TenantClass::Latency, Metric::MeanUs, "Mean latency"),
            (TenantClass::Latency, Metric::P99Us, "99th percentile"),
            (TenantClass::Batch, Metric::WorkPerS, "Batch work"),
        ] {
            if let Some(c) = comparison(result, ALL, class, metric, side) {
                let interval = c
                    .ci_low
                    .zip(c.ci_high)
                    .map_or("one pair".to_string(), |(l, h)| {
                        format!("95 %: {} to {}", words::change(l), words::change(h))
                    });
                let label = format!("{label}, {side}");
                card(&label, &words::change(c.ratio), verdict(c), &interval);
            }
        }
    }
    if let Some(agent) = result.agent {
        let rss = format!(
            "of one CPU; {:.1} MiB",
            agent.rss_bytes as f64 / f64::from(1 << 20)
        );
        card(
            "The agent's own CPU",
            &format!("{:.2} %", agent.cpu_percent),
            "",
            &rss,
        );
    }
    if let Some(busy) = result
        .sides
        .iter()
        .map(|side| side.busy_percent)
        .min_by(f64::total_cmp)
    {
        card(
            "CPUs busy",
            &format!("{busy:.0} %"),
            "",
            "at least, on every side",
        );
    }
    page.push_str("</div>\n");
    if !result.caveat.is_empty() {
        put(
            page,
            format_args!(
                "<p><strong>Caveat: {}</strong></p>\n",
                escape(&result.caveat)
            ),
        );
    }
    for sentence in words::findings(result) {
        put(page, format_args!("<p>{}</p>\n", escape(&sentence)));
    }
    for note in &result.notes {
        put(
            page,
            format_args!("<p class=\"note\">{}</p>\n", escape(note)),
        );
    }
    page.push_str("</section>\n");
}

fn comparison<'a>(
    result: &'a BenchResult,
    tenant: &str,
    class: TenantClass,
    metric: Metric,
    side: &str,
) -> Option<&'a Comparison> {
    result
        .comparisons
        .iter()
        .find(|c| c.tenant == tenant && c.class == class && c.metric == metric && c.side == side)
}

/// The CSS class of a change: better, worse, or neither.
fn verdict(comparison: &Comparison) -> &'static str {
    match (
        comparison.significant(),
        comparison.metric.lower_is_better(),
    ) {
        (Some(true), Some(lower)) if (comparison.ratio < 1.0) == lower => "better",
        (Some(true), Some(_)) => "worse",
        _ => "",
    }
}

fn figures(result: &BenchResult) -> String {
    let mut table = String::from(
        "<div class=\"wide\"><table>\n<thead><tr><th>tenant</th><th>side</th><th>mean</th><th>p50</th>\
         <th>p99</th><th>p99.9</th><th>throughput</th><th>CPU</th><th>errors</th>\
         <th>change of mean</th><th>of p99</th><th>of throughput</th></tr></thead>\n<tbody>\n",
    );
    for row in &result.results {
        let SideResult {
            side,
            tenant,
            class,
            figures,
        } = row;
        let latency = |us: Option<f64>| us.map_or("".to_string(), words::latency);
        let baseline = *side == result.options.sides[0];
        let group = if baseline { " class=\"group\"" } else { "" };
        put(
            &mut table,
            format_args!(
                "<tr{group}><th>{}</th><td class=\"left\"><i class=\"key\" style=\"background:var(--c{})\"></i>{}</td>",
                if baseline {
                    escape(words::tenant(tenant, *class))
                } else {
                    String::new()
                },
                side_index(result, side),
                escape(side)
            ),
        );
        for cell in [
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
        ] {
            put(&mut table, format_args!("<td>{}</td>", escape(&cell)));
        }
        for metrics in [
            &[Metric::MeanUs][..],
            &[Metric::P99Us],
            &[Metric::RequestsPerS, Metric::WorkPerS],
        ] {
            let found = metrics
                .iter()
                .find_map(|m| comparison(result, tenant, *class, *m, side));
            let (change, interval) = found.map(words::change_and_interval).unwrap_or_default();
            let class = found.map(verdict).unwrap_or_default();
            let (change, interval) = (escape(&change), escape(&interval));
            put(
                &mut table,
                format_args!("<td class=\"{class}\">{change} <small>{interval}</small></td>"),
            );
        }
        table.push_str("</tr>\n");
    }
    table.push_str("</tbody></table></div>\n");
    table
}

fn side_index(result: &BenchResult, side: &str) -> usize {
    result
        .options
        .sides
        .iter()
        .position(|other| other == side)
        .unwrap_or(0)
}

/// The legend, as HTML: a colour and a name for each series.
pub fn legend<'a>(entries: impl Iterator<Item = (usize, &'a str)>) -> String {
    let mut html = String::from("<p class=\"legend\">");
    for (colour, name) in entries {
        let colour = colour % charts::SERIES;
        put(
            &mut html,
            format_args!(
                "<span><i class=\"key\" style=\"background:var(--c{colour})\"></i>{}</span> ",
                escape(name)
            ),
        );
    }
    html.push_str("</p>\n");
    html
}

/// A drawing with its title, as HTML.
pub fn figure(title: &str, svg: &str) -> String {
    format!(
        "<figure><figcaption>{}</figcaption>{svg}</figure>\n",
        escape(title)
    )
}

/// One chart for each latency tenant, the pooled one first.
fn latency(result: &BenchResult) -> anyhow::Result<String> {
    let mut tenants: Vec<&str> = Vec::new();
    for curve in &result.latency {
        if !tenants.contains(&curve.tenant.as_str()) {
            tenants.push(&curve.tenant);
        }
    }
    tenants.sort_by_key(|tenant| *tenant != ALL);
    if tenants.is_empty() {
        return Ok(String::new());
    }
    let mut body = legend(result.options.sides.iter().map(String::as_str).enumerate());
    body.push_str("<div class=\"grid\">\n");
    for tenant in tenants {
        let curves: Vec<_> = result
            .latency
            .iter()
            .filter(|curve| curve.tenant == tenant)
            .map(|curve| (curve, charts::series(side_index(result, &curve.side))))
            .collect();
        let name = words::tenant(tenant, TenantClass::Latency);
        body.push_str(&figure(
            name,
            &charts::percentiles(name, &curves, (560, 320))?,
        ));
    }
    body.push_str("</div>\n");
    Ok(body)
}

/// One chart for each metric, with a row for each tenant and side.
fn pairs(result: &BenchResult) -> anyhow::Result<String> {
    let mut body = String::from("<div class=\"grid\">\n");
    let mut any = false;
    for (title, metrics) in [
        ("Mean latency", &[Metric::MeanUs][..]),
        ("99th percentile of latency", &[Metric::P99Us]),
        (
            "Throughput (requests or work)",
            &[Metric::RequestsPerS, Metric::WorkPerS],
        ),
    ] {
        let several = result.options.sides.len() > 2;
        let rows: Vec<RatioRow> = result
            .comparisons
            .iter()
            .filter(|c| metrics.contains(&c.metric) && c.baseline == result.options.sides[0])
            .map(|c| {
                let tenant = words::tenant(&c.tenant, c.class);
                RatioRow {
                    label: if several {
                        format!("{tenant}, {}", c.side)
                    } else {
                        tenant.to_string()
                    },
                    ratio: c.ratio,
                    interval: c.ci_low.zip(c.ci_high),
                    each: pair_ratios(result, c),
                    colour: charts::series(side_index(result, &c.side)),
                }
            })
            .collect();
        if !rows.is_empty() {
            any = true;
            body.push_str(&figure(title, &charts::ratios(title, &rows, None, 560)?));
        }
    }
    body.push_str("</div>\n");
    Ok(if any { body } else { String::new() })
}

/// Each pair's ratio, side / baseline.
fn pair_ratios(result: &BenchResult, comparison: &Comparison) -> Vec<(f64, bool)> {
    let mut values: BTreeMap<(u32, &str), f64> = BTreeMap::new();
    for run in &result.runs {
        let found = run
            .tenants
            .iter()
            .find(|t| t.tenant == comparison.tenant && t.class == comparison.class);
        if let Some(value) = found.and_then(|t| comparison.metric.of(&t.figures)) {
            values.insert((run.pair, &run.side), value);
        }
    }
    let ratio = |pair| {
        let side = values.get(&(pair, comparison.side.as_str()))?;
        let baseline = values.get(&(pair, comparison.baseline.as_str()))?;
        Some(side / baseline).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
    };
    let pairs = (0..result.options.pairs).filter_map(ratio);
    pairs.map(|ratio| (ratio, false)).collect()
}

fn decisions(result: &BenchResult, log: &AgentLog) -> anyhow::Result<String> {
    if log.changes.is_empty() {
        return Ok("<p>The agent changed nothing in this run.</p>\n".into());
    }
    let tenants: BTreeSet<&str> = log
        .threads
        .iter()
        .map(|track| track.tenant.as_str())
        .collect();
    let colour = |tenant: &str| -> RGBColor {
        charts::series(
            tenants
                .iter()
                .position(|other| *other == tenant)
                .unwrap_or(0),
        )
    };
    let tracks: Vec<_> = log.threads.iter().map(|t| (t, colour(&t.tenant))).collect();
    let window_ms = result.options.warmup_seconds * 1e3;
    let end_ms = window_ms + result.options.seconds * 1e3;
    let mut body = legend(tenants.iter().copied().enumerate());
    body.push_str("<div class=\"grid\">\n");
    for (what, title) in [
        (
            Track::Latency,
            "Rescheduling latency: how long a thread may be ready before it should run",
        ),
        (
            Track::Weight,
            "Weight: how long a slice it gets, of the tenant's fixed total",
        ),
    ] {
        let svg = charts::timeline(what, &tracks, window_ms, end_ms, (560, 320))?;
        if !svg.is_empty() {
            body.push_str(&figure(title, &svg));
        }
    }
    body.push_str("</div>\n");
    body.push_str(&rule_counts(log));
    Ok(body)
}

/// How often each rule changed threads of each tenant.
fn rule_counts(log: &AgentLog) -> String {
    let rules: BTreeSet<&str> = log
        .changes
        .iter()
        .map(|change| change.rule.as_str())
        .collect();
    let mut counts: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for change in &log.changes {
        let of_tenant = counts.entry(&change.tenant).or_default();
        *of_tenant.entry(&change.rule).or_default() += change.count;
    }
    let mut table = String::from(
        "<div class=\"wide\"><table class=\"matrix\">\n<thead><tr><th>changes by rule</th>",
    );
    for rule in &rules {
        put(
            &mut table,
            format_args!("<th>{}</th>", escape(&rule.replace('_', " "))),
        );
    }
    table.push_str("</tr></thead>\n<tbody>\n");
    for (tenant, of_tenant) in counts {
        put(&mut table, format_args!("<tr><th>{}</th>", escape(tenant)));
        for rule in &rules {
            let count = of_tenant.get(rule).map(u64::to_string).unwrap_or_default();
            put(&mut table, format_args!("<td>{count}</td>"));
        }
        table.push_str("</tr>\n");
    }
    table.push_str("</tbody></table></div>\n");
    table
}

/// How long each tenant (rows) waited for each other tenant or cause (columns).
fn waits(log: &AgentLog) -> String {
    // Tenants come first, then the causes that are no tenants.
    const OTHERS: [(&str, &str); 5] = [
        ("own", "itself"),
        ("host", "rest of the host"),
        ("bandwidth", "CPU limit"),
        ("steal", "hypervisor"),
        ("unknown", "not recorded"),
    ];
    let is_other = |cause: &str| OTHERS.iter().any(|(other, _)| *other == cause);
    let seen: BTreeSet<&str> = log.waits.iter().map(|wait| wait.cause.as_str()).collect();
    let causes: Vec<&str> = seen
        .iter()
        .copied()
        .filter(|cause| !is_other(cause))
        .chain(
            OTHERS
                .iter()
                .map(|(other, _)| *other)
                .filter(|other| seen.contains(other)),
        )
        .collect();
    let mut rows: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    for wait in &log.waits {
        *rows
            .entry(&wait.tenant)
            .or_default()
            .entry(&wait.cause)
            .or_default() += wait.ready_ms;
    }
    let mut table = String::from(
        "<div class=\"wide\"><table class=\"matrix\">\n<thead><tr><th>waited</th><th>in all</th>",
    );
    for cause in &causes {
        let name = OTHERS
            .iter()
            .find(|(other, _)| other == cause)
            .map_or(*cause, |(_, name)| name);
        put(&mut table, format_args!("<th>{}</th>", escape(name)));
    }
    table.push_str("</tr></thead>\n<tbody>\n");
    for (tenant, by_cause) in rows {
        let total: f64 = by_cause.values().sum();
        let all = words::latency(total * 1e3);
        put(
            &mut table,
            format_args!("<tr><th>{}</th><td>{all}</td>", escape(tenant)),
        );
        for cause in &causes {
            let share = by_cause.get(cause).map_or(0.0, |ms| ms / total.max(1e-9));
            let text = if share > 0.0 {
                format!("{:.0} %", share * 100.0)
            } else {
                String::new()
            };
            put(
                &mut table,
                format_args!("<td style=\"--heat:{:.0}%\">{text}</td>", share * 70.0),
            );
        }
        table.push_str("</tr>\n");
    }
    table.push_str("</tbody></table></div>\n");
    table
}

fn method(result: &BenchResult) -> String {
    let host = &result.host;
    let options = &result.options;
    let order: Vec<String> = (0..options.pairs)
        .map(|pair| {
            let mut runs: Vec<_> = result.runs.iter().filter(|run| run.pair == pair).collect();
            runs.sort_by_key(|run| run.position);
            runs.iter()
                .map(|run| run.side.as_str())
                .collect::<Vec<_>>()
                .join(" ")
        })
        .filter(|order| !order.is_empty())
        .collect();
    let seeds: Vec<String> = (0..options.pairs)
        .filter_map(|pair| result.runs.iter().find(|run| run.pair == pair))
        .map(|run| run.seed.to_string())
        .collect();
    // A run whose agent left any setting behind fails, so every result with an agent has passed this check.
    let checked = match result.agent {
        Some(_) => {
            "after every run of the agent, each thread of each tenant had its former nice value, \
             slice and affinity again"
        }
        None => "",
    };
    let memory = format!("{:.1} GiB", host.memory_bytes as f64 / f64::from(1 << 30));
    let rows = [
        ("Host", words::host(host)),
        ("System", format!("{}; {memory} of memory", host.os)),
        ("Scheduler", host.scheduler.join(", ")),
        ("Design", words::method(result)),
        ("Order", order.join(" | ")),
        (
            "Arrivals",
            format!(
                "the same for every side of a pair; seeds {}",
                seeds.join(", ")
            ),
        ),
        (
            "Statistics",
            format!(
                "ratios of all pairs' requests pooled; {:.0} % interval by percentile bootstrap \
                 over pairs ({} resamples), widened for few pairs after Hesterberg (2015)",
                options.confidence * 100.0,
                options.resamples
            ),
        ),
        ("Checked", checked.to_string()),
        ("Load", words::busy(result)),
        (
            "Pauses",
            words::pauses(result).unwrap_or_else(|| "none that stopped all CPUs".to_string()),
        ),
        (
            "Program",
            format!(
                "Quell {}, {}",
                result.quell_version,
                words::date(result.started_unix_s)
            ),
        ),
    ];
    let mut list = String::from("<dl>\n");
    for (term, text) in rows.into_iter().filter(|(_, text)| !text.is_empty()) {
        put(
            &mut list,
            format_args!("<dt>{term}</dt><dd>{}</dd>\n", escape(&text)),
        );
    }
    list.push_str("</dl>\n<p class=\"hint\">The raw value of every run is in the JSON that <code>--json</code> writes.</p>\n");
    list
}

/// The style rules that give the charts' placeholders their colours.
fn palette_rules() -> String {
    let series = (0..charts::SERIES).map(|n| (charts::series(n), format!("c{n}")));
    let roles = [
        (charts::INK, "ink".to_string()),
        (charts::GRID, "grid".to_string()),
    ];
    series.chain(roles).fold(String::new(), |mut css, (colour, name)| {
        let colour = charts::placeholder(colour);
        put(
            &mut css,
            format_args!(
                ".chart [stroke=\"{colour}\"]{{stroke:var(--{name})}}.chart [fill=\"{colour}\"]{{fill:var(--{name})}}\n"
            ),
        );
        css
    })
}

const STYLE: &str = include_str!("style.css");
