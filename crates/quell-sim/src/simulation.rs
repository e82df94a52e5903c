//! Runs it: one event after the other.

use crate::class::{Class, Pick};
use crate::events::Nanos;
use crate::machine::{Costs, Event, Group, GroupId, Interrupt, Machine, State, Thread, ThreadId};
use crate::program::Code;
use crate::replay::{Act, Replay};
use crate::workload::{Answer, Effects, Next, Request, Workload};
use quell_model::config::ThreadProgram;
use quell_model::{CpuId, CpuSet, Nice, TenantWeight, Topology};
use quell_sched::ThreadSetting;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;

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

/// A machine, its scheduler and what runs on it.
pub struct Simulation {
    machine: Machine,
    class: Box<dyn Class>,
    workload: Workload,
    /// What threads do where that is no tenant's programs.
    replay: Option<Replay>,
    /// Each tenant's load, and its next request.
    loads: Vec<Option<(Load, Request)>>,
    effects: Effects,
    /// By thread, what its last step did that is not done yet.
    pending: Vec<Pending>,
    answers: Vec<Answer>,
    events: u64,
    noise: ChaCha8Rng,
    observers: Vec<Observer>,
}

/// Waking takes time: threads that a step wakes are woken one after the other, and then the thread goes on.
#[derive(Default)]
struct Pending {
    woken: VecDeque<(ThreadId, Option<Nanos>)>,
    next: Option<Next>,
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

impl Simulation {
    /// An idle machine.
    pub fn new(topology: Topology, costs: Costs, class: Box<dyn Class>) -> Simulation {
        let mut simulation = Simulation {
            machine: Machine::new(topology, costs),
            class,
            workload: Workload::default(),
            replay: None,
            loads: Vec::new(),
            effects: Effects::default(),
            pending: Vec::new(),
            answers: Vec::new(),
            events: 0,
            observers: Vec::new(),
            noise: ChaCha8Rng::seed_from_u64(0),
        };
        if costs.noise_every > 0 {
            for cpu in simulation.machine.cpu_ids() {
                simulation.plan_noise(cpu);
            }
        }
        simulation
    }

    /// Adds a cgroup; gives its number.
    pub fn add_group(&mut self, parent: GroupId, weight: TenantWeight) -> GroupId {
        let groups = &mut self.machine.groups;
        groups.push(Group {
            parent: Some(parent),
            weight,
        });
        GroupId(groups.len() as u32 - 1)
    }

    /// Adds a tenant whose threads are ready from now on; gives its index.
    pub fn add_tenant(&mut self, tenant: Tenant<'_>) -> usize {
        let Tenant {
            programs,
            mut load,
            group,
            nice,
        } = tenant;
        let cpus = self.machine.cpus.len() as u32;
        let number = self.workload.add_tenant(Code::compile(programs, cpus));
        let mut index = 0;
        for (program, spec) in programs.iter().enumerate() {
            for _ in 0..spec.count.on(cpus) {
                let spin = (spec.spin_us * 1e3) as Nanos;
                self.workload.add_thread(number, program, index, spin);
                self.add_thread(number, group, nice);
                index += 1;
            }
        }
        let first = load.as_mut().and_then(|load| load.next());
        self.loads.push(load.zip(first));
        if let Some(request) = first {
            self.plan_arrival(number, request);
        }
        number
    }

    /// Adds a process whose threads do what these acts say, each once it is woken: by another's [`Act::Wake`], or at one of
    /// the times of `interrupts`, which name threads and are in order. A simulation has tenants or processes, not both.
    pub fn add_process(
        &mut self,
        threads: Vec<(Nice, Vec<Act>)>,
        interrupts: Vec<(Nanos, ThreadId)>,
    ) {
        let process = self.loads.len();
        let replay = self.replay.get_or_insert_default();
        for (nice, acts) in threads {
            replay.add_thread(acts);
            let cpu = CpuId(self.machine.threads.len() as u32 % self.machine.cpus.len() as u32);
            self.machine.threads.push(Thread {
                tenant: process,
                group: GroupId::ROOT,
                nice,
                allowed: None,
                state: State::Blocked,
                cpu,
                ran: 0,
                works_for: None,
                left: 0,
            });
            self.pending.push(Pending::default());
        }
        let mut load: Load = Box::new(interrupts.into_iter().map(|(due, thread)| Request {
            due,
            seed: u64::from(thread.0),
        }));
        let first = load.next();
        self.loads.push(first.map(|first| (load, first)));
        if let Some(request) = first {
            self.plan_arrival(process, request);
        }
    }

    fn add_thread(&mut self, tenant: usize, group: GroupId, nice: Nice) {
        let number = self.machine.threads.len() as u32;
        let cpus = self.machine.cpus.len() as u32;
        self.machine.threads.push(Thread {
            tenant,
            group,
            nice,
            allowed: None,
            state: State::Blocked,
            cpu: CpuId(number % cpus),
            ran: 0,
            works_for: None,
            left: 0,
        });
        self.pending.push(Pending::default());
        self.wake(ThreadId(number));
    }

    /// Tells of what happens from now on, beside others who are told.
    pub fn observe(&mut self, observer: Observer) {
        self.observers.push(observer);
    }

    /// Tells the class what is wanted of a thread; false if it has no such setting.
    pub fn set_thread(&mut self, thread: ThreadId, setting: ThreadSetting) -> bool {
        self.class.set_thread(&mut self.machine, thread, setting)
    }

    /// Limits where a thread may run, from when it next gets a CPU on.
    pub fn restrict(&mut self, thread: ThreadId, allowed: CpuSet) {
        self.machine.thread_mut(thread).allowed = Some(allowed);
    }

    /// The machine as of now.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Rounds that a tenant's threads have done.
    pub fn rounds(&self, tenant: usize) -> u64 {
        self.workload.rounds(tenant)
    }

    /// The requests that arrived and have no answer: their tenants, and when they were due.
    pub fn unanswered(&self) -> impl Iterator<Item = (usize, Nanos)> + '_ {
        self.workload.unanswered()
    }

    /// The tenant of which a thread can never go on, and who waits for what there.
    pub fn deadlock(&self) -> Option<(usize, String)> {
        self.workload.deadlock()
    }

    /// How many events have happened; superseded plans are none.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Goes on until then; gives the requests answered meanwhile.
    pub fn run_until(&mut self, end: Nanos) -> Vec<Answer> {
        while let Some((at, event)) = self.machine.events.next_until(end) {
            self.machine.now = at;
            if let Event::Due(cpu, plan) = event {
                if plan != self.machine.cpu(cpu).plan {
                    continue; // Superseded.
                }
            }
            self.events += 1;
            self.handle(event);
            while let Some(cpu) = self.machine.stale.pop() {
                self.plan(cpu);
            }
        }
        self.machine.now = end;
        for cpu in self.machine.cpu_ids() {
            self.machine.account(cpu);
        }
        std::mem::take(&mut self.answers)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Due(cpu, _) => self.due(cpu),
            Event::Kick(cpu) => {
                self.machine.cpu_mut(cpu).kicked = false;
                self.on(cpu, None, |simulation| simulation.choose(cpu, None));
            }
            Event::Interrupt(cpu, interrupt) if self.interrupt_takes(interrupt) > 0 => {
                match interrupt {
                    Interrupt::Arrival(_) => self.generate(cpu, self.machine.costs.request),
                    _ => self.machine.charge(cpu, self.machine.costs.interrupt),
                }
                let at = self.machine.cpu(cpu).started;
                self.machine.events.plan(at, Event::Handle(cpu, interrupt));
            }
            Event::Interrupt(cpu, interrupt) | Event::Handle(cpu, interrupt) => {
                self.on(cpu, None, |simulation| match interrupt {
                    Interrupt::Arrival(tenant) => simulation.arrive(tenant as usize),
                    Interrupt::Slept(thread) => simulation.wake(thread),
                    Interrupt::Timer(token) => {
                        simulation.class.timer(&mut simulation.machine, token);
                    }
                });
            }
            Event::Tick(cpu) => self.tick(cpu),
            Event::Noise(cpu) => {
                self.machine.charge(cpu, self.machine.costs.noise);
                self.plan_noise(cpu);
            }
        }
    }

    /// Does what a CPU does itself, for a thread or in an interrupt.
    fn on(&mut self, cpu: CpuId, by: Option<ThreadId>, work: impl FnOnce(&mut Simulation)) {
        let before = (self.machine.here, self.machine.by);
        (self.machine.here, self.machine.by) = (Some(cpu), by);
        work(self);
        (self.machine.here, self.machine.by) = before;
    }

    fn interrupt_takes(&self, interrupt: Interrupt) -> Nanos {
        match interrupt {
            Interrupt::Arrival(_) => self.machine.costs.request,
            Interrupt::Slept(_) | Interrupt::Timer(_) => self.machine.costs.interrupt,
        }
    }

    fn plan_noise(&mut self, cpu: CpuId) {
        let mean = self.machine.costs.noise_every as f64;
        let pause = -(1.0 - self.noise.random::<f64>()).ln() * mean;
        let at = self.machine.now + pause as Nanos;
        self.machine.events.plan(at, Event::Noise(cpu));
    }

    /// Ticks come at the same times on all CPUs, while they run something.
    fn plan_tick(&mut self, cpu: CpuId) {
        let every = self.machine.costs.tick_every;
        if every > 0 && !std::mem::replace(&mut self.machine.cpu_mut(cpu).ticks, true) {
            let next = (self.machine.now / every + 1) * every;
            self.machine.events.plan(next, Event::Tick(cpu));
        }
    }

    fn tick(&mut self, cpu: CpuId) {
        self.machine.cpu_mut(cpu).ticks = false;
        if self.machine.cpu(cpu).current.is_none() {
            return;
        }
        self.machine.charge(cpu, self.machine.costs.tick);
        self.plan_tick(cpu);
        self.on(cpu, None, |simulation| {
            simulation.class.tick(&mut simulation.machine, cpu);
        });
    }

    /// The CPU whose device, or load generator, is a tenant's: each has one, as queues of network cards do.
    fn device_of(&self, tenant: usize) -> CpuId {
        CpuId((tenant % self.machine.cpus.len()) as u32)
    }

    /// A request comes in, or an answer goes out: who runs there goes on afterwards.
    fn generate(&mut self, cpu: CpuId, takes: Nanos) {
        let it = self.machine.cpu(cpu);
        let (current, from) = (it.current, it.started.max(self.machine.now));
        self.machine.charge(cpu, takes);
        let until = self.machine.cpu(cpu).started;
        if let Some(thread) = current.filter(|_| self.machine.costs.generators && takes > 0) {
            let (left, next) = (Some((thread, true)), None);
            self.tell(from, Happening::Switch { cpu, left, next });
            let (left, next) = (None, Some(thread));
            self.tell(until, Happening::Switch { cpu, left, next });
        }
    }

    fn answered(&mut self) {
        let costs = self.machine.costs;
        if costs.answer > 0 {
            for number in 0..self.effects.answers.len() {
                let device = self.device_of(self.effects.answers[number].tenant);
                let cpu = self.machine.here.filter(|_| !costs.generators);
                self.generate(cpu.unwrap_or(device), costs.answer);
            }
        }
        self.answers.append(&mut self.effects.answers);
    }

    fn plan_arrival(&mut self, tenant: usize, request: Request) {
        let due = request.due.max(self.machine.now);
        let cpu = self.device_of(tenant);
        let arrival = Interrupt::Arrival(tenant as u32);
        self.machine
            .events
            .plan(due, Event::Interrupt(cpu, arrival));
    }

    fn arrive(&mut self, tenant: usize) {
        let Some((load, request)) = &mut self.loads[tenant] else {
            return;
        };
        let arrived = *request;
        match load.next() {
            Some(next) => {
                *request = next;
                self.plan_arrival(tenant, next);
            }
            None => self.loads[tenant] = None,
        }
        match &mut self.replay {
            Some(replay) => replay.arrive(arrived, &mut self.effects),
            None => self.workload.arrive(tenant, arrived, &mut self.effects),
        }
        let mut effects = self.take_effect();
        for (thread, works_for) in effects.drain(..) {
            if let Some(here) = self.machine.here {
                self.machine.charge(here, self.machine.costs.wake);
            }
            self.wake_for(thread, works_for);
        }
        self.effects.woken = effects;
    }

    /// Blocked to ready.
    fn wake(&mut self, thread: ThreadId) {
        self.machine.thread_mut(thread).state = State::Ready;
        if !self.observers.is_empty() {
            let cpu = self.machine.here.unwrap_or(CpuId(0));
            let by = self.machine.by;
            let now = self.machine.now;
            self.tell(now, Happening::Wakeup { thread, by, cpu });
        }
        self.class.wake(&mut self.machine, thread);
    }

    /// A thread that waits, or is about to, is woken, perhaps to work for another request.
    fn wake_for(&mut self, thread: ThreadId, works_for: Option<Nanos>) {
        let it = self.machine.thread_mut(thread);
        if works_for.is_some() {
            it.works_for = works_for;
        }
        if it.state == State::Blocked {
            self.wake(thread);
        } else if let Some(next) = &mut self.pending[thread.index()].next {
            // On its way to sleep: it looks again instead.
            *next = Next::Spin(0);
        }
    }

    /// Does what a step or an arrival did but for waking; gives who is to be woken.
    fn take_effect(&mut self) -> Vec<(ThreadId, Option<Nanos>)> {
        self.answered();
        let mut poked = std::mem::take(&mut self.effects.poked);
        for thread in poked.drain(..) {
            self.poke(thread);
        }
        self.effects.poked = poked;
        std::mem::take(&mut self.effects.woken)
    }

    /// A spinning thread looks: now, or when it has a CPU again.
    fn poke(&mut self, thread: ThreadId) {
        if let State::Running(cpu) = self.machine.thread(thread).state {
            self.machine.account(cpu);
            self.machine.replan(cpu);
        }
        let left = match &mut self.pending[thread.index()].next {
            // It has not begun to.
            Some(Next::Spin(time)) => std::mem::take(time),
            _ => std::mem::take(&mut self.machine.thread_mut(thread).left),
        };
        self.workload.spun(thread, left);
    }

    /// Plans when the CPU's thread comes to its next step or to the end of its turn.
    fn plan(&mut self, cpu: CpuId) {
        let it = self.machine.cpu_mut(cpu);
        it.stale = false;
        it.plan = it.plan.wrapping_add(1);
        let Some(thread) = it.current else { return };
        let (plan, started, turn) = (it.plan, it.started, it.turn);
        let left = self.machine.thread(thread).left;
        let next = turn.map_or(left, |turn| turn.min(left));
        let at = (started + next).max(self.machine.now);
        self.machine.events.plan(at, Event::Due(cpu, plan));
    }

    fn due(&mut self, cpu: CpuId) {
        self.machine.account(cpu);
        self.machine.replan(cpu);
        let it = self.machine.cpu(cpu);
        let Some(thread) = it.current else { return };
        let turn_is_over = it.turn == Some(0);
        self.on(cpu, Some(thread), |simulation| {
            if simulation.machine.thread(thread).left == 0 {
                simulation.step(cpu, thread);
            }
            if turn_is_over && simulation.machine.cpu(cpu).current == Some(thread) {
                simulation.choose(cpu, None);
            }
        });
    }

    /// Lets the CPU's thread go on.
    fn step(&mut self, cpu: CpuId, thread: ThreadId) {
        let number = thread.index();
        if let Some((woken, works_for)) = self.pending[number].woken.pop_front() {
            self.wake_for(woken, works_for);
            let pending = &mut self.pending[number];
            if !pending.woken.is_empty() {
                self.machine.charge(cpu, self.machine.costs.wake);
            } else if let Some(next) = pending.next.take() {
                self.go_on(cpu, thread, next);
            }
            return;
        }
        let now = self.machine.now;
        let next = match &mut self.replay {
            Some(replay) => replay.step(thread, &mut self.effects),
            None => {
                let next = self.workload.step(thread, now, &mut self.effects);
                self.machine.thread_mut(thread).works_for = self.workload.works_for(thread);
                next
            }
        };
        let mut woken = self.take_effect();
        if self.machine.costs.wake == 0 || woken.is_empty() {
            for (thread, works_for) in woken.drain(..) {
                self.wake_for(thread, works_for);
            }
            self.go_on(cpu, thread, next);
        } else {
            self.pending[number].woken.extend(woken.drain(..));
            self.pending[number].next = Some(next);
            self.machine.charge(cpu, self.machine.costs.wake);
        }
        self.effects.woken = woken;
    }

    fn go_on(&mut self, cpu: CpuId, thread: ThreadId, next: Next) {
        let sleep = match next {
            Next::Run(time) | Next::Spin(time) => {
                self.machine.thread_mut(thread).left = time;
                return;
            }
            Next::Sleep(time) => Some(time),
            Next::Block => None,
        };
        self.machine.thread_mut(thread).state = State::Blocked;
        self.machine.set_current(cpu, None);
        self.class.block(&mut self.machine, cpu, thread);
        if let Some(time) = sleep {
            // A timer goes off where it was set.
            let event = Event::Interrupt(cpu, Interrupt::Slept(thread));
            self.machine.events.plan(self.machine.now + time, event);
        }
        self.choose(cpu, Some(thread));
    }

    /// Asks the class who is to run there, and switches. `blocked` ran there until now.
    fn choose(&mut self, cpu: CpuId, blocked: Option<ThreadId>) {
        self.machine.account(cpu);
        let ran = self.machine.cpu(cpu).current;
        let picked = self.class.pick(&mut self.machine, cpu, ran);
        let thread = picked.map(|pick| pick.thread);
        if thread != ran {
            if let Some(ran) = ran {
                self.machine.thread_mut(ran).state = State::Ready;
            }
            self.switch(cpu, thread);
        }
        self.machine.cpu_mut(cpu).turn = picked.and_then(|Pick { turn, .. }| turn);
        self.machine.replan(cpu);
        if !self.observers.is_empty() && (thread != ran || blocked.is_some()) {
            let left = ran.map(|ran| (ran, true)).or(blocked.map(|it| (it, false)));
            let at = self.machine.cpu(cpu).started.max(self.machine.now);
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
        let costs = self.machine.costs;
        let runs = self.machine.thread_mut(thread);
        debug_assert_eq!(runs.state, State::Ready, "it runs elsewhere or is blocked");
        let from = std::mem::replace(&mut runs.cpu, cpu);
        runs.state = State::Running(cpu);
        let moved = if from == cpu {
            0
        } else if self.machine.share_cache(from, cpu) {
            costs.migrate
        } else {
            costs.migrate_far
        };
        let now = self.machine.now;
        let it = self.machine.cpu_mut(cpu);
        it.started = it.started.max(now);
        self.machine.charge(cpu, costs.switch + moved);
        self.plan_tick(cpu);
    }
}
