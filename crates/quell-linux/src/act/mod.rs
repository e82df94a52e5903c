//! Makes a plan hold, journals what held before, and undoes all changes.
//!
//! # From plan to kernel
//!
//! | plan | kernel | finer points |
//! |---|---|---|
//! | thread weight | nice value | nearest step by ratio, error carried on (`nice_dither`) |
//! | rescheduling latency | EEVDF custom slice, from 0.1 ms to the kernel's own | Linux >= 6.12 |
//! | layout | affinity | never beyond what the thread's owner and its cpuset allow |
//! | layout of a libvirt domain | pins of vCPUs, emulator and iothreads, live | within the earlier pins |
//! | virtual CPUs online | `guest-set-vcpus` of QEMU's guest agent | told, not waited for |
//! | tenant weight | `cpu.weight` (cgroup v2) or `cpu.shares` (v1) | where the tenant has its own cgroup |
//!
//! A libvirt domain is pinned with `virDomainPinVcpuFlags`, `virDomainPinEmulator` and
//! `virDomainPinIOThread`, since libvirt's cpusets would refuse affinities. Of the virtual CPUs that can go
//! offline, the first ones are online. A slice is rewritten when it is off by more than 5 %.
//!
//! Only differences are written, and a steady plan costs no system calls. Where nice and slice change
//! together one `sched_setattr` sets both. Policy, reset-on-fork and utilisation clamps stay.
//!
//! # Ownership of settings
//!
//! Quell changes only threads of the plan, only ordinary ones (SCHED_OTHER, SCHED_BATCH), and only
//! settings that are as it last saw them: before each write the present value is read. When it is
//! not what Quell left, another program has decided: the setting is left alone from then on while
//! the thread is in the plan, and when undoing. A thread that leaves the plan gets its originals
//! back. A child inherits its creator's settings; the settings that it has from Quell that way are
//! recognised by their values and replaced, in the end, by the creator's originals.
//!
//! # Undoing
//!
//! Every write is in the journal before it happens (`journal`), so [`restore`] puts all settings back
//! after a death at any point. The same rule serves all undoing: a setting that has its original is
//! done; a setting that has the value Quell wrote (or was about to overwrite) gets its original back;
//! any other value is another program's and is left alone and noted. Children born since the last period
//! are searched for in the managed processes and their descendants.
//!
//! # One at a time
//!
//! Two acting processes would take each other's values for originals, so a process that acts or undoes
//! holds the host's lock ([`HOST_LOCK`]) as well as its journal's. Tests that run several at once give each a
//! lock of its own: [`Actuator::open_with_lock`], or `QUELL_LOCK` in the environment of a program.
//!
//! Limits: a child that left its tenant, and whose ancestors are all gone, cannot be told from a
//! thread whose owner chose the same values, and keeps them. Two different settings of one owner
//! that read alike (a custom slice of exactly the kernel's own length; an affinity of exactly all
//! allowed CPUs) are restored as the kernel's own.

mod apply;
mod capabilities;
mod cgroup;
mod guests;
mod journal;
mod libvirt_pins;
mod nice_dither;
mod report;
mod state;
#[cfg(test)]
mod tests;
mod thread;

pub use report::{
    ApplyReport, Capabilities, Capability, Note, RestoreReport, Subject, Writes, list,
};

use crate::guest::Guests;
use apply::NotesGiven;
use journal::{Contents, Journal};
use nix::fcntl::Flock;
use quell_model::ThreadId;
use state::{Host, State};
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The length of this kernel's own slices in ns, tried on a thread made for it; `None` where the kernel
/// takes no custom slices (before Linux 6.12) or the trial fails.
pub fn kernel_slice_ns() -> Option<u64> {
    thread::default_slice().ok().flatten()
}

/// The file whose lock (flock(2)) is held by the process that acts on this host. The environment variable
/// `QUELL_LOCK` names another file, for tests only: it takes the protection away.
pub const HOST_LOCK: &str = "/run/quell/act.lock";

/// The reason why acting or undoing is not possible at all.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// Another Quell process acts on this host, or has the journal open.
    #[error("another Quell acts already: {} holds {}; stop it first",
            pid.map_or("a process".to_string(), |pid| format!("process {pid}")), path.display())]
    Locked {
        /// The lock file, the host's or the journal's.
        path: PathBuf,
        /// The process that holds the lock, where known.
        pid: Option<u32>,
    },
    /// The file has other contents than a journal, and is left as it is.
    #[error("{}: this is not a Quell journal; it was left as it is", path.display())]
    NotAJournal {
        /// The file that is no journal.
        path: PathBuf,
    },
    /// The journal could not be read or written.
    #[error("{}: cannot {action} the journal: {source}", path.display())]
    Journal {
        /// The journal or its folder.
        path: PathBuf,
        /// The operation that failed.
        action: &'static str,
        /// The error of the operation.
        source: io::Error,
    },
    /// A kernel file that is needed to undo safely could not be read.
    #[error("{}: {source}", path.display())]
    Kernel {
        /// The file that could not be read.
        path: PathBuf,
        /// The error of the read.
        source: io::Error,
    },
}

/// The stock backend: nice values, EEVDF slices, affinity and cgroup weights. Dropping it undoes
/// all changes, as [`Actuator::restore`] does.
#[derive(Debug)]
pub struct Actuator {
    capabilities: Capabilities,
    recovered: Option<RestoreReport>,
    host: Host,
    journal: Journal,
    _host_lock: HostLock,
    state: State,
    guests: Guests,
    /// The number of calls of `apply`.
    period: u64,
    /// The period in which everything was undone that could be: at the end the undoing is not repeated, since
    /// a guest that hangs is waited for.
    undone: Option<u64>,
    /// The period in which the kernel's own slice was last read; the slice follows CPU hotplug.
    probed: u64,
    notes_given: NotesGiven,
    /// Cgroups whose weight cannot be read; tried again now and then.
    unreadable: BTreeSet<quell_model::CgroupPath>,
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

    fn open_on(
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
        let (state, report) = undo(&journal, contents, &host, &guests)?;
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
        guests::undo(&mut self.state, &self.guests, bound, &mut report);
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
    fn probe(&mut self) {
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
    let (state, mut report) = undo(&file, contents, &host, &Guests::default())?;
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

fn host_lock_path() -> PathBuf {
    std::env::var_os("QUELL_LOCK").map_or_else(|| PathBuf::from(HOST_LOCK), PathBuf::from)
}

/// The host's lock, or the reason why it could not be used.
#[derive(Debug)]
struct HostLock {
    _lock: Option<Flock<File>>,
    missing: Option<String>,
}

impl HostLock {
    /// Takes the lock, creating its folder if it does not exist; an error only if another process has the
    /// lock.
    fn take(path: &Path) -> Result<HostLock, ActError> {
        if let Some(folder) = path.parent() {
            // A failure shows when the file cannot be created.
            let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        }
        match journal::lock(path) {
            Ok(lock) => Ok(HostLock {
                _lock: Some(lock),
                missing: None,
            }),
            Err(ActError::Journal { source, .. }) => Ok(HostLock {
                _lock: None,
                missing: Some(format!(
                    "{} cannot be used ({source}): nothing keeps another Quell with another journal \
                     from acting at the same time",
                    path.display()
                )),
            }),
            Err(error) => Err(error),
        }
    }
}

/// Undoes the changes that a journal records, and keeps a copy of a damaged journal for inspection.
fn undo(
    journal: &Journal,
    contents: Contents,
    host: &Host,
    guests: &Guests,
) -> Result<(State, RestoreReport), ActError> {
    let mut copy = journal.path().as_os_str().to_owned();
    copy.push(".damaged");
    let copy = PathBuf::from(copy);
    let (damaged, earlier_boot) = (contents.damaged.clone(), contents.earlier_boot);
    if !damaged.is_empty() {
        std::fs::copy(journal.path(), &copy).map_err(|source| ActError::Journal {
            path: copy.clone(),
            action: "keep a copy of",
            source,
        })?;
    }
    // Without the first line the age of children is unknown: then no thread is taken for a child.
    let opened_ticks = contents.opened_ticks.unwrap_or(u64::MAX);
    let mut state = State::from_journal(contents);
    let none = BTreeSet::new();
    let mut report = state.undo(host, opened_ticks, &none);
    guests::undo(&mut state, guests, &none, &mut report);
    report.earlier_boot = earlier_boot;
    report.damaged = damaged.len() as u64;
    if let [first, ..] = damaged[..] {
        let text = format!(
            "{} damaged lines, the first is line {first}: what they said is lost, the rest was used; \
             a copy is in {}",
            damaged.len(),
            copy.display()
        );
        report.notes.push(Note {
            tenant: None,
            subject: Subject::Journal,
            text,
        });
    }
    Ok((state, report))
}
