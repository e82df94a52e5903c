//! The rescheduling-latency adjuster: which of a tenant's threads must not wait.
//!
//! At the period's end (DASEC 4.2):
//! - a thread that wants to run (ready or running) with an unconsumed slice was served too late:
//!   its rescheduling latency goes down by 10 %;
//! - a thread that consumed its slice and is idle was served in time: it goes up;
//! - a thread already at the minimum that still cannot consume its slice waits for others of its
//!   tenant: those that wake it go down.
//!
//! Our choices, where the paper is silent:
//! - Up is the same step as down.
//! - Only wakers of the same tenant are chased: the latency of one tenant justifies no change of another.
//! - A waker goes down by one step in a period, however many threads it wakes, and a chased thread does
//!   not go up in the same period.
//! - Threads of [`TenantClass::Batch`] have no latency to improve: theirs stays at the maximum.

use super::state::{Tenant, Thread};
use super::text::{Counted, Millis};
use quell_model::config::{AsymmetrySettings, TenantClass};
use quell_model::{Rule, Snapshot, TenantSample, ThreadId, ThreadSample, ThreadState};

#[derive(Clone, Copy, PartialEq)]
enum Verdict {
    /// The thread wants to run, with an unconsumed slice.
    Late,
    /// The thread consumed its slice and idles.
    Sated,
    Neither,
}

fn judge(thread: &Thread, seen: &ThreadSample) -> Verdict {
    match (seen.state, seen.run_ns < thread.slice_ns) {
        (ThreadState::Ready | ThreadState::Running, true) => Verdict::Late,
        (ThreadState::Blocked, false) => Verdict::Sated,
        _ => Verdict::Neither,
    }
}

/// Adjusts the rescheduling latencies of latency-class tenants. Slices must be those of the period
/// that the snapshot describes.
pub(super) fn adjust(tenants: &mut [Tenant], snapshot: &Snapshot, settings: &AsymmetrySettings) {
    let bounds = Bounds::new(settings);
    for tenant in tenants {
        let sample = &snapshot.tenants[tenant.sample];
        tenant
            .threads
            .iter_mut()
            .for_each(|thread| thread.latency_before_ns = thread.latency_ns);
        if sample.spec.class == TenantClass::Latency {
            let chased = wakers_of_late(tenant, sample, &bounds);
            adjust_tenant(tenant, sample, &bounds, &chased);
        }
    }
}

struct Bounds {
    min_ns: u64,
    max_ns: u64,
    step: f64,
}

impl Bounds {
    fn new(settings: &AsymmetrySettings) -> Bounds {
        Bounds {
            min_ns: settings.latency_min_us.saturating_mul(1000).max(1),
            max_ns: settings.latency_max_us.saturating_mul(1000).max(1),
            step: settings.latency_step_percent / 100.0,
        }
    }

    fn lower(&self, latency_ns: u64) -> u64 {
        let lower = (latency_ns as f64 * (1.0 - self.step)).round() as u64;
        lower.min(self.max_ns).max(self.min_ns)
    }

    fn raise(&self, latency_ns: u64) -> u64 {
        let higher = (latency_ns as f64 * (1.0 + self.step)).round() as u64;
        higher.min(self.max_ns).max(self.min_ns)
    }
}

/// A thread to chase, and a thread that it wakes and that is late at the minimum.
struct Chase {
    waker: usize,
    wakes: ThreadId,
    count: u64,
}

/// The wakers of late threads, ascending, each once.
fn wakers_of_late(tenant: &Tenant, sample: &TenantSample, bounds: &Bounds) -> Vec<Chase> {
    let mut chased: Vec<Chase> = Vec::new();
    for thread in tenant
        .threads
        .iter()
        .filter(|thread| thread.latency_ns <= bounds.min_ns)
    {
        let seen = &sample.threads[thread.sample];
        let Some(wakers) = &seen.wakers else { continue };
        if judge(thread, seen) != Verdict::Late {
            continue;
        }
        for waker in wakers
            .iter()
            .filter(|waker| waker.count > 0 && waker.id != thread.id)
        {
            if let Ok(index) = tenant.threads.binary_search_by_key(&waker.id, |t| t.id) {
                chased.push(Chase {
                    waker: index,
                    wakes: thread.id,
                    count: waker.count,
                });
            }
        }
    }
    // Of several wakeups, the most frequent is the evidence in the reason.
    chased.sort_by(|a, b| {
        (a.waker.cmp(&b.waker))
            .then(b.count.cmp(&a.count))
            .then(a.wakes.cmp(&b.wakes))
    });
    chased.dedup_by_key(|chase| chase.waker);
    chased
}

fn adjust_tenant(tenant: &mut Tenant, sample: &TenantSample, bounds: &Bounds, chased: &[Chase]) {
    let mut chased = chased.iter().peekable();
    for (index, thread) in tenant.threads.iter_mut().enumerate() {
        let chase = chased.next_if(|chase| chase.waker == index);
        let seen = &sample.threads[thread.sample];
        let old = thread.latency_ns;
        let (new, rule) = match (judge(thread, seen), chase) {
            (Verdict::Late, _) => (bounds.lower(old), Rule::LatencyLowered),
            (_, Some(_)) => (bounds.lower(old), Rule::WakerChased),
            (Verdict::Sated, None) => (bounds.raise(old), Rule::LatencyRaised),
            (Verdict::Neither, None) => continue,
        };
        if new == old {
            continue;
        }
        thread.latency_ns = new;
        let used = || {
            format!(
                "{} of its {} slice",
                Millis(seen.run_ns),
                Millis(thread.slice_ns)
            )
        };
        let evidence = match (rule, chase) {
            (Rule::WakerChased, Some(chase)) => format!(
                "{} of thread {}, which is at the minimum and still late",
                Counted(chase.count, "wakeup"),
                chase.wakes
            ),
            (Rule::LatencyLowered, _) => {
                let state = if seen.state == ThreadState::Ready {
                    "ready"
                } else {
                    "running"
                };
                format!("{state} at the period's end after only {}", used())
            }
            _ => format!("idle at the period's end after {}", used()),
        };
        let text = format!(
            "rescheduling latency {} -> {}: {evidence}",
            Millis(old),
            Millis(new)
        );
        thread.because(rule, text);
    }
}
