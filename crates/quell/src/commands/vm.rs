//! `quell bench --on vm`: the same benchmark, by the same program, in a guest of the kernel lab.
//!
//! All sides are measured in one boot. The guest sends back its result, from which the table and the reports
//! are made.

use super::InputError;
use super::bench::Job;
use super::lab::{self, Prepared};
use crate::cli::{Guest, LabClock, Measure};
use anyhow::Context;
use quell_bench::result::{BenchResult, LabGuest, Substrate};
use quell_bench::side::Side;
use quell_lab::{Clock, Stream};
use quell_scenario::{App, Scenario};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// The scenario's folder in the guest.
const FOLDER: &str = "/lab/scenario";

/// Measures a scenario in a guest.
///
/// # Errors
/// Where the user's arguments are wrong, the guest cannot be prepared, or its run failed.
pub fn bench(job: &Job, guest: &Guest, interrupt: &AtomicBool) -> anyhow::Result<BenchResult> {
    let mut prepared = lab::prepare(guest, LabClock::Virtual, job.scenario.host.as_ref())?;
    prepared.boot.seed = job.measure.seed;
    bring_programs(&mut prepared, &job.scenario)?;
    bring_schedulers(&mut prepared, &job.sides)?;
    let file = format!("{FOLDER}/{}.toml", job.scenario.name);
    prepared.image.text(Path::new(&file), &job.text);
    let mut command = command(&["quell", "bench", &file], &job.sides, job.measure);
    if job.second_baseline {
        command.extend(["--baselines".to_string(), "2".to_string()]);
    }
    let (mut result, guest): (BenchResult, LabGuest) = run(prepared, &command, interrupt)?;
    result.substrate = Substrate::Vm;
    result.notes.insert(0, guest.note());
    result.lab = Some(guest);
    Ok(result)
}

/// Runs a command in a prepared guest, and takes the result that the command writes (see [`command`]).
///
/// # Errors
/// Where the guest did not get to its command's end, or the command failed or wrote no result.
pub fn run<T: DeserializeOwned>(
    mut prepared: Prepared,
    command: &[String],
    interrupt: &AtomicBool,
) -> anyhow::Result<(T, LabGuest)> {
    prepared.image.command(command);
    let Prepared {
        qemu,
        kernel,
        image,
        boot,
        peers,
        ..
    } = prepared;
    let folder = tempfile::tempdir()?;
    let out = Some(folder.path());
    // The table is made here from the guest's result; the guest's progress is shown as it comes.
    let say = |stream, bytes: &[u8]| {
        if stream == Stream::Stderr {
            let _ = io::stderr().write_all(bytes);
        }
    };
    let finished = quell_lab::boot(&qemu, &kernel, &image, &boot, out, interrupt, say)?;
    let json = folder.path().join("result.json");
    if finished.exit_code != 0 && !json.exists() {
        let code = finished.exit_code;
        let command = command
            .iter()
            .take(2)
            .map(String::as_str)
            .collect::<Vec<_>>();
        let command = command.join(" ");
        anyhow::bail!("`{command}` ended with {code} in the guest; it says above why");
    }
    let text = fs::read_to_string(&json).context("the guest's result")?;
    let result = serde_json::from_str(&text).context("the guest's result")?;
    let guest = LabGuest {
        kernel: kernel.release,
        clock: match boot.clock {
            Clock::Virtual => "virtual".to_string(),
            Clock::Real => "real".to_string(),
        },
        accelerator: finished.accelerator.to_string(),
        cpus: boot.cpus,
        sockets: boot.sockets,
        smt: boot.smt,
        memory_mib: boot.memory_mib,
        qemu: qemu.version.to_string(),
        peers: peers
            .into_iter()
            .map(|peer| (peer.name.to_string(), peer.version))
            .collect(),
    };
    Ok((result, guest))
}

/// Puts a scenario's applications and traces into the guest.
fn bring_programs(prepared: &mut Prepared, scenario: &Scenario) -> anyhow::Result<()> {
    let image = &mut prepared.image;
    let mut programs = BTreeSet::new();
    for tenant in &scenario.tenants {
        programs.extend(tenant.app.as_ref().map(program));
        let trace = tenant.load.as_ref().and_then(|load| load.trace.as_ref());
        if let Some(trace) = trace {
            image.file(&scenario.resolve(trace), &Path::new(FOLDER).join(trace))?;
        }
    }
    for program in programs {
        image
            .add(program)
            .map_err(|e| InputError(format!("the scenario needs {program}: {e}")))?;
    }
    Ok(())
}

/// Puts the sides' schedulers into the guest.
///
/// # Errors
/// Where the guest's kernel has no sched_ext, or a scheduler cannot be built or found.
pub fn bring_schedulers(prepared: &mut Prepared, sides: &[Side]) -> anyhow::Result<()> {
    let names: Vec<&str> = sides
        .iter()
        .filter(|side| side.is_peer())
        .map(Side::as_str)
        .collect();
    if !names.is_empty() {
        prepared.kernel.require_sched_ext()?;
        lab::add_peers(prepared, &names)?;
    }
    for side in sides.iter().filter(|side| !side.is_peer()) {
        let Side::Scheduler(scheduler) = side else {
            continue;
        };
        if let Some(program) = scheduler.command.first().filter(|p| *p != "quell") {
            let place = match program.contains('/') {
                true => format!("{program}:{program}"),
                false => program.clone(),
            };
            prepared
                .image
                .add(&place)
                .map_err(|e| InputError(format!("side `{side}`: {e}")))?;
        }
    }
    Ok(())
}

fn program(app: &App) -> &'static str {
    match app {
        App::Redis(_) => "redis-server",
        other => other.name(),
    }
}

/// The guest's command: these words, then the options for the sides and the measurement.
pub fn command(words: &[&str], sides: &[Side], measure: &Measure) -> Vec<String> {
    let sides: Vec<String> = sides.iter().map(Side::argument).collect();
    let mut words = [words, &["--on", "host", "--policy"]].concat();
    let sides = sides.join(",");
    let seed = measure.seed.to_string();
    words.extend([
        sides.as_str(),
        "--seed",
        &seed,
        "--json",
        "/out/result.json",
    ]);
    let mut words: Vec<String> = words.into_iter().map(str::to_string).collect();
    if measure.scheduling {
        words.push("--scheduling".to_string());
    }
    if let Some(seconds) = measure.seconds {
        words.extend(["--seconds".to_string(), seconds.to_string()]);
    }
    if let Some(pairs) = measure.pairs {
        words.extend(["--pairs".to_string(), pairs.to_string()]);
    }
    words
}
