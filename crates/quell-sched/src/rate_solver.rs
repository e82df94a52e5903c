//! The rate solver: finds what each task is due of the whole host, for the scheduler's shares
//! (`bpf/share.bpf.h`).
//!
//! The scheduler keeps what each task used and wanted in share slots, in memory that it shares with its
//! loader. Every [`PERIOD`] the solver finds what is due to the tasks ([`quell_policy::share::Dues`]) and
//! writes their rates and the times up to which they have been served there.

use crate::layout::{self, GROUP_DEPTH, SHARE_SLOT_ENDED as ENDED, ShareSlot, ShareSlotHints};
use quell_model::{CpuId, CpuSet};
use quell_policy::share::{Dues, Group, Seen};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// The period of the solver. A task of a shorter period wants a part of a CPU, a task of a longer one a CPU
/// now and then. Between two steps a task gets ahead by half of this on average.
pub const PERIOD: Duration = Duration::from_millis(50);

/// The slot of a task that has slept for this long is freed, in ns.
const SLOT_TTL_NS: u64 = 1_000_000_000;
/// A task's affinity is read again after this time, in ns: the scheduler only reports the number of CPUs in
/// it.
const AFFINITY_TTL_NS: u64 = 1_000_000_000;
/// The `tid` of a slot that is being freed: no task has that id.
const FREED: u32 = u32::MAX;
/// The unit of rates (share.h), as the solver computes with it.
const RATE_ONE: f64 = layout::SHARE_RATE_ONE as f64;
const RATE_MIN: f64 = layout::SHARE_RATE_MIN as f64;
/// The unit of weights (fair.h), and the range of cgroup v2's weights.
const WEIGHT_ONE: u32 = 1 << layout::WEIGHT_SHIFT;
const WEIGHTS: (u32, u32) = (1, 10_000);
/// Bounds of lag, in ns.
const BEHIND_MAX_NS: f64 = layout::SHARE_BEHIND_MAX as f64;
const AHEAD_MAX_NS: f64 = layout::SHARE_AHEAD_MAX as f64;

/// The host, as far as the solver has to know it.
pub(crate) trait Host {
    /// CLOCK_MONOTONIC in ns, the scheduler's clock.
    fn now(&self) -> u64;
    /// The number of possible CPUs.
    fn possible(&self) -> usize;
    /// The CPUs that are online; `None`: unknown at the moment.
    fn online(&mut self) -> Option<CpuSet>;
    /// A group; `None`: the group does not exist any more.
    fn group(&mut self, id: u64) -> Option<layout::Group>;
    /// The CPUs that a task may use; `None`: the task has exited.
    fn allowed(&mut self, tid: u32) -> Option<CpuSet>;
}

/// The CPUs that a task may use, as of a time.
struct Affinity {
    tid: u32,
    allowed: u32,
    at: u64,
    cpus: CpuSet,
}

/// The solver, with what it keeps between steps.
#[derive(Default)]
pub(crate) struct RateSolver {
    dues: Dues,
    affinities: HashMap<u32, Affinity>,
    online: CpuSet,
    online_at: Option<u64>,
}

impl RateSolver {
    /// One step: reads what the tasks used and wanted, and writes their rates and service times.
    pub(crate) fn step(
        &mut self,
        hints: &ShareSlotHints,
        slots: &[ShareSlot],
        host: &mut impl Host,
    ) {
        let now = host.now();
        let online = self.online(now, host);
        let slots = &slots[..(hints.used_end.load(Relaxed) as usize).min(slots.len())];
        let (mut end, mut next) = (0, None);
        let mut groups = Groups::default();
        let (mut seen, mut served) = (Vec::new(), Vec::new());
        for (number, slot) in slots.iter().enumerate() {
            let key = number as u32;
            let tid = slot.tid.load(Relaxed);
            if tid == 0 {
                next = next.or(Some(key));
                continue;
            }
            let wants = slot.wants.load(Relaxed);
            let (wants, ended) = (wants != 0 && wants != ENDED, wants == ENDED);
            let since = slot.since_ns.load(Relaxed);
            if since == 0 {
                end = key + 1;
                continue; // the slot is being allocated
            }
            let passed = now.saturating_sub(since);
            if !wants && !ended && passed > SLOT_TTL_NS {
                self.affinities.remove(&key);
                if free(slot, tid) {
                    next = next.or(Some(key));
                    continue;
                }
            }
            end = key + 1;
            let wanted = slot.wanted_ns.load(Relaxed);
            seen.push(Seen {
                key,
                group: groups.index(slot.group_id.load(Relaxed), GROUP_DEPTH, host),
                weight: slot.weight.load(Relaxed).clamp(WEIGHTS.0, WEIGHTS.1),
                cpus: self.cpus(key, tid, slot, &online, now, host),
                used_ns: slot.used_ns.load(Relaxed),
                wanted_ns: wanted.wrapping_add(if wants { passed } else { 0 }),
                wants,
                ended,
                born: slot.is_new.load(Relaxed) != 0,
            });
            // Before what the task uses from here on, which counts in the next step.
            let as_of = if wants { now } else { since };
            served.push((as_of, slot.served_until_ns.load(Relaxed)));
        }
        // A task that takes a slot meanwhile corrects these with its next slice.
        hints.next_free.store(next.unwrap_or(end), Relaxed);
        let before = slots.len() as u32;
        let _ = (hints.used_end).compare_exchange(before, end, Relaxed, Relaxed);
        // The solver always gets a problem that has a solution.
        let Ok(dues) = self.dues.step(now, &online, &groups.list, &seen) else {
            return;
        };
        for ((seen, due), (as_of, served)) in seen.iter().zip(dues).zip(served) {
            let Some(slot) = slots.get(seen.key as usize) else {
                continue;
            };
            if seen.ended {
                self.affinities.remove(&seen.key);
                clear(slot);
                continue;
            }
            let Some(due) = due else {
                continue;
            };
            let rate = (due.rate * RATE_ONE).clamp(RATE_MIN, RATE_ONE);
            let behind_ns = due.lag_s * 1e9 * RATE_ONE / rate;
            let behind_ns = behind_ns.clamp(-AHEAD_MAX_NS, BEHIND_MAX_NS) as i64;
            // Atomic: the scheduler adds to it at the same time.
            let by = as_of.wrapping_sub(behind_ns as u64).wrapping_sub(served);
            slot.served_until_ns.fetch_add(by, SeqCst);
            slot.rate.store(rate as u32, Relaxed);
        }
    }

    fn online(&mut self, now: u64, host: &mut impl Host) -> CpuSet {
        if (self.online_at).is_none_or(|at| now.saturating_sub(at) >= AFFINITY_TTL_NS) {
            self.online = host.online().unwrap_or(std::mem::take(&mut self.online));
            self.online_at = Some(now);
        }
        self.online.clone()
    }

    fn cpus(
        &mut self,
        key: u32,
        tid: u32,
        slot: &ShareSlot,
        online: &CpuSet,
        now: u64,
        host: &mut impl Host,
    ) -> CpuSet {
        let allowed = u32::from(slot.nr_cpus_allowed.load(Relaxed));
        let cpus = match slot.pinned_cpu_plus1.load(Relaxed) {
            0 if allowed as usize >= host.possible() => return online.clone(),
            0 => {
                let known = self.affinities.get(&key).filter(|it| {
                    it.tid == tid
                        && it.allowed == allowed
                        && now.saturating_sub(it.at) < AFFINITY_TTL_NS
                });
                match known {
                    Some(known) => known.cpus.clone(),
                    None => {
                        let cpus = host.allowed(tid).unwrap_or_default();
                        let at = now;
                        let affinity = Affinity {
                            tid,
                            allowed,
                            at,
                            cpus: cpus.clone(),
                        };
                        self.affinities.insert(key, affinity);
                        cpus
                    }
                }
            }
            cpu => std::iter::once(CpuId(u32::from(cpu) - 1)).collect(),
        };
        let cpus = cpus.intersection(online);
        // The kernel has moved a task without an allowed online CPU somewhere.
        if cpus.is_empty() {
            online.clone()
        } else {
            cpus
        }
    }
}

/// Frees the slot of a task that has slept for long, unless the task wakes at this moment. True if the slot
/// is free.
fn free(slot: &ShareSlot, tid: u32) -> bool {
    let exchange = |from, to| (slot.tid).compare_exchange(from, to, SeqCst, SeqCst);
    if exchange(tid, FREED).is_err() {
        return true;
    }
    // A waking task sets `wants` first, and reads `tid` afterwards.
    if slot.wants.load(SeqCst) != 0 {
        let _ = exchange(FREED, tid);
        return false;
    }
    clear(slot);
    true
}

/// Clears a slot, and makes it free.
fn clear(slot: &ShareSlot) {
    for field in [
        &slot.used_ns,
        &slot.wanted_ns,
        &slot.served_until_ns,
        &slot.since_ns,
    ] {
        field.store(0, Relaxed);
    }
    for field in [&slot.rate, &slot.wants, &slot.is_new] {
        field.store(0, Relaxed);
    }
    slot.tid.store(0, SeqCst);
}

/// The groups that tasks are in, and their ancestors.
#[derive(Default)]
struct Groups {
    list: Vec<Group>,
    indexes: BTreeMap<u64, Option<usize>>,
}

impl Groups {
    fn index(&mut self, id: u64, depth_max: u32, host: &mut impl Host) -> Option<usize> {
        if id == 0 || depth_max == 0 {
            return None;
        }
        if let Some(index) = self.indexes.get(&id) {
            return *index;
        }
        // Before the parent: a cycle of groups would recurse without end.
        self.indexes.insert(id, None);
        let found = host.group(id)?;
        let (quota_ns, period_ns) = (found.bw.quota_ns, found.bw.period_ns);
        let group = Group {
            parent: self.index(found.parent_id, depth_max - 1, host),
            weight: (found.weight / WEIGHT_ONE).clamp(WEIGHTS.0, WEIGHTS.1),
            limit: (quota_ns > 0 && period_ns > 0).then(|| quota_ns as f64 / period_ns as f64),
        };
        self.list.push(group);
        let index = Some(self.list.len() - 1);
        self.indexes.insert(id, index);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Two CPUs, and groups by id.
    struct Machine {
        now: u64,
        groups: BTreeMap<u64, layout::Group>,
        asked: u32,
    }

    impl Host for Machine {
        fn now(&self) -> u64 {
            self.now
        }

        fn possible(&self) -> usize {
            2
        }

        fn online(&mut self) -> Option<CpuSet> {
            Some(CpuSet::first(2))
        }

        fn group(&mut self, id: u64) -> Option<layout::Group> {
            self.groups.get(&id).copied()
        }

        fn allowed(&mut self, _: u32) -> Option<CpuSet> {
            self.asked += 1;
            Some(CpuSet::first(1))
        }
    }

    fn runnable(tid: u32, group: u64, allowed: u16, now: u64) -> ShareSlot {
        let slot = ShareSlot::default();
        slot.tid.store(tid, Relaxed);
        slot.weight.store(100, Relaxed);
        slot.group_id.store(group, Relaxed);
        slot.nr_cpus_allowed.store(allowed, Relaxed);
        slot.since_ns.store(now, Relaxed);
        slot.served_until_ns.store(now, Relaxed);
        slot.wants.store(1, Relaxed);
        slot
    }

    fn group(parent_id: u64, weight: u32) -> layout::Group {
        layout::Group {
            parent_id,
            weight,
            ..layout::Group::default()
        }
    }

    fn machine() -> Machine {
        let group = |weight: u32| group(0, weight * WEIGHT_ONE);
        Machine {
            now: 1000 * MS,
            groups: BTreeMap::from([(7, group(100)), (8, group(300))]),
            asked: 0,
        }
    }

    /// 50 ms pass, in which the slots' tasks use these CPU times, in ms.
    fn step(solver: &mut RateSolver, slots: &[ShareSlot], machine: &mut Machine, used: &[u64]) {
        machine.now += 50 * MS;
        for (slot, used) in slots.iter().zip(used) {
            slot.used_ns.fetch_add(used * MS, Relaxed);
        }
        let hints = ShareSlotHints::default();
        hints.used_end.store(slots.len() as u32, Relaxed);
        solver.step(&hints, slots, machine);
    }

    fn percent(slot: &ShareSlot) -> u32 {
        (slot.rate.load(Relaxed) * 100 + 32_768) / 65_536
    }

    #[test]
    fn rates_follow_the_groups_weights() {
        let (mut solver, mut machine) = (RateSolver::default(), machine());
        let now = machine.now;
        // Group 7's two may run anywhere, 8's on one CPU: due 1/4 + 1/4 and 1.
        let slots = [
            runnable(1, 7, 2, now),
            runnable(2, 7, 2, now),
            runnable(3, 8, 1, now),
        ];
        slots[2].pinned_cpu_plus1.store(1, Relaxed);
        step(&mut solver, &slots, &mut machine, &[0, 0, 0]);
        step(&mut solver, &slots, &mut machine, &[50, 0, 50]);
        assert_eq!(slots.each_ref().map(percent), [50, 50, 100]);
        // The task is served up to now, plus what it lacks: it had 25 ms before, at half a CPU.
        let ahead = |it: &ShareSlot| {
            (it.served_until_ns.load(Relaxed) as i64 - machine.now as i64) / MS as i64
        };
        assert_eq!(slots.each_ref().map(ahead)[..2], [50, -50]);
        assert_eq!(machine.asked, 0);
    }

    #[test]
    fn affinities_are_read_again_after_a_time() {
        let (mut solver, mut machine) = (RateSolver::default(), machine());
        let slots = [runnable(1, 0, 1, machine.now)];
        for _ in 0..30 {
            step(&mut solver, &slots, &mut machine, &[50]);
        }
        assert_eq!(machine.asked, 2);
        assert_eq!(percent(&slots[0]), 100);
    }

    #[test]
    fn missing_groups_and_cycles_of_groups_do_no_harm() {
        let (mut solver, mut machine) = (RateSolver::default(), machine());
        machine.groups.insert(9, group(10, 0));
        machine.groups.insert(10, group(9, u32::MAX));
        let now = machine.now;
        let slots = [
            runnable(1, 9, 2, now),
            runnable(2, 99, 2, now),
            runnable(3, 7, 2, now),
        ];
        slots[1].weight.store(0, Relaxed);
        for _ in 0..3 {
            step(&mut solver, &slots, &mut machine, &[10, 10, 10]);
        }
        assert!(slots.iter().all(|it| percent(it) > 0));
    }

    #[test]
    fn the_slot_of_a_long_sleeper_is_freed() {
        let (mut solver, mut machine) = (RateSolver::default(), machine());
        let slots = [runnable(1, 7, 2, machine.now)];
        step(&mut solver, &slots, &mut machine, &[50]);
        slots[0].wants.store(0, Relaxed);
        slots[0].since_ns.store(machine.now, Relaxed);
        for _ in 0..20 {
            step(&mut solver, &slots, &mut machine, &[0]);
            assert_eq!(slots[0].tid.load(Relaxed), 1);
        }
        step(&mut solver, &slots, &mut machine, &[0]);
        assert_eq!(slots[0].tid.load(Relaxed), 0);
        assert_eq!(slots[0].used_ns.load(Relaxed), 0);
    }

    #[test]
    fn the_slot_of_an_exited_task_is_freed_at_once() {
        let (mut solver, mut machine) = (RateSolver::default(), machine());
        let slots = [
            runnable(1, 7, 2, machine.now),
            runnable(2, 7, 2, machine.now),
        ];
        step(&mut solver, &slots, &mut machine, &[30, 50]);
        slots[0].wants.store(ENDED, Relaxed);
        step(&mut solver, &slots, &mut machine, &[20, 50]);
        assert_eq!(slots.each_ref().map(|it| it.tid.load(Relaxed)), [0, 2]);
        assert_eq!(slots[0].wants.load(Relaxed), 0);
        // What the exited task used beyond its share is charged to no task.
        step(&mut solver, &slots, &mut machine, &[0, 50]);
        assert_eq!(percent(&slots[1]), 100);
    }

    #[test]
    fn a_slot_that_is_being_allocated_is_left_alone() {
        let (mut solver, mut machine) = (RateSolver::default(), machine());
        let slots = [ShareSlot::default()];
        slots[0].tid.store(1, Relaxed);
        step(&mut solver, &slots, &mut machine, &[0]);
        assert_eq!(slots[0].tid.load(Relaxed), 1);
        // The slot of a task that wakes meanwhile is not freed either.
        slots[0].wants.store(1, Relaxed);
        assert!(!free(&slots[0], 1));
        assert_eq!(slots[0].tid.load(Relaxed), 1);
    }

    #[test]
    fn units_and_bounds_are_those_of_the_scheduler() {
        use crate::policy::{share_served_clamp, share_service_time};
        assert_eq!(share_service_time(MS, RATE_ONE as u32), MS);
        assert_eq!(
            share_service_time(MS, RATE_MIN as u32),
            share_service_time(MS, 0)
        );
        assert!(share_service_time(MS, 2 * RATE_MIN as u32) < share_service_time(MS, 0));
        let at = 1_000_000 * MS;
        let (behind, ahead) = (BEHIND_MAX_NS as u64, AHEAD_MAX_NS as u64);
        for (served, kept) in [(at - behind, true), (at - behind - 1, false)] {
            assert_eq!(share_served_clamp(served, at) == 0, kept);
        }
        for (served, kept) in [(at + ahead, true), (at + ahead + 1, false)] {
            assert_eq!(share_served_clamp(served, at) == 0, kept);
        }
    }

    #[test]
    fn hints_point_to_free_slots() {
        let (mut solver, mut machine) = (RateSolver::default(), machine());
        let slots: Vec<ShareSlot> = (0..8).map(|_| ShareSlot::default()).collect();
        for taken in [0, 1, 3] {
            slots[taken].tid.store(1, Relaxed);
            slots[taken].wants.store(1, Relaxed);
            slots[taken].since_ns.store(machine.now, Relaxed);
        }
        let hints = ShareSlotHints::default();
        // (used_end before the step) -> used_end, and next_free
        for (end, found, next) in [(8, 4, 2), (4, 4, 2), (2, 2, 2), (100, 4, 2)] {
            hints.used_end.store(end, Relaxed);
            solver.step(&hints, &slots, &mut machine);
            assert_eq!(hints.next_free.load(Relaxed), next, "{end}");
            if end <= 8 {
                assert_eq!(hints.used_end.load(Relaxed), found, "{end}");
            }
        }
    }
}
