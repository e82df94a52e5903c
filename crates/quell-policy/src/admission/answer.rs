//! The whole answer to "does that fit?", for a host and tenants that ask for room.

use super::conditions::Utilizations;
use super::{Host, Placed, Refusal, headroom};
use quell_model::config::{AdmissionTest, CriticalitySettings, Server, TenantSpec};
use quell_model::{CpuId, TenantName};
use serde::Serialize;
use std::collections::BTreeMap;

/// The greatest number of additional tenants that is searched for.
pub const MOST_MORE: u32 = 1000;

/// Tenants alike: on a host, or asking for room.
#[derive(Debug, Clone, PartialEq)]
pub struct Asking {
    /// What each of the tenants is owed, or asks for.
    pub spec: TenantSpec,
    /// The number of tenants; their names are those of [`TenantSpec::names`].
    pub count: u32,
}

/// The tenants that fit, their CPUs, and the reasons of refusals.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// Whether all tenants fit.
    pub fits: bool,
    /// The settings of the admission test.
    pub settings: CriticalitySettings,
    /// The answers for all tenants, those on the host first.
    pub tenants: Vec<TenantAnswer>,
    /// The answers for all CPUs.
    pub cpus: Vec<CpuAnswer>,
    /// The results of each of the tests; empty for a running host.
    pub tests: Vec<TestAnswer>,
    /// How many more tenants like those that ask would fit; where none asks, like those on the host.
    pub more: Vec<More>,
}

/// How many more tenants like one fit beside all that do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct More {
    /// The tenant's name, as its file has it.
    pub like: String,
    /// At most [`MOST_MORE`]; `None`: any number, as they have no promise.
    pub more: Option<u32>,
}

/// A tenant's part of the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantAnswer {
    /// The tenant's name.
    pub tenant: TenantName,
    /// Whether the tenant asks for room; else it is on the host.
    pub asks: bool,
    /// The promise to each of the tenant's vCPUs; `None`: none, so the tenant has a weight and always fits.
    pub server: Option<Server>,
    /// The number of the tenant's vCPUs.
    pub vcpus: u32,
    /// The CPUs of its vCPUs, in the vCPUs' order.
    pub cpus: Vec<CpuId>,
    /// Why the tenant has no CPU.
    pub refusal: Option<Refusal>,
}

/// A CPU's part of the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuAnswer {
    /// The CPU's number.
    pub cpu: CpuId,
    /// The servers on the CPU, in the order of their arrival.
    pub servers: Vec<Placed>,
    /// Akita's `U1(1)`: the utilization that low-criticality servers usually need, in parts of the CPU.
    pub low: f64,
    /// `U2(1)`: the utilization that high-criticality servers usually need.
    pub high: f64,
    /// `U2(2)`: the utilization that high-criticality servers need at the most.
    pub pessimistic: f64,
    /// The factor by which the deadlines of high-criticality servers are shortened, as a part of their
    /// periods.
    pub deadline_factor: f64,
    /// The factor by which all budgets on the CPU could be multiplied.
    pub headroom: f64,
}

/// The result of one test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TestAnswer {
    /// The admission test.
    pub test: AdmissionTest,
    /// Whether all tenants fit by the test.
    pub fits: bool,
    /// The tenants that do not fit.
    pub refused: Vec<TenantName>,
    /// The number of CPUs without a server.
    pub idle_cpus: u32,
}

/// Places the tenants `there` on a host of these CPUs and then the tenants that ask, one after the other; a
/// tenant that does not fit leaves room to the next.
pub fn answer(
    cpus: &[CpuId],
    settings: CriticalitySettings,
    there: &[Asking],
    asking: &[Asking],
) -> Answer {
    let place = |settings| {
        let mut with = Host::new(cpus.iter().copied(), settings);
        let mut tenants = ask(&mut with, there, false);
        tenants.extend(ask(&mut with, asking, true));
        (with, tenants)
    };
    let (with, tenants) = place(settings);
    let tests = AdmissionTest::ALL.map(|test| {
        let (with, tenants) = place(CriticalitySettings { test, ..settings });
        let refused: Vec<TenantName> = tenants
            .into_iter()
            .filter(|it| it.refusal.is_some())
            .map(|it| it.tenant)
            .collect();
        let idle = with.cpus().iter().filter(|(_, on)| on.is_empty());
        TestAnswer {
            test,
            fits: refused.is_empty(),
            refused,
            idle_cpus: idle.count() as u32,
        }
    });
    let kinds = if asking.is_empty() { there } else { asking };
    summary(&with, tenants, tests.to_vec(), kinds)
}

/// Places the tenants that ask beside those on a host, which keep their CPUs. The other tests are not
/// run.
pub fn answer_beside(host: &Host, asking: &[Asking]) -> Answer {
    let mut there: BTreeMap<TenantName, TenantAnswer> = BTreeMap::new();
    let placed = host.cpus().iter();
    let placed = placed.flat_map(|(cpu, placed)| placed.iter().map(|it| (*cpu, it)));
    for (cpu, placed) in placed {
        let it = there
            .entry(placed.tenant.clone())
            .or_insert_with(|| TenantAnswer {
                tenant: placed.tenant.clone(),
                asks: false,
                server: Some(placed.server),
                vcpus: 0,
                cpus: Vec::new(),
                refusal: None,
            });
        it.vcpus += 1;
        it.cpus.push(cpu);
    }
    let mut with = host.clone();
    let mut tenants: Vec<TenantAnswer> = there.into_values().collect();
    tenants.extend(ask(&mut with, asking, true));
    summary(&with, tenants, Vec::new(), asking)
}

/// Places tenants, or refuses them, one after the other.
fn ask(with: &mut Host, tenants: &[Asking], asks: bool) -> Vec<TenantAnswer> {
    let mut each = |spec: &TenantSpec, tenant: TenantName| {
        let (server, vcpus) = (spec.server(), spec.vcpus.unwrap_or(1));
        let admitted = match &server {
            None => Ok(Vec::new()),
            Some(server) => with.admit(&tenant, server, vcpus),
        };
        let (cpus, refusal) = match admitted {
            Ok(cpus) => (cpus, None),
            Err(refusal) => (Vec::new(), Some(refusal)),
        };
        TenantAnswer {
            tenant,
            asks,
            server,
            vcpus,
            cpus,
            refusal,
        }
    };
    let names = tenants.iter().flat_map(|Asking { spec, count }| {
        let names = spec.names(*count);
        names.map(move |name| (spec, name))
    });
    names.map(|(spec, name)| each(spec, name)).collect()
}

/// The state of a host, and how many more of some kinds of tenants would fit.
fn summary(
    with: &Host,
    tenants: Vec<TenantAnswer>,
    tests: Vec<TestAnswer>,
    kinds: &[Asking],
) -> Answer {
    let cpu = |(cpu, placed): &(CpuId, Vec<Placed>)| {
        let servers: Vec<Server> = placed.iter().map(|it| it.server).collect();
        let sums = Utilizations::of(&servers);
        CpuAnswer {
            cpu: *cpu,
            servers: placed.clone(),
            low: sums.low,
            high: sums.high,
            pessimistic: sums.pessimistic,
            deadline_factor: with.verdict(*cpu).map_or(1.0, |it| it.deadline_factor),
            headroom: headroom(with.settings(), &servers),
        }
    };
    let more = kinds.iter().map(|Asking { spec: like, .. }| More {
        like: like.name.clone(),
        more: like
            .server()
            .map(|server| with.more(&server, like.vcpus.unwrap_or(1), MOST_MORE)),
    });
    Answer {
        fits: tenants.iter().all(|it| it.refusal.is_none()),
        settings: *with.settings(),
        cpus: with.cpus().iter().map(cpu).collect(),
        tests,
        more: more.collect(),
        tenants,
    }
}
