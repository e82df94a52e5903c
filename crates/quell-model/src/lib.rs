//! Quell's vocabulary, shared by every other crate and importing none of them.
//!
//! Data flows one way: *observe* fills a [`Snapshot`], *decide* (a pure policy) turns it into a
//! [`Plan`], *act* makes the difference between what holds and the plan. This crate holds those
//! two messages, the identifiers and units they are made of, and the one vocabulary of every TOML
//! file ([`config`]).
//!
//! Units: time is `u64` nanoseconds and field names end in `_ns`; weights are [`Weight`]; CPUs are
//! [`CpuId`] and [`CpuSet`].

pub mod config;
pub mod cpu;
pub mod effect;
pub mod ids;
pub mod plan;
pub mod shown;
pub mod snapshot;
pub mod weight;

pub use cpu::{Cpu, CpuId, CpuSet, Topology};
pub use effect::{Effect, EffectInterval, Finding, Lever};
pub use ids::{CgroupPath, Pid, TenantName, ThreadId, Tid};
pub use plan::{
    Advice, GivenServer, GroupPlan, NextTerms, Plan, PoolsPlan, Promise, Reason, Rule, ServerPlan,
    ServerTerms, TenantPlan, ThreadPlan, Verdict, WhatIf,
};
pub use shown::{shown, shown_json};
pub use snapshot::{
    CpuSample, Ended, GuestSample, HostSample, Occasions, ReadyTime, SchedClass, Snapshot, Source,
    TenantSample, ThreadRole, ThreadSample, ThreadSettings, ThreadState, WaitBreakdown, Waker,
};
pub use weight::{Nice, TenantWeight, Weight};
