//! Virtual machines: guests' kernels whose CPUs are threads of the host.
//!
//! Problem: under a VM two schedulers decide, the guest's who gets a virtual CPU and the host's when that runs, and
//! neither sees what the other does. How: a guest is a [`Kernel`] like the host's, with its own class, run queues, ticks and
//! costs. Each of its CPUs has a thread on the host that runs no program; while that thread has a host CPU (and the host
//! does no work of its own there) the guest's CPU goes on, else it stands still and what would interrupt it waits. So
//! steal time is how long the thread was ready without a CPU, ticks come late and once, and who holds a lock in a guest
//! does not get on while its virtual CPU waits, without a rule of its own for any of these. A virtual CPU with nothing to do
//! halts: it polls for a while on its host CPU, as long as that was worth it before, and then its thread blocks.
//! Requests and answers pass through the VM's emulator threads (vhost's or QEMU's), which are threads of the host too.
//!
//! A network card has a queue for each emulator thread; requests are spread over them, and each interrupts a virtual CPU of its own,
//! as far as there are (virtio-net's multiqueue). A virtual CPU stops polling when another thread is in its CPU's queue
//! (kvm_vcpu_can_poll).
//!
//! Not modelled: memory, disks, pause-loop exits, paravirtual spin locks, yielding to a
//! lock's holder, guests in guests; under classes that do not say on which CPU a thread waits a virtual CPU that polls goes on with that though another thread
//! is ready, unless the class takes the CPU from it; interrupts of a passed-through device always come through the host.
//!
//! Sources: the kernel's Documentation/virt/kvm/halt-polling.rst (its interval's rules and defaults), and what
//! [`VmCosts::TYPICAL`] names.

use crate::class::Class;
use crate::events::Nanos;
use crate::kernel::{Kernel, Message, Receiver};
use crate::machine::{Costs, Event, GroupId, Interrupt, Machine, NEVER, State, ThreadId};
use crate::simulation::{Simulation, Tenant};
use crate::workload::{Answer, Next};
use quell_model::{CpuId, CpuSet, Nice, TenantWeight, Topology};

/// What halt polling begins with (halt_poll_ns_grow_start).
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

/// What virtualization takes, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmCosts {
    /// A VM exit, what the hypervisor does then, and the entry. Halting is one, as are setting a timer, a timer's going
    /// off, asking another virtual CPU to look, being asked, and having an answer sent.
    pub exit: Nanos,
    /// What a switch of the host to a virtual CPU takes longer than to another thread: its state is loaded.
    pub load: Nanos,
    /// How long a virtual CPU that halts polls at most before its thread blocks.
    pub poll: Nanos,
    /// What interrupts a running virtual CPU from elsewhere needs no exit there (posted interrupts, AVIC).
    pub posted: bool,
    /// CPU time of an emulator thread for a request or an answer.
    pub emulate: Nanos,
}

impl VmCosts {
    /// Nothing costs anything.
    pub const NONE: VmCosts = VmCosts {
        exit: 0,
        load: 0,
        poll: 0,
        posted: true,
        emulate: 0,
    };

    /// KVM on a server, about: an exit that KVM handles itself takes 2,384 cycles at 2.1 GHz, and a switch between VMs 4,812,
    /// of which some is any thread's (Dall et al., ARM Virtualization, ISCA 2016, table II, x86); halt polling's default on x86 is
    /// 200 us at most; posted interrupts, as Intel's servers have since 2014; 5 us of an emulator thread for a message, as
    /// long as the host's network stack, which agrees with emulators that need 15 to 50 % of what vCPUs do (Peng et al., UFO,
    /// fig. 7) for requests of tens of us.
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
    /// Its virtual CPUs, which share one cache.
    pub vcpus: u32,
    /// The guest's scheduler.
    pub class: Box<dyn Class>,
    /// What the guest's kernel takes for its own work.
    pub costs: Costs,
    /// What virtualization takes.
    pub vm_costs: VmCosts,
    /// The cgroup of its threads on the host.
    pub group: GroupId,
    /// Their nice value.
    pub nice: Nice,
    /// How many emulator threads carry its requests and answers, each those of one queue of its network card; 0: these come
    /// and go by themselves, as through a device that is passed through.
    pub emulators: u32,
}

impl Vm {
    /// One with typical costs, one emulator thread and nice 0, in the root group.
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

/// What a VM has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VmStats {
    /// Switches in the guest, to and from idling too: what /proc/stat there counts as ctxt.
    pub switches: u64,
    /// VM exits.
    pub exits: u64,
    /// How often a virtual CPU's thread blocked because it had nothing to do.
    pub halts: u64,
    /// How often the host switched to a virtual CPU.
    pub loads: u64,
    /// How long virtual CPUs were ready without a CPU of the host, all together, in ns.
    pub steal: Nanos,
}

/// What a virtual CPU does.
#[derive(Debug, Clone, Copy)]
enum Doing {
    /// Its thread is blocked, since it had nothing to do from then on.
    Halted(Nanos),
    /// It has something to do.
    Busy,
    /// It has nothing to do since then, and polls until then.
    Polling(Nanos, Nanos),
}

struct Vcpu {
    doing: Doing,
    /// The host's CPU that its thread is on.
    on: Option<CpuId>,
    /// What interrupts it once it runs.
    held: Vec<Event>,
    /// How long it polls.
    poll: Nanos,
}

struct Guest {
    costs: VmCosts,
    /// Its tenant number on the host.
    tenant: usize,
    /// Its first thread there.
    first: ThreadId,
    emulators: u32,
    vcpus: Vec<Vcpu>,
    halts: u64,
    loads: u64,
    /// Whose event was handled last.
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

/// A guest's CPU: its kernel's number, and its own.
type Place = (usize, CpuId);

/// All VMs, as the host has them.
pub(crate) struct Guests {
    guests: Vec<Guest>,
    /// By the host's thread, whose it is.
    of: Vec<Option<Place>>,
    /// By the host's CPU, who is on it.
    on: Vec<Option<Place>>,
}

impl Guests {
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

/// VMs.
impl Simulation {
    /// Adds a VM whose guest has nothing to do yet. Its threads are a process of the host, which has a tenant's number.
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

    /// Adds a cgroup in a guest; gives its number there.
    pub fn add_group_in(&mut self, vm: VmId, parent: GroupId, weight: TenantWeight) -> GroupId {
        let machine = &mut self.kernels[vm.kernel()].machine;
        machine.add_group(parent, weight)
    }

    /// Adds a tenant to a guest; gives its index, which is among those of all tenants.
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

    /// Plugs a virtual CPU of a guest in or out: threads leave one that goes, what is planned for it happens there yet, and
    /// then it halts. The last one stays.
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

    /// How many of a guest's virtual CPUs are plugged in.
    pub fn online(&self, vm: VmId) -> usize {
        let kernel = &self.kernels[vm.kernel()];
        let cpus = kernel.machine.cpu_ids();
        cpus.filter(|cpu| kernel.is_online(*cpu)).count()
    }

    /// A guest's machine as of now. Its threads' CPU time is without steal.
    pub fn guest(&self, vm: VmId) -> &Machine {
        &self.kernels[vm.kernel()].machine
    }

    /// The host's threads that are a VM's virtual CPUs, by their number.
    pub fn vcpu_threads(&self, vm: VmId) -> impl Iterator<Item = ThreadId> + use<'_> {
        let guest = &self.guests.guests[vm.index()];
        (0..guest.vcpus.len() as u32).map(|vcpu| guest.thread(CpuId(vcpu)))
    }

    /// The host's threads that are a VM's emulator threads.
    pub fn emulator_threads(&self, vm: VmId) -> impl Iterator<Item = ThreadId> + use<'_> {
        let guest = &self.guests.guests[vm.index()];
        (0..guest.emulators).map(|number| guest.emulator(number))
    }

    /// The tenant's number that a VM's process has on the host.
    pub fn vm_tenant(&self, vm: VmId) -> usize {
        self.guests.guests[vm.index()].tenant
    }

    /// How long a virtual CPU has been ready without a CPU of the host, in ns.
    pub fn steal(&self, vm: VmId, vcpu: CpuId) -> Nanos {
        let thread = self.guests.guests[vm.index()].thread(vcpu);
        self.kernels[0].machine.waited(thread)
    }

    /// What a VM has done so far.
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

    /// A host's CPU goes on with something else, or later: so does the guest there.
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

    /// A guest's CPU is as fast as the host's that it is on.
    fn set_speed(&mut self, (kernel, vcpu): Place, speed: u8) {
        let now = self.now();
        let machine = &mut self.kernels[kernel].machine;
        if machine.cpu(vcpu).speed != speed {
            machine.now = now;
            machine.set_speed(vcpu, speed);
            self.dirty.push(kernel);
        }
    }

    /// Who polls on a CPU for which a thread waits stops that: its thread blocks.
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

    /// A guest's CPU stands still.
    fn stop(&mut self, (kernel, vcpu): Place) {
        let now = self.now();
        let machine = &mut self.kernels[kernel].machine;
        machine.now = now;
        machine.pause(vcpu);
        self.dirty.push(kernel);
    }

    /// A guest's CPU goes on, if it stood still, with what interrupts it first.
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

    /// What a guest's CPU goes on with has changed: with nothing, it polls and then halts.
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

    /// Its thread blocks on the host.
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

    /// Whether a guest's event happens now. Else it waits until its CPU runs, and wakes that if it is halted.
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
                // It goes off and is set again.
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

    /// A halted virtual CPU's thread is woken by a thread of the host, or by a timer.
    fn wake_vcpu(&mut self, place: Place, since: Nanos, waker: Option<ThreadId>) {
        let (kernel, vcpu) = place;
        let now = self.kernels[kernel].machine.now;
        let guest = &mut self.guests.guests[kernel - 1];
        let (thread, most) = (guest.thread(vcpu), guest.costs.poll);
        let it = &mut guest.vcpus[vcpu.0 as usize];
        it.doing = Doing::Busy;
        // Had it polled a little longer it would not have had to block; after a long time that would have been in vain.
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

    /// Passes on what a kernel has for others: answers to emulator threads, and what these carried.
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

    /// What emulator threads have or are to carry: tenants, and when the requests were due.
    pub(crate) fn carried(&self) -> impl Iterator<Item = (usize, Nanos)> + '_ {
        let mailboxes = self.kernels[0].mailboxes.iter();
        mailboxes.flat_map(move |mailbox| {
            let all = mailbox.waiting.iter().chain(&mailbox.held);
            all.filter_map(move |message| {
                let tenant = match message {
                    Message::In(port, _) => self.kernels[mailbox.vm + 1].tenant_at(*port),
                    Message::Out(answer) => answer.tenant,
                    // Who asked has the request.
                    Message::Ask(..) | Message::Reply(_) => return None,
                };
                Some((tenant, message.due()))
            })
        })
    }
}
