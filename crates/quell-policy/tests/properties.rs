//! Properties that must hold for all observations.
#![allow(clippy::unwrap_used)] // a test that cannot go on must fail

mod common;

use common::{MS, id, planned, snapshot, take_effect, tenant, thread, waits};
use proptest::prelude::*;
use quell_model::config::{AsymmetrySettings, TenantClass, TenantSpec};
use quell_model::{
    CpuId, CpuSet, Nice, Plan, Rule, SchedClass, Snapshot, TenantName, TenantWeight, ThreadSample,
    ThreadState, Waker, Weight,
};
use quell_policy::{Policy, dasec::Dasec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const CPUS: u32 = 4;

/// A thread of a history: mostly plausible, sometimes odd.
fn any_thread(tids: std::ops::Range<u32>) -> impl Strategy<Value = ThreadSample> {
    let state = prop_oneof![
        3 => Just(ThreadState::Blocked),
        2 => Just(ThreadState::Ready),
        2 => Just(ThreadState::Running),
    ];
    let class = prop_oneof![9 => Just(SchedClass::Fair), 1 => Just(SchedClass::RealTime)];
    let run = prop_oneof![Just(0), 0..80 * MS, Just(80 * MS), any::<u64>()];
    let counts = (
        prop::option::of(0..40u64),
        prop::option::of((0..40u32, 0..40 * MS)),
    );
    let wakers = prop::option::of(prop::collection::vec((tids.clone(), 0..9u64), 0..4));
    let place = (0..CPUS + 1, 0..16u64, prop::option::of(tids.clone()));
    (
        tids,
        1..3u64,
        state,
        class,
        run,
        counts,
        wakers,
        place,
        -20..20,
    )
        .prop_map(
            |(tid, start, state, class, run, (preempted, ready), wakers, (cpu, mask, by), nice)| {
                let mut sample = thread(tid, CPUS);
                sample.id.start_ticks = start;
                sample.state = state;
                sample.run_ns = run;
                sample.preemptions = preempted;
                sample.ready = ready.map(|(count, length)| waits(count, length));
                sample.wakers = wakers.map(|wakers| {
                    wakers
                        .into_iter()
                        .map(|(tid, count)| Waker { id: id(tid), count })
                        .collect()
                });
                sample.cpu = CpuId(cpu);
                sample.forked_by = by.map(id);
                sample.settings.class = class;
                sample.settings.nice = Nice::new(nice).unwrap();
                // One in four threads is restricted by its owner.
                if mask < 4 {
                    sample.settings.affinity = Arc::new(CpuSet::from_words(&[mask]));
                }
                sample
            },
        )
}

fn any_spec(name: &'static str) -> impl Strategy<Value = (TenantSpec, bool)> {
    let class = prop_oneof![Just(TenantClass::Latency), Just(TenantClass::Batch)];
    (class, prop_oneof![Just(100), 1..10_001u32], any::<bool>()).prop_map(
        move |(class, weight, cgroup)| {
            let mut spec = TenantSpec::named(name);
            (spec.class, spec.weight) = (class, Some(TenantWeight(weight)));
            (spec, cgroup)
        },
    )
}

/// Some tenants with threads that come, go, return and reuse ids from period to period.
fn any_history() -> impl Strategy<Value = Vec<Snapshot>> {
    let specs = (any_spec("a"), any_spec("b"), any_spec("c"));
    specs.prop_flat_map(|(a, b, c)| {
        let threads = |tids: std::ops::Range<u32>| prop::collection::vec(any_thread(tids), 0..10);
        let period = (threads(1..12), threads(12..20), threads(20..24), 0..40u32);
        prop::collection::vec(period, 1..12).prop_map(move |periods| {
            let sample = |spec: &(TenantSpec, bool), mut threads: Vec<ThreadSample>| {
                threads.sort_by_key(|thread| thread.id);
                threads.dedup_by_key(|thread| thread.id);
                tenant(spec.0.clone(), spec.1, threads)
            };
            (periods.into_iter().enumerate())
                .map(|(seq, (x, y, z, odd))| {
                    // Now and then: no CPU, no time, or a period of any length.
                    let cpus = if odd == 0 { 0 } else { CPUS };
                    let period_ns = [0, u64::MAX].get(odd as usize % 20).copied();
                    let period_ns = if odd < 2 { period_ns.unwrap() } else { 80 * MS };
                    let mut tenants = vec![sample(&a, x), sample(&b, y), sample(&c, z)];
                    tenants.truncate(if odd == 3 { 1 } else { 3 });
                    snapshot(seq as u64, cpus, period_ns, tenants)
                })
                .collect()
        })
    })
}

fn any_settings() -> impl Strategy<Value = AsymmetrySettings> {
    (
        any::<[bool; 3]>(),
        1..101u32,
        1..101u32,
        1..5_000u64,
        0..3u64,
        1..6u32,
    )
        .prop_map(
            |(on, step, floor, min, initial, placement)| AsymmetrySettings {
                slices: on[0],
                latencies: on[1],
                conflicts: on[2],
                weight_step_percent: f64::from(step),
                weight_floor_percent: f64::from(floor),
                latency_min_us: min,
                latency_initial_us: (min * (1 + initial)).min(100_000),
                placement_periods: placement,
                conflict_min: 1,
                ..AsymmetrySettings::default()
            },
        )
}

/// Decides on a history; where the history has no other affinity, threads are where the plan put them.
fn play(policy: &mut Dasec, history: &[Snapshot]) -> Vec<(Snapshot, Plan)> {
    let mut plan = Plan::default();
    let mut played = Vec::new();
    for snapshot in history {
        let mut snapshot = snapshot.clone();
        take_effect(&plan, &mut snapshot);
        plan = policy.decide(&snapshot);
        played.push((snapshot, plan.clone()));
    }
    played
}

/// Settings with all three parts on.
fn all_on() -> AsymmetrySettings {
    AsymmetrySettings {
        slices: true,
        latencies: true,
        conflicts: true,
        ..Default::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// The plan mentions exactly the fair threads, once, in order, and only switched-on settings. Where no
    /// part is on it mentions those of tenants whose threads' weights carry, or carried, the tenant's.
    #[test]
    fn a_plan_is_complete(history in any_history(), settings in any_settings()) {
        let any_part = settings.slices || settings.latencies || settings.conflicts;
        let mut concerned: BTreeSet<TenantName> = BTreeSet::new();
        for (snapshot, plan) in play(&mut Dasec::new(settings.clone()), &history) {
            prop_assert_eq!(plan.seq, snapshot.seq);
            prop_assert_eq!(plan.tenants.len(), snapshot.tenants.len());
            concerned.retain(|name| snapshot.tenant(name).is_some());
            for (tenant, sample) in plan.tenants.iter().zip(&snapshot.tenants) {
                let fair = sample.threads.iter().filter(|t| t.settings.class == SchedClass::Fair);
                let fair: Vec<_> = fair.map(|thread| thread.id).collect();
                // Where no cgroup carries a tenant's weight, its threads' weights do.
                let scaled = sample.cgroup.is_none() && sample.spec.weight() != TenantWeight::DEFAULT;
                if any_part || scaled {
                    concerned.insert(tenant.name.clone());
                }
                let ids: Vec<_> = tenant.threads.iter().map(|thread| thread.id).collect();
                let expected = if concerned.contains(&tenant.name) { fair } else { Vec::new() };
                prop_assert_eq!(ids, expected);
                for thread in &tenant.threads {
                    prop_assert_eq!(thread.weight.is_some(), settings.slices || scaled);
                    prop_assert_eq!(thread.latency_ns.is_some(), settings.latencies);
                    prop_assert!(settings.conflicts || thread.cpus.is_none());
                    prop_assert!(thread.cpus.as_ref().is_none_or(|cpus| !cpus.is_empty()));
                }
            }
        }
    }

    /// While no thread comes or goes a tenant's total is the same to the unit, and no thread's
    /// weight falls below its floor: none starves.
    #[test]
    fn totals_are_invariant_and_no_thread_starves(
        history in any_history(),
        floor in 1..101u32,
    ) {
        let settings = AsymmetrySettings { weight_floor_percent: f64::from(floor), ..all_on() };
        // Each thread's initial weight follows from the first plan it is in, or, where the allocator
        // already acted in it, from the text of its adoption.
        let mut initial = BTreeMap::new();
        for (_, plan) in play(&mut Dasec::new(settings), &history) {
            let mut present = BTreeSet::new();
            for tenant in &plan.tenants {
                let mut totals = (0, 0);
                for thread in &tenant.threads {
                    present.insert(thread.id);
                    let weight = thread.weight.unwrap();
                    let started = thread.reasons.iter().find(|r| r.rule == Rule::Adopted);
                    if let Some(reason) = started {
                        let load = reason.text.split_whitespace().nth(3).unwrap();
                        let units = load.parse::<f64>().unwrap() * 1000.0;
                        initial.insert(thread.id, units.round() as u64);
                    }
                    let initial = initial[&thread.id];
                    totals = (totals.0 + weight.0, totals.1 + initial);
                    prop_assert!((Weight::MIN..=Weight::MAX).contains(&weight));
                    // The text has one digit of the three decimals of the weight.
                    let least = (initial - initial.min(50)) as f64 * f64::from(floor) / 100.0;
                    prop_assert!(weight.0 as f64 >= least, "{weight} of {initial}");
                }
                let digits = 50 * tenant.threads.len() as u64;
                prop_assert!(totals.0.abs_diff(totals.1) <= digits, "{totals:?}");
            }
            initial.retain(|id, _| present.contains(id));
        }
    }

    /// A tenant's total is the same to the unit, where its threads stay.
    #[test]
    fn a_fixed_set_of_threads_keeps_its_total_to_the_unit(
        threads in prop::collection::vec(any_thread(1..12), 1..10),
        changes in prop::collection::vec(prop::collection::vec(any_thread(1..12), 10), 1..20),
        weight in 1..10_001u32,
    ) {
        let mut spec = TenantSpec::named("a");
        spec.weight = Some(TenantWeight(weight));
        let mut threads = threads;
        threads.sort_by_key(|thread| thread.id);
        threads.dedup_by_key(|thread| thread.id);
        threads.iter_mut().for_each(|thread| thread.settings.class = SchedClass::Fair);
        let expected: u64 = (threads.iter())
            .map(|thread| thread.settings.nice.weight().0 * u64::from(weight) / 100)
            .map(|weight| weight.clamp(Weight::MIN.0, Weight::MAX.0))
            .sum();
        let mut policy = Dasec::new(all_on());
        for (seq, change) in changes.into_iter().enumerate() {
            for (thread, change) in threads.iter_mut().zip(change) {
                *thread = ThreadSample { id: thread.id, settings: thread.settings.clone(), ..change };
                thread.forked_by = None;
            }
            let tenants = vec![tenant(spec.clone(), false, threads.clone())];
            let plan = policy.decide(&snapshot(seq as u64, CPUS, 80 * MS, tenants));
            let weights = plan.tenants[0].threads.iter().map(|thread| thread.weight.unwrap().0);
            prop_assert_eq!(weights.sum::<u64>(), expected);
        }
    }

    #[test]
    fn latencies_stay_in_bounds_and_move_by_one_step(
        history in any_history(),
        settings in any_settings(),
    ) {
        let settings = AsymmetrySettings { latencies: true, ..settings };
        let bounds = settings.latency_min_us * 1000..=settings.latency_max_us * 1000;
        let mut before = Plan::default();
        for (_, plan) in play(&mut Dasec::new(settings), &history) {
            for thread in plan.tenants.iter().flat_map(|tenant| &tenant.threads) {
                let now = thread.latency_ns.unwrap();
                prop_assert!(bounds.contains(&now), "{now}");
                let same = thread.reasons.iter().all(|reason| reason.rule != Rule::Adopted);
                let then = planned(&before, thread.id).filter(|_| same);
                if let Some(then) = then.and_then(|thread| thread.latency_ns) {
                    let ratio = now as f64 / then as f64;
                    prop_assert!((0.899..=1.101).contains(&ratio), "{then} -> {now}");
                }
            }
            before = plan;
        }
    }

    /// Every change has a reason.
    #[test]
    fn every_change_has_a_reason(history in any_history(), settings in any_settings()) {
        let mut before = Plan::default();
        for (_, plan) in play(&mut Dasec::new(settings), &history) {
            for thread in plan.tenants.iter().flat_map(|tenant| &tenant.threads) {
                let old = planned(&before, thread.id);
                let changed = old.is_none_or(|old| {
                    (old.weight, old.latency_ns, &old.cpus)
                        != (thread.weight, thread.latency_ns, &thread.cpus)
                });
                prop_assert!(!changed || !thread.reasons.is_empty(), "{thread:?} was {old:?}");
            }
            before = plan;
        }
    }

    #[test]
    fn equal_histories_give_equal_plans(history in any_history(), settings in any_settings()) {
        let first = play(&mut Dasec::new(settings.clone()), &history);
        let second = play(&mut Dasec::new(settings), &history);
        prop_assert_eq!(first, second);
    }

    /// Where placements take effect, a repeated input reaches a repeated plan.
    #[test]
    fn a_steady_input_reaches_a_steady_plan(
        mut history in any_history(),
        settings in any_settings(),
    ) {
        let mut seen = history.pop().unwrap();
        seen.period_ns = 80 * MS;
        let mut policy = Dasec::new(settings);
        let owners = seen.clone();
        let mut quiet = 0;
        for _ in 0..2_000 {
            let plan = policy.decide(&seen);
            let silent = |plan: &Plan| {
                plan.tenants.iter().flat_map(|t| &t.threads).all(|t| t.reasons.is_empty())
            };
            quiet = if silent(&plan) { quiet + 1 } else { 0 };
            if quiet == 100 {
                return Ok(());
            }
            // A thread stays where it was placed; its affinity is its owner's once it is released.
            let mut next = owners.clone();
            for (next, seen) in next.tenants.iter_mut().zip(&seen.tenants) {
                for (next, seen) in next.threads.iter_mut().zip(&seen.threads) {
                    next.cpu = seen.cpu;
                }
            }
            take_effect(&plan, &mut next);
            seen = next;
        }
        prop_assert!(false, "no 100 quiet periods in 2000");
    }
}

/// A host where threads get what the plan gives them: each uses its demand, at most its slice.
#[test]
fn busy_threads_settle_where_their_use_follows_their_slices() {
    let demand = [60 * MS, 30 * MS, 5 * MS, 0];
    let mut policy = Dasec::new(AsymmetrySettings {
        conflicts: false,
        ..all_on()
    });
    let mut weights = [Weight::NICE_0.0; 4];
    let mut last_change = 0;
    for period in 0..400 {
        let total: u64 = weights.iter().sum();
        let threads = (0..4).map(|i| {
            let slice = (80 * MS as u128 * 2 * u128::from(weights[i]) / u128::from(total)) as u64;
            let mut sample = thread(i as u32 + 1, 2);
            sample.run_ns = demand[i].min(slice + 1);
            let short = demand[i] > slice;
            sample.preemptions = Some(u64::from(short));
            sample.state = if short {
                ThreadState::Ready
            } else {
                ThreadState::Blocked
            };
            sample
        });
        let tenants = vec![tenant(TenantSpec::named("a"), false, threads.collect())];
        let plan = policy.decide(&snapshot(period, 2, 80 * MS, tenants));
        let new: Vec<u64> = plan.tenants[0]
            .threads
            .iter()
            .map(|thread| thread.weight.unwrap().0)
            .collect();
        if new != weights {
            last_change = period;
        }
        weights.copy_from_slice(&new);
    }
    assert!(
        last_change < 50,
        "weights still changed in period {last_change}"
    );
    let share = weights[0] as f64 / weights.iter().sum::<u64>() as f64;
    assert!(
        share * 160.0 >= 60.0,
        "the busiest thread has its 60 ms: {share}"
    );
}

#[test]
fn odd_snapshots_are_survived() {
    let mut policy = Dasec::new(all_on());
    let spec = || TenantSpec::named("a");
    // Unsorted and doubled threads and tenants, CPUs without threads, and an empty snapshot.
    let mut odd = thread(7, 2);
    odd.cpu = CpuId(9999);
    odd.run_ns = u64::MAX;
    odd.preemptions = Some(u64::MAX);
    odd.settings.affinity = Arc::new(CpuSet::new());
    let threads = vec![odd.clone(), thread(3, 2), odd, thread(1, 2)];
    let tenants = vec![
        tenant(TenantSpec::named("b"), false, threads.clone()),
        tenant(spec(), true, threads),
        tenant(spec(), false, vec![thread(1, 2)]),
    ];
    for (cpus, period) in [(2, 80 * MS), (0, 80 * MS), (2, 0), (2, u64::MAX), (1, 1)] {
        let plan = policy.decide(&snapshot(0, cpus, period, tenants.clone()));
        let names: Vec<&str> = plan
            .tenants
            .iter()
            .map(|tenant| tenant.name.as_str())
            .collect();
        assert_eq!(names, ["a", "b"]);
        let tids: Vec<u32> = plan.tenants[0].threads.iter().map(|t| t.id.tid.0).collect();
        assert_eq!(tids, [1, 3, 7]);
        assert!(
            policy
                .decide(&snapshot(1, cpus, period, Vec::new()))
                .tenants
                .is_empty()
        );
    }
}
