//! Controllers that give tenants cores of their own: static isolation, PARTIES and DynIso. The parent module
//! ([`super`]) decides how many cores a tenant gets; this one decides which ones, and what the tenant's
//! threads and guest are told.
//!
//! A *core* is all its CPUs, so that no two tenants share one. The cores of `emulator_cpus` are not dealt
//! out, and emulator threads bound to them stay there. Cores are dealt out in the order of caches, and a
//! tenant that gets one more gets it from the cache that most of its cores are in. With more tenants than
//! cores some tenants share a core, and no core moves, as no tenant has more than one.
//!
//! PARTIES and DynIso move cores between tenants that answer requests, by the 99th percentile of the
//! latencies of their answers since the last tick. They know batch tenants only as one: together these begin
//! with one tenant's part, of which they keep one core; they use the rest, like all cores that are free,
//! until another tenant gets them. A VM's vCPU and emulator threads are on its cores. Its guest is not told
//! of this, except under host-aware isolation, where the guest has as many virtual CPUs online as the VM has
//! CPUs.

use super::{Move, Parties, dyniso, equal_split};
use quell_bench::run::simulated::{Controller, Owner, for_emulators};
use quell_model::config::{TenantClass, TenantKind};
use quell_model::{CpuId, CpuSet, ThreadRole};
use quell_scenario::TenantInstance;
use quell_sim::{Answer, Machine, Simulation, ThreadId, VmId};

/// The tenants that have the same cores: one tenant, or all batch tenants.
struct Holder {
    /// The tenants' threads on the host, without the emulator threads that are bound elsewhere.
    threads: Vec<ThreadId>,
    /// The indices of the cores that these tenants hold.
    cores: Vec<usize>,
    /// The CPUs to which the threads were last restricted.
    told: CpuSet,
    /// The tenant's VM and the number of its virtual CPUs, if the guest is told its number of CPUs too.
    guest: Option<(VmId, u32)>,
}

/// A core: its CPUs, and the last-level cache that it is in.
struct Core {
    cpus: CpuSet,
    cache: u32,
}

/// The part of the controller that moves cores.
struct Mover {
    parties: Parties,
    /// For each tenant of the simulation, its index among the tenants of PARTIES; `None`: a batch tenant.
    numbers: Vec<Option<usize>>,
}

/// The controller that restricts tenants to cores of a simulated machine.
pub struct Cores {
    /// The cores that are dealt out, in the order of caches.
    cores: Vec<Core>,
    /// The holders of cores. Where cores move, each tenant that answers requests comes first, then all batch
    /// tenants as one, if there are any.
    holders: Vec<Holder>,
    /// The indices of the cores that no tenant holds; batch tenants use them meanwhile.
    free: Vec<usize>,
    /// `None`: cores do not move.
    mover: Option<Mover>,
    /// The time at which the controller acts next, in ns.
    next_ns: u64,
}

impl Cores {
    /// Static isolation: every tenant has an equal part of the cores for ever.
    pub fn fixed(instances: &[TenantInstance<'_>], owners: &[Owner], machine: &Machine) -> Cores {
        let all: Vec<Vec<usize>> = (0..instances.len())
            .map(|instance| vec![instance])
            .collect();
        let mut cores = Cores::new(&all, instances, owners, machine);
        cores.deal(&equal_split(cores.cores.len() as u32, instances.len()));
        cores
    }

    /// Host-aware isolation: as [`Cores::fixed`], and a VM's guest has as many virtual CPUs online as the VM
    /// has CPUs.
    pub fn host_aware(
        instances: &[TenantInstance<'_>],
        owners: &[Owner],
        machine: &Machine,
    ) -> Cores {
        let mut cores = Cores::fixed(instances, owners, machine);
        let vms = (cores.holders.iter_mut().zip(instances))
            .filter(|(_, it)| it.table.spec.kind == TenantKind::Vm);
        for (vm, (holder, it)) in (0..).zip(vms) {
            holder.guest = Some((VmId(vm), it.table.spec.vcpus.unwrap_or(1)));
        }
        cores
    }

    /// PARTIES ([`Parties`]). A tenant that answers requests and has no objective never needs another core.
    pub fn parties(instances: &[TenantInstance<'_>], owners: &[Owner], machine: &Machine) -> Cores {
        Cores::moved(instances, owners, machine, |targets_ns, _| {
            Parties::new(targets_ns)
        })
    }

    /// DynIso ([`dyniso()`]). A tenant that answers requests and has no objective never needs another core.
    pub fn dyniso(instances: &[TenantInstance<'_>], owners: &[Owner], machine: &Machine) -> Cores {
        let of_core = machine.cpus.len() / cores_of(machine, &CpuSet::new()).len().max(1);
        Cores::moved(instances, owners, machine, |targets_ns, vcpus| {
            dyniso(targets_ns, vcpus, of_core as u32)
        })
    }

    /// A controller that moves cores as `parties` decides, which gets the targets, in ns, and the numbers of
    /// vCPUs of the tenants that answer requests.
    fn moved(
        instances: &[TenantInstance<'_>],
        owners: &[Owner],
        machine: &Machine,
        parties: impl Fn(&[u64], &[Option<u32>]) -> Parties,
    ) -> Cores {
        let (latency, batch): (Vec<usize>, Vec<usize>) = (0..instances.len())
            .partition(|&instance| instances[instance].table.spec.class == TenantClass::Latency);
        let target_ns = |&instance: &usize| {
            let objective = instances[instance].table.spec.objective;
            objective.map_or(u64::MAX, |it| (it.p99_ms * 1e6) as u64)
        };
        let targets_ns: Vec<u64> = latency.iter().map(target_ns).collect();
        let vcpus = latency
            .iter()
            .map(|&instance| instances[instance].table.spec.vcpus);
        let parties = parties(&targets_ns, &vcpus.collect::<Vec<_>>());
        let number = |owner: &Owner| latency.iter().position(|&it| it == owner.instance);
        let mover = Mover {
            numbers: owners.iter().map(number).collect(),
            parties,
        };

        let mut groups: Vec<Vec<usize>> = latency.iter().map(|&instance| vec![instance]).collect();
        let has_batch = !batch.is_empty();
        groups.extend(has_batch.then_some(batch));
        let mut cores = Cores::new(&groups, instances, owners, machine);
        let mut counts = equal_split(cores.cores.len() as u32, groups.len());
        let of_batch = counts.split_off(latency.len());
        let mut counts = mover.parties.begin(counts.iter().sum());
        counts.extend(of_batch.iter().map(|&count| count.min(1)));
        cores.deal(&counts);
        cores.mover = Some(mover);
        cores
    }

    /// A controller whose tenants hold no cores yet. Each group of instances is a holder.
    fn new(
        groups: &[Vec<usize>],
        instances: &[TenantInstance<'_>],
        owners: &[Owner],
        machine: &Machine,
    ) -> Cores {
        let holder = |group: &Vec<usize>| {
            let threads = (0..machine.threads.len() as u32).map(ThreadId);
            let own = threads.filter(|&thread| {
                let it = machine.thread(thread);
                let owner = &owners[it.tenant];
                let elsewhere = instances[owner.instance].table.emulator_cpus.is_some()
                    && it.role == ThreadRole::Emulator;
                group.contains(&owner.instance) && !elsewhere
            });
            Holder {
                threads: own.collect(),
                cores: Vec::new(),
                told: CpuSet::new(),
                guest: None,
            }
        };
        Cores {
            cores: cores_of(machine, &for_emulators(instances)),
            holders: groups.iter().map(holder).collect(),
            free: Vec::new(),
            mover: None,
            next_ns: 0,
        }
    }

    /// Deals out `counts` cores to the holders, one holder after the other; the other cores are free. A
    /// holder that would get no core shares one with another holder.
    fn deal(&mut self, counts: &[u32]) {
        let mut next = 0..self.cores.len();
        for (number, (holder, &count)) in self.holders.iter_mut().zip(counts).enumerate() {
            holder.cores = next.by_ref().take(count as usize).collect();
            if holder.cores.is_empty() {
                holder.cores.push(number % self.cores.len());
            }
        }
        self.free = next.collect();
    }

    /// The position in `from` of the core that the holder `to` should get: the last one of those in the cache
    /// that most of the holder's cores are in. For `None`, the pool, it is the last core of all.
    fn nearest(&self, from: &[usize], to: Option<usize>) -> Option<usize> {
        let near = |&(_, &core): &(usize, &usize)| {
            let own = to.map_or(&[][..], |to| &self.holders[to].cores);
            let same = |other: &&usize| self.cores[**other].cache == self.cores[core].cache;
            own.iter().filter(same).count()
        };
        let best = from.iter().enumerate().max_by_key(near);
        best.map(|(place, _)| place)
    }

    /// Moves one core between holders, or between a holder and the free cores.
    fn step(&mut self, step: Move) {
        let from = match step.from {
            Some(from) => &self.holders[from].cores,
            None => &self.free,
        };
        let Some(place) = self.nearest(from, step.to) else {
            return;
        };
        let from = match step.from {
            Some(from) => &mut self.holders[from].cores,
            None => &mut self.free,
        };
        let core = from.remove(place);
        match step.to {
            Some(to) => self.holders[to].cores.push(core),
            None => self.free.push(core),
        }
    }

    /// Restricts the threads of holders whose CPUs changed to their CPUs, and tells guests that are to know.
    fn apply(&mut self, simulation: &mut Simulation) {
        let movable = self
            .mover
            .as_ref()
            .map_or(self.holders.len(), |mover| mover.count());
        for (number, holder) in self.holders.iter_mut().enumerate() {
            let free: &[usize] = if number < movable { &[] } else { &self.free };
            let cores = holder.cores.iter().chain(free);
            let cpus: CpuSet = cores
                .flat_map(|&core| self.cores[core].cpus.iter())
                .collect();
            if holder.told != cpus {
                for &thread in &holder.threads {
                    simulation.restrict(thread, cpus.clone());
                }
                if let Some((vm, vcpus)) = holder.guest {
                    for number in 0..vcpus {
                        simulation.set_online(vm, CpuId(number), number < cpus.len() as u32);
                    }
                }
                holder.told = cpus;
            }
        }
    }
}

impl Mover {
    /// The number of tenants that cores move between.
    fn count(&self) -> usize {
        self.numbers
            .iter()
            .flatten()
            .max()
            .map_or(0, |last| last + 1)
    }

    /// For each tenant that cores move between, the 99th percentile of the latencies of these answers, in ns;
    /// `None`: the tenant answered no request.
    fn latencies(&self, answers: &[Answer]) -> Vec<Option<u64>> {
        let mut all = vec![Vec::new(); self.count()];
        for answer in answers {
            if let Some(number) = self.numbers[answer.tenant] {
                all[number].push(answer.at - answer.due);
            }
        }
        let p99 = |mut latencies: Vec<u64>| {
            latencies.sort_unstable();
            let rank = (latencies.len() * 99).div_ceil(100);
            rank.checked_sub(1).map(|at| latencies[at])
        };
        all.into_iter().map(p99).collect()
    }
}

impl Controller for Cores {
    fn next_ns(&self) -> u64 {
        self.next_ns
    }

    fn held(&self) -> Option<u32> {
        let cpus = |core: &usize| self.cores[*core].cpus.len();
        let held = self.holders.iter().flat_map(|holder| holder.cores.iter());
        Some(held.map(cpus).sum::<usize>() as u32)
    }

    fn act(&mut self, simulation: &mut Simulation, answers: &[Answer]) {
        let Some(mover) = &mut self.mover else {
            self.apply(simulation);
            self.next_ns = u64::MAX;
            return;
        };
        // At the start no answers have been seen, so no core moves.
        if self.next_ns > 0 {
            let seen = mover.latencies(answers);
            let held = self.holders.iter().map(|holder| holder.cores.len() as u32);
            let held: Vec<u32> = held.take(seen.len()).collect();
            let step = mover.parties.tick(&seen, &held, self.free.len() as u32);
            if let Some(step) = step {
                self.step(step);
            }
        }
        self.apply(simulation);
        self.next_ns += Parties::TICK_NS;
    }
}

/// The machine's cores in the order of their caches, without the cores that have a CPU in `used`.
fn cores_of(machine: &Machine, used: &CpuSet) -> Vec<Core> {
    let all = || machine.topology.cpus.iter();
    let in_use = |core: u32| all().any(|cpu| cpu.core == core && used.contains(cpu.id));
    let mut cpus: Vec<_> = all().filter(|cpu| !in_use(cpu.core)).collect();
    cpus.sort_by_key(|cpu| (cpu.socket, cpu.llc, cpu.core));
    let cores = cpus.chunk_by(|one, other| one.core == other.core);
    let core = |cpus: &[&quell_model::Cpu]| Core {
        cpus: cpus.iter().map(|cpu| cpu.id).collect(),
        cache: cpus[0].llc,
    };
    cores.map(core).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sides::Baseline;
    use quell_bench::run::BenchOptions;
    use quell_bench::run::simulated::{check, owners};
    use quell_bench::side::{AddedSide, Side, Simulated, SimulatedSide};
    use quell_bench::workload::load::{Plan, request_seed};
    use quell_scenario::Scenario;
    use quell_sim::{Costs, Fair, Load, Request, Tenant, Vm};
    use std::path::Path;

    const S: u64 = 1_000_000_000;

    /// A scenario's simulation after a run, with its controller and the answers that it gave.
    struct Course {
        simulation: Simulation,
        controller: Box<dyn Controller>,
        answers: Vec<Answer>,
    }

    /// Runs a scenario under a side for `seconds`, on a machine that has no costs; its ticks come every 4 ms.
    fn course(side: &'static Baseline, text: &str, seconds: u64) -> Course {
        let text = format!("name = \"t\"\n{text}");
        let scenario = Scenario::parse(Path::new("t.toml"), &text).unwrap();
        let topology = scenario.host.as_ref().unwrap().topology();
        let cpus = topology.cpus.len() as u32;
        let instances = scenario.instances();
        let costs = Costs {
            tick_every: 4_000_000,
            ..Costs::NONE
        };
        let mut simulation = Simulation::new(topology, costs, Box::new(Fair::eevdf_7_2()));
        for (seed, tenant) in (0..).zip(&instances) {
            let load = tenant.table.load.as_ref().map(|load| -> Load {
                let due = Plan::new(&scenario, load, cpus).unwrap().arrivals(seed);
                let due = due.take_while(move |&due| due < seconds * S).zip(0..);
                Box::new(due.map(move |(due, number)| Request {
                    due,
                    seed: request_seed(seed, number),
                }))
            });
            let inside = Tenant::new(&tenant.table.threads, load);
            if tenant.table.spec.kind == TenantKind::Vm {
                let vcpus = tenant.table.spec.vcpus.unwrap();
                let vm = simulation.add_vm(Vm::new(vcpus, Box::new(Fair::eevdf_6_12())));
                simulation.add_tenant_in(vm, inside);
            } else {
                simulation.add_tenant(inside);
            }
        }
        let owners = owners(&instances);
        let controller = side.controller(&instances, &owners, simulation.machine());
        let (mut controller, mut answers, mut told) = (controller.unwrap(), Vec::new(), 0);
        while simulation.machine().now < seconds * S {
            if controller.next_ns() <= simulation.machine().now {
                controller.act(&mut simulation, &answers[told..]);
                told = answers.len();
            }
            let next = controller.next_ns().min(seconds * S);
            answers.append(&mut simulation.run_until(next));
        }
        Course {
            simulation,
            controller,
            answers,
        }
    }

    /// The CPUs of each tenant that has threads on the host; all threads of a tenant have the same ones.
    fn cpus(course: &Course) -> Vec<String> {
        let mut all: Vec<(usize, CpuSet)> = Vec::new();
        for thread in &course.simulation.machine().threads {
            let own = thread.allowed.clone().unwrap();
            match all.last() {
                Some((tenant, cpus)) if *tenant == thread.tenant => assert_eq!(*cpus, own),
                _ => all.push((thread.tenant, own)),
            }
        }
        all.into_iter().map(|(_, cpus)| cpus.to_string()).collect()
    }

    /// The mean latency of a tenant's answers, in ms.
    fn mean_ms(course: &Course, tenant: usize) -> f64 {
        let own = course.answers.iter().filter(|it| it.tenant == tenant);
        let latencies: Vec<f64> = own.map(|it| (it.at - it.due) as f64 / 1e6).collect();
        latencies.iter().sum::<f64>() / latencies.len() as f64
    }

    /// A tenant of 100 threads whose requests take 1 ms of CPU time on average.
    fn server(name: &str, rate: u32, p99_ms: f64) -> String {
        format!(
            "[[tenant]]\nname = \"{name}\"\nload = {{ rate = {rate} }}\nobjective = {{ p99_ms = {p99_ms} }}\n\
             [[tenant.thread]]\nname = \"w\"\ncount = 100\n\
             program = [\"request\", {{ run_us = {{ exponential = 1000 }} }}, \"respond\"]\n"
        )
    }

    const HOG: &str = "[[tenant]]\nname = \"hog\"\nclass = \"batch\"\n[[tenant.thread]]\nname = \"w\"\ncount = 5\n\
                       program = [{ run_us = 1000 }]\n";

    #[test]
    fn isolation_divides_whole_cores_and_is_m_m_1_ps_beside_whoever() {
        let host = "[host]\ntopology = { sockets = 2, cores = 2, smt = 2 }\n";
        let text = format!("{host}{HOG}{HOG2}{HOG3}");
        let whole = course(&Baseline::Isolation, &text, 1);
        assert_eq!(cpus(&whole), ["0-1,4-5", "2,6", "3,7"]);

        let host = "[host]\ncpus = 2\n";
        let text = format!("{host}{}{HOG}", server("a", 600, 10.0));
        let course = course(&Baseline::Isolation, &text, 100);
        assert_eq!(cpus(&course), ["0", "1"]);
        // Turns of 0.7 ms and more are no perfect processor sharing, so the mean may be a little below or
        // above 1 / (mu - lambda), here 2.5 ms.
        let mean = mean_ms(&course, 0);
        assert!((mean / 2.5 - 1.0).abs() < 0.1, "{mean}");
        let hog: u64 = course.simulation.machine().threads[100..]
            .iter()
            .map(|it| it.ran)
            .sum();
        assert_eq!(hog, 100 * S);
    }

    const HOG2: &str = "[[tenant]]\nname = \"hog2\"\nclass = \"batch\"\n[[tenant.thread]]\nname = \"w\"\n\
                        program = [{ run_us = 1000 }]\n";
    const HOG3: &str = "[[tenant]]\nname = \"hog3\"\nclass = \"batch\"\n[[tenant.thread]]\nname = \"w\"\n\
                        program = [{ run_us = 1000 }]\n";

    #[test]
    fn more_tenants_than_cores_share_them() {
        let text = format!("[host]\ncpus = 2\n{HOG}{HOG2}{HOG3}");
        let isolated = course(&Baseline::Isolation, &text, 1);
        assert_eq!(cpus(&isolated), ["0", "1", "0"]);
        let text = format!("[host]\ncpus = 1\n{}{HOG}", server("a", 100, 5.0));
        let course = course(&Baseline::Parties, &text, 2);
        assert_eq!(cpus(&course), ["0", "0"]);
    }

    #[test]
    fn parties_moves_cores_to_whom_they_are_needed_by() {
        // The tenant a needs more than two of four CPUs, b less than one.
        let text = format!(
            "[host]\ncpus = 4\n{}{}",
            server("a", 2300, 20.0),
            server("b", 100, 20.0)
        );
        let isolated = course(&Baseline::Isolation, &text, 20);
        assert_eq!(cpus(&isolated), ["0-1", "2-3"]);
        let moved = course(&Baseline::Parties, &text, 20);
        assert_eq!(cpus(&moved), ["0-1,3", "2"]);
        assert!(mean_ms(&isolated, 0) > 100.0 && mean_ms(&moved, 0) < 50.0);
    }

    #[test]
    fn batch_tenants_have_what_is_free_and_keep_a_core() {
        // With hardly any load and a lax objective the tenant a gives up all but one core. With a tight
        // objective it is always in danger and takes all but the batch tenants' one core.
        let lax = format!("[host]\ncpus = 8\n{}{HOG}{HOG2}", server("a", 50, 1000.0));
        let lax = course(&Baseline::Parties, &lax, 5);
        assert_eq!(cpus(&lax), ["0", "1-7", "1-7"]);
        let tight = format!("[host]\ncpus = 8\n{}{HOG}{HOG2}", server("a", 500, 0.001));
        let tight = course(&Baseline::Parties, &tight, 10);
        assert_eq!(cpus(&tight), ["0-3,5-7", "4", "4"]);
    }

    #[test]
    fn dyniso_gives_a_vm_as_many_cpus_as_it_has_virtual_ones() {
        let vm = |name: &str, rate: u32, p99_ms: f64| {
            let process = server(name, rate, p99_ms);
            process.replace("load =", "kind = \"vm\"\nvcpus = 3\nload =")
        };
        // The tenant b is in danger whatever it gets; PARTIES gives it all that a can spare.
        let text = format!(
            "[host]\ncpus = 8\n{}{}",
            vm("a", 50, 1000.0),
            vm("b", 50, 0.001)
        );
        let dyniso = course(&Baseline::DynIso, &text, 5);
        assert_eq!(cpus(&dyniso), ["0-2", "3-5"]);
        let parties = course(&Baseline::Parties, &text, 5);
        assert_eq!(cpus(&parties), ["0", "1-7"]);
    }

    #[test]
    fn host_aware_guests_have_as_many_virtual_cpus_as_cpus() {
        let vm = |name: &str| {
            let process = server(name, 200, 10.0);
            process.replace(
                "load =",
                "kind = \"vm\"\nvcpus = 4\nemulator_cpus = \"6-7\"\nload =",
            )
        };
        let text = format!("[host]\ncpus = 8\n{}{}", vm("a"), vm("b"));
        for (side, online) in [(&Baseline::HostAware, 3), (&Baseline::Isolation, 4)] {
            let course = course(side, &text, 1);
            let simulation = &course.simulation;
            for (vm, cpus) in [(VmId(0), "0-2"), (VmId(1), "3-5")] {
                assert_eq!(simulation.online(vm), online);
                for thread in simulation.vcpu_threads(vm) {
                    let allowed = simulation.machine().thread(thread).allowed.clone();
                    // The last two CPUs are for emulator threads.
                    assert_eq!(allowed.unwrap().to_string(), cpus);
                }
            }
            assert_eq!(course.controller.held(), Some(6));
        }
    }

    #[test]
    fn without_objectives_it_says_what_is_missing() {
        let check = |text: &str, side: &'static Baseline| {
            let text = format!("name = \"t\"\n[host]\ncpus = 2\n{text}");
            let scenario = Scenario::parse(Path::new("t.toml"), &text).unwrap();
            let options = BenchOptions {
                sides: vec![
                    Side::Simulated(Simulated::Eevdf),
                    Side::Added(AddedSide(side)),
                ],
                ..BenchOptions::new(scenario, "quell".into())
            };
            let checked = check(&options);
            checked.map_err(|error| error.to_string())
        };
        let none = server("a", 10, 1.0).replace("objective = { p99_ms = 1 }\n", "");
        let error = check(&none, &Baseline::Parties).unwrap_err();
        assert!(
            error.contains("tenant[0].objective")
                && error.contains("--set tenant.a.objective.p99_ms=10"),
            "{error}"
        );
        assert_eq!(check(&none, &Baseline::Isolation), Ok(()));
        let error = check(HOG, &Baseline::DynIso).unwrap_err();
        assert!(
            error.contains("side `dyniso` needs tenants with latency"),
            "{error}"
        );
    }
}
