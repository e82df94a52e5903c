//! The settings of one thread, as Quell reads and writes them. This module keeps no state.

use quell_model::{CpuSet, ThreadId, Tid};
use quell_sys::sched::{self, SCHED_FLAG_KEEP_POLICY, SchedAttr};
use std::io;

/// The least slice that EEVDF takes, in ns (`__setparam_fair`, kernel/sched/syscalls.c, Linux 6.12).
pub(super) const SLICE_MIN_NS: u64 = 100_000;
/// The greatest slice that EEVDF takes, in ns.
pub(super) const SLICE_MAX_NS: u64 = 100_000_000;

/// The scheduling of a thread, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sched {
    /// Whether the policy is SCHED_OTHER or SCHED_BATCH, to which nice and slice apply.
    pub fair: bool,
    pub nice: i32,
    /// The slice in ns; 0 before Linux 6.12.
    pub slice_ns: u64,
}

/// The fields of `/proc/TID/task/TID/stat` that cannot change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    pub parent: u32,
    pub start_ticks: u64,
}

/// Whether the error says that the thread is gone.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

/// Reads the scheduling of a thread.
pub(super) fn scheduling(tid: Tid) -> io::Result<Sched> {
    let attr = SchedAttr::of(tid)?;
    let policy = attr.policy as i32;
    let fair = policy == libc::SCHED_OTHER || policy == libc::SCHED_BATCH;
    Ok(Sched {
        fair,
        nice: attr.nice,
        slice_ns: if fair { attr.runtime } else { 0 },
    })
}

/// Sets nice value and slice in one call, keeping policy, reset-on-fork and utilisation clamps.
/// A slice of 0 gives back the kernel's own. `EINVAL` if the thread has become real-time.
pub(super) fn set_sched(tid: Tid, nice: i32, slice_ns: u64) -> io::Result<()> {
    let attr = SchedAttr {
        flags: SCHED_FLAG_KEEP_POLICY,
        nice,
        runtime: slice_ns,
        ..SchedAttr::default()
    };
    attr.set(tid)
}

/// Sets a thread's affinity; the empty set stands for all CPUs its cpuset allows, now and later.
pub(super) fn set_affinity(tid: Tid, cpus: &CpuSet) -> io::Result<()> {
    match cpus.is_empty() {
        true => sched::set_affinity_to_all(tid),
        false => sched::set_affinity(tid, cpus),
    }
}

/// Reads a thread's parent process and start time: start time and thread id identify it for all time.
pub(super) fn stat(tid: Tid) -> io::Result<Stat> {
    let bytes = std::fs::read(format!("/proc/{tid}/task/{tid}/stat"))?;
    parse_stat(&bytes).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Whether the thread still exists, and its id has not gone to another thread.
pub(super) fn is_there(id: ThreadId) -> bool {
    stat(id.tid).is_ok_and(|stat| stat.start_ticks == id.start_ticks)
}

fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    // The name in parentheses may hold any characters, so fields count from the last parenthesis on.
    let end = bytes.iter().rposition(|&b| b == b')')?;
    let mut fields = std::str::from_utf8(&bytes[end + 1..])
        .ok()?
        .split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let start_ticks = fields.nth(17)?.parse().ok()?;
    Some(Stat {
        parent,
        start_ticks,
    })
}

/// The id of the calling thread.
pub(super) fn own_tid() -> Tid {
    Tid(nix::unistd::gettid().as_raw().unsigned_abs())
}

/// The kernel's own slice in ns, if it takes custom slices: tried on a thread made for it. Before
/// Linux 6.12 the setting is taken without an error but changes nothing, hence the reading back.
pub(super) fn default_slice() -> io::Result<Option<u64>> {
    let probe = || -> io::Result<Option<u64>> {
        let tid = own_tid();
        let before = scheduling(tid)?;
        if !before.fair {
            // Started under real-time scheduling: only this scratch thread leaves it.
            sched::set_policy(sched::CALLER, libc::SCHED_OTHER, 0)?;
        }
        set_sched(tid, before.nice, 0)?;
        let default = scheduling(tid)?.slice_ns;
        let other = if default == SLICE_MIN_NS {
            SLICE_MIN_NS * 2
        } else {
            SLICE_MIN_NS
        };
        set_sched(tid, before.nice, other)?;
        Ok((default != 0 && scheduling(tid)?.slice_ns == other).then_some(default))
    };
    let thread = std::thread::Builder::new()
        .name("quell-probe".into())
        .spawn(probe)?;
    thread
        .join()
        .map_err(|_| io::Error::other("the probing thread panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_past_names_that_look_like_fields() {
        let line = b"77 (a) R 9 (b) S 12 77 77 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4711 0 0";
        assert_eq!(
            parse_stat(line),
            Some(Stat {
                parent: 12,
                start_ticks: 4711
            })
        );
        assert_eq!(parse_stat(b"77 (a) S 12"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn a_thread_reads_what_was_set() {
        let handle = std::thread::spawn(|| {
            let tid = own_tid();
            let before = sched::affinity(tid).unwrap();
            sched::set_nice(tid, 5).unwrap();
            set_affinity(tid, &before.iter().take(1).collect()).unwrap();
            assert_eq!(scheduling(tid).unwrap().nice, 5);
            assert_eq!(sched::affinity(tid).unwrap().len(), 1);
            set_affinity(tid, &CpuSet::new()).unwrap();
            assert!(sched::affinity(tid).unwrap().intersection(&before) == before);
            if let Some(default) = default_slice().unwrap() {
                set_sched(tid, 6, 3_000_000).unwrap();
                let now = scheduling(tid).unwrap();
                assert_eq!((now.nice, now.slice_ns), (6, 3_000_000));
                set_sched(tid, 6, 0).unwrap();
                assert_eq!(scheduling(tid).unwrap().slice_ns, default);
            } else {
                quell_testkit::skip!(Other, "this kernel has no custom slices");
            }
            assert!(stat(tid).unwrap().start_ticks > 0);
        });
        handle.join().unwrap();
        assert!(is_gone(&scheduling(Tid(0x3fff_fff0)).unwrap_err()));
        assert!(is_gone(&stat(Tid(0x3fff_fff0)).unwrap_err()));
    }
}
