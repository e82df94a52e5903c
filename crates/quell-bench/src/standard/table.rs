//! The standard suite's result for a terminal.

use super::cases::Case;
use super::figures::VictimFigures;
use super::result::{CaseResult, CaseSide, LoadResult, Standard, VictimResult};
use crate::report::{self, latency};
use comfy_table::{Cell, CellAlignment, Color};
use std::fmt::Write;

/// What marks a cell that breaks a limit.
const MARK: &str = " !";

/// All cases with their programs, for `--list`.
pub fn list(cases: &[Case]) -> String {
    let mut table = report::table(false, &["case", "beside the victims", "needs"]);
    for case in cases {
        let mut needs: Vec<&str> = case.needs().map(|it| it.name).collect();
        needs.dedup();
        table.add_row([case.name, &case.about, &needs.join(", ")]);
    }
    format!("{table}\n")
}

/// The result as text; `styled` for a terminal that shows colours.
pub fn table(result: &Standard, styled: bool) -> String {
    let mut text = String::new();
    for case in &result.cases {
        // Writing to a String cannot fail.
        let _ = write!(text, "{}", of_case(case, styled));
    }
    let _ = write!(text, "{}", summary(result, styled));
    text
}

/// A case: its victims and loads on each side.
fn of_case(case: &CaseResult, styled: bool) -> String {
    if let Some(reason) = &case.skipped {
        return format!("{}: skipped: {reason}\n\n", case.case);
    }
    let header = [
        "victim",
        "side",
        "served",
        "late: mean",
        "p99",
        "worst",
        "response: mean",
        "p99",
        "worst",
    ];
    let mut table = report::table(styled, &header);
    for name in in_order(case, |side| side.victims.iter().map(|it| &it.victim)) {
        let mut first = true;
        for side in &case.sides {
            if let Some(victim) = side.victims.iter().find(|it| it.victim == *name) {
                let name = if first { name } else { "" };
                table.add_row(victim_row(name, &side.side, victim));
                first = false;
            }
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{}: {}\n", case.case, case.about);
    if table.row_iter().next().is_some() {
        text += &format!("{table}\n");
    }
    for name in in_order(case, |side| side.loads.iter().map(|it| &it.load)) {
        let of = |side: &CaseSide| {
            let load = side.loads.iter().find(|it| it.load == *name)?;
            Some(format!("{} {}", side.side, throughput(load)))
        };
        let all: Vec<String> = case.sides.iter().filter_map(of).collect();
        text += &format!(" {name}: {}\n", all.join("; "));
    }
    for side in &case.sides {
        for error in &side.errors {
            text += &format!(" {}: {error}\n", side.side);
        }
    }
    text + "\n"
}

/// Names on any side, in the order they come in.
fn in_order<'a, I: Iterator<Item = &'a String>>(
    case: &'a CaseResult,
    of: impl Fn(&'a CaseSide) -> I,
) -> Vec<&'a String> {
    let mut names = Vec::new();
    for name in case.sides.iter().flat_map(of) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn victim_row(name: &str, side: &str, victim: &VictimResult) -> Vec<Cell> {
    let VictimFigures {
        served,
        late_mean_us,
        late_p99_us,
        late_worst_us,
        response_mean_us,
        response_p99_us,
        response_worst_us,
    } = victim.median;
    let mut cells = vec![
        Cell::new(name),
        Cell::new(side),
        cell(victim, "served", format!("{served:.0}")),
    ];
    for (figure, us) in [
        ("late_mean_us", late_mean_us),
        ("late_p99_us", late_p99_us),
        ("late_worst_us", late_worst_us),
        ("response_mean_us", response_mean_us),
        ("response_p99_us", response_p99_us),
        ("response_worst_us", response_worst_us),
    ] {
        cells.push(cell(victim, figure, us.map_or("-".to_string(), latency)));
    }
    cells
}

fn cell(victim: &VictimResult, figure: &str, text: String) -> Cell {
    match victim.fails.iter().any(|it| it == figure) {
        true => Cell::new(text + MARK).fg(Color::Red),
        false => Cell::new(text),
    }
}

fn throughput(load: &LoadResult) -> String {
    let number = |it: f64| match it {
        it if it >= 100.0 => format!("{it:.0}"),
        it => format!("{it:.2}"),
    };
    let value = load.per_s.map_or("nothing".to_string(), |it| {
        format!("{} {}", number(it), load.unit)
    });
    let change = load.ratio.map_or(String::new(), |it| {
        format!(" ({:+.1} %)", 100.0 * (it - 1.0))
    });
    let mark = if load.fails { MARK } else { "" };
    value + &change + mark
}

/// Each case in a line: whether it holds, and how far the worst victim and the load are from the baseline.
fn summary(result: &Standard, styled: bool) -> String {
    let header = [
        "case",
        "side",
        "",
        "late, mean: worst victim",
        "p99",
        "load",
    ];
    let mut table = report::table(styled, &header);
    let base = result.sides.first().map_or("", String::as_str);
    for case in &result.cases {
        if case.skipped.is_some() {
            table.add_row([&case.case, "", "skipped", "", "", ""]);
        }
        for side in case.sides.iter().filter(|it| it.side != base) {
            let times = |it: Option<f64>| it.map_or("-".to_string(), |it| format!("{it:.2} x"));
            let worst = |get: fn(&VictimResult) -> Option<f64>| {
                times(side.victims.iter().filter_map(get).max_by(f64::total_cmp))
            };
            let least = side
                .loads
                .iter()
                .filter_map(|it| it.ratio)
                .min_by(f64::total_cmp);
            let verdict = match side.holds {
                None => Cell::new("-"),
                Some(true) => Cell::new("holds"),
                Some(false) => Cell::new("FAILS").fg(Color::Red),
            };
            table.add_row([
                Cell::new(&case.case),
                Cell::new(&side.side),
                verdict,
                Cell::new(worst(|it| it.ratio?.late_mean)),
                Cell::new(worst(|it| it.ratio?.late_p99)),
                Cell::new(times(least)),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!(
        "Against `{base}`, medians over {} pairs of {} s:\n",
        result.pairs, result.seconds
    );
    if result.sides.len() > 1 {
        text += &format!("{table}\n");
    }
    for side in result.sides.iter().skip(1) {
        let all: Vec<bool> = (result.cases.iter().flat_map(|case| &case.sides))
            .filter(|it| it.side == *side)
            .filter_map(|it| it.holds)
            .collect();
        let held = all.iter().filter(|holds| **holds).count();
        text += &format!("{side}: {held} of {} cases hold.\n", all.len());
    }
    if !result.complete {
        text += "Interrupted: not all pairs were measured.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::measured;
    use super::super::result::{Windows, summarise};
    use super::*;
    use crate::report::sample;

    fn result() -> Standard {
        let sides = vec!["default".to_string(), "sched".to_string()];
        let window = |late, per_s| -> Windows { vec![Some(Ok(measured(late, per_s)))] };
        let windows = [window(1000.0, 2000.0), window(1500.0, 1900.0)];
        let skipped = CaseResult {
            case: "other".into(),
            about: String::new(),
            skipped: Some("tool is not installed".into()),
            sides: Vec::new(),
        };
        Standard {
            schema: 1,
            quell_version: "0".into(),
            complete: true,
            host: sample().host,
            lab: None,
            seconds: 3.0,
            warmup_seconds: 1.0,
            pairs: 1,
            seed: 1,
            cases: vec![summarise("pipes", "two pipes", &sides, &windows), skipped],
            sides,
        }
    }

    #[test]
    fn what_fails_is_marked_and_counted() {
        let result = result();
        assert!(!result.holds());
        let text = table(&result, false);
        for expected in [
            "pipes: two pipes",
            "1.50 ms !",
            "default 2000 ops/s; sched 1900 ops/s (-5.0 %) !",
            "FAILS",
            "1.50 x",
            "other: skipped: tool is not installed",
            "sched: 0 of 1 cases hold.",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
    }

    #[test]
    fn the_list_has_every_case() {
        let cases = super::super::cases::cases(2);
        let text = list(&cases);
        assert!(cases.iter().all(|case| text.contains(case.name)), "{text}");
    }
}
