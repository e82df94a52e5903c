//! Paired comparison of two sides of a benchmark.
//!
//! Problem: two sides measured minutes apart differ by what the machine did meanwhile, latency is nowhere
//! near normally distributed, and a percentile of a few seconds is decided by a single stall of the machine.
//! Approach: sides are measured in interleaved pairs that share their arrivals. The figure of all requests of
//! one side is compared with that of all requests of the other, so that a stall in one window weighs as many
//! requests as it met; exchanging the sides gives exactly the inverse. The interval is the percentile
//! bootstrap over pairs, which are drawn as wholes, with the percentiles widened for few pairs: the plain
//! bootstrap resamples from a spread that is too small by sqrt((n-1)/n) and does not account for Student's t,
//! and at 5 pairs would cover 83 % instead of 95 %. Below 5 pairs no resampling can reach 95 % (the range of
//! 2 ratios holds the median in half of all cases), so there the interval is Student's, of the pairs' own
//! ratios, on logarithms and around the estimate, wide as it must be; a single pair has no interval.
//!
//! Source: the widening is T. Hesterberg's ("What Teachers Should Know About the Bootstrap", The American
//! Statistician 69(4), 2015, section 4.3.2): percentile Φ(-sqrt(n/(n-1)) t) in place of α/2.
//!
//! Units: ratios have none.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Confidence of every interval.
pub const CONFIDENCE: f64 = 0.95;

/// Bootstrap resamples behind every interval.
pub const RESAMPLES: u32 = 20_000;

/// The fewest pairs that are resampled.
const LEAST_RESAMPLED: usize = 5;

/// A ratio and its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatioEstimate {
    /// The ratio of all pairs together: side / baseline.
    pub ratio: f64,
    /// Lower and upper end at [`CONFIDENCE`]; `None` with fewer than two pairs.
    pub interval: Option<(f64, f64)>,
    /// How many pairs have a ratio of their own.
    pub pairs: usize,
}

/// Compares two sides over `pairs` pairs. `ratio` is told how many times each pair counts and gives side /
/// baseline of the pairs counted so; `None`, or anything but a positive number, means that these pairs have
/// no ratio. The result is `None` when the pairs together have no ratio. Equal ratios and seeds give equal
/// estimates.
pub fn pooled_ratio(
    pairs: usize,
    seed: u64,
    ratio: impl Fn(&[u32]) -> Option<f64>,
) -> Option<RatioEstimate> {
    let log = |times: &[u32]| ratio(times).map(f64::ln).filter(|log| log.is_finite());
    let estimate = log(&vec![1; pairs])?;
    let single = |pair| log(&(0..pairs).map(|i| u32::from(i == pair)).collect::<Vec<_>>());
    let singles: Vec<f64> = (0..pairs).filter_map(single).collect();
    let interval = match singles.len() {
        0 | 1 => None,
        2..LEAST_RESAMPLED => student(estimate, &singles),
        n => tail(n).map(|tail| {
            let logs = resampled(pairs, seed, log);
            let last = logs.len() - 1;
            let low = ((tail * logs.len() as f64) as usize).min(last);
            (logs[low].exp(), logs[last - low].exp())
        }),
    };
    Some(RatioEstimate {
        ratio: estimate.exp(),
        interval,
        pairs: singles.len(),
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Student's interval as ratios around `center`, from the spread of the pairs' own logarithms.
fn student(center: f64, logs: &[f64]) -> Option<(f64, f64)> {
    let n = logs.len() as f64;
    let mean = mean(logs);
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let half = t_quantile(n)? * (variance / n).sqrt();
    Some(((center - half).exp(), (center + half).exp()))
}

/// Student's two-sided quantile at [`CONFIDENCE`] for `n` values.
fn t_quantile(n: f64) -> Option<f64> {
    Some(
        StudentsT::new(0.0, 1.0, n - 1.0)
            .ok()?
            .inverse_cdf(0.5 + CONFIDENCE / 2.0),
    )
}

/// The share of resamples to cut off at each end for `n` pairs; `None` with fewer than two pairs.
fn tail(n: usize) -> Option<f64> {
    if n < 2 {
        return None;
    }
    let n = n as f64;
    let t = t_quantile(n)?;
    Some(Normal::standard().cdf(-(n / (n - 1.0)).sqrt() * t))
}

/// Logarithms of resamples with replacement, ascending; at least one.
fn resampled(pairs: usize, seed: u64, log: impl Fn(&[u32]) -> Option<f64>) -> Vec<f64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut logs = Vec::with_capacity(RESAMPLES as usize);
    let mut times = vec![0; pairs];
    // At least five pairs have ratios of their own, so few resamples are without one.
    while logs.len() < RESAMPLES as usize {
        times.fill(0);
        for _ in 0..pairs {
            times[random.random_range(0..pairs)] += 1;
        }
        logs.extend(log(&times));
    }
    logs.sort_by(f64::total_cmp);
    logs
}

/// The seed of a pair's arrivals, from the benchmark's seed: both sides of a pair share it, every pair has
/// another. It has at most 53 bits, so that every JSON reader keeps it exact.
pub fn pair_seed(seed: u64, pair: u32) -> u64 {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(u64::from(pair));
    random.random::<u64>() >> 11
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Compares single values; the figure of all pairs together is their geometric mean.
    fn paired_ratio(pairs: &[(f64, f64)], seed: u64) -> Option<RatioEstimate> {
        let logs: Vec<f64> = pairs.iter().map(|(b, s)| (s / b).ln()).collect();
        pooled_ratio(pairs.len(), seed, |times| {
            let counted = logs.iter().zip(times).filter(|&(_, &times)| times > 0);
            let (sum, n) = counted.fold((0.0, 0.0), |(sum, n), (log, &times)| {
                (sum + log * f64::from(times), n + f64::from(times))
            });
            Some((sum / n).exp())
        })
    }

    #[test]
    fn widened_percentiles_match_hesterberg() {
        // Computed by hand from t tables: n=5: t=2.776, sqrt(5/4)*t=3.104, Phi(-3.104)=0.00095.
        assert!((tail(5).unwrap() - 0.00095).abs() < 2e-5);
        // n=10: t=2.262, sqrt(10/9)*t=2.3845, Phi=0.00855.
        assert!((tail(10).unwrap() - 0.00855).abs() < 5e-5);
        // Many pairs: the plain percentile.
        assert!((tail(100_000).unwrap() - 0.025).abs() < 1e-4);
        assert_eq!(tail(1), None);
    }

    #[test]
    fn equal_ratios_leave_no_doubt() {
        let estimate = paired_ratio(&[(10.0, 5.0), (20.0, 10.0), (40.0, 20.0)], 1).unwrap();
        assert!((estimate.ratio - 0.5).abs() < 1e-12);
        let (low, high) = estimate.interval.unwrap();
        assert!((low - 0.5).abs() < 1e-12 && (high - 0.5).abs() < 1e-12);
    }

    #[test]
    fn few_pairs_get_students_interval() {
        // Logs 0, d, 2d: mean d, deviation d, t(2) = 4.3027.
        let pairs = [(1.0, 1.0), (1.0, 2.0), (1.0, 4.0)];
        let estimate = paired_ratio(&pairs, 1).unwrap();
        assert!((estimate.ratio - 2.0).abs() < 1e-12, "geometric mean");
        let half = 4.3027 / 3f64.sqrt() * 2f64.ln();
        let (low, high) = estimate.interval.unwrap();
        assert!((low.ln() - (2f64.ln() - half)).abs() < 1e-3);
        assert!((high.ln() - (2f64.ln() + half)).abs() < 1e-3);
    }

    /// Compares sums: their ratio need not be the mean of the pairs' ratios.
    fn pooled_sums(pairs: &[(f64, f64)]) -> Option<RatioEstimate> {
        pooled_ratio(pairs.len(), 1, |times| {
            let sum = |of: fn(&(f64, f64)) -> f64| -> f64 {
                let terms = pairs.iter().zip(times);
                terms
                    .map(|(pair, &times)| of(pair) * f64::from(times))
                    .sum()
            };
            Some(sum(|p| p.1) / sum(|p| p.0))
        })
    }

    #[test]
    fn what_has_no_ratio_is_left_out() {
        assert_eq!(pooled_sums(&[(0.0, 5.0)]), None);
        assert_eq!(pooled_sums(&[(5.0, 0.0)]), None);
        assert_eq!(pooled_sums(&[(f64::NAN, 1.0)]), None);
        assert_eq!(pooled_sums(&[]), None);
        let estimate = pooled_sums(&[(0.0, 0.0), (4.0, 6.0)]).unwrap();
        assert_eq!(
            (estimate.ratio, estimate.interval, estimate.pairs),
            (1.5, None, 1)
        );
    }

    #[test]
    fn a_pair_weighs_what_it_holds() {
        // One window met ten times the requests of the other windows, and shows no difference.
        let estimate = pooled_sums(&[
            (100.0, 100.0),
            (10.0, 5.0),
            (10.0, 5.0),
            (10.0, 5.0),
            (10.0, 5.0),
        ])
        .unwrap();
        assert!((estimate.ratio - 120.0 / 140.0).abs() < 1e-12);
        let (low, high) = estimate.interval.unwrap();
        assert!(
            (low - 0.5).abs() < 1e-9 && (high - 1.0).abs() < 0.02,
            "{low} {high}"
        );
    }

    /// The interval must hold the true ratio about as often as it says. Normal logarithms with a
    /// known mean; the plain percentile bootstrap holds it in about 83 % of such experiments.
    #[test]
    fn five_pairs_cover_as_promised() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let normal = rand_distr::Normal::new(0.2, 0.3).unwrap();
        let experiments = 200;
        let held = (0..experiments)
            .filter(|&i| {
                let pairs: Vec<(f64, f64)> = (0..5)
                    .map(|_| (1.0, random.sample::<f64, _>(normal).exp()))
                    .collect();
                let (low, high) = paired_ratio(&pairs, i).unwrap().interval.unwrap();
                (low..=high).contains(&0.2f64.exp())
            })
            .count();
        assert!(
            held * 100 >= experiments as usize * 90,
            "{held} of {experiments}"
        );
    }

    #[test]
    fn pair_seeds_differ_and_fit_a_json_number() {
        let mut seeds: Vec<u64> = (0..100).map(|pair| pair_seed(1, pair)).collect();
        assert_eq!(seeds[3], pair_seed(1, 3));
        assert_ne!(seeds[3], pair_seed(2, 3));
        assert!(seeds.iter().all(|&seed| seed < 1 << 53));
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 100);
    }

    fn pairs() -> impl Strategy<Value = Vec<(f64, f64)>> {
        prop::collection::vec((0.001f64..1e6, 0.001f64..1e6), 5..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn interval_lies_within_the_ratios_and_holds_the_estimate(pairs in pairs(), seed: u64) {
            let estimate = paired_ratio(&pairs, seed).unwrap();
            let (low, high) = estimate.interval.unwrap();
            let ratios: Vec<f64> = pairs.iter().map(|(b, s)| s / b).collect();
            let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let most = ratios.iter().copied().fold(0.0, f64::max);
            prop_assert!(least <= low * (1.0 + 1e-9) && high <= most * (1.0 + 1e-9));
            prop_assert!(low <= estimate.ratio * (1.0 + 1e-9) && estimate.ratio <= high * (1.0 + 1e-9));
        }

        #[test]
        fn exchanging_the_sides_inverts(pairs in pairs(), seed: u64) {
            let there = paired_ratio(&pairs, seed).unwrap();
            let swapped: Vec<(f64, f64)> = pairs.iter().map(|&(b, s)| (s, b)).collect();
            let back = paired_ratio(&swapped, seed).unwrap();
            prop_assert!((there.ratio * back.ratio - 1.0).abs() < 1e-9);
            let ((low, high), (back_low, back_high)) = (there.interval.unwrap(), back.interval.unwrap());
            prop_assert!((low * back_high - 1.0).abs() < 1e-9 && (high * back_low - 1.0).abs() < 1e-9);
        }

        #[test]
        fn the_unit_does_not_matter(pairs in pairs(), seed: u64, scale in 0.01f64..100.0) {
            let scaled: Vec<(f64, f64)> = pairs.iter().map(|&(b, s)| (b * scale, s * scale)).collect();
            let (plain, scaled) = (paired_ratio(&pairs, seed).unwrap(), paired_ratio(&scaled, seed).unwrap());
            prop_assert!((plain.ratio / scaled.ratio - 1.0).abs() < 1e-9);
        }
    }
}
