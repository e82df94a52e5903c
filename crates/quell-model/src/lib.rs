//! The data types that all crates of Quell share. This crate imports no other crate of Quell.
//!
//! Data flows one way: *observe* fills a [`Snapshot`], *decide* (a pure policy) turns it into a
//! [`Plan`], and *act* changes the host until the plan holds and answers with an [`ApplyReport`]. This crate
//! holds those three messages, the identifiers and units they are made of, and the agent's configuration
//! ([`config`]). Scenarios are in `quell-scenario`.
//!
//! Units: time is `u64` nanoseconds and field names end in `_ns`; weights are [`Weight`]; CPUs are
//! [`CpuId`] and [`CpuSet`].
//!
//! ```
//! use quell_model::config::AgentFile;
//! use quell_model::{CpuId, CpuSet, Nice, Weight};
//! use std::path::Path;
//!
//! let cpus: CpuSet = "0-2,8".parse().unwrap();
//! assert!(cpus.contains(CpuId(8)) && cpus.len() == 4);
//! assert_eq!(Nice::new(0).unwrap().weight(), Weight::NICE_0);
//!
//! let text = "[[tenant]]\nname = \"web\"\nunit = \"nginx.service\"\nweight = 200\n";
//! let file = AgentFile::parse(Path::new("quell.toml"), text).unwrap();
//! assert_eq!(file.tenants[0].spec.weight().0, 200);
//! ```

pub mod config;
pub mod cpu;
pub mod effect;
pub mod ids;
pub mod plan;
pub mod report;
pub mod shown;
pub mod snapshot;
pub mod weight;

pub use cpu::{Cpu, CpuId, CpuSet, Topology};
pub use effect::{Effect, EffectInterval, Finding, Lever};
pub use ids::{CgroupPath, Pid, TenantName, ThreadId, Tid};
pub use plan::{
    Advice, GroupPlan, NextTerms, Plan, PoolsPlan, Promise, Reason, Reservation, Rule, ServerPlan,
    ServerTerms, TenantPlan, ThreadPlan, Verdict, WhatIf,
};
pub use report::{ApplyReport, Note, RestoreReport, Subject, Writes};
pub use shown::{shown, shown_json};
pub use snapshot::{
    CpuSample, Ended, GuestSample, HostSample, Labels, Occasions, ReadyTime, SchedClass, Snapshot,
    Source, TenantSample, ThreadRole, ThreadSample, ThreadSettings, ThreadState, WaitBreakdown,
    Waker, place_near,
};
pub use weight::{Nice, TenantWeight, Weight};
