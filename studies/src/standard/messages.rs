//! A thread that wakes workers, as schbench's message thread does: how long it takes from a wakeup until the
//! worker runs.
//!
//! A worker sleeps until it is given work, runs for a while, reports to the message thread and sleeps again;
//! the message thread wakes every worker that has nothing to do. All of it is futexes, through std's parking
//! of threads.

use super::figures::VictimFigures;
use super::now_ns;
use super::own::OwnDone;
use super::victim::{Window, histogram};
use anyhow::Context;
use hdrhistogram::Histogram;
use quell_bench::workload::player::Burner;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};

/// What a worker and the message thread share.
#[derive(Default)]
struct Desk {
    /// When the worker was woken, in ns; 0: it has nothing to do.
    woken_ns: AtomicU64,
}

/// Wakes workers until the window is over; gives the parts done per second, and how late workers woke.
///
/// # Errors
/// Where a worker panics.
pub(super) fn run(workers: u32, run_us: u64, window: Window) -> anyhow::Result<OwnDone> {
    let burner = Burner::calibrate();
    let desks: Vec<Desk> = (0..workers).map(|_| Desk::default()).collect();
    let over = AtomicBool::new(false);
    let boss = thread::current();
    let (late, done) = thread::scope(|scope| {
        let threads: Vec<_> = desks
            .iter()
            .map(|desk| {
                let (over, boss) = (&over, &boss);
                scope.spawn(move || work(desk, over, boss, burner, run_us, window))
            })
            .collect();
        while now_ns() < window.until_ns {
            let mut woke = false;
            for (desk, worker) in desks.iter().zip(&threads) {
                if desk.woken_ns.load(Ordering::Acquire) == 0 {
                    desk.woken_ns.store(now_ns(), Ordering::Release);
                    worker.thread().unpark();
                    woke = true;
                }
            }
            if !woke {
                thread::park();
            }
        }
        over.store(true, Ordering::Release);
        let mut late = histogram();
        let mut done = 0;
        for worker in threads {
            worker.thread().unpark();
            let (of_one, parts) = worker.join().ok().context("a worker panicked")?;
            // All histograms have equal bounds, so adding does not fail.
            late.add(&of_one)?;
            done += parts;
        }
        anyhow::Ok((late, done))
    })?;
    Ok(OwnDone {
        per_s: Some(done as f64 / window.seconds()),
        figures: Some(VictimFigures::of(Some(&late), None)),
    })
}

/// A worker: how late it woke each time, and how many parts it did in the window.
fn work(
    desk: &Desk,
    over: &AtomicBool,
    boss: &Thread,
    mut burner: Burner,
    run_us: u64,
    window: Window,
) -> (Histogram<u64>, u64) {
    let mut late = histogram();
    let mut done = 0;
    while !over.load(Ordering::Acquire) {
        let woken = desk.woken_ns.load(Ordering::Acquire);
        if woken == 0 {
            thread::park();
            continue;
        }
        if window.holds(woken) {
            late.saturating_record(now_ns().saturating_sub(woken).max(1));
        }
        burner.burn(run_us * 1000);
        done += u64::from(window.holds(now_ns()));
        desk.woken_ns.store(0, Ordering::Release);
        boss.unpark();
    }
    (late, done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn workers_are_woken_again_and_again() {
        let window = Window::after(Duration::from_millis(30), Duration::from_millis(150));
        let done = run(2, 500, window).unwrap();
        let figures = done.figures.unwrap();
        assert!(done.per_s.unwrap() > 50.0, "{done:?}");
        assert!(
            figures.served > 10.0 && figures.late_mean_us.unwrap() > 0.0,
            "{done:?}"
        );
    }
}
