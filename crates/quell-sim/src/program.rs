//! Scenario programs, compiled: the operations that a simulated thread steps through.
//!
//! Problem: steps nest, and a thread that blocks in the middle of a program must be able to go on there. How:
//! the programs of a tenant become one list of operations, and the position of a thread is an index, a stack
//! of return indices and a stack of loop counters.

use crate::events::Nanos;
use crate::machine::ThreadId;
use quell_scenario::{Count, Missed, Step, ThreadProgram, TimeUs, timer_period_ns};
use std::collections::BTreeMap;

/// The index of an operation in [`Code::ops`].
pub type At = u32;

/// An operation. (It is small, so that a usual program fits in one cache line: see [`Code::times`].)
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    /// Uses CPU time, drawn from [`Code::times`] at this index.
    Run(u32),
    /// Sleeps for a time, drawn from [`Code::times`] at this index.
    Sleep(u32),
    /// Asks the thread's client, which takes a time to reply, drawn from [`Code::times`] at this index.
    Exchange(u32),
    /// Sleeps until the next multiple of this period, in ns.
    Timer(u64),
    /// Sleeps until one period after the timer's last end; the index is into [`Code::alarms`].
    Alarm(u32),
    /// Waits for the tenant's next request.
    Request,
    /// Answers the request that the thread holds.
    Respond,
    /// Takes the lock of this number.
    Acquire(u32),
    /// Releases the lock.
    Release(u32),
    /// Takes the reader-writer lock of this number for reading.
    Read(u32),
    /// Releases the lock, held for reading.
    ReadDone(u32),
    /// Takes the reader-writer lock of this number for writing.
    Write(u32),
    /// Releases the lock, held for writing.
    WriteDone(u32),
    /// Decrements the semaphore of this number, and waits while it is zero.
    Down(u32),
    /// Increments the semaphore.
    Up(u32),
    /// Waits for the event of this number, or passes by an earlier signal or broadcast.
    Wait(u32),
    /// Waits for the event's next signal or broadcast; earlier ones do not count.
    WaitNext(u32),
    /// Signals the event: lets one thread past.
    Signal(u32),
    /// Broadcasts the event: lets each thread past once.
    Broadcast(u32),
    /// Waits at the barrier of this number.
    Barrier(u32),
    /// Puts all parts of a fork-join but one into a pool, and calls the body for the last part.
    Fork {
        /// The number of the pool.
        pool: u32,
        /// The number of parts, the thread's own included.
        parts: u32,
        /// The operation at which a part begins.
        body: At,
    },
    /// Waits for all parts of the thread's last fork.
    Join,
    /// Takes a part out of the pool of this number, and calls its body.
    Help(u32),
    /// Returns to the caller of a part.
    Return,
    /// Starts a process; waits while the thread has `most` processes that have not ended.
    Spawn {
        /// The most processes of the thread at a time, the new one included.
        most: u32,
        /// The operation at which the process begins.
        body: At,
    },
    /// Waits for all processes that the thread started.
    Reap,
    /// Ends the thread.
    Exit,
    /// Puts a message into the queue of this number, with the request that the thread holds.
    Send(u32),
    /// Takes a message out of the queue, with its request.
    Receive(u32),
    /// Uses this much CPU time, in ns.
    Use(Nanos),
    /// Sleeps until this time, in ns, and holds a request that is due then.
    Until(Nanos),
    /// Puts a message into the queue of a recorded thread.
    Wake(ThreadId),
    /// Begins a loop of this many iterations.
    Loop(u32),
    /// Ends an iteration of a loop, whose first operation this is.
    Again(At),
    /// Ends a round of the thread's program, and begins the next at this operation.
    Round(At),
    /// Ends a round of a program with a limited number of rounds.
    Counted,
}

/// The parameters of an [`Op::Alarm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alarm {
    /// The number of the thread's timer.
    pub timer: u32,
    /// The period, in ns.
    pub period: Nanos,
    /// What to do where the end has passed already.
    pub missed: Missed,
}

/// The compiled programs of one tenant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Code {
    /// All operations.
    pub ops: Vec<Op>,
    /// The times, constant or distributed, of the operations.
    pub times: Vec<TimeUs>,
    /// The parameters of the [`Op::Alarm`]s.
    pub alarms: Vec<Alarm>,
    /// The most timers that a thread has.
    pub timers: u32,
    /// The index of each program's first operation.
    pub starts: Vec<At>,
    /// By program, the time from the tenant's start to the threads' start, in ns.
    pub delays: Vec<Nanos>,
    /// By program, its name, how many threads run it, and how many threads the programs before it have.
    pub threads: Vec<(String, Count, u64)>,
    /// The names of the locks, by number.
    pub locks: Vec<String>,
    /// The names of the reader-writer locks, by number.
    pub rwlocks: Vec<String>,
    /// The names of the semaphores, by number, and their initial values.
    pub semaphores: Vec<(String, u32)>,
    /// The names of the events, by number.
    pub events: Vec<String>,
    /// The names of the queues, by number.
    pub queues: Vec<String>,
    /// The names of the pools, by number.
    pub pools: Vec<String>,
    /// The names of the barriers, by number, and how many threads come to each.
    pub barriers: Vec<(String, u32)>,
    /// The tenant is a recorded process: each program has one thread and one queue.
    pub recorded: bool,
}

impl Code {
    /// Compiles checked programs for a machine with `cpus` CPUs.
    pub fn compile(programs: &[ThreadProgram], cpus: u32) -> Code {
        let mut compiler = Compiler::default();
        let mut before = 0;
        for program in programs {
            compiler.coming.clear();
            compiler.timers.clear();
            compiler.code.starts.push(compiler.code.ops.len() as At);
            compiler.code.delays.push(program.delay_ns());
            if program.delay_us > 0.0 {
                let delay = compiler.time(TimeUs::Constant(program.delay_us));
                compiler.code.ops.push(Op::Sleep(delay));
            }
            compiler.code.ops.extend(program.rounds.map(Op::Loop));
            let start = compiler.code.ops.len() as At;
            compiler.steps(&program.program);
            match program.rounds {
                Some(_) => (compiler.code.ops).extend([Op::Counted, Op::Again(start), Op::Exit]),
                None => compiler.code.ops.push(Op::Round(start)),
            }
            compiler.code.timers = compiler.code.timers.max(compiler.timers.len() as u32);
            // The bodies of forks and spawns follow the program that they are in.
            while let Some((at, steps)) = compiler.bodies.pop() {
                let start = compiler.code.ops.len() as At;
                compiler.steps(steps);
                let end = match &mut compiler.code.ops[at] {
                    Op::Spawn { body, .. } => {
                        *body = start;
                        Op::Exit
                    }
                    Op::Fork { body, .. } => {
                        *body = start;
                        Op::Return
                    }
                    _ => Op::Return,
                };
                compiler.code.ops.push(end);
            }
            let threads = program.count.on(cpus);
            compiler.coming.sort_unstable();
            compiler.coming.dedup();
            for &barrier in &compiler.coming {
                compiler.coming_all[barrier as usize] += threads;
            }
            let named = (program.name.clone(), program.count, before);
            compiler.code.threads.push(named);
            before += u64::from(threads);
        }
        let initial = |name: &String| compiler.initial.get(name.as_str()).copied().unwrap_or(0);
        let semaphores = listed(&compiler.semaphores).into_iter();
        let barriers = listed(&compiler.barriers).into_iter();
        Code {
            locks: listed(&compiler.locks),
            rwlocks: listed(&compiler.rwlocks),
            semaphores: semaphores
                .map(|name| (initial(&name), name))
                .map(|(n, name)| (name, n))
                .collect(),
            events: listed(&compiler.events),
            queues: listed(&compiler.queues),
            pools: listed(&compiler.pools),
            barriers: barriers.zip(compiler.coming_all).collect(),
            ..compiler.code
        }
    }

    /// The name of the tenant's thread `index`, which runs this program.
    pub fn thread_name(&self, program: usize, index: u64) -> String {
        match &self.threads[program] {
            (name, Count::Fixed(1), _) => name.clone(),
            (name, _, before) => format!("{name}-{}", index - before),
        }
    }
}

/// Numbers for names, in the order in which the names first occur.
type Names<'a> = BTreeMap<&'a str, u32>;

fn number<'a>(names: &mut Names<'a>, name: &'a str) -> u32 {
    let next = names.len() as u32;
    *names.entry(name).or_insert(next)
}

fn listed(names: &Names<'_>) -> Vec<String> {
    let mut listed = vec![String::new(); names.len()];
    for (name, &number) in names {
        listed[number as usize] = name.to_string();
    }
    listed
}

#[derive(Default)]
struct Compiler<'a> {
    code: Code,
    rwlocks: Names<'a>,
    semaphores: Names<'a>,
    /// The timers of the program that is being compiled.
    timers: Names<'a>,
    /// The innermost lock that is held at the present step.
    held: Option<u32>,
    initial: BTreeMap<&'a str, u32>,
    events: Names<'a>,
    /// By barrier, how many threads come to it.
    coming_all: Vec<u32>,
    locks: Names<'a>,
    queues: Names<'a>,
    pools: Names<'a>,
    barriers: Names<'a>,
    /// The barriers that the program that is being compiled comes to.
    coming: Vec<u32>,
    /// The forks and spawns whose bodies are to be compiled yet: the index of the operation, and the body.
    bodies: Vec<(usize, &'a [Step])>,
}

impl<'a> Compiler<'a> {
    fn time(&mut self, time: TimeUs) -> u32 {
        self.code.times.push(time);
        self.code.times.len() as u32 - 1
    }

    fn steps(&mut self, steps: &'a [Step]) {
        for step in steps {
            match step {
                Step::RunUs(time @ TimeUs::Constant(_)) => {
                    self.code.ops.push(Op::Use(time.draw_ns(|| 0.0)));
                }
                Step::RunUs(time) => {
                    let time = self.time(*time);
                    self.code.ops.push(Op::Run(time));
                }
                Step::SleepUs(time) => {
                    let time = self.time(*time);
                    self.code.ops.push(Op::Sleep(time));
                }
                Step::ExchangeUs(time) => {
                    let time = self.time(*time);
                    self.code.ops.push(Op::Exchange(time));
                }
                Step::Request => self.code.ops.push(Op::Request),
                Step::Respond => self.code.ops.push(Op::Respond),
                Step::Lock(critical) => {
                    let lock = number(&mut self.locks, &critical.name);
                    self.code.ops.push(Op::Acquire(lock));
                    let outer = self.held.replace(lock);
                    self.steps(&critical.program);
                    self.held = outer;
                    self.code.ops.push(Op::Release(lock));
                }
                Step::Read(critical) => {
                    let lock = number(&mut self.rwlocks, &critical.name);
                    self.code.ops.push(Op::Read(lock));
                    self.steps(&critical.program);
                    self.code.ops.push(Op::ReadDone(lock));
                }
                Step::Write(critical) => {
                    let lock = number(&mut self.rwlocks, &critical.name);
                    self.code.ops.push(Op::Write(lock));
                    self.steps(&critical.program);
                    self.code.ops.push(Op::WriteDone(lock));
                }
                Step::TimerUs(period) => {
                    self.code.ops.push(Op::Timer(timer_period_ns(*period)));
                }
                Step::Acquire(acquire) => {
                    let semaphore = number(&mut self.semaphores, &acquire.name);
                    if let Some(initial) = acquire.initial {
                        self.initial.insert(&acquire.name, initial);
                    }
                    self.code.ops.push(Op::Down(semaphore));
                }
                Step::Release(name) => {
                    let semaphore = number(&mut self.semaphores, name);
                    self.code.ops.push(Op::Up(semaphore));
                }
                Step::Wait(name) => {
                    let event = number(&mut self.events, name);
                    self.code.ops.push(Op::Wait(event));
                }
                Step::WaitNext(name) => {
                    let event = number(&mut self.events, name);
                    // The three take no virtual time, so no other thread gets between them.
                    self.code.ops.extend(self.held.map(Op::Release));
                    self.code.ops.push(Op::WaitNext(event));
                    self.code.ops.extend(self.held.map(Op::Acquire));
                }
                Step::Timer(timer) => {
                    let number = number(&mut self.timers, &timer.name);
                    self.code.alarms.push(Alarm {
                        timer: number,
                        period: timer_period_ns(timer.period_us),
                        missed: timer.missed,
                    });
                    let alarm = self.code.alarms.len() as u32 - 1;
                    self.code.ops.push(Op::Alarm(alarm));
                }
                Step::Signal(name) => {
                    let event = number(&mut self.events, name);
                    self.code.ops.push(Op::Signal(event));
                }
                Step::Broadcast(name) => {
                    let event = number(&mut self.events, name);
                    self.code.ops.push(Op::Broadcast(event));
                }
                Step::Barrier(name) => {
                    let barrier = number(&mut self.barriers, name);
                    self.coming_all.resize(self.barriers.len(), 0);
                    self.coming.push(barrier);
                    self.code.ops.push(Op::Barrier(barrier));
                }
                Step::ForkJoin(fork) => {
                    self.bodies.push((self.code.ops.len(), &fork.program));
                    self.code.ops.push(Op::Fork {
                        pool: number(&mut self.pools, &fork.pool),
                        parts: fork.parts,
                        body: At::MAX,
                    });
                    self.code.ops.push(Op::Join);
                }
                Step::Help(pool) => {
                    let pool = number(&mut self.pools, pool);
                    self.code.ops.push(Op::Help(pool));
                }
                Step::Send(queue) => {
                    let queue = number(&mut self.queues, queue);
                    self.code.ops.push(Op::Send(queue));
                }
                Step::Receive(queue) => {
                    let queue = number(&mut self.queues, queue);
                    self.code.ops.push(Op::Receive(queue));
                }
                Step::Spawn(spawn) => {
                    self.bodies.push((self.code.ops.len(), &spawn.program));
                    self.code.ops.push(Op::Spawn {
                        most: spawn.most,
                        body: At::MAX,
                    });
                    if spawn.wait {
                        self.code.ops.push(Op::Reap);
                    }
                }
                Step::Repeat(repeat) => {
                    self.code.ops.push(Op::Loop(repeat.times));
                    let first = self.code.ops.len() as At;
                    self.steps(&repeat.program);
                    self.code.ops.push(Op::Again(first));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_scenario::Scenario;
    use std::path::Path;

    #[test]
    fn nested_steps_become_one_list() {
        let text = r#"
            name = "t"
            [[tenant]]
            name = "a"
            load = { rate = 1.0 }
            [[tenant.thread]]
            name = "main"
            program = ["request", { repeat = { times = 2, program = [
                { lock = { name = "l", program = [{ run_us = 1 }] } } ] } },
                { fork_join = { pool = "p", parts = 3, program = [{ run_us = 2 }] } },
                { barrier = "b" }, "respond"]
            [[tenant.thread]]
            name = "helper"
            count = 2
            program = [{ help = "p" }, { lock = { name = "l", program = [{ run_us = 3 }] } }, { barrier = "b" }]
        "#;
        let scenario = Scenario::parse(Path::new("t.toml"), text).unwrap();
        let code = Code::compile(&scenario.tenants[0].threads, 8);
        let us = |us: Nanos| Op::Use(us * 1000);
        let fork = Op::Fork {
            pool: 0,
            parts: 3,
            body: 11,
        };
        let expected = [
            Op::Request,
            Op::Loop(2),
            Op::Acquire(0),
            us(1),
            Op::Release(0),
            Op::Again(2),
            fork,
            Op::Join,
            Op::Barrier(0),
            Op::Respond,
            Op::Round(0),
            us(2),
            Op::Return,
            Op::Help(0),
            Op::Acquire(0),
            us(3),
            Op::Release(0),
            Op::Barrier(0),
            Op::Round(13),
        ];
        assert_eq!(code.ops, expected);
        assert_eq!(code.starts, [0, 13]);
        assert_eq!(code.barriers, [("b".to_string(), 3)]);
        assert_eq!(
            (code.locks.len(), code.queues.len(), code.pools.len()),
            (1, 0, 1)
        );
        assert_eq!(
            (code.thread_name(0, 0), code.thread_name(1, 2)),
            ("main".into(), "helper-1".into())
        );
    }
}
