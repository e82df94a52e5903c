//! Scheduling entities, and the queues in which they wait.
//!
//! An entity is a thread, or a group's entity on one CPU. A queue is a group's on a CPU (the root group's is
//! the CPU's own); a group's entity is in the queue of the group's parent, and is picked for the threads
//! below it. The running entity is not in the sorted order, but counts for sums and averages.
//!
//! Queues are sorted vectors: CFS sorts by virtual time, EEVDF by virtual deadline. A few to a few hundred
//! entries of 32 bytes are moved in less time than the nodes of a tree are found, and nothing is allocated
//! once a vector has its size.

use super::pelt::Pelt;
use crate::events::Nanos;

/// The weight of nice 0: 1024, times 1024 for precision (as the kernel's scale_load).
pub const NICE_0: u64 = 1 << 20;

/// A weight without the extra precision, at least 2 (scale_load_down); 0 stays 0.
pub fn down(weight: u64) -> u64 {
    if weight == 0 {
        0
    } else {
        (weight >> 10).max(2)
    }
}

/// CPU time, in ns, as virtual time of an entity of this weight (calc_delta_fair).
pub fn virtually(time: Nanos, weight: u64) -> i64 {
    if weight == NICE_0 {
        time as i64
    } else {
        (u128::from(time) * u128::from(NICE_0) / u128::from(weight.max(1))) as i64
    }
}

/// A queue's number: group x CPUs + CPU.
pub type QueueId = usize;

/// An entity: a thread's, or a queue's entity in the parent's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Id {
    Thread(usize),
    Queue(QueueId),
}

/// The scheduling state of an entity.
#[derive(Debug, Clone, Default)]
pub struct Entity {
    /// The weight, with the extra precision.
    pub weight: u64,
    /// EEVDF's slice, in ns; of a group's entity, the shortest slice in its queue.
    pub slice: Nanos,
    /// The entity is a thread of the idle policy.
    pub idle: bool,
    /// The virtual time.
    pub vruntime: i64,
    /// EEVDF: the virtual deadline.
    pub deadline: i64,
    /// EEVDF: the lag, in virtual time, when the entity left its queue; positive: it is owed service.
    pub vlag: i64,
    /// The virtual time up to which the running entity is not preempted while it is eligible (RUN_TO_PARITY).
    pub protected: i64,
    /// The entity is in its queue, running or not.
    pub queued: bool,
    /// The entity sleeps, but stays in its queue until it is eligible (DELAY_DEQUEUE).
    pub delayed: bool,
    /// The deadline is relative to the virtual time, as it is while the entity moves between queues.
    pub relative: bool,
    /// The CPU time so far, in ns.
    pub ran: Nanos,
    /// The value of `ran` when the entity was last picked.
    pub ran_before: Nanos,
    /// The entity's averages.
    pub avg: Pelt,
}

impl Entity {
    /// The entity's part of its queue's load.
    pub fn load(&self) -> f64 {
        self.avg.load * down(self.weight) as f64
    }
}

/// An entity that waits in a queue.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// The virtual time (CFS) or the virtual deadline (EEVDF), by which the queue is sorted.
    pub key: i64,
    /// The entity's virtual time.
    pub vruntime: i64,
    /// The entity's weight, without the extra precision.
    pub weight: i64,
    /// The entity.
    pub id: Id,
}

/// A queue of entities: those of a group on a CPU.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    /// The number of the group.
    pub group: usize,
    /// The number of the CPU.
    pub cpu: usize,
    /// The queue of the group's parent on this CPU; `None` for the root group's.
    pub parent: Option<QueueId>,
    /// The group's entity in the parent's queue.
    pub entity: Entity,
    /// The sum of the entities' weights, with the extra precision.
    pub weight: u64,
    /// The number of entities, the running one included.
    pub entities: u32,
    /// The number of threads below the queue that run or wait.
    pub runnable: u32,
    /// The entities that wait, in order.
    pub waiting: Vec<Waiting>,
    /// The entity that runs, or that ran and has not been put back yet.
    pub current: Option<Id>,
    /// The buddy that was woken last, or that belongs to the group to go on with; preferred if that is fair.
    pub next: Option<Id>,
    /// CFS: the buddy that was preempted last; preferred if that is fair.
    pub last: Option<Id>,
    /// CFS: the least virtual time, from which joining entities are placed; it never decreases. EEVDF: the
    /// virtual time of the last entity that left the queue empty.
    pub min_vruntime: i64,
    /// Sums over the waiting entities: of weights, and of weights times virtual times.
    sum: i64,
    sum_v: i128,
    /// The queue's averages.
    pub avg: Pelt,
    /// The load that the queue has published to its group.
    pub counted: f64,
    /// When the queue last published its load.
    pub counted_at: Nanos,
    /// The queue is in its CPU's `listed`.
    pub listed: bool,
}

impl Queue {
    /// Inserts a waiting entity in order.
    pub fn insert(&mut self, it: Waiting) {
        let at = self.waiting.partition_point(|other| other.key <= it.key);
        self.waiting.insert(at, it);
        self.sum += it.weight;
        self.sum_v += i128::from(it.weight) * i128::from(it.vruntime);
    }

    /// Takes out a waiting entity that has this key.
    pub fn remove(&mut self, id: Id, key: i64) {
        let first = self.waiting.partition_point(|other| other.key < key);
        let found = self.waiting[first..].iter().position(|it| it.id == id);
        debug_assert!(found.is_some(), "it waits");
        if let Some(found) = found {
            let it = self.waiting.remove(first + found);
            self.sum -= it.weight;
            self.sum_v -= i128::from(it.weight) * i128::from(it.vruntime);
        }
    }

    /// The sums of weights and of weighted virtual times over all entities; `current` is the running one.
    fn sums(&self, current: Option<&Entity>) -> (i128, i128) {
        let (sum, sum_v) = (i128::from(self.sum), self.sum_v);
        match current.filter(|current| current.queued) {
            Some(current) => {
                let weight = down(current.weight) as i128;
                (sum + weight, sum_v + weight * i128::from(current.vruntime))
            }
            None => (sum, sum_v),
        }
    }

    /// The sum of the entities' weights, without the extra precision.
    pub fn total(&self, current: Option<&Entity>) -> i64 {
        self.sums(current).0 as i64
    }

    /// The weighted average of virtual times: EEVDF's V.
    pub fn average(&self, current: Option<&Entity>) -> i64 {
        let (sum, sum_v) = self.sums(current);
        if sum == 0 {
            self.min_vruntime
        } else {
            sum_v.div_euclid(sum) as i64
        }
    }

    /// Whether an entity at this virtual time is eligible, that is has lag of zero or more.
    pub fn eligible(&self, current: Option<&Entity>, vruntime: i64) -> bool {
        let (sum, sum_v) = self.sums(current);
        i128::from(vruntime) * sum <= sum_v
    }

    /// EEVDF's pick: the earliest deadline of the eligible entities. `current` is the entity that ran.
    pub fn earliest(&self, current: Option<(Id, &Entity)>) -> Option<Id> {
        let current = current.filter(|(_, entity)| entity.queued);
        if self.waiting.is_empty() {
            return current.map(|(id, _)| id);
        }
        let (sum, sum_v) = self.sums(current.map(|(_, entity)| entity));
        let eligible = |vruntime: i64| i128::from(vruntime) * sum <= sum_v;
        let current = current.filter(|(_, entity)| eligible(entity.vruntime));
        if let Some((id, entity)) = current {
            if entity.vruntime < entity.protected {
                return Some(id);
            }
        }
        let first = self.waiting.iter().find(|it| eligible(it.vruntime));
        match (current, first) {
            (Some((id, entity)), Some(first)) if entity.deadline < first.key => Some(id),
            (Some((id, _)), None) => Some(id),
            (_, first) => first.map(|it| it.id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(id: usize, key: i64, vruntime: i64, weight: i64) -> Waiting {
        Waiting {
            key,
            vruntime,
            weight,
            id: Id::Thread(id),
        }
    }

    #[test]
    fn the_earliest_deadline_among_the_eligible_goes_first() {
        let mut queue = Queue::default();
        queue.insert(waiting(0, 10, 9, 1024)); // ahead of the average: not eligible
        queue.insert(waiting(1, 12, 2, 1024));
        queue.insert(waiting(2, 11, 4, 1024));
        assert_eq!(queue.average(None), 5);
        assert_eq!(queue.earliest(None), Some(Id::Thread(2)));
        let mut current = Entity {
            weight: 2 * NICE_0,
            vruntime: -5,
            deadline: 11,
            protected: -5,
            queued: true,
            ..Entity::default()
        };
        // The running entity moves the average to 1, so that it is the only one that is eligible.
        assert_eq!(queue.average(Some(&current)), 1);
        let with = |current: &Entity| queue.earliest(Some((Id::Thread(3), current)));
        assert_eq!(with(&current), Some(Id::Thread(3)));
        (current.vruntime, current.deadline) = (3, 13);
        assert_eq!(with(&current), Some(Id::Thread(2)));
        current.protected = 4;
        assert_eq!(with(&current), Some(Id::Thread(3)));
        queue.remove(Id::Thread(2), 11);
        queue.remove(Id::Thread(1), 12);
        assert_eq!(queue.average(None), 9);
    }
}
