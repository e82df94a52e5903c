//! Quantities of tenants' loads and objectives: how much load a side carries, in how many cells of a grid of
//! loads, on how many cores, and what hosts and guests do meanwhile.
//!
//! Problem: papers that pack tenants say at which loads all objectives are kept, on how many cores. How: a
//! point knows each tenant's load in percent of the most that the tenant answers in time by itself, and its
//! objective; points of equal loads on hosts of different sizes are one *cell*. What a cell needs on a side
//! is the fewest CPUs with which all objectives were kept: CPUs that tenants held, or all of the host where
//! no tenant has CPUs of its own.

use super::PointResult;
use quell_bench::result::{ALL, GuestFigures, Metric, SideResult};
use quell_model::config::TenantClass;
use quell_scenario::{Scenario, TenantInstance};
use std::collections::BTreeMap;

/// Loads in percent by tenant; they identify a cell.
type Cell<'a> = &'a BTreeMap<String, f64>;

/// The load of each tenant that has one in percent of the most that it answers in time by itself.
pub fn loads(scenario: &Scenario) -> BTreeMap<String, f64> {
    let instances = scenario.instances().into_iter();
    let load = |it: TenantInstance<'_>| {
        let percent = it.table.load.as_ref()?.percent?;
        Some((it.name.to_string(), percent))
    };
    instances.filter_map(load).collect()
}

/// The objective of each tenant that has one: its 99th percentile in µs.
pub fn objectives_us(scenario: &Scenario) -> BTreeMap<String, f64> {
    let instances = scenario.instances().into_iter();
    let objective = |it: TenantInstance<'_>| {
        let objective = it.table.spec.objective?;
        Some((it.name.to_string(), 1e3 * objective.p99_ms))
    };
    instances.filter_map(objective).collect()
}

/// The points that a quantity is computed from.
#[derive(Debug, Clone, Copy)]
pub struct Of {
    /// The scenario.
    pub scenario: &'static str,
    /// The settings that these points begin with.
    pub set: &'static [&'static str],
}

/// A quantity computed from points with loads, for a side.
#[derive(Debug, Clone, Copy)]
pub enum Loads {
    /// The greatest load, of all tenants together in percent, up to which all objectives are kept;
    /// interpolated between two points by the latencies of their worst tenants, on a logarithmic scale.
    Most(Of),
    /// The number of cells in which all objectives are kept. Where VMs are alike only one of two mirrored
    /// cells is measured, and counts twice.
    Kept(Of),
    /// The mean of several quantities.
    Mean(&'static [Loads]),
    /// CPUs needed against another side: the mean over the cells in which both keep all objectives.
    Cpus(Of, &'static str),
    /// The greatest load against another side: the mean over numbers of CPUs with which both keep all
    /// objectives somewhere.
    Carried(Of, &'static str),
    /// How well a parabola that opens downwards fits the switches of guests over their utilization, as UFO
    /// fits one: R², negative where the parabola opens upwards.
    Concavity(Of),
    /// What hosts and guests do at one point, which has exactly these settings.
    Doing(Of, Doing),
    /// How much a metric of all latency-critical tenants differs from one window to the next at one point:
    /// its standard deviation as a part of its mean.
    Spread(Of, Metric),
    /// In how many seconds of the window a tenant's objective was missed, at one point.
    Late(Of, &'static str),
    /// The CPUs that tenants hold, in the mean, at one point; all CPUs where no tenant has CPUs of its own.
    Held(Of),
    /// One quantity over another: 1 is no difference.
    Over(&'static Loads, &'static Loads),
}

/// What hosts and guests do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Switches of the host's CPUs, emulator threads included, per second.
    AllHostSwitches,
    /// Switches of the host to vCPUs, per second.
    HostSwitches,
    /// Switches of all guests' schedulers, per second.
    GuestSwitches,
    /// How many vCPUs wait for a CPU, in the mean.
    HostDelay,
    /// How many threads of guests wait for a vCPU, in the mean.
    GuestDelay,
    /// CPU time as guests count it, in CPUs.
    Used,
    /// VM exits per second.
    Exits,
    /// CPU time of emulator threads, in percent of that of vCPUs.
    Emulators,
}

impl Loads {
    /// The quantity's value for a side.
    pub(super) fn of(&self, points: &[PointResult], side: &str) -> Option<f64> {
        match self {
            Loads::Most(of) => of.most(points, side),
            Loads::Kept(of) => {
                let cells = of.cells(points);
                let measured = of.points(points).any(|point| point.keeps(side).is_some());
                let alike = cells.iter().all(|cell| cell.values().rev().is_sorted());
                let counts = |cell: Cell<'_>| match of.cpus(points, cell, side) {
                    Some(_) if alike && !cell.values().is_sorted() => 2,
                    Some(_) => 1,
                    None => 0,
                };
                measured.then(|| f64::from(cells.into_iter().map(counts).sum::<u32>()))
            }
            Loads::Cpus(of, than) => {
                let cells = of.cells(points).into_iter();
                let ratio =
                    |cell| Some(of.cpus(points, cell, side)? / of.cpus(points, cell, than)?);
                mean(cells.filter_map(ratio))
            }
            Loads::Carried(of, than) => {
                let mut counts: Vec<u32> = Vec::new();
                for cell in of.cells(points) {
                    for side in [side, than] {
                        counts.extend(of.cpus(points, cell, side).map(|it| it.ceil() as u32));
                    }
                }
                counts.sort_unstable();
                counts.dedup();
                let most = |cpus: u32, side: &str| {
                    let cells = of.cells(points).into_iter().filter(|cell| {
                        let needs = of.cpus(points, cell, side);
                        needs.is_some_and(|it| it <= f64::from(cpus))
                    });
                    cells.map(sum).reduce(f64::max)
                };
                let ratio = |cpus| Some(most(cpus, side)? / most(cpus, than)?);
                mean(counts.into_iter().filter_map(ratio))
            }
            Loads::Concavity(of) => {
                let at = |point: &PointResult| {
                    let switches = point.doing(Doing::GuestSwitches, side)?;
                    Some((point.doing(Doing::Used, side)?, switches))
                };
                parabola(&of.points(points).filter_map(at).collect::<Vec<_>>())
            }
            Loads::Doing(of, doing) => {
                let mut at = of.points(points).filter(|point| point.set == of.set);
                at.next()?.doing(*doing, side)
            }
            Loads::Spread(of, metric) => {
                let mut at = of.points(points).filter(|point| point.set == of.set);
                at.next()?.spread(*metric, side)
            }
            Loads::Late(of, tenant) => {
                let mut at = of.points(points).filter(|point| point.set == of.set);
                let row = super::tenant_row(&at.next()?.result, tenant, side)?;
                row.figures.late_seconds.map(|it| it as f64)
            }
            Loads::Held(of) => {
                let mut at = of.points(points).filter(|point| point.set == of.set);
                at.next()?.held(side)
            }
            Loads::Mean(of) => mean(of.iter().filter_map(|it| it.of(points, side))),
            Loads::Over(one, other) => Some(one.of(points, side)? / other.of(points, side)?),
        }
    }

    /// The points that it is computed from.
    #[cfg(test)]
    pub(super) fn ofs(&self) -> Vec<Of> {
        match self {
            Loads::Most(of)
            | Loads::Kept(of)
            | Loads::Cpus(of, _)
            | Loads::Carried(of, _)
            | Loads::Concavity(of)
            | Loads::Doing(of, _)
            | Loads::Spread(of, _)
            | Loads::Late(of, _)
            | Loads::Held(of) => vec![*of],
            Loads::Mean(all) => all.iter().flat_map(Loads::ofs).collect(),
            Loads::Over(one, other) => [one.ofs(), other.ofs()].concat(),
        }
    }

    /// A value as it is printed.
    pub(super) fn text(&self, value: f64) -> String {
        match self {
            Loads::Mean(of) => of.first().map_or(String::new(), |first| first.text(value)),
            Loads::Most(_) => format!("{value:.0} %"),
            Loads::Kept(_) | Loads::Late(..) => format!("{value:.0}"),
            Loads::Held(_) => format!("{value:.1}"),
            Loads::Cpus(..) | Loads::Carried(..) | Loads::Over(..) => {
                quell_bench::report::change(value)
            }
            Loads::Spread(..) => format!("{:.1} %", 100.0 * value),
            Loads::Concavity(_) if value < 0.0 => format!("convex, R² {:.2}", -value),
            Loads::Concavity(_) => format!("R² {value:.3}"),
            Loads::Doing(_, doing) => match doing {
                Doing::AllHostSwitches
                | Doing::HostSwitches
                | Doing::GuestSwitches
                | Doing::Exits => {
                    format!("{:.1}k", value / 1e3)
                }
                Doing::HostDelay | Doing::GuestDelay => format!("{value:.3}"),
                Doing::Used => format!("{value:.1}"),
                Doing::Emulators => format!("{value:.0} %"),
            },
        }
    }
}

impl Of {
    fn points<'a>(&self, points: &'a [PointResult]) -> impl Iterator<Item = &'a PointResult> {
        let (name, set) = (self.scenario.rsplit('/').next(), self.set);
        points.iter().filter(move |point| {
            let first = point.set.get(..set.len());
            name == Some(&point.scenario) && first.is_some_and(|first| first == set)
        })
    }

    /// The cells of these points, each once.
    fn cells<'a>(&self, points: &'a [PointResult]) -> Vec<Cell<'a>> {
        let mut cells: Vec<Cell<'a>> = Vec::new();
        for point in self.points(points) {
            if !cells.contains(&&point.loads) {
                cells.push(&point.loads);
            }
        }
        cells
    }

    /// The fewest CPUs with which all objectives are kept in a cell; `None`: with none of the numbers that
    /// were measured.
    fn cpus(&self, points: &[PointResult], cell: Cell<'_>, side: &str) -> Option<f64> {
        let of_cell = self.points(points).filter(|point| point.loads == *cell);
        let kept = of_cell.filter(|point| point.keeps(side) == Some(true));
        kept.filter_map(|point| point.held(side)).reduce(f64::min)
    }

    fn most(&self, points: &[PointResult], side: &str) -> Option<f64> {
        let at = |point: &PointResult| Some((sum(&point.loads), point.miss(side)?));
        let mut all: Vec<(f64, f64)> = self.points(points).filter_map(at).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut kept = None;
        for (load, miss) in all {
            match kept {
                _ if miss <= 1.0 => kept = Some((load, miss)),
                // The load at which the line between the two points crosses the objective.
                Some((before, held)) => {
                    let part = -held.ln() / (miss.ln() - held.ln());
                    return Some(before + part * (load - before));
                }
                None => return Some(0.0),
            }
        }
        kept.map(|it| it.0)
    }
}

impl PointResult {
    /// The greatest ratio of a tenant's 99th percentile to its objective; `None` where no tenant has an
    /// objective, or a percentile was not measured.
    fn miss(&self, side: &str) -> Option<f64> {
        let of = |(tenant, objective): (&String, &f64)| {
            let row = super::tenant_row(&self.result, tenant, side)?;
            Some(row.figures.p99_us? / objective)
        };
        let all: Option<Vec<f64>> = self.objectives_us.iter().map(of).collect();
        all?.into_iter().reduce(f64::max)
    }

    /// Whether all objectives are kept; `None` where that is not known.
    pub(crate) fn keeps(&self, side: &str) -> Option<bool> {
        self.miss(side).map(|it| it <= 1.0)
    }

    /// The CPUs that tenants hold; all CPUs where no tenant has CPUs of its own.
    pub(crate) fn held(&self, side: &str) -> Option<f64> {
        let mut sides = self.result.sides.iter();
        let of = sides.find(|it| it.side == side)?;
        Some(of.held_cpus.unwrap_or(self.result.host.cpus.into()))
    }

    /// The standard deviation over windows of a metric of all latency-critical tenants, as a part of its
    /// mean.
    fn spread(&self, metric: Metric, side: &str) -> Option<f64> {
        let runs = self.result.runs.iter().filter(|run| run.side == side);
        let of_run = |run: &quell_bench::result::Run| {
            let mut rows = run.tenants.iter();
            let row = rows.find(|row| row.tenant == ALL && row.class == TenantClass::Latency)?;
            metric.of(&row.figures)
        };
        let values: Vec<f64> = runs.filter_map(of_run).collect();
        let mean = mean(values.iter().copied())?;
        let squares = values
            .iter()
            .map(|it| (it - mean) * (it - mean))
            .sum::<f64>();
        (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt() / mean)
    }

    /// What hosts and guests do at this point.
    pub(crate) fn doing(&self, doing: Doing, side: &str) -> Option<f64> {
        if doing == Doing::AllHostSwitches {
            let mut sides = self.result.sides.iter();
            return sides.find(|it| it.side == side)?.switches_per_s;
        }
        let rows = self.result.results.iter();
        let of_class = |row: &&SideResult| row.side == side && row.tenant == ALL;
        let guests = rows.filter(of_class).filter_map(|row| row.figures.guest);
        let value = |it: GuestFigures| match doing {
            Doing::GuestSwitches => it.switches_per_s,
            Doing::Exits => it.exits_per_s,
            Doing::Used => it.used,
            Doing::HostDelay => it.steal,
            Doing::GuestDelay => it.waiting,
            Doing::Emulators => 100.0 * it.emulators / it.vcpus,
            Doing::HostSwitches => it.host_switches_per_s,
            Doing::AllHostSwitches => f64::NAN,
        };
        guests.map(value).reduce(|sum, it| sum + it)
    }
}

/// The load of all tenants together.
fn sum(cell: Cell<'_>) -> f64 {
    cell.values().sum()
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), it| (sum + it, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// R² of the parabola that fits best, negative where it opens upwards; `None` with fewer than four points.
fn parabola(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    if points.len() < 4 {
        return None;
    }
    // Orthogonal to the constant, then to the straight line: so what each term adds to the fit can be
    // computed by itself.
    let (x, y) = (
        points.iter().map(|it| it.0).sum::<f64>() / count,
        points.iter().map(|it| it.1).sum::<f64>() / count,
    );
    let dot =
        |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|it| of(it.0 - x, it.1 - y)).sum::<f64>();
    let (squares, cubes) = (dot(&|a, _| a * a), dot(&|a, _| a * a * a));
    let bend = |a: f64| a * a - squares / count - a * cubes / squares;
    let (slope, curve) = (
        dot(&|a, b| a * b) / squares,
        dot(&|a, b| bend(a) * b) / dot(&|a, _| bend(a) * bend(a)),
    );
    let all = dot(&|_, b| b * b);
    let left = dot(&|a, b| {
        let off = b - slope * a - curve * bend(a);
        off * off
    });
    let fit = 1.0 - left / all;
    Some(if curve < 0.0 { fit } else { -fit }).filter(|it| it.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parabola_is_known_by_how_it_opens() {
        let of = |f: &dyn Fn(f64) -> f64| {
            let points: Vec<(f64, f64)> = (0..8).map(|x| (x.into(), f(x.into()))).collect();
            parabola(&points).unwrap()
        };
        assert!((of(&|x| 3.0 + 5.0 * x - x * x) - 1.0).abs() < 1e-9);
        assert!((of(&|x| x * x) + 1.0).abs() < 1e-9);
        // A sine is no parabola.
        let wave = of(&|x| (2.5 * x).sin());
        assert!(wave.abs() < 0.5, "{wave}");
        assert_eq!(parabola(&[(0.0, 1.0), (1.0, 2.0), (2.0, 1.0)]), None);
    }
}
