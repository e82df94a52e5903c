//! Child processes that end when we end.
//!
//! Every child is the leader of its own process group, so that Ctrl-C reaches only us and that the child's
//! own children can be ended with it. The kernel ends the child if we die without a chance to do it
//! (`PR_SET_PDEATHSIG`). The kernel ties that signal to the *thread* that started the child; so one thread,
//! the nursery, starts all children and lives as long as the workload.

use anyhow::Context;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use quell_sys::process::end_with_parent;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long a child may take to end by itself.
const GRACE: Duration = Duration::from_secs(2);

/// Starts children.
pub struct Nursery {
    orders: Sender<Order>,
}

/// A child to start, and where to send it.
type Order = (Command, Sender<io::Result<Child>>);

impl Nursery {
    /// Starts the nursery's thread, which ends when the nursery is dropped.
    ///
    /// # Errors
    /// Where the thread cannot be started.
    pub fn new() -> anyhow::Result<Nursery> {
        let (orders, inbox): (_, Receiver<Order>) = channel();
        std::thread::Builder::new()
            .name("nursery".to_string())
            .spawn(move || {
                for (mut command, reply) in inbox {
                    // The caller no longer waits for the reply: the child would have no owner.
                    if let Err(unclaimed) = reply.send(command.spawn()) {
                        if let Ok(mut child) = unclaimed.0 {
                            let _ = child.kill();
                            let _ = child.wait();
                        }
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(Nursery { orders })
    }

    /// Starts a child. Its `stdin` and `stdout` are as the command has them, its stderr goes to the file
    /// `log`.
    ///
    /// # Errors
    /// Where the log cannot be created or the child cannot be started.
    pub fn start(&self, mut command: Command, log: &Path) -> anyhow::Result<Process> {
        let program = command.get_program().to_string_lossy().into_owned();
        let output =
            File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stderr(Stdio::from(output)).process_group(0);
        // SIGTERM, not SIGKILL: nginx then ends its workers, which would outlive it.
        end_with_parent(&mut command, Signal::SIGTERM);
        let (reply, answer) = channel();
        self.orders
            .send((command, reply))
            .ok()
            .context("the nursery thread has ended")?;
        let child = answer.recv().context("the nursery thread has ended")?;
        let child = child.with_context(|| format!("cannot start {program}"))?;
        Ok(Process {
            child,
            program,
            log: log.into(),
        })
    }
}

/// A child. Dropping ends it and its process group, and waits for that.
pub struct Process {
    child: Child,
    program: String,
    log: PathBuf,
}

impl Process {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Checks that the child has not ended.
    ///
    /// # Errors
    /// Where it has ended: how, and the last lines of its log.
    pub fn check_alive(&self) -> anyhow::Result<()> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.nix_pid()), flags) {
            Ok(WaitStatus::StillAlive) => Ok(()),
            Ok(WaitStatus::Exited(_, code)) => self.ended(format!("exit code {code}")),
            Ok(WaitStatus::Signaled(_, signal, _)) => self.ended(format!("{signal}")),
            other => self.ended(format!("{other:?}")),
        }
    }

    fn ended(&self, how: String) -> anyhow::Result<()> {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let mut tail: Vec<&str> = log.lines().rev().take(5).collect();
        tail.reverse();
        let said = if tail.is_empty() {
            String::new()
        } else {
            format!(": {}", tail.join("; "))
        };
        anyhow::bail!(
            "{} (pid {}) has ended ({how}){said}",
            self.program,
            self.pid()
        )
    }

    /// Stops the child and its group until [`Process::go_on`]; if we die before that, the kernel ends them.
    pub fn hold(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets the child and its group go on.
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Asks the child and its group to end; dropping then waits less.
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
        // A process that is held takes the signal only when it goes on.
        self.go_on();
    }

    fn signal(&self, signal: Signal) {
        // The group's id cannot have been reused: its leader is our child and not reaped yet.
        let _ = killpg(self.nix_pid(), signal);
    }

    fn nix_pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.terminate();
        let give_up = Instant::now() + GRACE;
        while self.check_alive().is_ok() && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(2));
        }
        // Ends the rest of the group before the leader is reaped and its id is free. On a busy machine it may
        // have to wait for a CPU to die on.
        let _ = killpg(self.nix_pid(), Signal::SIGKILL);
        let give_up = Instant::now() + GRACE;
        let alive = |it: &Listed| it.group == self.pid() && !it.ended;
        while all().iter().any(alive) && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.wait();
    }
}

/// A process, as `/proc` tells of it.
#[derive(Debug, Clone, Copy)]
pub struct Listed {
    pid: u32,
    /// Whether it has ended and is not reaped yet.
    ended: bool,
    parent: u32,
    /// The id of its process group.
    group: u32,
}

/// All processes, ascending by pid.
pub fn all() -> Vec<Listed> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in parentheses may hold anything.
        let mut after = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        let ended = matches!(after.next(), Some("Z" | "X"));
        let mut number = || after.next()?.parse().ok();
        if let (Some(parent), Some(group)) = (number(), number()) {
            all.push(Listed {
                pid,
                ended,
                parent,
                group,
            });
        }
    }
    all.sort_unstable_by_key(|it| it.pid);
    all
}

/// The process itself first, then its descendants, ascending by pid.
pub fn family(pid: u32) -> Vec<u32> {
    let all = all();
    let mut family = vec![pid];
    let mut index = 0;
    while index < family.len() {
        let parent = family[index];
        family.extend(all.iter().filter(|it| it.parent == parent).map(|it| it.pid));
        index += 1;
    }
    family[1..].sort_unstable();
    family
}

/// The other processes in the group that a process leads, ascending by pid. A process that has ended after
/// its parent is left out: no process of the group will reap it.
pub fn followers(all: &[Listed], leader: u32) -> Vec<u32> {
    let group: Vec<&Listed> = all.iter().filter(|it| it.group == leader).collect();
    let has = |pid| group.iter().any(|it| it.pid == pid);
    let keep = |it: &&&Listed| it.pid != leader && (!it.ended || has(it.parent));
    group.iter().filter(keep).map(|it| it.pid).collect()
}

/// The CPU time that a process has used, its ended threads included, in ns; `None` if it is gone.
pub fn cpu_ns(pid: u32) -> Option<u64> {
    let clock = nix::time::clock_getcpuclockid(Pid::from_raw(pid as i32)).ok()?;
    let time = nix::time::clock_gettime(clock).ok()?;
    Some(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// The CPU time that a process's threads have used, by the program that they run, in ns, as far as it can be
/// read. Threads are named as programs are, with a number behind where there are several.
pub fn programs_ns(pid: u32, programs: &[String]) -> BTreeMap<String, u64> {
    let mut of = BTreeMap::new();
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return of;
    };
    for thread in threads.flatten().map(|thread| thread.path()) {
        let read = |file| std::fs::read_to_string(thread.join(file)).ok();
        let (Some(name), Some(used)) = (read("comm"), read("schedstat")) else {
            continue; // The thread has ended.
        };
        let used = used.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
        let name = name.trim_end();
        let runs = |program: &&String| {
            let rest = name.strip_prefix(program.as_str());
            let number = rest.and_then(|rest| rest.strip_prefix('-'));
            rest == Some("") || number.is_some_and(|it| it.parse::<u32>().is_ok())
        };
        if let (Some(program), Some(used)) = (programs.iter().find(runs), used) {
            *of.entry(program.clone()).or_default() += used;
        }
    }
    of
}

/// Finds a program on PATH and in the folders where daemons live; `package` is the Debian package that has
/// it.
///
/// # Errors
/// Where it is in none of these folders.
pub fn find_program(name: &str, package: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let daemons = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
    find_in(name, std::env::split_paths(&path).chain(daemons.iter().map(PathBuf::from)))
        .with_context(|| {
            format!("{name} is not installed (looked on PATH and in /usr/sbin); on Debian and Ubuntu: apt-get install {package}")
        })
}

fn find_in(name: impl AsRef<OsStr>, folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    use nix::unistd::{AccessFlags, access};
    folders
        .map(|folder| folder.join(name.as_ref()))
        .find(|file| file.is_file() && access(file, AccessFlags::X_OK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_ends_the_whole_group() {
        let folder = tempfile::tempdir().unwrap();
        let nursery = Nursery::new().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & exec sleep 1000"]);
        let process = nursery.start(command, &folder.path().join("log")).unwrap();
        let give_up = Instant::now() + Duration::from_secs(10);
        while family(process.pid()).len() < 2 && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(5));
        }
        let pids = family(process.pid());
        assert_eq!(pids.len(), 2);
        drop(process);
        // The grandchild is reaped by the process that adopts it; a zombie counts as gone.
        let stat = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/stat"));
        let lives = |pid: &u32| stat(pid).is_ok_and(|stat| !stat.contains(") Z "));
        assert!(!pids.iter().any(lives));
    }

    #[test]
    fn who_is_held_does_nothing_and_ends_when_asked() {
        let folder = tempfile::tempdir().unwrap();
        let nursery = Nursery::new().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        let process = nursery.start(command, &folder.path().join("log")).unwrap();
        let eventually = |state: char| {
            let stat = format!("/proc/{}/stat", process.pid());
            let is = format!(") {state} ");
            let give_up = Instant::now() + Duration::from_secs(10);
            while !std::fs::read_to_string(&stat).unwrap().contains(&is) {
                assert!(Instant::now() < give_up, "not {state}");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        process.hold();
        eventually('T');
        process.go_on();
        eventually('R');
        process.hold();
        eventually('T');
        process.terminate();
        eventually('Z');
    }

    #[test]
    fn an_early_end_is_reported_with_what_was_said() {
        let folder = tempfile::tempdir().unwrap();
        let nursery = Nursery::new().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo cannot go on >&2; exit 3"]);
        let process = nursery.start(command, &folder.path().join("log")).unwrap();
        let give_up = Instant::now() + Duration::from_secs(10);
        while process.check_alive().is_ok() && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(5));
        }
        let error = process.check_alive().unwrap_err().to_string();
        assert!(
            error.contains("exit code 3") && error.contains("cannot go on"),
            "{error}"
        );
    }
}
