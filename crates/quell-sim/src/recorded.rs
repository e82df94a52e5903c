//! Threads that do again what others were seen to do: programs beside those of scenarios.
//!
//! Problem: what would a recorded load have waited under another scheduler? How: each thread has a list of [`Act`]s: so much
//! CPU time, waking others in between, and waiting for its own next wakeup. It becomes a program as a scenario's are, in
//! which a wakeup is a message to the thread's own queue. Wakeups by threads come where those threads' own progress brings
//! them, so that they move with it; those by interrupts come at their times, as on a machine whose clients do not know
//! how it fares. A wakeup that comes before its thread waits for it is kept, so that no order of events that a
//! scheduler makes can lose one. Limits: who does what is as it was, though under another scheduler another thread of a
//! pool might have been the first to take it.

use crate::events::Nanos;
use crate::machine::ThreadId;
use crate::program::{At, Code, Op};
use quell_scenario::Count;

/// Something that a recorded thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Uses so much CPU time, in ns.
    Run(Nanos),
    /// Wakes a recorded thread.
    Wake(ThreadId),
    /// Waits until it is woken, once for each time that it waits.
    Wait,
    /// Sleeps until that time, by a timer of its own; not at all if it comes to this later.
    Until(Nanos),
    /// Is done with what it was woken for: an [`crate::Answer`] to what was due when it was woken, or was to be.
    Done,
}

impl Code {
    /// A program for each thread of a recorded process, which waits first and when it is through.
    pub fn recorded(threads: &[Vec<Act>]) -> Code {
        let mut code = Code {
            recorded: true,
            ..Code::default()
        };
        for (number, acts) in (0..).zip(threads) {
            let op = |act: &Act| match *act {
                Act::Run(time) => Op::Use(time),
                Act::Wake(thread) => Op::Wake(thread),
                Act::Wait => Op::Receive(number),
                Act::Until(time) => Op::Until(time),
                Act::Done => Op::Respond,
            };
            code.starts.push(code.ops.len() as At);
            code.delays.push(0);
            code.ops.push(Op::Receive(number));
            code.ops.extend(acts.iter().map(op));
            let end = code.ops.len() as At;
            code.ops.extend([Op::Receive(number), Op::Round(end)]);
            let name = format!("thread-{number}");
            code.queues.push(format!("wakeups of {name}"));
            code.threads.push((name, Count::Fixed(1), number.into()));
        }
        code
    }
}
