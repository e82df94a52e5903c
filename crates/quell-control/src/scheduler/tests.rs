//! What is told, in which order, with a scheduler and stock interfaces that only keep what they are told.
//! With the agent's choice of a backend: `crates/quell-agent/src/backend/tests.rs`.

use super::*;
use quell_model::config::{Backend, Criticality, Server};
use quell_model::{CpuId, HostSample, ServerPlan, ServerTerms, Source, Tid, Topology};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// What was done, in order.
type Log = Rc<RefCell<Vec<String>>>;

struct Stock(Log);

impl Act for Stock {
    fn backend(&self) -> Backend {
        Backend::Stock
    }

    fn apply(&mut self, _: &Snapshot, plan: &Plan) -> ApplyReport {
        let threads = plan.tenants.iter().flat_map(|it| &it.threads);
        let bound: Vec<String> = threads.map(|it| it.id.tid.to_string()).collect();
        let text = format!("stock: {}", bound.join(" "));
        self.0.borrow_mut().push(text);
        ApplyReport::default()
    }
}

struct Calls(Log);

impl SchedulerCalls for Calls {
    fn set_thread(&mut self, thread: ThreadId, setting: ThreadSetting) -> Result<(), SchedError> {
        if thread.tid.0 == 999 {
            return Err(SchedError::NoThread(thread.tid));
        }
        let (tenant, server) = (setting.tenant, setting.server);
        let text = format!("thread {}: tenant {tenant}, server {server}", thread.tid);
        self.0.borrow_mut().push(text);
        Ok(())
    }

    fn set_tenant(&mut self, tenant: u32, weight: Option<TenantWeight>) -> Result<(), SchedError> {
        let weight = weight.map(|it| it.0);
        self.0
            .borrow_mut()
            .push(format!("tenant {tenant}: {weight:?}"));
        Ok(())
    }

    fn set_server(&mut self, setting: ServerSetting) -> Result<(), SchedError> {
        let text = match setting.terms {
            Some(_) => format!("server {} begins", setting.number),
            None => format!("server {} ends", setting.number),
        };
        self.0.borrow_mut().push(text);
        Ok(())
    }
}

struct Rig {
    actuator: SchedulerActuator,
    log: Log,
}

impl Rig {
    fn new(groups_tenants: bool) -> Rig {
        Rig {
            actuator: SchedulerActuator::new(groups_tenants),
            log: Log::default(),
        }
    }

    /// Carries out a plan; what was done, and the report.
    fn apply(&mut self, plan: &Plan) -> (Vec<String>, ApplyReport) {
        let snapshot = Snapshot {
            seq: 0,
            time_ns: 0,
            period_ns: 80_000_000,
            source: Source::Simulator,
            host: HostSample {
                topology: Arc::new(Topology::flat(2)),
                cpus: Vec::new(),
            },
            tenants: Vec::new(),
        };
        let (mut stock, mut calls) = (Stock(self.log.clone()), Calls(self.log.clone()));
        let report = self.actuator.apply(&mut stock, &mut calls, &snapshot, plan);
        (self.log.take(), report)
    }
}

fn id(tid: u32) -> ThreadId {
    ThreadId {
        tid: Tid(tid),
        start_ticks: 1,
    }
}

/// A plan of one tenant with these threads, each served by a server of CPU 1 if its number is not 0.
fn plan(threads: &[(u32, u32)]) -> Plan {
    let thread = |&(tid, server): &(u32, u32)| ThreadPlan {
        server: (server > 0).then_some(server),
        cpus: (server > 0).then(|| [CpuId(1)].into_iter().collect()),
        ..ThreadPlan::leaving(id(tid))
    };
    let server = |&(_, number): &(u32, u32)| {
        let server = Server {
            criticality: Criticality::Low,
            period_ns: 100_000_000,
            budget_ns: 5_000_000,
            pessimistic_ns: 5_000_000,
        };
        let terms = ServerTerms {
            server,
            virtual_deadline_ns: 100_000_000,
            parts: 1,
            temperature: 0,
        };
        (number > 0).then_some(ServerPlan {
            number,
            cpu: CpuId(1),
            terms,
        })
    };
    Plan {
        tenants: vec![TenantPlan {
            name: "a".into(),
            weight: None,
            threads: threads.iter().map(thread).collect(),
            promise: None,
            group: None,
        }],
        servers: threads.iter().filter_map(server).collect(),
        ..Plan::default()
    }
}

#[test]
fn servers_begin_before_their_threads_and_end_after_them() {
    let mut rig = Rig::new(true);
    let (done, report) = rig.apply(&plan(&[(7, 3), (8, 0)]));
    assert_eq!(
        done,
        [
            "stock: 7",
            "server 3 begins",
            "tenant 1: Some(100)",
            "thread 7: tenant 1, server 3",
            "thread 8: tenant 1, server 0",
        ]
    );
    assert_eq!(report.writes.scheduler, 2);
    // A plan that holds already costs no call.
    let (done, report) = rig.apply(&plan(&[(7, 3), (8, 0)]));
    assert_eq!((done, report.unchanged), (vec!["stock: 7".into()], 2));
    let (done, _) = rig.apply(&plan(&[(7, 4), (8, 0)]));
    assert_eq!(
        done,
        [
            "stock: 7",
            "server 4 begins",
            "thread 7: tenant 1, server 4",
            "server 3 ends",
        ]
    );
}

#[test]
fn threads_that_leave_the_plan_are_given_back_in_the_order_of_their_ids() {
    let mut rig = Rig::new(true);
    let all: Vec<(u32, u32)> = (1..=40).rev().map(|tid| (tid, 0)).collect();
    rig.apply(&plan(&all));
    let (done, report) = rig.apply(&Plan::default());
    let mut expected = vec!["stock: ".to_string()];
    expected.extend((1..=40).map(|tid| format!("thread {tid}: tenant 0, server 0")));
    expected.push("tenant 1: None".into());
    assert_eq!(done, expected);
    assert_eq!(report.given_back, 40);
}

#[test]
fn where_tenants_are_cgroups_a_thread_without_settings_is_not_told() {
    let mut rig = Rig::new(false);
    let (done, report) = rig.apply(&plan(&[(7, 0), (8, 3), (999, 3)]));
    assert_eq!(
        done,
        [
            "stock: 8 999",
            "server 3 begins",
            "thread 8: tenant 0, server 3"
        ]
    );
    assert_eq!((report.writes.scheduler, report.gone), (1, 1));
    let mut calls = Calls(rig.log.clone());
    rig.actuator.forget(&mut calls);
    assert_eq!(
        rig.log.take(),
        ["server 3 ends", "thread 8: tenant 0, server 0"]
    );
    // All is told anew.
    let (done, _) = rig.apply(&plan(&[(8, 3)]));
    assert_eq!(
        done[1..],
        ["server 3 begins", "thread 8: tenant 0, server 3"]
    );
}
