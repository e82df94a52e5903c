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

/// The causes of one tenant, since it has been observed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Causes {
    /// For each cause that ever was one, ascending.
    known: Vec<Known>,
    /// The causes of which more was counted than shown, ascending. With many tenants most causes are settled.
    open: Vec<u16>,
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
    /// call at least; `going_on` is what waits that go on add to them up to now; both ascending by cause.
    /// Time that they do not account for goes to the cause `unknown`.
    pub(crate) fn divide(
        &mut self,
        counted: impl Iterator<Item = (u16, u64)>,
        going_on: &[(u16, u64)],
        waited_ns: u64,
        unknown: u16,
    ) -> Vec<(u16, u64)> {
        let open = std::mem::take(&mut self.open);
        let mut counted = counted.peekable();
        let mut going_on = going_on.iter().copied().peekable();
        let mut open = open.into_iter().peekable();
        // The places of the causes that have time to show, in `known`, with that time.
        let mut parts: Vec<(usize, u64)> = Vec::new();
        let mut from = 0;
        loop {
            let next = [
                counted.peek().map(|it| it.0),
                going_on.peek().map(|it| it.0),
                open.peek().copied(),
            ];
            let Some(cause) = next.into_iter().flatten().min() else {
                break;
            };
            open.next_if_eq(&cause);
            let at = self.place(cause, from);
            let known = &mut self.known[at];
            if let Some((_, ns)) = counted.next_if(|it| it.0 == cause) {
                known.counted = ns;
            }
            let more = going_on.next_if(|it| it.0 == cause).map_or(0, |it| it.1);
            let ahead = (known.counted + more).saturating_sub(known.shown);
            if ahead > 0 {
                parts.push((at, ahead));
            }
            from = at + 1;
        }
        let ahead: u64 = parts.iter().map(|(_, ns)| ns).sum();
        if ahead > waited_ns {
            let part =
                |ns: u64| (u128::from(ns) * u128::from(waited_ns) / u128::from(ahead)) as u64;
            let mut given = 0;
            for (_, ns) in &mut parts {
                *ns = part(*ns);
                given += *ns;
            }
            // The remainder of the division: less than a nanosecond for each cause.
            if let Some((_, most)) = parts.iter_mut().max_by_key(|(_, ns)| *ns) {
                *most += waited_ns - given;
            }
        }
        for &(at, ns) in &parts {
            self.show(at, ns);
        }
        let shown = parts.iter().filter(|(_, ns)| *ns > 0);
        let mut parts: Vec<(u16, u64)> =
            shown.map(|&(at, ns)| (self.known[at].cause, ns)).collect();
        if ahead < waited_ns {
            add(&mut parts, unknown, waited_ns - ahead);
            let at = self.place(unknown, 0);
            self.known[at].shown += waited_ns - ahead;
        }
        parts
    }

    /// Shows more of a cause. Causes are shown in their order, and one that is not settled by it stays open.
    fn show(&mut self, at: usize, ns: u64) {
        let known = &mut self.known[at];
        known.shown += ns;
        if known.counted > known.shown {
            self.open.push(known.cause);
        }
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

    /// The place of a cause in `known`, which is not before `from`.
    fn place(&mut self, cause: u16, from: usize) -> usize {
        let later = &self.known[from..];
        match later.binary_search_by_key(&cause, |it| it.cause) {
            Ok(at) => from + at,
            Err(at) => {
                let new = Known {
                    cause,
                    counted: 0,
                    shown: 0,
                };
                self.known.insert(from + at, new);
                from + at
            }
        }
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
