//! The files of `quell admit`: a host with its tenants, and tenants that ask for room.

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
    /// The `[host]` table.
    pub host: HostSpec,
    /// The `[criticality]` table.
    #[serde(default)]
    pub criticality: CriticalitySettings,
    /// The tenants on the host, in the order of their arrival.
    #[serde(default, rename = "tenant")]
    pub tenants: Vec<TenantSpec>,
}

/// Tenants that ask for room.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantsFile {
    /// These tenants, in the order in which they ask.
    #[serde(rename = "tenant")]
    pub tenants: Vec<TenantSpec>,
}

impl HostFile {
    /// Reads and checks a host file; `file` is only for messages.
    ///
    /// # Errors
    /// The text is no host file, or a host, setting or tenant in it is invalid.
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

    /// The number of CPUs of the host.
    pub fn cpus(&self) -> usize {
        self.host.topology().cpus.len()
    }

    /// The names of the host's tenants.
    pub fn names(&self) -> BTreeSet<TenantName> {
        self.tenants.iter().flat_map(TenantSpec::names).collect()
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
