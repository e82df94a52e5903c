use super::super::random;
use super::super::{Bench, Course, engine, owners, prepare};
use super::*;
use crate::run::BenchOptions;
use quell_model::Plan;
use quell_model::config::{Criticality, Server, TenantSpec};
use quell_scenario::HostScheduler;
use quell_sim::{Costs, Fair, Happening, Tenant, Vm};
use quell_testkit::audit::{Audit, Event};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;
use std::fmt::Write;
use std::path::Path;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

const MS: u64 = 1_000_000;

/// What a tenant of one thread is promised, and the audit of it once it is known when the server's periods
/// begin.
#[derive(Default)]
struct Promised {
    server: Option<Server>,
    audit: Option<Audit>,
    slept: u64,
    kept: u64,
    missed: usize,
}

impl Promised {
    fn is(&mut self, server: Option<Server>) {
        if self.server != server {
            self.server = server;
            if let Some(audit) = self.audit.take() {
                self.kept += audit.kept();
                self.missed += audit.misses().len();
            }
        }
    }

    fn event(&mut self, at: u64, event: Event) {
        if event == Event::Sleeps {
            self.slept = at;
        }
        if let (None, Some(server), Event::Wakes) = (&self.audit, self.server, event) {
            // A period has passed since the thread slept, so any earlier budget is over.
            if at >= self.slept + server.period_ns {
                self.audit = Some(Audit::new(&[server], None, MS / 1000));
            }
        }
        if let Some(audit) = &mut self.audit {
            audit.event(at, 0, event);
        }
    }
}

/// A policy whose last plan is kept as well.
struct Told(Box<dyn Policy>, Arc<Mutex<Plan>>);

impl Policy for Told {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn decide(&mut self, snapshot: &quell_model::Snapshot) -> Plan {
        let plan = self.0.decide(snapshot);
        *self.1.lock().unwrap() = plan.clone();
        plan
    }
}

/// Tenants whose operator changes promises, adds or withdraws them at any time: how many promises of high
/// criticality are kept and how many broken.
fn with_changes(seed: u64) -> (u64, usize) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let cpus = rng.random_range(1..=4);
    let mut text = format!("name = \"t\"\n[host]\ncpus = {cpus}\n[criticality]\ntemperature = 0\n");
    let servers: Vec<Server> = (0..5 * cpus)
        .map(|_| random::server(&mut rng, 2 * MS))
        .collect();
    for (number, server) in servers.iter().enumerate() {
        let steps = (0..16).map(|_| {
            let run = rng.random_range(1..=server.pessimistic_ns / 1000);
            let sleep = rng.random_range(1..=server.period_ns / 500);
            format!("{{ run_us = {run} }}, {{ sleep_us = {sleep} }}")
        });
        let steps: Vec<String> = steps.collect();
        let program = steps.join(", ");
        write!(
            text,
            "[[tenant]]\nname = \"t{number}\"\nclass = \"batch\"\n[[tenant.thread]]\nname = \"t\"\nprogram = [{program}]\n"
        )
        .unwrap();
    }
    text += "[[tenant]]\nname = \"busy\"\nclass = \"batch\"\n[[tenant.thread]]\nname = \"t\"\ncount = \"cpus\"\nprogram = [{ run_us = 100000 }]\n";
    let scenario = Scenario::parse(Path::new("t.toml"), &text).unwrap();
    let side: Side = "akita".parse().unwrap();
    let costs = Costs {
        tick_every: 4 * MS,
        ..Costs::NONE
    };
    let topology = quell_model::Topology::flat(cpus);
    let (class, costs) = engine(&side, HostScheduler::default(), &topology, costs, &[]).unwrap();
    let mut it = Simulation::new(topology, costs, class);
    let instances = scenario.instances();
    for tenant in &instances {
        it.add_tenant(Tenant::new(&tenant.table.threads, None));
    }
    let owners = owners(&instances);
    let mut agent = Agent::of(&side, &scenario, &instances, &owners, &mut it).unwrap();
    let plan = Arc::new(Mutex::new(Plan::default()));
    let nobody: Box<dyn Policy> = Box::new(quell_policy::share::Shares);
    agent.policy = Box::new(Told(
        std::mem::replace(&mut agent.policy, nobody),
        plan.clone(),
    ));
    let promised: Vec<Promised> = servers.iter().map(|_| Promised::default()).collect();
    let promised = Rc::new(RefCell::new(promised));
    let told = promised.clone();
    it.observe(Box::new(move |_, at, happening| {
        let mut promised = told.borrow_mut();
        let mut tell = |thread: quell_sim::ThreadId, event| {
            if let Some(it) = promised.get_mut(thread.index()) {
                it.event(at, event);
            }
        };
        match happening {
            Happening::Fork { .. } => {}
            Happening::Wakeup { thread, .. } => tell(thread, Event::Wakes),
            Happening::Switch { left, next, .. } => {
                if let Some((thread, ready)) = left {
                    tell(thread, Event::Ends);
                    if !ready {
                        tell(thread, Event::Sleeps);
                    }
                }
                if let Some(thread) = next {
                    tell(thread, Event::Begins);
                }
            }
        }
    }));
    while agent.next_ns() < 4000 * MS {
        it.run_until(agent.next_ns());
        if rng.random_bool(0.7) {
            let tenant = rng.random_range(0..servers.len());
            let mut spec: TenantSpec = instances[tenant].table.spec.clone();
            if rng.random_bool(0.7) {
                let server = random::server(&mut rng, 2 * MS);
                let ms = |ns: u64| Some(ns as f64 / 1e6);
                let high = server.criticality == Criticality::High;
                spec.criticality = Some(server.criticality);
                (spec.period_ms, spec.budget_ms) = (ms(server.period_ns), ms(server.budget_ns));
                spec.pessimistic_budget_ms = ms(server.pessimistic_ns).filter(|_| high);
            }
            agent.monitor.configure(tenant, spec);
            promised.borrow_mut()[tenant].is(None);
        }
        agent.act(&mut it, &[]);
        let plan = plan.lock().unwrap();
        for (tenant, promised) in promised.borrow_mut().iter_mut().enumerate() {
            let name = &instances[tenant].name;
            let planned = plan.tenants.iter().find(|it| it.name == *name);
            let number = planned.and_then(|it| it.threads.first()?.server);
            let of_number = |number| plan.servers.iter().find(|it| it.number == number);
            let server = number.and_then(of_number).map(|it| it.terms.server);
            promised.is(server.filter(|it| it.criticality == Criticality::High));
        }
    }
    let mut promised = promised.borrow_mut();
    promised.iter_mut().for_each(|it| it.is(None));
    let kept = promised.iter().map(|it| it.kept).sum();
    (kept, promised.iter().map(|it| it.missed).sum())
}

#[test]
fn changes_break_no_promise() {
    let results: Vec<_> = (0..200).map(with_changes).collect();
    for (seed, (_, missed)) in results.iter().enumerate() {
        assert_eq!(*missed, 0, "seed {seed}");
    }
    let kept: u64 = results.iter().map(|it| it.0).sum();
    println!("{kept} kept");
    assert!(kept > 4000, "{kept}");
}

#[test]
fn guests_plug_one_virtual_cpu_after_the_other() {
    let mut plugs = Plugs {
        online: 8,
        to: 8,
        at_ns: u64::MAX,
    };
    plugs.tell(6, 100, 25);
    assert_eq!(plugs.at_ns, 125);
    assert_eq!(plugs.next(25), (CpuId(7), false));
    // A guest that is told another number meanwhile goes on from there.
    plugs.tell(8, 130, 25);
    assert_eq!((plugs.online, plugs.at_ns), (7, 150));
    assert_eq!(plugs.next(25), (CpuId(7), true));
    assert_eq!(plugs.at_ns, u64::MAX);
    plugs.tell(7, 200, 0);
    plugs.tell(8, 210, 0);
    assert_eq!(plugs.at_ns, u64::MAX);
}

/// A scenario's course under a side, on a machine that has costs only where its kernel needs ticks.
fn course(side: Side, text: &str, seconds: u64) -> Course {
    let text = format!("name = \"t\"\n{text}");
    let scenario = Scenario::parse(Path::new("t.toml"), &text).unwrap();
    let options = BenchOptions {
        sides: vec![side.clone(), side],
        ..BenchOptions::new(scenario, "quell".into())
    };
    let interrupt = AtomicBool::new(false);
    let bench = prepare(&options, &interrupt).unwrap();
    let costs = Costs {
        tick_every: 4_000_000,
        ..Costs::NONE
    };
    let mut simulation =
        Simulation::new(bench.topology.clone(), costs, Box::new(Fair::eevdf_7_2()));
    let end = seconds * 1000 * MS;
    for (number, tenant) in bench.instances.iter().enumerate() {
        let load = bench.load(&options.scenario, tenant, number as u64, end);
        let inside = Tenant::new(&tenant.table.threads, load.unwrap());
        if tenant.table.spec.kind == TenantKind::Vm {
            let vcpus = tenant.table.spec.vcpus.unwrap();
            let vm = simulation.add_vm(Vm::new(vcpus, Box::new(Fair::eevdf_6_12())));
            simulation.add_tenant_in(vm, inside);
        } else {
            simulation.add_tenant(inside);
        }
    }
    let Bench { instances, .. } = &bench;
    let owners = owners(instances);
    let side = &options.sides[0];
    let controller = of(side, &options.scenario, instances, &owners, &mut simulation);
    let mut course = Course {
        controller,
        simulation,
        answers: Vec::new(),
        told: 0,
        held: None,
    };
    course.advance(end, &interrupt).unwrap();
    course
}

/// A server of many threads whose requests take a ms of a CPU in the mean.
fn server(name: &str, rate: u32, p99_ms: f64) -> String {
    format!(
        "[[tenant]]\nname = \"{name}\"\nload = {{ rate = {rate} }}\nobjective = {{ p99_ms = {p99_ms} }}\n\
         [[tenant.thread]]\nname = \"w\"\ncount = 100\n\
         program = [\"request\", {{ run_us = {{ exponential = 1000 }} }}, \"respond\"]\n"
    )
}

/// One VM with much to do, one with little, and a process.
#[test]
fn guests_have_as_many_virtual_cpus_as_cpus_of_their_own() {
    let vm = |name: &str, rate: u32| {
        let process = server(name, rate, 20.0);
        process.replace("load =", "kind = \"vm\"\nvcpus = 4\nload =")
    };
    let text = format!(
        "[host]\ncpus = 10\n{}{}[[tenant]]\nname = \"hog\"\nclass = \"batch\"\n[[tenant.thread]]\nname = \"w\"\nprogram = [{{ run_us = 1000 }}]\n",
        vm("a", 2200),
        vm("b", 200)
    );
    let course = course(Side::Ufo, &text, 40);
    let simulation = &course.simulation;
    let host = simulation.machine();
    let allowed = |thread: ThreadId| host.thread(thread).allowed.clone().unwrap();
    let groups = [VmId(0), VmId(1)].map(|vm| {
        let groups: Vec<CpuSet> = simulation.vcpu_threads(vm).map(allowed).collect();
        assert!(groups.iter().all(|it| *it == groups[0]), "{groups:?}");
        groups[0].clone()
    });
    // Three quarters of three CPUs are too much (pools: where requests wait long); a fifth of one CPU is not.
    assert_eq!(groups.each_ref().map(CpuSet::len), [4, 1], "{groups:?}");
    let emulators: Vec<CpuSet> = [VmId(0), VmId(1)]
        .into_iter()
        .flat_map(|vm| {
            simulation
                .emulator_threads(vm)
                .map(allowed)
                .collect::<Vec<_>>()
        })
        .collect();
    let mut hog = (0..host.threads.len()).map(|at| ThreadId(at as u32));
    let hog = allowed(hog.next_back().unwrap());
    // No tenant has a CPU that another tenant has.
    let all = [&groups[0], &groups[1], &emulators[0], &hog];
    let total: usize = all.iter().map(|it| it.len()).sum();
    assert_eq!(total, 10, "{all:?}");
    assert!((0..10).all(|cpu| all.iter().any(|it| it.contains(CpuId(cpu)))));
    // The guests know how many vCPUs they have.
    for (vm, group) in [VmId(0), VmId(1)].into_iter().zip(&groups) {
        assert_eq!(simulation.online(vm), group.len());
    }
}
