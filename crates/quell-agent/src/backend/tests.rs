//! What goes where, and what happens when the scheduler ends, with a scheduler that follows a script.
//! The real one is tested in a guest (`crates/quell/tests/lab`).

use super::scripted::*;
use super::*;
use crate::testing::{plan_with_reasons, snapshot};
use quell_model::config::{Criticality, Server};
use quell_model::{CgroupPath, CpuId, ServerPlan, ServerTerms, Tid, Weight, Writes};
use quell_policy::{Policy, share::Shares};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

struct Rig {
    backends: Backends<Script>,
    log: Log,
    ending: Ending,
    missed: Missed,
    failures: Rc<RefCell<u32>>,
}

impl Rig {
    fn new() -> Rig {
        let (log, ending) = (Log::default(), Ending::default());
        let (failures, missed) = (Rc::new(RefCell::new(0)), Missed::default());
        let script = Script {
            missed: missed.clone(),
            log: log.clone(),
            ending: ending.clone(),
            failures: failures.clone(),
        };
        Rig {
            backends: Backends::new(Box::new(Recorder(log.clone())), script),
            log,
            ending,
            missed,
            failures,
        }
    }

    /// A period at that second, with a tenant of two threads; returns what is said.
    fn period(&mut self, second: u64) -> Vec<String> {
        let mut snapshot = snapshot(0, &[("a", 2)]);
        snapshot.time_ns = second * 1_000_000_000;
        let report = self.backends.apply(&snapshot, &plan(&snapshot));
        report.notes.iter().map(|note| note.to_string()).collect()
    }

    fn done(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.borrow_mut())
    }

    fn ends(&self, kind: u32, code: i64) {
        *self.ending.borrow_mut() = Some(Exit {
            kind,
            code,
            reason: "runnable task stall".into(),
            message: "x[1] failed to run for 20.0s".into(),
        });
    }
}

fn plan(snapshot: &Snapshot) -> Plan {
    let mut plan = plan_with_reasons(snapshot, 0);
    plan.tenants[0].weight = Some(TenantWeight(50));
    plan
}

fn config(text: &str) -> AgentFile {
    AgentFile::parse(Path::new("quell.toml"), text).unwrap()
}

#[test]
fn threads_go_to_the_scheduler_and_tenants_to_their_cgroups() {
    let mut rig = Rig::new();
    let choice = rig.backends.choose(&config(""), None);
    assert_eq!((choice.backend, choice.reason), (Backend::SchedExt, None));
    assert!(rig.period(1).is_empty());
    assert_eq!(
        rig.done(),
        [
            "load, causal true",
            "stock: 1 tenants' weights, 0 threads",
            "101: 0 Some(100) Some(2700000)",
            "102: 0 Some(100) Some(2700000)",
        ]
    );
    // Only differences are told; a thread that left the plan is given back.
    let snapshot = snapshot(1, &[("a", 2)]);
    let mut next = plan(&snapshot);
    next.tenants[0].threads[0].weight = Some(Weight(Weight::NICE_0.0 / 8));
    next.tenants[0].threads.remove(1);
    let report = rig.backends.apply(&snapshot, &next);
    let writes = Writes {
        scheduler: 1,
        ..Writes::default()
    };
    assert_eq!((report.writes, report.given_back), (writes, 1));
    let done = rig.done();
    assert_eq!(
        done[1..],
        ["101: 0 Some(13) Some(2700000)", "102: 0 None None"]
    );
    let report = rig.backends.apply(&snapshot, &next);
    assert_eq!((report.writes.total(), report.unchanged), (0, 1));
    rig.done();
    // A thread that is gone is counted, and tried again while the plan has it.
    next.tenants[0].threads[0].id.tid = Tid(999);
    let report = rig.backends.apply(&snapshot, &next);
    assert_eq!((report.gone, report.writes.total()), (1, 0));
    rig.done();
    rig.backends.apply(&snapshot, &plan(&snapshot));
    rig.done();
    rig.backends.restore();
    let mut done = rig.done();
    done.sort();
    assert_eq!(
        done,
        ["101: 0 None None", "102: 0 None None", "stock: restore"]
    );
}

#[test]
fn with_shares_a_tenant_that_is_no_cgroup_is_a_group_in_the_scheduler() {
    let mut rig = Rig::new();
    rig.backends
        .choose(&config("[agent]\npolicy = [\"share\"]"), None);
    let mut snapshot = snapshot(1, &[("a", 1), ("b", 1), ("c", 1)]);
    snapshot.tenants[1].cgroup = Some(CgroupPath("/b.slice".into()));
    let mut plan = Shares.decide(&snapshot);
    plan.tenants[0].weight = Some(TenantWeight(50));
    let threads: Vec<u32> = snapshot
        .tenants
        .iter()
        .map(|t| t.threads[0].id.tid.0)
        .collect();
    rig.done();
    rig.backends.apply(&snapshot, &plan);
    let told = [
        "tenant 1: Some(50)".to_string(),
        format!("{}: 1 None None", threads[0]),
        "tenant 2: Some(100)".to_string(),
        format!("{}: 2 None None", threads[2]),
    ];
    assert_eq!(rig.done()[1..], told);
    // Its weight changes; one becomes a cgroup, and one leaves.
    plan.tenants[0].weight = Some(TenantWeight(70));
    rig.backends.apply(&snapshot, &plan);
    assert_eq!(rig.done()[1..], ["tenant 1: Some(70)"]);
    snapshot.tenants[2].cgroup = Some(CgroupPath("/c.slice".into()));
    plan.tenants.remove(0);
    rig.backends.apply(&snapshot, &plan);
    let mut done = rig.done().split_off(1);
    done.sort();
    let given_back = |thread: u32| format!("{thread}: 0 None None");
    let mut expected = vec![
        given_back(threads[0]),
        given_back(threads[2]),
        "tenant 1: None".to_string(),
        "tenant 2: None".to_string(),
    ];
    expected.sort();
    assert_eq!(done, expected);
    // A new one gets a number that none had.
    let snapshot = self::snapshot(2, &[("d", 1)]);
    rig.backends.apply(&snapshot, &Shares.decide(&snapshot));
    assert_eq!(rig.done()[1], "tenant 3: Some(100)");
    rig.backends.restore();
    assert!(rig.done().contains(&"tenant 3: None".to_string()));
}

#[test]
fn promises_come_before_the_threads_they_are_for_and_end_after_them() {
    let mut rig = Rig::new();
    let options = "[agent]\npolicy = [\"criticality\"]";
    rig.backends.choose(&config(options), None);
    let snapshot = snapshot(1, &[("a", 2)]);
    let mut plan = Shares.decide(&snapshot);
    let server = Server {
        criticality: Criticality::High,
        period_ns: 100_000_000,
        budget_ns: 5_000_000,
        pessimistic_ns: 25_000_000,
    };
    plan.servers.push(ServerPlan {
        number: 3,
        cpu: CpuId(1),
        terms: ServerTerms {
            server,
            virtual_deadline_ns: 20_000_000,
            parts: 10,
            temperature: 2,
        },
    });
    let thread = &mut plan.tenants[0].threads[0];
    (thread.server, thread.cpus) = (Some(3), Some([CpuId(1)].into_iter().collect()));
    *rig.missed.borrow_mut() = 7;
    rig.done();
    rig.backends.apply(&snapshot, &plan);
    let [served, other] = [0, 1].map(|at| snapshot.tenants[0].threads[at].id.tid);
    assert_eq!(
        rig.done(),
        [
            // It is bound to the CPU by stock interfaces.
            "stock: 0 tenants' weights, 1 threads",
            "server 3 on 1: Some((5, 100, 20))",
            "tenant 1: Some(100)",
            &format!("{served}: 1 None None, server 3"),
            &format!("{other}: 1 None None"),
        ]
    );
    // Periods that an earlier server of this number missed do not count; those missed from now on do.
    assert!(rig.backends.broken().is_empty());
    *rig.missed.borrow_mut() += 2;
    // Nothing is told twice; another virtual deadline is.
    plan.servers[0].terms.virtual_deadline_ns = 30_000_000;
    rig.backends.apply(&snapshot, &plan);
    assert_eq!(rig.done()[1..], ["server 3 on 1: Some((5, 100, 30))"]);
    assert_eq!(rig.backends.broken(), &BTreeMap::from([("a".into(), 2)]));
    plan = Shares.decide(&snapshot);
    rig.backends.apply(&snapshot, &plan);
    assert_eq!(
        rig.done()[1..],
        [
            format!("{served}: 1 None None"),
            "server 3 on 1: None".into()
        ]
    );
}

#[test]
fn the_configuration_chooses() {
    for (text, backend, reason) in [
        (
            "[agent]\nbackend = \"stock\"",
            Backend::Stock,
            "the configuration says so",
        ),
        ("[agent]\npolicy = []", Backend::Stock, "no mechanism"),
        ("[agent]\nbackend = \"sched_ext\"", Backend::SchedExt, ""),
        ("[agent]\nbackend = \"auto\"", Backend::SchedExt, ""),
    ] {
        let choice = Rig::new().backends.choose(&config(text), None);
        assert_eq!(choice.backend, backend, "{text}");
        assert!(choice.reason.unwrap_or_default().contains(reason), "{text}");
    }
    // Where the scheduler does not load, plans go to stock interfaces from the first period on, and it is not
    // tried again: no tenant lost anything.
    let mut rig = Rig::new();
    *rig.failures.borrow_mut() = 1;
    let choice = rig.backends.choose(&config(""), None);
    assert_eq!(choice.backend, Backend::Stock);
    assert!(choice.reason.unwrap().contains("`other`"));
    assert!(rig.period(1000).is_empty());
    assert_eq!(
        rig.done(),
        ["load fails", "stock: 1 tenants' weights, 2 threads"]
    );
}

#[test]
fn a_reload_keeps_the_scheduler_unless_its_options_change() {
    let mut rig = Rig::new();
    rig.backends.choose(&config(""), None);
    rig.backends
        .choose(&config("[agent]\nperiod_ms = 100"), None);
    assert_eq!(rig.done(), ["load, causal true"]);
    rig.backends
        .choose(&config("[asymmetry]\ncausal = false"), None);
    assert_eq!(rig.done(), ["unload", "load, causal false"]);
    rig.backends
        .choose(&config("[agent]\nbackend = \"stock\""), None);
    assert_eq!(rig.done(), ["unload"]);
}

#[test]
fn after_its_end_the_same_plan_goes_to_stock_and_loading_is_tried_ever_more_seldom() {
    let mut rig = Rig::new();
    rig.backends.choose(&config(""), None);
    rig.period(1);
    rig.ends(1026, 0);
    *rig.failures.borrow_mut() = 2;
    rig.done();
    let said = rig.period(2);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("x[1] failed to run for 20.0s"), "{said:?}");
    assert_eq!(
        rig.done(),
        ["unload", "stock: 1 tenants' weights, 2 threads"]
    );
    assert_eq!(rig.backends.backend(), Backend::Stock);
    // One second after the end, two and four after the failures.
    let tries: Vec<u64> = (3..=20)
        .filter(|second| {
            rig.period(*second);
            rig.done().iter().any(|line| line.starts_with("load"))
        })
        .collect();
    assert_eq!(tries, [3, 5, 9]);
    assert_eq!(rig.backends.backend(), Backend::SchedExt);
    // It ends again soon, and is not taken for a good one.
    rig.ends(1026, 0);
    assert!(rig.period(21)[0].contains("again in 8 s"));
    rig.period(29);
    assert_eq!(rig.backends.backend(), Backend::SchedExt);
    // It ends after long: from the first step.
    rig.ends(1026, 0);
    assert!(rig.period(29 + 601)[0].contains("again in 1 s"));
}

#[test]
fn the_kernel_may_ask_to_load_it_again_at_once() {
    let mut rig = Rig::new();
    rig.backends.choose(&config(""), None);
    rig.period(1);
    rig.done();
    rig.ends(64, 1 << 48);
    let said = rig.period(2);
    assert_eq!(said.len(), 2, "{said:?}");
    let done = rig.done();
    assert_eq!(done[..2], ["unload", "load, causal true"]);
    // The new one knows nothing yet.
    assert_eq!(done.len(), 5, "{done:?}");
}

#[test]
fn waiting_has_a_limit() {
    let mut retry = Retry::default();
    let mut steps: Vec<u64> = (0..12).map(|_| retry.failed(0) / 1_000_000_000).collect();
    steps.dedup();
    assert_eq!(steps, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
}

#[test]
fn where_a_plan_wants_the_kernels_scheduler_stock_interfaces_carry_it_and_ours_comes_back_at_once()
{
    let mut rig = Rig::new();
    rig.backends.choose(&config(""), None);
    rig.period(1);
    rig.done();
    let snapshot = snapshot(1, &[("a", 2)]);
    let resting = Plan {
        kernel_scheduler: true,
        ..plan(&snapshot)
    };
    rig.backends.apply(&snapshot, &resting);
    let mut done = rig.done();
    // What it was told is taken back before it ends.
    done[..2].sort();
    assert_eq!(
        done,
        [
            "101: 0 None None",
            "102: 0 None None",
            "unload",
            "stock: 1 tenants' weights, 2 threads"
        ]
    );
    assert_eq!(rig.backends.backend(), Backend::Stock);
    // The unload is no failure: the agent says nothing of it, and the next period that wants the scheduler
    // loads it without a delay.
    rig.backends.apply(&snapshot, &resting);
    assert_eq!(rig.done(), ["stock: 1 tenants' weights, 2 threads"]);
    assert_eq!(rig.period(2), Vec::<String>::new());
    assert_eq!(rig.done()[0], "load, causal true");
    assert_eq!(rig.backends.backend(), Backend::SchedExt);
}
