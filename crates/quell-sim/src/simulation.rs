//! The simulation: handles one event after the other, of the host and of all guests, on one clock.
//!
//! Kernels are numbered: the host's is 0, and a VM's is the VM's number plus one.

mod vm;

pub use vm::{Vm, VmCosts, VmId, VmStats};

use crate::class::Class;
use crate::events::{Events, Nanos};
use crate::happening::Observer;
use crate::kernel::{Kernel, Receiver};
use crate::machine::{Costs, Event, GroupId, Interrupt, Limit, Machine, ThreadId};
use crate::recorded::Act;
use crate::workload::{Answer, Load};
use quell_model::{CpuId, CpuSet, Nice, TenantWeight, Topology};
use quell_scenario::ThreadProgram;
use quell_sched::{SchedError, ServerSetting, ThreadSetting};
use vm::Guests;

/// A tenant to simulate.
pub struct Tenant<'a> {
    /// The checked programs of the tenant's threads.
    pub programs: &'a [ThreadProgram],
    /// The tenant's requests; `None`: it gets none.
    pub load: Option<Load>,
    /// The tenant's cgroup.
    pub group: GroupId,
    /// The nice value of the tenant's threads, unless their programs have one.
    pub nice: Nice,
}

impl<'a> Tenant<'a> {
    /// A tenant of nice 0 in the root cgroup.
    pub fn new(programs: &'a [ThreadProgram], load: Option<Load>) -> Tenant<'a> {
        Tenant {
            programs,
            load,
            group: GroupId::ROOT,
            nice: Nice::default(),
        }
    }
}

/// A machine with its scheduler and what runs on it, VMs included.
pub struct Simulation {
    /// The kernels, the host's first.
    pub(crate) kernels: Vec<Kernel>,
    /// The planned events, each with the number of its kernel.
    pub(crate) events: Events<(u32, Event)>,
    /// The VMs.
    pub(crate) guests: Guests,
    /// By tenant, the number of its kernel and its index there.
    pub(crate) tenants: Vec<(usize, usize)>,
    /// Kernels with planned events that are to be taken over and CPUs whose next event is to be planned.
    pub(crate) dirty: Vec<usize>,
    happened: u64,
}

impl Simulation {
    /// A machine without threads, with its scheduler.
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

    /// Adds a cgroup and returns its number.
    pub fn add_group(&mut self, parent: GroupId, weight: TenantWeight) -> GroupId {
        self.host().machine.add_group(parent, weight)
    }

    /// Sets the bandwidth limit of a cgroup, before any of its threads is ready.
    /// [`SchedExt`](crate::SchedExt) enforces it; other classes do not.
    pub fn limit_group(&mut self, group: GroupId, limit: Limit) {
        self.host().machine.groups[group.index()].limit = Some(limit);
    }

    /// Adds a tenant whose threads are ready from now on, and returns its index.
    pub fn add_tenant(&mut self, tenant: Tenant<'_>) -> usize {
        let (number, local) = self.add_threads(0, &tenant);
        self.host()
            .add_port(tenant.load, number, 1, Receiver::Tenant(local as u32));
        self.settle(0);
        number
    }

    /// Adds a process whose threads do what was recorded, each from its first wakeup on; returns the index of
    /// its tenant.
    pub fn add_recorded(&mut self, threads: Vec<(Nice, Vec<Act>)>) -> usize {
        let number = self.tenants.len();
        let local = self.host().tenants.len();
        self.host().add_recorded(number, threads);
        self.tenants.push((0, local));
        number
    }

    /// Plans an interrupt of a CPU that wakes a recorded thread, at `at` or, if that is past, now.
    pub fn interrupt(&mut self, at: Nanos, cpu: CpuId, thread: ThreadId) {
        let wakeup = Event::Interrupt(cpu, Interrupt::Wakeup(thread));
        let at = at.max(self.machine().now);
        self.events.plan(at, (0, wakeup));
    }

    /// Adds a tenant's threads to a kernel; returns the tenant's number, and its index in the kernel.
    pub(crate) fn add_threads(&mut self, kernel: usize, tenant: &Tenant<'_>) -> (usize, usize) {
        let number = self.tenants.len();
        let it = &mut self.kernels[kernel];
        let local = it.add_tenant(number, tenant.programs, tenant.group, tenant.nice);
        self.tenants.push((kernel, local));
        (number, local)
    }

    /// Adds an observer of the host's scheduling events from now on; earlier observers stay.
    pub fn observe(&mut self, observer: Observer) {
        self.host().observers.push(observer);
    }

    /// Passes a thread's setting to the host's class; false if the class has no such setting.
    pub fn set_thread(&mut self, thread: ThreadId, setting: ThreadSetting) -> bool {
        let set = self.host().set_thread(thread, setting);
        self.settle(0);
        set
    }

    /// Sets the server of a CPU of the host, before any thread is given to it ([`Simulation::set_thread`]).
    ///
    /// # Errors
    /// Where [`quell_sched::Scheduler::set_server`] fails, and where the host's class has no servers.
    pub fn set_server(&mut self, setting: ServerSetting) -> Result<(), SchedError> {
        self.host().set_server(setting)?;
        self.settle(0);
        Ok(())
    }

    /// Sets a thread's affinity from now on, as sched_setaffinity does: the thread leaves a CPU that is not
    /// in it. `allowed` must hold at least one CPU of the machine.
    pub fn restrict(&mut self, thread: ThreadId, allowed: CpuSet) {
        self.host().restrict(thread, allowed);
        self.settle(0);
    }

    /// The host's machine as of now.
    pub fn machine(&self) -> &Machine {
        &self.kernels[0].machine
    }

    /// The number of rounds of their programs that a tenant's threads have done.
    pub fn rounds(&self, tenant: usize) -> u64 {
        let (kernel, local) = self.tenants[tenant];
        self.kernels[kernel].workload.rounds(local)
    }

    /// The requests that arrived and have no answer: the index of the tenant, and when the request was due.
    pub fn unanswered(&self) -> impl Iterator<Item = (usize, Nanos)> + '_ {
        let held = self.kernels.iter().flat_map(Kernel::unanswered);
        held.chain(self.carried())
    }

    /// A tenant with a thread that can never go on, and a text that says which threads wait for what.
    pub fn deadlock(&self) -> Option<(usize, String)> {
        self.kernels.iter().find_map(Kernel::deadlock)
    }

    /// The number of events handled so far, without superseded plans.
    pub fn events(&self) -> u64 {
        self.happened
    }

    /// The number of the host's context switches so far, to and from idle included.
    pub fn switches(&self) -> u64 {
        self.kernels[0].switches
    }

    /// Handles all events up to `end`; returns the requests answered meanwhile.
    pub fn run_until(&mut self, end: Nanos) -> Vec<Answer> {
        while let Some((at, (kernel, event))) = self.events.next_until(end) {
            let number = kernel as usize;
            let kernel = &mut self.kernels[number];
            kernel.machine.now = at;
            if let Event::Due(cpu, plan) = event {
                if plan != kernel.machine.cpu(cpu).plan {
                    continue; // A newer plan replaced it.
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

    /// Plans what follows from a kernel's event, on its CPUs and in other kernels.
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

    /// A CPU's next event changed: VMs may go on or stop with it.
    fn look(&mut self, kernel: usize, cpu: CpuId) {
        if self.kernels.len() == 1 {
        } else if kernel == 0 {
            self.look_at_host(cpu);
        } else {
            self.look_at_guest(kernel, cpu);
        }
    }
}
