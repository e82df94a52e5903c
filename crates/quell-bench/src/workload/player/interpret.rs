//! Runs a thread's program step by step.

use super::burn::Burner;
use super::processes::Processes;
use super::sync::{Barrier, Happening, Join, Lock, Queue, RwLock, Semaphore};
use super::{Counts, Ticket};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use nix::unistd::Pid;
use quell_scenario::{Missed, Spawn, Step, ThreadProgram, next_holders_seed, timer_period_ns};
use quell_sys::copies::Copies;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What all threads of a player share.
pub struct Shared {
    socket: OwnedFd,
    counts: Counts,
    /// Starts processes; there where a program starts some.
    copies: Option<Copies>,
    burner: Burner,
    locks: BTreeMap<&'static str, Lock>,
    rwlocks: BTreeMap<&'static str, RwLock>,
    semaphores: BTreeMap<&'static str, Semaphore>,
    events: BTreeMap<&'static str, Happening>,
    barriers: BTreeMap<&'static str, Barrier>,
    /// The time from which the multiples of a timer's period count.
    start: Instant,
    /// Messages, each with its request, if any.
    queues: BTreeMap<&'static str, Queue<Option<Ticket>>>,
    /// Parts of fork-joins that wait for a helper.
    pools: BTreeMap<&'static str, Queue<Part>>,
}

/// One part of a fork-join.
struct Part {
    program: &'static [Step],
    seed: u64,
    join: Arc<Join>,
}

impl Shared {
    /// Makes every lock, barrier, queue and pool that the programs name.
    pub fn new(
        programs: &'static [ThreadProgram],
        cpus: u32,
        socket: OwnedFd,
        counts: Counts,
        copies: Option<Copies>,
    ) -> Shared {
        let mut shared = Shared {
            socket,
            counts,
            copies,
            burner: Burner::calibrate(),
            locks: BTreeMap::new(),
            rwlocks: BTreeMap::new(),
            semaphores: BTreeMap::new(),
            events: BTreeMap::new(),
            barriers: BTreeMap::new(),
            start: Instant::now(),
            queues: BTreeMap::new(),
            pools: BTreeMap::new(),
        };
        let mut barrier_threads: BTreeMap<&'static str, u32> = BTreeMap::new();
        for program in programs {
            let mut barriers = Vec::new();
            shared.find_names(&program.program, &mut barriers);
            barriers.sort_unstable();
            barriers.dedup();
            for name in barriers {
                *barrier_threads.entry(name).or_default() += program.count.on(cpus);
            }
        }
        for (name, threads) in barrier_threads {
            shared.barriers.insert(name, Barrier::new(threads));
        }
        shared
    }

    fn find_names(&mut self, steps: &'static [Step], barriers: &mut Vec<&'static str>) {
        for step in steps {
            match step {
                Step::Lock(critical) => {
                    self.locks.entry(&critical.name).or_insert_with(Lock::new);
                    self.find_names(&critical.program, barriers);
                }
                Step::Read(critical) | Step::Write(critical) => {
                    let name = &critical.name;
                    self.rwlocks.entry(name).or_insert_with(RwLock::new);
                    self.find_names(&critical.program, barriers);
                }
                Step::Acquire(acquire) => {
                    let name = acquire.name.as_str();
                    if let Some(initial) = acquire.initial {
                        self.semaphores.insert(name, Semaphore::new(initial));
                    }
                    let none = || Semaphore::new(0);
                    self.semaphores.entry(name).or_insert_with(none);
                }
                Step::Wait(event)
                | Step::WaitNext(event)
                | Step::Signal(event)
                | Step::Broadcast(event) => {
                    self.events.entry(event).or_insert_with(Happening::new);
                }
                Step::Barrier(name) => barriers.push(name),
                Step::ForkJoin(fork) => {
                    self.pools.entry(&fork.pool).or_insert_with(Queue::new);
                    self.find_names(&fork.program, barriers);
                }
                Step::Help(pool) => {
                    self.pools.entry(pool).or_insert_with(Queue::new);
                }
                Step::Send(queue) | Step::Receive(queue) => {
                    self.queues.entry(queue).or_insert_with(Queue::new);
                }
                Step::Repeat(repeat) => self.find_names(&repeat.program, barriers),
                Step::RunUs(_) | Step::SleepUs(_) | Step::ExchangeUs(_) => {}
                Step::TimerUs(_) | Step::Timer(_) => {}
                Step::Request | Step::Respond => {}
                Step::Release(name) => {
                    let none = || Semaphore::new(0);
                    self.semaphores.entry(name).or_insert_with(none);
                }
                // A process uses nothing of the threads'.
                Step::Spawn(_) => {}
            }
        }
    }

    /// Sends an answer. The process ends when the workload has gone.
    pub fn answer(&self, ticket: Ticket) {
        loop {
            match send(
                self.socket.as_raw_fd(),
                &ticket.to_bytes(),
                MsgFlags::MSG_NOSIGNAL,
            ) {
                Ok(_) => return,
                Err(Errno::EINTR) => {}
                Err(_) => std::process::exit(0),
            }
        }
    }

    /// Waits for the next request. The process ends when the workload has gone.
    fn request(&self, spin: Duration) -> Ticket {
        let mut bytes = [0; Ticket::SIZE];
        let spin_end = (!spin.is_zero()).then(|| Instant::now() + spin);
        loop {
            let spinning = spin_end.is_some_and(|end| Instant::now() < end);
            let flags = if spinning {
                MsgFlags::MSG_DONTWAIT
            } else {
                MsgFlags::empty()
            };
            match recv(self.socket.as_raw_fd(), &mut bytes, flags) {
                Ok(Ticket::SIZE) => return Ticket::from_bytes(bytes),
                Err(Errno::EAGAIN | Errno::EINTR) => std::hint::spin_loop(),
                _ => std::process::exit(0),
            }
        }
    }
}

/// A thread and its state.
pub struct Thread {
    shared: &'static Shared,
    program: &'static ThreadProgram,
    /// The thread's number in the tenant.
    index: u64,
    spin: Duration,
    /// The request that the thread holds.
    ticket: Option<Ticket>,
    rng: ChaCha8Rng,
    burner: Burner,
    /// How many broadcasts of each event the thread has seen.
    seen: BTreeMap<&'static str, u64>,
    /// When each of the thread's timers last ended, in ns since the start.
    timers: BTreeMap<&'static str, u64>,
    /// The innermost lock that the thread holds.
    held: Option<&'static Lock>,
    /// The processes that the thread started.
    processes: Processes,
}

impl Thread {
    /// The `index`th thread of the tenant.
    pub fn new(shared: &'static Shared, program: &'static ThreadProgram, index: u64) -> Thread {
        Thread {
            shared,
            program,
            index,
            spin: Duration::from_nanos((program.spin_us * 1e3) as u64),
            ticket: None,
            rng: ChaCha8Rng::seed_from_u64(index),
            burner: shared.burner,
            seen: BTreeMap::new(),
            timers: BTreeMap::new(),
            held: None,
            processes: Processes::of_thread(),
        }
    }

    /// Repeats the program, as often as the program says or for ever.
    pub fn play(&mut self) {
        self.sleep_until(self.program.delay_ns());
        let mut rounds = 0;
        while self.program.rounds.is_none_or(|it| rounds < it) {
            self.run(&self.program.program);
            self.shared.counts.count_round();
            rounds = rounds.saturating_add(1);
        }
        // Another thread would inherit them.
        self.processes.wait(0, Duration::ZERO, &self.shared.counts);
    }

    /// Sleeps until `end`, in ns after the start; gives the time at which it was called.
    fn sleep_until(&self, end: u64) -> u64 {
        let now = self.shared.start.elapsed().as_nanos() as u64;
        if end > now {
            std::thread::sleep(Duration::from_nanos(end - now));
        }
        now
    }

    fn run(&mut self, steps: &'static [Step]) {
        // Every name below is in the maps: `Shared::new` made everything that programs name.
        let shared = self.shared;
        for step in steps {
            match step {
                Step::RunUs(time) => self.burner.burn(time.draw_ns(|| self.rng.random())),
                Step::SleepUs(time) | Step::ExchangeUs(time) => {
                    let ns = time.draw_ns(|| self.rng.random());
                    std::thread::sleep(Duration::from_nanos(ns));
                }
                Step::TimerUs(period) => {
                    let period = timer_period_ns(*period);
                    let elapsed = shared.start.elapsed().as_nanos() as u64;
                    std::thread::sleep(Duration::from_nanos(period - elapsed % period));
                }
                Step::Timer(timer) => {
                    let start = self.program.delay_ns();
                    let last = *self.timers.get(timer.name.as_str()).unwrap_or(&start);
                    let mut end = last + timer_period_ns(timer.period_us);
                    let now = self.sleep_until(end);
                    if now >= end && timer.missed == Missed::Restart {
                        end = now;
                    }
                    self.timers.insert(&timer.name, end);
                }
                Step::Request => self.hold(Some(shared.request(self.spin))),
                Step::Respond => {
                    if let Some(ticket) = self.ticket.take() {
                        shared.answer(ticket);
                    }
                }
                Step::Lock(critical) => {
                    let lock = &shared.locks[critical.name.as_str()];
                    lock.acquire(self.spin);
                    let outer = self.held.replace(lock);
                    self.run(&critical.program);
                    self.held = outer;
                    lock.release();
                }
                Step::Read(critical) => {
                    let lock = &shared.rwlocks[critical.name.as_str()];
                    lock.read(self.spin);
                    self.run(&critical.program);
                    lock.read_done();
                }
                Step::Write(critical) => {
                    let lock = &shared.rwlocks[critical.name.as_str()];
                    lock.write(self.spin);
                    self.run(&critical.program);
                    lock.write_done();
                }
                Step::Acquire(it) => shared.semaphores[it.name.as_str()].acquire(self.spin),
                Step::Release(name) => shared.semaphores[name.as_str()].release(),
                Step::Wait(name) => {
                    let seen = self.seen.entry(name).or_default();
                    *seen = shared.events[name.as_str()].wait(self.index, *seen, self.spin);
                }
                Step::WaitNext(name) => {
                    let event = &shared.events[name.as_str()];
                    // The thread stands in the line before another thread can take the lock.
                    let place = event.stand();
                    if let Some(lock) = self.held {
                        lock.release();
                    }
                    // The thread has seen a broadcast that let it past: a `wait` after it waits for the next
                    // one.
                    let past = event.wait_at(&place, self.spin);
                    let seen = self.seen.entry(name).or_default();
                    *seen = past.max(*seen);
                    if let Some(lock) = self.held {
                        lock.acquire(self.spin);
                    }
                }
                Step::Signal(name) => shared.events[name.as_str()].signal(self.index),
                Step::Broadcast(name) => shared.events[name.as_str()].broadcast(),
                Step::Barrier(name) => shared.barriers[name.as_str()].wait(self.spin),
                Step::ForkJoin(fork) => {
                    let pool = &shared.pools[fork.pool.as_str()];
                    let join = Arc::new(Join::new(fork.parts - 1));
                    for _ in 1..fork.parts {
                        let seed = self.rng.random();
                        let join = Arc::clone(&join);
                        pool.send(Part {
                            program: &fork.program,
                            seed,
                            join,
                        });
                    }
                    self.run(&fork.program);
                    join.wait(self.spin);
                }
                Step::Help(pool) => {
                    let part = shared.pools[pool.as_str()].receive(self.spin);
                    self.rng = ChaCha8Rng::seed_from_u64(part.seed);
                    self.run(part.program);
                    part.join.part_done();
                }
                Step::Send(queue) => shared.queues[queue.as_str()].send(self.ticket.take()),
                Step::Receive(queue) => {
                    let ticket = shared.queues[queue.as_str()].receive(self.spin);
                    self.hold(ticket);
                }
                Step::Spawn(spawn) => self.spawn(spawn),
                Step::Repeat(repeat) => {
                    for _ in 0..repeat.times {
                        self.run(&repeat.program);
                    }
                }
            }
        }
    }

    /// Starts a process: a copy of this one, of which the calling thread goes on with the step's program. Its
    /// seed is drawn as on the simulator.
    fn spawn(&mut self, spawn: &'static Spawn) {
        let Shared { counts, copies, .. } = self.shared;
        // There, since the program has this step.
        let Some(copies) = copies else { return };
        self.processes.wait(spawn.most - 1, self.spin, counts);
        let seed = self.rng.random();
        let parent = Pid::this();
        let program = &spawn.program;
        // SAFETY: a process does `run_us`, `sleep_us`, `timer_us`, `repeat` and `spawn` only: other steps are
        // refused in a scenario. These read clocks, compute, sleep, fork and wait: no lock, no memory from
        // the heap, no new descriptor. What they use of this process was there before: the programs, the
        // calibrated loop (`Shared::new` has set `EMULATED` of `burn`), the start of timers, and `Counts`,
        // which are atomic. What they change besides, random values and `Processes`, lies in the thread's own
        // state.
        let started = unsafe { copies.start(|| self.be_process(parent, seed, program)) };
        self.processes.add(started);
        if spawn.wait {
            self.processes.wait(0, self.spin, counts);
        }
    }

    /// What a process does that `parent` started.
    fn be_process(&mut self, parent: Pid, seed: u64, program: &'static [Step]) {
        self.rng = ChaCha8Rng::seed_from_u64(seed);
        self.burner = self.shared.burner;
        self.spin = Duration::ZERO;
        self.processes = Processes::of_process(parent);
        self.run(program);
        self.processes.end(&self.shared.counts);
    }

    /// Takes over a request: the times drawn from here on depend on the request alone.
    fn hold(&mut self, ticket: Option<Ticket>) {
        if let Some(mut ticket) = ticket {
            self.rng = ChaCha8Rng::seed_from_u64(ticket.seed);
            ticket.seed = next_holders_seed(ticket.seed);
            self.ticket = Some(ticket);
        }
    }
}
