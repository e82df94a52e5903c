//! `quell-studies shares`: how exactly random hosts are shared.

use super::vm;
use crate::catalogue::CATALOGUE;
use crate::cli;
use crate::shares::{self, SharesOptions};
use quell::commands::InputError;
use quell::commands::bench::{files_writable, print, this_program};
use quell_bench::progress::Progress;
use quell_bench::result::Substrate;
use quell_bench::run;
use std::time::Duration;

/// Measures how exactly hosts are shared, and shows a table.
///
/// # Errors
/// Wrong arguments, files that cannot be written, and a study that fails.
pub fn run(args: &cli::Shares) -> anyhow::Result<()> {
    let options = SharesOptions {
        sides: CATALOGUE.sides(&args.policy, args.on)?,
        hosts: args.hosts,
        seed: args.common.seed,
        most_cpus: args.most_cpus,
        most_groups: args.most_groups as usize,
        like_real: args.like_real,
        cache_cpus: args.cache_cpus,
        seconds: args.seconds.unwrap_or(8.0),
        exe: this_program()?,
    };
    if options.seconds < shares::LEAST_S {
        let message = format!("`--seconds`: at least {}", shares::LEAST_S);
        return Err(InputError(message).into());
    }
    let simulated = [
        ("--like-real", args.like_real),
        ("--cache-cpus", args.cache_cpus.is_some()),
    ];
    let wrong = simulated.iter().find(|it| it.1);
    if let Some((option, _)) = wrong.filter(|_| args.on != Substrate::Sim) {
        let message = format!("`{option}` is for simulated hosts: give `--on sim`");
        return Err(InputError(message).into());
    }
    files_writable(args.common.files())?;
    let interrupt = run::interrupt_flag()?;
    let progress = Progress::stderr(Duration::ZERO);
    let result = match args.on {
        Substrate::Sim => shares::simulate(&options, &interrupt, &progress)?,
        Substrate::Host => shares::run(&options, &interrupt, &progress)?,
        Substrate::Vm => vm::shares(&options, args, &interrupt)?,
    };
    print(&result, shares::table(&result), args.common.json.as_deref())
}
