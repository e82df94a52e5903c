//! From text to a checked value, with errors that name file, key and remedy.

use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// What is wrong with a file the user wrote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {}{message}", file.display(), line.map(|l| format!(":{l}")).unwrap_or_default(),
    if key.is_empty() { String::new() } else { format!("`{key}`: ") })]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1, where known.
    pub line: Option<usize>,
    /// The key, as `tenant[1].weight`; empty for the file as a whole.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl ConfigError {
    /// An error about one key.
    pub fn at(file: &Path, key: impl Into<String>, message: impl Into<String>) -> ConfigError {
        ConfigError {
            file: file.into(),
            line: None,
            key: key.into(),
            message: message.into(),
        }
    }
}

/// Reads TOML text as `T`. `file` is only for messages. Values are checked by `T`'s own rules
/// (types, known keys); what spans keys is the caller's to check.
pub fn parse<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T, ConfigError> {
    let error = |e: &toml::de::Error, key: String| ConfigError {
        file: file.into(),
        line: e
            .span()
            .map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count()),
        key,
        message: suggest(e.message().trim()),
    };
    let deserializer = toml::Deserializer::parse(text).map_err(|e| error(&e, String::new()))?;
    serde_path_to_error::deserialize(deserializer).map_err(|e| {
        let path = e.path().to_string();
        let key = if path == "." { String::new() } else { path };
        error(e.inner(), key)
    })
}

/// Adds the nearest known name to serde's "unknown field" and "unknown variant" messages.
fn suggest(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let unknown = message.starts_with("unknown field") || message.starts_with("unknown variant");
    let (true, Some(given)) = (unknown, quoted.next()) else {
        return message.to_string();
    };
    match nearest(given, quoted) {
        Some(known) => format!("{message}; did you mean `{known}`?"),
        None => message.to_string(),
    }
}

/// The known name most like the one given, if any is like it.
pub(super) fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|known| (strsim::jaro_winkler(given, known), known))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}
