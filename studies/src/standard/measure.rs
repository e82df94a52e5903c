//! Measures one case on one side, once: victims, then the load, a warm-up, the window; nothing of either is
//! left.

use super::cases::Case;
use super::figures::VictimFigures;
use super::groups::Hierarchy;
use super::load::Running;
use super::now_ns;
use super::part::{LOOK, Part};
use super::victim::{Place as VictimPlace, VictimSpec, VictimsOrder, Window};
use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use quell_bench::workload::load::tenant_seed;
use quell_bench::workload::{Interrupted, Nursery, Place, family};
use quell_sys::sched::{CALLER, affinity, set_policy};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long processes that a load left behind may take to end.
const GRACE: Duration = Duration::from_secs(30);

/// How to measure a case.
pub(super) struct How<'a> {
    pub(super) exe: &'a Path,
    pub(super) warmup: Duration,
    pub(super) length: Duration,
    pub(super) seed: u64,
    pub(super) interrupt: &'a AtomicBool,
}

/// What was measured of a case.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Measured {
    /// The figures of each victim, by name.
    pub(super) victims: Vec<(String, VictimFigures)>,
    /// Each load that has a throughput, by name: its unit, and work per second; `None` where it did no work.
    pub(super) loads: Vec<(String, String, Option<f64>)>,
}

/// Measures a case.
///
/// # Errors
/// [`Interrupted`]; and where a victim or a load does not start, ends early or does not report, or a cgroup
/// or folder cannot be made.
pub(super) fn measure(
    case: &Case,
    how: &How<'_>,
    hierarchy: &mut Hierarchy,
) -> anyhow::Result<Measured> {
    // Programs that run as another user reach their own folders below this folder.
    let reached = Permissions::from_mode(0o711);
    let folder = tempfile::Builder::new().permissions(reached).tempdir()?;
    let before: BTreeSet<u32> = children().into_iter().collect();
    let measured = attempt(case, how, hierarchy, folder.path());
    // Ends processes that loads left behind, too. The folder is removed once no process writes to it any
    // more.
    end_others(&before);
    measured
}

fn attempt(
    case: &Case,
    how: &How<'_>,
    hierarchy: &mut Hierarchy,
    folder: &Path,
) -> anyhow::Result<Measured> {
    let nursery = Nursery::new()?;
    let _hurry = Hurry::begin();
    let own = |it: &&VictimSpec| it.place == VictimPlace::Own;
    let own_group = match case.victims.iter().any(|it| own(&it)) {
        true => Some(hierarchy.make("victims", None)?),
        false => None,
    };
    let mut random = ChaCha8Rng::seed_from_u64(how.seed);
    let mut victims = Vec::new();
    for specs in processes(case) {
        let cgroup = match (&own_group, specs.first().is_some_and(|it| own(&it))) {
            (Some(group), true) => group.procs()?,
            _ => hierarchy.root_procs()?,
        };
        let own = folder.join(format!("victims-{}", victims.len()));
        std::fs::create_dir(&own)?;
        let place = in_cgroup(cgroup);
        let order = order(&specs, &mut random)?;
        let part = Part::start(how.exe, ("victims", &order), &own, &place, &nursery)?;
        victims.push((specs, part));
    }
    // The victims find out how fast this machine is, so nothing else runs until they have.
    for (_, part) in &victims {
        part.wait_ready(how.interrupt).context("the victims")?;
    }
    let mut groups = Vec::new();
    let mut loads = Vec::new();
    for (number, load) in case.loads.iter().enumerate() {
        let own = folder.join(format!("load-{number}"));
        std::fs::create_dir(&own)?;
        let cgroup = match load.most {
            Some(most) => {
                let group = hierarchy.make(&format!("load-{number}"), Some(most))?;
                let procs = group.procs()?;
                groups.push(group);
                procs
            }
            None => hierarchy.root_procs()?,
        };
        let seed = tenant_seed(how.seed, number);
        let load = load.start(how.exe, seed, &own, &in_cgroup(cgroup), &nursery)?;
        load.wait_ready(how.interrupt)?;
        loads.push(load);
    }
    let window = Window::after(how.warmup, how.length);
    for (_, part) in &mut victims {
        part.begin(window).context("the victims")?;
    }
    for load in &mut loads {
        load.begin(window)?;
    }
    wait_until(window.until_ns, how.interrupt, &loads)?;
    loads.iter().for_each(Running::finish);
    let mut measured = Measured::default();
    for load in loads {
        let spec = load.spec.clone();
        let done = load.done(how.interrupt)?;
        measured
            .victims
            .extend(done.figures.map(|it| (spec.name.clone(), it)));
        if let Some(unit) = spec.unit {
            measured
                .loads
                .push((spec.name, unit.to_string(), done.per_s));
        }
    }
    drop(groups);
    for (specs, part) in &victims {
        for spec in specs {
            let figures = part.result(how.interrupt).context("a victim's figures")?;
            measured.victims.push((spec.name.clone(), figures));
        }
    }
    Ok(measured)
}

fn in_cgroup(procs: File) -> Place {
    Place {
        cgroup: Some(procs),
        cpus: None,
    }
}

/// The victims by process: each in a process of its own, or all victims of a cgroup in one.
fn processes(case: &Case) -> Vec<Vec<VictimSpec>> {
    let mut processes: Vec<Vec<VictimSpec>> = Vec::new();
    for victim in &case.victims {
        let like = |it: &Vec<VictimSpec>| {
            (it[0].place == VictimPlace::Own) == (victim.place == VictimPlace::Own)
        };
        match processes.iter_mut().find(|it| case.one_process && like(it)) {
            Some(process) => process.push(victim.clone()),
            None => processes.push(vec![victim.clone()]),
        }
    }
    processes
}

/// The order for a process of these victims.
fn order(specs: &[VictimSpec], random: &mut ChaCha8Rng) -> anyhow::Result<VictimsOrder> {
    let cpus = affinity(CALLER)?;
    // The first CPU is avoided: it gets most of the machine's interrupts.
    let pinned_to = cpus.iter().nth(1).or(cpus.iter().next());
    let phases_ns = specs
        .iter()
        .map(|it| random.random_range(0..it.period_us * 1000));
    Ok(VictimsOrder {
        pinned_to: pinned_to.context("no CPU")?.0,
        phases_ns: phases_ns.collect(),
        victims: specs.to_vec(),
    })
}

/// Sleeps until `ns`; fails where a load ends before, or on an interrupt.
fn wait_until(ns: u64, interrupt: &AtomicBool, loads: &[Running]) -> anyhow::Result<()> {
    loop {
        if interrupt.load(Ordering::Relaxed) {
            bail!(Interrupted);
        }
        let left = ns.saturating_sub(now_ns());
        if left == 0 {
            return Ok(());
        }
        if left > LOOK.as_nanos() as u64 {
            loads.iter().try_for_each(Running::check)?;
        }
        std::thread::sleep(LOOK.min(Duration::from_nanos(left)));
    }
}

/// The children of this process: processes that it started, or that were given to it.
fn children() -> Vec<u32> {
    let own = std::process::id();
    let threads = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let of =
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let told: Vec<String> = of.collect();
    if told.is_empty() {
        // The kernel does not have that file.
        return family(own).into_iter().skip(1).collect();
    }
    let told = told.join(" ");
    told.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// Ends all descendants of this process except the children in `before` and their descendants.
fn end_others(before: &BTreeSet<u32>) {
    let give_up = Instant::now() + GRACE;
    loop {
        let others = children().into_iter().filter(|pid| !before.contains(pid));
        let others: Vec<u32> = others.collect();
        if others.is_empty() {
            return;
        }
        if Instant::now() >= give_up {
            tracing::warn!(?others, "processes of the load do not end");
            return;
        }
        others.into_iter().for_each(end_tree);
    }
}

/// Kills a child and all its descendants, and reaps the child.
fn end_tree(child: u32) {
    for pid in family(child) {
        // The process may have ended.
        let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
    }
    let pid = Pid::from_raw(child as i32);
    if let Ok(WaitStatus::StillAlive) = waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Gives the measuring thread real-time priority, where that is permitted, so that it ends a load in time;
/// otherwise it sleeps. Dropping takes the priority back.
struct Hurry;

impl Hurry {
    fn begin() -> Hurry {
        // Without it, windows of loads that do not end by themselves are longer; throughput is per second, so
        // it stays comparable.
        let _ = quell_bench::workload::load::become_realtime();
        Hurry
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        // It could leave the fair class, so it may come back.
        let _ = set_policy(CALLER, libc::SCHED_OTHER, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn victims_are_processes_or_threads_of_one_in_each_cgroup() {
        let mut case = super::super::cases::cases(2).remove(1);
        assert!(processes(&case).iter().all(|it| it.len() == 1));
        case.one_process = true;
        let sizes: Vec<usize> = processes(&case).iter().map(Vec::len).collect();
        assert_eq!(sizes, [4, 2]);
    }

    #[test]
    fn a_child_is_ended_with_its_descendants() {
        let mut child = Command::new("sh");
        child.args(["-c", "sleep 1000 & exec sleep 1000"]);
        #[expect(clippy::zombie_processes, reason = "it is reaped by what is tested")]
        let child = child.spawn().unwrap();
        let give_up = Instant::now() + Duration::from_secs(10);
        while family(child.id()).len() < 2 && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(5));
        }
        let all = family(child.id());
        assert_eq!(all.len(), 2);
        assert!(children().contains(&child.id()));
        while children().contains(&child.id()) && Instant::now() < give_up {
            end_tree(child.id());
        }
        assert!(!children().contains(&child.id()));
    }
}
