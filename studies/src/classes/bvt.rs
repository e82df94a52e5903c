//! Borrowed virtual time (Duda and Cheriton, SOSP 1999; one of Xen's schedulers until 3.0.2, xen/common/sched_bvt.c).
//!
//! A thread's actual virtual time A advances as it runs, the slower the greater its weight (here its group's `cpu.weight`):
//! by minimum charging units (mcu, 100 us), of which one begun is counted, in ns of a thread of the default weight. Its
//! effective virtual time E is A, less its warp W while it warps: so much it borrows. The least E runs. It goes on until its
//! E is ahead of the next one's by what it gets in the context-switch allowance C; who wakes with an E that is not greater
//! than that of what runs preempts it. A CPU's scheduler virtual time (SVT) is the least A of what is ready there; who wakes
//! gets A = max(A, SVT), so sleeping saves nothing up. A thread that ran warped for the limit L at a stretch does not warp
//! for the time U. What it borrowed it has to give back, so in the long run weights alone decide.
//!
//! Who warps is the caller's choice, by tenant. In DASEC's comparison (section 6.3) BVT is there to prefer latency-sensitive
//! workloads to best-effort ones: the tenants that answer requests warp, batch tenants do not.
//!
//! Queues are by CPU, with balancing, as in that comparison: there BVT falls behind because "multiple threads with very low
//! rescheduling latencies" are "on the same core", which one queue for all CPUs would not show; and the BVT that it cites
//! for data centers (Leverich and Kozyrakis, EuroSys 2014) is Linux's queues in BVT's order. Xen's code moved no vCPU by
//! itself. Here who wakes gets an idle CPU if there is one, a CPU that idles takes from the one with the most weight, and
//! every 16 ms x CPUs each CPU takes what makes its weight more like the heaviest one's. A thread keeps what it is ahead or
//! behind of SVT when it moves.
//!
//! Not modelled: hierarchies and reservations (section 4 of the paper), Xen's end of warping for good where U = 0, what
//! balancing costs.

use super::queue::{Idlers, Ready};
use quell_model::{CpuId, TenantWeight};
use quell_sim::{Class, Machine, Nanos, Pick, ThreadId};

/// The minimum charging unit.
const MCU: Nanos = 100_000;
/// The token of the balancing timer; those of threads that may warp again are their numbers.
const BALANCE: u32 = u32::MAX;

/// How a tenant's threads warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warp {
    /// W: how much virtual time they borrow; 0: they do not warp.
    pub value: Nanos,
    /// L: for how long a thread may run warped at a stretch; 0: for ever.
    pub limit: Nanos,
    /// U: for how long it does not warp after that.
    pub pause: Nanos,
}

impl Warp {
    /// No warp.
    pub const NONE: Warp = Warp {
        value: 0,
        limit: 0,
        pause: 0,
    };

    /// One with the limits that Xen had by default: 2 s, and 1 s without.
    pub const fn xen(value: Nanos) -> Warp {
        Warp {
            value,
            limit: 2_000_000_000,
            pause: 1_000_000_000,
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Entity {
    avt: i64,
    /// Its CPU time when its stretch on the CPU began.
    began: Nanos,
    /// How many mcu of that stretch are in `avt`.
    charged: Nanos,
    /// Its CPU time since when it runs warped, if it does.
    warped: Nanos,
    /// The CPU in whose queue it is or was.
    home: usize,
    /// It does not warp until then.
    unwarped_until: Nanos,
}

/// A CPU's.
#[derive(Debug)]
struct Queue {
    ready: Ready<i64>,
    svt: i64,
    /// Of what is ready there, what runs included.
    weight: i64,
    /// Somebody woke whose E is not greater than that of what runs.
    preempt: bool,
}

/// The class.
#[derive(Debug)]
pub struct Bvt {
    allowance: Nanos,
    warps: Vec<Warp>,
    entities: Vec<Entity>,
    queues: Vec<Queue>,
    idlers: Idlers,
    waiting: usize,
    rounds: u64,
    /// Who was last moved without making it more even.
    turned: Option<ThreadId>,
    started: bool,
}

fn weight(machine: &Machine, thread: ThreadId) -> i64 {
    let weight = machine.group(machine.thread(thread).group).weight;
    i64::from(weight.0.max(1))
}

/// What `time` of running adds to the virtual time of such a weight.
fn virtual_of(time: Nanos, weight: i64) -> i64 {
    time as i64 * i64::from(TenantWeight::DEFAULT.0) / weight
}

impl Bvt {
    /// C, as in Xen.
    pub const ALLOWANCE: Nanos = 5_000_000;

    /// For a machine of so many CPUs; `warps` are by tenant, those beyond do not warp.
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

    /// Its warp, if it warps now.
    fn warp(&self, machine: &Machine, thread: ThreadId) -> Warp {
        let warp = self.warps.get(machine.thread(thread).tenant);
        match warp {
            Some(&warp) if machine.now >= self.entities[thread.index()].unwarped_until => warp,
            _ => Warp::NONE,
        }
    }

    fn evt(&self, machine: &Machine, thread: ThreadId) -> i64 {
        self.entities[thread.index()].avt - self.warp(machine, thread).value as i64
    }

    /// Brings what runs up to date.
    fn update(&mut self, machine: &Machine, thread: ThreadId) {
        let ran = machine.cpu_time(thread) - self.entities[thread.index()].began;
        let weight = weight(machine, thread);
        let entity = &mut self.entities[thread.index()];
        let units = ran.div_ceil(MCU);
        entity.avt += virtual_of((units - entity.charged) * MCU, weight);
        entity.charged = units;
    }

    /// It waits in the queue of its home.
    fn insert(&mut self, machine: &Machine, thread: ThreadId) {
        let evt = self.evt(machine, thread);
        let home = self.entities[thread.index()].home;
        self.queues[home].ready.insert(evt, thread);
        self.waiting += 1;
    }

    fn remove(&mut self, home: usize, at: usize) -> Option<ThreadId> {
        let thread = self.queues[home].ready.remove(at)?;
        self.waiting -= 1;
        Some(thread)
    }

    /// Brings a CPU's SVT, and what runs there, up to date.
    fn refresh(&mut self, machine: &Machine, index: usize) {
        self.refresh_with(machine, index, machine.cpu(CpuId(index as u32)).current);
    }

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

    /// It is as far ahead or behind there as it was where it comes from.
    fn rehome(&mut self, thread: ThreadId, to: usize) {
        let from = self.entities[thread.index()].home;
        if from == to {
            return;
        }
        self.entities[thread.index()].home = to;
        self.entities[thread.index()].avt += self.queues[to].svt - self.queues[from].svt;
    }

    /// Gives a thread that became ready, or must leave its CPU, a queue, and has that CPU look.
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
        // If it does not preempt, the turn may have to be shorter.
        self.idlers.kick(machine, target);
    }

    /// Takes a thread that waits at another CPU, if `takes` says so of it, its weight and that of all that is ready there: of
    /// the heaviest CPU that has one.
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
            // What waits alone at an idle CPU is about to run there.
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

    fn balance(&mut self, machine: &mut Machine) {
        // Where no move makes it more even, one that turns it around is fair in turn.
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

    /// Those that wait there and may not use it any more go elsewhere.
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

    /// A thread that ran warped for its limit is not warped for a while.
    fn limit_warp(&mut self, machine: &mut Machine, thread: ThreadId) {
        let warp = self.warp(machine, thread);
        let ran = machine.cpu_time(thread) - self.entities[thread.index()].warped;
        if warp.value > 0 && warp.limit > 0 && ran >= warp.limit {
            let until = machine.now + warp.pause;
            self.entities[thread.index()].unwarped_until = until;
            machine.set_timer(until, thread.0);
        }
    }

    /// For how long the thread may run: until its E is ahead of the next one's by the allowance, and not longer warped
    /// than it may be.
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
        // It may warp again.
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
