//! What Quell's own effect on a host was measured to be.

use crate::TenantName;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A part of what the agent does that can act and rest, and whose effect is measured so.
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
    /// Its stable name, as the API and metrics spell it.
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

/// What trials have shown of a lever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// No trial has ended.
    Untried,
    /// Responses are shorter where it acts.
    Helps,
    /// They are longer.
    Harms,
    /// A whole trial showed neither.
    NothingShown,
}

impl Finding {
    /// As the API and metrics spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Finding::Untried => "untried",
            Finding::Helps => "helps",
            Finding::Harms => "harms",
            Finding::NothingShown => "nothing_shown",
        }
    }
}

/// A lever, what it does and what is known of it. Times are CLOCK_MONOTONIC, in ns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Which.
    pub lever: Lever,
    /// Whether it acts, but for the blocks of a trial.
    pub acts: bool,
    /// What trials have shown.
    pub finding: Finding,
    /// When that was found; at the start, where nothing was.
    pub since_ns: u64,
    /// When the next pair of blocks may begin, if the host is busy then.
    pub next_ns: u64,
    /// Pairs of blocks that the figures rest on: of the last trial, or of the checks since it.
    pub pairs: u64,
    /// Pairs since the start that said nothing: the host was not busy, or too few responses were seen.
    pub void: u64,
    /// What it does to responses, over all tenants; `None`: too few pairs to say.
    pub responses: Option<EffectInterval>,
    /// To those of each tenant of which enough pairs can say something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<(TenantName, EffectInterval)>,
}

/// Mean responses where a lever acts as a part of those where it rests: 0.8 is 20 % less.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EffectInterval {
    /// The best guess.
    pub ratio: f64,
    /// The least that is not ruled out.
    pub low: f64,
    /// The most that is not ruled out.
    pub high: f64,
}
