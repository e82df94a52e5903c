//! `quell-studies promises`: whether the agent's promises on random hosts are kept.

use super::vm;
use crate::catalogue::CATALOGUE;
use crate::cli;
use crate::promises::{self, PromisesOptions};
use quell::commands::InputError;
use quell::commands::bench::{files_writable, folder_writable, print, this_program};
use quell_bench::progress::Progress;
use quell_bench::result::Substrate;
use quell_bench::run;
use std::time::Duration;

/// Measures whether promises are kept, and shows a table.
///
/// # Errors
/// Wrong arguments, files that cannot be written, and a study that fails.
pub fn run(args: &cli::Promises) -> anyhow::Result<()> {
    let options = PromisesOptions {
        sides: CATALOGUE.sides(&args.policy, args.on)?,
        hosts: args.hosts,
        seed: args.common.seed,
        most_cpus: args.most_cpus,
        seconds: args.seconds.unwrap_or(5.0),
        trace: args.trace.clone(),
        exe: this_program()?,
    };
    if let Some(folder) = &args.trace {
        if args.on == Substrate::Vm {
            let message = "`--trace`: traces are written on: sim, host".to_string();
            return Err(InputError(message).into());
        }
        folder_writable(folder)?;
    }
    files_writable(args.common.files())?;
    let interrupt = run::interrupt_flag()?;
    let progress = Progress::stderr(Duration::ZERO);
    let result = match args.on {
        Substrate::Sim => promises::simulate(&options, &interrupt, &progress)?,
        Substrate::Host => promises::run(&options, &interrupt, &progress)?,
        Substrate::Vm => vm::promises(&options, args, &interrupt)?,
    };
    let json = args.common.json.as_deref();
    print(&result, promises::table(&result), json)
}
