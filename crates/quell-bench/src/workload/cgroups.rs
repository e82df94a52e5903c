//! The cgroups of a scenario, on this machine.
//!
//! They are made in the root of the hierarchy that has the cpu controller (v2's, or v1's own), parents before
//! children, beside the cgroups that are there: so weights mean what they mean on the simulator, where the
//! root has nothing else in it. Where a scenario has any cgroup, tenants without one run in the root. A
//! scenario that needs none changes nothing.
//!
//! In v2 a cgroup's children have the controller if `cgroup.subtree_control` names it; where the root's does
//! not yet, it is added for as long as these cgroups exist. Dropping removes all, children before parents;
//! after a SIGKILL empty cgroups stay, which do nothing: `quell-bench-*`.

use anyhow::Context;
use quell_linux::observe::{CgroupVersion, CpuHierarchy};
use quell_scenario::{Cgroup, Scenario};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long processes that have ended may take to leave their cgroup.
const GRACE: Duration = Duration::from_secs(2);

/// Cgroups that exist as long as this does.
pub struct Cgroups {
    /// The root of the hierarchy, if any cgroup was made.
    root: Option<PathBuf>,
    /// The cgroups that were made, in this order.
    made: Vec<PathBuf>,
    /// Whether the root was told to give its children the controller.
    enabled: bool,
    /// By tenant, the index of its cgroup.
    of: Vec<Option<usize>>,
}

impl Cgroups {
    /// Makes all cgroups that a scenario needs. Their names begin with `prefix`, which no other cgroup's name
    /// does.
    ///
    /// # Errors
    /// Where the cpu controller is in no hierarchy, or a cgroup cannot be made or set (mostly without root).
    pub fn make(scenario: &Scenario, prefix: &str) -> anyhow::Result<Cgroups> {
        let wanted = scenario.cgroups();
        let mut cgroups = Cgroups {
            root: None,
            made: Vec::new(),
            enabled: false,
            of: wanted.of,
        };
        if wanted.all.is_empty() {
            return Ok(cgroups);
        }
        let hierarchy = CpuHierarchy::find().context(
            "the scenario needs cgroups, and no cgroup hierarchy here has the cpu controller",
        )?;
        cgroups.root = Some(hierarchy.mount.clone());
        for cgroup in &wanted.all {
            let made = cgroups.add(cgroup, &hierarchy, prefix);
            made.with_context(|| format!("cgroup `{}`", cgroup.name))?;
        }
        Ok(cgroups)
    }

    /// The file that takes the processes of a tenant, by its index; `None`: they stay in our cgroup.
    ///
    /// # Errors
    /// Where the file cannot be opened.
    pub fn procs(&self, tenant: usize) -> anyhow::Result<Option<File>> {
        let Some(root) = &self.root else {
            return Ok(None);
        };
        let folder = self.of.get(tenant).copied().flatten();
        let folder = folder.map_or(root, |index| &self.made[index]);
        let file = folder.join("cgroup.procs");
        let opened = OpenOptions::new().write(true).open(&file);
        opened.map(Some).with_context(|| file.display().to_string())
    }

    /// The cgroups that were made, in the order of [`Scenario::cgroups`].
    pub fn made(&self) -> &[PathBuf] {
        &self.made
    }

    fn add(
        &mut self,
        cgroup: &Cgroup,
        hierarchy: &CpuHierarchy,
        prefix: &str,
    ) -> anyhow::Result<()> {
        let parent = match cgroup.parent {
            Some(parent) => self.made[parent].clone(),
            None => hierarchy.mount.clone(),
        };
        if hierarchy.version == CgroupVersion::V2 && enable(&parent)? && cgroup.parent.is_none() {
            self.enabled = true;
        }
        // The prefix is on every name: a tenant may be named as one of the kernel's files is.
        let folder = parent.join(format!("{prefix}.{}", cgroup.name));
        fs::create_dir(&folder).with_context(|| {
            format!(
                "cannot make {} (a scenario with [[group]] or kind = \"container\" needs root)",
                folder.display()
            )
        })?;
        self.made.push(folder.clone());
        settings(cgroup, hierarchy.version)
            .iter()
            .try_for_each(|(file, value)| write(&folder.join(file), value))
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for folder in self.made.iter().rev() {
            let give_up = Instant::now() + GRACE;
            while let Err(error) = fs::remove_dir(folder) {
                let busy = error.kind() == io::ErrorKind::ResourceBusy;
                if !busy || Instant::now() >= give_up {
                    tracing::warn!(cgroup = %folder.display(), %error, "cannot be removed");
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if let (Some(root), true) = (&self.root, self.enabled) {
            // The root is set as it was. The kernel refuses that once other cgroups below have passed the
            // controller on.
            if let Err(error) = write(&root.join(CONTROL), "-cpu") {
                tracing::warn!("the cpu controller stays enabled: {error:#}");
            }
        }
    }
}

/// The file that says which controllers a cgroup's children have.
const CONTROL: &str = "cgroup.subtree_control";

/// Gives a v2 cgroup's children the cpu controller; whether they lacked it.
fn enable(folder: &Path) -> anyhow::Result<bool> {
    let file = folder.join(CONTROL);
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    if text
        .split_whitespace()
        .any(|controller| controller == "cpu")
    {
        return Ok(false);
    }
    write(&file, "+cpu")?;
    Ok(true)
}

/// The files of a cgroup that hold its weight and its limit, with their values.
fn settings(cgroup: &Cgroup, version: CgroupVersion) -> Vec<(&'static str, String)> {
    let weight = u64::from(cgroup.weight.0);
    let limit = cgroup.max.map(|max| (max.quota_us(), max.period_us()));
    let burst = cgroup.max.map_or(0, |max| max.burst_us());
    let mut files = Vec::new();
    match version {
        CgroupVersion::V2 => {
            files.push(("cpu.weight", weight.to_string()));
            files.extend(limit.map(|(quota, period)| ("cpu.max", format!("{quota} {period}"))));
            // Kernels before 5.14 do not have the file.
            files.extend((burst > 0).then(|| ("cpu.max.burst", burst.to_string())));
        }
        CgroupVersion::V1 => {
            files.push(("cpu.shares", (weight * 1024 / 100).max(2).to_string()));
            if let Some((quota, period)) = limit {
                files.push(("cpu.cfs_period_us", period.to_string()));
                files.push(("cpu.cfs_quota_us", quota.to_string()));
            }
            files.extend((burst > 0).then(|| ("cpu.cfs_burst_us", burst.to_string())));
        }
    }
    files
}

/// Writes to a file of the kernel's, which must exist.
///
/// # Errors
/// Where it does not exist, or the kernel refuses the value.
pub fn write(file: &Path, value: &str) -> anyhow::Result<()> {
    let opened = OpenOptions::new().write(true).open(file);
    let written = opened.and_then(|mut open| open.write_all(value.as_bytes()));
    written.with_context(|| format!("cannot write {value} to {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_model::TenantWeight;
    use quell_scenario::CpuMax;

    #[test]
    fn weights_and_limits_in_both_interfaces() {
        let cgroup = |weight, max| Cgroup {
            name: "a".into(),
            parent: None,
            weight: TenantWeight(weight),
            max,
        };
        let text = |cgroup: &Cgroup, version| {
            let files = settings(cgroup, version);
            let lines = files.iter().map(|(file, value)| format!("{file}: {value}"));
            lines.collect::<Vec<_>>().join(", ")
        };
        let plain = cgroup(1, None);
        assert_eq!(text(&plain, CgroupVersion::V2), "cpu.weight: 1");
        assert_eq!(text(&plain, CgroupVersion::V1), "cpu.shares: 10");
        let max = CpuMax {
            quota_ms: 20.5,
            period_ms: 50.0,
            burst_ms: 3.0,
        };
        let limited = cgroup(300, Some(max));
        assert_eq!(
            text(&limited, CgroupVersion::V2),
            "cpu.weight: 300, cpu.max: 20500 50000, cpu.max.burst: 3000"
        );
        assert_eq!(
            text(&limited, CgroupVersion::V1),
            "cpu.shares: 3072, cpu.cfs_period_us: 50000, cpu.cfs_quota_us: 20500, cpu.cfs_burst_us: 3000"
        );
    }
}
