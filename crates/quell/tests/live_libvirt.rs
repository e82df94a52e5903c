//! Pools on domains of libvirt's: a libvirtd of the test's own, whose files, sockets and users are its own as
//! well (a mount namespace), with QEMU in emulation. The effects of the agent's decisions are checked through
//! virsh, from the host and from inside the guest, and afterwards everything is as it was. Where libvirt or
//! the lab is not there, or without root, the test is skipped.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
mod live;

use live::{
    Agent, BOOTS, KERNEL_LINE, Kit, PATIENCE, Seen, await_change, await_log, await_places,
    kill_and_restore, log, status,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use quell_model::{CpuSet, GroupPlan};
use quell_testkit::eventually;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const WEB_VCPUS: usize = 3;
const DAEMON: &str = "/usr/sbin/libvirtd";
const DRIVER: &str = "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so";
/// The folder of libvirt's cgroups.
const CGROUPS: &str = "/sys/fs/cgroup/cpuset/machine";

/// Starts libvirtd in its mount namespace: its files are where it looks for them, and no other process sees
/// them.
const NAMESPACE: &str = r#"
mkdir -p "$1/run" "$1/etc" "$1/var/lib" "$1/var/log" "$1/var/cache" && ln -sfn /run "$1/var/run"
for file in passwd group; do
    cp "/etc/$file" "$1/$file"
    grep -q '^libvirt-qemu:' "$1/$file" || case $file in
        passwd) echo 'libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin' ;;
        group) echo 'libvirt-qemu:x:64055:' ;;
    esac >>"$1/$file"
    mount --bind "$1/$file" "/etc/$file"
done
for folder in run var; do mount --bind "$1/$folder" "/$folder"; done
mount --bind "$1/etc" /etc/libvirt
# With version 1's cpusets it takes a version 2 beside them for one with controllers.
if grep -q ' /sys/fs/cgroup/cpuset ' /proc/mounts; then umount /sys/fs/cgroup/unified 2>/dev/null || true; fi
exec "$2" -f /etc/libvirt/libvirtd.conf -p "$1/pid"
"#;

/// A libvirtd and its domains.
struct Libvirt {
    dir: PathBuf,
    kit: Kit,
    daemon: Child,
    /// Whether this host has cgroup version 1's cpusets.
    cpuset: bool,
    /// Whether the test is to remove libvirt's cgroups.
    cgroups: bool,
    domains: Vec<&'static str>,
}

impl Libvirt {
    /// Starts libvirtd; `None` where this machine lacks something for it.
    fn start(dir: &Path) -> Option<Libvirt> {
        let kit = Kit::find(dir)?;
        let needed = [DAEMON, "/usr/bin/virsh", DRIVER];
        if let Some(lacks) = needed.iter().find(|it| !Path::new(it).exists()) {
            quell_testkit::skip!(
                Apps,
                "there is no {lacks} (libvirt-daemon, libvirt-clients, libvirt-daemon-driver-qemu)"
            );
            return None;
        }
        let namespace = Command::new("unshare").args(["--mount", "true"]).output();
        if !namespace.is_ok_and(|it| it.status.success()) {
            quell_testkit::skip!(Cgroups, "no mount namespace of its own is allowed here");
            return None;
        }
        let own = dir.join("libvirt");
        fs::create_dir_all(own.join("etc")).unwrap();
        let cpuset = fs::read_to_string("/proc/mounts").unwrap();
        let cpuset = cpuset.contains(" /sys/fs/cgroup/cpuset ");
        fs::write(own.join("etc/libvirtd.conf"), "auth_unix_rw = \"none\"\n").unwrap();
        configure(&own, "");
        let cgroups = cpuset && !Path::new(CGROUPS).exists();
        let daemon = Libvirt::daemon(&own);
        let libvirt = Libvirt {
            dir: dir.to_path_buf(),
            kit,
            daemon,
            cpuset,
            cgroups,
            domains: Vec::new(),
        };
        libvirt.await_daemon();
        Some(libvirt)
    }

    fn daemon(own: &Path) -> Child {
        let log = fs::File::create(own.join("log")).unwrap();
        Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-euc",
                NAMESPACE,
                "sh",
            ])
            .arg(own)
            .arg(DAEMON)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn await_daemon(&self) {
        let start = Instant::now();
        while !self.virsh(&["list"]).1 {
            let log = fs::read_to_string(self.dir.join("libvirt/log")).unwrap();
            assert!(start.elapsed() < PATIENCE, "{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn uri(&self) -> String {
        let socket = self.dir.join("libvirt/run/libvirt/libvirt-sock");
        format!("qemu+unix:///system?socket={}", socket.display())
    }

    /// Runs virsh; gives its output, as an error where it failed.
    fn virsh(&self, arguments: &[&str]) -> (String, bool) {
        let mut command = Command::new("/usr/bin/virsh");
        let command = command.args(["-q", "-c", &self.uri()]).args(arguments);
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        (said, output.status.success())
    }

    fn does(&self, arguments: &[&str]) -> String {
        let (said, done) = self.virsh(arguments);
        let log = || fs::read_to_string(self.dir.join("libvirt/log")).unwrap_or_default();
        assert!(done, "{arguments:?}: {said}\n{}", log());
        said
    }

    /// Starts a domain with this many vCPUs.
    fn boot(&mut self, name: &'static str, vcpus: usize) -> Seen {
        self.domains.push(name);
        for _ in 0..BOOTS {
            let seen = self.create(name, vcpus);
            if seen.comes_up() {
                return seen;
            }
            self.virsh(&["destroy", name]);
        }
        panic!("no guest came up");
    }

    fn create(&self, name: &str, vcpus: usize) -> Seen {
        let (dir, kit) = (&self.dir, &self.kit);
        let emulator = dir.join("emulator");
        let quoted = |it: &std::ffi::OsStr| format!("'{}'", it.to_str().unwrap());
        let (program, arguments, environment) = &kit.qemu;
        let mut script = String::from("#!/bin/sh\n");
        for (key, value) in environment {
            script += &format!("export {}={}\n", key.to_str().unwrap(), quoted(value));
        }
        let words = [program.as_os_str()]
            .into_iter()
            .chain(arguments.iter().map(|it| it.as_os_str()));
        let words: Vec<_> = words.map(quoted).collect();
        script += &format!("exec {} \"$@\"\n", words.join(" "));
        if !emulator.exists() {
            fs::write(&emulator, script).unwrap();
            fs::set_permissions(&emulator, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let console = dir.join(format!("{name}.console"));
        let xml = format!(
            "<domain type='qemu'><name>{name}</name><memory unit='MiB'>256</memory><vcpu>{vcpus}</vcpu><iothreads>1</iothreads>\
             <os><type arch='x86_64' machine='q35'>hvm</type><kernel>{}</kernel><initrd>{}</initrd>\
             <cmdline>{KERNEL_LINE}</cmdline></os><cpu mode='maximum'/><features><acpi/></features>\
             <devices><emulator>{}</emulator><serial type='file'><source path='{}'/></serial>\
             <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>\
             <memballoon model='none'/></devices></domain>",
            kit.kernel.display(),
            kit.archive.display(),
            emulator.display(),
            console.display()
        );
        let file = dir.join(format!("{name}.xml"));
        fs::write(&file, xml).unwrap();
        self.does(&["create", file.to_str().unwrap()]);
        let pid = dir.join(format!("libvirt/run/libvirt/qemu/{name}.pid"));
        let pid = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
        Seen {
            pid,
            console,
            vcpus,
        }
    }

    /// The CPUs that a domain's parts are pinned to, as libvirt reports them.
    fn pins(&self, name: &str) -> String {
        let all = ["vcpupin", "emulatorpin", "iothreadinfo"];
        all.map(|what| self.does(&[what, name, "--live"])).concat()
    }

    /// The CPUs of one of a domain's vCPUs, as libvirt reports them.
    fn pin(&self, name: &str, vcpu: u32) -> CpuSet {
        let said = self.does(&["vcpupin", name, &vcpu.to_string(), "--live"]);
        said.split_whitespace().last().unwrap().parse().unwrap()
    }

    fn end_daemon(&mut self) {
        let _ = kill(Pid::from_raw(self.daemon.id() as i32), Signal::SIGTERM);
        let _ = self.daemon.wait();
    }

    fn begin_daemon(&mut self) {
        self.daemon = Libvirt::daemon(&self.dir.join("libvirt"));
        self.await_daemon();
    }
}

/// Makes libvirt start domains in the cgroups of these controllers from now on.
fn configure(own: &Path, controllers: &str) {
    let conf = format!(
        "user = \"root\"\ngroup = \"root\"\ndynamic_ownership = 0\nremember_owner = 0\nsecurity_driver = \"none\"\nnamespaces = []\n\
         stdio_handler = \"file\"\ncgroup_controllers = [{controllers}]\n"
    );
    fs::write(own.join("etc/qemu.conf"), conf).unwrap();
}

/// Removes cgroups that libvirt left: it forgets those of a domain that it finds with other controllers
/// configured.
fn remove_cgroups(folder: &Path) {
    let inner = fs::read_dir(folder).into_iter().flatten().flatten();
    for folder in inner.map(|it| it.path()).filter(|it| it.is_dir()) {
        remove_cgroups(&folder);
    }
    let start = Instant::now();
    // The cgroup's last process may be ending.
    while fs::remove_dir(folder).is_err() && start.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        for name in &self.domains {
            let _ = self.virsh(&["destroy", name]);
        }
        self.end_daemon();
        if self.cgroups {
            remove_cgroups(Path::new(CGROUPS));
        }
    }
}

/// The time of the last answer that the agent had from a tenant's guest, in ns.
fn heard(dir: &Path, tenant: &str) -> Option<u64> {
    let mut command = Command::new("curl");
    let socket = dir.join("q.sock");
    let command = command.args(["-s", "--unix-socket"]).arg(socket);
    let answer = command.arg("http://quell/v1/snapshot").output().unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).ok()?;
    let tenants = answer["snapshot"]["tenants"].as_array()?;
    let tenant = tenants.iter().find(|it| it["name"] == tenant)?;
    tenant["guest"]["at_ns"].as_u64()
}

#[test]
fn domains_have_the_cpus_they_were_given_and_then_all_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut libvirt) = Libvirt::start(dir.path()) else {
        return;
    };
    let dir = dir.path();
    if libvirt.cpuset {
        configure(&dir.join("libvirt"), "\"cpuset\"");
        libvirt.end_daemon();
        libvirt.begin_daemon();
    }
    let web = libvirt.boot("web", WEB_VCPUS);
    assert_eq!(web.has_cpuset(), libvirt.cpuset);
    web.await_online(WEB_VCPUS);
    let state = |libvirt: &Libvirt| (web.cpus(), libvirt.pins("web"));
    let before = state(&libvirt);
    let host = before.0.values().next().unwrap().clone();
    if host.len() < 2 {
        quell_testkit::skip!(Other, "takes two CPUs");
        return;
    }
    let uri = libvirt.uri();
    let start = |dir: &Path, uri: &str| {
        let tenant = |name: &str| {
            format!("[[tenant]]\nname = \"{name}\"\nkind = \"vm\"\nlibvirt = \"{name}\"\n")
        };
        let tenants = tenant("web") + &tenant("slow");
        Agent::start(dir, &tenants, &[("LIBVIRT_DEFAULT_URI", uri)])
    };
    let end = |dir: &Path, mut running: Agent| {
        let pid = Pid::from_raw(running.child.id() as i32);
        kill(pid, Signal::SIGTERM).unwrap();
        assert!(running.child.wait().unwrap().success(), "{}", log(dir));
    };

    // While libvirt is away a domain's threads are bound as any QEMU's, its guest is not asked, and the agent
    // says so.
    libvirt.end_daemon();
    let running = start(dir, &uri);
    await_places(dir, &web);
    await_log(
        dir,
        "tenant web: its guest cannot be asked: its QEMU has no socket",
    );
    let notes = status(dir).notes;
    assert!(
        notes.iter().any(|it| it.contains("virConnectOpen")),
        "{notes:?}"
    );

    // Once libvirt is there the domain's parts are pinned and the guest is told.
    configure(&dir.join("libvirt"), "");
    libvirt.begin_daemon();
    await_log(dir, "tenant web: libvirt has it now");
    let pinned = eventually(PATIENCE, || libvirt.pin("web", 0) != host);
    assert!(pinned, "{}", log(dir));
    let (vcpus, others) = await_places(dir, &web);
    assert!(vcpus.intersection(&others).is_empty(), "{vcpus} {others}");
    assert_eq!(libvirt.pin("web", 0), vcpus, "{}", libvirt.pins("web"));
    web.await_online(vcpus.len().min(WEB_VCPUS));

    // Another domain appears, without cpusets: of its emulator libvirt moves the main thread only.
    let slow = libvirt.boot("slow", 1);
    assert!(!slow.has_cpuset());
    let answers = eventually(PATIENCE, || heard(dir, "slow").is_some());
    assert!(answers, "{}", log(dir));
    let said = log(dir);
    assert!(
        !said.contains("libvirt at"),
        "not known by its event: {said}"
    );
    let apart = await_places(dir, &web);
    assert_eq!(await_places(dir, &slow), apart);
    let (vcpus, others) = apart;
    let told = status(dir);
    let tenant = told.tenants.iter().find(|it| it.name.as_str() == "web");
    let pools = told.pools.as_ref().unwrap();
    let cpus = match tenant.and_then(|it| it.group.clone()) {
        Some(GroupPlan::Own { cpus, .. }) => cpus,
        Some(GroupPlan::Shared { .. }) => pools.idle.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!((&cpus, &pools.emulators), (&vcpus, &others), "{told:?}");

    // A guest hangs, and neither the agent nor another guest waits for it.
    let hung = Pid::from_raw(slow.pid as i32);
    kill(hung, Signal::SIGSTOP).unwrap();
    let (start_of, first) = (Instant::now(), status(dir));
    let mut heard_at = Vec::new();
    // While it hangs the agent goes on, and the other guest answers twice more.
    let goes_on = eventually(PATIENCE, || {
        heard_at.extend(heard(dir, "web"));
        heard_at.dedup();
        let told = "tenant slow: libvirt says that the guest agent does not answer";
        heard_at.len() >= 3 && status(dir).periods >= first.periods + 20 && log(dir).contains(told)
    });
    let (took, last) = (start_of.elapsed(), status(dir));
    kill(hung, Signal::SIGCONT).unwrap();
    let periods = last.periods - first.periods;
    let during = format!(
        "a guest that hangs: {took:?}, {periods} periods, {} overruns, another guest answered {} times",
        last.overruns - first.overruns,
        heard_at.len()
    );
    assert!(goes_on, "{during}\n{}", log(dir));
    eprintln!("{during}");

    // A user pins a vCPU by hand, and it stays so.
    let by_hand = others.iter().next().unwrap().to_string();
    libvirt.does(&["vcpupin", "web", "2", &by_hand, "--live"]);
    await_log(dir, "tenant web: vcpu2 left on CPUs");

    // libvirt ends, and starts again.
    libvirt.end_daemon();
    await_log(dir, "tenant web: libvirt: ");
    let periods = status(dir).periods;
    libvirt.begin_daemon();
    let asked = heard(dir, "web");
    let answers = eventually(PATIENCE, || heard(dir, "web") != asked);
    assert!(answers, "{}", log(dir));
    assert!(status(dir).periods > periods);
    end(dir, running);
    assert_eq!(libvirt.pin("web", 2).to_string(), by_hand);
    libvirt.does(&["vcpupin", "web", "2", &host.to_string(), "--live"]);
    assert_eq!(state(&libvirt), before);
    let slows = |libvirt: &Libvirt| (slow.cpus(), libvirt.pin("slow", 0));
    let all = |(threads, pin): (BTreeMap<String, CpuSet>, CpuSet)| {
        threads.into_values().chain([pin]).all(|it| it == host)
    };
    assert!(all(slows(&libvirt)), "{:?}", slows(&libvirt));
    web.await_online(WEB_VCPUS);

    // The agent dies in the middle of its first adjustment.
    let running = start(dir, &uri);
    await_change(dir, &web, &before.0);
    kill_and_restore(dir, running, &web, &before.0);
    assert_eq!(state(&libvirt), before);

    // The agent dies once the guest has other CPUs online.
    let running = start(dir, &uri);
    let (vcpus, _) = await_places(dir, &web);
    web.await_online(vcpus.len().min(WEB_VCPUS));
    kill_and_restore(dir, running, &web, &before.0);
    assert_eq!(state(&libvirt), before);
    assert!(all(slows(&libvirt)), "{:?}", slows(&libvirt));
}
