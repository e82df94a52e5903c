//! The choice of a backend: Quell's own scheduler where the kernel takes it, stock interfaces elsewhere.
//!
//! Problem: the scheduler can end at any moment: the kernel ends it when a thread waits too long, another
//! scheduler takes its place, or a bug ends it. The tenants must not lose their agent for that.
//! Approach: the stock actuator is always there. Beside a loaded scheduler it sets cgroup weights, affinities
//! and what guests are told, all of which the scheduler respects; threads' weights, latencies and servers go
//! to the scheduler ([`SchedulerActuator`]). When the scheduler has ended, the log has the reason, plans go
//! to stock interfaces from the same period on, and the scheduler is loaded again: at once where the kernel
//! asks for it (CPU hotplug), otherwise after [`RETRY_FIRST_NS`], then after twice as long each time, up to
//! [`RETRY_MOST_NS`]. After a scheduler that ran for [`PROVEN_NS`] the first step is [`RETRY_FIRST_NS`]
//! again.
//!
//! A plan may ask for the kernel's own scheduler for a while ([`Plan::kernel_scheduler`]). Quell's scheduler
//! is then unloaded, the plan goes to stock interfaces, and the scheduler is loaded with the first plan that
//! does not ask for it.
//!
//! Nothing is journaled: the scheduler's settings end with the scheduler, and the scheduler ends with this
//! process, in whatever way the process ends.

use crate::io::{Choice, HostActuator, Stock};
use quell_control::{Act, SchedulerActuator, SchedulerCalls};
use quell_linux::observe::{MonitorError, TracePoints};
use quell_model::config::{AgentFile, Backend, Mechanism};
use quell_model::{
    ApplyReport, Note, Plan, RestoreReport, Snapshot, Subject, TenantName, TenantWeight, ThreadId,
    Topology,
};
use quell_sched::{
    Exit, Options, SchedError, Scheduler, ServerSetting, ServerStats, ThreadSetting,
};
use std::collections::{BTreeMap, BTreeSet};

/// The pause before the scheduler is loaded again for the first time.
const RETRY_FIRST_NS: u64 = 1_000_000_000;
/// The longest pause before the scheduler is loaded again.
const RETRY_MOST_NS: u64 = 300_000_000_000;
/// A scheduler that ran for so long counts as working: its end does not lengthen the pause.
const PROVEN_NS: u64 = 600_000_000_000;

/// Loads schedulers: into the kernel, or as a script in tests.
pub(crate) trait Loader {
    /// Loads a scheduler with these options, which counts in the place of these trace points.
    fn load(
        &mut self,
        options: &Options,
        trace_points: Option<&TracePoints>,
    ) -> Result<Box<dyn Loaded>, SchedError>;
}

/// A loaded scheduler, which ends when dropped.
pub(crate) trait Loaded: SchedulerCalls {
    /// What the scheduler's servers got, each at its number.
    fn servers(&self) -> Result<Vec<ServerStats>, SchedError>;
    /// How the scheduler ended; `None` while it runs.
    fn exited(&self) -> Result<Option<Exit>, SchedError>;
}

/// This host's kernel.
pub(crate) struct Kernel;

impl Loader for Kernel {
    fn load(
        &mut self,
        options: &Options,
        trace_points: Option<&TracePoints>,
    ) -> Result<Box<dyn Loaded>, SchedError> {
        Scheduler::supported()?;
        let topology = quell_linux::observe::topology::read().unwrap_or_else(|error| {
            tracing::warn!("the scheduler takes all CPUs for one cache's: {error}");
            let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
            Topology::flat(cpus as u32)
        });
        let maps = trace_points.and_then(|points| points.maps().map_err(warn_of).ok());
        let Some((points, maps)) = trace_points.zip(maps) else {
            let scheduler = Some(Scheduler::load(&topology, options)?);
            return Ok(Box::new(Observing {
                scheduler,
                trace_points: None,
            }));
        };
        // From here on, dropping `observing` starts the trace points again, also where loading fails.
        let mut observing = Observing {
            scheduler: None,
            trace_points: Some(points.clone()),
        };
        let scheduler = Scheduler::observing(&topology, options, &maps, || points.stop())?;
        observing.scheduler = Some(scheduler);
        points.see_again().unwrap_or_else(warn_of);
        Ok(Box::new(observing))
    }
}

fn warn_of(error: MonitorError) {
    tracing::warn!("{error}");
}

/// A scheduler that stands in for the monitor's trace points, until it is dropped.
struct Observing {
    scheduler: Option<Scheduler>,
    trace_points: Option<TracePoints>,
}

impl Drop for Observing {
    fn drop(&mut self) {
        // The scheduler ends before the trace points start, so that no event counts twice.
        self.scheduler = None;
        if let Some(points) = &self.trace_points {
            points
                .start()
                .and_then(|()| points.see_again())
                .unwrap_or_else(warn_of);
        }
    }
}

impl SchedulerCalls for Observing {
    fn set_thread(&mut self, thread: ThreadId, setting: ThreadSetting) -> Result<(), SchedError> {
        match &mut self.scheduler {
            Some(scheduler) => SchedulerCalls::set_thread(scheduler, thread, setting),
            None => Err(SchedError::NoThread(thread.tid)),
        }
    }

    fn set_tenant(&mut self, tenant: u32, weight: Option<TenantWeight>) -> Result<(), SchedError> {
        match &mut self.scheduler {
            Some(scheduler) => SchedulerCalls::set_tenant(scheduler, tenant, weight),
            None => Ok(()),
        }
    }

    fn set_server(&mut self, setting: ServerSetting) -> Result<(), SchedError> {
        match &mut self.scheduler {
            Some(scheduler) => SchedulerCalls::set_server(scheduler, setting),
            None => Ok(()),
        }
    }
}

impl Loaded for Observing {
    fn servers(&self) -> Result<Vec<ServerStats>, SchedError> {
        let servers = self.scheduler.as_ref().map(Scheduler::servers);
        servers.unwrap_or_else(|| Ok(Vec::new()))
    }

    fn exited(&self) -> Result<Option<Exit>, SchedError> {
        self.scheduler.as_ref().map_or(Ok(None), Scheduler::exited)
    }
}

/// Carries out plans through the scheduler while one is loaded, and through stock interfaces otherwise.
pub(crate) struct Backends<L> {
    stock: Box<dyn Stock>,
    loader: L,
    /// The options to load the scheduler with; `None`: the scheduler is not wanted.
    wanted: Option<Options>,
    /// The observer's trace points, which a scheduler stands in for.
    trace_points: Option<TracePoints>,
    scheduler: Option<Running>,
    retry: Retry,
    /// While a plan asks for the kernel's own scheduler: since when Quell's ran before.
    gave_way_since_ns: Option<u64>,
    broken: BTreeMap<TenantName, u64>,
    /// Notes for the next report.
    notes: Vec<Note>,
}

/// The loaded scheduler and what it was told.
struct Running {
    scheduler: Box<dyn Loaded>,
    options: Options,
    /// The time of the first plan after loading.
    since_ns: Option<u64>,
    actuator: SchedulerActuator,
    /// How many periods each of the last plan's servers missed, by its number.
    missed: BTreeMap<u32, u64>,
}

/// When to load the scheduler again.
#[derive(Debug, Default, PartialEq)]
struct Retry {
    /// The earliest time; `None`: at the next period.
    at_ns: Option<u64>,
    /// The pause after the next failure; 0: [`RETRY_FIRST_NS`].
    step_ns: u64,
}

impl Retry {
    fn failed(&mut self, now_ns: u64) -> u64 {
        let step_ns = self.step_ns.clamp(RETRY_FIRST_NS, RETRY_MOST_NS);
        self.at_ns = Some(now_ns + step_ns);
        self.step_ns = step_ns * 2;
        step_ns
    }
}

impl<L: Loader> Backends<L> {
    /// Backends with `stock` for what no scheduler does. Nothing is loaded before [`HostActuator::choose`].
    pub(crate) fn new(stock: Box<dyn Stock>, loader: L) -> Backends<L> {
        Backends {
            stock,
            loader,
            wanted: None,
            trace_points: None,
            scheduler: None,
            retry: Retry::default(),
            gave_way_since_ns: None,
            broken: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    fn load(&mut self, options: &Options) -> Result<(), SchedError> {
        let scheduler = self.loader.load(options, self.trace_points.as_ref())?;
        self.scheduler = Some(Running {
            scheduler,
            options: options.clone(),
            since_ns: None,
            // Where CPU time is shared among tenants, each of them is a group.
            actuator: SchedulerActuator::new(options.share),
            missed: BTreeMap::new(),
        });
        Ok(())
    }

    /// Unloads the scheduler, as a plan asks for the kernel's own. This is no failure, so that nothing delays
    /// loading it again.
    fn give_way(&mut self, now_ns: u64) {
        if self.has_ended(now_ns) {
            return;
        }
        if let Some(mut running) = self.scheduler.take() {
            running.forget();
            self.gave_way_since_ns = running.since_ns;
        }
    }

    /// Notices the scheduler's end, and loads it again when it is time.
    fn watch(&mut self, now_ns: u64) {
        if self.has_ended(now_ns) || self.scheduler.is_some() {
            return;
        }
        let Some(options) = self.wanted.clone() else {
            return;
        };
        if self.retry.at_ns.is_some_and(|at_ns| now_ns < at_ns) {
            return;
        }
        match self.load(&options) {
            Ok(()) => {
                let before_ns = self.gave_way_since_ns.take();
                if let Some(running) = &mut self.scheduler {
                    running.since_ns = Some(before_ns.unwrap_or(now_ns));
                }
                if before_ns.is_none() {
                    self.note("the scheduler is loaded again".to_string());
                }
            }
            Err(error) => {
                let seconds = self.retry.failed(now_ns) / 1_000_000_000;
                self.note(format!(
                    "the scheduler could not be loaded again ({error}): trying once more in {seconds} s"
                ));
            }
        }
    }

    /// Whether the scheduler has ended and is not to be loaded again at once. A note has the reason.
    fn has_ended(&mut self, now_ns: u64) -> bool {
        if let Some(running) = &mut self.scheduler {
            let since_ns = *running.since_ns.get_or_insert(now_ns);
            let (what, at_once) = match running.scheduler.exited() {
                Ok(None) => return false,
                Ok(Some(exit)) => {
                    let text = format!("{}: {}", exit.reason, exit.message);
                    (
                        text.trim_end_matches([':', ' ']).to_string(),
                        exit.wants_restart(),
                    )
                }
                Err(error) => (error.to_string(), false),
            };
            self.scheduler = None;
            if now_ns.saturating_sub(since_ns) >= PROVEN_NS {
                self.retry = Retry::default();
            }
            if at_once {
                self.note(format!("the scheduler ended ({what}) and is loaded again"));
            } else {
                let seconds = self.retry.failed(now_ns) / 1_000_000_000;
                self.note(format!(
                    "the scheduler ended ({what}): acting on stock interfaces; loading it again in {seconds} s"
                ));
                return true;
            }
        }
        false
    }

    fn note(&mut self, text: String) {
        self.notes.push(Note {
            tenant: None,
            subject: Subject::Scheduler,
            text,
        });
    }
}

impl<L: Loader> Act for Backends<L> {
    fn backend(&self) -> Backend {
        match self.scheduler {
            Some(_) => Backend::SchedExt,
            None => Backend::Stock,
        }
    }

    fn apply(&mut self, snapshot: &Snapshot, plan: &Plan) -> ApplyReport {
        match plan.kernel_scheduler {
            true => self.give_way(snapshot.time_ns),
            false => self.watch(snapshot.time_ns),
        }
        let mut report = match &mut self.scheduler {
            None => self.stock.apply(snapshot, plan),
            Some(running) => {
                let report = running.apply(self.stock.as_mut(), snapshot, plan);
                running.look_for_broken(plan, &mut self.broken);
                report
            }
        };
        report.notes.append(&mut self.notes);
        report
    }
}

impl<L: Loader> HostActuator for Backends<L> {
    fn choose(&mut self, config: &AgentFile, trace_points: Option<TracePoints>) -> Choice {
        // The trace points are another monitor's, and the loaded scheduler counts for the previous monitor:
        // it is loaded anew.
        let moved = trace_points != self.trace_points;
        self.trace_points = trace_points;
        self.retry = Retry::default();
        self.gave_way_since_ns = None;
        let before = self.wanted.take();
        let options = match options(config) {
            Ok(options) => options,
            Err(reason) => {
                self.scheduler = None;
                return stock(reason);
            }
        };
        let same = |running: &Running| running.options == options && !moved;
        if !self.scheduler.as_ref().is_some_and(same) {
            // The loaded scheduler ends first: the kernel takes one at a time.
            let promised = self.scheduler.take().is_some_and(|it| it.promises());
            if let Err(error) = self.load(&options) {
                // A configuration that is refused for this leaves the previous one in force, from the next
                // period on.
                self.wanted = before.filter(|_| needs_scheduler(config));
                return stock(error.to_string());
            }
            if promised && options.criticality {
                self.note(
                    "another scheduler was loaded for the new configuration: promises were not kept meanwhile, and begin new periods"
                        .to_string(),
                );
            }
        }
        self.wanted = Some(options);
        Choice {
            backend: Backend::SchedExt,
            reason: None,
        }
    }

    fn unmet(&self) -> BTreeMap<TenantName, Vec<String>> {
        self.stock.unmet()
    }

    fn broken(&self) -> &BTreeMap<TenantName, u64> {
        &self.broken
    }

    fn hand_over(&mut self, bound: &BTreeSet<ThreadId>) -> RestoreReport {
        self.stock.hand_over(bound)
    }

    fn restore(&mut self) -> RestoreReport {
        if let Some(running) = &mut self.scheduler {
            running.forget();
        }
        self.stock.restore()
    }
}

impl Running {
    /// Whether the last plan had promises.
    fn promises(&self) -> bool {
        !self.missed.is_empty()
    }

    /// Makes a plan hold, through the scheduler and the stock interfaces beside it.
    fn apply(&mut self, stock: &mut dyn Stock, snapshot: &Snapshot, plan: &Plan) -> ApplyReport {
        let scheduler = self.scheduler.as_mut();
        self.actuator.apply(stock, scheduler, snapshot, plan)
    }

    /// Adds the periods since the last plan in which a server missed its budget to the broken promises of the
    /// tenant of its threads.
    fn look_for_broken(&mut self, plan: &Plan, broken: &mut BTreeMap<TenantName, u64>) {
        if plan.servers.is_empty() {
            self.missed.clear();
            return;
        }
        let stats = match self.scheduler.servers() {
            Ok(stats) => stats,
            Err(error) => return tracing::debug!("{error}"),
        };
        let mut missed = BTreeMap::new();
        for tenant in &plan.tenants {
            let numbers: BTreeSet<u32> = tenant.threads.iter().filter_map(|it| it.server).collect();
            for number in numbers {
                let Some(stats) = stats.get(number as usize) else {
                    continue;
                };
                missed.insert(number, stats.missed);
                // A server that is new to the plan may have the number of an ended one, and its count.
                let before = self.missed.get(&number).unwrap_or(&stats.missed);
                match stats.missed.saturating_sub(*before) {
                    0 => {}
                    more => *broken.entry(tenant.name.clone()).or_default() += more,
                }
            }
        }
        self.missed = missed;
    }

    /// Takes back all that the scheduler was told.
    fn forget(&mut self) {
        self.actuator.forget(self.scheduler.as_mut());
    }
}

/// The choice that [`HostActuator::choose`] would make on this host, as far as that is known without loading
/// the scheduler.
pub(crate) fn expected(config: &AgentFile) -> Choice {
    let tried = options(config)
        .and_then(|_| Scheduler::supported().map_err(|unsupported| unsupported.to_string()));
    match tried {
        Ok(()) => Choice {
            backend: Backend::SchedExt,
            reason: None,
        },
        Err(reason) => stock(reason),
    }
}

/// Whether the configuration is refused where the scheduler cannot be used.
pub(crate) fn needs_scheduler(config: &AgentFile) -> bool {
    // Without the scheduler nothing keeps promises of CPU time.
    config.agent.has(Mechanism::Criticality) || config.agent.backend == Backend::SchedExt
}

/// The options to load the scheduler with, or the reason why it is not wanted.
fn options(config: &AgentFile) -> Result<Options, String> {
    if config.agent.backend == Backend::Stock {
        return Err("the configuration says so".into());
    }
    match config.agent.mechanisms[..] {
        [] => Err("no mechanism is configured that the scheduler has".into()),
        _ => Ok(Options::configured(config)),
    }
}

fn stock(reason: String) -> Choice {
    Choice {
        backend: Backend::Stock,
        reason: Some(reason),
    }
}

#[cfg(test)]
pub(crate) mod scripted;
#[cfg(test)]
mod tests;
