//! The course of a simulation: advancing it together with a controller beside its scheduler, and the readings
//! before and after a window.

use super::control::Controller;
use super::{Owner, STRIDE};
use crate::workload::{GuestCounts, Interrupted};
use anyhow::ensure;
use quell_model::config::Objective;
use quell_sim::{Answer, Simulation, ThreadId, VmId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// A simulation, the controller beside its scheduler, and the answers so far.
pub(super) struct Course {
    pub(super) simulation: Simulation,
    pub(super) controller: Option<Box<dyn Controller>>,
    pub(super) answers: Vec<Answer>,
    /// How many of the answers the controller was given.
    pub(super) told: usize,
    /// CPUs that tenants had for themselves so far, times ns; `None` while that is not counted.
    pub(super) held: Option<u128>,
}

impl Course {
    /// Advances the simulation to the time `end`, in ns.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub(super) fn advance(&mut self, end: u64, interrupt: &AtomicBool) -> anyhow::Result<()> {
        while self.simulation.machine().now < end {
            ensure!(!interrupt.load(Ordering::Relaxed), Interrupted);
            let now = self.simulation.machine().now;
            let mut next = end.min(now + STRIDE);
            if let Some(controller) = &mut self.controller {
                if controller.next_ns() <= now {
                    controller.act(&mut self.simulation, &self.answers[self.told..]);
                    self.told = self.answers.len();
                }
                next = next.min(controller.next_ns());
            }
            let held = self.controller.as_ref().and_then(|it| it.held());
            if let (Some(sum), Some(held)) = (&mut self.held, held) {
                *sum += u128::from(held) * u128::from(next - now);
            }
            self.answers.append(&mut self.simulation.run_until(next));
        }
        Ok(())
    }

    /// Whether tenants have CPUs for themselves.
    pub(super) fn divides(&self) -> bool {
        let held = self.controller.as_ref().and_then(|it| it.held());
        held.is_some()
    }
}

/// What the machine and every tenant have used and done up to one time.
pub(super) struct Reading {
    /// Switches of the host's CPUs.
    pub(super) switches: u64,
    /// By tenant: what its guest did, if it is a VM.
    pub(super) guests: Vec<Option<GuestCounts>>,
    /// By CPU: the time that it was busy, in ns.
    pub(super) busy_ns: Vec<u64>,
    pub(super) cpu_ns: Vec<u64>,
    /// By tenant, then by its thread on the host: CPU time, in ns.
    pub(super) threads_ns: Vec<Vec<u64>>,
    pub(super) rounds: Vec<u64>,
}

impl Reading {
    /// Reads the counters of `instances` tenants; `owners` has an entry for each tenant of the simulation.
    pub(super) fn of(simulation: &Simulation, owners: &[Owner], instances: usize) -> Reading {
        let machine = simulation.machine();
        let mut threads_ns = vec![Vec::new(); instances];
        for thread in &machine.threads {
            threads_ns[owners[thread.tenant].instance].push(thread.ran);
        }
        let mut rounds = vec![0; instances];
        for (tenant, owner) in owners.iter().enumerate() {
            rounds[owner.instance] += simulation.rounds(tenant);
        }
        let mut guests = vec![None; instances];
        for vm in simulation.vms() {
            let instance = owners[simulation.vm_tenant(vm)].instance;
            guests[instance] = Some(guest_counts(simulation, vm));
        }
        Reading {
            switches: simulation.switches(),
            guests,
            busy_ns: machine.cpus.iter().map(|cpu| cpu.busy).collect(),
            cpu_ns: threads_ns.iter().map(|of| of.iter().sum()).collect(),
            threads_ns,
            rounds,
        }
    }
}

/// What a VM has done so far.
fn guest_counts(simulation: &Simulation, vm: VmId) -> GuestCounts {
    let (stats, guest) = (simulation.vm_stats(vm), simulation.guest(vm));
    let threads = (0..guest.threads.len() as u32).map(ThreadId);
    let ran = |thread| simulation.machine().thread(thread).ran;
    GuestCounts {
        switches: stats.switches,
        used_ns: guest.cpu_ids().map(|cpu| guest.cpu(cpu).busy).sum(),
        exits: stats.exits,
        loads: stats.loads,
        waited_ns: threads.map(|thread| guest.waited(thread)).sum(),
        steal_ns: stats.steal,
        vcpus_ns: simulation.vcpu_threads(vm).map(ran).sum(),
        emulators_ns: simulation.emulator_threads(vm).map(ran).sum(),
    }
}

/// How many seconds have a 99th percentile above the objective; `seconds` has the latencies of the requests
/// that were due in each second, in ns.
pub(super) fn late(seconds: BTreeMap<u64, Vec<u64>>, objective: Objective) -> u64 {
    let objective_ns = (objective.p99_ms * 1e6) as u64;
    let late = seconds.into_values().filter(|second| {
        let misses = second.iter().filter(|&&ns| ns > objective_ns).count();
        100 * misses > second.len()
    });
    late.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_late_with_more_than_a_hundredth_above_the_objective() {
        let second = |misses: usize| {
            let ns = |number: usize| {
                if number < misses {
                    2_000_001
                } else {
                    2_000_000
                }
            };
            (0..200).map(ns).collect::<Vec<u64>>()
        };
        let seconds = [0, 1, 2, 3, 200].map(second);
        let seconds = (0..).zip(seconds).collect();
        assert_eq!(late(seconds, Objective { p99_ms: 2.0 }), 2);
    }
}
