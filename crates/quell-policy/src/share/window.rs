//! The ideal over a window in which demands, threads' CPUs or weights change.

use super::{Ideal, Problem, ProblemError, ideal};

/// Why there is no ideal over a window. Pieces are named by their indices, from 0.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WindowError {
    /// The window has no length.
    #[error("the window's pieces last 0 ns together")]
    Empty,
    /// A piece has other numbers of groups or threads than the first.
    #[error("piece {piece} of the window has other numbers of groups or threads than the first")]
    Different {
        /// The piece's index.
        piece: usize,
    },
    /// A piece is an invalid problem.
    #[error("piece {piece} of the window: {error}")]
    Problem {
        /// The piece's index.
        piece: usize,
        /// The fault of the problem.
        #[source]
        error: ProblemError,
    },
}

/// The mean of the ideals of a window's pieces, each for its length in ns, in CPUs.
///
/// All pieces must list the same groups and threads in the same order; a thread that does not exist in
/// a piece has no demand in it. Pieces are independent: a thread without demand in one piece deserves
/// no more in the next.
///
/// # Errors
/// The window is empty, its pieces do not match, or a piece is invalid.
pub fn ideal_over(window: &[(u64, Problem)]) -> Result<Ideal, WindowError> {
    let whole: f64 = window.iter().map(|&(ns, _)| ns as f64).sum();
    let shape = |problem: &Problem| (problem.groups.len(), problem.threads.len());
    let (groups, threads) = match window.first() {
        Some((_, first)) if whole > 0.0 => shape(first),
        _ => return Err(WindowError::Empty),
    };
    let mut mean = Ideal {
        groups: vec![0.0; groups],
        threads: vec![0.0; threads],
    };
    for (piece, (ns, problem)) in window.iter().enumerate() {
        if shape(problem) != (groups, threads) {
            return Err(WindowError::Different { piece });
        }
        let part = ideal(problem).map_err(|error| WindowError::Problem { piece, error })?;
        let fraction = *ns as f64 / whole;
        let sums = mean.groups.iter_mut().chain(&mut mean.threads);
        for (sum, rate) in sums.zip(part.groups.iter().chain(&part.threads)) {
            *sum += fraction * rate;
        }
    }
    Ok(mean)
}
