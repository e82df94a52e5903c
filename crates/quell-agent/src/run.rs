//! `quell run`: from options to a running loop, and back.

use crate::api::Server;
use crate::backend::{self, Backends, Kernel};
use crate::clock::{Clock, SystemClock, Wake};
use crate::control::{Assemble, Assembly, Controller, Renewed};
use crate::io::{Asking, Choice, HostActuator, HostObserver, StockInterfaces};
use crate::privileges::Privileges;
use crate::state::{Facts, SharedState};
use crate::wire::Missing;
use crate::{AgentError, load};
use quell_linux::act::{Actuator, Capabilities, RestoreReport, kernel_slice_ns};
use quell_linux::guest::Guests;
use quell_linux::observe::{Observer, Preference, TracePoints};
use quell_model::config::{AgentFile, Backend, Mechanism};
use quell_model::{Effect, Lever, Reservation};
use quell_policy::Policy;
use quell_policy::guard::Guarded;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The least control period in ms where the agent only observes, without BPF.
const OBSERVING_PROC_MS: u64 = 1_000;

/// What `quell run` is told.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// `quell.toml`.
    pub config: PathBuf,
    /// Where the API listens.
    pub socket: PathBuf,
    /// Where old values are kept.
    pub journal: PathBuf,
    /// Observe and decide, change nothing; the journal is not opened.
    pub dry_run: bool,
    /// The source of the threads' figures.
    pub source: Preference,
}

/// Runs the agent until SIGTERM, SIGINT or SIGQUIT and puts all settings back. SIGHUP reads the
/// configuration anew. Call it before any other thread is started: it blocks those signals.
///
/// `None`: nothing was ever changed.
///
/// # Errors
/// When the configuration is wrong ([`AgentError::is_users`]), when the agent could not start or had to end,
/// or when not all settings could be put back.
pub fn run(options: &AgentOptions) -> Result<Option<RestoreReport>, AgentError> {
    let (mut agent, mut clock) = start(options, false)?;
    agent.controller.run(&mut clock)
}

/// Runs the agent for `length` in alternating blocks: with all that it does, and with nothing at all. Then,
/// or at SIGTERM or SIGINT, it puts all settings back. `tell` gets the effect known after each pair of
/// blocks, and the time since the beginning.
///
/// # Errors
/// As [`run`]; and when the agent would change nothing, or BPF does not observe responses.
pub fn prove(
    options: &AgentOptions,
    length: Duration,
    tell: &mut dyn FnMut(&Effect, Duration),
) -> Result<Proof, AgentError> {
    let (mut agent, clock) = start(options, true)?;
    let facts = agent.state.status(1);
    if facts.mechanisms.is_empty() {
        let text = "`policy` of [agent] is empty, so that the agent changes nothing";
        return Err(AgentError::NothingToProve(text.into()));
    }
    if let Some(reason) = facts.not_acting_reason {
        return Err(AgentError::NothingToProve(format!(
            "nothing can be changed here: {reason}"
        )));
    }
    if let Some(reason) = facts.fallback_reason {
        let text = format!("responses are seen by BPF only: {reason}");
        return Err(AgentError::NothingToProve(text));
    }
    let mut clock = ProofClock {
        clock,
        state: agent.state.clone(),
        began: Instant::now(),
        length,
        told: None,
        tell,
    };
    agent.controller.run(&mut clock)?;
    let complete = clock.began.elapsed() >= length;
    Ok(Proof {
        effect: effect_of(&agent.state),
        backend: facts.backend,
        complete,
    })
}

/// The result of a proof.
#[derive(Debug, Clone)]
pub struct Proof {
    /// The effect of all that Quell does; `None`: no period was completed.
    pub effect: Option<Effect>,
    /// How the agent acted in the blocks with all that it does.
    pub backend: Backend,
    /// Whether the proof ran for its whole length.
    pub complete: bool,
}

fn effect_of(state: &SharedState) -> Option<Effect> {
    let plan = state.plan()?;
    let mut effects = plan.effects.iter();
    effects.find(|it| it.lever == Lever::All).cloned()
}

/// Ends a proof when its time is over.
struct ProofClock<'a> {
    clock: SystemClock,
    state: Arc<SharedState>,
    began: Instant,
    length: Duration,
    /// The number of pairs of blocks when `tell` was called last.
    told: Option<u64>,
    tell: &'a mut dyn FnMut(&Effect, Duration),
}

impl Clock for ProofClock<'_> {
    fn wait(&mut self) -> io::Result<Wake> {
        let over = self.began.elapsed();
        if over >= self.length {
            return Ok(Wake::Stop("the time is over"));
        }
        if let Some(effect) = effect_of(&self.state) {
            let pairs = effect.pairs + effect.void;
            if self.told.replace(pairs) != Some(pairs) {
                (self.tell)(&effect, over);
            }
        }
        match self.clock.wait()? {
            // A new configuration would discard what the trials have shown.
            Wake::Reload => Ok(Wake::Stop("SIGHUP")),
            wake => Ok(wake),
        }
    }

    fn set_period(&mut self, period: Duration) -> io::Result<()> {
        self.clock.set_period(period)
    }
}

/// An agent whose loop has not begun.
struct Ready {
    controller: Controller,
    state: Arc<SharedState>,
    _server: Server,
}

fn start(options: &AgentOptions, proves: bool) -> Result<(Ready, SystemClock), AgentError> {
    let config = load::load(&options.config)?;
    if load::is_absent(&options.config) {
        info!(
            "no configuration at {}: only observing; each virtual machine, pod, container and unit is a tenant",
            options.config.display()
        );
    }
    let system = |source| AgentError::System {
        what: "take over signals",
        source,
    };
    let clock = SystemClock::new().map_err(system)?;
    let privileges = Privileges::current();

    let not_acting = if options.dry_run {
        Some("--dry-run was given".to_string())
    } else if !privileges.may_act() {
        Some("CAP_SYS_NICE is missing".to_string())
    } else {
        None
    };
    let (mut capabilities, mut guests) = (None, Guests::default());
    let mut actuator: Option<Box<dyn HostActuator>> = match &not_acting {
        Some(reason) => {
            warn!("observes and decides, but changes nothing: {reason}");
            None
        }
        None => {
            let stock = open(options)?;
            capabilities = Some(stock.capabilities().clone());
            guests = stock.guests().clone();
            let stock = Box::new(StockInterfaces(stock));
            Some(Box::new(Backends::new(stock, Kernel)))
        }
    };
    let mut assembler = Assembler {
        config: options.config.clone(),
        was_there: !load::is_absent(&options.config),
        privileges,
        capabilities,
        not_acting,
        proves,
    };
    let limits = (assembler.capabilities.as_ref()).map(|it| it.notes.clone());
    let began = Instant::now();
    let observer = Observer::new(&config.tenants, &config.rules, options.source)?;
    let observer = Box::new(Asking::new(observer, guests, &config));
    let parts = match &mut actuator {
        Some(actuator) => assembler.make(
            config,
            observer.as_ref(),
            Some(actuator.as_mut()),
            &[],
            None,
        ),
        None => assembler.make(config, observer.as_ref(), None, &[], None),
    }?;
    // The limits concern stock interfaces only.
    let acts = !parts.facts.mechanisms.is_empty();
    let stock = actuator
        .as_ref()
        .filter(|it| acts && it.backend() == Backend::Stock);
    for note in stock.and(limits.as_ref()).into_iter().flatten() {
        info!("{note}");
    }
    for missing in &parts.facts.missing {
        warn!("{} is missing: {}", missing.what, missing.remedy);
    }
    info!(
        source = ?parts.facts.source,
        policy = ?parts.facts.mechanisms,
        period_ms = parts.facts.period_ms,
        "running with {}",
        options.config.display()
    );
    // A client may run in another folder.
    let shown = std::path::absolute(&options.config).unwrap_or_else(|_| options.config.clone());
    let state = Arc::new(SharedState::new(shown, parts.facts.clone()).since(began));
    // From here on every way out drops the controller, which puts all settings back.
    let assembler = Box::new(assembler);
    let controller = Controller::new(parts, observer, actuator, assembler, state.clone());
    let _server = Server::start(&options.socket, state.clone())?;
    quell_sys::memory::trim_startup_pages();
    let ready = Ready {
        controller,
        state,
        _server,
    };
    Ok((ready, clock))
}

fn open(options: &AgentOptions) -> Result<Actuator, AgentError> {
    let actuator = Actuator::open(&options.journal)?;
    if let Some(report) = actuator.recovered() {
        info!("an earlier run had not ended well: {report}");
    }
    Ok(actuator)
}

/// Makes the loop's parts from `quell.toml` on this host.
struct Assembler {
    config: PathBuf,
    /// Whether there was a file: a reload does not take its absence for a wish to observe only.
    was_there: bool,
    privileges: Privileges,
    /// `None`: the agent does not act.
    capabilities: Option<Capabilities>,
    not_acting: Option<String>,
    /// Whether blocks with all that the agent does alternate with blocks with nothing.
    proves: bool,
}

impl Assemble for Assembler {
    fn read(
        &mut self,
        before: &AgentFile,
        reservations: &[Reservation],
        observer: &dyn HostObserver,
    ) -> Result<Renewed, AgentError> {
        let there = !load::is_absent(&self.config);
        if self.was_there && !there {
            let source = io::ErrorKind::NotFound.into();
            let path = self.config.clone();
            return Err(AgentError::ReadConfig { path, source });
        }
        let config = load::load(&self.config)?;
        self.was_there = there;
        let survey = |config: &AgentFile| observer.survey(config);
        let asking = load::keeps_promises(&self.config, &config, before, reservations, survey)?;
        Ok(Renewed { config, asking })
    }

    fn make(
        &mut self,
        config: AgentFile,
        observer: &dyn HostObserver,
        actuator: Option<&mut dyn HostActuator>,
        reservations: &[Reservation],
        before: Option<&dyn Policy>,
    ) -> Result<Assembly, AgentError> {
        let fallback_reason = observer.fallback_reason().map(str::to_string);
        if let Some(reason) = &fallback_reason {
            warn!("samples /proc, which shows no causes of waits, wakers or preemptions: {reason}");
        }
        // Nothing after the choice can fail, so a configuration that is refused loads nothing. In a proof the
        // same trace points observe both kinds of blocks.
        let trace_points = observer.trace_points().filter(|_| !self.proves);
        let choice = choose(&config, actuator, trace_points)?;
        let mut asymmetry = config.asymmetry.clone();
        match (choice.backend, kernel_slice_ns()) {
            (Backend::SchedExt, _) => asymmetry = asymmetry.in_shared_queues(),
            (_, Some(slice_ns)) => asymmetry = asymmetry.within_slice(slice_ns),
            (_, None) => {}
        }
        let weights_only = config.agent.has(Mechanism::Asymmetry) && !asymmetry.has_feedback();
        if choice.backend == Backend::Stock && weights_only {
            info!(
                "on stock interfaces the tenants' weights are set, and nothing else of theirs: `slices`, `latencies` and `conflicts` of [asymmetry] are off"
            );
        }
        let backend = choice.backend;
        let policy = quell_policy::composed(&config, &asymmetry, reservations).map(|policy| {
            match (self.proves, &self.not_acting) {
                (true, _) => Guarded::proving(policy, backend),
                // Without an actuator there is no effect to measure.
                (false, Some(_)) => policy,
                (false, None) => {
                    let before = before.and_then(|it| it.guard());
                    Guarded::keeping(policy, &config, &asymmetry, backend, before)
                }
            }
        });
        let facts = Facts {
            backend: choice.backend,
            backend_reason: choice.reason,
            mechanisms: config.agent.mechanisms.clone(),
            period_ms: match fallback_reason.is_some() && config.agent.mechanisms.is_empty() {
                // To read each thread's files costs more than a figure each period is worth.
                true => config.agent.period_ms.max(OBSERVING_PROC_MS),
                false => config.agent.period_ms,
            },
            source: observer.source(),
            fallback_reason,
            not_acting_reason: match config.agent.mechanisms.is_empty() {
                true => Some("no mechanism is configured (`policy` of [agent])".to_string()),
                false => self.not_acting.clone(),
            },
            missing: missing(self.privileges, &config, self.capabilities.as_ref()),
            criticality: config
                .agent
                .has(Mechanism::Criticality)
                .then_some(config.criticality),
        };
        Ok(Assembly {
            config,
            policy,
            facts,
        })
    }
}

/// The way of acting; without an actuator the expected one, as far as that is known without loading the
/// scheduler.
fn choose(
    config: &AgentFile,
    actuator: Option<&mut dyn HostActuator>,
    trace_points: Option<TracePoints>,
) -> Result<Choice, AgentError> {
    let acts = actuator.is_some();
    let choice = match actuator {
        Some(actuator) => actuator.choose(config, trace_points),
        None => backend::expected(config),
    };
    match (&choice.reason, config.agent.backend) {
        (None, _) if !acts => info!("dry run: would act through Quell's scheduler"),
        (None, _) => info!("acting through Quell's scheduler"),
        (Some(reason), _) if backend::needs_scheduler(config) => {
            return Err(AgentError::NoScheduler(reason.clone()));
        }
        (Some(_), Backend::Stock) => {}
        _ if config.agent.mechanisms.is_empty() => info!("only observing"),
        (Some(reason), _) => info!("acting through stock interfaces: {reason}"),
    }
    Ok(choice)
}

/// The privileges that this process lacks and the settings that this kernel lacks, with the remedies.
fn missing(
    privileges: Privileges,
    config: &AgentFile,
    capabilities: Option<&Capabilities>,
) -> Vec<Missing> {
    let mut missing = privileges.missing(&config.tenants, &config.rules);
    if let Some(c) = capabilities {
        let kinds = [
            ("nice", &c.nice),
            ("slice", &c.slice),
            ("affinity", &c.affinity),
            ("cgroup weight", &c.cgroup_weight),
        ];
        missing.extend(
            kinds
                .into_iter()
                .filter(|(_, c)| !c.available)
                .map(|(what, c)| Missing {
                    what: what.to_string(),
                    remedy: c.detail.clone(),
                }),
        );
    }
    missing
}
