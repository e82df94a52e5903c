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

use super::{Move, Parties, equal_split};

/// The controller.
#[derive(Debug, Clone)]
pub struct DynIso {
    most: Vec<u32>,
    parties: Parties,
}

impl DynIso {
    /// From one tick to the next.
    pub const TICK_NS: u64 = Parties::TICK_NS;

    /// For VMs with these latency targets and numbers of virtual CPUs (none: no VM, and no limit), on cores of so many CPUs.
    pub fn new(targets_ns: &[u64], vcpus: &[Option<u32>], cpus_of_core: u32) -> DynIso {
        let cores = |vcpus: &Option<u32>| match vcpus {
            Some(vcpus) => vcpus.div_ceil(cpus_of_core.max(1)).max(1),
            None => u32::MAX,
        };
        let most: Vec<u32> = vcpus.iter().map(cores).collect();
        DynIso {
            parties: Parties::new(targets_ns).with_most(&most),
            most,
        }
    }

    /// How many of so many cores each VM begins with. The rest is free.
    pub fn begin(&self, cores: u32) -> Vec<u32> {
        let split = equal_split(cores, self.most.len()).into_iter();
        split
            .zip(&self.most)
            .map(|(it, &most)| it.min(most))
            .collect()
    }

    /// As [`Parties::tick`].
    pub fn tick(&mut self, latencies_ns: &[Option<u64>], held: &[u32], free: u32) -> Option<Move> {
        self.parties.tick(latencies_ns, held, free)
    }
}
