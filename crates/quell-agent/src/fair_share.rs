//! Each tenant's fair share of the host, and what it received: for `explain`.
//!
//! Problem: a tenant's share is due over seconds, by weight, and depends on the demand of all tenants and on
//! where threads may run. A period is too short to judge by, and the loop must not pay for answers that no
//! client asked for.
//! Approach: the loop adds up what each thread ran and waited, over windows of [`WINDOW_NS`] that follow one
//! another. Only a client's request has the last window's max-min fair division solved
//! ([`quell_policy::share::ideal`]).
//! Limits: a thread that slept in the window is taken to have got all that it wanted. A thread that never
//! slept is taken to have wanted a CPU for as long as it existed, less the time for which a bandwidth limit
//! stopped it. What the rest of the host used is taken as given. Tenants count as siblings, by the
//! configuration's weights and with their cgroups' limits; the weights of their cgroups' parents are ignored.
//! Threads that ended in the window wanted what they used.

use crate::wire::ShareExplain;
use quell_model::{CpuSet, Snapshot, TenantName, TenantWeight, ThreadId, ThreadSample, place_near};
use quell_policy::share::{Group, Ideal, Problem, Thread, ideal};
use std::sync::Arc;

/// The least length of a window.
const WINDOW_NS: u64 = 2_000_000_000;

/// A thread that ran or was ready for this part of its time counts as never asleep: sources that count a wait
/// when it ends do not know the wait that goes on at the window's end, which may be 100 ms of 2 s.
const NEVER_ASLEEP: f64 = 0.95;

/// The window that is being added up, and the last complete window.
#[derive(Debug, Default)]
pub struct Accounts {
    now: Window,
    last: Option<Arc<Window>>,
}

/// Sums over some periods.
#[derive(Debug, Clone, Default)]
pub struct Window {
    length_ns: u64,
    /// Time for which the CPUs were not idle; `None` where that was not seen.
    busy_ns: Option<u64>,
    /// The CPUs that were online at the window's end.
    cpus: CpuSet,
    /// The tenants, ascending by name.
    tenants: Vec<Tenant>,
}

#[derive(Debug, Clone)]
struct Tenant {
    name: TenantName,
    weight: TenantWeight,
    /// The bandwidth limit that was seen last, in CPUs.
    limit: Option<f64>,
    /// CPU time of threads that ended.
    ended_ns: u64,
    /// Ascending by id, as snapshots have them.
    threads: Vec<Used>,
}

/// The sums of one thread.
#[derive(Debug, Clone)]
struct Used {
    id: ThreadId,
    run_ns: u64,
    /// `None` where that was not seen.
    ready_ns: Option<u64>,
    /// The time for which the thread existed.
    seen_ns: u64,
    cpus: Arc<CpuSet>,
}

impl Accounts {
    /// Adds a period.
    pub fn add(&mut self, snapshot: &Snapshot) {
        let now = &mut self.now;
        if now.length_ns == 0 {
            now.busy_ns = Some(0);
        }
        now.length_ns += snapshot.period_ns;
        let busy: Option<u64> = snapshot.host.cpus.iter().map(|cpu| cpu.busy_ns).sum();
        now.busy_ns = now.busy_ns.zip(busy).map(|(sum, busy)| sum + busy);
        let mut likely = 0;
        for sample in &snapshot.tenants {
            let at = place_near(&now.tenants, likely, |it| it.name.cmp(&sample.name));
            let at = at.unwrap_or_else(|at| {
                now.tenants.insert(at, Tenant::of_name(&sample.name));
                at
            });
            likely = at + 1;
            let tenant = &mut now.tenants[at];
            tenant.weight = sample.spec.weight.unwrap_or_default();
            tenant.limit = sample.limit_cpus;
            tenant.ended_ns += sample.ended.as_ref().map_or(0, |it| it.run_ns);
            let mut at = 0;
            for thread in &sample.threads {
                let used = tenant.of(thread, &mut at);
                let ready = thread.ready.as_ref().map(|ready| ready.sum_ns);
                used.run_ns += thread.run_ns;
                used.ready_ns = used.ready_ns.zip(ready).map(|(sum, ready)| sum + ready);
                used.seen_ns += snapshot.period_ns;
                if !Arc::ptr_eq(&used.cpus, &thread.settings.affinity) {
                    used.cpus = thread.settings.affinity.clone();
                }
            }
        }
        if now.length_ns >= WINDOW_NS {
            now.cpus = snapshot.host.topology.online();
            self.last = Some(Arc::new(std::mem::take(now)));
        }
    }

    /// The last complete window.
    pub fn last(&self) -> Option<Arc<Window>> {
        self.last.clone()
    }
}

impl Tenant {
    /// A tenant of which nothing was added yet.
    fn of_name(name: &TenantName) -> Tenant {
        Tenant {
            name: name.clone(),
            weight: TenantWeight::default(),
            limit: None,
            ended_ns: 0,
            threads: Vec::new(),
        }
    }

    /// A thread's sums, searched for from place `at` on; `at` becomes the place after them, where the next
    /// thread's may be.
    fn of(&mut self, thread: &ThreadSample, at: &mut usize) -> &mut Used {
        let later = self.threads[*at..]
            .iter()
            .take_while(|it| it.id < thread.id);
        let place = *at + later.count();
        if self.threads.get(place).is_none_or(|it| it.id != thread.id) {
            let none = Used {
                id: thread.id,
                run_ns: 0,
                ready_ns: Some(0),
                seen_ns: 0,
                cpus: thread.settings.affinity.clone(),
            };
            self.threads.insert(place, none);
        }
        *at = place + 1;
        &mut self.threads[place]
    }
}

impl Window {
    /// A tenant's part of the window; `None` where the source does not show which threads waited.
    pub fn share(&self, name: &TenantName) -> Option<ShareExplain> {
        let (problem, ideal) = self.ideal()?;
        let at = self.tenants.binary_search_by(|it| it.name.cmp(name)).ok()?;
        let tenant = &self.tenants[at];
        let demands = problem.threads.iter();
        let demand = demands
            .filter(|thread| thread.group == Some(at))
            .map(|thread| thread.demand)
            // A sum of nothing is -0.0.
            .fold(0.0, |sum, demand| sum + demand);
        let deserved = ideal.groups[at];
        let run_ns: u64 = tenant.threads.iter().map(|used| used.run_ns).sum();
        let received = (run_ns + tenant.ended_ns) as f64 / self.length_ns as f64;
        Some(ShareExplain {
            window_ns: self.length_ns,
            weight: tenant.weight,
            demand_cpus: demand,
            deserved_cpus: deserved,
            received_cpus: received,
            lag_ns: ((deserved - received) * self.length_ns as f64) as i64,
        })
    }

    /// Each tenant's demand, in the order of their names, and its fair share of that.
    fn ideal(&self) -> Option<(Problem, Ideal)> {
        let length = self.length_ns as f64;
        let mut problem = Problem {
            cpus: self.cpus.clone(),
            ..Problem::default()
        };
        let mut run_ns = 0;
        for (group, tenant) in self.tenants.iter().enumerate() {
            problem.groups.push(Group {
                parent: None,
                weight: tenant.weight.0,
                limit: tenant.limit,
            });
            run_ns += tenant.ended_ns;
            if tenant.ended_ns > 0 {
                problem
                    .threads
                    .extend(self.anywhere(group, tenant.ended_ns));
            }
            for used in &tenant.threads {
                let wanted = used.run_ns + used.ready_ns?;
                let asleep = (wanted as f64) < used.seen_ns as f64 * NEVER_ASLEEP;
                let demand = if asleep { used.run_ns } else { wanted };
                run_ns += used.run_ns;
                let cpus = used.cpus.intersection(&self.cpus);
                // All CPUs of its affinity went offline since, so that the kernel runs it anywhere.
                let cpus = if cpus.is_empty() {
                    self.cpus.clone()
                } else {
                    cpus
                };
                problem.threads.push(Thread {
                    group: Some(group),
                    weight: TenantWeight::DEFAULT.0,
                    cpus,
                    demand: (demand as f64 / length).min(1.0),
                });
            }
        }
        // The rest of the host: it wanted what it got, and goes before all.
        let rest = self.busy_ns?.saturating_sub(run_ns);
        problem.groups.push(Group {
            parent: None,
            weight: 10_000,
            limit: None,
        });
        problem
            .threads
            .extend(self.anywhere(self.tenants.len(), rest));
        let ideal = ideal(&problem).ok()?;
        Some((problem, ideal))
    }

    /// Stands for threads of a group that are not known one by one and used this much: one for each CPU, as a
    /// thread uses one CPU at most.
    fn anywhere(&self, group: usize, run_ns: u64) -> impl Iterator<Item = Thread> {
        let count = self.cpus.len();
        let demand = run_ns as f64 / self.length_ns as f64 / count as f64;
        (0..count).map(move |_| Thread {
            group: Some(group),
            weight: TenantWeight::DEFAULT.0,
            cpus: self.cpus.clone(),
            demand: demand.min(1.0),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "helpers of tests are tests")]
mod tests {
    use super::*;
    use crate::testing::snapshot;
    use quell_model::ReadyTime;

    /// Two CPUs for two seconds. `a` has three busy threads, `b` one that runs a quarter of the time and
    /// sleeps.
    fn accounts(ready: bool) -> Accounts {
        let mut accounts = Accounts::default();
        let mut snapshot = snapshot(0, &[("a", 3), ("b", 1)]);
        snapshot.period_ns = 500_000_000;
        let period = snapshot.period_ns;
        for cpu in &mut snapshot.host.cpus {
            cpu.busy_ns = Some(period);
        }
        for (thread, run) in snapshot.tenants[0].threads.iter_mut().zip([8, 3, 3]) {
            thread.run_ns = period * run / 8;
            thread.ready = ready.then(|| ReadyTime {
                sum_ns: period - thread.run_ns,
                ..ReadyTime::default()
            });
        }
        snapshot.tenants[1].threads[0].run_ns = period / 4;
        snapshot.tenants[1].threads[0].ready = ready.then(ReadyTime::default);
        for _ in 0..4 {
            assert!(accounts.last().is_none());
            accounts.add(&snapshot);
        }
        accounts
    }

    #[test]
    fn what_was_deserved_is_what_the_solver_says() {
        let window = accounts(true).last().unwrap();
        let of = |name: &str| window.share(&name.into()).unwrap();
        let near = |got: f64, expected: f64| assert!((got - expected).abs() < 0.01, "{got}");
        let (a, b) = (of("a"), of("b"));
        assert_eq!((a.window_ns, a.weight.0), (2_000_000_000, 100));
        near(a.demand_cpus, 3.0);
        near(a.received_cpus, 1.75);
        near(a.deserved_cpus, 1.75);
        near(a.lag_ns as f64 / 1e9, 0.0);
        // It slept, so it had all that it wanted.
        near(b.demand_cpus, 0.25);
        near(b.deserved_cpus, 0.25);
        assert!(window.share(&"x".into()).is_none());
    }

    #[test]
    fn threads_that_come_and_go_have_sums_of_their_own() {
        let mut snapshot = snapshot(0, &[("a", 4)]);
        snapshot.period_ns = 1_000;
        let all = snapshot.tenants[0].threads.clone();
        let mut accounts = Accounts::default();
        for (of_all, run) in [(vec![0, 2], 1), (vec![1, 2, 3], 10), (vec![0, 3], 100)] {
            let of_all = of_all.iter().map(|&i: &usize| ThreadSample {
                run_ns: run,
                ..all[i].clone()
            });
            snapshot.tenants[0].threads = of_all.collect();
            accounts.add(&snapshot);
        }
        let threads = &accounts.now.tenants[0].threads;
        let sums = threads.iter().map(|it| (it.id, it.run_ns, it.seen_ns));
        let expected = [(101, 2_000), (10, 1_000), (11, 2_000), (110, 2_000)];
        let expected = (0..4).map(|i| (all[i].id, expected[i].0, expected[i].1));
        assert!(sums.eq(expected), "{threads:?}");
    }

    #[test]
    fn nothing_is_said_where_waiting_is_not_seen() {
        assert!(accounts(false).last().unwrap().share(&"a".into()).is_none());
    }
}
