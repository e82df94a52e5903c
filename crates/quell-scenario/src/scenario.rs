//! A scenario: a host, its tenants, what they do and the load they get. One file runs on real
//! threads and on simulated ones.
//!
//! Everything is checked before anything runs: names, ranges, and the conditions that span the file,
//! such as a queue that one thread fills and no thread empties.

use crate::ScenarioTenant;
use crate::flow::check_threads;
use crate::group::{Cgroups, GroupSpec, check_groups};
use crate::program::{Arrival, Load};
use crate::tenant::{check_count, of_other_files};
use quell_model::config::{
    ConfigError, CriticalitySettings, TenantClass, TenantKind, check_name, parse_explaining,
};
use quell_model::{Cpu, CpuId, TenantName, Topology};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A whole scenario file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The scenario's name: letters, digits, `.`, `_`, `-`; at most 64.
    pub name: String,
    /// The scenario's purpose, in a sentence or two.
    #[serde(default)]
    pub description: String,
    /// What the scenario's figures seem to show and do not, in a sentence; it is printed above every result.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub caveat: String,
    /// The figure or table of a paper that the scenario follows, if any (`DASEC, Fig. 9`).
    pub figure: Option<String>,
    /// How long each side is measured unless the command line sets it, in seconds: 0.1 to 3600.
    #[serde(default = "default_seconds")]
    pub seconds: f64,
    /// How long the load runs before the measurement, in seconds: 0 to 600.
    #[serde(default = "default_warmup_seconds")]
    pub warmup_seconds: f64,
    /// The number of interleaved pairs of sides unless the command line sets it: 1 to 1000.
    #[serde(default = "default_pairs")]
    pub pairs: u32,
    /// The host. Required by the simulator; a run on a real host takes the host as it is.
    pub host: Option<HostSpec>,
    /// The `[criticality]` table: how the agent promises CPU time, on sides that have an agent.
    #[serde(default)]
    pub criticality: CriticalitySettings,
    /// The cgroups that tenants are in.
    #[serde(default, rename = "group", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupSpec>,
    /// The `[[tenant]]` tables.
    #[serde(default, rename = "tenant")]
    pub tenants: Vec<ScenarioTenant>,
    /// The file that the scenario was read from; paths in the scenario are relative to its folder.
    #[serde(skip)]
    pub file: PathBuf,
}

fn default_seconds() -> f64 {
    10.0
}

fn default_warmup_seconds() -> f64 {
    2.0
}

fn default_pairs() -> u32 {
    5
}

/// The `[host]` table: `cpus` or `topology`, and for the simulator `costs` and `scheduler`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Number of CPUs, on one socket with one last-level cache: 1 to 8192.
    pub cpus: Option<u32>,
    /// How the CPUs share cores, caches and sockets.
    pub topology: Option<TopologySpec>,
    /// The cost of the machine's own work, on the simulator.
    #[serde(default)]
    pub costs: CostsSpec,
    /// The kernel's own scheduler, on the simulator: that of side `default`, and of sides that set only
    /// where threads may run.
    #[serde(default)]
    pub scheduler: HostScheduler,
}

/// The scheduler of a Linux kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum HostScheduler {
    /// CFS as of Linux 6.1; all kernels up to 6.5 have it.
    #[serde(rename = "cfs")]
    Cfs,
    /// EEVDF as of Linux 6.12.
    #[serde(rename = "eevdf-6.12")]
    Eevdf612,
    /// EEVDF as of Linux 7.2.
    #[default]
    #[serde(rename = "eevdf")]
    Eevdf,
}

/// The cost of a simulated machine's own work. A cost that is not given is that of a present-day
/// server (docs/design/simulator.md has the figures and their sources). Real machines have their own.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CostsSpec {
    /// The time to choose another thread and switch to it, in us.
    pub switch_us: Option<f64>,
    /// The time that a wakeup takes the waking thread, in us.
    pub wake_us: Option<f64>,
    /// The time that starting a process, its end and the wait for that take the parent, in us.
    pub fork_us: Option<f64>,
    /// The time from a request to another CPU to reschedule until it does, in us.
    pub kick_us: Option<f64>,
    /// The time of a timer interrupt without the wakeups in it, in us.
    pub interrupt_us: Option<f64>,
    /// The time of a request's way in without the wakeup at its end, in us.
    pub request_us: Option<f64>,
    /// The time of an answer's way out, in us.
    pub answer_us: Option<f64>,
    /// Whether requests come from, and answers go to, a thread of this machine that runs before all
    /// others, as in the kernel lab.
    pub generators: bool,
    /// The time that it takes a VM's emulator thread to carry a request or an answer, in us.
    pub emulate_us: Option<f64>,
    /// The time that it takes a guest to plug a vCPU in or out, in us.
    pub plug_us: Option<f64>,
    /// Whether requests come in on CPUs of the host that are not simulated, as where `[host]` is a part
    /// of it: their way in takes its time, but no time of the simulated CPUs.
    pub requests_elsewhere: bool,
    /// The time of a tick, in us.
    pub tick_us: Option<f64>,
    /// Ticks in a second on a CPU that runs a thread; 0: none.
    pub hz: Option<f64>,
    /// The extra time of a thread that migrates from another CPU of the same last-level cache, in us.
    pub migrate_us: Option<f64>,
    /// The extra time of a thread that migrates from a CPU of another last-level cache, in us.
    pub migrate_far_us: Option<f64>,
    /// The time for which a kernel thread or daemon delays the running thread, in us.
    pub noise_us: Option<f64>,
    /// The mean number of such delays in a second on each CPU.
    pub noise_per_s: Option<f64>,
    /// Whether the instructions of all CPUs advance one clock, as in the kernel lab: the machine's own
    /// work then takes longer by a factor of the number of busy CPUs.
    pub shared_clock: bool,
    /// The speed of each of two hyperthreads of a core while both are busy, in percent of one alone: 1
    /// to 100.
    pub smt_percent: Option<u8>,
    /// The extra time that a CPU takes to wake from deep idle, in us.
    pub idle_exit_us: Option<f64>,
    /// The idle time after which a CPU is in deep idle, in us.
    pub idle_deep_after_us: Option<f64>,
}

impl CostsSpec {
    fn check(&self, file: &Path) -> Result<(), ConfigError> {
        let values = [
            ("switch_us", self.switch_us),
            ("wake_us", self.wake_us),
            ("fork_us", self.fork_us),
            ("kick_us", self.kick_us),
            ("interrupt_us", self.interrupt_us),
            ("request_us", self.request_us),
            ("answer_us", self.answer_us),
            ("emulate_us", self.emulate_us),
            ("plug_us", self.plug_us),
            ("tick_us", self.tick_us),
            ("hz", self.hz),
            ("migrate_us", self.migrate_us),
            ("migrate_far_us", self.migrate_far_us),
            ("noise_us", self.noise_us),
            ("noise_per_s", self.noise_per_s),
            ("idle_exit_us", self.idle_exit_us),
            ("idle_deep_after_us", self.idle_deep_after_us),
        ];
        for (key, value) in values {
            if let Some(value) = value.filter(|value| !(0.0..=1e5).contains(value)) {
                let message = format!("{value} is outside 0 to 100000");
                return Err(ConfigError::at(file, format!("host.costs.{key}"), message));
            }
        }
        if let Some(percent) = self.smt_percent.filter(|it| !(1..=100).contains(it)) {
            let message = format!("{percent} is outside 1 to 100");
            return Err(ConfigError::at(file, "host.costs.smt_percent", message));
        }
        Ok(())
    }
}

/// The shape of a host: `topology = { sockets = 4, cores = 20, smt = 2, llc = 10 }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologySpec {
    /// The number of sockets.
    pub sockets: u32,
    /// Cores of each socket.
    pub cores: u32,
    /// Logical CPUs of each core.
    #[serde(default = "one")]
    pub smt: u32,
    /// Cores that share a last-level cache; must divide `cores`. All cores of a socket unless given.
    pub llc: Option<u32>,
}

impl TopologySpec {
    /// The CPUs that the table describes.
    pub fn topology(&self) -> Topology {
        let llc_cores = self.llc.unwrap_or(self.cores).max(1);
        // CPU numbers run over the first threads of all cores, then over their second threads, as on
        // most PCs.
        let cores = self.sockets * self.cores;
        let cpus = (0..cores * self.smt)
            .map(|n| {
                let core = n % cores;
                Cpu {
                    id: CpuId(n),
                    core,
                    llc: core / llc_cores,
                    socket: core / self.cores,
                }
            })
            .collect();
        Topology { cpus }
    }
}

fn one() -> u32 {
    1
}

/// One tenant of a scenario after `count` is expanded.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantInstance<'a> {
    /// The tenant's name: its table's, or that with `-0`, `-1`, ... where the table's `count` is more than 1.
    pub name: TenantName,
    /// The tenant's table in the scenario.
    pub table: &'a ScenarioTenant,
}

impl Scenario {
    /// Reads and checks a scenario; `file` is for messages and for the paths in the scenario.
    ///
    /// # Errors
    /// The text is no scenario, a value is out of range, or the parts of the scenario do not fit together.
    pub fn parse(file: &Path, text: &str) -> Result<Scenario, ConfigError> {
        let mut scenario: Scenario = parse_explaining(file, text, of_other_files)?;
        scenario.file = file.into();
        match scenario.check(file) {
            Ok(()) => Ok(scenario),
            Err(error) => Err(error.located(text)),
        }
    }

    /// The tenants, with `count` expanded.
    pub fn instances(&self) -> Vec<TenantInstance<'_>> {
        let each =
            |table| ScenarioTenant::names(table).map(move |name| TenantInstance { name, table });
        self.tenants.iter().flat_map(each).collect()
    }

    /// The cgroups that the scenario needs. The scenario must be checked.
    pub fn cgroups(&self) -> Cgroups {
        Cgroups::new(self)
    }

    /// The location of a path of the scenario, which is relative to the scenario's folder.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        self.file.parent().unwrap_or(Path::new("")).join(path)
    }

    /// Checks everything, as [`Scenario::parse`] does, for a scenario that was changed since. `file` is
    /// for messages.
    ///
    /// # Errors
    /// A value is out of range, or the parts of the scenario do not fit together.
    pub fn check(&self, file: &Path) -> Result<(), ConfigError> {
        let error = |key: &str, message: String| Err(ConfigError::at(file, key, message));
        check_name(&self.name, file, "")?;
        if !(0.1..=3600.0).contains(&self.seconds) {
            return error(
                "seconds",
                format!("{} is outside 0.1 to 3600", self.seconds),
            );
        }
        if !(0.0..=600.0).contains(&self.warmup_seconds) {
            return error(
                "warmup_seconds",
                format!("{} is outside 0 to 600", self.warmup_seconds),
            );
        }
        if !(1..=1000).contains(&self.pairs) {
            return error("pairs", format!("{} is outside 1 to 1000", self.pairs));
        }
        if let Some(host) = &self.host {
            host.check(file)?;
        }
        self.criticality.check(file)?;
        if self.tenants.is_empty() {
            return error(
                "tenant",
                "a scenario needs at least one [[tenant]]".to_string(),
            );
        }
        let topology = self.host.as_ref().map(HostSpec::topology);
        let mut names: BTreeMap<TenantName, usize> = BTreeMap::new();
        for (index, tenant) in self.tenants.iter().enumerate() {
            let key = format!("tenant[{index}]");
            check_tenant(tenant, file, &key)?;
            check_cpus(tenant, topology.as_ref(), file, &key)?;
            // Only this tenant's own instances, so that the later of two tenants with one name is reported.
            for name in tenant.names() {
                if let Some(earlier) = names.insert(name.clone(), index) {
                    let message = format!("`{name}` is also a name of tenant[{earlier}]");
                    return error(&format!("{key}.name"), message);
                }
            }
        }
        check_groups(&self.groups, &self.tenants, file)?;
        for (index, group) in self.groups.iter().enumerate() {
            if let Some(tenant) = names.get(&TenantName::from(group.name.as_str())) {
                let message = format!("`{}` is also a name of tenant[{tenant}]", group.name);
                return error(&format!("group[{index}].name"), message);
            }
        }
        Ok(())
    }
}

/// Checks the CPUs that a tenant's threads may run on; `key` is the tenant's key.
fn check_cpus(
    tenant: &ScenarioTenant,
    host: Option<&Topology>,
    file: &Path,
    key: &str,
) -> Result<(), ConfigError> {
    for (field, cpus) in [
        ("cpus", &tenant.cpus),
        ("emulator_cpus", &tenant.emulator_cpus),
    ] {
        if let Some(cpus) = cpus {
            crate::cpus::check(cpus, host, file, &format!("{key}.{field}"))?;
        }
    }
    for (index, thread) in tenant.threads.iter().enumerate() {
        let Some(cpus) = &thread.cpus else { continue };
        let key = format!("{key}.thread[{index}].cpus");
        if tenant.spec.kind == TenantKind::Vm {
            let message =
                "a VM's threads are its guest's; give the tenant `cpus`, for its virtual CPUs";
            return Err(ConfigError::at(file, key, message));
        }
        crate::cpus::check(cpus, host, file, &key)?;
    }
    Ok(())
}

/// Checks one tenant of a scenario; `key` is the tenant's key.
fn check_tenant(tenant: &ScenarioTenant, file: &Path, key: &str) -> Result<(), ConfigError> {
    let error = |field: &str, message: String| {
        let key = if field.is_empty() {
            key.to_string()
        } else {
            format!("{key}.{field}")
        };
        Err(ConfigError::at(file, key, message))
    };
    tenant.spec.check(file, key)?;
    check_count(tenant.count, file, key)?;
    for (field, given) in [
        ("emulator_cpus", tenant.emulator_cpus.is_some()),
        ("queues", tenant.queues.is_some()),
    ] {
        if given && tenant.spec.kind != TenantKind::Vm {
            return error(field, "is for tenants with kind = \"vm\"".to_string());
        }
    }
    if let Some(queues) = tenant.queues.filter(|it| !(1..=64).contains(it)) {
        return error("queues", format!("{queues} is outside 1 to 64"));
    }
    if tenant.own_cgroup.is_some() && tenant.spec.kind != TenantKind::Vm {
        let message = "is for tenants with kind = \"vm\"; a container has a cgroup of its own, a process has none";
        return error("own_cgroup", message.to_string());
    }
    if tenant.spec.vcpus.is_some()
        && tenant.spec.kind != TenantKind::Vm
        && tenant.spec.criticality.is_none()
    {
        let message = "is for tenants with kind = \"vm\" or a criticality";
        return error("vcpus", message.to_string());
    }
    let takes_requests = match (&tenant.app, tenant.threads.is_empty()) {
        (Some(app), true) => {
            app.check(file, &format!("{key}.app"))?;
            app.takes_requests()
        }
        (None, false) => check_threads(&tenant.threads, &tenant.spec.name, file, key)?,
        (None, true) => {
            return error(
                "",
                "does nothing; give it an `app` or `[[tenant.thread]]` programs".into(),
            );
        }
        (Some(_), false) => {
            return error(
                "app",
                "stands beside `thread`; a tenant has one or the other".into(),
            );
        }
    };
    let measured = tenant
        .load
        .as_ref()
        .is_some_and(|it| it.busy_percent.is_some());
    if measured && tenant.count != 1 {
        let message =
            "is for one tenant, whose requests are measured first, not for a `count` of them";
        return error("load.busy_percent", message.into());
    }
    match (&tenant.load, takes_requests) {
        (Some(load), true) => load.check(file, &format!("{key}.load")),
        (Some(_), false) => {
            let message = match &tenant.app {
                Some(app) => format!("{} takes no requests", app.name()),
                None => "no program of this tenant has a `request` step".to_string(),
            };
            error("load", message)
        }
        (None, true) => {
            let message = "takes requests and gets none; add load = { rate = 100.0 }";
            error("", message.to_string())
        }
        (None, false) if tenant.spec.class == TenantClass::Latency => {
            let message = "is \"latency\" (the default), but the tenant gets no requests whose latency \
                           could be measured; give it class = \"batch\"";
            error("class", message.to_string())
        }
        (None, false) => Ok(()),
    }
}

impl HostSpec {
    /// The CPUs that the host has.
    pub fn topology(&self) -> Topology {
        match &self.topology {
            Some(spec) => spec.topology(),
            None => Topology::flat(self.cpus.unwrap_or(1)),
        }
    }

    /// Checks ranges, and that the host has either `cpus` or `topology`.
    pub(crate) fn check(&self, file: &Path) -> Result<(), ConfigError> {
        let error =
            |key: &str, message: String| Err(ConfigError::at(file, format!("host{key}"), message));
        self.costs.check(file)?;
        match (self.cpus, &self.topology) {
            (Some(cpus), None) if (1..=8192).contains(&cpus) => Ok(()),
            (Some(cpus), None) => error(".cpus", format!("{cpus} is outside 1 to 8192")),
            (None, Some(shape)) => {
                let product = [shape.sockets, shape.cores, shape.smt]
                    .into_iter()
                    .try_fold(1u32, |product, n| product.checked_mul(n));
                if !product.is_some_and(|cpus| (1..=8192).contains(&cpus)) {
                    let message = "sockets x cores x smt must be 1 to 8192 CPUs";
                    return error(".topology", message.to_string());
                }
                match shape.llc {
                    Some(llc) if llc == 0 || shape.cores % llc != 0 => {
                        let message = format!("{llc} does not divide the {} cores", shape.cores);
                        error(".topology.llc", message)
                    }
                    _ => Ok(()),
                }
            }
            (None, None) => error("", "needs `cpus` or `topology`".to_string()),
            (Some(_), Some(_)) => error(".cpus", "stands beside `topology`; give one".to_string()),
        }
    }
}

/// The error about a field of a table, by the field's name and a message.
type Fault<'a> = &'a dyn Fn(&str, String) -> ConfigError;

impl Load {
    /// Checks ranges, and that the keys fit the kind of arrival; `key` is the load's key (`tenant[0].load`).
    fn check(&self, file: &Path, key: &str) -> Result<(), ConfigError> {
        let error = &|field: &str, message: String| {
            ConfigError::at(file, format!("{key}.{field}"), message)
        };
        self.check_rates(error)?;
        self.check_one_rate(error)?;
        self.check_shape(error)?;
        self.check_steps(error)?;
        if !(1..=1024).contains(&self.connections) {
            return Err(error(
                "connections",
                format!("{} is outside 1 to 1024", self.connections),
            ));
        }
        if !(1..=60_000).contains(&self.timeout_ms) {
            return Err(error(
                "timeout_ms",
                format!("{} is outside 1 to 60000", self.timeout_ms),
            ));
        }
        Ok(())
    }

    /// Checks the ranges of rates and percentages.
    fn check_rates(&self, error: Fault<'_>) -> Result<(), ConfigError> {
        let of_max = self.max_rate.zip(self.percent);
        let given = [
            ("rate", self.rate),
            ("rate_per_cpu", self.rate_per_cpu),
            ("max_rate", self.max_rate),
            (
                "percent",
                of_max.map(|(most, percent)| most * percent / 100.0),
            ),
        ];
        if self.arrival != Arrival::Steps && self.max_rate.is_some() != self.percent.is_some() {
            let (field, other) = match self.max_rate {
                Some(_) => ("percent", "max_rate"),
                None => ("max_rate", "percent"),
            };
            return Err(error(field, format!("is missing; `{other}` needs it")));
        }
        for (field, rate) in given {
            let Some(rate) = rate else { continue };
            if !(rate.is_finite() && (1e-3..=1e6).contains(&rate)) {
                return Err(error(
                    field,
                    format!("{rate} is outside 0.001 to 1000000 per second"),
                ));
            }
            if self.arrival == Arrival::Trace {
                return Err(error(field, "a trace brings its own rates".to_string()));
            }
        }
        if let Some(percent) = self.busy_percent {
            if !(percent.is_finite() && (0.1..=100.0).contains(&percent)) {
                return Err(error(
                    "busy_percent",
                    format!("{percent} is outside 0.1 to 100"),
                ));
            }
            if self.rate.or(self.rate_per_cpu).is_none() {
                let message = "needs a `rate` or `rate_per_cpu` to begin with".to_string();
                return Err(error("busy_percent", message));
            }
        }
        Ok(())
    }

    /// Checks that exactly one key gives the rate, or for a trace the file.
    fn check_one_rate(&self, error: Fault<'_>) -> Result<(), ConfigError> {
        let of_max = self.max_rate.zip(self.percent);
        let steps_of = self.max_rate.filter(|_| self.arrival == Arrival::Steps);
        let given = [
            self.rate,
            self.rate_per_cpu,
            of_max.map(|it| it.0).or(steps_of),
        ];
        match (self.arrival, given.iter().flatten().count(), &self.trace) {
            (Arrival::Trace, _, None) => Err(error(
                "trace",
                "names the file of arrival = \"trace\"; it is missing".into(),
            )),
            (Arrival::Trace, ..) => Ok(()),
            (_, _, Some(_)) => Err(error("trace", "is for arrival = \"trace\"".to_string())),
            (_, 0, None) => {
                let message =
                    "is missing; give `rate`, `rate_per_cpu`, or `percent` of a `max_rate`";
                Err(error("rate", message.to_string()))
            }
            (_, 2.., _) => {
                let (field, other) = match (self.rate, self.rate_per_cpu) {
                    (Some(_), Some(_)) => ("rate", "rate_per_cpu"),
                    (Some(_), None) => ("rate", "percent"),
                    (None, _) => ("rate_per_cpu", "percent"),
                };
                Err(error(field, format!("stands beside `{other}`; give one")))
            }
            _ => Ok(()),
        }
    }

    /// Checks the keys of bursts and of days.
    fn check_shape(&self, error: Fault<'_>) -> Result<(), ConfigError> {
        for (field, value, high, arrival, of) in [
            ("on_ms", self.on_ms, 1e7, Arrival::Bursts, "bursts"),
            ("off_ms", self.off_ms, 1e7, Arrival::Bursts, "bursts"),
            ("period_s", self.period_s, 1e6, Arrival::Diurnal, "diurnal"),
            ("swing", self.swing, 1.0, Arrival::Diurnal, "diurnal"),
        ] {
            // A burst and a swing must have a length; a pause and the height of a swing may be zero.
            let low = match field {
                "on_ms" | "period_s" => 1e-3,
                _ => 0.0,
            };
            match value {
                Some(value) if self.arrival == arrival && !(low..=high).contains(&value) => {
                    return Err(error(field, format!("{value} is outside {low} to {high}")));
                }
                Some(_) if self.arrival != arrival => {
                    return Err(error(field, format!("is for arrival = \"{of}\"")));
                }
                None if self.arrival == arrival => {
                    return Err(error(
                        field,
                        format!("is missing; arrival = \"{of}\" needs it"),
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks the steps of a rate.
    fn check_steps(&self, error: Fault<'_>) -> Result<(), ConfigError> {
        match (self.arrival, &self.steps) {
            (Arrival::Steps, None) => {
                let message = "is missing; arrival = \"steps\" needs it";
                Err(error("steps", message.to_string()))
            }
            (Arrival::Steps, Some(steps)) => {
                let rises = steps.is_sorted_by(|a, b| a.0 < b.0);
                let sound = |(time, percent): &(f64, f64)| {
                    (0.0..=1e6).contains(time) && (0.0..=1e3).contains(percent)
                };
                let begins = steps.first().is_some_and(|it| it.0 == 0.0);
                let some = steps.iter().any(|it| it.1 > 0.0);
                if steps.len() < 2 || !begins || !rises || !some || !steps.iter().all(sound) {
                    let message = "must be two or more [seconds, percent], from 0 s on in the order of time, not all 0 %";
                    return Err(error("steps", message.to_string()));
                }
                Ok(())
            }
            (_, Some(_)) => Err(error("steps", "is for arrival = \"steps\"".to_string())),
            (_, None) => Ok(()),
        }
    }
}

/// Arrivals read from a file, one entry in each line, with `#` before a comment; times are in seconds
/// from the start, ascending. One number in a line is the intended time of one request; two numbers
/// are a time and the rate (requests per second, Poisson) that holds from then on. A trace that is
/// shorter than the run starts over at its last line's time.
#[derive(Debug, Clone, PartialEq)]
pub enum Trace {
    /// Intended times, in ns from the start.
    Arrivals(Vec<u64>),
    /// Rates: (the time from which the rate holds, in ns from the start; requests per second).
    Rates(Vec<(u64, f64)>),
}

impl Trace {
    /// Reads and checks a trace; `file` is for messages.
    ///
    /// # Errors
    /// A line has other than one or two numbers from 0 to 1 000 000, a time is before the previous one,
    /// only some lines have a rate, no time is above 0, or every rate is 0.
    pub fn parse(file: &Path, text: &str) -> Result<Trace, ConfigError> {
        let mut rows: Vec<(u64, Option<f64>)> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let error = |message: &str| ConfigError {
                file: file.into(),
                line: Some(index + 1),
                key: String::new(),
                message: message.to_string(),
            };
            let content = line.split('#').next().unwrap_or_default();
            let mut numbers = Vec::new();
            for word in content
                .split([' ', '\t', ','])
                .filter(|word| !word.is_empty())
            {
                match word.trim().parse::<f64>() {
                    Ok(number) if number.is_finite() && (0.0..=1e6).contains(&number) => {
                        numbers.push(number);
                    }
                    _ => return Err(error("not a number from 0 to 1000000")),
                }
            }
            let row = match numbers[..] {
                [] => continue,
                [time] => ((time * 1e9) as u64, None),
                [time, rate] => ((time * 1e9) as u64, Some(rate)),
                _ => return Err(error("more than a time and a rate")),
            };
            if let Some(last) = rows.last() {
                if row.0 < last.0 {
                    return Err(error("earlier than the line before"));
                }
                if row.1.is_some() != last.1.is_some() {
                    return Err(error("a trace has a rate on every line or on none"));
                }
            }
            rows.push(row);
        }
        let fault = |message: &str| ConfigError::at(file, "", message);
        let Some(&(last, rate)) = rows.last() else {
            return Err(fault("holds no arrivals"));
        };
        if last == 0 {
            return Err(fault(
                "ends at second 0; its last line says when it starts over",
            ));
        }
        Ok(match rate {
            None => Trace::Arrivals(rows.into_iter().map(|(time, _)| time).collect()),
            Some(_) => {
                let rates: Vec<_> = rows
                    .into_iter()
                    .map(|(time, rate)| (time, rate.unwrap_or(0.0)))
                    .collect();
                if rates.iter().all(|&(_, rate)| rate == 0.0) {
                    return Err(fault("every rate is 0"));
                }
                Trace::Rates(rates)
            }
        })
    }
}

#[cfg(test)]
#[path = "scenario_tests.rs"]
mod tests;
