//! Notes: for each fact one, however often it is met.

use super::report::{Note, Subject};
use crate::guest::GuestEndpoint;
use quell_model::{TenantName, ThreadId};
use std::collections::BTreeMap;

/// The notes given already, and the period in which each last held: no note is repeated.
#[derive(Debug, Default)]
pub(super) struct NotesGiven(BTreeMap<(TenantName, Option<ThreadId>, &'static str), u64>);

impl NotesGiven {
    /// Whether the note `what` on a tenant, or on a thread of it, is given for the first time.
    pub fn first(
        &mut self,
        tenant: &TenantName,
        id: Option<ThreadId>,
        what: &'static str,
        period: u64,
    ) -> bool {
        self.0.insert((tenant.clone(), id, what), period).is_none()
    }

    /// Forgets the notes that last held in period `before` or earlier: those on threads, and those on tenants
    /// that are not there any more.
    pub fn forget(&mut self, before: u64, is_there: impl Fn(&TenantName) -> bool) {
        self.0
            .retain(|(tenant, id, _), last| *last > before || id.is_none() && is_there(tenant));
    }
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

/// A note on a tenant as a whole.
pub(super) fn note(tenant: Option<TenantName>, text: String) -> Note {
    Note {
        tenant,
        subject: Subject::Tenant,
        text,
    }
}
