//! Finds of the hunt on a real kernel: each is played as a scenario, in the kernel lab or on this host.
//!
//! Problem: what the hunt finds is simulated, under a simulated EEVDF. Approach: a workload becomes a
//! scenario ([`scenario`]), whose tenants the usual player plays, and the recorder tells how long each light
//! task's threads were ready before they ran. A find is confirmed where the 99th percentile breaks the hunt's
//! own limit ([`super::LIMIT`]) there as well.
//!
//! Limits: a cgroup that holds tasks and groups, which cgroup v2 refuses, cannot be played. Run delays are
//! those of every activation, also of threads that were preempted; the hunt's are those of wakeups only.
//! Caches are those of the machine.

use super::light::light;
use super::score::LEAST_MS;
use super::{Case, LIMIT, SLICE_MS, Workload};
use anyhow::Context;
use quell_bench::report;
use quell_bench::result::{BenchResult, SCHEMA};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// What was measured; the JSON of `quell-studies confirm --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Confirmed {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The version of Quell that measured.
    pub quell_version: String,
    /// A row for each light task of each find, under each side but the reference.
    pub rows: Vec<Row>,
}

/// The run delays of a light task under a side and under the reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The find's file, without its ending.
    pub case: String,
    /// The light task, in words.
    pub task: String,
    /// The side.
    pub side: String,
    /// Under the side.
    pub delay: Delay,
    /// Under the reference, the first side.
    pub reference: Delay,
    /// (p99 - a slice) / p99 under the reference, as the hunt has it.
    pub ratio: f64,
}

/// How long threads were ready before they ran, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Delay {
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The longest.
    pub worst_ms: f64,
}

impl Row {
    /// Whether the task waits too long.
    pub fn exceeds(&self) -> bool {
        self.ratio > LIMIT
    }
}

impl Confirmed {
    /// Of these rows.
    pub fn new(rows: Vec<Row>) -> Confirmed {
        Confirmed {
            schema: SCHEMA,
            quell_version: env!("CARGO_PKG_VERSION").to_string(),
            rows,
        }
    }
}

/// The name of the tenant that plays a task.
fn tenant(task: usize) -> String {
    format!("task-{task}")
}

/// A find as a scenario, which is the text of a file: a tenant for each process of each task.
///
/// # Errors
/// A program cannot be written as TOML.
pub fn scenario(case: &Case, name: &str) -> anyhow::Result<String> {
    let workload = &case.workload;
    let mut root = Table::new();
    root.insert("name".into(), name.into());
    root.insert("description".into(), case.found.clone().into());
    root.insert("seconds".into(), case.seconds.into());
    root.insert("pairs".into(), 3.into());
    let mut host = Table::new();
    host.insert("cpus".into(), workload.cpus.into());
    root.insert("host".into(), host.into());
    let groups = workload.groups.iter().enumerate().map(|(number, group)| {
        let mut table = Table::new();
        table.insert("name".into(), format!("g{number}").into());
        table.insert("weight".into(), group.weight.into());
        if let Some(within) = group.within {
            table.insert("within".into(), format!("g{within}").into());
        }
        Value::from(table)
    });
    let groups: Vec<Value> = groups.collect();
    if !groups.is_empty() {
        root.insert("group".into(), groups.into());
    }
    let mut tenants: Vec<Value> = Vec::new();
    for (number, task) in workload.tasks.iter().enumerate() {
        let mut table = Table::new();
        table.insert("name".into(), tenant(number).into());
        table.insert("count".into(), task.count.into());
        // No tenant gets requests.
        table.insert("class".into(), "batch".into());
        if let Some(group) = task.group {
            table.insert("within".into(), format!("g{group}").into());
        }
        if let Some(cpus) = &task.cpus {
            table.insert("cpus".into(), cpus.to_string().into());
        }
        let mut threads = Vec::new();
        for program in task.does.programs() {
            let mut thread = Table::try_from(&program).context("a thread's program")?;
            if task.nice != 0 {
                thread.insert("nice".into(), task.nice.into());
            }
            threads.push(Value::from(thread));
        }
        table.insert("thread".into(), threads.into());
        tenants.push(table.into());
    }
    root.insert("tenant".into(), tenants.into());
    Ok(toml::to_string(&root)?)
}

/// The rows of a find that was played; the first side is the reference.
///
/// # Errors
/// The result has no run delays of a light task.
pub fn rows(case: &str, workload: &Workload, result: &BenchResult) -> anyhow::Result<Vec<Row>> {
    let reference = result.options.sides.first().context("no side")?;
    let mut rows = Vec::new();
    for number in light(workload) {
        let task = &workload.tasks[number];
        // The worst of its processes: each is a tenant.
        let delay = |side: &str| -> anyhow::Result<Delay> {
            let of_task = result.results.iter().filter(|it| {
                let rest = it.tenant.strip_prefix(&tenant(number));
                it.side == side && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            });
            let delays = of_task.filter_map(|it| {
                let scheduling = it.figures.scheduling.as_ref()?;
                Some(Delay {
                    p99_ms: scheduling.run_delay_p99_us? / 1e3,
                    worst_ms: scheduling.run_delay_max_us? / 1e3,
                })
            });
            let worst = delays.reduce(|a, b| Delay {
                p99_ms: a.p99_ms.max(b.p99_ms),
                worst_ms: a.worst_ms.max(b.worst_ms),
            });
            worst.with_context(|| format!("{case}: nothing was recorded of `{task}` under {side}"))
        };
        let of = delay(reference)?;
        for side in result.options.sides.iter().skip(1) {
            let is = delay(side)?;
            rows.push(Row {
                case: case.to_string(),
                task: task.to_string(),
                side: side.clone(),
                delay: is,
                reference: of,
                ratio: (is.p99_ms - SLICE_MS) / of.p99_ms.max(LEAST_MS),
            });
        }
    }
    Ok(rows)
}

/// For terminals.
pub fn table(confirmed: &Confirmed) -> String {
    let header = [
        "find",
        "light task",
        "side",
        "p99",
        "worst",
        "p99",
        "worst",
        "ratio",
        "",
    ];
    let mut table = report::table(false, &header);
    for row in &confirmed.rows {
        let ms = |ms: f64| format!("{ms:.2}");
        table.add_row([
            row.case.clone(),
            row.task.clone(),
            row.side.clone(),
            ms(row.delay.p99_ms),
            ms(row.delay.worst_ms),
            ms(row.reference.p99_ms),
            ms(row.reference.worst_ms),
            format!("{:.2}", row.ratio.max(0.0)),
            if row.exceeds() { "TOO LONG" } else { "holds" }.to_string(),
        ]);
    }
    let held = confirmed.rows.iter().filter(|row| !row.exceeds()).count();
    format!(
        "{table}\nrun delays in ms, under the side and under the reference; {held} of {} hold: \
         (p99 - {SLICE_MS} ms) / the reference's p99 at most {LIMIT}\n",
        confirmed.rows.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_kept_find_is_a_scenario_that_asks_for_the_same() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hunt");
        let mut number = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().path();
            let case = Case::read(&file).unwrap();
            let text = scenario(&case, "find").unwrap();
            let parsed = quell_scenario::Scenario::parse(Path::new("find.toml"), &text);
            let scenario =
                parsed.unwrap_or_else(|error| panic!("{}: {error}\n{text}", file.display()));
            let tasks = &case.workload.tasks;
            let processes: u32 = tasks.iter().map(|task| task.count).sum();
            assert_eq!(scenario.instances().len(), processes as usize, "{text}");
            for (tenant, task) in scenario.tenants.iter().zip(tasks) {
                let programs = task.does.programs();
                assert_eq!(tenant.threads.len(), programs.len(), "{text}");
                for (is, due) in tenant.threads.iter().zip(&programs) {
                    assert_eq!(is.program, due.program, "{text}");
                }
            }
            number += 1;
        }
        assert!(number > 10, "{number}");
    }
}
