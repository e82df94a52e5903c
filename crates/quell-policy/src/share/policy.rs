//! The policy of the mechanism share, where no other policy decides on tenants' threads.

use crate::Policy;
use quell_model::{Plan, Snapshot, TenantPlan, TenantSample};

/// The policy of the mechanism share: every tenant has the weight of the configuration, and its threads
/// belong to it; Quell's scheduler does the rest, at each scheduling decision.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shares;

impl Policy for Shares {
    fn name(&self) -> &'static str {
        "share"
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        let plan = |tenant: &TenantSample| {
            let mut plan = TenantPlan {
                name: tenant.name.clone(),
                weight: tenant.spec.weight,
                threads: Vec::new(),
                promise: None,
                group: None,
            };
            plan.complete(tenant);
            plan
        };
        let tenants = snapshot.tenants.iter().map(plan);
        Plan {
            seq: snapshot.seq,
            tenants: tenants.collect(),
            ..Plan::default()
        }
    }
}
