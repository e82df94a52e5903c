//! What the loader shares with the BPF programs: structures and constants of `bpf/` and
//! `policy/`, which the build script writes from the compiler's description of them.

pub use quell_bpf::{Plain, as_bytes, from_bytes};

include!(concat!(env!("OUT_DIR"), "/shared.rs"));

impl ServerCtx {
    /// The CPU time that the server got, and the periods that it missed.
    pub fn stats(&self) -> crate::ServerStats {
        crate::ServerStats {
            used_ns: self.cur.used_ns,
            missed: self.missed,
        }
    }
}

/// A sum of weights (fair.h) in the scale of cgroup v2.
pub fn weight(raw: u64) -> f64 {
    // As signed: a sum below 0, which would be an error, shows as such.
    raw as i64 as f64 / f64::from(1 << WEIGHT_SHIFT)
}
