//! The agent's control loop: the step of observe, decide and act ([`quell_control::period()`]), once per
//! period.
//!
//! Whatever happens, the host is left as it was: every way out of [`Controller::run`], a panic included, goes
//! through [`HostActuator::restore`]. What a period cannot do is logged at a limited rate and counted; a
//! period never waits for a client or a log reader.

use crate::clock::{Clock, Wake};
use crate::io::{HostActuator, HostObserver};
use crate::notify::Notifier;
use crate::state::{Facts, SharedState};
use crate::wire::PeriodCost;
use crate::{AgentError, effects, ratelimit::RateLimit};
use quell_control::{Listen, Period};
use quell_linux::observe::ObserveError;
use quell_model::config::AgentFile;
use quell_model::report::{ApplyReport, RestoreReport, list};
use quell_model::{Effect, Finding, Plan, Reservation, Snapshot, TenantName, ThreadId};
use quell_policy::Policy;
use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, error, info, warn};

/// The number of failed observations in a row that ends the agent: it must not keep settings in force that it
/// can no longer judge.
const MAX_FAILURES: u32 = 10;

/// What a configuration makes: the parts that a reload replaces.
pub struct Assembly {
    /// The configuration.
    pub config: AgentFile,
    /// What decides for the configuration's mechanisms; `None`: it has none, and the agent only observes.
    pub policy: Option<Box<dyn Policy>>,
    /// What the API says of the configuration.
    pub facts: Facts,
}

/// A configuration that was read anew.
pub struct Renewed {
    /// The configuration.
    pub config: AgentFile,
    /// The tenants that ask for a promise in it.
    pub asking: BTreeSet<TenantName>,
}

/// Reads configurations and makes the loop's parts by them.
pub trait Assemble {
    /// Reads the configuration anew. `before` is the one in force, and `reservations` are the promises
    /// made by it.
    ///
    /// # Errors
    /// When the new configuration is wrong, or would break a promise.
    fn read(
        &mut self,
        before: &AgentFile,
        reservations: &[Reservation],
        observer: &dyn HostObserver,
    ) -> Result<Renewed, AgentError>;

    /// Makes a configuration's parts, for this observer of its tenants and this actuator. The promises in
    /// `reservations` stay in force, and so does what the guard of the policy `before` has found.
    ///
    /// # Errors
    /// When this host cannot have the configuration.
    fn make(
        &mut self,
        config: AgentFile,
        observer: &dyn HostObserver,
        actuator: Option<&mut dyn HostActuator>,
        reservations: &[Reservation],
        before: Option<&dyn Policy>,
    ) -> Result<Assembly, AgentError>;
}

/// The loop and its parts.
pub struct Controller {
    parts: Assembly,
    observer: Box<dyn HostObserver>,
    actuator: Option<Box<dyn HostActuator>>,
    assemble: Box<dyn Assemble>,
    reporter: Reporter,
    notifier: Notifier,
    /// Whether all settings have been put back.
    finished: bool,
}

/// Reports what happens in the loop, in the log and in the state that the API reads.
struct Reporter {
    state: Arc<SharedState>,
    /// Failed observations in a row.
    failures: u32,
    /// The tenants without processes that were warned about since the configuration was read.
    unmatched: BTreeSet<TenantName>,
    /// The effects in the last plan.
    effects: Arc<Vec<Effect>>,
    say_overrun: RateLimit,
    say_failure: RateLimit,
    say_journal: RateLimit,
}

impl Controller {
    /// A loop that has not begun. Without an actuator the loop decides and changes nothing.
    pub fn new(
        parts: Assembly,
        observer: Box<dyn HostObserver>,
        actuator: Option<Box<dyn HostActuator>>,
        assemble: Box<dyn Assemble>,
        state: Arc<SharedState>,
    ) -> Controller {
        Controller {
            parts,
            observer,
            actuator,
            assemble,
            reporter: Reporter {
                state,
                failures: 0,
                unmatched: BTreeSet::new(),
                effects: Arc::default(),
                say_overrun: RateLimit::default(),
                say_failure: RateLimit::default(),
                say_journal: RateLimit::default(),
            },
            notifier: Notifier::new(),
            finished: false,
        }
    }

    /// Runs periods until the clock says stop, then puts all settings back. `None`: without an actuator
    /// nothing was ever changed.
    ///
    /// # Errors
    /// When the loop had to end before the clock said stop, or when not all settings could be put back.
    pub fn run(&mut self, clock: &mut dyn Clock) -> Result<Option<RestoreReport>, AgentError> {
        // After a panic the loop's state is used only to put back what is journaled.
        let ended = catch_unwind(AssertUnwindSafe(|| self.periods(clock)))
            .unwrap_or_else(|panic| Err(AgentError::Panicked(panic_text(&*panic))));
        self.notifier.stopping();
        if let Err(e) = &ended {
            error!("{e}; putting everything back");
        }
        let restored = self.finish();
        // The first failure is returned; settings that could not be put back are in the log.
        ended.and(restored)
    }

    fn periods(&mut self, clock: &mut dyn Clock) -> Result<(), AgentError> {
        let clock_error = |source| AgentError::System {
            what: "wait for the next period",
            source,
        };
        let period = |parts: &Assembly| Duration::from_millis(parts.facts.period_ms);
        clock.set_period(period(&self.parts)).map_err(clock_error)?;
        loop {
            match clock.wait().map_err(clock_error)? {
                Wake::Stop(signal) => {
                    info!("{signal}: stopping");
                    return Ok(());
                }
                Wake::Reload => {
                    let before = period(&self.parts);
                    self.reload();
                    if period(&self.parts) != before {
                        clock.set_period(period(&self.parts)).map_err(clock_error)?;
                    }
                }
                Wake::Period { missed } => {
                    if missed > 0 {
                        self.reporter.overrun(missed);
                    }
                    self.period()?;
                }
            }
        }
    }

    /// Runs one period. Returns an error only when the loop must end.
    fn period(&mut self) -> Result<(), AgentError> {
        let policy = self.parts.policy.as_mut();
        let policy = policy.map(|it| it.as_mut() as &mut dyn Policy);
        let period = quell_control::period(
            self.observer.as_mut(),
            policy,
            self.actuator.as_deref_mut(),
            &mut self.reporter,
        );
        match period {
            Ok(period) => self.publish(period),
            Err(e) => return self.failed(e),
        }
        Ok(())
    }

    /// Reports and publishes a completed period.
    fn publish(&mut self, period: Period) {
        let Period {
            snapshot,
            plan,
            report,
            cost,
        } = period;
        if let Some(report) = &report {
            self.reporter.tell(report);
        }
        let state = &self.reporter.state;
        if let Some(actuator) = &self.actuator {
            let backend = actuator.backend();
            if backend != self.parts.facts.backend {
                self.parts.facts.backend = backend;
                state.acts_through(backend);
            }
            state.broke(actuator.broken());
            state.lacks(actuator.unmet());
        }
        let cost = PeriodCost {
            observe_us: micros(cost.observe),
            decide_us: micros(cost.decide),
            act_us: micros(cost.act),
        };
        let tenants = snapshot.tenants.len();
        let threads: usize = snapshot.tenants.iter().map(|t| t.threads.len()).sum();
        let before = state.publish(snapshot, plan, report.as_ref(), cost);
        if let Some(before) = before {
            self.observer.recycle(before);
        }
        self.notifier
            .period_completed(|| format!("{threads} threads of {tenants} tenants"));
    }

    fn failed(&mut self, e: ObserveError) -> Result<(), AgentError> {
        self.reporter.failures += 1;
        self.reporter.state.count_observe_error();
        // The watchdog is fed: this loop, not the watchdog, ends the agent after too many failures.
        self.notifier.alive();
        if self.reporter.failures >= MAX_FAILURES {
            return Err(AgentError::TooManyErrors {
                count: self.reporter.failures,
                last: e,
            });
        }
        if let Some(suppressed) = self.reporter.say_failure.now() {
            warn!(
                untold = suppressed,
                "no snapshot this period, all settings stay as they are: {e}"
            );
        }
        Ok(())
    }

    /// Reads the configuration anew; a wrong one changes nothing.
    fn reload(&mut self) {
        match self.renew() {
            Ok(()) => {
                self.reporter.state.reloaded(self.parts.facts.clone());
                self.reporter.unmatched.clear();
                self.reporter.failures = 0;
                info!("configuration reloaded");
            }
            Err(e) => {
                error!("configuration not reloaded, the old one stays in force: {e}");
                self.reporter.state.reload_refused(e.to_string());
            }
        }
    }

    /// Puts a right configuration in force. What Quell set is put back first: the new policy must see what
    /// the owners chose, not what the previous policy set. Promises are not interrupted for that.
    fn renew(&mut self) -> Result<(), AgentError> {
        let plan = self.reporter.state.plan().unwrap_or_default();
        let observer = self.observer.as_ref();
        let Renewed { config, asking } =
            (self.assemble).read(&self.parts.config, &plan.reservations, observer)?;
        if let Some(actuator) = &mut self.actuator {
            let report = actuator.hand_over(&bound(&plan, &asking));
            match report.is_complete() {
                true => info!("before the new configuration: {report}"),
                false => error!("before the new configuration: {report}"),
            }
        }
        self.observer.follow(&config)?;
        let actuator: Option<&mut dyn HostActuator> = match &mut self.actuator {
            Some(actuator) => Some(actuator.as_mut()),
            None => None,
        };
        let observer = self.observer.as_ref();
        let before = self.parts.policy.as_deref();
        match self
            .assemble
            .make(config, observer, actuator, &plan.reservations, before)
        {
            Ok(parts) => {
                self.parts = parts;
                Ok(())
            }
            Err(e) => {
                if let Err(again) = self.observer.follow(&self.parts.config) {
                    error!("the old configuration's tenants cannot be observed any more: {again}");
                }
                Err(e)
            }
        }
    }

    /// Puts all settings back, once.
    fn finish(&mut self) -> Result<Option<RestoreReport>, AgentError> {
        self.finished = true;
        let Some(actuator) = &mut self.actuator else {
            return Ok(None);
        };
        match catch_unwind(AssertUnwindSafe(|| actuator.restore())) {
            Ok(report) if report.is_complete() => {
                info!("{report}");
                Ok(Some(report))
            }
            Ok(report) => {
                error!("{report}");
                Err(AgentError::NotRestored(report.to_string()))
            }
            Err(panic) => {
                let text = panic_text(&*panic);
                error!("a bug while putting everything back: {text}; run `quell restore`");
                Err(AgentError::NotRestored(text))
            }
        }
    }
}

impl Listen for Reporter {
    fn observed(&mut self, snapshot: &Snapshot) {
        if self.failures > 0 {
            info!(
                "observing works again after {} failed periods",
                self.failures
            );
            self.failures = 0;
        }
        self.warn_of_unmatched(snapshot);
    }

    fn decided(&mut self, snapshot: &Snapshot, plan: &Plan) {
        self.tell_findings(plan, snapshot.time_ns);
    }
}

impl Reporter {
    fn overrun(&mut self, missed: u64) {
        self.state.count_overruns(missed);
        if let Some(suppressed) = self.say_overrun.now() {
            let total = self.state.counts().overruns;
            warn!(
                missed,
                total,
                untold = suppressed,
                "overrun: periods were skipped because one took too long; \
                a longer `period_ms` helps if this goes on"
            );
        }
    }

    fn tell(&mut self, report: &ApplyReport) {
        for line in report.lines() {
            info!("{line}");
        }
        if let Some(e) = &report.journal_error {
            if let Some(suppressed) = self.say_journal.now() {
                warn!(untold = suppressed, "nothing was changed this period: {e}");
                self.state.note(format!("nothing can be changed: {e}"));
            }
        }
        if report.writes.total() + report.given_back > 0 {
            debug!("{report}");
        }
    }

    /// Logs what trials have newly shown of a lever.
    fn tell_findings(&mut self, plan: &Plan, now_ns: u64) {
        if Arc::ptr_eq(&self.effects, &plan.effects) {
            return;
        }
        for effect in plan.effects.iter() {
            let mut before = self.effects.iter();
            let before = before.find(|it| it.lever == effect.lever);
            let finding = before.map_or(Finding::Untried, |it| it.finding);
            if effect.finding != finding {
                let text = effects::line(effect, None, now_ns);
                info!("{text}");
                self.state.note(text);
            }
        }
        self.effects = plan.effects.clone();
    }

    /// Warns once of tenants without processes: a selector that matches nothing is often a typing mistake.
    /// While it matches nothing, the tenant has a remark.
    fn warn_of_unmatched(&mut self, snapshot: &Snapshot) {
        // A tenant that a rule found, which has labels, is gone in the next period.
        let none = snapshot.tenants.iter();
        let none = none.filter(|it| it.threads.is_empty() && it.labels.is_empty());
        let names = none.map(|tenant| &tenant.name);
        let new: Vec<TenantName> = names
            .filter(|name| !self.unmatched.contains(*name))
            .cloned()
            .collect();
        let text = match new.len() {
            0 => return,
            1 => format!("tenant {}: no process matches its selectors now", new[0]),
            _ => format!(
                "tenants {}: no process matches their selectors now",
                list(&new)
            ),
        };
        warn!("{text}");
        self.unmatched.extend(new);
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if !self.finished {
            // An error is in the log already, and no caller is left to return it to.
            let _ = self.finish();
        }
    }
}

/// The threads bound to a CPU for a promise that their tenants ask for in the new configuration as well.
fn bound(plan: &Plan, asking: &BTreeSet<TenantName>) -> BTreeSet<ThreadId> {
    let tenants = plan.tenants.iter();
    let tenants = tenants.filter(|it| asking.contains(&it.name));
    let threads = tenants.flat_map(|it| &it.threads);
    let served = threads.filter(|it| it.server.is_some());
    served.map(|it| it.id).collect()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "panic without a message".to_string())
}

#[cfg(test)]
mod reloads;
#[cfg(test)]
mod tests;
