//! The JSON schemas of `quell.toml` and of the files in `quell.d`, for editors.
//!
//! The types of the configuration derive them: keys, descriptions and defaults are those that the parser has,
//! and ranges are the constants that its checks read. What a schema cannot say is left to `quell check`:
//! conditions between numbers, names that must differ, and what globs and regular expressions may be.

use super::agent::MoreTenants;
use super::table::keys;
use super::{AgentFile, Each, Selectors, TenantRule};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::{Value, json};
use std::ops::RangeInclusive;

/// The JSON schema (draft 2020-12) of `quell.toml`.
pub fn schema() -> Schema {
    of::<AgentFile>()
}

/// The JSON schema (draft 2020-12) of the files in `quell.d`.
pub fn drop_in_schema() -> Schema {
    of::<MoreTenants>()
}

fn of<T: JsonSchema>() -> Schema {
    // A schema of one piece is what editors follow best.
    let settings = SchemaSettings::draft2020_12().with(|it| it.inline_subschemas = true);
    let settings = settings.with_transform(RecursiveTransform(as_toml));
    settings.into_generator().into_root_schema_for::<T>()
}

/// Takes from a schema what TOML has no word for: null, the sizes of numbers, and the values of tables that
/// are not given.
fn as_toml(schema: &mut Schema) {
    schema.remove("format");
    let valueless = |value: &Value| match value {
        Value::Null | Value::Object(_) => true,
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    if schema.get("default").is_some_and(valueless) {
        schema.remove("default");
    }
    if let Some(Value::Array(types)) = schema.get("type") {
        if let [one, Value::String(null)] = types.as_slice() {
            if null == "null" {
                schema.insert("type".into(), one.clone());
            }
        }
    }
    if let Some(Value::Array(any)) = schema.get("anyOf") {
        if let [one, null] = any.as_slice() {
            if *null == json!({ "type": "null" }) {
                let one = one.clone();
                schema.remove("anyOf");
                add(schema, one);
            }
        }
    }
}

/// Adds what a schema does not say yet.
fn add(schema: &mut Schema, more: Value) {
    let schema = schema.ensure_object();
    if let Value::Object(more) = more {
        for (key, value) in more {
            schema.entry(key).or_insert(value);
        }
    }
}

/// Adds the range of a number.
pub(super) fn within<T: Serialize>(range: RangeInclusive<T>) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("minimum".into(), json!(range.start()));
        schema.insert("maximum".into(), json!(range.end()));
    }
}

/// Adds another name of a variant.
pub(super) fn or(alias: &'static str) -> impl FnMut(&mut Schema) {
    move |schema| {
        if let Some(name) = schema.remove("const") {
            schema.insert("enum".into(), json!([name, alias]));
        }
    }
}

/// Adds that one item may stand for a list of it alone.
pub(super) fn one_or_many_of(schema: &mut Schema) {
    schema.remove("type");
    if let Some(one) = schema.remove("items") {
        let list = json!({ "type": "array", "items": one });
        schema.insert("anyOf".into(), json!([one, list]));
    }
}

/// Adds what holds between the keys of a `[[tenant]]` table.
pub(super) fn of_tenants(schema: &mut Schema) {
    let selected = keys::<Selectors>().into_iter();
    let selected: Vec<Value> = selected.map(|key| json!({ "required": [key] })).collect();
    add(schema, json!({ "anyOf": selected }));
    of_promises(schema);
}

/// Adds what holds between the keys of a promise.
fn of_promises(schema: &mut Schema) {
    let more = json!({
        "dependentRequired": {
            "criticality": ["period_ms", "budget_ms"],
            "period_ms": ["criticality"],
            "budget_ms": ["criticality"],
        },
        "if": { "properties": { "criticality": { "const": "high" } }, "required": ["criticality"] },
        "then": { "required": ["pessimistic_budget_ms"] },
        "else": { "properties": { "pessimistic_budget_ms": false } },
    });
    add(schema, more);
}

/// Changes the keys of a tenant into those of a `[[tenants]]` table, and adds what holds between them.
pub(super) fn of_rules(schema: &mut Schema) {
    of_promises(schema);
    let known = keys::<TenantRule>();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.retain(|key, _| known.contains(&key.as_str()));
        // Not given: the source says it.
        if let Some(Value::Object(class)) = properties.get_mut("class") {
            class.remove("default");
        }
        let name = "The tenants' names: text, labels of the kind in braces (`{unit}`), and what the \
                    wildcards of `match` stand for (`{1}`). Not given: the kind's first label.";
        properties["name"] = json!({ "type": "string", "description": name });
    }
    schema.insert("required".into(), json!(["each"]));
    let by_kind = Each::ALL.map(|each| {
        let labels = each.labels();
        let text = "[A-Za-z0-9._/-]{0,64}";
        let part = format!(r"\{{(\+?0*[1-9][0-9]*|{})\}}", labels.join("|"));
        let required = match each {
            Each::Cgroup => &["match"][..],
            _ => &[],
        };
        json!({
            "if": { "properties": { "each": { "const": each.as_str() } } },
            "then": {
                "properties": {
                    "labels": { "propertyNames": { "enum": labels } },
                    "name": { "pattern": format!("^$|^{text}({part}{text})+$") },
                },
                "required": required,
            },
        })
    });
    schema.insert("allOf".into(), json!(by_kind));
}
