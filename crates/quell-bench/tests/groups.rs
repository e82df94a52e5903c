//! Groups, and the CPUs of threads: what scenarios say of them holds on the simulator and on this machine.

// clippy.toml allows `unwrap` in tests, but clippy does not know helpers of integration tests as such.
#![allow(clippy::unwrap_used)]

use quell_bench::progress::Progress;
use quell_bench::run::{BenchOptions, simulated};
use quell_bench::side::Side;
use quell_bench::workload::Workload;
use quell_linux::observe::{CgroupVersion, CpuHierarchy};
use quell_scenario::Scenario;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// This crate's own program, which has the `player` subcommand.
const PLAYER: &str = env!("CARGO_BIN_EXE_quell-workload");

const BUSY: &str = "program = [{ run_us = 1000 }]";

fn options(scenario: Scenario, sides: &str) -> BenchOptions {
    BenchOptions {
        sides: Side::parse_list(sides).unwrap(),
        pairs: 1,
        ..BenchOptions::new(scenario, PathBuf::from("quell"))
    }
}

fn scenario(text: &str) -> Scenario {
    Scenario::parse(Path::new("t.toml"), text).unwrap()
}

/// The percentage of a CPU that each tenant gets on the simulator.
fn simulate(scenario: Scenario, side: &str) -> BTreeMap<String, f64> {
    let options = options(scenario, side);
    let result = simulated::run(&options, &AtomicBool::new(false), &Progress::silent()).unwrap();
    let cpus = f64::from(result.host.cpus);
    let of = |it: &quell_bench::result::SideResult| {
        let share = 100.0 * cpus * it.figures.cpu_share;
        (it.tenant.to_string(), share)
    };
    result.results.iter().map(of).collect()
}

#[track_caller]
fn close(got: f64, expected: f64, tolerance: f64) {
    assert!(
        (got - expected).abs() < tolerance,
        "{got:.2}, expected {expected}"
    );
}

#[test]
fn nested_groups_share_by_weight_on_the_simulator() {
    let scenario = scenario(&format!(
        r#"
name = "t"
seconds = 10
[host]
cpus = 1
[[group]]
name = "low"
within = "middle"
[[group]]
name = "middle"
weight = 100
[[group]]
name = "high"
weight = 300
[[tenant]]
name = "heavy"
kind = "container"
class = "batch"
weight = 300
within = "middle"
[[tenant.thread]]
name = "t"
{BUSY}
[[tenant]]
name = "pair"
count = 2
class = "batch"
within = "low"
[[tenant.thread]]
name = "t"
{BUSY}
[[tenant]]
name = "rest"
class = "batch"
within = "high"
[[tenant.thread]]
name = "t"
count = 2
{BUSY}
"#
    ));
    for side in ["eevdf", "eevdf-6.12", "cfs"] {
        let shares = simulate(scenario.clone(), side);
        println!("{side}: {shares:.1?}");
        close(shares["rest"], 75.0, 1.0);
        close(shares["heavy"], 18.75, 1.0);
        // Two processes in one group, which is one of two in its own group.
        close(shares["pair-0"], 3.125, 0.5);
        close(shares["pair-1"], 3.125, 0.5);
    }
}

#[test]
fn threads_stay_on_their_cpus_on_the_simulator() {
    let scenario = scenario(include_str!("scenarios/pinned.toml"));
    for side in ["eevdf", "sched"] {
        let shares = simulate(scenario.clone(), side);
        println!("{side}: {shares:.1?}");
        close(shares["a"], 200.0, 3.0);
        close(shares["b"], 100.0, 2.0);
        close(shares["v"], 100.0, 2.0);
    }
}

#[test]
fn cpu_time_is_limited_on_the_simulator() {
    let scenario = scenario(&format!(
        r#"
name = "t"
seconds = 4
[host]
cpus = 2
[[group]]
name = "g"
max = {{ quota_ms = 100 }}
[[tenant]]
name = "a"
class = "batch"
kind = "container"
within = "g"
max = {{ quota_ms = 40 }}
[[tenant.thread]]
name = "t"
{BUSY}
[[tenant]]
name = "b"
class = "batch"
kind = "container"
within = "g"
[[tenant.thread]]
name = "t"
count = 3
{BUSY}
"#
    ));
    for side in ["sched", "quell"] {
        let shares = simulate(scenario.clone(), side);
        println!("{side}: {shares:.1?}");
        close(shares["a"], 40.0, 4.0);
        close(shares["a"] + shares["b"], 100.0, 1.0);
    }
}

#[test]
fn what_the_simulator_cannot_do_is_said() {
    let with = |tenant: &str, rest: &str, sides: &str| {
        let text = format!(
            "name = \"t\"\n[host]\ncpus = 2\n[[tenant]]\nname = \"a\"\nclass = \"batch\"\n{tenant}\n\
             [[tenant.thread]]\nname = \"t\"\n{BUSY}\n{rest}"
        );
        let error = simulated::check(&options(scenario(&text), sides)).unwrap_err();
        error.to_string()
    };
    let max = "max = { quota_ms = 5 }";
    let message = with(&format!("kind = \"container\"\n{max}"), "", "eevdf");
    assert!(
        message.contains("`tenant[0].max`: side `eevdf` does not limit"),
        "{message}"
    );
    let group = format!("[[group]]\nname = \"g\"\n{max}");
    let message = with("within = \"g\"", &group, "eevdf");
    assert!(
        message.contains("`group[0].max`: side `eevdf` does not limit"),
        "{message}"
    );
}

/// The hierarchy with the cpu controller; why not, where cgroups cannot be made in it.
fn hierarchy() -> Result<CpuHierarchy, String> {
    let hierarchy = CpuHierarchy::find().ok_or("no cgroup hierarchy has the cpu controller")?;
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default().replace(':', "-");
    let probe = hierarchy.directory(&format!("quell-test-{}-{name}", std::process::id()));
    let made = std::fs::create_dir(&probe).and_then(|()| std::fs::remove_dir(&probe));
    match made {
        Ok(()) => Ok(hierarchy),
        Err(error) => Err(format!("cannot make a cgroup: {error}")),
    }
}

/// The folder of a process's cgroup in this hierarchy.
fn cgroup_of(hierarchy: &CpuHierarchy, pid: u32) -> PathBuf {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let path = text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let right = match hierarchy.version {
            CgroupVersion::V1 => controllers.split(',').any(|it| it == "cpu"),
            CgroupVersion::V2 => controllers.is_empty(),
        };
        right.then_some(path)
    });
    hierarchy.directory(path.unwrap())
}

/// The names of a cgroup and of the cgroups around it, as the scenario has them, the innermost first.
fn names(hierarchy: &CpuHierarchy, folder: &Path) -> Vec<String> {
    let own = folder.ancestors().take_while(|it| **it != hierarchy.mount);
    let name = |it: &Path| it.file_name().unwrap().to_str().unwrap().to_string();
    // The name has the form `quell-bench-XXXXXX.NAME`.
    let plain = |it: &Path| name(it).split_once('.').unwrap().1.to_string();
    own.map(plain).collect()
}

#[test]
fn cgroups_on_this_machine_are_as_the_scenario_says_and_go() {
    let hierarchy = match hierarchy() {
        Ok(hierarchy) => hierarchy,
        Err(reason) => return quell_testkit::skip!(Cgroups, "{reason}"),
    };
    let tenant = |name: &str, lines: &str| {
        format!(
            "[[tenant]]\nname = \"{name}\"\nclass = \"batch\"\ncpus = [0]\n{lines}\n\
             [[tenant.thread]]\nname = \"t\"\n{BUSY}\n"
        )
    };
    let text = [
        "name = \"t\"\n[[group]]\nname = \"in\"\nwithin = \"out\"\n[[group]]\nname = \"out\"\nweight = 300\n"
            .to_string(),
        tenant("one", "within = \"in\""),
        tenant("two", "within = \"in\""),
        tenant("own", "within = \"out\"\nkind = \"container\"\nweight = 400"),
        tenant(
            "few",
            "kind = \"container\"\nmax = { quota_ms = 5, period_ms = 50, burst_ms = 1 }",
        ),
        tenant("plain", ""),
    ];
    let scenario = scenario(&text.concat());
    let mut workload = Workload::start(&scenario, Path::new(PLAYER), Arc::default()).unwrap();
    let folders: Vec<PathBuf> = (workload.tenants().iter())
        .map(|it| cgroup_of(&hierarchy, it.pids[0].0))
        .collect();
    let places: Vec<_> = folders.iter().map(|it| names(&hierarchy, it)).collect();
    let expected: [&[&str]; 5] = [
        &["in", "out"],
        &["in", "out"],
        &["own", "out"],
        &["few"],
        &[],
    ];
    assert_eq!(places, expected);

    let read = |folder: &Path, file| {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        text.trim().to_string()
    };
    let weight = |folder: &Path| read(folder, hierarchy.weight_file());
    let weights = [&folders[0], folders[0].parent().unwrap(), &folders[2]].map(weight);
    match hierarchy.version {
        CgroupVersion::V1 => {
            assert_eq!(weights, ["1024", "3072", "4096"]);
            let limit = ["cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us"];
            let limit = limit.map(|file| read(&folders[3], file));
            assert_eq!(limit, ["5000", "50000", "1000"]);
        }
        CgroupVersion::V2 => {
            assert_eq!(weights, ["100", "300", "400"]);
            assert_eq!(read(&folders[3], "cpu.max"), "5000 50000");
            assert_eq!(read(&folders[3], "cpu.max.burst"), "1000");
        }
    }

    let (warmup, length) = (Duration::from_millis(300), Duration::from_secs(3));
    let (measured, _) = workload.measure(warmup, length, 1).unwrap();
    let shares: Vec<f64> = (measured.iter())
        .map(|it| 100.0 * it.cpu_ns as f64 / it.length_ns as f64)
        .collect();
    println!("{shares:.1?} % of CPU 0");
    let [one, two, own, few, _] = shares[..] else {
        panic!("{shares:?}");
    };
    // Whatever else runs on this CPU, these tenants compete with each other by weight.
    close(own / (one + two), 4.0, 1.5);
    close(one / two, 1.0, 0.5);
    // A tenth of the CPU at most, and its burst.
    assert!(few < 13.0, "{few}");

    workload.stop().unwrap();
    let left = folders[..4].iter().any(|folder| folder.exists());
    assert!(!left && !folders[0].parent().unwrap().exists());
}

/// A scenario with a group of this name and one busy tenant in it.
fn one_group(name: &str) -> String {
    format!(
        "name = \"t\"\n[[group]]\nname = \"{name}\"\n[[tenant]]\nname = \"a\"\nclass = \"batch\"\nwithin = \"{name}\"\n\
         [[tenant.thread]]\nname = \"t\"\n{BUSY}\n"
    )
}

/// The cgroups in the root that have this in their names.
fn in_root(hierarchy: &CpuHierarchy, name: &str) -> Vec<String> {
    let entries = std::fs::read_dir(&hierarchy.mount).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|it| it.contains(name)).collect()
}

#[test]
fn cgroups_go_when_a_tenant_does_not_start() {
    let hierarchy = match hierarchy() {
        Ok(hierarchy) => hierarchy,
        Err(reason) => return quell_testkit::skip!(Cgroups, "{reason}"),
    };
    let name = format!("doomed-{}", std::process::id());
    let scenario = scenario(&one_group(&name));
    let started = Workload::start(&scenario, Path::new("/nowhere/quell"), Arc::default());
    let error = format!("{:#}", started.err().unwrap());
    assert!(error.contains("/nowhere/quell"), "{error}");
    assert_eq!(in_root(&hierarchy, &name), Vec::<String>::new());
}

#[test]
fn cgroups_go_on_ctrl_c() {
    let hierarchy = match hierarchy() {
        Ok(hierarchy) => hierarchy,
        Err(reason) => return quell_testkit::skip!(Cgroups, "{reason}"),
    };
    let name = format!("stopped-{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.toml");
    std::fs::write(&file, one_group(&name)).unwrap();
    let mut ours = Command::new(PLAYER)
        .arg(&file)
        .args(["60", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The program writes a line when all tenants run.
    let mut line = String::new();
    let mut said = BufReader::new(ours.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    assert_eq!(in_root(&hierarchy, &name).len(), 1);
    let pid = nix::unistd::Pid::from_raw(ours.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    ours.wait().unwrap();
    assert_eq!(in_root(&hierarchy, &name), Vec::<String>::new());
}

#[test]
fn threads_stay_on_their_cpus_on_this_machine() {
    let tenant = |cpus: &str| {
        format!(
            "name = \"t\"\n[[tenant]]\nname = \"a\"\nclass = \"batch\"\n[[tenant.thread]]\nname = \"free\"\n{BUSY}\n\
             [[tenant.thread]]\nname = \"pinned\"\ncount = 2\ncpus = {cpus}\n{BUSY}\n\
             [[tenant]]\nname = \"b\"\nclass = \"batch\"\ncpus = [0]\n[[tenant.thread]]\nname = \"t\"\n{BUSY}\n"
        )
    };
    let start = |cpus| Workload::start(&scenario(&tenant(cpus)), Path::new(PLAYER), Arc::default());
    let error = start("[8191]").err().unwrap().to_string();
    let says = "`tenant[0].thread[1].cpus`: CPU 8191 cannot be used on this machine";
    assert!(error.contains(says), "{error}");

    let workload = match start("[0]") {
        Err(error) => return quell_testkit::skip!(Cgroups, "{error:#}"),
        Ok(workload) => workload,
    };
    // The process's first thread has the process's id.
    let allowed = |pid: u32| -> Vec<(bool, String)> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let of = |task: std::io::Result<std::fs::DirEntry>| {
            let task = task.unwrap();
            let status = std::fs::read_to_string(task.path().join("status")).unwrap();
            let line = status
                .lines()
                .find_map(|it| it.strip_prefix("Cpus_allowed_list:"));
            let first = task.file_name() == *pid.to_string();
            (first, line.unwrap().trim().to_string())
        };
        tasks.map(of).collect()
    };
    let pids: Vec<u32> = workload.tenants().iter().map(|it| it.pids[0].0).collect();
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = own
        .lines()
        .find_map(|it| it.strip_prefix("Cpus_allowed_list:"));
    let own = own.unwrap().trim();
    let a = allowed(pids[0]);
    assert_eq!(a.len(), 3);
    for (first, cpus) in a {
        assert_eq!(cpus, if first { own } else { "0" });
    }
    assert_eq!(allowed(pids[1]), [(true, "0".to_string())]);
    workload.stop().unwrap();
}
