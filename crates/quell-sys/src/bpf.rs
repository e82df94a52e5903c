//! The switch for the kernel's statistics of BPF programs.

use crate::check;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// `BPF_ENABLE_STATS` of enum bpf_cmd (include/uapi/linux/bpf.h, Linux >= 5.8).
const BPF_ENABLE_STATS: libc::c_long = 32;

/// `BPF_STATS_RUN_TIME` of enum bpf_stats_type.
const BPF_STATS_RUN_TIME: u32 = 0;

/// Has the kernel count the run time of BPF programs as long as the returned descriptor is open.
///
/// # Errors
/// The call fails without CAP_SYS_ADMIN, and before Linux 5.8.
pub fn count_run_time() -> io::Result<OwnedFd> {
    let attributes = BPF_STATS_RUN_TIME;
    let size = size_of_val(&attributes);
    // SAFETY: the kernel reads `size` bytes from the pointer, which is valid for that many; it takes shorter
    // attributes than its own as followed by zeros.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_bpf, BPF_ENABLE_STATS, &raw const attributes, size)
    })?;
    // SAFETY: the call succeeded, so `fd` is a new descriptor that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
