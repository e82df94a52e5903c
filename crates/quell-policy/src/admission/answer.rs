//! The whole answer to "does that fit?", of a host and tenants that ask for room.

use super::conditions::Utilizations;
use super::{Host, Placed, Refusal, headroom};
use quell_model::config::{AdmissionTest, CriticalitySettings, HostFile, Server, TenantSpec};
use quell_model::{CpuId, TenantName};
use serde::Serialize;
use std::collections::BTreeMap;

/// So many more of a tenant are looked for, at most.
pub const MOST_MORE: u32 = 1000;

/// Who fits, where, and why not.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// Whether all do.
    pub fits: bool,
    /// What decided.
    pub settings: CriticalitySettings,
    /// Every tenant, those that are on the host first.
    pub tenants: Vec<TenantAnswer>,
    /// Every CPU.
    pub cpus: Vec<CpuAnswer>,
    /// What each of the tests would have said; empty for a host that runs.
    pub tests: Vec<TestAnswer>,
    /// How many more there could be of those that ask; where nobody does, of anybody.
    pub more: Vec<More>,
}

/// How many more tenants like one fit beside all that do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct More {
    /// The one, as its file names it.
    pub like: String,
    /// [`MOST_MORE`] at the most; `None`: as many as one likes, nothing is promised to them.
    pub more: Option<u32>,
}

/// A tenant's part of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantAnswer {
    /// Its name.
    pub tenant: TenantName,
    /// Whether it asks for room; else it is on the host.
    pub asks: bool,
    /// What is promised to each of its virtual CPUs; `None`: nothing, it has a weight and always fits.
    pub server: Option<Server>,
    /// How many virtual CPUs it has.
    pub vcpus: u32,
    /// Where they are, in their order.
    pub cpus: Vec<CpuId>,
    /// Why they are nowhere.
    pub refusal: Option<Refusal>,
}

/// A CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuAnswer {
    /// Which.
    pub cpu: CpuId,
    /// Who is on it, in the order in which they came.
    pub servers: Vec<Placed>,
    /// Akita's `U1(1)`: what low-criticality servers usually need, in parts of the CPU.
    pub low: f64,
    /// `U2(1)`: what high-criticality ones usually need.
    pub high: f64,
    /// `U2(2)`: what these need at the most.
    pub pessimistic: f64,
    /// What high-criticality servers' deadlines are shortened to, as a part of their periods.
    pub deadline_factor: f64,
    /// By what factor all budgets here could be multiplied.
    pub headroom: f64,
}

/// One of the tests.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TestAnswer {
    /// Which.
    pub test: AdmissionTest,
    /// Whether all fit by it.
    pub fits: bool,
    /// Who does not.
    pub refused: Vec<TenantName>,
    /// How many CPUs nobody is placed on.
    pub idle_cpus: u32,
}

/// Places those that are on the host and then those that ask, one after the other; who does not fit leaves room to the next.
pub fn answer(host: &HostFile, asking: &[TenantSpec]) -> Answer {
    let place = |settings| {
        let cpus = host.host.topology().cpus;
        let mut with = Host::new(cpus.iter().map(|cpu| cpu.id), settings);
        let mut tenants = ask(&mut with, &host.tenants, false);
        tenants.extend(ask(&mut with, asking, true));
        (with, tenants)
    };
    let (with, tenants) = place(host.criticality);
    let tests = AdmissionTest::ALL.map(|test| {
        let settings = CriticalitySettings {
            test,
            ..host.criticality
        };
        let (with, tenants) = place(settings);
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
    let kinds = if asking.is_empty() {
        &host.tenants[..]
    } else {
        asking
    };
    summary(&with, tenants, tests.to_vec(), kinds)
}

/// Places those that ask beside those that are on a host and stay where they are. The other tests are not asked.
pub fn answer_beside(host: &Host, asking: &[TenantSpec]) -> Answer {
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

/// Those are placed, or not, one after the other.
fn ask(with: &mut Host, specs: &[TenantSpec], asks: bool) -> Vec<TenantAnswer> {
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
    let names = specs
        .iter()
        .flat_map(|spec| spec.names().map(move |name| (spec, name)));
    names.map(|(spec, name)| each(spec, name)).collect()
}

/// What a host comes to, and how many more of some kinds there could be.
fn summary(
    with: &Host,
    tenants: Vec<TenantAnswer>,
    tests: Vec<TestAnswer>,
    kinds: &[TenantSpec],
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
    let more = kinds.iter().map(|like| More {
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
