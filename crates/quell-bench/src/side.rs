//! The sides of a comparison, by the names that `--policy` takes.
//!
//! [`Side`] has the sides of the product. Another crate adds schedulers of the simulator as
//! [`SimulatedSide`]s: that crate names them by [`Sides`] of its own, and the simulator's benchmark asks a
//! side itself for its class and its controller.

mod added;

pub use added::{AddedSide, SimulatedSide};

use crate::result::Substrate;
use quell_model::config::{
    AgentFile, AgentSettings, AsymmetrySettings, Backend, CriticalitySettings, GuardMode,
    Mechanism, TenantSpec,
};
use std::fmt;
use std::str::FromStr;

/// A scheduler to measure, and Quell's agent where one belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Side {
    /// The kernel's own scheduler, with nothing of Quell running.
    Default,
    /// The asymmetry mechanism alone, as the DASEC paper has it: its feedback, no causal age.
    Dasec,
    /// [`Side::Dasec`] without one of its parts, for decompositions such as the paper's Fig. 13.
    DasecWithout(Part),
    /// [`Side::Dasec`] with the guard: the agent measures what the feedback does, and keeps the feedback only
    /// where it helps.
    Guarded,
    /// [`Side::Quell`], but through stock interfaces on every kernel.
    Stock,
    /// The tenants' weights alone, by `cpu.weight` and nice values, as an administrator would set them.
    Weights,
    /// The criticality mechanism alone, as the Akita paper has it; tenants share by weight the CPU time that
    /// promises leave.
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
    /// A side that another program's catalogue adds ([`Sides::with`]).
    Added(AddedSide),
}

/// Some of Quell's mechanisms, each at most once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Composition {
    name: String,
    mechanisms: Vec<Mechanism>,
}

impl Composition {
    /// Reads the names of mechanisms as in `asymmetry+share`, in any order; `None` if one of them is no
    /// mechanism or is named twice.
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

/// The product's schedulers that only the simulator ([`quell_sim`]) has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Simulated {
    /// CFS as of Linux 6.1.
    Cfs,
    /// EEVDF as of Linux 6.12.
    Eevdf612,
    /// EEVDF as of Linux 7.2.
    Eevdf,
    /// One queue of threads for all CPUs; a thread's turn is 3 ms at most.
    Fifo,
}

impl Simulated {
    /// All of these schedulers.
    pub const ALL: [Simulated; 4] = [
        Simulated::Cfs,
        Simulated::Eevdf612,
        Simulated::Eevdf,
        Simulated::Fifo,
    ];

    /// The scheduler's name as a side.
    pub const fn as_str(self) -> &'static str {
        match self {
            Simulated::Cfs => "cfs",
            Simulated::Eevdf612 => "eevdf-6.12",
            Simulated::Eevdf => "eevdf",
            Simulated::Fifo => "fifo",
        }
    }
}

/// A part of the asymmetry mechanism, by the paper's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The time-slice allocator.
    Tsa,
    /// The rescheduling-latency adjuster.
    Rla,
    /// The resource-conflict resolver; Quell's scheduler has none, so this part matters on stock interfaces
    /// only.
    Rcr,
}

/// A scheduler by name and command line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExternalScheduler {
    /// The name of the side.
    pub name: String,
    /// The program and its arguments; the program `quell` is this program.
    pub command: Vec<String>,
}

impl ExternalScheduler {
    /// The options that the command gives Quell's own scheduler; that scheduler runs on the simulator as
    /// well.
    ///
    /// # Errors
    /// The call fails if Quell's scheduler does not take the command's arguments
    /// ([`SideError::BadOptions`]), and if the command runs another scheduler
    /// ([`SideError::NotSimulated`]).
    pub fn options(&self) -> Result<quell_sched::Options, SideError> {
        match quell_sched::Options::of_command(&self.command) {
            Some(Ok(options)) => Ok(options),
            Some(Err(error)) => {
                let message = error.to_string();
                let first = message.lines().next().unwrap_or_default();
                let first = first.trim_start_matches("error: ").to_string();
                Err(SideError::BadOptions(self.name.clone(), first))
            }
            None => Err(SideError::NotSimulated {
                side: self.name.clone(),
                sides: Sides::PRODUCT,
            }),
        }
    }
}

/// The configuration that lets scx_layered schedule tenants that it does not know: a single layer of all
/// threads, which may preempt others, with slices of 20 ms.
const LAYERED: &str =
    r#"[{"name":"all","matches":[[]],"kind":{"Open":{"preempt":true,"slice_us":20000}}}]"#;

/// Published sched_ext schedulers by name, and the arguments that they are measured with: their own defaults,
/// except where the defaults are not for servers. A host takes the programs from `PATH`; the kernel lab has
/// its own.
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
    /// The name is no side's.
    #[error("`{name}` is no side{suggestion}; there are: {known}",
        suggestion = .sides.suggestion(.name), known = .sides.known())]
    Unknown {
        /// The name that was given.
        name: String,
        /// The sides that the program knows.
        sides: Sides,
    },
    /// The side is one that papers compare with, and only quell-studies measures it.
    #[error("`{0}` is a side of quell-studies: `quell-studies bench` takes it")]
    OfStudies(String),
    /// A scheduler of the user's has no name or no command.
    #[error("`{0}`: a scheduler of your own is `NAME=COMMAND ARGUMENTS`")]
    BadCommand(String),
    /// Quell's own scheduler does not take the arguments of this side's command: the side and the reason.
    #[error("`{0}`: {1}")]
    BadOptions(String, String),
    /// The side runs on the simulator only.
    #[error("side `{0}` is the simulator's (`--on sim`)")]
    SimulatorOnly(String),
    /// The side does not run on the simulator.
    #[error("side `{side}` does not run on the simulator yet; there are: {simulated}",
        simulated = .sides.simulated())]
    NotSimulated {
        /// The side.
        side: String,
        /// The sides that the program knows.
        sides: Sides,
    },
    /// The list names no side.
    #[error(
        "name at least one side, or more separated by commas, the baseline first (`default,quell`)"
    )]
    None,
}

impl Side {
    /// The fixed names of the product's sides, except of the sides that only the simulator has.
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
            Side::Added(added) => added.name(),
        }
    }

    /// Checks that every one of these sides of the product can be measured on a substrate.
    ///
    /// # Errors
    /// As [`Sides::check`].
    pub fn check(sides: &[Side], on: Substrate) -> Result<(), SideError> {
        Sides::PRODUCT.check(sides, on)
    }

    /// The side of Quell's own scheduler alone, with its default options and without an agent.
    pub fn sched() -> Side {
        Side::Scheduler(ExternalScheduler {
            name: "sched".into(),
            command: vec!["quell".into(), "sched".into()],
        })
    }

    /// The side of the published scheduler of this name, if there is one.
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
        // A mechanism that is reproduced from a paper or compared acts all the time: the guard is off.
        if !matches!(self, Side::Quell | Side::Stock | Side::Guarded) {
            agent.guard = GuardMode::Off;
        }
        match self {
            Side::Default | Side::Scheduler(_) | Side::Simulated(_) | Side::Added(_) => {
                return None;
            }
            Side::Quell => {}
            Side::Guarded => {
                return Some(AgentFile {
                    agent,
                    ..Side::Dasec.agent()?
                });
            }
            Side::Composed(it) => agent.mechanisms = it.mechanisms.clone(),
            Side::Akita => agent.mechanisms = vec![Mechanism::Criticality],
            Side::Ufo => {
                agent.mechanisms = vec![Mechanism::Pools];
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
            rules: Vec::new(),
        })
    }

    /// The agent's configuration on this side with the mechanisms that these tenants need, without tenants,
    /// and with these settings of criticality; `None` where no agent runs.
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
            file.agent.mechanisms.push(Mechanism::Criticality);
        }
        Some(file)
    }

    /// Reads a comma-separated list of one or more sides. The first side is the baseline of the others; a
    /// side may stand there twice (A/A).
    ///
    /// # Errors
    /// As [`Sides::parse_list`].
    pub fn parse_list(text: &str) -> Result<Vec<Side>, SideError> {
        Sides::PRODUCT.parse_list(text)
    }

    /// Whether the side gives tenants CPUs of their own.
    pub fn divides_cores(&self) -> bool {
        match self {
            Side::Added(it) => it.divides_cores(),
            side => side.has_pools(),
        }
    }

    /// Whether the side acts by how far tenants are from their objectives.
    pub fn needs_objectives(&self) -> bool {
        matches!(self, Side::Added(it) if it.needs_objectives())
    }

    /// Whether the side gives tenants CPUs of their own by the pools mechanism.
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

/// The sides that a program can name: the product's sides, and the sides that the program adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sides {
    /// The sides that the program adds.
    added: &'static [AddedSide],
}

/// The names of the sides that only quell-studies can measure.
const OF_STUDIES: [&str; 8] = [
    "credit",
    "credit2",
    "bvt",
    "isolation",
    "host-aware",
    "parties",
    "dyniso",
    "ideal",
];

impl Sides {
    /// The product's sides.
    pub const PRODUCT: Sides = Sides { added: &[] };

    /// The product's sides and these.
    pub const fn with(added: &'static [AddedSide]) -> Sides {
        Sides { added }
    }

    /// The side of that name, or the scheduler of the user's that `NAME=COMMAND` is.
    ///
    /// # Errors
    /// The call fails if these sides have none of that name ([`SideError::Unknown`]), or quell-studies alone
    /// has it ([`SideError::OfStudies`]), and if the name or the command of `NAME=COMMAND` is empty
    /// ([`SideError::BadCommand`]).
    pub fn named(self, name: &str) -> Result<Side, SideError> {
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
                let added = || self.added.iter().find(|side| side.name() == name);
                simulated
                    .map(Side::Simulated)
                    .or_else(|| added().copied().map(Side::Added))
                    .or_else(|| Side::peer(name))
                    .or_else(|| Composition::of(name).map(Side::Composed))
                    .ok_or_else(|| self.unknown(name))
            }
        }
    }

    fn unknown(self, name: &str) -> SideError {
        let name = name.to_string();
        match OF_STUDIES.contains(&name.as_str()) {
            true => SideError::OfStudies(name),
            false => SideError::Unknown { name, sides: self },
        }
    }

    /// Reads a comma-separated list of one or more sides. The first side is the baseline of the others; a
    /// side may stand there twice (A/A).
    ///
    /// # Errors
    /// The call fails if the list names no side ([`SideError::None`]); else as [`Sides::named`] for the first
    /// name that is no side's.
    pub fn parse_list(self, text: &str) -> Result<Vec<Side>, SideError> {
        let names = text
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        let sides: Vec<Side> = names
            .map(|name| self.named(name))
            .collect::<Result<_, _>>()?;
        if sides.is_empty() {
            return Err(SideError::None);
        }
        Ok(sides)
    }

    /// Checks that every one of these sides can be measured on a substrate.
    ///
    /// # Errors
    /// The call fails at the first side that cannot: on the simulator a side that does not run there
    /// ([`SideError::NotSimulated`]) or Quell's scheduler with arguments that it does not take
    /// ([`SideError::BadOptions`]); in VMs and on the host a side that only the simulator has
    /// ([`SideError::SimulatorOnly`]).
    pub fn check(self, sides: &[Side], on: Substrate) -> Result<(), SideError> {
        let not_simulated = |side: &Side| SideError::NotSimulated {
            side: side.to_string(),
            sides: self,
        };
        for side in sides {
            match (side, on) {
                (Side::Simulated(_) | Side::Added(_) | Side::Default, Substrate::Sim) => {}
                (Side::Scheduler(scheduler), Substrate::Sim) => match scheduler.options() {
                    Ok(_) => {}
                    Err(SideError::NotSimulated { .. }) => return Err(not_simulated(side)),
                    Err(other) => return Err(other),
                },
                // The simulator's stock interfaces only place threads and plug vCPUs: an agent cannot set
                // weights, nice values or slices there.
                (Side::Stock | Side::Weights, Substrate::Sim) => return Err(not_simulated(side)),
                (side, Substrate::Sim) if side.agent().is_some() => {}
                (Side::Simulated(_) | Side::Added(_), Substrate::Vm | Substrate::Host) => {
                    return Err(SideError::SimulatorOnly(side.to_string()));
                }
                (_, Substrate::Sim) => return Err(not_simulated(side)),
                (_, Substrate::Vm | Substrate::Host) => {}
            }
        }
        Ok(())
    }

    /// The names of the sides that only the simulator has.
    fn of_simulator(self) -> impl Iterator<Item = &'static str> {
        let own = Simulated::ALL.map(Simulated::as_str).into_iter();
        own.chain(self.added.iter().map(|side| side.name()))
    }

    /// Every fixed name of these sides; `NAME=COMMAND` and composed mechanisms have none.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        Side::NAMES.into_iter().chain(self.of_simulator())
    }

    fn known(self) -> String {
        let names: Vec<&str> = self.names().collect();
        format!(
            "{}, {} or several of these as `asymmetry+share`, and NAME=COMMAND for a sched_ext scheduler that COMMAND loads",
            names.join(", "),
            Mechanism::ALL.map(Mechanism::as_str).join(", ")
        )
    }

    fn simulated(self) -> String {
        let names: Vec<&str> = self.of_simulator().collect();
        format!(
            "default, sched, NAME=quell sched OPTIONS, quell, mechanisms as `asymmetry+share`, akita, ufo, dasec and both without parts, {}",
            names.join(", ")
        )
    }

    fn suggestion(self, name: &str) -> String {
        let near = self
            .names()
            .map(|side| (strsim::jaro_winkler(name, side), side))
            .filter(|(similarity, _)| *similarity > 0.75)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        near.map(|(_, side)| format!(", did you mean `{side}`?"))
            .unwrap_or_default()
    }
}

impl FromStr for Side {
    type Err = SideError;

    fn from_str(name: &str) -> Result<Side, SideError> {
        Sides::PRODUCT.named(name)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
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
        let agents = sides.iter().filter_map(Side::agent);
        let mechanisms: Vec<_> = agents.map(|it| it.agent.mechanisms).collect();
        assert_eq!(
            mechanisms,
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
        // The configuration of scx_layered is one argument, and JSON.
        assert_eq!(commands[1].len(), 2);
        let layers: serde_json::Value = serde_json::from_str(&commands[1][1]).unwrap();
        assert_eq!(layers[0]["kind"]["Open"]["slice_us"], 20_000);
        let peers: Vec<bool> = sides.iter().map(Side::is_peer).collect();
        assert_eq!(peers, [false, true, true, false]);
        // The texts that a guest is given for the sides name the same sides there.
        let arguments: Vec<String> = sides.iter().map(Side::argument).collect();
        assert_eq!(
            arguments[1..],
            ["scx_lavd", "scx_layered", "scx_rusty=/opt/scx_rusty"]
        );
        assert_eq!(Side::parse_list(&arguments.join(",")).unwrap(), sides);
    }

    #[test]
    fn every_name_is_a_side_and_says_what_it_is_called() {
        for name in Sides::PRODUCT.names() {
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
        assert_eq!(check("fifo,eevdf", Substrate::Sim), Ok(()));
        assert_eq!(check("default,sched", Substrate::Vm), Ok(()));
        for side in ["fifo", "cfs"] {
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

    /// A side that another program's catalogue adds ([`Sides::with`]).
    struct Added;

    impl SimulatedSide for Added {
        fn name(&self) -> &'static str {
            "added"
        }
    }

    #[test]
    fn another_crates_sides_are_named_where_they_are_added() {
        let sides = Sides::with(&[AddedSide(&Added)]);
        let list = sides.parse_list("eevdf,added").unwrap();
        assert_eq!(Side::labels(&list), ["eevdf", "added"]);
        assert_eq!(list[1], Side::Added(AddedSide(&Added)));
        assert_eq!(sides.check(&list, Substrate::Sim), Ok(()));
        let error = sides.check(&list[1..], Substrate::Host).unwrap_err();
        assert!(error.to_string().contains("`added` is the simulator's"));
        for text in ["adde", "eevdf,stock"] {
            let list = sides.parse_list(text);
            let error = list.and_then(|it| sides.check(&it, Substrate::Sim));
            assert!(error.unwrap_err().to_string().contains("fifo, added"));
        }
        assert!(Side::parse_list("added").is_err());
    }

    #[test]
    fn bad_names_say_what_would_be_right() {
        let message = |text: &str| Side::parse_list(text).unwrap_err().to_string();
        assert_eq!(
            message("default,dasc"),
            format!(
                "`dasc` is no side, did you mean `dasec`?; there are: {}",
                Sides::PRODUCT.known()
            )
        );
        assert!(message("default,=x").contains("NAME=COMMAND"));
        assert!(message("default,a= ").contains("NAME=COMMAND"));
        assert!(message("default,nonsense").starts_with("`nonsense` is no side; there are: "));
        assert!(message("default,scx_bpflnd").contains("did you mean `scx_bpfland`?"));
        assert!(message("default,share+nothing").starts_with("`share+nothing` is no side"));
        assert!(message("default,share+share").starts_with("`share+share` is no side"));
        assert!(message(" ,").contains("at least one"));
        for name in OF_STUDIES {
            assert!(!Sides::PRODUCT.known().contains(name));
            let expected =
                format!("`{name}` is a side of quell-studies: `quell-studies bench` takes it");
            assert_eq!(message(&format!("default,{name}")), expected);
        }
    }
}
