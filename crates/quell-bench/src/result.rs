//! The result of a benchmark, in the form that `--json` writes and the reports read.
//!
//! docs/reference/json.md describes every field for readers of the file; the names here are the names there.
//! A value that was not measured is `null`, never zero. Latency is in microseconds, shares are fractions of
//! the whole host (1 = every CPU), percentages say so in their name.

use crate::workload::Stillness;
use clap::ValueEnum;
use quell_model::Effect;
use quell_model::config::TenantClass;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The version of the JSON this build writes. It changes when a field changes its meaning or goes;
/// new fields do not change it.
pub const SCHEMA: u32 = 1;

/// The tenant name that stands for all tenants of a class.
pub const ALL: &str = "*";

/// The result of one benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchResult {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The version of Quell that measured.
    pub quell_version: String,
    /// The scenario's name.
    pub scenario: String,
    /// What the figures seem to show and do not, as the scenario says; empty: nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub caveat: String,
    /// What the scenario ran on.
    pub substrate: Substrate,
    /// When the benchmark began, in seconds since 1970 (UTC).
    pub started_unix_s: u64,
    /// Whether every pair was measured; `false` after an interrupt.
    pub complete: bool,
    /// The machine; the guest, where the scenario ran in the kernel lab.
    pub host: Host,
    /// The kernel lab's guest, where the scenario ran in one.
    #[serde(default)]
    pub lab: Option<LabGuest>,
    /// How the figures were measured.
    pub options: Options,
    /// Each side's figures for each tenant over all pairs, then for each class (tenant `*`).
    pub results: Vec<SideResult>,
    /// Each side against the baseline.
    pub comparisons: Vec<Comparison>,
    /// The agent's cost: its mean CPU use and its greatest memory over all runs that had an agent.
    pub agent: Option<AgentCost>,
    /// The host during each side.
    pub sides: Vec<SideSummary>,
    /// The raw values: each side of each pair, in the order measured.
    pub runs: Vec<Run>,
    /// Latency by percentile of each latency tenant on each side, all pairs pooled.
    pub latency: Vec<LatencyCurve>,
    /// What the agent decided, for each run that had an agent that could be asked.
    pub decisions: Vec<AgentLog>,
    /// What a reader must know before trusting the figures.
    pub notes: Vec<String>,
}

/// What a scenario ran on.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Substrate {
    /// The simulated machine
    Sim,
    /// The kernel lab's guest
    Vm,
    /// Real threads on this machine
    #[default]
    Host,
}

impl fmt::Display for Substrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Substrate::Sim => "sim",
            Substrate::Vm => "vm",
            Substrate::Host => "host",
        })
    }
}

/// A guest of the kernel lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabGuest {
    /// Release of the kernel booted.
    pub kernel: String,
    /// `virtual` (one instruction is one nanosecond, deterministic) or `real`.
    pub clock: String,
    /// How instructions were executed: `tcg` (emulated) or `kvm`.
    pub accelerator: String,
    /// The number of its CPUs.
    pub cpus: u32,
    /// The number of sockets that the CPUs are spread over.
    #[serde(default = "one")]
    pub sockets: u32,
    /// The number of CPUs of each core.
    #[serde(default = "one")]
    pub smt: u32,
    /// The guest's memory, in MiB.
    pub memory_mib: u32,
    /// QEMU's version.
    pub qemu: String,
    /// The versions of the published schedulers measured, by name.
    #[serde(default)]
    pub peers: BTreeMap<String, String>,
}

impl LabGuest {
    /// What a reader must know of figures from this guest.
    pub fn note(&self) -> String {
        let clock = if self.clock == "virtual" {
            "deterministic virtual time (one instruction is one nanosecond, shared by all CPUs: the kernel's \
             own work weighs more than on hardware)"
        } else {
            "real time"
        };
        let peers: Vec<String> = self
            .peers
            .iter()
            .map(|(name, version)| format!(" {name} is version {version}."))
            .collect();
        format!(
            "Measured in a guest of the kernel lab: QEMU {}, {}, {clock}.{}",
            self.qemu,
            self.accelerator,
            peers.concat()
        )
    }
}

fn one() -> u32 {
    1
}

/// The machine a benchmark ran on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The number of online CPUs.
    pub cpus: u32,
    /// The CPU's model name.
    pub model: String,
    /// Kernel release.
    pub kernel: String,
    /// Distribution, as it calls itself.
    pub os: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Whether the machine is itself a virtual machine.
    pub virtualized: bool,
    /// Scheduler settings that change what is measured: autogroup, preemption model, EEVDF's base slice. As
    /// `name=value`, only settings that this kernel shows.
    pub scheduler: Vec<String>,
}

/// How a benchmark was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Seed of everything random.
    pub seed: u64,
    /// Pairs asked for.
    pub pairs: u32,
    /// Length of each measured window, in seconds.
    pub seconds: f64,
    /// Warm-up before each window, in seconds.
    pub warmup_seconds: f64,
    /// The sides, the baseline first.
    pub sides: Vec<String>,
    /// Values of the scenario's file that were replaced, as `KEY=VALUE`.
    #[serde(default)]
    pub set: Vec<String>,
    /// Confidence of the intervals, such as 0.95.
    pub confidence: f64,
    /// Bootstrap resamples behind each interval.
    pub resamples: u32,
}

impl Options {
    /// The value that a key of the scenario was set to, if it was.
    pub fn value(&self, key: &str) -> Option<&str> {
        let mut settings = self.set.iter().rev();
        settings.find_map(|setting| {
            let (path, value) = setting.split_once('=')?;
            (path.trim() == key).then(|| value.trim())
        })
    }
}

/// Latency, throughput and CPU time of a tenant or a class.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Mean latency from the intended start, in µs.
    pub mean_us: Option<f64>,
    /// Median latency in µs.
    pub p50_us: Option<f64>,
    /// 99th percentile in µs.
    pub p99_us: Option<f64>,
    /// 99.9th percentile in µs.
    pub p999_us: Option<f64>,
    /// Greatest latency in µs.
    pub max_us: Option<f64>,
    /// Answered requests per second.
    pub requests_per_s: Option<f64>,
    /// Batch work done per second, in `work_unit`.
    pub work_per_s: Option<f64>,
    /// The unit of `work_per_s`.
    pub work_unit: Option<String>,
    /// CPU time as a share of the whole host, 0 to 1.
    pub cpu_share: f64,
    /// CPU time by thread program, as a share of the whole host, for a tenant of thread programs; without
    /// that of processes that threads start. Empty for a VM, where the guest's threads are not seen.
    #[serde(default)]
    pub programs: BTreeMap<String, f64>,
    /// Answered requests.
    pub requests: u64,
    /// Requests that failed or were never answered.
    pub errors: u64,
    /// The number of seconds in all windows in which the 99th percentile of the requests due in that second
    /// missed the tenant's objective; `null` where the tenant has none, or that was not looked at.
    #[serde(default)]
    pub late_seconds: Option<u64>,
    /// What the scheduler did to the tenant's threads; `null` unless that was recorded.
    #[serde(default)]
    pub scheduling: Option<SchedulingFigures>,
    /// What the guest of a VM did, on the simulator; else `null`.
    #[serde(default)]
    pub guest: Option<GuestFigures>,
}

/// What the guest of a VM did, or of all VMs of a class together.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct GuestFigures {
    /// How often the guest's scheduler switched, to and from idling too, per second: what UFO calls
    /// scheduling frequency.
    pub switches_per_s: f64,
    /// CPU time as the guest counts it, in CPUs: without idling, polling and waiting for the host.
    pub used: f64,
    /// VM exits per second.
    pub exits_per_s: f64,
    /// How often the host switched to one of the vCPUs, per second.
    pub host_switches_per_s: f64,
    /// How many of the guest's threads waited for a vCPU, in the mean: seconds of scheduling delay in each
    /// second.
    pub waiting: f64,
    /// How many of the vCPUs waited for a CPU of the host, in the mean.
    pub steal: f64,
    /// CPU time of the vCPUs' threads, in CPUs.
    pub vcpus: f64,
    /// CPU time of the emulator threads, in CPUs.
    pub emulators: f64,
}

/// What the scheduler did to threads.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SchedulingFigures {
    /// Mean run delay, the time for which a thread is ready before it runs, in µs; `null` where no thread
    /// became ready.
    pub run_delay_mean_us: Option<f64>,
    /// Median run delay, in µs.
    pub run_delay_p50_us: Option<f64>,
    /// 99th percentile of the run delay, in µs.
    pub run_delay_p99_us: Option<f64>,
    /// Greatest run delay, in µs.
    pub run_delay_max_us: Option<f64>,
    /// How often a thread got a CPU, per second.
    pub switches_per_s: f64,
    /// How often a thread left a CPU while it was ready, per second.
    pub preemptions_per_s: f64,
    /// How often a thread got another CPU than the time before, per second.
    pub migrations_per_s: f64,
    /// How often a thread was woken, per second.
    pub wakeups_per_s: f64,
    /// Mean length of the processes' busy periods, in µs: from when a thread becomes ready while all other
    /// threads of its process are blocked, until all are blocked; `null` where no busy period began.
    #[serde(default)]
    pub busy_period_mean_us: Option<f64>,
    /// Entry `n`: how long, in µs over all windows, some threads of a process were ready while exactly `n` of
    /// its other threads were blocked. Many blocked threads behind few ready ones are interference on the
    /// critical path (DASEC, section 2 and Fig. 3).
    #[serde(default)]
    pub ready_while_blocked_us: Vec<f64>,
}

impl SchedulingFigures {
    /// The part of the time with ready threads in which at least `least` other threads were blocked, 0 to 1;
    /// `None` where no thread was ready.
    pub fn part_with_blocked(&self, least: usize) -> Option<f64> {
        let sum = |times: &[f64]| times.iter().sum::<f64>();
        let all = sum(&self.ready_while_blocked_us);
        let those = self.ready_while_blocked_us.get(least..).unwrap_or_default();
        (all > 0.0).then(|| sum(those) / all)
    }

    /// By a number of blocked threads, from 0: the part of the time with ready threads in which at most that
    /// many other threads were blocked, 0 to 1; it reaches 1 at the greatest number.
    pub fn parts_up_to_blocked(&self) -> Vec<f64> {
        let counts = 1..=self.ready_while_blocked_us.len();
        let more = |least| Some(1.0 - self.part_with_blocked(least)?);
        counts.filter_map(more).collect()
    }
}

/// A side's figures for one tenant or one class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideResult {
    /// The side.
    pub side: String,
    /// The tenant, or `*`.
    pub tenant: String,
    /// The tenant's class.
    pub class: TenantClass,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// A figure that sides are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// [`Figures::mean_us`].
    MeanUs,
    /// [`Figures::p50_us`].
    P50Us,
    /// [`Figures::p99_us`].
    P99Us,
    /// [`Figures::p999_us`].
    P999Us,
    /// [`Figures::requests_per_s`].
    RequestsPerS,
    /// [`Figures::work_per_s`].
    WorkPerS,
    /// [`Figures::cpu_share`].
    CpuShare,
}

impl Metric {
    /// All metrics, in the order in which reports show them.
    pub const ALL: [Metric; 7] = [
        Metric::MeanUs,
        Metric::P50Us,
        Metric::P99Us,
        Metric::P999Us,
        Metric::RequestsPerS,
        Metric::WorkPerS,
        Metric::CpuShare,
    ];

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Metric::MeanUs => "mean_us",
            Metric::P50Us => "p50_us",
            Metric::P99Us => "p99_us",
            Metric::P999Us => "p999_us",
            Metric::RequestsPerS => "requests_per_s",
            Metric::WorkPerS => "work_per_s",
            Metric::CpuShare => "cpu_share",
        }
    }

    /// The metric's value among `figures`, where it was measured.
    pub fn of(self, figures: &Figures) -> Option<f64> {
        match self {
            Metric::MeanUs => figures.mean_us,
            Metric::P50Us => figures.p50_us,
            Metric::P99Us => figures.p99_us,
            Metric::P999Us => figures.p999_us,
            Metric::RequestsPerS => figures.requests_per_s,
            Metric::WorkPerS => figures.work_per_s,
            Metric::CpuShare => Some(figures.cpu_share),
        }
    }

    /// Whether a lower value is better; `None` where neither lower nor higher is (CPU share).
    pub fn lower_is_better(self) -> Option<bool> {
        match self {
            Metric::MeanUs | Metric::P50Us | Metric::P99Us | Metric::P999Us => Some(true),
            Metric::RequestsPerS | Metric::WorkPerS => Some(false),
            Metric::CpuShare => None,
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One metric of one tenant or class: a side against the baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The tenant, or `*`.
    pub tenant: String,
    /// The tenant's class.
    pub class: TenantClass,
    /// The metric.
    pub metric: Metric,
    /// The side compared with.
    pub baseline: String,
    /// The side compared.
    pub side: String,
    /// The side's figure over the baseline's, each pooled over all pairs; 1 is no difference.
    pub ratio: f64,
    /// Lower end of the ratio's interval; `null` with fewer than two pairs.
    pub ci_low: Option<f64>,
    /// Upper end of the ratio's interval.
    pub ci_high: Option<f64>,
    /// Pairs in which both sides had a value.
    pub pairs: u32,
}

impl Comparison {
    /// Whether the interval excludes "no difference"; `None` without an interval.
    pub fn significant(&self) -> Option<bool> {
        Some(!(self.ci_low? <= 1.0 && 1.0 <= self.ci_high?))
    }
}

/// The agent's own consumption.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AgentCost {
    /// CPU time in percent of one CPU, within the measured windows.
    pub cpu_percent: f64,
    /// Peak resident memory in bytes.
    pub rss_bytes: u64,
}

/// The host during one side's windows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideSummary {
    /// The side.
    pub side: String,
    /// CPU time not idle, in percent of all CPUs.
    pub busy_percent: f64,
    /// CPU time that the hypervisor below took, in percent of all CPUs.
    pub steal_percent: f64,
    /// The number of CPUs that were busy for at most 2 % of the window; the mean over the side's runs.
    #[serde(default)]
    pub idle_cpus: f64,
    /// How often the host's CPUs switched, to and from idling too, per second; `null` where that is not
    /// known.
    #[serde(default)]
    pub switches_per_s: Option<f64>,
    /// CPUs that tenants had for themselves, emulators' CPUs included, in the mean; `null` where no tenant
    /// has CPUs of its own.
    #[serde(default)]
    pub held_cpus: Option<f64>,
    /// The agent's cost, where the side had one.
    pub agent: Option<AgentCost>,
}

/// One side of one pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The pair, from 0.
    pub pair: u32,
    /// The side's place within the pair, from 0.
    pub position: u32,
    /// The side.
    pub side: String,
    /// Seed of the pair's arrivals.
    pub seed: u64,
    /// CPU time not idle in the window, in percent of all CPUs.
    pub busy_percent: f64,
    /// CPU time that the hypervisor below took, in percent of all CPUs.
    pub steal_percent: f64,
    /// The number of CPUs that were busy for at most 2 % of the window.
    #[serde(default)]
    pub idle_cpus: u32,
    /// How often the host's CPUs switched, to and from idling too, per second; `null` where that is not
    /// known.
    #[serde(default)]
    pub switches_per_s: Option<f64>,
    /// CPUs that tenants had for themselves, emulators' CPUs included, in the mean; `null` where no tenant
    /// has CPUs of its own.
    #[serde(default)]
    pub held_cpus: Option<f64>,
    /// Pauses in which the machine below stopped all CPUs; `null` where that could not be watched.
    pub pauses: Option<Pauses>,
    /// Figures by tenant, then by class (tenant `*`).
    pub tenants: Vec<TenantRun>,
    /// The agent's cost, where the side had one.
    pub agent: Option<AgentCost>,
}

/// Pauses of the machine below: every CPU stood still at once for 5 ms or more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Pauses {
    /// The number of pauses.
    pub count: u32,
    /// The length of all pauses together, in ms.
    pub total_ms: f64,
    /// Requests due within 100 ms of a pause, which latencies leave out.
    pub requests_left_out: u64,
}

impl Pauses {
    /// The pauses of one window; `None` where they could not be watched.
    pub(crate) fn of(stillness: &Stillness) -> Option<Pauses> {
        stillness.unwatched.is_none().then(|| Pauses {
            count: stillness.count,
            total_ms: stillness.still_ns as f64 / 1e6,
            requests_left_out: stillness.left_out,
        })
    }
}

/// One tenant's or class's figures in one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantRun {
    /// The tenant, or `*`.
    pub tenant: String,
    /// The tenant's class.
    pub class: TenantClass,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Latency by percentile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencyCurve {
    /// The side.
    pub side: String,
    /// The tenant, or `*` for all latency tenants pooled.
    pub tenant: String,
    /// Quantile (0 to 1, rising) and the latency there in µs.
    pub points: Vec<(f64, f64)>,
}

/// What the agent of one run decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentLog {
    /// The pair, from 0.
    pub pair: u32,
    /// The side.
    pub side: String,
    /// Length of a decision period in ms.
    pub period_ms: f64,
    /// Changes by period and tenant, oldest first; only as far back as the agent remembers.
    pub changes: Vec<ChangeCount>,
    /// The settings of each thread that was changed, over time.
    pub threads: Vec<ThreadTrack>,
    /// Ready time by the tenant that waited and by the tenant or other cause that made it wait, as far as the
    /// agent can see it.
    pub waits: Vec<WaitCause>,
    /// The effect of the agent's actions as the agent measured it; empty: it did not measure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<Effect>,
}

/// How often a rule changed a tenant's threads in one period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeCount {
    /// When, in ms since the start of this side's warm-up.
    pub at_ms: u64,
    /// The tenant.
    pub tenant: String,
    /// The rule's stable name.
    pub rule: String,
    /// The number of changes.
    pub count: u64,
}

/// One thread's planned settings over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadTrack {
    /// The thread's tenant.
    pub tenant: String,
    /// The kernel's thread id.
    pub tid: u32,
    /// The thread's name.
    pub name: String,
    /// A point for each period in which something changed, in the order of time.
    pub points: Vec<TrackPoint>,
}

/// A thread's planned settings from one moment on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TrackPoint {
    /// When, in ms since the start of this side's warm-up.
    pub at_ms: u64,
    /// Rescheduling latency in µs.
    pub latency_us: Option<f64>,
    /// Weight in the kernel's scale (nice 0 is 1024).
    pub weight: Option<f64>,
}

/// Ready time of one tenant that one cause was responsible for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitCause {
    /// The tenant that waited.
    pub tenant: String,
    /// What had the CPU: a tenant's name, or `own`, `host`, `bandwidth`, `steal`, `unknown`.
    pub cause: String,
    /// Ready time in ms, over the time that the agent remembers.
    pub ready_ms: f64,
}
