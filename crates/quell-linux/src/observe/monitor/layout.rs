//! The reader's side of `quell/observe.h` (quell-bpf): structures that the kernel writes while they are read.
//!
//! Every field is an atomic of its own size, so a reference to such a structure in mapped memory
//! is sound and each field is read whole. Fields that belong together are read by
//! [`ThreadSlot::copy`] and [`CpuLog::copy`], which try again until no writer interfered.

use super::reading::{OCCASION_BUCKETS, RawThread, RawWaker, TenantIndex, WAIT_BUCKETS, WAKERS};
use quell_model::{Pid, ThreadId, ThreadState, Tid};
use std::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed},
    fence,
};

/// The values of `enum thread_state`.
pub mod state {
    pub const BITS: u32 = 3;
    pub const MASK: u64 = 7;
    pub const FREE: u64 = 0;
    pub const FLUX: u64 = 1;
    pub const ENDED: u64 = 2;
    pub const RUNNING: u64 = 4;
    pub const READY: u64 = 5;
    pub const BLOCKED: u64 = 6;
}

/// The causes of a wait, `enum cause`: below [`cause::HOST`] a cause is a tenant's number.
pub mod cause {
    /// Threads of no tenant had the CPU.
    pub const HOST: usize = 256;
    /// The CPU was idle: it was being woken up (wakeup latency of the kernel and the hardware).
    pub const IDLE: usize = 257;
    /// The thread's cgroup had used up its CPU bandwidth.
    pub const BANDWIDTH: usize = 258;
    /// The hypervisor had taken the CPU.
    pub const STEAL: usize = 259;
    /// No cause was recorded.
    pub const UNKNOWN: usize = 260;
    /// The number of entries for which a row has room.
    pub(crate) const SPACE: usize = 512;
}

/// The values of `enum process_event_kind`.
pub mod event {
    pub const CHANGED: u32 = 1;
    pub const FORKED: u32 = 2;
    pub const EXITED: u32 = 3;
    pub const NO_TENANT: u32 = u32::MAX;
}

/// The bits of the thread id in a packed id; the start time is above them.
const TID_BITS: u32 = 22;
/// The number of attempts at a copy before it is given up.
const TRIES: u32 = 10_000;

#[derive(Debug)]
#[repr(C)]
pub struct Waker {
    id: AtomicU64,
    count: AtomicU32,
    score: AtomicU32,
}

/// A thread's record in shared memory, `struct thread_slot`.
#[derive(Debug)]
#[repr(C)]
pub struct ThreadSlot {
    stamp: AtomicU64,
    run_ns: AtomicU64,
    ready_ns: AtomicU64,
    waits: AtomicU64,
    switches: AtomicU64,
    preemptions: AtomicU64,
    wakeups: AtomicU64,
    migrations: AtomicU64,
    id: AtomicU64,
    creator: AtomicU64,
    tgid: AtomicU32,
    generation: AtomicU32,
    tenant: AtomicU16,
    allowed_cpus: AtomicU16,
    cpu: AtomicU32,
    comm: [AtomicU64; 2],
    affinity_word: AtomicU64,
    slice_ns: AtomicU64,
    static_prio: AtomicU8,
    policy: AtomicU8,
    halted: AtomicU8,
    unused: AtomicU8,
    tid: AtomicU32,
    own: [AtomicU64; 6],
    wakers: [Waker; WAKERS],
    wait_histogram: [AtomicU32; WAIT_BUCKETS],
    walk: [AtomicU64; 4],
    limited_ns: AtomicU64,
}

const LOG_SEGMENTS: usize = 128;

/// The values of `enum halt`.
mod halt {
    pub const STOPPED: u8 = 1;
    pub const FROZEN: u8 = 2;
}

/// A CPU's record in shared memory, `struct cpu_log`.
#[derive(Debug)]
#[repr(C)]
pub struct CpuLog {
    seq: AtomicU64,
    first_ns: AtomicU64,
    last_ns: AtomicU64,
    idle_ns: AtomicU64,
    steal_ns: AtomicU64,
    running: AtomicU32,
    head: AtomicU32,
    unused: [AtomicU64; 2],
    segments: [[AtomicU64; 2]; LOG_SEGMENTS],
}

/// The waiting time of a tenant's threads, `struct wait_row`.
#[derive(Debug)]
#[repr(C)]
pub struct WaitRow {
    /// Waiting time by cause, in ns.
    pub ns: [AtomicU64; cause::SPACE],
}

/// The counters of the monitor as a whole, `struct monitor_stats`.
#[derive(Debug)]
#[repr(C)]
pub struct Stats {
    /// The number of slots ever used.
    pub used_slots: AtomicU64,
    /// The number of threads that found no slot.
    pub unmonitored: AtomicU64,
    /// The number of process events that found the queue full.
    pub events_lost: AtomicU64,
}

/// The size of `struct tid_page`, and the number of thread ids it holds.
pub const TID_PAGE_BYTES: usize = 8192;
pub const TIDS_PER_PAGE: u32 = 4096;
/// Size of `struct process_event`.
pub const EVENT_BYTES: usize = 16;
/// Size of `struct tenant_occasions`: a lock and three numbers, a time, the histogram, the busy periods.
pub const OCCASIONS_BYTES: usize = 40 + 8 * OCCASION_BUCKETS;

// The same offsets as observe.h asserts.
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Waker>() == 16);
    assert!(size_of::<ThreadSlot>() == 448);
    assert!(offset_of!(ThreadSlot, id) == 64);
    assert!(offset_of!(ThreadSlot, comm) == 96);
    assert!(offset_of!(ThreadSlot, slice_ns) == 120);
    assert!(offset_of!(ThreadSlot, wakers) == 184);
    assert!(offset_of!(ThreadSlot, wait_histogram) == 280);
    assert!(size_of::<CpuLog>() == 64 + 16 * LOG_SEGMENTS);
    assert!(size_of::<WaitRow>() == 4096);
};

impl ThreadSlot {
    /// The generation of the slot if its thread has ended; reads nothing else of the slot.
    pub fn ended(&self) -> Option<u32> {
        (self.stamp.load(Acquire) & state::MASK == state::ENDED)
            .then(|| self.generation.load(Relaxed))
    }

    /// Whether the thread still sleeps as it did in an earlier copy, so that a new copy would be equal:
    /// no counter changes while a thread is blocked.
    pub fn still_sleeps(&self, earlier: &RawThread) -> bool {
        let asleep = earlier.since_ns << state::BITS | state::BLOCKED;
        let slept = matches!(
            earlier.state,
            Some(ThreadState::Blocked | ThreadState::Stopped | ThreadState::Frozen)
        );
        slept && self.stamp.load(Acquire) == asleep
    }

    /// A consistent copy as of `time_ns`. `None` if the slot is free, or was being written for so long (its
    /// CPU stopped by a hypervisor) that there is no copy this time.
    pub fn copy(&self, slot: u32, time_ns: u64) -> Option<RawThread> {
        for attempt in 0..TRIES {
            let stamp = self.stamp.load(Acquire);
            match stamp & state::MASK {
                state::FREE => return None,
                state::FLUX => {
                    if attempt % 100 == 99 {
                        std::thread::yield_now();
                    }
                    std::hint::spin_loop();
                    continue;
                }
                _ => {}
            }
            let thread = self.decode(slot, stamp, time_ns);
            fence(Acquire);
            if self.stamp.load(Relaxed) == stamp {
                return Some(thread);
            }
        }
        None
    }

    /// The way in which a blocked thread is blocked.
    fn blocked(&self) -> ThreadState {
        match self.halted.load(Relaxed) {
            halt::STOPPED => ThreadState::Stopped,
            halt::FROZEN => ThreadState::Frozen,
            _ => ThreadState::Blocked,
        }
    }

    fn decode(&self, slot: u32, stamp: u64, time_ns: u64) -> RawThread {
        let since_ns = stamp >> state::BITS;
        let unfinished_ns = time_ns.saturating_sub(since_ns);
        let (state, running_ns, waiting_ns) = match stamp & state::MASK {
            state::RUNNING => (Some(ThreadState::Running), unfinished_ns, 0),
            state::READY => (Some(ThreadState::Ready), 0, unfinished_ns),
            state::BLOCKED => (Some(self.blocked()), 0, 0),
            _ => (None, 0, 0),
        };
        let slice_ns = self.slice_ns.load(Relaxed);
        let mut name = [0; 16];
        for (bytes, word) in name.chunks_exact_mut(8).zip(&self.comm) {
            bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        RawThread {
            slot,
            generation: self.generation.load(Relaxed),
            id: thread_id(self.id.load(Relaxed)),
            process: Pid(self.tgid.load(Relaxed)),
            tenant: TenantIndex(self.tenant.load(Relaxed)),
            copied: 0,
            ended: stamp & state::MASK == state::ENDED,
            state,
            since_ns,
            cpu: self.cpu.load(Relaxed),
            run_ns: self.run_ns.load(Relaxed) + running_ns,
            ready_ns: self.ready_ns.load(Relaxed) + waiting_ns,
            throttled_ns: self.limited_ns.load(Relaxed),
            waits: self.waits.load(Relaxed),
            wait_histogram: std::array::from_fn(|i| self.wait_histogram[i].load(Relaxed)),
            switches: self.switches.load(Relaxed),
            preemptions: self.preemptions.load(Relaxed),
            wakeups: self.wakeups.load(Relaxed),
            migrations: self.migrations.load(Relaxed),
            wakers: std::array::from_fn(|i| {
                let id = self.wakers[i].id.load(Acquire);
                let count = self.wakers[i].count.load(Relaxed);
                (id != 0).then(|| RawWaker {
                    id: thread_id(id),
                    count,
                })
            }),
            creator: Some(self.creator.load(Relaxed))
                .filter(|&id| id != 0)
                .map(thread_id),
            name,
            nice: (i16::from(self.static_prio.load(Relaxed)) - 120).clamp(-20, 19) as i8,
            policy: self.policy.load(Relaxed),
            allowed_cpus: self.allowed_cpus.load(Relaxed),
            affinity_word: self.affinity_word.load(Relaxed),
            slice_ns: (slice_ns != 0).then_some(slice_ns),
        }
    }
}

/// The figures of a CPU, copied together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuCopy {
    pub first_ns: u64,
    pub last_ns: u64,
    pub idle_ns: u64,
    pub steal_ns: u64,
    pub running: u32,
}

impl CpuLog {
    /// A consistent copy; `None` if its writer did not finish in time.
    pub fn copy(&self) -> Option<CpuCopy> {
        for _ in 0..TRIES {
            let seq = self.seq.load(Acquire);
            let copy = CpuCopy {
                first_ns: self.first_ns.load(Relaxed),
                last_ns: self.last_ns.load(Relaxed),
                idle_ns: self.idle_ns.load(Relaxed),
                steal_ns: self.steal_ns.load(Relaxed),
                running: self.running.load(Relaxed),
            };
            fence(Acquire);
            if seq % 2 == 0 && self.seq.load(Relaxed) == seq {
                return Some(copy);
            }
            std::hint::spin_loop();
        }
        None
    }
}

impl CpuLog {
    /// Reports the tenants that had the CPU from `from_ns` until `until_ns`, the last first. The whole
    /// interval is reported; time before the start of the log counts as unknown. As `charge_wait()` in
    /// waits.bpf.h. If the CPU switches meanwhile, a part may be reported as another tenant's.
    pub fn who_had_it(&self, from_ns: u64, until_ns: u64, mut tell: impl FnMut(usize, u64)) {
        let mut upper = until_ns;
        let mut segment = |start_ns: u64, who: u64| {
            let lower = start_ns.max(from_ns);
            if lower < upper {
                tell((who as usize).min(cause::UNKNOWN), upper - lower);
                upper = lower;
            }
            upper > from_ns
        };
        let Some(now) = self.copy().filter(|now| now.first_ns > 0) else {
            segment(from_ns, cause::UNKNOWN as u64);
            return;
        };
        let mut more = segment(now.last_ns, now.running.into());
        let head = self.head.load(Acquire);
        for back in 1..LOG_SEGMENTS as u32 {
            let at = |back: u32| &self.segments[(head.wrapping_sub(back)) as usize % LOG_SEGMENTS];
            let start_ns = at(back + 1)[0].load(Relaxed);
            if !more || start_ns == 0 {
                break;
            }
            more = segment(start_ns, at(back)[1].load(Relaxed));
        }
        segment(from_ns, cause::UNKNOWN as u64);
    }
}

impl CpuCopy {
    /// Time not idle from the first switch seen until `time_ns`, in ns; `None` before that switch.
    pub fn busy_ns(&self, time_ns: u64) -> Option<u64> {
        if self.first_ns == 0 {
            return None;
        }
        let open = if self.running as usize == cause::IDLE {
            time_ns.saturating_sub(self.last_ns)
        } else {
            0
        };
        Some(
            time_ns
                .saturating_sub(self.first_ns)
                .saturating_sub(self.idle_ns + open),
        )
    }
}

/// The inverse of `thread_id()` in threads.bpf.h.
fn thread_id(packed: u64) -> ThreadId {
    ThreadId {
        tid: Tid((packed & ((1 << TID_BITS) - 1)) as u32),
        start_ticks: packed >> TID_BITS,
    }
}

/// A copied `struct tenant_occasions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OccasionsCopy {
    pub ready: u32,
    pub blocked: u32,
    pub by_blocked_ns: [u64; OCCASION_BUCKETS],
    pub busy_ns: u64,
    pub busy_periods: u64,
}

impl OccasionsCopy {
    /// Decodes the bytes of the map; the time from the last change to `time_ns` is added.
    /// `None` if the length is wrong.
    pub fn decode(bytes: &[u8], time_ns: u64) -> Option<OccasionsCopy> {
        if bytes.len() != OCCASIONS_BYTES {
            return None;
        }
        let u32_at = |at: usize| bytes[at..at + 4].try_into().map(u32::from_ne_bytes).ok();
        let u64_at = |at: usize| bytes[at..at + 8].try_into().map(u64::from_ne_bytes).ok();
        let (ready, blocked, running) = (u32_at(4)?, u32_at(8)?, u32_at(12)?);
        let since_change_ns = time_ns.saturating_sub(u64_at(16)?);
        let mut by_blocked_ns = [0; OCCASION_BUCKETS];
        for (i, ns) in by_blocked_ns.iter_mut().enumerate() {
            *ns = u64_at(24 + 8 * i)?;
        }
        if ready > 0 {
            by_blocked_ns[(blocked as usize).min(OCCASION_BUCKETS - 1)] += since_change_ns;
        }
        let mut busy_ns = u64_at(24 + 8 * OCCASION_BUCKETS)?;
        if ready > 0 || running > 0 {
            busy_ns += since_change_ns;
        }
        Some(OccasionsCopy {
            ready,
            blocked,
            by_blocked_ns,
            busy_ns,
            busy_periods: u64_at(32 + 8 * OCCASION_BUCKETS)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(stamp: u64) -> ThreadSlot {
        // SAFETY: all fields are atomic integers, for which zero bytes are valid.
        let slot: ThreadSlot = unsafe { std::mem::zeroed() };
        slot.stamp.store(stamp, Relaxed);
        slot.run_ns.store(1_000, Relaxed);
        slot.ready_ns.store(500, Relaxed);
        slot.static_prio.store(115, Relaxed);
        slot.id.store(7 << TID_BITS | 42, Relaxed);
        slot.comm[0].store(u64::from_ne_bytes(*b"worker-1"), Relaxed);
        slot
    }

    #[test]
    fn unfinished_time_goes_to_what_the_thread_is_doing() {
        let read = |state: u64| slot(100 << state::BITS | state).copy(3, 160).unwrap();
        let running = read(state::RUNNING);
        assert_eq!((running.run_ns, running.ready_ns), (1_060, 500));
        let ready = read(state::READY);
        assert_eq!((ready.run_ns, ready.ready_ns), (1_000, 560));
        let blocked = read(state::BLOCKED);
        assert_eq!((blocked.run_ns, blocked.ready_ns), (1_000, 500));
        let ended = read(state::ENDED);
        assert!(ended.ended && ended.state.is_none());
        assert_eq!((ended.run_ns, ended.ready_ns), (1_000, 500));
    }

    #[test]
    fn a_change_after_the_readings_time_does_not_count_backwards() {
        let running = slot(200 << state::BITS | state::RUNNING).copy(3, 160);
        assert_eq!(running.unwrap().run_ns, 1_000);
    }

    #[test]
    fn a_thread_sleeps_on_until_its_stamp_changes() {
        let blocked = slot(100 << state::BITS | state::BLOCKED);
        let earlier = blocked.copy(3, 160).unwrap();
        assert!(blocked.still_sleeps(&earlier));
        for other in [
            100 << state::BITS | state::FLUX,
            100 << state::BITS | state::ENDED,
            101 << state::BITS | state::BLOCKED,
        ] {
            assert!(!slot(other).still_sleeps(&earlier));
        }
        let ready = slot(100 << state::BITS | state::READY);
        assert!(!ready.still_sleeps(&ready.copy(3, 160).unwrap()));
    }

    #[test]
    fn identity_and_settings_are_decoded() {
        let thread = slot(state::BLOCKED).copy(3, 0).unwrap();
        assert_eq!(
            thread.id,
            ThreadId {
                tid: Tid(42),
                start_ticks: 7
            }
        );
        assert_eq!(thread.name(), "worker-1");
        assert_eq!((thread.slot, thread.nice, thread.slice_ns), (3, -5, None));
        assert_eq!(thread.creator, None);
        assert_eq!(thread.wakers, [None; WAKERS]);
    }

    #[test]
    fn free_slots_and_slots_in_flux_give_nothing() {
        assert_eq!(slot(state::FREE).copy(1, 0), None);
        assert_eq!(slot(state::FLUX).copy(1, 0), None);
    }

    #[test]
    fn occasions_add_the_time_since_the_last_change_while_a_thread_is_ready() {
        let mut bytes = vec![0u8; OCCASIONS_BYTES];
        bytes[4..8].copy_from_slice(&1u32.to_ne_bytes());
        bytes[8..12].copy_from_slice(&99u32.to_ne_bytes());
        bytes[16..24].copy_from_slice(&1_000u64.to_ne_bytes());
        bytes[24..32].copy_from_slice(&5u64.to_ne_bytes());
        let copy = OccasionsCopy::decode(&bytes, 1_400).unwrap();
        assert_eq!((copy.ready, copy.blocked), (1, 99));
        assert_eq!(copy.by_blocked_ns[0], 5);
        assert_eq!(copy.by_blocked_ns[OCCASION_BUCKETS - 1], 400);
        assert_eq!((copy.busy_ns, copy.busy_periods), (400, 0));

        bytes[4..8].copy_from_slice(&0u32.to_ne_bytes());
        let idle = OccasionsCopy::decode(&bytes, 1_400).unwrap();
        assert_eq!(idle.by_blocked_ns.iter().sum::<u64>(), 5);
        assert_eq!(idle.busy_ns, 0);
        // A thread that runs keeps the tenant busy, and is no occasion.
        bytes[12..16].copy_from_slice(&1u32.to_ne_bytes());
        let running = OccasionsCopy::decode(&bytes, 1_400).unwrap();
        assert_eq!(running.by_blocked_ns.iter().sum::<u64>(), 5);
        assert_eq!(running.busy_ns, 400);
        assert_eq!(OccasionsCopy::decode(&bytes[1..], 0), None);
    }

    #[test]
    fn a_wait_that_goes_on_is_for_who_had_the_cpu() {
        // SAFETY: all fields are atomic integers, for which zero bytes are valid.
        let log: CpuLog = unsafe { std::mem::zeroed() };
        let had = |from_ns, until_ns| {
            let mut list = Vec::new();
            log.who_had_it(from_ns, until_ns, |who, ns| list.push((who, ns)));
            list
        };
        let unknown = cause::UNKNOWN;
        assert_eq!(had(50, 80), [(unknown, 30)]);
        // The first switch was at 100; tenant 1 ran until 130, the CPU idled until 160, and tenant 2 has run
        // since.
        for (at, (end_ns, who)) in [(100, unknown), (130, 1), (160, 257)]
            .into_iter()
            .enumerate()
        {
            log.segments[at][0].store(end_ns, Relaxed);
            log.segments[at][1].store(who as u64, Relaxed);
        }
        log.head.store(3, Relaxed);
        log.first_ns.store(100, Relaxed);
        log.last_ns.store(160, Relaxed);
        log.running.store(2, Relaxed);
        assert_eq!(had(170, 200), [(2, 30)]);
        assert_eq!(had(120, 200), [(2, 40), (257, 30), (1, 10)]);
        assert_eq!(had(90, 200), [(2, 40), (257, 30), (1, 30), (unknown, 10)]);
        assert_eq!(had(200, 200), []);
    }

    #[test]
    fn busy_time_leaves_out_the_idle_time_going_on() {
        let mut cpu = CpuCopy {
            first_ns: 100,
            last_ns: 800,
            idle_ns: 300,
            steal_ns: 0,
            running: 3,
        };
        assert_eq!(cpu.busy_ns(1_100), Some(700));
        cpu.running = cause::IDLE as u32;
        assert_eq!(cpu.busy_ns(1_100), Some(400));
        cpu.first_ns = 0;
        assert_eq!(cpu.busy_ns(1_100), None);
    }
}
