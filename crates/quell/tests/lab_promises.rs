//! Promised CPU time for real vCPUs: a memcached in a KVM guest beside three guests that always compute, all on one CPU of the lab's guest
//! (Akita, Fig. 5). On the real clock, as those of `lab_kvm`. It takes two CPUs for minutes, so it is asked for:
//! `cargo test -p quell --test lab_promises -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
mod nested;

use quell_lab::{Image, Quiet};
use std::path::Path;
use std::time::Duration;

/// The memcached's guest: finds out what a request costs it, so that all of them need about a tenth of its CPU, and then measures in rounds.
const CACHE: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /usr/bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /tmp
mkdir -p /var/run /dev/shm; ip link set lo up; export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin; cd /root
of() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" /tmp/result.json | head -n1; }
bench() { quell bench /root/app.toml --on host --policy default --pairs 1 --json /tmp/result.json "$@" >/tmp/bench.log 2>&1 || cat /tmp/bench.log; }
bench --seconds 6 --set warmup_seconds=2
rate=$(echo "$(of busy_percent)" | awk '{ printf "%d", 0.1 * 20 / ($1 / 100) }')
echo "rate $rate, of 20 busy $(of busy_percent) %"
for round in $(seq 1000); do
    bench --seconds 12 --set warmup_seconds=1 --set "tenant.app.load={ rate = $rate, connections = 4 }"
    echo "round $round mean $(of mean_us) p50 $(of p50_us) p99 $(of p99_us) p99.9 $(of p999_us) requests $(of requests)"
done
"#;

const APP: &str = r#"
name = "guest"
[[tenant]]
name = "app"
load = { rate = 20.0, connections = 4 }
[tenant.app.memcached]
threads = 1
keys = 2000
value_bytes = 100
keys_per_request = 20
"#;

const HOG: &str = r#"#!/bin/busybox sh
echo up
while :; do :; done
"#;

const OUTER: &str = r#"
for module in /root/modules/*; do insmod $module || exit 1; done
cd /root
start() { # NAME IMAGE MIB: its virtual CPU on CPU 0, as its owner's choice
    qemu -accel kvm -cpu host -smp 1 -m $3 -name guest=$1,debug-threads=on -nodefaults -no-user-config -no-reboot -display none \
        -kernel /root/vmlinuz -initrd /root/$2.cpio -append 'console=ttyS0 quiet panic=-1 mitigations=off' -serial file:/tmp/$1 &
    eval "$1=$!"
    for turn in $(seq 600); do
        for task in /proc/$!/task/*; do
            case $(cat $task/comm) in CPU*KVM) taskset -p 1 ${task##*/} > /dev/null; return ;; esac
        done
        sleep 0.1
    done
    echo "$1 has no virtual CPU"; exit 1
}
await() { # NAME TEXT: until that guest has said it
    for turn in $(seq 3000); do grep -q "$2" /tmp/$1 && return; sleep 0.1; done
    echo "$1 did not say: $2"; tail -n 30 /tmp/$1; exit 1
}
rounds() { grep -c '^round' /tmp/cache; }
measure() { # WHAT: two whole rounds from now
    from=$(rounds)
    until [ $(rounds) -ge $((from + 3)) ]; do sleep 0.5; done
    grep -a '^round' /tmp/cache | sed -n "$((from + 2)),$((from + 3))s/^/$1 /p"
}
start cache cache 512; await cache '^rate'; grep '^rate' /tmp/cache
measure eevdf-alone
for name in hog1 hog2 hog3; do start $name hog 128; await $name '^up'; done
measure eevdf-beside
cat > quell.toml <<EOF
[agent]
policy = ["criticality"]
[[tenant]]
name = "cache"
kind = "vm"
pid = [$cache]
criticality = "high"
period_ms = 100
budget_ms = 12
pessimistic_budget_ms = 40
EOF
for name in hog1 hog2 hog3; do
    eval pid=\$$name
    printf '[[tenant]]\nname = "%s"\nkind = "vm"\npid = [%s]\ncriticality = "low"\nperiod_ms = 100\nbudget_ms = 15\n' $name $pid >> quell.toml
done
quell run -c quell.toml --socket /run/q.sock --journal /root/journal > /tmp/agent.log 2>&1 & agent=$!
for turn in $(seq 1200); do grep -q enabled /sys/kernel/sched_ext/state && break; sleep 0.1; done
echo "scheduler: $(cat /sys/kernel/sched_ext/state)"
sleep 2
measure quell-beside
quell status --socket /run/q.sock | grep 'promise'
spent() { for pid in $cache $hog1 $hog2 $hog3; do
    for task in /proc/$pid/task/*; do case $(cat $task/comm) in CPU*KVM) cut -d' ' -f1 $task/schedstat ;; esac; done
done; }
spent > /tmp/before; sleep 5; spent > /tmp/after
paste /tmp/before /tmp/after | awk '{ printf "%s%.1f", NR == 1 ? "percent of the CPU: " : " ", ($2 - $1) / 5e7 } END { print "" }'
kill $hog1 $hog2 $hog3
measure quell-alone
kill -TERM $agent; wait $agent; echo "agent: $?"
cat /tmp/agent.log
kill $cache
"#;

/// Mean and percentiles in us, of both rounds the less each: what disturbs this machine disturbs them too.
fn figures(said: &str, what: &str) -> [f64; 4] {
    let mut best = [f64::INFINITY; 4];
    for line in said.lines().filter(|it| it.starts_with(what)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        for (name, best) in ["mean", "p50", "p99", "p99.9"].iter().zip(&mut best) {
            let at = words.iter().position(|it| it == name).unwrap();
            *best = best.min(words[at + 1].parse().unwrap());
        }
    }
    assert!(best[0].is_finite(), "no `{what}`");
    best
}

#[test]
#[ignore = "takes two CPUs for minutes"]
fn a_promised_guest_answers_as_if_it_were_alone() {
    let dir = tempfile::tempdir().unwrap();
    let limit = Duration::from_secs(900);
    let said = nested::run(2, 2560, limit, OUTER, |lab, kernel, image| {
        for (name, init) in [("cache", CACHE), ("hog", HOG)] {
            let mut guest = Image::new(kernel, &lab.busybox(&Quiet).unwrap()).unwrap();
            guest.bytes(Path::new("/init"), init.as_bytes(), 0o755);
            if name == "cache" {
                nested::bring_quell(&mut guest);
                guest.add("memcached").unwrap();
                guest.bytes(Path::new("/root/app.toml"), APP.as_bytes(), 0o644);
            }
            let archive = dir.path().join(name);
            guest.write(&archive).unwrap();
            let place = format!("/root/{name}.cpio");
            image.file(&archive, Path::new(&place)).unwrap();
        }
    });
    let Some(said) = said else {
        return;
    };
    for line in [
        "scheduler: enabled",
        "cache: promised CPU time on CPU 0",
        "hog3: promised CPU time on CPU 0",
        "agent: 0",
    ] {
        assert!(
            said.lines().any(|it| it.trim().starts_with(line)),
            "no `{line}`"
        );
    }
    let times = |what: &str| {
        let of = |when: &str| figures(&said, &format!("{what}-{when}"));
        let times = of("alone").into_iter().zip(of("beside"));
        let times: Vec<f64> = times.map(|(alone, beside)| beside / alone).collect();
        println!(
            "{what}: mean, median, 99th and 99.9th percentile beside three, times alone: {times:.2?}"
        );
        times
    };
    let (eevdf, quell) = (times("eevdf"), times("quell"));
    assert!(quell[2] < eevdf[2] / 2.0, "{quell:?} {eevdf:?}");
}
