//! The best order of requests, for nothing.

use super::{Class, Pick};
use crate::events::Nanos;
use crate::machine::{Machine, ThreadId};
use quell_model::CpuId;
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
