//! `quell bench harm`: whether a side is worse than the kernel's default anywhere.

use super::InputError;
use super::bench::{Job, files_writable, print, sides};
use crate::cli::{Bench, DEFAULT_SIDES};
use quell_bench::harm::{self, CASES, Harm};
use quell_bench::run;
use quell_bench::set::Setting;
use std::io::{self, Write};

/// Runs every scenario, and shows what each side does to it. False where one is beyond its limits.
pub(super) fn run(args: &Bench) -> anyhow::Result<bool> {
    let sides = sides(&args.policy, args.on)?;
    if sides.len() < 2 {
        let message = format!("`--policy`: a baseline and at least one side, as {DEFAULT_SIDES}");
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
        return Ok(true);
    }
    files_writable(args.measure.files())?;
    let interrupt = run::interrupt_flag()?;
    let mut rows = Vec::new();
    for (number, (scenario, set)) in cases.iter().enumerate() {
        let name = name(scenario, *set);
        writeln!(io::stderr(), "{name} ({} of {})", number + 1, cases.len())?;
        let settings = set.iter().map(|text| text.parse::<Setting>());
        let mut settings = settings
            .collect::<Result<Vec<_>, _>>()
            .map_err(anyhow::Error::msg)?;
        settings.extend(args.set.iter().cloned());
        let job = Job::new(scenario, &settings, sides.clone(), &args.measure)?;
        let result = job.run(args.on, &args.guest, &interrupt);
        match result {
            Ok(result) => rows.extend(harm::rows(&name, &result)),
            // The simulator has no real applications.
            Err(error) if super::is_users(&error) => writeln!(io::stderr(), "left out: {error:#}")?,
            Err(error) => return Err(error),
        }
    }
    let harm = Harm::new(rows);
    print(&harm, harm::table(&harm), args.measure.json.as_deref())?;
    Ok(harm.holds())
}

fn name(scenario: &str, set: Option<&str>) -> String {
    match set {
        Some(set) => format!("{scenario} {}", set.trim_start_matches("tenant.svc.")),
        None => scenario.to_string(),
    }
}
