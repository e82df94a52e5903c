//! The sets of servers that a CPU can keep, by exhaustive search: every arrival, every need, every choice
//! between equal deadlines.
//!
//! Problem: tests are sufficient, and do not show how much they refuse in vain.
//! Approach: time is in whole units; all states that a CPU which serves by EDF-VD can reach are visited,
//! until one misses a deadline or there are no more. A job may arrive at any unit once its server's
//! period has passed; a job of high criticality is done with its optimistic budget or needs the
//! pessimistic one. HI mode is followed until no job waits: LO mode begins anew then, in a state that
//! was visited.
//! Limits: four servers or fewer, with periods of some ten units: the number of states grows as the
//! product of periods and budgets.

use quell_model::config::{Criticality, Server};
use quell_policy::admission::{NEGLIGIBLE, virtual_deadline_ns};
use std::collections::HashSet;

/// The most servers.
pub const MOST: usize = 4;

/// A server's job: its age, at most the server's period, and the service it got; `None`: there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Job {
    age: u8,
    got: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    jobs: [Job; MOST],
    critical: bool,
}

/// Whether EDF-VD with some factor for deadlines always keeps the promises of these servers, whose times
/// are small whole numbers of ns. `None`: there are more than [`MOST`] servers, or periods are longer
/// than 255 ns.
pub fn keeps(servers: &[Server]) -> Option<bool> {
    if servers.len() > MOST || servers.iter().any(|it| it.period_ns > 255) {
        return None;
    }
    // Deadlines are whole: each choice of them begins where one becomes longer, and at 0.
    let longer = |server: &Server| {
        let period = server.period_ns;
        (0..=period).map(move |at| at as f64 / period as f64 + NEGLIGIBLE)
    };
    let high = servers.iter().filter(|it| is_high(it));
    let mut factors: Vec<f64> = high.flat_map(longer).chain([1.0]).collect();
    factors.sort_by(f64::total_cmp);
    factors.dedup();
    Some(factors.into_iter().any(|it| keeps_with(servers, it)))
}

/// Whether EDF-VD with this factor for deadlines always keeps the promises of these servers: at most
/// [`MOST`], whose times are small whole numbers of ns and whose periods are at most 255 ns.
pub fn keeps_with(servers: &[Server], factor: f64) -> bool {
    let mut first = State {
        jobs: [Job::default(); MOST],
        critical: false,
    };
    for (job, server) in first.jobs.iter_mut().zip(servers) {
        job.age = server.period_ns as u8;
    }
    let (mut seen, mut left) = (HashSet::from([first]), vec![first]);
    while let Some(state) = left.pop() {
        for arrived in arrivals(servers, state) {
            for chosen in first_in_line(servers, factor, &arrived) {
                for next in served(servers, arrived, chosen) {
                    let missed = |(job, server): (&Job, &Server)| {
                        job.got.is_some() && u64::from(job.age) >= server.period_ns
                    };
                    if next.jobs.iter().zip(servers).any(missed) {
                        return false;
                    }
                    let over = next.critical && next.jobs.iter().all(|it| it.got.is_none());
                    if !over && seen.insert(next) {
                        left.push(next);
                    }
                }
            }
        }
    }
    true
}

fn is_high(server: &Server) -> bool {
    server.criticality == Criticality::High
}

/// The states after all possible arrivals.
fn arrivals(servers: &[Server], state: State) -> Vec<State> {
    let mut all = vec![state];
    for (index, server) in servers.iter().enumerate() {
        let job = state.jobs[index];
        let may = job.got.is_none() && u64::from(job.age) == server.period_ns;
        if !may || (state.critical && !is_high(server)) {
            continue;
        }
        let with = |mut it: State| {
            it.jobs[index] = Job {
                age: 0,
                got: Some(0),
            };
            it
        };
        let come: Vec<State> = all.iter().copied().map(with).collect();
        all.extend(come);
    }
    all
}

/// The jobs that may be served next: those with the earliest deadline; `None`: no job waits.
fn first_in_line(servers: &[Server], factor: f64, state: &State) -> Vec<Option<usize>> {
    let deadline = |index: usize| {
        let (server, job) = (&servers[index], &state.jobs[index]);
        let after = match state.critical {
            true => server.period_ns,
            false => virtual_deadline_ns(server, factor),
        };
        after as i64 - i64::from(job.age)
    };
    let waits = (0..servers.len()).filter(|index| state.jobs[*index].got.is_some());
    let Some(first) = waits.clone().map(deadline).min() else {
        return vec![None];
    };
    waits
        .filter(|index| deadline(*index) == first)
        .map(Some)
        .collect()
}

/// The possible states after a unit in which the chosen job ran.
fn served(servers: &[Server], mut state: State, chosen: Option<usize>) -> Vec<State> {
    for (job, server) in state.jobs.iter_mut().zip(servers) {
        job.age = (job.age + 1).min(server.period_ns as u8);
    }
    let Some((index, got)) = chosen.and_then(|index| Some((index, state.jobs[index].got? + 1)))
    else {
        return vec![state];
    };
    let server = &servers[index];
    let mut on = state;
    on.jobs[index].got = Some(got);
    let mut done = state;
    done.jobs[index].got = None;
    let got = u64::from(got);
    if got >= server.pessimistic_ns {
        return vec![done];
    }
    if state.critical || got < server.budget_ns {
        return vec![on];
    }
    // The job needs its pessimistic budget, or not.
    on.critical = true;
    for (job, _) in on
        .jobs
        .iter_mut()
        .zip(servers)
        .filter(|(_, it)| !is_high(it))
    {
        job.got = None;
    }
    vec![done, on]
}
