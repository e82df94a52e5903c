//! Random hosts: who is on them, and what they want.

use quell_model::{CpuId, CpuSet};
use quell_policy::share::{Group, Problem, Thread};
use quell_scenario::Scenario;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};
use std::path::Path;

/// What CPUs threads are bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// None.
    Nobody,
    /// Two thirds of them to one CPU each.
    ToOne,
    /// Two thirds of them to a row of CPUs.
    ToSome,
}

impl Bound {
    /// All there are.
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
    /// A CPU.
    Always,
    /// That part of a CPU, in periods of so many us.
    Part(f64, u64),
    /// So many ms of work, every so many, from then on.
    Bursts(u64, u64, u64),
}

/// A host.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// Its CPUs, groups (the first level's are the tenants) and threads, of which each can use a whole CPU.
    pub problem: Problem,
    /// What each thread wants.
    pub wants: Vec<Wants>,
}

/// How hosts are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawn {
    /// CPUs: so many, or from one to so many.
    pub cpus: u32,
    /// Whether it is so many in any case.
    pub exactly: bool,
    /// From two to so many groups.
    pub most_groups: usize,
    /// What CPUs threads are bound to.
    pub bound: Bound,
    /// Short periods are a load generator's work on a real machine: the shortest in us.
    pub least_period_us: u64,
}

impl Host {
    /// The one of a seed.
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

    /// What else a real machine did, in CPUs: it goes before all, anywhere.
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

    /// What threads got, by group; what is in a group is its too.
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

    /// The same where all bursts begin at once, as a scenario has it.
    #[must_use]
    pub fn in_phase(mut self) -> Host {
        for want in &mut self.wants {
            if let Wants::Bursts(_, _, first) = want {
                *first = 0;
            }
        }
        self
    }

    /// A scenario of it: each thread is a tenant within its group.
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
            // Beside groups there are no processes in cgroup v2; a group of a thread alone counts as much as the thread.
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
