//! Baselines for Quell: controllers that divide a host's cores among tenants, each with cores of its own.
//!
//! - static isolation: [`equal_split`], for ever;
//! - PARTIES: [`Parties`] starts there, and moves one core at a time by how far tenants are from their
//!   targets;
//! - DynIso: [`dyniso()`], the baseline of UFO's authors, is the same loop with virtual machines as
//!   tenants.
//!
//! These controllers count cores and know no core's number. [`Cores`] is the caller on a simulated machine:
//! it chooses which cores a tenant gets.

mod cores;
mod dyniso;
mod parties;

pub use cores::Cores;
pub use dyniso::dyniso;
pub use parties::Parties;

/// A move of one core from a tenant to another; `None` is the pool of cores that no tenant holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The tenant that gives the core, by index.
    pub from: Option<usize>,
    /// The tenant that gets the core, by index.
    pub to: Option<usize>,
}

/// The number of cores of each of `tenants` tenants where `cores` cores are dealt out in turn: no two tenants
/// differ by more than one.
pub fn equal_split(cores: u32, tenants: usize) -> Vec<u32> {
    let (count, number) = (cores as usize, tenants.max(1));
    let share = |tenant: usize| (count / number + usize::from(tenant < count % number)) as u32;
    (0..tenants).map(share).collect()
}
