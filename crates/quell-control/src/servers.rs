//! The servers that a scheduler was told of.

use quell_model::{CpuId, ServerPlan, ServerTerms};
use quell_sched::ServerSetting;
use std::collections::{BTreeMap, BTreeSet};

/// The servers that a scheduler was told of, so that only changes are told. Of each plan: new servers before
/// the plan's threads, ended ones after them.
#[derive(Debug, Default)]
pub struct PromisedServers(BTreeMap<(u32, CpuId), ServerTerms>);

impl PromisedServers {
    /// Tells the scheduler of servers that are new or changed. Returns the refused ones, which are told again
    /// with the next plan.
    pub fn promise<E>(
        &mut self,
        servers: &[ServerPlan],
        mut set: impl FnMut(ServerSetting) -> Result<(), E>,
    ) -> Vec<(ServerPlan, E)> {
        let mut refused = Vec::new();
        for server in servers {
            let key = (server.number, server.cpu);
            if self.0.get(&key) == Some(&server.terms) {
                continue;
            }
            let setting = ServerSetting {
                number: server.number,
                cpu: server.cpu,
                terms: Some(server.terms),
            };
            match set(setting) {
                Ok(()) => {
                    self.0.insert(key, server.terms);
                }
                Err(error) => refused.push((*server, error)),
            }
        }
        refused
    }

    /// Ends the servers that are not in the plan.
    pub fn end_others<E>(
        &mut self,
        servers: &[ServerPlan],
        mut set: impl FnMut(ServerSetting) -> Result<(), E>,
    ) {
        let kept: BTreeSet<_> = servers.iter().map(|it| (it.number, it.cpu)).collect();
        self.0.retain(|&(number, cpu), _| {
            let setting = ServerSetting {
                number,
                cpu,
                terms: None,
            };
            kept.contains(&(number, cpu)) || set(setting).is_err()
        });
    }
}
