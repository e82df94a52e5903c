//! Scenario programs, flattened: what a simulated thread steps through.
//!
//! Steps nest; a thread that blocks in the middle must be able to go on there. So a tenant's programs become one
//! list of operations, and where a thread stands is an index, a stack of return indices and one of loop counters.

use crate::events::Nanos;
use crate::machine::ThreadId;
use quell_scenario::{Count, Missed, Step, ThreadProgram, TimeUs, timer_period_ns};
use std::collections::BTreeMap;

/// Index of an operation in [`Code::ops`].
pub type At = u32;

/// One operation. (It is small, so that a usual program is one line of a cache: see [`Code::times`].)
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    /// Uses CPU time, which is drawn from that of the times.
    Run(u32),
    /// Sleeps for so long.
    Sleep(u32),
    /// Asks its client, who takes so long to reply.
    Exchange(u32),
    /// Sleeps until the next multiple of this, in ns.
    Timer(u64),
    /// Sleeps until a period after the timer's last end: see [`Code::alarms`].
    Alarm(u32),
    /// Waits for the tenant's next request.
    Request,
    /// Answers the request it holds.
    Respond,
    /// Takes a lock.
    Acquire(u32),
    /// Gives it back.
    Release(u32),
    /// Takes a reader-writer lock for reading.
    Read(u32),
    /// Gives it back.
    ReadDone(u32),
    /// Takes one for writing.
    Write(u32),
    /// Gives it back.
    WriteDone(u32),
    /// Takes one from a semaphore.
    Down(u32),
    /// Adds one to it.
    Up(u32),
    /// Waits for an event.
    Wait(u32),
    /// Waits for what comes of it from now on.
    WaitNext(u32),
    /// Lets one thread past.
    Signal(u32),
    /// Lets each thread past once.
    Broadcast(u32),
    /// Waits at a barrier.
    Barrier(u32),
    /// Puts all parts but one into a pool, and calls the part's program for its own.
    Fork {
        /// The pool.
        pool: u32,
        /// How many parts, its own among them.
        parts: u32,
        /// Where a part's program begins.
        body: At,
    },
    /// Waits for the parts of the fork before.
    Join,
    /// Takes a part out of a pool and calls its program.
    Help(u32),
    /// Returns to where the part was called from.
    Return,
    /// Starts a process that begins there, where the thread has less than so many.
    Spawn {
        /// How many processes of the thread there are at most, with this one.
        most: u32,
        /// Where the process's program begins.
        body: At,
    },
    /// Waits for all processes that the thread started.
    Reap,
    /// Ends the thread.
    Exit,
    /// Puts a message into a queue.
    Send(u32),
    /// Takes one out.
    Receive(u32),
    /// Uses so much CPU time, in ns.
    Use(Nanos),
    /// Sleeps until that time, to do what is due then.
    Until(Nanos),
    /// Puts a message into the queue of that recorded thread.
    Wake(ThreadId),
    /// Begins a loop of so many turns.
    Loop(u32),
    /// Ends a turn of the loop whose first operation is there.
    Again(At),
    /// Ends a round of the thread's program, which begins there.
    Round(At),
    /// Ends one of so many.
    Counted,
}

/// What an [`Op::Alarm`] is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alarm {
    /// Which of the thread's timers.
    pub timer: u32,
    /// The period.
    pub period: Nanos,
    /// What it does if the end has passed.
    pub missed: Missed,
}

/// The programs of one tenant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Code {
    /// All operations.
    pub ops: Vec<Op>,
    /// What operations draw times from.
    pub times: Vec<TimeUs>,
    /// What wakes from timers of the threads' own.
    pub alarms: Vec<Alarm>,
    /// How many timers a thread has at the most.
    pub timers: u32,
    /// Where each thread program begins.
    pub starts: Vec<At>,
    /// When after the start its threads do, by program.
    pub delays: Vec<Nanos>,
    /// Each thread program's threads' name, how many there are, and how many threads other programs have before.
    pub threads: Vec<(String, Count, u64)>,
    /// The locks' names, by their number.
    pub locks: Vec<String>,
    /// Reader-writer locks' names.
    pub rwlocks: Vec<String>,
    /// Semaphores' names, and how many each has at the start.
    pub semaphores: Vec<(String, u32)>,
    /// Events' names.
    pub events: Vec<String>,
    /// Queues' names.
    pub queues: Vec<String>,
    /// Pools' names.
    pub pools: Vec<String>,
    /// Barriers' names, and how many threads come to each.
    pub barriers: Vec<(String, u32)>,
    /// They are a recorded process's, of one thread and one queue each.
    pub recorded: bool,
}

impl Code {
    /// Flattens checked programs, for a host with so many CPUs.
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
            // Parts stand behind the program that forks them.
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

    /// The name of the tenant's thread with this number, which runs this program.
    pub fn thread_name(&self, program: usize, index: u64) -> String {
        match &self.threads[program] {
            (name, Count::Fixed(1), _) => name.clone(),
            (name, _, before) => format!("{name}-{}", index - before),
        }
    }
}

/// Numbers names in the order in which they come up.
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
    /// The present program's.
    timers: Names<'a>,
    /// The lock that is held, if there is only one.
    held: Option<u32>,
    initial: BTreeMap<&'a str, u32>,
    events: Names<'a>,
    /// Threads that come to each barrier.
    coming_all: Vec<u32>,
    locks: Names<'a>,
    queues: Names<'a>,
    pools: Names<'a>,
    barriers: Names<'a>,
    /// Barriers that the present program comes to.
    coming: Vec<u32>,
    /// Forks and spawns whose parts' or process's program is to be placed yet.
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
                    // The three take no time, so nothing comes between them.
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
