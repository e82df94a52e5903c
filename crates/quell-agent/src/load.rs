//! From `quell.toml` to checked settings.

use crate::{AgentError, DEFAULT_CONFIG};
use quell_linux::observe::{ObserveError, Survey, check_selectors};
use quell_model::config::{AgentFile, AgentTenant, ConfigError, Mechanism, TenantRule};
use quell_model::{Reservation, TenantName};
use quell_policy::criticality::{Owed, conflict};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Reads `quell.toml`, and the files `*.toml` in the folder `quell.d` beside it, in the order of their names;
/// checks all of them, selectors included, without touching the host. Where there is no file at
/// [`DEFAULT_CONFIG`], [`AgentFile::observing`] holds, with its rules after those of the folder.
///
/// # Errors
/// When a file cannot be read, or is wrong: with file, key and what would be right.
pub fn load(path: &Path) -> Result<AgentFile, AgentError> {
    let mut rules = Vec::new();
    let mut file = match is_absent(path) {
        true => {
            let mut file = AgentFile::observing();
            rules = std::mem::take(&mut file.rules);
            file
        }
        false => parse(path, &read(path)?)?,
    };
    for more in drop_ins(path)? {
        let text = read(&more)?;
        let (tenants, rules) = (file.tenants.len(), file.rules.len());
        file.add(&more, &text)?;
        selectors(&more, &text, &file.tenants[tenants..], &file.rules[rules..])?;
    }
    file.rules.extend(rules);
    Ok(file)
}

fn read(path: &Path) -> Result<String, AgentError> {
    let text = std::fs::read(path).map_err(|source| AgentError::ReadConfig {
        path: path.into(),
        source,
    })?;
    let text = String::from_utf8(text)
        .map_err(|_| ConfigError::at(path, "", "is not UTF-8 text, as TOML must be"))?;
    Ok(text)
}

/// The files `*.toml` in the folder beside a configuration that has its name, with `.d` for `.toml`.
fn drop_ins(path: &Path) -> Result<Vec<PathBuf>, AgentError> {
    let folder = path.with_extension("d");
    let error = |source| AgentError::ReadConfig {
        path: folder.clone(),
        source,
    };
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(error(e)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let file = entry.map_err(error)?.path();
        // Editors keep files beside those that they write, with a dot before the name.
        let hidden = file
            .file_name()
            .is_some_and(|it| it.as_encoded_bytes().starts_with(b"."));
        if file.extension().is_some_and(|it| it == "toml") && !hidden {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a path is that of the configuration that nobody named, and there is none. A link to nowhere is a
/// mistake, and no absence.
pub fn is_absent(path: &Path) -> bool {
    let metadata = std::fs::symlink_metadata(path);
    path == Path::new(DEFAULT_CONFIG) && metadata.is_err_and(|it| it.kind() == ErrorKind::NotFound)
}

/// Checks the text of a `quell.toml`; `path` is only for messages.
///
/// # Errors
/// When the text is wrong: with file, key and what would be right.
pub fn parse(path: &Path, text: &str) -> Result<AgentFile, ConfigError> {
    let file = AgentFile::parse(path, text)?;
    selectors(path, text, &file.tenants, &file.rules)?;
    Ok(file)
}

/// Checks the selectors and rules of a file.
fn selectors(
    path: &Path,
    text: &str,
    tenants: &[AgentTenant],
    rules: &[TenantRule],
) -> Result<(), ConfigError> {
    check_selectors(tenants, rules).map_err(|e| {
        let message = format!("`{}` {}", e.value.escape_debug(), e.message);
        ConfigError::at(path, e.key, message).located(text)
    })
}

/// Checks a configuration that is to take the place of `before`, by which promises were made. Returns the
/// tenants that ask for a promise in it as well. `survey` looks which tenants its rules find now.
///
/// # Errors
/// When the configuration would break a promise: with file and key. When the host cannot be read.
pub(crate) fn keeps_promises(
    path: &Path,
    file: &AgentFile,
    before: &AgentFile,
    reservations: &[Reservation],
    survey: impl FnOnce(&AgentFile) -> Result<Survey, ObserveError>,
) -> Result<BTreeSet<TenantName>, AgentError> {
    if !file.agent.has(Mechanism::Criticality) {
        return Ok(BTreeSet::new());
    }
    let mut owed = Owed::by_tables(file);
    // To look at the host takes longer than a period may; tables alone are known without.
    let asks = file.rules.iter().any(|it| it.spec.criticality.is_some());
    if asks && !reservations.is_empty() {
        let found = survey(file)?.tenants.into_iter();
        owed.extend(found.filter_map(|it| {
            let key = format!("tenants[{}]", it.rule?);
            Some(Owed { key, spec: it.spec })
        }));
    }
    if let Some(conflict) = conflict(reservations, before, file, &owed) {
        return Err(ConfigError::at(path, conflict.key, conflict.message).into());
    }
    let asking = owed.iter().filter(|it| it.spec.criticality.is_some());
    Ok(asking.map(|it| it.spec.name.as_str().into()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const MAIN: &str = "[agent]\npolicy = []\n[[tenant]]\nname = \"web\"\nexe = \"nginx\"\n\
                        [[tenants]]\neach = \"unit\"\n";

    fn folder(drop_ins: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("quell.toml");
        fs::write(&path, MAIN).unwrap();
        fs::create_dir(dir.path().join("quell.d")).unwrap();
        for (name, text) in drop_ins {
            fs::write(dir.path().join("quell.d").join(name), text).unwrap();
        }
        (dir, path)
    }

    #[test]
    fn files_beside_the_configuration_add_tenants_in_the_order_of_their_names() {
        let (_dir, path) = folder(&[
            ("20-b.toml", "[[tenant]]\nname = \"b\"\nexe = \"b\"\n"),
            (
                "10-a.toml",
                "[[tenant]]\nname = \"a\"\nexe = \"a\"\n[[tenants]]\neach = \"pod\"\n",
            ),
            ("note.txt", "no TOML"),
            (".#10-a.toml", "no TOML"),
        ]);
        let file = load(&path).unwrap();
        let names: Vec<&str> = file
            .tenants
            .iter()
            .map(|it| it.spec.name.as_str())
            .collect();
        assert_eq!(names, ["web", "a", "b"]);
        let rules: Vec<&str> = file.rules.iter().map(|it| it.finds.each.as_str()).collect();
        assert_eq!(rules, ["unit", "pod"]);
    }

    #[test]
    fn a_mistake_names_the_file_that_it_is_in() {
        for (text, expected) in [
            (
                "[[tenant]]\nname = \"web\"\nexe = \"a\"\n",
                "10-a.toml:2: `tenant[0].name`: `web` is the name of",
            ),
            ("\n[agent]\n", "10-a.toml:2: `agent`: unknown field"),
            (
                "[[tenant]]\nname = \"a\"\nexe = \"a[\"\n",
                "10-a.toml:3: `tenant[0].exe`: `a[` is no glob",
            ),
            (
                "[[tenants]]\neach = \"unit\"\nmatch = \"\"\n",
                "10-a.toml:3: `tenants[0].match`: `` is empty",
            ),
            (
                "[[tenant]]\nname = \"a\"\npid = 1\ncriticality = \"low\"\nperiod_ms = 9\nbudget_ms = 1\n",
                "10-a.toml:4: `tenant[0].criticality`: needs `criticality` in agent.policy",
            ),
        ] {
            let (_dir, path) = folder(&[("10-a.toml", text)]);
            let error = load(&path).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
