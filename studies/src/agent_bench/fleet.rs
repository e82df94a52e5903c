//! One tenant of the agent's own benchmark: a process with many threads, most of them asleep.
//!
//! The process ends when its standard input closes, so that it cannot outlive the benchmark.

use super::guest;
use anyhow::{Context, bail};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often an active thread wakes.
pub(super) const WAKE_EVERY: Duration = Duration::from_millis(100);

/// How long it then runs.
pub(super) const RUN_FOR: Duration = Duration::from_micros(50);

/// The stack of a thread, in bytes: enough for one that calls nothing deep; the default of 2 MiB would only
/// cost page tables.
const STACK_BYTES: usize = 64 << 10;

/// The hidden subcommand's work. `args` are `THREADS ACTIVE`: the process's threads, and how many of them are
/// active. For a process that stands for a virtual machine there follow the socket of its guest agent, by how
/// many ms that agent is late, and options of QEMU that name the socket. Writes a line to standard output
/// when all threads run, then waits until standard input closes.
///
/// # Errors
/// Where the arguments are wrong, the socket cannot be bound, or a thread cannot be started.
pub fn fleet_main(args: &[String]) -> anyhow::Result<()> {
    let [threads, active, rest @ ..] = args else {
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
    let vm = match rest {
        [socket, late_ms, ..] => {
            let late = Duration::from_millis(late_ms.parse().context("LATE_MS")?);
            guest::serve(Path::new(socket), threads.saturating_sub(1), late)?;
            true
        }
        _ => false,
    };
    let name = |kind: &str, index: u32| match vm {
        true => format!("CPU {}/KVM", index - 1),
        false => format!("{kind}-{index}"),
    };
    // The main thread is one of the sleeping threads.
    for index in 1..threads.max(1) {
        let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
        if index <= active {
            let phase = WAKE_EVERY.mul_f64(f64::from(index) / f64::from(active));
            builder
                .name(name("active", index))
                .spawn(move || work(phase))
        } else {
            builder.name(name("idle", index)).spawn(|| {
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
