//! Observes a simulated machine as the agent observes a host: what each tenant's threads did in a period.
//!
//! Problem: policies decide on [`Snapshot`]s, and have to decide here as they do on a host. How: the
//! scheduling events that observers of the simulation get are counted as the BPF monitor counts them. A
//! thread's tid is its number plus one, and a tenant's pid is its index plus one.
//!
//! Limits: which threads had the CPU while a thread waited, and steal time, are not observed: they are absent
//! from snapshots. No rule of a policy needs them today. A thread that has ended counts as blocked.

use crate::events::Nanos;
use crate::happening::Happening;
use crate::machine::{Machine, State, ThreadId};
use crate::simulation::Simulation;
use crate::simulation::VmId;
use quell_model::config::TenantSpec;
use quell_model::{
    CpuSample, CpuSet, GuestSample, HostSample, Occasions, Pid, ReadyTime, SchedClass, Snapshot,
    Source, TenantName, TenantSample, ThreadSample, ThreadSettings, ThreadState, Tid, Topology,
    Waker,
};
use quell_scenario::ThreadPolicy;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// The most wakers of a thread that are counted.
const WAKERS: usize = 6;

/// A monitor of a simulation's host.
pub struct Monitor {
    counters: Rc<RefCell<Seen>>,
    tenants: Vec<Option<(TenantName, Arc<TenantSpec>)>>,
    topology: Arc<Topology>,
    everywhere: Arc<CpuSet>,
    name: Arc<str>,
    seq: u64,
    /// When the last period ended, in ns, and the CPU time of CPUs and threads at that time.
    ended: Nanos,
    busy: Vec<Nanos>,
    ran: Vec<Nanos>,
}

/// What was observed in the current period.
#[derive(Debug, Default)]
struct Seen {
    threads: Vec<Counters>,
    /// By tenant of the simulation.
    tenants: Vec<Crowd>,
}

impl Seen {
    /// A thread's activity changes, at a time.
    fn becomes(&mut self, thread: ThreadId, activity: Activity, at: Nanos) {
        let it = &mut self.threads[thread.index()];
        let before = std::mem::replace(&mut it.activity, activity);
        self.tenants[it.tenant].changes(before, activity, at);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Activity {
    #[default]
    Blocked,
    Ready,
    Running,
}

impl Activity {
    fn of(state: State) -> Activity {
        match state {
            State::Running(_) => Activity::Running,
            State::Ready => Activity::Ready,
            State::Blocked | State::Ended => Activity::Blocked,
        }
    }
}

/// How many of a tenant's threads are in which activity, and for how long in the current period: what
/// `occasions.bpf.h` counts.
#[derive(Debug, Clone, Default)]
struct Crowd {
    threads: [usize; 3],
    last: Nanos,
    seen: Occasions,
}

impl Crowd {
    /// The number of buckets by the number of blocked threads; the last one counts more blocked threads too.
    const BUCKETS: usize = 64;

    fn busy(&self) -> bool {
        self.threads[Activity::Ready as usize] + self.threads[Activity::Running as usize] > 0
    }

    /// Counts the time up to `at`.
    fn passes(&mut self, at: Nanos) {
        let time = at.saturating_sub(self.last);
        self.last = self.last.max(at);
        if self.busy() {
            self.seen.busy_ns += time;
        }
        if self.threads[Activity::Ready as usize] > 0 && time > 0 {
            let bucket = self.threads[Activity::Blocked as usize].min(Self::BUCKETS - 1);
            let by_blocked = &mut self.seen.by_blocked_ns;
            by_blocked.resize(by_blocked.len().max(bucket + 1), 0);
            by_blocked[bucket] += time;
        }
    }

    fn changes(&mut self, from: Activity, to: Activity, at: Nanos) {
        let (busy, later) = (self.busy(), at > self.last);
        self.passes(at);
        self.threads[from as usize] -= 1;
        self.threads[to as usize] += 1;
        self.seen.busy_periods += u64::from(!busy && later && self.busy());
    }
}

/// What a thread did in the current period.
#[derive(Debug, Clone, Default)]
struct Counters {
    ready: ReadyTime,
    histogram: Vec<u32>,
    waits: u64,
    preemptions: u64,
    wakeups: u64,
    switches: u64,
    migrations: u64,
    wakers: Vec<(ThreadId, u64)>,
    /// Since when the thread is ready, if it is; and since when this wait is not counted yet.
    ready_since: Option<(Nanos, Nanos)>,
    cpu: Option<u32>,
    tenant: usize,
    activity: Activity,
}

impl Counters {
    fn becomes_ready(&mut self, at: Nanos) {
        self.ready_since = Some((at, at));
    }

    fn runs(&mut self, at: Nanos, cpu: u32) {
        self.switches += 1;
        if self.cpu.replace(cpu).is_some_and(|before| before != cpu) {
            self.migrations += 1;
        }
        if let Some((since, counted)) = self.ready_since.take() {
            self.ready.sum_ns += at.saturating_sub(counted);
            self.waits += 1;
            let bucket = at.saturating_sub(since).max(1).ilog2() as usize;
            if self.histogram.len() <= bucket {
                self.histogram.resize(bucket + 1, 0);
            }
            self.histogram[bucket] += 1;
        }
    }

    fn woken_by(&mut self, waker: ThreadId) {
        if let Some((_, count)) = self.wakers.iter_mut().find(|(it, _)| *it == waker) {
            *count += 1;
        } else if self.wakers.len() < WAKERS {
            self.wakers.push((waker, 1));
        }
    }
}

fn id(thread: ThreadId) -> quell_model::ThreadId {
    quell_model::ThreadId {
        tid: Tid(thread.0 + 1),
        start_ticks: 0,
    }
}

impl Monitor {
    /// Begins to observe. `tenants` has an entry for each tenant of the simulation, in their order; `None`
    /// for a tenant in a guest, which the host does not see.
    pub fn new(
        simulation: &mut Simulation,
        tenants: Vec<Option<(TenantName, Arc<TenantSpec>)>>,
    ) -> Monitor {
        let machine = simulation.machine();
        let counter = |thread: &crate::Thread| Counters {
            // A thread that is ready already counts as ready from now on, as the beginning of its wait was
            // not observed.
            ready_since: (thread.state == State::Ready).then_some((machine.now, machine.now)),
            tenant: thread.tenant,
            activity: Activity::of(thread.state),
            ..Counters::default()
        };
        let threads: Vec<Counters> = machine.threads.iter().map(counter).collect();
        let crowd = |tenant| {
            let mut crowd = Crowd {
                last: machine.now,
                ..Crowd::default()
            };
            let own = threads.iter().filter(|it| it.tenant == tenant);
            own.for_each(|it| crowd.threads[it.activity as usize] += 1);
            crowd
        };
        let crowds = (0..tenants.len()).map(crowd).collect();
        let counters = Seen {
            tenants: crowds,
            threads,
        };
        let topology = machine.topology.clone();
        let mut monitor = Monitor {
            counters: Rc::new(RefCell::new(counters)),
            tenants,
            everywhere: Arc::new(topology.online()),
            topology: Arc::new(topology),
            name: Arc::from("thread"),
            seq: 0,
            ended: machine.now,
            busy: vec![0; machine.cpus.len()],
            ran: vec![0; machine.threads.len()],
        };
        monitor.read_times(machine);
        let counters = monitor.counters.clone();
        simulation.observe(Box::new(move |_, at, happening| {
            let seen = &mut *counters.borrow_mut();
            match happening {
                // The new thread is the newest, so its counters are the last.
                Happening::Fork { by, .. } => {
                    let tenant = seen.threads[by.index()].tenant;
                    seen.tenants[tenant].threads[Activity::Blocked as usize] += 1;
                    seen.threads.push(Counters {
                        tenant,
                        ..Counters::default()
                    });
                }
                Happening::Wakeup { thread, by, .. } => {
                    seen.becomes(thread, Activity::Ready, at);
                    let it = &mut seen.threads[thread.index()];
                    it.wakeups += 1;
                    it.becomes_ready(at);
                    if let Some(waker) = by {
                        it.woken_by(waker);
                    }
                }
                Happening::Switch { cpu, left, next } => {
                    if let Some((left, ready)) = left {
                        let activity = if ready {
                            Activity::Ready
                        } else {
                            Activity::Blocked
                        };
                        seen.becomes(left, activity, at);
                        if ready {
                            let it = &mut seen.threads[left.index()];
                            it.preemptions += 1;
                            it.becomes_ready(at);
                        }
                    }
                    if let Some(next) = next {
                        seen.becomes(next, Activity::Running, at);
                        seen.threads[next.index()].runs(at, cpu.0);
                    }
                }
            }
        }));
        monitor
    }

    /// Changes the configuration of a tenant of the host from now on.
    pub fn configure(&mut self, tenant: usize, spec: TenantSpec) {
        if let Some((_, configured)) = self.tenants.get_mut(tenant).and_then(Option::as_mut) {
            *configured = Arc::new(spec);
        }
    }

    /// The snapshot of the period since the last snapshot, or since the monitor began.
    pub fn snapshot(&mut self, simulation: &Simulation) -> Snapshot {
        let machine = simulation.machine();
        let (began, now) = (self.ended, machine.now);
        let busy = machine.cpus.iter().zip(&self.busy).zip(machine.cpu_ids());
        let cpus = busy.map(|((it, before), cpu)| CpuSample {
            cpu,
            busy_ns: Some((it.busy - before).min(now - began)),
            steal_ns: None,
        });
        let host = HostSample {
            topology: self.topology.clone(),
            cpus: cpus.collect(),
        };
        let mut seen = self.counters.borrow_mut();
        let tenant = |(it, crowd): (&Option<(TenantName, Arc<TenantSpec>)>, &mut Crowd)| {
            crowd.passes(now);
            let occasions = std::mem::take(&mut crowd.seen);
            it.as_ref().map(|(name, spec)| TenantSample {
                name: name.clone(),
                spec: spec.clone(),
                selectors: Arc::default(),
                cgroup: None,
                threads: Vec::new(),
                limit_cpus: None,
                taken_by: None,
                labels: Arc::default(),
                ended: None,
                waits: None,
                occasions: Some(occasions),
                guest: None,
            })
        };
        let tenants = self.tenants.iter().zip(&mut seen.tenants).map(tenant);
        let mut tenants: Vec<Option<TenantSample>> = tenants.collect();
        drop(seen);
        self.ran.resize(machine.threads.len(), 0);
        for number in 0..machine.threads.len() {
            let it = &machine.threads[number];
            if it.state == State::Ended && it.ran == self.ran[number] {
                continue;
            }
            let sample = self.thread(machine, ThreadId(number as u32));
            if let Some(tenant) = &mut tenants[machine.threads[number].tenant] {
                tenant.threads.push(sample);
            }
        }
        for vm in simulation.vms() {
            if let Some(tenant) = &mut tenants[simulation.vm_tenant(vm)] {
                tenant.guest = Some(guest(simulation, vm));
            }
        }
        let mut tenants: Vec<TenantSample> = tenants.into_iter().flatten().collect();
        tenants.sort_by(|one, other| one.name.cmp(&other.name));
        let snapshot = Snapshot {
            seq: self.seq,
            time_ns: now,
            period_ns: now - began,
            source: Source::Simulator,
            host,
            tenants,
        };
        self.seq += 1;
        self.ended = now;
        self.read_times(machine);
        snapshot
    }

    fn read_times(&mut self, machine: &Machine) {
        self.busy = machine.cpus.iter().map(|cpu| cpu.busy).collect();
        self.ran = machine.threads.iter().map(|thread| thread.ran).collect();
    }

    fn thread(&self, machine: &Machine, thread: ThreadId) -> ThreadSample {
        let it = machine.thread(thread);
        let counters = &mut self.counters.borrow_mut().threads[thread.index()];
        if let Some((_, counted)) = &mut counters.ready_since {
            // The thread may become ready at a later time than now, when its CPU has done its kernel work.
            counters.ready.sum_ns += machine.now.saturating_sub(*counted);
            *counted = (*counted).max(machine.now);
        }
        let done = Counters {
            ready_since: counters.ready_since,
            cpu: counters.cpu,
            tenant: counters.tenant,
            activity: counters.activity,
            ..Counters::default()
        };
        let mut seen = std::mem::replace(counters, done);
        seen.wakers
            .sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        let wakers = seen.wakers.into_iter().map(|(waker, count)| Waker {
            id: id(waker),
            count,
        });
        let affinity = match &it.allowed {
            Some(allowed) => Arc::new(allowed.clone()),
            None => self.everywhere.clone(),
        };
        ThreadSample {
            id: id(thread),
            process: Pid(it.tenant as u32 + 1),
            name: self.name.clone(),
            role: it.role,
            forked_by: None,
            state: match it.state {
                State::Running(_) => ThreadState::Running,
                State::Ready => ThreadState::Ready,
                State::Blocked | State::Ended => ThreadState::Blocked,
            },
            cpu: it.cpu,
            run_ns: it.ran - self.ran[thread.index()],
            ready: Some(ReadyTime {
                count: Some(seen.waits),
                histogram: Some(seen.histogram),
                ..seen.ready
            }),
            throttled_ns: None,
            preemptions: Some(seen.preemptions),
            wakeups: Some(seen.wakeups),
            wakers: Some(wakers.collect()),
            switches: Some(seen.switches),
            migrations: Some(seen.migrations),
            settings: ThreadSettings {
                class: match it.policy {
                    ThreadPolicy::Idle => SchedClass::Idle,
                    _ => SchedClass::Fair,
                },
                nice: it.nice,
                slice_ns: it.slice,
                affinity,
            },
        }
    }
}

/// The sample of a guest, which is asked at the end of the period and answers at once.
fn guest(simulation: &Simulation, vm: VmId) -> GuestSample {
    let guest = simulation.guest(vm);
    GuestSample {
        at_ns: simulation.machine().now,
        used_ns: guest.cpu_ids().map(|cpu| guest.cpu(cpu).busy).sum(),
        switches: simulation.vm_stats(vm).switches,
        online: simulation.online(vm) as u32,
    }
}

/// The simulated thread of an id in a monitor's snapshot; `None` for an id that is in none.
pub fn thread_of(id: quell_model::ThreadId) -> Option<ThreadId> {
    id.tid.0.checked_sub(1).map(ThreadId)
}
