//! The reader's side of `quell/observe.h` (quell-bpf): structures that the kernel writes while they are read.
//!
//! The build script writes these structures and constants from the compiler's description of the C side.
//! Every field of a mapped structure is an atomic of its own size, so a reference to such a structure in
//! mapped memory is sound and each field is read whole. Fields that belong together are read by
//! [`ThreadSlot::copy`] and [`CpuLog::copy`], which try again until no writer interfered.

use super::reading::{OCCASION_BUCKETS, RawThread, RawWaker, TenantIndex};
use quell_bpf::from_bytes;
use quell_model::{Pid, ThreadId, ThreadState, Tid};
use std::sync::atomic::{
    Ordering::{AcqRel, Acquire, Relaxed},
    fence,
};

include!(concat!(env!("OUT_DIR"), "/shared.rs"));

/// The counters of the monitor as a whole.
pub type Stats = MonitorStats;

/// The values of `enum thread_state`.
pub mod state {
    pub use super::{
        STATE_BITS as BITS, STATE_BLOCKED as BLOCKED, STATE_ENDED as ENDED, STATE_FLUX as FLUX,
        STATE_FREE as FREE, STATE_MASK as MASK, STATE_READY as READY, STATE_RUNNING as RUNNING,
    };
}

/// The causes of a wait, `enum cause`: below [`cause::HOST`] a cause is a tenant's number.
pub mod cause {
    /// Threads of no tenant had the CPU.
    pub const HOST: usize = super::CAUSE_HOST;
    /// The CPU was idle: it was being woken up (wakeup latency of the kernel and the hardware).
    pub const IDLE: usize = super::CAUSE_IDLE;
    /// The thread's cgroup had used up its CPU bandwidth.
    pub const BANDWIDTH: usize = super::CAUSE_BANDWIDTH;
    /// The hypervisor had taken the CPU.
    pub const STEAL: usize = super::CAUSE_STEAL;
    /// No cause was recorded.
    pub const UNKNOWN: usize = super::CAUSE_UNKNOWN;
}

/// The values of `enum process_event_kind`.
pub mod event {
    pub use super::{
        PROCESS_CHANGED as CHANGED, PROCESS_EXITED as EXITED, PROCESS_FORKED as FORKED,
    };
    /// The tenant of a process that is in none.
    pub const NO_TENANT: u32 = u32::MAX;
}

/// The bits of the thread id in a packed id; the start time is above them.
const TID_BITS: u32 = 22;
/// The number of attempts at a copy before it is given up.
const TRIES: u32 = 10_000;

/// The size of `struct tid_page`, in bytes.
pub const TID_PAGE_BYTES: usize = size_of::<TidPage>();
/// The size of `struct process_event`, in bytes.
pub const EVENT_BYTES: usize = size_of::<ProcessEvent>();
/// The size of `struct tenant_occasions`, in bytes.
pub const OCCASIONS_BYTES: usize = size_of::<TenantOccasions>();

impl WaitRow {
    /// Brings `times`, ascending by cause, up to date with the causes whose times changed since the last
    /// call, and lists these in `changed`.
    pub fn read_changed(&self, times: &mut Vec<(u16, u64)>, changed: &mut Vec<u16>) {
        changed.clear();
        for (word, bits) in self.changed.iter().enumerate() {
            if bits.load(Relaxed) == 0 {
                continue;
            }
            let mut bits = bits.swap(0, AcqRel);
            while bits != 0 {
                let cause = word * CAUSE_BITS + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let Some(ns) = self.ns.get(cause) else {
                    continue;
                };
                let (cause, ns) = (cause as u16, ns.load(Relaxed)); // there are fewer causes
                match times.binary_search_by_key(&cause, |it| it.0) {
                    Ok(at) => times[at].1 = ns,
                    Err(at) => times.insert(at, (cause, ns)),
                }
                changed.push(cause);
            }
        }
    }
}

impl ThreadSlot {
    /// The generation of the slot if its thread has ended; reads nothing else of the slot.
    pub fn ended(&self) -> Option<u32> {
        (self.stamp.load(Acquire) & state::MASK == state::ENDED)
            .then(|| self.generation.load(Relaxed))
    }

    /// The stamp of the slot for as long as the thread of a copy sleeps on, and a new copy would be equal: no
    /// counter changes while a thread is blocked. `None`: the thread did not sleep.
    pub fn asleep(copy: &RawThread) -> Option<u64> {
        let slept = matches!(
            copy.state,
            Some(ThreadState::Blocked | ThreadState::Stopped | ThreadState::Frozen)
        );
        slept.then_some(copy.since_ns << state::BITS | state::BLOCKED)
    }

    /// Whether the thread sleeps on, by [`ThreadSlot::asleep`] of an earlier copy; reads nothing else of the
    /// slot.
    pub fn sleeps_on(&self, asleep: Option<u64>) -> bool {
        asleep.is_some_and(|stamp| self.stamp.load(Acquire) == stamp)
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
            HALT_STOPPED => ThreadState::Stopped,
            HALT_FROZEN => ThreadState::Frozen,
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
            wait_histogram: self.wait_histogram.each_ref().map(|n| n.load(Relaxed)),
            switches: self.switches.load(Relaxed),
            preemptions: self.preemptions.load(Relaxed),
            wakeups: self.wakeups.load(Relaxed),
            migrations: self.migrations.load(Relaxed),
            wakers: self.wakers.each_ref().map(|waker| {
                let id = waker.id.load(Acquire);
                let count = waker.count.load(Relaxed);
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
        let length = self.segments.len();
        for back in 1..length as u32 {
            let at = |back: u32| &self.segments[(head.wrapping_sub(back)) as usize % length];
            let start_ns = at(back + 1).end_ns.load(Relaxed);
            if !more || start_ns == 0 {
                break;
            }
            more = segment(start_ns, at(back).who.load(Relaxed));
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
        let found: TenantOccasions = from_bytes(bytes);
        let since_change_ns = time_ns.saturating_sub(found.last_ns);
        let mut copy = OccasionsCopy {
            ready: found.ready,
            blocked: found.blocked,
            by_blocked_ns: found.by_blocked_ns,
            busy_ns: found.busy_ns,
            busy_periods: found.busy_periods,
        };
        if found.ready > 0 {
            let bucket = (found.blocked as usize).min(OCCASION_BUCKETS - 1);
            copy.by_blocked_ns[bucket] += since_change_ns;
        }
        if found.ready > 0 || found.running > 0 {
            copy.busy_ns += since_change_ns;
        }
        Some(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::super::reading::WAKERS;
    use super::*;

    fn slot(stamp: u64) -> ThreadSlot {
        let slot = ThreadSlot::default();
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
        assert!(blocked.sleeps_on(ThreadSlot::asleep(&earlier)));
        for other in [
            100 << state::BITS | state::FLUX,
            100 << state::BITS | state::ENDED,
            101 << state::BITS | state::BLOCKED,
        ] {
            assert!(!slot(other).sleeps_on(ThreadSlot::asleep(&earlier)));
        }
        let ready = slot(100 << state::BITS | state::READY);
        assert!(!ready.sleeps_on(ThreadSlot::asleep(&ready.copy(3, 160).unwrap())));
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
        let log = CpuLog::default();
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
            log.segments[at].end_ns.store(end_ns, Relaxed);
            log.segments[at].who.store(who as u64, Relaxed);
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
