//! What waking and switching cost under each side.
//!
//! Threads that do nothing else wake each other through pipes, or yield to each other. The study also counts
//! how often other threads of the machine, such as kernel threads and daemons, take the CPU from a thread
//! that computes. On the lab's virtual clock a nanosecond is an instruction, so costs are exact there;
//! elsewhere they are times. On sides with an agent, these threads are its tenant, so that observing them is
//! part of the cost.

use anyhow::{Context, bail, ensure};
use comfy_table::{CellAlignment, Table, presets};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, pipe, read, write};
use quell_bench::progress::Progress;
use quell_bench::result::{Host, LabGuest, SCHEMA};
use quell_bench::run::host;
use quell_bench::run::started::Started;
use quell_bench::side::Side;
use quell_bench::workload::{Cgroups, Interrupted};
use quell_linux::observe::{CgroupVersion, CpuHierarchy};
use quell_model::CpuId;
use quell_model::config::{AgentTenant, CriticalitySettings, Selectors, TenantSpec};
use quell_scenario::Scenario;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Rounds that are measured; as many rounds before them warm up.
const ROUNDS: u32 = 2000;

/// How long threads compute on all CPUs while preemptions are counted.
const COMPUTE: Duration = Duration::from_secs(4);

/// How long a side settles before it is measured.
const SETTLE: Duration = Duration::from_secs(1);

/// The result; the JSON of `quell-studies overhead --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// [`quell_bench::result::SCHEMA`].
    pub schema: u32,
    /// The version of Quell that measured.
    pub quell_version: String,
    /// The machine; the guest, where the study ran in one.
    pub host: Host,
    /// The kernel lab's guest; `null` outside of the lab.
    pub lab: Option<LabGuest>,
    /// How many cgroups of ours the threads were in, nested.
    #[serde(default)]
    pub nesting: u32,
    /// The costs of each side, in the order asked for.
    pub sides: Vec<SideCosts>,
}

/// A side's costs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideCosts {
    /// The side.
    pub side: String,
    /// Its costs.
    #[serde(flatten)]
    pub costs: Costs,
}

/// The cost of each case, in ns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// A thread wakes another thread on its own CPU and sleeps: a write, a wakeup, a switch, a read.
    pub wake_here: u64,
    /// A thread wakes another thread on another CPU, which idles meanwhile, and sleeps; `null` with one CPU.
    pub wake_there: Option<u64>,
    /// A thread wakes another thread and sleeps, both on any CPU.
    pub wake_anywhere: u64,
    /// The write and the read alone.
    pub no_wake: u64,
    /// A switch between two threads that stay ready.
    pub switch: u64,
    /// How often kernel threads and daemons preempt a thread that computes, in thousandths per second and
    /// CPU.
    pub put_off_per_1000_s: u64,
    /// How long such a preemption lasts, on average.
    pub put_off: u64,
}

/// Measures the sides one after the other. `exe` is the `quell` program. The threads run in `nesting` nested
/// cgroups.
///
/// # Errors
/// [`Interrupted`]; and where a side does not start or stop in order, cgroups cannot be made, or a measuring
/// thread fails.
pub fn run(
    sides: &[Side],
    nesting: u32,
    exe: &Path,
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Overhead> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let cpus: Vec<CpuId> = cpus.map(|cpu| CpuId(cpu as u32)).collect();
    let this = || {
        vec![AgentTenant {
            spec: TenantSpec::named("overhead"),
            selectors: Selectors::pids([std::process::id()]),
        }]
    };
    let _nested = (nesting > 0).then(|| Nested::enter(nesting)).transpose()?;
    let mut measured = Vec::new();
    for (side, label) in sides.iter().zip(Side::labels(sides)) {
        progress.step(Duration::ZERO, &format!("overhead: {label}"));
        let started = Started::start(
            side,
            &label,
            exe,
            this,
            CriticalitySettings::default(),
            interrupt,
        )?;
        thread::sleep(SETTLE);
        if interrupt.load(Ordering::Relaxed) {
            bail!(Interrupted);
        }
        let costs = measure(&cpus)?;
        started.stop()?;
        measured.push(SideCosts { side: label, costs });
    }
    progress.finish();
    Ok(Overhead {
        schema: SCHEMA,
        quell_version: env!("CARGO_PKG_VERSION").to_string(),
        host: host::describe()?,
        lab: None,
        nesting,
        sides: measured,
    })
}

/// The result as a table for a terminal.
pub fn table(result: &Overhead) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    let exact = result
        .lab
        .as_ref()
        .is_some_and(|lab| lab.clock == "virtual");
    let unit = if exact { "instructions" } else { "ns" };
    let names = result.sides.iter().map(|side| side.side.clone());
    table.set_header(std::iter::once(unit.to_string()).chain(names));
    let cases = |costs: &Costs| {
        [
            (
                "wake another on the same CPU and sleep",
                Some(costs.wake_here),
            ),
            (
                "wake another on another, idle CPU and sleep",
                costs.wake_there,
            ),
            ("the same, any CPU", Some(costs.wake_anywhere)),
            ("of each, the pipe's write and read", Some(costs.no_wake)),
            ("switch by sched_yield()", Some(costs.switch)),
            ("kernel threads and daemons, each time", Some(costs.put_off)),
            (
                "so often in 1,000 s on a busy CPU",
                Some(costs.put_off_per_1000_s),
            ),
        ]
    };
    let columns: Vec<_> = result.sides.iter().map(|side| cases(&side.costs)).collect();
    for row in 0..columns.first().map_or(0, |column| column.len()) {
        let name = columns.first().map_or("", |column| column[row].0);
        let values = columns
            .iter()
            .map(|column| column[row].1.map_or("-".to_string(), |ns| ns.to_string()));
        table.add_row(std::iter::once(name.to_string()).chain(values));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}

/// Keeps this process in cgroups of its own for as long as this exists.
struct Nested {
    /// The `cgroup.procs` file that takes the process back.
    home: File,
    _cgroups: Cgroups,
}

impl Nested {
    fn enter(levels: u32) -> anyhow::Result<Nested> {
        let mut text = "name = \"overhead\"\n".to_string();
        for level in 1..=levels {
            text += &format!("[[group]]\nname = \"level{level}\"\n");
            if level > 1 {
                text += &format!("within = \"level{}\"\n", level - 1);
            }
        }
        text += &format!(
            "[[tenant]]\nname = \"this\"\nclass = \"batch\"\nwithin = \"level{levels}\"\n\
                          [[tenant.thread]]\nname = \"t\"\nprogram = [{{ run_us = 1 }}]\n"
        );
        let scenario = Scenario::parse(Path::new("overhead.toml"), &text)?;
        let hierarchy =
            CpuHierarchy::find().context("no cgroup hierarchy has the cpu controller")?;
        ensure!(
            hierarchy.version == CgroupVersion::V2,
            "`--nesting` needs cgroup v2"
        );
        let own = procfs::process::Process::myself()?.cgroups()?.0;
        let own = own.iter().find(|it| it.hierarchy == 0);
        let own = own.context("this process is in no cgroup")?;
        let home = (hierarchy.mount).join(own.pathname.trim_start_matches('/'));
        let home = OpenOptions::new()
            .write(true)
            .open(home.join("cgroup.procs"))?;
        let prefix = format!("quell-overhead-{}", std::process::id());
        let cgroups = Cgroups::make(&scenario, &prefix)?;
        let inner = cgroups.procs(0)?.context("no cgroup was made")?;
        let nested = Nested {
            home,
            _cgroups: cgroups,
        };
        move_here(&inner)?;
        Ok(nested)
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        if let Err(error) = move_here(&self.home) {
            tracing::warn!(%error, "cannot go back to where this process was");
        }
    }
}

/// Moves this process to the cgroup with this `cgroup.procs` file.
fn move_here(mut procs: &File) -> io::Result<()> {
    procs.write_all(std::process::id().to_string().as_bytes())
}

fn measure(cpus: &[CpuId]) -> anyhow::Result<Costs> {
    let first = *cpus.first().context("no CPU is online")?;
    let there = cpus
        .get(1)
        .map(|second| ping_pong(Some(first), Some(*second)));
    let (times, put_off) = put_off(cpus)?;
    Ok(Costs {
        put_off_per_1000_s: times,
        put_off,
        wake_here: ping_pong(Some(first), Some(first))?,
        wake_there: there.transpose()?,
        wake_anywhere: ping_pong(None, None)?,
        no_wake: alone()?,
        switch: yields(first)?,
    })
}

/// Half a round trip between two threads, in ns.
fn ping_pong(a: Option<CpuId>, b: Option<CpuId>) -> anyhow::Result<u64> {
    let (ping, pong) = (pipe()?, pipe()?);
    thread::scope(|scope| {
        let echo = scope.spawn(|| -> anyhow::Result<()> {
            pin(b)?;
            for _ in 0..2 * ROUNDS {
                receive(&ping.0)?;
                send(&pong.1)?;
            }
            Ok(())
        });
        let caller = scope.spawn(|| -> anyhow::Result<u64> {
            pin(a)?;
            let mut began = Instant::now();
            for round in 0..2 * ROUNDS {
                if round == ROUNDS {
                    began = Instant::now();
                }
                send(&ping.1)?;
                receive(&pong.0)?;
            }
            Ok(each(began, 2 * ROUNDS))
        });
        let took = joined(caller.join())?;
        joined(echo.join())?;
        Ok(took)
    })
}

/// A write to a pipe and a read from it by one thread, which never sleeps, in ns.
fn alone() -> anyhow::Result<u64> {
    let ends = pipe()?;
    let began = Instant::now();
    for _ in 0..ROUNDS {
        send(&ends.1)?;
        receive(&ends.0)?;
    }
    Ok(each(began, ROUNDS))
}

/// A turn of two threads that yield to each other on one CPU, in ns.
fn yields(cpu: CpuId) -> anyhow::Result<u64> {
    let together = Barrier::new(2);
    thread::scope(|scope| {
        let turns: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| -> anyhow::Result<u64> {
                    pin(Some(cpu))?;
                    together.wait();
                    let began = Instant::now();
                    for _ in 0..ROUNDS {
                        thread::yield_now();
                    }
                    Ok(each(began, 2 * ROUNDS))
                })
            })
            .collect();
        let mut longest = 0;
        for turn in turns {
            longest = longest.max(joined(turn.join())?);
        }
        Ok(longest)
    })
}

/// How often in 1,000 s and per CPU a thread that only computes is preempted, with one such thread on each
/// CPU, and for how many ns on average.
fn put_off(cpus: &[CpuId]) -> anyhow::Result<(u64, u64)> {
    let compute = |cpu: CpuId| -> anyhow::Result<(u64, Duration)> {
        pin(Some(cpu))?;
        let usage = || -> anyhow::Result<(u64, Duration)> {
            let used = getrusage(UsageWho::RUSAGE_THREAD)?;
            let ran = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
            Ok((used.involuntary_context_switches() as u64, ran.into()))
        };
        let (began, before) = (Instant::now(), usage()?);
        while began.elapsed() < COMPUTE {
            std::hint::spin_loop();
        }
        let (whole, after) = (began.elapsed(), usage()?);
        let lost = whole.saturating_sub(after.1 - before.1);
        Ok((after.0 - before.0, lost))
    };
    let computed = thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .map(|cpu| scope.spawn(|| compute(*cpu)))
            .collect();
        let joined = threads.into_iter().map(|it| joined(it.join()));
        joined.collect::<anyhow::Result<Vec<_>>>()
    })?;
    let times: u64 = computed.iter().map(|(times, _)| times).sum();
    let lost: Duration = computed.iter().map(|(_, lost)| lost).sum();
    let busy_s = (COMPUTE.as_secs() * cpus.len() as u64).max(1);
    let each = lost.as_nanos() as u64 / times.max(1);
    Ok((times * 1000 / busy_s, each))
}

fn each(began: Instant, turns: u32) -> u64 {
    // The value fits into 64 bits: these are milliseconds.
    (began.elapsed() / turns).as_nanos() as u64
}

fn joined<T>(result: thread::Result<anyhow::Result<T>>) -> anyhow::Result<T> {
    result.map_err(|_| anyhow::anyhow!("a measuring thread panicked"))?
}

fn pin(cpu: Option<CpuId>) -> anyhow::Result<()> {
    if let Some(cpu) = cpu {
        let mut set = CpuSet::new();
        set.set(cpu.0 as usize)?;
        sched_setaffinity(Pid::from_raw(0), &set)?;
    }
    Ok(())
}

fn send(end: &OwnedFd) -> anyhow::Result<()> {
    write(end, &[1])?;
    Ok(())
}

fn receive(end: &OwnedFd) -> anyhow::Result<()> {
    read(end, &mut [0])?;
    Ok(())
}
