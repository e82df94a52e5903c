//! `quell-studies standard`: the tests that people run on a new scheduler.

use super::vm;
use crate::catalogue::CATALOGUE;
use crate::cli;
use crate::standard::{self, StandardOptions, cases};
use quell::commands::InputError;
use quell::commands::bench::{files_writable, this_program};
use quell_bench::progress::Progress;
use quell_bench::report::Files;
use quell_bench::result::Substrate;
use quell_bench::run::interrupt_flag;
use std::io::{self, Write};
use std::thread::available_parallelism;

/// Runs the suite and shows its result.
///
/// # Errors
/// Wrong arguments, a suite that cannot run, files that cannot be written, and a result in which a case
/// fails.
pub fn run(args: &cli::Standard) -> anyhow::Result<()> {
    let options = StandardOptions {
        sides: CATALOGUE.sides(&args.policy, args.on)?,
        only: args.only.clone(),
        seconds: args.seconds.unwrap_or(standard::SECONDS),
        pairs: args.pairs.unwrap_or(standard::PAIRS),
        seed: args.common.seed,
        exe: this_program()?,
        part_exe: std::env::current_exe()?,
    };
    let here = available_parallelism().map_or(1, |it| it.get() as u32);
    let cpus = match args.on {
        Substrate::Vm => args.guest.cpus.unwrap_or(8),
        _ => here,
    };
    let chosen = cases::only(cases::cases(cpus), &options.only);
    if chosen.is_empty() {
        let message = format!(
            "`--only`: no case has `{}` in its name; see --list",
            args.only.join("` or `")
        );
        return Err(InputError(message).into());
    }
    if args.list {
        write!(io::stdout(), "{}", standard::list(&chosen))?;
        return Ok(());
    }
    let files = Files {
        html: args.report.as_deref(),
        ..args.common.files()
    };
    files_writable(files)?;
    let interrupt = interrupt_flag()?;
    let result = match args.on {
        Substrate::Vm => vm::standard(&options, args, &interrupt)?,
        Substrate::Host => {
            let progress = Progress::stderr(options.planned(&chosen));
            standard::run(&options, &interrupt, &progress)?
        }
        Substrate::Sim => {
            let message = "`--on`: the standard suite runs real programs, on: host, vm";
            return Err(InputError(message.to_string()).into());
        }
    };
    standard::deliver(&result, files)?;
    anyhow::ensure!(result.holds(), "a case fails: see FAILS above");
    Ok(())
}
