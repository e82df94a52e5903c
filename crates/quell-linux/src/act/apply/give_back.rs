//! Giving back settings of threads that the plan no longer mentions. This needs no journal: undoing finds the
//! original in place, or what Quell wrote.

use super::period::{foreign, thread_note};
use crate::act::actuator::Actuator;
use crate::act::journal::{Record, Value};
use crate::act::report::ApplyReport;
use crate::act::state::{self, ATTRS, Attr, HandsOff, Host, Thread, hint};
use crate::act::thread;
use quell_model::ThreadId;
use quell_sys::sched;
use std::io;

impl Actuator {
    /// Gives back the settings `attrs` of a thread.
    pub(super) fn give_back(
        &mut self,
        id: ThreadId,
        attrs: [bool; 3],
        report: &mut ApplyReport,
        dropped: &mut Vec<Record>,
    ) {
        let Some(thread) = self.state.threads.get_mut(&id) else {
            return;
        };
        let unplanned = thread.planned != self.period;
        let mut back: [Option<Value>; 3] = [None, None, None];
        let wanted = ATTRS.iter().any(|&attr| {
            attrs[attr as usize]
                && thread
                    .get(attr)
                    .is_some_and(|s| s.hands_off != Some(HandsOff::Foreign))
        });
        if wanted {
            let Some(originals) = originals(&self.host, id, thread, attrs, report) else {
                thread.gone = true;
                dropped.push(Record::DropThread(id));
                return;
            };
            back = originals;
            let count = back.iter().flatten().count() as u64;
            let result = state::write_back(id.tid, &mut back);
            report.given_back += count - back.iter().flatten().count() as u64;
            match result {
                Ok(()) => {}
                Err(error) if thread::is_gone(&error) => {
                    thread.gone = true;
                    dropped.push(Record::DropThread(id));
                    return;
                }
                Err(error) => keep(id, thread, &back, &error, report),
            }
        }
        for attr in ATTRS.into_iter().filter(|&attr| attrs[attr as usize]) {
            // A setting that could not be written back is still Quell's.
            if back[attr as usize].is_none() {
                thread.settings[attr as usize] = None;
            }
            if attr == Attr::Cpus {
                (thread.cpus_requested, thread.narrowed) = (None, None);
            }
        }
        if unplanned && thread.settings.iter().all(Option::is_none) {
            self.state.threads.swap_remove(&id);
            dropped.push(Record::DropThread(id));
        }
    }
}

/// The originals that are to be written, of the settings `attrs`; `None` if the thread has ended. Settings
/// that another program has changed are forgotten, which is noted.
fn originals(
    host: &Host,
    id: ThreadId,
    thread: &mut Thread,
    attrs: [bool; 3],
    report: &mut ApplyReport,
) -> Option<[Option<Value>; 3]> {
    let there = thread::is_there(id);
    let (true, Ok(sched), Ok(cpus)) = (there, thread::scheduling(id.tid), sched::affinity(id.tid))
    else {
        return None;
    };
    let mut back: [Option<Value>; 3] = [None, None, None];
    for attr in ATTRS.into_iter().filter(|&attr| attrs[attr as usize]) {
        let Some(setting) = &thread.settings[attr as usize] else {
            continue;
        };
        if setting.hands_off == Some(HandsOff::Foreign) {
            continue;
        }
        let now = host.value(&sched, &cpus, attr);
        let ours = attr == Attr::Cpus || sched.fair;
        if ours && host.is_as_left(id.tid, setting, &now) {
            // An affinity may read as the original and yet differ from it, see `Host::is_as_left`.
            let differs = attr == Attr::Cpus || now != setting.original;
            back[attr as usize] = (setting.touched() && differs).then(|| setting.original.clone());
        } else if now != setting.original {
            report
                .notes
                .push(foreign(thread.tenant.as_ref(), id, setting, &now));
            thread.settings[attr as usize] = None;
        }
    }
    Some(back)
}

/// Keeps the settings that could not be written back, `back`, for another try; noted once.
fn keep(
    id: ThreadId,
    thread: &mut Thread,
    back: &[Option<Value>; 3],
    error: &io::Error,
    report: &mut ApplyReport,
) {
    let mut noted = true;
    let stuck = (thread.settings.iter_mut().zip(back)).filter(|(_, back)| back.is_some());
    for setting in stuck.filter_map(|(setting, _)| setting.as_mut()) {
        setting.hands_off = Some(HandsOff::Refused);
        noted &= std::mem::replace(&mut setting.stuck, true);
    }
    if !noted {
        let text = format!(
            "could not be given back its settings: {error}{}; it is tried again",
            hint(error)
        );
        report
            .notes
            .push(thread_note(thread.tenant.as_ref(), id, text));
    }
}
