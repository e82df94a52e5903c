//! Quell's scheduler, from the source that the kernel runs, on a simulated sched_ext core.
//!
//! Models what the kernel does between the scheduler's operations (kernel/sched/ext.c, 7.2): DSQs by vtime or
//! first come, first served; each CPU's local DSQ; slices, which running threads use up and ticks check; idle
//! CPUs, and the kernel's choice among them; kicks; direct dispatch from ops.select_cpu(). The scheduler
//! itself is [`quell_sched::native`]; it runs every thread (full switch).
//!
//! Limits: no watchdog, bypass, other classes, NUMA in the choice of idle CPUs, or WAKE_SYNC.

use super::{Class, Pick};
use crate::events::Nanos;
use crate::machine::{Costs, GroupId, Machine, ThreadId};
use quell_model::{CpuId, Topology};
use quell_sched::native::{GroupBandwidth, Kernel, Native, NewThread, flags};
use quell_sched::{Options, RATE_PERIOD, SchedError, ServerSetting, Stats, ThreadSetting};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// How often the core calls ops.dispatch() again if the dispatched threads cannot run on the CPU
/// (SCX_DSP_MAX_LOOPS).
const DISPATCH_MAX: usize = 32;

/// The timer of the rate solver, which belongs to the loader and not to the scheduler.
const RATE_TIMER: u32 = u32::MAX;

/// A scheduling class: Quell's scheduler on a simulated sched_ext core.
pub struct SchedExt {
    native: Native,
    core: Core,
    groups: usize,
    /// The rate solver is to run, and its timer is not set yet.
    solves_rates: bool,
}

/// A DSQ of the scheduler, by vtime and insertion.
type Dsq = BTreeMap<(u64, u64), ThreadId>;

#[derive(Default)]
struct Core {
    tasks: Vec<Task>,
    dsqs: Vec<Dsq>,
    /// The number of insertions into DSQs so far.
    inserted: u64,
    local_dsqs: Vec<VecDeque<ThreadId>>,
    /// The idle mask: bit `c % 64` of word `c / 64` is set while CPU `c` idles and has not been claimed for a
    /// thread.
    idle: Vec<u64>,
    /// The number of bits set in `idle`.
    idles: u32,
    /// The cache of each CPU, and the CPUs of each cache, as in `idle`.
    cache_of: Vec<usize>,
    caches: Vec<Vec<u64>>,
    /// For each CPU, whether it runs no thread.
    runs_nothing: Vec<bool>,
    /// The CPU at which the search for an idle CPU begins.
    next_idle: usize,
    /// The CPU that is being dispatched to.
    dispatching: u32,
    /// The thread that a CPU is being selected for.
    selecting: Option<ThreadId>,
    /// Where that thread was inserted meanwhile: then it is not enqueued.
    direct: Option<Direct>,
    /// For each timer, the number of its last arming.
    timers: Vec<u16>,
}

/// Where a thread was inserted during ops.select_cpu().
#[derive(Debug, Clone, Copy)]
enum Direct {
    /// Into the local DSQ of the selected CPU, with these flags.
    Local(u64),
    /// Into a DSQ of the scheduler.
    Dsq,
}

#[derive(Debug, Clone)]
struct Task {
    cpu: CpuId,
    slice: Nanos,
    /// CPU time up to which the slice is charged.
    exec_accounted: Nanos,
    /// The number of CPUs that the thread may use, as the scheduler was told.
    allowed: u32,
}

struct Context<'a> {
    core: &'a mut Core,
    machine: &'a mut Machine,
}

impl SchedExt {
    /// The scheduler with these options.
    ///
    /// # Errors
    /// [`SchedError::Limit`] where the machine has more CPUs or last-level caches than the scheduler's tables
    /// hold, and [`SchedError::Refused`] where the scheduler's initialisation fails.
    pub fn new(topology: &Topology, options: &Options) -> Result<SchedExt, SchedError> {
        let cpus = topology.cpus.len();
        let mut core = Core {
            local_dsqs: vec![VecDeque::new(); cpus],
            idle: vec![0; cpus.div_ceil(64)],
            runs_nothing: vec![true; cpus],
            ..Core::default()
        };
        core.know_caches(topology);
        for cpu in topology.cpus.iter() {
            core.set_idle(cpu.id, true);
        }
        // At first the scheduler only creates DSQs.
        let mut machine = Machine::new(topology.clone(), Costs::NONE);
        let mut context = Context {
            core: &mut core,
            machine: &mut machine,
        };
        let native = Native::new(topology, options, &mut context)?;
        Ok(SchedExt {
            native,
            core,
            groups: 1,
            solves_rates: options.share,
        })
    }

    /// The scheduler's counters.
    pub fn stats(&self) -> Stats {
        self.native.stats()
    }

    /// The scheduler, and the kernel that it calls.
    fn parts<'a>(&'a mut self, machine: &'a mut Machine) -> (&'a mut Native, Context<'a>) {
        let context = Context {
            core: &mut self.core,
            machine,
        };
        (&mut self.native, context)
    }

    /// Tells the scheduler of new threads and groups.
    fn know(&mut self, machine: &mut Machine, thread: ThreadId) {
        while self.groups < machine.groups.len() {
            let id = GroupId(self.groups as u32);
            let group = *machine.group(id);
            let parent = group.parent.filter(|&parent| parent != GroupId::ROOT);
            let parent = parent.map(|parent| u64::from(parent.0));
            let (native, mut context) = self.parts(machine);
            native.add_group(&mut context, id.0.into(), parent, group.weight.0);
            if let Some(limit) = group.limit {
                let limit = GroupBandwidth {
                    period_us: limit.period / 1000,
                    quota_us: limit.quota / 1000,
                    burst_us: limit.burst / 1000,
                };
                native.set_bandwidth(&mut context, id.0.into(), limit);
            }
            self.groups += 1;
        }
        while self.core.tasks.len() <= thread.index() {
            let number = self.core.tasks.len();
            let it = &machine.threads[number];
            let allowed = machine.allowed_cpus(ThreadId(number as u32));
            let new = NewThread {
                leader: (it.leader.index() != number).then_some(it.leader.0),
                forked: it.origin.index() != number,
                group: (it.group != GroupId::ROOT).then_some(it.group.0.into()),
                weight: (it.weight().as_load() * 100.0 / 1024.0).round().max(1.0) as u32,
                allowed,
            };
            self.core.tasks.push(Task {
                cpu: it.cpu,
                slice: 0,
                exec_accounted: it.ran,
                allowed,
            });
            let (native, mut context) = self.parts(machine);
            native.add_thread(&mut context, new);
        }
        let allowed = machine.allowed_cpus(thread);
        let task = &mut self.core.tasks[thread.index()];
        if std::mem::replace(&mut task.allowed, allowed) != allowed {
            self.native.allow(thread.0, allowed);
        }
    }

    /// A thread becomes ready, because it wakes or because it is new: a new one is enqueued without
    /// SCX_ENQ_WAKEUP.
    fn make_ready(&mut self, machine: &mut Machine, thread: ThreadId, wakes: bool) {
        if std::mem::take(&mut self.solves_rates) {
            machine.set_timer(machine.now + RATE_PERIOD.as_nanos() as Nanos, RATE_TIMER);
        }
        self.know(machine, thread);
        let (native, mut context) = self.parts(machine);
        native.set_queued(thread.0, true);
        let mut cpu = context.machine.usable_cpu(thread);
        if context.core.task(thread).allowed > 1 {
            context.core.selecting = Some(thread);
            cpu = CpuId(native.select_cpu(&mut context, thread.0, cpu.0));
            context.core.selecting = None;
        }
        context.core.task(thread).cpu = cpu;
        match context.core.direct.take() {
            Some(Direct::Local(flags)) => {
                context
                    .core
                    .insert_local(context.machine, thread, cpu, flags);
            }
            Some(Direct::Dsq) => {}
            None => native.enqueue(&mut context, thread.0, wakes),
        }
        // The core makes an idle CPU reschedule when it is selected for a thread, whichever DSQ the thread is
        // in.
        if machine.cpu(cpu).current.is_none() {
            machine.kick(cpu);
        }
    }

    /// Enqueues a thread anew that is in no DSQ and may not run on its CPU any more.
    fn requeue(&mut self, machine: &mut Machine, thread: ThreadId) {
        let cpu = machine.usable_cpu(thread);
        let (native, mut context) = self.parts(machine);
        context.core.task(thread).cpu = cpu;
        native.enqueue(&mut context, thread.0, false);
        if machine.cpu(cpu).current.is_none() {
            machine.kick(cpu);
        }
    }

    /// A CPU begins to run a thread, or to idle.
    fn give(&mut self, machine: &mut Machine, cpu: CpuId, thread: Option<ThreadId>) {
        let rests = thread.is_none();
        let rested = std::mem::replace(&mut self.core.runs_nothing[cpu.0 as usize], rests);
        let (native, mut context) = self.parts(machine);
        context.core.set_idle(cpu, rests);
        if rests != rested {
            native.update_idle(&mut context, cpu.0, rests);
        }
        if let Some(thread) = thread {
            let ran = context.machine.cpu_time(thread);
            let task = context.core.task(thread);
            task.cpu = cpu;
            task.exec_accounted = ran;
            native.running(&mut context, thread.0);
        }
    }
}

impl Core {
    fn know_caches(&mut self, topology: &Topology) {
        let mut numbers = BTreeMap::new();
        for (cpu, it) in topology.cpus.iter().enumerate() {
            let cache = *numbers.entry(it.llc).or_insert(self.caches.len());
            if cache == self.caches.len() {
                self.caches.push(vec![0; self.idle.len()]);
            }
            self.caches[cache][cpu / 64] |= 1 << (cpu % 64);
            self.cache_of.push(cache);
        }
    }

    fn task(&mut self, thread: ThreadId) -> &mut Task {
        &mut self.tasks[thread.index()]
    }

    /// Charges a running thread's slice.
    fn update(&mut self, machine: &Machine, thread: ThreadId) {
        let ran = machine.cpu_time(thread);
        let task = self.task(thread);
        task.slice = task.slice.saturating_sub(ran - task.exec_accounted);
        task.exec_accounted = ran;
    }

    fn set_idle(&mut self, cpu: CpuId, idle: bool) {
        let was = idles(&self.idle, cpu);
        if was != idle {
            self.idle[cpu.0 as usize / 64] ^= 1 << (cpu.0 % 64);
            self.idles = if idle { self.idles + 1 } else { self.idles - 1 };
        }
    }

    /// Inserts a thread into a CPU's local DSQ; with ENQ_PREEMPT at the head, preempting the CPU's thread.
    fn insert_local(&mut self, machine: &mut Machine, thread: ThreadId, cpu: CpuId, flags: u64) {
        let local = &mut self.local_dsqs[cpu.0 as usize];
        if flags & flags::ENQ_PREEMPT == 0 {
            local.push_back(thread);
        } else {
            local.push_front(thread);
        }
        match machine.cpu(cpu).current {
            None => machine.kick(cpu),
            Some(current) if flags & flags::ENQ_PREEMPT != 0 => {
                self.update(machine, current);
                self.task(current).slice = 0;
                machine.kick(cpu);
            }
            Some(_) => {}
        }
    }

    /// Removes a thread from the DSQ that it is in. True if it was in one.
    fn take_out(&mut self, thread: ThreadId) -> bool {
        for local in &mut self.local_dsqs {
            if let Some(at) = local.iter().position(|&other| other == thread) {
                return local.remove(at).is_some();
            }
        }
        self.dsqs.iter_mut().any(|dsq| {
            let key = dsq.iter().find(|&(_, &other)| other == thread);
            key.map(|(&key, _)| key)
                .is_some_and(|key| dsq.remove(&key).is_some())
        })
    }

    /// Claims the first idle CPU that passes, from where the last search ended; of the CPUs that share a
    /// cache with `near`, if it is given.
    fn claim(
        &mut self,
        near: Option<CpuId>,
        passes: impl Fn(&[u64], CpuId) -> bool,
    ) -> Option<CpuId> {
        if self.idles == 0 {
            return None;
        }
        let words = self.idle.len();
        let cache = near.map(|near| &self.caches[self.cache_of[near.0 as usize]]);
        let (first, bit) = (self.next_idle / 64, self.next_idle % 64);
        // The first word comes twice: from the bit on, and at last up to it.
        for step in 0..=words {
            let at = (first + step) % words;
            let mut word = self.idle[at] & cache.map_or(u64::MAX, |cache| cache[at]);
            if step == 0 {
                word &= u64::MAX << bit;
            } else if step == words {
                word &= !(u64::MAX << bit);
            }
            while word != 0 {
                let cpu = CpuId(at as u32 * 64 + word.trailing_zeros());
                if passes(&self.idle, cpu) {
                    self.next_idle = cpu.0 as usize + 1;
                    if self.next_idle == words * 64 {
                        self.next_idle = 0;
                    }
                    self.set_idle(cpu, false);
                    return Some(cpu);
                }
                word &= word - 1;
            }
        }
        None
    }

    /// Claims a CPU, if it is idle. True if it was.
    fn claim_this(&mut self, cpu: CpuId) -> bool {
        let was = idles(&self.idle, cpu);
        self.set_idle(cpu, false);
        was
    }
}

fn idles(idle: &[u64], cpu: CpuId) -> bool {
    idle[cpu.0 as usize / 64] >> (cpu.0 % 64) & 1 == 1
}

impl Kernel for Context<'_> {
    fn now(&self) -> u64 {
        self.machine.now
    }

    fn this_cpu(&self) -> u32 {
        self.machine.here.map_or(0, |cpu| cpu.0)
    }

    fn current(&self) -> Option<u32> {
        self.machine.by.map(|thread| thread.0)
    }

    fn cpu_of(&self, thread: u32) -> u32 {
        self.core.tasks[thread as usize].cpu.0
    }

    fn cpu_time(&self, thread: u32) -> u64 {
        self.machine.cpu_time(ThreadId(thread))
    }

    fn may_use(&self, thread: u32, cpu: u32) -> bool {
        self.machine.thread(ThreadId(thread)).may_use(CpuId(cpu))
    }

    fn create_dsq(&mut self, dsq: u64) {
        let dsqs = &mut self.core.dsqs;
        if dsqs.len() <= dsq as usize {
            dsqs.resize(dsq as usize + 1, Dsq::new());
        }
    }

    fn insert(&mut self, thread: u32, dsq: u64, slice: u64, vtime: Option<u64>, flags: u64) {
        let thread = ThreadId(thread);
        let core = &mut *self.core;
        core.task(thread).slice = slice;
        let selecting = core.selecting == Some(thread);
        if dsq != flags::DSQ_LOCAL {
            core.direct = selecting.then_some(Direct::Dsq);
            core.inserted += 1;
            let key = (vtime.unwrap_or(core.inserted), core.inserted);
            core.dsqs[dsq as usize].insert(key, thread);
        } else if selecting {
            core.direct = Some(Direct::Local(flags));
        } else {
            let cpu = core.task(thread).cpu;
            core.insert_local(self.machine, thread, cpu, flags);
        }
    }

    fn move_to_local(&mut self, dsq: u64) -> bool {
        let cpu = CpuId(self.core.dispatching);
        let dsq = &mut self.core.dsqs[dsq as usize];
        let may =
            |(_, thread): &(&(u64, u64), &ThreadId)| self.machine.thread(**thread).may_use(cpu);
        let Some((&key, &thread)) = dsq.iter().find(may) else {
            return false;
        };
        dsq.remove(&key);
        self.core.task(thread).cpu = cpu;
        self.core.local_dsqs[cpu.0 as usize].push_back(thread);
        true
    }

    fn peek(&self, dsq: u64) -> Option<u32> {
        let (_, thread) = self.core.dsqs[dsq as usize].first_key_value()?;
        Some(thread.0)
    }

    fn newest(&self) -> u64 {
        self.core.inserted
    }

    fn next(&self, dsq: u64, newest: u64, place: [u64; 2]) -> Option<(u32, [u64; 2])> {
        let after = (Bound::Excluded((place[0], place[1])), Bound::Unbounded);
        self.core.dsqs[dsq as usize]
            .range(after)
            .find(|((_, inserted), _)| *inserted <= newest)
            .map(|(key, thread)| (thread.0, [key.0, key.1]))
    }

    fn move_to_dsq(&mut self, thread: u32, from: u64, to: u64, vtime: u64) {
        let core = &mut *self.core;
        let it = &mut core.dsqs[from as usize];
        let key = it
            .iter()
            .find(|(_, other)| other.0 == thread)
            .map(|(key, _)| *key);
        if let Some(key) = key {
            it.remove(&key);
            core.inserted += 1;
            core.dsqs[to as usize].insert((vtime, core.inserted), ThreadId(thread));
        }
    }

    fn nr_queued(&self, dsq: u64) -> u32 {
        self.core.dsqs[dsq as usize].len() as u32
    }

    fn set_slice(&mut self, thread: u32, slice: u64) {
        self.core.task(ThreadId(thread)).slice = slice;
    }

    /// The previous CPU if it is idle, else an idle CPU of its cache, else any idle CPU; where cores have
    /// several CPUs, wholly idle cores first.
    fn select_cpu(&mut self, thread: u32, before: u32, _flags: u64) -> (u32, bool) {
        let (machine, core) = (&*self.machine, &mut *self.core);
        let (it, before) = (machine.thread(ThreadId(thread)), CpuId(before));
        let may = |cpu| it.may_use(cpu);
        let whole = |idle: &[u64], cpu| machine.siblings(cpu).iter().all(|&cpu| idles(idle, cpu));
        let mut found = None;
        if core.idles > 0 && machine.has_smt() {
            if may(before) && whole(&core.idle, before) && core.claim_this(before) {
                return (before.0, true);
            }
            found = core
                .claim(Some(before), |idle, cpu| may(cpu) && whole(idle, cpu))
                .or_else(|| core.claim(None, |idle, cpu| may(cpu) && whole(idle, cpu)));
        }
        if found.is_none() && may(before) && core.claim_this(before) {
            found = Some(before);
        }
        found = found
            .or_else(|| core.claim(Some(before), |_, cpu| may(cpu)))
            .or_else(|| core.claim(None, |_, cpu| may(cpu)));
        (found.unwrap_or(before).0, found.is_some())
    }

    fn claim_idle(&mut self, cpu: u32) -> bool {
        self.core.claim_this(CpuId(cpu))
    }

    fn claim_any_idle(&mut self, thread: u32) -> Option<u32> {
        let it = self.machine.thread(ThreadId(thread));
        let found = self.core.claim(None, |_, cpu| it.may_use(cpu))?;
        Some(found.0)
    }

    fn has_idle_cpu(&self, thread: Option<u32>) -> bool {
        let idle = &self.core.idle;
        let may = |cpu| thread.is_none_or(|it| self.may_use(it, cpu));
        self.core.idles > 0 && (self.machine.cpu_ids()).any(|cpu| idles(idle, cpu) && may(cpu.0))
    }

    fn kick(&mut self, cpu: u32, flags: u64) {
        let cpu = CpuId(cpu);
        let current = self.machine.cpu(cpu).current;
        if flags & flags::KICK_IDLE != 0 && current.is_some() {
            return;
        }
        if let Some(current) = current.filter(|_| flags & flags::KICK_PREEMPT != 0) {
            self.core.update(self.machine, current);
            self.core.task(current).slice = 0;
        }
        self.machine.kick(cpu);
    }

    fn arm_timer(&mut self, timer: u32, ns: u64) {
        let timers = &mut self.core.timers;
        if timers.len() <= timer as usize {
            timers.resize(timer as usize + 1, 0);
        }
        let armed = &mut timers[timer as usize];
        *armed = armed.wrapping_add(1);
        let token = u32::from(*armed) << 16 | timer;
        self.machine.set_timer(self.machine.now + ns, token);
    }
}

impl Class for SchedExt {
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId) {
        self.make_ready(machine, thread, true);
    }

    /// The scheduler is told at once (scx_fork), as of the thread that forks.
    fn fork(&mut self, machine: &mut Machine, thread: ThreadId) {
        self.know(machine, thread);
    }

    fn wake_new(&mut self, machine: &mut Machine, thread: ThreadId) {
        self.make_ready(machine, thread, false);
    }

    /// The kernel counts a thread on the run queue of the selected CPU, whichever DSQ it is in
    /// (enqueue_task_scx's add_nr_running).
    fn queued_on(&self, thread: ThreadId) -> Option<CpuId> {
        self.core.tasks.get(thread.index()).map(|it| it.cpu)
    }

    fn set_allowed(&mut self, machine: &mut Machine, thread: ThreadId) {
        self.know(machine, thread);
        if self.core.take_out(thread) {
            self.requeue(machine, thread);
        }
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        let keep = |thread| Some(Pick { thread, turn: None });
        let mut ran = ran;
        if let Some(leaves) = ran.filter(|&ran| !machine.thread(ran).may_use(cpu)) {
            self.core.update(machine, leaves);
            let (native, mut context) = self.parts(machine);
            native.stopping(&mut context, leaves.0, true);
            self.requeue(machine, leaves);
            ran = None;
        }
        if let Some(ran) = ran {
            self.core.update(machine, ran);
            if self.core.task(ran).slice > 0 {
                return keep(ran);
            }
        }
        for _ in 0..DISPATCH_MAX {
            if !self.core.local_dsqs[cpu.0 as usize].is_empty() {
                break;
            }
            let (native, mut context) = self.parts(machine);
            context.core.dispatching = cpu.0;
            native.dispatch(&mut context, cpu.0, ran.map(|thread| thread.0));
            if let Some(ran) = ran.filter(|&ran| context.core.task(ran).slice > 0) {
                return keep(ran);
            }
            if context.core.local_dsqs[cpu.0 as usize].is_empty() {
                break;
            }
        }
        let next = self.core.local_dsqs[cpu.0 as usize].pop_front();
        if let Some(ran) = ran {
            // Also if no other thread is runnable (SCX_OPS_ENQ_LAST).
            let (native, mut context) = self.parts(machine);
            native.stopping(&mut context, ran.0, true);
            native.enqueue(&mut context, ran.0, false);
        }
        let next = next.or_else(|| self.core.local_dsqs[cpu.0 as usize].pop_front());
        self.give(machine, cpu, next);
        keep(next?)
    }

    fn block(&mut self, machine: &mut Machine, _cpu: CpuId, thread: ThreadId) {
        self.core.update(machine, thread);
        let (native, mut context) = self.parts(machine);
        native.stopping(&mut context, thread.0, false);
        native.set_queued(thread.0, false);
    }

    fn begin_exit(&mut self, thread: ThreadId) {
        self.native.begin_exit(thread.0);
    }

    /// After the last switch away from the thread (sched_ext_dead).
    fn exit(&mut self, machine: &mut Machine, cpu: CpuId, thread: ThreadId) {
        self.block(machine, cpu, thread);
        let (native, mut context) = self.parts(machine);
        native.exit_thread(&mut context, thread.0);
    }

    fn set_thread(
        &mut self,
        machine: &mut Machine,
        thread: ThreadId,
        setting: ThreadSetting,
    ) -> bool {
        self.know(machine, thread);
        let (native, mut context) = self.parts(machine);
        native.set_thread(&mut context, thread.0, setting);
        true
    }

    fn set_server(
        &mut self,
        machine: &mut Machine,
        setting: ServerSetting,
    ) -> Result<(), SchedError> {
        let (native, mut context) = self.parts(machine);
        native.set_server(&mut context, setting)
    }

    fn tick(&mut self, machine: &mut Machine, cpu: CpuId) {
        let Some(current) = machine.cpu(cpu).current else {
            return;
        };
        self.core.update(machine, current);
        if self.core.task(current).slice == 0 {
            machine.kick(cpu);
        }
    }

    fn expects_timer(&self, token: u32) -> bool {
        if token == RATE_TIMER {
            return true;
        }
        let (timer, armed) = (token & 0xffff, token >> 16);
        u32::from(self.core.timers[timer as usize]) == armed
    }

    fn timer(&mut self, machine: &mut Machine, token: u32) {
        if token == RATE_TIMER {
            let (native, context) = self.parts(machine);
            native.solve_rates(&context);
            machine.set_timer(machine.now + RATE_PERIOD.as_nanos() as Nanos, RATE_TIMER);
            return;
        }
        let timer = token & 0xffff;
        if self.expects_timer(token) {
            let (native, mut context) = self.parts(machine);
            native.timer(&mut context, timer);
        }
    }
}
