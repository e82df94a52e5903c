//! A simulated machine: CPUs, scheduling classes and scenario programs in virtual time.
//!
//! Problem: capacity questions need machines nobody has at hand, and answers in seconds. Approach: a discrete-event
//! machine whose threads run the programs of scenarios and whose scheduler is a [`Class`]; what the
//! machine's own work costs is a parameter ([`Costs`]). The same seed gives the same course on every machine.
//!
//! A simulation ([`Simulation`]) is one thread's: many run side by side. Times are nanoseconds of virtual time.

mod class;
mod events;
mod kernel;
mod machine;
mod monitor;
mod program;
mod recorded;
mod simulation;
mod vm;
mod workload;

pub use class::{Class, Fair, Fifo, Pick, SchedExt};
pub use events::Nanos;
pub use machine::{Costs, Cpu, Group, GroupId, Limit, Machine, State, Thread, ThreadId};
pub use monitor::{Monitor, thread_of};
pub use recorded::Act;
pub use simulation::{Happening, Load, Observer, Simulation, Tenant};
pub use vm::{Vm, VmCosts, VmId, VmStats};
pub use workload::{Answer, Request};
