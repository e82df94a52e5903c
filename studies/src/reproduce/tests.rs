//! Claims computed from made-up points with known answers.

use super::*;
use crate::catalogue::CATALOGUE;
use crate::sides::SIDES;
use crate::testing::sample;
use quell_bench::result::SchedulingFigures;

/// A point in which the baseline's mean is `base` and each further side's is `base` times its factor.
fn point(scenario: &str, ratio: f64, base: f64, factors: &[(&str, f64)]) -> PointResult {
    let mut result = sample();
    let row = |side: &str, mean: f64| {
        let mut row = result.results[0].clone();
        (row.side, row.tenant, row.class) = (side.into(), ALL.into(), TenantClass::Latency);
        row.figures.mean_us = Some(mean);
        row
    };
    let comparison = |tenant: &str, side: &str, ratio: f64| {
        let mut comparison = result.comparisons[0].clone();
        (comparison.tenant, comparison.class) = (tenant.into(), TenantClass::Latency);
        (comparison.side, comparison.metric, comparison.ratio) =
            (side.into(), Metric::MeanUs, ratio);
        comparison
    };
    let mut rows = vec![row("default", base)];
    let mut comparisons = Vec::new();
    let mut sides = vec!["default".to_string()];
    for (side, factor) in factors {
        rows.push(row(side, base * factor));
        comparisons.push(comparison(ALL, side, *factor));
        comparisons.push(comparison("kv-1", side, factor * factor));
        sides.push(side.to_string());
    }
    (result.results, result.comparisons, result.options.sides) = (rows, comparisons, sides);
    PointResult {
        scenario: scenario.into(),
        set: Vec::new(),
        ratio,
        sharers: Sharers::default(),
        loads: BTreeMap::new(),
        objectives_us: BTreeMap::new(),
        result,
    }
}

fn value(quantity: Quantity, points: &[PointResult], side: &str) -> Option<f64> {
    let sides = &points[0].result.options.sides;
    let index = sides.iter().position(|other| other == side).unwrap();
    let value = quantity.of(points, side, index);
    value.map(|value| (value * 1e6).round() / 1e6)
}

#[test]
fn changes_are_geometric_means_over_the_ratios_asked_for() {
    let points = [
        point("a", 1.0, 10.0, &[("sched", 0.5)]),
        point("a", 3.0, 20.0, &[("sched", 0.8)]),
        point("b", 3.0, 20.0, &[("sched", 0.2)]),
    ];
    let change = |tenants, scenarios, ratios| Quantity::Change {
        tenants,
        metric: Metric::MeanUs,
        scenarios,
        ratios,
    };
    let latency = Tenants::Class(TenantClass::Latency);
    assert_eq!(
        value(change(latency, &[], (3.0, 4.0)), &points, "sched"),
        Some(0.4)
    );
    assert_eq!(
        value(change(latency, &["a"], (0.0, 1.0)), &points, "sched"),
        Some(0.5)
    );
    assert_eq!(
        value(
            change(Tenants::Named("kv"), &["a"], (0.0, 1.0)),
            &points,
            "sched"
        ),
        Some(0.25)
    );
    assert_eq!(
        value(
            change(Tenants::Named("k"), &[], (0.0, 9.0)),
            &points,
            "sched"
        ),
        None
    );
    assert_eq!(
        value(change(latency, &["c"], (0.0, 9.0)), &points, "sched"),
        None
    );
    assert_eq!(
        value(change(latency, &[], (0.0, 9.0)), &points, "default"),
        None
    );
}

#[test]
fn growth_is_said_of_every_side() {
    let points = [
        point("a", 0.5, 10.0, &[("sched", 1.0)]),
        point("a", 3.0, 50.0, &[("sched", 0.4)]),
    ];
    let growth = Quantity::Growth {
        metric: Metric::MeanUs,
        scenarios: &[],
        ratios: (0.5, 3.0),
    };
    assert_eq!(value(growth, &points, "default"), Some(5.0));
    assert_eq!(value(growth, &points, "sched"), Some(2.0));
    assert_eq!(value(growth, &points[..1], "sched"), None);
}

#[test]
fn the_part_lost_is_of_the_second_sides_gain() {
    let points = [point("a", 3.0, 100.0, &[("sched", 0.6), ("without", 0.9)])];
    assert_eq!(value(Quantity::PartLost, &points, "without"), Some(0.75));
    assert_eq!(value(Quantity::PartLost, &points, "sched"), None);
}

#[test]
fn a_figures_points_and_claims_are_complete() {
    for figure in figures() {
        assert!(!figure.on.is_empty(), "{}", figure.name);
        let points = figure.points();
        for sides in points.iter().map(|point| point.sides).chain([figure.sides]) {
            let sides = SIDES.parse_list(sides).unwrap();
            for &on in figure.on {
                assert_eq!(SIDES.check(&sides, on), Ok(()));
            }
        }
        let scenarios: Vec<&str> = figure.sweeps.iter().map(|sweep| sweep.scenario).collect();
        for claim in figure.claims {
            for of in claim.quantity.ofs() {
                let is = |point: &Point| {
                    let first = point.set.get(..of.set.len());
                    point.scenario == of.scenario && first.is_some_and(|first| first == of.set)
                };
                assert!(
                    points.iter().any(is),
                    "{}: {}: {of:?}",
                    figure.name,
                    claim.what
                );
            }
            let (Quantity::Change {
                scenarios: named, ..
            }
            | Quantity::Growth {
                scenarios: named, ..
            }
            | Quantity::Blocked {
                scenarios: named, ..
            }) = claim.quantity
            else {
                continue;
            };
            assert!(
                named.iter().all(|name| scenarios.contains(name)),
                "{}",
                claim.what
            );
        }
        let unfinished = figure.conclude(Vec::new(), 1);
        assert!(!unfinished.complete && unfinished.claims.len() == figure.claims.len());
        assert!(!points.is_empty());
    }
}

/// A figure at the lab's scale.
fn lab(name: &str) -> &'static Figure {
    Figure::named(name, Some(Substrate::Vm)).unwrap()
}

#[test]
fn a_figure_is_found_where_it_can_be_redone() {
    let fig1 = Figure::named("dasec-fig1", None).unwrap();
    assert_eq!(fig1.on, [Substrate::Sim]);
    assert_ne!(
        fig1.sweeps[0].scenario,
        lab("dasec-fig1").sweeps[0].scenario
    );
    assert!(Figure::named("dasec-fig3", Some(Substrate::Host)).is_none());
    assert!(Figure::named("dasec-fig0", None).is_none());
}

#[test]
fn the_part_with_most_blocked_is_of_all_time_with_ready_threads() {
    let mut at = point("a", 3.0, 100.0, &[("sched", 0.6)]);
    let scheduling = |ready_while_blocked_us: &[f64]| {
        Some(SchedulingFigures {
            ready_while_blocked_us: ready_while_blocked_us.to_vec(),
            ..SchedulingFigures::default()
        })
    };
    for row in &mut at.result.results {
        let parts = scheduling(&[1.0, 0.0, 2.0, 1.0])
            .unwrap()
            .parts_up_to_blocked();
        assert_eq!(parts, [0.25, 0.25, 0.75, 1.0]);
        row.figures.scheduling = match row.side.as_str() {
            "sched" => scheduling(&[1.0]),
            _ => scheduling(&[1.0, 0.0, 2.0, 1.0]),
        };
    }
    let blocked = Quantity::Blocked {
        least: 2,
        scenarios: &["a"],
        ratios: (3.0, 3.0),
    };
    assert_eq!(value(blocked, &[at.clone()], "default"), Some(0.75));
    assert_eq!(value(blocked, &[at], "sched"), Some(0.0));
    assert_eq!(
        value(blocked, &[point("a", 3.0, 100.0, &[])], "default"),
        None
    );
}

#[test]
fn the_sweeps_points_are_these() {
    let golden = "\
key-value-sweep tenant.svc.count=1
key-value-sweep tenant.svc.count=2
key-value-sweep tenant.svc.count=3
key-value-sweep tenant.svc.count=4
key-value-sweep tenant.svc.count=5
key-value-sweep tenant.svc.count=6
key-value-sweep tenant.svc.count=8
image-sweep tenant.svc.count=1
image-sweep tenant.svc.count=2
image-sweep tenant.svc.count=3
image-sweep tenant.svc.count=4
image-sweep tenant.svc.count=5
image-sweep tenant.svc.count=6
image-sweep tenant.svc.count=8
";
    let points = lab("dasec-fig1").points();
    let lines: String = points
        .iter()
        .map(|point| format!("{} {}\n", point.scenario, point.set.join(" ")))
        .collect();
    assert_eq!(lines, golden);
    let points = lab("dasec-fig16").points();
    assert_eq!(points.len(), 1);
    assert!(points[0].set.is_empty());
}

/// Two batch tenants that use `cpus` CPUs on both sides, and do `work` per second on the first side, twice
/// that on the second.
fn shared(scenario: &str, set: &[&str], cpus: [f64; 2], work: f64) -> PointResult {
    let mut at = point(scenario, 0.0, 1.0, &[("sched", 1.0)]);
    at.set = set.iter().map(|set| set.to_string()).collect();
    at.result.host.cpus = 8;
    let mut rows = Vec::new();
    for side in ["default", "sched"] {
        for (tenant, cpus) in ["primary", "beside"].into_iter().zip(cpus) {
            let mut row = at.result.results[0].clone();
            (row.side, row.tenant, row.class) = (side.into(), tenant.into(), TenantClass::Batch);
            row.figures.cpu_share = cpus / 8.0;
            row.figures.programs = [(format!("of-{tenant}"), cpus / 8.0)].into();
            row.figures.work_per_s = Some(if side == "sched" { 2.0 * work } else { work });
            rows.push(row);
        }
    }
    at.result.results = rows;
    at
}

/// A scenario of the groups' folder, on eight CPUs.
fn sharers(name: &str) -> Sharers {
    let (file, text) = CATALOGUE.scenario(&format!("groups/{name}")).unwrap();
    Sharers::of(&Scenario::parse(&file, &text).unwrap(), 8)
}

#[test]
fn shares_and_slow_downs_are_beside_their_ideals() {
    const SLOW: &[&str] = &["a=1"];
    let mut slow = shared("barriers", SLOW, [2.5, 5.5], 100.0);
    slow.sharers = sharers("barriers");
    let points = [shared("barriers", &[], [6.0, 0.0], 300.0), slow];
    let slow_down = Quantity::SlowDown {
        scenario: "groups/barriers",
        tenant: "primary",
        set: SLOW,
        than: &[],
    };
    assert_eq!(value(slow_down, &points, "default"), Some(3.0));
    assert_eq!(value(slow_down, &points, "sched"), Some(3.0));
    // The tenant used six CPUs alone and would ideally have four: it takes half as long again.
    assert_eq!(slow_down.ideal(&points), Some(1.5));
    let share = Quantity::Share {
        scenario: "groups/barriers",
        set: SLOW,
        programs: &["of-primary", "of-beside"],
    };
    assert_eq!(value(share, &points, "default"), Some(800.0));
    let nobody = Quantity::Share {
        scenario: "groups/barriers",
        set: SLOW,
        programs: &["of-primary", "of-nobody"],
    };
    assert_eq!(value(nobody, &points, "default"), None);
    assert_eq!(value(slow_down, &points[1..], "default"), None);
    assert_eq!(slow_down.ideal(&points[1..]), None);
}

#[test]
fn values_and_rises_are_of_their_points() {
    const CROWDED: &[&str] = &["a=1"];
    let at = |set: &[&str], p99: f64, idle: f64| {
        let mut point = shared("rpc", set, [2.0, 1.0], 100.0);
        for row in &mut point.result.results {
            row.figures.p99_us = Some(p99);
        }
        for (number, side) in point.result.sides.iter_mut().enumerate() {
            side.idle_cpus = idle + number as f64;
        }
        point
    };
    let points = [at(&[], 200.0, 9.0), at(CROWDED, 300.0, 4.0)];
    let (scenario, tenant) = ("akita/rpc", "primary");
    let of = |metric, set| Quantity::Value {
        scenario,
        tenant,
        metric,
        set,
    };
    let p99 = |set| value(of(Metric::P99Us, set), &points, "default");
    assert_eq!((p99(&[]), p99(CROWDED)), (Some(0.2), Some(0.3)));
    let used = value(of(Metric::CpuShare, CROWDED), &points, "default");
    assert_eq!(used, Some(200.0));
    let rise = Quantity::Rise {
        scenario,
        tenant,
        metric: Metric::P99Us,
        set: CROWDED,
        than: &[],
    };
    assert_eq!(value(rise, &points, "default"), Some(1.5));
    assert_eq!(value(rise, &points[1..], "default"), None);
    let set = CROWDED;
    let idle = Quantity::IdleCpus { scenario, set };
    assert_eq!(value(idle, &points, "default"), Some(4.0));
}

#[test]
fn what_shares_and_slow_downs_are_of_is_measured() {
    for figure in figures() {
        let points = figure.points();
        let there = |scenario: &str, set: &[&str]| {
            let mut points = points.iter();
            points.any(|point| point.scenario == scenario && point.set == set)
        };
        for claim in figure.claims {
            match claim.quantity {
                Quantity::Share { scenario, set, .. }
                | Quantity::Value { scenario, set, .. }
                | Quantity::IdleCpus { scenario, set } => assert!(there(scenario, set)),
                Quantity::SlowDown {
                    scenario,
                    set,
                    than,
                    ..
                }
                | Quantity::Rise {
                    scenario,
                    set,
                    than,
                    ..
                } => assert!(there(scenario, set) && there(scenario, than)),
                _ => {}
            }
        }
    }
}

/// The figure of slow-downs with two points of one program.
pub(crate) fn slow_downs() -> Reproduction {
    let figure = Figure::named("groups-fig1", None).unwrap();
    let claim = figure.claims.iter().find(|it| it.paper == "6").unwrap();
    let Quantity::SlowDown { set, than, .. } = claim.quantity else {
        panic!("{claim:?}");
    };
    let mut slow = shared("barriers", set, [2.5, 5.5], 100.0);
    slow.sharers = sharers("barriers");
    conclude(
        figure,
        vec![shared("barriers", than, [6.0, 0.0], 300.0), slow],
    )
}

/// The points of one figure, few enough to look at.
pub(crate) fn reproduction() -> Reproduction {
    let points = [(0.5, 1.02), (1.5, 0.9), (3.0, 0.6)].map(|(ratio, factor)| {
        point(
            "fork-join-sweep",
            ratio,
            1000.0 * ratio,
            &[("sched", factor)],
        )
    });
    conclude(lab("dasec-fig7"), points.into())
}

/// A point of two tenants' loads on a host of `cpus` CPUs, with each side's greatest 99th percentile in ms
/// (the objective is 1 ms) and the CPUs that tenants hold there.
fn cell(loads: [f64; 2], cpus: u32, sides: &[(&str, f64, Option<f64>)]) -> PointResult {
    let first = [("a", 0.5), ("b", 1.0)];
    let mut point = point("pair", 1.0, 1.0, &[]);
    let (mut rows, mut summaries) = (Vec::new(), Vec::new());
    for (side, p99_ms, held) in sides {
        for (tenant, factor) in first {
            let mut row = point.result.results[0].clone();
            (row.side, row.tenant) = (side.to_string(), tenant.into());
            row.figures.p99_us = Some(1e3 * p99_ms * factor);
            rows.push(row);
        }
        let mut summary = point.result.sides[0].clone();
        (summary.side, summary.held_cpus) = (side.to_string(), *held);
        summaries.push(summary);
    }
    point.result.options.sides = sides.iter().map(|side| side.0.to_string()).collect();
    (point.result.results, point.result.sides) = (rows, summaries);
    point.result.host.cpus = cpus;
    let of = |values: [f64; 2]| {
        first
            .iter()
            .map(|it| it.0.to_string())
            .zip(values)
            .collect()
    };
    (point.loads, point.objectives_us) = (of(loads), of([1e3, 1e3]));
    point
}

#[test]
fn cells_need_the_fewest_cpus_with_which_all_objectives_are_kept() {
    const PAIR: Of = Of {
        scenario: "ufo/pair",
        set: &[],
    };
    let points = [
        // The default is measured on hosts of three sizes, the other sides on the largest.
        cell(
            [50.0, 50.0],
            16,
            &[
                ("default", 0.8, None),
                ("iso", 0.9, Some(14.0)),
                ("ufo", 0.5, Some(10.0)),
            ],
        ),
        cell([50.0, 50.0], 12, &[("default", 0.9, None)]),
        cell([50.0, 50.0], 8, &[("default", 1.1, None)]),
        cell(
            [80.0, 20.0],
            16,
            &[
                ("default", 3.0, None),
                ("iso", 1.0, Some(16.0)),
                ("ufo", 0.5, Some(8.0)),
            ],
        ),
        cell(
            [80.0, 40.0],
            16,
            &[
                ("default", 3.0, None),
                ("iso", 9.0, Some(16.0)),
                ("ufo", 1.0, Some(16.0)),
            ],
        ),
        cell(
            [90.0, 90.0],
            16,
            &[
                ("default", 3.0, None),
                ("iso", 9.0, Some(16.0)),
                ("ufo", 1.1, Some(16.0)),
            ],
        ),
    ];
    let of = |loads: Loads, side: &str| value(Quantity::Loads(loads), &points, side);
    // The VMs are alike, so a cell off the diagonal counts twice.
    assert_eq!(of(Loads::Kept(PAIR), "default"), Some(1.0));
    assert_eq!(of(Loads::Kept(PAIR), "iso"), Some(3.0));
    assert_eq!(of(Loads::Kept(PAIR), "ufo"), Some(5.0));
    let times = Quantity::Against {
        side: "iso",
        quantity: &Quantity::Loads(Loads::Kept(PAIR)),
    };
    assert_eq!(value(times, &points, "ufo"), Some(1.666667));
    assert_eq!(value(times, &points, "iso"), None);
    // 10 of 14 and 8 of 16 CPUs; 10 of 12.
    assert_eq!(of(Loads::Cpus(PAIR, "iso"), "ufo"), Some(0.607143));
    assert_eq!(of(Loads::Cpus(PAIR, "default"), "ufo"), Some(0.833333));
    // With 14 CPUs 100 % each, and with 16 CPUs 120 % against 100 %.
    assert_eq!(of(Loads::Carried(PAIR, "iso"), "ufo"), Some(1.1));
    assert_eq!(of(Loads::Kept(PAIR), "default"), Some(1.0));
}

#[test]
fn the_most_load_lies_where_latency_crosses_the_objective() {
    const OF: Of = Of {
        scenario: "pair",
        set: &[],
    };
    let points = [
        cell(
            [10.0, 10.0],
            4,
            &[("default", 0.1, None), ("ufo", 0.1, None)],
        ),
        cell(
            [20.0, 20.0],
            4,
            &[("default", 0.1, None), ("ufo", 0.2, None)],
        ),
        cell(
            [30.0, 30.0],
            4,
            &[("default", 10.0, None), ("ufo", 0.3, None)],
        ),
        // A load above the first miss does not count.
        cell(
            [40.0, 40.0],
            4,
            &[("default", 0.5, None), ("ufo", 0.4, None)],
        ),
    ];
    let most =
        |side: &str, points: &[PointResult]| value(Quantity::Loads(Loads::Most(OF)), points, side);
    // From a tenth of the objective to ten times it: half way.
    assert_eq!(most("default", &points[..3]), Some(50.0));
    assert_eq!(most("ufo", &points), Some(80.0));
    assert_eq!(most("default", &points[2..3]), Some(0.0));
}

/// Two VMs on a grid of two loads each, of which one cell was measured on two hosts.
pub(crate) fn grid() -> Reproduction {
    let figure = figures().find(|figure| figure.name == "ufo-fig12").unwrap();
    let points = vec![
        cell(
            [20.0, 10.0],
            16,
            &[("default", 0.8, None), ("ufo", 0.5, Some(10.0))],
        ),
        cell([20.0, 10.0], 12, &[("default", 0.9, None)]),
        cell(
            [40.0, 10.0],
            16,
            &[("default", 1.8, None), ("ufo", 0.5, Some(14.0))],
        ),
        cell(
            [40.0, 20.0],
            16,
            &[("default", 1.8, None), ("ufo", 1.5, Some(16.0))],
        ),
    ];
    conclude(figure, points)
}

/// The reproduction from some of a figure's points.
fn conclude(figure: &Figure, points: Vec<PointResult>) -> Reproduction {
    figure.conclude(points, figure.points().len())
}

/// One VM at four loads, with what its guest did.
pub(crate) fn over_load() -> Reproduction {
    let figure = figures().find(|figure| figure.name == "ufo-fig4").unwrap();
    let at = |(number, load): (usize, f64)| {
        let mut point = cell([load, 0.0], 4, &[("default", 0.1 * load, None)]);
        point.loads.remove("b");
        for row in &mut point.result.results {
            (row.tenant, row.class) = (ALL.into(), TenantClass::Latency);
            row.figures.guest = Some(quell_bench::result::GuestFigures {
                switches_per_s: 1000.0 * number as f64,
                ..Default::default()
            });
        }
        point
    };
    let loads = [1.0, 2.0, 3.0, 4.0].into_iter().enumerate();
    conclude(figure, loads.map(at).collect())
}
