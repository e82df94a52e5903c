//! What the loop publishes and the API reads.
//!
//! Problem: API clients, however slow or many, must not delay the control loop, and the loop must not pay for
//! answers that no client asked for.
//! Approach: the loop moves each period's snapshot and plan in behind an `Arc` and adds to running
//! sums; an answer is put together only when asked for, from clones of those `Arc`s. The lock is
//! held for copies only, never for encoding or I/O.
//! Bounds: the last [`KEPT`] decisions, and the last [`KEPT_PER_TENANT`] of each tenant so that a
//! busy tenant does not push out a quiet one's.

use crate::fair_share::Accounts;
use crate::remarks;
use crate::usage;
use crate::window::{Sums, TenantSums, Totals};
use crate::wire::{
    Admission, CpuAdmission, Decision, Decisions, Explain, Matrix, MatrixPart, MatrixRow, Missing,
    PeriodCost, SnapshotAnswer, Status, TenantAdmission, TenantStatus, ThreadExplain, WaitsFor,
};
use quell_model::config::{Backend, CriticalitySettings, Mechanism};
use quell_model::{
    ApplyReport, Plan, Rule, Snapshot, Source, TenantName, TenantPlan, TenantSample,
};
use quell_policy::admission::Placed;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How many decisions are kept.
const KEPT: usize = 10_000;
/// How many decisions are kept of each tenant.
const KEPT_PER_TENANT: usize = 200;
/// How many notes are kept.
const KEPT_NOTES: usize = 100;

/// The number of tenants in the status that a tenant waited for.
const WAITS_FOR_MOST: usize = 3;

/// Facts that hold from one start or reload to the next.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The mechanisms in force.
    pub mechanisms: Vec<Mechanism>,
    /// How the agent acts: the way that is used, never [`Backend::Auto`].
    pub backend: Backend,
    /// The reason why the agent does not act through the scheduler, where the configuration allows it.
    pub backend_reason: Option<String>,
    /// The control period.
    pub period_ms: u64,
    /// The source of the figures.
    pub source: Source,
    /// The reason why the figures do not come from BPF.
    pub fallback_reason: Option<String>,
    /// The reason why nothing is changed on the host, if nothing is.
    pub not_acting_reason: Option<String>,
    /// Privileges and settings that this host or user does not allow.
    pub missing: Vec<Missing>,
    /// The settings of the admission test; `None`: nothing is promised.
    pub criticality: Option<CriticalitySettings>,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Periods completed.
    pub periods: u64,
    /// Deadlines missed.
    pub overruns: u64,
    /// Periods without a snapshot.
    pub observe_errors: u64,
    /// Reloads of the configuration.
    pub reloads: u64,
    /// Settings written.
    pub changes: u64,
}

/// The state that the loop writes and the API reads.
#[derive(Debug)]
pub struct SharedState {
    config: PathBuf,
    started: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    facts: Arc<Facts>,
    counts: Counts,
    /// The end of the first period: what starting took is no part of the agent's running cost.
    steady: usage::Mark,
    cost: PeriodCost,
    reload_error: Option<String>,
    last: Option<(Arc<Snapshot>, Arc<Plan>)>,
    totals: Totals,
    accounts: Accounts,
    decisions: VecDeque<Arc<Decision>>,
    by_tenant: BTreeMap<TenantName, VecDeque<Arc<Decision>>>,
    by_rule: BTreeMap<Rule, u64>,
    /// Broken promises of CPU time.
    broken: BTreeMap<TenantName, u64>,
    /// The reasons why weights do not hold.
    unmet: BTreeMap<TenantName, Vec<String>>,
    next_decision: u64,
    notes: VecDeque<String>,
}

impl SharedState {
    /// The state of an agent that began to observe at a time: before the scheduler was loaded, which may take
    /// seconds that the first window has.
    pub fn since(self, started: Instant) -> SharedState {
        SharedState { started, ..self }
    }

    /// A state in which no period has been published.
    pub fn new(config: PathBuf, facts: Facts) -> SharedState {
        let inner = Inner {
            facts: Arc::new(facts),
            counts: Counts::default(),
            steady: usage::Mark::now(),
            cost: PeriodCost::default(),
            reload_error: None,
            last: None,
            totals: Totals::default(),
            accounts: Accounts::default(),
            decisions: VecDeque::new(),
            by_tenant: BTreeMap::new(),
            by_rule: BTreeMap::new(),
            broken: BTreeMap::new(),
            unmet: BTreeMap::new(),
            next_decision: 0,
            notes: VecDeque::new(),
        };
        SharedState {
            config,
            started: Instant::now(),
            inner: Mutex::new(inner),
        }
    }

    /// Locks the state. A panic with the lock held leaves one period half counted at worst, so that poison is
    /// ignored.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a completed period. Returns the snapshot published before, unless a reader has it.
    pub fn publish(
        &self,
        snapshot: Snapshot,
        plan: Plan,
        report: Option<&ApplyReport>,
        cost: PeriodCost,
    ) -> Option<Snapshot> {
        let mut decisions = decisions_of(&snapshot, &plan);
        let last = (Arc::new(snapshot), Arc::new(plan));
        let mut inner = self.lock();
        let inner = &mut *inner;
        inner.counts.periods += 1;
        if inner.counts.periods == 1 {
            inner.steady = usage::Mark::now();
        }
        inner.cost = cost;
        inner.totals.add(&last.0);
        inner.accounts.add(&last.0);
        for decision in &mut decisions {
            decision.number = inner.next_decision;
            inner.next_decision += 1;
        }
        for decision in decisions {
            *inner.by_rule.entry(decision.rule).or_default() += 1;
            let decision = Arc::new(decision);
            let of_tenant = inner.by_tenant.entry(decision.tenant.clone()).or_default();
            if of_tenant.len() == KEPT_PER_TENANT {
                forget_one(of_tenant);
            }
            of_tenant.push_back(decision.clone());
            push_bounded(&mut inner.decisions, decision, KEPT);
        }
        // Tenants that a reload removed are dropped; they would otherwise stay for ever.
        if inner.by_tenant.len() > last.0.tenants.len() {
            inner
                .by_tenant
                .retain(|name, _| last.0.tenant(name).is_some());
        }
        if let Some(report) = report {
            inner.counts.changes += report.writes.total() + report.given_back;
            for line in report.lines() {
                push_bounded(&mut inner.notes, line, KEPT_NOTES);
            }
        }
        let (before, _) = inner.last.replace(last)?;
        Arc::into_inner(before)
    }

    /// Counts deadlines for which there was no period.
    pub fn count_overruns(&self, missed: u64) {
        self.lock().counts.overruns += missed;
    }

    /// Counts a period without a snapshot.
    pub fn count_observe_error(&self) {
        self.lock().counts.observe_errors += 1;
    }

    /// Keeps a note for the operator.
    pub fn note(&self, text: String) {
        push_bounded(&mut self.lock().notes, text, KEPT_NOTES);
    }

    /// Notes that the agent acts through another backend.
    pub fn acts_through(&self, backend: Backend) {
        Arc::make_mut(&mut self.lock().facts).backend = backend;
    }

    /// Sets the numbers of broken promises of CPU time so far, by tenant.
    pub fn broke(&self, broken: &BTreeMap<TenantName, u64>) {
        let mut inner = self.lock();
        if inner.broken != *broken {
            inner.broken.clone_from(broken);
        }
    }

    /// Sets the tenants of which a part of the plan does not hold, with that part and the reason.
    pub fn lacks(&self, unmet: BTreeMap<TenantName, Vec<String>>) {
        self.lock().unmet = unmet;
    }

    /// The last plan; `None` before the first.
    pub fn plan(&self) -> Option<Arc<Plan>> {
        self.lock().last.as_ref().map(|(_, plan)| plan.clone())
    }

    /// Counts a reload that took effect, and takes over its facts.
    pub fn reloaded(&self, facts: Facts) {
        let mut inner = self.lock();
        inner.facts = Arc::new(facts);
        inner.counts.reloads += 1;
        inner.reload_error = None;
    }

    /// Keeps the reason why a reload was refused.
    pub fn reload_refused(&self, error: String) {
        self.lock().reload_error = Some(error);
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// The number of decisions of each rule.
    pub fn decisions_by_rule(&self) -> BTreeMap<Rule, u64> {
        self.lock().by_rule.clone()
    }

    /// Sums since the start.
    pub fn total(&self) -> Arc<Sums> {
        self.lock().totals.total()
    }

    /// `GET /v1/status`, the tenants' figures over the last `window_s` seconds.
    pub fn status(&self, window_s: u32) -> Status {
        let (facts, counts, steady, cost, reload_error, last, window, broken, unmet, notes) = {
            let inner = self.lock();
            (
                inner.facts.clone(),
                inner.counts,
                inner.steady,
                inner.cost,
                inner.reload_error.clone(),
                inner.last.clone(),
                inner.totals.window(u64::from(window_s) * 1_000_000_000),
                inner.broken.clone(),
                inner.unmet.clone(),
                inner.notes.iter().cloned().collect(),
            )
        };
        let window = window.sums();
        let caused = window.caused_ns();
        let tenants = last.iter().flat_map(|(snapshot, plan)| {
            let cpus = snapshot.host.cpus.len();
            let status = |tenant: &TenantSample| {
                let broken = broken.get(&tenant.name).copied().unwrap_or(0);
                let mut status = tenant_status(tenant, plan, &window, cpus, broken);
                if status.waits_for.is_some() {
                    let ns = caused.get(&tenant.name).copied().unwrap_or(0);
                    status.caused_percent = Some(window.percent(ns));
                }
                let unmet = unmet.get(&tenant.name);
                status.remarks.extend(unmet.into_iter().flatten().cloned());
                status
            };
            snapshot.tenants.iter().map(status).collect::<Vec<_>>()
        });
        let pools = last.as_ref().and_then(|(_, plan)| plan.pools.clone());
        let effects = last.as_ref().map(|(_, plan)| plan.effects.clone());
        let uptime = self.started.elapsed();
        Status {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            config: self.config.clone(),
            uptime_s: uptime.as_secs_f64(),
            mechanisms: facts.mechanisms.clone(),
            backend: facts.backend,
            backend_reason: facts.backend_reason.clone(),
            source: facts.source,
            fallback_reason: facts.fallback_reason.clone(),
            acting: facts.not_acting_reason.is_none(),
            not_acting_reason: facts.not_acting_reason.clone(),
            missing: facts.missing.clone(),
            period_ms: facts.period_ms,
            periods: counts.periods,
            overruns: counts.overruns,
            observe_errors: counts.observe_errors,
            reloads: counts.reloads,
            reload_error,
            changes: counts.changes,
            last_period: cost,
            agent: usage::of_this_process(steady),
            notes,
            pools,
            effects: effects.unwrap_or_default(),
            window_s: window.length_ns as f64 / 1e9,
            tenants: tenants.collect(),
        }
    }

    /// `GET /v1/matrix`.
    pub fn matrix(&self, window_s: u32) -> Matrix {
        let inner = self.lock();
        let window = inner.totals.window(u64::from(window_s) * 1_000_000_000);
        let total = inner.totals.total();
        let source = inner.facts.source;
        drop(inner);
        Matrix {
            source,
            window: matrix_part(window.sums()),
            total: matrix_part(Arc::unwrap_or_clone(total)),
        }
    }

    /// `GET /v1/explain/TENANT`.
    ///
    /// # Errors
    /// Where there is no such tenant, or no period yet: the names of the tenants there are.
    pub fn explain(&self, name: &TenantName) -> Result<Explain, Vec<TenantName>> {
        let (last, decisions, window, unmet) = {
            let inner = self.lock();
            let decisions = inner
                .by_tenant
                .get(name)
                .map(|d| d.iter().cloned().collect());
            let window = inner.accounts.last();
            let unmet = inner.unmet.get(name).cloned();
            (
                inner.last.clone(),
                decisions.unwrap_or_default(),
                window,
                unmet,
            )
        };
        let Some((snapshot, plan)) = last else {
            return Err(Vec::new());
        };
        let Some(tenant) = snapshot.tenant(name) else {
            return Err(snapshot.tenants.iter().map(|t| t.name.clone()).collect());
        };
        let planned = find_plan(&plan, name);
        let threads = tenant.threads.iter().map(|thread| {
            let planned = planned.and_then(|tenant| {
                let at = tenant.threads.binary_search_by(|t| t.id.cmp(&thread.id));
                at.ok().map(|at| &tenant.threads[at])
            });
            ThreadExplain {
                tid: thread.id.tid,
                name: thread.name.clone(),
                role: thread.role,
                state: thread.state,
                run_ns: thread.run_ns,
                ready_ns: thread.ready.as_ref().map(|ready| ready.sum_ns),
                throttled_ns: thread.throttled_ns,
                nice: thread.settings.nice.get(),
                slice_ns: thread.settings.slice_ns,
                cpus: thread.settings.affinity.clone(),
                planned_weight: planned.and_then(|p| p.weight),
                planned_latency_ns: planned.and_then(|p| p.latency_ns),
                planned_cpus: planned.and_then(|p| p.cpus.clone()),
                planned_server: planned.and_then(|p| p.server),
            }
        });
        Ok(Explain {
            tenant: name.clone(),
            seq: snapshot.seq,
            time_ns: snapshot.time_ns,
            period_ns: snapshot.period_ns,
            remarks: remarks::of(tenant)
                .into_iter()
                .chain(unmet.into_iter().flatten())
                .collect(),
            weight: tenant.spec.weight,
            cgroup: tenant.cgroup.clone(),
            threads: threads.collect(),
            share: window.and_then(|window| window.share(name)),
            promise: planned.and_then(|plan| plan.promise.clone()),
            group: planned.and_then(|plan| plan.group.clone()),
            online: tenant.guest.map(|it| it.online),
            effects: plan.effects.clone(),
            decisions,
        })
    }

    /// `GET /v1/admission`; `None`: nothing is promised, or no period is complete yet.
    pub fn admission(&self) -> Option<Admission> {
        let (last, facts) = {
            let inner = self.lock();
            (inner.last.clone(), inner.facts.clone())
        };
        let (settings, (snapshot, plan)) = (facts.criticality?, last?);
        let online = snapshot.host.topology.online();
        let mut cpus: Vec<CpuAdmission> = online
            .iter()
            .map(|cpu| CpuAdmission {
                cpu,
                servers: Vec::new(),
            })
            .collect();
        let mut tenants = Vec::new();
        for planned in &plan.tenants {
            let Some(promise) = &planned.promise else {
                continue;
            };
            tenants.push(TenantAdmission {
                tenant: planned.name.clone(),
                promise: promise.clone(),
            });
        }
        for given in &plan.reservations {
            if let Ok(at) = cpus.binary_search_by_key(&given.cpu, |it| it.cpu) {
                cpus[at].servers.push(Placed {
                    tenant: given.tenant.clone(),
                    vcpu: given.vcpu,
                    server: given.room,
                });
            }
        }
        Some(Admission {
            settings,
            cpus,
            tenants,
        })
    }

    /// `GET /v1/decisions`: at most `limit` from number `since` on.
    pub fn decisions(&self, since: u64, limit: usize) -> Decisions {
        let inner = self.lock();
        let first = inner.next_decision - inner.decisions.len() as u64;
        let from = since.clamp(first, inner.next_decision);
        let decisions: Vec<_> = inner
            .decisions
            .iter()
            .skip((from - first) as usize)
            .take(limit)
            .cloned()
            .collect();
        Decisions {
            next: from + decisions.len() as u64,
            lost: first.saturating_sub(since),
            decisions,
        }
    }

    /// `GET /v1/snapshot`; `None` before the first period.
    pub fn snapshot(&self) -> Option<SnapshotAnswer> {
        let (snapshot, plan) = self.lock().last.clone()?;
        Some(SnapshotAnswer { snapshot, plan })
    }
}

/// Drops the oldest decision of a tenant that says least. A thread that inherited its settings is adopted,
/// and short-lived threads are adopted all the time: they would push out every decision with evidence.
fn forget_one(decisions: &mut VecDeque<Arc<Decision>>) {
    let adopted = decisions.iter().position(|it| it.rule == Rule::Adopted);
    decisions.remove(adopted.unwrap_or(0));
}

fn push_bounded<T>(ring: &mut VecDeque<T>, item: T, bound: usize) {
    if ring.len() == bound {
        ring.pop_front();
    }
    ring.push_back(item);
}

fn find_plan<'a>(plan: &'a Plan, name: &TenantName) -> Option<&'a TenantPlan> {
    plan.tenants
        .binary_search_by(|t| t.name.cmp(name))
        .ok()
        .map(|at| &plan.tenants[at])
}

/// The plan's reasons as decisions, not yet numbered.
fn decisions_of(snapshot: &Snapshot, plan: &Plan) -> Vec<Decision> {
    let mut decisions = Vec::new();
    for (number, tenant) in plan.tenants.iter().enumerate() {
        for thread in tenant
            .threads
            .iter()
            .filter(|thread| !thread.reasons.is_empty())
        {
            let sample = snapshot.tenant_near(number, &tenant.name);
            let seen = sample.and_then(|sample| sample.thread(thread.id));
            let name = seen.map_or_else(|| "".into(), |it| it.name.clone());
            decisions.extend(thread.reasons.iter().map(|reason| Decision {
                number: 0,
                seq: plan.seq,
                time_ns: snapshot.time_ns,
                tenant: tenant.name.clone(),
                thread: thread.id,
                name: name.clone(),
                rule: reason.rule,
                text: reason.text.clone(),
                weight: thread.weight,
                latency_ns: thread.latency_ns,
                cpus: thread.cpus.clone(),
            }));
        }
    }
    decisions
}

fn tenant_status(
    tenant: &TenantSample,
    plan: &Plan,
    window: &Sums,
    cpus: usize,
    broken_promises: u64,
) -> TenantStatus {
    let plan = find_plan(plan, &tenant.name);
    let planned = plan.map_or(&[][..], |plan| &plan.threads);
    let sums = window.tenant(&tenant.name);
    let percent = |ns: u64| window.percent(ns);
    let waits_for = sums.and_then(|it| it.waits.as_ref()).map(|waits| {
        let mut longest: Vec<&(TenantName, u64)> = waits.tenants.iter().collect();
        longest.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let longest = longest.into_iter().take(WAITS_FOR_MOST);
        let one = longest.map(|(tenant, ns)| WaitsFor {
            tenant: tenant.clone(),
            percent: percent(*ns),
        });
        one.collect()
    });
    let run_percent = percent(sums.map_or(0, |s| s.run_ns));
    let latencies = || planned.iter().filter_map(|t| t.latency_ns);
    TenantStatus {
        name: tenant.name.clone(),
        class: tenant.spec.class,
        kind: tenant.spec.kind,
        weight: tenant.spec.weight(),
        labels: tenant.labels.clone(),
        cgroup: tenant.cgroup.clone(),
        threads: tenant.threads.len() as u64,
        managed: planned.iter().filter(|it| it.changes()).count() as u64,
        run_percent,
        cpu_share_percent: run_percent / cpus.max(1) as f64,
        ready_percent: sums.and_then(|s| s.ready_ns).map(percent),
        waits_for,
        caused_percent: None,
        throttled_percent: sums.and_then(|s| s.throttled_ns).map(percent),
        remarks: remarks::of(tenant),
        wait_p50_us: sums.and_then(|s| s.wait_quantile_us(0.5)),
        wait_p99_us: sums.and_then(|s| s.wait_quantile_us(0.99)),
        latency_min_us: latencies().min().map(|ns| ns / 1000),
        latency_max_us: latencies().max().map(|ns| ns / 1000),
        promise: plan.and_then(|plan| plan.promise.clone()),
        broken_promises,
        group: plan.and_then(|plan| plan.group.clone()),
        online: tenant.guest.map(|it| it.online),
    }
}

fn matrix_part(sums: Sums) -> MatrixPart {
    let row = |tenant: Arc<TenantSums>| {
        let tenant = Arc::unwrap_or_clone(tenant);
        MatrixRow {
            tenant: tenant.name,
            waits: tenant.waits,
            occasions_ns: tenant.occasions,
        }
    };
    MatrixPart {
        length_ns: sums.length_ns,
        rows: sums.tenants.into_iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{facts, plan_with_reasons, snapshot, waits};
    use quell_model::config::{Criticality, TenantSpec};
    use quell_model::{Promise, Reservation};

    fn state() -> SharedState {
        SharedState::new("quell.toml".into(), facts())
    }

    fn publish(state: &SharedState, seq: u64, tenants: &[(&str, u32)], reasons: usize) {
        let snapshot = snapshot(seq, tenants);
        let plan = plan_with_reasons(&snapshot, reasons);
        state.publish(snapshot, plan, None, PeriodCost::default());
    }

    #[test]
    fn decisions_are_numbered_and_paged_and_what_is_lost_is_said() {
        let state = state();
        let periods = KEPT as u64 / 10 + 5;
        for seq in 0..periods {
            publish(&state, seq, &[("a", 10)], 1);
        }
        let page = state.decisions(0, 100);
        assert_eq!((page.lost, page.decisions.len(), page.next), (50, 100, 150));
        assert_eq!(page.decisions[0].number, 50);
        let rest = state.decisions(page.next, usize::MAX);
        assert_eq!((rest.lost, rest.next), (0, periods * 10));
        assert_eq!(
            state.decisions(rest.next, 10),
            Decisions {
                next: rest.next,
                ..Default::default()
            }
        );
        assert_eq!(state.decisions(u64::MAX, 10).decisions.len(), 0);
    }

    #[test]
    fn a_busy_tenant_does_not_push_out_a_quiet_ones_decisions() {
        let state = state();
        publish(&state, 0, &[("busy", 1), ("quiet", 1)], 1);
        for seq in 1..=KEPT as u64 {
            let now = snapshot(seq, &[("busy", 1), ("quiet", 1)]);
            let mut plan = plan_with_reasons(&now, 1);
            plan.tenants[1].threads[0].reasons.clear();
            state.publish(now, plan, None, PeriodCost::default());
        }
        assert_eq!(state.explain(&"quiet".into()).unwrap().decisions.len(), 1);
        assert_eq!(
            state.explain(&"busy".into()).unwrap().decisions.len(),
            KEPT_PER_TENANT
        );
    }

    #[test]
    fn short_lived_threads_do_not_push_out_the_decisions_with_evidence() {
        let state = state();
        let rules = [Rule::GaveWeight, Rule::Adopted, Rule::GaveWeight];
        let periods = rules.into_iter().chain([Rule::Adopted; KEPT_PER_TENANT]);
        for (seq, rule) in periods.enumerate() {
            let now = snapshot(seq as u64, &[("a", 1)]);
            let mut plan = plan_with_reasons(&now, 1);
            plan.tenants[0].threads[0].reasons[0].rule = rule;
            state.publish(now, plan, None, PeriodCost::default());
        }
        let kept = state.explain(&"a".into()).unwrap().decisions;
        assert_eq!(kept.len(), KEPT_PER_TENANT);
        let explained: Vec<u64> = kept
            .iter()
            .filter(|it| it.rule == Rule::GaveWeight)
            .map(|it| it.seq)
            .collect();
        assert_eq!(explained, [0, 2]);
        assert_eq!(kept.last().unwrap().seq, KEPT_PER_TENANT as u64 + 2);
    }

    #[test]
    fn explain_of_an_unknown_tenant_names_those_there_are() {
        let state = state();
        assert_eq!(state.explain(&"a".into()).unwrap_err(), []);
        publish(&state, 0, &[("a", 1), ("b", 0)], 0);
        assert_eq!(
            state.explain(&"x".into()).unwrap_err(),
            ["a".into(), "b".into()]
        );
        assert_eq!(state.explain(&"b".into()).unwrap().threads, []);
    }

    #[test]
    fn what_is_promised_is_told_by_cpu() {
        let state = state();
        publish(&state, 0, &[("a", 1)], 0);
        assert!(state.admission().is_none(), "nothing is promised");
        let facts = Facts {
            criticality: Some(CriticalitySettings::default()),
            ..facts()
        };
        let state = SharedState::new("quell.toml".into(), facts);
        assert!(state.admission().is_none(), "nothing was seen yet");
        let mut now = snapshot(0, &[("a", 1), ("b", 1)]);
        let spec = |name: &str| TenantSpec {
            criticality: Some(Criticality::Low),
            period_ms: Some(100.0),
            budget_ms: Some(10.0),
            ..TenantSpec::named(name)
        };
        for (sample, name) in now.tenants.iter_mut().zip(["a", "b"]) {
            sample.spec = Arc::new(spec(name));
        }
        let mut plan = plan_with_reasons(&now, 0);
        let cpus = now.host.topology.online();
        let last = cpus.iter().last().unwrap();
        plan.tenants[0].promise = Some(Promise::Kept {
            cpus: vec![last],
            unchanged: None,
        });
        let server = spec("a").server().unwrap();
        plan.reservations.push(Reservation {
            tenant: "a".into(),
            vcpu: 0,
            cpu: last,
            number: 1,
            server,
            room: server,
            next: None,
            from_ns: 0,
            leaves_ns: None,
            patience: 5,
            emulators: false,
            allowed: None,
            reason: None,
        });
        let why = "full".to_string();
        plan.tenants[1].promise = Some(Promise::Refused { why });
        state.publish(now, plan, None, PeriodCost::default());
        let admission = state.admission().unwrap();
        assert_eq!(admission.cpus.len(), cpus.len());
        let on = &admission.cpus.last().unwrap().servers;
        assert_eq!((on[0].tenant.as_str(), on[0].vcpu), ("a", 0));
        assert_eq!(on[0].server.budget_ns, 10_000_000);
        assert_eq!(admission.tenants.len(), 2);
        state.broke(&BTreeMap::from([("a".into(), 3)]));
        let tenants = state.status(10).tenants;
        assert!(tenants[1].promise.is_some());
        assert_eq!(
            (tenants[0].broken_promises, tenants[1].broken_promises),
            (3, 0)
        );
        assert!(state.explain(&"b".into()).unwrap().promise.is_some());
    }

    #[test]
    fn tenants_that_a_reload_removed_are_forgotten() {
        let state = state();
        publish(&state, 0, &[("a", 1), ("b", 1)], 1);
        publish(&state, 1, &[("b", 1)], 0);
        assert!(state.explain(&"a".into()).is_err());
        assert_eq!(state.lock().by_tenant.len(), 1);
    }

    #[test]
    fn status_and_matrix_show_what_was_published() {
        let state = state();
        let mut now = snapshot(0, &[("a", 2), ("b", 1)]);
        now.tenants[0].waits = Some(waits(5, &[("b", 7)]));
        let plan = plan_with_reasons(&now, 0);
        state.publish(now, plan, None, PeriodCost::default());
        let status = state.status(10);
        assert_eq!(status.periods, 1);
        let names: Vec<_> = status.tenants.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        // Two threads that ran a quarter of the period each, on two CPUs.
        assert!(
            (status.tenants[0].run_percent - 50.0).abs() < 0.1,
            "{status:?}"
        );
        assert!(
            (status.tenants[0].cpu_share_percent - 25.0).abs() < 0.1,
            "{status:?}"
        );
        assert!(status.agent.rss_bytes > 0);
        let matrix = state.matrix(10);
        assert_eq!(matrix.window, matrix.total);
        assert_eq!(matrix.total.rows[0].waits, Some(waits(5, &[("b", 7)])));
    }
}
