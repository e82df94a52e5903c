//! DynIso, what UFO is compared with (Peng et al., UFO, NSDI 2024, section 5.3), with cores as the only resource.
//!
//! # Problem
//! Virtual machines with latency targets share a host. Static isolation gives each of them cores of its own for ever, though
//! their load changes.
//!
//! # How
//! "We leverage the feedback-control loop like PARTIES to dynamically decide #pCPUs for each VM, by comparing the
//! application's tail latency with the QoS target": [`Parties`], a VM being a tenant. What differs is said in section 6.1: a VM
//! gets at most as many CPUs as it has virtual ones. Its vCPU and emulator threads share them, and the guest is not told.
//! Hyperthreads of a core belong to one VM (section 3.1), so cores are what changes hands, and a VM with an odd number of
//! virtual CPUs may have one CPU too many.
//!
//! # Assumed
//! The paper says neither how often it looks nor where it begins. Here it looks as often as PARTIES does, and begins
//! with equal parts, as its Isolation has them; cores that a VM cannot use are free.

use super::Parties;

/// The controller, for VMs with these latency targets and numbers of virtual CPUs (none: no VM, and no limit), on cores of
/// so many CPUs.
pub fn dyniso(targets_ns: &[u64], vcpus: &[Option<u32>], cpus_of_core: u32) -> Parties {
    let cores = |vcpus: &Option<u32>| match vcpus {
        Some(vcpus) => vcpus.div_ceil(cpus_of_core.max(1)).max(1),
        None => u32::MAX,
    };
    let most: Vec<u32> = vcpus.iter().map(cores).collect();
    Parties::new(targets_ns).with_most(&most)
}
