//! What is to happen when, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Virtual time, or a length of it, in nanoseconds.
pub type Nanos = u64;

/// Events in the order of their time; those of the same time in the order in which they were planned, so that a
/// simulation has one course only.
#[derive(Debug)]
pub struct Events<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    planned: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Nanos,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> Events<E> {
    /// None planned.
    pub fn new() -> Events<E> {
        Events {
            heap: BinaryHeap::new(),
            planned: 0,
        }
    }

    /// Plans an event.
    pub fn plan(&mut self, at: Nanos, event: E) {
        let number = self.planned;
        self.planned += 1;
        self.heap.push(Reverse(Entry { at, number, event }));
    }

    /// Takes the next one, if it is for no later than that.
    pub fn next_until(&mut self, end: Nanos) -> Option<(Nanos, E)> {
        if self.heap.peek()?.0.at > end {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        Some((entry.at, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_keep_their_order() {
        let mut events = Events::new();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            events.plan(at, event);
        }
        let order: Vec<_> = std::iter::from_fn(|| events.next_until(4)).collect();
        assert_eq!(order, [(1, 'a'), (2, 'b')]);
        let rest: Vec<_> = std::iter::from_fn(|| events.next_until(5)).collect();
        assert_eq!(rest, [(5, 'c'), (5, 'd')]);
    }
}
