//! Benchmarks in a guest, from the command line.

use crate::common;
use std::env;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// A bit of everything that could differ: forks, wakeups across CPUs, a lock, a batch tenant.
const SCENARIO: &str = r#"
name = "tiny"
seconds = 0.5
warmup_seconds = 0.25
pairs = 1

[host]
cpus = 4

[[tenant]]
name = "img"
count = 2
load = { rate = 60.0 }

[[tenant.thread]]
name = "main"
program = [
    "request",
    { fork_join = { pool = "parts", parts = 3, program = [
        { lock = { name = "l", program = [{ run_us = { exponential = 200 } }] } },
        { run_us = { exponential = 800 } },
    ] } },
    "respond",
]

[[tenant.thread]]
name = "helper"
count = 2
program = [{ help = "parts" }]

[[tenant]]
name = "spinner"
class = "batch"

[[tenant.thread]]
name = "spin"
count = "cpus"
program = [{ run_us = 1000 }]
"#;

/// Services of short requests beside services whose requests keep all CPUs busy for a while.
const SHORT_BESIDE_WIDE: &str = r#"
name = "short-beside-wide"
seconds = SECONDS
warmup_seconds = 1
pairs = PAIRS

[host]
cpus = 4

[[tenant]]
name = "short"
count = 2
load = { rate = 150.0 }

[[tenant.thread]]
name = "worker"
count = 2
program = ["request", { run_us = { exponential = 2000 } }, "respond"]

[[tenant]]
name = "wide"
count = 2
load = { rate = 37.0, arrival = "fixed" }

[[tenant.thread]]
name = "main"
program = [
    "request",
    { fork_join = { pool = "parts", parts = 12, program = [{ run_us = 3500 }] } },
    "respond",
]

[[tenant.thread]]
name = "helper"
count = 3
program = [{ help = "parts" }]
"#;

/// How long a short request takes by itself, in ms.
const SHORT_MS: f64 = 2.0;

fn bench(folder: &Path, on: &str, scenario: &str, sides: &str, json: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["bench", scenario, "--on", on, "--policy", sides])
        .args(["--json", json, "--report", "report.html"])
        .current_dir(folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    std::fs::read_to_string(folder.join(json)).unwrap()
}

#[test]
fn a_benchmark_in_a_guest_gives_the_same_json_twice_to_the_byte() {
    if !common::lab_is_ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tiny.toml"), SCENARIO).unwrap();
    let first = bench(
        folder.path(),
        "vm",
        "./tiny.toml",
        "default,dasec",
        "first.json",
    );
    let result: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!(result["substrate"], "vm");
    assert_eq!(result["lab"]["clock"], "virtual");
    assert_eq!(
        (&result["lab"]["cpus"], &result["host"]["cpus"]),
        (&4.into(), &4.into())
    );
    assert_eq!(result["complete"], true);
    // The second side's agent ran, and its cost is in the guest's time.
    assert!(
        result["agent"]["cpu_percent"].as_f64().unwrap() > 0.0,
        "{first}"
    );
    let report = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(report.contains("kernel lab"));
    let second = bench(
        folder.path(),
        "vm",
        "./tiny.toml",
        "default,dasec",
        "second.json",
    );
    let differing = first.lines().zip(second.lines()).find(|(a, b)| a != b);
    assert!(first == second, "first difference: {differing:?}");
}

/// In the guest: threads that sleep for 5 to 125 us each, and the time after each sleep.
#[test]
#[ignore = "part of the next test"]
fn naps() {
    let nap = |number: u64| {
        let (mut random, mut seen) = (number, DefaultHasher::new());
        let start = Instant::now();
        for _ in 0..8000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            thread::sleep(Duration::from_nanos(5_000 + (random >> 33) % 120_000));
            start.elapsed().hash(&mut seen);
        }
        seen.finish()
    };
    let threads: Vec<_> = (0..6).map(|n| thread::spawn(move || nap(n))).collect();
    for thread in threads {
        println!("{:x}", thread.join().unwrap());
    }
}

/// Timers that are much closer to each other than the turns in which CPUs are emulated: when each goes off
/// must not depend on when this machine emulates its CPU.
#[test]
fn timers_go_off_at_the_same_time_in_each_guest() {
    if !common::lab_is_ready() {
        return;
    }
    let this = env::current_exe().unwrap();
    let guest = || {
        let output = Command::new(env!("CARGO_BIN_EXE_quell"))
            .args(["lab", "run", "--cpus", "4", "--file"])
            .arg(format!("{}:/root/naps", this.display()))
            .args([
                "--",
                "/root/naps",
                "--ignored",
                "--exact",
                "bench::naps",
                "--nocapture",
            ])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        let seen = said
            .lines()
            .filter(|line| u64::from_str_radix(line, 16).is_ok());
        let seen = seen.map(str::to_string).collect::<Vec<_>>();
        (seen, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // All guests run at once, so that each has the time that the others leave on this machine's CPUs.
    let seen = thread::scope(|scope| {
        [(); 3]
            .map(|()| scope.spawn(guest))
            .map(|guest| guest.join().unwrap())
    });
    let [(first, warned), others @ ..] = &seen;
    if warned.contains("CAP_SYS_NICE") {
        quell_testkit::skip!(Other, "{warned}");
        return;
    }
    assert_eq!(first.len(), 6, "{seen:?}");
    assert!(others.iter().all(|it| it.0 == *first), "{seen:?}");
}

/// Means of the short and the long requests' latencies, with requests told apart and without, in
/// milliseconds.
fn short_beside_wide(on: &str, seconds: u32, pairs: u32) -> [[f64; 2]; 2] {
    let folder = tempfile::tempdir().unwrap();
    let scenario = SHORT_BESIDE_WIDE.replace("SECONDS", &seconds.to_string());
    let scenario = scenario.replace("PAIRS", &pairs.to_string());
    std::fs::write(folder.path().join("short.toml"), scenario).unwrap();
    let sides = "sched,alike=quell sched --no-requests";
    let result = bench(folder.path(), on, "./short.toml", sides, "result.json");
    let result: serde_json::Value = serde_json::from_str(&result).unwrap();
    let mean = |side: &str, tenant: &str| {
        let results = result["results"].as_array().unwrap();
        let of_side = results.iter().filter(|row| row["side"] == side);
        let rows = of_side.filter(|row| row["tenant"].as_str().unwrap().starts_with(tenant));
        rows.map(|row| row["mean_us"].as_f64().unwrap())
            .sum::<f64>()
            / 2e3
    };
    let means = ["short", "wide"].map(|tenant| ["sched", "alike"].map(|side| mean(side, tenant)));
    println!("short, wide: told apart, not: {means:.1?} ms");
    means
}

/// A short request hardly waits for long ones. Without telling requests apart it hardly waits either, because
/// its threads run briefly and those of long requests do not. Here the kernel is real; the next test measures
/// how much a short request gains.
#[test]
fn short_requests_go_before_long_ones() {
    if !common::lab_is_ready() {
        return;
    }
    let [[short, short_alike], [wide, wide_alike]] = short_beside_wide("vm", 2, 3);
    assert!(short < 1.3 * SHORT_MS, "{short_alike} -> {short}");
    assert!(wide < 1.5 * wide_alike, "{wide_alike} -> {wide}");
}

#[test]
fn short_requests_go_before_long_ones_on_the_simulator() {
    let [[short, short_alike], [wide, wide_alike]] = short_beside_wide("sim", 20, 8);
    assert!(short < 1.1 * SHORT_MS, "{short_alike} -> {short}");
    assert!(wide < 1.1 * wide_alike, "{wide_alike} -> {wide}");
}

/// A user who ends the lab by a signal has nothing to clean up.
#[test]
fn a_run_that_is_ended_leaves_nothing() {
    if !common::lab_is_ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["lab", "run", "--cpus", "1", "--memory", "512M", "--"])
        .args(["sh", "-c", "echo up; sleep 1000"])
        .env("TMPDIR", folder.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut out = std::io::BufReader::new(run.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut said).unwrap();
    assert_eq!(said, "up\n");
    let children = format!("/proc/{0}/task/{0}/children", run.id());
    let children = std::fs::read_to_string(children).unwrap();
    let children: Vec<&str> = children.split_whitespace().collect();
    assert!(!children.is_empty());
    let pid = nix::unistd::Pid::from_raw(run.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(!run.wait().unwrap().success());
    for child in children {
        // The process is gone, or is a zombie that its new parent has not waited for yet.
        let there = || {
            std::fs::read_to_string(format!("/proc/{child}/stat"))
                .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap().starts_with('Z'))
        };
        let gone = quell_testkit::eventually(Duration::from_secs(60), || !there());
        assert!(gone, "{child} is still there");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Nested cgroups and threads' CPUs, made in the guest's cgroup v2, and on the simulator: each thread gets
/// the same share on both.
#[test]
fn nested_groups_share_in_a_guest_as_on_the_simulator() {
    if !common::lab_is_ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let shares = |on: &str, sides: &str, settings: &[&str]| {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let output = Command::new(env!("CARGO_BIN_EXE_quell"))
            .args(["bench", "groups/nested", "--on", on, "--policy", sides])
            .args(["--pairs", "1", "--seconds", "2", "--json", "-"])
            .args(["--set", "warmup_seconds=1"])
            .args(settings)
            .current_dir(folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = result["results"].as_array().unwrap();
        let first = &result["options"]["sides"][0];
        let share = |tenant: &str| {
            let row = rows
                .iter()
                .find(|row| row["tenant"] == tenant && row["side"] == *first);
            200.0 * row.unwrap()["cpu_share"].as_f64().unwrap()
        };
        let shares = ["t0", "t1", "t2", "t3"].map(share);
        println!("{on}: {shares:.1?} % of a CPU");
        shares
    };
    let heavier = ["group.p1.weight=300"];
    let guest = shares("vm", "default", &heavier);
    let simulated = shares("sim", "eevdf", &heavier);
    for (guest, simulated) in guest.iter().zip(simulated) {
        assert!((guest - simulated).abs() < 3.0, "{guest}, {simulated}");
    }
    // A limit holds: a fifth of a CPU for both threads of the first group.
    let limited = shares("vm", "default", &["group.p0.max={ quota_ms = 20 }"]);
    assert!((limited[0] + limited[1] - 20.0).abs() < 2.0, "{limited:?}");
}
