//! CPU time that a tenant's cgroup used beyond the time of the tenant's known threads.
//!
//! Problem: a process that was started elsewhere and ends some milliseconds after it moved into a tenant's
//! cgroup is never seen as a process of that tenant; a thousand such processes a second use a whole CPU.
//!
//! Approach: the kernel charges each cgroup for all that its threads run. What it charged since the last
//! reading beyond the run time of the known threads was used by unknown threads. The cgroup is read about
//! once a second, which costs little, and in every period after one in which unknown threads used CPU time.
//!
//! Limits: the threads' run times are read a moment before the cgroup is, and some kernels charge a cgroup
//! for interrupts as well, so a difference below [`SLACK_NS`] plus a hundredth counts as zero. The run delay
//! of unknown threads cannot be known.

/// Periods between readings while no unknown thread used CPU time: a second of 80 ms periods.
const PERIODS_BETWEEN: u32 = 12;

/// A difference that says nothing: what some CPUs execute between two readings of the same moment.
const SLACK_NS: u64 = 10_000_000;

/// The account of one tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// CPU time that the cgroup had used when it was last read; `None`: it was not read yet.
    used_ns: Option<u64>,
    /// CPU time of the known threads since then.
    known_ns: u64,
    /// The remainder of the differences so far, in ns.
    left_ns: i64,
    periods: u32,
    /// Whether the last reading found CPU time of unknown threads.
    some: bool,
}

impl Account {
    /// Adds the run time of the known threads in another period. Returns whether the cgroup is to be read.
    pub(crate) fn ran(&mut self, ns: u64) -> bool {
        self.known_ns += ns;
        self.periods += 1;
        self.some || self.used_ns.is_none() || self.periods >= PERIODS_BETWEEN
    }

    /// Takes a reading of the cgroup: it has used `used_ns` so far (`None`: the kernel does not tell).
    /// Returns the CPU time that unknown threads used since the last reading.
    pub(crate) fn read(&mut self, used_ns: Option<u64>) -> u64 {
        let before = std::mem::replace(&mut self.used_ns, used_ns);
        let known_ns = std::mem::take(&mut self.known_ns);
        self.periods = 0;
        let (Some(now), Some(before)) = (used_ns, before) else {
            (self.left_ns, self.some) = (0, false);
            return 0;
        };
        let used_ns = now.saturating_sub(before);
        let slack_ns = SLACK_NS + used_ns / 100;
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let left_ns = self.left_ns + signed(used_ns) - signed(known_ns);
        // After a reading that found unknown CPU time, each reading is of one period, so all of the
        // difference counts at once.
        let least_ns = if self.some { 0 } else { slack_ns };
        if left_ns > signed(least_ns) {
            self.some |= left_ns > signed(slack_ns);
            self.left_ns = 0;
            return left_ns as u64;
        }
        self.some = false;
        // Where the kernel charges seldom (CPUs without ticks) the missing CPU time comes with a later
        // reading.
        self.left_ns = left_ns.max(-signed(slack_ns + known_ns));
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// Feeds periods of (used, known) CPU time; returns the unknown CPU time found in each period.
    fn found(periods: &[(u64, u64)]) -> Vec<u64> {
        let (mut account, mut used_ns) = (Account::default(), 0);
        let periods = periods.iter().map(|(used, known)| {
            used_ns += used;
            match account.ran(*known) {
                true => account.read(Some(used_ns)),
                false => 0,
            }
        });
        periods.collect()
    }

    #[test]
    fn what_nobody_known_used_is_found_within_a_second_and_then_at_once() {
        let periods = vec![(60 * MS, 20 * MS); 40];
        let found = found(&periods);
        assert_eq!(found[..12].iter().sum::<u64>(), 0);
        assert_eq!(found[12], 12 * 40 * MS);
        assert!(found[13..].iter().all(|&ns| ns == 40 * MS));
    }

    #[test]
    fn what_is_read_a_moment_later_is_nothing() {
        // Eight busy CPUs, with a measuring error of a ms more or less.
        let periods: Vec<(u64, u64)> = (0..500)
            .map(|at| (640 * MS + at % 3 * MS, 641 * MS))
            .collect();
        assert_eq!(found(&periods).iter().sum::<u64>(), 0);
    }

    #[test]
    fn a_cgroup_that_cannot_be_read_tells_nothing() {
        let mut account = Account::default();
        assert!(account.ran(5));
        assert_eq!(account.read(None), 0);
        account.ran(5);
        assert_eq!(account.read(Some(1000 * MS)), 0, "what it was before");
        account.ran(5);
        assert_eq!(account.read(None), 0);
    }

    proptest! {
        /// In any order of charges: no more is found than was used, and everything but a second's slack is
        /// found.
        #[test]
        fn all_that_is_not_known_is_found_once(periods in proptest::collection::vec((0..80u64, 0..80u64), 1..300)) {
            let periods: Vec<(u64, u64)> = periods
                .into_iter()
                .map(|(known, other)| ((known + other) * MS, known * MS))
                .collect();
            let due: u64 = periods[1..].iter().map(|(used, known)| used - known).sum();
            let got: u64 = found(&periods).iter().sum();
            prop_assert!(got <= due);
            prop_assert!(got + 12 * 80 * MS + 2 * SLACK_NS >= due, "{got} of {due}");
        }
    }
}
