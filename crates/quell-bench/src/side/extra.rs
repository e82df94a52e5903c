//! Sides of the simulator that another crate adds.

use crate::run::simulated::{Controller, Owner};
use quell_model::Topology;
use quell_model::config::TenantSpec;
use quell_scenario::TenantInstance;
use quell_sim::{Class, Machine};
use std::fmt;
use std::ops::Deref;

/// A scheduler that there is on the simulator only, or what divides cores on top of one. A side without a
/// class of its own has the host's scheduler.
pub trait SimulatedSide: Sync {
    /// Its name, as `--policy` takes it and results have it.
    fn name(&self) -> &'static str;

    /// The host's scheduler on a machine with these CPUs and tenants, which are by the simulation's number;
    /// `None`: the scheduler that the scenario's host has.
    fn class(&self, _topology: &Topology, _tenants: &[&TenantSpec]) -> Option<Box<dyn Class>> {
        None
    }

    /// The scheduler of a guest; `None`: that of Debian 13.
    fn guest_class(&self) -> Option<Box<dyn Class>> {
        None
    }

    /// Whether the machine's own work, and a VM's, takes no time.
    fn costs_nothing(&self) -> bool {
        false
    }

    /// Whether it gives tenants CPUs of their own.
    fn divides_cores(&self) -> bool {
        false
    }

    /// Whether it acts by how far tenants are from their objectives, so that latency tenants need some.
    fn needs_objectives(&self) -> bool {
        false
    }

    /// What acts on the machine beside its scheduler; `owners` are by the simulation's tenants.
    fn controller(
        &self,
        _instances: &[TenantInstance<'_>],
        _owners: &[Owner],
        _machine: &Machine,
    ) -> Option<Box<dyn Controller>> {
        None
    }
}

/// A [`SimulatedSide`]. Two sides with the same name are equal.
#[derive(Clone, Copy)]
pub struct Extra(pub &'static dyn SimulatedSide);

impl Deref for Extra {
    type Target = dyn SimulatedSide;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl fmt::Debug for Extra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Extra").field(&self.name()).finish()
    }
}

impl PartialEq for Extra {
    fn eq(&self, other: &Extra) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Extra {}
