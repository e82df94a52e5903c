//! Tests of scenario files, valid and invalid.

use super::*;
use crate::{Count, Step, TimeUs};
use proptest::prelude::*;

/// A file with every feature.
const GOOD: &str = r#"
name = "all"
description = "everything a scenario can say"
figure = "DASEC, Fig. 9"
seconds = 2.5
pairs = 3
[host]
topology = { sockets = 2, cores = 4, smt = 2, llc = 2 }
[[tenant]]
name = "img"
count = 2
weight = 200
objective = { p99_ms = 5.0 }
load = { arrival = "fixed", rate = 100.0, connections = 2, timeout_ms = 500 }
[[tenant.thread]]
name = "main"
spin_us = 20
program = ["request", { run_us = 10 }, { fork_join = { pool = "p", parts = 4, program = [{ run_us = { exponential = 5.0 } }] } },
  { lock = { name = "m", program = [{ run_us = { uniform = [1, 2] } }, { lock = { name = "n", program = [{ sleep_us = 1 }] } }] } }, { send = "q" }]
[[tenant.thread]]
name = "helper"
count = 3
program = [{ help = "p" }, { lock = { name = "m", program = [{ run_us = 1 }] } }, { lock = { name = "n", program = [{ run_us = 1 }] } }]
[[tenant.thread]]
name = "reply"
program = [{ receive = "q" }, { repeat = { times = 3, program = [{ run_us = { lognormal = { mean = 5, sigma = 0.5 } } }] } }, "respond"]
[[tenant]]
name = "cache"
app = { memcached = { threads = "cpus", keys = 1000 } }
load = { arrival = "trace", trace = "day.trace" }
[[tenant]]
name = "batch"
class = "batch"
[[tenant.thread]]
name = "spin"
count = "cpus"
program = [{ run_us = 1000 }, { barrier = "b" }]
[[tenant]]
name = "steps"
class = "batch"
[[tenant.thread]]
name = "first"
program = [{ timer_us = 500 }, { read = { name = "rw", program = [{ run_us = 7 }, { write = { name = "rv", program = [{ run_us = 8 }] } }] } },
  { acquire = { name = "s", initial = 2 } }, { wait = "e" }]
[[tenant.thread]]
name = "second"
program = [{ timer_us = 700 }, { write = { name = "rw", program = [{ run_us = 9 }] } }, { read = { name = "rv", program = [{ run_us = 6 }] } },
  { release = "s" }, { signal = "e" }, { broadcast = "e" }]
[[tenant]]
name = "build"
class = "batch"
[[tenant.thread]]
name = "make"
program = [{ spawn = { program = [{ run_us = 15000 }, { sleep_us = 10 }], wait = false, most = 8 } },
  { repeat = { times = 4, program = [{ spawn = { program = [{ spawn = { program = [{ run_us = 700 }] } }] } }] } }]
"#;

fn parse(text: &str) -> Result<Scenario, ConfigError> {
    Scenario::parse(Path::new("dir/s.toml"), text)
}

#[test]
fn a_good_file_is_read_as_it_says() {
    let scenario = parse(GOOD).unwrap();
    let names: Vec<String> = scenario
        .instances()
        .iter()
        .map(|i| i.name.to_string())
        .collect();
    assert_eq!(
        names,
        ["img-0", "img-1", "cache", "batch", "steps", "build"]
    );
    assert_eq!(
        scenario.resolve(Path::new("day.trace")),
        Path::new("dir/day.trace")
    );
    let img = &scenario.tenants[0];
    assert_eq!(img.threads[0].program[0], Step::Request);
    assert_eq!(
        img.threads[0].program[1],
        Step::RunUs(TimeUs::Constant(10.0))
    );
    assert_eq!(img.threads[1].count, Count::Fixed(3));
    assert_eq!(scenario.tenants[2].threads[0].count.on(7), 7);
    // Two sockets of four cores, two cores to a cache, two threads to a core.
    let topology = scenario.host.unwrap().topology();
    assert_eq!(topology.cpus.len(), 16);
    assert_eq!(
        (
            topology.cpus[7].core,
            topology.cpus[7].llc,
            topology.cpus[7].socket
        ),
        (7, 3, 1)
    );
    assert_eq!(
        (
            topology.cpus[8].core,
            topology.cpus[8].llc,
            topology.cpus[8].socket
        ),
        (0, 0, 0)
    );
}

#[test]
fn the_scenarios_we_ship_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            let text = std::fs::read_to_string(&file).unwrap();
            let scenario = Scenario::parse(&file, &text).unwrap();
            assert_eq!(file.file_stem().unwrap().to_str().unwrap(), scenario.name);
            count += 1;
        }
    }
    assert!(count >= 5);
}

#[test]
fn loads_in_percent_are_of_what_a_tenant_answers_in_time() {
    let percent = GOOD.replacen("rate = 100.0", "max_rate = 400.0, percent = 25", 1);
    let load = parse(&percent).unwrap().tenants[0].load.clone().unwrap();
    assert_eq!(load.rate_on(7), Some(100.0));
    let steps = "\"steps\", max_rate = 400.0, steps = [[0, 10], [2.5, 0], [3, 0]]";
    let load = parse(&GOOD.replacen("\"fixed\", rate = 100.0", steps, 1))
        .unwrap()
        .tenants[0]
        .load
        .clone();
    assert_eq!(load.unwrap().steps.unwrap()[1], (2.5, 0.0));
}

#[test]
fn queues_and_emulators_are_a_vms() {
    let with = |tenant: &str| {
        let text = format!(
            "name = \"t\"\n[host]\ncpus = 4\nscheduler = \"cfs\"\n[[tenant]]\nname = \"a\"\n{tenant}\nload = {{ rate = 1 }}\n\
             [[tenant.thread]]\nname = \"w\"\nprogram = [\"request\", {{ run_us = 1 }}, \"respond\"]\n"
        );
        parse(&text).map_err(|error| error.to_string())
    };
    let vm = "kind = \"vm\"\nvcpus = 2\nqueues = 2\nemulator_cpus = \"2-3\"";
    let scenario = with(vm).unwrap();
    assert_eq!(scenario.host.unwrap().scheduler, HostScheduler::Cfs);
    assert_eq!(
        scenario.tenants[0]
            .emulator_cpus
            .as_ref()
            .unwrap()
            .to_string(),
        "2-3"
    );
    for (tenant, message) in [
        ("queues = 2", "tenant[0].queues`: is for tenants with kind"),
        (
            "emulator_cpus = [0]",
            "tenant[0].emulator_cpus`: is for tenants with kind",
        ),
        ("kind = \"vm\"\nqueues = 0", "0 is outside 1 to 64"),
        (
            "kind = \"vm\"\nemulator_cpus = [4]",
            "tenant[0].emulator_cpus",
        ),
    ] {
        let error = with(tenant).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}

/// Replacements of one piece of the good file, the key that the error is at, and a part of its message.
const BAD: &[(&str, &str, &str, &str)] = &[
    // The file as a whole.
    (
        "seconds = 2.5",
        "second = 2.5",
        "second",
        "did you mean `seconds`?",
    ),
    (
        "seconds = 2.5",
        "seconds = 0",
        "seconds",
        "outside 0.1 to 3600",
    ),
    (
        "seconds = 2.5",
        "seconds = nan",
        "seconds",
        "outside 0.1 to 3600",
    ),
    ("pairs = 3", "pairs = 0", "pairs", "outside 1 to 1000"),
    (
        "name = \"all\"",
        "name = \"a b\"",
        "name",
        "must be 1 to 64 letters",
    ),
    ("name = \"all\"", "", "", "missing field `name`"),
    // The host.
    ("llc = 2", "llc = 3", "host.topology.llc", "does not divide"),
    (
        "sockets = 2",
        "sockets = 4000000000",
        "host.topology",
        "1 to 8192",
    ),
    ("[host]", "[host]\ncpus = 8", "host.cpus", "give one"),
    // The keys of tenants.
    (
        "name = \"cache\"",
        "name = \"img-1\"",
        "tenant[1].name",
        "also a name of tenant[0]",
    ),
    (
        "name = \"cache\"",
        "name = \"ca/che\"",
        "tenant[1].name",
        "must be 1 to 64 letters",
    ),
    (
        "weight = 200",
        "weight = 0",
        "tenant[0].weight",
        "outside 1 to 10000",
    ),
    (
        "count = 2",
        "count = 0",
        "tenant[0].count",
        "outside 1 to 1024",
    ),
    (
        "weight = 200",
        "exe = \"x\"",
        "tenant[0].exe",
        "belongs into quell.toml",
    ),
    (
        "weight = 200",
        "pid = [1]",
        "tenant[0].pid",
        "belongs into quell.toml",
    ),
    (
        "weight = 200",
        "vcpus = 4",
        "tenant[0].vcpus",
        "kind = \"vm\"",
    ),
    (
        "class = \"batch\"",
        "class = \"latency\"",
        "tenant[2].class",
        "class = \"batch\"",
    ),
    (
        "class = \"batch\"",
        "clas = \"batch\"",
        "tenant[2].clas",
        "did you mean `class`?",
    ),
    (
        "class = \"batch\"",
        "class = \"bach\"",
        "tenant[2].class",
        "did you mean `batch`?",
    ),
    (
        "class = \"batch\"",
        "class = \"batch\"\nload = { rate = 1.0 }",
        "tenant[2].load",
        "no program of this tenant",
    ),
    // The keys of applications.
    (
        "app = { memcached = {",
        "app = { memcache = {",
        "tenant[1].app",
        "did you mean `memcached`?",
    ),
    (
        "keys = 1000",
        "key = 1000",
        "tenant[1].app.memcached.key",
        "did you mean `keys`?",
    ),
    (
        "keys = 1000",
        "keys = 0",
        "tenant[1].app.memcached.keys",
        "outside 1 to 10000000",
    ),
    (
        "keys = 1000",
        "keys = 9000000",
        "tenant[1].app.memcached.memory_mb",
        "do not hold",
    ),
    (
        "threads = \"cpus\"",
        "threads = \"all\"",
        "tenant[1].app.memcached.threads",
        "\"cpus\"",
    ),
    (
        "app = { memcached = { threads = \"cpus\", keys = 1000 } }",
        "app = { xz = {} }",
        "tenant[1].load",
        "xz takes no requests",
    ),
    (
        "app = { memcached = { threads = \"cpus\", keys = 1000 } }",
        "",
        "tenant[1]",
        "does nothing",
    ),
    (
        "app = { memcached = { threads = \"cpus\", keys = 1000 } }",
        "app = { redis = { mix = {} } }",
        "tenant[1].app.redis.mix",
        "at least one command",
    ),
    (
        "objective = {",
        "app = { xz = {} }\nobjective = {",
        "tenant[0].app",
        "one or the other",
    ),
    // The keys of load.
    (
        "load = { arrival = \"trace\", trace = \"day.trace\" }",
        "",
        "tenant[1]",
        "takes requests and gets none",
    ),
    (
        "trace = \"day.trace\"",
        "",
        "tenant[1].load.trace",
        "it is missing",
    ),
    (", rate = 100.0", "", "tenant[0].load.rate", "is missing"),
    (
        "rate = 100.0",
        "rate = -1.0",
        "tenant[0].load.rate",
        "outside 0.001",
    ),
    (
        "rate = 100.0",
        "rate = inf",
        "tenant[0].load.rate",
        "outside 0.001",
    ),
    (
        "rate = 100.0",
        "rate = 1.0, rate_per_cpu = 1.0",
        "tenant[0].load.rate",
        "give one",
    ),
    (
        "rate = 100.0",
        "rate = 1.0, busy_percent = 10",
        "tenant[0].load.busy_percent",
        "for one tenant",
    ),
    (
        "count = 2\nweight = 200\nobjective = { p99_ms = 5.0 }\nload = { arrival = \"fixed\", rate = 100.0",
        "load = { arrival = \"fixed\", rate = 1.0, busy_percent = 101",
        "tenant[0].load.busy_percent",
        "outside 0.1 to 100",
    ),
    (
        "count = 2\nweight = 200\nobjective = { p99_ms = 5.0 }\nload = { arrival = \"fixed\", rate = 100.0",
        "load = { arrival = \"fixed\", max_rate = 100, percent = 50, busy_percent = 10",
        "tenant[0].load.busy_percent",
        "needs a `rate`",
    ),
    (
        "rate = 100.0",
        "percent = 50",
        "tenant[0].load.max_rate",
        "`percent` needs it",
    ),
    (
        "rate = 100.0",
        "max_rate = 100",
        "tenant[0].load.percent",
        "`max_rate` needs it",
    ),
    (
        "rate = 100.0",
        "rate = 1.0, max_rate = 10.0, percent = 20",
        "tenant[0].load.rate",
        "stands beside `percent`",
    ),
    (
        "rate = 100.0",
        "max_rate = 2e6, percent = 20",
        "tenant[0].load.max_rate",
        "outside 0.001",
    ),
    (
        "rate = 100.0",
        "rate = 100.0, steps = [[0, 10], [1, 20]]",
        "tenant[0].load.steps",
        "is for arrival = \"steps\"",
    ),
    (
        "\"fixed\", rate = 100.0",
        "\"steps\", rate = 100.0",
        "tenant[0].load.steps",
        "needs it",
    ),
    (
        "\"fixed\", rate = 100.0",
        "\"steps\", rate = 100.0, steps = [[0, 10], [2, 20], [1, 0]]",
        "tenant[0].load.steps",
        "in the order of time",
    ),
    (
        "connections = 2",
        "connections = 0",
        "tenant[0].load.connections",
        "outside 1 to 1024",
    ),
    (
        "timeout_ms = 500",
        "timeout_ms = 0",
        "tenant[0].load.timeout_ms",
        "outside 1 to 60000",
    ),
    (
        "arrival = \"fixed\"",
        "arrival = \"fixed\", trace = \"x\"",
        "tenant[0].load.trace",
        "is for arrival",
    ),
    (
        "arrival = \"fixed\"",
        "arrival = \"bursts\", on_ms = 5",
        "tenant[0].load.off_ms",
        "is missing",
    ),
    (
        "arrival = \"fixed\"",
        "arrival = \"bursts\", on_ms = 0, off_ms = 5",
        "tenant[0].load.on_ms",
        "outside 0.001",
    ),
    (
        "arrival = \"fixed\"",
        "arrival = \"diurnal\", period_s = 60, swing = 1.5",
        "tenant[0].load.swing",
        "outside 0 to 1",
    ),
    (
        "arrival = \"fixed\"",
        "arrival = \"fixed\", swing = 0.5",
        "tenant[0].load.swing",
        "is for arrival = \"diurnal\"",
    ),
    (
        "{ run_us = 10 }",
        "{ run_us = { pareto = { mean = 5, alpha = 1 } } }",
        "tenant[0].thread[0].program[1].run_us",
        "alpha 1 is outside",
    ),
    (
        "{ run_us = 10 }",
        "{ run_us = { bimodal = { short = 5, long = 9, share_long = 2 } } }",
        "tenant[0].thread[0].program[1].run_us",
        "share_long 2 is outside 0 to 1",
    ),
    (
        "arrival = \"trace\"",
        "arrival = \"trace\", rate = 5.0",
        "tenant[1].load.rate",
        "brings its own rates",
    ),
    // The keys of threads.
    (
        "name = \"main\"",
        "name = \"helper\"",
        "tenant[0].thread[1].name",
        "name of an earlier thread",
    ),
    (
        "name = \"main\"",
        "name = \"a-very-long-thread\"",
        "tenant[0].thread[0].name",
        "1 to 15",
    ),
    (
        "spin_us = 20",
        "spin_us = -1",
        "tenant[0].thread[0].spin_us",
        "outside 0",
    ),
    (
        "spin_us = 20",
        "spinus = 20",
        "tenant[0].thread[0].spinus",
        "did you mean `spin_us`?",
    ),
    (
        "count = 3",
        "count = 5000",
        "tenant[0].thread[1].count",
        "1 to 1024",
    ),
    (
        "spin_us = 20",
        "nice = 20",
        "tenant[0].thread[0].nice",
        "20 is outside -20 to 19 (thread `main` of tenant `img`)",
    ),
    (
        "spin_us = 20",
        "slice_us = 50",
        "tenant[0].thread[0].slice_us",
        "50 is outside 100 to 100000",
    ),
    (
        "spin_us = 20",
        "policy = \"idle\"
nice = 5",
        "tenant[0].thread[0].nice",
        "does nothing under policy = \"idle\"",
    ),
    (
        "spin_us = 20",
        "policy = \"idel\"",
        "tenant[0].thread[0].policy",
        "did you mean `idle`?",
    ),
    (
        "spin_us = 20",
        "policy = \"fifo\"",
        "tenant[0].thread[0].priority",
        "needs it, 1 to 99",
    ),
    (
        "spin_us = 20",
        "policy = \"rr\"
priority = 100",
        "tenant[0].thread[0].priority",
        "outside 1 to 99",
    ),
    (
        "spin_us = 20",
        "priority = 5",
        "tenant[0].thread[0].priority",
        "others have `nice`",
    ),
    (
        "spin_us = 20",
        "delay_us = -1",
        "tenant[0].thread[0].delay_us",
        "outside 0 to",
    ),
    (
        "spin_us = 20",
        "rounds = 0",
        "tenant[0].thread[0].rounds",
        "outside 1 to",
    ),
    (
        "{ timer_us = 500 }",
        "{ timer = { period_us = 0 } }",
        "tenant[3].thread[0].program[0].timer.period_us",
        "outside 1 to",
    ),
    // The steps of programs.
    (
        "{ run_us = 10 }",
        "{ run = 10 }",
        "tenant[0].thread[0].program[1]",
        "did you mean `run_us`?",
    ),
    (
        "{ run_us = 10 }",
        "\"reqest\"",
        "tenant[0].thread[0].program[1]",
        "did you mean `request`?",
    ),
    (
        "{ run_us = 10 }",
        "{ run_us = -1 }",
        "tenant[0].thread[0].program[1].run_us",
        "outside 0",
    ),
    (
        "{ run_us = 10 }",
        "{ run_us = \"10\" }",
        "tenant[0].thread[0].program[1].run_us",
        "number of microseconds",
    ),
    (
        "{ exponential = 5.0 }",
        "{ exponental = 5.0 }",
        "fork_join.program[0].run_us.exponental",
        "did you mean `exponential`?",
    ),
    (
        "uniform = [1, 2]",
        "uniform = [2, 1]",
        "lock.program[0].run_us",
        "upside down",
    ),
    (
        "sigma = 0.5",
        "sigma = 50",
        "repeat.program[0].run_us",
        "sigma 50",
    ),
    (
        "times = 3",
        "times = 0",
        "repeat.times",
        "outside 1 to 1000000",
    ),
    (
        "parts = 4",
        "parts = 1",
        "fork_join.parts",
        "outside 2 to 1024",
    ),
    (
        "{ run_us = 1000 }, { barrier = \"b\" }",
        "",
        "tenant[2].thread[0].program",
        "has no steps",
    ),
    (
        "{ run_us = 1000 }, { barrier = \"b\" }",
        "{ run_us = 0 }",
        "tenant[2].thread[0].program",
        "spin for ever",
    ),
    (
        "{ timer_us = 500 }",
        "{ timer_us = 0 }",
        "tenant[3].thread[0].program[0].timer_us",
        "outside 1 to",
    ),
    (
        "{ timer_us = 700 }, { write = { name = \"rw\", program = [{ run_us = 9 }] } }, { read = { name = \"rv\", program = [{ run_us = 6 }] } }",
        "{ signal = \"e\" }",
        "tenant[3].thread[1].program",
        "spin for ever",
    ),
    // Conditions that span the file.
    (
        "{ release = \"s\" }",
        "{ acquire = { name = \"s\", initial = 1 } }",
        "tenant[3].thread[1].program[3].acquire.initial",
        "stated before",
    ),
    (
        "{ release = \"s\" }",
        "{ release = \"sem\" }",
        "tenant[3].thread[0].program[2].acquire.name",
        "is never released",
    ),
    (
        "{ signal = \"e\" }, { broadcast = \"e\" }",
        "{ run_us = 1 }",
        "tenant[3].thread[0].program[3].wait",
        "is never signalled",
    ),
    (
        "{ run_us = 9 }",
        "{ wait = \"e\" }",
        "tenant[3].thread[1].program[1].write.program[0]",
        "cannot stand with a lock held",
    ),
    (
        "[{ run_us = 9 }]",
        "[{ read = { name = \"rw\", program = [{ run_us = 1 }] } }]",
        "read.name",
        "rwlock `rw` is taken again while it is held",
    ),
    (
        "[{ run_us = 6 }]",
        "[{ write = { name = \"rw\", program = [{ run_us = 1 }] } }]",
        "name",
        "in both orders",
    ),
    (
        "\"request\", { run_us = 10 }",
        "\"request\", \"request\"",
        "tenant[0].thread[0].program[1]",
        "before the earlier request",
    ),
    (
        "\"request\", { run_us = 10 }",
        "{ run_us = 10 }",
        "tenant[0].load",
        "no program of this tenant",
    ),
    (
        ", { send = \"q\" }",
        "",
        "tenant[0].thread[0].program",
        "ends without `respond`",
    ),
    (
        "{ send = \"q\" }",
        "{ send = \"queue\" }",
        "tenant[0].thread[2].program[0].receive",
        "is never sent to",
    ),
    (
        "{ help = \"p\" }",
        "{ help = \"pp\" }",
        "tenant[0].thread[0].program[2].fork_join.pool",
        "has no thread that helps; did you mean `pp`?",
    ),
    (
        "count = \"cpus\"",
        "count = 1",
        "tenant[2].thread[0].program[1].barrier",
        "waits for nobody",
    ),
    (
        "[{ sleep_us = 1 }]",
        "[\"respond\"]",
        "lock.program[1]",
        "cannot stand with a lock held",
    ),
    (
        "[{ sleep_us = 1 }]",
        "[{ lock = { name = \"m\", program = [{ run_us = 1 }] } }]",
        "lock.name",
        "taken again while it is held",
    ),
    (
        "{ name = \"n\", program = [{ run_us = 1 }] }",
        "{ name = \"n\", program = [{ lock = { name = \"m\", program = [{ run_us = 1 }] } }] }",
        "lock.name",
        "in both orders",
    ),
    (
        "{ sleep_us = 10 }], wait",
        "{ barrier = \"b\" }], wait",
        "program[0].spawn.program[1]",
        "cannot stand in a process of its own",
    ),
    (
        "{ run_us = 15000 }, { sleep_us = 10 }",
        "{ run_us = 0 }",
        "program[0].spawn.program",
        "takes no time",
    ),
    (
        "most = 8",
        "most = 0",
        "program[0].spawn.most",
        "0 is outside 1 to 4096",
    ),
    (
        "wait = false, most",
        "waits = false, most",
        "spawn.waits",
        "unknown",
    ),
];

#[test]
fn mistakes_name_file_key_and_remedy() {
    let mut faults = Vec::new();
    for (piece, instead, key, message) in BAD {
        assert!(GOOD.contains(piece), "{piece}");
        match parse(&GOOD.replacen(piece, instead, 1)) {
            Err(error) if error.key.ends_with(key) && error.message.contains(message) => {
                assert_eq!(error.file, Path::new("dir/s.toml"));
            }
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

/// A batch tenant whose threads have these programs.
fn programs(programs: &[&str]) -> Result<Scenario, ConfigError> {
    let mut text = "name = \"t\"\n[[tenant]]\nname = \"a\"\nclass = \"batch\"\n".to_string();
    for (number, program) in programs.iter().enumerate() {
        text += &format!("[[tenant.thread]]\nname = \"t{number}\"\nprogram = [{program}]\n");
    }
    parse(&text)
}

#[test]
fn threads_may_pass_on_what_takes_time_elsewhere() {
    let tick = "{ run_us = 100 }, { signal = \"f\" }, { release = \"g\" }";
    let forward = "{ wait = \"f\" }, { signal = \"w\" }";
    let again = "{ acquire = { name = \"g\" } }, { signal = \"f\" }";
    let worker = "{ wait = \"w\" }, { run_us = 500 }";
    programs(&[tick, forward, worker]).unwrap();
    programs(&[forward, worker, tick, again]).unwrap();
    // Two threads that only answer each other never come to an end.
    let (ping, pong) = (
        "{ wait = \"a\" }, { signal = \"b\" }",
        "{ wait = \"b\" }, { signal = \"a\" }",
    );
    let error = programs(&[ping, pong]).unwrap_err();
    assert!(error.message.contains("spin for ever"), "{error}");
}

#[test]
fn what_nobody_else_uses_is_no_mistake_where_it_does_no_harm() {
    programs(&[
        "{ run_us = 100 }, { signal = \"nobody\" }, { broadcast = \"no\" }, { release = \"s\" }",
    ])
    .unwrap();
    programs(&["{ lock = { name = \"m\", program = [{ run_us = 100 }] } }"]).unwrap();
    let error = programs(&["{ run_us = 1 }, { wait_next = \"e\" }"]).unwrap_err();
    assert!(error.message.contains("is never signalled"), "{error}");
    // One lock can be given back during the wait, two cannot.
    let waits = |outer: &str| {
        let inner =
            "{ lock = { name = \"m\", program = [{ wait_next = \"e\" }, { run_us = 1 }] } }";
        programs(&[
            &outer.replace('_', inner),
            "{ run_us = 1 }, { signal = \"e\" }",
        ])
    };
    waits("_").unwrap();
    let error = waits("{ lock = { name = \"n\", program = [_] } }").unwrap_err();
    assert!(error.message.contains("with a lock held"), "{error}");
}

#[test]
fn traces_are_checked() {
    let parse = |text| Trace::parse(Path::new("t"), text);
    assert_eq!(
        parse("0.5 # x\n\n1"),
        Ok(Trace::Arrivals(vec![500_000_000, 1_000_000_000]))
    );
    assert_eq!(
        parse("0, 5\n2, 0"),
        Ok(Trace::Rates(vec![(0, 5.0), (2_000_000_000, 0.0)]))
    );
    for (text, line, message) in [
        ("1\nx", Some(2), "not a number"),
        ("1\n-1", Some(2), "not a number"),
        ("1\n0.5", Some(2), "earlier"),
        ("1 2 3", Some(1), "more than"),
        ("1\n2 3", Some(2), "on every line"),
        ("# nothing", None, "no arrivals"),
        ("0 5", None, "second 0"),
        ("0 0\n1 0", None, "every rate is 0"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(
            error.line == line && error.message.contains(message),
            "{text:?}: {error}"
        );
    }
}

proptest! {
    #[test]
    fn no_text_panics_and_every_error_names_the_file(text in ".{0,200}") {
        if let Err(error) = parse(&text) {
            prop_assert!(error.to_string().starts_with("dir/s.toml"), "{}", error);
        }
        let _ = Trace::parse(Path::new("t"), &text);
    }

    /// A good file with a piece cut out, doubled or replaced.
    #[test]
    fn no_mutation_panics(
        start in 0..GOOD.len(),
        length in 0..40usize,
        instead in prop_oneof![
            Just(String::new()), Just("\"".into()), Just("[[tenant]]\n".into()), Just("{}".into()),
            Just("-1".into()), Just("1e999".into()), Just("18446744073709551616".into()),
            "[a-z_=\\[\\]{}0-9 .\"\n]{0,12}",
        ],
    ) {
        // GOOD is ASCII, so any cut is between characters.
        let end = (start + length).min(GOOD.len());
        let text = format!("{}{}{}", &GOOD[..start], instead, &GOOD[end..]);
        if let Err(error) = parse(&text) {
            prop_assert!(error.to_string().starts_with("dir/s.toml"), "{}", error);
            prop_assert!(!error.message.is_empty());
        }
    }
}
