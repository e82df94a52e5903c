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

/// Measures a scenario at every point; each point comes with the settings that make it (as `KEY=VALUE`). An
/// interrupt ends the sweep with the points measured so far.
///
/// # Errors
/// [`Interrupted`] where no point was measured; else as [`measure`].
pub fn run(
    keys: Vec<String>,
    points: &[(BenchOptions, Vec<String>)],
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Swept> {
    let results = measure(points, interrupt, progress)?;
    let swept = Swept {
        schema: SCHEMA,
        keys,
        complete: results
            .iter()
            .all(|it| it.as_ref().is_some_and(|it| it.complete)),
        points: results.into_iter().flatten().collect(),
    };
    anyhow::ensure!(!swept.points.is_empty(), Interrupted);
    Ok(swept)
}

/// Measures the points, several at once; each point comes with the settings that make it (as `KEY=VALUE`).
/// After an interrupt a point without a complete pair is `None`.
///
/// # Errors
/// A point that the simulator cannot run ([`simulated::check`]), and what fails while points are simulated.
pub fn measure(
    points: &[(BenchOptions, Vec<String>)],
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Vec<Option<BenchResult>>> {
    for (options, _) in points {
        simulated::check(options)?;
    }
    // The raw runs of a point stay in memory until the point is summarised, so only a few points are
    // simulated at a time.
    let at_once = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut all = Vec::new();
    for some in points.chunks(at_once) {
        if interrupt.load(Ordering::Relaxed) {
            break;
        }
        let options: Vec<BenchOptions> = some.iter().map(|(options, _)| options.clone()).collect();
        let results =
            simulated::run_all(&options, interrupt, progress).inspect_err(|_| progress.finish())?;
        all.extend(results.into_iter().zip(some).map(|(result, (_, set))| {
            let mut result = result?;
            result.options.set.clone_from(set);
            Some(result)
        }));
    }
    all.resize_with(points.len(), || None);
    progress.finish();
    Ok(all)
}
