//! Shows a capacity in a terminal and as an HTML page: how many tenants fit under each side, and the curve
//! behind that.

use super::charts::{self, CapacityLine, MARKERS};
use super::html::{close, figure, open, put, section};
use super::text::{right_align, table};
use super::words;
use super::words::escape;
use crate::capacity::{Capacity, CapacityPoint, SideCapacity};
use std::fmt::Write;

/// The capacity as text; `styled` for a terminal that shows colours.
pub fn text(capacity: &Capacity, styled: bool) -> String {
    let mut text = format!("Scenario `{}`: {}.\n", capacity.scenario, head(capacity));
    // Writing to a String cannot fail.
    let mut line = |parts: &str| {
        let _ = writeln!(text, "{parts}");
    };
    let mut fits = table(styled, &HEADER);
    for side in &capacity.sides {
        fits.add_row(cells(capacity, side));
    }
    right_align(&mut fits);
    line(&fits.to_string());
    for side in &capacity.sides {
        line(&format!("{}: {}.", side.name, edge(side)));
    }
    for sentence in sentences(capacity) {
        line(&sentence);
    }
    for note in notes(capacity) {
        line(&format!("Note: {note}"));
    }
    text
}

const HEADER: [&str; 7] = [
    "policy",
    "fits",
    "from..to",
    "CPUs busy",
    "batch work",
    "one costs",
    "first to miss with more",
];

fn cells(capacity: &Capacity, side: &SideCapacity) -> [String; 7] {
    let at = side.at(side.fits);
    let more = if side.unbounded { "≥ " } else { "" };
    [
        side.name.clone(),
        format!("{more}{}", side.fits),
        format!("{}..{}", side.low, side.high),
        at.map_or(String::new(), |at| format!("{:.0} %", at.busy_percent)),
        at.and_then(work).unwrap_or_default(),
        side.cpus_each.map_or(String::new(), |cpus| {
            format!("{} CPUs", words::three_digits(cpus))
        }),
        side.limit.as_ref().map_or(String::new(), |limit| {
            format!(
                "{} with {}: {} of {} ({})",
                limit.tenant,
                limit.number,
                words::latency(limit.p99_us),
                words::latency(limit.objective_us),
                words::change(limit.p99_us / limit.objective_us)
            )
        }),
    ]
    .map(|cell| {
        if capacity.host.cpus == 1 {
            cell.replace(" CPUs", " CPU")
        } else {
            cell
        }
    })
}

fn work(at: &CapacityPoint) -> Option<String> {
    let rate = words::three_digits(at.work_per_s?);
    Some(format!(
        "{rate} {}/s",
        at.work_unit.as_deref().unwrap_or("units")
    ))
}

/// What grows, in the plural, such as "copies of the mix".
fn what(capacity: &Capacity) -> String {
    let grows: u32 = capacity
        .mix
        .iter()
        .filter(|share| share.grows)
        .map(|share| share.count)
        .sum();
    match (&capacity.tenant, &capacity.mix[..]) {
        (Some(tenant), _) => format!("tenants `{tenant}`"),
        (None, [one]) if one.count == 1 => format!("tenants `{}`", one.tenant),
        (None, _) => format!("copies of the mix of {grows} tenants"),
    }
}

fn head(capacity: &Capacity) -> String {
    let objectives = capacity.mix.iter().filter_map(|share| {
        let us = share.p99_ms? * 1e3;
        Some(format!("{} {}", share.tenant, words::latency(us)))
    });
    let objectives = objectives.collect::<Vec<_>>().join(", ");
    let set = match &capacity.set[..] {
        [] => String::new(),
        set => format!("; {}", set.join(", ")),
    };
    format!(
        "how many {} fit on {} simulated CPUs with these 99th percentiles: {objectives}. Each number in {} windows of \
         {} s after {} s of warm-up, each with a seed of its own; seed {}{set}",
        what(capacity),
        capacity.host.cpus,
        capacity.pairs,
        capacity.seconds,
        capacity.warmup_seconds,
        capacity.seed
    )
}

/// In how many pairs the numbers around the limit passed.
fn edge(side: &SideCapacity) -> String {
    let last = side
        .points
        .iter()
        .position(|point| point.number > side.high);
    let points = &side.points[..last.map_or(side.points.len(), |last| last + 1)];
    let near = points.iter().filter(|point| point.number >= side.low);
    let shares =
        near.map(|point| format!("{} in {} of {}", point.number, point.passed, point.pairs));
    format!("passed with {}", shares.collect::<Vec<_>>().join(", "))
}

/// A sentence for every side against the first.
fn sentences(capacity: &Capacity) -> Vec<String> {
    let count = |side: &SideCapacity| {
        let more = if side.unbounded { "at least " } else { "" };
        let SideCapacity {
            name,
            fits,
            low,
            high,
            ..
        } = side;
        format!("{name} fits {more}{fits} ({low}..{high})")
    };
    let Some((first, rest)) = capacity.sides.split_first() else {
        return Vec::new();
    };
    let sentence = |side: &SideCapacity| {
        let change = match (first.fits, side.unbounded || first.unbounded) {
            (1.., false) => {
                let ratio = f64::from(side.fits) / f64::from(first.fits);
                format!(": {}", words::change(ratio))
            }
            _ => String::new(),
        };
        format!("{} where {}{change}.", count(side), count(first))
    };
    if rest.is_empty() {
        return vec![format!("{}.", count(first))];
    }
    rest.iter().map(sentence).collect()
}

fn notes(capacity: &Capacity) -> Vec<String> {
    let mut notes = capacity.notes.clone();
    if !capacity.complete {
        notes.insert(
            0,
            "Interrupted: the search did not come to its end.".to_string(),
        );
    }
    notes
}

/// The capacity as one HTML page that works offline.
///
/// # Errors
/// Where a chart cannot be drawn.
pub fn html(capacity: &Capacity) -> anyhow::Result<String> {
    let mut page = open(
        &format!("{}: how many fit", capacity.scenario),
        &format!("{}.", head(capacity)),
    );
    let mut found = String::from("<div class=\"cards\">\n");
    for (index, side) in capacity.sides.iter().enumerate() {
        put(
            &mut found,
            format_args!(
                "<div class=\"card\"><p>{} {}</p><p class=\"big\">{}{}</p><p class=\"hint\">{} to {}</p></div>\n",
                MARKERS[index % MARKERS.len()],
                escape(&side.name),
                if side.unbounded { "≥ " } else { "" },
                side.fits,
                side.low,
                side.high
            ),
        );
    }
    found.push_str("</div>\n");
    for sentence in sentences(capacity) {
        put(&mut found, format_args!("<p>{}</p>\n", escape(&sentence)));
    }
    for note in notes(capacity) {
        put(
            &mut found,
            format_args!("<p class=\"note\">{}</p>\n", escape(&note)),
        );
    }
    section(&mut page, "How many fit", FITS_TEXT, &found);
    section(&mut page, "At the limit", "", &limits(capacity));
    section(&mut page, "The curve", CURVE_TEXT, &curve(capacity)?);
    section(&mut page, "What was tried", "", &tried(capacity));
    close(&mut page);
    Ok(page)
}

const FITS_TEXT: &str = "The greatest number at which every latency tenant kept its objective in every window. Below it: up to the \
    first number everything tried fits, above the second nothing passes in any window.";
const CURVE_TEXT: &str = "The 99th percentile of the tenant that is worst off, over its objective: below the thick line every \
    tenant keeps it. The line goes through the worst window, the small dots are all of them; a label stands at the number that fits.";

fn key(index: usize, side: &str) -> String {
    format!(
        "<i class=\"key\" style=\"background:var(--c{})\"></i>{} {}",
        index % charts::SERIES,
        MARKERS[index % MARKERS.len()],
        escape(side)
    )
}

fn limits(capacity: &Capacity) -> String {
    let mut table = String::from("<div class=\"wide\"><table>\n<thead><tr>");
    for name in HEADER {
        put(&mut table, format_args!("<th>{name}</th>"));
    }
    table.push_str("</tr></thead>\n<tbody>\n");
    for (index, side) in capacity.sides.iter().enumerate() {
        put(
            &mut table,
            format_args!("<tr><td class=\"left\">{}</td>", key(index, &side.name)),
        );
        for cell in &cells(capacity, side)[1..] {
            put(&mut table, format_args!("<td>{}</td>", escape(cell)));
        }
        table.push_str("</tr>\n");
    }
    table.push_str("</tbody></table></div>\n");
    table
}

fn curve(capacity: &Capacity) -> anyhow::Result<String> {
    let line = |side: &SideCapacity| CapacityLine {
        label: side.name.clone(),
        fits: side.fits,
        points: side
            .points
            .iter()
            .map(|point| (point.number, point.worst.clone()))
            .collect(),
    };
    let lines: Vec<CapacityLine> = capacity.sides.iter().map(line).collect();
    let title = format!(
        "99th percentile of the worst tenant over its objective, by number of {}",
        what(capacity)
    );
    let what = format!("number of {}", what(capacity));
    let mut body = String::from("<p class=\"legend\">");
    for (index, side) in capacity.sides.iter().enumerate() {
        put(
            &mut body,
            format_args!("<span>{}</span> ", key(index, &side.name)),
        );
    }
    body.push_str("</p>\n");
    body.push_str(&figure(
        &title,
        &charts::capacity(&title, &what, &lines, (1000, 480))?,
    ));
    Ok(body)
}

fn tried(capacity: &Capacity) -> String {
    let mut table = String::from(
        "<div class=\"wide\"><table>\n<thead><tr><th>policy</th><th>number</th><th>tenants</th><th>windows that passed</th>\
         <th>worst p99 / objective</th><th>CPUs busy</th><th>batch work</th></tr></thead>\n<tbody>\n",
    );
    for (index, side) in capacity.sides.iter().enumerate() {
        for (row, point) in side.points.iter().enumerate() {
            let (group, name) = match row {
                0 => (" class=\"group\"", key(index, &side.name)),
                _ => ("", String::new()),
            };
            put(
                &mut table,
                format_args!(
                    "<tr{group}><td class=\"left\">{name}</td><td>{}</td><td>{}</td><td>{} of {}</td><td>{}</td>\
                     <td>{:.0} %</td><td>{}</td></tr>\n",
                    point.number,
                    point.tenants,
                    point.passed,
                    point.pairs,
                    words::three_digits(point.worst.iter().copied().fold(0.0, f64::max)),
                    point.busy_percent,
                    escape(&work(point).unwrap_or_default())
                ),
            );
        }
    }
    table.push_str("</tbody></table></div>\n");
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::sample;

    #[test]
    fn the_text_says_what_fits_and_how_sure_that_is() {
        let text = text(&sample(), false);
        assert!(
            text.contains("sched fits 23 (19..25) where eevdf fits 18 (18..18): +28 %."),
            "{text}"
        );
        assert!(
            text.contains(
                "passed with 19 in 5 of 5, 20 in 4 of 5, 23 in 5 of 5, 25 in 1 of 5, 26 in 0 of 5"
            ),
            "{text}"
        );
        assert!(
            text.contains("svc-3 with 24: 12.0 ms of 10.0 ms (+20 %)"),
            "{text}"
        );
    }

    #[test]
    fn the_page_stands_alone_and_reads_without_colour() {
        let page = html(&sample()).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
        assert_eq!(page.matches("<svg class=\"chart\"").count(), 1);
        assert_eq!(
            page.matches("http").count(),
            page.matches("xmlns=\"http").count()
        );
        assert!(!page.contains("<script") && !page.contains("NaN"));
        for (marker, side) in MARKERS.iter().zip(["eevdf", "sched"]) {
            assert!(
                page.contains(&format!(" {marker} {side}: ")),
                "{marker} {side}"
            );
        }
        assert!(
            page.contains("worst 99th percentile / objective")
                && page.contains("number of tenants")
        );
        assert!(page.contains(">objective<") || page.contains("\nobjective\n"));
    }
}
