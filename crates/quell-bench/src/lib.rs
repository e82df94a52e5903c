//! Benchmarks: one scenario, several schedulers, an honest comparison.
//!
//! [`run`] plays a scenario under each side in interleaved pairs, [`stats`] compares the pairs, [`result`] is
//! what was measured and its JSON, [`report`] shows it in a terminal and in HTML. [`capacity`] finds how many
//! tenants fit, [`sweep`] measures a scenario at many points.

pub mod capacity;
pub mod import;
pub mod progress;
pub mod proof;
pub mod replay;
pub mod report;
pub mod result;
pub mod run;
pub mod side;
pub mod stats;
pub mod sweep;
pub mod workload;
