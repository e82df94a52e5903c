//! A tenant as operators describe it: the service that the tenant is owed, and the processes in it.

use super::ConfigError;
use super::schema::{of_tenants, one_or_many_of, within};
use super::server::{BUDGET_MS, Criticality, PERIOD_MS, VCPUS};
use super::table::{self, Keys, Table};
use crate::{TenantName, TenantWeight};
use schemars::JsonSchema;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

/// The allowed weights of tenants.
const WEIGHT: RangeInclusive<u32> = 1..=10_000;
/// The process ids that Linux may give: to PID_MAX_LIMIT less 1.
const PID: RangeInclusive<u32> = 1..=4_194_303;
/// A name of a tenant or group, as [`check_name`] checks it.
const NAME: &str = "^[A-Za-z0-9._-]{1,64}$";

/// The service that a tenant is owed: the keys that a `[[tenant]]` table has in every file, and all that a
/// policy is told of a tenant's configuration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantSpec {
    /// Unique name: letters, digits, `.`, `_`, `-`; at most 64.
    #[schemars(regex(pattern = NAME))]
    pub name: String,
    /// The kind of tenant.
    #[serde(default)]
    pub kind: TenantKind,
    /// Whether its latency or only its throughput matters.
    #[serde(default)]
    pub class: TenantClass,
    /// Weight among tenants, 1 to 10 000. Not given: the setting of the owner stays (a cgroup's
    /// `cpu.weight`, the threads' nice values).
    #[schemars(transform = within(WEIGHT))]
    pub weight: Option<TenantWeight>,
    /// The number of vCPUs (kind `vm`), 1 to 1024; for the admission test the number of CPUs at once of a
    /// tenant of any kind, 1 unless given.
    #[schemars(transform = within(VCPUS))]
    pub vcpus: Option<u32>,
    /// The tenant's criticality: if given, the tenant has a budget in every period, not a weight. For
    /// the agent and `quell admit`.
    pub criticality: Option<Criticality>,
    /// The period of the server of each vCPU, in ms, 1 to 4000.
    #[schemars(transform = within(PERIOD_MS))]
    pub period_ms: Option<f64>,
    /// The CPU time that each vCPU usually needs in a period, in ms, 0.1 to the period.
    #[schemars(transform = within(BUDGET_MS))]
    pub budget_ms: Option<f64>,
    /// The CPU time that each vCPU needs in the worst case, in ms, `budget_ms` to the period (high
    /// criticality).
    #[schemars(transform = within(BUDGET_MS))]
    pub pessimistic_budget_ms: Option<f64>,
    /// The operator's service-level objective for the tenant.
    pub objective: Option<Objective>,
}

/// One `[[tenant]]` table of `quell.toml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields, transform = of_tenants)]
pub struct AgentTenant {
    /// The service that the tenant is owed.
    #[serde(flatten)]
    pub spec: TenantSpec,
    /// The processes that belong to the tenant.
    #[serde(flatten)]
    pub selectors: Selectors,
}

/// The processes of a live host that belong to a tenant. A process belongs to the first tenant of which any
/// selector matches.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Selectors {
    /// Processes of these ids, and their descendants.
    #[serde(deserialize_with = "one_or_many")]
    #[schemars(inner(range(min = *PID.start(), max = *PID.end())), transform = one_or_many_of)]
    pub pid: Vec<u32>,
    /// Processes in cgroups matching this glob (path below the hierarchy's root, no leading `/`; `*` does
    /// not cross `/`, `**` does).
    pub cgroup: Option<String>,
    /// Processes of this systemd unit.
    pub unit: Option<String>,
    /// Processes whose executable's path, or its last component, matches this glob.
    pub exe: Option<String>,
    /// Processes whose command line (arguments joined by blanks) matches this regular expression.
    pub cmdline: Option<String>,
    /// QEMU processes of libvirt domains whose name matches this glob.
    pub libvirt: Option<String>,
}

/// Kind of tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TenantClass {
    /// The response time matters.
    #[default]
    Latency,
    /// The throughput matters.
    Batch,
}

/// A service-level objective.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// 99th percentile of latency, in milliseconds.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub p99_ms: f64,
}

impl TenantKind {
    /// The kind's name, as the configuration spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            TenantKind::Process => "process",
            TenantKind::Container => "container",
            TenantKind::Vm => "vm",
        }
    }
}

impl TenantClass {
    /// The class's name, as the configuration spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            TenantClass::Latency => "latency",
            TenantClass::Batch => "batch",
        }
    }
}

impl TenantSpec {
    /// A tenant with this name and the default of every other key.
    pub fn named(name: &str) -> TenantSpec {
        TenantSpec {
            name: name.to_string(),
            ..TenantSpec::default()
        }
    }

    /// The names of `count` tenants of this table: the table's own, or that with `-0`, `-1`, ... where
    /// `count` is more than 1.
    pub fn names(&self, count: u32) -> impl Iterator<Item = TenantName> + '_ {
        (0..count).map(move |n| match count {
            1 => self.name.as_str().into(),
            _ => format!("{}-{n}", self.name).as_str().into(),
        })
    }

    /// The tenant's weight among tenants; the default where none is given.
    pub fn weight(&self) -> TenantWeight {
        self.weight.unwrap_or_default()
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
        if let Some(weight) = self.weight.filter(|w| !WEIGHT.contains(&w.0)) {
            let shares = match weight.0 {
                11..=1_024_000 => format!(
                    " (cpu.shares of {weight} are a weight of {})",
                    weight.0 / 1024 * 100 + weight.0 % 1024 * 100 / 1024
                ),
                _ => String::new(),
            };
            return error("weight", format!("{weight} is outside 1 to 10000{shares}"));
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

impl Table for TenantSpec {
    fn fields<'de, D: Deserializer<'de>>(&mut self, keys: &mut Keys<D>) -> Result<(), D::Error> {
        keys.required("name", &mut self.name)?;
        keys.optional("kind", &mut self.kind)?;
        keys.optional("class", &mut self.class)?;
        self.terms(keys)
    }
}

impl TenantSpec {
    /// Names the keys that a rule for many tenants has as well, and that mean the same there.
    ///
    /// # Errors
    /// The value that `keys` has for one of them does not fit.
    pub(super) fn terms<'de, D: Deserializer<'de>>(
        &mut self,
        keys: &mut Keys<D>,
    ) -> Result<(), D::Error> {
        keys.optional("weight", &mut self.weight)?;
        keys.optional("vcpus", &mut self.vcpus)?;
        keys.optional("criticality", &mut self.criticality)?;
        keys.optional("period_ms", &mut self.period_ms)?;
        keys.optional("budget_ms", &mut self.budget_ms)?;
        keys.optional("pessimistic_budget_ms", &mut self.pessimistic_budget_ms)?;
        keys.optional("objective", &mut self.objective)
    }
}

impl AgentTenant {
    /// A tenant with this name and the default of every other key.
    pub fn named(name: &str) -> AgentTenant {
        AgentTenant {
            spec: TenantSpec::named(name),
            selectors: Selectors::default(),
        }
    }
}

impl<'de> Deserialize<'de> for AgentTenant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (spec, selectors) = table::read(deserializer)?;
        Ok(AgentTenant { spec, selectors })
    }
}

impl Selectors {
    /// The selector of processes by their ids, alone.
    pub fn pids(pids: impl IntoIterator<Item = u32>) -> Selectors {
        Selectors {
            pid: pids.into_iter().collect(),
            ..Selectors::default()
        }
    }

    /// Whether no selector is given.
    pub fn is_empty(&self) -> bool {
        *self == Selectors::default()
    }
}

impl Table for Selectors {
    fn fields<'de, D: Deserializer<'de>>(&mut self, keys: &mut Keys<D>) -> Result<(), D::Error> {
        keys.read_by(one_or_many, "pid", &mut self.pid)?;
        keys.optional("cgroup", &mut self.cgroup)?;
        keys.optional("unit", &mut self.unit)?;
        keys.optional("exe", &mut self.exe)?;
        keys.optional("cmdline", &mut self.cmdline)?;
        keys.optional("libvirt", &mut self.libvirt)
    }
}

/// A process id that Linux may give.
#[derive(Deserialize)]
#[serde(try_from = "i64")]
struct Pid(u32);

impl TryFrom<i64> for Pid {
    type Error = String;

    fn try_from(pid: i64) -> Result<Pid, String> {
        let within = u32::try_from(pid).ok();
        let within = within.filter(|pid| PID.contains(pid));
        within
            .map(Pid)
            .ok_or_else(|| format!("{pid} is outside {} to {}", PID.start(), PID.end()))
    }
}

/// Reads one process id or a list of them.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    struct PidsVisitor;
    impl<'de> Visitor<'de> for PidsVisitor {
        type Value = Vec<u32>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a process id such as 1234, or several such as [1234, 1235]")
        }

        fn visit_i64<E: Error>(self, pid: i64) -> Result<Vec<u32>, E> {
            Ok(vec![Pid::try_from(pid).map_err(E::custom)?.0])
        }

        fn visit_u64<E: Error>(self, pid: u64) -> Result<Vec<u32>, E> {
            self.visit_i64(pid.try_into().unwrap_or(i64::MAX))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u32>, A::Error> {
            let mut pids = Vec::new();
            while let Some(Pid(pid)) = list.next_element()? {
                pids.push(pid);
            }
            Ok(pids)
        }
    }
    deserializer.deserialize_any(PidsVisitor)
}

/// Checks the name of the tenant or group at `key`; an empty `key` is the file as a whole.
///
/// # Errors
/// The name is not 1 to 64 letters, digits, `.`, `_` or `-`.
pub fn check_name(name: &str, file: &Path, key: &str) -> Result<(), ConfigError> {
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
