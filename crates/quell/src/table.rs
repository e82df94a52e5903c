//! Text for terminals: tables and figures with units.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use std::borrow::Cow;

/// A table with these headings; all columns but the first `left` are right-aligned.
pub fn new<H: Into<String>>(headings: impl IntoIterator<Item = H>, left: usize) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.into_iter().map(|h| Cell::new(h.into())));
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if index == 0 { 0 } else { 1 }, 1));
        if index >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A figure, or `-` where it was not seen.
pub fn or_dash<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_string(), text)
}

/// The most characters of a name in a table.
const NAME_MOST: usize = 32;

/// A name for a column beside figures. Of a long name only the beginning and the end are shown, so that the
/// figures stay in sight; the end has the number that tells similar names apart.
pub fn name(name: &str) -> Cow<'_, str> {
    let length = name.chars().count();
    if length <= NAME_MOST {
        return Cow::Borrowed(name);
    }
    let half = NAME_MOST / 2;
    let begin = name.chars().take(half - 1);
    let end = name.chars().skip(length - half);
    Cow::Owned(begin.chain(['…']).chain(end).collect())
}

/// A time given in µs, with a unit that keeps it short.
pub fn micros(us: f64) -> String {
    match us {
        us if us < 1000.0 => format!("{us:.0} us"),
        us if us < 100_000.0 => format!("{:.1} ms", us / 1e3),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// A time given in ns, with a unit that keeps it short.
pub fn nanos(ns: u64) -> String {
    micros(ns as f64 / 1e3)
}

/// An amount of memory, given in bytes, in MiB.
pub fn bytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// A long time, given in seconds.
pub fn duration(seconds: f64) -> String {
    let s = seconds as u64;
    match s {
        s if s < 120 => format!("{s} s"),
        s if s < 7200 => format!("{} min", s / 60),
        s if s < 172_800 => format!("{} h {} min", s / 3600, s / 60 % 60),
        s => format!("{} days", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_have_units() {
        assert_eq!(
            [0.0, 999.0, 1000.0, 123_456.0, 2e6].map(micros),
            ["0 us", "999 us", "1.0 ms", "123 ms", "2.0 s"]
        );
        assert_eq!(
            [5.0, 300.0, 7260.0, 2e5].map(duration),
            ["5 s", "5 min", "2 h 1 min", "2 days"]
        );
        assert_eq!(bytes(3 << 19), "1.5 MiB");
    }

    #[test]
    fn long_names_keep_what_tells_them_apart() {
        assert_eq!(name("web"), "web");
        let pod = "kubepods-burstable-pod-0123456789-memcached-17";
        assert_eq!(name(pod), "kubepods-bursta…789-memcached-17");
        assert_eq!(name(pod).chars().count(), NAME_MOST);
    }

    #[test]
    fn columns_line_up() {
        let mut table = new(["TENANT", "CPU"], 1);
        table.add_row(["a", "1"]).add_row(["longer", "10"]);
        let lines: Vec<_> = table.lines().map(|l| l.trim_end().to_string()).collect();
        assert_eq!(lines, ["TENANT  CPU", "a         1", "longer   10"]);
    }
}
