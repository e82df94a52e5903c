//! The agent with Quell's scheduler, on a kernel that has sched_ext.

use crate::common;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A busy process and three that sleep and fork on two CPUs in two tenants.
/// Few are busy, because the programs' verification takes long where all CPUs share a clock.
const TENANTS: &str = r#"
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
short=/sys/fs/cgroup/short; mkdir $short; doze; e=$!; echo $e > $short/cgroup.procs
cat > quell.toml <<EOF
[agent]
guard = "off"
[asymmetry]
slices = true
latencies = true
[[tenant]]
name = "a"
pid = [$a, $b]
[[tenant]]
name = "b"
class = "batch"
weight = 50
pid = [$c, $d]
[[tenant]]
name = "short"
cgroup = "short"
EOF
nices() { for p in $a $b $c $d; do cut -d' ' -f19 /proc/$p/stat; done | tr '\n' ' '; }
before=$(nices)
"#;

/// An agent that meets every kind of end.
const ENDS: &str = r#"
# It loads the scheduler, and tells it of the threads.
# Only this one has the BPF monitor: loading it takes long.
agent first; await enabled; sleep 2; look loaded
echo "nice $([ "$before" = "$(nices)" ] && echo same)"

# Processes that are made elsewhere, move into a tenant's cgroup, and end after a ms or two.
churn() {
    while :; do
        (read -r p rest < /proc/self/stat; echo $p > $short/cgroup.procs; i=0; while [ $i -lt 99 ]; do i=$((i + 1)); done)
        echo >> $OUT/churned
    done
}
used() { sed -n 's/^usage_usec //p' $short/cpu.stat; wc -l < $OUT/churned; }
churn & churner=$!; sleep 2; used > $OUT/used_before; sleep 2; used > $OUT/used_after
quell status --json --window 2 --socket /run/q.sock > $OUT/churn.json || cat $OUT/first.log
kill $churner

# The scheduler ends: the agent goes on, says why, and loads it again.
echo S > /proc/sysrq-trigger
await disabled; sleep 0.3; look thrown_out
await enabled; sleep 0.3; look again

# A stopped agent: the scheduler goes on.
kill -STOP $agent; sleep 1; echo "stopped: $(state)"; kill -CONT $agent

# Killed: the kernel takes over, and no thread is lost.
kill -9 $agent; wait $agent; await disabled
ran() { for p in $a $b $c $d; do cut -d' ' -f1 /proc/$p/schedstat; done; }
ran > $OUT/killed_before_ns; sleep 1; ran > $OUT/killed_after_ns

# The next one has nothing to undo but works.
# Who is busy waits meanwhile: else loading takes twice as long.
kill -STOP $a; agent next --source procfs; await enabled; kill -CONT $a; sleep 1; look next
kill -TERM $agent; wait $agent; echo "SIGTERM: $?"; await disabled
echo "nice $([ "$before" = "$(nices)" ] && echo same)"
kill $a $b $c $d $e
"#;

/// Agents of other policies and backends.
const OTHERS: &str = r#"
# SIGTERM ends it in order. Tenants that are no cgroups get their weights' parts of
# both CPUs, and are told what they deserved. The busy ones wait until it is loaded.
spin() { sh -c 'while :; do :; done' & }
spin; e=$!; spin; f=$!; spin; g=$!; kill -STOP $a $e $f $g
cat > shares.toml <<EOF
[agent]
policy = ["asymmetry", "share"]
[[tenant]]
name = "one"
pid = [$a, $e]
[[tenant]]
name = "two"
weight = 300
pid = [$f, $g]
EOF
quell run -c /root/shares.toml --source procfs --socket /run/q.sock --journal /root/journal > $OUT/second.log 2>&1 & agent=$!
await enabled; kill -CONT $a $e $f $g; sleep 3
spent() { for p in $a $e $f $g; do cut -d' ' -f1 /proc/$p/schedstat; done; }
spent > $OUT/before_ns; sleep 2; spent > $OUT/after_ns
quell explain two --json --socket /run/q.sock > $OUT/explain.json || cat $OUT/second.log
quell explain two --socket /run/q.sock | grep 'of the host' > $OUT/explain.txt
kill -TERM $agent; wait $agent; echo "SIGTERM: $?"; await disabled; kill $e $f $g
echo "nice $([ "$before" = "$(nices)" ] && echo same)"

# Asked for stock interfaces, it loads nothing; without acting, neither.
(echo '[agent]'; echo 'backend = "stock"'; tail -n +2 quell.toml) > q2 && mv q2 quell.toml
agent third --source procfs; sleep 1.5; look stock; echo "stock: $(state)"; kill -TERM $agent; wait $agent
sed -i s/stock/sched_ext/ quell.toml
agent fourth --dry-run --source procfs; sleep 1; echo "dry run: $(state)"; kill -TERM $agent; wait $agent
# Where it must have the scheduler and another one runs, it does not start, and says whose.
quell sched > /dev/null & other=$!; await enabled
agent fifth --source procfs; wait $agent; echo "occupied: $?"; kill -INT $other; wait $other
kill $a $b $c $d
"#;

/// Two CPUs: one is promised to `a`, which always needs its worst case there, so that nothing of this CPU is
/// left for `b`'s budget.
const PROMISES: &str = r#"
state() { cat /sys/kernel/sched_ext/state; }
spin() { sh -c 'while :; do :; done' & }
spin; a=$!; spin; b=$!; spin; c=$!; spin; d=$!; kill -STOP $a $b $c $d
cat > quell.toml <<EOF
[agent]
policy = ["criticality"]
[[tenant]]
name = "a"
pid = [$a]
criticality = "high"
period_ms = 100
budget_ms = 10
pessimistic_budget_ms = 60
[[tenant]]
name = "b"
pid = [$b]
criticality = "low"
period_ms = 50
budget_ms = 20
[[tenant]]
name = "c"
pid = [$c]
[[tenant]]
name = "d"
pid = [$d]
criticality = "low"
period_ms = 100
budget_ms = 96
EOF
cat > more.toml <<EOF
[[tenant]]
name = "e"
criticality = "low"
period_ms = 100
budget_ms = 20
[[tenant]]
name = "f"
criticality = "low"
period_ms = 100
budget_ms = 70
EOF
quell run -c quell.toml --source procfs --socket /run/q.sock --journal /root/journal > $OUT/agent.log 2>&1 & agent=$!
for turn in $(seq 900); do [ "$(state)" = enabled ] && break; sleep 0.1; done
kill -CONT $a $b $c $d; sleep 2
spent() { for p in $a $b $c; do cut -d' ' -f1 /proc/$p/schedstat; done; }
spent > $OUT/before_ns; sleep 3; spent > $OUT/after_ns
quell status --json --socket /run/q.sock > $OUT/status.json || cat $OUT/agent.log
quell status --socket /run/q.sock | grep promised
quell admit --running --json --socket /run/q.sock more.toml > $OUT/admit.json; echo "admit: $?"
cpus() { grep Cpus_allowed_list /proc/$1/status | cut -f2; }
echo "a on $(cpus $a), b on $(cpus $b), c on $(cpus $c)"
kill $d; sleep 0.5
kill -TERM $agent; wait $agent; echo "SIGTERM: $?, $(state); a on $(cpus $a)"
kill $a $b $c
"#;

/// One tenant with a promise on each CPU. The configuration is reloaded several times: another tenant comes,
/// `b` wants too much, `a` goes and `b` wants more, and the scheduler changes its options. The BPF monitor
/// stays through all of them.
const RELOADS: &str = r#"
state() { cat /sys/kernel/sched_ext/state; }
loads() { cat /sys/kernel/sched_ext/enable_seq; }
spin() { sh -c 'while :; do :; done' & }
spin; a=$!; spin; b=$!; spin; c=$!; kill -STOP $a $b $c
tenant() { # NAME PID BUDGET
    printf '[[tenant]]\nname = "%s"\npid = [%s]\ncriticality = "low"\nperiod_ms = 100\nbudget_ms = %s\n' $1 $2 $3
}
head() { printf '[agent]\npolicy = ["criticality"%s]\n%s' "$1" "$2"; }
cpus() { grep Cpus_allowed_list /proc/$1/status | cut -f2; }
status() { quell status --json --socket /run/q.sock; }
reload() { # NAME NUMBER: of reloads after it
    [ $1 != others ] || kill -STOP $a $b $c # they wait while the scheduler is loaded
    kill -HUP $agent
    for turn in $(seq 900); do status | grep -q '"reloads": '$2 && break; sleep 0.1; done
    kill -CONT $a $b $c; sleep 1
    echo "$1: $(loads) loads; a on $(cpus $a), b on $(cpus $b), c on $(cpus $c)"
    quell status --socket /run/q.sock | grep 'promised\|promises'
}
(head; tenant a $a 50; tenant b $b 60) > quell.toml
quell run -c quell.toml --socket /run/q.sock --journal /root/journal > $OUT/agent.log 2>&1 & agent=$!
for turn in $(seq 900); do [ "$(state)" = enabled ] && break; sleep 0.1; done
kill -CONT $a $b $c; sleep 1
echo "at first: $(loads) loads; a on $(cpus $a), b on $(cpus $b)"
(head; tenant c $c 20; tenant b $b 60; tenant a $a 50) > quell.toml; reload more 1
(head; tenant c $c 20; tenant b $b 97) > quell.toml; kill -HUP $agent; sleep 1
quell status --socket /run/q.sock | grep -o 'refused: .* has no room on CPU .'
(head; tenant c $c 20; tenant b $b 70) > quell.toml; reload less 2
(head ', "asymmetry"' '[asymmetry]
causal = false
'; tenant c $c 20; tenant b $b 70) > quell.toml; reload others 3
status > $OUT/status.json
kill -TERM $agent; wait $agent; echo "SIGTERM: $?, $(state); b on $(cpus $b)"
kill $a $b $c
"#;

/// Runs a script in a guest of two CPUs; gives the folder of its files and its output, `None` where there is
/// no lab.
pub(crate) fn in_guest(script: &[&str]) -> Option<(tempfile::TempDir, String)> {
    if !common::lab_is_ready() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["lab", "run", "--cpus", "2", "--memory", "1G", "--out"])
        .arg(folder.path())
        .args(["--", "sh", "-c", &script.concat()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{log}");
    Some((folder, said))
}

#[test]
fn the_agent_promises_cpu_time() {
    let Some((folder, said)) = in_guest(&[PROMISES]) else {
        return;
    };
    println!("{said}");
    let ns = |name: &str| -> Vec<f64> {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    let (before, after) = (ns("before_ns"), ns("after_ns"));
    let got: Vec<f64> = (0..3).map(|at| (after[at] - before[at]) / 3e9).collect();
    println!("{got:?}");
    assert!(got[0] > 0.6 && got[1] > 0.39, "{got:?}\n{said}");
    // `b` did not get what it was promised beside `a`, and was moved.
    let lines: Vec<&str> = said.lines().collect();
    let refused = "d: not promised CPU time: U1(1) + U2(1) <= 1 does not hold, on CPU";
    assert!(lines[2].starts_with(refused), "{said}");
    assert_eq!(
        [&lines[..2], &lines[3..]].concat(),
        [
            "a: promised CPU time on CPU 0",
            "b: promised CPU time on CPU 1",
            "admit: 3",
            "a on 0, b on 1, c on 0-1",
            "SIGTERM: 0, disabled; a on 0-1",
        ]
    );
    let status = json(folder.path(), "status.json");
    assert_eq!(status["tenants"][1]["promise"]["state"], "kept");
    assert_eq!(status["tenants"][2]["promise"], Value::Null);
    // One of the tenants would fit beside `a`, the other nowhere.
    let admit = json(folder.path(), "admit.json");
    let tenants = admit["tenants"].as_array().unwrap();
    let of = |name: &str| tenants.iter().find(|it| it["tenant"] == name).unwrap();
    assert_eq!(of("e")["cpus"], serde_json::json!([0]));
    assert_eq!(
        of("f")["refusal"]["changes"].as_array().map(Vec::is_empty),
        Some(false)
    );
}

#[test]
fn a_reload_keeps_what_was_promised() {
    let Some((folder, said)) = in_guest(&[RELOADS]) else {
        return;
    };
    println!("{said}");
    let expected = [
        "at first: 1 loads; a on 0, b on 1",
        "more: 1 loads; a on 0, b on 1, c on 0",
        "a: promised CPU time on CPU 0",
        "b: promised CPU time on CPU 1",
        "c: promised CPU time on CPU 0",
        "refused: quell.toml: `tenant[1].budget_ms`: 97 of every 100 ms has no room on CPU 1",
        "less: 1 loads; a on 0-1, b on 1, c on 0",
        "b: promised CPU time on CPU 1",
        "c: promised CPU time on CPU 0",
        "others: 2 loads; a on 0-1, b on 1, c on 0",
        "b: promised CPU time on CPU 1",
        "c: promised CPU time on CPU 0",
        "  another scheduler was loaded for the new configuration: promises were not kept meanwhile, and begin new periods",
        "SIGTERM: 0, disabled; b on 0-1",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    let status = json(folder.path(), "status.json");
    assert_eq!(status["source"], "bpf");
    for tenant in status["tenants"].as_array().unwrap() {
        assert_eq!(tenant["broken_promises"], 0, "{tenant}");
    }
}

pub(crate) fn json(folder: &Path, name: &str) -> Value {
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_agent_acts_through_the_scheduler_and_outlives_it() {
    let Some((folder, said)) = in_guest(&[TENANTS, ENDS]) else {
        return;
    };
    let lines: Vec<&str> = said.lines().collect();
    let expected = ["nice same", "stopped: enabled", "SIGTERM: 0", "nice same"];
    assert_eq!(lines, expected);
    let status = |name: &str| json(folder.path(), &format!("{name}.json"));
    let loaded = status("loaded");
    assert_eq!(
        (&loaded["backend"], &loaded["backend_reason"]),
        (&"sched_ext".into(), &Value::Null)
    );
    // The scheduler counts in place of the monitor's trace points, which count again after its end: the busy
    // process always runs or waits.
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
    // CPU time of processes that ended before the agent saw them counts too.
    let used = spent(folder.path(), "used_before", "used_after");
    let (due, rate) = (used[0] / 20_000.0, used[1] / 2.0);
    let churn = status("churn");
    let short = &churn["tenants"][2];
    let shown = short["run_percent"].as_f64().unwrap();
    println!("{rate} processes a second: {shown:.1} % of a CPU shown, {due:.1} % used");
    assert!(rate > 50.0 && due > 10.0, "{rate} {due}");
    assert!((shown - due).abs() < 2.0, "{due}: {short}");
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
    assert_eq!(status("next")["backend"], "sched_ext");
    // Each of the four processes got CPU time from the kernel's own scheduler.
    let killed = spent(folder.path(), "killed_before_ns", "killed_after_ns");
    assert!(killed.iter().all(|ns| *ns > 0.0), "{killed:?}");
}

/// The CPU times between two readings, in ns.
fn spent(folder: &Path, before: &str, after: &str) -> Vec<f64> {
    let ns = |name: &str| -> Vec<u64> {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    let pairs = ns(after).into_iter().zip(ns(before));
    pairs
        .map(|(after, before)| (after - before) as f64)
        .collect()
}

#[test]
fn the_agent_has_the_backend_that_it_is_asked_for() {
    let Some((folder, said)) = in_guest(&[TENANTS, OTHERS]) else {
        return;
    };
    let lines: Vec<&str> = said.lines().collect();
    let expected = [
        "SIGTERM: 0",
        "nice same",
        "stock: disabled",
        "dry run: disabled",
        "occupied: 1",
    ];
    assert_eq!(lines, expected);
    let stock = json(folder.path(), "stock.json");
    assert_eq!(stock["backend"], "stock");
    let reason = stock["backend_reason"].to_string();
    assert!(reason.contains("configuration"), "{stock}");
    let fifth = std::fs::read_to_string(folder.path().join("fifth.log")).unwrap();
    assert!(
        fifth.contains("another sched_ext scheduler runs (`quell"),
        "{fifth}"
    );
    // Weights of 100 and 300, two busy threads each, two CPUs.
    let spent = spent(folder.path(), "before_ns", "after_ns");
    let ratio = (spent[2] + spent[3]) / (spent[0] + spent[1]);
    assert!((2.85..3.15).contains(&ratio), "{ratio} {spent:?}");
    let explain = json(folder.path(), "explain.json");
    let share = |key: &str| explain["share"][key].as_f64().unwrap();
    // Three quarters of what the agent and the kernel leave.
    let (deserved, received) = (share("deserved_cpus"), share("received_cpus"));
    assert!(share("demand_cpus") > 1.9, "{}", explain["share"]);
    assert!((1.2..1.51).contains(&deserved), "{}", explain["share"]);
    assert!((received - deserved).abs() < 0.04, "{}", explain["share"]);
    let text = std::fs::read_to_string(folder.path().join("explain.txt")).unwrap();
    assert!(
        text.contains("by weight 300") && text.contains("deserved 1."),
        "{text}"
    );
}
