//! What is to happen when, in virtual time.

/// Virtual time, or a length of it, in nanoseconds.
pub type Nanos = u64;

/// How many entries are below one of the heap: wider than two, it is less deep, and those below one lie together.
const WIDTH: usize = 4;

/// Events in the order of their time; those of the same time in the order in which they were planned, so that a
/// simulation has one course only.
#[derive(Debug)]
pub struct Events<E> {
    /// A heap: an entry comes before those below it, which are at `WIDTH * i + 1` and behind that.
    heap: Vec<Entry<E>>,
    planned: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry<E> {
    at: Nanos,
    number: u64,
    event: E,
}

impl<E> Entry<E> {
    fn before(&self, other: &Entry<E>) -> bool {
        (self.at, self.number) < (other.at, other.number)
    }
}

impl<E: Copy> Events<E> {
    /// None planned.
    pub fn new() -> Events<E> {
        Events {
            heap: Vec::new(),
            planned: 0,
        }
    }

    /// Plans an event.
    pub fn plan(&mut self, at: Nanos, event: E) {
        let entry = Entry {
            at,
            number: self.planned,
            event,
        };
        self.planned += 1;
        let mut place = self.heap.len();
        self.heap.push(entry);
        while place > 0 {
            let above = (place - 1) / WIDTH;
            if self.heap[above].before(&entry) {
                break;
            }
            self.heap[place] = self.heap[above];
            place = above;
        }
        self.heap[place] = entry;
    }

    /// Takes the next one, if it is for no later than that.
    pub fn next_until(&mut self, end: Nanos) -> Option<(Nanos, E)> {
        let first = *self.heap.first().filter(|first| first.at <= end)?;
        let last = self.heap.pop()?;
        let count = self.heap.len();
        // What was last sinks from the top.
        let mut place = 0;
        loop {
            let below = WIDTH * place + 1;
            let Some(below) = self.heap.get(below..count.min(below + WIDTH)) else {
                break;
            };
            let Some(least) =
                (0..below.len()).reduce(|a, b| if below[b].before(&below[a]) { b } else { a })
            else {
                break;
            };
            if !below[least].before(&last) {
                break;
            }
            self.heap[place] = below[least];
            place = WIDTH * place + 1 + least;
        }
        if count > 0 {
            self.heap[place] = last;
        }
        Some((first.at, first.event))
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

    #[test]
    fn whatever_is_planned_comes_out_in_order() {
        let (mut events, mut number) = (Events::new(), 1u64);
        let mut expected = Vec::new();
        let mut got = Vec::new();
        for round in 0..2000u32 {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = u64::from(round) + (number >> 56);
            events.plan(at, round);
            expected.push((at, round));
            if round % 3 == 0 {
                got.extend(events.next_until(u64::from(round)));
            }
        }
        got.extend(std::iter::from_fn(|| events.next_until(u64::MAX)));
        expected.sort_unstable();
        // Those taken early were the first then, and nothing earlier came later.
        assert_eq!(got, expected);
    }
}
