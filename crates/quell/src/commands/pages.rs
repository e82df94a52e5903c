//! `quell completion` and `quell man`: both are made from the command line's own definition.

use crate::cli::Cli;
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
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

/// Writes `quell.1` and a page for each subcommand.
///
/// # Errors
/// Where the folder or a file in it cannot be written.
pub fn man(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(|| folder.display().to_string())
}
