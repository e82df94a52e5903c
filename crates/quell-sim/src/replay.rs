//! Threads that do again what others were seen to do: the source of work beside scenario programs.
//!
//! Problem: what would a recorded load have waited under another scheduler? How: each thread has a list of acts: so much CPU
//! time, waking others in between, and waiting for its next wakeup. Wakeups by threads come where those threads'
//! own progress brings them, so that they move with it; those by interrupts come at their times, as on a machine
//! whose clients do not know how it fares. A wakeup that comes before its thread waits for it is kept for it, so that no order of
//! events that a scheduler makes can lose one.

use crate::events::Nanos;
use crate::machine::ThreadId;
use crate::workload::{Effects, Next, Request};

/// Something that a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Uses so much CPU time, in ns.
    Run(Nanos),
    /// Wakes a thread.
    Wake(ThreadId),
    /// Waits until it is woken, once for each time that it waits.
    Wait,
}

/// Where each thread stands.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    threads: Vec<Stand>,
}

#[derive(Debug)]
struct Stand {
    acts: std::vec::IntoIter<Act>,
    /// It comes back to a wait.
    waits: bool,
    /// Wakeups that it has not waited for yet.
    kept: u64,
}

impl Replay {
    /// Adds a thread, which waits for the wakeup that it begins with. Threads are numbered in the order in which they are added.
    pub(crate) fn add_thread(&mut self, acts: Vec<Act>) {
        self.threads.push(Stand {
            acts: acts.into_iter(),
            waits: true,
            kept: 0,
        });
    }

    /// An interrupt wakes the thread that the request's seed names.
    pub(crate) fn arrive(&mut self, request: Request, effects: &mut Effects) {
        self.wake(ThreadId(request.seed as u32), effects);
    }

    fn wake(&mut self, thread: ThreadId, effects: &mut Effects) {
        if let Some(stand) = self.threads.get_mut(thread.index()) {
            stand.kept += 1;
            if stand.waits {
                effects.woken.push((thread, None));
            }
        }
    }

    /// Goes on with a thread that runs.
    pub(crate) fn step(&mut self, thread: ThreadId, effects: &mut Effects) -> Next {
        loop {
            let stand = &mut self.threads[thread.index()];
            if stand.waits {
                if stand.kept == 0 {
                    return Next::Block;
                }
                stand.kept -= 1;
                stand.waits = false;
            }
            match stand.acts.next() {
                Some(Act::Run(0)) => {}
                Some(Act::Run(time)) => return Next::Run(time),
                Some(Act::Wake(other)) => {
                    self.wake(other, effects);
                    // What comes next comes after the waking, which takes time.
                    if !effects.woken.is_empty() {
                        return Next::Run(1);
                    }
                }
                Some(Act::Wait) => stand.waits = true,
                // It has ended.
                None => {
                    stand.waits = true;
                    return Next::Block;
                }
            }
        }
    }
}
