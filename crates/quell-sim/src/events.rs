//! The queue of future events, in virtual time.

/// A virtual time, or a length of virtual time, in ns.
pub type Nanos = u64;

/// The bits of a digit of a time, how many values a digit has, and how many digits a time has.
const DIGIT: u32 = 6;
const VALUES: usize = 1 << DIGIT;
const DIGITS: usize = Nanos::BITS.div_ceil(DIGIT) as usize;
/// The index of no entry.
const NONE: u32 = u32::MAX;

/// The future events in the order of their times; events of one time in the order in which they were planned,
/// so that a simulation is deterministic.
///
/// A radix heap. No event is planned for before the last one taken (the present), so events that are far away
/// need no order yet. Times are numbers to the base of 64. An entry is in the list of the highest digit in
/// which its time differs from the present, and of the value that its time has in this digit. The next events
/// are in the list of the least value of the lowest digit; when the present gets to a list, the list's
/// entries are distributed over the lists of lower digits. So an entry is moved a few times, however many
/// entries there are, while a binary heap's steps grow with their number; and an entry is touched together
/// with entries of about its time. Entries of one time are always in one list, in their order.
#[derive(Debug)]
pub struct Events<E> {
    /// The time of the last event taken.
    present: Nanos,
    entries: Vec<Entry<E>>,
    /// The first of the entries that are in no list.
    unused: u32,
    /// The lists, by digit and value.
    lists: Vec<List>,
    /// Bit mask of the digits that have lists that are not empty.
    digits: u16,
    /// By digit, the bit mask of its lists that are not empty, by value.
    values: [u64; DIGITS],
}

#[derive(Debug)]
struct Entry<E> {
    at: Nanos,
    event: E,
    /// The next entry of the list.
    next: u32,
}

/// The first and the last entry of a list that is not empty.
#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

impl<E: Copy> Events<E> {
    /// A queue without events.
    pub fn new() -> Events<E> {
        let empty = List {
            first: NONE,
            last: NONE,
        };
        Events {
            present: 0,
            entries: Vec::new(),
            unused: NONE,
            lists: vec![empty; DIGITS * VALUES],
            digits: 0,
            values: [0; DIGITS],
        }
    }

    /// Plans an event at a time, no earlier than that of the last event taken.
    pub fn plan(&mut self, at: Nanos, event: E) {
        debug_assert!(at >= self.present, "it would be too late");
        let next = NONE;
        let entry = Entry { at, event, next };
        let number = self.unused;
        if let Some(unused) = self.entries.get_mut(number as usize) {
            self.unused = unused.next;
            *unused = entry;
            self.put(number, at);
        } else {
            self.entries.push(entry);
            self.put(self.entries.len() as u32 - 1, at);
        }
    }

    /// Appends an entry, whose `next` is [`NONE`], to the list that it belongs to.
    fn put(&mut self, number: u32, at: Nanos) {
        let digit = ((at ^ self.present) | 1).ilog2() / DIGIT;
        let value = (at >> (digit * DIGIT)) as usize % VALUES;
        let digit = digit as usize;
        let list = &mut self.lists[digit * VALUES + value];
        let bit = 1 << value;
        if self.values[digit] & bit == 0 {
            self.values[digit] |= bit;
            self.digits |= 1 << digit;
            list.first = number;
        } else {
            self.entries[list.last as usize].next = number;
        }
        list.last = number;
    }

    /// Takes the next event and its time, if that is `end` at the latest.
    pub fn next_until(&mut self, end: Nanos) -> Option<(Nanos, E)> {
        if self.digits == 0 {
            return None;
        }
        let digit = self.digits.trailing_zeros() as usize;
        let value = self.values[digit].trailing_zeros() as usize;
        let place = digit * VALUES + value;
        let list = self.lists[place];
        // In a list of the lowest digit all entries are of one time.
        let first = if digit == 0 {
            list.first
        } else {
            self.earliest(list.first)
        };
        let Entry { at, event, next } = self.entries[first as usize];
        if at > end {
            return None;
        }
        self.present = at;
        if digit == 0 && next != NONE {
            self.lists[place].first = next;
        } else {
            self.values[digit] &= self.values[digit] - 1;
            if self.values[digit] == 0 {
                self.digits &= self.digits - 1;
            }
            if digit > 0 {
                self.distribute(list.first, first);
            }
        }
        self.entries[first as usize].next = self.unused;
        self.unused = first;
        Some((at, event))
    }

    /// The first of the earliest entries of a list from an entry on.
    fn earliest(&self, from: u32) -> u32 {
        let (mut first, mut at) = (from, self.entries[from as usize].at);
        let mut number = self.entries[from as usize].next;
        while let Some(entry) = self.entries.get(number as usize) {
            if entry.at < at {
                (first, at) = (number, entry.at);
            }
            number = entry.next;
        }
        first
    }

    /// Distributes the entries of a list from an entry on over the lists that they belong to now, without the
    /// entry `except`.
    fn distribute(&mut self, from: u32, except: u32) {
        let mut number = from;
        while let Some(entry) = self.entries.get_mut(number as usize) {
            let at = entry.at;
            let next = std::mem::replace(&mut entry.next, NONE);
            if number != except {
                self.put(number, at);
            }
            number = next;
        }
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
    fn looking_before_an_event_leaves_room_for_earlier_ones() {
        let mut events = Events::new();
        events.plan(1_000_000, 'b');
        assert_eq!(events.next_until(999_999), None);
        events.plan(999_999, 'a');
        events.plan(1_000_000, 'c');
        let order: Vec<_> = std::iter::from_fn(|| events.next_until(Nanos::MAX)).collect();
        assert_eq!(order, [(999_999, 'a'), (1_000_000, 'b'), (1_000_000, 'c')]);
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
            let at = u64::from(round) + ((number >> 56) << (number % 32));
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
