//! Enqueueing and dequeueing on all levels, and picking the next entity.
//!
//! CFS places a waking entity at most half a latency behind the queue's least virtual time, and a new one a
//! slice ahead of it. EEVDF places an entity with the lag that it had when it left (PLACE_LAG); an entity
//! that joins moves the average itself by its lag, so the lag is scaled up to be what it was after the move.
//! An entity that sleeps with negative lag stays in the queue until it is eligible (DELAY_DEQUEUE), but does
//! not gain positive lag by that (DELAY_ZERO). The entities of groups are treated likewise.

use super::entity::{Entity, Id, QueueId, down, virtually};
use super::{Fair, TICK, Version, groups};
use crate::events::Nanos;
use crate::machine::{Machine, ThreadId};
use quell_scenario::ThreadPolicy;

/// How an entity joins a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Enter {
    New,
    Wakes,
    Moved,
}

impl Fair {
    /// An entity's slice, in its virtual time.
    fn virtual_slice(&self, id: Id) -> i64 {
        let entity = self.entity(id);
        virtually(entity.slice, entity.weight)
    }

    /// The shortest slice in a queue, in ns.
    fn shortest_slice(&self, queue: QueueId) -> Nanos {
        let it = &self.queues[queue];
        let all = it.waiting.iter().map(|it| it.id).chain(it.current);
        all.map(|id| self.entity(id).slice)
            .min()
            .unwrap_or(self.slice)
    }

    /// The lag of an entity in virtual time: how far it is behind the average, within the bounds that the
    /// version keeps.
    pub(super) fn lag(&self, queue: QueueId, id: Id) -> i64 {
        let entity = self.entity(id);
        let limit = match self.version {
            Version::Eevdf72 => entity.slice.max(self.slice) + TICK,
            _ => (2 * entity.slice).max(TICK),
        };
        let limit = virtually(limit, entity.weight);
        (self.average(queue) - entity.vruntime).clamp(-limit, limit)
    }

    /// Sets the virtual time, and under EEVDF the deadline, of an entity that joins a queue (place_entity).
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
            // The first slice of a new thread is half a slice, to ease it into the competition
            // (PLACE_DEADLINE_INITIAL).
            entity.deadline = entity.vruntime + if new { slice / 2 } else { slice };
        }
    }

    /// Enqueues a thread that is in no queue, and the entities of its groups that are in none
    /// (enqueue_task_fair).
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

    /// A delayed entity is wanted again: sets its lag and puts it in its place (requeue_delayed_entity).
    pub(super) fn come_back(&mut self, now: Nanos, id: Id) {
        let Some(queue) = self.home(id) else { return };
        self.advance_entity(now, id);
        let (lag, kept) = (self.lag(queue, id), self.lag_asleep(queue, id));
        // 6.12 leaves an entity where it is if its lag is not above the bound.
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

    /// The lag that a delayed entity keeps: not above zero, and since 7.2 not below what it was when the
    /// entity fell asleep.
    fn lag_asleep(&self, queue: QueueId, id: Id) -> i64 {
        let mut lag = self.lag(queue, id);
        if self.version.keeps_lag_asleep() && self.entity(id).delayed {
            lag = lag.max(self.entity(id).vlag);
        }
        lag.min(0)
    }

    /// Ends an entity's delay, because it wakes or leaves its queue.
    fn wakes_up(&mut self, id: Id) {
        let slept = std::mem::take(&mut self.entity_mut(id).delayed);
        if let (Id::Thread(thread), true) = (id, slept) {
            let cpu = self.queues[self.tasks[thread].queue].cpu;
            self.cpus[cpu].asleep -= 1;
        }
    }

    /// Wakes a delayed thread.
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

    /// Dequeues a thread, or leaves it there delayed (dequeue_task_fair).
    pub(super) fn dequeue(&mut self, machine: &Machine, thread: usize, sleeps: bool) {
        let id = Id::Thread(thread);
        if !self.entity(id).delayed {
            self.count_no_more(machine.now, thread, sleeps);
        }
        self.leave(machine.now, id, sleeps, false);
    }

    /// Ends a running thread: it leaves its queue in any case (DEQUEUE_SPECIAL), and its load goes with it
    /// (task_dead_fair).
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

    /// Dequeues a delayed entity, at the latest when it would be picked.
    pub(super) fn finish(&mut self, now: Nanos, id: Id) {
        self.leave(now, id, true, true);
    }

    /// Takes an entity out of its queue, or delays it; then likewise the groups' entities above it whose
    /// queues are empty.
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
                        // A delayed thread is still queued for the groups above it.
                        let cpu = self.queues[queue].cpu;
                        self.cpus[cpu].asleep += 1;
                        return;
                    }
                } else {
                    self.remove(queue, id, sleeps, finally);
                    // The next pick prefers this group, if that is fair (set_next_buddy).
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

    /// Updates CFS's least virtual time of a queue (update_min_vruntime).
    pub(super) fn raise_min(&mut self, queue: QueueId) {
        let current = self.current(queue).filter(|it| it.queued);
        let current = current.map(|it| it.vruntime);
        let it = &self.queues[queue];
        let first = it.waiting.first().map(|it| it.key);
        let least = [current, first].into_iter().flatten().min();
        let it = &mut self.queues[queue];
        it.min_vruntime = it.min_vruntime.max(least.unwrap_or(it.min_vruntime));
    }

    /// Makes an entity and the groups' entities above it the next buddies.
    pub(super) fn set_next(&mut self, mut id: Id) {
        while let Some(queue) = self.home(id) {
            if !self.entity(id).queued {
                return;
            }
            self.queues[queue].next = Some(id);
            id = Id::Queue(queue);
        }
    }

    /// Ends the preference for an entity, and for the groups' entities above it as far as they were preferred
    /// for it.
    pub(super) fn forget_next(&mut self, mut id: Id) {
        while let Some(queue) = self.home(id).filter(|&it| self.queues[it].next == Some(id)) {
            self.queues[queue].next = None;
            id = Id::Queue(queue);
        }
    }

    /// The entity of a queue to run; `buddies` says whether EEVDF considers the next buddy (CFS always does).
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

    /// CFS: whether an entity is so far behind another one that it preempts it (wakeup_preempt_entity).
    pub(super) fn preempts(&self, id: Id, other: Id) -> bool {
        let entity = self.entity(id);
        let behind = self.entity(other).vruntime - entity.vruntime;
        behind > virtually(self.wakeup_granularity, entity.weight)
    }

    /// Picks the thread that a CPU runs next; the entities from the CPU's own queue down are in `self.path`.
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

    /// Puts the entities that ran back into the order, from a queue down (put_prev_entity).
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

    /// Makes the picked entities the running ones (set_next_entity): those of `self.path`, or none.
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

    /// The virtual time up to which a picked entity is protected from preemption: the end of its slice; since
    /// 7.2 no later than after the shortest slice in its queue (set_protect_slice).
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

    /// EEVDF: whether an entity ends the protection of the running one: it has a shorter slice, is eligible,
    /// and has the earlier deadline or the running one is not eligible.
    pub(super) fn cuts_short(&self, queue: QueueId, id: Id, current: Id) -> bool {
        let (entity, other) = (self.entity(id), self.entity(current));
        let eligible = |it: &Entity| self.queues[queue].eligible(self.current(queue), it.vruntime);
        entity.slice < other.slice
            && eligible(entity)
            && (entity.deadline < other.deadline || !eligible(other))
    }

    /// CFS: an entity's slice in ns, its part of the period in which each thread runs once (sched_slice).
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
        // The thread's cache is cold on the new CPU.
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

    /// The simulation's number of a thread.
    pub(super) fn thread_id(thread: usize) -> ThreadId {
        ThreadId(thread as u32)
    }
}
