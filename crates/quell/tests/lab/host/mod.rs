//! A host as operators have it: Debian with systemd as its first process, and real units.

mod containers;
mod machines;
mod pods;
mod watch;

use serde_json::Value;

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
    let Some((folder, said)) = watch::on_host(&[], UNITS) else {
        return;
    };
    println!("{said}");
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
