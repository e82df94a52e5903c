//! What a reload does to promises: the loop, its policy and its backend as they are, with a scheduler that
//! follows a script.
//! With the real one: `crates/quell/tests/lab/agent.rs`.

use super::*;
use crate::backend::Backends;
use crate::backend::scripted::{Log, Recorder, Script as Scheduler};
use crate::clock::Clock;
use crate::testing::{facts, snapshot};
use quell_control::Observe;
use quell_linux::observe::{Survey, Surveyed};
use quell_model::config::{AgentTenant, Selectors};
use quell_model::{Promise, Source, Tid};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

const HEAD: &str = "[agent]\npolicy = [\"criticality\"]\nperiod_ms = 100\n";
const A: &str = "[[tenant]]\nname = \"a\"\npid = [1]\ncriticality = \"high\"\nperiod_ms = 100\nbudget_ms = 10\n\
                 pessimistic_budget_ms = 60\n";
const B: &str =
    "[[tenant]]\nname = \"b\"\npid = [2]\ncriticality = \"low\"\nperiod_ms = 100\nbudget_ms = 50\n";
const C: &str =
    "[[tenant]]\nname = \"c\"\npid = [3]\ncriticality = \"low\"\nperiod_ms = 100\nbudget_ms = 20\n";

/// A file, which a test writes.
type File = Rc<RefCell<String>>;

/// A host of two CPUs. Each tenant has one thread, of the number that its selector has. Each rule finds one
/// tenant, of the name that its `match` has, with the thread 10 or a later one.
struct Host {
    tenants: Vec<AgentTenant>,
    period: u64,
}

fn found_by(config: &AgentFile) -> Vec<AgentTenant> {
    let rules = config.rules.iter().zip(10..);
    let found = rules.map(|(rule, number)| {
        let name = rule.finds.matches.as_deref().unwrap().into();
        let spec = rule.spec_of(&name, rule.spec.class);
        AgentTenant {
            spec,
            selectors: Selectors::pids([number]),
        }
    });
    found.collect()
}

impl Observe for Host {
    type Error = ObserveError;

    fn sample(&mut self) -> Result<Snapshot, ObserveError> {
        self.period += 1;
        let names = self.tenants.iter().map(|it| (it.spec.name.as_str(), 1));
        let mut seen = snapshot(self.period, &names.collect::<Vec<_>>());
        seen.time_ns = self.period * 100_000_000;
        for (sample, tenant) in seen.tenants.iter_mut().zip(&self.tenants) {
            sample.spec = Arc::new(tenant.spec.clone());
            sample.threads[0].id.tid = Tid(tenant.selectors.pid[0]);
        }
        seen.tenants.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(seen)
    }
}

impl HostObserver for Host {
    fn source(&self) -> Source {
        Source::Bpf
    }

    fn fallback_reason(&self) -> Option<&str> {
        None
    }

    fn follow(&mut self, config: &AgentFile) -> Result<(), ObserveError> {
        self.tenants.clone_from(&config.tenants);
        self.tenants.extend(found_by(config));
        Ok(())
    }

    fn survey(&self, config: &AgentFile) -> Result<Survey, ObserveError> {
        let found = found_by(config).into_iter().enumerate();
        let tenants = found.map(|(rule, it)| Surveyed {
            name: it.spec.name.as_str().into(),
            labels: Arc::default(),
            rule: Some(rule),
            spec: Arc::new(it.spec),
            processes: 1,
        });
        Ok(Survey {
            tenants: tenants.collect(),
            rest: Vec::new(),
        })
    }
}

struct Assembler(File);

impl Assemble for Assembler {
    fn read(
        &mut self,
        before: &AgentFile,
        reservations: &[Reservation],
        observer: &dyn HostObserver,
    ) -> Result<Renewed, AgentError> {
        let path = "q.toml".as_ref();
        let config = crate::parse(path, &self.0.borrow())?;
        let survey = |config: &AgentFile| observer.survey(config);
        let asking = crate::load::keeps_promises(path, &config, before, reservations, survey)?;
        Ok(Renewed { config, asking })
    }

    fn make(
        &mut self,
        config: AgentFile,
        observer: &dyn HostObserver,
        actuator: Option<&mut dyn HostActuator>,
        reservations: &[Reservation],
        _before: Option<&dyn Policy>,
    ) -> Result<Assembly, AgentError> {
        let choice = actuator.map(|it| it.choose(&config, observer.trace_points()));
        if let Some(reason) = choice.and_then(|it| it.reason) {
            return Err(AgentError::NoScheduler(reason));
        }
        Ok(Assembly {
            policy: quell_policy::composed(&config, &config.asymmetry, reservations),
            config,
            facts: facts(),
        })
    }
}

/// A clock that takes its entries in turn: a reload with the entry's text as the configuration, unless the
/// text is empty, then the entry's number of periods. After the last entry SIGTERM ends the agent.
struct Turns(Vec<(String, usize)>, File);

impl Clock for Turns {
    fn wait(&mut self) -> io::Result<Wake> {
        let Some((text, periods)) = self.0.first_mut() else {
            return Ok(Wake::Stop("SIGTERM"));
        };
        if !text.is_empty() {
            *self.1.borrow_mut() = std::mem::take(text);
            return Ok(Wake::Reload);
        }
        if *periods == 0 {
            self.0.remove(0);
            return self.wait();
        }
        *periods -= 1;
        Ok(Wake::Period { missed: 0 })
    }

    fn set_period(&mut self, _: Duration) -> io::Result<()> {
        Ok(())
    }
}

struct Rig {
    controller: Controller,
    state: Arc<SharedState>,
    log: Log,
    failures: Rc<RefCell<u32>>,
    file: File,
}

impl Rig {
    /// Some periods with that configuration.
    fn new(config: &[&str]) -> Rig {
        let file = File::default();
        *file.borrow_mut() = config.concat();
        let log = Log::default();
        let failures = Rc::new(RefCell::new(0));
        let scheduler = Scheduler {
            log: log.clone(),
            ending: Default::default(),
            missed: Default::default(),
            failures: failures.clone(),
        };
        let mut backends: Box<dyn HostActuator> =
            Box::new(Backends::new(Box::new(Recorder(log.clone())), scheduler));
        let mut assembler = Assembler(file.clone());
        let config = crate::parse("q.toml".as_ref(), &file.borrow()).unwrap();
        let mut host = Host {
            tenants: Vec::new(),
            period: 0,
        };
        host.follow(&config).unwrap();
        let parts = assembler
            .make(config, &host, Some(backends.as_mut()), &[], None)
            .unwrap();
        let state = Arc::new(SharedState::new("q.toml".into(), facts()));
        let controller = Controller::new(
            parts,
            Box::new(host),
            Some(backends),
            Box::new(assembler),
            state.clone(),
        );
        let mut rig = Rig {
            controller,
            state,
            log,
            failures,
            file,
        };
        rig.go_on("", 5);
        rig.log.borrow_mut().clear();
        rig
    }

    fn go_on(&mut self, text: &str, periods: usize) {
        let mut turns = Turns(vec![(text.to_string(), periods)], self.file.clone());
        self.controller.periods(&mut turns).unwrap();
    }

    /// A reload and some periods: what the scheduler was told meanwhile, and of hand-overs.
    fn reload(&mut self, config: &[&str], periods: usize) -> Vec<String> {
        self.go_on(&config.concat(), periods);
        let log = std::mem::take(&mut *self.log.borrow_mut());
        let weights = |line: &String| line.starts_with("stock: ") && line.ends_with("threads");
        log.into_iter().filter(|it| !weights(it)).collect()
    }

    /// Every tenant's promise.
    fn promises(&self) -> Vec<(String, Option<Promise>)> {
        let plan = self.state.plan().unwrap();
        let tenants = plan.tenants.iter();
        tenants
            .map(|it| (it.name.to_string(), it.promise.clone()))
            .collect()
    }
}

#[test]
fn a_reload_keeps_every_promise_whose_terms_are_the_same() {
    let mut rig = Rig::new(&[HEAD, A, B]);
    let before = rig.promises();
    let told = rig.reload(&[HEAD, A, B], 3);
    // The scheduler is told nothing, and where promised threads are bound nothing is put back.
    assert_eq!(told, ["stock: hand over, bound 1 2"]);
    assert_eq!(rig.promises(), before);
    assert_eq!(rig.state.status(10).reloads, 1);
    // The same holds where the tenants change places in the file and a setting of another mechanism changes.
    let told = rig.reload(&[HEAD, B, A, "[asymmetry]\nslices = false\n"], 3);
    assert_eq!(told, ["stock: hand over, bound 1 2"]);
    assert_eq!(rig.promises(), before);
}

fn kept(cpu: u32) -> Option<Promise> {
    let cpus = vec![quell_model::CpuId(cpu)];
    let unchanged = None;
    Some(Promise::Kept { cpus, unchanged })
}

#[test]
fn a_reload_ends_only_the_promises_of_those_that_it_removes_and_places_others_beside_the_rest() {
    let mut rig = Rig::new(&[HEAD, A, B]);
    let on_0 = [("a".to_string(), kept(0)), ("b".to_string(), kept(0))];
    assert_eq!(rig.promises(), on_0);
    let told = rig.reload(&[HEAD, B, C], 1);
    assert_eq!(told[0], "stock: hand over, bound 2");
    // `b` is told nothing new, and the room of `a` is not given away before its period is over.
    assert!(!told.iter().any(|it| it.contains(" on 0: ")), "{told:?}");
    let promises = [("b".to_string(), kept(0)), ("c".to_string(), kept(1))];
    assert_eq!(rig.promises(), promises);
    let told = rig.reload(&[HEAD, B, C], 3);
    let server = |line: &&String| line.starts_with("server ") && !line.starts_with("server 0");
    let of_servers: Vec<&String> = told.iter().filter(server).collect();
    assert_eq!(of_servers, ["server 1 on 0: None"], "{told:?}");
    assert_eq!(rig.promises(), promises);
}

#[test]
fn where_another_scheduler_is_needed_promises_stay_in_place_and_it_is_said() {
    let mut rig = Rig::new(&[HEAD, A, B]);
    let before = rig.promises();
    let more = HEAD.replace("\"criticality\"", "\"criticality\", \"asymmetry\"");
    let causal = "[asymmetry]\ncausal = false\n";
    let told = rig.reload(&[&more, A, B, causal], 1);
    assert_eq!(told[1..3], ["unload", "load, causal false"], "{told:?}");
    let server = |line: &&String| line.starts_with("server ");
    assert_eq!(told.iter().filter(server).count(), 3, "{told:?}");
    assert_eq!(rig.promises(), before);
    let notes = rig.state.status(10).notes;
    let said = |it: &&String| it.contains("promises were not kept meanwhile");
    assert_eq!(notes.iter().filter(said).count(), 1, "{notes:?}");
}

#[test]
fn where_the_scheduler_that_it_needs_does_not_load_the_old_ones_promises_go_on() {
    let mut rig = Rig::new(&[HEAD, A, B]);
    let before = rig.promises();
    *rig.failures.borrow_mut() = 1;
    let more = HEAD.replace("\"criticality\"", "\"criticality\", \"asymmetry\"");
    let told = rig.reload(&[&more, A, "[asymmetry]\ncausal = false\n"], 1);
    assert_eq!(told[1..4], ["unload", "load fails", "load, causal true"]);
    assert_eq!(rig.promises(), before);
    let status = rig.state.status(10);
    assert!(status.reload_error.unwrap().contains("other"));
    assert_eq!(status.tenants.len(), 2);
}

#[test]
fn other_terms_are_the_same_servers_or_no_reload() {
    let mut rig = Rig::new(&[HEAD, A, B]);
    let before = rig.promises();
    // More than there is room for beside `a`, and whatever else the file has.
    let much = B.replace("50", "95");
    let told = rig.reload(&[HEAD, A, &much, C], 3);
    assert_eq!(told, Vec::<String>::new());
    assert_eq!(rig.promises(), before);
    let error = rig.state.status(10).reload_error.unwrap();
    assert!(error.contains("q.toml: `tenant[1].budget_ms`: "), "{error}");
    assert!(error.contains("has no room on CPU 0"), "{error}");
    // Less, and `a`'s virtual deadline is what it was until the room is free.
    let told = rig.reload(&[HEAD, A, &B.replace("50", "40")], 1);
    let server = |line: &&String| line.starts_with("server ");
    let of_servers: Vec<&String> = told.iter().filter(server).collect();
    assert_eq!(of_servers, ["server 2 on 0: Some((40, 100, 100))"]);
    assert_eq!(rig.promises(), before);
    assert_eq!(rig.state.status(10).reload_error, None);
    // What decides what fits stays as well.
    let told = rig.reload(&[HEAD, A, B, "[criticality]\nreserve_percent = 20\n"], 1);
    assert!(
        told.iter().all(|line| !line.starts_with("stock: hand")),
        "{told:?}"
    );
    let error = rig.state.status(10).reload_error.unwrap();
    assert!(error.contains("criticality.reserve_percent"), "{error}");
}

/// A rule that finds the tenant `b`, with the promise that the table [`B`] asks for.
const FOUND: &str = "[[tenants]]\neach = \"unit\"\nmatch = \"b\"\ncriticality = \"low\"\nperiod_ms = 100\n\
                     budget_ms = 50\n";

#[test]
fn what_was_promised_to_a_tenant_that_a_rule_found_outlives_a_reload() {
    let mut rig = Rig::new(&[HEAD, A, FOUND]);
    let before = rig.promises();
    assert_eq!(
        before,
        [("a".to_string(), kept(0)), ("b".to_string(), kept(0))]
    );
    // The thread of `b` has the number 10.
    assert_eq!(
        rig.reload(&[HEAD, FOUND, A], 3),
        ["stock: hand over, bound 1 10"]
    );
    assert_eq!(rig.promises(), before);
    // More than there is room for beside `a` is refused by the rule's key.
    let other = FOUND
        .replace("\"b\"", "\"c\"")
        .replace("budget_ms = 50", "budget_ms = 1");
    let told = rig.reload(&[HEAD, A, &other, &FOUND.replace("50", "95")], 3);
    assert_eq!(told, Vec::<String>::new());
    assert_eq!(rig.promises(), before);
    let error = rig.state.status(10).reload_error.unwrap();
    assert!(
        error.contains("q.toml: `tenants[1].budget_ms`: "),
        "{error}"
    );
    // Without the rule the promise ends, and with it what binds the thread.
    let told = rig.reload(&[HEAD, A], 3);
    assert_eq!(told[0], "stock: hand over, bound 1");
    assert_eq!(rig.promises(), [("a".to_string(), kept(0))]);
}
