//! Makes a find smaller for as long as it stays a find.
//!
//! A workload of forty tasks says little of what is wrong. One piece after the other is left out or made
//! simpler: tasks, half of a task's processes, groups, CPUs, affinities and nice values; and times are made
//! round. A smaller workload that is still a find replaces the larger one; the order of steps is fixed, so
//! that equal finds shrink to equal workloads.

use super::workload::{Group, Workload};
use quell_model::{CpuId, CpuSet};

/// The greatest number of workloads that are tried.
const MOST_TRIES: u32 = 250;

/// The smallest workload that `is_find` is true of, as far as these steps find it.
pub fn shrink(workload: &Workload, mut is_find: impl FnMut(&Workload) -> bool) -> Workload {
    let mut best = workload.clone();
    let mut tries = 0;
    loop {
        let before = best.clone();
        for step in STEPS {
            let mut at = 0;
            while let Some(smaller) = step(&best, at) {
                if tries >= MOST_TRIES {
                    return best;
                }
                if smaller == best {
                    at += 1;
                    continue;
                }
                tries += 1;
                match is_find(&smaller) {
                    true => best = smaller,
                    false => at += 1,
                }
            }
        }
        if best == before {
            return best;
        }
    }
}

/// Makes the piece with this number smaller; `None`: there are no more pieces. An unchanged workload means
/// that the piece is already as small as it gets.
type Smaller = fn(&Workload, usize) -> Option<Workload>;

const STEPS: [Smaller; 9] = [
    without_task,
    with_half_of_a_task,
    without_group,
    with_fewer_cpus,
    with_one_cache,
    unbound,
    with_usual_weights,
    with_half_of_a_number,
    with_round_numbers,
];

fn without_task(of: &Workload, at: usize) -> Option<Workload> {
    let mut it = of.clone();
    (at < it.tasks.len()).then(|| {
        it.tasks.remove(at);
        it
    })
}

fn with_half_of_a_task(of: &Workload, at: usize) -> Option<Workload> {
    let mut it = of.clone();
    let task = it.tasks.get_mut(at)?;
    task.count = task.count.div_ceil(2);
    Some(it)
}

/// Without a group: its members move to the group around it.
fn without_group(of: &Workload, at: usize) -> Option<Workload> {
    let mut it = of.clone();
    if at >= it.groups.len() {
        return None;
    }
    let above = it.groups.remove(at).within;
    let moved = |group: Option<usize>| match group {
        Some(group) if group == at => above,
        Some(group) if group > at => Some(group - 1),
        other => other,
    };
    for group in &mut it.groups {
        group.within = moved(group.within);
    }
    for task in &mut it.tasks {
        task.group = moved(task.group);
    }
    Some(it)
}

/// Half of the CPUs, or one less.
fn with_fewer_cpus(of: &Workload, at: usize) -> Option<Workload> {
    let cpus = match at {
        0 => of.cpus.div_ceil(2),
        1 => of.cpus.max(2) - 1,
        _ => return None,
    };
    let mut it = of.clone();
    (it.cpus, it.cache_cpus) = (cpus, it.cache_cpus.min(cpus));
    for task in &mut it.tasks {
        let Some(bound) = &task.cpus else { continue };
        // A task that was bound to CPUs that are gone is bound to others instead.
        let kept: CpuSet = bound.iter().map(|cpu| CpuId(cpu.0 % cpus)).collect();
        task.cpus = Some(kept).filter(|kept| kept.len() < cpus as usize);
    }
    Some(it)
}

fn with_one_cache(of: &Workload, at: usize) -> Option<Workload> {
    let mut it = of.clone();
    it.cache_cpus = it.cpus;
    (at == 0).then_some(it)
}

fn unbound(of: &Workload, at: usize) -> Option<Workload> {
    let mut it = of.clone();
    it.tasks.get_mut(at)?.cpus = None;
    Some(it)
}

fn with_usual_weights(of: &Workload, at: usize) -> Option<Workload> {
    let mut it = of.clone();
    match at.checked_sub(it.tasks.len()) {
        None => it.tasks.get_mut(at)?.nice = 0,
        Some(group) => {
            let Group { weight, .. } = it.groups.get_mut(group)?;
            *weight = 100;
        }
    }
    Some(it)
}

/// Half of a number of threads or processes, where a task's kind has such a number.
fn with_half_of_a_number(of: &Workload, at: usize) -> Option<Workload> {
    let mut it = of.clone();
    let does = &mut it.tasks.get_mut(at)?.does;
    let least = match does {
        super::workload::Kind::Chain { .. } => 2,
        super::workload::Kind::Messages { .. }
        | super::workload::Kind::ForkJoin { .. }
        | super::workload::Kind::Bomb { .. }
        | super::workload::Kind::Crowd { .. } => 1,
        _ => return Some(it),
    };
    if let Some(number) = does.numbers().first_mut() {
        **number = number.div_ceil(2).max(least);
    }
    Some(it)
}

/// Times and numbers of one digit: 1, 2 or 5.
fn with_round_numbers(of: &Workload, at: usize) -> Option<Workload> {
    let mut it = of.clone();
    for number in it.tasks.get_mut(at)?.does.numbers() {
        if *number > 9 {
            *number = round(*number);
        }
    }
    Some(it)
}

fn round(number: u32) -> u32 {
    let unit = 10u32.pow(number.max(1).ilog10());
    let digits = [1, 2, 5, 10].map(|digit| digit * unit);
    let off = |it: &u32| it.abs_diff(number);
    digits.into_iter().min_by_key(off).unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hunt::workload::Kind;

    #[test]
    fn what_makes_it_a_find_is_left() {
        for seed in 0..40 {
            let mut it = Workload::random(seed);
            it.tasks.push(crate::hunt::workload::Task {
                count: 5,
                nice: 3,
                group: None,
                cpus: None,
                does: Kind::Maker {
                    run_us: 15_300,
                    drawn: true,
                },
            });
            let two_makers = |it: &Workload| {
                let makers = it
                    .tasks
                    .iter()
                    .filter(|it| matches!(it.does, Kind::Maker { .. }));
                makers.map(|it| it.count).sum::<u32>() >= 2
            };
            let small = shrink(&it, two_makers);
            assert!(two_makers(&small));
            assert_eq!((small.cpus, small.groups.len()), (1, 0), "{small}");
            assert!(small.tasks.len() <= 2 && small.threads() <= 3, "{small}");
            assert!(
                small
                    .tasks
                    .iter()
                    .all(|it| it.nice == 0 && it.cpus.is_none())
            );
            assert_eq!(small, shrink(&it, two_makers));
        }
    }

    #[test]
    fn numbers_become_round() {
        let rounded = [(17, 20), (34, 20), (36, 50), (999, 1000), (15_300, 20_000)];
        for (is, becomes) in rounded {
            assert_eq!(round(is), becomes);
        }
    }
}
