//! Tests of the guard on hosts whose truth is known: a lever that harms goes, one that helps stays, and
//! chance is not taken for either.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use common::{MS, id, snapshot, tenant, thread};
use quell_model::config::{AgentFile, Backend, GuardMode, TenantClass, TenantSpec};
use quell_model::{CpuId, CpuSample, Effect, Finding, Lever, Occasions, Rule, Snapshot};
use quell_policy::guard::{Guarded, Trials};
use quell_policy::{Policy, composed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;

const PERIOD_MS: u64 = 160;
const MINUTE: f64 = 60.0;

/// A host with services whose responses differ from one to the next, and whose load varies slowly.
struct Host {
    random: StdRng,
    seq: u64,
    services: usize,
    /// The mean response time of each service, in ms.
    response_ms: f64,
    /// Requests of each service, per second.
    rate: f64,
    /// The logarithm of the host's present slowdown.
    wander: f64,
    busy: f64,
}

impl Host {
    fn new(seed: u64) -> Host {
        Host {
            random: StdRng::seed_from_u64(seed),
            seq: 1 + seed % 1000,
            services: 4,
            response_ms: 20.0,
            rate: 10.0,
            wander: 0.0,
            busy: 0.8,
        }
    }

    /// The next period, with responses `times` as long as without Quell.
    fn period(&mut self, times: f64) -> Snapshot {
        self.seq += 1;
        // The slowdown decays in some 4 s, and is 20 % up or down most of the time.
        let push: f64 = (0..12).map(|_| self.random.random::<f64>()).sum::<f64>() - 6.0;
        self.wander = 0.96 * self.wander + 0.056 * push;
        let mut tenants = Vec::new();
        for service in 0..self.services {
            let requests = self.rate * PERIOD_MS as f64 / 1e3;
            let requests = requests as u64 + u64::from(self.random.random_bool(requests.fract()));
            let mean = self.response_ms * times * self.wander.exp();
            let busy_ms: f64 = (0..requests)
                .map(|_| -mean * (1.0 - self.random.random::<f64>()).ln())
                .sum();
            let spec = TenantSpec::named(&format!("s{service}"));
            let mut sample = tenant(spec, false, vec![thread(service as u32 + 1, 4)]);
            sample.occasions = Some(Occasions {
                by_blocked_ns: Vec::new(),
                busy_ns: (busy_ms * 1e6) as u64,
                busy_periods: requests,
            });
            tenants.push(sample);
        }
        let batch = TenantSpec {
            class: TenantClass::Batch,
            ..TenantSpec::named("zzz-batch")
        };
        let mut batch = tenant(batch, false, vec![thread(99, 4)]);
        batch.occasions = Some(Occasions {
            busy_ns: PERIOD_MS * MS,
            ..Occasions::default()
        });
        tenants.push(batch);
        let mut snapshot = snapshot(self.seq, 4, PERIOD_MS * MS, tenants);
        snapshot.host.cpus = (0..4)
            .map(|cpu| CpuSample {
                cpu: CpuId(cpu),
                busy_ns: Some((self.busy * (PERIOD_MS * MS) as f64) as u64),
                steal_ns: None,
            })
            .collect();
        snapshot
    }
}

/// The history of a lever on a host.
#[derive(Debug)]
struct Course {
    effect: Effect,
    /// When the lever was first off at rest, and first on, in seconds from the beginning.
    off_s: Option<f64>,
    on_s: Option<f64>,
    /// How long the lever acted, in seconds.
    acted_s: f64,
    /// The number of times that the lever was turned on or off.
    changes: u64,
}

/// Runs for `seconds`; where the lever acts, responses are `times` as long.
fn course(host: &mut Host, trials: &mut Trials, lever: Lever, times: f64, seconds: f64) -> Course {
    let periods = (seconds * 1e3 / PERIOD_MS as f64) as u64;
    let (mut off_s, mut on_s, mut acted, mut changes) = (None, None, 0u64, 0);
    let mut acts = trials.acts(lever);
    for period in 1..=periods {
        let snapshot = host.period(if acts { times } else { 1.0 });
        acted += u64::from(acts);
        trials.step(&snapshot);
        changes += u64::from(trials.acts(lever) != acts);
        acts = trials.acts(lever);
        let effects = trials.effects();
        let effect = effects.iter().find(|it| it.lever == lever).unwrap();
        let at = Some((period * PERIOD_MS) as f64 / 1e3);
        if effect.finding != Finding::Untried {
            match effect.acts {
                true => on_s = on_s.or(at),
                false => off_s = off_s.or(at),
            }
        }
    }
    let effects = trials.effects();
    Course {
        effect: effects.iter().find(|it| it.lever == lever).unwrap().clone(),
        off_s,
        on_s,
        acted_s: (acted * PERIOD_MS) as f64 / 1e3,
        changes,
    }
}

fn feedback() -> Trials {
    Trials::new(GuardMode::On, [(Lever::Feedback, false)])
}

fn scheduler() -> Trials {
    Trials::new(GuardMode::On, [(Lever::Scheduler, true)])
}

#[test]
fn what_harms_or_does_nothing_is_off_in_five_minutes() {
    for (seed, times) in (0..).zip([1.0, 1.05, 1.1, 1.3, 1.6, 3.0]) {
        let course = course(
            &mut Host::new(seed),
            &mut feedback(),
            Lever::Feedback,
            times,
            360.0,
        );
        let off_s = course.off_s.unwrap();
        assert!(off_s <= 300.0 && !course.effect.acts, "{times}: {course:?}");
        assert!(course.acted_s <= 0.55 * off_s, "{times}: {course:?}");
        if times >= 1.3 {
            assert_eq!(course.effect.finding, Finding::Harms, "{times}: {course:?}");
            assert!(off_s < 200.0, "{times}: {course:?}");
        }
    }
}

#[test]
fn what_helps_is_on_and_stays_on() {
    let mut on = 0;
    for seed in 0..10 {
        let course = course(
            &mut Host::new(seed),
            &mut feedback(),
            Lever::Feedback,
            0.75,
            3600.0,
        );
        let Some(on_s) = course.on_s else {
            continue;
        };
        on += 1;
        assert!(course.effect.acts, "{course:?}");
        // All the time but that of the checks.
        assert!(course.acted_s > 0.9 * (3600.0 - on_s), "{course:?}");
        let responses = course.effect.responses.unwrap();
        assert!(responses.low < 0.78 && responses.high > 0.72, "{course:?}");
    }
    assert!(on >= 9, "{on} of 10");
}

#[test]
fn a_scheduler_that_helps_is_never_off() {
    for seed in 0..10 {
        let mut trials = scheduler();
        let course = course(
            &mut Host::new(seed),
            &mut trials,
            Lever::Scheduler,
            0.95,
            2.0 * 3600.0,
        );
        assert_eq!(course.off_s, None, "{course:?}");
        // Checks are seldom: six times 10 s in the first ten minutes, later once in ten.
        assert!(course.acted_s > 0.95 * 2.0 * 3600.0, "{course:?}");
    }
}

#[test]
fn what_helped_and_harms_from_then_on_is_off_in_two_hours() {
    for seed in 0..5 {
        let (mut host, mut trials) = (Host::new(seed), scheduler());
        course(&mut host, &mut trials, Lever::Scheduler, 0.7, 4.0 * 3600.0);
        assert_eq!(trials.effects()[0].finding, Finding::Helps);
        let later = course(&mut host, &mut trials, Lever::Scheduler, 1.4, 2.0 * 3600.0);
        assert_eq!(later.effect.finding, Finding::Harms, "{later:?}");
        assert!(!later.effect.acts, "{later:?}");
    }
}

/// The lever's next trial is in half an hour, and takes up to twenty minutes.
#[test]
fn a_scheduler_that_was_off_comes_back_where_it_helps() {
    let (mut host, mut trials) = (Host::new(8), scheduler());
    let off = course(&mut host, &mut trials, Lever::Scheduler, 1.6, 1800.0);
    assert!(!off.effect.acts, "{off:?}");
    let on = course(&mut host, &mut trials, Lever::Scheduler, 0.8, 2.0 * 3600.0);
    assert!(
        on.effect.acts && on.effect.finding == Finding::Helps,
        "{on:?}"
    );
}

#[test]
fn where_nobody_can_be_seen_the_scheduler_is_hardly_ever_taken_away() {
    let (mut host, mut trials) = (Host::new(9), scheduler());
    host.services = 0;
    let course = course(&mut host, &mut trials, Lever::Scheduler, 1.0, 4.0 * 3600.0);
    assert!(
        course.effect.pairs == 0 && course.effect.void > 10,
        "{course:?}"
    );
    assert!(course.acted_s > 0.97 * 4.0 * 3600.0, "{course:?}");
}

#[test]
fn blocks_whose_plans_were_not_carried_out_say_nothing() {
    let mut policy = guarded("", Backend::SchedExt, None);
    let mut host = Host::new(3);
    for _ in 0..30 * 60 * 1000 / PERIOD_MS {
        policy.decide(&host.period(1.0));
        policy.carried_out(Backend::Stock);
    }
    let effects = policy.decide(&host.period(1.0)).effects.clone();
    assert!(effects[0].pairs == 0 && effects[0].void > 3, "{effects:?}");
}

#[test]
fn a_scheduler_that_harms_is_off_in_half_an_hour() {
    for seed in 0..5 {
        let mut trials = scheduler();
        let course = course(
            &mut Host::new(seed),
            &mut trials,
            Lever::Scheduler,
            1.4,
            3600.0,
        );
        assert!(course.off_s.is_some_and(|it| it < 1800.0), "{course:?}");
    }
}

#[test]
fn chance_is_seldom_taken_for_an_effect() {
    let (mut helps, mut harms, mut off) = (0, 0, 0);
    for seed in 0..200 {
        let trial = course(
            &mut Host::new(seed),
            &mut feedback(),
            Lever::Feedback,
            1.0,
            310.0,
        );
        helps += u32::from(trial.effect.finding == Finding::Helps);
        harms += u32::from(trial.effect.finding == Finding::Harms);
        let mut trials = scheduler();
        let checks = course(
            &mut Host::new(seed),
            &mut trials,
            Lever::Scheduler,
            1.0,
            3600.0,
        );
        off += u32::from(checks.off_s.is_some());
    }
    // 2.5 % are 5 of 200; by chance more than 10 come once in 100 such tests.
    assert!(
        helps <= 10 && harms <= 10 && off <= 10,
        "{helps} {harms} {off} of 200"
    );
}

#[test]
fn a_host_that_is_not_busy_is_not_experimented_with() {
    for lever in [(Lever::Feedback, false), (Lever::Scheduler, true)] {
        let mut host = Host::new(3);
        host.busy = 0.2;
        let mut trials = Trials::new(GuardMode::On, [lever]);
        let course = course(&mut host, &mut trials, lever.0, 1.5, 3600.0);
        assert_eq!((course.changes, course.effect.pairs), (0, 0), "{course:?}");
        assert_eq!(course.effect.acts, lever.1);
    }
}

#[test]
fn it_is_tried_again_with_growing_pauses_and_when_tenants_change() {
    let (mut host, mut trials) = (Host::new(5), feedback());
    let mut pauses = Vec::new();
    for _ in 0..3 {
        while trials.effects()[0].next_ns <= host.seq * PERIOD_MS * MS {
            course(&mut host, &mut trials, Lever::Feedback, 1.5, 1.0);
        }
        let effect = trials.effects()[0].clone();
        let pause_ns = effect.next_ns - effect.since_ns;
        pauses.push(pause_ns as f64 / 1e9 / MINUTE);
        let rest = course(
            &mut host,
            &mut trials,
            Lever::Feedback,
            1.5,
            pause_ns as f64 / 1e9 - 5.0,
        );
        assert_eq!(rest.acted_s, 0.0, "{rest:?}");
        course(&mut host, &mut trials, Lever::Feedback, 1.5, 10.0);
    }
    assert_eq!(pauses, [30.0, 60.0, 120.0]);
    // Until the running trial is over; then another tenant comes.
    course(&mut host, &mut trials, Lever::Feedback, 1.5, 300.0);
    let before = trials.effects()[0].next_ns;
    host.services = 5;
    // Three trials before it, and this one, have shown no help: so after eighty minutes, not after four
    // hours.
    let rest = 80.0 * MINUTE - 1.0;
    let rest = course(&mut host, &mut trials, Lever::Feedback, 1.5, rest);
    assert_eq!(rest.acted_s, 0.0, "{rest:?}");
    let acted = course(&mut host, &mut trials, Lever::Feedback, 1.5, 60.0).acted_s;
    assert!(before > host.seq * PERIOD_MS * MS && acted > 5.0, "{acted}");
}

#[test]
fn where_it_only_reports_all_that_is_configured_acts() {
    let mut trials = Trials::new(GuardMode::Report, [(Lever::Feedback, false)]);
    let course = course(
        &mut Host::new(1),
        &mut trials,
        Lever::Feedback,
        1.6,
        4.0 * 3600.0,
    );
    assert_eq!(course.effect.finding, Finding::Harms, "{course:?}");
    assert!(
        course.effect.acts && course.acted_s > 0.95 * 4.0 * 3600.0,
        "{course:?}"
    );
}

#[test]
fn a_proof_alternates_to_its_end() {
    let mut trials = Trials::new(GuardMode::Report, [(Lever::All, true)]);
    let course = course(&mut Host::new(2), &mut trials, Lever::All, 0.7, 300.0);
    // Blocks of 5 s, each with a period more to carry out its plan.
    assert!((27..=29).contains(&course.effect.pairs), "{course:?}");
    let part = course.acted_s / 300.0;
    assert!((0.45..0.55).contains(&part), "{course:?}");
    let responses = course.effect.responses.unwrap();
    assert!(responses.high < 0.9 && responses.low < 0.7, "{course:?}");
    assert_eq!(
        course.effect.tenants.len(),
        4,
        "all services, no batch tenant"
    );
}

#[test]
fn without_busy_periods_nothing_can_be_shown() {
    let (mut host, mut trials) = (Host::new(4), feedback());
    host.services = 0;
    let course = course(&mut host, &mut trials, Lever::Feedback, 1.0, 400.0);
    assert_eq!(course.effect.finding, Finding::NothingShown, "{course:?}");
    assert!(
        course.effect.pairs == 0 && course.effect.void > 50,
        "{course:?}"
    );
}

const DASEC: &str = "[asymmetry]\nslices = true\nlatencies = true\n[[tenant]]\nname = \"a\"\npid = [1]\nweight = 50\n";

fn guarded(text: &str, backend: Backend, before: Option<&dyn Policy>) -> Box<dyn Policy> {
    let file = AgentFile::parse(Path::new("q.toml"), text).unwrap();
    let policy = composed(&file, &file.asymmetry, &[]).unwrap();
    let before = before.and_then(|it| it.guard());
    Guarded::keeping(policy, &file, &file.asymmetry, backend, before)
}

/// The levers of a configuration.
#[test]
fn what_an_operator_ordered_is_no_lever() {
    let promised = "[agent]\npolicy = [\"asymmetry\", \"criticality\"]\n";
    let cases: [(&str, Backend, &[Lever]); 8] = [
        ("", Backend::Stock, &[]),
        ("", Backend::SchedExt, &[Lever::Scheduler]),
        (DASEC, Backend::Stock, &[Lever::Feedback]),
        (
            DASEC,
            Backend::SchedExt,
            &[Lever::Scheduler, Lever::Feedback],
        ),
        (promised, Backend::SchedExt, &[]),
        ("[agent]\npolicy = [\"share\"]\n", Backend::SchedExt, &[]),
        ("[agent]\npolicy = [\"pools\"]\n", Backend::SchedExt, &[]),
        ("[agent]\nguard = \"off\"\n", Backend::SchedExt, &[]),
    ];
    for (text, backend, expected) in cases {
        let mut policy = guarded(text, backend, None);
        let plan = policy.decide(&Host::new(1).period(1.0));
        let levers: Vec<Lever> = plan.effects.iter().map(|it| it.lever).collect();
        assert_eq!(levers, expected, "{text}");
        assert!(!plan.kernel_scheduler, "{text}");
    }
}

/// What was found before a reload, by what the new configuration changes.
#[test]
fn a_reload_keeps_what_was_found_of_a_lever_that_does_the_same() {
    let mut host = Host::new(8);
    let mut policy = guarded(DASEC, Backend::Stock, None);
    let mut times = 1.0;
    let found = loop {
        let plan = policy.decide(&host.period(times));
        let acts = plan.tenants.iter().flat_map(|it| &it.threads);
        let acts = acts.into_iter().any(|it| it.latency_ns.is_some());
        times = if acts { 1.6 } else { 1.0 };
        if plan.effects[0].finding == Finding::Harms {
            break plan.effects[0].clone();
        }
    };
    assert!(!found.acts);
    let weighs = DASEC.replace("weight = 50", "weight = 70");
    let others = format!("{DASEC}[[tenant]]\nname = \"b\"\npid = [2]\n");
    let slices = DASEC.replace("slices = true\n", "");
    let reports = format!("[agent]\nguard = \"report\"\n{DASEC}");
    for (text, kept) in [
        (DASEC, true),
        (&weighs, true),
        (&others, true),
        (&slices, false),
        (&reports, false),
    ] {
        let mut policy = guarded(text, Backend::Stock, Some(policy.as_ref()));
        let effect = policy.decide(&host.period(1.0)).effects[0].clone();
        assert_eq!(effect == found, kept, "{text} {effect:?}");
        assert_eq!(effect.finding == Finding::Untried, !kept, "{text}");
    }
    assert!(
        guarded(
            "[agent]\nguard = \"off\"\n",
            Backend::Stock,
            Some(policy.as_ref())
        )
        .guard()
        .is_none()
    );
    let mut elsewhere = guarded(DASEC, Backend::SchedExt, Some(policy.as_ref()));
    let effects = elsewhere.decide(&host.period(1.0)).effects.clone();
    let untried = |it: &Effect| it.finding == Finding::Untried;
    assert!(
        effects.len() == 2 && effects.iter().all(untried),
        "{effects:?}"
    );
}

/// A pair that a reload interrupts says nothing.
#[test]
fn a_pair_that_a_reload_interrupts_is_void() {
    let (mut host, mut trials) = (Host::new(9), feedback());
    course(&mut host, &mut trials, Lever::Feedback, 1.0, 60.0);
    let before = trials.effects()[0].clone();
    let mut after = feedback();
    after.follow_on(&trials, |_| true);
    let effect = after.effects()[0].clone();
    assert_eq!((effect.pairs, effect.void), (before.pairs, before.void + 1));
    let later = course(&mut host, &mut after, Lever::Feedback, 1.0, 60.0);
    assert!(later.effect.pairs > before.pairs + 10, "{later:?}");
}

/// Where the feedback rests, a thread has the settings of its owner and of its tenant's weight, and no
/// others.
#[test]
fn a_lever_that_rests_leaves_threads_as_if_it_were_not_there() {
    let mut policy = guarded(DASEC, Backend::Stock, None);
    let mut host = Host::new(6);
    let (mut acting, mut resting) = (0, 0);
    let mut last = None;
    for _ in 0..1500 {
        let mut snapshot = host.period(1.0);
        let mut one = thread(1, 4);
        // The thread needs more than its slice and is preempted, so that the allocator would give it more.
        (one.run_ns, one.preemptions) = (PERIOD_MS * MS / 4 * 3, Some(5));
        let spec = TenantSpec {
            weight: Some(quell_model::TenantWeight(50)),
            ..TenantSpec::named("a")
        };
        snapshot
            .tenants
            .insert(0, tenant(spec, false, vec![one, thread(2, 4)]));
        let plan = policy.decide(&snapshot);
        let planned = &plan.tenants[0].threads;
        let first = planned.iter().find(|it| it.id == id(1)).unwrap();
        if first.latency_ns.is_some() {
            acting += 1;
            let weight = first.weight.unwrap();
            assert!(
                last.is_none_or(|last| weight >= last),
                "it goes on from where it was"
            );
            last = Some(weight);
        } else {
            resting += 1;
            for it in planned {
                // A nice value of 0 is 1024, and the tenant's weight half of the default.
                assert_eq!(it.weight.map(|it| it.as_load()), Some(512.0));
                let adopted = it.reasons.iter().all(|it| it.rule == Rule::Adopted);
                assert!(adopted && it.cpus.is_none());
            }
        }
    }
    assert!(acting > 300 && resting > 300, "{acting} {resting}");
}
