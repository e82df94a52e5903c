//! Guests of virtual machines: as many virtual CPUs online as the plan says, and on undoing the virtual CPUs
//! that were online before.
//!
//! The virtual CPUs that were online are in the journal before the first change. A guest is told of a change
//! and makes it in its own time; which CPUs are online then is what the guest reports. Undoing
//! ([`super::undo`]) waits for guests; a guest that does not answer keeps what it has, and its record stays.

use super::actuator::Actuator;
use super::journal::Record;
use super::notes::note;
use super::report::ApplyReport;
use super::state::Guest;
use super::thread::is_there;
use crate::guest::{Guests, Online};
use quell_model::Plan;

impl Actuator {
    /// The guests that plans may change; the component that observes asks the same guests.
    pub fn guests(&self) -> &Guests {
        &self.guests
    }

    /// Tells guests the number of online virtual CPUs that the plan asks for, and gives back the originals to
    /// guests that the plan no longer mentions.
    pub(super) fn tell_guests(
        &mut self,
        plan: &Plan,
        report: &mut ApplyReport,
        dropped: &mut Vec<Record>,
    ) {
        for (tenant, text) in self.guests.news() {
            report.notes.push(note(Some(tenant), text));
        }
        for tenant in &plan.tenants {
            if self.guests.has_several_machines(&tenant.name) {
                continue;
            }
            let online = tenant.group.as_ref().and_then(|it| it.online());
            let (Some(online), Some((endpoint, now))) = (online, self.guests.online(&tenant.name))
            else {
                continue;
            };
            if let Some(guest) = self.state.guests.get_mut(&endpoint.thread) {
                guest.planned = self.period;
                guest.tenant = Some(tenant.name.clone());
            }
            if now.len() == online as usize {
                report.unchanged += 1;
                continue;
            }
            if !self.state.guests.contains_key(&endpoint.thread) {
                let guest = Guest {
                    endpoint: endpoint.clone(),
                    original: now,
                    tenant: Some(tenant.name.clone()),
                    planned: self.period,
                };
                if let Err(error) = self.journal.append(&[guest.record()], true) {
                    report.journal_error = Some(self.journal.cannot(&error));
                    return;
                }
                self.state.guests.insert(endpoint.thread, guest);
            }
            report.writes.guests +=
                u64::from(self.guests.set_online(&tenant.name, Online::First(online)));
        }
        let (period, guests) = (self.period, &self.guests);
        self.state.guests.retain(|thread, guest| {
            if guest.planned == period {
                return true;
            }
            let known = guest
                .tenant
                .as_ref()
                .and_then(|it| Some((it, guests.online(it)?)));
            let Some((tenant, (_, now))) = known.filter(|(_, known)| known.0 == guest.endpoint)
            else {
                let there = is_there(*thread);
                if !there {
                    report.gone += 1;
                    dropped.push(Record::DropGuest(*thread));
                }
                return there;
            };
            if now == guest.original {
                report.given_back += 1;
                dropped.push(Record::DropGuest(*thread));
                return false;
            }
            guests.set_online(tenant, Online::Exactly(guest.original.clone()));
            true
        });
    }
}
