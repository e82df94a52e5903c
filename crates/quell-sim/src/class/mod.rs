//! Scheduling classes: which thread runs on which CPU, and for how long.

mod fair;
mod fifo;
mod sched_ext;

pub use fair::Fair;
pub use fifo::Fifo;
pub use sched_ext::SchedExt;

use crate::events::Nanos;
use crate::machine::{Machine, ThreadId};
use quell_model::CpuId;
use quell_sched::{SchedError, ServerSetting, ThreadSetting};

/// The thread that gets a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// The thread.
    pub thread: ThreadId,
    /// The slice: how long the thread may run before the class is asked again, in ns; `None`: until the
    /// thread blocks or the CPU is kicked.
    pub turn: Option<Nanos>,
}

/// A scheduler. It sees the machine, and keeps the queues of ready threads itself.
pub trait Class {
    /// A thread becomes ready.
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId);

    /// A running thread ([`Machine::by`]) starts a process. `thread` is its only thread and the newest of the
    /// machine; it is not ready yet.
    fn fork(&mut self, machine: &mut Machine, thread: ThreadId) {
        let _ = (machine, thread);
    }

    /// A forked thread becomes ready for the first time.
    fn wake_new(&mut self, machine: &mut Machine, thread: ThreadId) {
        self.wake(machine, thread);
    }

    /// Picks the next thread of a CPU; `None`: the CPU idles. `ran` ran there and is still ready: unless it
    /// is picked again, it waits from now on.
    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick>;

    /// The thread that ran on the CPU blocks.
    fn block(&mut self, machine: &mut Machine, cpu: CpuId, thread: ThreadId) {
        let _ = (machine, cpu, thread);
    }

    /// A running thread begins to end, before the wakeup of its parent.
    fn begin_exit(&mut self, thread: ThreadId) {
        let _ = thread;
    }

    /// The thread that ran on the CPU has ended.
    fn exit(&mut self, machine: &mut Machine, cpu: CpuId, thread: ThreadId) {
        self.block(machine, cpu, thread);
    }

    /// The CPU in whose runqueue a ready thread waits; `None` if several CPUs share the queue, or the class
    /// does not say.
    fn queued_on(&self, thread: ThreadId) -> Option<CpuId> {
        let _ = thread;
        None
    }

    /// The affinity of a thread that is ready or runs has changed. A thread that waits where it may not run
    /// has to go elsewhere now. A CPU whose thread may not run there any more reschedules after this call,
    /// and [`Class::pick`] must not pick that thread for it.
    fn set_allowed(&mut self, machine: &mut Machine, thread: ThreadId);

    /// Takes over a thread's setting; false if the class has no such setting.
    fn set_thread(
        &mut self,
        machine: &mut Machine,
        thread: ThreadId,
        setting: ThreadSetting,
    ) -> bool {
        let _ = (machine, thread, setting);
        false
    }

    /// Sets the server of a CPU.
    ///
    /// # Errors
    /// Where the class has no servers, and where it refuses the setting.
    fn set_server(
        &mut self,
        machine: &mut Machine,
        setting: ServerSetting,
    ) -> Result<(), SchedError> {
        let _ = (machine, setting);
        Err(SchedError::Refused {
            reason: "this scheduler has no servers".into(),
            log: String::new(),
        })
    }

    /// The scheduler tick of a CPU that runs a thread.
    fn tick(&mut self, machine: &mut Machine, cpu: CpuId) {
        let _ = (machine, cpu);
    }

    /// Whether a timer of [`Machine::set_timer`] is still to go off: false for one that was stopped or set
    /// anew.
    fn expects_timer(&self, _token: u32) -> bool {
        true
    }

    /// A timer of [`Machine::set_timer`] goes off.
    fn timer(&mut self, machine: &mut Machine, token: u32) {
        let _ = (machine, token);
    }
}
