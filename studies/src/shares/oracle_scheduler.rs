//! A scheduler that is told what is due, as an oracle: how near to it any scheduler can come.

use super::STEP_S;
use super::hosts::Host;
use pathfinding::kuhn_munkres::kuhn_munkres;
use pathfinding::matrix::Matrix;
use quell_model::CpuId;
use quell_sim::{Class, Machine, Nanos, Pick, State, ThreadId};
use std::collections::BTreeSet;

/// How often CPUs are given anew, in ns.
const ROUND: Nanos = 1_000_000;
/// No CPU idles, whatever the lags are: more than all lags together, in ns.
const CONSERVES: i64 = 1_000_000_000_000;
/// A thread moves to another CPU only for more lag than this, in ns.
const STAYS: i64 = 1_000;

/// Gives CPUs, every millisecond and at each block, to the threads that want one and lack most of what is
/// due. Of all ways to use as many CPUs as can be used, it takes the one with the greatest sum of what
/// threads, their groups and the groups around them lack. Choosing so keeps lags bounded wherever any
/// schedule does (Tassiulas and Ephremides, IEEE Trans. Automat. Contr. 37(12), 1992).
pub(super) struct Told {
    host: Host,
    /// When threads begin to be due anything, in ns.
    begins: Nanos,
    /// By thread: what is due up to the end of each step, in s.
    due: Vec<Vec<f64>>,
    /// The CPU time that threads got before that, in ns.
    before: Option<Vec<Nanos>>,
    waiting: BTreeSet<ThreadId>,
    /// The thread that is to run on each CPU, and since when the plan holds.
    plan: Vec<Option<ThreadId>>,
    planned: Option<Nanos>,
}

impl Told {
    pub(super) fn new(host: &Host, begins: Nanos, due: Vec<Vec<f64>>) -> Told {
        Told {
            host: host.clone(),
            begins,
            due,
            before: None,
            waiting: BTreeSet::new(),
            plan: vec![None; host.problem.cpus.len()],
            planned: None,
        }
    }

    /// What each thread, its group and the groups around it lack together, in ns.
    fn lags(&mut self, machine: &Machine) -> Vec<i64> {
        let ids = || (0..self.host.wants.len() as u32).map(ThreadId);
        let got: Vec<Nanos> = ids().map(|thread| machine.cpu_time(thread)).collect();
        let since = match machine.now.checked_sub(self.begins) {
            Some(since) => since as f64 / 1e9 / STEP_S,
            None => return got.iter().map(|got| -(*got as i64)).collect(),
        };
        let before = self.before.get_or_insert_with(|| got.clone());
        let step = since as usize;
        let until = |thread: usize, step: usize| match step {
            0 => 0.0,
            step => self.due[step.min(self.due.len()) - 1][thread],
        };
        let lag = |thread: usize| {
            let (last, next) = (until(thread, step), until(thread, step + 1));
            let due = last + (next - last) * (since - step as f64);
            due - (got[thread] - before[thread]) as f64 / 1e9
        };
        let threads: Vec<f64> = (0..got.len()).map(lag).collect();
        let groups = self.host.by_group(threads.iter().copied());
        let all = |thread: usize| {
            let mut sum = threads[thread];
            let mut at = self.host.problem.threads[thread].group;
            while let Some(group) = at {
                sum += groups[group];
                at = self.host.problem.groups[group].parent;
            }
            (sum * 1e9) as i64
        };
        (0..got.len()).map(all).collect()
    }

    fn plan(&mut self, machine: &mut Machine, here: CpuId) {
        let lags = self.lags(machine);
        let running = machine.cpu_ids().filter(|cpu| *cpu != here);
        let running = running.filter_map(|cpu| machine.cpu(cpu).current);
        let wanting: BTreeSet<ThreadId> = self.waiting.iter().copied().chain(running).collect();
        let wanting: Vec<ThreadId> = wanting.into_iter().collect();
        let cpus = self.plan.len();
        let worth = |(cpu, column): (usize, usize)| match wanting.get(column) {
            None => 0,
            Some(&thread) => {
                let (it, cpu) = (machine.thread(thread), CpuId(cpu as u32));
                let stays = if it.cpu == cpu { STAYS } else { 0 };
                match it.may_use(cpu) {
                    true => CONSERVES + lags[thread.index()] + stays,
                    false => -CONSERVES,
                }
            }
        };
        // A column for each thread that wants a CPU, and one for each CPU that idles.
        let worth = Matrix::from_fn(cpus, wanting.len() + cpus, worth);
        let (_, columns) = kuhn_munkres(&worth);
        for (plan, column) in self.plan.iter_mut().zip(columns) {
            *plan = wanting.get(column).copied();
        }
        self.planned = Some(machine.now);
        for cpu in machine.cpu_ids().filter(|cpu| *cpu != here) {
            if machine.cpu(cpu).current != self.plan[cpu.0 as usize] {
                machine.kick(cpu);
            }
        }
    }
}

impl Class for Told {
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId) {
        self.waiting.insert(thread);
        self.planned = None;
        machine.kick_idle_for(thread);
    }

    fn block(&mut self, _: &mut Machine, _: CpuId, _: ThreadId) {
        self.planned = None;
    }

    fn set_allowed(&mut self, machine: &mut Machine, thread: ThreadId) {
        self.planned = None;
        if machine.thread(thread).state == State::Ready {
            machine.kick_idle_for(thread);
        }
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        self.waiting.extend(ran);
        if self.planned != Some(machine.now) {
            self.plan(machine, cpu);
        }
        // A thread that still runs elsewhere comes once that CPU has looked, at this moment.
        let next = self.plan[cpu.0 as usize].filter(|next| self.waiting.remove(next));
        if let Some(displaced) = ran.filter(|_| ran != next) {
            let to = self.plan.iter().position(|it| *it == Some(displaced));
            if let Some(to) = to {
                machine.kick(CpuId(to as u32));
            }
        }
        next.map(|thread| Pick {
            thread,
            turn: Some(ROUND - machine.now % ROUND),
        })
    }
}
