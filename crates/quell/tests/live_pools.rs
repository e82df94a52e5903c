//! Pools on a real virtual machine: QEMU in emulation, Linux and the stock guest agent in it. What the agent decides is looked at from the
//! host and from inside the guest, and afterwards all is as it was. Where the lab has not been set up (`quell lab setup`, `./dev test` does it) or
//! the guest agent is not installed, it says so and passes; so it does without root.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use nix::sched::sched_getaffinity;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use quell_agent::wire::Status;
use quell_lab::{Image, KernelChoice, Lab, Quiet};
use quell_model::{Advice, CpuId, CpuSet, GroupPlan};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Emulated CPUs of a loaded machine need longer than it should take.
const PATIENCE: Duration = Duration::from_secs(120);
const VCPUS: usize = 3;

/// It says which of its CPUs are online, once a second.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /usr/bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /tmp
mkdir -p /var/run
for module in /lab/modules/*; do if [ -e "$module" ]; then insmod "$module"; fi; done
until grep -qs guest_agent /sys/class/virtio-ports/*/name; do sleep 0.1; done
for port in /sys/class/virtio-ports/*; do
    if grep -q guest_agent "$port/name"; then qemu-ga -m virtio-serial -p "/dev/${port##*/}" -t /run -f /run/ga.pid & fi
done
while :; do echo "online $(cat /sys/devices/system/cpu/online)"; sleep 1; done
"#;

struct Machine {
    child: Child,
    console: PathBuf,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Machine {
    /// Boots one, with its files in that folder. `None`: this machine lacks what it takes.
    fn boot(dir: &Path) -> Option<Machine> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: takes root");
            return None;
        }
        let agent = ["/usr/sbin/qemu-ga", "/usr/bin/qemu-ga"];
        let agent = agent.into_iter().map(Path::new).find(|it| it.exists());
        let Some(agent) = agent else {
            eprintln!("skipped: qemu-ga is not installed");
            return None;
        };
        if !common::lab_is_ready() {
            return None;
        }
        let lab = Lab::open().unwrap();
        let kernel = lab.kernel(&KernelChoice::SCHED_EXT, &Quiet).unwrap();
        let qemu = lab.qemu(&Quiet).unwrap();
        let mut image = Image::new(&kernel, &lab.busybox(&Quiet).unwrap()).unwrap();
        image.program(agent, Path::new("/usr/bin/qemu-ga")).unwrap();
        image.bytes(Path::new("/init"), INIT.as_bytes(), 0o755);
        let (archive, console) = (dir.join("image.cpio"), dir.join("console"));
        image.write(&archive).unwrap();
        // Where QEMU is not installed it runs by its packages' own loader, and is to be seen as what it is.
        let command = qemu.command();
        let program = dir.join("qemu-system-x86_64");
        let installed = which(command.get_program().as_ref());
        fs::copy(&installed, &program).unwrap();
        let mut named = Command::new(program);
        named.args(command.get_args());
        for (key, value) in command.get_envs() {
            named.env(key, value.unwrap_or_default());
        }
        let socket = |id: &str, file: &str| {
            let path = dir.join(file);
            format!("socket,id={id},path={},server=on,wait=off", path.display())
        };
        let child = named
            .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "256"])
            .args([
                "-smp",
                &VCPUS.to_string(),
                "-name",
                "guest=web,debug-threads=on",
            ])
            .args([
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                "-display",
                "none",
            ])
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(&archive)
            .args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off"])
            .args(["-serial", &format!("file:{}", console.display())])
            .args([
                "-device",
                "virtio-serial-pci",
                "-chardev",
                &socket("qga", "qga.sock"),
            ])
            .args([
                "-device",
                "virtserialport,chardev=qga,name=org.qemu.guest_agent.0",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.join("qemu.log")).unwrap())
            .spawn()
            .unwrap();
        let machine = Machine { child, console };
        machine.await_online(VCPUS);
        Some(machine)
    }

    /// How many virtual CPUs are online, as the guest says itself.
    fn online(&self) -> Option<usize> {
        let console = fs::read(&self.console).ok()?;
        let text = String::from_utf8_lossy(&console).into_owned();
        let said = text
            .lines()
            .rev()
            .find_map(|it| it.trim().strip_prefix("online "));
        said?.parse::<CpuSet>().ok().map(|it| it.len())
    }

    fn await_online(&self, count: usize) {
        let start = Instant::now();
        while self.online() != Some(count) {
            let console = fs::read(&self.console).unwrap_or_default();
            let console = String::from_utf8_lossy(&console);
            assert!(start.elapsed() < PATIENCE, "not {count} CPUs: {console}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Its threads' CPUs, by name.
    fn cpus(&self) -> BTreeMap<String, CpuSet> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let tasks = fs::read_dir(tasks).unwrap().map(|it| it.unwrap());
        let of = |it: fs::DirEntry| {
            let name = fs::read_to_string(it.path().join("comm")).ok()?;
            let tid = it.file_name().to_str()?.parse().ok()?;
            let set = sched_getaffinity(Pid::from_raw(tid)).ok()?;
            let cpus = (0..1024).filter(|cpu| set.is_set(*cpu).unwrap_or(false));
            let cpus = cpus.map(|cpu| CpuId(cpu as u32)).collect();
            Some((format!("{} {tid}", name.trim()), cpus))
        };
        tasks.filter_map(of).collect()
    }

    /// Where its virtual CPUs are, which are all in one place, and where all else is.
    fn places(&self) -> Option<(CpuSet, CpuSet)> {
        let (vcpus, others): (Vec<_>, Vec<_>) = self
            .cpus()
            .into_iter()
            .partition(|(name, _)| name.starts_with("CPU "));
        let one = |all: Vec<(String, CpuSet)>| {
            let first = all.first()?.1.clone();
            all.iter().all(|(_, it)| *it == first).then_some(first)
        };
        assert_eq!(vcpus.len(), VCPUS);
        Some((one(vcpus)?, one(others)?))
    }
}

fn which(program: &Path) -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&folders).map(|it| it.join(program));
    match program.is_absolute() {
        true => program.to_path_buf(),
        false => found.find(|it| it.exists()).unwrap(),
    }
}

struct Agent {
    child: Child,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn quell(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.env("QUELL_LOCK", dir.join("act.lock"));
    command
}

fn agent(dir: &Path, machine: &Machine) -> Agent {
    let config = format!(
        "[agent]\npolicy = [\"pools\"]\nbackend = \"stock\"\n[[tenant]]\nname = \"web\"\nkind = \"vm\"\npid = [{}]\n",
        machine.child.id()
    );
    fs::write(dir.join("quell.toml"), config).unwrap();
    let child = quell(dir)
        .args(["run", "-c"])
        .arg(dir.join("quell.toml"))
        .arg("--socket")
        .arg(dir.join("q.sock"))
        .arg("--journal")
        .arg(dir.join("journal"))
        .stderr(fs::File::create(dir.join("log")).unwrap())
        .spawn()
        .unwrap();
    Agent { child }
}

fn log(dir: &Path) -> String {
    fs::read_to_string(dir.join("log")).unwrap()
}

fn status(dir: &Path) -> Status {
    let mut command = quell(dir);
    let command = command.args(["status", "--json", "--socket"]);
    let answer = command.arg(dir.join("q.sock")).output().unwrap();
    assert!(answer.status.success(), "{answer:?}\n{}", log(dir));
    serde_json::from_slice(&answer.stdout).unwrap()
}

fn await_places(dir: &Path, machine: &Machine) -> (CpuSet, CpuSet) {
    let start = Instant::now();
    loop {
        let places = machine.places();
        // Apart, where there are CPUs for that.
        if let Some((vcpus, others)) = places.as_ref().filter(|it| it.0 != it.1) {
            return (vcpus.clone(), others.clone());
        }
        assert!(start.elapsed() < PATIENCE, "{places:?}\n{}", log(dir));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The agent dies, and `quell restore` puts all back.
fn kill_and_restore(
    dir: &Path,
    mut running: Agent,
    machine: &Machine,
    before: &BTreeMap<String, CpuSet>,
) {
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    let mut command = quell(dir);
    let restored = command
        .arg("restore")
        .arg("--journal")
        .arg(dir.join("journal"));
    let restored = restored.output().unwrap();
    assert!(restored.status.success(), "{restored:?}");
    assert_eq!(machine.cpus(), *before, "{restored:?}");
    machine.await_online(VCPUS);
}

#[test]
fn a_guest_has_as_many_cpus_online_as_it_was_given_and_then_all_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(machine) = Machine::boot(dir.path()) else {
        return;
    };
    let dir = dir.path();
    let before = machine.cpus();
    let host = before.values().next().unwrap().clone();
    if host.len() < 2 {
        eprintln!("skipped: takes two CPUs");
        return;
    }

    // It is ended, and puts all back.
    let mut running = agent(dir, &machine);
    let (vcpus, others) = await_places(dir, &machine);
    assert!(vcpus.intersection(&others).is_empty(), "{vcpus} {others}");
    machine.await_online(vcpus.len().min(VCPUS));
    let told = status(dir);
    let tenant = &told.tenants[0];
    let own = |group: &GroupPlan| matches!(group, GroupPlan::Own { cpus, .. } if *cpus == vcpus);
    assert!(tenant.group.as_ref().is_some_and(own), "{tenant:?}");
    assert_eq!(told.pools.as_ref().unwrap().emulators, others, "{told:?}");
    assert_eq!(told.pools.unwrap().verdict.advice, Advice::Hold);

    // It hangs, and nobody waits for it.
    let vm = Pid::from_raw(machine.child.id() as i32);
    kill(vm, Signal::SIGSTOP).unwrap();
    let start = Instant::now();
    while !log(dir).contains("did not answer within") {
        assert!(start.elapsed() < PATIENCE, "{}", log(dir));
        std::thread::sleep(Duration::from_millis(100));
    }
    let periods = status(dir).periods - told.periods;
    kill(vm, Signal::SIGCONT).unwrap();
    assert!(periods >= 10, "{periods} while it was given 2 s");

    let pid = Pid::from_raw(running.child.id() as i32);
    kill(pid, Signal::SIGTERM).unwrap();
    assert!(running.child.wait().unwrap().success(), "{}", log(dir));
    assert_eq!(machine.cpus(), before);
    machine.await_online(VCPUS);

    // It dies as soon as it has changed anything.
    let running = agent(dir, &machine);
    await_places(dir, &machine);
    kill_and_restore(dir, running, &machine, &before);

    // And once the guest has other CPUs online.
    let running = agent(dir, &machine);
    let (vcpus, _) = await_places(dir, &machine);
    machine.await_online(vcpus.len().min(VCPUS));
    kill_and_restore(dir, running, &machine, &before);
}
