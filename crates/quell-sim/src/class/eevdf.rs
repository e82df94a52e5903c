//! EEVDF, Linux 6.6 and later (kernel/sched/fair.c), for threads of one cgroup and of nice 0.
//!
//! Each CPU has a queue. A thread's virtual time advances as it runs, the slower the greater its weight; it is eligible
//! while that is not ahead of the queue's weighted average; of the eligible ones the earliest virtual deadline, which
//! is a slice ahead, runs. Who runs is not preempted within its slice as long as it is eligible (RUN_TO_PARITY).
//! Who sleeps while it is ahead stays in the queue, until it is not ahead any more or wakes
//! (DELAY_DEQUEUE); others keep what they are behind or ahead for when they wake (PLACE_LAG).
//!
//! Placement is select_task_rq_fair's: the CPU that wakes or the one before, whichever is idle or has less to do,
//! then any idle CPU of that one's cache. A CPU that runs out of work takes from the busiest, and every so often also one
//! that has less to do than another.
//!
//! Modelled with precise ends of slices (HRTICK, on in 7.2). Not modelled: groups, PELT (queue lengths stand for loads), the
//! cost limits of balancing, utilization clamps, asymmetric capacities.

use super::{Class, Pick};
use crate::events::Nanos;
use crate::machine::{Machine, State, ThreadId};
use quell_model::CpuId;

/// The base slice for 1, 2 and 3, 4 to 7, 8 and more CPUs: 0.7 ms x (1 + log2(CPUs)).
fn base_slice(cpus: usize) -> i128 {
    700_000 * i128::from(1 + cpus.clamp(1, 8).ilog2())
}

/// How often a busy CPU looks whether another has more to do: sd_busy_factor (16) x the CPUs of a domain, in ms.
fn balance_interval(cpus: usize) -> Nanos {
    16 * cpus as Nanos * 1_000_000
}

#[derive(Debug, Clone, Default)]
struct Entity {
    /// In real ns, as all weigh alike; comparable within a queue.
    vruntime: i128,
    deadline: i128,
    /// How far it was behind the average when it left a queue.
    vlag: i128,
    /// Its thread's CPU time that is in `vruntime`.
    counted: Nanos,
    /// In that CPU's queue, running or not.
    queued: Option<CpuId>,
    /// It sleeps, but stays in the queue until it is eligible.
    delayed: bool,
    placed_once: bool,
}

/// The class.
#[derive(Debug)]
pub struct Eevdf {
    entities: Vec<Entity>,
    /// By CPU, what is ready there, what runs included.
    queues: Vec<Vec<ThreadId>>,
    slice: i128,
    balances: bool,
}

impl Eevdf {
    /// For a machine of so many CPUs.
    pub fn new(cpus: usize) -> Eevdf {
        Eevdf {
            entities: Vec::new(),
            queues: vec![Vec::new(); cpus],
            slice: base_slice(cpus),
            balances: false,
        }
    }

    fn entity(&mut self, thread: ThreadId) -> &mut Entity {
        if self.entities.len() <= thread.index() {
            self.entities.resize(thread.index() + 1, Entity::default());
        }
        &mut self.entities[thread.index()]
    }

    fn queue(&self, cpu: CpuId) -> &[ThreadId] {
        &self.queues[cpu.0 as usize]
    }

    /// Ready and running threads; who sleeps in the queue is none.
    fn running(&self, cpu: CpuId) -> usize {
        let ready = |thread: &&ThreadId| !self.entities[thread.index()].delayed;
        self.queue(cpu).iter().filter(ready).count()
    }

    /// The weighted average of virtual times; all weights are alike here.
    fn average(&self, cpu: CpuId) -> i128 {
        let queue = self.queue(cpu);
        let sum: i128 = (queue.iter())
            .map(|thread| self.entities[thread.index()].vruntime)
            .sum();
        sum.div_euclid(queue.len().max(1) as i128)
    }

    /// update_curr: brings the virtual time of what runs up to date.
    fn update(&mut self, machine: &Machine, thread: ThreadId) {
        let (ran, slice) = (machine.cpu_time(thread), self.slice);
        let entity = self.entity(thread);
        entity.vruntime += i128::from(ran - entity.counted);
        entity.counted = ran;
        if entity.vruntime >= entity.deadline {
            entity.deadline = entity.vruntime + slice;
        }
    }

    fn update_current(&mut self, machine: &Machine, cpu: CpuId) {
        if let Some(current) = machine.cpu(cpu).current {
            self.update(machine, current);
        }
    }

    /// place_entity and enqueue.
    fn enqueue(&mut self, machine: &Machine, thread: ThreadId, cpu: CpuId) {
        self.update_current(machine, cpu);
        let average = self.average(cpu);
        let others = self.queue(cpu).len() as i128;
        let slice = self.slice;
        let entity = self.entity(thread);
        // What it joins moves the average by its own lag, so that is scaled up to be left with it.
        let lag = if others > 0 {
            entity.vlag * (others + 1) / others
        } else {
            0
        };
        entity.vruntime = average - lag;
        // A thread's first slice is half of one, to ease it into the competition.
        let first = !std::mem::replace(&mut entity.placed_once, true);
        entity.deadline = entity.vruntime + if first { slice / 2 } else { slice };
        entity.queued = Some(cpu);
        entity.delayed = false;
        self.queues[cpu.0 as usize].push(thread);
    }

    /// update_entity_lag and dequeue.
    fn dequeue(&mut self, thread: ThreadId) {
        let Some(cpu) = self.entity(thread).queued.take() else {
            return;
        };
        let (average, limit) = (self.average(cpu), 2 * self.slice);
        let entity = self.entity(thread);
        entity.vlag = (average - entity.vruntime).clamp(-limit, limit);
        entity.delayed = false;
        self.queues[cpu.0 as usize].retain(|&other| other != thread);
    }

    /// pick_eevdf. `current` is what ran, if it is still ready.
    fn choose(&mut self, cpu: CpuId, current: Option<ThreadId>) -> Option<ThreadId> {
        loop {
            let average = self.average(cpu);
            let eligible = |thread: ThreadId| self.entities[thread.index()].vruntime <= average;
            let in_its_slice = |thread: ThreadId| {
                let entity = &self.entities[thread.index()];
                // Its deadline moves when the slice is used up, in `update`; then others come first if earlier.
                entity.deadline - entity.vruntime < self.slice
            };
            if let Some(current) = current.filter(|&t| eligible(t) && in_its_slice(t)) {
                return Some(current);
            }
            let first = (self.queue(cpu).iter().copied())
                .filter(|&thread| eligible(thread))
                .min_by_key(|thread| (self.entities[thread.index()].deadline, *thread))?;
            if !self.entities[first.index()].delayed {
                return Some(first);
            }
            self.dequeue(first);
            let vlag = &mut self.entities[first.index()].vlag;
            *vlag = (*vlag).min(0);
        }
    }

    /// Where a thread that wakes is to run.
    fn place(&self, machine: &Machine, thread: ThreadId) -> CpuId {
        let it = machine.thread(thread);
        let before = if it.may_use(it.cpu) {
            it.cpu
        } else {
            let mut cpus = machine.cpu_ids();
            cpus.find(|&cpu| it.may_use(cpu)).unwrap_or(it.cpu)
        };
        let idle = |cpu: CpuId| it.may_use(cpu) && self.running(cpu) == 0;
        let target = match machine.here.filter(|&here| it.may_use(here)) {
            // wake_affine: the one before if it is idle; else the one that wakes if that has less to do.
            Some(here) if !idle(before) && self.running(here) < self.running(before) => here,
            _ => before,
        };
        if idle(target) {
            return target;
        }
        if idle(before) {
            return before;
        }
        let cpus = machine.cpus.len() as u32;
        (1..cpus)
            .map(|step| CpuId((target.0 + step) % cpus))
            .find(|&cpu| machine.share_cache(target, cpu) && idle(cpu))
            .unwrap_or(target)
    }

    /// Takes a ready thread from the CPU that has the most, if that has so many more than this one.
    fn pull(&mut self, machine: &Machine, cpu: CpuId, more: usize) -> bool {
        let own = self.running(cpu);
        let busiest = machine
            .cpu_ids()
            .filter(|&other| other != cpu)
            .max_by_key(|&other| (self.running(other), std::cmp::Reverse(other)));
        let Some(busiest) = busiest.filter(|&other| self.running(other) >= own + more) else {
            return false;
        };
        let movable = |thread: &&ThreadId| {
            let it = machine.thread(**thread);
            it.state == State::Ready && !self.entities[thread.index()].delayed && it.may_use(cpu)
        };
        let Some(&thread) = self.queue(busiest).iter().find(movable) else {
            return false;
        };
        self.update_current(machine, busiest);
        self.dequeue(thread);
        self.enqueue(machine, thread, cpu);
        true
    }
}

impl Class for Eevdf {
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId) {
        if !std::mem::replace(&mut self.balances, true) {
            let first = machine.now + balance_interval(self.queues.len());
            machine.set_timer(first, 0);
        }
        let cpu = match self.entity(thread).queued {
            // It had not left the queue yet.
            Some(cpu) => {
                self.update_current(machine, cpu);
                let average = self.average(cpu);
                let slice = self.slice;
                let entity = self.entity(thread);
                entity.delayed = false;
                // Nobody gets ahead by waiting in the queue (DELAY_ZERO).
                if entity.vruntime < average {
                    entity.vruntime = average;
                    entity.deadline = average + slice;
                }
                cpu
            }
            None => {
                let cpu = self.place(machine, thread);
                self.enqueue(machine, thread, cpu);
                cpu
            }
        };
        machine.kick(cpu);
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        self.update_current(machine, cpu);
        let mut picked = self.choose(cpu, ran);
        if picked.is_none() && self.pull(machine, cpu, 2) {
            picked = self.choose(cpu, None);
        }
        let thread = picked?;
        let entity = &self.entities[thread.index()];
        let left = (entity.deadline - entity.vruntime).max(1) as Nanos;
        Some(Pick {
            thread,
            turn: (self.queue(cpu).len() > 1).then_some(left),
        })
    }

    fn block(&mut self, machine: &mut Machine, cpu: CpuId, thread: ThreadId) {
        self.update(machine, thread);
        let average = self.average(cpu);
        let entity = self.entity(thread);
        if entity.vruntime > average {
            entity.delayed = true;
        } else {
            self.dequeue(thread);
        }
    }

    fn timer(&mut self, machine: &mut Machine, turn: u32) {
        for cpu in machine.cpu_ids() {
            // A difference of one thread is less than what half of one weighs: such a move fails at first, and is
            // done the next time (nr_balance_failed).
            let busy = self.running(cpu) > 0;
            let more = if busy && turn % 2 == 1 { 1 } else { 2 };
            if self.pull(machine, cpu, more) {
                machine.kick(cpu);
                if more == 1 {
                    break; // Else the next one takes it back.
                }
            }
        }
        let next = machine.now + balance_interval(self.queues.len());
        machine.set_timer(next, turn + 1);
    }
}
