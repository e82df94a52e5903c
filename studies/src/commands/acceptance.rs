//! `quell-studies acceptance`: how much each admission test accepts.

use crate::acceptance::{self, AcceptanceOptions};
use crate::{cli, report};
use quell::commands::bench::files_writable;
use quell_bench::progress::Progress;
use quell_bench::report::Files;
use quell_bench::run;
use std::time::Duration;

/// Draws the sets, and shows a table.
///
/// # Errors
/// Files that cannot be written, an interrupt, and as [`acceptance::run`].
pub fn run(args: &cli::Acceptance) -> anyhow::Result<()> {
    let options = AcceptanceOptions {
        sets: args.sets,
        seed: args.common.seed,
    };
    let files = Files {
        html: args.report.as_deref(),
        ..args.common.files()
    };
    files_writable(files)?;
    let interrupt = run::interrupt_flag()?;
    let progress = Progress::stderr(Duration::ZERO);
    let result = acceptance::run(&options, &interrupt, &progress)?;
    report::deliver_acceptance(&result, files)
}
