//! `quell prove`: what Quell does to this host's tenants, measured in the foreground.

use super::bench::writable;
use crate::cli::Prove;
use quell_agent::AgentOptions;
use quell_bench::progress::Progress;
use quell_bench::proof::{self, Proved};
use quell_linux::observe::Preference;
use quell_model::Effect;
use std::time::Duration;

/// Runs the trial, and shows its result.
///
/// # Errors
/// Where a result cannot be written, or the agent cannot start or fails.
pub fn prove(args: &Prove) -> anyhow::Result<()> {
    for file in args.json.iter().chain(&args.report) {
        writable(file)?;
    }
    let options = AgentOptions {
        config: args.config.clone(),
        socket: args.socket.socket.clone(),
        journal: args.journal.clone(),
        dry_run: false,
        source: Preference::Bpf,
    };
    let progress = Progress::stderr(args.length);
    let mut tell = |effect: &Effect, over: Duration| progress.step(over, &so_far(effect));
    let proof = quell_agent::prove(&options, args.length, &mut tell)?;
    drop(progress);
    let proved = Proved::new(
        &args.config,
        args.length,
        proof.backend,
        proof.effect,
        proof.complete,
    )?;
    proof::deliver(&proved, args.json.as_deref(), args.report.as_deref())
}

fn so_far(effect: &Effect) -> String {
    let void = match effect.void {
        0 => String::new(),
        void => format!(", {void} said nothing"),
    };
    match effect.responses {
        Some(it) => format!(
            "{} pairs of blocks{void}: responses {}",
            effect.pairs,
            quell_agent::effects::percent(it)
        ),
        None => format!("{} pairs of blocks{void}", effect.pairs),
    }
}
