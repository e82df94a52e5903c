//! The machine as scheduling classes see it: CPUs, threads, time, and what can be asked for.

use crate::events::Nanos;
use quell_model::{CpuId, CpuSet, Nice, TenantWeight, ThreadRole, Topology, Weight};
use quell_scenario::ThreadPolicy;
use std::collections::BTreeMap;

/// A simulated thread, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

impl ThreadId {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A cgroup with a weight, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The one that all others are in.
    pub const ROOT: GroupId = GroupId(0);

    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A cgroup with the cpu controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The group that it is in; none: it is the root.
    pub parent: Option<GroupId>,
    /// Its `cpu.weight`.
    pub weight: TenantWeight,
    /// Its `cpu.max`. [`SchedExt`](crate::SchedExt) enforces it; other classes do not yet.
    pub limit: Option<Limit>,
}

/// The most CPU time that a cgroup's threads get together: `cpu.max` and `cpu.max.burst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// In each period, on all CPUs together.
    pub quota: Nanos,
    /// The period.
    pub period: Nanos,
    /// What may be left of earlier periods and used beyond the quota.
    pub burst: Nanos,
}

/// What the machine's own work takes, and how often it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// Choosing another thread and switching to it, on the CPU that does.
    pub switch: Nanos,
    /// Waking a thread, on the CPU that does.
    pub wake: Nanos,
    /// Starting a process, its end, and waiting for that: for who starts it, before that is ready.
    pub fork: Nanos,
    /// From asking another CPU to look until it does.
    pub kick: Nanos,
    /// A timer's interrupt, without what it wakes.
    pub interrupt: Nanos,
    /// A request's way in, without whom it wakes: a device's interrupt, the network stack.
    pub request: Nanos,
    /// An answer's way out, on the CPU that answers.
    pub answer: Nanos,
    /// Requests come from, and answers go to, a thread of this machine that goes before all others (a load generator), on
    /// a CPU of its tenant's: who runs there waits meanwhile.
    pub generators: bool,
    /// Requests come in on CPUs of the machine that are not simulated, as where these are a part of it: a request's way in
    /// takes its time, and none of these CPUs'.
    pub elsewhere: bool,
    /// A tick.
    pub tick: Nanos,
    /// From one tick of a CPU that runs a thread to the next; 0: no ticks.
    pub tick_every: Nanos,
    /// What a thread takes longer that comes from another CPU of the same last-level cache.
    pub migrate: Nanos,
    /// And from one of another cache.
    pub migrate_far: Nanos,
    /// Kernel threads and daemons: for how long each puts off what runs.
    pub noise: Nanos,
    /// And how long it is from one to the next on a CPU, in the mean (exponential); 0: none.
    pub noise_every: Nanos,
    /// CPUs share one clock that counts the instructions of all: where several are busy, each one's own work takes as
    /// many times as long, while threads run for as long as they are to. So it is in the kernel lab.
    pub shared_clock: bool,
    /// How fast each of two threads of a core is, in percent of one alone, while both CPUs run something: 1 to 100. Where a
    /// core has more than two CPUs, all that are busy have together what two have. It is work that takes longer; CPU time
    /// is time, as on Linux. The machine's own work and spinning take what they take.
    pub smt_percent: u8,
    /// How much longer it takes until a CPU looks, or is interrupted, that has idled for long.
    pub idle_exit: Nanos,
    /// How long that is.
    pub idle_deep_after: Nanos,
}

impl Costs {
    /// Nothing costs anything: for closed forms and bounds.
    pub const NONE: Costs = Costs {
        switch: 0,
        wake: 0,
        fork: 0,
        kick: 0,
        interrupt: 0,
        request: 0,
        answer: 0,
        generators: false,
        elsewhere: false,
        tick: 0,
        tick_every: 0,
        migrate: 0,
        migrate_far: 0,
        noise: 0,
        noise_every: 0,
        shared_clock: false,
        smt_percent: 100,
        idle_exit: 0,
        idle_deep_after: 0,
    };

    /// A server of today, about: 2 us to switch (lmbench's lat_ctx with small working sets, 1 to 3 us), 1 us to wake
    /// (half of what a pipe's round trip takes beyond its switches), 2 us until another CPU has left its idle loop, 2 us
    /// for an interrupt and for a tick (250 a second, as distributions have it), 60 us for a small process
    /// from fork to wait (lmbench's lat_proc fork, 60 to 100 us on servers), 5 us for a small request's way
    /// in
    /// through the network stack and 3 us for its answer's way out. A core with two busy threads does 1.2 times as much as with
    /// one: Intel measured 1.16 to 1.28 for web and database servers (Marr et al., Hyper-Threading Technology, Intel
    /// Technology Journal 6(1), 2002), Linux assumed 1.15 (SD_SIBLING_INIT's smt_gain, up to 4.20). No deep idle states, as
    /// where latency matters they are switched off; once idle for longer than 600 us (their target residency), a Skylake server
    /// takes 133 us to leave C6 (Linux, drivers/idle/intel_idle.c).
    pub const TYPICAL: Costs = Costs {
        switch: 2_000,
        wake: 1_000,
        fork: 60_000,
        kick: 2_000,
        interrupt: 2_000,
        request: 5_000,
        answer: 3_000,
        tick: 2_000,
        tick_every: 4_000_000,
        smt_percent: 60,
        idle_deep_after: 600_000,
        ..Costs::NONE
    };
}

/// What a thread does at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It waits for something else than a CPU.
    Blocked,
    /// It waits for a CPU.
    Ready,
    /// It has that CPU.
    Running(CpuId),
    /// It has ended, and is never ready again.
    Ended,
}

/// A thread as classes see it. (What changes all the time is first, in one line of a cache.)
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct Thread {
    /// What it does.
    pub state: State,
    /// The CPU that it ran on last, or runs on.
    pub cpu: CpuId,
    /// It watches the clock.
    pub(crate) timed: bool,
    /// Its kernel has something to do before its next step.
    pub(crate) pending: bool,
    /// What it does before its next step: CPU time at full speed, or, if `timed`, at any.
    pub(crate) left: Nanos,
    /// CPU time so far, up to when its CPU last looked.
    pub ran: Nanos,
    /// How long it has been ready before it got a CPU, so far.
    pub(crate) waited: Nanos,
    /// Since when it is ready, if it is.
    pub(crate) ready_since: Nanos,
    /// When the CPU that it ran on last had switched to another one.
    pub(crate) left_at: Nanos,
    /// When the request was due that it works for.
    pub works_for: Option<Nanos>,
    /// Where it may run; none: anywhere.
    pub allowed: Option<CpuSet>,
    /// Its tenant's index.
    pub tenant: usize,
    /// The first thread of its process: of a tenant's threads that are there from the start one process, and
    /// each that is forked another.
    pub leader: ThreadId,
    /// The thread that it descends from and that was there from the start: itself, where that was.
    pub origin: ThreadId,
    /// Its cgroup.
    pub group: GroupId,
    /// How its kernel schedules it.
    pub policy: ThreadPolicy,
    /// Its nice value.
    pub nice: Nice,
    /// The slice that it asks for; none: the kernel's own.
    pub slice: Option<Nanos>,
    /// What it does in its process.
    pub role: ThreadRole,
}

impl Thread {
    /// What of `left` is done in so much CPU time, at a speed in percent.
    #[inline]
    fn done_in(&self, time: Nanos, speed: u8) -> Nanos {
        if speed == FULL_SPEED || self.timed {
            time
        } else {
            (u128::from(time) * u128::from(speed) / 100) as Nanos
        }
    }

    /// How much CPU time the rest takes.
    #[inline]
    pub(crate) fn time_left(&self, speed: u8) -> Nanos {
        if speed == FULL_SPEED || self.timed {
            self.left
        } else {
            let time = (u128::from(self.left) * 100).div_ceil(speed.into());
            time.min(u128::from(FOREVER)) as Nanos
        }
    }

    /// Its weight.
    pub fn weight(&self) -> Weight {
        self.policy.weight(self.nice)
    }

    /// Whether it may run there.
    pub fn may_use(&self, cpu: CpuId) -> bool {
        self.allowed.as_ref().is_none_or(|set| set.contains(cpu))
    }
}

/// A CPU as classes see it.
#[derive(Debug, Clone)]
pub struct Cpu {
    /// What runs.
    pub current: Option<ThreadId>,
    /// CPU time given to threads so far, up to when it last looked.
    pub busy: Nanos,
    /// It was asked to look, and will.
    pub kicked: bool,
    /// Since when its thread goes on, or when it will: until then it does the machine's own work. [`NEVER`] while
    /// it is a guest's that does not run.
    pub(crate) started: Nanos,
    /// How fast it does threads' work, in percent of a CPU that has its core for itself.
    pub(crate) speed: u8,
    /// The machine's own work that is left while it does not run.
    pub(crate) owes: Nanos,
    /// Who asked it to look.
    pub(crate) kicked_by: Option<CpuId>,
    /// What the thread's turn has left as of `started`.
    pub(crate) turn: Option<Nanos>,
    /// What comes next there has to be planned anew.
    pub(crate) stale: bool,
    /// A tick is planned.
    pub(crate) ticks: bool,
    /// Changes with each plan for what comes next there, so that older ones are known.
    pub(crate) plan: u32,
}

/// What interrupts a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// The next request comes in at a port.
    Arrival(u32),
    /// On a host: the reply comes in to a question of that number ([`crate::kernel::Question`]).
    Reply(u32),
    /// In a guest: it has come to the thread that asked.
    Replied(ThreadId),
    /// A thread has slept.
    Slept(ThreadId),
    /// What woke a recorded thread comes again.
    Wakeup(ThreadId),
    /// A class asked for this.
    Timer(u32),
}

/// CPU time that does not end: a vCPU thread's, whose guest is elsewhere.
pub(crate) const FOREVER: Nanos = 1 << 62;

/// Of a CPU that has its core for itself, in percent.
const FULL_SPEED: u8 = 100;

/// When a CPU goes on that does not run.
pub(crate) const NEVER: Nanos = Nanos::MAX;

/// What is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// What the CPU's thread does ends, or its turn; with the CPU's plan then.
    Due(CpuId, u32),
    /// The CPU was asked to look.
    Kick(CpuId),
    /// The next request comes in at a port, on a CPU that is not simulated.
    Arrive(u32),
    /// So does a reply to a question of that number.
    Reply(u32),
    /// The CPU is interrupted.
    Interrupt(CpuId, Interrupt),
    /// And has come to what interrupted it.
    Handle(CpuId, Interrupt),
    /// A CPU's tick.
    Tick(CpuId),
    /// Something else of the machine's.
    Noise(CpuId),
}

impl Event {
    /// Whose it is, of those that are a CPU's.
    pub fn cpu(self) -> CpuId {
        match self {
            Event::Arrive(_) | Event::Reply(_) => CpuId(0),
            Event::Due(cpu, _)
            | Event::Kick(cpu)
            | Event::Interrupt(cpu, _)
            | Event::Handle(cpu, _)
            | Event::Tick(cpu)
            | Event::Noise(cpu) => cpu,
        }
    }
}

/// The machine.
#[derive(Debug)]
pub struct Machine {
    /// The time.
    pub now: Nanos,
    /// The CPUs, by number.
    pub cpus: Vec<Cpu>,
    /// The threads, by number.
    pub threads: Vec<Thread>,
    /// The cgroups, by number, the root first.
    pub groups: Vec<Group>,
    /// How CPUs share caches.
    pub topology: Topology,
    /// What things cost.
    pub costs: Costs,
    /// What is to be planned.
    pub(crate) planned: Vec<(Nanos, Event)>,
    /// What a VM exit and the entry behind it take, if this is a guest.
    pub(crate) exit: Option<Nanos>,
    /// VM exits so far.
    pub(crate) exits: u64,
    /// The CPU whose work is being done, if any.
    pub here: Option<CpuId>,
    /// The thread that does it; none: an interrupt.
    pub by: Option<ThreadId>,
    /// The CPUs of each core.
    cores: BTreeMap<u32, Vec<CpuId>>,
    /// Threads of a core slow each other down.
    shares_cores: bool,
    /// How many CPUs have a thread.
    busy: u32,
    /// CPUs that are to be planned anew before the next event.
    pub(crate) stale: Vec<CpuId>,
}

impl Machine {
    pub(crate) fn new(topology: Topology, costs: Costs) -> Machine {
        let cpu = Cpu {
            current: None,
            busy: 0,
            kicked: false,
            started: 0,
            speed: FULL_SPEED,
            owes: 0,
            kicked_by: None,
            turn: None,
            stale: false,
            ticks: false,
            plan: 0,
        };
        let mut cores: BTreeMap<u32, Vec<CpuId>> = BTreeMap::new();
        for it in &topology.cpus {
            cores.entry(it.core).or_default().push(it.id);
        }
        Machine {
            now: 0,
            shares_cores: cores.len() < topology.cpus.len() && costs.smt_percent != FULL_SPEED,
            cpus: vec![cpu; topology.cpus.len()],
            threads: Vec::new(),
            groups: vec![Group {
                parent: None,
                weight: TenantWeight::DEFAULT,
                limit: None,
            }],
            topology,
            costs,
            planned: Vec::new(),
            exit: None,
            exits: 0,
            here: None,
            by: None,
            cores,
            busy: 0,
            stale: Vec::new(),
        }
    }

    /// Adds a cgroup; gives its number.
    pub(crate) fn add_group(&mut self, parent: GroupId, weight: TenantWeight) -> GroupId {
        self.groups.push(Group {
            parent: Some(parent),
            weight,
            limit: None,
        });
        GroupId(self.groups.len() as u32 - 1)
    }

    /// The CPUs' numbers.
    pub fn cpu_ids(&self) -> impl Iterator<Item = CpuId> + use<> {
        (0..self.cpus.len() as u32).map(CpuId)
    }

    /// A CPU.
    pub fn cpu(&self, cpu: CpuId) -> &Cpu {
        &self.cpus[cpu.0 as usize]
    }

    pub(crate) fn cpu_mut(&mut self, cpu: CpuId) -> &mut Cpu {
        &mut self.cpus[cpu.0 as usize]
    }

    /// A group.
    pub fn group(&self, group: GroupId) -> &Group {
        &self.groups[group.index()]
    }

    /// A thread.
    pub fn thread(&self, thread: ThreadId) -> &Thread {
        &self.threads[thread.index()]
    }

    pub(crate) fn thread_mut(&mut self, thread: ThreadId) -> &mut Thread {
        &mut self.threads[thread.index()]
    }

    /// A thread's CPU time up to now.
    pub fn cpu_time(&self, thread: ThreadId) -> Nanos {
        let it = self.thread(thread);
        let running = match it.state {
            State::Running(cpu) => self.now.saturating_sub(self.cpu(cpu).started),
            State::Ready | State::Blocked | State::Ended => 0,
        };
        it.ran + running
    }

    /// Counts what the CPU's thread ran since it was last counted, up to now.
    pub(crate) fn account(&mut self, cpu: CpuId) {
        let now = self.now;
        let it = self.cpu_mut(cpu);
        let Some(thread) = it.current else { return };
        let ran = now.saturating_sub(it.started);
        it.started = it.started.max(now);
        it.turn = it.turn.map(|turn| turn.saturating_sub(ran));
        it.busy += ran;
        let speed = it.speed;
        let thread = self.thread_mut(thread);
        thread.ran += ran;
        thread.left = thread.left.saturating_sub(thread.done_in(ran, speed));
    }

    /// From now on a CPU is that fast.
    pub(crate) fn set_speed(&mut self, cpu: CpuId, speed: u8) {
        if self.cpu(cpu).speed != speed {
            self.account(cpu);
            self.cpu_mut(cpu).speed = speed;
            self.replan(cpu);
        }
    }

    /// What runs on a CPU's core has changed, and with that how fast its CPUs are. The CPU itself has been accounted for.
    fn share_core(&mut self, cpu: CpuId) {
        let siblings = self.siblings(cpu);
        let busy = siblings
            .iter()
            .filter(|&&it| self.cpu(it).current.is_some());
        let speed = match busy.count() {
            0 | 1 => FULL_SPEED,
            busy => (2 * usize::from(self.costs.smt_percent) / busy).max(1) as u8,
        };
        for number in 0..siblings.len() {
            let sibling = self.siblings(cpu)[number];
            if sibling == cpu {
                self.cpu_mut(cpu).speed = speed;
            } else {
                self.set_speed(sibling, speed);
            }
        }
    }

    /// How much longer it takes to reach a CPU now, as that idles deeply.
    #[inline]
    fn idle_exit(&self, cpu: CpuId) -> Nanos {
        if self.costs.idle_exit == 0 {
            return 0;
        }
        let it = self.cpu(cpu);
        // When its last thread was accounted for, or the machine's own work since was done.
        let since = it.started;
        let idles = it.current.is_none() && !it.kicked && since <= self.now;
        match idles && self.now - since > self.costs.idle_deep_after {
            true => self.costs.idle_exit,
            false => 0,
        }
    }

    /// A CPU is interrupted: whether that takes longer, as it idled deeply. Then it begins when it has left that.
    #[inline]
    pub(crate) fn leave_idle(&mut self, cpu: CpuId) -> bool {
        let exit = self.idle_exit(cpu);
        if exit > 0 {
            self.cpu_mut(cpu).started = self.now + exit;
        }
        exit > 0
    }

    /// The CPU does the machine's own work for so long, from now on or when it is done with other such work.
    pub fn charge(&mut self, cpu: CpuId, cost: Nanos) {
        if cost == 0 {
            return;
        }
        self.account(cpu);
        let (now, takes) = (self.now, cost * self.clock_share());
        let it = self.cpu_mut(cpu);
        it.busy += takes;
        if it.started == NEVER {
            it.owes += takes;
            return;
        }
        it.started = it.started.max(now) + takes;
        self.replan(cpu);
    }

    /// A guest's CPU leaves the guest and comes back.
    pub(crate) fn exit(&mut self, cpu: CpuId) {
        if let Some(takes) = self.exit {
            self.exits += 1;
            self.charge(cpu, takes);
        }
    }

    /// A guest's CPU stops where it is.
    pub(crate) fn pause(&mut self, cpu: CpuId) {
        self.account(cpu);
        let now = self.now;
        let it = self.cpu_mut(cpu);
        if it.started != NEVER {
            it.owes = it.started.saturating_sub(now);
            it.started = NEVER;
            self.replan(cpu);
        }
    }

    /// It goes on there.
    pub(crate) fn resume(&mut self, cpu: CpuId) {
        let now = self.now;
        let it = self.cpu_mut(cpu);
        it.started = now + std::mem::take(&mut it.owes);
        self.replan(cpu);
    }

    /// Plans an event.
    pub(crate) fn plan(&mut self, at: Nanos, event: Event) {
        self.planned.push((at, event));
    }

    /// How long a thread has been ready without a CPU, up to now.
    pub fn waited(&self, thread: ThreadId) -> Nanos {
        let it = self.thread(thread);
        match it.state {
            State::Ready => it.waited + (self.now - it.ready_since),
            State::Running(_) | State::Blocked | State::Ended => it.waited,
        }
    }

    /// How many times as long the machine's own work takes as on a CPU with a clock of its own.
    fn clock_share(&self) -> Nanos {
        match self.costs.shared_clock {
            true => self.busy.max(1).into(),
            false => 1,
        }
    }

    /// A CPU gets another thread, or none.
    pub(crate) fn set_current(&mut self, cpu: CpuId, thread: Option<ThreadId>) {
        let before = std::mem::replace(&mut self.cpu_mut(cpu).current, thread);
        self.busy = self.busy + u32::from(thread.is_some()) - u32::from(before.is_some());
        if self.shares_cores && thread.is_some() != before.is_some() {
            self.share_core(cpu);
        }
    }

    /// What comes next on that CPU has changed.
    pub(crate) fn replan(&mut self, cpu: CpuId) {
        if !std::mem::replace(&mut self.cpu_mut(cpu).stale, true) {
            self.stale.push(cpu);
        }
    }

    /// Makes a CPU look whether it should run something else.
    pub fn kick(&mut self, cpu: CpuId) {
        let here = self.here;
        let delay = if here == Some(cpu) {
            0
        } else {
            self.costs.kick * self.clock_share() + self.idle_exit(cpu)
        };
        let at = self.now + delay;
        let it = self.cpu_mut(cpu);
        if !std::mem::replace(&mut it.kicked, true) {
            it.kicked_by = here;
            if let Some(sender) = here.filter(|&here| here != cpu) {
                self.exit(sender);
            }
            self.plan(at, Event::Kick(cpu));
        }
    }

    /// Has an idle CPU look that a ready thread may use, if there is one.
    pub fn kick_idle_for(&mut self, thread: ThreadId) {
        if let Some(cpu) = self.idle_cpu(thread) {
            self.kick(cpu);
        }
    }

    /// After choosing `next`, has an idle CPU look for `ran`, which has to wait. Where threads may run everywhere none idles
    /// beside one that waits, so this is about others only.
    pub fn kick_idle_for_displaced(&mut self, ran: Option<ThreadId>, next: Option<ThreadId>) {
        let limited = |thread| self.thread(thread).allowed.is_some();
        if let Some(displaced) = ran.filter(|_| ran != next) {
            if limited(displaced) || next.is_some_and(limited) {
                self.kick_idle_for(displaced);
            }
        }
    }

    /// How many CPUs a thread may use.
    pub fn allowed_cpus(&self, thread: ThreadId) -> u32 {
        let allowed = &self.thread(thread).allowed;
        let count = allowed.as_ref().map_or(self.cpus.len(), CpuSet::len);
        count as u32
    }

    /// The CPU that a thread is on or was last, or if it may not use that any more, the first that it may.
    pub fn usable_cpu(&self, thread: ThreadId) -> CpuId {
        let it = self.thread(thread);
        let mut allowed = it.allowed.iter().flat_map(CpuSet::iter);
        if it.may_use(it.cpu) {
            it.cpu
        } else {
            allowed.next().unwrap_or(it.cpu)
        }
    }

    /// The CPUs of a CPU's core, itself among them.
    pub fn siblings(&self, cpu: CpuId) -> &[CpuId] {
        let core = self.topology.cpus[cpu.0 as usize].core;
        self.cores.get(&core).map_or(&[], Vec::as_slice)
    }

    /// Whether some core has several CPUs.
    pub fn has_smt(&self) -> bool {
        self.cores.len() < self.cpus.len()
    }

    /// Whether two CPUs have the same last-level cache.
    pub fn share_cache(&self, one: CpuId, other: CpuId) -> bool {
        let cpus = &self.topology.cpus;
        cpus[one.0 as usize].llc == cpus[other.0 as usize].llc
    }

    /// Calls the class's [`crate::Class::timer`] then, in an interrupt of the CPU that asks.
    pub fn set_timer(&mut self, at: Nanos, token: u32) {
        let cpu = self.here.unwrap_or(CpuId(0));
        let event = Event::Interrupt(cpu, Interrupt::Timer(token));
        self.exit(cpu);
        self.plan(at.max(self.now), event);
    }

    /// A CPU for the thread that has nothing to do and was not asked to look: the one it ran on last, else the first.
    pub fn idle_cpu(&self, thread: ThreadId) -> Option<CpuId> {
        let thread = self.thread(thread);
        let idle = |cpu: CpuId| {
            let it = self.cpu(cpu);
            it.current.is_none() && !it.kicked && thread.may_use(cpu)
        };
        if idle(thread.cpu) {
            return Some(thread.cpu);
        }
        self.cpu_ids().find(|&cpu| idle(cpu))
    }
}
