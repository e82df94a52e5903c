//! Scheduling events, and the callbacks that are told of them.

use crate::events::Nanos;
use crate::machine::ThreadId;
use quell_model::CpuId;

/// A scheduling event, of which observers are told when the kernel decides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// A thread becomes ready (sched_wakeup).
    Wakeup {
        /// The thread that becomes ready.
        thread: ThreadId,
        /// The waker; `None`: an interrupt.
        by: Option<ThreadId>,
        /// The CPU on which the wakeup happens.
        cpu: CpuId,
    },
    /// A thread starts a process (sched_process_fork); the process's only thread is the newest, and is woken
    /// soon.
    Fork {
        /// The thread of the new process.
        thread: ThreadId,
        /// The parent.
        by: ThreadId,
        /// The parent's CPU.
        cpu: CpuId,
    },
    /// A CPU switches from one thread to another (sched_switch).
    Switch {
        /// The CPU that switches.
        cpu: CpuId,
        /// The previous thread, and whether it is still ready; `None`: the CPU idled.
        left: Option<(ThreadId, bool)>,
        /// The next thread; `None`: the CPU idles.
        next: Option<ThreadId>,
    },
}

/// A callback that gets the present, the time of the event, and the event. The event's time is the present or
/// later, as kernel work that the CPU has yet to do comes first; on one CPU the times of events never go
/// back.
pub type Observer = Box<dyn FnMut(Nanos, Nanos, Happening)>;
