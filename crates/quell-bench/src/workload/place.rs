//! Where a tenant's processes and threads run: their cgroup, and their CPUs.

use anyhow::Context;
use quell_model::CpuSet;
use quell_model::config::ConfigError;
use quell_scenario::Scenario;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Where a tenant's first process is put before it runs its program; the processes that it starts inherit
/// that.
#[derive(Default)]
pub struct Place {
    /// The `cgroup.procs` file of its cgroup; `None`: the process stays in our cgroup.
    pub cgroup: Option<File>,
    /// The CPUs it may run on; `None`: our CPUs.
    pub cpus: Option<CpuSet>,
}

impl Place {
    /// Has a child move itself to this place when it starts.
    ///
    /// # Errors
    /// Where the file of the cgroup cannot be duplicated.
    pub fn put(&self, command: &mut Command) -> anyhow::Result<()> {
        if let Some(cgroup) = &self.cgroup {
            let mut cgroup = cgroup.try_clone().context("cannot duplicate a file")?;
            // SAFETY: one write between fork and exec, which is async-signal-safe, of a constant to an open
            // file; no allocation.
            unsafe { command.pre_exec(move || cgroup.write_all(b"0")) };
        }
        if let Some(cpus) = self.cpus.clone() {
            // SAFETY: one system call between fork and exec; the set was copied before and is not changed: no
            // allocation.
            unsafe { command.pre_exec(move || set_affinity(&cpus)) };
        }
        Ok(())
    }
}

/// The CPUs that the calling thread may run on.
///
/// # Errors
/// Where the kernel refuses, as for a machine with more than 8192 CPUs.
pub fn affinity() -> io::Result<CpuSet> {
    let mut words = [0u64; 128]; // 8192 CPUs, as many as a kernel can have.
    // SAFETY: the kernel writes at most this many bytes to the array, which is exclusively borrowed; 0 is the
    // calling thread.
    let length = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            size_of_val(&words),
            words.as_mut_ptr(),
        )
    };
    match length {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(CpuSet::from_words(&words)),
    }
}

/// Limits the calling thread to these CPUs. CPUs that the machine does not have are left out.
///
/// # Errors
/// Where no CPU is left, or the kernel refuses.
pub fn set_affinity(cpus: &CpuSet) -> io::Result<()> {
    let words = cpus.words();
    // SAFETY: the kernel reads this many bytes of the slice, which is borrowed meanwhile; 0 is the calling
    // thread.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            0,
            size_of_val(words),
            words.as_ptr(),
        )
    };
    match rc {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Checks that every CPU that the scenario names can be used here.
///
/// # Errors
/// For the first CPU that cannot be used, or where the usable CPUs cannot be found out.
pub fn check_cpus(scenario: &Scenario) -> anyhow::Result<()> {
    let mut named: Vec<(String, &CpuSet)> = Vec::new();
    for (index, tenant) in scenario.tenants.iter().enumerate() {
        if let Some(cpus) = &tenant.cpus {
            named.push((format!("tenant[{index}].cpus"), cpus));
        }
        for (number, thread) in tenant.threads.iter().enumerate() {
            if let Some(cpus) = &thread.cpus {
                named.push((format!("tenant[{index}].thread[{number}].cpus"), cpus));
            }
        }
    }
    if named.is_empty() {
        return Ok(());
    }
    // The kernel limits a thread that exists only for this to the CPUs that are online and in our cpuset.
    let all = std::thread::scope(|scope| {
        let ask = || set_affinity(&CpuSet::first(8192)).and_then(|()| affinity());
        scope.spawn(ask).join()
    });
    let all = all.map_err(|_| anyhow::anyhow!("asking for CPUs panicked"))?;
    let all = all.context("cannot find out which CPUs may be used")?;
    for (key, cpus) in named {
        if let Some(cpu) = cpus.iter().find(|&cpu| !all.contains(cpu)) {
            let message = format!("CPU {cpu} cannot be used on this machine; CPUs {all} can");
            return Err(ConfigError::at(&scenario.file, key, message).into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_limited_and_let_go() {
        std::thread::spawn(|| {
            let before = affinity().unwrap();
            assert!(!before.is_empty());
            let one: CpuSet = before.iter().take(1).collect();
            set_affinity(&one).unwrap();
            assert_eq!(affinity().unwrap(), one);
            set_affinity(&before).unwrap();
            assert_eq!(affinity().unwrap(), before);
            assert!(set_affinity(&"8191".parse().unwrap()).is_err());
        })
        .join()
        .unwrap();
    }
}
