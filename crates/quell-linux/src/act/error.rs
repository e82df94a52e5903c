//! The reasons why acting or undoing is not possible at all.

use std::io;
use std::path::PathBuf;

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
