//! The rate loop: a thread of the loader that runs the rate solver while the scheduler is loaded.

#![allow(
    unsafe_code,
    reason = "memory shared with BPF programs; each block says why it is sound"
)]

use crate::layout::{CpuCtx, Group, MAX_SHARE_SLOTS, ShareSlot, ShareSlotHints, from_bytes};
use crate::rate_solver::{Host, PERIOD, RateSolver};
use crate::{SchedError, io};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::time::{ClockId, clock_gettime};
use quell_model::{CpuId, CpuSet, Tid};
use quell_sys::mapping::{Access, Mapped, SharedMemory};
use quell_sys::sched::affinity;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The part of a CPU that the steps take at most, in percent: long steps come less often.
const CPU_PERCENT_MAX: u32 = 4;

/// The running loop. The loop ends when this is dropped.
#[derive(Debug)]
pub(crate) struct RateLoop {
    /// Dropped to end the loop.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the loop reads and writes.
pub(crate) struct RateInputs {
    hints: Mapped<ShareSlotHints>,
    slots: Mapped<ShareSlot>,
    host: Loaded,
}

impl RateInputs {
    /// Maps the scheduler's share slots. `hints`, `slots`, `cpus`, `groups`: its BPF maps. `possible`: the
    /// number of possible CPUs.
    ///
    /// # Errors
    /// A map has another size than the scheduler's, or cannot be mapped.
    pub(crate) fn open(
        hints: &MapHandle,
        slots: &MapHandle,
        cpus: MapHandle,
        groups: MapHandle,
        possible: usize,
    ) -> Result<RateInputs, SchedError> {
        Ok(RateInputs {
            hints: map_values(hints, 1).map_err(io("mapping the share slot hints"))?,
            slots: map_values(slots, MAX_SHARE_SLOTS).map_err(io("mapping the share slots"))?,
            host: Loaded {
                cpus,
                groups,
                possible,
            },
        })
    }

    /// Starts the loop.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(self) -> Result<RateLoop, SchedError> {
        let RateInputs {
            hints,
            slots,
            mut host,
        } = self;
        let (stop, stopped) = channel::<()>();
        let run = move || {
            let mut solver = RateSolver::default();
            let mut pause = PERIOD;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                let (began, before) = (Instant::now(), time_of(ClockId::CLOCK_THREAD_CPUTIME_ID));
                if let [hints] = hints.all() {
                    solver.step(hints, slots.all(), &mut host);
                }
                let took = time_of(ClockId::CLOCK_THREAD_CPUTIME_ID).saturating_sub(before);
                pause = next_pause(took, began.elapsed());
            }
        };
        let thread = std::thread::Builder::new().name("quell-shares".into());
        let thread = thread.spawn(run).map_err(|source| SchedError::Io {
            what: "starting a thread",
            source: source.into(),
        })?;
        Ok(RateLoop {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for RateLoop {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // After a panic in the loop rates stay as they are; there is nothing to do about that here.
            let _ = thread.join();
        }
    }
}

/// The pause until the next step, by the CPU time that the last step took and the time since it began. By CPU
/// time, not by elapsed time: else steps would be rare on a busy host, where the loop waits for a CPU.
fn next_pause(took: Duration, since: Duration) -> Duration {
    (took * 100 / CPU_PERCENT_MAX)
        .max(PERIOD)
        .saturating_sub(since)
}

/// The time of a clock that always exists: the call cannot fail.
fn time_of(clock: ClockId) -> Duration {
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

/// The host that runs the scheduler.
struct Loaded {
    cpus: MapHandle,
    groups: MapHandle,
    possible: usize,
}

impl Host for Loaded {
    fn now(&self) -> u64 {
        time_of(ClockId::CLOCK_MONOTONIC).as_nanos() as u64
    }

    fn possible(&self) -> usize {
        self.possible
    }

    fn online(&mut self) -> Option<CpuSet> {
        let found = self.cpus.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let bytes = found.ok().flatten()?;
        let cpucs = bytes.chunks_exact(size_of::<CpuCtx>());
        let cpucs = cpucs.take(self.possible).map(from_bytes::<CpuCtx>);
        let online = |(cpu, cpuc): (u32, CpuCtx)| (cpuc.offline == 0).then_some(CpuId(cpu));
        let online: CpuSet = (0..).zip(cpucs).filter_map(online).collect();
        (!online.is_empty()).then_some(online)
    }

    fn group(&mut self, id: u64) -> Option<Group> {
        let found = self.groups.lookup(&id.to_ne_bytes(), MapFlags::ANY);
        Some(from_bytes(&found.ok().flatten()?))
    }

    fn allowed(&mut self, tid: u32) -> Option<CpuSet> {
        affinity(Tid(tid)).ok()
    }
}

/// Maps a BPF map's `count` values, which must be all that it has.
fn map_values<T: SharedMemory>(
    map: &MapHandle,
    count: usize,
) -> Result<Mapped<T>, libbpf_rs::Error> {
    // In this file and in layout.h there are as many.
    if count * size_of::<T>() != map.value_size() as usize {
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput).into());
    }
    Ok(Mapped::new(map, count, Access::ReadWrite)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_take_a_part_of_the_time_at_most() {
        let ms = Duration::from_millis;
        assert_eq!(next_pause(ms(0), ms(0)), ms(50));
        assert_eq!(next_pause(ms(1), ms(1)), ms(49));
        assert_eq!(next_pause(ms(8), ms(8)), ms(192));
        assert_eq!(next_pause(ms(1), ms(20)), ms(30));
        assert_eq!(next_pause(ms(1), ms(70)), ms(0));
    }
}
