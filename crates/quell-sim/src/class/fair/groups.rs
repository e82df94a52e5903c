//! Weights of groups, and averages of load through all levels.
//!
//! A group's weight is shared out over the CPUs on which the group has load: on each CPU the group's entity
//! weighs `shares x load / (load of the group on all CPUs)`, at most all of it (calc_group_shares). The CPU's
//! own part of the sum is taken as of now (and at least the weight that is queued), the other CPUs' as last
//! published, which happens when a load has moved by more than 1/64. As load also decays while nothing is
//! queued, a thread that mostly sleeps makes its group's entity light on its CPU.
//!
//! Limits: when a thread moves, its load moves in the averages of its own group's queue only, and its
//! utilisation in those of the parents too; a parent's load follows as the group's entity is queued there.

use super::Fair;
use super::entity::{Entity, Id, NICE_0, Queue, QueueId, Waiting, down};
use crate::events::Nanos;
use crate::machine::Machine;

/// A group's published load may be off by this part of it.
const SLACK: f64 = 1.0 / 64.0;
/// The least weight of a group's entity.
const MIN_SHARES: u64 = 2;
/// The least time between two publications of a queue's load, in ns, since 6.7.
const PUBLISH_EVERY: Nanos = 1_000_000;

/// The weight and load of a group over all CPUs.
#[derive(Debug, Clone, Default)]
pub struct Shares {
    /// The group's weight, with the extra precision.
    weight: u64,
    /// The sum of the loads that the group's queues have published.
    load: f64,
}

impl Fair {
    /// Adds the state of groups and threads that are new since the last call.
    pub(super) fn grow(&mut self, machine: &Machine) {
        if self.tasks.len() == machine.threads.len() && self.groups.len() == machine.groups.len() {
            return;
        }
        if self.cpus.is_empty() {
            self.build(machine);
        }
        let cpus = self.cpus.len();
        for (group, it) in machine.groups.iter().enumerate().skip(self.groups.len()) {
            let weight = (u64::from(it.weight.0) * 1024 + 50) / 100;
            self.groups.push(Shares {
                weight: weight << 10,
                load: 0.0,
            });
            for cpu in 0..cpus {
                let parent = it.parent.map(|parent| parent.index() * cpus + cpu);
                let mut queue = Queue::default();
                (queue.group, queue.cpu, queue.parent) = (group, cpu, parent);
                queue.entity.weight = weight << 10;
                self.queues.push(queue);
            }
        }
        for it in &machine.threads[self.tasks.len()..] {
            let mut task = super::Task {
                queue: it.group.index() * cpus + it.cpu.0 as usize,
                ..Default::default()
            };
            task.recent = it.cpu.0 as usize;
            self.tasks.push(task);
        }
    }

    /// The state of an entity.
    pub(super) fn entity(&self, id: Id) -> &Entity {
        match id {
            Id::Thread(thread) => &self.tasks[thread].entity,
            Id::Queue(queue) => &self.queues[queue].entity,
        }
    }

    /// The state of an entity.
    pub(super) fn entity_mut(&mut self, id: Id) -> &mut Entity {
        match id {
            Id::Thread(thread) => &mut self.tasks[thread].entity,
            Id::Queue(queue) => &mut self.queues[queue].entity,
        }
    }

    /// The queue that an entity is or would be in; `None` for a CPU's own queue.
    pub(super) fn home(&self, id: Id) -> Option<QueueId> {
        match id {
            Id::Thread(thread) => Some(self.tasks[thread].queue),
            Id::Queue(queue) => self.queues[queue].parent,
        }
    }

    /// The running entity of a queue.
    pub(super) fn current(&self, queue: QueueId) -> Option<&Entity> {
        self.queues[queue].current.map(|id| self.entity(id))
    }

    /// The weighted average of a queue's virtual times.
    pub(super) fn average(&self, queue: QueueId) -> i64 {
        self.queues[queue].average(self.current(queue))
    }

    fn key(&self, entity: &Entity) -> i64 {
        if self.version.is_eevdf() {
            entity.deadline
        } else {
            entity.vruntime
        }
    }

    /// Inserts an entity into the waiting ones of a queue.
    pub(super) fn put_in(&mut self, queue: QueueId, id: Id) {
        let entity = self.entity(id);
        let waiting = Waiting {
            key: self.key(entity),
            vruntime: entity.vruntime,
            weight: down(entity.weight) as i64,
            id,
        };
        self.queues[queue].insert(waiting);
    }

    /// Takes an entity out of the waiting ones of a queue.
    pub(super) fn take_out(&mut self, queue: QueueId, id: Id) {
        let key = self.key(self.entity(id));
        self.queues[queue].remove(id, key);
    }

    /// Updates an entity's averages.
    pub(super) fn advance_entity(&mut self, now: Nanos, id: Id) {
        let Some(home) = self.home(id) else { return };
        let runs = self.queues[home].current == Some(id);
        let threads = match id {
            Id::Thread(thread) => {
                let entity = &self.tasks[thread].entity;
                u32::from(entity.queued && !entity.delayed)
            }
            Id::Queue(queue) => self.queues[queue].runnable,
        };
        let entity = self.entity_mut(id);
        let load = f64::from(u8::from(entity.queued));
        let util = if runs { 1024.0 } else { 0.0 };
        (entity.avg).advance(now, load, f64::from(threads) * 1024.0, util);
    }

    /// Updates a queue's averages, and what its group or the other CPUs see of them.
    pub(super) fn advance_queue(&mut self, now: Nanos, queue: QueueId) {
        let it = &mut self.queues[queue];
        let util = if it.current.is_some() { 1024.0 } else { 0.0 };
        let load = it.weight as f64 / 1024.0;
        it.avg
            .advance(now, load, f64::from(it.runnable) * 1024.0, util);
        if it.parent.is_none() {
            self.glance(queue);
        } else {
            self.publish(now, queue);
        }
    }

    fn publish(&mut self, now: Nanos, queue: QueueId) {
        let limited = self.version.is_eevdf();
        let it = &mut self.queues[queue];
        if it.parent.is_none() || limited && now < it.counted_at + PUBLISH_EVERY {
            return;
        }
        let moved = it.avg.load - it.counted;
        if moved.abs() > it.counted * SLACK {
            it.counted = it.avg.load;
            it.counted_at = now;
            self.groups[it.group].load += moved;
        }
    }

    /// Updates the averages of a CPU's queues with load left (update_blocked_averages); forgets a queue whose
    /// load is gone.
    pub(super) fn advance_blocked(&mut self, now: Nanos, cpu: usize) {
        let mut at = 0;
        while let Some(&queue) = self.cpus[cpu].listed.get(at) {
            self.advance_queue(now, queue);
            let it = &mut self.queues[queue];
            if it.entities == 0 && it.avg.is_gone() {
                it.listed = false;
                self.groups[it.group].load -= std::mem::take(&mut it.counted);
                self.cpus[cpu].listed.swap_remove(at);
            } else {
                at += 1;
            }
        }
        self.advance_queue(now, cpu);
    }

    /// Adds a group's queue to the CPU's queues with load left.
    pub(super) fn list(&mut self, queue: QueueId) {
        let it = &mut self.queues[queue];
        if it.parent.is_some() && !std::mem::replace(&mut it.listed, true) {
            self.cpus[it.cpu].listed.push(queue);
        }
    }

    /// Adds (1.0) or takes (-1.0) a thread's averages to or from its queue's.
    pub(super) fn attach(&mut self, now: Nanos, thread: usize, sign: f64) {
        self.advance_entity(now, Id::Thread(thread));
        let task = &self.tasks[thread];
        let (avg, load) = (task.entity.avg, task.entity.load());
        let mut queue = task.queue;
        self.advance_queue(now, queue);
        let it = &mut self.queues[queue].avg;
        it.load = (it.load + sign * load).max(0.0);
        loop {
            let it = &mut self.queues[queue].avg;
            it.util = (it.util + sign * avg.util).max(0.0);
            it.runnable = (it.runnable + sign * avg.runnable).max(0.0);
            self.publish(now, queue);
            let Some(parent) = self.queues[queue].parent else {
                return;
            };
            self.advance_entity(now, Id::Queue(queue));
            let own = &mut self.queues[queue];
            own.entity.avg.util = own.avg.util;
            own.entity.avg.runnable = own.avg.runnable;
            self.advance_queue(now, parent);
            queue = parent;
        }
    }

    /// The load of a thread on its CPU: its part of its group's part, on each level (task_h_load).
    pub(super) fn load_of(&self, thread: usize) -> f64 {
        let task = &self.tasks[thread];
        let mut load = task.entity.load();
        let mut queue = task.queue;
        while let Some(parent) = self.queues[queue].parent {
            let it = &self.queues[queue];
            load *= it.entity.load() / (it.avg.load + 1.0);
            queue = parent;
        }
        load
    }

    /// Updates the weight of a group's entity on a CPU (update_cfs_group).
    pub(super) fn update_share(&mut self, queue: QueueId) {
        let it = &self.queues[queue];
        if it.parent.is_none() || self.version.is_eevdf() && it.weight == 0 {
            return;
        }
        let group = &self.groups[it.group];
        let load = (it.weight as f64 / 1024.0).max(it.avg.load);
        let all = group.load - it.counted + load;
        let mut weight = group.weight as f64;
        if all > 0.0 {
            weight *= load / all;
        }
        let weight = (weight.round() as u64).clamp(MIN_SHARES, group.weight);
        if weight != it.entity.weight {
            self.reweigh(queue, weight);
        }
    }

    /// Changes the weight of a group's entity; under EEVDF the entity keeps its lag as service
    /// (reweight_entity).
    fn reweigh(&mut self, queue: QueueId, weight: u64) {
        let id = Id::Queue(queue);
        let Some(parent) = self.queues[queue].parent else {
            return;
        };
        let old = self.queues[queue].entity.weight;
        if !self.queues[queue].entity.queued {
            let entity = &mut self.queues[queue].entity;
            entity.weight = weight;
            if self.version.is_eevdf() {
                entity.vlag = scaled(entity.vlag, old, weight);
            }
            return;
        }
        let runs = self.queues[parent].current == Some(id);
        if !self.version.is_eevdf() {
            self.queues[queue].entity.weight = weight;
            self.queues[parent].weight = self.queues[parent].weight - old + weight;
            return;
        }
        let average = self.average(parent);
        let vlag = scaled(self.lag(parent, id), old, weight);
        if !runs {
            self.take_out(parent, id);
        }
        self.queues[parent].weight -= old;
        let keeps = self.version.keeps_protection();
        let entity = &mut self.queues[queue].entity;
        let rebase = |at: i64| average + scaled(at - average, old, weight);
        entity.weight = weight;
        let deadline = rebase(entity.deadline);
        if keeps {
            entity.vlag = vlag;
            if runs && entity.vruntime < entity.protected {
                entity.protected = rebase(entity.protected);
            }
        } else if deadline != entity.deadline {
            // Before 7.2 an entity is protected as long as its deadline does not change.
            entity.protected = i64::MIN;
        }
        entity.deadline = deadline;
        entity.vruntime = average - vlag;
        self.queues[parent].weight += weight;
        if !runs {
            self.put_in(parent, id);
        }
    }
}

/// A virtual time, or lag, of an entity whose weight changes.
fn scaled(time: i64, old: u64, new: u64) -> i64 {
    (i128::from(time) * i128::from(old) / i128::from(new.max(1))) as i64
}

/// A thread's weight, with the extra precision.
pub(super) fn weight_of(weight: quell_model::Weight) -> u64 {
    weight.0 * (NICE_0 / 1024) / 1000
}
