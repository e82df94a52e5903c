//! `quell capacity`: how many tenants fit.

use super::InputError;
use super::bench::{Job, files_writable};
use crate::catalogue::Catalogue;
use crate::cli;
use quell_bench::capacity::{self, CapacityOptions};
use quell_bench::progress::Progress;
use quell_bench::report;
use quell_bench::result::Substrate;
use quell_bench::run::interrupt_flag;
use std::time::Duration;

/// Finds how many tenants fit under each side.
///
/// # Errors
/// Where the user's arguments are wrong, a result cannot be written, or a run failed or was interrupted.
pub fn capacity(args: &cli::Capacity, catalogue: &Catalogue) -> anyhow::Result<()> {
    let sides = catalogue.sides(&args.policy, Substrate::Sim)?;
    let measure = &args.measure;
    let mut job = Job::named(catalogue, &args.scenario, &args.set, sides, measure)?;
    if let Some(p99_ms) = args.objective {
        capacity::set_objectives(&mut job.scenario, p99_ms);
    }
    let number = |name: &String| {
        let names: Vec<&str> = (job.scenario.tenants.iter())
            .map(|tenant| tenant.spec.name.as_str())
            .collect();
        let message = format!(
            "`--tenant`: no tenant `{name}`; there are: {}",
            names.join(", ")
        );
        let number = names.iter().position(|other| other == name);
        number.ok_or(InputError(message))
    };
    let tenant = args.tenant.as_ref().map(number).transpose()?;
    files_writable(measure.files())?;
    let options = CapacityOptions {
        bench: job.options()?,
        tenant,
        most: args.most,
    };
    let progress = Progress::stderr(Duration::ZERO);
    let mut found = capacity::run(&options, &*interrupt_flag()?, &progress)?;
    found.set.clone_from(&job.set);
    report::deliver_capacity(&found, measure.files())
}
