//! From text to a checked value, with errors that name the file, the key and the remedy.

use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// An error in a file that the user wrote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {}{message}", file.display(), line.map(|l| format!(":{l}")).unwrap_or_default(),
    if key.is_empty() { String::new() } else { format!("`{key}`: ") })]
pub struct ConfigError {
    /// The file with the error.
    pub file: PathBuf,
    /// The line, counted from 1, where known.
    pub line: Option<usize>,
    /// The key, as `tenant[1].weight`; empty for the file as a whole.
    pub key: String,
    /// The error and its remedy.
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

    /// This error with the line of the key in the file's text, or of the nearest table that holds the
    /// key, and with the names of the tenant and thread that the key is in.
    pub fn located(mut self, text: &str) -> ConfigError {
        let Ok(table) = DeTable::parse(text) else {
            return self;
        };
        let mut names = Vec::new();
        let found = find(table.get_ref(), &self.key, &mut names);
        if self.line.is_none() {
            self.line = found.map(|span| line_of(text, span.start));
        }
        if !names.is_empty() && !self.key.ends_with(".name") {
            self.message = format!("{} ({})", self.message, names.join(", "));
        }
        self
    }
}

/// Checks that the value of a key is in its range.
///
/// # Errors
/// The value is outside, or NaN.
pub(super) fn check_range<T: PartialOrd + Display>(
    file: &Path,
    key: impl Into<String>,
    value: T,
    range: &RangeInclusive<T>,
) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    let message = format!("{value} is outside {} to {}", range.start(), range.end());
    Err(ConfigError::at(file, key, message))
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at.min(text.len())].matches('\n').count()
}

/// Finds a key such as `tenant[1].weight`, or the nearest table above it. `names` gets the names of
/// the tables in lists on the way.
fn find(table: &DeTable<'_>, key: &str, names: &mut Vec<String>) -> Option<Range<usize>> {
    let (head, rest) = key.split_once('.').unwrap_or((key, ""));
    let (name, index) = match head.split_once('[') {
        Some((name, index)) => (name, index.strip_suffix(']')?.parse::<usize>().ok()),
        None => (head, None),
    };
    let (at, mut value) = table.iter().find(|(it, _)| it.get_ref() == name)?;
    let mut span = at.span();
    if let (Some(index), DeValue::Array(list)) = (index, value.get_ref()) {
        value = list.get(index)?;
        span = value.span();
        let own = value
            .get_ref()
            .get("name")
            .and_then(|it| it.get_ref().as_str());
        if let (Some(own), true) = (own, ["tenant", "thread"].contains(&name)) {
            names.push(format!("{name} `{}`", own.escape_debug()));
        }
    }
    match value.get_ref() {
        DeValue::Table(inner) if !rest.is_empty() => find(inner, rest, names).or(Some(span)),
        _ => Some(span),
    }
}

/// Reads TOML text as `T`. `file` is only for messages. Values are checked by `T`'s own rules
/// (types, known keys); the caller checks the conditions that span keys.
///
/// # Errors
/// The text is no TOML or does not fit `T`; the error has the line.
pub fn parse<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T, ConfigError> {
    parse_explaining(file, text, |_| None)
}

/// Like [`parse`], for files with `[[tenant]]` tables: where a tenant has an unknown key that `foreign` knows
/// from another file, its answer is the message.
///
/// # Errors
/// The call fails as [`parse`] does.
pub fn parse_explaining<T: DeserializeOwned>(
    file: &Path,
    text: &str,
    foreign: impl Fn(&str) -> Option<&'static str>,
) -> Result<T, ConfigError> {
    let error = |e: &toml::de::Error, key: String| {
        let message = e.message().trim();
        let unknown = message.starts_with(UNKNOWN_FIELD);
        let explained = unknown.then(|| tenants_key(&key).and_then(&foreign));
        let error = ConfigError {
            file: file.into(),
            line: e.span().map(|span| line_of(text, span.start)),
            message: match explained.flatten() {
                Some(message) => message.to_string(),
                None => suggest(message),
            },
            key,
        };
        error.located(text)
    };
    let deserializer = toml::Deserializer::parse(text).map_err(|e| error(&e, String::new()))?;
    serde_path_to_error::deserialize(deserializer).map_err(|e| {
        let path = e.path().to_string();
        let key = if path == "." { String::new() } else { path };
        error(e.inner(), key)
    })
}

/// How serde's message about an unknown key begins.
const UNKNOWN_FIELD: &str = "unknown field";

/// `weight` of `tenant[1].weight`; `None` where the key is not one of a tenant's own.
fn tenants_key(key: &str) -> Option<&str> {
    let (tenant, key) = key.split_once('.')?;
    (tenant.starts_with("tenant[") && !key.contains(['.', '['])).then_some(key)
}

/// Adds the nearest known name to serde's "unknown field" and "unknown variant" messages.
fn suggest(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let kind = [UNKNOWN_FIELD, "unknown variant"]
        .into_iter()
        .find(|it| message.starts_with(it));
    let (Some(kind), Some(given)) = (kind, quoted.next()) else {
        return message.to_string();
    };
    let known: Vec<&str> = quoted.collect();
    let likely = match nearest(given, known.iter().copied()) {
        Some(known) => format!("; did you mean `{known}`?"),
        None => String::new(),
    };
    if known.is_empty() {
        return message.to_string();
    }
    let known: Vec<String> = known.iter().map(|it| format!("`{it}`")).collect();
    format!(
        "{kind} `{given}`, expected one of {}{likely}",
        known.join(", ")
    )
}

/// The known name most similar to the given one, if any is similar enough.
pub fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|known| (strsim::jaro_winkler(given, known), known))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AgentFile;

    const TEXT: &str = "[agent]\nperiod_ms = 1\n[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"b\"\nexe = \"x\"\n[[tenant.thread]]\nname = \"t\"\nnice = 30\n";

    #[test]
    fn an_error_says_where_its_key_stands() {
        for (key, line, message) in [
            ("agent.period_ms", Some(2), "wrong"),
            ("agent.guard", Some(1), "wrong"),
            ("tenant[1].exe", Some(7), "wrong (tenant `b`)"),
            ("tenant[1].weight", Some(5), "wrong (tenant `b`)"),
            ("tenant[1].name", Some(6), "wrong"),
            (
                "tenant[1].thread[0].nice",
                Some(10),
                "wrong (tenant `b`, thread `t`)",
            ),
            ("nothing", None, "wrong"),
            ("", None, "wrong"),
        ] {
            let error = ConfigError::at(Path::new("f"), key, "wrong").located(TEXT);
            let expected = (line, message);
            assert_eq!((error.line, error.message.as_str()), expected, "{key}");
        }
    }

    #[test]
    fn what_does_not_belong_there_is_not_suggested() {
        let message = "unknown field `cunt`, expected one of `name`, `count`, `class`";
        assert!(suggest(message).ends_with("did you mean `count`?"));
        let quell_toml = "[[tenant]]\nname = \"a\"\npid = 1\ncunt = 2\n";
        let error = AgentFile::parse(Path::new("q"), quell_toml).unwrap_err();
        assert!(
            error
                .message
                .starts_with("unknown field `cunt`, expected one of `name`, "),
            "{error}"
        );
        assert!(!error.message.contains("count"), "{error}");
        assert_eq!(suggest("other `x`"), "other `x`");
    }
}
