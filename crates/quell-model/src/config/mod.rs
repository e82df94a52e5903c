//! The TOML files: common types for the agent's `quell.toml`, scenarios and the hosts of `quell admit`.
//!
//! A file is read and checked completely before anything uses it. Every error names the file, the
//! key and the remedy; an unknown key gets the nearest known one as a suggestion.

mod admit;
mod agent;
mod app;
mod cpus;
mod flow;
mod group;
mod parse;
mod program;
mod scenario;
mod scenario_tenant;
mod server;
pub mod table;
mod tenant;

pub use admit::{HostFile, HostTenant, TenantsFile};
pub use agent::{AgentFile, AgentSettings, AsymmetrySettings, Backend, GuardMode, Mechanism};
pub use app::{App, Memcached, Nginx, Redis, RedisCommand, Xz};
pub use group::{Cgroup, Cgroups, CpuMax, GroupSpec};
pub use parse::{ConfigError, nearest, parse, parse_explaining};
pub use program::{
    Acquire, Arrival, Count, Critical, ForkJoin, Load, Missed, PARETO_BOUND, QUEUE_CAPACITY,
    Repeat, Spawn, Step, ThreadPolicy, ThreadProgram, TimeUs, Timer, next_holders_seed,
    timer_period_ns,
};
pub use scenario::{
    CostsSpec, HostScheduler, HostSpec, Scenario, TenantInstance, TopologySpec, Trace,
};
pub use scenario_tenant::ScenarioTenant;
pub use server::{AdmissionTest, Criticality, CriticalitySettings, Server};
pub use tenant::{
    AgentTenant, Objective, Selectors, TenantClass, TenantKind, TenantSpec, check_name,
};
