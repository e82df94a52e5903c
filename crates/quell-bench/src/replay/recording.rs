//! Turns a trace into what its threads do by themselves: [`Act`]s, without the scheduler that they ran under.
//!
//! Problem: a trace shows a load and the scheduler's decisions at once. How: a thread's CPU time between
//! being woken and sleeping again is one burst, however often the thread was preempted in it. A thread that
//! wakes another does so after as much of its own CPU time as was recorded; a wakeup without a waker, or by a
//! thread that was not seen to run, is an interrupt and comes at its recorded time. If all interrupts of a
//! thread come on the CPU where it fell asleep, they are taken for its timers, which are set where it falls
//! asleep again; else for devices, which interrupt their CPU. The simulated machine charges for a switch, so
//! that charge is taken off the recorded time; all other work of the machine stays in the CPU time of the
//! thread that it was charged to.
//!
//! Limits: a trace may lack events or contradict itself; threads then go on as if the missing events had
//! happened, and each such place is counted as a gap.

use quell_model::{Nice, Pid, Tid};
use quell_sim::{Act, Costs, ThreadId};
use quell_trace::{Delays, Event, IDLE, Kind, State, Thread};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A trace's load, ready to be run again.
#[derive(Debug, Clone)]
pub(super) struct Recording {
    pub(super) processes: Vec<Process>,
    /// Wakeups that come at their recorded time, in order.
    pub(super) interrupts: Vec<Interrupt>,
    /// The number of CPUs that switched.
    pub(super) cpus: usize,
    /// The number of places where events are missing or contradict other events.
    pub(super) gaps: u64,
    /// How often sleeping threads were seen to run in a trace that has no wakeups.
    pub(super) unwoken: u64,
    /// The number of threads whose process is not told.
    pub(super) alone: usize,
}

/// A process and its threads, which are numbered on through all processes.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) name: Arc<str>,
    pub(super) threads: Vec<(String, Nice, Vec<Act>)>,
    /// The turnarounds, from woken to asleep, of bursts that were seen from beginning to end.
    pub(super) turnarounds: Delays,
}

/// A wakeup that comes from outside the recorded threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interrupt {
    /// When it comes, in ns from the beginning.
    pub(super) at: u64,
    /// The CPU that it interrupts, by its place among the recorded CPUs.
    pub(super) cpu: usize,
    pub(super) thread: ThreadId,
}

/// Extracts the load from events that are in the order of their times.
pub(super) fn extract(events: &[Event], costs: &Costs) -> Recording {
    let began = events.first().map_or(0, |event| event.at_ns);
    let mut extraction = Extraction {
        began,
        costs,
        threads: Vec::new(),
        live: HashMap::new(),
        cpus: BTreeMap::new(),
        interrupts: Vec::new(),
        has_wakeups: events
            .iter()
            .any(|it| matches!(it.kind, Kind::Wakeup { .. })),
        unwoken: 0,
        gaps: 0,
        losses: 0,
    };
    for event in events {
        extraction.add(event);
    }
    let last = events.last().map_or(0, |event| event.at_ns);
    let cpus: Vec<u32> = extraction.cpus.keys().copied().collect();
    for &cpu in &cpus {
        extraction.progress(cpu, last);
    }
    extraction.tell_timers();
    extraction.sorted(&cpus)
}

struct Extraction<'a> {
    began: u64,
    costs: &'a Costs,
    threads: Vec<Track>,
    /// The places in `threads` of the threads that have not ended.
    live: HashMap<Tid, usize>,
    cpus: BTreeMap<u32, Cpu>,
    /// The time of an interrupt, its CPU, and the thread that it wakes.
    interrupts: Vec<(u64, u32, usize)>,
    has_wakeups: bool,
    unwoken: u64,
    gaps: u64,
    /// How often the trace lost events.
    losses: u64,
}

/// What a CPU does.
#[derive(Clone, Copy)]
enum Cpu {
    Unknown,
    Idle,
    Runs {
        thread: usize,
        /// The time up to which the thread's CPU time is accounted, in ns.
        since: u64,
    },
}

struct Track {
    thread: Thread,
    nice: Nice,
    acts: Vec<Act>,
    phase: Phase,
    /// The CPU that the thread runs on.
    on: Option<u32>,
    /// The CPU where the thread fell asleep.
    slept_on: Option<u32>,
    /// Wakeups that may come from the thread's timers, with the places of its waits for them.
    timers: Vec<(usize, Cause)>,
    /// Whether interrupts woke the thread on other CPUs than where it fell asleep.
    has_device: bool,
    /// A wakeup that came while the thread ran, perhaps on its way to sleep.
    early: Option<Cause>,
    /// When the thread was woken for its present burst, in ns, and how many losses there were by then;
    /// `None`: that was not seen.
    woken: Option<(u64, u64)>,
    turnarounds: Delays,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    /// Nothing is known of the thread yet: it waits for its first wakeup.
    New,
    Running,
    Ready,
    Blocked,
    /// What the thread did last is not in the trace.
    Unseen,
}

#[derive(Clone, Copy)]
struct Cause {
    at: u64,
    cpu: u32,
    /// The thread that wakes, and the place in its acts where it does.
    by: Option<(usize, usize)>,
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
                slept_on: None,
                timers: Vec::new(),
                has_device: false,
                early: None,
                woken: None,
                turnarounds: Delays::default(),
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
                // A thread of this id that did something already is an earlier thread.
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
                self.losses += 1;
                self.unseen(cpu);
            }
            Kind::Wakeup { .. } | Kind::New { .. } | Kind::Thread(_) | Kind::Rename { .. } => {}
        }
    }

    /// Forgets what a CPU does: from here on that is not known.
    fn unseen(&mut self, cpu: u32) {
        if let Some(Cpu::Runs { thread, .. }) = self.cpus.insert(cpu, Cpu::Unknown) {
            let track = &mut self.threads[thread];
            (track.phase, track.on, track.woken) = (Phase::Unseen, None, None);
        }
    }

    /// Accounts the CPU time of a CPU's thread up to `at`.
    fn progress(&mut self, cpu: u32, at: u64) {
        let Some(Cpu::Runs { thread, since }) = self.cpus.get_mut(&cpu) else {
            return;
        };
        let used = at.saturating_sub(std::mem::replace(since, at));
        let acts = &mut self.threads[*thread].acts;
        // A burst that was preempted goes on.
        match acts.last_mut() {
            Some(Act::Run(time)) if *time > 0 => *time += used,
            _ => acts.push(Act::Run(used)),
        }
    }

    /// The cause of a wakeup on this CPU at this time: a thread that runs there, or something outside.
    fn cause(&mut self, cpu: u32, by: Option<Tid>, at: u64) -> Cause {
        self.progress(cpu, at);
        let by = match (by, self.cpus.get(&cpu)) {
            (Some(by), Some(&Cpu::Runs { thread, .. }))
                if self.threads[thread].thread.tid == by =>
            {
                // A place for the wakeup, which stays an empty run until a thread turns out to be woken.
                let acts = &mut self.threads[thread].acts;
                acts.push(Act::Run(0));
                Some((thread, acts.len() - 1))
            }
            _ => None,
        };
        Cause { at, cpu, by }
    }

    fn woken(&mut self, target: usize, cause: Cause) {
        let track = &mut self.threads[target];
        match track.phase {
            Phase::New | Phase::Blocked => {}
            // The thread must have gone to sleep unseen.
            Phase::Unseen => {
                track.acts.push(Act::Wait);
                track.slept_on = None;
            }
            Phase::Running => {
                track.early = Some(cause);
                return;
            }
            // The wakeup is for a sleep that the thread did not reach.
            Phase::Ready => return,
        }
        let slept_on = track.slept_on.filter(|_| cause.by.is_none());
        track.has_device |= slept_on.is_some_and(|cpu| cpu != cause.cpu);
        if slept_on == Some(cause.cpu) && track.acts.last() == Some(&Act::Wait) {
            track.timers.push((track.acts.len() - 1, cause));
            track.phase = Phase::Ready;
        } else {
            self.wake(target, cause);
        }
        self.threads[target].woken = Some((cause.at, self.losses));
    }

    /// Tells timers from devices, after all events were seen.
    fn tell_timers(&mut self) {
        for (number, track) in self.threads.iter_mut().enumerate() {
            for (place, Cause { at, cpu, .. }) in std::mem::take(&mut track.timers) {
                if track.has_device {
                    self.interrupts.push((at, cpu, number));
                } else {
                    track.acts[place] = Act::Until(at - self.began);
                }
            }
        }
    }

    /// Records that `cause` wakes a thread.
    fn wake(&mut self, target: usize, cause: Cause) {
        let track = &mut self.threads[target];
        track.phase = Phase::Ready;
        track.early = None;
        match cause.by {
            None => self.interrupts.push((cause.at, cause.cpu, target)),
            Some((thread, place)) => {
                self.threads[thread].acts[place] = Act::Wake(ThreadId(target as u32));
            }
        }
    }

    /// Records that a thread turns out to have been woken, without a waker that was seen.
    fn wake_unseen(&mut self, target: usize, cpu: u32, at: u64) {
        let by = None;
        self.wake(target, Cause { at, cpu, by });
        self.threads[target].woken = None;
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
                self.progress(cpu, at);
                if let (Some(Act::Run(time)), true) =
                    (self.threads[track].acts.last_mut(), next != IDLE)
                {
                    *time = time.saturating_sub(self.costs.switch);
                }
            }
            // The thread ran when the trace began.
            None if self.threads[track].phase == Phase::New => {
                self.wake_unseen(track, cpu, self.began);
                let ran = at.saturating_sub(self.began);
                self.threads[track].acts.push(Act::Run(ran));
            }
            _ => {
                self.gaps += 1;
                self.unseen(cpu);
                if self.threads[track].phase == Phase::New {
                    self.wake_unseen(track, cpu, at);
                }
                self.threads[track].woken = None;
            }
        }
        let losses = self.losses;
        let it = &mut self.threads[track];
        it.on = None;
        if state.is_ready() {
            it.phase = Phase::Ready;
            return;
        }
        if let Some((woken, _)) = it.woken.take().filter(|&(_, then)| then == losses) {
            it.turnarounds.add(at.saturating_sub(woken));
            it.acts.push(Act::Done);
        }
        if state.has_ended() {
            self.live.remove(&prev);
            return;
        }
        // A trace that contradicts itself may have the thread asleep already.
        if it.phase != Phase::Blocked {
            it.acts.push(Act::Wait);
        }
        (it.phase, it.slept_on) = (Phase::Blocked, Some(cpu));
    }

    fn enter(&mut self, cpu: u32, next: Tid, priority: i32, at: u64) {
        if next == IDLE {
            self.cpus.insert(cpu, Cpu::Idle);
            return;
        }
        let track = self.track(next);
        self.only_on(track, cpu);
        let it = &mut self.threads[track];
        // A real-time thread becomes as urgent as an ordinary one can be.
        it.nice = Nice::new(priority.saturating_sub(120).clamp(-20, 19)).unwrap_or_default();
        match (it.phase, it.early) {
            // The thread was ready when the trace began.
            (Phase::New, _) => self.wake_unseen(track, cpu, self.began),
            (Phase::Blocked, Some(cause)) => {
                self.wake(track, cause);
                self.threads[track].woken = Some((cause.at, self.losses));
            }
            (Phase::Blocked, None) => {
                match self.has_wakeups {
                    true => self.gaps += 1,
                    false => self.unwoken += 1,
                }
                self.wake_unseen(track, cpu, at);
            }
            (Phase::Running | Phase::Ready | Phase::Unseen, _) => {}
        }
        let it = &mut self.threads[track];
        (it.phase, it.on, it.early) = (Phase::Running, Some(cpu), None);
        let runs = Cpu::Runs {
            thread: track,
            since: at,
        };
        self.cpus.insert(cpu, runs);
    }

    /// A thread runs on this CPU: if it was taken to run on another CPU, it left that one unseen.
    fn only_on(&mut self, track: usize, cpu: u32) {
        if let Some(other) = self.threads[track].on.filter(|&other| other != cpu) {
            self.gaps += 1;
            self.unseen(other);
        }
    }

    /// Processes in the order of their ids, with their threads in the order of the threads' first events.
    fn sorted(self, cpus: &[u32]) -> Recording {
        let mut members: BTreeMap<Pid, Vec<usize>> = BTreeMap::new();
        let mut alone = 0;
        for (number, track) in self.threads.iter().enumerate() {
            if track.phase != Phase::New {
                let process = track.thread.process();
                members.entry(process).or_default().push(number);
                alone += usize::from(track.thread.pid == Pid(0));
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
        let place = |cpu: u32| cpus.binary_search(&cpu).unwrap_or(0);
        let interrupt = |&(at, cpu, thread): &(u64, u32, usize)| Interrupt {
            at: at - self.began,
            cpu: place(cpu),
            thread: ThreadId(numbers[thread]),
        };
        let mut interrupts: Vec<Interrupt> = self.interrupts.iter().map(interrupt).collect();
        interrupts.sort_by_key(|interrupt| interrupt.at);
        // A process is named after its first thread, which may have done nothing.
        let all = self.threads.iter().map(|track| &track.thread);
        let leaders: HashMap<Pid, &Arc<str>> = all
            .filter(|it| it.tid.0 == it.process().0)
            .map(|it| (it.process(), &it.name))
            .collect();
        let mut processes = Vec::new();
        for (pid, members) in members {
            let other = &self.threads[members[0]].thread.name;
            let name = leaders.get(&pid).copied().unwrap_or(other).clone();
            let thread = |&member: &usize| {
                let track = &self.threads[member];
                let acts = track.acts.iter().map(renumbered).collect();
                (track.thread.name.to_string(), track.nice, acts)
            };
            let mut turnarounds = Delays::default();
            for &member in &members {
                turnarounds.merge(&self.threads[member].turnarounds);
            }
            processes.push(Process {
                pid,
                name,
                threads: members.iter().map(thread).collect(),
                turnarounds,
            });
        }
        Recording {
            processes,
            interrupts,
            cpus: cpus.len(),
            gaps: self.gaps,
            unwoken: self.unwoken,
            alone,
        }
    }
}
