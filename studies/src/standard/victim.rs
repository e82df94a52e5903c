//! Periodic victims: threads of ordinary policy that sleep until a time, then run for a while, as
//! cyclictest's do.
//!
//! Problem: only a thread that knows when it wanted to run can tell whether a scheduler keeps a light thread
//! waiting. Approach: each thread sleeps until an absolute time (CLOCK_MONOTONIC), records how late it woke,
//! uses a given amount of CPU time by its own clock, records when it had that, and sleeps until its next
//! period begins. So all sides get equal demands, however late they serve; only a thread that is served after
//! its next period has begun misses that period, which `served` shows. Times are ns inside, µs in figures.

use super::figures::VictimFigures;
use super::{now_ns, part, sleep_until};
use anyhow::Context;
use hdrhistogram::Histogram;
use quell_bench::workload::player::Burner;
use quell_model::{CpuId, CpuSet};
use quell_sys::sched::{CALLER, set_affinity};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// A victim: what it does, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VictimSpec {
    /// Its name in the results.
    pub name: String,
    /// How often it wakes: the period, in µs.
    pub period_us: u64,
    /// CPU time of each run, in µs.
    pub run_us: u64,
    /// Its cgroup and CPUs.
    pub place: Place,
}

/// Where a victim runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In the root cgroup, on any CPU.
    Root,
    /// In a cgroup of its own, on any CPU.
    Own,
    /// In the root cgroup, on one CPU only.
    Pinned,
}

impl VictimSpec {
    /// A victim that is named after its times and its place.
    pub fn new(run_us: u64, period_us: u64, place: Place) -> VictimSpec {
        let time = |us: u64| match us {
            us if us % 1000 == 0 => format!("{} ms", us / 1000),
            us => format!("{us} us"),
        };
        let place_name = match place {
            Place::Root => "",
            Place::Own => ", own cgroup",
            Place::Pinned => ", pinned",
        };
        VictimSpec {
            name: format!("{} / {}{place_name}", time(run_us), time(period_us)),
            period_us,
            run_us,
            place,
        }
    }
}

/// The order for a process of victims.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VictimsOrder {
    /// The victims, which are the process's threads.
    pub victims: Vec<VictimSpec>,
    /// The CPU of pinned victims.
    pub pinned_to: u32,
    /// When each thread wakes first, in ns after the start.
    pub phases_ns: Vec<u64>,
}

/// The window that is measured: wakeups that were due in it, in ns of CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The beginning, included.
    pub from_ns: u64,
    /// The end, excluded.
    pub until_ns: u64,
}

impl Window {
    /// The window that begins after a warm-up that begins now.
    pub fn after(warmup: Duration, length: Duration) -> Window {
        let from_ns = now_ns() + warmup.as_nanos() as u64;
        Window {
            from_ns,
            until_ns: from_ns + length.as_nanos() as u64,
        }
    }

    /// The window's length, in s.
    pub fn seconds(self) -> f64 {
        self.until_ns.saturating_sub(self.from_ns) as f64 / 1e9
    }

    /// Whether a time is in the window.
    pub fn holds(self, ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&ns)
    }
}

/// The process of victims, which reports the figures of each.
///
/// # Errors
/// Where the order or the window cannot be read, a victim cannot be pinned or panics, or a report cannot be
/// written.
pub(super) fn main(order: &str) -> anyhow::Result<()> {
    let order: VictimsOrder = serde_json::from_str(order).context("the victims' order")?;
    // Calibrated before anything runs beside this process.
    let burner = Burner::calibrate();
    let threads: Vec<_> = (order.victims.iter().zip(&order.phases_ns))
        .map(|(victim, phase)| {
            let (begin, window) = channel::<Window>();
            let (victim, phase) = (victim.clone(), *phase);
            let cpu = CpuId(order.pinned_to);
            let run = move || -> anyhow::Result<VictimFigures> {
                if victim.place == Place::Pinned {
                    let one: CpuSet = std::iter::once(cpu).collect();
                    set_affinity(CALLER, &one).context("a victim cannot be pinned")?;
                }
                let window = window.recv().context("no window")?;
                Ok(live(&victim, burner, phase, window))
            };
            (begin, thread::spawn(run))
        })
        .collect();
    let window = part::ready()?;
    let (begins, joins): (Vec<_>, Vec<_>) = threads.into_iter().unzip();
    for begin in &begins {
        begin.send(window).ok().context("a victim has ended")?;
    }
    for join in joins {
        let figures = join.join().ok().context("a victim panicked")??;
        part::tell(&figures)?;
    }
    Ok(())
}

/// Runs a victim until the window is over.
fn live(victim: &VictimSpec, mut burner: Burner, phase: u64, window: Window) -> VictimFigures {
    let mut record = Record::new();
    let mut due = now_ns() + phase;
    while due < window.until_ns {
        sleep_until(due);
        let woke = now_ns();
        burner.burn(victim.run_us * 1000);
        let done = now_ns();
        if window.holds(due) {
            record.add(woke.saturating_sub(due), done.saturating_sub(due));
        }
        due = next_due(due, victim.period_us * 1000, done);
    }
    record.figures()
}

/// When the next period begins, given that the run that was due at `due` ended at `done`.
fn next_due(due: u64, period: u64, done: u64) -> u64 {
    due + (done.saturating_sub(due) / period + 1) * period
}

/// Wakeups that were served.
struct Record {
    late: Histogram<u64>,
    response: Histogram<u64>,
}

impl Record {
    fn new() -> Record {
        Record {
            late: histogram(),
            response: histogram(),
        }
    }

    fn add(&mut self, late_ns: u64, response_ns: u64) {
        self.late.saturating_record(late_ns.max(1));
        self.response.saturating_record(response_ns.max(1));
    }

    fn figures(&self) -> VictimFigures {
        VictimFigures::of(Some(&self.late), Some(&self.response))
    }
}

/// A histogram of times in ns, from 1 µs to 60 s, to three digits.
pub(super) fn histogram() -> Histogram<u64> {
    quell_bench::workload::latency_histogram()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_is_named_after_what_it_does() {
        let names = [
            VictimSpec::new(50, 2000, Place::Root),
            VictimSpec::new(3000, 20_000, Place::Own),
            VictimSpec::new(50, 2000, Place::Pinned),
        ];
        let names = names.map(|it| it.name);
        let expected = [
            "50 us / 2 ms",
            "3 ms / 20 ms, own cgroup",
            "50 us / 2 ms, pinned",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_victim_wakes_with_its_period_and_misses_those_that_began_before_it_was_served() {
        assert_eq!(next_due(100, 20, 103), 120);
        assert_eq!(next_due(100, 20, 119), 120);
        assert_eq!(next_due(100, 20, 120), 140);
        assert_eq!(next_due(100, 20, 175), 180);
    }

    #[test]
    fn a_victim_serves_the_wakeups_of_its_window_only() {
        let victim = VictimSpec::new(200, 5000, Place::Root);
        let window = Window::after(Duration::from_millis(50), Duration::from_millis(200));
        let figures = live(&victim, Burner::calibrate(), 0, window);
        // Undisturbed there are 40.
        assert!((2.0..=40.0).contains(&figures.served), "{figures:?}");
        assert!(figures.response_mean_us.unwrap() >= 150.0, "{figures:?}");
        assert!(figures.late_worst_us >= figures.late_mean_us, "{figures:?}");
    }
}
