//! Makes a plan hold, journals what held before, and undoes it.
//!
//! # From plan to kernel
//!
//! | plan | kernel | finer points |
//! |---|---|---|
//! | thread weight | nice value | nearest step by ratio, error carried on (`diffusion`) |
//! | rescheduling latency | EEVDF custom slice, from 0.1 ms to the kernel's own (Linux >= 6.12) | changes of up to 5 % are not worth a write |
//! | layout | affinity | never beyond what the thread's owner and its cpuset allow |
//! | the same, of a libvirt domain's threads | `virDomainPinVcpuFlags`, `virDomainPinEmulator`, `virDomainPinIOThread`, live | within what they were pinned to; libvirt's cpusets would refuse affinities |
//! | virtual CPUs online | `guest-set-vcpus` of QEMU's guest agent | the first ones, of those that can go offline; a guest is told and not waited for |
//! | tenant weight | `cpu.weight` (cgroup v2) or `cpu.shares` (v1) | where the tenant has a cgroup of its own |
//!
//! Only differences are written, and a steady plan costs no system calls. Where nice and slice change
//! together one `sched_setattr` sets both. Policy, reset-on-fork and utilisation clamps stay.
//!
//! # Whose a setting is
//!
//! Quell changes only threads of the plan, only ordinary ones (SCHED_OTHER, SCHED_BATCH), and only
//! settings that are as it last saw them: before each write the present value is read, and when it
//! is not what Quell left, someone else has decided: the setting is left alone from then on while
//! the thread is in the plan, and when undoing. A thread that leaves the plan gets its originals
//! back. A child inherits its creator's settings; what it has from Quell that way is recognised by
//! its value and replaced, in the end, by the creator's original.
//!
//! # Undoing
//!
//! Every write is in the journal before it happens (`journal`), so [`restore`] puts everything back
//! after a death at any point. The same rule serves all undoing: a setting that has its original is
//! done; one that has what Quell wrote (or was about to overwrite) gets its original back; any other
//! value is someone else's and is left alone and said. Children born since the last period are
//! searched for in the managed processes and their descendants.
//!
//! # One at a time
//!
//! Two that act would take each other's values for originals, so whoever acts or undoes holds the
//! host's lock ([`HOST_LOCK`]) as well as its journal's. Tests that run several at once give each a
//! lock of its own: [`Actuator::open_with_lock`], or `QUELL_LOCK` in the environment of a program.
//!
//! Limits: a child that left its tenant and whose whole ancestry is gone, cannot be told from a
//! thread whose owner chose the same values, and keeps them. Two different settings of one owner
//! that read alike (a custom slice of exactly the kernel's own length; an affinity of exactly all
//! allowed CPUs) are restored as the kernel's own.

mod apply;
mod capabilities;
mod cgroup;
mod diffusion;
mod guests;
mod journal;
mod parts;
mod report;
mod state;
#[cfg(test)]
mod tests;
pub(crate) mod thread;

pub use report::{
    ApplyReport, Capabilities, Capability, Note, RestoreReport, Subject, Writes, list,
};
pub use thread::{SchedAttr, set_nice};

use crate::guest::Guests;
use apply::Said;
use journal::{Contents, Journal};
use nix::fcntl::Flock;
use quell_model::ThreadId;
use state::{Host, State};
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The length of this kernel's own slices in ns, tried on a thread made for it; `None` where it
/// takes no custom ones (before Linux 6.12) or the trial fails.
pub fn kernel_slice_ns() -> Option<u64> {
    thread::default_slice().ok().flatten()
}

/// The file whose lock (flock(2)) is held by whoever acts on this host. The environment variable
/// `QUELL_LOCK` names another, for tests only: it takes the protection away.
pub const HOST_LOCK: &str = "/run/quell/act.lock";

/// Why acting or undoing is not possible at all.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// Another Quell acts on this host, or has the journal open.
    #[error("another Quell acts already: {} holds {}; stop it first",
            pid.map_or("a process".to_string(), |pid| format!("process {pid}")), path.display())]
    Locked {
        /// The lock file, the host's or the journal's.
        path: PathBuf,
        /// The process holding it, where known.
        pid: Option<u32>,
    },
    /// The file has something else in it, and is left as it is.
    #[error("{}: this is not a Quell journal; it was left as it is", path.display())]
    NotAJournal {
        /// The file.
        path: PathBuf,
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

/// The stock backend: nice values, EEVDF slices, affinity and cgroup weights. Dropping it undoes
/// everything, as [`Actuator::restore`] does.
#[derive(Debug)]
pub struct Actuator {
    capabilities: Capabilities,
    recovered: Option<RestoreReport>,
    host: Host,
    journal: Journal,
    _host_lock: HostLock,
    state: State,
    guests: Guests,
    /// Counts calls of `apply`.
    period: u64,
    /// In which all was undone that could be: at the end that is not tried once more, as a guest that hangs is waited for.
    undone: Option<u64>,
    /// When the kernel's own slice was last read; it follows CPU hotplug.
    probed: u64,
    said: Said,
    /// Cgroups whose weight cannot be read; looked at again now and then.
    unreadable: BTreeSet<quell_model::CgroupPath>,
}

impl Actuator {
    /// Takes the host's lock and the journal, making its folder if need be, and first undoes what a
    /// previous run left: see [`Actuator::recovered`]. Where the host's lock cannot be used (it takes
    /// root), the notes of [`Actuator::capabilities`] say so, and only the journal's is held.
    pub fn open(journal: &Path) -> Result<Actuator, ActError> {
        Actuator::open_with_lock(journal, &host_lock_path())
    }

    /// As [`Actuator::open`], with `lock` in place of the host's lock file: for tests.
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
            said: Said::default(),
            unreadable: BTreeSet::new(),
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

    /// Puts everything back and empties the journal. What could not be put back stays in it.
    pub fn restore(&mut self) -> RestoreReport {
        self.undone = Some(self.period);
        self.hand_over(&BTreeSet::new())
    }

    /// Puts everything back, except that these threads stay bound to the CPUs that they are bound to: whoever plans next must
    /// see what the owners chose, and not take from them what they were promised there.
    pub fn hand_over(&mut self, bound: &BTreeSet<ThreadId>) -> RestoreReport {
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

/// Undoes what a run that did not end well left; fails while an agent acts on this host.
/// A journal that does not exist means there is nothing to undo.
pub fn restore(journal: &Path) -> Result<RestoreReport, ActError> {
    restore_with_lock(journal, &host_lock_path())
}

/// As [`restore`], with `lock` in place of the host's lock file: for tests.
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

/// The host's lock, or why it could not be used.
#[derive(Debug)]
struct HostLock {
    _lock: Option<Flock<File>>,
    missing: Option<String>,
}

impl HostLock {
    /// Takes the lock, making its folder if need be; an error only if someone else has it.
    fn take(path: &Path) -> Result<HostLock, ActError> {
        if let Some(folder) = path.parent() {
            // A failure shows when the file cannot be made.
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

/// Undoes what a journal says, and keeps a copy of a damaged one for inspection.
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
    // Without the first line the age of children is unknown: then none is taken for one.
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
