//! What threads are due while they run: the ideal, over and over, from what they did.

use super::{Group, Ideal, Problem, ProblemError, Thread, ideal};
use quell_model::{CpuId, CpuSet};
use std::collections::BTreeMap;

/// Lag is kept within this, in s of CPU time: what could not be given for so long is not owed.
const LAG_MOST_S: f64 = 0.3;
/// Of lag beyond what turns make, in s, that part is forgotten in each step. Lag that comes from what is not seen here
/// would grow up to its bound, which is another time for each thread; so it stays in proportion to what is due. And what one
/// lacks that shares its CPU only with those that want less than they are due, nobody can make up for. But who is due
/// next to nothing has to make up for each of its turns.
const FORGETS: f64 = 0.02;
const TURNS_S: f64 = 0.01;
/// Where threads had another part of what they were due together than all of it, because a CPU idled beside one that waited or what CPUs
/// offer just changed, that part is what they were due; within these.
const PART: std::ops::RangeInclusive<f64> = 0.01..=1.5;
/// Whose tenant is due so many times what CPU time is on average, by weight, is heavy.
const HEAVY: f64 = 1.1;
/// A part of what a CPU offers that is all of it.
const ALL: f64 = 0.999;
/// And the least that one offers, so that whoever may run there only is due something.
const OFFER_LEAST: f64 = 0.01;
/// What CPUs offer is an average over so many steps, about: of what a thread has had so far in its turn nothing is known before it ends.
const STEPS: f64 = 32.0;
/// At first over so many.
const STEPS_LEAST: f64 = 4.0;
/// What was read while the CPU ceased to idle may count twice; within that.
const PART_MOST: f64 = 2.0;

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
}

/// What a CPU did up to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenCpu {
    /// Which.
    pub id: CpuId,
    /// CPU time that threads have had there, in ns.
    pub used_ns: u64,
    /// Time in which it idled, in ns. What is left went to interrupts, other scheduling classes and the like.
    pub idle_ns: u64,
}

/// What a thread is due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Due {
    /// Of a CPU, while it wants one: above 0.0, at most 1.0.
    pub rate: f64,
    /// What it had less than it was due, so far, in s of CPU time; negative: more.
    pub lag_s: f64,
    /// Whether its tenant is due more, by its weight, than CPU time is on average.
    pub heavy: bool,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    used_ns: u64,
    wanted_ns: u64,
    /// What it lacks.
    lag_s: f64,
}

#[derive(Debug, Clone, Copy)]
struct KnownCpu {
    used_ns: u64,
    idle_ns: u64,
    /// What it offers, in CPUs; more than one now and then, as steps end within turns. On average over so many steps.
    offer: f64,
    steps: f64,
}

/// Keeps what threads lack: a fluid host beside the real one, on which the same threads run, each as much as it is due.
///
/// Nobody knows what work a thread has left. So it wants of the fluid host what it used of the real one; it wants as much as
/// it can get for as long as it wants a CPU there; and who was served earlier there than here has work left here. Time goes in
/// steps, of which only what was used and wanted in each is looked at: so threads that want a CPU for moments want a part of one,
/// and what is due to all is weighted max-min fairness of what they want over a step ([`ideal()`]).
#[derive(Debug, Default)]
pub struct Dues {
    known: BTreeMap<u32, Known>,
    cpus: BTreeMap<CpuId, KnownCpu>,
    at: Option<u64>,
}

impl Dues {
    /// Goes on to now, in ns of any clock. `cpus`: those that are online. `threads`: all that wanted CPUs since the last step, or might have, at their keys'
    /// first step with what they did since they came; others are forgotten. Gives, for each, what it is due from now on; `None`:
    /// as before, it did nothing.
    ///
    /// # Errors
    /// As [`ideal()`].
    pub fn step(
        &mut self,
        now: u64,
        cpus: &[SeenCpu],
        groups: &[Group],
        threads: &[Seen],
    ) -> Result<Vec<Option<Due>>, ProblemError> {
        let before = std::mem::take(&mut self.known);
        let since = self.at.replace(now).unwrap_or(now);
        let step_s = now.saturating_sub(since) as f64 / 1e9;
        self.look_at(cpus, step_s);
        let mut problem = Problem {
            cpus: self.cpus.keys().copied().collect(),
            offers: (self.cpus.iter())
                .map(|(&id, cpu)| (id, cpu.offer.clamp(OFFER_LEAST, 1.0)))
                .collect(),
            groups: groups.to_vec(),
            threads: Vec::new(),
        };
        let mut active = Vec::new();
        for (place, thread) in threads.iter().enumerate() {
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
                    weight: thread.weight,
                    cpus: thread.cpus.clone(),
                    demand: (wants_s / step_s).min(1.0),
                });
            }
        }
        let mut out = vec![None; threads.len()];
        let ideal = ideal(&problem)?;
        let heavy = heavy(&problem, &ideal);
        let used: f64 = active.iter().map(|(_, used_s)| used_s).sum();
        let due = ideal.threads.iter().sum::<f64>() * step_s;
        let had = if due > 0.0 { used / due } else { 1.0 };
        let had = had.clamp(*PART.start(), *PART.end());
        for ((place, used_s), ((thread, due), heavy)) in
            (active.into_iter()).zip(problem.threads.iter().zip(ideal.threads).zip(heavy))
        {
            let seen = &threads[place];
            let Some(known) = self.known.get_mut(&seen.key) else {
                continue;
            };
            // Who is due all that a CPU offers is not to pay for it.
            let offers = seen.cpus.iter().map(|cpu| problem.offer(cpu));
            let part = if due > ALL * offers.fold(0.0, f64::max) {
                1.0
            } else {
                had
            };
            let long = known.lag_s - known.lag_s.clamp(-TURNS_S, TURNS_S);
            let lag_s = known.lag_s - long * FORGETS + due * part * step_s - used_s;
            // Who sleeps had done its work there as well: it is owed nothing.
            let most = if seen.wants { LAG_MOST_S } else { 0.0 };
            let lag_s = lag_s.clamp(-LAG_MOST_S, most);
            known.lag_s = lag_s;
            let rate = (due / thread.demand).min(1.0);
            out[place] = (thread.demand > 0.0).then_some(Due { rate, lag_s, heavy });
        }
        Ok(out)
    }

    /// Keeps what CPUs offer. One that was not there the last time offers all.
    fn look_at(&mut self, cpus: &[SeenCpu], step_s: f64) {
        let before = std::mem::take(&mut self.cpus);
        for seen in cpus {
            let (used_ns, idle_ns) = (seen.used_ns, seen.idle_ns);
            let (mut offer, mut steps) = (1.0, STEPS_LEAST);
            if let Some(known) = before.get(&seen.id) {
                (offer, steps) = (known.offer, known.steps);
                let had_ns =
                    used_ns.saturating_sub(known.used_ns) + idle_ns.saturating_sub(known.idle_ns);
                // One that has idled since before anybody looked is not known to idle, nor for how much of its first step.
                let known_all = known.used_ns + known.idle_ns > 0 && (had_ns > 0 || idle_ns > 0);
                if step_s > 0.0 && known_all {
                    let part = (had_ns as f64 / 1e9 / step_s).min(PART_MOST);
                    offer += (part - offer) / steps;
                    steps = STEPS.min(steps + 1.0);
                }
            }
            let known = KnownCpu {
                used_ns,
                idle_ns,
                offer,
                steps,
            };
            self.cpus.insert(seen.id, known);
        }
    }
}

/// By thread, whether its tenant (the outermost group around it, or itself) is due more, by its weight, than the average of what is
/// due. Everybody is due as much, by weight, where all want more than they can have.
fn heavy(problem: &Problem, ideal: &Ideal) -> Vec<bool> {
    let tenant = |mut at: usize| {
        while let Some(outer) = problem.groups[at].parent {
            at = outer;
        }
        at
    };
    let level = |due: f64, weight: u32| due / f64::from(weight);
    let threads: Vec<(f64, f64)> = (problem.threads.iter().zip(&ideal.threads))
        .map(|(thread, due)| {
            let outer = thread.group.map(tenant);
            let level = match outer {
                Some(group) => level(ideal.groups[group], problem.groups[group].weight),
                None => level(*due, thread.weight),
            };
            (*due, level)
        })
        .collect();
    let all: f64 = threads.iter().map(|(due, _)| due).sum();
    let average = threads.iter().map(|(due, level)| due * level).sum::<f64>() / all;
    (threads.iter())
        .map(|(_, level)| *level > average * HEAVY)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Two threads of weights 100 and 300 on a CPU, stepped every 50 ms.
    struct Two {
        dues: Dues,
        now: u64,
        cpu: SeenCpu,
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
            };
            let mut two = Two {
                dues: Dues::default(),
                now: 1000 * MS,
                cpu: SeenCpu {
                    id: CpuId(0),
                    used_ns: 0,
                    idle_ns: 0,
                },
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
                self.cpu.used_ns += used * MS;
            }
            // It idles where nobody wants more than it uses; what else it does not use is lost.
            if did.iter().all(|(used, wanted)| used == wanted) {
                self.cpu.idle_ns = self.now - 1000 * MS - self.cpu.used_ns;
            }
            let due = self.look().unwrap();
            [0, 1].map(|it| {
                due[it].map_or((0, 0), |due| {
                    let percent = (due.rate * 100.0).round() as i64;
                    (percent, (due.lag_s * 1e3).round() as i64)
                })
            })
        }

        fn look(&mut self) -> Result<Vec<Option<Due>>, ProblemError> {
            self.dues.step(self.now, &[self.cpu], &[], &self.threads)
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

    /// Of two CPUs an interrupt takes a fifth of one; a thread may run there only, one on the other, and one on both.
    #[test]
    fn what_interrupts_take_of_a_cpu_is_not_there_to_give() {
        let mut dues = Dues::default();
        let thread = |key: u32, cpus: &str| Seen {
            key,
            group: None,
            weight: 100,
            cpus: cpus.parse().unwrap(),
            used_ns: 0,
            wanted_ns: 0,
            wants: true,
        };
        let mut threads = [thread(1, "0"), thread(2, "1"), thread(3, "0-1")];
        let cpu = |id: u32| SeenCpu {
            id: CpuId(id),
            used_ns: 0,
            idle_ns: 0,
        };
        let mut cpus = [cpu(0), cpu(1)];
        let mut due = Vec::new();
        for step in 1..=400 {
            due = dues.step(step * 50 * MS, &cpus, &[], &threads).unwrap();
            // The one that may run on both makes up for what the one on CPU 0 has less; its turns are of 25 ms.
            let third = if step % 2 == 0 { 0 } else { 20 };
            for (thread, used) in
                threads
                    .iter_mut()
                    .zip([40 - third, 50 - third / 2, third * 3 / 2])
            {
                thread.used_ns += used * MS;
                thread.wanted_ns += 50 * MS;
            }
            cpus[0].used_ns += 40 * MS;
            cpus[1].used_ns += 50 * MS;
        }
        for due in due {
            let due = due.unwrap();
            assert!((due.rate - 0.6).abs() < 0.01, "{due:?}");
        }
    }

    #[test]
    fn what_a_cpu_idled_beside_who_waits_is_nobodys_debt() {
        let mut two = Two::new();
        for _ in 0..100 {
            two.cpu.idle_ns += 18 * MS;
            let [(one, lag), (other, lag_of_other)] = two.step([(8, 50), (24, 50)]);
            assert_eq!((one, other), (25, 75));
            assert!(
                lag.abs() <= 4 && lag_of_other.abs() <= 4,
                "{lag} {lag_of_other}"
            );
        }
    }

    #[test]
    fn a_cpu_that_comes_online_offers_all() {
        let mut two = Two::new();
        for _ in 0..4 {
            two.step([(12, 50), (38, 50)]);
        }
        let offline = two.dues.step(two.now, &[], &[], &[]).unwrap();
        assert_eq!(offline, []);
        for _ in 0..4 {
            let due = two.step([(12, 50), (38, 50)]);
            assert_eq!(due.map(|it| it.0), [25, 75]);
        }
        assert!(two.dues.cpus[&CpuId(0)].offer > 0.9);
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

    #[test]
    fn who_is_due_more_by_weight_as_others_want_less_is_heavy() {
        let cpus = CpuSet::first(4);
        let group = |weight| Group {
            parent: None,
            weight,
            limit: None,
        };
        let thread = |group, demand| Thread {
            group,
            weight: 100,
            cpus: cpus.clone(),
            demand,
        };
        let found = |weights: [u32; 2], threads: &[(usize, f64)]| {
            let threads = threads
                .iter()
                .map(|(at, demand)| thread(Some(*at), *demand));
            let problem = Problem {
                cpus: cpus.clone(),
                offers: BTreeMap::new(),
                groups: weights.map(group).to_vec(),
                threads: threads.chain([thread(None, 0.01)]).collect(),
            };
            let mut heavy = heavy(&problem, &ideal(&problem).unwrap());
            assert_eq!(heavy.pop(), Some(false), "who hardly wants anything");
            heavy
        };
        let busy = |at| [(at, 1.0); 4];
        // Both want all: what their weights say. The one that sleeps a bit has that all the same.
        let some = [&busy(0)[..], &[(1, 1.0), (1, 1.0), (1, 0.9)]].concat();
        assert!(found([100, 100], &some).iter().all(|it| !it));
        assert!(found([100, 300], &some).iter().all(|it| !it));
        // One wants little, so that the other is due more.
        let little = [&busy(0)[..], &[(1, 0.4)]].concat();
        assert_eq!(found([100, 100], &little), [true, true, true, true, false]);
        // Or what it is due is what its weight says.
        assert!(found([900, 100], &little).iter().all(|it| !it));
        let nobody = Problem {
            cpus,
            ..Problem::default()
        };
        assert!(heavy(&nobody, &ideal(&nobody).unwrap()).is_empty());
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
        let due = two.look().unwrap();
        assert_eq!(due[0], None);
        assert!(due[1].is_some());
    }
}
