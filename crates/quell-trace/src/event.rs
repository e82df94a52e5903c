//! What a trace consists of.

use quell_model::{Pid, Tid};
use std::sync::Arc;

/// The thread id of every CPU's idle thread.
pub const IDLE: Tid = Tid(0);

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When, in ns of the trace's clock.
    pub at_ns: u64,
    /// On which CPU; 0 for [`Kind::Thread`], which is no CPU's doing.
    pub cpu: u32,
    /// What.
    pub kind: Kind,
}

/// What can happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// The CPU goes from one thread to another.
    Switch {
        /// Who leaves the CPU; [`IDLE`] for its idle thread.
        prev: Tid,
        /// As what it leaves.
        prev_state: State,
        /// Who runs from now on; [`IDLE`] for the idle thread.
        next: Tid,
        /// The kernel's priority of who runs from now on: 100 to 139 for nice -20 to 19, less for
        /// real-time, more for the idle thread.
        next_priority: i32,
    },
    /// Somebody begins to wake a thread; it is ready from now on, unless it runs.
    Wakeup {
        /// Who is woken.
        thread: Tid,
        /// Who wakes it; an interrupt (a timer, a device) where absent.
        by: Option<Tid>,
        /// The CPU the woken thread was on last.
        last_cpu: u32,
    },
    /// A new thread is ready for the first time.
    New {
        /// The thread. It belongs to the process of `by`, or is the first of its own.
        thread: Thread,
        /// Who made it.
        by: Tid,
    },
    /// This thread is there: so when the trace begins, or when it is first heard of.
    Thread(Thread),
    /// A thread's name changes.
    Rename {
        /// Whose.
        tid: Tid,
        /// To what.
        name: Arc<str>,
    },
    /// Some events of this CPU are missing here.
    Lost,
}

/// A thread's identity at a time: the kernel uses thread ids again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// The kernel's thread id.
    pub tid: Tid,
    /// Its process: the thread id of the process's first thread.
    pub pid: Pid,
    /// Its name; the kernel's are 15 bytes at most.
    pub name: Arc<str>,
}

impl Thread {
    /// Its process; where that is not told (0), the thread by itself.
    pub fn process(&self) -> Pid {
        match self.pid {
            Pid(0) => Pid(self.tid.0),
            pid => pid,
        }
    }
}

/// As what a thread leaves its CPU: the bits that the kernel's `sched_switch` trace point reports since 4.14.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State(pub u16);

impl State {
    /// Still ready: its slice is over, it yielded, or the kernel preempts it on the way to user mode.
    pub const READY: State = State(0);
    /// It sleeps and signals wake it.
    pub const SLEEPING: State = State(0x01);
    /// It sleeps and signals do not wake it.
    pub const UNINTERRUPTIBLE: State = State(0x02);
    /// It has ended; nobody will ask how.
    pub const DEAD: State = State(0x10);
    /// It has ended; its parent has yet to ask how.
    pub const ZOMBIE: State = State(0x20);
    /// Still ready: preempted within the kernel.
    pub const PREEMPTED: State = State(0x100);

    /// Whether it still wants to run.
    pub fn is_ready(self) -> bool {
        self == State::READY || self.0 & State::PREEMPTED.0 != 0
    }

    /// Whether it will never run again.
    pub fn has_ended(self) -> bool {
        !self.is_ready() && self.0 & (State::DEAD.0 | State::ZOMBIE.0) != 0
    }
}
