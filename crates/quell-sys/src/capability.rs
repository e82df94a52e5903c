//! The capabilities of this process (linux/capability.h), as `/proc/self/status` has them.

use std::io;

/// CAP_DAC_OVERRIDE: to write files of other users.
pub const DAC_OVERRIDE: u32 = 1;
/// CAP_SYS_PTRACE: to look at processes of other users.
pub const SYS_PTRACE: u32 = 19;
/// CAP_SYS_ADMIN: includes CAP_PERFMON and CAP_BPF.
pub const SYS_ADMIN: u32 = 21;
/// CAP_SYS_NICE: to change the scheduling of threads of other users, and towards more weight.
pub const SYS_NICE: u32 = 23;
/// CAP_PERFMON: to attach to trace points.
pub const PERFMON: u32 = 38;
/// CAP_BPF: to load BPF programs.
pub const BPF: u32 = 39;

/// A set of capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// The effective capabilities of this process; `None` if the kernel does not tell them.
    ///
    /// # Errors
    /// The call fails if `/proc/self/status` cannot be read.
    pub fn effective() -> io::Result<Option<Capabilities>> {
        std::fs::read_to_string("/proc/self/status").map(|text| Capabilities::from_status(&text))
    }

    /// The effective capabilities in the text of a `/proc/PID/status`; `None` if it has none.
    pub fn from_status(status: &str) -> Option<Capabilities> {
        let line = status.lines().find_map(|it| it.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok().map(Capabilities)
    }

    /// Whether the capability of that number is in the set.
    pub fn has(self, capability: u32) -> bool {
        self.0
            .checked_shr(capability)
            .is_some_and(|bits| bits & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_a_status() {
        let status = |hex: &str| Capabilities::from_status(&format!("Name:\tx\nCapEff:\t{hex}\n"));
        let bpf_only = status("0000008000000000").unwrap();
        assert!(bpf_only.has(BPF) && !bpf_only.has(PERFMON) && !bpf_only.has(SYS_NICE));
        assert!(status("0000000000800002").unwrap().has(DAC_OVERRIDE));
        assert_eq!(status("what"), None);
        assert_eq!(Capabilities::from_status("Name:\tx\n"), None);
        assert!(Capabilities::effective().unwrap().is_some());
    }
}
