//! The agent's `quell.toml`, and what other TOML files share with it: a tenant's terms ([`TenantSpec`]), the
//! `[criticality]` table, and errors.
//!
//! A file is read and checked completely before anything uses it. Every error names the file, the
//! key and the remedy; an unknown key gets the nearest key that the file has as a suggestion, and a key of
//! another file is explained.

mod agent;
mod parse;
mod rule;
mod schema;
mod server;
pub mod table;
mod tenant;

pub use agent::{AgentFile, AgentSettings, AsymmetrySettings, Backend, GuardMode, Mechanism};
pub use parse::{ConfigError, nearest, parse, parse_explaining};
pub use rule::{Each, Finds, NamePart, TenantRule};
pub use schema::{drop_in_schema, schema};
pub use server::{AdmissionTest, Criticality, CriticalitySettings, Server};
pub use tenant::{
    AgentTenant, Objective, Selectors, TenantClass, TenantKind, TenantSpec, check_name,
};
