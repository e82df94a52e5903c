//! The reference for users says everything there is to say, and the shipped examples are right.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use common::{as_json, validator};
use quell_agent::{client::Client, parse, wire};
use quell_model::config::{
    AgentFile, AgentSettings, AgentTenant, AsymmetrySettings, CriticalitySettings, Mechanism,
    Objective, Selectors, TenantSpec, drop_in_schema, schema, table,
};
use quell_model::{Effect, EffectInterval, Finding, Lever};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
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
        rules: Vec::new(),
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

/// A file with every key that has a number. A tenant's key is tried in the first tenant that has it.
const NUMBERS: &str = r#"
[agent]
policy = ["criticality"]

[[tenant]]
name = "low"
pid = 1
weight = 200
vcpus = 3
criticality = "low"
period_ms = 100.0
budget_ms = 0.1
objective = { p99_ms = 10.0 }

[[tenant]]
name = "high"
pid = 1
criticality = "high"
period_ms = 100.0
budget_ms = 1.0
pessimistic_budget_ms = 1.0
"#;

/// The ranges that the reference states, by table and key.
fn stated_ranges(reference: &str) -> BTreeMap<(String, String), String> {
    let mut ranges = BTreeMap::new();
    let (mut table, mut column) = ("", None);
    for line in reference.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            table = heading.trim_matches(['[', ']']);
        }
        if !line.starts_with('|') {
            column = None;
            continue;
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match column {
            None => column = cells.iter().position(|cell| *cell == "range"),
            Some(at) if !cells[at].is_empty() && !cells[at].starts_with('-') => {
                let key = cells[1].trim_matches('`');
                ranges.insert((table.to_string(), key.to_string()), cells[at].to_string());
            }
            Some(_) => {}
        }
    }
    ranges
}

/// The place of every number in a file, as in `/tenant/0/weight`.
fn numbers(value: &toml::Value, at: &str) -> Vec<String> {
    match value {
        toml::Value::Integer(_) | toml::Value::Float(_) => vec![at.to_string()],
        toml::Value::Table(table) => {
            let inner = |(key, value)| numbers(value, &format!("{at}/{key}"));
            table.iter().flat_map(inner).collect()
        }
        toml::Value::Array(list) => {
            let inner = |(index, value)| numbers(value, &format!("{at}/{index}"));
            list.iter().enumerate().flat_map(inner).collect()
        }
        _ => Vec::new(),
    }
}

/// The value at a place.
fn at<'a>(file: &'a mut toml::Value, place: &str) -> &'a mut toml::Value {
    let steps = place.split('/').skip(1);
    steps.fold(file, |value, step| match step.parse::<usize>() {
        Ok(index) => &mut value[index],
        Err(_) => &mut value[step],
    })
}

/// A file with this number at a place.
fn with(mut file: toml::Value, place: &str, number: f64) -> String {
    let value = at(&mut file, place);
    *value = match value {
        toml::Value::Integer(_) => toml::Value::Integer(number as i64),
        _ => toml::Value::Float(number),
    };
    toml::to_string(&file).unwrap()
}

/// A range of numbers.
struct Range {
    least: f64,
    /// Whether the least number is in the range.
    closed: bool,
    greatest: Option<f64>,
}

impl Range {
    /// The range that a text such as `1 to 10`, `from 1` or `above 0` states for the number at a place. An
    /// end is a number, or the name of a key beside that place.
    fn stated(text: &str, file: &toml::Value, place: &str) -> Range {
        let (beside, _) = place.rsplit_once('/').unwrap();
        let end = |end: &str| match end.strip_prefix('`') {
            Some(key) => {
                let other = format!("{beside}/{}", key.trim_end_matches('`'));
                let other = at(&mut file.clone(), &other).clone();
                let whole = other.as_integer().map(|it| it as f64);
                whole.or(other.as_float()).unwrap()
            }
            None => end.parse().unwrap(),
        };
        let (least, greatest) = match text.split_once(" to ") {
            Some((least, greatest)) => (least, Some(end(greatest))),
            None => (text, None),
        };
        let above = least.strip_prefix("above ");
        Range {
            least: end(above.unwrap_or(least.trim_start_matches("from "))),
            closed: above.is_none(),
            greatest,
        }
    }
}

#[test]
fn every_range_in_the_reference_is_the_range() {
    let file = parse(Path::new("q"), NUMBERS).unwrap();
    let file = toml::Value::try_from(&file).unwrap();
    for key in table::keys::<(TenantSpec, Selectors)>() {
        let tenants = file["tenant"].as_array().unwrap();
        let text = ["cgroup", "unit", "exe", "cmdline", "libvirt"].contains(&key);
        let given = tenants.iter().any(|tenant| tenant.get(key).is_some());
        assert!(text || given, "the tenants here do not have `{key}`");
    }
    let mut untried = stated_ranges(&read("docs/reference/configuration.md"));
    let mut tried = BTreeSet::new();
    let schema = validator();
    for place in numbers(&file, "") {
        let mut steps = place.split('/').skip(1);
        let table = steps.next().unwrap().to_string();
        let key = steps.find(|step| step.parse::<usize>().is_err()).unwrap();
        let key = (table, key.to_string());
        if !tried.insert(key.clone()) {
            continue;
        }
        let stated = untried.remove(&key);
        let stated = stated.unwrap_or_else(|| panic!("the reference states no range of {key:?}"));
        let range = Range::stated(&stated, &file, &place);
        let step = match at(&mut file.clone(), &place) {
            toml::Value::Integer(_) => 1.0,
            _ => 0.001,
        };
        let mut expected = vec![
            (range.least - step, false),
            (range.least, range.closed),
            (range.least + step, true),
        ];
        if let Some(greatest) = range.greatest {
            expected.extend([(greatest, true), (greatest + step, false)]);
        }
        for (number, right) in expected {
            let text = with(file.clone(), &place, number);
            let is_right = parse(Path::new("q"), &text).is_ok();
            assert_eq!(is_right, right, "{place} is {stated}: {number}");
            // A schema cannot compare keys.
            let fits = schema.is_valid(&as_json(&text).unwrap());
            let told = right || !stated.contains('`');
            assert!(!told || fits == right, "{place} is {stated}: {number}");
        }
    }
    assert!(
        untried.is_empty(),
        "no number has these ranges: {untried:?}"
    );
    assert!(tried.len() > 20, "{tried:?}");
}

#[test]
fn the_examples_are_right() {
    let schema = validator();
    let mut pages = vec![repository("docs/reference/configuration.md")];
    for page in std::fs::read_dir(repository("docs/guide")).unwrap() {
        pages.push(page.unwrap().path());
    }
    let mut examples = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for example in text.split("```toml\n").skip(1) {
            let example = example.split("```").next().unwrap();
            parse(&page, example).unwrap();
            if let Err(wrong) = schema.validate(&as_json(example).unwrap()) {
                panic!("{}: {}: {wrong}", page.display(), wrong.instance_path());
            }
            examples += 1;
        }
    }
    assert!(examples > 6, "{examples}");
}

/// The shipped file with each setting that is commented out. A blank after the `#` is prose.
fn with_all_settings() -> String {
    let mut text = String::new();
    for line in read("packaging/quell.toml").lines() {
        let setting = line.strip_prefix('#');
        let setting = setting.filter(|it| !it.is_empty() && !it.starts_with([' ', ':']));
        // The only key that the file has both ways.
        if line != "policy = []" {
            text += &format!("{}\n", setting.unwrap_or(line));
        }
    }
    text
}

#[test]
fn the_shipped_file_observes_and_shows_the_defaults() {
    let path = Path::new("packaging/quell.toml");
    let text = read("packaging/quell.toml");
    assert_eq!(parse(path, &text).unwrap(), AgentFile::observing());
    let place = "#:schema /usr/share/quell/quell.schema.json\n";
    assert!(text.starts_with(place));
    let all = with_all_settings();
    let file = parse(path, &all).unwrap();
    let agent = AgentSettings {
        mechanisms: Mechanism::ALL.to_vec(),
        ..AgentSettings::default()
    };
    assert_eq!(file.agent, agent);
    assert_eq!(file.asymmetry, AsymmetrySettings::default());
    assert_eq!(file.criticality, CriticalitySettings::default());
    for text in [text, all] {
        validator().validate(&as_json(&text).unwrap()).unwrap();
    }
}

/// The names in the parser's message about one that it does not know.
fn expected_by_parser(text: &str) -> BTreeSet<String> {
    let message = parse(Path::new("q"), text).unwrap_err().message;
    assert!(message.starts_with("unknown "), "{text}: {message}");
    let names = message.split('`').skip(1).step_by(2).skip(1);
    names.map(str::to_string).collect()
}

#[test]
fn parser_schema_and_shipped_file_have_the_same_keys() {
    let schema = schema().to_value();
    let all: toml::Value = toml::from_str(&with_all_settings()).unwrap();
    let mut keys = 0;
    for (table, text, place) in [
        ("", "?", ""),
        ("agent", "[agent]\n?", "/properties/agent"),
        ("asymmetry", "[asymmetry]\n?", "/properties/asymmetry"),
        ("criticality", "[criticality]\n?", "/properties/criticality"),
        ("tenant", "[[tenant]]\n?", "/properties/tenant/items"),
        ("tenants", "[[tenants]]\n?", "/properties/tenants/items"),
    ] {
        let known = expected_by_parser(&text.replace('?', "unknown = 1"));
        let within = schema.pointer(place).unwrap();
        assert_eq!(within["additionalProperties"], false, "{table}");
        let within = within["properties"].as_object().unwrap();
        assert_eq!(
            BTreeSet::from_iter(within.keys().cloned()),
            known,
            "{table}"
        );
        let shown = match table {
            "" => vec![&all],
            _ => match &all[table] {
                toml::Value::Array(tables) => tables.iter().collect(),
                table => vec![table],
            },
        };
        let shown = shown
            .into_iter()
            .flat_map(|it| it.as_table().unwrap().keys());
        assert_eq!(shown.cloned().collect::<BTreeSet<_>>(), known, "{table}");
        for (key, value) in within {
            let told = value["description"]
                .as_str()
                .is_some_and(|it| !it.is_empty());
            assert!(told, "{table}.{key} has no description");
        }
        keys += known.len();
    }
    assert!(keys > 40, "{keys}");
    // Files in quell.d have the same tables.
    let drop_in = drop_in_schema().to_value();
    for tables in ["tenant", "tenants"] {
        let items = format!("/properties/{tables}/items");
        assert_eq!(drop_in.pointer(&items), schema.pointer(&items));
    }
}

#[test]
fn parser_and_schema_have_the_same_words() {
    let schema = schema().to_value();
    for (text, place) in [
        ("[agent]\npolicy = [?]", "agent/properties/policy/items"),
        ("[agent]\nbackend = ?", "agent/properties/backend"),
        ("[agent]\nguard = ?", "agent/properties/guard"),
        ("[criticality]\ntest = ?", "criticality/properties/test"),
        ("[[tenant]]\nkind = ?", "tenant/items/properties/kind"),
        ("[[tenant]]\nclass = ?", "tenant/items/properties/class"),
        (
            "[[tenant]]\ncriticality = ?",
            "tenant/items/properties/criticality",
        ),
        ("[[tenants]]\neach = ?", "tenants/items/properties/each"),
        ("[[tenants]]\nclass = ?", "tenants/items/properties/class"),
    ] {
        let words = schema
            .pointer(&format!("/properties/{place}/oneOf"))
            .unwrap();
        let mut told = BTreeSet::new();
        for word in words.as_array().unwrap() {
            let names = word.get("enum").and_then(Value::as_array);
            let names = names
                .cloned()
                .unwrap_or_else(|| vec![word["const"].clone()]);
            told.extend(names.iter().map(|it| it.as_str().unwrap().to_string()));
        }
        let known = expected_by_parser(&text.replace('?', "\"unknown\""));
        assert_eq!(told, known, "{place}");
    }
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

/// Every metric is in the reference, by its name where it is written, without prefix and suffix. A test in
/// `metrics.rs` finds the metrics that the reference lists and the agent lacks; it sees only metrics of which
/// its agent has a figure.
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
        let suffixes = ["", "_total", "_seconds", "_seconds_total", "_bytes"];
        let names = suffixes.map(|suffix| format!("`quell_{name}{suffix}`"));
        assert!(
            names.iter().any(|name| reference.contains(name)),
            "docs/reference/metrics.md does not tell of `quell_{name}`"
        );
        metrics += 1;
    }
    assert!(metrics > 20, "{metrics}");
}
