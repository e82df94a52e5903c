use super::*;
use proptest::prelude::*;
use quell_model::Tid;
use quell_trace::State;

const MS: u64 = 1_000_000;

fn switch(at_ms: u64, cpu: u32, prev: u32, state: State, next: u32) -> Event {
    let kind = Kind::Switch {
        prev: Tid(prev),
        prev_state: state,
        next: Tid(next),
        next_priority: 120,
    };
    let at_ns = at_ms * MS;
    Event { at_ns, cpu, kind }
}

fn wakeup(at_ms: u64, cpu: u32, thread: u32, by: Option<u32>) -> Event {
    let kind = Kind::Wakeup {
        thread: Tid(thread),
        by: by.map(Tid),
        last_cpu: cpu,
    };
    let at_ns = at_ms * MS;
    Event { at_ns, cpu, kind }
}

fn process(tid: u32) -> Event {
    let kind = Kind::Thread(quell_trace::Thread {
        tid: Tid(tid),
        pid: Pid(tid),
        name: format!("p{tid}").into(),
    });
    Event {
        at_ns: 0,
        cpu: 0,
        kind,
    }
}

fn free(events: &[Event], side: &str, cpus: Option<u32>) -> Replayed {
    let sides = [side.parse().unwrap()];
    let file = Path::new("t");
    replay_events(file, events, &sides, cpus, Costs::NONE, Vec::new()).unwrap()
}

fn of(replayed: &Replayed, pid: u32) -> &[Under] {
    let mut all = replayed.processes.iter();
    &all.find(|process| process.pid == pid).unwrap().under
}

const SLEEPS: State = State::SLEEPING;

#[test]
fn two_threads_on_one_cpu_wait_for_each_other_and_on_two_they_do_not() {
    // Both threads come at 0 and need 2 ms; the first is preempted after 1 ms.
    let events = [
        process(1),
        process(2),
        wakeup(0, 0, 1, None),
        wakeup(0, 0, 2, None),
        switch(0, 0, 0, State::READY, 1),
        switch(1, 0, 1, State::PREEMPTED, 2),
        switch(3, 0, 2, SLEEPS, 1),
        switch(4, 0, 1, SLEEPS, 0),
        switch(10, 0, 0, State::READY, 0),
    ];
    let one = free(&events, "fifo", None);
    assert_eq!((one.cpus, one.gaps), (1, 0));
    // First come, first served: the first thread takes 2 ms without preemption, then the second runs.
    let (first, second) = (of(&one, 1), of(&one, 2));
    assert_eq!([first[0].cpu_ms, first[1].cpu_ms], [2.0, 2.0]);
    assert_eq!([first[0].preemptions, first[1].preemptions], [1, 0]);
    assert_eq!(first[1].run_delay.max_us, Some(0.0));
    assert_eq!(first[0].turnaround.max_us, Some(4000.0));
    assert_eq!(first[1].turnaround.max_us, Some(2000.0));
    assert_eq!(second[0].run_delay.max_us, Some(1000.0));
    assert_eq!(second[1].run_delay.max_us, Some(2000.0));
    let two = free(&events, "fifo", Some(2));
    assert_eq!(of(&two, 2)[1].run_delay.max_us, Some(0.0));
}

/// Each of two threads runs for 1 ms after it is switched to, wakes the other and sleeps; `wait` is how long
/// a woken thread waits, in ms.
fn ping_pong(rounds: u64, wait: u64) -> Vec<Event> {
    let mut events = vec![process(1), process(2), wakeup(0, 0, 1, None)];
    let mut at = 0;
    for _ in 0..rounds {
        for (me, other) in [(1, 2), (2, 1)] {
            at += wait;
            events.push(switch(at, 0, 0, State::READY, me));
            at += 1;
            events.push(wakeup(at, 0, other, Some(me)));
            events.push(switch(at, 0, me, SLEEPS, 0));
        }
    }
    events
}

#[test]
fn a_ping_pong_goes_as_fast_as_its_threads_are_served() {
    // Each turn was delayed by 3 ms; where nothing delays a turn, it takes a quarter of the time.
    let mut events = ping_pong(10, 3);
    events.push(switch(1000, 0, 0, State::READY, 0));
    let replayed = free(&events, "fifo", None);
    let under = of(&replayed, 1);
    let median = under[0].run_delay.p50_us.unwrap();
    assert!((median - 3000.0).abs() < 60.0, "{median}");
    assert!(under[1].run_delay.count >= 10);
    assert!((under[1].cpu_ms - 10.0).abs() < 0.01, "{under:?}");
    assert!((under[1].turnaround.max_us.unwrap() - 1000.0).abs() < 1.0);
}

#[test]
fn a_server_is_interrupted_when_it_was_however_it_is_served() {
    // An interrupt comes every 10 ms, with 4 ms of work; a spinner held the CPU for 2 ms each time.
    let mut events = vec![process(1), process(2), switch(0, 0, 0, State::READY, 2)];
    for round in 0..10 {
        let at = 10 * round;
        events.push(wakeup(at + 1, 0, 1, None));
        events.push(switch(at + 3, 0, 2, State::PREEMPTED, 1));
        events.push(switch(at + 7, 0, 1, SLEEPS, 2));
    }
    events.push(switch(100, 0, 2, State::PREEMPTED, 0));
    let alone = free(&events, "fifo", Some(2));
    let server = of(&alone, 1);
    assert_eq!(server[0].run_delay.mean_us, Some(2000.0));
    assert_eq!(
        server[0].turnaround.p50_us.map(f64::round),
        server[0].turnaround.max_us
    );
    assert_eq!(server[1].run_delay.max_us, Some(0.0));
    assert_eq!(server[1].turnaround.count, 10);
    assert_eq!(server[1].turnaround.mean_us, Some(4000.0));
    // On one CPU EEVDF serves the thread that slept before the spinner's slice ends.
    let one = free(&events, "eevdf", None);
    assert_eq!(of(&one, 1)[1].turnaround.count, 10);
}

#[test]
fn a_wakeup_on_the_way_to_sleep_is_not_lost() {
    let events = [
        process(1),
        process(2),
        switch(0, 0, 0, State::READY, 1),
        switch(0, 1, 0, State::READY, 2),
        wakeup(1, 1, 1, Some(2)), // thread 1 still runs
        switch(1, 0, 1, SLEEPS, 0),
        switch(2, 0, 0, State::READY, 1),
        switch(3, 0, 1, SLEEPS, 0),
        switch(4, 1, 2, SLEEPS, 0),
    ];
    let replayed = free(&events, "fifo", None);
    assert_eq!(replayed.gaps, 0);
    assert!((of(&replayed, 1)[1].cpu_ms - 2.0).abs() < 0.01);
    assert!((of(&replayed, 2)[1].cpu_ms - 4.0).abs() < 0.01);
}

fn any_event() -> impl Strategy<Value = Event> {
    let tid = || (0..5u32).prop_map(Tid);
    let state = prop_oneof![
        Just(State::READY),
        Just(State::SLEEPING),
        Just(State::DEAD),
        Just(State::PREEMPTED)
    ];
    let switch =
        (tid(), state, tid(), any::<i32>()).prop_map(|(prev, prev_state, next, next_priority)| {
            Kind::Switch {
                prev,
                prev_state,
                next,
                next_priority,
            }
        });
    let wakeup = (tid(), proptest::option::of(tid())).prop_map(|(thread, by)| Kind::Wakeup {
        thread,
        by,
        last_cpu: 0,
    });
    let thread = |(tid, pid): (Tid, u32)| quell_trace::Thread {
        tid,
        pid: Pid(pid),
        name: "x".into(),
    };
    let new = ((tid(), 0..3u32).prop_map(thread), tid())
        .prop_map(|(thread, by)| Kind::New { thread, by });
    let there = (tid(), 0..3u32).prop_map(thread).prop_map(Kind::Thread);
    let kind = prop_oneof![8 => switch, 4 => wakeup, 1 => new, 1 => there, 1 => Just(Kind::Lost)];
    (0..50 * MS, 0..3u32, kind).prop_map(|(at_ns, cpu, kind)| Event { at_ns, cpu, kind })
}

proptest! {
    /// Any trace is replayed or refused, and no thread gets more CPU time than it was seen to use.
    #[test]
    fn no_trace_breaks_it(mut events in prop::collection::vec(any_event(), 0..200)) {
        events.sort_by_key(|event| event.at_ns);
        for side in ["fifo", "eevdf", "sched"] {
            let sides = [side.parse().unwrap()];
            let replayed = replay_events(Path::new("t"), &events, &sides, Some(2), costs(), Vec::new());
            match replayed {
                Ok(replayed) => {
                    let spent: f64 = replayed.processes.iter().flat_map(|p| p.under.get(1)).map(|u| u.cpu_ms).sum();
                    prop_assert!(spent <= 2.0 * replayed.seconds * 1e3 + 0.001);
                }
                Err(error) => prop_assert!(error.is::<ReplayError>(), "{error:#}"),
            }
        }
    }
}

/// The machine's own work is in the CPU time that was recorded, and must not be counted a second time.
#[test]
fn a_thread_alone_takes_as_long_as_it_took() {
    let mut events = vec![process(1)];
    for round in 0..50 {
        events.push(wakeup(20 * round, 0, 1, None));
        events.push(switch(20 * round, 0, 0, State::READY, 1));
        events.push(switch(20 * round + 17, 0, 1, SLEEPS, 0));
    }
    events.push(switch(1000, 0, 0, State::READY, 0));
    for side in ["fifo", "eevdf", "sched"] {
        let sides = [side.parse().unwrap()];
        let replayed = replay_events(Path::new("t"), &events, &sides, None, costs(), Vec::new());
        let replayed = replayed.unwrap();
        let [recorded, simulated] = of(&replayed, 1) else {
            panic!("{replayed:?}");
        };
        assert_eq!([recorded, simulated].map(|it| it.turnaround.count), [50; 2]);
        assert_eq!(recorded.turnaround.mean_us, Some(17_000.0));
        // An idle CPU takes a moment to wake and to switch to the thread.
        let late = simulated.turnaround.mean_us.unwrap() - 17_000.0;
        let least = (costs().switch + costs().kick) as f64 / 1e3;
        assert!((0.0..=least).contains(&late), "{side}: {late} us");
    }
}

#[test]
fn timers_go_off_where_their_thread_sleeps_and_devices_where_they_are() {
    let mut events = Vec::new();
    // Each thread falls asleep on CPU 0 and on CPU 3, and interrupts wake it: the first thread always where
    // it fell asleep, the second always on CPU 0.
    for (thread, first, woken_on) in [(1, 0, [0, 3]), (2, 100, [0, 0])] {
        events.push(process(thread));
        events.push(wakeup(first, 3, thread, None)); // not seen to fall asleep
        events.push(switch(first, 0, 0, State::READY, thread));
        events.push(switch(first + 1, 0, thread, SLEEPS, 0));
        events.push(wakeup(first + 5, woken_on[0], thread, None));
        events.push(switch(first + 5, 3, 0, State::READY, thread));
        events.push(switch(first + 6, 3, thread, SLEEPS, 0));
        events.push(wakeup(first + 9, woken_on[1], thread, None));
        events.push(switch(first + 9, 3, 0, State::READY, thread));
        events.push(switch(first + 10, 3, thread, SLEEPS, 0));
    }
    events.sort_by_key(|event| event.at_ns);
    let recording = extract(&events, &Costs::NONE);
    let interrupt = |it: &recording::Interrupt| (it.at / MS, it.cpu, it.thread.0);
    let interrupts: Vec<_> = recording.interrupts.iter().map(interrupt).collect();
    // CPUs are numbered by their place among those that switched, 0 and 3.
    assert_eq!(
        interrupts,
        [(0, 1, 0), (100, 1, 1), (105, 0, 1), (109, 0, 1)]
    );
    use quell_sim::Act::{Done, Run, Until, Wait};
    let acts = |process: usize| recording.processes[process].threads[0].2.clone();
    let expected = |one, other| {
        [
            Run(MS),
            Done,
            one,
            Run(MS),
            Done,
            other,
            Run(MS),
            Done,
            Wait,
        ]
    };
    assert_eq!(acts(0), expected(Until(5 * MS), Until(9 * MS)));
    assert_eq!(acts(1), expected(Wait, Wait));
    let replayed = free(&events, "fifo", None);
    for under in of(&replayed, 1).iter().chain(of(&replayed, 2)) {
        let turnarounds = &under.turnaround;
        assert_eq!((turnarounds.count, turnarounds.max_us), (3, Some(1000.0)));
    }
}

#[test]
fn what_began_before_the_trace_has_no_turnaround() {
    // The first thread is on the CPU, the second waits for it, and only the third is seen to be woken.
    let events = [
        process(1),
        process(2),
        process(3),
        wakeup(1, 0, 3, None),
        switch(2, 0, 1, SLEEPS, 2),
        switch(4, 0, 2, SLEEPS, 3),
        switch(5, 0, 3, SLEEPS, 0),
        switch(9, 0, 0, State::READY, 0),
    ];
    let replayed = free(&events, "fifo", None);
    for (process, count) in [(1, 0), (2, 0), (3, 1)] {
        let counts = of(&replayed, process).iter().map(|it| it.turnaround.count);
        assert_eq!(counts.collect::<Vec<_>>(), [count; 2]);
    }
    assert_eq!(of(&replayed, 3)[0].turnaround.max_us, Some(4000.0));
    assert_eq!(replayed.all[1].turnaround.count, 1);
}

#[test]
fn what_is_late_is_counted_after_the_end_of_the_trace() {
    // Two CPUs ran 8 ms of work each in 10 ms; one CPU needs 16 ms for it.
    let mut events = vec![process(1), process(2)];
    for cpu in 0..2 {
        events.push(wakeup(0, cpu, cpu + 1, None));
        events.push(switch(0, cpu, 0, State::READY, cpu + 1));
        events.push(switch(8, cpu, cpu + 1, SLEEPS, 0));
    }
    events.push(switch(10, 0, 0, State::READY, 0));
    events.sort_by_key(|event| event.at_ns);
    let replayed = free(&events, "fifo", Some(1));
    let under = &replayed.all[1];
    assert_eq!(under.cpu_ms, 10.0);
    assert_eq!(under.turnaround.count, 2);
    assert_eq!(under.turnaround.max_us, Some(16_000.0));
    assert_eq!(replayed.notes, [""; 0]);
}

#[test]
fn a_spinner_keeps_its_time_though_a_switch_was_not_told() {
    // Between 60 and 61 ms another thread ran, to which the CPU was not seen to switch.
    let events = [
        process(1),
        process(2),
        wakeup(0, 0, 1, None),
        switch(0, 0, 0, State::READY, 1),
        wakeup(60, 0, 2, None),
        switch(61, 0, 2, SLEEPS, 1),
        switch(100, 0, 1, SLEEPS, 0),
        switch(110, 0, 0, State::READY, 0),
    ];
    let replayed = free(&events, "fifo", None);
    assert_eq!(replayed.gaps, 1);
    let [recorded, simulated] = of(&replayed, 1) else {
        panic!("{replayed:?}");
    };
    // Time that the recording gives to no thread may be the spinner's; but the spinner never gets less than
    // the recording gives it.
    assert!(recorded.cpu_ms <= simulated.cpu_ms, "{replayed:?}");
    assert!(simulated.cpu_ms <= 100.0, "{replayed:?}");
}

#[test]
fn sides_that_go_by_more_than_a_trace_tells_are_refused() {
    for side in ["default", "quell", "dasec", "ufo", "share"] {
        let error = check(&[side.parse().unwrap()]).unwrap_err().to_string();
        assert!(error.contains(side), "{error}");
    }
    for side in ["sched", "eevdf", "cfs", "fifo"] {
        check(&[side.parse().unwrap()]).unwrap();
    }
}

#[test]
fn what_is_offered_is_taken_and_nothing_else() {
    let all: Vec<&str> = names().collect();
    assert_eq!(all, ["sched", "cfs", "eevdf-6.12", "eevdf", "fifo"]);
    assert_eq!(sides(&all.join(",")).unwrap().len(), all.len());
    sides("sched,mine=quell sched --no-causal").unwrap();
    for side in [
        "nosuch",
        "stock",
        "weights",
        "scx_lavd",
        "quell",
        "default",
        "mine=/bin/scx",
    ] {
        let error = sides(side).unwrap_err().to_string();
        assert!(
            error.ends_with(
                "there are: sched, cfs, eevdf-6.12, eevdf, fifo, and NAME=quell sched OPTIONS"
            ),
            "{error}"
        );
    }
}

#[test]
fn what_is_no_trace_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    let sides = ["fifo".parse().unwrap()];
    let refused = |file: &Path| {
        let error = replay(file, &sides, None).unwrap_err();
        assert!(error.is::<ReplayError>(), "{error:#}");
        error.to_string()
    };
    assert!(refused(&file).contains("cannot be read"));
    std::fs::write(&file, "").unwrap();
    assert!(refused(&file).contains("no switches"));
    std::fs::write(&file, "<html>").unwrap();
    assert!(refused(&file).contains("no Perfetto trace"));
}

#[test]
fn a_trace_that_is_cut_anywhere_is_replayed_up_to_there() {
    let system = quell_trace::System {
        release: "6.12".to_string(),
        version: String::new(),
        machine: "x86_64".to_string(),
        clocks: None,
    };
    let mut writer = quell_trace::Writer::new(Vec::new(), &system).unwrap();
    for event in &ping_pong(20, 1) {
        writer.write(event).unwrap();
        writer.flush().unwrap();
    }
    let bytes = writer.finish().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    let (mut whole, mut cut) = (0, 0);
    for length in (0..=bytes.len()).step_by(7) {
        std::fs::write(&file, &bytes[..length]).unwrap();
        match replay(&file, &["fifo".parse().unwrap()], None) {
            Ok(replayed) => {
                whole += 1;
                cut += replayed.notes.len();
            }
            Err(error) => assert!(error.is::<ReplayError>(), "{error:#}"),
        }
    }
    assert!(whole > 100 && cut > 50 && cut < whole, "{whole} {cut}");
}
