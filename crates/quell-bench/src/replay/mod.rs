//! A recorded trace on the simulated machine: what would its threads have waited under other schedulers?
//!
//! Problem: a scheduler is to be judged by the load that a host has, and not by a scenario's. How: what threads did by
//! themselves is taken out of the trace ([`recording`]) and done again in virtual time under each scheduler. Interrupts
//! come at their times: the load is open-loop, as recorded. Limits: a wait for a lock is a wait for the wakeup that ended it;
//! who did what is as it was; docs/replay.md has them all, and how far off the answers are.

mod recording;

use crate::run::simulated::{Names, Watch, engine, pid};
use crate::side::{Side, Simulated};
use anyhow::Context;
use quell_model::config::{HostScheduler, TenantClass, TenantSpec};
use quell_model::{CpuId, Pid, Topology};
use quell_sim::{Costs, Simulation};
use quell_trace::{Analyser, Analysis, Delays, Event, ReadError, Reader};
use recording::{Recording, extract};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The longest trace, in ns: a day.
const LONGEST: u64 = 86_400_000_000_000;

/// How far a simulation goes before wakeups that come next are planned, in virtual time.
const STRIDE: u64 = 50_000_000;

/// The most CPUs.
const MOST_CPUS: usize = 4096;

/// Why a trace cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Nothing to do.
    #[error("{}: nothing in it runs: it has no switches", .0.display())]
    Empty(PathBuf),
    /// One that goes by what a trace does not tell.
    #[error("side `{side}` goes by {by}, of which a trace does not tell")]
    Side {
        /// Which.
        side: String,
        /// By what.
        by: &'static str,
    },
    /// No trace of a machine.
    #[error("{}: {why}", file.display())]
    Beyond {
        /// Which.
        file: PathBuf,
        /// What is too much.
        why: String,
    },
}

/// What a trace's processes had, and would have had.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replayed {
    /// The trace.
    pub file: String,
    /// Its length in seconds.
    pub seconds: f64,
    /// The CPUs that were recorded.
    pub recorded_cpus: usize,
    /// The simulated ones.
    pub cpus: usize,
    /// Where events are missing from the trace or contradict each other.
    pub gaps: u64,
    /// What is to be said of it.
    pub notes: Vec<String>,
    /// What all processes together have, as recorded first, then under each scheduler.
    pub all: Vec<Under>,
    /// By CPU time, the busiest first.
    pub processes: Vec<ReplayedProcess>,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplayedProcess {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its threads that did something.
    pub threads: usize,
    /// As recorded first, then under each scheduler.
    pub under: Vec<Under>,
}

/// What threads had, while the trace was recorded or as long after its beginning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Under {
    /// `recorded`, or the scheduler.
    pub policy: String,
    /// CPU time in ms.
    pub cpu_ms: f64,
    /// From ready until on a CPU.
    pub run_delay: Times,
    /// From woken until asleep again: of the bursts that are whole in the trace.
    pub turnaround: Times,
    /// Times its threads got a CPU.
    pub switches: u64,
    /// Times they left one though they were ready.
    pub preemptions: u64,
    /// Times they got another CPU than the time before.
    pub migrations: u64,
}

/// Lengths of time, in µs; `null` where there are none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Times {
    /// How many.
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

/// What the machine's own work takes in a replay. Interrupts, ticks and waking are in the CPU time that was recorded, of
/// whom they interrupted and of who woke: the machine takes nothing for them once more.
pub fn costs() -> Costs {
    Costs {
        answer: 0,
        interrupt: 0,
        wake: 0,
        tick: 0,
        ..Costs::TYPICAL
    }
}

/// Reads a trace and runs it under each of the sides, which are to be the simulator's, on so many CPUs or as many as
/// were recorded.
///
/// # Errors
/// [`ReplayError`], or a side that is not the simulator's.
pub fn replay(file: &Path, sides: &[Side], cpus: Option<u32>) -> anyhow::Result<Replayed> {
    check(sides)?;
    let mut notes = Vec::new();
    let events = read(file, &mut notes)?;
    replay_events(file, &events, sides, cpus, costs(), notes)
}

/// Whether a trace tells what these sides need.
///
/// # Errors
/// [`ReplayError::Side`]
pub fn check(sides: &[Side]) -> Result<(), ReplayError> {
    for side in sides {
        let by = match side {
            Side::Simulated(Simulated::Ideal) => "requests",
            Side::Default => "the host's own scheduler",
            Side::Simulated(it) if it.divides_cores() => "tenants",
            side if side.agent().is_some() => "tenants",
            _ => continue,
        };
        let side = side.to_string();
        return Err(ReplayError::Side { side, by });
    }
    Ok(())
}

/// The events, in the order of their times.
fn read(file: &Path, notes: &mut Vec<String>) -> Result<Vec<Event>, ReplayError> {
    let mut events = Vec::new();
    for event in Reader::open(file)? {
        match event {
            Ok(event) => events.push(event),
            // Who recorded it was stopped: it is whole up to there.
            Err(error @ ReadError::Truncated { .. }) if !events.is_empty() => {
                notes.push(format!("{error}; what came before it is replayed."));
            }
            Err(error) => return Err(error.into()),
        }
    }
    // Other recorders write CPU by CPU.
    events.sort_by_key(|event| event.at_ns);
    Ok(events)
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
        _ => return Err(ReplayError::Empty(file.into()).into()),
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

/// What the processes have under a scheduler until the time when the trace ended, with turnarounds that may end later;
/// and how many of those do not end.
fn simulate(
    recording: &Recording,
    side: &Side,
    topology: &Topology,
    costs: Costs,
    span: u64,
) -> anyhow::Result<(Vec<Had>, u64)> {
    // A trace does not tell whose work is urgent.
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
    // Those that are late are not left out: they would be the worst.
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

/// What one or more processes had.
#[derive(Default)]
struct Had {
    run_ns: u64,
    switches: u64,
    preemptions: u64,
    migrations: u64,
    delays: Delays,
    turnarounds: Delays,
}

/// What each of these processes had.
fn had(analysis: &Analysis, pids: impl Iterator<Item = Pid>, turnarounds: Vec<Delays>) -> Vec<Had> {
    let stats = analysis.processes(|_| true);
    let each = |(pid, turnarounds): (Pid, Delays)| {
        // They are in the order of their ids.
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

    fn under(&self, policy: &str) -> Under {
        Under {
            policy: policy.to_string(),
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
mod predictions;
#[cfg(test)]
mod tests;
