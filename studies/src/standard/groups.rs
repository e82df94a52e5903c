//! Cgroups of the standard suite, directly below the root of the host's v2 hierarchy:
//! `quell-standard-PID.NAME`.
//!
//! Dropping a cgroup ends all processes in it and removes it; dropping the hierarchy disables the controllers
//! that were enabled for it.

use anyhow::{Context, ensure};
use quell_bench::workload::write_to_kernel;
use quell_linux::observe::{CgroupVersion, CpuHierarchy};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long killed processes may take to leave their cgroup.
const GRACE: Duration = Duration::from_secs(20);

/// The file that says which controllers a cgroup's children have.
const CONTROL: &str = "cgroup.subtree_control";

/// The root of the host's cgroups.
pub(super) struct Hierarchy {
    root: PathBuf,
    enabled: Vec<&'static str>,
}

impl Hierarchy {
    /// Opens the root, and enables the cpu controller for its children.
    ///
    /// # Errors
    /// Where the host has no v2 hierarchy with the cpu controller, or the controller cannot be enabled
    /// (mostly without root).
    pub(super) fn open() -> anyhow::Result<Hierarchy> {
        let found =
            CpuHierarchy::find().context("no cgroup hierarchy here has the cpu controller")?;
        ensure!(
            found.version == CgroupVersion::V2,
            "the standard suite needs cgroup v2"
        );
        let mut hierarchy = Hierarchy {
            root: found.mount,
            enabled: Vec::new(),
        };
        hierarchy.enable("cpu").context("the suite needs root")?;
        Ok(hierarchy)
    }

    /// The root's file of processes.
    ///
    /// # Errors
    /// Where the file cannot be opened.
    pub(super) fn root_procs(&self) -> anyhow::Result<File> {
        procs(&self.root)
    }

    /// Makes a cgroup; `most` limits its number of processes and threads.
    ///
    /// # Errors
    /// Where the cgroup cannot be made or limited.
    pub(super) fn make(&mut self, name: &str, most: Option<u32>) -> anyhow::Result<Group> {
        if most.is_some() {
            self.enable("pids")?;
        }
        let folder = format!("quell-standard-{}.{name}", std::process::id());
        let folder = self.root.join(folder);
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let group = Group { folder };
        if let Some(most) = most {
            write_to_kernel(&group.folder.join("pids.max"), &most.to_string())?;
        }
        Ok(group)
    }

    fn enable(&mut self, controller: &'static str) -> anyhow::Result<()> {
        let file = self.root.join(CONTROL);
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        if !text.split_whitespace().any(|it| it == controller) {
            write_to_kernel(&file, &format!("+{controller}"))?;
            self.enabled.push(controller);
        }
        Ok(())
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        for controller in &self.enabled {
            // The kernel refuses where other cgroups below have passed the controller on.
            if let Err(error) = write_to_kernel(&self.root.join(CONTROL), &format!("-{controller}"))
            {
                tracing::warn!("the {controller} controller stays enabled: {error:#}");
            }
        }
    }
}

/// A cgroup that exists as long as this does.
pub(super) struct Group {
    folder: PathBuf,
}

impl Group {
    /// The cgroup's file of processes.
    ///
    /// # Errors
    /// Where the file cannot be opened.
    pub(super) fn procs(&self) -> anyhow::Result<File> {
        procs(&self.folder)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let give_up = Instant::now() + GRACE;
        loop {
            // All processes in the cgroup end here, even if they fork meanwhile.
            let _ = write_to_kernel(&self.folder.join("cgroup.kill"), "1");
            match fs::remove_dir(&self.folder) {
                Ok(()) => return,
                Err(error)
                    if error.kind() != ErrorKind::ResourceBusy || Instant::now() >= give_up =>
                {
                    tracing::warn!(cgroup = %self.folder.display(), %error, "cannot be removed");
                    return;
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

fn procs(folder: &Path) -> anyhow::Result<File> {
    let file = folder.join("cgroup.procs");
    let opened = OpenOptions::new().write(true).open(&file);
    opened.with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Command;

    #[test]
    fn a_cgroup_ends_what_is_in_it() {
        let made =
            Hierarchy::open().and_then(|mut it| it.make("test", Some(5)).map(|group| (group, it)));
        let (group, _hierarchy) = match made {
            Ok(made) => made,
            Err(error) => {
                quell_testkit::skip!(Cgroups, "{error:#}");
                return;
            }
        };
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let id = child.id().to_string();
        group.procs().unwrap().write_all(id.as_bytes()).unwrap();
        let folder = group.folder.clone();
        drop(group);
        assert!(!folder.exists());
        assert!(!child.wait().unwrap().success());
    }
}
