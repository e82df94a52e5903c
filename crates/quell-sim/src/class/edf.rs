//! Global earliest deadline first, and fixed priorities: the textbook's preemptive schedulers, for checks with known
//! answers (Liu and Layland, J. ACM 20(1), 1973; Joseph and Pandya, Comput. J. 29(5), 1986; Dhall and Liu, Oper. Res. 26(1),
//! 1978).
//!
//! One queue for all CPUs. A job is a request, released when it is due; a thread without one comes last. A thread that goes
//! on to its next job at once, as the one before was late, is looked at again when another job comes.

use super::queue::Global;
use super::{Class, Pick};
use crate::events::Nanos;
use crate::machine::{Machine, State, ThreadId};
use quell_model::CpuId;

/// Who comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// The earliest deadline: by thread, how long after its release a job's is.
    Deadlines(Vec<Nanos>),
    /// By thread, the least number.
    Priorities(Vec<u32>),
}

impl Order {
    fn key(&self, machine: &Machine, thread: ThreadId) -> u64 {
        let it = machine.thread(thread);
        let key = match (self, it.works_for) {
            (_, None) => None,
            (Order::Deadlines(after), Some(due)) => {
                after.get(thread.index()).map(|after| due + after)
            }
            (Order::Priorities(numbers), Some(_)) => {
                numbers.get(thread.index()).copied().map(u64::from)
            }
        };
        key.unwrap_or(u64::MAX)
    }
}

/// The class.
#[derive(Debug)]
pub struct Edf {
    order: Order,
    global: Global<u64>,
}

impl Edf {
    /// For a machine of so many CPUs.
    pub fn new(cpus: usize, order: Order) -> Edf {
        Edf {
            order,
            global: Global::new(cpus),
        }
    }

    fn offer(&mut self, machine: &mut Machine, thread: ThreadId, except: Option<CpuId>) {
        let key = self.order.key(machine, thread);
        self.global.ready.insert(key, thread);
        self.tickle(machine, thread, except);
    }

    fn tickle(&mut self, machine: &mut Machine, thread: ThreadId, except: Option<CpuId>) {
        let order = &self.order;
        let key = order.key(machine, thread);
        let running = |machine: &Machine, other| order.key(machine, other);
        (self.global).tickle(machine, (key, thread), except, running);
    }
}

impl Class for Edf {
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId) {
        self.offer(machine, thread, None);
    }

    fn set_allowed(&mut self, machine: &mut Machine, thread: ThreadId) {
        if machine.thread(thread).state == State::Ready {
            self.tickle(machine, thread, None);
        }
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        let of_ran = ran.map(|thread| (self.order.key(machine, thread), thread));
        let next = self.global.next(machine, cpu, of_ran);
        if let Some(thread) = ran.filter(|_| ran != next) {
            self.offer(machine, thread, Some(cpu));
        }
        next.map(|thread| Pick { thread, turn: None })
    }
}
