//! DynIso, the baseline of UFO (Peng et al., UFO, NSDI 2024, section 5.3), with cores as the only resource.
//!
//! # Problem
//! Virtual machines with latency targets share a host. Static isolation gives each of them cores of
//! its own for ever, though their load changes.
//!
//! # How
//! "We leverage the feedback-control loop like PARTIES to dynamically decide #pCPUs for each VM, by
//! comparing the application's tail latency with the QoS target": [`Parties`], a VM being a tenant. The
//! differences are in the paper's section 6.1: a VM gets at most as many CPUs as it has vCPUs. Its vCPU
//! and emulator threads share them, and the guest is not told. Hyperthreads of a core belong to one VM
//! (section 3.1), so the unit of a change is a core, and a VM with an odd number of vCPUs may have one
//! CPU too many.
//!
//! # Assumed
//! The paper gives neither the length of a control period nor the initial division. Here the period is
//! that of PARTIES, and the division begins with equal parts, as the paper's Isolation has them; cores
//! that a VM cannot use are free.

use super::Parties;

/// The DynIso controller, for VMs with these latency targets, in ns, and numbers of vCPUs (`None`: the tenant
/// is no VM and has no limit), on cores of `cpus_of_core` CPUs.
pub fn dyniso(targets_ns: &[u64], vcpus: &[Option<u32>], cpus_of_core: u32) -> Parties {
    let cores = |vcpus: &Option<u32>| match vcpus {
        Some(vcpus) => vcpus.div_ceil(cpus_of_core.max(1)).max(1),
        None => u32::MAX,
    };
    let most: Vec<u32> = vcpus.iter().map(cores).collect();
    Parties::new(targets_ns).with_most(&most)
}
