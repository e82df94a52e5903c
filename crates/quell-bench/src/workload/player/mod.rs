//! Plays the thread programs of one tenant on real threads, in a process of its own.
//!
//! The workload starts `quell player SPEC` with one end of a `SOCK_SEQPACKET` socket pair as standard input.
//! Every message on it is one [`Ticket`]: a request on the way in, its answer on the way out. All threads
//! that wait for a request wait in `recv` on that one socket, where the kernel wakes one of them for each
//! message: no thread of the player stands between a request and the thread that serves it. A first message
//! with the id [`READY`] says that all threads run.
//!
//! Rounds (turns of the threads' programs), and what processes used that threads started, are counted in a
//! file that the player and the workload map ([`Counts`]).

mod burn;
mod counts;
mod interpret;
mod processes;
mod scheduling;
mod sync;

pub use burn::{Burner, do_nothing};
pub use counts::Counts;
pub use quell_sys::clock::thread_cpu_ns;

use anyhow::Context;
use interpret::{Shared, Thread};
use quell_model::CpuSet;
use quell_scenario::ThreadProgram;
use quell_sys::copies::Copies;
use quell_sys::sched::{CALLER, affinity, set_affinity};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// The id of the message that says the player is ready.
pub const READY: u64 = u64::MAX;

/// What a player process is to play.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlayerSpec {
    /// The thread programs.
    pub threads: Vec<ThreadProgram>,
    /// Number of CPUs that `count = "cpus"` means.
    pub cpus: u32,
    /// The file of the player's counts, [`Counts::SIZE`] bytes.
    pub counts: PathBuf,
}

/// A request or its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// The request's id.
    pub id: u64,
    /// The seed of the times that its steps draw.
    pub seed: u64,
}

impl Ticket {
    /// The size of a message, in bytes.
    pub const SIZE: usize = 16;

    /// The ticket as the socket carries it.
    pub fn to_bytes(self) -> [u8; Ticket::SIZE] {
        (u128::from(self.id) | u128::from(self.seed) << 64).to_le_bytes()
    }

    /// The inverse of [`Ticket::to_bytes`].
    pub fn from_bytes(bytes: [u8; Ticket::SIZE]) -> Ticket {
        let both = u128::from_le_bytes(bytes);
        Ticket {
            id: both as u64,
            seed: (both >> 64) as u64,
        }
    }
}

/// The hidden subcommand `quell player SPEC`; `args` are the arguments after it. Runs until the workload ends
/// it or closes the socket.
///
/// # Errors
/// Where the arguments or the specification are wrong, or a thread cannot be started, limited to its CPUs or
/// scheduled as its program says.
pub fn main(args: Vec<std::ffi::OsString>) -> anyhow::Result<()> {
    let [path] = &args[..] else {
        anyhow::bail!("usage: quell player SPEC (started by `quell bench`, not by hand)");
    };
    let path = Path::new(path);
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let spec: PlayerSpec = serde_json::from_str(&text)
        .with_context(|| format!("{} is no player's", path.display()))?;
    // The programs and what the threads share are never freed, so threads refer to them freely.
    let programs: &'static [ThreadProgram] = Vec::leak(spec.threads);
    let socket = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .context("no socket at stdin")?;
    let counts = Counts::open(&spec.counts)?;
    let copies = match programs.iter().any(ThreadProgram::spawns) {
        true => Some(Copies::new().context("cannot start processes that end with this one")?),
        false => None,
    };
    let shared = Shared::new(programs, spec.cpus, socket, counts, copies);
    let shared: &'static Shared = Box::leak(Box::new(shared));

    let mut threads = Vec::new();
    for program in programs {
        let count = program.count.on(spec.cpus);
        for n in 0..count {
            let name = match count {
                1 => program.name.clone(),
                _ => format!("{}-{n}", program.name),
            };
            let thread = Thread::new(shared, program, threads.len() as u64);
            threads.push((name, program, thread));
        }
    }
    let mut threads = threads.into_iter();
    // The process's first thread plays too, so that a tenant has exactly the threads of its programs.
    let (first_name, first_program, mut first) = threads.next().context("no threads")?;
    // A thread inherits its CPUs from the thread that starts it, and so never runs elsewhere. Where no
    // program names CPUs, none are set.
    let limited = programs.iter().any(|program| program.cpus.is_some());
    let inherited = affinity(CALLER).context("cannot find out our CPUs")?;
    let limit = |cpus: Option<&CpuSet>| {
        if !limited {
            return Ok(());
        }
        let cpus = cpus.unwrap_or(&inherited);
        set_affinity(CALLER, cpus).with_context(|| format!("cannot run on CPUs {cpus}"))
    };
    let (scheduled, results) = mpsc::channel();
    let mut others = 0;
    for (name, program, mut thread) in threads {
        limit(program.cpus.as_ref())?;
        let scheduled = scheduled.clone();
        std::thread::Builder::new()
            .name(name)
            .stack_size(128 << 10)
            .spawn(move || {
                // Each thread sets its own scheduling: giving up an inherited one might need privileges.
                let _ = scheduled.send(scheduling::set(program));
                thread.play();
            })
            .context("cannot start a thread")?;
        others += 1;
    }
    for result in results.iter().take(others) {
        result?;
    }
    limit(first_program.cpus.as_ref())?;
    scheduling::set(first_program)?;
    fs::write("/proc/thread-self/comm", first_name).context("cannot name the first thread")?;
    shared.answer(Ticket { id: READY, seed: 0 });
    first.play();
    // The process stays as long as the workload, even after all its threads' programs have ended.
    loop {
        std::thread::park();
    }
}
