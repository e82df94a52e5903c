//! The sides of a comparison, by the names that `--policy` takes.

use crate::result::Substrate;
use quell_model::config::{
    AgentFile, AgentSettings, AsymmetrySettings, Backend, CriticalitySettings, GuardMode,
    Mechanism, TenantSpec,
};
use std::fmt;
use std::str::FromStr;

/// A scheduler to measure, and Quell's agent where one belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The kernel's own scheduler, with nothing of Quell running.
    Default,
    /// The asymmetry mechanism alone, as the DASEC paper has it: its feedback, no causal age.
    Dasec,
    /// [`Side::Dasec`] without one of its parts, for decompositions such as the paper's Fig. 13.
    DasecWithout(Part),
    /// As [`Side::Dasec`], guarded: the agent measures what the feedback does, and keeps it only where it
    /// helps.
    Guarded,
    /// As [`Side::Quell`], but through stock interfaces on every kernel.
    Stock,
    /// The tenants' weights alone, by `cpu.weight` and nice values, as an administrator would set them.
    Weights,
    /// The criticality mechanism alone, as the Akita paper has it; what promises leave is shared by weight.
    Akita,
    /// The pools mechanism alone, as the UFO paper has it, on the kernel's own scheduler.
    Ufo,
    /// Every mechanism that is on by default, composed: asymmetry, and criticality for tenants that have a
    /// criticality.
    Quell,
    /// Some of Quell's mechanisms, composed.
    Composed(Composition),
    /// A sched_ext scheduler that a command loads and runs until SIGINT, without an agent beside it.
    Scheduler(ExternalScheduler),
    /// A scheduler that only the simulator has.
    Simulated(Simulated),
}

/// Some of Quell's mechanisms, each once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Composition {
    name: String,
    mechanisms: Vec<Mechanism>,
}

impl Composition {
    /// Reads names as in `asymmetry+share`, in any order; `None` where a name is no mechanism, or stands
    /// there twice.
    fn of(name: &str) -> Option<Composition> {
        let mechanisms: Option<Vec<Mechanism>> = name.split('+').map(Mechanism::named).collect();
        let mechanisms = mechanisms?;
        let again = |(at, it)| mechanisms[..at].contains(it);
        (!mechanisms.iter().enumerate().any(again)).then(|| Composition {
            name: name.into(),
            mechanisms,
        })
    }
}

/// Schedulers of the simulator ([`quell_sim`]), and what divides cores on top of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Simulated {
    /// The kernel's as of 6.1.
    Cfs,
    /// The kernel's as of 6.12.
    Eevdf612,
    /// The kernel's as of 7.2.
    Eevdf,
    /// Xen's until 4.11.
    Credit,
    /// Xen's since then.
    Credit2,
    /// Borrowed virtual time; tenants that answer requests warp.
    Bvt,
    /// One queue for all CPUs, in turns of 3 ms.
    Fifo,
    /// The host's own, every tenant on cores of its own for ever.
    Isolation,
    /// The same, and guests have as many virtual CPUs online as they have CPUs (UFO's host-aware isolation).
    HostAware,
    /// As isolation, with PARTIES moving cores.
    Parties,
    /// The same, with DynIso moving cores.
    DynIso,
    /// The oldest request first, everywhere at once and for nothing: what no scheduler can do better in that
    /// order.
    Ideal,
}

impl Simulated {
    /// All of them.
    pub const ALL: [Simulated; 12] = [
        Simulated::Cfs,
        Simulated::Eevdf612,
        Simulated::Eevdf,
        Simulated::Credit,
        Simulated::Credit2,
        Simulated::Bvt,
        Simulated::Fifo,
        Simulated::Isolation,
        Simulated::HostAware,
        Simulated::Parties,
        Simulated::DynIso,
        Simulated::Ideal,
    ];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Simulated::Cfs => "cfs",
            Simulated::Eevdf612 => "eevdf-6.12",
            Simulated::Eevdf => "eevdf",
            Simulated::Credit => "credit",
            Simulated::Credit2 => "credit2",
            Simulated::Bvt => "bvt",
            Simulated::Fifo => "fifo",
            Simulated::Isolation => "isolation",
            Simulated::HostAware => "host-aware",
            Simulated::Parties => "parties",
            Simulated::DynIso => "dyniso",
            Simulated::Ideal => "ideal",
        }
    }

    /// Whether it acts by how far tenants are from their objectives.
    pub const fn needs_objectives(self) -> bool {
        matches!(self, Simulated::Parties | Simulated::DynIso)
    }

    /// Whether it gives tenants cores of their own.
    pub const fn divides_cores(self) -> bool {
        matches!(self, Simulated::Isolation | Simulated::HostAware) || self.needs_objectives()
    }
}

/// A part of the asymmetry mechanism, by the paper's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Time-slice allocator.
    Tsa,
    /// Rescheduling-latency adjuster.
    Rla,
    /// Resource-conflict resolver; the scheduler has none, so this matters on stock interfaces only.
    Rcr,
}

/// A scheduler by name and command line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExternalScheduler {
    /// What the side is called.
    pub name: String,
    /// Program and arguments; the program `quell` is this one.
    pub command: Vec<String>,
}

impl ExternalScheduler {
    /// The options that the command gives Quell's own scheduler; that scheduler runs on the simulator as
    /// well.
    ///
    /// # Errors
    /// [`SideError::BadOptions`] where the scheduler has no such options; [`SideError::NotSimulated`] where
    /// the command runs another scheduler.
    pub fn options(&self) -> Result<quell_sched::Options, SideError> {
        match quell_sched::Options::of_command(&self.command) {
            Some(Ok(options)) => Ok(options),
            Some(Err(error)) => {
                let message = error.to_string();
                let first = message.lines().next().unwrap_or_default();
                let first = first.trim_start_matches("error: ").to_string();
                Err(SideError::BadOptions(self.name.clone(), first))
            }
            None => Err(SideError::NotSimulated(self.name.clone())),
        }
    }
}

/// A single layer of all threads, which may preempt others: what scx_layered needs to be told to schedule
/// tenants that it does not know.
const LAYERED: &str =
    r#"[{"name":"all","matches":[[]],"kind":{"Open":{"preempt":true,"slice_us":20000}}}]"#;

/// Published sched_ext schedulers by name, and the arguments that they are measured with: their own defaults,
/// except where those are not for servers. On a host they are taken from `PATH`; the kernel lab has its own.
const PEERS: [(&str, &[&str]); 5] = [
    ("scx_bpfland", &[]),
    ("scx_rusty", &[]),
    ("scx_flash", &[]),
    ("scx_lavd", &["--performance"]),
    ("scx_layered", &[LAYERED]),
];

/// Why a side's name cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SideError {
    /// The name is not that of a side.
    #[error("`{0}` is no side{suggestion}; there are: {known}",
        suggestion = suggest(.0), known = known())]
    Unknown(String),
    /// A scheduler of the user's lacks a name or a command.
    #[error("`{0}`: a scheduler of your own is `NAME=COMMAND ARGUMENTS`")]
    BadCommand(String),
    /// Quell's own scheduler has no such options.
    #[error("`{0}`: {1}")]
    BadOptions(String, String),
    /// The side runs on the simulator only.
    #[error("side `{0}` is the simulator's (`--on sim`)")]
    SimulatorOnly(String),
    /// The side does not run on the simulator.
    #[error("side `{0}` does not run on the simulator yet; there are: {simulated}", simulated = simulated())]
    NotSimulated(String),
    /// The list names no side.
    #[error(
        "name at least one side, or more separated by commas, the baseline first (`default,quell`)"
    )]
    None,
}

impl Side {
    /// The fixed names of sides, except those that only the simulator has.
    pub const NAMES: [&'static str; 17] = [
        "default",
        "dasec",
        "dasec-no-tsa",
        "dasec-no-rla",
        "dasec-no-rcr",
        "dasec-guarded",
        "stock",
        "weights",
        "akita",
        "ufo",
        "quell",
        "sched",
        PEERS[0].0,
        PEERS[1].0,
        PEERS[2].0,
        PEERS[3].0,
        PEERS[4].0,
    ];

    /// The side's name.
    pub fn as_str(&self) -> &str {
        match self {
            Side::Default => "default",
            Side::Dasec => "dasec",
            Side::DasecWithout(Part::Tsa) => "dasec-no-tsa",
            Side::DasecWithout(Part::Rla) => "dasec-no-rla",
            Side::DasecWithout(Part::Rcr) => "dasec-no-rcr",
            Side::Guarded => "dasec-guarded",
            Side::Stock => "stock",
            Side::Weights => "weights",
            Side::Akita => "akita",
            Side::Ufo => "ufo",
            Side::Quell => "quell",
            Side::Composed(composition) => &composition.name,
            Side::Scheduler(scheduler) => &scheduler.name,
            Side::Simulated(simulated) => simulated.as_str(),
        }
    }

    /// Checks that all sides can be measured on a substrate.
    ///
    /// # Errors
    /// [`SideError::NotSimulated`], [`SideError::SimulatorOnly`] or [`SideError::BadOptions`], for the first
    /// side that cannot.
    pub fn check(sides: &[Side], on: Substrate) -> Result<(), SideError> {
        for side in sides {
            match (side, on) {
                (Side::Simulated(_) | Side::Default, Substrate::Sim) => {}
                (Side::Scheduler(scheduler), Substrate::Sim) => {
                    scheduler.options()?;
                }
                // The simulator's schedulers have no settings such as stock interfaces change.
                (Side::Stock | Side::Weights, Substrate::Sim) => {
                    return Err(SideError::NotSimulated(side.to_string()));
                }
                (side, Substrate::Sim) if side.agent().is_some() => {}
                (Side::Simulated(_), Substrate::Vm | Substrate::Host) => {
                    return Err(SideError::SimulatorOnly(side.to_string()));
                }
                (_, Substrate::Sim) => return Err(SideError::NotSimulated(side.to_string())),
                (_, Substrate::Vm | Substrate::Host) => {}
            }
        }
        Ok(())
    }

    /// Quell's own scheduler alone.
    pub fn sched() -> Side {
        Side::Scheduler(ExternalScheduler {
            name: "sched".into(),
            command: vec!["quell".into(), "sched".into()],
        })
    }

    /// The published scheduler of this name.
    fn peer(name: &str) -> Option<Side> {
        let (name, arguments) = PEERS.iter().find(|(known, _)| *known == name)?;
        let command = std::iter::once(name).chain(*arguments);
        Some(Side::Scheduler(ExternalScheduler {
            name: name.to_string(),
            command: command.map(|word| word.to_string()).collect(),
        }))
    }

    /// Whether the side is a published scheduler, named without a command.
    pub fn is_peer(&self) -> bool {
        Side::peer(self.as_str()).is_some_and(|peer| peer == *self)
    }

    /// The text that `--policy` takes for the side: its name, and the command if the scheduler is the user's.
    pub fn argument(&self) -> String {
        match self {
            Side::Scheduler(scheduler) if *self != Side::sched() && !self.is_peer() => {
                format!("{}={}", scheduler.name, scheduler.command.join(" "))
            }
            _ => self.as_str().to_string(),
        }
    }

    /// The agent's configuration on this side, without tenants; `None` where no agent runs.
    pub fn agent(&self) -> Option<AgentFile> {
        let mut agent = AgentSettings::default();
        let mut asymmetry = AsymmetrySettings::default();
        // Mechanisms that are reproduced or compared act all the time, so without the guard.
        if !matches!(self, Side::Quell | Side::Stock | Side::Guarded) {
            agent.guard = GuardMode::Off;
        }
        match self {
            Side::Default | Side::Scheduler(_) | Side::Simulated(_) => return None,
            Side::Quell => {}
            Side::Guarded => {
                return Some(AgentFile {
                    agent,
                    ..Side::Dasec.agent()?
                });
            }
            Side::Composed(it) => agent.policy = it.mechanisms.clone(),
            Side::Akita => agent.policy = vec![Mechanism::Criticality],
            Side::Ufo => {
                agent.policy = vec![Mechanism::Pools];
                agent.backend = Backend::Stock;
            }
            Side::Stock | Side::Weights => agent.backend = Backend::Stock,
            Side::Dasec | Side::DasecWithout(_) => {
                let has = |part| *self != Side::DasecWithout(part);
                asymmetry.causal = false;
                asymmetry.slices = has(Part::Tsa);
                asymmetry.latencies = has(Part::Rla);
                asymmetry.conflicts = has(Part::Rcr);
            }
        }
        Some(AgentFile {
            agent,
            asymmetry,
            criticality: CriticalitySettings::default(),
            tenants: Vec::new(),
        })
    }

    /// The agent's configuration on this side with the mechanisms that these tenants need, and these settings
    /// of criticality.
    pub fn agent_for<'a>(
        &self,
        tenants: impl IntoIterator<Item = &'a TenantSpec>,
        criticality: CriticalitySettings,
    ) -> Option<AgentFile> {
        let mut file = AgentFile {
            criticality,
            ..self.agent()?
        };
        let critical = tenants.into_iter().any(|it| it.criticality.is_some());
        let composes = *self == Side::Quell;
        if critical && composes {
            file.agent.policy.push(Mechanism::Criticality);
        }
        Some(file)
    }

    /// Reads a comma-separated list of one or more sides. The first side is the baseline of the others; a
    /// side may stand there twice (A/A).
    ///
    /// # Errors
    /// [`SideError::Unknown`] or [`SideError::BadCommand`] for the first name that is no side,
    /// [`SideError::None`] for an empty list.
    pub fn parse_list(text: &str) -> Result<Vec<Side>, SideError> {
        let names = text
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        let sides: Vec<Side> = names.map(Side::from_str).collect::<Result<_, _>>()?;
        if sides.is_empty() {
            return Err(SideError::None);
        }
        Ok(sides)
    }

    /// Whether the side gives tenants CPUs of their own.
    pub fn divides_cores(&self) -> bool {
        match self {
            Side::Simulated(it) => it.divides_cores(),
            side => side.has_pools(),
        }
    }

    /// Whether the side gives tenants CPUs by the pools mechanism.
    pub fn has_pools(&self) -> bool {
        self.agent()
            .is_some_and(|it| it.agent.has(Mechanism::Pools))
    }

    /// One label per side: its name, with `-2`, `-3`, ... where the side stands there again.
    pub fn labels(sides: &[Side]) -> Vec<String> {
        let label = |(index, side): (usize, &Side)| {
            let before = sides[..index].iter().filter(|other| *other == side).count();
            if before == 0 {
                side.to_string()
            } else {
                format!("{side}-{}", before + 1)
            }
        };
        sides.iter().enumerate().map(label).collect()
    }
}

impl FromStr for Side {
    type Err = SideError;

    fn from_str(name: &str) -> Result<Side, SideError> {
        if let Some((name, command)) = name.split_once('=') {
            let command: Vec<String> = command.split_whitespace().map(String::from).collect();
            if name.trim().is_empty() || command.is_empty() {
                return Err(SideError::BadCommand(name.to_string()));
            }
            let name = name.trim().to_string();
            return Ok(Side::Scheduler(ExternalScheduler { name, command }));
        }
        match name {
            "default" => Ok(Side::Default),
            "dasec" => Ok(Side::Dasec),
            "dasec-no-tsa" => Ok(Side::DasecWithout(Part::Tsa)),
            "dasec-no-rla" => Ok(Side::DasecWithout(Part::Rla)),
            "dasec-no-rcr" => Ok(Side::DasecWithout(Part::Rcr)),
            "dasec-guarded" => Ok(Side::Guarded),
            "stock" => Ok(Side::Stock),
            "weights" => Ok(Side::Weights),
            "akita" => Ok(Side::Akita),
            "ufo" => Ok(Side::Ufo),
            "quell" => Ok(Side::Quell),
            "sched" => Ok(Side::sched()),
            _ => {
                let mut simulated = Simulated::ALL.into_iter();
                let simulated = simulated.find(|side| side.as_str() == name);
                simulated
                    .map(Side::Simulated)
                    .or_else(|| Side::peer(name))
                    .or_else(|| Composition::of(name).map(Side::Composed))
                    .ok_or_else(|| SideError::Unknown(name.to_string()))
            }
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Every fixed name of a side.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let simulated = Simulated::ALL.iter().map(|side| side.as_str());
    Side::NAMES.into_iter().chain(simulated)
}

fn known() -> String {
    let names: Vec<&str> = names().collect();
    format!(
        "{}, {} or several of these as `asymmetry+share`, and NAME=COMMAND for a sched_ext scheduler that COMMAND loads",
        names.join(", "),
        Mechanism::ALL.map(Mechanism::as_str).join(", ")
    )
}

fn simulated() -> String {
    let names = Simulated::ALL.map(Simulated::as_str);
    format!(
        "default, sched, NAME=quell sched OPTIONS, quell, mechanisms as `asymmetry+share`, akita, ufo, dasec and both without parts, {}",
        names.join(", ")
    )
}

fn suggest(name: &str) -> String {
    let near = names()
        .map(|side| (strsim::jaro_winkler(name, side), side))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    near.map(|(_, side)| format!(", did you mean `{side}`?"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_and_label_repeats() {
        let sides = Side::parse_list("default, dasec,default").unwrap();
        assert_eq!(sides, [Side::Default, Side::Dasec, Side::Default]);
        assert_eq!(Side::labels(&sides), ["default", "dasec", "default-2"]);
    }

    #[test]
    fn schedulers_are_names_with_command_lines() {
        let sides = Side::parse_list("default,sched,mine=/bin/scx --slice 5").unwrap();
        assert_eq!(Side::labels(&sides), ["default", "sched", "mine"]);
        let Side::Scheduler(mine) = &sides[2] else {
            panic!("{:?}", sides[2]);
        };
        assert_eq!(mine.command, ["/bin/scx", "--slice", "5"]);
        let arguments: Vec<String> = sides.iter().map(Side::argument).collect();
        assert_eq!(arguments, ["default", "sched", "mine=/bin/scx --slice 5"]);
    }

    #[test]
    fn mechanisms_are_composed_by_their_names() {
        let sides = Side::parse_list("default,share,pools+asymmetry,ufo").unwrap();
        assert_eq!(
            Side::labels(&sides),
            ["default", "share", "pools+asymmetry", "ufo"]
        );
        let policies = sides.iter().filter_map(Side::agent);
        let policies: Vec<_> = policies.map(|it| it.agent.policy).collect();
        assert_eq!(
            policies,
            [
                vec![Mechanism::Share],
                vec![Mechanism::Pools, Mechanism::Asymmetry],
                vec![Mechanism::Pools]
            ]
        );
        let divides: Vec<bool> = sides.iter().map(Side::divides_cores).collect();
        assert_eq!(divides, [false, false, true, true]);
    }

    #[test]
    fn published_schedulers_have_their_arguments() {
        let sides =
            Side::parse_list("default,scx_lavd,scx_layered,scx_rusty=/opt/scx_rusty").unwrap();
        let commands: Vec<_> = sides
            .iter()
            .filter_map(|side| match side {
                Side::Scheduler(scheduler) => Some(scheduler.command.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(commands[0], ["scx_lavd", "--performance"]);
        // The scheduler's configuration is one argument, and JSON.
        assert_eq!(commands[1].len(), 2);
        let layers: serde_json::Value = serde_json::from_str(&commands[1][1]).unwrap();
        assert_eq!(layers[0]["kind"]["Open"]["slice_us"], 20_000);
        let peers: Vec<bool> = sides.iter().map(Side::is_peer).collect();
        assert_eq!(peers, [false, true, true, false]);
        // The arguments that a guest is given stand for the sides again.
        let arguments: Vec<String> = sides.iter().map(Side::argument).collect();
        assert_eq!(
            arguments[1..],
            ["scx_lavd", "scx_layered", "scx_rusty=/opt/scx_rusty"]
        );
        assert_eq!(Side::parse_list(&arguments.join(",")).unwrap(), sides);
    }

    #[test]
    fn every_name_is_a_side_and_says_what_it_is_called() {
        for name in names() {
            assert_eq!(name.parse::<Side>().unwrap().as_str(), name);
        }
        let part = |name: &str| name.parse::<Side>().unwrap().agent().unwrap().asymmetry;
        assert!(part("quell").causal && !part("dasec").causal);
        let quell = part("quell");
        assert!(!quell.slices && !quell.latencies && !quell.conflicts);
        assert!(!part("dasec-no-tsa").slices && part("dasec-no-tsa").latencies);
        assert!(!part("dasec-no-rla").latencies && part("dasec-no-rla").conflicts);
        assert!(!part("dasec-no-rcr").conflicts && part("dasec-no-rcr").slices);
    }

    #[test]
    fn sides_belong_to_substrates() {
        let check = |text: &str, on| {
            let checked = Side::check(&Side::parse_list(text).unwrap(), on);
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(check("fifo,ideal", Substrate::Sim), Ok(()));
        assert_eq!(check("default,sched", Substrate::Vm), Ok(()));
        for side in ["fifo", "parties"] {
            let error = check(&format!("default,{side}"), Substrate::Host).unwrap_err();
            let expected = format!("`{side}` is the simulator's");
            assert!(error.contains(&expected), "{error}");
        }
        assert_eq!(check("fifo,sched", Substrate::Sim), Ok(()));
        assert_eq!(
            check("sched,plain=quell sched --no-causal", Substrate::Sim),
            Ok(())
        );
        let error = check("sched,plain=quell sched --no-casual", Substrate::Sim).unwrap_err();
        assert!(
            error.contains("`plain`: unexpected argument '--no-casual'"),
            "{error}"
        );
        let error = check("sched,scx_rusty", Substrate::Sim).unwrap_err();
        assert!(
            error.contains("`scx_rusty` does not run on the simulator"),
            "{error}"
        );
        let error = check("fifo,stock", Substrate::Sim).unwrap_err();
        assert!(
            error.contains(
                "there are: default, sched, NAME=quell sched OPTIONS, quell, mechanisms as"
            ),
            "{error}"
        );
    }

    #[test]
    fn bad_names_say_what_would_be_right() {
        let message = |text: &str| Side::parse_list(text).unwrap_err().to_string();
        assert_eq!(
            message("default,dasc"),
            format!(
                "`dasc` is no side, did you mean `dasec`?; there are: {}",
                known()
            )
        );
        assert!(message("default,=x").contains("NAME=COMMAND"));
        assert!(message("default,a= ").contains("NAME=COMMAND"));
        assert!(message("default,nonsense").starts_with("`nonsense` is no side; there are: "));
        assert!(message("default,scx_bpflnd").contains("did you mean `scx_bpfland`?"));
        assert!(message("default,share+nothing").starts_with("`share+nothing` is no side"));
        assert!(message("default,share+share").starts_with("`share+share` is no side"));
        assert!(message(" ,").contains("at least one"));
    }
}
