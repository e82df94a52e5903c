//! The readings of the BPF monitor: cumulative counters per thread, tenant and CPU.
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
    /// The number of tenants that the monitor can tell apart.
    pub const LIMIT: u16 = 1024;
}

/// Entries of a ready-time histogram: entry `i` counts waits of `2^i` to `2^(i+1) - 1` ns; entry 0
/// also those of 0 ns, the last also longer ones.
pub const WAIT_BUCKETS: usize = 32;
/// The number of wakers kept per thread.
pub const WAKERS: usize = 6;
/// Entries of the occasion histogram: the last also counts more blocked threads.
pub const OCCASION_BUCKETS: usize = 64;

/// All counters of the monitor at one moment.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// CLOCK_MONOTONIC of this reading, in ns.
    pub time_ns: u64,
    /// Every thread under the monitor, by slot; those that ended since the last reading are in it
    /// once more with `ended` set and their final counters.
    pub threads: Vec<RawThread>,
    /// The indices in `threads` of those that did not sleep on since the reading before, ascending.
    pub changed: Vec<u32>,
    /// A number that grows whenever `threads` has other threads than in the reading before, or some have
    /// ended.
    pub membership: u64,
    /// Tenants to which some process was ever assigned, ascending.
    pub tenants: Vec<RawTenant>,
    /// Every possible CPU, by number.
    pub cpus: Vec<RawCpu>,
    /// Threads of tenants that found every slot taken and are not monitored (cumulative).
    pub unmonitored: u64,
}

/// The counters of one thread.
// In memory as written here: the fields that identify a sleeping thread share a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct RawThread {
    /// The thread's index in the monitor's table.
    pub slot: u32,
    /// A number that grows with each use of the slot.
    pub generation: u32,
    /// The number of the reading that last found any change (wraps): a thread that sleeps on keeps it, and
    /// with it all other fields.
    pub copied: u32,
    /// The identity of the thread.
    pub id: ThreadId,
    /// The process of the thread.
    pub process: Pid,
    /// The tenant of the thread.
    pub tenant: TenantIndex,
    /// Whether the thread exited, or its process was unassigned: these counters are final.
    pub ended: bool,
    /// The thread's state. `None` when it has ended, and while it is new and no event of it was seen yet.
    pub state: Option<ThreadState>,
    /// CLOCK_MONOTONIC since when the thread is in this state on this CPU, in ns.
    pub since_ns: u64,
    /// The CPU of the thread, or its last.
    pub cpu: u32,
    /// Time on a CPU, the unfinished part up to the reading included, in ns.
    pub run_ns: u64,
    /// Time ready and not served, in ns. All of a wait that goes on counts here up to the reading: how much
    /// of it is a limit's is known only at its end.
    pub ready_ns: u64,
    /// Time for which a bandwidth limit throttled the thread, of waits that ended, in ns.
    pub throttled_ns: u64,
    /// The number of waits that ended.
    pub waits: u64,
    /// The number of context switches to the thread.
    pub switches: u64,
    /// The number of times it lost its CPU while it still wanted to run (`sched_yield` counts too).
    pub preemptions: u64,
    /// The number of times it went from blocked to ready.
    pub wakeups: u64,
    /// The number of times it changed its CPU.
    pub migrations: u64,
    /// The thread that created it, where this was seen.
    pub creator: Option<ThreadId>,
    /// The thread's name (`comm`), zero-padded.
    pub name: [u8; 16],
    /// Nice value, -20 to 19, as of its last switch.
    pub nice: i8,
    /// The scheduling policy (`SCHED_OTHER` = 0, ...).
    pub policy: u8,
    /// The number of CPUs that it may use, as of its last switch.
    pub allowed_cpus: u16,
    /// The first 64 CPUs that the thread may use: all of them on a host of up to 64 CPUs. On larger hosts a
    /// change of `allowed_cpus` or of this word shows that the affinity changed, but a change beyond CPU 63
    /// that keeps the number is not seen.
    pub affinity_word: u64,
    /// EEVDF slice in ns, `None` before Linux 6.12.
    pub slice_ns: Option<u64>,
    /// The number of ended waits by length (see [`WAIT_BUCKETS`]); wraps.
    pub wait_histogram: [u32; WAIT_BUCKETS],
    /// The threads that woke it; unused entries are `None`.
    pub wakers: [Option<RawWaker>; WAKERS],
}

impl RawThread {
    /// The thread's name as text.
    pub fn name(&self) -> String {
        let length = self
            .name
            .iter()
            .position(|&b| b == 0)
            .unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..length]).into_owned()
    }
}

/// A thread that woke another thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawWaker {
    /// The identity of the waking thread.
    pub id: ThreadId,
    /// The number of its wakeups since it entered the table (wraps). A rare waker may have been replaced and
    /// come back, so a smaller count than before is the number since it came back.
    pub count: u32,
}

/// The counters of one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawTenant {
    /// The tenant's number.
    pub tenant: TenantIndex,
    /// Ready and throttled time of the tenant's threads by cause (a tenant's number, or a constant of
    /// [`cause`](super::cause)), in ns, of waits that ended; ascending by cause, without causes of 0 ns.
    /// Threads are read before this and waits end meanwhile, so the sum with `going_on` may be a little more
    /// than theirs.
    pub ended: Vec<(u16, u64)>,
    /// The causes whose time in `ended` changed since the reading before, ascending.
    pub changed: Vec<u16>,
    /// The same of waits that go on, up to the reading: ready time by cause, in ns, ascending by cause.
    /// Causes that the kernel tells only at the end of a wait, limits and stolen time, are not included.
    pub going_on: Vec<(u16, u64)>,
    /// Entry `n`: ns in which at least one thread was ready and exactly `n` others were blocked
    /// (the last entry also more), the time up to the reading included.
    pub occasions_ns: [u64; OCCASION_BUCKETS],
    /// ns in which at least one thread was ready or ran, the time up to the reading included.
    pub busy_ns: u64,
    /// The number of busy periods that have begun: times when a thread became ready while no other was ready
    /// or ran.
    pub busy_periods: u64,
    /// The number of threads that were ready at the reading.
    pub ready: u32,
    /// The number of threads that were blocked at the reading.
    pub blocked: u32,
}

impl RawTenant {
    /// The counters of a tenant of which nothing was read yet.
    pub(crate) fn unread(tenant: TenantIndex) -> RawTenant {
        RawTenant {
            tenant,
            ended: Vec::new(),
            changed: Vec::new(),
            going_on: Vec::new(),
            occasions_ns: [0; OCCASION_BUCKETS],
            busy_ns: 0,
            busy_periods: 0,
            ready: 0,
            blocked: 0,
        }
    }

    /// The times in `ended` that changed since the reading before, ascending by cause.
    pub(crate) fn changed_times(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.changed.iter().filter_map(|cause| {
            let at = self.ended.binary_search_by_key(cause, |it| it.0).ok()?;
            Some(self.ended[at])
        })
    }

    /// The tenant's waiting time of one cause, in ns, waits that go on included.
    pub fn waited_for(&self, cause: usize) -> u64 {
        let of = |list: &[(u16, u64)]| {
            let at = list.binary_search_by_key(&cause, |&(by, _)| usize::from(by));
            at.map_or(0, |at| list[at].1)
        };
        of(&self.ended) + of(&self.going_on)
    }

    /// The tenant's waiting time of all causes, in ns, waits that go on included.
    pub fn waited_ns(&self) -> u64 {
        let all = self.ended.iter().chain(&self.going_on);
        all.map(|(_, ns)| ns).sum()
    }
}

/// The counters of one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawCpu {
    /// The number of the CPU.
    pub cpu: u32,
    /// Time not idle since the monitor saw its first switch, in ns; `None` before that.
    pub busy_ns: Option<u64>,
    /// Time taken by the hypervisor since boot as of the CPU's last switch, in ns, where the
    /// kernel tells.
    pub steal_ns: Option<u64>,
}

/// An event in the life of a process that matters for its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEvent {
    /// A process of the host, in a tenant or not, runs a new program, or came to another cgroup.
    Changed {
        /// The process that changed.
        process: Pid,
        /// The tenant of the process, if it has one; it keeps it until it is assigned to another.
        tenant: Option<TenantIndex>,
    },
    /// A process of a tenant forked; the child is in the tenant already.
    Forked {
        /// The child process.
        process: Pid,
        /// The process that forked it.
        parent: Pid,
        /// The tenant of both.
        tenant: TenantIndex,
    },
    /// The last thread of a tenant's process exited; the process is unassigned already.
    Exited {
        /// The process that exited.
        process: Pid,
        /// The tenant that the process was in.
        tenant: TenantIndex,
    },
}

/// The process events since the last call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessEvents {
    /// The events in the order in which they happened.
    pub events: Vec<ProcessEvent>,
    /// Whether events were lost since the last call: a component that matches processes should rescan.
    pub lost: bool,
}
