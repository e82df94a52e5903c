//! A tenant of a scenario: the service that the tenant is owed, and what its threads do.

use crate::app::App;
use crate::cpus;
use crate::group::CpuMax;
use crate::program::{Load, ThreadProgram};
use quell_model::config::table::{self, Keys, Table};
use quell_model::config::{ConfigError, Selectors, TenantKind, TenantSpec};
use quell_model::{CpuSet, TenantName};
use serde::{Deserialize, Deserializer, Serialize};
use std::path::Path;

/// One `[[tenant]]` table of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScenarioTenant {
    /// The service that the tenant is owed.
    #[serde(flatten)]
    pub spec: TenantSpec,
    /// The number of tenants alike, 1 to 1024 (`img` becomes `img-0`, `img-1`, ... when more than 1).
    pub count: u32,
    /// The group that the tenant is in: the parent of a container's or VM's own cgroup, or the cgroup of
    /// the process itself.
    pub within: Option<String>,
    /// Whether the tenant has a cgroup of its own (kind `vm`); not given: yes.
    pub own_cgroup: Option<bool>,
    /// The bandwidth limit of the tenant's own cgroup (kind `container` or `vm`).
    pub max: Option<CpuMax>,
    /// The CPUs that the tenant's threads may run on. For a VM: the host's CPUs for its vCPUs.
    pub cpus: Option<CpuSet>,
    /// The host's CPUs that the VM's emulator threads may run on (kind `vm`).
    pub emulator_cpus: Option<CpuSet>,
    /// The number of queues of the VM's network card, each with an emulator thread, 1 to 64; 1 unless
    /// given (kind `vm`).
    pub queues: Option<u32>,
    /// A real application to run.
    pub app: Option<App>,
    /// The programs of the tenant's threads.
    #[serde(rename = "thread")]
    pub threads: Vec<ThreadProgram>,
    /// The requests that the tenant gets.
    pub load: Option<Load>,
}

impl Default for ScenarioTenant {
    fn default() -> Self {
        ScenarioTenant {
            spec: TenantSpec::default(),
            count: 1,
            within: None,
            own_cgroup: None,
            max: None,
            cpus: None,
            emulator_cpus: None,
            queues: None,
            app: None,
            threads: Vec::new(),
            load: None,
        }
    }
}

impl ScenarioTenant {
    /// A tenant with this name and the default of every other key.
    pub fn named(name: &str) -> ScenarioTenant {
        ScenarioTenant {
            spec: TenantSpec::named(name),
            ..ScenarioTenant::default()
        }
    }

    /// The names of the tenants that this table stands for ([`TenantSpec::names`]).
    pub fn names(&self) -> impl Iterator<Item = TenantName> + '_ {
        self.spec.names(self.count)
    }

    /// The CPUs that the threads of one of its programs may run on: the program's own, else the
    /// tenant's; `None`: all.
    pub fn cpus_of<'a>(&'a self, thread: &'a ThreadProgram) -> Option<&'a CpuSet> {
        thread.cpus.as_ref().or(self.cpus.as_ref())
    }

    /// Whether the tenant has a cgroup of its own: a container, and a VM unless `own_cgroup` is false.
    pub fn has_cgroup(&self) -> bool {
        self.spec.kind != TenantKind::Process && self.own_cgroup != Some(false)
    }
}

impl Table for ScenarioTenant {
    fn fields<'de, D: Deserializer<'de>>(&mut self, keys: &mut Keys<D>) -> Result<(), D::Error> {
        self.spec.fields(keys)?;
        keys.optional("count", &mut self.count)?;
        keys.optional("within", &mut self.within)?;
        keys.optional("own_cgroup", &mut self.own_cgroup)?;
        keys.optional("max", &mut self.max)?;
        keys.read_by(cpus::deserialize, "cpus", &mut self.cpus)?;
        keys.read_by(cpus::deserialize, "emulator_cpus", &mut self.emulator_cpus)?;
        keys.optional("queues", &mut self.queues)?;
        keys.optional("app", &mut self.app)?;
        keys.optional("thread", &mut self.threads)?;
        keys.optional("load", &mut self.load)
    }
}

impl<'de> Deserialize<'de> for ScenarioTenant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        table::read(deserializer)
    }
}

/// Checks the `count` of the tenant at `key`.
pub(crate) fn check_count(count: u32, file: &Path, key: &str) -> Result<(), ConfigError> {
    if (1..=1024).contains(&count) {
        return Ok(());
    }
    let message = format!("{count} is outside 1 to 1024");
    Err(ConfigError::at(file, format!("{key}.count"), message))
}

/// Why a key of a tenant is unknown in a scenario, if another file has it.
pub(crate) fn of_other_files(key: &str) -> Option<&'static str> {
    let selects = table::keys::<Selectors>().contains(&key);
    selects.then_some(
        "selects processes of a live host and belongs into quell.toml; a scenario \
         starts its tenants itself, from `app` or `[[tenant.thread]]`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostFile, Scenario, TenantsFile};
    use quell_model::config::AgentFile;
    use std::collections::BTreeSet;

    /// A value of each key of a scenario's tenant that `quell.toml` does not have.
    const OF_SCENARIOS: [(&str, &str); 10] = [
        ("count", "2"),
        ("within", "\"g\""),
        ("own_cgroup", "false"),
        ("max", "{ quota_ms = 20 }"),
        ("cpus", "[0]"),
        ("emulator_cpus", "[0]"),
        ("queues", "2"),
        ("app", "{ xz = {} }"),
        ("thread", "[]"),
        ("load", "{ rate = 1 }"),
    ];

    /// A value of each selector.
    const SELECTORS: [(&str, &str); 6] = [
        ("pid", "1"),
        ("cgroup", "\"a\""),
        ("unit", "\"a.service\""),
        ("exe", "\"a\""),
        ("cmdline", "\"a\""),
        ("libvirt", "\"a\""),
    ];

    /// The keys that every file has.
    const COMMON: &str = "name = \"a\"\nkind = \"vm\"\nclass = \"batch\"\nweight = 50\nvcpus = 2\n\
        criticality = \"high\"\nperiod_ms = 100\nbudget_ms = 5\npessimistic_budget_ms = 10\n\
        objective = { p99_ms = 10.0 }\n";

    #[test]
    fn a_key_of_a_scenario_in_quell_toml_is_explained_where_it_stands() {
        let every_file = table::keys::<TenantSpec>();
        let keys = table::keys::<ScenarioTenant>();
        let own = keys.into_iter().filter(|key| !every_file.contains(key));
        assert!(own.eq(OF_SCENARIOS.map(|(key, _)| key)));
        for (key, value) in OF_SCENARIOS {
            let text = format!("[[tenant]]\nname = \"a\"\npid = 1\n{key} = {value}\n");
            let error = AgentFile::parse(Path::new("q.toml"), &text).unwrap_err();
            let start = format!("q.toml:4: `tenant[0].{key}`: is for scenarios");
            assert!(error.to_string().starts_with(&start), "{error}");
            assert!(error.to_string().ends_with("(tenant `a`)"), "{error}");
        }
    }

    #[test]
    fn a_selector_in_a_scenario_is_explained_where_it_stands() {
        assert_eq!(
            SELECTORS.map(|(key, _)| key).to_vec(),
            table::keys::<Selectors>()
        );
        for (key, value) in SELECTORS {
            let text = format!("name = \"s\"\n[[tenant]]\nname = \"a\"\n{key} = {value}\n");
            let error = Scenario::parse(Path::new("s.toml"), &text).unwrap_err();
            let start = format!("s.toml:4: `tenant[0].{key}`: selects processes of a live host");
            assert!(error.to_string().starts_with(&start), "{error}");
        }
    }

    #[test]
    fn only_keys_of_the_file_are_suggested() {
        let text = "[[tenant]]\nname = \"a\"\npid = 1\nthreat = []\n";
        let error = AgentFile::parse(Path::new("q.toml"), text).unwrap_err();
        assert!(!error.message.contains("`thread`"), "{error}");
        let text = "name = \"s\"\n[[tenant]]\nname = \"a\"\nexec = \"x\"\n";
        let error = Scenario::parse(Path::new("s.toml"), text).unwrap_err();
        assert!(!error.message.contains("`exe`"), "{error}");
        assert_eq!(
            (error.line, error.key.as_str()),
            (Some(4), "tenant[0].exec")
        );
    }

    #[test]
    fn what_a_tenant_is_owed_reads_alike_in_every_file() {
        let agent = format!("[agent]\npolicy = [\"criticality\"]\n[[tenant]]\npid = 1\n{COMMON}");
        let agent = AgentFile::parse(Path::new("q"), &agent).unwrap();
        let spec = &agent.tenants[0].spec;
        assert_eq!((spec.weight().0, spec.vcpus), (50, Some(2)));
        assert_eq!(spec.server().unwrap().pessimistic_ns, 10_000_000);
        let program = "[[tenant.thread]]\nname = \"t\"\nprogram = [{ run_us = 1 }]\n";
        let scenario = format!("name = \"s\"\n[[tenant]]\n{COMMON}{program}");
        let scenario = Scenario::parse(Path::new("s"), &scenario).unwrap();
        assert_eq!(scenario.tenants[0].spec, *spec);
        let host = format!("[host]\ncpus = 2\n[[tenant]]\n{COMMON}");
        let host = HostFile::parse(Path::new("h"), &host).unwrap();
        assert_eq!(host.tenants[0].spec, *spec);
        // Written out and read again the tables are equal.
        let again = toml::to_string(&agent).unwrap();
        assert_eq!(AgentFile::parse(Path::new("q"), &again).unwrap(), agent);
        let again = toml::to_string(&scenario.tenants[0]).unwrap();
        assert_eq!(
            toml::from_str::<ScenarioTenant>(&again).unwrap(),
            scenario.tenants[0]
        );
        let json = serde_json::to_string(&scenario.tenants[0]).unwrap();
        assert_eq!(
            serde_json::from_str::<ScenarioTenant>(&json).unwrap(),
            scenario.tenants[0]
        );
    }

    #[test]
    fn tables_of_both_files_may_ask_for_room() {
        let of = |keys: &[(&str, &str)]| -> String {
            let lines = keys.iter().map(|(key, value)| format!("{key} = {value}\n"));
            format!("[[tenant]]\n{COMMON}{}", lines.collect::<String>())
        };
        let ask = |text: &str| TenantsFile::parse(Path::new("t"), text, BTreeSet::new(), 2);
        assert_eq!(ask(&of(&SELECTORS)).unwrap().tenants[0].count, 1);
        assert_eq!(ask(&of(&OF_SCENARIOS)).unwrap().tenants[0].count, 2);
        for (wrong, key) in [
            ("pit = 1", "tenant[0].pit"),
            ("load = { rat = 1 }", "tenant[0].load.rat"),
            ("count = 0", "tenant[0].count"),
        ] {
            let error = ask(&format!("{}{wrong}\n", of(&[]))).unwrap_err();
            assert_eq!(error.key, key, "{error}");
        }
        let error = ask("[[tenant]]\ncount = 2\n").unwrap_err();
        assert!(error.message.contains("missing field `name`"), "{error}");
    }
}
