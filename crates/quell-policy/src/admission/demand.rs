//! EDF-VD by demand: the demand in any interval must not be more than the interval's length.
//!
//! Utilizations charge a high-criticality server at the switch of modes for all of its pessimistic
//! budget, as if it had received nothing. But a server whose shortened deadline had passed has received
//! its optimistic budget, and one whose deadline has not passed still has the rest of the period: Ekberg
//! and Yi (Bounding and Shaping the Demand of Mixed-Criticality Sporadic Tasks, ECRTS 2012, section IV)
//! bound its demand after the switch. Their shortened deadlines may differ from server to server; here
//! one factor serves a CPU, as in EDF-VD: the smallest with which all fit before a switch, since the
//! demand after it only falls with a smaller factor.

use super::conditions::{Utilizations, edf_vd};
use super::{Condition, Verdict, virtual_deadline_ns};
use quell_model::config::{Criticality, Server};

/// The most intervals that are examined: a set of servers that fills a CPU so nearly is refused.
const MOST_POINTS: usize = 1 << 20;

/// The number of bisection steps for the factor.
const FACTOR_STEPS: u32 = 24;

/// A server with its shortened deadline.
struct Shaped {
    server: Server,
    /// The deadline in LO mode, in ns after its period's beginning.
    deadline: u64,
}

impl Shaped {
    /// The time by which the deadline was shortened.
    fn earlier(&self) -> u64 {
        self.server.period_ns - self.deadline
    }

    /// The demand in LO mode in any interval of that length (their equation 1).
    fn demand_low(&self, length: u64) -> u64 {
        let Some(rest) = length.checked_sub(self.deadline) else {
            return 0;
        };
        (rest / self.server.period_ns + 1) * self.server.budget_ns
    }

    /// The demand in an interval that begins with the switch to HI mode (their lemma 1).
    fn demand_high(&self, length: u64) -> u64 {
        let Some(rest) = length.checked_sub(self.earlier()) else {
            return 0;
        };
        let period = self.server.period_ns;
        // The least service that the job at the switch had received before.
        let done = self.server.budget_ns.saturating_sub(rest % period);
        (rest / period + 1) * self.server.pessimistic_ns - done
    }
}

/// Whether all servers fit: by utilizations, else with a smaller factor.
pub(super) fn check(servers: &[Server]) -> Verdict {
    let by_utilization = edf_vd(servers);
    let sums = Utilizations::of(servers);
    // In the long run no more can fit, whatever the deadlines.
    let long_run = Condition::new("U2(2) <= 1", sums.pessimistic, 1.0);
    if by_utilization.fits || !sums.all_fit().holds() {
        return by_utilization;
    }
    if !long_run.holds() {
        return Verdict {
            condition: long_run,
            ..by_utilization
        };
    }
    let high_fits = |x: f64| high_mode(&shaped(servers, x));
    let (mut low, mut high) = (0.0, sums.deadline_factor());
    for _ in 0..FACTOR_STEPS {
        let middle = (low + high) / 2.0;
        match low_mode(&shaped(servers, middle)).holds() {
            true => high = middle,
            false => low = middle,
        }
    }
    let condition = high_fits(high);
    Verdict {
        fits: condition.holds(),
        condition,
        deadline_factor: high,
        divisible: false,
    }
}

fn shaped(servers: &[Server], x: f64) -> Vec<Shaped> {
    servers
        .iter()
        .map(|server| Shaped {
            server: *server,
            deadline: virtual_deadline_ns(server, x),
        })
        .collect()
}

/// The condition before a switch: demand rises at deadlines.
fn low_mode(servers: &[Shaped]) -> Condition {
    let total: f64 = servers.iter().map(|it| it.server.utilization()).sum();
    let ahead = servers
        .iter()
        .map(|it| it.server.utilization() * it.earlier() as f64);
    let offsets = servers.iter().map(|it| (it.deadline, it.server.period_ns));
    worst(
        "demand in LO mode",
        ahead.sum(),
        total,
        offsets.collect(),
        |length| servers.iter().map(|it| it.demand_low(length)).sum(),
    )
}

/// The condition after a switch: demand rises at once where a deadline may be so near, then as time
/// passes while the optimistic budget may be missing.
fn high_mode(servers: &[Shaped]) -> Condition {
    let high: Vec<&Shaped> = servers
        .iter()
        .filter(|it| it.server.criticality == Criticality::High)
        .collect();
    let total = high
        .iter()
        .map(|it| it.server.pessimistic_utilization())
        .sum();
    let ahead = high
        .iter()
        .map(|it| it.server.pessimistic_utilization() * it.deadline as f64);
    let offsets = high.iter().flat_map(|it| {
        let at = it.earlier();
        [at, at + it.server.budget_ns].map(|at| (at, it.server.period_ns))
    });
    worst(
        "demand in HI mode",
        ahead.sum(),
        total,
        offsets.collect(),
        |length| high.iter().map(|it| it.demand_high(length)).sum(),
    )
}

/// The fullest interval, relative to its length, of those that begin at `offsets` (each with its
/// period). `ahead`, `total`: the demand is at most `ahead + total * length`.
fn worst(
    what: &str,
    ahead: f64,
    total: f64,
    offsets: Vec<(u64, u64)>,
    demand: impl Fn(u64) -> u64,
) -> Condition {
    if ahead == 0.0 {
        return Condition::new(format!("{what} <= 1"), total, 1.0);
    }
    // No interval beyond ahead / (1 - total) is overfull.
    let rate: f64 = offsets.iter().map(|(_, period)| 1.0 / *period as f64).sum();
    let most = 1.0 - ahead * rate / (MOST_POINTS - offsets.len()) as f64;
    let near = Condition::new(
        format!("utilization, for {what} to be looked at"),
        total,
        most,
    );
    if total > most {
        return near;
    }
    let longest = ahead / (1.0 - total);
    let mut worst = Condition::new(format!("{what} <= 1"), 0.0, 1.0);
    for (offset, period) in offsets {
        let mut length = offset;
        while length as f64 <= longest {
            let value = demand(length) as f64 / (length as f64).max(1.0);
            if value > worst.value {
                let ms = length as f64 / 1e6;
                worst = Condition::new(
                    format!("{what} of {ms:.3} ms, of that time <= 1"),
                    value,
                    1.0,
                );
            }
            length += period;
        }
    }
    worst
}
