//! A trace turned into what its threads do by themselves: [`Act`]s, without the scheduler that they had.
//!
//! A thread's CPU time between being woken and sleeping again is one burst, however often it was preempted in it. Who
//! wakes others does so after so much of its own CPU time; a wakeup without a waker, or by one that was not seen to run,
//! comes at its time. What the simulated machine takes for switches and wakeups is taken off, since it comes back there.
//!
//! A trace may lack events or contradict itself; then threads go on as if what is missing had happened, and it is counted.

use quell_model::{Nice, Pid, Tid};
use quell_sim::{Act, Costs, ThreadId};
use quell_trace::{Event, IDLE, Kind, State, Thread};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What was recorded, ready to be done again.
#[derive(Debug, Clone)]
pub(super) struct Recording {
    pub(super) processes: Vec<Process>,
    /// CPUs that switched.
    pub(super) cpus: usize,
    /// Events that are missing or contradict others.
    pub(super) gaps: u64,
}

/// A process's threads, which are numbered on through all processes.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) name: Arc<str>,
    pub(super) threads: Vec<(String, Nice, Vec<Act>)>,
    /// Wakeups that come at their time, in ns from the beginning.
    pub(super) interrupts: Vec<(u64, ThreadId)>,
}

/// Of events in the order of their times.
pub(super) fn extract(events: &[Event], costs: &Costs) -> Recording {
    let began = events.first().map_or(0, |event| event.at_ns);
    let mut extraction = Extraction {
        began,
        costs,
        threads: Vec::new(),
        live: HashMap::new(),
        cpus: BTreeMap::new(),
        interrupts: Vec::new(),
        gaps: 0,
    };
    for event in events {
        extraction.add(event);
    }
    let last = events.last().map_or(0, |event| event.at_ns);
    let cpus: Vec<u32> = extraction.cpus.keys().copied().collect();
    for &cpu in &cpus {
        extraction.progress(cpu, last, 0);
    }
    extraction.sorted(cpus.len())
}

struct Extraction<'a> {
    began: u64,
    costs: &'a Costs,
    threads: Vec<Track>,
    /// Where in `threads` those are that have not ended.
    live: HashMap<Tid, usize>,
    cpus: BTreeMap<u32, Cpu>,
    interrupts: Vec<(u64, usize)>,
    gaps: u64,
}

/// What a CPU does.
#[derive(Clone, Copy)]
enum Cpu {
    Unknown,
    Idle,
    Runs {
        thread: usize,
        /// Up to when its CPU time is told.
        since: u64,
        /// What of the time since then is the machine's own work.
        owed: u64,
    },
}

struct Track {
    thread: Thread,
    nice: Nice,
    acts: Vec<Act>,
    phase: Phase,
    /// The CPU that it runs on.
    on: Option<u32>,
    /// A wakeup that came while it ran, perhaps on its way to sleep.
    early: Option<Cause>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    /// Nothing is known of it yet: it waits for its first wakeup.
    New,
    Running,
    Ready,
    Blocked,
    /// What it did last was not told.
    Unseen,
}

#[derive(Clone, Copy)]
enum Cause {
    At(u64),
    /// This thread, at this place in its acts.
    By(usize, usize),
}

impl Extraction<'_> {
    fn track(&mut self, tid: Tid) -> usize {
        *self.live.entry(tid).or_insert_with(|| {
            self.threads.push(Track {
                thread: Thread {
                    tid,
                    pid: Pid(0),
                    name: "".into(),
                },
                nice: Nice::default(),
                acts: Vec::new(),
                phase: Phase::New,
                on: None,
                early: None,
            });
            self.threads.len() - 1
        })
    }

    fn add(&mut self, event: &Event) {
        let (at, cpu) = (event.at_ns, event.cpu);
        match &event.kind {
            Kind::Switch {
                prev,
                prev_state,
                next,
                next_priority,
            } => {
                self.leave(cpu, *prev, *prev_state, *next, at);
                self.enter(cpu, *next, *next_priority, at);
            }
            Kind::Wakeup { thread, by, .. } if *thread != IDLE => {
                let cause = self.cause(cpu, *by, at);
                let target = self.track(*thread);
                self.woken(target, cause);
            }
            Kind::New { thread, by } if thread.tid != IDLE => {
                let cause = self.cause(cpu, Some(*by), at);
                let known = self.live.get(&thread.tid);
                // One that did something already is an earlier thread of this id.
                if known.is_some_and(|&known| self.threads[known].phase != Phase::New) {
                    self.live.remove(&thread.tid);
                }
                let target = self.track(thread.tid);
                self.threads[target].thread = thread.clone();
                self.woken(target, cause);
            }
            Kind::Thread(thread) if thread.tid != IDLE => {
                let track = self.track(thread.tid);
                self.threads[track].thread = thread.clone();
            }
            Kind::Rename { tid, name } if *tid != IDLE => {
                let track = self.track(*tid);
                self.threads[track].thread.name = name.clone();
            }
            Kind::Lost => {
                self.gaps += 1;
                self.unseen(cpu);
            }
            Kind::Wakeup { .. } | Kind::New { .. } | Kind::Thread(_) | Kind::Rename { .. } => {}
        }
    }

    /// What a CPU does from here on is not known.
    fn unseen(&mut self, cpu: u32) {
        if let Some(Cpu::Runs { thread, .. }) = self.cpus.insert(cpu, Cpu::Unknown) {
            self.threads[thread].phase = Phase::Unseen;
            self.threads[thread].on = None;
        }
    }

    /// Tells the CPU time of a CPU's thread until then, less what the machine's own work takes; that of what comes
    /// then is `owed`.
    fn progress(&mut self, cpu: u32, at: u64, owed_next: u64) {
        if let Some(Cpu::Runs {
            thread,
            since,
            owed,
        }) = self.cpus.get_mut(&cpu)
        {
            let used = at.saturating_sub(*since);
            let acts = &mut self.threads[*thread].acts;
            // What was preempted goes on.
            match acts.last_mut() {
                Some(Act::Run(time)) if *time > 0 => *time += used.saturating_sub(*owed),
                _ => acts.push(Act::Run(used.saturating_sub(*owed))),
            }
            *owed = owed.saturating_sub(used) + owed_next;
            *since = at;
        }
    }

    /// Who or what wakes somebody there and then.
    fn cause(&mut self, cpu: u32, by: Option<Tid>, at: u64) -> Cause {
        self.progress(cpu, at, self.costs.wake);
        match (by, self.cpus.get(&cpu)) {
            (Some(by), Some(&Cpu::Runs { thread, .. }))
                if self.threads[thread].thread.tid == by =>
            {
                // Nothing, until somebody turns out to be woken.
                let acts = &mut self.threads[thread].acts;
                acts.push(Act::Run(0));
                Cause::By(thread, acts.len() - 1)
            }
            _ => Cause::At(at),
        }
    }

    fn woken(&mut self, target: usize, cause: Cause) {
        let track = &mut self.threads[target];
        match track.phase {
            Phase::New | Phase::Blocked => {}
            // It must have gone to sleep.
            Phase::Unseen => track.acts.push(Act::Wait),
            Phase::Running => {
                track.early = Some(cause);
                return;
            }
            // From a sleep that it did not come to.
            Phase::Ready => return,
        }
        self.wake(target, cause);
    }

    fn wake(&mut self, target: usize, cause: Cause) {
        let track = &mut self.threads[target];
        track.phase = Phase::Ready;
        track.early = None;
        match cause {
            Cause::At(at) => self.interrupts.push((at, target)),
            Cause::By(thread, place) => {
                self.threads[thread].acts[place] = Act::Wake(ThreadId(target as u32));
            }
        }
    }

    fn leave(&mut self, cpu: u32, prev: Tid, state: State, next: Tid, at: u64) {
        if prev == IDLE {
            if !matches!(self.cpus.get(&cpu), None | Some(Cpu::Idle)) {
                self.gaps += 1;
                self.unseen(cpu);
            }
            return;
        }
        let track = self.track(prev);
        self.only_on(track, cpu);
        match self.cpus.get(&cpu).copied() {
            Some(Cpu::Runs { thread, .. }) if thread == track => {
                if let (Some(Cpu::Runs { owed, .. }), true) =
                    (self.cpus.get_mut(&cpu), next != IDLE)
                {
                    *owed += self.costs.switch;
                }
                self.progress(cpu, at, 0);
            }
            // It was there when the trace began.
            None if self.threads[track].phase == Phase::New => {
                self.wake(track, Cause::At(self.began));
                let ran = at.saturating_sub(self.began);
                self.threads[track].acts.push(Act::Run(ran));
            }
            _ => {
                self.gaps += 1;
                self.unseen(cpu);
                if self.threads[track].phase == Phase::New {
                    self.wake(track, Cause::At(at));
                }
            }
        }
        let it = &mut self.threads[track];
        it.on = None;
        if state.is_ready() {
            it.phase = Phase::Ready;
        } else if state.has_ended() {
            self.live.remove(&prev);
        } else {
            // Contradictory traces may have it asleep already.
            if it.phase != Phase::Blocked {
                it.acts.push(Act::Wait);
            }
            it.phase = Phase::Blocked;
        }
    }

    fn enter(&mut self, cpu: u32, next: Tid, priority: i32, at: u64) {
        if next == IDLE {
            self.cpus.insert(cpu, Cpu::Idle);
            return;
        }
        let track = self.track(next);
        self.only_on(track, cpu);
        let it = &mut self.threads[track];
        // Real-time threads become as urgent as an ordinary one can be.
        it.nice = Nice::new((priority - 120).clamp(-20, 19)).unwrap_or_default();
        match (it.phase, it.early) {
            // It was ready when the trace began.
            (Phase::New, _) => self.wake(track, Cause::At(self.began)),
            (Phase::Blocked, Some(cause)) => self.wake(track, cause),
            (Phase::Blocked, None) => {
                self.gaps += 1;
                self.wake(track, Cause::At(at));
            }
            (Phase::Running | Phase::Ready | Phase::Unseen, _) => {}
        }
        let it = &mut self.threads[track];
        (it.phase, it.on, it.early) = (Phase::Running, Some(cpu), None);
        let runs = Cpu::Runs {
            thread: track,
            since: at,
            owed: 0,
        };
        self.cpus.insert(cpu, runs);
    }

    /// A thread is on this CPU: if another one was taken to run it, then it left that unseen.
    fn only_on(&mut self, track: usize, cpu: u32) {
        if let Some(other) = self.threads[track].on.filter(|&other| other != cpu) {
            self.gaps += 1;
            self.unseen(other);
        }
    }

    /// Processes in the order of their ids, with their threads in the order of their first events.
    fn sorted(self, cpus: usize) -> Recording {
        let mut members: BTreeMap<Pid, Vec<usize>> = BTreeMap::new();
        for (number, track) in self.threads.iter().enumerate() {
            if track.phase != Phase::New {
                members.entry(track.thread.pid).or_default().push(number);
            }
        }
        let mut numbers = vec![0; self.threads.len()];
        let order = members.values().flatten();
        for (number, &thread) in (0..).zip(order) {
            numbers[thread] = number;
        }
        let renumbered = |act: &Act| match *act {
            Act::Wake(ThreadId(other)) => Act::Wake(ThreadId(numbers[other as usize])),
            act => act,
        };
        let mut interrupts: BTreeMap<Pid, Vec<(u64, ThreadId)>> = BTreeMap::new();
        for &(at, thread) in &self.interrupts {
            let of = interrupts
                .entry(self.threads[thread].thread.pid)
                .or_default();
            of.push((at - self.began, ThreadId(numbers[thread])));
        }
        let mut processes = Vec::new();
        for (pid, members) in members {
            let all = self.threads.iter().map(|track| &track.thread);
            let leader = all.clone().find(|it| it.pid == pid && it.tid.0 == pid.0);
            let name = leader.map_or_else(
                || self.threads[members[0]].thread.name.clone(),
                |leader| leader.name.clone(),
            );
            let thread = |&member: &usize| {
                let track = &self.threads[member];
                let acts = track.acts.iter().map(renumbered).collect();
                (track.thread.name.to_string(), track.nice, acts)
            };
            let mut interrupts = interrupts.remove(&pid).unwrap_or_default();
            interrupts.sort_by_key(|&(at, _)| at);
            processes.push(Process {
                pid,
                name,
                threads: members.iter().map(thread).collect(),
                interrupts,
            });
        }
        Recording {
            processes,
            cpus,
            gaps: self.gaps,
        }
    }
}
