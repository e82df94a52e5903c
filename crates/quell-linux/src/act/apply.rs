//! The work of one period: from the plan to the few writes that make it hold.
//!
//! Phases: go through the plan and note what differs (no system calls for threads that are known);
//! give back the settings that the plan no longer mentions; journal what is about to be written; write.

use super::actuator::Actuator;
use super::cgroup;
use super::journal::{Record, Value};
use super::notes::NotesGiven;
use super::report::{ApplyReport, Note, RestoreReport, Subject};
use super::state::{self, ATTRS, Attr, Cgroup, HandsOff, Setting, Thread, hint};
use super::thread::{self, SLICE_MAX_NS, SLICE_MIN_NS};
use super::{capabilities, libvirt_pins};
use crate::guest::AffinityOwner;
use quell_model::{
    CgroupPath, CpuSet, Nice, Plan, SchedClass, Snapshot, TenantName, TenantPlan, TenantSample,
    TenantWeight, ThreadId, ThreadPlan, ThreadSample,
};
use quell_sys::sched;
use std::collections::BTreeMap;
use std::io;

/// A slice is rewritten when it is off by more than one part in this many (5 %).
const SLICE_TOLERANCE_PARTS: u64 = 20;

/// Periods between checks of what may have become possible and of what can be forgotten.
const COMPACT_PERIODS: u64 = 1024;

/// Periods for which a thread that is gone is remembered, for its late children.
const GONE_PERIODS: u64 = 64;

/// The settings that one thread is about to get.
#[derive(Debug, Default)]
struct Change {
    nice: Option<i32>,
    slice: Option<u64>,
    cpus: Option<CpuSet>,
}

/// One call of `apply` under way.
#[derive(Default)]
struct Period {
    report: ApplyReport,
    /// The number of managed threads that the plan has.
    planned: usize,
    changes: Vec<(ThreadId, Change)>,
    weights: Vec<(CgroupPath, u64)>,
    backs: Vec<(ThreadId, [bool; 3])>,
    /// Settings inherited from a creator, to be journaled although they are not written.
    inherited: Vec<(ThreadId, Attr)>,
    /// The authority over the CPUs of the threads of the tenant that is being handled.
    affinity_owner: AffinityOwner,
}

impl Actuator {
    /// Makes the plan hold: writes what differs, after journaling what held before. It never fails as a
    /// whole: what could not be done is in the report, noted once and not in every period.
    pub fn apply(&mut self, snapshot: &Snapshot, plan: &Plan) -> ApplyReport {
        self.period += 1;
        let mut period = Period::default();
        self.check_one_weight(&mut period.report);
        let mut nth = 0;
        for tenant in &plan.tenants {
            let sample = snapshot
                .tenants
                .binary_search_by(|t| t.name.cmp(&tenant.name))
                .ok()
                .map(|index| &snapshot.tenants[index]);
            self.plan_weight(sample, tenant, &mut period);
            period.affinity_owner = self.guests.affinity_owner(&tenant.name);
            for thread in &tenant.threads {
                self.plan_thread(sample, tenant, nth, thread, &mut period);
                nth += 1;
            }
        }
        if period.planned < self.state.threads.len() {
            for (&id, thread) in &self.state.threads {
                if thread.planned != self.period && !thread.gone {
                    period.backs.push((id, [true; 3]));
                }
            }
        }
        let mut dropped = Vec::new();
        for (id, attrs) in std::mem::take(&mut period.backs) {
            self.give_back(id, attrs, &mut period.report, &mut dropped);
        }
        self.give_back_weights(&mut period.report, &mut dropped);
        self.write(
            period.changes,
            period.weights,
            period.inherited,
            &mut period.report,
            &mut dropped,
        );
        self.pin_domains(snapshot, plan, &mut period.report, &mut dropped);
        self.tell_guests(plan, &mut period.report, &mut dropped);
        if !dropped.is_empty() {
            // To lose these costs nothing: undoing finds the originals in place.
            let _ = self.journal.append(&dropped, false);
        }
        self.compact();
        period.report
    }

    fn plan_weight(
        &mut self,
        sample: Option<&TenantSample>,
        tenant: &TenantPlan,
        period: &mut Period,
    ) {
        let (Some(weight), Some(path)) = (tenant.weight, sample.and_then(|s| s.cgroup.as_ref()))
        else {
            return;
        };
        let Some(hierarchy) = &self.host.cgroups.cpu else {
            return;
        };
        let Some(file) = hierarchy.weight_file(path) else {
            return;
        };
        let want = hierarchy.units(weight);
        if !self.state.cgroups.contains_key(path) && !self.unreadable.contains(path) {
            match cgroup::read_weight(&file) {
                Ok((inode, now)) => {
                    let mut cgroup = Cgroup {
                        inode,
                        tenant: Some(tenant.name.clone()),
                        setting: Setting::new(Value::Weight(now), Value::Weight(now)),
                        planned: 0,
                        unmet: None,
                        idle: false,
                    };
                    if cgroup::is_idle(&file) {
                        idles(path, &mut cgroup, &mut period.report);
                    }
                    self.state.cgroups.insert(path.clone(), cgroup);
                }
                Err(error) => {
                    self.unreadable.insert(path.clone());
                    if self
                        .notes_given
                        .first(&tenant.name, None, "weight", self.period)
                    {
                        let text = format!(
                            "its weight cannot be set: {}: {error} (is the CPU controller enabled \
                             for this cgroup?)",
                            file.display()
                        );
                        let subject = Subject::Cgroup(path.clone());
                        let tenant = Some(tenant.name.clone());
                        period.report.notes.push(Note {
                            tenant,
                            subject,
                            text,
                        });
                    }
                }
            }
        }
        let Some(cgroup) = self.state.cgroups.get_mut(path) else {
            period.report.left_alone += 1;
            return;
        };
        cgroup.planned = self.period;
        if cgroup.setting.hands_off.is_some() || cgroup.idle {
            period.report.left_alone += 1;
        } else if cgroup.setting.last == Value::Weight(want) {
            period.report.unchanged += 1;
        } else {
            period.weights.push((path.clone(), want));
        }
    }

    fn plan_thread(
        &mut self,
        sample: Option<&TenantSample>,
        tenant: &TenantPlan,
        nth: usize,
        plan: &ThreadPlan,
        period: &mut Period,
    ) {
        let slices = self.host.default_slice;
        let latency = plan.latency_ns.filter(|_| slices.is_some());
        let wants = [
            plan.weight.is_some(),
            latency.is_some(),
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
        for attr in ATTRS {
            let slot = &mut thread.settings[attr as usize];
            if !wants[attr as usize] {
                back[attr as usize] = slot.is_some();
                continue;
            }
            if slot.is_none() {
                // The plan mentions this setting for the first time.
                match read(&self.host, plan.id, attr) {
                    Ok(setting) => *slot = setting,
                    Err(_) => {
                        period.report.gone += 1;
                        thread.gone = true;
                        return;
                    }
                }
            }
            let Some(setting) = slot else {
                period.report.left_alone += 1;
                continue;
            };
            if setting.inherited && !setting.journaled {
                period.inherited.push((plan.id, attr));
            }
            if setting.hands_off.is_some() {
                period.report.left_alone += 1;
                continue;
            }
            let changes = match (attr, &setting.last) {
                (Attr::Nice, &Value::Nice(last)) => {
                    let held = Nice::new(last).unwrap_or_default();
                    let next = plan
                        .weight
                        .map_or(held, |w| thread.nice_dither.next(w, held));
                    change.nice = (next != held).then_some(next.get());
                    change.nice.is_some()
                }
                (Attr::Slice, &Value::Slice(last)) => {
                    let default = slices.unwrap_or_default();
                    let want = slice_for(latency.unwrap_or(default), default);
                    let held = if last == 0 { default } else { last };
                    let off = want.abs_diff(held);
                    // Together with a change of nice it costs nothing more to be exact.
                    let free = change.nice.is_some() && setting.journaled && off > 0;
                    let worth = off.saturating_mul(SLICE_TOLERANCE_PARTS) > held;
                    // The kernel's own slice is written as 0, so that it follows the kernel's setting.
                    let written = if want == default { 0 } else { want };
                    change.slice = (worth || free).then_some(written);
                    change.slice.is_some()
                }
                (Attr::Cpus, Value::Cpus(last)) => {
                    let Value::Cpus(original) = &setting.original else {
                        continue;
                    };
                    let want = plan.cpus.clone().unwrap_or_default();
                    let want = if original.is_empty() {
                        want
                    } else {
                        want.intersection(original)
                    };
                    if want.is_empty() {
                        period.report.left_alone += 1;
                        if self.notes_given.first(
                            &tenant.name,
                            Some(plan.id),
                            "layout",
                            self.period,
                        ) {
                            let text =
                                format!("stays where it is: its owner allows only CPUs {original}");
                            let (tenant, subject) =
                                (Some(tenant.name.clone()), Subject::Thread(plan.id));
                            period.report.notes.push(Note {
                                tenant,
                                subject,
                                text,
                            });
                        }
                        continue;
                    }
                    let holds = thread.cpus_requested.as_ref().unwrap_or(last) == &want;
                    let seen = sample.and_then(|it| it.thread(plan.id));
                    if holds
                        && let Some(seen) = seen
                        && let Err(now) =
                            cpus_hold(&self.host, seen, setting, &want, &mut thread.narrowed)
                    {
                        let owner = Some(&tenant.name);
                        leave_to_owner(owner, plan.id, setting, &now, &mut period.report);
                        continue;
                    }
                    change.cpus = (!holds).then_some(want);
                    change.cpus.is_some()
                }
                _ => false,
            };
            period.report.unchanged += u64::from(!changes);
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
                    let (tenant, subject) = (Some(tenant.name.clone()), Subject::Thread(id));
                    period.report.notes.push(Note {
                        tenant,
                        subject,
                        text: text.into(),
                    });
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
            let (tenant, subject) = (Some(tenant.name.clone()), Subject::Tenant);
            period.report.notes.push(Note {
                tenant,
                subject,
                text: text.into(),
            });
        }
    }

    /// Gives back settings that the plan no longer mentions. This needs no journal: undoing finds the
    /// original in place, or what Quell wrote.
    fn give_back(
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
            let there = thread::is_there(id);
            let (sched, cpus) = match (there, thread::scheduling(id.tid), sched::affinity(id.tid)) {
                (true, Ok(sched), Ok(cpus)) => (sched, cpus),
                _ => {
                    thread.gone = true;
                    dropped.push(Record::DropThread(id));
                    return;
                }
            };
            for attr in ATTRS.into_iter().filter(|&attr| attrs[attr as usize]) {
                let Some(setting) = &thread.settings[attr as usize] else {
                    continue;
                };
                if setting.hands_off == Some(HandsOff::Foreign) {
                    continue;
                }
                let now = self.host.value(&sched, &cpus, attr);
                let ours = attr == Attr::Cpus || sched.fair;
                if ours && self.host.is_as_left(id.tid, setting, &now) {
                    // An affinity may read as the original and yet differ from it, see `Host::is_as_left`.
                    let differs = attr == Attr::Cpus || now != setting.original;
                    back[attr as usize] =
                        (setting.touched() && differs).then(|| setting.original.clone());
                } else if now != setting.original {
                    report
                        .notes
                        .push(foreign(thread.tenant.as_ref(), id, setting, &now));
                    thread.settings[attr as usize] = None;
                }
            }
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
                Err(error) => {
                    let mut said = true;
                    for (setting, _) in thread
                        .settings
                        .iter_mut()
                        .zip(&back)
                        .filter(|(_, back)| back.is_some())
                    {
                        if let Some(setting) = setting {
                            setting.hands_off = Some(HandsOff::Refused);
                            said &= std::mem::replace(&mut setting.stuck, true);
                        }
                    }
                    if !said {
                        let text = format!(
                            "could not be given back its settings: {error}{}; it is tried again",
                            hint(&error)
                        );
                        let (tenant, subject) = (thread.tenant.clone(), Subject::Thread(id));
                        report.notes.push(Note {
                            tenant,
                            subject,
                            text,
                        });
                    }
                }
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

    fn give_back_weights(&mut self, report: &mut ApplyReport, dropped: &mut Vec<Record>) {
        let mut done = RestoreReport::default();
        let (period, host) = (self.period, &self.host);
        self.state.cgroups.retain(|path, cgroup| {
            if cgroup.planned == period {
                return true;
            }
            let notes = done.notes.len();
            if state::undo_cgroup(path, cgroup, host, &mut done) {
                cgroup.setting.hands_off = Some(HandsOff::Refused);
                if std::mem::replace(&mut cgroup.setting.stuck, true) {
                    done.notes.truncate(notes);
                }
                return true;
            }
            dropped.push(Record::DropCgroup {
                inode: cgroup.inode,
            });
            false
        });
        report.given_back += done.restored;
        report.gone += done.gone;
        report.notes.append(&mut done.notes);
    }

    /// Journals what is about to be written, then writes it. Nothing is written without the journal.
    fn write(
        &mut self,
        changes: Vec<(ThreadId, Change)>,
        weights: Vec<(CgroupPath, u64)>,
        inherited: Vec<(ThreadId, Attr)>,
        report: &mut ApplyReport,
        after: &mut Vec<Record>,
    ) {
        let mut records = Vec::new();
        let mut named: Vec<(ThreadId, Attr)> = inherited;
        let mut durable = !named.is_empty();
        for &(id, attr) in &named {
            let Some(thread) = self.state.threads.get(&id) else {
                continue;
            };
            let last = thread.get(attr).map(|s| s.last.clone());
            records.extend(last.and_then(|last| thread.record(id, attr, last)));
        }
        for (id, change) in &changes {
            let Some(thread) = self.state.threads.get(id) else {
                continue;
            };
            for attr in ATTRS {
                let Some(to) = change.to(attr) else { continue };
                durable |= thread.get(attr).is_some_and(|s| !s.journaled);
                records.extend(thread.record(*id, attr, to));
                named.push((*id, attr));
            }
        }
        for (path, to) in &weights {
            let Some(cgroup) = self.state.cgroups.get(path) else {
                continue;
            };
            durable |= !cgroup.setting.journaled;
            if let (&Value::Weight(original), &Value::Weight(from)) =
                (&cgroup.setting.original, &cgroup.setting.last)
            {
                let (inode, path, to) = (cgroup.inode, path.clone(), *to);
                records.push(Record::Cgroup {
                    inode,
                    path,
                    original,
                    from,
                    to,
                });
            }
        }
        if records.is_empty() {
            return;
        }
        if let Err(error) = self.journal.append(&records, durable) {
            report.journal_error = Some(self.journal.cannot(&error));
            return;
        }
        for (id, attr) in named {
            if let Some(setting) = self
                .state
                .threads
                .get_mut(&id)
                .and_then(|t| t.get_mut(attr))
            {
                setting.journaled = true;
            }
        }
        for (path, _) in &weights {
            if let Some(cgroup) = self.state.cgroups.get_mut(path) {
                cgroup.setting.journaled = true;
            }
        }
        for (id, change) in changes {
            self.write_thread(id, change, report, after);
        }
        for (path, to) in weights {
            self.write_weight(&path, to, report);
        }
    }

    fn write_thread(
        &mut self,
        id: ThreadId,
        mut change: Change,
        report: &mut ApplyReport,
        after: &mut Vec<Record>,
    ) {
        let Some(thread) = self.state.threads.get_mut(&id) else {
            return;
        };
        if !thread::is_there(id) {
            return gone(id, thread, report, after);
        }
        let host = &self.host;
        if change.nice.is_some() || change.slice.is_some() {
            let sched = match thread::scheduling(id.tid) {
                Ok(sched) => sched,
                Err(_) => return gone(id, thread, report, after),
            };
            for attr in [Attr::Nice, Attr::Slice] {
                let Some(setting) = thread.settings[attr as usize].as_mut() else {
                    continue;
                };
                let now = host.value(&sched, &CpuSet::new(), attr);
                if change.to(attr).is_some() && !(sched.fair && setting.expects(&now)) {
                    change.cancel(attr);
                    leave_to_owner(thread.tenant.as_ref(), id, setting, &now, report);
                }
            }
            let mut result = set(id, &change, sched.nice);
            if result
                .as_ref()
                .is_err_and(|e| e.raw_os_error() == Some(libc::EPERM))
                && change.nice.is_some()
                && change.slice.is_some()
            {
                // More weight needs a privilege, a shorter slice does not.
                refuse(
                    &mut self.notes_given,
                    self.period,
                    id,
                    thread,
                    Attr::Nice,
                    &result,
                    report,
                );
                change.cancel(Attr::Nice);
                result = set(id, &change, sched.nice);
            }
            if result.as_ref().is_err_and(thread::is_gone) {
                return gone(id, thread, report, after);
            }
            for attr in [Attr::Nice, Attr::Slice] {
                let Some(to) = change.to(attr) else { continue };
                if result.is_err() {
                    refuse(
                        &mut self.notes_given,
                        self.period,
                        id,
                        thread,
                        attr,
                        &result,
                        report,
                    );
                } else if let Some(setting) = thread.get_mut(attr) {
                    setting.wrote(to);
                    match attr {
                        Attr::Nice => report.writes.nice += 1,
                        _ => report.writes.slice += 1,
                    }
                }
            }
        }
        let Some(want) = change.cpus else { return };
        let Some(setting) = thread.settings[Attr::Cpus as usize].as_mut() else {
            return;
        };
        let now = match sched::affinity(id.tid) {
            Ok(cpus) => Value::Cpus(cpus),
            Err(_) => return gone(id, thread, report, after),
        };
        if !host.is_as_left(id.tid, setting, &now) {
            leave_to_owner(thread.tenant.as_ref(), id, setting, &now, report);
            return;
        }
        // What was missing was of another request.
        thread.narrowed = None;
        let result = thread::set_affinity(id.tid, &want);
        match &result {
            Ok(()) => {
                let held = sched::affinity(id.tid).unwrap_or_else(|_| want.clone());
                setting.wrote(Value::Cpus(held.clone()));
                report.writes.affinity += 1;
                if held != want {
                    // The cpuset allows less; record in the journal what really holds.
                    after.extend(thread.record(id, Attr::Cpus, Value::Cpus(held.clone())));
                    thread.narrowed = Some((held, want.clone()));
                }
                thread.cpus_requested = Some(want);
            }
            Err(error) if thread::is_gone(error) => gone(id, thread, report, after),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                // Not tried again before the plan asks for another value.
                report.left_alone += 1;
                let text = format!("cannot be moved to CPUs {want}: {error}{}", hint(error));
                let (tenant, subject) = (thread.tenant.clone(), Subject::Thread(id));
                report.notes.push(Note {
                    tenant,
                    subject,
                    text,
                });
                thread.cpus_requested = Some(want);
            }
            Err(_) => {
                refuse(
                    &mut self.notes_given,
                    self.period,
                    id,
                    thread,
                    Attr::Cpus,
                    &result,
                    report,
                );
            }
        }
    }

    fn write_weight(&mut self, path: &CgroupPath, to: u64, report: &mut ApplyReport) {
        let Some(file) = self
            .host
            .cgroups
            .cpu
            .as_ref()
            .and_then(|h| h.weight_file(path))
        else {
            return;
        };
        let Some(cgroup) = self.state.cgroups.get_mut(path) else {
            return;
        };
        let result = match cgroup::read_weight(&file) {
            Ok((inode, _)) if inode != cgroup.inode => {
                Err(io::Error::from_raw_os_error(libc::ENOENT))
            }
            Ok(_) if cgroup::is_idle(&file) => {
                report.left_alone += 1;
                return idles(path, cgroup, report);
            }
            Ok((_, now)) if !cgroup.setting.expects(&Value::Weight(now)) => {
                report.left_alone += 1;
                return taken_over(path, cgroup, now, report);
            }
            Ok(_) => cgroup::write_weight(&file, to),
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => {
                cgroup.setting.wrote(Value::Weight(to));
                cgroup.unmet = None;
                report.writes.cgroup_weight += 1;
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {
                report.gone += 1;
                self.state.cgroups.remove(path);
            }
            Err(error) => {
                cgroup.setting.hands_off = Some(HandsOff::Refused);
                report.left_alone += 1;
                let text = format!("its weight cannot be set: {error}{}", hint(&error));
                does_not_hold(path, cgroup, text, report);
            }
        }
    }

    /// Checks, for one cgroup in each call in turn, whether the weight is as Quell left it.
    fn check_one_weight(&mut self, report: &mut ApplyReport) {
        let count = self.state.cgroups.len() as u64;
        let Some(hierarchy) = self.host.cgroups.cpu.as_ref().filter(|_| count > 0) else {
            return;
        };
        let nth = (self.period % count) as usize;
        let Some((path, cgroup)) = self.state.cgroups.iter_mut().nth(nth) else {
            return;
        };
        let Some(file) = hierarchy.weight_file(path) else {
            return;
        };
        let Ok((inode, now)) = cgroup::read_weight(&file) else {
            return;
        };
        if inode != cgroup.inode || cgroup.setting.hands_off.is_some() {
            return;
        }
        let idle = cgroup::is_idle(&file);
        if idle && !cgroup.idle {
            idles(path, cgroup, report);
        } else if !idle && cgroup.idle {
            cgroup.idle = false;
            cgroup.unmet = None;
            if !cgroup.setting.touched() {
                // The value read while the cgroup was idle was no weight.
                cgroup.setting = Setting::new(Value::Weight(now), Value::Weight(now));
            } else if now == hierarchy.units(TenantWeight::DEFAULT) {
                // The kernel's own weight, when idle ends.
                cgroup.setting.wrote(Value::Weight(now));
            } else if !cgroup.setting.expects(&Value::Weight(now)) {
                taken_over(path, cgroup, now, report);
            }
        } else if !idle && !cgroup.setting.expects(&Value::Weight(now)) {
            taken_over(path, cgroup, now, report);
        }
    }

    /// The tenants of whose plan something does not hold, and what and why: weights that are not written, and
    /// threads that have fewer CPUs than planned.
    pub fn unmet(&self) -> BTreeMap<TenantName, Vec<String>> {
        let mut unmet: BTreeMap<TenantName, Vec<String>> = BTreeMap::new();
        for cgroup in self.state.cgroups.values() {
            if let (Some(tenant), Some(text)) = (&cgroup.tenant, &cgroup.unmet)
                && cgroup.planned == self.period
            {
                unmet.entry(tenant.clone()).or_default().push(text.clone());
            }
        }
        let mut narrowed: BTreeMap<_, usize> = BTreeMap::new();
        for thread in self.state.threads.values() {
            if let (Some(tenant), Some((has, wanted))) = (&thread.tenant, &thread.narrowed)
                && thread.planned == self.period
                && !thread.gone
            {
                *narrowed.entry((tenant, has, wanted)).or_default() += 1;
            }
        }
        for ((tenant, has, wanted), threads) in narrowed {
            unmet.entry(tenant.clone()).or_default().push(format!(
                "{threads} of its threads can have CPUs {has} only, not {wanted} as planned: the cpuset of their cgroup is smaller, or CPUs are offline"
            ));
        }
        unmet
    }

    /// Forgets, in memory and in the journal, what no longer matters.
    fn compact(&mut self) {
        let now = self.period;
        if self.journal.wants_compaction() {
            self.forget_gone();
            if let Err(error) = self.journal.rewrite(&self.state.records()) {
                tracing::warn!(%error, "the journal could not be made shorter; it still is complete");
            }
        }
        if now % COMPACT_PERIODS == 0 {
            self.notes_given
                .forget_threads(now.saturating_sub(COMPACT_PERIODS));
            self.unreadable.clear();
            for (id, thread) in &mut self.state.threads {
                // Only threads that could not be given back are neither planned nor gone.
                thread.gone |= thread.planned != now && thread::stat(id.tid).is_err();
            }
        }
        if now % GONE_PERIODS == 0 {
            self.forget_gone();
        }
    }

    fn forget_gone(&mut self) {
        let now = self.period;
        self.state
            .threads
            .retain(|_, t| !t.gone || t.planned + GONE_PERIODS > now);
    }
}

/// Notes that a cgroup's weight does not hold, which stays so until further notice.
fn does_not_hold(path: &CgroupPath, cgroup: &mut Cgroup, text: String, report: &mut ApplyReport) {
    let (tenant, subject) = (cgroup.tenant.clone(), Subject::Cgroup(path.clone()));
    cgroup.unmet = Some(format!("cgroup {path}: {text}"));
    report.notes.push(Note {
        tenant,
        subject,
        text,
    });
}

fn idles(path: &CgroupPath, cgroup: &mut Cgroup, report: &mut ApplyReport) {
    cgroup.idle = true;
    let text =
        "its weight cannot be set as long as it is idle (cpu.idle = 1); it is when that ends";
    does_not_hold(path, cgroup, text.to_string(), report);
}

/// Notes that another program changed a cgroup's weight, which from now on is left to that program.
fn taken_over(path: &CgroupPath, cgroup: &mut Cgroup, now: u64, report: &mut ApplyReport) {
    cgroup.setting.hands_off = Some(HandsOff::Foreign);
    let text = format!(
        "weight left at {now} from now on: someone else changed it since Quell left it at {}",
        cgroup.setting.last
    );
    does_not_hold(path, cgroup, text, report);
}

impl Change {
    /// The value that a setting is about to get, if any.
    fn to(&self, attr: Attr) -> Option<Value> {
        match attr {
            Attr::Nice => self.nice.map(Value::Nice),
            Attr::Slice => self.slice.map(Value::Slice),
            Attr::Cpus => self.cpus.clone().map(Value::Cpus),
        }
    }

    fn cancel(&mut self, attr: Attr) {
        match attr {
            Attr::Nice => self.nice = None,
            Attr::Slice => self.slice = None,
            Attr::Cpus => self.cpus = None,
        }
    }
}

/// The slice in ns that asks for a rescheduling latency. Never longer than the kernel's own: a slice
/// is also how long a thread may run on while others wait, up to all of it before Linux 6.17
/// (RUN_TO_PARITY), so a longer slice would delay the neighbours of a thread that can wait.
fn slice_for(latency_ns: u64, default_ns: u64) -> u64 {
    latency_ns.clamp(SLICE_MIN_NS, SLICE_MAX_NS).min(default_ns)
}

/// Reads a setting that Quell has not managed so far; `None` if it is not a setting of an ordinary thread.
fn read(host: &state::Host, id: ThreadId, attr: Attr) -> io::Result<Option<Setting>> {
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

/// Writes nice and slice as far as the change contains them.
fn set(id: ThreadId, change: &Change, present_nice: i32) -> io::Result<()> {
    match (change.nice, change.slice) {
        (nice, Some(slice)) => thread::set_sched(id.tid, nice.unwrap_or(present_nice), slice),
        (Some(nice), None) => sched::set_nice(id.tid, nice),
        (None, None) => Ok(()),
    }
}

fn gone(id: ThreadId, thread: &mut Thread, report: &mut ApplyReport, after: &mut Vec<Record>) {
    thread.gone = true;
    report.gone += 1;
    after.push(Record::DropThread(id));
}

/// Checks whether a thread has the CPUs that it was given, `want`, and keeps the CPUs that it has and `want`
/// in `narrowed` if they differ.
///
/// # Errors
/// Returns the CPUs that another program gave to the thread since.
fn cpus_hold(
    host: &state::Host,
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

/// Leaves a setting alone from now on, since another program has changed it to `now`, and says so.
fn leave_to_owner(
    tenant: Option<&TenantName>,
    id: ThreadId,
    setting: &mut Setting,
    now: &Value,
    report: &mut ApplyReport,
) {
    report.notes.push(foreign(tenant, id, setting, now));
    report.left_alone += 1;
    setting.hands_off = Some(HandsOff::Foreign);
}

/// The note that a setting is left alone because another program has changed it.
fn foreign(tenant: Option<&TenantName>, id: ThreadId, setting: &Setting, now: &Value) -> Note {
    let text = format!(
        "{} left at {now} from now on: someone else changed it since Quell left it at {}",
        now.name(),
        setting.last
    );
    Note {
        tenant: tenant.cloned(),
        subject: Subject::Thread(id),
        text,
    }
}

/// Leaves a setting alone that the kernel does not let Quell change. Noted once per tenant and kind.
fn refuse(
    notes_given: &mut NotesGiven,
    period: u64,
    id: ThreadId,
    thread: &mut Thread,
    attr: Attr,
    result: &io::Result<()>,
    report: &mut ApplyReport,
) {
    let (Some(tenant), Err(error)) = (thread.tenant.clone(), result) else {
        return;
    };
    let Some(setting) = thread.get_mut(attr) else {
        return;
    };
    setting.hands_off = Some(HandsOff::Refused);
    report.left_alone += 1;
    let name = setting.last.name();
    if notes_given.first(&tenant, None, name, period) {
        let text = format!(
            "{name} cannot be set: {error}{}; nor is it tried again",
            hint(error)
        );
        let (tenant, subject) = (Some(tenant), Subject::Thread(id));
        report.notes.push(Note {
            tenant,
            subject,
            text,
        });
    }
}
