//! The pools mechanism (UFO, [`quell_policy::pools`]) on a simulated machine: what it sees of the VMs and of the guests in them once a
//! second, and where their threads go.
//!
//! A guest is told at once, where a real one takes 20 to 30 ms for each virtual CPU. Tenants that are no VMs are in the idle pool.

use super::Owner;
use super::control::Controller;
use quell_model::config::{TenantClass, TenantInstance, TenantKind};
use quell_model::{CpuId, CpuSet, TenantName};
use quell_policy::pools::predict::Settings;
use quell_policy::pools::{Division, Pools, Says, Seen};
use quell_sim::{Answer, Simulation, ThreadId, VmId};

/// It looks so often, in ns.
const SECOND_NS: u64 = 1_000_000_000;

/// A VM, and what it had done when it was looked at last.
struct Watched {
    id: VmId,
    name: TenantName,
    vcpus: u32,
    batch: bool,
    seen: Counted,
}

/// Counters of a VM's.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    /// CPU time of its virtual CPUs, of its emulator threads, and in the guest, in ns.
    ran: [u64; 3],
    switches: u64,
}

/// The controller.
pub struct Pooled {
    pools: Pools,
    vms: Vec<Watched>,
    /// Threads of tenants that are no VMs.
    others: Vec<ThreadId>,
    next_ns: u64,
}

impl Pooled {
    /// For those tenants, of which VMs were added in their order.
    pub fn new(
        instances: &[TenantInstance<'_>],
        owners: &[Owner],
        simulation: &Simulation,
    ) -> Pooled {
        let vms = instances.iter().filter(|it| it.spec.kind == TenantKind::Vm);
        let vm = |(number, it): (u32, &TenantInstance<'_>)| Watched {
            id: VmId(number),
            name: it.name.clone(),
            vcpus: it.spec.vcpus.unwrap_or(1),
            batch: it.spec.class == TenantClass::Batch,
            seen: Counted::default(),
        };
        let machine = simulation.machine();
        let threads = (0..machine.threads.len() as u32).map(ThreadId);
        let is_other = |thread: &ThreadId| {
            let owner = &owners[machine.thread(*thread).tenant];
            instances[owner.instance].spec.kind != TenantKind::Vm
        };
        Pooled {
            pools: Pools::new(Settings::default()),
            vms: (0..).zip(vms).map(vm).collect(),
            others: threads.filter(is_other).collect(),
            next_ns: 0,
        }
    }

    /// Where everything goes.
    fn apply(&self, division: &Division, simulation: &mut Simulation) {
        for vm in &self.vms {
            let Some(group) = division.guests.get(&vm.name) else {
                continue;
            };
            for number in 0..vm.vcpus {
                simulation.set_online(vm.id, CpuId(number), number < group.online);
            }
            move_to(
                simulation,
                simulation.vcpu_threads(vm.id).collect(),
                &group.cpus,
            );
            let emulators = simulation.emulator_threads(vm.id).collect();
            move_to(simulation, emulators, &division.emulators);
        }
        if !division.idle.is_empty() {
            move_to(simulation, self.others.clone(), &division.idle);
        }
    }
}

fn move_to(simulation: &mut Simulation, threads: Vec<ThreadId>, cpus: &CpuSet) {
    for thread in threads {
        if simulation.machine().thread(thread).allowed.as_ref() != Some(cpus) {
            simulation.restrict(thread, cpus.clone());
        }
    }
}

impl Watched {
    /// What it has done by now.
    fn counted(&self, simulation: &Simulation) -> Counted {
        let host = simulation.machine();
        let guest = simulation.guest(self.id);
        let vcpus = simulation.vcpu_threads(self.id).map(|it| host.cpu_time(it));
        let emulators = simulation.emulator_threads(self.id);
        Counted {
            ran: [
                vcpus.sum(),
                emulators.map(|it| host.cpu_time(it)).sum(),
                guest.cpu_ids().map(|cpu| guest.cpu(cpu).busy).sum(),
            ],
            switches: simulation.vm_stats(self.id).switches,
        }
    }
}

impl Controller for Pooled {
    fn next_ns(&self) -> u64 {
        self.next_ns
    }

    fn act(&mut self, simulation: &mut Simulation, _answers: &[Answer]) {
        let now = self.next_ns;
        self.next_ns += SECOND_NS;
        let mut deltas = Vec::new();
        for vm in &mut self.vms {
            let counted = vm.counted(simulation);
            let of = |at: usize| (counted.ran[at] - vm.seen.ran[at]) as f64 / SECOND_NS as f64;
            deltas.push(([of(0), of(1), of(2)], counted.switches - vm.seen.switches));
            vm.seen = counted;
        }
        let both = self.vms.iter().zip(deltas);
        let seen = both.map(|(vm, ([used, emulated, inside], switches))| Seen {
            name: &vm.name,
            vcpus: vm.vcpus,
            batch: vm.batch,
            used,
            emulated,
            says: Some(Says {
                used: inside,
                switches: switches as f64,
            }),
        });
        let seen: Vec<Seen<'_>> = seen.collect();
        let topology = simulation.machine().topology.clone();
        let division = self.pools.second(now, &topology, &seen);
        self.apply(&division, simulation);
    }
}

#[cfg(test)]
mod tests {
    use super::super::cores::tests::{course, server};
    use crate::side::Simulated;
    use quell_model::{CpuId, CpuSet};
    use quell_sim::VmId;

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
            vm("b", 300)
        );
        let course = course(Simulated::Ufo, &text, 40);
        let simulation = &course.simulation;
        let host = simulation.machine();
        let allowed = |thread: quell_sim::ThreadId| host.thread(thread).allowed.clone().unwrap();
        let groups = [VmId(0), VmId(1)].map(|vm| {
            let groups: Vec<CpuSet> = simulation.vcpu_threads(vm).map(allowed).collect();
            assert!(groups.iter().all(|it| *it == groups[0]), "{groups:?}");
            groups[0].clone()
        });
        // Three quarters of three CPUs, and a third of one.
        assert_eq!(groups.each_ref().map(CpuSet::len), [3, 1], "{groups:?}");
        let emulators: Vec<CpuSet> = [VmId(0), VmId(1)]
            .into_iter()
            .flat_map(|vm| {
                simulation
                    .emulator_threads(vm)
                    .map(allowed)
                    .collect::<Vec<_>>()
            })
            .collect();
        let mut hog = (0..host.threads.len()).map(|at| quell_sim::ThreadId(at as u32));
        let hog = allowed(hog.next_back().unwrap());
        // Nobody has what another has.
        let all = [&groups[0], &groups[1], &emulators[0], &hog];
        let total: usize = all.iter().map(|it| it.len()).sum();
        assert_eq!(total, 10, "{all:?}");
        assert!((0..10).all(|cpu| all.iter().any(|it| it.contains(CpuId(cpu)))));
        // The guests know.
        for (vm, group) in [VmId(0), VmId(1)].into_iter().zip(&groups) {
            assert_eq!(simulation.online(vm), group.len());
        }
    }
}
