//! A quick start of a side beside tenants that leave others little CPU time: at 100 times the weight of
//! others, these tenants would be measured for minutes under the side before.

use nix::sys::signal::Signal;
use quell_model::Tid;
use quell_sys::process::{end_with_parent, start_at_nice};
use quell_sys::sched::set_nice;
use std::process::Command;

/// Has a child get the signal `end` when this process ends, and run before all threads of normal priority
/// while it starts, where that is permitted.
pub(super) fn hurry(command: &mut Command, end: Signal) {
    end_with_parent(command, end);
    start_at_nice(command, -20);
}

/// Gives a child that has started the priority of other processes.
pub(super) fn ease(pid: u32) {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    for tid in threads.filter_map(|it| it.file_name().to_str()?.parse().ok()) {
        // The thread may have ended.
        let _ = set_nice(Tid(tid), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn haste_ends_with_the_start() {
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::null());
        hurry(&mut command, Signal::SIGTERM);
        let mut child = command.spawn().unwrap();
        let nice = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            let mut fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
            fields.nth(16).unwrap().parse::<i32>().unwrap()
        };
        // Without permission the nice value is 0 throughout.
        assert!([-20, 0].contains(&nice()));
        ease(child.id());
        assert_eq!(nice(), 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
