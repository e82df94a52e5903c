//! Admission: what fits on a host before it runs there.
//!
//! # Problem
//! A host that promises CPU time by a deadline must be able to say no. What fits depends on how CPUs choose whom to serve; and
//! a test that provides for everybody's worst case at once leaves most of a CPU unused.
//!
//! # Approach
//! Akita's (section 3): servers of *low* criticality are provided for as long as nobody needs the worst case; servers of *high*
//! criticality always. CPUs serve by EDF-VD: by earliest deadline, where deadlines of high ones are shortened to `x` times the
//! period, so that when one of them turns out to need its pessimistic budget, the others are far enough on. From then on only
//! high ones are served, by their true deadlines. [`check`] says whether all of a CPU's servers get what is promised, by one of five
//! tests ([`AdmissionTest`]), of which the last three are what a host without criticality has to do: provide for the worst case.
//!
//! [`Host`] places: each virtual CPU on the first CPU that passes the test with it, and not where one of the same tenant is: two of
//! a guest's CPUs that take turns wait for each other's locks. That second rule is ours. A refusal ([`Refusal`])
//! says which condition failed, by how much, and what changes would do.
//!
//! Three more things are ours. Every CPU keeps a *reserve* for those to whom nothing is guaranteed: one more server of high
//! criticality. In LO mode one of high criticality has its budget in equal [`parts`], each with its part of the time to the virtual deadline, so
//! that it does not wait with little work for others' large budgets: as much in as much time, so what fits by utilization fits
//! so, too; where there is no room for switching to each part, budgets are whole. And switching is paid for: each server needs that much more for each
//! part of its budget.
//!
//! # Units
//! Times are ns. Utilizations are parts of a CPU: 1.0 is all of it. What exceeds a limit by less than [`NEGLIGIBLE`] does not exceed it.

mod answer;
pub mod audit;
mod conditions;
mod demand;
pub mod exhaustive;
mod place;

#[cfg(test)]
mod tests;

pub use answer::{
    Answer, CpuAnswer, MOST_MORE, More, TenantAnswer, TestAnswer, answer, answer_beside,
};
pub use place::{Change, Host, Placed, Refusal};

use quell_model::config::{AdmissionTest, Criticality, CriticalitySettings, Server};
use serde::Serialize;

/// A ns in each second.
pub const NEGLIGIBLE: f64 = 1e-9;

/// A CPU has no more servers than that: whoever looks for work there goes through all of them.
pub const SERVERS_MOST: usize = 32;

/// How often the reserve is replenished, in ns: nobody waits longer for its part of it.
pub const RESERVE_PERIOD_NS: u64 = 100_000_000;

/// A budget is had in no more parts.
const PARTS_MOST: u64 = 16;

/// Budgets are not divided into shorter parts, in ns: each is paid for with a switch.
const PART_LEAST_NS: u64 = 500_000;

/// What decided.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Condition {
    /// What must hold, with the paper's names.
    pub what: String,
    /// What is to be at most `limit`.
    pub value: f64,
    /// The limit.
    pub limit: f64,
}

impl Condition {
    fn new(what: impl Into<String>, value: f64, limit: f64) -> Condition {
        Condition {
            what: what.into(),
            value,
            limit,
        }
    }

    /// Whether it holds.
    pub fn holds(&self) -> bool {
        self.value <= self.limit + NEGLIGIBLE
    }
}

/// What a test says of one CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// Whether all servers get what is promised to them.
    pub fits: bool,
    /// The condition that fails, or the last one of those that hold.
    pub condition: Condition,
    /// What deadlines of high-criticality servers are shortened to, as a part of their periods: the paper's x; 1 where they are not.
    pub deadline_factor: f64,
    /// Whether budgets may be had in [`parts`]: not where there is no room for switching to each, nor where servers fit only because none of them
    /// demands anything for the first part of its period.
    pub divisible: bool,
}

/// By when a server is served in LO mode, in ns after its period's begin, where deadlines of high criticality are shortened to that part.
pub fn virtual_deadline_ns(server: &Server, factor: f64) -> u64 {
    match server.criticality {
        Criticality::Low => server.period_ns,
        Criticality::High => (factor * server.period_ns as f64) as u64,
    }
}

/// What a server has where that test decides: without modes always what it needs at the most.
pub fn served(test: AdmissionTest, server: &Server) -> Server {
    match test {
        AdmissionTest::EdfVd | AdmissionTest::Demand => *server,
        AdmissionTest::Edf | AdmissionTest::Rm | AdmissionTest::RmExact => Server {
            budget_ns: server.pessimistic_ns,
            ..*server
        },
    }
}

/// In how many parts a server has its budget in LO mode, each with a virtual deadline of its own, where that is possible.
pub fn parts(server: &Server) -> u32 {
    match server.criticality {
        Criticality::Low => 1,
        Criticality::High => (server.budget_ns / PART_LEAST_NS).clamp(1, PARTS_MOST) as u32,
    }
}

/// Whether a CPU can keep what is promised to these servers, with nothing set aside.
pub fn check(test: AdmissionTest, servers: &[Server]) -> Verdict {
    match test {
        AdmissionTest::EdfVd => conditions::edf_vd(servers),
        AdmissionTest::Demand => demand::check(servers),
        AdmissionTest::Edf => conditions::edf(servers),
        AdmissionTest::Rm => conditions::rate_monotonic(servers),
        AdmissionTest::RmExact => conditions::response_times(servers),
    }
}

/// The same with what is set aside: the reserve, and time for switching.
pub fn check_with(settings: &CriticalitySettings, servers: &[Server]) -> Verdict {
    if servers.len() > SERVERS_MOST {
        let count = Condition::new("servers", servers.len() as f64, SERVERS_MOST as f64);
        return Verdict {
            fits: false,
            condition: count,
            deadline_factor: 1.0,
            divisible: false,
        };
    }
    check_scaled(settings, servers, 1.0)
}

/// The same with budgets multiplied, and however many servers.
fn check_scaled(settings: &CriticalitySettings, servers: &[Server], factor: f64) -> Verdict {
    let by_utilization = match settings.test {
        AdmissionTest::Demand => AdmissionTest::EdfVd,
        test => test,
    };
    let divided = check(by_utilization, &provided(settings, servers, factor, parts));
    if divided.divisible {
        return divided;
    }
    let whole = check(settings.test, &provided(settings, servers, factor, |_| 1));
    Verdict {
        divisible: false,
        ..whole
    }
}

/// By what factor the budgets of all of a CPU's servers could be multiplied, at most, and still fit; 0 where nothing fits.
pub fn headroom(settings: &CriticalitySettings, servers: &[Server]) -> f64 {
    const MOST: f64 = 1e4;
    let fits = |factor| check_scaled(settings, servers, factor).fits;
    if servers.is_empty() || fits(MOST) {
        return MOST;
    }
    let (mut low, mut high) = (0.0, MOST);
    // To 1e-6 of itself.
    while high - low > 1e-6 * high && high > 1e-6 {
        let middle = if low == 0.0 {
            high / 2.0
        } else {
            (low + high) / 2.0
        };
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The servers with budgets multiplied, with time for switching to each part of them, and the reserve.
fn provided(
    settings: &CriticalitySettings,
    servers: &[Server],
    factor: f64,
    parts: impl Fn(&Server) -> u32,
) -> Vec<Server> {
    let scaled = |ns: u64| (ns as f64 * factor).round() as u64;
    let provided = |server: &Server| {
        let server = Server {
            budget_ns: scaled(server.budget_ns),
            pessimistic_ns: scaled(server.pessimistic_ns),
            ..*server
        };
        let switching = (settings.overhead_us
            * 1e3
            * f64::from(parts(&served(settings.test, &server))))
        .round() as u64;
        Server {
            budget_ns: server.budget_ns + switching,
            pessimistic_ns: server.pessimistic_ns + switching,
            ..server
        }
    };
    let mut all: Vec<Server> = servers.iter().map(provided).collect();
    all.extend(reserve(settings));
    all
}

/// What every CPU keeps for those to whom nothing is promised; `None`: nothing.
pub fn reserve(settings: &CriticalitySettings) -> Option<Server> {
    let budget_ns = (settings.reserve_percent / 100.0 * RESERVE_PERIOD_NS as f64).round() as u64;
    (budget_ns > 0).then_some(Server {
        criticality: Criticality::High,
        period_ns: RESERVE_PERIOD_NS,
        budget_ns,
        pessimistic_ns: budget_ns,
    })
}
