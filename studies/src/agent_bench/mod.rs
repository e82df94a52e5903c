//! What the agent itself costs.
//!
//! Problem: an agent that is to sit on every host must cost next to nothing, however many threads the host
//! has, and its cost hides in two places: its own process, and the BPF programs that run in the context of
//! any thread that switches or wakes. Approach: a fleet of real processes with real threads, most asleep and
//! a tenth waking ten times a second for 50 µs; the real agent at its default period with every mechanism on;
//! its CPU time and peak memory from the kernel, the BPF programs' run time from the kernel's BPF statistics,
//! which are switched on by a file descriptor for the window only and so change no setting of the host.
//!
//! Units: CPU in percent of one CPU, memory in bytes.

mod bpf;
mod fleet;
mod guest;

pub use fleet::fleet_main;

use anyhow::{Context, bail, ensure};
use bpf::{BpfStats, ProgramTime};
use comfy_table::{CellAlignment, Table, presets};
use nix::sys::signal::Signal;
use quell_bench::progress::Progress;
use quell_bench::result::Host;
use quell_bench::run::agent::AgentChild;
use quell_bench::run::host;
use quell_bench::run::settings::Inventory;
use quell_bench::side::Side;
use quell_bench::workload::Interrupted;
use quell_model::Pid;
use quell_model::Source;
use quell_model::config::{AgentTenant, Selectors, TenantSpec};
use quell_sys::process::end_with_parent;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The hidden subcommand that makes this program a process of the fleet: it calls [`fleet_main`] with the
/// arguments that follow.
pub const FLEET_COMMAND: &str = "fleet";

/// The thread counts of `--growth`.
pub const GROWTH: [u32; 5] = [100, 300, 1_000, 3_000, 10_000];

/// By how much the first virtual machine's guest agent is late.
const LATE: Duration = Duration::from_secs(5);

/// How long the agent settles before the window.
const SETTLE: Duration = Duration::from_secs(3);

/// What to measure.
#[derive(Debug, Clone)]
pub struct AgentBenchOptions {
    /// The `quell` program.
    pub quell_exe: PathBuf,
    /// This program, which is the tenants.
    pub fleet_exe: PathBuf,
    /// The numbers of threads altogether, with a point for each.
    pub threads: Vec<u32>,
    /// The number of tenants that threads belong to, one process each; at most as many as threads.
    pub tenants: u32,
    /// Whether tenants are virtual machines, under the pools mechanism: all threads of each but one are
    /// vCPUs, and guest agents answer, the first VM's only after [`LATE`].
    pub vms: bool,
    /// Share of the threads that wake and run, in percent.
    pub active_percent: f64,
    /// Length of the measured window of each point, in seconds.
    pub seconds: f64,
}

impl AgentBenchOptions {
    /// 1,000 threads in 50 tenants, a tenth of them active, for 10 s.
    pub fn new(quell_exe: PathBuf, fleet_exe: PathBuf) -> AgentBenchOptions {
        AgentBenchOptions {
            quell_exe,
            fleet_exe,
            threads: vec![1_000],
            tenants: 50,
            vms: false,
            active_percent: 10.0,
            seconds: 10.0,
        }
    }

    /// How long measuring takes, without starting and stopping.
    pub fn planned(&self) -> Duration {
        (SETTLE + Duration::from_secs_f64(self.seconds)) * self.threads.len() as u32
    }
}

/// What the agent costs; the JSON of `quell-studies agent --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentBenchResult {
    /// [`quell_bench::result::SCHEMA`].
    pub schema: u32,
    /// The version of Quell that was measured.
    pub quell_version: String,
    /// The machine.
    pub host: Host,
    /// Length of each window, in seconds.
    pub seconds: f64,
    /// Share of the threads that wake and run, in percent.
    pub active_percent: f64,
    /// A point for each number of threads.
    pub points: Vec<AgentBenchPoint>,
}

/// The agent's cost with one number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentBenchPoint {
    /// The number of threads of all tenants.
    pub threads: u32,
    /// The number of tenants.
    pub tenants: u32,
    /// The control period in ms.
    pub period_ms: u64,
    /// Where the agent's figures come from.
    pub source: Source,
    /// CPU time of the agent's process, in percent of one CPU.
    pub cpu_percent: f64,
    /// Peak resident memory of the agent's process, in bytes.
    pub rss_bytes: u64,
    /// CPU time of the agent's BPF programs, in percent of one CPU; `null` where there are none or the kernel
    /// does not tell.
    pub bpf_percent: Option<f64>,
    /// Runs of the agent's BPF programs per second.
    pub bpf_runs_per_s: Option<f64>,
    /// Periods completed in the window.
    pub periods: u64,
    /// Periods that overran, since the agent started.
    pub overruns: u64,
    /// Wall time of the last period's observing, deciding and acting, in µs.
    pub last_period_us: [u64; 3],
    /// Settings written in the window.
    pub changes: u64,
    /// The number of virtual machines whose guests answer; `null` where tenants are no virtual machines.
    #[serde(default)]
    pub guests: Option<u32>,
}

/// Measures the agent with each number of threads. When this returns, everything that was started is gone.
///
/// # Errors
/// [`Interrupted`]; options outside of their ranges, a fleet or an agent that does not start, and an agent
/// that leaves settings changed.
pub fn run(
    options: &AgentBenchOptions,
    interrupt: &Arc<AtomicBool>,
    progress: &Progress,
) -> anyhow::Result<AgentBenchResult> {
    let sound = options.seconds.is_finite() && (0.1..=3_600.0).contains(&options.seconds);
    ensure!(sound, "seconds: {} is outside 0.1 to 3600", options.seconds);
    let share = options.active_percent;
    ensure!(
        (0.0..=100.0).contains(&share),
        "active percent: {share} is outside 0 to 100"
    );
    ensure!(options.tenants > 0, "at least one tenant is needed");
    let mut points = Vec::new();
    for (index, &threads) in options.threads.iter().enumerate() {
        ensure!(threads > 0, "at least one thread is needed");
        let each = SETTLE + Duration::from_secs_f64(options.seconds);
        progress.step(each * index as u32, &format!("{threads} threads"));
        points.push(measure(options, threads, interrupt)?);
    }
    progress.finish();
    Ok(AgentBenchResult {
        schema: quell_bench::result::SCHEMA,
        quell_version: env!("CARGO_PKG_VERSION").to_string(),
        host: host::describe()?,
        seconds: options.seconds,
        active_percent: options.active_percent,
        points,
    })
}

fn measure(
    options: &AgentBenchOptions,
    threads: u32,
    interrupt: &AtomicBool,
) -> anyhow::Result<AgentBenchPoint> {
    let fleet = Fleet::start(options, threads)?;
    let before = Inventory::read(fleet.pids())?;
    let side = match options.vms {
        true => Side::Ufo,
        false => Side::Quell,
    };
    let settings = side.agent().context("the side has an agent")?;
    let agent = AgentChild::start(&options.quell_exe, settings, fleet.specs(), interrupt)?;
    sleep(SETTLE, interrupt)?;
    // Without the privilege there are no BPF programs to count either.
    let stats = BpfStats::enable().ok();
    let read = || -> anyhow::Result<_> {
        let programs = stats
            .as_ref()
            .and_then(|_| ProgramTime::of_process(agent.pid()));
        Ok((
            Instant::now(),
            host::cpu_ns(agent.pid())?,
            programs,
            agent.status()?,
        ))
    };
    let (began, cpu_before, programs_before, status_before) = read()?;
    sleep(Duration::from_secs_f64(options.seconds), interrupt)?;
    let (ended, cpu_after, programs_after, status) = read()?;
    let elapsed_s = ended.duration_since(began).as_secs_f64();
    let rss_bytes = agent.peak_rss_bytes()?;
    agent.stop()?;
    let differences = Inventory::read(fleet.pids())?.differences(&before);
    ensure!(
        differences.is_empty(),
        "the agent did not put back the settings of {} threads:\n{}",
        differences.len(),
        differences[..differences.len().min(10)].join("\n")
    );
    let programs = programs_before
        .zip(programs_after)
        .map(|(from, to)| to.since(&from));
    Ok(AgentBenchPoint {
        threads,
        tenants: fleet.children.len() as u32,
        period_ms: status.period_ms,
        source: status.source,
        cpu_percent: 100.0 * cpu_after.saturating_sub(cpu_before) as f64 / 1e9 / elapsed_s,
        rss_bytes,
        bpf_percent: programs.map(|p| 100.0 * p.run_ns as f64 / 1e9 / elapsed_s),
        bpf_runs_per_s: programs.map(|p| p.runs as f64 / elapsed_s),
        periods: status.periods - status_before.periods,
        overruns: status.overruns,
        last_period_us: [
            status.last_period.observe_us,
            status.last_period.decide_us,
            status.last_period.act_us,
        ],
        changes: status.changes - status_before.changes,
        guests: options.vms.then(|| {
            let answer = status.tenants.iter().filter(|it| it.online.is_some());
            answer.count() as u32
        }),
    })
}

/// Sleeps; fails when interrupted.
fn sleep(length: Duration, interrupt: &AtomicBool) -> anyhow::Result<()> {
    let until = Instant::now() + length;
    while Instant::now() < until {
        if interrupt.load(Ordering::Relaxed) {
            bail!(Interrupted);
        }
        let left = until.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
    Ok(())
}

/// The result as a table for a terminal.
pub fn table(result: &AgentBenchResult) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "threads",
        "tenants",
        "CPU %",
        "BPF %",
        "BPF runs/s",
        "memory MiB",
        "periods",
        "overruns",
        "observe ms",
        "decide ms",
        "act ms",
    ]);
    for point in &result.points {
        let some = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_string(), |value| format!("{value:.digits$}"))
        };
        let mut row = vec![
            point.threads.to_string(),
            point.tenants.to_string(),
            format!("{:.2}", point.cpu_percent),
            some(point.bpf_percent, 2),
            some(point.bpf_runs_per_s, 0),
            format!("{:.1}", point.rss_bytes as f64 / f64::from(1 << 20)),
            point.periods.to_string(),
            point.overruns.to_string(),
        ];
        row.extend(
            point
                .last_period_us
                .map(|us| format!("{:.2}", us as f64 / 1e3)),
        );
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let period_ms = result.points.first().map_or(0, |point| point.period_ms);
    let guests = result.points.first().and_then(|point| point.guests);
    let guests = guests.map_or(String::new(), |guests| {
        let late = LATE.as_secs();
        format!("Tenants are virtual machines; {guests} of the guests answer, the first after {late} s.\n")
    });
    format!(
        "{table}\n{guests}The agent at its period of {period_ms} ms, measured for {} s at each size; {} % of \
         the threads wake {} times a second and run {} µs.\nCPU is the agent's process and BPF its \
         programs in the kernel, both in percent of one CPU.\n",
        result.seconds,
        result.active_percent,
        Duration::from_secs(1).as_millis() / fleet::WAKE_EVERY.as_millis(),
        fleet::RUN_FOR.as_micros(),
    )
}

/// The processes whose threads the agent manages. Dropping it ends them.
struct Fleet {
    children: Vec<Child>,
    /// The folder of virtual machines' programs and sockets.
    folder: Option<TempDir>,
}

impl Fleet {
    fn start(options: &AgentBenchOptions, threads: u32) -> anyhow::Result<Fleet> {
        let tenants = options.tenants.min(threads);
        let mut fleet = Fleet {
            children: Vec::new(),
            folder: None,
        };
        let mut exe = options.fleet_exe.clone();
        if options.vms {
            let folder = TempDir::with_prefix("quell-bench-")?;
            let program = folder.path().join("qemu-system-fleet");
            std::fs::copy(&exe, &program).context("a program to stand for QEMU")?;
            exe = program;
            fleet.folder = Some(folder);
        }
        for index in 0..tenants {
            let own = share(threads, tenants, index);
            let active = (f64::from(own) * options.active_percent / 100.0).round() as u32;
            let late = match index {
                0 => LATE,
                _ => Duration::ZERO,
            };
            let folder = fleet.folder.as_ref();
            let socket = folder.map(|it| it.path().join(format!("{index}.sock")));
            let vm = socket.map(|socket| vm_arguments(&socket, late));
            let child = spawn(&exe, own, active, &vm.unwrap_or_default())?;
            fleet.children.push(child);
        }
        for child in &mut fleet.children {
            let mut line = String::new();
            let stdout = child.stdout.take().context("no pipe")?;
            BufReader::new(stdout).read_line(&mut line)?;
            ensure!(
                line == "ready\n",
                "a process of the fleet did not start: `{}`",
                line.trim()
            );
        }
        Ok(fleet)
    }

    fn pids(&self) -> impl Iterator<Item = Pid> + '_ {
        self.children.iter().map(|child| Pid(child.id()))
    }

    fn specs(&self) -> Vec<AgentTenant> {
        let table = |(index, pid): (usize, Pid)| AgentTenant {
            spec: TenantSpec::named(&format!("tenant-{index}")),
            selectors: Selectors::pids([pid.0]),
        };
        self.pids().enumerate().map(table).collect()
    }
}

/// The `index`-th of `parts` nearly equal shares of `whole`.
fn share(whole: u32, parts: u32, index: u32) -> u32 {
    whole / parts + u32::from(index < whole % parts)
}

/// The arguments that make a process of the fleet a virtual machine, and that say so in QEMU's words.
fn vm_arguments(socket: &Path, late: Duration) -> Vec<String> {
    let path = socket.display().to_string();
    vec![
        path.clone(),
        late.as_millis().to_string(),
        "-chardev".into(),
        format!("socket,id=qga,path={path}"),
        "-device".into(),
        "virtserialport,chardev=qga,name=org.qemu.guest_agent.0".into(),
    ]
}

fn spawn(exe: &Path, threads: u32, active: u32, vm: &[String]) -> anyhow::Result<Child> {
    let mut command = Command::new(exe);
    command
        .args([FLEET_COMMAND, &threads.to_string(), &active.to_string()])
        .args(vm)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0);
    end_with_parent(&mut command, Signal::SIGKILL);
    command.spawn().with_context(|| exe.display().to_string())
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.stdin.take());
        }
        for child in &mut self.children {
            // A child ends by itself when its input closes; an error means that it is gone.
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (whole, parts) in [(1_000, 50), (10, 3), (7, 7), (101, 50)] {
            let shares: Vec<u32> = (0..parts).map(|i| share(whole, parts, i)).collect();
            assert_eq!(shares.iter().sum::<u32>(), whole);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn fleet_arguments_are_checked() {
        let error = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|a| a.to_string()).collect();
            format!("{:#}", fleet_main(&args).unwrap_err())
        };
        assert!(error(&["5"]).contains("usage: fleet THREADS ACTIVE"));
        assert!(error(&["5", "x"]).contains("ACTIVE `x`"));
    }

    #[test]
    fn the_table_names_its_units() {
        let point = AgentBenchPoint {
            threads: 1_000,
            tenants: 50,
            period_ms: 80,
            source: Source::Bpf,
            cpu_percent: 0.523,
            rss_bytes: 20 << 20,
            bpf_percent: None,
            bpf_runs_per_s: Some(1_234.5),
            periods: 125,
            overruns: 0,
            last_period_us: [1_500, 200, 3],
            changes: 7,
            guests: None,
        };
        let host = Host {
            cpus: 2,
            model: "m".into(),
            kernel: "k".into(),
            os: "o".into(),
            memory_bytes: 1,
            virtualized: true,
            scheduler: Vec::new(),
        };
        let result = AgentBenchResult {
            schema: 1,
            quell_version: "0".into(),
            host,
            seconds: 10.0,
            active_percent: 10.0,
            points: vec![point],
        };
        let text = table(&result);
        for part in [
            "0.52",
            "20.0",
            "1.50",
            "period of 80 ms",
            "wake 10 times a second",
            "run 50 µs",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let json = serde_json::to_string(&result).unwrap();
        assert_eq!(
            serde_json::from_str::<AgentBenchResult>(&json).unwrap(),
            result
        );
    }
}
