//! The files of `quell admit`: a host with those who are to be on it, and tenants that ask for room.

use super::scenario::HostSpec;
use super::server::CriticalitySettings;
use super::{ConfigError, TenantSpec};
use crate::TenantName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;

/// A host and its tenants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFile {
    /// The host.
    pub host: HostSpec,
    /// The `[criticality]` table.
    #[serde(default)]
    pub criticality: CriticalitySettings,
    /// Who is on it, in the order in which they came.
    #[serde(default, rename = "tenant")]
    pub tenants: Vec<TenantSpec>,
}

/// Tenants that ask for room.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantsFile {
    /// They, in the order in which they ask.
    #[serde(rename = "tenant")]
    pub tenants: Vec<TenantSpec>,
}

impl HostFile {
    /// Reads and checks it; `file` is only for messages.
    pub fn parse(file: &Path, text: &str) -> Result<HostFile, ConfigError> {
        let config: HostFile = super::parse(file, text)?;
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

    /// How many CPUs the host has.
    pub fn cpus(&self) -> usize {
        self.host.topology().cpus.len()
    }

    /// Its tenants' names.
    pub fn names(&self) -> BTreeSet<TenantName> {
        self.tenants.iter().flat_map(TenantSpec::names).collect()
    }
}

impl TenantsFile {
    /// Reads and checks it, as tenants of a host of so many CPUs that has those already; `file` is only for messages.
    pub fn parse(
        file: &Path,
        text: &str,
        there: BTreeSet<TenantName>,
        cpus: usize,
    ) -> Result<TenantsFile, ConfigError> {
        let config: TenantsFile = super::parse(file, text)?;
        match check_tenants(&config.tenants, there, cpus, file) {
            Ok(()) => Ok(config),
            Err(error) => Err(error.located(text)),
        }
    }
}

fn check_tenants(
    tenants: &[TenantSpec],
    mut names: BTreeSet<TenantName>,
    cpus: usize,
    file: &Path,
) -> Result<(), ConfigError> {
    for (index, tenant) in tenants.iter().enumerate() {
        let key = format!("tenant[{index}]");
        tenant.check(file, &key)?;
        if let Some(name) = tenant.names().find(|name| names.contains(name)) {
            let message = format!("`{name}` is the name of an earlier tenant");
            return Err(ConfigError::at(file, format!("{key}.name"), message));
        }
        let vcpus = tenant.vcpus.unwrap_or(1) as usize;
        if vcpus > cpus {
            let message = format!("{vcpus} are more than the host's CPUs, {cpus}");
            return Err(ConfigError::at(file, format!("{key}.vcpus"), message));
        }
        names.extend(tenant.names());
    }
    Ok(())
}
