//! Guests of virtual machines: what their schedulers do, and how many virtual CPUs they use (UFO, sections
//! 4.4 and 5, on the stock guest agent instead of a patched kernel).
//!
//! [`agent`] speaks to a QEMU guest agent, at a socket of plain QEMU's or through [`libvirt`]; [`stat`] reads
//! the guest's `/proc/stat`; [`watch`] asks a guest on a thread of its own, so that a guest that does not
//! answer holds up no other. A guest is not trusted: its answers are bounded in size and in time, and only
//! figures are taken from them. Where libvirt runs the guest, libvirt also pins its parts ([`Pins`]).

pub mod agent;
mod endpoint;
mod guests;
pub mod libvirt;
pub(crate) mod pins;
pub mod stat;
pub mod watch;

pub use endpoint::{GuestEndpoint, Transport};
pub use guests::{AffinityOwner, Guests};
pub use pins::{Part, Pins};

use quell_model::CpuSet;
use stat::GuestStat;
use std::io;

/// A guest that can be asked and told.
pub trait Guest: Send {
    /// The figures of the guest's scheduler and CPUs since it booted.
    ///
    /// # Errors
    /// The call fails if the guest does not answer in time, or not as it should.
    fn stat(&mut self) -> Result<GuestStat, GuestError>;

    /// Sets the online virtual CPUs, as far as the guest can take them offline. Returns the CPUs that are
    /// online then.
    ///
    /// # Errors
    /// The call fails if the guest does not answer in time, or refuses.
    fn set_online(&mut self, wanted: &Online) -> Result<CpuSet, GuestError>;

    /// The pins of the guest's parts, as its manager keeps them. Without any pins, its threads are bound one
    /// by one.
    ///
    /// # Errors
    /// The call fails if the manager does not answer, or refuses.
    fn pins(&mut self) -> Result<Pins, GuestError> {
        Ok(Pins::default())
    }

    /// Pins those parts that are as in one of `expected`; another program decided on the others. Returns the
    /// pins of all parts afterwards.
    ///
    /// # Errors
    /// The call fails if the manager does not answer, or refuses; some parts may have been pinned.
    fn pin(&mut self, expected: &[Pins], wanted: &Pins) -> Result<Pins, GuestError> {
        let _ = (expected, wanted);
        self.pins()
    }
}

/// The virtual CPUs that are to be online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Online {
    /// This number of virtual CPUs: those that cannot go offline and then the first ones.
    First(u32),
    /// Exactly these virtual CPUs.
    Exactly(CpuSet),
}

/// The reason why a guest could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// There is no connection to the guest, or the connection broke.
    #[error("no guest agent: {0}")]
    Away(#[from] io::Error),
    /// The guest did not answer in time.
    #[error("the guest agent did not answer within {within_ms} ms")]
    Silent {
        /// The time that the guest had, in ms.
        within_ms: u64,
    },
    /// The guest refused.
    #[error("the guest agent refused `{command}`: {why}")]
    Refused {
        /// The command that it refused.
        command: &'static str,
        /// The reason that the guest gives, shortened.
        why: String,
    },
    /// libvirt got no answer from the guest.
    #[error("libvirt says that the guest agent does not answer: {why}")]
    Unresponsive {
        /// The reason that libvirt gives.
        why: String,
    },
    /// libvirt could not be asked, or refused.
    #[error("libvirt: {call}: {why}")]
    Libvirt {
        /// The call that failed.
        call: &'static str,
        /// The reason that libvirt gives.
        why: String,
    },
    /// The answer of the guest means nothing.
    #[error("the guest agent's answer to `{command}` means nothing: {why}")]
    Nonsense {
        /// The command that was sent.
        command: &'static str,
        /// The error in the answer.
        why: String,
    },
}
