//! What this host lets Quell change. The reports of acting and undoing are `quell_model`'s.

pub use quell_model::report::{ApplyReport, Note, RestoreReport, Subject, Writes, list};
use serde::Serialize;
use std::fmt;

/// The kinds of settings that this host lets Quell change, found by trial on Quell's own threads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// The kernel's release, such as `6.12.9-amd64`.
    pub kernel: String,
    /// Thread weights, through nice values.
    pub nice: Capability,
    /// Rescheduling latencies, through EEVDF's custom slices (Linux >= 6.12).
    pub slice: Capability,
    /// Layout, through CPU affinity.
    pub affinity: Capability,
    /// Tenant weights, through the cgroups' CPU controller (v1 or v2).
    pub cgroup_weight: Capability,
    /// Other limits of the effect, such as autogroups.
    pub notes: Vec<String>,
}

/// Whether one kind of setting can be changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// Whether it can be changed.
    pub available: bool,
    /// The means and their limits, or the reason why it cannot be changed.
    pub detail: String,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}",
            if self.available { "yes" } else { "no" },
            self.detail
        )
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Linux {}", self.kernel)?;
        writeln!(f, "  nice           {}", self.nice)?;
        writeln!(f, "  slice          {}", self.slice)?;
        writeln!(f, "  affinity       {}", self.affinity)?;
        write!(f, "  cgroup weight  {}", self.cgroup_weight)?;
        self.notes
            .iter()
            .try_for_each(|note| write!(f, "\n  note: {note}"))
    }
}
