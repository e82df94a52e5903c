//! Quell's policies: pure functions from what was seen to what should hold.
//!
//! A policy has no clock, no I/O, no threads and no ambient randomness, so the same code decides in
//! the agent, in a simulation and on a recorded trace, and a test is a table of snapshots.

use quell_model::config::{AgentFile, AsymmetrySettings, Backend, Mechanism};
use quell_model::{GivenServer, Lever, Plan, Snapshot};

pub mod admission;
pub mod baselines;
pub mod criticality;
pub mod dasec;
pub mod guard;
pub mod pools;
pub mod share;

/// A mechanism's decision rule together with what it remembers from period to period.
pub trait Policy: Send {
    /// The mechanism's name, as the configuration spells it.
    fn name(&self) -> &'static str;

    /// Decides what should hold after the period that `snapshot` describes. The plan is complete:
    /// what it does not mention should be as its owner left it. Equal histories of snapshots give
    /// equal plans.
    fn decide(&mut self, snapshot: &Snapshot) -> Plan;

    /// Whether a lever may act from the next decision on. One that may not leaves all as if it were not there, and goes on from
    /// where it was when it may again. Who has no such lever ignores it.
    fn allow(&mut self, _lever: Lever, _acts: bool) {}

    /// How the last plan was carried out. Who does not measure what it does ignores it.
    fn carried_out(&mut self, _by: Backend) {}
}

/// The mechanisms that a configuration names, composed; `None` where it names none. `asymmetry`: that mechanism's settings, for what acts.
/// `given`: what was promised before ([`Plan::given`] of the last plan).
pub fn composed(
    file: &AgentFile,
    asymmetry: &AsymmetrySettings,
    given: &[GivenServer],
) -> Option<Box<dyn Policy>> {
    let has = |mechanism| file.agent.has(mechanism);
    let weights: Box<dyn Policy> = match &file.agent.policy[..] {
        [] => return None,
        // Its plans have the tenants' weights, which is all that shares want of them.
        _ if has(Mechanism::Asymmetry) => {
            let mut asymmetry = asymmetry.clone();
            // Where threads run, pools say.
            asymmetry.conflicts &= !has(Mechanism::Pools);
            Box::new(dasec::Dasec::new(asymmetry))
        }
        _ => Box::new(share::Shares),
    };
    let promises = match has(Mechanism::Criticality) {
        true => {
            let promises = criticality::Promises::after(file.criticality, weights, given);
            Box::new(promises)
        }
        false => weights,
    };
    Some(match has(Mechanism::Pools) {
        true => Box::new(pools::Pooled::new(promises)),
        false => promises,
    })
}
