//! Observes real processes of this machine, all started by the tests.

#![allow(clippy::unwrap_used)]

use quell_linux::observe::{CpuHierarchy, ObserveError, Observer, Preference};
use quell_model::config::{AgentTenant, Selectors};
use quell_model::{Snapshot, Source, TenantSample, ThreadRole, ThreadState};
use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A child process that ends with the test, and its own children with it.
struct Started(Child);

impl Started {
    fn new(command: &mut Command) -> Started {
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Started(command.spawn().unwrap())
    }

    /// A shell that spins on a CPU, under another name and with a mark in its command line.
    fn spinner(mark: &str) -> Started {
        Started::new(
            Command::new("sh")
                .arg0(mark)
                .args(["-c", "while :; do :; done"]),
        )
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let group = nix::unistd::Pid::from_raw(self.0.id() as i32);
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

fn spec(name: &str, change: impl FnOnce(&mut Selectors)) -> AgentTenant {
    let mut tenant = AgentTenant::named(name);
    change(&mut tenant.selectors);
    tenant
}

fn tenant<'a>(snapshot: &'a Snapshot, name: &str) -> &'a TenantSample {
    snapshot
        .tenants
        .iter()
        .find(|t| t.name.as_str() == name)
        .unwrap()
}

fn pids(tenant: &TenantSample) -> Vec<u32> {
    let mut pids: Vec<u32> = tenant.threads.iter().map(|t| t.process.0).collect();
    pids.dedup();
    pids
}

/// Observers to test with: procfs always, BPF where it loads.
fn observers(specs: &[AgentTenant]) -> Vec<Observer> {
    let mut list = vec![Observer::new(specs, &[], Preference::Procfs).unwrap()];
    match Observer::new(specs, &[], Preference::Bpf) {
        Ok(observer) => list.push(observer),
        Err(ObserveError::Bpf { reason }) => quell_testkit::skip!(Bpf, "with BPF: {reason}"),
        Err(error) => panic!("{error}"),
    }
    list
}

/// Samples every 20 ms until the condition holds, for 30 s at most.
fn until(observer: &mut Observer, mut holds: impl FnMut(&Snapshot) -> bool) -> Snapshot {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        sleep(Duration::from_millis(20));
        let snapshot = observer.sample().unwrap();
        if holds(&snapshot) {
            return snapshot;
        }
        assert!(
            Instant::now() < end,
            "did not happen within 30 s: {snapshot:#?}"
        );
    }
}

#[test]
fn a_spinner_runs_and_a_sleeper_does_not() {
    let spinner = Started::spinner("spinner");
    let sleeper = Started::new(Command::new("sleep").arg("1000"));
    let specs = [
        spec("b-spin", |s| s.pid = vec![spinner.pid()]),
        spec("a-sleep", |s| s.pid = vec![sleeper.pid()]),
        spec("c-none", |s| s.pid = vec![4_194_304]),
    ];
    for mut observer in observers(&specs) {
        sleep(Duration::from_millis(50));
        let first = observer.sample().unwrap();
        assert_eq!(first.seq, 0);
        let names: Vec<_> = first.tenants.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a-sleep", "b-spin", "c-none"], "ascending by name");
        assert!(tenant(&first, "c-none").threads.is_empty());

        // On a busy machine the spinner may wait; after half a second, or some more, it gets something.
        let (mut run_ns, mut period_ns) = (0, 0);
        let end = Instant::now() + Duration::from_secs(60);
        let mut samples = 0;
        while samples < 10 || (run_ns <= period_ns / 50 && Instant::now() < end) {
            samples += 1;
            sleep(Duration::from_millis(50));
            let snapshot = observer.sample().unwrap();
            let spin = &tenant(&snapshot, "b-spin").threads[0];
            assert!(spin.run_ns <= snapshot.period_ns);
            assert_ne!(spin.state, ThreadState::Blocked);
            let idle = &tenant(&snapshot, "a-sleep").threads[0];
            assert_eq!((idle.run_ns, idle.state), (0, ThreadState::Blocked));
            assert_eq!(snapshot.host.cpus.len(), snapshot.host.topology.cpus.len());
            run_ns += spin.run_ns;
            period_ns += snapshot.period_ns;
        }
        assert!(run_ns > period_ns / 50, "{run_ns} of {period_ns} ns");
        if observer.source() == Source::Procfs {
            assert!(observer.fallback_reason().is_some());
        } else {
            assert_eq!(observer.fallback_reason(), None);
        }
    }
}

#[test]
fn an_observer_turns_to_other_tenants() {
    let (one, two, three) = (
        Started::spinner("one"),
        Started::spinner("two"),
        Started::spinner("three"),
    );
    let of = |name: &str, it: &Started| spec(name, |s| s.pid = vec![it.pid()]);
    let specs = [of("a", &one), of("b", &two), of("c", &three)];
    for mut observer in observers(&specs) {
        sleep(Duration::from_millis(50));
        observer.sample().unwrap();
        let wrong = [spec("a", |s| s.exe = Some("[".into()))];
        assert!(observer.follow(&wrong, &[]).is_err());
        let seen = until(&mut observer, |it| !tenant(it, "c").threads.is_empty());
        assert_eq!(seen.tenants.len(), 3);
        // One process stays, one joins another tenant, one leaves all tenants.
        observer
            .follow(&[of("new", &three), of("a", &one)], &[])
            .unwrap();
        sleep(Duration::from_millis(50));
        let next = observer.sample().unwrap();
        assert_eq!(next.seq, seen.seq + 1);
        let names: Vec<_> = next.tenants.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "new"]);
        assert_eq!(pids(tenant(&next, "a")), [one.pid()]);
        assert_eq!(pids(tenant(&next, "new")), [three.pid()]);
        // The figures of the first period are of that period only.
        let ran: Vec<u64> = next.tenants.iter().map(|t| t.threads[0].run_ns).collect();
        assert!(ran.iter().all(|ns| *ns <= next.period_ns), "{ran:?}");
        assert!(next.period_ns < 10_000_000_000);
        let next = until(&mut observer, |it| tenant(it, "new").threads[0].run_ns > 0);
        assert_eq!(next.source, observer.source());
    }
}

#[test]
fn every_selector_finds_its_process() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("quell-test-sleep");
    std::fs::copy("/bin/sleep", &copy).unwrap();
    let by_exe = Started::new(Command::new(&copy).arg("1000"));
    let by_cmdline = Started::spinner("quell-test-marked");
    // The shell starts a child, which is a descendant of the selected process.
    let by_pid = Started::new(Command::new("sh").args(["-c", "sleep 1000 & wait"]));
    let specs = [
        spec("exe", |s| s.exe = Some("quell-test-sl*".to_string())),
        spec("cmdline", |s| {
            s.cmdline = Some("^quell-test-marked -c".to_string())
        }),
        spec("pid", |s| s.pid = vec![by_pid.pid()]),
    ];
    for mut observer in observers(&specs) {
        let snapshot = until(&mut observer, |s| pids(tenant(s, "pid")).len() == 2);
        assert_eq!(pids(tenant(&snapshot, "exe")), [by_exe.pid()]);
        assert_eq!(pids(tenant(&snapshot, "cmdline")), [by_cmdline.pid()]);
        assert!(pids(tenant(&snapshot, "pid")).contains(&by_pid.pid()));
    }
}

#[test]
fn a_process_whose_executable_cannot_be_told_hides_nobody_else() {
    // The kernel tells paths of less than a page. Deeper folders are reached step by step.
    let dir = tempfile::tempdir().unwrap();
    let mut folder = std::fs::File::open(dir.path()).unwrap();
    let inside =
        |folder: &std::fs::File| PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    for _ in 0..20 {
        let next = inside(&folder).join("d".repeat(250));
        std::fs::create_dir(&next).unwrap();
        folder = std::fs::File::open(next).unwrap();
    }
    let program = inside(&folder).join("sleep");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let hidden = Started::new(Command::new(program).arg("1000"));
    let link = std::fs::read_link(format!("/proc/{}/exe", hidden.pid()));
    assert_eq!(
        link.unwrap_err().raw_os_error(),
        Some(nix::errno::Errno::ENAMETOOLONG as i32)
    );

    let shown = Started::new(Command::new("sleep").arg0("shown").arg("1000"));
    let specs = [
        spec("a", |s| s.cmdline = Some("^shown ".to_string())),
        spec("b", |s| s.exe = Some("no-such-program".to_string())),
    ];
    for mut observer in observers(&specs) {
        // A process that has just been started has no command line for a moment.
        let snapshot = until(&mut observer, |s| !pids(tenant(s, "a")).is_empty());
        assert_eq!(pids(tenant(&snapshot, "a")), [shown.pid()]);
    }
}

#[test]
fn a_wrong_selector_is_the_users_error() {
    let specs = [spec("web", |s| s.cmdline = Some("(".to_string()))];
    match Observer::new(&specs, &[], Preference::Auto) {
        Err(ObserveError::Selector(error)) => assert_eq!(error.key, "tenant[0].cmdline"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("took a wrong regular expression"),
    }
}

#[test]
fn both_sources_agree_on_run_time() {
    let spinner = Started::spinner("spinner");
    let specs = [spec("spin", |s| s.pid = vec![spinner.pid()])];
    let mut observers = observers(&specs);
    // The creation of the second observer took a while, which only the first has seen.
    observers
        .iter_mut()
        .for_each(|observer| drop(observer.sample().unwrap()));
    let mut run_ns = vec![0u64; observers.len()];
    for _ in 0..20 {
        sleep(Duration::from_millis(50));
        for (observer, sum) in observers.iter_mut().zip(&mut run_ns) {
            *sum += tenant(&observer.sample().unwrap(), "spin").threads[0].run_ns;
        }
    }
    // /proc is up to a tick (10 ms at most) behind at either end.
    let (low, high) = (run_ns.iter().min().unwrap(), run_ns.iter().max().unwrap());
    let tolerance = high / 10 + 25_000_000;
    assert!(high - low <= tolerance, "{run_ns:?}");
}

#[test]
fn hundreds_of_short_lived_threads_and_processes_never_break_a_period() {
    // Each round of the shell forks ten children, half of which run another program.
    let script = "while :; do for i in 1 2 3 4 5; do true & /bin/true & done; wait; done";
    let forks = Started::new(Command::new("sh").args(["-c", script]));
    let mut threads = Command::new(std::env::current_exe().unwrap());
    threads.args(["--exact", "short_lived_threads"]);
    let threads = Started::new(threads.env("QUELL_TEST_THREADS", "1"));
    let specs = [
        spec("forks", |s| s.pid = vec![forks.pid()]),
        spec("threads", |s| s.pid = vec![threads.pid()]),
    ];
    for mut observer in observers(&specs) {
        let mut seen = BTreeSet::new();
        let end = Instant::now() + Duration::from_secs(60);
        let mut samples = 0;
        // On a busy machine it takes more samples until ten threads have been born.
        while samples < 60 || (seen.len() <= 10 && Instant::now() < end) {
            samples += 1;
            sleep(Duration::from_millis(3));
            let snapshot = observer.sample().unwrap();
            for sample in &snapshot.tenants {
                assert!(
                    sample
                        .threads
                        .windows(2)
                        .all(|pair| pair[0].id < pair[1].id)
                );
                for thread in &sample.threads {
                    seen.insert(thread.id);
                    let ready = thread.ready.as_ref().map_or(0, |ready| ready.sum_ns);
                    assert!(thread.run_ns + ready <= snapshot.period_ns, "{thread:?}");
                }
            }
            assert!(pids(tenant(&snapshot, "forks")).contains(&forks.pid()));
            assert!(pids(tenant(&snapshot, "threads")).contains(&threads.pid()));
        }
        assert!(seen.len() > 10, "{} threads", seen.len());
    }
}

/// The other process of the test above; as a test it does nothing.
#[test]
fn short_lived_threads() {
    while std::env::var_os("QUELL_TEST_THREADS").is_some() {
        let threads = [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]
            .map(|n| std::thread::spawn(move || sleep(Duration::from_micros(n * 100))));
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

#[test]
fn the_observer_itself_is_no_tenants() {
    let child = Started::new(Command::new("sleep").arg("1000"));
    let own = std::process::id();
    let specs = [spec("own", |s| s.pid = vec![own])];
    for mut observer in observers(&specs) {
        let found = pids(tenant(&observer.sample().unwrap(), "own"));
        assert!(
            found.contains(&child.pid()) && !found.contains(&own),
            "{found:?}"
        );
    }
}

#[test]
fn a_child_leaves_its_tenant_when_it_runs_another_program() {
    let dir = tempfile::tempdir().unwrap();
    let shell = dir.path().join("quell-test-sh");
    std::fs::copy("/bin/sh", &shell).unwrap();
    // One child goes on as the shell, the other becomes a sleep.
    let script = "(while :; do read x; done) < /dev/zero & sleep 1000 & wait";
    let specs = [spec("shells", |s| {
        s.exe = Some("quell-test-sh".to_string())
    })];
    for mut observer in observers(&specs) {
        let parent = Started::new(Command::new(&shell).args(["-c", script]));
        let snapshot = until(&mut observer, |s| {
            let names = &tenant(s, "shells").threads;
            names.len() == 2 && names.iter().all(|t| &*t.name == "quell-test-sh")
        });
        assert!(pids(tenant(&snapshot, "shells")).contains(&parent.pid()));
        drop(parent);
        until(&mut observer, |s| tenant(s, "shells").threads.is_empty());
    }
}

#[test]
fn a_cgroup_of_ones_own_is_found_and_shared_ones_are_not() {
    let Some((name, cgroup)) = Cgroup::new("own") else {
        return;
    };
    let inside = Started::new(Command::new("sleep").arg("1000"));
    cgroup.take(&inside);
    let outside = Started::new(Command::new("sleep").arg("1000"));
    let specs = [
        spec("inside", |s| s.cgroup = Some(format!("{name}/**"))),
        spec("glob", |s| {
            s.cgroup = Some(name[..name.len() - 1].to_string() + "?")
        }),
        spec("outside", |s| s.pid = vec![outside.pid()]),
    ];
    for mut observer in observers(&specs) {
        let snapshot = observer.sample().unwrap();
        let found = tenant(&snapshot, "glob");
        assert_eq!(pids(found), [inside.pid()]);
        assert_eq!(
            found.cgroup.as_ref().map(|c| c.0.to_string()),
            Some(format!("/{name}"))
        );
        assert!(
            tenant(&snapshot, "inside").threads.is_empty(),
            "`x/**` is what is below x"
        );
        assert_eq!(tenant(&snapshot, "outside").cgroup, None);
    }
    // A cgroup with a stranger in it belongs to no tenant.
    cgroup.take(&outside);
    let specs = [spec("inside", |s| s.pid = vec![inside.pid()])];
    for mut observer in observers(&specs) {
        assert_eq!(tenant(&observer.sample().unwrap(), "inside").cgroup, None);
    }
    drop((inside, outside));
}

/// A scratch cgroup, removed when its processes are gone.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup, and returns its name too; `None`, with the reason printed, where that is impossible.
    fn new(what: &str) -> Option<(String, Cgroup)> {
        let skip = |why: String| -> Option<(String, Cgroup)> {
            quell_testkit::skip!(Cgroups, "{why}");
            None
        };
        let Some(hierarchy) = CpuHierarchy::find() else {
            return skip("no cgroup hierarchy has the cpu controller".to_string());
        };
        let name = format!("quell-test-{what}-{}", std::process::id());
        let directory = hierarchy.directory(&name);
        if let Err(error) = std::fs::create_dir(&directory) {
            return skip(format!("cannot make a cgroup: {error}"));
        }
        let cgroup = Cgroup(directory);
        if !cgroup.0.join(hierarchy.weight_file()).exists() {
            return skip("the root does not delegate the cpu controller".to_string());
        }
        Some((name, cgroup))
    }

    fn take(&self, process: &Started) {
        std::fs::write(self.0.join("cgroup.procs"), process.pid().to_string()).unwrap();
    }

    /// CPU time that the kernel charged the cgroup for, in ns; `None` where the kernel does not tell.
    fn used_ns(&self) -> Option<u64> {
        if let Ok(text) = std::fs::read_to_string(self.0.join("cpuacct.usage")) {
            return Some(text.trim().parse().unwrap());
        }
        let text = std::fs::read_to_string(self.0.join("cpu.stat")).ok()?;
        let us = text
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "))?;
        Some(us.parse::<u64>().unwrap() * 1000)
    }
}

#[test]
fn who_is_stopped_or_frozen_does_not_merely_sleep() {
    let spins = Started::spinner("stopped");
    let specs = [spec("stopped", |s| s.pid = vec![spins.pid()])];
    let state = |snapshot: &Snapshot| tenant(snapshot, "stopped").threads[0].state;
    let signal = |signal| {
        let pid = nix::unistd::Pid::from_raw(spins.pid() as i32);
        nix::sys::signal::kill(pid, signal).unwrap();
    };
    for mut observer in observers(&specs) {
        signal(nix::sys::signal::Signal::SIGSTOP);
        until(&mut observer, |it| state(it) == ThreadState::Stopped);
        // A period in which the process neither runs nor is ready.
        sleep(Duration::from_millis(20));
        let thread = tenant(&observer.sample().unwrap(), "stopped").threads[0].clone();
        assert_eq!(
            (thread.run_ns, thread.ready.map(|it| it.sum_ns)),
            (0, Some(0))
        );
        signal(nix::sys::signal::Signal::SIGCONT);
        until(&mut observer, |it| {
            matches!(state(it), ThreadState::Running | ThreadState::Ready)
        });
    }
    let Ok(mut observer) = Observer::new(&specs, &[], Preference::Bpf) else {
        return quell_testkit::skip!(Bpf, "only BPF sees what is frozen");
    };
    let (v1, v2) = (
        Path::new("/sys/fs/cgroup/freezer"),
        Path::new("/sys/fs/cgroup"),
    );
    let name = format!("quell-test-frozen-{}", std::process::id());
    let v1_is_there = v1.join("tasks").exists();
    let directory = if v1_is_there { v1 } else { v2 }.join(name);
    if let Err(error) = std::fs::create_dir(&directory) {
        return quell_testkit::skip!(Cgroups, "cannot make a cgroup: {error}");
    }
    let cgroup = Cgroup(directory);
    let freeze = |on: bool| match v1_is_there {
        true => std::fs::write(
            cgroup.0.join("freezer.state"),
            if on { "FROZEN" } else { "THAWED" },
        ),
        false => std::fs::write(cgroup.0.join("cgroup.freeze"), if on { "1" } else { "0" }),
    };
    cgroup.take(&spins);
    freeze(true).unwrap();
    until(&mut observer, |it| state(it) == ThreadState::Frozen);
    freeze(false).unwrap();
    until(&mut observer, |it| {
        matches!(state(it), ThreadState::Running | ThreadState::Ready)
    });
    drop(spins);
}

/// The test changes nothing that discovery checks from time to time: the move itself raises an event.
#[test]
fn a_process_that_moves_into_a_tenants_cgroup_or_out_is_seen_at_once() {
    let Some((name, cgroup)) = Cgroup::new("moved") else {
        return;
    };
    let root = CpuHierarchy::find().unwrap().directory("");
    let moves = Started::new(Command::new("sleep").arg("1000"));
    let specs = [spec("late", |s| s.cgroup = Some(name.clone()))];
    let mut observer = match Observer::new(&specs, &[], Preference::Bpf) {
        Ok(observer) => observer,
        Err(error) => return quell_testkit::skip!(Bpf, "with BPF: {error}"),
    };
    for _ in 0..3 {
        assert!(pids(tenant(&observer.sample().unwrap(), "late")).is_empty());
        cgroup.take(&moves);
        assert_eq!(
            pids(tenant(&observer.sample().unwrap(), "late")),
            [moves.pid()]
        );
        std::fs::write(root.join("cgroup.procs"), moves.pid().to_string()).unwrap();
    }
    drop(moves);
}

/// Some hundred processes a second that are created elsewhere, move in, and end after some ms.
#[test]
fn what_processes_used_that_nobody_saw_counts() {
    let Some((name, cgroup)) = Cgroup::new("short") else {
        return;
    };
    let stays = Started::new(Command::new("sleep").arg("1000"));
    cgroup.take(&stays);
    let specs = [spec("short", |s| s.cgroup = Some(name.clone()))];
    for preference in [Preference::Procfs, Preference::Bpf] {
        // One observer after the other: CPU time that is used while none observes is found as well.
        let mut observer = match Observer::new(&specs, &[], preference) {
            Ok(observer) => observer,
            Err(error) => return quell_testkit::skip!(Bpf, "with BPF: {error}"),
        };
        let burn = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done";
        let procs = cgroup.0.join("cgroup.procs");
        let script = format!(
            "while :; do sh -c 'echo $$ > {}; {burn}'; done",
            procs.display()
        );
        let _churn = Started::new(Command::new("sh").args(["-c", &script]));
        let mut got = 0;
        let begin = Instant::now();
        observer.sample().unwrap();
        let Some(before) = cgroup.used_ns() else {
            return quell_testkit::skip!(Other, "the kernel does not say what a cgroup used");
        };
        let used = || cgroup.used_ns().unwrap() - before;
        let enough = |used: u64| used > 400_000_000;
        // On a busy machine the processes need more time until they have used enough.
        let limit = Duration::from_secs(60);
        while begin.elapsed() < Duration::from_secs(4)
            || (!enough(used()) && begin.elapsed() < limit)
        {
            sleep(Duration::from_millis(40));
            let snapshot = observer.sample().unwrap();
            let sample = tenant(&snapshot, "short");
            got += sample.threads.iter().map(|it| it.run_ns).sum::<u64>();
            got += sample.ended.as_ref().map_or(0, |it| it.run_ns);
            assert_eq!(
                sample.cgroup.as_ref().map(|it| it.0.to_string()),
                Some(format!("/{name}")),
                "who is not known yet is no stranger"
            );
        }
        let used = used();
        let part = got as f64 / used as f64;
        assert!(enough(used), "{used}");
        assert!((0.97..1.03).contains(&part), "{got} of {used}");
    }
    drop(stays);
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < end {
            sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_virtual_machine_is_found_by_name_and_its_threads_told_apart() {
    let mut command = Command::new("qemu-system-x86_64");
    command.args([
        "-accel",
        "tcg,thread=multi",
        "-smp",
        "2",
        "-nodefaults",
        "-display",
        "none",
    ]);
    command.args(["-S", "-object", "iothread,id=io1"]);
    command.args(["-name", "guest=quell-test,debug-threads=on"]);
    if Command::new("qemu-system-x86_64")
        .arg("--version")
        .output()
        .is_err()
    {
        return quell_testkit::skip!(Apps, "qemu-system-x86_64 is not installed");
    }
    let machine = Started::new(&mut command);
    let specs = [spec("vm", |s| s.libvirt = Some("quell-te*".to_string()))];
    for mut observer in observers(&specs) {
        let has = |s: &Snapshot, role| tenant(s, "vm").threads.iter().any(|t| t.role == role);
        let snapshot = until(&mut observer, |s| {
            [
                ThreadRole::Vcpu(0),
                ThreadRole::Vcpu(1),
                ThreadRole::Io,
                ThreadRole::Emulator,
            ]
            .into_iter()
            .all(|role| has(s, role))
        });
        assert_eq!(pids(tenant(&snapshot, "vm")), [machine.pid()]);
        assert!(!has(&snapshot, ThreadRole::Ordinary));
    }
}
