//! How much each admission test accepts: `quell-studies acceptance`.
//!
//! Random sets of servers for one CPU are drawn by how much of it they need: the mean of what all servers
//! need usually and what servers of high criticality need at the most, as in the literature on mixed
//! criticality. The result is the part of the sets that each test accepts. Small sets are tried out as well
//! ([`quell_testkit::exhaustive`]), which shows how much the tests refuse without need.

use anyhow::Context;
use quell_bench::progress::Progress;
use quell_bench::result::SCHEMA;
use quell_model::config::{AdmissionTest, Criticality, Server};
use quell_policy::admission::check;
use quell_testkit::exhaustive;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The utilizations that are looked at, in percent of the CPU.
const PERCENT: [u32; 17] = [
    20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 100,
];
/// The tests; each accepts what the tests before it accept.
const TESTS: [AdmissionTest; 5] = [
    AdmissionTest::Rm,
    AdmissionTest::RmExact,
    AdmissionTest::Edf,
    AdmissionTest::EdfVd,
    AdmissionTest::Demand,
];
/// How many attempts to draw a set near enough to a utilization are made before that counts as an error.
const ATTEMPTS: u32 = 1_000_000;

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub struct AcceptanceOptions {
    /// The number of sets for each utilization.
    pub sets: u32,
    /// The seed that sets are drawn with.
    pub seed: u64,
}

/// The result; the JSON of `quell-studies acceptance --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Acceptance {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The version of Quell that measured.
    pub quell_version: String,
    /// The number of sets for each utilization.
    pub sets: u32,
    /// The seed that sets were drawn with.
    pub seed: u64,
    /// Whether every utilization was looked at.
    pub complete: bool,
    /// What was accepted of each kind of set.
    pub kinds: Vec<KindAcceptance>,
}

/// What was accepted of one kind of set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KindAcceptance {
    /// The kind.
    pub kind: Kind,
    /// By utilization, rising.
    pub points: Vec<AcceptancePoint>,
}

/// What was accepted at a utilization.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AcceptancePoint {
    /// The utilization, in percent of the CPU.
    pub percent: u32,
    /// By test, and for small sets also `exhaustive`: the part that was accepted, 0 to 1.
    pub accepted: Vec<(String, f64)>,
}

/// How sets are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// As Guan et al. and Ekberg and Yi draw them: budgets of 1 to 10, worst cases up to four times that,
    /// periods up to 200; each server is of high criticality with a probability of a half.
    Literature,
    /// At most three servers, periods up to 8: few enough states to try all.
    Small,
}

impl Kind {
    /// Both kinds.
    pub const ALL: [Kind; 2] = [Kind::Literature, Kind::Small];

    /// The kind in words, for reports.
    pub fn describe(self) -> &'static str {
        match self {
            Kind::Literature => {
                "as in the literature: budgets of 1 to 10, worst cases up to 4 times that, periods up to 200"
            }
            Kind::Small => {
                "at most three servers with periods up to 8; exhaustive: every arrival and every need was tried"
            }
        }
    }

    /// How near to its utilization a set is drawn.
    fn near(self) -> f64 {
        match self {
            Kind::Literature => 0.005,
            Kind::Small => 0.025,
        }
    }

    fn most(self) -> usize {
        match self {
            Kind::Literature => usize::MAX,
            Kind::Small => 3,
        }
    }

    fn server(self, rng: &mut ChaCha8Rng) -> Server {
        let (most_budget, longest) = match self {
            Kind::Literature => (10, 200),
            Kind::Small => (4, 8),
        };
        let criticality = match rng.random_bool(0.5) {
            true => Criticality::High,
            false => Criticality::Low,
        };
        let budget_ns = rng.random_range(1..=most_budget);
        let pessimistic_ns = match criticality {
            Criticality::High => rng.random_range(budget_ns..=longest.min(4 * budget_ns)),
            Criticality::Low => budget_ns,
        };
        Server {
            criticality,
            period_ns: rng.random_range(pessimistic_ns..=longest),
            budget_ns,
            pessimistic_ns,
        }
    }

    /// A set with about this utilization; `None`: none was found.
    fn set(self, rng: &mut ChaCha8Rng, utilization: f64) -> Option<Vec<Server>> {
        for _ in 0..ATTEMPTS {
            let mut set = Vec::new();
            while set.len() < self.most() && needs(&set) < utilization - self.near() {
                set.push(self.server(rng));
            }
            if (needs(&set) - utilization).abs() <= self.near() {
                return Some(set);
            }
        }
        None
    }
}

/// The mean of what servers need of the CPU usually and what servers of high criticality need at the most.
fn needs(set: &[Server]) -> f64 {
    let of = |server: &Server| match server.criticality {
        Criticality::High => server.utilization() + server.pessimistic_utilization(),
        Criticality::Low => server.utilization(),
    };
    set.iter().map(of).sum::<f64>() / 2.0
}

/// Draws sets and tests them, on all CPUs of this machine. Setting `interrupt` ends that with the
/// utilizations so far.
///
/// # Errors
/// Where no set near enough to a utilization is found.
pub fn run(
    options: &AcceptanceOptions,
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Acceptance> {
    let all: Vec<(Kind, u32)> = Kind::ALL
        .into_iter()
        .flat_map(|kind| PERCENT.map(|percent| (kind, percent)))
        .collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((kind, percent)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some(point) = point(options, *kind, *percent, interrupt)? else {
                return Ok(());
            };
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.push((*kind, point));
            let text = format!("utilization {} of {}", found.len(), all.len());
            progress.tick(Duration::ZERO, &text);
        }
        anyhow::Ok(())
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut joined = workers.into_iter().map(|it| it.join());
        joined.try_for_each(|it| it.ok().context("a worker panicked")?)
    })?;
    progress.finish();
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(_, point)| point.percent);
    let kinds = Kind::ALL.map(|kind| KindAcceptance {
        kind,
        points: found
            .iter()
            .filter(|it| it.0 == kind)
            .map(|it| it.1.clone())
            .collect(),
    });
    Ok(Acceptance {
        schema: SCHEMA,
        quell_version: env!("CARGO_PKG_VERSION").to_string(),
        sets: options.sets,
        seed: options.seed,
        complete: found.len() == all.len(),
        kinds: kinds.into(),
    })
}

/// The sets of one utilization; `None` after an interrupt.
fn point(
    options: &AcceptanceOptions,
    kind: Kind,
    percent: u32,
    interrupt: &AtomicBool,
) -> anyhow::Result<Option<AcceptancePoint>> {
    let names = TESTS.map(AdmissionTest::name).into_iter();
    let all = names.chain((kind == Kind::Small).then_some("exhaustive"));
    let mut accepted: Vec<(String, u32)> = all.map(|name| (name.to_string(), 0)).collect();
    for number in 0..options.sets {
        if interrupt.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
        rng.set_stream(u64::from(percent) << 32 | u64::from(number));
        let set = kind.set(&mut rng, f64::from(percent) / 100.0);
        let set = set.with_context(|| format!("no set of {percent} % was found"))?;
        let by_tests = TESTS.into_iter().map(|test| check(test, &set).fits);
        let tried = (kind == Kind::Small).then(|| exhaustive::keeps(&set) == Some(true));
        for ((_, accepted), fits) in accepted.iter_mut().zip(by_tests.chain(tried)) {
            *accepted += u32::from(fits);
        }
    }
    let part = |accepted: u32| f64::from(accepted) / f64::from(options.sets.max(1));
    let accepted = accepted.into_iter().map(|(name, it)| (name, part(it)));
    Ok(Some(AcceptancePoint {
        percent,
        accepted: accepted.collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sets: u32) -> Acceptance {
        let options = AcceptanceOptions { sets, seed: 1 };
        run(&options, &AtomicBool::new(false), &Progress::silent()).unwrap()
    }

    fn part(point: &AcceptancePoint, test: &str) -> f64 {
        point.accepted.iter().find(|it| it.0 == test).unwrap().1
    }

    /// The result has what the literature proves of each test.
    #[test]
    fn what_is_accepted_is_as_published() {
        let found = found(60);
        assert!(found.complete);
        for KindAcceptance { kind, points } in &found.kinds {
            assert_eq!(points.len(), PERCENT.len());
            for point in points {
                let parts: Vec<f64> = point.accepted.iter().map(|it| it.1).collect();
                // Each test accepts what the tests before it accept, and the less the more is needed.
                assert!(parts.is_sorted(), "{kind:?} {point:?}");
            }
            // With the mean at 35 % neither mode needs more than 70 % of the CPU: EDF-VD keeps all deadlines
            // up to three quarters (Baruah et al. 2012).
            for point in points.iter().filter(|it| it.percent <= 35) {
                assert_eq!(part(point, "edf-vd"), 1.0, "{kind:?} {point:?}");
            }
            let last = points.last().unwrap();
            assert!(
                part(last, "rm") < 0.2 && part(last, "demand") < 0.5,
                "{kind:?} {last:?}"
            );
        }
        // In between tests differ: EDF-VD gains from its modes there.
        let literature = &found.kinds[0].points;
        let middle = literature.iter().find(|it| it.percent == 70).unwrap();
        assert!(
            part(middle, "edf") + 0.2 < part(middle, "edf-vd"),
            "{middle:?}"
        );
    }

    #[test]
    fn sets_are_as_asked_for() {
        for kind in Kind::ALL {
            for percent in PERCENT {
                let mut rng = ChaCha8Rng::seed_from_u64(3);
                let set = kind.set(&mut rng, f64::from(percent) / 100.0).unwrap();
                let off = (needs(&set) * 100.0 - f64::from(percent)).abs();
                assert!(
                    off <= kind.near() * 100.0 + 1e-9,
                    "{kind:?} {percent}: {set:?}"
                );
                for server in set {
                    assert!(server.budget_ns <= server.pessimistic_ns);
                    assert!(server.pessimistic_ns <= server.period_ns);
                }
            }
        }
    }
}
