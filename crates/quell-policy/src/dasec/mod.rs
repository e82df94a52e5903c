//! Dynamic asymmetric scheduling: which of a tenant's threads must not wait.
//!
//! # Problem
//! Where tenants share CPUs, some of their threads wait. A tenant is not slowed by the waiting of a
//! thread that no other thread waits for; it is by the waiting of a thread on its critical path, for
//! then all its other threads stand still too.
//!
//! # Approach
//! DASEC (Jia, Zhang, Shan, Li and Ding, *Achieving Low Latency in Public Edges by Hiding Workloads Mutual
//! Interference*, ACM SoCC, section 4) finds those threads by their behaviour in the last period and
//! moves the waiting to the others, in small steps, period after period:
//! - `slices`, the time-slice allocator: threads that need more CPU time get it from others of
//!   their tenant, whose total is fixed;
//! - `latency`, the rescheduling-latency adjuster: threads that are served too late get a lower
//!   rescheduling latency, threads that are served in time a higher one;
//! - `conflicts`, the resource-conflict resolver: threads on one core that should not be together
//!   after the other two parts are swapped, seldom and few at a time.
//!
//! All three parts judge by the slices that were in force in the period. `state` follows tenants and
//! threads. Where the paper is silent, the modules state our choices.
//!
//! # Units
//! Times in ns, weights in thousandths of the kernel's load weight, latencies as stated in
//! [`AsymmetrySettings`].

mod apportion;
mod conflicts;
mod latency;
mod slices;
mod state;
mod text;

use crate::Policy;
use quell_model::config::AsymmetrySettings;
use quell_model::{CpuSet, Lever, Plan, Snapshot, TenantPlan, TenantWeight, ThreadPlan};
use state::{Tenant, Thread};

/// The policy of the mechanism asymmetry.
#[derive(Debug)]
pub struct Dasec {
    settings: AsymmetrySettings,
    /// The tenants, ascending by name.
    tenants: Vec<Tenant>,
    resolver: conflicts::Resolver,
    /// Whether the results of the three parts act; else their state stays as it is.
    acts: bool,
    /// Whether the results are to act from the next decision on.
    may_act: bool,
}

impl Dasec {
    /// A policy with no observations yet. `settings` must have passed the configuration's checks; others
    /// give senseless plans, but do not panic.
    pub fn new(settings: AsymmetrySettings) -> Dasec {
        Dasec {
            settings,
            tenants: Vec::new(),
            resolver: conflicts::Resolver::default(),
            acts: true,
            may_act: true,
        }
    }

    fn plan(&mut self, snapshot: &Snapshot) -> Plan {
        let (settings, acts) = (&self.settings, self.acts);
        let plan_thread = |thread: &mut Thread, weighs: bool| ThreadPlan {
            id: thread.id,
            weight: weighs.then_some(if acts { thread.weight } else { thread.initial }),
            latency_ns: (settings.latencies && acts).then_some(thread.latency_ns),
            cpus: match thread.placement {
                Some(placement) => Some(CpuSet::from_iter([placement.cpu])),
                None if thread.inherited_affinity => Some((*thread.affinity).clone()),
                None => None,
            },
            server: None,
            reasons: match (std::mem::take(&mut thread.reasons), acts) {
                (reasons, true) => reasons,
                (_, false) => Vec::new(),
            },
        };
        let plan_tenant = |tenant: &mut Tenant| {
            // Where no cgroup carries a tenant's weight, its threads' weights do.
            let weighs = settings.slices || tenant.scale != TenantWeight::DEFAULT;
            let threads = tenant.threads.iter_mut();
            TenantPlan {
                name: tenant.name.clone(),
                weight: snapshot.tenants[tenant.sample].spec.weight,
                threads: threads.map(|it| plan_thread(it, weighs)).collect(),
                promise: None,
                group: None,
            }
        };
        Plan {
            seq: snapshot.seq,
            tenants: self.tenants.iter_mut().map(plan_tenant).collect(),
            ..Plan::default()
        }
    }
}

impl Policy for Dasec {
    fn name(&self) -> &'static str {
        "asymmetry"
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        let (tenants, settings) = (&mut self.tenants, &self.settings);
        state::follow(tenants, snapshot, settings);
        let changes = self.acts != self.may_act;
        self.acts = self.may_act;
        if changes && !self.acts {
            let threads = tenants.iter_mut().flat_map(|it| &mut it.threads);
            for thread in threads {
                if let Some(placement) = thread.placement.take() {
                    thread.released = Some(placement.cpu);
                }
            }
        }
        // A plan that was not in force cannot be judged, and without a part nothing is.
        if changes || !self.acts || !state::any_part(settings) {
            return self.plan(snapshot);
        }
        // A period without time, CPUs or threads cannot be judged either.
        if let Some(worth) = slices::Worth::new(tenants, snapshot) {
            worth.set_slices(tenants, snapshot);
            if settings.latencies {
                latency::adjust(tenants, snapshot, settings);
            }
            if settings.slices {
                slices::adjust(tenants, snapshot, &worth, settings);
            }
            if settings.conflicts {
                self.resolver.resolve(tenants, snapshot, settings);
            }
        }
        self.plan(snapshot)
    }

    fn allow(&mut self, lever: Lever, acts: bool) {
        if lever == Lever::Feedback {
            self.may_act = acts;
        }
    }
}
