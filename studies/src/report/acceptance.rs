//! What admission tests accept, for a terminal and as an HTML page.

use crate::acceptance::{Acceptance, KindAcceptance};
use quell_bench::report::charts;
use quell_bench::report::html::{close, figure, legend, open, section};
use quell_bench::report::text::{right_align, table};
use std::fmt::Write;

const TITLE: &str = "What admission tests accept";

/// The result as text; `styled` for a terminal that shows colours.
pub fn text(acceptance: &Acceptance, styled: bool) -> String {
    let mut text = String::new();
    for kind in acceptance.kinds.iter().filter(|it| !it.points.is_empty()) {
        let names = names(kind);
        let header: Vec<&str> = ["needed of the CPU"].into_iter().chain(names).collect();
        let mut rows = table(styled, &header);
        for point in &kind.points {
            let parts = point
                .accepted
                .iter()
                .map(|(_, part)| format!("{:.1} %", 100.0 * part));
            rows.add_row([format!("{} %", point.percent)].into_iter().chain(parts));
        }
        right_align(&mut rows);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}, {}\n{rows}",
            head(acceptance),
            kind.kind.describe()
        );
    }
    text
}

fn head(acceptance: &Acceptance) -> String {
    let Acceptance { sets, seed, .. } = acceptance;
    format!("The part of {sets} random sets that each test accepts, seed {seed}")
}

fn names(kind: &KindAcceptance) -> impl Iterator<Item = &str> {
    let first = kind.points.first();
    first
        .into_iter()
        .flat_map(|it| &it.accepted)
        .map(|(name, _)| name.as_str())
}

/// The result as one page that works offline.
///
/// # Errors
/// Where a chart cannot be drawn.
pub fn html(acceptance: &Acceptance) -> anyhow::Result<String> {
    let mut page = open(TITLE, &format!("{}.", head(acceptance)));
    for kind in &acceptance.kinds {
        let line = |(index, name): (usize, &str)| {
            let of = |point: &crate::acceptance::AcceptancePoint| {
                let part = point.accepted.iter().find(|it| it.0 == name)?.1;
                Some((f64::from(point.percent), part))
            };
            (
                kind.points.iter().filter_map(of).collect(),
                charts::series(index),
            )
        };
        let lines: Vec<_> = names(kind).enumerate().map(line).collect();
        let title = "Part of the sets accepted, by the percentage of the CPU that they need: the mean of what all need usually, and those of high \
                     criticality at the most";
        let mut body = legend(names(kind).enumerate());
        body.push_str(&figure(title, &charts::parts(title, &lines, (1000, 420))?));
        section(&mut page, "Accepted", kind.kind.describe(), &body);
    }
    close(&mut page);
    Ok(page)
}
