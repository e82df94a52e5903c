//! The criticality mechanism's decision: who gets promised CPU time, where, and what a CPU is to be told (Akita, sections 3 and 4.3).
//!
//! # Problem
//! Tenants come and go while others run on promises. A promise must be given only where it can be kept beside all others, and
//! giving, moving or ending one must not break another.
//!
//! # Approach
//! Around the policy that decides on weights: what is promised comes before those, and nothing else of its plans changes. A tenant
//! that asks is placed by [`Host::admit`], first fit, or refused until something changes. Its threads are then bound to the CPUs, and
//! served there by number.
//!
//! Two things have to wait (ours). A newcomer changes how early others' virtual deadlines on its CPU are, which holds from
//! their next periods on: it is served once each has begun one. And who leaves has until the end of its period what it was promised,
//! so its room is given away after that.
//!
//! Nor does one that asks for other terms have to leave. Its CPU must have room for a server of the greater of both
//! utilizations, in either mode: that is kept free for it from then on. Once the others there go by virtual deadlines right beside
//! that, it has the new terms from its next period on, and what it needs no more is given away after the last one by the old.
//! Where there is no room it keeps what it was promised. A configuration that asks for that is refused before ([`conflict`]).
//!
//! What was promised outlives the policy: each plan says all of it ([`Plan::given`]), and a policy that comes after another one
//! goes on from there ([`Promises::after`]).
//!
//! # RQS
//! The paper says that low-criticality vCPUs are moved by a mechanism of that name, and not how it works. Ours: one of low
//! criticality that over [`SHORT_PERIODS`] control periods, and over [`JUDGED_PERIODS`] of its own at the least, wanted its
//! budget and got less than nine tenths of it is on a CPU that stays in HI mode; it moves to the next CPU that has room for it.
//! Where it fares no better it moves on, after twice as many periods each time ([`MOST_SHORT_PERIODS`] at the most), since
//! nothing is promised to it on the way; each period in which it lacks nothing takes one off that. Those of high criticality
//! never move, but where their CPU goes offline.
//!
//! Over all of those periods and not in each: what high criticality leaves comes once in *its* period, so that some control
//! periods have all of it and the next ones nothing.
//!
//! # Emulator threads
//! A machine answers nobody while its emulator threads wait. So its first virtual CPU's server serves them too, from the same
//! budget, unless their owner binds any of them (ours: the paper's are in a domain with cores of its own).
//!
//! # Limits
//! A process's threads are spread over its servers by their ids, not by what they need. Where their owner lets them run is asked
//! when it is placed: who is bound elsewhere later is left there by the actuator, which says so.

mod changes;

pub use changes::{Conflict, conflict};

use crate::Policy;
use crate::admission::{
    Change, Host, Placed, Refusal, Verdict, parts, reserve, served, virtual_deadline_ns,
};
use changes::{either, host_of, no_room};
use quell_model::config::{Criticality, CriticalitySettings, Server};
use quell_model::{
    CpuId, CpuSet, GivenServer, Lever, NextTerms, Plan, Promise, Reason, Rule, ServerPlan,
    ServerTerms, Snapshot, TenantName, TenantSample, ThreadRole, ThreadSample,
};
use std::collections::{BTreeMap, BTreeSet};

/// Short of its budget over so many control periods, and one of low criticality moves.
pub const SHORT_PERIODS: u32 = 5;
/// And so many at the most where moving did not help.
pub const MOST_SHORT_PERIODS: u32 = 640;
/// So many of a server's own periods at the least: a budget that is kept may come at the end of the first of them and at the start
/// of the last, and is nine tenths of what is due over all even so.
pub const JUDGED_PERIODS: u64 = 10;
/// Servers have numbers from 1 to this: as many as Quell's scheduler keeps.
const NUMBERS: u32 = 1023;

/// Decides on promises, and around it on weights.
pub struct Promises {
    weights: Box<dyn Policy>,
    settings: CriticalitySettings,
    host: Host,
    held: BTreeMap<TenantName, Held>,
    refused: BTreeMap<TenantName, Refused>,
    /// How often there came to be more room.
    changes: u64,
    /// The number that was given last.
    number: u32,
    /// Those whose promise ended in this period: their threads are still bound for it.
    released: BTreeSet<TenantName>,
}

/// A tenant that was promised something.
#[derive(Debug)]
struct Held {
    server: Server,
    next: Option<NextTerms>,
    vcpus: Vec<Vcpu>,
    /// It is gone, and its room is given away from then on.
    leaves_ns: Option<u64>,
}

#[derive(Debug)]
struct Vcpu {
    cpu: CpuId,
    number: u32,
    /// It is served from then on, by no other terms.
    from_ns: u64,
    /// Where its threads' owner lets them run; `None`: everywhere.
    allowed: Option<CpuSet>,
    /// Since it was last judged.
    got: Got,
    /// It is judged after so many control periods, and moves if it got too little.
    patience: u32,
    /// Its server serves the machine's emulator threads too.
    emulators: bool,
    /// To say in the next plan.
    reason: Option<Reason>,
}

/// What a vCPU got in some control periods.
#[derive(Debug, Default)]
struct Got {
    periods: u32,
    /// How long those were.
    span_ns: u64,
    ran_ns: u64,
    /// Its threads were ready and did not run.
    ready_ns: u64,
}

/// One that was not, and how often there had been more room then.
#[derive(Debug)]
struct Refused {
    asked: (Server, u32),
    /// Where it might have run.
    allowed: Vec<Option<CpuSet>>,
    changes: u64,
    why: String,
}

impl Promises {
    /// With that for weights. Nothing is promised yet.
    pub fn new(settings: CriticalitySettings, weights: Box<dyn Policy>) -> Promises {
        Promises::after(settings, weights, &[])
    }

    /// The same where that was promised already ([`Plan::given`]): it stays, where it is and by the same numbers.
    pub fn after(
        settings: CriticalitySettings,
        weights: Box<dyn Policy>,
        given: &[GivenServer],
    ) -> Promises {
        let mut held: BTreeMap<TenantName, Held> = BTreeMap::new();
        let mut by_vcpu: Vec<&GivenServer> = given.iter().collect();
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

    /// A number that nobody has; `None`: all are given.
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

    /// What became of the host's CPUs.
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

    /// Moves one of a tenant's servers to a CPU that the host has it on already.
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

    /// Up to when others on that CPU may go by deadlines that are not yet right beside the tenant.
    fn others_ns(&self, cpu: CpuId, tenant: &TenantName, now: u64) -> u64 {
        let all = self.host.cpus().iter().find(|(id, _)| *id == cpu);
        let others = all.into_iter().flat_map(|(_, placed)| placed);
        let others = others.filter(|it| it.tenant != *tenant);
        let others = others.filter_map(|it| self.held.get(&it.tenant));
        // Those of low criticality have no virtual deadlines.
        let high = others.filter(|it| it.server.criticality == Criticality::High);
        let over_ns = |it: &Held| it.next.and_then(|next| next.over_ns).unwrap_or(0);
        let ends = high.map(|it| over_ns(it).max(now + it.server.period_ns));
        ends.max().unwrap_or(now)
    }

    /// Those that ended, or ask for something that is no change of terms.
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

    /// Those that have a promise and ask for other terms.
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

    /// A tenant's change of terms, as far as it is due.
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
                    // It is judged by what it gets from here on.
                    vcpu.from_ns = vcpu.from_ns.max(over_ns);
                    vcpu.got = Got::default();
                }
                let server = held.server;
                // It fits where there was room for more.
                if self.host.replace(name, &server).is_ok() {
                    self.changes += 1;
                }
            }
            _ => {}
        }
    }

    /// Those that ask and have nothing yet.
    fn admit(&mut self, snapshot: &Snapshot) {
        self.refused
            .retain(|name, refused| snapshot.tenant(name).and_then(asked) == Some(refused.asked));
        for sample in &snapshot.tenants {
            let Some((server, vcpus)) = asked(sample) else {
                continue;
            };
            // Where the owner lets threads run is seen once they are not bound any more.
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
                // More servers than there can be: none of the tenant's, rather than some.
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

    /// Those of low criticality that do not get what they were promised.
    fn relocate(&mut self, snapshot: &Snapshot) {
        let mut short = Vec::new();
        for sample in &snapshot.tenants {
            let Some(held) = self.held.get_mut(&sample.name) else {
                continue;
            };
            // Nor is who leaves judged, or whose terms change.
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

    /// What is promised on a CPU of which the test says that.
    fn terms(&self, server: Server, verdict: &Verdict) -> ServerTerms {
        let server = served(self.settings.test, &server);
        ServerTerms {
            server,
            virtual_deadline_ns: virtual_deadline_ns(&server, verdict.deadline_factor),
            parts: if verdict.divisible { parts(&server) } else { 1 },
            temperature: self.settings.temperature,
        }
    }

    /// All that was promised, for who comes after.
    fn given(&self) -> Vec<GivenServer> {
        let placed = self.host.cpus().iter();
        let placed = placed.flat_map(|(cpu, placed)| placed.iter().map(move |it| (*cpu, it)));
        let given = placed.filter_map(|(cpu, placed)| {
            let held = self.held.get(&placed.tenant)?;
            let it = held.vcpus.get(placed.vcpu as usize)?;
            Some(GivenServer {
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

    /// Puts promises into a plan that has weights.
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
                // Its period begins once a whole budget is owed.
                add(0, ServerTerms { parts: 1, ..terms });
            }
            for Placed { tenant, vcpu, .. } in placed {
                let Some(held) = self.held.get(tenant) else {
                    continue;
                };
                let vcpu = &held.vcpus[*vcpu as usize];
                if vcpu.from_ns <= now {
                    let terms = self.terms(held.server, &verdict);
                    // The CPU has room for the parts of either terms, but not for each of these.
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
        plan.given = self.given();
        plan
    }

    fn allow(&mut self, lever: Lever, acts: bool) {
        self.weights.allow(lever, acts);
    }
}

impl Held {
    /// What it asked for last, and is promised now or in a while.
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

/// Where a tenant's threads are served.
#[derive(Debug, Clone, Copy)]
struct Places {
    /// How many servers it has.
    vcpus: usize,
    /// The one with a machine's emulator threads.
    emulators: Option<usize>,
}

/// What a tenant asks for, and for how many virtual CPUs, once it has threads.
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

/// Where a tenant's owner lets the threads of each of so many virtual CPUs run, all of them; `None`: on all that are online.
fn allowed(sample: &TenantSample, count: usize, online: &CpuSet) -> Vec<Option<CpuSet>> {
    let mut allowed: Vec<Option<CpuSet>> = vec![None; count];
    for thread in &sample.threads {
        let affinity = &thread.settings.affinity;
        // Emulator threads come along where they may.
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

/// Whether the owner of a machine's emulator threads lets them all run everywhere.
fn emulators_follow(sample: &TenantSample, online: &CpuSet) -> bool {
    let mut threads = sample.threads.iter();
    threads
        .all(|it| matches!(it.role, ThreadRole::Vcpu(_)) || online.is_subset(&it.settings.affinity))
}

/// Which of its tenant's virtual CPUs a thread is, or runs on; `None`: none.
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

/// A refusal in a sentence.
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
