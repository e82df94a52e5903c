//! Tenants that are found, without a configuration, on a kernel with the BPF monitor.

use crate::agent::{in_guest, json};
use serde_json::Value;

/// Units, containers and a pod by the cgroups that their managers make, and processes of none.
const FOUND: &str = r#"
cg=/sys/fs/cgroup
docker=1111111111111111111111111111111111111111111111111111111111111111
cri=2222222222222222222222222222222222222222222222222222222222222222
pod=b1c2d3e4_0011_2233_4455_66778899aabb
spin() { taskset 1 sh -c 'while :; do :; done' & } # all on one CPU
doze() { sh -c 'while :; do sleep 0.05; done' & }
into() { mkdir -p $cg/$1; echo $! > $cg/$1/cgroup.procs; pids="$pids $!"; }
spin; a=$!; into system.slice/nginx.service
spin; b=$!; into system.slice/backup.service
spin; c=$!; into system.slice/backup.service
doze; into docker/$docker
doze; into kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod$pod.slice/cri-containerd-$cri.scope
doze; into lxc.payload.web/system.slice/nginx.service
settings() { # all that Quell could change
    for pid in $pids; do cut -d' ' -f1,19,40,41 /proc/$pid/stat; grep allowed_list /proc/$pid/status; done
    find $cg -name cpu.weight -o -name cpu.max -o -name cpu.idle -o -name cpuset.cpus | sort | xargs grep .
}
settings > $OUT/before
quell run --socket /run/q.sock --journal /root/journal > $OUT/agent.log 2>&1 & agent=$!
until quell status --socket /run/q.sock > /dev/null 2>&1; do sleep 0.1; done
sleep 3
quell status --json --window 2 --socket /run/q.sock > $OUT/status.json
quell status --window 2 --socket /run/q.sock
quell check > $OUT/check.txt
settings > $OUT/after
cat /sys/kernel/sched_ext/state
kill $a $b $c
"#;

/// How long it takes until a tenant is seen, and until it is gone.
const TIMES: &str = r#"
names() { quell status --json --socket /run/q.sock | grep -c "\"name\": \"$1\""; }
now() { read -r s rest < /proc/uptime; echo $s; }
for turn in $(seq 20); do
    doze; own=$!
    now >> $OUT/came; into system.slice/t$turn.service
    until [ "$(names t$turn.service)" -gt 0 ]; do :; done; now >> $OUT/seen
    now >> $OUT/left; kill $own
    until [ "$(names t$turn.service)" = 0 ]; do :; done; now >> $OUT/gone
done
# Moved away, its tenant ends too.
doze; own=$!; into system.slice/x.service; sleep 0.4; into system.slice/y.service; sleep 0.4
echo "moved: $(names x.service) $(names y.service)"
kill -TERM $agent; wait $agent; echo "SIGTERM: $?"
"#;

#[test]
fn without_a_configuration_everything_is_a_tenant_and_nothing_changes() {
    let Some((folder, said)) = in_guest(&[FOUND, TIMES]) else {
        return;
    };
    println!("{said}");
    let folder = folder.path();
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    println!("{}", read("check.txt"));
    let status = json(folder, "status.json");
    assert_eq!(status["source"], "bpf", "{}", read("agent.log"));
    let tenants = status["tenants"].as_array().unwrap();
    let names: Vec<&str> = tenants
        .iter()
        .filter_map(|it| it["name"].as_str())
        .collect();
    let expected = [
        "111111111111",
        "b1c2d3e4-0011-2233-4455-66778899aabb",
        "backup.service",
        "nginx.service",
        "web",
    ];
    assert_eq!(names, expected);
    let of = |name: &str| tenants.iter().find(|it| it["name"] == name).unwrap();
    assert_eq!(of("111111111111")["labels"]["runtime"], "docker");
    // It is alone in its folder, and yet its weight is no folder's.
    let cgroup = format!("/docker/{}", "1".repeat(64));
    assert_eq!(of("111111111111")["cgroup"], cgroup);
    assert_eq!(of(expected[1])["class"], "batch");
    assert_eq!(of(expected[1])["labels"]["qos"], "best-effort");
    assert_eq!(of("web")["labels"]["runtime"], "lxc");
    assert_eq!(of("nginx.service")["labels"]["slice"], "system.slice");

    // Three threads want one CPU: the service waits for the two of the other.
    let first = &of("nginx.service")["waits_for"][0];
    assert_eq!(first["tenant"], "backup.service");
    assert!(first["percent"].as_f64().unwrap() > 30.0, "{first}");
    let lines: Vec<&str> = said.lines().map(str::trim_end).collect();
    let head = lines
        .iter()
        .position(|it| it.starts_with("WHO WAITS"))
        .expect("it begins with who waits");
    let shown = lines[head + 1].split_whitespace().collect::<Vec<_>>();
    assert!(
        shown.contains(&"backup.service") && shown.contains(&"nginx.service"),
        "{shown:?}"
    );

    // Nothing was changed, no scheduler loaded.
    assert_eq!(read("before"), read("after"));
    assert!(read("before").lines().count() > 10, "{}", read("before"));
    assert!(lines.contains(&"disabled"), "{said}");
    assert_eq!(status["changes"], 0);
    assert_eq!(status["policy"], Value::Array(Vec::new()));
    let check = read("check.txt");
    for name in expected {
        assert!(check.contains(&quell_name(name)), "{name}: {check}");
    }

    let took = |from: &str, to: &str| {
        let times = |name: &str| {
            let text = read(name);
            text.lines()
                .map(|it| it.parse().unwrap())
                .collect::<Vec<f64>>()
        };
        let mut all: Vec<f64> = times(to)
            .iter()
            .zip(times(from))
            .map(|(to, from)| to - from)
            .collect();
        all.sort_by(f64::total_cmp);
        assert_eq!(all.len(), 20);
        println!(
            "{from} -> {to}: median {:.2} s, worst {:.2} s",
            all[10], all[19]
        );
        all[19]
    };
    // The default period is 80 ms.
    assert!(took("came", "seen") <= 0.25);
    assert!(took("left", "gone") <= 1.0);
    assert!(lines.contains(&"moved: 0 1"), "{said}");
    assert_eq!(lines.last(), Some(&"SIGTERM: 0"));
}

/// Two units that a rule promises CPU time to, on two CPUs; another one is refused. The rule's terms change.
const PROMISED: &str = r#"
cg=/sys/fs/cgroup
into() { mkdir -p $cg/system.slice/$1; echo $! > $cg/system.slice/$1/cgroup.procs; }
status() { quell status --json --socket /run/q.sock; }
await() { for turn in $(seq 900); do "$@" && return; sleep 0.1; done; echo "not in time: $*"; cat $OUT/agent.log; exit 1; }
rule() { # BUDGET
    cat > quell.toml <<EOF
[agent]
policy = ["promises"]
guard = "off"
[[tenants]]
each = "unit"
match = "rt-*"
criticality = "low"
period_ms = 100
budget_ms = $1
EOF
}
promises() { quell status --socket /run/q.sock | grep 'promised CPU time' | sort; }
reload() { kill -HUP $agent; await eval "status | grep -q '\"reloads\": $1,'"; sleep 1; promises; }
for unit in rt-a rt-b; do sh -c 'while :; do sleep 0.01; done' & into $unit.service; done
rule 60
quell run -c quell.toml --socket /run/q.sock --journal /root/journal > $OUT/agent.log 2>&1 & agent=$!
await eval '[ "$(promises 2> /dev/null | wc -l)" = 2 ]'
promises
sh -c 'while :; do sleep 0.01; done' & into rt-c.service
await eval '[ "$(promises | wc -l)" = 3 ]'
promises | cut -c1-40
echo "the same"; reload 1 | cut -c1-40
rule 97; kill -HUP $agent
await eval 'status | grep -q "tenants.0.*has no room"'
rule 40; echo "less"; reload 2 | cut -c1-40
kill -TERM $agent; wait $agent; echo "SIGTERM: $?"
"#;

#[test]
#[ignore = "a minute; nightly"]
fn a_rule_promises_cpu_time_to_what_it_finds() {
    let Some((_folder, said)) = in_guest(&[PROMISED]) else {
        return;
    };
    let lines: Vec<&str> = said.lines().collect();
    let kept = |unit: &str, cpu: u32| format!("rt-{unit}.service: promised CPU time on CPU {cpu}");
    let refused = "rt-c.service: not promised CPU time: ";
    let (a, b) = (kept("a", 0), kept("b", 1));
    assert_eq!(lines[..2], [&a, &b], "{said}");
    assert_eq!(lines[2..4], [&a, &b], "{said}");
    assert!(lines[4].starts_with(refused), "{said}");
    // After a reload with the same terms each promise is where it was.
    assert_eq!(lines[5..8], ["the same", &a, &b], "{said}");
    assert!(lines[8].starts_with(refused), "{said}");
    // With less for each there is room for the third.
    assert_eq!(lines[9..12], ["less", &a, &b], "{said}");
    assert_eq!(lines[12], kept("c", 0), "{said}");
    assert_eq!(lines[13..], ["SIGTERM: 0"], "{said}");
}

/// A name as tables show it: of a long one the beginning and the end.
fn quell_name(name: &str) -> String {
    name.chars().take(14).collect()
}
