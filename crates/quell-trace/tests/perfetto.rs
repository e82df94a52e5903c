//! The file format, checked against Perfetto's own definition of it.
#![allow(clippy::unwrap_used)] // helpers of tests

mod encodings;

use encodings::{Wakeups, all, second, write};
use quell_model::{Pid, Tid};
use quell_trace::{Clocks, Event, IDLE, Kind, State, System, Thread, Writer};
use std::process::Command;

/// One event of every kind.
fn trace() -> Vec<u8> {
    let system = System {
        release: "6.12.1".to_string(),
        version: "#1 SMP".to_string(),
        machine: "x86_64".to_string(),
        clocks: Some(Clocks {
            boottime_ns: 5_000,
            monotonic_ns: 4_000,
            realtime_ns: 1_700_000_000_000_000_000,
        }),
    };
    let thread = |tid, pid, name: &str| Thread {
        tid: Tid(tid),
        pid: Pid(pid),
        name: name.into(),
    };
    let wakeup = |thread, by| Kind::Wakeup {
        thread,
        by,
        last_cpu: 1,
    };
    let switch = |prev, prev_state, next| Kind::Switch {
        prev,
        prev_state,
        next,
        next_priority: 120,
    };
    let by = Tid(300);
    let kinds = [
        (0, Kind::Thread(thread(300, 300, "main"))),
        (0, Kind::Thread(thread(301, 300, "worker"))),
        (1, wakeup(Tid(301), None)),
        (1, switch(IDLE, State::READY, Tid(301))),
        (0, wakeup(Tid(300), Some(Tid(301)))),
        (0, switch(IDLE, State::READY, Tid(300))),
        (
            0,
            Kind::New {
                thread: thread(302, 300, "main"),
                by,
            },
        ),
        (
            0,
            Kind::New {
                thread: thread(303, 303, "main"),
                by,
            },
        ),
        (
            0,
            Kind::Rename {
                tid: Tid(303),
                name: "sh".into(),
            },
        ),
        (0, switch(Tid(300), State::PREEMPTED, Tid(302))),
        (1, Kind::Lost),
        (1, switch(Tid(301), State::DEAD, IDLE)),
    ];
    let mut writer = Writer::new(Vec::new(), &system).unwrap();
    for (at, (cpu, kind)) in (0..).zip(kinds) {
        let at_ns = 6_000 + 10 * at;
        writer.write(&Event { at_ns, cpu, kind }).unwrap();
    }
    writer.finish().unwrap()
}

/// Decodes stdin with Perfetto's definition: nothing may be left over. Prints a line for each event.
const DECODE: &str = r#"
import sys
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

def check(message):
    assert not len(UnknownFieldSet(message)), message
    for field, value in message.ListFields():
        if field.message_type:
            for m in value if field.is_repeated else [value]:
                check(m)

trace = Trace.FromString(sys.stdin.buffer.read())
check(trace)
for packet in trace.packet:
    for thread in packet.process_tree.threads:
        print("thread", thread.tid, thread.tgid, thread.name)
    bundle = packet.ftrace_events
    if bundle.lost_events:
        print("lost on", bundle.cpu)
    for event in bundle.event:
        name = event.WhichOneof("event")
        fields = " ".join(str(v) for _, v in getattr(event, name).ListFields())
        print(event.timestamp, "cpu", bundle.cpu, "pid", event.pid, event.common_flags, name, fields)
info = {clock.clock_id: clock.timestamp for clock in trace.packet[0].clock_snapshot.clocks}
print(info, trace.packet[1].system_info.utsname.release)
"#;

/// Counts with Perfetto's definition, within compressed packets, too: nothing may be left over.
const COUNT: &str = r#"
import collections, sys, zlib
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

counts = collections.Counter()

def check(message):
    assert not len(UnknownFieldSet(message)), message
    for field, value in message.ListFields():
        if field.message_type:
            for m in value if field.is_repeated else [value]:
                check(m)

def count(trace):
    check(trace)
    for packet in trace.packet:
        if packet.HasField("compressed_packets"):
            count(Trace.FromString(zlib.decompress(packet.compressed_packets)))
        counts["threads"] += len(packet.process_tree.threads)
        compact = packet.ftrace_events.compact_sched
        for columns in ("switch_timestamp switch_prev_state switch_next_pid switch_next_prio switch_next_comm_index",
                        "waking_timestamp waking_pid waking_target_cpu waking_prio waking_comm_index waking_common_flags"):
            lengths = {len(getattr(compact, column)) for column in columns.split()}
            assert len(lengths) == 1, lengths
            counts["sched_" + columns.split("_")[0]] += lengths.pop()
        for event in packet.ftrace_events.event:
            counts[event.WhichOneof("event")] += 1

count(Trace.FromString(sys.stdin.buffer.read()))
print(*(counts[name] for name in ("threads", "sched_switch", "sched_waking", "sched_wakeup")))
"#;

/// The output of a program on a trace, run by a Python that has Perfetto's definition; `None` without such a
/// Python.
fn said(program: &str, trace: &[u8]) -> Option<String> {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_string());
    let import = "import perfetto.protos.perfetto.trace.perfetto_trace_pb2";
    let there = Command::new(&python).args(["-c", import]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        quell_testkit::skip!(
            Other,
            "no Python with the package `perfetto` (set PYTHON to one that has it)"
        );
        return None;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), trace).unwrap();
    let output = Command::new(&python)
        .args(["-c", program])
        .stdin(file.reopen().unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{output:?}");
    Some(said.into_owned())
}

/// Ensures that the encodings that the reader's tests use are what Perfetto writes.
#[test]
fn perfetto_own_definition_reads_the_encodings() {
    let events = second();
    let of = |kind: fn(&Kind) -> bool| events.iter().filter(|it| kind(&it.kind)).count();
    let switches = of(|kind| matches!(kind, Kind::Switch { .. }));
    let woken = of(|kind| matches!(kind, Kind::Wakeup { .. }));
    for encoding in all().into_iter().filter(|it| !it.gzip) {
        let Some(said) = said(COUNT, &write(&events, encoding)) else {
            return;
        };
        let (wakings, wakeups) = match encoding.wakeups {
            Wakeups::Waking => (woken, 0),
            Wakeups::Wakeup => (0, woken),
            Wakeups::Both => (woken, woken),
            Wakeups::None => (0, 0),
        };
        let expected = format!("9 {switches} {wakings} {wakeups}");
        assert_eq!(said.trim(), expected, "{encoding:?}");
    }
}

/// The test needs Python's packages `perfetto` and `protobuf`.
#[test]
fn perfetto_own_definition_reads_what_is_written() {
    let Some(said) = said(DECODE, &trace()) else {
        return;
    };
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        [
            "thread 300 300 main",
            "thread 301 300 worker",
            "6020 cpu 1 pid 0 8 sched_waking worker 301 1 1",
            "6030 cpu 1 pid 0 0 sched_switch swapper/1 0 0 worker 301 120",
            "6040 cpu 0 pid 301 0 sched_waking main 300 1 1",
            "6050 cpu 0 pid 0 0 sched_switch swapper/0 0 0 main 300 120",
            "6060 cpu 0 pid 300 0 task_newtask 302 main 65536",
            "6070 cpu 0 pid 300 0 task_newtask 303 main 0",
            "6080 cpu 0 pid 303 0 task_rename 303 main sh",
            "6090 cpu 0 pid 300 0 sched_switch main 300 256 main 302 120",
            "lost on 1",
            "6110 cpu 1 pid 301 0 sched_switch worker 301 16 swapper/1 0 120",
            "{6: 5000, 3: 4000, 1: 1700000000000000000} 6.12.1",
        ]
    );
}

/// The bytes that Perfetto's definition and its trace processor (version 52) were seen to read as above, so
/// that a change of the format is noticed where neither is at hand.
#[test]
fn the_bytes_are_those_that_perfetto_reads() {
    let hex: String = trace().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, GOLDEN);
}

const GOLDEN: &str = "\
    0a25321e0a0508061088270a05080310a01f0a0c0801108080a8b1e39fe7cb17100640882750010a265001ea02210a1f\
    0a054c696e75781206233120534d501a06362e31322e3122067838365f36340a22121b0a0b08ac021a046d61696e4801\
    120c08ac0212046d61696e18ac0240f02e50010a171210120e08ad021206776f726b657218ac0240fa2e50010a460a42\
    0801121908842f10002808a2010f0a06776f726b657210ad02200128011223088e2f1000221c0a09737761707065722f\
    31100020002a06776f726b657230ad02387850010aa9010aa4010800121608982f10ad02a2010d0a046d61696e10ac02\
    20012801122108a22f1000221a0a09737761707065722f30100020002a046d61696e30ac023878121608ac2f10ac02da\
    0e0d08ae0212046d61696e18808004121408b62f10ac02da0e0b08af0212046d61696e1800121608c02f10af02e20e0d\
    08af0212046d61696e1a027368121f08ca2f10ac0222170a046d61696e10ac022080022a046d61696e30ae0238785001\
    0a310a2a0801122408de2f10ad02221c0a06776f726b657210ad0220102a09737761707065722f3130003878180140d4\
    2f5001";
