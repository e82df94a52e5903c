//! The observations of one period: the message from *observe* to *decide*.
//!
//! A figure that the source cannot see is `None`, never zero: `/proc` has no wakers, and a policy
//! that took "not seen" for "none" would decide on invented facts.

use crate::config::{Selectors, TenantSpec};
use crate::{CgroupPath, CpuId, CpuSet, Nice, Pid, TenantName, ThreadId, Topology};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the source of a tenant says of it, by label ([`crate::config::Each::labels`]).
pub type Labels = BTreeMap<String, String>;

fn no_labels(labels: &Arc<Labels>) -> bool {
    labels.is_empty()
}

/// The observations of the host and its tenants in one period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The period's number, from 0 since observation began.
    pub seq: u64,
    /// CLOCK_MONOTONIC at the end of the period, in ns.
    pub time_ns: u64,
    /// The period's measured length, in ns.
    pub period_ns: u64,
    /// The source of the figures.
    pub source: Source,
    /// The host as a whole.
    pub host: HostSample,
    /// The tenants, ascending by name. A tenant without a matching process is in the list with no threads.
    pub tenants: Vec<TenantSample>,
}

impl Snapshot {
    /// The tenant of this name.
    pub fn tenant(&self, name: &TenantName) -> Option<&TenantSample> {
        let at = self.tenants.binary_search_by(|it| it.name.cmp(name));
        at.ok().map(|at| &self.tenants[at])
    }

    /// The tenant of this name, which is likely the one of this number: plans list the tenants of their
    /// snapshot in its order.
    pub fn tenant_near(&self, number: usize, name: &TenantName) -> Option<&TenantSample> {
        let at = place_near(&self.tenants, number, |it| it.name.cmp(name));
        at.ok().map(|at| &self.tenants[at])
    }
}

impl TenantSample {
    /// The tenant's thread of this id, found by binary search.
    pub fn thread(&self, id: ThreadId) -> Option<&ThreadSample> {
        let at = self.threads.binary_search_by_key(&id, |it| it.id);
        at.ok().map(|at| &self.threads[at])
    }
}

/// The place of an entry of an ascending list, or the place where it belongs, as a binary search finds it.
/// `likely` is looked at first: lists of the same tenants are gone through together.
///
/// # Errors
/// The entry is not in the list: the place where it belongs.
pub fn place_near<T>(
    list: &[T],
    likely: usize,
    order: impl Fn(&T) -> Ordering,
) -> Result<usize, usize> {
    match list.get(likely).map(&order) {
        Some(Ordering::Equal) => Ok(likely),
        _ => list.binary_search_by(order),
    }
}

/// The source of a snapshot's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The BPF monitor: all figures are seen.
    Bpf,
    /// Sampling of `/proc`: run and ready time only; the other figures are `None`.
    Procfs,
    /// A simulated machine.
    Simulator,
}

/// The host's CPUs in one period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostSample {
    /// Online CPUs and what they share. Follows hotplug.
    pub topology: Arc<Topology>,
    /// One sample for each online CPU, ascending.
    pub cpus: Vec<CpuSample>,
}

/// One CPU in one period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuSample {
    /// The CPU's number.
    pub cpu: CpuId,
    /// Time not idle, in ns, where seen.
    pub busy_ns: Option<u64>,
    /// Time the hypervisor took while this CPU had work, in ns, where seen.
    pub steal_ns: Option<u64>,
}

/// One tenant in one period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantSample {
    /// The tenant's name; `spec.name` with its instance's number where the tenant has a `count`.
    pub name: TenantName,
    /// The service that the tenant is owed by the configuration.
    pub spec: Arc<TenantSpec>,
    /// The selectors that found the tenant's processes; empty where the tenant was not searched for, as in a
    /// simulation.
    #[serde(default)]
    pub selectors: Arc<Selectors>,
    /// Of a tenant that a rule found: what its source says of it.
    #[serde(default, skip_serializing_if = "no_labels")]
    pub labels: Arc<Labels>,
    /// The cgroup that holds exactly this tenant's threads and has a CPU controller, if any:
    /// the place where a tenant's weight can be set without touching another's.
    pub cgroup: Option<CgroupPath>,
    /// The CPUs that the bandwidth limit (`cpu.max`) of that cgroup, or the lowest limit of its
    /// ancestors, allows the tenant; read once a limit has throttled the tenant, `None` before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_cpus: Option<f64>,
    /// The tenant, earlier in the configuration, that has the processes that this tenant's selectors
    /// match too; only where this tenant has no process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<TenantName>,
    /// The tenant's threads, ascending by id.
    pub threads: Vec<ThreadSample>,
    /// The figures of the tenant's threads that ended within the period and so are not in `threads`; where
    /// seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// The causes of its threads' waiting, and how long each made them wait.
    pub waits: Option<WaitBreakdown>,
    /// The paper's occasion metric (DASEC, Fig. 3).
    pub occasions: Option<Occasions>,
    /// The guest's latest answer, where the tenant is a virtual machine that is asked and has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestSample>,
}

/// The sums over a tenant's threads that ended within a period, from its start (or their first
/// moment in it) to their end. Included, about once a second, is the time that the tenant's own
/// cgroup was charged and that no known thread ran.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ended {
    /// The number of threads that ended.
    pub threads: u64,
    /// Time on a CPU, in ns. It includes the time of threads that `threads` does not count, because
    /// they were moved into the cgroup and ended before they were seen.
    pub run_ns: u64,
    /// Time for which the threads were ready and not served.
    pub ready: ReadyTime,
    /// Time for which a bandwidth limit throttled the threads, in ns.
    pub throttled_ns: u64,
}

/// The latest answer of a virtual machine's guest. A guest is not to be trusted, and neither is its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSample {
    /// CLOCK_MONOTONIC when the guest answered, in ns.
    pub at_ns: u64,
    /// CPU time since the guest booted, of all its CPUs, in ns.
    pub used_ns: u64,
    /// The number of context switches by the guest's scheduler since the guest booted.
    pub switches: u64,
    /// How many vCPUs the guest has online.
    pub online: u32,
}

/// One thread in one period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadSample {
    /// The thread's identity.
    pub id: ThreadId,
    /// The thread's process.
    pub process: Pid,
    /// The thread's name (`comm`).
    pub name: Arc<str>,
    /// The thread's function in its tenant.
    pub role: ThreadRole,
    /// The thread that created this thread, where seen. A child inherits its creator's settings, so what
    /// a new thread has may be what Quell gave its creator and not what its owner chose.
    pub forked_by: Option<ThreadId>,
    /// The thread's state at the period's end.
    pub state: ThreadState,
    /// The CPU on which the thread runs, or ran last.
    pub cpu: CpuId,
    /// Time on a CPU within the period, in ns.
    pub run_ns: u64,
    /// Time for which the thread was ready and not served within the period.
    pub ready: Option<ReadyTime>,
    /// Time within the period for which a CPU bandwidth limit (`cpu.max`) of its cgroup throttled the
    /// thread, in ns; where seen. The kernel reports a throttled interval when it ends: until then the
    /// time counts as ready time, and later ready time is reduced by as much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_ns: Option<u64>,
    /// The number of times the thread lost its CPU while it still wanted to run.
    pub preemptions: Option<u64>,
    /// The number of times the thread was woken.
    pub wakeups: Option<u64>,
    /// The threads that woke this one, most frequent first; bounded, so rare wakers may be missing.
    pub wakers: Option<Vec<Waker>>,
    /// The number of context switches to the thread.
    pub switches: Option<u64>,
    /// The number of times the thread changed its CPU.
    pub migrations: Option<u64>,
    /// The thread's settings, as last seen.
    pub settings: ThreadSettings,
}

/// A thread's function in its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadRole {
    /// A thread of an ordinary process.
    Ordinary,
    /// The thread of the vCPU of this number (QEMU names it `CPU n/KVM` or `CPU n/TCG`).
    Vcpu(u32),
    /// An emulator thread: QEMU's main loop or one of its short-lived workers.
    Emulator,
    /// A QEMU iothread, or a vhost worker.
    Io,
}

/// A thread's state at the period's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadState {
    /// The thread runs on a CPU.
    Running,
    /// The thread is runnable and does not run.
    Ready,
    /// The thread sleeps: it waits for an event, a lock or a timer.
    Blocked,
    /// A signal (SIGSTOP, Ctrl-Z) or a debugger stopped the thread.
    Stopped,
    /// The thread's cgroup is frozen.
    Frozen,
}

/// Ready time (run delay): from when a thread becomes runnable until it runs, without the time for
/// which a bandwidth limit throttles it.
///
/// A wait counts in the period in which it ended; one still going on at the period's end adds the
/// part of it within this period to `sum_ns` (and not to `count` or `histogram`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReadyTime {
    /// Time ready within the period, in ns.
    pub sum_ns: u64,
    /// Waits that ended in the period, where seen.
    pub count: Option<u64>,
    /// Waits that ended in the period by length: entry `i` counts those of `2^i` to `2^(i+1) - 1`
    /// ns (entry 0 also those of 0 ns); trailing zeros are left out. Where seen.
    pub histogram: Option<Vec<u32>>,
}

impl ReadyTime {
    /// How many of the ended waits were certainly longer than `limit_ns`: waits in the bucket that
    /// `limit_ns` falls into are not counted. `None` where no histogram is seen.
    pub fn longer_than(&self, limit_ns: u64) -> Option<u64> {
        let histogram = self.histogram.as_ref()?;
        let bucket = limit_ns.max(1).ilog2() as usize;
        Some(
            histogram
                .iter()
                .skip(bucket + 1)
                .map(|&n| u64::from(n))
                .sum(),
        )
    }
}

/// A thread that woke another, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waker {
    /// The waking thread. Wakeups by interrupts have none and are not listed.
    pub id: ThreadId,
    /// Wakeups in the period.
    pub count: u64,
}

/// A thread's settings that Quell can change, as they are on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadSettings {
    /// The thread's scheduling class. Only [`SchedClass::Fair`] threads are managed.
    pub class: SchedClass,
    /// The nice value.
    pub nice: Nice,
    /// The EEVDF slice in ns, where the kernel reports it (Linux >= 6.12).
    pub slice_ns: Option<u64>,
    /// The CPUs that the thread may run on.
    pub affinity: Arc<CpuSet>,
}

/// A scheduling class, as far as Quell distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedClass {
    /// SCHED_OTHER and SCHED_BATCH: weighted by nice.
    Fair,
    /// SCHED_IDLE: the lowest weight.
    Idle,
    /// SCHED_FIFO, SCHED_RR or SCHED_DEADLINE: the thread's owner has decided, so Quell leaves it alone.
    RealTime,
    /// SCHED_EXT: scheduled by a sched_ext scheduler.
    Ext,
}

/// A tenant's waiting time by its cause, in ns of the period, summed over its threads. The sum of all
/// causes is the threads' ready time and throttled time, those that ended in the period included.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WaitBreakdown {
    /// Threads of the same tenant ran.
    pub own_ns: u64,
    /// Threads of another tenant ran, for each of those that had the CPU longest; tenants that caused no wait
    /// are left out. Ascending by name.
    pub tenants: Vec<(TenantName, u64)>,
    /// Threads of tenants ran that are not in `tenants`.
    #[serde(default)]
    pub others_ns: u64,
    /// Threads of no tenant ran, the kernel's own among them.
    pub host_ns: u64,
    /// A CPU bandwidth limit (`cpu.max`) throttled the waiting thread's cgroup.
    pub bandwidth_ns: u64,
    /// The hypervisor below this host had the CPU.
    pub steal_ns: u64,
    /// Time for which no cause was recorded.
    pub unknown_ns: u64,
}

impl WaitBreakdown {
    /// Time ready and not served, in ns: all waiting but that under a bandwidth limit.
    pub fn ready_ns(&self) -> u64 {
        self.total_ns() - self.bandwidth_ns
    }

    /// The time for which other tenants had the CPU, in ns.
    pub fn tenants_ns(&self) -> u64 {
        self.tenants.iter().map(|(_, ns)| ns).sum::<u64>() + self.others_ns
    }

    /// Lists at most this many tenants, those that had the CPU longest.
    pub fn list_at_most(&mut self, most: usize) {
        if self.tenants.len() <= most {
            return;
        }
        self.tenants
            .sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let rest = self.tenants.drain(most..);
        self.others_ns += rest.map(|it| it.1).sum::<u64>();
        self.tenants.sort_unstable();
    }

    /// All waiting time, in ns.
    pub fn total_ns(&self) -> u64 {
        self.own_ns
            + self.tenants_ns()
            + self.host_ns
            + self.bandwidth_ns
            + self.steal_ns
            + self.unknown_ns
    }
}

/// The occasion metric: while some of a tenant's threads were ready and not served, how many of its
/// other threads were blocked. Many blocked threads behind few ready ones mean interference on the
/// critical path (DASEC, section 2 and Fig. 3).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Occasions {
    /// Entry `n`: ns of the period in which at least one thread was ready and exactly `n` of the
    /// tenant's others were blocked (the last entry also counts more); trailing zeros left out.
    pub by_blocked_ns: Vec<u64>,
    /// ns of the period in which at least one of its threads was ready or ran.
    #[serde(default)]
    pub busy_ns: u64,
    /// Busy periods of the tenant that began in the period. A busy period lasts from when a thread
    /// becomes ready while no other thread of the tenant is ready or runs, until all are blocked again.
    /// Where requests come one at a time, its length is the response time as the kernel sees it.
    #[serde(default)]
    pub busy_periods: u64,
}

impl Occasions {
    /// Adds the occasions of another period or of another process.
    pub fn add(&mut self, other: &Occasions) {
        let most = self.by_blocked_ns.len().max(other.by_blocked_ns.len());
        self.by_blocked_ns.resize(most, 0);
        for (sum, ns) in self.by_blocked_ns.iter_mut().zip(&other.by_blocked_ns) {
            *sum += ns;
        }
        self.busy_ns += other.busy_ns;
        self.busy_periods += other.busy_periods;
    }
}
