//! Runs a scenario for real on this machine: starts its tenants as processes, loads them, measures.

mod measurement;

pub mod player;

pub use measurement::{GeneratorReport, Measurement, SeriesPoint, latency_histogram};

use quell_model::TenantName;
use quell_model::config::{Scenario, TenantClass};
use quell_model::{Pid, TenantWeight};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The tenants of a scenario, running.
pub struct Workload {
    tenants: Vec<RunningTenant>,
}

/// One tenant that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningTenant {
    /// Its name.
    pub name: TenantName,
    /// Its class.
    pub class: TenantClass,
    /// Its weight among tenants.
    pub weight: TenantWeight,
    /// Its processes, ascending; the first was started by us, others are its children.
    pub pids: Vec<Pid>,
}

/// The run was ended through its interrupt flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Workload {
    /// Starts every tenant of the scenario for real; returns when all answer. `quell_exe` is the
    /// program that has the hidden `player` subcommand. Setting `interrupt` ends this and
    /// [`Workload::measure`] soon, with [`Interrupted`].
    pub fn start(
        scenario: &Scenario,
        quell_exe: &Path,
        interrupt: Arc<AtomicBool>,
    ) -> anyhow::Result<Workload> {
        let _ = (scenario, quell_exe, interrupt);
        anyhow::bail!("not built yet")
    }

    /// The tenants, in the scenario's order.
    pub fn tenants(&self) -> &[RunningTenant] {
        &self.tenants
    }

    /// Loads every tenant for `warmup` and then `length`, of which the latter is measured; one
    /// measurement for each tenant, in the order of [`Workload::tenants`]. The same seed gives the
    /// same requests at the same times.
    pub fn measure(
        &mut self,
        warmup: Duration,
        length: Duration,
        seed: u64,
    ) -> anyhow::Result<Vec<Measurement>> {
        let _ = (warmup, length, seed);
        anyhow::bail!("not built yet")
    }

    /// Ends every tenant and waits until they are gone. Dropping does the same.
    pub fn stop(self) -> anyhow::Result<()> {
        Ok(())
    }
}
