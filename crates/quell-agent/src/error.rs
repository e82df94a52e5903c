//! The reasons why the agent could not start or had to end.

use quell_linux::act::ActError;
use quell_linux::observe::ObserveError;
use quell_model::config::ConfigError;
use std::io;
use std::path::PathBuf;

/// The reason why the agent could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration cannot be read.
    #[error("{}: cannot be read: {source}; name the configuration with `-c FILE`", path.display())]
    ReadConfig {
        /// The file.
        path: PathBuf,
        /// The error of the read.
        source: io::Error,
    },
    /// The host cannot be observed.
    #[error("cannot observe this host: {0}")]
    Observe(#[from] ObserveError),
    /// The host cannot be changed safely.
    #[error(
        "cannot act on this host: {0}; `quell run --dry-run` observes and decides without acting"
    )]
    Act(#[from] ActError),
    /// The configuration insists on the scheduler.
    #[error(
        "the scheduler cannot be used: {0}; without agent.backend = \"sched_ext\" and `criticality` in agent.policy \
         the agent does without it"
    )]
    NoScheduler(String),
    /// A proof that cannot be made.
    #[error("nothing to prove: {0}")]
    NothingToProve(String),
    /// The API's socket cannot be used.
    #[error("{}: {message}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why not, and what to do.
        message: String,
    },
    /// The system refused a call that every Linux host has.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// Observing kept failing.
    #[error("observing failed {count} times in a row, the last time with: {last}")]
    TooManyErrors {
        /// How often.
        count: u32,
        /// The last failure.
        last: ObserveError,
    },
    /// A bug in a period.
    #[error("a bug in the control loop: {0}")]
    Panicked(String),
    /// Not everything could be put back.
    #[error("not everything could be put back: {0}; try `quell restore`")]
    NotRestored(String),
}

impl AgentError {
    /// Whether the user's input is at fault, and not the run.
    pub fn is_users(&self) -> bool {
        matches!(
            self,
            AgentError::Config(_)
                | AgentError::ReadConfig { .. }
                | AgentError::Observe(ObserveError::Selector(_))
                | AgentError::Act(ActError::NotAJournal { .. })
        )
    }
}
