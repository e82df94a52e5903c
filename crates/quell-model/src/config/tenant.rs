//! A tenant: the processes in it, the service it is owed, and (in scenarios) what its threads do.

use super::ConfigError;
use super::app::App;
use super::group::CpuMax;
use super::program::{Load, ThreadProgram};
use super::server::Criticality;
use crate::{CpuSet, TenantName, TenantWeight};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::path::Path;

/// One `[[tenant]]` table.
///
/// Selectors (`pid`, `cgroup`, `unit`, `exe`, `cmdline`, `libvirt`) say which processes of a live
/// host belong to the tenant; a process belongs to the first tenant of which any selector matches.
/// `app`, `thread` and `load` say what the tenant does in a scenario. No file may use both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSpec {
    /// Unique name: letters, digits, `.`, `_`, `-`; at most 64.
    pub name: String,
    /// The number of tenants alike (`img` becomes `img-0`, `img-1`, ... when more than 1). Scenarios only.
    #[serde(default = "one")]
    pub count: u32,
    /// The kind of tenant.
    #[serde(default)]
    pub kind: TenantKind,
    /// Whether its latency or only its throughput matters.
    #[serde(default)]
    pub class: TenantClass,
    /// Weight among tenants, 1 to 10 000. Not given: the setting of the owner stays (a cgroup's
    /// `cpu.weight`, the threads' nice values).
    pub weight: Option<TenantWeight>,
    /// Selector: processes of these ids, and their descendants.
    #[serde(default, deserialize_with = "one_or_many")]
    pub pid: Vec<u32>,
    /// Selector: processes in cgroups matching this glob (path below the hierarchy's root, no
    /// leading `/`; `*` does not cross `/`, `**` does).
    pub cgroup: Option<String>,
    /// Selector: processes of this systemd unit.
    pub unit: Option<String>,
    /// Selector: processes whose executable's path, or its last component, matches this glob.
    pub exe: Option<String>,
    /// Selector: processes whose command line (arguments joined by blanks) matches this regular
    /// expression.
    pub cmdline: Option<String>,
    /// Selector: QEMU processes of libvirt domains whose name matches this glob.
    pub libvirt: Option<String>,
    /// The number of vCPUs (kind `vm`); for the admission test the number of CPUs at once of a tenant of
    /// any kind, 1 unless given.
    pub vcpus: Option<u32>,
    /// The tenant's criticality: if given, the tenant has a budget in every period, not a weight. For
    /// the agent and `quell admit`.
    pub criticality: Option<Criticality>,
    /// The period of the server of each vCPU, in ms, 1 to 4000.
    pub period_ms: Option<f64>,
    /// The CPU time that each vCPU usually needs in a period, in ms, 0.1 to the period.
    pub budget_ms: Option<f64>,
    /// The CPU time that each vCPU needs in the worst case, in ms, `budget_ms` to the period (high
    /// criticality).
    pub pessimistic_budget_ms: Option<f64>,
    /// The group that the tenant is in (scenarios): the parent of a container's or VM's own cgroup, or
    /// the cgroup of the process itself.
    pub within: Option<String>,
    /// Whether the tenant has a cgroup of its own (scenarios; kind `vm`); not given: yes.
    pub own_cgroup: Option<bool>,
    /// The bandwidth limit of the tenant's own cgroup (scenarios; kind `container` or `vm`).
    pub max: Option<CpuMax>,
    /// The CPUs that the tenant's threads may run on (scenarios). For a VM: the host's CPUs for its vCPUs.
    #[serde(default, deserialize_with = "super::cpus::deserialize")]
    pub cpus: Option<CpuSet>,
    /// The host's CPUs that the VM's emulator threads may run on (scenarios; kind `vm`).
    #[serde(default, deserialize_with = "super::cpus::deserialize")]
    pub emulator_cpus: Option<CpuSet>,
    /// The number of queues of the VM's network card, each with an emulator thread, 1 to 64; 1 unless
    /// given (scenarios; kind `vm`).
    pub queues: Option<u32>,
    /// The operator's service-level objective for the tenant.
    pub objective: Option<Objective>,
    /// A real application to run (scenarios).
    pub app: Option<App>,
    /// The programs of the tenant's threads (scenarios).
    #[serde(default, rename = "thread")]
    pub threads: Vec<ThreadProgram>,
    /// The requests that the tenant gets (scenarios).
    pub load: Option<Load>,
}

fn one() -> u32 {
    1
}

/// Reads `pid = 1234` and `pid = [1234, 1235]`.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    struct Pids;
    impl<'de> Visitor<'de> for Pids {
        type Value = Vec<u32>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a process id such as 1234, or several such as [1234, 1235]")
        }

        fn visit_i64<E: Error>(self, pid: i64) -> Result<Vec<u32>, E> {
            let pid = u32::try_from(pid);
            pid.map(|pid| vec![pid])
                .map_err(|_| E::custom("a process id is 1 to 4194304"))
        }

        fn visit_u64<E: Error>(self, pid: u64) -> Result<Vec<u32>, E> {
            let pid = u32::try_from(pid);
            pid.map(|pid| vec![pid])
                .map_err(|_| E::custom("a process id is 1 to 4194304"))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u32>, A::Error> {
            let mut pids = Vec::new();
            while let Some(pid) = list.next_element()? {
                pids.push(pid);
            }
            Ok(pids)
        }
    }
    deserializer.deserialize_any(Pids)
}

/// Kind of tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantKind {
    /// A process or a group of processes.
    #[default]
    Process,
    /// A container: the processes of a cgroup.
    Container,
    /// A virtual machine: a QEMU process.
    Vm,
}

/// The measure that matters for a tenant: latency or throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantClass {
    /// The response time matters.
    #[default]
    Latency,
    /// The throughput matters.
    Batch,
}

/// A service-level objective.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// 99th percentile of latency, in milliseconds.
    pub p99_ms: f64,
}

impl TenantSpec {
    /// A tenant with this name and the default of every other key.
    pub fn named(name: &str) -> TenantSpec {
        TenantSpec {
            name: name.to_string(),
            count: 1,
            kind: TenantKind::default(),
            class: TenantClass::default(),
            weight: None,
            pid: Vec::new(),
            cgroup: None,
            unit: None,
            exe: None,
            cmdline: None,
            libvirt: None,
            vcpus: None,
            criticality: None,
            period_ms: None,
            budget_ms: None,
            pessimistic_budget_ms: None,
            within: None,
            own_cgroup: None,
            max: None,
            cpus: None,
            emulator_cpus: None,
            queues: None,
            objective: None,
            app: None,
            threads: Vec::new(),
            load: None,
        }
    }

    /// The names of the tenants that this table stands for: its own, or that with `-0`, `-1`, ... where
    /// `count` is more than 1.
    pub fn names(&self) -> impl Iterator<Item = TenantName> + '_ {
        (0..self.count).map(|n| match self.count {
            1 => self.name.as_str().into(),
            _ => format!("{}-{n}", self.name).as_str().into(),
        })
    }

    /// The tenant's weight among tenants; the default where none is given.
    pub fn weight(&self) -> TenantWeight {
        self.weight.unwrap_or_default()
    }

    /// The CPUs that the threads of one of its programs may run on: the program's own, else the
    /// tenant's; `None`: all.
    pub fn cpus_of<'a>(&'a self, thread: &'a ThreadProgram) -> Option<&'a CpuSet> {
        thread.cpus.as_ref().or(self.cpus.as_ref())
    }

    /// Whether the tenant has a cgroup of its own: a container, and a VM unless `own_cgroup` is false.
    pub fn has_cgroup(&self) -> bool {
        self.kind != TenantKind::Process && self.own_cgroup != Some(false)
    }

    /// Whether the tenant has at least one selector.
    pub fn has_selector(&self) -> bool {
        !self.pid.is_empty()
            || [
                &self.cgroup,
                &self.unit,
                &self.exe,
                &self.cmdline,
                &self.libvirt,
            ]
            .iter()
            .any(|selector| selector.is_some())
    }

    /// Checks what every file demands of a tenant; `key` is the tenant's key (`tenant[2]`).
    ///
    /// # Errors
    /// A key of the tenant has an invalid value, or keys contradict one another.
    pub fn check(&self, file: &Path, key: &str) -> Result<(), ConfigError> {
        let error = |field: &str, message: String| {
            Err(ConfigError::at(file, format!("{key}.{field}"), message))
        };
        check_name(&self.name, file, key)?;
        if let Some(weight) = self.weight.filter(|w| !(1..=10_000).contains(&w.0)) {
            let shares = match weight.0 {
                11..=1_024_000 => format!(
                    " (cpu.shares of {weight} are a weight of {})",
                    weight.0 / 1024 * 100 + weight.0 % 1024 * 100 / 1024
                ),
                _ => String::new(),
            };
            return error("weight", format!("{weight} is outside 1 to 10000{shares}"));
        }
        if !(1..=1024).contains(&self.count) {
            return error("count", format!("{} is outside 1 to 1024", self.count));
        }
        self.check_server(file, key)?;
        if let Some(objective) = &self.objective {
            if !(objective.p99_ms.is_finite() && objective.p99_ms > 0.0) {
                return error(
                    "objective.p99_ms",
                    "must be a positive number of ms".to_string(),
                );
            }
        }
        Ok(())
    }
}

/// Checks the name of the tenant or group at `key`.
pub(super) fn check_name(name: &str, file: &Path, key: &str) -> Result<(), ConfigError> {
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=64).contains(&name.len()) && name.chars().all(sound) {
        return Ok(());
    }
    let key = match key {
        "" => "name".to_string(),
        key => format!("{key}.name"),
    };
    let message = "must be 1 to 64 letters, digits, `.`, `_` or `-`";
    let message = format!("`{}` {message}", name.escape_debug());
    Err(ConfigError::at(file, key, message))
}
