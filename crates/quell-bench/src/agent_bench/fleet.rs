//! One tenant of the agent's own benchmark: a process with many threads, most of them asleep.
//!
//! It ends when its standard input closes, so that it cannot outlive the benchmark.

use anyhow::{Context, bail};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// How often an active thread wakes.
pub(super) const WAKE_EVERY: Duration = Duration::from_millis(100);

/// How long it then runs.
pub(super) const RUN_FOR: Duration = Duration::from_micros(50);

/// Enough for a thread that calls nothing deep; the default of 2 MiB would only cost page tables.
const STACK_BYTES: usize = 64 << 10;

/// The hidden subcommand's work: `THREADS ACTIVE`, the process's threads and how many of them are
/// active. Writes a line to standard output when all run, then waits for standard input to close.
pub fn fleet_main(args: &[String]) -> anyhow::Result<()> {
    let [threads, active] = args else {
        bail!("usage: {} THREADS ACTIVE", super::FLEET_COMMAND);
    };
    let (threads, active): (u32, u32) = (
        threads
            .parse()
            .with_context(|| format!("THREADS `{threads}`"))?,
        active
            .parse()
            .with_context(|| format!("ACTIVE `{active}`"))?,
    );
    // The main thread is one of the sleepers.
    for index in 1..threads.max(1) {
        let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
        if index <= active {
            let phase = WAKE_EVERY.mul_f64(f64::from(index) / f64::from(active));
            builder
                .name(format!("active-{index}"))
                .spawn(move || work(phase))
        } else {
            builder.name(format!("idle-{index}")).spawn(|| {
                loop {
                    std::thread::park()
                }
            })
        }
        .with_context(|| format!("thread {index} of {threads}"))?;
    }
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Wakes on a grid of [`WAKE_EVERY`] that begins after `phase`, and runs [`RUN_FOR`] each time.
fn work(phase: Duration) {
    let began = Instant::now() + phase;
    for turn in 0u32.. {
        let due = began + WAKE_EVERY * turn;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let until = Instant::now() + RUN_FOR;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
}
