//! Tests of groups, limits and CPUs in scenarios, valid and invalid.

use super::*;
use std::path::Path;

/// A file with every feature: nested groups, a group of processes, containers and a VM in groups,
/// limits, CPUs.
const GOOD: &str = r#"
name = "groups"
[host]
cpus = 4
[[group]]
name = "inner"
within = "outer"
[[group]]
name = "outer"
weight = 300
max = { quota_ms = 20, period_ms = 50.0, burst_ms = 5.5 }
[[tenant]]
name = "a"
count = 2
class = "batch"
within = "inner"
cpus = "0-1,3"
[[tenant.thread]]
name = "one"
program = [{ run_us = 1000 }]
[[tenant.thread]]
name = "two"
count = 2
cpus = [0, 2]
program = [{ run_us = 1000 }]
[[tenant]]
name = "b"
kind = "container"
class = "batch"
within = "outer"
max = { quota_ms = 30 }
[[tenant.thread]]
name = "one"
program = [{ run_us = 1000 }]
[[tenant]]
name = "v"
kind = "vm"
vcpus = 2
class = "batch"
cpus = [1]
[[tenant.thread]]
name = "one"
program = [{ run_us = 1000 }]
"#;

fn parse(text: &str) -> Result<Scenario, ConfigError> {
    Scenario::parse(Path::new("g.toml"), text)
}

#[test]
fn a_good_file_is_read_as_it_says() {
    let scenario = parse(GOOD).unwrap();
    let [inner, outer] = &scenario.groups[..] else {
        panic!("{:?}", scenario.groups);
    };
    assert_eq!(
        (inner.weight, inner.within.as_deref(), inner.max),
        (TenantWeight(100), Some("outer"), None)
    );
    assert_eq!((outer.weight, &outer.within), (TenantWeight(300), &None));
    let max = outer.max.unwrap();
    assert_eq!(
        (max.quota_us(), max.period_us(), max.burst_us()),
        (20_000, 50_000, 5_500)
    );
    let [a, b, v] = &scenario.tenants[..] else {
        panic!("{} tenants", scenario.tenants.len());
    };
    let text = |cpus: &Option<quell_model::CpuSet>| cpus.as_ref().map(ToString::to_string);
    assert_eq!(text(&a.cpus).as_deref(), Some("0-1,3"));
    assert_eq!(a.threads[0].cpus, None);
    assert_eq!(text(&a.threads[1].cpus).as_deref(), Some("0,2"));
    assert_eq!(
        b.max.map(|it| (it.period_us(), it.burst_us())),
        Some((100_000, 0))
    );
    assert_eq!(text(&v.cpus).as_deref(), Some("1"));
    // Each of several instances is in the same group.
    let within: Vec<_> = scenario
        .instances()
        .iter()
        .map(|it| it.table.within.clone())
        .collect();
    let in_group = |name: &str| Some(name.to_string());
    assert_eq!(
        within,
        [
            in_group("inner"),
            in_group("inner"),
            in_group("outer"),
            None
        ]
    );
    // Written out and read again the scenario is equal, in TOML and in the player's JSON.
    let again = parse(&toml::to_string(&scenario).unwrap()).unwrap();
    assert_eq!(
        (again.groups, again.tenants),
        (scenario.groups, scenario.tenants)
    );
}

#[test]
fn cgroups_are_made_from_the_root_downwards() {
    let cgroups = parse(GOOD).unwrap().cgroups();
    let all = cgroups.all.iter();
    let all: Vec<_> = all
        .map(|it| (it.name.as_str(), it.parent, it.weight.0, it.max.is_some()))
        .collect();
    assert_eq!(
        all,
        [
            ("outer", None, 300, true),
            ("inner", Some(0), 100, false),
            ("b", Some(0), 100, true),
            ("v", None, 100, false),
        ]
    );
    // Two processes in one group, a container, a VM.
    assert_eq!(cgroups.of, [Some(1), Some(1), Some(2), Some(3)]);
    // A VM without a cgroup of its own is in the cgroup of its group, here none.
    let without = GOOD.replace("vcpus = 2", "vcpus = 2\nown_cgroup = false");
    let cgroups = parse(&without).unwrap().cgroups();
    assert_eq!(cgroups.all.len(), 3);
    assert_eq!(cgroups.of, [Some(1), Some(1), Some(2), None]);
}

/// Replacements of one piece of the good file, the key that the error is at, and a part of its message.
const BAD: &[(&str, &str, &str, &str)] = &[
    (
        "weight = 300",
        "wieght = 300",
        "group[1].wieght",
        "did you mean `weight`?",
    ),
    (
        "weight = 300",
        "weight = 0",
        "group[1].weight",
        "outside 1 to 10000",
    ),
    (
        "name = \"inner\"",
        "name = \"in/ner\"",
        "group[0].name",
        "must be 1 to 64 letters",
    ),
    (
        "name = \"inner\"",
        "name = \"outer\"",
        "group[1].name",
        "also the name of group[0]",
    ),
    (
        "name = \"inner\"",
        "name = \"a-1\"",
        "tenant[0].within",
        "there is no group `inner`",
    ),
    (
        "name = \"b\"",
        "name = \"outer\"",
        "group[1].name",
        "also a name of tenant[1]",
    ),
    (
        "within = \"outer\"",
        "within = \"outre\"",
        "group[0].within",
        "did you mean `outer`?",
    ),
    (
        "within = \"outer\"",
        "within = \"x\"",
        "group[0].within",
        "there are: inner, outer",
    ),
    (
        "within = \"inner\"",
        "within = \"iner\"",
        "tenant[0].within",
        "did you mean `inner`?",
    ),
    (
        "within = \"outer\"",
        "within = \"inner\"",
        "group[0].within",
        "in itself: inner in inner",
    ),
    (
        "weight = 300",
        "within = \"inner\"",
        "group[0].within",
        "in itself: inner in outer in inner",
    ),
    // Limits of CPU time.
    (
        "quota_ms = 20",
        "quota_ms = 0.5",
        "group[1].max.quota_ms",
        "outside 1 to 1000000",
    ),
    (
        "quota_ms = 20",
        "quota_ms = nan",
        "group[1].max.quota_ms",
        "outside 1 to 1000000",
    ),
    (
        "quota_ms = 20,",
        "",
        "group[1].max",
        "missing field `quota_ms`",
    ),
    (
        "period_ms = 50.0",
        "period_ms = 1001",
        "group[1].max.period_ms",
        "outside 1 to 1000",
    ),
    (
        "period_ms = 50.0",
        "period = 50.0",
        "group[1].max.period",
        "did you mean `period_ms`?",
    ),
    (
        "burst_ms = 5.5",
        "burst_ms = 20.5",
        "group[1].max.burst_ms",
        "outside 0 to quota_ms (20)",
    ),
    (
        "quota_ms = 30",
        "quota_ms = 0",
        "tenant[1].max.quota_ms",
        "outside 1 to 1000000",
    ),
    (
        "kind = \"container\"",
        "",
        "tenant[1].max",
        "no cgroup of its own",
    ),
    (
        "kind = \"container\"",
        "own_cgroup = false\nkind = \"container\"",
        "tenant[1].own_cgroup",
        "kind = \"vm\"",
    ),
    (
        "kind = \"vm\"",
        "own_cgroup = false\nmax = { quota_ms = 20 }\nkind = \"vm\"",
        "tenant[2].max",
        "no cgroup of its own",
    ),
    // Processes and cgroups in one group.
    (
        "within = \"inner\"",
        "within = \"outer\"",
        "tenant[0].within",
        "group `outer` has a cgroup in it (`inner`)",
    ),
    (
        "within = \"outer\"\nmax",
        "within = \"inner\"\nmax",
        "tenant[0].within",
        "group `inner` has a cgroup in it (`b`)",
    ),
    (
        "within = \"inner\"\n",
        "",
        "group[0]",
        "no tenant lies within group `inner`",
    ),
    // CPUs of tenants.
    (
        "cpus = \"0-1,3\"",
        "cpus = \"0-4\"",
        "tenant[0].cpus",
        "no CPU 4: the [host] has CPUs 0-3",
    ),
    (
        "cpus = \"0-1,3\"",
        "cpus = \"3-1\"",
        "tenant[0].cpus",
        "is no CPU list",
    ),
    (
        "cpus = \"0-1,3\"",
        "cpus = []",
        "tenant[0].cpus",
        "names no CPU",
    ),
    (
        "cpus = \"0-1,3\"",
        "cpus = \"\"",
        "tenant[0].cpus",
        "names no CPU",
    ),
    (
        "cpus = \"0-1,3\"",
        "cpus = 2",
        "tenant[0].cpus",
        "numbers of CPUs such as [0, 2]",
    ),
    (
        "cpus = [0, 2]",
        "cpus = [0, 4]",
        "tenant[0].thread[1].cpus",
        "no CPU 4",
    ),
    (
        "cpus = [0, 2]",
        "cpus = [-1]",
        "tenant[0].thread[1].cpus",
        "-1",
    ),
    (
        "cpus = [0, 2]",
        "cpus = [9000]",
        "tenant[0].thread[1].cpus",
        "outside 0 to 8191",
    ),
    (
        "cpus = [1]\n[[tenant.thread]]",
        "[[tenant.thread]]\ncpus = [1]",
        "tenant[2].thread[0].cpus",
        "guest's",
    ),
];

#[test]
fn mistakes_name_key_and_remedy() {
    let mut faults = Vec::new();
    for (piece, instead, key, message) in BAD {
        assert!(GOOD.contains(piece), "{piece}");
        match parse(&GOOD.replacen(piece, instead, 1)) {
            Err(error) if error.key.starts_with(key) && error.message.contains(message) => {}
            other => {
                let is = other.map_or_else(|error| error.to_string(), |_| "accepted".to_string());
                faults.push(format!(
                    "`{piece}` -> `{instead}`\n  is:     {is}\n  wanted: `{key}`: {message}"
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn without_a_host_cpus_are_checked_where_it_runs() {
    parse(&GOOD.replacen("[host]\ncpus = 4\n", "", 1)).unwrap();
}

#[test]
fn a_ring_of_groups_is_found_also_from_outside() {
    let mut text = GOOD.to_string();
    for (name, within) in [("x", "y"), ("y", "z"), ("z", "y")] {
        text += &format!("[[group]]\nname = \"{name}\"\nwithin = \"{within}\"\n");
    }
    let error = parse(&text).unwrap_err();
    assert_eq!(error.key, "group[3].within");
    assert!(error.message.ends_with("y in z in y"), "{error}");
}
