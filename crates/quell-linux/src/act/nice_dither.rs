//! Weights finer than nice values: the rounding error is carried from period to period.
//!
//! Nice values are a factor of about 1.25 apart, so the nearest one misses a weight by up to 12 %.
//! Spending some periods on the neighbour at the other side makes the mean right. Done naively
//! (always the value nearest to weight plus error) this rewrites a thread's nice value nearly every
//! period; each write is a system call and a requeue of the thread, and no thread gains from weights
//! that are right within 160 ms rather than within 3 s. So:
//!
//! - A thread gets the nice value nearest to its weight, and gets it at once when the weight moves.
//! - The weight owed to it accumulates. Once [`DEBT_STEPS`] periods' worth of a whole step is owed,
//!   it moves to the neighbour until the debt is paid, then back.
//! - An error within [`TOLERANCE`] is not carried: a weight that a nice value meets is never left.
//!
//! A steady weight thus costs at most 2 writes in `4 * DEBT_STEPS` periods and usually none, and its
//! mean over `n` periods is off by at most `DEBT_STEPS / n` of a step, plus the tolerance.

use quell_model::{Nice, Weight};

/// The debt at which a thread moves one step, in periods spent one step away.
pub(super) const DEBT_STEPS: f64 = 8.0;

/// Relative error that is not worth a write.
pub(super) const TOLERANCE: f64 = 0.01;

/// The rounding error of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct NiceDither {
    /// Weight owed (positive) or overpaid so far, in periods times the wanted weight.
    owed: f64,
    /// The weight wanted last and the nice value nearest to it: most weights stay for long, and to find
    /// the nearest value costs too much for work that is done every period for every thread.
    nearest: Option<(Weight, Nice)>,
}

impl NiceDither {
    /// The nice value for the next period, given the one held in the period that ends now.
    pub fn next(&mut self, want: Weight, held: Nice) -> Nice {
        let load = want.clamp(Weight::MIN, Weight::MAX).as_load();
        let nearest = match self.nearest {
            Some((weight, nice)) if weight == want => nice,
            _ => want.nearest_nice(),
        };
        self.nearest = Some((want, nearest));
        let error = |nice: Nice| (load - nice.weight().as_load()) / load;
        let residue = error(nearest);
        let towards = if residue > 0.0 { -1 } else { 1 };
        let other = match Nice::new(nearest.get() + towards) {
            Some(other) if residue.abs() > TOLERANCE => other,
            _ => {
                self.owed = 0.0;
                return nearest;
            }
        };
        let limit = DEBT_STEPS * (error(other) - residue).abs();
        if held == nearest || held == other {
            // Bounded, so that a weight that keeps moving never builds a debt it must serve later.
            self.owed = (self.owed + error(held)).clamp(-2.0 * limit, 2.0 * limit);
        }
        let debt = self.owed * residue.signum();
        let threshold = if held == other { 0.0 } else { limit };
        if debt > threshold { other } else { nearest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Mean weight and number of changes over `periods` periods of a constant request.
    fn run(want: Weight, periods: u32) -> (f64, u32) {
        let mut nice_dither = NiceDither::default();
        let (mut held, mut sum, mut writes) = (want.nearest_nice(), 0.0, 0);
        for _ in 0..periods {
            let next = nice_dither.next(want, held);
            writes += u32::from(next != held);
            held = next;
            sum += held.weight().as_load();
        }
        (sum / f64::from(periods), writes)
    }

    proptest! {
        #[test]
        fn the_mean_is_right_and_writes_are_rare(load in 15_000u64..=88_761_000) {
            let want = Weight(load);
            let (mean, writes) = run(want, 2000);
            prop_assert!((mean / want.as_load() - 1.0).abs() < 0.012, "mean {mean} of {want}");
            prop_assert!(writes <= 2000 * 2 / 32 + 2, "{writes} writes");
        }

        #[test]
        fn a_moving_weight_is_followed_within_one_step(loads in prop::collection::vec(15_000u64..=88_761_000, 1..200)) {
            let mut nice_dither = NiceDither::default();
            let mut held = Nice::default();
            for load in loads {
                held = nice_dither.next(Weight(load), held);
                prop_assert!((held.get() - Weight(load).nearest_nice().get()).abs() <= 1);
            }
        }
    }

    #[test]
    fn a_weight_that_a_nice_value_meets_is_never_left() {
        for nice in Nice::all() {
            assert_eq!(run(nice.weight(), 500), (nice.weight().as_load(), 0));
        }
        assert_eq!(
            run(Weight::from_load(1028), 500).1,
            0,
            "0.4 % off is within the tolerance"
        );
        assert_eq!(
            run(Weight(1), 500),
            (15.0, 0),
            "lighter than nice 19 stays at nice 19"
        );
        assert_eq!(
            run(Weight(u64::MAX), 500).1,
            0,
            "heavier than nice -20 stays at nice -20"
        );
    }

    #[test]
    fn a_change_takes_effect_at_once() {
        let mut nice_dither = NiceDither::default();
        assert_eq!(
            nice_dither
                .next(Weight::from_load(1200), Nice::default())
                .get(),
            -1
        );
        assert_eq!(
            nice_dither
                .next(Weight::from_load(335), Nice::new(-1).unwrap())
                .get(),
            5
        );
    }

    #[test]
    fn between_two_steps_both_are_used_in_proportion() {
        // 1150 lies half way between 1024 and 1277: half of the time on each.
        let (mean, writes) = run(Weight::from_load(1150), 3200);
        assert!((mean - 1150.0).abs() < 5.0, "{mean}");
        assert!((150..=202).contains(&writes), "{writes}");
    }
}
