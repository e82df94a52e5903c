//! The kernel lab: runs a command under a real, unmodified Linux kernel in QEMU, and brings back
//! what it wrote.
//!
//! A scheduler cannot be judged on a kernel that does not have it, and noise hides small differences. The lab
//! boots a distribution's own kernel, also one that the machine does not run, on a clock of its own: with
//! [`Clock::Virtual`] one instruction takes one nanosecond, whatever else the machine does, so the same image
//! gives the same numbers to the byte.
//!
//! [`Lab`] keeps kernels and QEMU in a cache, fetched through apt without touching the machine's own packages
//! ([`apt`]), and published schedulers to compare with. [`Image`] is the guest's initial file system.
//! [`boot()`] runs one guest.

pub mod apt;
pub mod boot;
mod cache;
mod error;
mod image;
mod kernel;
mod known;
mod machine;
mod options;
mod peers;
mod progress;
mod qemu;
mod qmp;
mod report;
mod snapshot;
mod version;

pub use boot::{Finished, Stream, boot};
pub use cache::Lab;
pub use error::LabError;
pub use image::Image;
pub use kernel::{Kernel, KernelChoice};
pub use options::{Boot, Clock};
pub use peers::{PEERS, Peer};
pub use progress::{Progress, Quiet};
pub use qemu::Qemu;
pub use version::Version;
