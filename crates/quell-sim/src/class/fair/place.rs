//! Where a thread that wakes is to run.
//!
//! Either the CPU that wakes it or the one that it was on (wake_affine: whichever is idle, else whichever will have less
//! load), unless both wake many others (wake_wide). From there an idle CPU of the same cache: that one, the other, the
//! one before, and then a search whose length sinks with the square of the cache's utilization (SIS_UTIL): from 85 % on
//! there is none, and with 8 CPUs at 80 % at most one CPU is looked at. How far it may go is only updated by periodic balancing, so it is
//! also late. With hyperthreads a whole idle core is looked for first, while there may be one.
//!
//! Who may not stay where it waits or runs goes to the next of the CPUs that it may use, whatever these have to do.
//!
//! The first CPU of a thread that is there from the start is the one with the least to do of the cache with
//! the fewest busy CPUs. One that is forked goes down from the largest domain of its parent's CPU
//! (SD_BALANCE_FORK): to the group with the most idle CPUs, or where none has idle ones the one with the
//! least load, if the parent's own has 17 % more than that.

use super::Fair;
use crate::events::Nanos;
use crate::machine::Machine;
use quell_model::CpuId;

/// sched_domain's imbalance_pct is 117: half of what is above 100 is in favour of the CPU that wakes.
const BIAS: f64 = 1.0 + 0.17 / 2.0;
/// And all of it in favour of the CPU that forks.
const FORK_BIAS: f64 = 1.17;
/// After so long half of the flips are forgotten.
const FLIPS_HALVE: Nanos = 1_000_000_000;

/// Whom somebody wakes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waking {
    last: Option<usize>,
    /// How often that was another one than before, of late.
    flips: u32,
    at: Nanos,
}

impl Waking {
    fn wakes(&mut self, now: Nanos, thread: usize) {
        if now > self.at + FLIPS_HALVE {
            self.flips /= 2;
            self.at = now;
        }
        if self.last.replace(thread) != Some(thread) {
            self.flips += 1;
        }
    }
}

/// Whether a thread may run there.
pub(super) fn may_use(machine: &Machine, thread: usize, cpu: usize) -> bool {
    machine.threads[thread].may_use(CpuId(cpu as u32))
}

/// What a group of CPUs has to do.
struct Room {
    idle: usize,
    /// Load for each CPU.
    density: f64,
}

impl Room {
    fn is_more_than(&self, other: &Room) -> bool {
        match (self.idle, other.idle) {
            (0, 0) => self.density < other.density,
            (idle, others) => idle > others,
        }
    }
}

impl Fair {
    /// Nothing runs or waits there.
    pub(super) fn is_idle(&self, machine: &Machine, cpu: usize) -> bool {
        machine.cpus[cpu].current.is_none() && self.queues[cpu].entities == 0
    }

    /// Threads of the idle policy run or wait there, and no others.
    pub(super) fn has_only_idle(&self, cpu: usize) -> bool {
        let tasks = &self.cpus[cpu].tasks;
        let is_idle = |&it: &usize| self.tasks[it].entity.idle;
        self.has_idle && !tasks.is_empty() && tasks.iter().all(is_idle)
    }

    /// Whether a thread that wakes need not wait there.
    fn is_free_for(&self, machine: &Machine, thread: usize, cpu: usize) -> bool {
        self.is_idle(machine, cpu) || !self.tasks[thread].entity.idle && self.has_only_idle(cpu)
    }

    /// A CPU where it may run, of the same cache if possible.
    pub(super) fn any_allowed(&self, machine: &Machine, thread: usize, near: usize) -> usize {
        let it = &machine.threads[thread];
        let may = |cpu: &usize| it.may_use(CpuId(*cpu as u32));
        let mut cache = self.map.cache(near).cpus.iter().copied();
        let near_by = cache.find(may);
        (near_by.or_else(|| (0..self.cpus.len()).find(may))).unwrap_or(near)
    }

    /// Moves a thread that waits, or ran until now, if it may not stay: each time to the next of the CPUs that it may use
    /// (cpumask_any_and_distribute), whatever there is to do.
    pub(super) fn expel(&mut self, machine: &mut Machine, thread: usize) {
        let at = self.queues[self.tasks[thread].queue].cpu;
        if may_use(machine, thread, at) {
            return;
        }
        let cpus = self.cpus.len();
        let mut next = (1..=cpus).map(|step| (self.distributed + step) % cpus);
        let Some(to) = next.find(|&cpu| may_use(machine, thread, cpu)) else {
            return;
        };
        self.distributed = to;
        let _ = self.update_current(machine, at);
        self.migrate(machine, thread, to);
    }

    /// Chooses the CPU.
    pub(super) fn select(&mut self, machine: &Machine, thread: usize) -> usize {
        let it = &machine.threads[thread];
        let may = |cpu: usize| it.may_use(CpuId(cpu as u32));
        if !self.tasks[thread].attached {
            return match it.origin.index() == thread {
                true => self.least_busy(machine, thread),
                false => self.for_new(machine, thread),
            };
        }
        let mut before = self.queues[self.tasks[thread].queue].cpu;
        if !may(before) {
            before = self.any_allowed(machine, thread, before);
        }
        let mut target = before;
        if let Some(here) = machine.here {
            let here = here.0 as usize;
            let waker = machine.cpus[here].current;
            let waking = match waker {
                Some(waker) => &mut self.tasks[waker.index()].waking,
                None => &mut self.cpus[here].waking,
            };
            waking.wakes(machine.now, thread);
            let flips = waking.flips;
            if may(here) && here != before && !self.is_wide(flips, thread, here) {
                target = self.affine(machine, thread, here, before);
            }
        }
        self.near(machine, thread, before, target)
    }

    /// Both wake so many that they are better off far from each other.
    fn is_wide(&self, flips: u32, thread: usize, here: usize) -> bool {
        let (a, b) = (flips, self.tasks[thread].waking.flips);
        let (less, more) = (a.min(b), a.max(b));
        let factor = self.map.cache(here).cpus.len() as u32;
        less >= factor && more >= less * factor
    }

    fn affine(&mut self, machine: &Machine, thread: usize, here: usize, before: usize) -> usize {
        let before_is_idle = self.is_idle(machine, before);
        if before_is_idle {
            return before;
        }
        if self.is_idle(machine, here) && self.map.share_cache(here, before) {
            return here;
        }
        self.advance_queue(machine.now, here);
        self.advance_queue(machine.now, before);
        let own = self.load_of(thread);
        let with = self.queues[here].avg.load + own;
        let without = self.queues[before].avg.load - own;
        if with < without * BIAS { here } else { before }
    }

    /// An idle CPU of the target's cache, or the target.
    fn near(&mut self, machine: &Machine, thread: usize, before: usize, target: usize) -> usize {
        let recent = std::mem::replace(&mut self.tasks[thread].recent, before);
        let it = &machine.threads[thread];
        let idle =
            |cpu: usize| it.may_use(CpuId(cpu as u32)) && self.is_free_for(machine, thread, cpu);
        for cpu in [target, before, recent] {
            if self.map.share_cache(cpu, target) && idle(cpu) {
                return cpu;
            }
        }
        let cache = self.map.cache(target);
        let cores = self.map.has_siblings && cache.has_idle_core;
        if self.map.has_siblings && !cores && self.map.share_cache(before, target) {
            let sibling = (self.map.siblings(before).iter().copied()).find(|&cpu| idle(cpu));
            if let Some(sibling) = sibling {
                return sibling;
            }
        }
        if cache.scan == 0 {
            return target;
        }
        let all = &cache.cpus;
        let start = self.map.place_in_cache(target) + 1;
        let cpus = (0..all.len()).map(|step| all[(start + step) % all.len()]);
        if !cores {
            let may = |&cpu: &usize| it.may_use(CpuId(cpu as u32));
            let mut near = cpus.filter(may).take(cache.scan);
            return near.find(|&cpu| idle(cpu)).unwrap_or(target);
        }
        let mut one = None;
        for cpu in cpus {
            // Each core once: by its first CPU.
            let siblings = self.map.siblings(cpu);
            if siblings.first() != Some(&cpu) {
                continue;
            }
            if siblings.iter().all(|&cpu| self.is_idle(machine, cpu)) {
                let usable = siblings.iter().copied().find(|&cpu| idle(cpu));
                if let Some(usable) = usable {
                    return usable;
                }
            }
            one = one.or_else(|| siblings.iter().copied().find(|&cpu| idle(cpu)));
        }
        self.map.cache_mut(target).has_idle_core = false;
        one.unwrap_or(target)
    }

    /// For a thread that is forked, down from the largest domain of the CPU that forks.
    fn for_new(&mut self, machine: &Machine, thread: usize) -> usize {
        let mut at = machine.threads[thread].cpu.0 as usize;
        for level in (0..self.map.cpus[at].levels.len()).rev() {
            let Some(&(domain, own)) = self.map.cpus[at].levels.get(level) else {
                continue;
            };
            let groups = self.map.domains[domain].groups.clone();
            if let Some(other) = self.idlest_group(machine, thread, &groups, own) {
                at = self
                    .idlest_of(machine, thread, &groups[other])
                    .unwrap_or(at);
            }
        }
        match may_use(machine, thread, at) {
            true => at,
            false => self.any_allowed(machine, thread, at),
        }
    }

    /// Which of a domain's groups a new thread goes to, if not to its own.
    fn idlest_group(
        &mut self,
        machine: &Machine,
        thread: usize,
        groups: &[Vec<usize>],
        own: usize,
    ) -> Option<usize> {
        let mut best: Option<(usize, Room)> = None;
        let mut local = None;
        for (number, cpus) in groups.iter().enumerate() {
            if !cpus.iter().any(|&cpu| may_use(machine, thread, cpu)) {
                continue;
            }
            let room = self.room(machine, cpus);
            if number == own {
                local = Some(room);
            } else if best
                .as_ref()
                .is_none_or(|(_, best)| room.is_more_than(best))
            {
                best = Some((number, room));
            }
        }
        let (number, best) = best?;
        let Some(local) = local else {
            return Some(number);
        };
        let goes = match (local.idle > 0, best.idle > 0) {
            (false, false) => local.density > best.density * FORK_BIAS,
            _ => best.idle > local.idle,
        };
        goes.then_some(number)
    }

    fn room(&mut self, machine: &Machine, cpus: &[usize]) -> Room {
        let mut load = 0.0;
        for &cpu in cpus {
            self.advance_queue(machine.now, cpu);
            load += self.queues[cpu].avg.load;
        }
        Room {
            idle: cpus
                .iter()
                .filter(|&&cpu| self.is_idle(machine, cpu))
                .count(),
            density: load / cpus.len().max(1) as f64,
        }
    }

    /// The CPU with the least to do of these.
    fn idlest_of(&self, machine: &Machine, thread: usize, cpus: &[usize]) -> Option<usize> {
        let usable = cpus.iter().copied();
        let mut usable = usable.filter(|&cpu| may_use(machine, thread, cpu));
        let idle = usable.clone().find(|&cpu| self.is_idle(machine, cpu));
        let load = |cpu: usize| self.queues[cpu].avg.load;
        let first = usable.next();
        idle.or_else(|| {
            let least =
                |one: usize, other: usize| if load(other) < load(one) { other } else { one };
            first.map(|first| usable.fold(first, least))
        })
    }

    /// For a thread that is there from the start.
    fn least_busy(&self, machine: &Machine, thread: usize) -> usize {
        let it = &machine.threads[thread];
        let load = |cpu: usize| {
            let siblings = self.map.siblings(cpu).iter();
            let busy = siblings.filter(|&&cpu| !self.is_idle(machine, cpu)).count();
            let own = self.cpus[cpu].tasks.len();
            (own, busy, self.map.cache(cpu).busy, cpu)
        };
        let usable = (0..self.cpus.len()).filter(|&cpu| it.may_use(CpuId(cpu as u32)));
        usable.min_by_key(|&cpu| load(cpu)).unwrap_or(0)
    }
}
