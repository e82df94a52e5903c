//! CPUs that share a core, and CPUs in deep idle states, against figures worked out by hand.

mod common;

use common::{
    MS, S, Spec, batch, busy, every, machine_with, near, programs, ran, response_us, server,
    shares, threads, topology,
};
use quell_model::{CpuId, Topology};
use quell_sim::{Costs, Fair, Fifo, SchedExt, Simulation, Tenant, ThreadId, Vm, VmCosts};

const SHARED: Costs = Costs {
    smt_percent: 60,
    ..Costs::NONE
};

fn fifo(topology: Topology, tenants: Vec<Spec>) -> Simulation {
    machine_with(SHARED, topology, Box::new(Fifo::new(None)), tenants)
}

/// The rounds that each tenant's threads do in a second.
fn rounds(simulation: &mut Simulation, tenants: usize) -> Vec<u64> {
    simulation.run_until(S - 1);
    (0..tenants)
        .map(|tenant| simulation.rounds(tenant))
        .collect()
}

#[test]
fn siblings_are_as_fast_as_they_are_busy() {
    const MS_EACH: &str = "[{ run_us = 1000 }]";
    // A round takes a CPU alone 1 ms, each of two siblings 1 / 0.6 ms, and each of four siblings twice that;
    // CPUs of other cores do not matter.
    let mut one = fifo(topology(1, 1, 2), vec![batch(100, 1, MS_EACH)]);
    assert_eq!(rounds(&mut one, 1), [999]);
    let mut two = fifo(
        topology(1, 1, 2),
        vec![batch(100, 1, MS_EACH), batch(100, 1, MS_EACH)],
    );
    assert_eq!(rounds(&mut two, 2), [599, 599]);
    let mut four = fifo(topology(1, 1, 4), vec![batch(100, 4, MS_EACH)]);
    assert_eq!(rounds(&mut four, 1), [4 * 299]);
    let mut apart = fifo(
        topology(1, 2, 2),
        vec![batch(100, 1, MS_EACH), batch(100, 1, MS_EACH)],
    );
    apart.restrict(ThreadId(1), [CpuId(2)].into_iter().collect());
    assert_eq!(rounds(&mut apart, 2), [999, 999]);
    // CPU time is the time on a CPU.
    for simulation in [one, two, four, apart] {
        let threads = &simulation.machine().threads;
        assert!(threads.iter().all(|thread| thread.ran == S - 1));
    }
}

#[test]
fn what_is_left_is_done_at_the_speed_of_the_time() {
    // a: 1 ms of work from 0 on; b: 0.3 ms from 0.5 ms on. By then half of a's work is done. b takes 0.3 /
    // 0.6 = 0.5 ms, in which a does 0.3 ms; a's last 0.2 ms take as long.
    let tenants = vec![
        server(1_000, [10 * MS].into_iter()),
        server(300, [10 * MS + 500_000].into_iter()),
    ];
    let mut simulation = fifo(topology(1, 1, 2), tenants);
    let answers = simulation.run_until(S);
    assert_eq!(response_us(&answers, 0), [1200]);
    assert_eq!(response_us(&answers, 1), [500]);
    assert_eq!(ran(&simulation), [1_200_000, 500_000]);
}

#[test]
fn who_spins_watches_the_clock() {
    // One thread spins for 2 ms for a request that never comes; the other does 2 ms of work, of which only
    // 1.2 ms are done by then.
    let spins =
        "[[tenant.thread]]\nname = \"w\"\nspin_us = 2000\nprogram = [\"request\", \"respond\"]\n";
    let mut simulation = fifo(topology(1, 1, 2), vec![server(2_000, [0].into_iter())]);
    simulation.add_tenant(Tenant::new(&programs(spins, true), None));
    let answers = simulation.run_until(S);
    assert_eq!(response_us(&answers, 0), [2800]);
    assert_eq!(simulation.machine().threads[1].ran, 2 * MS);
}

#[test]
fn a_guest_is_as_fast_as_the_cpu_that_it_is_on() {
    let mut simulation = fifo(topology(1, 1, 2), vec![busy(100, 1)]);
    let vm = simulation.add_vm(Vm {
        costs: Costs::NONE,
        vm_costs: VmCosts::NONE,
        ..Vm::new(1, Box::new(Fifo::new(None)))
    });
    let programs = programs(&threads(1, "[{ run_us = 600 }]"), false);
    let tenant = Tenant::new(&programs, None);
    let tenant = simulation.add_tenant_in(vm, tenant);
    simulation.run_until(S + MS / 2);
    assert_eq!(simulation.rounds(tenant), 1000);
}

#[test]
fn other_classes_share_cores_too_and_without_smt_nothing_changes() {
    type New = fn(&Topology) -> Box<dyn quell_sim::Class>;
    let classes: [New; 2] = [
        |_| Box::new(Fair::eevdf_7_2()),
        |topology| Box::new(SchedExt::new(topology, &Default::default()).unwrap()),
    ];
    for new in classes {
        let topology = topology(1, 2, 2);
        let costs = Costs {
            smt_percent: 70,
            ..Costs::TYPICAL
        };
        let server = || server(400, every(2 * MS, 0));
        let tenants = || vec![busy(100, 2), server(), server()];
        let mut simulation = machine_with(costs, topology.clone(), new(&topology), tenants());
        let got = shares(&mut simulation, S, 2 * S);
        near("busy", got[0] + got[1], 2.0, 0.01);
        let (least, most) = (0.2 / 1.0, 0.2 / 0.7 + 0.03);
        assert!(
            got[2..].iter().all(|it| (least..most).contains(it)),
            "{got:?}"
        );

        let course = |percent| {
            let costs = Costs {
                smt_percent: percent,
                ..Costs::TYPICAL
            };
            let flat = Topology::flat(3);
            let mut simulation = machine_with(costs, flat.clone(), new(&flat), tenants());
            (simulation.run_until(S), simulation.events())
        };
        assert_eq!(course(100), course(40));
    }
}

const DEEP: Costs = Costs {
    kick: 2_000,
    interrupt: 1_000,
    request: 5_000,
    idle_exit: 100_000,
    idle_deep_after: 600_000,
    ..Costs::NONE
};

#[test]
fn deep_sleepers_wake_late_and_others_do_not() {
    // The interrupt of the request wakes its CPU, and the thread runs there: 100 us of exit latency once, and
    // 5 us for the request. The second request comes 500 us after the first answer: the CPU is not in deep
    // idle yet, nor is it after 600 us, but it is after 601.
    let class = || Box::new(Fifo::new(None));
    let answered = |gap: u64| 10 * MS + 100_000 + 5_000 + 50_000 + gap;
    for (gap, expected) in [(500_000, 55), (600_000, 55), (601_000, 155)] {
        let times = [10 * MS, answered(gap)];
        let tenants = vec![server(50, times.into_iter())];
        let mut simulation = machine_with(DEEP, Topology::flat(1), class(), tenants);
        let answers = simulation.run_until(S);
        assert_eq!(response_us(&answers, 0), [155, expected], "after {gap} ns");
        // The CPU is not busy during the exit latency.
        assert_eq!(simulation.machine().cpus[0].busy, 2 * 55_000);
    }
    // A CPU that another CPU kicks: requests come in at CPU 0, the thread may run on CPU 1 only.
    let times = [10 * MS, 10 * MS + 300_000];
    let tenants = vec![server(50, times.into_iter())];
    let mut simulation = machine_with(DEEP, Topology::flat(2), class(), tenants);
    simulation.restrict(ThreadId(0), [CpuId(1)].into_iter().collect());
    let answers = simulation.run_until(S);
    // Both CPUs are in deep idle: 100 us and 5 us at CPU 0, then 2 us and 100 us until CPU 1 reschedules.
    assert_eq!(response_us(&answers, 0), [257, 57]);
}

#[test]
fn a_sleeper_s_timer_pays_for_the_wakeup_and_busy_cpus_do_not() {
    let program = "[{ sleep_us = 2000 }, { run_us = 100 }]";
    let of = |idle_exit| {
        let costs = Costs { idle_exit, ..DEEP };
        let tenants = vec![batch(100, 1, program)];
        let class = Box::new(Fifo::new(None));
        let mut simulation = machine_with(costs, Topology::flat(1), class, tenants);
        simulation.run_until(S);
        simulation.rounds(0)
    };
    // A round takes 2 ms, 1 us of interrupt and 100 us of work; with exit latency, 100 us more.
    assert_eq!((of(0), of(100_000)), (S / 2_101_000, S / 2_201_000));
    let beside = |idle_exit| {
        let costs = Costs { idle_exit, ..DEEP };
        let class = Box::new(Fifo::new(Some(10_000)));
        let tenants = vec![batch(100, 1, program), busy(100, 1)];
        let mut simulation = machine_with(costs, Topology::flat(1), class, tenants);
        simulation.run_until(S);
        simulation.rounds(0)
    };
    assert_eq!(beside(0), beside(100_000));
}
