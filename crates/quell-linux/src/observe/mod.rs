//! What a live host does: one [`Snapshot`] per period.
//!
//! Problem: a policy wants to know, every 80 ms and at next to no cost, what each thread of each
//! tenant did: ran, waited, for whom, woken by whom.
//!
//! Approach: [`Observer::new`] compiles the tenants' selectors and finds their processes in `/proc`
//! once. The BPF monitor ([`monitor`]) then counts inside the kernel and tells which processes
//! came, went and changed; a period reads its counters and subtracts the ones before. Where BPF
//! cannot load, the threads' files in `/proc` are sampled instead: dearer, and what cannot be seen
//! that way is `None`, never zero.
//!
//! Units: times in ns, CPU times within the period. Threads that exited within the period are not
//! listed. Everything is seen from the initial pid namespace, where the agent has to run.

mod cgroup;
mod discover;
mod error;
mod host;
pub mod monitor;
mod own;
mod proc;
mod qemu;
mod sampler;
mod selector;
mod settings;
pub mod topology;

pub use cgroup::{CpuHierarchy, Version as CgroupVersion};
pub use error::{ObserveError, SelectorError};
pub use selector::check_selectors;

use discover::Discovery;
use host::Host;
use nix::time::{ClockId, clock_gettime};
use own::OwnCgroups;
use quell_model::config::TenantSpec;
use quell_model::{Snapshot, Source, TenantName, TenantSample};
use sampler::{Period, Sampler};
use selector::Selectors;
use std::sync::Arc;

/// Which source to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preference {
    /// The BPF monitor where it loads, otherwise `/proc`.
    #[default]
    Auto,
    /// The BPF monitor or an error.
    Bpf,
    /// `/proc`, though BPF may be available.
    Procfs,
}

/// Observes this host.
pub struct Observer {
    tenants: Vec<Tenant>,
    /// The tenants' indices, ascending by name.
    by_name: Vec<usize>,
    discovery: Discovery,
    sampler: Sampler,
    host: Host,
    own_cgroups: OwnCgroups,
    fallback_reason: Option<String>,
    seq: u64,
    /// The previous period's end.
    monotonic_ns: u64,
    boottime_ns: u64,
}

struct Tenant {
    name: TenantName,
    spec: Arc<TenantSpec>,
}

impl Observer {
    /// Finds the tenants' processes and starts to count. The first period begins now.
    ///
    /// # Errors
    /// A wrong selector ([`ObserveError::Selector`]); with [`Preference::Bpf`] a monitor that
    /// cannot load; a host without `/proc` or `/sys`.
    pub fn new(tenants: &[TenantSpec], preference: Preference) -> Result<Observer, ObserveError> {
        let selectors = Selectors::new(tenants)?;
        let fallback_reason = match preference {
            Preference::Procfs => Some("the configuration asks for /proc".to_string()),
            Preference::Bpf | Preference::Auto => {
                let reason = match monitor::Monitor::load(monitor::Limits::default()) {
                    Ok(_) => "not connected yet".to_string(),
                    Err(error) => error.to_string(),
                };
                if preference == Preference::Bpf {
                    return Err(ObserveError::Bpf { reason });
                }
                Some(reason)
            }
        };
        let tenants: Vec<Tenant> = tenants
            .iter()
            .map(|spec| Tenant {
                name: spec.name.as_str().into(),
                spec: Arc::new(spec.clone()),
            })
            .collect();
        let mut by_name: Vec<usize> = (0..tenants.len()).collect();
        by_name.sort_by(|&a, &b| tenants[a].name.cmp(&tenants[b].name));
        let mut observer = Observer {
            discovery: Discovery::new("/proc", selectors, tenants.len())?,
            sampler: Sampler::new()?,
            host: Host::new()?,
            own_cgroups: OwnCgroups::new(tenants.len()),
            tenants,
            by_name,
            fallback_reason,
            seq: 0,
            monotonic_ns: clock(ClockId::CLOCK_MONOTONIC),
            boottime_ns: clock(ClockId::CLOCK_BOOTTIME),
        };
        // What was so far is the base that the first period's figures are differences from.
        observer.sample()?;
        observer.seq = 0;
        Ok(observer)
    }

    /// Where the figures come from.
    pub fn source(&self) -> Source {
        Source::Procfs
    }

    /// Why BPF is not used and what would be needed, when it is not used.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    /// What was seen since the previous call (at first: since [`Observer::new`]).
    ///
    /// # Errors
    /// Only when the host itself cannot be read any more. Processes and threads that vanish
    /// meanwhile are no errors.
    pub fn sample(&mut self) -> Result<Snapshot, ObserveError> {
        self.discovery.relist()?;
        self.discovery.step()?;
        let time_ns = clock(ClockId::CLOCK_MONOTONIC);
        let period_ns = time_ns.saturating_sub(self.monotonic_ns);
        let period = Period {
            length_ns: period_ns,
            start_boottime_ns: self.boottime_ns,
        };
        self.boottime_ns = clock(ClockId::CLOCK_BOOTTIME);
        self.monotonic_ns = time_ns;
        let count = self.tenants.len();
        let mut threads = self.sampler.sample(&mut self.discovery, count, period)?;
        let times = self.host.proc_times()?;
        let host = self.host.sample(times)?;
        let changed = self.discovery.take_changed();
        self.own_cgroups
            .step(&self.discovery, changed.into_iter())?;

        let tenants = self.by_name.iter().map(|&index| TenantSample {
            name: self.tenants[index].name.clone(),
            spec: Arc::clone(&self.tenants[index].spec),
            cgroup: self.own_cgroups.of(index).cloned(),
            threads: std::mem::take(&mut threads[index]),
            waits: None,
            occasions: None,
        });
        let tenants = tenants.collect();
        let seq = self.seq;
        self.seq += 1;
        Ok(Snapshot {
            seq,
            time_ns,
            period_ns,
            source: self.source(),
            host,
            tenants,
        })
    }
}

/// A clock's time in ns.
fn clock(id: ClockId) -> u64 {
    // Both clocks exist on every Linux since 2.6.39, so that the call cannot fail.
    clock_gettime(id).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}
