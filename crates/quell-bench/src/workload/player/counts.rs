//! What a player has done so far, in memory that the player, its processes and the workload share.

use anyhow::Context;
use quell_sys::mapping::{Access, Mapped};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of a player.
pub struct Counts {
    /// Rounds, and CPU time of processes that have ended.
    memory: Mapped<AtomicU64>,
}

impl Counts {
    /// Size of the file, in bytes.
    pub const SIZE: u64 = 4096;

    /// Maps the counts in this file, which must have [`Counts::SIZE`] bytes.
    ///
    /// # Errors
    /// Where the file cannot be opened or mapped.
    pub fn open(path: &Path) -> anyhow::Result<Counts> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        let memory = Mapped::new(&file, 2, Access::ReadWrite);
        let memory = memory.with_context(|| format!("cannot map {}", path.display()))?;
        Ok(Counts { memory })
    }

    /// Counts one round.
    pub fn count_round(&self) {
        self.memory.all()[0].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of rounds so far.
    pub fn rounds(&self) -> u64 {
        self.memory.all()[0].load(Ordering::Relaxed)
    }

    /// Counts the CPU time of a process that has ended, in ns.
    pub fn add_ended_ns(&self, cpu_ns: u64) {
        self.memory.all()[1].fetch_add(cpu_ns, Ordering::Relaxed);
    }

    /// The CPU time of the processes that threads started and that have ended and been reaped, in ns.
    pub fn ended_ns(&self) -> u64 {
        self.memory.all()[1].load(Ordering::Relaxed)
    }
}
