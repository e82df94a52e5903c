//! The kernel's calls that neither the standard library nor `nix` has a safe function for, each in one place.
//!
//! | module | calls |
//! |---|---|
//! | [`sched`] | `sched_getattr`, `sched_setattr`, `sched_setscheduler`, affinity, nice values |
//! | [`mapping`] | memory that is shared with the kernel or with another process |
//! | [`process`] | what a child does between fork and exec |
//! | [`copies`] | processes that are copies of this one, without exec |
//! | [`mod@file`] | `getdents64`, `FIONREAD` |
//! | [`bpf`] | the switch for the run times of BPF programs |
//! | [`clock`] | clocks, in ns (by `nix`; here so that there is one conversion) |
//! | [`capability`] | the capabilities of this process (from `/proc`; here so that there is one parser) |
//! | [`memory`] | the memory that this process takes of the host |
//!
//! Functions here keep no state and decide nothing. A thread is a [`quell_model::Tid`], a set of CPUs a
//! [`quell_model::CpuSet`], a time ns in `u64`.

pub mod bpf;
pub mod capability;
pub mod clock;
pub mod copies;
pub mod file;
pub mod mapping;
pub mod memory;
pub mod process;
pub mod sched;

use std::io;

/// The result of a system call that returns a number, or -1 and `errno`.
fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
