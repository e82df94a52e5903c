//! Traces as other recorders than Quell write them.

use super::encodings::{Encoding, Wakeups, all, bytes, number, packet, second, write};
use super::*;

/// Replays a file with these bytes, on a machine that serves threads first come, first served.
fn replayed(bytes: &[u8]) -> anyhow::Result<Replayed> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    std::fs::write(&file, bytes).unwrap();
    replay(&file, &["fifo".parse().unwrap()], None)
}

const PLAIN: Encoding = Encoding {
    wakeups: Wakeups::Waking,
    compact: false,
    compressed: false,
    gzip: false,
    tree: true,
};

/// A replay without the file's name and the notes.
fn figures(mut replayed: Replayed) -> Replayed {
    replayed.file.clear();
    replayed.notes.clear();
    replayed
}

#[test]
fn every_encoding_of_a_second_is_replayed_alike() {
    let events = second();
    let plain = replayed(&write(&events, PLAIN)).unwrap();
    assert_eq!(plain.notes, [""; 0]);
    assert_eq!((plain.gaps, plain.processes.len()), (0, 3));
    assert!(plain.all[0].run_delay.count > 300);
    let only = replayed(&write(
        &events,
        Encoding {
            wakeups: Wakeups::None,
            ..PLAIN
        },
    ))
    .unwrap();
    let (recorded, told) = (&only.all[0], &plain.all[0]);
    assert_eq!(only.gaps, 0);
    assert!(recorded.run_delay.count > 100 && recorded.run_delay.count < told.run_delay.count);
    assert_eq!(recorded.turnaround.count, 0);
    assert_eq!(
        (recorded.switches, recorded.preemptions, recorded.cpu_ms),
        (told.switches, told.preemptions, told.cpu_ms)
    );
    let [note] = &only.notes[..] else {
        panic!("{:?}", only.notes);
    };
    assert!(
        note.contains("switches only") && note.contains("cannot tell"),
        "{note}"
    );
    let (plain, only) = (figures(plain), figures(only));
    for encoding in all() {
        let replayed = replayed(&write(&events, encoding)).unwrap();
        let said = match encoding.wakeups {
            Wakeups::Waking | Wakeups::Both => None,
            Wakeups::Wakeup => Some("no `sched_waking`"),
            Wakeups::None => Some("switches only"),
        };
        assert_eq!(
            replayed.notes.len(),
            usize::from(said.is_some()),
            "{encoding:?}"
        );
        assert!(said.is_none_or(|said| replayed.notes[0].contains(said)));
        let expected = match encoding.wakeups {
            Wakeups::None => &only,
            _ => &plain,
        };
        assert!(figures(replayed) == *expected, "{encoding:?}");
    }
}

#[test]
fn threads_without_a_process_are_each_by_themselves() {
    let events = second();
    for compact in [false, true] {
        let encoding = Encoding {
            tree: false,
            compact,
            ..PLAIN
        };
        let replayed = replayed(&write(&events, encoding)).unwrap();
        let mut names: Vec<_> = replayed
            .processes
            .iter()
            .map(|it| (it.pid, it.name.clone(), it.threads))
            .collect();
        names.sort();
        let each = |n: u32| (100 + n, format!("thread {n}"), 1);
        assert_eq!(names, (0..9).map(each).collect::<Vec<_>>());
        assert!(
            replayed.notes[0].starts_with("Of 9 threads"),
            "{:?}",
            replayed.notes
        );
        let whole = super::foreign::replayed(&write(&events, PLAIN)).unwrap();
        assert_eq!(replayed.all[0], whole.all[0]);
    }
}

#[test]
fn when_it_is_said_who_the_threads_are_neither_begins_nor_ends_a_trace() {
    let mut events = second();
    let right = replayed(&write(&events, PLAIN)).unwrap();
    let days = 3 * 86_400_000_000_000;
    events[0].at_ns += days; // when the threads are named
    let late = replayed(&write(&events, PLAIN)).unwrap();
    // A thread that ran before the trace told its process counts all the same.
    assert!((late.seconds - right.seconds).abs() < 0.01);
    assert_eq!(late.all[0].run_delay, right.all[0].run_delay);
}

#[test]
fn a_trace_without_switches_says_what_it_has() {
    let said = |bytes: &[u8]| {
        let error = replayed(bytes).unwrap_err();
        assert!(error.is::<ReplayError>(), "{error:#}");
        error.to_string()
    };
    assert!(said(b"").contains("no switches: it is empty"));
    let mut track = Vec::new();
    bytes(11, b"", &mut track);
    let error = said(&packet(&track));
    assert!(
        error.contains("none of its 1 packets has events of the kernel"),
        "{error}"
    );
    let (mut frequency, mut bundle, mut body) = (Vec::new(), Vec::new(), Vec::new());
    number(1, 5, &mut frequency);
    bytes(11, b"", &mut frequency);
    number(1, 0, &mut bundle);
    bytes(2, &frequency, &mut bundle);
    bytes(1, &bundle, &mut body);
    let error = said(&packet(&body));
    assert!(
        error.contains("its 1 events of the kernel are others"),
        "{error}"
    );
}

#[test]
fn what_does_not_tell_interrupts_or_has_clocks_of_its_own_says_so() {
    let mut events = second();
    for event in &mut events {
        if let Kind::Wakeup { by, .. } = &mut event.kind {
            by.get_or_insert(quell_trace::IDLE);
        }
    }
    let replayed = replayed(&write(&events, PLAIN)).unwrap();
    assert!(
        replayed.notes[0].contains("which wakeups were interrupts'"),
        "{:?}",
        replayed.notes
    );
    let told = Told {
        local_clocks: true,
        ..Told::default()
    };
    assert!(untold(&told)[0].contains("`local`"));
}
