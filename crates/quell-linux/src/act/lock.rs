//! The lock of the host: one process at a time acts or undoes.

use super::error::ActError;
use super::journal;
use nix::fcntl::Flock;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The file whose lock (flock(2)) is held by the process that acts on this host. The environment variable
/// `QUELL_LOCK` names another file, for tests only: it takes the protection away.
pub const HOST_LOCK: &str = "/run/quell/act.lock";

/// The host's lock file, or the one that the environment names.
pub(super) fn host_lock_path() -> PathBuf {
    std::env::var_os("QUELL_LOCK").map_or_else(|| PathBuf::from(HOST_LOCK), PathBuf::from)
}

/// The host's lock, or the reason why it could not be used.
#[derive(Debug)]
pub(super) struct HostLock {
    _lock: Option<Flock<File>>,
    /// The reason why the lock is not held, if it is not.
    pub missing: Option<String>,
}

impl HostLock {
    /// Takes the lock, creating its folder if it does not exist. Where the file cannot be used the lock is
    /// not held, and `missing` says why.
    ///
    /// # Errors
    /// The call fails if another process has the lock ([`ActError::Locked`]).
    pub fn take(path: &Path) -> Result<HostLock, ActError> {
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
