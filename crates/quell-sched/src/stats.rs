//! The scheduler's counters.

use crate::layout::CpuCtx;
use quell_model::CpuId;
use serde::Serialize;
use std::ops::AddAssign;

/// Counters of one CPU, or of all, since the scheduler was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CpuStats {
    /// Tasks that began to run on the CPU.
    pub runs: u64,
    /// Wakeups done on this CPU that found an idle CPU.
    pub wakeups_idle: u64,
    /// Wakeups done on this CPU that preempted a task.
    pub wakeups_preempting: u64,
    /// Wakeups done on this CPU that queued the task.
    pub wakeups_queued: u64,
    /// Slices that the preemption timer ended.
    pub late: u64,
    /// Times the CPU was about to idle while a task had just been queued.
    pub rescued: u64,
    /// Slices that were renewed since no queued task preceded the running one.
    pub kept: u64,
    /// Time that tasks waited before they got this CPU, in ns.
    pub wait_ns: u64,
    /// The longest wait of a task for this CPU, in ns.
    pub worst_wait_ns: u64,
    /// The task with the longest wait.
    pub worst_wait_tid: u64,
}

impl AddAssign for CpuStats {
    fn add_assign(&mut self, other: CpuStats) {
        self.runs += other.runs;
        self.wakeups_idle += other.wakeups_idle;
        self.wakeups_preempting += other.wakeups_preempting;
        self.wakeups_queued += other.wakeups_queued;
        self.late += other.late;
        self.rescued += other.rescued;
        self.kept += other.kept;
        self.wait_ns += other.wait_ns;
        if other.worst_wait_ns > self.worst_wait_ns {
            self.worst_wait_ns = other.worst_wait_ns;
            self.worst_wait_tid = other.worst_wait_tid;
        }
    }
}

/// Counters of the host and of each CPU, since the scheduler was loaded.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Stats {
    /// The counters of all CPUs together.
    #[serde(flatten)]
    pub total: CpuStats,
    /// Sum of the weights of all runnable tasks.
    pub load: f64,
    /// Sum over all cgroups of their active weights: of their members with runnable tasks.
    pub group_load: f64,
    /// Tasks in the LLCs' DSQs.
    pub queued: u64,
    /// The counters of each CPU.
    pub cpus: Vec<(CpuId, CpuStats)>,
}

impl Stats {
    pub(crate) fn of<'a>(slots: impl Iterator<Item = (CpuId, &'a CpuCtx)>) -> Stats {
        let mut stats = Stats::default();
        for (cpu, slot) in slots {
            let one = CpuStats {
                runs: slot.runs,
                wakeups_idle: slot.wakeups_idle,
                wakeups_preempting: slot.wakeups_preempting,
                wakeups_queued: slot.wakeups_queued,
                late: slot.late,
                rescued: slot.rescued,
                kept: slot.kept,
                wait_ns: slot.wait_ns,
                worst_wait_ns: slot.worst_wait_ns,
                worst_wait_tid: slot.worst_wait_tid.into(),
            };
            stats.total += one;
            stats.cpus.push((cpu, one));
        }
        stats
    }
}
