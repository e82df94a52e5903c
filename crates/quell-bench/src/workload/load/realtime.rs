//! Real-time priority for the load generator's threads.

use nix::errno::Errno;
use quell_sys::sched::{CALLER, set_policy};

/// Puts the calling thread into SCHED_FIFO at priority 1, the lowest, which is above everything in the fair
/// class. Returns the reason where that failed.
pub fn become_realtime() -> Option<String> {
    // Children inherit neither: none is started by these threads, and none should be like them.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    let error = set_policy(CALLER, policy, 1).err()?;
    // Else the kernel may wake it up to 50 µs late to save power.
    let _ = nix::sys::prctl::set_timerslack(1);
    Some(match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
        Errno::EPERM => {
            "no permission for SCHED_FIFO (needs CAP_SYS_NICE or an rtprio limit, and, \
                         with CONFIG_RT_GROUP_SCHED, a cgroup with real-time budget)"
                .to_string()
        }
        other => format!("SCHED_FIFO refused: {}", other.desc()),
    })
}
