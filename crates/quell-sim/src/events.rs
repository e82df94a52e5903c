//! What is to happen when, in virtual time.

/// Virtual time, or a length of it, in nanoseconds.
pub type Nanos = u64;

/// How many entries are below one of the heap: wider than two, it is less deep, and those below one lie together.
const WIDTH: usize = 4;

/// Events in the order of their time; those of the same time in the order in which they were planned, so that a
/// simulation has one course only.
///
/// A heap: an entry comes before those below it, which are at `WIDTH * i + 1` and behind that. What it is ordered by lies
/// apart from the events, so that the keys below an entry fill one cache line.
#[derive(Debug)]
pub struct Events<E> {
    keys: Vec<Key>,
    events: Vec<E>,
    planned: u64,
}

/// When, and how many were planned before.
#[derive(Debug, Clone, Copy)]
struct Key {
    at: Nanos,
    number: u64,
}

impl Key {
    /// One comparison of one number, without a branch: which of two is first is anybody's guess, also the CPU's.
    fn before(self, other: Key) -> bool {
        let whole = |key: Key| u128::from(key.at) << 64 | u128::from(key.number);
        whole(self) < whole(other)
    }
}

/// Which of the entries below one is the first; none: there are none.
fn first_below(keys: &[Key], below: usize) -> Option<usize> {
    if let Some([a, b, c, d]) = keys.get(below..below + WIDTH) {
        let (ab, cd) = (usize::from(b.before(*a)), usize::from(d.before(*c)) + 2);
        let cd_first = keys[below + cd].before(keys[below + ab]);
        return Some(below + ab + usize::from(cd_first) * (cd - ab));
    }
    (below..keys.len()).reduce(|a, b| if keys[b].before(keys[a]) { b } else { a })
}

impl<E: Copy> Events<E> {
    /// None planned.
    pub fn new() -> Events<E> {
        Events {
            keys: Vec::new(),
            events: Vec::new(),
            planned: 0,
        }
    }

    /// Plans an event.
    pub fn plan(&mut self, at: Nanos, event: E) {
        let number = self.planned;
        let key = Key { at, number };
        self.planned += 1;
        let mut place = self.keys.len();
        self.keys.push(key);
        self.events.push(event);
        while place > 0 {
            let above = (place - 1) / WIDTH;
            if self.keys[above].before(key) {
                break;
            }
            self.keys[place] = self.keys[above];
            self.events[place] = self.events[above];
            place = above;
        }
        self.keys[place] = key;
        self.events[place] = event;
    }

    /// Takes the next one, if it is for no later than that.
    pub fn next_until(&mut self, end: Nanos) -> Option<(Nanos, E)> {
        let first = *self.keys.first().filter(|first| first.at <= end)?;
        let event = *self.events.first()?;
        let (last, last_event) = (self.keys.pop()?, self.events.pop()?);
        if self.keys.is_empty() {
            return Some((first.at, event));
        }
        // What was last sinks from the top.
        let mut place = 0;
        while let Some(below) = first_below(&self.keys, WIDTH * place + 1) {
            if !self.keys[below].before(last) {
                break;
            }
            self.keys[place] = self.keys[below];
            self.events[place] = self.events[below];
            place = below;
        }
        self.keys[place] = last;
        self.events[place] = last_event;
        Some((first.at, event))
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
