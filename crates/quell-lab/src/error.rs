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
    /// A program that the machine should have could not be started.
    #[error(
        "`{program}` cannot be started ({source}); the lab needs it (Debian package: {package})"
    )]
    Tool {
        /// The program.
        program: String,
        /// The Debian package that has the program.
        package: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The keyring that the Debian archive is verified with is not there.
    #[error(
        "{0}: not there; the lab verifies what it downloads with it: install the package debian-archive-keyring"
    )]
    NoKeyring(&'static str),
    /// A run of apt or dpkg failed.
    #[error("{what} failed{hint}:\n{output}")]
    Apt {
        /// The step that failed.
        what: String,
        /// What the user can do about it; empty or starting with a space.
        hint: &'static str,
        /// The end of the program's output.
        output: String,
    },
    /// A published scheduler could not be built.
    #[error(
        "{name} could not be built; builds of published schedulers need these Debian packages: {packages}:\n{output}"
    )]
    Build {
        /// The scheduler.
        name: &'static str,
        /// The Debian packages that builds need.
        packages: &'static str,
        /// The end of cargo's output.
        output: String,
    },
    /// A package lacks a file that it should hold.
    #[error("{package} holds no {what}; the distribution may have changed its packages' layout")]
    Layout {
        /// The package.
        package: String,
        /// The file that is missing.
        what: &'static str,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The user named a kernel that the lab does not know.
    #[error("`{0}` is no kernel of the lab; there are: {known}; another is given by its file's path (with a slash)",
        known = crate::known::names())]
    NoSuchKernel(String),
    /// A file is no kernel that can be booted.
    #[error("{path}: not an x86 Linux kernel (bzImage)", path = .0.display())]
    NotAKernel(PathBuf),
    /// The kernel cannot load sched_ext schedulers.
    #[error("kernel {release} was built without sched_ext; `--kernel sched_ext` has it")]
    NoSchedExt {
        /// The kernel's release.
        release: String,
    },
    /// QEMU is older than [`Version::LEAST`].
    #[error(
        "{program}: QEMU {version} is too old: before 8.1 virtual time goes by in whole ticks; \
         unset QUELL_LAB_QEMU to let the lab fetch its own",
        program = program.display()
    )]
    QemuTooOld {
        /// The program.
        program: PathBuf,
        /// The program's version.
        version: Version,
    },
    /// A program failed, or its output was not understood.
    #[error("{program}: {problem}", program = program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// What is wrong with the program.
        problem: String,
    },
    /// A file for the guest is not there or cannot be used.
    #[error("{path}: {problem}", path = path.display())]
    GuestFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with the file.
        problem: String,
    },
    /// The guest did not reach its first command.
    #[error(
        "the guest did not start within {seconds} s{}{hint}; the end of its console:\n{console}",
        if *.starts > 1 { format!(", started {starts} times") } else { String::new() }
    )]
    NotBooted {
        /// The limit of time, in seconds.
        seconds: u64,
        /// How often the guest was started.
        starts: u32,
        /// A possible reason; empty or starting with a space.
        hint: &'static str,
        /// The last lines of the guest's console.
        console: String,
    },
    /// The guest's kernel panicked.
    #[error("the guest's kernel panicked; the end of its console:\n{console}")]
    Panicked {
        /// The last lines of the guest's console.
        console: String,
    },
    /// The guest ended before its command did.
    #[error(
        "the guest ended before its command did (QEMU: {status}); {said}the end of its console:\n{console}"
    )]
    Ended {
        /// QEMU's exit status.
        status: String,
        /// QEMU's output, or nothing.
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
        /// Whether the limit is of the command's silence, not of all its time.
        silent: bool,
        /// The limit of time, in seconds.
        seconds: u64,
        /// The last lines of the guest's console.
        console: String,
    },
    /// The files that came back are not those that the guest sent.
    #[error("files from the guest came back damaged: {0}")]
    Damaged(String),
    /// A snapshot of a booted guest could not be taken, or not be started from.
    #[error("a snapshot of the booted guest: {0}")]
    Snapshot(String),
    /// The caller ended the run.
    #[error("interrupted")]
    Interrupted,
}

impl LabError {
    /// Makes an error of this file, for `map_err`.
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
