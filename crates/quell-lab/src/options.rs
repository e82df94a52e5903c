//! A guest's options: its machine, its clock, its limits of time.

use crate::error::LabError;
use crate::kernel::Kernel;
use crate::report::console_tail;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The clock that the guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// One instruction is one nanosecond, for all CPUs together, and idle time is skipped. The same image
    /// gives the same numbers on any machine, however busy.
    Virtual,
    /// The host's time: under KVM where that works, else emulated on several threads.
    Real,
}

/// A guest's options.
#[derive(Debug, Clone)]
pub struct Boot {
    /// The guest's CPUs, a multiple of `sockets` times `smt`.
    pub cpus: u32,
    /// Sockets that the CPUs are spread over, each with a last-level cache of its own.
    pub sockets: u32,
    /// CPUs in each core.
    pub smt: u32,
    /// The guest's memory in MiB.
    pub memory_mib: u32,
    /// The guest's clock.
    pub clock: Clock,
    /// Whether the real clock may use KVM; [`crate::Lab::kvm_runs`] says whether it works here.
    pub kvm: bool,
    /// Seed of the guest's own random numbers, and so of its boot history; on the virtual clock.
    pub seed: u64,
    /// More words for the kernel's command line.
    pub append: String,
    /// How long the guest may take to reach its command, on the host's clock.
    pub boot_limit: Duration,
    /// How long the guest's command may take, on the host's clock.
    pub limit: Duration,
    /// Whether `limit` begins anew whenever the command writes: for studies, which report their progress.
    pub limits_silence: bool,
    /// The folder of snapshots to start from, on the virtual clock: see [`crate::Lab::snapshots`]. Without it
    /// every guest boots.
    pub snapshots: Option<PathBuf>,
}

impl Default for Boot {
    /// Eight CPUs, 3 GiB, virtual clock.
    fn default() -> Boot {
        Boot {
            cpus: 8,
            sockets: 1,
            smt: 1,
            memory_mib: 3072,
            clock: Clock::Virtual,
            kvm: false,
            seed: 42,
            append: String::new(),
            boot_limit: Duration::from_secs(300),
            limit: Duration::from_secs(3600),
            limits_silence: true,
            snapshots: None,
        }
    }
}

impl Boot {
    /// The error of a guest that did not reach its command in time.
    pub(crate) fn not_booted(&self, kernel: &Kernel, folder: &Path, starts: u32) -> LabError {
        let hint = match (self.clock, kernel.runs_on_virtual_clock()) {
            (Clock::Virtual, false) => {
                " (kernels of the 6.1 era hang on the virtual clock: --clock real)"
            }
            _ => "",
        };
        LabError::NotBooted {
            seconds: self.boot_limit.as_secs(),
            starts,
            hint,
            console: console_tail(&folder.join("console")),
        }
    }
}
