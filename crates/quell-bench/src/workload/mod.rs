//! Runs a scenario for real on this machine: starts its tenants as processes, loads them, measures.
//!
//! A tenant is a player process ([`player`]) for thread programs, or a real application. All are ordinary
//! children of this process, in one session, in the fair class at nice 0 with the default affinity, unless
//! the scenario gives CPUs or cgroups ([`place`], [`cgroups`]): what a side does to them beyond that is what
//! is compared.

mod apps;
mod cgroups;
pub mod load;
mod measurement;
mod pauses;
mod place;
mod played;
mod process;

pub mod player;

pub use measurement::{GeneratorReport, GuestCounts, Measurement, Scheduling, latency_histogram};

use anyhow::Context;
use apps::Started;
pub use apps::text as prose;
pub use apps::{Launch, start as start_app};
pub use cgroups::{Cgroups, write as write_to_kernel};
use load::{
    Arrivals, Outcome, Plan, Request, Target, Window, become_realtime, generate, tenant_seed,
};
use pauses::Pauses;

pub use place::Place;
pub use process::find_program;
pub use process::{Nursery, Process, family};
use quell_model::config::{TenantKind, TenantSpec};
use quell_model::{Pid, TenantName};
use quell_scenario::{Scenario, TenantInstance};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A function that is called while a workload is measured, with the time since the window's time 0.
type Sample = Box<dyn FnMut(Duration) + Send>;

/// The tenants of a scenario, running.
pub struct Workload {
    tenants: Vec<RunningTenant>,
    /// What runs for each of `tenants`.
    running: Vec<Running>,
    interrupt: Arc<AtomicBool>,
    recorded: bool,
    sampled: Option<(Duration, Sample)>,
    /// Removed after the processes in them have ended.
    cgroups: Cgroups,
    _nursery: Nursery,
    _folder: TempDir,
}

/// One tenant that runs.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningTenant {
    /// Its name.
    pub name: TenantName,
    /// What the scenario says of the tenant that an agent needs to know.
    pub wishes: TenantSpec,
    /// The tenant's processes; the first was started by us, the others, ascending, are its descendants. Those
    /// that thread programs start (`spawn`) come and go, and are not among them.
    pub pids: Vec<Pid>,
}

/// The processes of each tenant at the moment, those that thread programs started included.
pub fn processes(tenants: &[RunningTenant]) -> Vec<Vec<Pid>> {
    let all = process::all();
    let of = |tenant: &RunningTenant| {
        let first = tenant.pids.iter().take(1);
        let followers = first.flat_map(|first| process::followers(&all, first.0));
        let mut pids: Vec<Pid> = followers.map(Pid).collect();
        pids.extend(&tenant.pids);
        pids.sort_unstable();
        pids.dedup();
        pids
    };
    tenants.iter().map(of).collect()
}

/// The processes of a tenant that stay while it runs.
fn lasting(started: &Started) -> Vec<Pid> {
    let first = started.process.pid();
    let pids = match started.counts {
        Some(_) => vec![first],
        None => process::family(first),
    };
    pids.into_iter().map(Pid).collect()
}

/// What an agent needs to know of a tenant, besides its name and processes.
fn wishes(instance: &TenantInstance<'_>) -> TenantSpec {
    let spec = &instance.table.spec;
    TenantSpec {
        class: spec.class,
        weight: spec.weight,
        vcpus: spec.vcpus,
        criticality: spec.criticality,
        period_ms: spec.period_ms,
        budget_ms: spec.budget_ms,
        pessimistic_budget_ms: spec.pessimistic_budget_ms,
        ..TenantSpec::named(instance.name.as_str())
    }
}

struct Running {
    started: Started,
    /// The names of its thread programs.
    programs: Vec<String>,
    load: Option<LoadState>,
}

/// The state of a tenant's load.
struct LoadState {
    plan: Plan,
    connections: u32,
    timeout: Duration,
    next_id: u64,
}

/// What the machine below did to a window: see [`pauses`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stillness {
    /// How often all CPUs stood still.
    pub count: u32,
    /// How long all CPUs stood still, in ns, summed over pauses.
    pub still_ns: u64,
    /// Requests that were left out of latencies because of pauses.
    pub left_out: u64,
    /// Why pauses could not be watched, where they could not.
    pub unwatched: Option<String>,
}

/// The run was ended through its interrupt flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Workload {
    /// Starts every tenant of the scenario for real; returns when all answer. `quell_exe` is the program that
    /// has the hidden `player` subcommand. Setting `interrupt` ends this and [`Workload::measure`] soon.
    ///
    /// # Errors
    /// [`Interrupted`]; a tenant that cannot run on this machine (a VM), a CPU that cannot be used, a cgroup
    /// that cannot be made, and a tenant that does not start or does not answer.
    pub fn start(
        scenario: &Scenario,
        quell_exe: &Path,
        interrupt: Arc<AtomicBool>,
    ) -> anyhow::Result<Workload> {
        let cpus = thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let folder = tempfile::Builder::new().prefix("quell-bench-").tempdir();
        let folder = folder.context("cannot make a temporary folder")?;
        let nursery = Nursery::new()?;
        let instances = scenario.instances();
        for instance in &instances {
            anyhow::ensure!(
                instance.table.spec.kind != TenantKind::Vm,
                "tenant {}: kind = \"vm\" does not run on this machine yet",
                instance.name
            );
        }
        place::check_cpus(scenario)?;
        let prefix = folder.path().file_name().unwrap_or_default();
        let cgroups = Cgroups::make(scenario, &prefix.to_string_lossy())?;
        let mut running: Vec<Option<Running>> = instances.iter().map(|_| None).collect();
        // Tenants that take no requests keep the CPUs busy, and may leave nothing to the others: they wait
        // until the load begins.
        let mut order: Vec<usize> = (0..instances.len()).collect();
        order.sort_by_key(|&index| instances[index].table.load.is_none());
        for index in order {
            let (name, table) = (&instances[index].name, instances[index].table);
            if interrupt.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
            let own = folder.path().join(name.as_str());
            std::fs::create_dir(&own).with_context(|| format!("cannot make {}", own.display()))?;
            let launch = Launch {
                nursery: &nursery,
                folder: own,
                place: Place {
                    cgroup: cgroups.procs(index)?,
                    cpus: table.cpus.clone(),
                },
                cpus,
                interrupt: &interrupt,
            };
            let load = match &table.load {
                None => None,
                Some(load) => Some(LoadState {
                    plan: Plan::new(scenario, load, cpus)?,
                    connections: load.connections,
                    timeout: Duration::from_millis(load.timeout_ms),
                    next_id: 0,
                }),
            };
            let started = match &table.app {
                Some(app) => apps::start(app, &launch),
                None => played::start(&table.threads, load.is_some(), quell_exe, &launch),
            };
            let started = started.with_context(|| format!("tenant {name} did not start"))?;
            if started.work.is_some() {
                started.process.hold();
            }
            running[index] = Some(Running {
                started,
                programs: table.threads.iter().map(|it| it.name.clone()).collect(),
                load,
            });
        }
        let running: Vec<Running> = running.into_iter().flatten().collect();
        let tenants = instances
            .iter()
            .zip(&running)
            .map(|(instance, running)| RunningTenant {
                name: instance.name.clone(),
                wishes: wishes(instance),
                pids: lasting(&running.started),
            });
        let tenants = tenants.collect();
        Ok(Workload {
            tenants,
            running,
            interrupt,
            recorded: false,
            sampled: None,
            cgroups,
            _nursery: nursery,
            _folder: folder,
        })
    }

    /// The tenants, in the scenario's order.
    pub fn tenants(&self) -> &[RunningTenant] {
        &self.tenants
    }

    /// The cgroups that were made, in the order of [`Scenario::cgroups`].
    pub fn cgroups(&self) -> &[std::path::PathBuf] {
        self.cgroups.made()
    }

    /// Says that a recorder will watch the scheduler: then no thread watches for pauses, since it would be
    /// recorded, too.
    pub fn set_recorded(&mut self) {
        self.recorded = true;
    }

    /// Calls `sample` at every multiple of `every` after time 0 while [`Workload::measure`] goes on, with the
    /// time since then.
    pub fn set_sampled(&mut self, every: Duration, sample: impl FnMut(Duration) + Send + 'static) {
        self.sampled = Some((every, Box::new(sample)));
    }

    /// Loads every tenant for `warmup` and then `length`, of which the latter is measured. Gives a
    /// measurement for each tenant, in the order of [`Workload::tenants`], and what the machine below did to
    /// all. Equal seeds give equal requests at equal times.
    ///
    /// # Errors
    /// [`Interrupted`]; and where a tenant has ended or cannot be connected to, or a generator fails.
    pub fn measure(
        &mut self,
        warmup: Duration,
        length: Duration,
        seed: u64,
    ) -> anyhow::Result<(Vec<Measurement>, Stillness)> {
        for (tenant, running) in self.tenants.iter().zip(&self.running) {
            let alive = running.started.process.check_alive();
            alive.with_context(|| format!("tenant {}", tenant.name))?;
        }
        let generators = self.connect(seed)?;
        // The sampling thread is ready by then, on a busy machine too.
        let soon = Duration::from_millis(if self.sampled.is_some() { 500 } else { 20 });
        let times = Times {
            start: Instant::now() + soon,
            warmup,
            length,
        };
        let seen = self.load(generators, times)?;
        let mut outcomes = seen.outcomes.iter().flatten();
        if outcomes.any(|outcome| outcome.interrupted) {
            return Err(Interrupted.into());
        }
        Ok(self.conclude(seen, times))
    }

    /// Opens the connections to tenants that get a load. They are opened before time 0, because opening them
    /// is no part of what is measured.
    fn connect(&self, seed: u64) -> anyhow::Result<Vec<Generator>> {
        let mut generators = Vec::new();
        for (index, running) in self.running.iter().enumerate() {
            let (Some(connect), Some(load)) = (&running.started.connect, &running.load) else {
                continue;
            };
            let name = &self.tenants[index].name;
            let target = connect.connect(load.connections);
            let seed = tenant_seed(seed, index);
            generators.push(Generator {
                tenant: index,
                target: target.with_context(|| format!("cannot load tenant {name}"))?,
                arrivals: load.plan.arrivals(seed),
                timeout: load.timeout,
                seed,
                first_id: load.next_id,
            });
        }
        Ok(generators)
    }

    /// Loads every tenant that has a generator, and watches all tenants and the machine meanwhile.
    fn load(&mut self, generators: Vec<Generator>, times: Times) -> anyhow::Result<Seen> {
        let (tenants, running, interrupt) = (&self.tenants, &self.running, &*self.interrupt);
        let recorded = self.recorded;
        let over = AtomicBool::new(false);
        let over = &over;
        let sampled = self.sampled.as_mut();
        thread::scope(|scope| {
            let watch = scope.spawn(move || match recorded {
                true => Pauses::unwatched("what the scheduler does was recorded"),
                false => Pauses::watch(times.start, over),
            });
            let meter = scope.spawn(move || read_both(times, tenants, running, interrupt));
            if let Some((every, sample)) = sampled {
                scope.spawn(move || sample_every(*every, sample, times.start, over));
            }
            let mut threads = Vec::new();
            for generator in generators {
                let tenant = generator.tenant;
                let thread = scope.spawn(move || generator.run(times, interrupt));
                threads.push((tenant, thread));
            }
            let mut outcomes: Vec<Option<Outcome>> = running.iter().map(|_| None).collect();
            let mut failure = None;
            for (index, thread) in threads {
                match thread.join() {
                    Ok(Ok(outcome)) => outcomes[index] = Some(outcome),
                    Ok(Err(error)) => failure = failure.or(Some(error)),
                    Err(_) => failure = failure.or(Some(anyhow::anyhow!("a generator panicked"))),
                }
            }
            let readings = match meter.join() {
                Ok(readings) => readings,
                Err(_) => Err(anyhow::anyhow!("the meter panicked")),
            };
            over.store(true, Ordering::Relaxed);
            let pauses = watch
                .join()
                .map_err(|_| anyhow::anyhow!("watching for pauses panicked"));
            match failure {
                Some(error) => Err(error),
                None => Ok(Seen {
                    readings: readings?,
                    outcomes,
                    pauses: pauses?,
                }),
            }
        })
    }

    /// The measurements of all tenants, and what the machine below did to all.
    fn conclude(&mut self, seen: Seen, times: Times) -> (Vec<Measurement>, Stillness) {
        let (from, to) = (
            times.warmup.as_nanos() as u64,
            (times.warmup + times.length).as_nanos() as u64,
        );
        let (count, still_ns) = seen.pauses.within(from..to);
        let mut stillness = Stillness {
            count,
            still_ns,
            left_out: 0,
            unwatched: seen.pauses.unwatched.clone(),
        };
        let [first, second] = &seen.readings;
        let length_ns = (second.time - first.time).as_nanos() as u64;
        let mut measurements = Vec::new();
        for (index, outcome) in seen.outcomes.into_iter().enumerate() {
            let (tenant, running) = (&self.tenants[index], &mut self.running[index]);
            let between = (&first.tenants[index], &second.tenants[index]);
            let mut measurement = used(tenant, running, between, length_ns);
            if let Some(outcome) = outcome {
                if let Some(load) = &mut running.load {
                    load.next_id = outcome.next_id;
                    if outcome.unanswered > 0 {
                        tracing::warn!(
                            tenant = %tenant.name,
                            unanswered = outcome.unanswered,
                            "requests had no answer when waiting for it ended; they count as errors"
                        );
                    }
                }
                add_requests(&mut measurement, outcome, &seen.pauses);
                stillness.left_out += measurement.requests - measurement.latency.len();
            }
            measurements.push(measurement);
        }
        (measurements, stillness)
    }

    /// Ends every tenant and waits until all are gone, as dropping does.
    ///
    /// # Errors
    /// None today: it always succeeds.
    pub fn stop(self) -> anyhow::Result<()> {
        drop(self);
        Ok(())
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // All tenants are asked at once; dropping each then waits for it.
        self.running
            .iter()
            .for_each(|running| running.started.process.terminate());
    }
}

/// The times of a measurement.
#[derive(Clone, Copy)]
struct Times {
    /// Time 0.
    start: Instant,
    /// How long tenants are loaded before what is measured.
    warmup: Duration,
    /// How long tenants are measured.
    length: Duration,
}

/// A generator of a tenant's requests, connected to the tenant.
struct Generator {
    /// The tenant, by its index.
    tenant: usize,
    target: Box<dyn Target>,
    arrivals: Arrivals,
    timeout: Duration,
    seed: u64,
    first_id: u64,
}

impl Generator {
    fn run(mut self, times: Times, interrupt: &AtomicBool) -> anyhow::Result<Outcome> {
        let window = Window {
            start: times.start,
            warmup_ns: times.warmup.as_nanos() as u64,
            length_ns: times.length.as_nanos() as u64,
            timeout_ns: self.timeout.as_nanos() as u64,
            seed: self.seed,
            first_id: self.first_id,
        };
        generate(&mut *self.target, self.arrivals, window, interrupt)
    }
}

/// What was seen of tenants and machine while tenants were loaded.
struct Seen {
    /// Before and after what is measured.
    readings: [Reading; 2],
    /// By tenant; `None` for a tenant without a generator.
    outcomes: Vec<Option<Outcome>>,
    pauses: Pauses,
}

/// What a tenant used and did between two readings, without its requests.
fn used(
    tenant: &RunningTenant,
    running: &Running,
    (before, after): (&TenantReading, &TenantReading),
    length_ns: u64,
) -> Measurement {
    let work = before.work.zip(after.work);
    Measurement {
        tenant: tenant.name.clone(),
        class: tenant.wishes.class,
        latency: latency_histogram(),
        requests: 0,
        errors: 0,
        work: work.map(|(before, after)| after - before),
        work_unit: running.started.work.as_ref().map_or("", |it| it.unit()),
        cpu_ns: after.cpu_ns.saturating_sub(before.cpu_ns),
        programs_ns: (after.programs_ns.iter())
            .filter_map(|(program, ns)| {
                let before = before.programs_ns.get(program)?;
                Some((program.clone(), ns.saturating_sub(*before)))
            })
            .collect(),
        length_ns,
        generator: None,
        scheduling: None,
        guest: None,
        late_seconds: None,
    }
}

/// Adds a tenant's requests to its measurement. Latencies are those of requests that no pause made late.
fn add_requests(measurement: &mut Measurement, outcome: Outcome, pauses: &Pauses) {
    measurement.requests = outcome.requests.len() as u64;
    measurement.errors = outcome.errors;
    let spared = |request: &&Request| pauses.spare(request.due_ns);
    for request in outcome.requests.iter().filter(spared) {
        measurement.latency.saturating_record(request.latency_ns);
    }
    measurement.generator = Some(outcome.generator);
}

/// Calls `sample` at time 0 and at every multiple of `every` after it, until it is `over`.
fn sample_every(every: Duration, sample: &mut Sample, start: Instant, over: &AtomicBool) {
    let _ = become_realtime();
    let mut at = start;
    while !over.load(Ordering::Relaxed) {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        sample(start.elapsed());
        at += every;
    }
}

/// What every tenant has used and done up to one moment.
struct Reading {
    time: Instant,
    tenants: Vec<TenantReading>,
}

struct TenantReading {
    cpu_ns: u64,
    programs_ns: BTreeMap<String, u64>,
    work: Option<f64>,
}

/// Lets tenants that keep CPUs busy go on at time 0, and takes the readings before and after what is
/// measured.
fn read_both(
    times: Times,
    tenants: &[RunningTenant],
    running: &[Running],
    interrupt: &AtomicBool,
) -> anyhow::Result<[Reading; 2]> {
    let _ = become_realtime();
    thread::sleep(times.start.saturating_duration_since(Instant::now()));
    for it in running.iter().filter(|it| it.started.work.is_some()) {
        it.started.process.go_on();
    }
    let begin = times.start + times.warmup;
    let first = read_at(begin, tenants, running, interrupt)?;
    let second = read_at(begin + times.length, tenants, running, interrupt)?;
    Ok([first, second])
}

/// Takes a reading at this time.
fn read_at(
    time: Instant,
    tenants: &[RunningTenant],
    running: &[Running],
    interrupt: &AtomicBool,
) -> anyhow::Result<Reading> {
    loop {
        if interrupt.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        let left = time.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
    let mut reading = Reading {
        time: Instant::now(),
        tenants: Vec::new(),
    };
    let spawn = running.iter().any(|it| it.started.counts.is_some());
    let all = if spawn { process::all() } else { Vec::new() };
    for (tenant, running) in tenants.iter().zip(running) {
        let alive = running.started.process.check_alive();
        alive.with_context(|| format!("tenant {}", tenant.name))?;
        let lasting = tenant.pids.iter().filter_map(|pid| process::cpu_ns(pid.0));
        reading.tenants.push(TenantReading {
            cpu_ns: lasting.sum::<u64>() + spawned_ns(&running.started, &all),
            programs_ns: process::programs_ns(running.started.process.pid(), &running.programs),
            work: running.started.work.as_ref().map(|work| work.done()),
        });
    }
    Ok(reading)
}

/// How often to try to read what processes have used while none of them is reaped.
const READ_TRIES: u32 = 10;

/// The CPU time of the processes that a tenant's threads started, those that have ended included, in ns;
/// `all` are the machine's processes.
fn spawned_ns(started: &Started, all: &[process::Listed]) -> u64 {
    let Some(counts) = &started.counts else {
        return 0;
    };
    let followers = process::followers(all, started.process.pid());
    let mut used = 0;
    for _ in 0..READ_TRIES {
        let ended = counts.ended_ns();
        let alive = followers.iter().filter_map(|&pid| process::cpu_ns(pid));
        used = ended + alive.sum::<u64>();
        // One that was reaped meanwhile is in both, or in none.
        if counts.ended_ns() == ended {
            break;
        }
    }
    used
}
