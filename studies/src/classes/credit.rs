//! Credit, Xen's default scheduler until 4.11 (xen/common/sched/credit.c).
//!
//! A tenant is a domain, its threads are vCPUs. A vCPU that runs burns 10 credits a ms. Credits are kept here
//! in ns: a credit is 100 us. Every 30 ms the accounting gives each active vCPU its share, by its domain's
//! weight, of what all CPUs have in that time, at most what one CPU has (300 credits); what is beyond goes to
//! the other active vCPUs. A vCPU becomes active when a CPU's tick, every 10 ms, finds it running, and stays
//! active until it has more than 300 credits, of which it keeps half; a vCPU that no tick finds earns no
//! credits. A vCPU with less than no credit is OVER, any other one UNDER; after an accounting its debt is at
//! most 300 credits.
//!
//! Each CPU has a queue in the order of priorities, round robin within one. A turn lasts 30 ms, and at least
//! 1 ms (the rate limit). A vCPU that wakes UNDER is BOOSTed until a tick finds it running or, if it is
//! active, until the next accounting: it goes before UNDER ones, and preempts them at once, or when their
//! turn is 1 ms old. A vCPU wakes where it ran last; if that CPU is busy and another one idles, the idle CPU
//! takes the vCPU. A CPU that idles, or would run a vCPU that is OVER, first takes a better vCPU from another
//! CPU, of its own socket first. No other vCPU is preempted when priorities change: that waits for the end of
//! the turn.
//!
//! A domain's weight is its group's `cpu.weight` x 2.56, so that both defaults (100, 256) are one.
//!
//! Not modelled: caps (so no vCPU is parked), yielding (programs do not yield), the spreading over cores and
//! sockets at ticks (so threads may share a core beside an idle one), soft affinity, the rate limit of
//! balancing (since 2023; it lets CPUs idle beside work), and what ticks and accounting cost. CPUs' ticks
//! come one after the other, in the order of the CPUs; Xen's come in the order in which CPUs came up.
//!
//! Sources: xen/common/sched/credit.c of 2026; the Xen wiki's "Credit Scheduler"; for how BOOST is lost:
//! Ongaro, Cox and Rixner, "Scheduling I/O in Virtual Machine Monitors", VEE 2008.

use super::queue::Idlers;
use quell_model::{CpuId, Topology};
use quell_sim::{Class, Machine, Nanos, Pick, ThreadId};
use std::cmp::Reverse;
use std::collections::VecDeque;

/// The time between two ticks of a CPU: 10 ms, in ns.
const TICK: Nanos = 10_000_000;
/// A turn, and the time between two accountings: 30 ms, in ns.
const SLICE: Nanos = 30_000_000;
/// The rate limit: a vCPU is not preempted before it has run for 1 ms, in ns.
const RATELIMIT: Nanos = 1_000_000;
/// The shortest turn: 100 us, in ns.
const MIN_TURN: Nanos = 100_000;
/// What a CPU has in a turn: 300 credits, in ns.
const FULL: i64 = SLICE as i64;
/// The token of the accounting timer; the token of a CPU's tick is the CPU's number.
const ACCOUNT: u32 = u32::MAX;

/// A vCPU's priority, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Priority {
    /// The vCPU woke UNDER.
    Boost,
    /// The vCPU has credits left, or none.
    Under,
    /// The vCPU is in debt.
    Over,
}

/// What the class keeps of a vCPU, which is a thread.
#[derive(Debug, Clone)]
struct Vcpu {
    priority: Priority,
    /// The vCPU's credits, in ns; negative: its debt.
    credit: i64,
    /// The CPU time that was taken off the vCPU's credits so far, in ns.
    counted: Nanos,
    /// Whether the vCPU is active: an active vCPU earns credits.
    active: bool,
    /// Whether the vCPU was ready before: a vCPU that wakes is boosted, a new one is not.
    known: bool,
}

/// A vCPU that was never ready.
const NEW: Vcpu = Vcpu {
    priority: Priority::Under,
    credit: 0,
    counted: 0,
    active: false,
    known: false,
};

/// A CPU's queue.
#[derive(Debug, Clone, Default)]
struct Queue {
    /// The vCPUs that wait there, in the order of their priorities when they were put in or last sorted.
    ready: VecDeque<ThreadId>,
    /// The time when the running vCPU's turn began, in ns.
    since: Nanos,
    /// The number of the accounting after which the queue was last sorted.
    sorted: u64,
    /// The index of the CPU's socket.
    socket: usize,
}

/// A socket's CPUs, and the position of the CPU from which a vCPU was last taken.
#[derive(Debug, Clone, Default)]
struct Socket {
    cpus: Vec<CpuId>,
    last: usize,
}

/// The class Credit.
#[derive(Debug)]
pub struct Credit {
    /// The state of each vCPU, by the number of its thread.
    vcpus: Vec<Vcpu>,
    /// The queue of each CPU.
    queues: Vec<Queue>,
    sockets: Vec<Socket>,
    idlers: Idlers,
    /// The CPU from which the next idle CPU is searched.
    next_idler: CpuId,
    /// The number of vCPUs that wait in all queues.
    waiting: usize,
    /// The active vCPUs.
    active: Vec<ThreadId>,
    /// The sum of the credits of the vCPUs that took part in the last accounting, after it, in ns.
    balance: i64,
    /// The number of accountings so far.
    accounts: u64,
}

/// The weight that Xen gives the domain of a thread: 256 for the default `cpu.weight` of 100.
pub(super) fn weight(machine: &Machine, thread: ThreadId) -> i64 {
    let weight = machine.group(machine.thread(thread).group).weight;
    (i64::from(weight.0) * 256 / 100).max(1)
}

impl Credit {
    /// The class for a machine with these CPUs.
    pub fn new(topology: &Topology) -> Credit {
        let mut sockets: Vec<Socket> = Vec::new();
        let mut queues = vec![Queue::default(); topology.cpus.len()];
        for (index, cpu) in topology.cpus.iter().enumerate() {
            let socket = cpu.socket as usize;
            sockets.resize(sockets.len().max(socket + 1), Socket::default());
            sockets[socket].cpus.push(CpuId(index as u32));
            queues[index].socket = socket;
        }
        Credit {
            vcpus: Vec::new(),
            idlers: Idlers::all(queues.len()),
            queues,
            sockets,
            next_idler: CpuId(0),
            waiting: 0,
            active: Vec::new(),
            balance: 0,
            accounts: 0,
        }
    }

    /// The state of a thread's vCPU, a new one if the class has not seen it.
    fn vcpu(&mut self, thread: ThreadId) -> &mut Vcpu {
        if self.vcpus.len() <= thread.index() {
            self.vcpus.resize(thread.index() + 1, NEW);
        }
        &mut self.vcpus[thread.index()]
    }

    fn priority(&self, thread: ThreadId) -> Priority {
        self.vcpus[thread.index()].priority
    }

    fn queue(&mut self, cpu: CpuId) -> &mut Queue {
        &mut self.queues[cpu.0 as usize]
    }

    /// Takes the CPU time that the vCPU has used since the last call off its credits.
    fn burn(&mut self, machine: &Machine, thread: ThreadId) {
        let ran = machine.cpu_time(thread);
        let vcpu = self.vcpu(thread);
        vcpu.credit -= (ran - vcpu.counted) as i64;
        vcpu.counted = ran;
    }

    /// Puts the vCPU into a CPU's queue, before the first vCPU of a worse priority.
    fn insert(&mut self, thread: ThreadId, cpu: CpuId) {
        let (own, vcpus) = (self.priority(thread), &self.vcpus);
        let ready = &mut self.queues[cpu.0 as usize].ready;
        let worse = |&other: &ThreadId| vcpus[other.index()].priority > own;
        let at = ready.iter().position(worse).unwrap_or(ready.len());
        ready.insert(at, thread);
        self.waiting += 1;
    }

    /// Takes the vCPU at a position out of a CPU's queue.
    fn remove(&mut self, cpu: CpuId, at: usize) -> Option<ThreadId> {
        let thread = self.queue(cpu).ready.remove(at)?;
        self.waiting -= 1;
        Some(thread)
    }

    /// Kicks an idle CPU that the thread may use, so that this CPU takes the thread from the queue where it
    /// waits; false if there is no such CPU.
    fn tickle_idler(&mut self, machine: &mut Machine, thread: ThreadId) -> bool {
        let found = self.idlers.find(self.next_idler, machine.thread(thread));
        if let Some(cpu) = found {
            self.next_idler = CpuId((cpu.0 + 1) % self.queues.len() as u32);
            self.idlers.kick(machine, cpu);
        }
        found.is_some()
    }

    /// Puts the vCPU into the queue of the CPU that it ran on last, and kicks a CPU to run it: that CPU if it
    /// idles, else another idle one, else that CPU again if the vCPU is better than the running one. A vCPU
    /// that may not use its last CPU goes to an idle CPU, or to the first one that it may use.
    fn enqueue(&mut self, machine: &mut Machine, thread: ThreadId) {
        let it = machine.thread(thread);
        let home = if it.may_use(it.cpu) {
            it.cpu
        } else {
            let idle = self.idlers.find(it.cpu, it);
            let any = || machine.cpu_ids().find(|&cpu| it.may_use(cpu));
            idle.or_else(any).unwrap_or(it.cpu)
        };
        self.insert(thread, home);
        if self.idlers.contains(home) {
            self.idlers.kick(machine, home);
        } else if !self.tickle_idler(machine, thread) {
            let current = machine.cpu(home).current;
            if current.is_some_and(|current| self.priority(thread) < self.priority(current)) {
                machine.kick(home);
            }
        }
    }

    /// Takes the first vCPU that waits at another CPU, may run on `cpu` and has a better priority than `than`
    /// (`None`: any priority), from the CPUs of the own socket first.
    fn steal(&mut self, machine: &Machine, cpu: CpuId, than: Option<Priority>) -> Option<ThreadId> {
        if self.waiting == 0 {
            return None;
        }
        let own = self.queues[cpu.0 as usize].socket;
        for step in 0..self.sockets.len() {
            let socket = (own + step) % self.sockets.len();
            let Socket { cpus, last } = &self.sockets[socket];
            let found = (1..=cpus.len()).find_map(|step| {
                let at = (last + step) % cpus.len();
                let peer = cpus[at];
                let ready = &self.queues[peer.0 as usize].ready;
                // A vCPU that waits alone at an idle CPU is about to run there.
                if peer == cpu || ready.len() == 1 && machine.cpu(peer).current.is_none() {
                    return None;
                }
                let better =
                    |thread: ThreadId| than.is_none_or(|than| self.priority(thread) < than);
                let place = (ready.iter().take_while(|&&thread| better(thread)))
                    .position(|&thread| machine.thread(thread).may_use(cpu))?;
                Some((at, peer, place))
            });
            if let Some((at, peer, place)) = found {
                self.sockets[socket].last = at;
                return self.remove(peer, place);
            }
        }
        None
    }

    /// A CPU's tick: the running vCPU loses its boost and is active from now on. The first tick after an
    /// accounting puts the vCPUs that are OVER at the end of the queue.
    fn tick_of(&mut self, machine: &mut Machine, cpu: CpuId) {
        if let Some(current) = machine.cpu(cpu).current {
            self.burn(machine, current);
            let vcpu = self.vcpu(current);
            if vcpu.priority == Priority::Boost {
                vcpu.priority = Priority::Under;
            }
            if !std::mem::replace(&mut vcpu.active, true) {
                self.active.push(current);
            }
        }
        let (accounts, vcpus) = (self.accounts, &self.vcpus);
        let queue = &mut self.queues[cpu.0 as usize];
        if std::mem::replace(&mut queue.sorted, accounts) != accounts {
            let over = |thread: &ThreadId| vcpus[thread.index()].priority == Priority::Over;
            queue.ready.make_contiguous().sort_by_key(over);
        }
        // vCPUs that wait here and may not use this CPU any more go to another CPU.
        for _ in 0..self.queue(cpu).ready.len() {
            let Some(at) = self
                .queue(cpu)
                .ready
                .iter()
                .position(|t| !machine.thread(*t).may_use(cpu))
            else {
                break;
            };
            if let Some(thread) = self.remove(cpu, at) {
                self.enqueue(machine, thread);
            }
        }
    }

    /// The accounting: gives each active vCPU what it earned, and sets its priority by its credits. A debt
    /// that all had together after the last accounting is added to what is given out, so that it does not
    /// grow.
    fn account(&mut self, machine: &Machine) {
        let total: i64 = (self.active.iter())
            .map(|&thread| weight(machine, thread))
            .sum();
        let debt = (-self.balance).max(0);
        let mut pot = FULL * self.queues.len() as i64 + debt;
        let mut rest = total;
        self.balance = 0;
        // The heaviest vCPUs come first, so that all that they cannot use goes to the others.
        (self.active).sort_unstable_by_key(|&thread| (Reverse(weight(machine, thread)), thread));
        for &thread in &self.active {
            let weight = weight(machine, thread);
            let part = |of: i64| (i128::from(of) * i128::from(weight) / i128::from(total)) as i64;
            rest -= weight;
            let (fair, most) = (part(pot), FULL + part(debt));
            if fair > most && rest > 0 {
                let beyond = i128::from(fair - most) * i128::from(total) / i128::from(rest);
                pot += beyond as i64;
            }
            let vcpu = &mut self.vcpus[thread.index()];
            vcpu.credit = (vcpu.credit + fair.min(most)).max(-FULL);
            vcpu.priority = if vcpu.credit < 0 {
                Priority::Over
            } else {
                Priority::Under
            };
            if vcpu.credit > FULL {
                vcpu.active = false;
                vcpu.credit /= 2;
            }
            self.balance += vcpu.credit;
        }
        let vcpus = &self.vcpus;
        self.active.retain(|thread| vcpus[thread.index()].active);
        self.accounts += 1;
    }
}

impl Class for Credit {
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId) {
        if self.vcpus.is_empty() {
            let count = self.queues.len() as Nanos;
            for cpu in 0..count {
                let at = machine.now + TICK + cpu * TICK / count;
                machine.set_timer(at, cpu as u32);
            }
            machine.set_timer(machine.now + SLICE, ACCOUNT);
        }
        let vcpu = self.vcpu(thread);
        let woken = std::mem::replace(&mut vcpu.known, true);
        if woken && vcpu.priority == Priority::Under {
            vcpu.priority = Priority::Boost;
        }
        self.enqueue(machine, thread);
    }

    fn set_allowed(&mut self, machine: &mut Machine, thread: ThreadId) {
        let places = machine.cpu_ids().zip(&self.queues);
        let mut found = places.filter_map(|(cpu, queue)| {
            let at = queue.ready.iter().position(|&other| other == thread);
            Some((cpu, at?))
        });
        if let Some((cpu, at)) = found.next() {
            self.remove(cpu, at);
            self.enqueue(machine, thread);
        }
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        let now = machine.now;
        if let Some(thread) = ran {
            self.burn(machine, thread);
            let has_run = now - self.queue(cpu).since;
            if !machine.thread(thread).may_use(cpu) {
                self.enqueue(machine, thread);
            } else if has_run < RATELIMIT {
                let turn = Some((RATELIMIT - has_run).max(MIN_TURN));
                return Some(Pick { thread, turn });
            } else {
                self.insert(thread, cpu);
            }
        }
        let may = |thread: &ThreadId| machine.thread(*thread).may_use(cpu);
        let here = self.queue(cpu).ready.iter().position(may);
        let priority = here.map(|at| self.priority(self.queues[cpu.0 as usize].ready[at]));
        let stolen = match priority {
            Some(Priority::Boost | Priority::Under) => None,
            than => self.steal(machine, cpu, than),
        };
        let next = stolen.or_else(|| self.remove(cpu, here?));
        self.idlers.set(cpu, next.is_none());
        if let Some(thread) = ran.filter(|_| ran != next) {
            // There may be an idle CPU that the displaced vCPU may use and the next vCPU may not.
            self.tickle_idler(machine, thread);
        }
        let thread = next?;
        if next != ran {
            self.queue(cpu).since = now;
        }
        Some(Pick {
            thread,
            turn: Some(SLICE),
        })
    }

    fn block(&mut self, machine: &mut Machine, _cpu: CpuId, thread: ThreadId) {
        self.burn(machine, thread);
    }

    fn timer(&mut self, machine: &mut Machine, token: u32) {
        let every = if token == ACCOUNT {
            self.account(machine);
            SLICE
        } else {
            self.tick_of(machine, CpuId(token));
            TICK
        };
        machine.set_timer(machine.now + every, token);
    }
}
