//! `quell-studies harm`: whether a side is worse than the kernel's default on any scenario.

use super::settings;
use crate::catalogue::CATALOGUE;
use crate::cli;
use crate::harm::{self, CASES, Harm};
use quell::commands::InputError;
use quell::commands::bench::{Job, files_writable, print};
use quell_bench::result::Substrate;
use quell_bench::run;
use std::io::{self, Write};
use std::thread::available_parallelism;

/// Runs every scenario, and shows what each side does to it.
///
/// # Errors
/// Wrong arguments, files that cannot be written, a scenario that fails to run, and a side that is beyond its
/// limits on some scenario.
pub fn run(args: &cli::Harm) -> anyhow::Result<()> {
    let sides = CATALOGUE.sides(&args.policy, args.on)?;
    if sides.len() < 2 {
        let message = "`--policy`: a baseline and at least one side, as default,quell".to_string();
        return Err(InputError(message).into());
    }
    let wanted = |name: &&(&str, Option<&str>)| {
        args.only.is_empty() || args.only.iter().any(|it| name.0.contains(it.as_str()))
    };
    let cases: Vec<_> = CASES.iter().filter(wanted).collect();
    if cases.is_empty() {
        let message = format!(
            "`--only`: no scenario has `{}` in its name",
            args.only.join("` or `")
        );
        return Err(InputError(message).into());
    }
    if args.list {
        for (scenario, set) in &cases {
            writeln!(io::stdout(), "{}", name(scenario, *set))?;
        }
        return Ok(());
    }
    files_writable(args.common.files())?;
    let interrupt = run::interrupt_flag()?;
    let mut measure = args.common.measure(args.seconds, args.pairs);
    measure.scheduling = args.scheduling;
    let mut rows = Vec::new();
    for (number, (scenario, set)) in cases.iter().enumerate() {
        let name = name(scenario, *set);
        writeln!(io::stderr(), "{name} ({} of {})", number + 1, cases.len())?;
        let mut texts: Vec<String> = set.iter().map(ToString::to_string).collect();
        if args.on == Substrate::Host {
            let alone = settings(&texts, &[])?;
            let job = Job::named(&CATALOGUE, scenario, &alone, sides.clone(), &measure)?;
            let cpus = available_parallelism().map_or(1, |it| it.get());
            texts.extend(harm::rates_for(&job.scenario, cpus));
        }
        let settings = settings(&texts, &args.set)?;
        let job = Job::named(&CATALOGUE, scenario, &settings, sides.clone(), &measure)?;
        let result = job.run(args.on, &args.guest, &interrupt);
        match result {
            Ok(result) => rows.extend(harm::rows(&name, &result)),
            // The simulator has no real applications, so scenarios with some are left out.
            Err(error) if quell::commands::is_users(&error) => {
                writeln!(io::stderr(), "left out: {error:#}")?
            }
            Err(error) => return Err(error),
        }
    }
    let harm = Harm::new(rows);
    print(&harm, harm::table(&harm), args.common.json.as_deref())?;
    anyhow::ensure!(harm.holds(), "a side does harm: see HARMS above");
    Ok(())
}

fn name(scenario: &str, set: Option<&str>) -> String {
    match set {
        Some(set) => format!("{scenario} {}", set.trim_start_matches("tenant.svc.")),
        None => scenario.to_string(),
    }
}
