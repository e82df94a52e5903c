//! Scenario programs, flattened: what a simulated thread steps through.
//!
//! Steps nest; a thread that blocks in the middle must be able to go on there. So a tenant's programs become one
//! list of operations, and where a thread stands is an index, a stack of return indices and one of loop counters.

use quell_model::config::{Step, ThreadProgram, TimeUs};
use std::collections::BTreeMap;

/// Index of an operation in [`Code::ops`].
pub type At = u32;

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    /// Uses CPU time.
    Run(TimeUs),
    /// Sleeps.
    Sleep(TimeUs),
    /// Waits for the tenant's next request.
    Request,
    /// Answers the request it holds.
    Respond,
    /// Takes a lock.
    Acquire(u32),
    /// Gives it back.
    Release(u32),
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
    /// Puts a message into a queue.
    Send(u32),
    /// Takes one out.
    Receive(u32),
    /// Begins a loop of so many turns.
    Loop(u32),
    /// Ends a turn of the loop whose first operation is there.
    Again(At),
    /// Ends a round of the thread's program, which begins there.
    Round(At),
}

/// The programs of one tenant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Code {
    /// All operations.
    pub ops: Vec<Op>,
    /// Where each thread program begins.
    pub starts: Vec<At>,
    /// How many locks, queues and pools they name.
    pub locks: usize,
    /// Queues.
    pub queues: usize,
    /// Pools.
    pub pools: usize,
    /// Threads that come to each barrier.
    pub barriers: Vec<u32>,
}

impl Code {
    /// Flattens checked programs, for a host with so many CPUs.
    pub fn compile(programs: &[ThreadProgram], cpus: u32) -> Code {
        let mut compiler = Compiler::default();
        for program in programs {
            compiler.coming.clear();
            let start = compiler.code.ops.len() as At;
            compiler.code.starts.push(start);
            compiler.steps(&program.program);
            compiler.code.ops.push(Op::Round(start));
            // Parts stand behind the program that forks them.
            while let Some((fork, body)) = compiler.bodies.pop() {
                let start = compiler.code.ops.len() as At;
                compiler.steps(body);
                compiler.code.ops.push(Op::Return);
                if let Op::Fork { body, .. } = &mut compiler.code.ops[fork] {
                    *body = start;
                }
            }
            let threads = program.count.on(cpus);
            compiler.coming.sort_unstable();
            compiler.coming.dedup();
            for &barrier in &compiler.coming {
                compiler.code.barriers[barrier as usize] += threads;
            }
        }
        compiler.code.locks = compiler.locks.len();
        compiler.code.queues = compiler.queues.len();
        compiler.code.pools = compiler.pools.len();
        compiler.code
    }
}

/// Numbers names in the order in which they come up.
type Names<'a> = BTreeMap<&'a str, u32>;

fn number<'a>(names: &mut Names<'a>, name: &'a str) -> u32 {
    let next = names.len() as u32;
    *names.entry(name).or_insert(next)
}

#[derive(Default)]
struct Compiler<'a> {
    code: Code,
    locks: Names<'a>,
    queues: Names<'a>,
    pools: Names<'a>,
    barriers: Names<'a>,
    /// Barriers that the present program comes to.
    coming: Vec<u32>,
    /// Forks whose parts' program is to be placed yet.
    bodies: Vec<(usize, &'a [Step])>,
}

impl<'a> Compiler<'a> {
    fn steps(&mut self, steps: &'a [Step]) {
        for step in steps {
            match step {
                Step::RunUs(time) => self.code.ops.push(Op::Run(*time)),
                Step::SleepUs(time) => self.code.ops.push(Op::Sleep(*time)),
                Step::Request => self.code.ops.push(Op::Request),
                Step::Respond => self.code.ops.push(Op::Respond),
                Step::Lock(critical) => {
                    let lock = number(&mut self.locks, &critical.name);
                    self.code.ops.push(Op::Acquire(lock));
                    self.steps(&critical.program);
                    self.code.ops.push(Op::Release(lock));
                }
                Step::Barrier(name) => {
                    let barrier = number(&mut self.barriers, name);
                    self.code.barriers.resize(self.barriers.len(), 0);
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
    use quell_model::config::Scenario;
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
        let us = |us| Op::Run(TimeUs::Constant(us));
        let fork = Op::Fork {
            pool: 0,
            parts: 3,
            body: 11,
        };
        let expected = [
            Op::Request,
            Op::Loop(2),
            Op::Acquire(0),
            us(1.0),
            Op::Release(0),
            Op::Again(2),
            fork,
            Op::Join,
            Op::Barrier(0),
            Op::Respond,
            Op::Round(0),
            us(2.0),
            Op::Return,
            Op::Help(0),
            Op::Acquire(0),
            us(3.0),
            Op::Release(0),
            Op::Barrier(0),
            Op::Round(13),
        ];
        assert_eq!(code.ops, expected);
        assert_eq!(code.starts, [0, 13]);
        assert_eq!(code.barriers, [3]);
        assert_eq!((code.locks, code.queues, code.pools), (1, 0, 1));
    }
}
