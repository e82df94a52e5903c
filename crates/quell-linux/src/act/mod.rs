//! Makes a plan hold, journals what held before, and undoes it.

mod report;

pub use report::{ApplyReport, Capabilities, Capability, Note, RestoreReport, Subject, Writes};

use quell_model::{Plan, Snapshot};
use std::io;
use std::path::{Path, PathBuf};

/// Why acting or undoing is not possible at all.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// Another Quell acts on this host with the same journal.
    #[error("{}: {} holds this journal; stop it first", path.display(),
            pid.map_or("another process".to_string(), |pid| format!("process {pid}")))]
    Locked {
        /// The journal.
        path: PathBuf,
        /// The process holding it, where known.
        pid: Option<u32>,
    },
    /// The journal could not be read or written.
    #[error("{}: cannot {action} the journal: {source}", path.display())]
    Journal {
        /// The journal or its folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel did not say something needed to undo safely.
    #[error("{}: {source}", path.display())]
    Kernel {
        /// What was read.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The stock backend: nice values, EEVDF slices, affinity and cgroup weights.
#[derive(Debug)]
pub struct Actuator {
    capabilities: Capabilities,
    recovered: Option<RestoreReport>,
}

impl Actuator {
    /// Takes the journal (one actuator at a time) and first undoes what a previous run left.
    pub fn open(journal: &Path) -> Result<Actuator, ActError> {
        Err(ActError::Journal {
            path: journal.to_path_buf(),
            action: "open",
            source: io::Error::from(io::ErrorKind::Unsupported),
        })
    }

    /// What this host lets Quell change.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// What [`Actuator::open`] had to undo, if a previous run left anything.
    pub fn recovered(&self) -> Option<&RestoreReport> {
        self.recovered.as_ref()
    }

    /// Makes the plan hold: writes what differs, and journals old values first.
    pub fn apply(&mut self, _snapshot: &Snapshot, _plan: &Plan) -> ApplyReport {
        ApplyReport {
            journal_error: Some("no journal".into()),
            ..ApplyReport::default()
        }
    }

    /// Puts everything back and empties the journal.
    pub fn restore(&mut self) -> RestoreReport {
        RestoreReport::default()
    }
}

/// Undoes what a run that did not end well left; fails while an agent holds the journal.
/// A journal that does not exist means there is nothing to undo.
pub fn restore(journal: &Path) -> Result<RestoreReport, ActError> {
    Actuator::open(journal).map(|a| a.recovered.unwrap_or_default())
}
