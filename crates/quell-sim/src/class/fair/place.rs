//! The choice of a waking or new thread's CPU (select_task_rq_fair).
//!
//! A waking thread starts from the waker's CPU or its own last one (wake_affine: an idle one, else the one
//! that will have less load), unless waker and thread both wake many others (wake_wide). From there an idle
//! CPU of the same last-level cache is looked for: the target itself, the last CPU, the one before that, and
//! then a search whose length sinks with the square of the cache's utilisation (SIS_UTIL): from 85 % on there
//! is no search, and with 8 CPUs at 80 % at most one CPU is looked at. The length is updated by periodic load
//! balancing only, so it is also late. With SMT, a wholly idle core is looked for first, while there may be
//! one.
//!
//! A thread that may not stay where it waits or runs goes to the next of the CPUs that it may run on,
//! whatever their load.
//!
//! The first CPU of a thread that is there from the start is the one with the fewest threads; of several, the
//! one with the fewest busy siblings, and then with the fewest busy CPUs in its cache. A forked thread goes
//! down from the largest domain of its parent's CPU (SD_BALANCE_FORK): in each domain to the group with the
//! most idle CPUs, or if no group has an idle CPU, to the group with the least load, if the parent's group
//! has 17 % more.

use super::Fair;
use crate::events::Nanos;
use crate::machine::Machine;
use quell_model::CpuId;

/// A sched_domain's imbalance_pct is 117: half of the excess over 100 favours the waker's CPU.
const BIAS: f64 = 1.0 + 0.17 / 2.0;
/// All of the excess favours the CPU of the fork.
const FORK_BIAS: f64 = 1.17;
/// The time, in ns, after which the count of flips is halved.
const FLIPS_HALVE: Nanos = 1_000_000_000;

/// The threads that a thread, or an idle CPU, wakes (record_wakee).
#[derive(Debug, Clone, Copy, Default)]
pub struct Waking {
    last: Option<usize>,
    /// How often the wakee was another thread than the last one, of late (wakee_flips).
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

/// Whether the thread may run on the CPU.
pub(super) fn may_use(machine: &Machine, thread: usize, cpu: usize) -> bool {
    machine.threads[thread].may_use(CpuId(cpu as u32))
}

/// The load of a group of CPUs.
struct Room {
    idle: usize,
    /// The load per CPU.
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
    /// Whether no thread runs or waits on the CPU.
    pub(super) fn is_idle(&self, machine: &Machine, cpu: usize) -> bool {
        machine.cpus[cpu].current.is_none() && self.queues[cpu].entities == 0
    }

    /// Whether threads of the idle policy, and no others, run or wait on the CPU (sched_idle_cpu).
    pub(super) fn has_only_idle(&self, cpu: usize) -> bool {
        let tasks = &self.cpus[cpu].tasks;
        let is_idle = |&it: &usize| self.tasks[it].entity.idle;
        self.has_idle && !tasks.is_empty() && tasks.iter().all(is_idle)
    }

    /// Whether the waking thread need not wait on the CPU.
    fn is_free_for(&self, machine: &Machine, thread: usize, cpu: usize) -> bool {
        self.is_idle(machine, cpu) || !self.tasks[thread].entity.idle && self.has_only_idle(cpu)
    }

    /// A CPU that the thread may run on, of the cache of `near` if possible.
    pub(super) fn any_allowed(&self, machine: &Machine, thread: usize, near: usize) -> usize {
        let it = &machine.threads[thread];
        let may = |cpu: &usize| it.may_use(CpuId(*cpu as u32));
        let mut cache = self.map.cache(near).cpus.iter().copied();
        let near_by = cache.find(may);
        (near_by.or_else(|| (0..self.cpus.len()).find(may))).unwrap_or(near)
    }

    /// Moves a thread that waits, or ran until now, off a CPU where it may not stay, to the next of the CPUs
    /// that it may run on (cpumask_any_and_distribute), whatever their load.
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

    /// The CPU for a thread that wakes or is new.
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

    /// Whether waker and thread both wake so many others that they are better off far from each other
    /// (wake_wide).
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

    /// An idle CPU of the target's cache, or the target (select_idle_sibling).
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
            // Each core once, by its first CPU.
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

    /// The CPU for a forked thread, down from the largest domain of its parent's CPU.
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

    /// The group of a domain that a new thread goes to; `None`: the CPU's own.
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

    /// The least loaded of these CPUs; an idle one if there is any.
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

    /// The CPU for a thread that is there from the start.
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
