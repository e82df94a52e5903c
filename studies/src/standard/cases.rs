//! The cases: which victims run beside which loads. Numbers of workers grow with the CPUs.

use super::load::{LoadKind, LoadSpec};
use super::own::OwnLoad;
use super::program::Program;
use super::victim::{Place, VictimSpec};
use quell_scenario::{App, Memcached, Nginx};

/// Victims beside a load.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// The case's name, which `--only` looks for.
    pub name: &'static str,
    /// The case's group. Cases of one group are measured in one go on each side, so that a side need not
    /// start so often.
    pub group: &'static str,
    /// The case in a few words.
    pub about: String,
    /// The victims.
    pub victims: Vec<VictimSpec>,
    /// Whether the victims of a cgroup are threads of one process, instead of processes of their own.
    pub one_process: bool,
    /// The loads that run beside the victims.
    pub loads: Vec<LoadSpec>,
    /// How many times as long as usual the case's window is. Closed loops differ by a fifth between two
    /// windows of 3 s under one scheduler; so do encoders, which write blocks of half a second's work.
    pub longer: u32,
}

/// The length of such longer windows.
const LONGER: u32 = 4;

impl Case {
    /// The programs that the case needs.
    pub fn needs(&self) -> impl Iterator<Item = Program> + '_ {
        self.loads
            .iter()
            .flat_map(|load| load.needs.iter().copied())
    }
}

/// The usual victims: from short and frequent to long and rare, in the root cgroup, in a cgroup of their own,
/// and on one CPU.
fn usual() -> Vec<VictimSpec> {
    vec![
        VictimSpec::new(50, 2000, Place::Root),
        VictimSpec::new(50, 2000, Place::Own),
        VictimSpec::new(50, 2000, Place::Pinned),
        VictimSpec::new(1000, 10_000, Place::Root),
        VictimSpec::new(3000, 20_000, Place::Own),
        VictimSpec::new(10_000, 100_000, Place::Root),
    ]
}

/// A case with the usual victims.
fn case(name: &'static str, group: &'static str, loads: Vec<LoadSpec>) -> Case {
    let names: Vec<&str> = loads.iter().map(|load| load.name.as_str()).collect();
    Case {
        name,
        group,
        about: names.join(", "),
        victims: usual(),
        one_process: false,
        longer: if group == "mixed" { LONGER } else { 1 },
        loads,
    }
}

/// All cases on `cpus` CPUs, in the order in which they are measured.
pub fn cases(cpus: u32) -> Vec<Case> {
    let mut all = Vec::new();
    let cyclictest = LoadSpec {
        name: "cyclictest --policy=other -t 2 -i 2000".to_string(),
        unit: None,
        kind: LoadKind::Cyclictest {
            threads: 2,
            period_us: 2000,
        },
        most: None,
        needs: vec![Program::CYCLICTEST],
        sources: 0,
    };
    let hackbench = |arguments: &str| LoadSpec::repeat(Program::HACKBENCH, arguments);
    all.push(Case {
        victims: Vec::new(),
        ..case(
            "cyclictest-hackbench",
            "messages",
            vec![cyclictest, hackbench("-g 1 -l 50")],
        )
    });
    for (name, arguments) in [
        ("hackbench-1", "-g 1 -l 50"),
        ("hackbench-2", "-g 2 -l 50"),
        ("hackbench-4", "-g 4 -l 50"),
        ("hackbench-threads", "-g 1 -l 50 -T"),
        ("hackbench-pipes", "-g 1 -l 50 -p"),
        ("hackbench-threads-pipes", "-g 2 -l 50 -T -p"),
    ] {
        all.push(case(name, "messages", vec![hackbench(arguments)]));
    }
    for (name, arguments) in [
        ("perf-messaging", "bench sched messaging -g 1 -l 50"),
        ("perf-pipe", "bench sched pipe -l 2000"),
    ] {
        all.push(case(
            name,
            "messages",
            vec![LoadSpec::repeat(Program::PERF, arguments)],
        ));
    }
    for (name, workers) in [("messages", cpus), ("messages-4x", 4 * cpus)] {
        let load = OwnLoad::Messages {
            workers,
            run_us: 1000,
        };
        let name_of_load = format!("{workers} workers woken by one thread, 1 ms each");
        let load = LoadSpec::own(&name_of_load, Some("parts/s"), load);
        all.push(case(name, "messages", vec![load]));
    }
    all.push(case("make-like", "processes", vec![starts(8)]));
    all.push(Case {
        one_process: true,
        ..case("make-like-one-process", "processes", vec![starts(8)])
    });
    let bomb = LoadSpec {
        most: Some(200),
        ..LoadSpec::own("fork bomb, 200 processes at most", None, OwnLoad::Bomb)
    };
    all.push(case("fork-bomb", "processes", vec![bomb]));
    all.push(case("shells", "processes", vec![shells(2 * cpus)]));
    for (name, jobs) in [
        ("build-1x", cpus),
        ("build-2x", 2 * cpus),
        ("build-4x", 4 * cpus),
    ] {
        all.push(case(name, "processes", vec![build(jobs, 4 * cpus)]));
    }
    for (name, stressor) in [
        ("stress-fork", "fork"),
        ("stress-vfork", "vfork"),
        ("stress-clone", "clone"),
        ("stress-wait", "wait"),
    ] {
        let load = LoadSpec::stress_ng(stressor, 2 * cpus, &[]);
        all.push(case(name, "processes", vec![load]));
    }
    for (name, stressor, more) in [
        // By default this stressor goes through methods that are not equally long.
        ("stress-cpu", "cpu", &["--cpu-method", "int64"][..]),
        ("stress-switch", "switch", &[]),
        ("stress-yield", "yield", &[]),
        ("stress-futex", "futex", &[]),
        ("stress-pipe", "pipe", &[]),
        ("stress-sem", "sem", &[]),
        // By default this stressor sets a million timers a second, each a signal.
        ("stress-timer", "timer", &["--timer-freq", "2000"]),
    ] {
        let load = LoadSpec::stress_ng(stressor, 2 * cpus, more);
        all.push(case(name, "stress", vec![load]));
    }
    all.extend(mixed(cpus));
    all
}

/// Loops that each start processes one after another.
fn starts(loops: u32) -> LoadSpec {
    let load = OwnLoad::Starts {
        loops,
        run_us: 15_000,
    };
    LoadSpec::own(
        &format!("{loops} loops that start processes of 15 ms"),
        Some("processes/s"),
        load,
    )
}

/// Loops of shells that run a short pipeline each.
fn shells(loops: u32) -> LoadSpec {
    let pipeline = "seq 200 | sort -n | wc -l";
    let load = OwnLoad::Repeat {
        command: ["sh", "-c", pipeline].map(str::to_string).to_vec(),
        loops,
        per_round: 1.0,
    };
    LoadSpec::own(
        &format!("{loops} loops of sh -c '{pipeline}'"),
        Some("shells/s"),
        load,
    )
}

/// A real build, again and again.
fn build(jobs: u32, files: u32) -> LoadSpec {
    let load = OwnLoad::Repeat {
        command: ["make", "-s", "-B", "-j", &jobs.to_string()]
            .map(str::to_string)
            .to_vec(),
        loops: 1,
        per_round: f64::from(files),
    };
    LoadSpec {
        needs: vec![Program::MAKE, Program::GCC, Program::AS],
        sources: files,
        ..LoadSpec::own(
            &format!("make -j{jobs} of {files} files of C"),
            Some("files/s"),
            load,
        )
    }
}

/// Encoders that read text for ever.
fn xz(copies: u32) -> LoadSpec {
    let load = OwnLoad::Feed {
        command: ["xz", "-T1", "-2", "-c"].map(str::to_string).to_vec(),
        copies,
    };
    LoadSpec {
        needs: vec![Program::XZ],
        ..LoadSpec::own(&format!("{copies} of xz -T1 -2"), Some("bytes/s"), load)
    }
}

/// redis-benchmark and its server.
fn redis() -> LoadSpec {
    let words = |text: &str| text.split_whitespace().map(str::to_string).collect();
    let load = OwnLoad::Served {
        server: words("redis-server --port PORT --appendonly no"),
        client: words("redis-benchmark -p PORT -n 500 -c 10 -t set,get --csv"),
        per_round: 1000.0,
    };
    LoadSpec {
        needs: vec![Program::REDIS, Program::REDIS_BENCHMARK],
        ..LoadSpec::own("redis-benchmark -c 10 -t set,get", Some("requests/s"), load)
    }
}

/// An application that is lightly loaded, with `rate` requests per second.
fn asked(app: App, rate: f64, needs: Program) -> LoadSpec {
    let name = format!("{} asked {rate} times a second", app.name());
    LoadSpec {
        needs: vec![needs],
        ..LoadSpec::own(&name, None, OwnLoad::Asked { app, rate })
    }
}

/// memcached and nginx; their clients are a small part of a machine.
fn services() -> [LoadSpec; 2] {
    let memcached = Memcached {
        keys_per_request: 100,
        ..Memcached::default()
    };
    let nginx = Nginx {
        document_kb: 4,
        ..Nginx::default()
    };
    [
        asked(App::Memcached(memcached), 200.0, Program::MEMCACHED),
        asked(App::Nginx(nginx), 200.0, Program::NGINX),
    ]
}

/// PostgreSQL and its benchmark.
fn pgbench(clients: u32) -> LoadSpec {
    LoadSpec {
        needs: vec![Program::INITDB, Program::POSTGRES, Program::PGBENCH],
        ..LoadSpec::own(
            &format!("pgbench -S -c {clients}"),
            Some("transactions/s"),
            OwnLoad::Pgbench { clients },
        )
    }
}

/// Several loads at once, as machines have them.
fn mixed(cpus: u32) -> Vec<Case> {
    let desktop = Case {
        about: "sound, frames and keys beside a build, shells and an encoder".to_string(),
        victims: vec![
            VictimSpec::new(300, 5000, Place::Root),
            VictimSpec::new(4000, 12_000, Place::Root),
            VictimSpec::new(1000, 50_000, Place::Own),
        ],
        ..case("desktop", "mixed", vec![starts(cpus), shells(1), xz(1)])
    };
    let server = case("xz-redis", "mixed", vec![xz(cpus), redis()]);
    let mut services = Vec::from(services());
    services.push(build(2 * cpus, 4 * cpus));
    let services = case("build-memcached-nginx", "mixed", services);
    let databases = vec![pgbench(4), redis(), xz(cpus)];
    let databases = case("pgbench-redis-xz", "mixed", databases);
    vec![desktop, server, services, databases]
}

/// The cases with one of these texts in their names; all cases where none is given.
pub fn only(cases: Vec<Case>, names: &[String]) -> Vec<Case> {
    let wanted =
        |case: &Case| names.is_empty() || names.iter().any(|it| case.name.contains(it.as_str()));
    cases.into_iter().filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_case_has_a_name_of_its_own_and_its_group_is_in_one_piece() {
        let cases = cases(2);
        let names: BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), cases.len());
        let mut groups: Vec<&str> = cases.iter().map(|case| case.group).collect();
        groups.dedup();
        let different: BTreeSet<&str> = groups.iter().copied().collect();
        assert_eq!(groups.len(), different.len(), "{groups:?}");
    }

    #[test]
    fn victims_of_a_case_are_told_apart_by_name() {
        for case in cases(2) {
            let names: BTreeSet<&str> = case.victims.iter().map(|it| it.name.as_str()).collect();
            assert_eq!(names.len(), case.victims.len(), "{}", case.name);
            assert!(!case.loads.is_empty(), "{}", case.name);
        }
    }

    #[test]
    fn cases_are_chosen_by_a_part_of_their_name() {
        let chosen = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|it| it.to_string()).collect();
            only(cases(2), &names)
                .iter()
                .map(|it| it.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            chosen(&["bomb", "make"]),
            ["make-like", "make-like-one-process", "fork-bomb"]
        );
        assert_eq!(chosen(&["no such"]), [""; 0]);
        assert_eq!(chosen(&[]).len(), cases(2).len());
    }
}
