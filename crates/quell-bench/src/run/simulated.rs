//! Measures a scenario on the simulator. The scenario's threads get the pairs, seeds and requests that real
//! threads would get, in virtual time; as many runs go on at once as this machine has CPUs.

mod control;
mod course;
mod observe;
pub mod random;

use self::course::{Course, Reading, late};
use super::host::idle_cpus;
use super::summary::RawRun;
use super::trace::TraceFile;
use super::{BenchOptions, Measured};
use crate::progress::Progress;
use crate::result::{BenchResult, Host, Substrate};
use crate::side::{Side, Simulated};
use crate::stats;
use crate::workload::load::{Plan, request_seed, tenant_seed};
use crate::workload::{Interrupted, Measurement, Scheduling, Stillness, latency_histogram};
use anyhow::bail;
use quell_model::config::{Backend, ConfigError, TenantClass, TenantKind, TenantSpec};
use quell_model::{CpuSet, ThreadRole, Topology};
use quell_scenario::{
    Cgroups, CostsSpec, HostScheduler, Scenario, ScenarioTenant, TenantInstance, ThreadProgram,
};
use quell_sim::{
    Answer, Class, Costs, Fair, Fifo, GroupId, Limit, Load, Request, SchedExt, Simulation, Tenant,
    ThreadId, Vm, VmCosts,
};
use quell_trace::{Analyser, System};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use control::Controller;
pub(crate) use observe::{Names, Watch, pid};

/// A thread's slice under [`Simulated::Fifo`], in ns: about EEVDF's base slice on 8 CPUs or more.
const FIFO_TURN: u64 = 3_000_000;

/// A second, in ns.
const SECOND: u64 = 1_000_000_000;

/// The most virtual time, in ns, that a simulation advances between two looks at the interrupt flag.
const STRIDE: u64 = 50_000_000;

/// Measures one benchmark. Setting `interrupt` ends the benchmark with the pairs that are complete by then.
///
/// # Errors
/// The call fails if it is interrupted before the first pair is complete ([`Interrupted`]); else as
/// [`run_all`].
pub fn run(
    options: &BenchOptions,
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<BenchResult> {
    let results = run_all(std::slice::from_ref(options), interrupt, progress);
    progress.finish();
    let result = results?.into_iter().next().flatten();
    Ok(result.ok_or(Interrupted)?)
}

/// Measures several benchmarks, with as many of all their runs at once as this machine has CPUs. A benchmark
/// that an interrupt left without a complete pair is `None`.
///
/// # Errors
/// The call fails as [`check`] for the first benchmark that the simulator cannot run; as [`engine`] for a
/// side whose scheduler cannot be made; if a trace of arrivals cannot be read or a trace of a run cannot be
/// written; and if threads of a tenant wait for one another for ever.
pub fn run_all(
    all: &[BenchOptions],
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Vec<Option<BenchResult>>> {
    let started_unix_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let benches: Vec<Bench<'_>> = all
        .iter()
        .map(|options| prepare(options, interrupt))
        .collect::<anyhow::Result<_>>()?;
    let raw = measure_all(&benches, progress)?;
    let results = benches
        .iter()
        .zip(raw)
        .map(|(bench, raw)| bench.result(raw, started_unix_s));
    Ok(results.collect())
}

/// Checks that the simulator can run this benchmark.
///
/// # Errors
/// The call fails if the options are out of range or a side does not run on the simulator; if the scenario
/// has no `[host]`, or has applications, real-time threads or a VM without `vcpus`; and if a side does not
/// support the scenario's limits of CPU time, pinned threads or lack of objectives.
pub fn check(options: &BenchOptions) -> anyhow::Result<()> {
    prepare(options, &AtomicBool::new(false)).map(|_| ())
}

fn prepare<'a>(options: &'a BenchOptions, interrupt: &'a AtomicBool) -> anyhow::Result<Bench<'a>> {
    options.check(Substrate::Sim)?;
    let scenario = &options.scenario;
    let input = |key: &str, message: &str| ConfigError::at(&scenario.file, key, message);
    let host = scenario.host.as_ref();
    let host = host.ok_or_else(|| {
        input(
            "host",
            "is missing; the simulator needs `cpus` or `topology`",
        )
    })?;
    let instances = scenario.instances();
    for (index, tenant) in scenario.tenants.iter().enumerate() {
        if tenant.app.is_some() {
            let message = "the simulator runs thread programs (`[[tenant.thread]]`) only, yet";
            return Err(input(&format!("tenant[{index}]"), message).into());
        }
        let realtime = |it: &ThreadProgram| it.policy.is_realtime();
        if let Some(number) = tenant.threads.iter().position(realtime) {
            let thread = &tenant.threads[number];
            let message = format!(
                "is \"{}\" for thread `{}` of tenant `{}`; the simulator has no real-time class: --on host or vm",
                thread.policy.name(),
                thread.name,
                tenant.spec.name
            );
            let key = format!("tenant[{index}].thread[{number}].policy");
            return Err(input(&key, &message).into());
        }
        if tenant.spec.kind == TenantKind::Vm && tenant.spec.vcpus.is_none() {
            let message = "is missing; the simulator needs to know how many a VM has";
            return Err(input(&format!("tenant[{index}].vcpus"), message).into());
        }
    }
    let groups = scenario.groups.iter().map(|it| it.max).enumerate();
    let tenants = scenario.tenants.iter().map(|it| it.max).enumerate();
    let groups = groups.map(|(index, max)| ("group", index, max));
    let mut limits = groups.chain(tenants.map(|(index, max)| ("tenant", index, max)));
    let ours = |side: &Side| match side.agent() {
        Some(file) => file.agent.backend != Backend::Stock,
        None => matches!(side, Side::Scheduler(_)),
    };
    let other = options.sides.iter().find(|side| !ours(side));
    let limit = limits.find(|(.., max)| max.is_some());
    if let (Some(side), Some((table, index, _))) = (other, limit) {
        let message = format!(
            "side `{side}` does not limit CPU time on the simulator (only Quell's scheduler does): leave out one or the other"
        );
        return Err(input(&format!("{table}[{index}].max"), &message).into());
    }
    if let Some(side) = options.sides.iter().find(|side| side.divides_cores()) {
        let pinned = |it: &ScenarioTenant| {
            let emulators = side.has_pools() && it.emulator_cpus.is_some();
            emulators || it.threads.iter().any(|thread| it.cpus_of(thread).is_some())
        };
        if let Some(index) = scenario.tenants.iter().position(pinned) {
            let message =
                format!("side `{side}` itself says which CPUs a tenant's threads may run on");
            return Err(input(&format!("tenant[{index}].cpus"), &message).into());
        }
    }
    if let Some(side) = options.sides.iter().find(|side| side.needs_objectives()) {
        let batch = TenantClass::Batch;
        for (index, tenant) in scenario.tenants.iter().enumerate() {
            if tenant.spec.class != batch && tenant.spec.objective.is_none() {
                let message = format!(
                    "is missing; side `{side}` moves cores by how far a tenant's 99th percentile is from it: \
                     objective = {{ p99_ms = 10.0 }}, or --set tenant.{}.objective.p99_ms=10",
                    tenant.spec.name
                );
                return Err(input(&format!("tenant[{index}].objective"), &message).into());
            }
        }
        if scenario.tenants.iter().all(|it| it.spec.class == batch) {
            let message = format!(
                "side `{side}` needs tenants with latency to keep; all are class = \"batch\""
            );
            return Err(input("tenant", &message).into());
        }
    }
    Ok(Bench {
        options,
        topology: host.topology(),
        costs: costs(&host.costs),
        vm_costs: VmCosts {
            emulate: host
                .costs
                .emulate_us
                .map_or(VmCosts::TYPICAL.emulate, |us| (us * 1e3) as u64),
            ..VmCosts::TYPICAL
        },
        scheduler: host.scheduler,
        cgroups: scenario.cgroups(),
        instances,
        interrupt,
    })
}

/// Runs every pair and side of every benchmark, on all CPUs of this machine. Returns, by benchmark, its runs
/// by pair and then by side.
fn measure_all(benches: &[Bench<'_>], progress: &Progress) -> anyhow::Result<Vec<Vec<RawRun>>> {
    let runs: Vec<(usize, u32, usize)> = benches
        .iter()
        .enumerate()
        .flat_map(|(number, bench)| bench.runs().map(move |(pair, side)| (number, pair, side)))
        .collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let planned: Duration = benches.iter().map(|bench| bench.options.planned()).sum();
    let each = planned / runs.len().max(1) as u32;
    let work = || {
        while let Some(&(number, pair, side)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let bench = &benches[number];
            if bench.interrupt.load(Ordering::Relaxed) {
                return;
            }
            let run = bench.measure(pair, side);
            let mut done = done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            done.push(((number, pair, side), run));
            let text = format!("{} of {} simulated", done.len(), runs.len());
            progress.tick(each * done.len() as u32, &text);
        }
    };
    std::thread::scope(|scope| {
        let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
        for _ in 0..workers.min(runs.len()) {
            scope.spawn(work);
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_by_key(|&(at, _)| at);
    let mut all: Vec<Vec<RawRun>> = benches.iter().map(|_| Vec::new()).collect();
    for ((number, ..), run) in done {
        match run {
            Ok(run) => all[number].push(run),
            // An interrupted simulation gives no run.
            Err(error) if error.is::<Interrupted>() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// The costs of the machine's own work that a scenario gives, times in ns; a cost that it does not give is
/// typical.
fn costs(spec: &CostsSpec) -> Costs {
    let typical = Costs::TYPICAL;
    let ns = |us: Option<f64>, else_ns: u64| us.map_or(else_ns, |us| (us * 1e3) as u64);
    let every = |rate: Option<f64>, else_ns: u64| match rate {
        None => else_ns,
        Some(rate) if rate > 0.0 => (1e9 / rate) as u64,
        Some(_) => 0,
    };
    Costs {
        switch: ns(spec.switch_us, typical.switch),
        wake: ns(spec.wake_us, typical.wake),
        fork: ns(spec.fork_us, typical.fork),
        kick: ns(spec.kick_us, typical.kick),
        interrupt: ns(spec.interrupt_us, typical.interrupt),
        request: ns(spec.request_us, typical.request),
        answer: ns(spec.answer_us, typical.answer),
        generators: spec.generators,
        elsewhere: spec.requests_elsewhere,
        tick: ns(spec.tick_us, typical.tick),
        tick_every: every(spec.hz, typical.tick_every),
        migrate: ns(spec.migrate_us, typical.migrate),
        migrate_far: ns(spec.migrate_far_us, typical.migrate_far),
        noise: ns(spec.noise_us, typical.noise),
        noise_every: every(spec.noise_per_s, typical.noise_every),
        shared_clock: spec.shared_clock,
        smt_percent: spec.smt_percent.unwrap_or(typical.smt_percent),
        idle_exit: ns(spec.idle_exit_us, typical.idle_exit),
        idle_deep_after: ns(spec.idle_deep_after_us, typical.idle_deep_after),
    }
}

/// The scheduler of that kernel.
fn own(scheduler: HostScheduler) -> Box<dyn Class> {
    Box::new(match scheduler {
        HostScheduler::Cfs => Fair::cfs_6_1(),
        HostScheduler::Eevdf612 => Fair::eevdf_6_12(),
        HostScheduler::Eevdf => Fair::eevdf_7_2(),
    })
}

/// A side's scheduler for a machine with these tenants, whose kernel's own scheduler is `scheduler`; and the
/// costs of the machine's own work: `costs`, or none for a side that costs nothing
/// ([`costs_nothing`](crate::side::SimulatedSide::costs_nothing)).
///
/// # Errors
/// The call fails if the side does not run on the simulator or its command has arguments that Quell's
/// scheduler does not take, and as [`SchedExt::new`] for a side with Quell's scheduler.
pub fn engine(
    side: &Side,
    scheduler: HostScheduler,
    topology: &Topology,
    costs: Costs,
    tenants: &[&TenantSpec],
) -> anyhow::Result<(Box<dyn Class>, Costs)> {
    let class: Box<dyn Class> = match side {
        Side::Added(added) => {
            // A side without a class only has a controller: the host keeps its own scheduler.
            let class = added.class(topology, tenants);
            let costs = if added.costs_nothing() {
                Costs::NONE
            } else {
                costs
            };
            return Ok((class.unwrap_or_else(|| own(scheduler)), costs));
        }
        Side::Simulated(Simulated::Cfs) => own(HostScheduler::Cfs),
        Side::Simulated(Simulated::Eevdf612) => own(HostScheduler::Eevdf612),
        Side::Simulated(Simulated::Eevdf) => own(HostScheduler::Eevdf),
        Side::Default => own(scheduler),
        Side::Simulated(Simulated::Fifo) => Box::new(Fifo::new(Some(FIFO_TURN))),
        Side::Scheduler(scheduler) => Box::new(SchedExt::new(topology, &scheduler.options()?)?),
        side => match side.agent_for(tenants.iter().copied(), Default::default()) {
            Some(agent) if agent.agent.backend == Backend::Stock => own(scheduler),
            Some(agent) => {
                let options = quell_sched::Options::configured(&agent);
                Box::new(SchedExt::new(topology, &options)?)
            }
            None => bail!("side `{side}` does not run on the simulator"),
        },
    };
    Ok((class, costs))
}

/// The VM of a tenant under a side. Its guest has the EEVDF of Linux 6.12, as Debian 13 does, unless the side
/// has a class for guests. Costs in the guest are those of the host, except for work that only the host does;
/// the VM itself costs nothing under a side that costs nothing.
fn vm(tenant: &ScenarioTenant, side: &Side, costs: Costs, vm_costs: VmCosts) -> Vm {
    let added = match side {
        Side::Added(added) => Some(added),
        _ => None,
    };
    let class = added.and_then(|added| added.guest_class());
    let class = class.unwrap_or_else(|| Box::new(Fair::eevdf_6_12()));
    let free = added.is_some_and(|added| added.costs_nothing());
    Vm {
        // Only the host does other work and generates load, and a vCPU that halts leaves its CPU to the host.
        costs: Costs {
            idle_exit: 0,
            generators: false,
            elsewhere: false,
            noise: 0,
            noise_every: 0,
            shared_clock: false,
            ..costs
        },
        vm_costs: if free { VmCosts::NONE } else { vm_costs },
        emulators: emulators(tenant),
        ..Vm::new(tenant.spec.vcpus.unwrap_or(1), class)
    }
}

/// The number of a VM's emulator threads: one for each queue, which carries requests and answers, and none if
/// the VM gets no load.
fn emulators(tenant: &ScenarioTenant) -> u32 {
    match tenant.load {
        Some(_) => tenant.queues.unwrap_or(1),
        None => 0,
    }
}

fn described(topology: &Topology) -> Host {
    Host {
        cpus: topology.cpus.len() as u32,
        model: "simulated".to_string(),
        kernel: concat!("quell-sim ", env!("CARGO_PKG_VERSION")).to_string(),
        os: "none".to_string(),
        memory_bytes: 0,
        virtualized: false,
        scheduler: Vec::new(),
    }
}

/// A simulation at its end.
struct Ran {
    simulation: Simulation,
    answers: Vec<Answer>,
    /// Before and after the window.
    readings: [Reading; 2],
    /// CPUs that tenants had for themselves in the window, times ns; `None` under a side that gives none.
    held: Option<u128>,
}

struct Bench<'a> {
    options: &'a BenchOptions,
    topology: Topology,
    costs: Costs,
    vm_costs: VmCosts,
    scheduler: HostScheduler,
    instances: Vec<TenantInstance<'a>>,
    cgroups: Cgroups,
    interrupt: &'a AtomicBool,
}

impl Bench<'_> {
    /// The benchmark's runs: the number of the pair and the number of the side of each.
    fn runs(&self) -> impl Iterator<Item = (u32, usize)> + use<> {
        let sides = self.options.sides.len();
        (0..self.options.pairs).flat_map(move |pair| (0..sides).map(move |side| (pair, side)))
    }

    /// The result of the benchmark's runs; `None` if no pair is complete.
    fn result(&self, raw: Vec<RawRun>, started_unix_s: u64) -> Option<BenchResult> {
        let labels = Side::labels(&self.options.sides);
        if super::complete_pairs(&raw, labels.len()).is_empty() {
            return None;
        }
        let measured = Measured {
            options: self.options,
            labels: &labels,
            started_unix_s,
            host: described(&self.topology),
            raw,
        };
        Some(measured.result(Substrate::Sim, Vec::new()))
    }

    /// Simulates a side in a pair and measures its window.
    fn measure(&self, pair: u32, side: usize) -> anyhow::Result<RawRun> {
        let options = self.options;
        let owners = owners(&self.instances);
        let spec_of = |owner: &Owner| &self.instances[owner.instance].table.spec;
        let tenants: Vec<_> = owners.iter().map(spec_of).collect();
        let side_of = &options.sides[side];
        let (class, costs) = engine(
            side_of,
            self.scheduler,
            &self.topology,
            self.costs,
            &tenants,
        )?;
        let seed = stats::pair_seed(options.seed, pair);
        let warmup = ns(options.warmup_seconds);
        let window = warmup..warmup + ns(options.seconds);
        let length = window.end - window.start;
        let mut simulation = Simulation::new(self.topology.clone(), costs, class);
        self.populate(&mut simulation, side_of, costs, (seed, window.end))?;
        let watch = if options.scheduling || options.trace.is_some() {
            let analyser = options.scheduling.then(|| Analyser::new(window.clone()));
            let trace = self.trace(side, pair)?;
            let names: Vec<Names> = self.instances.iter().map(|it| self.names(it)).collect();
            Some(Watch::begin(&mut simulation, &names, (analyser, trace)))
        } else {
            None
        };
        let ran = self.run(simulation, side_of, &owners, window.clone())?;
        let (analyser, trace) = match watch {
            Some(watch) => watch.finish(),
            None => (None, None),
        };
        trace.map_or(Ok(()), TraceFile::finish)?;
        let mut measurements = self.used(&ran, length);
        if let Some(analyser) = analyser {
            let scheduling = self.scheduling(analyser);
            for (measurement, scheduling) in measurements.iter_mut().zip(scheduling) {
                measurement.scheduling = Some(scheduling);
            }
        }
        self.add_requests(&mut measurements, &ran, &owners, window.start);
        let [first, second] = &ran.readings;
        let cpus = second.busy_ns.iter().zip(&first.busy_ns);
        let busy = cpus.map(|(now, then)| now - then);
        let capacity = length as f64 * self.topology.cpus.len() as f64;
        Ok(RawRun {
            pair,
            position: side as u32,
            side,
            seed,
            busy_percent: 100.0 * busy.clone().sum::<u64>() as f64 / capacity,
            steal_percent: 0.0,
            idle_cpus: idle_cpus(busy.map(|ns| (ns, length))),
            switches: Some(second.switches - first.switches),
            held_cpus: ran.held.map(|it| it as f64 / length as f64),
            agent: None,
            stillness: Stillness::default(),
            measurements,
        })
    }

    /// Adds the scenario's cgroups and tenants to a simulation, with the requests of this seed that are due
    /// before `end`.
    fn populate(
        &self,
        simulation: &mut Simulation,
        side: &Side,
        costs: Costs,
        (seed, end): (u64, u64),
    ) -> anyhow::Result<()> {
        let groups = add_groups(simulation, &self.cgroups);
        for (index, tenant) in self.instances.iter().enumerate() {
            let seed = tenant_seed(seed, index);
            let load = self.load(&self.options.scenario, tenant, seed, end)?;
            let inside = Tenant::new(&tenant.table.threads, load);
            let group = self.cgroups.of[index].map_or(GroupId::ROOT, |own| groups[own]);
            let first = simulation.machine().threads.len();
            match tenant.table.spec.kind {
                TenantKind::Process | TenantKind::Container => {
                    simulation.add_tenant(Tenant { group, ..inside });
                }
                TenantKind::Vm => {
                    let vm = Vm {
                        group,
                        ..vm(tenant.table, side, costs, self.vm_costs)
                    };
                    let vm = simulation.add_vm(vm);
                    simulation.add_tenant_in(vm, inside);
                }
            }
            self.restrict(simulation, tenant.table, first);
        }
        Ok(())
    }

    /// Runs a simulation through its window, and on until the requests of the window have had their time.
    ///
    /// # Errors
    /// [`Interrupted`]; and where threads of a tenant wait for one another for ever.
    fn run(
        &self,
        mut simulation: Simulation,
        side: &Side,
        owners: &[Owner],
        window: Range<u64>,
    ) -> anyhow::Result<Ran> {
        let scenario = &self.options.scenario;
        let controller = control::of(side, scenario, &self.instances, owners, &mut simulation);
        let mut course = Course {
            controller,
            simulation,
            answers: Vec::new(),
            told: 0,
            held: None,
        };
        let instances = self.instances.len();
        course.advance(window.start, self.interrupt)?;
        let first = Reading::of(&course.simulation, owners, instances);
        course.held = Some(0);
        course.advance(window.end, self.interrupt)?;
        let second = Reading::of(&course.simulation, owners, instances);
        let held = course.held.take().filter(|_| course.divides());
        let loads = self.instances.iter().flat_map(|it| &it.table.load);
        let timeout = loads.map(|load| load.timeout_ms).max().unwrap_or(0);
        course.advance(window.end + timeout * 1_000_000, self.interrupt)?;

        // A run whose threads wait for one another for ever would have the figures of a quiet machine.
        if let Some((tenant, why)) = course.simulation.deadlock() {
            let name = &self.instances[owners[tenant].instance].name;
            let message = format!("threads of tenant `{name}` stand still for ever: {why}");
            return Err(ConfigError::at(&scenario.file, "tenant", message).into());
        }
        Ok(Ran {
            simulation: course.simulation,
            answers: course.answers,
            readings: [first, second],
            held,
        })
    }

    /// What each tenant used and did in the window of that length, without its requests.
    fn used(&self, ran: &Ran, length_ns: u64) -> Vec<Measurement> {
        let [first, second] = &ran.readings;
        let mut measurements = Vec::new();
        for (index, tenant) in self.instances.iter().enumerate() {
            let loaded = tenant.table.load.is_some();
            measurements.push(Measurement {
                tenant: tenant.name.clone(),
                class: tenant.table.spec.class,
                latency: latency_histogram(),
                requests: 0,
                errors: 0,
                work: (!loaded).then(|| (second.rounds[index] - first.rounds[index]) as f64),
                work_unit: if loaded { "" } else { "rounds" },
                cpu_ns: second.cpu_ns[index] - first.cpu_ns[index],
                programs_ns: self.programs_ns(index, first, second),
                length_ns,
                generator: None,
                scheduling: None,
                guest: second.guests[index]
                    .zip(first.guests[index])
                    .map(|(now, then)| now.since(&then)),
                late_seconds: None,
            });
        }
        measurements
    }

    /// Adds the requests that were due from `begin` on to the tenants' measurements. A request without an
    /// answer is an error, and as late as the time at which the run ended.
    fn add_requests(
        &self,
        measurements: &mut [Measurement],
        ran: &Ran,
        owners: &[Owner],
        begin: u64,
    ) {
        let mut by_second: Vec<BTreeMap<u64, Vec<u64>>> =
            vec![BTreeMap::new(); self.instances.len()];
        let mut add = |tenant: usize, due: u64, took: u64, errors: u64| {
            let instance = owners[tenant].instance;
            let tenant = &mut measurements[instance];
            tenant.requests += 1;
            tenant.errors += errors;
            tenant.latency.saturating_record(took);
            let second = (due - begin) / SECOND;
            by_second[instance].entry(second).or_default().push(took);
        };
        for answer in ran.answers.iter().filter(|answer| answer.due >= begin) {
            add(answer.tenant, answer.due, answer.at - answer.due, 0);
        }
        let now = ran.simulation.machine().now;
        for (tenant, due) in ran.simulation.unanswered().filter(|it| it.1 >= begin) {
            add(tenant, due, now - due, 1);
        }
        for ((measurement, tenant), seconds) in
            measurements.iter_mut().zip(&self.instances).zip(by_second)
        {
            measurement.late_seconds = tenant.table.spec.objective.map(|it| late(seconds, it));
        }
    }

    /// Restricts a tenant's threads on the host, which are the machine's threads from `first` on, to the CPUs
    /// that the scenario gives them.
    fn restrict(&self, simulation: &mut Simulation, tenant: &ScenarioTenant, first: usize) {
        let cpus = self.topology.cpus.len() as u32;
        // A thread that is no emulator thread, and that the scenario gives no CPUs, may not run on the CPUs
        // of emulator threads.
        let for_emulators = for_emulators(&self.instances);
        let others: Option<CpuSet> = (!for_emulators.is_empty()).then(|| {
            let all = self.topology.online();
            all.iter()
                .filter(|cpu| !for_emulators.contains(*cpu))
                .collect()
        });
        let others = others.as_ref();
        let allowed: Vec<Option<&CpuSet>> = match tenant.spec.kind {
            TenantKind::Vm => {
                let roles = simulation.machine().threads[first..].iter();
                let of = |it: &quell_sim::Thread| match it.role {
                    ThreadRole::Vcpu(_) => tenant.cpus.as_ref().or(others),
                    _ => tenant.emulator_cpus.as_ref(),
                };
                roles.map(of).collect()
            }
            TenantKind::Process | TenantKind::Container => {
                let programs = tenant.threads.iter();
                let each = |it| {
                    let cpus_of = tenant.cpus_of(it).or(others);
                    std::iter::repeat_n(cpus_of, it.count.on(cpus) as usize)
                };
                programs.flat_map(each).collect()
            }
        };
        for (thread, allowed) in (first..).zip(allowed) {
            if let Some(allowed) = allowed {
                simulation.restrict(ThreadId(thread as u32), allowed.clone());
            }
        }
    }

    /// The file for the trace of the run; `None` if the run is to leave no trace.
    fn trace(&self, side: usize, pair: u32) -> anyhow::Result<Option<TraceFile>> {
        let Some(folder) = &self.options.trace else {
            return Ok(None);
        };
        let label = &Side::labels(&self.options.sides)[side];
        let system = System {
            // The release of the kernel whose thread states the trace uses.
            release: "7.2.0".to_string(),
            version: concat!("quell-sim ", env!("CARGO_PKG_VERSION")).to_string(),
            machine: "simulated".to_string(),
            clocks: None,
        };
        TraceFile::create(folder, label, pair, &system).map(Some)
    }

    /// The names of a tenant and its threads on the host in traces.
    fn names(&self, tenant: &TenantInstance<'_>) -> Names {
        let programs = tenant.table.threads.iter();
        let cpus = self.topology.cpus.len() as u32;
        let programs = programs.map(|spec| (&*spec.name, spec.count.on(cpus)));
        let kinds: Vec<(&str, u32)> = match tenant.table.spec.kind {
            TenantKind::Process | TenantKind::Container => programs.collect(),
            TenantKind::Vm => {
                let vcpus = tenant.table.spec.vcpus.unwrap_or(1);
                vec![("vcpu", vcpus), ("emulator", emulators(tenant.table))]
            }
        };
        let mut threads = Vec::new();
        for (name, count) in kinds {
            let name = format!("{}/{name}", tenant.name);
            match count {
                1 => threads.push(name),
                count => threads.extend((0..count).map(|number| format!("{name}-{number}"))),
            }
        }
        Names {
            process: tenant.name.to_string(),
            threads,
        }
    }

    /// The CPU time that a tenant's threads used between two readings, by program, in ns; empty for a VM.
    fn programs_ns(&self, index: usize, from: &Reading, to: &Reading) -> BTreeMap<String, u64> {
        let mut of = BTreeMap::new();
        let tenant = self.instances[index].table;
        if tenant.spec.kind == TenantKind::Vm {
            return of;
        }
        let cpus = self.topology.cpus.len() as u32;
        let each = |it: &'_ ThreadProgram| {
            std::iter::repeat_n(it.name.clone(), it.count.on(cpus) as usize)
        };
        let programs = tenant.threads.iter().flat_map(each);
        let used = from.threads_ns[index].iter().zip(&to.threads_ns[index]);
        for (program, (from, to)) in programs.zip(used) {
            *of.entry(program).or_default() += to - from;
        }
        of
    }

    /// The figures of what the scheduler did to the tenants' threads, by tenant.
    fn scheduling(&self, analyser: Analyser) -> Vec<Scheduling> {
        let processes = analyser.finish(None).processes(|_| true);
        let tenant = |number| {
            let mut all = Scheduling::default();
            let of = |process: &&quell_trace::ProcessStats| process.pid == pid(number);
            for process in processes.iter().filter(of) {
                all.add_process(process);
            }
            all
        };
        (0..self.instances.len()).map(tenant).collect()
    }

    /// The requests that the tenant's generator would send before `end`, in ns; `None` if the tenant has no
    /// load.
    fn load(
        &self,
        scenario: &Scenario,
        tenant: &TenantInstance<'_>,
        seed: u64,
        end: u64,
    ) -> anyhow::Result<Option<Load>> {
        let Some(load) = &tenant.table.load else {
            return Ok(None);
        };
        let plan = Plan::new(scenario, load, self.topology.cpus.len() as u32)?;
        let due = plan.arrivals(seed).take_while(move |&due| due < end);
        let requests = due.zip(0..).map(move |(due, number)| Request {
            due,
            seed: request_seed(seed, number),
        });
        Ok(Some(Box::new(requests)))
    }
}

/// The CPUs that the scenario gives to emulator threads of any tenant.
pub fn for_emulators(instances: &[TenantInstance<'_>]) -> CpuSet {
    let sets = instances
        .iter()
        .filter_map(|it| it.table.emulator_cpus.as_ref());
    sets.flat_map(CpuSet::iter).collect()
}

/// Adds the scenario's cgroups to the simulation; returns their numbers, in the order of `cgroups.all`.
fn add_groups(simulation: &mut Simulation, cgroups: &Cgroups) -> Vec<GroupId> {
    let mut groups = Vec::new();
    for cgroup in &cgroups.all {
        let parent = cgroup.parent.map_or(GroupId::ROOT, |parent| groups[parent]);
        let group = simulation.add_group(parent, cgroup.weight);
        if let Some(max) = cgroup.max {
            let limit = Limit {
                quota: max.quota_us() * 1000,
                period: max.period_us() * 1000,
                burst: max.burst_us() * 1000,
            };
            simulation.limit_group(group, limit);
        }
        groups.push(group);
    }
    groups
}

/// The tenant of the scenario that a tenant of the simulation belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The number of the scenario's tenant among the instances.
    pub instance: usize,
    /// Whether the simulation's tenant runs in a VM; false: it is on the host, as a VM's own process is.
    pub in_guest: bool,
}

/// The owner of each tenant of the simulation, in the order of the tenants' numbers. A VM is two tenants of
/// the simulation: a process of the host, and a tenant in the guest.
pub fn owners(instances: &[TenantInstance<'_>]) -> Vec<Owner> {
    let each = |(instance, it): (usize, &TenantInstance<'_>)| {
        let on_host = Owner {
            instance,
            in_guest: false,
        };
        let in_guest = (it.table.spec.kind == TenantKind::Vm).then_some(Owner {
            instance,
            in_guest: true,
        });
        std::iter::once(on_host).chain(in_guest)
    };
    instances.iter().enumerate().flat_map(each).collect()
}

fn ns(seconds: f64) -> u64 {
    Duration::from_secs_f64(seconds).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn vms_run_beside_processes() {
        let text = include_str!("../../tests/scenarios/vms-beside-processes.toml");
        let scenario = Scenario::parse(Path::new("t.toml"), text).unwrap();
        let options = BenchOptions {
            sides: vec![Side::Simulated(Simulated::Eevdf)],
            seconds: 2.0,
            warmup_seconds: 0.5,
            scheduling: true,
            ..BenchOptions::new(scenario, "quell".into())
        };
        let interrupt = AtomicBool::new(false);
        let bench = Bench {
            topology: Topology::flat(4),
            costs: Costs::TYPICAL,
            vm_costs: VmCosts::TYPICAL,
            scheduler: HostScheduler::default(),
            instances: options.scenario.instances(),
            cgroups: options.scenario.cgroups(),
            options: &options,
            interrupt: &interrupt,
        };
        let run = bench.measure(0, 0).unwrap();
        let [one, two, process, batch] = &run.measurements[..] else {
            panic!("{} tenants", run.measurements.len());
        };
        for it in [one, two, process] {
            assert!((1800..2200).contains(&it.requests), "{}", it.requests);
            assert!(it.errors == 0 && it.work.is_none());
            // A tenant uses 20 % of a CPU for its work, and a VM more for its exits and emulator threads.
            let cpu = it.cpu_ns as f64 / it.length_ns as f64;
            assert!((0.18..1.5).contains(&cpu), "{cpu}");
        }
        assert!(batch.work.is_some_and(|rounds| rounds > 500.0));
        // A VM has exits, emulator threads and two schedulers, so its requests take at least 10 µs
        // longer on average.
        let [vm, process] = [one, process].map(|it| it.latency.mean() / 1e3);
        assert!(vm > process + 10.0, "{vm} {process}");
    }
}
