//! Guests on a host: what two schedulers, one above the other, do to time, shares, locks and requests.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use common::{MS, S, TICKS, close, mean_us, poisson, programs, serving};
use quell_model::{CpuId, Nice, TenantWeight, Topology};
use quell_sim::{
    Answer, Class, Costs, Fair, Fifo, GroupId, Happening, Load, Request, SchedExt, Simulation,
    State, Tenant, ThreadId, Vm, VmCosts, VmId,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

const BUSY: &str = "[[tenant.thread]]\nname = \"t\"\nprogram = [{ run_us = 1000 }]\n";

/// Adds a tenant of these thread tables to a guest or (`None`) to the host.
fn add(simulation: &mut Simulation, vm: Option<VmId>, threads: &str, load: Option<Load>) -> usize {
    let programs = programs(threads, load.is_some());
    let tenant = Tenant::new(&programs, load);
    match vm {
        Some(vm) => simulation.add_tenant_in(vm, tenant),
        None => simulation.add_tenant(tenant),
    }
}

fn host(cpus: u32, class: impl Class + 'static, costs: Costs) -> Simulation {
    Simulation::new(Topology::flat(cpus), costs, Box::new(class))
}

/// A VM whose kernel work and virtualisation cost nothing, and whose requests pass no emulator thread.
fn free(vcpus: u32, class: impl Class + 'static) -> Vm {
    Vm {
        costs: Costs::NONE,
        vm_costs: VmCosts::NONE,
        emulators: 0,
        ..Vm::new(vcpus, Box::new(class))
    }
}

/// A VM whose emulator thread takes 7 us for each message.
fn emulated() -> Vm {
    Vm {
        vm_costs: VmCosts {
            emulate: 7_000,
            ..VmCosts::NONE
        },
        emulators: 1,
        ..free(1, Fifo::new(None))
    }
}

/// The CPU time of a guest's threads, as a part of `span` ns.
fn shares(simulation: &Simulation, vm: VmId, span: u64) -> Vec<f64> {
    let threads = &simulation.guest(vm).threads;
    let share = |thread: &quell_sim::Thread| thread.ran as f64 / span as f64;
    threads.iter().map(share).collect()
}

#[test]
fn a_guest_alone_is_as_fast_as_bare_metal() {
    let threads = serving(3, "{ exponential = 300 }");
    let classes: [fn() -> Box<dyn Class>; 3] = [
        || Box::new(Fifo::new(Some(100_000))),
        || Box::new(Fair::cfs_6_1()),
        || Box::new(Fair::eevdf_7_2()),
    ];
    for class in classes {
        let mut bare = Simulation::new(Topology::flat(1), TICKS, class());
        add(&mut bare, None, &threads, Some(poisson(2500.0, 1)));
        let mut nested = host(1, Fifo::new(None), Costs::NONE);
        let vm = nested.add_vm(Vm {
            costs: TICKS,
            class: class(),
            ..free(1, Fifo::new(None))
        });
        add(&mut nested, Some(vm), &threads, Some(poisson(2500.0, 1)));
        let at = |answers: Vec<Answer>| -> Vec<(u64, u64)> {
            answers.iter().map(|it| (it.due, it.at)).collect()
        };
        let (bare, got) = (at(bare.run_until(5 * S)), at(nested.run_until(5 * S)));
        assert!(bare.len() > 12_000);
        assert!(bare == got, "{} and {} answers", bare.len(), got.len());
        assert_eq!(nested.vm_stats(vm).steal, 0);
    }
}

#[test]
fn two_busy_guests_each_lose_half_of_a_cpu() {
    for turn in [MS, 10 * MS] {
        let mut host = host(1, Fifo::new(Some(turn)), Costs::NONE);
        let vms = [(); 2].map(|()| host.add_vm(free(1, Fair::eevdf_6_12())));
        for vm in vms {
            add(&mut host, Some(vm), BUSY, None);
        }
        host.run_until(10 * S);
        for vm in vms {
            close("steal", host.steal(vm, CpuId(0)) as f64 / 10e9, 0.5, 0.002);
            close("ran", shares(&host, vm, 10 * S)[0], 0.5, 0.002);
        }
    }
}

#[test]
fn shares_are_those_of_both_levels() {
    let mut host = host(1, Fair::eevdf_6_12(), TICKS);
    let vms = [(100, 1), (200, 2)].map(|(weight, twice)| {
        let group = host.add_group(GroupId::ROOT, TenantWeight(weight));
        let vm = host.add_vm(Vm {
            costs: TICKS,
            group,
            ..free(1, Fair::eevdf_6_12())
        });
        (vm, f64::from(twice))
    });
    for (vm, _) in vms {
        add(&mut host, Some(vm), BUSY, None);
        add(&mut host, Some(vm), BUSY, None);
    }
    host.run_until(60 * S);
    for (vm, twice) in vms {
        for share in shares(&host, vm, 60 * S) {
            close("share", share, twice / 6.0, 0.01);
        }
    }
}

#[test]
fn steal_is_how_long_vcpus_are_ready_without_a_cpu() {
    let mut host = host(2, Fair::eevdf_6_12(), Costs::TYPICAL);
    let vms = [1, 2, 3].map(|_| host.add_vm(Vm::new(2, Box::new(Fair::eevdf_6_12()))));
    let threads = serving(4, "{ exponential = 200 }");
    for (seed, vm) in vms.iter().enumerate() {
        add(
            &mut host,
            Some(*vm),
            &threads,
            Some(poisson(2000.0, seed as u64)),
        );
    }
    #[derive(Default)]
    struct Waits {
        since: BTreeMap<ThreadId, u64>,
        all: BTreeMap<ThreadId, u64>,
    }
    let waits = Rc::new(RefCell::new(Waits::default()));
    let told = waits.clone();
    host.observe(Box::new(move |now, _, happening| {
        let waits = &mut *told.borrow_mut();
        match happening {
            Happening::Fork { .. } => {}
            Happening::Wakeup { thread, .. } => {
                waits.since.insert(thread, now);
            }
            Happening::Switch { left, next, .. } => {
                if let Some((left, true)) = left {
                    waits.since.insert(left, now);
                }
                if let Some((next, since)) = next.and_then(|it| waits.since.remove_entry(&it)) {
                    *waits.all.entry(next).or_default() += now - since;
                }
            }
        }
    }));
    host.run_until(3 * S);
    let waits = waits.borrow();
    for vm in vms {
        for (thread, vcpu) in host.vcpu_threads(vm).zip(0..) {
            let since = waits.since.get(&thread).map_or(0, |since| 3 * S - since);
            let waited = waits.all.get(&thread).copied().unwrap_or(0) + since;
            let steal = host.steal(vm, CpuId(vcpu));
            assert!(steal > 50 * MS, "{steal}");
            assert_eq!(steal, waited);
            // What the guest's CPU counts is what its vCPU thread had on the host, without exits, halts and
            // polling.
            let (busy, ran) = (
                host.guest(vm).cpus[vcpu as usize].busy,
                host.machine().thread(thread).ran,
            );
            assert!(busy <= ran + 10_000 && ran < busy * 3, "{busy} of {ran}");
        }
    }
}

#[test]
fn a_halted_guest_costs_the_host_nothing() {
    let mut simulation = host(1, Fair::eevdf_6_12(), Costs::TYPICAL);
    let vm = simulation.add_vm(Vm::new(2, Box::new(Fair::eevdf_6_12())));
    let once = Box::new(std::iter::once(Request { due: MS, seed: 1 }));
    add(&mut simulation, Some(vm), &serving(2, "100"), Some(once));
    assert_eq!(simulation.run_until(100 * MS).len(), 1);
    let (busy, events) = (simulation.machine().cpus[0].busy, simulation.events());
    simulation.run_until(10 * S);
    assert_eq!(simulation.machine().cpus[0].busy, busy);
    assert!(simulation.events() <= events + 2);
    let stats = simulation.vm_stats(vm);
    assert!(stats.halts >= 2 && stats.exits >= stats.halts, "{stats:?}");
}

#[test]
fn polling_saves_the_wakeup_and_costs_the_cpu() {
    let course = |poll| {
        let mut host = host(2, Fifo::new(None), Costs::TYPICAL);
        let vm = host.add_vm(Vm {
            vm_costs: VmCosts {
                poll,
                ..VmCosts::TYPICAL
            },
            ..Vm::new(1, Box::new(Fifo::new(None)))
        });
        let every = (1..).map(|number| Request {
            due: number * MS / 10,
            seed: number,
        });
        add(
            &mut host,
            Some(vm),
            &serving(1, "20"),
            Some(Box::new(every)),
        );
        let answers = host.run_until(S);
        let thread = host.vcpu_threads(vm).next().unwrap();
        let ran = host.machine().thread(thread).ran as f64 / 1e9;
        (mean_us(&answers), ran, host.vm_stats(vm).halts)
    };
    let (blocks, polls) = (course(0), course(200_000));
    println!("blocks {blocks:?}, polls {polls:?}");
    assert!(polls.0 < blocks.0 && polls.1 > 2.0 * blocks.1 && polls.2 < blocks.2 / 100);
}

#[test]
fn a_preempted_lock_holder_makes_those_who_spin_waste_time() {
    // Two threads on two vCPUs alternate in holding a lock, each for half of its time; both vCPUs have one
    // host CPU.
    let course = |cpus: u32, spin: u32| {
        let mut host = host(cpus, Fifo::new(Some(3 * MS)), Costs::NONE);
        let vm = host.add_vm(free(2, Fifo::new(Some(3 * MS))));
        let threads = format!(
            "[[tenant.thread]]\nname = \"t\"\ncount = 2\nspin_us = {spin}\n\
             program = [{{ run_us = 100 }}, {{ lock = {{ name = \"l\", program = [{{ run_us = 100 }}] }} }}]\n"
        );
        let tenant = add(&mut host, Some(vm), &threads, None);
        host.run_until(10 * S);
        let ran: f64 = shares(&host, vm, 10 * S).iter().sum();
        (host.rounds(tenant) as f64 / 10.0, ran)
    };
    // A CPU does 5000 rounds of 200 us a second, whichever thread does them, if no time is wasted.
    let (rounds, ran) = course(1, 0);
    close("rounds, blocking", rounds, 5000.0, 50.0);
    close("CPU time, blocking", ran, 1.0, 0.01);
    let (spun, ran) = course(1, 100_000);
    close("CPU time, spinning", ran, 1.0, 0.01);
    println!("rounds, spinning: {spun}");
    assert!(spun < 0.8 * rounds);
    // With a host CPU for each vCPU none is preempted, and spinning loses nothing.
    let (apart, _) = course(2, 100_000);
    close("rounds, a CPU each", apart, 10_000.0, 100.0);
}

#[test]
fn requests_pass_the_emulator_twice() {
    let mut host = host(2, Fifo::new(None), Costs::NONE);
    let vm = host.add_vm(emulated());
    let every = (1..=1000).map(|number| Request {
        due: number * MS,
        seed: number,
    });
    add(
        &mut host,
        Some(vm),
        &serving(1, "100"),
        Some(Box::new(every)),
    );
    let answers = host.run_until(2 * S);
    assert_eq!(answers.len(), 1000);
    assert!(
        answers
            .iter()
            .all(|it| it.at - it.due == 7_000 + 100_000 + 7_000)
    );
    let emulator = host.emulator_threads(vm).next().unwrap();
    assert_eq!(host.machine().thread(emulator).ran, 2 * 1000 * 7_000);
    assert_eq!(host.machine().thread(emulator).state, State::Blocked);
}

/// A thread's question in the middle of a request passes the emulator thread too, and so does the reply; for
/// a tenant on the host the step is a sleep.
#[test]
fn questions_and_replies_pass_the_emulator() {
    let asks = "[[tenant.thread]]\nname = \"t\"\nprogram = [\"request\", { run_us = 100 }, { exchange_us = 300 }, { run_us = 100 }, \
                { exchange_us = 50 }, \"respond\"]\n";
    let load = || -> Option<Load> {
        let every = (1..=1000).map(|number| Request {
            due: number * MS,
            seed: number,
        });
        Some(Box::new(every))
    };
    let mut host = host(2, Fifo::new(None), Costs::NONE);
    let vm = host.add_vm(emulated());
    let guest = add(&mut host, Some(vm), asks, load());
    let process = add(&mut host, None, asks, load());
    let answers = host.run_until(2 * S);
    for (tenant, takes) in [(guest, 6 * 7_000 + 550_000), (process, 550_000)] {
        let of = answers.iter().filter(|it| it.tenant == tenant);
        let taken: Vec<u64> = of.map(|it| it.at - it.due).collect();
        assert_eq!(taken, vec![takes; 1000]);
    }
    let emulator = host.emulator_threads(vm).next().unwrap();
    assert_eq!(host.machine().thread(emulator).ran, 6 * 1000 * 7_000);
}

/// However many threads ask at once, each gets its own reply, when that is due.
#[test]
fn each_question_has_its_own_reply() {
    let asks = "[[tenant.thread]]\nname = \"t\"\ncount = 50\nprogram = [\"request\", { exchange_us = { exponential = 2000 } }, \
                { run_us = 10 }, \"respond\"]\n";
    let mut host = host(4, Fifo::new(None), Costs::TYPICAL);
    let vm = host.add_vm(Vm {
        emulators: 2,
        ..Vm::new(2, Box::new(Fifo::new(None)))
    });
    let every = (1..=10_000).map(|number| Request {
        due: number * MS / 10,
        seed: number,
    });
    add(&mut host, Some(vm), asks, Some(Box::new(every)));
    let answers = host.run_until(2 * S);
    assert_eq!(answers.len(), 10_000);
    let taken = answers.iter().map(|it| (it.at - it.due) as f64 / 1e6);
    close("mean, in ms", taken.sum::<f64>() / 1e4, 2.05, 0.1);
}

#[test]
fn each_queue_has_an_emulator_thread_and_a_virtual_cpu() {
    // Emulator threads need 40 us for a request and its answer, of which 60,000 come in a second: at least
    // three queues are needed.
    let course = |queues: u32, online: u32| {
        let costs = Costs {
            elsewhere: true,
            ..Costs::TYPICAL
        };
        let mut host = host(16, Fair::eevdf_6_12(), costs);
        let vm = host.add_vm(Vm {
            vm_costs: VmCosts {
                emulate: 20_000,
                ..VmCosts::TYPICAL
            },
            emulators: queues,
            ..Vm::new(4, Box::new(Fair::eevdf_6_12()))
        });
        let threads = serving(4, "5");
        add(&mut host, Some(vm), &threads, Some(poisson(60e3, 1)));
        for vcpu in (online..4).map(CpuId) {
            host.set_online(vm, vcpu, false);
        }
        let answered = host.run_until(S / 2).len() as f64 * 2.0;
        let ran = |thread| host.machine().thread(thread).ran as f64 * 2e-9;
        let emulators: Vec<f64> = host.emulator_threads(vm).map(ran).collect();
        let vcpus: Vec<f64> = host
            .guest(vm)
            .cpus
            .iter()
            .map(|it| it.busy as f64 * 2e-9)
            .collect();
        (answered, emulators, vcpus)
    };
    let (one, ..) = course(1, 4);
    // Answers also wait behind requests.
    assert!(one < 25.1e3, "{one}");
    let (four, emulators, vcpus) = course(4, 4);
    close("four queues", four, 60e3, 1000.0);
    assert!(
        emulators.iter().all(|it| (0.55..0.65).contains(it)),
        "{emulators:?}"
    );
    assert!(vcpus.iter().all(|it| (0.2..0.5).contains(it)), "{vcpus:?}");
    // No interrupt goes to a vCPU that is offline.
    let (four, _, vcpus) = course(4, 2);
    close("two virtual CPUs", four, 60e3, 1000.0);
    assert!(vcpus[2..].iter().all(|it| *it < 0.01), "{vcpus:?}");
}

#[test]
fn who_polls_makes_way_for_a_thread_that_waits_for_its_cpu() {
    // One CPU, on which a vCPU polls for up to a ms; EEVDF does not preempt a thread before the end of its
    // slice.
    let topology = Topology::flat(1);
    let sched_ext = SchedExt::new(&topology, &quell_sched::Options::default()).unwrap();
    let classes: [Box<dyn Class>; 2] = [Box::new(Fair::eevdf_6_12()), Box::new(sched_ext)];
    for class in classes {
        polls_make_way(Simulation::new(topology.clone(), TICKS, class));
    }
}

fn polls_make_way(mut host: Simulation) {
    let vm = host.add_vm(Vm {
        vm_costs: VmCosts {
            poll: MS,
            ..VmCosts::NONE
        },
        ..free(1, Fair::eevdf_6_12())
    });
    let every = (1..=2000).map(|number| Request {
        due: number * MS / 2,
        seed: number,
    });
    add(
        &mut host,
        Some(vm),
        &serving(1, "10"),
        Some(Box::new(every)),
    );
    let beside = (1..=500).map(|number| Request {
        due: number * 2 * MS + MS / 5,
        seed: number,
    });
    let process = add(&mut host, None, &serving(1, "10"), Some(Box::new(beside)));
    let answers = host.run_until(S);
    let waits = answers
        .iter()
        .filter(|it| it.tenant == process)
        .map(|it| it.at - it.due);
    let waits: Vec<u64> = waits.collect();
    assert!(waits.len() > 490);
    assert!(
        waits.iter().all(|it| *it <= 20_000),
        "{:?}",
        waits.iter().max()
    );
    // The vCPU does poll: of two requests in a ms the second finds the vCPU on its CPU.
    let thread = host.vcpu_threads(vm).next().unwrap();
    assert!(host.machine().thread(thread).ran > S / 2);
}

#[test]
fn an_emulator_beside_busy_vcpus_delays_requests() {
    let course = |cpus: u32| {
        let mut host = host(cpus, Fifo::new(Some(3 * MS)), Costs::NONE);
        let vm = host.add_vm(Vm {
            vm_costs: VmCosts::TYPICAL,
            ..Vm::new(1, Box::new(Fair::eevdf_6_12()))
        });
        add(&mut host, Some(vm), BUSY, None);
        add(
            &mut host,
            Some(vm),
            &serving(1, "50"),
            Some(poisson(100.0, 1)),
        );
        mean_us(&host.run_until(20 * S))
    };
    let (shared, apart) = (course(1), course(2));
    println!("shared {shared}, apart {apart}");
    // First come, first served: each message waits about half of a slice of the vCPU.
    assert!(shared > apart + 2_000.0);
}

#[test]
fn what_is_late_comes_once() {
    // The vCPU runs for every other 10 ms: of its ticks, one every ms, it gets those of its own time, and one
    // for the rest.
    let mut host = host(1, Fifo::new(Some(10 * MS)), Costs::NONE);
    let costs = Costs {
        tick_every: MS,
        tick: 10_000,
        ..Costs::NONE
    };
    let vms = [(); 2].map(|()| {
        host.add_vm(Vm {
            costs,
            ..free(1, Fifo::new(None))
        })
    });
    for vm in vms {
        add(&mut host, Some(vm), BUSY, None);
    }
    host.run_until(20 * S);
    for vm in vms {
        let cpu = host.guest(vm).cpus[0].busy as f64;
        let thread = host.guest(vm).threads[0].ran as f64;
        close(
            "ticks in 20 ms",
            (cpu - thread) / 10_000.0 / 1000.0,
            10.5,
            0.6,
        );
        close("busy", cpu / 20e9, 0.5, 0.002);
    }
}

#[test]
fn scheduling_frequency_rises_with_load_and_then_falls() {
    let frequency = |rate: f64| {
        let mut host = host(4, Fair::eevdf_6_12(), Costs::TYPICAL);
        let vm = host.add_vm(Vm::new(2, Box::new(Fair::eevdf_6_12())));
        let threads = serving(2, "{ exponential = 50 }");
        add(&mut host, Some(vm), &threads, Some(poisson(rate, 7)));
        host.run_until(2 * S);
        host.vm_stats(vm).switches as f64 / 2.0
    };
    let loads = [2e3, 6e3, 10e3, 14e3, 18e3, 22e3, 26e3];
    let got = loads.map(frequency);
    println!("{loads:?}: {got:?}");
    assert!(got[0] < got[1] && got[1] < got[2]);
    // Concave: each step adds less than the one before, and the last step takes away.
    let added: Vec<f64> = got.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(
        added.windows(2).all(|two| two[1] < two[0] + 0.05 * got[1]),
        "{added:?}"
    );
    assert!(added[5] < 0.0, "{added:?}");
}

#[test]
fn what_is_offline_stays_idle() {
    let mut host = host(2, Fair::eevdf_6_12(), TICKS);
    let vm = host.add_vm(Vm {
        costs: TICKS,
        ..free(4, Fair::eevdf_6_12())
    });
    for _ in 0..8 {
        add(&mut host, Some(vm), BUSY, None);
    }
    let ran = |host: &Simulation| -> Vec<f64> {
        let threads = host.vcpu_threads(vm);
        let ran = threads.map(|it| host.machine().thread(it).ran as f64 / 10e9);
        ran.collect()
    };
    // Four vCPUs share two CPUs, and then two vCPUs have one each.
    host.run_until(10 * S);
    let (before, switches) = (ran(&host), host.switches());
    for share in &before {
        close("four", *share, 0.5, 0.02);
    }
    host.set_online(vm, CpuId(2), false);
    host.set_online(vm, CpuId(3), false);
    host.run_until(20 * S);
    let after = ran(&host);
    for (vcpu, expected) in [1.0, 1.0, 0.0, 0.0].into_iter().enumerate() {
        close("two", after[vcpu] - before[vcpu], expected, 0.02);
    }
    assert!((host.switches() - switches) * 10 < switches);
    for vcpu in [2, 3, 0, 1] {
        host.set_online(vm, CpuId(vcpu), vcpu >= 2);
    }
    host.run_until(30 * S);
    for (vcpu, expected) in [0.0, 0.0, 1.0, 1.0].into_iter().enumerate() {
        close("the others", ran(&host)[vcpu] - after[vcpu], expected, 0.02);
    }
}

/// `vms` VMs of four vCPUs, each with a server whose requests need one CPU in all.
fn many(vms: u32, cpus: u32, rate: f64) -> Simulation {
    let mut host = host(cpus, Fair::eevdf_6_12(), Costs::TYPICAL);
    let threads = serving(4, &format!("{{ exponential = {} }}", 1e6 / rate));
    for seed in 0..vms {
        let nice = Nice::new((seed % 5) as i32).unwrap();
        let vm = host.add_vm(Vm {
            nice,
            ..Vm::new(4, Box::new(Fair::eevdf_6_12()))
        });
        add(
            &mut host,
            Some(vm),
            &threads,
            Some(poisson(rate, seed.into())),
        );
    }
    host
}

#[test]
fn the_course_is_the_same_each_time_and_no_request_is_lost() {
    let course = |steps: u64| {
        let mut host = many(6, 8, 2000.0);
        let mut answers = Vec::new();
        for step in 1..=steps {
            answers.extend(host.run_until(step * S / steps));
        }
        let arrived = answers.len() + host.unanswered().count();
        let stats: Vec<_> = (0..6).map(|vm| host.vm_stats(VmId(vm))).collect();
        (answers, arrived, stats)
    };
    let once = course(1);
    assert_eq!(once, course(1));
    let due = (0..6)
        .map(|seed| poisson(2000.0, seed).take_while(|it| it.due <= S).count())
        .sum::<usize>();
    // Some requests may be in an interrupt.
    assert!(once.1 <= due && once.1 + 6 >= due, "{} of {due}", once.1);
}

#[test]
fn many_guests_are_faster_than_real_time() {
    let mut host = many(64, 80, 100.0);
    let began = Instant::now();
    let answers = host.run_until(S);
    let took = began.elapsed().as_secs_f64();
    println!(
        "64 VMs of 4 vCPUs on 80 CPUs: {:.1} times real time, {:.2} million events/s, {} answers",
        1.0 / took,
        host.events() as f64 / took / 1e6,
        answers.len()
    );
    assert!(answers.len() > 5_500);
}
