//! The CPUs that are online and what they share, from `/sys/devices/system/cpu`.
//!
//! The kernel numbers cores per package and says which CPUs share a cache; [`Topology`] wants
//! numbers that are unique over the host. They are counted in order of each core's and cache's
//! first CPU, so that the same machine always gives the same numbers. A CPU whose files are missing (some
//! hypervisors and old kernels leave out `topology` or `cache`) counts as a core of its own, in socket 0,
//! with the last-level cache of the socket.

use super::ObserveError;
use quell_model::{Cpu, CpuId, CpuSet, Topology};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

pub(crate) const ROOT: &str = "/sys/devices/system/cpu";

/// The host's online CPUs.
///
/// # Errors
/// The call fails when the list of online CPUs cannot be read.
pub fn read() -> Result<Topology, ObserveError> {
    read_at(Path::new(ROOT))
}

pub(crate) fn read_at(root: &Path) -> Result<Topology, ObserveError> {
    let path = root.join("online");
    let text = fs::read_to_string(&path).map_err(|e| ObserveError::read(&path, e))?;
    let online: CpuSet = text.parse().map_err(|e| ObserveError::Malformed {
        path: path.clone(),
        message: format!("{e}"),
    })?;
    if online.is_empty() {
        return Err(ObserveError::Malformed {
            path,
            message: "no CPU is online".to_string(),
        });
    }
    let mut cores = Numbers::default();
    let mut caches = Numbers::default();
    let cpus = online
        .iter()
        .map(|id| {
            let dir = root.join(format!("cpu{id}"));
            let number = |name: &str| {
                // Virtual machines may say -1 for "unknown".
                let text = fs::read_to_string(dir.join("topology").join(name)).ok()?;
                text.trim().parse::<u32>().ok()
            };
            let socket = number("physical_package_id").unwrap_or(0);
            let core = match number("core_id") {
                // Core ids repeat on each die of a package where the kernel knows dies.
                Some(core) => Core::Known(socket, number("die_id").unwrap_or(0), core),
                None => Core::Unknown(id),
            };
            let cache = match last_level_cache(&dir.join("cache")) {
                Some(shared) => Cache::Shared(shared),
                None => Cache::Socket(socket),
            };
            Cpu {
                id,
                core: cores.of(core),
                llc: caches.of(cache),
                socket,
            }
        })
        .collect();
    Ok(Topology { cpus })
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Core {
    Known(u32, u32, u32),
    Unknown(CpuId),
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Cache {
    Shared(CpuSet),
    Socket(u32),
}

/// Numbers distinct keys in the order in which they come.
struct Numbers<K>(BTreeMap<K, u32>);

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Numbers(BTreeMap::new())
    }
}

impl<K: Ord> Numbers<K> {
    fn of(&mut self, key: K) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(key).or_insert(next)
    }
}

/// The CPUs that share the highest cache level described in `dir`.
fn last_level_cache(dir: &Path) -> Option<CpuSet> {
    let mut best: Option<(u32, CpuSet)> = None;
    for entry in fs::read_dir(dir).ok()?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with("index") {
            continue;
        }
        let file = |name: &str| fs::read_to_string(entry.path().join(name)).ok();
        let level = file("level").and_then(|t| t.trim().parse::<u32>().ok());
        let shared = file("shared_cpu_list").and_then(|t| t.parse::<CpuSet>().ok());
        let (Some(level), Some(shared)) = (level, shared) else {
            continue;
        };
        if !shared.is_empty() && best.as_ref().is_none_or(|(l, _)| level > *l) {
            best = Some((level, shared));
        }
    }
    best.map(|(_, shared)| shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a tree as sysfs has it; each CPU is `(package, core_id, last-level cache's CPUs)`.
    fn tree(online: &str, cpus: &[(u32, u32, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("online"), format!("{online}\n")).unwrap();
        for (n, (package, core, llc)) in cpus.iter().enumerate() {
            let cpu = dir.path().join(format!("cpu{n}"));
            fs::create_dir_all(cpu.join("topology")).unwrap();
            fs::write(
                cpu.join("topology/physical_package_id"),
                format!("{package}\n"),
            )
            .unwrap();
            fs::write(cpu.join("topology/core_id"), format!("{core}\n")).unwrap();
            for (index, level, shared) in [(0, 1, n.to_string()), (3, 3, llc.to_string())] {
                let cache = cpu.join(format!("cache/index{index}"));
                fs::create_dir_all(&cache).unwrap();
                fs::write(cache.join("level"), format!("{level}\n")).unwrap();
                fs::write(cache.join("shared_cpu_list"), format!("{shared}\n")).unwrap();
            }
        }
        dir
    }

    fn numbers(topology: &Topology) -> Vec<(u32, u32, u32, u32)> {
        topology
            .cpus
            .iter()
            .map(|c| (c.id.0, c.core, c.llc, c.socket))
            .collect()
    }

    #[test]
    fn hyperthreads_of_two_sockets_whose_core_ids_repeat() {
        // Two sockets, two cores each with ids 0 and 1, two threads per core: 0-3 are the first
        // threads, 4-7 their siblings, as Linux numbers x86 machines.
        let llc = ["0-1,4-5", "2-3,6-7"];
        let dir = tree(
            "0-7",
            &[
                (0, 0, llc[0]),
                (0, 1, llc[0]),
                (1, 0, llc[1]),
                (1, 1, llc[1]),
                (0, 0, llc[0]),
                (0, 1, llc[0]),
                (1, 0, llc[1]),
                (1, 1, llc[1]),
            ],
        );
        let expected = vec![
            (0, 0, 0, 0),
            (1, 1, 0, 0),
            (2, 2, 1, 1),
            (3, 3, 1, 1),
            (4, 0, 0, 0),
            (5, 1, 0, 0),
            (6, 2, 1, 1),
            (7, 3, 1, 1),
        ];
        assert_eq!(numbers(&read_at(dir.path()).unwrap()), expected);
    }

    #[test]
    fn offline_cpus_are_left_out_and_two_caches_of_one_socket_told_apart() {
        let dir = tree(
            "0,2-3",
            &[(0, 0, "0-1"), (0, 1, "0-1"), (0, 2, "2-3"), (0, 3, "2-3")],
        );
        let topology = read_at(dir.path()).unwrap();
        assert_eq!(
            numbers(&topology),
            vec![(0, 0, 0, 0), (2, 1, 1, 0), (3, 2, 1, 0)]
        );
    }

    #[test]
    fn missing_and_unknown_files_make_every_cpu_a_core() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("online"), "0-2\n").unwrap();
        fs::create_dir_all(dir.path().join("cpu1/topology")).unwrap();
        fs::write(dir.path().join("cpu1/topology/physical_package_id"), "-1\n").unwrap();
        let topology = read_at(dir.path()).unwrap();
        assert_eq!(
            numbers(&topology),
            vec![(0, 0, 0, 0), (1, 1, 0, 0), (2, 2, 0, 0)]
        );
    }

    #[test]
    fn no_list_of_online_cpus_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = read_at(dir.path()).unwrap_err().to_string();
        assert!(error.contains("online"), "{error}");
        fs::write(dir.path().join("online"), "banana\n").unwrap();
        let error = read_at(dir.path()).unwrap_err().to_string();
        assert!(error.contains("banana"), "{error}");
    }

    #[test]
    fn this_machine_has_the_cpus_the_kernel_says() {
        let online = fs::read_to_string(format!("{ROOT}/online")).unwrap();
        assert_eq!(read().unwrap().online(), online.parse().unwrap());
    }
}
