//! Runs it: one event after the other.

use crate::class::{Class, Pick};
use crate::events::Nanos;
use crate::machine::{Costs, Event, Machine, State, Thread, ThreadId};
use crate::program::Code;
use crate::workload::{Answer, Effects, Next, Request, Workload};
use quell_model::config::ThreadProgram;
use quell_model::{CpuId, CpuSet, Topology};

/// The requests of a tenant, by when they are due.
pub type Load = Box<dyn Iterator<Item = Request>>;

/// A machine, its scheduler and what runs on it.
pub struct Simulation {
    machine: Machine,
    class: Box<dyn Class>,
    workload: Workload,
    /// Each tenant's load, and its next request.
    loads: Vec<Option<(Load, Request)>>,
    /// CPU time that each thread uses before its next step, when it has a CPU.
    left: Vec<Nanos>,
    effects: Effects,
    answers: Vec<Answer>,
    events: u64,
}

impl Simulation {
    /// An idle machine.
    pub fn new(topology: Topology, costs: Costs, class: Box<dyn Class>) -> Simulation {
        Simulation {
            machine: Machine::new(topology, costs),
            class,
            workload: Workload::default(),
            loads: Vec::new(),
            left: Vec::new(),
            effects: Effects::default(),
            answers: Vec::new(),
            events: 0,
        }
    }

    /// Adds a tenant whose threads run checked programs, ready from now on; gives its index.
    pub fn add_tenant(&mut self, programs: &[ThreadProgram], load: Option<Load>) -> usize {
        let cpus = self.machine.cpus.len() as u32;
        let tenant = self.workload.add_tenant(Code::compile(programs, cpus));
        let mut index = 0;
        for (number, program) in programs.iter().enumerate() {
            for _ in 0..program.count.on(cpus) {
                let spin = (program.spin_us * 1e3) as Nanos;
                self.workload.add_thread(tenant, number, index, spin);
                self.add_thread(tenant);
                index += 1;
            }
        }
        let mut load = load;
        let first = load.as_mut().and_then(|load| load.next());
        self.loads.push(load.zip(first));
        if let Some(request) = first {
            let due = request.due.max(self.machine.now);
            self.machine.events.plan(due, Event::Arrival(tenant));
        }
        tenant
    }

    fn add_thread(&mut self, tenant: usize) {
        let number = self.machine.threads.len() as u32;
        let cpus = self.machine.cpus.len() as u32;
        self.machine.threads.push(Thread {
            tenant,
            allowed: None,
            state: State::Blocked,
            cpu: CpuId(number % cpus),
            ran: 0,
            works_for: None,
        });
        self.left.push(0);
        self.wake(ThreadId(number));
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

    /// How many events have happened.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Goes on until then; gives the requests answered meanwhile.
    pub fn run_until(&mut self, end: Nanos) -> Vec<Answer> {
        while let Some((at, event)) = self.machine.events.next_until(end) {
            self.machine.now = at;
            self.events += 1;
            self.handle(event);
        }
        self.machine.now = end;
        for cpu in self.machine.cpu_ids() {
            self.account(cpu);
        }
        std::mem::take(&mut self.answers)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrival(tenant) => self.arrive(tenant),
            Event::Due(cpu, plan) if plan == self.machine.cpu(cpu).plan => self.due(cpu),
            Event::Due(..) => {}
            Event::Kick(cpu) => {
                self.machine.cpu_mut(cpu).kicked = false;
                self.on(cpu, |simulation| simulation.choose(cpu));
            }
            Event::Slept(thread) => self.wake(thread),
            Event::Timer(token) => self.class.timer(&mut self.machine, token),
        }
    }

    /// Does what a CPU does itself.
    fn on(&mut self, cpu: CpuId, work: impl FnOnce(&mut Simulation)) {
        let before = self.machine.here.replace(cpu);
        work(self);
        self.machine.here = before;
    }

    fn arrive(&mut self, tenant: usize) {
        let Some((load, request)) = &mut self.loads[tenant] else {
            return;
        };
        let arrived = *request;
        match load.next() {
            Some(next) => {
                *request = next;
                let due = next.due.max(self.machine.now);
                self.machine.events.plan(due, Event::Arrival(tenant));
            }
            None => self.loads[tenant] = None,
        }
        self.workload.arrive(tenant, arrived, &mut self.effects);
        self.take_effect();
    }

    /// Blocked to ready.
    fn wake(&mut self, thread: ThreadId) {
        self.machine.thread_mut(thread).state = State::Ready;
        self.class.wake(&mut self.machine, thread);
    }

    /// Wakes and pokes whom a step or an arrival did.
    fn take_effect(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        self.answers.append(&mut effects.answers);
        for thread in effects.poked.drain(..) {
            self.poke(thread);
        }
        for (thread, works_for) in effects.woken.drain(..) {
            if works_for.is_some() {
                self.machine.thread_mut(thread).works_for = works_for;
            }
            if let Some(here) = self.machine.here {
                self.machine.cpu_mut(here).debt += self.machine.costs.wake;
            }
            self.wake(thread);
        }
        // Its vectors keep their room.
        self.effects = effects;
    }

    /// A spinning thread looks: now, or when it has a CPU again.
    fn poke(&mut self, thread: ThreadId) {
        let cpu = match self.machine.thread(thread).state {
            State::Running(cpu) => cpu,
            _ => return self.spun(thread),
        };
        self.account(cpu);
        self.spun(thread);
        self.plan(cpu);
    }

    fn spun(&mut self, thread: ThreadId) {
        let left = std::mem::take(&mut self.left[thread.index()]);
        self.workload.spun(thread, left);
    }

    /// Counts what the CPU's thread ran since it was last counted.
    fn account(&mut self, cpu: CpuId) {
        let now = self.machine.now;
        let it = self.machine.cpu_mut(cpu);
        let Some(thread) = it.current else { return };
        let ran = now.saturating_sub(it.started);
        it.started = it.started.max(now);
        it.busy += ran;
        self.machine.thread_mut(thread).ran += ran;
        let left = &mut self.left[thread.index()];
        *left = left.saturating_sub(ran);
    }

    /// Plans when the CPU's thread comes to its next step or to the end of its turn.
    fn plan(&mut self, cpu: CpuId) {
        let it = self.machine.cpu_mut(cpu);
        let Some(thread) = it.current else { return };
        it.started += std::mem::take(&mut it.debt);
        it.plan = it.plan.wrapping_add(1);
        let plan = it.plan;
        let due = it.started + self.left[thread.index()];
        let at = it.turn_end.map_or(due, |end| end.min(due));
        let at = at.max(self.machine.now);
        self.machine.events.plan(at, Event::Due(cpu, plan));
    }

    fn due(&mut self, cpu: CpuId) {
        self.account(cpu);
        let it = self.machine.cpu(cpu);
        let Some(thread) = it.current else { return };
        let turn_is_over = it.turn_end.is_some_and(|end| end <= self.machine.now);
        self.on(cpu, |simulation| {
            if simulation.left[thread.index()] == 0 {
                simulation.step(cpu, thread);
            }
            if turn_is_over && simulation.machine.cpu(cpu).current == Some(thread) {
                simulation.choose(cpu);
            }
        });
    }

    /// Lets the CPU's thread go on.
    fn step(&mut self, cpu: CpuId, thread: ThreadId) {
        let next = self
            .workload
            .step(thread, self.machine.now, &mut self.effects);
        self.machine.thread_mut(thread).works_for = self.workload.works_for(thread);
        self.left[thread.index()] = match next {
            Next::Run(time) | Next::Spin(time) => time,
            Next::Sleep(_) | Next::Block => 0,
        };
        match next {
            Next::Run(_) | Next::Spin(_) => {
                self.take_effect();
                self.plan(cpu);
            }
            Next::Sleep(_) | Next::Block => {
                self.machine.thread_mut(thread).state = State::Blocked;
                self.machine.cpu_mut(cpu).current = None;
                self.class.block(&mut self.machine, cpu, thread);
                if let Next::Sleep(time) = next {
                    let end = self.machine.now + time;
                    self.machine.events.plan(end, Event::Slept(thread));
                }
                self.take_effect();
                self.choose(cpu);
            }
        }
    }

    /// Asks the class who is to run there, and switches.
    fn choose(&mut self, cpu: CpuId) {
        self.account(cpu);
        let now = self.machine.now;
        let ran = self.machine.cpu(cpu).current;
        let picked = self.class.pick(&mut self.machine, cpu, ran);
        let thread = picked.map(|pick| pick.thread);
        if thread != ran {
            if let Some(ran) = ran {
                self.machine.thread_mut(ran).state = State::Ready;
            }
            let switch = self.machine.costs.switch;
            let it = self.machine.cpu_mut(cpu);
            it.plan = it.plan.wrapping_add(1);
            it.current = thread;
            it.started = now;
            if thread.is_some() {
                it.debt += switch;
            } else {
                it.debt = 0;
            }
            if let Some(thread) = thread {
                let runs = self.machine.thread_mut(thread);
                debug_assert_eq!(runs.state, State::Ready, "it runs elsewhere or is blocked");
                runs.cpu = cpu;
                runs.state = State::Running(cpu);
            }
        }
        if let Some(Pick { turn, .. }) = picked {
            let it = self.machine.cpu_mut(cpu);
            it.turn_end = turn.map(|turn| it.started.max(now) + it.debt + turn);
            self.plan(cpu);
        }
    }
}
