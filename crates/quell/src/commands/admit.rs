//! `quell admit`: whether tenants fit on a host, on which CPUs, and if not, why not.

use super::read_input;
use crate::cli::Admit;
use crate::table;
use anyhow::Context;
use quell_agent::client::Client;
use quell_model::CpuId;
use quell_policy::admission::{
    self, Answer, Asking, Change, CpuAnswer, Host, MOST_MORE, More, Refusal, TenantAnswer,
};
use quell_scenario::{HostFile, HostTenant, TenantsFile};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// The exit code of the answer no.
const NO: u8 = 3;

/// The JSON of `quell admit --json`.
#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    quell_version: &'static str,
    #[serde(flatten)]
    answer: &'a Answer,
}

/// Prints the answer, and ends with 3 where a tenant does not fit.
///
/// # Errors
/// Where a file cannot be read or is wrong, the agent does not answer, or stdout cannot be written.
pub fn admit(args: &Admit) -> anyhow::Result<ExitCode> {
    let answer = match args.running {
        true => answer_running(args)?,
        false => answer_file(args)?,
    };
    let report = Report {
        schema: 1,
        quell_version: env!("CARGO_PKG_VERSION"),
        answer: &answer,
    };
    let text = match args.json {
        true => serde_json::to_string_pretty(&report)?,
        false => render(&answer),
    };
    writeln!(io::stdout(), "{}", text.trim_end())?;
    Ok(match answer.fits {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NO),
    })
}

fn answer_file(args: &Admit) -> anyhow::Result<Answer> {
    let file = args.host.as_deref().context("a host's file is needed")?;
    let mut host = HostFile::parse(file, &read_input(file)?)?;
    host.criticality.test = args.test.unwrap_or(host.criticality.test);
    let asking = match &args.tenants {
        None => Vec::new(),
        Some(file) => {
            TenantsFile::parse(file, &read_input(file)?, host.names(), host.cpus())?.tenants
        }
    };
    let cpus = host.host.topology().cpus;
    let cpus: Vec<CpuId> = cpus.iter().map(|cpu| cpu.id).collect();
    let (there, asking) = (tables(host.tenants), tables(asking));
    Ok(admission::answer(&cpus, host.criticality, &there, &asking))
}

/// The tenants of a file's tables.
fn tables(tables: Vec<HostTenant>) -> Vec<Asking> {
    let asking = |HostTenant { spec, count }| Asking { spec, count };
    tables.into_iter().map(asking).collect()
}

/// The answer for the running agent's host; the only file is that of the tenants that ask.
fn answer_running(args: &Admit) -> anyhow::Result<Answer> {
    let there = Client::new(&args.socket.socket).admission()?;
    let names = there.tenants.into_iter().map(|it| it.tenant).collect();
    let cpus = there.cpus.into_iter().map(|it| (it.cpu, it.servers));
    let host = Host::with(cpus.collect(), there.settings);
    let asking = match &args.host {
        None => Vec::new(),
        Some(file) => {
            TenantsFile::parse(file, &read_input(file)?, names, host.cpus().len())?.tenants
        }
    };
    Ok(admission::answer_beside(&host, &tables(asking)))
}

fn render(answer: &Answer) -> String {
    let headings = ["CPU", "SERVERS", "LOW", "HIGH", "AT MOST", "X", "HEADROOM"];
    let mut cpus = table::new(headings, 2);
    for it in answer.cpus.iter().filter(|it| !it.servers.is_empty()) {
        cpus.add_row(cpu_row(it));
    }
    let idle = answer
        .cpus
        .iter()
        .filter(|it| it.servers.is_empty())
        .count();
    // Writing to a string does not fail.
    let mut text = String::new();
    if idle < answer.cpus.len() {
        let _ = writeln!(
            text,
            "{cpus}\nLOW and HIGH: what servers of low and high criticality usually need, in % of the CPU; AT MOST: what the \
             latter\nneed at the most; X: what their deadlines are shortened to, as a part of the period; HEADROOM: by how much \
             all\nbudgets could grow\n"
        );
    }
    // The table shows the CPUs of tenants that were there before and fit.
    let worth_a_line = |it: &&TenantAnswer| it.asks || it.refusal.is_some();
    for it in answer.tenants.iter().filter(worth_a_line) {
        let _ = writeln!(text, "{}: {}", it.tenant, tenant_text(it));
    }
    let fit = answer.tenants.iter().filter(|it| it.refusal.is_none());
    let _ = writeln!(
        text,
        "{} of {} tenants fit; {idle} of {} CPUs are left",
        fit.count(),
        answer.tenants.len(),
        answer.cpus.len()
    );
    for More { like, more } in &answer.more {
        let _ = match more {
            None => Ok(()),
            Some(0) => writeln!(text, "no more like {like} would fit"),
            Some(MOST_MORE) => writeln!(text, "{MOST_MORE} more like {like} would fit, or more"),
            Some(n) => writeln!(text, "{n} more like {like} would fit"),
        };
    }
    let settings = &answer.settings;
    let _ = writeln!(
        text,
        "\nby the test {}, with {} % of each CPU in reserve and {} us for switching to each budget or part of one{}",
        settings.test,
        settings.reserve_percent,
        settings.overhead_us,
        if answer.tests.is_empty() {
            ""
        } else {
            "; by each test:"
        }
    );
    for it in &answer.tests {
        let verdict = match &it.refused[..] {
            [] => format!("all fit, {} CPUs are left", it.idle_cpus),
            [one] => format!("{one} does not fit"),
            [first, others @ ..] => format!("{first} and {} more do not fit", others.len()),
        };
        let _ = writeln!(text, "  {:9} {verdict}", it.test);
    }
    text
}

fn cpu_row(cpu: &CpuAnswer) -> [String; 7] {
    let percent = |part: f64| format!("{:.1} %", 100.0 * part);
    let servers = cpu.servers.iter();
    let servers = servers.map(|it| format!("{}/{}", it.tenant, it.vcpu));
    [
        cpu.cpu.to_string(),
        servers.collect::<Vec<_>>().join(" "),
        percent(cpu.low),
        percent(cpu.high),
        percent(cpu.pessimistic),
        format!("{:.3}", cpu.deadline_factor),
        format!("{:+.1} %", 100.0 * (cpu.headroom - 1.0)),
    ]
}

fn tenant_text(tenant: &TenantAnswer) -> String {
    match &tenant.refusal {
        None if tenant.server.is_none() => {
            "has a weight; nothing is promised to it, so it fits".to_string()
        }
        None => format!("fits, {}", on(&tenant.cpus)),
        Some(refusal) => format!("does not fit: {}", why(refusal, tenant.vcpus)),
    }
}

fn on(cpus: &[CpuId]) -> String {
    let numbers: Vec<String> = cpus.iter().map(CpuId::to_string).collect();
    match cpus {
        [_] => format!("on CPU {}", numbers[0]),
        _ => format!("on CPUs {}", numbers.join(", ")),
    }
}

fn why(refusal: &Refusal, vcpus: u32) -> String {
    let mut text = match refusal.placed {
        0 => "no CPU has room for it".to_string(),
        n => format!("there is room for {n} of its {vcpus} virtual CPUs, each on a CPU of its own"),
    };
    if let (Some(cpu), Some(condition)) = (refusal.nearest, &refusal.condition) {
        let _ = write!(
            text,
            "\n  on CPU {cpu}, the nearest, {} does not hold: it would be {:.3}, {:.3} is the most;\n  all budgets there would have \
             to be {:.1} % less",
            condition.what,
            condition.value,
            condition.limit,
            100.0 * (1.0 - refusal.headroom)
        );
    }
    let changes: Vec<String> = refusal.changes.iter().map(change).collect();
    text += &match changes.is_empty() {
        true => "\n  no change of one of its values would do".to_string(),
        false => format!(
            "\n  what would do, the smallest change first: {}",
            changes.join(", or ")
        ),
    };
    text
}

fn change(change: &Change) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    match *change {
        Change::Vcpus(n) => format!("vcpus = {n}"),
        Change::BudgetNs(ns) => format!("budget_ms = {}", ms(ns)),
        Change::PessimisticBudgetNs(ns) => format!("pessimistic_budget_ms = {}", ms(ns)),
        Change::PeriodNs(ns) => format!("period_ms = {}", ms(ns)),
    }
}
