//! Traces written and read again: whole, cut, changed and made of arbitrary bytes.
#![allow(clippy::unwrap_used)] // helpers of tests

use proptest::collection::vec;
use proptest::prelude::*;
use quell_model::{Pid, Tid};
use quell_trace::{Clocks, Event, Kind, ReadError, Reader, State, System, Thread, Writer};
use std::path::Path;

fn system() -> System {
    System {
        release: "6.12.1".to_string(),
        version: "#1 SMP".to_string(),
        machine: "x86_64".to_string(),
        clocks: Some(Clocks {
            boottime_ns: 5_000_000_000,
            monotonic_ns: 4_000_000_000,
            realtime_ns: 1_700_000_000_000_000_000,
        }),
    }
}

fn written(events: &[Event]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &system()).unwrap();
    for event in events {
        writer.write(event).unwrap();
    }
    writer.finish().unwrap()
}

fn read(bytes: &[u8]) -> (Vec<Event>, Option<ReadError>) {
    let (mut events, mut error) = (Vec::new(), None);
    for item in Reader::new(bytes, "t.perfetto-trace") {
        assert!(error.is_none(), "nothing comes after an error");
        match item {
            Ok(event) => events.push(event),
            Err(e) => error = Some(e),
        }
    }
    (events, error)
}

/// Thread ids of few values, so that threads coincide, and of any value.
fn tid() -> impl Strategy<Value = Tid> {
    prop_oneof![8 => 1..6u32, 1 => 1..u32::MAX].prop_map(Tid)
}

fn any_tid() -> impl Strategy<Value = Tid> {
    prop_oneof![3 => tid(), 1 => Just(Tid(0))]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{0,4}", any::<String>()]
}

fn thread() -> impl Strategy<Value = Thread> {
    let parts = (tid(), any::<u32>(), name());
    parts.prop_map(|(tid, pid, name)| Thread {
        tid,
        pid: Pid(pid),
        name: name.into(),
    })
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => (any_tid(), any::<u16>(), any_tid(), any::<i32>()).prop_map(
            |(prev, state, next, next_priority)| Kind::Switch {
                prev,
                prev_state: State(state),
                next,
                next_priority,
            }
        ),
        3 => (any_tid(), prop::option::of(any_tid()), any::<u32>()).prop_map(
            |(thread, by, last_cpu)| Kind::Wakeup { thread, by, last_cpu }
        ),
        1 => (thread(), any_tid()).prop_map(|(thread, by)| Kind::New { thread, by }),
        1 => thread().prop_map(Kind::Thread),
        1 => (tid(), name()).prop_map(|(tid, name)| Kind::Rename { tid, name: name.into() }),
        1 => Just(Kind::Lost),
    ]
}

prop_compose! {
    fn event()(at_ns in prop_oneof![any::<u64>(), 0..100u64], cpu in prop_oneof![0..4u32, any::<u32>()], kind in kind()) -> Event {
        // The existence of a thread belongs to no CPU.
        let cpu = if matches!(kind, Kind::Thread(_)) { 0 } else { cpu };
        Event { at_ns, cpu, kind }
    }
}

/// The events that the reader gives for these: a new thread whose creator's process is not known is
/// reported twice, the second time with its process.
fn as_read(events: Vec<Event>) -> Vec<Event> {
    let mut process = std::collections::HashMap::new();
    let mut expected = Vec::new();
    for event in events {
        let mut more = None;
        let mut event = event;
        match &mut event.kind {
            Kind::New { thread, by } => {
                let right = thread.pid;
                if thread.pid.0 != thread.tid.0 && process.get(by) != Some(&right) {
                    more = Some(Event {
                        cpu: 0,
                        at_ns: event.at_ns,
                        kind: Kind::Thread(thread.clone()),
                    });
                    thread.pid = *process.get(by).unwrap_or(&Pid(thread.tid.0));
                }
                process.insert(thread.tid, right);
            }
            Kind::Thread(thread) => {
                process.insert(thread.tid, thread.pid);
            }
            Kind::Switch {
                prev, prev_state, ..
            } if prev_state.has_ended() => {
                process.remove(prev);
            }
            _ => {}
        }
        expected.push(event);
        expected.extend(more);
    }
    expected
}

proptest! {
    #[test]
    fn what_was_written_is_read(events in vec(event(), 0..200)) {
        let (read, error) = read(&written(&events));
        prop_assert!(error.is_none(), "{error:?}");
        prop_assert_eq!(read, as_read(events));
    }

    #[test]
    fn a_cut_trace_gives_what_is_whole(events in vec(event(), 0..60), cut in any::<prop::sample::Index>()) {
        let bytes = written(&events);
        let cut = cut.index(bytes.len() + 1);
        let (got, error) = read(&bytes[..cut]);
        let all = as_read(events);
        prop_assert!(all.starts_with(&got));
        match error {
            None => {}
            Some(ReadError::Truncated { offset, ref file }) => {
                prop_assert!(offset < cut as u64);
                prop_assert_eq!(file, Path::new("t.perfetto-trace"));
                // A whole trace ends at the offset where a cut packet begins.
                prop_assert!(read(&bytes[..offset as usize]).1.is_none());
            }
            Some(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..400)) {
        read(&bytes);
    }

    #[test]
    fn no_packet_makes_it_panic(body in vec(any::<u8>(), 0..120), event in any::<bool>()) {
        // The framing is right, so that the contents are examined.
        let framed = |tag: u8, body: &[u8]| [&[tag, body.len() as u8][..], body].concat();
        let body = if event {
            framed(0x0a, &[&[0x08, 1][..], &framed(0x12, &body[..body.len().min(100)])].concat())
        } else {
            body
        };
        read(&framed(0x0a, &body));
    }

    #[test]
    fn changed_bytes_make_it_no_worse(events in vec(event(), 1..40), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = written(&events);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(error) = read(&bytes).1 {
            let text = error.to_string();
            prop_assert!(text.contains("t.perfetto-trace") && text.contains("byte"), "{text}");
        }
    }
}

#[test]
fn a_trace_is_readable_while_it_is_written() {
    let event = Event {
        at_ns: 7,
        cpu: 1,
        kind: Kind::Lost,
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = Writer::new(file.reopen().unwrap(), &system()).unwrap();
    writer.write(&event).unwrap();
    writer.flush().unwrap();
    let events: Result<Vec<_>, _> = Reader::open(file.path()).unwrap().collect();
    assert_eq!(events.unwrap(), [event]);
}

#[test]
fn other_packets_and_fields_are_passed_over() {
    let event = |at_ns| Event {
        at_ns,
        cpu: 0,
        kind: Kind::Rename {
            tid: Tid(4),
            name: "x".into(),
        },
    };
    let mut bytes = written(&[event(1)]);
    bytes.extend([0x0a, 4, 0x5a, 2, 0x08, 1]); // a packet with a track event
    // Fields 2 to 5 of the file's message: a number, 8 bytes, some bytes, 4 bytes.
    bytes.extend([0x10, 0x80, 0x01]);
    bytes.extend([0x19, 1, 2, 3, 4, 5, 6, 7, 8]);
    bytes.extend([0x22, 3, 1, 2, 3]);
    bytes.extend([0x2d, 1, 2, 3, 4]);
    bytes.extend(written(&[event(2)]));
    let (events, error) = read(&bytes);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(events, [event(1), event(2)]);
}

#[test]
fn errors_say_which_file_and_where() {
    let whole = written(&[]).len();
    let after = |bytes: &[u8]| [&written(&[]), bytes].concat();
    let cases: &[(Vec<u8>, &str)] = &[
        (
            after(&[0x0a, 5, 1]),
            &format!("ends within the packet that begins at byte {whole}"),
        ),
        (
            after(&[0x0b]),
            &format!("from byte {whole} on: no packet begins there"),
        ),
        (after(&[0x0f]), &format!("from byte {whole} on: ")),
        (
            after(&[0x0a, 0xff, 0xff, 0xff, 0x7f]),
            "268435455 bytes; 8388608 are the most",
        ),
        (after(&[0xff; 12]), "more than ten bytes"),
        (after(&[0x0a, 2, 0x0a, 0x00]), "events of no CPU"),
        (
            after(&[0x0a, 7, 0x0a, 5, 0x08, 0, 0x22, 1, 0]),
            "invalid tag",
        ),
        (
            vec![0x1f, 0x8b, 8, 0],
            "ends within the packet that begins at byte 0",
        ),
        (b"name,value\n1,2\n".to_vec(), "from byte 0 on: "),
    ];
    for (bytes, says) in cases {
        let error = read(bytes)
            .1
            .unwrap_or_else(|| panic!("{says}"))
            .to_string();
        assert!(
            error.contains(says) && error.starts_with("t.perfetto-trace: "),
            "{error}"
        );
    }
    let absent = Reader::open(Path::new("/no/such.perfetto-trace")).unwrap_err();
    assert!(
        absent
            .to_string()
            .contains("/no/such.perfetto-trace: cannot be read"),
        "{absent}"
    );
}
