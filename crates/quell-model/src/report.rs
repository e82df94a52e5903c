//! The reports of acting and undoing: typed for machines (serde), in words for people (`Display`).

use crate::ids::{CgroupPath, TenantName, ThreadId};
use serde::Serialize;
use std::fmt;

/// The report of carrying out one plan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ApplyReport {
    /// Settings written because the plan asks for them, by kind.
    pub writes: Writes,
    /// Settings given back because the plan no longer mentions them.
    pub given_back: u64,
    /// Settings of the plan that already held.
    pub unchanged: u64,
    /// Threads and cgroups of the plan that were gone.
    pub gone: u64,
    /// Settings of the plan that are left alone, each for a reason given once in a note.
    pub left_alone: u64,
    /// New notes; no note is repeated.
    pub notes: Vec<Note>,
    /// The reason why the journal could not be written. No setting was changed then, and the next call
    /// tries again.
    pub journal_error: Option<String>,
}

/// The number of settings written, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Writes {
    /// The number of nice values written.
    pub nice: u64,
    /// The number of slices written.
    pub slice: u64,
    /// The number of affinities written.
    pub affinity: u64,
    /// The number of cgroup weights written.
    pub cgroup_weight: u64,
    /// The number of threads whose settings were passed to Quell's scheduler.
    pub scheduler: u64,
    /// The number of guests that were told which virtual CPUs to have online.
    pub guests: u64,
}

/// The report of an undo.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RestoreReport {
    /// Settings put back.
    pub restored: u64,
    /// Settings that already were as before Quell.
    pub unchanged: u64,
    /// Threads and cgroups that are gone.
    pub gone: u64,
    /// Settings that another program has changed since Quell did, which are not touched.
    pub left_alone: u64,
    /// Settings that could not be put back; they stay in the journal for another try.
    pub failed: u64,
    /// Journal records of an earlier boot: void, since the threads and cgroups that they name went with it.
    pub earlier_boot: u64,
    /// Damaged journal lines (not counting a last line cut short by a crash): their contents are lost.
    pub damaged: u64,
    /// One note for each setting left alone or failed, and for each damaged place.
    pub notes: Vec<Note>,
}

/// A fact that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The tenant that the note concerns, where known.
    pub tenant: Option<TenantName>,
    /// The object that the note is about.
    pub subject: Subject,
    /// The text: what happened and what follows from it.
    pub text: String,
}

/// The object that a note is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A thread of the host.
    Thread(ThreadId),
    /// A cgroup of the host.
    Cgroup(CgroupPath),
    /// A tenant as a whole.
    Tenant,
    /// The journal of the changes.
    Journal,
    /// The scheduler that Quell loaded.
    Scheduler,
}

impl Writes {
    /// The number of settings written, of all kinds.
    pub fn total(&self) -> u64 {
        self.nice + self.slice + self.affinity + self.cgroup_weight + self.scheduler + self.guests
    }
}

impl RestoreReport {
    /// Whether all settings were put back that Quell changed and that no other program changed since.
    pub fn is_complete(&self) -> bool {
        self.failed == 0 && self.damaged == 0
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tenant) = &self.tenant {
            write!(f, "tenant {tenant}: ")?;
        }
        match &self.subject {
            Subject::Thread(id) => write!(f, "thread {id}: ")?,
            Subject::Cgroup(path) => write!(f, "cgroup {path}: ")?,
            Subject::Tenant => {}
            Subject::Journal => write!(f, "journal: ")?,
            Subject::Scheduler => {}
        }
        f.write_str(&self.text)
    }
}

/// The number of names that are given where many objects have the same note.
const NAMED: usize = 4;

/// A list of names as `web, db and 14 others`.
pub fn list<T: fmt::Display>(names: &[T]) -> String {
    let shown: Vec<String> = names.iter().take(NAMED).map(T::to_string).collect();
    match (names.len() - shown.len(), shown.split_last()) {
        (0, Some((last, before @ [_, ..]))) => format!("{} and {last}", before.join(", ")),
        (0, _) => shown.concat(),
        (more, _) => {
            let many = if more == 1 { "" } else { "s" };
            format!("{} and {more} other{many}", shown.join(", "))
        }
    }
}

impl ApplyReport {
    /// The notes as lines: one line for each cause, with all objects that it concerns.
    pub fn lines(&self) -> Vec<String> {
        let mut causes: Vec<(&Note, Vec<&Note>)> = Vec::new();
        let same = |one: &Note, other: &Note| {
            let kind = std::mem::discriminant(&one.subject);
            kind == std::mem::discriminant(&other.subject) && one.text == other.text
        };
        for note in &self.notes {
            match causes.iter_mut().find(|(first, _)| same(first, note)) {
                Some((_, more)) => more.push(note),
                None => causes.push((note, vec![note])),
            }
        }
        let line = |(first, all): (&Note, Vec<&Note>)| {
            let mut tenants: Vec<&TenantName> = Vec::new();
            for tenant in all.iter().filter_map(|note| note.tenant.as_ref()) {
                if !tenants.contains(&tenant) {
                    tenants.push(tenant);
                }
            }
            if all.len() == 1 || tenants.is_empty() {
                return first.to_string();
            }
            let many = if tenants.len() == 1 { "" } else { "s" };
            let whose = format!("tenant{many} {}", list(&tenants));
            match first.subject {
                Subject::Thread(_) => format!("{} threads of {whose}: {}", all.len(), first.text),
                Subject::Cgroup(_) => format!("{} cgroups of {whose}: {}", all.len(), first.text),
                _ => format!("{whose}: {}", first.text),
            }
        };
        causes.into_iter().map(line).collect()
    }
}

impl fmt::Display for ApplyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Writes {
            nice,
            slice,
            affinity,
            cgroup_weight,
            scheduler,
            guests,
        } = self.writes;
        write!(
            f,
            "wrote {nice} nice values, {slice} slices, {affinity} affinities, {cgroup_weight} cgroup \
             weights; told the scheduler of {scheduler} threads and {guests} guests; gave back {}; {} unchanged, {} gone, {} left alone",
            self.given_back, self.unchanged, self.gone, self.left_alone
        )?;
        if let Some(error) = &self.journal_error {
            write!(f, "; nothing could be changed: {error}")?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n{note}"))
    }
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "put back {} settings; {} already were; {} threads or cgroups gone; {} left alone; {} failed",
            self.restored, self.unchanged, self.gone, self.left_alone, self.failed
        )?;
        if self.earlier_boot > 0 {
            write!(f, "; {} records of an earlier boot void", self.earlier_boot)?;
        }
        if self.damaged > 0 {
            write!(f, "; {} damaged journal lines", self.damaged)?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n{note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Tid;

    #[test]
    fn notes_of_one_cause_are_one_line() {
        let note = |tenant: &str, subject: Subject, text: &str| Note {
            tenant: Some(tenant.into()),
            subject,
            text: text.into(),
        };
        let thread = |tid| {
            Subject::Thread(ThreadId {
                tid: Tid(tid),
                start_ticks: 1,
            })
        };
        let mut report = ApplyReport::default();
        for tenant in ["a", "b", "c", "d", "e", "f"] {
            report
                .notes
                .push(note(tenant, Subject::Tenant, "has no CPU cgroup"));
        }
        report.notes.push(note("a", thread(7), "stays where it is"));
        report.notes.push(note("b", Subject::Tenant, "is special"));
        report.notes.push(note("b", thread(8), "stays where it is"));
        report.notes.push(note("a", thread(9), "stays where it is"));
        assert_eq!(
            report.lines(),
            [
                "tenants a, b, c, d and 2 others: has no CPU cgroup",
                "3 threads of tenants a and b: stays where it is",
                "tenant b: is special"
            ]
        );
    }
}
