//! The mount points of cgroups, and a cgroup's CPU weight in the units of v1 and v2.

use quell_model::{CgroupPath, CpuSet, TenantWeight, Tid};
use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The version of the cgroup interface of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Version {
    V1,
    V2,
}

/// A mounted cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub version: Version,
    /// The directory where the hierarchy is mounted.
    pub mount: PathBuf,
    /// The cgroup that is mounted there, `/` unless in a container.
    root: String,
}

/// The hierarchies that matter here. On a hybrid host each controller is in one of the two versions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Cgroups {
    /// The hierarchy with the CPU controller.
    pub cpu: Option<Hierarchy>,
    /// The hierarchy with cpusets.
    cpuset: Option<Hierarchy>,
}

impl Cgroups {
    /// Finds the hierarchies of this host.
    ///
    /// # Errors
    /// The call fails if the mountinfo file of this process cannot be read.
    pub fn find() -> io::Result<Cgroups> {
        Ok(Cgroups::from_mountinfo(&fs::read_to_string(
            "/proc/self/mountinfo",
        )?))
    }

    /// The hierarchies in the text of a mountinfo file (proc_pid_mountinfo(5)).
    pub fn from_mountinfo(text: &str) -> Cgroups {
        let find = |controller: &str| {
            text.lines().find_map(|line| {
                let (before, after) = line.split_once(" - ")?;
                let mut fields = before.split(' ').skip(3);
                let (root, mount) = (unescape(fields.next()?), unescape(fields.next()?));
                let mut kind = after.split(' ');
                let (kind, options) = (kind.next()?, kind.nth(1)?);
                let mount = PathBuf::from(mount);
                let version = match kind {
                    "cgroup" if options.split(',').any(|o| o == controller) => Version::V1,
                    "cgroup2" => {
                        let has = fs::read_to_string(mount.join("cgroup.controllers")).ok()?;
                        has.split_whitespace()
                            .any(|c| c == controller)
                            .then_some(Version::V2)?
                    }
                    _ => return None,
                };
                Some(Hierarchy {
                    version,
                    mount,
                    root,
                })
            })
        };
        Cgroups {
            cpu: find("cpu"),
            cpuset: find("cpuset"),
        }
    }

    /// The CPUs that a thread's cpuset allows, where that can be read.
    pub fn cpuset_of(&self, tid: Tid) -> Option<CpuSet> {
        let path = fs::read_to_string(format!("/proc/{tid}/cpuset")).ok()?;
        let hierarchy = self.cpuset.as_ref()?;
        let name = match hierarchy.version {
            Version::V1 => "cpuset.effective_cpus",
            Version::V2 => "cpuset.cpus.effective",
        };
        // In v2 a cgroup whose parent does not enable the controller is in an ancestor's cpuset.
        let dir = hierarchy.dir(path.trim_end())?;
        let file = dir.ancestors().map(|d| d.join(name)).find(|f| f.exists())?;
        fs::read_to_string(file).ok()?.parse().ok()
    }

    /// Whether the thread is in the root's CPU cgroup, where autogroups act, and in no other.
    pub fn in_root_cpu_cgroup(&self, tid: Tid) -> Option<bool> {
        let hierarchy = self.cpu.as_ref()?;
        let text = fs::read_to_string(format!("/proc/{tid}/cgroup")).ok()?;
        let path = text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (id, controllers) = (fields.next()?, fields.next()?);
            let ours = match hierarchy.version {
                Version::V1 => controllers.split(',').any(|c| c == "cpu"),
                Version::V2 => id == "0",
            };
            ours.then(|| fields.next()).flatten()
        })?;
        if path == "/" || hierarchy.version == Version::V1 {
            return Some(path == "/");
        }
        // v2: only a cgroup with a CPU controller of its own, here or above, counts as another than the
        // root's.
        let dir = hierarchy.dir(path)?;
        let own = dir.ancestors().take_while(|d| *d != hierarchy.mount);
        Some(!own.into_iter().any(|d| d.join("cpu.weight").exists()))
    }
}

impl Hierarchy {
    /// The directory of a cgroup, if it lies below what is mounted.
    fn dir(&self, path: &str) -> Option<PathBuf> {
        let below = path.strip_prefix(self.root.trim_end_matches('/'))?;
        let inside = below.is_empty() || below.starts_with('/');
        let clean = !below.split('/').any(|part| part == "..");
        (inside && clean).then(|| self.mount.join(below.trim_start_matches('/')))
    }

    /// A tenant's weight in the unit of this hierarchy's weight file.
    pub fn units(&self, weight: TenantWeight) -> u64 {
        let weight = u64::from(weight.0);
        match self.version {
            Version::V1 => (weight * 1024 / 100).clamp(2, 262_144),
            Version::V2 => weight.clamp(1, 10_000),
        }
    }

    /// The path of the cgroup's weight file.
    pub fn weight_file(&self, path: &CgroupPath) -> Option<PathBuf> {
        let name = match self.version {
            Version::V1 => "cpu.shares",
            Version::V2 => "cpu.weight",
        };
        Some(self.dir(&path.0)?.join(name))
    }
}

/// The cgroup's inode and weight: a cgroup that was created again under the same path has another inode.
pub(super) fn read_weight(file: &Path) -> io::Result<(u64, u64)> {
    let inode = fs::metadata(file.parent().unwrap_or(file))?.ino();
    let text = fs::read_to_string(file)?;
    let weight = text.trim().parse().map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("`{}` is no weight", text.trim()),
        )
    })?;
    Ok((inode, weight))
}

/// Whether the cgroup is idle (`cpu.idle`, Linux 5.15): it has no weight then, and the kernel refuses one.
pub(super) fn is_idle(weight_file: &Path) -> bool {
    let idle = fs::read_to_string(weight_file.with_file_name("cpu.idle"));
    idle.is_ok_and(|it| it.trim() == "1")
}

/// Writes the cgroup's weight to its file.
pub(super) fn write_weight(file: &Path, weight: u64) -> io::Result<()> {
    fs::OpenOptions::new()
        .write(true)
        .open(file)?
        .write_all(format!("{weight}\n").as_bytes())
}

/// Undoes mountinfo's octal escapes (`\040` for a blank).
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest
            .get(at + 1..at + 4)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => out.push(char::from(byte)),
            None => out.push('\\'),
        }
        rest = &rest[at + if code.is_some() { 4 } else { 1 }..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      34 31 0:31 / /sys/fs/cgroup/cpuset rw shared:9 - cgroup cgroup rw,cpuset\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn on_a_hybrid_host_the_cpu_controller_is_v1s() {
        let cgroups = Cgroups::from_mountinfo(V1);
        let cpu = cgroups.cpu.unwrap();
        assert_eq!(
            (cpu.version, cpu.mount.to_str()),
            (Version::V1, Some("/sys/fs/cgroup/cpu,cpuacct"))
        );
        assert_eq!(cpu.units(TenantWeight(100)), 1024);
        assert_eq!(cpu.units(TenantWeight(1)), 10);
        assert_eq!(cpu.units(TenantWeight(10_000)), 102_400);
        let file = cpu.weight_file(&CgroupPath("/a/b c".into())).unwrap();
        assert_eq!(
            file.to_str(),
            Some("/sys/fs/cgroup/cpu,cpuacct/a/b c/cpu.shares")
        );
    }

    #[test]
    fn v2_has_the_controller_where_it_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let line = format!(
            "41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n",
            dir.path().display()
        );
        assert_eq!(
            Cgroups::from_mountinfo(&line).cpu,
            None,
            "no controllers file"
        );
        fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io\n").unwrap();
        let cpu = Cgroups::from_mountinfo(&line).cpu.unwrap();
        assert_eq!(
            (cpu.version, cpu.units(TenantWeight(100))),
            (Version::V2, 100)
        );
        fs::create_dir(dir.path().join("web")).unwrap();
        let file = cpu.weight_file(&CgroupPath("/web".into())).unwrap();
        assert_eq!(
            read_weight(&file).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        fs::write(&file, "150\n").unwrap();
        let (inode, weight) = read_weight(&file).unwrap();
        assert_eq!(
            (inode, weight),
            (fs::metadata(dir.path().join("web")).unwrap().ino(), 150)
        );
    }

    #[test]
    fn paths_outside_the_mount_are_refused() {
        let line = "1 0 0:1 /docker/x /mnt/a\\040b rw - cgroup cgroup rw,cpu\n";
        let cpu = Cgroups::from_mountinfo(line).cpu.unwrap();
        let file = |path: &str| cpu.weight_file(&CgroupPath(path.into()));
        assert_eq!(
            file("/docker/x/t").unwrap().to_str(),
            Some("/mnt/a b/t/cpu.shares")
        );
        assert_eq!(file("/docker/xy"), None);
        assert_eq!(file("/docker/x/../y"), None);
        assert_eq!(
            Cgroups::from_mountinfo("garbage\n - \n1 2 3 - cgroup x\n"),
            Cgroups::default()
        );
    }
}
