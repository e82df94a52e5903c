//! The recorder against real threads whose switches and waits are known. Where BPF cannot load, tests say so
//! and pass. They run one at a time: each depends on which thread has a CPU. Other processes may use the
//! machine too, so times are compared with the kernel's own counters, or with each other.
#![allow(clippy::unwrap_used)] // helpers of tests

use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{gettid, pipe, read, write};
use quell_linux::record::{POLL, Recorder, Totals, hurry};
use quell_model::Tid;
use quell_trace::{Analyser, Analysis, Event, Kind, ThreadStats};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const MS: u64 = 1_000_000;

/// The recording of the time in which `work` ran in a thread of its own.
struct Recording<T> {
    result: T,
    events: Vec<Event>,
    totals: Totals,
}

fn record<T: Send + 'static>(
    buffer_bytes: u32,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<Recording<T>> {
    let _guard = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut recorder = match Recorder::start(buffer_bytes) {
        Ok(recorder) => recorder,
        Err(error) => {
            quell_testkit::skip!(Bpf, "{error}");
            return None;
        }
    };
    let mut events = Vec::new();
    let worker = thread::spawn(work);
    hurry();
    while !worker.is_finished() {
        thread::sleep(POLL);
        let sink = |event: &Event| {
            events.push(event.clone());
            Ok(())
        };
        recorder.poll(sink).unwrap();
    }
    let result = worker.join().unwrap();
    let sink = |event: &Event| {
        events.push(event.clone());
        Ok(())
    };
    let totals = recorder.finish(sink).unwrap();
    // To lose events is how a recorder fails: with a buffer that is large enough it must not.
    assert!(
        buffer_bytes != BUFFER || totals.lost == 0,
        "{} events were lost",
        totals.lost
    );
    Some(Recording {
        result,
        events,
        totals,
    })
}

const BUFFER: u32 = 16 << 20;

fn analyse(recording: &Recording<impl Sized>, window: std::ops::Range<u64>) -> Analysis {
    let mut analyser = Analyser::new(window);
    for event in &recording.events {
        analyser.add(event);
    }
    analyser.finish(Some(recording.totals.end_ns))
}

fn of(analysis: &Analysis, tid: Tid) -> &ThreadStats {
    let mut those = analysis.threads.iter();
    those.rfind(|t| t.thread.tid == tid).unwrap()
}

fn pin(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu).unwrap();
    sched_setaffinity(nix::unistd::Pid::from_raw(0), &cpus).unwrap();
}

fn own_tid() -> Tid {
    Tid(gettid().as_raw() as u32)
}

fn clock(id: ClockId) -> u64 {
    let time = clock_gettime(id).unwrap();
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// The activity of a thread between two moments, by its own account.
#[derive(Debug, Clone, Copy)]
struct Account {
    tid: Tid,
    from_ns: u64,
    to_ns: u64,
    cpu_ns: u64,
    /// The time that the hypervisor took from all CPUs meanwhile, to 10 ms: the kernel leaves it out, the
    /// trace cannot.
    stolen_ns: u64,
}

fn stolen_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let ticks = stat.split_whitespace().nth(8);
    ticks.unwrap().parse::<u64>().unwrap() * 10 * MS
}

fn accounted(work: impl FnOnce()) -> Account {
    let (from_ns, before) = (
        clock(ClockId::CLOCK_BOOTTIME),
        clock(ClockId::CLOCK_THREAD_CPUTIME_ID),
    );
    let stolen = stolen_ns();
    work();
    Account {
        tid: own_tid(),
        from_ns,
        cpu_ns: clock(ClockId::CLOCK_THREAD_CPUTIME_ID) - before,
        to_ns: clock(ClockId::CLOCK_BOOTTIME),
        stolen_ns: stolen_ns() - stolen,
    }
}

/// Whether two times agree but for the CPU time that gaps leave open, and 3 ms or 3 %.
fn close(left: u64, right: u64, analysis: &Analysis) -> bool {
    left.abs_diff(right) <= analysis.gaps.unattributed_ns + 3 * MS + left.max(right) * 3 / 100
}

/// Checks that the trace's time on a CPU is the time that the kernel counted, plus time stolen from it.
fn check_run_time(own: Account, analysis: &Analysis) {
    let run_ns = of(analysis, own.tid).run_ns;
    let most = own.cpu_ns + own.stolen_ns + 10 * MS;
    let gaps = analysis.gaps;
    assert!(
        close(run_ns.clamp(own.cpu_ns, most), run_ns, analysis),
        "{run_ns} {own:?} {gaps:?}"
    );
}

#[test]
fn two_spinners_on_one_cpu_have_it_in_turn() {
    let work = || {
        let end = Instant::now() + Duration::from_secs(1);
        let spinner = move || {
            pin(0);
            accounted(|| while Instant::now() < end {})
        };
        let both = [thread::spawn(spinner), thread::spawn(spinner)];
        both.map(|spinner| spinner.join().unwrap())
    };
    let Some(recording) = record(BUFFER, work) else {
        return;
    };
    let [a, b] = recording.result;
    let window = a.from_ns.max(b.from_ns)..a.to_ns.min(b.to_ns);
    let analysis = analyse(&recording, window.clone());
    let length = window.end - window.start;
    let all = analyse(&recording, a.from_ns..a.to_ns);
    check_run_time(a, &all);
    let (of_a, of_b) = (of(&analysis, a.tid), of(&analysis, b.tid));
    for (stats, other) in [(of_a, of_b), (of_b, of_a)] {
        // A spinner runs or waits, mostly for the other spinner. A switch that is not reported takes a delay
        // with it.
        let waited = stats.delays.sum_ns();
        let missed = stats.preemptions.abs_diff(stats.delays.count());
        let most = missed * stats.delays.max_ns().unwrap();
        let both = stats.run_ns + waited;
        let least = length.saturating_sub(most);
        assert!(
            close(both.clamp(least, length), both, &analysis),
            "{stats:?} of {length}"
        );
        assert!(
            waited + most + analysis.gaps.unattributed_ns + 10 * MS > other.run_ns,
            "{stats:?} {other:?}"
        );
        assert!(stats.run_ns > length / 50, "{stats:?}");
        assert!(stats.preemptions >= 5 && stats.switches >= 5, "{stats:?}");
        assert_eq!((stats.migrations, stats.wakeups), (0, 0), "{stats:?}");
        assert!(stats.delays.max_ns().unwrap() > MS / 2);
    }
}

#[test]
fn a_ping_pong_pair_switches_and_wakes_at_every_turn() {
    const ROUNDS: u64 = 3000;
    let work = || {
        let ((there_read, there_write), (back_read, back_write)) =
            (pipe().unwrap(), pipe().unwrap());
        let ping = thread::spawn(move || {
            pin(0);
            accounted(|| {
                for _ in 0..ROUNDS {
                    write(&there_write, b"x").unwrap();
                    read(&back_read, &mut [0]).unwrap();
                }
            })
        });
        let pong = thread::spawn(move || {
            pin(0);
            accounted(|| {
                for _ in 0..ROUNDS {
                    read(&there_read, &mut [0]).unwrap();
                    write(&back_write, b"x").unwrap();
                }
            })
        });
        [ping.join().unwrap(), pong.join().unwrap()]
    };
    let Some(recording) = record(BUFFER, work) else {
        return;
    };
    let [ping, pong] = recording.result;
    let analysis = analyse(&recording, 0..u64::MAX);
    let unseen = analysis.gaps.switches + analysis.gaps.states;
    for (one, other) in [(ping, pong), (pong, ping)] {
        let stats = of(&analysis, one.tid);
        // In every round each thread runs once; a thread that is preempted by the thread that it wakes need
        // not sleep afterwards.
        let turns = stats.wakeups + stats.preemptions;
        assert!(
            stats.switches + 2 * unseen + 10 >= ROUNDS,
            "{stats:?}, {unseen}"
        );
        assert!(
            stats.switches.abs_diff(turns) <= 2 * unseen + 10,
            "{stats:?}, {unseen}"
        );
        assert!(
            stats.delays.count().abs_diff(turns) <= 2 * unseen + 10,
            "{stats:?}, {unseen}"
        );
        assert!(stats.wakeups > ROUNDS / 10, "{stats:?}");
        assert_eq!(stats.thread.pid.0, std::process::id());
        let by_other = recording.events.iter().filter(|event| {
            matches!(event.kind, Kind::Wakeup { thread, by, .. } if thread == one.tid && by == Some(other.tid))
        });
        assert!(by_other.count() as u64 >= stats.wakeups - 50, "{stats:?}");
        let within = analyse(&recording, one.from_ns..one.to_ns);
        check_run_time(one, &within);
    }
}

#[test]
fn a_sleeper_is_woken_by_its_timer_and_runs_little() {
    let work = || {
        accounted(|| {
            for _ in 0..100 {
                thread::sleep(Duration::from_millis(5));
            }
        })
    };
    let Some(recording) = record(BUFFER, work) else {
        return;
    };
    let sleeper = recording.result;
    let analysis = analyse(&recording, sleeper.from_ns..sleeper.to_ns);
    let stats = of(&analysis, sleeper.tid);
    assert!((95..=105).contains(&stats.wakeups), "{stats:?}");
    let unseen = analysis.gaps.switches + analysis.gaps.states;
    assert!(stats.switches + unseen >= 95, "{stats:?}");
    check_run_time(sleeper, &analysis);
    let mut wakers = BTreeMap::<Option<Tid>, u32>::new();
    for event in &recording.events {
        if let Kind::Wakeup { thread, by, .. } = event.kind {
            if thread == sleeper.tid {
                *wakers.entry(by).or_default() += 1;
            }
        }
    }
    assert!(wakers[&None] > 80, "{wakers:?}");
}

#[test]
fn events_are_in_order_and_new_threads_have_names_and_processes() {
    let work = || {
        let named = thread::Builder::new().name("quell-named".to_string());
        named.spawn(own_tid).unwrap().join().unwrap()
    };
    let Some(recording) = record(BUFFER, work) else {
        return;
    };
    let times: Vec<u64> = recording.events.iter().map(|event| event.at_ns).collect();
    assert!(times.is_sorted());
    let analysis = analyse(&recording, 0..u64::MAX);
    let thread = &of(&analysis, recording.result).thread;
    assert_eq!(
        (&*thread.name, thread.pid.0),
        ("quell-named", std::process::id())
    );
    // Threads that did nothing are in the trace too.
    let own = nix::unistd::getppid().as_raw() as u32;
    assert!(analysis.threads.iter().any(|t| t.thread.tid.0 == own));
}

#[test]
fn events_without_room_are_counted_and_the_rest_stands() {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let noise = thread::spawn(move || {
        while !flag.load(Ordering::Relaxed) {
            // Each iteration is a switch and a wakeup; 4 KiB hold some seventy events.
            thread::sleep(Duration::from_micros(1));
        }
    });
    let recording = record(4096, || thread::sleep(Duration::from_millis(400)));
    stop.store(true, Ordering::Relaxed);
    noise.join().unwrap();
    let Some(recording) = recording else { return };
    let Totals { lost, events, .. } = recording.totals;
    assert!(lost > 100 && events > 100, "{lost} lost, {events} not");
    let places = recording
        .events
        .iter()
        .filter(|event| event.kind == Kind::Lost);
    assert!(places.count() >= 5);
    let analysis = analyse(&recording, 0..u64::MAX);
    assert!(analysis.gaps.lost >= 5, "{:?}", analysis.gaps);
    for stats in &analysis.threads {
        assert!(
            stats.run_ns <= analysis.window.end - analysis.window.start,
            "{stats:?}"
        );
    }
}

#[test]
fn events_stay_in_their_buffers_until_one_is_half_full() {
    let _guard = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    // 56 bytes an event: half of 256 KiB are 2340.
    let mut recorder = match Recorder::start(256 << 10) {
        Ok(recorder) => recorder,
        Err(error) => return quell_testkit::skip!(Bpf, "{error}"),
    };
    let mut given = 0u64;
    let end = Instant::now() + Duration::from_secs(20);
    let mut looks = 0;
    while Instant::now() < end {
        for _ in 0..200 {
            // Each iteration is a switch and a wakeup.
            thread::sleep(Duration::from_micros(1));
        }
        recorder
            .poll_half_full(|_| {
                given += 1;
                Ok(())
            })
            .unwrap();
        looks += 1;
        // Events taken out once are complete, and so emitted, when more are taken out.
        if given > 2000 {
            break;
        }
    }
    assert!(looks > 3 && given > 2000, "{given} events at {looks} looks");
    let totals = recorder.finish(|_| Ok(())).unwrap();
    assert!(totals.events > given, "the rest comes at the end");
}
