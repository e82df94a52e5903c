//! Open-loop load: requests are sent at the times intended for them, whether earlier requests have been
//! answered or not, and their latency counts from those times (no coordinated omission).
//!
//! Each loaded tenant has one generator thread. It stands for the other end of a network, which a host's
//! scheduler does not delay; so it runs at the lowest real-time priority (SCHED_FIFO 1), on every side that
//! is compared, and sleeps in `ppoll` between events. Where real-time priority is not permitted the
//! measurement says so.

mod arrivals;
mod generator;
mod realtime;
mod seqpacket;
mod stream;

pub use arrivals::{Arrivals, Plan};
pub use generator::{Outcome, Request, Window, generate, probe};
pub use realtime::become_realtime;
pub use seqpacket::SeqpacketTarget;
pub use stream::{Answer, Protocol, StreamServer, open};

use std::os::fd::BorrowedFd;

/// What a generator sends requests to.
pub trait Target: Send {
    /// Sends a request, or queues it until the connection takes it; never blocks. `seed` decides what is
    /// asked.
    fn send(&mut self, id: u64, seed: u64, done: &mut Vec<Completion>);

    /// The connections to wait for: a number, a descriptor, and whether to wait until it can be written to as
    /// well.
    fn connections(&self) -> Vec<(usize, BorrowedFd<'_>, bool)>;

    /// Does all that can be done without blocking on the connection with this number.
    fn ready(&mut self, index: usize, done: &mut Vec<Completion>);
}

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The request's id.
    pub id: u64,
    /// Whether the answer was right.
    pub ok: bool,
}

/// A tenant that can be connected to.
pub trait Connect: Send + Sync {
    /// Opens this many connections.
    ///
    /// # Errors
    /// Where a connection cannot be opened, or the tenant still owes answers from an earlier window.
    fn connect(&self, connections: u32) -> anyhow::Result<Box<dyn Target>>;
}

/// The seed of a tenant's requests in a window with this seed, by the tenant's position: two equal tenants
/// must not get equal requests at equal times.
pub fn tenant_seed(seed: u64, index: usize) -> u64 {
    mix(seed ^ mix(index as u64))
}

/// The seed of a tenant's request, by its number in the window.
pub fn request_seed(seed: u64, number: u64) -> u64 {
    mix(seed ^ mix(number))
}

/// Spreads consecutive numbers over all of `u64` (SplitMix64's finalizer), for seeds.
fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
