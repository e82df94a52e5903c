//! What threads are due over time: weighted max-min fairness at every moment.

use super::STEP_S;
use super::hosts::{Host, Wants};
use quell_policy::share::{ProblemError, ideal};

/// Less work than this counts as none, in s.
const NOTHING: f64 = 1e-9;

/// What each thread is due up to the end of each step, in s of CPU time: a thread with work left wants a
/// whole CPU, and a thread whose work arrives steadily wants as much as arrives.
///
/// # Errors
/// Where the fair division of the host cannot be solved.
pub(super) fn fluid(host: &Host, steps: usize) -> Result<Vec<Vec<f64>>, ProblemError> {
    let mut problem = host.problem.clone();
    let mut backlog = vec![0.0f64; host.wants.len()];
    let first = |want: &Wants| match want {
        Wants::Bursts(_, _, first) => *first as f64 / 1e3,
        _ => f64::INFINITY,
    };
    let arrives = |want: &Wants| match want {
        Wants::Part(part, _) => *part,
        _ => 0.0,
    };
    let mut next: Vec<f64> = host.wants.iter().map(first).collect();
    let mut got = vec![0.0; host.wants.len()];
    let mut out = Vec::new();
    let mut now = 0.0;
    let mut solved = None;
    for step in 0..steps {
        let end = (step + 1) as f64 * STEP_S;
        while now < end - NOTHING {
            let mut changed = false;
            for (thread, want) in host.wants.iter().enumerate() {
                if let Wants::Bursts(work, every, _) = want {
                    while next[thread] <= now + NOTHING {
                        backlog[thread] += *work as f64 / 1e3;
                        next[thread] += *every as f64 / 1e3;
                    }
                }
                let demand = match want {
                    Wants::Always => 1.0,
                    _ if backlog[thread] > NOTHING => 1.0,
                    want => arrives(want),
                };
                changed |= problem.threads[thread].demand != demand;
                problem.threads[thread].demand = demand;
            }
            let ideal = match solved.take() {
                Some(same) if !changed => same,
                _ => ideal(&problem)?,
            };
            let mut until = end;
            for (thread, want) in host.wants.iter().enumerate() {
                until = until.min(next[thread]);
                let falls = ideal.threads[thread] - arrives(want);
                if backlog[thread] > NOTHING && falls > NOTHING {
                    until = until.min(now + backlog[thread] / falls);
                }
            }
            let dt = (until - now).max(1e-6);
            for (thread, want) in host.wants.iter().enumerate() {
                if !matches!(want, Wants::Always) {
                    let left = backlog[thread] + (arrives(want) - ideal.threads[thread]) * dt;
                    backlog[thread] = if left < NOTHING { 0.0 } else { left };
                }
            }
            for (sum, rate) in got.iter_mut().zip(&ideal.threads) {
                *sum += rate * dt;
            }
            now += dt;
            solved = Some(ideal);
        }
        out.push(got.clone());
    }
    Ok(out)
}
