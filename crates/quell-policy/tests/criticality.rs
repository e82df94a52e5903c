//! Tests of promises of CPU time over several periods.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use quell_model::config::{
    AdmissionTest, AgentFile, AsymmetrySettings, Criticality, CriticalitySettings, TenantSpec,
};
use quell_model::{
    CpuId, CpuSet, Plan, Promise, Rule, Snapshot, TenantName, TenantSample, ThreadRole, Topology,
};
use quell_policy::Policy;
use quell_policy::criticality::{Owed, Promises, SHORT_PERIODS, conflict};
use quell_policy::dasec::Dasec;
use quell_policy::share::Shares;
use std::sync::Arc;

const PERIOD: u64 = 100 * MS;

/// A tenant with a budget, worst case and period in ms; without a worst case it is of low criticality.
fn spec(name: &str, budget: f64, most: Option<f64>, period: f64) -> TenantSpec {
    TenantSpec {
        criticality: Some(match most {
            Some(_) => Criticality::High,
            None => Criticality::Low,
        }),
        period_ms: Some(period),
        budget_ms: Some(budget),
        pessimistic_budget_ms: most,
        ..TenantSpec::named(name)
    }
}

/// A tenant of one thread.
fn one(name: &str, tid: u32, budget: f64, most: Option<f64>, period: f64) -> TenantSample {
    tenant(
        spec(name, budget, most, period),
        false,
        vec![thread(tid, 4)],
    )
}

/// Settings without a reserve and without overhead.
fn exact() -> CriticalitySettings {
    CriticalitySettings {
        reserve_percent: 0.0,
        overhead_us: 0.0,
        ..CriticalitySettings::default()
    }
}

struct Rig {
    policy: Promises,
    seq: u64,
    cpus: u32,
}

impl Rig {
    fn new(cpus: u32) -> Rig {
        Rig::with(cpus, exact())
    }

    fn with(cpus: u32, settings: CriticalitySettings) -> Rig {
        Rig {
            policy: Promises::new(settings, Box::new(Shares)),
            seq: 0,
            cpus,
        }
    }

    /// Replaces the policy by one that continues from `plan`.
    fn after(&mut self, settings: CriticalitySettings, plan: &Plan) {
        self.policy = Promises::after(settings, Box::new(Shares), &plan.reservations);
    }

    /// The next period's plan, with those tenants, in order of their names.
    fn period(&mut self, tenants: &[TenantSample]) -> Plan {
        self.seq += 1;
        let snapshot = snapshot(self.seq, self.cpus, PERIOD, tenants.to_vec());
        self.policy.decide(&snapshot)
    }

    fn of(&mut self, snapshot: &Snapshot) -> Plan {
        self.seq = snapshot.seq;
        self.policy.decide(snapshot)
    }
}

/// Whatever policy decides on weights, and whether its plans list the threads that it leaves as they are.
#[test]
fn promised_threads_are_served_beside_every_other_mechanism() {
    let tenants = [
        one("a", 1, 40.0, None, 100.0),
        tenant(TenantSpec::named("b"), false, vec![thread(2, 4)]),
    ];
    let weights: [Box<dyn Policy>; 2] = [
        Box::new(Shares),
        Box::new(Dasec::new(AsymmetrySettings::default())),
    ];
    for weights in weights {
        let mut rig = Rig::new(1);
        rig.policy = Promises::new(exact(), weights);
        rig.period(&tenants);
        let plan = rig.period(&tenants);
        let served = plan.tenants[0]
            .threads
            .iter()
            .map(|it| (it.id.tid.0, it.server, it.cpus.is_some()));
        assert_eq!(served.collect::<Vec<_>>(), [(1, Some(1), true)]);
        assert!(plan.tenants[1].threads.iter().all(|it| !it.changes()));
    }
}

/// Parts of 0.5 ms at the least, at most 16, for high criticality, where there is room for switching to
/// each.
#[test]
fn budgets_are_had_in_parts() {
    let roomy = CriticalitySettings::default();
    let costly = CriticalitySettings {
        overhead_us: 100.0,
        ..roomy
    };
    for (settings, budget, most, parts) in [
        (roomy, 0.9, Some(25.0), 1),
        (roomy, 5.0, Some(25.0), 10),
        (roomy, 20.0, Some(90.0), 16),
        (roomy, 20.0, None, 1),
        (costly, 20.0, Some(90.0), 16),
        (costly, 20.0, Some(94.5), 1),
    ] {
        let mut rig = Rig::with(1, settings);
        let tenants = [one("a", 10, budget, most, 100.0)];
        rig.period(&tenants);
        let plan = rig.period(&tenants);
        let found: Vec<_> = plan.servers.iter().map(|it| it.terms.parts).collect();
        // The budget of the reserve is whole.
        assert_eq!(found, [1, parts], "{budget} {most:?}");
    }
}

/// The promises as `number on CPU: budget/virtual deadline`, and threads as `tid on CPU by number`.
fn shown(plan: &Plan) -> Vec<String> {
    let servers = plan.servers.iter().map(|it| {
        let ms = |ns: u64| ns as f64 / 1e6;
        let (budget, deadline) = (
            ms(it.terms.server.budget_ns),
            ms(it.terms.virtual_deadline_ns),
        );
        format!("{} on {}: {budget}/{deadline}", it.number, it.cpu)
    });
    let threads = plan.tenants.iter().flat_map(|it| &it.threads);
    let served = threads.filter_map(|it| {
        let cpus = it.cpus.as_ref()?.iter().map(|cpu| cpu.to_string());
        let cpus: Vec<String> = cpus.collect();
        Some(format!(
            "{} on {} by {}",
            it.id.tid,
            cpus.join(","),
            it.server?
        ))
    });
    servers.chain(served).collect()
}

fn promise(plan: &Plan, tenant: &str) -> Option<Promise> {
    let name = TenantName::from(tenant);
    let it = plan.tenants.iter().find(|it| it.name == name);
    it.and_then(|it| it.promise.clone())
}

fn kept(cpu: u32) -> Option<Promise> {
    Some(Promise::Kept {
        cpus: vec![CpuId(cpu)],
        unchanged: None,
    })
}

#[test]
fn tenants_are_served_where_they_fit_first() {
    let mut rig = Rig::new(2);
    let (a, b) = (
        one("a", 1, 50.0, None, 100.0),
        one("b", 2, 40.0, None, 100.0),
    );
    let (c, d) = (
        one("c", 3, 20.0, None, 50.0),
        one("d", 4, 70.0, None, 100.0),
    );
    let weighted = tenant(TenantSpec::named("e"), false, vec![thread(5, 4)]);
    let plan = rig.period(&[a.clone(), b.clone(), c.clone(), d.clone(), weighted]);
    let expected = [
        "1 on 0: 50/100",
        "2 on 0: 40/100",
        "3 on 1: 20/50",
        "1 on 0 by 1",
        "2 on 0 by 2",
        "3 on 1 by 3",
    ];
    assert_eq!(shown(&plan), expected);
    assert_eq!([promise(&plan, "a"), promise(&plan, "e")], [kept(0), None]);
    let Some(Promise::Refused { why }) = promise(&plan, "d") else {
        panic!("{plan:?}");
    };
    assert_eq!(
        why,
        "U1(1) + U2(1) <= 1 does not hold, on CPU 1 least: 1.100; a budget of 60 ms would fit"
    );
    // The tenant is served once another has left and its period is over; no other server moves.
    for periods in 0..2 {
        let plan = rig.period(&[a.clone(), b.clone(), d.clone()]);
        assert!(matches!(promise(&plan, "d"), Some(Promise::Refused { .. })) == (periods == 0));
    }
    let plan = rig.period(&[a, b, d]);
    assert_eq!(promise(&plan, "d"), kept(1));
    assert_eq!(shown(&plan)[..2], expected[..2]);
}

#[test]
fn a_newcomer_waits_until_others_deadlines_are_right_beside_it() {
    let mut rig = Rig::new(1);
    let a = one("a", 1, 10.0, Some(30.0), 200.0);
    // Alone: x = 0.05.
    assert_eq!(
        shown(&rig.period(std::slice::from_ref(&a))),
        ["1 on 0: 10/10", "1 on 0 by 1"]
    );
    let both = [a, one("b", 2, 50.0, None, 100.0)];
    // Beside a half: x = 0.1.
    for _ in 0..2 {
        let plan = rig.period(&both);
        assert_eq!(shown(&plan), ["1 on 0: 10/20", "1 on 0 by 1"]);
        let cpus = vec![CpuId(0)];
        assert_eq!(promise(&plan, "b"), Some(Promise::Awaited { cpus }));
    }
    let plan = rig.period(&both);
    assert_eq!(promise(&plan, "b"), kept(0));
    assert_eq!(shown(&plan)[1], "2 on 0: 50/100");
}

#[test]
fn who_is_of_low_criticality_and_gets_too_little_moves() {
    let mut rig = Rig::new(2);
    let a = one("a", 1, 10.0, Some(80.0), 100.0);
    let mut b = one("b", 2, 25.0, None, 50.0);
    for _ in 0..2 {
        rig.period(&[a.clone(), b.clone()]);
    }
    // A fifth of its promise, and it wanted more.
    b.threads[0].run_ns = 10 * MS;
    b.threads[0].ready = Some(waits(1, 80 * MS));
    for _ in 1..SHORT_PERIODS {
        let plan = rig.period(&[a.clone(), b.clone()]);
        assert_eq!(promise(&plan, "b"), kept(0));
    }
    let plan = rig.period(&[a.clone(), b.clone()]);
    assert_eq!(promise(&plan, "b"), kept(1));
    assert_eq!(shown(&plan)[1], "3 on 1: 25/50");
    let reason = &planned(&plan, id(2)).unwrap().reasons[0];
    assert_eq!(reason.rule, Rule::Moved);
    assert_eq!(
        reason.text,
        "served on CPU 1: CPU 0 keeps serving only high criticality"
    );
    // A sleeping tenant gets little and lacks nothing.
    b.threads[0].ready = Some(waits(1, MS));
    for _ in 0..2 * SHORT_PERIODS {
        let plan = rig.period(&[a.clone(), b.clone()]);
        assert_eq!(promise(&plan, "b"), kept(1));
    }
}

/// The server of high criticality leaves 25 ms at the end of its period of 125: one of five control periods
/// of 100 ms has none of them, the others have all that is due then.
#[test]
fn it_moves_where_some_control_periods_have_all_that_is_left() {
    let mut rig = Rig::new(2);
    let a = one("a", 1, 10.0, Some(100.0), 125.0);
    let mut b = one("b", 2, 12.5, None, 50.0);
    let mut on = Vec::new();
    for ran in [0, 25, 25, 25, 25].into_iter().cycle().take(12) {
        b.threads[0].run_ns = ran * MS;
        b.threads[0].ready = Some(waits(1, (100 - ran) * MS));
        on.push(promise(&rig.period(&[a.clone(), b.clone()]), "b"));
    }
    assert_eq!(on.last(), Some(&kept(1)), "{on:?}");
}

/// A budget may come late in one period and early in another: twelve control periods in a row have none of
/// it.
#[test]
fn who_gets_its_budget_late_stays() {
    let mut rig = Rig::new(2);
    let a = one("a", 1, 10.0, Some(400.0), 1000.0);
    let mut b = one("b", 2, 400.0, None, 1000.0);
    for period in 0..200 {
        let late = period / 10 % 2 == 0;
        let runs = if late {
            period % 10 >= 6
        } else {
            period % 10 < 4
        };
        let ran = if runs { 100 } else { 0 };
        b.threads[0].run_ns = ran * MS;
        b.threads[0].ready = Some(waits(1, (100 - ran) * MS));
        let is = promise(&rig.period(&[a.clone(), b.clone()]), "b");
        assert!(period < 20 || is == kept(0), "{period}: {is:?}");
    }
}

/// A control loop that is late once has seen no more than the time since its last period.
#[test]
fn it_is_judged_by_the_time_that_was_seen() {
    let mut rig = Rig::new(2);
    let mut a = one("a", 1, 70.0, None, 100.0);
    let mut now = 0;
    for seq in 0..60 {
        let period = if seq % 11 == 10 {
            3 * PERIOD / 2
        } else {
            PERIOD
        };
        now += period;
        a.threads[0].run_ns = period * 70 / 100;
        a.threads[0].ready = Some(waits(1, period * 30 / 100));
        let mut snapshot = snapshot(seq, 2, period, vec![a.clone()]);
        snapshot.time_ns = now;
        assert_eq!(promise(&rig.of(&snapshot), "a"), kept(0), "{seq}");
    }
}

#[test]
fn it_is_judged_by_the_terms_that_it_had() {
    let mut rig = Rig::new(2);
    for period in 0..60 {
        // All of the budget, and no more of the time that others leave; the first period with the new
        // terms ended in control period 9, and one is late.
        let budget = if period < 7 { 20.0 } else { 60.0 };
        let mut a = one("a", 1, budget, None, 100.0);
        let ran = match period {
            0..=7 => 20,
            8 => 0,
            17 => 30,
            _ => 60,
        };
        a.threads[0].run_ns = ran * MS;
        a.threads[0].ready = Some(waits(1, (100 - ran) * MS));
        assert_eq!(promise(&rig.period(&[a]), "a"), kept(0), "{period}");
    }
}

#[test]
fn where_moving_does_not_help_it_moves_on_less_and_less_often() {
    let mut rig = Rig::new(3);
    let high = (1..=3).map(|tid| one(&format!("high-{tid}"), tid, 10.0, Some(60.0), 100.0));
    let mut tenants: Vec<_> = high.collect();
    let mut low = one("low", 4, 10.0, None, 50.0);
    low.threads[0].run_ns = MS;
    low.threads[0].ready = Some(waits(1, 90 * MS));
    tenants.push(low);
    let mut moves = Vec::new();
    let mut on = None;
    for period in 0..200 {
        let promise = promise(&rig.period(&tenants), "low");
        let (Some(Promise::Kept { cpus, .. }) | Some(Promise::Awaited { cpus })) = promise else {
            panic!("{promise:?}")
        };
        if on != Some(cpus[0]) {
            on = Some(cpus[0]);
            moves.push((period, cpus[0].0));
        }
    }
    // The tenant is served from the period after, and moves after 5, 10, 20, 40 and 80 whole ones.
    assert_eq!(moves, [(0, 0), (6, 1), (17, 2), (38, 0), (79, 1), (160, 2)]);
}

#[test]
fn a_vms_virtual_cpus_are_on_cpus_of_their_own() {
    let mut rig = Rig::new(3);
    let threads = (1..=3).map(|tid| {
        let mut it = thread(tid, 4);
        it.role = match tid {
            3 => ThreadRole::Emulator,
            tid => ThreadRole::Vcpu(tid - 1),
        };
        it
    });
    let vm = tenant(
        spec("vm", 10.0, Some(20.0), 100.0),
        false,
        threads.collect(),
    );
    let plan = rig.period(std::slice::from_ref(&vm));
    // The emulator thread is served with the first vCPU.
    let expected = [
        "1 on 0: 10/10",
        "2 on 1: 10/10",
        "1 on 0 by 1",
        "2 on 1 by 2",
        "3 on 0 by 1",
    ];
    assert_eq!(shown(&plan), expected);
    // A policy that comes after, which sees the emulator thread bound, serves it too.
    let mut held = vm.clone();
    held.threads[2].settings.affinity = Arc::new(CpuSet::first(1));
    rig.after(exact(), &plan);
    assert_eq!(shown(&rig.period(&[held.clone()])), expected);
    // An emulator thread that its owner binds stays there.
    let plan = Rig::new(3).period(&[held]);
    assert_eq!(shown(&plan), expected[..4]);
}

#[test]
fn when_a_cpu_goes_offline_its_servers_go_elsewhere_or_lose_their_promise() {
    let mut rig = Rig::new(2);
    let tenants = [
        one("a", 1, 50.0, Some(50.0), 100.0),
        one("b", 2, 60.0, None, 100.0),
    ];
    let plan = rig.period(&tenants);
    assert_eq!(
        [promise(&plan, "a"), promise(&plan, "b")],
        [kept(0), kept(1)]
    );
    let mut next = snapshot(2, 2, PERIOD, tenants.to_vec());
    let mut topology = Topology::flat(2);
    topology.cpus.remove(1);
    next.host.topology = Arc::new(topology);
    let plan = rig.of(&next);
    assert_eq!(promise(&plan, "a"), kept(0));
    assert!(matches!(promise(&plan, "b"), Some(Promise::Refused { .. })));
    assert_eq!(shown(&plan), ["1 on 0: 50/50", "1 on 0 by 1"]);
    // Once the CPU is back, so is the promise.
    let plan = rig.period(&tenants);
    assert_eq!(promise(&plan, "b"), kept(1));
}

#[test]
fn what_a_cpu_keeps_for_the_rest_is_a_server_with_number_0() {
    let settings = CriticalitySettings {
        test: AdmissionTest::Edf,
        ..CriticalitySettings::default()
    };
    let mut rig = Rig::with(2, settings);
    let plan = rig.period(&[one("a", 1, 10.0, Some(40.0), 50.0)]);
    // EDF provides for the worst case at once.
    let expected = ["0 on 0: 5/100", "1 on 0: 40/50", "1 on 0 by 1"];
    assert_eq!(shown(&plan), expected);
}

/// The tenants of a reload's tests: one placed beside another, the third awaited, and room for no other where
/// they are.
fn crowd() -> [TenantSample; 4] {
    [
        one("a", 1, 10.0, Some(30.0), 200.0),
        one("b", 2, 50.0, None, 100.0),
        one("c", 3, 70.0, None, 100.0),
        one("d", 4, 20.0, None, 100.0),
    ]
}

#[test]
fn who_comes_after_a_policy_keeps_its_promises() {
    let [a, b, c, d] = crowd();
    let less = one("b", 2, 40.0, None, 100.0);
    let more = one("d", 4, 90.0, None, 100.0);
    // The plans of one policy must equal those of policies that replace one another after each period.
    let mut plain = Rig::new(2);
    let mut renewed = Rig::new(2);
    let come = [
        vec![a.clone()],
        vec![a.clone(), b.clone(), c.clone()],
        vec![a.clone(), b.clone(), c.clone()],
        // One tenant has left: for a period its room is not given away.
        vec![b.clone(), c.clone(), d.clone()],
        vec![b.clone(), c.clone(), d.clone()],
        vec![b.clone(), c.clone(), d.clone()],
        vec![a.clone(), b.clone(), c.clone(), d.clone()],
        // One tenant asks for less, another for more than there is.
        vec![a.clone(), less.clone(), c.clone(), more.clone()],
        vec![a.clone(), less.clone(), c.clone(), more.clone()],
        vec![a, less, c, more],
    ];
    for (period, tenants) in come.iter().enumerate() {
        let (expected, plan) = (plain.period(tenants), renewed.period(tenants));
        assert_eq!(plan.servers, expected.servers, "period {period}");
        assert_eq!(plan, expected, "period {period}");
        renewed.after(exact(), &plan);
    }
}

#[test]
fn other_terms_hold_once_others_deadlines_are_right_beside_them_and_old_room_goes_after_a_period() {
    let mut rig = Rig::new(1);
    let a = one("a", 1, 10.0, Some(30.0), 200.0);
    let b = one("b", 2, 20.0, None, 100.0);
    for _ in 0..4 {
        rig.period(&[a.clone(), b.clone()]);
    }
    // Beside a fifth: x = 0.05 / 0.8.
    let plan = rig.period(&[a.clone(), b.clone()]);
    assert_eq!(shown(&plan)[..2], ["1 on 0: 10/12.5", "2 on 0: 20/100"]);
    // More: at once for `a`, x = 0.05 / 0.5, and for `b` after the longest period of the others.
    let more = one("b", 2, 50.0, None, 100.0);
    for period in 0..4 {
        let plan = rig.period(&[a.clone(), more.clone()]);
        let budget = if period < 2 { 20 } else { 50 };
        let expected = ["1 on 0: 10/20".into(), format!("2 on 0: {budget}/100")];
        assert_eq!(shown(&plan)[..2], expected, "period {period}");
        assert_eq!(promise(&plan, "b"), kept(0));
    }
    // Less: at once, and the room of the old terms is given to no other tenant before its period is over.
    let wants = one("c", 3, 45.0, None, 100.0);
    for period in 0..3 {
        let plan = rig.period(&[a.clone(), b.clone(), wants.clone()]);
        assert_eq!(shown(&plan)[1], "2 on 0: 20/100", "period {period}");
        let refused = matches!(promise(&plan, "c"), Some(Promise::Refused { .. }));
        assert_eq!(refused, period < 1, "period {period}");
    }
}

#[test]
fn where_other_terms_have_no_room_the_promise_stays_as_it_was() {
    let mut rig = Rig::new(1);
    let tenants = |budget| {
        [
            one("a", 1, 50.0, None, 100.0),
            one("b", 2, budget, None, 50.0),
        ]
    };
    let before = rig.period(&tenants(20.0));
    for _ in 0..3 {
        let plan = rig.period(&tenants(30.0));
        assert_eq!(plan.servers, before.servers);
        let Some(Promise::Kept { cpus, unchanged }) = promise(&plan, "b") else {
            panic!("{plan:?}");
        };
        assert_eq!(cpus, [CpuId(0)]);
        let why = "30 of every 50 ms has no room on CPU 0, where its tenant is promised CPU time: U1(1) + U2(1) <= 1 does not hold: 1.100";
        assert_eq!(unchanged.as_deref(), Some(why));
    }
    // The refusal is not repeated once the tenant no longer asks, and is tried again once there is more room.
    assert_eq!(promise(&rig.period(&tenants(20.0)), "b"), kept(0));
    rig.period(&tenants(30.0));
    let alone = &tenants(30.0)[1..];
    for _ in 0..2 {
        rig.period(alone);
    }
    let plan = rig.period(alone);
    assert_eq!(promise(&plan, "b"), kept(0));
    assert_eq!(shown(&plan)[0], "2 on 0: 30/50");
}

/// A configuration of tenants `NAME CRITICALITY PERIOD BUDGET MORE`.
fn file(head: &str, tenants: &[(&str, &str, u32, u32, &str)]) -> AgentFile {
    let mut text = format!("[agent]\npolicy = [\"criticality\"]\n{head}\n");
    for (name, criticality, period, budget, more) in tenants {
        text += &format!(
            "[[tenant]]\nname = \"{name}\"\npid = [1]\ncriticality = \"{criticality}\"\nperiod_ms = {period}\n\
             budget_ms = {budget}\n{more}\n"
        );
    }
    AgentFile::parse("q.toml".as_ref(), &text).unwrap()
}

#[test]
fn a_configuration_that_would_break_a_promise_is_told_by_its_key() {
    let mut rig = Rig::new(1);
    let tenants = [
        one("a", 1, 50.0, None, 100.0),
        one("b", 2, 30.0, None, 100.0),
    ];
    let given = rig.period(&tenants).reservations;
    let head = "[criticality]\nreserve_percent = 5\n";
    let before = file(
        head,
        &[("a", "low", 100, 50, ""), ("b", "low", 100, 30, "")],
    );
    let conflict = |head: &str, tenants: &[(&str, &str, u32, u32, &str)]| {
        let file = file(head, tenants);
        conflict(&given, &before, &file, &Owed::by_tables(&file))
    };
    let b = ("b", "low", 100, 30, "");
    let fits = [
        vec![("a", "low", 100, 50, ""), b],
        vec![("a", "low", 100, 60, ""), b],
        vec![("a", "low", 200, 50, ""), b],
        vec![("a", "low", 50, 25, ""), b],
        // One after the other, both fit.
        vec![("a", "low", 100, 40, ""), ("b", "low", 100, 35, "")],
        // A tenant without a promise is not judged here.
        vec![("c", "low", 100, 100, ""), b],
        vec![],
    ];
    for tenants in fits {
        assert_eq!(conflict(head, &tenants), None, "{tenants:?}");
    }
    let most = "pessimistic_budget_ms = 60";
    let misfits = [
        (
            ("a", "low", 100, 90, ""),
            "budget_ms",
            "has no room on CPU 0",
        ),
        (
            ("a", "low", 50, 50, ""),
            "period_ms",
            "has no room on CPU 0",
        ),
        (
            ("a", "high", 100, 50, most),
            "criticality",
            "reload without it",
        ),
        (("a", "low", 100, 50, "vcpus = 2"), "vcpus", "is not 1"),
    ];
    for (a, key, message) in misfits {
        let found = conflict(head, &[b, a]).unwrap();
        assert_eq!(found.key, format!("tenant[1].{key}"));
        assert!(found.message.contains(message), "{found:?}");
    }
    let much = file("[criticality]\nreserve_percent = 30\n", &[b]);
    let owed = Owed::by_tables(&much);
    let found = quell_policy::criticality::conflict(&given, &much, &much, &owed);
    assert_eq!(found.map(|it| it.key), Some("criticality".into()));
    // The settings of the admission test stay as long as a tenant has a promise by them.
    for (table, key) in [
        ("reserve_percent = 10", Some("reserve_percent")),
        ("overhead_us = 30", Some("overhead_us")),
        ("test = \"edf\"", Some("test")),
        ("temperature = 5", None),
    ] {
        let head = format!("[criticality]\n{table}\n");
        let found = conflict(&head, &[b]).map(|it| it.key);
        assert_eq!(
            found,
            key.map(|key| format!("criticality.{key}")),
            "{table}"
        );
        assert_eq!(conflict(&head, &[("c", "low", 100, 10, "")]), None);
    }
}

/// A tenant whose owner lets each of its threads run on a set of CPUs only; `cpus` has the sets in the
/// threads' order.
fn bound(mut tenant: TenantSample, cpus: &[&str]) -> TenantSample {
    for (thread, cpus) in tenant.threads.iter_mut().zip(cpus) {
        thread.settings.affinity = Arc::new(cpus.parse().unwrap());
    }
    tenant
}

#[test]
fn a_server_is_where_its_threads_owner_lets_them_run() {
    let mut rig = Rig::new(4);
    let a = bound(one("a", 1, 30.0, None, 50.0), &["2-3"]);
    let b = bound(one("b", 2, 60.0, None, 100.0), &["2"]);
    let plan = rig.period(&[a.clone(), b.clone()]);
    assert_eq!(promise(&plan, "a"), kept(2));
    let why = "there is room for it, but not where its owner lets it run: CPUs 2";
    let refused = |why: &str| Some(Promise::Refused { why: why.into() });
    assert_eq!(promise(&plan, "b"), refused(why));
    // The present binding is ours, not its owner's choice.
    let held = bound(a.clone(), &["2"]);
    let mut wants = held.clone();
    wants.threads[0].run_ns = MS;
    wants.threads[0].ready = Some(waits(1, 90 * MS));
    for _ in 0..=SHORT_PERIODS {
        rig.period(&[wants.clone(), b.clone()]);
    }
    // The tenant moves, to that CPU only; the other gets its place. So it does under a later policy.
    let plan = rig.period(&[wants.clone(), b.clone()]);
    assert_eq!(
        [promise(&plan, "a"), promise(&plan, "b")],
        [kept(3), kept(2)]
    );
    rig.after(exact(), &plan);
    for _ in 0..4 * SHORT_PERIODS {
        let plan = rig.period(&[wants.clone(), b.clone()]);
        assert_eq!(promise(&plan, "a"), kept(3));
    }
    // Once its owner lets one thread run elsewhere, it is placed.
    let c = bound(one("c", 3, 60.0, None, 100.0), &["3"]);
    let plan = rig.period(&[wants.clone(), b.clone(), c.clone()]);
    assert!(matches!(promise(&plan, "c"), Some(Promise::Refused { .. })));
    let c = bound(c, &["1,3"]);
    assert_eq!(promise(&rig.period(&[wants, b, c]), "c"), kept(1));
}

#[test]
fn virtual_cpus_give_way_to_those_that_may_run_nowhere_else() {
    let mut rig = Rig::new(3);
    let threads = (1..=3).map(|tid| {
        let mut it = thread(tid, 4);
        it.role = ThreadRole::Vcpu(tid - 1);
        it
    });
    let vm = tenant(spec("vm", 10.0, None, 100.0), false, threads.collect());
    let on = |cpus: &[u32]| {
        Some(Promise::Kept {
            cpus: cpus.iter().map(|cpu| CpuId(*cpu)).collect(),
            unchanged: None,
        })
    };
    let plan = rig.period(&[bound(vm.clone(), &["0-3", "0-1", "0"])]);
    assert_eq!(promise(&plan, "vm"), on(&[2, 1, 0]));
    let plan = Rig::new(3).period(&[bound(vm.clone(), &["0-3", "1", "1"])]);
    assert!(matches!(
        promise(&plan, "vm"),
        Some(Promise::Refused { .. })
    ));
    // The affinities of all threads of a process that one server serves have to agree.
    let mut process = vm;
    process
        .threads
        .iter_mut()
        .for_each(|it| it.role = ThreadRole::Ordinary);
    let plan = Rig::new(3).period(&[bound(process.clone(), &["0-1", "1-2", "0-3"])]);
    assert_eq!(promise(&plan, "vm"), on(&[1]));
    let plan = Rig::new(3).period(&[bound(process, &["0", "1", "0-3"])]);
    let why = "there is no CPU that its owner lets all threads of a virtual CPU run on";
    assert_eq!(
        promise(&plan, "vm"),
        Some(Promise::Refused { why: why.into() })
    );
}
