//! The problem of [`super::ideal()`]: groups and threads that want CPU time of a host, and its validity.

use quell_model::{CpuId, CpuSet};

/// A host with its groups and threads, for a time in which none of their parameters change.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Problem {
    /// The CPUs to divide: the online ones. Each offers 1.0.
    pub cpus: CpuSet,
    /// The groups below the root, in any order. Other fields name a group by its index here.
    pub groups: Vec<Group>,
    /// The threads, in any order.
    pub threads: Vec<Thread>,
}

/// A group of threads and groups that is served as one, as a cgroup is.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The parent group, by its index in [`Problem::groups`]; `None` is the root.
    pub parent: Option<usize>,
    /// Weight among its siblings, 1 to 10 000, as cgroup v2's `cpu.weight`.
    pub weight: u32,
    /// The most that the group may use, in CPUs, 0.0 or more, as quota / period of cgroup v2's
    /// `cpu.max`; `None` is no limit.
    pub limit: Option<f64>,
}

/// A thread and its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Thread {
    /// The thread's group, by its index in [`Problem::groups`]; `None` is the root, where the thread
    /// competes with the groups by its own weight, as in cgroup v2.
    pub group: Option<usize>,
    /// Weight among its siblings, 1 to 10 000; nice 0 is 100.
    pub weight: u32,
    /// The CPUs that the thread may run on, all of them in [`Problem::cpus`].
    pub cpus: CpuSet,
    /// The CPU time that the thread would use if it never waited, in CPUs, 0.0 to 1.0.
    pub demand: f64,
}

/// Why a [`Problem`] is invalid. Groups and threads are named by their indices, from 0.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProblemError {
    /// A group's parent is no index of a group.
    #[error("group {group}: its parent {parent} is none of the groups")]
    UnknownParent {
        /// The group's index.
        group: usize,
        /// The invalid parent.
        parent: usize,
    },
    /// A group is its own ancestor.
    #[error("group {group}: its parents lead back to itself or never to the root")]
    ParentCycle {
        /// The first group without a path to the root.
        group: usize,
    },
    /// A group's weight is out of range.
    #[error("group {group}: weight {weight} is not in 1 to 10000")]
    GroupWeight {
        /// The group's index.
        group: usize,
        /// The group's weight.
        weight: u32,
    },
    /// A group's limit is negative or no number.
    #[error("group {group}: a limit of {limit} CPUs is not 0 or more")]
    Limit {
        /// The group's index.
        group: usize,
        /// The group's limit in CPUs.
        limit: f64,
    },
    /// A thread's group is no index of a group.
    #[error("thread {thread}: its group {group} is none of the groups")]
    UnknownGroup {
        /// The thread's index.
        thread: usize,
        /// The invalid group.
        group: usize,
    },
    /// A thread's weight is out of range.
    #[error("thread {thread}: weight {weight} is not in 1 to 10000")]
    ThreadWeight {
        /// The thread's index.
        thread: usize,
        /// The thread's weight.
        weight: u32,
    },
    /// A thread's demand is out of range or no number.
    #[error("thread {thread}: a demand of {demand} CPUs is not in 0.0 to 1.0")]
    Demand {
        /// The thread's index.
        thread: usize,
        /// The thread's demand in CPUs.
        demand: f64,
    },
    /// A thread may run on no CPU.
    #[error("thread {thread}: there is no CPU it may run on")]
    NoCpu {
        /// The thread's index.
        thread: usize,
    },
    /// A thread may run on a CPU that the host does not have.
    #[error("thread {thread}: CPU {cpu} is none of the host's")]
    UnknownCpu {
        /// The thread's index.
        thread: usize,
        /// The first such CPU.
        cpu: CpuId,
    },
}

const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=10_000;

impl Problem {
    /// Finds the first fault, and if there is none every group's depth: 1 for a child of the root.
    ///
    /// # Errors
    /// The problem is invalid; the [`ProblemError`] names the first fault.
    pub(super) fn check(&self) -> Result<Vec<u32>, ProblemError> {
        for (group, found) in self.groups.iter().enumerate() {
            let weight = found.weight;
            if let Some(parent) = found.parent.filter(|&p| p >= self.groups.len()) {
                return Err(ProblemError::UnknownParent { group, parent });
            }
            if !WEIGHTS.contains(&weight) {
                return Err(ProblemError::GroupWeight { group, weight });
            }
            if let Some(limit) = found.limit.filter(|l| !(l.is_finite() && *l >= 0.0)) {
                return Err(ProblemError::Limit { group, limit });
            }
        }
        for (thread, found) in self.threads.iter().enumerate() {
            let (weight, demand) = (found.weight, found.demand);
            if let Some(group) = found.group.filter(|&g| g >= self.groups.len()) {
                return Err(ProblemError::UnknownGroup { thread, group });
            }
            if !WEIGHTS.contains(&weight) {
                return Err(ProblemError::ThreadWeight { thread, weight });
            }
            if !(0.0..=1.0).contains(&demand) {
                return Err(ProblemError::Demand { thread, demand });
            }
            if found.cpus.is_empty() {
                return Err(ProblemError::NoCpu { thread });
            }
            if let Some(cpu) = found.cpus.iter().find(|&c| !self.cpus.contains(c)) {
                return Err(ProblemError::UnknownCpu { thread, cpu });
            }
        }
        self.depths()
    }

    /// O(groups): every group is visited once, on the path of the first group below it.
    fn depths(&self) -> Result<Vec<u32>, ProblemError> {
        let mut depths = vec![0; self.groups.len()]; // 0: not known yet
        let mut path = Vec::new();
        for group in 0..self.groups.len() {
            let mut at = Some(group);
            while let Some(g) = at.filter(|&g| depths[g] == 0) {
                path.push(g);
                if path.len() > self.groups.len() {
                    return Err(ProblemError::ParentCycle { group });
                }
                at = self.groups[g].parent;
            }
            let mut depth = at.map_or(0, |g| depths[g]);
            while let Some(g) = path.pop() {
                depth += 1;
                depths[g] = depth;
            }
        }
        Ok(depths)
    }
}
