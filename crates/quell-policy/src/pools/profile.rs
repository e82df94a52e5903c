//! How often a guest's scheduler switches, by its utilization and its CPUs: samples, and a curve
//! through them.
//!
//! Problem: a host does not know the latency of its guests. The rate at which a guest's threads are
//! scheduled in follows its load up to the point from which requests wait for each other, and falls from
//! there on: fewer switches on fewer CPUs mean that requests wait (UFO, section 3.3).
//! Approach: section 4.4 and Algorithm 2. The latest samples for each number of CPUs, a quadratic curve
//! through them from three on, fitted again when a sample is off it; and the greatest utilization that a
//! number of CPUs sustains, by comparison with the next number.
//! Ours: utilizations that differ by less than `NEAR` of the CPUs are one, so that a steady load does
//! not fill all samples; and a curve is valid only near the samples it was fitted through, as three
//! samples on one side say nothing of the other (the paper's Fig. 10b).

use std::collections::{BTreeMap, VecDeque};

/// The samples kept for each number of CPUs: enough for a good fit (section 4.4).
pub const SAMPLES: usize = 8;
/// The number of samples from which on a curve is fitted.
pub const FEWEST: usize = 3;
/// The deviation, as a part of a new sample, above which a curve or a sample is inaccurate.
pub const INACCURATE: f64 = 0.05;
/// The part of the switches on the next greater number of CPUs that is enough: x is 30 % in section 4.5.
pub const ENOUGH: f64 = 0.7;
/// The part that is enough for guests whose switches do not fall with load, and where requests wait long
/// for each other ([`waits_long`]): appendix A.3's 5 %.
pub const ENOUGH_STRICT: f64 = 0.95;
/// The number of CPUs, and the used part of each, up to which [`ENOUGH`] is enough: the paper accepts it
/// at 70 % of four (nginx in section 6.2). The part is a little more, as a margin for chance; on two CPUs
/// the equivalent is 54 %, more than one busy thread.
const CONTENT: (u32, f64) = (4, 0.72);
/// The difference up to which utilizations are the same, as a part of the CPUs.
const NEAR: f64 = 0.05;
/// The distance from its samples up to which a curve is valid, as a part of the CPUs.
const BEYOND: f64 = 0.1;
/// The least distance between the outermost samples of a curve, as a part of the CPUs.
const SPAN: f64 = 0.2;
/// The utilization up to which a guest's curves must reach before its switches count as not falling with
/// load, as a part of the CPUs.
const HIGH: f64 = 0.9;

/// The mean time that a request waits for one of `cpus` CPUs, in units of its service time, where `used`
/// CPUs are used: random arrivals and random service times (M/M/c; Erlang C).
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

/// Whether requests wait for longer than where the paper accepts it. The same used part of each CPU means
/// far more waiting where CPUs are few: at 75 % requests wait for 1.3 times their service time on two
/// CPUs, and for a fifth of it on eight.
pub fn waits_long(cpus: u32, used: f64) -> bool {
    let (few, part) = CONTENT;
    wait(cpus, used) > wait(few, part * f64::from(few)) + 1e-9
}

/// `a u^2 + b u + c` for a utilization `u` as a part of the CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Curve {
    a: f64,
    b: f64,
    c: f64,
    /// The range of its samples.
    from: f64,
    to: f64,
}

impl Curve {
    /// The curve through those points by least squares; `None`: they do not determine one.
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

    /// The rate at that utilization; `None`: outside the valid range.
    fn at(&self, u: f64) -> Option<f64> {
        let counts = (self.from - BEYOND..=self.to + BEYOND).contains(&u);
        counts.then_some((self.a * u + self.b) * u + self.c)
    }

    /// Whether the curve still rises at its end, and ends at a high utilization.
    fn rises_to_the_end(&self) -> bool {
        self.to >= HIGH && 2.0 * self.a * self.to + self.b > 0.0
    }
}

/// The samples and the curve of one number of CPUs.
#[derive(Debug, Clone, Default, PartialEq)]
struct Count {
    /// Utilizations as parts of the CPUs, and switches per second; the oldest first.
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

/// A guest's samples and curves, by the number of CPUs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    counts: BTreeMap<u32, Count>,
}

impl Profile {
    /// Adds a sample: on `cpus` CPUs the guest used `used` CPUs and switched `switches` times in a second.
    pub fn add(&mut self, cpus: u32, used: f64, switches: f64) {
        let count = self.counts.entry(cpus).or_default();
        count.add(used / f64::from(cpus.max(1)), switches);
    }

    /// The switch rate on `cpus` CPUs when the guest uses `used` of them; `None`: not known.
    pub fn switches(&self, cpus: u32, used: f64) -> Option<f64> {
        let count = self.counts.get(&cpus)?;
        count.switches(used / f64::from(cpus.max(1)))
    }

    /// Whether `fewer` CPUs are as good as `more`; `None`: not known.
    pub fn suffices(&self, fewer: u32, more: u32, used: f64) -> Option<bool> {
        let (few, many) = self.both(fewer, more, used)?;
        Some(few >= self.enough(fewer, used) * many)
    }

    /// The part of the switches on the next greater number of CPUs that is enough for `cpus`, when
    /// `used` CPUs are used.
    pub fn enough(&self, cpus: u32, used: f64) -> f64 {
        match waits_long(cpus, used) || self.rises() {
            true => ENOUGH_STRICT,
            false => ENOUGH,
        }
    }

    /// The most CPU time that `cpus` CPUs sustain compared with the next number, in CPUs; `None`: not known.
    pub fn most(&self, cpus: u32, next: u32) -> Option<f64> {
        let curves = [cpus, next].map(|it| self.counts.get(&it).and_then(|it| it.curve));
        let [Some(_), Some(_)] = curves else {
            return None;
        };
        // In hundredths of a CPU from the top: the first that is known and enough.
        let mut used = (1..=100 * cpus).rev().map(|step| f64::from(step) / 100.0);
        used.find(|used| self.suffices(cpus, next, *used) == Some(true))
    }

    /// The switch rates on `fewer` and on `more` CPUs; `None`: not both are known.
    fn both(&self, fewer: u32, more: u32, used: f64) -> Option<(f64, f64)> {
        Some((self.switches(fewer, used)?, self.switches(more, used)?))
    }

    /// Whether the guest's switches do not fall with load (the paper's MySQL, whose requests take several
    /// threads): all curves rise to high utilizations.
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
