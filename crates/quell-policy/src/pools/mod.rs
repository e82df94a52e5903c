//! The pools mechanism: how many cores each virtual machine needs now (UFO; Peng et al., NSDI 2024).
//!
//! # Problem
//! Guests are given more vCPUs than a host has CPUs, and use few of them. Where a host schedules more
//! vCPUs than CPUs, requests wait for a vCPU that waits for a CPU; where each vCPU has a CPU of its own
//! for ever, most CPUs stay idle. And a host does not know the latency of its guests.
//!
//! # Approach
//! The host's cores are in three pools (section 4.2): a group of cores for each guest's vCPUs, one for
//! the emulator threads of all guests, and the idle pool, in which those guests are that have no group:
//! batch guests, and those that are idle. A guest has as many vCPUs online as its group has CPUs. Once a
//! second ([`Pools::second`]) the emulator pool is made as large as it has to be (section 4.3), and each
//! guest's group by the figures of the guest's own scheduler ([`predict`], sections 4.4 and 4.5). A core
//! is a physical one: two guests never share its hyperthreads. The size of the idle pool of late is a
//! verdict for the service that places guests on hosts (appendix B.4).
//!
//! # Ours
//! - Guests settle independently; the paper waits for one after the other.
//! - Where cores lack, groups that need more are made as equal as cores allow.
//! - Guests that need fewer cores give back before others get more; of these the guest that uses most
//!   of each of its CPUs is first.
//! - Guests without a group always have CPUs: the last core of the idle pool is kept for them, or taken
//!   from the largest group.
//! - Tenants that are neither guests nor batch have the idle pool as guests have their groups: guests
//!   get the part of it that these tenants do not need, and where cores lack the idle pool is one of the
//!   groups that are made equal.
//! - A core keeps its guest as long as the guest keeps as many; new cores are near to those it has.
//! - A guest's figures are not trusted: CPU time beyond that of its CPUs is replaced by the time that its
//!   threads used as seen from the host.
//!
//! # Units
//! CPU time is in CPUs: 1.0 is all of one.

mod policy;
pub mod predict;
pub mod profile;
pub mod steady;
pub mod what_if;

pub use policy::Pooled;

#[cfg(test)]
mod tests;

use predict::{Guest, Load, Settings, Why};
use quell_model::{Advice, CpuSet, TenantName, Topology, Verdict, WhatIf};
use std::collections::{BTreeMap, VecDeque};
use what_if::{Holding, what_if};

/// The used part above which the emulator pool gets more cores, until less than [`EMULATORS_LEAST`] is used.
pub const EMULATORS_MOST: f64 = 0.7;
/// The used part below which the emulator pool gives cores back, as long as it stays under
/// [`EMULATORS_MOST`].
pub const EMULATORS_LEAST: f64 = 0.5;
/// The CPU time below which a guest is idle, in CPUs (section 4.2).
pub const NOTHING: f64 = 0.01;
/// The factor by which a guest's own CPU time may exceed that of its vCPUs' threads and be believed.
pub const MORE: f64 = 1.25;
/// The time after which an idle guest loses its group, in ns. The paper: consistently.
pub const PARKED_NS: u64 = 10_000_000_000;
/// The time for which the idle pool is kept as large as tenants that are no guests needed it, in ns:
/// longer than a guest's CPUs take to settle.
pub const REST_NS: u64 = 10_000_000_000;
/// The time that the verdict looks back on, and for which it holds, in ns. The paper: constantly.
pub const VERDICT_NS: u64 = 60_000_000_000;
/// The number of unneeded idle cores above which there is room for more guests (appendix B.4).
pub const ROOM: usize = 2;

/// The observations of a guest in the last second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen<'a> {
    /// The guest's name.
    pub name: &'a TenantName,
    /// The number of the guest's vCPUs.
    pub vcpus: u32,
    /// Whether the guest is batch: no user waits for its work, so it gets no group.
    pub batch: bool,
    /// The CPU time of its vCPUs as the host sees it, in CPUs.
    pub used: f64,
    /// The CPU time of its other threads as the host sees it, in CPUs.
    pub emulated: f64,
    /// The guest's own figures; `None`: the guest does not answer.
    pub says: Option<Says>,
}

/// A guest's figures about itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Says {
    /// CPU time, in CPUs.
    pub used: f64,
    /// The rate of its scheduler's context switches, per second.
    pub switches: f64,
}

/// The division of a host's CPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct Division {
    /// The guests' groups, by name.
    pub guests: BTreeMap<TenantName, Group>,
    /// The CPUs of emulator threads.
    pub emulators: CpuSet,
    /// The CPUs of the idle pool: those of guests without a group, and those that are idle.
    pub idle: CpuSet,
    /// Whether the host has room for more guests.
    pub verdict: Verdict,
}

/// Where a guest's vCPUs should run.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The CPUs of the vCPUs.
    pub cpus: CpuSet,
    /// Whether the CPUs are the guest's own; else it shares the idle pool.
    pub own: bool,
    /// The number of vCPUs that should be online.
    pub online: u32,
    /// The number of CPUs that the guest lacks, because no more are free.
    pub lacks: u32,
    /// Why the number of CPUs changed in this second.
    pub why: Option<Why>,
}

/// The owner of a core.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Owner {
    Nobody,
    Emulators,
    Guest(TenantName),
}

/// A physical core.
#[derive(Debug, Clone)]
struct Core {
    cpus: CpuSet,
    llc: u32,
    owner: Owner,
}

#[derive(Debug, Clone)]
struct Managed {
    guest: Guest,
    /// Whether the guest has a group.
    own: bool,
    /// The time since when the guest is idle.
    nothing_since: Option<u64>,
}

/// A past second.
#[derive(Debug, Clone)]
struct Past {
    at_ns: u64,
    /// The number of idle cores, and of those that no tenant needs.
    idle: usize,
    spare: usize,
    /// Whether a pool or a guest lacked cores.
    lacked: bool,
}

/// The division of a host, from second to second.
#[derive(Debug, Clone)]
pub struct Pools {
    settings: Settings,
    cores: Vec<Core>,
    /// The number of CPUs of a core.
    step: u32,
    guests: BTreeMap<TenantName, Managed>,
    /// The number of CPUs of the idle pool that tenants that are no guests needed, by time.
    rest: VecDeque<(u64, u32)>,
    /// The seconds that the verdict looks back on.
    history: VecDeque<Past>,
}

impl Pools {
    /// A division with no observations yet.
    pub fn new(settings: Settings) -> Pools {
        Pools {
            settings,
            cores: Vec::new(),
            step: 1,
            guests: BTreeMap::new(),
            rest: VecDeque::new(),
            history: VecDeque::new(),
        }
    }

    /// The state of a guest.
    pub fn guest(&self, name: &TenantName) -> Option<&Guest> {
        self.guests.get(name).map(|it| &it.guest)
    }

    /// Decides the division after a second with these observations, each of another guest. `others`: the CPU
    /// time, in CPUs, of tenants that are neither guests nor batch and run in the idle pool too; `None`:
    /// there are none.
    pub fn second(
        &mut self,
        now_ns: u64,
        topology: &Topology,
        seen: &[Seen<'_>],
        others: Option<f64>,
    ) -> Division {
        self.follow_cores(topology);
        self.follow_guests(now_ns, seen);
        let rest = self.rest_needs(now_ns, others);
        let emulators = self.size_emulators(now_ns, seen.iter().map(|it| it.emulated).sum());
        let mut why = BTreeMap::new();
        let mut wanted: Vec<(&Seen<'_>, u32)> = Vec::new();
        for it in seen.iter().filter(|it| !it.batch) {
            if let Some((cpus, reason)) = self.wants(now_ns, it) {
                wanted.push((it, cpus));
                why.extend(reason.map(|reason| (it.name.clone(), reason)));
            }
        }
        let part = |it: &Seen<'_>, cpus: u32| it.used / f64::from(cpus.max(1));
        wanted
            .sort_by(|a, b| part(b.0, self.of(b.0.name)).total_cmp(&part(a.0, self.of(a.0.name))));
        let (more, less): (Vec<_>, Vec<_>) = wanted
            .into_iter()
            .partition(|(it, cpus)| *cpus > self.of(it.name));
        let mut lacked = emulators > 0;
        let mut wants = BTreeMap::new();
        for (it, cpus) in less.into_iter().chain(more) {
            let before = self.of(it.name);
            let spare = self.idle().saturating_sub(rest) / self.step;
            let most = self.cores_of(it.name) + spare;
            let has = self.give(it.name, cpus.div_ceil(self.step).min(most));
            self.now_has(it.name, has, before, now_ns);
            wants.insert(it.name.clone(), cpus);
            lacked |= has < cpus;
        }
        lacked |= self.idle() < rest;
        let lacks = self.even_out(now_ns, &wants, rest);
        self.keep_one_idle(now_ns, seen, others.is_some());
        let elsewhere = emulators + rest.saturating_sub(self.idle()).div_ceil(self.step);
        let kept = rest.div_ceil(self.step) as usize;
        let verdict = self.verdict(now_ns, lacked, elsewhere, &lacks, kept);
        let cpus_of = |owner: &Owner| self.cpus_of(owner);
        let (emulators, idle) = (cpus_of(&Owner::Emulators), cpus_of(&Owner::Nobody));
        let group = |it: &Seen<'_>| {
            let own = cpus_of(&Owner::Guest(it.name.clone()));
            let (own, cpus) = match (own.is_empty(), idle.is_empty()) {
                (false, _) => (true, own),
                (true, false) => (false, idle.clone()),
                // The host has one core only.
                (true, true) => (false, emulators.clone()),
            };
            let group = Group {
                online: it.vcpus.min(cpus.len() as u32).max(1),
                cpus,
                own,
                lacks: lacks.get(it.name).copied().unwrap_or(0),
                why: why.get(it.name).copied(),
            };
            (it.name.clone(), group)
        };
        Division {
            guests: seen.iter().map(group).collect(),
            emulators,
            idle,
            verdict,
        }
    }

    /// Follows the cores that are online. A core that went offline loses its owner.
    fn follow_cores(&mut self, topology: &Topology) {
        let mut cores: BTreeMap<u32, Core> = BTreeMap::new();
        for cpu in &topology.cpus {
            let core = cores.entry(cpu.core).or_insert_with(|| Core {
                cpus: CpuSet::new(),
                llc: cpu.llc,
                owner: Owner::Nobody,
            });
            core.cpus.insert(cpu.id);
        }
        let known = self.cores.iter().map(|it| &it.cpus);
        if known.eq(cores.values().map(|it| &it.cpus)) {
            return;
        }
        for core in cores.values_mut() {
            let before = self
                .cores
                .iter()
                .find(|it| it.cpus.iter().next() == core.cpus.iter().next());
            if let Some(before) = before {
                core.owner = before.owner.clone();
            }
        }
        let step = cores.values().map(|it| it.cpus.len() as u32).max();
        if step != Some(self.step) {
            // Hyperthreads were turned on or off: the guests' profiles are of other CPUs.
            self.guests.clear();
        }
        self.step = step.unwrap_or(1);
        self.cores = cores.into_values().collect();
    }

    /// Adds new guests, and removes those that are gone.
    fn follow_guests(&mut self, now_ns: u64, seen: &[Seen<'_>]) {
        let managed = |name: &TenantName| seen.iter().any(|it| it.name == name && !it.batch);
        self.guests.retain(|name, _| managed(name));
        for core in &mut self.cores {
            if matches!(&core.owner, Owner::Guest(name) if !self.guests.contains_key(name)) {
                core.owner = Owner::Nobody;
            }
        }
        for it in seen.iter().filter(|it| !it.batch) {
            let (step, settings) = (self.step, &self.settings);
            let managed = self.guests.entry(it.name.clone());
            let managed = managed.or_insert_with(|| Managed {
                guest: Guest::new(it.vcpus, step, now_ns, settings),
                own: false,
                nothing_since: None,
            });
            managed.guest.can_use(it.vcpus);
        }
    }

    /// Gives the emulators as many cores as they need, by Algorithm 1, and at least one if there is any;
    /// returns how many of them lack.
    fn size_emulators(&mut self, now_ns: u64, used: f64) -> u32 {
        let per_core = f64::from(self.step);
        let part = |cores: usize| used / (cores as f64 * per_core);
        let has = self
            .cores
            .iter()
            .filter(|it| it.owner == Owner::Emulators)
            .count();
        let mut cores = has.max(1);
        if part(cores) > EMULATORS_MOST {
            while part(cores) >= EMULATORS_LEAST {
                cores += 1;
            }
        } else if part(cores) < EMULATORS_LEAST {
            while cores > 1 && part(cores - 1) < EMULATORS_MOST {
                cores -= 1;
            }
        }
        let mut owned = self.own(&Owner::Emulators, cores);
        if owned == 0 {
            // The cores that the emulators had are gone.
            self.take_from_largest(now_ns);
            owned = self.own(&Owner::Emulators, 1);
        }
        let lacking = cores - owned;
        match part(has) > EMULATORS_MOST {
            true => lacking as u32,
            false => 0,
        }
    }

    /// The number of CPUs of the idle pool that tenants need that are no guests, as the most of the last
    /// [`REST_NS`]; `used` is what they used in this second, in CPUs (`None`: there are none). Enough CPUs
    /// that their requests do not wait long for each other, and a core at least. Where they use the whole
    /// pool they may want more than is seen; that shows as the pool grows.
    fn rest_needs(&mut self, now_ns: u64, used: Option<f64>) -> u32 {
        let all = (self.cores.len() as u32).saturating_mul(self.step);
        let needs = |used: f64| {
            let mut counts = (self.step..all).step_by(self.step as usize);
            counts
                .find(|cpus| !profile::waits_long(*cpus, used))
                .unwrap_or(all.saturating_sub(self.step))
        };
        self.rest.push_back((now_ns, used.map_or(0, needs)));
        while self.rest.front().is_some_and(|it| it.0 + REST_NS < now_ns) {
            self.rest.pop_front();
        }
        self.rest.iter().map(|it| it.1).max().unwrap_or(0)
    }

    /// The number of CPUs that a guest should have, 0 for the idle pool, and the reason of a change.
    fn wants(&mut self, now_ns: u64, seen: &Seen<'_>) -> Option<(u32, Option<Why>)> {
        let managed = self.guests.get_mut(seen.name)?;
        let idles = seen.used < NOTHING;
        managed.nothing_since = idles.then(|| managed.nothing_since.unwrap_or(now_ns));
        let parked = managed
            .nothing_since
            .is_some_and(|since| now_ns - since >= PARKED_NS);
        if parked {
            return Some((0, None));
        }
        if !managed.own {
            // The guest is new, or no longer idle. A guest that was seen before begins with what it had.
            return Some((managed.guest.cpus(), None));
        }
        let has = managed.guest.cpus();
        let finite =
            |it: &Says| it.switches.is_finite() && it.switches >= 0.0 && it.used.is_finite();
        let says = seen.says.filter(finite);
        // A guest uses no more than its threads did, except for the times at which both were read.
        let most = (MORE * seen.used + NOTHING).min(f64::from(has));
        let load = Load {
            used: says.map_or(seen.used, |it| it.used.clamp(0.0, most)),
            switches: says.map(|it| it.switches),
        };
        let next = managed.guest.next(load, now_ns, &self.settings);
        let (cpus, why) = next.map_or((has, None), |(cpus, why)| (cpus, Some(why)));
        Some((cpus, why))
    }

    /// The number of CPUs in the idle pool.
    fn idle(&self) -> u32 {
        self.cpus_of(&Owner::Nobody).len() as u32
    }

    /// The number of CPUs of a guest now.
    fn of(&self, name: &TenantName) -> u32 {
        self.cpus_of(&Owner::Guest(name.clone())).len() as u32
    }

    /// The number of cores of a guest. A core may have fewer CPUs than `step`.
    fn cores_of(&self, name: &TenantName) -> u32 {
        let owns = |it: &&Core| matches!(&it.owner, Owner::Guest(owner) if owner == name);
        self.cores.iter().filter(owns).count() as u32
    }

    /// Sets the number of a guest's cores, as far as there are; returns the number of CPUs they count as.
    fn give(&mut self, name: &TenantName, cores: u32) -> u32 {
        self.own(&Owner::Guest(name.clone()), cores as usize) as u32 * self.step
    }

    /// Sets the number of an owner's cores, as far as there are; returns how many it has.
    fn own(&mut self, owner: &Owner, cores: usize) -> usize {
        let mut has: Vec<usize> = (0..self.cores.len())
            .filter(|at| self.cores[*at].owner == *owner)
            .collect();
        while has.len() > cores {
            // The core with the fewest others of the owner in its last-level cache, of these the last.
            let near = |at: &usize| {
                has.iter()
                    .filter(|it| self.cores[**it].llc == self.cores[*at].llc)
                    .count()
            };
            let Some(leaves) = has
                .iter()
                .copied()
                .min_by_key(|at| (near(at), std::cmp::Reverse(*at)))
            else {
                break;
            };
            self.cores[leaves].owner = Owner::Nobody;
            has.retain(|it| *it != leaves);
        }
        while has.len() < cores {
            let near = |at: &usize| {
                has.iter()
                    .filter(|it| self.cores[**it].llc == self.cores[*at].llc)
                    .count()
            };
            let free = (0..self.cores.len()).filter(|at| self.cores[*at].owner == Owner::Nobody);
            let Some(comes) = free.max_by_key(|at| (near(at), std::cmp::Reverse(*at))) else {
                break;
            };
            self.cores[comes].owner = owner.clone();
            has.push(comes);
        }
        has.len()
    }

    /// Gives cores to owners that lack them from the owner with the most, one after the other, as long as
    /// that owner then has no fewer than the other. Returns what every guest lacks of `wants`. `rest`: the
    /// number of CPUs that the idle pool should have.
    fn even_out(
        &mut self,
        now_ns: u64,
        wants: &BTreeMap<TenantName, u32>,
        rest: u32,
    ) -> BTreeMap<TenantName, u32> {
        // Each core moves once at most: where cores differ in size, a move back could be more equal again.
        for _ in 0..self.cores.len() {
            let Some((from, to)) = self.uneven(wants, rest) else {
                break;
            };
            for (owner, gets) in [(from, false), (to, true)] {
                // A core that a guest gives up goes to the idle pool, and the core that it gets comes
                // from there.
                let Owner::Guest(name) = owner else {
                    continue;
                };
                let (before, cores) = (self.of(&name), self.cores_of(&name));
                let cores = if gets {
                    cores + 1
                } else {
                    cores.saturating_sub(1)
                };
                let has = self.give(&name, cores);
                self.now_has(&name, has, before, now_ns);
            }
        }
        let lacks = wants.iter().map(|(name, cpus)| {
            let lacks = cpus.saturating_sub(self.cores_of(name) * self.step);
            (name.clone(), lacks)
        });
        lacks.filter(|it| it.1 > 0).collect()
    }

    /// The owner with the most, and the one with the least of those that lack cores, if moving a core from
    /// the one to the other makes them more equal.
    fn uneven(&self, wants: &BTreeMap<TenantName, u32>, rest: u32) -> Option<(Owner, Owner)> {
        // Guests have already got the part of the idle pool that is not needed there.
        let idle = (self.idle(), self.idle() < rest, Owner::Nobody);
        let guests = self.guests.keys().map(|name| {
            let counts = self.cores_of(name) * self.step;
            let lacks = wants.get(name).is_some_and(|cpus| counts < *cpus);
            (self.of(name), lacks, Owner::Guest(name.clone()))
        });
        let all: Vec<_> = guests.chain([idle]).collect();
        let from = all.iter().max_by_key(|it| it.0)?;
        let to = all.iter().filter(|it| it.1).min_by_key(|it| it.0)?;
        let apart = to.0 + self.step <= from.0.saturating_sub(self.step);
        apart.then(|| (from.2.clone(), to.2.clone()))
    }

    /// Keeps a core in the idle pool if a tenant has no group; with one core, that is the emulators' core.
    fn keep_one_idle(&mut self, now_ns: u64, seen: &[Seen<'_>], others: bool) {
        let without = others || seen.iter().any(|it| self.of(it.name) == 0);
        let idle = self.cores.iter().any(|it| it.owner == Owner::Nobody);
        if !without || idle {
            return;
        }
        self.take_from_largest(now_ns);
    }

    /// Takes a core from the largest group.
    fn take_from_largest(&mut self, now_ns: u64) {
        let groups = self.guests.keys().map(|name| (self.of(name), name));
        let Some((cpus, name)) = groups
            .max_by_key(|it| it.0)
            .map(|(cpus, name)| (cpus, name.clone()))
        else {
            return;
        };
        if cpus == 0 {
            return;
        }
        let has = self.give(&name, self.cores_of(&name).saturating_sub(1));
        self.now_has(&name, has, cpus, now_ns);
    }

    fn now_has(&mut self, name: &TenantName, has: u32, before: u32, now_ns: u64) {
        let Some(managed) = self.guests.get_mut(name) else {
            return;
        };
        managed.own = has > 0;
        // A guest without a group will begin again with what it had.
        if managed.own {
            managed.guest.has(has, before, now_ns, &self.settings);
        }
    }

    fn cpus_of(&self, owner: &Owner) -> CpuSet {
        let cores = self.cores.iter().filter(|it| it.owner == *owner);
        cores
            .flat_map(|it| it.cpus.iter().collect::<Vec<_>>())
            .collect()
    }

    /// The verdict for the placement service. `kept`: the number of cores needed in the idle pool. `lacked`:
    /// whether cores lacked in this second. `elsewhere`, `lacks`: the number of cores that the emulators and
    /// the idle pool still lack, and of CPUs that guests still lack.
    fn verdict(
        &mut self,
        now_ns: u64,
        lacked: bool,
        elsewhere: u32,
        lacks: &BTreeMap<TenantName, u32>,
        kept: usize,
    ) -> Verdict {
        let idle = self
            .cores
            .iter()
            .filter(|it| it.owner == Owner::Nobody)
            .count();
        let spare = idle.saturating_sub(kept);
        self.history.push_back(Past {
            at_ns: now_ns,
            idle,
            spare,
            lacked,
        });
        while self
            .history
            .front()
            .is_some_and(|it| it.at_ns + VERDICT_NS < now_ns)
        {
            self.history.pop_front();
        }
        let all = || self.history.iter();
        // A state that was observed for less than `VERDICT_NS` is not constant.
        let constant = all()
            .next()
            .is_some_and(|it| now_ns - it.at_ns >= VERDICT_NS - VERDICT_NS / 60);
        let seconds = VERDICT_NS / 1_000_000_000;
        let (advice, why) = match constant {
            false => (
                Advice::Hold,
                format!("it was seen for less than {seconds} s"),
            ),
            true if all().all(|it| it.lacked) => (
                Advice::Migrate,
                format!("cores lacked throughout the last {seconds} s"),
            ),
            true if all().all(|it| it.spare > ROOM && !it.lacked) => {
                let why = format!("more than {ROOM} cores idled throughout the last {seconds} s");
                (Advice::Accept, why)
            }
            true => {
                let why = format!(
                    "in the last {seconds} s not always more than {ROOM} cores idled, nor did cores always lack"
                );
                (Advice::Hold, why)
            }
        };
        let holding = |name: &TenantName| Holding {
            name: name.clone(),
            cores: self.of(name).div_ceil(self.step),
            lacks: lacks.get(name).map_or(0, |it| it.div_ceil(self.step)),
        };
        let holdings: Vec<Holding> = self.guests.keys().map(holding).collect();
        let what_if = what_if(&holdings, elsewhere, spare as u32, self.step);
        let would_free = |it: &WhatIf| (it.name.clone(), it.frees);
        let mut would_free: Vec<(TenantName, u32)> = what_if.iter().map(would_free).collect();
        would_free.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let least = all().map(|it| it.idle).min().unwrap_or(idle);
        let most = all().map(|it| it.idle).max().unwrap_or(idle);
        Verdict {
            advice,
            why,
            idle_cores: [idle, least, most],
            until_ns: now_ns + VERDICT_NS,
            would_free,
            what_if,
        }
    }
}
