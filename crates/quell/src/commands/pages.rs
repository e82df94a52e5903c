//! `quell completion` and `quell man`, made from the command line's own definition, and `quell schema`, made
//! from the configuration's.

use crate::cli::Cli;
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use quell_model::config;
use std::io::Write;
use std::path::Path;

/// Writes completions for a shell to stdout.
///
/// # Errors
/// Where stdout cannot be written.
pub fn completion(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "quell", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}

/// Writes the schema of `quell.toml`, or of the files in `quell.d`, to stdout.
///
/// # Errors
/// Where stdout cannot be written.
pub fn schema(drop_in: bool) -> anyhow::Result<()> {
    let schema = match drop_in {
        true => config::drop_in_schema(),
        false => config::schema(),
    };
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", serde_json::to_string_pretty(&schema)?)?;
    Ok(())
}

/// Writes `quell.1` and a page for each subcommand.
///
/// # Errors
/// Where the folder or a file in it cannot be written.
pub fn man(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(|| folder.display().to_string())
}
