//! The reasons why the monitor cannot work.

/// The reason why the monitor cannot work.
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
        /// The limit that is out of range.
        what: &'static str,
        /// The allowed range.
        range: &'static str,
        /// The value given.
        value: u64,
    },
    /// A call on the loaded programs or their maps failed.
    #[error("BPF: {what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The error of the operation.
        source: std::io::Error,
    },
}
