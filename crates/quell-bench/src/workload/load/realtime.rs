//! Real-time priority for the load generator's threads.

use nix::errno::Errno;

/// Puts the calling thread into SCHED_FIFO at priority 1, the lowest, which is above everything in the fair
/// class. Returns the reason where that failed.
pub fn become_realtime() -> Option<String> {
    let parameter = libc::sched_param { sched_priority: 1 };
    // Children inherit neither policy nor priority: these threads start none, and none should be like them.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread; the parameter is valid for the call.
    if unsafe { libc::sched_setscheduler(0, policy, &parameter) } == 0 {
        return None;
    }
    let errno = Errno::last();
    // Without real-time priority the kernel may wake the thread up to 50 µs late to save power.
    let _ = nix::sys::prctl::set_timerslack(1);
    Some(match errno {
        Errno::EPERM => {
            "no permission for SCHED_FIFO (needs CAP_SYS_NICE or an rtprio limit, and, \
                         with CONFIG_RT_GROUP_SCHED, a cgroup with real-time budget)"
                .to_string()
        }
        other => format!("SCHED_FIFO refused: {}", other.desc()),
    })
}
