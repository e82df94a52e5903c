//! One queue.

use super::{Class, Pick};
use crate::events::Nanos;
use crate::machine::{Machine, ThreadId};
use quell_model::CpuId;
use std::collections::VecDeque;

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
