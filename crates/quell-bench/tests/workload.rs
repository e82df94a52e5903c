//! Scenarios run for real: players and, where installed, real applications.

// clippy.toml allows `unwrap` in tests, but clippy does not know helpers of integration tests as such.
#![allow(clippy::unwrap_used)]

use quell_bench::workload::{Interrupted, Measurement, Workload};
use quell_scenario::Scenario;
use quell_testkit::eventually;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// This crate's own program, which has the `player` subcommand.
const PLAYER: &str = env!("CARGO_BIN_EXE_quell-workload");

/// A load that is short enough for tests, and whose requests seldom time out on a busy machine.
const LOAD: &str = "load = { rate = 50.0, timeout_ms = 20000 }";

const FORK_JOIN: &str = r#"
[[tenant.thread]]
name = "main"
program = ["request", { run_us = 200 }, { fork_join = { pool = "p", parts = 4, program = [{ run_us = 400 }] } }, { run_us = 200 }, "respond"]
[[tenant.thread]]
name = "helper"
count = 3
program = [{ help = "p" }]
"#;

fn start(tenants: &str) -> anyhow::Result<Workload> {
    start_interruptibly(tenants, Arc::default())
}

fn start_interruptibly(tenants: &str, interrupt: Arc<AtomicBool>) -> anyhow::Result<Workload> {
    let scenario = Scenario::parse(
        Path::new("test.toml"),
        &format!("name = \"test\"\n{tenants}"),
    )?;
    Workload::start(&scenario, Path::new(PLAYER), interrupt)
}

fn measure(workload: &mut Workload, seed: u64) -> Vec<Measurement> {
    workload
        .measure(Duration::from_millis(200), Duration::from_secs(1), seed)
        .unwrap()
        .0
}

/// Whether a process runs; a process that has ended and waits to be reaped does not.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

fn pids(workload: &Workload) -> Vec<u32> {
    workload
        .tenants()
        .iter()
        .flat_map(|tenant| &tenant.pids)
        .map(|pid| pid.0)
        .collect()
}

#[test]
fn fork_join_takes_its_critical_path_and_uses_its_cpu_time() {
    let tenants = format!("[[tenant]]\nname = \"img\"\n{LOAD}\n{FORK_JOIN}");
    let mut workload = start(&tenants).unwrap();
    let pids = pids(&workload);
    let names = || {
        let mut names: Vec<String> = std::fs::read_dir(format!("/proc/{}/task", pids[0]))
            .unwrap()
            .map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap())
            .map(|name| name.trim().to_string())
            .collect();
        names.sort();
        names
    };
    // A thread sets its name once it runs.
    let deadline = Instant::now() + Duration::from_secs(10);
    while names() != ["helper-0", "helper-1", "helper-2", "main"] {
        assert!(Instant::now() < deadline, "{:?}", names());
        std::thread::sleep(Duration::from_millis(10));
    }

    let (measured, stillness) = workload
        .measure(Duration::from_millis(200), Duration::from_secs(1), 1)
        .unwrap();
    let first = &measured[0];
    assert!((30..80).contains(&first.requests), "{}", first.requests);
    assert_eq!(first.errors, 0);
    let known = first.latency.len() + stillness.left_out;
    assert_eq!(known, first.requests, "{stillness:?}");
    assert!(known > stillness.left_out, "all left out: {stillness:?}");
    // Half the serial part, a part, the other half: 0.8 ms on any machine.
    assert!(first.latency.min() >= 790_000, "{}", first.latency.min());
    assert!(first.latency.value_at_quantile(0.5) < 500_000_000);
    // 2 ms each, and little besides; some may lie in the wait for the last answers.
    let each = first.cpu_ns / first.requests;
    assert!((1_000_000..6_000_000).contains(&each), "{each}");
    // The CPU time is split by thread program.
    let programs: Vec<&str> = first.programs_ns.keys().map(String::as_str).collect();
    assert_eq!(programs, ["helper", "main"]);
    let known: u64 = first.programs_ns.values().sum();
    assert!(known.abs_diff(first.cpu_ns) < first.cpu_ns / 5, "{known}");
    // Equal seeds give equal requests.
    assert_eq!(measure(&mut workload, 1)[0].requests, first.requests);
    workload.stop().unwrap();
    assert!(!pids.iter().any(|&pid| runs(pid)));
}

#[test]
fn every_kind_of_step_plays() {
    let mut workload = start(&format!(
        r#"
[[tenant]]
name = "stages"
{LOAD}
[[tenant.thread]]
name = "first"
spin_us = 30
program = ["request", {{ run_us = {{ exponential = 50 }} }}, {{ send = "q" }}]
[[tenant.thread]]
name = "second"
count = 2
spin_us = 30
program = [{{ receive = "q" }}, {{ repeat = {{ times = 3, program = [{{ lock = {{ name = "m", program = [{{ run_us = 20 }}] }} }}] }} }}, "respond"]
[[tenant]]
name = "steps"
class = "batch"
[[tenant.thread]]
name = "step"
count = 2
program = [{{ run_us = {{ uniform = [10, 100] }} }}, {{ sleep_us = 500 }}, {{ barrier = "b" }}]
"#
    ))
    .unwrap();
    let measured = measure(&mut workload, 3);
    assert!(
        measured[0].requests > 20 && measured[0].errors == 0,
        "{:?}",
        measured[0]
    );
    assert!(measured[0].work.is_none());
    assert!(measured[1].work.unwrap() > 20.0 && measured[1].work_unit == "rounds");
    assert!(measured[1].latency.is_empty() && measured[1].generator.is_none());
}

#[test]
fn timers_reader_writer_locks_semaphores_and_events_play() {
    let tenant = |name: &str, threads: &[&str]| {
        let mut text = format!("[[tenant]]\nname = \"{name}\"\nclass = \"batch\"\n");
        for (number, program) in threads.iter().enumerate() {
            text += &format!("[[tenant.thread]]\nname = \"t{number}\"\nprogram = [{program}]\n");
        }
        text
    };
    let semaphore = |first: &str| {
        format!(
            "{{ acquire = {{ name = \"s\"{first} }} }}, {{ sleep_us = 5000 }}, {{ release = \"s\" }}"
        )
    };
    let write = "{ write = { name = \"l\", program = [{ sleep_us = 5000 }] } }, { read = { name = \"l\", program = [{ run_us = 10 }] } }";
    let read = "{ read = { name = \"l\", program = [{ run_us = 10 }] } }, { sleep_us = 1000 }";
    let tenants = [
        tenant("timer", &["{ run_us = 10 }, { timer_us = 5000 }"]),
        tenant("semaphore", &[&semaphore(", initial = 1"), &semaphore("")]),
        tenant("writers", &[write, write]),
        tenant("readers", &[read, read, write]),
        tenant(
            "events",
            &[
                "{ signal = \"there\" }, { wait = \"back\" }, { sleep_us = 1000 }",
                "{ wait = \"there\" }, { run_us = 10 }, { broadcast = \"back\" }",
            ],
        ),
    ];
    let mut workload = start(&tenants.concat()).unwrap();
    let measured = measure(&mut workload, 3);
    workload.stop().unwrap();
    for (number, it) in measured.iter().enumerate() {
        let rounds = it.work.unwrap();
        // On a machine of any speed.
        assert!(rounds >= 5.0, "{}: {rounds}", it.tenant);
        // Where only one thread at a time may take 5 ms, or one timer goes off that often, there is a round
        // in 5 ms; two at a time would do twice as many. The rest is for readings that come late.
        let most = 1.5 * it.length_ns as f64 / 5e6;
        assert!(number > 2 || rounds <= most, "{}: {rounds}", it.tenant);
    }
}

#[test]
fn a_signal_goes_to_who_waits_already() {
    let mut workload = start(
        r#"
[[tenant]]
name = "a"
class = "batch"
[[tenant.thread]]
name = "decoder"
program = [{ timer_us = 10000 }, { signal = "q" }, { wait = "q" }, { run_us = 15 }]
[[tenant.thread]]
name = "other"
program = [{ wait = "q" }, { run_us = 30 }, { signal = "q" }]
[[tenant]]
name = "b"
class = "batch"
[[tenant.thread]]
name = "decoder"
program = [{ lock = { name = "m", program = [{ signal = "q" }, { wait_next = "q" }] } }, { timer = { period_us = 10000 } }]
[[tenant.thread]]
name = "other"
program = [{ lock = { name = "m", program = [{ wait_next = "q" }] } }, { run_us = 30 }, { lock = { name = "m", program = [{ signal = "q" }] } }]
[[tenant]]
name = "c"
class = "batch"
[[tenant.thread]]
name = "tells-all"
program = [{ timer_us = 10000 }, { broadcast = "e" }]
[[tenant.thread]]
name = "twice"
program = [{ wait_next = "e" }, { run_us = 10 }, { wait = "e" }]
"#,
    )
    .unwrap();
    let measured = measure(&mut workload, 3);
    workload.stop().unwrap();
    for it in &measured {
        // Two rounds in each period, or fewer on a slow machine; a thread that took its own signals would do
        // more. The third tenant's second thread has seen the broadcast that let it past, so it has a round
        // in two.
        let per_period = if it.tenant.as_str() == "c" { 1.5 } else { 2.0 };
        let (rounds, due) = (it.work.unwrap(), per_period * it.length_ns as f64 / 10e6);
        assert!(rounds <= due + 4.0, "{}: {rounds} of {due}", it.tenant);
        // Where a signal that comes too early is lost, as the second tenant's may be, both threads wait for
        // ever.
        assert!(
            it.tenant.as_str() != "a" || rounds >= 2.0,
            "{rounds} of {due}"
        );
    }
}

#[test]
fn threads_are_scheduled_as_the_scenario_says() {
    let workload = start(
        r#"
[[tenant]]
name = "a"
class = "batch"
[[tenant.thread]]
name = "first"
rounds = 1
program = [{ run_us = 10 }]
[[tenant.thread]]
name = "nice"
nice = 7
program = [{ run_us = 10 }, { sleep_us = 1000 }]
[[tenant.thread]]
name = "idle"
policy = "idle"
program = [{ run_us = 10 }, { sleep_us = 1000 }]
[[tenant.thread]]
name = "batch"
policy = "batch"
delay_us = 1000
program = [{ run_us = 10 }, { sleep_us = 1000 }]
"#,
    )
    .unwrap();
    let mut seen = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{}/task", pids(&workload)[0])).unwrap() {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        let (name, rest) = stat.split_once(") ").unwrap();
        let fields: Vec<&str> = rest.split(' ').collect();
        // Nice value and policy (proc_pid_stat(5)).
        let name = name.split_once('(').unwrap().1.to_string();
        seen.push((name, fields[16].to_string(), fields[38].to_string()));
    }
    seen.sort();
    let own = &seen[2].1;
    let expected = [
        ("batch", own.as_str(), "3"),
        ("first", own, "0"),
        ("idle", own, "5"),
        ("nice", "7", "0"),
    ];
    let seen: Vec<_> = seen
        .iter()
        .map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_str()))
        .collect();
    assert_eq!(seen, expected);
    workload.stop().unwrap();
}

/// How long a busy machine may take until something has happened.
const LIMIT: Duration = Duration::from_secs(30);

/// The other processes in the group that this process leads, each with its parent; those that are not reaped
/// yet are among them if `all`.
fn followers(leader: u32, all: bool) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let Some((pid, _)) = stat.split_once(" (") else {
            continue;
        };
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        // The group of a process that is just being reaped is -1.
        let number = |it: &str| it.parse::<i32>().unwrap() as u32;
        let [pid, parent, group] = [pid, fields[1], fields[2]].map(number);
        if group == leader && pid != leader && (all || fields[0] != "Z") {
            found.push((pid, parent));
        }
    }
    found
}

fn one_thread(program: &str) -> String {
    format!(
        "[[tenant]]\nname = \"make\"\nclass = \"batch\"\n[[tenant.thread]]\nname = \"make\"\n\
         program = [{program}]\n"
    )
}

#[test]
fn a_thread_has_so_many_processes_at_most() {
    let program = "{ spawn = { program = [{ sleep_us = 20000 }], wait = false, most = 3 } }";
    let mut workload = start(&one_thread(program)).unwrap();
    let player = pids(&workload)[0];
    let over = Arc::new(AtomicBool::new(false));
    let watch = {
        let over = Arc::clone(&over);
        std::thread::spawn(move || {
            let mut most = 0;
            while !over.load(Ordering::Relaxed) {
                most = most.max(followers(player, true).len());
                std::thread::sleep(Duration::from_millis(2));
            }
            most
        })
    };
    let measured = measure(&mut workload, 1);
    over.store(true, Ordering::Relaxed);
    // A process that has ended counts until it is reaped.
    assert_eq!(watch.join().unwrap(), 3);
    // Three at a time, of 20 ms and more each; the rest is for readings that come late.
    let rounds = measured[0].work.unwrap();
    let due = 3.0 * measured[0].length_ns as f64 / 20e6;
    assert!((5.0..=1.5 * due).contains(&rounds), "{rounds} of {due}");
    workload.stop().unwrap();
    assert!(eventually(LIMIT, || followers(player, false).is_empty()));
}

#[test]
fn a_thread_waits_for_all_its_processes_and_counts_what_they_use() {
    // One process that runs and sleeps, and one that runs and starts another.
    let program = "{ spawn = { program = [{ run_us = 1000 }, { sleep_us = 5000 }], wait = false } }, \
                   { spawn = { program = [{ repeat = { times = 2, program = [{ run_us = 500 }] } }, \
                   { spawn = { program = [{ run_us = 2000 }] } }] } }";
    let mut workload = start(&one_thread(program)).unwrap();
    let player = pids(&workload)[0];
    let measured = measure(&mut workload, 1).remove(0);
    let rounds = measured.work.unwrap();
    // A round takes 6 ms at least.
    let most = 1.5 * measured.length_ns as f64 / 6e6;
    assert!((5.0..=most).contains(&rounds), "{rounds} of {most}");
    // 4 ms of CPU time each, however long that takes; a round may have begun before the window.
    let ms = measured.cpu_ns as f64 / 1e6;
    assert!(ms >= 4.0 * (rounds - 1.0), "{ms} in {rounds}");
    // Two processes at a time.
    let time = 2.2 * measured.length_ns as f64 / 1e6;
    assert!(ms <= time, "{ms} of {time}");
    workload.stop().unwrap();
    assert!(eventually(LIMIT, || followers(player, false).is_empty()));
}

#[test]
fn a_long_process_counts_while_it_runs() {
    let program = "{ spawn = { program = [{ run_us = 60000000 }], wait = false } }, \
                   { sleep_us = 60000000 }";
    let mut workload = start(&one_thread(program)).unwrap();
    let player = pids(&workload)[0];
    let measured = measure(&mut workload, 1).remove(0);
    let part = measured.cpu_ns as f64 / measured.length_ns as f64;
    assert!((0.001..1.1).contains(&part), "{part}");
    assert_eq!(followers(player, true).len(), 1);
    workload.stop().unwrap();
    assert!(eventually(LIMIT, || followers(player, false).is_empty()));
}

#[test]
fn a_process_outlives_its_parent_and_not_the_player() {
    let program = "{ spawn = { program = [{ run_us = 10 }, \
                   { spawn = { program = [{ sleep_us = 60000000 }], wait = false } }], wait = false } }, \
                   { spawn = { program = [{ run_us = 60000000 }], wait = false } }, \
                   { sleep_us = 60000000 }";
    let scenario = one_thread(program);
    let both = |player: u32| {
        let found = followers(player, false);
        let left = found.iter().filter(|it| it.1 != player).count();
        found.len() == 2 && left == 1
    };
    let workload = start(&scenario).unwrap();
    let player = pids(&workload)[0];
    // Tenants that take no requests are held until the load begins.
    let group = nix::unistd::Pid::from_raw(player as i32);
    nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGCONT).unwrap();
    assert!(eventually(LIMIT, || both(player)));
    // The player is our own child and not reaped yet, so the pid is still its own.
    nix::sys::signal::kill(group, nix::sys::signal::Signal::SIGKILL).unwrap();
    assert!(eventually(LIMIT, || followers(player, false).is_empty()));
    drop(workload);

    let workload = start(&scenario).unwrap();
    let player = pids(&workload)[0];
    workload.stop().unwrap();
    assert!(eventually(LIMIT, || followers(player, false).is_empty()));
}

#[test]
fn requests_start_processes_too() {
    let mut workload = start(&format!(
        "[[tenant]]\nname = \"cgi\"\n{LOAD}\n[[tenant.thread]]\nname = \"cgi\"\ncount = 2\n\
         nice = 5\nspin_us = 50\n\
         program = [\"request\", {{ spawn = {{ program = [{{ run_us = 1000 }}] }} }}, \"respond\"]"
    ))
    .unwrap();
    let measured = measure(&mut workload, 1).remove(0);
    assert!(
        (30..80).contains(&measured.requests),
        "{}",
        measured.requests
    );
    assert_eq!(measured.errors, 0);
    assert!(
        measured.latency.min() >= 990_000,
        "{}",
        measured.latency.min()
    );
    let each = measured.cpu_ns / measured.requests;
    assert!(each >= 900_000, "{each}");
    workload.stop().unwrap();
}

/// Runs one application for a second; the load generator verifies every answer.
fn application(name: &str, package: &str, table: &str) {
    let batch = if name == "xz" {
        "class = \"batch\""
    } else {
        LOAD
    };
    let tenants = format!("[[tenant]]\nname = \"{name}\"\n{batch}\n{table}");
    let mut workload = match start(&tenants) {
        Err(error) if format!("{error:#}").contains("is not installed") => {
            assert!(format!("{error:#}").contains(&format!("apt-get install {package}")));
            quell_testkit::skip!(Apps, "{name} is not installed");
            return;
        }
        started => started.unwrap(),
    };
    let pids = pids(&workload);
    assert!(pids.iter().all(|&pid| runs(pid)));
    let measured = measure(&mut workload, 7).remove(0);
    if name == "xz" {
        assert!(measured.work.unwrap() > 100_000.0 && measured.work_unit == "bytes");
    } else {
        assert!(
            (30..80).contains(&measured.requests),
            "{}",
            measured.requests
        );
        assert_eq!(measured.errors, 0);
    }
    assert!(measured.cpu_ns > 0);
    workload.stop().unwrap();
    assert!(!pids.iter().any(|&pid| runs(pid)));
}

#[test]
fn memcached_answers_rightly() {
    application(
        "memcached",
        "memcached",
        "[tenant.app.memcached]\nkeys = 1000",
    );
}

#[test]
fn nginx_answers_rightly_compressed_and_plain() {
    application("nginx", "nginx-light", "[tenant.app.nginx]\nworkers = 2");
    application(
        "nginx",
        "nginx-light",
        "[tenant.app.nginx]\nworkers = 1\ngzip = false",
    );
}

#[test]
fn redis_answers_rightly() {
    let mix = "mix = { get = 1.0, lrange = 1.0, sort = 1.0, zrange = 1.0, eval = 1.0 }";
    application(
        "redis",
        "redis-server",
        &format!("[tenant.app.redis]\n{mix}"),
    );
}

#[test]
fn xz_works() {
    application("xz", "xz-utils", "[tenant.app.xz]\nthreads = \"cpus\"");
}

#[test]
fn an_overloaded_window_does_not_burden_the_next() {
    // 200 requests of 20 ms in a second: four times what one thread can do.
    let mut workload = start(
        "[[tenant]]\nname = \"slow\"\nload = { arrival = \"fixed\", rate = 200.0, timeout_ms = 1000 }\n\
         [[tenant.thread]]\nname = \"t\"\nprogram = [\"request\", { sleep_us = 20000 }, \"respond\"]",
    )
    .unwrap();
    let mut window = |milliseconds| {
        workload
            .measure(Duration::ZERO, Duration::from_millis(milliseconds), 1)
            .unwrap()
            .0
            .remove(0)
    };
    let overloaded = window(1000);
    assert_eq!(overloaded.requests, 200);
    assert!(
        (100..200).contains(&overloaded.errors),
        "{}",
        overloaded.errors
    );
    // 2 requests: were the backlog of 2 s before them, they would time out.
    let light = window(10);
    assert_eq!(
        (light.requests, light.errors),
        (2, 0),
        "{:?}",
        light.latency.max()
    );
}

#[test]
fn an_interrupt_ends_measuring_soon() {
    let interrupt = Arc::new(AtomicBool::new(false));
    let tenants = format!("[[tenant]]\nname = \"img\"\n{LOAD}\n{FORK_JOIN}");
    let mut workload = start_interruptibly(&tenants, Arc::clone(&interrupt)).unwrap();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        interrupt.store(true, Ordering::Relaxed);
    });
    let start = Instant::now();
    let result = workload.measure(Duration::ZERO, Duration::from_secs(60), 1);
    assert!(result.unwrap_err().downcast_ref::<Interrupted>().is_some());
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_tenant_that_dies_is_reported_by_name() {
    let mut workload = start(&format!("[[tenant]]\nname = \"img\"\n{LOAD}\n{FORK_JOIN}")).unwrap();
    let pid = pids(&workload)[0];
    // The player is our own child and not reaped yet, so the pid is still its own.
    let process = nix::unistd::Pid::from_raw(pid as i32);
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL).unwrap();
    let result = workload.measure(Duration::from_millis(100), Duration::from_millis(500), 1);
    let error = format!("{:#}", result.unwrap_err());
    assert!(
        error.contains("img") && error.contains("has ended"),
        "{error}"
    );
}

#[test]
fn killing_us_leaves_no_tenant_behind() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.toml");
    let mut text = format!("name = \"test\"\n[[tenant]]\nname = \"img\"\n{LOAD}\n{FORK_JOIN}");
    text +=
        &one_thread("{ spawn = { program = [{ sleep_us = 60000000 }], wait = false, most = 4 } }");
    // nginx has workers, of which we are not the parent.
    if Path::new("/usr/sbin/nginx").exists() {
        text += &format!("[[tenant]]\nname = \"web\"\n{LOAD}\n[tenant.app.nginx]\n");
    } else {
        quell_testkit::skip!(Apps, "nginx is not installed");
    }
    std::fs::write(&file, text).unwrap();
    let mut ours = Command::new(PLAYER)
        .arg(&file)
        .args(["60", "0"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    // Kept: without a reader the next line would end the process.
    let mut out = BufReader::new(ours.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let pids: Vec<u32> = line
        .trim_start_matches("running: ")
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|pid| pid.parse().ok())
        .collect();
    assert!(
        !pids.is_empty() && pids.iter().all(|&pid| runs(pid)),
        "{line}"
    );
    assert!(eventually(LIMIT, || followers(pids[1], false).len() == 4));
    ours.kill().unwrap();
    ours.wait().unwrap();
    let gone = |&pid: &u32| !runs(pid) && followers(pid, false).is_empty();
    assert!(
        eventually(LIMIT, || pids.iter().all(gone)),
        "still there: {pids:?}"
    );
}
