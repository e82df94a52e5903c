//! Linux's fair class: CFS of 6.1, EEVDF of 6.12 and of 7.2 (kernel/sched/fair.c; this is a model of what it does, with
//! none of its code).
//!
//! Problem: what another scheduler gains depends on what it is compared with, and a fair class with perfect knowledge and
//! free balancing is better than the real one. Approach: the real one's mechanisms, with its constants as distributions
//! have them (HZ 250): groups' weights from decaying averages of load ([`groups`], [`pelt`]), queues per group and CPU
//! ([`entity`], [`hierarchy`]), the search for an idle CPU at wakeup with its limits ([`place`]), and balancing at ticks
//! and by CPUs that run dry, with its costs and thresholds ([`balance`]).
//!
//! What differs between the versions:
//!
//! | | 6.1 | 6.12 | 7.2 |
//! |---|---|---|---|
//! | who runs | the least virtual time | the earliest deadline of those not ahead | the same |
//! | a slice ends | at a tick | at a tick | on time (HRTICK) |
//! | weights of groups follow | at ticks | at ticks | also at the ends of slices |
//! | preempting a CPU from another | at once | at once | at its next tick or system call (PREEMPT_LAZY) |
//! | a group's entity that is weighed anew | keeps its virtual time | keeps its lag, may be preempted | keeps its lag and its protection |
//! | CPUs that run dry look for work | if they idle for long enough | and as often as that succeeds | the same |
//!
//! Slices are those of programs that compute: who reads its own CPU clock by a system call, in a loop, ends its slice
//! there (6.12, 7.2), and may be preempted there.
//!
//! The machine needs ticks ([`crate::Costs::tick_every`]): without them slices of 6.1 and 6.12 do not end, and nothing is
//! balanced. Threads of the idle policy weigh 3, are preempted by all others, and a CPU that has only such is as good as idle for
//! who wakes; slices of threads' own count since 6.12. Not modelled: bandwidth limits, idle groups, autogroups, NUMA balancing,
//! capacities that differ or sink by interrupts, energy, core scheduling, clusters of cores below a cache, WF_SYNC
//! wakeups.

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

/// The jiffy: ticks and the intervals of balancing.
const TICK: Nanos = 4_000_000;
/// No slice is planned to end sooner.
const SHORTEST: Nanos = 10_000;
/// CFS's slices for one period; more stretch it (latency / min granularity).
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

    /// Slices end on time.
    fn is_precise(self) -> bool {
        self == Version::Eevdf72
    }

    /// CPUs are preempted from others at their next tick only.
    fn is_lazy(self) -> bool {
        self == Version::Eevdf72
    }

    /// What runs stays protected when its group's entity is weighed anew.
    fn keeps_protection(self) -> bool {
        self == Version::Eevdf72
    }

    /// A wakeup preempts only what no buddy goes before, and what sleeps in its queue is no obstacle: it leaves then.
    fn wakes_as_it_picks(self) -> bool {
        self == Version::Eevdf72
    }

    /// Who sleeps in its queue is no further behind when it leaves that than when it fell asleep.
    fn keeps_lag_asleep(self) -> bool {
        self == Version::Eevdf72
    }
}

/// What the class knows of a thread.
#[derive(Debug, Clone, Default)]
struct Task {
    entity: Entity,
    /// Its group's queue on the CPU that it is on.
    queue: QueueId,
    /// Its CPU time that is in virtual times, and when it last ran.
    counted: Nanos,
    ran_at: Nanos,
    /// Its load is in its queue's.
    attached: bool,
    /// Where it is in its CPU's list.
    slot: usize,
    /// The CPU that it was on before the last wakeup.
    recent: usize,
    waking: place::Waking,
    /// Utilization that it is expected to have (UTIL_EST), and what of that its CPU counts.
    expected: f64,
    expected_there: f64,
}

/// What the class knows of a CPU. Its own queue has its number.
#[derive(Debug, Clone, Default)]
struct Cpu {
    /// Threads that run or wait, in no order.
    tasks: Vec<usize>,
    /// The sum of their expected utilizations.
    expected: f64,
    /// What runs is to be looked at at the next tick.
    lazy: bool,
    /// Threads that sleep in their queues.
    asleep: u32,
    /// Switches so far, and whether the end of the present slice is planned.
    choices: u16,
    ends: bool,
    /// Groups' queues that still have load.
    listed: Vec<QueueId>,
    /// What its idle thread has woken.
    waking: place::Waking,
    balancing: balance::Balancing,
}

/// The class.
#[derive(Debug)]
pub struct Fair {
    version: Version,
    /// EEVDF's slice; CFS's latency and granularities.
    slice: Nanos,
    latency: Nanos,
    min_granularity: Nanos,
    wakeup_granularity: Nanos,
    /// Some thread has asked for a slice of its own, or is of the idle policy.
    has_slices: bool,
    has_idle: bool,
    tasks: Vec<Task>,
    queues: Vec<Queue>,
    groups: Vec<groups::Shares>,
    cpus: Vec<Cpu>,
    map: map::Map,
    /// Where the last thread went that might not stay where it was.
    distributed: usize,
    /// Scratch: entities of the choice, from the CPU's queue down.
    path: Vec<Id>,
}

impl Fair {
    /// CFS as in Linux 6.1.
    pub fn cfs_6_1() -> Fair {
        Fair::new(Version::Cfs61)
    }

    /// EEVDF as in Linux 6.12.
    pub fn eevdf_6_12() -> Fair {
        Fair::new(Version::Eevdf612)
    }

    /// EEVDF as in Linux 7.2.
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

    /// Learns what the machine is like.
    fn build(&mut self, machine: &Machine) {
        let cpus = machine.cpus.len();
        // Constants grow with the CPUs, up to 8 (SCHED_TUNABLESCALING_LOG).
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

    /// The virtual times of what runs on a CPU are brought up to date; whether something else should perhaps run.
    fn update_current(&mut self, machine: &Machine, cpu: usize) -> bool {
        let mut queue = cpu;
        // Who runs stands at the end of the chain.
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

    /// A tick, or the end of a slice: also the averages of what runs there and its groups' weights are brought up to date.
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

    /// EEVDF: whether what runs may be preempted before its deadline.
    fn is_fair_game(&self, queue: QueueId, id: Id) -> bool {
        let entity = self.entity(id);
        let protected = entity.vruntime < entity.protected;
        let precise = self.version.is_precise();
        !protected && (precise || !self.queues[queue].eligible(Some(entity), entity.vruntime))
    }

    /// Has a CPU choose anew.
    fn resched(&mut self, machine: &mut Machine, cpu: usize) {
        let id = CpuId(cpu as u32);
        let busy = machine.cpu(id).current.is_some();
        if self.version.is_lazy() && busy && machine.here != Some(id) {
            self.cpus[cpu].lazy = true;
        } else {
            machine.kick(id);
        }
    }

    /// How long what runs there may go on before its deadline.
    fn left_of(&self, thread: usize) -> Nanos {
        let entity = &self.tasks[thread].entity;
        let left = (entity.deadline - entity.vruntime).max(1) as u128;
        let left = (left * u128::from(entity.weight) / u128::from(NICE_0)) as Nanos + 1;
        left.max(SHORTEST)
    }

    /// There are several threads, though some may sleep.
    fn is_contended(&self, cpu: usize) -> bool {
        let it = &self.cpus[cpu];
        it.tasks.len() + it.asleep as usize > 1
    }

    /// A timer's, for what was switched to last on a CPU.
    fn token(&self, cpu: usize) -> u32 {
        u32::from(self.cpus[cpu].choices) << 16 | cpu as u32
    }

    /// Who runs is no longer alone, so its slice ends on time.
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

    /// Whether a thread that came to a CPU's queue is to run instead of what does.
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
        // The lowest queue that both are below.
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
        // Who computes in the background preempts nobody.
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

    /// CFS: whether the entity that runs has had its slice.
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
            // Its system call or interrupt ends: who has waited for that runs.
            if self.cpus[here.0 as usize].lazy {
                machine.kick(here);
            }
        }
    }

    /// Others may be moved before it is ready.
    fn fork(&mut self, machine: &mut Machine, _thread: ThreadId) {
        self.grow(machine);
    }

    fn queued_on(&self, thread: ThreadId) -> Option<CpuId> {
        let task = self.tasks.get(thread.index())?;
        Some(CpuId(self.queues[task.queue].cpu as u32))
    }

    fn set_allowed(&mut self, machine: &mut Machine, thread: ThreadId) {
        // Who runs is moved when its CPU looks.
        if machine.thread(thread).state == State::Ready {
            self.expel(machine, thread.index());
        }
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        self.grow(machine);
        let at = cpu.0 as usize;
        // The end of a slice is a tick, too.
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
            // Who goes on keeps the end that was planned. If that is now, ticks have to do until another thread comes.
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
