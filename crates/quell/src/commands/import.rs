//! `quell import`: scenarios out of other tools' files.

use super::InputError;
use crate::cli::Import;
use quell_bench::import::rt_app;
use std::fs;
use std::io::{self, Write};

/// Writes the scenario to stdout, and to stderr what it does not say.
pub fn import(args: &Import) -> anyhow::Result<()> {
    let Import::RtApp { file } = args;
    let input = |e: String| InputError(format!("{}: {e}", file.display()));
    let text = fs::read_to_string(file).map_err(|e| input(e.to_string()))?;
    let imported = rt_app::import(&text).map_err(|e| input(format!("{e:#}")))?;
    for note in imported.notes {
        let _ = writeln!(io::stderr(), "quell: {note}");
    }
    io::stdout().write_all(imported.toml.as_bytes())?;
    Ok(())
}
