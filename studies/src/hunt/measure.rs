//! Measures a workload under a side: how long its light tasks wait, and what its groups get.

use super::light::light;
use super::workload::Workload;
use quell_bench::run::simulated::engine;
use quell_bench::side::Side;
use quell_model::{Nice, TenantWeight};
use quell_scenario::HostScheduler;
use quell_sim::{Costs, GroupId, Happening, Simulation, State, Tenant, ThreadId};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::rc::Rc;

/// A second, in ns.
const SECOND: f64 = 1e9;
/// The warm-up that is left out at the beginning, in s.
pub const WARMUP_S: f64 = 1.0;

/// The figures of a workload under a side.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// A figure for each light task, in their order.
    pub light: Vec<Light>,
    /// What each group got, in percent of the machine.
    pub groups: Vec<f64>,
}

/// How long a task's wakeups waited.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Light {
    /// The task's index.
    pub task: usize,
    /// The number of wakeups that got a CPU.
    pub served: u32,
    /// The 99th percentile of how long it took from being ready to having a CPU, in ms; over all processes of
    /// the task.
    pub p99_ms: f64,
    /// The longest wait, in ms.
    pub worst_ms: f64,
    /// The 99th percentile of how long it took from being ready to being done, in ms.
    pub done_p99_ms: f64,
}

/// A thread that is watched.
#[derive(Debug, Clone, Copy)]
struct Watched {
    /// The place of its task among the light tasks.
    of: usize,
    /// Since when the thread is ready without having had a CPU, and since when its work is not done, in ns.
    woken: Option<u64>,
    ready: Option<u64>,
}

/// What was seen of a light task, in ns.
#[derive(Debug, Default)]
struct Seen {
    waits: Vec<u64>,
    times: Vec<u64>,
}

#[derive(Default)]
struct Watch {
    /// By thread; `None`: the thread is not watched.
    threads: Vec<Option<Watched>>,
    seen: Vec<Seen>,
    from: u64,
}

impl Watch {
    fn of(&mut self, thread: ThreadId) -> Option<&mut Watched> {
        self.threads.get_mut(thread.index())?.as_mut()
    }

    fn tell(&mut self, at: u64, happening: Happening) {
        match happening {
            Happening::Wakeup { thread, .. } => {
                if let Some(it) = self.of(thread) {
                    (it.woken, it.ready) = (Some(at), Some(at));
                }
            }
            Happening::Switch { left, next, .. } => {
                if let Some(next) = next {
                    let waited = self.of(next).and_then(|it| Some((it.of, it.woken.take()?)));
                    if let Some((of, woken)) = waited.filter(|&(_, woken)| woken >= self.from) {
                        self.seen[of].waits.push(at.saturating_sub(woken));
                    }
                }
                if let Some((left, false)) = left {
                    let done = self.of(left).and_then(|it| Some((it.of, it.ready.take()?)));
                    if let Some((of, ready)) = done.filter(|&(_, ready)| ready >= self.from) {
                        self.seen[of].times.push(at.saturating_sub(ready));
                    }
                }
            }
            Happening::Fork { .. } => {}
        }
    }
}

/// Runs a workload for `seconds` after a second of warm-up, and watches its light tasks.
///
/// # Errors
/// Where the side does not run on the simulator.
pub fn measure(workload: &Workload, side: &Side, seconds: f64) -> anyhow::Result<Measured> {
    measure_tasks(workload, &light(workload), side, seconds)
}

/// Runs a workload as [`measure`] does, and watches these tasks.
///
/// # Errors
/// Where the side does not run on the simulator.
pub fn measure_tasks(
    workload: &Workload,
    tasks: &[usize],
    side: &Side,
    seconds: f64,
) -> anyhow::Result<Measured> {
    let topology = workload.topology();
    let (class, costs) = engine(
        side,
        HostScheduler::default(),
        &topology,
        Costs::TYPICAL,
        &[],
    )?;
    let mut it = Simulation::new(topology, costs, class);
    let from = (WARMUP_S * SECOND) as u64;
    let mut watch = Watch {
        seen: tasks.iter().map(|_| Seen::default()).collect(),
        from,
        ..Watch::default()
    };
    let mut groups: Vec<GroupId> = Vec::new();
    for group in &workload.groups {
        let parent = group.within.map_or(GroupId::ROOT, |within| groups[within]);
        groups.push(it.add_group(parent, TenantWeight(group.weight)));
    }
    for (number, task) in workload.tasks.iter().enumerate() {
        let programs = task.does.programs();
        let of = tasks.iter().position(|&it| it == number);
        for _ in 0..task.count {
            let first = it.machine().threads.len();
            it.add_tenant(Tenant {
                group: task.group.map_or(GroupId::ROOT, |group| groups[group]),
                nice: Nice::new(task.nice).unwrap_or_default(),
                ..Tenant::new(&programs, None)
            });
            let threads = first..it.machine().threads.len();
            for thread in threads {
                if let Some(cpus) = &task.cpus {
                    it.restrict(ThreadId(thread as u32), cpus.clone());
                }
                watch.threads.push(of.map(|of| Watched {
                    of,
                    woken: None,
                    ready: None,
                }));
            }
        }
    }
    let shared = Rc::new(RefCell::new(watch));
    let watch = shared.clone();
    it.observe(Box::new(move |_, at, happening| {
        watch.borrow_mut().tell(at, happening)
    }));
    it.run_until(from);
    let before = used(workload, &it);
    let end = from + (seconds * SECOND) as u64;
    it.run_until(end);
    let after = used(workload, &it);
    let machine = seconds * SECOND * f64::from(workload.cpus);
    let groups = after.iter().zip(before);
    let groups = groups.map(|(after, before)| (after - before) as f64 * 100.0 / machine);
    let mut watch = shared.borrow_mut();
    let watch = &mut *watch;
    // A thread that waits at the end has waited at least until then.
    for (thread, watched) in it.machine().threads.iter().zip(&watch.threads) {
        let waits = watched.and_then(|it| Some((it.of, it.woken?.max(from))));
        if let Some((of, woken)) = waits.filter(|_| thread.state == State::Ready) {
            watch.seen[of].waits.push(end.saturating_sub(woken));
        }
    }
    let looked_at = tasks.iter().zip(&mut watch.seen);
    Ok(Measured {
        light: looked_at.map(|(&task, seen)| seen.light(task)).collect(),
        groups: groups.collect(),
    })
}

impl Seen {
    fn light(&mut self, task: usize) -> Light {
        let ms = |ns: u64| ns as f64 / 1e6;
        Light {
            task,
            served: self.waits.len() as u32,
            p99_ms: ms(percentile(&mut self.waits, 0.99)),
            worst_ms: ms(self.waits.iter().copied().max().unwrap_or(0)),
            done_p99_ms: ms(percentile(&mut self.times, 0.99)),
        }
    }
}

/// The least value that this part of the values does not exceed.
fn percentile(values: &mut [u64], part: f64) -> u64 {
    values.sort_unstable();
    let at = (values.len() as f64 * part).ceil() as usize;
    values.get(at.saturating_sub(1)).copied().unwrap_or(0)
}

/// The CPU time that each group's threads used so far, those of groups within included.
fn used(workload: &Workload, simulation: &Simulation) -> Vec<u64> {
    let mut used = vec![0; workload.groups.len()];
    for thread in &simulation.machine().threads {
        // The root has index 0.
        let mut at = thread.group.index().checked_sub(1);
        while let Some(group) = at {
            used[group] += thread.ran;
            at = workload.groups[group].within;
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_bench::side::Simulated;

    fn eevdf() -> Side {
        Side::Simulated(Simulated::Eevdf)
    }

    #[test]
    fn percentiles() {
        let mut values: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(percentile(&mut values, 0.99), 198);
        assert_eq!(percentile(&mut values[..1], 0.99), 1);
        assert_eq!(percentile(&mut [], 0.99), 0);
    }

    #[test]
    fn alone_nobody_waits_and_groups_have_what_they_weigh() {
        let text = "cpus = 1\ncache_cpus = 1\n[[group]]\nweight = 300\n[[group]]\nweight = 100\n\
            [[task]]\ncount = 1\nnice = 0\ngroup = 0\ndoes = \"loop\"\n\
            [[task]]\ncount = 2\nnice = 0\ngroup = 1\ndoes = \"loop\"\n";
        let mut it: Workload = toml::from_str(text).unwrap();
        let got = measure(&it, &eevdf(), 2.0).unwrap();
        assert!(got.light.is_empty());
        assert!((got.groups[0] - 75.0).abs() < 1.0, "{got:?}");
        assert!((got.groups[1] - 25.0).abs() < 1.0, "{got:?}");
        it.groups.clear();
        it.tasks.truncate(1);
        it.tasks[0].group = None;
        it.tasks[0].does = super::super::workload::Kind::Periodic {
            run_us: 100,
            sleep_us: 900,
            drawn: false,
        };
        let got = measure(&it, &eevdf(), 2.0).unwrap();
        assert!((1900..2000).contains(&got.light[0].served), "{got:?}");
        assert!(got.light[0].worst_ms < 0.01, "{got:?}");
        assert!((0.1..0.12).contains(&got.light[0].done_p99_ms), "{got:?}");
    }
}
