//! The CPU time of a process's BPF programs, from the kernel's statistics.

use std::io;
use std::os::fd::OwnedFd;

/// While this exists, the kernel counts the run time of BPF programs.
pub(super) struct BpfStats(#[allow(dead_code, reason = "held for its Drop")] OwnedFd);

impl BpfStats {
    /// Switches the counting on; needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// Where the kernel refuses, or is older than 5.8.
    pub(super) fn enable() -> io::Result<BpfStats> {
        quell_sys::bpf::count_run_time().map(BpfStats)
    }
}

/// Cumulative run time of BPF programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ProgramTime {
    pub(super) run_ns: u64,
    pub(super) runs: u64,
}

impl ProgramTime {
    /// The run time of the programs that a process holds open; `None` when it holds none.
    pub(super) fn of_process(pid: u32) -> Option<ProgramTime> {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()?;
        let infos = entries
            .flatten()
            .filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
        infos
            .filter_map(|info| ProgramTime::parse(&info))
            .reduce(|a, b| ProgramTime {
                run_ns: a.run_ns + b.run_ns,
                runs: a.runs + b.runs,
            })
    }

    /// The run time since `earlier`.
    pub(super) fn since(&self, earlier: &ProgramTime) -> ProgramTime {
        ProgramTime {
            run_ns: self.run_ns.saturating_sub(earlier.run_ns),
            runs: self.runs.saturating_sub(earlier.runs),
        }
    }

    /// Reads the fdinfo of a program; `None` for any other descriptor.
    fn parse(info: &str) -> Option<ProgramTime> {
        let field = |name: &str| {
            let value = info
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            value.trim().parse().ok()
        };
        Some(ProgramTime {
            run_ns: field("run_time_ns")?,
            runs: field("run_cnt")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_programs_fdinfo() {
        let info = "pos:\t0\nflags:\t02000002\nprog_type:\t26\nprog_jited:\t1\nprog_id:\t41\n\
                    run_time_ns:\t123456\nrun_cnt:\t789\nrecursion_misses:\t0\n";
        let expected = ProgramTime {
            run_ns: 123_456,
            runs: 789,
        };
        assert_eq!(ProgramTime::parse(info), Some(expected));
        assert_eq!(
            ProgramTime::parse("pos:\t0\nflags:\t0\nmap_type:\t1\n"),
            None
        );
    }

    #[test]
    fn statistics_switch_on_and_off_by_descriptor() {
        let setting = || std::fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").ok();
        let before = setting();
        match BpfStats::enable() {
            Ok(stats) => drop(stats),
            Err(error) => quell_testkit::skip!(Bpf, "bpf(BPF_ENABLE_STATS): {error}"),
        }
        assert_eq!(setting(), before);
    }
}
