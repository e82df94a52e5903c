//! Admission tests by utilizations and response times.

use super::{Condition, Verdict};
use quell_model::config::{Criticality, Server};

/// The utilizations that EDF-VD's conditions are made of (Akita, equations 1 to 3).
#[derive(Debug, Clone, Copy)]
pub(super) struct Utilizations {
    /// `U1(1)`: of low-criticality servers.
    pub low: f64,
    /// `U2(1)`: of high-criticality servers by their optimistic budgets.
    pub high: f64,
    /// `U2(2)`: of high-criticality servers by their pessimistic budgets.
    pub pessimistic: f64,
}

impl Utilizations {
    /// The utilizations of these servers.
    pub fn of(servers: &[Server]) -> Utilizations {
        let sum = |criticality, of: &dyn Fn(&Server) -> f64| {
            let them = servers.iter().filter(|it| it.criticality == criticality);
            // Not sum(): the sum of no values is -0.0.
            them.map(of).fold(0.0, |sum, it| sum + it)
        };
        Utilizations {
            low: sum(Criticality::Low, &Server::utilization),
            high: sum(Criticality::High, &Server::utilization),
            pessimistic: sum(Criticality::High, &Server::pessimistic_utilization),
        }
    }

    /// The condition that all fit while no server needs its pessimistic budget: without it `x` would be
    /// above 1.
    pub fn all_fit(&self) -> Condition {
        Condition::new("U1(1) + U2(1) <= 1", self.low + self.high, 1.0)
    }

    /// `x` (equation 4), where all fit.
    pub fn deadline_factor(&self) -> f64 {
        if self.high == 0.0 {
            return 1.0;
        }
        (self.high / (1.0 - self.low)).min(1.0)
    }
}

/// EDF-VD (equations 1 to 6).
pub(super) fn edf_vd(servers: &[Server]) -> Verdict {
    let sums = Utilizations::of(servers);
    let condition = sums.all_fit();
    if !condition.holds() {
        return Verdict {
            fits: false,
            condition,
            deadline_factor: 1.0,
            divisible: false,
        };
    }
    let x = sums.deadline_factor();
    let condition = match sums.high == 0.0 {
        // No mode switch happens then.
        true => condition,
        false => Condition::new("x U1(1) + U2(2) <= 1", x * sums.low + sums.pessimistic, 1.0),
    };
    Verdict {
        fits: condition.holds(),
        divisible: condition.holds(),
        condition,
        deadline_factor: x,
    }
}

/// EDF (Liu and Layland, 1973), with the worst case of all servers.
pub(super) fn edf(servers: &[Server]) -> Verdict {
    let worst = servers.iter().map(Server::pessimistic_utilization).sum();
    by(Condition::new("U <= 1", worst, 1.0))
}

/// Rate-monotonic priorities (Liu and Layland, 1973; the bound that Akita's section 2.2 has).
pub(super) fn rate_monotonic(servers: &[Server]) -> Verdict {
    let worst = servers.iter().map(Server::pessimistic_utilization).sum();
    let n = servers.len().max(1) as f64;
    let bound = n * (2f64.powf(1.0 / n) - 1.0);
    by(Condition::new("U <= n (2^(1/n) - 1)", worst, bound))
}

/// Rate-monotonic priorities, by the latest time at which each server has received its budget (Joseph
/// and Pandya, 1986).
pub(super) fn response_times(servers: &[Server]) -> Verdict {
    let mut ordered: Vec<&Server> = servers.iter().collect();
    ordered.sort_by_key(|it| it.period_ns);
    let mut worst = Condition::new("R / T <= 1", 0.0, 1.0);
    for (index, server) in ordered.iter().enumerate() {
        let mut response = server.pessimistic_ns;
        loop {
            let before = ordered[..index].iter();
            let interference: u64 = before
                .map(|it| response.div_ceil(it.period_ns) * it.pessimistic_ns)
                .sum();
            let next = server.pessimistic_ns + interference;
            if next == response || next > server.period_ns {
                response = next;
                break;
            }
            response = next;
        }
        let condition = Condition::new(
            format!(
                "R <= T of the period of {} ms",
                server.period_ns as f64 / 1e6
            ),
            response as f64 / server.period_ns as f64,
            1.0,
        );
        if condition.value > worst.value {
            worst = condition;
        }
    }
    by(worst)
}

/// The verdict of a test without modes: deadlines are not shortened.
fn by(condition: Condition) -> Verdict {
    Verdict {
        fits: condition.holds(),
        divisible: condition.holds(),
        condition,
        deadline_factor: 1.0,
    }
}
