//! What threads are due while they run: the ideal, over and over, from what they did.

use super::{Group, Problem, ProblemError, Thread, ideal};
use quell_model::CpuSet;
use std::collections::BTreeMap;

/// Lag is kept within this, in s of CPU time: what could not be given for so long is not owed.
const LAG_MOST_S: f64 = 0.3;
/// Of lag beyond what turns make, in s, that part is forgotten in each step. Lag that comes from what is not seen here, as where a
/// real-time thread takes one CPU of several, would grow up to its bound, which is another time for each thread; so it stays in
/// proportion to what is due.
const FORGETS: f64 = 0.02;
const TURNS_S: f64 = 0.02;
/// Where threads had another part of what they were due together than all of it, because something else took CPUs or one idled beside
/// one that waited, that part is what they were due; within these.
const PART: std::ops::RangeInclusive<f64> = 0.01..=1.5;
/// A rate that is a CPU, in CPUs.
const ALL: f64 = 0.999;

/// What a thread did up to now.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// A number that stays its own.
    pub key: u32,
    /// The group it is in, by its place; `None` is the root.
    pub group: Option<usize>,
    /// Weight among its siblings, 1 to 10 000.
    pub weight: u32,
    /// The CPUs it may run on.
    pub cpus: CpuSet,
    /// CPU time that it has had, in ns.
    pub used_ns: u64,
    /// Time in which it wanted a CPU, waiting or running, in ns.
    pub wanted_ns: u64,
    /// Whether it wants one now.
    pub wants: bool,
    /// Whether it has ended: it is not seen again.
    pub ended: bool,
    /// Whether it began at its key's first step or since the one before, instead of coming back after a long sleep.
    pub born: bool,
}

/// What a thread is due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Due {
    /// Of a CPU, while it wants one: above 0.0, at most 1.0.
    pub rate: f64,
    /// What it had less than it was due, so far, in s of CPU time; negative: more.
    pub lag_s: f64,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    used_ns: u64,
    wanted_ns: u64,
    /// What it lacks.
    lag_s: f64,
}

/// Keeps what threads lack: a fluid host beside the real one, on which the same threads run, each as much as it is due.
///
/// Nobody knows what work a thread has left. So it wants of the fluid host what it used of the real one; it wants as much as
/// it can get for as long as it wants a CPU there; and who was served earlier there than here has work left here. Time goes in
/// steps, of which only what was used and wanted in each is looked at: so threads that want a CPU for moments want a part of one,
/// and what is due to all is weighted max-min fairness of what they want over a step ([`ideal()`]).
///
/// Processes that are started one after the other count as one that is always there. So one that began within a step competes for the part of it in
/// which it was there, with that part of its weight; and one that has ended is forgotten, with what it had too much. Else it would go on
/// there until it has made up for that, beside the next one, which in truth began only as it ended: beside 8 loops that start processes of 15 ms,
/// there would be 30 threads to share with, and who wants less than a ninth of the host would be ahead of what it is due.
#[derive(Debug, Default)]
pub struct Dues {
    known: BTreeMap<u32, Known>,
    at: Option<u64>,
}

impl Dues {
    /// Goes on to now, in ns of any clock. `threads`: all that wanted CPUs since the last step, or might have, at their keys'
    /// first step with what they did since they came; others are forgotten. Gives, for each, what it is due from now on; `None`:
    /// as before, it did nothing.
    ///
    /// # Errors
    /// As [`ideal()`].
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
            // What the fluid host did for it already, or has yet to do.
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
            // Who is due a CPU of its own is not to pay for it.
            let part = if due > ALL { 1.0 } else { had };
            let long = known.lag_s - known.lag_s.clamp(-TURNS_S, TURNS_S);
            let lag_s = known.lag_s - long * FORGETS + due * part * step_s - used_s;
            // Who sleeps had done its work there as well: it is owed nothing.
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

/// The weight of a thread that was there for that part of a step.
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

        /// 50 ms pass, in which they use and want so many ms. Gives what each is due of a CPU in percent, and lacks in ms.
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
        // Used, and what is due then: 12.5 and 37.5 of every 50 ms.
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
        // It had 50 and was due 12.5.
        two.threads[0].wants = false;
        let [(_, lag), _] = two.step([(0, 0), (50, 50)]);
        assert!((-30..-20).contains(&lag), "{lag}");
        // And what it was due after that it had before: until it has made up for it.
        let lags: Vec<i64> = (0..4).map(|_| two.step([(0, 0), (50, 50)])[0].1).collect();
        assert_eq!(lags[3], 0, "{lags:?}");
        // The other lacks nothing that it could have had.
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
        // Who is forgotten comes anew.
        (
            two.threads[0].key,
            two.threads[0].used_ns,
            two.threads[0].wanted_ns,
        ) = (3, 0, 0);
        let [(_, lag), _] = two.step([(0, 50), (50, 50)]);
        assert!((0..20).contains(&lag), "{lag}");
    }

    /// The second is a process that is followed by another in the middle of each step: they have the share of one.
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
