//! The monitor's snapshots of a simulated machine, against what the threads must have done.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use common::MS;
use quell_model::{Snapshot, Source, ThreadSample, ThreadState, Topology};
use quell_scenario::Scenario;
use quell_sched::{Options, ThreadSetting};
use quell_sim::{Costs, Fifo, Load, Monitor, Request, SchedExt, Simulation, Tenant, thread_of};
use std::path::Path;
use std::sync::Arc;

const SPINNERS: &str = r#"
name = "t"
[[tenant]]
name = "spin"
class = "batch"
[[tenant.thread]]
name = "w"
count = 2
program = [{ run_us = 1000 }]
"#;

const CHAIN: &str = r#"
[[tenant]]
name = "chain"
class = "batch"
[[tenant.thread]]
name = "first"
program = [{ sleep_us = 9900 }, { run_us = 100 }, { send = "q" }]
[[tenant.thread]]
name = "second"
program = [{ receive = "q" }, { run_us = 100 }]
"#;

fn observed(simulation: &mut Simulation) -> Monitor {
    observed_of(simulation, &format!("{SPINNERS}{CHAIN}"))
}

fn observed_of(simulation: &mut Simulation, tenants: &str) -> Monitor {
    let scenario = Scenario::parse(Path::new("t.toml"), tenants).unwrap();
    let mut tenants = Vec::new();
    for tenant in scenario.instances() {
        simulation.add_tenant(Tenant::new(&tenant.table.threads, None));
        tenants.push(Some((
            tenant.name.clone(),
            Arc::new(tenant.table.spec.clone()),
        )));
    }
    Monitor::new(simulation, tenants)
}

/// The threads of a tenant.
fn threads<'a>(snapshot: &'a Snapshot, tenant: &str) -> &'a [ThreadSample] {
    let mut tenants = snapshot.tenants.iter();
    &tenants
        .find(|it| it.name.as_str() == tenant)
        .unwrap()
        .threads
}

#[test]
fn times_and_counts_are_those_of_the_period() {
    // Slices of 1 ms on one CPU, and kernel work costs nothing: each spinner waits as long as it runs, and
    // each of the other threads waits for a slice of each spinner.
    let class = Box::new(Fifo::new(Some(MS)));
    let mut simulation = Simulation::new(Topology::flat(1), Costs::NONE, class);
    let mut monitor = observed(&mut simulation);
    for period in 0..5 {
        simulation.run_until((period + 1) * 100 * MS);
        let snapshot = monitor.snapshot(&simulation);
        assert_eq!((snapshot.seq, snapshot.period_ns), (period, 100 * MS));
        assert_eq!(snapshot.source, Source::Simulator);
        assert_eq!(snapshot.host.cpus[0].busy_ns, Some(100 * MS));
        let all: u64 = (snapshot.tenants.iter())
            .flat_map(|tenant| &tenant.threads)
            .map(|thread| thread.run_ns)
            .sum();
        assert_eq!(all, 100 * MS, "who runs is seen all the time");
        for spinner in threads(&snapshot, "spin") {
            let ready = spinner.ready.clone().unwrap();
            assert_eq!(ready.sum_ns + spinner.run_ns, 100 * MS);
            assert!(spinner.preemptions.unwrap().abs_diff(ready.count.unwrap()) <= 1);
            assert_ne!(spinner.state, ThreadState::Blocked);
        }
        if period == 0 {
            continue; // All threads become ready at once at the start.
        }
        let [first, second] = threads(&snapshot, "chain") else {
            panic!("{snapshot:?}");
        };
        let rounds = second.wakeups.unwrap();
        // 9.9 ms of sleep, then up to two slices of spinners before each of two runs of 0.1 ms.
        assert!((7..=10).contains(&rounds), "{rounds}");
        assert_eq!(second.run_ns, rounds * MS / 10);
        let waker = second.wakers.as_ref().unwrap()[0];
        assert_eq!((waker.id, waker.count), (first.id, rounds));
        assert!(
            first.wakers.as_ref().unwrap().is_empty(),
            "timers are nobody"
        );
        let longest = second
            .ready
            .as_ref()
            .unwrap()
            .histogram
            .as_ref()
            .unwrap()
            .len();
        assert!(longest <= 21, "at most 2 ms, of which the logarithm is 20");
        // Of the spinners one waits while the other runs; of the chain's threads one sleeps while the other
        // waits or runs.
        let seen = |tenant: &str| {
            let tenant = snapshot.tenant(&tenant.into()).unwrap();
            tenant.occasions.clone().unwrap()
        };
        let spin = seen("spin");
        assert_eq!(
            (&spin.by_blocked_ns[..], spin.busy_ns),
            (&[100 * MS][..], 100 * MS)
        );
        assert_eq!(spin.busy_periods, 0);
        let chain = seen("chain");
        assert!(chain.busy_periods.abs_diff(rounds) <= 1, "{chain:?}");
        let both = [first, second];
        let ready: u64 = both
            .iter()
            .map(|it| it.ready.as_ref().unwrap().sum_ns)
            .sum();
        let ran: u64 = both.iter().map(|it| it.run_ns).sum();
        assert_eq!(chain.by_blocked_ns, [0, ready]);
        assert_eq!(chain.busy_ns, ready + ran);
    }
}

#[test]
fn what_an_agent_wants_of_a_thread_reaches_the_scheduler() {
    let topology = Topology::flat(1);
    let class = Box::new(SchedExt::new(&topology, &Options::default()).unwrap());
    let mut simulation = Simulation::new(topology, Costs::TYPICAL, class);
    let mut monitor = observed(&mut simulation);
    simulation.run_until(100 * MS);
    let snapshot = monitor.snapshot(&simulation);
    let light = thread_of(threads(&snapshot, "spin")[0].id).unwrap();
    let setting = ThreadSetting {
        weight: Some(25),
        ..ThreadSetting::default()
    };
    assert!(simulation.set_thread(light, setting));
    simulation.run_until(1000 * MS);
    monitor.snapshot(&simulation);
    simulation.run_until(11_000 * MS);
    let snapshot = monitor.snapshot(&simulation);
    let spinners = threads(&snapshot, "spin");
    // A little less than 4: the short runs of the two other threads come off the slices of the heavier
    // spinner.
    let ratio = spinners[1].run_ns as f64 / spinners[0].run_ns as f64;
    assert!((ratio / 4.0 - 1.0).abs() < 0.05, "{ratio}");

    let fifo = Box::new(Fifo::new(None));
    let mut simulation = Simulation::new(Topology::flat(1), Costs::NONE, fifo);
    observed(&mut simulation);
    assert!(!simulation.set_thread(light, setting), "it has no weights");
}

#[test]
fn a_load_generator_of_this_machine_displaces_who_runs_where_it_does() {
    let text = r#"
        name = "t"
        [[tenant]]
        name = "served"
        load = { rate = 1.0 }
        [[tenant.thread]]
        name = "server"
        program = ["request", { run_us = 100 }, "respond"]
        [[tenant]]
        name = "spin"
        class = "batch"
        [[tenant.thread]]
        name = "w"
        program = [{ run_us = 1000 }]
    "#;
    let scenario = Scenario::parse(Path::new("t.toml"), text).unwrap();
    let preemptions = |generators| {
        let costs = Costs {
            request: 50_000,
            answer: 20_000,
            generators,
            ..Costs::NONE
        };
        let class = Box::new(Fifo::new(Some(MS)));
        let mut simulation = Simulation::new(Topology::flat(1), costs, class);
        let mut tenants = Vec::new();
        for tenant in scenario.instances() {
            let requests = (1..=100).map(|number| Request {
                due: number * 10 * MS,
                seed: number,
            });
            let load = tenant.table.load.is_some();
            let load = load.then(|| Box::new(requests) as Load);
            simulation.add_tenant(Tenant::new(&tenant.table.threads, load));
            tenants.push(Some((
                tenant.name.clone(),
                Arc::new(tenant.table.spec.clone()),
            )));
        }
        let mut monitor = Monitor::new(&mut simulation, tenants);
        assert_eq!(simulation.run_until(1100 * MS).len(), 100);
        let snapshot = monitor.snapshot(&simulation);
        let all = snapshot.tenants.iter().flat_map(|tenant| &tenant.threads);
        all.map(|thread| thread.preemptions.unwrap()).sum::<u64>()
    };
    // The thread that runs is preempted by each request and each answer, where a generator runs there; else
    // it is only delayed.
    assert_eq!(preemptions(true), preemptions(false) + 200);
}

#[test]
fn the_machines_own_threads_put_off_what_runs() {
    // A hundred times a second on each CPU, for 100 us: two spinners on two CPUs wait for nothing else.
    let costs = Costs {
        noise: 100_000,
        noise_every: 10 * MS,
        ..Costs::NONE
    };
    let class = Box::new(Fifo::new(Some(MS)));
    let mut simulation = Simulation::new(Topology::flat(2), costs, class);
    let mut monitor = observed_of(&mut simulation, SPINNERS);
    simulation.run_until(20_000 * MS);
    let snapshot = monitor.snapshot(&simulation);
    for spinner in threads(&snapshot, "spin") {
        let ready = spinner.ready.clone().unwrap();
        let waits = ready.count.unwrap();
        assert!((1_800..2_200).contains(&waits), "{waits}");
        // One wait more: the spinner was ready before it first ran.
        assert_eq!(spinner.preemptions, Some(waits - 1));
        assert!(
            ready.sum_ns.abs_diff((waits - 1) * 100_000) < waits * 2_000,
            "{ready:?}"
        );
        assert_eq!(ready.sum_ns + spinner.run_ns, 20_000 * MS);
    }
}
