//! The machine as scheduling classes see it: CPUs, threads, cgroups and time, and the requests that a class
//! makes of it (kicks, timers, charges).

use crate::events::Nanos;
use quell_model::{CpuId, CpuSet, Nice, TenantWeight, ThreadRole, Topology, Weight};
use quell_scenario::ThreadPolicy;
use std::collections::BTreeMap;

/// A simulated thread, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

impl ThreadId {
    /// The number as an index into [`Machine::threads`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A cgroup with the cpu controller, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The root cgroup, the ancestor of all others.
    pub const ROOT: GroupId = GroupId(0);

    /// The number as an index into [`Machine::groups`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A cgroup with the cpu controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The parent cgroup; `None` for the root.
    pub parent: Option<GroupId>,
    /// The cgroup's `cpu.weight`.
    pub weight: TenantWeight,
    /// The cgroup's bandwidth limit. [`SchedExt`](crate::SchedExt) enforces it; other classes do not.
    pub limit: Option<Limit>,
}

/// The bandwidth limit of a cgroup, `cpu.max` and `cpu.max.burst`, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// CPU time that the cgroup's threads may use in each period, on all CPUs together.
    pub quota: Nanos,
    /// The length of a period.
    pub period: Nanos,
    /// How much unused quota of earlier periods the threads may use beyond the quota.
    pub burst: Nanos,
}

/// The cost of kernel work (switches, interrupts, ticks, the network stack) and how often it comes; times in
/// ns. No thread is charged for kernel work: a CPU's thread does not run meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// Choosing another thread and switching to it, on the CPU that switches.
    pub switch: Nanos,
    /// Waking a thread, on the CPU of the waker.
    pub wake: Nanos,
    /// Starting a process, its end and the parent's wait for it: on the parent's CPU, before the child is
    /// ready.
    pub fork: Nanos,
    /// From a kick of another CPU until that CPU reschedules.
    pub kick: Nanos,
    /// A timer interrupt, without the wakeup in it.
    pub interrupt: Nanos,
    /// A request's way in, without the wakeup: a device's interrupt and the network stack.
    pub request: Nanos,
    /// An answer's way out, on the CPU that answers.
    pub answer: Nanos,
    /// A load generator runs on this machine: requests come from, and answers go to, a thread that preempts
    /// every other one on the CPU of the tenant's device. The preempted thread is ready meanwhile.
    pub generators: bool,
    /// Requests come in on CPUs of the host that are not simulated, where the simulated CPUs are a part of a
    /// host: a request is late by `request`, and uses no time of a simulated CPU.
    pub elsewhere: bool,
    /// A scheduler tick.
    pub tick: Nanos,
    /// The time between two ticks of a CPU that runs a thread; 0: no ticks.
    pub tick_every: Nanos,
    /// The extra kernel work of a switch to a thread that ran last on another CPU of the same last-level
    /// cache.
    pub migrate: Nanos,
    /// The same for a thread that ran last on a CPU of another last-level cache.
    pub migrate_far: Nanos,
    /// For how long each run of a kernel thread or daemon (noise) preempts the thread of a CPU.
    pub noise: Nanos,
    /// The mean time between two such runs on each CPU, exponentially distributed; 0: no noise.
    pub noise_every: Nanos,
    /// All CPUs share one clock that counts the instructions of all, as in the kernel lab: while n CPUs are
    /// busy, kernel work takes n times as long, and threads' CPU time is unchanged.
    pub shared_clock: bool,
    /// The speed of each of two hardware threads of a core while both are busy, in percent of one alone: 1 to
    /// 100. The busy CPUs of a core with more than two have together the speed that two have. Threads' work
    /// takes longer; CPU time is the time on a CPU, as on Linux. Kernel work and spinning are as fast as
    /// ever.
    pub smt_percent: u8,
    /// The exit latency of the deep idle state: how much longer a kick or an interrupt takes to reach a CPU
    /// in it.
    pub idle_exit: Nanos,
    /// The time after which an idle CPU is in the deep idle state.
    pub idle_deep_after: Nanos,
}

impl Costs {
    /// Kernel work costs nothing: for closed forms and bounds.
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

    /// About a server of today. Sources:
    /// - switch 2 us: lmbench's lat_ctx with small working sets, 1 to 3 us;
    /// - wake 1 us: half of what a pipe's round trip takes beyond its switches;
    /// - kick 2 us: until another CPU has left its idle loop;
    /// - interrupt and tick 2 us each, 250 ticks a second, as distributions have it;
    /// - fork 60 us, a small process from fork to wait: lmbench's lat_proc fork, 60 to 100 us on servers;
    /// - request 5 us and answer 3 us: a small message's way through the network stack;
    /// - a core with two busy threads does 1.2 times as much as with one: Intel measured 1.16 to 1.28 for web
    ///   and database servers (Marr et al., Hyper-Threading Technology, Intel Technology Journal 6(1), 2002),
    ///   Linux assumed 1.15 (SD_SIBLING_INIT's smt_gain, up to 4.20);
    /// - no exit latency: where latency matters, deep idle states are switched off. A Skylake server takes
    ///   133 us to leave C6, whose target residency is 600 us (Linux, drivers/idle/intel_idle.c).
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

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The thread waits for something other than a CPU.
    Blocked,
    /// The thread waits for a CPU.
    Ready,
    /// The thread runs on that CPU.
    Running(CpuId),
    /// The thread has ended, and is never ready again.
    Ended,
}

/// A thread as classes see it. (The fields that change often come first, in one cache line.)
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct Thread {
    /// The thread's state.
    pub state: State,
    /// The CPU that the thread runs on, or ran on last.
    pub cpu: CpuId,
    /// The thread spins: `left` is time, whatever the speed of the CPU.
    pub(crate) timed: bool,
    /// The kernel has work pending for the thread ([`crate::kernel`]) before the thread's next step.
    pub(crate) pending: bool,
    /// What is left to do before the thread's next step: CPU time at full speed, or if `timed`, at any speed.
    pub(crate) left: Nanos,
    /// CPU time so far, up to the last accounting of the thread's CPU.
    pub ran: Nanos,
    /// How long the thread was ready before it got a CPU (run delay), all together, without the wait that
    /// goes on.
    pub(crate) waited: Nanos,
    /// Since when the thread is ready, if it is.
    pub(crate) ready_since: Nanos,
    /// When the CPU that the thread ran on last had switched to another thread.
    pub(crate) left_at: Nanos,
    /// When the request that the thread works for was due; `None`: it works for none.
    pub works_for: Option<Nanos>,
    /// The CPUs that the thread may run on; `None`: all.
    pub allowed: Option<CpuSet>,
    /// The index of the thread's tenant.
    pub tenant: usize,
    /// The first thread of the thread's process. All threads that a tenant has from the start are one
    /// process; each forked thread is a process of its own.
    pub leader: ThreadId,
    /// The ancestor of the thread that was there from the start; the thread itself, if it was.
    pub origin: ThreadId,
    /// The thread's cgroup.
    pub group: GroupId,
    /// The thread's scheduling policy.
    pub policy: ThreadPolicy,
    /// The thread's nice value.
    pub nice: Nice,
    /// The slice that the thread asks for (sched_attr's sched_runtime), in ns; `None`: the scheduler's own.
    pub slice: Option<Nanos>,
    /// What the thread is in its process.
    pub role: ThreadRole,
}

impl Thread {
    /// How much of `left` is done in `time` of CPU time at a speed in percent.
    #[inline]
    fn done_in(&self, time: Nanos, speed: u8) -> Nanos {
        if speed == FULL_SPEED || self.timed {
            time
        } else {
            (u128::from(time) * u128::from(speed) / 100) as Nanos
        }
    }

    /// How much CPU time `left` takes at a speed in percent.
    #[inline]
    pub(crate) fn time_left(&self, speed: u8) -> Nanos {
        if speed == FULL_SPEED || self.timed {
            self.left
        } else {
            let time = (u128::from(self.left) * 100).div_ceil(speed.into());
            time.min(u128::from(FOREVER)) as Nanos
        }
    }

    /// The thread's weight, by its policy and nice value.
    pub fn weight(&self) -> Weight {
        self.policy.weight(self.nice)
    }

    /// Whether the thread may run on a CPU.
    pub fn may_use(&self, cpu: CpuId) -> bool {
        self.allowed.as_ref().is_none_or(|set| set.contains(cpu))
    }
}

/// A CPU as classes see it.
#[derive(Debug, Clone)]
pub struct Cpu {
    /// The thread that runs; `None`: the CPU idles.
    pub current: Option<ThreadId>,
    /// The time for which the CPU was busy so far, with threads and with kernel work: of threads up to the
    /// last accounting, of kernel work all that was charged.
    pub busy: Nanos,
    /// The CPU was kicked and has not rescheduled yet.
    pub kicked: bool,
    /// Since when the CPU's thread runs, or when it will: until then the CPU does kernel work. [`NEVER`]
    /// while the CPU is a vCPU that does not run.
    pub(crate) started: Nanos,
    /// How fast the CPU does threads' work, in percent of a CPU that has its core for itself.
    pub(crate) speed: u8,
    /// The kernel work that is left while the vCPU does not run.
    pub(crate) owes: Nanos,
    /// The CPU whose kernel sent the kick; `None`: no CPU's.
    pub(crate) kicked_by: Option<CpuId>,
    /// What is left of the thread's slice as of `started`; `None`: the class set no end.
    pub(crate) turn: Option<Nanos>,
    /// The CPU's next event has to be planned anew.
    pub(crate) stale: bool,
    /// A tick is planned.
    pub(crate) ticks: bool,
    /// Changes with each plan of the CPU's next event, so that events of older plans are known and dropped.
    pub(crate) plan: u32,
}

/// The cause of an interrupt of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// The next request comes in at a port of that number.
    Arrival(u32),
    /// On a host: the reply to the question of that number ([`crate::kernel::Question`]) comes in.
    Reply(u32),
    /// In a guest: the reply has come to the thread that asked.
    Replied(ThreadId),
    /// A thread's sleep ends.
    Slept(ThreadId),
    /// The recorded wakeup of a thread.
    Wakeup(ThreadId),
    /// A timer of the class, with the class's token.
    Timer(u32),
}

/// CPU time without end: that of a vCPU's thread, whose work is simulated in the guest's kernel.
pub(crate) const FOREVER: Nanos = 1 << 62;

/// The speed of a CPU that has its core for itself, in percent.
const FULL_SPEED: u8 = 100;

/// The time at which a vCPU goes on while it does not run.
pub(crate) const NEVER: Nanos = Nanos::MAX;

/// An event that is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The step or the slice of the CPU's thread ends; with the number of the CPU's plan.
    Due(CpuId, u32),
    /// A kick reaches the CPU.
    Kick(CpuId),
    /// The next request comes in at a port, on a CPU that is not simulated ([`Costs::elsewhere`]).
    Arrive(u32),
    /// The reply to the question of that number comes in, on a CPU that is not simulated.
    Reply(u32),
    /// The CPU is interrupted.
    Interrupt(CpuId, Interrupt),
    /// The CPU has done the interrupt's kernel work and handles its cause.
    Handle(CpuId, Interrupt),
    /// A tick of the CPU.
    Tick(CpuId),
    /// A kernel thread or daemon runs on the CPU ([`Costs::noise`]).
    Noise(CpuId),
}

impl Event {
    /// The CPU of the event; CPU 0 for an event that has none.
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
    /// The virtual time, in ns.
    pub now: Nanos,
    /// The CPUs, by number.
    pub cpus: Vec<Cpu>,
    /// The threads, by number.
    pub threads: Vec<Thread>,
    /// The cgroups, by number, the root first.
    pub groups: Vec<Group>,
    /// The sockets, caches and cores of the CPUs.
    pub topology: Topology,
    /// The cost of kernel work.
    pub costs: Costs,
    /// Events that the simulation is to take over, with their times.
    pub(crate) planned: Vec<(Nanos, Event)>,
    /// If this is a guest: how long a VM exit takes, with the entry that ends it.
    pub(crate) exit: Option<Nanos>,
    /// VM exits so far.
    pub(crate) exits: u64,
    /// The CPU whose kernel code runs now, if any.
    pub here: Option<CpuId>,
    /// The thread for which that code runs; `None`: an interrupt.
    pub by: Option<ThreadId>,
    /// The CPUs of each core.
    cores: BTreeMap<u32, Vec<CpuId>>,
    /// Whether busy hardware threads of a core slow each other down.
    shares_cores: bool,
    /// How many CPUs run a thread.
    busy: u32,
    /// CPUs whose next event is to be planned anew before the next event is handled.
    pub(crate) stale: Vec<CpuId>,
}

impl Machine {
    /// A machine without threads.
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

    /// Adds a cgroup and returns its number.
    pub(crate) fn add_group(&mut self, parent: GroupId, weight: TenantWeight) -> GroupId {
        self.groups.push(Group {
            parent: Some(parent),
            weight,
            limit: None,
        });
        GroupId(self.groups.len() as u32 - 1)
    }

    /// All CPUs' numbers.
    pub fn cpu_ids(&self) -> impl Iterator<Item = CpuId> + use<> {
        (0..self.cpus.len() as u32).map(CpuId)
    }

    /// The CPU of that number.
    pub fn cpu(&self, cpu: CpuId) -> &Cpu {
        &self.cpus[cpu.0 as usize]
    }

    /// The CPU of that number.
    pub(crate) fn cpu_mut(&mut self, cpu: CpuId) -> &mut Cpu {
        &mut self.cpus[cpu.0 as usize]
    }

    /// The cgroup of that number.
    pub fn group(&self, group: GroupId) -> &Group {
        &self.groups[group.index()]
    }

    /// The thread of that number.
    pub fn thread(&self, thread: ThreadId) -> &Thread {
        &self.threads[thread.index()]
    }

    /// The thread of that number.
    pub(crate) fn thread_mut(&mut self, thread: ThreadId) -> &mut Thread {
        &mut self.threads[thread.index()]
    }

    /// A thread's CPU time up to now, in ns.
    pub fn cpu_time(&self, thread: ThreadId) -> Nanos {
        let it = self.thread(thread);
        let running = match it.state {
            State::Running(cpu) => self.now.saturating_sub(self.cpu(cpu).started),
            State::Ready | State::Blocked | State::Ended => 0,
        };
        it.ran + running
    }

    /// Charges the CPU's thread for what it ran since the last accounting, up to now.
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

    /// Sets a CPU's speed from now on, in percent.
    pub(crate) fn set_speed(&mut self, cpu: CpuId, speed: u8) {
        if self.cpu(cpu).speed != speed {
            self.account(cpu);
            self.cpu_mut(cpu).speed = speed;
            self.replan(cpu);
        }
    }

    /// Sets the speeds of a core's CPUs after one of them began or ceased to run a thread. That CPU itself
    /// has been accounted for.
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

    /// The exit latency that a kick or an interrupt of a CPU has now; 0 unless the CPU is in deep idle.
    #[inline]
    fn idle_exit(&self, cpu: CpuId) -> Nanos {
        if self.costs.idle_exit == 0 {
            return 0;
        }
        let it = self.cpu(cpu);
        // The CPU idles since the last accounting of a thread, or the end of kernel work after that.
        let since = it.started;
        let idles = it.current.is_none() && !it.kicked && since <= self.now;
        match idles && self.now - since > self.costs.idle_deep_after {
            true => self.costs.idle_exit,
            false => 0,
        }
    }

    /// Makes a CPU that is interrupted leave deep idle; whether the CPU was in it. If so, kernel work begins
    /// after the exit latency.
    #[inline]
    pub(crate) fn leave_idle(&mut self, cpu: CpuId) -> bool {
        let exit = self.idle_exit(cpu);
        if exit > 0 {
            self.cpu_mut(cpu).started = self.now + exit;
        }
        exit > 0
    }

    /// Charges a CPU with kernel work of `cost` ns, which begins now or after the kernel work that goes on.
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

    /// A VM exit of a guest's CPU, with the entry that ends it.
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

    /// A guest's CPU goes on where it stopped.
    pub(crate) fn resume(&mut self, cpu: CpuId) {
        let now = self.now;
        let it = self.cpu_mut(cpu);
        it.started = now + std::mem::take(&mut it.owes);
        self.replan(cpu);
    }

    /// Plans an event at a time, in ns.
    pub(crate) fn plan(&mut self, at: Nanos, event: Event) {
        self.planned.push((at, event));
    }

    /// How long a thread has been ready without a CPU (run delay) up to now, in ns.
    pub fn waited(&self, thread: ThreadId) -> Nanos {
        let it = self.thread(thread);
        match it.state {
            State::Ready => it.waited + (self.now - it.ready_since),
            State::Running(_) | State::Blocked | State::Ended => it.waited,
        }
    }

    /// How many times as long kernel work takes as on a CPU with a clock of its own.
    fn clock_share(&self) -> Nanos {
        match self.costs.shared_clock {
            true => self.busy.max(1).into(),
            false => 1,
        }
    }

    /// Gives a CPU another thread, or none.
    pub(crate) fn set_current(&mut self, cpu: CpuId, thread: Option<ThreadId>) {
        let before = std::mem::replace(&mut self.cpu_mut(cpu).current, thread);
        self.busy = self.busy + u32::from(thread.is_some()) - u32::from(before.is_some());
        if self.shares_cores && thread.is_some() != before.is_some() {
            self.share_core(cpu);
        }
    }

    /// Notes that the CPU's next event has to be planned anew.
    pub(crate) fn replan(&mut self, cpu: CpuId) {
        if !std::mem::replace(&mut self.cpu_mut(cpu).stale, true) {
            self.stale.push(cpu);
        }
    }

    /// Makes a CPU reschedule: at once if it is the caller's own, else after the cost of a kick. A CPU that
    /// was kicked and has not rescheduled yet is not kicked again.
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

    /// Kicks an idle CPU that a ready thread may run on, if there is one.
    pub fn kick_idle_for(&mut self, thread: ThreadId) {
        if let Some(cpu) = self.idle_cpu(thread) {
            self.kick(cpu);
        }
    }

    /// After the choice of `next`, kicks an idle CPU for `ran`, which was preempted. This concerns threads
    /// with limited affinity only: where threads may run on all CPUs, no CPU idles while a thread is ready.
    pub fn kick_idle_for_displaced(&mut self, ran: Option<ThreadId>, next: Option<ThreadId>) {
        let limited = |thread| self.thread(thread).allowed.is_some();
        if let Some(displaced) = ran.filter(|_| ran != next) {
            if limited(displaced) || next.is_some_and(limited) {
                self.kick_idle_for(displaced);
            }
        }
    }

    /// On how many CPUs a thread may run.
    pub fn allowed_cpus(&self, thread: ThreadId) -> u32 {
        let allowed = &self.thread(thread).allowed;
        let count = allowed.as_ref().map_or(self.cpus.len(), CpuSet::len);
        count as u32
    }

    /// The CPU that a thread runs on or ran on last; if the thread may not run there any more, the first CPU
    /// that it may run on.
    pub fn usable_cpu(&self, thread: ThreadId) -> CpuId {
        let it = self.thread(thread);
        let mut allowed = it.allowed.iter().flat_map(CpuSet::iter);
        if it.may_use(it.cpu) {
            it.cpu
        } else {
            allowed.next().unwrap_or(it.cpu)
        }
    }

    /// The CPUs of a CPU's core, the CPU itself among them.
    pub fn siblings(&self, cpu: CpuId) -> &[CpuId] {
        let core = self.topology.cpus[cpu.0 as usize].core;
        self.cores.get(&core).map_or(&[], Vec::as_slice)
    }

    /// Whether any core has several CPUs.
    pub fn has_smt(&self) -> bool {
        self.cores.len() < self.cpus.len()
    }

    /// Whether two CPUs have the same last-level cache.
    pub fn share_cache(&self, one: CpuId, other: CpuId) -> bool {
        let cpus = &self.topology.cpus;
        cpus[one.0 as usize].llc == cpus[other.0 as usize].llc
    }

    /// Sets a timer of the class: [`crate::Class::timer`] is called at `at` with `token`, in an interrupt of
    /// the CPU that set it.
    pub fn set_timer(&mut self, at: Nanos, token: u32) {
        let cpu = self.here.unwrap_or(CpuId(0));
        let event = Event::Interrupt(cpu, Interrupt::Timer(token));
        self.exit(cpu);
        self.plan(at.max(self.now), event);
    }

    /// An idle CPU, not kicked yet, that the thread may run on: the one it ran on last if that idles, else
    /// the first.
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
