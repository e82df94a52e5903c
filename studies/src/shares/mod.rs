//! How exactly the host is shared: `quell-studies shares`.
//!
//! Random hosts, from a seed each, have groups with weights, some of them nested, and threads that always
//! want a CPU, or a part of one, or want it in bursts, and may run anywhere or on some CPUs only. What each
//! group gets in every window of two seconds is compared with weighted max-min fairness at every moment
//! ([`quell_policy::share`]): what a scheduler would give that divides CPUs infinitely finely, and knows only
//! which threads want one now.

mod fluid;
mod hosts;
mod oracle_scheduler;
mod real;
mod simulated;

pub use hosts::{Bound, Drawn, Host, Wants};

use crate::hosts::{HostFailed, SideHosts};
use comfy_table::{CellAlignment, Table, presets};
use quell_bench::progress::Progress;
use quell_bench::result::{LabGuest, SCHEMA, Substrate};
use quell_bench::run::started::Started;
use quell_bench::side::Side;
use quell_bench::workload::Interrupted;
use quell_model::config::CriticalitySettings;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often usage is read, in s.
const STEP_S: f64 = 0.1;
/// The number of steps in a window.
const WINDOW: usize = 20;
/// The number of steps before the first window.
const FIRST: usize = 10;
/// The shortest time to watch a host for, in s.
pub const LEAST_S: f64 = 4.0;
/// On a real machine, threads that always want a CPU run for about this long until other threads get their
/// first request, in s.
const BEFORE_S: u32 = 3;
/// The aim: no group is off by more, in percent of the host.
pub const WITHIN: f64 = 2.0;

/// What to measure.
#[derive(Debug, Clone)]
pub struct SharesOptions {
    /// The sides.
    pub sides: Vec<Side>,
    /// The number of hosts.
    pub hosts: u32,
    /// The seed of the first host; each further host has the next seed.
    pub seed: u64,
    /// The greatest number of CPUs of a simulated host; a real host has this machine's.
    pub most_cpus: u32,
    /// The greatest number of groups.
    pub most_groups: usize,
    /// Whether simulated hosts are drawn and begin as on a real machine.
    pub like_real: bool,
    /// How many CPUs of a simulated host share a last-level cache; `None`: all.
    pub cache_cpus: Option<u32>,
    /// How long each host is watched, in s.
    pub seconds: f64,
    /// The `quell` program.
    pub exe: PathBuf,
}

/// The result; the JSON of `quell-studies shares --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shares {
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
    /// See [`SharesOptions::like_real`].
    pub like_real: bool,
    /// See [`SharesOptions::cache_cpus`].
    pub cache_cpus: Option<u32>,
    /// The hosts under each side.
    pub sides: Vec<SideHosts<HostShares>>,
}

/// How far a host was off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostShares {
    /// The seed that the host was drawn with.
    pub seed: u64,
    /// The CPUs that its threads are bound to.
    pub bound: Bound,
    /// The number of its CPUs.
    pub cpus: u32,
    /// The number of its groups, nested groups included.
    pub groups: u32,
    /// The number of its threads.
    pub threads: u32,
    /// The worst window of a tenant, which is a group of the first level.
    pub tenant: Worst,
    /// The worst window of any group.
    pub group: Worst,
}

/// A group's worst window of two seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Worst {
    /// The group's index.
    pub group: u32,
    /// The group's weight.
    pub weight: u32,
    /// When the window began, in s.
    pub from_s: f64,
    /// What was due to the group in it, in percent of the host.
    pub due: f64,
    /// What the group got, in percent of the host.
    pub got: f64,
}

impl Worst {
    /// By how much the group was off, in percent of the host.
    pub fn off(&self) -> f64 {
        (self.got - self.due).abs()
    }
}

/// How a seed's host is drawn: the kinds of hosts take turns.
fn drawn(options: &SharesOptions, seed: u64, cpus: Option<u32>) -> Drawn {
    Drawn {
        cpus: cpus.unwrap_or(options.most_cpus),
        exactly: cpus.is_some(),
        most_groups: options.most_groups,
        bound: Bound::ALL[(seed % Bound::ALL.len() as u64) as usize],
        least_period_us: if cpus.is_some() { 10_000 } else { 0 },
    }
}

/// Measures on the simulator, as many hosts at once as this machine has CPUs.
///
/// # Errors
/// [`Interrupted`]; and where a side does not run on the simulator, or a simulation panics.
pub fn simulate(
    options: &SharesOptions,
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Shares> {
    let steps = steps(options);
    let mut sides = Vec::new();
    for (side, label) in options.sides.iter().zip(Side::labels(&options.sides)) {
        let (next, hosts) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed) as u32;
                if number >= options.hosts || interrupt.load(Ordering::Relaxed) {
                    return anyhow::Ok(());
                }
                let seed = options.seed + u64::from(number);
                let exactly = options.like_real.then_some(options.most_cpus);
                let drawn = drawn(options, seed, exactly);
                let host = Host::random(seed, &drawn);
                let (host, before_s) = match options.like_real {
                    true => (host.in_phase(), BEFORE_S),
                    false => (host, 0),
                };
                let got = simulated::simulate(&host, options.cache_cpus, side, steps, before_s)?;
                let judged = judge(seed, &drawn, &host, &got)?;
                let mut hosts = hosts.lock().unwrap_or_else(PoisonError::into_inner);
                hosts.push(judged);
                let text = format!("{label}: {} of {} hosts", hosts.len(), options.hosts);
                progress.tick(Duration::ZERO, &text);
            }
        };
        let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            let ended = workers.into_iter().map(|worker| worker.join());
            ended
                .map(|ended| {
                    ended.unwrap_or_else(|_| Err(anyhow::anyhow!("a simulation panicked")))
                })
                .collect::<anyhow::Result<Vec<()>>>()
        })?;
        if interrupt.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        let mut hosts = hosts.into_inner().unwrap_or_else(PoisonError::into_inner);
        hosts.sort_by_key(|host| host.seed);
        sides.push(SideHosts::whole(label, hosts));
    }
    progress.finish();
    Ok(shares(Substrate::Sim, options, sides))
}

/// Measures on this machine, one host after the other.
///
/// # Errors
/// [`Interrupted`]; and where a side does not start, or is no longer in charge when it is stopped. A single
/// host that cannot be measured is listed with the reason instead.
pub fn run(
    options: &SharesOptions,
    interrupt: &Arc<AtomicBool>,
    progress: &Progress,
) -> anyhow::Result<Shares> {
    let steps = steps(options);
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let mut sides = Vec::new();
    for (side, label) in options.sides.iter().zip(Side::labels(&options.sides)) {
        let started = Started::start(
            side,
            &label,
            &options.exe,
            Vec::new,
            CriticalitySettings::default(),
            interrupt,
        )?;
        let host = |seed| {
            let drawn = drawn(options, seed, Some(cpus));
            let mut host = Host::random(seed, &drawn).in_phase();
            let (got, rest) = real::run(&host, steps, &options.exe, interrupt)?;
            host.add_rest(rest);
            judge(seed, &drawn, &host, &got)
        };
        let seeds = (0..options.hosts).map(|number| options.seed + u64::from(number));
        let hosts = SideHosts::measure(label, seeds, interrupt, progress, host)?;
        started.stop()?;
        sides.push(hosts);
    }
    progress.finish();
    Ok(shares(Substrate::Host, options, sides))
}

fn steps(options: &SharesOptions) -> usize {
    (options.seconds / STEP_S).round() as usize
}

fn shares(
    substrate: Substrate,
    options: &SharesOptions,
    sides: Vec<SideHosts<HostShares>>,
) -> Shares {
    Shares {
        schema: SCHEMA,
        quell_version: env!("CARGO_PKG_VERSION").to_string(),
        substrate,
        lab: None,
        seconds: options.seconds,
        like_real: options.like_real,
        cache_cpus: options.cache_cpus,
        sides,
    }
}

/// How far a host was off, given what its groups got up to the end of each step.
fn judge(seed: u64, drawn: &Drawn, host: &Host, got: &[Vec<f64>]) -> anyhow::Result<HostShares> {
    let due = fluid::fluid(host, got.len())?.into_iter();
    let due: Vec<_> = due.map(|due| host.by_group(due.into_iter())).collect();
    let cpus = host.problem.cpus.len();
    let percent = 100.0 / (cpus as f64 * WINDOW as f64 * STEP_S);
    // The groups that were measured: without the rest of a real machine, which comes last.
    let groups = got.first().map_or(0, Vec::len);
    let (mut tenant, mut any) = (Worst::default(), Worst::default());
    for from in FIRST..got.len().saturating_sub(WINDOW) {
        for (number, group) in host.problem.groups.iter().enumerate().take(groups) {
            let within = |of: &[Vec<f64>]| (of[from + WINDOW][number] - of[from][number]) * percent;
            let worst = Worst {
                group: number as u32,
                weight: group.weight,
                from_s: (from + 1) as f64 * STEP_S,
                due: within(&due),
                got: within(got),
            };
            if worst.off() > any.off() {
                any = worst;
            }
            if group.parent.is_none() && worst.off() > tenant.off() {
                tenant = worst;
            }
        }
    }
    let threads = host.problem.threads.iter();
    let threads = threads.filter(|it| it.group.is_some_and(|group| group < groups));
    Ok(HostShares {
        seed,
        bound: drawn.bound,
        cpus: cpus as u32,
        groups: groups as u32,
        threads: threads.count() as u32,
        tenant,
        group: any,
    })
}

/// The result as a table for a terminal, and the worst case of each side.
pub fn table(shares: &Shares) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "side",
        "threads",
        "hosts",
        "within 2 %",
        "median",
        "90th",
        "99th",
        "worst",
        "any group within 2 %",
    ]);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = String::new();
    for side in &shares.sides {
        for bound in Bound::ALL {
            let hosts = side.hosts.iter().filter(|host| host.bound == bound);
            let hosts: Vec<&HostShares> = hosts.collect();
            let mut off: Vec<f64> = hosts.iter().map(|host| host.tenant.off()).collect();
            if off.is_empty() {
                continue;
            }
            off.sort_by(f64::total_cmp);
            let within = |of: &dyn Fn(&HostShares) -> f64| {
                let within = hosts.iter().filter(|host| of(host) <= WITHIN).count();
                format!("{:.1} %", 100.0 * within as f64 / hosts.len() as f64)
            };
            let at = |part: f64| off[((off.len() - 1) as f64 * part).round() as usize];
            table.add_row([
                side.side.clone(),
                bound.to_string(),
                off.len().to_string(),
                within(&|host| host.tenant.off()),
                format!("{:.2}", at(0.5)),
                format!("{:.2}", at(0.9)),
                format!("{:.2}", at(0.99)),
                format!("{:.2}", at(1.0)),
                within(&|host| host.group.off()),
            ]);
        }
        // Writing to a string does not fail.
        for HostFailed { seed, why } in &side.failed {
            let _ = writeln!(text, "{}: seed {seed} was not measured: {why}", side.side);
        }
        let worst = (side.hosts.iter()).max_by(|a, b| a.tenant.off().total_cmp(&b.tenant.off()));
        if let Some(host) = worst {
            let it = &host.tenant;
            let _ = writeln!(
                text,
                "{}: the worst is seed {} ({} CPUs, {} groups, {} threads {}): group {} of weight {} got {:.1} % of the host \
                 from {:.1} to {:.1} s, {:.1} % were due",
                side.side,
                host.seed,
                host.cpus,
                host.groups,
                host.threads,
                host.bound,
                it.group,
                it.weight,
                it.got,
                it.from_s,
                it.from_s + WINDOW as f64 * STEP_S,
                it.due
            );
        }
    }
    format!(
        "{table}\nhow far the worst tenant is off what is due to it, in percent of the host, in its worst window of 2 s of \
         {} s\n{text}",
        shares.seconds - FIRST as f64 * STEP_S
    )
}

#[cfg(test)]
mod tests;
