//! Whether a load is still the same, and how long the wish for another number of CPUs must last.
//!
//! Problem: the paper's curves are exact for the samples they were fitted through, but a guest's figures
//! are never twice the same. Where its load is about a limit (80 % of its CPUs, 70 % of the switches)
//! each second is on another side of it, and its CPUs change every few seconds.
//! Approach: under the same load CPUs go one way and back at once. Each time that they went back over the
//! same limit, a decision to cross it again (except at the end of a trial) has to hold for twice as many
//! seconds in a row: a chance deviation seldom does, and a real need always does. This is the same both
//! ways, so that no guest rests with more CPUs than it needs, nor with fewer, because of one second's
//! deviation. A decision for more CPUs waits for at most `UP_MOST` seconds; one for fewer waits longer
//! than that only where fewer CPUs did not suffice for as long. Another load is served at once, and
//! resets the count.
//!
//! # Limits
//! A load that changes every second or two is followed from second to second, as without this.

use std::collections::BTreeMap;

/// The difference up to which loads are the same, as a part of the CPUs.
const SAME: f64 = 0.1;
/// The number of seconds in a row that make another load: one second may be off by chance.
const OTHER: u32 = 2;
/// The number of seconds that the mean of the load covers.
const MEAN: f64 = 16.0;
/// The used part of the CPUs from which on the guest may want more than is seen, so that the second does
/// not count in the mean.
const ALL: f64 = 0.99;
/// The most seconds in a row for which a decision for more CPUs waits.
const UP_MOST: u32 = 8;
/// The most seconds in a row for which a decision for fewer CPUs waits.
const DOWN_MOST: u32 = 128;

/// A steady load, and the history of changes of CPUs under it.
#[derive(Debug, Clone, PartialEq)]
pub struct Steady {
    /// The mean CPU time over the last seconds, in CPUs.
    used: f64,
    seconds: f64,
    /// The number of seconds in a row with another load.
    other: u32,
    /// The switch rate of the guest's scheduler in the second before, on as many CPUs.
    switches: Option<f64>,
    /// The number of CPUs in the second before.
    cpus: u32,
    /// The number of seconds in a row in which more CPUs were wanted, or fewer.
    run: Option<(Way, u32)>,
    /// By the smaller of two neighbouring numbers: the way of the last change between them, and how often
    /// CPUs went back.
    limits: BTreeMap<u32, (Way, u32)>,
}

/// The direction of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To more CPUs.
    Up,
    /// To fewer CPUs.
    Down,
}

impl Way {
    /// The way from one number of CPUs to another; `None`: they are equal.
    pub fn between(from: u32, to: u32) -> Option<Way> {
        match from.cmp(&to) {
            std::cmp::Ordering::Less => Some(Way::Up),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(Way::Down),
        }
    }
}

impl Steady {
    /// A load of which one second was seen, on `cpus` CPUs.
    pub fn new(used: f64, cpus: u32) -> Steady {
        Steady {
            used,
            seconds: 1.0,
            other: 0,
            switches: None,
            cpus,
            run: None,
            limits: BTreeMap::new(),
        }
    }

    /// Advances by a second, on CPUs that come `step` at a time; returns whether the load was the same. If it
    /// was not, a decision of this second is no evidence about the same load.
    pub fn second(&mut self, used: f64, cpus: u32, step: u32) -> bool {
        self.now_has(cpus, step);
        let all = f64::from(cpus);
        if (used - self.used.min(all)).abs() <= SAME * all {
            self.other = 0;
            self.seconds = MEAN.min(self.seconds + 1.0);
            if used < ALL * all {
                self.used += (used - self.used) / self.seconds;
            }
            return true;
        }
        self.other += 1;
        (self.switches, self.run) = (None, None);
        if self.other >= OTHER {
            *self = Steady::new(used, cpus);
        }
        false
    }

    /// The mean CPU time under the load, in CPUs.
    pub fn used(&self) -> f64 {
        self.used
    }

    /// The switch rate as the mean with the second before: a rate that is off by chance in one second would
    /// be compared with for as long as the guest has another number of CPUs.
    pub fn switches(&mut self, now: f64) -> f64 {
        let mean = self.switches.map_or(now, |before| (before + now) / 2.0);
        self.switches = Some(mean);
        mean
    }

    /// Whether the present wish for more or fewer CPUs, under the same load, has lasted long enough.
    pub fn sure(&mut self, way: Option<Way>, step: u32) -> bool {
        let before = self.run.filter(|it| Some(it.0) == way);
        let seconds = before.map_or(1, |it| it.1.saturating_add(1));
        self.run = way.map(|way| (way, seconds));
        let (limit, most) = match way {
            None => return false,
            Some(Way::Up) => (self.cpus, UP_MOST),
            Some(Way::Down) => (self.cpus.saturating_sub(step), DOWN_MOST),
        };
        let turns = self.limits.get(&limit).map_or(0, |it| it.1);
        seconds >= 1_u32.checked_shl(turns).unwrap_or(most).min(most)
    }

    /// Records the number of CPUs, which may have changed since the second before: as was wanted, or because
    /// other guests needed them.
    fn now_has(&mut self, cpus: u32, step: u32) {
        let before = std::mem::replace(&mut self.cpus, cpus);
        let Some(way) = Way::between(before, cpus) else {
            return;
        };
        self.switches = None;
        if self.run.take().is_none_or(|it| it.0 != way) {
            return;
        }
        for limit in (before.min(cpus)..before.max(cpus)).step_by(step as usize) {
            let (last, turns) = self.limits.entry(limit).or_insert((way, 0));
            if *last != way {
                (*last, *turns) = (way, *turns + 1);
            }
        }
    }
}
