//! A limit on how often a message is logged.

use std::time::{Duration, Instant};

/// The least time between two messages.
const EVERY: Duration = Duration::from_secs(10);

/// The limit of one message.
#[derive(Debug, Default)]
pub struct RateLimit {
    last: Option<Instant>,
    suppressed: u64,
}

impl RateLimit {
    /// If the message may be logged now: how many times it was suppressed since the last time.
    pub fn now(&mut self) -> Option<u64> {
        self.at(Instant::now())
    }

    fn at(&mut self, now: Instant) -> Option<u64> {
        if self
            .last
            .is_some_and(|last| now.duration_since(last) < EVERY)
        {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_and_later_how_many_were_not() {
        let mut limit = RateLimit::default();
        let start = Instant::now();
        assert_eq!(limit.at(start), Some(0));
        assert_eq!(limit.at(start + EVERY / 3), None);
        assert_eq!(limit.at(start + EVERY / 2), None);
        assert_eq!(limit.at(start + EVERY), Some(2));
        assert_eq!(limit.at(start + EVERY * 2), Some(0));
    }
}
