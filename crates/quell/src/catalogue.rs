//! What a program can measure, by the names that its command line takes: scenarios and sides. `quell` has the
//! product's; a program of studies adds its own.

use crate::error::InputError;
use crate::table;
use anyhow::Context;
use quell_bench::result::Substrate;
use quell_bench::side::{Side, Sides};
use quell_scenario::Scenario;
use std::fs;
use std::path::{Path, PathBuf};

/// Scenarios by name, each with its text.
pub type Scenarios = [(&'static str, &'static str)];

/// The repository's scenarios.
pub const BUILT_IN: &Scenarios = include!(concat!(env!("OUT_DIR"), "/scenarios.rs"));

/// What can be measured by name.
#[derive(Debug, Clone, Copy)]
pub struct Catalogue {
    /// The program that offers it.
    pub program: &'static str,
    /// Its scenarios, one table after the other.
    pub scenarios: &'static [&'static Scenarios],
    /// Its sides.
    pub sides: Sides,
}

/// What `quell` offers.
pub const PRODUCT: Catalogue = Catalogue {
    program: "quell",
    scenarios: &[BUILT_IN],
    sides: Sides::PRODUCT,
};

impl Catalogue {
    /// The sides that `--policy` names, if all of them can be measured there.
    ///
    /// # Errors
    /// A name is no side, there is none, or a side cannot be measured there.
    pub fn sides(&self, policy: &str, on: Substrate) -> anyhow::Result<Vec<Side>> {
        let sides = self.sides.parse_list(policy).context("`--policy`")?;
        self.sides.check(&sides, on).context("`--policy`")?;
        Ok(sides)
    }

    /// Every built-in scenario.
    fn all(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.scenarios.iter().copied().flatten().copied()
    }

    /// A table of the built-in scenarios.
    pub fn list(&self) -> String {
        let mut rows = table::new(["SCENARIO", ""], 2);
        for (name, text) in self.all() {
            let scenario = Scenario::parse(Path::new(name), text);
            let description = scenario.map(|it| it.description).unwrap_or_default();
            rows.add_row([name, description.as_str()]);
        }
        let program = self.program;
        format!(
            "{rows}\n\n`{program} bench NAME` measures one, `{program} bench FILE.toml` one of yours.\n"
        )
    }

    /// A scenario's text, by its file's path or by the name of a built-in one, and the file for messages.
    ///
    /// # Errors
    /// There is no built-in scenario of that name, and no file that can be read.
    pub fn scenario(&self, name: &str) -> anyhow::Result<(PathBuf, String)> {
        if let Some((_, text)) = self.all().find(|(known, _)| *known == name) {
            return Ok((PathBuf::from(format!("{name}.toml")), text.to_string()));
        }
        // What has no folder, or one of ours, is meant for a built-in one.
        let folder = |name: &str| name.rsplit_once('/').map(|(folder, _)| folder.to_string());
        let known_folder = self.all().any(|(known, _)| folder(known) == folder(name));
        let looks_like_file = !known_folder || name.ends_with(".toml");
        if !looks_like_file && !Path::new(name).is_file() {
            let names: Vec<&str> = self.all().map(|(name, _)| name).collect();
            let message = format!(
                "no built-in scenario `{name}`; there are: {}; a file is given by its path",
                names.join(", ")
            );
            return Err(InputError(message).into());
        }
        let text = fs::read_to_string(name)
            .map_err(|e| InputError(format!("{name}: the scenario cannot be read: {e}")))?;
        Ok((PathBuf::from(name), text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_every_scenario_with_what_it_is_for() {
        let text = PRODUCT.list();
        for (name, _) in BUILT_IN {
            let mut lines = text.lines();
            let line = lines.find(|line| line.split_whitespace().next() == Some(name));
            assert!(
                line.is_some_and(|line| line.len() > name.len() + 10),
                "{name}: {line:?}"
            );
        }
    }

    #[test]
    fn every_built_in_scenario_is_right() {
        for (name, _) in BUILT_IN {
            let (file, text) = PRODUCT.scenario(name).unwrap();
            let own = name.rsplit('/').next().unwrap_or(name);
            assert_eq!(Scenario::parse(&file, &text).unwrap().name, own);
        }
    }

    #[test]
    fn a_wrong_name_is_told_the_right_ones() {
        for name in ["nestd", "groups/nestd"] {
            let error = PRODUCT.scenario(name).unwrap_err().to_string();
            let told = format!("no built-in scenario `{name}`; there are: ");
            assert!(
                error.starts_with(&told) && error.contains(" groups/nested,"),
                "{error}"
            );
        }
        for file in ["nested.toml", "groups/nested.toml", "other/nested"] {
            let error = PRODUCT.scenario(file).unwrap_err().to_string();
            assert!(error.contains("cannot be read"), "{error}");
        }
    }
}
