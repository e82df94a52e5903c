//! Random workloads: a workload for each number.
//!
//! Each workload has tasks that are watched, periodic tasks that use less than half of what they are due, and
//! other tasks beside them. Times are drawn uniformly on a logarithmic scale.

use super::light::due;
use super::workload::{Group, Kind, Task, Workload};
use quell_model::{CpuId, CpuSet};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The shortest and the longest time of a step, in µs.
const SHORTEST: f64 = 20.0;
const LONGEST: f64 = 50_000.0;
/// The greatest number of threads that may be ready at a time.
const MOST_THREADS: u32 = 60;
/// The greatest number of tasks that are watched.
const MOST_LIGHT: u32 = 4;
/// The greatest part of what they are due that watched tasks use.
const LIGHT: f64 = 0.45;

impl Workload {
    /// The workload of this number.
    pub fn random(seed: u64) -> Workload {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let cpus = rng.random_range(1..=8u32);
        let caches = match rng.random_range(0..3) {
            0 => rng.random_range(1..=cpus.min(4)),
            _ => 1,
        };
        let mut it = Workload {
            cpus,
            cache_cpus: cpus.div_ceil(caches),
            groups: groups(&mut rng),
            tasks: Vec::new(),
        };
        let most = log_uniform(&mut rng, 1.0, f64::from(MOST_THREADS)).round() as u32;
        while it.threads() < most {
            let left = most - it.threads();
            let (does, count) = bystander(&mut rng, left);
            let task = place(&mut rng, &it, does, count);
            it.tasks.push(task);
        }
        for _ in 0..rng.random_range(1..=MOST_LIGHT) {
            add_light(&mut rng, &mut it);
        }
        it
    }
}

fn log_uniform(rng: &mut ChaCha8Rng, low: f64, high: f64) -> f64 {
    (rng.random_range(low.ln()..=high.ln())).exp()
}

/// A random time, rounded to two digits.
fn time(rng: &mut ChaCha8Rng, low: f64, high: f64) -> u32 {
    rounded(log_uniform(rng, low, high))
}

fn rounded(us: f64) -> u32 {
    let unit = 10f64.powf(us.max(1.0).log10().floor() - 1.0);
    ((us / unit).round() * unit).max(1.0) as u32
}

fn groups(rng: &mut ChaCha8Rng) -> Vec<Group> {
    let count = match rng.random_range(0..2) {
        0 => 0,
        _ => rng.random_range(1..=4),
    };
    let mut groups: Vec<Group> = Vec::new();
    for number in 0..count {
        let nested = number > 0 && rng.random_range(0..3) == 0;
        groups.push(Group {
            within: nested.then(|| rng.random_range(0..number)),
            weight: [10, 50, 100, 100, 100, 200, 1000][rng.random_range(0..7)],
        });
    }
    groups
}

/// A task with its place. Groups that hold other groups get no tasks of their own, as in cgroup v2.
fn place(rng: &mut ChaCha8Rng, of: &Workload, does: Kind, count: u32) -> Task {
    let holds = |group: usize| of.groups.iter().any(|it| it.within == Some(group));
    let free = (0..of.groups.len()).filter(|&group| !holds(group));
    let free: Vec<usize> = free.collect();
    let in_root = free.is_empty() || rng.random_range(0..3) == 0;
    let group = (!in_root).then(|| free[rng.random_range(0..free.len())]);
    let bound = of.cpus > 1 && rng.random_range(0..4) == 0;
    let cpus = bound.then(|| {
        let low = rng.random_range(0..of.cpus);
        let high = match rng.random_range(0..2) {
            0 => low,
            _ => rng.random_range(low..of.cpus),
        };
        (low..=high).map(CpuId).collect::<CpuSet>()
    });
    let cpus = cpus.filter(|cpus| cpus.len() < of.cpus as usize);
    let nice = match rng.random_range(0..4) {
        0 => rng.random_range(-10..=10),
        _ => 0,
    };
    Task {
        count,
        nice,
        group,
        cpus,
        does,
    }
}

/// A task that is not watched: what it does and how many processes it has, with at most `left` threads.
fn bystander(rng: &mut ChaCha8Rng, left: u32) -> (Kind, u32) {
    let mut number = |low: u32, high: u32| {
        let high = high.min(left).max(low);
        log_uniform(rng, f64::from(low), f64::from(high)).round() as u32
    };
    // Loops and processes are drawn more often: they are what other threads wait for.
    let kinds = [0, 0, 1, 2, 3, 4, 5, 6, 6, 6, 7, 8];
    let (some, many, few) = (number(1, 8), number(1, 60), number(1, 10));
    let run_us = time(rng, SHORTEST, LONGEST);
    let short_us = time(rng, SHORTEST, 2000.0);
    let sleep_us = time(rng, SHORTEST, LONGEST);
    let drawn = rng.random();
    let does = match kinds[rng.random_range(0..kinds.len())] {
        0 => return (Kind::Loop, many),
        1 => {
            let does = Kind::Periodic {
                run_us,
                sleep_us,
                drawn,
            };
            return (does, some);
        }
        2 => Kind::Chain {
            links: some.max(2),
            run_us: short_us,
            sleep_us,
        },
        3 => Kind::Messages {
            senders: some,
            receivers: few,
            run_us: short_us,
        },
        4 => Kind::PingPong { run_us: short_us },
        5 => Kind::ForkJoin {
            helpers: some,
            run_us,
            sleep_us,
        },
        6 => return (Kind::Maker { run_us, drawn }, few),
        7 => Kind::Bomb { most: many, run_us },
        _ => Kind::Crowd {
            size: many,
            run_us,
            sleep_us,
        },
    };
    (does, 1)
}

/// Adds a periodic task that uses less than half of what it is due.
fn add_light(rng: &mut ChaCha8Rng, to: &mut Workload) {
    let (mut run_us, mut sleep_us) = (SHORTEST as u32, LONGEST as u32);
    let drawn = rng.random();
    let does = Kind::Periodic {
        run_us,
        sleep_us,
        drawn,
    };
    let task = place(rng, to, does, 1);
    to.tasks.push(task);
    // The part of a CPU that the task is due, and the part of it that it will use.
    let due = due(to).last().and_then(|of| of.first().copied());
    let uses = due.unwrap_or(0.0) * log_uniform(rng, 0.02, LIGHT);
    let part = uses / (1.0 - uses);
    // The task must not run for less than the shortest time.
    let least = (SHORTEST / part).max(200.0);
    if least < LONGEST {
        let sleep = log_uniform(rng, least, LONGEST);
        let run = (sleep * part).clamp(SHORTEST, LONGEST);
        (run_us, sleep_us) = (rounded(run), rounded(sleep));
    }
    if let Some(task) = to.tasks.last_mut() {
        task.does = Kind::Periodic {
            run_us,
            sleep_us,
            drawn,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_workload() {
        for seed in 0..300 {
            let it = Workload::random(seed);
            assert_eq!(it, Workload::random(seed));
            assert!((1..=8).contains(&it.cpus) && it.cache_cpus >= 1, "{seed}");
            assert!((1..=MOST_THREADS + 10 + MOST_LIGHT).contains(&it.threads()));
            let text = toml::to_string(&it).unwrap();
            assert_eq!(toml::from_str::<Workload>(&text).unwrap(), it, "{text}");
            for task in &it.tasks {
                let in_group = |group: usize| it.groups.iter().all(|of| of.within != Some(group));
                assert!(task.group.is_none_or(in_group), "{seed}");
                assert!(task.cpus.as_ref().is_none_or(|cpus| !cpus.is_empty()));
            }
        }
    }

    #[test]
    fn many_have_births_and_nearly_all_somebody_light() {
        let all: Vec<Workload> = (0..400).map(Workload::random).collect();
        let births = |it: &&Workload| it.tasks.iter().any(|task| task.does.gives_birth());
        assert!(all.iter().filter(births).count() > 150);
        let light = |it: &&Workload| !super::super::light::light(it).is_empty();
        assert!(all.iter().filter(light).count() > 350);
    }
}
