//! A side while it is measured: the scheduler or the agent that makes the side, as a child process.

use super::agent::AgentChild;
use super::scheduler::SchedulerChild;
use crate::result::Substrate;
use crate::side::Side;
use anyhow::{Context, ensure};
use quell_model::config::{AgentTenant, Backend, CriticalitySettings, Mechanism};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// The child process that makes a side; none for the kernel's default. Dropping ends it.
pub struct Started {
    label: String,
    scheduler: Option<SchedulerChild>,
    /// The agent, on sides that have one.
    pub agent: Option<AgentChild>,
    /// How the agent acted when that was asked first.
    backend: Option<Backend>,
}

impl Started {
    /// Starts a side and waits until it is in charge. An agent gets these tenants and settings. `exe` is the
    /// `quell` program; errors name `label`.
    ///
    /// # Errors
    /// [`crate::workload::Interrupted`]; and where the side does not run on a host, or its scheduler or agent
    /// does not start.
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

    /// Checks that the side is still in charge.
    ///
    /// # Errors
    /// Where its scheduler ended or was ejected by the kernel, or its agent does not answer or acts in
    /// another way than when this was asked first.
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

    /// Ends the side.
    ///
    /// # Errors
    /// Where the scheduler was no longer in charge, or the scheduler or the agent does not end in order.
    pub fn stop(self) -> anyhow::Result<()> {
        let stopped = match (self.agent, self.scheduler) {
            (Some(agent), _) => agent.stop(),
            (None, Some(scheduler)) => scheduler.stop(),
            (None, None) => Ok(()),
        };
        stopped.with_context(|| format!("side `{}`", self.label))
    }
}

/// Withdraws what a tenant asks for: agents refuse that where no mechanism gives it.
fn promise_nothing(tenant: &mut AgentTenant) {
    let spec = &mut tenant.spec;
    spec.criticality = None;
    spec.period_ms = None;
    spec.budget_ms = None;
    spec.pessimistic_budget_ms = None;
}
