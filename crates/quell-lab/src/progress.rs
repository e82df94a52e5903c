//! Reports of progress, where a step of the lab takes long.

/// Takes reports of progress while a download or a build goes on.
pub trait Progress {
    /// The step that begins now.
    fn step(&self, text: &str);
    /// How much of the step is done, 0 to 100.
    fn percent(&self, percent: f64);
}

/// Drops every report.
#[derive(Debug, Clone, Copy)]
pub struct Quiet;

impl Progress for Quiet {
    fn step(&self, _: &str) {}
    fn percent(&self, _: f64) {}
}
