//! What the tests of configurations share: what the schema of `quell.toml` says of a text.

use jsonschema::Validator;
use quell_model::config::schema;
use serde_json::Value;

/// What checks JSON by the schema of `quell.toml`.
pub fn validator() -> Validator {
    jsonschema::draft202012::new(schema().as_value()).unwrap()
}

/// TOML as JSON; `None` where the text is no TOML.
pub fn as_json(text: &str) -> Option<Value> {
    let value: toml::Value = toml::from_str(text).ok()?;
    // Numbers that JSON lacks, NaN and infinity, become null.
    Some(serde_json::to_value(value).unwrap())
}
