//! Nice values and slices: what a thread is to get next, and writing both in one call.

use super::period::{Acting, Change};
use crate::act::journal::Record;
use crate::act::nice_dither::NiceDither;
use crate::act::state::{Attr, Thread};
use crate::act::thread::{self, SLICE_MAX_NS, SLICE_MIN_NS};
use quell_model::{CpuSet, Nice, ThreadId, Weight};
use quell_sys::sched;
use std::io;

/// A slice is rewritten when it is off by more than one part in this many (5 %).
const SLICE_TOLERANCE_PARTS: u64 = 20;

/// The nice value that a thread is to get, if it is another than `last`, the one that it has.
pub(super) fn nice_change(
    dither: &mut NiceDither,
    weight: Option<Weight>,
    last: i32,
) -> Option<i32> {
    let held = Nice::new(last).unwrap_or_default();
    let next = weight.map_or(held, |weight| dither.next(weight, held));
    (next != held).then_some(next.get())
}

/// The slice in ns that a thread is to get, if writing it is worth a call; 0 for the kernel's own, `default`.
/// `last`: the slice that it has. `free`: whether a call is made anyway.
pub(super) fn slice_change(
    latency_ns: Option<u64>,
    default: u64,
    last: u64,
    free: bool,
) -> Option<u64> {
    let want = slice_for(latency_ns.unwrap_or(default), default);
    let held = if last == 0 { default } else { last };
    let off = want.abs_diff(held);
    let worth = off.saturating_mul(SLICE_TOLERANCE_PARTS) > held;
    // The kernel's own slice is written as 0, so that it follows the kernel's setting.
    let written = if want == default { 0 } else { want };
    (worth || (free && off > 0)).then_some(written)
}

/// The slice in ns that asks for a rescheduling latency. Never longer than the kernel's own: a slice
/// is also how long a thread may run on while others wait, up to all of it before Linux 6.17
/// (RUN_TO_PARITY), so a longer slice would delay the neighbours of a thread that can wait.
fn slice_for(latency_ns: u64, default_ns: u64) -> u64 {
    latency_ns.clamp(SLICE_MIN_NS, SLICE_MAX_NS).min(default_ns)
}

/// Writes a thread's nice value and slice as far as the change has them. Returns false if the thread has
/// ended.
pub(super) fn write_nice_and_slice(
    acting: &mut Acting<'_>,
    id: ThreadId,
    thread: &mut Thread,
    change: &mut Change,
    after: &mut Vec<Record>,
) -> bool {
    let Ok(sched) = thread::scheduling(id.tid) else {
        acting.gone(id, thread, after);
        return false;
    };
    for attr in [Attr::Nice, Attr::Slice] {
        let Some(setting) = thread.settings[attr as usize].as_mut() else {
            continue;
        };
        let now = acting.host.value(&sched, &CpuSet::new(), attr);
        if change.to(attr).is_some() && !(sched.fair && setting.expects(&now)) {
            change.cancel(attr);
            acting.leave_to_owner(thread.tenant.as_ref(), id, setting, &now);
        }
    }
    let mut result = set(id, change, sched.nice);
    let refused = |error: &&io::Error| error.raw_os_error() == Some(libc::EPERM);
    let both = change.nice.is_some() && change.slice.is_some();
    if let Some(error) = result.as_ref().err().filter(refused).filter(|_| both) {
        // More weight needs a privilege, a shorter slice does not.
        acting.refuse(id, thread, Attr::Nice, error);
        change.cancel(Attr::Nice);
        result = set(id, change, sched.nice);
    }
    if result.as_ref().is_err_and(thread::is_gone) {
        acting.gone(id, thread, after);
        return false;
    }
    for attr in [Attr::Nice, Attr::Slice] {
        let Some(to) = change.to(attr) else { continue };
        if let Err(error) = &result {
            acting.refuse(id, thread, attr, error);
        } else if let Some(setting) = thread.get_mut(attr) {
            setting.wrote(to);
            match attr {
                Attr::Nice => acting.report.writes.nice += 1,
                _ => acting.report.writes.slice += 1,
            }
        }
    }
    true
}

/// Writes nice and slice as far as the change contains them.
fn set(id: ThreadId, change: &Change, present_nice: i32) -> io::Result<()> {
    match (change.nice, change.slice) {
        (nice, Some(slice)) => thread::set_sched(id.tid, nice.unwrap_or(present_nice), slice),
        (Some(nice), None) => sched::set_nice(id.tid, nice),
        (None, None) => Ok(()),
    }
}
