//! Shows a [`BenchResult`]: a table for terminals, JSON, and an HTML page that works offline.
//!
//! All three are made from the result and nothing else, so a saved JSON file gives an equal table and page
//! again.

mod capacity;
pub mod charts;
pub mod flat;
pub mod html;
mod sweep;
pub mod text;
pub mod words;

pub use html::{close, figure, html, open, put, section};
pub use text::{table, text};
pub use words::{change, escape, host, interval, latency};

use crate::capacity::Capacity;
use crate::result::BenchResult;
use crate::sweep::Swept;
use crate::workload::Interrupted;
use anyhow::Context;
use flat::{Flat, Point};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::Path;

/// The result as the JSON of docs/reference/json.md.
///
/// # Errors
/// Where the result cannot be serialised.
pub fn json(result: &BenchResult) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(result)? + "\n")
}

/// Where a result goes beside the terminal.
#[derive(Debug, Clone, Copy, Default)]
pub struct Files<'a> {
    /// JSON; `-` is standard output, and then the table goes to standard error.
    pub json: Option<&'a Path>,
    /// The HTML page.
    pub html: Option<&'a Path>,
    /// Every run as a flat table, as CSV; `-` as in `json`.
    pub csv: Option<&'a Path>,
    /// The flat table as Parquet; `-` as in `json`.
    pub parquet: Option<&'a Path>,
}

/// Writes a result to the files that the user wants, and the table to the terminal.
///
/// # Errors
/// Where a chart cannot be drawn, or a file or standard output cannot be written; and [`Interrupted`], after
/// all was written, for a result that an interrupt cut short, so that callers exit accordingly.
pub fn deliver(result: &BenchResult, files: Files<'_>) -> anyhow::Result<()> {
    let page = files.html.map(|_| html(result)).transpose()?;
    let text = |styled| text(result, styled);
    files.put_flat(|| Flat::new([Point::of(result)].into_iter(), &[]))?;
    files.hand_out(&json(result)?, page, text)?;
    anyhow::ensure!(result.complete, Interrupted);
    Ok(())
}

/// Writes a capacity as [`deliver`] writes a result.
///
/// # Errors
/// As [`deliver`].
pub fn deliver_capacity(result: &Capacity, files: Files<'_>) -> anyhow::Result<()> {
    let page = files.html.map(|_| capacity::html(result)).transpose()?;
    let json = serde_json::to_string_pretty(result)? + "\n";
    let text = |styled| capacity::text(result, styled);
    let points = result.sides.iter().flat_map(|side| &side.points);
    let points = points.filter_map(|point| {
        Some(Point {
            number: Some(point.number),
            ..Point::of(point.result.as_ref()?)
        })
    });
    files.put_flat(|| Flat::new(points, &[]))?;
    files.hand_out(&json, page, text)?;
    anyhow::ensure!(result.complete, Interrupted);
    Ok(())
}

/// Writes a sweep as [`deliver`] writes a result. It has no page; its flat table has the varied keys first.
///
/// # Errors
/// As [`deliver`].
pub fn deliver_sweep(result: &Swept, files: Files<'_>) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(result)? + "\n";
    let text = |styled| sweep::text(result, styled);
    files.put_flat(|| Flat::new(result.points.iter().map(Point::of), &result.keys))?;
    files.hand_out(&json, None, text)?;
    anyhow::ensure!(result.complete, Interrupted);
    Ok(())
}

impl Files<'_> {
    /// Writes the flat table to the files that are to have it, and makes it only for them.
    ///
    /// # Errors
    /// Where a file or standard output cannot be written.
    pub fn put_flat(&self, flat: impl FnOnce() -> Flat) -> anyhow::Result<()> {
        if self.csv.is_none() && self.parquet.is_none() {
            return Ok(());
        }
        let flat = flat();
        if let Some(path) = self.csv {
            let out = output(path)?;
            flat.write_csv(out).with_context(|| said(path))?;
        }
        if let Some(path) = self.parquet {
            let out = output(path)?;
            flat.write_parquet(out).with_context(|| said(path))?;
        }
        Ok(())
    }

    /// How many of the files go to standard output, where there is room for one.
    pub fn to_stdout(&self) -> usize {
        let files = [self.json, self.csv, self.parquet];
        files
            .into_iter()
            .flatten()
            .filter(|it| is_stdout(it))
            .count()
    }

    /// Writes the JSON and the page to their files, and the text to standard output; to standard error where
    /// a file takes standard output.
    ///
    /// # Errors
    /// Where a file or standard output cannot be written.
    pub fn hand_out(
        &self,
        json: &str,
        page: Option<String>,
        text: impl Fn(bool) -> String,
    ) -> anyhow::Result<()> {
        let (json_file, page) = (self.json, self.html.zip(page));
        // Files come first: a closed terminal must not cost the figures.
        let json_to_stdout = json_file.is_some_and(is_stdout);
        if let Some(path) = json_file.filter(|_| !json_to_stdout) {
            write(path, json)?;
        }
        if let Some((path, page)) = &page {
            write(path, page)?;
        }
        let plain = std::env::var_os("NO_COLOR").is_some();
        if self.to_stdout() > 0 {
            eprint!("{}", text(std::io::stderr().is_terminal() && !plain));
            if json_to_stdout {
                std::io::stdout()
                    .write_all(json.as_bytes())
                    .context("standard output")?;
            }
        } else {
            let text = text(std::io::stdout().is_terminal() && !plain);
            std::io::stdout()
                .write_all(text.as_bytes())
                .context("standard output")?;
        }
        if let Some((path, _)) = page {
            let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
            eprintln!("Report: {}", path.display());
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    make_folder(path)?;
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

/// Whether a path is `-`, which stands for standard output.
fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

fn said(path: &Path) -> String {
    match is_stdout(path) {
        true => "standard output".to_string(),
        false => path.display().to_string(),
    }
}

/// Creates a file, and the folder that it is in; or gives standard output.
fn output(path: &Path) -> anyhow::Result<Box<dyn Write + Send>> {
    if is_stdout(path) {
        return Ok(Box::new(std::io::stdout()));
    }
    make_folder(path)?;
    let file = File::create(path).with_context(|| said(path))?;
    Ok(Box::new(BufWriter::new(file)))
}

/// Creates the folder that a file is to be in.
fn make_folder(path: &Path) -> anyhow::Result<()> {
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
#[cfg(test)]
use tests::sample;
