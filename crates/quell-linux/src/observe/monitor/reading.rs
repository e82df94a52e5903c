//! What the BPF monitor hands out: cumulative counters per thread, tenant and CPU.
//!
//! Everything counts from the moment a thread (tenant, CPU) came under the monitor and never goes
//! back; a period's figures are the difference of two readings. A thread is followed by its
//! `(slot, generation)`: slots are reused, and each reuse has a new generation, so two readings of
//! the same pair are the same thread and may be subtracted.

use quell_model::{Pid, ThreadId, ThreadState};

/// A tenant as the monitor knows it: 0 to [`TenantIndex::LIMIT`]` - 1`, chosen by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantIndex(pub u16);

impl TenantIndex {
    /// How many tenants the monitor can tell apart.
    pub const LIMIT: u16 = 256;
}

/// Entries of a ready-time histogram: entry `i` counts waits of `2^i` to `2^(i+1) - 1` ns; entry 0
/// also those of 0 ns, the last also longer ones.
pub const WAIT_BUCKETS: usize = 32;
/// Wakers kept per thread.
pub const WAKERS: usize = 6;
/// Entries of the occasion histogram: the last also counts more blocked threads.
pub const OCCASION_BUCKETS: usize = 64;

/// All counters at one moment.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// CLOCK_MONOTONIC of this reading, in ns.
    pub time_ns: u64,
    /// Every thread under the monitor, by slot; those that ended since the last reading are in it
    /// once more with `ended` set and their final counters.
    pub threads: Vec<RawThread>,
    /// Grows whenever others are in `threads` than in the reading before, or some have ended.
    pub membership: u64,
    /// Tenants some process was ever assigned to, ascending.
    pub tenants: Vec<RawTenant>,
    /// Every possible CPU, by number.
    pub cpus: Vec<RawCpu>,
    /// Threads of tenants that found every slot taken and are not monitored (cumulative).
    pub unmonitored: u64,
}

/// One thread's counters.
// In memory as written here: what a sleeping thread is recognised by shares a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct RawThread {
    /// The thread's place in the monitor's table.
    pub slot: u32,
    /// Counts the slot's uses.
    pub generation: u32,
    /// The number of the reading that last found anything changed (wraps): a thread that sleeps on
    /// keeps it, and with it all else.
    pub copied: u32,
    /// The thread.
    pub id: ThreadId,
    /// Its process.
    pub process: Pid,
    /// Its tenant.
    pub tenant: TenantIndex,
    /// It exited, or its process was unassigned: these counters are final.
    pub ended: bool,
    /// What it does. `None` when it has ended, and while it is new and nothing was seen of it yet.
    pub state: Option<ThreadState>,
    /// CLOCK_MONOTONIC since when it is in this state on this CPU, in ns.
    pub since_ns: u64,
    /// Its CPU, or its last.
    pub cpu: u32,
    /// Time on a CPU, the unfinished part up to the reading included, in ns.
    pub run_ns: u64,
    /// Time ready and not served, in ns. Of a wait that goes on all up to the reading counts here: what a limit was of it is
    /// known at its end.
    pub ready_ns: u64,
    /// Time for which a bandwidth limit stopped it, of waits that ended, in ns.
    pub throttled_ns: u64,
    /// Waits that ended.
    pub waits: u64,
    /// Context switches to it.
    pub switches: u64,
    /// Times it lost its CPU while it still wanted to run (`sched_yield` counts too).
    pub preemptions: u64,
    /// Times it went from blocked to ready.
    pub wakeups: u64,
    /// Changes of CPU.
    pub migrations: u64,
    /// Who created it, where seen.
    pub creator: Option<ThreadId>,
    /// Its name (`comm`), zero-padded.
    pub name: [u8; 16],
    /// Nice value, -20 to 19, as of its last switch.
    pub nice: i8,
    /// Scheduling policy (`SCHED_OTHER` = 0, ...).
    pub policy: u8,
    /// How many CPUs it may use, as of its last switch.
    pub allowed_cpus: u16,
    /// The first 64 CPUs it may use: all of them on a host of up to 64 CPUs. On larger hosts a
    /// change of `allowed_cpus` or of this word says that the affinity changed, but a change
    /// beyond CPU 63 that keeps the number is not seen.
    pub affinity_word: u64,
    /// EEVDF slice in ns, `None` before Linux 6.12.
    pub slice_ns: Option<u64>,
    /// Ended waits by length (see [`WAIT_BUCKETS`]); wraps.
    pub wait_histogram: [u32; WAIT_BUCKETS],
    /// Who woke it; unused entries are `None`.
    pub wakers: [Option<RawWaker>; WAKERS],
}

impl RawThread {
    /// Its name as text.
    pub fn name(&self) -> String {
        let length = self
            .name
            .iter()
            .position(|&b| b == 0)
            .unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..length]).into_owned()
    }
}

/// Somebody who woke a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawWaker {
    /// The waking thread.
    pub id: ThreadId,
    /// Wakeups since it entered the table (wraps). A rare waker may have been replaced and come
    /// back, so a smaller count than before means: this many since it came back.
    pub count: u32,
}

/// One tenant's counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawTenant {
    /// The tenant.
    pub tenant: TenantIndex,
    /// Its threads' ready and throttled time by cause (a tenant's number, or one of [`cause`](super::cause)), in ns, waits that go
    /// on included; ascending by cause, without those of 0 ns. Threads are read before this and waits end meanwhile, so the sum may be
    /// a little more than theirs.
    pub by_cause: Vec<(u16, u64)>,
    /// Entry `n`: ns in which at least one thread was ready and exactly `n` others were blocked
    /// (the last entry also more), the time up to the reading included.
    pub occasions_ns: [u64; OCCASION_BUCKETS],
    /// ns in which at least one thread was ready or ran, the time up to the reading included.
    pub busy_ns: u64,
    /// Busy periods that have begun: times when a thread became ready while no other was ready or ran.
    pub busy_periods: u64,
    /// Threads ready at the reading.
    pub ready: u32,
    /// Threads blocked at the reading.
    pub blocked: u32,
}

impl RawTenant {
    /// What one cause has of its waiting, in ns.
    pub fn waited_for(&self, cause: usize) -> u64 {
        let at = self
            .by_cause
            .binary_search_by_key(&cause, |&(by, _)| usize::from(by));
        at.map_or(0, |at| self.by_cause[at].1)
    }

    /// Over all causes.
    pub fn waited_ns(&self) -> u64 {
        self.by_cause.iter().map(|(_, ns)| ns).sum()
    }
}

/// One CPU's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawCpu {
    /// Its number.
    pub cpu: u32,
    /// Time not idle since the monitor saw its first switch, in ns; `None` before that.
    pub busy_ns: Option<u64>,
    /// Time taken by the hypervisor since boot as of the CPU's last switch, in ns, where the
    /// kernel tells.
    pub steal_ns: Option<u64>,
}

/// A process's life, as far as it concerns who belongs to which tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEvent {
    /// Some process of the host, in a tenant or not, runs a new program, or came to another cgroup.
    Changed {
        /// Which.
        process: Pid,
        /// Its tenant, if it has one; it keeps it until it is assigned to another.
        tenant: Option<TenantIndex>,
    },
    /// A process of a tenant forked; the child is in the tenant already.
    Forked {
        /// The child.
        process: Pid,
        /// The process that forked it.
        parent: Pid,
        /// Their tenant.
        tenant: TenantIndex,
    },
    /// The last thread of a tenant's process exited; it is unassigned already.
    Exited {
        /// Which.
        process: Pid,
        /// Its tenant.
        tenant: TenantIndex,
    },
}

/// Process events since the last call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessEvents {
    /// In the order they happened.
    pub events: Vec<ProcessEvent>,
    /// Some were lost since the last call: whoever matches processes should rescan.
    pub lost: bool,
}
