//! `quell.toml` as users get it wrong: every mistake is named with file and key, and with what
//! would be right. What the parser takes, the schema for editors takes too, and the schema refuses what it
//! can tell.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use common::{as_json, validator};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;
use quell_agent::parse;
use std::cell::Cell;
use std::path::Path;

/// A right file that uses every table.
const RIGHT: &str = r#"
[agent]
policy = ["asymmetry"]
backend = "stock"
period_ms = 100

[asymmetry]
slices = true
weight_step_percent = 12.5
latency_min_us = 200
conflict_min = 4

[[tenant]]
name = "web-1.x_y"
kind = "process"
class = "latency"
weight = 300
pid = [1, 42]
unit = "nginx.service"
objective = { p99_ms = 10 }

[[tenant]]
name = "vms"
kind = "vm"
class = "batch"
vcpus = 4
libvirt = "web-*"
cgroup = "kubepods.slice/*/pod*"
exe = "qemu-system-*"
cmdline = "java .*-Dapp=web"
"#;

fn message(text: &str) -> String {
    parse(Path::new("dir/quell.toml"), text)
        .unwrap_err()
        .to_string()
}

#[test]
fn a_right_file_is_right() {
    let file = parse(Path::new("quell.toml"), RIGHT).unwrap();
    assert_eq!((file.tenants.len(), file.agent.period_ms), (2, 100));
    // All of it has defaults.
    parse(Path::new("quell.toml"), "").unwrap();
    for text in [RIGHT, ""] {
        validator().validate(&as_json(text).unwrap()).unwrap();
    }
}

#[test]
fn mistakes_are_named_with_file_key_and_remedy() {
    let tenant = |rest: &str| format!("[[tenant]]\nname = \"a\"\n{rest}\n");
    let cases = [
        ("[agent\n".to_string(), &["quell.toml:1", "]"][..]),
        ("[agnet]\n".to_string(), &["agnet", "did you mean `agent`"]),
        (
            "[agent]\nperiod = 80\n".to_string(),
            &["quell.toml:2", "agent", "did you mean `period_ms`"],
        ),
        (
            "[agent]\nperiod_ms = 5\n".to_string(),
            &["agent.period_ms", "5 is outside 10 to 10000"],
        ),
        (
            "[agent]\nperiod_ms = -80\n".to_string(),
            &["agent.period_ms", "-80"],
        ),
        (
            "[agent]\nperiod_ms = \"80\"\n".to_string(),
            &["agent.period_ms", "string"],
        ),
        (
            "[agent]\npolicy = [\"asymmetry\", \"asymmetry\"]\n".to_string(),
            &["agent.policy[1]", "earlier entry", "once"],
        ),
        (
            "[agent]\npolicy = [\"asymetry\"]\n".to_string(),
            &["agent.policy", "did you mean `asymmetry`"],
        ),
        (
            "[agent]\npolicy = \"asymmetry\"\n".to_string(),
            &["agent.policy", "sequence"],
        ),
        (
            "[agent]\nbackend = \"stok\"\n".to_string(),
            &["agent.backend", "did you mean `stock`"],
        ),
        (
            "[asymmetry]\nlatency_min_us = 0\n".to_string(),
            &["asymmetry.latency_min_us", "1 <= min"],
        ),
        (
            "[asymmetry]\nlatency_max_us = 50\n".to_string(),
            &["asymmetry.latency_min_us", "min <= max"],
        ),
        (
            "[asymmetry]\nlatency_initial_us = 5\n".to_string(),
            &["latency_initial_us", "100 to 100000"],
        ),
        (
            "[asymmetry]\nweight_step_percent = nan\n".to_string(),
            &["weight_step_percent", "0.1 to 100"],
        ),
        (
            "[asymmetry]\nconflict_ratio = 0.5\n".to_string(),
            &["asymmetry.conflict_ratio", "1 to 1000"],
        ),
        (
            "[[tenant]]\npid = [1]\n".to_string(),
            &["tenant[0]", "missing field `name`"],
        ),
        (
            "[[tenant]]\nname = \"a b\"\npid = [1]\n".to_string(),
            &["tenant[0].name", "letters, digits"],
        ),
        (
            "[[tenant]]\nname = \"\"\npid = [1]\n".to_string(),
            &["tenant[0].name", "1 to 64"],
        ),
        (
            tenant(""),
            &["tenant[0]", "at least one of `pid`, `cgroup`, `unit`"],
        ),
        (tenant("pid = [-1]"), &["tenant[0].pid", "-1"]),
        (
            tenant("pid = 0"),
            &["tenant[0].pid", "0 is outside 1 to 4194303"],
        ),
        (
            tenant("pid = [1, 4194304]"),
            &["tenant[0].pid", "4194304 is outside 1 to 4194303"],
        ),
        (
            tenant("pid = \"x\""),
            &["tenant[0].pid", "a process id such as 1234"],
        ),
        (
            tenant("pid = [1]\nweight = 0"),
            &["tenant[0].weight", "0 is outside 1 to 10000"],
        ),
        (
            tenant("pid = [1]\nweigth = 100"),
            &["tenant[0]", "did you mean `weight`"],
        ),
        (
            tenant("pid = [1]\nclass = \"latncy\""),
            &["tenant[0].class", "did you mean `latency`"],
        ),
        (
            tenant("pid = [1]\ncount = 3"),
            &["tenant[0].count", "for scenarios"],
        ),
        (
            tenant("pid = [1]\nwithin = \"shop\""),
            &["tenant[0].within", "for scenarios"],
        ),
        (
            tenant("pid = [1]\nkind = \"container\"\nmax = { quota_ms = 5 }"),
            &["tenant[0].max", "for scenarios"],
        ),
        (
            tenant("pid = [1]\nkind = \"vm\"\nvcpus = 2\nemulator_cpus = [0]"),
            &["tenant[0].emulator_cpus", "for scenarios"],
        ),
        (
            tenant("pid = [1]\nkind = \"vm\"\nvcpus = 2\nqueues = 2"),
            &["tenant[0].queues", "for scenarios"],
        ),
        (
            tenant("pid = [1]\ncpus = [0]"),
            &["tenant[0].cpus", "for scenarios"],
        ),
        (
            tenant("pid = [1]\nobjective = { p99_ms = 0 }"),
            &["tenant[0].objective.p99_ms", "positive"],
        ),
        (
            tenant("exe = \"[nginx\""),
            &["tenant[0].exe", "[nginx", "glob"],
        ),
        (
            tenant("cgroup = \"{a,b\""),
            &["tenant[0].cgroup", "{a,b", "glob"],
        ),
        (tenant("libvirt = \"\""), &["tenant[0].libvirt", "empty"]),
        (
            tenant("cmdline = \"java (\""),
            &["tenant[0].cmdline", "java (", "regular expression"],
        ),
        (
            tenant("unit = \"a/b\""),
            &["tenant[0].unit", "a/b", "unit name"],
        ),
        (
            tenant("pid = [1]") + &tenant("pid = [2]"),
            &["tenant[1].name", "earlier tenant"],
        ),
    ];
    let schema = validator();
    let mut untold = Vec::new();
    for (text, says) in cases {
        if as_json(&text).is_some_and(|it| schema.is_valid(&it)) {
            untold.push((says[0], says[1]));
        }
        let message = message(&text);
        assert!(message.starts_with("dir/quell.toml"), "{text}\n{message}");
        for part in says {
            assert!(
                message.contains(part),
                "{text}\nshould say `{part}`:\n{message}"
            );
        }
    }
    // What no schema can tell: conditions between values, and what globs, expressions and names of units are.
    let expected = [
        ("asymmetry.latency_min_us", "min <= max"),
        ("latency_initial_us", "100 to 100000"),
        ("tenant[0].exe", "[nginx"),
        ("tenant[0].cgroup", "{a,b"),
        ("tenant[0].libvirt", "empty"),
        ("tenant[0].cmdline", "java ("),
        ("tenant[0].unit", "a/b"),
        ("tenant[1].name", "earlier tenant"),
    ];
    assert_eq!(untold, expected);
}

#[test]
fn the_schema_refuses_wrong_promises_and_rules() {
    let schema = validator();
    let cases = [
        ("[[tenant]]\nname = \"a\"\npid = 1\n", PROMISES),
        ("[[tenants]]\n", RULES),
    ];
    for (table, (right, wrong)) in cases {
        for (lines, is_right) in right
            .iter()
            .map(|it| (it, true))
            .chain(wrong.iter().map(|it| (it, false)))
        {
            let text = format!("[agent]\npolicy = [\"criticality\"]\n{table}{lines}\n");
            let parsed = parse(Path::new("q"), &text);
            assert_eq!(parsed.is_ok(), is_right, "{text}{parsed:?}");
            assert_eq!(
                schema.is_valid(&as_json(&text).unwrap()),
                is_right,
                "{text}"
            );
        }
    }
}

/// Lines for a tenant with a promise: right ones, and wrong ones.
const PROMISES: (&[&str], &[&str]) = (
    &[
        "",
        "criticality = \"low\"\nperiod_ms = 10\nbudget_ms = 0.1",
        "criticality = \"high\"\nperiod_ms = 4000\nbudget_ms = 1\npessimistic_budget_ms = 4000",
    ],
    &[
        "period_ms = 10",
        "budget_ms = 1",
        "pessimistic_budget_ms = 1",
        "criticality = \"low\"\nperiod_ms = 10",
        "criticality = \"low\"\nbudget_ms = 1",
        "criticality = \"low\"\nperiod_ms = 10\nbudget_ms = 1\npessimistic_budget_ms = 2",
        "criticality = \"high\"\nperiod_ms = 10\nbudget_ms = 1",
        "criticality = \"low\"\nperiod_ms = nan\nbudget_ms = 1",
        "criticality = \"low\"\nperiod_ms = inf\nbudget_ms = 1",
    ],
);

/// The same for a rule.
const RULES: (&[&str], &[&str]) = (
    &[
        "each = \"unit\"",
        "each = \"unit\"\nname = \"\"",
        "each = \"unit\"\nname = \"a-{unit}/{user}\"",
        "each = \"unit\"\nmatch = \"*-*.service\"\nname = \"{1}{02}\"",
        "each = \"cgroup\"\nmatch = \"*\"",
        "each = \"pod\"\nlabels = { qos = \"burstable\", user = \"*\" }\nclass = \"batch\"\nweight = 1",
        "each = \"vm\"\ncriticality = \"low\"\nperiod_ms = 10\nbudget_ms = 1",
    ],
    &[
        "",
        "each = \"thing\"",
        "each = \"cgroup\"",
        "each = \"unit\"\nname = \"web\"",
        "each = \"unit\"\nname = \"a b{unit}\"",
        "each = \"unit\"\nname = \"{unit\"",
        "each = \"unit\"\nname = \"{0}\"",
        "each = \"unit\"\nname = \"{qos}\"",
        "each = \"unit\"\nlabels = { qos = \"*\" }",
        "each = \"unit\"\nlabels = \"*\"",
        "each = \"unit\"\nweight = 0",
        "each = \"unit\"\nkind = \"process\"",
        "each = \"unit\"\npid = 1",
        "each = \"vm\"\ncriticality = \"low\"\nperiod_ms = 10",
    ],
);

/// A key, and values of it.
type Values = (&'static str, &'static [&'static str]);

/// Values of each key of each table, most of them right.
const VALUES: [(&str, &[Values]); 5] = [
    (
        "[agent]",
        &[
            (
                "policy",
                &[
                    "[]",
                    "[\"latency\", \"share\", \"vm-pools\"]",
                    "[\"asymmetry\", \"promises\"]",
                    "[\"share\", \"share\"]",
                ],
            ),
            ("backend", &["\"auto\"", "\"sched_ext\"", "\"stock\""]),
            ("guard", &["\"on\"", "\"report\"", "\"off\"", "true"]),
            ("period_ms", &["10", "10000", "10_0", "0x50", "9", "80.0"]),
        ],
    ),
    (
        "[asymmetry]",
        &[
            ("slices", &["true", "false"]),
            ("weight_step_percent", &["0.1", "1e1", "100", "101"]),
            ("weight_floor_percent", &["1", "12.5", "+100.0", "nan"]),
            ("latency_min_us", &["1", "3000", "0"]),
            ("latency_max_us", &["3000", "10000000", "10000001"]),
            ("conflict_ratio", &["1", "1e3", "0.9"]),
            ("conflict_min", &["0", "9223372036854775807", "-1"]),
            ("placement_periods", &["1", "100000", "0"]),
        ],
    ),
    (
        "[criticality]",
        &[
            ("test", &["\"edf-vd\"", "\"rm-exact\"", "\"demand\""]),
            ("reserve_percent", &["1", "50.0", "0"]),
            ("overhead_us", &["0", "-0.0", "1000", "inf"]),
            ("temperature", &["0", "1000", "1001"]),
        ],
    ),
    (
        "[[tenant]]\nname = \"a-b.c_9\"\nexe = \"*\"",
        &[
            ("kind", &["\"process\"", "\"container\"", "\"vm\""]),
            ("class", &["\"latency\"", "\"batch\"", "\"best\""]),
            ("weight", &["1", "10000", "0"]),
            ("vcpus", &["1", "1024", "1025"]),
            ("objective", &["{ p99_ms = 1e-9 }", "{ p99_ms = 10 }", "{}"]),
            ("pid", &["1", "[]", "[1, 4194303]", "[[1]]"]),
            ("cgroup", &["'a\\\\x2d/**'", "\"\"\"a\"\"\""]),
            ("cmdline", &["\"a.*\"", "'(?i)x'"]),
            (
                "criticality",
                &[
                    "\"low\"\nperiod_ms = 1\nbudget_ms = 0.1",
                    "\"high\"\nperiod_ms = 4e3\nbudget_ms = 1\npessimistic_budget_ms = 1",
                ],
            ),
        ],
    ),
    (
        "[[tenants]]\neach = \"container\"",
        &[
            ("match", &["\"*\"", "\"a-{b,c}\""]),
            ("labels", &["{}", "{ user = \"*\", id = \"0*\" }"]),
            ("name", &["\"\"", "\"{name}\"", "\"a/{id}-{runtime}\""]),
            ("class", &["\"latency\"", "\"batch\""]),
            ("weight", &["1", "10000", "10001"]),
            ("vcpus", &["1", "1024"]),
            ("objective", &["{ p99_ms = 0.5 }"]),
        ],
    ),
];

/// A file of some of the tables, each with some of its keys.
fn generated() -> impl Strategy<Value = String> {
    let table = |(head, keys): (&'static str, &'static [Values])| {
        let line = |&(key, values): &Values| {
            let line = select(values).prop_map(move |value| format!("{key} = {value}\n"));
            proptest::option::weighted(0.3, line)
        };
        let lines: Vec<_> = keys.iter().map(line).collect();
        let table = lines.prop_map(move |lines| {
            let lines: String = lines.into_iter().flatten().collect();
            format!("{head}\n{lines}")
        });
        proptest::option::of(table)
    };
    let tables: Vec<_> = VALUES.into_iter().map(table).collect();
    tables.prop_map(|tables| tables.into_iter().flatten().collect())
}

#[test]
fn what_the_parser_takes_fits_the_schema() {
    let schema = validator();
    let taken = Cell::new(0);
    let config = ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let texts = prop_oneof![3 => generated(), 1 => mutated()];
    let run = TestRunner::new(config).run(&texts, |text| {
        if parse(Path::new("q"), &text).is_ok() {
            let json = as_json(&text).unwrap();
            let wrong = schema.validate(&json).err();
            prop_assert!(wrong.is_none(), "{}\n{:?}", text, wrong);
            taken.set(taken.get() + 1);
        }
        Ok(())
    });
    run.unwrap();
    assert!(taken.get() > 1000, "{}", taken.get());
}

/// A change to a right file: bytes cut, put in, or replaced, lines doubled or dropped.
fn mutated() -> impl Strategy<Value = String> {
    let length = RIGHT.len();
    let edit = (0..length, 0..20usize, "[ -~\n\u{e9}]{0,8}");
    let edits = proptest::collection::vec(edit, 1..4).prop_map(|edits| {
        let mut text = RIGHT.to_string();
        for (at, cut, put) in edits {
            let at = at.min(text.len());
            let end = (at + cut).min(text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(end) {
                text.replace_range(at..end, &put);
            }
        }
        text
    });
    let lines: Vec<&str> = RIGHT.lines().collect();
    let shuffled = proptest::sample::subsequence(lines.clone(), 0..lines.len())
        .prop_shuffle()
        .prop_map(|lines| lines.join("\n"));
    let values = "(-?[0-9]{1,20}|-?[0-9]\\.[0-9]e[0-9]{1,3}|\"[ -!#-\\[\\]-~]{0,70}\"|\\[\\]|true|nan|inf|\\{\\})";
    let value = (0..lines.len(), values).prop_map(move |(at, value)| {
        let mut lines: Vec<String> = lines.iter().map(|l| l.to_string()).collect();
        if let Some((key, _)) = lines[at].clone().split_once(" = ") {
            lines[at] = format!("{key} = {value}");
        }
        lines.join("\n")
    });
    prop_oneof![edits, shuffled, value]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_it_panic_and_every_refusal_says_where(text in mutated()) {
        if let Err(e) = parse(Path::new("dir/quell.toml"), &text) {
            let said = e.to_string();
            prop_assert!(said.starts_with("dir/quell.toml"), "{}", said);
            prop_assert!(!e.message.is_empty(), "{}", said);
            // Where: a key, or a line for what is no TOML at all.
            prop_assert!(!e.key.is_empty() || e.line.is_some(), "{}\n{}", said, text);
        }
    }

    #[test]
    fn nor_does_any_text_at_all(text in "\\PC{0,200}") {
        let _ = parse(Path::new("dir/quell.toml"), &text);
    }
}
