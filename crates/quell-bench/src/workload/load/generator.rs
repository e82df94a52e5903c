//! One tenant's open loop: sends requests at their intended times, receives answers, records latencies.

use super::{Arrivals, Completion, Connect, Target, become_realtime, mix, request_seed};
use crate::workload::Interrupted;
use crate::workload::measurement::{GeneratorReport, latency_histogram};
use crate::workload::player::thread_cpu_ns;
use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a waiting generator looks whether it is interrupted, in ns.
const INTERRUPT_CHECK_NS: u64 = 50_000_000;

/// When requests are sent, and which requests are recorded.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Time 0 of the intended times.
    pub start: Instant,
    /// Requests intended earlier than this, in ns, are not recorded.
    pub warmup_ns: u64,
    /// How long requests are intended after that, in ns.
    pub length_ns: u64,
    /// How long answers are waited for after that, in ns.
    pub timeout_ns: u64,
    /// The seed of the requests.
    pub seed: u64,
    /// The first request's id: ids are never used twice on a connection that outlives a window.
    pub first_id: u64,
}

/// One request; kept small, since every request of a window is in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// When it was due, in ns after time 0.
    pub due_ns: u64,
    /// From when it was due to its answer, in ns.
    pub latency_ns: u64,
}

/// The outcome of the requests that were intended in the window.
pub struct Outcome {
    /// The requests, failed requests included, in the order of their answers.
    pub requests: Vec<Request>,
    /// How many of the requests failed.
    pub errors: u64,
    /// How well the generator kept its times.
    pub generator: GeneratorReport,
    /// Requests without an answer at the end, requests of the warm-up included.
    pub unanswered: u64,
    /// The id after the last id used.
    pub next_id: u64,
    /// Whether the loop was interrupted: all else is then incomplete.
    pub interrupted: bool,
}

/// Runs the open loop in the calling thread, which becomes a real-time thread.
///
/// # Errors
/// Where waiting for the connections fails (`ppoll`).
pub fn generate(
    target: &mut dyn Target,
    arrivals: Arrivals,
    window: Window,
    interrupt: &AtomicBool,
) -> anyhow::Result<Outcome> {
    let not_realtime = become_realtime();
    let cpu_start = thread_cpu_ns();
    let end = window.warmup_ns + window.length_ns;
    let deadline = end + window.timeout_ns;
    let clock = || window.start.elapsed().as_nanos() as u64;

    let mut arrivals = arrivals.take_while(|&intended| intended < end).peekable();
    let mut pending: BTreeMap<u64, u64> = BTreeMap::new();
    let mut done: Vec<Completion> = Vec::new();
    let mut record = Record::new(window);
    let mut late = latency_histogram();
    let mut next_id = window.first_id;
    let mut interrupted = false;

    loop {
        // Time 0 is in the future at first, and no request is due before it.
        let ahead = window.start.saturating_duration_since(Instant::now());
        let ahead = ahead.as_nanos() as u64;
        let mut now = clock();
        while let Some(intended) = arrivals.next_if(|&intended| ahead == 0 && intended <= now) {
            late.saturating_record(now - intended);
            pending.insert(next_id, intended);
            target.send(
                next_id,
                request_seed(window.seed, next_id - window.first_id),
                &mut done,
            );
            next_id += 1;
            now = clock();
        }
        record.completions(&mut done, &mut pending, now);
        if (pending.is_empty() && arrivals.peek().is_none()) || now >= deadline {
            break;
        }
        if interrupt.load(Ordering::Relaxed) {
            interrupted = true;
            break;
        }
        let next = arrivals.peek().copied().unwrap_or(deadline);
        let wait_ns = (next.saturating_sub(now) + ahead).min(INTERRUPT_CHECK_NS);
        for connection in wait(target, wait_ns)? {
            target.ready(connection, &mut done);
            record.completions(&mut done, &mut pending, clock());
        }
    }

    let now = clock();
    let unanswered = pending.len() as u64;
    for (_, intended) in std::mem::take(&mut pending) {
        record.request(intended, now, false);
    }
    Ok(Outcome {
        requests: record.requests,
        errors: record.errors,
        generator: GeneratorReport {
            not_realtime,
            late_p99_ns: late.value_at_quantile(0.99),
            late_max_ns: late.max(),
            cpu_ns: thread_cpu_ns() - cpu_start,
        },
        unanswered,
        next_id,
        interrupted,
    })
}

/// Waits until a connection is ready or `wait_ns` have passed; gives the numbers of the connections that are
/// ready.
///
/// # Errors
/// Where `ppoll` fails.
pub(super) fn wait(target: &dyn Target, wait_ns: u64) -> anyhow::Result<Vec<usize>> {
    let connections = target.connections();
    let mut fds: Vec<PollFd<'_>> = connections
        .iter()
        .map(|&(_, fd, write)| {
            let events = if write {
                PollFlags::POLLIN | PollFlags::POLLOUT
            } else {
                PollFlags::POLLIN
            };
            PollFd::new(fd, events)
        })
        .collect();
    match ppoll(
        &mut fds,
        Some(TimeSpec::from_duration(Duration::from_nanos(wait_ns))),
        None,
    ) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(errno).context("ppoll failed"),
    }
    let ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    let numbers = connections.iter().zip(&fds);
    Ok(numbers
        .filter(|(_, fd)| ready(fd))
        .map(|(&(number, _, _), _)| number)
        .collect())
}

/// What is recorded in a window.
struct Record {
    window: Window,
    requests: Vec<Request>,
    errors: u64,
}

impl Record {
    fn new(window: Window) -> Record {
        Record {
            window,
            requests: Vec::new(),
            errors: 0,
        }
    }

    /// Records requests that were completed at time `now`. An answer to no pending request is left over from
    /// an earlier window.
    fn completions(
        &mut self,
        done: &mut Vec<Completion>,
        pending: &mut BTreeMap<u64, u64>,
        now: u64,
    ) {
        for completion in done.drain(..) {
            if let Some(intended) = pending.remove(&completion.id) {
                self.request(intended, now, completion.ok);
            }
        }
    }

    fn request(&mut self, intended: u64, now: u64, ok: bool) {
        if intended < self.window.warmup_ns {
            return;
        }
        self.errors += u64::from(!ok);
        self.requests.push(Request {
            due_ns: intended,
            latency_ns: now.saturating_sub(intended),
        });
    }
}

/// Sends a few requests and checks that all are answered rightly.
///
/// # Errors
/// [`Interrupted`]; and where the server cannot be connected to, answers wrongly, loses the connection or
/// does not answer within 10 s.
pub fn probe(connect: &dyn Connect, interrupt: &AtomicBool) -> anyhow::Result<()> {
    const REQUESTS: u64 = 4;
    const TIMEOUT: Duration = Duration::from_secs(10);
    let mut target = connect.connect(1)?;
    let (mut done, mut answered) = (Vec::new(), 0);
    for id in 0..REQUESTS {
        target.send(id, mix(id), &mut done);
    }
    let give_up = Instant::now() + TIMEOUT;
    while answered < REQUESTS {
        for completion in done.drain(..) {
            anyhow::ensure!(completion.ok, "wrong answer or lost connection");
            answered += 1;
        }
        if interrupt.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        anyhow::ensure!(Instant::now() < give_up, "no answer within {TIMEOUT:?}");
        for connection in wait(&*target, INTERRUPT_CHECK_NS)? {
            target.ready(connection, &mut done);
        }
    }
    Ok(())
}
