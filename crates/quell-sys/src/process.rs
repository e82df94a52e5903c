//! What a child does between fork and exec, where only async-signal-safe calls are allowed: each function
//! here adds one such step to a command. The steps are taken in the order in which they were added.

use crate::sched::{CALLER, set_affinity, set_nice};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use quell_model::CpuSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the kernel send the child that signal when the thread ends that started it. For a child that this
/// process starts: if the process has ended before the kernel is told, the child does not run its program.
pub fn end_with_parent(command: &mut Command, signal: Signal) -> &mut Command {
    let parent = Pid::this();
    // SAFETY: between fork and exec only prctl and getppid are called, which are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(signal)?;
            match Pid::parent() == parent {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        })
    }
}

/// Gives the child that nice value, if this process may; without the privilege the child has the nice value
/// of this process.
pub fn start_at_nice(command: &mut Command, nice: i32) -> &mut Command {
    // SAFETY: between fork and exec only setpriority is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            let _ = set_nice(CALLER, nice);
            Ok(())
        })
    }
}

/// Limits the child to these CPUs. Starting it fails if it may run on none of them.
pub fn start_on_cpus(command: &mut Command, cpus: CpuSet) -> &mut Command {
    // SAFETY: one system call between fork and exec; the set was copied before and is not changed: no
    // allocation.
    unsafe { command.pre_exec(move || set_affinity(CALLER, &cpus)) }
}

/// Puts the child into the cgroup whose file of processes (`cgroup.procs`) this is. Starting it fails if the
/// kernel refuses.
pub fn start_in_cgroup(command: &mut Command, mut processes: File) -> &mut Command {
    // SAFETY: one write between fork and exec, which is async-signal-safe, of a constant to an open file; no
    // allocation.
    unsafe { command.pre_exec(move || processes.write_all(b"0")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::affinity;

    #[test]
    fn a_child_starts_with_what_it_was_given() {
        let cpu = affinity(CALLER).unwrap().iter().last().unwrap();
        let mut command = Command::new("cat");
        command.args(["/proc/self/status", "/proc/self/stat"]);
        start_on_cpus(&mut command, [cpu].into_iter().collect());
        start_at_nice(&mut command, 7);
        end_with_parent(&mut command, Signal::SIGTERM);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let cpus = text
            .lines()
            .find_map(|it| it.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(cpus.map(str::trim), Some(cpu.to_string().as_str()));
        let mut fields = text.rsplit_once(") ").unwrap().1.split(' ');
        assert_eq!(fields.nth(16), Some("7"));
    }

    #[test]
    fn a_child_that_may_run_nowhere_does_not_start() {
        let mut command = Command::new("true");
        start_on_cpus(&mut command, "8191".parse().unwrap());
        assert!(command.spawn().is_err());
    }
}
