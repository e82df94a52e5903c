//! The settings of a thread, by two system calls that take under a microsecond together.

use super::{ObserveError, proc};
use quell_model::{CpuSet, Nice, SchedClass, ThreadSettings};
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;

/// Longest affinity mask read: the kernel's own limit of 8192 CPUs.
const MASK_WORDS: usize = 8192 / 64;

/// Reads settings and keeps one copy of each affinity: on most hosts thousands of threads share one affinity.
#[derive(Default)]
pub(crate) struct SettingsReader {
    affinities: HashSet<Arc<CpuSet>>,
}

/// Names what is read, the settings of this thread, in error messages.
struct Settings(u32);

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "settings of thread {}", self.0)
    }
}

impl SettingsReader {
    /// The settings of a thread; `None` when it is gone or cannot be looked at.
    pub(crate) fn read(&mut self, tid: u32) -> Result<Option<ThreadSettings>, ObserveError> {
        let Some(attr) = proc::present(Settings(tid), attributes(tid))? else {
            return Ok(None);
        };
        let Some(affinity) = proc::present(Settings(tid), affinity(tid))? else {
            return Ok(None);
        };
        let class = class_of_policy(attr.sched_policy);
        Ok(Some(ThreadSettings {
            class,
            nice: nice(attr.sched_nice),
            // Before Linux 6.12 the field is 0 for fair threads.
            slice_ns: (class == SchedClass::Fair && attr.sched_runtime > 0)
                .then_some(attr.sched_runtime),
            affinity: self.intern(affinity),
        }))
    }

    fn intern(&mut self, set: CpuSet) -> Arc<CpuSet> {
        if let Some(known) = self.affinities.get(&set) {
            return Arc::clone(known);
        }
        // Sets that are no longer used are dropped when the table grows, not on a schedule.
        if self.affinities.len() >= 64 {
            self.affinities.retain(|set| Arc::strong_count(set) > 1);
        }
        let set = Arc::new(set);
        self.affinities.insert(Arc::clone(&set));
        set
    }
}

/// The class of a `SCHED_*` policy number (uapi/linux/sched.h).
pub(crate) fn class_of_policy(policy: u32) -> SchedClass {
    match policy {
        0 | 3 => SchedClass::Fair,
        5 => SchedClass::Idle,
        7 => SchedClass::Ext,
        _ => SchedClass::RealTime,
    }
}

/// The kernel's nice value as a [`Nice`].
pub(crate) fn nice(value: i32) -> Nice {
    Nice::new(value.clamp(-20, 19)).unwrap_or_default()
}

fn attributes(tid: u32) -> io::Result<libc::sched_attr> {
    // SAFETY: sched_attr is plain integers, for which all zeros is a value.
    let mut attr: libc::sched_attr = unsafe { mem::zeroed() };
    let size = mem::size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most `size` bytes to `attr`, which is that large and ours.
    let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, size, 0) };
    if rc == 0 {
        Ok(attr)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn affinity(tid: u32) -> io::Result<CpuSet> {
    let mut words = [0u64; MASK_WORDS];
    let size = mem::size_of_val(&words);
    // SAFETY: the kernel writes at most `size` bytes to `words`, which is that large and ours.
    let rc = unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, size, words.as_mut_ptr()) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(CpuSet::from_words(&words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_settings_and_those_of_no_thread() {
        let mut reader = SettingsReader::default();
        let settings = reader.read(std::process::id()).unwrap().unwrap();
        let again = reader.read(std::process::id()).unwrap().unwrap();
        assert_eq!(settings.class, SchedClass::Fair);
        assert!(!settings.affinity.is_empty());
        assert!(
            Arc::ptr_eq(&settings.affinity, &again.affinity),
            "one copy of each set"
        );
        // Above the kernel's limit of thread ids (4 194 304).
        assert_eq!(reader.read(5_000_000).unwrap(), None);
    }

    #[test]
    fn policies() {
        use SchedClass::*;
        let classes = [
            Fair, RealTime, RealTime, Fair, RealTime, Idle, RealTime, Ext,
        ];
        for (policy, class) in classes.into_iter().enumerate() {
            assert_eq!(class_of_policy(policy as u32), class, "{policy}");
        }
    }
}
