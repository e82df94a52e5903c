//! PARTIES (Chen, Delimitrou and Martinez, ASPLOS 2019), with cores as the only resource.
//!
//! # Problem
//! Several tenants with latency targets share a host. Each has cores of its own, and needs more of them when its load is
//! high.
//!
//! # How
//! Every 100 ms ([`Parties::tick`]) each tenant's slack is 1 - latency / target, and its long slack that of its mean latency
//! over the last ten ticks. Of those with both below 0.05, the one with the least long slack gets a core: from the pool,
//! else from the tenant with the most slack that has more than one. If there is none, of those with both above 0.2 the one
//! with the most slack gives a core to the pool. After a step five ticks pass. Where a core was given up and in most of these
//! some tenant had a slack below 0.05, it is given back, the tenant keeps what it has for 100 ticks, and another five to ten
//! ticks pass. Where nothing was to be done a tick is left out. All this is as in the authors' controller
//! (manager/PARTIES.py, MIT license).
//!
//! # With cores only
//! PARTIES begins with a random one of cores, cache ways and frequency, and takes the next one when that did not help or
//! cannot be changed. With one resource nothing is random, and whether more of it helped changes nothing, so that is not
//! judged. Who has one core only is passed over when one is to be given up; PARTIES would take something else from it.
//!
//! A tenant that holds as many cores as it can use ([`Parties::with_most`]) gets none, though it is in danger, and then the
//! next one does; nothing is given up meanwhile.
//!
//! Not here: best-effort tenants. They run on the cores of the pool, as far as the caller lets them.

use super::{Move, equal_split};
use std::collections::VecDeque;

/// Below it a target is in danger.
const DANGER: f64 = 0.05;
/// Above it something can be spared.
const PLENTY: f64 = 0.2;
/// Ticks of long slack.
const LONG: usize = 10;
/// Ticks after a step.
const TRIAL: u32 = 5;
/// Ticks for which a tenant gives nothing up after that went wrong.
const COOLDOWN: u32 = 100;

#[derive(Debug, Clone)]
struct Tenant {
    target_ns: u64,
    /// How many cores it can use.
    most: u32,
    /// The last one known.
    latency_ns: u64,
    latencies: VecDeque<u64>,
    cooldown: u32,
}

impl Tenant {
    fn slack(&self) -> f64 {
        1.0 - self.latency_ns as f64 / self.target_ns.max(1) as f64
    }

    /// 0 for who answered nothing yet: neither in danger nor to be spared.
    fn long_slack(&self) -> f64 {
        if self.latencies.is_empty() {
            return 0.0;
        }
        let sum: u64 = self.latencies.iter().sum();
        1.0 - sum as f64 / self.latencies.len() as f64 / self.target_ns.max(1) as f64
    }
}

/// What the next ticks are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A decision.
    Decide,
    /// Nothing, for so many ticks.
    Wait(u32),
    /// To judge what the tenant gave up: ticks left, and good ones less bad ones.
    GaveUp(usize, u32, i32),
    /// To see whether giving it back helped, likewise.
    GaveBack(u32, i32),
}

/// The controller.
#[derive(Debug, Clone)]
pub struct Parties {
    tenants: Vec<Tenant>,
    phase: Phase,
}

impl Parties {
    /// From one tick to the next.
    pub const TICK_NS: u64 = 100_000_000;

    /// For tenants with these latency targets.
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

    /// Each gets at most so many cores.
    pub fn with_most(mut self, most: &[u32]) -> Parties {
        for (tenant, &most) in self.tenants.iter_mut().zip(most) {
            tenant.most = most;
        }
        self
    }

    /// How many of so many cores each tenant begins with: equal parts, as far as it can use them. The rest is free.
    pub fn begin(&self, cores: u32) -> Vec<u32> {
        let split = equal_split(cores, self.tenants.len()).into_iter();
        let used = split
            .zip(&self.tenants)
            .map(|(it, tenant)| it.min(tenant.most));
        used.collect()
    }

    /// A tick has passed in which tenants had these tail latencies (none: no answer), and hold so many cores, so many being
    /// free: the core that is to change hands now. Both lists are in the order of the targets.
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

    /// A core for that one: a free one, else one of another tenant's.
    fn give(&self, to: usize, held: &[u32], free: u32) -> Option<Move> {
        let from = match free {
            0 => Some(self.most_slack(held, |other, _| other != to)?),
            _ => None,
        };
        Some(Move { from, to: Some(to) })
    }

    /// Of those that have more than one core, and that `of` says: the first with the most slack.
    fn most_slack(&self, held: &[u32], of: impl Fn(usize, &Tenant) -> bool) -> Option<usize> {
        let numbered = self.tenants.iter().enumerate();
        let rich = numbered.filter(|&(index, tenant)| {
            held.get(index).is_some_and(|&cores| cores > 1) && of(index, tenant)
        });
        // The last of equals is the greatest, so from the back.
        let most = rich
            .rev()
            .max_by(|(_, one), (_, other)| one.slack().total_cmp(&other.slack()));
        most.map(|(index, _)| index)
    }
}
