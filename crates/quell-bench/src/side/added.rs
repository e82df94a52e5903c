//! Sides of the simulator that another crate adds.

use crate::run::simulated::{Controller, Owner};
use quell_model::Topology;
use quell_model::config::TenantSpec;
use quell_scenario::TenantInstance;
use quell_sim::{Class, Machine};
use std::fmt;
use std::ops::Deref;

/// A scheduler of the simulator only, or a controller that acts on a simulated machine beside the host's own
/// scheduler. A side without a class of its own has the host's scheduler.
pub trait SimulatedSide: Sync {
    /// The side's name, as `--policy` takes it and results have it.
    fn name(&self) -> &'static str;

    /// The host's scheduler on a machine with these CPUs; `tenants` has an entry for each tenant of the
    /// simulation. `None`: the scheduler that the scenario's host has.
    fn class(&self, _topology: &Topology, _tenants: &[&TenantSpec]) -> Option<Box<dyn Class>> {
        None
    }

    /// The scheduler of a guest; `None`: the scheduler of Debian 13 (EEVDF of Linux 6.12).
    fn guest_class(&self) -> Option<Box<dyn Class>> {
        None
    }

    /// Whether the machine's own work (such as switches and ticks) and that of VMs (such as exits) takes no
    /// CPU time.
    fn costs_nothing(&self) -> bool {
        false
    }

    /// Whether the side gives tenants CPUs of their own.
    fn divides_cores(&self) -> bool {
        false
    }

    /// Whether the side acts by how far tenants are from their objectives, so that every tenant of class
    /// `latency` needs an objective.
    fn needs_objectives(&self) -> bool {
        false
    }

    /// The controller that acts on the machine beside its scheduler, if the side has one. `owners` has an
    /// entry for each tenant of the simulation.
    fn controller(
        &self,
        _instances: &[TenantInstance<'_>],
        _owners: &[Owner],
        _machine: &Machine,
    ) -> Option<Box<dyn Controller>> {
        None
    }
}

/// A [`SimulatedSide`] as a value. Two such values are equal if their sides have the same name.
#[derive(Clone, Copy)]
pub struct AddedSide(pub &'static dyn SimulatedSide);

impl Deref for AddedSide {
    type Target = dyn SimulatedSide;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl fmt::Debug for AddedSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AddedSide").field(&self.name()).finish()
    }
}

impl PartialEq for AddedSide {
    fn eq(&self, other: &AddedSide) -> bool {
        self.name() == other.name()
    }
}

impl Eq for AddedSide {}
