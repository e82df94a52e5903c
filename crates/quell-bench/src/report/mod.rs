//! Shows a [`BenchResult`]: a table for terminals, JSON, and an HTML page that works offline.
//!
//! All three are made from the same result and nothing else, so a saved JSON file gives the same
//! table and page again.

mod capacity;
mod charts;
mod html;
mod reproduction;
mod text;
pub(crate) mod words;

pub use html::html;
pub use text::text;
pub(crate) use words::change;

use crate::capacity::Capacity;
use crate::reproduce::Reproduction;
use crate::result::BenchResult;
use crate::workload::Interrupted;
use anyhow::Context;
use std::io::{IsTerminal, Write};
use std::path::Path;

/// The result as the JSON of docs/bench-json.md.
pub fn json(result: &BenchResult) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(result)? + "\n")
}

/// Writes a result where the user wants it: JSON to `json_file` (`-`: standard output, and then the
/// table goes to standard error), the page to `html_file`, the table to the terminal. For a result
/// cut short by an interrupt it does all that and then returns [`Interrupted`], so that callers exit
/// accordingly.
pub fn deliver(
    result: &BenchResult,
    json_file: Option<&Path>,
    html_file: Option<&Path>,
) -> anyhow::Result<()> {
    let page = html_file.map(|_| html(result)).transpose()?;
    let text = |styled| text(result, styled);
    hand_out(&json(result)?, json_file, html_file.zip(page), text)?;
    anyhow::ensure!(result.complete, Interrupted);
    Ok(())
}

/// The same for a reproduced figure.
pub fn deliver_reproduction(
    result: &Reproduction,
    json_file: Option<&Path>,
    html_file: Option<&Path>,
) -> anyhow::Result<()> {
    let page = html_file.map(|_| reproduction::html(result)).transpose()?;
    let json = serde_json::to_string_pretty(result)? + "\n";
    let text = |styled| reproduction::text(result, styled);
    hand_out(&json, json_file, html_file.zip(page), text)?;
    anyhow::ensure!(result.complete, Interrupted);
    Ok(())
}

/// The same for a capacity.
pub fn deliver_capacity(
    result: &Capacity,
    json_file: Option<&Path>,
    html_file: Option<&Path>,
) -> anyhow::Result<()> {
    let page = html_file.map(|_| capacity::html(result)).transpose()?;
    let json = serde_json::to_string_pretty(result)? + "\n";
    let text = |styled| capacity::text(result, styled);
    hand_out(&json, json_file, html_file.zip(page), text)?;
    anyhow::ensure!(result.complete, Interrupted);
    Ok(())
}

fn hand_out(
    json: &str,
    json_file: Option<&Path>,
    page: Option<(&Path, String)>,
    text: impl Fn(bool) -> String,
) -> anyhow::Result<()> {
    // The files first: a closed terminal must not cost the figures.
    let json_to_stdout = json_file == Some(Path::new("-"));
    if let Some(path) = json_file.filter(|_| !json_to_stdout) {
        write(path, json)?;
    }
    if let Some((path, page)) = &page {
        write(path, page)?;
    }
    let plain = std::env::var_os("NO_COLOR").is_some();
    if json_to_stdout {
        eprint!("{}", text(std::io::stderr().is_terminal() && !plain));
        std::io::stdout()
            .write_all(json.as_bytes())
            .context("standard output")?;
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

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::sample;
