//! One function for each subcommand.

mod admit;
mod agent;
pub mod bench;
pub mod capacity;
mod explain;
mod import;
pub mod lab;
mod matrix;
mod pages;
mod prove;
mod record;
mod replay;
mod sched;
mod status;
mod top;
pub mod vm;

use crate::catalogue::PRODUCT;
use crate::cli::Command;
pub use crate::error::{InputError, is_users};
use std::path::Path;
use std::process::ExitCode;

/// Shows warnings of libraries on stderr.
pub fn init_warnings() {
    crate::log::init_warnings();
}

/// Executes a command, and gives the exit code.
///
/// # Errors
/// Where the command failed; [`is_users`] says whether the user's input is at fault.
pub fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    // The agent sets up its own log, with the user's level and format.
    if !matches!(command, Command::Run(_)) {
        init_warnings();
    }
    let done = match command {
        // These commands have exit codes of their own: another program's, or that of a no.
        Command::Admit(args) => return admit::admit(&args),
        Command::Lab(lab) => return lab::lab(&lab),
        Command::Record(args) => return record::record(&args),
        Command::Demo(measure) => bench::demo(&measure),
        Command::Run(run) => agent::run(&run),
        Command::Status(status) => status::status(&status),
        Command::Top(top) => top::top(&top),
        Command::Explain(explain) => explain::explain(&explain),
        Command::Prove(args) => prove::prove(&args),
        Command::Restore(restore) => agent::restore(&restore),
        Command::Check(check) => agent::check(&check),
        Command::Bench(bench) => bench::bench(&bench, &PRODUCT),
        Command::Capacity(args) => capacity::capacity(&args, &PRODUCT),
        Command::Import(args) => import::import(&args),
        Command::Replay(args) => replay::replay(&args),
        Command::Sched(args) => sched::sched(&args),
        Command::Schema { drop_in } => pages::schema(drop_in),
        Command::Completion { shell } => pages::completion(shell),
        Command::Man { folder } => pages::man(&folder),
        Command::Player { args } => quell_bench::workload::player::main(args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// The text of a file that the user names.
fn read_input(file: &Path) -> Result<String, InputError> {
    std::fs::read_to_string(file).map_err(|e| InputError(format!("{}: {e}", file.display())))
}
