//! Observes a live host: one [`Snapshot`] per period.
//!
//! Problem: a policy needs to know, every 80 ms and at next to no cost, what each thread of each
//! tenant did: how long it ran and waited, what it waited for, and which threads woke it.
//!
//! Approach: [`Observer::new`] compiles the tenants' selectors and finds their processes in `/proc`
//! once. The BPF monitor ([`monitor`]) then counts inside the kernel and tells which processes
//! came, went and changed; the figures of a period are the counters minus the previous ones. Where BPF
//! cannot load, the threads' files in `/proc` are sampled instead: this costs more, and what cannot be
//! seen that way is `None`, never zero.
//!
//! Units: times in ns, CPU times within the period. Threads that exited within the period are not listed; the
//! BPF monitor has their sums, and a tenant's own cgroup tells the CPU time of threads that were never known.
//! Everything is seen from the initial pid namespace, where the agent has to run.

mod account;
pub(crate) mod bpf_source;
mod causes;
mod cgroup;
mod container_names;
mod discover;
mod error;
mod exclusive_cgroup;
mod host;
mod kvm;
pub mod monitor;
pub(crate) mod proc;
mod procfs_source;
pub(crate) mod qemu;
mod roster;
mod selector;
mod settings;
mod sources;
mod survey;
pub mod topology;

pub use cgroup::{CpuHierarchy, Version as CgroupVersion};
pub use error::{ObserveError, SelectorError};
pub use monitor::{MonitorError, TracePoints};
pub use selector::check_selectors;
pub use survey::{Survey, Surveyed, survey};

use bpf_source::{BpfSource, Explained};
use container_names::ContainerNames;
use discover::Discovery;
use exclusive_cgroup::ExclusiveCgroups;
use host::{CpuTimes, Host};
use procfs_source::{Period, ProcfsSource};
use quell_model::config::{AgentTenant, TenantRule};
use quell_model::{Snapshot, Source, TenantSample, ThreadSample};
use quell_sys::clock;
use roster::Roster;
use selector::Selectors;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// The source of the threads' figures that the caller wants.
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

/// The observer of this host: makes a snapshot of the tenants each period.
pub struct Observer {
    preference: Preference,
    view: View,
    counters: Counters,
    host: Host,
    fallback_reason: Option<String>,
    seq: u64,
    /// The end of the previous period.
    monotonic_ns: u64,
    boottime_ns: u64,
    /// Samples that are no longer used, by the tenants' places.
    spare: Vec<Vec<ThreadSample>>,
}

/// The tenants, and the processes and the cgroup of each tenant.
struct View {
    discovery: Discovery,
    exclusive_cgroups: ExclusiveCgroups,
}

impl View {
    fn of(tenants: &[AgentTenant], rules: &[TenantRule]) -> Result<View, ObserveError> {
        let selectors = Selectors::new(tenants, rules)?;
        let roster = Roster::of(tenants, places_for(tenants, rules));
        let names = ContainerNames::below(Path::new("/"));
        Ok(View {
            discovery: Discovery::new("/proc", kvm::DEBUGFS, selectors, roster, names)?,
            exclusive_cgroups: ExclusiveCgroups::new(),
        })
    }

    fn places(&self) -> usize {
        self.discovery.roster().places()
    }
}

/// The least number of tenants that the monitor is loaded for: so many tables may come by reloads before
/// another monitor has to be loaded, and with it another scheduler.
const PLACES_LEAST: usize = 256;

/// How many tenants the monitor is to tell apart: as many as it can where rules find them.
fn places_for(tenants: &[AgentTenant], rules: &[TenantRule]) -> usize {
    match rules.is_empty() {
        true => tenants.len().max(PLACES_LEAST),
        false => usize::from(monitor::TenantIndex::LIMIT),
    }
}

/// The source of the threads' figures.
enum Counters {
    Bpf(Box<BpfSource>),
    Procfs(Box<ProcfsSource>),
}

impl Observer {
    /// Finds the tenants' processes and starts to count. The first period begins now.
    ///
    /// # Errors
    /// The call fails with a wrong selector ([`ObserveError::Selector`]); with [`Preference::Bpf`], if the
    /// monitor cannot load; and on a host without `/proc` or `/sys`.
    pub fn new(
        tenants: &[AgentTenant],
        rules: &[TenantRule],
        preference: Preference,
    ) -> Result<Observer, ObserveError> {
        let view = View::of(tenants, rules)?;
        let loaded = match preference {
            Preference::Procfs => Err("/proc was asked for".to_string()),
            Preference::Bpf | Preference::Auto => {
                BpfSource::load(view.places(), places_for(tenants, rules))
            }
        };
        let (counters, fallback_reason) = match loaded {
            Ok(bpf) => (Counters::Bpf(Box::new(bpf)), None),
            Err(reason) if preference == Preference::Bpf => {
                return Err(ObserveError::Bpf { reason });
            }
            Err(reason) => (
                Counters::Procfs(Box::new(ProcfsSource::new()?)),
                Some(reason),
            ),
        };
        let mut observer = Observer {
            preference,
            view,
            counters,
            host: Host::new()?,
            fallback_reason,
            seq: 0,
            monotonic_ns: clock::monotonic_ns(),
            boottime_ns: clock::boottime_ns(),
            spare: Vec::new(),
        };
        observer.begin()?;
        Ok(observer)
    }

    /// Observes other tenants from now on; the period begins anew. A monitor that can tell that many tenants
    /// apart stays loaded, and with it a scheduler that stands in for its trace points.
    ///
    /// # Errors
    /// The call fails as [`Observer::new`] does; the observer then goes on with the tenants that it had.
    pub fn follow(
        &mut self,
        tenants: &[AgentTenant],
        rules: &[TenantRule],
    ) -> Result<(), ObserveError> {
        let bpf = match &mut self.counters {
            Counters::Bpf(bpf) if bpf.can_follow(places_for(tenants, rules)) => bpf,
            _ => {
                let seq = self.seq;
                *self = Observer::new(tenants, rules, self.preference)?;
                self.seq = seq;
                return Ok(());
            }
        };
        let view = View::of(tenants, rules)?;
        bpf.follow_others(view.places());
        let before = std::mem::replace(&mut self.view, view);
        if let Err(error) = self.begin() {
            if let Counters::Bpf(bpf) = &mut self.counters {
                bpf.follow_others(before.places());
            }
            self.view = before;
            return Err(error);
        }
        Ok(())
    }

    /// Takes the present counters as the base of the next period's figures.
    fn begin(&mut self) -> Result<(), ObserveError> {
        self.spare.clear();
        let seq = self.seq;
        self.sample()?;
        self.seq = seq;
        Ok(())
    }

    /// The trace points that a scheduler can stand in for; `None` where the figures do not come from BPF.
    pub fn trace_points(&self) -> Option<TracePoints> {
        match &self.counters {
            Counters::Bpf(bpf) => Some(bpf.trace_points()),
            Counters::Procfs(_) => None,
        }
    }

    /// The source that the threads' figures come from.
    pub fn source(&self) -> Source {
        match self.counters {
            Counters::Bpf(_) => Source::Bpf,
            Counters::Procfs(_) => Source::Procfs,
        }
    }

    /// Why BPF is not used and what it would need; `None` when it is used.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    /// Takes back the snapshot before the last, so that the next snapshot reuses its memory: to allocate
    /// a snapshot of a thousand threads costs more than to update all that changes in it. Other snapshots
    /// are dropped.
    pub fn recycle(&mut self, snapshot: Snapshot) {
        if snapshot.seq + 2 != self.seq {
            return;
        }
        self.spare.clear();
        self.spare.resize_with(self.view.places(), Vec::new);
        let roster = self.view.discovery.roster();
        for tenant in snapshot.tenants {
            if let Some(place) = roster.place_of(&tenant.name) {
                self.spare[place] = tenant.threads;
            }
        }
    }

    /// The snapshot of the period since the previous call (at first: since [`Observer::new`]).
    ///
    /// # Errors
    /// The call fails only when the host itself cannot be read any more. Processes and threads that vanish
    /// meanwhile are no errors.
    pub fn sample(&mut self) -> Result<Snapshot, ObserveError> {
        let (period, mut seen) = match &mut self.counters {
            Counters::Bpf(bpf) => {
                let changed = bpf.follow(&mut self.view.discovery)?;
                let before_ns = self.monotonic_ns;
                let lists = std::mem::take(&mut self.spare);
                let counts = bpf.sample(&self.view.discovery, before_ns, lists)?;
                let period = (counts.time_ns.saturating_sub(before_ns), counts.time_ns);
                let explained = Some(counts.tenants);
                (
                    period,
                    Seen {
                        threads: counts.threads,
                        explained,
                        cpus: counts.cpus,
                        changed,
                    },
                )
            }
            Counters::Procfs(procfs) => {
                self.view.discovery.relist()?;
                self.view.discovery.step()?;
                let time_ns = clock::monotonic_ns();
                let length_ns = time_ns.saturating_sub(self.monotonic_ns);
                let period = Period {
                    length_ns,
                    start_boottime_ns: self.boottime_ns,
                };
                self.boottime_ns = clock::boottime_ns();
                let threads = procfs.sample(&mut self.view.discovery, period)?;
                let (cpus, changed) = (self.host.proc_times()?, self.view.discovery.take_changed());
                (
                    (length_ns, time_ns),
                    Seen {
                        threads,
                        explained: None,
                        cpus,
                        changed,
                    },
                )
            }
        };
        let (period_ns, time_ns) = period;
        self.monotonic_ns = time_ns;
        let host = self.host.sample(seen.cpus)?;
        let View {
            discovery,
            exclusive_cgroups,
        } = &mut self.view;
        exclusive_cgroups.step(discovery, seen.changed)?;

        let roster = discovery.roster();
        let mut tenants = Vec::new();
        // Tenants of which nothing is left: they are in this snapshot for the last time.
        let mut gone = Vec::new();
        for place in roster.by_name() {
            let Some(tenant) = roster.tenant(place) else {
                continue;
            };
            let explained = seen.explained.as_mut();
            let explained = explained.map(|all| std::mem::take(&mut all[place]));
            let threads = std::mem::take(&mut seen.threads[place]);
            let ran = match &explained {
                Some(it) => it.run_ns + it.ended.run_ns,
                None => threads.iter().map(|thread| thread.run_ns).sum(),
            };
            let (mut ended, rest) = explained
                .map(|it| (it.ended, (it.waits, it.occasions)))
                .unzip();
            let (waits, occasions) = rest.unzip();
            let unknown_ns = exclusive_cgroups.unknown_ns(place, ran);
            if unknown_ns > 0 {
                ended.get_or_insert_default().run_ns += unknown_ns;
            }
            if threads.is_empty() && ended.as_ref().is_none_or(|it| it.threads == 0) {
                gone.push(place);
            }
            let stopped = waits.as_ref().is_some_and(|it| it.bandwidth_ns > 0);
            let taken_by = discovery.taken_by(place);
            tenants.push(TenantSample {
                taken_by: taken_by.and_then(|by| roster.name(by).cloned()),
                limit_cpus: exclusive_cgroups.limit(place, stopped),
                name: tenant.name.clone(),
                spec: Arc::clone(&tenant.spec),
                selectors: Arc::clone(&tenant.selectors),
                labels: Arc::clone(&tenant.labels),
                cgroup: exclusive_cgroups.of(place).cloned(),
                threads,
                ended,
                waits,
                occasions,
                guest: None,
            });
        }
        for place in discovery.dismiss(gone) {
            exclusive_cgroups.forget(place);
        }
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

/// The observations of one period, by the tenants' places.
struct Seen {
    threads: Vec<Vec<ThreadSample>>,
    explained: Option<Vec<Explained>>,
    cpus: BTreeMap<u32, CpuTimes>,
    changed: BTreeSet<usize>,
}
