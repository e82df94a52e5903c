//! Random hosts: the threads on them, and what the threads want.

use quell_model::{CpuId, CpuSet};
use quell_policy::share::{Group, Problem, Thread};
use quell_scenario::Scenario;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};
use std::path::Path;

/// The CPUs that threads are bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// No thread is bound.
    Nobody,
    /// Two thirds of the threads are bound to one CPU each.
    ToOne,
    /// Two thirds of the threads are bound to a row of CPUs.
    ToSome,
}

impl Bound {
    /// All kinds.
    pub const ALL: [Bound; 3] = [Bound::Nobody, Bound::ToOne, Bound::ToSome];
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Bound::Nobody => "anywhere",
            Bound::ToOne => "bound to one CPU",
            Bound::ToSome => "bound to some",
        })
    }
}

/// What a thread wants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wants {
    /// A CPU all the time.
    Always,
    /// This part of a CPU, in periods of this many µs.
    Part(f64, u64),
    /// Bursts: this many ms of work, every this many ms, from this time on, in ms.
    Bursts(u64, u64, u64),
}

/// A host.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// The host's CPUs, groups (those of the first level are the tenants) and threads, each of which can use
    /// a whole CPU.
    pub problem: Problem,
    /// What each thread wants.
    pub wants: Vec<Wants>,
}

/// How hosts are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawn {
    /// The number of CPUs, or the greatest number.
    pub cpus: u32,
    /// Whether a host has exactly that many CPUs, instead of one up to that many.
    pub exactly: bool,
    /// The greatest number of groups; the least is two.
    pub most_groups: usize,
    /// The CPUs that threads are bound to.
    pub bound: Bound,
    /// The shortest period, in µs: short periods are much work for a load generator on a real machine.
    pub least_period_us: u64,
}

impl Host {
    /// The host of a seed.
    pub fn random(seed: u64, drawn: &Drawn) -> Host {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut cpus = rng.random_range(1..=drawn.cpus);
        if drawn.exactly {
            cpus = drawn.cpus;
        }
        let mut groups: Vec<Group> = Vec::new();
        let mut threads = Vec::new();
        let mut wants = Vec::new();
        let weights = [10, 50, 100, 100, 100, 200, 400, 1000];
        let nested = rng.random_range(0..3) == 0;
        for _ in 0..rng.random_range(2..=drawn.most_groups) {
            let parent = if nested && !groups.is_empty() && rng.random_range(0..2) == 0 {
                Some(rng.random_range(0..groups.len()))
            } else {
                None
            };
            groups.push(Group {
                parent,
                weight: weights[rng.random_range(0..weights.len())],
                limit: None,
            });
            for _ in 0..rng.random_range(1..=4) {
                let (low, high) = if drawn.bound == Bound::Nobody || rng.random_range(0..3) == 0 {
                    (0, cpus)
                } else if drawn.bound == Bound::ToOne {
                    let at = rng.random_range(0..cpus);
                    (at, at + 1)
                } else {
                    let at = rng.random_range(0..cpus);
                    (at, rng.random_range(at..cpus) + 1)
                };
                let want = match rng.random_range(0..4) {
                    0 | 1 => Wants::Always,
                    2 => {
                        let part = rng.random_range(0.02..0.9);
                        let period: u64 = [500, 2_000, 10_000, 40_000][rng.random_range(0..4)];
                        Wants::Part(part, period.max(drawn.least_period_us))
                    }
                    _ => {
                        let every = rng.random_range(200..3000);
                        let work = (every as f64 * rng.random_range(0.05..0.6)) as u64;
                        Wants::Bursts(work, every, rng.random_range(0..every))
                    }
                };
                threads.push(Thread {
                    group: Some(groups.len() - 1),
                    weight: 100,
                    cpus: (low..high).map(CpuId).collect(),
                    demand: 1.0,
                });
                wants.push(want);
            }
        }
        let problem = Problem {
            cpus: CpuSet::first(cpus),
            groups,
            threads,
        };
        Host { problem, wants }
    }

    /// Adds what else a real machine did, in CPUs: that goes before all groups, on any CPU.
    pub(super) fn add_rest(&mut self, cpus: f64) {
        let all = self.problem.cpus.clone();
        let each = cpus / all.len() as f64;
        self.problem.groups.push(Group {
            parent: None,
            weight: 10_000,
            limit: None,
        });
        for _ in all.iter() {
            self.problem.threads.push(Thread {
                group: Some(self.problem.groups.len() - 1),
                weight: 100,
                cpus: all.clone(),
                demand: 1.0,
            });
            self.wants.push(Wants::Part(each, 0));
        }
    }

    /// What threads got, by group; a group has what the groups within it have, too.
    pub(super) fn by_group(&self, threads: impl Iterator<Item = f64>) -> Vec<f64> {
        let mut groups = vec![0.0; self.problem.groups.len()];
        for (thread, got) in self.problem.threads.iter().zip(threads) {
            let mut at = thread.group;
            while let Some(group) = at {
                groups[group] += got;
                at = self.problem.groups[group].parent;
            }
        }
        groups
    }

    /// This host with all bursts beginning at once, as in a scenario.
    #[must_use]
    pub fn in_phase(mut self) -> Host {
        for want in &mut self.wants {
            if let Wants::Bursts(_, _, first) = want {
                *first = 0;
            }
        }
        self
    }

    /// The host as a scenario: each thread is a tenant within its group.
    ///
    /// # Errors
    /// Where the text that was made is no valid scenario.
    pub fn scenario(&self) -> anyhow::Result<Scenario> {
        let mut text = String::from("name = \"shares\"\n");
        for (number, group) in self.problem.groups.iter().enumerate() {
            write!(
                text,
                "[[group]]\nname = \"g{number}\"\nweight = {}\n",
                group.weight
            )?;
            if let Some(parent) = group.parent {
                writeln!(text, "within = \"g{parent}\"")?;
            }
        }
        let threads = self.problem.threads.iter().zip(&self.wants);
        for (number, (thread, want)) in threads.enumerate() {
            let group = thread.group.unwrap_or(0);
            write!(
                text,
                "[[tenant]]\nname = \"t{number}\"\nwithin = \"g{group}\"\n"
            )?;
            // In cgroup v2 no process is beside groups; a group of a single thread counts as much as the
            // thread.
            let inner = |it: &Group| it.parent == Some(group);
            if self.problem.groups.iter().any(inner) {
                text += "kind = \"container\"\n";
            }
            if thread.cpus != self.problem.cpus {
                let cpus: Vec<u32> = thread.cpus.iter().map(|cpu| cpu.0).collect();
                writeln!(text, "cpus = {cpus:?}")?;
            }
            let requests = |run_us: f64, every_us: u64| {
                format!(
                    "load = {{ rate = {}, arrival = \"fixed\" }}\n[[tenant.thread]]\nname = \"t\"\n\
                     program = [\"request\", {{ run_us = {run_us} }}, \"respond\"]\n",
                    1e6 / every_us as f64
                )
            };
            text += &match *want {
                Wants::Always => "class = \"batch\"\n[[tenant.thread]]\nname = \"t\"\n\
                                  program = [{ run_us = 100000 }]\n"
                    .to_string(),
                Wants::Part(part, period) => requests(part * period as f64, period),
                Wants::Bursts(work, every, _) => requests(work as f64 * 1e3, every * 1000),
            };
        }
        Ok(Scenario::parse(Path::new("shares.toml"), &text)?)
    }
}
