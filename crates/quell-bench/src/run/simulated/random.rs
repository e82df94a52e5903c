//! Random promises of CPU time, for tests and studies.

use quell_model::config::{Criticality, Server};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

const MS: u64 = 1_000_000;

/// A random promise to a vCPU: a period of `least_period_ns` to 100 ms, of which 2 to 60 % are the budget.
pub fn server(rng: &mut ChaCha8Rng, least_period_ns: u64) -> Server {
    let us = |ns: u64| ns / 1000 * 1000;
    let period_ns = us(rng.random_range(least_period_ns..=100 * MS));
    let part = rng.random_range(0.02..0.6);
    let budget_ns = us((period_ns as f64 * part) as u64).max(MS / 10);
    let high = rng.random();
    let more = if high {
        rng.random_range(1.0..6.0)
    } else {
        1.0
    };
    Server {
        criticality: if high {
            Criticality::High
        } else {
            Criticality::Low
        },
        period_ns,
        budget_ns,
        pessimistic_ns: us((budget_ns as f64 * more) as u64).min(period_ns),
    }
}
