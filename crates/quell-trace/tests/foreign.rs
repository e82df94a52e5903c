//! Traces as other recorders write them: every encoding tells the same events, as far as it has them.
#![allow(clippy::unwrap_used)] // helpers of tests

mod encodings;

use encodings::{Encoding, Wakeups, all, bytes, compress, gzip, number, packed, packet, second};
use proptest::collection::vec;
use proptest::prelude::*;
use quell_model::Tid;
use quell_trace::{Analyser, Analysis, Event, IDLE, Kind, ReadError, Reader, State, Told};

/// The events in the order of their times, with the wakeups that the trace has instead of others.
fn read(bytes: &[u8]) -> Result<(Vec<Event>, Told), ReadError> {
    let mut reader = Reader::new(bytes, "t");
    let events: Result<Vec<Event>, _> = reader.by_ref().collect();
    let (told, mut all) = reader.into_told();
    all.extend(events?);
    all.sort_by_key(|event| event.at_ns);
    Ok((all, told))
}

fn analyse(events: &[Event]) -> Analysis {
    let mut analyser = Analyser::default();
    events.iter().for_each(|event| analyser.add(event));
    analyser.finish(None)
}

/// For each thread: CPU time, switches, preemptions, migrations, wakeups, waits and their sum and longest.
fn figures(analysis: &Analysis) -> Vec<(Tid, u32, [u64; 8])> {
    let mut figures: Vec<_> = analysis
        .threads
        .iter()
        .map(|it| {
            let delays = &it.delays;
            let numbers = [
                it.run_ns,
                it.switches,
                it.preemptions,
                it.migrations,
                it.wakeups,
                delays.count(),
                delays.sum_ns(),
                delays.max_ns().unwrap_or(0),
            ];
            (it.thread.tid, it.thread.pid.0, numbers)
        })
        .collect();
    figures.sort();
    figures
}

/// The number of waits of threads that left their CPU while they still wanted to run.
fn preempted(events: &[Event]) -> u64 {
    let mut since = std::collections::HashMap::new();
    let mut sum = 0;
    let mut end = 0;
    for event in events {
        end = event.at_ns;
        if let Kind::Switch {
            prev,
            prev_state,
            next,
            ..
        } = event.kind
        {
            if prev != IDLE && prev_state.is_ready() {
                since.insert(prev, event.at_ns);
            }
            sum += since.remove(&next).map_or(0, |since| event.at_ns - since);
        }
    }
    sum + since.values().map(|since| end - since).sum::<u64>()
}

#[test]
fn every_encoding_of_a_second_has_the_same_figures() {
    let events = second();
    let plain = analyse(&events);
    assert_eq!(plain.gaps, Default::default());
    let waits = plain.delays(|_| true);
    assert!(waits.count() > 300, "{waits:?}");
    for encoding in all() {
        let (read, told) = read(&encodings::write(&events, encoding)).unwrap();
        let analysis = analyse(&read);
        let got = figures(&analysis);
        if encoding.wakeups == Wakeups::None {
            assert_eq!((told.wakings, told.wakeups), (0, 0));
            for ((tid, pid, got), (its, of, all)) in got.iter().zip(figures(&plain)) {
                assert_eq!(
                    (*tid, *pid, &got[..4]),
                    (its, of, &all[..4]),
                    "{encoding:?}"
                );
            }
            let delays = analysis.delays(|_| true);
            assert_eq!(delays.sum_ns(), preempted(&events), "{encoding:?}");
            assert!(delays.count() > 100);
        } else {
            assert_eq!(got, figures(&plain), "{encoding:?}");
            assert_eq!(analysis.gaps, Default::default(), "{encoding:?}");
            let wakeups = |events: &[Event]| -> Vec<Event> {
                let wakeups = events
                    .iter()
                    .filter(|it| matches!(it.kind, Kind::Wakeup { .. }));
                wakeups.cloned().collect()
            };
            assert!(wakeups(&read) == wakeups(&events), "{encoding:?}");
        }
    }
}

#[test]
fn where_events_were_lost_a_compact_switch_has_no_predecessor() {
    let compact = |at: u64, next: u64| {
        let mut out = Vec::new();
        bytes(5, b"x", &mut out);
        for (field, value) in [(1, at), (2, 0x100), (3, next), (4, 120), (6, 0)] {
            packed(field, &[value], &mut out);
        }
        out
    };
    let bundle = |compact: &[u8], lost: bool| {
        let (mut bundle, mut body) = (Vec::new(), Vec::new());
        number(1, 2, &mut bundle);
        number(3, lost.into(), &mut bundle);
        bytes(4, compact, &mut bundle);
        bytes(1, &bundle, &mut body);
        packet(&body)
    };
    let file = [
        bundle(&compact(10, 7), false),
        bundle(&compact(20, 8), false),
        bundle(&compact(30, 9), true),
    ];
    let (events, told) = read(&file.concat()).unwrap();
    assert_eq!((told.switches, told.packets, told.kernel_events), (3, 3, 3));
    let kinds: Vec<_> = events
        .iter()
        .filter(|it| !matches!(it.kind, Kind::Rename { .. }))
        .map(|it| match it.kind {
            Kind::Switch {
                prev,
                prev_state,
                next,
                ..
            } => (it.at_ns, prev.0, prev_state, next.0),
            _ => (it.at_ns, 0, State(7), 0),
        })
        .collect();
    let expected = [
        (10, 0, State::READY, 7),
        (20, 7, State::PREEMPTED, 8),
        (30, 0, State(7), 0),
        (30, 0, State::READY, 9),
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn a_new_thread_is_ready_by_its_first_wakeup_unless_its_making_is_told() {
    let event = |at: u64, field: u64| {
        let (mut out, mut inner) = (Vec::new(), Vec::new());
        number(1, at, &mut out);
        number(2, 5, &mut out);
        number(if field == 114 { 2 } else { 1 }, 9, &mut inner);
        bytes(field, &inner, &mut out);
        let mut bundle = Vec::new();
        number(1, 0, &mut bundle);
        bytes(2, &out, &mut bundle);
        let mut body = Vec::new();
        bytes(1, &bundle, &mut body);
        packet(&body)
    };
    let woken = |events: &[Event]| {
        let wakeups = events
            .iter()
            .filter(|it| matches!(it.kind, Kind::Wakeup { .. }));
        wakeups.count()
    };
    assert_eq!(woken(&read(&event(10, 114)).unwrap().0), 1);
    let both = [event(9, 235), event(10, 114)].concat();
    assert_eq!(woken(&read(&both).unwrap().0), 0);
    let both = [event(10, 114), event(9, 235)].concat();
    assert_eq!(woken(&read(&both).unwrap().0), 0);
}

#[test]
fn a_thread_that_is_told_without_a_name_keeps_that_of_its_events() {
    let encoding = all()[0];
    let mut events = second();
    let whole = encodings::write(&events, encoding);
    for event in &mut events {
        if let Kind::Thread(thread) = &mut event.kind {
            thread.name = "".into();
        }
    }
    events.retain(|event| matches!(event.kind, Kind::Thread(_)));
    let file = [whole, encodings::write(&events, encoding)].concat();
    let (events, _) = read(&file).unwrap();
    let analysis = analyse(&events);
    let names: Vec<&str> = analysis.threads.iter().map(|it| &*it.thread.name).collect();
    assert_eq!(names[0], "thread 0");
    assert!(names.iter().all(|name| !name.is_empty()), "{names:?}");
}

/// Filler of this many bytes, which deflate to a thousandth.
fn bomb(packed: usize) -> Vec<u8> {
    let mut filler = Vec::new();
    bytes(99, &vec![0; 1 << 20], &mut filler);
    filler.repeat(packed >> 20)
}

#[test]
fn what_unpacks_to_too_much_is_refused_with_the_limit() {
    let within = |body: &[u8]| {
        let mut out = Vec::new();
        bytes(50, &compress(body), &mut out);
        packet(&out)
    };
    assert!(read(&within(&bomb(64 << 20))).is_err()); // a little more, with its lengths
    assert!(read(&within(&bomb(63 << 20))).is_ok());
    let error = read(&within(&bomb(65 << 20))).unwrap_err().to_string();
    assert!(
        error.contains("unpacks to more than 67108864 bytes"),
        "{error}"
    );
    // Zeros are no packets, whatever number of them a file unpacks to.
    let error = read(&gzip(&vec![0; 1 << 24])).unwrap_err().to_string();
    assert!(error.contains("no packet begins there"), "{error}");
}

#[test]
fn what_is_wrong_with_a_packed_trace_is_said() {
    let field = |field: u64, body: &[u8]| {
        let mut out = Vec::new();
        bytes(field, body, &mut out);
        packet(&out)
    };
    let nested = field(50, &compress(&field(50, &compress(b""))));
    let cut = compress(&vec![7; 1000]);
    let cases: &[(Vec<u8>, &str)] = &[
        (nested, "compressed packets within compressed packets"),
        (field(50, b"no deflate"), "compressed packets: "),
        (field(50, &cut[..cut.len() / 2]), "compressed packets: "),
        (field(50, &compress(&[0x0a, 9, 1])), "they end within one"),
        (field(133, b"x"), "zstd"),
        (gzip(&gzip(b"x")), "gzipped twice"),
        (gzip(b"{\"traceEvents\": []}"), "it is JSON"),
        (b"\x28\xb5\x2f\xfdxxxx".to_vec(), "zstd"),
        (b"PERFILE2xxxxx".to_vec(), "perf record"),
        (b"<html>".to_vec(), "HTML"),
    ];
    for (bytes, says) in cases {
        let error = read(bytes).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
    let columns = |fields: &[(u64, &[u64])]| {
        let (mut compact, mut bundle, mut body) = (Vec::new(), Vec::new(), Vec::new());
        for (field, values) in fields {
            packed(*field, values, &mut compact);
        }
        number(1, 0, &mut bundle);
        bytes(4, &compact, &mut bundle);
        bytes(1, &bundle, &mut body);
        read(&packet(&body)).unwrap_err().to_string()
    };
    let error = columns(&[(1, &[1, 2]), (2, &[0])]);
    assert!(error.contains("not of one length"), "{error}");
    let error = columns(&[(1, &[1]), (2, &[0]), (3, &[7]), (4, &[120]), (6, &[0])]);
    assert!(error.contains("the 0th of 0 names"), "{error}");
}

fn encoding() -> impl Strategy<Value = Encoding> {
    proptest::sample::select(all())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In any encoding, a cut or changed file gives events or tells what is wrong, and where.
    #[test]
    fn no_cut_and_no_change_makes_it_panic(
        encoding in encoding(),
        cut in any::<prop::sample::Index>(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let events = second();
        let mut bytes = encodings::write(&events[..events.len().min(700)], encoding);
        bytes.truncate(cut.index(bytes.len() + 1));
        for (at, value) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        if let Err(error) = read(&bytes) {
            let text = error.to_string();
            prop_assert!(text.starts_with("t: ") && text.contains("byte"), "{text}");
        }
    }

    /// Arbitrary bytes in the place of columns, of compressed packets or of a gzipped file cause no panic
    /// either.
    #[test]
    fn no_bytes_in_the_new_places_make_it_panic(body in vec(any::<u8>(), 0..300)) {
        let (mut bundle, mut compact) = (Vec::new(), Vec::new());
        number(1, 1, &mut bundle);
        bytes(4, &body, &mut bundle);
        bytes(1, &bundle, &mut compact);
        let mut raw = Vec::new();
        bytes(50, &body, &mut raw);
        let mut inflated = Vec::new();
        bytes(50, &compress(&body), &mut inflated);
        for file in [packet(&compact), packet(&raw), packet(&inflated), gzip(&body)] {
            let _ = read(&file);
        }
    }

    /// Columns of any lengths and values cause no panic.
    #[test]
    fn no_columns_make_it_panic(columns in vec((1..13u64, vec(any::<u64>(), 0..5)), 0..14), names in 0..3) {
        let (mut compact, mut bundle, mut body) = (Vec::new(), Vec::new(), Vec::new());
        (0..names).for_each(|_| bytes(5, b"\xff\x1b", &mut compact));
        for (field, values) in columns.iter().filter(|(field, _)| *field != 5) {
            packed(*field, values, &mut compact);
        }
        number(1, 1, &mut bundle);
        bytes(4, &compact, &mut bundle);
        bytes(1, &bundle, &mut body);
        if let Ok((events, _)) = read(&packet(&body)) {
            analyse(&events);
        }
    }
}
