//! The machine: its description, and how busy it was between two moments.

use crate::result::Host;
use anyhow::Context;
use nix::sys::time::TimeValLike;
use nix::time::{clock_getcpuclockid, clock_gettime};
use procfs::{Current, CurrentSI};
use std::path::Path;

/// Cumulative CPU time of all CPUs, in ticks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTimes {
    busy: u64,
    steal: u64,
    all: u64,
    /// For each CPU: its busy time and its whole time, in ticks.
    each: Vec<(u64, u64)>,
}

/// A CPU that was busy for at most this part of a window counts as idle: that much the machine's own work
/// takes.
const IDLE: f64 = 0.02;

/// How many CPUs were idle in a window, from each CPU's busy time and the window's length.
pub(super) fn idle_cpus(cpus: impl Iterator<Item = (u64, u64)>) -> u32 {
    let idle = cpus.filter(|&(busy, all)| all > 0 && busy as f64 <= IDLE * all as f64);
    idle.count() as u32
}

/// The time that a CPU was busy, was taken by the hypervisor below, and was idle, in ticks.
fn times(cpu: &procfs::CpuTime) -> (u64, u64, u64) {
    // Guest time is part of user and nice time already.
    let busy = cpu.user + cpu.nice + cpu.system + cpu.irq.unwrap_or(0) + cpu.softirq.unwrap_or(0);
    let idle = cpu.idle + cpu.iowait.unwrap_or(0);
    (busy, cpu.steal.unwrap_or(0), idle)
}

impl HostTimes {
    /// Reads /proc/stat.
    ///
    /// # Errors
    /// Where /proc/stat cannot be read.
    pub fn read() -> anyhow::Result<HostTimes> {
        let stat = procfs::KernelStats::current().context("/proc/stat")?;
        let (busy, steal, idle) = times(&stat.total);
        let each = stat.cpu_time.iter().map(|cpu| {
            let (busy, steal, idle) = times(cpu);
            (busy + steal, busy + steal + idle)
        });
        Ok(HostTimes {
            busy,
            steal,
            all: busy + steal + idle,
            each: each.collect(),
        })
    }

    /// The time since boot in which CPUs were not idle, in s, summed over CPUs.
    pub fn taken_s(&self) -> f64 {
        (self.busy + self.steal) as f64 / procfs::ticks_per_second() as f64
    }

    /// Busy and steal since `earlier`, in percent of all CPUs.
    pub fn percent_since(&self, earlier: &HostTimes) -> (f64, f64) {
        let all = self.all.saturating_sub(earlier.all).max(1) as f64;
        let busy = self.busy.saturating_sub(earlier.busy) as f64;
        let steal = self.steal.saturating_sub(earlier.steal) as f64;
        (100.0 * busy / all, 100.0 * steal / all)
    }

    /// How many CPUs were idle since `earlier`.
    pub fn idle_since(&self, earlier: &HostTimes) -> u32 {
        let both = self.each.iter().zip(&earlier.each);
        idle_cpus(
            both.map(|(now, then)| (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1))),
        )
    }
}

/// The CPU time that a process with all its threads has used, user and system, in ns. The process's CPU clock
/// counts what /proc/PID/stat does, in ns and not in ticks of 10 ms.
///
/// # Errors
/// Where there is no such process.
pub fn cpu_ns(pid: u32) -> anyhow::Result<u64> {
    let clock = clock_getcpuclockid(nix::unistd::Pid::from_raw(pid as i32));
    let time = clock
        .and_then(clock_gettime)
        .with_context(|| format!("CPU clock of {pid}"))?;
    Ok(time.num_nanoseconds().unsigned_abs())
}

/// Peak resident memory of a process, in bytes.
///
/// # Errors
/// Where there is no such process, or the kernel does not show its peak.
pub fn peak_rss_bytes(pid: u32) -> anyhow::Result<u64> {
    let status = procfs::process::Process::new(pid as i32)
        .and_then(|process| process.status())
        .with_context(|| format!("/proc/{pid}/status"))?;
    Ok(status.vmhwm.context("no VmHWM")? * 1024)
}

/// Describes this machine.
///
/// # Errors
/// Where the kernel does not show its release, its memory or the CPUs that are online.
pub fn describe() -> anyhow::Result<Host> {
    let text = |path: &str| {
        std::fs::read_to_string(path)
            .ok()
            .map(|t| t.trim().to_string())
    };
    let cpuinfo = text("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let model = field("model name").or_else(|| text("/sys/firmware/devicetree/base/model"));
    let os = text("/etc/os-release").unwrap_or_default();
    let os = os
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let mut scheduler = Vec::new();
    for (name, path) in [
        ("autogroup", "/proc/sys/kernel/sched_autogroup_enabled"),
        ("base_slice_ns", "/sys/kernel/debug/sched/base_slice_ns"),
        ("preempt", "/sys/kernel/debug/sched/preempt"),
        ("sched_ext", "/sys/kernel/sched_ext/state"),
    ] {
        scheduler.extend(text(path).map(|value| format!("{name}={value}")));
    }
    Ok(Host {
        cpus: online_cpus()?,
        model: model.unwrap_or_else(|| "unknown".into()),
        kernel: text("/proc/sys/kernel/osrelease").context("/proc/sys/kernel/osrelease")?,
        os: os
            .map(|name| name.trim_matches('"').to_string())
            .unwrap_or_else(|| "unknown".into()),
        memory_bytes: procfs::Meminfo::current()
            .context("/proc/meminfo")?
            .mem_total,
        virtualized: field("flags").is_some_and(|f| f.split(' ').any(|flag| flag == "hypervisor")),
        scheduler,
    })
}

/// How many CPUs are online.
fn online_cpus() -> anyhow::Result<u32> {
    let path = Path::new("/sys/devices/system/cpu/online");
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(text.parse::<quell_model::CpuSet>()?.len() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_describes_itself() {
        let host = describe().unwrap();
        assert!(host.cpus > 0 && host.memory_bytes > 1 << 20 && !host.kernel.is_empty());
    }

    #[test]
    fn own_cpu_time_grows_with_work() {
        let pid = std::process::id();
        let before = cpu_ns(pid).unwrap();
        let mut value = 1u64;
        while cpu_ns(pid).unwrap() < before + 2_000_000 {
            value = std::hint::black_box(value.wrapping_mul(3));
        }
        assert!(peak_rss_bytes(pid).unwrap() > 100_000);
    }

    #[test]
    fn percentages_are_of_all_time() {
        let earlier = HostTimes {
            busy: 100,
            steal: 10,
            all: 1_000,
            each: vec![(60, 500), (50, 500)],
        };
        let later = HostTimes {
            busy: 180,
            steal: 15,
            all: 1_100,
            each: vec![(61, 550), (84, 550)],
        };
        assert_eq!(later.percent_since(&earlier), (80.0, 5.0));
        assert_eq!(later.idle_since(&earlier), 1);
        assert_eq!(earlier.percent_since(&earlier), (0.0, 0.0));
    }
}
