//! One kernel: a machine, its scheduling class, and what its threads do.
//!
//! Problem: a host and its guests each have CPUs, a scheduler and threads of their own, and do the same
//! things with them. How: each is a [`Kernel`] that handles its own events and knows nothing of the others. A
//! kernel plans events into its machine's list, and leaves what concerns other kernels (what emulator threads
//! have carried, answers that leave through them) in lists that [`crate::Simulation`] takes from it.

use crate::class::{Class, Pick};
use crate::events::Nanos;
use crate::happening::{Happening, Observer};
use crate::machine::{Event, FOREVER, GroupId, Interrupt, Machine, NEVER, State, Thread, ThreadId};
use crate::program::Code;
use crate::recorded::Act;
use crate::workload::{Answer, Effects, Load, Next, Request, Workload};
use quell_model::{CpuId, CpuSet, Nice, ThreadRole};
use quell_scenario::{Count, ThreadPolicy, ThreadProgram};
use quell_sched::{SchedError, ServerSetting, ThreadSetting};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;

/// A kernel, its threads and its network ports.
pub(crate) struct Kernel {
    pub machine: Machine,
    class: Box<dyn Class>,
    pub workload: Workload,
    /// The simulation's tenant numbers, by the workload's.
    pub tenants: Vec<usize>,
    ports: Vec<Port>,
    /// The CPUs that are online; `None`: all.
    online: Option<CpuSet>,
    effects: Effects,
    /// By thread, the effects of its last step that are still to come.
    pending: Vec<Pending>,
    /// Answered requests, with the simulation's tenant numbers.
    pub answers: Vec<Answer>,
    /// Whether emulator threads carry answers out of this guest; until then requests count as unanswered.
    pub emulated: bool,
    /// In a guest with emulator threads, the questions to clients that are to go out: the thread, when the
    /// request that it works for was due, and how long the client takes, in ns.
    pub asked: Vec<(ThreadId, Nanos, Nanos)>,
    /// On a host, the questions to clients that have no reply yet, by number; the numbers of `None` are free.
    questions: Vec<Option<Question>>,
    /// On a host, the queues of all VMs' network cards.
    pub mailboxes: Vec<Mailbox>,
    /// By VM, the number of its first queue in `mailboxes`, and how many it has.
    queues: Vec<(usize, u32)>,
    /// The messages that emulator threads have carried, each with its VM and the number of the queue in the
    /// VM.
    pub carried: Vec<(usize, u32, Message)>,
    /// On a host with VMs, threads that became ready since the simulation last looked for polling vCPUs to
    /// stop.
    pub woken: Vec<ThreadId>,
    /// The number of context switches so far, to and from idle included.
    pub switches: u64,
    noise: ChaCha8Rng,
    /// Callbacks that are told of scheduling events.
    pub observers: Vec<Observer>,
}

/// Where the requests of a tenant come in. (One cache line.)
#[repr(align(64))]
struct Port {
    coming: Coming,
    /// The tenant, by the simulation's number.
    tenant: u32,
    /// The number of network card queues through which the requests come.
    queues: u32,
    to: Receiver,
}

/// The requests that come in at a port.
enum Coming {
    /// The requests of a load, and the next of them.
    Load(Load, Request),
    /// The requests that were delivered and have not come in yet.
    Delivered(VecDeque<Request>),
}

/// The receiver of a port's requests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Receiver {
    /// A tenant of this kernel, by the workload's number.
    Tenant(u32),
    /// A port of a guest, through the VM's emulator threads.
    Guest { vm: u32, port: u32 },
}

/// A message that an emulator thread carries.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Message {
    /// A request for the port of that number in the guest.
    In(usize, Request),
    /// An answer to a request.
    Out(Answer),
    /// A question to a client, and how long the client takes to reply, in ns.
    Ask(Question, Nanos),
    /// The reply to a question.
    Reply(Question),
}

/// A question of a guest's thread to the thread's client. A thread has at most one question out, and its
/// messages pass through the queue of the thread's number, since a thread serves one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Question {
    /// The number of the VM.
    pub vm: usize,
    /// The thread of the guest that asks.
    pub thread: ThreadId,
    /// When the request that the thread works for was due.
    due: Nanos,
}

impl Message {
    /// When the request that the message belongs to was due.
    pub fn due(&self) -> Nanos {
        match self {
            Message::In(_, request) => request.due,
            Message::Out(answer) => answer.due,
            Message::Ask(question, _) | Message::Reply(question) => question.due,
        }
    }
}

/// A queue of a VM's network card, with its emulator thread and the messages that are to be carried.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// The number of the VM.
    pub vm: usize,
    /// The number of the queue in the VM.
    number: u32,
    thread: ThreadId,
    /// The CPU time that a message takes, in ns.
    takes: Nanos,
    /// The messages that wait.
    pub waiting: VecDeque<Message>,
    /// The message that the emulator thread carries now.
    pub held: Option<Message>,
    idle: bool,
}

/// The effects of a thread's step that are still to come. Wakeups take time: the thread wakes other threads
/// one after the other, and then goes on with `next`.
#[derive(Default)]
struct Pending {
    woken: VecDeque<(ThreadId, Option<Nanos>)>,
    next: Option<Next>,
    /// The mailbox, if the thread is an emulator thread.
    emulates: Option<usize>,
    /// The thread was forked and has not been ready yet.
    newborn: bool,
}

impl Kernel {
    /// A kernel without threads.
    pub fn new(machine: Machine, class: Box<dyn Class>) -> Kernel {
        let mut kernel = Kernel {
            machine,
            class,
            workload: Workload::default(),
            tenants: Vec::new(),
            ports: Vec::new(),
            online: None,
            effects: Effects::default(),
            pending: Vec::new(),
            answers: Vec::new(),
            emulated: false,
            asked: Vec::new(),
            questions: Vec::new(),
            mailboxes: Vec::new(),
            queues: Vec::new(),
            carried: Vec::new(),
            woken: Vec::new(),
            switches: 0,
            observers: Vec::new(),
            noise: ChaCha8Rng::seed_from_u64(0),
        };
        if kernel.machine.costs.noise_every > 0 {
            for cpu in kernel.machine.cpu_ids() {
                kernel.plan_noise(cpu);
            }
        }
        kernel
    }

    /// Adds a tenant with a number of the simulation, whose threads are ready from now on; `nice` is for
    /// programs without a nice value of their own. Returns the tenant's index in the workload.
    pub fn add_tenant(
        &mut self,
        number: usize,
        programs: &[ThreadProgram],
        group: GroupId,
        nice: Nice,
    ) -> usize {
        let cpus = self.machine.cpus.len() as u32;
        let tenant = self.workload.add_tenant(Code::compile(programs, cpus));
        self.tenants.push(number);
        let leader = ThreadId(self.machine.threads.len() as u32);
        let mut index = 0;
        for (program, spec) in programs.iter().enumerate() {
            for _ in 0..spec.count.on(cpus) {
                let spin = (spec.spin_us * 1e3) as Nanos;
                self.workload.add_thread(tenant, program, index, spin);
                let nice = spec.nice.and_then(Nice::new).unwrap_or(nice);
                let thread = self.add_thread(leader, number, group, nice);
                let it = self.machine.thread_mut(thread);
                (it.policy, it.slice) = (spec.policy, spec.slice_ns());
                self.wake(thread);
                index += 1;
            }
        }
        tenant
    }

    /// Adds a process with a number of the simulation, whose threads do what was recorded. The threads are
    /// blocked.
    pub fn add_recorded(&mut self, number: usize, threads: Vec<(Nice, Vec<Act>)>) {
        let (nices, acts): (Vec<Nice>, Vec<Vec<Act>>) = threads.into_iter().unzip();
        let tenant = self.workload.add_tenant(Code::recorded(&acts));
        self.tenants.push(number);
        let leader = ThreadId(self.machine.threads.len() as u32);
        for (program, nice) in nices.into_iter().enumerate() {
            self.workload.add_recorded(tenant, program);
            self.add_thread(leader, number, GroupId::ROOT, nice);
        }
    }

    /// Adds a VM's process: `vcpus` vCPU threads, which run until they are stopped, and `emulators` emulator
    /// threads, which use `takes` ns for each message. All are blocked. Returns the number of the first
    /// thread.
    pub fn add_vm_threads(
        &mut self,
        number: usize,
        vcpus: u32,
        takes: Nanos,
        emulators: u32,
        group: GroupId,
        nice: Nice,
    ) -> ThreadId {
        // These threads step through no program, but the workload has an entry for every thread.
        let none = ThreadProgram::new("", Count::Fixed(vcpus + emulators), Vec::new());
        let tenant = self.workload.add_tenant(Code::compile(&[none], 1));
        self.tenants.push(number);
        let vm = self.queues.len();
        self.queues.push((self.mailboxes.len(), emulators));
        let first = ThreadId(self.machine.threads.len() as u32);
        for index in 0..vcpus + emulators {
            self.workload.add_thread(tenant, 0, index.into(), 0);
            let thread = self.add_thread(first, number, group, nice);
            if index < vcpus {
                let it = self.machine.thread_mut(thread);
                (it.left, it.role) = (FOREVER, ThreadRole::Vcpu(index));
            } else {
                let it = self.machine.thread_mut(thread);
                (it.pending, it.role) = (true, ThreadRole::Emulator);
                self.pending[thread.index()].emulates = Some(self.mailboxes.len());
                self.mailboxes.push(Mailbox {
                    vm,
                    number: index - vcpus,
                    thread,
                    takes,
                    waiting: VecDeque::new(),
                    held: None,
                    idle: true,
                });
            }
        }
        first
    }

    /// Adds a port for the requests of a tenant (the simulation's number), which come through `queues`
    /// queues; returns the port's number. The requests of `load` arrive without being delivered.
    pub fn add_port(
        &mut self,
        load: Option<Load>,
        tenant: usize,
        queues: u32,
        to: Receiver,
    ) -> usize {
        let port = self.ports.len();
        let first = load.and_then(|mut load| Some((load.next()?, load)));
        let next = first.as_ref().map(|(request, _)| *request);
        self.ports.push(Port {
            coming: match first {
                Some((request, load)) => Coming::Load(load, request),
                None => Coming::Delivered(VecDeque::new()),
            },
            tenant: tenant as u32,
            queues: queues.max(1),
            to,
        });
        if let Some(next) = next {
            self.plan_interrupt(port, next.due, self.queue_of(port, next));
        }
        port
    }

    /// Sets the CPUs that are online: only these get threads and requests from now on.
    pub fn set_online(&mut self, online: CpuSet) {
        for thread in 0..self.machine.threads.len() as u32 {
            self.restrict(ThreadId(thread), online.clone());
        }
        self.online = Some(online);
    }

    /// Sets a thread's affinity from now on, as sched_setaffinity does: the CPU that the thread runs on
    /// reschedules if it is not in `allowed`.
    pub fn restrict(&mut self, thread: ThreadId, allowed: CpuSet) {
        let it = self.machine.thread_mut(thread);
        it.allowed = Some(allowed);
        let state = it.state;
        if matches!(state, State::Blocked | State::Ended) {
            return;
        }
        self.class.set_allowed(&mut self.machine, thread);
        if let State::Running(cpu) = state {
            if !self.machine.thread(thread).may_use(cpu) {
                self.machine.kick(cpu);
            }
        }
    }

    /// Whether a CPU is online.
    pub fn is_online(&self, cpu: CpuId) -> bool {
        self.online
            .as_ref()
            .is_none_or(|online| online.contains(cpu))
    }

    /// Delivers a request to a port without a load, through a queue: an interrupt comes in now.
    pub fn deliver(&mut self, port: usize, queue: u32, request: Request) {
        if let Coming::Delivered(requests) = &mut self.ports[port].coming {
            requests.push_back(request);
            self.plan_interrupt(port, self.machine.now, queue);
        }
    }

    /// Posts the question of a guest's thread to its client.
    pub fn ask(&mut self, vm: usize, thread: ThreadId, due: Nanos, takes: Nanos) {
        let question = Question { vm, thread, due };
        self.post(vm, thread.0, Message::Ask(question, takes));
    }

    /// A question has gone out: plans the reply, which comes in after `takes` ns.
    pub fn await_reply(&mut self, question: Question, takes: Nanos) {
        let free = self.questions.iter().position(Option::is_none);
        let number = free.unwrap_or(self.questions.len());
        match self.questions.get_mut(number) {
            Some(place) => *place = Some(question),
            None => self.questions.push(Some(question)),
        }
        let (at, number) = (self.machine.now + takes, number as u32);
        let cpu = self.device_of(question.vm, question.thread.0);
        let (at, event) = match self.machine.costs.elsewhere {
            true => (at + self.machine.costs.request, Event::Reply(number)),
            false => (at, Event::Interrupt(cpu, Interrupt::Reply(number))),
        };
        self.machine.plan(at, event);
    }

    /// Posts the reply to a question, which comes in at the host.
    fn reply(&mut self, number: u32) {
        let question = self.questions.get_mut(number as usize);
        if let Some(question) = question.and_then(Option::take) {
            self.post(question.vm, question.thread.0, Message::Reply(question));
        }
    }

    /// A reply reaches the guest: interrupts the CPU of the queue now.
    pub fn replied(&mut self, question: Question, queue: u32) {
        let tenant = self.machine.thread(question.thread).tenant;
        let cpu = self.device_of(tenant, queue);
        let replied = Event::Interrupt(cpu, Interrupt::Replied(question.thread));
        self.machine.plan(self.machine.now, replied);
    }

    /// The queue of a request: receive-side scaling spreads connections, and with them requests, by a hash.
    fn queue_of(&self, port: usize, request: Request) -> u32 {
        (request.seed % u64::from(self.ports[port].queues)) as u32
    }

    /// The requests that arrived and have no answer: the tenant's number, and when the request was due.
    pub fn unanswered(&self) -> impl Iterator<Item = (usize, Nanos)> + '_ {
        let here = self.workload.unanswered();
        let here = here.map(|(tenant, due)| (self.tenants[tenant], due));
        let coming = self.ports.iter().flat_map(|port| {
            let requests = match &port.coming {
                Coming::Delivered(requests) => Some(requests),
                Coming::Load(..) => None,
            };
            let requests = requests.into_iter().flatten();
            requests.map(|request| (port.tenant as usize, request.due))
        });
        here.chain(coming)
    }

    /// The tenant whose requests come in at a port.
    pub fn tenant_at(&self, port: usize) -> usize {
        self.ports[port].tenant as usize
    }

    /// A tenant with a thread that can never go on, and a text that says which threads wait for what.
    pub fn deadlock(&self) -> Option<(usize, String)> {
        let (tenant, why) = self.workload.deadlock()?;
        Some((self.tenants[tenant], why))
    }

    /// Passes a thread's setting to the class; false if the class has no such setting.
    pub fn set_thread(&mut self, thread: ThreadId, setting: ThreadSetting) -> bool {
        self.class.set_thread(&mut self.machine, thread, setting)
    }

    /// Sets the server of a CPU.
    ///
    /// # Errors
    /// Where [`Class::set_server`] fails.
    pub fn set_server(&mut self, setting: ServerSetting) -> Result<(), SchedError> {
        self.class.set_server(&mut self.machine, setting)
    }

    /// Adds a thread to the process of `leader`.
    fn add_thread(
        &mut self,
        leader: ThreadId,
        tenant: usize,
        group: GroupId,
        nice: Nice,
    ) -> ThreadId {
        let number = self.machine.threads.len() as u32;
        let cpus = self.machine.cpus.len() as u32;
        self.machine.threads.push(Thread {
            tenant,
            leader,
            origin: ThreadId(number),
            group,
            policy: ThreadPolicy::Other,
            nice,
            slice: None,
            role: ThreadRole::Ordinary,
            allowed: self.online.clone(),
            state: State::Blocked,
            cpu: CpuId(number % cpus),
            ran: 0,
            waited: 0,
            ready_since: 0,
            left_at: 0,
            works_for: None,
            left: 0,
            timed: false,
            pending: false,
        });
        self.pending.push(Pending::default());
        ThreadId(number)
    }

    /// A running thread starts a process, whose thread the workload has numbered `thread`. The child is on
    /// the parent's CPU and has the parent's cgroup, policy, nice value and affinity.
    fn fork(&mut self, thread: ThreadId) {
        let Some(by) = self.machine.by else { return };
        let parent = self.machine.thread(by);
        self.machine.threads.push(Thread {
            leader: thread,
            allowed: parent.allowed.clone(),
            state: State::Blocked,
            role: ThreadRole::Ordinary,
            ran: 0,
            waited: 0,
            works_for: None,
            left: 0,
            timed: false,
            pending: false,
            ..*parent
        });
        debug_assert_eq!(self.machine.threads.len(), thread.index() + 1);
        self.pending.push(Pending {
            newborn: true,
            ..Pending::default()
        });
        self.class.fork(&mut self.machine, thread);
        let (now, cpu) = (self.machine.now, self.machine.thread(by).cpu);
        self.tell(now, Happening::Fork { thread, by, cpu });
    }

    /// How long waking a thread takes the waker, in ns; for a thread that is new, the whole fork.
    fn wake_takes(&self, thread: ThreadId) -> Nanos {
        match self.pending[thread.index()].newborn {
            true => self.machine.costs.fork,
            false => self.machine.costs.wake,
        }
    }

    /// Handles an event at its time.
    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(port) => self.arrive(port as usize),
            Event::Reply(number) => self.reply(number),
            Event::Due(cpu, _) => self.due(cpu),
            Event::Kick(cpu) => {
                self.machine.cpu_mut(cpu).kicked = false;
                self.on(cpu, None, |kernel| kernel.choose(cpu, None));
            }
            Event::Interrupt(_, Interrupt::Timer(token)) if !self.class.expects_timer(token) => {}
            Event::Interrupt(cpu, interrupt)
                if self.machine.leave_idle(cpu) || self.interrupt_takes(interrupt) > 0 =>
            {
                match interrupt {
                    Interrupt::Arrival(_) | Interrupt::Reply(_) | Interrupt::Replied(_) => {
                        self.generate(cpu, self.machine.costs.request)
                    }
                    _ => self.machine.charge(cpu, self.machine.costs.interrupt),
                }
                let at = self.machine.cpu(cpu).started;
                self.machine.plan(at, Event::Handle(cpu, interrupt));
            }
            Event::Interrupt(cpu, interrupt) | Event::Handle(cpu, interrupt) => {
                self.on(cpu, None, |kernel| match interrupt {
                    Interrupt::Arrival(port) => kernel.arrive(port as usize),
                    Interrupt::Reply(number) => kernel.reply(number),
                    Interrupt::Replied(thread) => {
                        kernel.effects.woken.push((thread, None));
                        kernel.wake_all();
                    }
                    Interrupt::Slept(thread) => kernel.wake(thread),
                    Interrupt::Wakeup(thread) => {
                        let now = kernel.machine.now;
                        kernel.workload.wake(thread, now, &mut kernel.effects);
                        kernel.wake_all();
                    }
                    Interrupt::Timer(token) => {
                        kernel.class.timer(&mut kernel.machine, token);
                    }
                });
            }
            Event::Tick(cpu) => self.tick(cpu),
            Event::Noise(cpu) => {
                if self.machine.cpu(cpu).started != NEVER {
                    self.machine.leave_idle(cpu);
                    self.put_off(cpu, self.machine.costs.noise);
                }
                self.plan_noise(cpu);
            }
        }
    }

    /// Runs kernel code of a CPU, for a thread or (`None`) in an interrupt.
    pub fn on(&mut self, cpu: CpuId, by: Option<ThreadId>, work: impl FnOnce(&mut Kernel)) {
        let before = (self.machine.here, self.machine.by);
        (self.machine.here, self.machine.by) = (Some(cpu), by);
        work(self);
        (self.machine.here, self.machine.by) = before;
    }

    fn interrupt_takes(&self, interrupt: Interrupt) -> Nanos {
        match interrupt {
            Interrupt::Arrival(_) | Interrupt::Reply(_) | Interrupt::Replied(_) => {
                self.machine.costs.request
            }
            Interrupt::Slept(_) | Interrupt::Timer(_) => self.machine.costs.interrupt,
            // The recording has this interrupt in the CPU time of the thread that it interrupted.
            Interrupt::Wakeup(_) => 0,
        }
    }

    fn plan_noise(&mut self, cpu: CpuId) {
        let mean = self.machine.costs.noise_every as f64;
        let pause = -(1.0 - self.noise.random::<f64>()).ln() * mean;
        let at = self.machine.now + pause as Nanos;
        self.machine.plan(at, Event::Noise(cpu));
    }

    /// Plans the next tick of a CPU. Ticks come at the same times on all CPUs that run a thread.
    fn plan_tick(&mut self, cpu: CpuId) {
        let every = self.machine.costs.tick_every;
        if every > 0 && !std::mem::replace(&mut self.machine.cpu_mut(cpu).ticks, true) {
            let next = (self.machine.now / every + 1) * every;
            self.machine.plan(next, Event::Tick(cpu));
        }
    }

    fn tick(&mut self, cpu: CpuId) {
        self.machine.cpu_mut(cpu).ticks = false;
        if self.machine.cpu(cpu).current.is_none() {
            return;
        }
        self.machine.charge(cpu, self.machine.costs.tick);
        self.plan_tick(cpu);
        self.on(cpu, None, |kernel| {
            kernel.class.tick(&mut kernel.machine, cpu);
        });
    }

    /// The CPU of a tenant's device, or of its load generator: each tenant has one, as the queues of network
    /// cards have. The further queues of a tenant are on the next CPUs.
    fn device_of(&self, tenant: usize, queue: u32) -> CpuId {
        let number = tenant + queue as usize;
        match &self.online {
            None => CpuId((number % self.machine.cpus.len()) as u32),
            Some(online) => {
                let nth = online.iter().nth(number % online.len().max(1));
                nth.unwrap_or(CpuId(0))
            }
        }
    }

    /// Charges a CPU with a request that comes in or an answer that goes out: in an interrupt, or in a thread
    /// of the load generator.
    fn generate(&mut self, cpu: CpuId, takes: Nanos) {
        if self.machine.costs.generators && takes > 0 {
            self.put_off(cpu, takes);
        } else {
            self.machine.charge(cpu, takes);
        }
    }

    /// A thread of the kernel's own, or the load generator's, preempts the CPU's thread for `takes` ns.
    fn put_off(&mut self, cpu: CpuId, takes: Nanos) {
        let it = self.machine.cpu(cpu);
        let (current, from) = (it.current, it.started.max(self.machine.now));
        self.machine.charge(cpu, takes);
        let until = self.machine.cpu(cpu).started;
        if let Some(thread) = current {
            let (left, next) = (Some((thread, true)), None);
            self.tell(from, Happening::Switch { cpu, left, next });
            let (left, next) = (None, Some(thread));
            self.tell(until, Happening::Switch { cpu, left, next });
        }
    }

    /// Sends the answers out.
    fn answered(&mut self) {
        let costs = self.machine.costs;
        for number in 0..self.effects.answers.len() {
            let mut answer = self.effects.answers[number];
            answer.tenant = self.tenants[answer.tenant];
            if costs.answer > 0 {
                let here = self.machine.here.filter(|_| !costs.generators);
                let cpu = here.unwrap_or_else(|| self.device_of(answer.tenant, 0));
                self.generate(cpu, costs.answer);
            }
            if let Some(here) = self.machine.here.filter(|_| self.emulated) {
                self.machine.exit(here);
            }
            self.answers.push(answer);
        }
        self.effects.answers.clear();
    }

    fn plan_interrupt(&mut self, port: usize, at: Nanos, queue: u32) {
        let now = self.machine.now;
        if self.machine.costs.elsewhere {
            let at = at + self.machine.costs.request;
            return self.machine.plan(at.max(now), Event::Arrive(port as u32));
        }
        let cpu = self.device_of(self.tenant_at(port), queue);
        let arrival = Event::Interrupt(cpu, Interrupt::Arrival(port as u32));
        self.machine.plan(at.max(now), arrival);
    }

    fn arrive(&mut self, port: usize) {
        let it = &mut self.ports[port];
        let (arrived, next) = match &mut it.coming {
            Coming::Load(load, request) => (*request, load.next()),
            Coming::Delivered(requests) => match requests.pop_front() {
                Some(request) => (request, None),
                None => return,
            },
        };
        match (&mut it.coming, next) {
            (Coming::Load(_, request), Some(next)) => {
                *request = next;
                self.plan_interrupt(port, next.due, self.queue_of(port, next));
            }
            (Coming::Load(..), None) => it.coming = Coming::Delivered(VecDeque::new()),
            (Coming::Delivered(_), _) => {}
        }
        let tenant = match self.ports[port].to {
            Receiver::Tenant(tenant) => tenant as usize,
            Receiver::Guest { vm, port: to } => {
                let queue = self.queue_of(port, arrived);
                return self.post(vm as usize, queue, Message::In(to as usize, arrived));
            }
        };
        self.workload.arrive(tenant, arrived, &mut self.effects);
        self.wake_all();
    }

    /// Carries out the effects of an interrupt.
    fn wake_all(&mut self) {
        let mut effects = self.take_effect();
        for (thread, works_for) in effects.drain(..) {
            if let Some(here) = self.machine.here {
                self.machine.charge(here, self.machine.costs.wake);
            }
            self.wake_for(thread, works_for);
        }
        self.effects.woken = effects;
    }

    /// Makes a blocked thread ready.
    pub fn wake(&mut self, thread: ThreadId) {
        let now = self.machine.now;
        let it = self.machine.thread_mut(thread);
        it.state = State::Ready;
        it.ready_since = now;
        if !self.observers.is_empty() {
            let cpu = self.machine.here.unwrap_or(CpuId(0));
            let by = self.machine.by;
            self.tell(now, Happening::Wakeup { thread, by, cpu });
        }
        match std::mem::take(&mut self.pending[thread.index()].newborn) {
            true => self.class.wake_new(&mut self.machine, thread),
            false => self.class.wake(&mut self.machine, thread),
        }
        if !self.queues.is_empty() {
            self.woken.push(thread);
        }
    }

    /// The CPU in whose runqueue a ready thread waits, if the class has one for each CPU.
    pub fn queued_on(&self, thread: ThreadId) -> Option<CpuId> {
        let waits = self.machine.thread(thread).state == State::Ready;
        waits.then(|| self.class.queued_on(thread)).flatten()
    }

    /// Wakes a thread that waits or is about to, for the request due at `works_for`, or if that is `None`,
    /// for the one that the thread works for.
    fn wake_for(&mut self, thread: ThreadId, works_for: Option<Nanos>) {
        let it = self.machine.thread_mut(thread);
        if works_for.is_some() {
            it.works_for = works_for;
        }
        if it.state == State::Blocked {
            self.wake(thread);
        } else if let Some(next) = &mut self.pending[thread.index()].next {
            // The thread is about to block: it looks again instead.
            *next = Next::Spin(0);
        }
    }

    /// Carries out the effects of a step or an arrival, without the wakeups; returns the threads to wake.
    fn take_effect(&mut self) -> Vec<(ThreadId, Option<Nanos>)> {
        let mut born = std::mem::take(&mut self.effects.born);
        for thread in born.drain(..) {
            self.fork(thread);
        }
        self.effects.born = born;
        self.answered();
        let mut poked = std::mem::take(&mut self.effects.poked);
        for thread in poked.drain(..) {
            self.poke(thread);
        }
        self.effects.poked = poked;
        std::mem::take(&mut self.effects.woken)
    }

    /// Posts a message to the emulator thread of a VM's queue.
    pub fn post(&mut self, vm: usize, queue: u32, message: Message) {
        let (first, queues) = self.queues[vm];
        let mailbox = &mut self.mailboxes[first + (queue % queues.max(1)) as usize];
        mailbox.waiting.push_back(message);
        if std::mem::take(&mut mailbox.idle) {
            let thread = mailbox.thread;
            if let Some(here) = self.machine.here {
                self.machine.charge(here, self.machine.costs.wake);
            }
            self.wake_for(thread, None);
        }
    }

    /// Takes over the message that an emulator thread carried, and returns what the thread does next.
    fn emulate(&mut self, mailbox: usize, thread: ThreadId) -> Next {
        let mailbox = &mut self.mailboxes[mailbox];
        if let Some(message) = mailbox.held.take() {
            self.carried.push((mailbox.vm, mailbox.number, message));
        }
        mailbox.held = mailbox.waiting.pop_front();
        let works_for = mailbox.held.map(|message| message.due());
        self.machine.thread_mut(thread).works_for = works_for;
        mailbox.idle = mailbox.held.is_none();
        match mailbox.idle {
            true => Next::Block,
            false => Next::Run(mailbox.takes),
        }
    }

    /// Makes a spinning thread look: now, or when it has a CPU again.
    fn poke(&mut self, thread: ThreadId) {
        if let State::Running(cpu) = self.machine.thread(thread).state {
            self.machine.account(cpu);
            self.machine.replan(cpu);
        }
        let left = match &mut self.pending[thread.index()].next {
            // The thread has not begun to spin.
            Some(Next::Spin(time)) => std::mem::take(time),
            _ => std::mem::take(&mut self.machine.thread_mut(thread).left),
        };
        self.workload.spun(thread, left);
    }

    /// Plans the CPU's next event: the next step of its thread, or the end of the thread's slice.
    pub fn plan(&mut self, cpu: CpuId) {
        let it = self.machine.cpu_mut(cpu);
        it.stale = false;
        it.plan = it.plan.wrapping_add(1);
        let (plan, started, turn, speed) = (it.plan, it.started, it.turn, it.speed);
        let Some(thread) = it.current else {
            // A guest's CPU without a thread halts at the end of its kernel work.
            if self.machine.exit.is_some() && started != NEVER && started > self.machine.now {
                self.machine.plan(started, Event::Due(cpu, plan));
            }
            return;
        };
        let left = self.machine.thread(thread).time_left(speed);
        let next = turn.map_or(left, |turn| turn.min(left));
        let at = if left > FOREVER / 2 && started > self.machine.now {
            // A vCPU's thread: its guest goes on at the end of the host's kernel work.
            started
        } else if next > FOREVER / 2 || started == NEVER {
            return;
        } else {
            (started + next).max(self.machine.now)
        };
        self.machine.plan(at, Event::Due(cpu, plan));
    }

    fn due(&mut self, cpu: CpuId) {
        self.machine.account(cpu);
        self.machine.replan(cpu);
        let it = self.machine.cpu(cpu);
        let Some(thread) = it.current else { return };
        let turn_is_over = it.turn == Some(0);
        self.on(cpu, Some(thread), |kernel| {
            if kernel.machine.thread(thread).left == 0 {
                kernel.step(cpu, thread);
            }
            if turn_is_over && kernel.machine.cpu(cpu).current == Some(thread) {
                kernel.choose(cpu, None);
            }
        });
    }

    /// Does the next step of the CPU's thread, which has done its last one.
    fn step(&mut self, cpu: CpuId, thread: ThreadId) {
        if self.machine.thread(thread).pending {
            return self.do_pending(cpu, thread);
        }
        let now = self.machine.now;
        let next = self.workload.step(thread, now, &mut self.effects);
        self.machine.thread_mut(thread).works_for = self.workload.works_for(thread);
        if next == Next::Exit {
            self.class.begin_exit(thread);
        }
        let mut woken = self.take_effect();
        let takes = woken.first().map_or(0, |it| self.wake_takes(it.0));
        if takes == 0 && woken.iter().all(|it| self.wake_takes(it.0) == 0) {
            for (thread, works_for) in woken.drain(..) {
                self.wake_for(thread, works_for);
            }
            self.go_on(cpu, thread, next);
        } else {
            let pending = &mut self.pending[thread.index()];
            pending.woken.extend(woken.drain(..));
            pending.next = Some(next);
            self.machine.thread_mut(thread).pending = true;
            self.machine.charge(cpu, takes);
        }
        self.effects.woken = woken;
    }

    /// Does what is pending before the thread's next step.
    fn do_pending(&mut self, cpu: CpuId, thread: ThreadId) {
        let number = thread.index();
        if let Some((woken, works_for)) = self.pending[number].woken.pop_front() {
            self.wake_for(woken, works_for);
            let pending = &mut self.pending[number];
            if let Some(&(next, _)) = pending.woken.front() {
                let takes = self.wake_takes(next);
                self.machine.charge(cpu, takes);
            } else if let Some(next) = pending.next.take() {
                self.machine.thread_mut(thread).pending = pending.emulates.is_some();
                self.go_on(cpu, thread, next);
            }
        } else if let Some(mailbox) = self.pending[number].emulates {
            let next = self.emulate(mailbox, thread);
            self.go_on(cpu, thread, next);
        }
    }

    /// Makes a running thread do what comes next.
    pub fn go_on(&mut self, cpu: CpuId, thread: ThreadId, next: Next) {
        let sleep = match next {
            Next::Run(time) | Next::Spin(time) => {
                let it = self.machine.thread_mut(thread);
                it.left = time;
                it.timed = matches!(next, Next::Spin(_));
                return;
            }
            Next::Exchange(takes) if self.emulated => {
                self.machine.exit(cpu);
                let due = self.workload.works_for(thread);
                let due = due.unwrap_or(self.machine.now);
                self.asked.push((thread, due, takes));
                None
            }
            Next::Sleep(time) | Next::Exchange(time) => {
                // Setting the timer is a VM exit in a guest.
                self.machine.exit(cpu);
                Some(time)
            }
            Next::Block => None,
            Next::Exit => {
                self.machine.thread_mut(thread).state = State::Ended;
                self.machine.set_current(cpu, None);
                self.class.exit(&mut self.machine, cpu, thread);
                return self.choose(cpu, Some(thread));
            }
        };
        self.machine.thread_mut(thread).state = State::Blocked;
        self.machine.set_current(cpu, None);
        self.class.block(&mut self.machine, cpu, thread);
        if let Some(time) = sleep {
            // A timer goes off on the CPU that set it.
            let event = Event::Interrupt(cpu, Interrupt::Slept(thread));
            self.machine.plan(self.machine.now + time, event);
        }
        self.choose(cpu, Some(thread));
    }

    /// Has the class pick a CPU's next thread, and switches. `blocked` is the thread that ran there until it
    /// blocked or ended.
    fn choose(&mut self, cpu: CpuId, blocked: Option<ThreadId>) {
        self.machine.account(cpu);
        let ran = self.machine.cpu(cpu).current;
        let picked = self.class.pick(&mut self.machine, cpu, ran);
        let thread = picked.map(|pick| pick.thread);
        if thread != ran {
            if let Some(ran) = ran {
                let now = self.machine.now;
                let ran = self.machine.thread_mut(ran);
                ran.state = State::Ready;
                ran.ready_since = now;
            }
            self.switch(cpu, thread);
        }
        self.machine.cpu_mut(cpu).turn = picked.and_then(|Pick { turn, .. }| turn);
        self.machine.replan(cpu);
        if thread == ran && blocked.is_none() {
            return;
        }
        self.switches += 1;
        let left = ran.map(|ran| (ran, true)).or(blocked.map(|it| (it, false)));
        let at = self.machine.cpu(cpu).started.max(self.machine.now);
        if let Some((left, _)) = left {
            self.machine.thread_mut(left).left_at = at;
        }
        if !self.observers.is_empty() {
            let next = thread;
            self.tell(at, Happening::Switch { cpu, left, next });
        }
    }

    fn tell(&mut self, at: Nanos, happening: Happening) {
        let now = self.machine.now;
        for observer in &mut self.observers {
            observer(now, at, happening);
        }
    }

    fn switch(&mut self, cpu: CpuId, thread: Option<ThreadId>) {
        self.machine.set_current(cpu, thread);
        let Some(thread) = thread else { return };
        let (now, costs) = (self.machine.now, self.machine.costs);
        let runs = self.machine.thread_mut(thread);
        debug_assert_eq!(runs.state, State::Ready, "it runs elsewhere or is blocked");
        let (from, left_at) = (std::mem::replace(&mut runs.cpu, cpu), runs.left_at);
        runs.state = State::Running(cpu);
        runs.waited += now - runs.ready_since;
        let moved = if from == cpu {
            0
        } else if self.machine.share_cache(from, cpu) {
            costs.migrate
        } else {
            costs.migrate_far
        };
        let it = self.machine.cpu_mut(cpu);
        // The thread cannot run here before the CPU that it left has switched.
        it.started = it.started.max(now).max(left_at);
        self.machine.charge(cpu, costs.switch + moved);
        self.plan_tick(cpu);
    }
}
