//! What Quell is compared with: controllers that divide a host's cores among tenants, each with cores of its own.
//!
//! - static isolation: [`equal_split`], for ever;
//! - PARTIES: [`Parties`] starts there, and moves one core at a time by how far tenants are from their targets;
//! - DynIso: [`dyniso()`], the baseline of UFO's authors, is the same loop with virtual machines as tenants.
//!
//! They count cores and know no core's number: which ones a tenant gets is the caller's choice.

mod dyniso;
mod parties;

pub use dyniso::dyniso;
pub use parties::Parties;

/// One core changes hands; none: the pool of those that nobody holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Who gives it, by index.
    pub from: Option<usize>,
    /// Who gets it.
    pub to: Option<usize>,
}

/// How many cores each tenant gets where they are dealt out one after the other.
pub fn equal_split(cores: u32, tenants: usize) -> Vec<u32> {
    let (count, number) = (cores as usize, tenants.max(1));
    let share = |tenant: usize| (count / number + usize::from(tenant < count % number)) as u32;
    (0..tenants).map(share).collect()
}
