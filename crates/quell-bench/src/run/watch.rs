//! Records what the kernel's scheduler does to tenants' threads in a window.

use super::sink::Sink;
use super::trace::TraceFile;
use crate::workload::{RunningTenant, Scheduling, Workload, processes};
use anyhow::Context;
use quell_linux::record::Recorder;
use quell_model::{Pid, Tid};
use quell_sys::clock::boottime_ns;
use quell_trace::{Analyser, Event, Kind};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

/// Memory for the events of all CPUs, in bytes, and the least and the most for one CPU. A usual window on a
/// few CPUs fits in, since taking events out needs CPU time that the tenants would notice.
const BUFFERS_BYTES: usize = 256 << 20;
const LEAST_BYTES: usize = 4 << 20;
const MOST_BYTES: usize = 16 << 20;

/// How often to look whether events have to be taken out before the window ends: often enough for a million
/// events a second on a few CPUs.
const LOOK: Duration = Duration::from_millis(200);

/// A recording of a window that is to come. It stays on one thread: the recorder's buffers cannot move to
/// another.
pub(super) struct Watch {
    warmup: Duration,
    length: Duration,
    tenants: Vec<RunningTenant>,
    /// The folder, side and pair of the trace to leave, if any.
    trace: Option<(PathBuf, String, u32)>,
}

impl Watch {
    /// A recording of a window that begins after the warm-up.
    pub(super) fn new(
        workload: &Workload,
        warmup: Duration,
        length: Duration,
        trace: Option<(PathBuf, String, u32)>,
    ) -> Watch {
        Watch {
            warmup,
            length,
            tenants: workload.tenants().to_vec(),
            trace,
        }
    }

    /// Records until the window is over; gives what the scheduler did to each tenant's threads. The warm-up
    /// begins when `recording` is sent to or dropped.
    ///
    /// # Errors
    /// Where the recorder cannot start or be read, or the trace cannot be written.
    pub(super) fn run(self, recording: Sender<()>) -> anyhow::Result<Vec<Scheduling>> {
        let mut recorder = Recorder::start(buffer_bytes()).context("recording what threads do")?;
        let trace = match &self.trace {
            Some((folder, side, pair)) => {
                let system = recorder.system()?;
                Some(TraceFile::create(folder, side, *pair, &system)?)
            }
            None => None,
        };
        let begins = boottime_ns() + self.warmup.as_nanos() as u64;
        let end = begins + self.length.as_nanos() as u64;
        // The receiver waits for this, so sending cannot fail.
        let _ = recording.send(());
        // After the recorder has started, which tells of every process that is started from now on.
        let mut owners = Owners::new(&processes(&self.tenants));
        let mut sink = (Analyser::new(begins..end), trace);
        let mut add = |event: &Event| {
            owners.follow(event);
            sink.add(event);
            Ok(())
        };
        while boottime_ns() < end {
            thread::sleep(LOOK);
            recorder.poll_half_full(&mut add)?;
        }
        recorder.finish(&mut add)?;
        let (analyser, trace) = sink;
        trace.map_or(Ok(()), TraceFile::finish)?;
        let analysis = analyser.finish(Some(end));
        let mut scheduling = vec![Scheduling::default(); self.tenants.len()];
        for process in analysis.processes(|thread| owners.of.contains_key(&thread.pid)) {
            if let Some(&tenant) = owners.of.get(&process.pid) {
                scheduling[tenant].add_process(&process);
            }
        }
        Ok(scheduling)
    }
}

/// The tenants of processes: a process that a tenant's thread starts is the tenant's, too.
#[derive(Debug)]
struct Owners {
    /// By process, the tenant.
    of: HashMap<Pid, usize>,
    /// By thread, its process.
    process_of: HashMap<Tid, Pid>,
}

impl Owners {
    /// With the processes that each tenant has already.
    fn new(tenants: &[Vec<Pid>]) -> Owners {
        let of = tenants.iter().enumerate();
        let of = of.flat_map(|(tenant, pids)| pids.iter().map(move |&pid| (pid, tenant)));
        Owners {
            of: of.collect(),
            process_of: HashMap::new(),
        }
    }

    /// Takes the next event.
    fn follow(&mut self, event: &Event) {
        match &event.kind {
            Kind::Thread(thread) => {
                self.process_of.insert(thread.tid, thread.pid);
            }
            Kind::New { thread, by } => {
                let creator = self.process_of.get(by).and_then(|pid| self.of.get(pid));
                if let Some(&tenant) = creator {
                    self.of.insert(thread.pid, tenant);
                }
                self.process_of.insert(thread.tid, thread.pid);
            }
            Kind::Switch { .. } | Kind::Wakeup { .. } | Kind::Rename { .. } | Kind::Lost => {}
        }
    }
}

/// The size of each CPU's buffer, a power of two.
fn buffer_bytes() -> u32 {
    let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let each = (BUFFERS_BYTES / cpus).clamp(LEAST_BYTES, MOST_BYTES);
    1 << each.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_trace::Thread;

    #[test]
    fn processes_that_a_tenant_starts_are_the_tenants() {
        let thread = |tid: u32, pid: u32| Thread {
            tid: Tid(tid),
            pid: Pid(pid),
            name: "t".into(),
        };
        let new = |tid, pid, by| Kind::New {
            thread: thread(tid, pid),
            by: Tid(by),
        };
        let mut owners = Owners::new(&[vec![Pid(10)], vec![Pid(20), Pid(25)]]);
        for kind in [
            Kind::Thread(thread(21, 20)),
            Kind::Thread(thread(30, 30)),
            new(11, 10, 10),
            new(40, 40, 11),
            new(41, 41, 21),
            new(42, 42, 41),
            new(43, 43, 30),
        ] {
            let (at_ns, cpu) = (1, 0);
            owners.follow(&Event { at_ns, cpu, kind });
        }
        let of = |pid| owners.of.get(&Pid(pid)).copied();
        assert_eq!([10, 40].map(of), [Some(0); 2]);
        assert_eq!([20, 25, 41, 42].map(of), [Some(1); 4]);
        assert_eq!([30, 43].map(of), [None; 2]);
    }
}
