//! The work of one period: from the plan to the few writes that make it hold.
//!
//! Phases: go through the plan and note what differs (no system calls for threads that are known);
//! give back the settings that the plan no longer mentions; journal what is about to be written; write.
//!
//! Threads are handled in `threads`, their settings in `nice_slice` and `affinity`, what is given back in
//! `give_back`, and cgroups in `cgroup_weight`.

mod affinity;
mod cgroup_weight;
mod give_back;
mod nice_slice;
mod period;
mod threads;

use super::actuator::Actuator;
use super::journal::{Record, Value};
use super::report::ApplyReport;
use super::state::{ATTRS, Attr};
use super::thread;
use period::{Change, Period};
use quell_model::{CgroupPath, Plan, Snapshot, TenantName, ThreadId};
use std::collections::BTreeMap;

/// Periods between checks of what may have become possible and of what can be forgotten.
const COMPACT_PERIODS: u64 = 1024;

/// Periods for which a thread that is gone is remembered, for its late children.
const GONE_PERIODS: u64 = 64;

impl Actuator {
    /// Makes the plan hold: writes what differs, after journaling what held before. It never fails as a
    /// whole: what could not be done is in the report, noted once and not in every period.
    pub fn apply(&mut self, snapshot: &Snapshot, plan: &Plan) -> ApplyReport {
        self.period += 1;
        let mut period = Period::default();
        self.check_one_weight(&mut period.report);
        let mut nth = 0;
        for (number, tenant) in plan.tenants.iter().enumerate() {
            let sample = snapshot.tenant_near(number, &tenant.name);
            self.plan_weight(sample, tenant, &mut period);
            if !tenant.threads.is_empty() {
                period.affinity_owner = self.guests.affinity_owner(&tenant.name);
            }
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
        self.compact(snapshot);
        period.report
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

    /// The tenants of whose plan something does not hold, and what and why: weights that are not written, and
    /// threads that have fewer CPUs than planned.
    pub fn unmet(&self) -> BTreeMap<TenantName, Vec<String>> {
        let mut unmet: BTreeMap<TenantName, Vec<String>> = BTreeMap::new();
        for cgroup in self.state.cgroups.values() {
            if cgroup.planned != self.period {
                continue;
            }
            if let (Some(tenant), Some(text)) = (&cgroup.tenant, &cgroup.unmet) {
                unmet.entry(tenant.clone()).or_default().push(text.clone());
            }
        }
        let mut narrowed: BTreeMap<_, usize> = BTreeMap::new();
        for thread in self.state.threads.values() {
            if thread.planned != self.period || thread.gone {
                continue;
            }
            if let (Some(tenant), Some((has, wanted))) = (&thread.tenant, &thread.narrowed) {
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
    fn compact(&mut self, snapshot: &Snapshot) {
        let now = self.period;
        if self.journal.wants_compaction() {
            self.forget_gone();
            if let Err(error) = self.journal.rewrite(&self.state.records()) {
                tracing::warn!(%error, "the journal could not be made shorter; it still is complete");
            }
        }
        if now % COMPACT_PERIODS == 0 {
            let there = |name: &TenantName| snapshot.tenant(name).is_some();
            self.notes_given
                .forget(now.saturating_sub(COMPACT_PERIODS), there);
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
