//! The order of requests by age, at no cost: what an ideal scheduler would run.

use quell_model::CpuId;
use quell_sim::{Class, Machine, Nanos, Pick, State, ThreadId};
use std::collections::BTreeSet;

/// The class that runs the thread that works for the oldest request first, on any CPU that the thread may
/// use, at once. On a machine without costs this is an order that no real scheduler reaches. Threads that
/// work for no request come last, in turns of 1 ms.
#[derive(Debug, Default)]
pub struct Oldest {
    /// The threads that wait: when their request was due, in ns, and their place in the order of arrival.
    ready: BTreeSet<(Nanos, u64, ThreadId)>,
    /// The number of times that a thread was put into `ready`.
    queued: u64,
}

impl Oldest {
    /// The turn of a thread that works for no request: 1 ms, in ns.
    const TURN: Nanos = 1_000_000;

    /// The time when the thread's request was due, in ns; the greatest for a thread that works for none.
    fn due(machine: &Machine, thread: ThreadId) -> Nanos {
        machine.thread(thread).works_for.unwrap_or(Nanos::MAX)
    }

    fn insert(&mut self, machine: &Machine, thread: ThreadId) {
        self.queued += 1;
        let due = Oldest::due(machine, thread);
        self.ready.insert((due, self.queued, thread));
    }

    /// Kicks the CPU that should run a thread that waits: an idle one, else the one whose thread works for
    /// the youngest request, if that is younger than the waiting thread's.
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
