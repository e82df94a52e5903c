//! The processes that a thread starts (the step `spawn`): how many there are, and what they used.
//!
//! A thread reaps its own processes and no other thread's: the kernel tells which of those that the calling
//! thread started have ended (`__WNOTHREAD`), and one is then reaped by its id. A process that was started by
//! another is reaped by that, or, where that has ended before it, by the first process of the system.
//!
//! All of this also runs in processes, which are copies of a process with several threads: so it takes no
//! lock and no memory from the heap.

use super::super::process::cpu_ns;
use super::{Counts, thread_cpu_ns};
use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use quell_sys::copies::exit_now;
use std::fmt::Display;
use std::io;
use std::time::{Duration, Instant};

/// The exit status of a process, and of the player, that cannot go on.
const FAILED: i32 = 1;

/// The processes that a thread started and has not reaped.
pub struct Processes {
    number: u32,
    /// The parent of the process that the thread is; `None`: it is one of the player's own threads.
    parent: Option<Pid>,
}

impl Processes {
    /// Those of a thread of the player: none yet.
    pub fn of_thread() -> Processes {
        Processes {
            number: 0,
            parent: None,
        }
    }

    /// Those of a process that `parent` started: none yet.
    pub fn of_process(parent: Pid) -> Processes {
        Processes {
            number: 0,
            parent: Some(parent),
        }
    }

    /// Adds one that was just started, or ends the player where that failed.
    pub fn add(&mut self, started: io::Result<Pid>) {
        match started {
            Ok(_) => self.number += 1,
            Err(error) => self.fail("cannot start a process", error),
        }
    }

    /// Waits until at most so many have not ended; spins so long before it blocks.
    pub fn wait(&mut self, most: u32, spin: Duration, counts: &Counts) {
        self.reap_ended(counts);
        if self.number > most && !spin.is_zero() {
            let end = Instant::now() + spin;
            while self.number > most && Instant::now() < end {
                self.reap(WaitPidFlag::WNOHANG, counts);
            }
        }
        while self.number > most {
            self.reap(WaitPidFlag::empty(), counts);
        }
    }

    /// What a process does at its end.
    pub fn end(&mut self, counts: &Counts) {
        self.reap_ended(counts);
        // Its parent counts what it used, unless that has ended.
        if self.parent.is_some_and(|parent| Pid::parent() != parent) {
            counts.add_ended_ns(thread_cpu_ns());
        }
    }

    fn reap_ended(&mut self, counts: &Counts) {
        while self.reap(WaitPidFlag::WNOHANG, counts) {}
    }

    /// Reaps one that has ended, for which it waits unless flags say otherwise; whether there was one.
    fn reap(&mut self, flags: WaitPidFlag, counts: &Counts) -> bool {
        if self.number == 0 {
            return false;
        }
        // This only looks: until it is reaped, its CPU clock can be read.
        let look = flags | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::__WNOTHREAD;
        let ended = loop {
            match waitid(Id::All, look) {
                Ok(WaitStatus::StillAlive) => return false,
                Ok(WaitStatus::Exited(pid, 0)) => break pid,
                Ok(other) => self.fail(
                    "a process has ended as it should not",
                    format_args!("{other:?}"),
                ),
                Err(Errno::EINTR) => {}
                Err(errno) => self.fail("cannot wait for a process", errno),
            }
        };
        let used = cpu_ns(ended.as_raw() as u32);
        counts.add_ended_ns(used.unwrap_or(0));
        let _ = waitid(Id::Pid(ended), WaitPidFlag::WEXITED);
        self.number -= 1;
        true
    }

    /// Ends the player: what it measures would not be what the scenario says. In a process this ends the
    /// process, and so its parent in turn, down to the player, whose log says it.
    fn fail(&self, what: &str, why: impl Display) -> ! {
        if self.parent.is_some() {
            exit_now(FAILED);
        }
        eprintln!("{what}: {why}");
        std::process::exit(FAILED)
    }
}
