//! Recorded threads: threads that repeat what the threads of a recording did.
//!
//! Problem: what would a recorded load have waited under another scheduler? How: each thread has a list of
//! [`Act`]s: CPU time, waking other threads in between, and waiting for its own next wakeup. The list is
//! compiled into a program like a scenario's, in which a wakeup is a message to the thread's own queue.
//! Wakeups by threads come when those threads get to them, so that they move with the threads' progress;
//! wakeups by interrupts come at their recorded times, as from clients that do not know how the machine fares
//! (open loop). A wakeup that comes before its thread waits is kept, so that no schedule can lose one.
//! Limits: each thread does its own recorded work, though under another scheduler another thread of a pool
//! might have taken that work first.

use crate::events::Nanos;
use crate::machine::ThreadId;
use crate::program::{At, Code, Op};
use quell_scenario::Count;

/// An action of a recorded thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Uses this much CPU time, in ns.
    Run(Nanos),
    /// Wakes a recorded thread.
    Wake(ThreadId),
    /// Waits until it is woken; each wait takes one wakeup.
    Wait,
    /// Sleeps by a timer of its own until this time, in ns; does not sleep if the time is past.
    Until(Nanos),
    /// Ends the work of its last wakeup or sleep: gives an [`crate::Answer`] whose due time is that of the
    /// wakeup, or the end of the sleep.
    Done,
}

impl Code {
    /// A program for each thread of a recorded process. A thread waits before its first act, and for ever
    /// after its last.
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
