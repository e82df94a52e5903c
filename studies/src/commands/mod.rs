//! One function for each study.

mod acceptance;
mod agent;
mod calibration;
mod harm;
mod hunt;
mod overhead;
mod promises;
mod reproduce;
mod shares;
mod speed;
mod standard;
mod vm;

use crate::cli::Command;
use std::process::ExitCode;

/// Does what the user asked for.
///
/// # Errors
/// What of the input is wrong, or why the study failed, or that it found what should not be.
pub fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    quell::commands::init_warnings();
    match command {
        Command::Standard(args) => standard::run(&args),
        Command::Harm(args) => harm::run(&args),
        Command::Hunt(args) => hunt::run(&args),
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
