//! The score of a workload: its light tasks' waits compared with those under the reference.

use super::measure::{Light, Measured, measure};
use super::workload::Workload;
use quell_bench::side::Side;
use serde::{Deserialize, Serialize};

/// How many times as long as under the reference a light task may wait, beyond a slice.
pub const LIMIT: f64 = 1.5;
/// A slice, in ms.
pub const SLICE_MS: f64 = 3.0;
/// Shorter waits under the reference count as this, in ms: a few µs are nothing to compare with.
pub(super) const LEAST_MS: f64 = 0.2;
/// With fewer wakeups a 99th percentile says little.
const LEAST_SERVED: u32 = 50;

/// How a workload under a side compares with the reference.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Score {
    /// The greatest (p99 - a slice) / p99 under the reference, over all light tasks; more than [`LIMIT`] is
    /// too much.
    pub ratio: f64,
    /// The task with this ratio, under the side.
    pub light: Light,
    /// The task with this ratio, under the reference.
    pub reference: Light,
    /// The greatest difference between what a group gets and what it gets under the reference, in percent of
    /// the machine.
    pub share: f64,
    /// The index of the group with this difference; `None`: there are no groups.
    pub group: Option<usize>,
}

impl Score {
    /// Whether a light task waits too long.
    pub fn exceeds(&self) -> bool {
        self.ratio > LIMIT
    }
}

/// Compares the figures under a side with those under the reference.
pub fn score(reference: &Measured, measured: &Measured) -> Score {
    let mut score = Score::default();
    for (of, is) in reference.light.iter().zip(&measured.light) {
        let ratio = (is.p99_ms - SLICE_MS) / of.p99_ms.max(LEAST_MS);
        if of.served >= LEAST_SERVED && ratio > score.ratio {
            (score.ratio, score.light, score.reference) = (ratio, *is, *of);
        }
    }
    for (group, (of, is)) in reference.groups.iter().zip(&measured.groups).enumerate() {
        let off = (is - of).abs();
        if off > score.share {
            (score.share, score.group) = (off, Some(group));
        }
    }
    score
}

/// Measures a workload under a reference and another side, and compares.
///
/// # Errors
/// Where a side does not run on the simulator.
pub fn judge(
    workload: &Workload,
    reference: &Side,
    side: &Side,
    seconds: f64,
) -> anyhow::Result<Score> {
    let of = measure(workload, reference, seconds)?;
    Ok(score(&of, &measure(workload, side, seconds)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn light(p99_ms: f64, served: u32) -> Light {
        Light {
            p99_ms,
            served,
            ..Light::default()
        }
    }

    #[test]
    fn the_worst_of_those_with_enough_wakeups_counts() {
        let of = |light: Vec<Light>, groups: [f64; 2]| Measured {
            light,
            groups: groups.to_vec(),
        };
        let few = light(1.0, 49);
        let reference = of(vec![light(1.0, 100), few, light(0.001, 100)], [40.0, 60.0]);
        let is = of(
            vec![light(5.0, 9), light(90.0, 9), light(3.3, 9)],
            [40.5, 57.0],
        );
        let score = score(&reference, &is);
        assert!((score.ratio - 2.0).abs() < 1e-9, "{score:?}");
        assert_eq!((score.share, score.group), (3.0, Some(1)));
        assert!(score.exceeds());
    }
}
