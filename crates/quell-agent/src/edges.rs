//! The loop's two edges, observe and act, as it sees them: a live host, or a recording in tests.

use quell_linux::act::{Actuator, ApplyReport, RestoreReport};
use quell_linux::guest::Guests;
use quell_linux::observe::{ObserveError, Observer, TracePoints};
use quell_model::config::{AgentFile, Backend, Mechanism};
use quell_model::{Plan, Snapshot, Source, TenantName, ThreadId};
use std::collections::{BTreeMap, BTreeSet};

/// Where snapshots come from.
pub trait Observe {
    /// Where its figures come from.
    fn source(&self) -> Source;
    /// Why they do not come from BPF, when they do not.
    fn fallback_reason(&self) -> Option<&str>;
    /// The period since the previous call.
    ///
    /// # Errors
    /// When the host could not be read; the next call may succeed.
    fn sample(&mut self) -> Result<Snapshot, ObserveError>;
    /// Takes back a snapshot that nobody needs any more, for its memory.
    fn recycle(&mut self, _snapshot: Snapshot) {}
    /// The trace points that a scheduler can stand in for, where there are any.
    fn trace_points(&self) -> Option<TracePoints> {
        None
    }
    /// Observes the tenants of another configuration from now on.
    ///
    /// # Errors
    /// When that is not possible; it goes on with those that it had.
    fn follow(&mut self, config: &AgentFile) -> Result<(), ObserveError>;
}

/// The way of acting that a configuration comes to on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Never [`Backend::Auto`].
    pub backend: Backend,
    /// Why not the scheduler, where it is not.
    pub reason: Option<String>,
}

/// Acts through the kernel's stock interfaces.
pub trait Stock {
    /// Makes the plan hold.
    fn apply(&mut self, snapshot: &Snapshot, plan: &Plan) -> ApplyReport;
    /// The tenants of whose plan something does not hold, and what and why.
    fn unmet(&self) -> BTreeMap<TenantName, Vec<String>>;
    /// Puts everything back, except that these threads stay where they are bound to.
    fn hand_over(&mut self, bound: &BTreeSet<ThreadId>) -> RestoreReport;
    /// Puts everything back.
    fn restore(&mut self) -> RestoreReport;
}

/// Where plans go.
pub trait Act {
    /// Prepares for the plans of a configuration. A scheduler stands in for the observer's trace points.
    fn choose(&mut self, config: &AgentFile, trace_points: Option<TracePoints>) -> Choice;
    /// How it acts at the moment.
    fn backend(&self) -> Backend;
    /// Makes the plan hold.
    fn apply(&mut self, snapshot: &Snapshot, plan: &Plan) -> ApplyReport;
    /// The tenants of whose plan something does not hold, and what and why.
    fn unmet(&self) -> BTreeMap<TenantName, Vec<String>>;
    /// How many promises of CPU time were broken since the start, by tenant.
    fn broken(&self) -> &BTreeMap<TenantName, u64>;
    /// Puts back what a policy sees of the host, for one that begins: it must see what the owners chose. These threads stay
    /// where they are bound to, and what a scheduler was told holds until the next plan says otherwise.
    fn hand_over(&mut self, bound: &BTreeSet<ThreadId>) -> RestoreReport;
    /// Puts everything back.
    fn restore(&mut self) -> RestoreReport;
}

impl Observe for Observer {
    fn source(&self) -> Source {
        Observer::source(self)
    }

    fn fallback_reason(&self) -> Option<&str> {
        Observer::fallback_reason(self)
    }

    fn sample(&mut self) -> Result<Snapshot, ObserveError> {
        Observer::sample(self)
    }

    fn recycle(&mut self, snapshot: Snapshot) {
        Observer::recycle(self, snapshot);
    }

    fn trace_points(&self) -> Option<TracePoints> {
        Observer::trace_points(self)
    }

    fn follow(&mut self, config: &AgentFile) -> Result<(), ObserveError> {
        Observer::follow(self, &config.tenants)
    }
}

/// A host of which guests are asked as well, where the configuration wants it.
pub(crate) struct Asking {
    observer: Box<dyn Observe>,
    guests: Guests,
    asks: bool,
}

impl Asking {
    pub(crate) fn new(observer: Box<dyn Observe>, guests: Guests, config: &AgentFile) -> Asking {
        Asking {
            observer,
            guests,
            asks: config.agent.has(Mechanism::Pools),
        }
    }
}

impl Observe for Asking {
    fn source(&self) -> Source {
        self.observer.source()
    }

    fn fallback_reason(&self) -> Option<&str> {
        self.observer.fallback_reason()
    }

    fn sample(&mut self) -> Result<Snapshot, ObserveError> {
        let mut snapshot = self.observer.sample()?;
        if self.asks {
            self.guests.sample_into(&mut snapshot);
        }
        Ok(snapshot)
    }

    fn recycle(&mut self, snapshot: Snapshot) {
        self.observer.recycle(snapshot);
    }

    fn trace_points(&self) -> Option<TracePoints> {
        self.observer.trace_points()
    }

    fn follow(&mut self, config: &AgentFile) -> Result<(), ObserveError> {
        self.observer.follow(config)?;
        self.asks = config.agent.has(Mechanism::Pools);
        Ok(())
    }
}

impl Stock for Actuator {
    fn apply(&mut self, snapshot: &Snapshot, plan: &Plan) -> ApplyReport {
        Actuator::apply(self, snapshot, plan)
    }

    fn unmet(&self) -> BTreeMap<TenantName, Vec<String>> {
        Actuator::unmet(self)
    }

    fn hand_over(&mut self, bound: &BTreeSet<ThreadId>) -> RestoreReport {
        Actuator::reset_for_reload(self, bound)
    }

    fn restore(&mut self) -> RestoreReport {
        Actuator::restore(self)
    }
}
