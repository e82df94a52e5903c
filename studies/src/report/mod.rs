//! Tables and pages of studies' results.

mod acceptance;
mod cells;
mod reproduction;

use crate::acceptance::Acceptance;
use crate::reproduce::Reproduction;
use quell_bench::report::Files;
use quell_bench::report::flat::{Flat, Point};
use quell_bench::workload::Interrupted;

/// Writes a reproduced figure where the user wants it, as [`quell_bench::report::deliver`] does.
///
/// # Errors
/// Where a chart cannot be drawn, or a file or standard output cannot be written; and [`Interrupted`], after
/// all was written, for a figure that is not complete.
pub fn deliver_reproduction(result: &Reproduction, files: Files<'_>) -> anyhow::Result<()> {
    let page = files.html.map(|_| reproduction::html(result)).transpose()?;
    let json = serde_json::to_string_pretty(result)? + "\n";
    let text = |styled| reproduction::text(result, styled);
    let points = result.points.iter().map(|point| Point {
        ratio: Some(point.ratio),
        ..Point::of(&point.result)
    });
    files.put_flat(|| Flat::new(points, &[]))?;
    files.hand_out(&json, page, text)?;
    anyhow::ensure!(result.complete, Interrupted);
    Ok(())
}

/// Writes what admission tests accept, as [`deliver_reproduction`] does; it has no runs for a flat table.
///
/// # Errors
/// As [`deliver_reproduction`].
pub fn deliver_acceptance(result: &Acceptance, files: Files<'_>) -> anyhow::Result<()> {
    let page = files.html.map(|_| acceptance::html(result)).transpose()?;
    let json = serde_json::to_string_pretty(result)? + "\n";
    files.hand_out(&json, page, |styled| acceptance::text(result, styled))?;
    anyhow::ensure!(result.complete, Interrupted);
    Ok(())
}
