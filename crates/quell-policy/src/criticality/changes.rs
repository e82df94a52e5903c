//! Changes of terms for tenants that have a promise: the room that a change needs, and the parts of a
//! configuration that would break a promise.

use crate::admission::{Condition, Host, Placed};
use quell_model::config::{AgentFile, CriticalitySettings, Mechanism, Server, TenantSpec};
use quell_model::{CpuId, Reservation};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A host with the existing promises on it.
pub(super) fn host_of(reservations: &[Reservation], settings: CriticalitySettings) -> Host {
    let mut cpus: BTreeMap<CpuId, Vec<Placed>> = BTreeMap::new();
    for it in reservations {
        cpus.entry(it.cpu).or_default().push(Placed {
            tenant: it.tenant.clone(),
            vcpu: it.vcpu,
            server: it.room,
        });
    }
    Host::with(cpus.into_iter().collect(), settings)
}

/// A server with the greater of both utilizations, in either mode. It has enough for a server that has
/// the terms of one or the other in each of its periods: the periods of one server do not overlap and
/// each needs its part of itself, so by deadlines no mix of both needs more.
pub(super) fn either(one: &Server, other: &Server) -> Server {
    let period_ns = one.period_ns.min(other.period_ns);
    let part = |ns: u64, of: &Server| {
        let part = u128::from(ns) * u128::from(period_ns);
        part.div_ceil(u128::from(of.period_ns)) as u64
    };
    let most = |budget: fn(&Server) -> u64| part(budget(one), one).max(part(budget(other), other));
    Server {
        criticality: one.criticality,
        period_ns,
        budget_ns: most(|it| it.budget_ns),
        pessimistic_ns: most(|it| it.pessimistic_ns),
    }
}

/// A key of a configuration that would break a promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The key in the configuration.
    pub key: String,
    /// The reason and the remedy.
    pub message: String,
}

/// A tenant that a configuration has now, and what it is owed.
#[derive(Debug, Clone, PartialEq)]
pub struct Owed {
    /// The key of the tenant's table, or of the rule that finds it.
    pub key: String,
    /// What the tenant is owed.
    pub spec: Arc<TenantSpec>,
}

impl Owed {
    /// The tenants that have tables.
    pub fn by_tables(file: &AgentFile) -> Vec<Owed> {
        let tables = file.tenants.iter().enumerate();
        let owed = tables.map(|(at, table)| Owed {
            key: format!("tenant[{at}]"),
            spec: Arc::new(table.spec.clone()),
        });
        owed.collect()
    }
}

/// The first key of a configuration that would break a promise given under the configuration that it
/// replaces; `None`: there is none. `tenants`: those that the configuration has now.
pub fn conflict(
    reservations: &[Reservation],
    before: &AgentFile,
    file: &AgentFile,
    tenants: &[Owed],
) -> Option<Conflict> {
    if !file.agent.has(Mechanism::Criticality) {
        // Without the mechanism there are no promises.
        return None;
    }
    let given_to = |name: &str| {
        let its = reservations.iter().filter(|it| it.tenant.as_str() == name);
        its.filter(|it| it.leaves_ns.is_none()).collect::<Vec<_>>()
    };
    let tenants = tenants.iter();
    let tenants = tenants.filter_map(|it| Some((&it.key, &it.spec, it.spec.server()?)));
    let held = tenants.map(|(key, spec, server)| (key, spec, server, given_to(&spec.name)));
    let held: Vec<_> = held.filter(|(.., its)| !its.is_empty()).collect();
    if held.is_empty() {
        return None;
    }
    let (was, is) = (&before.criticality, &file.criticality);
    let decisive = [
        ("test", was.test != is.test),
        ("reserve_percent", was.reserve_percent != is.reserve_percent),
        ("overhead_us", was.overhead_us != is.overhead_us),
    ];
    if let Some((key, _)) = decisive.iter().find(|(_, differs)| *differs) {
        return Some(Conflict {
            key: format!("criticality.{key}"),
            message: format!(
                "decides what fits, and {} tenants were promised CPU time by what it was: it stays until nothing is promised (reload without \
                 their `criticality` first), or until the agent is started anew",
                held.len()
            ),
        });
    }
    let mut host = host_of(reservations, *is);
    // By the settings of `before` if they differ, where those were read since and had no period yet.
    let holds = |cpu| host.verdict(cpu).is_none_or(|verdict| verdict.fits);
    if let Some((cpu, _)) = host.cpus().iter().find(|(cpu, _)| !holds(*cpu)) {
        return Some(Conflict {
            key: "criticality".into(),
            message: format!("has no room for what was promised on CPU {cpu}"),
        });
    }
    for (tenant, spec, server, its) in held {
        let first = its[0];
        let conflict = |key: &str, message: String| {
            let key = format!("{tenant}.{key}");
            Some(Conflict { key, message })
        };
        if server.criticality != first.server.criticality {
            let message = "is not what its tenant is promised CPU time with: reload without it first, and give it then";
            return conflict("criticality", message.into());
        }
        if spec.vcpus.is_some_and(|vcpus| vcpus as usize != its.len()) {
            let message = format!(
                "is not {}, for how many its tenant is promised CPU time: reload without its `criticality` first, and give it then",
                its.len()
            );
            return conflict("vcpus", message);
        }
        let now = first.next.map_or(first.server, |it| it.server);
        if server == now {
            continue;
        }
        if let Err((cpu, condition)) = host.replace(&first.tenant, &either(&first.room, &server)) {
            let key = match () {
                _ if server.budget_ns > now.budget_ns => "budget_ms",
                _ if server.pessimistic_ns > now.pessimistic_ns => "pessimistic_budget_ms",
                _ => "period_ms",
            };
            return conflict(key, no_room(&server, cpu, &condition));
        }
    }
    None
}

/// Why a tenant that has a promise cannot have these terms instead.
pub(super) fn no_room(server: &Server, cpu: CpuId, condition: &Condition) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    format!(
        "{} of every {} ms has no room on CPU {cpu}, where its tenant is promised CPU time: {} does not hold: {:.3}",
        ms(server.budget_ns),
        ms(server.period_ns),
        condition.what,
        condition.value
    )
}
