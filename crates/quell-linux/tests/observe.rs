//! Observes real processes of this machine, all started by the tests.

use quell_linux::observe::{ObserveError, Observer, Preference};
use quell_model::config::TenantSpec;
use quell_model::{Snapshot, Source, TenantSample, ThreadState};
use std::os::unix::process::CommandExt;
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

fn spec(name: &str, change: impl FnOnce(&mut TenantSpec)) -> TenantSpec {
    let mut spec = TenantSpec::named(name);
    change(&mut spec);
    spec
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
fn observers(specs: &[TenantSpec]) -> Vec<Observer> {
    let mut list = vec![Observer::new(specs, Preference::Procfs).unwrap()];
    match Observer::new(specs, Preference::Bpf) {
        Ok(observer) => list.push(observer),
        Err(ObserveError::Bpf { reason }) => eprintln!("skipped: with BPF: {reason}"),
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

        // On a busy machine the spinner may wait; over half a second it gets something.
        let (mut run_ns, mut period_ns) = (0, 0);
        for _ in 0..10 {
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
fn a_wrong_selector_is_the_users_error() {
    let specs = [spec("web", |s| s.cmdline = Some("(".to_string()))];
    match Observer::new(&specs, Preference::Auto) {
        Err(ObserveError::Selector(error)) => assert_eq!(error.key, "cmdline"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("took a wrong regular expression"),
    }
}
