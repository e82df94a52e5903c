//! How often a guest's scheduler switches, by its utilization and its CPUs: samples, and a curve through them.
//!
//! Problem: a host knows no latency of its guests. How often a guest's threads are scheduled in follows its load up to the point from which
//! requests wait for each other, and falls from there on: fewer switches on fewer CPUs mean that requests wait (UFO, section 3.3).
//! Approach: section 4.4 and Algorithm 2. The latest samples for each number of CPUs, a quadratic curve through them from three on, fitted
//! anew when what is seen is off it; and the greatest utilization that a number of CPUs sustains, by comparing it with the next.
//! Ours: utilizations that differ by less than [`NEAR`] of the CPUs are one, so that a steady load does not fill all samples; and a curve counts
//! only near what it was fitted through, as three samples from one side of it say nothing of the other (the paper's Fig. 10b).

use std::collections::{BTreeMap, VecDeque};

/// So many samples are kept for each number of CPUs: enough for a good fit (section 4.4).
pub const SAMPLES: usize = 8;
/// With so many a curve is fitted.
pub const FEWEST: usize = 3;
/// By more than that part of what is seen a curve or a sample is inaccurate.
pub const INACCURATE: f64 = 0.05;
/// The part of the switches on the next greater number of CPUs that is enough: x is 30 % in section 4.5.
pub const ENOUGH: f64 = 0.7;
/// The same for guests whose switches do not fall with load, and where requests wait long for each other ([`waits_long`]): appendix A.3's 5 %.
pub const ENOUGH_STRICT: f64 = 0.95;
/// CPUs, and the part of each that is used, up to which [`ENOUGH`] is enough: the paper is content with it at 70 % of four (nginx in section
/// 6.2). A little more, for what is off by chance; on two CPUs that is 54 %, more than one busy thread.
const CONTENT: (u32, f64) = (4, 0.72);
/// Utilizations that are the same, as a part of the CPUs.
const NEAR: f64 = 0.05;
/// How far from its samples a curve counts, likewise.
const BEYOND: f64 = 0.1;
/// How far apart the samples of a curve are at least, likewise.
const SPAN: f64 = 0.2;
/// What a guest's curves have to cover before it is said that its switches do not fall with load, likewise.
const HIGH: f64 = 0.9;

/// How long a request waits in the mean for one of so many CPUs, in parts of the time that it needs itself, where all of them are used for
/// so much, in CPUs: requests that come at random and need times that are random (M/M/c; Erlang C).
fn wait(cpus: u32, used: f64) -> f64 {
    let all = f64::from(cpus);
    if used >= all {
        return f64::INFINITY;
    }
    // Erlang's B, from which C follows: both as recurrences that do not overflow.
    let lost = (1..=cpus).fold(1.0, |lost, cpu| {
        used * lost / (f64::from(cpu) + used * lost)
    });
    lost / (all - used * (1.0 - lost)) * all / (all - used)
}

/// Whether requests wait for longer than where the paper is content. The same part of each CPU is far more where CPUs are few: at 75 % requests
/// wait for 1.3 times what they need on two CPUs, and for a fifth of it on eight.
pub fn waits_long(cpus: u32, used: f64) -> bool {
    let (few, part) = CONTENT;
    wait(cpus, used) > wait(few, part * f64::from(few)) + 1e-9
}

/// `a u^2 + b u + c` of a utilization as a part of the CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Curve {
    a: f64,
    b: f64,
    c: f64,
    /// Where its samples are.
    from: f64,
    to: f64,
}

impl Curve {
    /// Through those points, by least squares; `None`: they do not determine one.
    fn fit(points: &[(f64, f64)]) -> Option<Curve> {
        let (from, to) = points.iter().fold((f64::MAX, f64::MIN), |(from, to), it| {
            (from.min(it.0), to.max(it.0))
        });
        if points.len() < FEWEST || to - from < SPAN {
            return None;
        }
        // The normal equations, solved by elimination: at most eight points, between 0 and 1.
        let mut rows = [[0.0; 4]; 3];
        for &(u, f) in points {
            let powers = [u * u, u, 1.0];
            for (row, by) in rows.iter_mut().zip(powers) {
                for (cell, power) in row.iter_mut().zip(powers) {
                    *cell += by * power;
                }
                row[3] += by * f;
            }
        }
        for at in 0..3 {
            let pivot = (at..3).max_by(|a, b| rows[*a][at].abs().total_cmp(&rows[*b][at].abs()))?;
            rows.swap(at, pivot);
            if rows[at][at].abs() < 1e-9 {
                return None;
            }
            let (above, below) = rows.split_at_mut(at + 1);
            let pivot = above[at];
            for row in below {
                let factor = row[at] / pivot[at];
                for (cell, of_pivot) in row.iter_mut().zip(pivot) {
                    *cell -= factor * of_pivot;
                }
            }
        }
        let c = rows[2][3] / rows[2][2];
        let b = (rows[1][3] - rows[1][2] * c) / rows[1][1];
        let a = (rows[0][3] - rows[0][2] * c - rows[0][1] * b) / rows[0][0];
        Some(Curve { a, b, c, from, to })
    }

    /// At that utilization, where it counts.
    fn at(&self, u: f64) -> Option<f64> {
        let counts = (self.from - BEYOND..=self.to + BEYOND).contains(&u);
        counts.then_some((self.a * u + self.b) * u + self.c)
    }

    /// Whether it still rises where it ends, and ends at a high utilization.
    fn rises_to_the_end(&self) -> bool {
        self.to >= HIGH && 2.0 * self.a * self.to + self.b > 0.0
    }
}

/// What is known of one number of CPUs.
#[derive(Debug, Clone, Default, PartialEq)]
struct Count {
    /// Utilizations as parts of the CPUs, and switches per second; the eldest first.
    samples: VecDeque<(f64, f64)>,
    curve: Option<Curve>,
}

impl Count {
    fn sample(&self, u: f64) -> Option<f64> {
        let near = self.samples.iter().filter(|it| (it.0 - u).abs() <= NEAR);
        let nearest = near.min_by(|a, b| (a.0 - u).abs().total_cmp(&(b.0 - u).abs()));
        nearest.map(|it| it.1)
    }

    fn add(&mut self, u: f64, f: f64) {
        let off = |known: f64| (f - known).abs() > INACCURATE * f;
        let before = self.sample(u);
        self.samples.retain(|it| (it.0 - u).abs() > NEAR);
        self.samples.push_back((u, f));
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
        let inaccurate = match &self.curve {
            None => true,
            Some(curve) => before.is_some_and(off) || curve.at(u).is_none_or(off),
        };
        if inaccurate {
            let (first, second) = self.samples.as_slices();
            self.curve = Curve::fit(&[first, second].concat());
        }
    }

    fn switches(&self, u: f64) -> Option<f64> {
        self.sample(u)
            .or_else(|| self.curve.and_then(|curve| curve.at(u)))
    }
}

/// What is known of a guest.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    counts: BTreeMap<u32, Count>,
}

impl Profile {
    /// On so many CPUs the guest used so much, in CPUs, and switched so often in a second.
    pub fn add(&mut self, cpus: u32, used: f64, switches: f64) {
        let count = self.counts.entry(cpus).or_default();
        count.add(used / f64::from(cpus.max(1)), switches);
    }

    /// How often it switches on so many CPUs when it uses so much, in CPUs; `None`: to be tried.
    pub fn switches(&self, cpus: u32, used: f64) -> Option<f64> {
        let count = self.counts.get(&cpus)?;
        count.switches(used / f64::from(cpus.max(1)))
    }

    /// Whether `fewer` CPUs do as well as `more`; `None`: not known.
    pub fn suffices(&self, fewer: u32, more: u32, used: f64) -> Option<bool> {
        let (few, many) = self.both(fewer, more, used)?;
        Some(few >= self.enough(fewer, used) * many)
    }

    /// The part of the switches on the next greater number of CPUs that is enough for that number, when so much is used, in CPUs.
    pub fn enough(&self, cpus: u32, used: f64) -> f64 {
        match waits_long(cpus, used) || self.rises() {
            true => ENOUGH_STRICT,
            false => ENOUGH,
        }
    }

    /// The most that so many CPUs sustain beside the next number, in CPUs; `None`: not known.
    pub fn most(&self, cpus: u32, next: u32) -> Option<f64> {
        let curves = [cpus, next].map(|it| self.counts.get(&it).and_then(|it| it.curve));
        let [Some(_), Some(_)] = curves else {
            return None;
        };
        // In hundredths of a CPU from the top: what is known there, and suffices.
        let mut used = (1..=100 * cpus).rev().map(|step| f64::from(step) / 100.0);
        used.find(|used| self.suffices(cpus, next, *used) == Some(true))
    }

    /// How often it switches on so many CPUs, and on more; `None`: not known of both.
    fn both(&self, fewer: u32, more: u32, used: f64) -> Option<(f64, f64)> {
        Some((self.switches(fewer, used)?, self.switches(more, used)?))
    }

    /// Whether its switches do not fall with load (the paper's MySQL, whose requests take several threads): all curves rise to high
    /// utilizations.
    pub fn rises(&self) -> bool {
        let mut curves = self
            .counts
            .values()
            .filter_map(|it| it.curve)
            .filter(|it| it.to >= HIGH)
            .peekable();
        curves.peek().is_some() && curves.all(|it| it.rises_to_the_end())
    }
}
