//! Guests of virtual machines: what their schedulers do, and how many virtual CPUs they use (UFO, sections 4.4 and 5, on the stock guest agent
//! instead of a patched kernel).
//!
//! [`agent`] speaks to a QEMU guest agent, at a socket of plain QEMU's or through [`libvirt`]; [`stat`] reads the guest's `/proc/stat`; [`watch`] asks a
//! guest on a thread of its own, so that one that does not answer holds up nobody. A guest is not trusted: what it says is bounded in size and in
//! time, and only figures are taken from it. Where libvirt runs it, it is also libvirt who pins its parts ([`Pins`]).

pub mod agent;
mod guests;
pub mod libvirt;
pub(crate) mod pins;
pub mod stat;
pub mod watch;
mod way;

pub use guests::{Bound, Guests};
pub use pins::{Part, Pins};
pub use way::{Door, Way};

use quell_model::CpuSet;
use stat::GuestStat;
use std::io;

/// A guest that can be asked and told.
pub trait Guest: Send {
    /// What its scheduler and CPUs did since it booted.
    ///
    /// # Errors
    /// It does not answer in time, or not as it should.
    fn stat(&mut self) -> Result<GuestStat, GuestError>;

    /// Has virtual CPUs online, as far as it can take them offline. Returns which are then.
    ///
    /// # Errors
    /// It does not answer in time, or refuses.
    fn set_online(&mut self, wanted: &Online) -> Result<CpuSet, GuestError>;

    /// Where its parts are pinned, by who runs it. None of them: its threads are bound one by one.
    ///
    /// # Errors
    /// Who runs it does not answer, or refuses.
    fn pins(&mut self) -> Result<Pins, GuestError> {
        Ok(Pins::default())
    }

    /// Pins those parts that are as in one of `expected`; somebody else decided on the others. Returns where all are then.
    ///
    /// # Errors
    /// Who runs it does not answer, or refuses; some may have been pinned.
    fn pin(&mut self, expected: &[Pins], wanted: &Pins) -> Result<Pins, GuestError> {
        let _ = (expected, wanted);
        self.pins()
    }
}

/// Which virtual CPUs are to be online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Online {
    /// So many, those that cannot go offline and then the first ones.
    First(u32),
    /// These.
    Exactly(CpuSet),
}

/// Why a guest could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// There is no way to it, or the way broke.
    #[error("no guest agent: {0}")]
    Away(#[from] io::Error),
    /// It did not answer in time.
    #[error("the guest agent did not answer within {within_ms} ms")]
    Silent {
        /// What it was given, in ms.
        within_ms: u64,
    },
    /// It refused.
    #[error("the guest agent refused `{command}`: {why}")]
    Refused {
        /// What was asked for.
        command: &'static str,
        /// What it says of it, shortened.
        why: String,
    },
    /// libvirt has had no answer of it.
    #[error("libvirt says that the guest agent does not answer: {why}")]
    Unresponsive {
        /// What libvirt says of it.
        why: String,
    },
    /// libvirt could not be asked, or refused.
    #[error("libvirt: {call}: {why}")]
    Libvirt {
        /// What was asked of it.
        call: &'static str,
        /// What it says of it.
        why: String,
    },
    /// Its answer means nothing.
    #[error("the guest agent's answer to `{command}` means nothing: {why}")]
    Nonsense {
        /// What was asked for.
        command: &'static str,
        /// What is wrong with it.
        why: String,
    },
}
