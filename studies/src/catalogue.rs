//! What `quell-studies` can measure by name: all that `quell` can, and what papers compare with.

use crate::sides::SIDES;
use quell::catalogue::{BUILT_IN, Catalogue, Scenarios};

/// What studies offer.
pub const CATALOGUE: Catalogue = Catalogue {
    program: "quell-studies",
    scenarios: &[BUILT_IN, OWN],
    sides: SIDES,
};

/// A scenario of these studies by its name, which is its place below `studies/scenarios`.
macro_rules! own {
    ($name:literal) => {
        own!($name, $name)
    };
    ($name:literal, $place:literal) => {
        (
            $name,
            include_str!(concat!("../scenarios/", $place, ".toml")),
        )
    };
}

/// The scenarios of papers that nothing but studies needs.
const OWN: &Scenarios = &[
    own!("akita/beside-hogs"),
    own!("akita/memcached"),
    own!("akita/rpc"),
    own!("akita/several"),
    own!("akita/types"),
    own!("akita/utilisation"),
    own!("edge-cache", "edge/edge-cache"),
    own!("edge-containers", "edge/edge-containers"),
    own!("edge-image", "edge/edge-image"),
    own!("edge-inference", "edge/edge-inference"),
    own!("edge-key-value", "edge/edge-key-value"),
    own!("edge-matrix", "edge/edge-matrix"),
    own!("edge-transactions", "edge/edge-transactions"),
    own!("groups/barriers"),
    own!("groups/dedicated"),
    own!("groups/group"),
    own!("groups/independent"),
    own!("groups/individual"),
    own!("groups/locks"),
    own!("groups/none"),
    own!("groups/stages"),
    own!("ufo/alone"),
    own!("ufo/batch"),
    own!("ufo/day"),
    own!("ufo/four"),
    own!("ufo/memcached"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use quell_scenario::Scenario;
    use std::path::Path;

    #[test]
    fn every_scenario_of_the_studies_is_right_and_says_what_it_is_for() {
        let list = CATALOGUE.list();
        for (name, text) in OWN {
            let own = name.rsplit('/').next().unwrap_or(name);
            let scenario = Scenario::parse(Path::new(name), text).unwrap();
            assert_eq!(scenario.name, own);
            assert!(!scenario.description.is_empty(), "{name}");
            assert!(list.contains(name) && !BUILT_IN.iter().any(|it| it.0 == *name));
        }
    }

    #[test]
    fn every_file_of_the_studies_scenarios_is_in_the_catalogue() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let mut files = 0;
        for part in std::fs::read_dir(folder).unwrap() {
            for file in std::fs::read_dir(part.unwrap().path()).unwrap() {
                let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
                assert!(OWN.iter().any(|(_, own)| *own == text));
                files += 1;
            }
        }
        assert_eq!(files, OWN.len());
    }
}
