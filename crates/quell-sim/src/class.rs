//! Scheduling classes: who runs where, and when.

use crate::events::Nanos;
use crate::machine::{Machine, ThreadId};
use quell_model::CpuId;
use std::collections::{BTreeSet, VecDeque};

/// Who gets a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// The thread.
    pub thread: ThreadId,
    /// How long it may run before the class is asked again; none: until it blocks or the CPU is kicked.
    pub turn: Option<Nanos>,
}

/// A scheduler. It sees the machine, and keeps the ready threads itself.
pub trait Class {
    /// A thread becomes ready.
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId);

    /// A CPU needs a thread. `ran` ran there and is still ready: unless it is what is picked, it waits
    /// from here on.
    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick>;

    /// A thread that ran there blocks.
    fn block(&mut self, machine: &mut Machine, cpu: CpuId, thread: ThreadId) {
        let _ = (machine, cpu, thread);
    }

    /// What [`Machine::set_timer`] asked for.
    fn timer(&mut self, machine: &mut Machine, token: u64) {
        let _ = (machine, token);
    }
}

/// One queue for all CPUs, first come, first served; with a turn, each gets so much CPU time before the next
/// (round robin, which is processor sharing when turns are short).
#[derive(Debug)]
pub struct Fifo {
    queue: VecDeque<ThreadId>,
    turn: Option<Nanos>,
}

impl Fifo {
    /// Threads run until they block, or for a turn.
    pub fn new(turn: Option<Nanos>) -> Fifo {
        Fifo {
            queue: VecDeque::new(),
            turn,
        }
    }
}

impl Class for Fifo {
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId) {
        self.queue.push_back(thread);
        if let Some(cpu) = machine.idle_cpu(thread) {
            machine.kick(cpu);
        }
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        self.queue.extend(ran);
        let may = |&thread: &ThreadId| machine.thread(thread).may_use(cpu);
        let at = self.queue.iter().position(may)?;
        let thread = self.queue.remove(at)?;
        Some(Pick {
            thread,
            turn: self.turn,
        })
    }
}

/// The thread that works for the oldest request first, wherever it is, at once: without costs, the order that
/// no real scheduler reaches. Threads that work for none come last, in turns of a millisecond.
#[derive(Debug, Default)]
pub struct Oldest {
    ready: BTreeSet<(Nanos, u64, ThreadId)>,
    queued: u64,
}

impl Oldest {
    const TURN: Nanos = 1_000_000;

    fn due(machine: &Machine, thread: ThreadId) -> Nanos {
        machine.thread(thread).works_for.unwrap_or(Nanos::MAX)
    }

    fn insert(&mut self, machine: &Machine, thread: ThreadId) {
        self.queued += 1;
        let due = Oldest::due(machine, thread);
        self.ready.insert((due, self.queued, thread));
    }
}

impl Class for Oldest {
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId) {
        self.insert(machine, thread);
        if let Some(cpu) = machine.idle_cpu(thread) {
            return machine.kick(cpu);
        }
        let usable = machine
            .cpu_ids()
            .filter(|&cpu| machine.thread(thread).may_use(cpu) && !machine.cpu(cpu).kicked);
        let youngest = usable
            .filter_map(|cpu| Some((Oldest::due(machine, machine.cpu(cpu).current?), cpu)))
            .max();
        if let Some((due, cpu)) = youngest {
            if due > Oldest::due(machine, thread) {
                machine.kick(cpu);
            }
        }
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        if let Some(thread) = ran {
            self.insert(machine, thread);
        }
        let may = |&&(_, _, thread): &&(Nanos, u64, ThreadId)| machine.thread(thread).may_use(cpu);
        let first = *self.ready.iter().find(may)?;
        self.ready.remove(&first);
        Some(Pick {
            thread: first.2,
            turn: (first.0 == Nanos::MAX).then_some(Oldest::TURN),
        })
    }
}
