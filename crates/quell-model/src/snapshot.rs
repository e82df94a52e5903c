//! What was seen in one period: the message from *observe* to *decide*.
//!
//! Whatever the source cannot see is `None`, never zero: `/proc` has no wakers, and a policy that
//! took "not seen" for "none" would decide on invented facts.

use crate::config::TenantSpec;
use crate::{CgroupPath, CpuId, CpuSet, Nice, Pid, TenantName, ThreadId, Topology};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What was seen of the host and its tenants in one period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Counts periods from 0 since observation began.
    pub seq: u64,
    /// CLOCK_MONOTONIC at the end of the period, in ns.
    pub time_ns: u64,
    /// How long the period really was, in ns.
    pub period_ns: u64,
    /// Where the figures come from.
    pub source: Source,
    /// The host as a whole.
    pub host: HostSample,
    /// The tenants, ascending by name. A tenant nothing matches is there with no threads.
    pub tenants: Vec<TenantSample>,
}

impl Snapshot {
    /// The tenant of that name.
    pub fn tenant(&self, name: &TenantName) -> Option<&TenantSample> {
        let at = self.tenants.binary_search_by(|it| it.name.cmp(name));
        at.ok().map(|at| &self.tenants[at])
    }
}

impl TenantSample {
    /// The tenant's thread of that id; its threads are sorted by it.
    pub fn thread(&self, id: ThreadId) -> Option<&ThreadSample> {
        let at = self.threads.binary_search_by_key(&id, |it| it.id);
        at.ok().map(|at| &self.threads[at])
    }
}

/// Where a snapshot's figures come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The BPF monitor: everything is seen.
    Bpf,
    /// Sampling `/proc`: run and ready time only; the rest is `None`.
    Procfs,
    /// A simulated machine.
    Simulator,
}

/// The host's CPUs in one period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostSample {
    /// Online CPUs and what they share. Follows hotplug.
    pub topology: Arc<Topology>,
    /// One per online CPU, ascending.
    pub cpus: Vec<CpuSample>,
}

/// One CPU in one period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuSample {
    /// Which CPU.
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
    /// What the configuration says of it.
    pub spec: Arc<TenantSpec>,
    /// The cgroup that holds exactly this tenant's threads and has a CPU controller, if any:
    /// the place where a tenant's weight can be set without touching another's.
    pub cgroup: Option<CgroupPath>,
    /// The CPUs that the bandwidth limit (`cpu.max`) of that cgroup, or the least of those above it, allows it; looked at once
    /// a limit has stopped it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_cpus: Option<f64>,
    /// The tenant, earlier in the configuration, that has what this one, which has no process, would have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<TenantName>,
    /// Its threads, ascending by id.
    pub threads: Vec<ThreadSample>,
    /// What its threads did in the period that ended within it, and so are not in `threads`; where seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// Who made its threads wait, and how much.
    pub waits: Option<WaitBreakdown>,
    /// The paper's occasion metric (DASEC, Fig. 3).
    pub occasions: Option<Occasions>,
    /// What its guest says, where it is a virtual machine that is asked and has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestSample>,
}

/// Threads of a tenant that ended within a period, from its start (or their first moment in it) to their end, summed; and what its own cgroup was
/// charged for that no thread is known to have run, about once a second.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ended {
    /// How many.
    pub threads: u64,
    /// Time on a CPU, in ns; with that of threads which are not counted, as they were moved into the cgroup and ended before they were seen.
    pub run_ns: u64,
    /// Time ready and not served.
    pub ready: ReadyTime,
    /// Time for which a bandwidth limit stopped them, in ns.
    pub throttled_ns: u64,
}

/// What a virtual machine's guest said last. It is not to be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSample {
    /// CLOCK_MONOTONIC when it answered, in ns.
    pub at_ns: u64,
    /// CPU time since it booted, of all its CPUs, in ns.
    pub used_ns: u64,
    /// How often its scheduler switched since it booted.
    pub switches: u64,
    /// How many virtual CPUs it has online.
    pub online: u32,
}

/// One thread in one period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadSample {
    /// The thread.
    pub id: ThreadId,
    /// Its process.
    pub process: Pid,
    /// Its name (`comm`).
    pub name: Arc<str>,
    /// What it does for its tenant.
    pub role: ThreadRole,
    /// The thread that created it, where seen. A child inherits its creator's settings, so what
    /// a new thread has may be what Quell gave its creator and not what its owner chose.
    pub forked_by: Option<ThreadId>,
    /// At the period's end.
    pub state: ThreadState,
    /// The CPU it is on, or was on last.
    pub cpu: CpuId,
    /// Time on a CPU within the period, in ns.
    pub run_ns: u64,
    /// Time ready and not served within the period.
    pub ready: Option<ReadyTime>,
    /// Time within the period for which a CPU bandwidth limit (`cpu.max`) of its cgroup stopped it, in ns; where seen. The
    /// kernel tells when such a stop ends: until then the time counts as ready, and later ready time counts as that
    /// much less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_ns: Option<u64>,
    /// Times it lost its CPU while it still wanted to run.
    pub preemptions: Option<u64>,
    /// Times it was woken.
    pub wakeups: Option<u64>,
    /// Who woke it, most frequent first; bounded, so rare wakers may be missing.
    pub wakers: Option<Vec<Waker>>,
    /// Context switches to it.
    pub switches: Option<u64>,
    /// Times it changed CPU.
    pub migrations: Option<u64>,
    /// Its settings, as last seen.
    pub settings: ThreadSettings,
}

/// What a thread does for its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadRole {
    /// A thread of an ordinary process.
    Ordinary,
    /// Runs the virtual CPU of this number (QEMU names it `CPU n/KVM` or `CPU n/TCG`).
    Vcpu(u32),
    /// QEMU's main loop and its short-lived workers.
    Emulator,
    /// A QEMU iothread, or a vhost worker.
    Io,
}

/// What a thread was doing at the period's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadState {
    /// On a CPU.
    Running,
    /// Wants a CPU and has none.
    Ready,
    /// Sleeps: waits for an event, a lock, a timer.
    Blocked,
    /// A signal (SIGSTOP, Ctrl-Z) or a debugger stopped it.
    Stopped,
    /// Its cgroup is frozen.
    Frozen,
}

/// Ready time: from when a thread wanted a CPU until it got one, but for what a bandwidth limit stopped it.
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

/// A thread's settings that Quell can change, as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadSettings {
    /// Its scheduling class. Only [`SchedClass::Fair`] threads are managed.
    pub class: SchedClass,
    /// Nice value.
    pub nice: Nice,
    /// EEVDF slice in ns, where the kernel tells (Linux >= 6.12).
    pub slice_ns: Option<u64>,
    /// CPUs it may use.
    pub affinity: Arc<CpuSet>,
}

/// Scheduling class, as far as Quell distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedClass {
    /// SCHED_OTHER and SCHED_BATCH: weighted by nice.
    Fair,
    /// SCHED_IDLE.
    Idle,
    /// SCHED_FIFO, SCHED_RR or SCHED_DEADLINE: its owner has decided; left alone.
    RealTime,
    /// SCHED_EXT.
    Ext,
}

/// A tenant's waiting by who had the CPU meanwhile, in ns of the period, summed over its threads. The sum is their ready and
/// their throttled time, those that ended included.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WaitBreakdown {
    /// Threads of the same tenant.
    pub own_ns: u64,
    /// Threads of each other tenant; tenants that caused none are left out. Ascending by name.
    pub tenants: Vec<(TenantName, u64)>,
    /// Threads of no tenant, the kernel's own among them.
    pub host_ns: u64,
    /// A CPU bandwidth limit (`cpu.max`) of the waiting thread's cgroup.
    pub bandwidth_ns: u64,
    /// The hypervisor below this host.
    pub steal_ns: u64,
    /// Time for which no cause was recorded.
    pub unknown_ns: u64,
}

impl WaitBreakdown {
    /// Time ready and not served, in ns: all but what a bandwidth limit stopped.
    pub fn ready_ns(&self) -> u64 {
        self.total_ns() - self.bandwidth_ns
    }

    /// All time waiting, in ns.
    pub fn total_ns(&self) -> u64 {
        self.own_ns
            + self.tenants.iter().map(|(_, ns)| ns).sum::<u64>()
            + self.host_ns
            + self.bandwidth_ns
            + self.steal_ns
            + self.unknown_ns
    }
}

/// For the moments when some of a tenant's threads were ready and unserved: how many others waited
/// (were blocked). Many waiting behind few ready ones means interference on the critical path
/// (DASEC, section 2 and Fig. 3).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Occasions {
    /// Entry `n`: ns of the period in which at least one thread was ready and exactly `n` of the
    /// tenant's others were blocked (the last entry also counts more); trailing zeros left out.
    pub by_blocked_ns: Vec<u64>,
    /// ns of the period in which at least one of its threads was ready or ran.
    #[serde(default)]
    pub busy_ns: u64,
    /// Busy periods of the tenant that began in the period: from when a thread becomes ready while none of its others is
    /// ready or runs, until all are blocked again. Where requests come one at a time, their length is the response
    /// time as the kernel sees it.
    #[serde(default)]
    pub busy_periods: u64,
}

impl Occasions {
    /// Adds another period's, or another process's.
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
