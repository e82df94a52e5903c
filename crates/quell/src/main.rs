//! The command line: `quell`.

use std::process::ExitCode;

fn main() -> ExitCode {
    quell::main_of("quell", |cli: quell::cli::Cli| {
        quell::commands::dispatch(cli.command)
    })
}
