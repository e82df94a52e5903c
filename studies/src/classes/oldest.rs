//! The best order of requests, for nothing.

use quell_model::CpuId;
use quell_sim::{Class, Machine, Nanos, Pick, State, ThreadId};
use std::collections::BTreeSet;

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

    /// Has a CPU look that should run a thread that waits.
    fn tickle(machine: &mut Machine, thread: ThreadId) {
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
}

impl Class for Oldest {
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId) {
        self.insert(machine, thread);
        Oldest::tickle(machine, thread);
    }

    fn set_allowed(&mut self, machine: &mut Machine, thread: ThreadId) {
        if machine.thread(thread).state == State::Ready {
            Oldest::tickle(machine, thread);
        }
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        if let Some(thread) = ran {
            self.insert(machine, thread);
        }
        let may = |&&(_, _, thread): &&(Nanos, u64, ThreadId)| machine.thread(thread).may_use(cpu);
        let first = self.ready.iter().find(may).copied();
        if let Some(first) = &first {
            self.ready.remove(first);
        }
        machine.kick_idle_for_displaced(ran, first.map(|(_, _, thread)| thread));
        first.map(|(due, _, thread)| Pick {
            thread,
            turn: (due == Nanos::MAX).then_some(Oldest::TURN),
        })
    }
}
