//! The time-slice allocator: which of a tenant's threads get more of its CPU time.
//!
//! A thread's slice is the CPU time its weight entitles it to in a period: the host's CPU time by
//! its share of the weights of all managed threads, at most one CPU's. Idle threads count: their
//! slices stay with the tenant until the allocator moves the weight to threads that need it.
//!
//! A thread preempted after it used its slice gains 10 % weight (DASEC 4.2). Its tenant's total is
//! fixed to the unit, so the tenant's other threads give that weight in proportion to theirs.
//!
//! Our choices, where the paper is silent:
//! - Where preemptions are not seen, a thread that used its slice and is ready or running at the period's end
//!   counts as preempted.
//! - A thread that gives keeps at least `weight_floor_percent` of its initial weight, and a little
//!   more than it used in the period: the paper lets others give because they have unused time, so
//!   only that is taken. Without this limit two busy threads would pass one step to and fro.
//! - Threads of [`TenantClass::Batch`] keep their weights: they have no critical path to speed up, and
//!   the time that their idle threads leave unused would only be used against other tenants.
//! - If the others can give less than the depleted threads would gain, it is divided in proportion to
//!   the gains; where all threads are depleted nothing changes.

use super::apportion::apportion;
use super::state::{Tenant, Thread};
use super::text::{Counted, Load, Millis};
use quell_model::config::{AsymmetrySettings, TenantClass};
use quell_model::{Rule, Snapshot, TenantSample, TenantWeight, ThreadSample, ThreadState, Weight};

/// The worth of one unit of weight in a period.
pub(super) struct Worth {
    period_ns: u64,
    /// ns per unit of weight, for a tenant of the default weight.
    ns_per_unit: f64,
}

impl Worth {
    /// The worth in a snapshot; `None` where nothing can be shared: no time, no CPU or no thread.
    pub fn new(tenants: &[Tenant], snapshot: &Snapshot) -> Option<Worth> {
        let cpus = snapshot.host.topology.cpus.len();
        let units: f64 = tenants
            .iter()
            .map(|tenant| tenant.total as f64 * factor(&snapshot.tenants[tenant.sample]))
            .sum();
        if snapshot.period_ns == 0 || cpus == 0 || units <= 0.0 {
            return None;
        }
        let ns_per_unit = snapshot.period_ns as f64 * cpus as f64 / units;
        Some(Worth {
            period_ns: snapshot.period_ns,
            ns_per_unit,
        })
    }

    /// Sets the slices of all threads by their weights.
    pub fn set_slices(&self, tenants: &mut [Tenant], snapshot: &Snapshot) {
        for tenant in tenants {
            let factor = factor(&snapshot.tenants[tenant.sample]);
            tenant
                .threads
                .iter_mut()
                .for_each(|thread| self.set_slice(thread, factor));
        }
    }

    fn set_slice(&self, thread: &mut Thread, factor: f64) {
        let slice = thread.weight.0 as f64 * factor * self.ns_per_unit;
        thread.slice_ns = (slice.round() as u64).min(self.period_ns);
    }
}

/// The factor by which the weight of a tenant's cgroup scales its threads' weights.
fn factor(tenant: &TenantSample) -> f64 {
    match tenant.cgroup {
        Some(_) => f64::from(tenant.spec.weight().0) / f64::from(TenantWeight::DEFAULT.0),
        None => 1.0,
    }
}

/// Whether the thread lost its CPU because its slice was used up.
fn is_depleted(thread: &Thread, seen: &ThreadSample) -> bool {
    let preempted = match seen.preemptions {
        Some(count) => count > 0,
        None => matches!(seen.state, ThreadState::Ready | ThreadState::Running),
    };
    preempted && seen.run_ns >= thread.slice_ns
}

/// Moves weight inside each tenant to its depleted threads, and sets the slices accordingly.
pub(super) fn adjust(
    tenants: &mut [Tenant],
    snapshot: &Snapshot,
    worth: &Worth,
    settings: &AsymmetrySettings,
) {
    for tenant in tenants {
        let sample = &snapshot.tenants[tenant.sample];
        if sample.spec.class == TenantClass::Batch {
            continue;
        }
        let depleted: Vec<usize> = (tenant.threads.iter().enumerate())
            .filter(|(_, thread)| is_depleted(thread, &sample.threads[thread.sample]))
            .map(|(i, _)| i)
            .collect();
        if depleted.is_empty() || depleted.len() == tenant.threads.len() {
            continue;
        }
        if adjust_tenant(tenant, sample, &depleted, settings) {
            let factor = factor(sample);
            tenant
                .threads
                .iter_mut()
                .for_each(|thread| worth.set_slice(thread, factor));
        }
    }
}

/// Moves weight inside a tenant; returns whether a weight changed. `depleted` is ascending.
fn adjust_tenant(
    tenant: &mut Tenant,
    sample: &TenantSample,
    depleted: &[usize],
    settings: &AsymmetrySettings,
) -> bool {
    let threads = &mut tenant.threads;
    let wanted: Vec<u64> = (depleted.iter())
        .map(|&i| {
            let step = threads[i].weight.0 as f64 * settings.weight_step_percent / 100.0;
            (step as u64).min(Weight::MAX.0.saturating_sub(threads[i].weight.0))
        })
        .collect();
    let givers: Vec<usize> = (0..threads.len())
        .filter(|i| depleted.binary_search(i).is_err())
        .collect();
    let weights: Vec<u64> = givers.iter().map(|&i| threads[i].weight.0).collect();
    let spare: Vec<u64> = (givers.iter())
        .map(|&i| spare(&threads[i], &sample.threads[threads[i].sample], settings))
        .collect();

    let given = apportion(wanted.iter().sum(), &weights, &spare);
    let moved = given.iter().sum();
    let gained = apportion(moved, &wanted, &wanted);
    for (&i, gain) in depleted.iter().zip(gained).filter(|(_, gain)| *gain > 0) {
        let seen = &sample.threads[threads[i].sample];
        let (old, slice) = (Load(threads[i].weight), Millis(threads[i].slice_ns));
        threads[i].weight.0 += gain;
        let evidence = match seen.preemptions {
            Some(count) => format!(
                "preempted {} after using its {slice} slice",
                Counted(count, "time")
            ),
            None => format!("wants to run after using its {slice} slice"),
        };
        let text = format!("weight {old} -> {}: {evidence}", Load(threads[i].weight));
        threads[i].because(Rule::SliceDepleted, text);
    }
    for (&i, part) in givers.iter().zip(given).filter(|(_, part)| *part > 0) {
        let used = Millis(sample.threads[threads[i].sample].run_ns);
        let (old, slice) = (Load(threads[i].weight), Millis(threads[i].slice_ns));
        threads[i].weight.0 -= part;
        let text = format!(
            "weight {old} -> {}: used {used} of its {slice} slice; {} of the tenant used up \
             theirs",
            Load(threads[i].weight),
            Counted(depleted.len() as u64, "thread")
        );
        threads[i].because(Rule::GaveWeight, text);
    }
    moved > 0
}

/// The weight that a thread can give: the part that it did not use, down to its floor.
fn spare(thread: &Thread, seen: &ThreadSample, settings: &AsymmetrySettings) -> u64 {
    // 2 ns more than it used, so that rounding does not make it depleted by giving.
    let used_ns = u128::from(seen.run_ns) + 2;
    let slice_ns = u128::from(thread.slice_ns.max(1));
    let used = (u128::from(thread.weight.0) * used_ns).div_ceil(slice_ns) + 1;
    let keep = used.max(u128::from(thread.floor(settings)));
    u128::from(thread.weight.0).saturating_sub(keep) as u64
}
