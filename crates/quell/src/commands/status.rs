//! `quell status`.

use super::matrix;
use crate::cli;
use crate::table::{self, or_dash};
use quell_agent::client::Client;
use quell_agent::effects;
use quell_agent::wire::Status;
use quell_model::config::Backend;
use quell_model::{
    Advice, CpuId, CpuSet, GroupPlan, PoolsPlan, Promise, TenantName, WhatIf, shown,
};
use std::fmt::Write as _;
use std::io::Write as _;

/// For how many virtual machines the host without them is described.
const WHAT_IF_MOST: usize = 5;

/// The most pairs of tenants that are shown of those that wait for each other.
const DISTURBED_MOST: usize = 5;

/// The least waiting of a tenant for another that is shown, in percent of one CPU: 1 ms in each second.
const DISTURBED_LEAST_PERCENT: f64 = 0.1;

/// Shows the agent and its tenants, or which tenants made each other wait.
///
/// # Errors
/// Where the agent does not answer, or stdout cannot be written.
pub fn status(args: &cli::Status) -> anyhow::Result<()> {
    let client = Client::new(&args.socket.socket);
    let text = if args.matrix {
        let answer = client.matrix(args.window.window)?;
        match args.json {
            true => serde_json::to_string_pretty(&answer)?,
            false => matrix::render(&answer, matrix::MOST_COLUMNS),
        }
    } else {
        let answer = client.status_over(args.window.window)?;
        match args.json {
            true => serde_json::to_string_pretty(&answer)?,
            false => render(&answer),
        }
    };
    writeln!(std::io::stdout(), "{}", text.trim_end())?;
    Ok(())
}

/// The whole answer for a terminal.
pub fn render(status: &Status) -> String {
    let mut text = head(status);
    // Writing to a string does not fail.
    if let Some(waits) = disturbed(status) {
        let _ = writeln!(text, "\n{waits}");
    }
    let _ = writeln!(text, "\n{}", tenants(status));
    for tenant in &status.tenants {
        if let Some(stopped) = tenant.throttled_percent.filter(|it| *it >= 0.05) {
            let _ = writeln!(
                text,
                "{}: its CPU bandwidth limit stopped it for {stopped:.1} % of one CPU",
                tenant.name
            );
        }
        for remark in &tenant.remarks {
            let _ = writeln!(text, "{}: {}", tenant.name, shown(remark));
        }
    }
    for tenant in &status.tenants {
        if let Some(promise) = &tenant.promise {
            let broken = match (status.backend, promise, tenant.broken_promises) {
                (Backend::Stock, Promise::Kept { .. }, _) => {
                    ", but not kept without the scheduler".to_string()
                }
                (_, _, 0) => String::new(),
                (_, _, broken) => format!(", but it went short in {broken} periods so far"),
            };
            let _ = writeln!(text, "{}: {}{broken}", tenant.name, promised(promise));
        }
    }
    for tenant in &status.tenants {
        if let Some(group) = &tenant.group {
            let _ = writeln!(text, "{}: {}", tenant.name, grouped(group, tenant.online));
        }
    }
    if let Some(pools) = &status.pools {
        let _ = writeln!(text, "\n{}", divided(pools));
    }
    if !status.notes.is_empty() {
        let _ = writeln!(text, "\nnotes:");
        let earlier = status.notes.len().saturating_sub(10);
        if earlier > 0 {
            let _ = writeln!(text, "  ({earlier} earlier ones: --json)");
        }
        for note in &status.notes[earlier..] {
            let _ = writeln!(text, "  {}", shown(note));
        }
    }
    text
}

/// The lines about the agent itself.
pub fn head(status: &Status) -> String {
    let mechanisms: Vec<String> = status
        .mechanisms
        .iter()
        .map(|it| format!("{it:?}").to_lowercase())
        .collect();
    let mechanisms = match mechanisms.is_empty() {
        true => "none, only observing".to_string(),
        false => mechanisms.join(", "),
    };
    let source = format!("{:?}", status.source).to_lowercase();
    let backend = match status.backend {
        Backend::Auto => "auto",
        Backend::SchedExt => "sched_ext",
        Backend::Stock => "stock",
    };
    let last = status.last_period;
    let last_us = last.observe_us + last.decide_us + last.act_us;
    let mut text = format!(
        "quell {}  pid {}  up {}  {}\npolicy {mechanisms}  backend {backend}  period {} ms  source {source}\n\
         {} periods, {} skipped by overruns, {} failed  last took {}  agent {:.2} % of a CPU, {}\n",
        status.version,
        status.pid,
        table::duration(status.uptime_s),
        status.config.display(),
        status.period_ms,
        status.periods,
        status.overruns,
        status.observe_errors,
        table::micros(last_us as f64),
        status.agent.cpu_percent,
        table::bytes(status.agent.rss_bytes),
    );
    let _ = match &status.not_acting_reason {
        None => writeln!(text, "acting: {} settings written", status.changes),
        Some(reason) => writeln!(text, "not acting: {reason}"),
    };
    if let Some(reason) = &status.fallback_reason {
        let _ = writeln!(text, "no BPF: {reason}");
    }
    let acts = !status.mechanisms.is_empty();
    if let (true, Backend::Stock, Some(reason)) = (acts, status.backend, &status.backend_reason) {
        let _ = writeln!(text, "no scheduler: {reason}");
    }
    for missing in &status.missing {
        let _ = writeln!(text, "missing {}: {}", missing.what, missing.remedy);
    }
    for effect in status.effects.iter() {
        let _ = writeln!(text, "{}", effects::line(effect, None, monotonic_ns()));
    }
    if let Some(error) = &status.reload_error {
        let _ = writeln!(text, "last reload refused: {error}");
    }
    text
}

/// The state of a tenant's request for promised CPU time.
pub fn promised(promise: &Promise) -> String {
    let on = |cpus: &[CpuId]| {
        let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        let many = if cpus.len() == 1 { "" } else { "s" };
        format!("CPU{many} {}", cpus.join(", "))
    };
    match promise {
        Promise::Kept {
            cpus,
            unchanged: None,
        } => format!("promised CPU time on {}", on(cpus)),
        Promise::Kept {
            cpus,
            unchanged: Some(why),
        } => format!("promised CPU time on {}, as before: {why}", on(cpus)),
        Promise::Awaited { cpus } => format!("is to be promised CPU time on {}", on(cpus)),
        Promise::Refused { why } => format!("not promised CPU time: {why}"),
    }
}

/// The CPUs of a virtual machine's vCPUs; `online` is how many vCPUs its guest reports as online.
pub fn grouped(group: &GroupPlan, online: Option<u32>) -> String {
    let told = |wanted: u32| match online {
        None => format!("{wanted} virtual CPUs to be online, but its guest does not say"),
        Some(online) if online == wanted => format!("{online} virtual CPUs online"),
        Some(online) => format!("{online} virtual CPUs online, {wanted} wanted"),
    };
    match group {
        GroupPlan::Own {
            cpus,
            online,
            lacks,
        } => {
            let lacks = match lacks {
                0 => String::new(),
                lacks => format!(", {lacks} more needed"),
            };
            format!("CPUs {cpus} of its own{lacks}; {}", told(*online))
        }
        GroupPlan::Shared { online } => format!("in the idle pool; {}", told(*online)),
        GroupPlan::Left { why } => format!("not pooled: {why}"),
    }
}

/// The host's pools, and their verdict for a placement service.
fn divided(pools: &PoolsPlan) -> String {
    let cpus = |cpus: &CpuSet| match cpus.is_empty() {
        true => "none".to_string(),
        false => cpus.to_string(),
    };
    let verdict = &pools.verdict;
    let [now, least, most] = verdict.idle_cores;
    let mut text = format!(
        "CPUs of emulators: {}; idle: {}; not divided: {}\nverdict: {}: {} (idle cores: {now} now, {least} to {most} lately; good for {} s)",
        cpus(&pools.emulators),
        cpus(&pools.idle),
        cpus(&pools.left),
        verdict.advice,
        verdict.why,
        verdict
            .until_ns
            .saturating_sub(monotonic_ns())
            .div_ceil(1_000_000_000),
    );
    if let (Advice::Migrate, Some(first)) = (verdict.advice, verdict.what_if.first()) {
        let _ = write!(text, "\nto move: {}", first.name);
    }
    for it in verdict.what_if.iter().take(WHAT_IF_MOST) {
        let _ = write!(text, "\nwithout {}: {}", it.name, without(it));
    }
    if let Some(more @ 1..) = verdict.what_if.len().checked_sub(WHAT_IF_MOST) {
        let _ = write!(text, "\nwithout one of {more} others: see --json");
    }
    text
}

/// The effect that a virtual machine's leaving would have.
fn without(it: &WhatIf) -> String {
    let lacking = match it.lacking {
        0 => String::new(),
        lacking => format!(", {lacking} still lacking"),
    };
    format!(
        "{} CPUs freed{lacking}, {} cores idle",
        it.frees, it.idle_cores
    )
}

/// CLOCK_MONOTONIC, as the agent on this host reads it.
pub fn monotonic_ns() -> u64 {
    quell_sys::clock::monotonic_ns()
}

/// The tenants that wait for others, longest first, and those that make others wait; `None` where no causes
/// are seen.
fn disturbed(status: &Status) -> Option<String> {
    let pairs = status.tenants.iter().flat_map(|tenant| {
        let waits = tenant.waits_for.iter().flatten();
        waits.map(move |it| (it.percent, &tenant.name, &it.tenant))
    });
    let mut pairs: Vec<_> = pairs.filter(|it| it.0 >= DISTURBED_LEAST_PERCENT).collect();
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    if pairs.is_empty() {
        let sees = status.tenants.iter().any(|it| it.waits_for.is_some());
        return sees.then(|| "no tenant waits for another".to_string());
    }
    let caused = status.tenants.iter();
    let caused = caused.filter_map(|it| Some((it.caused_percent?, &it.name)));
    let mut caused: Vec<_> = caused
        .filter(|it| it.0 >= DISTURBED_LEAST_PERCENT)
        .collect();
    caused.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let headings = ["WHO WAITS", "FOR", "ms/s", "WHO MAKES OTHERS WAIT", "ms/s"];
    let mut table = table::new(headings, 2);
    if let Some(column) = table.column_mut(3) {
        column.set_cell_alignment(comfy_table::CellAlignment::Left);
    }
    let name = |name: &TenantName| table::name(name.as_str()).into_owned();
    // A percent of a CPU is 10 ms in each second.
    let per_second = |percent: f64| format!("{:.1}", percent * 10.0);
    for row in 0..pairs.len().max(caused.len()).min(DISTURBED_MOST) {
        let pair = pairs.get(row);
        let cause = caused.get(row);
        table.add_row([
            pair.map_or_else(String::new, |it| name(it.1)),
            pair.map_or_else(String::new, |it| name(it.2)),
            pair.map_or_else(String::new, |it| per_second(it.0)),
            cause.map_or_else(String::new, |it| name(it.1)),
            cause.map_or_else(String::new, |it| per_second(it.0)),
        ]);
    }
    Some(format!(
        "{table}\nlast {:.0} s; ms in each second for which threads of the one wanted a CPU that the other had, \
         summed over threads; all pairs: --matrix",
        status.window_s
    ))
}

/// The table of tenants.
pub fn tenants(status: &Status) -> String {
    if status.tenants.is_empty() {
        return "no tenants: the configuration names none, or no period is complete yet"
            .to_string();
    }
    let headings = [
        "TENANT", "CLASS", "WEIGHT", "THREADS", "MANAGED", "CPU", "READY", "WAIT p50", "p99",
        "LATENCY",
    ];
    let mut table = table::new(headings, 2);
    for tenant in &status.tenants {
        let latency = tenant
            .latency_min_us
            .zip(tenant.latency_max_us)
            .map(|(low, high)| {
                let (low, high) = (table::micros(low as f64), table::micros(high as f64));
                if low == high {
                    low
                } else {
                    format!("{low} .. {high}")
                }
            });
        table.add_row([
            table::name(tenant.name.as_str()).into_owned(),
            format!("{:?}", tenant.class).to_lowercase(),
            tenant.weight.to_string(),
            tenant.threads.to_string(),
            tenant.managed.to_string(),
            format!("{:.1} %", tenant.run_percent),
            or_dash(tenant.ready_percent, |p| format!("{p:.1} %")),
            or_dash(tenant.wait_p50_us, |us| format!("< {}", table::micros(us))),
            or_dash(tenant.wait_p99_us, |us| format!("< {}", table::micros(us))),
            or_dash(latency, |l| l),
        ]);
    }
    format!(
        "{table}\nlast {:.0} s; CPU and READY (wanted a CPU and had none) in % of one CPU, summed over threads",
        status.window_s
    )
}
