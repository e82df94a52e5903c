//! Per-entity load tracking (PELT): how much an entity ran, or was runnable, of late.
//!
//! How: averages decay geometrically; a contribution of 32 periods ago counts half. A period is 1024 units of
//! 1024 ns, 1.049 ms. An average is updated when it is read, in constant time whatever the time since: the
//! decay over `n` periods and `k` 32nds of a period comes from two tables, and the rest of less than 33 us is
//! linear.
//!
//! Limits: unlike the kernel's, averages are floating-point numbers and decay also within a period, so they
//! lack the kernel's steps (of 2 % at most) at the ends of periods.

use crate::events::Nanos;

/// The kernel's unit of time is 1024 ns; its log2.
const UNIT: u32 = 10;
/// The units of a period; log2.
const PERIOD: u32 = 10;
/// The periods after which a contribution counts half.
const HALF_LIFE: u64 = 32;
/// 0.5^(1/32), the decay of one period.
const Y: f64 = 0.978_572_062_087_700_1;
/// 0.5^(1/1024), the decay of a 32nd of a period.
const Y_32ND: f64 = 0.999_323_327_502_650_7;

const fn powers(base: f64) -> [f64; 32] {
    let mut table = [1.0; 32];
    let mut n = 1;
    while n < 32 {
        table[n] = table[n - 1] * base;
        n += 1;
    }
    table
}

static PERIODS: [f64; 32] = powers(Y);
static PARTS: [f64; 32] = powers(Y_32ND);

/// The part of an average that is left after this many units.
fn decay(units: u64) -> f64 {
    let periods = units >> PERIOD;
    let halvings = periods / HALF_LIFE;
    if halvings > 60 {
        return 0.0;
    }
    let part = (units & 1023) / 32;
    let rest = (units % 32) as f64 / 32.0;
    let halved = PERIODS[(periods % HALF_LIFE) as usize] / (1u64 << halvings) as f64;
    halved * PARTS[part as usize] * (1.0 - (1.0 - Y_32ND) * rest)
}

/// The averages of a thread, of a group's entity on a CPU, or of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pelt {
    /// The time of the last update, in units.
    at: u64,
    /// Load: of an entity, the part of time for which it was queued, 0 to 1 (to be multiplied by its weight);
    /// of a queue, the weight of its entities.
    pub load: f64,
    /// Runnable threads, times 1024.
    pub runnable: f64,
    /// Utilisation: the part of time for which the entity or queue ran, times 1024.
    pub util: f64,
}

impl Pelt {
    /// Updates the averages for the time since the last update, in which these values held.
    pub fn advance(&mut self, now: Nanos, load: f64, runnable: f64, util: f64) {
        let now = now >> UNIT;
        if now <= self.at {
            return;
        }
        let kept = decay(now - self.at);
        self.at = now;
        self.load = load + (self.load - load) * kept;
        self.runnable = runnable + (self.runnable - runnable) * kept;
        self.util = util + (self.util - util) * kept;
    }

    /// Whether all averages are too small to count.
    pub fn is_gone(&self) -> bool {
        self.load < 0.5 && self.runnable < 0.5 && self.util < 0.5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: f64 = 32.0 * 1.048_576e6;

    #[test]
    fn averages_follow_the_closed_form_however_often_one_looks() {
        for step in [20_000, 300_000, 4_000_000, 77_000_000] {
            let mut pelt = Pelt::default();
            for n in 1..=200_000_000 / step {
                pelt.advance(n * step, 1.0, 2048.0, 1024.0);
                let expected = 1.0 - 0.5f64.powf((n * step) as f64 / HALF);
                assert!((pelt.load - expected).abs() < 2e-4, "{step} {n}");
                assert!((pelt.util - 1024.0 * expected).abs() < 0.2);
                assert!((pelt.runnable - 2048.0 * expected).abs() < 0.4);
            }
        }
        assert_eq!(decay(32 << PERIOD), 0.5);
        assert_eq!(decay(u64::MAX), 0.0);
    }

    #[test]
    fn a_duty_swings_around_its_share_as_its_closed_form_says() {
        // A thread runs for 3 ms of every 10 ms: after many cycles the load is greatest at the end of a run,
        // and is (1 - y^3) / (1 - y^10) then.
        let mut pelt = Pelt::default();
        for cycle in 0..100u64 {
            pelt.advance(cycle * 10_000_000, 0.0, 0.0, 0.0);
            pelt.advance(cycle * 10_000_000 + 3_000_000, 1.0, 1024.0, 1024.0);
        }
        let left = |ns: f64| 0.5f64.powf(ns / HALF);
        let peak = (1.0 - left(3e6)) / (1.0 - left(10e6));
        assert!((pelt.load - peak).abs() < 1e-3, "{} {peak}", pelt.load);
        pelt.advance(1_000_000_000, 0.0, 0.0, 0.0);
        assert!((pelt.load - peak * left(7e6)).abs() < 1e-3);
    }
}
