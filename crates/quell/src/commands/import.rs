//! `quell import`: scenarios from other tools' files.

use super::{InputError, read_input};
use crate::cli::Import;
use quell_bench::import::rt_app;
use std::io::{self, Write};

/// Writes the scenario to stdout, and notes about what a scenario cannot say to stderr.
///
/// # Errors
/// Where the file cannot be read or is wrong, or stdout cannot be written.
pub fn import(args: &Import) -> anyhow::Result<()> {
    let Import::RtApp { file } = args;
    let imported = rt_app::import(&read_input(file)?)
        .map_err(|e| InputError(format!("{}: {e:#}", file.display())))?;
    for note in imported.notes {
        let _ = writeln!(io::stderr(), "quell: {note}");
    }
    io::stdout().write_all(imported.toml.as_bytes())?;
    if let Some(caveat) = imported.caveat {
        let _ = writeln!(io::stderr(), "quell: CAVEAT: {caveat}");
    }
    Ok(())
}
