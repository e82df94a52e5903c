//! A guest's `/proc/stat` (Linux 2.6 and newer): the figures that tell how busy its scheduler is.

use quell_model::{CpuId, CpuSet};

/// Ticks of `/proc/stat` per second: USER_HZ, the same on all architectures that have KVM.
const USER_HZ: u64 = 100;

/// The figures of a guest's scheduler and CPUs since it booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestStat {
    /// The number of switches between threads.
    pub switches: u64,
    /// The time for which its CPUs were busy, together, in 1/100 s: without idling, waiting for disks, and
    /// time that the host took.
    pub busy_ticks: u64,
    /// The CPUs of the guest that are online.
    pub online: CpuSet,
}

impl GuestStat {
    /// Parses the text of `/proc/stat`; `None`: the text is incomplete.
    pub fn parse(text: &str) -> Option<GuestStat> {
        let (mut switches, mut busy, mut online) = (None, None, CpuSet::new());
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("ctxt") => switches = Some(words.next()?.parse().ok()?),
                Some("cpu") => {
                    // user, nice, system, idle, iowait, irq, softirq, steal; the time of guests is included
                    // in user's.
                    let ticks: Vec<u64> = words.map_while(|it| it.parse().ok()).collect();
                    let of = |at: usize| ticks.get(at).copied();
                    let used = [of(0)?, of(1)?, of(2)?, of(5)?, of(6)?];
                    busy = Some(used.into_iter().fold(0u64, u64::saturating_add));
                }
                Some(word) => cpu(word).into_iter().for_each(|it| online.insert(it)),
                None => {}
            }
        }
        Some(GuestStat {
            switches: switches?,
            busy_ticks: busy?,
            online,
        })
    }

    /// The CPU time used, in ns.
    pub fn used_ns(&self) -> u64 {
        self.busy_ticks.saturating_mul(1_000_000_000 / USER_HZ)
    }
}

/// The CPU in a word such as `cpu12`.
fn cpu(word: &str) -> Option<CpuId> {
    word.strip_prefix("cpu")?.parse().ok().map(CpuId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWO: &str = "cpu  100 20 30 4000 50 6 7 80 9 1\ncpu0 50 10 15 2000 25 3 4 40 5 1\ncpu1 50 10 15 2000 25 3 3 40 4 0\n\
                       intr 12345 0 9\nctxt 987654\nbtime 1700000000\nprocesses 4321\nprocs_running 2\n";

    #[test]
    fn what_linux_writes() {
        let seen = GuestStat::parse(TWO);
        let expected = GuestStat {
            switches: 987_654,
            busy_ticks: 163,
            online: CpuSet::first(2),
        };
        assert_eq!(expected.used_ns(), 1_630_000_000);
        assert_eq!(seen, Some(expected));
    }

    #[test]
    fn this_kernels() {
        let text = std::fs::read_to_string("/proc/stat").unwrap();
        let seen = GuestStat::parse(&text).unwrap();
        assert!(seen.switches > 0 && seen.busy_ticks > 0 && !seen.online.is_empty());
    }

    #[test]
    fn what_is_missing_is_not_made_up() {
        for text in [
            "",
            "ctxt 5\n",
            "cpu 1 2 3 4 5 6 7\n",
            "cpu 1 2 3\nctxt 5\n",
            "cpu 1 2 3 4 5 x 7\nctxt 5\n",
            "cpu 1 2 3 4 5 6 7\nctxt -5\n",
        ] {
            assert_eq!(GuestStat::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_guest_writes(text in ".{0,300}", lines in proptest::collection::vec("(cpu[0-9]{0,3}|ctxt)( [0-9]{1,22}){0,10}", 0..9)) {
            for text in [text, lines.join("\n")] {
                let _ = GuestStat::parse(&text).map(|it| it.used_ns());
            }
        }
    }
}
