//! Weights of threads, in the kernel's scale, and of tenants, in cgroup v2's.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A thread's weight, in thousandths of the kernel's load weight (nice 0 is 1024, so 1 024 000).
///
/// The unit is an integer, so that a tenant's total stays exact, and a thousandth, so that steps of
/// a few percent do not vanish in rounding at the light end of the scale (nice 19 is 15).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Weight(pub u64);

/// A tenant's weight among tenants: 1 to 10 000, default 100, as cgroup v2's `cpu.weight`.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct TenantWeight(pub u32);

/// A nice value: -20 (heaviest) to 19 (lightest).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nice(i8);

/// The kernel's load weight of each nice value from -20 to 19 (`sched_prio_to_weight`,
/// kernel/sched/core.c): each step is a factor of about 1.25.
const LOAD_OF_NICE: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904,
    3906, 3121, 2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87,
    70, 56, 45, 36, 29, 23, 18, 15,
];

impl Weight {
    /// The weight of nice 0.
    pub const NICE_0: Weight = Weight::from_load(1024);
    /// The lightest weight a fair thread can have (nice 19).
    pub const MIN: Weight = Weight::from_load(15);
    /// The heaviest weight a fair thread can have (nice -20).
    pub const MAX: Weight = Weight::from_load(88761);

    /// The weight of a load weight of the kernel.
    pub const fn from_load(load: u32) -> Weight {
        Weight(load as u64 * 1000)
    }

    /// The weight in the unit of the kernel's load weight, with its fraction.
    pub fn as_load(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// The nice value whose weight is nearest by ratio.
    pub fn nearest_nice(self) -> Nice {
        let mut best = Nice(0);
        let mut best_ratio = f64::INFINITY;
        for nice in Nice::all() {
            let other = nice.weight();
            let (hi, lo) = (self.max(other), self.min(other));
            let ratio = hi.0 as f64 / lo.0.max(1) as f64;
            if ratio < best_ratio {
                (best, best_ratio) = (nice, ratio);
            }
        }
        best
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.as_load())
    }
}

impl TenantWeight {
    /// The weight of a tenant for which the configuration sets none.
    pub const DEFAULT: TenantWeight = TenantWeight(100);
}

impl Default for TenantWeight {
    fn default() -> Self {
        TenantWeight::DEFAULT
    }
}

impl fmt::Display for TenantWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Nice {
    /// The nice value, or `None` outside -20 to 19.
    pub const fn new(value: i32) -> Option<Nice> {
        if value >= -20 && value <= 19 {
            Some(Nice(value as i8))
        } else {
            None
        }
    }

    /// All nice values, heaviest first.
    pub fn all() -> impl Iterator<Item = Nice> {
        (-20..20).map(Nice)
    }

    /// The value as a number, -20 to 19.
    pub fn get(self) -> i32 {
        i32::from(self.0)
    }

    /// The weight that the kernel gives a thread of this nice value.
    pub fn weight(self) -> Weight {
        Weight::from_load(LOAD_OF_NICE[(i32::from(self.0) + 20) as usize])
    }
}

impl fmt::Display for Nice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nice_value_is_the_nearest_to_its_own_weight() {
        for nice in Nice::all() {
            assert_eq!(nice.weight().nearest_nice(), nice);
        }
    }

    #[test]
    fn nearest_is_by_ratio_not_by_difference() {
        // 1142 lies 118 above 1024 and 135 below 1277, but the geometric middle is 1143.5.
        assert_eq!(Weight::from_load(1142).nearest_nice().get(), 0);
        assert_eq!(Weight::from_load(1145).nearest_nice().get(), -1);
    }
}
