//! The evidence of pairs of blocks about an effect, valid however often it is evaluated.
//!
//! # Problem
//! A lever acts in one block of a pair and rests in the other, in random order. Responses differ from
//! block to block by far more than most levers change them, and the guard evaluates the evidence after
//! every pair: a test that is made for one evaluation would sooner or later find an effect where there
//! is none.
//!
//! # Approach
//! A test by betting (Waudby-Smith and Ramdas, *Estimating means of bounded random variables by
//! betting*, JRSS B 2024; Ramdas, Grünwald, Vovk and Shafer, *Game-theoretic statistics and safe
//! anytime-valid inference*, 2023). A pair's figure `d` is the logarithm of the mean response where the
//! lever acts over that where it rests. If the lever changes nothing, the coin that chose the order
//! makes `d` and `-d` equally likely, whatever the load does. So a player who bets a part `b` of the
//! wealth on the sign has `1 + b * tanh(d / scale)` times as much afterwards, which is 1 on average; the
//! probability that the wealth ever reaches `1 / error` times the first stake is at most `error`
//! (Ville's inequality), at whatever pair one evaluates it. The bets are several, each with an equal
//! part of the stake; one player bets that `d` is above zero, another that it is below. The scale is the
//! median size of the earlier `d`, which is known before the pair.
//!
//! An effect `e` is in the interval if neither player, betting on `d - e`, would have reached that
//! wealth: the interval has the true effect at every evaluation, but for twice the error (where the
//! lever moves each pair by the same part).

use quell_model::EffectInterval;

/// The parts of the wealth that are bet.
const BETS: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 0.95];

/// The first pair's scale: 10 %.
const FIRST_SCALE: f64 = 0.1;
/// The least scale: effects below 1 % are not told apart.
const LEAST_SCALE: f64 = 0.01;
/// The logarithm of the largest effect, about a factor of 20; no larger one is searched for.
const MOST: f64 = 3.0;
/// The bound of a player's wealth: more evidence is not needed.
const MOST_WEALTH: f64 = 1e30;

/// The pairs of one test.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Evidence {
    pairs: Vec<Pair>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Pair {
    figure: f64,
    scale: f64,
}

impl Evidence {
    /// Adds a pair by its figure: the logarithm of a ratio.
    pub fn add(&mut self, figure: f64) {
        let scale = self.scale();
        self.pairs.push(Pair { figure, scale });
    }

    /// How many pairs there are.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// The evidence of the last pairs alone, at most `pairs`.
    pub fn last(&self, pairs: usize) -> Evidence {
        let from = self.pairs.len().saturating_sub(pairs);
        Evidence {
            pairs: self.pairs[from..].to_vec(),
        }
    }

    /// The wealth of the player who bets that the lever shortens responses, for each unit at the start.
    pub fn for_less(&self) -> f64 {
        self.wealth(0.0, -1.0)
    }

    /// The wealth of the player who bets that the lever lengthens responses, for each unit at the start.
    pub fn for_more(&self) -> f64 {
        self.wealth(0.0, 1.0)
    }

    /// The interval of effects that are not ruled out with that error on each side; `None` until the pairs
    /// are enough to bound it on both sides.
    pub fn interval(&self, error: f64) -> Option<EffectInterval> {
        let rules_out = |effect: f64, side: f64| self.wealth(effect, side) >= 1.0 / error;
        if !rules_out(-MOST, 1.0) || !rules_out(MOST, -1.0) {
            return None;
        }
        // A larger effect leaves less wealth to the player who bets on longer responses.
        let low = first(|effect| !rules_out(effect, 1.0));
        let high = -first(|less| !rules_out(-less, -1.0));
        let sum = |effect: f64| -> f64 {
            let pairs = self.pairs.iter();
            pairs
                .map(|it| ((it.figure - effect) / it.scale).tanh())
                .sum()
        };
        let middle = first(|effect| sum(effect) <= 0.0);
        Some(EffectInterval {
            ratio: middle.exp(),
            low: low.exp(),
            high: high.exp(),
        })
    }

    /// The median size of the figures so far.
    fn scale(&self) -> f64 {
        let mut sizes: Vec<f64> = self.pairs.iter().map(|it| it.figure.abs()).collect();
        if sizes.is_empty() {
            return FIRST_SCALE;
        }
        sizes.sort_by(f64::total_cmp);
        sizes[sizes.len() / 2].max(LEAST_SCALE)
    }

    /// The wealth from one unit, had all figures been less by that effect.
    fn wealth(&self, effect: f64, side: f64) -> f64 {
        let mut each = [1.0f64; BETS.len()];
        for it in &self.pairs {
            let outcome = side * ((it.figure - effect) / it.scale).tanh();
            for (wealth, bet) in each.iter_mut().zip(BETS) {
                *wealth = (*wealth * (1.0 + bet * outcome)).min(MOST_WEALTH);
            }
        }
        each.into_iter().sum::<f64>() / BETS.len() as f64
    }
}

/// The least effect for which `holds` is true, if it is true for all effects above one.
fn first(holds: impl Fn(f64) -> bool) -> f64 {
    let (mut below, mut above) = (-MOST, MOST);
    while above - below > 1e-4 {
        let middle = (below + above) / 2.0;
        match holds(middle) {
            true => above = middle,
            false => below = middle,
        }
    }
    (below + above) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    const ERROR: f64 = 0.025;

    /// A pair's noise: the sum of uniforms of a standard deviation of 15 %, and now and then a burst.
    fn noise(random: &mut StdRng) -> f64 {
        let normal: f64 = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
        let burst = if random.random_bool(0.05) { 4.0 } else { 1.0 };
        0.15 * normal * burst
    }

    /// After how many of `pairs` the effect is found to be less, and to be more.
    fn found(effect: f64, pairs: usize, seed: u64) -> (Option<usize>, Option<usize>) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut evidence = Evidence::default();
        let (mut less, mut more) = (None, None);
        for pair in 1..=pairs {
            evidence.add(effect + noise(&mut random));
            if evidence.for_less() >= 1.0 / ERROR {
                less.get_or_insert(pair);
            }
            if evidence.for_more() >= 1.0 / ERROR {
                more.get_or_insert(pair);
            }
        }
        (less, more)
    }

    #[test]
    fn without_an_effect_seldom_is_one_found_however_often_it_is_looked() {
        let all: Vec<_> = (0..1000).map(|seed| found(0.0, 60, seed)).collect();
        let less = all.iter().filter(|it| it.0.is_some()).count();
        let more = all.iter().filter(|it| it.1.is_some()).count();
        // The error allows at most 25 each; a test that finds nothing at all would be of no use either.
        assert!(
            (1..=25).contains(&less) && (1..=25).contains(&more),
            "{less} {more}"
        );
    }

    #[test]
    fn an_effect_is_found_sooner_the_larger_it_is() {
        let median = |effect: f64| {
            let mut after: Vec<usize> = (0..101)
                .map(|seed| found(effect, 200, seed).0.unwrap_or(usize::MAX))
                .collect();
            after.sort_unstable();
            after[50]
        };
        let [half, fifth, tenth] = [0.5f64, 0.8, 0.9].map(|ratio| median(ratio.ln()));
        assert!(
            half <= 9 && fifth <= 20 && tenth <= 60,
            "{half} {fifth} {tenth}"
        );
        assert!(half < fifth && fifth < tenth);
    }

    #[test]
    fn intervals_have_the_effect_at_every_look_but_for_the_error() {
        let misses = (0..300).filter(|&seed| {
            let mut random = StdRng::seed_from_u64(seed);
            let mut evidence = Evidence::default();
            (0..40).any(|_| {
                evidence.add(-0.2 + noise(&mut random));
                let interval = evidence.interval(ERROR);
                interval.is_some_and(|it| it.low > (-0.2f64).exp() || it.high < (-0.2f64).exp())
            })
        });
        let misses = misses.count();
        assert!(
            misses <= 15,
            "{misses} of 300, where twice 2.5 % are allowed"
        );
    }

    #[test]
    fn an_interval_is_around_its_guess_and_narrows() {
        let mut evidence = Evidence::default();
        let mut random = StdRng::seed_from_u64(7);
        let mut widths = Vec::new();
        for pair in 1..=60 {
            evidence.add(-0.2 + noise(&mut random));
            let interval = evidence.interval(ERROR);
            // 1.95 to the power of 5 is 28: by then no effect can be ruled out.
            assert!(pair > 5 || interval.is_none());
            if let Some(it) = interval {
                assert!(it.low <= it.ratio && it.ratio <= it.high, "{it:?}");
                widths.push(it.high - it.low);
            }
        }
        assert!(widths[widths.len() - 1] < widths[0] / 2.0, "{widths:?}");
    }

    #[test]
    fn whatever_the_figures_are_nothing_overflows() {
        let mut evidence = Evidence::default();
        for pair in 0..500 {
            evidence.add(if pair % 7 == 0 { -40.0 } else { 900.0 });
        }
        let (less, more) = (evidence.for_less(), evidence.for_more());
        assert!(less.is_finite() && more.is_finite() && more > less);
    }
}
