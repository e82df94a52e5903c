//! Admission: which tenants fit on a host, decided before they run there.
//!
//! # Problem
//! A host that promises CPU time by a deadline must be able to refuse. Whether a set of servers fits depends
//! on the order in which CPUs serve them; and a test that provides for the worst case of all servers at once
//! leaves most of a CPU unused.
//!
//! # Approach
//! Akita's (section 3): servers of *low* criticality are provided for as long as no server needs its
//! worst case; servers of *high* criticality always. CPUs serve by EDF-VD: by earliest deadline, where
//! deadlines of high criticality are shortened to `x` times the period, so that when one of them turns
//! out to need its pessimistic budget, the others have enough time left. From then on only servers of
//! high criticality are served, by their true deadlines. [`check`] says whether all of a CPU's servers
//! get what is promised, by one of five tests ([`AdmissionTest`]), of which the last three do what a
//! host without criticality has to do: provide for the worst case.
//!
//! [`Host`] places: each vCPU on the first CPU that passes the test with it, and not where another vCPU
//! of the same tenant is: two of a guest's vCPUs that take turns on a CPU wait for each other's locks.
//! That second rule is ours. A refusal ([`Refusal`]) says which condition failed, by how much, and which
//! changes would help.
//!
//! Three more rules are ours. Every CPU keeps a *reserve* for threads without a promise: one more server
//! of high criticality. In LO mode a server of high criticality has its budget in equal [`parts`], each
//! with its part of the time to the virtual deadline, so that it does not wait with little work for
//! others' large budgets: the rate is the same, so a set that fits by utilization also fits in parts;
//! where there is no room for switching to each part, budgets are whole. And switching is paid for: each
//! server needs that much more for each part of its budget.
//!
//! # Units
//! Times are ns. Utilizations are parts of a CPU: 1.0 is all of it. A value that exceeds a limit by less
//! than [`NEGLIGIBLE`] does not exceed it.

mod answer;
mod conditions;
mod demand;
mod place;

#[cfg(test)]
mod tests;

pub use answer::{
    Answer, Asking, CpuAnswer, MOST_MORE, More, TenantAnswer, TestAnswer, answer, answer_beside,
};
pub use place::{Change, Host, Placed, Refusal};

use quell_model::config::{AdmissionTest, Criticality, CriticalitySettings, Server};
use serde::Serialize;

/// The excess of a utilization that does not count: one ns in each second.
pub const NEGLIGIBLE: f64 = 1e-9;

/// The most servers of a CPU: the scheduler goes through all of them whenever it looks for work there.
pub const SERVERS_MOST: usize = 32;

/// The period of the reserve, in ns: no thread waits longer for its part of it.
pub const RESERVE_PERIOD_NS: u64 = 100_000_000;

/// The most parts of a budget.
const PARTS_MOST: u64 = 16;

/// The shortest part of a budget, in ns: each part is paid for with a switch.
const PART_LEAST_NS: u64 = 500_000;

/// A condition that a test examined.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Condition {
    /// The inequality that must hold, with the paper's names.
    pub what: String,
    /// The value, which must be at most `limit`.
    pub value: f64,
    /// The limit of `value`.
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

    /// Whether the condition holds.
    pub fn holds(&self) -> bool {
        self.value <= self.limit + NEGLIGIBLE
    }
}

/// The result of a test for one CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// Whether all servers get what is promised to them.
    pub fits: bool,
    /// The condition that fails, or the last one of those that hold.
    pub condition: Condition,
    /// The factor by which the deadlines of high-criticality servers are shortened, as a part of their
    /// periods: the paper's x; 1 where they are not shortened.
    pub deadline_factor: f64,
    /// Whether budgets may be in [`parts`]: not where there is no room for switching to each part, nor where
    /// servers fit only because none of them demands any time for the first part of its period.
    pub divisible: bool,
}

/// A server's deadline in LO mode, in ns after its period's beginning, where deadlines of high
/// criticality are shortened by `factor`.
pub fn virtual_deadline_ns(server: &Server, factor: f64) -> u64 {
    match server.criticality {
        Criticality::Low => server.period_ns,
        Criticality::High => (factor * server.period_ns as f64) as u64,
    }
}

/// A server as the test counts it: for tests without modes the usual need is the worst case.
pub fn served(test: AdmissionTest, server: &Server) -> Server {
    match test {
        AdmissionTest::EdfVd | AdmissionTest::Demand => *server,
        AdmissionTest::Edf | AdmissionTest::Rm | AdmissionTest::RmExact => Server {
            budget_ns: server.pessimistic_ns,
            ..*server
        },
    }
}

/// The number of parts of a server's budget in LO mode, each with a virtual deadline of its own, where
/// parts are possible.
pub fn parts(server: &Server) -> u32 {
    match server.criticality {
        Criticality::Low => 1,
        Criticality::High => (server.budget_ns / PART_LEAST_NS).clamp(1, PARTS_MOST) as u32,
    }
}

/// Whether a CPU can keep the promises of these servers, without a reserve and without time for
/// switching.
pub fn check(test: AdmissionTest, servers: &[Server]) -> Verdict {
    match test {
        AdmissionTest::EdfVd => conditions::edf_vd(servers),
        AdmissionTest::Demand => demand::check(servers),
        AdmissionTest::Edf => conditions::edf(servers),
        AdmissionTest::Rm => conditions::rate_monotonic(servers),
        AdmissionTest::RmExact => conditions::response_times(servers),
    }
}

/// Whether a CPU can keep the promises of these servers, with the reserve and time for switching.
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

/// Like [`check_with`], with budgets multiplied by `factor`, and for any number of servers.
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

/// The greatest factor by which the budgets of all of a CPU's servers could be multiplied and still fit;
/// 0 where no factor fits.
pub fn headroom(settings: &CriticalitySettings, servers: &[Server]) -> f64 {
    const MOST: f64 = 1e4;
    let fits = |factor| check_scaled(settings, servers, factor).fits;
    if servers.is_empty() || fits(MOST) {
        return MOST;
    }
    let (mut low, mut high) = (0.0, MOST);
    // To a relative precision of 1e-6.
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

/// The reserve of every CPU for threads without a promise; `None`: no reserve.
pub fn reserve(settings: &CriticalitySettings) -> Option<Server> {
    let budget_ns = (settings.reserve_percent / 100.0 * RESERVE_PERIOD_NS as f64).round() as u64;
    (budget_ns > 0).then_some(Server {
        criticality: Criticality::High,
        period_ns: RESERVE_PERIOD_NS,
        budget_ns,
        pessimistic_ns: budget_ns,
    })
}
