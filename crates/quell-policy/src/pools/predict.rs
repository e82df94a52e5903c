//! How many CPUs a guest needs next (UFO, section 4.5, Algorithms 3 and 4).
//!
//! Problem: the paper's algorithm changes the CPUs of a guest and waits, within the call that asks how
//! often it would switch.
//! Approach: the same, a second at a time. Known switch rates decide at once. An unknown rate is tried,
//! where utilization allows it: the trial holds for [`Settings::settle_ns`], and then stays or is taken
//! back.
//! Ours: no number of CPUs that would be used for more than [`Settings::most_used`] is chosen, whatever
//! the curves say (the paper says so of its heuristic only); a guest without figures of its own is judged
//! by that and [`Settings::spared_used`] alone; and where CPUs went back and forth under the same load,
//! the reason to change them once more has to last ([`super::steady`]).

use super::profile::Profile;
use super::steady::{Steady, Way};
use serde::Serialize;
use std::fmt;

/// The parameters of the decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// The time after a change in which no sample is taken, in ns.
    pub settle_ns: u64,
    /// The used part of each CPU above which more CPUs are given; no CPU is taken if the rest would
    /// exceed it.
    pub most_used: f64,
    /// The used part of each CPU below which no further CPU is tried.
    pub least_used: f64,
    /// For a guest without figures of its own: CPUs are taken where at most this part of each of the others
    /// would be used.
    pub spared_used: f64,
}

impl Default for Settings {
    /// The parameters of section 4.5 and appendix B.3.
    fn default() -> Settings {
        Settings {
            settle_ns: 3_000_000_000,
            most_used: 0.8,
            least_used: 0.4,
            spared_used: 0.7,
        }
    }
}

/// A guest's load in the last second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// CPU time, in CPUs.
    pub used: f64,
    /// The rate of its scheduler's context switches, per second; `None`: the guest does not report it.
    pub switches: Option<f64>,
}

/// The reason of a change of the number of CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "rule")]
pub enum Why {
    /// The guest used too large a part of each CPU.
    Full,
    /// The guest's curves show the number.
    Known,
    /// A trial: whether the guest's scheduler switches more often with more CPUs.
    TryMore,
    /// A trial: whether the guest's scheduler switches less often with fewer CPUs.
    TryFewer,
    /// A trial of more CPUs did not help.
    Back {
        /// The switch rate with fewer CPUs, as a part of that with more.
        part: f64,
    },
    /// A trial of fewer CPUs failed: with fewer, requests wait for each other.
    Again {
        /// The switch rate with fewer CPUs, as a part of that with more.
        part: f64,
    },
    /// The guest has no figures of its own, and uses little.
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

/// A trial of another number of CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Trial {
    from: u32,
    /// The switch rate before the trial, on `from` CPUs, per second.
    switches: f64,
}

/// A guest: its profile and its CPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct Guest {
    /// The number of its CPUs, a multiple of `step`.
    cpus: u32,
    /// The most CPUs that the guest can use, a multiple of `step`.
    most: u32,
    step: u32,
    profile: Profile,
    trial: Option<Trial>,
    /// The load that the guest is under.
    steady: Option<Steady>,
    /// The time before which no sample is taken.
    settled_ns: u64,
}

impl Guest {
    /// A guest that can use `most` CPUs, which come `step` at a time, and begins with all of them.
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

    /// Sets the number of CPUs that the guest can use.
    pub fn can_use(&mut self, most: u32) {
        self.most = most.div_ceil(self.step).max(1) * self.step;
        self.cpus = self.cpus.min(self.most);
        self.trial = self.trial.filter(|it| it.from <= self.most);
    }

    /// The number of its CPUs.
    pub fn cpus(&self) -> u32 {
        self.cpus
    }

    /// The most CPUs that the guest can use.
    #[cfg(test)]
    pub fn most(&self) -> u32 {
        self.most
    }

    /// The number of CPUs of a core.
    #[cfg(test)]
    pub fn step(&self) -> u32 {
        self.step
    }

    /// Makes the next second decide as if it was the first under its load.
    #[cfg(test)]
    pub fn forget_load(&mut self) {
        self.steady = None;
    }

    /// The guest's samples and curves.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Records that the guest has `cpus` now and had `before`, whatever was decided.
    pub fn has(&mut self, cpus: u32, before: u32, now_ns: u64, settings: &Settings) {
        if cpus == self.cpus {
            return;
        }
        self.cpus = cpus;
        // A trial that did not take place has no result.
        self.trial = None;
        self.settled_ns = match cpus == before {
            true => now_ns,
            false => now_ns + settings.settle_ns,
        };
    }

    /// Decides after a second: the number of CPUs from now on, and the reason; `None`: no change.
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
        // A second below the mean of its load is so by chance. Without the mean, half of the seconds would
        // ask for fewer CPUs where the mean is just above a limit.
        let used = match same {
            true => load.used.max(steady.used().min(f64::from(self.cpus))),
            false => load.used,
        };
        let wanted = self.wanted(load, used, settings);
        let way = wanted.and_then(|(to, _)| Way::between(self.cpus, to));
        // Under another load the need is met at once. A trial belongs to the same load, which may use more of
        // fewer CPUs; a trial without benefit is ended at once.
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

    /// The number of CPUs to have after a second of `load`, at the mean utilization `used`; changes only the
    /// profile and the trial.
    fn wanted(&mut self, load: Load, used: f64, settings: &Settings) -> Option<(u32, Why)> {
        let step = self.step;
        let part = |cpus: u32| used / f64::from(cpus.max(1));
        let full = |cpus: u32| part(cpus) > settings.most_used;
        let Some(switches) = load.switches else {
            return self.by_use(load.used, settings);
        };
        self.profile.add(self.cpus, load.used, switches);
        // The utilization at which curves are read: its rate at the present value is known now; at the
        // mean it may not be, which is no reason for a trial.
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
                // The direction that the trial has shown is not tried the other way in the same second.
                (true, false) => least = self.cpus,
                (false, true) => most = self.cpus,
            }
        } else if let Some(cpus) = self.known(at, settings) {
            return Some((cpus, Why::Known));
        }
        // More CPUs: first those that the utilization requires, then those that the switch rates show.
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
                    // A trial begins at the number of CPUs of its first sample.
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

    /// The number of CPUs whose curves' limits enclose the utilization, where these are known.
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

    /// The number of CPUs of a guest without figures of its own.
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
