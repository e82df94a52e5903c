//! Parameter sweeps on the simulator: one scenario at every combination of some values.

use crate::progress::Progress;
use crate::result::{BenchResult, SCHEMA};
use crate::run::{BenchOptions, simulated};
use crate::workload::Interrupted;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a sweep found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Swept {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The keys that were varied, in the order given.
    pub keys: Vec<String>,
    /// Whether every point was measured to its end.
    pub complete: bool,
    /// The points, the last key varying fastest; `options.set` says what each has.
    pub points: Vec<BenchResult>,
}

/// Measures every point; each comes with what it sets (as `KEY=VALUE`). Setting `interrupt` ends it with the points done
/// so far, or with [`Interrupted`] when there is none.
pub fn run(
    keys: Vec<String>,
    points: &[(BenchOptions, Vec<String>)],
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Swept> {
    for (options, _) in points {
        simulated::check(options)?;
    }
    // What was simulated is kept whole until its point is summarised, so a few points at a time.
    let at_once = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut swept = Swept {
        schema: SCHEMA,
        keys,
        complete: true,
        points: Vec::new(),
    };
    for some in points.chunks(at_once) {
        let options: Vec<BenchOptions> = some.iter().map(|(options, _)| options.clone()).collect();
        let results =
            simulated::run_all(&options, interrupt, progress).inspect_err(|_| progress.finish())?;
        for (result, (_, set)) in results.into_iter().zip(some) {
            let Some(mut result) = result else { continue };
            result.options.set.clone_from(set);
            swept.points.push(result);
        }
        if interrupt.load(Ordering::Relaxed) {
            break;
        }
    }
    progress.finish();
    anyhow::ensure!(!swept.points.is_empty(), Interrupted);
    swept.complete =
        swept.points.len() == points.len() && swept.points.iter().all(|point| point.complete);
    Ok(swept)
}
