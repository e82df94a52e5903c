//! The cgroup that each tenant has to itself, kept up to date at a bounded cost per period.
//!
//! To find it, the cgroup of each of the tenant's processes and the member lists of the cgroup are
//! read, which is too much for every period: a tenant that gained or lost a process is examined soon,
//! the other tenants in turn, so that a stranger in a tenant's cgroup is noticed within about 10 s.

use super::ObserveError;
use super::account::Account;
use super::cgroup::{CpuHierarchy, Paths};
use super::discover::{Discovery, Kind};
use super::proc::{self, Reader};
use super::roster::Tenant;
use quell_model::CgroupPath;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Periods in which every tenant is examined once in turn, and (below) the least number of periods between
/// two examinations of a tenant.
const PERIODS_PER_PASS: u64 = 125;
const PERIODS_BETWEEN: u64 = 12;
/// The most changed tenants examined in one period.
const CHANGED_LIMIT: usize = 4;

pub(crate) struct ExclusiveCgroups {
    hierarchy: Option<CpuHierarchy>,
    tenants: Vec<TenantCgroup>,
    period: u64,
    reader: Reader,
}

#[derive(Default)]
struct TenantCgroup {
    cgroup: Option<CgroupPath>,
    /// Whether processes came or went since it was last examined.
    changed: bool,
    looked: Option<u64>,
    limit_cpus: Option<f64>,
    /// The period in which the tenant's bandwidth limit was last read.
    limit_looked: Option<u64>,
    account: Account,
    /// Strangers that were in the tenant's cgroup when it was last examined, and may have been on their way
    /// into the tenant.
    suspects: BTreeSet<u32>,
}

impl ExclusiveCgroups {
    pub(crate) fn new() -> ExclusiveCgroups {
        ExclusiveCgroups {
            hierarchy: CpuHierarchy::find(),
            tenants: Vec::new(),
            period: 0,
            reader: Reader::default(),
        }
    }

    /// Forgets the tenant of a place that is to be another's.
    pub(crate) fn forget(&mut self, tenant: usize) {
        self.tenants[tenant] = TenantCgroup::default();
    }

    pub(crate) fn of(&self, tenant: usize) -> Option<&CgroupPath> {
        self.tenants[tenant].cgroup.as_ref()
    }

    /// The bandwidth limit of a tenant, in CPUs. `stopped`: whether a limit throttled the tenant in this
    /// period, which makes the limit worth reading.
    pub(crate) fn limit(&mut self, tenant: usize, stopped: bool) -> Option<f64> {
        let own = &mut self.tenants[tenant];
        let looked = own.limit_looked;
        let rested = looked.is_none_or(|at| self.period - at >= PERIODS_BETWEEN);
        if rested && (stopped || own.limit_cpus.is_some()) {
            let place = self.hierarchy.as_ref().zip(own.cgroup.as_ref());
            own.limit_cpus = place.and_then(|(hierarchy, cgroup)| hierarchy.limit(&cgroup.0));
            own.limit_looked = Some(self.period);
        }
        own.limit_cpus
    }

    /// CPU time in ns that threads other than the known ones used in a tenant's cgroup since the last call;
    /// `known_ns` is the run time of the known threads in this period.
    pub(crate) fn unknown_ns(&mut self, tenant: usize, known_ns: u64) -> u64 {
        let own = &mut self.tenants[tenant];
        let Some((hierarchy, cgroup)) = self.hierarchy.as_ref().zip(own.cgroup.as_ref()) else {
            return 0;
        };
        if !own.account.ran(known_ns) {
            return 0;
        }
        own.account
            .read(hierarchy.used_ns(&cgroup.0, &mut self.reader))
    }

    /// Examines the tenants that are due.
    pub(crate) fn step(
        &mut self,
        discovery: &Discovery,
        changed: BTreeSet<usize>,
    ) -> Result<(), ObserveError> {
        let period = self.period;
        self.period += 1;
        self.tenants
            .resize_with(discovery.roster().places(), TenantCgroup::default);
        changed
            .into_iter()
            .for_each(|tenant| self.tenants[tenant].changed = true);
        let due = |own: &TenantCgroup| {
            let rested = own.looked.is_none_or(|at| period - at >= PERIODS_BETWEEN);
            own.changed && rested
        };
        // The longest neglected first, so that tenants that change all the time hold up no other tenant.
        let mut soon: Vec<usize> = (0..self.tenants.len())
            .filter(|&t| due(&self.tenants[t]))
            .collect();
        soon.sort_by_key(|&tenant| self.tenants[tenant].looked);
        // In the first period all tenants at once: the first plan should know every tenant's cgroup.
        soon.truncate(if period == 0 {
            usize::MAX
        } else {
            CHANGED_LIMIT
        });
        let count = self.tenants.len() as u64;
        let turn = |at: u64| at * count / PERIODS_PER_PASS;
        soon.extend((turn(period)..turn(period + 1)).map(|n| (n % count) as usize));
        for tenant in soon {
            let cgroup = self.find(discovery, tenant)?;
            let own = &mut self.tenants[tenant];
            if own.cgroup.as_ref().map(|c| &*c.0) != cgroup.as_deref() {
                own.cgroup = cgroup.map(|path| CgroupPath(path.into()));
                own.account = Account::default();
            }
            (own.changed, own.looked) = (!own.suspects.is_empty(), Some(period));
        }
        Ok(())
    }

    fn find(
        &mut self,
        discovery: &Discovery,
        tenant: usize,
    ) -> Result<Option<String>, ObserveError> {
        let Some(hierarchy) = &self.hierarchy else {
            return Ok(None);
        };
        let suspects = std::mem::take(&mut self.tenants[tenant].suspects);
        let pids = discovery.members(tenant);
        let mut paths: Vec<String> = Vec::new();
        for &pid in pids {
            // libvirt puts each thread of a virtual machine into a cgroup of its own. No other software does
            // that, so the main thread of any other process represents all its threads.
            let tids = match discovery.process(pid).map(|p| p.kind) {
                Some(Kind::Qemu) => {
                    proc::numbers_in(&format!("/proc/{pid}/task"))?.unwrap_or_default()
                }
                _ => vec![pid],
            };
            for tid in tids {
                let text = self
                    .reader
                    .read(format_args!("/proc/{pid}/task/{tid}/cgroup"))?;
                let Some(text) = text else { continue };
                let Some(path) = hierarchy.path_of(&Paths::parse(text)) else {
                    return Ok(None);
                };
                if paths.last().is_none_or(|last| last != path) {
                    paths.push(path.to_string());
                }
            }
        }
        // A process that is not known yet is examined soon, and counts as a stranger then if it is one.
        let stranger = |pid| !pids.contains(&pid) && discovery.process(pid).is_some();
        let found = hierarchy.exclusive(paths.iter().map(String::as_str), &stranger);
        let roster = discovery.roster();
        let thing = roster.tenant(tenant).and_then(Tenant::thing_cgroup);
        let found = found.and_then(|found| of_thing(found, thing, &paths));
        let own = &mut self.tenants[tenant];
        // Processes come and go. A tenant keeps the cgroup that it had as long as all of its processes, if it
        // has any, are in it and no stranger is seen there at two successive examinations: a stranger that is
        // seen once may be about to join the tenant.
        let before = own.cgroup.as_ref().map(|it| &*it.0).filter(|before| {
            let lower = |found: &str| found != *before && within(found, before);
            found.as_deref().is_none_or(lower) && paths.iter().all(|it| within(it, before))
        });
        if let Some(before) = before {
            let seen = RefCell::new(BTreeSet::new());
            let again = |pid| {
                stranger(pid) && {
                    seen.borrow_mut().insert(pid);
                    suspects.contains(&pid)
                }
            };
            if hierarchy.is_exclusive(before, &again) {
                let before = before.to_string();
                own.suspects = seen.into_inner();
                return Ok(Some(before));
            }
        }
        Ok(found)
    }
}

fn within(path: &str, above: &str) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The cgroup of a tenant of which `found` is the highest that it has to itself, and whose processes are in
/// `paths`. A unit that is alone in its slice is owed its weight beside the units that come, so the slice is
/// not its cgroup: a thing that a rule found has none above its own. `None`: it has no cgroup in the CPU
/// controller's hierarchy.
fn of_thing(found: String, thing: Option<&str>, paths: &[String]) -> Option<String> {
    match thing {
        Some(thing) if found != thing && within(thing, &found) => paths
            .iter()
            .all(|it| within(it, thing))
            .then(|| thing.to_string()),
        _ => Some(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_that_a_rule_found_has_no_cgroup_above_its_own() {
        let unit = Some("/system.slice/a.service");
        for (found, thing, path, expected) in [
            ("/system.slice", unit, "/system.slice/a.service", unit),
            ("/system.slice", unit, "/system.slice/a.service/b", unit),
            // Version 1: the CPU controller has no cgroup for the unit.
            ("/system.slice", unit, "/system.slice", None),
            (
                "/system.slice/a.service/b",
                unit,
                "/system.slice/a.service/b",
                Some("/system.slice/a.service/b"),
            ),
            (
                "/system.slice/a.service",
                unit,
                "/system.slice/a.service",
                unit,
            ),
            // The hierarchies differ.
            ("/other", unit, "/other", Some("/other")),
            // A table may mean all of a slice.
            (
                "/web.slice",
                None,
                "/web.slice/a.service",
                Some("/web.slice"),
            ),
        ] {
            let of = of_thing(found.to_string(), thing, &[path.to_string()]);
            assert_eq!(of.as_deref(), expected, "{found} {path}");
        }
    }
}
