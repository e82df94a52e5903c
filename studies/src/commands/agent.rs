//! `quell-studies agent`: what the agent itself costs.

use crate::agent_bench::{self, AgentBenchOptions};
use crate::cli::AgentCost;
use quell::commands::bench::{files_writable, print, this_program};
use quell_bench::progress::Progress;
use quell_bench::run;

/// Measures the agent's cost on this host, and shows a table.
///
/// # Errors
/// Files that cannot be written, and as [`agent_bench::run`].
pub fn run(args: &AgentCost) -> anyhow::Result<()> {
    let mut options = AgentBenchOptions::new(this_program()?, std::env::current_exe()?);
    options.vms = args.vms;
    if args.vms {
        options.threads = vec![250];
    }
    if let Some(threads) = args.threads {
        options.threads = vec![threads];
    }
    if args.growth {
        options.threads = agent_bench::GROWTH.to_vec();
    }
    options.tenants = args.tenants.unwrap_or(options.tenants);
    options.active_percent = args.active.unwrap_or(options.active_percent);
    options.seconds = args.seconds.unwrap_or(options.seconds);
    files_writable(args.common.files())?;
    let interrupt = run::interrupt_flag()?;
    let progress = Progress::stderr(options.planned());
    let result = agent_bench::run(&options, &interrupt, &progress)?;
    let json = args.common.json.as_deref();
    print(&result, agent_bench::table(&result), json)
}
