//! The stock actuator: what it holds, how it begins and how it undoes. What it does in each period is in
//! [`super::apply`].

use super::capabilities;
use super::error::ActError;
use super::journal::{Contents, Journal};
use super::lock::{HostLock, host_lock_path};
use super::notes::NotesGiven;
use super::report::{Capabilities, Note, RestoreReport, Subject};
use super::state::{Host, State};
use super::{thread, undo};
use crate::guest::Guests;
use quell_model::ThreadId;
use std::collections::BTreeSet;
use std::path::Path;

/// The stock backend: nice values, EEVDF slices, affinity and cgroup weights. Dropping it undoes
/// all changes, as [`Actuator::restore`] does.
#[derive(Debug)]
pub struct Actuator {
    capabilities: Capabilities,
    recovered: Option<RestoreReport>,
    pub(super) host: Host,
    pub(super) journal: Journal,
    _host_lock: HostLock,
    pub(super) state: State,
    pub(super) guests: Guests,
    /// The number of calls of `apply`.
    pub(super) period: u64,
    /// The period in which everything was undone that could be: at the end the undoing is not repeated, since
    /// a guest that hangs is waited for.
    undone: Option<u64>,
    /// The period in which the kernel's own slice was last read; the slice follows CPU hotplug.
    probed: u64,
    pub(super) notes_given: NotesGiven,
    /// Cgroups whose weight cannot be read; tried again now and then.
    pub(super) unreadable: BTreeSet<quell_model::CgroupPath>,
}

impl Actuator {
    /// Takes the host's lock and the journal, creating its folder if it does not exist, and first undoes what
    /// a previous run left: see [`Actuator::recovered`]. Where the host's lock cannot be used (it takes
    /// root), the notes of [`Actuator::capabilities`] say so, and only the journal's lock is held.
    ///
    /// # Errors
    /// The call fails if another process holds either lock ([`ActError::Locked`]), the journal cannot be used
    /// ([`ActError::NotAJournal`], [`ActError::Journal`]) or the kernel does not tell what is needed to undo
    /// ([`ActError::Kernel`]).
    pub fn open(journal: &Path) -> Result<Actuator, ActError> {
        Actuator::open_with_lock(journal, &host_lock_path())
    }

    /// Opens the actuator as [`Actuator::open`] does, with `lock` in place of the host's lock file: for
    /// tests.
    ///
    /// # Errors
    /// The call fails as [`Actuator::open`] does.
    pub fn open_with_lock(journal: &Path, lock: &Path) -> Result<Actuator, ActError> {
        let (capabilities, host) = capabilities::detect();
        Actuator::open_on(journal, lock, capabilities, host)
    }

    pub(super) fn open_on(
        path: &Path,
        lock: &Path,
        mut capabilities: Capabilities,
        host: Host,
    ) -> Result<Actuator, ActError> {
        let host_lock = HostLock::take(lock)?;
        capabilities.notes.extend(host_lock.missing.clone());
        let (mut journal, contents) = Journal::open(path)?;
        let fresh = contents == Contents::default();
        let guests = Guests::default();
        let (state, report) = undo::undo_journal(&journal, contents, &host, &guests)?;
        journal
            .start(&state.records())
            .map_err(|source| ActError::Journal {
                path: path.to_path_buf(),
                action: "write",
                source,
            })?;
        let recovered = (!fresh && report != RestoreReport::default()).then_some(report);
        Ok(Actuator {
            capabilities,
            recovered,
            host,
            journal,
            _host_lock: host_lock,
            state,
            guests,
            period: 0,
            undone: None,
            probed: 0,
            notes_given: NotesGiven::default(),
            unreadable: BTreeSet::new(),
        })
    }

    /// The settings that this host lets Quell change.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The report on what [`Actuator::open`] had to undo, if a previous run left anything.
    pub fn recovered(&self) -> Option<&RestoreReport> {
        self.recovered.as_ref()
    }

    /// Puts all settings back and empties the journal. Settings that could not be put back stay in it.
    pub fn restore(&mut self) -> RestoreReport {
        self.undone = Some(self.period);
        self.reset_for_reload(&BTreeSet::new())
    }

    /// Puts all settings back, except that the threads in `bound` stay bound to the CPUs that they are bound
    /// to: the next planner must see what the owners chose, and must not take from the threads the CPUs that
    /// they were promised there.
    pub fn reset_for_reload(&mut self, bound: &BTreeSet<ThreadId>) -> RestoreReport {
        self.probe();
        let opened_ticks = self.journal.opened_ticks();
        let mut report = self.state.undo(&self.host, opened_ticks, bound);
        undo::undo_guests(&mut self.state, &self.guests, bound, &mut report);
        if let Err(error) = self.journal.rewrite(&self.state.records()) {
            let text = format!(
                "{}: could not be emptied: {error}",
                self.journal.path().display()
            );
            report.notes.push(Note {
                tenant: None,
                subject: Subject::Journal,
                text,
            });
        }
        report
    }

    /// Reads the kernel's own slice again, once a period.
    pub(super) fn probe(&mut self) {
        if self.host.default_slice.is_some() && self.probed != self.period {
            self.probed = self.period;
            if let Ok(Some(default)) = thread::default_slice() {
                self.host.default_slice = Some(default);
            }
        }
    }
}

impl Drop for Actuator {
    fn drop(&mut self) {
        if !self.state.is_empty() && self.undone != Some(self.period) {
            let report = self.restore();
            tracing::warn!(%report, "the actuator was dropped without restore");
        }
    }
}

/// Undoes what a run left that did not end well. A journal that does not exist means that there is
/// nothing to undo.
///
/// # Errors
/// The call fails while an agent acts on this host or another process has the journal open
/// ([`ActError::Locked`]), if the journal cannot be used ([`ActError::NotAJournal`], [`ActError::Journal`]),
/// or if the kernel does not tell what is needed to undo ([`ActError::Kernel`]).
pub fn restore(journal: &Path) -> Result<RestoreReport, ActError> {
    restore_with_lock(journal, &host_lock_path())
}

/// Undoes as [`restore`] does, with `lock` in place of the host's lock file: for tests.
///
/// # Errors
/// The call fails as [`restore`] does.
pub fn restore_with_lock(journal: &Path, lock: &Path) -> Result<RestoreReport, ActError> {
    if matches!(journal.try_exists(), Ok(false)) {
        return Ok(RestoreReport::default());
    }
    let host_lock = HostLock::take(lock)?;
    let (_, host) = capabilities::detect();
    let (mut file, contents) = Journal::open(journal)?;
    let (state, mut report) = undo::undo_journal(&file, contents, &host, &Guests::default())?;
    file.rewrite(&state.records())
        .map_err(|source| ActError::Journal {
            path: journal.to_path_buf(),
            action: "empty",
            source,
        })?;
    report.notes.extend(host_lock.missing.map(|text| Note {
        tenant: None,
        subject: Subject::Journal,
        text,
    }));
    Ok(report)
}
