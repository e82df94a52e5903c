//! Processes that are copies of this one (fork without exec), and that end with it.
//!
//! Problem: copies must be gone when this process is, however it ends. The kernel's signal at a parent's end
//! (`PR_SET_PDEATHSIG`) would also end a copy whose parent is another copy that has done its work.
//!
//! Approach: all copies are in the process group that this process leads, and the kernel sends SIGKILL to
//! that group when the last write end of a pipe is closed (`F_SETOWN`, `F_SETSIG`, `O_ASYNC`). This process
//! alone keeps a write end: a copy closes its own before it does anything else. So there is no moment at
//! which the end of this process is missed.
//!
//! The group may be stopped and let go on (SIGSTOP, SIGCONT). What comes to a group while one of its
//! processes forks, the kernel gives to the copy as well, but not a SIGCONT that is ignored, as it is by
//! default: the copy would stay stopped for ever. So this process and its copies have a handler for SIGCONT,
//! which does nothing.

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{ForkResult, Pid, fork, getpgrp, pipe2};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The command of fcntl that says which signal tells of a descriptor (linux/fcntl.h).
const F_SETSIG: libc::c_int = 10;

/// The exit status of a copy that panicked, as of a program of Rust.
const PANICKED: i32 = 101;

/// Starts copies of this process, which end with it.
#[derive(Debug)]
pub struct Copies {
    /// The write end, which copies close.
    kept: OwnedFd,
    /// The read end, which copies keep: the signal is sent as long as one is open.
    _watched: OwnedFd,
}

impl Copies {
    /// For a process that leads a process group in which are no others than its copies. It handles SIGCONT
    /// from then on, by doing nothing.
    ///
    /// # Errors
    /// The call fails if this process does not lead its group (`EINVAL`), or has no file descriptors left.
    pub fn new() -> io::Result<Copies> {
        let leader = Pid::this();
        if getpgrp() != leader {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (watched, kept) = pipe2(OFlag::O_CLOEXEC)?;
        let fd = watched.as_raw_fd();
        for (command, value) in [
            (libc::F_SETOWN, -leader.as_raw()),
            (F_SETSIG, Signal::SIGKILL as i32),
        ] {
            // SAFETY: the descriptor is open, and both commands take a number.
            crate::check(unsafe { libc::fcntl(fd, command, value) }.into())?;
        }
        fcntl(&watched, FcntlArg::F_SETFL(OFlag::O_ASYNC))?;
        let handler = SigHandler::Handler(do_nothing);
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing, which is async-signal-safe.
        unsafe { sigaction(Signal::SIGCONT, &action) }?;
        Ok(Copies {
            kept,
            _watched: watched,
        })
    }

    /// Starts a copy, which does `work` and ends: with exit status 0, or 101 if `work` panics. The copy is a
    /// child of the calling thread. A copy may start copies in turn, with the same `Copies`.
    ///
    /// # Safety
    /// Of the threads the copy has only the calling one: a lock that another thread held will never be free
    /// in it. So `work` takes no lock that another thread may hold, which includes most of what allocates
    /// memory or prints; it does what is async-signal-safe (signal-safety(7)). It opens no file descriptor.
    ///
    /// # Errors
    /// The call fails if there are too many processes (`EAGAIN`) or too little memory (`ENOMEM`).
    pub unsafe fn start(&self, work: impl FnOnce()) -> io::Result<Pid> {
        // SAFETY: the copy closes a descriptor, does `work`, of which the caller promises what is asked for
        // here, and ends by `_exit`; it returns to no caller.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(child),
            ForkResult::Child => {
                // This process never drops `self`, so the number is not closed twice by that. A copy of a
                // copy finds it closed already, and not used again: a copy opens nothing.
                let _ = nix::unistd::close(self.kept.as_raw_fd());
                let done = catch_unwind(AssertUnwindSafe(work));
                exit_now(if done.is_ok() { 0 } else { PANICKED })
            }
        }
    }
}

extern "C" fn do_nothing(_: libc::c_int) {}

/// Ends this process at once, with that exit status: nothing is dropped or flushed. Async-signal-safe.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: no memory is passed, and the call does not return.
    unsafe { libc::_exit(status) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::kill;
    use quell_testkit::eventually;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    /// Set where this test program runs as a process that starts copies.
    const STARTS: &str = "QUELL_TEST_COPIES";

    /// Whether a process runs; one that waits to be reaped does not.
    fn runs(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn sleep() {
        std::thread::sleep(Duration::from_secs(600));
    }

    /// Not a test by itself: starts a copy that sleeps, and one that starts another and ends.
    #[test]
    fn starts_copies() {
        if std::env::var_os(STARTS).is_none() {
            return;
        }
        let copies = Copies::new().unwrap();
        let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let says_pid = || {
            let _ = nix::unistd::write(&write, &Pid::this().as_raw().to_le_bytes());
        };
        // SAFETY: the copies call functions of the kernel only.
        unsafe {
            let starts = || {
                says_pid();
                let _ = copies.start(|| {
                    says_pid();
                    sleep();
                });
            };
            copies
                .start(sleep)
                .map(|pid| println!("copy {pid}"))
                .unwrap();
            copies.start(starts).unwrap();
        }
        for _ in 0..2 {
            let mut pid = [0; 4];
            nix::unistd::read(&read, &mut pid).unwrap();
            println!("copy {}", i32::from_le_bytes(pid));
        }
        sleep();
    }

    #[test]
    fn copies_end_with_the_first_process_and_not_with_their_parent() {
        let mut first = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "copies::tests::starts_copies", "--nocapture"])
            .env(STARTS, "1")
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(first.stdout.take().unwrap()).lines();
        let pids = lines.map_while(Result::ok).filter_map(|line| {
            let (_, pid) = line.split_once("copy ")?;
            Some(pid.to_string())
        });
        let pids: Vec<String> = pids.take(3).collect();
        let limit = Duration::from_secs(30);
        let (parent, others) = (&pids[1], [&pids[0], &pids[2]]);
        assert!(eventually(limit, || !runs(parent)));
        assert!(others.iter().all(|pid| runs(pid)));
        kill(Pid::from_raw(first.id() as i32), Signal::SIGKILL).unwrap();
        assert!(eventually(limit, || !others.iter().any(|pid| runs(pid))));
        first.wait().unwrap();
    }
}
