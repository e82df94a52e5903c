//! The sides that papers compare with, on the simulator: Xen's schedulers, BVT, static isolation, PARTIES,
//! DynIso, and the best order of requests.

use crate::baselines::Cores;
use crate::classes::{Bvt, Credit, Credit2, Oldest, Warp};
use quell_bench::run::simulated::{Controller, Owner};
use quell_bench::side::{AddedSide, Side, Sides, SimulatedSide};
use quell_model::Topology;
use quell_model::config::{TenantClass, TenantSpec};
use quell_scenario::TenantInstance;
use quell_sim::{Class, Machine};

/// The sides that `quell-studies` can name: the product's, and these.
pub const SIDES: Sides = Sides::with(&[
    AddedSide(&Baseline::Credit),
    AddedSide(&Baseline::Credit2),
    AddedSide(&Baseline::Bvt),
    AddedSide(&Baseline::Isolation),
    AddedSide(&Baseline::HostAware),
    AddedSide(&Baseline::Parties),
    AddedSide(&Baseline::DynIso),
    AddedSide(&Baseline::Ideal),
]);

/// The warp, in ns, of threads of tenants that answer requests under [`Baseline::Bvt`]: about two slices, so
/// that these threads go before threads that had the CPU for less than that much longer.
const BVT_WARP: u64 = 10_000_000;

/// A scheduler that papers compare with, or what divides cores on top of the host's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// Xen's until 4.11.
    Credit,
    /// Xen's since then.
    Credit2,
    /// Borrowed virtual time; tenants that answer requests warp.
    Bvt,
    /// The host's own, every tenant on cores of its own for ever.
    Isolation,
    /// As isolation, and guests have as many virtual CPUs online as they have CPUs (UFO's host-aware
    /// isolation).
    HostAware,
    /// As isolation, with PARTIES moving cores.
    Parties,
    /// As isolation, with DynIso moving cores.
    DynIso,
    /// The oldest request first, everywhere at once and for nothing: what no scheduler can do better in that
    /// order.
    Ideal,
}

impl Baseline {
    /// Whether it is that side.
    pub fn is(self, side: &Side) -> bool {
        matches!(side, Side::Added(added) if added.name() == self.name())
    }
}

impl SimulatedSide for Baseline {
    fn name(&self) -> &'static str {
        match self {
            Baseline::Credit => "credit",
            Baseline::Credit2 => "credit2",
            Baseline::Bvt => "bvt",
            Baseline::Isolation => "isolation",
            Baseline::HostAware => "host-aware",
            Baseline::Parties => "parties",
            Baseline::DynIso => "dyniso",
            Baseline::Ideal => "ideal",
        }
    }

    fn class(&self, topology: &Topology, tenants: &[&TenantSpec]) -> Option<Box<dyn Class>> {
        match self {
            Baseline::Credit => Some(Box::new(Credit::new(topology))),
            Baseline::Credit2 => Some(Box::new(Credit2::new(topology))),
            Baseline::Bvt => {
                let warp = |tenant: &&TenantSpec| match tenant.class {
                    TenantClass::Latency => Warp::xen(BVT_WARP),
                    TenantClass::Batch => Warp::NONE,
                };
                let warps = tenants.iter().map(warp).collect();
                let cpus = topology.cpus.len();
                Some(Box::new(Bvt::new(cpus, Bvt::ALLOWANCE, warps)))
            }
            Baseline::Ideal => Some(Box::new(Oldest::default())),
            Baseline::Isolation | Baseline::HostAware | Baseline::Parties | Baseline::DynIso => {
                None
            }
        }
    }

    fn guest_class(&self) -> Option<Box<dyn Class>> {
        let ideal = *self == Baseline::Ideal;
        ideal.then(|| Box::new(Oldest::default()) as Box<dyn Class>)
    }

    fn costs_nothing(&self) -> bool {
        *self == Baseline::Ideal
    }

    fn divides_cores(&self) -> bool {
        matches!(self, Baseline::Isolation | Baseline::HostAware) || self.needs_objectives()
    }

    fn needs_objectives(&self) -> bool {
        matches!(self, Baseline::Parties | Baseline::DynIso)
    }

    fn controller(
        &self,
        instances: &[TenantInstance<'_>],
        owners: &[Owner],
        machine: &Machine,
    ) -> Option<Box<dyn Controller>> {
        let cores = match self {
            Baseline::Isolation => Cores::fixed(instances, owners, machine),
            Baseline::HostAware => Cores::host_aware(instances, owners, machine),
            Baseline::Parties => Cores::parties(instances, owners, machine),
            Baseline::DynIso => Cores::dyniso(instances, owners, machine),
            Baseline::Credit | Baseline::Credit2 | Baseline::Bvt | Baseline::Ideal => return None,
        };
        Some(Box::new(cores))
    }
}
