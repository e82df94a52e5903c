//! Borrowed virtual time, BVT (Duda and Cheriton, SOSP 1999), one of Xen's schedulers until 3.0.2
//! (xen/common/sched_bvt.c).
//!
//! A thread's actual virtual time A advances as the thread runs, the slower the greater its weight (here the
//! `cpu.weight` of its group). A is charged in minimum charging units (mcu) of 100 us, a unit that has begun
//! counting whole, and is kept in ns of a thread of the default weight. The thread's effective virtual time E
//! is A, less its warp W while the thread warps: W is the virtual time that the thread borrows. A CPU runs
//! the thread with the least E. That thread goes on until its E is ahead of the next thread's by what its A
//! gains in the context switch allowance C; a thread that wakes with an E that is not greater than the
//! running thread's preempts it. A CPU's scheduler virtual time (SVT) is the least A of the threads that are
//! ready there. A thread that wakes gets A = max(A, SVT), so a thread cannot save up virtual time by
//! sleeping. A thread that has run warped for the limit L at a stretch does not warp for the time U. A thread
//! has to give back what it borrowed, so in the long run weights alone decide.
//!
//! The caller chooses by tenant how much threads warp. In DASEC's comparison (section 6.3) BVT is there to
//! prefer latency-sensitive workloads to best-effort ones: the tenants that answer requests warp, batch
//! tenants do not.
//!
//! Each CPU has a queue, and queues are balanced, as in that comparison: there BVT falls behind because
//! "multiple threads with very low rescheduling latencies" are "on the same core", which one queue for all
//! CPUs would not show; and the BVT that it cites for data centers (Leverich and Kozyrakis, EuroSys 2014) is
//! Linux's queues in BVT's order. Xen's code moved no vCPU by itself. Here a thread that wakes gets an idle
//! CPU if there is one, a CPU that idles takes a thread from the CPU with the most weight, and every 16 ms x
//! CPUs each CPU takes a thread that makes its weight more like the heaviest CPU's. A thread that moves stays
//! as far ahead of SVT or behind it as it was.
//!
//! Not modelled: hierarchies and reservations (section 4 of the paper), Xen's end of warping for good where U
//! = 0, what balancing costs.

use super::queue::{Idlers, Ready};
use quell_model::{CpuId, TenantWeight};
use quell_sim::{Class, Machine, Nanos, Pick, ThreadId};

/// The minimum charging unit (mcu), in ns.
const MCU: Nanos = 100_000;
/// The token of the balancing timer; the token of the timer that ends a thread's pause is the thread's
/// number.
const BALANCE: u32 = u32::MAX;

/// How a tenant's threads warp; all times in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warp {
    /// W: the virtual time that a thread borrows; 0: the threads do not warp.
    pub value: Nanos,
    /// L: the CPU time for which a thread may run warped at a stretch; 0: no limit.
    pub limit: Nanos,
    /// U: the time for which a thread does not warp once it has reached the limit.
    pub pause: Nanos,
}

impl Warp {
    /// No warp.
    pub const NONE: Warp = Warp {
        value: 0,
        limit: 0,
        pause: 0,
    };

    /// A warp of `value` ns with Xen's default times: the limit is 2 s, the pause 1 s.
    pub const fn xen(value: Nanos) -> Warp {
        Warp {
            value,
            limit: 2_000_000_000,
            pause: 1_000_000_000,
        }
    }
}

/// What the class keeps of a thread.
#[derive(Debug, Clone, Default)]
struct Entity {
    /// The actual virtual time A, in ns of a thread of the default weight.
    avt: i64,
    /// The thread's CPU time when its present stretch on a CPU began, in ns.
    began: Nanos,
    /// The number of mcu of that stretch that are in `avt`.
    charged: Nanos,
    /// The thread's CPU time, in ns, from which the warp limit counts: that at the start of its stretch on a
    /// CPU, or at the end of its last pause if that was later.
    warped: Nanos,
    /// The index of the CPU in whose queue the thread is, or was last.
    home: usize,
    /// The time before which the thread does not warp, in ns.
    unwarped_until: Nanos,
}

/// A CPU's queue.
#[derive(Debug)]
struct Queue {
    /// The threads that wait there, by effective virtual time.
    ready: Ready<i64>,
    /// The scheduler virtual time SVT; it never decreases.
    svt: i64,
    /// The sum of the weights of the threads that are ready there, the running thread included.
    weight: i64,
    /// Whether a thread was put into the queue, or may warp again, whose E is not greater than the running
    /// thread's: the CPU then gives its thread no context switch allowance at its next choice.
    preempt: bool,
}

/// The class BVT.
#[derive(Debug)]
pub struct Bvt {
    /// The context switch allowance C, in ns.
    allowance: Nanos,
    /// The warp of each tenant.
    warps: Vec<Warp>,
    /// The state of each thread, by its number.
    entities: Vec<Entity>,
    /// The queue of each CPU.
    queues: Vec<Queue>,
    idlers: Idlers,
    /// The number of threads that wait in all queues.
    waiting: usize,
    /// The number of balancing rounds so far.
    rounds: u64,
    /// The thread that balancing last moved without making weights more even.
    turned: Option<ThreadId>,
    /// Whether the balancing timer is set.
    started: bool,
}

/// The weight of the thread's group.
fn weight(machine: &Machine, thread: ThreadId) -> i64 {
    let weight = machine.group(machine.thread(thread).group).weight;
    i64::from(weight.0.max(1))
}

/// What a thread of this weight gains in actual virtual time as it runs for `time` ns.
fn virtual_of(time: Nanos, weight: i64) -> i64 {
    time as i64 * i64::from(TenantWeight::DEFAULT.0) / weight
}

impl Bvt {
    /// The context switch allowance C as in Xen: 5 ms, in ns.
    pub const ALLOWANCE: Nanos = 5_000_000;

    /// The class for a machine of `cpus` CPUs, with a context switch allowance in ns. `warps` are in the
    /// order of the tenants; tenants beyond the list do not warp.
    pub fn new(cpus: usize, allowance: Nanos, warps: Vec<Warp>) -> Bvt {
        let queue = || Queue {
            ready: Ready::new(),
            svt: 0,
            weight: 0,
            preempt: false,
        };
        Bvt {
            allowance,
            warps,
            entities: Vec::new(),
            queues: std::iter::repeat_with(queue).take(cpus).collect(),
            idlers: Idlers::all(cpus),
            waiting: 0,
            rounds: 0,
            turned: None,
            started: false,
        }
    }

    /// The thread's warp; [`Warp::NONE`] while the thread pauses.
    fn warp(&self, machine: &Machine, thread: ThreadId) -> Warp {
        let warp = self.warps.get(machine.thread(thread).tenant);
        match warp {
            Some(&warp) if machine.now >= self.entities[thread.index()].unwarped_until => warp,
            _ => Warp::NONE,
        }
    }

    /// The thread's effective virtual time E.
    fn evt(&self, machine: &Machine, thread: ThreadId) -> i64 {
        self.entities[thread.index()].avt - self.warp(machine, thread).value as i64
    }

    /// Brings the actual virtual time of a thread that runs up to date.
    fn update(&mut self, machine: &Machine, thread: ThreadId) {
        let ran = machine.cpu_time(thread) - self.entities[thread.index()].began;
        let weight = weight(machine, thread);
        let entity = &mut self.entities[thread.index()];
        let units = ran.div_ceil(MCU);
        entity.avt += virtual_of((units - entity.charged) * MCU, weight);
        entity.charged = units;
    }

    /// Puts the thread into the queue of its home CPU.
    fn insert(&mut self, machine: &Machine, thread: ThreadId) {
        let evt = self.evt(machine, thread);
        let home = self.entities[thread.index()].home;
        self.queues[home].ready.insert(evt, thread);
        self.waiting += 1;
    }

    /// Takes the thread at a position out of a CPU's queue.
    fn remove(&mut self, home: usize, at: usize) -> Option<ThreadId> {
        let thread = self.queues[home].ready.remove(at)?;
        self.waiting -= 1;
        Some(thread)
    }

    /// Brings a CPU's SVT, and the actual virtual time of the thread that runs there, up to date.
    fn refresh(&mut self, machine: &Machine, index: usize) {
        self.refresh_with(machine, index, machine.cpu(CpuId(index as u32)).current);
    }

    /// The same, with `current` as the thread that runs there.
    fn refresh_with(&mut self, machine: &Machine, index: usize, current: Option<ThreadId>) {
        if let Some(current) = current {
            self.update(machine, current);
        }
        let waiting = self.queues[index].ready.iter().map(|(_, thread)| thread);
        let avts = waiting
            .chain(current)
            .map(|thread| self.entities[thread.index()].avt);
        if let Some(least) = avts.min() {
            self.queues[index].svt = self.queues[index].svt.max(least);
        }
    }

    /// Makes another CPU the thread's home. The thread is as far ahead of SVT or behind it there as it was at
    /// its last home.
    fn rehome(&mut self, thread: ThreadId, to: usize) {
        let from = self.entities[thread.index()].home;
        if from == to {
            return;
        }
        self.entities[thread.index()].home = to;
        self.entities[thread.index()].avt += self.queues[to].svt - self.queues[from].svt;
    }

    /// Puts a thread that became ready, or must leave its CPU, into the queue of a CPU, and has that CPU
    /// choose again. An idle CPU is preferred, then the thread's home, then the first CPU that the thread may
    /// use.
    fn place(&mut self, machine: &mut Machine, thread: ThreadId) {
        let it = machine.thread(thread);
        let home = CpuId(self.entities[thread.index()].home as u32);
        let target = match self.idlers.find(home, it) {
            Some(idle) => idle,
            None if it.may_use(home) => home,
            None => {
                let mut cpus = machine.cpu_ids();
                cpus.find(|&cpu| it.may_use(cpu)).unwrap_or(home)
            }
        };
        let index = target.0 as usize;
        self.refresh(machine, home.0 as usize);
        self.refresh(machine, index);
        self.rehome(thread, index);
        let entity = &mut self.entities[thread.index()];
        entity.avt = entity.avt.max(self.queues[index].svt);
        self.insert(machine, thread);
        self.queues[index].weight += weight(machine, thread);
        if let Some(current) = machine.cpu(target).current {
            let preempts = self.evt(machine, thread) <= self.evt(machine, current);
            self.queues[index].preempt |= preempts;
        }
        // Even where the thread does not preempt, the running thread's turn may have to be shorter.
        self.idlers.kick(machine, target);
    }

    /// Moves to `cpu` the first waiting thread that may run there and that `takes` accepts, from the heaviest
    /// other CPU that has one. `takes` gets the thread, its weight and the weight of its CPU's queue.
    fn pull(
        &mut self,
        machine: &Machine,
        cpu: CpuId,
        takes: impl Fn(ThreadId, i64, i64) -> bool,
    ) -> Option<ThreadId> {
        let mut best: Option<(i64, usize, usize)> = None;
        for (from, queue) in self.queues.iter().enumerate() {
            if from == cpu.0 as usize || best.is_some_and(|(weight, ..)| weight >= queue.weight) {
                continue;
            }
            // A thread that waits alone at an idle CPU is about to run there.
            let current = machine.cpu(CpuId(from as u32)).current;
            if queue.ready.len() <= usize::from(current.is_none()) {
                continue;
            }
            let at = queue.ready.iter().position(|(_, thread)| {
                machine.thread(thread).may_use(cpu)
                    && takes(thread, weight(machine, thread), queue.weight)
            });
            if let Some(at) = at {
                best = Some((queue.weight, from, at));
            }
        }
        let (_, from, at) = best?;
        self.refresh(machine, from);
        self.refresh(machine, cpu.0 as usize);
        let thread = self.remove(from, at)?;
        let weight = weight(machine, thread);
        self.queues[from].weight -= weight;
        self.queues[cpu.0 as usize].weight += weight;
        self.rehome(thread, cpu.0 as usize);
        self.insert(machine, thread);
        Some(thread)
    }

    /// A balancing round: each CPU takes a thread that makes its weight and the heaviest CPU's more alike.
    fn balance(&mut self, machine: &mut Machine) {
        // Where no move makes weights more even, every second round moves one thread that turns the
        // difference around, so that no CPU's threads get less than the others' for ever.
        let turns_around = self.rounds % 2 == 1;
        self.rounds += 1;
        for cpu in machine.cpu_ids() {
            self.expel(machine, cpu);
            let own = self.queues[cpu.0 as usize].weight;
            let evens = |_, weight: i64, there: i64| weight < there - own;
            let last = self.turned;
            let turns = |thread: ThreadId, weight: i64, there: i64| {
                weight == there - own && Some(thread) != last
            };
            if self.pull(machine, cpu, evens).is_some() {
                self.idlers.kick(machine, cpu);
            } else if turns_around {
                let turned = self.pull(machine, cpu, turns);
                if turned.is_some() {
                    self.turned = turned;
                    self.idlers.kick(machine, cpu);
                    break;
                }
            }
        }
    }

    /// Moves threads that wait at a CPU and may not use it any more to other CPUs.
    fn expel(&mut self, machine: &mut Machine, cpu: CpuId) {
        let index = cpu.0 as usize;
        for _ in 0..self.queues[index].ready.len() {
            let mut waiting = self.queues[index].ready.iter();
            let Some(at) = waiting.position(|(_, thread)| !machine.thread(thread).may_use(cpu))
            else {
                return;
            };
            drop(waiting);
            if let Some(thread) = self.remove(index, at) {
                self.queues[index].weight -= weight(machine, thread);
                self.place(machine, thread);
            }
        }
    }

    /// Ends the warp of a thread that has run warped for its limit, and sets the timer that ends its pause.
    fn limit_warp(&mut self, machine: &mut Machine, thread: ThreadId) {
        let warp = self.warp(machine, thread);
        let ran = machine.cpu_time(thread) - self.entities[thread.index()].warped;
        if warp.value > 0 && warp.limit > 0 && ran >= warp.limit {
            let until = machine.now + warp.pause;
            self.entities[thread.index()].unwarped_until = until;
            machine.set_timer(until, thread.0);
        }
    }

    /// The time for which the thread may run, in ns; `None`: until it blocks. The turn ends when the thread's
    /// E is ahead of the next thread's by the context switch allowance, or when the thread reaches the limit
    /// of its warp.
    fn turn(&self, machine: &Machine, cpu: CpuId, thread: ThreadId) -> Option<Nanos> {
        let next = self.queues[cpu.0 as usize].ready.first_for(machine, cpu);
        let shared = next.map(|(_, evt, _)| {
            let ahead = (evt - self.evt(machine, thread)).max(0);
            let time = ahead * weight(machine, thread) / i64::from(TenantWeight::DEFAULT.0);
            time as Nanos + self.allowance
        });
        let warp = self.warp(machine, thread);
        let ran = machine.cpu_time(thread) - self.entities[thread.index()].warped;
        let warped = (warp.value > 0 && warp.limit > 0).then(|| warp.limit.saturating_sub(ran));
        let turn = [shared, warped].into_iter().flatten().min();
        turn.map(|turn| turn.max(1))
    }
}

impl Class for Bvt {
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId) {
        if self.entities.len() <= thread.index() {
            self.entities.resize(thread.index() + 1, Entity::default());
            let home = machine.thread(thread).cpu.0 as usize;
            self.entities[thread.index()].home = home;
            self.entities[thread.index()].avt = self.queues[home].svt;
        }
        if !std::mem::replace(&mut self.started, true) {
            let every = 16_000_000 * self.queues.len() as Nanos;
            machine.set_timer(machine.now + every, BALANCE);
        }
        self.place(machine, thread);
    }

    fn set_allowed(&mut self, machine: &mut Machine, thread: ThreadId) {
        let home = self.entities[thread.index()].home;
        if self.queues[home].ready.take(thread) {
            self.waiting -= 1;
            self.queues[home].weight -= weight(machine, thread);
            self.place(machine, thread);
        }
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        let index = cpu.0 as usize;
        let preempt = std::mem::replace(&mut self.queues[index].preempt, false);
        let stays = ran.filter(|&thread| machine.thread(thread).may_use(cpu));
        if let Some(thread) = ran {
            self.update(machine, thread);
            self.limit_warp(machine, thread);
        }
        if stays.is_none()
            && self.waiting > 0
            && self.queues[index].ready.first_for(machine, cpu).is_none()
        {
            self.pull(machine, cpu, |_, _, _| true);
        }
        let first = self.queues[index].ready.first_for(machine, cpu);
        let stays = stays.filter(|&thread| {
            let allowance = if preempt {
                0
            } else {
                virtual_of(self.allowance, weight(machine, thread))
            };
            first.is_none_or(|(_, evt, _)| self.evt(machine, thread) < evt + allowance)
        });
        let next = stays.or_else(|| self.remove(index, first?.0));
        self.idlers.set(cpu, next.is_none());
        if let Some(thread) = ran.filter(|_| ran != next) {
            if machine.thread(thread).may_use(cpu) {
                self.insert(machine, thread);
                let idle = self.idlers.find(cpu, machine.thread(thread));
                if let Some(idle) = idle {
                    self.idlers.kick(machine, idle);
                }
            } else {
                self.queues[index].weight -= weight(machine, thread);
                self.place(machine, thread);
            }
        }
        let thread = next?;
        if next != ran {
            let ran = machine.cpu_time(thread);
            let entity = &mut self.entities[thread.index()];
            (entity.began, entity.warped, entity.charged) = (ran, ran, 0);
        }
        let turn = self.turn(machine, cpu, thread);
        Some(Pick { thread, turn })
    }

    fn block(&mut self, machine: &mut Machine, cpu: CpuId, thread: ThreadId) {
        self.refresh_with(machine, cpu.0 as usize, Some(thread));
        self.queues[cpu.0 as usize].weight -= weight(machine, thread);
    }

    fn timer(&mut self, machine: &mut Machine, token: u32) {
        if token == BALANCE {
            self.balance(machine);
            let every = 16_000_000 * self.queues.len() as Nanos;
            machine.set_timer(machine.now + every, BALANCE);
            return;
        }
        // The thread's pause ends: the thread may warp again, and its E is less.
        let thread = ThreadId(token);
        let home = self.entities[thread.index()].home;
        self.entities[thread.index()].warped = machine.cpu_time(thread);
        if self.queues[home].ready.take(thread) {
            self.waiting -= 1;
            self.insert(machine, thread);
            if let Some(current) = machine.cpu(CpuId(home as u32)).current {
                self.update(machine, current);
                let preempts = self.evt(machine, thread) <= self.evt(machine, current);
                self.queues[home].preempt |= preempts;
            }
            machine.kick(CpuId(home as u32));
        }
    }
}
