//! Control groups: the cgroups that a process is in, and the cgroup that belongs to one tenant alone.
//!
//! A host has cgroup v2 (one hierarchy), v1 (one per controller) or both side by side ("hybrid",
//! where the `cpu` controller sits in v1 and v2 only groups). Selectors look at the paths in the v2
//! hierarchy, in v1's `cpu` hierarchy and in systemd's own (`name=systemd`). A tenant's weight can be
//! set in the hierarchy of the `cpu` controller ([`CpuHierarchy`]), and only in a cgroup that holds all
//! of the tenant's threads and no other threads: see [`CpuHierarchy::exclusive`].

use super::proc::{self, Reader};
use std::fs;
use std::path::{Path, PathBuf};

/// The cgroup paths of a process, from `/proc/PID/cgroup`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paths<'a> {
    /// The path in the v2 hierarchy.
    pub(crate) unified: Option<&'a str>,
    /// The path in v1's `cpu` hierarchy.
    pub(crate) cpu: Option<&'a str>,
    /// The path in systemd's own v1 hierarchy.
    pub(crate) systemd: Option<&'a str>,
}

impl<'a> Paths<'a> {
    /// Parses lines `ID:CONTROLLERS:PATH`; other lines are skipped.
    pub(crate) fn parse(text: &'a [u8]) -> Paths<'a> {
        let mut paths = Paths::default();
        for line in text.split(|&b| b == b'\n') {
            // A cgroup whose name is no text counts as a part of the one above it.
            let line = match std::str::from_utf8(line) {
                Ok(line) => line,
                Err(error) => {
                    let text =
                        std::str::from_utf8(&line[..error.valid_up_to()]).unwrap_or_default();
                    text.rsplit_once('/').map_or("", |(above, _)| above)
                }
            };
            let mut parts = line.splitn(3, ':');
            let (Some(id), Some(controllers), Some(path)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let path = path.strip_suffix(" (deleted)").unwrap_or(path);
            if id == "0" && controllers.is_empty() {
                paths.unified = Some(path);
            } else if controllers.split(',').any(|c| c == "cpu") {
                paths.cpu = Some(path);
            } else if controllers == "name=systemd" {
                paths.systemd = Some(path);
            }
        }
        paths
    }

    /// All paths that the process has.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'a str> {
        [self.unified, self.cpu, self.systemd].into_iter().flatten()
    }
}

/// The version of the cgroup interface of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// cgroup v1: `cpu.shares` in a hierarchy of the `cpu` controller.
    V1,
    /// cgroup v2: `cpu.weight` in the one hierarchy of all controllers.
    V2,
}

/// The cgroup hierarchy of the `cpu` controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuHierarchy {
    /// The directory where the hierarchy is mounted.
    pub mount: PathBuf,
    /// The version of its interface.
    pub version: Version,
}

impl CpuHierarchy {
    /// Finds the host's hierarchy; `None` where no hierarchy has the `cpu` controller.
    pub fn find() -> Option<CpuHierarchy> {
        CpuHierarchy::from_mountinfo(&fs::read_to_string("/proc/self/mountinfo").ok()?)
    }

    fn from_mountinfo(text: &str) -> Option<CpuHierarchy> {
        let mut unified = None;
        for line in text.lines() {
            // "36 35 98:0 ROOT MOUNT OPTIONS optional... - TYPE SOURCE SUPEROPTIONS" (proc(5))
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let mut left = left.split(' ').skip(3);
            let (Some("/"), Some(mount)) = (left.next(), left.next()) else {
                continue;
            };
            let mount = PathBuf::from(unescape(mount));
            let mut right = right.split(' ');
            match (right.next(), right.nth(1)) {
                (Some("cgroup"), Some(options)) if options.split(',').any(|o| o == "cpu") => {
                    return Some(CpuHierarchy {
                        mount,
                        version: Version::V1,
                    });
                }
                (Some("cgroup2"), _) => unified = unified.or(Some(mount)),
                _ => {}
            }
        }
        let mount = unified?;
        let controllers = fs::read_to_string(mount.join("cgroup.controllers")).ok()?;
        let has_cpu = controllers.split_whitespace().any(|c| c == "cpu");
        has_cpu.then_some(CpuHierarchy {
            mount,
            version: Version::V2,
        })
    }

    /// The file that holds a cgroup's weight, relative to its directory.
    pub fn weight_file(&self) -> &'static str {
        match self.version {
            Version::V1 => "cpu.shares",
            Version::V2 => "cpu.weight",
        }
    }

    /// The directory of a cgroup in this hierarchy.
    pub fn directory(&self, cgroup: &str) -> PathBuf {
        self.mount.join(cgroup.trim_start_matches('/'))
    }

    /// The number of CPUs that the bandwidth limit of a cgroup allows, or the tightest limit of the cgroups
    /// above it; `None`: there is no limit.
    pub(crate) fn limit(&self, cgroup: &str) -> Option<f64> {
        let directory = self.directory(cgroup);
        let above = directory
            .ancestors()
            .take_while(|it| it.starts_with(&self.mount));
        above.filter_map(|it| self.own_limit(it)).reduce(f64::min)
    }

    fn own_limit(&self, directory: &Path) -> Option<f64> {
        let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
        let (quota, period) = match self.version {
            Version::V1 => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
            Version::V2 => {
                let text = read("cpu.max")?;
                let (quota, period) = text.split_once(' ')?;
                (quota.to_string(), period.to_string())
            }
        };
        // `max` (v2) and -1 (v1) mean that there is no limit.
        let quota: u64 = quota.trim().parse().ok()?;
        let period: u64 = period.trim().parse().ok()?;
        (period > 0).then(|| quota as f64 / period as f64)
    }

    /// The path of a process in this hierarchy.
    pub(crate) fn path_of<'a>(&self, paths: &Paths<'a>) -> Option<&'a str> {
        match self.version {
            Version::V1 => paths.cpu,
            Version::V2 => paths.unified,
        }
    }

    /// CPU time that a cgroup and its descendants used, in ns; `None`: the kernel does not tell.
    pub(crate) fn used_ns(&self, cgroup: &str, reader: &mut Reader) -> Option<u64> {
        let directory = self.directory(cgroup);
        let file = match self.version {
            Version::V1 => "cpuacct.usage",
            Version::V2 => "cpu.stat",
        };
        let text = reader.read(format_args!("{}/{file}", directory.display()));
        used_ns(self.version, text.ok()??)
    }

    /// Whether a cgroup has a weight, and neither it nor a descendant holds a stranger.
    pub(crate) fn is_exclusive(&self, cgroup: &str, stranger: &dyn Fn(u32) -> bool) -> bool {
        let directory = self.directory(cgroup);
        directory.join(self.weight_file()).exists() && !holds(&directory, stranger)
    }

    /// The cgroup that holds the processes of a tenant and no others: the highest cgroup above all of
    /// `paths` that has a weight and no stranger in it or below it. The highest, because a weight counts
    /// among siblings, and the cgroups below it have only siblings of the same tenant.
    ///
    /// The root never belongs to a tenant. `None` is also returned while processes move.
    pub(crate) fn exclusive<'a>(
        &self,
        paths: impl Iterator<Item = &'a str>,
        stranger: &dyn Fn(u32) -> bool,
    ) -> Option<String> {
        let mut common = common_ancestor(paths)?;
        let mut highest = None;
        while !common.is_empty() {
            let directory = self.directory(&common);
            // A threaded cgroup of v2 cannot list its processes; its domain cgroup, further up, can.
            let threaded = fs::read_to_string(directory.join("cgroup.type"))
                .is_ok_and(|kind| kind.trim() == "threaded");
            if !threaded {
                if holds(&directory, stranger) {
                    break; // and neither does any above it
                }
                if directory.join(self.weight_file()).exists() {
                    highest = Some(common.clone());
                }
            }
            common.truncate(common.rfind('/').unwrap_or(0));
        }
        highest
    }
}

/// The CPU time in the text of a cgroup's file, in ns.
fn used_ns(version: Version, text: &[u8]) -> Option<u64> {
    match version {
        Version::V1 => proc::number(text.trim_ascii()),
        Version::V2 => {
            let mut lines = text.split(|&b| b == b'\n');
            let us = lines.find_map(|line| line.strip_prefix(b"usage_usec "))?;
            proc::number::<u64>(us)?.checked_mul(1000)
        }
    }
}

/// The longest path that is, component by component, a prefix of all paths; empty for the root.
/// `None` if there are no paths or one lies outside the visible hierarchy (`/../..`).
fn common_ancestor<'a>(mut paths: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut common: Vec<&str> = parts(paths.next()?).collect();
    if common.contains(&"..") {
        return None;
    }
    for path in paths {
        let same = common
            .iter()
            .zip(parts(path))
            .take_while(|(a, b)| *a == b)
            .count();
        common.truncate(same);
    }
    Some(common.iter().flat_map(|part| ["/", part]).collect())
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// Whether a process in this cgroup or below it is a stranger, or the processes cannot be listed.
fn holds(directory: &Path, stranger: &dyn Fn(u32) -> bool) -> bool {
    let listed = match fs::read(directory.join("cgroup.procs")) {
        Ok(listed) => listed,
        // A threaded cgroup below a domain cgroup; the list of the domain has its processes.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Vec::new(),
        Err(error) if gone(&error) => return false,
        Err(_) => return true,
    };
    let here = listed
        .split(|&b| b == b'\n')
        .filter_map(proc::number::<u32>)
        .any(|pid| pid == 0 || stranger(pid));
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => return here || !gone(&error),
    };
    here || entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .any(|entry| holds(&entry.path(), stranger))
}

/// Whether an error says that a cgroup was removed meanwhile.
fn gone(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

/// Undoes mountinfo's octal escapes for blank, tab, newline and backslash.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_of_v1_hybrid_and_v2_hosts() {
        let v1 = b"9:name=systemd:/a.service\n4:cpu,cpuacct:/a\n3:cpuset:/x\n0::/u:v\n";
        let expected = Paths {
            unified: Some("/u:v"),
            cpu: Some("/a"),
            systemd: Some("/a.service"),
        };
        assert_eq!(Paths::parse(v1), expected);
        let v2 = b"0::/system.slice/a.service (deleted)\n";
        assert_eq!(Paths::parse(v2).unified, Some("/system.slice/a.service"));
        assert_eq!(Paths::parse(b"7:cpuset:/x\nnonsense\n\n"), Paths::default());
        let text = b"0::/docker/x/a\xff/b\n";
        assert_eq!(Paths::parse(text).unified, Some("/docker/x"));
    }

    #[test]
    fn what_a_cgroup_used() {
        assert_eq!(used_ns(Version::V1, b"123456789\n"), Some(123_456_789));
        let stat = b"usage_usec 51\nuser_usec 50\nsystem_usec 1\n";
        assert_eq!(used_ns(Version::V2, stat), Some(51_000));
        assert_eq!(used_ns(Version::V2, b"nr_periods 3\n"), None);
        assert_eq!(used_ns(Version::V1, b""), None);
    }

    #[test]
    fn the_hierarchy_with_the_controller() {
        let v1 = "1 0 0:1 / /sys/fs/cgroup/cpu\\040x rw - cgroup cgroup rw,cpu,cpuacct\n\
                  2 0 0:2 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup rw\n";
        let found = CpuHierarchy::from_mountinfo(v1).unwrap();
        assert_eq!(found.mount, Path::new("/sys/fs/cgroup/cpu x"));
        assert_eq!(
            (found.version, found.weight_file()),
            (Version::V1, "cpu.shares")
        );

        let dir = tempfile::tempdir().unwrap();
        let v2 = format!(
            "1 0 0:1 / {} rw - cgroup2 cgroup2 rw\n",
            dir.path().display()
        );
        assert_eq!(
            CpuHierarchy::from_mountinfo(&v2),
            None,
            "v2 without the controller"
        );
        fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io\n").unwrap();
        assert_eq!(
            CpuHierarchy::from_mountinfo(&v2).unwrap().version,
            Version::V2
        );
        // Part of a hierarchy (as bind-mounted into containers) would give wrong paths.
        assert_eq!(
            CpuHierarchy::from_mountinfo(&v2.replace("0:1 / ", "0:1 /sub ")),
            None
        );
    }

    /// Creates a v2 hierarchy; each cgroup is given as its path and its processes.
    fn tree(cgroups: &[(&str, &str)]) -> (tempfile::TempDir, CpuHierarchy) {
        let dir = tempfile::tempdir().unwrap();
        for (path, processes) in cgroups {
            let cgroup = dir.path().join(path);
            fs::create_dir_all(&cgroup).unwrap();
            fs::write(cgroup.join("cgroup.procs"), processes).unwrap();
            fs::write(cgroup.join("cpu.weight"), "100\n").unwrap();
        }
        let hierarchy = CpuHierarchy {
            mount: dir.path().into(),
            version: Version::V2,
        };
        (dir, hierarchy)
    }

    #[test]
    fn a_cgroup_is_a_tenants_only_if_all_in_it_and_below_is() {
        let (dir, hierarchy) = tree(&[
            ("", "1\n"),
            ("s", ""),
            ("s/a", "10\n"),
            ("s/a/x", "11\n12\n"),
            ("s/b", "20\n"),
        ]);
        let own = |paths: &[&str], pids: &[u32]| {
            hierarchy.exclusive(paths.iter().copied(), &|pid| !pids.contains(&pid))
        };
        assert_eq!(
            own(&["/s/a", "/s/a/x"], &[10, 11, 12]).as_deref(),
            Some("/s/a")
        );
        assert_eq!(own(&["/s/a/x"], &[11, 12]).as_deref(), Some("/s/a/x"));
        assert_eq!(own(&["/s/a"], &[10]), None, "11 and 12 are below it");
        assert_eq!(
            own(&["/s/a/x", "/s/b"], &[11, 12, 20]),
            None,
            "10 is in /s/a"
        );
        assert_eq!(
            own(&["/s/a", "/s/a/x", "/s/b"], &[10, 11, 12, 20]).as_deref(),
            Some("/s")
        );
        assert_eq!(own(&["/"], &[1]), None, "the root is never a tenant's");
        assert_eq!(own(&["/../other"], &[10]), None);
        assert_eq!(own(&[], &[10]), None);
        assert_eq!(own(&["/gone"], &[10]), None);
        fs::remove_file(dir.path().join("s/b/cpu.weight")).unwrap();
        assert_eq!(own(&["/s/b"], &[20]), None, "no controller");
    }

    #[test]
    fn the_highest_cgroup_that_is_a_tenants_alone_has_its_weight() {
        let (dir, hierarchy) = tree(&[
            ("machine", ""),
            ("machine/vm", ""),
            ("machine/vm/libvirt", ""),
            ("machine/vm/libvirt/vcpu0", "10\n"),
            ("machine/other", "20\n"),
        ]);
        let own = || {
            let paths = ["/machine/vm/libvirt/vcpu0"].into_iter();
            hierarchy.exclusive(paths, &|pid| pid != 10)
        };
        assert_eq!(own().as_deref(), Some("/machine/vm"));
        let vm = dir.path().join("machine/vm");
        fs::remove_file(vm.join("cpu.weight")).unwrap();
        assert_eq!(own().as_deref(), Some("/machine/vm/libvirt"));
        fs::remove_file(vm.join("cgroup.procs")).unwrap();
        fs::create_dir(vm.join("cgroup.procs")).unwrap();
        fs::write(vm.join("cpu.weight"), "100\n").unwrap();
        assert_eq!(
            own().as_deref(),
            Some("/machine/vm/libvirt"),
            "a list that cannot be read is not an empty one"
        );
    }

    #[test]
    fn threaded_cgroups_belong_to_their_domain() {
        let (dir, hierarchy) = tree(&[("vm", "10\n"), ("vm/vcpu0", ""), ("vm/emulator", "")]);
        for threaded in ["vcpu0", "emulator"] {
            fs::write(
                dir.path().join("vm").join(threaded).join("cgroup.type"),
                "threaded\n",
            )
            .unwrap();
        }
        let found = hierarchy.exclusive(["/vm/emulator"].into_iter(), &|pid| pid != 10);
        assert_eq!(found.as_deref(), Some("/vm"));
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(bytes: Vec<u8>, text: String, paths: Vec<String>) {
            let _ = Paths::parse(&bytes).all().count();
            let _ = CpuHierarchy::from_mountinfo(&text);
            let _ = common_ancestor(paths.iter().map(String::as_str));
        }
    }
}
