//! Scheduling traces: which thread ran on each CPU, which threads were ready, and which woke which.
//!
//! Problem: the scheduling of a thread happens between two readings of an agent. To see it, and to compare a
//! live host, the kernel lab's guest and the simulator, all three have to report it in one form.
//!
//! Approach: one small vocabulary ([`Event`]), one file format: Perfetto's, which `ui.perfetto.dev` shows and
//! whose trace processor queries with SQL. [`Writer`] and [`Reader`] stream it, an event at a time;
//! [`Analyser`] takes the same events and gives each thread's CPU time, run delays, switches, preemptions and
//! migrations.
//!
//! Units: ns. Times of a live host are of CLOCK_BOOTTIME, times of the simulator count from its own
//! beginning.
//!
//! ```
//! use quell_model::Tid;
//! use quell_trace::{Analyser, Event, IDLE, Kind, State};
//!
//! // CPU 0 switches to a thread at 100 ns, and back to its idle thread at 350 ns.
//! let switch = |at_ns, prev, next| Event {
//!     at_ns,
//!     cpu: 0,
//!     kind: Kind::Switch { prev, prev_state: State::SLEEPING, next, next_priority: 120 },
//! };
//! let mut analyser = Analyser::default();
//! analyser.add(&switch(100, IDLE, Tid(7)));
//! analyser.add(&switch(350, Tid(7), IDLE));
//! assert_eq!(analyser.finish(None).threads[0].run_ns, 250);
//! ```

mod analysis;
mod compact;
mod event;
mod packets;
mod proto;
mod reader;
mod threads;
mod writer;

pub use analysis::{Analyser, Analysis, Delays, Gaps, ProcessStats, ThreadStats};
pub use event::{Event, IDLE, Kind, State, Thread};
pub use reader::{ReadError, Reader, Told};
pub use writer::{Clocks, System, Writer};
