//! The command line: reads arguments, calls the crates, prints, and turns errors into exit codes.
//!
//! Exit codes: 0 done, 1 the run failed, 2 the user's input is wrong. Errors go to stderr as
//! `quell: ...` with what would be right.

mod cli;
mod commands;
#[cfg(test)]
mod guide_tests;
mod log;
mod table;

use clap::Parser;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        // Not eprintln: a closed stderr must not make a second panic.
        let _ = writeln!(std::io::stderr(), "quell: bug: {panic}\nplease report this");
    }));
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    match commands::dispatch(cli.command) {
        Ok(code) => code,
        // `quell status | head` ends our output early; that is no failure.
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "quell: {e:#}");
            ExitCode::from(if commands::is_users(&e) { 2 } else { 1 })
        }
    }
}

/// Help and versions go to stdout as they are; mistakes to stderr like all our errors.
fn usage(e: &clap::Error) -> ExitCode {
    if !e.use_stderr()
        || e.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    {
        // A closed stdout is no failure.
        let _ = e.print();
    } else {
        let text = e.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let _ = write!(std::io::stderr(), "quell: {text}");
    }
    ExitCode::from(if e.use_stderr() { 2 } else { 0 })
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    let io = e
        .chain()
        .find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| io.kind() == ErrorKind::BrokenPipe)
}
