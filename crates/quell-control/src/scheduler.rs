//! Carries out plans where Quell's scheduler runs, on a host and on a simulated machine.
//!
//! Problem: a plan is complete, and in most periods nearly all of it already holds. On a host each call on
//! the scheduler is a system call.
//! Approach: [`SchedulerActuator`] keeps what it told the scheduler, and tells it the differences only. The
//! calls of a plan have this order:
//!
//! 1. stock interfaces: where threads may run, the weights of cgroups, and what guests are told;
//! 2. servers that are new or have other terms, so that a server exists before its threads do;
//! 3. tenants that are no cgroups, each before its threads, and the settings of threads;
//! 4. servers that ended, whose threads were told something else before;
//! 5. threads, and then tenants, that left the plan.
//!
//! A call that the scheduler refuses is tried again with the next plan.

use crate::period::Act;
use crate::servers::PromisedServers;
use quell_model::{
    ApplyReport, Plan, Snapshot, TenantName, TenantPlan, TenantSample, TenantWeight, ThreadId,
    ThreadPlan,
};
use quell_sched::{SchedError, Scheduler, ServerSetting, ThreadSetting};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// The calls on a scheduler that carry out plans: on the one that is loaded into the kernel, or on that of a
/// simulated machine.
pub trait SchedulerCalls {
    /// Tells the scheduler what is wanted of a thread, until the thread exits.
    ///
    /// # Errors
    /// [`SchedError::NoThread`] where there is no such thread; another error where the call failed.
    fn set_thread(&mut self, thread: ThreadId, setting: ThreadSetting) -> Result<(), SchedError>;

    /// Makes a tenant that is no cgroup, changes its weight, or ends it (`None`). `tenant`: a number of the
    /// caller's choice, from 1.
    ///
    /// # Errors
    /// When the scheduler has no room for the tenant, or the call failed.
    fn set_tenant(&mut self, tenant: u32, weight: Option<TenantWeight>) -> Result<(), SchedError>;

    /// Promises CPU time on a CPU, or ends the promise.
    ///
    /// # Errors
    /// When the scheduler cannot have the server as its CPU's (full, or the server's threads are still
    /// runnable elsewhere), or the call failed.
    fn set_server(&mut self, setting: ServerSetting) -> Result<(), SchedError>;
}

impl SchedulerCalls for Scheduler {
    fn set_thread(&mut self, thread: ThreadId, setting: ThreadSetting) -> Result<(), SchedError> {
        Scheduler::set_thread(self, thread.tid, setting)
    }

    fn set_tenant(&mut self, tenant: u32, weight: Option<TenantWeight>) -> Result<(), SchedError> {
        Scheduler::set_tenant(self, tenant, weight)
    }

    fn set_server(&mut self, setting: ServerSetting) -> Result<(), SchedError> {
        Scheduler::set_server(self, setting)
    }
}

/// From plans to calls on one scheduler, which was told nothing before.
#[derive(Debug, Default)]
pub struct SchedulerActuator {
    /// Whether tenants that are no cgroups are groups of the scheduler.
    groups_tenants: bool,
    told: HashMap<ThreadId, Told>,
    /// The tenants that are no cgroups.
    tenants: BTreeMap<TenantName, Group>,
    /// The greatest number given to a tenant.
    numbers: u32,
    servers: PromisedServers,
    /// The number of plans so far.
    period: u64,
}

/// A tenant's group in the scheduler.
#[derive(Debug)]
struct Group {
    number: u32,
    weight: TenantWeight,
    /// The period whose plan had the tenant last.
    period: u64,
}

/// What the scheduler was told of a thread.
#[derive(Debug)]
struct Told {
    setting: ThreadSetting,
    /// The period whose plan had the thread last.
    period: u64,
}

impl SchedulerActuator {
    /// An actuator for a scheduler that was told nothing. `groups_tenants`: whether tenants that are no
    /// cgroups get groups in the scheduler, as they need where CPU time is shared among tenants.
    pub fn new(groups_tenants: bool) -> SchedulerActuator {
        SchedulerActuator {
            groups_tenants,
            ..SchedulerActuator::default()
        }
    }

    /// Makes a plan hold: through `stock` what the scheduler does not do, then through `scheduler` what
    /// differs from what the scheduler was told.
    pub fn apply<A, S>(
        &mut self,
        stock: &mut A,
        scheduler: &mut S,
        snapshot: &Snapshot,
        plan: &Plan,
    ) -> ApplyReport
    where
        A: Act + ?Sized,
        S: SchedulerCalls + ?Sized,
    {
        let mut report = stock.apply(snapshot, &beside_scheduler(plan));
        self.period += 1;
        let set = |setting| scheduler.set_server(setting);
        for (server, error) in self.servers.promise(&plan.servers, set) {
            tracing::warn!("server {} on CPU {}: {error}", server.number, server.cpu);
        }
        for (at, tenant) in plan.tenants.iter().enumerate() {
            let sample = snapshot.tenant_near(at, &tenant.name);
            let number = self.group_of(scheduler, sample, tenant);
            // A group has all threads of its tenant, those too that the plan leaves as they are.
            let mut tenant = Cow::Borrowed(tenant);
            if let Some(sample) = sample.filter(|_| number != 0) {
                tenant.to_mut().complete(sample);
            }
            for thread in &tenant.threads {
                self.tell(scheduler, number, thread, &mut report);
            }
        }
        let set = |setting| scheduler.set_server(setting);
        self.servers.end_others(&plan.servers, set);
        self.end_others(scheduler, &mut report);
        report
    }

    /// The number of a tenant's group in the scheduler, which has its weight; 0: it needs none.
    fn group_of<S: SchedulerCalls + ?Sized>(
        &mut self,
        scheduler: &mut S,
        sample: Option<&TenantSample>,
        tenant: &TenantPlan,
    ) -> u32 {
        let is_cgroup = sample.is_some_and(|sample| sample.cgroup.is_some());
        if !self.groups_tenants || is_cgroup {
            return 0;
        }
        let weight = tenant.weight.unwrap_or(TenantWeight::DEFAULT);
        let known = self.tenants.get_mut(&tenant.name);
        if let Some(group) = known {
            group.period = self.period;
            if group.weight == weight {
                return group.number;
            }
        }
        let number = match self.tenants.get(&tenant.name) {
            Some(group) => group.number,
            None => self.numbers + 1,
        };
        if let Err(error) = scheduler.set_tenant(number, Some(weight)) {
            tracing::warn!("tenant {}: {error}", tenant.name);
            return 0;
        }
        self.numbers = self.numbers.max(number);
        let group = Group {
            number,
            weight,
            period: self.period,
        };
        self.tenants.insert(tenant.name.clone(), group);
        number
    }

    /// Tells the scheduler what the plan wants of a thread, where that differs from what it was told.
    fn tell<S: SchedulerCalls + ?Sized>(
        &mut self,
        scheduler: &mut S,
        tenant: u32,
        thread: &ThreadPlan,
        report: &mut ApplyReport,
    ) {
        let setting = ThreadSetting::planned(tenant, thread);
        let told = self.told.get_mut(&thread.id);
        if told.is_none() && setting == ThreadSetting::default() {
            return;
        }
        if let Some(told) = told {
            told.period = self.period;
            if told.setting == setting {
                report.unchanged += 1;
                return;
            }
        }
        match scheduler.set_thread(thread.id, setting) {
            Ok(()) => {
                report.writes.scheduler += 1;
                let period = self.period;
                self.told.insert(thread.id, Told { setting, period });
            }
            Err(SchedError::NoThread(_)) => report.gone += 1,
            Err(error) => {
                report.left_alone += 1;
                tracing::debug!(thread = %thread.id, "{error}");
            }
        }
    }

    /// Takes back what the scheduler was told of threads and tenants that are not in the present plan.
    fn end_others<S: SchedulerCalls + ?Sized>(
        &mut self,
        scheduler: &mut S,
        report: &mut ApplyReport,
    ) {
        let period = self.period;
        let left = self.told.iter().filter(|(_, told)| told.period != period);
        let mut left: Vec<ThreadId> = left.map(|(id, _)| *id).collect();
        // In an order that is the same in every run of a simulation.
        left.sort_unstable();
        for id in left {
            self.told.remove(&id);
            // Most such threads are gone, and then there is nothing to give back.
            if scheduler.set_thread(id, ThreadSetting::default()).is_ok() {
                report.given_back += 1;
            }
        }
        self.tenants.retain(|_, group| {
            // The threads of an ended tenant compete one by one.
            group.period == period || scheduler.set_tenant(group.number, None).is_err()
        });
    }

    /// Takes back all that the scheduler was told.
    pub fn forget<S: SchedulerCalls + ?Sized>(&mut self, scheduler: &mut S) {
        let set = |setting| scheduler.set_server(setting);
        self.servers.end_others(&[], set);
        for (id, _) in self.told.drain() {
            // An error means that the thread or the scheduler is gone, and the setting with it.
            let _ = scheduler.set_thread(id, ThreadSetting::default());
        }
        for group in std::mem::take(&mut self.tenants).into_values() {
            let _ = scheduler.set_tenant(group.number, None);
        }
    }
}

/// What is left of a plan for stock interfaces beside a scheduler: the tenants' own weights, where threads
/// may run, and what guests are told.
///
/// Asymmetry does not lay threads out there: threads wait in a queue that the CPUs of a cache share, so that
/// no layout makes one of them wait while another CPU is free.
fn beside_scheduler(plan: &Plan) -> Plan {
    let thread = |thread: &ThreadPlan| ThreadPlan {
        cpus: thread.cpus.clone(),
        ..ThreadPlan::leaving(thread.id)
    };
    let tenant = |tenant: &TenantPlan| {
        let placed = tenant.threads.iter().filter(|it| it.cpus.is_some());
        TenantPlan {
            name: tenant.name.clone(),
            weight: tenant.weight,
            threads: placed.map(thread).collect(),
            promise: None,
            group: tenant.group.clone(),
        }
    };
    Plan {
        seq: plan.seq,
        tenants: plan.tenants.iter().map(tenant).collect(),
        ..Plan::default()
    }
}

#[cfg(test)]
mod tests;
