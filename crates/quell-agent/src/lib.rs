//! The agent: the control loop of a host and its API.
//!
//! [`run()`] is the whole program behind `quell run`. One thread observes, decides and acts in each period
//! ([`control`], around [`quell_control::period()`]) and publishes the results ([`state`]). Another thread
//! answers the API ([`api`]) from them. [`client`] asks that API for the command line, in the types of
//! [`wire`].

pub mod api;
mod backend;
pub mod client;
pub mod clock;
pub mod control;
pub mod effects;
mod error;
mod fair_share;
pub mod io;
mod load;
mod metrics;
mod notify;
mod privileges;
mod ratelimit;
mod remarks;
mod run;
pub mod state;
#[cfg(test)]
mod testing;
mod usage;
mod window;
pub mod wire;

pub use error::AgentError;
pub use load::{is_absent, load, parse};
pub use privileges::missing_privileges;
pub use run::{AgentOptions, Proof, prove, run};

/// Where the API listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/quell/agent.sock";
/// Where the journal is unless told otherwise.
pub const DEFAULT_JOURNAL: &str = "/var/lib/quell/journal";
/// Where the configuration is unless told otherwise.
pub const DEFAULT_CONFIG: &str = "/etc/quell/quell.toml";
