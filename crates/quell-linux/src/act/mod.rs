//! Makes a plan hold, journals what held before, and undoes all changes.
//!
//! # From plan to kernel
//!
//! | plan | kernel | finer points |
//! |---|---|---|
//! | thread weight | nice value | nearest step by ratio, error carried on (`nice_dither`) |
//! | rescheduling latency | EEVDF custom slice, from 0.1 ms to the kernel's own | Linux >= 6.12 |
//! | layout | affinity | never beyond what the thread's owner and its cpuset allow |
//! | layout of a libvirt domain | pins of vCPUs, emulator and iothreads, live | within the earlier pins |
//! | virtual CPUs online | `guest-set-vcpus` of QEMU's guest agent | told, not waited for |
//! | tenant weight | `cpu.weight` (cgroup v2) or `cpu.shares` (v1) | where the tenant has its own cgroup |
//!
//! A libvirt domain is pinned with `virDomainPinVcpuFlags`, `virDomainPinEmulator` and
//! `virDomainPinIOThread`, since libvirt's cpusets would refuse affinities. Of the virtual CPUs that can go
//! offline, the first ones are online. A slice is rewritten when it is off by more than 5 %.
//!
//! Only differences are written, and a steady plan costs no system calls. Where nice and slice change
//! together one `sched_setattr` sets both. Policy, reset-on-fork and utilisation clamps stay.
//!
//! # Ownership of settings
//!
//! Quell changes only threads of the plan, only ordinary ones (SCHED_OTHER, SCHED_BATCH), and only
//! settings that are as it last saw them: before each write the present value is read. When it is
//! not what Quell left, another program has decided: the setting is left alone from then on while
//! the thread is in the plan, and when undoing. A thread that leaves the plan gets its originals
//! back. A child inherits its creator's settings; the settings that it has from Quell that way are
//! recognised by their values and replaced, in the end, by the creator's originals.
//!
//! # Undoing
//!
//! Every write is in the journal before it happens (`journal`), so [`restore`] puts all settings back
//! after a death at any point. The same rule serves all undoing: a setting that has its original is
//! done; a setting that has the value Quell wrote (or was about to overwrite) gets its original back;
//! any other value is another program's and is left alone and noted. Children born since the last period
//! are searched for in the managed processes and their descendants.
//!
//! # One at a time
//!
//! Two acting processes would take each other's values for originals, so a process that acts or undoes
//! holds the host's lock ([`HOST_LOCK`]) as well as its journal's. Tests that run several at once give each a
//! lock of its own: [`Actuator::open_with_lock`], or `QUELL_LOCK` in the environment of a program.
//!
//! Limits: a child that left its tenant, and whose ancestors are all gone, cannot be told from a
//! thread whose owner chose the same values, and keeps them. Two different settings of one owner
//! that read alike (a custom slice of exactly the kernel's own length; an affinity of exactly all
//! allowed CPUs) are restored as the kernel's own.

mod actuator;
mod apply;
mod capabilities;
mod cgroup;
mod error;
mod guests;
mod journal;
mod libvirt_pins;
mod lock;
mod nice_dither;
mod notes;
mod report;
mod state;
#[cfg(test)]
mod tests;
mod thread;
mod undo;

pub use actuator::{Actuator, restore, restore_with_lock};
pub use error::ActError;
pub use lock::HOST_LOCK;
pub use report::{
    ApplyReport, Capabilities, Capability, Note, RestoreReport, Subject, Writes, list,
};

/// The length of this kernel's own slices in ns, tried on a thread made for it; `None` where the kernel
/// takes no custom slices (before Linux 6.12) or the trial fails.
pub fn kernel_slice_ns() -> Option<u64> {
    thread::default_slice().ok().flatten()
}
