//! `quell-studies overhead`: what waking and switching cost under each side.

use super::vm;
use crate::catalogue::CATALOGUE;
use crate::cli;
use crate::overhead;
use quell::commands::InputError;
use quell::commands::bench::{files_writable, print, this_program};
use quell_bench::progress::Progress;
use quell_bench::result::Substrate;
use quell_bench::run;
use std::time::Duration;

/// Measures what waking and switching cost, and shows a table.
///
/// # Errors
/// Wrong arguments, files that cannot be written, and a study that fails.
pub fn run(args: &cli::Overhead) -> anyhow::Result<()> {
    let sides = CATALOGUE.sides(&args.policy, args.on)?;
    files_writable(args.common.files())?;
    let interrupt = run::interrupt_flag()?;
    let result = match args.on {
        Substrate::Vm => vm::overhead(&sides, args, &interrupt)?,
        Substrate::Host => {
            let progress = Progress::stderr(Duration::ZERO);
            overhead::run(
                &sides,
                args.nesting,
                &this_program()?,
                &interrupt,
                &progress,
            )?
        }
        Substrate::Sim => {
            let message = "`--on`: what a wakeup costs is measured on: host, vm";
            return Err(InputError(message.to_string()).into());
        }
    };
    let json = args.common.json.as_deref();
    print(&result, overhead::table(&result), json)
}
