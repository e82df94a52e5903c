//! The scenario language: a host, its tenants, what their threads do and the load that they get, as one TOML
//! file that runs on real threads and on simulated ones. `docs/reference/scenarios.md` is its reference.
//!
//! A scenario is read and checked completely before anything runs. Every error names the file, the key and
//! the remedy; an unknown key gets the nearest known one as a suggestion.
//!
//! A scenario's tenant ([`ScenarioTenant`]) has the terms that an agent is told of, which are
//! [`TenantSpec`](quell_model::config::TenantSpec) in `quell-model`, and what its threads do. The files of
//! `quell admit` ([`HostFile`]) are here because their hosts are a scenario's. The agent does not depend on
//! this crate.
//!
//! A time in a file is in the unit that its key ends in (`_us`, `_ms`); computed times are `u64`, in ns.
//!
//! ```
//! use quell_scenario::{Scenario, Step, TimeUs};
//! use std::path::Path;
//!
//! let text = r#"
//! name = "shop"
//! [host]
//! cpus = 2
//! [[tenant]]
//! name = "web"
//! count = 2
//! load = { rate = 100.0 }
//! [[tenant.thread]]
//! name = "worker"
//! program = ["request", { run_us = 300 }, "respond"]
//! "#;
//! let scenario = Scenario::parse(Path::new("shop.toml"), text).unwrap();
//! let names: Vec<String> = scenario.instances().iter().map(|it| it.name.to_string()).collect();
//! assert_eq!(names, ["web-0", "web-1"]);
//! let program = &scenario.tenants[0].threads[0].program;
//! assert_eq!(program[1], Step::RunUs(TimeUs::Constant(300.0)));
//!
//! let wrong = text.replace("load =", "laod =");
//! let error = Scenario::parse(Path::new("shop.toml"), &wrong).unwrap_err();
//! assert!(error.to_string().starts_with("shop.toml:8: `tenant[0].laod`: "));
//! assert!(error.to_string().contains("did you mean `load`?"));
//! ```

mod app;
mod cpus;
mod flow;
mod group;
mod host_file;
mod program;
mod scenario;
pub mod set;
mod tenant;

pub use app::{App, Memcached, Nginx, Redis, RedisCommand, Xz};
pub use group::{Cgroup, Cgroups, CpuMax, GroupSpec};
pub use host_file::{HostFile, HostTenant, TenantsFile};
pub use program::{
    Acquire, Arrival, Count, Critical, ForkJoin, Load, Missed, PARETO_BOUND, QUEUE_CAPACITY,
    Repeat, Spawn, Step, ThreadPolicy, ThreadProgram, TimeUs, Timer, next_holders_seed,
    timer_period_ns,
};
pub use scenario::{
    CostsSpec, HostScheduler, HostSpec, Scenario, TenantInstance, TopologySpec, Trace,
};
pub use tenant::ScenarioTenant;
