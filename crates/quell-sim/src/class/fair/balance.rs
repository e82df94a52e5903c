//! Load balancing: moving threads between CPUs.
//!
//! CPUs form domains: a core, a cache, a socket, the machine; the groups of a domain are the domains below
//! it. In each domain of a CPU, at an interval that grows with the domain and is 16 times as long while the
//! CPU is busy, the busiest group is looked for, and threads, load or utilisation of half the difference are
//! moved from its busiest queue. A thread that ran less than 0.5 ms ago (cache-hot) stays, and so does a
//! thread whose load is more than is to be moved, until that has failed a few times; then the running thread
//! is moved too (active balancing). A CPU that runs out of work (newly idle) looks the same way, if it has
//! idled for longer than that takes of late and, from 6.12.65 on, as often as looking succeeds. Idle CPUs
//! without ticks are balanced by the first of them, at the tick of a busy CPU (nohz idle balancing); when
//! that is next due is worked out then, and again at the first tick after a CPU went idle.
//!
//! The costs are assumed: a microsecond, and 50 ns for each CPU of the domain; they are charged where ticks
//! cost something.
//!
//! Limits: no groups marked imbalanced by affinity, NUMA distances (all sockets are alike), lock that
//! serialises the topmost domain, misfit tasks, or asymmetric packing.

use super::entity::Id;
use super::map::{Domain, Glance, Kind, Map};
use super::{Fair, TICK, Version};
use crate::events::Nanos;
use crate::machine::{Machine, State};
use quell_model::CpuId;

/// A thread that ran less than this long ago, in ns, is cache-hot (sched_migration_cost).
const WARM: Nanos = 500_000;
/// The factor of the intervals while the CPU is busy (busy_factor).
const BUSY_FACTOR: u64 = 16;
/// The most threads that are looked at for one move (sched_nr_migrate).
const MOST: usize = 32;
/// The factor of the utilisation that limits the search for an idle CPU (imbalance_pct): no search from 1 /
/// 1.17 on.
const SCAN_PCT: f64 = 1.17;

/// A CPU's balancing in one of its domains.
#[derive(Debug, Clone)]
struct Level {
    domain: usize,
    group: usize,
    last: Nanos,
    /// The interval, in ms.
    interval: u64,
    failed: u32,
    /// The most that a look has taken of late, in ns.
    cost: Nanos,
    /// When `cost` was last raised or lowered.
    cost_at: Nanos,
    /// How often the CPU was newly idle, looks that were skipped by chance included.
    calls: u32,
    /// How often a look found a thread, each success counted for the skipped looks too.
    successes: u32,
    /// `successes` of 1024 `calls`: the chance of a look.
    ratio: u32,
    counted_at: Nanos,
}

impl Level {
    /// Counts that the CPU was newly idle, with `success` successes; success counts for the skipped looks
    /// too.
    fn count(&mut self, now: Nanos, success: u32, with_rate: bool) {
        self.calls += 1;
        self.successes += success;
        if self.calls >= 1024 {
            // A CPU that is seldom newly idle may look more often.
            let rate = if with_rate {
                (now - self.counted_at) >> 22
            } else {
                0
            };
            self.counted_at = now;
            self.ratio = (u64::from(self.successes) + rate).min(1024) as u32;
            self.calls /= 2;
            self.successes /= 2;
        }
    }
}

/// A CPU's balancing.
#[derive(Debug, Clone, Default)]
pub struct Balancing {
    levels: Vec<Level>,
    due: Nanos,
    idle_since: Option<Nanos>,
    average_idle: Nanos,
    /// The cost of looking for work in all domains, in ns, at least [`WARM`] (max_idle_balance_cost).
    cost: Nanos,
    /// The CPU to which the running thread is to be moved (active balancing).
    push: Option<usize>,
}

impl Balancing {
    /// The state at boot.
    pub fn new(map: &Map, cpu: usize) -> Balancing {
        let level = |&(domain, group): &(usize, usize)| Level {
            domain,
            group,
            last: 0,
            interval: map.domains[domain].cpus as u64,
            failed: 0,
            cost: 0,
            cost_at: 0,
            calls: 512,
            successes: 256,
            ratio: 512,
            counted_at: 0,
        };
        Balancing {
            levels: map.cpus[cpu].levels.iter().map(level).collect(),
            average_idle: 2 * WARM,
            cost: WARM,
            ..Balancing::default()
        }
    }
}

/// The state of the CPU that is balanced (cpu_idle_type).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Busy,
    Idle,
    /// The CPU has just run out of work.
    NewlyIdle,
}

/// How full a group is, in increasing order (group_type).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fill {
    HasSpare,
    FullyBusy,
    Overloaded,
}

#[derive(Debug, Clone, Copy)]
struct Group {
    number: usize,
    cpus: f64,
    load: f64,
    util: f64,
    runnable: f64,
    threads: usize,
    idle: usize,
    /// A CPU of the group has more than one thread.
    crowded: bool,
    fill: Fill,
}

impl Group {
    /// The load per CPU.
    fn density(&self) -> f64 {
        self.load / self.cpus
    }

    fn classify(&mut self, imbalance: f64) {
        let capacity = 1024.0 * self.cpus;
        let threads = self.threads as f64;
        let waits = capacity * imbalance < self.runnable;
        let full = capacity < self.util * imbalance;
        self.fill = if threads > self.cpus && (full || waits) {
            Fill::Overloaded
        } else if threads < self.cpus || !waits && capacity > self.util * imbalance {
            Fill::HasSpare
        } else {
            Fill::FullyBusy
        };
    }

    fn is_busier_than(&self, other: &Group) -> bool {
        if self.fill != other.fill {
            return self.fill > other.fill;
        }
        match self.fill {
            Fill::Overloaded | Fill::FullyBusy => self.density() > other.density(),
            Fill::HasSpare => {
                self.idle < other.idle || self.idle == other.idle && self.threads > other.threads
            }
        }
    }
}

/// The groups of a domain.
#[derive(Debug)]
struct Look {
    own: Option<Group>,
    /// The busiest of the other groups that have threads.
    busiest: Option<Group>,
    /// Sums over all groups, where they matter: not for a newly idle CPU whose group has CPUs to spare.
    load: f64,
    util: f64,
    /// Some CPU has more than one thread.
    overloaded: bool,
}

/// How much is to be moved, and of what (migration_type).
#[derive(Debug, Clone, Copy, PartialEq)]
enum Much {
    Threads(f64),
    Load(f64),
    Util(f64),
}

impl Fair {
    /// Counts a thread on a CPU that it joined.
    pub(super) fn joined(&mut self, machine: &Machine, cpu: usize, thread: usize) {
        debug_assert_eq!(machine.threads.len(), self.tasks.len());
        let it = &mut self.cpus[cpu];
        let task = &mut self.tasks[thread];
        task.slot = it.tasks.len();
        it.tasks.push(thread);
        task.expected_there = task.expected;
        it.expected += task.expected;
        self.map.overloaded |= it.tasks.len() > 1;
        self.glance(cpu);
    }

    /// Counts a thread no more on a CPU that it left; a thread that sleeps updates its estimated utilisation.
    pub(super) fn left(&mut self, cpu: usize, thread: usize, sleeps: bool) {
        let it = &mut self.cpus[cpu];
        let task = &mut self.tasks[thread];
        it.tasks.swap_remove(task.slot);
        it.expected = (it.expected - task.expected_there).max(0.0);
        let (slot, avg) = (task.slot, task.entity.avg);
        // A thread that waited a lot would have used more: its estimate stays.
        if sleeps && avg.util >= task.expected {
            task.expected = avg.util;
        } else if sleeps && avg.util + 10.24 >= avg.runnable {
            task.expected += (avg.util - task.expected) / 4.0;
        }
        if let Some(&moved) = it.tasks.get(slot) {
            self.tasks[moved].slot = slot;
        }
        self.glance(cpu);
    }

    /// Shows the other CPUs the present state of a CPU.
    pub(super) fn glance(&mut self, cpu: usize) {
        let (avg, it) = (&self.queues[cpu].avg, &self.cpus[cpu]);
        let glance = Glance {
            load: avg.load,
            runnable: avg.runnable,
            util: avg.util.max(it.expected).min(1024.0),
            threads: it.tasks.len() as u32,
        };
        self.map.show(cpu, glance);
    }

    /// Sets the averages of a new thread: as if always runnable, with a utilisation in proportion to its
    /// weight as its queue's threads have it, but at most half of what the CPU has left, and that half where
    /// the queue has none (post_init_entity_util_avg).
    pub(super) fn first_averages(&mut self, now: Nanos, thread: usize) {
        let queue = self.tasks[thread].queue;
        self.advance_queue(now, queue);
        let avg = self.queues[queue].avg;
        let entity = &mut self.tasks[thread].entity;
        let cap = (1024.0 - avg.util).max(0.0) / 2.0;
        let like = avg.util * (entity.weight as f64 / 1024.0) / (avg.load + 1.0);
        let util = if avg.util > 0.0 { like.min(cap) } else { cap };
        entity.avg.advance(now, 1.0, util, util);
        (entity.avg.load, entity.avg.util, entity.avg.runnable) = (1.0, util, util);
    }

    /// A CPU goes from idle to running a thread.
    pub(super) fn leaves_idle(&mut self, now: Nanos, cpu: usize) {
        self.map.works(cpu);
        let it = &mut self.cpus[cpu].balancing;
        if let Some(since) = it.idle_since.take() {
            let average = it.average_idle - it.average_idle / 8 + (now - since) / 8;
            it.average_idle = average.min(2 * it.cost);
        }
    }

    /// Balancing at the tick of a busy CPU.
    pub(super) fn balance_at_tick(&mut self, machine: &mut Machine, cpu: usize) {
        let now = machine.now;
        if now >= self.cpus[cpu].balancing.due {
            self.balance_levels(machine, cpu, Who::Busy, cpu);
        }
        self.map.cpus[cpu].silent = false;
        let busy = self.is_contended(cpu) || self.map.cache(cpu).busy > 1;
        let balances = busy && now >= self.map.idle_due;
        if !balances && !self.map.idle_news {
            return;
        }
        if balances {
            self.map.idle_due = now + TICK;
        }
        let Some(first) = self.map.next_idle(0) else {
            return;
        };
        self.map.idle_news = false;
        // The first idle CPU balances for all idle CPUs, for itself last.
        let (mut due, mut at) = (None::<Nanos>, first + 1);
        loop {
            let next = self.map.next_idle(at);
            let it = next.unwrap_or(first);
            if self.is_idle(machine, it) {
                if balances && now >= self.cpus[it].balancing.due {
                    self.balance_levels(machine, it, Who::Idle, first);
                }
                let own = self.cpus[it].balancing.due;
                due = Some(due.map_or(own, |due| due.min(own)));
            }
            match next {
                Some(next) => at = next + 1,
                None => break,
            }
        }
        self.map.idle_due = due.unwrap_or(self.map.idle_due);
    }

    /// Balances a CPU in the domains that are due; `by` is the CPU that does the work.
    fn balance_levels(&mut self, machine: &mut Machine, cpu: usize, who: Who, by: usize) {
        let now = machine.now;
        self.advance_blocked(now, cpu);
        let (mut who, mut due) = (who, now + 15_000 * TICK);
        // A CPU that runs only threads of the idle policy is balanced as often as an idle one.
        let often = self.has_only_idle(cpu);
        let at = |who| if often { Who::Idle } else { who };
        for level in 0..self.cpus[cpu].balancing.levels.len() {
            let it = &self.cpus[cpu].balancing.levels[level];
            if now >= it.last + self.interval(it, at(who)) {
                let domain = it.domain;
                if machine.costs.tick > 0 {
                    let look = self.map.domains[domain].look();
                    machine.charge(CpuId(by as u32), look);
                }
                if self.balance(machine, cpu, level, who) {
                    who = Who::Busy;
                }
                self.cpus[cpu].balancing.levels[level].last = now;
            }
            let it = &self.cpus[cpu].balancing.levels[level];
            due = due.min(it.last + self.interval(it, at(who)));
        }
        self.cpus[cpu].balancing.due = due;
    }

    /// A CPU on which only threads of the idle policy are left looks for others at its next tick.
    pub(super) fn look_soon(&mut self, now: Nanos, cpu: usize) {
        if self.has_only_idle(cpu) {
            self.cpus[cpu].balancing.due = now;
        }
    }

    /// The time between two looks at a domain, in ns (get_sd_balance_interval).
    fn interval(&self, level: &Level, who: Who) -> Nanos {
        let most = TICK * (25 * self.cpus.len() as Nanos).max(1);
        let factor = if who == Who::Busy { BUSY_FACTOR } else { 1 };
        let ticks = (level.interval * factor * 1_000_000).div_ceil(TICK);
        // A tick less, so that the intervals of domains do not always end together.
        let ticks = ticks - u64::from(who == Who::Busy && ticks > 1);
        (ticks * TICK).clamp(TICK, most)
    }

    /// A CPU that goes idle is balanced at the interval of idle CPUs from now on.
    fn look_sooner(&mut self, cpu: usize, level: usize) {
        let it = &self.cpus[cpu].balancing;
        if let Some(level) = it.levels.get(level) {
            let due = it.due.min(level.last + self.interval(level, Who::Idle));
            self.cpus[cpu].balancing.due = due;
        }
    }

    /// Newly idle balancing; returns whether the CPU has a thread now (sched_balance_newidle).
    pub(super) fn pull_idle(&mut self, machine: &mut Machine, cpu: usize) -> bool {
        let now = machine.now;
        let by_success = self.version.is_eevdf();
        let with_rate = self.version == Version::Eevdf72;
        let it = &mut self.cpus[cpu].balancing;
        it.idle_since.get_or_insert(now);
        let least = it.levels.first().map_or(Nanos::MAX, |level| level.cost);
        if !self.map.overloaded || it.average_idle < least {
            self.look_sooner(cpu, 0);
            return false;
        }
        self.advance_blocked(now, cpu);
        let mut spent = 0;
        for at in 0..self.cpus[cpu].balancing.levels.len() {
            self.look_sooner(cpu, at);
            let it = &self.cpus[cpu].balancing;
            let level = &it.levels[at];
            if it.average_idle < spent + level.cost {
                break;
            }
            let (domain, chance) = (level.domain, level.ratio + 1);
            let mut weight = 1;
            if by_success && level.ratio < 1024 {
                if self.map.roll() > chance {
                    self.cpus[cpu].balancing.levels[at].count(now, 0, with_rate);
                    continue;
                }
                weight = (1024 + chance / 2) / chance;
            }
            let moved = self.balance(machine, cpu, at, Who::NewlyIdle);
            let cost = self.map.domains[domain].look();
            spent += cost;
            let level = &mut self.cpus[cpu].balancing.levels[at];
            level.count(now, weight * u32::from(moved), with_rate);
            if cost > level.cost {
                (level.cost, level.cost_at) = (cost, now);
            } else if now > level.cost_at + 1_000_000_000 {
                (level.cost, level.cost_at) = (level.cost * 253 / 256, now);
            }
            if moved {
                break;
            }
        }
        if machine.costs.tick > 0 {
            machine.charge(CpuId(cpu as u32), spent);
        }
        let it = &mut self.cpus[cpu];
        it.balancing.cost = it.balancing.cost.max(spent);
        !it.tasks.is_empty()
    }

    /// Looks at a domain once and moves threads to the CPU; returns whether any were moved
    /// (sched_balance_rq).
    fn balance(&mut self, machine: &mut Machine, cpu: usize, level: usize, who: Who) -> bool {
        let (number, local) = {
            let it = &self.cpus[cpu].balancing.levels[level];
            (it.domain, it.group)
        };
        if who != Who::NewlyIdle && !self.is_its_turn(machine, number, local, cpu) {
            return false;
        }
        let domain = std::mem::take(&mut self.map.domains[number]);
        let found = self.find_busiest(&domain, local, cpu, who);
        let mut moved = 0;
        let mut balanced = true;
        if let Some((group, much)) = found {
            let mut pinned = None;
            // If no thread of the busiest queue may run on this CPU, the next queue is tried.
            for _ in 0..4 {
                let group = &domain.groups[group];
                let Some(busiest) = self.find_queue(group, cpu, much, pinned) else {
                    break;
                };
                balanced = false;
                let failed = self.cpus[cpu].balancing.levels[level].failed;
                let (count, all_pinned) =
                    self.take_from(machine, &domain, busiest, cpu, much, failed, who);
                moved = count;
                if moved > 0 || !all_pinned {
                    if moved == 0 {
                        self.moved_nothing(machine, &domain, busiest, cpu, level, much, who);
                    }
                    break;
                }
                pinned = Some(busiest);
            }
        }
        let it = &mut self.cpus[cpu].balancing.levels[level];
        let most = 2 * domain.cpus as u64;
        if moved > 0 {
            it.failed = 0;
        }
        if balanced && who != Who::NewlyIdle {
            it.failed = 0;
            it.interval = (it.interval * 2).min(most);
        } else if !balanced {
            it.interval = domain.cpus as u64;
        }
        self.map.domains[number] = domain;
        moved > 0
    }

    /// Whether the CPU balances for its group (should_we_balance): the first CPU on an idle core does, else
    /// the first idle CPU, else the first CPU.
    fn is_its_turn(&self, machine: &Machine, domain: usize, group: usize, cpu: usize) -> bool {
        let cpus = &self.map.domains[domain].groups[group];
        let idle = |cpu: &&usize| self.is_idle(machine, **cpu);
        let on_idle_core = |cpu: &&usize| self.map.siblings(**cpu).iter().all(|cpu| idle(&cpu));
        let first = (cpus.iter().find(on_idle_core))
            .or_else(|| cpus.iter().find(idle))
            .or(cpus.first());
        first == Some(&cpu)
    }

    /// The state of a group; where only counts matter, the sums of averages are left out unless `all`.
    fn look_at(&self, cpus: &[usize], number: usize, domain: &Domain, all: bool) -> Group {
        let tally = self.map.tallies(domain)[number];
        let mut group = Group {
            number,
            cpus: cpus.len() as f64,
            load: 0.0,
            util: 0.0,
            runnable: 0.0,
            threads: tally.threads,
            idle: tally.idle,
            crowded: tally.crowded > 0,
            fill: Fill::HasSpare,
        };
        // A group with fewer threads than CPUs has CPUs to spare, whatever the threads use.
        if all || group.threads >= cpus.len() {
            for &cpu in cpus {
                let it = &self.map.glances[cpu];
                group.load += it.load;
                group.runnable += it.runnable;
                group.util += it.util;
            }
            group.classify(domain.imbalance());
        }
        group
    }

    /// Looks at all groups of a domain.
    fn look_at_all(&self, domain: &Domain, local: usize, who: Who) -> Look {
        let (mut own, mut busiest) = (None, None::<Group>);
        let (mut load, mut util, mut overloaded) = (0.0, 0.0, false);
        let all = who != Who::NewlyIdle;
        for (number, cpus) in domain.groups.iter().enumerate() {
            let group = self.look_at(cpus, number, domain, all || number == local);
            load += group.load;
            util += group.util;
            overloaded |= group.crowded;
            if number == local {
                own = Some(group);
            } else if group.threads > 0 && busiest.is_none_or(|other| group.is_busier_than(&other))
            {
                busiest = Some(group);
            }
        }
        if !all && own.is_some_and(|own| own.fill != Fill::HasSpare) {
            // Here the load of all groups matters.
            let sum = |cpus: &Vec<usize>| -> f64 {
                cpus.iter()
                    .fold(0.0, |sum, &cpu| sum + self.map.glances[cpu].load)
            };
            load = domain.groups.iter().fold(0.0, |all, it| all + sum(it));
        }
        Look {
            own,
            busiest,
            load,
            util,
            overloaded,
        }
    }

    /// The same for a newly idle CPU in a domain whose groups are single CPUs: only CPUs with several threads
    /// matter, and these are few. `None`: the short way does not do, all groups have to be looked at.
    fn look_at_crowded(&self, domain: &Domain, local: usize, cpu: usize) -> Option<Look> {
        if domain.spreads || domain.groups.len() < domain.cpus || self.map.glances[cpu].threads > 0
        {
            return None;
        }
        let mut busiest = None::<Group>;
        let mut overloaded = false;
        for (number, tally) in self.map.tallies(domain).iter().enumerate() {
            if tally.crowded == 0 {
                continue;
            }
            overloaded = true;
            let group = self.look_at(&domain.groups[number], number, domain, true);
            if group.fill == Fill::Overloaded
                && busiest.is_none_or(|other| group.is_busier_than(&other))
            {
                busiest = Some(group);
            }
        }
        if overloaded && busiest.is_none() {
            return None;
        }
        Some(Look {
            own: Some(self.look_at(&domain.groups[local], local, domain, true)),
            busiest,
            load: 0.0,
            util: 0.0,
            overloaded,
        })
    }

    /// The group to move threads from, and how much to move of what (sched_balance_find_src_group).
    fn find_busiest(
        &mut self,
        domain: &Domain,
        local: usize,
        cpu: usize,
        who: Who,
    ) -> Option<(usize, Much)> {
        let crowded = match who {
            Who::NewlyIdle => self.look_at_crowded(domain, local, cpu),
            Who::Busy | Who::Idle => None,
        };
        let look = crowded.unwrap_or_else(|| self.look_at_all(domain, local, who));
        if domain.is_root {
            self.map.overloaded = look.overloaded;
        }
        let cpus = domain.cpus as f64;
        let cache = self.map.cache_mut(cpu);
        if who != Who::NewlyIdle && cache.cpus.len() == domain.cpus {
            let used = SCAN_PCT * look.util / cpus / 1024.0;
            cache.scan = (cpus * (1.0 - used * used).max(0.0)) as usize;
        }
        let (own, busiest) = (look.own?, look.busiest?);
        let average = look.load / cpus;
        if own.fill > busiest.fill {
            return None;
        }
        if own.fill == Fill::Overloaded
            && (own.density() >= busiest.density()
                || own.density() >= average
                || busiest.density() <= domain.imbalance() * own.density())
        {
            return None;
        }
        let spread =
            domain.spreads && own.fill == Fill::HasSpare && busiest.threads > own.threads + 1;
        if !spread
            && busiest.fill != Fill::Overloaded
            && (who == Who::Busy
                || busiest.cpus > 1.0 && own.idle <= busiest.idle + 1
                || busiest.threads == 1)
        {
            return None;
        }
        let much = imbalance(domain, &own, &busiest, average, who)?;
        Some((busiest.number, much))
    }

    /// The busiest queue of a group (sched_balance_find_src_rq).
    fn find_queue(
        &self,
        group: &[usize],
        cpu: usize,
        much: Much,
        not: Option<usize>,
    ) -> Option<usize> {
        let has = |other: usize| {
            let it = &self.map.glances[other];
            match much {
                Much::Threads(_) => Some(f64::from(it.threads)),
                Much::Load(most) => (it.threads > 1 || it.load <= most).then_some(it.load),
                Much::Util(_) => (it.threads > 1).then_some(it.util),
            }
        };
        let mut found = None;
        for &other in group {
            if other == cpu || Some(other) == not || self.cpus[other].tasks.is_empty() {
                continue;
            }
            if let Some(has) = has(other) {
                if found.is_none_or(|(most, _)| has > most) {
                    found = Some((has, other));
                }
            }
        }
        found.map(|(_, other)| other)
    }

    /// Moves threads that may move, are not cache-hot and not too much (detach_tasks); returns how many were
    /// moved, and whether no thread may run on the CPU.
    #[allow(clippy::too_many_arguments, reason = "one loop of the kernel's")]
    fn take_from(
        &mut self,
        machine: &mut Machine,
        domain: &Domain,
        busiest: usize,
        cpu: usize,
        much: Much,
        failed: u32,
        who: Who,
    ) -> (usize, bool) {
        let threads = self.cpus[busiest].tasks.len();
        if threads <= 1 {
            return (0, false);
        }
        let _ = self.update_current(machine, busiest);
        let (mut at, mut moved, mut all_pinned) = (0, 0, true);
        let mut left = much;
        for _ in 0..threads.min(MOST) {
            // An idle CPU does not take a queue's last thread.
            if who != Who::Busy && self.cpus[busiest].tasks.len() <= 1 {
                break;
            }
            let Some(&thread) = self.cpus[busiest].tasks.get(at) else {
                break;
            };
            at += 1;
            let it = &machine.threads[thread];
            if !it.may_use(CpuId(cpu as u32)) {
                continue;
            }
            all_pinned = false;
            let warm = domain.kind != Kind::Core
                && machine.now - self.tasks[thread].ran_at.min(machine.now) < WARM;
            if it.state != State::Ready || warm && failed <= domain.tries() {
                continue;
            }
            // The more often balancing failed, the larger a thread may be.
            let ease = (1u64 << failed.min(10)) as f64;
            let enough = |left: f64, has: f64| has / ease > left;
            left = match left {
                Much::Threads(left) => Much::Threads(left - 1.0),
                Much::Load(left) => {
                    self.advance_entity(machine.now, Id::Thread(thread));
                    let has = self.load_of(thread).max(1.0);
                    if enough(left, has) {
                        continue;
                    }
                    Much::Load(left - has)
                }
                Much::Util(left) => {
                    let task = &self.tasks[thread];
                    let has = task.entity.avg.util.max(task.expected);
                    if enough(left, has) {
                        continue;
                    }
                    Much::Util(left - has)
                }
            };
            self.migrate(machine, thread, cpu);
            moved += 1;
            // Another thread has taken the moved thread's place in the list.
            at -= 1;
            let (Much::Threads(rest) | Much::Load(rest) | Much::Util(rest)) = left;
            if who == Who::NewlyIdle || rest <= 0.0 {
                break;
            }
        }
        (moved, all_pinned)
    }

    /// Counts that nothing was moved; if that goes on, asks for the running thread of the busiest queue
    /// (active balancing).
    #[allow(clippy::too_many_arguments, reason = "the other half of the same")]
    fn moved_nothing(
        &mut self,
        machine: &mut Machine,
        domain: &Domain,
        busiest: usize,
        cpu: usize,
        level: usize,
        much: Much,
        who: Who,
    ) {
        let it = &mut self.cpus[cpu].balancing.levels[level];
        if who != Who::NewlyIdle {
            it.failed += 1;
        }
        let id = CpuId(busiest as u32);
        let runs = machine.cpu(id).current;
        let may = runs.is_some_and(|runs| machine.thread(runs).may_use(CpuId(cpu as u32)));
        if may && matches!(much, Much::Threads(_)) && it.failed > domain.tries() + 2 {
            it.failed = 0;
            self.cpus[busiest].balancing.push = Some(cpu);
            machine.kick(id);
        }
    }

    /// Moves the thread that ran, if another CPU has asked for it.
    pub(super) fn push(&mut self, machine: &mut Machine, cpu: usize, ran: usize) {
        let Some(to) = self.cpus[cpu].balancing.push.take() else {
            return;
        };
        if machine.threads[ran].may_use(CpuId(to as u32)) {
            self.migrate(machine, ran, to);
        }
    }
}

/// How much to move so that the two groups are even (calculate_imbalance); `None`: nothing.
fn imbalance(
    domain: &Domain,
    own: &Group,
    busiest: &Group,
    average: f64,
    who: Who,
) -> Option<Much> {
    if own.fill == Fill::HasSpare {
        let far = matches!(domain.kind, Kind::Socket | Kind::Machine);
        if busiest.fill == Fill::Overloaded && far {
            let room = (1024.0 * own.cpus - own.util).max(0.0);
            return if room > 0.0 {
                Some(Much::Util(room))
            } else {
                (who != Who::Busy).then_some(Much::Threads(1.0))
            };
        }
        let mut threads = if busiest.cpus == 1.0 || domain.spreads {
            busiest.threads.saturating_sub(own.threads)
        } else {
            own.idle.saturating_sub(busiest.idle)
        };
        if domain.kind == Kind::Machine && own.threads < domain.tolerates && threads <= 2 {
            threads = 0;
        }
        return (threads > 1).then_some(Much::Threads((threads / 2) as f64));
    }
    if own.fill < Fill::Overloaded
        && (own.density() >= busiest.density() || own.density() >= average)
    {
        return None;
    }
    let surplus = (busiest.density() - average) * busiest.cpus;
    let room = (average - own.density()) * own.cpus;
    let much = surplus.min(room);
    (much > 0.0).then_some(Much::Load(much))
}
