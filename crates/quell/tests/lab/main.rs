//! Tests in the lab's guests on their virtual clock. Where the lab has not been set up (`quell lab setup`,
//! `./dev test` does it), the tests are skipped: they never download by themselves.
//!
//! They are one program, because each guest is emulated by one CPU: programs of tests run one after the
//! other, and at the end of each program only one CPU would work.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../common/mod.rs"]
mod common;

mod agent;
mod bench;
mod churn;
mod found;
mod host;
mod sched;
