//! The machine against closed forms of queueing theory, and programs against figures worked out by hand.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use common::{FORK_JOIN, S, TICKS, near, poisson, programs, serving, threads};
use quell_model::{CpuId, Topology};
use quell_sim::{
    Answer, Class, Costs, Fair, Fifo, Load, Request, Simulation, State, Tenant, ThreadId,
};

/// A request due at each of these times, in us.
fn at_us(times: &'static [u64]) -> Load {
    Box::new(times.iter().map(|&us| Request {
        due: us * 1000,
        seed: us,
    }))
}

/// One tenant with the threads of these tables.
fn simulation(
    cpus: u32,
    class: impl Class + 'static,
    threads: &str,
    load: Option<Load>,
) -> Simulation {
    let programs = programs(threads, load.is_some());
    let mut simulation = Simulation::new(Topology::flat(cpus), Costs::NONE, Box::new(class));
    simulation.add_tenant(Tenant::new(&programs, load));
    simulation
}

/// A server of `threads` threads; `run` is the work of a request, as a scenario says it.
fn server(
    cpus: u32,
    class: impl Class + 'static,
    threads: u32,
    run: &str,
    load: Load,
) -> Simulation {
    simulation(cpus, class, &serving(threads, run), Some(load))
}

/// The mean and the 99th percentile of latencies, in us.
fn figures(answers: &[Answer]) -> (f64, f64) {
    let mut us: Vec<f64> = answers
        .iter()
        .map(|answer| (answer.at - answer.due) as f64 / 1e3)
        .collect();
    us.sort_by(f64::total_cmp);
    let mean = us.iter().sum::<f64>() / us.len() as f64;
    (mean, us[us.len() * 99 / 100])
}

#[test]
fn first_come_first_served_is_m_m_1_and_m_m_k() {
    let mut one = server(
        1,
        Fifo::new(None),
        1,
        "{ exponential = 1000 }",
        poisson(700.0, 1),
    );
    let (mean, p99) = figures(&one.run_until(1000 * S));
    // Sojourn times are exponential with mean 1 / (mu - lambda).
    near("M/M/1 mean", mean, 1000.0 / 0.3, 0.03);
    near("M/M/1 p99", p99, 1000.0 / 0.3 * 100f64.ln(), 0.05);
    let busy = one.machine().cpus[0].busy as f64;
    near("utilization", busy, 0.7 * 1000.0 * S as f64, 0.01);

    let mut four = server(
        4,
        Fifo::new(None),
        4,
        "{ exponential = 1000 }",
        poisson(3200.0, 2),
    );
    let (mean, _) = figures(&four.run_until(250 * S));
    // Erlang C for four servers and a load of 3.2: 0.5964.
    near("M/M/4 mean", mean, 1000.0 + 0.5964 * 1000.0 / 0.8, 0.03);
}

#[test]
fn equal_work_is_m_d_1() {
    let mut one = server(1, Fifo::new(None), 1, "1000", poisson(800.0, 3));
    let (mean, _) = figures(&one.run_until(500 * S));
    near("M/D/1 mean", mean, 1000.0 * (1.0 + 0.8 / (2.0 * 0.2)), 0.03);
}

#[test]
fn short_turns_are_processor_sharing_whatever_the_work() {
    for run in [
        "1000",
        "{ exponential = 1000 }",
        "{ lognormal = { mean = 1000, sigma = 1 } }",
    ] {
        let class = Fifo::new(Some(20_000));
        let mut one = server(1, class, 200, run, poisson(700.0, 4));
        let (mean, _) = figures(&one.run_until(300 * S));
        near(format!("M/G/1-PS mean of {run}"), mean, 1000.0 / 0.3, 0.06);
    }
}

fn latencies_us(answers: &[Answer]) -> Vec<u64> {
    answers.iter().map(|a| (a.at - a.due) / 1000).collect()
}

#[test]
fn a_fork_join_takes_its_critical_path_or_all_its_work() {
    for (cpus, expected) in [(4, 800), (2, 1200), (1, 2000)] {
        let load = Some(at_us(&[10, 50_000]));
        let mut simulation = simulation(cpus, Fifo::new(None), FORK_JOIN, load);
        let answers = simulation.run_until(S);
        assert_eq!(latencies_us(&answers), [expected, expected], "{cpus} CPUs");
    }
}

#[test]
fn a_lock_admits_one_and_who_spins_for_it_uses_its_cpu() {
    for spin in [0, 300, 2_000] {
        let threads = format!(
            "[[tenant.thread]]\nname = \"w\"\ncount = 2\nspin_us = {spin}\nprogram = [\"request\", \
             {{ lock = {{ name = \"l\", program = [{{ run_us = 1000 }}] }} }}, \"respond\"]\n"
        );
        let load = Some(at_us(&[100_000, 100_010]));
        let mut simulation = simulation(2, Fifo::new(None), &threads, load);
        assert_eq!(latencies_us(&simulation.run_until(S)), [1000, 1990]);
        let busy: u64 = simulation.machine().cpus.iter().map(|cpu| cpu.busy).sum();
        // Each thread spins for its request and for one that never comes; the second thread spins 990 us for
        // the lock as well.
        let spun = 4 * spin + spin.min(990);
        assert_eq!(busy, 2_000_000 + spun * 1000, "spin {spin}");
    }
}

#[test]
fn queues_and_barriers_pass_on_and_hold_back() {
    let pipeline = r#"
[[tenant.thread]]
name = "in"
program = ["request", { run_us = 100 }, { send = "q" }]
[[tenant.thread]]
name = "out"
program = [{ receive = "q" }, { sleep_us = 300 }, { repeat = { times = 2, program = [{ run_us = 50 }] } }, "respond"]
"#;
    let mut one = simulation(2, Fifo::new(None), pipeline, Some(at_us(&[0, 100])));
    assert_eq!(latencies_us(&one.run_until(S)), [500, 800]);

    let barrier = r#"
[[tenant.thread]]
name = "slow"
program = [{ run_us = 300 }, { barrier = "b" }]
[[tenant.thread]]
name = "fast"
count = 2
program = [{ run_us = 100 }, { barrier = "b" }]
"#;
    let mut three = simulation(3, Fifo::new(None), barrier, None);
    three.run_until(S - 1);
    // Three threads, and 300 us a round; the last round is not over.
    assert_eq!(three.rounds(0), 3 * (S / 300_000));
}

#[test]
fn no_cpu_idles_beside_a_ready_thread_and_time_is_counted_once() {
    let class = Fifo::new(Some(500_000));
    let load = Some(poisson(900.0, 7));
    let mut simulation = simulation(4, class, FORK_JOIN, load);
    for step in 1..20_000 {
        simulation.run_until(step * 50_000);
        let machine = simulation.machine();
        let ready = machine.threads.iter().any(|t| t.state == State::Ready);
        let idle = machine.cpus.iter().any(|cpu| cpu.current.is_none());
        assert!(!(ready && idle), "at {} ns", machine.now);
    }
    let machine = simulation.machine();
    let ran: u64 = machine.threads.iter().map(|thread| thread.ran).sum();
    let busy: u64 = machine.cpus.iter().map(|cpu| cpu.busy).sum();
    assert_eq!(ran, busy);
}

#[test]
fn the_same_seed_gives_the_same_course_and_costs_take_time() {
    let run = |costs: Costs| {
        let mut simulation = Simulation::new(Topology::flat(2), costs, Box::new(Fifo::new(None)));
        let programs = programs(FORK_JOIN, true);
        simulation.add_tenant(Tenant::new(&programs, Some(poisson(500.0, 9))));
        (simulation.run_until(2 * S), simulation.events())
    };
    let costs = Costs {
        kick: 3_000,
        noise: 20_000,
        noise_every: 5_000_000,
        ..Costs::TYPICAL
    };
    assert_eq!(run(costs), run(costs));
    let (costly, free) = (run(costs).0, run(Costs::NONE).0);
    assert!(figures(&costly).0 > figures(&free).0);
    // No thread stays asleep that was woken on its way to sleep: all requests but those in flight at the end
    // are answered.
    assert!(costly.len().abs_diff(free.len()) <= 2);
}

#[test]
fn threads_run_only_where_they_may() {
    let classes: [Box<dyn Class>; 4] = [
        Box::new(Fifo::new(Some(500_000))),
        Box::new(Fair::cfs_6_1()),
        Box::new(Fair::eevdf_6_12()),
        Box::new(Fair::eevdf_7_2()),
    ];
    let programs = programs(&threads(5, "[{ run_us = 700 }, { sleep_us = 200 }]"), false);
    for class in classes {
        let mut simulation = Simulation::new(Topology::flat(3), TICKS, class);
        simulation.add_tenant(Tenant::new(&programs, None));
        for thread in 0..3 {
            simulation.restrict(ThreadId(thread), [CpuId(1)].into_iter().collect());
        }
        simulation.run_until(S / 10);
        for step in 1..5_000 {
            simulation.run_until(S / 10 + step * 100_000);
            for thread in &simulation.machine().threads[..3] {
                assert!(!matches!(thread.state, State::Running(cpu) if cpu != CpuId(1)));
            }
        }
        assert!(
            simulation
                .machine()
                .threads
                .iter()
                .all(|thread| thread.ran > S / 20)
        );
    }
}

#[test]
fn waking_takes_who_wakes_time_one_thread_after_the_other() {
    let threads = r#"
[[tenant.thread]]
name = "main"
program = ["request", { fork_join = { pool = "p", parts = 4, program = [{ run_us = 100 }] } }, "respond"]
[[tenant.thread]]
name = "helper"
count = 3
program = [{ help = "p" }]
"#;
    let costs = Costs {
        wake: 10_000,
        ..Costs::NONE
    };
    let programs = programs(threads, true);
    let mut simulation = Simulation::new(Topology::flat(4), costs, Box::new(Fifo::new(None)));
    let load = Some(at_us(&[1000]));
    simulation.add_tenant(Tenant::new(&programs, load));
    // 10 us until the main thread is woken, 30 until the last helper is, whose part ends with the main
    // thread's own; then that helper wakes the main thread.
    assert_eq!(latencies_us(&simulation.run_until(S)), [10 + 30 + 100 + 10]);
}
