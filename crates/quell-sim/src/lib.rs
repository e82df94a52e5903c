//! A simulated machine: CPUs, scheduling classes and scenario programs in virtual time.
//!
//! Problem: capacity questions need machines that nobody has at hand, and answers in seconds. Approach: a
//! discrete-event simulation of a machine; its threads run the programs of scenarios, and its scheduler is a
//! [`Class`]. The cost of kernel work is a parameter ([`Costs`]). Limits: each class says at the top of its
//! file what it leaves out.
//!
//! A simulation is deterministic: the same seed gives the same sequence of events on every machine. A
//! [`Simulation`] is used by one host thread; any number of them run side by side. Units: times are
//! nanoseconds of virtual time.
//!
//! # Example
//!
//! A server of one thread on one CPU; requests of 100 us are due every 50 us, so each waits longer than the
//! one before it:
//!
//! ```
//! use quell_model::Topology;
//! use quell_scenario::{Count, Step, ThreadProgram, TimeUs};
//! use quell_sim::{Costs, Fifo, Request, Simulation, Tenant};
//!
//! let work = Step::RunUs(TimeUs::Constant(100.0));
//! let program = vec![Step::Request, work, Step::Respond];
//! let server = ThreadProgram::new("server", Count::Fixed(1), program);
//! let requests = (0..3).map(|seed| Request { due: seed * 50_000, seed });
//!
//! let scheduler = Box::new(Fifo::new(None));
//! let mut simulation = Simulation::new(Topology::flat(1), Costs::NONE, scheduler);
//! simulation.add_tenant(Tenant::new(&[server], Some(Box::new(requests))));
//! let answers = simulation.run_until(1_000_000);
//!
//! let latencies: Vec<u64> = answers.iter().map(|answer| answer.at - answer.due).collect();
//! assert_eq!(latencies, [100_000, 150_000, 200_000]);
//! ```

mod class;
mod events;
mod happening;
mod kernel;
mod machine;
mod monitor;
mod program;
mod recorded;
mod simulation;
mod workload;

pub use class::{Class, Fair, Fifo, Pick, SchedExt};
pub use events::Nanos;
pub use happening::{Happening, Observer};
pub use machine::{Costs, Cpu, Group, GroupId, Limit, Machine, State, Thread, ThreadId};
pub use monitor::{Monitor, thread_of};
pub use recorded::Act;
pub use simulation::{Simulation, Tenant, Vm, VmCosts, VmId, VmStats};
pub use workload::{Answer, Load, Request};
