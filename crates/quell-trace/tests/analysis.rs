//! Run delays and counts of traces made by hand.
#![allow(clippy::unwrap_used)] // helpers of tests

use quell_model::{Pid, Tid};
use quell_trace::{Analyser, Analysis, Event, IDLE, Kind, State, Thread, ThreadStats};

const A: Tid = Tid(11);
const B: Tid = Tid(12);
const C: Tid = Tid(13);

fn switch(at_ns: u64, cpu: u32, prev: Tid, prev_state: State, next: Tid) -> Event {
    let kind = Kind::Switch {
        prev,
        prev_state,
        next,
        next_priority: 120,
    };
    Event { at_ns, cpu, kind }
}

fn wakeup(at_ns: u64, cpu: u32, thread: Tid) -> Event {
    let kind = Kind::Wakeup {
        thread,
        by: None,
        last_cpu: cpu,
    };
    Event { at_ns, cpu, kind }
}

fn thread(at_ns: u64, tid: Tid, pid: u32, name: &str) -> Event {
    let thread = Thread {
        tid,
        pid: Pid(pid),
        name: name.into(),
    };
    let kind = Kind::Thread(thread);
    Event {
        at_ns,
        cpu: 0,
        kind,
    }
}

fn lost(at_ns: u64, cpu: u32) -> Event {
    let kind = Kind::Lost;
    Event { at_ns, cpu, kind }
}

fn analyse(window: std::ops::Range<u64>, events: &[Event]) -> Analysis {
    let mut analyser = Analyser::new(window);
    events.iter().for_each(|event| analyser.add(event));
    analyser.finish(None)
}

fn of(analysis: &Analysis, tid: Tid) -> &ThreadStats {
    let mut those = analysis.threads.iter();
    those.rfind(|t| t.thread.tid == tid).unwrap()
}

/// The run time, the number of delays, and their sum.
fn figures(analysis: &Analysis, tid: Tid) -> (u64, u64, u64) {
    let stats = of(analysis, tid);
    (stats.run_ns, stats.delays.count(), stats.delays.sum_ns())
}

#[test]
fn a_delay_is_from_ready_until_running_whatever_made_it_ready() {
    let analysis = analyse(
        0..u64::MAX,
        &[
            switch(100, 0, IDLE, State::READY, A),
            wakeup(150, 0, B),                      // B is ready
            switch(200, 0, A, State::PREEMPTED, B), // after 50; now A is ready
            switch(300, 0, B, State::SLEEPING, A),  // after 100
            wakeup(310, 1, B),
            switch(315, 1, IDLE, State::READY, B), // after 5, on another CPU
            switch(400, 0, A, State::READY, IDLE), // A yields, and no thread takes its CPU
            switch(500, 1, B, State::DEAD, IDLE),
        ],
    );
    assert_eq!(figures(&analysis, A), (200, 2, 200)); // its last wait still goes on
    assert_eq!(figures(&analysis, B), (285, 2, 55));
    let (a, b) = (of(&analysis, A), of(&analysis, B));
    assert_eq!(
        (a.switches, a.preemptions, a.migrations, a.wakeups),
        (2, 2, 0, 0)
    );
    assert_eq!(
        (b.switches, b.preemptions, b.migrations, b.wakeups),
        (2, 0, 1, 2)
    );
    assert_eq!(
        (b.delays.max_ns(), b.delays.mean_ns()),
        (Some(50), Some(27))
    );
    assert_eq!(
        (b.delays.quantile_ns(0.5), b.delays.quantile_ns(1.0)),
        (Some(5), Some(50))
    );
    assert_eq!((analysis.gaps, analysis.cpus), (Default::default(), 2));
}

#[test]
fn it_is_known_how_many_wait_for_those_that_wait_for_a_cpu() {
    let mut events = vec![
        thread(0, A, 7, "a"),
        thread(0, B, 7, "b"),
        thread(0, C, 7, "c"),
        switch(50, 0, IDLE, State::READY, C),
        switch(60, 0, C, State::SLEEPING, A),
        wakeup(200, 0, B),                     // B is ready, C blocked
        wakeup(230, 0, C),                     // both are ready
        switch(260, 0, A, State::SLEEPING, B), // C is ready, A blocked
        switch(300, 0, B, State::SLEEPING, C), // no thread is ready
        switch(400, 0, C, State::SLEEPING, IDLE),
    ];
    let of_process = |window, events: &[Event]| {
        let processes = analyse(window, events).processes(|thread| thread.pid == Pid(7));
        processes[0].occasions.clone()
    };
    let by_blocked = |window, events: &[Event]| of_process(window, events).by_blocked_ns;
    // Busy from when C runs until it blocks at 400, as A runs from when C blocked at 60.
    let all = of_process(0..u64::MAX, &events);
    assert_eq!((all.busy_ns, all.busy_periods), (350, 1));
    assert_eq!(of_process(220..280, &events).busy_ns, 60);
    assert_eq!(by_blocked(0..u64::MAX, &events), [30, 70]);
    assert_eq!(by_blocked(220..280, &events), [30, 30]);
    // The name of a thread may be told after what it did; and a thread of another process does not count.
    events.push(thread(410, B, 8, "b"));
    events.push(wakeup(420, 0, C));
    events.push(switch(450, 0, IDLE, State::READY, B));
    assert_eq!(by_blocked(0..u64::MAX, &events), [30, 100]);
    assert_eq!(of_process(0..u64::MAX, &events).busy_periods, 2);
}

#[test]
fn a_window_cuts_run_time_and_takes_the_delays_that_end_in_it() {
    let events = [
        switch(100, 0, IDLE, State::READY, A),
        wakeup(150, 0, B),
        switch(200, 0, A, State::READY, B),
        switch(300, 0, B, State::SLEEPING, A),
        switch(400, 0, A, State::SLEEPING, IDLE),
    ];
    let analysis = analyse(180..350, &events);
    assert_eq!(analysis.window, 180..350);
    assert_eq!(figures(&analysis, A), (20 + 50, 1, 100));
    assert_eq!(figures(&analysis, B), (100, 1, 50));
    let analysis = analyse(250..1000, &events);
    assert_eq!(analysis.window, 250..400);
    assert_eq!(figures(&analysis, B), (50, 0, 0));
}

#[test]
fn who_runs_when_the_trace_begins_and_ends_is_counted() {
    let mut analyser = Analyser::default();
    for event in [
        thread(1000, A, 11, "a"),
        thread(1000, B, 12, "b"),
        switch(1400, 3, A, State::SLEEPING, B),
    ] {
        analyser.add(&event);
    }
    let analysis = analyser.finish(Some(2000));
    assert_eq!(figures(&analysis, A), (400, 0, 0));
    assert_eq!(figures(&analysis, B), (600, 0, 0)); // since when it was ready is not known
    assert_eq!(analysis.gaps, Default::default());
}

#[test]
fn a_switch_that_was_not_told_is_a_gap_and_no_delay() {
    let analysis = analyse(
        0..u64::MAX,
        &[
            switch(100, 0, IDLE, State::READY, A),
            wakeup(110, 0, B),
            // The switch from A to B is missing.
            switch(300, 0, B, State::SLEEPING, C),
            switch(400, 0, C, State::SLEEPING, IDLE),
            wakeup(450, 0, B),
            switch(460, 0, IDLE, State::READY, B),
            wakeup(470, 0, A), // where it was is not known; from now on it is ready
            switch(480, 0, B, State::SLEEPING, A),
        ],
    );
    assert_eq!(figures(&analysis, A), (0, 1, 10));
    assert_eq!(figures(&analysis, B), (20, 1, 10));
    assert_eq!(figures(&analysis, C), (100, 0, 0));
    assert_eq!(
        (analysis.gaps.switches, analysis.gaps.unattributed_ns),
        (1, 200)
    );
}

#[test]
fn what_cannot_follow_is_counted() {
    let events = [
        switch(100, 0, A, State::SLEEPING, IDLE),
        switch(200, 0, IDLE, State::READY, A), // no wakeup was seen
        switch(300, 0, A, State::SLEEPING, IDLE),
        wakeup(400, 0, A),
        wakeup(900, 0, A), // so it ran and slept again meanwhile
        switch(910, 0, IDLE, State::READY, A),
        switch(920, 1, IDLE, State::READY, A), // and it left the other CPU
    ];
    let analysis = analyse(0..u64::MAX, &events);
    assert_eq!(figures(&analysis, A), (100, 1, 10));
    assert_eq!(analysis.gaps.states, 3);
}

#[test]
fn a_wakeup_just_before_its_thread_has_left_the_cpu_counts_from_then() {
    let analysis = analyse(
        0..u64::MAX,
        &[
            switch(100, 0, IDLE, State::READY, A),
            wakeup(199, 1, A), // another CPU sees it asleep already
            switch(200, 0, A, State::SLEEPING, B),
            switch(230, 0, B, State::SLEEPING, A),
        ],
    );
    assert_eq!(figures(&analysis, A), (100, 1, 30));
    assert_eq!(analysis.gaps, Default::default());
}

#[test]
fn where_events_were_lost_no_delay_goes_across() {
    let analysis = analyse(
        0..u64::MAX,
        &[
            switch(100, 0, IDLE, State::READY, A),
            switch(100, 1, IDLE, State::READY, C),
            wakeup(110, 0, B),
            lost(150, 0), // B may have run and slept here
            switch(900, 0, A, State::SLEEPING, B),
            switch(950, 0, B, State::SLEEPING, IDLE),
            switch(950, 1, C, State::SLEEPING, IDLE),
        ],
    );
    assert_eq!(figures(&analysis, A), (0, 0, 0));
    assert_eq!(figures(&analysis, B), (50, 0, 0));
    assert_eq!(figures(&analysis, C), (850, 0, 0));
    assert_eq!((analysis.gaps.lost, analysis.gaps.switches), (1, 0));
    assert_eq!(analysis.gaps.unattributed_ns, 50);
}

#[test]
fn no_thread_is_on_two_cpus() {
    let analysis = analyse(
        0..u64::MAX,
        &[
            switch(100, 0, IDLE, State::READY, A),
            // A leaves CPU 0 unseen.
            switch(300, 1, IDLE, State::READY, A),
            switch(400, 1, A, State::SLEEPING, IDLE),
            switch(450, 2, A, State::SLEEPING, IDLE), // as it comes to CPU 2
            switch(900, 0, C, State::SLEEPING, IDLE),
        ],
    );
    assert_eq!(figures(&analysis, A), (100, 0, 0));
    assert_eq!(analysis.gaps.unattributed_ns, 200);
}

#[test]
fn a_thread_id_used_again_is_another_thread() {
    let new = |at_ns, name: &str| Event {
        at_ns,
        cpu: 0,
        kind: Kind::New {
            thread: Thread {
                tid: B,
                pid: Pid(11),
                name: name.into(),
            },
            by: A,
        },
    };
    let analysis = analyse(
        0..u64::MAX,
        &[
            thread(0, A, 11, "parent"),
            new(10, "first"),
            switch(20, 0, A, State::SLEEPING, B),
            switch(50, 0, B, State::DEAD, A),
            new(60, "second"),
            switch(65, 0, A, State::SLEEPING, B),
            switch(70, 0, B, State::SLEEPING, IDLE),
        ],
    );
    let those: Vec<_> = analysis
        .threads
        .iter()
        .filter(|t| t.thread.tid == B)
        .collect();
    let names: Vec<_> = those
        .iter()
        .map(|t| (&*t.thread.name, t.run_ns, t.delays.sum_ns()))
        .collect();
    assert_eq!(names, [("first", 30, 10), ("second", 5, 5)]);
    let processes = analysis.processes(|thread| thread.tid != A);
    assert_eq!(processes.len(), 1);
    let process = &processes[0];
    assert_eq!(
        (process.pid, process.threads, process.run_ns),
        (Pid(11), 2, 35)
    );
    assert_eq!(
        (process.delays.count(), process.delays.max_ns()),
        (2, Some(10))
    );
    assert_eq!(&*analysis.processes(|_| true)[0].name, "parent");
}

#[test]
fn quantiles_are_within_a_percent() {
    let mut events = vec![switch(0, 0, A, State::SLEEPING, IDLE)];
    let mut at = 1;
    for delay in 1..=1000 {
        events.push(wakeup(at, 0, A));
        events.push(switch(at + delay * 1000, 0, IDLE, State::READY, A));
        at += delay * 1000 + 1;
        events.push(switch(at, 0, A, State::SLEEPING, IDLE));
    }
    let analysis = analyse(0..u64::MAX, &events);
    let delays = analysis.delays(|_| true);
    assert_eq!(
        (delays.count(), delays.mean_ns(), delays.max_ns()),
        (1000, Some(500_500), Some(1_000_000))
    );
    for (share, right) in [(0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000)] {
        let ns = delays.quantile_ns(share).unwrap();
        assert!(ns.abs_diff(right) <= right / 100, "{share}: {ns}");
    }
}
