//! One function for each study.

mod acceptance;
mod agent;
mod calibration;
mod confirm;
mod harm;
mod hunt;
mod overhead;
mod promises;
mod reproduce;
mod shares;
mod speed;
mod standard;
mod vm;

use crate::catalogue::CATALOGUE;
use crate::cli::Command;
use quell::commands::InputError;
use quell_scenario::set::Setting;
use std::process::ExitCode;

/// Runs the study that the user asked for.
///
/// # Errors
/// Wrong input, a study that fails, and a study that finds what must not be.
pub fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    quell::commands::init_warnings();
    match command {
        Command::Bench(args) => quell::commands::bench::bench(&args, &CATALOGUE),
        Command::Capacity(args) => quell::commands::capacity::capacity(&args, &CATALOGUE),
        Command::Standard(args) => standard::run(&args),
        Command::Harm(args) => harm::run(&args),
        Command::Hunt(args) => hunt::run(&args),
        Command::Confirm(args) => confirm::run(&args),
        Command::Shares(args) => shares::run(&args),
        Command::Promises(args) => promises::run(&args),
        Command::Acceptance(args) => acceptance::run(&args),
        Command::Calibration(args) => calibration::run(&args),
        Command::Overhead(args) => overhead::run(&args),
        Command::Agent(args) => agent::run(&args),
        Command::Speed(args) => speed::run(&args),
        Command::Reproduce(args) => reproduce::reproduce(&args),
        Command::Fleet { args } => crate::agent_bench::fleet_main(&args),
        Command::StandardPart { args } => crate::standard::part_main(&args),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// A study's settings, `KEY=VALUE` each, and then the user's, which replace them.
fn settings<S: AsRef<str>>(
    texts: impl IntoIterator<Item = S>,
    users: &[Setting],
) -> anyhow::Result<Vec<Setting>> {
    let parsed = texts.into_iter().map(|text| text.as_ref().parse());
    let mut settings: Vec<Setting> = parsed.collect::<Result<_, _>>().map_err(InputError)?;
    settings.extend(users.iter().cloned());
    Ok(settings)
}
