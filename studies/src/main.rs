//! The command line: `quell-studies`.

use quell_studies::{cli::Cli, commands};
use std::process::ExitCode;

fn main() -> ExitCode {
    quell::main_of("quell-studies", |cli: Cli| commands::dispatch(cli.command))
}
