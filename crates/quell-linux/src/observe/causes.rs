//! The causes of the run delay of a tenant's threads, period by period.
//!
//! Problem: the kernel side charges a wait to its causes when the wait ends, which may be seconds after it
//! began, and the causes assumed for a wait that goes on may turn out to be others (a bandwidth limit and
//! stolen time are known only at its end). Differences of such counters do not add up to the run delay of the
//! period.
//!
//! Approach: the run delay of each thread is known at any time. It is divided between the causes in
//! proportion to how far the counters, waits that go on included, are ahead of what was shown so far. So the
//! causes of a period sum to its run delay exactly, no cause's total goes back, and time that was put down to
//! a wrong cause is corrected in the next periods.

use std::collections::{BTreeMap, BTreeSet};

/// The causes of one tenant, since it has been observed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Causes {
    /// For each cause that ever was one, ascending.
    known: Vec<Known>,
    /// The causes of which more was counted than shown. With many tenants most causes are settled.
    open: BTreeSet<u16>,
}

/// The time of a cause, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    cause: u16,
    /// Counted so far, of waits that ended.
    counted: u64,
    /// Shown so far.
    shown: u64,
}

impl Causes {
    /// Divides `waited_ns` between the causes. The result is ascending by cause, without causes of 0 ns.
    /// `counted` has the counters of waits that ended, of the causes whose counter changed since the last
    /// call at least; `going_on`, ascending by cause, is what waits that go on add to them up to now. Time
    /// that they do not account for goes to the cause `unknown`.
    pub(crate) fn divide(
        &mut self,
        counted: impl Iterator<Item = (u16, u64)>,
        going_on: &[(u16, u64)],
        waited_ns: u64,
        unknown: u16,
    ) -> Vec<(u16, u64)> {
        for (cause, ns) in counted {
            let known = self.known(cause);
            known.counted = ns;
            self.settle(cause);
        }
        let mut ahead: BTreeMap<u16, u64> = self.open.iter().map(|cause| (*cause, 0)).collect();
        ahead.extend(going_on.iter().copied());
        let mut parts: Vec<(u16, u64)> = Vec::new();
        for (cause, going_on) in ahead {
            let known = self.known(cause);
            let ahead = (known.counted + going_on).saturating_sub(known.shown);
            if ahead > 0 {
                parts.push((cause, ahead));
            }
        }
        let ahead: u64 = parts.iter().map(|(_, ns)| ns).sum();
        if ahead > waited_ns {
            let part =
                |ns: u64| (u128::from(ns) * u128::from(waited_ns) / u128::from(ahead)) as u64;
            parts.iter_mut().for_each(|(_, ns)| *ns = part(*ns));
            let given: u64 = parts.iter().map(|(_, ns)| ns).sum();
            // The remainder of the division: less than a nanosecond for each cause.
            if let Some((_, most)) = parts.iter_mut().max_by_key(|(_, ns)| *ns) {
                *most += waited_ns - given;
            }
            parts.retain(|(_, ns)| *ns > 0);
        } else if ahead < waited_ns {
            add(&mut parts, unknown, waited_ns - ahead);
        }
        for &(cause, ns) in &parts {
            self.known(cause).shown += ns;
            self.settle(cause);
        }
        parts
    }

    /// Lets what was counted and what was shown agree, of one cause or of all: what is counted from now on is
    /// another tenant's.
    pub(crate) fn begin_anew(&mut self, cause: Option<u16>) {
        let meant = |it: u16| cause.is_none_or(|cause| cause == it);
        for known in self.known.iter_mut().filter(|it| meant(it.cause)) {
            known.shown = known.counted;
        }
        self.open.retain(|it| !meant(*it));
    }

    fn known(&mut self, cause: u16) -> &mut Known {
        let at = self.known.binary_search_by_key(&cause, |it| it.cause);
        let at = at.unwrap_or_else(|at| {
            let (counted, shown) = (0, 0);
            let new = Known {
                cause,
                counted,
                shown,
            };
            self.known.insert(at, new);
            at
        });
        &mut self.known[at]
    }

    /// Keeps a cause among the open ones as long as more of it was counted than shown.
    fn settle(&mut self, cause: u16) {
        let known = *self.known(cause);
        match known.counted > known.shown {
            true => self.open.insert(cause),
            false => self.open.remove(&cause),
        };
    }
}

fn add(list: &mut Vec<(u16, u64)>, cause: u16, ns: u64) {
    match list.binary_search_by_key(&cause, |(other, _)| *other) {
        Ok(at) => list[at].1 += ns,
        Err(at) => list.insert(at, (cause, ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNKNOWN: u16 = 9;

    /// Divides a time where all waits go on.
    fn divide(causes: &mut Causes, counted: &[(u16, u64)], waited_ns: u64) -> Vec<(u16, u64)> {
        causes.divide([].into_iter(), counted, waited_ns, UNKNOWN)
    }

    fn shown(causes: &Causes) -> Vec<(u16, u64)> {
        causes.known.iter().map(|it| (it.cause, it.shown)).collect()
    }

    #[test]
    fn what_was_counted_and_not_shown_yet_is_kept_without_being_told_again() {
        let mut causes = Causes::default();
        let mut divide = |counted: &[(u16, u64)], going_on: &[(u16, u64)], waited: u64| {
            causes.divide(counted.iter().copied(), going_on, waited, UNKNOWN)
        };
        assert_eq!(divide(&[(1, 60), (2, 20)], &[], 40), [(1, 30), (2, 10)]);
        assert_eq!(divide(&[], &[], 20), [(1, 15), (2, 5)]);
        assert_eq!(divide(&[(2, 24)], &[(3, 6)], 30), [(1, 15), (2, 9), (3, 6)]);
        // The wait that went on is counted when it ends, and not shown twice.
        assert_eq!(divide(&[(3, 7)], &[], 1), [(3, 1)]);
        assert_eq!(divide(&[], &[], 3), [(UNKNOWN, 3)]);
    }

    #[test]
    fn what_was_not_settled_for_a_tenant_is_not_shown_for_the_next() {
        let mut causes = Causes::default();
        // Cause 1 is ahead by 50, cause 2 was shown 10 too much.
        assert_eq!(divide(&mut causes, &[(2, 10)], 10), [(2, 10)]);
        causes.divide([(1, 50)].into_iter(), &[], 0, UNKNOWN);
        let mut one = causes.clone();
        one.begin_anew(Some(1));
        assert_eq!(
            one.divide([(2, 4)].into_iter(), &[], 6, UNKNOWN),
            [(UNKNOWN, 6)]
        );
        causes.begin_anew(None);
        assert_eq!(
            causes.divide([(2, 4)].into_iter(), &[], 6, UNKNOWN),
            [(2, 4), (UNKNOWN, 2)]
        );
    }

    #[test]
    fn a_wait_that_goes_on_is_put_down_again_when_it_ends() {
        let mut causes = Causes::default();
        // 60 ms of ready time seem to be due to cause 1; at the end of the wait 70 of 80 ms were a limit's
        // (cause 5).
        assert_eq!(divide(&mut causes, &[(1, 60)], 60), [(1, 60)]);
        assert_eq!(divide(&mut causes, &[(1, 10), (5, 70)], 20), [(5, 20)]);
        // The following run delay goes to the limit until the limit has all that is due to it.
        assert_eq!(divide(&mut causes, &[(1, 40), (5, 70)], 30), [(5, 30)]);
        assert_eq!(
            divide(&mut causes, &[(1, 70), (5, 70)], 30),
            [(1, 10), (5, 20)]
        );
    }

    #[test]
    fn what_no_cause_counts_is_unknown() {
        let mut causes = Causes::default();
        assert_eq!(divide(&mut causes, &[(1, 3)], 10), [(1, 3), (UNKNOWN, 7)]);
        assert_eq!(divide(&mut causes, &[(1, 3)], 0), []);
        assert_eq!(divide(&mut causes, &[], 4), [(UNKNOWN, 4)]);
    }

    proptest! {
        /// Whatever the counters say, the causes of a period sum to its run delay; where counters and run
        /// delay agree in the end, and nothing was unknown, the totals shown agree too.
        #[test]
        fn causes_sum_to_the_waiting(
            periods in prop::collection::vec((prop::collection::vec(0u64..100, 4), 0u64..200), 1..20),
        ) {
            let mut causes = Causes::default();
            let (mut waited, mut last) = (0, Vec::new());
            for (counted, more) in &periods {
                let counted: Vec<(u16, u64)> = (0..).zip(counted.iter().copied()).collect();
                let parts = divide(&mut causes, &counted, *more);
                prop_assert_eq!(parts.iter().map(|(_, ns)| ns).sum::<u64>(), *more);
                prop_assert!(parts.iter().all(|(_, ns)| *ns > 0) && parts.is_sorted());
                waited += more;
                last = counted;
            }
            prop_assert_eq!(shown(&causes).iter().map(|(_, ns)| ns).sum::<u64>(), waited);
            // In the end all run delay is counted, and each cause has at least what was shown of it.
            let mut counted = shown(&causes);
            counted.retain(|(_, ns)| *ns > 0);
            counted.retain(|(cause, _)| *cause != UNKNOWN);
            counted.iter_mut().for_each(|(_, ns)| *ns += 50);
            let due: u64 = counted.iter().map(|(_, ns)| ns).sum();
            let unknown = waited + 50 * counted.len() as u64 - due;
            let parts = divide(&mut causes, &counted, due + unknown - waited);
            prop_assert!(parts.iter().all(|(_, ns)| *ns == 50), "{parts:?} {last:?}");
        }
    }
}
