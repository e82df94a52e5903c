//! What threads do: scenario programs on simulated locks, barriers, queues, pools and requests.
//!
//! Problem: the same scenario runs on real threads (quell-bench's player) and here, and threads must do the
//! same work and wait for the same things in both. How: the operations and their meaning are the same. An
//! object has a list of waiters; the thread that changes the object wakes the first blocked waiter and lets
//! all spinning waiters look. A woken thread looks again when it runs, and may find that another thread was
//! faster; a signal of an event is for a thread that waits already, so no other thread can take it. Random
//! values depend on a request's own seed in the same way as in the player.

mod deadlock;

use crate::events::Nanos;
use crate::machine::ThreadId;
use crate::program::{At, Code, Op};
use quell_scenario::{Missed, QUEUE_CAPACITY, next_holders_seed};
use rand::distr::{Distribution, StandardUniform};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, VecDeque};

/// The requests of a tenant, in the order of the times at which they are due.
pub type Load = Box<dyn Iterator<Item = Request>>;

/// A request to a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// When the request is due, in ns.
    pub due: Nanos,
    /// The seed of the random values of the request's work.
    pub seed: u64,
}

/// An answered request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The index of the tenant.
    pub tenant: usize,
    /// When the request was due, in ns.
    pub due: Nanos,
    /// When the request was answered, in ns.
    pub at: Nanos,
}

/// What a thread does until its next step; times in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Uses CPU time: this much.
    Run(Nanos),
    /// Spins: uses CPU time until the object may have changed, at most this long.
    Spin(Nanos),
    /// Sleeps for this long.
    Sleep(Nanos),
    /// Asks its client, which takes this long to reply.
    Exchange(Nanos),
    /// Waits until it is woken.
    Block,
    /// Ends, and takes no further step.
    Exit,
}

/// The effects of a thread's step, or of an arrival, on other threads.
#[derive(Debug, Default)]
pub struct Effects {
    /// The threads of processes that the thread started. They are in `woken` too.
    pub born: Vec<ThreadId>,
    /// Blocked threads to wake, in this order, each with the time at which the request was due that it is
    /// woken for; `None`: it goes on with the request that it works for.
    pub woken: Vec<(ThreadId, Option<Nanos>)>,
    /// Spinning threads that are to look at their objects.
    pub poked: Vec<ThreadId>,
    /// The requests that the thread answered.
    pub answers: Vec<Answer>,
}

/// A FIFO queue. The first item is stored in place: most queues hold one at most, and then no other memory is
/// touched.
#[derive(Debug)]
struct Line<T> {
    first: Option<T>,
    /// The items behind the first; empty if there is no first.
    rest: VecDeque<T>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Line {
            first: None,
            rest: VecDeque::new(),
        }
    }
}

impl<T> Line<T> {
    fn push(&mut self, item: T) {
        if self.first.is_none() {
            self.first = Some(item);
        } else {
            self.rest.push_back(item);
        }
    }

    fn pop(&mut self) -> Option<T> {
        let item = self.first.take()?;
        if !self.rest.is_empty() {
            self.first = self.rest.pop_front();
        }
        Some(item)
    }

    fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }
}

/// The threads that wait for one object.
#[derive(Debug, Default)]
struct Waiters {
    blocked: Line<ThreadId>,
    spinning: Vec<ThreadId>,
}

impl Waiters {
    fn signal(&mut self, due: Option<Nanos>, effects: &mut Effects) {
        effects.poked.append(&mut self.spinning);
        effects
            .woken
            .extend(self.blocked.pop().map(|thread| (thread, due)));
    }

    fn signal_all(&mut self, effects: &mut Effects) {
        effects.poked.append(&mut self.spinning);
        let blocked = std::iter::from_fn(|| self.blocked.pop());
        effects.woken.extend(blocked.map(|thread| (thread, None)));
    }
}

#[derive(Debug, Default)]
struct Lock {
    holder: Option<ThreadId>,
    waiters: Waiters,
}

/// A reader-writer lock; a waiting writer keeps new readers out.
#[derive(Debug, Default)]
struct RwLock {
    readers: Vec<ThreadId>,
    writer: Option<ThreadId>,
    /// The writers that wait.
    writers: Vec<ThreadId>,
    waiters: Waiters,
}

#[derive(Debug, Default)]
struct Semaphore {
    count: u64,
    waiters: Waiters,
}

#[derive(Debug, Default)]
struct Happening {
    /// By the thread that gave them, signals that no thread has taken, since none waited; only other threads
    /// may take them.
    signals: BTreeMap<ThreadId, u64>,
    /// The number of broadcasts so far.
    broadcasts: u64,
    /// The waiting threads, the one that has waited longest first, and whether each is blocked (or spins).
    line: VecDeque<(ThreadId, bool)>,
}

impl Happening {
    /// Whether a kept signal is for the thread.
    fn has_signal_for(&self, thread: ThreadId) -> bool {
        self.signals.keys().any(|&by| by != thread)
    }

    /// Takes a kept signal for the thread, if there is one.
    fn take_signal(&mut self, thread: ThreadId) -> bool {
        let Some((&by, count)) = self.signals.iter_mut().find(|it| *it.0 != thread) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            self.signals.remove(&by);
        }
        true
    }

    /// Takes the thread that has waited longest out of the line: the thread may pass.
    fn let_past(&mut self, effects: &mut Effects) -> Option<ThreadId> {
        let (thread, blocked) = self.line.pop_front()?;
        match blocked {
            true => effects.woken.push((thread, None)),
            false => effects.poked.push(thread),
        }
        Some(thread)
    }
}

#[derive(Debug, Default)]
struct Barrier {
    come: u32,
    /// How many threads have to come to the barrier.
    parties: u32,
    round: u64,
    waiters: Waiters,
}

#[derive(Debug)]
struct Queue<T> {
    items: Line<T>,
    receivers: Waiters,
    senders: Waiters,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue {
            items: Line::default(),
            receivers: Waiters::default(),
            senders: Waiters::default(),
        }
    }
}

impl<T> Queue<T> {
    fn put(&mut self, item: T, due: Option<Nanos>, effects: &mut Effects) {
        self.items.push(item);
        self.receivers.signal(due, effects);
    }

    fn take(&mut self, effects: &mut Effects) -> Option<T> {
        let was_full = self.items.len() >= QUEUE_CAPACITY;
        let item = self.items.pop()?;
        if was_full {
            self.senders.signal_all(effects);
        }
        Some(item)
    }
}

/// A part of a fork-join.
#[derive(Debug, Clone, Copy)]
struct Part {
    body: At,
    seed: u64,
    /// The thread that forked it.
    parent: ThreadId,
    /// When the request that the part belongs to was due, if there is one.
    due: Option<Nanos>,
}

/// A tenant's shared objects, first the ones that each request needs. (The layout is for speed: with
/// thousands of threads most time goes into cache misses on memory that a thread touched long ago, so fields
/// that are used together lie together.)
#[derive(Debug)]
#[repr(C, align(64))]
struct Tenant {
    rounds: u64,
    requests: Queue<Request>,
    locks: Vec<Lock>,
    rwlocks: Vec<RwLock>,
    semaphores: Vec<Semaphore>,
    events: Vec<Happening>,
    barriers: Vec<Barrier>,
    queues: Vec<Queue<Option<Request>>>,
    pools: Vec<Queue<Part>>,
    /// The index of the tenant's first operation among all.
    base: At,
}

/// The object that a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    Requests,
    Lock(u32),
    Read(u32),
    Write(u32),
    Semaphore(u32),
    Event(u32),
    NextEvent(u32),
    Barrier(u32),
    Receive(u32),
    Send(u32),
    Pool(u32),
    Join,
    Processes,
}

/// The random values of a thread. The generator is seeded anew for each request, and most requests draw
/// nothing: so the seeding waits for the first draw.
#[derive(Debug)]
struct Draws {
    seed: u64,
    seeded: bool,
    /// Boxed, because it is as large as everything else of a thread.
    rng: Option<Box<ChaCha8Rng>>,
}

impl Draws {
    fn new(seed: u64) -> Draws {
        Draws {
            seed,
            seeded: false,
            rng: None,
        }
    }

    fn reseed(&mut self, seed: u64) {
        self.seed = seed;
        self.seeded = false;
    }

    fn random<T>(&mut self) -> T
    where
        StandardUniform: Distribution<T>,
    {
        let seed = || ChaCha8Rng::seed_from_u64(self.seed);
        let rng = self.rng.get_or_insert_with(|| Box::new(seed()));
        if !std::mem::replace(&mut self.seeded, true) {
            **rng = seed();
        }
        rng.random()
    }
}

/// The state of a thread that most steps need, in two cache lines.
#[derive(Debug)]
#[repr(align(64))]
struct Frame {
    tenant: usize,
    /// The index of the tenant's first operation among all, and of the thread's next operation in the tenant.
    base: At,
    at: At,
    spin: Nanos,
    /// How long the thread still spins before it blocks, in ns; `None`: it does not wait.
    spin_left: Option<Nanos>,
    held: Option<Request>,
    /// When the request that the thread works for was due, held or as a part of a fork-join.
    works_for: Option<Nanos>,
    draws: Draws,
    /// The object that the thread waits for, if it waits.
    waits: Option<Object>,
}

/// The rest of a thread's state.
#[derive(Debug)]
struct Stack {
    returns: Vec<At>,
    turns: Vec<u32>,
    /// The thread that forked the part that this thread does.
    parent: Option<ThreadId>,
    /// How many parts of this thread's own fork-join are not done.
    parts_left: u32,
    join: Waiters,
    /// The parent of the process that the thread is, and how many processes that the thread itself started
    /// have not ended.
    started_by: Option<ThreadId>,
    processes: u32,
    /// The thread itself, while it waits for a process of its own to end.
    reaps: Waiters,
    /// The round of the barrier that the thread came to.
    came: Option<u64>,
    /// By event of the tenant, how many broadcasts the thread has seen.
    seen: Vec<u64>,
    /// The event that the thread waited for has let it past.
    past: bool,
    /// When each of the thread's timers last ended, in ns.
    timers: Vec<Nanos>,
    /// The program that the thread runs, by its number among the tenant's programs.
    program: usize,
    /// The number of the thread among the tenant's threads.
    index: u64,
}

/// All tenants and the states of their threads.
#[derive(Debug, Default)]
pub struct Workload {
    tenants: Vec<Tenant>,
    /// By tenant, the compiled programs without their operations, which are in `ops` for all tenants.
    codes: Vec<Code>,
    ops: Vec<Op>,
    /// By thread.
    frames: Vec<Frame>,
    stacks: Vec<Stack>,
    /// A thread whose program has repeated in no time without end.
    endless: Option<ThreadId>,
}

/// A program that repeats this often in no time is taken for endless. Work that takes no time by chance, such
/// as filling a queue, ends earlier.
const ENDLESS_ROUNDS: u64 = 1_000_000;

impl Workload {
    /// Adds a tenant and returns its index.
    pub fn add_tenant(&mut self, mut code: Code) -> usize {
        fn some<T: Default>(count: usize) -> Vec<T> {
            std::iter::repeat_with(T::default).take(count).collect()
        }
        self.tenants.push(Tenant {
            requests: Queue::default(),
            locks: some(code.locks.len()),
            rwlocks: some(code.rwlocks.len()),
            semaphores: code
                .semaphores
                .iter()
                .map(|&(_, initial)| Semaphore {
                    count: initial.into(),
                    waiters: Waiters::default(),
                })
                .collect(),
            events: some(code.events.len()),
            barriers: code
                .barriers
                .iter()
                .map(|&(_, parties)| Barrier {
                    parties,
                    ..Barrier::default()
                })
                .collect(),
            queues: some(code.queues.len()),
            pools: some(code.pools.len()),
            rounds: 0,
            base: self.ops.len() as At,
        });
        self.ops.append(&mut code.ops);
        self.codes.push(code);
        self.tenants.len() - 1
    }

    /// The operations of a tenant's program, the bodies of its forks included.
    fn ops_of(&self, tenant: usize, program: usize) -> &[Op] {
        let (base, starts) = (self.tenants[tenant].base, &self.codes[tenant].starts);
        let end = match starts.get(program + 1) {
            Some(start) => (base + start) as usize,
            None => (self.tenants.get(tenant + 1)).map_or(self.ops.len(), |it| it.base as usize),
        };
        &self.ops[(base + starts[program]) as usize..end]
    }

    /// Adds the thread `index` of a tenant, which runs the program of number `program` and spins for `spin`
    /// ns before it blocks. Threads are numbered in the order in which they are added.
    pub fn add_thread(&mut self, tenant: usize, program: usize, index: u64, spin: Nanos) {
        self.frames.push(Frame {
            tenant,
            base: self.tenants[tenant].base,
            at: self.codes[tenant].starts[program],
            spin,
            spin_left: None,
            held: None,
            works_for: None,
            draws: Draws::new(index),
            waits: None,
        });
        self.stacks.push(Stack {
            returns: Vec::new(),
            turns: Vec::new(),
            parent: None,
            parts_left: 0,
            join: Waiters::default(),
            started_by: None,
            processes: 0,
            reaps: Waiters::default(),
            came: None,
            seen: vec![0; self.tenants[tenant].events.len()],
            past: false,
            timers: vec![self.codes[tenant].delays[program]; self.codes[tenant].timers as usize],
            program,
            index,
        });
    }

    /// Adds the thread of a process that `parent` starts; the thread begins at the operation `at`.
    fn add_process(&mut self, parent: ThreadId, at: At, seed: u64) -> ThreadId {
        let child = ThreadId(self.frames.len() as u32);
        let tenant = self.frames[parent.index()].tenant;
        let (program, index) = {
            let of = &mut self.stacks[parent.index()];
            of.processes += 1;
            (of.program, of.index)
        };
        self.add_thread(tenant, program, index, 0);
        let frame = &mut self.frames[child.index()];
        frame.at = at;
        frame.draws.reseed(seed);
        self.stacks[child.index()].started_by = Some(parent);
        child
    }

    /// A process ends: wakes its parent if that waits for it.
    fn end_process(&mut self, thread: ThreadId, effects: &mut Effects) {
        let Some(parent) = self.stacks[thread.index()].started_by else {
            return;
        };
        let parent = &mut self.stacks[parent.index()];
        parent.processes -= 1;
        parent.reaps.signal(None, effects);
    }

    /// Adds a recorded thread, which waits for its first wakeup. The thread runs the program of its own
    /// number in the process.
    pub fn add_recorded(&mut self, tenant: usize, program: usize) {
        let thread = ThreadId(self.frames.len() as u32);
        self.add_thread(tenant, program, program as u64, 0);
        let start = self.codes[tenant].starts[program];
        self.wait(thread, start, Object::Receive(program as u32));
    }

    /// Wakes a recorded thread, now or when it next waits.
    pub fn wake(&mut self, thread: ThreadId, now: Nanos, effects: &mut Effects) {
        let tenant = self.frames[thread.index()].tenant;
        let wakeup = Request { due: now, seed: 0 };
        let own = &mut self.tenants[tenant].queues[self.stacks[thread.index()].program];
        own.put(Some(wakeup), Some(now), effects);
    }

    /// A request arrives at a tenant.
    pub fn arrive(&mut self, tenant: usize, request: Request, effects: &mut Effects) {
        let due = Some(request.due);
        self.tenants[tenant].requests.put(request, due, effects);
    }

    /// The number of rounds of their programs that a tenant's threads have done.
    pub fn rounds(&self, tenant: usize) -> u64 {
        self.tenants[tenant].rounds
    }

    /// The requests without an answer, waiting, held or in a message: the tenant's index, and when the
    /// request was due.
    pub fn unanswered(&self) -> impl Iterator<Item = (usize, Nanos)> + '_ {
        let tenants = self.tenants.iter().enumerate();
        let waiting = tenants.flat_map(|(number, tenant)| {
            let messages = tenant.queues.iter().flat_map(|queue| queue.items.iter());
            let requests = tenant.requests.items.iter().chain(messages.flatten());
            requests.map(move |request| (number, request.due))
        });
        let held = |frame: &Frame| Some((frame.tenant, frame.held?.due));
        waiting.chain(self.frames.iter().filter_map(held))
    }

    /// When the request that a thread works for was due; `None`: it works for none.
    pub fn works_for(&self, thread: ThreadId) -> Option<Nanos> {
        self.frames[thread.index()].works_for
    }

    /// Goes on with a running thread that has used the CPU time, slept or spun as the last step said. The
    /// step takes no virtual time; what the thread does next is returned.
    pub fn step(&mut self, thread: ThreadId, now: Nanos, effects: &mut Effects) -> Next {
        let tenant = self.frames[thread.index()].tenant;
        let before = self.tenants[tenant].rounds;
        loop {
            if let Some(next) = self.step_once(thread, now, effects) {
                return next;
            }
            if self.tenants[tenant].rounds - before > ENDLESS_ROUNDS {
                self.endless = Some(thread);
                return Next::Block;
            }
        }
    }

    fn step_once(&mut self, thread: ThreadId, now: Nanos, effects: &mut Effects) -> Option<Next> {
        let frame = &mut self.frames[thread.index()];
        let tenant = &mut self.tenants[frame.tenant];
        let op = self.ops[(frame.base + frame.at) as usize];
        let at = frame.at;
        frame.at += 1;
        match op {
            // At least 1 ns: a loop of steps that take no time would stop the clock.
            Op::Run(time) => {
                let time = &self.codes[frame.tenant].times[time as usize];
                return Some(Next::Run(time.draw_ns(|| frame.draws.random()).max(1)));
            }
            Op::Sleep(time) => {
                let time = &self.codes[frame.tenant].times[time as usize];
                return Some(Next::Sleep(time.draw_ns(|| frame.draws.random()).max(1)));
            }
            Op::Exchange(time) => {
                let time = &self.codes[frame.tenant].times[time as usize];
                let takes = time.draw_ns(|| frame.draws.random()).max(1);
                return Some(Next::Exchange(takes));
            }
            Op::Timer(period) => return Some(Next::Sleep(period - now % period)),
            Op::Alarm(alarm) => {
                let alarm = self.codes[frame.tenant].alarms[alarm as usize];
                let end = &mut self.stacks[thread.index()].timers[alarm.timer as usize];
                *end += alarm.period;
                if *end > now {
                    return Some(Next::Sleep(*end - now));
                }
                if alarm.missed == Missed::Restart {
                    *end = now;
                }
            }
            Op::Request => match tenant.requests.take(effects) {
                Some(request) => frame.hold(Some(request)),
                None => return Some(self.wait(thread, at, Object::Requests)),
            },
            Op::Respond => {
                frame.works_for = None;
                if let Some(request) = frame.held.take() {
                    effects.answers.push(Answer {
                        tenant: frame.tenant,
                        due: request.due,
                        at: now,
                    });
                }
            }
            Op::Acquire(lock) => {
                let holder = &mut tenant.locks[lock as usize].holder;
                if holder.is_some() {
                    return Some(self.wait(thread, at, Object::Lock(lock)));
                }
                *holder = Some(thread);
            }
            Op::Release(lock) => {
                let lock = &mut tenant.locks[lock as usize];
                lock.holder = None;
                lock.waiters.signal(None, effects);
            }
            Op::Read(number) => {
                let lock = &mut tenant.rwlocks[number as usize];
                if lock.writer.is_some() || !lock.writers.is_empty() {
                    return Some(self.wait(thread, at, Object::Read(number)));
                }
                lock.readers.push(thread);
            }
            Op::ReadDone(number) => {
                let lock = &mut tenant.rwlocks[number as usize];
                lock.readers.retain(|&reader| reader != thread);
                lock.waiters.signal_all(effects);
            }
            Op::Write(number) => {
                let lock = &mut tenant.rwlocks[number as usize];
                if lock.writer.is_some() || !lock.readers.is_empty() {
                    if !lock.writers.contains(&thread) {
                        lock.writers.push(thread);
                    }
                    return Some(self.wait(thread, at, Object::Write(number)));
                }
                lock.writers.retain(|&writer| writer != thread);
                lock.writer = Some(thread);
            }
            Op::WriteDone(number) => {
                let lock = &mut tenant.rwlocks[number as usize];
                lock.writer = None;
                lock.waiters.signal_all(effects);
            }
            Op::Down(number) => {
                let semaphore = &mut tenant.semaphores[number as usize];
                match semaphore.count.checked_sub(1) {
                    Some(left) => semaphore.count = left,
                    None => return Some(self.wait(thread, at, Object::Semaphore(number))),
                }
            }
            Op::Up(number) => {
                let semaphore = &mut tenant.semaphores[number as usize];
                semaphore.count += 1;
                semaphore.waiters.signal(None, effects);
            }
            Op::Wait(number) => {
                let event = &mut tenant.events[number as usize];
                let stack = &mut self.stacks[thread.index()];
                let seen = &mut stack.seen[number as usize];
                if std::mem::take(&mut stack.past) {
                } else if *seen < event.broadcasts {
                    *seen = event.broadcasts;
                } else if !event.take_signal(thread) {
                    return Some(self.wait(thread, at, Object::Event(number)));
                }
            }
            Op::WaitNext(number) => {
                if !std::mem::take(&mut self.stacks[thread.index()].past) {
                    return Some(self.wait(thread, at, Object::NextEvent(number)));
                }
            }
            Op::Signal(number) => {
                let event = &mut tenant.events[number as usize];
                match event.let_past(effects) {
                    Some(first) => self.stacks[first.index()].past = true,
                    None => *event.signals.entry(thread).or_default() += 1,
                }
            }
            Op::Broadcast(number) => {
                let event = &mut tenant.events[number as usize];
                event.broadcasts += 1;
                while let Some(first) = event.let_past(effects) {
                    let stack = &mut self.stacks[first.index()];
                    stack.past = true;
                    stack.seen[number as usize] = event.broadcasts;
                }
            }
            Op::Barrier(number) => {
                let barrier = &mut tenant.barriers[number as usize];
                let came = &mut self.stacks[thread.index()].came;
                match *came {
                    None => {
                        barrier.come += 1;
                        if barrier.come < barrier.parties {
                            *came = Some(barrier.round);
                            return Some(self.wait(thread, at, Object::Barrier(number)));
                        }
                        barrier.come = 0;
                        barrier.round += 1;
                        barrier.waiters.signal_all(effects);
                    }
                    Some(round) if round == barrier.round => {
                        return Some(self.wait(thread, at, Object::Barrier(number)));
                    }
                    Some(_) => *came = None,
                }
            }
            Op::Fork { pool, parts, body } => {
                let stack = &mut self.stacks[thread.index()];
                stack.parts_left = parts - 1;
                for _ in 1..parts {
                    let part = Part {
                        body,
                        seed: frame.draws.random(),
                        parent: thread,
                        due: frame.works_for,
                    };
                    tenant.pools[pool as usize].put(part, part.due, effects);
                }
                stack.returns.push(frame.at);
                frame.at = body;
            }
            Op::Join => {
                if self.stacks[thread.index()].parts_left > 0 {
                    return Some(self.wait(thread, at, Object::Join));
                }
            }
            Op::Help(pool) => match tenant.pools[pool as usize].take(effects) {
                Some(part) => {
                    frame.draws.reseed(part.seed);
                    frame.works_for = part.due;
                    let stack = &mut self.stacks[thread.index()];
                    stack.parent = Some(part.parent);
                    stack.returns.push(frame.at);
                    frame.at = part.body;
                }
                None => return Some(self.wait(thread, at, Object::Pool(pool))),
            },
            Op::Return => {
                let stack = &mut self.stacks[thread.index()];
                if let Some(back) = stack.returns.pop() {
                    frame.at = back;
                }
                if let Some(parent) = stack.parent.take() {
                    frame.works_for = None;
                    let parent = &mut self.stacks[parent.index()];
                    parent.parts_left -= 1;
                    if parent.parts_left == 0 {
                        parent.join.signal(None, effects);
                    }
                }
            }
            Op::Spawn { most, body } => {
                if self.stacks[thread.index()].processes >= most {
                    return Some(self.wait(thread, at, Object::Processes));
                }
                let seed = frame.draws.random();
                let child = self.add_process(thread, body, seed);
                effects.born.push(child);
                effects.woken.push((child, None));
            }
            Op::Reap => {
                if self.stacks[thread.index()].processes > 0 {
                    return Some(self.wait(thread, at, Object::Processes));
                }
            }
            Op::Exit => {
                self.end_process(thread, effects);
                return Some(Next::Exit);
            }
            Op::Send(number) => {
                let queue = &mut tenant.queues[number as usize];
                if queue.items.len() >= QUEUE_CAPACITY {
                    return Some(self.wait(thread, at, Object::Send(number)));
                }
                let message = frame.held.take();
                queue.put(message, message.map(|request| request.due), effects);
                frame.works_for = None;
            }
            Op::Receive(number) => match tenant.queues[number as usize].take(effects) {
                Some(request) => frame.hold(request),
                None => return Some(self.wait(thread, at, Object::Receive(number))),
            },
            Op::Use(time) => return Some(Next::Run(time.max(1))),
            Op::Until(due) => {
                frame.hold(Some(Request { due, seed: 0 }));
                if due > now {
                    return Some(Next::Sleep(due - now));
                }
            }
            Op::Wake(other) => self.wake(other, now, effects),
            Op::Loop(times) => self.stacks[thread.index()].turns.push(times),
            Op::Again(first) => {
                let turns = &mut self.stacks[thread.index()].turns;
                if let Some(left) = turns.last_mut() {
                    *left -= 1;
                    if *left > 0 {
                        frame.at = first;
                    } else {
                        turns.pop();
                    }
                }
            }
            Op::Round(start) => {
                frame.at = start;
                tenant.rounds += 1;
            }
            Op::Counted => tenant.rounds += 1,
        }
        // The thread has what it waited for, if it waited.
        let frame = &mut self.frames[thread.index()];
        (frame.spin_left, frame.waits) = (None, None);
        None
    }

    /// Makes a thread wait for an object: it comes back to the operation `at` when the object may have
    /// changed. It spins first, if it has spinning left, and then blocks.
    fn wait(&mut self, thread: ThreadId, at: At, object: Object) -> Next {
        let frame = &mut self.frames[thread.index()];
        frame.at = at;
        frame.waits = Some(object);
        let spins = frame.spin_left.replace(0).unwrap_or(frame.spin);
        let tenant = &mut self.tenants[frame.tenant];
        let next = if spins > 0 {
            Next::Spin(spins)
        } else {
            Next::Block
        };
        let waiters = match object {
            Object::Event(number) | Object::NextEvent(number) => {
                let line = &mut tenant.events[number as usize].line;
                let blocked = spins == 0;
                match line.iter_mut().find(|it| it.0 == thread) {
                    Some(own) => own.1 = blocked,
                    None => line.push_back((thread, blocked)),
                }
                return next;
            }
            Object::Requests => &mut tenant.requests.receivers,
            Object::Lock(number) => &mut tenant.locks[number as usize].waiters,
            Object::Read(number) | Object::Write(number) => {
                &mut tenant.rwlocks[number as usize].waiters
            }
            Object::Semaphore(number) => &mut tenant.semaphores[number as usize].waiters,
            Object::Barrier(number) => &mut tenant.barriers[number as usize].waiters,
            Object::Receive(number) => &mut tenant.queues[number as usize].receivers,
            Object::Send(number) => &mut tenant.queues[number as usize].senders,
            Object::Pool(number) => &mut tenant.pools[number as usize].receivers,
            Object::Join => &mut self.stacks[thread.index()].join,
            Object::Processes => &mut self.stacks[thread.index()].reaps,
        };
        waiters.spinning.retain(|&other| other != thread);
        if spins > 0 {
            waiters.spinning.push(thread);
        } else {
            waiters.blocked.push(thread);
        }
        next
    }

    /// Makes a spinning thread look, with `left` ns of its spinning left.
    pub fn spun(&mut self, thread: ThreadId, left: Nanos) {
        self.frames[thread.index()].spin_left = Some(left);
    }
}

impl Frame {
    /// Takes over a request: random values from here on depend on the request alone.
    fn hold(&mut self, request: Option<Request>) {
        if let Some(mut request) = request {
            self.draws.reseed(request.seed);
            request.seed = next_holders_seed(request.seed);
            self.held = Some(request);
            self.works_for = Some(request.due);
        }
    }
}
