//! What the agent itself uses.

use crate::wire::AgentUse;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::fs;
use std::time::Duration;

/// CPU time and memory of this process, which has run for `uptime`.
pub fn of_this_process(uptime: Duration) -> AgentUse {
    let cpu_us = getrusage(UsageWho::RUSAGE_SELF)
        .map(|usage| usage.user_time() + usage.system_time())
        .map_or(0, |time| time.num_microseconds());
    let cpu_ns = u64::try_from(cpu_us).unwrap_or(0) * 1000;
    let resident_pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split(' ').nth(1)?.parse::<u64>().ok())
        .unwrap_or(0);
    AgentUse {
        cpu_ns,
        cpu_percent: 100.0 * cpu_ns as f64 / uptime.as_nanos().max(1) as f64,
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
