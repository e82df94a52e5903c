//! Virtual machines: guest kernels whose CPUs are threads of the host.
//!
//! Problem: with a VM two schedulers decide, the guest's which thread gets a vCPU and the host's when the
//! vCPU runs, and neither sees what the other does. How: a guest is a [`Kernel`] like the host's, with its
//! own class, runqueues, ticks and costs. Each vCPU has a thread on the host that runs no program. While that
//! thread has a host CPU (and the host does no kernel work there) the vCPU goes on; else the vCPU stands
//! still and its interrupts wait. So steal time is the vCPU thread's run delay, ticks come late and once, and
//! the holder of a lock in a guest does not get on while its vCPU waits, without a rule of its own for any of
//! these. A vCPU with nothing to do halts: it polls on its host CPU for an interval that adapts as KVM's halt
//! polling does, and then its thread blocks. Requests and answers pass through the VM's emulator threads
//! (vhost's or QEMU's), which are threads of the host too.
//!
//! A network card has a queue for each emulator thread; requests are spread over the queues, and each queue
//! interrupts a vCPU of its own, as far as there are vCPUs (virtio-net's multiqueue). A vCPU stops polling
//! when another thread is in its CPU's runqueue (kvm_vcpu_can_poll).
//!
//! Limits: no memory, disks, pause-loop exits, paravirtual spin locks, directed yield to a lock's holder, or
//! nested guests. Under a class that does not say on which CPU a thread waits, a polling vCPU goes on while
//! another thread is ready, unless the class preempts the vCPU. Interrupts of a passed-through device always
//! come through the host.
//!
//! Source: the kernel's Documentation/virt/kvm/halt-polling.rst (the rules and defaults of the interval), and
//! what [`VmCosts::TYPICAL`] names.

use super::{Simulation, Tenant};
use crate::class::Class;
use crate::events::Nanos;
use crate::kernel::{Kernel, Message, Receiver};
use crate::machine::{Costs, Event, GroupId, Interrupt, Machine, NEVER, State, ThreadId};
use crate::workload::{Answer, Next};
use quell_model::{CpuId, CpuSet, Nice, TenantWeight, Topology};

/// The first interval of halt polling, in ns (halt_poll_ns_grow_start).
const FIRST_POLL: Nanos = 10_000;

/// A VM, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmId(pub u32);

impl VmId {
    fn index(self) -> usize {
        self.0 as usize
    }

    fn kernel(self) -> usize {
        self.index() + 1
    }
}

/// The cost of virtualisation, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmCosts {
    /// A VM exit, the hypervisor's work in it, and the entry. These are one exit each: halting, setting a
    /// timer, a timer that goes off, a kick of another vCPU, the kick's arrival unless it is posted, and
    /// sending an answer.
    pub exit: Nanos,
    /// How much longer a switch of the host to a vCPU takes than to another thread, as the vCPU's state is
    /// loaded.
    pub load: Nanos,
    /// The most that a vCPU polls before its thread blocks (halt_poll_ns).
    pub poll: Nanos,
    /// An interrupt of a running vCPU from another CPU needs no exit of that vCPU (posted interrupts, AVIC).
    pub posted: bool,
    /// The CPU time of an emulator thread for a request or an answer.
    pub emulate: Nanos,
}

impl VmCosts {
    /// Virtualisation costs nothing.
    pub const NONE: VmCosts = VmCosts {
        exit: 0,
        load: 0,
        poll: 0,
        posted: true,
        emulate: 0,
    };

    /// About KVM on a server. Sources:
    /// - exit 1.2 us: an exit that KVM handles itself takes 2,384 cycles at 2.1 GHz (Dall et al., ARM
    ///   Virtualization, ISCA 2016, table II, x86);
    /// - load 1 us: a switch between VMs takes 4,812 cycles (the same table), of which any thread's switch
    ///   has a part;
    /// - poll 200 us: the default of halt polling on x86;
    /// - posted interrupts: in Intel's servers since 2014;
    /// - emulate 5 us, as long as the host's network stack: so emulator threads need 15 to 50 % of what vCPUs
    ///   need for requests of tens of us, as measured (Peng et al., UFO, fig. 7).
    pub const TYPICAL: VmCosts = VmCosts {
        exit: 1_200,
        load: 1_000,
        poll: 200_000,
        posted: true,
        emulate: 5_000,
    };
}

/// A VM to simulate.
pub struct Vm {
    /// The number of vCPUs, which share one last-level cache.
    pub vcpus: u32,
    /// The guest's scheduler.
    pub class: Box<dyn Class>,
    /// The cost of kernel work in the guest.
    pub costs: Costs,
    /// The cost of virtualisation.
    pub vm_costs: VmCosts,
    /// The cgroup of the VM's threads on the host.
    pub group: GroupId,
    /// The nice value of these threads.
    pub nice: Nice,
    /// The number of emulator threads, each of which carries the requests and answers of one queue of the
    /// network card; 0: requests and answers pass no thread, as through a device that is passed through.
    pub emulators: u32,
}

impl Vm {
    /// A VM with typical costs, one emulator thread and nice 0, in the root cgroup.
    pub fn new(vcpus: u32, class: Box<dyn Class>) -> Vm {
        Vm {
            vcpus,
            class,
            costs: Costs::TYPICAL,
            vm_costs: VmCosts::TYPICAL,
            group: GroupId::ROOT,
            nice: Nice::default(),
            emulators: 1,
        }
    }
}

/// The counters of a VM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VmStats {
    /// Context switches in the guest, to and from idle included: the guest's `ctxt` in /proc/stat.
    pub switches: u64,
    /// VM exits.
    pub exits: u64,
    /// How often a vCPU's thread blocked because the vCPU had nothing to do.
    pub halts: u64,
    /// How often the host switched to a vCPU.
    pub loads: u64,
    /// How long vCPUs were ready without a CPU of the host, all together, in ns.
    pub steal: Nanos,
}

/// The state of a vCPU.
#[derive(Debug, Clone, Copy)]
enum Doing {
    /// The vCPU's thread is blocked; the vCPU has had nothing to do since that time.
    Halted(Nanos),
    /// The vCPU has something to do.
    Busy,
    /// The vCPU has had nothing to do since the first time, and polls until the second.
    Polling(Nanos, Nanos),
}

struct Vcpu {
    doing: Doing,
    /// The CPU of the host that the vCPU's thread runs on.
    on: Option<CpuId>,
    /// The interrupts that wait until the vCPU runs.
    held: Vec<Event>,
    /// The interval of halt polling, in ns.
    poll: Nanos,
}

struct Guest {
    costs: VmCosts,
    /// The number of the VM's tenant on the host.
    tenant: usize,
    /// The VM's first thread on the host.
    first: ThreadId,
    emulators: u32,
    vcpus: Vec<Vcpu>,
    halts: u64,
    loads: u64,
    /// The vCPU whose event was handled last.
    last: CpuId,
}

impl Guest {
    fn thread(&self, vcpu: CpuId) -> ThreadId {
        ThreadId(self.first.0 + vcpu.0)
    }

    fn emulator(&self, number: u32) -> ThreadId {
        ThreadId(self.first.0 + self.vcpus.len() as u32 + number)
    }
}

/// A vCPU: the number of its kernel, and its own.
type Place = (usize, CpuId);

/// All VMs, from the host's side.
pub(crate) struct Guests {
    guests: Vec<Guest>,
    /// By thread of the host, the vCPU that it is.
    of: Vec<Option<Place>>,
    /// By CPU of the host, the vCPU that runs there.
    on: Vec<Option<Place>>,
}

impl Guests {
    /// No VMs, on a host with this many CPUs.
    pub fn new(cpus: usize) -> Guests {
        Guests {
            guests: Vec::new(),
            of: Vec::new(),
            on: vec![None; cpus],
        }
    }

    fn vcpu(&mut self, (kernel, vcpu): Place) -> &mut Vcpu {
        &mut self.guests[kernel - 1].vcpus[vcpu.0 as usize]
    }
}

/// Operations on VMs.
impl Simulation {
    /// Adds a VM without threads in its guest. The VM's threads are a process of the host with a tenant
    /// number of its own.
    pub fn add_vm(&mut self, vm: Vm) -> VmId {
        let id = VmId(self.guests.guests.len() as u32);
        let mut machine = Machine::new(Topology::flat(vm.vcpus), vm.costs);
        machine.now = self.now();
        machine.exit = Some(vm.vm_costs.exit);
        for cpu in machine.cpu_ids() {
            machine.pause(cpu);
        }
        let mut kernel = Kernel::new(machine, vm.class);
        kernel.emulated = vm.emulators > 0;
        self.kernels.push(kernel);
        let tenant = self.tenants.len();
        let host = &mut self.kernels[0];
        let takes = vm.vm_costs.emulate;
        let first = host.add_vm_threads(tenant, vm.vcpus, takes, vm.emulators, vm.group, vm.nice);
        self.tenants.push((0, host.tenants.len() - 1));
        self.guests.of.resize(host.machine.threads.len(), None);
        let halted = |_| Vcpu {
            doing: Doing::Halted(0),
            on: None,
            held: Vec::new(),
            poll: 0,
        };
        let guest = Guest {
            costs: vm.vm_costs,
            tenant,
            first,
            emulators: vm.emulators,
            vcpus: (0..vm.vcpus).map(halted).collect(),
            halts: 0,
            loads: 0,
            last: CpuId(0),
        };
        for vcpu in (0..vm.vcpus).map(CpuId) {
            self.guests.of[guest.thread(vcpu).index()] = Some((id.kernel(), vcpu));
        }
        self.guests.guests.push(guest);
        self.settle(id.kernel());
        id
    }

    /// Adds a cgroup in a guest and returns its number there.
    pub fn add_group_in(&mut self, vm: VmId, parent: GroupId, weight: TenantWeight) -> GroupId {
        let machine = &mut self.kernels[vm.kernel()].machine;
        machine.add_group(parent, weight)
    }

    /// Adds a tenant to a guest and returns its index among all tenants of the simulation.
    pub fn add_tenant_in(&mut self, vm: VmId, tenant: Tenant<'_>) -> usize {
        self.kernels[vm.kernel()].machine.now = self.now();
        let (number, local) = self.add_threads(vm.kernel(), &tenant);
        let emulated = self.kernels[vm.kernel()].emulated;
        let (host, guest) = match emulated {
            true => (tenant.load, None),
            false => (None, tenant.load),
        };
        let queues = self.guests.guests[vm.index()].emulators;
        let to = Receiver::Tenant(local as u32);
        let port = self.kernels[vm.kernel()].add_port(guest, number, queues, to);
        let to = Receiver::Guest {
            vm: vm.index() as u32,
            port: port as u32,
        };
        self.kernels[0].add_port(host, number, queues, to);
        self.settle(0);
        self.settle(vm.kernel());
        number
    }

    /// Plugs a vCPU of a guest in or out. The guest's threads leave a vCPU that goes; events planned for it
    /// still happen on it, and then it halts. The last vCPU stays online.
    pub fn set_online(&mut self, vm: VmId, vcpu: CpuId, online: bool) {
        let now = self.now();
        let kernel = &mut self.kernels[vm.kernel()];
        kernel.machine.now = now;
        let stays = |&cpu: &CpuId| {
            if cpu == vcpu {
                online
            } else {
                kernel.is_online(cpu)
            }
        };
        let cpus: CpuSet = kernel.machine.cpu_ids().filter(stays).collect();
        if !cpus.is_empty() {
            kernel.set_online(cpus);
            self.settle(vm.kernel());
        }
    }

    /// All VMs.
    pub fn vms(&self) -> impl Iterator<Item = VmId> + use<> {
        (0..self.guests.guests.len() as u32).map(VmId)
    }

    /// How many of a guest's vCPUs are plugged in.
    pub fn online(&self, vm: VmId) -> usize {
        let kernel = &self.kernels[vm.kernel()];
        let cpus = kernel.machine.cpu_ids();
        cpus.filter(|cpu| kernel.is_online(*cpu)).count()
    }

    /// A guest's machine as of now. The CPU time of its threads contains no steal time.
    pub fn guest(&self, vm: VmId) -> &Machine {
        &self.kernels[vm.kernel()].machine
    }

    /// The host's threads that are a VM's vCPUs, in the order of the vCPUs' numbers.
    pub fn vcpu_threads(&self, vm: VmId) -> impl Iterator<Item = ThreadId> + use<'_> {
        let guest = &self.guests.guests[vm.index()];
        (0..guest.vcpus.len() as u32).map(|vcpu| guest.thread(CpuId(vcpu)))
    }

    /// The host's threads that are a VM's emulator threads.
    pub fn emulator_threads(&self, vm: VmId) -> impl Iterator<Item = ThreadId> + use<'_> {
        let guest = &self.guests.guests[vm.index()];
        (0..guest.emulators).map(|number| guest.emulator(number))
    }

    /// The tenant number of a VM's process on the host.
    pub fn vm_tenant(&self, vm: VmId) -> usize {
        self.guests.guests[vm.index()].tenant
    }

    /// The steal time of a vCPU: how long it has been ready without a CPU of the host, in ns.
    pub fn steal(&self, vm: VmId, vcpu: CpuId) -> Nanos {
        let thread = self.guests.guests[vm.index()].thread(vcpu);
        self.kernels[0].machine.waited(thread)
    }

    /// The counters of a VM so far.
    pub fn vm_stats(&self, vm: VmId) -> VmStats {
        let (guest, kernel) = (&self.guests.guests[vm.index()], &self.kernels[vm.kernel()]);
        let vcpus = kernel.machine.cpu_ids();
        VmStats {
            switches: kernel.switches,
            exits: kernel.machine.exits,
            halts: guest.halts,
            loads: guest.loads,
            steal: vcpus.map(|vcpu| self.steal(vm, vcpu)).sum(),
        }
    }

    fn now(&self) -> Nanos {
        self.kernels[0].machine.now
    }

    /// The next event of a host's CPU changed (another thread, or kernel work): stops and continues the vCPUs
    /// concerned.
    pub(crate) fn look_at_host(&mut self, cpu: CpuId) {
        let host = &mut self.kernels[0].machine;
        let thread = host.cpu(cpu).current;
        let next = thread.and_then(|thread| self.guests.of.get(thread.index()).copied().flatten());
        let before = std::mem::replace(&mut self.guests.on[cpu.0 as usize], next);
        if before != next {
            if let Some((kernel, _)) = next {
                let guest = &mut self.guests.guests[kernel - 1];
                guest.loads += 1;
                host.charge(cpu, guest.costs.load);
            }
            if let Some(place) = before.filter(|&place| self.guests.vcpu(place).on == Some(cpu)) {
                self.guests.vcpu(place).on = None;
                self.stop(place);
            }
        }
        let Some(place) = next else { return };
        self.guests.vcpu(place).on = Some(cpu);
        let speed = self.kernels[0].machine.cpu(cpu).speed;
        self.set_speed(place, speed);
        let host = &self.kernels[0].machine;
        if host.cpu(cpu).started > host.now {
            self.stop(place);
        } else {
            self.go_on(place);
        }
    }

    /// Gives a vCPU the speed of the host's CPU that it runs on.
    fn set_speed(&mut self, (kernel, vcpu): Place, speed: u8) {
        let now = self.now();
        let machine = &mut self.kernels[kernel].machine;
        if machine.cpu(vcpu).speed != speed {
            machine.now = now;
            machine.set_speed(vcpu, speed);
            self.dirty.push(kernel);
        }
    }

    /// Stops the polling of vCPUs on CPUs for which another thread waits: the vCPUs' threads block.
    pub(crate) fn end_polls(&mut self) {
        for thread in std::mem::take(&mut self.kernels[0].woken) {
            let Some(cpu) = self.kernels[0].queued_on(thread) else {
                continue;
            };
            let Some(place) = self.guests.on[cpu.0 as usize] else {
                continue;
            };
            let now = self.now();
            let it = self.guests.vcpu(place);
            if it.on == Some(cpu) && matches!(it.doing, Doing::Polling(since, _) if since < now) {
                self.kernels[place.0].machine.now = now;
                self.halt(place);
            }
        }
    }

    /// Stops a vCPU, whose host CPU is taken.
    fn stop(&mut self, (kernel, vcpu): Place) {
        let now = self.now();
        let machine = &mut self.kernels[kernel].machine;
        machine.now = now;
        machine.pause(vcpu);
        self.dirty.push(kernel);
    }

    /// Continues a vCPU that was stopped, first with the interrupts that waited.
    fn go_on(&mut self, place: Place) {
        let (number, vcpu) = place;
        let now = self.now();
        let kernel = &mut self.kernels[number];
        if kernel.machine.cpu(vcpu).started != NEVER {
            return;
        }
        kernel.machine.now = now;
        kernel.machine.resume(vcpu);
        let held = std::mem::take(&mut self.guests.vcpu(place).held);
        for event in held {
            let done = kernel.machine.cpu(vcpu).started;
            match event {
                Event::Handle(..) if done > now => kernel.machine.plan(done, event),
                event => kernel.handle(event),
            }
        }
        self.guests.guests[number - 1].last = vcpu;
        self.dirty.push(number);
    }

    /// The next event of a vCPU changed: with nothing to do, the vCPU polls and then halts.
    pub(crate) fn look_at_guest(&mut self, kernel: usize, vcpu: CpuId) {
        let machine = &mut self.kernels[kernel].machine;
        let (now, it) = (machine.now, machine.cpu(vcpu));
        if it.started == NEVER {
            return;
        }
        let (busy, plan) = (
            it.current.is_some() || it.kicked || it.started > now,
            it.plan,
        );
        let exit = self.guests.guests[kernel - 1].costs.exit;
        let it = self.guests.vcpu((kernel, vcpu));
        let until = match it.doing {
            _ if busy => {
                it.doing = Doing::Busy;
                return;
            }
            Doing::Polling(_, until) => until,
            Doing::Busy | Doing::Halted(_) => {
                let until = now + exit + it.poll;
                it.doing = Doing::Polling(now, until);
                machine.exits += 1;
                until
            }
        };
        if until > now {
            machine.plan(until, Event::Due(vcpu, plan));
        } else {
            self.halt((kernel, vcpu));
        }
    }

    /// Halts a polling vCPU: its thread blocks on the host.
    fn halt(&mut self, place: Place) {
        let (kernel, vcpu) = place;
        let guest = &mut self.guests.guests[kernel - 1];
        let thread = guest.thread(vcpu);
        let it = &mut guest.vcpus[vcpu.0 as usize];
        let (Doing::Polling(since, _), Some(on)) = (it.doing, it.on) else {
            return;
        };
        it.doing = Doing::Halted(since);
        guest.halts += 1;
        let now = self.kernels[kernel].machine.now;
        let host = &mut self.kernels[0];
        host.machine.now = now;
        host.machine.account(on);
        host.on(on, Some(thread), |host| {
            host.go_on(on, thread, Next::Block);
        });
        self.dirty.push(0);
    }

    /// Whether a guest's event happens now. If not, it waits until its vCPU runs, and a halted vCPU is woken.
    pub(crate) fn admit(&mut self, kernel: usize, event: Event) -> bool {
        let vcpu = event.cpu();
        let guest = &mut self.guests.guests[kernel - 1];
        guest.last = vcpu;
        let machine = &mut self.kernels[kernel].machine;
        let it = machine.cpu(vcpu);
        let doing = guest.vcpus[vcpu.0 as usize].doing;
        if it.started != NEVER {
            let from_elsewhere = match event {
                Event::Kick(_) => it.kicked_by != Some(vcpu),
                Event::Interrupt(_, Interrupt::Arrival(_) | Interrupt::Replied(_)) => true,
                _ => false,
            };
            let exits = match event {
                _ if it.current.is_none() => 0,
                _ if from_elsewhere => u32::from(!guest.costs.posted),
                Event::Interrupt(..) => 1,
                // The tick's timer goes off and is set again.
                Event::Tick(_) => 2,
                _ => 0,
            };
            for _ in 0..exits {
                machine.exit(vcpu);
            }
            return true;
        }
        match (event, doing) {
            (Event::Due(..) | Event::Noise(_), _) | (Event::Tick(_), Doing::Halted(_)) => true,
            (_, doing) => {
                let waker = match event {
                    Event::Kick(_) => it.kicked_by.map(|vcpu| guest.thread(vcpu)),
                    Event::Interrupt(_, Interrupt::Arrival(_) | Interrupt::Replied(_))
                        if guest.emulators > 0 =>
                    {
                        Some(guest.emulator(0))
                    }
                    _ => None,
                };
                guest.vcpus[vcpu.0 as usize].held.push(event);
                if let Doing::Halted(since) = doing {
                    self.wake_vcpu((kernel, vcpu), since, waker);
                }
                false
            }
        }
    }

    /// Wakes the thread of a halted vCPU, in a thread of the host or (`None`) in a timer's interrupt.
    fn wake_vcpu(&mut self, place: Place, since: Nanos, waker: Option<ThreadId>) {
        let (kernel, vcpu) = place;
        let now = self.kernels[kernel].machine.now;
        let guest = &mut self.guests.guests[kernel - 1];
        let (thread, most) = (guest.thread(vcpu), guest.costs.poll);
        let it = &mut guest.vcpus[vcpu.0 as usize];
        it.doing = Doing::Busy;
        // The interval grows where polling a little longer would have found the event, and is 0 after a halt
        // so long that polling would have been in vain.
        it.poll = if now - since > most {
            0
        } else {
            (2 * it.poll).clamp(FIRST_POLL.min(most), most)
        };
        let host = &mut self.kernels[0];
        host.machine.now = now;
        match waker.map(|waker| (waker, host.machine.thread(waker))) {
            Some((waker, it)) => {
                let (at, runs) = (it.cpu, matches!(it.state, State::Running(_)));
                host.on(at, runs.then_some(waker), |host| {
                    host.machine.charge(at, host.machine.costs.wake);
                    host.wake(thread);
                });
            }
            None => {
                let at = host.machine.usable_cpu(thread);
                let timer = Event::Interrupt(at, Interrupt::Slept(thread));
                host.machine.plan(now, timer);
            }
        }
        self.dirty.push(0);
    }

    /// Passes on what a kernel has for others: answers and questions to emulator threads, and the messages
    /// that these carried.
    pub(crate) fn pass_on(&mut self, number: usize) {
        if self.kernels.len() == 1 {
            return;
        }
        let now = self.kernels[number].machine.now;
        if number == 0 {
            for (vm, queue, message) in std::mem::take(&mut self.kernels[0].carried) {
                match message {
                    Message::In(port, request) => {
                        let kernel = &mut self.kernels[vm + 1];
                        kernel.machine.now = now;
                        kernel.deliver(port, queue, request);
                        self.dirty.push(vm + 1);
                    }
                    Message::Out(answer) => {
                        self.kernels[0].answers.push(Answer { at: now, ..answer });
                    }
                    Message::Ask(question, takes) => {
                        self.kernels[0].await_reply(question, takes);
                        self.dirty.push(0);
                    }
                    Message::Reply(question) => {
                        let kernel = &mut self.kernels[vm + 1];
                        kernel.machine.now = now;
                        kernel.replied(question, queue);
                        self.dirty.push(vm + 1);
                    }
                }
            }
            return;
        }
        let kernel = &mut self.kernels[number];
        let answers = std::mem::take(&mut kernel.answers);
        let asked = std::mem::take(&mut kernel.asked);
        if answers.is_empty() && asked.is_empty() {
            return;
        }
        let emulated = kernel.emulated;
        let host = &mut self.kernels[0];
        if !emulated {
            return host.answers.extend(answers);
        }
        host.machine.now = now;
        let guest = &self.guests.guests[number - 1];
        let (thread, queue) = (guest.thread(guest.last), guest.last.0);
        let at = host.machine.thread(thread).cpu;
        host.on(at, Some(thread), |host| {
            for answer in answers {
                host.post(number - 1, queue, Message::Out(answer));
            }
            for (thread, due, takes) in asked {
                host.ask(number - 1, thread, due, takes);
            }
        });
        self.dirty.push(0);
    }

    /// The requests and answers that wait for emulator threads or are with them: the tenant's number, and
    /// when the request was due.
    pub(crate) fn carried(&self) -> impl Iterator<Item = (usize, Nanos)> + '_ {
        let mailboxes = self.kernels[0].mailboxes.iter();
        mailboxes.flat_map(move |mailbox| {
            let all = mailbox.waiting.iter().chain(&mailbox.held);
            all.filter_map(move |message| {
                let tenant = match message {
                    Message::In(port, _) => self.kernels[mailbox.vm + 1].tenant_at(*port),
                    Message::Out(answer) => answer.tenant,
                    // The request is with the thread that asked.
                    Message::Ask(..) | Message::Reply(_) => return None,
                };
                Some((tenant, message.due()))
            })
        })
    }
}
