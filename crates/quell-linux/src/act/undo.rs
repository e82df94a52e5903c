//! Undoing what a journal records, and what guests and domains were told.

use super::error::ActError;
use super::journal::{Contents, Journal};
use super::notes::note_of;
use super::report::{Note, RestoreReport, Subject};
use super::state::{Domain, Host, State};
use super::thread::is_there;
use crate::guest::watch::{Answer, Question};
use crate::guest::{GuestEndpoint, GuestError, Guests, Online, Pins};
use quell_model::{CpuSet, ThreadId};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// The time for which undoing waits for all guests together, the parts of domains included. A virtual CPU
/// comes or goes in some 30 ms, in a loaded nested guest in 1.6 s.
const WITHIN: Duration = Duration::from_secs(15);

/// Undoes the changes that a journal records, and keeps a copy of a damaged journal for inspection.
pub(super) fn undo_journal(
    journal: &Journal,
    contents: Contents,
    host: &Host,
    guests: &Guests,
) -> Result<(State, RestoreReport), ActError> {
    let mut copy = journal.path().as_os_str().to_owned();
    copy.push(".damaged");
    let copy = PathBuf::from(copy);
    let (damaged, earlier_boot) = (contents.damaged.clone(), contents.earlier_boot);
    if !damaged.is_empty() {
        std::fs::copy(journal.path(), &copy).map_err(|source| ActError::Journal {
            path: copy.clone(),
            action: "keep a copy of",
            source,
        })?;
    }
    // Without the first line the age of children is unknown: then no thread is taken for a child.
    let opened_ticks = contents.opened_ticks.unwrap_or(u64::MAX);
    let mut state = State::from_journal(contents);
    let none = BTreeSet::new();
    let mut report = state.undo(host, opened_ticks, &none);
    undo_guests(&mut state, guests, &none, &mut report);
    report.earlier_boot = earlier_boot;
    report.damaged = damaged.len() as u64;
    if let [first, ..] = damaged[..] {
        let text = format!(
            "{} damaged lines, the first is line {first}: what they said is lost, the rest was used; \
             a copy is in {}",
            damaged.len(),
            copy.display()
        );
        report.notes.push(Note {
            tenant: None,
            subject: Subject::Journal,
            text,
        });
    }
    Ok((state, report))
}

/// Gives all guests back their online virtual CPUs, and all domains the pins of their parts; not the parts of
/// domains whose first virtual CPU is to stay bound.
pub(super) fn undo_guests(
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
    let pins = pins.map(pins_back);
    let wanted: Vec<(GuestEndpoint, Question)> = online.chain(pins).collect();
    let asked: Vec<(GuestEndpoint, bool)> = wanted
        .iter()
        .map(|(endpoint, question)| (endpoint.clone(), matches!(question, Question::Pin { .. })))
        .collect();
    for ((endpoint, pins), said) in asked.into_iter().zip(guests.put_back(wanted, WITHIN)) {
        match said {
            Ok(Answer::Online(online)) => guest_undone(state, &endpoint, online, report),
            Ok(Answer::Pinned(pins)) => pins_undone(state, &endpoint, pins, report),
            Ok(Answer::Stat(_) | Answer::Pins(_)) => {}
            Err(error) if pins => pins_undone(state, &endpoint, Err(error), report),
            Err(error) => guest_undone(state, &endpoint, Err(error), report),
        }
    }
}

/// Records the outcome of giving one guest its originals back.
fn guest_undone(
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

/// The question to libvirt that gives the parts of a domain back.
fn pins_back(domain: &Domain) -> (GuestEndpoint, Question) {
    let question = Question::Pin {
        expected: domain.expected(),
        wanted: domain.ours(),
    };
    (domain.endpoint.clone(), question)
}

/// Records the outcome of giving the parts of one domain back.
fn pins_undone(
    state: &mut State,
    endpoint: &GuestEndpoint,
    now: Result<Pins, GuestError>,
    report: &mut RestoreReport,
) {
    let Some(domain) = state.domains.get(&endpoint.thread) else {
        return;
    };
    let tenant = domain.tenant.clone();
    let now = match now {
        Ok(now) => now,
        Err(error) => {
            report.failed += 1;
            let text = format!(
                "its parts could not be pinned to {} again: {error}",
                domain.original
            );
            report.notes.push(note_of(tenant, endpoint, text));
            return;
        }
    };
    let expected = domain.expected();
    let mut stuck = false;
    for (part, original) in domain.ours().iter() {
        let Some(held) = now.get(part) else {
            report.gone += 1;
            continue;
        };
        let left = expected.iter().any(|it| it.get(part) == Some(held));
        if held == original {
            match expected.iter().all(|it| it.get(part) == Some(original)) {
                true => report.unchanged += 1,
                false => report.restored += 1,
            }
        } else if left {
            stuck = true;
            report.failed += 1;
            let text = format!("{part} is still pinned to CPUs {held}, before Quell {original}");
            report.notes.push(note_of(tenant.clone(), endpoint, text));
        } else {
            report.left_alone += 1;
            let text = format!(
                "{part} left on CPUs {held}: someone else pinned it there (it was {original})"
            );
            report.notes.push(note_of(tenant.clone(), endpoint, text));
        }
    }
    if !stuck {
        state.domains.remove(&endpoint.thread);
    }
}
