//! `quell explain TENANT`.

use super::status::{grouped, promised};
use crate::cli;
use crate::table::{self, or_dash};
use quell_agent::client::Client;
use quell_agent::effects;
use quell_agent::wire::{Explain, ShareExplain, ThreadExplain};
use quell_model::{ThreadRole, shown};
use std::fmt::Write as _;
use std::io::Write as _;

/// Shows the settings of a tenant's threads, and their reasons.
///
/// # Errors
/// Where the agent does not answer or has no such tenant, or stdout cannot be written.
pub fn explain(args: &cli::Explain) -> anyhow::Result<()> {
    let answer = Client::new(&args.socket.socket).explain(&args.tenant)?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&answer)?,
        false => render(&answer),
    };
    writeln!(std::io::stdout(), "{}", text.trim_end())?;
    Ok(())
}

fn render(explain: &Explain) -> String {
    let weight = match (explain.weight, &explain.cgroup) {
        (None, _) => "no weight of Quell's".to_string(),
        (Some(weight), Some(cgroup)) => {
            format!("weight {weight} planned for cgroup {}", shown(&cgroup.0))
        }
        (Some(weight), None) => format!(
            "weight {weight} planned; no cgroup with a cpu.weight holds its threads and no others, so Quell's scheduler \
             counts it, or else their nice values"
        ),
    };
    let mut text = format!(
        "tenant {}, {} threads, {weight}\n",
        explain.tenant,
        explain.threads.len(),
    );
    let headings = [
        "THREAD", "NAME", "ROLE", "STATE", "RUN", "READY", "STOPPED", "NICE", "SLICE", "WEIGHT",
        "LATENCY", "CPUS",
    ];
    let mut table = table::new(headings, 4);
    for thread in &explain.threads {
        table.add_row(row(thread, explain.period_ns));
    }
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{table}\nRUN, READY and STOPPED (by a CPU bandwidth limit) in % of the last period ({}); NICE, SLICE and CPUS as the kernel has them, \
         WEIGHT and LATENCY as planned",
        table::nanos(explain.period_ns)
    );
    for remark in &explain.remarks {
        let _ = writeln!(text, "\n{}", shown(remark));
    }
    if let Some(promise) = &explain.promise {
        let _ = writeln!(text, "\n{}", promised(promise));
    }
    if let Some(group) = &explain.group {
        let _ = writeln!(text, "\n{}", grouped(group, explain.online));
    }
    if let Some(share) = &explain.share {
        let _ = writeln!(text, "\n{}", render_share(share));
    }
    for effect in explain.effects.iter() {
        let line = effects::line(effect, Some(&explain.tenant), explain.time_ns);
        let _ = writeln!(text, "\n{line}");
    }
    if explain.decisions.is_empty() {
        text.push_str("\nno decisions yet: its threads are as their owner left them\n");
        return text;
    }
    let _ = writeln!(text, "\nlast decisions, oldest first:");
    for decision in &explain.decisions {
        let ago = explain.time_ns.saturating_sub(decision.time_ns) as f64 / 1e9;
        let _ = writeln!(
            text,
            "  {ago:6.1} s ago  {} {}  {}: {}",
            decision.thread,
            shown(&decision.name),
            decision.rule,
            shown(&decision.text)
        );
    }
    text
}

fn render_share(share: &ShareExplain) -> String {
    let behind = match share.lag_ns {
        ahead if ahead < 0 => format!("{} ahead", table::nanos(ahead.unsigned_abs())),
        behind => format!("{} behind", table::nanos(behind.unsigned_abs())),
    };
    format!(
        "of the host, by weight {}, over the last {}: wanted {:.2} CPUs, deserved {:.2}, received {:.2}; {behind}",
        share.weight,
        table::nanos(share.window_ns),
        share.demand_cpus,
        share.deserved_cpus,
        share.received_cpus,
    )
}

fn row(thread: &ThreadExplain, period_ns: u64) -> [String; 12] {
    let percent = |ns: u64| format!("{:.1} %", 100.0 * ns as f64 / period_ns.max(1) as f64);
    [
        thread.tid.to_string(),
        shown(&thread.name).into_owned(),
        match thread.role {
            ThreadRole::Ordinary => "-".to_string(),
            ThreadRole::Vcpu(n) => format!("vcpu {n}"),
            ThreadRole::Emulator => "emulator".to_string(),
            ThreadRole::Io => "io".to_string(),
        },
        format!("{:?}", thread.state).to_lowercase(),
        percent(thread.run_ns),
        or_dash(thread.ready_ns, percent),
        or_dash(thread.throttled_ns, percent),
        thread.nice.to_string(),
        or_dash(thread.slice_ns, table::nanos),
        or_dash(thread.planned_weight, |w| w.to_string()),
        or_dash(thread.planned_latency_ns, table::nanos),
        thread.cpus.to_string(),
    ]
}
