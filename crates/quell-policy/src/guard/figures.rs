//! The figures of tenants in a block, from what the observer sees of all of them.
//!
//! The figure is the mean length of a tenant's busy periods: from when a thread of it becomes ready
//! while no other of its threads is ready or runs until all are blocked again. Where requests come one
//! at a time that is their response time without the time of the network, and where they overlap it
//! grows with it, more than in proportion. It needs no help from applications, and includes what run
//! delays do not: that a join waits for the last of its threads (docs/results/guard.md compares it with
//! other figures).
//!
//! Batch tenants are left out: they have no responses. A tenant that never sleeps has no figure.

use quell_model::config::TenantClass;
use quell_model::{Snapshot, TenantName};
use std::collections::BTreeMap;

/// The fewest busy periods in a block with which a tenant counts in the pair.
const FEWEST: u64 = 3;
/// The number of busy periods with which a tenant has half of the greatest weight.
const HALF: f64 = 10.0;
/// The least total weight of a pair with a figure: ten busy periods of one tenant, four of each of two.
const LEAST_WEIGHT: f64 = 0.5;
/// The part of its CPUs' time below which a host is not busy: where no thread waits there is no trial.
const BUSY: f64 = 0.25;

/// The sums of a block.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Figures {
    tenants: BTreeMap<TenantName, Busy>,
    cpu_ns: u64,
    busy_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Busy {
    ns: u64,
    periods: u64,
}

impl Busy {
    fn mean_ns(self) -> f64 {
        self.ns as f64 / self.periods as f64
    }
}

impl Figures {
    /// Adds a period.
    pub(super) fn add(&mut self, snapshot: &Snapshot) {
        for tenant in &snapshot.tenants {
            let Some(seen) = &tenant.occasions else {
                continue;
            };
            if tenant.spec.class == TenantClass::Batch || seen.busy_ns == 0 {
                continue;
            }
            let it = self.tenants.entry(tenant.name.clone()).or_default();
            it.ns += seen.busy_ns;
            it.periods += seen.busy_periods;
        }
        self.add_cpus(snapshot);
    }

    /// Adds the CPUs' times of a period, without the tenants'.
    pub(super) fn add_cpus(&mut self, snapshot: &Snapshot) {
        for cpu in &snapshot.host.cpus {
            if let Some(busy_ns) = cpu.busy_ns {
                self.busy_ns += busy_ns;
                self.cpu_ns += snapshot.period_ns;
            }
        }
    }

    /// Whether the host was busy, as far as is seen.
    pub(super) fn is_busy(&self) -> bool {
        self.cpu_ns > 0 && self.busy_ns as f64 >= BUSY * self.cpu_ns as f64
    }
}

/// A pair's figures: logarithms of ratios of the mean busy periods.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Compared {
    /// The mean of all tenants, weighted by their busy periods; `None`: too few were seen.
    pub host: Option<f64>,
    /// The figure of each tenant with enough busy periods.
    pub tenants: Vec<(TenantName, f64)>,
}

/// Compares the blocks in which the lever acts and rests. Exchanged, they give the same with the other
/// sign: all choices and weights here treat both alike, as the test demands. Tenants whose busy periods
/// are shorter than `least_ns` in both are left out.
pub(super) fn compare(acting: &Figures, resting: &Figures, least_ns: f64) -> Compared {
    if !acting.is_busy() || !resting.is_busy() {
        return Compared::default();
    }
    let mut compared = Compared::default();
    let (mut sum, mut weights) = (0.0, 0.0);
    for (name, with) in &acting.tenants {
        let Some(without) = resting.tenants.get(name) else {
            continue;
        };
        let fewer = with.periods.min(without.periods);
        if fewer < FEWEST || with.mean_ns().max(without.mean_ns()) < least_ns {
            continue;
        }
        let figure = (with.mean_ns() / without.mean_ns()).ln();
        let weight = fewer as f64 / (fewer as f64 + HALF);
        sum += weight * figure;
        weights += weight;
        compared.tenants.push((name.clone(), figure));
    }
    if weights < LEAST_WEIGHT {
        return Compared::default();
    }
    compared.host = Some(sum / weights);
    compared
}
