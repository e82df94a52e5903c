//! What acts on a simulated machine beside its scheduler, as a daemon does on a host: Quell's agent, and the
//! controllers of sides that other crates add.
//!
//! Each acts at times of its own, on what it can see of the machine and of the answers since it last did.
//! What it takes itself is not simulated.

use super::Owner;
use crate::side::Side;
use quell_model::config::{Backend, Scenario, TenantInstance, TenantKind};
use quell_model::{CpuId, CpuSet, GroupPlan, TenantName};
use quell_policy::Policy;
use quell_policy::guard::Guarded;
use quell_sched::{PromisedServers, ThreadSetting};
use quell_sim::{Answer, Monitor, Simulation, ThreadId, VmId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What acts on a simulated machine beside its scheduler.
pub trait Controller {
    /// When it acts next, in ns since the simulation's beginning; `u64::MAX`: no more.
    fn next_ns(&self) -> u64;

    /// How many CPUs tenants have for themselves at the moment, emulators' among them; none: CPUs are
    /// everybody's.
    fn held(&self) -> Option<u32>;

    /// Looks and acts. `answers` are those since the controller last acted.
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
        Side::Extra(extra) => extra.controller(instances, owners, simulation.machine()),
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
    servers: PromisedServers,
    /// Which VM each such tenant is, and how many virtual CPUs it has.
    vms: BTreeMap<TenantName, (VmId, u32)>,
    /// Where threads might run that may not run everywhere there for now.
    limited: BTreeMap<ThreadId, CpuSet>,
    period_ns: u64,
    /// When the period ends.
    next_ns: u64,
    /// CPUs that pools have given away.
    held: Option<u32>,
    /// What a guest takes for each virtual CPU that it plugs.
    plug_ns: u64,
    /// Guests that were told, by tenant.
    plugs: BTreeMap<TenantName, Plugs>,
}

/// A guest that is to have another number of virtual CPUs online. It plugs one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plugs {
    online: u32,
    to: u32,
    /// When the next is plugged; `u64::MAX`: none is.
    at_ns: u64,
}

impl Plugs {
    /// It is told to have so many.
    fn tell(&mut self, to: u32, now_ns: u64, takes_ns: u64) {
        self.to = to;
        self.at_ns = match (self.online == to, self.at_ns) {
            (true, _) => u64::MAX,
            (false, u64::MAX) => now_ns + takes_ns,
            (false, at_ns) => at_ns,
        };
    }

    /// One is plugged: which, and whether it is online from now on. The first ones stay online.
    fn next(&mut self, takes_ns: u64) -> (CpuId, bool) {
        let comes = self.online < self.to;
        let number = if comes { self.online } else { self.online - 1 };
        self.online = if comes { number + 1 } else { number };
        self.at_ns = match self.online == self.to {
            true => u64::MAX,
            false => self.at_ns + takes_ns,
        };
        (CpuId(number), comes)
    }
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
        let asymmetry = match file.agent.backend {
            Backend::Stock => file.asymmetry.clone(),
            Backend::Auto | Backend::SchedExt => file.asymmetry.clone().in_shared_queues(),
        };
        let policy = quell_policy::composed(&file, &asymmetry, &[])?;
        // The simulation's scheduler is what it is from beginning to end: its lever is none there.
        let policy = Guarded::keeping(policy, &file, &asymmetry, Backend::Stock);
        let tenant = |owner: &Owner| {
            let it = &instances[owner.instance];
            (!owner.in_guest).then(|| (it.name.clone(), Arc::new(it.spec.clone())))
        };
        let tenants = owners.iter().map(tenant).collect();
        let period_ns = file.agent.period_ms * 1_000_000;
        let vms = instances.iter().filter(|it| it.spec.kind == TenantKind::Vm);
        let vm = |(number, it): (u32, &TenantInstance<'_>)| {
            (it.name.clone(), (VmId(number), it.spec.vcpus.unwrap_or(1)))
        };
        Some(Agent {
            monitor: Monitor::new(simulation, tenants),
            policy,
            servers: PromisedServers::default(),
            vms: (0..).zip(vms).map(vm).collect(),
            limited: BTreeMap::new(),
            period_ns,
            next_ns: period_ns,
            held: None,
            plug_ns: (scenario.host.as_ref())
                .and_then(|host| host.costs.plug_us)
                .map_or(0, |us| (us * 1e3) as u64),
            plugs: BTreeMap::new(),
        })
    }
}

impl Controller for Agent {
    fn next_ns(&self) -> u64 {
        let plugs = self.plugs.values().map(|it| it.at_ns);
        plugs.fold(self.next_ns, u64::min)
    }

    fn held(&self) -> Option<u32> {
        self.held
    }

    fn act(&mut self, simulation: &mut Simulation, _answers: &[Answer]) {
        self.plug(simulation);
        if self.next_ns > simulation.machine().now {
            return;
        }
        self.next_ns += self.period_ns;
        let snapshot = self.monitor.snapshot(simulation);
        let plan = self.policy.decide(&snapshot);
        self.held = plan.pools.as_ref().map(|pools| {
            let groups = plan.tenants.iter().filter_map(|it| match &it.group {
                Some(GroupPlan::Own { cpus, .. }) => Some(cpus.len()),
                _ => None,
            });
            (groups.sum::<usize>() + pools.emulators.len()) as u32
        });
        let set = |setting| simulation.set_server(setting);
        for (server, error) in self.servers.promise(&plan.servers, set) {
            tracing::warn!("server {} on CPU {}: {error}", server.number, server.cpu);
        }
        for thread in plan.tenants.iter().flat_map(|tenant| &tenant.threads) {
            let Some(simulated) = quell_sim::thread_of(thread.id) else {
                continue;
            };
            self.place(simulated, thread.cpus.as_ref(), simulation);
            // Simulated tenants are cgroups.
            simulation.set_thread(simulated, ThreadSetting::planned(0, thread));
        }
        let set = |setting| simulation.set_server(setting);
        self.servers.end_others(&plan.servers, set);
        for tenant in &plan.tenants {
            let online = tenant.group.as_ref().and_then(|it| it.online());
            let (Some(&(vm, vcpus)), Some(online)) = (self.vms.get(&tenant.name), online) else {
                continue;
            };
            let plugs = self.plugs.entry(tenant.name.clone()).or_insert(Plugs {
                online: vcpus,
                to: vcpus,
                at_ns: u64::MAX,
            });
            debug_assert_eq!(plugs.online as usize, simulation.online(vm));
            plugs.tell(online, simulation.machine().now, self.plug_ns);
        }
        self.plug(simulation);
    }
}

impl Agent {
    /// Guests plug what is due.
    fn plug(&mut self, simulation: &mut Simulation) {
        let now = simulation.machine().now;
        for (name, plugs) in &mut self.plugs {
            let Some(&(vm, _)) = self.vms.get(name) else {
                continue;
            };
            while plugs.at_ns <= now {
                let (vcpu, online) = plugs.next(self.plug_ns);
                simulation.set_online(vm, vcpu, online);
            }
        }
    }

    /// A thread may run there only, or where it might before.
    fn place(&mut self, thread: ThreadId, cpus: Option<&CpuSet>, simulation: &mut Simulation) {
        let machine = simulation.machine();
        let now = machine.thread(thread).allowed.clone();
        let everywhere = || machine.topology.online();
        let cpus = match cpus {
            Some(cpus) => {
                let before = || now.clone().unwrap_or_else(everywhere);
                self.limited.entry(thread).or_insert_with(before);
                cpus.clone()
            }
            None => match self.limited.remove(&thread) {
                Some(before) => before,
                None => return,
            },
        };
        if now.as_ref() != Some(&cpus) {
            simulation.restrict(thread, cpus);
        }
    }
}

#[cfg(test)]
mod tests;
