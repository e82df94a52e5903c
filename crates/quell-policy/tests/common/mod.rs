//! Snapshots for tests.
#![allow(dead_code, clippy::unwrap_used)] // each test binary uses its part

use quell_model::config::TenantSpec;
use quell_model::{
    CgroupPath, CpuId, CpuSet, HostSample, Nice, Pid, Plan, ReadyTime, SchedClass, Snapshot,
    Source, TenantSample, ThreadId, ThreadPlan, ThreadRole, ThreadSample, ThreadSettings,
    ThreadState, Tid, Topology,
};
use std::sync::Arc;

pub const MS: u64 = 1_000_000;

pub fn id(tid: u32) -> ThreadId {
    ThreadId {
        tid: Tid(tid),
        start_ticks: 1,
    }
}

/// A blocked thread that did nothing, on CPU 0 of a host with `cpus`.
pub fn thread(tid: u32, cpus: u32) -> ThreadSample {
    ThreadSample {
        id: id(tid),
        process: Pid(tid),
        name: "t".into(),
        role: ThreadRole::Ordinary,
        forked_by: None,
        state: ThreadState::Blocked,
        cpu: CpuId(0),
        run_ns: 0,
        ready: Some(ReadyTime::default()),
        throttled_ns: None,
        preemptions: Some(0),
        wakeups: Some(0),
        wakers: Some(Vec::new()),
        switches: Some(0),
        migrations: Some(0),
        settings: ThreadSettings {
            class: SchedClass::Fair,
            nice: Nice::default(),
            slice_ns: None,
            affinity: Arc::new(CpuSet::first(cpus)),
        },
    }
}

pub fn tenant(spec: TenantSpec, own_cgroup: bool, threads: Vec<ThreadSample>) -> TenantSample {
    TenantSample {
        name: spec.name.as_str().into(),
        cgroup: own_cgroup.then(|| CgroupPath("/tenant".into())),
        spec: Arc::new(spec),
        selectors: Arc::default(),
        threads,
        limit_cpus: None,
        taken_by: None,
        labels: Arc::default(),
        ended: None,
        waits: None,
        occasions: None,
        guest: None,
    }
}

pub fn snapshot(seq: u64, cpus: u32, period_ns: u64, tenants: Vec<TenantSample>) -> Snapshot {
    Snapshot {
        seq,
        time_ns: seq.saturating_mul(period_ns),
        period_ns,
        source: Source::Simulator,
        host: HostSample {
            topology: Arc::new(Topology::flat(cpus)),
            cpus: Vec::new(),
        },
        tenants,
    }
}

/// `count` waits of `length_ns` each.
pub fn waits(count: u32, length_ns: u64) -> ReadyTime {
    let mut histogram = vec![0; length_ns.max(1).ilog2() as usize + 1];
    *histogram.last_mut().unwrap() = count;
    ReadyTime {
        sum_ns: u64::from(count) * length_ns,
        count: Some(u64::from(count)),
        histogram: Some(histogram),
    }
}

pub fn planned(plan: &Plan, id: ThreadId) -> Option<&ThreadPlan> {
    plan.tenants
        .iter()
        .flat_map(|tenant| &tenant.threads)
        .find(|thread| thread.id == id)
}

/// Makes the placements of `plan` take effect in `snapshot`, the period after it.
pub fn take_effect(plan: &Plan, snapshot: &mut Snapshot) {
    for thread in snapshot
        .tenants
        .iter_mut()
        .flat_map(|tenant| &mut tenant.threads)
    {
        let cpus = planned(plan, thread.id).and_then(|thread| thread.cpus.as_ref());
        if let Some(cpus) = cpus {
            thread.settings.affinity = Arc::new(cpus.clone());
            if let Some(cpu) = cpus.iter().next().filter(|_| !cpus.contains(thread.cpu)) {
                thread.cpu = cpu;
            }
        }
    }
}
