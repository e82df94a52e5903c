//! Random hosts, from a seed each, measured one after the other.

use anyhow::ensure;
use quell_bench::progress::Progress;
use quell_bench::workload::Interrupted;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The hosts under one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideHosts<H> {
    /// The side's name.
    pub side: String,
    /// The hosts that were measured, by seed.
    pub hosts: Vec<H>,
    /// The hosts that could not be measured.
    pub failed: Vec<HostFailed>,
}

/// A host that could not be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostFailed {
    /// The seed that the host was drawn with.
    pub seed: u64,
    /// Why it could not be measured.
    pub why: String,
}

impl<H> SideHosts<H> {
    /// The hosts of a side, all of them measured.
    pub(crate) fn whole(side: String, hosts: Vec<H>) -> SideHosts<H> {
        SideHosts {
            side,
            hosts,
            failed: Vec::new(),
        }
    }

    /// Measures a host for each seed. A host that cannot be measured does not end the study, which may take
    /// an hour: it is listed in `failed`.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub(crate) fn measure(
        side: String,
        seeds: impl ExactSizeIterator<Item = u64>,
        interrupt: &AtomicBool,
        progress: &Progress,
        mut host: impl FnMut(u64) -> anyhow::Result<H>,
    ) -> anyhow::Result<SideHosts<H>> {
        let mut measured = SideHosts::whole(side, Vec::new());
        let all = seeds.len();
        for (number, seed) in seeds.enumerate() {
            let text = format!("{}: host {} of {all}", measured.side, number + 1);
            progress.step(Duration::ZERO, &text);
            match host(seed) {
                Ok(host) => measured.hosts.push(host),
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => {
                    let why = format!("{error:#}");
                    progress.say(&format!("{}: seed {seed}: {why}", measured.side));
                    measured.failed.push(HostFailed { seed, why });
                }
            }
            ensure!(!interrupt.load(Ordering::Relaxed), Interrupted);
        }
        Ok(measured)
    }
}
