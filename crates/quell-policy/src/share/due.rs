//! The CPU time that threads are due while they run: the ideal of each step, from their observed activity.

use super::{Group, Problem, ProblemError, Thread, ideal};
use quell_model::CpuSet;
use std::collections::BTreeMap;

/// The bound of lag, in s of CPU time: service that could not be given for longer is not owed.
const LAG_MOST_S: f64 = 0.3;
/// The part of the lag beyond [`TURNS_S`] that is forgotten in each step. Lag whose cause is not seen
/// here, as where a real-time thread takes one CPU of several, would grow up to its bound, which each
/// thread would reach at another time; so lag stays in proportion to what is due.
const FORGETS: f64 = 0.02;
const TURNS_S: f64 = 0.02;
/// The bounds of the correction for lost CPU time. Where all threads together received another amount
/// than they were due, because something else took CPU time or a CPU idled beside a waiting thread,
/// the amount that each was due is scaled by the same ratio, within these bounds.
const PART: std::ops::RangeInclusive<f64> = 0.01..=1.5;
/// A rate from which on a thread is due a whole CPU, in CPUs.
const ALL: f64 = 0.999;

/// The observation of a thread up to now.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// A number that identifies the thread and is given to no other.
    pub key: u32,
    /// The thread's group, by its index; `None` is the root.
    pub group: Option<usize>,
    /// Weight among its siblings, 1 to 10 000.
    pub weight: u32,
    /// The CPUs that the thread may run on.
    pub cpus: CpuSet,
    /// CPU time that the thread has received, in ns.
    pub used_ns: u64,
    /// Time in which the thread was runnable, waiting or running, in ns.
    pub wanted_ns: u64,
    /// Whether the thread is runnable now.
    pub wants: bool,
    /// Whether the thread has ended: it is in no later step.
    pub ended: bool,
    /// Whether the thread began at its key's first step or since the step before that; if not, it comes
    /// back after a long sleep.
    pub born: bool,
}

/// The service that a thread is due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Due {
    /// The rate of service while the thread is runnable, in CPUs: above 0.0, at most 1.0.
    pub rate: f64,
    /// The lag: the service that the thread is owed so far, in s of CPU time; negative: it had more.
    pub lag_s: f64,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    used_ns: u64,
    wanted_ns: u64,
    /// The lag, in s of CPU time; negative: the thread had more than it was due.
    lag_s: f64,
}

/// Tracks the lag of threads: a fluid host beside the real one, on which the same threads run, each at
/// the rate that it is due.
///
/// The work that a thread has left is unknown. So a thread asks the fluid host for what it used of the
/// real one; it asks for as much as it can get while it is runnable on the real one; and a thread that
/// was served earlier there than here has work left here. Time advances in steps, of which only the
/// used and the runnable time count: so threads that are runnable for moments ask for a part of a
/// CPU, and what is due to all is weighted max-min fairness of what they ask over a step ([`ideal()`]).
///
/// Processes that are started one after the other count as one that is always there. So a thread that
/// began within a step competes with the part of its weight that is the part of the step in which it
/// was there; and a thread that has ended is forgotten, with the service that it had too much. Else
/// it would stay on the fluid host until it has made up for that, beside the next one, which in truth
/// began only as it ended: beside 8 loops that start processes of 15 ms, there would be 30 threads to
/// share with, and a thread that wants less than a ninth of the host would be ahead of what it is due.
#[derive(Debug, Default)]
pub struct Dues {
    known: BTreeMap<u32, Known>,
    at: Option<u64>,
}

impl Dues {
    /// Advances to now, in ns of any clock. `threads`: all threads that were, or might have been, runnable
    /// since the last step, at their keys' first step with the totals since they came; other threads are
    /// forgotten. Returns, for each thread, what it is due from now on; `None`: as before, since it did
    /// nothing.
    ///
    /// # Errors
    /// The groups and threads are no valid [`Problem`], as for [`ideal()`].
    pub fn step(
        &mut self,
        now: u64,
        cpus: &CpuSet,
        groups: &[Group],
        threads: &[Seen],
    ) -> Result<Vec<Option<Due>>, ProblemError> {
        let before = std::mem::take(&mut self.known);
        let since = self.at.replace(now).unwrap_or(now);
        let step_s = now.saturating_sub(since) as f64 / 1e9;
        let mut problem = Problem {
            cpus: cpus.clone(),
            groups: groups.to_vec(),
            threads: Vec::new(),
        };
        let mut active = Vec::new();
        for (place, thread) in threads.iter().enumerate() {
            let begins = thread.born && !before.contains_key(&thread.key);
            let known = before.get(&thread.key).copied().unwrap_or(Known {
                used_ns: 0,
                wanted_ns: 0,
                lag_s: 0.0,
            });
            let used_s = thread.used_ns.saturating_sub(known.used_ns) as f64 / 1e9;
            let wanted_s = thread.wanted_ns.saturating_sub(known.wanted_ns) as f64 / 1e9;
            self.known.insert(
                thread.key,
                Known {
                    used_ns: thread.used_ns,
                    wanted_ns: thread.wanted_ns,
                    lag_s: known.lag_s,
                },
            );
            // Service that the fluid host gave ahead of the real one, or has yet to give.
            let lag_s = known.lag_s;
            let wants_s = match thread.wants {
                true => wanted_s.max(used_s) + (-lag_s).max(0.0),
                false => (used_s - lag_s).max(0.0),
            };
            if step_s > 0.0 && (wants_s > 0.0 || used_s > 0.0 || wanted_s > 0.0) {
                active.push((place, used_s));
                problem.threads.push(Thread {
                    group: thread.group,
                    weight: match begins {
                        true => weight_of(thread.weight, wanted_s.max(used_s) / step_s),
                        false => thread.weight,
                    },
                    cpus: thread.cpus.clone(),
                    demand: (wants_s / step_s).min(1.0),
                });
            }
        }
        let mut out = vec![None; threads.len()];
        let ideal = ideal(&problem)?;
        let used: f64 = active.iter().map(|(_, used_s)| used_s).sum();
        let due = ideal.threads.iter().sum::<f64>() * step_s;
        let had = if due > 0.0 { used / due } else { 1.0 };
        let had = had.clamp(*PART.start(), *PART.end());
        for ((place, used_s), (thread, due)) in
            (active.into_iter()).zip(problem.threads.iter().zip(ideal.threads))
        {
            let seen = &threads[place];
            let Some(known) = self.known.get_mut(&seen.key) else {
                continue;
            };
            // A thread that is due a CPU of its own does not pay for CPU time that others lost.
            let part = if due > ALL { 1.0 } else { had };
            let long = known.lag_s - known.lag_s.clamp(-TURNS_S, TURNS_S);
            let lag_s = known.lag_s - long * FORGETS + due * part * step_s - used_s;
            // A sleeping thread had done its work on the fluid host as well: it is owed nothing.
            let most = if seen.wants { LAG_MOST_S } else { 0.0 };
            let lag_s = lag_s.clamp(-LAG_MOST_S, most);
            known.lag_s = lag_s;
            let rate = (due / thread.demand).min(1.0);
            out[place] = (thread.demand > 0.0).then_some(Due { rate, lag_s });
        }
        for thread in threads.iter().filter(|it| it.ended) {
            self.known.remove(&thread.key);
        }
        Ok(out)
    }
}

/// The weight of a thread that was there for this part of a step.
fn weight_of(weight: u32, part: f64) -> u32 {
    ((f64::from(weight) * part).round() as u32).clamp(1, weight.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Two threads of weights 100 and 300 on a CPU, stepped every 50 ms.
    struct Two {
        dues: Dues,
        now: u64,
        threads: [Seen; 2],
    }

    impl Two {
        fn new() -> Two {
            let thread = |key: u32, weight| Seen {
                key,
                group: None,
                weight,
                cpus: CpuSet::first(1),
                used_ns: 0,
                wanted_ns: 0,
                wants: true,
                ended: false,
                born: false,
            };
            let mut two = Two {
                dues: Dues::default(),
                now: 1000 * MS,
                threads: [thread(1, 100), thread(2, 300)],
            };
            two.step([(0, 0), (0, 0)]);
            two
        }

        /// 50 ms pass, in which each thread uses and wants the given times, in ms. Returns the rate that each
        /// is due, in percent of a CPU, and its lag in ms.
        fn step(&mut self, did: [(u64, u64); 2]) -> [(i64, i64); 2] {
            self.now += 50 * MS;
            for (thread, (used, wanted)) in self.threads.iter_mut().zip(did) {
                thread.used_ns += used * MS;
                thread.wanted_ns += wanted * MS;
            }
            let cpus = CpuSet::first(1);
            let due = self.dues.step(self.now, &cpus, &[], &self.threads);
            let due = due.unwrap();
            [0, 1].map(|it| {
                due[it].map_or((0, 0), |due| {
                    let percent = (due.rate * 100.0).round() as i64;
                    (percent, (due.lag_s * 1e3).round() as i64)
                })
            })
        }
    }

    #[test]
    fn who_always_wants_a_cpu_is_due_its_share() {
        // The columns are the used time; due are 12.5 and 37.5 of every 50 ms.
        let mut two = Two::new();
        assert_eq!(two.step([(25, 50), (25, 50)]), [(25, -13), (75, 13)]);
        assert_eq!(two.step([(0, 50), (50, 50)]), [(25, 0), (75, 0)]);
    }

    #[test]
    fn who_wants_less_is_due_that_at_once() {
        let mut two = Two::new();
        for _ in 0..4 {
            let [(rate, lag), (other, _)] = two.step([(5, 5), (45, 50)]);
            assert!(rate >= 70 && lag <= 0, "{rate} {lag}");
            assert!(other >= 85, "{other}");
        }
    }

    #[test]
    fn who_sleeps_is_owed_nothing_but_owes() {
        let mut two = Two::new();
        two.step([(50, 50), (0, 50)]);
        // The thread had 50 ms and was due 12.5.
        two.threads[0].wants = false;
        let [(_, lag), _] = two.step([(0, 0), (50, 50)]);
        assert!((-30..-20).contains(&lag), "{lag}");
        // The service that it was due after that it had before: it owes until it has made up for it.
        let lags: Vec<i64> = (0..4).map(|_| two.step([(0, 0), (50, 50)])[0].1).collect();
        assert_eq!(lags[3], 0, "{lags:?}");
        // The other thread lacks no service that it could have had.
        two.threads[1].wants = false;
        let [_, (_, lag)] = two.step([(0, 0), (0, 0)]);
        assert!(lag <= 0, "{lag}");
    }

    #[test]
    fn what_something_else_takes_is_nobodys_debt() {
        let mut two = Two::new();
        for _ in 0..100 {
            let [(_, one), (_, other)] = two.step([(8, 50), (24, 50)]);
            assert!(
                (-4..=4).contains(&one) && (-4..=4).contains(&other),
                "{one} {other}"
            );
        }
    }

    #[test]
    fn what_cannot_be_given_is_owed_within_a_bound() {
        let mut two = Two::new();
        for _ in 0..100 {
            let [(_, one), (_, other)] = two.step([(50, 50), (0, 50)]);
            assert!(one >= -300 && other <= 300, "{one} {other}");
        }
        // A thread that was forgotten starts without lag.
        (
            two.threads[0].key,
            two.threads[0].used_ns,
            two.threads[0].wanted_ns,
        ) = (3, 0, 0);
        let [(_, lag), _] = two.step([(0, 50), (50, 50)]);
        assert!((0..20).contains(&lag), "{lag}");
    }

    /// The second is a process that is followed by another in the middle of each step: together they are
    /// due the share of one.
    #[test]
    fn processes_one_after_another_are_due_what_one_is() {
        let thread = |key: u32, used, wanted, wants| Seen {
            key,
            group: None,
            weight: 100,
            cpus: CpuSet::first(1),
            used_ns: used * MS,
            wanted_ns: wanted * MS,
            wants,
            ended: !wants,
            born: true,
        };
        let mut dues = Dues::default();
        let mut step = |at: u64, threads: &[Seen]| {
            let due = dues.step(at * MS, &CpuSet::first(1), &[], threads);
            let due = due.unwrap().into_iter().flatten();
            due.map(|it| (it.rate * 100.0).round() as i64)
                .collect::<Vec<_>>()
        };
        step(1000, &[thread(1, 0, 0, true), thread(2, 0, 0, true)]);
        for at in 1..6 {
            let (first, next) = (at as u32 + 1, at as u32 + 2);
            let had = if at == 1 { 13 } else { 25 };
            let lived = if at == 1 { 25 } else { 50 };
            let threads = [
                thread(1, 25 * at, 50 * at, true),
                thread(first, had, lived, false),
                thread(next, 12, 25, true),
            ];
            let rates = step(1000 + 50 * at, &threads);
            assert!(rates[0] >= 48 && rates[2] <= 52, "{rates:?}");
        }
    }

    #[test]
    fn who_does_nothing_is_not_told_anything() {
        let mut two = Two::new();
        two.threads[0].wants = false;
        for _ in 0..3 {
            two.step([(0, 0), (50, 50)]);
        }
        two.now += 50 * MS;
        two.threads[1].wanted_ns += 50 * MS;
        let due = two.dues.step(two.now, &CpuSet::first(1), &[], &two.threads);
        let due = due.unwrap();
        assert_eq!(due[0], None);
        assert!(due[1].is_some());
    }
}
