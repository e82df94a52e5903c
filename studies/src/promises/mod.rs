//! Whether promises are kept: `quell-studies promises`.
//!
//! Random hosts, from a seed each, are filled with tenants that are promised CPU time until the admission
//! test refuses more; the tenants wake at awkward times, need what they may need, or want more. The agent
//! places and serves them, beside threads that always want a CPU. What they received is read from a trace of
//! the run and judged by [`quell_testkit::audit`], which knows of nothing but the promises, on the
//! simulator and on a real kernel alike.

mod budget_trace;
pub(crate) mod random_host;

use crate::hosts::{HostFailed, SideHosts};
use anyhow::Context;
use budget_trace::{Books, Found, Precision};
use comfy_table::{CellAlignment, Table, presets};
use quell_bench::progress::Progress;
use quell_bench::result::{LabGuest, SCHEMA, Substrate};
use quell_bench::run::{self, BenchOptions};
use quell_bench::side::Side;
use quell_bench::workload::Interrupted;
use quell_model::CpuId;
use quell_model::config::Criticality;
use quell_scenario::Scenario;
use quell_testkit::audit::{Enforcement, Miss};
use quell_trace::Reader;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use random_host::Drawn;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tempfile::TempDir;

/// The time in which the agent places and serves all tenants while they sleep, in s.
const WARMUP_S: f64 = 1.0;
/// The time before which no tenant wants CPU time, in s.
const QUIET_S: f64 = 1.2;

/// On the simulator only threads take time, since the study looks at which threads get CPUs; audit and
/// scheduler then compute equal times, except for rounding.
const SIMULATED: Precision = Precision {
    tolerance_ns: 1000,
    slop_ns: 0,
};
/// On a real kernel, interrupts and switches are part of a period's time.
const REAL: Precision = Precision {
    tolerance_ns: 100_000,
    slop_ns: 50_000,
};
const COSTS_NOTHING: &str = "costs = { switch_us = 0, wake_us = 0, kick_us = 0, interrupt_us = 0, request_us = 0, answer_us = 0, tick_us = 0 }";

/// What to measure.
#[derive(Debug, Clone)]
pub struct PromisesOptions {
    /// The sides.
    pub sides: Vec<Side>,
    /// The number of hosts.
    pub hosts: u32,
    /// The seed of the first host; each further host has the next seed.
    pub seed: u64,
    /// The greatest number of CPUs of a simulated host; a real host has this machine's.
    pub most_cpus: u32,
    /// How long each host is watched, in s.
    pub seconds: f64,
    /// A folder for the scenario and the trace of each host on which a promise was broken, or on which a
    /// budget or the beginning of HI mode was enforced later than its substrate tolerates.
    pub trace: Option<PathBuf>,
    /// The `quell` program.
    pub exe: PathBuf,
}

/// The result; the JSON of `quell-studies promises --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Promises {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The version of Quell that measured.
    pub quell_version: String,
    /// What the hosts were: simulated, this machine, or the kernel lab's guest.
    pub substrate: Substrate,
    /// The kernel lab's guest, where hosts were measured in one.
    pub lab: Option<LabGuest>,
    /// How long each host was watched, in s.
    pub seconds: f64,
    /// How much of a promise may be lacking before it counts as broken, in µs.
    pub tolerance_us: f64,
    /// The hosts under each side.
    pub sides: Vec<SideHosts<HostPromises>>,
}

/// What a host's servers received.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostPromises {
    /// The seed that the host was drawn with.
    pub seed: u64,
    /// The number of its CPUs.
    pub cpus: u32,
    /// The number of its servers, one for each tenant.
    pub servers: u32,
    /// How many promises were kept: a budget by the end of a period.
    pub kept: u64,
    /// How often a CPU entered HI mode.
    pub switches: u64,
    /// How many tenants of high criticality, and of low, ran elsewhere than where they had been placed.
    pub moved: [u32; 2],
    /// Promises that were broken.
    pub misses: Vec<Missed>,
    /// How late threads left the CPU when their budget was used up.
    pub budgets: Lateness,
    /// How late threads of low criticality left the CPU when HI mode began.
    pub modes: Lateness,
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Missed {
    /// The tenant that the promise was made to; `the rest` for the best-effort server.
    pub tenant: String,
    /// The tenant's criticality; the best-effort server has none.
    pub criticality: Option<Criticality>,
    /// The CPU on which it was promised.
    pub cpu: u32,
    /// When the period began, in s from when the host is watched.
    pub from_s: f64,
    /// The period's length, in ms.
    pub period_ms: f64,
    /// The CPU time that was due in it, in ms.
    pub due_ms: f64,
    /// The CPU time that was received, in ms.
    pub received_ms: f64,
}

/// How long threads ran on that had to make way for a promise.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Lateness {
    /// How often a thread had to.
    pub count: u64,
    /// The 99th percentile, in µs.
    pub p99_us: f64,
    /// The longest, in µs.
    pub worst_us: f64,
}

impl Lateness {
    fn of(late_ns: impl Iterator<Item = u64>) -> Lateness {
        let mut all: Vec<u64> = late_ns.collect();
        all.sort_unstable();
        let at = |part: f64| all.get((all.len().saturating_sub(1) as f64 * part).ceil() as usize);
        let us = |part| at(part).map_or(0.0, |ns| *ns as f64 / 1e3);
        Lateness {
            count: all.len() as u64,
            p99_us: us(0.99),
            worst_us: us(1.0),
        }
    }
}

/// Measures on the simulator, as many hosts at once as this machine has CPUs.
///
/// # Errors
/// [`Interrupted`]; and where a host cannot be drawn into a scenario, simulated or judged, or a trace cannot
/// be kept.
pub fn simulate(
    options: &PromisesOptions,
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Promises> {
    let at_once = std::thread::available_parallelism().map_or(1, |n| n.get());
    let seeds: Vec<u64> = seeds(options).collect();
    let mut sides = Vec::new();
    for (side, label) in options.sides.iter().zip(Side::labels(&options.sides)) {
        let mut hosts = Vec::new();
        for some in seeds.chunks(at_once) {
            let runs = some.iter().map(|&seed| {
                let cpus = ChaCha8Rng::seed_from_u64(seed).random_range(1..=options.most_cpus);
                HostRun::new(options, side, &label, seed, cpus, 2_000_000)
            });
            let runs: Vec<HostRun> = runs.collect::<anyhow::Result<_>>()?;
            let all: Vec<BenchOptions> = runs.iter().map(|run| run.bench.clone()).collect();
            let quiet = Progress::silent();
            for result in run::simulated::run_all(&all, interrupt, &quiet)? {
                result.ok_or(Interrupted)?;
            }
            for run in &runs {
                hosts.push(run.judge(SIMULATED)?);
            }
            let text = format!("{label}: {} of {} hosts", hosts.len(), options.hosts);
            progress.tick(Duration::ZERO, &text);
        }
        sides.push(SideHosts::whole(label, hosts));
    }
    progress.finish();
    Ok(promises(Substrate::Sim, options, SIMULATED, sides))
}

/// Measures on this machine, one host after the other.
///
/// # Errors
/// [`Interrupted`]. A single host that cannot be measured is listed with the reason instead.
pub fn run(
    options: &PromisesOptions,
    interrupt: &Arc<AtomicBool>,
    progress: &Progress,
) -> anyhow::Result<Promises> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let mut sides = Vec::new();
    for (side, label) in options.sides.iter().zip(Side::labels(&options.sides)) {
        let host = |seed| {
            let it = HostRun::new(options, side, &label, seed, cpus, 10_000_000)?;
            run::run(&it.bench, interrupt, &Progress::silent())?;
            it.judge(REAL)
        };
        let hosts = SideHosts::measure(label.clone(), seeds(options), interrupt, progress, host)?;
        sides.push(hosts);
    }
    progress.finish();
    Ok(promises(Substrate::Host, options, REAL, sides))
}

fn seeds(options: &PromisesOptions) -> impl ExactSizeIterator<Item = u64> {
    let seed = options.seed;
    (0..options.hosts).map(move |number| seed + u64::from(number))
}

fn promises(
    substrate: Substrate,
    options: &PromisesOptions,
    precision: Precision,
    sides: Vec<SideHosts<HostPromises>>,
) -> Promises {
    Promises {
        schema: SCHEMA,
        quell_version: env!("CARGO_PKG_VERSION").to_string(),
        substrate,
        lab: None,
        seconds: options.seconds,
        tolerance_us: precision.tolerance_ns as f64 / 1e3,
        sides,
    }
}

/// A host under a side.
struct HostRun {
    seed: u64,
    drawn: Drawn,
    /// The host's scenario.
    text: String,
    bench: BenchOptions,
    /// The folder of the host's trace.
    folder: TempDir,
    /// The files that trace and scenario are kept in, if they are to be kept; see [`PromisesOptions::trace`].
    keep: Option<[PathBuf; 2]>,
}

impl HostRun {
    fn new(
        options: &PromisesOptions,
        side: &Side,
        label: &str,
        seed: u64,
        cpus: u32,
        least_period_ns: u64,
    ) -> anyhow::Result<HostRun> {
        let end_s = WARMUP_S + options.seconds;
        let drawn = Drawn::random(seed, cpus, least_period_ns, QUIET_S, end_s);
        let text = drawn.scenario(WARMUP_S, options.seconds);
        let scenario = Scenario::parse(Path::new("promises.toml"), &text)?;
        let folder = TempDir::with_prefix("quell-promises-")?;
        let bench = BenchOptions {
            sides: vec![side.clone()],
            trace: Some(folder.path().to_path_buf()),
            seed,
            ..BenchOptions::new(scenario, options.exe.clone())
        };
        let keep = |folder: &PathBuf| {
            ["perfetto-trace", "toml"].map(|it| folder.join(format!("{label}-{seed}.{it}")))
        };
        Ok(HostRun {
            seed,
            drawn,
            text,
            bench,
            folder,
            keep: options.trace.as_ref().map(keep),
        })
    }

    /// Judges what the host's servers received, once it has run.
    fn judge(&self, precision: Precision) -> anyhow::Result<HostPromises> {
        let trace = fs::read_dir(self.folder.path())?.next();
        let trace = trace.context("the run left no trace")??.path();
        let mut books = Books::new(&self.drawn, (WARMUP_S * 1e9) as u64, precision);
        for event in Reader::open(&trace)? {
            books.add(&event?);
        }
        let found = books.finish();
        let late = |it: &Enforcement| it.late_ns > precision.tolerance_ns;
        let odd = !found.misses.is_empty() || found.enforced.iter().any(late);
        if let Some([kept, scenario]) = self.keep.as_ref().filter(|_| odd) {
            fs::copy(&trace, kept).with_context(|| kept.display().to_string())?;
            fs::write(scenario, &self.text).with_context(|| scenario.display().to_string())?;
        }
        Ok(self.found(found))
    }

    fn found(&self, found: Found) -> HostPromises {
        let high = |number: usize| self.drawn.servers[number].1.criticality == Criticality::High;
        let ms = |ns: u64| ns as f64 / 1e6;
        let missed = |&(number, cpu, miss): &(Option<usize>, CpuId, Miss)| Missed {
            tenant: number.map_or("the rest".to_string(), random_host::name),
            criticality: number.map(|it| self.drawn.servers[it].1.criticality),
            cpu: cpu.0,
            from_s: miss.from.saturating_sub(found.from_ns) as f64 / 1e9,
            period_ms: ms(miss.deadline - miss.from),
            due_ms: ms(miss.due_ns),
            received_ms: ms(miss.received_ns),
        };
        let late = |by_mode| {
            let of = found.enforced.iter().filter(|it| it.by_mode == by_mode);
            Lateness::of(of.map(|it| it.late_ns))
        };
        let moved = |wanted| found.moved.iter().filter(|it| high(**it) == wanted).count() as u32;
        HostPromises {
            seed: self.seed,
            cpus: self.drawn.cpus,
            servers: self.drawn.servers.len() as u32,
            kept: found.kept,
            switches: found.switches,
            moved: [moved(true), moved(false)],
            misses: found.misses.iter().map(missed).collect(),
            budgets: late(false),
            modes: late(true),
        }
    }
}

/// The result as a table for a terminal, and the broken promises.
pub fn table(promises: &Promises) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "side",
        "hosts",
        "CPUs",
        "servers",
        "kept",
        "HI mode",
        "broken",
        "hosts with",
        "late, p99",
        "worst",
        "into HI mode",
        "worst",
    ]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = String::new();
    for side in &promises.sides {
        let sum = |of: &dyn Fn(&HostPromises) -> u64| side.hosts.iter().map(of).sum::<u64>();
        let most =
            |of: &dyn Fn(&HostPromises) -> f64| side.hosts.iter().map(of).fold(0.0, f64::max);
        let broken = side.hosts.iter().filter(|it| !it.misses.is_empty());
        table.add_row([
            side.side.clone(),
            side.hosts.len().to_string(),
            sum(&|it| u64::from(it.cpus)).to_string(),
            sum(&|it| u64::from(it.servers)).to_string(),
            sum(&|it| it.kept).to_string(),
            sum(&|it| it.switches).to_string(),
            sum(&|it| it.misses.len() as u64).to_string(),
            broken.count().to_string(),
            format!("{:.0} us", most(&|it| it.budgets.p99_us)),
            format!("{:.0} us", most(&|it| it.budgets.worst_us)),
            sum(&|it| it.modes.count).to_string(),
            format!("{:.0} us", most(&|it| it.modes.worst_us)),
        ]);
        // Writing to a string does not fail.
        for HostFailed { seed, why } in &side.failed {
            let _ = writeln!(text, "{}: seed {seed} was not measured: {why}", side.side);
        }
        let all = side
            .hosts
            .iter()
            .flat_map(|host| host.misses.iter().map(move |it| (host.seed, it)));
        let lacks = |it: &Missed| it.due_ms - it.received_ms;
        if let Some((seed, it)) = all.max_by(|a, b| lacks(a.1).total_cmp(&lacks(b.1))) {
            let _ = writeln!(
                text,
                "{}: the worst is seed {seed}: {} of {} criticality on CPU {} got {:.3} ms from {:.3} s on for {:.3} ms, {:.3} were due",
                side.side,
                it.tenant,
                match it.criticality {
                    Some(Criticality::High) => "high",
                    Some(Criticality::Low) => "low",
                    None => "no",
                },
                it.cpu,
                it.received_ms,
                it.from_s,
                it.period_ms,
                it.due_ms
            );
        }
    }
    format!(
        "{table}\nbroken: a budget that was {:.0} us short or more at the end of a period; late: for how long who had used its budget ran on \
         while\nsomebody waited who had one, the worst host's; into HI mode: how often one of low criticality ran when HI mode began, and for how long\nit ran on\n{text}",
        promises.tolerance_us
    )
}

#[cfg(test)]
mod tests;
