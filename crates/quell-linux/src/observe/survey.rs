//! What a configuration's selectors and rules find on the host now, without following it.

use super::discover::Kind;
use super::{ObserveError, View};
use quell_model::config::{AgentTenant, TenantRule, TenantSpec};
use quell_model::{Labels, TenantName};
use std::sync::Arc;

/// The tenants that there would be now.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Survey {
    /// The tenants, ascending by name.
    pub tenants: Vec<Surveyed>,
    /// The processes of no tenant, with their names, ascending by id; kernel threads are not among them.
    pub rest: Vec<(u32, String)>,
}

/// A tenant that there would be.
#[derive(Debug, Clone, PartialEq)]
pub struct Surveyed {
    /// The tenant's name.
    pub name: TenantName,
    /// What its source says of it; empty of a tenant that has a table.
    pub labels: Arc<Labels>,
    /// The rule that finds it; `None` of a tenant that has a table.
    pub rule: Option<usize>,
    /// What it is owed.
    pub spec: Arc<TenantSpec>,
    /// How many processes it has.
    pub processes: usize,
}

/// Looks at all processes once.
///
/// # Errors
/// The call fails with a wrong selector ([`ObserveError::Selector`]), and on a host without `/proc`.
pub fn survey(tenants: &[AgentTenant], rules: &[TenantRule]) -> Result<Survey, ObserveError> {
    let View { discovery, .. } = View::of(tenants, rules)?;
    let roster = discovery.roster();
    let tenants = roster.by_name().filter_map(|place| {
        let tenant = roster.tenant(place)?;
        Some(Surveyed {
            name: tenant.name.clone(),
            labels: tenant.labels.clone(),
            rule: tenant.rule(),
            spec: tenant.spec.clone(),
            processes: discovery.members(place).len(),
        })
    });
    let own = std::process::id();
    let rest = discovery.processes().filter(|(pid, process)| {
        process.tenant.is_none() && process.kind != Kind::Kernel && *pid != own
    });
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm"));
    // A process that has ended meanwhile is left out.
    let rest = rest.filter_map(|(pid, _)| Some((pid, name(pid).ok()?.trim_end().to_string())));
    Ok(Survey {
        tenants: tenants.collect(),
        rest: rest.collect(),
    })
}
