//! What is to happen when, in virtual time.

/// Virtual time, or a length of it, in nanoseconds.
pub type Nanos = u64;

/// Bits of a digit of a time, and how many values and digits there are.
const DIGIT: u32 = 6;
const VALUES: usize = 1 << DIGIT;
const DIGITS: usize = Nanos::BITS.div_ceil(DIGIT) as usize;
/// No entry.
const NONE: u32 = u32::MAX;

/// Events in the order of their time; those of the same time in the order in which they were planned, so that a
/// simulation has one course only.
///
/// Nothing is planned for before what was taken last, so nothing need be ordered that is far away yet. An entry's list
/// is that of the highest digit in which its time differs from the present (to the base of 64), and of its value there. The first entries are
/// those of the lowest digit's least value; when the present gets there, its list is distributed over the lists of lower
/// digits. So an entry is moved a few times, however many there are, while a heap takes more steps the more there are; and it is looked at
/// together with those of about the same time. Entries of the same time are always in one list, in their order.
#[derive(Debug)]
pub struct Events<E> {
    /// When the event was that was taken last.
    present: Nanos,
    entries: Vec<Entry<E>>,
    /// The first of the entries that are in no list.
    unused: u32,
    /// By digit and value.
    lists: Vec<List>,
    /// Which digits have lists that are not empty, and which lists these are.
    digits: u16,
    values: [u64; DIGITS],
}

#[derive(Debug)]
struct Entry<E> {
    at: Nanos,
    event: E,
    /// The one behind it.
    next: u32,
}

/// The first and the last entry of a list that is not empty.
#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

impl<E: Copy> Events<E> {
    /// None planned.
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

    /// Plans an event, for no earlier than what was taken last.
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

    /// Appends an entry that is the last of its list to the one that it belongs to.
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

    /// Takes the next one, if it is for no later than that.
    pub fn next_until(&mut self, end: Nanos) -> Option<(Nanos, E)> {
        if self.digits == 0 {
            return None;
        }
        let digit = self.digits.trailing_zeros() as usize;
        let value = self.values[digit].trailing_zeros() as usize;
        let place = digit * VALUES + value;
        let list = self.lists[place];
        // Of the lowest digit all are of one time.
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

    /// The first of the earliest from that entry on.
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

    /// Puts the entries from that one on into the lists that they now belong to, but for one.
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
