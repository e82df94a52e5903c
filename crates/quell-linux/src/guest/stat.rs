//! A guest's `/proc/stat` (Linux 2.6 and newer): what of it tells how busy its scheduler is.

use std::time::Duration;

/// Ticks of `/proc/stat` per second: USER_HZ, the same on all architectures that have KVM.
const USER_HZ: u64 = 100;

/// What a guest's scheduler and CPUs did since it booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestStat {
    /// How often it switched between threads.
    pub switches: u64,
    /// For how long its CPUs were busy, together, in 1/100 s: without idling, waiting for disks, and what the host took.
    pub busy_ticks: u64,
    /// How many of its CPUs are online.
    pub online: u32,
}

/// What a guest's scheduler and CPUs do now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GuestRates {
    /// How often it switches between threads, per second.
    pub switches: f64,
    /// How much CPU time it uses, in CPUs.
    pub used: f64,
}

impl GuestStat {
    /// From the text of `/proc/stat`; `None`: it says not all of it.
    pub fn parse(text: &str) -> Option<GuestStat> {
        let (mut switches, mut busy, mut online) = (None, None, 0);
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("ctxt") => switches = Some(words.next()?.parse().ok()?),
                Some("cpu") => {
                    // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in user's.
                    let ticks: Vec<u64> = words.map_while(|it| it.parse().ok()).collect();
                    let of = |at: usize| ticks.get(at).copied();
                    let used = [of(0)?, of(1)?, of(2)?, of(5)?, of(6)?];
                    busy = Some(used.into_iter().fold(0u64, u64::saturating_add));
                }
                Some(cpu) if is_cpu(cpu) => online += 1,
                _ => {}
            }
        }
        Some(GuestStat {
            switches: switches?,
            busy_ticks: busy?,
            online,
        })
    }

    /// What it did since then, that long ago. `None`: it began anew, or says so, or no time passed.
    pub fn since(&self, before: &GuestStat, passed: Duration) -> Option<GuestRates> {
        let seconds = passed.as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let switches = self.switches.checked_sub(before.switches)? as f64;
        let ticks = self.busy_ticks.checked_sub(before.busy_ticks)? as f64;
        Some(GuestRates {
            switches: switches / seconds,
            used: ticks / USER_HZ as f64 / seconds,
        })
    }
}

fn is_cpu(word: &str) -> bool {
    word.strip_prefix("cpu")
        .is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
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
            online: 2,
        };
        assert_eq!(seen, Some(expected));
    }

    #[test]
    fn this_kernels() {
        let text = std::fs::read_to_string("/proc/stat").unwrap();
        let seen = GuestStat::parse(&text).unwrap();
        assert!(seen.switches > 0 && seen.busy_ticks > 0 && seen.online > 0);
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

    #[test]
    fn rates() {
        let stat = |switches, busy_ticks| GuestStat {
            switches,
            busy_ticks,
            online: 2,
        };
        let second = Duration::from_secs(1);
        for (before, now, passed, expected) in [
            (stat(0, 0), stat(500, 150), second, Some((500.0, 1.5))),
            (stat(0, 0), stat(500, 150), second / 2, Some((1000.0, 3.0))),
            (stat(9, 9), stat(9, 9), second, Some((0.0, 0.0))),
            // It booted anew.
            (stat(900, 900), stat(5, 950), second, None),
            (stat(900, 900), stat(950, 5), second, None),
            (stat(0, 0), stat(1, 1), Duration::ZERO, None),
        ] {
            let rates = now.since(&before, passed);
            assert_eq!(rates.map(|it| (it.switches, it.used)), expected);
        }
    }

    proptest! {
        #[test]
        fn whatever_a_guest_writes(text in ".{0,300}", lines in proptest::collection::vec("(cpu[0-9]{0,3}|ctxt)( [0-9]{1,22}){0,10}", 0..9)) {
            let _ = GuestStat::parse(&text);
            if let Some(stat) = GuestStat::parse(&lines.join("\n")) {
                let rates = stat.since(&GuestStat { switches: 0, busy_ticks: 0, online: 0 }, Duration::from_millis(1));
                prop_assert!(rates.is_some_and(|it| it.switches.is_finite() && it.used.is_finite()));
            }
        }
    }
}
