//! What can go wrong while observing, split by whose fault it is: [`SelectorError`] is the
//! user's configuration, [`ObserveError::Bpf`] the kernel or missing privileges, the rest the host.

use std::io;
use std::path::{Path, PathBuf};

/// Why a host cannot be observed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserveError {
    /// A tenant's selector is wrong.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// A file that every Linux host has cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A kernel file says something no known kernel writes.
    #[error("{}: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// The BPF monitor cannot be used though it was asked for, or it failed while in use.
    #[error("the BPF monitor cannot be used: {reason}")]
    Bpf {
        /// Why, and what would be needed.
        reason: String,
    },
}

/// A selector that is no glob, regular expression or unit name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tenant `{tenant}`: `{key}` = `{}`: {message}", value.escape_debug())]
pub struct SelectorError {
    /// The tenant's name.
    pub tenant: String,
    /// Where the tenant stands in the configuration, counted from 0.
    pub index: usize,
    /// The selector's key, such as `cgroup`.
    pub key: &'static str,
    /// What was given.
    pub value: String,
    /// What is wrong with it.
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
