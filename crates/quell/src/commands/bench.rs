//! `quell bench` and `quell demo`.

use super::{InputError, vm};
use crate::catalogue::{Catalogue, PRODUCT};
use crate::cli::{Bench, Demo, DemoOn, Guest, Measure};
use anyhow::Context;
use quell_bench::progress::Progress;
use quell_bench::report::{self, Files};
use quell_bench::result::{BenchResult, Substrate};
use quell_bench::run::{self, BenchOptions};
use quell_bench::side::Side;
use quell_model::shown_json;
use quell_scenario::Scenario;
use quell_scenario::set::{self, Setting, Sweep};
use quell_sched::Scheduler;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;
use std::{env, fs, io};

/// Where the demo's report goes unless told otherwise.
const DEMO_REPORT: &str = "quell-demo.html";

/// Runs the demo: the built-in scenario of that name, Quell against the same weights set by hand and against
/// the kernel's default.
///
/// # Errors
/// Where the user's arguments are wrong, a result cannot be written, or a run failed or was interrupted.
pub fn demo(args: &Demo) -> anyhow::Result<()> {
    let measure = &args.measure;
    let report = measure
        .report
        .clone()
        .unwrap_or_else(|| PathBuf::from(DEMO_REPORT));
    let sides = vec![Side::Default, Side::Weights, Side::Quell];
    let mut measure = measure.clone();
    if args.on == DemoOn::Vm {
        // On the lab's clock a second takes six or more of this machine's.
        measure.seconds.get_or_insert(3.0);
        measure.pairs.get_or_insert(3);
    }
    let mut job = Job::named(&PRODUCT, "demo", &[], sides, &measure)?;
    job.second_baseline = true;
    let files = Files {
        html: Some(&report),
        ..measure.files()
    };
    files_writable(files)?;
    let interrupt = run::interrupt_flag()?;
    let result = match args.on {
        DemoOn::Host => {
            if let Err(reason) = Scheduler::supported() {
                writeln!(
                    io::stderr(),
                    "{reason}: this shows what Quell does without its scheduler; `quell demo --on vm` shows it with, in a virtual machine"
                )?;
            }
            job.on_host(&interrupt)?
        }
        DemoOn::Vm => vm::bench(&job, &demo_guest(), &interrupt)?,
    };
    report::deliver(&result, files)
}

/// The demo's guest: with as many CPUs as this machine, but few, because on the lab's clock they share the
/// speed of one CPU.
fn demo_guest() -> Guest {
    let here = available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    Guest {
        cpus: Some(here.clamp(2, 4)),
        ..Guest::default()
    }
}

/// Measures one scenario under several sides; without a scenario, lists the built-in ones.
///
/// # Errors
/// As [`demo`].
pub fn bench(args: &Bench, catalogue: &Catalogue) -> anyhow::Result<()> {
    let measure = &args.measure;
    if args.scenario.is_empty() {
        return Ok(io::stdout().write_all(catalogue.list().as_bytes())?);
    }
    let sides = catalogue.sides(&args.policy, args.on)?;
    if !args.sweep.is_empty() {
        return sweep(args, catalogue, &sides);
    }
    let mut job = Job::named(catalogue, &args.scenario, &args.set, sides, measure)?;
    files_writable(measure.files())?;
    job.trace = trace(args)?;
    job.second_baseline = args.baselines > 1;
    let result = job.run(args.on, &args.guest, &run::interrupt_flag()?)?;
    report::deliver(&result, measure.files())
}

/// The folder for traces, which is there.
fn trace(args: &Bench) -> anyhow::Result<Option<PathBuf>> {
    if let Some(folder) = &args.trace {
        if matches!(args.on, Substrate::Vm) {
            let message = "`--trace`: traces are written on: sim, host; in a guest: \
                `quell lab run --out FOLDER -- sh -c 'quell bench ... --on host --trace $OUT'`";
            return Err(InputError(message.to_string()).into());
        }
        folder_writable(folder)?;
    }
    Ok(args.trace.clone())
}

/// Measures one scenario at every combination of some values, on the simulator.
fn sweep(args: &Bench, catalogue: &Catalogue, sides: &[Side]) -> anyhow::Result<()> {
    let measure = &args.measure;
    if !matches!(args.on, Substrate::Sim) {
        let message = "`--sweep` is for the simulator: `--on sim`";
        return Err(InputError(message.to_string()).into());
    }
    if measure.report.is_some() {
        let message = "`--report` is not for `--sweep`; --csv, --parquet and --json are";
        return Err(InputError(message.to_string()).into());
    }
    if args.trace.is_some() {
        let message =
            "`--trace` is not for `--sweep`: one scenario's files would replace another's";
        return Err(InputError(message.to_string()).into());
    }
    files_writable(measure.files())?;
    let point = |settings: Vec<Setting>| {
        let settings = [&args.set[..], &settings].concat();
        let job = Job::named(
            catalogue,
            &args.scenario,
            &settings,
            sides.to_vec(),
            measure,
        )?;
        Ok((job.options()?, job.set))
    };
    let points = Sweep::product(&args.sweep).into_iter().map(point);
    let points = points.collect::<anyhow::Result<Vec<_>>>()?;
    let keys = args.sweep.iter().map(|sweep| sweep.key().to_string());
    let planned = points.iter().map(|(options, _)| options.planned()).sum();
    let progress = Progress::stderr(planned);
    let interrupt = run::interrupt_flag()?;
    let swept = quell_bench::sweep::run(keys.collect(), &points, &interrupt, &progress)?;
    report::deliver_sweep(&swept, measure.files())
}

/// The sides that `--policy` names, if all of them can be measured on this substrate.
///
/// # Errors
/// Where a side is not known, or cannot be measured there.
/// One scenario to measure.
pub struct Job<'a> {
    /// The scenario.
    pub scenario: Scenario,
    /// The scenario's text, with `set` applied.
    pub text: String,
    /// The sides to compare, the baseline first.
    pub sides: Vec<Side>,
    /// How the scenario is measured.
    pub measure: &'a Measure,
    /// The folder for traces, made and checked.
    trace: Option<PathBuf>,
    /// Whether the second side is a baseline too.
    pub second_baseline: bool,
    /// The settings that differ from the file's, as `KEY=VALUE`.
    pub set: Vec<String>,
}

impl Job<'_> {
    /// A scenario of a catalogue, or one by its file's path, with some of its values set otherwise.
    ///
    /// # Errors
    /// There is no such scenario, it cannot be read, or it is wrong, by itself or as it is set.
    pub fn named<'a>(
        catalogue: &Catalogue,
        name: &str,
        settings: &[Setting],
        sides: Vec<Side>,
        measure: &'a Measure,
    ) -> anyhow::Result<Job<'a>> {
        let (file, text) = catalogue.scenario(name)?;
        Job::new(&file, &text, settings, sides, measure)
    }

    /// The scenario of a text, with some of its values set otherwise; `file` is for messages.
    ///
    /// # Errors
    /// Where the text is wrong, or a setting does not fit it.
    pub fn new<'a>(
        file: &Path,
        text: &str,
        settings: &[Setting],
        sides: Vec<Side>,
        measure: &'a Measure,
    ) -> anyhow::Result<Job<'a>> {
        let text = set::apply(file, text, settings)?;
        Ok(Job {
            scenario: Scenario::parse(file, &text)?,
            text,
            sides,
            measure,
            trace: None,
            second_baseline: false,
            set: settings.iter().map(|s| s.as_str().to_string()).collect(),
        })
    }

    /// Measures the scenario.
    ///
    /// # Errors
    /// Where a run failed or was interrupted.
    pub fn run(
        &self,
        on: Substrate,
        guest: &Guest,
        interrupt: &Arc<AtomicBool>,
    ) -> anyhow::Result<BenchResult> {
        let mut result = match on {
            Substrate::Host => self.on_host(interrupt)?,
            Substrate::Vm => vm::bench(self, guest, interrupt)?,
            Substrate::Sim => self.on_simulator(interrupt)?,
        };
        result.options.set.clone_from(&self.set);
        Ok(result)
    }

    fn on_host(&self, interrupt: &Arc<AtomicBool>) -> anyhow::Result<BenchResult> {
        let options = self.options()?;
        let progress = Progress::stderr(options.planned());
        let (options, rates) = run::rates::of_this_machine(options, interrupt, &progress)?;
        let mut result = run::run(&options, interrupt, &progress)?;
        result.notes.splice(0..0, rates);
        Ok(result)
    }

    fn on_simulator(&self, interrupt: &AtomicBool) -> anyhow::Result<BenchResult> {
        let options = self.options()?;
        let progress = Progress::stderr(options.planned());
        run::simulated::run(&options, interrupt, &progress)
    }

    /// The options for [`run`] and the simulator.
    ///
    /// # Errors
    /// As [`this_program`].
    pub fn options(&self) -> anyhow::Result<BenchOptions> {
        let mut options = BenchOptions::new(self.scenario.clone(), this_program()?);
        options.sides.clone_from(&self.sides);
        options.seconds = self.measure.seconds.unwrap_or(options.seconds);
        options.pairs = self.measure.pairs.unwrap_or(options.pairs);
        options.seed = self.measure.seed;
        options.scheduling = self.measure.scheduling;
        options.second_baseline = self.second_baseline;
        options.trace.clone_from(&self.trace);
        Ok(options)
    }
}

/// Prints a result as a table, or as JSON where `json` is `-`; also writes it as JSON into the file `json`.
///
/// # Errors
/// Where the result cannot be written.
pub fn print(result: &impl Serialize, table: String, json: Option<&Path>) -> anyhow::Result<()> {
    let text = || -> anyhow::Result<String> {
        let json = serde_json::to_string_pretty(result)? + "\n";
        Ok(shown_json(&json).into_owned())
    };
    let text = match json {
        Some(file) if file.as_os_str() == "-" => text()?,
        Some(file) => {
            fs::write(file, text()?).with_context(|| file.display().to_string())?;
            table
        }
        None => table,
    };
    writeln!(io::stdout(), "{}", text.trim_end())?;
    Ok(())
}

/// Checks that results can be written, before minutes of measuring.
///
/// # Errors
/// Where a file cannot be written, or more than one result is to go to stdout.
pub fn files_writable(files: Files<'_>) -> anyhow::Result<()> {
    if files.to_stdout() > 1 {
        let message = "`-`: only one of --json, --csv and --parquet can go to stdout";
        return Err(InputError(message.to_string()).into());
    }
    let files = [files.json, files.html, files.csv, files.parquet];
    files.into_iter().flatten().try_for_each(writable)
}

/// The `quell` program, which also plays tenants and is the agent: the running one, or the one beside it.
///
/// # Errors
/// Where the running program's file is not known, or `quell` is not beside it.
pub fn this_program() -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("cannot find the program's own file")?;
    if own.file_name().is_some_and(|name| name == "quell") {
        return Ok(own);
    }
    let quell = own.with_file_name("quell");
    anyhow::ensure!(
        quell.is_file(),
        "{}: not there; `{}` needs it beside itself",
        quell.display(),
        own.display()
    );
    Ok(quell)
}

/// Checks that a file can be written, without changing an existing file. `-` is stdout.
///
/// # Errors
/// [`InputError`] where the file cannot be written.
pub fn writable(file: &Path) -> anyhow::Result<()> {
    if file.as_os_str() == "-" {
        return Ok(());
    }
    let existed = file.exists();
    let opened = fs::OpenOptions::new().append(true).create(true).open(file);
    opened.map_err(|e| InputError(format!("{}: cannot be written: {e}", file.display())))?;
    if !existed {
        fs::remove_file(file).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// Checks that files can be put into a folder; makes the folder if it is not there.
///
/// # Errors
/// [`InputError`] where the folder cannot be made or written to.
pub fn folder_writable(folder: &Path) -> anyhow::Result<()> {
    let made = fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
    made.map_err(|e| InputError(format!("{}: cannot be written: {e}", folder.display())))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checking_a_file_neither_leaves_nor_changes_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.html");
        writable(&file).unwrap();
        assert!(!file.exists());
        fs::write(&file, "kept").unwrap();
        writable(&file).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"kept");
        let error = writable(&file.join("below")).unwrap_err();
        assert!(super::super::is_users(&error), "{error}");
    }
}
