//! Where a tenant's processes and threads run: their cgroup, and their CPUs.

use anyhow::Context;
use quell_model::CpuSet;
use quell_model::config::ConfigError;
use quell_scenario::Scenario;
use quell_sys::process;
use quell_sys::sched::{CALLER, affinity, set_affinity_to_all};
use std::fs::File;
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
            let cgroup = cgroup.try_clone().context("cannot duplicate a file")?;
            process::start_in_cgroup(command, cgroup);
        }
        if let Some(cpus) = self.cpus.clone() {
            process::start_on_cpus(command, cpus);
        }
        Ok(())
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
        let ask = || set_affinity_to_all(CALLER).and_then(|()| affinity(CALLER));
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
