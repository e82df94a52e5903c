//! What can go wrong in the lab.

use crate::version::Version;
use std::io;
use std::path::{Path, PathBuf};

/// Why the lab cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Guests are x86-64 only.
    #[error("the lab's guests are x86-64 (amd64); this machine is {0}")]
    Architecture(String),
    /// A program of the machine's is not there.
    #[error(
        "`{program}` cannot be started ({source}); the lab needs it (Debian package: {package})"
    )]
    Tool {
        /// The program.
        program: String,
        /// The Debian package that has it.
        package: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The key that the Debian archive is verified with is not there.
    #[error(
        "{0}: not there; the lab verifies what it downloads with it: install the package debian-archive-keyring"
    )]
    NoKeyring(&'static str),
    /// apt could not fetch something.
    #[error("{what} failed{hint}:\n{output}")]
    Apt {
        /// What was being done.
        what: String,
        /// What the user can do about it; empty or starting with a space.
        hint: &'static str,
        /// The end of what apt said.
        output: String,
    },
    /// A published scheduler could not be built.
    #[error(
        "{name} could not be built; builds of published schedulers need these Debian packages: {packages}:\n{output}"
    )]
    Build {
        /// The scheduler.
        name: &'static str,
        /// What builds need.
        packages: &'static str,
        /// The end of what cargo said.
        output: String,
    },
    /// What a package should have held was not in it.
    #[error("{package} holds no {what}; the distribution may have changed its packages' layout")]
    Layout {
        /// The package.
        package: String,
        /// What is missing.
        what: &'static str,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The user named a kernel that there is not.
    #[error("`{0}` is no kernel of the lab; there are: {known}; another is given by its file's path (with a slash)",
        known = crate::known::names())]
    NoSuchKernel(String),
    /// A file is no kernel that can be booted.
    #[error("{path}: not an x86 Linux kernel (bzImage)", path = .0.display())]
    NotAKernel(PathBuf),
    /// The kernel cannot load sched_ext schedulers.
    #[error("kernel {release} was built without sched_ext; `--kernel sched_ext` has it")]
    NoSchedExt {
        /// Its release.
        release: String,
    },
    /// QEMU lacks what determinism needs.
    #[error(
        "{program}: QEMU {version} is too old: before 8.1 virtual time goes by in whole ticks; \
         unset QUELL_LAB_QEMU to let the lab fetch its own",
        program = program.display()
    )]
    QemuTooOld {
        /// The program.
        program: PathBuf,
        /// Its version.
        version: Version,
    },
    /// A program did not say its version, or something else about it was not understood.
    #[error("{program}: {problem}", program = program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// What was wrong.
        problem: String,
    },
    /// A file for the guest is not there or cannot be used.
    #[error("{path}: {problem}", path = path.display())]
    GuestFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The guest did not reach its first command.
    #[error("the guest did not start within {seconds} s{hint}; the end of its console:\n{console}")]
    NotBooted {
        /// The time limit.
        seconds: u64,
        /// What may be the reason.
        hint: &'static str,
        /// The last lines of its console.
        console: String,
    },
    /// The guest's kernel panicked.
    #[error("the guest's kernel panicked; the end of its console:\n{console}")]
    Panicked {
        /// The last lines of its console.
        console: String,
    },
    /// The guest ended before its command did.
    #[error(
        "the guest ended before its command did (QEMU: {status}); {said}the end of its console:\n{console}"
    )]
    Ended {
        /// QEMU's exit status.
        status: String,
        /// What QEMU said, or nothing.
        said: String,
        /// The last lines of the guest's console.
        console: String,
    },
    /// The command did not end in time.
    #[error(
        "the guest's command {} {seconds} s and was stopped; the end of its console:\n{console}",
        if *.silent { "said nothing for" } else { "did not end within" }
    )]
    TimedOut {
        /// Whether it is its silence that was too long.
        silent: bool,
        /// The time limit.
        seconds: u64,
        /// The last lines of its console.
        console: String,
    },
    /// What came back from the guest is not what it sent.
    #[error("files from the guest came back damaged: {0}")]
    Damaged(String),
    /// A booted guest could not be kept, or not started from what was kept.
    #[error("a snapshot of the booted guest: {0}")]
    Snapshot(String),
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
}

impl LabError {
    /// For `map_err` on what was done with a file.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> LabError + '_ {
        |source| LabError::Io {
            path: path.to_path_buf(),
            source,
        }
    }

    /// Whether the user's input is at fault, and not the run.
    pub fn is_users(&self) -> bool {
        matches!(
            self,
            LabError::NoSuchKernel(_)
                | LabError::NotAKernel(_)
                | LabError::NoSchedExt { .. }
                | LabError::GuestFile { .. }
                | LabError::QemuTooOld { .. }
        )
    }
}
