//! Building blocks of classes: a set of idle CPUs, and queues of ready threads in an order.

use crate::machine::{Machine, Thread, ThreadId};
use quell_model::CpuId;
use std::collections::VecDeque;

/// The CPUs that idle and were not kicked. The class keeps the set up to date: in [`super::Class::pick`], and
/// when it kicks a CPU.
#[derive(Debug)]
pub struct Idlers {
    words: Vec<u64>,
}

impl Idlers {
    /// The set of all CPUs of a machine.
    pub fn all(cpus: usize) -> Idlers {
        let mut idlers = Idlers {
            words: vec![0; cpus.div_ceil(64).max(1)],
        };
        for cpu in 0..cpus as u32 {
            idlers.set(CpuId(cpu), true);
        }
        idlers
    }

    /// Puts a CPU into the set, or takes it out.
    pub fn set(&mut self, cpu: CpuId, idle: bool) {
        let word = &mut self.words[cpu.0 as usize / 64];
        *word = *word & !(1 << (cpu.0 % 64)) | u64::from(idle) << (cpu.0 % 64);
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words[cpu.0 as usize / 64] >> (cpu.0 % 64) & 1 == 1
    }

    /// The first CPU of the set that the thread may run on, searched from `from` on and around.
    pub fn find(&self, from: CpuId, thread: &Thread) -> Option<CpuId> {
        let usable = |at: usize| {
            let allowed = thread.allowed.as_ref().map_or(u64::MAX, |allowed| {
                allowed.words().get(at).copied().unwrap_or(0)
            });
            self.words[at] & allowed
        };
        let (first, count) = (from.0 as usize / 64, self.words.len());
        let from_there = usable(first) & u64::MAX << (from.0 % 64);
        let around = (1..=count).map(|step| (first + step) % count);
        std::iter::once((first, from_there))
            .chain(around.map(|at| (at, usable(at))))
            .find(|&(_, bits)| bits != 0)
            .map(|(at, bits)| CpuId(at as u32 * 64 + bits.trailing_zeros()))
    }

    /// Takes a CPU out of the set and kicks it ([`Machine::kick`]).
    pub fn kick(&mut self, machine: &mut Machine, cpu: CpuId) {
        self.set(cpu, false);
        machine.kick(cpu);
    }
}

/// Ready threads in the order of a key, the least first; threads of one key in the order in which they came.
#[derive(Debug)]
pub struct Ready<K> {
    queue: VecDeque<(K, ThreadId)>,
}

impl<K: Ord + Copy> Ready<K> {
    /// An empty queue.
    pub fn new() -> Ready<K> {
        Ready {
            queue: VecDeque::new(),
        }
    }

    /// Inserts a thread behind all threads of a key that is not greater.
    pub fn insert(&mut self, key: K, thread: ThreadId) {
        let at = self.queue.partition_point(|&(other, _)| other <= key);
        self.queue.insert(at, (key, thread));
    }

    /// Removes and returns the thread at a position.
    pub fn remove(&mut self, at: usize) -> Option<ThreadId> {
        Some(self.queue.remove(at)?.1)
    }

    /// Removes a thread; false if it was not in the queue.
    pub fn take(&mut self, thread: ThreadId) -> bool {
        let at = self.queue.iter().position(|&(_, other)| other == thread);
        at.is_some_and(|at| self.queue.remove(at).is_some())
    }

    /// The threads in their order, with their keys.
    pub fn iter(&self) -> impl Iterator<Item = (K, ThreadId)> + '_ {
        self.queue.iter().copied()
    }

    /// The first thread that may run on a CPU: its position, its key and its number.
    pub fn first_for(&self, machine: &Machine, cpu: CpuId) -> Option<(usize, K, ThreadId)> {
        let mut queue = self.iter().enumerate();
        let (at, (key, thread)) =
            queue.find(|&(_, (_, thread))| machine.thread(thread).may_use(cpu))?;
        Some((at, key, thread))
    }

    /// Gives all threads new keys. The new keys must have the same order.
    pub fn rekey(&mut self, key: impl Fn(ThreadId) -> K) {
        for entry in &mut self.queue {
            entry.0 = key(entry.1);
        }
    }

    /// The number of threads in the queue.
    pub fn len(&self) -> usize {
        self.queue.len()
    }
}

/// One queue for all CPUs: the threads with the least keys run.
#[derive(Debug)]
pub struct Global<K> {
    /// The threads that wait.
    pub ready: Ready<K>,
    idlers: Idlers,
}

impl<K: Ord + Copy> Global<K> {
    /// A queue for this many CPUs, all of them idle.
    pub fn new(cpus: usize) -> Global<K> {
        Global {
            ready: Ready::new(),
            idlers: Idlers::all(cpus),
        }
    }

    /// Kicks a CPU for a thread that has begun to wait (Xen's runq_tickle): an idle CPU, preferably the one
    /// that the thread ran on last; else the CPU whose thread has the greatest key, if that is greater than
    /// this thread's. `except` is a CPU that is picking now and needs no kick.
    pub fn tickle(
        &mut self,
        machine: &mut Machine,
        (key, thread): (K, ThreadId),
        except: Option<CpuId>,
        running: impl Fn(&Machine, ThreadId) -> K,
    ) {
        let it = machine.thread(thread);
        if let Some(cpu) = self.idlers.find(it.cpu, it) {
            return self.idlers.kick(machine, cpu);
        }
        let last = (machine.cpu_ids().zip(&machine.cpus))
            .filter(|&(cpu, state)| !state.kicked && Some(cpu) != except && it.may_use(cpu))
            .filter_map(|(cpu, state)| Some((running(machine, state.current?), cpu)))
            .max();
        if let Some((greatest, cpu)) = last {
            if greatest > key {
                machine.kick(cpu);
            }
        }
    }

    /// The thread that a CPU runs next, taken out of the queue if it waited. `ran` goes on if its key is less
    /// than those of all threads that wait and may run there.
    pub fn next(
        &mut self,
        machine: &Machine,
        cpu: CpuId,
        ran: Option<(K, ThreadId)>,
    ) -> Option<ThreadId> {
        let first = self.ready.first_for(machine, cpu);
        let stays = ran.filter(|&(key, thread)| {
            machine.thread(thread).may_use(cpu) && first.is_none_or(|(_, other, _)| key < other)
        });
        let next = match (stays, first) {
            (Some((_, thread)), _) => Some(thread),
            (None, Some((at, _, _))) => self.ready.remove(at),
            (None, None) => None,
        };
        self.idlers.set(cpu, next.is_none());
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Costs, GroupId, State};
    use quell_model::{Nice, Topology};
    use quell_scenario::ThreadPolicy;

    #[test]
    fn idle_cpus_are_found_around() {
        let mut machine = Machine::new(Topology::flat(130), Costs::NONE);
        machine.threads.push(Thread {
            tenant: 0,
            leader: ThreadId(0),
            origin: ThreadId(0),
            group: GroupId::ROOT,
            policy: ThreadPolicy::Other,
            nice: Nice::default(),
            slice: None,
            role: quell_model::ThreadRole::Ordinary,
            allowed: None,
            state: State::Blocked,
            cpu: CpuId(0),
            ran: 0,
            waited: 0,
            ready_since: 0,
            left_at: 0,
            works_for: None,
            left: 0,
            timed: false,
            pending: false,
        });
        let mut idlers = Idlers::all(130);
        for cpu in (0..130).filter(|cpu| ![3, 70, 129].contains(cpu)) {
            idlers.set(CpuId(cpu), false);
        }
        for (from, found) in [(0, 3), (3, 3), (4, 70), (70, 70), (71, 129), (129, 129)] {
            let cpu = idlers.find(CpuId(from), &machine.threads[0]);
            assert_eq!(cpu, Some(CpuId(found)), "from {from}");
        }
        idlers.set(CpuId(129), false);
        assert_eq!(idlers.find(CpuId(71), &machine.threads[0]), Some(CpuId(3)));
        machine.threads[0].allowed = Some([CpuId(70)].into_iter().collect());
        assert_eq!(idlers.find(CpuId(3), &machine.threads[0]), Some(CpuId(70)));
    }

    #[test]
    fn equal_keys_keep_their_order() {
        let mut ready = Ready::new();
        for (key, thread) in [(2, 0), (1, 1), (2, 2), (1, 3)] {
            ready.insert(key, ThreadId(thread));
        }
        let order: Vec<u32> = ready.iter().map(|(_, thread)| thread.0).collect();
        assert_eq!(order, [1, 3, 0, 2]);
    }
}
