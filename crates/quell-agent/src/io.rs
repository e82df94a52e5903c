//! The agent's ends of observe and act: a live host, or a recording in tests.

use quell_control::{Act, Observe};
use quell_linux::act::Actuator;
use quell_linux::guest::Guests;
use quell_linux::observe::{ObserveError, Observer, TracePoints};
use quell_model::config::{AgentFile, Backend, Mechanism};
use quell_model::{ApplyReport, Plan, RestoreReport, Snapshot, Source, TenantName, ThreadId};
use std::collections::{BTreeMap, BTreeSet};

/// Where a host's snapshots come from.
pub trait HostObserver: Observe<Error = ObserveError> {
    /// Where its figures come from.
    fn source(&self) -> Source;
    /// Why they do not come from BPF, when they do not.
    fn fallback_reason(&self) -> Option<&str>;
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
pub trait Stock: Act {
    /// The tenants of whose plan something does not hold, and what and why.
    fn unmet(&self) -> BTreeMap<TenantName, Vec<String>>;
    /// Puts everything back, except that these threads stay where they are bound to.
    fn hand_over(&mut self, bound: &BTreeSet<ThreadId>) -> RestoreReport;
    /// Puts everything back.
    fn restore(&mut self) -> RestoreReport;
}

/// Where a host's plans go.
pub trait HostActuator: Act {
    /// Prepares for the plans of a configuration. A scheduler stands in for the observer's trace points.
    fn choose(&mut self, config: &AgentFile, trace_points: Option<TracePoints>) -> Choice;
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

/// The host's observer. Guests are asked as well, where the configuration wants it.
pub(crate) struct Asking {
    observer: Observer,
    guests: Guests,
    asks: bool,
}

impl Asking {
    pub(crate) fn new(observer: Observer, guests: Guests, config: &AgentFile) -> Asking {
        Asking {
            observer,
            guests,
            asks: config.agent.has(Mechanism::Pools),
        }
    }
}

impl Observe for Asking {
    type Error = ObserveError;

    fn sample(&mut self) -> Result<Snapshot, ObserveError> {
        let mut snapshot = self.observer.sample()?;
        if self.asks {
            self.guests.sample_into(&mut snapshot);
        }
        Ok(snapshot)
    }
}

impl HostObserver for Asking {
    fn source(&self) -> Source {
        self.observer.source()
    }

    fn fallback_reason(&self) -> Option<&str> {
        self.observer.fallback_reason()
    }

    fn recycle(&mut self, snapshot: Snapshot) {
        self.observer.recycle(snapshot);
    }

    fn trace_points(&self) -> Option<TracePoints> {
        self.observer.trace_points()
    }

    fn follow(&mut self, config: &AgentFile) -> Result<(), ObserveError> {
        self.observer.follow(&config.tenants)?;
        self.asks = config.agent.has(Mechanism::Pools);
        Ok(())
    }
}

/// The host's stock interfaces.
pub(crate) struct StockInterfaces(pub(crate) Actuator);

impl Act for StockInterfaces {
    fn backend(&self) -> Backend {
        Backend::Stock
    }

    fn apply(&mut self, snapshot: &Snapshot, plan: &Plan) -> ApplyReport {
        self.0.apply(snapshot, plan)
    }
}

impl Stock for StockInterfaces {
    fn unmet(&self) -> BTreeMap<TenantName, Vec<String>> {
        self.0.unmet()
    }

    fn hand_over(&mut self, bound: &BTreeSet<ThreadId>) -> RestoreReport {
        self.0.reset_for_reload(bound)
    }

    fn restore(&mut self) -> RestoreReport {
        self.0.restore()
    }
}
