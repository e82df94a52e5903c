//! The kernels that the lab can fetch.

/// A kernel that the lab can fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) name: &'static str,
    /// The Debian suite whose newest cloud kernel it is.
    pub(crate) suite: &'static str,
}

/// sid's is the only one of Debian's that is built with sched_ext and has BTF that schedulers load
/// against. The others are what stable releases run.
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

/// Their names, for messages.
pub(crate) fn names() -> String {
    KNOWN.map(|known| known.name).join(", ")
}
