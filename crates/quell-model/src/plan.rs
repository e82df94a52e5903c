//! What should hold next, and why: the message from *decide* to *act*.

use crate::{CpuSet, TenantName, TenantWeight, ThreadId, Weight};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What should hold from now on. It is complete: a thread that is not in it has no settings of
/// Quell's, so an actuator gives it back what it had.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// The snapshot it was made from ([`crate::Snapshot::seq`]).
    pub seq: u64,
    /// Ascending by name.
    pub tenants: Vec<TenantPlan>,
}

/// What should hold for one tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantPlan {
    /// The tenant.
    pub name: TenantName,
    /// Its weight among tenants; `None` leaves what its owner chose.
    pub weight: Option<TenantWeight>,
    /// Its threads, ascending by id.
    pub threads: Vec<ThreadPlan>,
}

/// What should hold for one thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadPlan {
    /// The thread.
    pub id: ThreadId,
    /// Its weight, of the tenant's fixed total; `None` leaves what its owner chose.
    pub weight: Option<Weight>,
    /// Rescheduling latency in ns: once it has been ready for this long it should run.
    /// `None` leaves what its owner chose.
    pub latency_ns: Option<u64>,
    /// Where it may run; `None` leaves what its owner chose.
    pub cpus: Option<CpuSet>,
    /// Why anything changed against the plan before, empty when nothing did.
    pub reasons: Vec<Reason>,
}

/// One change and its evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// The rule that made the change.
    pub rule: Rule,
    /// The change and the figures it rests on, in a sentence for operators, such as
    /// `weight 1024.0 -> 1126.4: preempted 3 times after using its 6.9 ms slice`.
    pub text: String,
}

/// The rules that change plans. Their names are stable: logs, metrics and tests use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// A thread came under management.
    Adopted,
    /// Time-slice allocator: preempted by depletion, gains weight (DASEC 4.2).
    SliceDepleted,
    /// Time-slice allocator: gave weight so that the tenant's total stays (DASEC 4.2).
    GaveWeight,
    /// The tenant's total changed with its threads or its own weight, so its threads' weights did.
    Rescaled,
    /// Rescheduling-latency adjuster: wants to run with an unconsumed slice (DASEC 4.2).
    LatencyLowered,
    /// Rescheduling-latency adjuster: consumed its slice and idles (DASEC 4.2).
    LatencyRaised,
    /// Rescheduling-latency adjuster: wakes a thread that is at the minimum and still late (DASEC 4.2).
    WakerChased,
    /// Resource-conflict resolver: slices balanced between two cores (DASEC 4.2).
    SliceSwap,
    /// Resource-conflict resolver: latency conflicts spread over two cores (DASEC 4.2).
    LatencySwap,
    /// A placement ended and the thread may use all its CPUs again.
    Released,
}

impl Rule {
    /// The rule's stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Rule::Adopted => "adopted",
            Rule::SliceDepleted => "slice_depleted",
            Rule::GaveWeight => "gave_weight",
            Rule::Rescaled => "rescaled",
            Rule::LatencyLowered => "latency_lowered",
            Rule::LatencyRaised => "latency_raised",
            Rule::WakerChased => "waker_chased",
            Rule::SliceSwap => "slice_swap",
            Rule::LatencySwap => "latency_swap",
            Rule::Released => "released",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
