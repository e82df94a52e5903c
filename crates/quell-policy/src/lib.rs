//! Quell's policies: pure functions from what was seen to what should hold.
//!
//! A policy has no clock, no I/O, no threads and no ambient randomness, so the same code decides in
//! the agent, in a simulation and on a recorded trace, and a test is a table of snapshots.

use quell_model::{Plan, Snapshot};

pub mod admission;
pub mod baselines;
pub mod dasec;
pub mod share;

/// A mechanism's decision rule together with what it remembers from period to period.
pub trait Policy: Send {
    /// The mechanism's name, as the configuration spells it.
    fn name(&self) -> &'static str;

    /// Decides what should hold after the period that `snapshot` describes. The plan is complete:
    /// what it does not mention should be as its owner left it. Equal histories of snapshots give
    /// equal plans.
    fn decide(&mut self, snapshot: &Snapshot) -> Plan;
}

/// Changes nothing: what runs when the configuration names no mechanism (`policy = []`).
#[derive(Debug, Clone, Copy, Default)]
pub struct ObserveOnly;

impl Policy for ObserveOnly {
    fn name(&self) -> &'static str {
        "observe_only"
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        Plan {
            seq: snapshot.seq,
            tenants: Vec::new(),
        }
    }
}
