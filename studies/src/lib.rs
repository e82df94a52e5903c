//! The studies that Quell is measured by. None of them is installed: `quell` is the product, `quell-studies`
//! its laboratory.
//!
//! [`standard`] has the tests that people run on a new scheduler; [`harm`] shows whether a side is worse than
//! the kernel's default on any scenario; [`hunt`] searches for workloads on which a light task waits too
//! long. [`shares`] and [`promises`] measure random hosts, [`acceptance`] what admission tests accept,
//! [`calibration`] the simulator beside real kernels. [`overhead`], [`agent_bench`] and [`sim_bench`] measure
//! costs, [`reproduce`] redoes papers' figures.

pub mod acceptance;
pub mod agent_bench;
pub mod baselines;
pub mod calibration;
pub mod catalogue;
pub mod classes;
pub mod cli;
pub mod commands;
pub mod harm;
pub mod hosts;
pub mod hunt;
pub mod overhead;
pub mod promises;
pub mod report;
pub mod reproduce;
pub mod shares;
pub mod sides;
pub mod sim_bench;
pub mod standard;

#[cfg(test)]
mod testing {
    use quell_bench::result::BenchResult;

    /// A result of two latency tenants and a batch tenant, sides `default` and `quell`.
    pub fn sample() -> BenchResult {
        let json = include_str!("../../crates/quell-bench/testdata/result.json");
        serde_json::from_str(json).unwrap()
    }
}
