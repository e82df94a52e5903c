//! A figure over loads: a grid of two tenants' loads with the CPUs that each side needs, and curves over one
//! load.

use crate::reproduce::{Doing, PointResult, Reproduction, sides};
use quell_bench::report::escape;
use quell_bench::report::html::{figure, legend, put};
use quell_bench::report::{charts, words};
use quell_bench::result::Metric;
use std::collections::BTreeMap;

/// Two tenants' loads in percent, and the CPUs that a side needs at each; `None`: not measured.
struct Grid<'a> {
    /// The tenants' names with their objectives.
    title: String,
    side: &'a str,
    /// By the second tenant's load, greatest first, then by the first tenant's.
    rows: Vec<(f64, Vec<Option<Cell>>)>,
    /// The first tenant's loads.
    columns: Vec<f64>,
}

/// The CPUs needed in a measured cell; `None`: no number of CPUs keeps the objectives.
#[derive(Clone, Copy)]
struct Cell(Option<f64>);

impl Cell {
    fn text(self) -> String {
        self.0.map_or("x".to_string(), |cpus| format!("{cpus:.0}"))
    }
}

/// Groups points of equal tenants with equal objectives.
fn mixes(points: &[PointResult]) -> Vec<Vec<&PointResult>> {
    let mut mixes: Vec<Vec<&PointResult>> = Vec::new();
    for point in points.iter().filter(|point| point.loads.len() == 2) {
        let same = |mix: &&mut Vec<&PointResult>| mix[0].objectives_us == point.objectives_us;
        match mixes.iter_mut().find(same) {
            Some(mix) => mix.push(point),
            None => mixes.push(vec![point]),
        }
    }
    mixes
}

/// The different loads of a tenant, ascending.
fn axis(mix: &[&PointResult], number: usize) -> Vec<f64> {
    let loads = mix
        .iter()
        .filter_map(|point| point.loads.values().nth(number));
    let mut loads: Vec<f64> = loads.copied().collect();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    loads
}

fn grids<'a>(reproduction: &'a Reproduction, all: &'a [String]) -> Vec<Grid<'a>> {
    let mut grids = Vec::new();
    for mix in mixes(&reproduction.points) {
        let (columns, mut ups) = (axis(&mix, 0), axis(&mix, 1));
        if columns.len() < 2 || ups.len() < 2 {
            continue;
        }
        ups.reverse();
        let objectives = mix[0].objectives_us.iter();
        let named = objectives.map(|(name, us)| format!("{name} within {}", words::latency(*us)));
        let title = named.collect::<Vec<_>>().join(", ");
        for side in all {
            let cell = |one: f64, two: f64| {
                let at = mix
                    .iter()
                    .filter(|it| it.loads.values().copied().eq([one, two]));
                let kept = at.filter_map(|it| Some((it.keeps(side)?, it.held(side)?)));
                kept.fold(None, |cell: Option<Cell>, (kept, cpus)| {
                    let before = cell.and_then(|cell| cell.0);
                    let now = kept.then_some(cpus);
                    let least = [before, now].into_iter().flatten().reduce(f64::min);
                    Some(Cell(least))
                })
            };
            let row = |&two: &f64| (two, columns.iter().map(|&one| cell(one, two)).collect());
            grids.push(Grid {
                title: title.clone(),
                side,
                rows: ups.iter().map(row).collect(),
                columns: columns.clone(),
            });
        }
    }
    grids
}

/// Whether the figure is a grid of two tenants' loads.
pub(super) fn is_grid(reproduction: &Reproduction) -> bool {
    !grids(reproduction, &sides(&reproduction.points)).is_empty()
}

/// The grids for a terminal.
pub(super) fn text(reproduction: &Reproduction) -> String {
    let sides = sides(&reproduction.points);
    let mut text = String::new();
    for grid in grids(reproduction, &sides) {
        put(
            &mut text,
            format_args!(
                "{}, {}: CPUs needed, x where that is not kept\n",
                grid.side, grid.title
            ),
        );
        for (load, cells) in &grid.rows {
            put(&mut text, format_args!("{load:>6.0} % "));
            for cell in cells {
                put(
                    &mut text,
                    format_args!("{:>5}", cell.map_or(String::new(), Cell::text)),
                );
            }
            text.push('\n');
        }
        text.push_str("         ");
        for load in &grid.columns {
            put(&mut text, format_args!("{load:>5.0}"));
        }
        text.push_str(" %\n");
    }
    text
}

/// The grids for a page.
pub(super) fn html(reproduction: &Reproduction) -> String {
    let sides = sides(&reproduction.points);
    let mut page = String::new();
    for grid in grids(reproduction, &sides) {
        let cells = grid.rows.iter().flat_map(|row| row.1.iter().flatten());
        let most = cells.filter_map(|cell| cell.0).fold(1.0, f64::max);
        let mut table =
            String::from("<div class=\"wide\"><table class=\"matrix\">\n<thead><tr><th></th>");
        for load in &grid.columns {
            put(&mut table, format_args!("<th>{load:.0} %</th>"));
        }
        table.push_str("</tr></thead>\n<tbody>\n");
        for (load, cells) in &grid.rows {
            put(&mut table, format_args!("<tr><th>{load:.0} %</th>"));
            for cell in cells {
                let heat = cell
                    .and_then(|cell| cell.0)
                    .map_or(0.0, |cpus| 60.0 * cpus / most);
                let text = cell.map_or(String::new(), Cell::text);
                put(
                    &mut table,
                    format_args!("<td style=\"--heat:{heat:.0}%\">{text}</td>"),
                );
            }
            table.push_str("</tr>\n");
        }
        table.push_str("</tbody></table></div>\n");
        let title = format!("{}: {}", grid.side, grid.title);
        put(
            &mut page,
            format_args!(
                "<figure><figcaption>{}</figcaption>{table}</figure>\n",
                escape(&title)
            ),
        );
    }
    match page.is_empty() {
        true => page,
        false => format!("<div class=\"grid\">\n{page}</div>\n"),
    }
}

/// Points that differ by load only, by the settings that they have in common.
fn curves(points: &[PointResult]) -> BTreeMap<(String, Vec<String>), Vec<&PointResult>> {
    let mut curves: BTreeMap<(String, Vec<String>), Vec<&PointResult>> = BTreeMap::new();
    for point in points.iter().filter(|point| !point.loads.is_empty()) {
        let other = |set: &&String| !set.contains(".load.percent=");
        let set = point.set.iter().filter(other).cloned().collect();
        let curve = curves.entry((point.scenario.clone(), set)).or_default();
        curve.push(point);
    }
    curves.retain(|_, points| points.len() > 2);
    curves
}

/// Charts over the load of all tenants together; empty where that is not varied.
///
/// # Errors
/// Where a chart cannot be drawn.
pub(super) fn charts(reproduction: &Reproduction) -> anyhow::Result<String> {
    if is_grid(reproduction) {
        return Ok(String::new());
    }
    let sides = sides(&reproduction.points);
    let mut grid = String::new();
    for ((scenario, set), points) in curves(&reproduction.points) {
        // Programs are long, and the other settings already tell the curves apart.
        let short = set.iter().filter(|set| set.len() < 40);
        let short: Vec<&str> = short
            .map(|set| set.rsplit("tenant.").next().unwrap_or(set))
            .collect();
        let name = format!("{scenario} {}", short.join(" "));
        let load = |point: &PointResult| point.loads.values().sum::<f64>();
        let line = |of: &dyn Fn(&PointResult, &str) -> Option<f64>| {
            let of_side = |(index, side): (usize, &String)| {
                let at = |point: &&PointResult| Some((load(point), of(point, side)?));
                (
                    points.iter().filter_map(at).collect(),
                    charts::series(index),
                )
            };
            sides.iter().enumerate().map(of_side).collect::<Vec<_>>()
        };
        let p99 = line(&|point, side| {
            Metric::P99Us.of(&crate::reproduce::all_latency(&point.result, side)?.figures)
        });
        let title = format!("{name}: 99th percentile");
        grid.push_str(&figure(&title, &charts::lines(&title, &p99, (560, 320))?));
        let switches = line(&|point, side| point.doing(Doing::GuestSwitches, side));
        let title = format!("{name}: guests' switches per second");
        grid.push_str(&figure(
            &title,
            &charts::counts(&title, &switches, (560, 320))?,
        ));
    }
    Ok(with_legend(&sides, &grid))
}

/// Charts, if there are any, in a grid under a legend of the sides.
pub(super) fn with_legend(sides: &[String], grid: &str) -> String {
    if grid.is_empty() {
        return String::new();
    }
    let legend = legend(sides.iter().map(String::as_str).enumerate());
    format!("{legend}<div class=\"grid\">\n{grid}</div>\n")
}

#[cfg(test)]
mod tests {
    use crate::report::reproduction;
    use crate::reproduce::tests::{grid, over_load};

    #[test]
    fn a_grid_has_the_fewest_cpus_or_a_cross_in_each_cell_that_was_measured() {
        let text = reproduction::text(&grid(), false);
        let of = |side: &str| {
            let mut lines = text.lines().skip_while(|line| !line.starts_with(side));
            lines.next();
            let rows = lines
                .take(3)
                .map(|line| line.split_whitespace().collect::<Vec<_>>());
            rows.collect::<Vec<_>>()
        };
        assert_eq!(
            of("default, a within"),
            [
                vec!["20", "%", "x"],
                vec!["10", "%", "12", "x"],
                vec!["20", "40", "%"],
            ]
        );
        assert_eq!(of("ufo, a within")[1], ["10", "%", "10", "14"]);
        assert!(!text.contains("throughput"), "no table of every point");
        let page = reproduction::html(&grid()).unwrap();
        assert_eq!(page.matches("<table class=\"matrix\">").count(), 2);
        assert!(page.contains(">x</td>") && !page.contains("NaN"));
    }

    #[test]
    fn what_is_varied_by_load_has_curves_over_it() {
        let page = reproduction::html(&over_load()).unwrap();
        assert!(page.contains("Over load") && !page.contains("Over the consolidation ratio"));
        assert!(page.contains("guests&#39; switches per second") && !page.contains("NaN"));
    }
}
