//! Guests of virtual machines: as many virtual CPUs online as the plan says, and on undoing the virtual CPUs
//! that were online before.
//!
//! The virtual CPUs that were online are in the journal before the first change. A guest is told of a change
//! and makes it in its own time; which CPUs are online then is what the guest reports. Undoing waits for
//! guests, [`WITHIN`] at most for all of them together, the parts of domains included ([`super::libvirt_pins`]): a
//! guest that does not answer keeps what it has, and its record stays.

use super::Actuator;
use super::journal::{Journal, Record};
use super::libvirt_pins;
use super::report::{ApplyReport, Note, RestoreReport, Subject};
use super::state::{Domain, Guest, State};
use super::thread::is_there;
use crate::guest::watch::{Answer, Question};
use crate::guest::{GuestEndpoint, GuestError, Guests, Online};
use quell_model::{CpuSet, Plan, TenantName, ThreadId};
use std::collections::BTreeSet;
use std::time::Duration;

/// The time for which undoing waits for guests. A virtual CPU comes or goes in some 30 ms, in a loaded nested
/// guest in 1.6 s.
const WITHIN: Duration = Duration::from_secs(15);

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
                    report.journal_error = Some(journal_error(&self.journal, &error));
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

/// Gives all guests back their online virtual CPUs, and all domains the pins of their parts; not the parts of
/// domains whose first virtual CPU is to stay bound.
pub(super) fn undo(
    state: &mut State,
    guests: &Guests,
    bound: &BTreeSet<ThreadId>,
    report: &mut RestoreReport,
) {
    let there = |endpoint: &GuestEndpoint| is_there(endpoint.thread);
    let before = state.guests.len() + state.domains.len();
    state.guests.retain(|_, guest| there(&guest.endpoint));
    state.domains.retain(|_, domain| there(&domain.endpoint));
    report.gone += (before - state.guests.len() - state.domains.len()) as u64;
    let online = state.guests.values().map(|it| {
        let online = Online::Exactly(it.original.clone());
        (it.endpoint.clone(), Question::SetOnline(online))
    });
    let free = |it: &&Domain| !bound.contains(&it.endpoint.thread);
    let pins = state.domains.values().filter(free);
    let pins = pins.map(libvirt_pins::undo_question);
    let wanted: Vec<(GuestEndpoint, Question)> = online.chain(pins).collect();
    let asked: Vec<(GuestEndpoint, bool)> = wanted
        .iter()
        .map(|(endpoint, question)| (endpoint.clone(), matches!(question, Question::Pin { .. })))
        .collect();
    for ((endpoint, pins), said) in asked.into_iter().zip(guests.put_back(wanted, WITHIN)) {
        match said {
            Ok(Answer::Online(online)) => undone(state, &endpoint, online, report),
            Ok(Answer::Pinned(pins)) => libvirt_pins::undone(state, &endpoint, pins, report),
            Ok(Answer::Stat(_) | Answer::Pins(_)) => {}
            Err(error) if pins => libvirt_pins::undone(state, &endpoint, Err(error), report),
            Err(error) => undone(state, &endpoint, Err(error), report),
        }
    }
}

/// Records the outcome of giving one guest its originals back.
fn undone(
    state: &mut State,
    endpoint: &GuestEndpoint,
    online: Result<CpuSet, GuestError>,
    report: &mut RestoreReport,
) {
    let Some(guest) = state.guests.get(&endpoint.thread) else {
        return;
    };
    let original = &guest.original;
    let text = match online {
        Ok(online) if online == *original => {
            report.restored += 1;
            state.guests.remove(&endpoint.thread);
            return;
        }
        Ok(online) => {
            format!("its guest has virtual CPUs {online} online, before Quell {original}")
        }
        Err(error) => {
            format!("its guest could not be given back virtual CPUs {original}: {error}")
        }
    };
    report.failed += 1;
    let tenant = guest.tenant.clone();
    report.notes.push(note_of(tenant, endpoint, text));
}

pub(super) fn journal_error(journal: &Journal, error: &std::io::Error) -> String {
    format!("{}: {error}", journal.path().display())
}

/// A note on a virtual machine, whose tenant is not known if it comes from the journal.
pub(super) fn note_of(tenant: Option<TenantName>, endpoint: &GuestEndpoint, text: String) -> Note {
    match tenant {
        Some(_) => note(tenant, text),
        None => Note {
            tenant,
            subject: Subject::Thread(endpoint.thread),
            text,
        },
    }
}

pub(super) fn note(tenant: Option<TenantName>, text: String) -> Note {
    Note {
        tenant,
        subject: Subject::Tenant,
        text,
    }
}
