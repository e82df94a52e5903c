//! The standard suite: the tests that people run on a new scheduler, in one command.
//!
//! Problem: a scheduler that is good for its own benchmarks may still keep a light thread waiting beside a
//! fork bomb, or halve what pipes carry. Approach: known loads, and beside each of them periodic victims
//! ([`victim`]) that know how late they were woken. Each [`cases::Case`] is measured on every side in
//! interleaved pairs; how much worse than the first side a side may be is written down ([`limits`]). Within a
//! pair a side is started once for a group of cases, since starting takes longer than a case. Times are ns
//! inside, µs in results.

mod asked;
pub mod cases;
mod figures;
mod groups;
mod limits;
pub mod load;
mod measure;
mod messages;
mod own;
mod page;
mod parse;
mod part;
mod pgbench;
pub mod program;
mod repeat;
mod result;
mod served;
mod sources;
mod table;
pub mod victim;

pub use figures::{VictimFigures, VictimRatios};
pub use result::{CaseResult, CaseSide, LoadResult, Standard, VictimResult};
pub use table::list;

use anyhow::{Context, bail, ensure};
use cases::Case;
use groups::Hierarchy;
use measure::{How, measure};
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use quell_bench::progress::Progress;
use quell_bench::report::Files;
use quell_bench::result::SCHEMA;
use quell_bench::run::host;
use quell_bench::run::started::Started;
use quell_bench::side::Side;
use quell_bench::stats;
use quell_bench::workload::Interrupted;
use quell_model::config::{AgentTenant, CriticalitySettings, Selectors, TenantSpec};
use result::{Windows, summarise};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The subcommand of this program that is a victim or a load of our own.
pub const PART: &str = "standard-part";

/// How long each side of each pair is measured by default, in s.
pub const SECONDS: f64 = 3.0;

/// The number of pairs by default.
pub const PAIRS: u32 = 3;

/// How long a load runs before it is measured.
const WARMUP: Duration = Duration::from_secs(1);

/// How long a side settles before it is measured.
const SETTLE: Duration = Duration::from_secs(1);

/// What to measure.
#[derive(Debug, Clone)]
pub struct StandardOptions {
    /// The sides, the baseline first.
    pub sides: Vec<Side>,
    /// Names of cases, or parts of names; empty: all cases.
    pub only: Vec<String>,
    /// How long each side of each pair is measured, in s.
    pub seconds: f64,
    /// The number of pairs.
    pub pairs: u32,
    /// The seed of the times at which victims begin, and of loads.
    pub seed: u64,
    /// The `quell` program.
    pub exe: PathBuf,
    /// This program, which is victims and loads.
    pub part_exe: PathBuf,
}

impl StandardOptions {
    /// The cases to measure on `cpus` CPUs.
    ///
    /// # Errors
    /// Where no case has one of the names.
    pub fn cases(&self, cpus: u32) -> anyhow::Result<Vec<Case>> {
        let cases = cases::only(cases::cases(cpus), &self.only);
        if cases.is_empty() {
            bail!(
                "no case has a name with `{}` in it; see `--list`",
                self.only.join("` or `")
            );
        }
        Ok(cases)
    }

    fn length(&self, case: &Case) -> Duration {
        Duration::from_secs_f64(self.seconds) * case.longer
    }

    /// How long measuring these cases takes, without starting and stopping.
    pub fn planned(&self, cases: &[Case]) -> Duration {
        let windows = cases.iter().map(|case| WARMUP + self.length(case));
        windows.sum::<Duration>() * self.sides.len() as u32 * self.pairs
    }
}

/// Runs the suite. Setting `interrupt` ends it in order, with the cases measured so far. In every case
/// victims, loads and their cgroups are gone when this returns.
///
/// # Errors
/// [`Interrupted`] before the first group of cases has a result; names of cases that there are none of, a
/// machine without cgroup v2 or root, and a machine that cannot be described.
pub fn run(
    options: &StandardOptions,
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Standard> {
    let host = host::describe()?;
    let cases = options.cases(host.cpus)?;
    let labels = Side::labels(&options.sides);
    // Processes that a load leaves behind become children of this process, which ends them.
    nix::sys::prctl::set_child_subreaper(true).context("cannot adopt processes")?;
    let mut session = Session {
        options,
        labels: &labels,
        interrupt,
        progress,
        hierarchy: Hierarchy::open()?,
        done: Duration::ZERO,
    };
    let mut results = Vec::new();
    let mut complete = true;
    for group in cases.chunk_by(|a, b| a.group == b.group) {
        let (of_group, whole) = session.group(group)?;
        results.extend(of_group);
        complete = whole;
        if !complete {
            break;
        }
    }
    progress.finish();
    if !complete && results.iter().all(|it| it.sides.is_empty()) {
        bail!(Interrupted);
    }
    Ok(Standard {
        schema: SCHEMA,
        quell_version: env!("CARGO_PKG_VERSION").to_string(),
        complete,
        host,
        lab: None,
        seconds: options.seconds,
        warmup_seconds: WARMUP.as_secs_f64(),
        pairs: options.pairs,
        seed: options.seed,
        sides: labels.clone(),
        cases: results,
    })
}

/// Writes a result to the files that the user wants, and the table to the terminal.
///
/// # Errors
/// Where a chart cannot be drawn, or a file or standard output cannot be written; and [`Interrupted`], after
/// all was written, for a result that an interrupt cut short.
pub fn deliver(result: &Standard, files: Files<'_>) -> anyhow::Result<()> {
    let page = files.html.map(|_| page::html(result)).transpose()?;
    let json = serde_json::to_string_pretty(result)? + "\n";
    files.hand_out(&json, page, |styled| table::table(result, styled))?;
    ensure!(result.complete, Interrupted);
    Ok(())
}

/// The process of a victim or of a load of our own: `quell-studies standard-part ROLE ORDER`.
///
/// # Errors
/// Where the arguments are wrong, or the victims or the load fail.
pub fn part_main(args: &[String]) -> anyhow::Result<()> {
    match args {
        [role, order] if role == "victims" => victim::main(order),
        [role, order] if role == "load" => own::main(order),
        _ => bail!("usage: {PART} victims|load ORDER"),
    }
}

/// A measurement in progress.
struct Session<'a> {
    options: &'a StandardOptions,
    labels: &'a [String],
    interrupt: &'a AtomicBool,
    progress: &'a Progress,
    hierarchy: Hierarchy,
    /// The length of all windows that are over.
    done: Duration,
}

impl Session<'_> {
    /// Measures a group of cases; also gives whether all were measured.
    fn group(&mut self, cases: &[Case]) -> anyhow::Result<(Vec<CaseResult>, bool)> {
        let missing: Vec<Option<String>> = cases
            .iter()
            .map(|it| it.needs().find_map(program::Program::missing))
            .collect();
        let sides = self.labels.len();
        let mut windows: Vec<Vec<Windows>> =
            vec![vec![vec![None; self.options.pairs as usize]; sides]; cases.len()];
        let mut ended = Ok(());
        'pairs: for pair in 0..self.options.pairs {
            for side in quell_bench::run::order(sides, pair) {
                let known: Vec<bool> = missing.iter().map(Option::is_none).collect();
                let measured = self.side(pair, side, cases, &known, &mut windows);
                if measured.is_err() {
                    ended = measured;
                    break 'pairs;
                }
            }
        }
        let whole = match ended {
            Err(error) if error.is::<Interrupted>() => false,
            Err(error) => return Err(error),
            Ok(()) => true,
        };
        let results = cases.iter().zip(missing).zip(&windows);
        let results = results.map(|((case, missing), windows)| match missing {
            Some(reason) => CaseResult {
                case: case.name.to_string(),
                about: case.about.clone(),
                skipped: Some(reason),
                sides: Vec::new(),
            },
            None => summarise(case.name, &case.about, self.labels, windows),
        });
        Ok((results.collect(), whole))
    }

    /// Measures the cases of a group that can be measured, on one side.
    fn side(
        &mut self,
        pair: u32,
        side: usize,
        cases: &[Case],
        known: &[bool],
        windows: &mut [Vec<Windows>],
    ) -> anyhow::Result<()> {
        let mut started = None;
        for ((case, known), windows) in cases.iter().zip(known).zip(windows) {
            let label = &self.labels[side];
            let text = format!(
                "{}, {label}, pair {} of {}",
                case.name,
                pair + 1,
                self.options.pairs
            );
            if *known {
                self.progress.step(self.done, &text);
                let measured = self.case(pair, side, case, &mut started);
                if let Err(error) = &measured {
                    if error.is::<Interrupted>() || self.interrupt.load(Ordering::Relaxed) {
                        bail!(Interrupted);
                    }
                    self.progress.say(&format!("{text}: {error:#}"));
                }
                windows[side][pair as usize] = Some(measured.map_err(|error| format!("{error:#}")));
            }
            self.done += WARMUP + self.options.length(case);
        }
        // The side was in charge until now. If it does not end, the next side says that it cannot start.
        if let Some(Err(error)) = started.map(Started::stop) {
            self.progress.say(&format!("{error:#}"));
        }
        Ok(())
    }

    /// Measures a case on a side. The side is started where it does not run, and left after an error.
    fn case(
        &mut self,
        pair: u32,
        side: usize,
        case: &Case,
        started: &mut Option<Started>,
    ) -> anyhow::Result<measure::Measured> {
        let mut running = match started.take() {
            Some(running) => running,
            None => self.start(side)?,
        };
        let how = How {
            exe: &self.options.part_exe,
            warmup: WARMUP,
            length: self.options.length(case),
            seed: stats::pair_seed(self.options.seed, pair),
            interrupt: self.interrupt,
        };
        let measured = measure(case, &how, &mut self.hierarchy);
        // That the side is no longer in charge may be why nothing was measured, so it is reported first.
        running.in_charge()?;
        *started = Some(running);
        measured
    }

    fn start(&self, side: usize) -> anyhow::Result<Started> {
        let this = || {
            vec![AgentTenant {
                spec: TenantSpec::named("standard"),
                selectors: Selectors::pids([std::process::id()]),
            }]
        };
        let mut started = Started::start(
            &self.options.sides[side],
            &self.labels[side],
            &self.options.exe,
            this,
            CriticalitySettings::default(),
            self.interrupt,
        )?;
        thread::sleep(SETTLE);
        started.in_charge()?;
        Ok(started)
    }
}

/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until a server answers; `alive` fails if it has ended.
fn wait_answer(
    answers: impl Fn() -> bool,
    mut alive: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let give_up = Instant::now() + PATIENCE;
    while !answers() {
        alive()?;
        ensure!(
            Instant::now() < give_up,
            "the server did not answer within {PATIENCE:?}"
        );
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// CLOCK_MONOTONIC, in ns.
fn now_ns() -> u64 {
    // `clock_gettime` fails only for clocks that do not exist; every Linux has this one.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

/// Sleeps until `ns` on CLOCK_MONOTONIC.
fn sleep_until(ns: u64) {
    let until = Duration::from_nanos(ns).into();
    // Only a signal ends a sleep before its time.
    while clock_nanosleep(
        ClockId::CLOCK_MONOTONIC,
        ClockNanosleepFlags::TIMER_ABSTIME,
        &until,
    )
    .is_err()
    {}
}
