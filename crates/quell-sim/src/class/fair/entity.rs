//! What is scheduled, and the queues of it.
//!
//! An entity is a thread, or what a group has on one CPU. A queue is a group's on a CPU (the root group's: the CPU's
//! own); a group's entity stands in its parent's queue and is picked for the threads below it. What runs is out of the
//! order, but counts for averages.
//!
//! Queues are sorted vectors: CFS sorts by virtual time, EEVDF by virtual deadline. A few to a few hundred entries of 32
//! bytes are moved in less time than a tree's nodes are found, and nothing is allocated once they have their size.

use super::pelt::Pelt;
use crate::events::Nanos;

/// Weights are 1024 for nice 0, and 1024 times that for precision.
pub const NICE_0: u64 = 1 << 20;

/// A weight without the extra precision; never nothing.
pub fn down(weight: u64) -> u64 {
    if weight == 0 {
        0
    } else {
        (weight >> 10).max(2)
    }
}

/// CPU time in the virtual time of an entity of that weight.
pub fn virtually(time: Nanos, weight: u64) -> i64 {
    if weight == NICE_0 {
        time as i64
    } else {
        (u128::from(time) * u128::from(NICE_0) / u128::from(weight.max(1))) as i64
    }
}

/// A queue: group x CPUs + CPU.
pub type QueueId = usize;

/// An entity: a thread's, or the one that a queue has in its parent's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Id {
    Thread(usize),
    Queue(QueueId),
}

#[derive(Debug, Clone, Default)]
pub struct Entity {
    /// With extra precision.
    pub weight: u64,
    /// EEVDF's; of a group's the shortest of what is in it.
    pub slice: Nanos,
    /// A thread of the idle policy.
    pub idle: bool,
    pub vruntime: i64,
    pub deadline: i64,
    /// How far it was behind the average when it left a queue.
    pub vlag: i64,
    /// Until there it is not preempted as long as it is eligible.
    pub protected: i64,
    /// In its queue, running or not.
    pub queued: bool,
    /// It sleeps, but stays in the queue until it is eligible.
    pub delayed: bool,
    /// Its deadline is relative to its virtual time, as it is between queues.
    pub relative: bool,
    /// CPU time, and what it was when it was picked.
    pub ran: Nanos,
    pub ran_before: Nanos,
    pub avg: Pelt,
}

impl Entity {
    /// What it adds to its queue's load.
    pub fn load(&self) -> f64 {
        self.avg.load * down(self.weight) as f64
    }
}

/// An entity that waits in a queue.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// What the queue is sorted by.
    pub key: i64,
    pub vruntime: i64,
    pub weight: i64,
    pub id: Id,
}

#[derive(Debug, Clone, Default)]
pub struct Queue {
    pub group: usize,
    pub cpu: usize,
    pub parent: Option<QueueId>,
    /// Its own, in its parent.
    pub entity: Entity,
    /// Weights of its entities, with extra precision, and how many there are.
    pub weight: u64,
    pub entities: u32,
    /// Threads below it that run or could.
    pub runnable: u32,
    /// What waits, first the first.
    pub waiting: Vec<Waiting>,
    /// What runs, or ran and was not yet put back.
    pub current: Option<Id>,
    /// Whom to prefer if that is fair: who was woken last; who was preempted last.
    pub next: Option<Id>,
    pub last: Option<Id>,
    /// CFS: never goes back, new entities start from there. EEVDF: where the last one that left it was.
    pub min_vruntime: i64,
    /// Sums of those that wait: weights, weights x virtual times.
    sum: i64,
    sum_v: i128,
    pub avg: Pelt,
    /// What it adds to its group's load, and since when.
    pub counted: f64,
    pub counted_at: Nanos,
    /// It is among its CPU's queues whose averages are kept up to date.
    pub listed: bool,
}

impl Queue {
    pub fn insert(&mut self, it: Waiting) {
        let at = self.waiting.partition_point(|other| other.key <= it.key);
        self.waiting.insert(at, it);
        self.sum += it.weight;
        self.sum_v += i128::from(it.weight) * i128::from(it.vruntime);
    }

    /// Takes out what waits there with that key.
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

    /// Weights and weighted virtual times of all, with the running one's entity.
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

    /// The sum of its entities' weights, without the extra precision.
    pub fn total(&self, current: Option<&Entity>) -> i64 {
        self.sums(current).0 as i64
    }

    /// The weighted average of virtual times.
    pub fn average(&self, current: Option<&Entity>) -> i64 {
        let (sum, sum_v) = self.sums(current);
        if sum == 0 {
            self.min_vruntime
        } else {
            sum_v.div_euclid(sum) as i64
        }
    }

    /// Whether what stands there has got no more than its share.
    pub fn eligible(&self, current: Option<&Entity>, vruntime: i64) -> bool {
        let (sum, sum_v) = self.sums(current);
        i128::from(vruntime) * sum <= sum_v
    }

    /// EEVDF's choice. `current` is what ran, its entity with it.
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
        // It moves the average to 1, so that it is the only one that is eligible.
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
