//! Random hosts on this machine: real threads in real cgroups.

use super::STEP_S;
use super::hosts::Host;
use anyhow::Context;
use quell_bench::run::host::HostTimes;
use quell_bench::workload::{Interrupted, Workload};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time of a reading, in s, and what each group and then the whole machine used so far, in s.
type Reading = (f64, Vec<f64>);

/// What each group gets up to the end of each step, in s of CPU time, under the scheduler of this machine;
/// and how many CPUs the rest of the machine used.
///
/// # Errors
/// [`Interrupted`]; and where the host's scenario is not valid or does not run here, or its usage cannot be
/// read.
pub(super) fn run(
    host: &Host,
    steps: usize,
    exe: &Path,
    interrupt: &Arc<AtomicBool>,
) -> anyhow::Result<(Vec<Vec<f64>>, f64)> {
    let scenario = host.scenario()?;
    let cgroups = scenario.cgroups();
    let mut workload = Workload::start(&scenario, exe, interrupt.clone())?;
    let named = |group: usize| {
        let name = format!("g{group}");
        let at = cgroups
            .all
            .iter()
            .position(|cgroup| cgroup.name.as_str() == name);
        at.map(|at| workload.cgroups()[at].clone())
    };
    let groups = 0..host.problem.groups.len();
    let folders: Option<Vec<PathBuf>> = groups.map(named).collect();
    let folders = folders.context("a group has no cgroup")?;
    let readings = Arc::new(Mutex::new(Vec::<Reading>::new()));
    let into = readings.clone();
    workload.set_sampled(Duration::from_secs_f64(STEP_S), move |time| {
        let used = folders.iter().map(|folder| used_s(folder));
        let got: Option<Vec<f64>> = used
            .chain([HostTimes::read().ok().map(|it| it.taken_s())])
            .collect();
        let mut readings = into.lock().unwrap_or_else(PoisonError::into_inner);
        readings.extend(got.map(|got| (time.as_secs_f64(), got)));
    });
    let length = Duration::from_secs_f64((steps + 1) as f64 * STEP_S);
    workload.measure(Duration::ZERO, length, 1)?;
    workload.stop()?;
    if interrupt.load(Ordering::Relaxed) {
        return Err(Interrupted.into());
    }
    let readings = readings.lock().unwrap_or_else(PoisonError::into_inner);
    let got: anyhow::Result<Vec<Vec<f64>>> = (1..=steps)
        .map(|step| {
            at_time(&readings, step as f64 * STEP_S)
                .with_context(|| format!("usage at {:.1} s was not read", step as f64 * STEP_S))
        })
        .collect();
    let mut got = got?;
    let machine: Vec<f64> = got.iter_mut().filter_map(Vec::pop).collect();
    let last = |of: &[f64]| of.last().copied().unwrap_or(0.0);
    let tenants = host
        .problem
        .groups
        .iter()
        .zip(got.last().into_iter().flatten());
    let tenants = tenants.filter(|(group, _)| group.parent.is_none());
    let rest = last(&machine) - tenants.map(|(_, got)| got).sum::<f64>();
    Ok((got, (rest / (steps as f64 * STEP_S)).max(0.0)))
}

/// The CPU time of a cgroup and all cgroups below it, in s.
fn used_s(folder: &Path) -> Option<f64> {
    let text = fs::read_to_string(folder.join("cpu.stat")).ok()?;
    let used = text.lines().find_map(|it| it.strip_prefix("usage_usec "))?;
    Some(used.parse::<f64>().ok()? / 1e6)
}

/// Usage since the first reading at a time between two readings.
fn at_time(readings: &[Reading], time: f64) -> Option<Vec<f64>> {
    let (_, first) = readings.first()?;
    let after = readings.iter().position(|(at, _)| *at >= time)?;
    let (from, before) = readings.get(after.checked_sub(1)?)?;
    let (to, then) = &readings[after];
    let part = (time - from) / (to - from);
    let between = before.iter().zip(then).zip(first);
    Some(
        between
            .map(|((a, b), first)| a + (b - a) * part - first)
            .collect(),
    )
}
