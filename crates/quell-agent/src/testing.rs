//! Recorded snapshots and plans for tests.

use crate::state::Facts;
use quell_model::config::{Backend, Mechanism, TenantSpec};
use quell_model::*;
use std::sync::Arc;

/// A period of 80 ms on two CPUs with tenants of so many threads, each of which ran for a quarter of the
/// period.
pub fn snapshot(seq: u64, tenants: &[(&str, u32)]) -> Snapshot {
    let topology = Arc::new(Topology::flat(2));
    let cpu = |cpu: &Cpu| CpuSample {
        cpu: cpu.id,
        busy_ns: Some(80_000_000),
        steal_ns: Some(0),
    };
    let mut tid = 100;
    let mut thread = |_| {
        tid += 1;
        ThreadSample {
            id: ThreadId {
                tid: Tid(tid),
                start_ticks: 1,
            },
            process: Pid(tid),
            name: format!("thread-{tid}").into(),
            role: ThreadRole::Ordinary,
            forked_by: None,
            state: ThreadState::Blocked,
            cpu: CpuId(0),
            run_ns: 20_000_000,
            ready: Some(ReadyTime {
                sum_ns: 1000,
                count: Some(1),
                histogram: Some(vec![0, 1]),
            }),
            throttled_ns: None,
            preemptions: Some(0),
            wakeups: Some(1),
            wakers: Some(vec![]),
            switches: Some(1),
            migrations: Some(0),
            settings: ThreadSettings {
                class: SchedClass::Fair,
                nice: Nice::default(),
                slice_ns: None,
                affinity: Arc::new(CpuSet::first(2)),
            },
        }
    };
    let tenants = tenants.iter().map(|&(name, count)| TenantSample {
        name: name.into(),
        spec: Arc::new(TenantSpec::named(name)),
        selectors: Arc::default(),
        cgroup: None,
        threads: (0..count).map(&mut thread).collect(),
        limit_cpus: None,
        taken_by: None,
        labels: Arc::default(),
        ended: None,
        waits: Some(WaitBreakdown::default()),
        occasions: Some(Occasions::default()),
        guest: None,
    });
    Snapshot {
        seq,
        time_ns: (seq + 1) * 80_000_000,
        period_ns: 80_000_000,
        source: Source::Bpf,
        tenants: tenants.collect(),
        host: HostSample {
            cpus: topology.cpus.iter().map(cpu).collect(),
            topology,
        },
    }
}

/// A plan with every thread of the snapshot, and so many reasons each.
pub fn plan_with_reasons(snapshot: &Snapshot, reasons: usize) -> Plan {
    let reason = Reason {
        rule: Rule::LatencyLowered,
        text: "3000 -> 2700 us: late".into(),
    };
    let thread = |thread: &ThreadSample| ThreadPlan {
        weight: Some(Weight::NICE_0),
        latency_ns: Some(2_700_000),
        reasons: vec![reason.clone(); reasons],
        ..ThreadPlan::leaving(thread.id)
    };
    let tenant = |tenant: &TenantSample| TenantPlan {
        name: tenant.name.clone(),
        weight: tenant.spec.weight,
        threads: tenant.threads.iter().map(thread).collect(),
        promise: None,
        group: None,
    };
    Plan {
        seq: snapshot.seq,
        tenants: snapshot.tenants.iter().map(tenant).collect(),
        ..Plan::default()
    }
}

/// Waits for threads of the tenant itself, and of other tenants.
pub fn waits(own_ns: u64, tenants: &[(&str, u64)]) -> WaitBreakdown {
    WaitBreakdown {
        own_ns,
        tenants: tenants
            .iter()
            .map(|&(name, ns)| (name.into(), ns))
            .collect(),
        ..WaitBreakdown::default()
    }
}

/// An agent that may do everything.
pub fn facts() -> Facts {
    Facts {
        mechanisms: vec![Mechanism::Asymmetry],
        backend: Backend::Stock,
        backend_reason: None,
        period_ms: 80,
        source: Source::Bpf,
        fallback_reason: None,
        not_acting_reason: None,
        missing: vec![],
        criticality: None,
    }
}
