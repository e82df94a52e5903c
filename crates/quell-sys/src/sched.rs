//! The scheduling of threads: attributes, policy, nice value, affinity.
//!
//! The system calls are made directly where the C library's function takes a process, not a thread, or caches
//! or refuses (musl). All functions that set something are async-signal-safe.

use crate::check;
use quell_model::{CpuSet, Tid};
use std::io;
use std::mem::size_of;

/// The thread id that stands for the calling thread.
pub const CALLER: Tid = Tid(0);

/// Keeps the policy as it is, in [`SchedAttr::flags`] (linux/sched.h, Linux 5.3).
pub const SCHED_FLAG_KEEP_POLICY: u64 = 0x08;

/// The most CPUs that a kernel has (CONFIG_NR_CPUS).
pub const CPUS_MAX: u32 = 8192;

/// The words of the largest CPU mask that a kernel has.
const MASK_WORDS: usize = CPUS_MAX as usize / 64;

/// `struct sched_attr` without utilisation clamps (SCHED_ATTR_SIZE_VER0), so writing it keeps them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct SchedAttr {
    /// The size of the structure, filled in by [`SchedAttr::set`] and the kernel.
    pub size: u32,
    /// The scheduling policy: `SCHED_OTHER`, ...
    pub policy: u32,
    /// Flags: [`SCHED_FLAG_KEEP_POLICY`], ...
    pub flags: u64,
    /// The nice value, -20 to 19, of threads with a weight.
    pub nice: i32,
    /// The priority, 1 to 99, of real-time threads.
    pub priority: u32,
    /// The slice in ns of threads with a weight; 0: the kernel's own (Linux 6.12).
    pub runtime: u64,
    /// The relative deadline of SCHED_DEADLINE threads, in ns.
    pub deadline: u64,
    /// The period of SCHED_DEADLINE threads, in ns.
    pub period: u64,
}

impl SchedAttr {
    /// Reads the attributes of a thread.
    ///
    /// # Errors
    /// The call fails if the thread has ended (`ESRCH`).
    pub fn of(tid: Tid) -> io::Result<SchedAttr> {
        let mut attr = SchedAttr::default();
        // SAFETY: the kernel writes at most the size passed, which is that of `attr`; all bit patterns
        // are valid for its integer fields.
        check(unsafe {
            let size = size_of::<SchedAttr>();
            libc::syscall(libc::SYS_sched_getattr, tid.0, &raw mut attr, size, 0)
        })?;
        Ok(attr)
    }

    /// Sets the attributes of a thread.
    ///
    /// # Errors
    /// The call fails if the thread has ended, the caller lacks the privilege, or the kernel refuses these
    /// values.
    pub fn set(self, tid: Tid) -> io::Result<()> {
        let attr = SchedAttr {
            size: size_of::<SchedAttr>() as u32,
            ..self
        };
        // SAFETY: the kernel reads `attr.size` bytes, which is the size of `attr`.
        check(unsafe { libc::syscall(libc::SYS_sched_setattr, tid.0, &raw const attr, 0) })?;
        Ok(())
    }
}

/// Sets a thread's policy (`SCHED_OTHER`, ..., with `SCHED_RESET_ON_FORK` or without) and its real-time
/// priority, 0 for policies without one.
///
/// # Errors
/// The call fails if the thread has ended, the caller lacks the privilege (`EPERM`), or the kernel refuses
/// these values (`EINVAL`).
pub fn set_policy(tid: Tid, policy: i32, priority: i32) -> io::Result<()> {
    let param = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the kernel reads the parameter, which outlives the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            tid.0,
            policy,
            &raw const param,
        )
    })?;
    Ok(())
}

/// Sets a thread's nice value only. `sched_setattr` would also set the slice: to the kernel's own, or to a
/// custom slice of the present length, neither of which is what the thread's owner chose.
///
/// # Errors
/// The call fails if the thread has ended, or the caller lacks the privilege.
pub fn set_nice(tid: Tid, nice: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, tid.0, nice) })?;
    Ok(())
}

/// Reads a thread's affinity: the CPUs that its owner chose, within its cpuset and the online CPUs.
///
/// # Errors
/// The call fails if the thread has ended.
pub fn affinity(tid: Tid) -> io::Result<CpuSet> {
    let mut words = [0u64; MASK_WORDS];
    // SAFETY: the kernel writes at most the size passed, which is that of `words`.
    let bytes = check(unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            tid.0,
            size_of_val(&words),
            words.as_mut_ptr(),
        )
    })?;
    Ok(CpuSet::from_words(
        &words[..bytes.div_ceil(8).min(MASK_WORDS)],
    ))
}

/// Limits a thread to these CPUs, as far as its cpuset allows them and they are online.
///
/// # Errors
/// The call fails if the thread has ended, the caller lacks the privilege, or none of the CPUs is left
/// (`EINVAL`).
pub fn set_affinity(tid: Tid, cpus: &CpuSet) -> io::Result<()> {
    set_words(tid, cpus.words())
}

/// Lets a thread run on all CPUs that its cpuset allows, now and later.
///
/// # Errors
/// The call fails if the thread has ended, or the caller lacks the privilege.
pub fn set_affinity_to_all(tid: Tid) -> io::Result<()> {
    set_words(tid, &[u64::MAX; MASK_WORDS])
}

fn set_words(tid: Tid, words: &[u64]) -> io::Result<()> {
    // SAFETY: the kernel reads at most the size passed, which is that of `words`.
    check(unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            tid.0,
            size_of_val(words),
            words.as_ptr(),
        )
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_limited_and_let_go() {
        std::thread::spawn(|| {
            let before = affinity(CALLER).unwrap();
            assert!(!before.is_empty());
            let one: CpuSet = before.iter().take(1).collect();
            set_affinity(CALLER, &one).unwrap();
            assert_eq!(affinity(CALLER).unwrap(), one);
            set_affinity_to_all(CALLER).unwrap();
            assert!(before.is_subset(&affinity(CALLER).unwrap()));
            set_affinity(CALLER, &before).unwrap();
            assert_eq!(affinity(CALLER).unwrap(), before);
            assert!(set_affinity(CALLER, &"8191".parse().unwrap()).is_err());
            assert!(set_affinity(CALLER, &CpuSet::new()).is_err());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn attributes_are_read_as_they_were_set() {
        std::thread::spawn(|| {
            set_nice(CALLER, 3).unwrap();
            assert_eq!(SchedAttr::of(CALLER).unwrap().nice, 3);
            let attr = SchedAttr {
                policy: libc::SCHED_BATCH as u32,
                nice: 4,
                ..SchedAttr::default()
            };
            attr.set(CALLER).unwrap();
            let now = SchedAttr::of(CALLER).unwrap();
            assert_eq!((now.policy, now.nice), (libc::SCHED_BATCH as u32, 4));
            set_policy(CALLER, libc::SCHED_OTHER, 0).unwrap();
            let now = SchedAttr::of(CALLER).unwrap();
            assert_eq!(now.policy, libc::SCHED_OTHER as u32);
            assert!(set_policy(CALLER, libc::SCHED_OTHER, 1).is_err());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_does_not_exist_is_an_error() {
        // Above the kernel's limit of thread ids (4 194 304).
        let none = Tid(5_000_000);
        for result in [
            SchedAttr::of(none).map(drop),
            affinity(none).map(drop),
            set_nice(none, 0),
            set_affinity_to_all(none),
            set_policy(none, libc::SCHED_OTHER, 0),
        ] {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
    }
}
