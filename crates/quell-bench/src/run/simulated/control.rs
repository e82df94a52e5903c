//! What acts on a simulated machine beside its scheduler, as a daemon does on a host: Quell's agent, and controllers that
//! give tenants cores of their own.
//!
//! Each acts at times of its own, on what it can see of the machine and of the answers since it last did. What it takes itself
//! is not simulated.

use super::Owner;
use super::cores::Cores;
use super::pools::Pooled;
use crate::side::{Side, Simulated};
use quell_model::config::{Scenario, TenantInstance};
use quell_policy::Policy;
use quell_sched::{ThreadSetting, ToldServers};
use quell_sim::{Answer, Monitor, Simulation};
use std::sync::Arc;

/// One of them.
pub trait Controller {
    /// When it acts next; `u64::MAX`: no more. Time begins at 0.
    fn next_ns(&self) -> u64;

    /// Looks and acts. `answers` are those since it last did.
    fn act(&mut self, simulation: &mut Simulation, answers: &[Answer]);
}

/// The side's, if it has one. `owners` are by the simulation's tenants.
pub fn of(
    side: &Side,
    scenario: &Scenario,
    instances: &[TenantInstance<'_>],
    owners: &[Owner],
    simulation: &mut Simulation,
) -> Option<Box<dyn Controller>> {
    match side {
        Side::Simulated(Simulated::Isolation) => {
            let cores = Cores::fixed(instances, owners, simulation.machine());
            Some(Box::new(cores))
        }
        Side::Simulated(Simulated::Parties) => {
            let cores = Cores::parties(instances, owners, simulation.machine());
            Some(Box::new(cores))
        }
        Side::Simulated(Simulated::DynIso) => {
            let cores = Cores::dyniso(instances, owners, simulation.machine());
            Some(Box::new(cores))
        }
        Side::Simulated(Simulated::Ufo) => {
            let pooled = Pooled::new(instances, owners, simulation);
            Some(Box::new(pooled))
        }
        side => {
            let agent = Agent::of(side, scenario, instances, owners, simulation)?;
            Some(Box::new(agent))
        }
    }
}

/// The agent's loop: the same policy from the same snapshots to the same plans, once a period.
struct Agent {
    monitor: Monitor,
    policy: Box<dyn Policy>,
    servers: ToldServers,
    period_ns: u64,
    /// When the period ends.
    next_ns: u64,
}

impl Agent {
    /// The side's, if it has one.
    fn of(
        side: &Side,
        scenario: &Scenario,
        instances: &[TenantInstance<'_>],
        owners: &[Owner],
        simulation: &mut Simulation,
    ) -> Option<Agent> {
        let file = side.agent_for(&scenario.tenants, scenario.criticality)?;
        let policy = quell_policy::composed(&file, &file.asymmetry)?;
        let tenant = |owner: &Owner| {
            let it = &instances[owner.instance];
            (!owner.in_guest).then(|| (it.name.clone(), Arc::new(it.spec.clone())))
        };
        let tenants = owners.iter().map(tenant).collect();
        let period_ns = file.agent.period_ms * 1_000_000;
        Some(Agent {
            monitor: Monitor::new(simulation, tenants),
            policy,
            servers: ToldServers::default(),
            period_ns,
            next_ns: period_ns,
        })
    }
}

impl Controller for Agent {
    fn next_ns(&self) -> u64 {
        self.next_ns
    }

    fn act(&mut self, simulation: &mut Simulation, _answers: &[Answer]) {
        self.next_ns += self.period_ns;
        let snapshot = self.monitor.snapshot(simulation.machine());
        let plan = self.policy.decide(&snapshot);
        let set = |setting| simulation.set_server(setting);
        for (server, error) in self.servers.promise(&plan.servers, set) {
            tracing::warn!("server {} on CPU {}: {error}", server.number, server.cpu);
        }
        for thread in plan.tenants.iter().flat_map(|tenant| &tenant.threads) {
            let Some(simulated) = quell_sim::thread_of(thread.id) else {
                continue;
            };
            if let (Some(_), Some(cpus)) = (thread.server, &thread.cpus) {
                simulation.restrict(simulated, cpus.clone());
            }
            // Simulated tenants are cgroups.
            simulation.set_thread(simulated, ThreadSetting::planned(0, thread));
        }
        let set = |setting| simulation.set_server(setting);
        self.servers.end_others(&plan.servers, set);
    }
}

#[cfg(test)]
mod tests;
