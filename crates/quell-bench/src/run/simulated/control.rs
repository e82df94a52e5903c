//! Controllers act on a simulated machine beside its scheduler, as a daemon does on a host: Quell's agent is
//! one, and sides that other crates add may have others.
//!
//! Each controller acts at times of its own, on what it can see of the machine and of the answers since it
//! last acted. The CPU time that a controller itself would use is not simulated.

use super::Owner;
use crate::side::Side;
use quell_control::{Act, Observe, SchedulerActuator, SchedulerCalls};
use quell_model::config::{Backend, TenantKind};
use quell_model::{
    ApplyReport, CpuId, CpuSet, GroupPlan, Plan, Snapshot, TenantName, TenantWeight,
};
use quell_policy::Policy;
use quell_policy::guard::Guarded;
use quell_scenario::{Scenario, TenantInstance};
use quell_sched::{SchedError, ServerSetting, ThreadSetting};
use quell_sim::{Answer, Monitor, Simulation, State, ThreadId, VmId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

/// A program that acts on a simulated machine beside its scheduler.
pub trait Controller {
    /// The time at which the controller acts next, in ns of virtual time since the beginning; `u64::MAX`: it
    /// acts no more.
    fn next_ns(&self) -> u64;

    /// The number of CPUs that tenants have for themselves at the moment, CPUs of emulator threads included;
    /// `None`: the controller gives no tenant CPUs of its own.
    fn held(&self) -> Option<u32>;

    /// Looks at the machine and acts. `answers` are the answers since the controller last acted.
    fn act(&mut self, simulation: &mut Simulation, answers: &[Answer]);
}

/// The side's controller, if it has one. `owners` has an entry for each tenant of the simulation.
pub fn of(
    side: &Side,
    scenario: &Scenario,
    instances: &[TenantInstance<'_>],
    owners: &[Owner],
    simulation: &mut Simulation,
) -> Option<Box<dyn Controller>> {
    match side {
        Side::Added(added) => added.controller(instances, owners, simulation.machine()),
        side => {
            let agent = Agent::of(side, scenario, instances, owners, simulation)?;
            Some(Box::new(agent))
        }
    }
}

/// The agent's loop: once a period the step that the agent takes ([`quell_control::period`]), with the same
/// policies and the same actuator of the scheduler.
struct Agent {
    monitor: Monitor,
    policy: Box<dyn Policy>,
    /// The actuator of Quell's scheduler; `None`: plans go to stock interfaces only.
    scheduler: Option<SchedulerActuator>,
    stock: Stock,
    period_ns: u64,
    /// The time at which the period ends, in ns of virtual time.
    next_ns: u64,
    /// The number of CPUs that the last plan's pools gave to tenants and emulator threads; `None`: the plan
    /// had no pools.
    held: Option<u32>,
}

/// The state of the simulated machine's stock interfaces: the CPUs that threads may run on, and the numbers
/// of vCPUs that guests were told to have online.
struct Stock {
    /// By tenant that is a VM: the VM's number, and the number of its vCPUs.
    vms: BTreeMap<TenantName, (VmId, u32)>,
    /// By thread that a plan has bound to CPUs: the CPUs that it might run on before.
    limited: BTreeMap<ThreadId, CpuSet>,
    /// The time that a guest takes to bring a vCPU online or take it offline, in ns.
    plug_ns: u64,
    /// The guests that were told a number of vCPUs to have online, by tenant.
    plugs: BTreeMap<TenantName, Plugs>,
}

/// The vCPUs of a guest that was told a number of vCPUs to have online. The guest plugs, which is to bring
/// online or take offline, one vCPU after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plugs {
    online: u32,
    to: u32,
    /// The time at which the next vCPU is plugged, in ns of virtual time; `u64::MAX`: none is to be plugged.
    at_ns: u64,
}

impl Plugs {
    /// Tells the guest to have `to` vCPUs online; plugging one takes `takes_ns`.
    fn tell(&mut self, to: u32, now_ns: u64, takes_ns: u64) {
        self.to = to;
        self.at_ns = match (self.online == to, self.at_ns) {
            (true, _) => u64::MAX,
            (false, u64::MAX) => now_ns + takes_ns,
            (false, at_ns) => at_ns,
        };
    }

    /// Plugs one vCPU: returns its number, and whether it is online from now on. The vCPUs with the lowest
    /// numbers stay online; the next vCPU is due `takes_ns` later.
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
    /// The side's agent, if it has one.
    fn of(
        side: &Side,
        scenario: &Scenario,
        instances: &[TenantInstance<'_>],
        owners: &[Owner],
        simulation: &mut Simulation,
    ) -> Option<Agent> {
        let specs = scenario.tenants.iter().map(|it| &it.spec);
        let file = side.agent_for(specs, scenario.criticality)?;
        let asymmetry = match file.agent.backend {
            Backend::Stock => file.asymmetry.clone(),
            Backend::Auto | Backend::SchedExt => file.asymmetry.clone().in_shared_queues(),
        };
        let policy = quell_policy::composed(&file, &asymmetry, &[])?;
        // The simulation has one scheduler from beginning to end, so the guard cannot switch to the kernel's.
        let policy = Guarded::keeping(policy, &file, &asymmetry, Backend::Stock, None);
        let tenant = |owner: &Owner| {
            let it = &instances[owner.instance];
            (!owner.in_guest).then(|| (it.name.clone(), Arc::new(it.table.spec.clone())))
        };
        let tenants = owners.iter().map(tenant).collect();
        let period_ns = file.agent.period_ms * 1_000_000;
        let vms = instances
            .iter()
            .filter(|it| it.table.spec.kind == TenantKind::Vm);
        let vm = |(number, it): (u32, &TenantInstance<'_>)| {
            (
                it.name.clone(),
                (VmId(number), it.table.spec.vcpus.unwrap_or(1)),
            )
        };
        Some(Agent {
            monitor: Monitor::new(simulation, tenants),
            policy,
            // A simulated tenant is a cgroup, so no tenant needs a group in the scheduler.
            scheduler: (file.agent.backend != Backend::Stock)
                .then(|| SchedulerActuator::new(false)),
            stock: Stock {
                vms: (0..).zip(vms).map(vm).collect(),
                limited: BTreeMap::new(),
                plug_ns: (scenario.host.as_ref())
                    .and_then(|host| host.costs.plug_us)
                    .map_or(0, |us| (us * 1e3) as u64),
                plugs: BTreeMap::new(),
            },
            period_ns,
            next_ns: period_ns,
            held: None,
        })
    }
}

impl Controller for Agent {
    fn next_ns(&self) -> u64 {
        let plugs = self.stock.plugs.values().map(|it| it.at_ns);
        plugs.fold(self.next_ns, u64::min)
    }

    fn held(&self) -> Option<u32> {
        self.held
    }

    fn act(&mut self, simulation: &mut Simulation, _answers: &[Answer]) {
        self.stock.plug(simulation);
        if self.next_ns > simulation.machine().now {
            return;
        }
        self.next_ns += self.period_ns;
        let machine = Machine(RefCell::new(simulation));
        let mut observer = Observed {
            monitor: &mut self.monitor,
            machine: &machine,
        };
        let mut actuator = Actuator {
            stock: StockOf {
                stock: &mut self.stock,
                machine: &machine,
            },
            scheduler: self.scheduler.as_mut(),
        };
        let policy = Some(self.policy.as_mut() as &mut dyn Policy);
        let Ok(period) = quell_control::period(&mut observer, policy, Some(&mut actuator), &mut ());
        let plan = period.plan;
        self.held = plan.pools.as_ref().map(|pools| {
            let groups = plan.tenants.iter().filter_map(|it| match &it.group {
                Some(GroupPlan::Own { cpus, .. }) => Some(cpus.len()),
                _ => None,
            });
            (groups.sum::<usize>() + pools.emulators.len()) as u32
        });
    }
}

/// The simulated machine, which the agent observes and acts on in the same period.
struct Machine<'s>(RefCell<&'s mut Simulation>);

struct Observed<'a, 's> {
    monitor: &'a mut Monitor,
    machine: &'a Machine<'s>,
}

impl Observe for Observed<'_, '_> {
    type Error = Infallible;

    fn sample(&mut self) -> Result<Snapshot, Infallible> {
        Ok(self.monitor.snapshot(&self.machine.0.borrow()))
    }
}

/// The calls of the simulated machine's scheduler.
impl SchedulerCalls for &Machine<'_> {
    fn set_thread(
        &mut self,
        thread: quell_model::ThreadId,
        setting: ThreadSetting,
    ) -> Result<(), SchedError> {
        let mut simulation = self.0.borrow_mut();
        // As a kernel does, the simulated one has no thread of this id any more once the thread has ended.
        let lives = |it: &ThreadId| simulation.machine().thread(*it).state != State::Ended;
        let simulated = quell_sim::thread_of(thread).filter(lives);
        let simulated = simulated.ok_or(SchedError::NoThread(thread.tid))?;
        match simulation.set_thread(simulated, setting) {
            true => Ok(()),
            false => Err(SchedError::Refused {
                reason: "the simulated scheduler has no settings of threads".into(),
                log: String::new(),
            }),
        }
    }

    fn set_tenant(&mut self, _: u32, _: Option<TenantWeight>) -> Result<(), SchedError> {
        Err(SchedError::Refused {
            reason: "simulated tenants are cgroups".into(),
            log: String::new(),
        })
    }

    fn set_server(&mut self, setting: ServerSetting) -> Result<(), SchedError> {
        self.0.borrow_mut().set_server(setting)
    }
}

/// Acts on the simulated machine as the agent's backends act on a host.
struct Actuator<'a, 's> {
    stock: StockOf<'a, 's>,
    scheduler: Option<&'a mut SchedulerActuator>,
}

impl Act for Actuator<'_, '_> {
    fn backend(&self) -> Backend {
        match self.scheduler {
            Some(_) => Backend::SchedExt,
            None => Backend::Stock,
        }
    }

    fn apply(&mut self, snapshot: &Snapshot, plan: &Plan) -> ApplyReport {
        match &mut self.scheduler {
            None => self.stock.apply(snapshot, plan),
            Some(scheduler) => {
                let mut machine = self.stock.machine;
                scheduler.apply(&mut self.stock, &mut machine, snapshot, plan)
            }
        }
    }
}

/// The stock interfaces of the simulated machine, with the machine that they act on.
struct StockOf<'a, 's> {
    stock: &'a mut Stock,
    machine: &'a Machine<'s>,
}

impl Act for StockOf<'_, '_> {
    fn backend(&self) -> Backend {
        Backend::Stock
    }

    /// Applies the plan. The report is empty: no caller reads what a simulated period wrote.
    fn apply(&mut self, _: &Snapshot, plan: &Plan) -> ApplyReport {
        let simulation = &mut *self.machine.0.borrow_mut();
        self.stock.place_all(plan, simulation);
        self.stock.tell_guests(plan, simulation);
        self.stock.plug(simulation);
        ApplyReport::default()
    }
}

impl Stock {
    /// Binds threads to the CPUs that the plan gives them; all other threads may run where they might run
    /// before a plan bound them.
    fn place_all(&mut self, plan: &Plan, simulation: &mut Simulation) {
        let mut placed = BTreeSet::new();
        for thread in plan.tenants.iter().flat_map(|tenant| &tenant.threads) {
            let simulated = quell_sim::thread_of(thread.id);
            if let (Some(simulated), Some(cpus)) = (simulated, &thread.cpus) {
                self.place(simulated, Some(cpus), simulation);
                placed.insert(simulated);
            }
        }
        let limited = self.limited.keys().filter(|it| !placed.contains(it));
        let others: Vec<ThreadId> = limited.copied().collect();
        for thread in others {
            self.place(thread, None, simulation);
        }
    }

    /// Tells the guests how many vCPUs the plan wants online.
    fn tell_guests(&mut self, plan: &Plan, simulation: &Simulation) {
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
    }

    /// Plugs the vCPUs of all guests that are due by now.
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

    /// Lets a thread run only on `cpus`; `None`: on the CPUs that it might run on before a plan bound it.
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
