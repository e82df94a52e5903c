//! The guard: a policy around policies, which keeps the levers that are shown to help.
//!
//! # Problem
//! A mechanism that helps the tenants of one host harms those of another, and no rule of ours knows
//! the difference beforehand: the feedback of DASEC makes fork-join services later under EEVDF,
//! Quell's scheduler makes them earlier. An operator cannot see either.
//!
//! # Approach
//! The agent measures its own effect. It has a few *levers*, each a part of what it does that can rest
//! for a while; `trials` alternates acting and resting in pairs of blocks in random order, `figures`
//! reads the tenants' figures in both from the same observer, `evidence` is a test that stays valid
//! however often it is evaluated. A lever that is shown to harm is off; one that changes how the kernel
//! treats threads acts only once it is shown to help; Quell's scheduler, which was measured on many
//! loads, acts until it is shown to harm here.
//!
//! An operator's order is no lever: weights, promises, shares and pools are never taken away for a
//! trial.

mod evidence;
mod figures;
mod trials;

pub use evidence::Evidence;
pub use trials::{ERROR, Trials};

use crate::Policy;
use quell_model::config::{AgentFile, AsymmetrySettings, Backend, GuardMode, Mechanism};
use quell_model::{Lever, Plan, Snapshot};

/// A policy whose levers are guarded.
pub struct Guarded {
    inner: Box<dyn Policy>,
    trials: Trials,
    /// The backend that carries out plans, except in blocks in which Quell's scheduler rests.
    backend: Backend,
    /// The settings of the feedback that is tried.
    asymmetry: AsymmetrySettings,
    /// Whether Quell's scheduler was to rest by the last plan.
    rests: bool,
}

impl Guarded {
    /// Guards the levers that a policy has on a backend; returns the policy itself where it has no lever, or
    /// where the configuration turns the guard off. `before`: the guard of the configuration before; what it
    /// found of a lever holds for the same lever.
    pub fn keeping(
        inner: Box<dyn Policy>,
        file: &AgentFile,
        asymmetry: &AsymmetrySettings,
        backend: Backend,
        before: Option<&Guarded>,
    ) -> Box<dyn Policy> {
        let has = |mechanism| file.agent.has(mechanism);
        let mut levers = Vec::new();
        // Promises and shares are kept by Quell's scheduler only, so with them it is no lever.
        let ordered = has(Mechanism::Share) || has(Mechanism::Criticality);
        if backend == Backend::SchedExt && has(Mechanism::Asymmetry) && !ordered {
            levers.push((Lever::Scheduler, true));
        }
        if has(Mechanism::Asymmetry) && asymmetry.has_feedback() {
            levers.push((Lever::Feedback, false));
        }
        match file.agent.guard {
            GuardMode::Off => inner,
            _ if levers.is_empty() => inner,
            mode => {
                let mut trials = Trials::new(mode, levers);
                if let Some(before) = before {
                    // Feedback with other settings, or beside another scheduler, has another effect.
                    let as_before = before.backend == backend && before.asymmetry == *asymmetry;
                    let same = |lever| lever != Lever::Feedback || as_before;
                    trials.follow_on(&before.trials, same);
                }
                Box::new(Guarded {
                    inner,
                    trials,
                    backend,
                    asymmetry: asymmetry.clone(),
                    rests: false,
                })
            }
        }
    }

    /// Alternates all that a policy does with an empty plan, for a proof in the foreground.
    pub fn proving(inner: Box<dyn Policy>, backend: Backend) -> Box<dyn Policy> {
        Box::new(Guarded {
            inner,
            trials: Trials::new(GuardMode::Report, [(Lever::All, true)]),
            backend,
            asymmetry: AsymmetrySettings::default(),
            rests: false,
        })
    }
}

impl Policy for Guarded {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        self.trials.step(snapshot);
        let acts = |lever| self.trials.acts(lever);
        let mut plan = match acts(Lever::All) {
            true => {
                // Feedback rests with the scheduler, so that it is judged beside what it was tried beside.
                let feedback = acts(Lever::Feedback) && acts(Lever::Scheduler);
                self.inner.allow(Lever::Feedback, feedback);
                self.inner.decide(snapshot)
            }
            false => Plan {
                seq: snapshot.seq,
                ..Plan::default()
            },
        };
        plan.kernel_scheduler = !acts(Lever::Scheduler) || !acts(Lever::All);
        plan.effects = self.trials.effects();
        self.rests = plan.kernel_scheduler;
        plan
    }

    fn carried_out(&mut self, by: Backend) {
        // Quell's scheduler has ended, or could not be loaded.
        if !self.rests && self.backend == Backend::SchedExt && by != self.backend {
            self.trials.spoil();
        }
        self.inner.carried_out(by);
    }

    fn guard(&self) -> Option<&Guarded> {
        Some(self)
    }
}
