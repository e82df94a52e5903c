//! The page's charts, as SVG.
//!
//! Colours are roles: each is a placeholder that the page's style sheet maps to a light or a dark palette
//! (`[stroke="#010001"] { stroke: var(--c1) }`), so that one picture reads well in both.

use crate::result::{LatencyCurve, ThreadTrack};
use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The colour of text.
pub const INK: RGBColor = RGBColor(2, 0, 0);
/// The colour of the grid's lines.
pub const GRID: RGBColor = RGBColor(3, 0, 0);

/// The colour of a limit: the sixth series' colour, which is a red one.
const LIMIT: RGBColor = RGBColor(1, 0, 5);

/// The `n`-th colour of a series, from 0; colours repeat after [`SERIES`].
pub fn series(n: usize) -> RGBColor {
    RGBColor(1, 0, (n % SERIES) as u8)
}

/// How many series colours the style sheet has.
pub const SERIES: usize = 8;

/// A placeholder colour as the style sheet names it.
pub fn placeholder(RGBColor(r, g, b): RGBColor) -> String {
    format!("#{r:02X}{g:02X}{b:02X}")
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Ticked, Ticked>>;

/// Draws into a new SVG element of this size in pixels, with a label for readers who cannot see it.
fn svg(
    (width, height): (u32, u32),
    label: &str,
    draw: impl FnOnce(&Canvas<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        draw(&canvas)?;
        canvas.present().map_err(|e| anyhow!("drawing: {e}"))?;
    }
    let label = super::words::escape(label);
    Ok(svg.replacen(
        "<svg ",
        &format!("<svg class=\"chart\" role=\"img\" aria-label=\"{label}\" "),
        1,
    ))
}

fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing: {error}")
}

fn label_style() -> TextStyle<'static> {
    TextStyle::from(("sans-serif", 15).into_font()).color(&INK)
}

/// A linear axis with ticks at given values. It may run backwards.
struct Ticked {
    from: f64,
    to: f64,
    ticks: Vec<f64>,
}

impl Ticked {
    fn new(from: f64, to: f64, ticks: Vec<f64>) -> Ticked {
        Ticked { from, to, ticks }
    }
}

impl Ranged for Ticked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let part = (value - self.from) / (self.to - self.from);
        first + (part * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.from..self.to
    }
}

/// Round values (1, 2, 5 times a power of ten) between two logarithms, as logarithms; thinned to a
/// few per chart.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let steps: &[f64] = match high - low {
        span if span > 3.2 => &[1.0],
        span if span > 1.6 => &[1.0, 3.0],
        span if span > 0.5 => &[1.0, 2.0, 5.0],
        _ => &[1.0, 1.2, 1.4, 1.6, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
    };
    let (first, last) = (low.floor() as i32, high.ceil() as i32);
    (first..=last)
        .flat_map(|exponent| {
            steps
                .iter()
                .map(move |step| step.log10() + f64::from(exponent))
        })
        .filter(|tick| (low..=high).contains(tick))
        .collect()
}

/// Least and greatest value with a margin; `None` without values.
fn range(values: impl Iterator<Item = f64>, margin: f64) -> Option<(f64, f64)> {
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| {
            (l.min(v), h.max(v))
        });
    let pad = ((high - low) * margin).max(0.02);
    (low <= high).then_some((low - pad, high + pad))
}

fn tick_latency(log_us: f64) -> String {
    let us = 10f64.powf(log_us);
    let (value, unit) = match us {
        us if us < 999.0 => (us, "µs"),
        us if us < 999_000.0 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    let digits = usize::from((value - value.round()).abs() > 0.04);
    format!("{value:.digits$} {unit}")
}

/// Draws latency over percentile, on an axis that spreads the tail: each further nine has equal room. Every
/// curve comes with its colour.
///
/// # Errors
/// Where the drawing library fails.
pub fn percentiles(
    title: &str,
    curves: &[(&LatencyCurve, RGBColor)],
    size: (u32, u32),
) -> anyhow::Result<String> {
    // The axis is -log10(1 - q): 0 for the minimum, 1 for p90, 2 for p99.
    let nines = |q: f64| -(1.0 - q).log10();
    let points = |curve: &LatencyCurve| -> Vec<(f64, f64)> {
        curve
            .points
            .iter()
            .map(|&(q, us)| (nines(q), us.max(0.1).log10()))
            .collect()
    };
    let all: Vec<(f64, f64)> = curves.iter().flat_map(|(curve, _)| points(curve)).collect();
    let Some((low, high)) = range(all.iter().map(|p| p.1), 0.06) else {
        return Ok(String::new());
    };
    let right = all.iter().map(|p| p.0).fold(1.0, f64::max);
    svg(size, &format!("Latency by percentile: {title}"), |canvas| {
        let ticks = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999];
        let x_ticks: Vec<f64> = ticks
            .into_iter()
            .map(nines)
            .filter(|x| *x <= right)
            .collect();
        let y_ticks = log_ticks(low, high);
        let mut chart = ChartBuilder::on(canvas)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(30)
            .y_label_area_size(64)
            .build_cartesian_2d(
                Ticked::new(0.0, right, x_ticks),
                Ticked::new(low, high, y_ticks),
            )
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .label_style(label_style())
            .x_label_formatter(&|x| percentile_name(*x))
            .y_label_formatter(&|y| tick_latency(*y))
            .draw()
            .map_err(drawing)?;
        for (curve, colour) in curves {
            chart
                .draw_series(LineSeries::new(points(curve), colour.stroke_width(2)))
                .map_err(drawing)?;
        }
        Ok(())
    })
}

/// A line's points, and its colour.
type Line = (Vec<(f64, f64)>, RGBColor);

/// Draws latencies in µs over consolidation ratios, with a logarithmic axis for latencies.
///
/// # Errors
/// Where the drawing library fails.
pub fn lines(title: &str, lines: &[Line], size: (u32, u32)) -> anyhow::Result<String> {
    let logarithmic = |&(x, us): &(f64, f64)| (x, us.max(0.1).log10());
    let lines: Vec<Line> = lines
        .iter()
        .map(|(line, colour)| (line.iter().map(logarithmic).collect(), *colour))
        .collect();
    let all = || lines.iter().flat_map(|(line, _)| line);
    let Some((low, high)) = range(all().map(|p| p.1), 0.06) else {
        return Ok(String::new());
    };
    let right = all().map(|p| p.0).fold(1.0, f64::max);
    let x_ticks = match right {
        // Ratios, or loads in percent.
        ..12.0 => (0..=right.ceil() as u32).map(f64::from).collect(),
        _ => count_ticks(right),
    };
    let x = Ticked::new(0.0, right * 1.03, x_ticks);
    let y = Ticked::new(low, high, log_ticks(low, high));
    graph(title, &lines, (x, y), &|y| tick_latency(*y), size)
}

/// Draws counts over loads, both from 0 on.
///
/// # Errors
/// Where the drawing library fails.
pub fn counts(title: &str, lines: &[Line], size: (u32, u32)) -> anyhow::Result<String> {
    let all = || lines.iter().flat_map(|(line, _)| line);
    let right = all().map(|p| p.0).fold(1.0, f64::max);
    let top = all().map(|p| p.1).fold(1.0, f64::max);
    let x = Ticked::new(0.0, right * 1.03, count_ticks(right));
    let y = Ticked::new(0.0, top * 1.06, count_ticks(top));
    graph(title, lines, (x, y), &|y| format!("{y}"), size)
}

/// Draws parts of a whole, 0 to 1, over counts from 0 on.
///
/// # Errors
/// Where the drawing library fails.
pub fn parts(title: &str, lines: &[Line], size: (u32, u32)) -> anyhow::Result<String> {
    let last = lines.iter().flat_map(|(line, _)| line).map(|p| p.0);
    let right = last.fold(1.0, f64::max);
    let x = Ticked::new(0.0, right * 1.03, count_ticks(right));
    let y = Ticked::new(0.0, 1.0, vec![0.0, 0.25, 0.5, 0.75, 1.0]);
    graph(
        title,
        lines,
        (x, y),
        &|y| format!("{:.0} %", 100.0 * y),
        size,
    )
}

/// Draws lines with a dot at each point.
fn graph(
    title: &str,
    lines: &[Line],
    (x, y): (Ticked, Ticked),
    y_label: &dyn Fn(&f64) -> String,
    size: (u32, u32),
) -> anyhow::Result<String> {
    svg(size, title, |canvas| {
        let mut chart = ChartBuilder::on(canvas)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(30)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .label_style(label_style())
            .x_label_formatter(&|x| format!("{x}"))
            .y_label_formatter(&y_label)
            .draw()
            .map_err(drawing)?;
        for (line, colour) in lines {
            let dots = line.iter().map(|at| Circle::new(*at, 3, colour.filled()));
            chart.draw_series(dots).map_err(drawing)?;
            chart
                .draw_series(LineSeries::new(
                    line.iter().copied(),
                    colour.stroke_width(2),
                ))
                .map_err(drawing)?;
        }
        Ok(())
    })
}

/// A group of bars in [`bars`]: one number for each series, and what it should be.
pub struct Bars {
    /// The label under the group.
    pub label: String,
    /// The number of each series, where there is one.
    pub values: Vec<Option<f64>>,
    /// The ideal number, drawn as a line.
    pub ideal: Option<f64>,
    /// The paper's number, drawn as a ring.
    pub paper: Option<f64>,
}

/// Draws numbers of 0 and more as bars, those of one group side by side.
///
/// # Errors
/// Where the drawing library fails.
pub fn bars(title: &str, all: &[Bars], size: (u32, u32)) -> anyhow::Result<String> {
    let values = all.iter().flat_map(|bars| {
        let marks = [bars.ideal, bars.paper];
        bars.values.iter().copied().chain(marks).flatten()
    });
    let top = values.fold(1.0, f64::max);
    let ticks = (0..all.len()).map(|at| at as f64).collect();
    let x = Ticked::new(-0.5, all.len() as f64 - 0.5, ticks);
    let y = Ticked::new(0.0, top * 1.06, count_ticks(top));
    svg(size, title, |canvas| {
        let mut chart = ChartBuilder::on(canvas)
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(48)
            .build_cartesian_2d(x, y)
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .disable_x_mesh()
            .label_style(label_style())
            .x_label_formatter(&|at| {
                let bars = all.get(at.round() as usize);
                bars.map_or(String::new(), |bars| bars.label.clone())
            })
            .y_label_formatter(&|value| format!("{value}"))
            .draw()
            .map_err(drawing)?;
        for (at, bars) in all.iter().enumerate() {
            let (at, width) = (at as f64, 0.76 / bars.values.len().max(1) as f64);
            for (index, value) in bars.values.iter().enumerate() {
                let Some(value) = *value else { continue };
                let left = at - 0.38 + width * index as f64;
                let corners = [(left, 0.0), (left + width * 0.9, value)];
                let bar = Rectangle::new(corners, series(index).filled());
                chart.draw_series([bar]).map_err(drawing)?;
            }
            if let Some(ideal) = bars.ideal {
                let ends = [(at - 0.44, ideal), (at + 0.44, ideal)];
                let line = PathElement::new(ends, INK.stroke_width(2));
                chart.draw_series([line]).map_err(drawing)?;
            }
            if let Some(paper) = bars.paper {
                let ring = Circle::new((at, paper), 5, INK.stroke_width(2));
                chart.draw_series([ring]).map_err(drawing)?;
            }
        }
        Ok(())
    })
}

/// A side in [`capacity`].
pub struct CapacityLine {
    /// The side's name where its limit is marked.
    pub label: String,
    /// How many tenants fit.
    pub fits: u32,
    /// The numbers tried, rising, and for each pair the worst tenant's 99th percentile over its objective.
    pub points: Vec<(u32, Vec<f64>)>,
}

/// The chart's end: how far a tenant is above this multiple of its objective does not matter.
const FAR_OVER: f64 = 10.0;

/// What marks a series where there is no colour; markers repeat.
pub const MARKERS: [char; 4] = ['●', '▲', '×', '○'];

/// Draws the worst 99th percentile over its objective by the number of tenants; `what` names what is counted.
/// Lines go through the worst pair, dots are the other pairs.
///
/// # Errors
/// Where the drawing library fails.
pub fn capacity(
    title: &str,
    what: &str,
    lines: &[CapacityLine],
    size: (u32, u32),
) -> anyhow::Result<String> {
    let all = || lines.iter().flat_map(|line| &line.points);
    let ratios = all().flat_map(|(_, ratios)| ratios.iter().map(|&ratio| log(ratio)));
    let Some((low, high)) = range(ratios.chain([0.0]), 0.06) else {
        return Ok(String::new());
    };
    let right = f64::from(all().map(|&(number, _)| number).max().unwrap_or(1)) * 1.04;
    svg(size, title, |canvas| {
        let mut chart = ChartBuilder::on(canvas)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(50)
            .y_label_area_size(84)
            .build_cartesian_2d(
                Ticked::new(0.0, right, count_ticks(right)),
                Ticked::new(low, high, log_ticks(low, high)),
            )
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .label_style(label_style())
            .axis_desc_style(label_style())
            .x_desc(what)
            .y_desc("worst 99th percentile / objective")
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| match 10f64.powf(*y) {
                ratio if ratio > FAR_OVER * 0.99 => format!("≥ {FAR_OVER}"),
                ratio => format!("{}", (ratio * 100.0).round() / 100.0),
            })
            .draw()
            .map_err(drawing)?;
        let objective = PathElement::new([(0.0, 0.0), (right, 0.0)], INK.stroke_width(2));
        chart.draw_series([objective]).map_err(drawing)?;
        let style = label_style().pos(Pos::new(HPos::Left, VPos::Bottom));
        let text = Text::new("objective", (right * 0.01, 0.0), style);
        chart.draw_series([text]).map_err(drawing)?;
        for (index, line) in lines.iter().enumerate() {
            draw_line(&mut chart, index, line)?;
            if line.fits == 0 {
                continue;
            }
            // The label has a height of its own for each side.
            let foot = low + (high - low) * 0.06 * index as f64;
            draw_limit(&mut chart, index, line, (foot, right))?;
        }
        Ok(())
    })
}

/// A ratio on the axis of [`capacity`].
fn log(ratio: f64) -> f64 {
    ratio.clamp(0.01, FAR_OVER).log10()
}

/// Draws the `index`-th side's line through its worst pairs, with its markers, and dots for its other pairs.
fn draw_line(chart: &mut Chart<'_, '_>, index: usize, line: &CapacityLine) -> anyhow::Result<()> {
    let colour = series(index);
    let worst = line.points.iter().map(|(number, ratios)| {
        let ratio = ratios.iter().copied().fold(0.0, f64::max);
        (f64::from(*number), log(ratio))
    });
    let worst: Vec<(f64, f64)> = worst.collect();
    let pairs = line.points.iter().flat_map(|(number, ratios)| {
        (ratios.iter()).map(move |&ratio| (f64::from(*number), log(ratio)))
    });
    let dots = pairs.map(|at| Circle::new(at, 2, colour.mix(0.5).filled()));
    chart.draw_series(dots).map_err(drawing)?;
    let path = LineSeries::new(worst.iter().copied(), colour.stroke_width(2));
    chart.draw_series(path).map_err(drawing)?;
    let worst = worst.iter();
    match index % MARKERS.len() {
        0 => chart.draw_series(worst.map(|&at| Circle::new(at, 5, colour.filled()))),
        1 => chart.draw_series(worst.map(|&at| TriangleMarker::new(at, 7, colour.filled()))),
        2 => chart.draw_series(worst.map(|&at| Cross::new(at, 5, colour.stroke_width(2)))),
        _ => chart.draw_series(worst.map(|&at| Circle::new(at, 5, colour.stroke_width(2)))),
    }
    .map_err(drawing)?;
    Ok(())
}

/// Marks how many tenants fit under the `index`-th side: a drop from where its line stops to fit, down to a
/// label at the height `foot`. `right` is the chart's right end.
fn draw_limit(
    chart: &mut Chart<'_, '_>,
    index: usize,
    line: &CapacityLine,
    (foot, right): (f64, f64),
) -> anyhow::Result<()> {
    let at = f64::from(line.fits);
    let drop = PathElement::new([(at, foot), (at, 0.0)], series(index).stroke_width(1));
    chart.draw_series([drop]).map_err(drawing)?;
    let side = if at > right / 2.0 {
        HPos::Right
    } else {
        HPos::Left
    };
    let style = label_style().pos(Pos::new(side, VPos::Bottom));
    let marker = MARKERS[index % MARKERS.len()];
    let text = format!(" {marker} {}: {} ", line.label, line.fits);
    let label = Text::new(text, (at, foot), style);
    chart.draw_series([label]).map_err(drawing)?;
    Ok(())
}

/// Five to ten whole numbers from 0 to `greatest`.
fn count_ticks(greatest: f64) -> Vec<f64> {
    let rough = (greatest / 8.0).max(1.0);
    let decade = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * decade);
    let step = steps
        .into_iter()
        .find(|&step| step >= rough)
        .unwrap_or(rough);
    let count = (greatest / step).floor() as u32;
    (0..=count).map(|n| f64::from(n) * step).collect()
}

fn percentile_name(nines: f64) -> String {
    let percent = 100.0 * (1.0 - 10f64.powf(-nines));
    if percent < 0.01 {
        return "min".into();
    }
    let digits = (nines.round() as usize).saturating_sub(2);
    format!("p{percent:.digits$}")
}

/// One row of [`ratios`].
pub struct RatioRow {
    /// The row's label.
    pub label: String,
    /// The estimated ratio.
    pub ratio: f64,
    /// The interval of the ratio.
    pub interval: Option<(f64, f64)>,
    /// The ratio of each pair, or of each victim, and whether it breaks a limit.
    pub each: Vec<(f64, bool)>,
    /// The colour of the side.
    pub colour: RGBColor,
}

/// Draws ratios against the baseline: a dot for each of several, a bar for the interval, a tick for the
/// estimate. A limit has a line of its own.
///
/// # Errors
/// Where the drawing library fails.
pub fn ratios(
    title: &str,
    rows: &[RatioRow],
    limit: Option<f64>,
    width: u32,
) -> anyhow::Result<String> {
    let limit = limit.map(f64::ln);
    let logs = rows.iter().flat_map(|row| {
        let ends = row
            .interval
            .map_or([row.ratio, row.ratio], |(low, high)| [low, high]);
        let each = row.each.iter().map(|(ratio, _)| *ratio);
        each.chain(ends).map(f64::ln)
    });
    let Some((low, high)) = range(logs.chain(limit).chain([0.0]), 0.06) else {
        return Ok(String::new());
    };
    let longest = rows.iter().map(|row| row.label.chars().count()).max();
    let height = 44 + 34 * rows.len() as u32;
    svg((width, height), &format!("{title}: change"), |canvas| {
        let bottom = rows.len() as f64 - 0.5;
        let mut chart = ChartBuilder::on(canvas)
            .margin(6)
            .margin_right(30)
            .x_label_area_size(28)
            .y_label_area_size((longest.unwrap_or(0) as u32 * 8).max(120))
            .build_cartesian_2d(
                Ticked::new(low, high, ratio_ticks(low, high)),
                Ticked::new(bottom, -0.5, (0..rows.len()).map(|n| n as f64).collect()),
            )
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(TRANSPARENT)
            .disable_y_mesh()
            .label_style(label_style())
            .x_label_formatter(&|log| super::words::change(log.exp()))
            .y_label_formatter(&|row| {
                rows.get(row.round() as usize)
                    .map(|r| r.label.clone())
                    .unwrap_or_default()
            })
            .draw()
            .map_err(drawing)?;
        let line = PathElement::new([(0.0, bottom), (0.0, -0.5)], INK.stroke_width(1));
        chart.draw_series([line]).map_err(drawing)?;
        let limits =
            limit.map(|x| PathElement::new([(x, bottom), (x, -0.5)], LIMIT.stroke_width(2)));
        chart.draw_series(limits).map_err(drawing)?;
        for (index, row) in rows.iter().enumerate() {
            let y = index as f64;
            if let Some((from, to)) = row.interval {
                let bar = Rectangle::new(
                    [(from.ln(), y - 0.2), (to.ln(), y + 0.2)],
                    row.colour.mix(0.28).filled(),
                );
                chart.draw_series([bar]).map_err(drawing)?;
            }
            let dots = row.each.iter().map(|&(ratio, breaks)| {
                let colour = if breaks { LIMIT } else { row.colour };
                Circle::new((ratio.ln(), y), 4, colour.filled())
            });
            chart.draw_series(dots).map_err(drawing)?;
            let at = row.ratio.ln();
            let tick = PathElement::new([(at, y - 0.32), (at, y + 0.32)], INK.stroke_width(2));
            chart.draw_series([tick]).map_err(drawing)?;
        }
        Ok(())
    })
}

/// Round changes within a range of logarithms, no two too close to read.
fn ratio_ticks(low: f64, high: f64) -> Vec<f64> {
    let fine = (1..=40).map(|n| f64::from(n) * 0.05);
    let coarse = [3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 0.02, 0.01];
    let finest = [
        0.9, 0.92, 0.94, 0.96, 0.98, 0.99, 1.01, 1.02, 1.04, 1.06, 1.08, 1.1,
    ];
    // Sorted from no change outwards, so that the tick at no change is always there.
    let mut candidates: Vec<f64> = fine.chain(coarse).chain(finest).map(f64::ln).collect();
    candidates.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let apart = (high - low) * 0.14;
    let mut ticks: Vec<f64> = Vec::new();
    for tick in candidates
        .into_iter()
        .filter(|tick| (low..=high).contains(tick))
    {
        if ticks.iter().all(|other| (other - tick).abs() >= apart) {
            ticks.push(tick);
        }
    }
    ticks.sort_by(f64::total_cmp);
    ticks
}

/// What a timeline shows of each thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Track {
    /// The planned rescheduling latency.
    Latency,
    /// The planned weight.
    Weight,
}

/// Draws threads' planned settings over time, as steps. Every track comes with its colour; `end_ms` is when
/// the run ends, `window_ms` when its measured part begins, both in ms.
///
/// # Errors
/// Where the drawing library fails.
pub fn timeline(
    what: Track,
    tracks: &[(&ThreadTrack, RGBColor)],
    window_ms: f64,
    end_ms: f64,
    size: (u32, u32),
) -> anyhow::Result<String> {
    let lines: Vec<(Vec<(f64, f64)>, RGBColor)> = tracks
        .iter()
        .map(|&(track, colour)| (steps(track, what, end_ms), colour))
        .filter(|(points, _)| !points.is_empty())
        .collect();
    let values = lines
        .iter()
        .flat_map(|(points, _)| points.iter().map(|p| p.1));
    let Some((low, high)) = range(values, 0.06) else {
        return Ok(String::new());
    };
    let label = match what {
        Track::Latency => "Planned rescheduling latency of each thread over time",
        Track::Weight => "Planned weight of each thread over time",
    };
    svg(size, label, |canvas| {
        let mut chart = ChartBuilder::on(canvas)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(30)
            .y_label_area_size(64)
            .build_cartesian_2d(
                0.0..end_ms / 1e3,
                Ticked::new(low, high, log_ticks(low, high)),
            )
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .label_style(label_style())
            .x_labels(8)
            .x_label_formatter(&|s| format!("{s:.0} s"))
            .y_label_formatter(&|y| match what {
                Track::Latency => tick_latency(*y),
                Track::Weight => format!("{:.0}", 10f64.powf(*y)),
            })
            .draw()
            .map_err(drawing)?;
        for (points, colour) in lines {
            chart
                .draw_series(LineSeries::new(points, colour.mix(0.75).stroke_width(1)))
                .map_err(drawing)?;
        }
        let window = window_ms / 1e3;
        let line = PathElement::new(
            [(window, low), (window, high)],
            INK.mix(0.6).stroke_width(1),
        );
        chart.draw_series([line]).map_err(drawing)?;
        let style = label_style().pos(Pos::new(HPos::Left, VPos::Top));
        let text = Text::new(
            "measured from here",
            (window + end_ms / 1e3 * 0.01, high),
            style,
        );
        chart.draw_series([text]).map_err(drawing)?;
        Ok(())
    })
}

/// A track as the corners of a step line, with values as logarithms.
fn steps(track: &ThreadTrack, what: Track, end_ms: f64) -> Vec<(f64, f64)> {
    let mut corners: Vec<(f64, f64)> = Vec::new();
    for point in &track.points {
        let value = match what {
            Track::Latency => point.latency_us,
            Track::Weight => point.weight,
        };
        let Some(value) = value.filter(|value| *value > 0.0) else {
            continue;
        };
        let at = point.at_ms as f64 / 1e3;
        if let Some(&(_, before)) = corners.last() {
            corners.push((at, before));
        }
        corners.push((at, value.log10()));
    }
    if let Some(&(_, last)) = corners.last() {
        corners.push((end_ms / 1e3, last));
    }
    corners
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::TrackPoint;

    #[test]
    fn percentiles_have_their_usual_names() {
        let name = |q: f64| percentile_name(-(1.0f64 - q).log10());
        let names = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999].map(name);
        assert_eq!(names, ["min", "p50", "p90", "p99", "p99.9", "p99.99"]);
    }

    #[test]
    fn ticks_are_round_and_apart() {
        assert_eq!(log_ticks(2.9, 4.1).len(), 4); // 1, 2, 5, 10 ms
        let ticks = ratio_ticks(-0.7, 0.2);
        assert!(ticks.contains(&0.0));
        assert!(ticks.windows(2).all(|w| w[1] - w[0] >= 0.9 * 0.14 - 1e-9));
        assert!(
            ratio_ticks(-0.03, 0.03).len() >= 3,
            "{:?}",
            ratio_ticks(-0.03, 0.03)
        );
    }

    #[test]
    fn steps_hold_until_the_next_change_and_to_the_end() {
        let point = |at_ms, us| TrackPoint {
            at_ms,
            latency_us: us,
            weight: None,
        };
        let track = ThreadTrack {
            tenant: "t".into(),
            tid: 1,
            name: "n".into(),
            points: vec![
                point(0, Some(1_000.0)),
                point(80, None),
                point(160, Some(100.0)),
            ],
        };
        assert_eq!(
            steps(&track, Track::Latency, 1_000.0),
            [(0.0, 3.0), (0.16, 3.0), (0.16, 2.0), (1.0, 2.0)]
        );
        assert!(steps(&track, Track::Weight, 1_000.0).is_empty());
    }
}
