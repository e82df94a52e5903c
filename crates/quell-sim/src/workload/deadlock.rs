//! Threads that no other thread can wake any more, and what they wait for.
//!
//! Problem: a scenario whose threads wait for each other in a ring, or for something that no thread does,
//! simulates as a quiet machine, and its figures look like good ones. How: a thread can go on if it does not
//! wait, or if some thread that can go on may bring about what it waits for. This is iterated until no more
//! such threads are found; the threads that are left stand still for ever. Limits: a thread is assumed to
//! come to every step of its program, so a deadlock may be missed, but none is reported that is not one.

use super::{Frame, Object, QUEUE_CAPACITY, Stack, Tenant, Workload};
use crate::machine::ThreadId;
use crate::program::Op;

/// The most threads that a report names.
const NAMED: usize = 6;

impl Workload {
    /// A tenant with a thread that stands still for ever, and a text that says which of its threads wait for
    /// what.
    pub fn deadlock(&self) -> Option<(usize, String)> {
        if let Some(thread) = self.endless {
            let why = "goes round its program for ever without using any time";
            let text = format!("thread `{}` {why}", self.name(thread));
            return Some((self.frames[thread.index()].tenant, text));
        }
        let search = Search::new(self);
        let first = search.goes_on.iter().position(|goes_on| !goes_on)?;
        let tenant = self.frames[first].tenant;
        let members = search.members[tenant].iter();
        let stuck: Vec<ThreadId> = members.copied().filter(|&it| !search.goes_on(it)).collect();
        let texts: Vec<String> = stuck
            .iter()
            .take(NAMED)
            .filter_map(|&thread| {
                let waits_for = search.waits_for(thread)?;
                Some(format!(
                    "thread `{}` waits for {waits_for}",
                    self.name(thread)
                ))
            })
            .collect();
        let more = match stuck.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        Some((tenant, texts.join("; ") + &more))
    }

    fn name(&self, thread: ThreadId) -> String {
        let code = &self.codes[self.frames[thread.index()].tenant];
        let stack = &self.stacks[thread.index()];
        code.thread_name(stack.program, stack.index)
    }
}

struct Search<'a> {
    workload: &'a Workload,
    /// By tenant, its threads.
    members: Vec<Vec<ThreadId>>,
    /// By thread, whether it is known that the thread can go on.
    goes_on: Vec<bool>,
}

impl<'a> Search<'a> {
    fn new(workload: &'a Workload) -> Search<'a> {
        let mut members = vec![Vec::new(); workload.tenants.len()];
        let threads = workload.frames.iter().zip(&workload.stacks).enumerate();
        // Processes that threads started share no object with other threads.
        for (number, (frame, _)) in threads.filter(|(_, (_, it))| it.started_by.is_none()) {
            members[frame.tenant].push(ThreadId(number as u32));
        }
        let goes_on = workload.frames.iter().map(|it| it.waits.is_none());
        let mut search = Search {
            workload,
            members,
            goes_on: goes_on.collect(),
        };
        loop {
            let mut found = false;
            for number in 0..search.goes_on.len() {
                if !search.goes_on[number] && search.may_be_woken(ThreadId(number as u32)) {
                    search.goes_on[number] = true;
                    found = true;
                }
            }
            if !found {
                return search;
            }
        }
    }

    fn stack(&self, thread: ThreadId) -> &Stack {
        &self.workload.stacks[thread.index()]
    }

    fn of(&self, thread: ThreadId) -> (&'a Frame, &'a Tenant) {
        let frame = &self.workload.frames[thread.index()];
        (frame, &self.workload.tenants[frame.tenant])
    }

    fn goes_on(&self, thread: ThreadId) -> bool {
        self.goes_on[thread.index()]
    }

    /// Whether any thread of the tenant that can go on has such a step in its program.
    fn somebody(&self, tenant: usize, step: impl Fn(&Op) -> bool) -> bool {
        let programs = 0..self.workload.codes[tenant].starts.len();
        let does: Vec<bool> = programs
            .map(|it| self.workload.ops_of(tenant, it).iter().any(&step))
            .collect();
        let mut members = self.members[tenant].iter();
        members.any(|&it| self.goes_on(it) && does[self.stack(it).program])
    }

    /// A thread that a barrier waits for, and that cannot go on and is not at the barrier.
    fn does_not_come(&self, tenant: usize, barrier: u32) -> Option<ThreadId> {
        let programs = 0..self.workload.codes[tenant].starts.len();
        let ops_of = |program| self.workload.ops_of(tenant, program);
        let comes = |program| ops_of(program).contains(&Op::Barrier(barrier));
        let comes: Vec<bool> = programs.map(comes).collect();
        self.members[tenant].iter().copied().find(|&it| {
            let frame = self.of(it).0;
            let there = frame.waits == Some(Object::Barrier(barrier));
            comes[self.stack(it).program] && !there && !self.goes_on(it)
        })
    }

    fn may_be_woken(&self, thread: ThreadId) -> bool {
        let (frame, tenant) = self.of(thread);
        let goes_on = |it: &ThreadId| self.goes_on(*it);
        let somebody = |step: &dyn Fn(&Op) -> bool| self.somebody(frame.tenant, step);
        let Some(object) = frame.waits else {
            return true;
        };
        match object {
            // A thread waits for its own processes only, and these can go on.
            Object::Processes => true,
            // A server that waits for requests has nothing to do when no more come; this is no deadlock.
            Object::Requests => true,
            Object::Lock(number) => tenant.locks[number as usize].holder.iter().all(goes_on),
            Object::Read(number) => {
                let lock = &tenant.rwlocks[number as usize];
                lock.writer.iter().chain(&lock.writers).all(goes_on)
            }
            Object::Write(number) => {
                let lock = &tenant.rwlocks[number as usize];
                lock.writer.iter().chain(&lock.readers).all(goes_on)
            }
            Object::Semaphore(number) => {
                tenant.semaphores[number as usize].count > 0
                    || somebody(&|op| *op == Op::Up(number))
            }
            Object::Event(number) | Object::NextEvent(number) => {
                let event = &tenant.events[number as usize];
                let kept = event.has_signal_for(thread)
                    || self.stack(thread).seen[number as usize] < event.broadcasts;
                kept && matches!(object, Object::Event(_))
                    || self.stack(thread).past
                    || somebody(&|op| [Op::Signal(number), Op::Broadcast(number)].contains(op))
            }
            Object::Barrier(number) => {
                self.stack(thread).came != Some(tenant.barriers[number as usize].round)
                    || self.does_not_come(frame.tenant, number).is_none()
            }
            Object::Receive(number) => {
                // A recorded thread may be woken by an interrupt.
                self.workload.codes[frame.tenant].recorded
                    || !tenant.queues[number as usize].items.is_empty()
                    || somebody(&|op| *op == Op::Send(number))
            }
            Object::Send(number) => {
                tenant.queues[number as usize].items.len() < QUEUE_CAPACITY
                    || somebody(&|op| *op == Op::Receive(number))
            }
            Object::Pool(number) => {
                !tenant.pools[number as usize].items.is_empty()
                    || somebody(&|op| matches!(op, Op::Fork { pool, .. } if *pool == number))
            }
            Object::Join => {
                let mine = |it: &ThreadId| self.stack(*it).parent == Some(thread);
                let mut members = self.members[frame.tenant].iter();
                let helped = |pool| somebody(&|op| *op == Op::Help(pool));
                let mut pools = (0..).zip(&tenant.pools);
                let waits = |it: &super::Queue<super::Part>| {
                    it.items.iter().any(|part| part.parent == thread)
                };
                members.all(|it| !mine(it) || goes_on(it))
                    && pools.all(|(number, pool)| !waits(pool) || helped(number))
            }
        }
    }

    fn waits_for(&self, thread: ThreadId) -> Option<String> {
        let (frame, tenant) = self.of(thread);
        let code = &self.workload.codes[frame.tenant];
        let name = |thread: &ThreadId| self.workload.name(*thread);
        let nobody = "who can go on";
        Some(match frame.waits? {
            Object::Requests => "a request".to_string(),
            Object::Lock(number) => {
                let holder = tenant.locks[number as usize].holder.as_ref().map(name)?;
                format!(
                    "lock `{}` that `{holder}` holds",
                    code.locks[number as usize]
                )
            }
            Object::Read(number) | Object::Write(number) => {
                let lock = &tenant.rwlocks[number as usize];
                let held = lock.writer.iter().chain(&lock.readers).next();
                let before = lock.writers.iter().find(|&&it| it != thread);
                let why = match (held, before) {
                    (Some(holder), _) => format!("that `{}` holds", name(holder)),
                    (None, Some(writer)) => format!("that `{}` is to write first", name(writer)),
                    (None, None) => String::new(),
                };
                format!("rwlock `{}` {why}", code.rwlocks[number as usize])
            }
            Object::Semaphore(number) => {
                let name = &code.semaphores[number as usize].0;
                format!("semaphore `{name}`, which nobody {nobody} releases")
            }
            Object::Event(number) | Object::NextEvent(number) => {
                let name = &code.events[number as usize];
                format!("event `{name}`, which nobody {nobody} signals")
            }
            Object::Barrier(number) => {
                let other = self.does_not_come(frame.tenant, number);
                let other = other.as_ref().map(name).unwrap_or_default();
                let barrier = &code.barriers[number as usize].0;
                format!("barrier `{barrier}`, to which `{other}` does not come")
            }
            Object::Receive(number) => {
                let name = &code.queues[number as usize];
                format!("a message in queue `{name}`, to which nobody {nobody} sends")
            }
            Object::Send(number) => {
                let name = &code.queues[number as usize];
                format!("room in queue `{name}`, from which nobody {nobody} receives")
            }
            Object::Pool(number) => {
                let name = &code.pools[number as usize];
                format!("a part in pool `{name}`, to which nobody {nobody} forks")
            }
            Object::Processes => "processes that it started".to_string(),
            Object::Join => "parts that it forked and nobody who can go on does".to_string(),
        })
    }
}
