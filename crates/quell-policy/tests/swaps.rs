//! The permitted actions of the conflict resolver, checked against sums worked out here from weights and
//! positions, in a closed loop: a thread that is placed is where it was placed, and stays there.
#![allow(clippy::unwrap_used)] // a test that cannot go on must fail

mod common;

use common::{MS, planned, snapshot, tenant, thread};
use proptest::prelude::*;
use quell_model::config::{AsymmetrySettings, TenantClass, TenantSpec};
use quell_model::{CpuId, CpuSet, Nice, Plan, Rule, ThreadSample, ThreadState};
use quell_policy::{Policy, dasec::Dasec};
use std::collections::BTreeSet;
use std::sync::Arc;

const PERIOD_NS: f64 = 80.0 * MS as f64;

/// A thread that is active, never short of slice and never late, so that only layouts change.
#[derive(Debug, Clone)]
struct Active {
    tid: u32,
    /// Whether the thread is in the latency tenant, all of whose threads have low latency here; else it is in
    /// the batch tenant.
    low: bool,
    cpu: u32,
    nice: i32,
    conflicts: u64,
    pinned: bool,
}

fn any_active(cpus: u32) -> impl Strategy<Value = Vec<Active>> {
    // Few distinct CPUs and weights, so that there is something to swap and there are ties.
    let pinned = prop_oneof![7 => Just(false), 1 => Just(true)];
    let one = (any::<bool>(), 0..cpus, -4..5, 0..40u64, pinned);
    prop::collection::vec(one, 1..24).prop_map(|threads| {
        (threads.into_iter().enumerate())
            .map(|(i, (low, cpu, nice, conflicts, pinned))| Active {
                tid: i as u32 + 1,
                low,
                cpu,
                nice,
                conflicts,
                pinned,
            })
            .collect()
    })
}

impl Active {
    fn sample(&self, cpus: u32, plan: &Plan) -> ThreadSample {
        let mut sample = thread(self.tid, cpus);
        sample.cpu = CpuId(self.cpu);
        sample.run_ns = 1;
        sample.preemptions = Some(self.conflicts);
        sample.settings.nice = Nice::new(self.nice).unwrap();
        let owner = if self.pinned {
            CpuSet::from_iter([sample.cpu])
        } else {
            CpuSet::first(cpus)
        };
        let placed = planned(plan, sample.id).and_then(|thread| thread.cpus.clone());
        sample.settings.affinity = Arc::new(placed.unwrap_or(owner));
        sample
    }

    fn weight(&self) -> f64 {
        Nice::new(self.nice).unwrap().weight().0 as f64
    }
}

/// The load that a layout puts on a core.
#[derive(Debug, Clone, Copy)]
struct Load {
    slices_ns: f64,
    conflicts: u64,
    low: usize,
    high: usize,
}

fn load(threads: &[Active], cpu: u32, ns_per_weight: f64) -> Load {
    let mut load = Load {
        slices_ns: 0.0,
        conflicts: 0,
        low: 0,
        high: 0,
    };
    for thread in threads.iter().filter(|thread| thread.cpu == cpu) {
        load.slices_ns += (thread.weight() * ns_per_weight).min(PERIOD_NS);
        if thread.low {
            load.conflicts += thread.conflicts;
            load.low += 1;
        } else {
            load.high += 1;
        }
    }
    load
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn swaps_narrow_what_they_act_on_and_come_to_rest(
        mut threads in any_active(4),
        cpus in 1..5u32,
        idle in 0..40u32,
        placement_periods in 1..6u32,
    ) {
        threads.iter_mut().for_each(|thread| thread.cpu %= cpus);
        let settings = AsymmetrySettings {
            slices: true,
            latencies: true,
            conflicts: true,
            latency_min_us: 3_000,
            latency_initial_us: 3_000,
            placement_periods,
            ..AsymmetrySettings::default()
        };
        let mut batch = TenantSpec::named("batch");
        batch.class = TenantClass::Batch;
        let weights: f64 = threads.iter().map(Active::weight).sum::<f64>()
            + f64::from(idle) * Nice::default().weight().0 as f64;
        let ns_per_weight = PERIOD_NS * f64::from(cpus) / weights;
        let rounding_ns = 2.0 * threads.len() as f64;

        let mut policy = Dasec::new(settings.clone());
        let mut plan = Plan::default();
        let mut last_swap = 0;
        for period in 0..400 {
            let of = |low: bool| {
                let of = threads.iter().filter(|thread| thread.low == low);
                of.map(|thread| thread.sample(cpus, &plan)).collect()
            };
            let asleep = (0..idle).map(|i| thread(100 + i, cpus)).collect();
            let tenants = vec![
                tenant(batch.clone(), false, of(false)),
                tenant(TenantSpec::named("idle"), false, asleep),
                tenant(TenantSpec::named("latency"), false, of(true)),
            ];
            prop_assert!(tenants.iter().flat_map(|t| &t.threads).all(|t| t.state == ThreadState::Blocked));
            plan = policy.decide(&snapshot(period, cpus, 80 * MS, tenants));

            let before = threads.clone();
            let mut acted_on = BTreeSet::new();
            for rule in [Rule::SliceSwap, Rule::LatencySwap] {
                let mut moved = Vec::new();
                for thread in &mut threads {
                    let decided = planned(&plan, common::id(thread.tid)).unwrap();
                    prop_assert!(!thread.pinned || decided.cpus.is_none());
                    if decided.reasons.iter().any(|reason| reason.rule == rule) {
                        let to = decided.cpus.as_ref().unwrap().iter().next().unwrap().0;
                        moved.push((thread.cpu, to, thread.low));
                        thread.cpu = to;
                    }
                }
                if moved.is_empty() {
                    continue;
                }
                last_swap = period;
                let cores: BTreeSet<u32> = moved.iter().flat_map(|m| [m.0, m.1]).collect();
                prop_assert_eq!(cores.len(), 2, "{:?}", moved);
                prop_assert!(cores.iter().all(|core| acted_on.insert(*core)), "twice on a core");

                let mut cores = cores.into_iter();
                let (a, b) = (cores.next().unwrap(), cores.next().unwrap());
                let was = |cpu| load(&before, cpu, ns_per_weight);
                let is = |cpu| load(&threads, cpu, ns_per_weight);
                let more = |a: Load, b: Load| match rule {
                    Rule::SliceSwap => a.slices_ns > b.slices_ns,
                    _ => a.conflicts > b.conflicts,
                };
                let (a, b) = if more(was(a), was(b)) { (a, b) } else { (b, a) };
                let (worst, best, new_worst, new_best) = (was(a), was(b), is(a), is(b));
                let fuller = worst.slices_ns.max(best.slices_ns);
                let now_fuller = new_worst.slices_ns.max(new_best.slices_ns);
                if rule == Rule::SliceSwap {
                    let gap = worst.slices_ns - best.slices_ns;
                    let new_gap = (new_worst.slices_ns - new_best.slices_ns).abs();
                    prop_assert!(worst.slices_ns > PERIOD_NS - rounding_ns, "no conflict: {worst:?}");
                    prop_assert!(worst.slices_ns > best.slices_ns * 1.1 - rounding_ns);
                    prop_assert!(new_gap < gap + rounding_ns, "{gap} -> {new_gap}");
                    prop_assert!(now_fuller <= fuller + rounding_ns);
                } else {
                    let out = moved.iter().filter(|m| m.0 == a).count();
                    let back = moved.iter().filter(|m| m.0 == b).count();
                    prop_assert!(moved.iter().all(|m| m.2 == (m.0 == a)), "{moved:?}");
                    prop_assert!(out <= worst.low / 2 && back <= best.high / 2, "{moved:?}");
                    prop_assert!(worst.conflicts >= settings.conflict_min);
                    prop_assert!(worst.conflicts > 2 * best.conflicts);
                    let gap = worst.conflicts - best.conflicts;
                    prop_assert!(new_worst.conflicts.abs_diff(new_best.conflicts) < gap);
                    prop_assert!(now_fuller <= fuller.max(PERIOD_NS) + rounding_ns);
                }
            }
        }
        prop_assert!(last_swap < 300, "still swapping in period {last_swap}");
    }
}
