//! Studies in a guest of the kernel lab: this program runs there, in one boot, and the guest sends back the
//! result.

use crate::cli;
use crate::overhead::Overhead;
use crate::promises::{Promises, PromisesOptions};
use crate::shares::{Shares, SharesOptions};
use crate::standard::program::Program;
use crate::standard::{Standard, StandardOptions, cases};
use quell::cli::{Guest, LabClock};
use quell::commands::lab::{self, Prepared};
use quell::commands::vm::{bring_schedulers, command, run};
use quell_bench::result::{LabGuest, Substrate};
use quell_bench::side::Side;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// This program's name, on this machine and in the guest.
const PROGRAM: &str = "quell-studies";

/// A guest with this program and the sides' schedulers.
fn prepare(guest: &Guest, sides: &[Side], seed: u64) -> anyhow::Result<Prepared> {
    let mut prepared = lab::prepare(guest, LabClock::Virtual, None)?;
    prepared.boot.seed = seed;
    let place = Path::new("/usr/bin").join(PROGRAM);
    prepared.image.program(&std::env::current_exe()?, &place)?;
    bring_schedulers(&mut prepared, sides)?;
    Ok(prepared)
}

/// Measures in a guest what waking and switching cost.
///
/// # Errors
/// Where the guest cannot be prepared or booted, or the study fails in it.
pub fn overhead(
    sides: &[Side],
    args: &cli::Overhead,
    interrupt: &AtomicBool,
) -> anyhow::Result<Overhead> {
    let prepared = prepare(&args.guest, sides, args.common.seed)?;
    let measure = args.common.measure(None, None);
    let mut command = command(&[PROGRAM, "overhead"], sides, &measure);
    command.extend(["--nesting".to_string(), args.nesting.to_string()]);
    let (mut result, guest): (Overhead, LabGuest) = run(prepared, &command, interrupt)?;
    result.lab = Some(guest);
    Ok(result)
}

/// Runs the standard suite in a guest.
///
/// # Errors
/// As [`overhead`].
pub fn standard(
    options: &StandardOptions,
    args: &cli::Standard,
    interrupt: &AtomicBool,
) -> anyhow::Result<Standard> {
    let mut prepared = prepare(&args.guest, &options.sides, args.common.seed)?;
    let measure = args.common.measure(args.seconds, args.pairs);
    // The programs of all cases, whichever cases are chosen, so that guests are equal. A program that this
    // machine does not have is not in the guest either, and the suite there says so.
    let needs = cases::cases(prepared.boot.cpus).into_iter();
    let needs: Vec<Program> = needs
        .flat_map(|case| case.needs().collect::<Vec<_>>())
        .collect();
    for file in needs
        .into_iter()
        .flat_map(Program::files)
        .collect::<BTreeSet<PathBuf>>()
    {
        let place = file.display();
        prepared.image.add(&format!("{place}:{place}"))?;
    }
    let mut command = command(&[PROGRAM, "standard"], &options.sides, &measure);
    let only = options.only.iter().flat_map(|name| ["--only", name]);
    command.extend(only.map(str::to_string));
    let (mut result, guest): (Standard, LabGuest) = run(prepared, &command, interrupt)?;
    result.lab = Some(guest);
    Ok(result)
}

/// Measures in a guest how exactly random hosts are shared.
///
/// # Errors
/// As [`overhead`].
pub fn shares(
    options: &SharesOptions,
    args: &cli::Shares,
    interrupt: &AtomicBool,
) -> anyhow::Result<Shares> {
    let prepared = prepare(&args.guest, &options.sides, args.common.seed)?;
    let measure = args.common.measure(args.seconds, None);
    let mut command = command(&[PROGRAM, "shares"], &options.sides, &measure);
    command.extend(["--hosts".to_string(), options.hosts.to_string()]);
    command.extend(["--most-groups".to_string(), options.most_groups.to_string()]);
    let (mut result, guest): (Shares, LabGuest) = run(prepared, &command, interrupt)?;
    result.substrate = Substrate::Vm;
    result.lab = Some(guest);
    Ok(result)
}

/// Measures in a guest whether promises on random hosts are kept.
///
/// # Errors
/// As [`overhead`].
pub fn promises(
    options: &PromisesOptions,
    args: &cli::Promises,
    interrupt: &AtomicBool,
) -> anyhow::Result<Promises> {
    let prepared = prepare(&args.guest, &options.sides, args.common.seed)?;
    let measure = args.common.measure(args.seconds, None);
    let mut command = command(&[PROGRAM, "promises"], &options.sides, &measure);
    command.extend(["--hosts".to_string(), options.hosts.to_string()]);
    let (mut result, guest): (Promises, LabGuest) = run(prepared, &command, interrupt)?;
    result.substrate = Substrate::Vm;
    result.lab = Some(guest);
    Ok(result)
}
