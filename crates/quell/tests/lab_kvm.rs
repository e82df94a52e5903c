//! Real vCPU threads: a KVM guest within the lab's guest, under the agent and its scheduler. On the real
//! clock, where emulated CPUs have their own emulated virtualization (SVM). Where the lab has not been set up
//! (`quell lab setup`, `./dev test` does it), the test is skipped.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
mod nested;

use std::path::Path;
use std::time::Duration;

/// The inner guest's init: it computes for a while on both of its CPUs, and prints its steal time.
const INNER: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev # what runs in the background reads /dev/null
echo "inner: up, $(/bin/busybox grep -c ^processor /proc/cpuinfo) CPUs"
for i in 1 2; do (while :; do :; done) & done
/bin/busybox sleep 6
/bin/busybox awk '/^cpu /{print "inner: steal", $9, "of", $2+$4+$5+$9}' /proc/stat
echo "inner: done"
/bin/busybox sleep 600
"#;

const OUTER: &str = r#"
# A vCPU was seen in state D for seconds; a kernel thread of the least weight made huge pages of the inner guest's memory. Whether it was that is not proven.
echo never > /sys/kernel/mm/transparent_hugepage/enabled
for module in /root/modules/*; do insmod $module || exit 1; done
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null # by KVM's part of it the agent knows vCPUs: this QEMU does not name its threads
mkdir -p /tmp/inner/bin && cd /tmp/inner && cp /bin/busybox bin/ && cp /root/inner-init init && chmod 755 init
find . | cpio -o -H newc > /tmp/inner.cpio 2>/dev/null; cd /root
qemu -accel kvm -cpu host -smp 2 -m 256 -name inner,debug-threads=off -nodefaults -no-user-config -no-reboot -display none \
    -kernel /root/vmlinuz -initrd /tmp/inner.cpio -append 'console=ttyS0 quiet panic=-1' \
    -serial file:/tmp/console & vm=$!
kill -STOP $vm # until the scheduler is there: loading it takes an emulated CPU seconds
sh -c 'while :; do :; done' & rival=$!
tenants() { # what is promised to each vCPU, or nothing
    printf '[agent]\npolicy = ["asymmetry", "criticality"]\n[[tenant]]\nname = "vm"\npid = [%s]\n%s\n' $vm "$1"
    printf '[[tenant]]\nname = "rival"\nclass = "batch"\npid = [%s]\n' $rival
}
tenants 'criticality = "high"
period_ms = 100
budget_ms = 40
pessimistic_budget_ms = 80' > quell.toml
quell run -c quell.toml --socket /run/q.sock --journal /root/journal > /tmp/agent.log 2>&1 & agent=$!
for turn in $(seq 1200); do grep -q enabled /sys/kernel/sched_ext/state && break; sleep 0.1; done
kill -CONT $vm
await() { # TEXT: until the inner guest has said it
    for turn in $(seq 1500); do
        grep -qs "$1" /tmp/console && return
        kill -0 $vm || { echo "the inner guest ended by itself"; exit 75; }
        sleep 0.1
    done
    echo "the inner guest did not say: $1"; cat /tmp/console /tmp/agent.log; exit 1
}
await "inner: up"; sleep 3; kill -0 $vm || exit 75
state=$(cat /sys/kernel/sched_ext/state)
echo "scheduler: $state"; [ $state = enabled ] || cat /tmp/agent.log
for vcpu in /sys/kernel/debug/kvm/$vm-*/vcpu*; do
    task=/proc/$vm/task/$(cat $vcpu/pid); vcpus="$vcpus $task"
    echo "${vcpu##*/}, $(cat $task/comm): ext $(sed -n 's/^ext.enabled *: *//p' $task/sched)"
done
for turn in $(seq 60); do # on a busy machine the agent may answer late
    quell explain vm --socket /run/q.sock | sed -n '/RUN, READY/q;p' > /tmp/explain
    [ "$(grep -c ' vcpu [01] ' /tmp/explain)" = 2 ] && break
    sleep 0.5
done
cat /tmp/explain; grep -c ' vcpu [01] ' /tmp/explain | sed 's/^/vcpus seen: /'
for i in 1 2 3 4 5 6; do (while :; do :; done) & rivals="$rivals $!"; done
spent() { for task in $vcpus; do cut -d' ' -f1 $task/schedstat; done; cut -d' ' -f1 /proc/uptime; }
part() { # for 3 s, of a CPU for each vCPU, in percent
    spent > /tmp/before; sleep 3; spent > /tmp/after
    paste /tmp/before /tmp/after | awk '{ d[NR] = $2 - $1 } END { print int(d[1] / d[3] / 1e7), int(d[2] / d[3] / 1e7) }'
}
# What other work of the machine takes from an emulated CPU counts as used by whoever had it there: where it is half of a CPU, all parts come near
# a half. So three times are measured at most.
parts() { # WHAT LEAST MOST
    for turn in 1 2 3; do
        part > /tmp/part; echo "$1: $(cat /tmp/part)"
        awk -v least=$2 -v most=$3 '{ exit !($1 >= least && $2 >= least && $1 <= most && $2 <= most) }' /tmp/part && return
    done
}
quell status --socket /run/q.sock | grep promised
parts promised 70 100
tenants > quell.toml; kill -HUP $agent
for turn in $(seq 300); do quell status --json --socket /run/q.sock | grep -q '"reloads": 1' && break; sleep 0.1; done
parts "by weight" 1 60
await "inner: done"; kill -0 $vm || exit 75
grep -a "^inner" /tmp/console
kill -TERM $agent; wait $agent; echo "agent: $?"
kill $vm $rival $rivals
"#;

#[test]
fn kvm_vcpus_run_under_the_scheduler() {
    let limit = Duration::from_secs(400);
    let said = nested::run(2, 1536, limit, OUTER, |_, _, image| {
        image.bytes(Path::new("/root/inner-init"), INNER.as_bytes(), 0o755);
    });
    let Some(said) = said else {
        return;
    };
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    for line in [
        "scheduler: enabled",
        "vcpu0, qemu-system-x86: ext 1",
        "vcpu1, qemu-system-x86: ext 1",
        "vcpus seen: 2",
        "inner: up, 2 CPUs",
        "inner: done",
        "agent: 0",
    ] {
        assert!(lines.contains(&line), "no `{line}` in:\n{said}");
    }
    // The VM needs its worst case on both CPUs and gets it beside seven others; by its weight it does not.
    let parts = |of| {
        let mut from_last = lines.iter().rev();
        let line = from_last.find_map(|l| l.strip_prefix(of)).unwrap();
        let parts = line.split(' ').map(|it| it.parse().unwrap());
        parts.collect::<Vec<u32>>()
    };
    let (promised, by_weight) = (parts("promised: "), parts("by weight: "));
    assert!(promised.iter().all(|it| (70..=100).contains(it)), "{said}");
    assert!(by_weight.iter().all(|it| (1..=60).contains(it)), "{said}");
    // The rival takes its part, and the inner guest sees that as steal time.
    let steal = lines.iter().find_map(|l| l.strip_prefix("inner: steal "));
    let ticks: u64 = steal
        .and_then(|l| l.split(' ').next())
        .unwrap()
        .parse()
        .unwrap();
    assert!(ticks > 0, "{said}");
}
