//! Cgroups of a scenario: `[[group]]` tables, the tenants in them, and limits on CPU time.
//!
//! ```toml
//! [[group]]
//! name = "shop"
//! weight = 200
//! [[group]]
//! name = "backends"
//! within = "shop"
//! max = { quota_ms = 50, period_ms = 100 }
//! [[tenant]]                     # its own cgroup lies in `backends`
//! name = "db"
//! kind = "container"
//! within = "backends"
//! ```
//!
//! A group is a cgroup that several tenants share; `within` names its parent group, the root unless
//! given. A container or VM has a cgroup of its own, in its group; a process is in its group's
//! cgroup itself. A cgroup with both processes and cgroups in it, which cgroup v2 refuses, is
//! refused here, before any cgroup is made.

use crate::{Scenario, ScenarioTenant, TenantInstance};
use quell_model::config::{ConfigError, check_name, nearest};
use quell_model::{TenantName, TenantWeight};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// One `[[group]]` table: a cgroup for tenants and other groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// The group's name, unique among tenants' names too: letters, digits, `.`, `_`, `-`; at most 64.
    pub name: String,
    /// The group's weight among its siblings (`cpu.weight`), 1 to 10 000.
    #[serde(default)]
    pub weight: TenantWeight,
    /// The parent group; not given: the root.
    pub within: Option<String>,
    /// The limit on the CPU time of all threads in the group together.
    pub max: Option<CpuMax>,
}

/// A limit on a cgroup's CPU time (`cpu.max`, `cpu.max.burst`): `max = { quota_ms = 20, period_ms = 100 }`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuMax {
    /// CPU time in each period, of all CPUs together, in ms: 1 to 1 000 000.
    pub quota_ms: f64,
    /// The period, in ms: 1 to 1000.
    #[serde(default = "default_period_ms")]
    pub period_ms: f64,
    /// The unused quota of earlier periods that may be used beyond the quota, in ms: 0 to `quota_ms`.
    #[serde(default)]
    pub burst_ms: f64,
}

/// The kernel's default period.
fn default_period_ms() -> f64 {
    100.0
}

impl CpuMax {
    /// The quota, in us.
    pub fn quota_us(&self) -> u64 {
        (self.quota_ms * 1e3).round() as u64
    }

    /// The period, in us.
    pub fn period_us(&self) -> u64 {
        (self.period_ms * 1e3).round() as u64
    }

    /// The burst, in us.
    pub fn burst_us(&self) -> u64 {
        (self.burst_ms * 1e3).round() as u64
    }

    fn check(&self, file: &Path, key: &str) -> Result<(), ConfigError> {
        for (field, value, low, high) in [
            ("quota_ms", self.quota_ms, 1.0, 1e6),
            ("period_ms", self.period_ms, 1.0, 1e3),
            ("burst_ms", self.burst_ms, 0.0, self.quota_ms),
        ] {
            if !(low..=high).contains(&value) {
                let message = match field {
                    "burst_ms" => format!("{value} is outside 0 to quota_ms ({high})"),
                    _ => format!("{value} is outside {low} to {high}"),
                };
                return Err(ConfigError::at(file, format!("{key}.{field}"), message));
            }
        }
        Ok(())
    }
}

/// A cgroup that a scenario needs: that of a group, or the own one of a container or VM.
#[derive(Debug, Clone, PartialEq)]
pub struct Cgroup {
    /// The group's or the tenant's name; no two cgroups have the same name.
    pub name: TenantName,
    /// The parent cgroup, by its index; `None`: the root.
    pub parent: Option<usize>,
    /// The cgroup's `cpu.weight`.
    pub weight: TenantWeight,
    /// The cgroup's bandwidth limit; `None`: no limit.
    pub max: Option<CpuMax>,
}

/// All cgroups that a scenario needs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cgroups {
    /// The cgroups, parents before children.
    pub all: Vec<Cgroup>,
    /// For each tenant, in the order of [`Scenario::instances`], the cgroup of its processes by its
    /// index; `None`: the root.
    pub of: Vec<Option<usize>>,
}

impl Cgroups {
    /// The cgroups of a checked scenario.
    pub(crate) fn new(scenario: &Scenario) -> Cgroups {
        let mut cgroups = Cgroups::default();
        let mut index_of: BTreeMap<&str, usize> = BTreeMap::new();
        let mut left: Vec<&GroupSpec> = scenario.groups.iter().collect();
        // In each pass, take the groups whose parents are in the list, until no group is left.
        while !left.is_empty() {
            let before = left.len();
            left.retain(|group| {
                let parent = match &group.within {
                    None => None,
                    Some(within) => match index_of.get(within.as_str()) {
                        None => return true,
                        parent => parent.copied(),
                    },
                };
                index_of.insert(&group.name, cgroups.all.len());
                cgroups.all.push(Cgroup {
                    name: group.name.as_str().into(),
                    parent,
                    weight: group.weight,
                    max: group.max,
                });
                false
            });
            if left.len() == before {
                break; // The groups left are in a cycle, which the check refuses.
            }
        }
        for TenantInstance { name, table } in scenario.instances() {
            let within = table.within.as_deref();
            let group = within.and_then(|within| index_of.get(within).copied());
            let own = if table.has_cgroup() {
                cgroups.all.push(Cgroup {
                    name,
                    parent: group,
                    weight: table.spec.weight(),
                    max: table.max,
                });
                Some(cgroups.all.len() - 1)
            } else {
                group
            };
            cgroups.of.push(own);
        }
        cgroups
    }
}

/// Checks groups, and the keys of tenants that refer to them.
pub(crate) fn check_groups(
    groups: &[GroupSpec],
    tenants: &[ScenarioTenant],
    file: &Path,
) -> Result<(), ConfigError> {
    let index_of = check_keys(groups, file)?;
    let find = |name: &str, key: &str| match index_of.get(name) {
        Some(&index) => Ok(index),
        None => {
            let names: Vec<&str> = index_of.keys().copied().collect();
            let known = match names.is_empty() {
                true => "; there is no [[group]]".to_string(),
                false => format!("; there are: {}", names.join(", ")),
            };
            let near = nearest(name, names.iter().copied());
            let hint = near.map(|near| format!("; did you mean `{near}`?"));
            let message = format!("there is no group `{name}`{}", hint.unwrap_or(known));
            Err(ConfigError::at(file, format!("{key}.within"), message))
        }
    };
    let mut parents = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let key = format!("group[{index}]");
        let within = group.within.as_deref();
        parents.push(within.map(|name| find(name, &key)).transpose()?);
    }
    check_no_cycle(groups, &parents, file)?;
    let mut homes = Vec::new();
    for (index, tenant) in tenants.iter().enumerate() {
        let key = format!("tenant[{index}]");
        if let Some(max) = &tenant.max {
            if !tenant.has_cgroup() {
                let message = "it has no cgroup of its own; give it one (a process kind = \"container\"), or a [[group]] \
                               with `max` to lie `within`";
                return Err(ConfigError::at(file, format!("{key}.max"), message));
            }
            max.check(file, &format!("{key}.max"))?;
        }
        if let Some(name) = &tenant.within {
            homes.push((index, find(name, &key)?));
        }
    }
    check_contents(groups, &parents, tenants, &homes, file)
}

/// Checks the keys of each group by itself. Returns the groups' indices by name.
fn check_keys<'a>(
    groups: &'a [GroupSpec],
    file: &Path,
) -> Result<BTreeMap<&'a str, usize>, ConfigError> {
    let error = |key: String, message: String| Err(ConfigError::at(file, key, message));
    let mut index_of: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        let key = format!("group[{index}]");
        check_name(&group.name, file, &key)?;
        if !(1..=10_000).contains(&group.weight.0) {
            let message = format!("{} is outside 1 to 10000", group.weight);
            return error(format!("{key}.weight"), message);
        }
        if let Some(max) = &group.max {
            max.check(file, &format!("{key}.max"))?;
        }
        if let Some(earlier) = index_of.insert(&group.name, index) {
            let message = format!("`{}` is also the name of group[{earlier}]", group.name);
            return error(format!("{key}.name"), message);
        }
    }
    Ok(index_of)
}

/// Checks that no group lies in itself. `parents` has each group's parent, by its index.
fn check_no_cycle(
    groups: &[GroupSpec],
    parents: &[Option<usize>],
    file: &Path,
) -> Result<(), ConfigError> {
    for index in 0..groups.len() {
        let mut path = vec![groups[index].name.as_str()];
        let mut at = index;
        while let Some(parent) = parents[at] {
            path.push(&groups[parent].name);
            if parent == index {
                let message = format!("it would lie in itself: {}", path.join(" in "));
                let key = format!("group[{index}].within");
                return Err(ConfigError::at(file, key, message));
            }
            if path.len() > groups.len() {
                // The chain of parents ends in a cycle that this group is not part of; a member reports it.
                break;
            }
            at = parent;
        }
    }
    Ok(())
}

/// Checks that each group has a tenant in it, and no group both processes and cgroups. `homes`: each tenant
/// that lies in a group, and the group.
fn check_contents(
    groups: &[GroupSpec],
    parents: &[Option<usize>],
    tenants: &[ScenarioTenant],
    homes: &[(usize, usize)],
    file: &Path,
) -> Result<(), ConfigError> {
    // For each group, the name of one cgroup in it.
    let mut holds: BTreeMap<usize, &str> = BTreeMap::new();
    for (group, parent) in groups.iter().zip(parents) {
        if let Some(parent) = parent {
            holds.entry(*parent).or_insert(&group.name);
        }
    }
    let mut used: BTreeSet<usize> = BTreeSet::new();
    for &(tenant, group) in homes {
        if tenants[tenant].has_cgroup() {
            let name = &tenants[tenant].spec.name;
            holds.entry(group).or_insert(name);
        }
        let mut at = Some(group);
        while let Some(group) = at.filter(|&group| used.insert(group)) {
            at = parents[group];
        }
    }
    for &(tenant, group) in homes {
        if tenants[tenant].has_cgroup() {
            continue;
        }
        if let Some(inner) = holds.get(&group) {
            let message = format!(
                "group `{}` has a cgroup in it (`{inner}`), so it can have no processes of its own (cgroup v2); \
                 give this tenant kind = \"container\", or a group of its own",
                groups[group].name
            );
            let key = format!("tenant[{tenant}].within");
            return Err(ConfigError::at(file, key, message));
        }
    }
    if let Some(empty) = (0..groups.len()).find(|group| !used.contains(group)) {
        let message = format!(
            "no tenant lies within group `{}` or a group in it",
            groups[empty].name
        );
        return Err(ConfigError::at(file, format!("group[{empty}]"), message));
    }
    Ok(())
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
