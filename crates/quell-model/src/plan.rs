//! The settings that should hold next, and why: the message from *decide* to *act*.

use crate::config::Server;
use crate::{
    CpuId, CpuSet, Effect, SchedClass, TenantName, TenantSample, TenantWeight, ThreadId, Weight,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The settings that should hold from now on. A plan is complete: a thread that is not in it has no
/// settings from Quell, so an actuator restores what the thread had before.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// The number of the snapshot that the plan was made from ([`crate::Snapshot::seq`]).
    pub seq: u64,
    /// The tenants' plans, ascending by name.
    pub tenants: Vec<TenantPlan>,
    /// The servers of all CPUs, best-effort servers included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerPlan>,
    /// The promises and the tenants that hold them, those that have yet to begin or are about to end
    /// included. A policy that replaces the one that made the plan goes on from these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "given")]
    pub reservations: Vec<Reservation>,
    /// The pools that the host's CPUs are divided into; `None`: the CPUs are not divided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<PoolsPlan>,
    /// Whether the kernel's own scheduler runs the host for now, so that stock interfaces carry the plan.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kernel_scheduler: bool,
    /// The measured effects of Quell's levers; empty: nothing is measured.
    #[serde(default, skip_serializing_if = "no_effects")]
    pub effects: Arc<Vec<Effect>>,
}

fn no_effects(effects: &Arc<Vec<Effect>>) -> bool {
    effects.is_empty()
}

/// The pools that a host's CPUs are in (UFO, section 4.2), beside the groups of virtual machines
/// ([`TenantPlan::group`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolsPlan {
    /// The CPUs of emulator threads.
    pub emulators: CpuSet,
    /// The CPUs of all tenants that have no group.
    pub idle: CpuSet,
    /// The CPUs that are not divided, because CPU time is promised there or an operator bound a
    /// virtual machine to them.
    pub left: CpuSet,
    /// Whether the host can take more virtual machines.
    pub verdict: Verdict,
}

/// Whether a host has room, for the service that places virtual machines on hosts (UFO, appendix B.4).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The advice to the placement service.
    pub advice: Advice,
    /// The reason, in words for operators.
    pub why: String,
    /// The number of idle cores: now, and the minimum and the maximum of late.
    pub idle_cores: [usize; 3],
    /// CLOCK_MONOTONIC up to which the verdict holds unless a newer one replaces it, in ns.
    pub until_ns: u64,
    /// How many CPUs the leaving of each virtual machine would give back, the most first.
    pub would_free: Vec<(TenantName, u32)>,
    /// The state of the host without each of its virtual machines; where the host has too much load,
    /// the one to move comes first.
    #[serde(default)]
    pub what_if: Vec<WhatIf>,
}

/// A host without one of its virtual machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatIf {
    /// The virtual machine that would leave.
    pub name: TenantName,
    /// CPUs that the virtual machine would give back.
    pub frees: u32,
    /// CPUs that the other virtual machines would still lack.
    pub lacking: u32,
    /// Cores that would be idle.
    pub idle_cores: usize,
}

/// The advice about a host, for a placement service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// The host has room for more virtual machines.
    Accept,
    /// The host has as much load as it should: place nothing more.
    Hold,
    /// The host has too much load: move a virtual machine away.
    Migrate,
}

impl Advice {
    /// The advice, as the API spells it.
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

/// The place of a virtual machine's vCPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum GroupPlan {
    /// The vCPUs run on CPUs that no other tenant uses.
    Own {
        /// The group's CPUs.
        cpus: CpuSet,
        /// How many vCPUs should be online.
        online: u32,
        /// How many CPUs the virtual machine lacks, because no more are free.
        lacks: u32,
    },
    /// The vCPUs run in the idle pool, with other virtual machines that are idle or batch.
    Shared {
        /// How many vCPUs should be online.
        online: u32,
    },
    /// The vCPUs run where the virtual machine's owner put them: the pools do not include the machine.
    Left {
        /// The reason, in words for operators.
        why: String,
    },
}

impl GroupPlan {
    /// How many vCPUs should be online; `None`: Quell does not decide it.
    pub fn online(&self) -> Option<u32> {
        match self {
            GroupPlan::Own { online, .. } | GroupPlan::Shared { online } => Some(*online),
            GroupPlan::Left { .. } => None,
        }
    }
}

/// A server: CPU time that is reserved on one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerPlan {
    /// The number by which threads name the server ([`ThreadPlan::server`]); 0: the CPU's best-effort
    /// server, which serves all threads without a promise.
    pub number: u32,
    /// The server's CPU; no two servers have the same number at the same time.
    pub cpu: CpuId,
    /// The server's budget, period and virtual deadline.
    pub terms: ServerTerms,
}

/// A promise to one of a tenant's vCPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reservation {
    /// The tenant's name.
    pub tenant: TenantName,
    /// The vCPU's number in its virtual machine, from 0.
    pub vcpu: u32,
    /// The CPU that serves the promise.
    pub cpu: CpuId,
    /// The server's number, as in [`ServerPlan`].
    pub number: u32,
    /// The promised budget and period.
    pub server: Server,
    /// The CPU time that the admission test counts on that CPU: more than the promise while its terms change.
    pub room: Server,
    /// The terms that will replace the present ones; `None`: no change is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextTerms>,
    /// CLOCK_MONOTONIC from which on the promise is served, by these terms only, in ns.
    pub from_ns: u64,
    /// CLOCK_MONOTONIC at which the promise ends, in ns, where its tenant has left; `None`: no end is set.
    pub leaves_ns: Option<u64>,
    /// After how many control periods with too little service the promise moves to another CPU.
    pub patience: u32,
    /// Whether the server serves the virtual machine's emulator threads too.
    #[serde(default)]
    pub emulators: bool,
    /// The CPUs that the owner of the vCPU's thread lets it run on; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<CpuSet>,
    /// The reason to report once the promise is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// New terms for a promise that exists. Times are CLOCK_MONOTONIC, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextTerms {
    /// The new budget and period.
    pub server: Server,
    /// The first period that begins after this time has the new terms.
    pub from_ns: u64,
    /// When the last period by the old terms is over; `None` until `from_ns` has come.
    pub over_ns: Option<u64>,
}

/// The terms of a constant-bandwidth server: CPU time in every period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerTerms {
    /// The budget and period.
    pub server: Server,
    /// The time from a period's beginning to the virtual deadline, in ns: the period itself, or less for
    /// a server of high criticality (Akita, equation 5).
    pub virtual_deadline_ns: u64,
    /// The number of equal parts that the optimistic budget is divided into, each with an equal part of
    /// the time to the virtual deadline; 1: the budget is not divided. See `policy/server.h`.
    pub parts: u32,
    /// For how many periods the CPU stays in HI mode after a server of high criticality needed it
    /// (Akita, section 3.3).
    pub temperature: u32,
}

/// The admission test's answer to a tenant that asks for promised CPU time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Promise {
    /// The promise is kept, on one CPU for each vCPU.
    Kept {
        /// The CPU of each vCPU, by the vCPU's number.
        cpus: Vec<CpuId>,
        /// Why the terms are still the earlier ones, where the tenant by now asks for others.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unchanged: Option<String>,
    },
    /// The promise begins as soon as earlier promises leave room for it.
    Awaited {
        /// The CPU of each vCPU, by the vCPU's number.
        cpus: Vec<CpuId>,
    },
    /// The promise was refused; the tenant is served by its weight.
    Refused {
        /// The condition that does not hold and what would help, in a sentence for operators.
        why: String,
    },
}

/// The settings that should hold for one tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantPlan {
    /// The tenant's name.
    pub name: TenantName,
    /// The tenant's weight among tenants; `None` leaves the weight that its owner chose.
    pub weight: Option<TenantWeight>,
    /// The plans of the tenant's threads, ascending by id; a thread that is left as it is may be left out.
    pub threads: Vec<ThreadPlan>,
    /// The state of the tenant's promise; `None`: the tenant asks for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<Promise>,
    /// Where the tenant's vCPUs should run; `None`: it has no vCPU, or pools are not a mechanism.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupPlan>,
}

/// The settings that should hold for one thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadPlan {
    /// The thread's identity.
    pub id: ThreadId,
    /// The thread's weight, a part of the tenant's fixed total; `None` leaves what its owner chose.
    pub weight: Option<Weight>,
    /// Rescheduling latency in ns: once the thread has been ready for this long it should run.
    /// `None` leaves what its owner chose.
    pub latency_ns: Option<u64>,
    /// The CPUs that the thread may run on; `None` leaves what its owner chose.
    pub cpus: Option<CpuSet>,
    /// The number of the server that serves the thread; `None`: the thread has no promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<u32>,
    /// The reasons of all changes since the previous plan; empty when nothing changed.
    pub reasons: Vec<Reason>,
}

impl TenantPlan {
    /// Adds those of the tenant's threads that the plan left out, each with every setting that its owner
    /// chose: the threads of the ordinary classes, which may have settings.
    pub fn complete(&mut self, sample: &TenantSample) {
        let takes_settings = |class| matches!(class, SchedClass::Fair | SchedClass::Ext);
        let all = sample.threads.iter();
        let all = all.filter(|it| takes_settings(it.settings.class));
        let has = |id: &ThreadId| self.threads.binary_search_by_key(id, |it| it.id).is_ok();
        let missing = all.filter(|it| !has(&it.id));
        let missing: Vec<ThreadPlan> = missing.map(|it| ThreadPlan::leaving(it.id)).collect();
        if !missing.is_empty() {
            self.threads.extend(missing);
            self.threads.sort_by_key(|it| it.id);
        }
    }
}

impl ThreadPlan {
    /// A plan that leaves a thread every setting that its owner chose.
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

    /// Whether the plan has a setting for the thread.
    pub fn changes(&self) -> bool {
        let ThreadPlan {
            weight,
            latency_ns,
            cpus,
            server,
            id: _,
            reasons: _,
        } = self;
        weight.is_some() || latency_ns.is_some() || cpus.is_some() || server.is_some()
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
    /// Time-slice allocator: a thread preempted by depletion of its slice gains weight (DASEC 4.2).
    SliceDepleted,
    /// Time-slice allocator: a thread gave weight so that the tenant's total stays (DASEC 4.2).
    GaveWeight,
    /// The tenant's total changed with its threads or its own weight, so its threads' weights changed too.
    Rescaled,
    /// Rescheduling-latency adjuster: a thread is ready with an unconsumed slice (DASEC 4.2).
    LatencyLowered,
    /// Rescheduling-latency adjuster: a thread consumed its slice and idles (DASEC 4.2).
    LatencyRaised,
    /// Rescheduling-latency adjuster: a thread wakes another that is late at the minimum (DASEC 4.2).
    WakerChased,
    /// Resource-conflict resolver: slices balanced between two cores (DASEC 4.2).
    SliceSwap,
    /// Resource-conflict resolver: latency conflicts spread over two cores (DASEC 4.2).
    LatencySwap,
    /// A placement ended and the thread may use all its CPUs again.
    Released,
    /// CPU time was promised on a CPU (Akita, section 3.6).
    Promised,
    /// A promise of low criticality moved to a CPU that can keep it (our reading of the paper's RQS).
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
