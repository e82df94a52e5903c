//! `quell.toml`: the agent's configuration.

use super::parse::{check_range, parse_explaining};
use super::schema::{or, within};
use super::{
    AdmissionTest, AgentTenant, ConfigError, Criticality, CriticalitySettings, Each, TenantRule,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;

/// The control periods that `[agent]` takes, in ms.
const PERIOD_MS: RangeInclusive<u64> = 10..=10_000;
// The values that `[asymmetry]` takes.
const WEIGHT_STEP_PERCENT: RangeInclusive<f64> = 0.1..=100.0;
const WEIGHT_FLOOR_PERCENT: RangeInclusive<f64> = 1.0..=100.0;
const LATENCY_STEP_PERCENT: RangeInclusive<f64> = 0.1..=90.0;
const LATENCY_US: RangeInclusive<u64> = 1..=10_000_000;
const SLICE_IMBALANCE_PERCENT: RangeInclusive<f64> = 0.1..=1000.0;
const CONFLICT_RATIO: RangeInclusive<f64> = 1.0..=1000.0;
const PLACEMENT_PERIODS: RangeInclusive<u32> = 1..=100_000;

/// A whole `quell.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "quell.toml")]
pub struct AgentFile {
    /// The `[agent]` table.
    #[serde(default)]
    pub agent: AgentSettings,
    /// The `[asymmetry]` table: DASEC's settings.
    #[serde(default)]
    pub asymmetry: AsymmetrySettings,
    /// The `[criticality]` table: the admission test, and the CPU time reserved for other threads.
    #[serde(default)]
    pub criticality: CriticalitySettings,
    /// The `[[tenant]]` tables.
    #[serde(default, rename = "tenant")]
    pub tenants: Vec<AgentTenant>,
    /// The `[[tenants]]` tables: rules by which tenants are found. A process that belongs to no `[[tenant]]`
    /// belongs to the tenant that the first rule that fits finds for it.
    #[serde(default, rename = "tenants", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<TenantRule>,
}

/// The `[agent]` table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentSettings {
    /// The mechanisms to apply. Empty: the agent only observes.
    #[serde(rename = "policy")]
    #[schemars(extend("uniqueItems" = true))]
    pub mechanisms: Vec<Mechanism>,
    /// The interface through which the agent acts.
    pub backend: Backend,
    /// Whether the agent measures its own effect, and keeps only what helps.
    pub guard: GuardMode,
    /// Control period in ms, 10 to 10 000. DASEC's example uses 80 ms; so do we.
    #[schemars(transform = within(PERIOD_MS))]
    pub period_ms: u64,
}

/// One of Quell's four mechanisms: what Quell does for tenants. The code that decides for a mechanism is its
/// policy (`quell_policy::Policy`).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Mechanism {
    /// A tenant's threads that must not wait get CPU time and low latency at the expense of its other
    /// threads (DASEC).
    #[serde(alias = "latency")]
    #[schemars(transform = or("latency"))]
    Asymmetry,
    /// Every tenant gets its weight's part of the whole host, wherever its threads run: Quell's remedy
    /// for what *Toward Accurate Group Scheduling* leaves open. On stock interfaces it sets the weights
    /// of tenants that are cgroups, which is as accurate as the kernel.
    Share,
    /// Tenants with a criticality get promised CPU time in every period, if the admission test passes
    /// (Akita). Needs Quell's scheduler.
    #[serde(alias = "promises")]
    #[schemars(transform = or("promises"))]
    Criticality,
    /// Virtual machines get as many CPUs of their own as they need, by the figures of their guests'
    /// schedulers (UFO).
    #[serde(alias = "vm-pools")]
    #[schemars(transform = or("vm-pools"))]
    Pools,
}

impl Mechanism {
    /// All mechanisms, each once.
    pub const ALL: [Mechanism; 4] = [
        Mechanism::Asymmetry,
        Mechanism::Share,
        Mechanism::Criticality,
        Mechanism::Pools,
    ];

    /// The mechanism's name, as the configuration spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mechanism::Asymmetry => "asymmetry",
            Mechanism::Share => "share",
            Mechanism::Criticality => "criticality",
            Mechanism::Pools => "pools",
        }
    }

    /// The mechanism of this name.
    pub fn named(name: &str) -> Option<Mechanism> {
        let mut all = Mechanism::ALL.into_iter();
        all.find(|it| it.as_str() == name)
    }
}

/// The interface through which the agent acts on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The most precise backend that this kernel has.
    #[default]
    Auto,
    /// Quell's own scheduler (Linux >= 6.12 with sched_ext).
    SchedExt,
    /// Stock interfaces: nice, EEVDF slices, affinity, cgroup weights.
    Stock,
}

/// Whether the agent measures its own effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuardMode {
    /// The agent measures its effect, turns off what harms, and turns on what is shown to help.
    #[default]
    On,
    /// The agent measures its effect and reports what it found; what is configured acts.
    Report,
    /// The agent does not measure its effect; what is configured acts.
    Off,
}

/// The `[asymmetry]` table: settings of DASEC (section 4.2), with the paper's values as defaults, and
/// our own where the paper gives none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AsymmetrySettings {
    /// Time-slice allocator on or off. All three parts are off by default, as they cost more than they
    /// gave where they were measured.
    pub slices: bool,
    /// Rescheduling-latency adjuster on or off.
    pub latencies: bool,
    /// Resource-conflict resolver on or off.
    pub conflicts: bool,
    /// The weight that a depleted thread gains in a period, in percent (paper: 10).
    #[schemars(transform = within(WEIGHT_STEP_PERCENT))]
    pub weight_step_percent: f64,
    /// The part of its initial weight below which a thread gives none, in percent, 1 to 100 (ours).
    #[schemars(transform = within(WEIGHT_FLOOR_PERCENT))]
    pub weight_floor_percent: f64,
    /// Change of rescheduling latency in a period, in percent (paper: 10 down; 10 up is ours).
    #[schemars(transform = within(LATENCY_STEP_PERCENT))]
    pub latency_step_percent: f64,
    /// Least rescheduling latency in µs (ours: the least slice EEVDF takes, 100 µs).
    #[schemars(transform = within(LATENCY_US))]
    pub latency_min_us: u64,
    /// Greatest rescheduling latency in µs (ours: the greatest slice EEVDF takes, 100 ms).
    #[schemars(transform = within(LATENCY_US))]
    pub latency_max_us: u64,
    /// Rescheduling latency a thread starts with, in µs (ours: EEVDF's base slice on most hosts).
    #[schemars(transform = within(LATENCY_US))]
    pub latency_initial_us: u64,
    /// Slice sums of two cores further apart than this, in percent, are a conflict (paper: 10).
    #[schemars(transform = within(SLICE_IMBALANCE_PERCENT))]
    pub slice_imbalance_percent: f64,
    /// Latency conflicts of two cores further apart than this factor are spread (paper: 2).
    #[schemars(transform = within(CONFLICT_RATIO))]
    pub conflict_ratio: f64,
    /// Fewest latency conflicts on a core in a period that are worth a migration (ours: a ratio
    /// of small counts says nothing).
    pub conflict_min: u64,
    /// Periods for which a swapped thread stays where it was put before the kernel may move it
    /// again (ours: placements of the paper's kind would otherwise keep a core idle beside a queue).
    #[schemars(transform = within(PLACEMENT_PERIODS))]
    pub placement_periods: u32,
    /// With Quell's scheduler: threads are ordered by how long the work they serve has waited (causal
    /// age), not by when they became ready themselves. This is not in the paper.
    pub causal: bool,
}

impl AgentSettings {
    /// Whether the mechanism is to be applied.
    pub fn has(&self, mechanism: Mechanism) -> bool {
        self.mechanisms.contains(&mechanism)
    }
}

impl Default for AgentSettings {
    fn default() -> Self {
        AgentSettings {
            mechanisms: vec![Mechanism::Asymmetry],
            backend: Backend::Auto,
            guard: GuardMode::On,
            period_ms: 80,
        }
    }
}

impl Default for AsymmetrySettings {
    fn default() -> Self {
        AsymmetrySettings {
            slices: false,
            latencies: false,
            conflicts: false,
            weight_step_percent: 10.0,
            weight_floor_percent: 10.0,
            latency_step_percent: 10.0,
            latency_min_us: 100,
            latency_max_us: 100_000,
            latency_initial_us: 3_000,
            slice_imbalance_percent: 10.0,
            conflict_ratio: 2.0,
            conflict_min: 8,
            placement_periods: 12,
            causal: true,
        }
    }
}

/// Why a key of a tenant is unknown in `quell.toml`, if it is one of a scenario's tenant.
fn of_scenarios(key: &str) -> Option<&'static str> {
    match key {
        "count" => Some("is for scenarios; give each tenant of a live host its own table"),
        "app" | "thread" | "load" | "within" | "own_cgroup" | "max" | "cpus" | "emulator_cpus"
        | "queues" => Some("is for scenarios (`quell bench`); the agent selects what runs"),
        _ => None,
    }
}

impl AgentFile {
    /// What holds where no configuration was written: nothing is changed, and each virtual machine, pod,
    /// container and unit is a tenant.
    pub fn observing() -> AgentFile {
        let agent = AgentSettings {
            mechanisms: Vec::new(),
            ..AgentSettings::default()
        };
        // From the inside out: a machine of libvirt is in a unit too, and so is a container. To observe does
        // no harm to what users made.
        let each = [Each::Vm, Each::Pod, Each::Container, Each::Unit];
        let rule = |each| {
            let mut rule = TenantRule::all(each);
            let all = ("user".to_string(), "*".to_string());
            rule.finds.labels.extend([all]);
            rule
        };
        AgentFile {
            agent,
            asymmetry: AsymmetrySettings::default(),
            criticality: CriticalitySettings::default(),
            tenants: Vec::new(),
            rules: each.into_iter().map(rule).collect(),
        }
    }

    /// Reads and checks `quell.toml`; `file` is only for messages.
    ///
    /// # Errors
    /// The text is no `quell.toml`, a value is out of range, or keys contradict one another.
    pub fn parse(file: &Path, text: &str) -> Result<AgentFile, ConfigError> {
        let config: AgentFile = parse_explaining(file, text, of_scenarios)?;
        match config.check(file) {
            Ok(()) => Ok(config),
            Err(error) => Err(error.located(text)),
        }
    }

    /// Checks ranges, and the conditions that span several keys.
    fn check(&self, file: &Path) -> Result<(), ConfigError> {
        check_range(file, "agent.period_ms", self.agent.period_ms, &PERIOD_MS)?;
        let mut earlier = BTreeSet::new();
        for (index, mechanism) in self.agent.mechanisms.iter().enumerate() {
            if !earlier.insert(mechanism) {
                let key = format!("agent.policy[{index}]");
                let message = "names the same mechanism as an earlier entry; name each once";
                return Err(ConfigError::at(file, key, message));
            }
        }
        self.asymmetry.check(file)?;
        self.criticality.check(file)?;
        if self.agent.has(Mechanism::Criticality) && self.criticality.test == AdmissionTest::Demand
        {
            let message = "`demand` is for planning (`quell admit`): it takes tenants not to sleep before they have used \
                           their budgets; `edf-vd` does not";
            return Err(ConfigError::at(file, "criticality.test", message));
        }
        if self.agent.has(Mechanism::Criticality) && self.agent.backend == Backend::Stock {
            let message = "is `stock`, but no stock interface keeps the promises of `criticality`: leave it `auto`";
            return Err(ConfigError::at(file, "agent.backend", message));
        }
        check_tenants(
            file,
            &self.agent,
            &mut BTreeSet::new(),
            &self.tenants,
            &self.rules,
        )
    }

    /// Adds the tenants and rules of another file, which come after those that are there; `file` is only for
    /// messages.
    ///
    /// # Errors
    /// The text has anything else, a value is out of range, or a tenant has the name of an earlier one.
    pub fn add(&mut self, file: &Path, text: &str) -> Result<(), ConfigError> {
        let more: MoreTenants = parse_explaining(file, text, of_scenarios)?;
        let mut names = self
            .tenants
            .iter()
            .map(|it| it.spec.name.as_str())
            .collect();
        let checked = check_tenants(file, &self.agent, &mut names, &more.tenants, &more.rules);
        checked.map_err(|error| error.located(text))?;
        self.tenants.extend(more.tenants);
        self.rules.extend(more.rules);
        Ok(())
    }
}

/// A file in `quell.d`: tenants and rules, whose settings are those of `quell.toml`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "quell.d")]
pub(super) struct MoreTenants {
    /// The `[[tenant]]` tables.
    #[serde(default, rename = "tenant")]
    tenants: Vec<AgentTenant>,
    /// The `[[tenants]]` tables: rules by which tenants are found.
    #[serde(default, rename = "tenants")]
    rules: Vec<TenantRule>,
}

/// Checks the tenants and rules of a file. `names` has the names of earlier files' tenants.
fn check_tenants<'a>(
    file: &Path,
    agent: &AgentSettings,
    names: &mut BTreeSet<&'a str>,
    tenants: &'a [AgentTenant],
    rules: &[TenantRule],
) -> Result<(), ConfigError> {
    let promises = |key: &str, criticality: Option<Criticality>| {
        if criticality.is_some() && !agent.has(Mechanism::Criticality) {
            let message = "needs `criticality` in agent.policy";
            return Err(ConfigError::at(file, format!("{key}.criticality"), message));
        }
        Ok(())
    };
    for (index, tenant) in tenants.iter().enumerate() {
        let key = format!("tenant[{index}]");
        tenant.spec.check(file, &key)?;
        if !names.insert(&tenant.spec.name) {
            let message = format!("`{}` is the name of an earlier tenant", tenant.spec.name);
            return Err(ConfigError::at(file, format!("{key}.name"), message));
        }
        if tenant.selectors.is_empty() {
            let message = "has no selector; give at least one of `pid`, `cgroup`, `unit`, \
                           `exe`, `cmdline`, `libvirt`";
            return Err(ConfigError::at(file, key, message));
        }
        promises(&key, tenant.spec.criticality)?;
    }
    for (index, rule) in rules.iter().enumerate() {
        let key = format!("tenants[{index}]");
        rule.check(file, &key)?;
        promises(&key, rule.spec.criticality)?;
    }
    Ok(())
}

impl AsymmetrySettings {
    /// These settings with no rescheduling latency above `slice_ns`, the kernel's own slice. On
    /// stock interfaces a latency acts as a slice, and a slice longer than the kernel's own would
    /// make a thread's neighbours wait, so the range must end there: above it, latencies would change
    /// without effect.
    pub fn within_slice(mut self, slice_ns: u64) -> AsymmetrySettings {
        let most = (slice_ns / 1000).max(1);
        self.latency_max_us = self.latency_max_us.min(most);
        self.latency_initial_us = self.latency_initial_us.min(most);
        self.latency_min_us = self.latency_min_us.min(most);
        self
    }

    /// These settings where Quell's own scheduler acts: threads wait in queues that CPUs share, so
    /// no layout has conflicts to resolve, and a thread that is held to a CPU could not be given
    /// the service that its tenant is owed.
    pub fn in_shared_queues(mut self) -> AsymmetrySettings {
        self.conflicts = false;
        self
    }

    /// Whether any part of the feedback is on.
    pub fn has_feedback(&self) -> bool {
        self.slices || self.latencies || self.conflicts
    }

    fn check(&self, file: &Path) -> Result<(), ConfigError> {
        for (key, value, range) in [
            (
                "weight_step_percent",
                self.weight_step_percent,
                WEIGHT_STEP_PERCENT,
            ),
            (
                "weight_floor_percent",
                self.weight_floor_percent,
                WEIGHT_FLOOR_PERCENT,
            ),
            (
                "latency_step_percent",
                self.latency_step_percent,
                LATENCY_STEP_PERCENT,
            ),
            (
                "slice_imbalance_percent",
                self.slice_imbalance_percent,
                SLICE_IMBALANCE_PERCENT,
            ),
            ("conflict_ratio", self.conflict_ratio, CONFLICT_RATIO),
        ] {
            check_range(file, format!("asymmetry.{key}"), value, &range)?;
        }
        check_range(
            file,
            "asymmetry.placement_periods",
            self.placement_periods,
            &PLACEMENT_PERIODS,
        )?;
        let (low, high) = (self.latency_min_us, self.latency_max_us);
        let (least, most) = LATENCY_US.into_inner();
        if low < least || high > most || low > high {
            let message = format!(
                "latency_min_us {low} and latency_max_us {high} must satisfy {least} <= min <= max <= {most}"
            );
            return Err(ConfigError::at(file, "asymmetry.latency_min_us", message));
        }
        if !(low..=high).contains(&self.latency_initial_us) {
            let message = format!(
                "{} is outside latency_min_us to latency_max_us ({low} to {high})",
                self.latency_initial_us
            );
            return Err(ConfigError::at(
                file,
                "asymmetry.latency_initial_us",
                message,
            ));
        }
        Ok(())
    }
}
