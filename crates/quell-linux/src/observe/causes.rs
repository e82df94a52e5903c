//! For whom a tenant's threads waited, period by period.
//!
//! Problem: the kernel charges a wait to causes when it ends, which may be seconds after it began, and what was put down to
//! a wait that goes on may turn out otherwise (a bandwidth limit and stolen time are known at its end). Differences of such
//! counters do not add up to the time waited in the period.
//! Approach: how long was waited is known of each thread at any time; it is divided between the causes by how far the
//! counters, waits that go on included, are ahead of what was shown so far. So a period's causes sum to its
//! waiting exactly, no cause goes back, and what was put down wrongly is made good by the next periods.

/// One tenant's, since it is observed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Causes {
    /// What was shown so far, in ns; ascending by cause.
    shown: Vec<(u16, u64)>,
}

impl Causes {
    /// Divides `waited_ns` between causes; ascending, without those of 0 ns. `counted`, ascending, is what they count up to
    /// now, waits that go on included. What they do not account for is `unknown`'s.
    pub(crate) fn divide(
        &mut self,
        counted: impl Iterator<Item = (u16, u64)>,
        waited_ns: u64,
        unknown: u16,
    ) -> Vec<(u16, u64)> {
        let mut shown = self.shown.iter().peekable();
        let mut parts: Vec<(u16, u64)> = Vec::new();
        for (cause, ns) in counted {
            while shown.next_if(|(other, _)| *other < cause).is_some() {}
            let before = shown.next_if(|(other, _)| *other == cause);
            let ahead = ns.saturating_sub(before.map_or(0, |&(_, ns)| ns));
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
            // Less than a nanosecond for each.
            if let Some((_, most)) = parts.iter_mut().max_by_key(|(_, ns)| *ns) {
                *most += waited_ns - given;
            }
            parts.retain(|(_, ns)| *ns > 0);
        } else if ahead < waited_ns {
            add(&mut parts, unknown, waited_ns - ahead);
        }
        for &(cause, ns) in &parts {
            add(&mut self.shown, cause, ns);
        }
        parts
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

    fn divide(causes: &mut Causes, counted: &[(u16, u64)], waited_ns: u64) -> Vec<(u16, u64)> {
        causes.divide(counted.iter().copied(), waited_ns, UNKNOWN)
    }

    #[test]
    fn a_wait_that_goes_on_is_put_down_again_when_it_ends() {
        let mut causes = Causes::default();
        // 60 ms ready behind 1, as it seems: at its end 70 of 80 ms were a limit's (5).
        assert_eq!(divide(&mut causes, &[(1, 60)], 60), [(1, 60)]);
        assert_eq!(divide(&mut causes, &[(1, 10), (5, 70)], 20), [(5, 20)]);
        // What follows is the limit's until it has all that is due to it.
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
        /// Whatever the counters say, a period's causes sum to what was waited; where counters and waiting agree in the end,
        /// and nothing was unknown, so does what was shown.
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
            prop_assert_eq!(causes.shown.iter().map(|(_, ns)| ns).sum::<u64>(), waited);
            // In the end all that was waited is counted, each cause at least what was shown of it.
            let mut counted = causes.shown.clone();
            counted.retain(|(cause, _)| *cause != UNKNOWN);
            counted.iter_mut().for_each(|(_, ns)| *ns += 50);
            let due: u64 = counted.iter().map(|(_, ns)| ns).sum();
            let unknown = waited + 50 * counted.len() as u64 - due;
            let parts = divide(&mut causes, &counted, due + unknown - waited);
            prop_assert!(parts.iter().all(|(_, ns)| *ns == 50), "{parts:?} {last:?}");
        }
    }
}
