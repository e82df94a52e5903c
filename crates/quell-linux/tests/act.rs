//! The stock actuator on real threads of real processes: which settings it writes, which it leaves alone,
//! and that everything is as before afterwards, whichever way it ends.
//!
//! The threads belong to copies of this test program, started in a role (see [`role`]).

#![allow(clippy::unwrap_used)] // helpers outside #[test] functions are test code too

use quell_linux::act::{self, ActError, Actuator, Subject};
use quell_model::{
    CgroupPath, CpuId, CpuSet, HostSample, Nice, Pid, Plan, SchedClass, Snapshot, Source,
    TenantName, TenantPlan, TenantSample, TenantWeight, ThreadId, ThreadPlan, ThreadRole,
    ThreadSample, ThreadSettings, ThreadState, Tid, Topology, Weight,
};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// All settings that Quell could have changed, and those that it must not have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    policy: u32,
    flags: u64,
    nice: i32,
    slice: u64,
    affinity: CpuSet,
}

#[repr(C)]
#[derive(Default)]
struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

fn seen(tid: u32) -> Seen {
    let mut attr = Attr::default();
    // SAFETY: the kernel writes at most the 48 bytes of `attr`.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, 48, 0) };
    assert_eq!(result, 0, "sched_getattr {tid}");
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))
        .unwrap();
    let affinity = line.trim().parse().unwrap();
    Seen {
        policy: attr.policy,
        flags: attr.flags,
        nice: attr.nice,
        slice: attr.runtime,
        affinity,
    }
}

fn set_attr(tid: u32, policy: i32, flags: u64, nice: i32, runtime: u64) {
    let priority = u32::from(policy == libc::SCHED_FIFO);
    let policy = policy as u32;
    let attr = Attr {
        size: 48,
        policy,
        flags,
        nice,
        priority,
        runtime,
        ..Attr::default()
    };
    // SAFETY: the kernel reads the 48 bytes of `attr`.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0) };
    assert_eq!(
        result,
        0,
        "sched_setattr {tid}: {}",
        std::io::Error::last_os_error()
    );
}

fn pin(tid: u32, cpus: &str) {
    let cpus: CpuSet = cpus.parse().unwrap();
    let words = cpus.words();
    // SAFETY: the kernel reads the given number of bytes of `words`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            tid,
            size_of_val(words),
            words.as_ptr(),
        )
    };
    assert_eq!(result, 0, "sched_setaffinity {tid}");
}

fn thread_id(tid: u32) -> ThreadId {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/task/{tid}/stat")).unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1;
    let start_ticks = fields.split(' ').nth(19).unwrap().parse().unwrap();
    ThreadId {
        tid: Tid(tid),
        start_ticks,
    }
}

/// Starts a copy of this program in a role.
fn start(role: &str, arguments: &[&str]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture", "--test-threads=1"])
        .env("QUELL_TEST_ROLE", role)
        .env("QUELL_TEST_ARGUMENTS", arguments.join(" "))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A process whose threads are scheduled by the tests.
struct Victim {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    tids: Vec<u32>,
}

impl Victim {
    fn start(threads: usize) -> Victim {
        let mut child = start("victim", &[&threads.to_string()]);
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut victim = Victim {
            child,
            input,
            output,
            tids: Vec::new(),
        };
        victim.tids = victim.answer();
        victim
    }

    /// The next line of numbers after an `@`, which distinguishes it from the test harness's own lines.
    fn answer(&mut self) -> Vec<u32> {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.output.read_line(&mut line).unwrap(),
                0,
                "the victim has ended"
            );
            if let Some((_, numbers)) = line.split_once('@') {
                return numbers
                    .split_whitespace()
                    .map(|n| n.parse().unwrap())
                    .collect();
            }
        }
    }

    /// Lets the main thread of the process make a `thread` or a child process (`fork`).
    fn make(&mut self, what: &str) -> u32 {
        writeln!(self.input, "{what}").unwrap();
        self.answer()[0]
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn seen(&self) -> Vec<Seen> {
        self.tids.iter().map(|&tid| seen(tid)).collect()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The roles of the copies of this program: not a test of its own.
#[test]
fn role() {
    let Ok(role) = std::env::var("QUELL_TEST_ROLE") else {
        return;
    };
    let arguments = std::env::var("QUELL_TEST_ARGUMENTS").unwrap();
    let arguments: Vec<&str> = arguments.split(' ').collect();
    match role.as_str() {
        "victim" => victim(arguments[0].parse().unwrap()),
        "actuator" => act_until_killed(Path::new(arguments[0]), &arguments[1..]),
        "full-disk" => act_on_a_full_disk(Path::new(arguments[0]), &arguments[1..]),
        "nobody" => act_without_privilege(Path::new(arguments[0]), &arguments[1..]),
        other => panic!("no role {other}"),
    }
    std::process::exit(0);
}

fn victim(threads: usize) {
    let own = || nix::unistd::gettid().as_raw();
    let sleeper = || {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            sender.send(own()).unwrap();
            loop {
                std::thread::sleep(Duration::from_secs(60));
            }
        });
        receiver.recv().unwrap()
    };
    let mut tids = vec![own()];
    tids.extend((1..threads).map(|_| sleeper()));
    let tids: Vec<String> = tids.iter().map(|tid| tid.to_string()).collect();
    println!("@{}", tids.join(" "));
    let mut children = Vec::new();
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "thread" => println!("@{}", sleeper()),
            _ => {
                let child = Command::new("sleep").arg("60").spawn().unwrap();
                println!("@{}", child.id());
                children.push(child);
            }
        }
    }
    for mut child in children {
        let _ = child.kill();
    }
}

/// A snapshot and a plan with one tenant.
struct Case {
    snapshot: Snapshot,
    plan: Plan,
}

impl Case {
    fn new(pid: u32, tids: &[u32]) -> Case {
        let name = TenantName::from("t");
        let spec = serde_json::from_value(serde_json::json!({"name": "t"})).unwrap();
        let mut case = Case {
            snapshot: Snapshot {
                seq: 0,
                time_ns: 0,
                period_ns: 80_000_000,
                source: Source::Procfs,
                host: HostSample {
                    topology: Arc::new(Topology::flat(2)),
                    cpus: Vec::new(),
                },
                tenants: vec![TenantSample {
                    name: name.clone(),
                    spec: Arc::new(spec),
                    selectors: Arc::default(),
                    cgroup: None,
                    threads: Vec::new(),
                    limit_cpus: None,
                    taken_by: None,
                    labels: Arc::default(),
                    ended: None,
                    waits: None,
                    occasions: None,
                    guest: None,
                }],
            },
            plan: Plan {
                seq: 0,
                tenants: vec![TenantPlan {
                    name,
                    weight: Some(TenantWeight(100)),
                    threads: Vec::new(),
                    promise: None,
                    group: None,
                }],
                ..Plan::default()
            },
        };
        tids.iter().for_each(|&tid| case.add(pid, tid, None));
        case
    }

    fn add(&mut self, pid: u32, tid: u32, forked_by: Option<u32>) {
        let id = thread_id(tid);
        let sample = ThreadSample {
            id,
            process: Pid(pid),
            name: "victim".into(),
            role: ThreadRole::Ordinary,
            forked_by: forked_by.map(thread_id),
            state: ThreadState::Blocked,
            cpu: CpuId(0),
            run_ns: 0,
            ready: None,
            throttled_ns: None,
            preemptions: None,
            wakeups: None,
            wakers: None,
            switches: None,
            migrations: None,
            settings: ThreadSettings {
                class: SchedClass::Fair,
                nice: Nice::default(),
                slice_ns: None,
                affinity: Arc::new(CpuSet::first(2)),
            },
        };
        let plan = ThreadPlan::leaving(id);
        let threads = &mut self.snapshot.tenants[0].threads;
        threads.push(sample);
        threads.sort_by_key(|t| t.id);
        let threads = &mut self.plan.tenants[0].threads;
        threads.push(plan);
        threads.sort_by_key(|t| t.id);
    }

    fn set(&mut self, tid: u32, nice: Option<i32>, latency_us: Option<u64>, cpus: Option<&str>) {
        let plan = self.plan.tenants[0]
            .threads
            .iter_mut()
            .find(|t| t.id.tid.0 == tid)
            .unwrap();
        plan.weight = nice.map(|nice| Nice::new(nice).unwrap().weight());
        plan.latency_ns = latency_us.map(|us| us * 1000);
        plan.cpus = cpus.map(|cpus| cpus.parse().unwrap());
    }

    fn apply(&self, actuator: &mut Actuator) -> act::ApplyReport {
        actuator.apply(&self.snapshot, &self.plan)
    }
}

/// The path of a journal in a folder of its own.
fn journal() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state/journal");
    (dir, path)
}

/// The lock that stands for the host's, beside the journal, so that the tests can run at the same time.
fn lock(journal: &Path) -> PathBuf {
    journal.with_extension("host-lock")
}

fn open(journal: &Path) -> Result<Actuator, ActError> {
    Actuator::open_with_lock(journal, &lock(journal))
}

fn restore(journal: &Path) -> Result<act::RestoreReport, ActError> {
    act::restore_with_lock(journal, &lock(journal))
}

/// Whether this host allows the test at all; prints a reason on stderr if not.
fn can(actuator: &Actuator) -> bool {
    let can = actuator.capabilities();
    let root = nix::unistd::geteuid().is_root();
    if !root || !can.slice.available {
        quell_testkit::skip!(Other, "needs root and custom slices ({})", can.slice);
    }
    root && can.slice.available
}

/// The number of the last test CPU: `1` where there are two.
fn last_cpu() -> String {
    (std::thread::available_parallelism().unwrap().get() - 1).to_string()
}

#[test]
fn a_plan_holds_and_restore_puts_everything_back() {
    let (_dir, path) = journal();
    let mut actuator = open(&path).unwrap();
    if !can(&actuator) {
        return;
    }
    let victim = Victim::start(5);
    let t = victim.tids.clone();
    set_attr(t[1], libc::SCHED_BATCH, 1, 5, 0); // reset-on-fork
    set_attr(t[2], libc::SCHED_OTHER, 0, -2, 7_000_000);
    pin(t[3], "0");
    let before = victim.seen();

    let mut case = Case::new(victim.pid(), &t);
    case.set(t[0], Some(-4), Some(1_000), None);
    case.set(t[1], Some(3), Some(50_000), None);
    case.set(t[2], Some(0), None, Some(&last_cpu()));
    case.set(t[3], None, Some(10), Some("0-1"));
    let report = case.apply(&mut actuator);
    assert_eq!(report.journal_error, None);
    assert_eq!(
        (report.writes.nice, report.writes.slice),
        (3, 2),
        "{report}"
    );
    let now = victim.seen();
    assert_eq!((now[0].nice, now[0].slice), (-4, 1_000_000));
    assert_eq!(
        (now[1].nice, now[1].slice),
        (3, before[1].slice),
        "never longer than the kernel's own"
    );
    assert_eq!(
        (now[1].policy, now[1].flags),
        (before[1].policy, before[1].flags)
    );
    assert_eq!(
        (now[2].nice, now[2].slice),
        (0, 7_000_000),
        "its own slice stays"
    );
    assert_eq!(now[2].affinity.to_string(), last_cpu());
    assert_eq!(
        (now[3].nice, now[3].slice),
        (0, 100_000),
        "clamped to what EEVDF takes"
    );
    assert_eq!(
        now[3].affinity.to_string(),
        "0",
        "never beyond what its owner allows"
    );
    assert_eq!(
        now[4], before[4],
        "a thread of which the plan wants nothing"
    );

    let size = std::fs::metadata(&path).unwrap().len();
    let report = case.apply(&mut actuator);
    assert_eq!(
        (report.writes.total(), report.given_back, report.notes.len()),
        (0, 0, 0),
        "{report}"
    );
    assert_eq!(
        std::fs::metadata(&path).unwrap().len(),
        size,
        "a steady plan writes no journal"
    );
    case.set(t[0], Some(-4), Some(1_040), None);
    assert_eq!(
        case.apply(&mut actuator).writes.total(),
        0,
        "4 % is not worth a write"
    );
    case.set(t[0], Some(-4), Some(900), None);
    assert_eq!(case.apply(&mut actuator).writes.slice, 1);

    let report = actuator.restore();
    assert!(report.is_complete() && report.left_alone == 0, "{report}");
    assert_eq!(victim.seen(), before);
    drop(actuator);
    let report = restore(&path).unwrap();
    assert_eq!(
        report,
        act::RestoreReport::default(),
        "nothing is left to undo"
    );
}

#[test]
fn what_leaves_the_plan_gets_its_settings_back() {
    let (_dir, path) = journal();
    let mut actuator = open(&path).unwrap();
    if !can(&actuator) {
        return;
    }
    let victim = Victim::start(3);
    let t = victim.tids.clone();
    let before = victim.seen();
    let mut case = Case::new(victim.pid(), &t);
    for &tid in &t {
        case.set(tid, Some(7), Some(500), Some("0"));
    }
    case.apply(&mut actuator);
    assert!(
        victim
            .seen()
            .iter()
            .all(|s| s.nice == 7 && s.slice == 500_000)
    );
    case.set(t[0], Some(7), None, None);
    case.plan.tenants[0].threads.retain(|p| p.id.tid.0 != t[1]);
    let report = case.apply(&mut actuator);
    assert_eq!(report.given_back, 5, "{report}");
    let now = victim.seen();
    assert_eq!(
        now[0],
        Seen {
            nice: 7,
            ..before[0].clone()
        }
    );
    assert_eq!(now[1], before[1]);
    assert_eq!(now[2].slice, 500_000);
    // The thread is managed again, and then the whole tenant leaves the plan.
    case.set(t[0], Some(2), Some(900), None);
    assert_eq!(case.apply(&mut actuator).writes.total(), 2);
    case.plan.tenants.clear();
    case.apply(&mut actuator);
    assert_eq!(victim.seen(), before);
    drop(actuator);
    assert_eq!(victim.seen(), before);
}

#[test]
fn what_someone_else_changed_is_left_alone_and_said() {
    let (_dir, path) = journal();
    let mut actuator = open(&path).unwrap();
    if !can(&actuator) {
        return;
    }
    let victim = Victim::start(2);
    let t = victim.tids.clone();
    let before = victim.seen();
    let mut case = Case::new(victim.pid(), &t);
    case.set(t[0], Some(5), Some(500), Some("0"));
    case.set(t[1], Some(5), Some(500), None);
    case.apply(&mut actuator);
    set_attr(t[0], libc::SCHED_OTHER, 0, 9, 500_000);
    case.set(t[0], Some(6), Some(800), Some("0"));
    let report = case.apply(&mut actuator);
    assert_eq!(report.notes.len(), 1, "{report}");
    assert_eq!(report.notes[0].subject, Subject::Thread(thread_id(t[0])));
    let now = seen(t[0]);
    assert_eq!(
        (now.nice, now.slice),
        (9, 800_000),
        "the slice is still Quell's"
    );
    case.set(t[0], Some(1), Some(800), Some("0"));
    let report = case.apply(&mut actuator);
    assert_eq!(
        (seen(t[0]).nice, report.left_alone, report.notes.len()),
        (9, 1, 0),
        "{report}"
    );
    // A change between the last period and the end.
    set_attr(t[1], libc::SCHED_OTHER, 0, 5, 12_000_000);
    let report = actuator.restore();
    assert_eq!((report.left_alone, report.failed), (2, 0), "{report}");
    assert_eq!(
        seen(t[0]),
        Seen {
            nice: 9,
            ..before[0].clone()
        }
    );
    assert_eq!(
        seen(t[1]),
        Seen {
            slice: 12_000_000,
            ..before[1].clone()
        }
    );
}

#[test]
fn other_classes_reused_ids_and_the_dead_are_not_touched() {
    let (_dir, path) = journal();
    let mut actuator = open(&path).unwrap();
    if !can(&actuator) {
        return;
    }
    let victim = Victim::start(3);
    let t = victim.tids.clone();
    set_attr(t[0], libc::SCHED_FIFO, 0, 0, 0);
    let before = victim.seen();
    let mut case = Case::new(victim.pid(), &t);
    for &tid in &t {
        case.set(tid, Some(5), Some(500), Some("0"));
    }
    // The id of a thread that is gone, now the id of another thread.
    let other = case.plan.tenants[0]
        .threads
        .iter()
        .position(|p| p.id.tid.0 == t[1])
        .unwrap();
    case.plan.tenants[0].threads[other].id.start_ticks -= 1;
    case.snapshot.tenants[0].threads[other].id.start_ticks -= 1;
    let report = case.apply(&mut actuator);
    assert_eq!((report.gone, report.left_alone), (1, 1), "{report}");
    assert!(
        report
            .notes
            .iter()
            .any(|n| n.subject == Subject::Thread(thread_id(t[0])))
    );
    assert_eq!(victim.seen()[..2], before[..2]);
    assert_eq!(seen(t[2]).nice, 5);
    drop(victim);
    case.set(t[2], Some(8), Some(500), Some("0"));
    let report = case.apply(&mut actuator);
    assert_eq!(
        (report.writes.total(), report.notes.len()),
        (0, 0),
        "{report}"
    );
    let report = actuator.restore();
    assert_eq!(
        (report.restored, report.failed, report.left_alone),
        (0, 0, 0),
        "{report}"
    );
}

#[test]
fn children_get_the_originals_of_their_creators() {
    let (_dir, path) = journal();
    let mut actuator = open(&path).unwrap();
    if !can(&actuator) {
        return;
    }
    let mut victim = Victim::start(1);
    let main = victim.tids[0];
    set_attr(main, libc::SCHED_OTHER, 0, 2, 6_000_000);
    std::thread::sleep(Duration::from_millis(20)); // older than the children by a tick
    let before = seen(main);
    let mut case = Case::new(victim.pid(), &victim.tids);
    case.set(main, Some(-3), Some(700), None);
    case.apply(&mut actuator);
    let known = victim.make("thread");
    let guessed = victim.make("fork");
    case.add(victim.pid(), known, Some(main));
    case.add(guessed, guessed, None);
    case.set(known, Some(1), None, None); // an inherited slice that the plan does not want
    case.set(guessed, Some(1), Some(900), None);
    let report = case.apply(&mut actuator);
    assert_eq!(report.given_back, 1, "{report}");
    assert_eq!((seen(known).nice, seen(known).slice), (1, 6_000_000));
    assert_eq!((seen(guessed).nice, seen(guessed).slice), (1, 900_000));
    // Threads born after the last period: the actuator never hears of these.
    let unseen = [victim.make("thread"), victim.make("fork")];
    assert_eq!((seen(unseen[1]).nice, seen(unseen[1]).slice), (-3, 700_000));
    let report = actuator.restore();
    assert!(report.is_complete() && report.left_alone == 0, "{report}");
    for tid in [main, known, guessed, unseen[0], unseen[1]] {
        assert_eq!(
            seen(tid),
            before,
            "{tid} of {main} {known} {guessed} {unseen:?}: {report}"
        );
    }
}

#[test]
fn two_do_not_act_at_once() {
    let (_dir, path) = journal();
    let first = open(&path).unwrap();
    let mode = |p: &Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(p).unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
    for error in [open(&path).map(drop), restore(&path).map(drop)] {
        let error = error.unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("process {}", std::process::id())),
            "{error}"
        );
        assert!(
            matches!(error, ActError::Locked { pid: Some(pid), .. } if pid == std::process::id())
        );
    }
    // With another journal it is still the same host.
    let other = path.with_file_name("other");
    let error = Actuator::open_with_lock(&other, &lock(&path)).unwrap_err();
    assert!(
        matches!(&error, ActError::Locked { path: held, .. } if *held == lock(&path)),
        "{error}"
    );
    assert!(!other.exists());
    drop(first);
    open(&path).unwrap();
    // Where such a lock is impossible, the notes say so.
    let actuator = Actuator::open_with_lock(&other, Path::new("/proc/no/act.lock")).unwrap();
    let notes = &actuator.capabilities().notes;
    assert!(
        notes.iter().any(|n| n.contains("/proc/no/act.lock")),
        "{notes:?}"
    );
}

#[test]
fn what_is_handed_over_stays_bound_and_nothing_else_stays() {
    let (_dir, path) = journal();
    let mut actuator = open(&path).unwrap();
    if !can(&actuator) || last_cpu() == "0" {
        return;
    }
    let victim = Victim::start(2);
    let (t, before) = (&victim.tids, victim.seen());
    let mut case = Case::new(victim.pid(), t);
    for &tid in t {
        case.set(tid, Some(3), None, Some("0"));
    }
    case.apply(&mut actuator);
    let report = actuator.reset_for_reload(&[case.plan.tenants[0].threads[0].id].into());
    assert!(report.is_complete(), "{report}");
    let seen = victim.seen();
    assert_eq!(seen[0].affinity.to_string(), "0");
    assert_eq!((seen[0].nice, &seen[1]), (before[0].nice, &before[1]));
    // The next planner finds it as it was, and its owner's choice is not forgotten.
    case.plan.tenants[0].threads.remove(1);
    let report = case.apply(&mut actuator);
    assert_eq!(
        (report.writes.affinity, report.left_alone),
        (0, 0),
        "{report}"
    );
    assert!(actuator.restore().is_complete());
    assert_eq!(victim.seen(), before);
}

/// A cpuset made for a test, which is removed when its processes have ended.
struct Cpuset(PathBuf);

impl Cpuset {
    /// A cpuset of all CPUs with a process of `threads` threads in it; `None` where the machine has no cpuset
    /// hierarchy, or too few CPUs.
    fn with_victim(actuator: &Actuator, what: &str, threads: usize) -> Option<(Cpuset, Victim)> {
        let name = format!("quell-test-{what}-{}", std::process::id());
        let dir = Path::new("/sys/fs/cgroup/cpuset").join(name);
        if !can(actuator) || last_cpu() == "0" || std::fs::create_dir(&dir).is_err() {
            quell_testkit::skip!(Other, "needs two CPUs and a cgroup v1 cpuset hierarchy");
            return None;
        }
        let (cpuset, victim) = (Cpuset(dir), Victim::start(threads));
        cpuset.allow(&format!("0-{}", last_cpu()));
        cpuset.write("cpuset.mems", "0");
        for tid in &victim.tids {
            cpuset.write("tasks", &tid.to_string());
        }
        Some((cpuset, victim))
    }

    /// Sets the CPUs that it allows.
    fn allow(&self, cpus: &str) {
        self.write("cpuset.cpus", cpus);
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).unwrap();
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_cpuset_that_shrinks_and_grows_back_leaves_nothing_behind() {
    let (_dir, path) = journal();
    let mut actuator = open(&path).unwrap();
    // A cpuset cannot go while it has processes, so it is dropped after its victim.
    let Some((cpuset, victim)) = Cpuset::with_victim(&actuator, "cpuset", 3) else {
        return;
    };
    let (t, last) = (&victim.tids, last_cpu());
    let all = format!("0-{last}");
    let affinities = || -> Vec<String> {
        let seen = victim.seen();
        seen.iter().map(|s| s.affinity.to_string()).collect()
    };
    let mut case = Case::new(victim.pid(), t);
    t.iter()
        .for_each(|&tid| case.set(tid, None, None, Some(&last)));
    assert_eq!(case.apply(&mut actuator).writes.affinity, 3);
    cpuset.allow("0");
    assert_eq!(
        affinities(),
        ["0", "0", "0"],
        "the placement's CPU is not there"
    );
    // One thread leaves the plan, one is to be elsewhere, one ends with Quell.
    case.plan.tenants[0].threads.retain(|p| p.id.tid.0 != t[0]);
    case.set(t[1], None, None, Some("0"));
    let report = case.apply(&mut actuator);
    assert_eq!(
        (
            report.given_back,
            report.writes.affinity,
            report.notes.len()
        ),
        (1, 1, 0),
        "{report}"
    );
    let report = actuator.restore();
    assert!(report.is_complete() && report.left_alone == 0, "{report}");
    cpuset.allow(&all);
    assert_eq!(affinities(), [all.as_str(); 3]);
}

#[test]
fn cpus_that_a_cpuset_takes_or_somebody_changes_are_told_until_they_are_back() {
    let (_dir, path) = journal();
    let mut actuator = open(&path).unwrap();
    let Some((cpuset, victim)) = Cpuset::with_victim(&actuator, "narrow", 2) else {
        return;
    };
    let (t, all) = (&victim.tids, format!("0-{}", last_cpu()));
    let mut case = Case::new(victim.pid(), t);
    // The snapshot has the settings that the threads have by now.
    let apply = |case: &mut Case, actuator: &mut Actuator| {
        for thread in &mut case.snapshot.tenants[0].threads {
            thread.settings.affinity = Arc::new(seen(thread.id.tid.0).affinity);
        }
        let report = case.apply(actuator);
        let unmet = actuator.unmet().remove(&TenantName::from("t"));
        (report, unmet.unwrap_or_default().join("\n"))
    };
    let told = format!("2 of its threads can have CPUs 0 only, not {all} as planned");
    t.iter()
        .for_each(|&tid| case.set(tid, None, None, Some(&all)));
    let (_, unmet) = apply(&mut case, &mut actuator);
    assert_eq!(unmet, "");
    // The cpuset shrinks below what Quell gave,
    cpuset.allow("0");
    let (report, unmet) = apply(&mut case, &mut actuator);
    assert!(unmet.starts_with(&told), "{unmet:?} {report}");
    assert_eq!(report.notes.len(), 0, "{report}");
    let (_, again) = apply(&mut case, &mut actuator);
    assert_eq!(again, unmet);
    // and grows back.
    cpuset.allow(&all);
    let (_, unmet) = apply(&mut case, &mut actuator);
    assert_eq!(unmet, "");
    // Another program chooses the CPUs: they are its choice from then on, not an effect of a cpuset.
    pin(t[0], "0");
    let (report, unmet) = apply(&mut case, &mut actuator);
    assert_eq!(unmet, "");
    assert!(report.notes[0].text.contains("someone else"), "{report}");
    let (report, _) = apply(&mut case, &mut actuator);
    assert_eq!(report.notes.len(), 0, "said once: {report}");
    actuator.restore();
    assert_eq!(seen(t[0]).affinity.to_string(), "0");
}

/// Writes as many settings of every kind as it can until it is killed.
fn act_until_killed(path: &Path, tids: &[&str]) {
    let tids: Vec<u32> = tids.iter().map(|t| t.parse().unwrap()).collect();
    let mut actuator = open(path).unwrap();
    let mut case = Case::new(tids[0], &tids);
    println!("@1");
    let mut random = std::process::id() as usize;
    for round in 0.. {
        for (index, &tid) in tids.iter().enumerate() {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(index + 1);
            let pick = random >> 33;
            let nice = (pick % 7 != 0).then_some((pick % 39) as i32 - 19);
            let latency = (pick % 5 != 0).then_some(100 + (pick as u64 % 9_000));
            let cpus = (pick % 3 != 0).then_some(["0", "0-1"][pick % 2]);
            case.set(tid, nice, latency, cpus);
        }
        let report = case.apply(&mut actuator);
        assert_eq!(
            (report.journal_error, report.notes.len().min(round)),
            (None, 0)
        );
    }
}

#[test]
fn after_kill_9_at_any_point_everything_is_put_back() {
    let (_dir, path) = journal();
    if !can(&open(&path).unwrap()) {
        return;
    }
    let victim = Victim::start(6);
    let t = victim.tids.clone();
    set_attr(t[1], libc::SCHED_BATCH, 1, 5, 0);
    set_attr(t[2], libc::SCHED_OTHER, 0, 3, 7_000_000);
    pin(t[3], "0");
    let before = victim.seen();
    let mut arguments = vec![path.to_str().unwrap().to_string()];
    arguments.extend(t.iter().map(|tid| tid.to_string()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut restored = 0;
    for iteration in 0..40u64 {
        let mut child = start("actuator", &arguments);
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("@1") {
            line.clear();
            assert_ne!(
                output.read_line(&mut line).unwrap(),
                0,
                "the actuator died by itself"
            );
        }
        std::thread::sleep(Duration::from_micros(iteration * iteration * 7919 % 20_000));
        assert!(
            child.try_wait().unwrap().is_none(),
            "the actuator died by itself"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        let report = if iteration % 2 == 0 {
            restore(&path).unwrap()
        } else {
            let actuator = open(&path).unwrap();
            actuator.recovered().cloned().unwrap_or_default()
        };
        assert!(
            report.is_complete() && report.left_alone == 0,
            "{iteration}: {report}"
        );
        restored += report.restored;
        assert_eq!(victim.seen(), before, "{iteration}: {report}");
    }
    assert!(
        restored > 40,
        "the kills came too early to show anything: {restored}"
    );
}

/// Runs a role to its end and returns whether it succeeded.
fn run_role(role: &str, path: &Path, tids: &[u32]) {
    let tids: Vec<String> = tids.iter().map(|t| t.to_string()).collect();
    let mut arguments = vec![path.to_str().unwrap()];
    arguments.extend(tids.iter().map(String::as_str));
    let output = start(role, &arguments).wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

fn act_on_a_full_disk(path: &Path, tids: &[&str]) {
    use nix::sys::resource::{Resource, setrlimit};
    use nix::sys::signal::{SigHandler, Signal, signal};
    let tids: Vec<u32> = tids.iter().map(|t| t.parse().unwrap()).collect();
    let mut actuator = open(path).unwrap();
    // SAFETY: ignoring a signal runs no code of this program.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.unwrap();
    let mut case = Case::new(tids[0], &tids);
    case.set(tids[0], Some(4), Some(600), None);
    assert_eq!(case.apply(&mut actuator).writes.total(), 2);
    let size = std::fs::metadata(path).unwrap().len();
    setrlimit(Resource::RLIMIT_FSIZE, size + 30, libc::RLIM_INFINITY).unwrap();
    let before = seen(tids[1]);
    case.set(tids[0], Some(5), Some(600), None);
    case.set(tids[1], Some(5), Some(800), None);
    let report = case.apply(&mut actuator);
    assert!(
        report.journal_error.is_some() && report.writes.total() == 0,
        "{report}"
    );
    assert_eq!((seen(tids[0]).nice, seen(tids[1])), (4, before.clone()));
    assert_eq!(
        std::fs::metadata(path).unwrap().len(),
        size,
        "no part of a record stays"
    );
    setrlimit(
        Resource::RLIMIT_FSIZE,
        libc::RLIM_INFINITY,
        libc::RLIM_INFINITY,
    )
    .unwrap();
    let report = case.apply(&mut actuator);
    assert_eq!((report.journal_error, report.writes.total()), (None, 3));
    assert!(actuator.restore().is_complete());
    assert_eq!(seen(tids[1]), before);
}

#[test]
fn without_a_journal_nothing_is_changed() {
    let (_dir, path) = journal();
    if !can(&open(&path).unwrap()) {
        return;
    }
    let victim = Victim::start(2);
    run_role("full-disk", &path, &victim.tids);
}

fn act_without_privilege(path: &Path, tids: &[&str]) {
    let tids: Vec<u32> = tids.iter().map(|t| t.parse().unwrap()).collect();
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    nix::unistd::setuid(nobody.uid).unwrap();
    let mut actuator = open(path).unwrap();
    assert!(actuator.capabilities().nice.detail.contains("CAP_SYS_NICE"));
    let before: Vec<Seen> = tids.iter().map(|&tid| seen(tid)).collect();
    let mut case = Case::new(tids[0], &tids);
    for &tid in &tids {
        case.set(tid, Some(5), Some(800), Some("0"));
    }
    let report = case.apply(&mut actuator);
    let refused = report
        .notes
        .iter()
        .filter(|n| n.text.contains("CAP_SYS_NICE"))
        .count();
    assert_eq!(
        (report.writes.total(), refused),
        (0, 3),
        "one note for each kind: {report}"
    );
    let report = case.apply(&mut actuator);
    assert_eq!((report.left_alone, report.notes.len()), (6, 0), "{report}");
    let report = actuator.restore();
    assert!(report.is_complete(), "{report}");
    assert_eq!(
        tids.iter().map(|&tid| seen(tid)).collect::<Vec<_>>(),
        before
    );
}

#[test]
fn missing_privileges_are_said_once() {
    let (dir, path) = journal();
    if !can(&open(&path).unwrap()) {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let victim = Victim::start(2);
    run_role("nobody", &dir.path().join("nobody/journal"), &victim.tids);
}

#[test]
fn a_tenants_weight_is_its_cgroups() {
    let (_dir, path) = journal();
    let mut actuator = open(&path).unwrap();
    let name = format!("quell-test-{}", std::process::id());
    let dir = Path::new("/sys/fs/cgroup/cpu").join(&name);
    let file = dir.join("cpu.shares");
    if !actuator.capabilities().cgroup_weight.available || std::fs::create_dir(&dir).is_err() {
        quell_testkit::skip!(
            Other,
            "no writable cgroup v1 CPU hierarchy at /sys/fs/cgroup/cpu"
        );
        return;
    }
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let read = || {
            std::fs::read_to_string(&file)
                .unwrap()
                .trim()
                .parse::<u64>()
                .unwrap()
        };
        std::fs::write(&file, "2000").unwrap();
        let mut case = Case::new(std::process::id(), &[]);
        case.snapshot.tenants[0].cgroup = Some(CgroupPath(format!("/{name}").into()));
        case.plan.tenants[0].weight = Some(TenantWeight(300));
        let report = case.apply(&mut actuator);
        assert_eq!((report.writes.cgroup_weight, read()), (1, 3072), "{report}");
        assert_eq!(case.apply(&mut actuator).writes.total(), 0);
        case.plan.tenants[0].weight = Some(TenantWeight(200));
        case.apply(&mut actuator);
        assert!(actuator.restore().is_complete());
        assert_eq!(read(), 2000);
        case.apply(&mut actuator);
        case.plan.tenants.clear();
        assert_eq!((case.apply(&mut actuator).given_back, read()), (1, 2000));
        let mut case = Case::new(std::process::id(), &[]);
        case.snapshot.tenants[0].cgroup = Some(CgroupPath(format!("/{name}").into()));
        case.apply(&mut actuator);
        std::fs::write(&file, "555").unwrap();
        case.plan.tenants[0].weight = Some(TenantWeight(700));
        let report = case.apply(&mut actuator);
        assert_eq!(
            (report.left_alone, report.notes.len(), read()),
            (1, 1, 555),
            "{report}"
        );
        assert_eq!((actuator.restore().left_alone, read()), (1, 555));
    }));
    std::fs::remove_dir(&dir).unwrap();
    result.unwrap();
}

#[test]
fn a_weight_that_an_idle_cgroup_or_somebody_else_has_is_told_and_set_when_that_ends() {
    let (_dir, path) = journal();
    let mut actuator = open(&path).unwrap();
    let name = format!("quell-test-idle-{}", std::process::id());
    let dir = Path::new("/sys/fs/cgroup/cpu").join(&name);
    let file = |name: &str| dir.join(name);
    if !actuator.capabilities().cgroup_weight.available || std::fs::create_dir(&dir).is_err() {
        quell_testkit::skip!(
            Other,
            "no writable cgroup v1 CPU hierarchy at /sys/fs/cgroup/cpu"
        );
        return;
    }
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        if std::fs::write(file("cpu.idle"), "1").is_err() {
            quell_testkit::skip!(Other, "the kernel has no idle cgroups");
            return;
        }
        let read = || std::fs::read_to_string(file("cpu.shares")).unwrap();
        let idle_weight = read();
        let mut case = Case::new(std::process::id(), &[]);
        case.snapshot.tenants[0].cgroup = Some(CgroupPath(format!("/{name}").into()));
        case.plan.tenants[0].weight = Some(TenantWeight(300));
        let first = case.apply(&mut actuator);
        assert_eq!(
            (first.writes.total(), first.notes.len(), read()),
            (0, 1, idle_weight),
            "{first}"
        );
        let tenant = case.plan.tenants[0].name.clone();
        let why = |actuator: &Actuator| actuator.unmet().remove(&tenant).map(|it| it.join("\n"));
        assert!(
            why(&actuator).unwrap().contains("cpu.idle = 1"),
            "{:?}",
            why(&actuator)
        );
        assert_eq!(case.apply(&mut actuator).notes.len(), 0, "said once");
        // Nothing was written, so there is nothing to report at the end.
        let restored = actuator.restore();
        assert_eq!(
            (restored.left_alone, restored.notes.len()),
            (0, 0),
            "{restored}"
        );

        case.apply(&mut actuator);
        std::fs::write(file("cpu.idle"), "0").unwrap();
        for _ in 0..2 {
            case.apply(&mut actuator);
        }
        assert_eq!((read().trim(), why(&actuator)), ("3072", None));
        // The cgroup is idle again, and then not: the kernel has forgotten the weight.
        std::fs::write(file("cpu.idle"), "1").unwrap();
        case.apply(&mut actuator);
        assert!(why(&actuator).is_some());
        std::fs::write(file("cpu.idle"), "0").unwrap();
        for _ in 0..2 {
            case.apply(&mut actuator);
        }
        assert_eq!((read().trim(), why(&actuator)), ("3072", None));

        // The value that the cgroup had while it was idle is not the value that it is given back.
        assert!(actuator.restore().is_complete());
        assert_eq!(read().trim(), "1024");
        case.apply(&mut actuator);

        std::fs::write(file("cpu.shares"), "512").unwrap();
        let taken = case.apply(&mut actuator);
        assert!(
            taken.notes[0].text.contains("someone else changed it"),
            "{taken}"
        );
        assert!(
            why(&actuator).unwrap().contains("left at 512"),
            "{:?}",
            why(&actuator)
        );
        assert_eq!((actuator.restore().left_alone, read().trim()), (1, "512"));
    }));
    std::fs::remove_dir(&dir).unwrap();
    result.unwrap();
}

#[test]
fn weights_between_two_nice_values_are_right_on_average() {
    let (_dir, path) = journal();
    let mut actuator = open(&path).unwrap();
    if !can(&actuator) {
        return;
    }
    let victim = Victim::start(1);
    let mut case = Case::new(victim.pid(), &victim.tids);
    case.plan.tenants[0].threads[0].weight = Some(Weight::from_load(1100));
    let (mut sum, mut writes) = (0.0, 0);
    for _ in 0..1000 {
        writes += case.apply(&mut actuator).writes.nice;
        sum += Nice::new(seen(victim.tids[0]).nice)
            .unwrap()
            .weight()
            .as_load();
    }
    assert!(
        (sum / 1000.0 - 1100.0).abs() < 11.0,
        "mean {}",
        sum / 1000.0
    );
    assert!(
        (2..=70).contains(&writes),
        "{writes} writes in 1000 periods"
    );
}
