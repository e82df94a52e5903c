//! PARTIES (Chen, Delimitrou and Martinez, ASPLOS 2019), with cores as the only resource.
//!
//! # Problem
//! Several tenants with latency targets share a host. Each has cores of its own, and needs more of them
//! when its load is high.
//!
//! # How
//! Every 100 ms ([`Parties::tick`]) each tenant's slack is 1 - latency / target, and its long slack that
//! of its mean latency over the last ten ticks. Of the tenants with both below 0.05, the one with the
//! least long slack gets a core: from the pool, else from the tenant with the most slack that has more
//! than one. If there is none, of the tenants with both above 0.2 the one with the most slack gives a
//! core to the pool. After a step five ticks pass. If a core was given up and in most of these ticks
//! some tenant had a slack below 0.05, the core is given back, the tenant keeps its cores for 100
//! ticks, and another five to ten ticks pass. If no step was due, one tick is left out. All this is as
//! in the authors' controller (manager/PARTIES.py, MIT license).
//!
//! # With cores only
//! PARTIES begins with a random one of cores, cache ways and frequency, and takes the next one when that
//! did not help or cannot be changed. With one resource no choice is random, and whether more of it
//! helped changes no decision, so that is not judged. A tenant with one core only is passed over when
//! one is to be given up; PARTIES would take another resource from it.
//!
//! A tenant that holds as many cores as it can use ([`Parties::with_most`]) gets none, though its target
//! is in danger, and then the next tenant in danger does; no tenant gives up a core meanwhile.
//!
//! The controller knows no best-effort tenants. They run on the cores of the pool, as far as the caller lets
//! them.

use super::{Move, equal_split};
use std::collections::VecDeque;

/// The slack below which a target is in danger.
const DANGER: f64 = 0.05;
/// The slack above which a tenant can spare a core.
const PLENTY: f64 = 0.2;
/// The number of ticks that the long slack covers.
const LONG: usize = 10;
/// The number of ticks between a step and the next decision.
const TRIAL: u32 = 5;
/// The number of ticks for which a tenant gives up no core after it was given one back.
const COOLDOWN: u32 = 100;

/// What the controller knows of a tenant.
#[derive(Debug, Clone)]
struct Tenant {
    /// The latency target, in ns.
    target_ns: u64,
    /// The number of cores that the tenant can use.
    most: u32,
    /// The last known tail latency, in ns; 0 before the first answer.
    latency_ns: u64,
    /// The tail latencies of the last ticks with answers, at most [`LONG`], in ns, the newest first.
    latencies: VecDeque<u64>,
    /// The number of ticks for which the tenant still gives up no core.
    cooldown: u32,
}

impl Tenant {
    /// 1 - latency / target, of the last known tail latency.
    fn slack(&self) -> f64 {
        1.0 - self.latency_ns as f64 / self.target_ns.max(1) as f64
    }

    /// The slack of the mean of the last ticks' tail latencies. It is 0 for a tenant that has answered no
    /// request yet: such a tenant is neither in danger nor can it spare a core.
    fn long_slack(&self) -> f64 {
        if self.latencies.is_empty() {
            return 0.0;
        }
        let sum: u64 = self.latencies.iter().sum();
        1.0 - sum as f64 / self.latencies.len() as f64 / self.target_ns.max(1) as f64
    }
}

/// The purpose of the next ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The next tick decides.
    Decide,
    /// No decision for this many ticks.
    Wait(u32),
    /// A trial of a core that the tenant gave up: ticks left, and good ticks minus bad ones.
    GaveUp(usize, u32, i32),
    /// A trial of giving the core back: ticks left, and good ticks minus bad ones.
    GaveBack(u32, i32),
}

/// The PARTIES controller of a host's cores.
#[derive(Debug, Clone)]
pub struct Parties {
    tenants: Vec<Tenant>,
    phase: Phase,
}

impl Parties {
    /// The time between ticks: 100 ms, in ns.
    pub const TICK_NS: u64 = 100_000_000;

    /// A controller for tenants with these latency targets, in ns.
    pub fn new(targets_ns: &[u64]) -> Parties {
        let tenant = |&target_ns: &u64| Tenant {
            target_ns,
            most: u32::MAX,
            latency_ns: 0,
            latencies: VecDeque::with_capacity(LONG),
            cooldown: 0,
        };
        Parties {
            tenants: targets_ns.iter().map(tenant).collect(),
            phase: Phase::Decide,
        }
    }

    /// Sets the most cores that each tenant gets.
    pub fn with_most(mut self, most: &[u32]) -> Parties {
        for (tenant, &most) in self.tenants.iter_mut().zip(most) {
            tenant.most = most;
        }
        self
    }

    /// The initial number of cores of each tenant, of `cores` in all: equal parts, limited to what the
    /// tenant can use. The other cores are free.
    pub fn begin(&self, cores: u32) -> Vec<u32> {
        let split = equal_split(cores, self.tenants.len()).into_iter();
        let used = split
            .zip(&self.tenants)
            .map(|(it, tenant)| it.min(tenant.most));
        used.collect()
    }

    /// Advances by a tick, in which tenants had the tail latencies `latencies_ns` (`None`: no answer) and
    /// held `held` cores, with `free` cores in the pool; returns the core that is to move now. Both lists are
    /// in the order of the targets.
    pub fn tick(&mut self, latencies_ns: &[Option<u64>], held: &[u32], free: u32) -> Option<Move> {
        for (tenant, latency) in self.tenants.iter_mut().zip(latencies_ns) {
            tenant.cooldown = tenant.cooldown.saturating_sub(1);
            if let &Some(latency) = latency {
                tenant.latency_ns = latency;
                tenant.latencies.truncate(LONG - 1);
                tenant.latencies.push_front(latency);
            }
        }
        let good = self.tenants.iter().all(|tenant| tenant.slack() >= DANGER);
        let judged = |score: i32| if good { score + 1 } else { score - 1 };
        match self.phase {
            Phase::Decide => return self.decide(held, free),
            Phase::Wait(ticks) => self.phase = Phase::Wait(ticks - 1),
            Phase::GaveUp(tenant, ticks, score) => {
                self.phase = Phase::GaveUp(tenant, ticks - 1, judged(score));
            }
            Phase::GaveBack(ticks, score) => {
                self.phase = Phase::GaveBack(ticks - 1, judged(score));
            }
        }
        match self.phase {
            Phase::GaveUp(tenant, 0, ..=0) => {
                self.phase = Phase::GaveBack(TRIAL, 0);
                self.tenants[tenant].cooldown = COOLDOWN;
                self.give(tenant, held, free)
            }
            Phase::GaveBack(0, ..=0) => {
                self.phase = Phase::Wait(TRIAL);
                None
            }
            Phase::Wait(0) | Phase::GaveUp(_, 0, _) | Phase::GaveBack(0, _) => {
                self.decide(held, free)
            }
            _ => None,
        }
    }

    /// Chooses the next step by the slacks of all tenants, and the phase that follows it.
    fn decide(&mut self, held: &[u32], free: u32) -> Option<Move> {
        let both = |tenant: &Tenant, test: fn(f64) -> bool| {
            test(tenant.slack()) && test(tenant.long_slack())
        };
        let numbered = || self.tenants.iter().enumerate();
        let in_danger = |tenant: &Tenant| both(tenant, |slack| slack < DANGER);
        let worst = numbered()
            .filter(|(index, tenant)| {
                in_danger(tenant) && held.get(*index).is_some_and(|&cores| cores < tenant.most)
            })
            .min_by(|(_, one), (_, other)| one.long_slack().total_cmp(&other.long_slack()));
        if self.tenants.iter().any(in_danger) {
            let given = worst.and_then(|(worst, _)| self.give(worst, held, free));
            self.phase = match given {
                Some(_) => Phase::Wait(TRIAL),
                None => Phase::Decide,
            };
            return given;
        }
        let spare = self.most_slack(held, |_, tenant| {
            tenant.cooldown == 0 && both(tenant, |slack| slack > PLENTY)
        });
        self.phase = match spare {
            Some(spare) => Phase::GaveUp(spare, TRIAL, 0),
            // One tick is left out, and the next one decides.
            None => Phase::Wait(2),
        };
        spare.map(|spare| Move {
            from: Some(spare),
            to: None,
        })
    }

    /// The move that gives the tenant `to` a core: a free one, else one of the other tenant with the most
    /// slack.
    fn give(&self, to: usize, held: &[u32], free: u32) -> Option<Move> {
        let from = match free {
            0 => Some(self.most_slack(held, |other, _| other != to)?),
            _ => None,
        };
        Some(Move { from, to: Some(to) })
    }

    /// The first tenant with the most slack, of those that have more than one core and for which `of` holds.
    fn most_slack(&self, held: &[u32], of: impl Fn(usize, &Tenant) -> bool) -> Option<usize> {
        let numbered = self.tenants.iter().enumerate();
        let rich = numbered.filter(|&(index, tenant)| {
            held.get(index).is_some_and(|&cores| cores > 1) && of(index, tenant)
        });
        // `max_by` returns the last of equals, so the order is reversed.
        let most = rich
            .rev()
            .max_by(|(_, one), (_, other)| one.slack().total_cmp(&other.slack()));
        most.map(|(index, _)| index)
    }
}
