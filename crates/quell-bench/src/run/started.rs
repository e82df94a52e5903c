//! A side while it is measured: the scheduler or the agent that makes it, as a child process.

use super::agent::AgentChild;
use super::scheduler::SchedulerChild;
use crate::result::Substrate;
use crate::side::Side;
use anyhow::{Context, ensure};
use quell_model::config::{AgentTenant, Backend, CriticalitySettings, Mechanism};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// What makes a side what it is; nothing for the kernel's default. Dropping ends it.
pub struct Started {
    label: String,
    scheduler: Option<SchedulerChild>,
    /// The agent, on sides that have one.
    pub agent: Option<AgentChild>,
    /// What it acted through when that was asked first.
    backend: Option<Backend>,
}

impl Started {
    /// Starts a side, for those tenants and with those settings where it has an agent, and waits until it is
    /// in charge; ends it with [`crate::workload::Interrupted`] when that is set. `exe` is the `quell`
    /// program; errors name `label`.
    pub fn start(
        side: &Side,
        label: &str,
        exe: &Path,
        tenants: impl FnOnce() -> Vec<AgentTenant>,
        criticality: CriticalitySettings,
        interrupt: &AtomicBool,
    ) -> anyhow::Result<Started> {
        let context = || format!("side `{label}`");
        Side::check(std::slice::from_ref(side), Substrate::Host)?;
        let scheduler = match side {
            Side::Scheduler(scheduler) => {
                let mut command = scheduler.command.clone();
                if let Some(program) = command.first_mut().filter(|program| *program == "quell") {
                    *program = exe.display().to_string();
                }
                Some(SchedulerChild::start(&command, interrupt).with_context(context)?)
            }
            _ => None,
        };
        let agent = match side.agent() {
            Some(_) => {
                let mut tenants = tenants();
                let settings = side
                    .agent_for(tenants.iter().map(|it| &it.spec), criticality)
                    .context("the side has an agent")?;
                if !settings.agent.has(Mechanism::Criticality) {
                    tenants.iter_mut().for_each(promise_nothing);
                }
                Some(AgentChild::start(exe, settings, tenants, interrupt).with_context(context)?)
            }
            None => None,
        };
        Ok(Started {
            label: label.to_string(),
            scheduler,
            agent,
            backend: None,
        })
    }

    /// An error where it is not in charge any more: the scheduler, or what the agent acted through when this
    /// was asked first.
    pub fn in_charge(&mut self) -> anyhow::Result<()> {
        let asked = match (&self.agent, &mut self.scheduler) {
            (Some(agent), _) => agent.status().and_then(|now| {
                let first = *self.backend.get_or_insert(now.backend);
                let why = now.backend_reason.unwrap_or_default();
                ensure!(
                    first == now.backend,
                    "the agent does not act as before: {why}"
                );
                Ok(())
            }),
            (None, Some(scheduler)) => scheduler.in_charge(),
            (None, None) => Ok(()),
        };
        asked.with_context(|| format!("side `{}`", self.label))
    }

    /// Ends it; an error where it was not in charge any more.
    pub fn stop(self) -> anyhow::Result<()> {
        let stopped = match (self.agent, self.scheduler) {
            (Some(agent), _) => agent.stop(),
            (None, Some(scheduler)) => scheduler.stop(),
            (None, None) => Ok(()),
        };
        stopped.with_context(|| format!("side `{}`", self.label))
    }
}

/// What a tenant asks for is refused where no mechanism gives it.
fn promise_nothing(tenant: &mut AgentTenant) {
    let spec = &mut tenant.spec;
    spec.criticality = None;
    spec.period_ms = None;
    spec.budget_ms = None;
    spec.pessimistic_budget_ms = None;
}
