//! Uses a given amount of CPU time.
//!
//! The work is measured by the thread's own CPU clock, so that a preempted thread still does all of it.
//! Reading that clock is a system call, so a calibrated loop runs between readings.
//!
//! In the kernel lab every instruction takes a nanosecond of virtual time. For the emulating machine a loop
//! that computes takes several times as long as a loop that does nothing: so the loop does nothing there.

use quell_sys::clock::thread_cpu_ns;
use std::hint::black_box;
use std::sync::LazyLock;

/// Longest stretch between two readings of the clock, in ns: bounds the error after a change of
/// the CPU's speed, and costs about 1 % in readings.
const STRETCH_NS: u64 = 20_000;

/// Burns CPU time; one for each thread.
#[derive(Debug, Clone, Copy)]
pub struct Burner {
    turns_per_ns: f64,
    /// CPU time that was used beyond what was asked, in ns. It is taken off the next burn: how late a thread
    /// reads its clock depends on the rest of the machine, but what a request takes altogether must not.
    over_ns: u64,
}

impl Burner {
    /// Measures how fast this CPU runs the loop; takes a few ms of CPU time.
    pub fn calibrate() -> Burner {
        let mut turns_per_ns = 0f64;
        // The fastest of several runs counts: a slower run was disturbed.
        for _ in 0..5 {
            let turns = if *EMULATED { 2_000 } else { 500_000 };
            let start = thread_cpu_ns();
            spin(turns);
            let took = (thread_cpu_ns() - start).max(1);
            turns_per_ns = turns_per_ns.max(turns as f64 / took as f64);
        }
        Burner {
            turns_per_ns,
            over_ns: 0,
        }
    }

    /// Uses `ns` of CPU time, on average.
    pub fn burn(&mut self, ns: u64) {
        let mut now = thread_cpu_ns();
        let end = now.saturating_add(ns.saturating_sub(self.over_ns));
        self.over_ns = self.over_ns.saturating_sub(ns);
        while now < end {
            spin(((end - now).min(STRETCH_NS) as f64 * self.turns_per_ns) as u64);
            now = thread_cpu_ns();
        }
        self.over_ns += now - end;
    }
}

/// Whether instructions are emulated: QEMU names its CPUs so.
static EMULATED: LazyLock<bool> = LazyLock::new(|| {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("QEMU TCG CPU"))
});

/// Some hundred instructions that do nothing: as many as the emulator translates at once.
#[inline]
pub fn do_nothing() {
    // SAFETY: the instructions touch neither memory nor the stack nor flags.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    unsafe {
        std::arch::asm!(
            ".rept 480",
            "nop",
            ".endr",
            options(nomem, nostack, preserves_flags)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    black_box(());
}

fn spin(turns: u64) {
    if *EMULATED {
        return (0..turns).for_each(|_| do_nothing());
    }
    let mut x = 1u64;
    for _ in 0..turns {
        x = black_box(x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burns_what_is_asked_by_its_own_cpu_clock() {
        for ns in [0, 50_000, 1_000_000, 20_000_000] {
            let mut burner = Burner::calibrate();
            let start = thread_cpu_ns();
            burner.burn(ns);
            let used = thread_cpu_ns() - start;
            assert!(used >= ns, "{used} < {ns}");
            assert!(used < ns + ns / 2 + 200_000, "{used} for {ns}");
        }
    }

    #[test]
    fn many_small_burns_are_what_is_asked_together() {
        let mut burner = Burner::calibrate();
        // The CPU is as if it had become slower since: each burn alone takes five times as long as asked.
        burner.turns_per_ns *= 5.0;
        let (ns, count) = (20_000, 1000);
        let start = thread_cpu_ns();
        for _ in 0..count {
            burner.burn(ns);
        }
        let used = thread_cpu_ns() - start;
        let asked = ns * count;
        assert!(
            (asked..asked + asked / 4).contains(&used),
            "{used} for {asked}"
        );
    }
}
