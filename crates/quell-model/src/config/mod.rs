//! The TOML files: common types for the agent's `quell.toml`, scenarios and the hosts of `quell admit`.
//!
//! A file is read and checked completely before anything uses it. Every error names the file, the
//! key and the remedy; an unknown key gets the nearest known one as a suggestion.

mod agent;
mod parse;
mod server;
pub mod table;
mod tenant;

pub use agent::{AgentFile, AgentSettings, AsymmetrySettings, Backend, GuardMode, Mechanism};
pub use parse::{ConfigError, nearest, parse, parse_explaining};
pub use server::{AdmissionTest, Criticality, CriticalitySettings, Server};
pub use tenant::{
    AgentTenant, Objective, Selectors, TenantClass, TenantKind, TenantSpec, check_name,
};
