//! The agent on this machine, end to end: real tenants, a real run, and afterwards everything as it
//! was. Acting needs root; without it those tests say that they were skipped.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod told;

use nix::sched::sched_getaffinity;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use quell_agent::client::Client;
use quell_agent::wire::Status;
use quell_model::{Lever, Source};
use quell_testkit::eventually;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Set in the environment of a tenant's process: how many of its threads spin.
const TENANT: &str = "QUELL_TEST_TENANT_SPINNERS";

/// The longest wait for a condition that normally holds within a second or two.
const PATIENCE: Duration = Duration::from_secs(60);

/// Not a test: in a process started by [`Tenant::start`] this is the tenant, with threads that spin and
/// threads that sleep and wake often, until its standard input closes.
#[test]
fn tenant_process() {
    let Ok(spinners) = std::env::var(TENANT) else {
        return;
    };
    for _ in 0..spinners.parse::<u32>().unwrap() {
        std::thread::spawn(|| {
            let mut x = 1u64;
            loop {
                x = std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
            }
        });
    }
    for nice in 0..3 {
        std::thread::spawn(move || {
            // Each thread has its own nice value, so that a default is not mistaken for the old value.
            let tid = nix::unistd::gettid().as_raw() as u32;
            // SAFETY: a plain system call on the calling thread; no memory is passed.
            let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, nice) };
            assert_eq!(result, 0);
            loop {
                std::thread::sleep(Duration::from_millis(3));
                let until = Instant::now() + Duration::from_micros(500);
                while Instant::now() < until {}
            }
        });
    }
    println!("ready");
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    std::process::exit(0);
}

struct Tenant {
    child: Child,
}

impl Tenant {
    fn start(spinners: u32) -> Tenant {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "tenant_process",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(TENANT, spinners.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        // The test harness may have written on the same line before.
        assert!(
            out.lines()
                .map_while(Result::ok)
                .any(|line| line.ends_with("ready"))
        );
        let tenant = Tenant { child };
        // All sleepers have their nice values, in whatever order they started.
        let has = |nice: i64| settings(&[&tenant]).values().any(|it| it.0 == nice);
        assert!(
            eventually(PATIENCE, || has(1) && has(2)),
            "the tenant's threads do not start"
        );
        std::thread::sleep(Duration::from_millis(100));
        tenant
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The settings of a thread that Quell may change: nice, slice, affinity.
type Settings = BTreeMap<u32, (i64, u64, String)>;

fn settings(tenants: &[&Tenant]) -> Settings {
    let mut all = Settings::new();
    for tenant in tenants {
        for entry in fs::read_dir(format!("/proc/{}/task", tenant.pid())).unwrap() {
            let tid: u32 = entry
                .unwrap()
                .file_name()
                .to_str()
                .unwrap()
                .parse()
                .unwrap();
            let stat = fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
            let nice = stat.rsplit(')').next().unwrap().split(' ').nth(17).unwrap();
            let cpus = sched_getaffinity(Pid::from_raw(tid as i32)).unwrap();
            let cpus = (0..256).filter(|&c| cpus.is_set(c).unwrap_or(false));
            let cpus: Vec<String> = cpus.map(|c| c.to_string()).collect();
            all.insert(tid, (nice.parse().unwrap(), slice_ns(tid), cpus.join(",")));
        }
    }
    all
}

/// `sched_runtime` of sched_getattr: a fair thread's slice, 0 where the kernel does not tell.
fn slice_ns(tid: u32) -> u64 {
    let mut attr = [0u64; 7];
    // SAFETY: the kernel writes at most the 56 bytes named by the third argument, which `attr` has.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, attr.as_mut_ptr(), 56, 0) };
    assert_eq!(
        result,
        0,
        "sched_getattr of {tid}: {}",
        std::io::Error::last_os_error()
    );
    attr[3]
}

/// A cgroup of this test's own with a CPU controller, removed when dropped.
struct Cgroup {
    path: PathBuf,
    weight: PathBuf,
}

impl Cgroup {
    fn make(name: &str) -> Result<Cgroup, String> {
        let v1 = [
            Path::new("/sys/fs/cgroup/cpu"),
            Path::new("/sys/fs/cgroup/cpu,cpuacct"),
        ];
        let v2 = Path::new("/sys/fs/cgroup");
        let has_v2 = fs::read_to_string(v2.join("cgroup.subtree_control"))
            .is_ok_and(|controllers| controllers.split_whitespace().any(|c| c == "cpu"));
        let (root, file) = match v1.iter().find(|root| root.join("cpu.shares").exists()) {
            Some(root) => (*root, "cpu.shares"),
            None if has_v2 => (v2, "cpu.weight"),
            None => return Err("no cgroup CPU controller here".to_string()),
        };
        let path = root.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let weight = path.join(file);
        Ok(Cgroup { path, weight })
    }

    fn name(&self) -> &str {
        self.path.file_name().unwrap().to_str().unwrap()
    }

    fn add(&self, tenant: &Tenant) {
        fs::write(self.path.join("cgroup.procs"), tenant.pid().to_string()).unwrap();
    }

    fn weight(&self) -> String {
        fs::read_to_string(&self.weight).unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The cgroup's processes have been killed; the kernel may need a moment to remove them.
        if !eventually(PATIENCE, || fs::remove_dir(&self.path).is_ok()) {
            eprintln!("{} could not be removed", self.path.display());
        }
    }
}

struct Agent {
    child: Child,
    dir: PathBuf,
}

impl Agent {
    fn start(dir: &Path, config: &str, arguments: &[&str]) -> Agent {
        fs::write(dir.join("quell.toml"), config).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_quell"))
            .arg("run")
            .arg("-c")
            .arg(dir.join("quell.toml"))
            .arg("--socket")
            .arg(dir.join("agent.sock"))
            .arg("--journal")
            .arg(dir.join("journal"))
            .args(arguments)
            .env("QUELL_LOCK", dir.join("act.lock")) // other tests' agents act at the same time
            .stderr(fs::File::create(dir.join("log")).unwrap())
            .spawn()
            .unwrap();
        Agent {
            child,
            dir: dir.to_path_buf(),
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap()
    }

    fn wait_for(&self, what: &str, reached: impl Fn(&Status) -> bool) -> Status {
        let client = Client::new(self.dir.join("agent.sock"));
        let start = Instant::now();
        loop {
            let status = client.status();
            if let Ok(status) = &status {
                if reached(status) {
                    return status.clone();
                }
            }
            assert!(
                start.elapsed() < PATIENCE,
                "no {what}: {status:#?}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn ask(&self, args: &[&str]) -> Output {
        let socket = self.dir.join("agent.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
        command
            .args(args)
            .arg("--socket")
            .arg(socket)
            .output()
            .unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// The agent's exit code, `None` if a signal ended it, and its log.
    fn ended(mut self) -> (Option<i32>, String) {
        let ends = eventually(PATIENCE, || self.child.try_wait().unwrap().is_some());
        assert!(ends, "the agent does not end");
        (self.child.wait().unwrap().code(), self.log())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // A failed test: the agent gets the chance to put everything back.
            self.signal(Signal::SIGTERM);
            let _ = eventually(PATIENCE, || !matches!(self.child.try_wait(), Ok(None)));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn restore(dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command
        .arg("restore")
        .arg("--journal")
        .arg(dir.join("journal"))
        .env("QUELL_LOCK", dir.join("act.lock"))
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn cpus() -> u32 {
    std::thread::available_parallelism().unwrap().get() as u32
}

/// Two tenants that want more than this machine has, and a configuration that selects them.
struct Scene {
    dir: tempfile::TempDir,
    // Dropped before the cgroup, which can only be removed once its processes are gone.
    tenants: [Tenant; 2],
    cgroup: Result<Cgroup, String>,
}

impl Scene {
    fn set(name: &str) -> Scene {
        let tenants = [Tenant::start(cpus()), Tenant::start(cpus())];
        let cgroup = Cgroup::make(&format!("quell-test-{name}"));
        match &cgroup {
            Ok(cgroup) => cgroup.add(&tenants[0]),
            Err(reason) => quell_testkit::skip!(Cgroups, "a cgroup's weight: {reason}"),
        }
        Scene {
            dir: tempfile::tempdir().unwrap(),
            tenants,
            cgroup,
        }
    }

    fn config(&self) -> String {
        let first = match &self.cgroup {
            Ok(cgroup) => format!("cgroup = \"**/{}\"", cgroup.name()),
            Err(_) => format!("pid = [{}]", self.tenants[0].pid()),
        };
        format!(
            "[agent]\nperiod_ms = 50\nguard = \"off\"\n\
             [asymmetry]\nslices = true\nlatencies = true\nconflicts = true\n\
             [[tenant]]\nname = \"front\"\nweight = 300\n{first}\n\
             [[tenant]]\nname = \"back\"\nclass = \"batch\"\npid = [{}]\n",
            self.tenants[1].pid()
        )
    }

    fn settings(&self) -> (Settings, Option<String>) {
        let [a, b] = &self.tenants;
        (
            settings(&[a, b]),
            self.cgroup.as_ref().ok().map(Cgroup::weight),
        )
    }
}

fn root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        quell_testkit::skip!(Root, "acting on other processes needs root");
    }
    root
}

#[test]
fn sigterm_puts_everything_back_and_meanwhile_the_commands_answer() {
    if !root() {
        return;
    }
    let scene = Scene::set("term");
    let before = scene.settings();
    let agent = Agent::start(scene.dir.path(), &scene.config(), &[]);
    let status = agent.wait_for("change", |s| s.changes > 0 && s.periods >= 20);
    assert!(status.acting, "{status:?}");
    let changed = scene.settings();
    assert_ne!(before.0, changed.0, "something was changed");
    if let (Some(before), Some(now)) = (&before.1, &changed.1) {
        assert_ne!(before, now, "the cgroup's weight was changed; {status:#?}");
    }

    let shown = text(&agent.ask(&["status"]).stdout);
    assert!(
        shown.contains("front") && shown.contains("back") && shown.contains("acting"),
        "{shown}"
    );
    let matrix = text(&agent.ask(&["status", "--matrix"]).stdout);
    assert!(
        matrix.contains("front") || matrix.contains("procfs"),
        "{matrix}"
    );
    let explained = text(&agent.ask(&["explain", "front"]).stdout);
    assert!(explained.contains("last decisions"), "{explained}");
    let unknown = agent.ask(&["explain", "fornt"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("`front`"), "{unknown:?}");

    agent.signal(Signal::SIGTERM);
    let (code, log) = agent.ended();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("put back"), "{log}");
    assert_eq!(scene.settings(), before);
    assert!(!scene.dir.path().join("agent.sock").exists());
}

#[test]
fn kill_9_and_restore_put_everything_back() {
    if !root() {
        return;
    }
    let scene = Scene::set("kill");
    let before = scene.settings();
    let agent = Agent::start(scene.dir.path(), &scene.config(), &[]);
    agent.wait_for("change", |s| s.changes > 0 && s.periods >= 20);
    let refused = restore(scene.dir.path());
    assert_eq!(refused.status.code(), Some(1), "an agent acts: {refused:?}");
    assert!(
        text(&refused.stderr).contains("stop it first"),
        "{refused:?}"
    );

    agent.signal(Signal::SIGKILL);
    assert_eq!(agent.ended().0, None);
    assert_ne!(scene.settings(), before, "kill -9 leaves the host changed");
    let restored = restore(scene.dir.path());
    assert_eq!(restored.status.code(), Some(0), "{restored:?}");
    assert_eq!(scene.settings(), before);

    // The next start undoes a killed run's changes too, and replaces its socket.
    let agent = Agent::start(scene.dir.path(), &scene.config(), &[]);
    agent.wait_for("change", |s| s.changes > 0);
    agent.signal(Signal::SIGKILL);
    agent.ended();
    let observing = scene.config().replace("[agent]", "[agent]\npolicy = []");
    let agent = Agent::start(scene.dir.path(), &observing, &[]);
    agent.wait_for("period", |s| s.periods > 0);
    assert_eq!(scene.settings(), before);
    agent.signal(Signal::SIGINT);
    assert_eq!(agent.ended().0, Some(0));
}

/// The guard's trial of the feedback: blocks in which it acts and rests, two seconds each.
#[test]
fn kill_9_in_the_middle_of_a_trial_leaves_nothing_that_cannot_be_put_back() {
    if !root() {
        return;
    }
    let scene = Scene::set("trial");
    let before = scene.settings();
    let config = scene.config().replace("guard = \"off\"", "guard = \"on\"");
    let agent = Agent::start(scene.dir.path(), &config, &[]);
    let managed = |s: &Status| s.tenants.iter().map(|it| it.managed).sum::<u64>();
    let acts = |s: &Status| s.tenants.iter().any(|it| it.latency_min_us.is_some());
    if agent.wait_for("period", |s| s.periods > 0).source != Source::Bpf {
        return quell_testkit::skip!(Bpf, "without BPF there is nothing to judge by");
    }
    let status = agent.wait_for("block in which it acts", |s| acts(s) && managed(s) > 0);
    assert_eq!(status.effects[0].lever, Lever::Feedback);
    agent.wait_for("block in which it rests", |s| !acts(s));
    agent.wait_for("block in which it acts again", acts);
    agent.signal(Signal::SIGKILL);
    assert_eq!(agent.ended().0, None);
    assert_ne!(scene.settings(), before, "kill -9 leaves the host changed");
    let restored = restore(scene.dir.path());
    assert_eq!(restored.status.code(), Some(0), "{restored:?}");
    assert_eq!(scene.settings(), before);
}

#[test]
fn a_dry_run_decides_and_touches_nothing() {
    let tenant = Tenant::start(cpus() + 1);
    let before = settings(&[&tenant]);
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "[[tenant]]\nname = \"a\"\nweight = 200\npid = [{}]\n",
        tenant.pid()
    );
    let agent = Agent::start(dir.path(), &config, &["--dry-run"]);
    let status = agent.wait_for("period", |s| s.periods >= 5 && s.tenants[0].managed > 0);
    assert_eq!((status.acting, status.changes), (false, 0));
    assert!(text(&agent.ask(&["explain", "a"]).stdout).contains("last decisions"));
    assert_eq!(settings(&[&tenant]), before);
    agent.signal(Signal::SIGTERM);
    let (code, log) = agent.ended();
    assert_eq!(code, Some(0), "{log}");
    assert!(!dir.path().join("journal").exists());
    assert_eq!(settings(&[&tenant]), before);
}

#[test]
fn a_reload_takes_a_right_file_and_refuses_a_wrong_one() {
    let tenant = Tenant::start(1);
    let dir = tempfile::tempdir().unwrap();
    let config = format!("[[tenant]]\nname = \"a\"\npid = [{}]\n", tenant.pid());
    let agent = Agent::start(dir.path(), &config, &["--dry-run"]);
    agent.wait_for("period", |s| s.periods > 0);
    fs::write(dir.path().join("quell.toml"), "[agent]\nperiod_ms = 1\n").unwrap();
    agent.signal(Signal::SIGHUP);
    let status = agent.wait_for("refusal", |s| s.reload_error.is_some());
    assert!(status.reload_error.unwrap().contains("10 to 10000"));
    assert_eq!((status.period_ms, status.tenants.len()), (80, 1));

    fs::write(
        dir.path().join("quell.toml"),
        config + "[agent]\nperiod_ms = 40\n",
    )
    .unwrap();
    agent.signal(Signal::SIGHUP);
    let status = agent.wait_for("reload", |s| s.reloads == 1 && s.periods > 5);
    assert_eq!((status.period_ms, status.reload_error), (40, None));
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.ended().0, Some(0));
}

#[test]
fn reloads_do_not_add_up() {
    if !root() {
        return;
    }
    let tenant = Tenant::start(1);
    let before = settings(&[&tenant]);
    let dir = tempfile::tempdir().unwrap();
    // Weights among a batch tenant's threads stay, so that their nice values show the tenant's weight only.
    let config = format!(
        "[agent]\nperiod_ms = 40\n[[tenant]]\nname = \"a\"\nclass = \"batch\"\nweight = 200\npid = [{}]\n",
        tenant.pid()
    );
    let agent = Agent::start(dir.path(), &config, &[]);
    agent.wait_for("change", |s| s.changes > 0 && s.periods >= 10);
    for reloads in 1..=3 {
        let so_far = agent.wait_for("period", |_| true).periods;
        agent.signal(Signal::SIGHUP);
        agent.wait_for("reload", |s| {
            s.reloads == reloads && s.periods >= so_far + 10
        });
    }
    for (tid, (nice, ..)) in settings(&[&tenant]) {
        // Twice the weight is three steps of nice, or four for some periods.
        let steps = before[&tid].0 - nice;
        assert!((2..=5).contains(&steps), "thread {tid}: nice {nice}");
    }
    agent.signal(Signal::SIGTERM);
    let (code, log) = agent.ended();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(settings(&[&tenant]), before);
}

#[test]
fn the_service_manager_is_told_ready_alive_and_stopping() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("quell.toml"), "").unwrap();
    let manager = std::os::unix::net::UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    // The variables that systemd sets for the main process.
    let mut child = Command::new("sh")
        .args([
            "-c",
            "export WATCHDOG_PID=$$; exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_quell"),
        ])
        .args(["run", "--dry-run", "--log-level", "error", "-c"])
        .arg(dir.path().join("quell.toml"))
        .arg("--socket")
        .arg(dir.path().join("agent.sock"))
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .env("WATCHDOG_USEC", "1000000")
        .spawn()
        .unwrap();
    let told = |wanted: &str, times: usize| {
        let mut buffer = [0; 4096];
        let mut seen = 0;
        while seen < times {
            let length = manager.recv(&mut buffer).unwrap();
            let text = String::from_utf8_lossy(&buffer[..length]);
            seen += text.lines().filter(|line| *line == wanted).count();
        }
    };
    told("READY=1", 1);
    told("WATCHDOG=1", 3);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    told("STOPPING=1", 1);
    assert!(child.wait().unwrap().success());
}
