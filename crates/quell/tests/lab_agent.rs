//! The agent with Quell's scheduler, on a kernel that has sched_ext: in a guest of the lab. Where the
//! lab has not been set up (`quell lab setup`, `./dev test` does it), it says so and passes.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A busy process and three that sleep and fork on two CPUs in two tenants, and an agent that meets every kind of end.
/// Few are busy, because the programs' verification takes long where all CPUs share a clock.
const SCRIPT: &str = r#"
state() { cat /sys/kernel/sched_ext/state; }
await() { # STATE: waits until the scheduler is in it
    for turn in $(seq 900); do [ "$(state)" = "$1" ] && return; sleep 0.1; done
    echo "not $1 after 90 s: $(state)"; cat $OUT/*.log; exit 1
}
look() { quell status --json --socket /run/q.sock > $OUT/$1.json || { cat $OUT/*.log; exit 1; }; }
agent() { # LOG ARGUMENTS: starts one
    log=$1; shift
    quell run -c /root/quell.toml --socket /run/q.sock --journal /root/journal "$@" > $OUT/$log.log 2>&1 &
    agent=$!
}
doze() { sh -c 'while :; do sleep 0.05; done' & }
sh -c 'while :; do :; done' & a=$!; doze; b=$!; doze; c=$!; doze; d=$!
cat > quell.toml <<EOF
[[tenant]]
name = "a"
pid = [$a, $b]
[[tenant]]
name = "b"
class = "batch"
weight = 50
pid = [$c, $d]
EOF
nices() { for p in $a $b $c $d; do cut -d' ' -f19 /proc/$p/stat; done | tr '\n' ' '; }
before=$(nices)

# It loads the scheduler, and tells it of the threads.
# Only this one has the BPF monitor: loading it takes long.
agent first; await enabled; sleep 2; look loaded
echo "nice $([ "$before" = "$(nices)" ] && echo same)"

# The scheduler ends: the agent goes on, says why, and loads it again.
echo S > /proc/sysrq-trigger
await disabled; sleep 0.3; look thrown_out
await enabled; sleep 0.3; look again

# A stopped agent: the scheduler goes on.
kill -STOP $agent; sleep 1; echo "stopped: $(state)"; kill -CONT $agent

# Killed: the kernel takes over, and no thread is lost.
kill -9 $agent; wait $agent; await disabled
ran() { for p in $a $b $c $d; do cut -d' ' -f1 /proc/$p/schedstat; done; }
before_ns=$(ran); sleep 1; echo "$before_ns" > $OUT/before_ns; ran > $OUT/after_ns

# The next one has nothing to undo but works; SIGTERM ends it in order.
agent second --source procfs; await enabled; kill -TERM $agent; wait $agent; echo "SIGTERM: $?"; await disabled
echo "nice $([ "$before" = "$(nices)" ] && echo same)"

# Asked for stock interfaces, it loads nothing; without acting, neither.
(echo '[agent]'; echo 'backend = "stock"'; cat quell.toml) > q2 && mv q2 quell.toml
agent third --source procfs; sleep 1.5; look stock; echo "stock: $(state)"; kill -TERM $agent; wait $agent
sed -i s/stock/sched_ext/ quell.toml
agent fourth --dry-run --source procfs; sleep 1; echo "dry run: $(state)"; kill -TERM $agent; wait $agent
# Where it must have the scheduler and another one runs, it does not start, and says whose.
quell sched > /dev/null & other=$!; await enabled
agent fifth --source procfs; wait $agent; echo "occupied: $?"; kill -INT $other; wait $other
kill $a $b $c $d
"#;

fn json(folder: &Path, name: &str) -> Value {
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_agent_acts_through_the_scheduler_and_outlives_it() {
    if !common::lab_is_ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["lab", "run", "--cpus", "2", "--memory", "1G", "--out"])
        .arg(folder.path())
        .args(["--", "sh", "-c", SCRIPT])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{log}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines,
        [
            "nice same",
            "stopped: enabled",
            "SIGTERM: 0",
            "nice same",
            "stock: disabled",
            "dry run: disabled",
            "occupied: 1",
        ]
    );
    let status = |name: &str| json(folder.path(), &format!("{name}.json"));
    let loaded = status("loaded");
    assert_eq!(
        (&loaded["backend"], &loaded["backend_reason"]),
        (&"sched_ext".into(), &Value::Null)
    );
    // The scheduler counts in the place of the monitor's trace points, after its end they do again: the busy process
    // always runs or waits.
    for name in ["loaded", "thrown_out", "again"] {
        let tenant = &status(name)["tenants"][0];
        let percent = |key: &str| tenant[key].as_f64().unwrap();
        let busy = percent("run_percent") + percent("ready_percent");
        assert!(percent("run_percent") > 20.0, "{name}: {tenant}");
        assert!((80.0..150.0).contains(&busy), "{name}: {tenant}");
    }
    assert_eq!(
        (&loaded["source"], &loaded["fallback_reason"]),
        (&"bpf".into(), &Value::Null)
    );
    assert!(loaded["changes"].as_u64().unwrap() >= 4, "{loaded}");
    let thrown_out = status("thrown_out");
    assert_eq!(thrown_out["backend"], "stock");
    let notes = thrown_out["notes"].to_string();
    assert!(notes.contains("acting on stock interfaces"), "{notes}");
    let again = status("again");
    assert_eq!(again["backend"], "sched_ext");
    assert!(
        again["notes"].to_string().contains("loaded again"),
        "{again}"
    );
    let stock = status("stock");
    assert_eq!(stock["backend"], "stock");
    assert!(
        stock["backend_reason"]
            .to_string()
            .contains("configuration"),
        "{stock}"
    );
    let fifth = std::fs::read_to_string(folder.path().join("fifth.log")).unwrap();
    assert!(
        fifth.contains("another sched_ext scheduler runs (`quell"),
        "{fifth}"
    );
    // Each of the four got CPU time from the kernel's own scheduler.
    let ns = |name: &str| -> Vec<u64> {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    for (before, after) in ns("before_ns").into_iter().zip(ns("after_ns")) {
        assert!(after > before, "{before} {after}");
    }
}
