//! DASEC's state of tenants and threads, and how it follows their creation and end.
//!
//! The paper's VMs have a fixed number of vCPUs; threads of ordinary tenants are created and end, and
//! the effect on a total that must not change is our choice:
//!
//! - A thread's *initial weight* is that of the nice value its owner chose. A thread forked by a
//!   managed one shows the value that Quell gave its creator, so it starts from the choice of its
//!   creator's owner instead; the same holds for its affinity.
//! - Where a tenant has a cgroup of its own, its weight among tenants acts there. Where it has
//!   none, its threads' initial weights are scaled by weight / 100, so that a tenant's weight means
//!   the same in both cases. Initial weights stay within [`Weight::MIN`] and [`Weight::MAX`].
//! - A tenant's total is the sum of its threads' initial weights. A new thread brings its initial
//!   weight; one that ends takes its *initial* weight out of the total, and the weight that it gained
//!   or gave meanwhile is divided among the rest in proportion.
//! - Only [`SchedClass::Fair`] threads are managed: the others' owners have decided.

use super::apportion::apportion;
use super::text::{Counted, Load, Millis};
use quell_model::config::{AsymmetrySettings, TenantClass};
use quell_model::{
    CpuId, CpuSet, Reason, Rule, SchedClass, Snapshot, TenantName, TenantSample, TenantWeight,
    ThreadId, ThreadSample, Weight, place_near,
};
use std::sync::Arc;

/// The state of a tenant.
#[derive(Debug)]
pub(super) struct Tenant {
    /// The tenant's name.
    pub name: TenantName,
    /// The tenant's index in the snapshot of this period.
    pub sample: usize,
    /// The scale of its threads' weights: the tenant's weight among tenants, or the default where a
    /// cgroup carries that weight.
    pub scale: TenantWeight,
    /// The sum of its threads' weights, which equals that of their initial weights.
    pub total: u64,
    /// Whether its threads are followed: from when there is something to say of them, until it is gone.
    followed: bool,
    /// The tenant's threads, ascending by id; none while they are not followed.
    pub threads: Vec<Thread>,
}

/// The state of a thread.
#[derive(Debug)]
pub(super) struct Thread {
    /// The thread's id.
    pub id: ThreadId,
    /// The thread's index in its tenant's list in the snapshot of this period.
    pub sample: usize,
    /// The weight of the nice value its owner chose.
    pub owner_weight: Weight,
    /// The thread's part of the tenant's total when it was new.
    pub initial: Weight,
    /// The thread's present weight.
    pub weight: Weight,
    /// The thread's present rescheduling latency.
    pub latency_ns: u64,
    /// The rescheduling latency that the thread had in the period that the snapshot describes.
    pub latency_before_ns: u64,
    /// The CPU time that the thread's weight entitles it to in a period.
    pub slice_ns: u64,
    /// The CPUs that the thread's owner lets it use.
    pub affinity: Arc<CpuSet>,
    /// Whether the thread was forked with an affinity of Quell's instead of `affinity`.
    pub inherited_affinity: bool,
    /// The CPU that the thread was placed on, while the placement lasts.
    pub placement: Option<Placement>,
    /// The CPU of a placement that ended with the last plan: one observation may still show it.
    pub released: Option<CpuId>,
    /// The changes of this period and their reasons.
    pub reasons: Vec<Reason>,
}

/// A placement of a thread on a single CPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placement {
    /// The CPU.
    pub cpu: CpuId,
    /// The number of plans that still have the placement.
    pub periods_left: u32,
}

impl Thread {
    /// Notes a change and its reason.
    pub fn because(&mut self, rule: Rule, text: String) {
        self.reasons.push(Reason { rule, text });
    }

    /// The least weight that the thread can be left with: it still gets a share, so it never starves.
    pub fn floor(&self, settings: &AsymmetrySettings) -> u64 {
        let share = self.initial.0 as f64 * settings.weight_floor_percent / 100.0;
        (share.ceil() as u64).clamp(Weight::MIN.0, self.initial.0.max(Weight::MIN.0))
    }

    /// The CPU that the thread counts for: where it was placed, else where it was seen.
    pub fn core(&self, sample: &ThreadSample) -> CpuId {
        self.placement.map_or(sample.cpu, |placement| placement.cpu)
    }
}

/// Replaces `tenants` by those of `snapshot`, ascending by name, with their threads.
pub(super) fn follow(tenants: &mut Vec<Tenant>, snapshot: &Snapshot, settings: &AsymmetrySettings) {
    let order = ascending(&snapshot.tenants, |_| true, |tenant| &tenant.name);

    // New threads are compared with the threads as they were, their creators among them.
    let mut newcomers: Vec<Option<Vec<Thread>>> = Vec::with_capacity(order.len());
    for (number, &index) in order.iter().enumerate() {
        let sample = &snapshot.tenants[index];
        let known = place_near(tenants, number, |it| it.name.cmp(&sample.name));
        let known = known.ok().map(|at| &tenants[at]);
        let followed = known.is_some_and(|it| it.followed) || concerns(sample, settings);
        let old: &[Thread] = known.map_or(&[], |it| &it.threads);
        newcomers.push(followed.then(|| find_newcomers(tenants, old, sample, settings)));
    }

    let mut before = std::mem::take(tenants).into_iter().peekable();
    for (&index, newcomers) in order.iter().zip(newcomers) {
        let sample = &snapshot.tenants[index];
        while before.next_if(|tenant| tenant.name < sample.name).is_some() {}
        let mut tenant = before
            .next_if(|tenant| tenant.name == sample.name)
            .unwrap_or(Tenant {
                name: sample.name.clone(),
                sample: index,
                scale: scale(sample),
                total: 0,
                followed: false,
                threads: Vec::new(),
            });
        tenant.sample = index;
        if let Some(newcomers) = newcomers {
            tenant.followed = true;
            tenant.follow(sample, newcomers, settings);
        }
        tenants.push(tenant);
    }
}

/// Whether any part of the feedback is on.
pub(super) fn any_part(settings: &AsymmetrySettings) -> bool {
    settings.slices || settings.latencies || settings.conflicts
}

/// Whether there is something to say of a tenant's threads: a part of the feedback is on, or their weights
/// carry the tenant's.
fn concerns(tenant: &TenantSample, settings: &AsymmetrySettings) -> bool {
    any_part(settings) || scale(tenant) != TenantWeight::DEFAULT
}

impl Tenant {
    fn follow(
        &mut self,
        sample: &TenantSample,
        newcomers: Vec<Thread>,
        settings: &AsymmetrySettings,
    ) {
        let unchanged = newcomers.is_empty() && self.same_threads(sample);
        if !unchanged {
            let fair = ascending(&sample.threads, is_managed, |thread| &thread.id);
            let mut left = 0u64;
            self.threads.retain_mut(|thread| {
                match fair.binary_search_by(|&i| sample.threads[i].id.cmp(&thread.id)) {
                    Ok(found) => {
                        thread.sample = fair[found];
                        true
                    }
                    Err(_) => {
                        self.total -= thread.initial.0;
                        left += 1;
                        false
                    }
                }
            });
            if left > 0 {
                self.rescale(left, settings);
            }
        }
        for thread in &mut self.threads {
            thread.see_affinity(&sample.threads[thread.sample]);
        }
        if !newcomers.is_empty() {
            self.total += newcomers.iter().map(|thread| thread.initial.0).sum::<u64>();
            self.threads.extend(newcomers);
            self.threads.sort_by_key(|thread| thread.id);
        }
        if self.scale != scale(sample) {
            self.scale = scale(sample);
            self.start_over();
        }
    }

    /// Handles the usual case, without an allocation: the threads are those of the last period.
    fn same_threads(&mut self, sample: &TenantSample) -> bool {
        let mut known = self.threads.iter_mut();
        for (index, seen) in sample
            .threads
            .iter()
            .enumerate()
            .filter(|(_, t)| is_managed(t))
        {
            match known.next() {
                Some(thread) if thread.id == seen.id => thread.sample = index,
                _ => return false,
            }
        }
        known.next().is_none()
    }

    /// Makes the weights sum to the total again after `left` threads have ended.
    fn rescale(&mut self, left: u64, settings: &AsymmetrySettings) {
        let weights: Vec<u64> = self.threads.iter().map(|thread| thread.weight.0).collect();
        let sum: u64 = weights.iter().sum();
        let gain = self.total > sum;
        let room: Vec<u64> = (self.threads.iter())
            .map(|thread| match gain {
                true => Weight::MAX.0 - thread.weight.0,
                false => thread.weight.0.saturating_sub(thread.floor(settings)),
            })
            .collect();
        let parts = apportion(self.total.abs_diff(sum), &weights, &room);
        for (thread, part) in self.threads.iter_mut().zip(parts) {
            if part == 0 {
                continue;
            }
            let old = thread.weight;
            thread.weight.0 = if gain { old.0 + part } else { old.0 - part };
            if settings.slices {
                let text = format!(
                    "weight {} -> {}: {} left the tenant, the rest make up its total",
                    Load(old),
                    Load(thread.weight),
                    Counted(left, "thread")
                );
                thread.because(Rule::Rescaled, text);
            }
        }
    }

    /// Gives every thread its initial weight under a new scale.
    fn start_over(&mut self) {
        self.total = 0;
        for thread in &mut self.threads {
            let old = thread.weight;
            thread.initial = initial(thread.owner_weight, self.scale);
            thread.weight = thread.initial;
            self.total += thread.initial.0;
            if thread.weight != old {
                let text = format!(
                    "weight {} -> {}: the tenant's own cgroup or weight has changed",
                    Load(old),
                    Load(thread.weight)
                );
                thread.because(Rule::Rescaled, text);
            }
        }
    }
}

impl Thread {
    /// Records the affinity that the owner chose, unless the observed one is a placement of ours.
    fn see_affinity(&mut self, seen: &ThreadSample) {
        let shown = &seen.settings.affinity;
        let ours = self
            .placement
            .map(|placement| placement.cpu)
            .or(self.released.take());
        if Arc::ptr_eq(shown, &self.affinity) || **shown == *self.affinity {
            return;
        }
        if ours.is_some_and(|cpu| shown.len() == 1 && shown.contains(cpu)) {
            return;
        }
        if self.inherited_affinity && shown.len() == 1 {
            return; // the inherited placement is not yet undone
        }
        self.affinity = shown.clone();
        self.inherited_affinity = false;
    }
}

/// The threads of `sample` that are not in `old`, this tenant's threads in the period before.
fn find_newcomers(
    tenants: &[Tenant],
    old: &[Thread],
    sample: &TenantSample,
    settings: &AsymmetrySettings,
) -> Vec<Thread> {
    let is_known = |id: &ThreadId| old.binary_search_by_key(id, |thread| thread.id).is_ok();
    // The usual case first: both lists match.
    let mut in_step = old.iter();
    let unknown = |seen: &ThreadSample| {
        in_step.next().is_none_or(|thread| thread.id != seen.id) && !is_known(&seen.id)
    };
    let mut unknown = unknown;
    if !sample
        .threads
        .iter()
        .filter(|seen| is_managed(seen))
        .any(&mut unknown)
    {
        return Vec::new();
    }
    let fair = ascending(&sample.threads, is_managed, |thread| &thread.id);
    let creator_sample = |id: ThreadId| {
        let found = fair
            .binary_search_by(|&i| sample.threads[i].id.cmp(&id))
            .ok()?;
        Some(&sample.threads[fair[found]])
    };
    let managed = |id: ThreadId| {
        let find = |threads: &'_ [Thread]| threads.binary_search_by_key(&id, |t| t.id).ok();
        find(old).map(|i| &old[i]).or_else(|| {
            tenants
                .iter()
                .find_map(|tenant| find(&tenant.threads).map(|i| &tenant.threads[i]))
        })
    };
    (fair.iter().map(|&index| (index, &sample.threads[index])))
        .filter(|(_, seen)| !is_known(&seen.id))
        .map(|(index, seen)| {
            // The thread if another tenant had it, or its nearest ancestor that was managed before.
            let mut origin = managed(seen.id);
            let mut ancestor = seen;
            for _ in 0..MAX_GENERATIONS {
                let (None, Some(creator)) = (origin, ancestor.forked_by) else {
                    break;
                };
                origin = managed(creator);
                match creator_sample(creator) {
                    Some(seen) => ancestor = seen,
                    None => break,
                }
            }
            adopt(index, seen, origin, sample, settings)
        })
        .collect()
}

/// The number of ancestors that are searched for a new thread within one period.
const MAX_GENERATIONS: usize = 16;

fn adopt(
    index: usize,
    seen: &ThreadSample,
    origin: Option<&Thread>,
    tenant: &TenantSample,
    settings: &AsymmetrySettings,
) -> Thread {
    let owner_weight = origin.map_or(seen.settings.nice.weight(), |origin| origin.owner_weight);
    let weight = initial(owner_weight, scale(tenant));
    // The affinity is ours, not the owner's, if its creator was or may still have been on a CPU of ours.
    let inherits = |origin: &&Thread| {
        let shown = &seen.settings.affinity;
        let ours = origin
            .placement
            .map(|placement| placement.cpu)
            .or(origin.released);
        shown.len() == 1
            && **shown != *origin.affinity
            && (origin.inherited_affinity || ours.is_some_and(|cpu| shown.contains(cpu)))
    };
    let creator_affinity = origin
        .filter(inherits)
        .map(|origin| origin.affinity.clone());
    let latency_ns = match tenant.spec.class {
        TenantClass::Latency => settings.latency_initial_us,
        TenantClass::Batch => settings.latency_max_us,
    }
    .saturating_mul(1000);
    let mut thread = Thread {
        id: seen.id,
        sample: index,
        owner_weight,
        initial: weight,
        weight,
        latency_ns,
        latency_before_ns: latency_ns,
        slice_ns: 0,
        inherited_affinity: creator_affinity.is_some(),
        affinity: creator_affinity.unwrap_or_else(|| seen.settings.affinity.clone()),
        placement: None,
        released: None,
        reasons: Vec::new(),
    };
    let source = match origin {
        Some(origin) => format!("as thread {} started", origin.id),
        None => format!("nice {}", seen.settings.nice),
    };
    let start = Load(weight);
    let text = match (settings.slices, settings.latencies) {
        (true, true) => format!(
            "starts with weight {start} ({source}) and rescheduling latency {}",
            Millis(latency_ns)
        ),
        (true, false) => format!("starts with weight {start} ({source})"),
        (false, true) => format!("starts with rescheduling latency {}", Millis(latency_ns)),
        (false, false) if settings.conflicts => "may be placed".to_string(),
        (false, false) if weight != owner_weight => {
            format!("has weight {start} ({source}), by its tenant's weight")
        }
        (false, false) => "is left as it is: all parts of the feedback are off".to_string(),
    };
    thread.because(Rule::Adopted, text);
    thread
}

fn is_managed(thread: &ThreadSample) -> bool {
    thread.settings.class == SchedClass::Fair
}

fn scale(tenant: &TenantSample) -> TenantWeight {
    if tenant.cgroup.is_some() {
        TenantWeight::DEFAULT
    } else {
        tenant.spec.weight()
    }
}

fn initial(owner_weight: Weight, scale: TenantWeight) -> Weight {
    let scaled = owner_weight.0 * u64::from(scale.0) / u64::from(TenantWeight::DEFAULT.0);
    Weight(scaled.clamp(Weight::MIN.0, Weight::MAX.0))
}

/// The indices of the items for which `keep` gives a key, ascending by key; of equal keys the first.
fn ascending<T, K: Ord>(
    items: &[T],
    keep: impl Fn(&T) -> bool,
    key: impl Fn(&T) -> &K,
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).filter(|&i| keep(&items[i])).collect();
    if !order.is_sorted_by(|&a, &b| key(&items[a]) < key(&items[b])) {
        order.sort_by(|&a, &b| key(&items[a]).cmp(key(&items[b])));
        order.dedup_by(|b, a| key(&items[*a]) == key(&items[*b]));
    }
    order
}
