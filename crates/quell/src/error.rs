//! Mistakes in the user's input, which end a program with exit code 2.

use quell_agent::AgentError;
use quell_agent::client::ClientError;
use quell_bench::replay::ReplayError;
use quell_bench::side::SideError;
use quell_lab::LabError;
use quell_model::config::ConfigError;

/// A mistake in the user's input for which no other type of error exists.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InputError(pub String);

/// Whether the user's input is at fault, and not the run.
pub fn is_users(e: &anyhow::Error) -> bool {
    e.chain().any(|cause| {
        cause.is::<InputError>()
            || cause.is::<ConfigError>()
            || cause.is::<SideError>()
            || cause.is::<ReplayError>()
            || cause
                .downcast_ref::<AgentError>()
                .is_some_and(AgentError::is_users)
            || cause
                .downcast_ref::<LabError>()
                .is_some_and(LabError::is_users)
            || matches!(
                cause.downcast_ref::<ClientError>(),
                // The agent has nothing of the name that the user gave.
                Some(ClientError::Refused {
                    status: 400..=499,
                    ..
                })
            )
    })
}
