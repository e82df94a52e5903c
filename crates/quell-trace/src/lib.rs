//! Scheduling traces: who ran on each CPU, who was ready, who woke whom.
//!
//! Problem: what a scheduler does to a thread happens between two of an agent's readings. To see it, and to
//! compare a live host, the kernel lab's guest and the simulator, all three have to say it in one way.
//!
//! Approach: one small vocabulary ([`Event`]), one file format: Perfetto's, which `ui.perfetto.dev` shows and
//! whose trace processor queries with SQL. [`Writer`] and [`Reader`] stream it, an event at a time; [`Analyser`]
//! takes the same events and gives each thread's CPU time, run delays, switches, preemptions and migrations.
//!
//! Units: ns. A live host's times are CLOCK_BOOTTIME's, the simulator's count from its own beginning.

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
