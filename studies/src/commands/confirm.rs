//! `quell-studies confirm`: finds of the hunt on a real kernel.

use crate::catalogue::CATALOGUE;
use crate::cli;
use crate::hunt::Case;
use crate::hunt::confirm::{self, Confirmed};
use anyhow::Context;
use quell::commands::InputError;
use quell::commands::bench::{Job, files_writable, folder_writable, print};
use quell_bench::run;
use std::io::{self, Write};
use std::path::PathBuf;

/// Plays each find under all sides.
///
/// # Errors
/// A file is no find, a find cannot be played, or a light task waits too long there.
pub fn run(args: &cli::Confirm) -> anyhow::Result<()> {
    let sides = CATALOGUE.sides(&args.policy, args.on)?;
    if sides.len() < 2 {
        let message = "`--policy`: a reference and at least one side to compare it with";
        return Err(InputError(message.to_string()).into());
    }
    let mut cases = Vec::new();
    for file in &args.finds {
        let case = Case::read(file).map_err(|error| InputError(format!("{error:#}")))?;
        let stem = file.file_stem().unwrap_or_default();
        cases.push((stem.to_string_lossy().into_owned(), case));
    }
    if let Some(folder) = &args.scenarios {
        folder_writable(folder)?;
        for (name, case) in &cases {
            let file = folder.join(format!("{name}.toml"));
            let text = confirm::scenario(case, name)?;
            std::fs::write(&file, text).with_context(|| file.display().to_string())?;
        }
        return Ok(());
    }
    files_writable(args.common.files())?;
    let interrupt = run::interrupt_flag()?;
    let mut measure = args.common.measure(args.seconds, args.pairs);
    measure.scheduling = true;
    let mut rows = Vec::new();
    for (number, (name, case)) in cases.iter().enumerate() {
        writeln!(
            io::stderr(),
            "{name} ({} of {}): {}",
            number + 1,
            cases.len(),
            case.workload
        )?;
        let text = confirm::scenario(case, name)?;
        let file = PathBuf::from(format!("{name}.toml"));
        let job = match Job::new(&file, &text, &[], sides.clone(), &measure) {
            Ok(job) => job,
            // A cgroup that holds tasks and groups is refused.
            Err(error) => {
                writeln!(io::stderr(), "left out: {error:#}")?;
                continue;
            }
        };
        let result = job.run(args.on, &args.guest, &interrupt)?;
        rows.extend(confirm::rows(name, &case.workload, &result)?);
    }
    anyhow::ensure!(!rows.is_empty(), "no find could be played");
    let confirmed = Confirmed::new(rows);
    print(
        &confirmed,
        confirm::table(&confirmed),
        args.common.json.as_deref(),
    )?;
    let long = confirmed.rows.iter().filter(|row| row.exceeds()).count();
    anyhow::ensure!(long == 0, "{long} light tasks wait too long");
    Ok(())
}
