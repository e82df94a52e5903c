//! The command line's parts: `quell` has hardly any other code, and `quell-studies` measures with them.
//!
//! Exit codes: 0 done, 1 the run failed, 2 the user's input is wrong, 3 the answer is no. Errors go to stderr
//! as `PROGRAM: ...` with what would be right.

pub mod catalogue;
pub mod cli;
pub mod commands;
mod error;
mod log;
pub mod table;

use clap::Parser;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Reads a program's arguments, dispatches their command, and turns errors into messages and exit codes.
pub fn main_of<C: Parser>(
    program: &'static str,
    dispatch: impl FnOnce(C) -> anyhow::Result<ExitCode>,
) -> ExitCode {
    std::panic::set_hook(Box::new(move |panic| {
        // Not eprintln: a closed stderr must not make a second panic.
        let _ = writeln!(
            std::io::stderr(),
            "{program}: bug: {panic}\nplease report this"
        );
    }));
    let cli = match C::try_parse() {
        Ok(cli) => cli,
        Err(e) => return usage(program, &e),
    };
    match dispatch(cli) {
        Ok(code) => code,
        // `quell status | head` ends our output early, which is no failure.
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "{program}: {}", said_once(&e));
            ExitCode::from(if commands::is_users(&e) { 2 } else { 1 })
        }
    }
}

/// Prints help and versions to stdout as they are, and mistakes to stderr like all our errors.
fn usage(program: &str, e: &clap::Error) -> ExitCode {
    if !e.use_stderr()
        || e.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    {
        // A closed stdout is no failure.
        let _ = e.print();
    } else {
        let text = e.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let _ = write!(std::io::stderr(), "{program}: {text}");
    }
    ExitCode::from(if e.use_stderr() { 2 } else { 0 })
}

/// An error and its causes, without the causes that the text has already: some errors tell theirs themselves.
fn said_once(e: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in e.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    let io = e
        .chain()
        .find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| io.kind() == ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::said_once;

    #[test]
    fn a_cause_that_an_error_tells_itself_is_told_once() {
        let cause = || anyhow::anyhow!("no such file");
        for (outer, text) in [
            (
                "a.toml: no such file; give another",
                "a.toml: no such file; give another",
            ),
            ("cannot read a.toml", "cannot read a.toml: no such file"),
        ] {
            assert_eq!(said_once(&cause().context(outer)), text);
        }
    }
}
