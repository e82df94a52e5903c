//! The events of which a trace consists.

use quell_model::{Pid, Tid};
use std::sync::Arc;

/// The thread id of the idle thread of every CPU.
pub const IDLE: Tid = Tid(0);

/// A scheduling event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The time of the event, in ns of the trace's clock.
    pub at_ns: u64,
    /// The CPU of the event; 0 for [`Kind::Thread`], which belongs to no CPU.
    pub cpu: u32,
    /// The kind of the event, with its data.
    pub kind: Kind,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// The CPU switches from one thread to another.
    Switch {
        /// The thread that leaves the CPU; [`IDLE`] for its idle thread.
        prev: Tid,
        /// The state in which `prev` leaves the CPU.
        prev_state: State,
        /// The thread that runs from now on; [`IDLE`] for the idle thread.
        next: Tid,
        /// The kernel's priority of `next`: 100 to 139 for nice -20 to 19, less for
        /// real-time, more for the idle thread.
        next_priority: i32,
    },
    /// A thread or an interrupt begins to wake a thread; the woken thread is ready from now on, unless it
    /// runs.
    Wakeup {
        /// The thread that is woken.
        thread: Tid,
        /// The thread that wakes it; an interrupt (a timer, a device) where absent.
        by: Option<Tid>,
        /// The CPU the woken thread was on last.
        last_cpu: u32,
    },
    /// A new thread is ready for the first time.
    New {
        /// The new thread. It belongs to the process of `by`, or is the first thread of its own process.
        thread: Thread,
        /// The thread that created it.
        by: Tid,
    },
    /// The thread exists: reported when the trace begins, or when the thread is first mentioned.
    Thread(Thread),
    /// A thread's name changes.
    Rename {
        /// The thread whose name changes.
        tid: Tid,
        /// The new name.
        name: Arc<str>,
    },
    /// Some events of this CPU are missing here.
    Lost,
}

/// The identity of a thread at a time: the kernel uses thread ids again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// The kernel's thread id.
    pub tid: Tid,
    /// The process of the thread: the thread id of the process's first thread.
    pub pid: Pid,
    /// The name of the thread; names of the kernel have 15 bytes at most.
    pub name: Arc<str>,
}

impl Thread {
    /// The process of the thread; where the process is not told (0), the thread by itself.
    pub fn process(&self) -> Pid {
        match self.pid {
            Pid(0) => Pid(self.tid.0),
            pid => pid,
        }
    }
}

/// The state in which a thread leaves its CPU: the bits that the kernel's `sched_switch` trace point reports
/// since 4.14.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State(pub u16);

impl State {
    /// The thread is still ready: its slice is over, it yielded, or the kernel preempts it on the way to user
    /// mode.
    pub const READY: State = State(0);
    /// The thread sleeps and signals wake it.
    pub const SLEEPING: State = State(0x01);
    /// The thread sleeps and signals do not wake it.
    pub const UNINTERRUPTIBLE: State = State(0x02);
    /// The thread has ended; its exit status will not be collected.
    pub const DEAD: State = State(0x10);
    /// The thread has ended; its parent has yet to collect its exit status.
    pub const ZOMBIE: State = State(0x20);
    /// The thread is still ready: preempted within the kernel.
    pub const PREEMPTED: State = State(0x100);

    /// Whether the thread still wants to run.
    pub fn is_ready(self) -> bool {
        self == State::READY || self.0 & State::PREEMPTED.0 != 0
    }

    /// Whether the thread will never run again.
    pub fn has_ended(self) -> bool {
        !self.is_ready() && self.0 & (State::DEAD.0 | State::ZOMBIE.0) != 0
    }
}
