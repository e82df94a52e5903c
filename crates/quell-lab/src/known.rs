//! The kernels that the lab can fetch.

/// A kernel that the lab can fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) name: &'static str,
    /// The Debian suite that has it as its newest cloud kernel.
    pub(crate) suite: &'static str,
}

/// Only sid's kernel is built with sched_ext and has BTF that schedulers load against. The others are the
/// kernels of stable releases.
pub(crate) const KNOWN: [Known; 3] = [
    Known {
        name: "sched_ext",
        suite: "sid",
    },
    Known {
        name: "6.12",
        suite: "trixie",
    },
    Known {
        name: "6.1",
        suite: "bookworm",
    },
];

/// The kernels' names, for messages.
pub(crate) fn names() -> String {
    KNOWN.map(|known| known.name).join(", ")
}
