//! The reference for users says everything there is to say, and the shipped examples are right.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use quell_agent::{client::Client, parse, wire};
use quell_model::config::{
    AgentFile, AgentSettings, AgentTenant, AsymmetrySettings, CriticalitySettings, Objective,
};
use quell_model::{Effect, EffectInterval, Finding, Lever};
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap()
}

/// Every key of a value, tables within tables included.
fn keys(value: &impl Serialize) -> Vec<String> {
    fn walk(value: &Value, keys: &mut Vec<String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                keys.push(key.clone());
                walk(value, keys);
            }),
            Value::Array(items) => items.iter().for_each(|item| walk(item, keys)),
            _ => {}
        }
    }
    let mut all = Vec::new();
    walk(&serde_json::to_value(value).unwrap(), &mut all);
    all
}

#[test]
fn every_key_of_quell_toml_is_in_its_reference() {
    let mut tenant = AgentTenant::named("a");
    tenant.spec.objective = Some(Objective { p99_ms: 10.0 });
    let file = AgentFile {
        agent: AgentSettings::default(),
        asymmetry: AsymmetrySettings::default(),
        criticality: CriticalitySettings::default(),
        tenants: vec![tenant],
    };
    let keys = keys(&file);
    assert!(keys.len() > 30, "{keys:?}");
    let reference = read("docs/reference/configuration.md");
    for key in keys {
        let told = [format!("`{key}`"), format!("[{key}]"), format!(" {key} = ")];
        assert!(
            told.iter().any(|t| reference.contains(t)),
            "docs/reference/configuration.md does not tell of `{key}`"
        );
    }
}

#[test]
fn every_default_in_the_reference_is_the_default() {
    let reference = read("docs/reference/configuration.md");
    let defaults = [
        serde_json::to_value(AgentSettings::default()).unwrap(),
        serde_json::to_value(AsymmetrySettings::default()).unwrap(),
        serde_json::to_value(CriticalitySettings::default()).unwrap(),
    ];
    for (key, value) in defaults.iter().flat_map(|v| v.as_object().unwrap()) {
        let row = reference
            .lines()
            .find(|line| line.starts_with(&format!("| `{key}` |")))
            .unwrap();
        let told = row.split('`').nth(3).unwrap();
        let told: Value = serde_json::from_str(told).unwrap_or_else(|e| panic!("{row}: {e}"));
        let same = told == *value || told.as_f64().is_some_and(|t| Some(t) == value.as_f64());
        assert!(same, "{row}: the default is {value}");
    }
}

#[test]
fn the_examples_are_right() {
    parse(
        Path::new("packaging/quell.toml"),
        &read("packaging/quell.toml"),
    )
    .unwrap();
    let reference = read("docs/reference/configuration.md");
    let mut examples = 0;
    for example in reference.split("```toml\n").skip(1) {
        let example = example.split("```").next().unwrap();
        parse(Path::new("docs/reference/configuration.md"), example).unwrap();
        examples += 1;
    }
    assert!(examples > 0);
}

#[test]
fn every_field_of_the_api_is_in_its_reference() {
    let mut status: wire::Status = serde_json::from_str(STATUS).unwrap();
    let interval = EffectInterval {
        ratio: 0.8,
        low: 0.7,
        high: 0.9,
    };
    status.effects = Arc::new(vec![Effect {
        lever: Lever::Feedback,
        acts: true,
        finding: Finding::Helps,
        since_ns: 0,
        next_ns: 0,
        pairs: 1,
        void: 0,
        responses: Some(interval),
        tenants: vec![("a".into(), interval)],
    }]);
    let row = wire::MatrixRow {
        tenant: "a".into(),
        waits: Some(Default::default()),
        occasions_ns: Some(vec![]),
    };
    let part = wire::MatrixPart {
        length_ns: 0,
        rows: vec![row],
    };
    let matrix = wire::Matrix {
        source: status.source,
        window: part.clone(),
        total: part,
    };
    let explain: wire::Explain = serde_json::from_str(EXPLAIN).unwrap();
    let decisions = wire::Decisions {
        decisions: explain.decisions.clone(),
        ..Default::default()
    };
    let admission: wire::Admission = serde_json::from_str(ADMISSION).unwrap();
    let reference = read("docs/reference/api.md");
    let all = [
        keys(&admission),
        keys(&status),
        keys(&matrix),
        keys(&explain),
        keys(&decisions),
    ]
    .concat();
    assert!(all.len() > 80, "{all:?}");
    for key in all {
        assert!(
            reference.contains(&format!("`{key}`")),
            "docs/reference/api.md does not tell of `{key}`"
        );
    }
}

/// An answer with every field present, so that none is missed because it is absent.
const STATUS: &str = r#"{
    "version": "1", "pid": 1, "config": "q", "uptime_s": 1.0, "policy": [], "backend": "stock", "backend_reason": null, "source": "bpf",
    "fallback_reason": null, "acting": true, "not_acting_reason": null,
    "missing": [{"what": "a", "remedy": "b"}], "period_ms": 80, "periods": 1, "overruns": 0,
    "observe_errors": 0, "reloads": 0, "reload_error": null, "changes": 0,
    "last_period": {"observe_us": 1, "decide_us": 1, "act_us": 1},
    "agent": {"cpu_ns": 1, "cpu_percent": 1.0, "rss_bytes": 1}, "notes": [], "window_s": 10.0,
    "tenants": [{"name": "a", "class": "latency", "kind": "process", "weight": 100,
        "cgroup": null, "threads": 1, "managed": 1, "run_percent": 1.0, "cpu_share_percent": 1.0,
        "ready_percent": 1.0, "wait_p50_us": 1.0, "wait_p99_us": 1.0, "latency_min_us": 1,
        "latency_max_us": 1, "promise": {"state": "refused", "why": "w"}}]
}"#;

/// The same of `explain`, with a decision.
const ADMISSION: &str = r#"{
    "settings": {},
    "cpus": [{"cpu": 0, "servers": [{"tenant": "a", "vcpu": 0, "server": {"criticality": "high", "period_ns": 1,
        "budget_ns": 1, "pessimistic_ns": 1}}]}],
    "tenants": [{"tenant": "a", "promise": {"state": "awaited", "cpus": [0]}}]
}"#;

const EXPLAIN: &str = r#"{
    "tenant": "a", "seq": 1, "time_ns": 1, "period_ns": 1,
    "threads": [{"tid": 1, "name": "t", "role": "ordinary", "state": "ready", "run_ns": 1,
        "ready_ns": 1, "nice": 0, "slice_ns": null, "cpus": "0-1", "planned_weight": 1024000,
        "planned_latency_ns": 1, "planned_cpus": "0", "planned_server": 1}],
    "promise": {"state": "kept", "cpus": [0]},
    "decisions": [{"number": 0, "seq": 1, "time_ns": 1, "tenant": "a",
        "thread": {"tid": 1, "start_ticks": 2}, "name": "t", "rule": "adopted", "text": "why",
        "weight": 1, "latency_ns": 1, "cpus": "0"}]
}"#;

#[test]
fn the_reference_names_the_default_socket() {
    let client = Client::new(quell_agent::DEFAULT_SOCKET);
    assert!(read("docs/reference/api.md").contains(&client.socket().display().to_string()));
    assert!(read("docs/reference/configuration.md").contains(quell_agent::DEFAULT_CONFIG));
}

/// The names that follow where metrics are written, without prefix and suffix.
#[test]
fn every_metric_is_in_its_reference() {
    let code = read("crates/quell-agent/src/metrics.rs");
    let code = code.split("#[cfg(test)]").next().unwrap();
    let reference = read("docs/reference/metrics.md");
    let mut metrics = 0;
    for after in code.split("to,").skip(1) {
        let Some(name) = after.trim_start().strip_prefix('"') else {
            continue;
        };
        let name = name.split('"').next().unwrap();
        assert!(
            reference.contains(&format!("`quell_{name}")),
            "docs/reference/metrics.md does not tell of `quell_{name}`"
        );
        metrics += 1;
    }
    assert!(metrics > 20, "{metrics}");
}
