//! Whether a load is still the same, and how sure it has to be that another number of CPUs is better.
//!
//! Problem: the paper's curves know what they were fitted through, but a guest's figures are never twice the same. Where its load is about a limit (80 % of
//! its CPUs, 70 % of the switches) each second is on another side of it, and its CPUs change every few seconds.
//! Approach: under the same load CPUs go one way and back at once. Each time that they went back over the same limit, what says that they
//! should cross it again (but for the end of a trial) has to say so for twice as many seconds in a row: chance seldom does, and what is so always does. Both ways alike, so that
//! nobody rests with more CPUs than it needs, nor with fewer, because of what a second was by chance. More wait for [`UP_MOST`] seconds at most; fewer wait
//! longer than that only where they did not suffice for as long. Another load needs at once what it needs, and forgets all of that.
//!
//! # Limits
//! A load that is another every second or two is followed from second to second, as without this.

use std::collections::BTreeMap;

/// Loads that differ by no more than that part of the CPUs are the same.
const SAME: f64 = 0.1;
/// It is another load after so many seconds in a row: one may be off by chance.
const OTHER: u32 = 2;
/// The load is the mean of about so many seconds.
const MEAN: f64 = 16.0;
/// From that part of the CPUs on more than what is seen may be wanted, so it is no load to take the mean of.
const ALL: f64 = 0.99;
/// So many seconds in a row are the most that more CPUs wait for,
const UP_MOST: u32 = 8;
/// and fewer.
const DOWN_MOST: u32 = 128;

/// A load that stays, and what came of changing CPUs under it.
#[derive(Debug, Clone, PartialEq)]
pub struct Steady {
    /// In CPUs, the mean of so many seconds.
    used: f64,
    seconds: f64,
    /// For so many seconds it was another.
    other: u32,
    /// How often the guest's scheduler switched in the second before, on as many CPUs.
    switches: Option<f64>,
    /// The CPUs it had then.
    cpus: u32,
    /// For so many seconds in a row more were wanted, or fewer.
    run: Option<(Way, u32)>,
    /// By the fewer of two neighbouring numbers: which way CPUs went from one to the other last, and how often back.
    limits: BTreeMap<u32, (Way, u32)>,
}

/// Where CPUs go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// They become more.
    Up,
    /// They become fewer.
    Down,
}

impl Way {
    /// From one number to another, if these differ.
    pub fn between(from: u32, to: u32) -> Option<Way> {
        match from.cmp(&to) {
            std::cmp::Ordering::Less => Some(Way::Up),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(Way::Down),
        }
    }
}

impl Steady {
    /// A load of which one second was seen, on so many CPUs.
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

    /// A second has passed, on CPUs that come `step` at a time; whether the load was the same. If it was not, whatever comes of it says nothing of
    /// the same load.
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

    /// What is used under it, in CPUs: the mean.
    pub fn used(&self) -> f64 {
        self.used
    }

    /// How often the guest's scheduler switched, as the mean with the second before: a second that is off by chance would be
    /// compared with for as long as the guest has another number of CPUs.
    pub fn switches(&mut self, now: f64) -> f64 {
        let mean = self.switches.map_or(now, |before| (before + now) / 2.0);
        self.switches = Some(mean);
        mean
    }

    /// Whether what is wanted now, under the same load, was wanted for long enough.
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

    /// CPUs may have changed since the second before: as was wanted, or because others needed them.
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
