//! One FIFO queue for all CPUs.

use super::{Class, Pick};
use crate::events::Nanos;
use crate::machine::{Machine, State, ThreadId};
use quell_model::CpuId;
use std::collections::VecDeque;

/// One queue for all CPUs, first come, first served. With a slice, each thread gets that much CPU time before
/// the next (round robin, which with short slices is processor sharing).
#[derive(Debug)]
pub struct Fifo {
    queue: VecDeque<ThreadId>,
    turn: Option<Nanos>,
}

impl Fifo {
    /// Lets threads run until they block, or for a slice of `turn` ns.
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
        machine.kick_idle_for(thread);
    }

    fn set_allowed(&mut self, machine: &mut Machine, thread: ThreadId) {
        if machine.thread(thread).state == State::Ready {
            machine.kick_idle_for(thread);
        }
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        self.queue.extend(ran);
        let may = |&thread: &ThreadId| machine.thread(thread).may_use(cpu);
        let at = self.queue.iter().position(may);
        let next = at.and_then(|at| self.queue.remove(at));
        machine.kick_idle_for_displaced(ran, next);
        next.map(|thread| Pick {
            thread,
            turn: self.turn,
        })
    }
}
