//! The control step: observe, decide and act, the same code for a host and for a simulated machine.
//!
//! - [`period()`] is one step of a control loop: a snapshot from [`Observe`], a plan from the
//!   [`Policy`](quell_policy::Policy) that decides for all mechanisms in force, and the plan carried out by
//!   [`Act`]. The agent of a host and the simulator each have a loop around it, because they wait for the
//!   next period in different ways.
//! - [`SchedulerActuator`] is the apply step where Quell's scheduler runs: from a plan, and what the
//!   scheduler was told before, to calls on the scheduler ([`SchedulerCalls`]).
//!
//! This crate changes nothing itself. A host's observer and stock interfaces are in `quell-linux`, the loaded
//! scheduler is in `quell-sched`, and a simulated machine is in `quell-sim`.

mod period;
mod scheduler;
mod servers;

pub use period::{Act, Cost, Listen, Observe, Period, period};
pub use scheduler::{SchedulerActuator, SchedulerCalls};
pub use servers::PromisedServers;
