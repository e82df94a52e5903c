//! How far the lab is with what takes long.

/// What is told while something takes long.
pub trait Progress {
    /// What is being done from now on.
    fn step(&self, text: &str);
    /// How much of it is done, 0 to 100.
    fn percent(&self, percent: f64);
}

/// Tells nothing.
#[derive(Debug, Clone, Copy)]
pub struct Quiet;

impl Progress for Quiet {
    fn step(&self, _: &str) {}
    fn percent(&self, _: f64) {}
}
