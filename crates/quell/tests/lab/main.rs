//! What runs in the lab's guests on their virtual clock. Where the lab has not been set up (`quell lab
//! setup`, `./dev test` does it), the tests say so and pass: they never download by themselves.
//!
//! One program, because guests are emulated by one CPU each: programs of tests run one after the other, and
//! at the end of each only one CPU works.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../common/mod.rs"]
mod common;

mod agent;
mod bench;
mod sched;
