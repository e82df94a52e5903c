//! The agent's answers are true when it gives them: times add up, and causes are told apart. All these agents
//! observe only.

use super::*;
use quell_agent::wire::{Matrix, TenantStatus};

/// Processes of this test's, ended when dropped.
struct Processes(Vec<Child>);

impl Processes {
    fn shell(script: &str) -> Processes {
        let mut command = Command::new("sh");
        let child = command.args(["-c", script]).spawn().unwrap();
        Processes(vec![child])
    }

    fn spinner(cpu: u32, more: &str) -> Processes {
        Processes::shell(&format!(
            "taskset -cp {cpu} $$ > /dev/null; {more} while :; do :; done"
        ))
    }

    fn pid(&self) -> u32 {
        self.0[0].id()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        quell_testkit::skip!(Root, "needs root");
    }
    root
}

fn observing(dir: &Path, config: &str) -> Agent {
    let agent = Agent::start(dir, config, &["--dry-run"]);
    agent.wait_for("period", |status| status.periods > 2);
    agent
}

fn tenant<'a>(status: &'a Status, name: &str) -> &'a TenantStatus {
    let found = status.tenants.iter().find(|it| it.name.as_str() == name);
    found.unwrap()
}

fn remarks(agent: &Agent, name: &str) -> Vec<String> {
    let status = agent.wait_for("status", |_| true);
    tenant(&status, name).remarks.clone()
}

/// The CPU time of a process's first thread as the kernel counts it, in ns.
fn ran_ns(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_thread_that_is_hardly_served_is_ready_all_the_while() {
    if !is_root() {
        return;
    }
    let cpu = cpus() - 1;
    let busy = Processes::spinner(cpu, "");
    // SCHED_IDLE beside an ordinary thread: 3 of 1,027, in waits of a second and more.
    let starved = Processes::spinner(cpu, "chrt -i -p 0 $$;");
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "[agent]\npolicy = []\n[[tenant]]\nname = \"busy\"\npid = {}\n[[tenant]]\nname = \"x\"\npid = {}\n",
        busy.pid(),
        starved.pid()
    );
    let agent = observing(dir.path(), &config);
    let bpf = agent.wait_for("status", |_| true).source == Source::Bpf;
    let (start, before) = (Instant::now(), ran_ns(starved.pid()));
    let status = agent.wait_for("window of 3 s", |it| it.window_s > 3.0);
    let x = tenant(&status, "x");
    let sum = x.run_percent + x.ready_percent.unwrap();
    assert!(
        (90.0..103.0).contains(&sum) && x.ready_percent.unwrap() > 85.0,
        "{x:?}"
    );
    assert!(x.remarks[0].contains("SCHED_IDLE"), "{x:?}");
    if bpf {
        let out = agent.ask(&["status", "--matrix", "--json"]);
        let matrix: Matrix = serde_json::from_slice(&out.stdout).unwrap();
        let waits = matrix
            .window
            .rows
            .iter()
            .find(|it| it.tenant.as_str() == "x");
        let waits = waits.unwrap().waits.clone().unwrap();
        let part = waits.total_ns() as f64 / matrix.window.length_ns as f64;
        assert!(
            (0.85..1.03).contains(&part),
            "{waits:?} of {:?}",
            matrix.window.length_ns
        );
        // One thread does not wait for itself.
        assert!(waits.own_ns < matrix.window.length_ns / 50, "{waits:?}");
    }
    // The kernel's count agrees.
    let ran = (ran_ns(starved.pid()) - before) as f64;
    assert!(ran < 0.15 * start.elapsed().as_nanos() as f64, "{ran} ns");
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.ended().0, Some(0));
}

#[test]
fn a_limit_is_no_interference() {
    let cgroup = match Cgroup::make("quell-test-limit") {
        Ok(cgroup) => cgroup,
        Err(reason) => return quell_testkit::skip!(Cgroups, "{reason}"),
    };
    let written = match cgroup.path.join("cpu.cfs_quota_us").exists() {
        true => fs::write(cgroup.path.join("cpu.cfs_quota_us"), "2000"),
        false => fs::write(cgroup.path.join("cpu.max"), "2000 100000"),
    };
    written.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "[[tenant]]\nname = \"lim\"\ncgroup = \"{}\"\n",
        cgroup.name()
    );
    let limited = Processes::shell("while :; do :; done");
    fs::write(cgroup.path.join("cgroup.procs"), limited.pid().to_string()).unwrap();
    let agent = observing(dir.path(), &config);
    let bpf = agent.wait_for("status", |_| true).source == Source::Bpf;
    let status = agent.wait_for("window of 4 s", |it| it.window_s > 4.0);
    let lim = tenant(&status, "lim");
    if !bpf {
        return quell_testkit::skip!(Bpf, "only BPF sees limits");
    }
    let (ready, stopped) = (lim.ready_percent.unwrap(), lim.throttled_percent.unwrap());
    // On a machine with other work the tenant waits for others for some of the rest.
    assert!(
        stopped > 30.0 && (90.0..103.0).contains(&(lim.run_percent + ready + stopped)),
        "{lim:?}"
    );
    assert!(lim.remarks[0].contains("limited to 0.02 CPUs"), "{lim:?}");
    let mut explained = String::new();
    let told = eventually(PATIENCE, || {
        explained = text(&agent.ask(&["explain", "lim"]).stdout);
        explained.contains("deserved")
    });
    assert!(told, "{explained}");
    assert!(explained.contains("limited to 0.02 CPUs"), "{explained}");
    // The tenant deserves what its limit allows, not the CPU time that it would use.
    let deserved = explained.split("deserved ").nth(1).unwrap();
    let deserved: f64 = deserved.split(',').next().unwrap().parse().unwrap();
    let received = explained.split("received ").nth(1).unwrap();
    let received: f64 = received.split(';').next().unwrap().parse().unwrap();
    assert!(deserved < 0.03 && received < 0.04, "{explained}");
    drop(limited);
}

#[test]
fn what_a_tenant_lacks_is_told_with_its_cause_and_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let mark = format!("3{}", std::process::id());
    let sleep = |mark: &str| Processes(vec![Command::new("sleep").arg(mark).spawn().unwrap()]);
    let taken = sleep(&mark);
    let real_time = Processes::shell("while :; do sleep 0.05; done");
    let fifo = Command::new("chrt")
        .args(["-f", "-p", "1", &real_time.pid().to_string()])
        .status();
    let config = format!(
        "[[tenant]]\nname = \"first\"\ncmdline = \"^sleep {mark}$\"\n\
         [[tenant]]\nname = \"second\"\npid = {}\n\
         [[tenant]]\nname = \"late\"\ncmdline = \"^sleep {mark}9$\"\n\
         [[tenant]]\nname = \"rt\"\npid = {}\nweight = 300\n\
         [[tenant]]\nname = \"glob\"\ncgroup = \"machine-qemu\\\\x2d1.scope/**\"\n",
        taken.pid(),
        real_time.pid()
    );
    let agent = observing(dir.path(), &config);
    assert!(
        remarks(&agent, "second")[0].contains("is first's"),
        "{:?}",
        remarks(&agent, "second")
    );
    assert_eq!(
        remarks(&agent, "late"),
        ["no process matches its selectors"]
    );
    assert!(remarks(&agent, "glob")[1].contains("four in TOML"));
    if fifo.is_ok_and(|it| it.success()) {
        let rt = remarks(&agent, "rt");
        assert!(
            rt[0].contains("1 of its") || rt[0].contains("all its threads"),
            "{rt:?}"
        );
        assert!(rt[0].contains("real-time"), "{rt:?}");
    }
    let late = sleep(&format!("{mark}9"));
    agent.wait_for("the late one", |status| {
        tenant(status, "late").remarks.is_empty()
    });
    let shown = text(&agent.ask(&["status"]).stdout);
    assert!(!shown.contains("late: no process"), "{shown}");
    drop((taken, late));
}

#[test]
fn nobody_writes_to_the_operators_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let program = "import threading, time\n\
        def run(name):\n    open('/proc/thread-self/comm', 'wb').write(name)\n    time.sleep(300)\n\
        for n in [b'\\x1b[31m\\x1b[2Jred', b'two\\nlines', b'\\x07bell', b'\\xc2\\x9b2J']:\n    \
        threading.Thread(target=run, args=(n,), daemon=True).start()\n\
        print('ready', flush=True)\ntime.sleep(300)\n";
    let mut python = Command::new("python3");
    let Ok(mut child) = python.args(["-c", program]).stdout(Stdio::piped()).spawn() else {
        return quell_testkit::skip!(Apps, "no python3");
    };
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let hostile = Processes(vec![child]);
    let config = format!("[[tenant]]\nname = \"t\"\npid = {}\n", hostile.pid());
    let agent = observing(dir.path(), &config);
    for arguments in [&["explain", "t"][..], &["status"], &["status", "--matrix"]] {
        let shown = text(&agent.ask(arguments).stdout);
        let obeyed = |c: char| c.is_control() && c != '\n';
        assert!(!shown.contains(obeyed), "{arguments:?}: {shown:?}");
    }
    let shown = text(&agent.ask(&["explain", "t"]).stdout);
    assert!(
        shown.contains("\\x1b[31m") && shown.contains("two\\nlines"),
        "{shown}"
    );
    drop(hostile);
}
