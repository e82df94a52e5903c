//! What is to happen when, in virtual time.

/// Virtual time, or a length of it, in nanoseconds.
pub type Nanos = u64;

/// How many entries are below one of the heap: wider than two, it is less deep, and those below one lie together.
const WIDTH: usize = 4;
/// The first entry's place. Those below the one at place `i` are the block `i - FIRST + 1`, from `WIDTH` times that on.
const FIRST: usize = WIDTH - 1;

/// Events in the order of their time; those of the same time in the order in which they were planned, so that a
/// simulation has one course only.
///
/// A heap: an entry comes before those below it. What it is ordered by lies apart from the events, so that the keys below
/// an entry are one cache line, which has no gaps but for keys that come after all others.
#[derive(Debug)]
pub struct Events<E> {
    keys: Vec<Block>,
    /// By place, from [`FIRST`] on.
    events: Vec<E>,
    planned: u64,
}

/// When, and how many were planned before.
#[derive(Debug, Clone, Copy)]
struct Key {
    at: Nanos,
    number: u64,
}

#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Block([Key; WIDTH]);

impl Key {
    const NEVER: Key = Key {
        at: Nanos::MAX,
        number: u64::MAX,
    };

    /// One comparison of one number, without a branch: which of two is first is anybody's guess, also the CPU's.
    fn before(self, other: Key) -> bool {
        let whole = |key: Key| u128::from(key.at) << 64 | u128::from(key.number);
        whole(self) < whole(other)
    }
}

impl Block {
    /// Which is the first, and its key.
    fn first(&self) -> (usize, Key) {
        let [a, b, c, d] = self.0;
        let (ab, cd) = (usize::from(b.before(a)), usize::from(d.before(c)) + 2);
        let first = ab + usize::from(self.0[cd].before(self.0[ab])) * (cd - ab);
        (first, self.0[first])
    }
}

impl<E: Copy> Events<E> {
    /// None planned.
    pub fn new() -> Events<E> {
        Events {
            keys: vec![Block([Key::NEVER; WIDTH])],
            events: Vec::new(),
            planned: 0,
        }
    }

    /// Plans an event.
    pub fn plan(&mut self, at: Nanos, event: E) {
        let number = self.planned;
        let key = Key { at, number };
        self.planned += 1;
        let mut place = self.events.len() + FIRST;
        self.events.push(event);
        if place / WIDTH == self.keys.len() {
            self.keys.push(Block([Key::NEVER; WIDTH]));
        }
        while place > FIRST {
            let above = place / WIDTH + FIRST - 1;
            let its = self.keys[above / WIDTH].0[above % WIDTH];
            if its.before(key) {
                break;
            }
            self.keys[place / WIDTH].0[place % WIDTH] = its;
            self.events[place - FIRST] = self.events[above - FIRST];
            place = above;
        }
        self.keys[place / WIDTH].0[place % WIDTH] = key;
        self.events[place - FIRST] = event;
    }

    /// Takes the next one, if it is for no later than that.
    pub fn next_until(&mut self, end: Nanos) -> Option<(Nanos, E)> {
        let event = *self.events.first()?;
        let first = self.keys[0].0[FIRST];
        if first.at > end {
            return None;
        }
        // What was last sinks from the top.
        let last_event = self.events.pop()?;
        let place = self.events.len() + FIRST;
        let gap = &mut self.keys[place / WIDTH].0[place % WIDTH];
        let last = std::mem::replace(gap, Key::NEVER);
        if place == FIRST {
            return Some((first.at, event));
        }
        let mut place = FIRST;
        while let Some(block) = self.keys.get(place - FIRST + 1) {
            let (which, key) = block.first();
            if !key.before(last) {
                break;
            }
            let below = WIDTH * (place - FIRST + 1) + which;
            self.keys[place / WIDTH].0[place % WIDTH] = key;
            self.events[place - FIRST] = self.events[below - FIRST];
            place = below;
        }
        self.keys[place / WIDTH].0[place % WIDTH] = last;
        self.events[place - FIRST] = last_event;
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
