//! What should hold next, and why: the message from *decide* to *act*.

use crate::config::Server;
use crate::{CpuId, CpuSet, Effect, TenantName, TenantWeight, ThreadId, Weight};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// What should hold from now on. It is complete: a thread that is not in it has no settings of
/// Quell's, so an actuator gives it back what it had.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// The snapshot it was made from ([`crate::Snapshot::seq`]).
    pub seq: u64,
    /// Ascending by name.
    pub tenants: Vec<TenantPlan>,
    /// What is promised on CPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerPlan>,
    /// Whose the promises are, those that are yet to come or about to go among them: what a policy goes on from that comes
    /// after the one whose plan it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given: Vec<GivenServer>,
    /// How the host's CPUs are divided; `None`: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<PoolsPlan>,
    /// The kernel's own scheduler is to run the host for now, and stock interfaces to carry the plan.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kernel_scheduler: bool,
    /// What is known of the effect of Quell's levers; none: nothing is measured.
    #[serde(default, skip_serializing_if = "no_effects")]
    pub effects: Arc<Vec<Effect>>,
}

fn no_effects(effects: &Arc<Vec<Effect>>) -> bool {
    effects.is_empty()
}

/// The pools that a host's CPUs are in (UFO, section 4.2), beside the groups of virtual machines ([`TenantPlan::group`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolsPlan {
    /// The CPUs of emulator threads.
    pub emulators: CpuSet,
    /// The CPUs of all tenants that have no group.
    pub idle: CpuSet,
    /// The CPUs that are not divided: CPU time is promised there, or an operator bound a virtual machine to them.
    pub left: CpuSet,
    /// Whether the host can take more virtual machines.
    pub verdict: Verdict,
}

/// For who places virtual machines on hosts (UFO, appendix B.4).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What to do.
    pub advice: Advice,
    /// Why, in words for operators.
    pub why: String,
    /// Idle cores: now, and the fewest and the most lately.
    pub idle_cores: [usize; 3],
    /// CLOCK_MONOTONIC up to which it holds, unless another one is given, in ns.
    pub until_ns: u64,
    /// Which virtual machines' leaving would give back how many CPUs, the most first.
    pub would_free: Vec<(TenantName, u32)>,
    /// What the host would be without each of its virtual machines; where it has too much, the one to move first.
    #[serde(default)]
    pub what_if: Vec<WhatIf>,
}

/// A host without one of its virtual machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatIf {
    /// Which.
    pub name: TenantName,
    /// CPUs that it would give back.
    pub frees: u32,
    /// CPUs that others would still lack.
    pub lacking: u32,
    /// Cores that would idle.
    pub idle_cores: usize,
}

/// What to do with a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// It has room for more.
    Accept,
    /// It has as much as it should.
    Hold,
    /// It has too much.
    Migrate,
}

impl Advice {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Advice::Accept => "accept",
            Advice::Hold => "hold",
            Advice::Migrate => "migrate",
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Where a virtual machine's virtual CPUs are to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum GroupPlan {
    /// On CPUs that no other tenant has.
    Own {
        /// They.
        cpus: CpuSet,
        /// So many virtual CPUs are to be online.
        online: u32,
        /// So many CPUs it lacks, because there are no more.
        lacks: u32,
    },
    /// In the idle pool, with others that do nothing or are batch ones.
    Shared {
        /// So many virtual CPUs are to be online.
        online: u32,
    },
    /// Left alone.
    Left {
        /// Why, in words for operators.
        why: String,
    },
}

impl GroupPlan {
    /// How many virtual CPUs are to be online; `None`: as it likes.
    pub fn online(&self) -> Option<u32> {
        match self {
            GroupPlan::Own { online, .. } | GroupPlan::Shared { online } => Some(*online),
            GroupPlan::Left { .. } => None,
        }
    }
}

/// What is promised on one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerPlan {
    /// Threads name it by this ([`ThreadPlan::server`]); 0: what the CPU keeps for all that no server serves.
    pub number: u32,
    /// The CPU; one number is never of two at the same time.
    pub cpu: CpuId,
    /// The promise.
    pub terms: ServerTerms,
}

/// A promise that was given to one of a tenant's virtual CPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GivenServer {
    /// The tenant.
    pub tenant: TenantName,
    /// Which of its virtual CPUs, from 0.
    pub vcpu: u32,
    /// Where.
    pub cpu: CpuId,
    /// As in [`ServerPlan`].
    pub number: u32,
    /// What was promised.
    pub server: Server,
    /// What is kept free for it there: more than it was promised while its terms change.
    pub room: Server,
    /// What it is to be promised instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextTerms>,
    /// CLOCK_MONOTONIC from which on it is served, and by no other terms, in ns.
    pub from_ns: u64,
    /// And up to which, where its tenant has left.
    pub leaves_ns: Option<u64>,
    /// After so many control periods in which it got too little it moves.
    pub patience: u32,
    /// It serves the machine's emulator threads too.
    #[serde(default)]
    pub emulators: bool,
    /// The CPUs that the owner of its threads lets them run on; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<CpuSet>,
    /// To say once it is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// Other terms for one that has a promise. Times are CLOCK_MONOTONIC, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextTerms {
    /// They.
    pub server: Server,
    /// Its first period after this has them.
    pub from_ns: u64,
    /// Once that has come: when the last period by the terms of before is over.
    pub over_ns: Option<u64>,
}

/// CPU time in every period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerTerms {
    /// What is promised.
    pub server: Server,
    /// From a period's beginning to the virtual deadline, in ns: the period itself, or less for one of high criticality (Akita,
    /// equation 5).
    pub virtual_deadline_ns: u64,
    /// Into how many equal parts its optimistic budget is divided, each with an equal part of the time to the virtual deadline; 1: it
    /// is not. See `policy/server.h`.
    pub parts: u32,
    /// For how many periods its CPU goes on serving high criticality only after it needed that (Akita, section 3.3).
    pub temperature: u32,
}

/// What became of a tenant's wish for promised CPU time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Promise {
    /// It is kept, on those CPUs, one for each virtual CPU.
    Kept {
        /// They.
        cpus: Vec<CpuId>,
        /// Why it is what was promised before, where its tenant asks for something else by now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unchanged: Option<String>,
    },
    /// It will be, as soon as what was promised to others allows.
    Awaited {
        /// Where.
        cpus: Vec<CpuId>,
    },
    /// It was not given; the tenant has its weight.
    Refused {
        /// Which condition does not hold, and what would help, in a sentence for operators.
        why: String,
    },
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
    /// What became of its wish for promised CPU time; `None`: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<Promise>,
    /// Where its virtual CPUs are to be; `None`: it has none, or pools are not a mechanism.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupPlan>,
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
    /// The server whose promise is its, by number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<u32>,
    /// Why anything changed against the plan before, empty when nothing did.
    pub reasons: Vec<Reason>,
}

impl ThreadPlan {
    /// Leaves a thread all that its owner chose.
    pub fn leaving(id: ThreadId) -> ThreadPlan {
        ThreadPlan {
            id,
            weight: None,
            latency_ns: None,
            cpus: None,
            server: None,
            reasons: Vec::new(),
        }
    }
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
    /// CPU time was promised on a CPU (Akita, section 3.6).
    Promised,
    /// A promise of low criticality moved to another CPU, where it can be kept (the paper's RQS, in our reading).
    Moved,
    /// A virtual machine has another number of CPUs (UFO, section 4.5).
    Resized,
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
            Rule::Promised => "promised",
            Rule::Moved => "moved",
            Rule::Resized => "resized",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
