//! Pools on a real virtual machine: QEMU in emulation, Linux and the stock guest agent in it. The effects of
//! the agent's decisions are checked from the host and from inside the guest, and afterwards everything is as
//! it was. Where the lab has not been set up (`quell lab setup`, `./dev test` does it) or the guest agent is
//! not installed, or without root, the test is skipped.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
mod live;

use live::{
    Agent, BOOTS, KERNEL_LINE, Kit, PATIENCE, Seen, await_change, await_places, kill_and_restore,
    log, status,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use quell_model::{Advice, GroupPlan};
use quell_testkit::eventually;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const VCPUS: usize = 3;

struct Machine {
    child: Child,
    seen: Seen,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Machine {
    /// Boots a machine, with its files in this folder; `None` where this host lacks something for it.
    fn boot(dir: &Path) -> Option<Machine> {
        let kit = Kit::find(dir)?;
        let mut machines = (0..BOOTS).map(|_| Machine::start(dir, &kit));
        let up = machines.find(|machine| machine.seen.comes_up());
        let log = || fs::read_to_string(dir.join("qemu.log")).unwrap();
        Some(up.unwrap_or_else(|| panic!("no guest came up: {}", log())))
    }

    fn start(dir: &Path, kit: &Kit) -> Machine {
        let console = dir.join("console");
        let (program, arguments, environment) = &kit.qemu;
        let mut named = Command::new(program);
        named.args(arguments);
        named.envs(environment.iter().cloned());
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
            .arg(&kit.kernel)
            .arg("-initrd")
            .arg(&kit.archive)
            .args(["-append", KERNEL_LINE])
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
        let seen = Seen {
            pid: child.id(),
            console,
            vcpus: VCPUS,
        };
        Machine { child, seen }
    }
}

fn agent(dir: &Path, machine: &Seen) -> Agent {
    let pid = machine.pid;
    let tenant = format!("[[tenant]]\nname = \"web\"\nkind = \"vm\"\npid = [{pid}]\n");
    Agent::start(dir, &tenant, &[])
}

#[test]
fn a_guest_has_as_many_cpus_online_as_it_was_given_and_then_all_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(booted) = Machine::boot(dir.path()) else {
        return;
    };
    let machine = booted.seen.clone();
    let dir = dir.path();
    let before = machine.cpus();
    let host = before.values().next().unwrap().clone();
    if host.len() < 2 {
        quell_testkit::skip!(Other, "takes two CPUs");
        return;
    }

    // The agent is ended, and puts everything back.
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

    // The machine hangs, and the agent does not wait for it.
    let vm = Pid::from_raw(machine.pid as i32);
    kill(vm, Signal::SIGSTOP).unwrap();
    let before_it_hung = status(dir).periods;
    let goes_on = eventually(PATIENCE, || {
        log(dir).contains("did not answer within") && status(dir).periods >= before_it_hung + 10
    });
    kill(vm, Signal::SIGCONT).unwrap();
    assert!(goes_on, "{}", log(dir));

    let pid = Pid::from_raw(running.child.id() as i32);
    kill(pid, Signal::SIGTERM).unwrap();
    assert!(running.child.wait().unwrap().success(), "{}", log(dir));
    assert_eq!(machine.cpus(), before);
    machine.await_online(VCPUS);

    // The agent dies as soon as it has changed anything.
    let running = agent(dir, &machine);
    await_change(dir, &machine, &before);
    kill_and_restore(dir, running, &machine, &before);

    // The agent dies once the guest has other CPUs online.
    let running = agent(dir, &machine);
    let (vcpus, _) = await_places(dir, &machine);
    machine.await_online(vcpus.len().min(VCPUS));
    kill_and_restore(dir, running, &machine, &before);
}
