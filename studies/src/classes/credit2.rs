//! Credit2, Xen's default scheduler since 4.12 (xen/common/sched/credit2.c).
//!
//! Several CPUs share a run queue, in the order of credits, the most first. A vCPU (here a thread) that runs
//! burns credits: 1 a ns for the heaviest vCPU of the queue, more for lighter ones, down to -10 ms. When
//! neither the vCPU that a CPU chooses nor the first one that waits has any left, all vCPUs of the queue get
//! 10 ms, with at most 0.5 ms carried over: a vCPU that slept has the most then. A vCPU runs until its
//! credits are those of the next one, but for 0.5 ms at least (1 ms where it was just chosen: the rate limit)
//! and 10 ms at most. It gives way before that to a vCPU with more credits; to one that ran on another CPU
//! only for 0.5 ms more (migration resistance). A vCPU that moves gets 50 us. For a vCPU that wakes or is
//! preempted a CPU of its queue is tickled: an idle one, its own first; else its own if the vCPU that runs
//! there has less credit, else the CPU whose vCPU has the least. A busy CPU is passed over unless its vCPU
//! has run for more than the rate limit less 50 us.
//!
//! After such a reset, queues are balanced by their load, a moving average over about a second. The other
//! queue is the one whose load is the furthest from the own one's; the swap, push or pull is done that makes
//! the two the most alike, if they differ by 1 where neither is full, by 1/8 else. Nothing else moves work
//! between queues: a CPU can idle for a while beside work in another queue, as in Xen.
//!
//! The CPUs that share a queue (credit2_runqueue) were those of a socket at first, of a core in Xen 4.7 and
//! 4.8, and are those of a socket since; since 4.14 a queue has at most 16 of them. Here they are those of a
//! last-level cache, which is what sharing a queue is good for and what a socket was on the machines that
//! Xen's authors measured. A cache with more than 16 CPUs has several queues of at most 16, as even as
//! can be.
//!
//! A tenant is a domain; its weight is its group's `cpu.weight` x 2.56.
//!
//! Not modelled: caps, yielding, soft affinity, preferring idle cores to idle hyperthreads. Other than in
//! Xen, an idle CPU does not resist migration, and whether queues are full is asked of the two that are
//! balanced.
//!
//! Sources: xen/common/sched/credit2.c and docs/misc/xen-command-line of 2026, and their history.

use super::credit::weight;
use super::queue::{Idlers, Ready};
use quell_model::{CpuId, Topology};
use quell_sim::{Class, Machine, Nanos, Pick, ThreadId};
use std::cmp::Reverse;

/// The credits of a new vCPU, and what a reset adds: 10 ms, in ns.
const CREDIT_INIT: i64 = 10_000_000;
/// The least credits that a vCPU can have, in ns.
const CREDIT_MIN: i64 = -CREDIT_INIT;
/// The most credits that a vCPU keeps beyond [`CREDIT_INIT`] at a reset: 0.5 ms, in ns.
const CARRY_OVER: i64 = 500_000;
/// The credits by which a vCPU must be ahead to run on another CPU than its own: 0.5 ms, in ns.
const MIGRATION_RESISTANCE: i64 = 500_000;
/// The credits that a vCPU gets when it moves to another CPU: 50 us, in ns.
const MIGRATION_COMPENSATION: i64 = 50_000;
/// The shortest turn: 0.5 ms, in ns.
const MIN_TIMER: Nanos = 500_000;
/// The longest turn: 10 ms, in ns.
const MAX_TIMER: Nanos = 10_000_000;
/// The rate limit: a vCPU is not preempted before it has run for 1 ms, in ns.
const RATELIMIT: Nanos = 1_000_000;
/// The time by which a vCPU may be preempted before the end of the rate limit: 50 us, in ns.
const RATELIMIT_TOLERANCE: Nanos = 50_000;
/// The window of a load's moving average: 2^30 ns.
const WINDOW: f64 = (1u64 << 30) as f64;
/// The largest number of CPUs that share a queue.
const QUEUE_CPUS: usize = 16;

/// A load: the number of vCPUs that were ready, as a moving average over about a second; brought up to date
/// at `at`, in ns.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    average: f64,
    at: Nanos,
}

impl Load {
    /// Brings the load up to date: `count` vCPUs have been ready since the last call.
    fn update(&mut self, now: Nanos, count: usize) {
        let part = ((now - self.at) as f64 / WINDOW).min(1.0);
        self.average += (count as f64 - self.average) * part;
        self.at = now;
    }
}

/// What the class keeps of a vCPU, which is a thread.
#[derive(Debug, Clone)]
struct Vcpu {
    /// The vCPU's credits, in ns.
    credit: i64,
    /// The CPU time that was taken off the vCPU's credits so far, in ns.
    counted: Nanos,
    /// What the vCPU burnt beyond whole credits, in parts of 1 / weight of a credit.
    residual: i64,
    /// The weight of the vCPU's domain.
    weight: i64,
    /// The run queue that the vCPU belongs to; `None`: the vCPU is new, or its weight has just changed.
    queue: Option<usize>,
    /// The CPU that the vCPU ran on last, or that it got when it was assigned to its queue.
    home: CpuId,
    /// The CPU that was tickled to run the vCPU.
    tickled: Option<CpuId>,
    /// The queue to which the vCPU goes when it leaves its CPU.
    migrates_to: Option<usize>,
    /// Whether the vCPU is ready or runs.
    ready: bool,
    load: Load,
}

/// A run queue.
#[derive(Debug)]
struct Queue {
    cpus: Vec<CpuId>,
    /// The vCPUs that wait, the one with the most credits first.
    ready: Ready<Reverse<i64>>,
    /// All vCPUs that belong to the queue, those that sleep included.
    members: Vec<ThreadId>,
    /// The weight of the heaviest member; 1 where there is none.
    max_weight: i64,
    /// The number of vCPUs of the queue that are ready or run.
    count: usize,
    /// The queue's load, as if each vCPU that was moved had always been in its present queue.
    load: Load,
    /// The position in `cpus` of the CPU that the last vCPU assigned to the queue got.
    last: usize,
}

impl Queue {
    /// Whether the thread may run on any CPU of the queue.
    fn may_use(&self, machine: &Machine, thread: ThreadId) -> bool {
        let it = machine.thread(thread);
        self.cpus.iter().any(|&cpu| it.may_use(cpu))
    }
}

/// The class Credit2.
#[derive(Debug)]
pub struct Credit2 {
    /// The state of each vCPU, by the number of its thread.
    vcpus: Vec<Vcpu>,
    /// All run queues.
    queues: Vec<Queue>,
    /// For each CPU, the index of its queue.
    queue_of: Vec<usize>,
    /// For each CPU, the time when its vCPU's turn began, in ns.
    since: Vec<Nanos>,
    idlers: Idlers,
}

impl Credit2 {
    /// The class for a machine with these CPUs.
    pub fn new(topology: &Topology) -> Credit2 {
        let mut caches: Vec<Vec<CpuId>> = Vec::new();
        for (index, cpu) in topology.cpus.iter().enumerate() {
            let cache = cpu.llc as usize;
            caches.resize(caches.len().max(cache + 1), Vec::new());
            caches[cache].push(CpuId(index as u32));
        }
        let mut queues = Vec::new();
        let mut queue_of = vec![0; topology.cpus.len()];
        for cpus in &caches {
            let size = cpus.len().div_ceil(cpus.len().div_ceil(QUEUE_CPUS).max(1));
            for cpus in cpus.chunks(size.max(1)) {
                for cpu in cpus {
                    queue_of[cpu.0 as usize] = queues.len();
                }
                queues.push(Queue {
                    cpus: cpus.to_vec(),
                    ready: Ready::new(),
                    members: Vec::new(),
                    max_weight: 1,
                    count: 0,
                    load: Load::default(),
                    last: cpus.len() - 1,
                });
            }
        }
        Credit2 {
            vcpus: Vec::new(),
            queues,
            since: vec![0; queue_of.len()],
            idlers: Idlers::all(queue_of.len()),
            queue_of,
        }
    }

    fn vcpu(&mut self, thread: ThreadId) -> &mut Vcpu {
        &mut self.vcpus[thread.index()]
    }

    fn credit(&self, thread: ThreadId) -> i64 {
        self.vcpus[thread.index()].credit
    }

    /// Takes the CPU time that the vCPU has used since the last call off its credits, by its weight.
    fn burn(&mut self, machine: &Machine, thread: ThreadId) {
        let ran = machine.cpu_time(thread);
        let vcpu = &mut self.vcpus[thread.index()];
        let Some(queue) = vcpu.queue else { return };
        let time = (ran - vcpu.counted) as i64;
        let burnt = time * self.queues[queue].max_weight + vcpu.residual;
        vcpu.residual = burnt % vcpu.weight;
        vcpu.credit = (vcpu.credit - burnt / vcpu.weight).max(CREDIT_MIN);
        vcpu.counted = ran;
    }

    /// Brings the queue's load up to date; from now on `change` more of its vCPUs are ready.
    fn count(&mut self, now: Nanos, queue: usize, change: isize) {
        let queue = &mut self.queues[queue];
        queue.load.update(now, queue.count);
        queue.count = queue.count.saturating_add_signed(change);
    }

    /// Brings the vCPU's load up to date, and sets whether the vCPU is ready from now on.
    fn update_load(&mut self, now: Nanos, thread: ThreadId, ready: bool) {
        let vcpu = self.vcpu(thread);
        let was = std::mem::replace(&mut vcpu.ready, ready);
        vcpu.load.update(now, usize::from(was));
    }

    /// Makes the vCPU belong to another queue, and its home the next CPU there, in turn, that it may use.
    fn assign(&mut self, machine: &Machine, thread: ThreadId, to: usize) {
        self.leave(thread);
        let queue = &mut self.queues[to];
        queue.members.push(thread);
        queue.load.average += self.vcpus[thread.index()].load.average;
        queue.max_weight = queue.max_weight.max(self.vcpus[thread.index()].weight);
        let it = machine.thread(thread);
        let count = queue.cpus.len();
        let next = (1..=count)
            .map(|step| (queue.last + step) % count)
            .find(|&at| it.may_use(queue.cpus[at]));
        queue.last = next.unwrap_or(queue.last);
        let home = queue.cpus[queue.last];
        let vcpu = self.vcpu(thread);
        (vcpu.queue, vcpu.home) = (Some(to), home);
    }

    /// Takes the vCPU, and its load, out of the queue that it belongs to.
    fn leave(&mut self, thread: ThreadId) {
        let vcpu = &mut self.vcpus[thread.index()];
        let (load, weight) = (vcpu.load.average, vcpu.weight);
        let Some(from) = vcpu.queue.take() else {
            return;
        };
        let queue = &mut self.queues[from];
        queue.members.retain(|&other| other != thread);
        queue.load.average = (queue.load.average - load).max(0.0);
        if weight == queue.max_weight {
            let weights = (queue.members.iter()).map(|other| self.vcpus[other.index()].weight);
            queue.max_weight = weights.max().unwrap_or(1);
        }
    }

    /// The queue with the least load of those that the thread may use.
    fn choose_queue(&self, machine: &Machine, thread: ThreadId) -> usize {
        let usable = (0..self.queues.len()).filter(|&at| self.queues[at].may_use(machine, thread));
        let load = |at: &usize| self.queues[*at].load.average;
        let least = usable.min_by(|one, other| load(one).total_cmp(&load(other)));
        least.unwrap_or(0)
    }

    /// Puts the vCPU into its queue, and kicks the CPU there that is to run it. `except` is not kicked: that
    /// CPU is choosing already.
    fn enqueue(&mut self, machine: &mut Machine, thread: ThreadId, except: Option<CpuId>) {
        let Vcpu {
            queue: Some(at),
            home,
            credit,
            ..
        } = self.vcpus[thread.index()]
        else {
            return;
        };
        self.queues[at].ready.insert(Reverse(credit), thread);
        let Some(cpu) = self.tickled(machine, thread, at, home, except) else {
            return;
        };
        self.idlers.kick(machine, cpu);
        self.vcpu(thread).tickled = Some(cpu);
    }

    /// The CPU that is to be tickled for a vCPU that waits; `None`: no CPU should run it now.
    fn tickled(
        &mut self,
        machine: &Machine,
        thread: ThreadId,
        queue: usize,
        home: CpuId,
        except: Option<CpuId>,
    ) -> Option<CpuId> {
        let it = machine.thread(thread);
        if self.idlers.contains(home) && it.may_use(home) {
            return Some(home);
        }
        let mut best = None;
        for index in 0..self.queues[queue].cpus.len() {
            let cpu = self.queues[queue].cpus[index];
            if !it.may_use(cpu) || Some(cpu) == except {
                continue;
            }
            if self.idlers.contains(cpu) {
                return Some(cpu);
            }
            let score = self.score(machine, thread, home, cpu);
            if score > 0 && best.is_none_or(|(most, _)| score > most) {
                best = Some((score, cpu));
            }
        }
        // The vCPU's own CPU is preferred, however little less credit the vCPU that runs there has.
        if Some(home) != except && it.may_use(home) && self.score(machine, thread, home, home) > 0 {
            return Some(home);
        }
        Some(best?.1)
    }

    /// The credits, in ns, by which the vCPU is ahead of the vCPU that runs on `cpu`, less the migration
    /// resistance; -1 if that CPU is not to be tickled: it idles, is kicked already, or is within the rate
    /// limit.
    fn score(&mut self, machine: &Machine, thread: ThreadId, home: CpuId, cpu: CpuId) -> i64 {
        let state = machine.cpu(cpu);
        let Some(current) = state.current.filter(|_| !state.kicked) else {
            return -1;
        };
        if machine.now - self.since[cpu.0 as usize] <= RATELIMIT - RATELIMIT_TOLERANCE {
            return -1;
        }
        self.burn(machine, current);
        let resistance = if cpu == home { 0 } else { MIGRATION_RESISTANCE };
        self.credit(thread) - self.credit(current) - resistance
    }

    /// The position of the vCPU that is to run on the CPU rather than `ran`.
    fn candidate(&self, machine: &Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<usize> {
        let queue = &self.queues[self.queue_of[cpu.0 as usize]];
        let than = ran.map(|ran| self.credit(ran));
        for (at, (Reverse(credit), thread)) in queue.ready.iter().enumerate() {
            if than.is_some_and(|than| credit <= than) {
                return None;
            }
            let vcpu = &self.vcpus[thread.index()];
            let elsewhere =
                (vcpu.tickled).is_some_and(|other| other != cpu && machine.cpu(other).kicked);
            let resists =
                vcpu.home != cpu && than.is_some_and(|than| credit < than + MIGRATION_RESISTANCE);
            if machine.thread(thread).may_use(cpu) && !elsewhere && !resists {
                return Some(at);
            }
        }
        None
    }

    /// Gives all vCPUs of the queue more credits: `best`, which its CPU chose, has none left, nor has any
    /// that waits.
    fn reset(&mut self, machine: &Machine, queue: usize, best: ThreadId) {
        let mut more = CREDIT_INIT;
        if self.credit(best) == CREDIT_MIN {
            more += CREDIT_INIT;
        }
        for index in 0..self.queues[queue].members.len() {
            let member = self.queues[queue].members[index];
            self.burn(machine, member);
            let vcpu = self.vcpu(member);
            vcpu.credit = (vcpu.credit + more).min(CREDIT_INIT + CARRY_OVER);
        }
        let vcpus = &self.vcpus;
        (self.queues[queue].ready).rekey(|thread| Reverse(vcpus[thread.index()].credit));
    }

    /// Makes the loads of the queue `own` and of the queue that differs the most from it more alike.
    fn balance(&mut self, machine: &mut Machine, own: usize) {
        let now = machine.now;
        for queue in 0..self.queues.len() {
            self.count(now, queue, 0);
        }
        let load = |at: usize| self.queues[at].load.average;
        let difference = |at: usize| (load(at) - load(own)).abs();
        let others = (0..self.queues.len()).filter(|&at| at != own);
        let Some(other) = others.max_by(|one, two| difference(*one).total_cmp(&difference(*two)))
        else {
            return;
        };
        let cpus = |at: usize| self.queues[at].cpus.len();
        let full = load(own).max(load(other)) >= cpus(own).max(cpus(other)) as f64;
        let delta = load(own) - load(other);
        if delta.abs() < if full { 0.125 } else { 1.0 } {
            return;
        }
        for queue in [own, other] {
            for index in 0..self.queues[queue].members.len() {
                let member = self.queues[queue].members[index];
                let ready = self.vcpus[member.index()].ready;
                self.update_load(now, member, ready);
            }
        }
        let mut best = (delta.abs(), None, None);
        for (push, pushed) in self.movable(machine, own, other) {
            for (pull, pulled) in self.movable(machine, other, own) {
                let left = (delta - 2.0 * (pushed - pulled)).abs();
                if left < best.0 {
                    best = (left, push, pull);
                }
            }
        }
        let (_, push, pull) = best;
        if let Some(thread) = push {
            self.migrate(machine, thread, other);
        }
        if let Some(thread) = pull {
            self.migrate(machine, thread, own);
        }
    }

    /// No vCPU (`None`, with a load of 0), then each vCPU of a queue that may go to the other one, with its
    /// load.
    fn movable<'a>(
        &'a self,
        machine: &'a Machine,
        from: usize,
        to: usize,
    ) -> impl Iterator<Item = (Option<ThreadId>, f64)> + 'a {
        let members = self.queues[from].members.iter();
        let movable = members.filter_map(move |&thread| {
            let vcpu = &self.vcpus[thread.index()];
            let may = vcpu.migrates_to.is_none() && self.queues[to].may_use(machine, thread);
            may.then_some((Some(thread), vcpu.load.average))
        });
        std::iter::once((None, 0.0)).chain(movable)
    }

    /// Moves vCPUs that wait in a queue and may not use any of its CPUs any more to other queues.
    fn expel(&mut self, machine: &mut Machine, from: usize) {
        for _ in 0..self.queues[from].ready.len() {
            let queue = &self.queues[from];
            let mut waiting = queue.ready.iter();
            let Some(at) = waiting.position(|(_, thread)| !queue.may_use(machine, thread)) else {
                return;
            };
            drop(waiting);
            if let Some(thread) = self.queues[from].ready.remove(at) {
                let to = self.choose_queue(machine, thread);
                self.move_ready(machine, thread, from, to, None);
            }
        }
    }

    /// Moves the vCPU to another queue: at once, or when it leaves its CPU if it runs.
    fn migrate(&mut self, machine: &mut Machine, thread: ThreadId, to: usize) {
        let Vcpu {
            queue: Some(from),
            ready,
            home,
            ..
        } = self.vcpus[thread.index()]
        else {
            return;
        };
        if !ready {
            self.assign(machine, thread, to);
        } else if self.queues[from].ready.take(thread) {
            self.move_ready(machine, thread, from, to, None);
        } else {
            // The vCPU runs, or is about to.
            self.vcpu(thread).migrates_to = Some(to);
            machine.kick(home);
        }
    }

    /// Moves a vCPU that is ready, and in no queue's `ready`, from one queue to another.
    fn move_ready(
        &mut self,
        machine: &mut Machine,
        thread: ThreadId,
        from: usize,
        to: usize,
        except: Option<CpuId>,
    ) {
        self.count(machine.now, from, -1);
        self.assign(machine, thread, to);
        self.count(machine.now, to, 1);
        self.enqueue(machine, thread, except);
    }

    /// The time for which the vCPU may run on the CPU, in ns.
    fn turn(&self, machine: &Machine, cpu: CpuId, thread: ThreadId) -> Nanos {
        let queue = &self.queues[self.queue_of[cpu.0 as usize]];
        let has_run = machine.now - self.since[cpu.0 as usize];
        let least = RATELIMIT.saturating_sub(has_run).max(MIN_TIMER);
        let next = queue.ready.iter().next();
        let next = next.map_or(0, |(Reverse(credit), _)| credit.max(0));
        let vcpu = &self.vcpus[thread.index()];
        let time = (vcpu.credit - next).max(0) * vcpu.weight / queue.max_weight;
        (time as Nanos).max(least).min(MAX_TIMER)
    }
}

impl Class for Credit2 {
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId) {
        let (now, weight) = (machine.now, weight(machine, thread));
        if self.vcpus.len() <= thread.index() {
            let new = Vcpu {
                credit: CREDIT_INIT,
                counted: 0,
                residual: 0,
                weight,
                queue: None,
                home: CpuId(0),
                tickled: None,
                migrates_to: None,
                ready: false,
                // A new vCPU's load is unknown: one half is between the least and the most.
                load: Load {
                    average: 0.5,
                    at: now,
                },
            };
            self.vcpus.resize(thread.index() + 1, new);
        }
        if self.vcpu(thread).weight != weight {
            self.leave(thread);
            self.vcpu(thread).weight = weight;
        }
        let queue = match self.vcpus[thread.index()].queue {
            Some(queue) if self.queues[queue].may_use(machine, thread) => queue,
            _ => {
                let queue = self.choose_queue(machine, thread);
                self.assign(machine, thread, queue);
                queue
            }
        };
        self.update_load(now, thread, true);
        self.count(now, queue, 1);
        self.enqueue(machine, thread, None);
    }

    fn set_allowed(&mut self, machine: &mut Machine, thread: ThreadId) {
        let Some(at) = self.vcpus[thread.index()].queue else {
            return;
        };
        if !self.queues[at].ready.take(thread) {
            return;
        }
        // The vCPU may not be allowed on the tickled CPU any more.
        self.vcpu(thread).tickled = None;
        if self.queues[at].may_use(machine, thread) {
            self.enqueue(machine, thread, None);
        } else {
            let to = self.choose_queue(machine, thread);
            self.move_ready(machine, thread, at, to, None);
        }
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        let (index, now) = (cpu.0 as usize, machine.now);
        let at = self.queue_of[index];
        let mut stays = ran;
        if let Some(thread) = ran {
            self.burn(machine, thread);
            let it = machine.thread(thread);
            if !it.may_use(cpu) || self.vcpu(thread).migrates_to.is_some() {
                stays = None;
            }
        }
        let first = self.queues[at].ready.iter().next();
        if first.is_some_and(|(_, thread)| !machine.thread(thread).may_use(cpu)) {
            self.expel(machine, at);
        }
        let limited = stays.is_some() && now - self.since[index] <= RATELIMIT - RATELIMIT_TOLERANCE;
        let better = match limited {
            true => None,
            false => self.candidate(machine, cpu, stays),
        };
        let next = match better {
            Some(better) => self.queues[at].ready.remove(better),
            None => stays,
        };
        self.idlers.set(cpu, next.is_none());
        let mut reset = false;
        if let Some(thread) = next {
            if next != ran {
                self.since[index] = now;
            }
            let waits = self.queues[at].ready.iter().next();
            let best = waits.map_or(CREDIT_MIN, |(Reverse(credit), _)| credit);
            reset = self.credit(thread).max(best) <= 0;
            if reset {
                self.reset(machine, at, thread);
            }
            let vcpu = self.vcpu(thread);
            vcpu.tickled = None;
            if std::mem::replace(&mut vcpu.home, cpu) != cpu {
                vcpu.credit += MIGRATION_COMPENSATION;
            }
        }
        if let Some(thread) = ran.filter(|_| ran != next) {
            match self.vcpu(thread).migrates_to.take() {
                Some(to) if self.queues[to].may_use(machine, thread) => {
                    self.move_ready(machine, thread, at, to, Some(cpu));
                }
                _ if self.queues[at].may_use(machine, thread) => {
                    self.enqueue(machine, thread, Some(cpu));
                }
                _ => {
                    let to = self.choose_queue(machine, thread);
                    self.move_ready(machine, thread, at, to, Some(cpu));
                }
            }
        }
        let pick = next.map(|thread| Pick {
            thread,
            turn: Some(self.turn(machine, cpu, thread)),
        });
        if reset {
            self.balance(machine, at);
        }
        pick
    }

    fn block(&mut self, machine: &mut Machine, _cpu: CpuId, thread: ThreadId) {
        let now = machine.now;
        self.burn(machine, thread);
        self.update_load(now, thread, false);
        if let Some(queue) = self.vcpu(thread).queue {
            self.count(now, queue, -1);
        }
        if let Some(to) = self.vcpu(thread).migrates_to.take() {
            self.assign(machine, thread, to);
        }
    }
}
