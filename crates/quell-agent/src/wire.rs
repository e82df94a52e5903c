//! What the API says: the types of its answers, shared by server and client.
//!
//! Version 1. Fields are only ever added to it; a field's meaning or unit never changes. Times are
//! nanoseconds (`_ns`), microseconds (`_us`) or seconds (`_s`) as the names say; whatever the
//! source cannot see is `null`, never zero. `docs/reference/api.md` is the reference for users.

use quell_model::config::{Backend, CriticalitySettings, Mechanism, TenantClass, TenantKind};
use quell_model::{
    CgroupPath, CpuId, CpuSet, Effect, GroupPlan, Labels, Plan, PoolsPlan, Promise, Rule, Snapshot,
    Source, TenantName, TenantWeight,
};
use quell_model::{ThreadId, ThreadRole, ThreadState, Tid, WaitBreakdown, Weight};
use quell_policy::admission::Placed;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The agent's version.
    pub version: String,
    /// The agent's process id.
    pub pid: u32,
    /// The configuration in force.
    pub config: PathBuf,
    /// Time since the agent started.
    pub uptime_s: f64,
    /// The mechanisms in force; empty: only observing.
    #[serde(rename = "policy")]
    pub mechanisms: Vec<Mechanism>,
    /// How the agent acts: the way that is used, never `auto`.
    pub backend: Backend,
    /// The reason why the agent does not act through the scheduler; `null` where it does.
    pub backend_reason: Option<String>,
    /// The source of the figures.
    pub source: Source,
    /// The reason why the figures do not come from BPF; `null` where they do.
    pub fallback_reason: Option<String>,
    /// Whether the agent changes anything on the host.
    pub acting: bool,
    /// The reason why the agent changes nothing; `null` where it does.
    pub not_acting_reason: Option<String>,
    /// Privileges and settings that this host or this user does not allow, and how to get them.
    pub missing: Vec<Missing>,
    /// The control period.
    pub period_ms: u64,
    /// Periods completed.
    pub periods: u64,
    /// Periods that began late or not at all because the one before took too long.
    pub overruns: u64,
    /// Periods without a snapshot because observing failed.
    pub observe_errors: u64,
    /// Successful reloads of the configuration.
    pub reloads: u64,
    /// Why the last reload was refused, until one succeeds.
    pub reload_error: Option<String>,
    /// Settings written to the host since the start.
    pub changes: u64,
    /// What the last period cost the agent.
    pub last_period: PeriodCost,
    /// What the agent itself uses.
    pub agent: AgentUse,
    /// The last notes, oldest first: settings that were left alone, and why.
    pub notes: Vec<String>,
    /// How the host's CPUs are divided, and whether it can take more virtual machines; `null`: they are not.
    #[serde(default)]
    pub pools: Option<PoolsPlan>,
    /// The levers that are measured, and what is known of the effect of each; empty: none is measured.
    #[serde(default)]
    pub effects: Arc<Vec<Effect>>,
    /// The time that the tenants' figures cover.
    pub window_s: f64,
    /// The tenants, ascending by name.
    pub tenants: Vec<TenantStatus>,
}

/// Something the host or the user does not allow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// What is missing, such as `CAP_BPF` or `slice`.
    pub what: String,
    /// What does not work without it, and how to get it.
    pub remedy: String,
}

/// The wall time of one period's steps, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PeriodCost {
    /// The time to take the snapshot.
    pub observe_us: u64,
    /// The time to decide on the plan.
    pub decide_us: u64,
    /// The time to write the plan's settings.
    pub act_us: u64,
}

/// What the agent itself uses.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct AgentUse {
    /// CPU time since its start, user and system.
    pub cpu_ns: u64,
    /// CPU time since its first period was complete, in percent of one CPU: starting is left out.
    pub cpu_percent: f64,
    /// Resident memory.
    pub rss_bytes: u64,
}

/// One tenant in [`Status`]. Times are sums over its threads and the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantStatus {
    /// Its name.
    pub name: TenantName,
    /// Its class.
    pub class: TenantClass,
    /// Its kind.
    pub kind: TenantKind,
    /// Its weight among tenants.
    pub weight: TenantWeight,
    /// Of a tenant that a rule found: what its source says of it, by label.
    #[serde(default)]
    pub labels: Arc<Labels>,
    /// The cgroup that holds exactly its threads, if any.
    pub cgroup: Option<CgroupPath>,
    /// Its threads now.
    pub threads: u64,
    /// Those of its threads that have settings of Quell's.
    pub managed: u64,
    /// CPU time, in percent of one CPU.
    pub run_percent: f64,
    /// CPU time, in percent of all the host's.
    pub cpu_share_percent: f64,
    /// Time ready and not served, in percent of one CPU.
    pub ready_percent: Option<f64>,
    /// The other tenants for which it waited longest, the longest first, at most three; `null` where the
    /// source sees no causes.
    #[serde(default)]
    pub waits_for: Option<Vec<WaitsFor>>,
    /// The time for which other tenants waited while it had the CPU, in percent of one CPU; `null` where the
    /// source sees no causes.
    #[serde(default)]
    pub caused_percent: Option<f64>,
    /// Time for which a CPU bandwidth limit of its cgroup stopped it, in percent of one CPU; not in
    /// `ready_percent`.
    #[serde(default)]
    pub throttled_percent: Option<f64>,
    /// Remarks that hold now and that the figures do not show, a sentence each.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// Median wait for a CPU (upper edge of its power-of-two bucket).
    pub wait_p50_us: Option<f64>,
    /// 99th percentile of the waits for a CPU (upper edge of its power-of-two bucket).
    pub wait_p99_us: Option<f64>,
    /// Least rescheduling latency of its threads.
    pub latency_min_us: Option<u64>,
    /// Greatest rescheduling latency of its threads.
    pub latency_max_us: Option<u64>,
    /// What became of its wish for promised CPU time; `null`: it has none.
    pub promise: Option<Promise>,
    /// Periods since the agent's start that ended before a server of its had the budget that it wanted.
    #[serde(default)]
    pub broken_promises: u64,
    /// Where its virtual CPUs are to be; `null`: it has none, or CPUs are not divided.
    #[serde(default)]
    pub group: Option<GroupPlan>,
    /// The number of virtual CPUs that its guest has online, by its guest agent; `null`: the guest agent is
    /// not asked, or has not answered yet.
    #[serde(default)]
    pub online: Option<u32>,
}

/// A tenant that had the CPU while another waited.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitsFor {
    /// The tenant that had the CPU.
    pub tenant: TenantName,
    /// The time that the other waited meanwhile, in percent of one CPU.
    pub percent: f64,
}

/// `GET /v1/admission`: what is promised on the host's CPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Admission {
    /// The settings of the admission test.
    pub settings: CriticalitySettings,
    /// The CPUs that are online, ascending.
    pub cpus: Vec<CpuAdmission>,
    /// The tenants that asked, ascending by name.
    pub tenants: Vec<TenantAdmission>,
}

/// A CPU in [`Admission`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuAdmission {
    /// The number of the CPU.
    pub cpu: CpuId,
    /// The promises on this CPU, including those that wait to be served.
    pub servers: Vec<Placed>,
}

/// A tenant in [`Admission`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantAdmission {
    /// Its name.
    pub tenant: TenantName,
    /// What became of its wish.
    pub promise: Promise,
}

/// `GET /v1/matrix?window_s=N`: which tenant made which tenant wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Matrix {
    /// The source of the figures.
    pub source: Source,
    /// Waits in the window.
    pub window: MatrixPart,
    /// Waits since the agent started.
    pub total: MatrixPart,
}

/// The matrix of a length of time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MatrixPart {
    /// That length.
    pub length_ns: u64,
    /// One row for each tenant that waited or could have, ascending by name.
    pub rows: Vec<MatrixRow>,
}

/// The tenants that one tenant waited for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MatrixRow {
    /// The tenant that waited.
    pub tenant: TenantName,
    /// Its ready time, and the time for which a limit stopped it, by cause, in ns; `null` where the source
    /// does not see causes.
    pub waits: Option<WaitBreakdown>,
    /// For how long, in ns, some of its threads were ready and unserved while exactly `n` of its
    /// others were blocked (entry `n`; DASEC, Fig. 3); `null` where not seen.
    pub occasions_ns: Option<Vec<u64>>,
}

/// `GET /v1/explain/TENANT`: what a tenant has, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explain {
    /// The tenant.
    pub tenant: TenantName,
    /// The snapshot and plan that the threads are of.
    pub seq: u64,
    /// CLOCK_MONOTONIC at the end of that period.
    pub time_ns: u64,
    /// The length of that period.
    pub period_ns: u64,
    /// Remarks that hold now and that the figures do not show, a sentence each.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// Its weight among tenants, as configured; `null`: none is, what its owner set stays.
    #[serde(default)]
    pub weight: Option<TenantWeight>,
    /// The cgroup that holds exactly its threads, if any: there its weight is set, else by their nice values.
    #[serde(default)]
    pub cgroup: Option<CgroupPath>,
    /// Its threads, ascending by id.
    pub threads: Vec<ThreadExplain>,
    /// Its fair share of the host and what it received; `null` where the source does not show which threads
    /// waited, and until the first two seconds are over.
    pub share: Option<ShareExplain>,
    /// What became of its wish for promised CPU time; `null`: it has none.
    pub promise: Option<Promise>,
    /// Where its virtual CPUs are to be; `null`: it has none, or CPUs are not divided.
    #[serde(default)]
    pub group: Option<GroupPlan>,
    /// The number of virtual CPUs that its guest has online, by its guest agent; `null`: the guest agent is
    /// not asked, or has not answered yet.
    #[serde(default)]
    pub online: Option<u32>,
    /// The levers that are measured, and what is known of the effect of each; empty: none is measured.
    #[serde(default)]
    pub effects: Arc<Vec<Effect>>,
    /// The last decisions, oldest first.
    pub decisions: Vec<Arc<Decision>>,
}

/// A tenant's part of the host in [`Explain`], over the last complete window of two seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ShareExplain {
    /// The length of that window.
    pub window_ns: u64,
    /// The tenant's weight among tenants.
    pub weight: TenantWeight,
    /// CPUs that it would have used without waiting, as far as the source shows.
    pub demand_cpus: f64,
    /// Its fair share of these CPUs by its weight, given the other tenants' demand and where threads may run.
    pub deserved_cpus: f64,
    /// CPUs that it used.
    pub received_cpus: f64,
    /// CPU time by which it is behind its fair share; negative: ahead.
    pub lag_ns: i64,
}

/// One thread in [`Explain`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadExplain {
    /// Its id.
    pub tid: Tid,
    /// Its name.
    pub name: Arc<str>,
    /// What it does for its tenant.
    pub role: ThreadRole,
    /// Its state at the period's end.
    pub state: ThreadState,
    /// CPU time in the period.
    pub run_ns: u64,
    /// Time ready and not served in the period.
    pub ready_ns: Option<u64>,
    /// Time for which a CPU bandwidth limit stopped it in the period.
    #[serde(default)]
    pub throttled_ns: Option<u64>,
    /// Nice value as last seen.
    pub nice: i32,
    /// EEVDF slice as last seen.
    pub slice_ns: Option<u64>,
    /// CPUs it may use, as last seen.
    pub cpus: Arc<CpuSet>,
    /// Weight planned.
    pub planned_weight: Option<Weight>,
    /// Rescheduling latency planned.
    pub planned_latency_ns: Option<u64>,
    /// CPUs planned.
    pub planned_cpus: Option<CpuSet>,
    /// The number of the server that serves it.
    pub planned_server: Option<u32>,
}

/// `GET /v1/decisions?since=N&limit=N`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Decisions {
    /// Ask with `since` set to this to get what comes after.
    pub next: u64,
    /// How many decisions from `since` on are no longer kept.
    pub lost: u64,
    /// Oldest first.
    pub decisions: Vec<Arc<Decision>>,
}

/// One change of a plan, and its evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Counts decisions from 0 since the agent started.
    pub number: u64,
    /// The period, as the snapshot counts it.
    pub seq: u64,
    /// CLOCK_MONOTONIC at the end of that period.
    pub time_ns: u64,
    /// The tenant.
    pub tenant: TenantName,
    /// The thread.
    pub thread: ThreadId,
    /// The thread's name.
    pub name: Arc<str>,
    /// The rule.
    pub rule: Rule,
    /// The change and the figures it rests on.
    pub text: String,
    /// Weight from now on.
    pub weight: Option<Weight>,
    /// Rescheduling latency from now on.
    pub latency_ns: Option<u64>,
    /// CPUs from now on.
    pub cpus: Option<CpuSet>,
}

/// `GET /v1/snapshot`: the last period's input and output, whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SnapshotAnswer {
    /// What was seen.
    pub snapshot: Arc<Snapshot>,
    /// What was decided.
    pub plan: Arc<Plan>,
}

/// Any answer but success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorAnswer {
    /// What is wrong and what would be right.
    pub error: String,
}
