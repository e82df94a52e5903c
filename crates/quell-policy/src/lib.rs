//! Quell's policies: pure functions from the observations of a period to the settings that should hold.
//!
//! A *mechanism* is one of the four things that Quell does for tenants ([`Mechanism`]). Its *policy* is the
//! part of it that decides, an implementation of [`Policy`] in this crate; a mechanism's other parts carry
//! out what its policy decided (the scheduler, stock interfaces, guests). [`composed`] makes one policy of
//! those of all mechanisms that a configuration names. [`guard`] is a policy of no mechanism, around the
//! others.
//!
//! A policy has no clock, no I/O, no threads and no ambient randomness, so the same code decides in
//! the agent, in a simulation and on a recorded trace, and a test is a table of snapshots.
//!
//! ```
//! use quell_model::config::AgentFile;
//! use std::path::Path;
//!
//! let text = "[agent]\npolicy = [\"asymmetry\"]\n";
//! let file = AgentFile::parse(Path::new("quell.toml"), text).unwrap();
//! let policy = quell_policy::composed(&file, &file.asymmetry, &[]).unwrap();
//! assert_eq!(policy.name(), "asymmetry");
//! ```

use guard::Guarded;
use quell_model::config::{AgentFile, AsymmetrySettings, Backend, Mechanism};
use quell_model::{Lever, Plan, Reservation, Snapshot};

pub mod admission;
pub mod criticality;
pub mod dasec;
pub mod guard;
pub mod pools;
pub mod share;

/// What decides for a mechanism, with its state from period to period. A policy changes nothing on the host.
pub trait Policy: Send {
    /// The name of the mechanism that the policy decides for, as the configuration spells it.
    fn name(&self) -> &'static str;

    /// Decides which settings should hold after the period that `snapshot` describes. The plan is
    /// complete: a setting that it does not mention should be as its owner left it. Equal histories of
    /// snapshots give equal plans.
    fn decide(&mut self, snapshot: &Snapshot) -> Plan;

    /// Tells the policy whether a lever may act from the next decision on. A lever that may not act
    /// leaves all settings as if it were not there, and continues from its state when it may act again.
    /// A policy without the lever ignores the call.
    fn allow(&mut self, _lever: Lever, _acts: bool) {}

    /// Tells the policy which backend carried out the last plan. A policy that does not measure its
    /// effect ignores the call.
    fn carried_out(&mut self, _by: Backend) {}

    /// The guard, where the policy is one; the policy of the next configuration continues from what it found.
    fn guard(&self) -> Option<&Guarded> {
        None
    }
}

/// The policy that decides for all mechanisms that a configuration names; `None` where it names none.
/// `asymmetry`: the settings of that mechanism, adapted to the backend. `reservations`: the promises that
/// exist already ([`Plan::reservations`] of the last plan).
pub fn composed(
    file: &AgentFile,
    asymmetry: &AsymmetrySettings,
    reservations: &[Reservation],
) -> Option<Box<dyn Policy>> {
    let has = |mechanism| file.agent.has(mechanism);
    let weights: Box<dyn Policy> = match &file.agent.mechanisms[..] {
        [] => return None,
        // The mechanism's plans have the tenants' weights, which is all that `share` needs.
        _ if has(Mechanism::Asymmetry) => {
            let mut asymmetry = asymmetry.clone();
            // Pools decide where threads run.
            asymmetry.conflicts &= !has(Mechanism::Pools);
            Box::new(dasec::Dasec::new(asymmetry))
        }
        _ => Box::new(share::Shares),
    };
    let promises = match has(Mechanism::Criticality) {
        true => {
            let promises = criticality::Promises::after(file.criticality, weights, reservations);
            Box::new(promises)
        }
        false => weights,
    };
    Some(match has(Mechanism::Pools) {
        true => Box::new(pools::Pooled::new(promises)),
        false => promises,
    })
}
