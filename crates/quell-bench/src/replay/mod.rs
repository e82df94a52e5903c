//! A recorded trace on the simulated machine: what would its threads have waited under other schedulers?
//!
//! Problem: a scheduler is to be judged by the load of a real host, not only by a scenario's. How: what
//! threads did by themselves is taken out of the trace ([`recording`]) and run again in virtual time under
//! each scheduler. Interrupts come at their recorded times: the load is open-loop. Limits: a wait for a lock
//! is a wait for the wakeup that ended it; every thread does the work that it was recorded to do;
//! docs/reference/replay.md has all limits, docs/results/replay.md how far off the answers are.

mod recording;

use crate::result::Substrate;
use crate::run::simulated::{Names, Watch, engine, pid};
use crate::side::{Side, SideError, Sides};
use anyhow::Context;
use quell_model::config::{TenantClass, TenantSpec};
use quell_model::{CpuId, Pid, Topology};
use quell_scenario::HostScheduler;
use quell_sim::{Costs, Simulation};
use quell_trace::{Analyser, Analysis, Delays, Event, Kind, ReadError, Reader, Told};
use recording::{Recording, extract};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The longest trace that is replayed, in ns: a day.
const LONGEST: u64 = 86_400_000_000_000;

/// How far a simulation goes before the next wakeups are planned, in ns of virtual time.
const STRIDE: u64 = 50_000_000;

/// The greatest number of CPUs.
const MOST_CPUS: usize = 4096;

/// The greatest number of events, which are all in memory: some 4 GiB.
const MOST_EVENTS: usize = 1 << 26;

/// How long before all other events a thread may be named, in ns, for that to be the trace's beginning.
const LEAD: u64 = 1_000_000_000;

/// Why a trace cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Nothing runs in the trace.
    #[error("{}: nothing in it runs: {why}", file.display())]
    Empty {
        /// The trace.
        file: PathBuf,
        /// What it has instead.
        why: String,
    },
    /// The name is not that of a scheduler of the simulator.
    #[error("`{0}` is nothing that a trace can be replayed under; there are: {taken}", taken = taken())]
    NoSide(String),
    /// The scheduler has no such options.
    #[error(transparent)]
    Options(SideError),
    /// The side decides by something that a trace does not tell.
    #[error("side `{side}` goes by {by}, of which a trace does not tell; there are: {taken}", taken = taken())]
    Side {
        /// The side's name.
        side: String,
        /// What the side decides by.
        by: &'static str,
    },
    /// The trace is longer, or of more CPUs or events, than a replay takes.
    #[error("{}: {why}", file.display())]
    Beyond {
        /// The trace.
        file: PathBuf,
        /// What is too much.
        why: String,
    },
}

/// What a trace's processes got when they were recorded, and what they would get under each scheduler.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replayed {
    /// The trace.
    pub file: String,
    /// The trace's length, in s.
    pub seconds: f64,
    /// The number of CPUs that were recorded.
    pub recorded_cpus: usize,
    /// The number of simulated CPUs.
    pub cpus: usize,
    /// The number of places where events are missing from the trace or contradict each other.
    pub gaps: u64,
    /// What a reader should know of the trace, in sentences.
    pub notes: Vec<String>,
    /// All processes together: as recorded first, then under each scheduler.
    pub all: Vec<Under>,
    /// Each process by itself, in the order of recorded CPU time, the busiest first.
    pub processes: Vec<ReplayedProcess>,
}

/// One process of a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplayedProcess {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The number of its threads that did something.
    pub threads: usize,
    /// The process as recorded first, then under each scheduler.
    pub under: Vec<Under>,
}

/// What threads got while the trace was recorded, or in a replay of that length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Under {
    /// `recorded`, or the scheduler.
    #[serde(rename = "policy")]
    pub side: String,
    /// CPU time in ms.
    pub cpu_ms: f64,
    /// How long threads were ready until they ran.
    pub run_delay: Times,
    /// How long threads took from woken until asleep again, in bursts that are whole in the trace.
    pub turnaround: Times,
    /// How often a thread got a CPU.
    pub switches: u64,
    /// How often a thread left a CPU while it was ready.
    pub preemptions: u64,
    /// How often a thread got another CPU than the time before.
    pub migrations: u64,
}

/// Statistics of lengths of time, in µs; `null` where there are none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Times {
    /// How many lengths there are.
    pub count: u64,
    /// Their mean.
    pub mean_us: Option<f64>,
    /// Their median.
    pub p50_us: Option<f64>,
    /// Their 99th percentile.
    pub p99_us: Option<f64>,
    /// The longest.
    pub max_us: Option<f64>,
}

/// What the simulated machine charges for its own work in a replay. Interrupts, ticks and wakeups are already
/// in the recorded CPU time, of the interrupted thread or of the waker, so they cost nothing here.
pub fn costs() -> Costs {
    Costs {
        answer: 0,
        interrupt: 0,
        wake: 0,
        tick: 0,
        ..Costs::TYPICAL
    }
}

/// Reads a trace and runs it under each of the sides on `cpus` CPUs, or on as many as were recorded.
///
/// # Errors
/// [`ReplayError`]: a side that a trace cannot be replayed under, a file that cannot be read, or a trace in
/// which nothing runs or that is too large; and a side that the simulator does not have.
pub fn replay(file: &Path, sides: &[Side], cpus: Option<u32>) -> anyhow::Result<Replayed> {
    check(sides)?;
    let mut notes = Vec::new();
    let events = read(file, &mut notes)?;
    replay_events(file, &events, sides, cpus, costs(), notes)
}

/// Reads the names of sides, separated by commas.
///
/// # Errors
/// [`ReplayError::NoSide`], [`ReplayError::Options`] or [`ReplayError::Side`] for the first side that a trace
/// cannot be replayed under.
pub fn sides(names: &str) -> Result<Vec<Side>, ReplayError> {
    let sides = Side::parse_list(names).and_then(|sides| {
        Side::check(&sides, Substrate::Sim)?;
        Ok(sides)
    });
    let sides = sides.map_err(|error| match error {
        // No program replays under a side of quell-studies.
        SideError::Unknown { name: side, .. }
        | SideError::OfStudies(side)
        | SideError::NotSimulated { side, .. } => ReplayError::NoSide(side),
        other => ReplayError::Options(other),
    })?;
    check(&sides)?;
    Ok(sides)
}

/// The names that [`sides`] takes, except Quell's scheduler with options.
pub fn names() -> impl Iterator<Item = &'static str> {
    Sides::PRODUCT.names().filter(|name| {
        let side = name.parse::<Side>().map(|side| [side]);
        side.is_ok_and(|side| Side::check(&side, Substrate::Sim).is_ok() && check(&side).is_ok())
    })
}

fn taken() -> String {
    let names: Vec<&str> = names().collect();
    format!("{}, and NAME=quell sched OPTIONS", names.join(", "))
}

/// Checks that a trace tells what these sides need.
///
/// # Errors
/// [`ReplayError::Side`] for the first side that needs more.
pub fn check(sides: &[Side]) -> Result<(), ReplayError> {
    for side in sides {
        let by = match side {
            Side::Default => "the host's own scheduler",
            // It may go by tenants' classes and objectives.
            Side::Added(_) => "tenants",
            side if side.agent().is_some() => "tenants",
            _ => continue,
        };
        let side = side.to_string();
        return Err(ReplayError::Side { side, by });
    }
    Ok(())
}

/// Reads a trace's events, in the order of their times.
fn read(file: &Path, notes: &mut Vec<String>) -> Result<Vec<Event>, ReplayError> {
    let mut reader = Reader::open(file)?;
    let mut events = Vec::new();
    let too_many = || ReplayError::Beyond {
        file: file.into(),
        why: format!("it has more than {MOST_EVENTS} events, which are the most"),
    };
    for event in reader.by_ref() {
        match event {
            Ok(event) if events.len() < MOST_EVENTS => events.push(event),
            Ok(_) => return Err(too_many()),
            // The recorder was stopped: the trace is whole up to here.
            Err(error @ ReadError::Truncated { .. }) if !events.is_empty() => {
                notes.push(format!("{error}; what came before it is replayed."));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let (told, mut all) = reader.into_told();
    if told.switches == 0 {
        let (file, why) = (file.into(), no_switches(&told));
        return Err(ReplayError::Empty { file, why });
    }
    if all.len() + events.len() > MOST_EVENTS {
        return Err(too_many());
    }
    notes.extend(untold(&told));
    all.append(&mut events);
    clamp(&mut all);
    // Other recorders write the events CPU by CPU.
    all.sort_by_key(|event| event.at_ns);
    Ok(all)
}

/// Why a trace has no switches, in words.
fn no_switches(told: &Told) -> String {
    let has = match (told.packets, told.kernel_events) {
        (0, _) => "it is empty".to_string(),
        (packets, 0) => format!(
            "none of its {packets} packets has events of the kernel (Perfetto's data source `linux.ftrace`)"
        ),
        (_, events) => format!(
            "its {events} events of the kernel are others (record `sched/sched_switch`, too)"
        ),
    };
    format!("it has no switches: {has}")
}

/// What the traces of other recorders leave out, in sentences.
fn untold(told: &Told) -> Vec<String> {
    let mut notes = Vec::new();
    if told.wakings == 0 && told.wakeups > 0 {
        notes.push(
            "The trace has `sched_wakeup` and no `sched_waking`: threads count as ready from when they were put in a \
             queue, which may be some us after somebody began to wake them, and by whom is not told where another CPU did."
                .to_string(),
        );
    }
    if told.wakings + told.wakeups > 0 && told.interrupts == 0 {
        notes.push(
            "The trace does not tell which wakeups were interrupts': all are taken for what the thread did that ran there."
                .to_string(),
        );
    }
    if told.local_clocks {
        notes.push(
            "Each CPU's times are of a clock of its own, which need not agree with the others' (the kernel's trace \
             clock `local`): waits across CPUs are off by as much."
                .to_string(),
        );
    }
    notes
}

/// Moves events that only name threads into the trace's span: other recorders write them at any time and by
/// another clock, so they neither begin nor end a trace.
fn clamp(events: &mut [Event]) {
    let said = |event: &Event| matches!(event.kind, Kind::Thread(_));
    let did = events.iter().filter(|event| !said(event));
    let times = did.map(|event| event.at_ns);
    let (Some(first), Some(last)) = (times.clone().min(), times.max()) else {
        return;
    };
    for event in events.iter_mut().filter(|event| said(event)) {
        if event.at_ns.saturating_add(LEAD) < first {
            event.at_ns = first;
        }
        event.at_ns = event.at_ns.min(last);
    }
}

fn replay_events(
    file: &Path,
    events: &[Event],
    sides: &[Side],
    cpus: Option<u32>,
    costs: Costs,
    mut notes: Vec<String>,
) -> anyhow::Result<Replayed> {
    let recording = extract(events, &costs);
    let (first, last) = match (events.first(), events.last()) {
        (Some(first), Some(last)) if !recording.processes.is_empty() && recording.cpus > 0 => {
            (first.at_ns, last.at_ns)
        }
        _ => {
            let (file, why) = (file.into(), "its CPUs only idle".to_string());
            return Err(ReplayError::Empty { file, why }.into());
        }
    };
    let beyond = |why: String| ReplayError::Beyond {
        file: file.into(),
        why,
    };
    let span = last - first;
    if span > LONGEST {
        let why = format!("it is of {} s; a day is the most", span / 1_000_000_000);
        return Err(beyond(why).into());
    }
    let count = cpus.map_or(recording.cpus, |cpus| cpus as usize);
    if count > MOST_CPUS {
        return Err(beyond(format!("it is of {count} CPUs; {MOST_CPUS} are the most")).into());
    }
    if recording.gaps > 0 {
        notes.push(format!(
            "At {} places events are missing or contradict each other: threads go on there as if what is missing had happened.",
            recording.gaps
        ));
    }
    if recording.unwoken > 0 {
        notes.push(
            "The trace has switches only. Of waits it tells those of threads that left their CPU while they still wanted \
             to run; how long woken threads waited, who woke them, and turnarounds it cannot tell (record \
             `sched/sched_waking`, too). Under the schedulers they are taken to be woken when they ran, and their waits count."
                .to_string(),
        );
    }
    if recording.alone > 0 {
        notes.push(format!(
            "Of {} threads the trace does not tell the process: each is one by itself (Perfetto's data source `linux.process_stats` tells).",
            recording.alone
        ));
    }
    let mut analyser = Analyser::default();
    for event in events {
        analyser.add(event);
    }
    let analysis = analyser.finish(Some(last));
    let pids = recording.processes.iter().map(|process| process.pid);
    let turnarounds = recording.processes.iter().map(|it| it.turnarounds.clone());
    let recorded = had(&analysis, pids, turnarounds.collect());
    let mut columns = vec![("recorded".to_string(), recorded)];
    let topology = Topology::flat(count as u32);
    for (side, label) in sides.iter().zip(Side::labels(sides)) {
        let simulated = simulate(&recording, side, &topology, costs, span);
        let (had, undone) = simulated.with_context(|| side.to_string())?;
        if undone > 0 {
            notes.push(format!(
                "Under `{label}`, {undone} of the turnarounds would not end even in as long again, and are missing."
            ));
        }
        columns.push((label, had));
    }
    let mut processes: Vec<ReplayedProcess> = Vec::new();
    for (number, process) in recording.processes.iter().enumerate() {
        let under = columns.iter().map(|(label, had)| had[number].under(label));
        processes.push(ReplayedProcess {
            pid: process.pid.0,
            name: process.name.to_string(),
            threads: process.threads.len(),
            under: under.collect(),
        });
    }
    let busy = |process: &ReplayedProcess| process.under.first().map_or(0.0, |it| it.cpu_ms);
    processes.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
    let all = |(label, had): &(String, Vec<Had>)| {
        let mut all = Had::default();
        had.iter().for_each(|it| all.add(it));
        all.under(label)
    };
    Ok(Replayed {
        file: file.display().to_string(),
        seconds: span as f64 / 1e9,
        recorded_cpus: recording.cpus,
        cpus: count,
        gaps: recording.gaps,
        notes,
        all: columns.iter().map(all).collect(),
        processes,
    })
}

/// What the processes get under a scheduler until the time at which the trace ended, with turnarounds that
/// may end later; and how many turnarounds do not end even in twice the trace's length.
fn simulate(
    recording: &Recording,
    side: &Side,
    topology: &Topology,
    costs: Costs,
    span: u64,
) -> anyhow::Result<(Vec<Had>, u64)> {
    // A trace does not tell which threads are urgent.
    let unknown = TenantSpec {
        class: TenantClass::Batch,
        ..TenantSpec::named("process")
    };
    let tenants = vec![&unknown; recording.processes.len()];
    let (class, costs) = engine(side, HostScheduler::default(), topology, costs, &tenants)?;
    let mut simulation = Simulation::new(topology.clone(), costs, class);
    let mut names = Vec::new();
    let mut planned = 0;
    for process in &recording.processes {
        let threads = process.threads.iter();
        names.push(Names {
            process: process.name.to_string(),
            threads: threads.clone().map(|(name, _, _)| name.clone()).collect(),
        });
        let acts = threads.map(|(_, nice, acts)| (*nice, acts.clone()));
        simulation.add_recorded(acts.collect());
        planned += process.turnarounds.count();
    }
    let watch = Watch::begin(&mut simulation, &names, Analyser::new(0..span.max(1)));
    let mut turnarounds = vec![Delays::default(); recording.processes.len()];
    let mut interrupts = recording.interrupts.iter().peekable();
    let mut done = 0;
    // Turnarounds that end late are waited for: they would be the longest.
    while simulation.machine().now < span || (done < planned && simulation.machine().now < 2 * span)
    {
        let next = simulation.machine().now + STRIDE;
        while let Some(it) = interrupts.next_if(|it| it.at < next) {
            let cpu = CpuId((it.cpu % topology.cpus.len()) as u32);
            simulation.interrupt(it.at, cpu, it.thread);
        }
        for answer in simulation.run_until(next) {
            turnarounds[answer.tenant].add(answer.at - answer.due);
            done += 1;
        }
    }
    let analysis = watch.finish().finish(Some(span));
    let pids = (0..recording.processes.len()).map(pid);
    Ok((had(&analysis, pids, turnarounds), planned - done))
}

/// What one or more processes got.
#[derive(Default)]
struct Had {
    run_ns: u64,
    switches: u64,
    preemptions: u64,
    migrations: u64,
    delays: Delays,
    turnarounds: Delays,
}

/// What each of these processes got, by an analysis of a trace.
fn had(analysis: &Analysis, pids: impl Iterator<Item = Pid>, turnarounds: Vec<Delays>) -> Vec<Had> {
    let stats = analysis.processes(|_| true);
    let each = |(pid, turnarounds): (Pid, Delays)| {
        // The analysis has the processes in the order of their ids.
        let place = stats.binary_search_by_key(&pid, |it| it.pid);
        let mut had = Had {
            turnarounds,
            ..Had::default()
        };
        if let Ok(place) = place {
            let it = &stats[place];
            had.run_ns = it.run_ns;
            had.switches = it.switches;
            had.preemptions = it.preemptions;
            had.migrations = it.migrations;
            had.delays = it.delays.clone();
        }
        had
    };
    pids.zip(turnarounds).map(each).collect()
}

impl Had {
    fn add(&mut self, other: &Had) {
        self.run_ns += other.run_ns;
        self.switches += other.switches;
        self.preemptions += other.preemptions;
        self.migrations += other.migrations;
        self.delays.merge(&other.delays);
        self.turnarounds.merge(&other.turnarounds);
    }

    fn under(&self, side: &str) -> Under {
        Under {
            side: side.to_string(),
            cpu_ms: self.run_ns as f64 / 1e6,
            run_delay: times(&self.delays),
            turnaround: times(&self.turnarounds),
            switches: self.switches,
            preemptions: self.preemptions,
            migrations: self.migrations,
        }
    }
}

fn times(delays: &Delays) -> Times {
    let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
    Times {
        count: delays.count(),
        mean_us: us(delays.mean_ns()),
        p50_us: us(delays.quantile_ns(0.5)),
        p99_us: us(delays.quantile_ns(0.99)),
        max_us: us(delays.max_ns()),
    }
}

#[cfg(test)]
#[path = "../../../quell-trace/tests/encodings/mod.rs"]
mod encodings;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod predictions;
#[cfg(test)]
mod tests;
