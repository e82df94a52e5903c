//! Pauses of the machine below: moments in which every CPU stands still at once.
//!
//! Problem: a virtual machine that has used up what its hypervisor allows it is stopped for tens of ms, and
//! few hypervisors tell it so (steal time stays 0). That hits a percent of all requests and thus is the 99th
//! percentile, whatever the scheduler does.
//!
//! Approach: a real-time thread on each CPU sleeps for [`PERIOD`] over and over and records when it wakes
//! late. Nothing that a scheduling policy does to ordinary threads makes all these threads late at once.
//! Requests *due* within [`MARGIN`] of a pause are left out of latencies, on all sides alike: when a request
//! is due does not depend on how it is served, so this does not select by latency. Both, pauses and requests
//! left out, are reported.
//!
//! Limits: a pause of some CPUs only, or a pause shorter than [`LEAST`], stays in what is measured; so does a
//! request that is due before the margin and still unanswered at the pause.
//!
//! Units: ns since the window's time 0.

use super::load::become_realtime;
use anyhow::Context;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long the watching threads sleep. At 200 wakeups a second a CPU they cost nothing to speak of.
const PERIOD: Duration = Duration::from_millis(5);
/// The shortest pause that counts.
const LEAST: Duration = Duration::from_millis(5);
/// How far around a pause requests are left out: requests that the pause held up have been served by then.
const MARGIN: Duration = Duration::from_millis(100);

/// The pauses of one window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pauses {
    /// The spans in which all CPUs stood still, ascending and apart.
    spans: Vec<Range<u64>>,
    /// Why pauses could not be watched, where they could not: then `spans` is empty.
    pub unwatched: Option<String>,
}

impl Pauses {
    /// No pauses, as they are not watched for this reason.
    pub(super) fn unwatched(reason: &str) -> Pauses {
        Pauses {
            spans: Vec::new(),
            unwatched: Some(reason.to_string()),
        }
    }

    /// Watches from now until `stop` is set.
    pub(super) fn watch(start: Instant, stop: &AtomicBool) -> Pauses {
        match watch_cpus(start, stop) {
            Ok(cpus) => Pauses {
                spans: cpus.into_iter().reduce(common).unwrap_or_default(),
                unwatched: None,
            },
            Err(error) => Pauses::unwatched(&format!("{error:#}")),
        }
    }

    /// How many pauses overlap a span of time, and for how long together, in ns.
    pub fn within(&self, span: Range<u64>) -> (u32, u64) {
        let inside = self.spans.iter().filter_map(|pause| {
            let (from, to) = (pause.start.max(span.start), pause.end.min(span.end));
            (from < to).then(|| to - from)
        });
        inside.fold((0, 0), |(count, ns), pause| (count + 1, ns + pause))
    }

    /// Whether a request due at this time counts.
    pub(super) fn spare(&self, due: u64) -> bool {
        let margin = MARGIN.as_nanos() as u64;
        let next = self.spans.partition_point(|pause| pause.end + margin < due);
        self.spans
            .get(next)
            .is_none_or(|pause| due + margin < pause.start)
    }
}

/// For each CPU, the spans in which its watching thread was late, ascending.
fn watch_cpus(start: Instant, stop: &AtomicBool) -> anyhow::Result<Vec<Vec<Range<u64>>>> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("the CPUs are not known")?;
    let cpus = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu) == Ok(true));
    thread::scope(|scope| {
        let watchers: Vec<_> = cpus
            .map(|cpu| scope.spawn(move || watch_cpu(cpu, start, stop)))
            .collect();
        let late = watchers.into_iter().map(|watcher| match watcher.join() {
            Ok(late) => late,
            Err(_) => Err(anyhow::anyhow!("a watching thread panicked")),
        });
        late.collect()
    })
}

fn watch_cpu(cpu: usize, start: Instant, stop: &AtomicBool) -> anyhow::Result<Vec<Range<u64>>> {
    if let Some(reason) = become_realtime() {
        anyhow::bail!(reason);
    }
    let mut only = CpuSet::new();
    only.set(cpu).context("no such CPU")?;
    sched_setaffinity(Pid::from_raw(0), &only).context("a thread cannot stay on its CPU")?;
    let mut late = Vec::new();
    let mut before = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(PERIOD);
        let now = Instant::now();
        if now - before > PERIOD + LEAST {
            // The pause was somewhere between the two wakeups.
            let since = |time: Instant| time.saturating_duration_since(start).as_nanos() as u64;
            late.push(since(before)..since(now));
        }
        before = now;
    }
    Ok(late)
}

/// Where two ascending lists of spans overlap for at least [`LEAST`].
fn common(one: Vec<Range<u64>>, other: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let (mut one, mut other) = (one.into_iter().peekable(), other.into_iter().peekable());
    while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
        let both = a.start.max(b.start)..a.end.min(b.end);
        if both.start + LEAST.as_nanos() as u64 <= both.end {
            found.push(both);
        }
        match a.end <= b.end {
            true => one.next(),
            false => other.next(),
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn spans(ms: &[(u64, u64)]) -> Vec<Range<u64>> {
        ms.iter().map(|&(from, to)| from * MS..to * MS).collect()
    }

    #[test]
    fn only_what_stops_every_cpu_is_a_pause() {
        let one = spans(&[(10, 60), (100, 120), (300, 320), (400, 420)]);
        let other = spans(&[(5, 50), (130, 150), (316, 340), (390, 406), (410, 430)]);
        // 10..50 is in both; 100..120 in one only; 316..320 is too short; 400..406 and 410..420 are in both.
        let expected = spans(&[(10, 50), (400, 406), (410, 420)]);
        assert_eq!(common(one.clone(), other.clone()), expected);
        assert_eq!(common(other, one), expected);
    }

    #[test]
    fn requests_due_near_a_pause_are_left_out() {
        let pauses = Pauses {
            spans: spans(&[(1_000, 1_050), (5_000, 5_010)]),
            unwatched: None,
        };
        let spared: Vec<bool> = [0, 899, 900, 1_030, 1_150, 1_151, 4_899, 4_950, 5_200]
            .map(|ms| pauses.spare(ms * MS))
            .into();
        let expected = [true, true, false, false, false, true, true, false, true];
        assert_eq!(spared, expected);
        assert!(Pauses::default().spare(0));
    }

    #[test]
    fn a_pause_counts_as_far_as_it_is_within_the_window() {
        let pauses = Pauses {
            spans: spans(&[(1_000, 1_050), (5_000, 5_010)]),
            unwatched: None,
        };
        assert_eq!(pauses.within(0..10_000 * MS), (2, 60 * MS));
        assert_eq!(pauses.within(1_040 * MS..5_000 * MS), (1, 10 * MS));
        assert_eq!(pauses.within(2_000 * MS..3_000 * MS), (0, 0));
    }

    proptest! {
        /// A CPU that is late alone makes no pause, and pauses never overlap.
        #[test]
        fn pauses_are_within_both_and_apart(
            one in prop::collection::vec((1u64..50, 6u64..50), 0..20),
            other in prop::collection::vec((1u64..50, 6u64..50), 0..20),
        ) {
            let list = |gaps: Vec<(u64, u64)>| {
                let mut at = 0;
                let spans: Vec<(u64, u64)> = gaps.into_iter().map(|(gap, length)| {
                    let from = at + gap;
                    at = from + length;
                    (from, at)
                }).collect();
                self::spans(&spans)
            };
            let (one, other) = (list(one), list(other));
            let both = common(one.clone(), other.clone());
            let inside = |list: &[Range<u64>], span: &Range<u64>| {
                list.iter().any(|s| s.start <= span.start && span.end <= s.end)
            };
            prop_assert!(both.iter().all(|span| inside(&one, span) && inside(&other, span)));
            prop_assert!(both.windows(2).all(|pair| pair[0].end <= pair[1].start));
        }
    }
}
