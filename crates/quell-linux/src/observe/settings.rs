//! The settings of a thread, by two system calls that take under a microsecond together.

use super::{ObserveError, proc};
use quell_model::{CpuSet, Nice, SchedClass, ThreadSettings, Tid};
use quell_sys::sched::{SchedAttr, affinity};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

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
        let Some(attr) = proc::present(Settings(tid), SchedAttr::of(Tid(tid)))? else {
            return Ok(None);
        };
        let Some(affinity) = proc::present(Settings(tid), affinity(Tid(tid)))? else {
            return Ok(None);
        };
        let class = class_of_policy(attr.policy);
        Ok(Some(ThreadSettings {
            class,
            nice: nice(attr.nice),
            // Before Linux 6.12 the field is 0 for fair threads.
            slice_ns: (class == SchedClass::Fair && attr.runtime > 0).then_some(attr.runtime),
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
