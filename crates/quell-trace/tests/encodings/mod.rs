//! One second of a host in every encoding that traces in use have, byte by byte: independent of the reader's
//! own messages. Tests of other crates include this file.
#![allow(dead_code, missing_docs)] // not every test needs all of it

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use quell_model::{Pid, Tid};
use quell_trace::{Event, IDLE, Kind, State, Thread};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;

pub const CPUS: u32 = 3;

/// The events of threads of four processes on a few CPUs, each as irregular as on a host.
pub fn second() -> Vec<Event> {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = move |most: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % most as u64) as usize
    };
    let threads: Vec<Thread> = (0..9)
        .map(|n| Thread {
            tid: Tid(100 + n),
            pid: Pid(100 + n / 3 * 3),
            name: format!("thread {n}").into(),
        })
        .collect();
    let mut at_ns = 7_000_000_000;
    let end = at_ns + 1_000_000_000;
    let mut events = Vec::new();
    for thread in &threads {
        let kind = Kind::Thread(thread.clone());
        events.push(Event {
            at_ns,
            cpu: 0,
            kind,
        });
    }
    let mut on = [IDLE; CPUS as usize];
    let mut switched = [false; CPUS as usize];
    let mut asleep: Vec<Tid> = threads.iter().map(|it| it.tid).collect();
    let mut ready: Vec<Tid> = Vec::new();
    while at_ns < end {
        // No two events at one time: files that are written by CPU do not tell their order.
        at_ns += 1 + below(900_000) as u64;
        let cpu = below(on.len());
        let current = on[cpu];
        let kind = if !asleep.is_empty() && below(5) < 2 {
            let thread = asleep.swap_remove(below(asleep.len()));
            ready.push(thread);
            Kind::Wakeup {
                thread,
                // The thread that runs before a CPU's first switch is not in compact form.
                by: (switched[cpu] && below(3) > 0).then_some(current),
                last_cpu: below(on.len()) as u32,
            }
        } else {
            let next = match ready.len() {
                0 => IDLE,
                some => ready.swap_remove(below(some)),
            };
            if next == current {
                continue;
            }
            let prev_state = match below(3) {
                _ if current == IDLE => State::READY,
                0 => State::PREEMPTED,
                1 => State::SLEEPING,
                _ => State::UNINTERRUPTIBLE,
            };
            if current != IDLE && prev_state.is_ready() {
                ready.push(current);
            } else if current != IDLE {
                asleep.push(current);
            }
            on[cpu] = next;
            switched[cpu] = true;
            Kind::Switch {
                prev: current,
                prev_state,
                next,
                next_priority: if next == IDLE {
                    120
                } else {
                    115 + next.0 as i32 % 9
                },
            }
        };
        let cpu = cpu as u32;
        events.push(Event { at_ns, cpu, kind });
    }
    // All encodings end with the same event.
    while matches!(events.last(), Some(it) if matches!(it.kind, Kind::Wakeup { .. })) {
        events.pop();
    }
    events
}

/// The events as which wakeups are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeups {
    Waking,
    Wakeup,
    /// As both kinds of events, as many traces have them.
    Both,
    None,
}

/// The encoding of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding {
    pub wakeups: Wakeups,
    pub compact: bool,
    pub compressed: bool,
    pub gzip: bool,
    /// Whether the trace tells the process of each thread.
    pub tree: bool,
}

/// All encodings, with process descriptors.
pub fn all() -> Vec<Encoding> {
    let mut all = Vec::new();
    for wakeups in [
        Wakeups::Waking,
        Wakeups::Wakeup,
        Wakeups::Both,
        Wakeups::None,
    ] {
        for bits in 0..8 {
            all.push(Encoding {
                wakeups,
                compact: bits & 1 != 0,
                compressed: bits & 2 != 0,
                gzip: bits & 4 != 0,
                tree: true,
            });
        }
    }
    all
}

pub fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn number(field: u64, value: u64, out: &mut Vec<u8>) {
    varint(field << 3, out);
    varint(value, out);
}

pub fn bytes(field: u64, value: &[u8], out: &mut Vec<u8>) {
    varint(field << 3 | 2, out);
    varint(value.len() as u64, out);
    out.extend(value);
}

pub fn packed(field: u64, values: &[u64], out: &mut Vec<u8>) {
    let mut all = Vec::new();
    values.iter().for_each(|value| varint(*value, &mut all));
    bytes(field, &all, out);
}

pub fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A file's packet with that body.
pub fn packet(body: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    bytes(1, body, &mut packet);
    packet
}

/// Writes events as Perfetto's recorder would: each packet has one CPU's events of some time.
pub fn write(events: &[Event], encoding: Encoding) -> Vec<u8> {
    let mut names: HashMap<Tid, String> = HashMap::new();
    let mut tree = Vec::new();
    for event in events {
        if let Kind::Thread(thread) = &event.kind {
            names.insert(thread.tid, thread.name.to_string());
            let mut said = Vec::new();
            number(1, thread.tid.0.into(), &mut said);
            number(3, thread.pid.0.into(), &mut said);
            if !thread.name.is_empty() {
                bytes(2, thread.name.as_bytes(), &mut said);
            }
            bytes(2, &said, &mut tree);
        }
    }
    let name = |tid: Tid| names.get(&tid).cloned().unwrap_or("swapper".to_string());
    let mut packets = Vec::new();
    if encoding.tree {
        let mut body = Vec::new();
        number(8, events[0].at_ns, &mut body);
        bytes(2, &tree, &mut body);
        packets.push(packet(&body));
    }
    // The events that the kernel's buffers gather between two readings, CPU by CPU and the last first.
    for chunk in events.chunks(150) {
        let mut by_cpu: BTreeMap<u32, Vec<&Event>> = BTreeMap::new();
        for event in chunk {
            if !matches!(event.kind, Kind::Thread(_)) {
                by_cpu.entry(event.cpu).or_default().push(event);
            }
        }
        for (cpu, events) in by_cpu.into_iter().rev() {
            let mut bundle = Vec::new();
            number(1, cpu.into(), &mut bundle);
            if encoding.compact {
                bytes(4, &compact(&events, &name, encoding.wakeups), &mut bundle);
            }
            for event in events {
                for event in plain(event, &name, encoding) {
                    bytes(2, &event, &mut bundle);
                }
            }
            let mut body = Vec::new();
            bytes(1, &bundle, &mut body);
            packets.push(packet(&body));
        }
    }
    if encoding.compressed {
        let groups = packets.chunks(3).map(|group| {
            let mut body = Vec::new();
            bytes(50, &compress(&group.concat()), &mut body);
            packet(&body)
        });
        packets = groups.collect();
    }
    match encoding.gzip {
        // Two gzip members, as `cat` makes of two files.
        true => {
            let (first, rest) = packets.split_at(packets.len() / 2);
            [gzip(&first.concat()), gzip(&rest.concat())].concat()
        }
        false => packets.concat(),
    }
}

const HARDIRQ: u64 = 8;

/// The events that stay plain: compact form has switches and wakings only.
fn plain(event: &Event, name: &impl Fn(Tid) -> String, encoding: Encoding) -> Vec<Vec<u8>> {
    let base = |at_ns: u64, pid: Tid| {
        let mut out = Vec::new();
        number(1, at_ns, &mut out);
        number(2, pid.0.into(), &mut out);
        out
    };
    match &event.kind {
        Kind::Switch {
            prev,
            prev_state,
            next,
            next_priority,
        } if !encoding.compact => {
            let (mut out, mut switch) = (base(event.at_ns, *prev), Vec::new());
            bytes(1, name(*prev).as_bytes(), &mut switch);
            number(2, prev.0.into(), &mut switch);
            number(4, prev_state.0.into(), &mut switch);
            bytes(5, name(*next).as_bytes(), &mut switch);
            number(6, next.0.into(), &mut switch);
            number(7, *next_priority as u64, &mut switch);
            bytes(4, &switch, &mut out);
            vec![out]
        }
        Kind::Wakeup {
            thread,
            by,
            last_cpu,
        } => {
            let written = |field: u64| {
                let mut out = base(event.at_ns, by.unwrap_or(IDLE));
                let mut wakeup = Vec::new();
                bytes(1, name(*thread).as_bytes(), &mut wakeup);
                number(2, thread.0.into(), &mut wakeup);
                number(5, (*last_cpu).into(), &mut wakeup);
                if by.is_none() {
                    number(5, HARDIRQ, &mut out);
                }
                bytes(field, &wakeup, &mut out);
                out
            };
            let waking = (!encoding.compact).then_some(20);
            let fields = match encoding.wakeups {
                Wakeups::Waking => vec![waking],
                Wakeups::Wakeup => vec![Some(17)],
                Wakeups::Both => vec![waking, Some(17)],
                Wakeups::None => vec![],
            };
            fields.into_iter().flatten().map(written).collect()
        }
        _ => vec![],
    }
}

fn compact(events: &[&Event], name: &impl Fn(Tid) -> String, wakeups: Wakeups) -> Vec<u8> {
    let mut table: Vec<String> = Vec::new();
    let mut index = |name: String| match table.iter().position(|it| *it == name) {
        Some(place) => place as u64,
        None => {
            table.push(name);
            table.len() as u64 - 1
        }
    };
    let mut fields: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut before = [0, 0];
    for event in events {
        match &event.kind {
            Kind::Switch {
                prev_state,
                next,
                next_priority,
                ..
            } => {
                let since = event.at_ns - std::mem::replace(&mut before[0], event.at_ns);
                let values = [
                    (1, since),
                    (2, prev_state.0.into()),
                    (3, next.0.into()),
                    (4, *next_priority as u64),
                    (6, index(name(*next))),
                ];
                for (field, value) in values {
                    fields.entry(field).or_default().push(value);
                }
            }
            Kind::Wakeup {
                thread,
                by,
                last_cpu,
            } if matches!(wakeups, Wakeups::Waking | Wakeups::Both) => {
                let since = event.at_ns - std::mem::replace(&mut before[1], event.at_ns);
                let values = [
                    (7, since),
                    (8, thread.0.into()),
                    (9, (*last_cpu).into()),
                    (10, 120),
                    (11, index(name(*thread))),
                    (12, if by.is_none() { HARDIRQ } else { 0 }),
                ];
                for (field, value) in values {
                    fields.entry(field).or_default().push(value);
                }
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    table
        .iter()
        .for_each(|name| bytes(5, name.as_bytes(), &mut out));
    for (field, values) in fields {
        packed(field, &values, &mut out);
    }
    out
}
