//! xz: compresses an endless stream with several threads. Work is the bytes it has consumed.
//!
//! The stream is a text repeated, written into xz's standard input by a thread of ours that wakes up every
//! few milliseconds to fill the pipe: cheap, and never what limits xz. Blocks are smaller than the text, and
//! xz compresses each block by itself, so the repetition does not make the work any easier.

use super::{Launch, Started, Work, text};
use crate::workload::load::become_realtime;
use crate::workload::process::find_program;
use anyhow::Context;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use quell_scenario::Xz;
use quell_sys::file::unread_bytes;
use std::io::{ErrorKind, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Size of the repeated text, in bytes.
const TEXT_BYTES: usize = 4 << 20;
/// Size of a block: what a thread of xz compresses at a time.
const BLOCK: &str = "--block-size=512KiB";
/// Size of the pipe that is asked for, in bytes: the largest that an ordinary user may have.
const PIPE_BYTES: i32 = 1 << 20;
/// Bounds of the time between two fills of the pipe, in µs.
const PAUSE_US: (u64, u64) = (200, 5_000);

/// Starts xz and the thread that feeds it.
///
/// # Errors
/// Where xz is not installed or cannot be started, or its pipe cannot be set up.
pub fn start(app: &Xz, launch: &Launch<'_>) -> anyhow::Result<Started> {
    let mut command = Command::new(find_program("xz", "xz-utils")?);
    command
        .current_dir(&launch.folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    command.env_remove("XZ_OPT").env_remove("XZ_DEFAULTS");
    let threads = app.threads.on(launch.cpus).to_string();
    command.args(["--compress", "--stdout", BLOCK, "-T", &threads]);
    command.arg(format!("-{}", app.level));
    let mut process = launch.start(command)?;
    let pipe = process
        .child()
        .stdin
        .take()
        .context("xz has no standard input")?;
    let feeder = Feeder::start(pipe)?;
    launch.until(&process, || {
        anyhow::ensure!(feeder.done() > 0.0, "xz reads nothing");
        Ok(())
    })?;
    Ok(Started {
        process,
        connect: None,
        work: Some(Box::new(feeder)),
        counts: None,
    })
}

/// The thread that feeds xz.
struct Feeder {
    /// The bytes that xz has taken out of the pipe.
    consumed: Consumed,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Counts the bytes that have left a pipe.
#[derive(Clone)]
struct Consumed {
    pipe: Arc<ChildStdin>,
    written: Arc<AtomicU64>,
}

impl Consumed {
    fn bytes(&self) -> u64 {
        let waiting = unread_bytes(&*self.pipe).unwrap_or(0) as u64;
        // Written is read after the ioctl: bytes written in between count as consumed a moment
        // early, never as a negative number.
        self.written.load(Ordering::Relaxed).saturating_sub(waiting)
    }
}

impl Feeder {
    fn start(pipe: ChildStdin) -> anyhow::Result<Feeder> {
        // A smaller pipe only means more frequent fills.
        let size = fcntl(&pipe, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES)).unwrap_or(64 << 10) as usize;
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).context("cannot set up xz's pipe")?;
        let consumed = Consumed {
            pipe: Arc::new(pipe),
            written: Arc::new(AtomicU64::new(0)),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (consumed, stop) = (consumed.clone(), Arc::clone(&stop));
            std::thread::Builder::new()
                .name("feeder".to_string())
                .spawn(move || feed(&consumed, size, &stop))
                .context("cannot start a thread")?
        };
        Ok(Feeder {
            consumed,
            stop,
            thread: Some(thread),
        })
    }
}

/// Fills the pipe until `stop` is set or xz reads no more.
fn feed(consumed: &Consumed, pipe_bytes: usize, stop: &AtomicBool) {
    // Like the load generator, this thread stands for the world outside, which no tenant delays.
    let _ = become_realtime();
    let text = text(5, TEXT_BYTES);
    let mut at = 0;
    let mut pause_us = PAUSE_US.0;
    while !stop.load(Ordering::Relaxed) {
        let mut filled = 0;
        loop {
            match (&*consumed.pipe).write(&text[at..]) {
                Ok(written) => {
                    at = (at + written) % text.len();
                    filled += written;
                    consumed
                        .written
                        .fetch_add(written as u64, Ordering::Relaxed);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return,
            }
        }
        // The pause is such that the pipe is between a quarter and half empty each time.
        pause_us = match filled * 4 / pipe_bytes {
            0 => pause_us * 2,
            1 => pause_us,
            _ => pause_us / 2,
        }
        .clamp(PAUSE_US.0, PAUSE_US.1);
        std::thread::sleep(Duration::from_micros(pause_us));
    }
}

impl Work for Feeder {
    fn done(&self) -> f64 {
        self.consumed.bytes() as f64
    }

    fn unit(&self) -> &'static str {
        "bytes"
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
