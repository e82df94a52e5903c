//! Single values of a scenario, set from the command line: `--set tenant.svc.count=4`.
//!
//! An experiment that varies one value stays one file. A path names a value as the file does, and an element
//! of an array of tables by its `name` or its number, counted from 0. A value that the file itself may not
//! have is refused with the file's own error.

use quell_model::config::ConfigError;
use std::path::Path;
use std::str::FromStr;
use toml::{Table, Value};

/// A value and its place in a scenario: `PATH=VALUE`.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    path: Vec<String>,
    value: Value,
    text: String,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        let (path, written) = text
            .split_once('=')
            .ok_or("must be KEY=VALUE, such as tenant.svc.count=4")?;
        let path: Vec<String> = path.trim().split('.').map(str::to_string).collect();
        if path.iter().any(String::is_empty) {
            return Err("the key must be names with dots between, such as tenant.svc.count".into());
        }
        // Text needs no quotes: what is no TOML value is taken as text.
        let parsed = format!("v = {written}").parse::<Table>().ok();
        let value = parsed.and_then(|mut table| table.remove("v"));
        let value = value.unwrap_or_else(|| Value::String(written.trim().into()));
        Ok(Setting {
            path,
            value,
            text: text.to_string(),
        })
    }
}

impl Setting {
    /// The setting as the user wrote it.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// Values that a sweep gives one key: `PATH=V1,V2,V3`.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    key: String,
    settings: Vec<Setting>,
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Sweep, String> {
        let (key, values) = text
            .split_once('=')
            .ok_or("must be KEY=V1,V2, such as tenant.svc.count=1,2,4")?;
        // A comma within brackets or quotes belongs to a value.
        let (mut depth, mut quoted) = (0i32, false);
        let outside = |c: char| {
            match c {
                '"' => quoted = !quoted,
                '[' | '{' if !quoted => depth += 1,
                ']' | '}' if !quoted => depth -= 1,
                _ => {}
            }
            c == ',' && depth == 0 && !quoted
        };
        let key = key.trim().to_string();
        let settings = values.split(outside).map(|value| {
            if value.trim().is_empty() {
                return Err(format!("`{text}` lacks a value between commas"));
            }
            format!("{key}={}", value.trim()).parse::<Setting>()
        });
        let settings = settings.collect::<Result<Vec<_>, String>>()?;
        Ok(Sweep { key, settings })
    }
}

impl Sweep {
    /// The key that is varied.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Every combination of the values of several sweeps; the last sweep's value varies fastest.
    pub fn product(sweeps: &[Sweep]) -> Vec<Vec<Setting>> {
        sweeps.iter().fold(vec![Vec::new()], |points, sweep| {
            let with = |point: &Vec<Setting>| {
                let point = point.clone();
                let add = move |setting: &Setting| {
                    point.iter().cloned().chain([setting.clone()]).collect()
                };
                sweep.settings.iter().map(add).collect::<Vec<_>>()
            };
            points.iter().flat_map(with).collect()
        })
    }
}

/// A scenario's text with some values set; `file` is for messages. The result is not checked: a key that a
/// scenario does not have is added, and [`Scenario::parse`](crate::Scenario::parse) refuses it.
///
/// # Errors
/// The text is no TOML, a path leads through a value that is no table or to an element that an array does
/// not have, or the result cannot be written as TOML.
pub fn apply(file: &Path, text: &str, settings: &[Setting]) -> Result<String, ConfigError> {
    if settings.is_empty() {
        return Ok(text.to_string());
    }
    let table: Table = quell_model::config::parse(file, text)?;
    let mut root = Value::Table(table);
    for setting in settings {
        let error =
            |message: String| ConfigError::at(file, format!("--set {}", setting.text), message);
        let Some((last, folders)) = setting.path.split_last() else {
            continue;
        };
        let mut at = &mut root;
        for (depth, step) in folders.iter().enumerate() {
            at = descend(at, step).ok_or_else(|| {
                error(format!(
                    "there is no `{}`",
                    setting.path[..=depth].join(".")
                ))
            })?;
        }
        match at {
            Value::Table(table) => {
                table.insert(last.clone(), setting.value.clone());
            }
            other => match descend(other, last) {
                Some(value) => *value = setting.value.clone(),
                None => return Err(error(format!("there is no `{}`", setting.path.join(".")))),
            },
        }
    }
    toml::to_string(&root).map_err(|e| ConfigError::at(file, "--set", e.to_string()))
}

fn descend<'a>(value: &'a mut Value, step: &str) -> Option<&'a mut Value> {
    match value {
        // A table is added for any key: the check of the whole scenario refuses a wrong one.
        Value::Table(table) => {
            let entry = table.entry(step);
            Some(entry.or_insert_with(|| Value::Table(Table::new())))
        }
        Value::Array(array) => {
            let named = |value: &Value| value.get("name").and_then(Value::as_str) == Some(step);
            let index = array.iter().position(named).or_else(|| step.parse().ok())?;
            array.get_mut(index)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scenario;
    use quell_model::config::TenantClass;

    const TEXT: &str = r#"
name = "x"
seconds = 3
[[tenant]]
name = "svc"
count = 2
load = { rate = 10.0 }
[[tenant.thread]]
name = "worker"
program = ["request", { run_us = 100 }, "respond"]
[[tenant]]
name = "other"
class = "batch"
[[tenant.thread]]
name = "worker"
program = [{ run_us = 100 }]
"#;

    fn with(settings: &[&str]) -> Result<Scenario, ConfigError> {
        let settings: Vec<Setting> = settings.iter().map(|text| text.parse().unwrap()).collect();
        let file = Path::new("x.toml");
        Scenario::parse(file, &apply(file, TEXT, &settings)?)
    }

    #[test]
    fn values_are_set_by_name_and_by_number() {
        let scenario = with(&[
            "seconds=7",
            "tenant.svc.count=5",
            "tenant.svc.load.rate=2.5",
            "tenant.1.weight = 50",
            "description=a b",
            "tenant.svc.thread.0.program.1={ run_us = 300 }",
            "host.cpus=4",
        ])
        .unwrap();
        assert_eq!(
            (scenario.seconds, scenario.description.as_str()),
            (7.0, "a b")
        );
        assert_eq!(scenario.tenants[0].count, 5);
        assert_eq!(scenario.tenants[1].spec.weight().0, 50);
        assert_eq!(scenario.tenants[1].spec.class, TenantClass::Batch);
        assert_eq!(with(&[]).unwrap().tenants.len(), 2);
        let plain = with(&["seconds=3"]).unwrap();
        assert_eq!(
            plain,
            with(&[]).unwrap(),
            "setting what is there changes nothing"
        );
    }

    #[test]
    fn groups_and_cpus_are_set_like_the_rest() {
        let text = format!(
            "{TEXT}\n[[group]]\nname = \"low\"\n[[group]]\nname = \"high\"\n[[tenant]]\nname = \"c\"\n\
             class = \"batch\"\nkind = \"container\"\nwithin = \"low\"\n[[tenant.thread]]\nname = \"t\"\n\
             program = [{{ run_us = 1 }}]\n"
        );
        let settings = [
            "group.low.weight=50",
            "group.low.max.quota_ms=20",
            "tenant.c.thread.t.cpus=0-2,5",
            "tenant.svc.within=high",
        ];
        let settings: Vec<Setting> = settings.iter().map(|text| text.parse().unwrap()).collect();
        let file = Path::new("x.toml");
        let scenario = Scenario::parse(file, &apply(file, &text, &settings).unwrap()).unwrap();
        let low = &scenario.groups[0];
        assert_eq!((low.weight.0, low.max.unwrap().quota_us()), (50, 20_000));
        let cpus = scenario.tenants[2].threads[0].cpus.as_ref();
        assert_eq!(cpus.unwrap().to_string(), "0-2,5");
    }

    #[test]
    fn sweeps_give_every_combination() {
        let sweep = |text: &str| text.parse::<Sweep>();
        let sweeps = [
            sweep("tenant.svc.count=1,2").unwrap(),
            sweep("x = [1, 2], \"a,b\" ,{ c = 1, d = 2 }").unwrap(),
        ];
        assert_eq!(
            (sweeps[0].key(), sweeps[1].key()),
            ("tenant.svc.count", "x")
        );
        let points = Sweep::product(&sweeps);
        let texts: Vec<Vec<&str>> = (points.iter())
            .map(|point| point.iter().map(Setting::as_str).collect())
            .collect();
        assert_eq!(texts.len(), 6);
        assert_eq!(texts[0], ["tenant.svc.count=1", "x=[1, 2]"]);
        assert_eq!(texts[1], ["tenant.svc.count=1", "x=\"a,b\""]);
        assert_eq!(texts[5], ["tenant.svc.count=2", "x={ c = 1, d = 2 }"]);
        assert_eq!(Sweep::product(&[]), [Vec::new()]);
        for wrong in ["x", "x=", "x=1,,2", "=1"] {
            assert!(sweep(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_set_is_said() {
        let message = |setting: &str| with(&[setting]).unwrap_err().to_string();
        assert!(message("tenant.svd.count=2").contains("there is no `tenant.svd`"));
        assert!(message("tenant.7.count=2").contains("there is no `tenant.7`"));
        assert!(message("host.cpus.2=2").contains("host"));
        assert!(message("hots.cpus=2").contains("did you mean `host`"));
        assert!(message("tenant.svc.cuont=2").contains("did you mean `count`"));
        assert!(message("tenant.svc.count=0").contains("0 is outside 1 to 1024"));
        assert!("seconds".parse::<Setting>().is_err());
        assert!("a..b=1".parse::<Setting>().is_err());
    }
}
