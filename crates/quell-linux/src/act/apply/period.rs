//! What one call of `apply` collects, and what the settings' modules need of the actuator meanwhile.

use crate::act::journal::{Record, Value};
use crate::act::notes::NotesGiven;
use crate::act::report::{ApplyReport, Note, Subject};
use crate::act::state::{Attr, HandsOff, Host, Setting, Thread, hint};
use crate::guest::AffinityOwner;
use quell_model::{CgroupPath, CpuSet, TenantName, ThreadId};
use std::io;

/// The settings that one thread is about to get.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub nice: Option<i32>,
    /// The slice in ns, 0 for the kernel's own.
    pub slice: Option<u64>,
    pub cpus: Option<CpuSet>,
}

/// One call of `apply` under way.
#[derive(Default)]
pub(super) struct Period {
    pub report: ApplyReport,
    /// The number of managed threads that the plan has.
    pub planned: usize,
    pub changes: Vec<(ThreadId, Change)>,
    pub weights: Vec<(CgroupPath, u64)>,
    pub backs: Vec<(ThreadId, [bool; 3])>,
    /// Settings inherited from a creator, to be journaled although they are not written.
    pub inherited: Vec<(ThreadId, Attr)>,
    /// The authority over the CPUs of the threads of the tenant that is being handled.
    pub affinity_owner: AffinityOwner,
}

/// The parts of the actuator that are needed while a thread of its state is being changed.
pub(super) struct Acting<'a> {
    pub host: &'a Host,
    pub notes_given: &'a mut NotesGiven,
    pub report: &'a mut ApplyReport,
    /// The number of the period.
    pub now: u64,
}

impl Change {
    /// The value that a setting is about to get, if any.
    pub fn to(&self, attr: Attr) -> Option<Value> {
        match attr {
            Attr::Nice => self.nice.map(Value::Nice),
            Attr::Slice => self.slice.map(Value::Slice),
            Attr::Cpus => self.cpus.clone().map(Value::Cpus),
        }
    }

    /// Takes a setting out of the change.
    pub fn cancel(&mut self, attr: Attr) {
        match attr {
            Attr::Nice => self.nice = None,
            Attr::Slice => self.slice = None,
            Attr::Cpus => self.cpus = None,
        }
    }
}

impl Acting<'_> {
    /// Notes a fact on a thread.
    pub fn note(&mut self, tenant: Option<&TenantName>, id: ThreadId, text: String) {
        self.report.notes.push(thread_note(tenant, id, text));
    }

    /// Leaves a setting alone from now on, since another program has changed it to `now`, and says so.
    pub fn leave_to_owner(
        &mut self,
        tenant: Option<&TenantName>,
        id: ThreadId,
        setting: &mut Setting,
        now: &Value,
    ) {
        self.report.notes.push(foreign(tenant, id, setting, now));
        self.report.left_alone += 1;
        setting.hands_off = Some(HandsOff::Foreign);
    }

    /// Leaves a setting alone that the kernel does not let Quell change. Noted once per tenant and kind.
    pub fn refuse(&mut self, id: ThreadId, thread: &mut Thread, attr: Attr, error: &io::Error) {
        let Some(tenant) = thread.tenant.clone() else {
            return;
        };
        let Some(setting) = thread.get_mut(attr) else {
            return;
        };
        setting.hands_off = Some(HandsOff::Refused);
        self.report.left_alone += 1;
        let name = setting.last.name();
        if self.notes_given.first(&tenant, None, name, self.now) {
            let text = format!(
                "{name} cannot be set: {error}{}; nor is it tried again",
                hint(error)
            );
            self.note(Some(&tenant), id, text);
        }
    }

    /// Takes note that a thread has ended. `after`: records for the journal after this period's writes.
    pub fn gone(&mut self, id: ThreadId, thread: &mut Thread, after: &mut Vec<Record>) {
        thread.gone = true;
        self.report.gone += 1;
        after.push(Record::DropThread(id));
    }
}

/// A note on a thread.
pub(super) fn thread_note(tenant: Option<&TenantName>, id: ThreadId, text: String) -> Note {
    Note {
        tenant: tenant.cloned(),
        subject: Subject::Thread(id),
        text,
    }
}

/// The note that a setting is left alone because another program has changed it.
pub(super) fn foreign(
    tenant: Option<&TenantName>,
    id: ThreadId,
    setting: &Setting,
    now: &Value,
) -> Note {
    let text = format!(
        "{} left at {now} from now on: someone else changed it since Quell left it at {}",
        now.name(),
        setting.last
    );
    thread_note(tenant, id, text)
}
