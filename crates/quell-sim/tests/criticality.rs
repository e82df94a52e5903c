//! Servers: promised CPU time in every period, under Quell's scheduler.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use quell_control::PromisedServers;
use quell_model::config::{AdmissionTest, Criticality, CriticalitySettings, Server, TenantSpec};
use quell_model::{CpuId, Nice, ServerPlan, ServerTerms, TenantWeight};
use quell_policy::Policy;
use quell_policy::admission::check;
use quell_policy::criticality::Promises;
use quell_policy::share::Shares;
use quell_scenario::Scenario;
use quell_sched::{Options, ServerSetting, ThreadSetting};
use quell_sim::{
    Act, GroupId, Happening, Monitor, SchedExt, Simulation, Tenant, ThreadId, thread_of,
};
use quell_testkit::audit::{Audit, Event};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

fn with_servers(cpus: u32) -> Simulation {
    with(cpus, Options::default())
}

fn with(cpus: u32, options: Options) -> Simulation {
    let topology = quell_model::Topology::flat(cpus);
    let options = Options {
        share: true,
        criticality: true,
        ..options
    };
    let class = SchedExt::new(&topology, &options).unwrap();
    Simulation::new(topology, TICKS, Box::new(class))
}

/// The terms of a server, in ms; `x` is the virtual deadline as a part of the period.
fn terms(criticality: Criticality, budget: f64, most: f64, period: f64, x: f64) -> ServerTerms {
    let ns = |ms: f64| (ms * 1e6) as u64;
    ServerTerms {
        server: Server {
            criticality,
            period_ns: ns(period),
            budget_ns: ns(budget),
            pessimistic_ns: ns(most),
        },
        virtual_deadline_ns: ns(period * x),
        parts: 1,
        temperature: 2,
    }
}

fn low(budget: f64, period: f64) -> ServerTerms {
    terms(Criticality::Low, budget, budget, period, 1.0)
}

/// Gives a thread a server on a CPU, the only one that the thread may run on.
fn promise(it: &mut Simulation, number: u32, cpu: u32, thread: usize, terms: ServerTerms) {
    let thread = ThreadId(thread as u32);
    it.restrict(thread, [CpuId(cpu)].into_iter().collect());
    let setting = ServerSetting {
        number,
        cpu: CpuId(cpu),
        terms: Some(terms),
    };
    it.set_server(setting).unwrap();
    let setting = ThreadSetting {
        server: number,
        ..ThreadSetting::default()
    };
    assert!(it.set_thread(thread, setting));
}

/// Four busy threads on a CPU: two are promised a half and a fifth of it, the rest is shared among all four.
#[test]
fn budgets_come_before_weights() {
    let mut it = with_servers(1);
    let first = add_threads(&mut it, GroupId::ROOT, 0, 4, BUSY);
    promise(&mut it, 1, 0, first, low(50.0, 100.0));
    promise(&mut it, 2, 0, first + 1, low(4.0, 20.0));
    let got = shares(&mut it, S, 11 * S);
    for (thread, part) in [0.575, 0.275, 0.075, 0.075].into_iter().enumerate() {
        // A thread with credit may be 25 ms ahead of the others, of the 4.3 s of service that are not
        // forgotten.
        close(thread, got[thread], part, 0.004);
    }
}

/// Audits the servers of a CPU; the simulation's first threads are the servers' threads, in their order.
fn audit(it: &mut Simulation, servers: &[Server]) -> Rc<RefCell<Audit>> {
    let audit = Rc::new(RefCell::new(Audit::new(servers, None, MS / 1000)));
    let (told, count) = (audit.clone(), servers.len());
    it.observe(Box::new(move |_, at, happening| {
        let mut audit = told.borrow_mut();
        let server = |thread: ThreadId| Some(thread.index()).filter(|it| *it < count);
        match happening {
            Happening::Fork { .. } => {}
            Happening::Wakeup { thread, .. } => {
                if let Some(server) = server(thread) {
                    audit.event(at, server, Event::Wakes);
                }
            }
            Happening::Switch { left, next, .. } => {
                let leaves = left.and_then(|(thread, ready)| Some((server(thread)?, ready)));
                if let Some((server, ready)) = leaves {
                    audit.event(at, server, Event::Ends);
                    if !ready {
                        audit.event(at, server, Event::Sleeps);
                    }
                }
                if let Some(server) = next.and_then(server) {
                    audit.event(at, server, Event::Begins);
                }
            }
        }
    }));
    audit
}

/// Random servers that fill a CPU as far as the test allows, or with `over` beyond; and the deadline factor.
fn drawn(rng: &mut ChaCha8Rng, test: AdmissionTest, over: bool) -> (Vec<Server>, f64) {
    let mut servers: Vec<Server> = Vec::new();
    let mut x = 1.0;
    for _ in 0..rng.random_range(2..12) {
        let period_ns = rng.random_range(2 * MS..=100 * MS);
        let part = rng.random_range(0.02..0.6);
        let budget_ns = ((period_ns as f64 * part) as u64).max(MS / 10);
        let high = rng.random();
        let more = if high {
            rng.random_range(1.0..6.0)
        } else {
            1.0
        };
        servers.push(Server {
            criticality: if high {
                Criticality::High
            } else {
                Criticality::Low
            },
            period_ns,
            budget_ns,
            pessimistic_ns: ((budget_ns as f64 * more) as u64).min(period_ns),
        });
        let verdict = check(test, &servers);
        if verdict.fits {
            x = verdict.deadline_factor;
        } else if !over {
            servers.pop();
        }
    }
    (servers, x)
}

/// The acts of a server's thread, which wakes at awkward times and needs what it may need, or more.
fn acts(rng: &mut ChaCha8Rng, server: &Server, until: u64) -> Vec<Act> {
    let mut at = rng.random_range(0..server.period_ns);
    let mut acts = vec![Act::Until(at)];
    let greed = rng.random_range(0..4);
    while at < until {
        let budget = if rng.random_bool(0.3) {
            server.pessimistic_ns
        } else {
            server.budget_ns
        };
        let run = match greed {
            0 => until,
            1 => rng.random_range(1000..=server.period_ns),
            2 => rng.random_range(1000..=budget),
            _ => rng.random_range(1000..=budget / 4),
        };
        acts.push(Act::Run(run));
        at += run;
        let sleep = match rng.random_range(0..3) {
            0 => rng.random_range(1..1000),
            1 => rng.random_range(1..=server.period_ns / 8),
            _ => rng.random_range(1..=server.period_ns * 2),
        };
        at += sleep;
        acts.push(Act::Until(at));
    }
    acts
}

/// Runs a random set of servers on a CPU beside two busy threads.
fn run_set(seed: u64, test: AdmissionTest, over: bool) -> (Vec<Server>, Rc<RefCell<Audit>>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (servers, x) = drawn(&mut rng, test, over);
    let until = S;
    let mut it = with_servers(1);
    let threads = servers
        .iter()
        .map(|server| (Nice::default(), acts(&mut rng, server, until)));
    it.add_recorded(threads.collect());
    add_threads(&mut it, GroupId::ROOT, 0, 2, BUSY);
    for (thread, server) in servers.iter().enumerate() {
        let high = server.criticality == Criticality::High;
        let part = if high { x } else { 1.0 };
        // Budgets that fit by the demand test are given undivided.
        let parts = match test {
            AdmissionTest::Demand => 1,
            _ => rng.random_range(1..=16),
        };
        let terms = ServerTerms {
            server: *server,
            virtual_deadline_ns: (server.period_ns as f64 * part) as u64,
            parts: if high { parts } else { 1 },
            temperature: 0,
        };
        promise(&mut it, thread as u32 + 1, 0, thread, terms);
        it.interrupt(0, CpuId(0), ThreadId(thread as u32));
    }
    let audit = audit(&mut it, &servers);
    it.run_until(until);
    (servers, audit)
}

/// `QUELL_SETS` is the number of sets; `QUELL_TEST` is the admission test, of which `demand` accepts some
/// sets that miss (docs/design/criticality.md).
#[test]
fn no_accepted_set_misses() {
    let given = |name: &str| std::env::var(name).ok();
    let sets = given("QUELL_SETS").map_or(300, |it| it.parse().unwrap());
    let test = given("QUELL_TEST").map_or(AdmissionTest::EdfVd, |it| it.parse().unwrap());
    let (mut kept, mut switches, mut bad) = (0, 0, 0);
    // The three last seeds miss if a thread that wakes gets earlier deadlines than before, for parts of its
    // budget that it had ahead of their time.
    for seed in (0..sets).chain([840, 1495, 1801]) {
        let (servers, audit) = run_set(seed, test, false);
        let audit = audit.borrow();
        kept += audit.kept();
        switches += audit.switches();
        if !audit.misses().is_empty() {
            bad += 1;
            if bad < 4 {
                println!("seed {seed}: {:?} of {servers:?}", audit.misses());
            }
        }
    }
    println!("{bad} of {sets} sets miss; {kept} promises kept, {switches} times HI mode");
    assert_eq!(bad, 0);
}

#[test]
fn sets_that_ask_for_too_much_miss() {
    let misses = |seed| {
        !run_set(seed, AdmissionTest::EdfVd, true)
            .1
            .borrow()
            .misses()
            .is_empty()
    };
    let missed = (0..50).filter(|seed| misses(*seed)).count();
    println!("{missed} of 50");
    assert!(missed > 20, "{missed}");
}

/// All of a CPU is promised but for the reserve: two busy threads of the best-effort server wait no longer
/// than the reserve lets them.
#[test]
fn the_rest_gets_something_in_every_period() {
    let mut it = with_servers(1);
    // A thread that has used its budget runs under the best-effort server too: here its weight is small.
    let [light, heavy] = [1, 1000].map(|weight| it.add_group(GroupId::ROOT, TenantWeight(weight)));
    let first = add_threads(&mut it, light, 0, 2, BUSY);
    add_threads(&mut it, heavy, 0, 2, BUSY);
    let reserve = terms(Criticality::High, 5.0, 5.0, 100.0, 1.0);
    let setting = ServerSetting {
        number: 0,
        cpu: CpuId(0),
        terms: Some(reserve),
    };
    it.set_server(setting).unwrap();
    promise(
        &mut it,
        1,
        0,
        first,
        terms(Criticality::High, 35.0, 35.0, 100.0, 1.0),
    );
    promise(&mut it, 2, 0, first + 1, low(180.0, 300.0));
    // From when no best-effort thread runs until one does.
    let waits = Rc::new(RefCell::new((0, Vec::new())));
    let told = waits.clone();
    it.observe(Box::new(move |_, at, happening| {
        if let Happening::Switch { left, next, .. } = happening {
            let rest = |thread: ThreadId| thread.index() >= first + 2;
            let (since, waits) = &mut *told.borrow_mut();
            if left.is_some_and(|(thread, _)| rest(thread)) {
                *since = at;
            }
            if next.is_some_and(rest) && *since > S {
                waits.push((*since, at - *since));
            }
        }
    }));
    let got = shares(&mut it, 12 * S, 24 * S);
    // A thread that has used its budget runs in the best-effort server some time after it joined that, and
    // this test does not count it as such a thread.
    let (first, later): (Vec<_>, Vec<_>) =
        (waits.borrow().1.iter().copied()).partition(|(since, _)| *since <= 6 * S);
    let longest = later.iter().map(|(_, wait)| *wait).max().unwrap();
    println!("{got:?}, {longest}");
    assert!(longest <= 195 * MS, "{longest}");
    let long: Vec<_> = first.iter().filter(|(_, wait)| *wait > 195 * MS).collect();
    assert!(
        long.len() <= 2 && long.iter().all(|(_, wait)| *wait <= 295 * MS),
        "{long:?}"
    );
    let rest = got[2] + got[3];
    near("the rest", rest, 0.05, 0.001);
}

/// Since when a thread waits, and its longest wait after the first second, in ns.
fn longest_wait(it: &mut Simulation, of: usize) -> Rc<RefCell<(u64, u64)>> {
    let waited = Rc::new(RefCell::new((0, 0)));
    let told = waited.clone();
    it.observe(Box::new(move |_, at, happening| {
        let (since, longest) = &mut *told.borrow_mut();
        match happening {
            Happening::Wakeup { thread, .. } if thread.index() == of => *since = at,
            Happening::Switch { left, next, .. } => {
                if left.is_some_and(|(thread, ready)| ready && thread.index() == of) {
                    *since = at;
                }
                if next.is_some_and(|thread| thread.index() == of) && at > S {
                    *longest = (*longest).max(at - *since);
                }
            }
            _ => {}
        }
    }));
    waited
}

/// A server of high criticality needs 3 ms of every 100, and its optimistic budget is 15 ms; beside it three
/// servers use all of their quarters of the CPU.
#[test]
fn who_needs_little_of_a_large_budget_does_not_wait_for_others_whole_ones() {
    let longest = |parts| {
        let mut it = with_servers(1);
        let short = "[{ run_us = 30 }, { sleep_us = 970 }]";
        let first = add_threads(&mut it, GroupId::ROOT, 0, 1, short);
        add_threads(&mut it, GroupId::ROOT, 0, 3, BUSY);
        let x = 0.15 / (1.0 - 0.75);
        let high = ServerTerms {
            parts,
            ..terms(Criticality::High, 15.0, 30.0, 100.0, x)
        };
        promise(&mut it, 1, 0, first, high);
        for (number, period) in [(1, 40.0), (2, 50.0), (3, 60.0)] {
            let low = low(period / 4.0, period);
            promise(&mut it, number + 1, 0, first + number as usize, low);
        }
        let longest = longest_wait(&mut it, first);
        let got = shares(&mut it, S, 11 * S);
        let longest = longest.borrow().1;
        println!("{parts}: {got:.4?}, {longest}");
        assert!(got[1..].iter().all(|got| *got >= 0.249), "{got:?}");
        longest
    };
    // A sixteenth of the time to the virtual deadline.
    assert!(longest(16) <= 60 * MS / 16);
    assert!(longest(1) > 10 * MS);
}

/// A thread that slept has other terms when it wakes, of a far shorter period, beside a thread that wants
/// half of the CPU.
#[test]
fn virtual_deadlines_are_within_periods_that_changed() {
    let mut it = with_servers(1);
    let acts = vec![
        Act::Until(1100 * MS),
        Act::Run(MS),
        Act::Until(1103 * MS),
        Act::Run(2 * MS),
        Act::Until(2 * S),
    ];
    it.add_recorded(vec![(Nice::default(), acts)]);
    let busy = add_threads(&mut it, GroupId::ROOT, 0, 1, BUSY);
    let high = |budget, most, period| ServerTerms {
        parts: 4,
        ..terms(Criticality::High, budget, most, period, 0.5)
    };
    promise(&mut it, 1, 0, 0, high(100.0, 500.0, 1000.0));
    promise(&mut it, 2, 0, busy, low(50.0, 100.0));
    it.interrupt(0, CpuId(0), ThreadId(0));
    let longest = longest_wait(&mut it, 0);
    it.run_until(1102 * MS);
    promise(&mut it, 1, 0, 0, high(2.0, 5.0, 10.0));
    it.run_until(2 * S);
    let longest = longest.borrow().1;
    println!("{longest}");
    assert!(longest <= 5 * MS, "{longest}");
}

#[test]
fn who_is_promised_time_waits_for_nobody_else_while_that_can_wait() {
    // The period differs from the best-effort server's, so that either ends first now and then.
    for period in [90.0, 110.0] {
        // The thread does not preempt for its urgency either.
        let mut it = with(
            1,
            Options {
                asymmetry: false,
                ..Options::default()
            },
        );
        let short = "[{ run_us = 100 }, { sleep_us = 900 }]";
        let first = add_threads(&mut it, GroupId::ROOT, 0, 1, short);
        add_threads(&mut it, GroupId::ROOT, 0, 2, BUSY);
        let setting = ServerSetting {
            number: 0,
            cpu: CpuId(0),
            terms: Some(terms(Criticality::High, 5.0, 5.0, 100.0, 1.0)),
        };
        it.set_server(setting).unwrap();
        promise(
            &mut it,
            1,
            0,
            first,
            terms(Criticality::High, 5.0, 25.0, period, 1.0),
        );
        let longest = longest_wait(&mut it, first);
        let got = shares(&mut it, S, 11 * S);
        let longest = longest.borrow().1;
        println!("{period}: {got:.4?}, {longest}");
        // A reserve of 5 ms in every 100 ms would be up to 5 ms of waiting.
        assert!(longest <= MS / 20, "{period}: {longest}");
        assert!(got[1] + got[2] >= 0.88, "{got:?}");
    }
}

/// Tenant `b` comes to need 5 ms of every 10 beside `a` of high criticality, which began a period 1 ms
/// before. `before_ms` is the budget that `b` was promised until then. With `waits`, `b`'s new terms hold
/// when the policy says; else as soon as there is room for them. `b` sleeps until `wakes_ms`. Returns how
/// many promises are broken, and from when on `b` has its new terms, in ms.
fn newcomer(before_ms: Option<f64>, waits: bool, wakes_ms: u64) -> (usize, u64) {
    let text = format!(
        "name = \"t\"\n[[tenant]]\nname = \"a\"\nclass = \"batch\"\ncriticality = \"high\"\nperiod_ms = 200\nbudget_ms = 50\npessimistic_budget_ms = 60\n\
         [[tenant.thread]]\nname = \"a\"\n\
         program = [{{ sleep_us = 99000 }}, {{ run_us = 49900 }}, {{ sleep_us = 160000 }}, {{ run_us = 49900 }}, {{ sleep_us = 9000000 }}]\n\
         [[tenant]]\nname = \"b\"\nclass = \"batch\"\ncriticality = \"low\"\nperiod_ms = 10\nbudget_ms = 5\n\
         [[tenant.thread]]\nname = \"b\"\nprogram = [{{ sleep_us = {} }}, {{ run_us = 9000000 }}]\n",
        wakes_ms * 1000
    );
    let scenario = Scenario::parse("t.toml".as_ref(), &text).unwrap();
    let mut it = with_servers(1);
    let mut tenants = Vec::new();
    for tenant in scenario.instances() {
        it.add_tenant(Tenant::new(&tenant.table.threads, None));
        tenants.push(Some((
            tenant.name.clone(),
            Arc::new(tenant.table.spec.clone()),
        )));
    }
    let servers: Vec<Server> = (tenants.iter().flatten())
        .map(|(_, spec)| spec.server().unwrap())
        .collect();
    let mut monitor = Monitor::new(&mut it, tenants);
    let audit = audit(&mut it, &servers);
    let settings = CriticalitySettings {
        reserve_percent: 0.0,
        overhead_us: 0.0,
        temperature: 0,
        ..CriticalitySettings::default()
    };
    let mut policy = Promises::new(settings, Box::new(Shares));
    let mut told = PromisedServers::default();
    let mut from_ms = None;
    for period in 0..10 {
        it.run_until(period * 100 * MS);
        let mut snapshot = monitor.snapshot(&it);
        if period == 0 {
            match before_ms {
                None => snapshot.tenants.truncate(1),
                Some(_) => {
                    let spec = TenantSpec {
                        budget_ms: before_ms,
                        ..(*snapshot.tenants[1].spec).clone()
                    };
                    snapshot.tenants[1].spec = Arc::new(spec);
                }
            }
        }
        let mut plan = policy.decide(&snapshot);
        if !waits {
            for given in &plan.reservations {
                let number = given.number;
                let server = given.next.map_or(given.server, |next| next.server);
                if server.criticality == Criticality::Low {
                    plan.servers.retain(|it| it.number != number);
                    plan.servers.push(ServerPlan {
                        number,
                        cpu: given.cpu,
                        terms: ServerTerms {
                            server,
                            virtual_deadline_ns: server.period_ns,
                            parts: 1,
                            temperature: 0,
                        },
                    });
                    plan.tenants[1].threads[0].server = Some(number);
                }
            }
        }
        if plan.servers.iter().any(|it| it.terms.server == servers[1]) {
            from_ms.get_or_insert(period * 100);
        }
        let refused = told.promise(&plan.servers, |setting| it.set_server(setting));
        assert!(refused.is_empty(), "{refused:?}");
        for thread in plan.tenants.iter().flat_map(|tenant| &tenant.threads) {
            let simulated = thread_of(thread.id).unwrap();
            it.restrict(simulated, [CpuId(0)].into_iter().collect());
            it.set_thread(simulated, ThreadSetting::planned(0, thread));
        }
    }
    let mut audit = audit.borrow_mut();
    audit.advance(it.machine().now);
    let (kept, misses) = (audit.kept(), audit.misses());
    println!("{before_ms:?}, {waits}, {wakes_ms}: {kept} kept, broken {misses:?}");
    (misses.len(), from_ms.unwrap())
}

#[test]
fn newcomers_and_other_terms_wait_until_others_deadlines_are_right_beside_them() {
    for before_ms in [None, Some(1.0)] {
        let (_, from_ms) = newcomer(before_ms, true, 9000);
        let (broken, _) = newcomer(before_ms, true, from_ms + 1);
        assert_eq!(broken, 0, "{before_ms:?}");
        // Without the policy's wait promises are broken, so it is needed.
        let (broken, from_ms) = newcomer(before_ms, false, 101);
        assert!(broken > 0 && from_ms == 100, "{before_ms:?}");
    }
}

/// What part of a CPU each of four threads gets: one with a server of these terms, and three that are
/// promised a quarter each (type 2 of Akita's table 1).
fn beside_three(it: &mut Simulation, first: usize, one: ServerTerms) -> Vec<f64> {
    let quarter = || low(25.0, 100.0);
    for (number, terms) in [one, quarter(), quarter(), quarter()]
        .into_iter()
        .enumerate()
    {
        promise(it, number as u32 + 1, 0, first + number, terms);
    }
    shares(it, S, 11 * S)
}

/// Akita, section 4.4: a thread of high criticality that needs half of a CPU, beside three that are promised
/// a quarter each.
#[test]
fn high_criticality_gets_what_it_needs_beside_low() {
    let mut it = with_servers(1);
    let half = "[{ run_us = 5000 }, { sleep_us = 5000 }]";
    let first = add_threads(&mut it, GroupId::ROOT, 0, 1, half);
    add_threads(&mut it, GroupId::ROOT, 0, 3, BUSY);
    // Type 6 of table 1: x = 0.1 / 0.25.
    let high = terms(Criticality::High, 10.0, 50.0, 100.0, 0.4);
    let got = beside_three(&mut it, first, high);
    println!("{got:?}");
    near("high", got[0], 0.5, 0.01);
    for (thread, got) in got.iter().enumerate().skip(1) {
        near(thread, *got, 0.5 / 3.0, 0.01);
    }
}

/// A thread of high criticality runs in bursts that use more than its optimistic part of the time and less
/// than its pessimistic one, beside three that are promised the rest: no burst waits, wherever in a period it
/// comes.
#[test]
fn bursts_within_the_pessimistic_part_do_not_wait_for_the_next_period() {
    let mut it = with_servers(1);
    let bursts = "[{ run_us = 700 }, { sleep_us = 4000 }]";
    // Without a budget the thread would have next to nothing.
    let [light, heavy] = [1, 1000].map(|weight| it.add_group(GroupId::ROOT, TenantWeight(weight)));
    let first = add_threads(&mut it, light, 0, 1, bursts);
    add_threads(&mut it, heavy, 0, 3, BUSY);
    let high = terms(Criticality::High, 5.0, 25.0, 100.0, 0.2);
    let got = beside_three(&mut it, first, high);
    near("high", got[0], 0.7 / 4.7, 0.001);
}
