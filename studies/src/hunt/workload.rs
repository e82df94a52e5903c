//! A workload of the hunt: the tasks on a simulated machine, in few words.
//!
//! A [`Workload`] is data that can be drawn, made smaller piece by piece, written as TOML and read again.
//! Times are whole microseconds. The simulator gets what tasks do as thread programs ([`Kind::programs`]).

use quell_model::{CpuSet, Topology};
use quell_scenario::{Count, ForkJoin, Repeat, Spawn, Step, ThreadProgram, TimeUs};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A machine and the tasks on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// The number of CPUs.
    pub cpus: u32,
    /// The number of CPUs that share a last-level cache.
    pub cache_cpus: u32,
    /// Cgroups; a group's parent comes before the group.
    #[serde(default, rename = "group", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// The tasks that run on the machine.
    #[serde(default, rename = "task")]
    pub tasks: Vec<Task>,
}

/// A cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The index of the group that this group is in; `None`: the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<usize>,
    /// Its `cpu.weight`.
    pub weight: u32,
}

/// Processes that all do one kind of work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The number of processes.
    pub count: u32,
    /// The nice value of each.
    pub nice: i32,
    /// The index of their group; `None`: the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
    /// The CPUs that they may run on; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// What each process does.
    pub does: Kind,
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Kind {
    /// Always wants a CPU.
    Loop,
    /// Runs and sleeps in turn.
    Periodic {
        /// CPU time of a run.
        run_us: u32,
        /// Length of a sleep, the mean where it is drawn.
        sleep_us: u32,
        /// Whether the length of each sleep is drawn (exponential).
        drawn: bool,
    },
    /// Threads that pass a message on, each after some CPU time; the first thread sends the message, and
    /// sleeps once it has come round.
    Chain {
        /// The number of threads.
        links: u32,
        /// CPU time of each thread.
        run_us: u32,
        /// Length of the first thread's sleep.
        sleep_us: u32,
    },
    /// Threads that send to other threads all the time: each message costs CPU time on both sides.
    Messages {
        /// The number of threads that send.
        senders: u32,
        /// The number of threads that receive.
        receivers: u32,
        /// CPU time of each message, on each side.
        run_us: u32,
    },
    /// Two threads that wake each other in turns.
    PingPong {
        /// CPU time of each turn.
        run_us: u32,
    },
    /// A thread that divides work among itself and others, waits for all parts, and sleeps.
    ForkJoin {
        /// The number of threads that help.
        helpers: u32,
        /// CPU time of each part.
        run_us: u32,
        /// Length of the sleep.
        sleep_us: u32,
    },
    /// Starts a process, waits for it, and starts the next.
    Maker {
        /// CPU time of each process.
        run_us: u32,
        /// Whether that time is drawn for each process (exponential).
        drawn: bool,
    },
    /// Starts processes all the time, of which at most `most` live at once.
    Bomb {
        /// The greatest number of processes that live at once.
        most: u32,
        /// CPU time of each process.
        run_us: u32,
    },
    /// Starts many processes at once, waits for all, and sleeps.
    Crowd {
        /// The number of processes.
        size: u32,
        /// CPU time of each process.
        run_us: u32,
        /// Length of the sleep.
        sleep_us: u32,
    },
}

impl Kind {
    /// The greatest number of threads of a process that may be ready at a time.
    pub fn threads(&self) -> u32 {
        match *self {
            Kind::Loop | Kind::Periodic { .. } | Kind::Maker { .. } => 1,
            Kind::Chain { links, .. } => links,
            Kind::Messages {
                senders, receivers, ..
            } => senders + receivers,
            Kind::PingPong { .. } => 2,
            Kind::ForkJoin { helpers, .. } => helpers + 1,
            Kind::Bomb { most, .. } => most,
            Kind::Crowd { size, .. } => size,
        }
    }

    /// The part of a CPU that a process uses if it never waits, where it has a single thread that needs less
    /// than a CPU.
    pub fn uses(&self) -> Option<f64> {
        match *self {
            Kind::Periodic {
                run_us, sleep_us, ..
            } => Some(f64::from(run_us) / f64::from(run_us + sleep_us)),
            _ => None,
        }
    }

    /// Whether a process starts other processes.
    pub fn gives_birth(&self) -> bool {
        matches!(
            self,
            Kind::Maker { .. } | Kind::Bomb { .. } | Kind::Crowd { .. }
        )
    }

    /// The times and numbers of the work, to make them smaller or rounder.
    pub fn numbers(&mut self) -> Vec<&mut u32> {
        match self {
            Kind::Loop => Vec::new(),
            Kind::PingPong { run_us } | Kind::Maker { run_us, .. } => vec![run_us],
            Kind::Periodic {
                run_us, sleep_us, ..
            } => vec![run_us, sleep_us],
            Kind::Bomb { most, run_us } => vec![most, run_us],
            Kind::Chain {
                links,
                run_us,
                sleep_us,
            } => vec![links, run_us, sleep_us],
            Kind::Messages {
                senders,
                receivers,
                run_us,
            } => vec![senders, receivers, run_us],
            Kind::ForkJoin {
                helpers,
                run_us,
                sleep_us,
            } => vec![helpers, run_us, sleep_us],
            Kind::Crowd {
                size,
                run_us,
                sleep_us,
            } => vec![size, run_us, sleep_us],
        }
    }

    /// The programs of a process's threads.
    pub fn programs(&self) -> Vec<ThreadProgram> {
        let run = |us: u32| Step::RunUs(TimeUs::Constant(us.into()));
        let sleep = |us: u32| Step::SleepUs(TimeUs::Constant(us.into()));
        let drawn = |us: u32, drawn: bool| match drawn {
            true => TimeUs::Exponential(us.into()),
            false => TimeUs::Constant(us.into()),
        };
        let spawn = |time: TimeUs, wait: bool, most: u32| {
            Step::Spawn(Spawn {
                program: vec![Step::RunUs(time)],
                wait,
                most,
            })
        };
        match *self {
            Kind::Loop => vec![program("loop", 1, vec![run(1000)])],
            Kind::Periodic {
                run_us,
                sleep_us,
                drawn: is_drawn,
            } => {
                let rest = Step::SleepUs(drawn(sleep_us, is_drawn));
                vec![program("periodic", 1, vec![run(run_us), rest])]
            }
            Kind::Chain {
                links,
                run_us,
                sleep_us,
            } => chain(links, run(run_us), sleep(sleep_us)),
            Kind::Messages {
                senders,
                receivers,
                run_us,
            } => vec![
                program("send", senders, vec![run(run_us), Step::Send("q".into())]),
                program(
                    "receive",
                    receivers,
                    vec![Step::Receive("q".into()), run(run_us)],
                ),
            ],
            Kind::PingPong { run_us } => {
                let side = |own: &str, other: &str| {
                    vec![
                        run(run_us),
                        Step::Signal(other.into()),
                        Step::Wait(own.into()),
                    ]
                };
                let ping = program("ping", 1, side("a", "b"));
                vec![ping, program("pong", 1, side("b", "a"))]
            }
            Kind::ForkJoin {
                helpers,
                run_us,
                sleep_us,
            } => {
                let fork = Step::ForkJoin(ForkJoin {
                    pool: "p".into(),
                    parts: helpers + 1,
                    program: vec![run(run_us)],
                });
                let main = program("main", 1, vec![fork, sleep(sleep_us)]);
                vec![main, program("help", helpers, vec![Step::Help("p".into())])]
            }
            Kind::Maker {
                run_us,
                drawn: is_drawn,
            } => {
                let made = spawn(drawn(run_us, is_drawn), true, 1);
                vec![program("maker", 1, vec![made])]
            }
            Kind::Bomb { most, run_us } => {
                let made = spawn(drawn(run_us, false), false, most);
                vec![program("bomb", 1, vec![made])]
            }
            Kind::Crowd {
                size,
                run_us,
                sleep_us,
            } => {
                let time = drawn(run_us, false);
                let mut steps = Vec::new();
                if size > 1 {
                    steps.push(Step::Repeat(Repeat {
                        times: size - 1,
                        program: vec![spawn(time, false, size)],
                    }));
                }
                steps.extend([spawn(time, true, size), sleep(sleep_us)]);
                vec![program("crowd", 1, steps)]
            }
        }
    }
}

fn program(name: &str, count: u32, program: Vec<Step>) -> ThreadProgram {
    ThreadProgram::new(name, Count::Fixed(count), program)
}

/// Threads that pass a message on; the last thread answers the first, which sleeps then.
fn chain(links: u32, run: Step, sleep: Step) -> Vec<ThreadProgram> {
    let queue = |number: u32| format!("q{}", number % links);
    let link = |number: u32| {
        let mut steps = vec![run.clone(), Step::Send(queue(number + 1))];
        let receive = Step::Receive(queue(number));
        match number {
            0 => steps.extend([receive, sleep.clone()]),
            _ => steps.insert(0, receive),
        }
        program(&format!("link{number}"), 1, steps)
    };
    (0..links).map(link).collect()
}

impl Workload {
    /// The machine's topology.
    pub fn topology(&self) -> Topology {
        Topology::of_caches(self.cpus, self.cache_cpus)
    }

    /// The greatest number of threads that may be ready at a time.
    pub fn threads(&self) -> u32 {
        let tasks = self.tasks.iter();
        tasks.map(|it| it.count * it.does.threads()).sum()
    }
}

/// A time with a fitting unit.
fn time(us: u32) -> String {
    match us {
        0..1000 => format!("{us} us"),
        _ => format!("{} ms", f64::from(us) / 1000.0),
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = |drawn: bool| if drawn { "about " } else { "" };
        match *self {
            Kind::Loop => f.write_str("loop"),
            Kind::Periodic {
                run_us,
                sleep_us,
                drawn,
            } => {
                let every = about(drawn);
                write!(f, "{} after each {every}{}", time(run_us), time(sleep_us))
            }
            Kind::Chain {
                links,
                run_us,
                sleep_us,
            } => {
                let (run, sleep) = (time(run_us), time(sleep_us));
                write!(f, "chain of {links} x {run} after each {sleep}")
            }
            Kind::Messages {
                senders,
                receivers,
                run_us,
            } => write!(f, "{senders}:{receivers} messages of {}", time(run_us)),
            Kind::PingPong { run_us } => write!(f, "ping-pong of {}", time(run_us)),
            Kind::ForkJoin {
                helpers,
                run_us,
                sleep_us,
            } => {
                let (parts, run, sleep) = (helpers + 1, time(run_us), time(sleep_us));
                write!(f, "fork-join of {parts} x {run} after each {sleep}")
            }
            Kind::Maker { run_us, drawn } => {
                write!(f, "maker of {}{}", about(drawn), time(run_us))
            }
            Kind::Bomb { most, run_us } => write!(f, "bomb of {most} x {}", time(run_us)),
            Kind::Crowd {
                size,
                run_us,
                sleep_us,
            } => {
                let (run, sleep) = (time(run_us), time(sleep_us));
                write!(f, "crowd of {size} x {run} after each {sleep}")
            }
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count > 1 {
            write!(f, "{} x ", self.count)?;
        }
        self.does.fmt(f)?;
        if self.nice != 0 {
            write!(f, ", nice {}", self.nice)?;
        }
        if let Some(group) = self.group {
            write!(f, ", in g{group}")?;
        }
        if let Some(cpus) = &self.cpus {
            write!(f, ", on {cpus}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} CPU{}",
            self.cpus,
            if self.cpus == 1 { "" } else { "s" }
        )?;
        if self.cache_cpus < self.cpus {
            write!(f, ", {} a cache", self.cache_cpus)?;
        }
        for (number, group) in self.groups.iter().enumerate() {
            write!(f, "; g{number} of {}", group.weight)?;
            if let Some(within) = group.within {
                write!(f, " in g{within}")?;
            }
        }
        self.tasks.iter().try_for_each(|task| write!(f, "; {task}"))
    }
}
