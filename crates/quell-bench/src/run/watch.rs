//! Records what the kernel's scheduler does to tenants' threads in a window.

use super::sink::Sink;
use super::trace::TraceFile;
use crate::workload::{Scheduling, Workload};
use anyhow::Context;
use quell_linux::record::Recorder;
use quell_model::Pid;
use quell_sys::clock::boottime_ns;
use quell_trace::{Analyser, Event};
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
    /// Each tenant's processes.
    processes: Vec<Vec<Pid>>,
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
        let tenants = workload.tenants().iter();
        Watch {
            warmup,
            length,
            processes: tenants.map(|tenant| tenant.pids.clone()).collect(),
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
        let mut sink = (Analyser::new(begins..end), trace);
        let mut add = |event: &Event| {
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
        let tenant = |pids: &Vec<Pid>| {
            let mut scheduling = Scheduling::default();
            for process in analysis.processes(|thread| pids.contains(&thread.pid)) {
                scheduling.add_process(&process);
            }
            scheduling
        };
        Ok(self.processes.iter().map(tenant).collect())
    }
}

/// The size of each CPU's buffer, a power of two.
fn buffer_bytes() -> u32 {
    let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let each = (BUFFERS_BYTES / cpus).clamp(LEAST_BYTES, MOST_BYTES);
    1 << each.ilog2()
}
