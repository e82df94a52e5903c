//! The agent's ends of observe and act: a live host, or a recording in tests.

use quell_control::{Act, Observe};
use quell_linux::act::Actuator;
use quell_linux::guest::Guests;
use quell_linux::observe::{ObserveError, Observer, Survey, TracePoints, survey};
use quell_model::config::{AgentFile, Backend, Mechanism};
use quell_model::{ApplyReport, Plan, RestoreReport, Snapshot, Source, TenantName, ThreadId};
use std::collections::{BTreeMap, BTreeSet};

/// Where a host's snapshots come from.
pub trait HostObserver: Observe<Error = ObserveError> {
    /// The source of the figures.
    fn source(&self) -> Source;
    /// The reason why the figures do not come from BPF; `None` where they do.
    fn fallback_reason(&self) -> Option<&str>;
    /// Takes back a snapshot that is not needed any more, to use its memory again.
    fn recycle(&mut self, _snapshot: Snapshot) {}
    /// The trace points that a scheduler can stand in for, where there are any.
    fn trace_points(&self) -> Option<TracePoints> {
        None
    }
    /// The tenants that a configuration would have now.
    ///
    /// # Errors
    /// When the host cannot be read.
    fn survey(&self, config: &AgentFile) -> Result<Survey, ObserveError>;
    /// Observes the tenants of another configuration from now on.
    ///
    /// # Errors
    /// When those tenants cannot be observed; the observer goes on with its present tenants.
    fn follow(&mut self, config: &AgentFile) -> Result<(), ObserveError>;
}

/// The way of acting that a configuration comes to on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Never [`Backend::Auto`].
    pub backend: Backend,
    /// The reason why the scheduler is not used; `None` where it is.
    pub reason: Option<String>,
}

/// Acts through the kernel's stock interfaces.
pub trait Stock: Act {
    /// The tenants of which a part of the plan does not hold, with that part and the reason.
    fn unmet(&self) -> BTreeMap<TenantName, Vec<String>>;
    /// Puts all settings back, except that these threads stay bound to their CPUs.
    fn hand_over(&mut self, bound: &BTreeSet<ThreadId>) -> RestoreReport;
    /// Puts all settings back.
    fn restore(&mut self) -> RestoreReport;
}

/// Where a host's plans go.
pub trait HostActuator: Act {
    /// Prepares for the plans of a configuration. A scheduler stands in for the observer's trace points.
    fn choose(&mut self, config: &AgentFile, trace_points: Option<TracePoints>) -> Choice;
    /// The tenants of which a part of the plan does not hold, with that part and the reason.
    fn unmet(&self) -> BTreeMap<TenantName, Vec<String>>;
    /// The number of periods since the start in which a promise of CPU time was broken, by tenant.
    fn broken(&self) -> &BTreeMap<TenantName, u64>;
    /// Puts back what a policy sees of the host, before another policy begins: it must see what the owners
    /// chose. These threads stay bound to their CPUs, and what the scheduler was told holds until the next
    /// plan says otherwise.
    fn hand_over(&mut self, bound: &BTreeSet<ThreadId>) -> RestoreReport;
    /// Puts all settings back.
    fn restore(&mut self) -> RestoreReport;
}

/// The host's observer. With pools it asks the guests as well.
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

    fn survey(&self, config: &AgentFile) -> Result<Survey, ObserveError> {
        survey(&config.tenants, &config.rules)
    }

    fn follow(&mut self, config: &AgentFile) -> Result<(), ObserveError> {
        self.observer.follow(&config.tenants, &config.rules)?;
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
