//! `quell sched`: the scheduler alone, without an agent.

use crate::cli::Sched;
use anyhow::{Context, bail};
use quell_sched::{CpuStats, Exit, Scheduler, Stats};
use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The period at which signals and the scheduler's end are looked for.
const POLL: Duration = Duration::from_millis(100);

/// One line of `--json`.
#[derive(Serialize)]
struct Line {
    seconds: f64,
    /// Instructions that the kernel's verifier went through.
    verified: u64,
    #[serde(flatten)]
    stats: Stats,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<Exit>,
}

/// Loads the scheduler and prints its statistics until SIGINT, SIGTERM, or its end.
///
/// # Errors
/// Where the scheduler cannot be loaded, the kernel ends it with an error, or stdout cannot be written.
pub fn sched(args: &Sched) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let topology = quell_linux::observe::topology::read()?;
    let scheduler = Scheduler::load(&topology, &args.scheduler.options())?;
    let verified = scheduler.verified()?;
    let began = Instant::now();
    let interval = Duration::from_secs_f64(args.interval);
    let mut next = interval;
    let mut before = CpuStats::default();
    if !args.json {
        say(&format!(
            "the scheduler runs (the kernel verified {verified} instructions); \
             Ctrl-C ends it and the kernel's own takes over"
        ))?;
    }
    loop {
        let exit = scheduler.exited()?;
        let last = exit.is_some() || stop.load(Ordering::Relaxed);
        let elapsed = began.elapsed();
        if last || elapsed >= next {
            next = elapsed + interval;
            let stats = scheduler.stats()?;
            if args.json {
                let line = Line {
                    seconds: elapsed.as_secs_f64(),
                    verified,
                    stats,
                    exit: exit.clone(),
                };
                say(&serde_json::to_string(&line)?)?;
            } else {
                say(&text(&stats.total, &before))?;
                before = stats.total;
            }
        }
        if let Some(exit) = exit {
            if exit.is_error() {
                bail!(
                    "the kernel threw the scheduler out ({}): {}",
                    exit.reason,
                    exit.message
                );
            }
            if !args.json {
                say(&format!("ended: {} {}", exit.reason, exit.message))?;
            }
            return Ok(());
        }
        if last {
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
}

/// The statistics since `before`, in a line.
fn text(now: &CpuStats, before: &CpuStats) -> String {
    let runs = now.runs - before.runs;
    let mean = (now.wait_ns - before.wait_ns) / runs.max(1);
    format!(
        "{runs} turns, ready {} us before on average, worst since loading {:.1} ms (thread {}); \
         wakeups: {} to an idle CPU, {} preempting, {} queued; {} turns ended",
        mean / 1000,
        now.worst_wait_ns as f64 / 1e6,
        now.worst_wait_tid,
        now.wakeups_idle - before.wakeups_idle,
        now.wakeups_preempting - before.wakeups_preempting,
        now.wakeups_queued - before.wakeups_queued,
        now.late - before.late,
    )
}

/// Prints a line to stdout. A reader that has closed the pipe does not end the scheduler.
fn say(line: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("stdout"),
        _ => Ok(()),
    }
}
