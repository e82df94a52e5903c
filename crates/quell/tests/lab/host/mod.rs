//! A host as operators have it: Debian with systemd as its first process, and real units.

use crate::common;
use quell_lab::Lab;
use serde_json::Value;
use std::process::Command;

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
systemctl stop quell.service; systemctl is-failed quell.service || true
"#;

#[test]
fn units_of_a_real_systemd_are_tenants() {
    if !common::lab_is_ready() {
        return;
    }
    if !Lab::open().unwrap().has_system(&[]) {
        quell_testkit::skip!(Lab, "the lab has no system (`quell lab setup --system`)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["lab", "host", "--cpus", "2", "--out"])
        .arg(folder.path())
        .args(["--", "sh", "-c", UNITS])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr);
    println!("{said}\n{log}");
    assert!(output.status.success());
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
