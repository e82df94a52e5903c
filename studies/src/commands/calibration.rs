//! `quell-studies calibration`: the simulator beside the kernel lab.

use super::settings;
use crate::calibration::{self, Calibration};
use crate::catalogue::CATALOGUE;
use crate::cli;
use quell::commands::bench::{Job, files_writable, print};
use quell_bench::result::Substrate;
use quell_bench::run;
use std::io::{self, Write};

/// Runs every scenario in the lab and on the simulator, with one seed, and compares.
///
/// # Errors
/// Wrong arguments, files that cannot be written, a scenario that fails to run, and a figure that is off by
/// more than it may be.
pub fn run(args: &cli::Calibration) -> anyhow::Result<()> {
    files_writable(args.common.files())?;
    let interrupt = run::interrupt_flag()?;
    let mut measure = args.common.measure(args.seconds, args.pairs.or(Some(1)));
    measure.scheduling = true;
    let sides = calibration::counterparts();
    let (mut lab, mut checks) = (None, Vec::new());
    let scenarios: Vec<&str> = match args.only.as_slice() {
        [] => calibration::SCENARIOS.to_vec(),
        only => only.iter().map(String::as_str).collect(),
    };
    for (number, scenario) in scenarios.iter().enumerate() {
        let of = scenarios.len();
        writeln!(io::stderr(), "{scenario} ({} of {of})", number + 1)?;
        let real = sides.iter().map(|side| side.real.clone()).collect();
        let job = Job::named(&CATALOGUE, scenario, &args.set, real, &measure)?;
        let measured = job.run(Substrate::Vm, &args.guest, &interrupt)?;
        for side in &sides {
            let settings = settings(side.costs, &args.set)?;
            let simulated = sides.iter().map(|side| side.simulated.clone()).collect();
            let job = Job::named(&CATALOGUE, scenario, &settings, simulated, &measure)?;
            let simulated = job.run(Substrate::Sim, &args.guest, &interrupt)?;
            checks.extend(calibration::compare(&measured, &simulated, side));
        }
        lab = measured.lab;
    }
    let calibration = Calibration::new(lab, checks);
    let table = calibration::table(&calibration);
    print(&calibration, table, args.common.json.as_deref())?;
    anyhow::ensure!(
        calibration.checks.iter().all(|check| check.holds),
        "the simulator is off by more than it may be: see FAILS above"
    );
    Ok(())
}
