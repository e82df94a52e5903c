//! `quell bench standard`: the tests that everybody runs on a new scheduler.

use super::InputError;
use super::bench::{files_writable, sides, this_program};
use super::vm;
use crate::cli::{Bench, DEFAULT_SIDES};
use quell_bench::progress::Progress;
use quell_bench::result::Substrate;
use quell_bench::run::interrupt_flag;
use quell_bench::standard::{self, StandardOptions, cases};
use std::io::{self, Write};
use std::thread::available_parallelism;

/// The sides unless others are asked for.
const SIDES: &str = "default,sched";

/// Runs the suite, shows what it found, and fails where a case does.
pub(super) fn run(args: &Bench) -> anyhow::Result<()> {
    let policy = match args.policy.as_str() {
        DEFAULT_SIDES => SIDES,
        other => other,
    };
    let options = StandardOptions {
        sides: sides(policy, args.on)?,
        only: args.only.clone(),
        seconds: args.measure.seconds.unwrap_or(standard::SECONDS),
        pairs: args.measure.pairs.unwrap_or(standard::PAIRS),
        seed: args.measure.seed,
        exe: this_program()?,
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
    files_writable(args.measure.files())?;
    let interrupt = interrupt_flag()?;
    let result = match args.on {
        Substrate::Vm => vm::standard(&options, &args.measure, &args.guest, &interrupt)?,
        Substrate::Host => {
            let progress = Progress::stderr(options.planned(&chosen));
            standard::run(&options, &interrupt, &progress)?
        }
        Substrate::Sim => {
            let message = "`--on`: the standard suite runs real programs, on: host, vm";
            return Err(InputError(message.to_string()).into());
        }
    };
    standard::deliver(&result, args.measure.files())?;
    anyhow::ensure!(result.holds(), "a case fails: see FAILS above");
    Ok(())
}
