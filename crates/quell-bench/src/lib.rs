//! Benchmarks: one scenario, several schedulers, an honest comparison.
//!
//! [`run`] plays a scenario under each side in interleaved pairs, [`stats`] compares the pairs,
//! [`result`] is what was found and its JSON, [`report`] shows it in a terminal and in HTML.
//! [`agent_bench`] measures what the agent itself costs, [`capacity`] how many tenants fit,
//! [`sweep`] a scenario at many points.

pub mod acceptance;
pub mod agent_bench;
pub mod calibration;
pub mod capacity;
pub mod harm;
pub mod hosts;
pub mod hunt;
pub mod import;
pub mod overhead;
pub mod progress;
pub mod promises;
pub mod proof;
pub mod replay;
pub mod report;
pub mod reproduce;
pub mod result;
pub mod run;
pub mod set;
pub mod shares;
pub mod side;
pub mod sim_bench;
pub mod standard;
pub mod stats;
pub mod sweep;
pub mod workload;
