//! Measures a scenario on this machine under one side or several.
//!
//! Problem: a machine is not the same machine a minute later. Approach: the tenants are started once and run
//! throughout; the sides take turns on them in pairs (with more than two sides: rounds), each with a warm-up
//! and a measured window. Within a pair every side gets equal arrivals (one seed), each pair has another
//! seed, and the order alternates A B, B A, A B, so that a drift of the machine favours neither. A side of
//! Quell's is the real agent as a child process, started before the warm-up, in which it settles, and stopped
//! with SIGTERM after the window; then every tenant thread must have the settings it had before, or the run
//! fails.
//!
//! Units: seconds in options, as users give them; `Duration` inside.

pub mod agent;
pub mod host;
pub mod rates;
mod scheduler;
pub mod settings;
pub mod simulated;
mod sink;
pub mod started;
mod startup_boost;
mod summary;
mod trace;
mod watch;

use crate::progress::Progress;
use crate::result::{AgentCost, AgentLog, BenchResult, Host, Options, SCHEMA, Substrate};
use crate::side::{Side, SideError};
use crate::stats;
use crate::workload::{Interrupted, Measurement, Stillness, Workload};
use agent::AgentChild;
use anyhow::{Context, bail, ensure};
use host::HostTimes;
pub use host::describe as describe_host;
use quell_model::Finding;
use quell_model::config::{AgentTenant, Selectors};
use quell_scenario::Scenario;
use settings::Inventory;
use started::Started;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use summary::{RawRun, Summariser, agent_cost, complete_pairs};
use watch::Watch;

/// Steal above this share of the host, in percent, makes latencies the hypervisor's rather than the
/// scheduler's.
pub const STEAL_WARNING_PERCENT: f64 = 5.0;

/// The socket where an agent of the host itself would answer.
const HOST_AGENT: &str = "/run/quell/agent.sock";

/// What to measure.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The scenario.
    pub scenario: Scenario,
    /// The sides, the baseline first; at least one.
    pub sides: Vec<Side>,
    /// Length of each measured window, in seconds, above 0.
    pub seconds: f64,
    /// Warm-up before each window, in seconds.
    pub warmup_seconds: f64,
    /// The number of pairs, at least 1.
    pub pairs: u32,
    /// Whether the second side is a baseline, too, for the sides after it.
    pub second_baseline: bool,
    /// The seed of arrivals and bootstrap.
    pub seed: u64,
    /// Whether to record what the scheduler does to tenants' threads: run delays, switches. The recording
    /// costs the host some CPU time.
    pub scheduling: bool,
    /// The folder, which must exist, for a Perfetto trace of each side and pair: `SIDE-PAIR.perfetto-trace`.
    pub trace: Option<PathBuf>,
    /// The `quell` program, which plays tenants and is the agent.
    pub quell_exe: PathBuf,
}

impl BenchOptions {
    /// The scenario's own settings, with the kernel's default against Quell.
    pub fn new(scenario: Scenario, quell_exe: PathBuf) -> BenchOptions {
        BenchOptions {
            sides: vec![Side::Default, Side::Quell],
            seconds: scenario.seconds,
            warmup_seconds: scenario.warmup_seconds,
            pairs: scenario.pairs,
            second_baseline: false,
            seed: 1,
            scheduling: false,
            trace: None,
            scenario,
            quell_exe,
        }
    }

    /// Checks that these options can be measured on a substrate.
    fn check(&self, on: Substrate) -> anyhow::Result<()> {
        // A single side is allowed; comparing is the caller's choice.
        ensure!(!self.sides.is_empty(), SideError::None);
        Side::check(&self.sides, on)?;
        ensure!(self.pairs >= 1, "at least one pair must be measured");
        for (name, seconds, least) in [
            ("seconds", self.seconds, 0.1),
            ("warm-up seconds", self.warmup_seconds, 0.0),
        ] {
            let fits = seconds.is_finite() && (least..=86_400.0).contains(&seconds);
            ensure!(fits, "{name}: {seconds} is outside {least} to 86400");
        }
        Ok(())
    }

    /// How long measuring takes, without starting and stopping.
    pub fn planned(&self) -> Duration {
        let each = self.warmup_seconds + self.seconds;
        Duration::from_secs_f64(each * self.sides.len() as f64 * f64::from(self.pairs))
    }
}

/// A flag that SIGINT and SIGTERM set from now on, instead of ending the process. A second signal while the
/// flag is set ends the process with exit code 130 at once.
///
/// # Errors
/// Where a signal handler cannot be installed.
pub fn interrupt_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())?;
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(flag)
}

/// Measures the scenario under the sides. Setting `interrupt` ends that in order, with the pairs measured so
/// far ([`BenchResult::complete`] is then false). In every case the tenants and the agent are gone and all
/// settings are back when this returns.
///
/// # Errors
/// [`Interrupted`] before the first pair is complete; options or sides that cannot be measured on a host, an
/// agent that runs on this host already, tenants that do not start or end early, and a side that does not
/// start, is no longer in charge when it is stopped, or leaves settings changed.
pub fn run(
    options: &BenchOptions,
    interrupt: &Arc<AtomicBool>,
    progress: &Progress,
) -> anyhow::Result<BenchResult> {
    options.check(Substrate::Host)?;
    // An agent that this user may not connect to runs all the same.
    let host_agent = match UnixStream::connect(HOST_AGENT) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    };
    ensure!(
        !host_agent,
        "an agent runs on this host ({HOST_AGENT} is in use), so its kernel's default cannot be \
         measured; stop it first (`systemctl stop quell`)"
    );
    let started = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let host = host::describe()?;
    progress.step(
        Duration::ZERO,
        &format!("starting the tenants of `{}`", options.scenario.name),
    );
    let mut workload = Workload::start(&options.scenario, &options.quell_exe, interrupt.clone())
        .context("starting the tenants")?;
    if options.scheduling || options.trace.is_some() {
        workload.set_recorded();
    }
    let labels = Side::labels(&options.sides);
    let mut session = Session {
        options,
        labels: &labels,
        interrupt,
        progress,
        workload,
        raw: Vec::new(),
        decisions: Vec::new(),
        notes: Vec::new(),
    };
    let ended = session.measure_all();
    let Session {
        workload,
        raw,
        decisions,
        notes,
        ..
    } = session;
    let stopped = workload.stop().context("stopping the tenants");
    progress.finish();
    let pairs_done = complete_pairs(&raw, labels.len()).len();
    match ended {
        Err(error) if error.is::<Interrupted>() && pairs_done > 0 => {}
        Err(error) => return Err(error),
        Ok(()) => {}
    }
    stopped?;
    let measured = Measured {
        options,
        labels: &labels,
        started_unix_s: started,
        host,
        raw,
    };
    Ok(BenchResult {
        decisions,
        ..measured.result(Substrate::Host, notes)
    })
}

/// What was measured, and how.
struct Measured<'a> {
    options: &'a BenchOptions,
    labels: &'a [String],
    started_unix_s: u64,
    host: Host,
    raw: Vec<RawRun>,
}

impl Measured<'_> {
    fn result(self, substrate: Substrate, mut notes: Vec<String>) -> BenchResult {
        let (options, raw) = (self.options, &self.raw);
        let pairs_done = complete_pairs(raw, self.labels.len()).len() as u32;
        if pairs_done < options.pairs {
            let pairs = options.pairs;
            notes.push(format!("Interrupted after {pairs_done} of {pairs} pairs."));
        }
        let summariser = Summariser {
            labels: self.labels,
            cpus: self.host.cpus,
            seconds: options.seconds,
            seed: options.seed,
        };
        let sides = summariser.sides(raw);
        for side in sides
            .iter()
            .filter(|side| side.steal_percent > STEAL_WARNING_PERCENT)
        {
            notes.push(format!(
                "The hypervisor took {:.1} % of the CPUs' time while `{}` was measured: repeat on a quieter host.",
                side.steal_percent, side.side
            ));
        }
        notes.dedup();
        BenchResult {
            schema: SCHEMA,
            quell_version: env!("CARGO_PKG_VERSION").to_string(),
            scenario: options.scenario.name.clone(),
            caveat: options.scenario.caveat.clone(),
            substrate,
            started_unix_s: self.started_unix_s,
            complete: pairs_done == options.pairs,
            lab: None,
            options: Options {
                seed: options.seed,
                pairs: options.pairs,
                seconds: options.seconds,
                warmup_seconds: options.warmup_seconds,
                sides: self.labels.to_vec(),
                set: Vec::new(),
                confidence: stats::CONFIDENCE,
                resamples: stats::RESAMPLES,
            },
            results: summariser.results(raw),
            comparisons: summariser.comparisons(raw, if options.second_baseline { 2 } else { 1 }),
            agent: agent_cost(raw.iter().filter_map(|run| run.agent)),
            sides,
            runs: summariser.runs(raw),
            latency: summariser.latency(raw),
            decisions: Vec::new(),
            notes,
            host: self.host,
        }
    }
}

/// The order of the sides in a pair: as given in even pairs, reversed in odd pairs.
pub fn order(sides: usize, pair: u32) -> Vec<usize> {
    if pair % 2 == 0 {
        (0..sides).collect()
    } else {
        (0..sides).rev().collect()
    }
}

struct Session<'a> {
    options: &'a BenchOptions,
    labels: &'a [String],
    interrupt: &'a Arc<AtomicBool>,
    progress: &'a Progress,
    workload: Workload,
    raw: Vec<RawRun>,
    decisions: Vec<AgentLog>,
    notes: Vec<String>,
}

impl Session<'_> {
    fn measure_all(&mut self) -> anyhow::Result<()> {
        for pair in 0..self.options.pairs {
            for (position, side) in order(self.labels.len(), pair).into_iter().enumerate() {
                if self.interrupt.load(Ordering::Relaxed) {
                    bail!(Interrupted);
                }
                self.measure_side(pair, position as u32, side)?;
            }
        }
        Ok(())
    }

    fn measure_side(&mut self, pair: u32, position: u32, side: usize) -> anyhow::Result<()> {
        let label = &self.labels[side];
        let before = self.inventory()?;
        let started = Started::start(
            &self.options.sides[side],
            label,
            &self.options.quell_exe,
            || self.tenants(),
            self.options.scenario.criticality,
            self.interrupt,
        )?;
        let start_ns = quell_sys::clock::monotonic_ns();
        let seed = stats::pair_seed(self.options.seed, pair);
        let ((measurements, stillness), window) =
            self.measure_window(pair, side, seed, started.agent.as_ref())?;
        if let Some(agent) = &started.agent {
            self.question(agent, pair, label, start_ns);
        }
        started.stop()?;
        let differences = self.inventory()?.differences(&before);
        ensure!(
            differences.is_empty(),
            "side `{label}` did not put back the settings of {} of {} threads:\n{}",
            differences.len(),
            before.threads(),
            differences.join("\n")
        );
        for m in &measurements {
            if let Some(reason) = m.generator.as_ref().and_then(|g| g.not_realtime.as_ref()) {
                self.note(format!(
                    "The load generator of {} ran at ordinary priority ({reason}), so its own waiting counts as latency.",
                    m.tenant
                ));
            }
        }
        if let Some(reason) = &stillness.unwatched {
            self.note(format!(
                "Pauses of the machine below could not be watched ({reason}), so latencies hold them."
            ));
        }
        self.raw.push(RawRun {
            pair,
            position,
            side,
            seed,
            busy_percent: window.busy_percent,
            steal_percent: window.steal_percent,
            idle_cpus: window.idle_cpus,
            switches: None,
            held_cpus: None,
            agent: window.agent,
            stillness,
            measurements,
        });
        Ok(())
    }

    /// Loads the tenants and measures, while a second thread reads the host's and the agent's CPU time at
    /// both ends of the window and keeps the progress going.
    fn measure_window(
        &mut self,
        pair: u32,
        side: usize,
        seed: u64,
        agent: Option<&AgentChild>,
    ) -> anyhow::Result<((Vec<Measurement>, Stillness), Window)> {
        let options = self.options;
        let warmup = Duration::from_secs_f64(options.warmup_seconds);
        let length = Duration::from_secs_f64(options.seconds);
        let text = format!(
            "pair {} of {}: {}",
            pair + 1,
            options.pairs,
            self.labels[side]
        );
        let done = (warmup + length) * self.raw.len() as u32;
        self.progress.step(done, &text);
        let progress = self.progress;
        let trace = options.trace.as_ref();
        let trace = trace.map(|folder| (folder.clone(), self.labels[side].clone(), pair));
        let watch = (options.scheduling || trace.is_some())
            .then(|| Watch::new(&self.workload, warmup, length, trace));
        let workload = &mut self.workload;
        let (end, ended) = channel::<()>();
        std::thread::scope(|scope| {
            let watch = watch.map(|watch| {
                let (recording, recorded) = channel();
                let watch = scope.spawn(|| watch.run(recording));
                // The recorder runs, or it failed and says why at the end.
                let _ = recorded.recv();
                watch
            });
            let probe = scope.spawn(move || -> anyhow::Result<Window> {
                let began = Instant::now();
                let tick = |elapsed| progress.tick(done + elapsed, &text);
                sleep_until(&ended, began, warmup, tick);
                let first = Reading::take(agent)?;
                sleep_until(&ended, began, warmup + length, tick);
                Reading::take(agent)?.since(&first, agent)
            });
            let measured = workload.measure(warmup, length, seed);
            drop(end);
            let watched = watch.map(|watch| watch.join());
            let window = probe
                .join()
                .map_err(|_| anyhow::anyhow!("the probe failed"))?;
            let (mut measurements, stillness) = measured?;
            if let Some(watched) = watched {
                let watched = watched.map_err(|_| anyhow::anyhow!("the recorder failed"))??;
                for (measurement, scheduling) in measurements.iter_mut().zip(watched) {
                    measurement.scheduling = options.scheduling.then_some(scheduling);
                }
            }
            Ok(((measurements, stillness), window?))
        })
    }

    /// Asks the agent what it did. The figures stand without that, so a failure is only noted.
    fn question(&mut self, agent: &AgentChild, pair: u32, label: &str, start_ns: u64) {
        match agent.log(pair, label, start_ns) {
            Ok((log, lost)) => {
                if lost > 0 {
                    self.note(format!(
                        "The timeline of `{label}` lacks the oldest {lost} decisions; the agent keeps only the latest."
                    ));
                }
                for effect in &log.effects {
                    // The effect at the moment at which it was found.
                    let found = quell_agent::effects::line(effect, None, effect.since_ns);
                    if effect.finding != Finding::Untried {
                        let at_s = effect.since_ns.saturating_sub(start_ns) as f64 / 1e9;
                        self.note(format!(
                            "The guard of `{label}`, after {at_s:.0} s: {found}."
                        ));
                    }
                }
                self.decisions.push(log);
            }
            Err(error) => self.note(format!("No timeline of `{label}`: {error:#}.")),
        }
        match agent.status() {
            Ok(status) => {
                if let Some(reason) = status.not_acting_reason {
                    self.note(format!("The agent of `{label}` changed nothing: {reason}"));
                }
                if let Some(reason) = status.fallback_reason {
                    self.note(format!(
                        "The agent of `{label}` observed without BPF: {reason}"
                    ));
                }
                for missing in status.missing {
                    self.note(format!(
                        "Not available here: {}. {}",
                        missing.what, missing.remedy
                    ));
                }
                if status.overruns > 0 {
                    self.note(format!(
                        "The agent of `{label}` overran its period at least once."
                    ));
                }
            }
            Err(error) => self.note(format!("No status of `{label}`: {error:#}.")),
        }
    }

    /// Notes something for the reader, once, and tells the user at once.
    fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.progress.say(&text);
            self.notes.push(text);
        }
    }

    fn inventory(&self) -> anyhow::Result<Inventory> {
        Inventory::read(
            self.workload
                .tenants()
                .iter()
                .flat_map(|tenant| tenant.pids.iter().copied()),
        )
    }

    /// The tenants as the agent's configuration selects them.
    fn tenants(&self) -> Vec<AgentTenant> {
        let table = |tenant: &crate::workload::RunningTenant| AgentTenant {
            spec: tenant.wishes.clone(),
            selectors: Selectors::pids(tenant.pids.iter().map(|pid| pid.0)),
        };
        self.workload.tenants().iter().map(table).collect()
    }
}

/// What the host and the agent did within one window.
struct Window {
    busy_percent: f64,
    steal_percent: f64,
    idle_cpus: u32,
    agent: Option<AgentCost>,
}

/// Cumulative CPU times at one moment.
struct Reading {
    at: Instant,
    host: HostTimes,
    agent_ns: u64,
}

impl Reading {
    fn take(agent: Option<&AgentChild>) -> anyhow::Result<Reading> {
        let agent_ns = agent.map_or(Ok(0), |agent| host::cpu_ns(agent.pid()))?;
        Ok(Reading {
            at: Instant::now(),
            host: HostTimes::read()?,
            agent_ns,
        })
    }

    fn since(&self, first: &Reading, agent: Option<&AgentChild>) -> anyhow::Result<Window> {
        let (busy_percent, steal_percent) = self.host.percent_since(&first.host);
        let elapsed_ns = self.at.duration_since(first.at).as_nanos().max(1) as f64;
        let agent = match agent {
            None => None,
            Some(agent) => Some(AgentCost {
                cpu_percent: 100.0 * self.agent_ns.saturating_sub(first.agent_ns) as f64
                    / elapsed_ns,
                rss_bytes: agent.peak_rss_bytes()?,
            }),
        };
        Ok(Window {
            busy_percent,
            steal_percent,
            idle_cpus: self.host.idle_since(&first.host),
            agent,
        })
    }
}

/// Sleeps until `after` from `began`, or until the other end of `ended` is dropped.
fn sleep_until(ended: &Receiver<()>, began: Instant, after: Duration, tick: impl Fn(Duration)) {
    loop {
        let elapsed = began.elapsed();
        let left = after.saturating_sub(elapsed);
        if left.is_zero() {
            return;
        }
        tick(elapsed);
        match ended.recv_timeout(left.min(Duration::from_millis(250))) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_alternate() {
        assert_eq!(
            [order(2, 0), order(2, 1), order(2, 2)],
            [[0, 1], [1, 0], [0, 1]]
        );
        assert_eq!(order(3, 1), [2, 1, 0]);
    }
}
