//! Virtual machines whose parts are pinned by the manager that runs them (libvirt): to the CPUs where the
//! plan has their threads, and on undoing to the CPUs where the parts were.
//!
//! The rules are those for single threads: the CPUs of a part are in the journal before the first change; a
//! part is never pinned beyond these, if its owner had pinned it; and a part that is pinned neither where it
//! was nor where Quell pinned it belongs to another program from then on. Pinning is asked for and not waited
//! for ([`Guests::pin`]); the next period goes on from what holds then. Only the running domain is changed,
//! never its definition.
//!
//! The pins themselves, as data, are [`Pins`] (`guest::pins`); the pins that libvirt last reported, and the
//! thread that speaks to libvirt, are in `guest::guests`. This module compares the pins with the plan and
//! with the originals.

use super::actuator::Actuator;
use super::journal::Record;
use super::notes::note;
use super::report::ApplyReport;
use super::state::Domain;
use super::thread::is_there;
use crate::guest::{AffinityOwner, GuestEndpoint, Guests, Part, Pins};
use quell_model::{CpuSet, Plan, Snapshot, TenantPlan, TenantSample, ThreadId, ThreadRole};
use std::collections::BTreeSet;

/// Whether a thread belongs to a part, so that its affinity is not Quell's to set. Kernel workers are in the
/// emulator's cpuset.
pub(super) fn covers(owner: AffinityOwner, sample: Option<&TenantSample>, id: ThreadId) -> bool {
    let (AffinityOwner::Libvirt(process) | AffinityOwner::Unknown(process)) = owner else {
        return false;
    };
    let thread = sample.and_then(|it| it.thread(id));
    thread.is_some_and(|it| it.process == process || it.role == ThreadRole::Io)
}

/// The CPUs where the plan has the virtual CPUs' threads, by number, and the CPUs of all other threads.
fn planned(plan: &TenantPlan, sample: &TenantSample) -> (Pins, Option<CpuSet>) {
    let (mut vcpus, mut others) = (Pins::default(), None);
    for thread in &plan.threads {
        let (Some(cpus), Some(seen)) = (&thread.cpus, sample.thread(thread.id)) else {
            continue;
        };
        match seen.role {
            ThreadRole::Vcpu(number) => vcpus.set(Part::Vcpu(number), cpus.clone()),
            _ => others = others.or_else(|| Some(cpus.clone())),
        }
    }
    (vcpus, others)
}

impl Actuator {
    /// Has parts pinned as the plan says, and gives parts back that the plan no longer mentions.
    pub(super) fn pin_domains(
        &mut self,
        snapshot: &Snapshot,
        plan: &Plan,
        report: &mut ApplyReport,
        dropped: &mut Vec<Record>,
    ) {
        let mut changes = Vec::new();
        for tenant in &plan.tenants {
            let Some(sample) = snapshot.tenant(&tenant.name) else {
                continue;
            };
            if !matches!(
                self.guests.affinity_owner(&tenant.name),
                AffinityOwner::Libvirt(_)
            ) {
                continue;
            }
            let (vcpus, others) = planned(tenant, sample);
            if vcpus.is_empty() && others.is_none() {
                continue;
            }
            let (known, planned) = (self.guests.pins(&tenant.name), (&vcpus, others.as_ref()));
            changes.extend(self.pins_to_change(snapshot, tenant, known, planned, report));
        }
        self.pin_all(changes, report);
        let mut domains = std::mem::take(&mut self.state.domains);
        domains.retain(|thread, domain| {
            domain.planned == self.period || self.give_back_pins(*thread, domain, report, dropped)
        });
        self.state.domains = domains;
    }

    /// Journals all pins that are about to change at once, then has the parts pinned.
    fn pin_all(&mut self, changes: Vec<(ThreadId, Pins)>, report: &mut ApplyReport) {
        let domains = &self.state.domains;
        let records: Vec<Record> = changes
            .iter()
            .filter_map(|(thread, wanted)| domains.get(thread).map(|it| (it, wanted)))
            .map(|(domain, wanted)| domain.record(&domain.with(wanted)))
            .collect();
        if records.is_empty() {
            return;
        }
        if let Err(error) = self.journal.append(&records, true) {
            report.journal_error = Some(self.journal.cannot(&error));
            return;
        }
        for (thread, wanted) in changes {
            let Some(domain) = self.state.domains.get_mut(&thread) else {
                continue;
            };
            if domain.pin(&self.guests, &wanted) {
                report.writes.affinity += 1;
            }
        }
    }

    /// The parts of a tenant that are to be pinned elsewhere. `known`: the CPUs where they are, unless they
    /// are just being pinned.
    fn pins_to_change(
        &mut self,
        snapshot: &Snapshot,
        tenant: &TenantPlan,
        known: Option<(GuestEndpoint, Pins)>,
        (vcpus, others): (&Pins, Option<&CpuSet>),
        report: &mut ApplyReport,
    ) -> Option<(ThreadId, Pins)> {
        let name = &tenant.name;
        let Some((endpoint, now)) = known else {
            // The domain is being pinned, or cannot be pinned now.
            let mut known = self.state.domains.values_mut();
            if let Some(domain) = known.find(|it| it.tenant.as_ref() == Some(name)) {
                domain.planned = self.period;
            }
            return None;
        };
        let thread = endpoint.thread;
        let domain = self.state.domains.entry(thread).or_insert_with(|| Domain {
            endpoint,
            original: now.clone(),
            last: now.clone(),
            also: None,
            foreign: BTreeSet::new(),
            tenant: None,
            planned: 0,
        });
        domain.tenant = Some(name.clone());
        domain.planned = self.period;
        domain.take_present(&now, report);
        let online = snapshot.host.topology.online();
        let mut wanted = Pins::default();
        for (part, original) in domain.original.iter() {
            let planned = match part {
                Part::Vcpu(_) => vcpus.get(part),
                Part::Emulator | Part::Iothread(_) => others,
            };
            let (Some(planned), false) = (planned, domain.foreign.contains(&part)) else {
                continue;
            };
            let free = online.is_subset(original);
            let allowed = match free {
                true => planned.clone(),
                false => planned.intersection(original),
            };
            if allowed.is_empty() {
                report.left_alone += 1;
                if self
                    .notes_given
                    .first(name, Some(thread), "parts", self.period)
                {
                    let text =
                        format!("{part} stays where it is: its owner pinned it to CPUs {original}");
                    report.notes.push(note(Some(name.clone()), text));
                }
                continue;
            }
            wanted.set(part, allowed);
        }
        let differs = |(part, cpus): (Part, &CpuSet)| domain.last.get(part) != Some(cpus);
        if !wanted.iter().any(differs) {
            report.unchanged += 1;
            return None;
        }
        Some((thread, wanted))
    }

    /// Whether there is still something to give back.
    fn give_back_pins(
        &mut self,
        thread: ThreadId,
        domain: &mut Domain,
        report: &mut ApplyReport,
        dropped: &mut Vec<Record>,
    ) -> bool {
        let guests = &self.guests;
        let Some(tenant) = domain
            .tenant
            .clone()
            .or_else(|| guests.tenant_at(&domain.endpoint))
        else {
            return self.is_still_there(thread, report, dropped);
        };
        let known = guests.pins(&tenant);
        let Some((_, now)) = known.filter(|(endpoint, _)| *endpoint == domain.endpoint) else {
            return self.is_still_there(thread, report, dropped);
        };
        domain.tenant = Some(tenant.clone());
        domain.take_present(&now, report);
        let wanted = domain.ours();
        let differs =
            |(part, cpus): (Part, &CpuSet)| domain.last.get(part).is_some_and(|held| held != cpus);
        if !wanted.iter().any(differs) {
            report.given_back += 1;
            dropped.push(Record::DropParts(thread));
            return false;
        }
        // This needs no record in the journal: undoing takes the originals for values that Quell left.
        domain.pin(guests, &wanted);
        true
    }

    fn is_still_there(
        &self,
        thread: ThreadId,
        report: &mut ApplyReport,
        dropped: &mut Vec<Record>,
    ) -> bool {
        let there = is_there(thread);
        if !there {
            report.gone += 1;
            dropped.push(Record::DropParts(thread));
        }
        there
    }
}

impl Domain {
    /// Takes the CPUs where the parts are now: parts that are not where they were left belong to another
    /// program.
    fn take_present(&mut self, now: &Pins, report: &mut ApplyReport) {
        for (part, cpus) in now.iter() {
            let ours = |pins: &Pins| pins.get(part).is_none_or(|it| it == cpus);
            let left = ours(&self.last) || self.also.as_ref().is_some_and(ours);
            if left || !self.foreign.insert(part) {
                continue;
            }
            report.left_alone += 1;
            let text =
                format!("{part} left on CPUs {cpus} from now on: someone else pinned it there");
            report.notes.push(note(self.tenant.clone(), text));
        }
        // New parts may come, and old ones go.
        self.original = now
            .iter()
            .map(|(part, cpus)| (part, self.original.get(part).unwrap_or(cpus).clone()))
            .collect();
        self.last = now.clone();
        self.also = None;
    }

    /// Has the parts pinned as `wanted`. Returns false if that cannot be asked now.
    fn pin(&mut self, guests: &Guests, wanted: &Pins) -> bool {
        let tenant = self.tenant.as_ref();
        let asked = tenant.is_some_and(|it| guests.pin(it, self.expected(), wanted.clone()));
        if asked {
            let last = self.with(wanted);
            self.also = Some(std::mem::replace(&mut self.last, last));
        }
        asked
    }
}

#[cfg(test)]
mod tests;
