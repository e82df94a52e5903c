//! The loop on recorded snapshots: what it does when all goes well, and when it does not.

use super::*;
use crate::io::Choice;
use crate::testing::{facts, plan_with_reasons, snapshot};
use quell_control::{Act, Observe};
use quell_linux::observe::{Survey, TracePoints};
use quell_model::config::{AgentFile, Backend};
use quell_model::{Note, Reservation, Source, Subject, TenantName, ThreadId, Writes};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Mutex;

/// Plays a script of wakes, then says stop.
struct Script {
    wakes: VecDeque<Wake>,
    periods_set: Vec<Duration>,
}

impl Clock for Script {
    fn wait(&mut self) -> io::Result<Wake> {
        Ok(self.wakes.pop_front().unwrap_or(Wake::Stop("SIGTERM")))
    }

    fn set_period(&mut self, period: Duration) -> io::Result<()> {
        self.periods_set.push(period);
        Ok(())
    }
}

fn periods(count: usize) -> Vec<Wake> {
    vec![Wake::Period { missed: 0 }; count]
}

/// Plays recorded snapshots; `None` is a failed observation.
struct Recording(VecDeque<Option<Snapshot>>);

impl Observe for Recording {
    type Error = ObserveError;

    fn sample(&mut self) -> Result<Snapshot, ObserveError> {
        self.0
            .pop_front()
            .flatten()
            .ok_or_else(|| ObserveError::Malformed {
                path: "/proc/stat".into(),
                message: "is cut short".into(),
            })
    }
}

impl HostObserver for Recording {
    fn source(&self) -> Source {
        Source::Bpf
    }

    fn fallback_reason(&self) -> Option<&str> {
        None
    }

    fn survey(&self, _: &AgentFile) -> Result<Survey, ObserveError> {
        Ok(Survey::default())
    }

    fn follow(&mut self, _: &AgentFile) -> Result<(), ObserveError> {
        Ok(())
    }
}

fn recording(seqs: std::ops::Range<u64>) -> Box<Recording> {
    Box::new(Recording(
        seqs.map(|seq| Some(snapshot(seq, &[("a", 2), ("b", 1)])))
            .collect(),
    ))
}

fn failures(count: usize) -> Box<Recording> {
    Box::new(Recording(vec![None; count].into()))
}

/// Plans what `testing` plans, and panics in the period of this number.
struct PanicsAt(u64);

impl Policy for PanicsAt {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        assert!(snapshot.seq != self.0, "cannot decide period {}", self.0);
        plan_with_reasons(snapshot, 1)
    }
}

/// What the actuator was told, in order.
type Told = Arc<Mutex<Vec<String>>>;

struct Actor {
    told: Told,
    complete: bool,
}

impl Act for Actor {
    fn backend(&self) -> Backend {
        Backend::Stock
    }

    fn apply(&mut self, _: &Snapshot, plan: &Plan) -> ApplyReport {
        self.told
            .lock()
            .unwrap()
            .push(format!("apply {}", plan.seq));
        let note = Note {
            tenant: None,
            subject: Subject::Journal,
            text: "noted".into(),
        };
        let writes = Writes {
            nice: 2,
            ..Writes::default()
        };
        ApplyReport {
            writes,
            notes: vec![note],
            ..ApplyReport::default()
        }
    }
}

impl HostActuator for Actor {
    fn choose(&mut self, _: &AgentFile, _: Option<TracePoints>) -> Choice {
        panic!("the rig's reload does not ask")
    }

    fn unmet(&self) -> BTreeMap<TenantName, Vec<String>> {
        BTreeMap::from([("a".into(), vec!["its weight does not hold".into()])])
    }

    fn broken(&self) -> &BTreeMap<TenantName, u64> {
        static NONE: BTreeMap<TenantName, u64> = BTreeMap::new();
        &NONE
    }

    fn hand_over(&mut self, bound: &BTreeSet<ThreadId>) -> RestoreReport {
        assert!(bound.is_empty(), "nothing is promised");
        self.told.lock().unwrap().push("hand over".into());
        RestoreReport::default()
    }

    fn restore(&mut self) -> RestoreReport {
        self.told.lock().unwrap().push("restore".into());
        RestoreReport {
            restored: 3,
            failed: u64::from(!self.complete),
            ..RestoreReport::default()
        }
    }
}

struct Rig {
    controller: Controller,
    state: Arc<SharedState>,
    told: Told,
}

/// Reads this text, and makes parts that observe only.
struct Text {
    text: &'static str,
    told: Told,
}

impl Assemble for Text {
    fn read(
        &mut self,
        _: &AgentFile,
        _: &[Reservation],
        _: &dyn HostObserver,
    ) -> Result<Renewed, AgentError> {
        self.told.lock().unwrap().push("read".into());
        Ok(Renewed {
            config: crate::parse("q.toml".as_ref(), self.text)?,
            asking: BTreeSet::new(),
        })
    }

    fn make(
        &mut self,
        config: AgentFile,
        _: &dyn HostObserver,
        _: Option<&mut dyn HostActuator>,
        _: &[Reservation],
        _: Option<&dyn Policy>,
    ) -> Result<Assembly, AgentError> {
        self.told.lock().unwrap().push("make".into());
        let facts = Facts {
            period_ms: config.agent.period_ms,
            ..facts()
        };
        Ok(Assembly {
            config,
            policy: None,
            facts,
        })
    }
}

fn parts(policy: Option<Box<dyn Policy>>) -> Assembly {
    Assembly {
        config: crate::parse("q.toml".as_ref(), "").unwrap(),
        policy,
        facts: facts(),
    }
}

fn rig(
    observer: Box<dyn HostObserver>,
    policy: Option<Box<dyn Policy>>,
    reloaded: &'static str,
) -> Rig {
    let told = Told::default();
    let actor = Actor {
        told: told.clone(),
        complete: true,
    };
    let state = Arc::new(SharedState::new("quell.toml".into(), facts()));
    let files = Box::new(Text {
        text: reloaded,
        told: told.clone(),
    });
    let actor = Some(Box::new(actor) as Box<dyn HostActuator>);
    let controller = Controller::new(parts(policy), observer, actor, files, state.clone());
    Rig {
        controller,
        state,
        told,
    }
}

/// Nobody asks for a reload.
const NEVER: &str = "no TOML";

fn never() -> Box<dyn Assemble> {
    Box::new(Text {
        text: NEVER,
        told: Told::default(),
    })
}

fn play(rig: &mut Rig, wakes: Vec<Wake>) -> Result<Option<RestoreReport>, AgentError> {
    let mut clock = Script {
        wakes: wakes.into(),
        periods_set: vec![],
    };
    rig.controller.run(&mut clock)
}

fn told(rig: &Rig) -> Vec<String> {
    rig.told.lock().unwrap().clone()
}

#[test]
fn each_period_is_applied_and_published_and_stopping_puts_all_back() {
    let mut rig = rig(recording(0..2), Some(Box::new(PanicsAt(9))), NEVER);
    let report = play(&mut rig, periods(2)).unwrap().unwrap();
    assert_eq!(report.restored, 3);
    assert_eq!(told(&rig), ["apply 0", "apply 1", "restore"]);
    let status = rig.state.status(10);
    assert_eq!((status.periods, status.changes, status.overruns), (2, 4, 0));
    assert_eq!(status.notes, ["journal: noted", "journal: noted"]);
    assert_eq!(rig.state.decisions(0, 100).decisions.len(), 6);
    // Dropping the controller must not restore a second time.
    let told = rig.told.clone();
    drop(rig);
    assert_eq!(told.lock().unwrap().len(), 3);
}

#[test]
fn missed_deadlines_are_counted_and_not_made_up_for() {
    let mut rig = rig(recording(0..2), None, NEVER);
    let wakes = vec![Wake::Period { missed: 0 }, Wake::Period { missed: 7 }];
    play(&mut rig, wakes).unwrap();
    let counts = rig.state.counts();
    assert_eq!((counts.periods, counts.overruns), (2, 7));
}

#[test]
fn without_a_policy_nothing_is_planned() {
    let mut rig = rig(recording(0..1), None, NEVER);
    play(&mut rig, periods(1)).unwrap();
    assert_eq!(rig.state.snapshot().unwrap().plan.tenants, []);
}

#[test]
fn a_dry_run_decides_and_changes_nothing() {
    let state = Arc::new(SharedState::new("quell.toml".into(), facts()));
    let parts = parts(Some(Box::new(PanicsAt(9))));
    let mut controller = Controller::new(parts, recording(0..1), None, never(), state.clone());
    let mut clock = Script {
        wakes: periods(1).into(),
        periods_set: vec![],
    };
    assert_eq!(controller.run(&mut clock).unwrap(), None);
    assert_eq!(state.decisions(0, 100).decisions.len(), 3);
    assert_eq!(state.counts().changes, 0);
}

#[test]
fn a_panic_in_the_policy_puts_all_back_and_is_an_error() {
    let mut rig = rig(recording(0..3), Some(Box::new(PanicsAt(1))), NEVER);
    let error = play(&mut rig, periods(3)).unwrap_err();
    assert!(
        error.to_string().contains("cannot decide period 1"),
        "{error}"
    );
    assert!(!error.is_users());
    assert_eq!(told(&rig), ["apply 0", "restore"]);
}

#[test]
fn a_controller_that_is_dropped_unused_puts_back_what_opening_may_have_left() {
    let rig = rig(recording(0..1), None, NEVER);
    let told = rig.told.clone();
    drop(rig);
    assert_eq!(*told.lock().unwrap(), ["restore"]);
}

#[test]
fn failed_observations_are_tolerated_and_counted() {
    let mut observer = failures(MAX_FAILURES as usize - 1);
    observer.0.push_back(Some(snapshot(0, &[("a", 1)])));
    observer.0.extend(vec![None; MAX_FAILURES as usize - 1]);
    let mut rig = rig(observer, None, NEVER);
    play(&mut rig, periods(2 * MAX_FAILURES as usize - 1)).unwrap();
    let counts = rig.state.counts();
    assert_eq!(
        (counts.periods, counts.observe_errors),
        (1, 2 * u64::from(MAX_FAILURES) - 2)
    );
}

#[test]
fn too_many_failed_observations_in_a_row_put_all_back_and_end_the_agent() {
    let mut observer = recording(0..1);
    observer.0.extend(vec![None; MAX_FAILURES as usize]);
    let mut rig = rig(observer, None, NEVER);
    let error = play(&mut rig, periods(100)).unwrap_err();
    assert!(
        matches!(
            error,
            AgentError::TooManyErrors {
                count: MAX_FAILURES,
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("/proc/stat: is cut short"),
        "{error}"
    );
    assert_eq!(told(&rig), ["apply 0", "restore"]);
}

#[test]
fn what_could_not_be_put_back_is_an_error_with_the_remedy() {
    let told = Told::default();
    let actor = Box::new(Actor {
        told: told.clone(),
        complete: false,
    });
    let state = Arc::new(SharedState::new("quell.toml".into(), facts()));
    let observer = recording(0..1);
    let mut controller = Controller::new(parts(None), observer, Some(actor), never(), state);
    let mut clock = Script {
        wakes: periods(1).into(),
        periods_set: vec![],
    };
    let error = controller.run(&mut clock).unwrap_err();
    assert!(error.to_string().contains("quell restore"), "{error}");
}

/// A reload between two periods.
fn with_a_reload() -> Vec<Wake> {
    vec![
        Wake::Period { missed: 0 },
        Wake::Reload,
        Wake::Period { missed: 0 },
    ]
}

#[test]
fn a_reload_replaces_the_parts_and_the_period() {
    let policy = Some(Box::new(PanicsAt(9)) as Box<dyn Policy>);
    let mut rig = rig(recording(0..2), policy, "[agent]\nperiod_ms = 200");
    let mut clock = Script {
        wakes: with_a_reload().into(),
        periods_set: vec![],
    };
    rig.controller.run(&mut clock).unwrap();
    assert_eq!(clock.periods_set, [80, 200].map(Duration::from_millis));
    let status = rig.state.status(10);
    assert_eq!(
        (status.reloads, status.period_ms, status.reload_error),
        (1, 200, None)
    );
    // The new configuration has no policy, so its plan is empty and settings are given back.
    assert_eq!(rig.state.snapshot().unwrap().plan.tenants, []);
}

#[test]
fn a_reload_starts_from_what_the_owners_left() {
    let mut rig = rig(recording(0..2), Some(Box::new(PanicsAt(9))), "");
    play(&mut rig, with_a_reload()).unwrap();
    assert_eq!(
        told(&rig),
        ["apply 0", "read", "hand over", "make", "apply 1", "restore"]
    );
}

#[test]
fn a_bad_reload_keeps_the_old_configuration_and_says_why() {
    let policy = Some(Box::new(PanicsAt(9)) as Box<dyn Policy>);
    let mut rig = rig(recording(0..2), policy, "agnet = 1");
    play(&mut rig, with_a_reload()).unwrap();
    assert_eq!(told(&rig), ["apply 0", "read", "apply 1", "restore"]);
    let status = rig.state.status(10);
    assert_eq!((status.reloads, status.periods), (0, 2));
    assert!(status.reload_error.unwrap().contains("agent"));
}

#[test]
fn what_a_tenant_lacks_is_said_as_long_as_it_does() {
    let with = |seq, ghosts| Some(snapshot(seq, &[("a", 1), ("ghost", ghosts)]));
    for (ghosts, expected) in [(0, vec!["no process matches its selectors"]), (1, vec![])] {
        let observer = Box::new(Recording([with(0, 0), with(1, ghosts)].into()));
        let mut rig = rig(observer, None, NEVER);
        play(&mut rig, periods(2)).unwrap();
        let status = rig.state.status(10);
        let remarks: Vec<_> = status.tenants.iter().map(|it| &it.remarks).collect();
        let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        assert_eq!(
            remarks,
            [&vec!["its weight does not hold".to_string()], &expected]
        );
        assert!(
            !status.notes.iter().any(|n| n.contains("ghost")),
            "{:?}",
            status.notes
        );
        let explained = rig.state.explain(&"a".into()).unwrap();
        assert_eq!(&explained.remarks, remarks[0]);
    }
}
