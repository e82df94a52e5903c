//! The standard suite's result as one HTML page that works offline: the verdicts, how far each case is from
//! its limits, and every case's figures.

use super::limits::{Limits, THROUGHPUT, has_p99};
use super::result::{CaseResult, CaseSide, Standard, VictimResult};
use super::table;
use quell_bench::report::charts::{self, RatioRow};
use quell_bench::report::{self, close, escape, figure, open, put, section};

/// Width of the charts, in pixels.
const WIDTH: u32 = 560;

const VERDICTS_TEXT: &str = "How many times later the victim that fared worst is than under the baseline, and the least \
    part of the baseline's work that a load did. What breaks a limit has a ! in the tables below.";
const LIMITS_TEXT: &str = "Each case over the baseline, medians over pairs: a dot for each victim or load, a tick for the \
    worst. The red line is the limit, red dots break it: a victim whose 99th percentile is at most 0.2 ms greater does \
    not, wherever it is. Cases with a ! fail; the reason may be another figure.";

/// The result as a page.
///
/// # Errors
/// Where a chart cannot be drawn.
pub(super) fn html(result: &Standard) -> anyhow::Result<String> {
    let title = format!("The standard suite: {}", result.sides.join(" and "));
    let text = format!(
        "{}. Medians over {} pairs of {} s each after {} s of warm-up; seed {}. Quell {}.",
        report::host(&result.host),
        result.pairs,
        result.seconds,
        result.warmup_seconds,
        result.seed,
        result.quell_version
    );
    let mut page = open(&title, &text);
    section(&mut page, "Verdicts", "", &cards(result));
    for (index, side) in result.sides.iter().enumerate().skip(1) {
        let title = format!("Against the limits: {}", escape(side));
        section(&mut page, &title, LIMITS_TEXT, &against(result, index)?);
    }
    section(&mut page, "Case by case", VERDICTS_TEXT, &verdicts(result));
    for case in &result.cases {
        section(
            &mut page,
            &escape(&case.case),
            &escape(&case.about),
            &of_case(case),
        );
    }
    close(&mut page);
    Ok(page)
}

/// How many cases hold, and what a reader must know first.
fn cards(result: &Standard) -> String {
    let mut body = String::from("<div class=\"cards\">\n");
    for (side, held, all) in table::counts(result) {
        let class = if held < all { "worse" } else { "better" };
        put(
            &mut body,
            format_args!(
                "<div class=\"card\"><p>{}</p><p class=\"big {class}\">{held} of {all}</p><p class=\"hint\">cases hold</p></div>\n",
                escape(side)
            ),
        );
    }
    body.push_str("</div>\n");
    let guest = result.lab.as_ref().map(|guest| guest.note());
    let interrupted = (!result.complete).then(|| table::INTERRUPTED.to_string());
    for note in guest.into_iter().chain(interrupted) {
        put(
            &mut body,
            format_args!("<p class=\"note\">{}</p>\n", escape(&note)),
        );
    }
    body
}

/// All cases of a side compared with their limits: victims, and loads.
fn against(result: &Standard, index: usize) -> anyhow::Result<String> {
    let side = &result.sides[index];
    let rows = |of: fn(&CaseSide, &CaseSide) -> Vec<(f64, bool)>, worst: fn(f64, f64) -> f64| {
        let row = |case: &CaseResult| {
            let of_side = case.sides.iter().find(|it| it.side == *side)?;
            let mut each = of(of_side, case.sides.first()?);
            each.retain(|(ratio, _)| *ratio > 0.0);
            let fails = of_side.holds == Some(false);
            let mark = if fails { table::MARK } else { "" };
            Some(RatioRow {
                label: format!("{}{mark}", case.case),
                ratio: each.iter().map(|(ratio, _)| *ratio).reduce(worst)?,
                interval: None,
                each,
                colour: charts::series(index),
            })
        };
        result.cases.iter().filter_map(row).collect::<Vec<_>>()
    };
    let mut body = String::from("<div class=\"grid\">\n");
    for (title, rows, limit) in [
        (
            "99th percentile of each victim",
            rows(p99s, f64::max),
            Limits::of(side).times,
        ),
        ("Work of each load", rows(loads, f64::min), THROUGHPUT),
    ] {
        if !rows.is_empty() {
            let chart = charts::ratios(title, &rows, Some(limit), WIDTH)?;
            body.push_str(&figure(title, &chart));
        }
    }
    body.push_str("</div>\n");
    Ok(body)
}

/// The ratios of the victims that are judged by their 99th percentile, and whether each breaks its limit.
fn p99s(side: &CaseSide, base: &CaseSide) -> Vec<(f64, bool)> {
    let judged = |it: &VictimResult| {
        let of_base = base
            .victims
            .iter()
            .find(|other| other.victim == it.victim)?;
        let breaks = it.fails.iter().any(|figure| figure.contains("p99"));
        has_p99(&it.median, &of_base.median).then_some((it.ratio?.judged_p99()?, breaks))
    };
    side.victims.iter().filter_map(judged).collect()
}

/// The ratios of the loads, and whether each breaks its limit.
fn loads(side: &CaseSide, _base: &CaseSide) -> Vec<(f64, bool)> {
    let loads = side.loads.iter();
    loads.filter_map(|it| Some((it.ratio?, it.fails))).collect()
}

/// All verdicts, a row for each.
fn verdicts(result: &Standard) -> String {
    let mut body = head(&table::VERDICTS);
    for [case, side, verdict, figures @ ..] in table::verdicts(result) {
        let class = if verdict == table::FAILS {
            " worse"
        } else {
            ""
        };
        put(
            &mut body,
            format_args!(
                "<tr><th>{}</th><td class=\"left\">{}</td><td class=\"left{class}\">{verdict}</td>",
                escape(&case),
                escape(&side)
            ),
        );
        for text in figures {
            put(&mut body, format_args!("<td>{text}</td>"));
        }
        body.push_str("</tr>\n");
    }
    body + END
}

/// A case's victims and loads.
fn of_case(case: &CaseResult) -> String {
    let mut body = String::new();
    let victims = table::victims(case);
    if !victims.is_empty() {
        body += &head(&table::VICTIMS);
    }
    for row in &victims {
        let group = if row.victim.is_empty() {
            ""
        } else {
            " class=\"group\""
        };
        put(
            &mut body,
            format_args!(
                "<tr{group}><th>{}</th><td class=\"left\">{}</td>",
                escape(row.victim),
                escape(row.side)
            ),
        );
        for (text, fails) in &row.figures {
            let class = if *fails { " class=\"worse\"" } else { "" };
            put(&mut body, format_args!("<td{class}>{}</td>", escape(text)));
        }
        body.push_str("</tr>\n");
    }
    if !victims.is_empty() {
        body += END;
    }
    let skipped = case
        .skipped
        .iter()
        .map(|reason| format!("skipped: {reason}"));
    for line in skipped.chain(table::remarks(case)) {
        put(&mut body, format_args!("<p>{}</p>\n", escape(&line)));
    }
    body
}

/// The beginning of a table.
fn head(names: &[&str]) -> String {
    let mut head = String::from("<div class=\"wide\"><table>\n<thead><tr>");
    for name in names {
        put(&mut head, format_args!("<th>{name}</th>"));
    }
    head + "</tr></thead>\n<tbody>\n"
}

/// The end of a table.
const END: &str = "</tbody></table></div>\n";

#[cfg(test)]
mod tests {
    use super::super::table::tests::result;
    use super::*;

    #[test]
    fn the_page_has_verdicts_charts_and_figures() {
        let page = html(&result()).unwrap();
        for expected in [
            "0 of 1",
            "<td class=\"left worse\">FAILS</td>",
            "<td class=\"worse\">1.50 ms !</td>",
            "default 2000 ops/s; sched 1900 ops/s (-5.0 %) !",
            "skipped: tool is not installed",
            "aria-label=\"99th percentile of each victim",
            "aria-label=\"Work of each load",
            // The colour of the limits, as the charts have it.
            "stroke=\"#010005\"",
        ] {
            assert!(page.contains(expected), "{expected} is not in\n{page}");
        }
        assert!(!page.contains("<script") && !page.contains("href=") && !page.contains("src="));
    }

    #[test]
    fn names_are_escaped() {
        let mut result = result();
        let name = "<b>&\"x\"";
        result.sides[1] = name.to_string();
        result.cases[0].case = name.to_string();
        result.cases[0].about = name.to_string();
        let side = &mut result.cases[0].sides[1];
        side.side = name.to_string();
        side.errors = vec![name.to_string()];
        side.victims[0].victim = name.to_string();
        side.loads[0].load = name.to_string();
        result.cases[1].skipped = Some(name.to_string());
        let page = html(&result).unwrap();
        assert!(!page.contains("<b>"), "{page}");
        assert!(
            page.matches("&lt;b&gt;&amp;&quot;x&quot;").count() >= 8,
            "{page}"
        );
    }
}
