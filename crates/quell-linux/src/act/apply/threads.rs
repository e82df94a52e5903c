//! Threads: which of their settings the plan wants, taking new threads under management, and writing.

use super::affinity::{AffinityPlan, plan_affinity, write_affinity};
use super::nice_slice::{nice_change, slice_change, write_nice_and_slice};
use super::period::{Acting, Change, Period, thread_note};
use crate::act::actuator::Actuator;
use crate::act::journal::{Record, Value};
use crate::act::notes::note;
use crate::act::report::ApplyReport;
use crate::act::state::{ATTRS, Attr, Host, Setting, Thread};
use crate::act::{capabilities, libvirt_pins, thread};
use quell_model::{
    CpuSet, SchedClass, TenantName, TenantPlan, TenantSample, ThreadId, ThreadPlan, ThreadSample,
};
use quell_sys::sched;
use std::io;

/// What the plan wants of one thread.
struct Wanted<'a> {
    tenant: &'a TenantName,
    sample: Option<&'a TenantSample>,
    plan: &'a ThreadPlan,
    /// The rescheduling latency, where the kernel takes custom slices.
    latency_ns: Option<u64>,
}

impl Actuator {
    /// Plans the settings of the thread that is `nth` in the plan.
    pub(super) fn plan_thread(
        &mut self,
        sample: Option<&TenantSample>,
        tenant: &TenantPlan,
        nth: usize,
        plan: &ThreadPlan,
        period: &mut Period,
    ) {
        let slices = self.host.default_slice.is_some();
        let wanted = Wanted {
            tenant: &tenant.name,
            sample,
            plan,
            latency_ns: plan.latency_ns.filter(|_| slices),
        };
        let wants = [
            plan.weight.is_some(),
            wanted.latency_ns.is_some(),
            plan.cpus.is_some() && !libvirt_pins::covers(period.affinity_owner, sample, plan.id),
        ];
        if self.state.planned_thread(nth, plan.id).is_none()
            && (wants == [false; 3] || !self.adopt(sample, tenant, plan.id, period))
        {
            return;
        }
        let Some(thread) = self.state.planned_thread(nth, plan.id) else {
            return;
        };
        if thread.gone {
            period.report.gone += 1;
            return;
        }
        period.planned += usize::from(thread.planned != self.period);
        thread.planned = self.period;
        let mut change = Change::default();
        let mut back = [false; 3];
        let mut acting = Acting {
            host: &self.host,
            notes_given: &mut self.notes_given,
            report: &mut period.report,
            now: self.period,
        };
        for attr in ATTRS {
            if !wants[attr as usize] {
                back[attr as usize] = thread.settings[attr as usize].is_some();
                continue;
            }
            let inherited = &mut period.inherited;
            if plan_setting(&mut acting, &wanted, thread, attr, &mut change, inherited).is_err() {
                acting.report.gone += 1;
                thread.gone = true;
                return;
            }
        }
        if change.nice.is_some() || change.slice.is_some() || change.cpus.is_some() {
            period.changes.push((plan.id, change));
        }
        if back != [false; 3] {
            period.backs.push((plan.id, back));
        }
    }

    /// Takes a thread under management, if it exists and is an ordinary thread.
    fn adopt(
        &mut self,
        sample: Option<&TenantSample>,
        tenant: &TenantPlan,
        id: ThreadId,
        period: &mut Period,
    ) -> bool {
        let Some(sample) = sample.and_then(|tenant| tenant.thread(id)) else {
            period.report.gone += 1;
            return false;
        };
        let fair = sample.settings.class == SchedClass::Fair;
        let sched = match fair.then(|| thread::scheduling(id.tid)).transpose() {
            Ok(Some(sched)) if sched.fair => sched,
            Ok(_) => {
                period.report.left_alone += 1;
                if self
                    .notes_given
                    .first(&tenant.name, Some(id), "class", self.period)
                {
                    let text = "left to its owner: it is not an ordinary thread (SCHED_OTHER, SCHED_BATCH)";
                    let note = thread_note(Some(&tenant.name), id, text.into());
                    period.report.notes.push(note);
                }
                return false;
            }
            Err(_) => {
                period.report.gone += 1;
                return false;
            }
        };
        if !thread::is_there(id) {
            period.report.gone += 1;
            return false;
        }
        self.probe();
        let mut thread = Thread::new(sample.process, Some(tenant.name.clone()));
        if let (Some(creator), Ok(cpus)) = (self.creator(sample, tenant), sched::affinity(id.tid)) {
            for attr in ATTRS {
                let now = self.host.value(&sched, &cpus, attr);
                thread.settings[attr as usize] = creator
                    .get(attr)
                    .filter(|s| s.journaled && s.original != now && s.gave(&now))
                    .map(|s| {
                        let mut setting = Setting::new(s.original.clone(), now);
                        setting.inherited = true;
                        setting
                    });
            }
        }
        self.state.threads.insert(id, thread);
        self.note_autogroup(tenant, id, period);
        true
    }

    /// The managed thread from which a new thread has its settings, if any: its creator, or where the
    /// creator is unknown or unmanaged, a thread of its tenant with all the same values.
    fn creator(&self, sample: &ThreadSample, tenant: &TenantPlan) -> Option<&Thread> {
        if sample.id.start_ticks < self.journal.opened_ticks() {
            return None; // born before Quell began
        }
        if let Some(creator) = sample.forked_by.and_then(|id| self.state.threads.get(&id)) {
            return Some(creator);
        }
        let sched = thread::scheduling(sample.id.tid).ok()?;
        let cpus = sched::affinity(sample.id.tid).ok()?;
        self.state.threads.values().find(|t| {
            t.tenant.as_ref() == Some(&tenant.name)
                && t.settings.iter().flatten().any(|s| s.journaled)
                && ATTRS.iter().all(|&attr| {
                    t.get(attr)
                        .is_none_or(|s| s.gave(&self.host.value(&sched, &cpus, attr)))
                })
        })
    }

    /// Notes once per tenant that autogroups limit the effect of nice values.
    fn note_autogroup(&mut self, tenant: &TenantPlan, id: ThreadId, period: &mut Period) {
        if !self
            .notes_given
            .first(&tenant.name, None, "autogroup", self.period)
        {
            return;
        }
        if capabilities::autogroup_on()
            && self.host.cgroups.in_root_cpu_cgroup(id.tid) == Some(true)
        {
            let text = "has no CPU cgroup and autogroups are on: its nice values act only among \
                        threads of the same session (give it a cgroup, or set \
                        kernel.sched_autogroup_enabled to 0)";
            let note = note(Some(tenant.name.clone()), text.into());
            period.report.notes.push(note);
        }
    }

    /// Writes what one thread is about to get; the journal has it already.
    pub(super) fn write_thread(
        &mut self,
        id: ThreadId,
        mut change: Change,
        report: &mut ApplyReport,
        after: &mut Vec<Record>,
    ) {
        let Some(thread) = self.state.threads.get_mut(&id) else {
            return;
        };
        let mut acting = Acting {
            host: &self.host,
            notes_given: &mut self.notes_given,
            report,
            now: self.period,
        };
        if !thread::is_there(id) {
            return acting.gone(id, thread, after);
        }
        let nice_or_slice = change.nice.is_some() || change.slice.is_some();
        if nice_or_slice && !write_nice_and_slice(&mut acting, id, thread, &mut change, after) {
            return;
        }
        if let Some(want) = change.cpus {
            write_affinity(&mut acting, id, thread, want, after);
        }
    }
}

/// Plans one setting of a thread, and reads it first if the plan mentions it for the first time. `inherited`
/// gets settings to be journaled although they are not written.
///
/// # Errors
/// The call fails if the thread has ended.
fn plan_setting(
    acting: &mut Acting<'_>,
    wanted: &Wanted<'_>,
    thread: &mut Thread,
    attr: Attr,
    change: &mut Change,
    inherited: &mut Vec<(ThreadId, Attr)>,
) -> io::Result<()> {
    let plan = wanted.plan;
    let slot = &mut thread.settings[attr as usize];
    if slot.is_none() {
        *slot = read(acting.host, plan.id, attr)?;
    }
    let Some(setting) = slot else {
        acting.report.left_alone += 1;
        return Ok(());
    };
    if setting.inherited && !setting.journaled {
        inherited.push((plan.id, attr));
    }
    if setting.hands_off.is_some() {
        acting.report.left_alone += 1;
        return Ok(());
    }
    let changes = match (attr, &setting.last) {
        (Attr::Nice, &Value::Nice(last)) => {
            change.nice = nice_change(&mut thread.nice_dither, plan.weight, last);
            change.nice.is_some()
        }
        (Attr::Slice, &Value::Slice(last)) => {
            let default = acting.host.default_slice.unwrap_or_default();
            // Together with a change of nice it costs nothing more to be exact.
            let free = change.nice.is_some() && setting.journaled;
            change.slice = slice_change(wanted.latency_ns, default, last, free);
            change.slice.is_some()
        }
        (Attr::Cpus, Value::Cpus(_)) => {
            let want = plan.cpus.clone().unwrap_or_default();
            let seen = wanted.sample.and_then(|it| it.thread(plan.id));
            let (requested, narrowed) = (thread.cpus_requested.as_ref(), &mut thread.narrowed);
            match plan_affinity(acting.host, seen, setting, want, requested, narrowed) {
                AffinityPlan::Holds => false,
                AffinityPlan::Change(cpus) => {
                    change.cpus = Some(cpus);
                    true
                }
                AffinityPlan::NoneAllowed(original) => {
                    acting.report.left_alone += 1;
                    let (tenant, id) = (wanted.tenant, plan.id);
                    if (acting.notes_given).first(tenant, Some(id), "layout", acting.now) {
                        let text =
                            format!("stays where it is: its owner allows only CPUs {original}");
                        acting.note(Some(tenant), id, text);
                    }
                    return Ok(());
                }
                AffinityPlan::Foreign(now) => {
                    acting.leave_to_owner(Some(wanted.tenant), plan.id, setting, &now);
                    return Ok(());
                }
            }
        }
        _ => false,
    };
    acting.report.unchanged += u64::from(!changes);
    Ok(())
}

/// Reads a setting that Quell has not managed so far; `None` if it is not a setting of an ordinary thread.
fn read(host: &Host, id: ThreadId, attr: Attr) -> io::Result<Option<Setting>> {
    if attr != Attr::Cpus {
        let sched = thread::scheduling(id.tid)?;
        let now = host.value(&sched, &CpuSet::new(), attr);
        return Ok(sched.fair.then(|| Setting::new(now.clone(), now)));
    }
    let now = sched::affinity(id.tid)?;
    let free = host.is_unrestricted(id.tid, &now);
    let original = if free { CpuSet::new() } else { now.clone() };
    Ok(Some(Setting::new(Value::Cpus(original), Value::Cpus(now))))
}
