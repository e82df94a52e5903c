//! The host's CPUs: which CPUs are online, and how busy each one was.

use super::proc::{self, Reader, TICK_NS};
use super::{ObserveError, topology};
use quell_model::{CpuSample, HostSample, Topology};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Cumulative times of one CPU in ns, where they could be read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CpuTimes {
    pub(crate) busy_ns: Option<u64>,
    pub(crate) steal_ns: Option<u64>,
}

pub(crate) struct Host {
    /// Kept open: a read tells in a few microseconds whether a CPU came or went.
    online: File,
    online_text: Vec<u8>,
    topology: Arc<Topology>,
    previous: BTreeMap<u32, CpuTimes>,
    reader: Reader,
}

impl Host {
    pub(crate) fn new() -> Result<Host, ObserveError> {
        let path = PathBuf::from(topology::ROOT).join("online");
        let online = File::open(&path).map_err(|e| ObserveError::read(&path, e))?;
        let mut host = Host {
            online,
            online_text: Vec::new(),
            topology: Arc::default(),
            previous: BTreeMap::new(),
            reader: Reader::default(),
        };
        host.follow_hotplug()?;
        Ok(host)
    }

    fn follow_hotplug(&mut self) -> Result<(), ObserveError> {
        let mut text = [0; 4096];
        let path = || PathBuf::from(topology::ROOT).join("online");
        let length = self
            .online
            .read_at(&mut text, 0)
            .map_err(|e| ObserveError::read(path(), e))?;
        if text[..length] != self.online_text {
            self.topology = Arc::new(topology::read()?);
            self.online_text = text[..length].to_vec();
        }
        Ok(())
    }

    /// Cumulative times from `/proc/stat`, in ns; the unit of that file is 10 ms.
    pub(crate) fn proc_times(&mut self) -> Result<BTreeMap<u32, CpuTimes>, ObserveError> {
        let text = self
            .reader
            .read(format_args!("/proc/stat"))?
            .unwrap_or_default();
        let ns = |ticks: u64| Some(ticks.saturating_mul(TICK_NS));
        let times = |(cpu, busy, steal)| {
            (
                cpu,
                CpuTimes {
                    busy_ns: ns(busy),
                    steal_ns: ns(steal),
                },
            )
        };
        Ok(proc::parse_cpu_times(text).into_iter().map(times).collect())
    }

    /// The CPU times of the period since the previous call, given the cumulative times now.
    pub(crate) fn sample(
        &mut self,
        now: BTreeMap<u32, CpuTimes>,
    ) -> Result<HostSample, ObserveError> {
        self.follow_hotplug()?;
        let since = |now: Option<u64>, before: Option<u64>| {
            // The kernel's own figures may step back by a tick when a CPU comes or goes.
            Some(now?.saturating_sub(before?))
        };
        let cpus = self.topology.cpus.iter().map(|cpu| {
            let now = now.get(&cpu.id.0).copied().unwrap_or_default();
            let before = self.previous.get(&cpu.id.0).copied().unwrap_or_default();
            CpuSample {
                cpu: cpu.id,
                busy_ns: since(now.busy_ns, before.busy_ns),
                steal_ns: since(now.steal_ns, before.steal_ns),
            }
        });
        let sample = HostSample {
            topology: Arc::clone(&self.topology),
            cpus: cpus.collect(),
        };
        self.previous = now;
        Ok(sample)
    }
}
