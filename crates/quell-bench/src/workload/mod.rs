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
use load::{Outcome, Plan, Request, Window, become_realtime, generate, tenant_seed};
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
    /// The tenant's processes; the first was started by us, the others, ascending, are its descendants.
    pub pids: Vec<Pid>,
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
    /// [`Interrupted`]; a tenant that cannot run on this machine (a VM, or one that spawns threads), a CPU
    /// that cannot be used, a cgroup that cannot be made, and a tenant that does not start or does not
    /// answer.
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
            anyhow::ensure!(
                !instance.table.threads.iter().any(|it| it.spawns()),
                "tenant {}: `spawn` runs on the simulator only, yet (--on sim)",
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
                pids: process::family(running.started.process.pid())
                    .into_iter()
                    .map(Pid)
                    .collect(),
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
        // Connections are opened before time 0: that is no part of what is measured.
        let mut generators = Vec::new();
        for (index, running) in self.running.iter().enumerate() {
            let (Some(connect), Some(load)) = (&running.started.connect, &running.load) else {
                continue;
            };
            let name = &self.tenants[index].name;
            let target = connect.connect(load.connections);
            let target = target.with_context(|| format!("cannot load tenant {name}"))?;
            generators.push((index, target, load, tenant_seed(seed, index)));
        }
        // The sampling thread is ready by then, on a busy machine too.
        let soon = Duration::from_millis(if self.sampled.is_some() { 500 } else { 20 });
        let start = Instant::now() + soon;
        let (tenants, running, interrupt) = (&self.tenants, &self.running, &*self.interrupt);
        let recorded = self.recorded;
        let over = AtomicBool::new(false);
        let over = &over;
        let sampled = self.sampled.as_mut();
        let (readings, outcomes, pauses) = thread::scope(|scope| {
            let watch = scope.spawn(move || match recorded {
                true => Pauses::unwatched("what the scheduler does was recorded"),
                false => Pauses::watch(start, over),
            });
            let meter = scope.spawn(move || {
                let _ = become_realtime();
                thread::sleep(start.saturating_duration_since(Instant::now()));
                for it in running.iter().filter(|it| it.started.work.is_some()) {
                    it.started.process.go_on();
                }
                let first = read_at(start + warmup, tenants, running, interrupt)?;
                let second = read_at(start + warmup + length, tenants, running, interrupt)?;
                anyhow::Ok((first, second))
            });
            if let Some((every, sample)) = sampled {
                scope.spawn(move || {
                    let _ = become_realtime();
                    let mut at = start;
                    while !over.load(Ordering::Relaxed) {
                        thread::sleep(at.saturating_duration_since(Instant::now()));
                        sample(start.elapsed());
                        at += *every;
                    }
                });
            }
            let mut threads = Vec::new();
            for (index, mut target, load, seed) in generators {
                let window = Window {
                    start,
                    warmup_ns: warmup.as_nanos() as u64,
                    length_ns: length.as_nanos() as u64,
                    timeout_ns: load.timeout.as_nanos() as u64,
                    seed,
                    first_id: load.next_id,
                };
                let arrivals = load.plan.arrivals(seed);
                let thread =
                    scope.spawn(move || generate(&mut *target, arrivals, window, interrupt));
                threads.push((index, thread));
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
                None => Ok((readings?, outcomes, pauses?)),
            }
        })?;
        if outcomes.iter().flatten().any(|outcome| outcome.interrupted) {
            return Err(Interrupted.into());
        }
        let (first, second) = readings;
        let (from, to) = (
            warmup.as_nanos() as u64,
            (warmup + length).as_nanos() as u64,
        );
        let (count, still_ns) = pauses.within(from..to);
        let mut stillness = Stillness {
            count,
            still_ns,
            left_out: 0,
            unwatched: pauses.unwatched.clone(),
        };
        let mut measurements = Vec::new();
        for (index, outcome) in outcomes.into_iter().enumerate() {
            let (tenant, running) = (&self.tenants[index], &mut self.running[index]);
            if let (Some(load), Some(outcome)) = (&mut running.load, &outcome) {
                load.next_id = outcome.next_id;
                if outcome.unanswered > 0 {
                    tracing::warn!(
                        tenant = %tenant.name,
                        unanswered = outcome.unanswered,
                        "requests had no answer when waiting for it ended; they count as errors"
                    );
                }
            }
            let (before, after) = (&first.tenants[index], &second.tenants[index]);
            let work = &running.started.work;
            let (mut latency, mut requests, mut errors) = (latency_histogram(), 0, 0);
            let mut generator = None;
            if let Some(outcome) = outcome {
                requests = outcome.requests.len() as u64;
                errors = outcome.errors;
                let spared = |request: &&Request| pauses.spare(request.due_ns);
                for request in outcome.requests.iter().filter(spared) {
                    latency.saturating_record(request.latency_ns);
                }
                stillness.left_out += requests - latency.len();
                generator = Some(outcome.generator);
            }
            measurements.push(Measurement {
                tenant: tenant.name.clone(),
                class: tenant.wishes.class,
                latency,
                requests,
                errors,
                work: before
                    .work
                    .zip(after.work)
                    .map(|(before, after)| after - before),
                work_unit: work.as_ref().map_or("", |work| work.unit()),
                cpu_ns: after.cpu_ns.saturating_sub(before.cpu_ns),
                programs_ns: (after.programs_ns.iter())
                    .filter_map(|(program, ns)| {
                        let before = before.programs_ns.get(program)?;
                        Some((program.clone(), ns.saturating_sub(*before)))
                    })
                    .collect(),
                length_ns: (second.time - first.time).as_nanos() as u64,
                generator,
                scheduling: None,
                guest: None,
                late_seconds: None,
            });
        }
        Ok((measurements, stillness))
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
    for (tenant, running) in tenants.iter().zip(running) {
        let alive = running.started.process.check_alive();
        alive.with_context(|| format!("tenant {}", tenant.name))?;
        reading.tenants.push(TenantReading {
            cpu_ns: tenant
                .pids
                .iter()
                .filter_map(|pid| process::cpu_ns(pid.0))
                .sum(),
            programs_ns: process::programs_ns(running.started.process.pid(), &running.programs),
            work: running.started.work.as_ref().map(|work| work.done()),
        });
    }
    Ok(reading)
}
