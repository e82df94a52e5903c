//! The speed of the simulator: `quell-studies speed`.
//!
//! The load is periodic tasks, as real-time simulators take them, with utilizations and periods drawn from a
//! seed: a tenant of one thread each. Simulations run one at a time, on one CPU.

use anyhow::{Context, ensure};
use comfy_table::{CellAlignment, Table, presets};
use quell_bench::progress::Progress;
use quell_bench::result::{Host, SCHEMA};
use quell_bench::run::host;
use quell_bench::run::simulated::engine;
use quell_bench::side::Side;
use quell_bench::workload::Interrupted;
use quell_scenario::{Count, HostScheduler, Step, ThreadProgram, TimeUs, TopologySpec};
use quell_sim::{Costs, Request, Simulation, Tenant};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The size of the machine that other simulators are compared on.
const CPUS: u32 = 80;
const TASKS: u32 = 256;
/// The utilization of the simulated machines.
const UTILIZATION: f64 = 0.8;
/// CPUs and tasks per CPU of the first step of the growth, which doubles four times.
const FIRST_CPUS: u32 = 64;
const TASKS_PER_CPU: u32 = 16;
/// Virtual time of each case, unless another is asked for, in s.
const SECONDS: f64 = 10.0;
/// Virtual time of a step of the growth, in s.
const GROWTH_SECONDS: f64 = 2.0;

/// The result; the JSON of `quell-studies speed --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimBench {
    /// [`quell_bench::result::SCHEMA`].
    pub schema: u32,
    /// The version of Quell that measured.
    pub quell_version: String,
    /// The machine that the simulations ran on.
    pub host: Host,
    /// The schedulers on 80 CPUs with 256 tasks.
    pub sides: Vec<SimCase>,
    /// The last of the schedulers on ever larger machines, with 16 tasks a CPU.
    pub growth: Vec<SimCase>,
}

/// One simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimCase {
    /// The scheduler.
    pub side: String,
    /// The number of CPUs.
    pub cpus: u32,
    /// The number of tasks, which are threads.
    pub tasks: u32,
    /// Virtual time, in s.
    pub simulated_s: f64,
    /// How long the simulation took, in s.
    pub took_s: f64,
    /// The number of events that happened; events that were planned and then superseded do not count.
    pub events: u64,
    /// How much more memory was in use at the end than at the beginning, in bytes.
    pub memory_bytes: u64,
}

impl SimCase {
    /// Events in a second of real time.
    pub fn events_per_s(&self) -> f64 {
        self.events as f64 / self.took_s
    }

    /// Virtual time in a second of real time.
    pub fn times_real(&self) -> f64 {
        self.simulated_s / self.took_s
    }
}

/// Measures the sides one after the other.
///
/// # Errors
/// [`Interrupted`]; a side that does not run on the simulator, no side at all, and a machine that cannot be
/// described.
pub fn run(
    sides: &[Side],
    seconds: Option<f64>,
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<SimBench> {
    let step = |text: &str| progress.step(Duration::ZERO, text);
    let set = tasks(CPUS, TASKS);
    let mut measured = Vec::new();
    for side in sides {
        step(&format!("{CPUS} CPUs, {TASKS} tasks: {side}"));
        let seconds = seconds.unwrap_or(SECONDS);
        measured.push(measure(side, CPUS, &set, seconds, interrupt)?);
    }
    let mut growth = Vec::new();
    let side = sides.last().context("no side")?;
    for cpus in (0..5).map(|doubled| FIRST_CPUS << doubled) {
        step(&format!(
            "{cpus} CPUs, {} tasks: {side}",
            cpus * TASKS_PER_CPU
        ));
        let set = tasks(cpus, cpus * TASKS_PER_CPU);
        growth.push(measure(side, cpus, &set, GROWTH_SECONDS, interrupt)?);
    }
    progress.finish();
    Ok(SimBench {
        schema: SCHEMA,
        quell_version: env!("CARGO_PKG_VERSION").to_string(),
        host: host::describe()?,
        sides: measured,
        growth,
    })
}

/// The result as tables for a terminal.
pub fn table(result: &SimBench) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "",
        "CPUs",
        "tasks",
        "events",
        "million events/s",
        "times real time",
        "ns of each event",
        "MiB",
    ]);
    for case in result.sides.iter().chain(&result.growth) {
        table.add_row([
            case.side.clone(),
            case.cpus.to_string(),
            case.tasks.to_string(),
            case.events.to_string(),
            format!("{:.2}", case.events_per_s() / 1e6),
            format!("{:.1}", case.times_real()),
            format!("{:.0}", 1e9 / case.events_per_s()),
            format!("{:.1}", case.memory_bytes as f64 / f64::from(1 << 20)),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let growth = result.growth.first().zip(result.growth.last());
    let growth = growth.map(|(first, last)| {
        let n_log_n = |case: &SimCase| f64::from(case.tasks) * f64::from(case.tasks).log2();
        let by = |of: fn(&SimCase) -> f64| of(last) / of(first) / (n_log_n(last) / n_log_n(first));
        format!(
            "From {} to {} tasks time grows by {:.2} of n log n, memory by {:.2}.\n",
            first.tasks,
            last.tasks,
            by(|case| case.took_s),
            by(|case| case.memory_bytes.max(1) as f64),
        )
    });
    format!("{table}\n{}", growth.unwrap_or_default())
}

/// A periodic task.
#[derive(Debug, Clone, Copy, Serialize)]
struct Task {
    period_us: u64,
    run_us: u64,
}

/// Tasks whose utilizations add up to the machine's; periods from 1 to 100 ms, uniform on a logarithmic
/// scale.
fn tasks(cpus: u32, count: u32) -> Vec<Task> {
    let mut rng = ChaCha8Rng::seed_from_u64(u64::from(cpus) << 32 | u64::from(count));
    let drawn: Vec<(f64, f64)> = (0..count)
        .map(|_| (rng.random_range(0.2..1.8), rng.random_range(3f64..5f64)))
        .collect();
    let sum: f64 = drawn.iter().map(|(share, _)| share).sum();
    let each = f64::from(cpus) * UTILIZATION / sum;
    let task = |(share, log): (f64, f64)| {
        let period = 10f64.powf(log);
        Task {
            period_us: period as u64,
            run_us: (period * (share * each).min(0.95)).max(1.0) as u64,
        }
    };
    drawn.into_iter().map(task).collect()
}

/// A machine of `cpus` CPUs, of which 16 each share a cache.
fn machine(cpus: u32, side: &Side, tasks: &[Task]) -> anyhow::Result<Simulation> {
    let topology = TopologySpec {
        sockets: cpus / 16,
        cores: 16,
        smt: 1,
        llc: None,
    };
    let topology = topology.topology();
    let (class, costs) = engine(
        side,
        HostScheduler::default(),
        &topology,
        Costs::TYPICAL,
        &[],
    )?;
    let mut simulation = Simulation::new(topology, costs, class);
    for task in tasks {
        let steps = vec![
            Step::Request,
            Step::RunUs(TimeUs::Constant(task.run_us as f64)),
            Step::Respond,
        ];
        let program = ThreadProgram::new("task", Count::Fixed(1), steps);
        let period = task.period_us * 1000;
        let load = (0..).map(move |number| Request {
            due: number * period,
            seed: number,
        });
        simulation.add_tenant(Tenant::new(&[program], Some(Box::new(load))));
    }
    Ok(simulation)
}

fn measure(
    side: &Side,
    cpus: u32,
    tasks: &[Task],
    seconds: f64,
    interrupt: &AtomicBool,
) -> anyhow::Result<SimCase> {
    let before = memory()?;
    let mut simulation = machine(cpus, side, tasks)?;
    let began = Instant::now();
    let steps = 20;
    let step = (seconds * 1e9) as u64 / steps;
    for number in 1..=steps {
        ensure!(!interrupt.load(Ordering::Relaxed), Interrupted);
        simulation.run_until(number * step);
    }
    Ok(SimCase {
        side: side.to_string(),
        cpus,
        tasks: tasks.len() as u32,
        simulated_s: (steps * step) as f64 / 1e9,
        took_s: began.elapsed().as_secs_f64(),
        events: simulation.events(),
        memory_bytes: memory()?.saturating_sub(before),
    })
}

fn memory() -> anyhow::Result<u64> {
    let statm = procfs::process::Process::myself()?.statm()?;
    Ok(statm.resident * procfs::page_size())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sides::Baseline;
    use quell_bench::side::AddedSide;

    #[test]
    fn tasks_make_the_machine_as_busy_as_stated() {
        let set = tasks(CPUS, TASKS);
        let share: f64 = set
            .iter()
            .map(|t| t.run_us as f64 / t.period_us as f64)
            .sum();
        assert!((share / f64::from(CPUS) - UTILIZATION).abs() < 0.01);
        assert!(
            set.iter()
                .all(|task| (1_000..=100_000).contains(&task.period_us))
        );

        let side = Side::Added(AddedSide(&Baseline::Ideal));
        let case = measure(&side, 16, &tasks(16, 64), 0.5, &AtomicBool::new(false)).unwrap();
        let jobs: f64 = tasks(16, 64)
            .iter()
            .map(|t| 0.5e6 / t.period_us as f64)
            .sum();
        // A job has at least two events: its arrival and the end of its work.
        assert!(case.events as f64 > 2.0 * jobs - 128.0, "{case:?}");
    }
}
