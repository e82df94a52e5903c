//! The result of a hunt, for a terminal.

use super::{Find, Hunt, LIMIT, SLICE_MS, SideFinds};
use comfy_table::{CellAlignment, Table, presets};
use std::fmt::Write;

/// The worst finds of each side, each with a line that describes it.
pub fn table(hunt: &Hunt) -> String {
    let mut text = String::new();
    for side in &hunt.sides {
        // Writing to a string does not fail.
        let _ = side_text(&mut text, hunt, side);
    }
    if hunt.interrupted {
        text += "interrupted: finds are as they were drawn\n";
    }
    text
}

fn side_text(text: &mut String, hunt: &Hunt, side: &SideFinds) -> std::fmt::Result {
    let reference = &hunt.reference;
    writeln!(
        text,
        "{}: of {} workloads, {} have a light task whose 99th percentile of waits is more than {LIMIT} times \
         {reference}'s and {SLICE_MS} ms",
        side.side, side.workloads, side.exceeding
    )?;
    let [median, p90, p99] = side.ratios;
    writeln!(
        text,
        "(p99 - {SLICE_MS} ms) / {reference}'s p99: median {median:.2}, 90th percentile {p90:.2}, \
         99th {p99:.2}"
    )?;
    if !side.finds.is_empty() {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "ratio", "p99", "worst", "n", "p99", "worst", "n", "seed", "drawn",
        ]);
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for find in &side.finds {
            table.add_row(row(find));
        }
        writeln!(text, "{table}")?;
        writeln!(
            text,
            "ms and wakeups under {}, then under {reference}; drawn: the ratio before it was made smaller",
            side.side
        )?;
        for find in &side.finds {
            writeln!(text, "  {}: {}", find.seed, find.workload)?;
        }
    }
    if !side.shares.is_empty() {
        writeln!(
            text,
            "groups' shares that differ most from {reference}'s, in percent of the machine:"
        )?;
    }
    for find in &side.shares {
        let group = find.score.group.unwrap_or(0);
        let share = find.score.share;
        writeln!(
            text,
            "  {}: g{group} by {share:.1}: {}",
            find.seed, find.workload
        )?;
    }
    Ok(())
}

fn row(find: &Find) -> [String; 9] {
    let (is, of) = (&find.score.light, &find.score.reference);
    [
        format!("{:.1}", find.score.ratio),
        format!("{:.2}", is.p99_ms),
        format!("{:.2}", is.worst_ms),
        is.served.to_string(),
        format!("{:.2}", of.p99_ms),
        format!("{:.2}", of.worst_ms),
        of.served.to_string(),
        find.seed.to_string(),
        format!("{:.1}", find.drawn_ratio),
    ]
}
