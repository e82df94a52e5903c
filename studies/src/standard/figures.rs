//! A victim's figures in one window, and over several.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The figures of a victim. `late` is from the time at which the victim wanted to wake to its waking,
/// `response` from that time to the end of its run. A figure that a kind of victim cannot tell is `null`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct VictimFigures {
    /// The number of wakeups that were served, of those due in the window.
    pub served: f64,
    /// Mean lateness, in µs.
    pub late_mean_us: Option<f64>,
    /// 99th percentile of the lateness, in µs; with fewer than 100 wakeups it is the worst.
    pub late_p99_us: Option<f64>,
    /// Worst lateness, in µs.
    pub late_worst_us: Option<f64>,
    /// Mean response, in µs.
    pub response_mean_us: Option<f64>,
    /// 99th percentile of the response, in µs.
    pub response_p99_us: Option<f64>,
    /// Worst response, in µs.
    pub response_worst_us: Option<f64>,
}

impl VictimFigures {
    /// The figures of these times, which are in ns.
    pub(super) fn of(
        late: Option<&Histogram<u64>>,
        response: Option<&Histogram<u64>>,
    ) -> VictimFigures {
        let some = |it: Option<&Histogram<u64>>, figure: fn(&Histogram<u64>) -> f64| {
            it.filter(|it| !it.is_empty()).map(|it| figure(it) / 1e3)
        };
        let p99 = |it: &Histogram<u64>| it.value_at_quantile(0.99) as f64;
        let worst = |it: &Histogram<u64>| it.max() as f64;
        VictimFigures {
            served: late.or(response).map_or(0.0, |it| it.len() as f64),
            late_mean_us: some(late, |it| it.mean()),
            late_p99_us: some(late, p99),
            late_worst_us: some(late, worst),
            response_mean_us: some(response, |it| it.mean()),
            response_p99_us: some(response, p99),
            response_worst_us: some(response, worst),
        }
    }

    /// The median of each figure over several windows.
    pub fn median<'a>(all: impl Iterator<Item = &'a VictimFigures> + Clone) -> VictimFigures {
        let of = |get: fn(&VictimFigures) -> Option<f64>| median(all.clone().filter_map(get));
        VictimFigures {
            served: of(|it| Some(it.served)).unwrap_or(0.0),
            late_mean_us: of(|it| it.late_mean_us),
            late_p99_us: of(|it| it.late_p99_us),
            late_worst_us: of(|it| it.late_worst_us),
            response_mean_us: of(|it| it.response_mean_us),
            response_p99_us: of(|it| it.response_p99_us),
            response_worst_us: of(|it| it.response_worst_us),
        }
    }

    /// Each figure over the baseline's.
    pub fn over(&self, base: &VictimFigures) -> VictimRatios {
        let by = |get: fn(&VictimFigures) -> Option<f64>| ratio(get(self)?, get(base)?);
        VictimRatios {
            served: by(|it| Some(it.served)),
            late_mean: by(|it| it.late_mean_us),
            late_p99: by(|it| it.late_p99_us),
            late_worst: by(|it| it.late_worst_us),
            response_mean: by(|it| it.response_mean_us),
            response_p99: by(|it| it.response_p99_us),
            response_worst: by(|it| it.response_worst_us),
        }
    }
}

/// A victim's figures over those of the baseline, in equal windows.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct VictimRatios {
    /// Wakeups served.
    pub served: Option<f64>,
    /// Mean lateness.
    pub late_mean: Option<f64>,
    /// 99th percentile of the lateness.
    pub late_p99: Option<f64>,
    /// Worst lateness.
    pub late_worst: Option<f64>,
    /// Mean response.
    pub response_mean: Option<f64>,
    /// 99th percentile of the response.
    pub response_p99: Option<f64>,
    /// Worst response.
    pub response_worst: Option<f64>,
}

impl VictimRatios {
    /// The mean that a victim is judged by: of its lateness, or of its response where it has no lateness.
    pub(super) fn judged_mean(&self) -> Option<f64> {
        self.late_mean.or(self.response_mean)
    }

    /// The 99th percentile that a victim is judged by.
    pub(super) fn judged_p99(&self) -> Option<f64> {
        self.late_p99.or(self.response_p99)
    }
}

/// A ratio; `None` where the base is not positive.
pub(super) fn ratio(value: f64, base: f64) -> Option<f64> {
    (base > 0.0).then_some(value / base)
}

/// The median, for an even number of values the mean of the middle two; `None` without values.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_each_figure_alone() {
        let figures = |served, late| VictimFigures {
            served,
            late_mean_us: late,
            ..VictimFigures::default()
        };
        let all = [
            figures(10.0, Some(3.0)),
            figures(30.0, Some(1.0)),
            figures(20.0, None),
        ];
        let median = VictimFigures::median(all.iter());
        assert_eq!((median.served, median.late_mean_us), (20.0, Some(2.0)));
        assert_eq!(median.late_p99_us, None);
        let ratios = all[1].over(&all[0]);
        assert_eq!(ratios.served, Some(3.0));
        assert_eq!(ratios.late_mean, Some(1.0 / 3.0));
    }

    #[test]
    fn figures_are_in_microseconds() {
        let mut late = super::super::victim::histogram();
        for ms in 1..=100u64 {
            late.saturating_record(ms * 1_000_000);
        }
        let figures = VictimFigures::of(Some(&late), None);
        assert_eq!(figures.served, 100.0);
        let near =
            |value: Option<f64>, expected: f64| (value.unwrap() / expected - 1.0).abs() < 2e-3;
        assert!(near(figures.late_mean_us, 50_500.0), "{figures:?}");
        assert!(near(figures.late_p99_us, 99_000.0), "{figures:?}");
        assert!(near(figures.late_worst_us, 100_000.0), "{figures:?}");
        assert_eq!(figures.response_mean_us, None);
    }
}
