//! What the agent itself uses.

use crate::wire::AgentUse;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::fs;
use std::time::Instant;

/// A moment, and the CPU time that this process had used by then.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    at: Instant,
    cpu_ns: u64,
}

impl Mark {
    /// The present moment.
    pub fn now() -> Mark {
        let cpu_us = getrusage(UsageWho::RUSAGE_SELF)
            .map(|usage| usage.user_time() + usage.system_time())
            .map_or(0, |time| time.num_microseconds());
        Mark {
            at: Instant::now(),
            cpu_ns: u64::try_from(cpu_us).unwrap_or(0) * 1000,
        }
    }
}

/// CPU time and memory of this process; the percentage counts from `since` on.
pub fn of_this_process(since: Mark) -> AgentUse {
    let now = Mark::now();
    let resident_pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split(' ').nth(1)?.parse::<u64>().ok())
        .unwrap_or(0);
    let used_ns = now.cpu_ns.saturating_sub(since.cpu_ns);
    let length_ns = (now.at - since.at).as_nanos().max(1);
    AgentUse {
        cpu_ns: now.cpu_ns,
        cpu_percent: 100.0 * used_ns as f64 / length_ns as f64,
        rss_bytes: resident_pages * page_size(),
    }
}

fn page_size() -> u64 {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    size.ok()
        .flatten()
        .and_then(|size| u64::try_from(size).ok())
        .unwrap_or(4096)
}
