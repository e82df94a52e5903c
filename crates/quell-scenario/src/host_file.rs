//! The files of `quell admit`: a host with its tenants, and tenants that ask for room.

use crate::HostSpec;
use crate::tenant::{ScenarioTenant, check_count};
use quell_model::TenantName;
use quell_model::config::table;
use quell_model::config::{ConfigError, CriticalitySettings, Selectors, TenantSpec, parse};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::path::Path;

/// A host and its tenants.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFile {
    /// The `[host]` table.
    pub host: HostSpec,
    /// The `[criticality]` table.
    #[serde(default)]
    pub criticality: CriticalitySettings,
    /// The tenants on the host, in the order of their arrival.
    #[serde(default, rename = "tenant")]
    pub tenants: Vec<HostTenant>,
}

/// Tenants that ask for room.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantsFile {
    /// These tenants, in the order in which they ask.
    #[serde(rename = "tenant")]
    pub tenants: Vec<HostTenant>,
}

/// One `[[tenant]]` table of these files. It may be a table of `quell.toml` or of a scenario as well: what
/// selects the tenant's processes there, or says what its threads do, is read and not used.
#[derive(Debug, Clone, PartialEq)]
pub struct HostTenant {
    /// The service that the tenant is owed, or asks for.
    pub spec: TenantSpec,
    /// The number of tenants alike, 1 to 1024.
    pub count: u32,
}

impl HostTenant {
    /// The names of the tenants that this table stands for ([`TenantSpec::names`]).
    pub fn names(&self) -> impl Iterator<Item = TenantName> + '_ {
        self.spec.names(self.count)
    }
}

impl<'de> Deserialize<'de> for HostTenant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (tenant, _): (ScenarioTenant, Selectors) = table::read(deserializer)?;
        Ok(HostTenant {
            spec: tenant.spec,
            count: tenant.count,
        })
    }
}

impl HostFile {
    /// Reads and checks a host file; `file` is only for messages.
    ///
    /// # Errors
    /// The text is no host file, or a host, setting or tenant in it is invalid.
    pub fn parse(file: &Path, text: &str) -> Result<HostFile, ConfigError> {
        let config: HostFile = parse(file, text)?;
        match config.check(file) {
            Ok(()) => Ok(config),
            Err(error) => Err(error.located(text)),
        }
    }

    fn check(&self, file: &Path) -> Result<(), ConfigError> {
        self.host.check(file)?;
        self.criticality.check(file)?;
        check_tenants(&self.tenants, BTreeSet::new(), self.cpus(), file)
    }

    /// The number of CPUs of the host.
    pub fn cpus(&self) -> usize {
        self.host.topology().cpus.len()
    }

    /// The names of the host's tenants.
    pub fn names(&self) -> BTreeSet<TenantName> {
        self.tenants.iter().flat_map(HostTenant::names).collect()
    }
}

impl TenantsFile {
    /// Reads and checks a file of tenants that ask for room on a host of `cpus` CPUs whose tenants have
    /// the names `there`; `file` is only for messages.
    ///
    /// # Errors
    /// The text is no file of tenants, or a tenant is invalid or has a name that is taken.
    pub fn parse(
        file: &Path,
        text: &str,
        there: BTreeSet<TenantName>,
        cpus: usize,
    ) -> Result<TenantsFile, ConfigError> {
        let config: TenantsFile = parse(file, text)?;
        match check_tenants(&config.tenants, there, cpus, file) {
            Ok(()) => Ok(config),
            Err(error) => Err(error.located(text)),
        }
    }
}

fn check_tenants(
    tenants: &[HostTenant],
    mut names: BTreeSet<TenantName>,
    cpus: usize,
    file: &Path,
) -> Result<(), ConfigError> {
    for (index, tenant) in tenants.iter().enumerate() {
        let key = format!("tenant[{index}]");
        tenant.spec.check(file, &key)?;
        check_count(tenant.count, file, &key)?;
        if let Some(name) = tenant.names().find(|name| names.contains(name)) {
            let message = format!("`{name}` is the name of an earlier tenant");
            return Err(ConfigError::at(file, format!("{key}.name"), message));
        }
        let vcpus = tenant.spec.vcpus.unwrap_or(1) as usize;
        if vcpus > cpus {
            let message = format!("{vcpus} are more than the host's CPUs, {cpus}");
            return Err(ConfigError::at(file, format!("{key}.vcpus"), message));
        }
        names.extend(tenant.names());
    }
    Ok(())
}
