//! A host as operators have it: Debian with systemd as its first process, and real units.

mod containers;
mod machines;
mod pods;
mod watch;

use serde_json::Value;
use std::path::Path;

/// A service that is disturbed by a batch unit, and Quell without a configuration.
const UNITS: &str = r#"
echo "first process: $(cat /proc/1/comm), $(systemctl is-system-running)"
systemd-run --quiet --unit=web.service taskset -c 0 bash -c 'while :; do :; done'
systemd-run --quiet --unit=backup.service --slice=batch.slice taskset -c 0 bash -c 'while :; do :; done'
systemd-run --quiet --unit=backup2.service --slice=batch.slice taskset -c 0 bash -c 'while :; do :; done'
systemd-run --quiet --unit=quell.service quell run --socket /run/q.sock --journal /root/journal
for turn in $(seq 100); do quell status --socket /run/q.sock >/dev/null 2>&1 && break; sleep 0.2; done
sleep 3
quell status --json --window 2 --socket /run/q.sock > $OUT/status.json || journalctl --no-pager -u quell
quell status --window 2 --socket /run/q.sock
systemctl stop web.service; sleep 0.5
quell status --json --socket /run/q.sock | grep -c '"name": "web.service"'
systemctl stop backup.service backup2.service
"#;

/// Units that want a CPU and do not have it, or do not want one, each for another reason.
const CAUSES: &str = r#"
spin() { # UNIT CPU PROPERTY...
    unit=$1; cpu=$2; shift 2
    systemd-run --quiet --unit=$unit.service -p CPUAffinity=$cpu "$@" bash -c 'while :; do :; done'
}
spin starved 0
spin urgent 0 -p CPUSchedulingPolicy=fifo -p CPUSchedulingPriority=10
spin limited 1 -p CPUQuota=20% -p CPUQuotaPeriodSec=100ms
spin lazy 1 -p CPUSchedulingPolicy=idle -p CPUWeight=idle
systemd-run --quiet --unit=quiet.service sleep 1000
sleep 5
quell status --json --window 3 --socket /run/q.sock > $OUT/causes.json
quell status --json --matrix --window 3 --socket /run/q.sock > $OUT/matrix.json
quell status --window 3 --socket /run/q.sock > $OUT/causes.txt
for unit in starved urgent limited lazy quiet; do
    quell explain --socket /run/q.sock $unit.service > $OUT/$unit.txt
done
systemctl stop urgent starved limited lazy quiet
systemctl stop quell.service; systemctl is-failed quell.service || true
"#;

#[test]
fn units_of_a_real_systemd_are_tenants() {
    let Some((folder, said)) = watch::on_host(&[], &[UNITS, CAUSES].concat()) else {
        return;
    };
    println!("{said}");
    told_apart(folder.path());
    let text = std::fs::read_to_string(folder.path().join("status.json")).unwrap();
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status["source"], "bpf");
    let tenants = status["tenants"].as_array().unwrap();
    let of = |name: &str| tenants.iter().find(|it| it["name"] == name).unwrap();
    // systemd's own, and those that were started.
    for unit in ["dbus.service", "systemd-journald.service", "init.scope"] {
        assert_eq!(of(unit)["labels"]["unit"], unit);
    }
    assert_eq!(of("backup.service")["labels"]["slice"], "batch.slice");
    let culprit = &of("web.service")["waits_for"][0];
    assert!(
        culprit["tenant"].as_str().unwrap().starts_with("backup"),
        "{culprit}"
    );
    let mut lines = said.lines();
    let head = lines.find(|it| it.starts_with("WHO WAITS"));
    assert!(
        head.is_some() && lines.next().unwrap().contains("backup"),
        "{said}"
    );
    let end: Vec<&str> = said.lines().rev().take(2).collect();
    assert_eq!(end, ["inactive", "0"], "{said}");
}

/// The starved, the throttled, the real-time and the idle tenant are told apart wherever tenants are shown.
fn told_apart(folder: &Path) {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let json = |name: &str| serde_json::from_str::<Value>(&read(name)).unwrap();
    let status = json("causes.json");
    let tenants = status["tenants"].as_array().unwrap();
    let of = |name: &str| tenants.iter().find(|it| it["name"] == name).unwrap();
    let percent = |name: &str, key: &str| of(name)[key].as_f64().unwrap();
    let longest = |name: &str| {
        let first = &of(name)["waits_for"][0];
        let other = first["tenant"].as_str().unwrap_or_default().to_string();
        (other, first["percent"].as_f64().unwrap_or(0.0))
    };
    let remarks = |name: &str| of(name)["remarks"].to_string();
    let screen = read("causes.txt");
    println!("{screen}");

    let (by, waits) = longest("starved.service");
    assert!(by == "urgent.service" && waits > 80.0, "{by} {waits}");
    assert!(percent("starved.service", "throttled_percent") < 1.0);
    assert_eq!(remarks("starved.service"), "[]");

    assert!(percent("limited.service", "throttled_percent") > 60.0);
    let (by, waits) = longest("limited.service");
    assert!(waits < 5.0, "{by} {waits}");
    assert!(remarks("limited.service").contains("0.20 CPUs"));

    assert!(percent("urgent.service", "ready_percent") < 10.0);
    assert!(percent("urgent.service", "caused_percent") > 80.0);
    assert!(remarks("urgent.service").contains("real-time"));

    let (by, waits) = longest("lazy.service");
    let expected = 5.0..40.0;
    assert!(
        by == "limited.service" && expected.contains(&waits),
        "{by} {waits}"
    );
    assert!(remarks("lazy.service").contains("SCHED_IDLE"));

    assert!(percent("quiet.service", "ready_percent") < 1.0);
    assert_eq!(remarks("quiet.service"), "[]");

    // The first screen begins with the starved one.
    let mut lines = screen.lines();
    assert!(lines.any(|it| it.starts_with("WHO WAITS")));
    let rows: Vec<&str> = lines.take_while(|it| !it.starts_with("last")).collect();
    assert!(rows[0].starts_with("starved"), "{rows:?}");
    assert!(rows[0].contains("urgent"), "{rows:?}");

    let matrix = json("matrix.json");
    let length = matrix["window"]["length_ns"].as_f64().unwrap();
    let rows = matrix["window"]["rows"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|it| it["tenant"] == name).unwrap();
    let stopped = |name: &str| row(name)["waits"]["bandwidth_ns"].as_f64().unwrap() / length;
    assert!(stopped("limited.service") > 0.6);
    assert!(stopped("starved.service") < 0.01);

    for (unit, word) in [
        ("limited", "cpu.max"),
        ("urgent", "real-time"),
        ("lazy", "SCHED_IDLE"),
    ] {
        for of in ["starved", "urgent", "limited", "lazy", "quiet"] {
            let text = read(&format!("{of}.txt"));
            assert_eq!(text.contains(word), of == unit, "{of}: {text}");
        }
    }
}
