//! The standard suite's result for a terminal.

use super::cases::Case;
use super::figures::VictimFigures;
use super::result::{CaseResult, CaseSide, LoadResult, Standard, VictimResult};
use comfy_table::{Cell, CellAlignment, Color};
use quell_bench::report::{self, latency};
use std::fmt::Write;

/// What marks a cell that breaks a limit.
pub(super) const MARK: &str = " !";

/// All cases with the programs that they need, for `--list`.
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
pub(super) fn table(result: &Standard, styled: bool) -> String {
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
    let mut table = report::table(styled, &VICTIMS);
    for row in victims(case) {
        let figures = row.figures.into_iter().map(|(text, fails)| match fails {
            true => Cell::new(text).fg(Color::Red),
            false => Cell::new(text),
        });
        let names = [row.victim, row.side].into_iter().map(Cell::new);
        table.add_row(names.chain(figures));
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{}: {}\n", case.case, case.about);
    if table.row_iter().next().is_some() {
        text += &format!("{table}\n");
    }
    for line in remarks(case) {
        text += &format!(" {line}\n");
    }
    text + "\n"
}

/// The header of the rows of [`victims`].
pub(super) const VICTIMS: [&str; 9] = [
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

/// A victim on a side.
pub(super) struct VictimRow<'a> {
    /// The victim's name, only on the first of its sides.
    pub(super) victim: &'a str,
    /// The side.
    pub(super) side: &'a str,
    /// The victim's figures, and whether each breaks a limit.
    pub(super) figures: Vec<(String, bool)>,
}

/// A case's victims on each side.
pub(super) fn victims(case: &CaseResult) -> Vec<VictimRow<'_>> {
    let mut rows = Vec::new();
    for name in in_order(case, |side| side.victims.iter().map(|it| &it.victim)) {
        let mut victim = name.as_str();
        for side in &case.sides {
            if let Some(found) = side.victims.iter().find(|it| it.victim == *name) {
                rows.push(VictimRow {
                    victim: std::mem::take(&mut victim),
                    side: &side.side,
                    figures: figures(found),
                });
            }
        }
    }
    rows
}

/// What a case's loads did on each side, and why something was not measured: a line each.
pub(super) fn remarks(case: &CaseResult) -> Vec<String> {
    let load = |name: &String| {
        let of = |side: &CaseSide| {
            let load = side.loads.iter().find(|it| it.load == *name)?;
            Some(format!("{} {}", side.side, throughput(load)))
        };
        let all: Vec<String> = case.sides.iter().filter_map(of).collect();
        format!("{name}: {}", all.join("; "))
    };
    let loads = in_order(case, |side| side.loads.iter().map(|it| &it.load));
    let errors = case.sides.iter().flat_map(|side| {
        let line = |error| format!("{}: {error}", side.side);
        side.errors.iter().map(line)
    });
    loads.into_iter().map(load).chain(errors).collect()
}

/// The names on any side, in the order of their first appearance.
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

fn figures(victim: &VictimResult) -> Vec<(String, bool)> {
    let VictimFigures {
        served,
        late_mean_us,
        late_p99_us,
        late_worst_us,
        response_mean_us,
        response_p99_us,
        response_worst_us,
    } = victim.median;
    let text = |us: Option<f64>| us.map_or("-".to_string(), latency);
    let figures = [
        ("served", format!("{served:.0}")),
        ("late_mean_us", text(late_mean_us)),
        ("late_p99_us", text(late_p99_us)),
        ("late_worst_us", text(late_worst_us)),
        ("response_mean_us", text(response_mean_us)),
        ("response_p99_us", text(response_p99_us)),
        ("response_worst_us", text(response_worst_us)),
    ];
    let marked = |(figure, text): (&str, String)| {
        let fails = victim.fails.iter().any(|it| it == figure);
        (if fails { text + MARK } else { text }, fails)
    };
    figures.into_iter().map(marked).collect()
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

/// All verdicts, and how many cases hold.
fn summary(result: &Standard, styled: bool) -> String {
    let mut table = report::table(styled, &VERDICTS);
    for row in verdicts(result) {
        table.add_row(row.into_iter().map(|text| match text.as_str() {
            FAILS => Cell::new(text).fg(Color::Red),
            _ => Cell::new(text),
        }));
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let base = result.sides.first().map_or("", String::as_str);
    let mut text = format!(
        "Against `{base}`, medians over {} pairs of {} s:\n",
        result.pairs, result.seconds
    );
    if result.sides.len() > 1 {
        text += &format!("{table}\n");
    }
    for (side, held, all) in counts(result) {
        text += &format!("{side}: {held} of {all} cases hold.\n");
    }
    if !result.complete {
        text += &format!("{INTERRUPTED}\n");
    }
    text
}

/// The remark on a result that an interrupt ended.
pub(super) const INTERRUPTED: &str = "Interrupted: not all pairs were measured.";

/// The verdict on a case that does not hold.
pub(super) const FAILS: &str = "FAILS";

/// The header of the rows of [`verdicts`].
pub(super) const VERDICTS: [&str; 6] = [
    "case",
    "side",
    "",
    "later, mean: worst victim",
    "p99",
    "load",
];

/// Each case on each side but the baseline: whether it holds, and how far the worst victim and the load are
/// from the baseline.
pub(super) fn verdicts(result: &Standard) -> Vec<[String; 6]> {
    let mut rows = Vec::new();
    let base = result.sides.first().map_or("", String::as_str);
    for case in &result.cases {
        let name = case.case.clone();
        if case.skipped.is_some() {
            rows.push([name.as_str(), "", "skipped", "", "", ""].map(str::to_string));
        }
        for side in case.sides.iter().filter(|it| it.side != base) {
            let times = |it: Option<f64>| it.map_or("-".to_string(), |it| format!("{it:.2} x"));
            let worst = |get: fn(&VictimResult) -> Option<f64>| {
                times(side.victims.iter().filter_map(get).max_by(f64::total_cmp))
            };
            let verdict = match side.holds {
                None => "-",
                Some(true) => "holds",
                Some(false) => FAILS,
            };
            rows.push([
                name.clone(),
                side.side.clone(),
                verdict.to_string(),
                worst(|it| it.ratio?.judged_mean()),
                worst(|it| it.ratio?.judged_p99()),
                times(side.least_load()),
            ]);
        }
    }
    rows
}

/// Each side but the baseline: its name, how many cases hold, and of how many.
pub(super) fn counts(result: &Standard) -> Vec<(&str, usize, usize)> {
    let of = |side: &String| -> (usize, usize) {
        let sides = result.cases.iter().flat_map(|case| &case.sides);
        let holds = sides
            .filter(|it| it.side == *side)
            .filter_map(|it| it.holds);
        holds.fold((0, 0), |(held, all), it| (held + usize::from(it), all + 1))
    };
    let sides = result.sides.iter().skip(1);
    sides
        .map(|side| (side.as_str(), of(side).0, of(side).1))
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::result::tests::measured;
    use super::super::result::{Windows, summarise};
    use super::*;
    use crate::testing::sample;

    pub(in super::super) fn result() -> Standard {
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
