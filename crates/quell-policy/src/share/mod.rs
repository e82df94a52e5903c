//! Shares of the whole host: how much CPU time every thread deserves, whatever CPUs it runs on.
//!
//! # Problem
//! A kernel that is fair on every CPU's own queue is not fair over the host: a thread that shares a
//! CPU with a sleeper gets more than one that does not, though both have the same weight. To measure
//! how far a scheduler is off, and to tell a tenant what it deserved and what it received, the ideal
//! has to be known, and by other means than the scheduler's own.
//!
//! # Approach
//! [`ideal()`] solves for it exactly: *weighted max-min fairness*. Of all feasible divisions, the
//! ideal gives most to the thread that has least for its weight, then most to the next, and so on: no
//! thread can have more except at the cost of one that has no more for its weight. That much is
//! common. Two choices are ours, where trees of groups meet threads that may not run everywhere:
//! - **Level by level.** The root's children are settled first, over all assignments of threads to
//!   CPUs that exist. Their totals stand from then on, and their children are settled, and so on
//!   down to the threads. So the total that a group deserves does not depend on its division inside
//!   the group, and no group pays for the structure of another.
//! - **A level at once.** The children of all groups of a level rise together, each in proportion
//!   to its weight, and where two of different groups compete for the same CPU, their weights count
//!   down.
//!
//! A thread uses at most one CPU at a time and each CPU runs one thread at a time. Rates describe
//! that sufficiently: rates of at most 1 for every thread and every CPU can always be laid out in time
//! so that no thread is on two CPUs at once (Birkhoff and von Neumann), so an assignment is a flow
//! from threads to CPUs.
//!
//! It follows from the definition that no CPU time is lost: the totals sum to the most that the
//! threads could use together. Migration is free here, caches and SMT do not exist: the ideal is an
//! upper bound, not a forecast.
//!
//! # Units
//! CPU time per time, in CPUs: 1.0 is one CPU all the time. Weights are cgroup v2's.

mod due;
mod flow;
mod ideal;
mod pieces;
mod policy;
mod problem;

pub use due::{Due, Dues, Seen};
pub use ideal::{Ideal, ideal};
pub use policy::Shares;
pub use problem::{Group, Problem, ProblemError, Thread};
