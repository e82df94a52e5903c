//! `quell status --matrix`: for each tenant, which tenants made it wait, and how long.

use crate::table;
use quell_agent::wire::{Matrix, MatrixPart};
use quell_model::{TenantName, WaitBreakdown};
use std::collections::BTreeMap;

/// How many tenants have a column of their own; the rest share one.
pub const MOST_COLUMNS: usize = 8;

/// The window as a table: rows waited, columns had the CPU meanwhile. The `most` tenants that made others
/// wait longest have columns of their own.
pub fn render(matrix: &Matrix, most: usize) -> String {
    let part = &matrix.window;
    if part.rows.is_empty() {
        return "no tenants yet".to_string();
    }
    if part.rows.iter().all(|row| row.waits.is_none()) {
        let source = format!("{:?}", matrix.source).to_lowercase();
        return format!(
            "who made whom wait is not seen: the source is {source}, and only the BPF monitor sees causes \
             (`quell status` says why it is not used)"
        );
    }
    let columns = columns(part, most);
    let short = |name: &TenantName| table::name(name.as_str()).into_owned();
    let headings: Vec<String> = ["WAITED", "TOTAL ms/s", "itself"]
        .into_iter()
        .map(str::to_string)
        .chain(columns.iter().map(short))
        .chain(["others", "host", "steal", "unknown", "limit"].map(str::to_string))
        .collect();
    let mut table = table::new(headings, 1);
    for row in &part.rows {
        let Some(waits) = &row.waits else {
            let blank = std::iter::repeat_n("-".to_string(), columns.len() + 7);
            table.add_row(std::iter::once(short(&row.tenant)).chain(blank));
            continue;
        };
        let total = waits.ready_ns();
        let cell = |ns: u64| cell(ns, total, part.length_ns);
        let of = |name: &TenantName| {
            let at = waits.tenants.binary_search_by(|(other, _)| other.cmp(name));
            at.map_or(0, |at| waits.tenants[at].1)
        };
        let all = waits.tenants_ns();
        let shown: u64 = columns.iter().map(of).sum();
        let mut cells = vec![
            short(&row.tenant),
            per_second(total, part.length_ns),
            cell(waits.own_ns),
        ];
        cells.extend(columns.iter().map(|name| match *name == row.tenant {
            true => String::new(),
            false => cell(of(name)),
        }));
        let rest = [all - shown, waits.host_ns, waits.steal_ns, waits.unknown_ns];
        cells.extend(rest.map(cell));
        cells.push(match waits.bandwidth_ns {
            0 => ".".to_string(),
            ns => per_second(ns, part.length_ns),
        });
        table.add_row(cells);
    }
    format!(
        "{table}\nlast {:.0} s; ms that the row's threads waited for a CPU per second, and the share of their \
         waiting, by who had it\nsteal: the hypervisor below this host; host: threads of no tenant; \
         limit: ms per second for which their own CPU bandwidth limit stopped them, which is not in TOTAL",
        part.length_ns as f64 / 1e9
    )
}

/// The tenants that made others wait longest, ascending by name.
fn columns(part: &MatrixPart, most: usize) -> Vec<TenantName> {
    let mut caused: BTreeMap<&TenantName, u64> = BTreeMap::new();
    for (name, ns) in part
        .rows
        .iter()
        .filter_map(|row| row.waits.as_ref())
        .flat_map(others)
    {
        *caused.entry(name).or_default() += ns;
    }
    let mut caused: Vec<_> = caused.into_iter().filter(|(_, ns)| *ns > 0).collect();
    caused.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let mut names: Vec<_> = caused
        .into_iter()
        .take(most)
        .map(|(name, _)| name.clone())
        .collect();
    names.sort();
    names
}

fn others(waits: &WaitBreakdown) -> impl Iterator<Item = (&TenantName, u64)> {
    waits.tenants.iter().map(|(name, ns)| (name, *ns))
}

fn per_second(ns: u64, length_ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e6 / (length_ns.max(1) as f64 / 1e9))
}

fn cell(ns: u64, total: u64, length_ns: u64) -> String {
    if ns == 0 {
        return ".".to_string();
    }
    let share = 100.0 * ns as f64 / total.max(1) as f64;
    format!("{} {share:3.0} %", per_second(ns, length_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_agent::wire::MatrixRow;
    use quell_model::Source;

    fn row(name: &str, waits: WaitBreakdown) -> MatrixRow {
        MatrixRow {
            tenant: name.into(),
            waits: Some(waits),
            occasions_ns: None,
        }
    }

    fn two_seconds(rows: Vec<MatrixRow>) -> Matrix {
        let window = MatrixPart {
            length_ns: 2_000_000_000,
            rows,
        };
        Matrix {
            source: Source::Bpf,
            total: window.clone(),
            window,
        }
    }

    #[test]
    fn rows_waited_columns_caused_and_shares_add_up() {
        let web = WaitBreakdown {
            own_ns: 20_000_000,
            tenants: vec![("img".into(), 100_000_000), ("tiny".into(), 1_000_000)],
            others_ns: 0,
            host_ns: 40_000_000,
            bandwidth_ns: 3_000_000,
            steal_ns: 39_000_000,
            unknown_ns: 0,
        };
        let img = WaitBreakdown {
            tenants: vec![("web".into(), 2_000_000)],
            ..Default::default()
        };
        let matrix = two_seconds(vec![row("img", img), row("web", web)]);
        let text = render(&matrix, 1);
        let lines: Vec<_> = text
            .lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines[0],
            "WAITED TOTAL ms/s itself img others host steal unknown limit"
        );
        assert_eq!(lines[1], "img 1.0 . 1.0 100 % . . . .");
        assert_eq!(
            lines[2],
            "web 100.0 10.0 10 % 50.0 50 % 0.5 0 % 20.0 20 % 19.5 20 % . 1.5"
        );
    }

    #[test]
    fn without_bpf_it_says_what_is_not_seen() {
        let mut matrix = two_seconds(vec![row("a", WaitBreakdown::default())]);
        matrix.source = Source::Procfs;
        matrix.window.rows[0].waits = None;
        assert!(render(&matrix, 8).contains("the source is procfs"));
    }
}
