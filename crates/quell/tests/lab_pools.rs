//! Pools on KVM guests with real applications whose load changes: two machines, a memcached in one and an
//! nginx in the other, within the lab's guest, which has enough CPUs to divide. On the real clock, as in
//! `lab_kvm`. The test takes two CPUs for minutes, so it runs only on request: `cargo test -p quell --test
//! lab_pools -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
mod live;
mod nested;

use quell_lab::{Kernel, Lab};
use std::path::Path;
use std::time::Duration;

/// Each guest's script: it measures the cost of a request and so the rate that is `FULL` CPUs' worth, and
/// then takes a load in percent of that rate.
const WORK: &str = r#"
ip link set lo up; mkdir -p /dev/shm; export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin; cd /root
bench() { quell bench /root/app.toml --on host --policy default --pairs 1 --set warmup_seconds=2 "$@" >/tmp/bench.log 2>&1 || cat /tmp/bench.log; }
bench --seconds 6 --json /tmp/trial.json
rate=$(sed -n 's/.*"busy_percent": *\([0-9.]*\).*/\1/p' /tmp/trial.json | head -n1 |
    awk -v full="$FULL" -v cpus="$(nproc)" '{ printf "%d", full * 20 / ($1 / 100 * cpus) }')
echo "rate $rate"
bench --seconds "$SECONDS_LONG" --set "tenant.app.load={ rate = $rate, arrival = \"steps\", steps = $STEPS, connections = 4 }" --json /tmp/result.json
"#;

const OUTER: &str = r#"
for module in /root/modules/*; do insmod $module || exit 1; done
cd /root
start() { # NAME
    qemu -accel kvm -cpu host -smp 4 -m 512 -name guest=$1,debug-threads=on -nodefaults -no-user-config -no-reboot -display none \
        -kernel /root/vmlinuz -initrd /root/$1.cpio -append 'console=ttyS0 quiet panic=-1 mitigations=off' -serial file:/tmp/$1 \
        -device virtio-serial-pci -chardev socket,id=qga,path=/tmp/$1.qga,server=on,wait=off \
        -device virtserialport,chardev=qga,name=org.qemu.guest_agent.0 &
}
await() { # NAME TEXT: until that guest has said it
    for turn in $(seq 3000); do grep -q "$2" /tmp/$1 && return; sleep 0.1; done
    echo "$1 did not say: $2"; tail -n 30 /tmp/$1; exit 1
}
for name in web cache; do start $name; eval "$name=$!"; await $name '^rate'; done
grep -H '^rate' /tmp/cache /tmp/web
cat > quell.toml <<EOF
[agent]
policy = ["pools"]
backend = "stock"
[[tenant]]
name = "cache"
kind = "vm"
pid = [$cache]
[[tenant]]
name = "web"
kind = "vm"
pid = [$web]
EOF
affinity() { # PID PATTERN: where the first of its threads of that name may run
    for task in /proc/$1/task/*; do
        case $(cat $task/comm) in $2) sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' $task/status; return ;; esac
    done
}
quell run -c quell.toml --socket /run/q.sock --journal /root/journal > /tmp/agent.log 2>&1 & agent=$!
for turn in $(seq 600); do [ -S /run/q.sock ] && break; sleep 0.1; done
look() { # WHEN: where both are, and what they say
    for name in cache web; do
        eval pid=\$$name
        echo "$1 $name vcpus $(affinity $pid 'CPU 0*') others $(affinity $pid 'qemu*') $(grep -a '^online' /tmp/$name | tail -n1)"
    done
}
for turn in $(seq 200); do look "at $(cut -d' ' -f1 /proc/uptime)"; sleep 0.5; done
quell status --socket /run/q.sock
kill -TERM $agent; wait $agent; echo "agent: $?"
sleep 3; look after
cat /tmp/agent.log
kill $cache $web
"#;

/// Both guests' scenario, but for the application: the trial's load.
const SCENARIO: &str = r#"
name = "guest"
[[tenant]]
name = "app"
load = { rate = 20.0, connections = 4 }
"#;

const NGINX: &str =
    "[tenant.app.nginx]\nworkers = 4\ndocument_kb = 64\ngzip = true\ngzip_level = 1\n";
const MEMCACHED: &str =
    "[tenant.app.memcached]\nthreads = 4\nkeys = 2000\nvalue_bytes = 100\nkeys_per_request = 400\n";

/// Writes the image of a guest with this program, the program's description, and a load.
fn write_guest(lab: &Lab, kernel: &Kernel, app: (&str, &str), load: &str, to: &Path) {
    let mut image = live::guest(lab, kernel);
    nested::bring_quell(&mut image);
    let (program, described) = app;
    image.add(program).unwrap();
    let scenario = format!("{SCENARIO}{described}");
    image.bytes(Path::new("/root/app.toml"), scenario.as_bytes(), 0o644);
    let work = format!("{load}{WORK}");
    image.bytes(Path::new("/root/work"), work.as_bytes(), 0o755);
    image.write(to).unwrap();
}

#[test]
#[ignore = "takes two CPUs for minutes"]
fn guests_with_real_applications_are_as_before_when_the_agent_ends() {
    if !live::guests_are_ready() {
        return;
    }
    let web = "FULL=1.0 SECONDS_LONG=300 STEPS='[[0, 10], [400, 10]]'";
    // 1.4 CPUs' worth: a tenth needs one CPU, four fifths two.
    let cache = "FULL=1.4 SECONDS_LONG=120 STEPS='[[0, 10], [40, 80], [80, 10], [400, 10]]'";
    let dir = tempfile::tempdir().unwrap();
    let limit = Duration::from_secs(900);
    let said = nested::run(6, 3072, limit, OUTER, |lab, kernel, image| {
        for (name, app, load) in [
            ("web", ("nginx", NGINX), web),
            ("cache", ("memcached", MEMCACHED), cache),
        ] {
            let archive = dir.path().join(name);
            write_guest(lab, kernel, app, load, &archive);
            let place = format!("/root/{name}.cpio");
            image.file(&archive, Path::new(&place)).unwrap();
        }
    });
    let said = said.unwrap_or_default();
    // All settings are as they were before the agent.
    for line in [
        "agent: 0",
        "after cache vcpus 0-5 others 0-5 online 0-3",
        "after web vcpus 0-5 others 0-5 online 0-3",
    ] {
        assert!(said.lines().any(|it| it.starts_with(line)), "no `{line}`");
    }
}
