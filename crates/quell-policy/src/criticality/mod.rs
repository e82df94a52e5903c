//! The policy of the mechanism criticality: which tenants get promised CPU time, on which CPUs, and the
//! terms of each CPU's servers (Akita, sections 3 and 4.3).
//!
//! # Problem
//! Tenants come and go while others run on promises. A promise must be given only where it can be kept
//! beside all others, and giving, moving or ending one must not break another.
//!
//! # Approach
//! This policy is around the policy that decides on weights: promises come before weights, and the
//! rest of the inner policy's plans does not change. A tenant that asks is placed by [`Host::admit`],
//! first fit, or refused until something changes. Its threads are then bound to the CPUs, and served
//! there by the servers' numbers.
//!
//! Two changes have to wait (ours). A new tenant changes the virtual deadlines of others on its CPU,
//! which holds from their next periods on: it is served once each of them has begun one. And a tenant
//! that leaves has its promise until the end of its period, so its room is given away after that.
//!
//! A tenant that asks for other terms need not leave. Its CPU must have room for a server of the
//! greater of both utilizations, in either mode: that room is kept free for it from then on. Once the
//! others there have virtual deadlines that are right beside that server, the tenant has the new terms
//! from its next period on, and the room that it needs no more is given away after its last period by
//! the old terms. Where there is no room the tenant keeps its old terms. A configuration that asks for
//! that is refused before ([`conflict`]).
//!
//! Promises outlive the policy: each plan has all of them ([`Plan::reservations`]), and a policy that
//! replaces another continues from there ([`Promises::after`]).
//!
//! # RQS
//! The paper says that low-criticality vCPUs are moved by a mechanism of that name, and not how it
//! works. Ours: a vCPU of low criticality that over [`SHORT_PERIODS`] control periods, and over at least
//! [`JUDGED_PERIODS`] of its own, wanted its budget and got less than nine tenths of it is on a CPU that
//! stays in HI mode; it moves to the next CPU that has room for it. Where it fares no better it moves
//! on, after twice as many periods each time (at most [`MOST_SHORT_PERIODS`]), since no promise is
//! served on the way; each period in which it lacks nothing takes one off that number. VCPUs of high
//! criticality never move, except where their CPU goes offline.
//!
//! The judgement is over all of those periods and not in each: the time that high criticality leaves
//! comes once in *its* period, so that some control periods have all of it and the next ones nothing.
//!
//! # Emulator threads
//! A virtual machine answers no request while its emulator threads wait. So the server of its first
//! vCPU serves them too, from the same budget, unless their owner binds any of them (ours: the paper's
//! are in a domain with cores of its own).
//!
//! # Limits
//! A process's threads are spread over its servers by their ids, not by their need. The owner's
//! affinity of the threads is read when the tenant is placed: a thread that is bound elsewhere later is
//! left there by the actuator, which reports it.

mod changes;

pub use changes::{Conflict, Owed, conflict};

use crate::Policy;
use crate::admission::{
    Change, Host, Placed, Refusal, Verdict, parts, reserve, served, virtual_deadline_ns,
};
use changes::{either, host_of, no_room};
use quell_model::config::{Criticality, CriticalitySettings, Server};
use quell_model::{
    CpuId, CpuSet, Lever, NextTerms, Plan, Promise, Reason, Reservation, Rule, ServerPlan,
    ServerTerms, Snapshot, TenantName, TenantSample, ThreadRole, ThreadSample,
};
use std::collections::{BTreeMap, BTreeSet};

/// The number of control periods with too little of its budget after which a vCPU of low criticality moves.
pub const SHORT_PERIODS: u32 = 5;
/// The greatest such number, reached where moving did not help.
pub const MOST_SHORT_PERIODS: u32 = 640;
/// The fewest of a server's own periods that are judged: a budget that is kept may come at the end of
/// the first of them and at the start of the last, and even then it is nine tenths of what is due over
/// all of them.
pub const JUDGED_PERIODS: u64 = 10;
/// Servers have numbers from 1 to this, as many as Quell's scheduler keeps.
const NUMBERS: u32 = 1023;

/// The policy of the mechanism criticality, around the policy that decides on weights.
pub struct Promises {
    weights: Box<dyn Policy>,
    settings: CriticalitySettings,
    host: Host,
    held: BTreeMap<TenantName, Held>,
    refused: BTreeMap<TenantName, Refused>,
    /// The number of times that room became free.
    changes: u64,
    /// The number that was given to a server last.
    number: u32,
    /// The tenants whose promise ended in this period: their threads are still bound for it.
    released: BTreeSet<TenantName>,
}

/// A tenant that has a promise.
#[derive(Debug)]
struct Held {
    server: Server,
    next: Option<NextTerms>,
    vcpus: Vec<Vcpu>,
    /// The time from which on the tenant is gone and its room is given away; `None`: it stays.
    leaves_ns: Option<u64>,
}

#[derive(Debug)]
struct Vcpu {
    cpu: CpuId,
    number: u32,
    /// The time from which on the vCPU is served, by these terms only.
    from_ns: u64,
    /// The CPUs that its threads' owner lets them run on; `None`: all.
    allowed: Option<CpuSet>,
    /// The service since the vCPU was last judged.
    got: Got,
    /// The number of control periods after which the vCPU is judged, and moves if it got too little.
    patience: u32,
    /// Whether its server serves the virtual machine's emulator threads too.
    emulators: bool,
    /// The reason to report in the next plan.
    reason: Option<Reason>,
}

/// The service of a vCPU over some control periods.
#[derive(Debug, Default)]
struct Got {
    periods: u32,
    /// The total length of the periods.
    span_ns: u64,
    ran_ns: u64,
    /// The time in which its threads were ready and did not run.
    ready_ns: u64,
}

/// A tenant without a promise, and the number of times that room had become free when it was refused.
#[derive(Debug)]
struct Refused {
    asked: (Server, u32),
    /// The CPUs that each of its vCPUs might have run on; `None`: all.
    allowed: Vec<Option<CpuSet>>,
    changes: u64,
    why: String,
}

impl Promises {
    /// A policy around `weights`, without a promise yet.
    pub fn new(settings: CriticalitySettings, weights: Box<dyn Policy>) -> Promises {
        Promises::after(settings, weights, &[])
    }

    /// A policy around `weights` that continues the promises of an earlier one ([`Plan::reservations`]): they
    /// stay on their CPUs and keep their numbers.
    pub fn after(
        settings: CriticalitySettings,
        weights: Box<dyn Policy>,
        given: &[Reservation],
    ) -> Promises {
        let mut held: BTreeMap<TenantName, Held> = BTreeMap::new();
        let mut by_vcpu: Vec<&Reservation> = given.iter().collect();
        by_vcpu.sort_by_key(|it| it.vcpu);
        for it in by_vcpu {
            let held = held.entry(it.tenant.clone()).or_insert_with(|| Held {
                server: it.server,
                next: it.next,
                vcpus: Vec::new(),
                leaves_ns: it.leaves_ns,
            });
            held.vcpus.push(Vcpu {
                cpu: it.cpu,
                number: it.number,
                from_ns: it.from_ns,
                allowed: it.allowed.clone(),
                got: Got::default(),
                patience: it.patience,
                emulators: it.emulators,
                reason: it.reason.clone(),
            });
        }
        Promises {
            weights,
            settings,
            host: host_of(given, settings),
            held,
            refused: BTreeMap::new(),
            changes: 0,
            number: given.iter().map(|it| it.number).max().unwrap_or(0),
            released: BTreeSet::new(),
        }
    }

    fn refuse(
        &mut self,
        tenant: TenantName,
        asked: (Server, u32),
        allowed: Vec<Option<CpuSet>>,
        why: String,
    ) {
        let changes = self.changes;
        let refused = Refused {
            asked,
            allowed,
            changes,
            why,
        };
        self.refused.insert(tenant, refused);
    }

    /// A free number; `None`: all are in use.
    fn next_number(&mut self) -> Option<u32> {
        let given: BTreeSet<u32> = self
            .held
            .values()
            .flat_map(|held| held.vcpus.iter().map(|vcpu| vcpu.number))
            .collect();
        let candidates = (1..=NUMBERS).map(|step| (self.number + step - 1) % NUMBERS + 1);
        self.number = candidates.into_iter().find(|it| !given.contains(it))?;
        Some(self.number)
    }

    /// Follows the host's CPUs that went on- and offline.
    fn follow_cpus(&mut self, online: &CpuSet, now: u64) {
        let there = self.host.cpus().iter().map(|(cpu, _)| *cpu);
        if there.eq(online.iter()) {
            return;
        }
        self.changes += 1;
        let mut evicted = self.host.keep_cpus(online);
        evicted.sort_by_key(|it| std::cmp::Reverse(it.server.criticality));
        for placed in evicted {
            let Some(held) = self.held.get(&placed.tenant) else {
                continue;
            };
            let (tenant, vcpu) = (placed.tenant.clone(), placed.vcpu);
            match (self.host).place(placed, &held.vcpus[vcpu as usize].allowed) {
                Some(cpu) => {
                    self.served_on(&tenant, vcpu, cpu, now, Rule::Promised, "went offline")
                }
                None => {
                    self.host.remove(&tenant);
                    if let Some(held) = self.held.remove(&tenant) {
                        let asked = (held.asked_for(), held.vcpus.len() as u32);
                        let allowed = held.vcpus.into_iter().map(|it| it.allowed);
                        let why = "its CPU went offline, and no other has room for it";
                        self.released.insert(tenant.clone());
                        self.refuse(tenant, asked, allowed.collect(), why.into());
                    }
                }
            }
        }
    }

    /// Moves one of a tenant's servers to a CPU on which `host` has it already.
    fn served_on(
        &mut self,
        tenant: &TenantName,
        vcpu: u32,
        cpu: CpuId,
        now: u64,
        rule: Rule,
        why: &str,
    ) {
        let Some(number) = self.next_number() else {
            return;
        };
        let from_ns = self.others_ns(cpu, tenant, now);
        let Some(held) = self.held.get_mut(tenant) else {
            return;
        };
        let it = &mut held.vcpus[vcpu as usize];
        let text = format!("served on CPU {cpu}: CPU {} {why}", it.cpu);
        *it = Vcpu {
            cpu,
            number,
            from_ns,
            allowed: it.allowed.take(),
            got: Got::default(),
            patience: it.patience,
            emulators: it.emulators,
            reason: Some(Reason { rule, text }),
        };
    }

    /// The time up to which other servers on that CPU may have deadlines that are not yet right beside the
    /// tenant.
    fn others_ns(&self, cpu: CpuId, tenant: &TenantName, now: u64) -> u64 {
        let all = self.host.cpus().iter().find(|(id, _)| *id == cpu);
        let others = all.into_iter().flat_map(|(_, placed)| placed);
        let others = others.filter(|it| it.tenant != *tenant);
        let others = others.filter_map(|it| self.held.get(&it.tenant));
        // Servers of low criticality have no virtual deadlines.
        let high = others.filter(|it| it.server.criticality == Criticality::High);
        let over_ns = |it: &Held| it.next.and_then(|next| next.over_ns).unwrap_or(0);
        let ends = high.map(|it| over_ns(it).max(now + it.server.period_ns));
        ends.max().unwrap_or(now)
    }

    /// Ends the promises of tenants that ended, or that ask for terms that are no change of theirs.
    fn release(&mut self, snapshot: &Snapshot) {
        let now = snapshot.time_ns;
        let asks = |name: &TenantName, held: &Held| {
            let asked = snapshot.tenant(name).and_then(asked);
            asked.is_some_and(|(server, vcpus)| {
                server.criticality == held.server.criticality && vcpus as usize == held.vcpus.len()
            })
        };
        let (host, changes) = (&mut self.host, &mut self.changes);
        let released = &mut self.released;
        self.held.retain(|name, held| {
            if asks(name, held) {
                held.leaves_ns = None;
                return true;
            }
            let over_ns = held.next.and_then(|it| it.over_ns).unwrap_or(0);
            let leaves_ns = now + held.server.period_ns;
            let leaves_ns = *held.leaves_ns.get_or_insert(leaves_ns.max(over_ns));
            if now < leaves_ns {
                return true;
            }
            host.remove(name);
            *changes += 1;
            released.insert(name.clone());
            false
        });
    }

    /// Begins the changes of terms of tenants that have a promise.
    fn change(&mut self, snapshot: &Snapshot) {
        let now = snapshot.time_ns;
        let names: Vec<TenantName> = self.held.keys().cloned().collect();
        for name in names {
            self.go_over(&name, now);
            let Some(held) = self.held.get(&name).filter(|it| it.leaves_ns.is_none()) else {
                continue;
            };
            let Some((server, vcpus)) = snapshot.tenant(&name).and_then(asked) else {
                continue;
            };
            let known = self.refused.get(&name);
            let tried =
                known.is_some_and(|it| it.changes == self.changes && it.asked == (server, vcpus));
            if server == held.asked_for() || held.next.is_some() || tried {
                continue;
            }
            let cpus: Vec<CpuId> = held.vcpus.iter().map(|it| it.cpu).collect();
            let room = either(&held.server, &server);
            let waits = room != held.server;
            match self.host.replace(&name, &room) {
                Ok(()) => {
                    let others = cpus.iter().map(|cpu| self.others_ns(*cpu, &name, now));
                    let next = NextTerms {
                        server,
                        from_ns: others.max().filter(|_| waits).unwrap_or(now),
                        over_ns: None,
                    };
                    if let Some(held) = self.held.get_mut(&name) {
                        held.next = Some(next);
                    }
                    self.refused.remove(&name);
                    self.go_over(&name, now);
                }
                Err((cpu, condition)) => {
                    let why = no_room(&server, cpu, &condition);
                    self.refuse(name, (server, vcpus), Vec::new(), why);
                }
            }
        }
    }

    /// Carries out a tenant's change of terms, as far as it is due.
    fn go_over(&mut self, name: &TenantName, now: u64) {
        let Some(held) = self.held.get_mut(name) else {
            return;
        };
        let Some(next) = &mut held.next else {
            return;
        };
        match next.over_ns {
            None if now >= next.from_ns => {
                next.over_ns = Some(now + held.server.period_ns);
                held.server = next.server;
                let ms = |ns: u64| ns as f64 / 1e6;
                let text = format!(
                    "promised {} of every {} ms from its next period on",
                    ms(held.server.budget_ns),
                    ms(held.server.period_ns)
                );
                let rule = Rule::Promised;
                for vcpu in &mut held.vcpus {
                    let text = text.clone();
                    vcpu.reason = Some(Reason { rule, text });
                }
            }
            Some(over_ns) if now >= over_ns => {
                held.next = None;
                for vcpu in &mut held.vcpus {
                    // The vCPU is judged by its service from here on.
                    vcpu.from_ns = vcpu.from_ns.max(over_ns);
                    vcpu.got = Got::default();
                }
                let server = held.server;
                // The new terms fit, since the room for both fitted.
                if self.host.replace(name, &server).is_ok() {
                    self.changes += 1;
                }
            }
            _ => {}
        }
    }

    /// Admits the tenants that ask and have no promise yet.
    fn admit(&mut self, snapshot: &Snapshot) {
        self.refused
            .retain(|name, refused| snapshot.tenant(name).and_then(asked) == Some(refused.asked));
        for sample in &snapshot.tenants {
            let Some((server, vcpus)) = asked(sample) else {
                continue;
            };
            // The owner's affinity is visible only once the threads are not bound any more.
            let is_bound = self.released.contains(&sample.name);
            if is_bound || self.held.contains_key(&sample.name) {
                continue;
            }
            let online = snapshot.host.topology.online();
            let allowed = allowed(sample, vcpus as usize, &online);
            let known = self.refused.get(&sample.name);
            if known.is_some_and(|it| it.changes == self.changes && it.allowed == allowed) {
                continue;
            }
            match self.host.admit_on(&sample.name, &server, &allowed) {
                Ok(cpus) => self.promise(sample, server, &cpus, &allowed, snapshot),
                Err(refusal) => {
                    let why = match refusal.placed < vcpus {
                        true => words(&refusal),
                        false => not_allowed(&allowed),
                    };
                    let name = sample.name.clone();
                    self.refuse(name, (server, vcpus), allowed, why);
                }
            }
        }
    }

    fn promise(
        &mut self,
        sample: &TenantSample,
        server: Server,
        cpus: &[CpuId],
        allowed: &[Option<CpuSet>],
        snapshot: &Snapshot,
    ) {
        self.refused.remove(&sample.name);
        let follow = emulators_follow(sample, &snapshot.host.topology.online());
        let held = Held {
            server,
            next: None,
            vcpus: Vec::new(),
            leaves_ns: None,
        };
        self.held.insert(sample.name.clone(), held);
        for (&cpu, within) in cpus.iter().zip(allowed) {
            let Some(number) = self.next_number() else {
                // There are more servers than numbers: none of the tenant's is served, rather than some.
                self.held.remove(&sample.name);
                self.host.remove(&sample.name);
                let why = format!("there are {NUMBERS} servers already");
                let asked = (server, cpus.len() as u32);
                self.refuse(sample.name.clone(), asked, allowed.to_vec(), why);
                return;
            };
            let ms = |ns: u64| ns as f64 / 1e6;
            let text = format!(
                "promised {} of every {} ms on CPU {cpu}",
                ms(server.budget_ns),
                ms(server.period_ns)
            );
            let from_ns = self.others_ns(cpu, &sample.name, snapshot.time_ns);
            if let Some(held) = self.held.get_mut(&sample.name) {
                let emulators = follow && held.vcpus.is_empty();
                held.vcpus.push(Vcpu {
                    cpu,
                    number,
                    from_ns,
                    allowed: within.clone(),
                    got: Got::default(),
                    patience: SHORT_PERIODS,
                    emulators,
                    reason: Some(Reason {
                        rule: Rule::Promised,
                        text,
                    }),
                });
            }
        }
    }

    /// Moves servers of low criticality that do not get what they were promised.
    fn relocate(&mut self, snapshot: &Snapshot) {
        let mut short = Vec::new();
        for sample in &snapshot.tenants {
            let Some(held) = self.held.get_mut(&sample.name) else {
                continue;
            };
            // Tenants that leave or whose terms change are not judged either.
            let is_low = held.server.criticality == Criticality::Low;
            if !is_low || held.leaves_ns.is_some() || held.next.is_some() {
                continue;
            }
            let places = held.places();
            for (number, vcpu) in held.vcpus.iter_mut().enumerate() {
                if vcpu.from_ns + snapshot.period_ns > snapshot.time_ns {
                    continue;
                }
                vcpu.got.periods += 1;
                vcpu.got.span_ns += snapshot.period_ns;
                for thread in &sample.threads {
                    if vcpu_of(sample, thread, places) == Some(number) {
                        vcpu.got.ran_ns += thread.run_ns;
                        vcpu.got.ready_ns += thread.ready.as_ref().map_or(0, |it| it.sum_ns);
                    }
                }
                if vcpu.got.periods < vcpu.patience
                    || vcpu.got.span_ns < JUDGED_PERIODS * held.server.period_ns
                {
                    continue;
                }
                let got = std::mem::take(&mut vcpu.got);
                let due = held.server.utilization() * got.span_ns as f64;
                let (ran, wanted) = (got.ran_ns as f64, (got.ran_ns + got.ready_ns) as f64);
                if ran >= 0.9 * due || wanted < due {
                    vcpu.patience = vcpu.patience.saturating_sub(got.periods);
                    vcpu.patience = vcpu.patience.max(SHORT_PERIODS);
                } else {
                    vcpu.patience = (2 * got.periods).min(MOST_SHORT_PERIODS);
                    short.push((sample.name.clone(), number as u32));
                }
            }
        }
        for (tenant, vcpu) in short {
            let held = self.held.get(&tenant);
            let allowed = held.map(|it| &it.vcpus[vcpu as usize].allowed);
            let Some(cpu) = allowed.and_then(|it| self.host.relocate(&tenant, vcpu, it)) else {
                continue;
            };
            self.changes += 1;
            let why = "keeps serving only high criticality";
            self.served_on(&tenant, vcpu, cpu, snapshot.time_ns, Rule::Moved, why);
        }
    }

    /// The terms of a server on a CPU with that verdict of the admission test.
    fn terms(&self, server: Server, verdict: &Verdict) -> ServerTerms {
        let server = served(self.settings.test, &server);
        ServerTerms {
            server,
            virtual_deadline_ns: virtual_deadline_ns(&server, verdict.deadline_factor),
            parts: if verdict.divisible { parts(&server) } else { 1 },
            temperature: self.settings.temperature,
        }
    }

    /// All promises, for the policy that comes after this one.
    fn given(&self) -> Vec<Reservation> {
        let placed = self.host.cpus().iter();
        let placed = placed.flat_map(|(cpu, placed)| placed.iter().map(move |it| (*cpu, it)));
        let given = placed.filter_map(|(cpu, placed)| {
            let held = self.held.get(&placed.tenant)?;
            let it = held.vcpus.get(placed.vcpu as usize)?;
            Some(Reservation {
                tenant: placed.tenant.clone(),
                vcpu: placed.vcpu,
                cpu,
                number: it.number,
                server: held.server,
                room: placed.server,
                next: held.next,
                from_ns: it.from_ns,
                leaves_ns: held.leaves_ns,
                patience: it.patience,
                emulators: it.emulators,
                allowed: it.allowed.clone(),
                reason: it.reason.clone(),
            })
        });
        given.collect()
    }

    /// Adds the promises to a plan that has weights.
    fn fill(&mut self, plan: &mut Plan, snapshot: &Snapshot) {
        let now = snapshot.time_ns;
        for (cpu, placed) in self.host.cpus() {
            let Some(verdict) = self.host.verdict(*cpu).filter(|_| !placed.is_empty()) else {
                continue;
            };
            let mut add = |number: u32, terms: ServerTerms| {
                plan.servers.push(ServerPlan {
                    number,
                    cpu: *cpu,
                    terms,
                });
            };
            if let Some(reserve) = reserve(&self.settings) {
                let terms = self.terms(reserve, &verdict);
                // The best-effort server's period begins once a whole budget is owed.
                add(0, ServerTerms { parts: 1, ..terms });
            }
            for Placed { tenant, vcpu, .. } in placed {
                let Some(held) = self.held.get(tenant) else {
                    continue;
                };
                let vcpu = &held.vcpus[*vcpu as usize];
                if vcpu.from_ns <= now {
                    let terms = self.terms(held.server, &verdict);
                    // The CPU has room for the parts of either terms, but not for the parts of both together.
                    let parts = if held.next.is_some() { 1 } else { terms.parts };
                    add(vcpu.number, ServerTerms { parts, ..terms });
                }
            }
        }
        for tenant in &mut plan.tenants {
            let why = self.refused.get(&tenant.name).map(|it| it.why.clone());
            tenant.promise = why.clone().map(|why| Promise::Refused { why });
            let Some(held) = self.held.get_mut(&tenant.name) else {
                continue;
            };
            let Some(sample) = snapshot.tenant(&tenant.name) else {
                continue;
            };
            let cpus = held.vcpus.iter().map(|vcpu| vcpu.cpu).collect();
            tenant.promise = Some(match held.vcpus.iter().all(|it| it.from_ns <= now) {
                true => Promise::Kept {
                    cpus,
                    unchanged: why,
                },
                false => Promise::Awaited { cpus },
            });
            let places = held.places();
            tenant.complete(sample);
            for thread in &mut tenant.threads {
                let seen = sample.thread(thread.id);
                let number = seen.and_then(|it| vcpu_of(sample, it, places));
                let Some(vcpu) = number.map(|number| &mut held.vcpus[number]) else {
                    continue;
                };
                if vcpu.from_ns > now {
                    continue;
                }
                thread.server = Some(vcpu.number);
                thread.cpus = Some([vcpu.cpu].into_iter().collect());
                thread.reasons.extend(vcpu.reason.take());
            }
        }
    }
}

impl Policy for Promises {
    fn name(&self) -> &'static str {
        "criticality"
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        let mut plan = self.weights.decide(snapshot);
        self.released.clear();
        self.follow_cpus(&snapshot.host.topology.online(), snapshot.time_ns);
        self.release(snapshot);
        self.change(snapshot);
        self.admit(snapshot);
        self.relocate(snapshot);
        self.fill(&mut plan, snapshot);
        plan.reservations = self.given();
        plan
    }

    fn allow(&mut self, lever: Lever, acts: bool) {
        self.weights.allow(lever, acts);
    }
}

impl Held {
    /// The terms that the tenant asked for last, which it is promised now or after a change.
    fn asked_for(&self) -> Server {
        self.next.map_or(self.server, |it| it.server)
    }

    fn places(&self) -> Places {
        Places {
            vcpus: self.vcpus.len(),
            emulators: self.vcpus.iter().position(|it| it.emulators),
        }
    }
}

/// The servers that serve a tenant's threads.
#[derive(Debug, Clone, Copy)]
struct Places {
    /// The number of the tenant's servers.
    vcpus: usize,
    /// The server of the virtual machine's emulator threads; `None`: none.
    emulators: Option<usize>,
}

/// The server that a tenant asks for, and the number of its vCPUs, once it has threads.
fn asked(sample: &TenantSample) -> Option<(Server, u32)> {
    let server = sample.spec.server()?;
    if sample.threads.is_empty() {
        return None;
    }
    let vcpus = sample.spec.vcpus.unwrap_or_else(|| {
        let threads = sample.threads.iter();
        let vcpus = threads.filter(|it| matches!(it.role, ThreadRole::Vcpu(_)));
        vcpus.count().max(1) as u32
    });
    Some((server, vcpus))
}

/// For each of `count` vCPUs the CPUs on which the owner lets all its threads run; `None`: all that are
/// online.
fn allowed(sample: &TenantSample, count: usize, online: &CpuSet) -> Vec<Option<CpuSet>> {
    let mut allowed: Vec<Option<CpuSet>> = vec![None; count];
    for thread in &sample.threads {
        let affinity = &thread.settings.affinity;
        // Emulator threads are served with the first vCPU where their affinity allows it.
        let places = Places {
            vcpus: count,
            emulators: None,
        };
        let Some(vcpu) = vcpu_of(sample, thread, places).filter(|_| !online.is_subset(affinity))
        else {
            continue;
        };
        let so_far = allowed[vcpu].take();
        allowed[vcpu] = Some(so_far.map_or_else(
            || (**affinity).clone(),
            |so_far| so_far.intersection(affinity),
        ));
    }
    allowed
}

/// Why a tenant that there is room for has no promise.
fn not_allowed(allowed: &[Option<CpuSet>]) -> String {
    let mut sets = allowed.iter().flatten();
    match sets.clone().find(|set| set.is_empty()) {
        Some(_) => "there is no CPU that its owner lets all threads of a virtual CPU run on".into(),
        None => {
            let sets: BTreeSet<String> = sets.by_ref().map(ToString::to_string).collect();
            let sets: Vec<String> = sets.into_iter().collect();
            format!(
                "there is room for it, but not where its owner lets it run: CPUs {}",
                sets.join("; ")
            )
        }
    }
}

/// Whether the owner of a virtual machine's emulator threads lets them all run on all CPUs.
fn emulators_follow(sample: &TenantSample, online: &CpuSet) -> bool {
    let mut threads = sample.threads.iter();
    threads
        .all(|it| matches!(it.role, ThreadRole::Vcpu(_)) || online.is_subset(&it.settings.affinity))
}

/// The number of the tenant's vCPU that a thread is, or is served with; `None`: none.
fn vcpu_of(sample: &TenantSample, thread: &ThreadSample, places: Places) -> Option<usize> {
    let is_vm = sample
        .threads
        .iter()
        .any(|it| matches!(it.role, ThreadRole::Vcpu(_)));
    match thread.role {
        ThreadRole::Vcpu(number) => Some(number as usize).filter(|it| *it < places.vcpus),
        _ if is_vm => places.emulators,
        _ => Some(thread.id.tid.0 as usize % places.vcpus.max(1)),
    }
}

/// A refusal as a sentence.
fn words(refusal: &Refusal) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let change = refusal.changes.first().map(|change| match change {
        Change::BudgetNs(ns) => format!("; a budget of {} ms would fit", ms(*ns)),
        Change::PessimisticBudgetNs(ns) => {
            format!("; a pessimistic budget of {} ms would fit", ms(*ns))
        }
        Change::PeriodNs(ns) => format!("; a period of {} ms would do", ms(*ns)),
        Change::Vcpus(vcpus) => format!("; {vcpus} virtual CPUs would fit"),
    });
    let change = change.unwrap_or_default();
    match (&refusal.condition, refusal.nearest) {
        (Some(condition), Some(cpu)) => format!(
            "{} does not hold, on CPU {cpu} least: {:.3}{change}",
            condition.what, condition.value
        ),
        _ => format!("there are not as many CPUs{change}"),
    }
}
