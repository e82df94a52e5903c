//! Checks that a side of Quell's leaves the tenants' threads and cgroups as it found them.
//!
//! Why not ask the actuator: a check must not share its errors. How: this reads the kernel's own account of
//! every thread before and after, and compares. A thread born meanwhile must have the settings that some
//! thread of its process had before (it inherits settings, and must not have inherited Quell's).

use anyhow::Context;
use quell_model::{CpuSet, Pid, Tid};
use quell_sys::sched::SchedAttr;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// A thread's scheduling settings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Settings {
    policy: u32,
    nice: i32,
    /// `sched_runtime`: EEVDF's slice in ns (Linux >= 6.12), 0 on older kernels.
    slice_ns: u64,
    affinity: CpuSet,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            policy,
            nice,
            slice_ns,
            affinity,
        } = self;
        write!(
            f,
            "policy {policy}, nice {nice}, slice {slice_ns} ns, CPUs {affinity}"
        )
    }
}

/// The settings of every thread of some processes, by process and thread id, and the CPU weights of their
/// cgroups, by file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    threads: BTreeMap<i32, BTreeMap<i32, Settings>>,
    weights: BTreeMap<PathBuf, String>,
}

impl Inventory {
    /// Reads all threads of the processes; processes and threads that have ended, or end meanwhile, are left
    /// out.
    ///
    /// # Errors
    /// Where the kernel does not tell a living thread's settings.
    pub fn read(processes: impl IntoIterator<Item = Pid>) -> anyhow::Result<Inventory> {
        let mut inventory = Inventory::default();
        for Pid(pid) in processes {
            let pid = pid as i32;
            let Ok(tasks) = procfs::process::Process::new(pid).and_then(|p| p.tasks()) else {
                continue;
            };
            inventory.weights.extend(cgroup_weights(pid));
            let threads = inventory.threads.entry(pid).or_default();
            for task in tasks.flatten() {
                if let Some(settings) = read_thread(&task)? {
                    threads.insert(task.tid, settings);
                }
            }
        }
        Ok(inventory)
    }

    /// The differences from `before`, a line for each thread or cgroup; empty where there are none.
    pub fn differences(&self, before: &Inventory) -> Vec<String> {
        let mut lines = Vec::new();
        for (file, now) in &self.weights {
            if let Some(was) = before.weights.get(file).filter(|was| *was != now) {
                lines.push(format!("{}: was {was}; is {now}", file.display()));
            }
        }
        for (pid, threads) in &self.threads {
            let Some(earlier) = before.threads.get(pid) else {
                continue;
            };
            let inheritable: BTreeSet<&Settings> = earlier.values().collect();
            for (tid, now) in threads {
                match earlier.get(tid) {
                    Some(was) if was != now => {
                        lines.push(format!("thread {tid} of {pid}: was {was}; is {now}"));
                    }
                    None if !inheritable.contains(now) => {
                        lines.push(format!(
                            "new thread {tid} of {pid}: {now}, unlike its process"
                        ));
                    }
                    _ => {}
                }
            }
        }
        lines
    }

    /// The number of threads that were read.
    pub fn threads(&self) -> usize {
        self.threads.values().map(BTreeMap::len).sum()
    }
}

/// The files of CPU weight of a process's cgroups and their contents, where hierarchies are mounted as usual.
fn cgroup_weights(pid: i32) -> Vec<(PathBuf, String)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let files = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (mounts, file): (&[&str], _) = match controllers {
            "" => (&["", "unified"], "cpu.weight"),
            some if some.split(',').any(|c| c == "cpu") => (&["cpu", "cpu,cpuacct"], "cpu.shares"),
            _ => return None,
        };
        mounts.iter().find_map(|mount| {
            let folder = Path::new("/sys/fs/cgroup").join(mount);
            let file = folder.join(path.trim_start_matches('/')).join(file);
            let weight = std::fs::read_to_string(&file).ok()?;
            Some((file, weight.trim().to_string()))
        })
    });
    files.collect()
}

/// A thread's settings; `None` when the thread is gone.
fn read_thread(task: &procfs::process::Task) -> anyhow::Result<Option<Settings>> {
    let Ok(status) = task.status() else {
        return Ok(None);
    };
    let ranges = status.cpus_allowed_list.context("no Cpus_allowed_list")?;
    let affinity = ranges
        .into_iter()
        .flat_map(|(low, high)| low..=high)
        .map(quell_model::CpuId)
        .collect();
    let attributes = match SchedAttr::of(Tid(task.tid as u32)) {
        Ok(attributes) => attributes,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("sched_getattr of thread {}", task.tid));
        }
    };
    Ok(Some(Settings {
        policy: attributes.policy,
        nice: attributes.nice,
        slice_ns: attributes.runtime,
        affinity,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_nice_value_is_found() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw()).unwrap();
            let _ = wait.recv();
        });
        let tid = told.recv().unwrap();
        let read = || Inventory::read([Pid(std::process::id())]).unwrap();
        let before = read();
        assert!(before.threads() >= 2);
        quell_sys::sched::set_nice(Tid(tid as u32), 7).unwrap();
        let lines = read().differences(&before);
        // Threads of other tests run in this process, too; only this test's thread has changed settings.
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].contains(&tid.to_string()) && lines[0].contains("nice 7"),
            "{lines:?}"
        );
        drop(go);
        thread.join().unwrap();
    }

    #[test]
    fn a_changed_cgroup_weight_is_found() {
        let of = |weight: &str| Inventory {
            weights: BTreeMap::from([("cpu.weight".into(), weight.to_string())]),
            ..Inventory::default()
        };
        assert_eq!(of("100").differences(&of("100")), Vec::<String>::new());
        assert_eq!(
            of("300").differences(&of("100")),
            ["cpu.weight: was 100; is 300"]
        );
    }

    #[test]
    fn a_new_thread_must_look_like_its_process() {
        let plain = Settings {
            policy: 0,
            nice: 0,
            slice_ns: 3,
            affinity: CpuSet::first(2),
        };
        let changed = Settings {
            nice: 5,
            ..plain.clone()
        };
        let of = |threads: &[(i32, &Settings)]| {
            let threads = threads.iter().map(|&(tid, s)| (tid, s.clone())).collect();
            Inventory {
                threads: BTreeMap::from([(1, threads)]),
                weights: BTreeMap::new(),
            }
        };
        let before = of(&[(1, &plain), (2, &plain)]);
        assert_eq!(
            of(&[(1, &plain), (3, &plain)]).differences(&before),
            Vec::<String>::new()
        );
        assert_eq!(
            of(&[(1, &plain), (3, &changed)]).differences(&before).len(),
            1
        );
        assert_eq!(of(&[(1, &changed)]).differences(&before).len(), 1);
    }
}
