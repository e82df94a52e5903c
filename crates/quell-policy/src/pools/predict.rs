//! How many CPUs a guest needs next (UFO, section 4.5, Algorithms 3 and 4).
//!
//! Problem: the paper's algorithm changes the CPUs of a guest and waits, within the call that asks how often it would switch.
//! Approach: the same, a second at a time. What is known decides at once. What is not is tried, where utilization says that it may do: the
//! trial holds for [`Settings::settle_ns`], and then stays or is taken back.
//! Ours: no number of CPUs that would be used for more than [`Settings::most_used`] is chosen, whatever the curves say (the paper says so of its
//! heuristic only); a guest that says nothing is judged by that and [`Settings::spared_used`] alone; and where CPUs went back and forth under the same
//! load, what is to change them once more has to last ([`super::steady`]).

use super::profile::Profile;
use super::steady::{Steady, Way};
use serde::Serialize;
use std::fmt;

/// What decides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// For so long after a change nothing is measured, in ns.
    pub settle_ns: u64,
    /// Per CPU: more is given above that part, and nothing is taken where that would be exceeded.
    pub most_used: f64,
    /// Per CPU: no more is given where less than that part would be used.
    pub least_used: f64,
    /// Per CPU, of a guest that says nothing: CPUs are taken where no more than that part of the rest would be used.
    pub spared_used: f64,
}

impl Default for Settings {
    /// Those of section 4.5 and appendix B.3.
    fn default() -> Settings {
        Settings {
            settle_ns: 3_000_000_000,
            most_used: 0.8,
            least_used: 0.4,
            spared_used: 0.7,
        }
    }
}

/// What a guest did in the last second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// CPU time, in CPUs.
    pub used: f64,
    /// How often its scheduler switched, per second; `None`: it does not say.
    pub switches: Option<f64>,
}

/// Why a number of CPUs changes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "rule")]
pub enum Why {
    /// It used more than it should of each CPU.
    Full,
    /// Its curves say so.
    Known,
    /// To see whether its scheduler switches more with more CPUs.
    TryMore,
    /// To see whether it switches less with fewer.
    TryFewer,
    /// More CPUs did not help.
    Back {
        /// Switches with fewer, as a part of those with more.
        part: f64,
    },
    /// With fewer requests wait for each other.
    Again {
        /// Switches with fewer, as a part of those with more.
        part: f64,
    },
    /// It says nothing, and uses little.
    Spared,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: &f64| 100.0 * part;
        match self {
            Why::Full => f.write_str("uses too much of each CPU"),
            Why::Known => f.write_str("its curves say so"),
            Why::TryMore => f.write_str("to see whether its scheduler switches more often"),
            Why::TryFewer => f.write_str("to see whether its scheduler switches less often"),
            Why::Back { part } => write!(
                f,
                "with fewer CPUs its scheduler switched {:.0} % as often: enough",
                percent(part)
            ),
            Why::Again { part } => write!(
                f,
                "with fewer CPUs its scheduler switched only {:.0} % as often",
                percent(part)
            ),
            Why::Spared => {
                f.write_str("uses little of each CPU, and says nothing of its scheduler")
            }
        }
    }
}

/// What is tried.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Trial {
    from: u32,
    /// Switches there, per second.
    switches: f64,
}

/// A guest: what is known of it, and what it is on.
#[derive(Debug, Clone, PartialEq)]
pub struct Guest {
    /// Its CPUs, a multiple of `step`.
    cpus: u32,
    /// The most that it can use, likewise.
    most: u32,
    step: u32,
    profile: Profile,
    trial: Option<Trial>,
    /// The load that it is under.
    steady: Option<Steady>,
    /// Nothing is measured before.
    settled_ns: u64,
}

impl Guest {
    /// One that can use so many CPUs, which come `step` at a time, and begins with all of them.
    pub fn new(most: u32, step: u32, now_ns: u64, settings: &Settings) -> Guest {
        let step = step.max(1);
        let mut guest = Guest {
            cpus: u32::MAX,
            most: 0,
            step,
            profile: Profile::default(),
            trial: None,
            steady: None,
            settled_ns: now_ns + settings.settle_ns,
        };
        guest.can_use(most);
        guest
    }

    /// It can use so many CPUs.
    pub fn can_use(&mut self, most: u32) {
        self.most = most.div_ceil(self.step).max(1) * self.step;
        self.cpus = self.cpus.min(self.most);
        self.trial = self.trial.filter(|it| it.from <= self.most);
    }

    /// Its CPUs.
    pub fn cpus(&self) -> u32 {
        self.cpus
    }

    /// The most that it can use.
    #[cfg(test)]
    pub fn most(&self) -> u32 {
        self.most
    }

    /// CPUs of a core.
    #[cfg(test)]
    pub fn step(&self) -> u32 {
        self.step
    }

    /// The next second decides as if it was the first under its load.
    #[cfg(test)]
    pub fn forget_load(&mut self) {
        self.steady = None;
    }

    /// What is known of it.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// It has so many now, and had so many before, whatever was wanted.
    pub fn has(&mut self, cpus: u32, before: u32, now_ns: u64, settings: &Settings) {
        if cpus == self.cpus {
            return;
        }
        self.cpus = cpus;
        // A trial that did not take place says nothing.
        self.trial = None;
        self.settled_ns = match cpus == before {
            true => now_ns,
            false => now_ns + settings.settle_ns,
        };
    }

    /// A second has passed: how many CPUs it should have from now on, and why; `None`: as many as it has.
    pub fn next(&mut self, mut load: Load, now_ns: u64, settings: &Settings) -> Option<(u32, Why)> {
        if now_ns < self.settled_ns {
            return None;
        }
        let new = || Steady::new(load.used, self.cpus);
        let mut steady = self.steady.take().unwrap_or_else(new);
        let same = steady.second(load.used, self.cpus, self.step);
        if same {
            load.switches = load.switches.map(|now| steady.switches(now));
        }
        // A second below the mean of its load is so by chance. Half of them would ask for fewer CPUs where that mean is just above a limit.
        let used = match same {
            true => load.used.max(steady.used().min(f64::from(self.cpus))),
            false => load.used,
        };
        let wanted = self.wanted(load, used, settings);
        let way = wanted.and_then(|(to, _)| Way::between(self.cpus, to));
        // What another load needs it needs at once. A trial was of the same load, which may use more of fewer CPUs; what it showed to be of no use
        // goes on no longer.
        let ended = matches!(wanted, Some((_, Why::Again { .. } | Why::Back { .. })));
        let sure = match same || ended {
            true => steady.sure(way, self.step) || ended,
            false => true,
        };
        self.steady = Some(steady);
        let (to, why) = wanted.filter(|(to, _)| *to != self.cpus && sure)?;
        let tried = matches!(why, Why::TryMore | Why::TryFewer);
        self.trial = load.switches.filter(|_| tried).map(|switches| Trial {
            from: self.cpus,
            switches,
        });
        self.cpus = to;
        self.settled_ns = now_ns + settings.settle_ns;
        Some((to, why))
    }

    /// What to have after a second of that load, whose CPUs are as full as that utilization says, without changing anything but what is known.
    fn wanted(&mut self, load: Load, used: f64, settings: &Settings) -> Option<(u32, Why)> {
        let step = self.step;
        let part = |cpus: u32| used / f64::from(cpus.max(1));
        let full = |cpus: u32| part(cpus) > settings.most_used;
        let Some(switches) = load.switches else {
            return self.by_use(load.used, settings);
        };
        self.profile.add(self.cpus, load.used, switches);
        // Where curves are looked at: what was seen now is known, its mean may not be, and is no reason to try anything.
        let at = match self.profile.switches(self.cpus, used) {
            Some(_) => used,
            None => load.used,
        };
        let (mut least, mut most) = (step, self.most);
        if let Some(trial) = self.trial.take() {
            let (few, many) = match trial.from < self.cpus {
                true => (trial.switches, switches),
                false => (switches, trial.switches),
            };
            let part = few / many.max(f64::MIN_POSITIVE);
            let fewer = trial.from.min(self.cpus);
            let suffices = part >= self.profile.enough(fewer, at) && !full(fewer);
            match (trial.from < self.cpus, suffices) {
                (true, true) => return Some((trial.from, Why::Back { part })),
                (false, false) => return Some((trial.from, Why::Again { part })),
                // What it showed is not tried the other way in the same second.
                (true, false) => least = self.cpus,
                (false, true) => most = self.cpus,
            }
        } else if let Some(cpus) = self.known(at, settings) {
            return Some((cpus, Why::Known));
        }
        // More: first what it is too full for, then what switches say.
        let mut cpus = self.cpus;
        let mut why = Why::Known;
        while cpus + step <= most {
            if full(cpus) {
                why = Why::Full;
            } else {
                match self.profile.suffices(cpus, cpus + step, at) {
                    Some(true) => break,
                    Some(false) => {}
                    None if part(cpus + step) < settings.least_used => break,
                    // A trial begins where it was measured.
                    None if cpus > self.cpus => break,
                    None => return Some((cpus + step, Why::TryMore)),
                }
            }
            cpus += step;
        }
        if cpus > self.cpus {
            return Some((cpus, why));
        }
        while cpus - step >= least && !full(cpus - step) {
            match self.profile.suffices(cpus - step, cpus, at) {
                Some(true) => cpus -= step,
                Some(false) => break,
                None if cpus < self.cpus => break,
                None => return Some((cpus - step, Why::TryFewer)),
            }
        }
        Some((cpus, Why::Known))
    }

    /// The number between whose curves' limits the utilization is, where these are known.
    fn known(&self, used: f64, settings: &Settings) -> Option<u32> {
        let limit = |cpus: u32| match cpus {
            cpus if cpus >= self.most => Some(f64::INFINITY),
            cpus => {
                let full = settings.most_used * f64::from(cpus);
                Some(self.profile.most(cpus, cpus + self.step)?.min(full))
            }
        };
        let mut below = Some(0.0);
        let mut counts = (1..=self.most / self.step).map(|number| number * self.step);
        counts.find(|cpus| {
            let limit = limit(*cpus);
            let above = std::mem::replace(&mut below, limit).is_some_and(|below| below < used);
            above && limit.is_some_and(|limit| used <= limit)
        })
    }

    /// Of a guest that says nothing.
    fn by_use(&mut self, used: f64, settings: &Settings) -> Option<(u32, Why)> {
        self.trial = None;
        let part = |cpus: u32| used / f64::from(cpus.max(1));
        let mut cpus = self.cpus;
        while cpus + self.step <= self.most && part(cpus) > settings.most_used {
            cpus += self.step;
        }
        if cpus > self.cpus {
            return Some((cpus, Why::Full));
        }
        while cpus > self.step && part(cpus - self.step) <= settings.spared_used {
            cpus -= self.step;
        }
        Some((cpus, Why::Spared))
    }
}
