//! What servers received, read from a trace.

use super::random_host::{Drawn, number};
use quell_model::config::Criticality;
use quell_model::{CpuId, Tid};
use quell_policy::admission::reserve;
use quell_testkit::audit::{Audit, Enforcement, Event, Miss};
use quell_trace::{IDLE, Kind};
use std::collections::HashMap;

/// The books of all CPUs of a host.
pub(super) struct Books<'a> {
    drawn: &'a Drawn,
    /// By CPU: its audit, and its servers' numbers.
    cpus: Vec<(Audit, Vec<usize>)>,
    /// By server: its place among its CPU's servers.
    places: Vec<usize>,
    threads: HashMap<Tid, usize>,
    /// By server: since when its thread is ready and does not run, in ns.
    waits: Vec<Option<u64>>,
    moved: Vec<bool>,
    /// By CPU: from when on its servers may differ from those that were drawn, as a server moved there or
    /// left, in ns.
    changed: Vec<u64>,
    /// The time of the last event, in ns.
    ended: u64,
    /// Earlier events are not looked at; `None`: no event was seen yet.
    from_ns: Option<u64>,
    quiet_ns: u64,
}

/// The longest time between the decision to move a server of low criticality and its leaving, in ns: it may
/// wait for other servers' periods at its new CPU, have a turn by its weight at the old one, or sleep.
const MOVING_NS: u64 = 500_000_000;

/// How exactly traces show what schedulers decide by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Precision {
    /// A promise that lacks no more than this counts as kept, in ns.
    pub(super) tolerance_ns: u64,
    /// How inexact times are, in ns.
    pub(super) slop_ns: u64,
}

/// The findings of the books.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Broken promises with their servers' numbers and CPUs; the best-effort server has no number.
    pub(super) misses: Vec<(Option<usize>, CpuId, Miss)>,
    pub(super) kept: u64,
    pub(super) switches: u64,
    /// The numbers of servers that were served elsewhere than where they had been placed.
    pub(super) moved: Vec<usize>,
    pub(super) enforced: Vec<Enforcement>,
    /// When the books begin, in ns.
    pub(super) from_ns: u64,
}

impl Books<'_> {
    /// Books of a host on which no tenant wants CPU time for `quiet_ns` after the trace's beginning.
    pub(super) fn new(drawn: &Drawn, quiet_ns: u64, precision: Precision) -> Books<'_> {
        let mut on: Vec<Vec<usize>> = vec![Vec::new(); drawn.cpus as usize];
        let mut places = Vec::new();
        for (number, (cpu, _)) in drawn.servers.iter().enumerate() {
            let on = &mut on[cpu.0 as usize];
            places.push(on.len());
            on.push(number);
        }
        let reserve = reserve(&drawn.settings);
        let audit = |numbers: Vec<usize>| {
            let servers: Vec<_> = numbers.iter().map(|it| drawn.servers[*it].1).collect();
            let audit = Audit::new(&servers, reserve, precision.tolerance_ns);
            (audit.approximate(precision.slop_ns), numbers)
        };
        Books {
            drawn,
            cpus: on.into_iter().map(audit).collect(),
            places,
            threads: HashMap::new(),
            waits: vec![None; drawn.servers.len()],
            moved: vec![false; drawn.servers.len()],
            changed: vec![u64::MAX; drawn.cpus as usize],
            ended: 0,
            from_ns: None,
            quiet_ns,
        }
    }

    /// Enters an event; events come in the order of their times.
    pub(super) fn add(&mut self, event: &quell_trace::Event) {
        self.ended = event.at_ns;
        let from = *self.from_ns.get_or_insert(event.at_ns + self.quiet_ns);
        match &event.kind {
            Kind::Thread(thread) | Kind::New { thread, .. } => self.call(thread.tid, &thread.name),
            Kind::Rename { tid, name } => self.call(*tid, name),
            _ if event.at_ns < from => {}
            Kind::Wakeup { thread, .. } => self.tell(event, *thread, Event::Wakes),
            Kind::Switch {
                prev,
                prev_state,
                next,
                ..
            } => {
                if *prev != IDLE {
                    self.tell(event, *prev, Event::Ends);
                    if !prev_state.is_ready() {
                        self.tell(event, *prev, Event::Sleeps);
                    }
                }
                if *next != IDLE {
                    self.tell(event, *next, Event::Wakes);
                    self.tell(event, *next, Event::Begins);
                }
            }
            Kind::Lost => {}
        }
    }

    /// Learns a thread's name, which a simulated tenant's name precedes.
    fn call(&mut self, tid: Tid, name: &str) {
        let name = name.rsplit('/').next().unwrap_or(name);
        if let Some(number) = number(name).filter(|it| *it < self.places.len()) {
            self.threads.insert(tid, number);
        }
    }

    fn tell(&mut self, event: &quell_trace::Event, thread: Tid, what: Event) {
        let Some(&number) = self.threads.get(&thread) else {
            return;
        };
        let (cpu, _) = self.drawn.servers[number];
        let waits = &mut self.waits[number];
        // On which CPU the thread waited meanwhile is not known: it may have been moved more than once.
        let since = waits.unwrap_or(event.at_ns);
        *waits = match what {
            Event::Wakes => Some(since),
            Event::Ends => Some(event.at_ns),
            Event::Sleeps | Event::Begins => None,
        };
        let audit = &mut self.cpus[cpu.0 as usize].0;
        if what == Event::Begins && CpuId(event.cpu) != cpu {
            self.moved[number] = true;
            for cpu in [cpu.0, event.cpu] {
                if let Some(changed) = self.changed.get_mut(cpu as usize) {
                    *changed = since.min(*changed);
                }
            }
        }
        audit.event(event.at_ns, self.places[number], what);
    }

    /// Closes the books: the trace has ended.
    pub(super) fn finish(self) -> Found {
        let mut found = Found {
            from_ns: self.from_ns.unwrap_or(0),
            ..Found::default()
        };
        for ((audit, numbers), cpu) in self.cpus.iter().zip(0..) {
            let changed = match self.changed[cpu as usize] {
                u64::MAX => self.ended,
                changed => changed.saturating_sub(MOVING_NS),
            };
            for miss in audit.misses() {
                let number = numbers.get(miss.server).copied();
                let high = number
                    .is_some_and(|it| self.drawn.servers[it].1.criticality == Criticality::High);
                // A server of high criticality has its promise in every mode of every CPU.
                if high || miss.deadline <= changed {
                    found.misses.push((number, CpuId(cpu), *miss));
                }
            }
            found.kept += audit.kept();
            found.switches += audit.switches();
            let enforced = audit.enforced().iter().filter(|it| it.at < changed);
            found.enforced.extend(enforced.copied());
        }
        let moved = self.moved.iter().enumerate().filter(|(_, moved)| **moved);
        found.moved = moved.map(|(number, _)| number).collect();
        found
    }
}
