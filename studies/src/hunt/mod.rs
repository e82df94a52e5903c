//! The hunt: random workloads on which a light task waits too long: `quell-studies hunt`.
//!
//! Problem: how a scheduler treats short wakeups depends on all other tasks, and no list of cases that people
//! think of has every combination. How: workloads are drawn, from a seed each, with everything that the
//! simulator has ([`workload`]): loops, periodic tasks, messages, fork-joins, and processes that begin and
//! end; in cgroups, with different weights, bound to CPUs. Each runs under a reference and under other sides.
//! Light tasks are to wait no longer than for a slice ([`light`]); their 99th percentiles are compared
//! ([`score`]). The worst workloads are made smaller ([`shrink`]), and can be kept as cases for tests
//! ([`Case`]).
//!
//! Limits: simulated machines of up to 8 CPUs and some 70 threads, for some seconds each; without cpu.max,
//! which the reference does not have there.

pub mod confirm;
pub mod light;
pub mod measure;
mod random;
pub mod score;
mod search;
pub mod shrink;
mod table;
pub mod workload;

pub use score::{LIMIT, SLICE_MS, Score, judge};
pub use search::hunt;
pub use table::table;
pub use workload::Workload;

use anyhow::Context;
use quell_bench::side::Side;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long each workload runs after its warm-up unless told otherwise, in s.
pub const SECONDS: f64 = 4.0;

/// What to search.
#[derive(Debug, Clone)]
pub struct HuntOptions {
    /// The sides, the reference first.
    pub sides: Vec<Side>,
    /// How many workloads are drawn.
    pub workloads: u64,
    /// The seed of the first workload; each further workload has the next seed.
    pub seed: u64,
    /// For how long new workloads are begun at most.
    pub limit: Option<Duration>,
    /// How long each workload runs after its warm-up, in s.
    pub seconds: f64,
    /// A folder for the finds.
    pub keep: Option<PathBuf>,
}

/// The result; the JSON of `quell-studies hunt --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hunt {
    /// [`quell_bench::result::SCHEMA`].
    pub schema: u32,
    /// The version of Quell that measured.
    pub quell_version: String,
    /// The side that the others are compared with.
    pub reference: String,
    /// How long each workload ran after its warm-up, in s.
    pub seconds: f64,
    /// Whether the search was interrupted, so that finds are as they were drawn.
    pub interrupted: bool,
    /// The finds of each side but the reference.
    pub sides: Vec<SideFinds>,
}

/// The finds of a side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideFinds {
    /// Its name.
    pub side: String,
    /// The number of workloads that ran.
    pub workloads: u64,
    /// The number of workloads on which some light task waited too long.
    pub exceeding: u64,
    /// The median, the 90th and the 99th percentile of workloads' greatest ratios.
    pub ratios: [f64; 3],
    /// The worst workloads, each of another kind, made smaller.
    pub finds: Vec<Find>,
    /// The workloads on which groups' shares differ most from the reference's, as they were drawn.
    pub shares: Vec<Find>,
}

/// A workload on which a light task waits too long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Find {
    /// The seed that the workload was drawn with.
    pub seed: u64,
    /// The workload's score.
    pub score: Score,
    /// The ratio of its score before it was made smaller.
    pub drawn_ratio: f64,
    /// The workload.
    pub workload: Workload,
}

/// A kept find: the text of a file that a test can read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What was found, in words.
    pub found: String,
    /// The seed that the workload was drawn with.
    pub seed: u64,
    /// How long it ran after its warm-up, in s.
    pub seconds: f64,
    /// The workload.
    pub workload: Workload,
}

impl Case {
    /// Reads a case from a file.
    ///
    /// # Errors
    /// Where the file cannot be read, or is no case.
    pub fn read(file: &Path) -> anyhow::Result<Case> {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        toml::from_str(&text).with_context(|| file.display().to_string())
    }

    /// Writes the case into a folder, as SIDE-SEED.toml.
    fn write(&self, folder: &Path, side: &str) -> anyhow::Result<()> {
        let file = folder.join(format!("{side}-{}.toml", self.seed));
        let text = toml::to_string(self)?;
        std::fs::write(&file, text).with_context(|| file.display().to_string())
    }
}

/// Writes all finds of all sides into a folder, which must exist.
///
/// # Errors
/// Where a file cannot be written.
pub fn keep(hunt: &Hunt, folder: &Path) -> anyhow::Result<()> {
    for side in &hunt.sides {
        for find in &side.finds {
            let case = Case {
                found: find.told(&side.side, &hunt.reference),
                seed: find.seed,
                seconds: hunt.seconds,
                workload: find.workload.clone(),
            };
            case.write(folder, &side.side)?;
        }
    }
    Ok(())
}

impl Find {
    /// What was found, in words.
    pub fn told(&self, side: &str, reference: &str) -> String {
        let Score {
            ratio,
            light,
            reference: of,
            ..
        } = &self.score;
        let task = self.workload.tasks.get(light.task);
        let who = task.map(|task| task.to_string()).unwrap_or_default();
        format!(
            "{who}: p99 {:.2} ms, worst {:.2}, {} wakeups under {side}; \
             {:.2}, {:.2}, {} under {reference}; ratio {ratio:.1}",
            light.p99_ms, light.worst_ms, light.served, of.p99_ms, of.worst_ms, of.served
        )
    }
}
