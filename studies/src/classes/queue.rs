//! Building blocks of classes: a set of idle CPUs, and queues of ready threads in an order.

use quell_model::CpuId;
use quell_sim::{Machine, Thread, ThreadId};
use std::collections::VecDeque;

/// The CPUs that idle and were not kicked. The class keeps the set up to date: in [`quell_sim::Class::pick`],
/// and when it kicks a CPU.
#[derive(Debug)]
pub struct Idlers {
    words: Vec<u64>,
}

impl Idlers {
    /// The set of all CPUs of a machine of `cpus` CPUs.
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

    /// The first CPU of the set that the thread may run on, in the order of numbers from `from` on and then
    /// from 0.
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

    /// Removes the thread at a position and returns it; `None` if the queue is shorter.
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

    /// Gives all threads new keys. The order of the threads does not change, so the new keys must have the
    /// same order.
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

#[cfg(test)]
mod tests {
    use super::*;
    use quell_model::Topology;
    use quell_scenario::{Count, Step, ThreadProgram, TimeUs};
    use quell_sim::{Costs, Fifo, Simulation, Tenant};

    #[test]
    fn idle_cpus_are_found_around() {
        let program = vec![Step::RunUs(TimeUs::Constant(1.0))];
        let program = [ThreadProgram::new("t", Count::Fixed(1), program)];
        let class = Box::new(Fifo::new(None));
        let mut simulation = Simulation::new(Topology::flat(130), Costs::NONE, class);
        simulation.add_tenant(Tenant::new(&program, None));
        let mut thread = simulation.machine().thread(ThreadId(0)).clone();
        let mut idlers = Idlers::all(130);
        for cpu in (0..130).filter(|cpu| ![3, 70, 129].contains(cpu)) {
            idlers.set(CpuId(cpu), false);
        }
        for (from, found) in [(0, 3), (3, 3), (4, 70), (70, 70), (71, 129), (129, 129)] {
            let cpu = idlers.find(CpuId(from), &thread);
            assert_eq!(cpu, Some(CpuId(found)), "from {from}");
        }
        idlers.set(CpuId(129), false);
        assert_eq!(idlers.find(CpuId(71), &thread), Some(CpuId(3)));
        thread.allowed = Some([CpuId(70)].into_iter().collect());
        assert_eq!(idlers.find(CpuId(3), &thread), Some(CpuId(70)));
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
