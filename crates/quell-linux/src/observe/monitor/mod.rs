//! The BPF monitor: what every thread of every tenant did, counted inside the kernel.

mod reading;

pub use reading::{
    OCCASION_BUCKETS, ProcessEvent, ProcessEvents, RawCpu, RawTenant, RawThread, RawWaits,
    RawWaker, Reading, TenantIndex, WAIT_BUCKETS, WAKERS,
};

use quell_model::Pid;

/// How much the monitor follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Threads at a time, 1 to 65 534. Each takes 448 bytes once used.
    pub threads: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { threads: 16_384 }
    }
}

/// Why the monitor cannot work.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// The process may not load BPF programs.
    #[error("no right to load BPF programs: missing {}", missing.join(" and "))]
    Capability {
        /// The missing capabilities.
        missing: Vec<&'static str>,
    },
    /// The kernel has no type information, which the programs need to find its fields.
    #[error("the kernel has no BTF at /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF)")]
    NoBtf,
    /// The kernel did not take the programs.
    #[error("the kernel refused the BPF programs ({reason}): {log}")]
    Refused {
        /// The kernel's error.
        reason: String,
        /// The end of libbpf's and the verifier's log.
        log: String,
    },
    /// A limit is out of range.
    #[error("{what} must be {range}, not {value}")]
    Limit {
        /// Which.
        what: &'static str,
        /// What would be right.
        range: &'static str,
        /// What it was.
        value: u64,
    },
    /// Talking to the loaded programs failed.
    #[error("BPF monitor: {what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The error.
        source: std::io::Error,
    },
}

/// The loaded and attached monitor. Dropping it detaches and unloads everything.
#[derive(Debug)]
pub struct Monitor {
    limits: Limits,
}

impl Monitor {
    /// Loads the programs and attaches them.
    pub fn load(limits: Limits) -> Result<Monitor, MonitorError> {
        let monitor = Monitor { limits };
        Err(MonitorError::Refused {
            reason: format!("not built in (limits {:?})", monitor.limits),
            log: String::new(),
        })
    }

    /// Follows all threads of a process from now on. Threads and processes that it creates belong
    /// to the tenant from their first moment; threads that it has already are picked up by the next
    /// [`Monitor::read`]. A process that is in another tenant moves (its threads end there).
    pub fn assign(&mut self, process: Pid, tenant: TenantIndex) -> Result<(), MonitorError> {
        let _ = (process, tenant);
        Ok(())
    }

    /// No longer follows a process; its threads end with the next [`Monitor::read`]. Unknown
    /// processes are no error.
    pub fn unassign(&mut self, process: Pid) -> Result<(), MonitorError> {
        let _ = process;
        Ok(())
    }

    /// Processes that executed, forked or exited since the last call.
    pub fn process_events(&mut self) -> Result<ProcessEvents, MonitorError> {
        Ok(ProcessEvents::default())
    }

    /// All counters now.
    pub fn read(&mut self) -> Result<&Reading, MonitorError> {
        Err(MonitorError::Io {
            what: "read",
            source: std::io::ErrorKind::Unsupported.into(),
        })
    }
}
