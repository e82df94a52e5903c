//! Linux's fair class: CFS of 6.1, EEVDF of 6.12 and of 7.2 (kernel/sched/fair.c; this is a model of what it
//! does, with none of its code).
//!
//! Problem: the gain of another scheduler depends on what it is compared with, and a fair class with perfect
//! knowledge and free balancing is better than the real one. Approach: the mechanisms of the real one, with
//! its constants as distributions have them (HZ 250): group weights from decaying averages of load
//! ([`groups`], [`pelt`]), a queue per group and CPU ([`entity`], [`hierarchy`]), the search for an idle CPU
//! at wakeup with its limits ([`place`]), and load balancing at ticks and by newly idle CPUs, with its costs
//! and thresholds ([`balance`]).
//!
//! Differences between the versions:
//!
//! | | 6.1 | 6.12 | 7.2 |
//! |---|---|---|---|
//! | pick | least virtual time | earliest virtual deadline of the eligible | as 6.12 |
//! | a slice ends | at a tick | at a tick | on time (HRTICK) |
//! | group weights are updated | at ticks | at ticks | also at the ends of slices |
//! | a wakeup preempts another CPU | at once | at once | at its next tick or system call (PREEMPT_LAZY) |
//! | reweighting a group's entity keeps | its virtual time | its lag | its lag and its protection |
//! | newly idle CPUs balance | if they idle long enough | and as often as it succeeds | as 6.12 |
//!
//! Slices are those of programs that compute. A real thread that reads its own CPU clock by a system call, in
//! a loop, ends its slice there (6.12, 7.2), and may be preempted there.
//!
//! The machine needs ticks ([`crate::Costs::tick_every`]): without them slices of 6.1 and 6.12 do not end,
//! and nothing is balanced. Threads of the idle policy weigh 3 and are preempted by all others, and a CPU
//! with only such threads counts as idle at a wakeup. Slices that threads ask for count since 6.12.
//!
//! Limits: no bandwidth limits, idle groups, autogroups, NUMA balancing, CPU capacities (different ones, or
//! lowered by interrupts), energy-aware scheduling, core scheduling, clusters of cores below a last-level
//! cache, or WF_SYNC wakeups.

mod balance;
mod entity;
mod groups;
mod hierarchy;
mod map;
mod pelt;
mod place;

use super::{Class, Pick};
use crate::events::Nanos;
use crate::machine::{Machine, State, ThreadId};
use entity::{Entity, Id, NICE_0, Queue, QueueId, virtually};
use hierarchy::Enter;
use quell_model::CpuId;
use quell_scenario::ThreadPolicy;

/// The jiffy in ns, the unit of the intervals of ticks and balancing.
const TICK: Nanos = 4_000_000;
/// The shortest time to a planned end of a slice, in ns (hrtick_start).
const SHORTEST: Nanos = 10_000;
/// How many threads CFS's latency has room for; with more, a period is longer than the latency
/// (sched_nr_latency).
const CFS_LATENCY_SLICES: u64 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Cfs61,
    Eevdf612,
    Eevdf72,
}

impl Version {
    fn is_eevdf(self) -> bool {
        self != Version::Cfs61
    }

    /// Slices end on time (HRTICK), not at ticks.
    fn is_precise(self) -> bool {
        self == Version::Eevdf72
    }

    /// A CPU whose thread is to be preempted from another CPU reschedules at its next tick only.
    fn is_lazy(self) -> bool {
        self == Version::Eevdf72
    }

    /// The running entity stays protected when its group's entity is reweighted.
    fn keeps_protection(self) -> bool {
        self == Version::Eevdf72
    }

    /// A wakeup preempts only if a pick would choose the woken entity, buddies included; a delayed entity
    /// that would be picked first is dequeued.
    fn wakes_as_it_picks(self) -> bool {
        self == Version::Eevdf72
    }

    /// A delayed entity has no less lag when it is dequeued than when it fell asleep.
    fn keeps_lag_asleep(self) -> bool {
        self == Version::Eevdf72
    }
}

/// The state of a thread.
#[derive(Debug, Clone, Default)]
struct Task {
    entity: Entity,
    /// The queue of the thread's group on the thread's CPU.
    queue: QueueId,
    /// The CPU time that is accounted for in virtual times, in ns.
    counted: Nanos,
    /// When the thread last ran, in ns; 0 after a migration.
    ran_at: Nanos,
    /// The thread's load is part of its queue's load.
    attached: bool,
    /// The thread's index in its CPU's `tasks`.
    slot: usize,
    /// The CPU that the thread was on before its last wakeup (recent_used_cpu).
    recent: usize,
    waking: place::Waking,
    /// The estimated utilisation of the thread, of 1024 (UTIL_EST).
    expected: f64,
    /// The value of `expected` that the thread's CPU has counted.
    expected_there: f64,
}

/// The state of a CPU. The CPU's own queue (the root group's) has the CPU's number.
#[derive(Debug, Clone, Default)]
struct Cpu {
    /// The threads that run or wait on the CPU, in no order.
    tasks: Vec<usize>,
    /// The sum of these threads' estimated utilisations.
    expected: f64,
    /// The running thread is to be preempted at the next tick (TIF_NEED_RESCHED_LAZY).
    lazy: bool,
    /// The number of delayed threads in the CPU's queues.
    asleep: u32,
    /// The number of switches so far, modulo 2^16.
    choices: u16,
    /// The end of the running slice is planned.
    ends: bool,
    /// The groups' queues that have load left.
    listed: Vec<QueueId>,
    /// The threads that interrupts on the idle CPU have woken.
    waking: place::Waking,
    balancing: balance::Balancing,
}

/// A scheduling class after Linux's fair class.
#[derive(Debug)]
pub struct Fair {
    version: Version,
    /// EEVDF's slice, in ns (base_slice_ns).
    slice: Nanos,
    /// CFS's latency, in ns: the period in which each thread runs once.
    latency: Nanos,
    /// CFS's shortest slice, in ns.
    min_granularity: Nanos,
    /// CFS's wakeup granularity, in ns: how far behind a woken thread must be to preempt.
    wakeup_granularity: Nanos,
    /// Some thread has asked for a slice of its own.
    has_slices: bool,
    /// Some thread is of the idle policy.
    has_idle: bool,
    tasks: Vec<Task>,
    queues: Vec<Queue>,
    groups: Vec<groups::Shares>,
    cpus: Vec<Cpu>,
    map: map::Map,
    /// The CPU to which the last thread moved that might not stay on its own.
    distributed: usize,
    /// Scratch: the picked entities, from the CPU's own queue down.
    path: Vec<Id>,
}

impl Fair {
    /// CFS as of Linux 6.1.
    pub fn cfs_6_1() -> Fair {
        Fair::new(Version::Cfs61)
    }

    /// EEVDF as of Linux 6.12.
    pub fn eevdf_6_12() -> Fair {
        Fair::new(Version::Eevdf612)
    }

    /// EEVDF as of Linux 7.2.
    pub fn eevdf_7_2() -> Fair {
        Fair::new(Version::Eevdf72)
    }

    fn new(version: Version) -> Fair {
        Fair {
            version,
            slice: 0,
            latency: 0,
            min_granularity: 0,
            wakeup_granularity: 0,
            has_slices: false,
            has_idle: false,
            tasks: Vec::new(),
            queues: Vec::new(),
            groups: Vec::new(),
            cpus: Vec::new(),
            map: map::Map::default(),
            distributed: 0,
            path: Vec::new(),
        }
    }

    /// Sets up the state for a machine.
    fn build(&mut self, machine: &Machine) {
        let cpus = machine.cpus.len();
        // Constants grow with the logarithm of the number of CPUs, up to 8 (SCHED_TUNABLESCALING_LOG).
        let factor = u64::from(1 + cpus.clamp(1, 8).ilog2());
        self.slice = 700_000 * factor;
        self.latency = 6_000_000 * factor;
        self.min_granularity = 750_000 * factor;
        self.wakeup_granularity = 1_000_000 * factor;
        self.cpus = vec![Cpu::default(); cpus];
        self.map = map::Map::new(&machine.topology);
        for cpu in 0..cpus {
            self.cpus[cpu].balancing = balance::Balancing::new(&self.map, cpu);
        }
    }

    /// Updates the virtual times of the entities that run on a CPU (update_curr); returns whether the CPU
    /// should reschedule.
    fn update_current(&mut self, machine: &Machine, cpu: usize) -> bool {
        let mut queue = cpu;
        // The thread that runs is at the end of the chain of running entities.
        let thread = loop {
            match self.queues[queue].current {
                Some(Id::Thread(thread)) => break thread,
                Some(Id::Queue(own)) => queue = own,
                None => return false,
            }
        };
        let total = machine.cpu_time(Fair::thread_id(thread));
        let task = &mut self.tasks[thread];
        task.ran_at = machine.now;
        let ran = total - std::mem::replace(&mut task.counted, total);
        if ran == 0 {
            return false;
        }
        let (mut queue, mut resched) = (cpu, false);
        while let Some(id) = self.queues[queue].current {
            let entity = self.entity_mut(id);
            entity.ran += ran;
            entity.vruntime += virtually(ran, entity.weight);
            if self.version.is_eevdf() {
                let entity = self.entity_mut(id);
                let over = entity.vruntime >= entity.deadline;
                if over {
                    entity.deadline = entity.vruntime + virtually(entity.slice, entity.weight);
                }
                if self.queues[queue].entities > 1 && (over || self.is_fair_game(queue, id)) {
                    resched = true;
                    self.forget_next(id);
                }
            } else {
                self.raise_min(queue);
            }
            match id {
                Id::Thread(_) => break,
                Id::Queue(own) => queue = own,
            }
        }
        resched
    }

    /// A tick, or the end of a slice: also updates the averages of the running entities and the weights of
    /// their groups (entity_tick).
    fn weigh(&mut self, machine: &Machine, cpu: usize, thread: usize) -> bool {
        let resched = self.update_current(machine, cpu);
        let mut id = Id::Thread(thread);
        while let Some(queue) = self.home(id) {
            self.advance_entity(machine.now, id);
            self.advance_queue(machine.now, queue);
            if let Id::Queue(own) = id {
                self.update_share(own);
            }
            id = Id::Queue(queue);
        }
        resched
    }

    /// EEVDF: whether the running entity may be preempted before its deadline.
    fn is_fair_game(&self, queue: QueueId, id: Id) -> bool {
        let entity = self.entity(id);
        let protected = entity.vruntime < entity.protected;
        let precise = self.version.is_precise();
        !protected && (precise || !self.queues[queue].eligible(Some(entity), entity.vruntime))
    }

    /// Makes a CPU reschedule, at its next tick where preemption is lazy.
    fn resched(&mut self, machine: &mut Machine, cpu: usize) {
        let id = CpuId(cpu as u32);
        let busy = machine.cpu(id).current.is_some();
        if self.version.is_lazy() && busy && machine.here != Some(id) {
            self.cpus[cpu].lazy = true;
        } else {
            machine.kick(id);
        }
    }

    /// How long the thread that runs may go on until its deadline, in ns.
    fn left_of(&self, thread: usize) -> Nanos {
        let entity = &self.tasks[thread].entity;
        let left = (entity.deadline - entity.vruntime).max(1) as u128;
        let left = (left * u128::from(entity.weight) / u128::from(NICE_0)) as Nanos + 1;
        left.max(SHORTEST)
    }

    /// Whether the CPU has several threads, delayed ones included.
    fn is_contended(&self, cpu: usize) -> bool {
        let it = &self.cpus[cpu];
        it.tasks.len() + it.asleep as usize > 1
    }

    /// The token of the timer that ends the slice of a CPU's last switch.
    fn token(&self, cpu: usize) -> u32 {
        u32::from(self.cpus[cpu].choices) << 16 | cpu as u32
    }

    /// Plans the end of a CPU's slice when the running thread is no longer alone.
    fn plan_end(&mut self, machine: &mut Machine, cpu: usize) {
        if !self.version.is_precise() || self.cpus[cpu].ends || !self.is_contended(cpu) {
            return;
        }
        let Some(current) = machine.cpu(CpuId(cpu as u32)).current else {
            return;
        };
        self.cpus[cpu].ends = true;
        let at = machine.now + self.left_of(current.index());
        machine.set_timer(at, self.token(cpu));
    }

    /// Preempts the running thread if a thread that came to its CPU's queue is to run instead
    /// (wakeup_preempt).
    fn check_preempt(&mut self, machine: &mut Machine, thread: usize) {
        let cpu = self.queues[self.tasks[thread].queue].cpu;
        let it = machine.cpu(CpuId(cpu as u32));
        if it.current.is_none() {
            return machine.kick(CpuId(cpu as u32));
        }
        if it.kicked {
            return;
        }
        self.plan_end(machine, cpu);
        // The lowest queue that has both threads below it.
        let mut id = Id::Thread(thread);
        let (queue, current) = loop {
            let Some(queue) = self.home(id) else { return };
            match self.queues[queue].current {
                Some(current) => break (queue, current),
                None => id = Id::Queue(queue),
            }
        };
        if current == id || !self.entity(current).queued {
            return;
        }
        match (self.entity(current).idle, self.entity(id).idle) {
            (true, false) => {
                self.entity_mut(current).protected = i64::MIN;
                if !self.version.is_eevdf() {
                    self.set_next(id);
                }
                return self.resched(machine, cpu);
            }
            (false, true) => return,
            _ => {}
        }
        // Threads of the batch and idle policies preempt no other thread by waking.
        if machine.threads[thread].policy != ThreadPolicy::Other {
            return;
        }
        if self.version.is_eevdf() {
            if self.has_slices && self.cuts_short(queue, id, current) {
                self.entity_mut(current).protected = i64::MIN;
            }
            let buddies = self.version.wakes_as_it_picks();
            while let Some(first) = self.first(queue, buddies) {
                if first == id {
                    self.resched(machine, cpu);
                } else if buddies && self.entity(first).delayed {
                    self.finish(machine.now, first);
                    continue;
                }
                return;
            }
        } else if self.preempts(id, current) {
            self.set_next(id);
            let many = self.queues[queue].entities >= CFS_LATENCY_SLICES as u32;
            if many && matches!(current, Id::Thread(_)) {
                self.queues[queue].last = Some(current);
            }
            self.resched(machine, cpu);
        }
    }

    /// CFS: whether the running entity has had its slice (check_preempt_tick).
    fn slice_is_over(&self, queue: QueueId, id: Id) -> bool {
        let it = &self.queues[queue];
        if it.entities <= 1 {
            return false;
        }
        let entity = self.entity(id);
        let ran = entity.ran - entity.ran_before;
        let slice = self.cfs_slice(id);
        if ran > slice {
            return true;
        }
        let Some(first) = it.waiting.first() else {
            return false;
        };
        ran >= self.min_granularity && entity.vruntime - first.key > slice as i64
    }
}

impl Class for Fair {
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId) {
        self.grow(machine);
        let thread = thread.index();
        let cpu = self.queues[self.tasks[thread].queue].cpu;
        if self.tasks[thread].entity.queued && !place::may_use(machine, thread, cpu) {
            self.finish(machine.now, Id::Thread(thread));
        }
        let task = &self.tasks[thread];
        if task.entity.queued {
            if self.update_current(machine, cpu) {
                self.resched(machine, cpu);
            }
            self.wake_delayed(machine, thread);
        } else {
            let new = !task.attached;
            let cpu = self.select(machine, thread);
            self.move_to(machine, thread, cpu);
            if self.update_current(machine, cpu) {
                self.resched(machine, cpu);
            }
            let how = if new { Enter::New } else { Enter::Wakes };
            self.enqueue(machine, thread, how);
        }
        self.check_preempt(machine, thread);
        if let Some(here) = machine.here {
            // The waker's system call or interrupt ends: a pending lazy reschedule happens.
            if self.cpus[here.0 as usize].lazy {
                machine.kick(here);
            }
        }
    }

    /// A thread may be moved before it is first ready, so its state exists from the fork on.
    fn fork(&mut self, machine: &mut Machine, _thread: ThreadId) {
        self.grow(machine);
    }

    fn queued_on(&self, thread: ThreadId) -> Option<CpuId> {
        let task = self.tasks.get(thread.index())?;
        Some(CpuId(self.queues[task.queue].cpu as u32))
    }

    fn set_allowed(&mut self, machine: &mut Machine, thread: ThreadId) {
        // A running thread moves when its CPU reschedules.
        if machine.thread(thread).state == State::Ready {
            self.expel(machine, thread.index());
        }
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        self.grow(machine);
        let at = cpu.0 as usize;
        // The end of a slice updates what a tick does.
        let precise = self.version.is_precise();
        let ended = ran.filter(|_| precise && machine.cpu(cpu).turn == Some(0));
        if let Some(ran) = ended {
            self.cpus[at].ends = false;
            self.weigh(machine, at, ran.index());
        }
        self.update_current(machine, at);
        self.cpus[at].lazy = false;
        if let Some(ran) = ran {
            self.push(machine, at, ran.index());
            self.expel(machine, ran.index());
        }
        let mut thread = self.choose(machine.now, at);
        self.switch(machine.now, at);
        if thread.is_none() && self.pull_idle(machine, at) {
            thread = self.choose(machine.now, at);
            self.switch(machine.now, at);
        }
        let Some(thread) = thread else {
            self.map.rests(at);
            return None;
        };
        self.leaves_idle(machine.now, at);
        let task = &mut self.tasks[thread];
        let id = Fair::thread_id(thread);
        let mut turn = None;
        if ran != Some(id) {
            task.counted = machine.cpu_time(id);
            task.ran_at = machine.now;
            let ends = precise && self.is_contended(at);
            turn = ends.then(|| self.left_of(thread));
            let it = &mut self.cpus[at];
            it.choices = it.choices.wrapping_add(1);
            it.ends = ends;
        } else if ended.is_none() {
            // A thread that goes on keeps the planned end of its slice. If that end is now, ticks have to do
            // until another thread comes.
            turn = machine.cpu(cpu).turn;
        }
        Some(Pick { thread: id, turn })
    }

    fn block(&mut self, machine: &mut Machine, cpu: CpuId, thread: ThreadId) {
        self.update_current(machine, cpu.0 as usize);
        self.dequeue(machine, thread.index(), true);
        self.look_soon(machine.now, cpu.0 as usize);
    }

    fn exit(&mut self, machine: &mut Machine, cpu: CpuId, thread: ThreadId) {
        self.update_current(machine, cpu.0 as usize);
        self.end(machine, thread.index());
    }

    fn timer(&mut self, machine: &mut Machine, token: u32) {
        let cpu = token as usize & 0xFFFF;
        let runs = machine.cpu(CpuId(cpu as u32)).current;
        if let Some(runs) = runs.filter(|_| self.token(cpu) == token) {
            self.cpus[cpu].ends = false;
            self.weigh(machine, cpu, runs.index());
            machine.kick(CpuId(cpu as u32));
        }
    }

    fn tick(&mut self, machine: &mut Machine, cpu: CpuId) {
        let at = cpu.0 as usize;
        let Some(thread) = machine.cpu(cpu).current else {
            return;
        };
        let mut resched = self.weigh(machine, at, thread.index()) || self.cpus[at].lazy;
        let mut id = Id::Thread(thread.index());
        while let Some(queue) = self.home(id).filter(|_| !self.version.is_eevdf()) {
            resched |= self.slice_is_over(queue, id);
            id = Id::Queue(queue);
        }
        if resched {
            machine.kick(cpu);
        }
        self.balance_at_tick(machine, at);
    }
}
