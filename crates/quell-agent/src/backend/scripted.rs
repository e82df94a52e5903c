//! A scheduler that follows a script, and stock interfaces that only log what they are told.

use super::{Loaded, Loader};
use crate::io::Stock;
use quell_control::{Act, SchedulerCalls};
use quell_linux::observe::TracePoints;
use quell_model::config::Backend;
use quell_model::{ApplyReport, Plan, RestoreReport, Snapshot, TenantName, TenantWeight, ThreadId};
use quell_sched::{Exit, Options, SchedError, ServerSetting, ServerStats, ThreadSetting};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What was done, in order.
pub(crate) type Log = Rc<RefCell<Vec<String>>>;

pub(crate) fn log(log: &Log, text: String) {
    log.borrow_mut().push(text);
}

pub(crate) struct Recorder(pub(crate) Log);

impl Act for Recorder {
    fn backend(&self) -> Backend {
        Backend::Stock
    }

    fn apply(&mut self, _: &Snapshot, plan: &Plan) -> ApplyReport {
        let threads: usize = plan.tenants.iter().map(|t| t.threads.len()).sum();
        let weights = plan.tenants.iter().filter(|t| t.weight.is_some()).count();
        log(
            &self.0,
            format!("stock: {weights} tenants' weights, {threads} threads"),
        );
        ApplyReport::default()
    }
}

impl Stock for Recorder {
    fn unmet(&self) -> BTreeMap<TenantName, Vec<String>> {
        BTreeMap::new()
    }

    fn hand_over(&mut self, bound: &BTreeSet<ThreadId>) -> RestoreReport {
        let bound: Vec<String> = bound.iter().map(|id| id.tid.to_string()).collect();
        log(
            &self.0,
            format!("stock: hand over, bound {}", bound.join(" ")),
        );
        RestoreReport::default()
    }

    fn restore(&mut self) -> RestoreReport {
        log(&self.0, "stock: restore".into());
        RestoreReport::default()
    }
}

/// How the loaded scheduler ended, for the test to set.
pub(crate) type Ending = Rc<RefCell<Option<Exit>>>;

/// How many periods its server 3 missed.
pub(crate) type Missed = Rc<RefCell<u64>>;

pub(crate) struct Script {
    pub(crate) log: Log,
    pub(crate) ending: Ending,
    pub(crate) missed: Missed,
    /// The number of loads that fail before one succeeds.
    pub(crate) failures: Rc<RefCell<u32>>,
}

pub(crate) struct Scripted {
    log: Log,
    ending: Ending,
    missed: Missed,
}

impl Loader for Script {
    fn load(
        &mut self,
        options: &Options,
        _: Option<&TracePoints>,
    ) -> Result<Box<dyn Loaded>, SchedError> {
        let mut failures = self.failures.borrow_mut();
        if *failures > 0 {
            *failures -= 1;
            log(&self.log, "load fails".into());
            return Err(SchedError::Occupied("other".into()));
        }
        log(&self.log, format!("load, causal {}", options.causal));
        *self.ending.borrow_mut() = None;
        Ok(Box::new(Scripted {
            log: self.log.clone(),
            ending: self.ending.clone(),
            missed: self.missed.clone(),
        }))
    }
}

impl SchedulerCalls for Scripted {
    fn set_thread(&mut self, thread: ThreadId, s: ThreadSetting) -> Result<(), SchedError> {
        let tid = thread.tid;
        if tid.0 == 999 {
            return Err(SchedError::NoThread(tid));
        }
        let (weight, latency) = (s.weight, s.latency_ns);
        let server = match s.server {
            0 => String::new(),
            number => format!(", server {number}"),
        };
        log(
            &self.log,
            format!("{tid}: {} {weight:?} {latency:?}{server}", s.tenant),
        );
        Ok(())
    }

    fn set_tenant(&mut self, tenant: u32, weight: Option<TenantWeight>) -> Result<(), SchedError> {
        let weight = weight.map(|weight| weight.0);
        log(&self.log, format!("tenant {tenant}: {weight:?}"));
        Ok(())
    }

    fn set_server(&mut self, setting: ServerSetting) -> Result<(), SchedError> {
        let terms = setting.terms.map(|terms| {
            let ms = |ns: u64| ns / 1_000_000;
            let server = terms.server;
            (
                ms(server.budget_ns),
                ms(server.period_ns),
                ms(terms.virtual_deadline_ns),
            )
        });
        let (number, cpu) = (setting.number, setting.cpu);
        log(&self.log, format!("server {number} on {cpu}: {terms:?}"));
        Ok(())
    }
}

impl Loaded for Scripted {
    fn servers(&self) -> Result<Vec<ServerStats>, SchedError> {
        let stats = |number| ServerStats {
            used_ns: 0,
            missed: if number == 3 {
                *self.missed.borrow()
            } else {
                0
            },
        };
        Ok((0..8).map(stats).collect())
    }

    fn exited(&self) -> Result<Option<Exit>, SchedError> {
        Ok(self.ending.borrow().clone())
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        log(&self.log, "unload".into());
    }
}
