//! Scheduling classes: who runs where, and when.

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

/// Who gets a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// The thread.
    pub thread: ThreadId,
    /// How long it may run before the class is asked again; none: until it blocks or the CPU is kicked.
    pub turn: Option<Nanos>,
}

/// A scheduler. It sees the machine, and keeps the ready threads itself. Any crate can have one: it is given to
/// [`crate::Simulation::new`], or to a guest ([`crate::Vm`]).
pub trait Class {
    /// A thread becomes ready.
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId);

    /// A running thread ([`Machine::by`]) starts a process, whose only thread is this one, the newest. It is
    /// not ready yet.
    fn fork(&mut self, machine: &mut Machine, thread: ThreadId) {
        let _ = (machine, thread);
    }

    /// A thread that was forked becomes ready for the first time.
    fn wake_new(&mut self, machine: &mut Machine, thread: ThreadId) {
        self.wake(machine, thread);
    }

    /// A CPU needs a thread. `ran` ran there and is still ready: unless it is what is picked, it waits
    /// from here on.
    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick>;

    /// A thread that ran there blocks.
    fn block(&mut self, machine: &mut Machine, cpu: CpuId, thread: ThreadId) {
        let _ = (machine, cpu, thread);
    }

    /// A running thread ends, and will wake whoever waits for that.
    fn begin_exit(&mut self, thread: ThreadId) {
        let _ = thread;
    }

    /// A thread that ran there has ended.
    fn exit(&mut self, machine: &mut Machine, cpu: CpuId, thread: ThreadId) {
        self.block(machine, cpu, thread);
    }

    /// The CPU in whose queue a thread waits; none: a queue that is several CPUs', or it is not told.
    fn queued_on(&self, thread: ThreadId) -> Option<CpuId> {
        let _ = thread;
        None
    }

    /// Where a thread may run that is ready or runs has changed. One that waits where it may not any more goes elsewhere now;
    /// one that runs there has its CPU look after this, and [`Class::pick`] does not leave it there.
    fn set_allowed(&mut self, machine: &mut Machine, thread: ThreadId);

    /// What an agent wants of a thread; false if this class has no such setting.
    fn set_thread(
        &mut self,
        machine: &mut Machine,
        thread: ThreadId,
        setting: ThreadSetting,
    ) -> bool {
        let _ = (machine, thread, setting);
        false
    }

    /// Promises CPU time on a CPU; an error if this class promises nothing, or not that.
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

    /// The periodic tick of a CPU that runs a thread.
    fn tick(&mut self, machine: &mut Machine, cpu: CpuId) {
        let _ = (machine, cpu);
    }

    /// Whether what [`Machine::set_timer`] asked for is still wanted: a timer that was set anew, or stopped, does not go off.
    fn expects_timer(&self, _token: u32) -> bool {
        true
    }

    /// What [`Machine::set_timer`] asked for.
    fn timer(&mut self, machine: &mut Machine, token: u32) {
        let _ = (machine, token);
    }
}
