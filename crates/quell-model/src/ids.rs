//! Identifiers. All have a total order, so iteration over them is deterministic.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A kernel thread id (what `gettid` returns), as seen from the initial pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tid(pub u32);

/// A process id (thread group id), as seen from the initial pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pid(pub u32);

/// A thread, unique for all time: the kernel reuses thread ids, so the start time is part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ThreadId {
    /// The kernel's thread id.
    pub tid: Tid,
    /// Start time since boot in hundredths of a second: field 22 of `/proc/PID/task/TID/stat`,
    /// and the kernel's `start_boottime` divided by 10 ms.
    pub start_ticks: u64,
}

/// A tenant's name: one tenant of the configuration, or one of its `count` instances.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantName(pub Arc<str>);

/// A cgroup's path below the root of its hierarchy, starting with `/`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CgroupPath(pub Arc<str>);

impl TenantName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for TenantName {
    fn from(s: &str) -> Self {
        TenantName(s.into())
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tid.fmt(f)
    }
}
