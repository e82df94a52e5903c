//! Errors of observation, split by their origin: [`SelectorError`] is the user's configuration,
//! [`ObserveError::Bpf`] the kernel or missing privileges, the rest the host.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why a host cannot be observed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserveError {
    /// A tenant's selector is wrong.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// A file that every Linux host has cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file that cannot be read.
        path: PathBuf,
        /// The error of the read.
        source: io::Error,
    },
    /// A kernel file holds text that no known kernel writes.
    #[error("{}: {message}", path.display())]
    Malformed {
        /// The file that holds the text.
        path: PathBuf,
        /// The error in the text.
        message: String,
    },
    /// The BPF monitor cannot be used though it was asked for, or it failed while in use.
    #[error("the BPF monitor cannot be used: {reason}")]
    Bpf {
        /// Why it cannot be used or failed, and what it would need.
        reason: String,
    },
}

/// A selector or rule that is not a glob, regular expression, unit name or template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: `{}` {message}", value.escape_debug())]
pub struct SelectorError {
    /// The key in the configuration, such as `tenant[0].cgroup`.
    pub key: String,
    /// The value given in the configuration.
    pub value: String,
    /// The error in the value.
    pub message: String,
}

impl ObserveError {
    pub(crate) fn read(path: impl AsRef<Path>, source: io::Error) -> ObserveError {
        ObserveError::Read {
            path: path.as_ref().into(),
            source,
        }
    }
}
