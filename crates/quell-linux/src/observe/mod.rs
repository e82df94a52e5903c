//! What a live host does: filled by the BPF monitor, or by sampling `/proc` where BPF cannot load.

pub mod monitor;
