//! From `quell.toml` to checked settings.

use crate::{AgentError, DEFAULT_CONFIG};
use quell_linux::observe::check_selectors;
use quell_model::Reservation;
use quell_model::config::{AgentFile, ConfigError};
use quell_policy::criticality::conflict;
use std::io::ErrorKind;
use std::path::Path;

/// Reads `quell.toml` and checks all of it, selectors included, without touching the host. Where there is no
/// file at [`DEFAULT_CONFIG`], [`AgentFile::observing`] holds.
///
/// # Errors
/// When the file cannot be read, or is wrong: with file, key and what would be right.
pub fn load(path: &Path) -> Result<AgentFile, AgentError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if is_default(path) && error.kind() == ErrorKind::NotFound => {
            return Ok(AgentFile::observing());
        }
        Err(source) => {
            return Err(AgentError::ReadConfig {
                path: path.into(),
                source,
            });
        }
    };
    let text = String::from_utf8(text)
        .map_err(|_| ConfigError::at(path, "", "is not UTF-8 text, as TOML must be"))?;
    Ok(parse(path, &text)?)
}

/// Whether a path is that of the configuration that nobody named.
pub fn is_default(path: &Path) -> bool {
    path == Path::new(DEFAULT_CONFIG)
}

/// Checks the text of a `quell.toml`; `path` is only for messages.
///
/// # Errors
/// When the text is wrong: with file, key and what would be right.
pub fn parse(path: &Path, text: &str) -> Result<AgentFile, ConfigError> {
    let file = AgentFile::parse(path, text)?;
    check_selectors(&file.tenants, &file.rules).map_err(|e| {
        let message = format!("`{}` {}", e.value.escape_debug(), e.message);
        ConfigError::at(path, e.key, message).located(text)
    })?;
    Ok(file)
}

/// Checks a configuration that is to take the place of `before`, by which the promises `given` were made.
///
/// # Errors
/// When the configuration would break a promise: with file and key.
pub(crate) fn keeps_promises(
    path: &Path,
    file: &AgentFile,
    before: &AgentFile,
    reservations: &[Reservation],
) -> Result<(), ConfigError> {
    match conflict(reservations, before, file) {
        Some(conflict) => Err(ConfigError::at(path, conflict.key, conflict.message)),
        None => Ok(()),
    }
}
