//! `quell run`, `quell restore`, `quell check`.

use super::InputError;
use crate::cli::{Check, Restore, Run, Source};
use crate::{log, table};
use anyhow::{Context, anyhow, bail};
use quell_agent::AgentOptions;
use quell_linux::act::{self, ActError};
use quell_linux::observe::{self, Preference, Survey};
use quell_model::shown;
use std::io::Write;
use std::path::Path;

/// Runs the agent until a signal ends it.
///
/// # Errors
/// Where the agent cannot start, or fails later.
pub fn run(run: &Run) -> anyhow::Result<()> {
    log::init(run.log_level, run.log_format);
    // Each guest is asked on a thread of its own, once a second: with a heap for each thread, as the GNU C
    // library has it by default, fifty guests take 3 MiB on a host of many CPUs.
    quell_sys::memory::use_one_heap();
    let options = AgentOptions {
        config: run.config.clone(),
        socket: run.socket.socket.clone(),
        journal: run.journal.clone(),
        dry_run: run.dry_run,
        source: match run.source {
            Source::Auto => Preference::Auto,
            Source::Bpf => Preference::Bpf,
            Source::Procfs => Preference::Procfs,
        },
    };
    // The agent's log says already what was put back.
    quell_agent::run(&options)?;
    Ok(())
}

/// Puts back what a killed agent had changed.
pub fn restore(restore: &Restore) -> anyhow::Result<()> {
    let path = restore.journal.display();
    if matches!(restore.journal.try_exists(), Ok(false)) {
        let text = format!("no journal at {path}: nothing to put back");
        // A missing journal at the default place is the good case; another name is likely wrong.
        if restore.journal != Path::new(quell_agent::DEFAULT_JOURNAL) {
            return Err(
                InputError(format!("{text}; name the agent's journal with `--journal`")).into(),
            );
        }
        writeln!(std::io::stdout(), "{text}")?;
        return Ok(());
    }
    let report = act::restore(&restore.journal).map_err(|e| match &e {
        ActError::NotAJournal { .. } => {
            InputError(format!("{e}; name the agent's journal with `--journal`")).into()
        }
        ActError::Locked { .. } => {
            anyhow!("{e} (an agent that is stopped puts all back by itself)")
        }
        ActError::Journal { .. } | ActError::Kernel { .. } => {
            anyhow!("{e}; run this as the agent's user (root), with the agent's `--journal`")
        }
    })?;
    writeln!(std::io::stdout(), "{report}")?;
    if !report.is_complete() {
        bail!("not everything could be put back; the notes above say what and why");
    }
    Ok(())
}

/// Prints whether a configuration is right, its main settings, and the privileges that it lacks.
///
/// # Errors
/// Where the configuration cannot be read or is wrong, or stdout cannot be written.
pub fn check(check: &Check) -> anyhow::Result<()> {
    let file = quell_agent::load(&check.config)?;
    let mechanisms =
        serde_json::to_value(&file.agent.mechanisms).context("the mechanisms' names")?;
    let mut out = std::io::stdout().lock();
    let path = check.config.display();
    let (tables, rules) = (file.tenants.len(), file.rules.len());
    match quell_agent::is_absent(&check.config) {
        false => writeln!(
            out,
            "{path}: ok: {tables} tenants, {rules} rules, policy {mechanisms}, period {} ms",
            file.agent.period_ms
        ),
        true => writeln!(
            out,
            "no configuration at {path}: `quell run` would only observe, and each virtual machine, pod, container \
             and unit would be a tenant"
        ),
    }?;
    for missing in quell_agent::missing_privileges(&file) {
        writeln!(out, "{} is missing: {}", missing.what, missing.remedy)?;
    }
    writeln!(
        out,
        "\n{}",
        found(&observe::survey(&file.tenants, &file.rules)?)
    )?;
    Ok(())
}

/// How many processes of no tenant are named.
const REST_MOST: usize = 8;

/// What a configuration finds now, for a terminal.
fn found(survey: &Survey) -> String {
    let mut table = table::new(["TENANT NOW", "PROCESSES", "FOUND AS"], 1);
    if let Some(column) = table.column_mut(2) {
        column.set_cell_alignment(comfy_table::CellAlignment::Left);
    }
    for tenant in &survey.tenants {
        let labels = tenant.labels.iter();
        let labels: Vec<String> = labels
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        table.add_row([
            table::name(tenant.name.as_str()).into_owned(),
            tenant.processes.to_string(),
            shown(&labels.join(" ")).to_string(),
        ]);
    }
    let mut text = match survey.tenants.is_empty() {
        true => "no tenant now".to_string(),
        false => table.to_string(),
    };
    let rest = survey.rest.len();
    if rest > 0 {
        let some = survey.rest.iter().take(REST_MOST);
        let some: Vec<String> = some
            .map(|(pid, name)| format!("{pid} ({})", shown(name)))
            .collect();
        let more = if rest > REST_MOST { ", ..." } else { "" };
        text += &format!(
            "\n{rest} processes are of no tenant: {}{more}",
            some.join(", ")
        );
    }
    text
}
