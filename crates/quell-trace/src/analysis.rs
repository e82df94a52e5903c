//! The service of a trace's threads: CPU time, run delays, switches, preemptions, migrations; and how many
//! waited for others.
//!
//! A thread's **run delay** is the time for which it is ready and does not run: from the event that made it
//! ready (a wakeup, its creation, or its switch out while it still wanted to run) until it is switched in. A
//! delay counts as a whole in the window in which it ends. A delay that has not ended counts at the window's
//! end with its length by then, so that a thread that is never served is not left out.
//!
//! A trace may lack events, because its recorder lost some or because the kernel did not report them
//! (switches, now and then, in virtual machines). Times that then cannot be known are left out, never
//! guessed, and [`Gaps`] counts them.

use crate::event::{Event, IDLE, Kind, State, Thread};
use hdrhistogram::Histogram;
use quell_model::{Occasions, Pid, Tid};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The analyser of a trace: takes its events in the order of their times.
#[derive(Debug)]
pub struct Analyser {
    window: Range<u64>,
    cpus: HashMap<u32, Cpu>,
    /// For each thread that has not ended, its index in `threads`.
    live: HashMap<Tid, usize>,
    threads: Vec<Track>,
    crowds: HashMap<Pid, Crowd>,
    gaps: Gaps,
    began_ns: Option<u64>,
    last_ns: u64,
    /// The number of losses of events: a wait that was going on then may have ended unseen.
    losses: u64,
}

#[derive(Debug, Clone, Copy)]
enum Cpu {
    /// The CPU runs this thread since then.
    Runs(Tid, u64),
    /// Events of the CPU were lost.
    Unknown,
}

#[derive(Debug)]
struct Track {
    stats: ThreadStats,
    phase: Phase,
    /// The CPU on which the thread ran last.
    cpu: Option<u32>,
    /// Whether a wakeup came while it ran, after which it left its CPU all the same.
    woken_running: bool,
}

/// The threads of a process, as far as their states are known.
#[derive(Debug, Default)]
struct Crowd {
    ready: u32,
    running: u32,
    blocked: u32,
    /// The time up to which their time is counted.
    until_ns: u64,
    seen: Occasions,
}

impl Crowd {
    fn count(&mut self, phase: Phase) -> Option<&mut u32> {
        match phase {
            Phase::Ready { .. } => Some(&mut self.ready),
            Phase::Running => Some(&mut self.running),
            Phase::Blocked { .. } => Some(&mut self.blocked),
            Phase::Unknown => None,
        }
    }

    fn busy(&self) -> bool {
        self.ready + self.running > 0
    }

    /// Counts the time up to `at`.
    fn pass(&mut self, at: u64, window: &Range<u64>) {
        let (from, to) = (self.until_ns.max(window.start), at.min(window.end));
        self.until_ns = self.until_ns.max(at);
        let time = to.saturating_sub(from);
        if self.busy() {
            self.seen.busy_ns += time;
        }
        if self.ready > 0 && time > 0 {
            let blocked = self.blocked as usize;
            let by_blocked = &mut self.seen.by_blocked_ns;
            by_blocked.resize(by_blocked.len().max(blocked + 1), 0);
            by_blocked[blocked] += time;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Unknown,
    Running,
    Ready {
        since_ns: u64,
        losses: u64,
        /// Whether a wakeup made it ready; otherwise it never slept, and a wakeup may still come for a sleep
        /// that was prevented.
        woken: bool,
    },
    Blocked {
        since_ns: u64,
    },
}

/// The parts of the trace that are not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gaps {
    /// The number of places where the recorder lost events.
    pub lost: u64,
    /// The number of missing switches: a CPU left a thread that it was not seen to switch to.
    pub switches: u64,
    /// The number of threads that ran without having been ready, or were woken though ready: a wakeup or a
    /// switch is missing.
    pub states: u64,
    /// CPU time that belongs to no thread because of these gaps, in ns.
    pub unattributed_ns: u64,
}

/// The figures of one thread.
#[derive(Debug, Clone)]
pub struct ThreadStats {
    /// The identity of the thread, with its last name. The process is 0 where the trace does not tell it.
    pub thread: Thread,
    /// Time on a CPU, in ns.
    pub run_ns: u64,
    /// The number of switches to the thread.
    pub switches: u64,
    /// The number of times it left its CPU while it still wanted to run; yields among them.
    pub preemptions: u64,
    /// The number of switches to the thread on another CPU than it ran on before.
    pub migrations: u64,
    /// The number of times it was woken from sleep.
    pub wakeups: u64,
    /// The run delays of the thread.
    pub delays: Delays,
}

/// A distribution of run delays.
#[derive(Clone, Default)]
pub struct Delays {
    histogram: Option<Histogram<u32>>,
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

/// The figures of one process: the sum of its threads.
#[derive(Debug, Clone)]
pub struct ProcessStats {
    /// The id of the process; the id of the thread, where its process is not told.
    pub pid: Pid,
    /// The name of its first thread, or of the first of its threads seen.
    pub name: Arc<str>,
    /// The number of its threads in the trace.
    pub threads: u64,
    /// The sum of [`ThreadStats::run_ns`], in ns.
    pub run_ns: u64,
    /// The sum of [`ThreadStats::switches`].
    pub switches: u64,
    /// The sum of [`ThreadStats::preemptions`].
    pub preemptions: u64,
    /// The sum of [`ThreadStats::migrations`].
    pub migrations: u64,
    /// The sum of [`ThreadStats::wakeups`].
    pub wakeups: u64,
    /// The delays of all its threads.
    pub delays: Delays,
    /// The time for which some of its threads were ready while others were blocked, and its busy periods.
    pub occasions: Occasions,
}

/// The figures of all threads in a window of time.
#[derive(Debug, Clone)]
pub struct Analysis {
    /// The window, as far as the trace goes, in ns of its clock.
    pub window: Range<u64>,
    /// The number of CPUs with events.
    pub cpus: u64,
    /// Every thread of the trace but the idle ones, in the order of their first events.
    pub threads: Vec<ThreadStats>,
    /// The occasions of each process.
    occasions: HashMap<Pid, Occasions>,
    /// The gaps of the trace.
    pub gaps: Gaps,
}

impl Track {
    /// Whether nothing is known yet of the activity of the thread.
    fn untold(&self) -> bool {
        self.phase == Phase::Unknown && self.cpu.is_none()
    }
}

impl Default for Analyser {
    fn default() -> Analyser {
        Analyser::new(0..u64::MAX)
    }
}

impl Analyser {
    /// Counts the events within a window of the trace's clock, in ns. Events before the window must be added
    /// too: they tell the state of the threads when it begins.
    pub fn new(window: Range<u64>) -> Analyser {
        Analyser {
            window,
            cpus: HashMap::new(),
            live: HashMap::new(),
            threads: Vec::new(),
            crowds: HashMap::new(),
            gaps: Gaps::default(),
            began_ns: None,
            last_ns: 0,
            losses: 0,
        }
    }

    /// Takes the next event.
    pub fn add(&mut self, event: &Event) {
        let at = event.at_ns;
        let began = *self.began_ns.get_or_insert(at);
        self.last_ns = self.last_ns.max(at);
        match &event.kind {
            Kind::Switch {
                prev,
                prev_state,
                next,
                ..
            } => {
                self.leave(event.cpu, *prev, *prev_state, at, began);
                self.enter(event.cpu, *next, at);
            }
            Kind::Wakeup { thread, .. } => self.wake(*thread, at),
            Kind::New { thread, .. } => {
                // A thread of this id that already did something is an earlier thread.
                let track = self.live.get(&thread.tid).map(|&at| &self.threads[at]);
                if track.is_some_and(|track| !track.untold()) {
                    self.unknown(thread.tid, at);
                    self.live.remove(&thread.tid);
                }
                self.name(thread, at);
                let ready = Phase::Ready {
                    since_ns: at,
                    losses: self.losses,
                    woken: true,
                };
                self.turn(thread.tid, ready, at);
            }
            Kind::Thread(thread) if thread.tid != IDLE => self.name(thread, at),
            Kind::Thread(_) => {}
            Kind::Rename { tid, name } => self.track(*tid).stats.thread.name = name.clone(),
            Kind::Lost => {
                self.gaps.lost += u64::from(self.counts(at));
                self.losses += 1;
                if let Some(Cpu::Runs(tid, since)) = self.cpus.insert(event.cpu, Cpu::Unknown) {
                    self.gaps.unattributed_ns += self.within(since, at);
                    self.unknown(tid, at);
                }
            }
        }
    }

    /// The figures until `end_ns`, or until the last event.
    pub fn finish(mut self, end_ns: Option<u64>) -> Analysis {
        let end = end_ns.unwrap_or(self.last_ns).min(self.window.end);
        let start = self.window.start.max(self.began_ns.unwrap_or(0)).min(end);
        let cpus: Vec<Cpu> = self.cpus.values().copied().collect();
        for cpu in cpus {
            if let Cpu::Runs(tid, since) = cpu {
                self.ran(tid, since, end);
            }
        }
        for track in &mut self.threads {
            if let Phase::Ready {
                since_ns, losses, ..
            } = track.phase
            {
                if losses == self.losses && since_ns < end {
                    track.stats.delays.add(end - since_ns);
                }
            }
        }
        let window = self.window.clone();
        let occasions = self.crowds.into_iter().map(|(pid, mut crowd)| {
            crowd.pass(end, &window);
            (pid, crowd.seen)
        });
        Analysis {
            occasions: occasions.collect(),
            window: start..end,
            cpus: self.cpus.len() as u64,
            threads: self.threads.into_iter().map(|t| t.stats).collect(),
            gaps: self.gaps,
        }
    }

    /// Whether an event at this time is in the window.
    fn counts(&self, at: u64) -> bool {
        self.window.contains(&at)
    }

    /// The part of an interval that is in the window, in ns.
    fn within(&self, from: u64, to: u64) -> u64 {
        let (from, to) = (from.max(self.window.start), to.min(self.window.end));
        to.saturating_sub(from)
    }

    fn track(&mut self, tid: Tid) -> &mut Track {
        let index = *self.live.entry(tid).or_insert_with(|| {
            self.threads.push(Track {
                stats: ThreadStats {
                    thread: Thread {
                        tid,
                        pid: Pid(0),
                        name: "".into(),
                    },
                    run_ns: 0,
                    switches: 0,
                    preemptions: 0,
                    migrations: 0,
                    wakeups: 0,
                    delays: Delays::default(),
                },
                phase: Phase::Unknown,
                cpu: None,
                woken_running: false,
            });
            self.threads.len() - 1
        });
        &mut self.threads[index]
    }

    fn ran(&mut self, tid: Tid, from: u64, to: u64) {
        let ns = self.within(from, to);
        if tid != IDLE {
            self.track(tid).stats.run_ns += ns;
        }
    }

    fn unknown(&mut self, tid: Tid, at: u64) {
        if tid != IDLE {
            self.turn(tid, Phase::Unknown, at);
        }
    }

    /// Takes the identity of a thread.
    fn name(&mut self, thread: &Thread, at: u64) {
        let track = self.track(thread.tid);
        let phase = track.phase;
        if track.stats.thread.pid == thread.pid {
            track.stats.thread = thread.clone();
            return;
        }
        // The thread leaves the process that it was taken for.
        self.turn(thread.tid, Phase::Unknown, at);
        self.track(thread.tid).stats.thread = thread.clone();
        self.turn(thread.tid, phase, at);
    }

    /// Sets the phase of a thread from `at` on.
    fn turn(&mut self, tid: Tid, phase: Phase, at: u64) {
        let track = self.track(tid);
        let pid = track.stats.thread.pid;
        let before = std::mem::replace(&mut track.phase, phase);
        // Threads whose process is not known count for no process.
        if pid == Pid(0) || std::mem::discriminant(&before) == std::mem::discriminant(&phase) {
            return;
        }
        let inside = self.window.contains(&at);
        let crowd = self.crowds.entry(pid).or_default();
        let (busy, later) = (crowd.busy(), at > crowd.until_ns);
        crowd.pass(at, &self.window);
        if let Some(count) = crowd.count(before) {
            *count -= 1;
        }
        if let Some(count) = crowd.count(phase) {
            *count += 1;
        }
        crowd.seen.busy_periods += u64::from(inside && !busy && later && crowd.busy());
    }

    /// Takes that a thread is on this CPU: if another CPU was taken to run it, the thread left that CPU
    /// unseen.
    fn nowhere_else(&mut self, tid: Tid, cpu: u32, at: u64) {
        let Some(&index) = self.live.get(&tid) else {
            return;
        };
        let track = &self.threads[index];
        let Some(other) = track.cpu.filter(|&other| other != cpu) else {
            return;
        };
        if let Some(&Cpu::Runs(there, since)) = self.cpus.get(&other) {
            if there == tid {
                self.gaps.unattributed_ns += self.within(since, at);
                self.cpus.insert(other, Cpu::Unknown);
            }
        }
    }

    fn leave(&mut self, cpu: u32, prev: Tid, state: State, at: u64, began: u64) {
        self.nowhere_else(prev, cpu, at);
        match self.cpus.get(&cpu).copied() {
            Some(Cpu::Runs(tid, since)) if tid == prev => self.ran(prev, since, at),
            Some(Cpu::Runs(tid, since)) => {
                self.gaps.switches += u64::from(self.counts(at));
                self.gaps.unattributed_ns += self.within(since, at);
                self.unknown(tid, at);
            }
            Some(Cpu::Unknown) => {}
            // The CPU's first switch: the thread that leaves was there when the trace began, unless it did
            // something since.
            None if prev == IDLE || self.track(prev).untold() => self.ran(prev, began, at),
            None => self.gaps.switches += u64::from(self.counts(at)),
        }
        if prev == IDLE {
            return;
        }
        let (counts, losses) = (self.counts(at), self.losses);
        let track = self.track(prev);
        track.cpu = Some(cpu);
        if state.is_ready() {
            track.stats.preemptions += u64::from(counts);
            let ready = Phase::Ready {
                since_ns: at,
                losses,
                woken: false,
            };
            self.turn(prev, ready, at);
        } else if state.has_ended() {
            self.turn(prev, Phase::Unknown, at);
            self.live.remove(&prev);
        } else {
            self.turn(prev, Phase::Blocked { since_ns: at }, at);
        }
    }

    fn enter(&mut self, cpu: u32, next: Tid, at: u64) {
        self.nowhere_else(next, cpu, at);
        self.cpus.insert(cpu, Cpu::Runs(next, at));
        if next == IDLE {
            return;
        }
        let (counts, all_losses) = (self.counts(at), self.losses);
        let track = self.track(next);
        let ready = match track.phase {
            Phase::Ready {
                since_ns, losses, ..
            } if losses == all_losses => Some(since_ns),
            // The thread was woken on its way to sleep, and the wakeup event came before the switch that
            // takes it off the CPU.
            Phase::Blocked { since_ns } if track.woken_running => Some(since_ns),
            _ => None,
        };
        let strange = matches!(track.phase, Phase::Blocked { .. } | Phase::Running);
        if counts {
            if let Some(since) = ready {
                track.stats.delays.add(at.saturating_sub(since));
            }
            track.stats.switches += 1;
            track.stats.migrations += u64::from(track.cpu.is_some_and(|last| last != cpu));
        }
        track.cpu = Some(cpu);
        track.woken_running = false;
        self.turn(next, Phase::Running, at);
        self.gaps.states += u64::from(counts && strange && ready.is_none());
    }

    fn wake(&mut self, tid: Tid, at: u64) {
        if tid == IDLE {
            return;
        }
        let (counts, losses) = (self.counts(at), self.losses);
        let track = self.track(tid);
        let ready = Phase::Ready {
            since_ns: at,
            losses,
            woken: true,
        };
        match track.phase {
            Phase::Running => track.woken_running = true,
            Phase::Ready { woken: false, .. } => {}
            // The kernel wakes no thread that is awake: the thread ran since, unseen.
            Phase::Ready { .. } => {
                self.turn(tid, ready, at);
                self.gaps.states += u64::from(counts);
            }
            Phase::Blocked { .. } | Phase::Unknown => {
                track.stats.wakeups += u64::from(counts);
                self.turn(tid, ready, at);
            }
        }
    }
}

impl Analysis {
    /// The processes of the threads that `keep` accepts, by process id.
    pub fn processes(&self, keep: impl Fn(&Thread) -> bool) -> Vec<ProcessStats> {
        let mut processes: BTreeMap<Pid, ProcessStats> = BTreeMap::new();
        for stats in self.threads.iter().filter(|t| keep(&t.thread)) {
            let thread = &stats.thread;
            let pid = thread.process();
            let process = processes.entry(pid).or_insert_with(|| ProcessStats {
                pid,
                name: thread.name.clone(),
                threads: 0,
                run_ns: 0,
                switches: 0,
                preemptions: 0,
                migrations: 0,
                wakeups: 0,
                delays: Delays::default(),
                occasions: Occasions::default(),
            });
            if thread.tid.0 == pid.0 {
                process.name = thread.name.clone();
            }
            process.threads += 1;
            process.run_ns += stats.run_ns;
            process.switches += stats.switches;
            process.preemptions += stats.preemptions;
            process.migrations += stats.migrations;
            process.wakeups += stats.wakeups;
            process.delays.merge(&stats.delays);
        }
        for process in processes.values_mut() {
            let occasions = self.occasions.get(&process.pid);
            process.occasions = occasions.cloned().unwrap_or_default();
        }
        processes.into_values().collect()
    }

    /// The delays of the threads that `keep` accepts.
    pub fn delays(&self, keep: impl Fn(&Thread) -> bool) -> Delays {
        let mut all = Delays::default();
        for stats in self.threads.iter().filter(|t| keep(&t.thread)) {
            all.merge(&stats.delays);
        }
        all
    }
}

impl fmt::Debug for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut summary = f.debug_struct("Delays");
        summary.field("count", &self.count);
        summary.field("sum_ns", &self.sum_ns);
        summary.field("max_ns", &self.max_ns).finish()
    }
}

impl Delays {
    /// Adds a delay, in ns.
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.sum_ns += ns;
        self.max_ns = self.max_ns.max(ns);
        if let Some(histogram) = self.histogram() {
            // The histogram grows as needed: an error only where memory has no room for the count.
            let _ = histogram.record(ns);
        }
    }

    /// Adds the delays of another distribution.
    pub fn merge(&mut self, other: &Delays) {
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        if let (Some(from), Some(into)) = (&other.histogram, self.histogram()) {
            // Both histograms grow as needed, so that no value is out of range.
            let _ = into.add(from);
        }
    }

    /// The histogram, created when it is first needed: most threads of a host sleep all the time.
    fn histogram(&mut self) -> Option<&mut Histogram<u32>> {
        if self.histogram.is_none() {
            // Two digits, from 1 ns up: never an error with up to five digits.
            self.histogram = Histogram::new(2).ok();
        }
        self.histogram.as_mut()
    }

    /// The number of delays.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of the delays, in ns.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The mean of the delays, in ns; `None` without delays.
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count)
    }

    /// The longest delay, in ns; `None` without delays.
    pub fn max_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max_ns)
    }

    /// The delay in ns, to 1 %, that this share of the delays (0 to 1) does not exceed; `None` without
    /// delays.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let histogram = self.histogram.as_ref().filter(|_| self.count > 0)?;
        Some(histogram.value_at_quantile(share).min(self.max_ns))
    }
}
