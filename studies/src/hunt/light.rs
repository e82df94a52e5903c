//! Light tasks: tasks that use less than half of what they are due, whatever other tasks do.
//!
//! What a thread is due is what weighted max-min fairness gives it where all threads of a workload always
//! want a CPU ([`quell_policy::share::ideal`]): if other threads want less, it is due no less. A scheduler
//! may have a light task wait for a slice of another task, and for no more than that.

use super::workload::Workload;
use quell_model::{CpuSet, Nice};
use quell_policy::share::{Group, Problem, Thread, ideal};

/// A light task uses less than this part of what it is due.
const LIGHT: f64 = 0.5;

/// By task: what each thread of the task's first process is due at least, in CPUs.
pub(super) fn due(workload: &Workload) -> Vec<Vec<f64>> {
    let all = CpuSet::first(workload.cpus);
    let groups = workload.groups.iter().map(|it| Group {
        parent: it.within,
        weight: it.weight,
        limit: None,
    });
    let mut problem = Problem {
        cpus: all.clone(),
        groups: groups.collect(),
        threads: Vec::new(),
    };
    let mut firsts = Vec::new();
    for task in &workload.tasks {
        firsts.push(problem.threads.len());
        let weight = Nice::new(task.nice).unwrap_or_default().weight();
        let weight = (weight.as_load() * 100.0 / 1024.0).round().max(1.0) as u32;
        for _ in 0..task.count * task.does.threads() {
            problem.threads.push(Thread {
                group: task.group,
                weight,
                cpus: task.cpus.clone().unwrap_or_else(|| all.clone()),
                demand: 1.0,
            });
        }
    }
    let due = ideal(&problem).map(|ideal| ideal.threads);
    let due = due.unwrap_or_else(|_| vec![0.0; problem.threads.len()]);
    let of = |(task, first): (&super::workload::Task, usize)| {
        due[first..first + task.does.threads() as usize].to_vec()
    };
    workload.tasks.iter().zip(firsts).map(of).collect()
}

/// The indices of the light tasks.
pub fn light(workload: &Workload) -> Vec<usize> {
    let due = due(workload);
    let tasks = workload.tasks.iter().zip(&due).enumerate();
    let light = tasks.filter(|(_, (task, due))| {
        let least = due.iter().copied().reduce(f64::min).unwrap_or(0.0);
        task.does.uses().is_some_and(|uses| uses < LIGHT * least)
    });
    light.map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_uses_less_than_half_of_its_share() {
        let text = r#"
            cpus = 2
            cache_cpus = 2
            [[group]]
            weight = 300
            [[task]]
            count = 2
            nice = 0
            does = { periodic = { run_us = 100, sleep_us = 900, drawn = false } }
            [[task]]
            count = 3
            nice = 0
            group = 0
            does = "loop"
            [[task]]
            count = 1
            nice = 0
            group = 0
            does = { periodic = { run_us = 350, sleep_us = 650, drawn = true } }
            [[task]]
            count = 3
            nice = 0
            cpus = "1"
            does = "loop"
            [[task]]
            count = 1
            nice = 0
            cpus = "1"
            does = { periodic = { run_us = 10, sleep_us = 990, drawn = true } }
        "#;
        let it: Workload = toml::from_str(text).unwrap();
        let due = due(&it);
        // 2 CPUs are divided by the weights 2 x 100, 300 and 4 x 100.
        let each = 2.0 / 9.0;
        for (task, is) in [
            (0, each),
            (1, 3.0 * each / 4.0),
            (2, 3.0 * each / 4.0),
            (3, each),
        ] {
            assert!((due[task][0] - is).abs() < 1e-6, "{task}: {due:?}");
        }
        assert_eq!(light(&it), [0, 4]);
    }
}
