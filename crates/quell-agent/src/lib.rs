//! The control loop and its API: the only place that joins observe, decide and act.

pub mod client;
mod edges;
pub mod wire;

pub use edges::Missing;
