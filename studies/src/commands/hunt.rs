//! `quell-studies hunt`: random workloads on which a light task waits too long.

use crate::catalogue::CATALOGUE;
use crate::cli;
use crate::hunt::{self, HuntOptions};
use quell::commands::InputError;
use quell::commands::bench::{files_writable, folder_writable, print};
use quell_bench::progress::Progress;
use quell_bench::result::Substrate;
use quell_bench::run;
use std::time::Duration;

/// Searches workloads and shows the finds.
///
/// # Errors
/// Wrong arguments, files that cannot be written, a search that fails, and a search with finds.
pub fn run(args: &cli::Hunt) -> anyhow::Result<()> {
    let sides = CATALOGUE.sides(&args.policy, Substrate::Sim)?;
    if sides.len() < 2 {
        let message = "`--policy`: a reference and at least one side to compare it with";
        return Err(InputError(message.to_string()).into());
    }
    let options = HuntOptions {
        sides,
        workloads: args.workloads,
        seed: args.common.seed,
        limit: args.minutes.map(|it| Duration::from_secs_f64(it * 60.0)),
        seconds: args.seconds.unwrap_or(hunt::SECONDS),
        keep: args.keep.clone(),
    };
    if options.seconds < 1.0 {
        return Err(InputError("`--seconds`: at least 1".to_string()).into());
    }
    files_writable(args.common.files())?;
    options.keep.as_deref().map_or(Ok(()), folder_writable)?;
    let interrupt = run::interrupt_flag()?;
    let progress = Progress::stderr(Duration::ZERO);
    let result = hunt::hunt(&options, &interrupt, &progress)?;
    options
        .keep
        .as_deref()
        .map_or(Ok(()), |folder| hunt::keep(&result, folder))?;
    print(&result, hunt::table(&result), args.common.json.as_deref())?;
    for side in &result.sides {
        anyhow::ensure!(
            side.exceeding == 0,
            "under {} a light task waits too long on {} of {} workloads",
            side.side,
            side.exceeding,
            side.workloads
        );
    }
    Ok(())
}
