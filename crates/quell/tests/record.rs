//! `quell record` as users see it. Where BPF cannot load, the recording itself is skipped.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use quell_testkit::eventually;
use quell_trace::{Kind, Reader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn record(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quell"))
        .arg("record")
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap()
}

/// Whether the program could record at all; where not, it has said why, and the test is skipped.
fn recorded(output: &Output) -> bool {
    let error = String::from_utf8_lossy(&output.stderr);
    let refused = [
        "no right to load BPF",
        "the kernel has no BTF",
        "the kernel refused",
    ];
    if refused.iter().any(|reason| error.contains(reason)) {
        assert_eq!(output.status.code(), Some(1), "{error}");
        quell_testkit::skip!(Bpf, "{error}");
        return false;
    }
    true
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_command_is_recorded_and_its_exit_code_passed_on() {
    let folder = tempfile::tempdir().unwrap();
    let script = "sleep 0.1; exit 7";
    let output = record(folder.path(), &["--json", "--", "sh", "-c", script]);
    if !recorded(&output) {
        return;
    }
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(files(folder.path()), ["quell.perfetto-trace"]);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(summary["seconds"].as_f64().unwrap() >= 0.1, "{summary}");
    assert!(summary["lost"].is_u64() && summary["gaps"]["unseen_switches"].is_u64());
    let processes = summary["processes"].as_array().unwrap();
    let slept = processes.iter().find(|p| p["name"] == "sleep").unwrap();
    assert!(slept["switches"].as_u64().unwrap() >= 1, "{slept}");
    assert!(
        slept["run_delay"]["max_us"].as_f64().unwrap() > 0.0,
        "{slept}"
    );
    // The recorder is told apart from what it records.
    let own = &summary["recorder"]["pid"];
    assert!(processes.iter().all(|p| p["pid"] != *own));

    let mut names = Vec::new();
    for event in Reader::open(&folder.path().join("quell.perfetto-trace")).unwrap() {
        if let Kind::Rename { name, .. } = event.unwrap().kind {
            names.push(name.to_string());
        }
    }
    assert!(names.iter().any(|name| name == "sh"), "{names:?}");
    assert!(names.iter().any(|name| name == "sleep"), "{names:?}");
}

#[test]
fn it_ends_after_its_time_and_ends_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--seconds", "0.3", "-o", "t.pftrace", "--", "sleep", "600"];
    let output = record(folder.path(), &args);
    if !recorded(&output) {
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    // The recording is longer where the machine does not run the recorder at once.
    let seconds = text
        .strip_prefix("t.pftrace: ")
        .and_then(|rest| rest.split_once(" s of "));
    let seconds: f64 = seconds.unwrap_or_default().0.parse().unwrap();
    assert!((0.3..60.0).contains(&seconds), "{text}");
    assert!(
        text.contains("PROCESS") && text.contains("Events lost: "),
        "{text}"
    );
    assert_eq!(files(folder.path()), ["t.pftrace"]);
}

#[test]
fn a_killed_recorder_leaves_a_trace_to_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["record", "--seconds", "600"])
        .current_dir(folder.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut events = 0;
    let mut has_ended = false;
    let waited = eventually(Duration::from_secs(60), || {
        has_ended = child.try_wait().unwrap().is_some();
        if let Some(name) = files(folder.path()).pop().filter(|_| !has_ended) {
            assert!(name.starts_with("quell.perfetto-trace."), "{name}");
            // The file may end within a packet that is just being written.
            let reader = Reader::open(&folder.path().join(name)).unwrap();
            events = reader.filter(Result::is_ok).count();
        }
        has_ended || events > 200
    });
    if has_ended {
        assert!(!recorded(&child.wait_with_output().unwrap()));
        return;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(waited, "{events} events in a minute");
    let left = folder.path().join(files(folder.path()).pop().unwrap());
    let reader = Reader::open(&left).unwrap();
    assert!(reader.filter(Result::is_ok).count() >= events);
}

#[test]
fn mistakes_are_said_and_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (
            &["-o", "no/such/t", "--", "true"],
            "no/such/t: cannot be written",
        ),
        (&["--seconds", "0"], "0.1 to 3600"),
        (&["--buffer", "100"], "power of two"),
    ];
    for (args, says) in cases {
        let output = record(folder.path(), args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(
            error.starts_with("quell: ") && error.contains(says),
            "{error}"
        );
    }
    let output = record(folder.path(), &["--", "/no/such/program"]);
    if recorded(&output) {
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("/no/such/program: cannot be run"), "{error}");
    }
    assert!(files(folder.path()).is_empty());
}

#[test]
fn a_recording_of_this_host_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    // A process that spins, and one that sleeps and forks; both are in the trace from beginning to end.
    let script = "spin() { n=0; while [ $n -lt 100000 ]; do n=$((n+1)); done; }
        spin & for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.05; done; wait";
    let args = ["--seconds", "2", "-o", "t", "--", "sh", "-c", script];
    let output = record(folder.path(), &args);
    if !recorded(&output) {
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let replay = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_quell"))
            .args(["replay", "t"])
            .args(args)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let args = ["--policy", "fifo,eevdf,sched", "--cpus", "64"];
    let json = replay(&[&args[..], &["--process", "sh", "--json", "-"]].concat());
    let result: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let processes = result["processes"].as_array().unwrap();
    let cpu = |under: &serde_json::Value| under["cpu_ms"].as_f64().unwrap();
    let spinner = processes.iter().find(|it| cpu(&it["under"][0]) > 10.0);
    let under = spinner.unwrap()["under"].as_array().unwrap();
    let names: Vec<_> = under.iter().map(|it| it["policy"].as_str()).collect();
    let expected = ["recorded", "fifo", "eevdf", "sched"].map(Some);
    assert_eq!(names, expected);
    let most = |under: &serde_json::Value| under["run_delay"]["p99_us"].as_f64().unwrap();
    for it in &under[1..] {
        // There is a CPU for every process: the spinner gets the time that it used, and does not wait for it.
        let share = cpu(it) / cpu(&under[0]);
        assert!((0.9..1.2).contains(&share), "{under:?}");
        assert!(most(it) < 1000.0, "{under:?}");
        // Every wakeup's work is done.
        let count = |under: &serde_json::Value| under["turnaround"]["count"].as_u64();
        assert_eq!(count(it), count(&under[0]));
    }
    let table = String::from_utf8(replay(&[])).unwrap();
    assert!(table.contains("all processes") && table.contains("eevdf") && table.contains("sched"));
    assert_eq!(replay(&[]), table.as_bytes());
}
