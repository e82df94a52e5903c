//! Entering and leaving queues, on all levels, and choosing what runs.
//!
//! CFS places who wakes at most half a latency behind the queue's least virtual time, and who is new a slice ahead of it.
//! EEVDF puts everybody back as far behind or ahead of the average as when it left (PLACE_LAG); what joins moves the
//! average itself by its lag, so that is scaled up to be left with it. Who sleeps while it is ahead stays in the queue
//! until it is not (DELAY_DEQUEUE), but nobody gets ahead by that (DELAY_ZERO). Groups' entities likewise.

use super::entity::{Entity, Id, QueueId, down, virtually};
use super::{Fair, TICK, Version, groups};
use crate::events::Nanos;
use crate::machine::{Machine, ThreadId};
use quell_scenario::ThreadPolicy;

/// How an entity comes to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Enter {
    New,
    Wakes,
    Moved,
}

impl Fair {
    /// Its slice in its virtual time.
    fn virtual_slice(&self, id: Id) -> i64 {
        let entity = self.entity(id);
        virtually(entity.slice, entity.weight)
    }

    /// The shortest slice in a queue.
    fn shortest_slice(&self, queue: QueueId) -> Nanos {
        let it = &self.queues[queue];
        let all = it.waiting.iter().map(|it| it.id).chain(it.current);
        all.map(|id| self.entity(id).slice)
            .min()
            .unwrap_or(self.slice)
    }

    /// How far an entity is behind the average, within what is kept.
    pub(super) fn lag(&self, queue: QueueId, id: Id) -> i64 {
        let entity = self.entity(id);
        let limit = match self.version {
            Version::Eevdf72 => entity.slice.max(self.slice) + TICK,
            _ => (2 * entity.slice).max(TICK),
        };
        let limit = virtually(limit, entity.weight);
        (self.average(queue) - entity.vruntime).clamp(-limit, limit)
    }

    /// Where an entity that joins begins.
    pub(super) fn place(&mut self, queue: QueueId, id: Id, new: bool) {
        if !self.version.is_eevdf() {
            let mut vruntime = self.queues[queue].min_vruntime;
            if new {
                let slice = self.cfs_slice(id);
                vruntime += virtually(slice, self.entity(id).weight);
            } else {
                vruntime -= (self.latency / 2) as i64;
            }
            let entity = self.entity_mut(id);
            entity.vruntime = entity.vruntime.max(vruntime);
            return;
        }
        let average = self.average(queue);
        let slice = self.virtual_slice(id);
        let it = &self.queues[queue];
        let (vlag, weight) = (self.entity(id).vlag, down(self.entity(id).weight));
        let mut lag = 0;
        if it.entities > 0 && vlag != 0 {
            let others = i128::from(it.total(self.current(queue))).max(1);
            lag = (i128::from(vlag) * (others + i128::from(weight)) / others) as i64;
        }
        let entity = self.entity_mut(id);
        entity.vruntime = average - lag;
        if std::mem::take(&mut entity.relative) {
            entity.deadline += entity.vruntime;
        } else {
            // A thread's first slice is half of one, to ease it into the competition.
            entity.deadline = entity.vruntime + if new { slice / 2 } else { slice };
        }
    }

    /// The thread, which is none's, joins its queue, and groups theirs.
    pub(super) fn enqueue(&mut self, machine: &Machine, thread: usize, how: Enter) {
        let now = machine.now;
        let mut id = Id::Thread(thread);
        let it = &machine.threads[thread];
        let entity = &mut self.tasks[thread].entity;
        entity.weight = groups::weight_of(it.weight());
        entity.slice = it.slice.unwrap_or(self.slice);
        entity.idle = it.policy == ThreadPolicy::Idle;
        self.has_slices |= it.slice.is_some();
        self.has_idle |= entity.idle;
        if !std::mem::replace(&mut self.tasks[thread].attached, true) {
            self.first_averages(now, thread);
            self.attach(now, thread, 1.0);
        }
        let cpu = self.queues[self.tasks[thread].queue].cpu;
        let mut how = how;
        let mut joins = true;
        while let Some(queue) = self.home(id) {
            self.advance_queue(now, queue);
            self.advance_entity(now, id);
            if joins && self.entity(id).queued {
                joins = false;
                if self.entity(id).delayed {
                    self.come_back(now, id);
                }
            }
            if let Id::Queue(own) = id {
                self.update_share(own);
                self.queues[own].entity.slice = match self.has_slices {
                    true => self.shortest_slice(own),
                    false => self.slice,
                };
            }
            if joins {
                if self.version.is_eevdf() || how != Enter::Moved {
                    self.place(queue, id, how == Enter::New);
                }
                let entity = self.entity_mut(id);
                entity.queued = true;
                let weight = entity.weight;
                let it = &mut self.queues[queue];
                it.weight += weight;
                it.entities += 1;
                self.put_in(queue, id);
                self.list(queue);
                how = Enter::Wakes;
            }
            self.queues[queue].runnable += 1;
            id = Id::Queue(queue);
        }
        self.joined(machine, cpu, thread);
    }

    /// What slept in its queue is wanted again.
    pub(super) fn come_back(&mut self, now: Nanos, id: Id) {
        let Some(queue) = self.home(id) else { return };
        self.advance_entity(now, id);
        let (lag, kept) = (self.lag(queue, id), self.lag_asleep(queue, id));
        // What 6.12 clamps stays where it is.
        let moves = if self.version.keeps_lag_asleep() {
            self.average(queue) - kept != self.entity(id).vruntime
        } else {
            lag > kept
        };
        if moves {
            let waits = self.queues[queue].current != Some(id);
            if waits {
                self.take_out(queue, id);
            }
            self.entity_mut(id).vlag = kept;
            self.queues[queue].entities -= 1;
            self.place(queue, id, false);
            self.queues[queue].entities += 1;
            if waits {
                self.put_in(queue, id);
            }
        }
        self.wakes_up(id);
    }

    /// The lag that is left to what slept in its queue.
    fn lag_asleep(&self, queue: QueueId, id: Id) -> i64 {
        let mut lag = self.lag(queue, id);
        if self.version.keeps_lag_asleep() && self.entity(id).delayed {
            lag = lag.max(self.entity(id).vlag);
        }
        lag.min(0)
    }

    /// It sleeps no more, or not in its queue.
    fn wakes_up(&mut self, id: Id) {
        let slept = std::mem::take(&mut self.entity_mut(id).delayed);
        if let (Id::Thread(thread), true) = (id, slept) {
            let cpu = self.queues[self.tasks[thread].queue].cpu;
            self.cpus[cpu].asleep -= 1;
        }
    }

    /// A thread that sleeps in its queue wakes.
    pub(super) fn wake_delayed(&mut self, machine: &Machine, thread: usize) {
        let now = machine.now;
        let mut id = Id::Thread(thread);
        self.come_back(now, id);
        while let Some(queue) = self.home(id) {
            self.advance_queue(now, queue);
            self.advance_entity(now, Id::Queue(queue));
            self.queues[queue].runnable += 1;
            id = Id::Queue(queue);
        }
        let cpu = self.queues[self.tasks[thread].queue].cpu;
        self.joined(machine, cpu, thread);
    }

    /// The thread leaves its queue, or stays there asleep.
    pub(super) fn dequeue(&mut self, machine: &Machine, thread: usize, sleeps: bool) {
        let id = Id::Thread(thread);
        if !self.entity(id).delayed {
            self.count_no_more(machine.now, thread, sleeps);
        }
        self.leave(machine.now, id, sleeps, false);
    }

    /// The thread, which ran, ends: it leaves its queue in any case (DEQUEUE_SPECIAL), and its load goes with
    /// it (task_dead_fair).
    pub(super) fn end(&mut self, machine: &Machine, thread: usize) {
        self.count_no_more(machine.now, thread, false);
        self.leave(machine.now, Id::Thread(thread), true, true);
        self.attach(machine.now, thread, -1.0);
    }

    fn count_no_more(&mut self, now: Nanos, thread: usize, sleeps: bool) {
        let mut id = Id::Thread(thread);
        let cpu = self.queues[self.tasks[thread].queue].cpu;
        while let Some(queue) = self.home(id) {
            self.advance_queue(now, queue);
            self.advance_entity(now, id);
            self.queues[queue].runnable -= 1;
            id = Id::Queue(queue);
        }
        self.left(cpu, thread, sleeps);
    }

    /// What slept in its queue until it was eligible leaves it.
    pub(super) fn finish(&mut self, now: Nanos, id: Id) {
        self.leave(now, id, true, true);
    }

    /// The entity leaves its queue, and so do those above that are left with nothing.
    fn leave(&mut self, now: Nanos, mut id: Id, mut sleeps: bool, mut finally: bool) {
        let mut leaves = true;
        while let Some(queue) = self.home(id) {
            self.advance_queue(now, queue);
            self.advance_entity(now, id);
            if leaves {
                let eligible = |fair: &Fair| {
                    let vruntime = fair.entity(id).vruntime;
                    fair.queues[queue].eligible(fair.current(queue), vruntime)
                };
                if self.version.is_eevdf() && sleeps && !finally && !eligible(self) {
                    self.entity_mut(id).vlag = self.lag(queue, id);
                    self.entity_mut(id).delayed = true;
                    leaves = false;
                    if matches!(id, Id::Thread(_)) {
                        // For the groups above nothing changes.
                        let cpu = self.queues[queue].cpu;
                        self.cpus[cpu].asleep += 1;
                        return;
                    }
                } else {
                    self.remove(queue, id, sleeps, finally);
                    // Next goes on with this group if it can.
                    if self.queues[queue].entities > 0 {
                        leaves = false;
                        if sleeps {
                            self.set_next(Id::Queue(queue));
                        }
                    }
                }
            } else if let Id::Queue(own) = id {
                self.update_share(own);
            }
            id = Id::Queue(queue);
            (sleeps, finally) = (true, false);
        }
    }

    fn remove(&mut self, queue: QueueId, id: Id, sleeps: bool, finally: bool) {
        if self.version.is_eevdf() {
            self.entity_mut(id).vlag = if finally || self.entity(id).delayed {
                self.lag_asleep(queue, id)
            } else {
                self.lag(queue, id)
            };
        }
        if self.queues[queue].current == Some(id) {
            self.queues[queue].current = None;
        } else {
            self.take_out(queue, id);
        }
        self.wakes_up(id);
        self.forget_next(id);
        let entity = self.entity_mut(id);
        entity.queued = false;
        let (weight, vruntime) = (entity.weight, entity.vruntime);
        let it = &mut self.queues[queue];
        it.weight -= weight;
        it.entities -= 1;
        it.last = it.last.filter(|&last| last != id);
        if !self.version.is_eevdf() {
            self.raise_min(queue);
        } else if it.entities == 0 {
            it.min_vruntime = vruntime;
        }
        if self.version.is_eevdf() && !sleeps {
            let entity = self.entity_mut(id);
            entity.deadline -= entity.vruntime;
            entity.relative = true;
        }
    }

    /// Brings CFS's least virtual time up to date.
    pub(super) fn raise_min(&mut self, queue: QueueId) {
        let current = self.current(queue).filter(|it| it.queued);
        let current = current.map(|it| it.vruntime);
        let it = &self.queues[queue];
        let first = it.waiting.first().map(|it| it.key);
        let least = [current, first].into_iter().flatten().min();
        let it = &mut self.queues[queue];
        it.min_vruntime = it.min_vruntime.max(least.unwrap_or(it.min_vruntime));
    }

    /// Prefers the entity and those above it at the next choice.
    pub(super) fn set_next(&mut self, mut id: Id) {
        while let Some(queue) = self.home(id) {
            if !self.entity(id).queued {
                return;
            }
            self.queues[queue].next = Some(id);
            id = Id::Queue(queue);
        }
    }

    /// The entity is not preferred any more, nor are those above that were for its sake.
    pub(super) fn forget_next(&mut self, mut id: Id) {
        while let Some(queue) = self.home(id).filter(|&it| self.queues[it].next == Some(id)) {
            self.queues[queue].next = None;
            id = Id::Queue(queue);
        }
    }

    /// Which entity of a queue is to run, with or without regard to whom to prefer.
    pub(super) fn first(&self, queue: QueueId, buddies: bool) -> Option<Id> {
        let it = &self.queues[queue];
        let current = it.current.map(|id| (id, self.entity(id)));
        if self.version.is_eevdf() {
            let buddy = it.next.filter(|_| buddies);
            let eligible = |id: &Id| {
                let entity = self.entity(*id);
                !entity.delayed
                    && it.entities > 1
                    && it.eligible(self.current(queue), entity.vruntime)
            };
            return (buddy.filter(eligible)).or_else(|| it.earliest(current));
        }
        let current = current.filter(|(_, entity)| entity.queued);
        let mut left = it.waiting.first().map(|it| (it.id, it.vruntime));
        if let Some((id, entity)) = current {
            if left.is_none_or(|(_, vruntime)| entity.vruntime < vruntime) {
                left = Some((id, entity.vruntime));
            }
        }
        let (id, _) = left?;
        let near = |buddy: &Id| !self.preempts(id, *buddy);
        let buddy = it.next.filter(near).or_else(|| it.last.filter(near));
        Some(buddy.unwrap_or(id))
    }

    /// CFS: whether an entity is so far behind another that it is to run instead.
    pub(super) fn preempts(&self, id: Id, other: Id) -> bool {
        let entity = self.entity(id);
        let behind = self.entity(other).vruntime - entity.vruntime;
        behind > virtually(self.wakeup_granularity, entity.weight)
    }

    /// Finds who is to run on a CPU: the entities from its own queue down, in `self.path`.
    pub(super) fn choose(&mut self, now: Nanos, cpu: usize) -> Option<usize> {
        self.path.clear();
        let mut queue = cpu;
        loop {
            let id = self.first(queue, true)?;
            if self.entity(id).delayed {
                self.finish(now, id);
                self.path.clear();
                queue = cpu;
                continue;
            }
            self.path.push(id);
            match id {
                Id::Thread(thread) => return Some(thread),
                Id::Queue(own) => queue = own,
            }
        }
    }

    /// What ran waits again, from that queue down.
    fn put_back(&mut self, now: Nanos, mut queue: QueueId) {
        while let Some(id) = self.queues[queue].current {
            self.advance_queue(now, queue);
            self.advance_entity(now, id);
            self.queues[queue].current = None;
            if self.entity(id).queued {
                self.put_in(queue, id);
            }
            match id {
                Id::Thread(_) => return,
                Id::Queue(own) => queue = own,
            }
        }
    }

    /// What was chosen runs: `self.path`, or nothing.
    pub(super) fn switch(&mut self, now: Nanos, cpu: usize) {
        let mut queue = cpu;
        let mut same = true;
        for at in 0..self.path.len() {
            let id = self.path[at];
            if same && self.queues[queue].current != Some(id) {
                same = false;
                self.put_back(now, queue);
            }
            if !same {
                self.advance_queue(now, queue);
                self.advance_entity(now, id);
                self.take_out(queue, id);
                self.forget_next(id);
                let it = &mut self.queues[queue];
                it.current = Some(id);
                it.last = it.last.filter(|&last| last != id);
                let protected = self.protection(queue, id);
                let entity = self.entity_mut(id);
                entity.protected = protected;
                entity.ran_before = entity.ran;
            }
            if let Id::Queue(own) = id {
                queue = own;
            }
        }
        if self.path.is_empty() {
            self.put_back(now, cpu);
        }
    }

    /// Until when in its virtual time an entity that is picked is not preempted: for its slice, since 7.2 for no longer than the
    /// shortest in its queue.
    fn protection(&self, queue: QueueId, id: Id) -> i64 {
        let entity = self.entity(id);
        if !self.has_slices || !self.version.is_precise() {
            return entity.deadline;
        }
        let shortest = self.shortest_slice(queue).min(entity.slice);
        match shortest < entity.slice {
            true => (entity.deadline).min(entity.vruntime + virtually(shortest, entity.weight)),
            false => entity.deadline,
        }
    }

    /// EEVDF: an entity that asks for a shorter slice than what runs, and has the earlier deadline, ends the protection of that.
    pub(super) fn cuts_short(&self, queue: QueueId, id: Id, current: Id) -> bool {
        let (entity, other) = (self.entity(id), self.entity(current));
        let eligible = |it: &Entity| self.queues[queue].eligible(self.current(queue), it.vruntime);
        entity.slice < other.slice
            && eligible(entity)
            && (entity.deadline < other.deadline || !eligible(other))
    }

    /// CFS: how long an entity may run before others have waited for long enough.
    pub(super) fn cfs_slice(&self, id: Id) -> Nanos {
        let entity = self.entity(id);
        let Some(mut queue) = self.home(id) else {
            return self.latency;
        };
        let cpu = self.queues[queue].cpu;
        let threads = u64::from(self.queues[cpu].runnable) + u64::from(!entity.queued);
        let mut slice = if threads > super::CFS_LATENCY_SLICES {
            threads * self.min_granularity
        } else {
            self.latency
        };
        let mut it = entity;
        loop {
            let own = &self.queues[queue];
            let all = own.weight + if it.queued { 0 } else { it.weight };
            slice = (u128::from(slice) * u128::from(it.weight) / u128::from(all.max(1))) as Nanos;
            match own.parent {
                Some(parent) => (it, queue) = (&own.entity, parent),
                None => return slice.max(self.min_granularity),
            }
        }
    }

    /// Moves a thread that is in no queue to a CPU.
    pub(super) fn move_to(&mut self, machine: &Machine, thread: usize, cpu: usize) {
        let from = self.tasks[thread].queue;
        let to = self.queues[from].group * self.cpus.len() + cpu;
        if from == to {
            return;
        }
        if self.tasks[thread].attached {
            self.attach(machine.now, thread, -1.0);
        }
        let offset = self.queues[to].min_vruntime - self.queues[from].min_vruntime;
        let task = &mut self.tasks[thread];
        task.queue = to;
        // It is cold there.
        task.ran_at = 0;
        if task.attached {
            if !self.version.is_eevdf() {
                task.entity.vruntime += offset;
            }
            self.attach(machine.now, thread, 1.0);
        }
    }

    /// Moves a thread that waits, or ran until now, to another CPU's queue.
    pub(super) fn migrate(&mut self, machine: &mut Machine, thread: usize, cpu: usize) {
        self.dequeue(machine, thread, false);
        self.move_to(machine, thread, cpu);
        if self.update_current(machine, cpu) {
            self.resched(machine, cpu);
        }
        self.enqueue(machine, thread, Enter::Moved);
        self.check_preempt(machine, thread);
    }

    pub(super) fn thread_id(thread: usize) -> ThreadId {
        ThreadId(thread as u32)
    }
}
