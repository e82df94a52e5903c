//! Tells threads what they are due: what the scheduler's shares go by (`bpf/share.bpf.h`).
//!
//! The scheduler keeps what each thread used and wanted in memory that it shares with its loader. Every [`EVERY`] this solves for what is
//! due to them ([`quell_policy::share::Dues`]), and writes rates there, and by how much each is served too little.

use crate::layout::{self, Places, Sharer};
use quell_model::{CpuId, CpuSet};
use quell_policy::share::{Dues, Group, Seen};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// How often. Threads of shorter periods want a part of a CPU, those of longer ones a CPU now and then; and what they are ahead by
/// between is on average half of it.
pub const EVERY: Duration = Duration::from_millis(50);

/// Who wanted no CPU for so long is known no more, in ns.
const KEPT_NS: u64 = 1_000_000_000;
/// Where threads may run is asked for again after so long, in ns: the scheduler tells only when it becomes another number of CPUs.
const PLACES_NS: u64 = 1_000_000_000;
/// The thread of a place that is being freed: no thread has that id.
const FREED: u32 = u32::MAX;
/// What a thread wants that has ended: the scheduler's SHARER_ENDED.
const ENDED: u32 = 2;
/// The scheduler's GROUP_DEPTH: it ends where groups nest deeper.
const DEPTH_MOST: u32 = 64;
/// Rates' unit: share.h.
const RATE_ONE: f64 = 65536.0;
const RATE_LEAST: f64 = 16.0;
/// Weights' unit, and cgroup v2's weights.
const WEIGHT_ONE: u32 = 1024;
const WEIGHTS: (u32, u32) = (1, 10_000);
/// Lag counts for this at most, in ns of time: SHARE_BEHIND_MOST and SHARE_AHEAD_MOST.
const BEHIND_MOST_NS: f64 = 1e9;
const AHEAD_MOST_NS: f64 = 4e9;

/// What has to be known of a host.
pub(crate) trait Host {
    /// CLOCK_MONOTONIC in ns, the scheduler's clock.
    fn now(&self) -> u64;
    /// How many CPUs there may be.
    fn possible(&self) -> usize;
    /// CPUs that are online; `None`: it cannot be told now.
    fn online(&mut self) -> Option<CpuSet>;
    /// A group, `None`: it is gone.
    fn group(&mut self, id: u64) -> Option<layout::Group>;
    /// Where a thread may run; `None`: it is gone.
    fn allowed(&mut self, tid: u32) -> Option<CpuSet>;
}

/// Where a thread may run, as it was asked.
struct Place {
    tid: u32,
    allowed: u32,
    at: u64,
    cpus: CpuSet,
}

/// What is known between steps.
#[derive(Default)]
pub(crate) struct Shares {
    dues: Dues,
    places: HashMap<u32, Place>,
    online: CpuSet,
    online_at: Option<u64>,
}

impl Shares {
    /// Looks at what threads did, and tells them what they are due.
    pub(crate) fn step(&mut self, places: &Places, sharers: &[Sharer], host: &mut impl Host) {
        let now = host.now();
        let online = self.online(now, host);
        let sharers = &sharers[..(places.end.load(Relaxed) as usize).min(sharers.len())];
        let (mut end, mut next) = (0, None);
        let mut groups = Groups::default();
        let (mut seen, mut served) = (Vec::new(), Vec::new());
        for (number, sharer) in sharers.iter().enumerate() {
            let key = number as u32;
            let tid = sharer.tid.load(Relaxed);
            if tid == 0 {
                next = next.or(Some(key));
                continue;
            }
            let wants = sharer.wants.load(Relaxed);
            let (wants, ended) = (wants != 0 && wants != ENDED, wants == ENDED);
            let since = sharer.since.load(Relaxed);
            if since == 0 {
                end = key + 1;
                continue; // it is being taken
            }
            let passed = now.saturating_sub(since);
            if !wants && !ended && passed > KEPT_NS {
                self.places.remove(&key);
                if free(sharer, tid) {
                    next = next.or(Some(key));
                    continue;
                }
            }
            end = key + 1;
            let wanted = sharer.wanted.load(Relaxed);
            seen.push(Seen {
                key,
                group: groups.place(sharer.group.load(Relaxed), DEPTH_MOST, host),
                weight: sharer.weight.load(Relaxed).clamp(WEIGHTS.0, WEIGHTS.1),
                cpus: self.cpus(key, tid, sharer, &online, now, host),
                used_ns: sharer.used.load(Relaxed),
                wanted_ns: wanted.wrapping_add(if wants { passed } else { 0 }),
                wants,
                ended,
                born: sharer.born.load(Relaxed) != 0,
            });
            // Before what it uses meanwhile, which counts the next time.
            let as_of = if wants { now } else { since };
            served.push((as_of, sharer.served.load(Relaxed)));
        }
        // Who has taken one meanwhile says so with its next turn.
        places.next.store(next.unwrap_or(end), Relaxed);
        let before = sharers.len() as u32;
        let _ = (places.end).compare_exchange(before, end, Relaxed, Relaxed);
        // Nothing that this makes is a problem without a solution.
        let Ok(dues) = self.dues.step(now, &online, &groups.list, &seen) else {
            return;
        };
        for ((seen, due), (as_of, served)) in seen.iter().zip(dues).zip(served) {
            let Some(sharer) = sharers.get(seen.key as usize) else {
                continue;
            };
            if seen.ended {
                self.places.remove(&seen.key);
                clear(sharer);
                continue;
            }
            let Some(due) = due else {
                continue;
            };
            let rate = (due.rate * RATE_ONE).clamp(RATE_LEAST, RATE_ONE);
            let behind_ns = due.lag_s * 1e9 * RATE_ONE / rate;
            let behind_ns = behind_ns.clamp(-AHEAD_MOST_NS, BEHIND_MOST_NS) as i64;
            // The scheduler adds to it meanwhile.
            let by = as_of.wrapping_sub(behind_ns as u64).wrapping_sub(served);
            sharer.served.fetch_add(by, SeqCst);
            sharer.rate.store(rate as u32, Relaxed);
        }
    }

    fn online(&mut self, now: u64, host: &mut impl Host) -> CpuSet {
        if (self.online_at).is_none_or(|at| now.saturating_sub(at) >= PLACES_NS) {
            self.online = host.online().unwrap_or(std::mem::take(&mut self.online));
            self.online_at = Some(now);
        }
        self.online.clone()
    }

    fn cpus(
        &mut self,
        key: u32,
        tid: u32,
        sharer: &Sharer,
        online: &CpuSet,
        now: u64,
        host: &mut impl Host,
    ) -> CpuSet {
        let allowed = u32::from(sharer.allowed.load(Relaxed));
        let cpus = match sharer.cpu.load(Relaxed) {
            0 if allowed as usize >= host.possible() => return online.clone(),
            0 => {
                let place = self.places.get(&key).filter(|it| {
                    it.tid == tid && it.allowed == allowed && now.saturating_sub(it.at) < PLACES_NS
                });
                match place {
                    Some(place) => place.cpus.clone(),
                    None => {
                        let cpus = host.allowed(tid).unwrap_or_default();
                        let at = now;
                        let place = Place {
                            tid,
                            allowed,
                            at,
                            cpus: cpus.clone(),
                        };
                        self.places.insert(key, place);
                        cpus
                    }
                }
            }
            cpu => std::iter::once(CpuId(u32::from(cpu) - 1)).collect(),
        };
        let cpus = cpus.intersection(online);
        // It is somewhere: the kernel has moved it.
        if cpus.is_empty() {
            online.clone()
        } else {
            cpus
        }
    }
}

/// Nobody needs what is known of the thread, unless it comes back at this moment; whether that is so.
fn free(sharer: &Sharer, tid: u32) -> bool {
    let exchange = |from, to| (sharer.tid).compare_exchange(from, to, SeqCst, SeqCst);
    if exchange(tid, FREED).is_err() {
        return true;
    }
    // Who says that it wants CPUs looks at the place's thread after that.
    if sharer.wants.load(SeqCst) != 0 {
        let _ = exchange(FREED, tid);
        return false;
    }
    clear(sharer);
    true
}

/// A place becomes nobody's.
fn clear(sharer: &Sharer) {
    for field in [&sharer.used, &sharer.wanted, &sharer.served, &sharer.since] {
        field.store(0, Relaxed);
    }
    for field in [&sharer.rate, &sharer.wants, &sharer.born] {
        field.store(0, Relaxed);
    }
    sharer.tid.store(0, SeqCst);
}

/// The groups that threads are in, and those around them.
#[derive(Default)]
struct Groups {
    list: Vec<Group>,
    places: BTreeMap<u64, Option<usize>>,
}

impl Groups {
    fn place(&mut self, id: u64, depth_most: u32, host: &mut impl Host) -> Option<usize> {
        if id == 0 || depth_most == 0 {
            return None;
        }
        if let Some(place) = self.places.get(&id) {
            return *place;
        }
        // Before its parent is looked for: groups that contain each other would be looked for without end.
        self.places.insert(id, None);
        let found = host.group(id)?;
        let [quota, period, ..] = found.limit;
        let group = Group {
            parent: self.place(found.parent, depth_most - 1, host),
            weight: (found.weight / WEIGHT_ONE).clamp(WEIGHTS.0, WEIGHTS.1),
            limit: (quota > 0 && period > 0).then(|| quota as f64 / period as f64),
        };
        self.list.push(group);
        let place = Some(self.list.len() - 1);
        self.places.insert(id, place);
        place
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

    fn wants(tid: u32, group: u64, allowed: u16, now: u64) -> Sharer {
        let sharer = Sharer::default();
        sharer.tid.store(tid, Relaxed);
        sharer.weight.store(100, Relaxed);
        sharer.group.store(group, Relaxed);
        sharer.allowed.store(allowed, Relaxed);
        sharer.since.store(now, Relaxed);
        sharer.served.store(now, Relaxed);
        sharer.wants.store(1, Relaxed);
        sharer
    }

    fn group(parent: u64, weight: u32) -> layout::Group {
        layout::Group {
            parent,
            weight,
            ..layout::from_bytes(&[])
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

    /// 50 ms pass, in which sharers use so many ms.
    fn step(shares: &mut Shares, sharers: &[Sharer], machine: &mut Machine, used: &[u64]) {
        machine.now += 50 * MS;
        for (sharer, used) in sharers.iter().zip(used) {
            sharer.used.fetch_add(used * MS, Relaxed);
        }
        let places = Places::default();
        places.end.store(sharers.len() as u32, Relaxed);
        shares.step(&places, sharers, machine);
    }

    fn percent(sharer: &Sharer) -> u32 {
        (sharer.rate.load(Relaxed) * 100 + 32_768) / 65_536
    }

    #[test]
    fn threads_are_told_what_their_groups_are_due() {
        let (mut shares, mut machine) = (Shares::default(), machine());
        let now = machine.now;
        // Group 7's two may run anywhere, 8's on one CPU: due 1/4 + 1/4 and 1.
        let sharers = [
            wants(1, 7, 2, now),
            wants(2, 7, 2, now),
            wants(3, 8, 1, now),
        ];
        sharers[2].cpu.store(1, Relaxed);
        step(&mut shares, &sharers, &mut machine, &[0, 0, 0]);
        step(&mut shares, &sharers, &mut machine, &[50, 0, 50]);
        assert_eq!(sharers.each_ref().map(percent), [50, 50, 100]);
        // Served up to now as well as it lacks: 25 ms had before, at half a CPU.
        let ahead = |it: &Sharer| (it.served.load(Relaxed) as i64 - machine.now as i64) / MS as i64;
        assert_eq!(sharers.each_ref().map(ahead)[..2], [50, -50]);
        assert_eq!(machine.asked, 0);
    }

    #[test]
    fn where_threads_may_run_is_asked_for_now_and_then() {
        let (mut shares, mut machine) = (Shares::default(), machine());
        let sharers = [wants(1, 0, 1, machine.now)];
        for _ in 0..30 {
            step(&mut shares, &sharers, &mut machine, &[50]);
        }
        assert_eq!(machine.asked, 2);
        assert_eq!(percent(&sharers[0]), 100);
    }

    #[test]
    fn groups_that_are_gone_or_contain_each_other_are_no_reason_to_stop() {
        let (mut shares, mut machine) = (Shares::default(), machine());
        machine.groups.insert(9, group(10, 0));
        machine.groups.insert(10, group(9, u32::MAX));
        let now = machine.now;
        let sharers = [
            wants(1, 9, 2, now),
            wants(2, 99, 2, now),
            wants(3, 7, 2, now),
        ];
        sharers[1].weight.store(0, Relaxed);
        for _ in 0..3 {
            step(&mut shares, &sharers, &mut machine, &[10, 10, 10]);
        }
        assert!(sharers.iter().all(|it| percent(it) > 0));
    }

    #[test]
    fn who_has_wanted_nothing_for_long_loses_its_place() {
        let (mut shares, mut machine) = (Shares::default(), machine());
        let sharers = [wants(1, 7, 2, machine.now)];
        step(&mut shares, &sharers, &mut machine, &[50]);
        sharers[0].wants.store(0, Relaxed);
        sharers[0].since.store(machine.now, Relaxed);
        for _ in 0..20 {
            step(&mut shares, &sharers, &mut machine, &[0]);
            assert_eq!(sharers[0].tid.load(Relaxed), 1);
        }
        step(&mut shares, &sharers, &mut machine, &[0]);
        assert_eq!(sharers[0].tid.load(Relaxed), 0);
        assert_eq!(sharers[0].used.load(Relaxed), 0);
    }

    #[test]
    fn who_has_ended_loses_its_place_at_once() {
        let (mut shares, mut machine) = (Shares::default(), machine());
        let sharers = [wants(1, 7, 2, machine.now), wants(2, 7, 2, machine.now)];
        step(&mut shares, &sharers, &mut machine, &[30, 50]);
        sharers[0].wants.store(ENDED, Relaxed);
        step(&mut shares, &sharers, &mut machine, &[20, 50]);
        assert_eq!(sharers.each_ref().map(|it| it.tid.load(Relaxed)), [0, 2]);
        assert_eq!(sharers[0].wants.load(Relaxed), 0);
        // What it had too much is nobody's.
        step(&mut shares, &sharers, &mut machine, &[0, 50]);
        assert_eq!(percent(&sharers[1]), 100);
    }

    #[test]
    fn a_place_that_is_being_taken_is_left_alone() {
        let (mut shares, mut machine) = (Shares::default(), machine());
        let sharers = [Sharer::default()];
        sharers[0].tid.store(1, Relaxed);
        step(&mut shares, &sharers, &mut machine, &[0]);
        assert_eq!(sharers[0].tid.load(Relaxed), 1);
        // And one whose thread is back.
        sharers[0].wants.store(1, Relaxed);
        assert!(!free(&sharers[0], 1));
        assert_eq!(sharers[0].tid.load(Relaxed), 1);
    }

    #[test]
    fn units_and_bounds_are_the_schedulers() {
        use crate::policy::{share_bounding, share_time};
        assert_eq!(share_time(MS, RATE_ONE as u32), MS);
        assert_eq!(share_time(MS, RATE_LEAST as u32), share_time(MS, 0));
        assert!(share_time(MS, 2 * RATE_LEAST as u32) < share_time(MS, 0));
        let at = 1_000_000 * MS;
        let (behind, ahead) = (BEHIND_MOST_NS as u64, AHEAD_MOST_NS as u64);
        for (served, kept) in [(at - behind, true), (at - behind - 1, false)] {
            assert_eq!(share_bounding(served, at) == 0, kept);
        }
        for (served, kept) in [(at + ahead, true), (at + ahead + 1, false)] {
            assert_eq!(share_bounding(served, at) == 0, kept);
        }
    }

    #[test]
    fn who_comes_is_shown_a_place() {
        let (mut shares, mut machine) = (Shares::default(), machine());
        let sharers: Vec<Sharer> = (0..8).map(|_| Sharer::default()).collect();
        for taken in [0, 1, 3] {
            sharers[taken].tid.store(1, Relaxed);
            sharers[taken].wants.store(1, Relaxed);
            sharers[taken].since.store(machine.now, Relaxed);
        }
        let places = Places::default();
        // (taken up to, when it looks) -> where none is from, and the first that is free
        for (end, found, next) in [(8, 4, 2), (4, 4, 2), (2, 2, 2), (100, 4, 2)] {
            places.end.store(end, Relaxed);
            shares.step(&places, &sharers, &mut machine);
            assert_eq!(places.next.load(Relaxed), next, "{end}");
            if end <= 8 {
                assert_eq!(places.end.load(Relaxed), found, "{end}");
            }
        }
    }
}
