//! What a scenario's tenants do: thread programs, real applications and load.

use serde::{Deserialize, Serialize};

/// A real application run as a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct App {}

/// The requests a tenant gets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {}

/// One `[[tenant.thread]]` table: threads that run the same program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadProgram {}
