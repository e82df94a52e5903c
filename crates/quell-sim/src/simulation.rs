//! Runs it: one event after the other, on one clock, of the host and of all guests.
//!
//! The host's kernel is number 0, and a VM's is its own number plus one.

use crate::class::Class;
use crate::events::{Events, Nanos};
use crate::kernel::{Kernel, Receiver};
use crate::machine::{Costs, Event, GroupId, Interrupt, Limit, Machine, ThreadId};
use crate::recorded::Act;
use crate::vm::Guests;
use crate::workload::{Answer, Request};
use quell_model::{CpuId, CpuSet, Nice, TenantWeight, Topology};
use quell_scenario::ThreadProgram;
use quell_sched::{SchedError, ServerSetting, ThreadSetting};

/// The requests of a tenant, by when they are due.
pub type Load = Box<dyn Iterator<Item = Request>>;

/// A tenant to simulate.
pub struct Tenant<'a> {
    /// Its threads' checked programs.
    pub programs: &'a [ThreadProgram],
    /// Its requests.
    pub load: Option<Load>,
    /// Its cgroup.
    pub group: GroupId,
    /// Its threads' nice value.
    pub nice: Nice,
}

impl<'a> Tenant<'a> {
    /// One of nice 0 in the root group.
    pub fn new(programs: &'a [ThreadProgram], load: Option<Load>) -> Tenant<'a> {
        Tenant {
            programs,
            load,
            group: GroupId::ROOT,
            nice: Nice::default(),
        }
    }
}

/// What an observer is told of, when it is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// A thread becomes ready.
    Wakeup {
        /// Who.
        thread: ThreadId,
        /// Who wakes it; none: an interrupt.
        by: Option<ThreadId>,
        /// The CPU that wakes it.
        cpu: CpuId,
    },
    /// A thread starts a process, whose only thread is the newest, and is woken soon.
    Fork {
        /// The process's thread.
        thread: ThreadId,
        /// Who starts it.
        by: ThreadId,
        /// The CPU that does.
        cpu: CpuId,
    },
    /// A CPU goes from one thread to another.
    Switch {
        /// The CPU.
        cpu: CpuId,
        /// Who leaves it, and whether that is ready; none: it idled.
        left: Option<(ThreadId, bool)>,
        /// Who gets it; none: it idles.
        next: Option<ThreadId>,
    },
}

/// Is told the time, when something happens, and what. That is the time or later, after what the CPU does for the
/// machine before; and on the same CPU never before what was told earlier.
pub type Observer = Box<dyn FnMut(Nanos, Nanos, Happening)>;

/// A machine, its scheduler and what runs on it, VMs among it.
pub struct Simulation {
    pub(crate) kernels: Vec<Kernel>,
    /// What is planned, with the kernel that it is for.
    pub(crate) events: Events<(u32, Event)>,
    pub(crate) guests: Guests,
    /// By tenant, its kernel and its index there.
    pub(crate) tenants: Vec<(usize, usize)>,
    /// Kernels that events are to be taken from and CPUs be planned of.
    pub(crate) dirty: Vec<usize>,
    happened: u64,
}

impl Simulation {
    /// An idle machine.
    pub fn new(topology: Topology, costs: Costs, class: Box<dyn Class>) -> Simulation {
        let guests = Guests::new(topology.cpus.len());
        let host = Kernel::new(Machine::new(topology, costs), class);
        Simulation {
            kernels: vec![host],
            events: Events::new(),
            guests,
            tenants: Vec::new(),
            dirty: Vec::new(),
            happened: 0,
        }
    }

    fn host(&mut self) -> &mut Kernel {
        &mut self.kernels[0]
    }

    /// Adds a cgroup; gives its number.
    pub fn add_group(&mut self, parent: GroupId, weight: TenantWeight) -> GroupId {
        self.host().machine.add_group(parent, weight)
    }

    /// Limits the CPU time of a cgroup, before a thread of it is ready. Enforced by [`SchedExt`](crate::SchedExt), by other classes not yet.
    pub fn limit_group(&mut self, group: GroupId, limit: Limit) {
        self.host().machine.groups[group.index()].limit = Some(limit);
    }

    /// Adds a tenant whose threads are ready from now on; gives its index.
    pub fn add_tenant(&mut self, tenant: Tenant<'_>) -> usize {
        let (number, local) = self.add_threads(0, &tenant);
        self.host()
            .add_port(tenant.load, number, 1, Receiver::Tenant(local as u32));
        self.settle(0);
        number
    }

    /// Adds a process whose threads do what was recorded, each from when it is first woken on; gives its tenant's index.
    pub fn add_recorded(&mut self, threads: Vec<(Nice, Vec<Act>)>) -> usize {
        let number = self.tenants.len();
        let local = self.host().tenants.len();
        self.host().add_recorded(number, threads);
        self.tenants.push((0, local));
        number
    }

    /// At that time, or now, an interrupt of that CPU wakes a recorded thread.
    pub fn interrupt(&mut self, at: Nanos, cpu: CpuId, thread: ThreadId) {
        let wakeup = Event::Interrupt(cpu, Interrupt::Wakeup(thread));
        let at = at.max(self.machine().now);
        self.events.plan(at, (0, wakeup));
    }

    /// Adds a tenant's threads under a kernel; gives its number, and its index there.
    pub(crate) fn add_threads(&mut self, kernel: usize, tenant: &Tenant<'_>) -> (usize, usize) {
        let number = self.tenants.len();
        let it = &mut self.kernels[kernel];
        let local = it.add_tenant(number, tenant.programs, tenant.group, tenant.nice);
        self.tenants.push((kernel, local));
        (number, local)
    }

    /// Tells of what happens on the host from now on, beside others who are told.
    pub fn observe(&mut self, observer: Observer) {
        self.host().observers.push(observer);
    }

    /// Tells the host's class what is wanted of a thread; false if it has no such setting.
    pub fn set_thread(&mut self, thread: ThreadId, setting: ThreadSetting) -> bool {
        let set = self.host().set_thread(thread, setting);
        self.settle(0);
        set
    }

    /// Promises CPU time on a CPU of the host, before threads are told to be served so ([`Simulation::set_thread`]).
    ///
    /// # Errors
    /// Of [`quell_sched::Scheduler::set_server`], and where the host's class promises nothing.
    pub fn set_server(&mut self, setting: ServerSetting) -> Result<(), SchedError> {
        self.host().set_server(setting)?;
        self.settle(0);
        Ok(())
    }

    /// Limits where a thread may run, from now on: it leaves a CPU that is not among these. Of CPUs that there are, at least
    /// one has to be.
    pub fn restrict(&mut self, thread: ThreadId, allowed: CpuSet) {
        self.host().restrict(thread, allowed);
        self.settle(0);
    }

    /// The machine as of now.
    pub fn machine(&self) -> &Machine {
        &self.kernels[0].machine
    }

    /// Rounds that a tenant's threads have done.
    pub fn rounds(&self, tenant: usize) -> u64 {
        let (kernel, local) = self.tenants[tenant];
        self.kernels[kernel].workload.rounds(local)
    }

    /// The requests that arrived and have no answer: their tenants, and when they were due.
    pub fn unanswered(&self) -> impl Iterator<Item = (usize, Nanos)> + '_ {
        let held = self.kernels.iter().flat_map(Kernel::unanswered);
        held.chain(self.carried())
    }

    /// The tenant of which a thread can never go on, and who waits for what there.
    pub fn deadlock(&self) -> Option<(usize, String)> {
        self.kernels.iter().find_map(Kernel::deadlock)
    }

    /// How many events have happened; superseded plans are none.
    pub fn events(&self) -> u64 {
        self.happened
    }

    /// How often the host's CPUs have switched so far, to and from idling too.
    pub fn switches(&self) -> u64 {
        self.kernels[0].switches
    }

    /// Goes on until then; gives the requests answered meanwhile.
    pub fn run_until(&mut self, end: Nanos) -> Vec<Answer> {
        while let Some((at, (kernel, event))) = self.events.next_until(end) {
            let number = kernel as usize;
            let kernel = &mut self.kernels[number];
            kernel.machine.now = at;
            if let Event::Due(cpu, plan) = event {
                if plan != kernel.machine.cpu(cpu).plan {
                    continue; // Superseded.
                }
            }
            self.happened += 1;
            if number == 0 || self.admit(number, event) {
                self.kernels[number].handle(event);
            }
            self.settle(number);
        }
        for kernel in &mut self.kernels {
            kernel.machine.now = end;
            for cpu in kernel.machine.cpu_ids() {
                kernel.machine.account(cpu);
            }
        }
        std::mem::take(&mut self.kernels[0].answers)
    }

    /// Plans what a kernel's event has led to, on its CPUs and on those of others.
    pub(crate) fn settle(&mut self, kernel: usize) {
        self.dirty.push(kernel);
        while let Some(number) = self.dirty.pop() {
            while let Some(cpu) = self.kernels[number].machine.stale.pop() {
                self.kernels[number].plan(cpu);
                self.look(number, cpu);
            }
            let machine = &mut self.kernels[number].machine;
            for (at, event) in machine.planned.drain(..) {
                self.events.plan(at, (number as u32, event));
            }
            self.pass_on(number);
            if !self.kernels[0].woken.is_empty() {
                self.end_polls();
            }
        }
    }

    /// What a CPU goes on with has changed: VMs may go on or stop with that.
    fn look(&mut self, kernel: usize, cpu: CpuId) {
        if self.kernels.len() == 1 {
        } else if kernel == 0 {
            self.look_at_host(cpu);
        } else {
            self.look_at_guest(kernel, cpu);
        }
    }
}
