//! Clocks, in ns.
//!
//! Reading a clock fails only if the kernel does not have the clock. All clocks named here exist on every
//! Linux since 2.6.39, so that these functions return a number and no error (0 if the kernel did refuse).

pub use nix::time::ClockId;
use nix::time::clock_gettime;

/// The time of a clock, in ns.
pub fn now_ns(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

/// CLOCK_MONOTONIC in ns: the clock of snapshots, plans and BPF programs.
pub fn monotonic_ns() -> u64 {
    now_ns(ClockId::CLOCK_MONOTONIC)
}

/// CLOCK_BOOTTIME in ns: goes on while the machine sleeps, as start times of threads do.
pub fn boottime_ns() -> u64 {
    now_ns(ClockId::CLOCK_BOOTTIME)
}

/// The CPU time that the calling thread has used, in ns.
pub fn thread_cpu_ns() -> u64 {
    now_ns(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_on() {
        for read in [monotonic_ns, boottime_ns, thread_cpu_ns] {
            let before = read();
            assert!(before > 0);
            while read() == before {}
            assert!(read() > before);
        }
    }
}
