//! `quell-studies speed`: how fast the simulator is.

use crate::catalogue::CATALOGUE;
use crate::{cli, sim_bench};
use quell::commands::bench::{files_writable, print};
use quell_bench::progress::Progress;
use quell_bench::result::Substrate;
use quell_bench::run;
use std::time::Duration;

/// Measures the simulator's speed, and shows a table.
///
/// # Errors
/// Wrong arguments, files that cannot be written, and as [`sim_bench::run`].
pub fn run(args: &cli::Speed) -> anyhow::Result<()> {
    let sides = CATALOGUE.sides(&args.policy, Substrate::Sim)?;
    files_writable(args.common.files())?;
    let interrupt = run::interrupt_flag()?;
    let progress = Progress::stderr(Duration::ZERO);
    let result = sim_bench::run(&sides, args.seconds, &interrupt, &progress)?;
    let json = args.common.json.as_deref();
    print(&result, sim_bench::table(&result), json)
}
