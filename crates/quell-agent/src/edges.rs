//! The loop's two edges, observe and act, as it sees them: a live host, or in tests a recording.

use serde::{Deserialize, Serialize};

/// Something the host or the user does not allow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// What is missing, such as `CAP_BPF` or `custom slices`.
    pub what: String,
    /// What does not work without it, and how to get it.
    pub remedy: String,
}
