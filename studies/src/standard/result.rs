//! The standard suite's result, in the form that `--json` writes.

use super::figures::{VictimFigures, VictimRatios, median, ratio};
use super::limits::{self, Limits};
use super::measure::Measured;
use quell_bench::result::{Host, LabGuest};
use serde::{Deserialize, Serialize};

/// The whole result; the JSON of `quell-studies standard --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Standard {
    /// [`quell_bench::result::SCHEMA`].
    pub schema: u32,
    /// The version of Quell that measured.
    pub quell_version: String,
    /// Whether every pair of every case was measured; `false` after an interrupt.
    pub complete: bool,
    /// The machine; the guest, where the suite ran in one.
    pub host: Host,
    /// The kernel lab's guest; `null` outside of the lab.
    pub lab: Option<LabGuest>,
    /// How long each side of each pair was measured, in s.
    pub seconds: f64,
    /// How long the load ran before that, in s.
    pub warmup_seconds: f64,
    /// The number of pairs.
    pub pairs: u32,
    /// The seed.
    pub seed: u64,
    /// The sides, the baseline first.
    pub sides: Vec<String>,
    /// The cases, in the order measured.
    pub cases: Vec<CaseResult>,
}

impl Standard {
    /// Whether no case fails on any side.
    pub fn holds(&self) -> bool {
        let sides = self.cases.iter().flat_map(|case| &case.sides);
        sides.filter_map(|side| side.holds).all(|holds| holds)
    }
}

/// The result of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// The case's name.
    pub case: String,
    /// The loads that run beside the victims.
    pub about: String,
    /// Why the case was not measured, if it was not.
    pub skipped: Option<String>,
    /// The case on each side.
    pub sides: Vec<CaseSide>,
}

/// A case on one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseSide {
    /// The side.
    pub side: String,
    /// Whether all limits are kept; `null` for the baseline and where nothing was measured.
    pub holds: Option<bool>,
    /// Why the case could not be measured in some pair, for example because the kernel ejected the scheduler:
    /// the case fails then.
    pub errors: Vec<String>,
    /// The victims.
    pub victims: Vec<VictimResult>,
    /// The loads that have a throughput.
    pub loads: Vec<LoadResult>,
}

impl CaseSide {
    /// The least part of the baseline's work that one of the loads did.
    pub(super) fn least_load(&self) -> Option<f64> {
        let ratios = self.loads.iter().filter_map(|it| it.ratio);
        ratios.min_by(f64::total_cmp)
    }
}

/// A victim on one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VictimResult {
    /// The victim.
    pub victim: String,
    /// The median over pairs of each figure.
    pub median: VictimFigures,
    /// `median` over the baseline's.
    pub ratio: Option<VictimRatios>,
    /// The figures that break a limit, by their names in `median`.
    pub fails: Vec<String>,
    /// The figures of each pair; `null` where it was not measured.
    pub pairs: Vec<Option<VictimFigures>>,
    /// The figures of each pair over the baseline's of that pair.
    pub pair_ratios: Vec<Option<VictimRatios>>,
}

/// A load on one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// The load.
    pub load: String,
    /// The unit of its work.
    pub unit: String,
    /// The median over pairs of the work per second.
    pub per_s: Option<f64>,
    /// `per_s` over the baseline's.
    pub ratio: Option<f64>,
    /// Whether the work is too little.
    pub fails: bool,
    /// The work per second in each pair; `null` where the load was not measured or did no work.
    pub pairs: Vec<Option<f64>>,
    /// The work of each pair over the baseline's of that pair.
    pub pair_ratios: Vec<Option<f64>>,
}

/// A side's windows of a case, by pair: what was measured, or why it was not; `None`: not yet measured.
pub(super) type Windows = Vec<Option<Result<Measured, String>>>;

/// The result of a case from its windows, by side; the first side is the baseline.
pub(super) fn summarise(
    case: &str,
    about: &str,
    labels: &[String],
    windows: &[Windows],
) -> CaseResult {
    let mut sides: Vec<CaseSide> = Vec::new();
    for (label, windows) in labels.iter().zip(windows) {
        let base = sides.first().cloned();
        sides.push(side(label, windows, base.as_ref()));
    }
    // A case that cannot be measured under the baseline either tells nothing of a scheduler.
    let none = sides
        .first()
        .is_some_and(|it| it.victims.is_empty() && !it.errors.is_empty());
    let skipped = sides
        .first()
        .filter(|_| none)
        .map(|it| it.errors[0].clone());
    if skipped.is_some() {
        sides.clear();
    }
    CaseResult {
        case: case.to_string(),
        about: about.to_string(),
        skipped,
        sides,
    }
}

fn side(label: &str, windows: &Windows, base: Option<&CaseSide>) -> CaseSide {
    let limits = Limits::of(label);
    let measured: Vec<Option<&Measured>> = windows
        .iter()
        .map(|it| it.as_ref().and_then(|it| it.as_ref().ok()))
        .collect();
    let mut errors: Vec<String> = windows
        .iter()
        .flatten()
        .filter_map(|it| it.as_ref().err().cloned())
        .collect();
    errors.dedup();
    let victims = names(&measured, |it| {
        it.victims.iter().map(|(name, _)| name.clone()).collect()
    });
    let victims: Vec<VictimResult> = victims
        .into_iter()
        .map(|name| {
            let base = base.and_then(|it| it.victims.iter().find(|it| it.victim == name));
            victim(name, &measured, base, &limits)
        })
        .collect();
    let loads = names(&measured, |it| {
        it.loads
            .iter()
            .map(|it| (it.0.clone(), it.1.clone()))
            .collect()
    });
    let loads: Vec<LoadResult> = loads
        .into_iter()
        .map(|(name, unit)| {
            let base = base.and_then(|it| it.loads.iter().find(|it| it.load == name));
            load(name, unit, &measured, base)
        })
        .collect();
    let kept = victims.iter().all(|it| it.fails.is_empty()) && loads.iter().all(|it| !it.fails);
    let something = !victims.is_empty() || !errors.is_empty();
    CaseSide {
        side: label.to_string(),
        holds: base
            .filter(|_| something)
            .map(|_| kept && errors.is_empty()),
        errors,
        victims,
        loads,
    }
}

/// The names in any window, in the order of their first appearance.
fn names<T: PartialEq>(measured: &[Option<&Measured>], of: impl Fn(&Measured) -> Vec<T>) -> Vec<T> {
    let mut names = Vec::new();
    for name in measured.iter().flatten().flat_map(|it| of(it)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn victim(
    name: String,
    measured: &[Option<&Measured>],
    base: Option<&VictimResult>,
    limits: &Limits,
) -> VictimResult {
    let of = |it: &Measured| {
        let mut found = it.victims.iter().filter(|(victim, _)| *victim == name);
        found.next().map(|(_, figures)| *figures)
    };
    let pairs: Vec<_> = measured.iter().map(|it| it.and_then(of)).collect();
    let median = VictimFigures::median(pairs.iter().flatten());
    let pair_ratio = |pair: usize, it: &Option<VictimFigures>| {
        let base = base?.pairs.get(pair)?.as_ref()?;
        Some(it.as_ref()?.over(base))
    };
    let pair_ratios = pairs
        .iter()
        .enumerate()
        .map(|(pair, it)| pair_ratio(pair, it));
    VictimResult {
        ratio: base.map(|base| median.over(&base.median)),
        fails: base.map_or(Vec::new(), |base| limits.victim(&median, &base.median)),
        pair_ratios: pair_ratios.collect(),
        victim: name,
        median,
        pairs,
    }
}

fn load(
    name: String,
    unit: String,
    measured: &[Option<&Measured>],
    base: Option<&LoadResult>,
) -> LoadResult {
    let of = |it: &Measured| it.loads.iter().find(|it| it.0 == name)?.2;
    let pairs: Vec<_> = measured.iter().map(|it| it.and_then(of)).collect();
    let per_s = median(pairs.iter().flatten().copied());
    let over = |value: Option<f64>, base: Option<f64>| ratio(value?, base?);
    let pair_base = |pair: usize| base.and_then(|it| *it.pairs.get(pair)?);
    let pair_ratios = pairs
        .iter()
        .enumerate()
        .map(|(pair, it)| over(*it, pair_base(pair)));
    LoadResult {
        ratio: over(per_s, base.and_then(|it| it.per_s)),
        fails: base.is_some_and(|base| limits::load_fails(per_s, base.per_s)),
        pair_ratios: pair_ratios.collect(),
        load: name,
        unit,
        per_s,
        pairs,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn measured(late_us: f64, per_s: f64) -> Measured {
        let figures = VictimFigures {
            served: 1000.0,
            late_mean_us: Some(late_us),
            late_p99_us: Some(late_us * 2.0),
            late_worst_us: Some(late_us * 3.0),
            ..VictimFigures::default()
        };
        Measured {
            victims: vec![("light".into(), figures)],
            loads: vec![("pipes".into(), "ops/s".into(), Some(per_s))],
        }
    }

    fn labels() -> [String; 2] {
        ["default".to_string(), "sched".to_string()]
    }

    #[test]
    fn a_side_is_judged_by_medians_over_pairs() {
        let ok = |late, per_s| Some(Ok(measured(late, per_s)));
        let base = vec![ok(1000.0, 100.0), ok(1200.0, 100.0), ok(1100.0, 90.0)];
        let good = vec![ok(1150.0, 99.0), ok(9000.0, 98.0), ok(1000.0, 10.0)];
        let result = summarise("c", "about", &labels(), &[base.clone(), good]);
        let side = &result.sides[1];
        assert_eq!((side.holds, result.sides[0].holds), (Some(true), None));
        assert_eq!(side.victims[0].median.late_mean_us, Some(1150.0));
        assert_eq!(side.victims[0].pair_ratios[1].unwrap().late_mean, Some(7.5));
        assert_eq!(side.loads[0].ratio, Some(0.98));

        let late = vec![ok(1500.0, 100.0), ok(1500.0, 100.0), None];
        let result = summarise("c", "about", &labels(), &[base.clone(), late]);
        assert_eq!(result.sides[1].holds, Some(false));
        assert_eq!(
            result.sides[1].victims[0].fails,
            ["late_mean_us", "late_p99_us"]
        );

        let little = vec![ok(1000.0, 96.0)];
        let result = summarise("c", "about", &labels(), &[base, little]);
        assert_eq!(result.sides[1].holds, Some(false));
        assert!(result.sides[1].loads[0].fails);
    }

    #[test]
    fn what_fails_under_the_baseline_is_skipped_and_under_a_side_fails() {
        let error = || vec![Some(Err("it was thrown out".to_string()))];
        let fine = || vec![Some(Ok(measured(100.0, 1.0)))];
        let result = summarise("c", "", &labels(), &[error(), error()]);
        assert_eq!(result.skipped.as_deref(), Some("it was thrown out"));
        let result = summarise("c", "", &labels(), &[fine(), error()]);
        assert_eq!((result.skipped, result.sides[1].holds), (None, Some(false)));
        assert_eq!(result.sides[1].errors, ["it was thrown out"]);
        let result = summarise("c", "", &labels(), &[fine(), vec![None]]);
        assert_eq!(result.sides[1].holds, None);
    }
}
