//! The measured effect of Quell itself on a host.

use crate::TenantName;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A part of what the agent does that can act and rest; its effect is the difference between the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lever {
    /// Quell's scheduler, in place of the kernel's.
    Scheduler,
    /// DASEC's feedback: the allocator, the adjuster and the resolver, all that are on.
    Feedback,
    /// All that Quell does, weights and promises included.
    All,
}

impl Lever {
    /// The lever's stable name, as the API and metrics spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Lever::Scheduler => "scheduler",
            Lever::Feedback => "feedback",
            Lever::All => "all",
        }
    }
}

impl fmt::Display for Lever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The result of a lever's trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// No trial has ended.
    Untried,
    /// Response times are shorter where the lever acts.
    Helps,
    /// Response times are longer where the lever acts.
    Harms,
    /// A whole trial showed neither an improvement nor a harm.
    NothingShown,
}

impl Finding {
    /// The finding's name, as the API and metrics spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Finding::Untried => "untried",
            Finding::Helps => "helps",
            Finding::Harms => "harms",
            Finding::NothingShown => "nothing_shown",
        }
    }
}

/// A lever, its state and its measured effect. Times are CLOCK_MONOTONIC, in ns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// The lever that the figures are about.
    pub lever: Lever,
    /// Whether the lever acts outside the blocks of a trial.
    pub acts: bool,
    /// The finding of the trials so far.
    pub finding: Finding,
    /// When the finding was made; the time of the first snapshot where there is none yet.
    pub since_ns: u64,
    /// When the next pair of blocks may begin, if the host is busy then.
    pub next_ns: u64,
    /// Pairs of blocks that the figures rest on: of the last trial, or of the checks since it.
    pub pairs: u64,
    /// Pairs since the start that gave no result: the host was not busy, or too few responses were seen.
    pub void: u64,
    /// The lever's effect on response times, over all tenants; `None`: too few pairs for an interval.
    pub responses: Option<EffectInterval>,
    /// The lever's effect on the response times of each tenant that has enough pairs for an interval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<(TenantName, EffectInterval)>,
}

/// The ratio of mean response times, lever acting to lever resting: 0.8 is 20 % less.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EffectInterval {
    /// The point estimate.
    pub ratio: f64,
    /// The lower bound of the confidence interval.
    pub low: f64,
    /// The upper bound of the confidence interval.
    pub high: f64,
}
