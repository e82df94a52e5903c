//! The policy of the mechanism share, where no other policy decides on tenants' threads.

use crate::Policy;
use quell_model::{Plan, SchedClass, Snapshot, TenantPlan, TenantSample, ThreadPlan};

/// The policy of the mechanism share: every tenant has the weight of the configuration, and its threads
/// belong to it; Quell's scheduler does the rest, at each scheduling decision.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shares;

impl Policy for Shares {
    fn name(&self) -> &'static str {
        "share"
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        let threads = |tenant: &TenantSample| {
            let shared = |class| matches!(class, SchedClass::Fair | SchedClass::Ext);
            let threads = tenant.threads.iter();
            threads
                .filter(|thread| shared(thread.settings.class))
                .map(|thread| ThreadPlan::leaving(thread.id))
                .collect()
        };
        let tenants = snapshot.tenants.iter().map(|tenant| TenantPlan {
            name: tenant.name.clone(),
            weight: tenant.spec.weight,
            threads: threads(tenant),
            promise: None,
            group: None,
        });
        Plan {
            seq: snapshot.seq,
            tenants: tenants.collect(),
            ..Plan::default()
        }
    }
}
