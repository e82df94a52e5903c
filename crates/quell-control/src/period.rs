//! One step of a control loop: observe, decide, act.

use quell_model::config::Backend;
use quell_model::{ApplyReport, Plan, Snapshot};
use quell_policy::Policy;
use std::time::{Duration, Instant};

/// Where snapshots come from.
pub trait Observe {
    /// The reason why there is no snapshot of a period.
    type Error;

    /// The snapshot of the period since the previous call.
    ///
    /// # Errors
    /// When the machine could not be read; the next call may succeed.
    fn sample(&mut self) -> Result<Snapshot, Self::Error>;
}

/// Where plans go.
pub trait Act {
    /// How the actuator acts at the moment, never [`Backend::Auto`].
    fn backend(&self) -> Backend;

    /// Makes a plan hold, as far as it does not hold already. `snapshot` is the one that the plan was decided
    /// on.
    fn apply(&mut self, snapshot: &Snapshot, plan: &Plan) -> ApplyReport;
}

/// Is told of the parts of a period as soon as they are done, before the next part begins.
pub trait Listen {
    /// The machine was observed.
    fn observed(&mut self, _snapshot: &Snapshot) {}
    /// The plan was decided, and nothing of it is carried out yet.
    fn decided(&mut self, _snapshot: &Snapshot, _plan: &Plan) {}
}

/// Ignores all parts.
impl Listen for () {}

/// A completed period.
#[derive(Debug)]
pub struct Period {
    /// The state of the machine that was observed.
    pub snapshot: Snapshot,
    /// The plan that was decided on it.
    pub plan: Plan,
    /// The report of carrying out the plan; `None` without an actuator.
    pub report: Option<ApplyReport>,
    /// What the period took.
    pub cost: Cost,
}

/// How long the parts of a period took, on the clock of the machine that this program runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// The length of [`Observe::sample`].
    pub observe: Duration,
    /// The length of [`Policy::decide`], and of listening before and after it.
    pub decide: Duration,
    /// The length of [`Act::apply`].
    pub act: Duration,
}

/// Takes a snapshot, decides a plan and has it carried out. Without a policy the plan is empty: all settings
/// are to be as their owners chose. Without an actuator nothing is changed.
///
/// # Errors
/// When there is no snapshot: then nothing is decided, and nothing is changed.
pub fn period<O, A>(
    observer: &mut O,
    mut policy: Option<&mut dyn Policy>,
    actuator: Option<&mut A>,
    listener: &mut dyn Listen,
) -> Result<Period, O::Error>
where
    O: Observe + ?Sized,
    A: Act + ?Sized,
{
    let start = Instant::now();
    let snapshot = observer.sample()?;
    let observed = Instant::now();
    listener.observed(&snapshot);
    let plan = match &mut policy {
        Some(policy) => policy.decide(&snapshot),
        None => Plan {
            seq: snapshot.seq,
            ..Plan::default()
        },
    };
    listener.decided(&snapshot, &plan);
    let decided = Instant::now();
    let mut report = None;
    let mut acted = decided;
    if let Some(actuator) = actuator {
        report = Some(actuator.apply(&snapshot, &plan));
        acted = Instant::now();
        if let Some(policy) = policy {
            policy.carried_out(actuator.backend());
        }
    }
    let cost = Cost {
        observe: observed - start,
        decide: decided - observed,
        act: acted - decided,
    };
    Ok(Period {
        snapshot,
        plan,
        report,
        cost,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_model::{HostSample, Source, Topology};
    use std::cell::RefCell;
    use std::sync::{Arc, Mutex};

    /// What was done, in order.
    type Log = RefCell<Vec<String>>;

    struct Recording<'a>(&'a Log, Option<u64>);

    impl Observe for Recording<'_> {
        type Error = &'static str;

        fn sample(&mut self) -> Result<Snapshot, &'static str> {
            self.0.borrow_mut().push("observe".into());
            let seq = self.1.ok_or("no snapshot")?;
            Ok(Snapshot {
                seq,
                time_ns: 0,
                period_ns: 80_000_000,
                source: Source::Simulator,
                host: HostSample {
                    topology: Arc::new(Topology::flat(1)),
                    cpus: Vec::new(),
                },
                tenants: Vec::new(),
            })
        }
    }

    /// Plans nothing, under the number of the snapshot; keeps how its plans were carried out.
    struct Decides(Arc<Mutex<Vec<Backend>>>);

    impl Policy for Decides {
        fn name(&self) -> &'static str {
            "decides"
        }

        fn decide(&mut self, snapshot: &Snapshot) -> Plan {
            Plan {
                seq: snapshot.seq,
                kernel_scheduler: true,
                ..Plan::default()
            }
        }

        fn carried_out(&mut self, by: Backend) {
            self.0.lock().unwrap().push(by);
        }
    }

    struct Acts<'a>(&'a Log);

    impl Act for Acts<'_> {
        fn backend(&self) -> Backend {
            Backend::SchedExt
        }

        fn apply(&mut self, snapshot: &Snapshot, plan: &Plan) -> ApplyReport {
            assert_eq!(snapshot.seq, plan.seq);
            let text = format!("act, decided {}", plan.kernel_scheduler);
            self.0.borrow_mut().push(text);
            ApplyReport::default()
        }
    }

    struct Hears<'a>(&'a Log);

    impl Listen for Hears<'_> {
        fn observed(&mut self, snapshot: &Snapshot) {
            self.0
                .borrow_mut()
                .push(format!("observed {}", snapshot.seq));
        }

        fn decided(&mut self, _: &Snapshot, plan: &Plan) {
            self.0.borrow_mut().push(format!("decided {}", plan.seq));
        }
    }

    #[test]
    fn a_period_observes_then_decides_then_acts() {
        let log = Log::default();
        let by = Arc::new(Mutex::new(Vec::new()));
        let mut policy = Decides(by.clone());
        let found = period(
            &mut Recording(&log, Some(7)),
            Some(&mut policy),
            Some(&mut Acts(&log)),
            &mut Hears(&log),
        );
        let found = found.unwrap();
        assert_eq!((found.snapshot.seq, found.plan.seq), (7, 7));
        assert_eq!(found.report, Some(ApplyReport::default()));
        assert_eq!(
            *log.borrow(),
            ["observe", "observed 7", "decided 7", "act, decided true"]
        );
        assert_eq!(*by.lock().unwrap(), [Backend::SchedExt]);
    }

    #[test]
    fn without_a_snapshot_nothing_is_decided_or_done() {
        let log = Log::default();
        let by = Arc::new(Mutex::new(Vec::new()));
        let mut policy = Decides(by.clone());
        let found = period(
            &mut Recording(&log, None),
            Some(&mut policy),
            Some(&mut Acts(&log)),
            &mut Hears(&log),
        );
        assert_eq!(found.unwrap_err(), "no snapshot");
        assert_eq!(*log.borrow(), ["observe"]);
        assert!(by.lock().unwrap().is_empty());
    }

    #[test]
    fn without_a_policy_nothing_is_planned_and_without_an_actuator_nothing_is_done() {
        let log = Log::default();
        let mut actuator = Acts(&log);
        let found = period(
            &mut Recording(&log, Some(3)),
            None,
            Some(&mut actuator),
            &mut (),
        );
        assert_eq!(found.unwrap().plan.seq, 3);
        assert_eq!(*log.borrow(), ["observe", "act, decided false"]);
        let by = Arc::new(Mutex::new(Vec::new()));
        let mut policy = Decides(by.clone());
        let found = period(
            &mut Recording(&log, Some(4)),
            Some(&mut policy),
            None::<&mut Acts<'_>>,
            &mut (),
        );
        assert_eq!(found.unwrap().report, None);
        assert!(by.lock().unwrap().is_empty());
    }
}
