//! What the simulated scheduler does to threads, as the events of a trace of a live host.
//!
//! A CPU reports a switch when it begins it, with the time at which the next thread begins; so events are put
//! in the order of their times before they go to a [`Sink`]. Times count from the simulation's beginning, in
//! ns.

use crate::run::sink::Sink;
use quell_model::{CpuId, Pid, Tid};
use quell_sim::{Happening, Simulation, ThreadId};
use quell_trace::{Event, IDLE, Kind, State};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Watches a simulation from [`Watch::begin`] to [`Watch::finish`].
pub(crate) struct Watch<S>(Rc<RefCell<Watched<S>>>);

struct Watched<S> {
    sink: S,
    /// Events that are later than the last reported event may be, in the order of their times.
    pending: BTreeMap<(u64, u64), Event>,
    told: u64,
}

/// A tenant, and its threads in the order of their numbers.
pub(crate) struct Names {
    pub(crate) process: String,
    pub(crate) threads: Vec<String>,
}

/// A tenant's process id. The process's first thread, which has this id, is no thread of the simulation and
/// never runs: it has the process's name.
pub(crate) fn pid(tenant: usize) -> Pid {
    Pid(tenant as u32 + 1)
}

impl<S: Sink + Default> Watch<S> {
    /// Begins to watch; `tenants` are all tenants that have threads on the host.
    pub(crate) fn begin(simulation: &mut Simulation, tenants: &[Names], sink: S) -> Watch<S> {
        let mut watched = Watched {
            sink,
            pending: BTreeMap::new(),
            told: 0,
        };
        let mut there = |tid, pid, name: Arc<str>| {
            let kind = Kind::Thread(quell_trace::Thread { tid, pid, name });
            watched.add(0, 0, CpuId(0), kind);
        };
        // The ids of processes come before those of threads; idle threads have 0.
        let before = tenants.len() as u32 + 1;
        let tid = move |thread: ThreadId| Tid(before + thread.0);
        let mut threads = (0..).map(ThreadId);
        let mut names: Vec<(Pid, Arc<str>)> = Vec::new();
        for (number, tenant) in tenants.iter().enumerate() {
            let pid = pid(number);
            there(Tid(pid.0), pid, Arc::from(&*tenant.process));
            for (name, thread) in tenant.threads.iter().zip(&mut threads) {
                let name: Arc<str> = Arc::from(&**name);
                there(tid(thread), pid, name.clone());
                names.push((pid, name));
            }
        }
        debug_assert!(
            threads.next() == Some(ThreadId(simulation.machine().threads.len() as u32)),
            "every thread has a name"
        );
        let shared = Rc::new(RefCell::new(watched));
        let watched = shared.clone();
        simulation.observe(Box::new(move |now, at, happening| {
            let (cpu, kind) = match happening {
                // A forked thread has the name of the thread that forked it until it runs another program,
                // and here it is a thread of that thread's process.
                Happening::Fork { thread, by, cpu } => {
                    let of = names[by.index()].clone();
                    names.push(of.clone());
                    let (pid, name) = of;
                    let tid = tid(thread);
                    (cpu, Kind::Thread(quell_trace::Thread { tid, pid, name }))
                }
                Happening::Wakeup { thread, by, cpu } => {
                    let wakeup = Kind::Wakeup {
                        thread: tid(thread),
                        by: by.map(tid),
                        last_cpu: cpu.0,
                    };
                    (cpu, wakeup)
                }
                Happening::Switch { cpu, left, next } => {
                    let ready = left.is_none_or(|(_, ready)| ready);
                    let switch = Kind::Switch {
                        prev: left.map_or(IDLE, |(thread, _)| tid(thread)),
                        prev_state: if ready { State::READY } else { State::SLEEPING },
                        next: next.map_or(IDLE, tid),
                        next_priority: 120,
                    };
                    (cpu, switch)
                }
            };
            watched.borrow_mut().add(now, at, cpu, kind);
        }));
        Watch(shared)
    }

    /// Ends: gives the sink with all events so far; later events are dropped.
    pub(crate) fn finish(self) -> S {
        let mut watched = self.0.borrow_mut();
        while let Some((_, event)) = watched.pending.pop_first() {
            watched.sink.add(&event);
        }
        std::mem::take(&mut watched.sink)
    }
}

impl<S: Sink> Watched<S> {
    fn add(&mut self, now: u64, at_ns: u64, cpu: CpuId, kind: Kind) {
        // No event earlier than `now` will be reported any more.
        while let Some(first) = self.pending.first_entry() {
            if first.key().0 >= now {
                break;
            }
            self.sink.add(&first.remove());
        }
        self.told += 1;
        let event = Event {
            at_ns,
            cpu: cpu.0,
            kind,
        };
        self.pending.insert((at_ns, self.told), event);
    }
}
