//! Affinities: the CPUs that a thread is to get, whether they hold, and writing them.

use super::period::Acting;
use crate::act::journal::{Record, Value};
use crate::act::state::{Attr, Host, Setting, Thread, hint};
use crate::act::thread;
use quell_model::{CpuSet, ThreadId, ThreadSample};
use quell_sys::sched;

/// What is to become of a thread's affinity.
pub(super) enum AffinityPlan {
    /// The thread has the CPUs that it is to have.
    Holds,
    /// The thread is to get these CPUs.
    Change(CpuSet),
    /// The owner of the thread allows only these CPUs, none of which is in the plan.
    NoneAllowed(CpuSet),
    /// Another program has given these CPUs to the thread since.
    Foreign(Value),
}

/// Plans a thread's affinity: `want`, as far as its owner allows it. `requested`: what was last asked for.
pub(super) fn plan_affinity(
    host: &Host,
    seen: Option<&ThreadSample>,
    setting: &Setting,
    want: CpuSet,
    requested: Option<&CpuSet>,
    narrowed: &mut Option<(CpuSet, CpuSet)>,
) -> AffinityPlan {
    let (Value::Cpus(original), Value::Cpus(last)) = (&setting.original, &setting.last) else {
        return AffinityPlan::Holds;
    };
    let want = if original.is_empty() {
        want
    } else {
        want.intersection(original)
    };
    if want.is_empty() {
        return AffinityPlan::NoneAllowed(original.clone());
    }
    if requested.unwrap_or(last) != &want {
        return AffinityPlan::Change(want);
    }
    match seen.map_or(Ok(()), |seen| {
        cpus_hold(host, seen, setting, &want, narrowed)
    }) {
        Ok(()) => AffinityPlan::Holds,
        Err(now) => AffinityPlan::Foreign(now),
    }
}

/// Checks whether a thread has the CPUs that it was given, `want`, and keeps the CPUs that it has and `want`
/// in `narrowed` if they differ.
///
/// # Errors
/// Returns the CPUs that another program gave to the thread since.
fn cpus_hold(
    host: &Host,
    seen: &ThreadSample,
    setting: &Setting,
    want: &CpuSet,
    narrowed: &mut Option<(CpuSet, CpuSet)>,
) -> Result<(), Value> {
    let tid = seen.id.tid;
    // The sample may be older than what Quell wrote, so the kernel is asked.
    if *seen.settings.affinity == *narrowed.as_ref().map_or(want, |(has, _)| has) {
        return Ok(());
    }
    let Ok(now) = sched::affinity(tid) else {
        return Ok(());
    };
    if now == *want {
        *narrowed = None;
        return Ok(());
    }
    let value = Value::Cpus(now.clone());
    if !host.is_as_left(tid, setting, &value) {
        return Err(value);
    }
    *narrowed = Some((now, want.clone()));
    Ok(())
}

/// Writes a thread's affinity, unless another program has changed it.
pub(super) fn write_affinity(
    acting: &mut Acting<'_>,
    id: ThreadId,
    thread: &mut Thread,
    want: CpuSet,
    after: &mut Vec<Record>,
) {
    let Some(setting) = thread.settings[Attr::Cpus as usize].as_mut() else {
        return;
    };
    let now = match sched::affinity(id.tid) {
        Ok(cpus) => Value::Cpus(cpus),
        Err(_) => return acting.gone(id, thread, after),
    };
    if !acting.host.is_as_left(id.tid, setting, &now) {
        acting.leave_to_owner(thread.tenant.as_ref(), id, setting, &now);
        return;
    }
    // What was missing was of another request.
    thread.narrowed = None;
    match thread::set_affinity(id.tid, &want) {
        Ok(()) => {
            let held = sched::affinity(id.tid).unwrap_or_else(|_| want.clone());
            setting.wrote(Value::Cpus(held.clone()));
            acting.report.writes.affinity += 1;
            if held != want {
                // The cpuset allows less; record in the journal what really holds.
                after.extend(thread.record(id, Attr::Cpus, Value::Cpus(held.clone())));
                thread.narrowed = Some((held, want.clone()));
            }
            thread.cpus_requested = Some(want);
        }
        Err(error) if thread::is_gone(&error) => acting.gone(id, thread, after),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            // Not tried again before the plan asks for another value.
            acting.report.left_alone += 1;
            let text = format!("cannot be moved to CPUs {want}: {error}{}", hint(&error));
            acting.note(thread.tenant.as_ref(), id, text);
            thread.cpus_requested = Some(want);
        }
        Err(error) => acting.refuse(id, thread, Attr::Cpus, &error),
    }
}
