//! Parts that the tests with real virtual machines share: an image with the stock guest agent, a QEMU that
//! looks like an installed one, and the agent.

#![allow(dead_code, reason = "each test uses a part of it")]

use super::common;
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;
use quell_agent::wire::Status;
use quell_lab::{Image, Kernel, KernelChoice, Lab, Quiet};
use quell_model::{CpuId, CpuSet};
use quell_testkit::eventually;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The longest wait for a condition: emulated CPUs of a loaded machine are much slower than usual.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The guest kernel's command line. The kernel prints from its start on, so that a guest that does not come
/// up leaves a trace; it does not test its timers, which fails where emulated CPUs get few turns.
pub const KERNEL_LINE: &str =
    "console=ttyS0 earlyprintk=ttyS0 panic=-1 mitigations=off no_timer_check";

/// How often a guest is started until it comes up: an emulated guest may hang while it boots.
pub const BOOTS: u32 = 3;

/// The guest's init: once a second it prints which of its CPUs are online, the CPU time that it used in all,
/// in 10 ms, and its context switches; it also runs `/root/work` where the image has that.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /usr/bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /tmp
mkdir -p /var/run
for module in /lab/modules/*; do if [ -e "$module" ]; then insmod "$module"; fi; done
until grep -qs guest_agent /sys/class/virtio-ports/*/name; do sleep 0.1; done
for port in /sys/class/virtio-ports/*; do
    if grep -q guest_agent "$port/name"; then qemu-ga -m virtio-serial -p "/dev/${port##*/}" -t /run -f /run/ga.pid & fi
done
if [ -e /root/work ]; then sh /root/work & fi
while :; do
    read -r _ user nice system _ _ irq softirq _ </proc/stat
    echo "online $(cat /sys/devices/system/cpu/online) busy $((user + nice + system + irq + softirq)) switches $(sed -n 's/^ctxt //p' /proc/stat)"
    sleep 1
done
"#;

fn guest_agent() -> Option<&'static Path> {
    let places = ["/usr/sbin/qemu-ga", "/usr/bin/qemu-ga"];
    places.into_iter().map(Path::new).find(|it| it.exists())
}

/// Whether there can be a guest; says why the test is skipped where not.
pub fn guests_are_ready() -> bool {
    if guest_agent().is_none() {
        quell_testkit::skip!(Apps, "qemu-ga is not installed");
        return false;
    }
    common::lab_is_ready()
}

/// A guest with the stock guest agent, where [`guests_are_ready`].
pub fn guest(lab: &Lab, kernel: &Kernel) -> Image {
    let mut image = Image::new(kernel, &lab.busybox(&Quiet).unwrap()).unwrap();
    let agent = guest_agent().unwrap();
    image.program(agent, Path::new("/usr/bin/qemu-ga")).unwrap();
    image.bytes(Path::new("/init"), INIT.as_bytes(), 0o755);
    image
}

/// The parts of a virtual machine.
pub struct Kit {
    pub kernel: PathBuf,
    pub archive: PathBuf,
    /// QEMU, still without a machine's arguments: a program, its arguments, and its environment.
    pub qemu: (PathBuf, Vec<OsString>, Vec<(OsString, OsString)>),
}

impl Kit {
    /// The parts, with their files in this folder. `None` where this machine lacks one: the test is skipped.
    pub fn find(dir: &Path) -> Option<Kit> {
        if !nix::unistd::geteuid().is_root() {
            quell_testkit::skip!(Root, "takes root");
            return None;
        }
        if !guests_are_ready() {
            return None;
        }
        let lab = Lab::open().unwrap();
        let kernel = lab.kernel(&KernelChoice::SCHED_EXT, &Quiet).unwrap();
        let qemu = lab.qemu(&Quiet).unwrap();
        let archive = dir.join("image.cpio");
        guest(&lab, &kernel).write(&archive).unwrap();
        // A QEMU that is not installed is started by its packages' own loader: the copy is to be recognised
        // as QEMU.
        let command = qemu.command();
        let program = dir.join("qemu-system-x86_64");
        let installed = which(command.get_program().as_ref());
        fs::copy(&installed, &program).unwrap();
        let arguments = command.get_args().map(OsString::from).collect();
        let set = |(key, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| {
            (key.to_owned(), value.unwrap_or_default().to_owned())
        };
        let environment = command.get_envs().map(set).collect();
        Some(Kit {
            kernel: kernel.image.clone(),
            archive,
            qemu: (program, arguments, environment),
        })
    }
}

/// A virtual machine's QEMU and its guest's console.
#[derive(Debug, Clone)]
pub struct Seen {
    pub pid: u32,
    pub console: PathBuf,
    pub vcpus: usize,
}

impl Seen {
    /// How many vCPUs are online, by the guest's own report.
    pub fn online(&self) -> Option<usize> {
        let console = fs::read(&self.console).ok()?;
        let text = String::from_utf8_lossy(&console).into_owned();
        let said = text
            .lines()
            .rev()
            .find_map(|it| it.trim().strip_prefix("online "));
        let cpus = said?.split(' ').next()?;
        cpus.parse::<CpuSet>().ok().map(|it| it.len())
    }

    /// Whether the guest has come up, after waiting for that; prints what it said where it has not.
    pub fn comes_up(&self) -> bool {
        let up = eventually(PATIENCE, || self.online().is_some() || !self.runs());
        let up = up && self.online() == Some(self.vcpus);
        if !up {
            let console = fs::read(&self.console).unwrap_or_default();
            let ended = if self.runs() {
                ""
            } else {
                ", and QEMU has ended"
            };
            let console = String::from_utf8_lossy(&console);
            println!("a guest did not come up{ended}; its console: {console}");
        }
        up
    }

    /// Whether its QEMU runs.
    fn runs(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    pub fn await_online(&self, count: usize) {
        let start = Instant::now();
        while self.online() != Some(count) {
            let console = fs::read(&self.console).unwrap_or_default();
            let console = String::from_utf8_lossy(&console);
            assert!(self.runs(), "QEMU has ended: {console}");
            assert!(start.elapsed() < PATIENCE, "not {count} CPUs: {console}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The CPUs of QEMU's threads, by name and number.
    pub fn cpus(&self) -> BTreeMap<String, CpuSet> {
        let tasks = format!("/proc/{}/task", self.pid);
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

    /// Whether the emulator has a cpuset of libvirt's.
    pub fn has_cpuset(&self) -> bool {
        let cpuset = fs::read_to_string(format!("/proc/{}/cpuset", self.pid)).unwrap();
        cpuset.trim_end().ends_with("/emulator")
    }

    /// The CPUs of the vCPUs and those of all other threads; `None` while either differ among themselves.
    pub fn places(&self) -> Option<(CpuSet, CpuSet)> {
        let (vcpus, others): (Vec<_>, Vec<_>) = self
            .cpus()
            .into_iter()
            .partition(|(name, _)| name.starts_with("CPU "));
        let one = |all: Vec<(String, CpuSet)>| {
            let first = all.first()?.1.clone();
            all.iter().all(|(_, it)| *it == first).then_some(first)
        };
        assert_eq!(vcpus.len(), self.vcpus);
        Some((one(vcpus)?, one(others)?))
    }
}

/// The agent.
pub struct Agent {
    pub child: Child,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Agent {
    /// Starts the agent with these tenants, and these variables in its environment.
    pub fn start(dir: &Path, tenants: &str, environment: &[(&str, &str)]) -> Agent {
        let config = format!("[agent]\npolicy = [\"pools\"]\nbackend = \"stock\"\n{tenants}");
        fs::write(dir.join("quell.toml"), config).unwrap();
        let child = quell(dir)
            .envs(environment.iter().copied())
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
}

fn which(program: &Path) -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&folders).map(|it| it.join(program));
    match program.is_absolute() {
        true => program.to_path_buf(),
        false => found.find(|it| it.exists()).unwrap(),
    }
}

pub fn quell(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.env("QUELL_LOCK", dir.join("act.lock"));
    command
}

pub fn log(dir: &Path) -> String {
    fs::read_to_string(dir.join("log")).unwrap()
}

pub fn await_log(dir: &Path, text: &str) {
    let start = Instant::now();
    while !log(dir).contains(text) {
        assert!(start.elapsed() < PATIENCE, "not `{text}`: {}", log(dir));
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn status(dir: &Path) -> Status {
    let mut command = quell(dir);
    let command = command.args(["status", "--json", "--socket"]);
    let answer = command.arg(dir.join("q.sock")).output().unwrap();
    assert!(answer.status.success(), "{answer:?}\n{}", log(dir));
    serde_json::from_slice(&answer.stdout).unwrap()
}

/// Waits until a machine's vCPUs and its other threads have different CPUs, and gives both.
pub fn await_places(dir: &Path, machine: &Seen) -> (CpuSet, CpuSet) {
    let start = Instant::now();
    loop {
        let places = machine.places();
        // Only once they are apart.
        if let Some((vcpus, others)) = places
            .as_ref()
            .filter(|it| it.0.intersection(&it.1).is_empty())
        {
            return (vcpus.clone(), others.clone());
        }
        let cpus = machine.cpus();
        assert!(start.elapsed() < PATIENCE, "{cpus:?}\n{}", log(dir));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the first of a machine's threads has other CPUs than before: an adjustment has begun.
pub fn await_change(dir: &Path, machine: &Seen, before: &BTreeMap<String, CpuSet>) {
    let start = Instant::now();
    while machine.cpus() == *before {
        assert!(start.elapsed() < PATIENCE, "{}", log(dir));
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Kills the agent, and has `quell restore` put everything back.
pub fn kill_and_restore(
    dir: &Path,
    mut running: Agent,
    machine: &Seen,
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
    machine.await_online(machine.vcpus);
}
