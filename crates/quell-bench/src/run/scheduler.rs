//! A sched_ext scheduler as a child process: a side that is a name and a command line.
//!
//! The command loads a scheduler and runs until SIGINT. It has started once the kernel says that a scheduler
//! is enabled, and has stopped once the kernel schedules by itself again.

use super::startup_boost::{ease, hurry};
use crate::workload::Interrupted;
use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const STATE: &str = "/sys/kernel/sched_ext/state";

/// How long the command may take to load its scheduler, and to unload it.
const READY: Duration = Duration::from_secs(120);
const STOP: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// A scheduler that is loaded.
pub(crate) struct SchedulerChild {
    child: Child,
    folder: TempDir,
    stopped: bool,
}

impl SchedulerChild {
    /// Starts `command` (program and arguments) and waits until its scheduler is in charge.
    ///
    /// # Errors
    /// [`Interrupted`]; a kernel without sched_ext or with another scheduler of it, and a command that cannot
    /// be started, ends by itself or loads no scheduler within two minutes.
    pub(crate) fn start(
        command: &[String],
        interrupt: &AtomicBool,
    ) -> anyhow::Result<SchedulerChild> {
        match state().as_deref() {
            None => bail!("this kernel has no sched_ext ({STATE} is missing)"),
            Some("disabled") => {}
            Some(other) => bail!("another sched_ext scheduler is there already ({other})"),
        }
        let [program, arguments @ ..] = command else {
            bail!("the side's command is empty");
        };
        let folder = TempDir::with_prefix("quell-bench-")?;
        let log = File::create(folder.path().join("log"))?;
        let mut process = Command::new(program);
        process
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C reaches the terminal's whole process group; see `AgentChild`.
            .process_group(0);
        hurry(&mut process, Signal::SIGINT);
        let child = process
            .spawn()
            .with_context(|| format!("starting `{program}`"))?;
        let mut scheduler = SchedulerChild {
            child,
            folder,
            stopped: false,
        };
        let began = Instant::now();
        while state().as_deref() != Some("enabled") {
            if let Some(status) = scheduler.child.try_wait()? {
                scheduler.stopped = true;
                bail!(
                    "it ended ({status}) before it was in charge\n{}",
                    scheduler.log()
                );
            }
            if interrupt.load(Ordering::Relaxed) {
                bail!(Interrupted);
            }
            if began.elapsed() > READY {
                bail!("not in charge after {READY:?}\n{}", scheduler.log());
            }
            std::thread::sleep(POLL);
        }
        ease(scheduler.child.id());
        Ok(scheduler)
    }

    /// Ends the scheduler with SIGINT.
    ///
    /// # Errors
    /// Where the scheduler was no longer in charge, so that the kernel's own was measured, or does not unload
    /// within 30 s.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        self.in_charge()?;
        self.end()
    }

    /// Checks that the scheduler is still in charge.
    ///
    /// # Errors
    /// Where its program has ended, or the kernel has ejected it.
    pub(crate) fn in_charge(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            self.stopped = true;
            bail!("it ended by itself ({status})\n{}", self.log());
        }
        if state().as_deref() != Some("enabled") {
            bail!("the kernel threw it out\n{}", self.log());
        }
        Ok(())
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.stopped = true;
        // The child is not reaped yet, so the id is still its own.
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        kill(pid, Signal::SIGINT)?;
        let began = Instant::now();
        while self.child.try_wait()?.is_none() {
            if began.elapsed() > STOP {
                self.child.kill()?;
                self.child.wait()?;
                bail!("it did not end on SIGINT within {STOP:?}\n{}", self.log());
            }
            std::thread::sleep(POLL);
        }
        while state().as_deref() != Some("disabled") {
            if began.elapsed() > STOP {
                bail!("{STATE} is not `disabled` after it ended");
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// The last lines that the program wrote.
    fn log(&self) -> String {
        let text = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for SchedulerChild {
    fn drop(&mut self) {
        if !self.stopped {
            // There is no caller to tell; the kernel unloads the scheduler with its process at the latest.
            let _ = self.end();
        }
    }
}

fn state() -> Option<String> {
    let text = std::fs::read_to_string(Path::new(STATE)).ok()?;
    Some(text.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_sched_ext_or_a_command_that_fails_is_an_error() {
        let error = SchedulerChild::start(&["false".to_string()], &AtomicBool::new(false))
            .err()
            .unwrap();
        let text = format!("{error:#}");
        let expected = match state().as_deref() {
            None => "has no sched_ext",
            Some("disabled") => "before it was in charge",
            Some(_) => "another sched_ext scheduler",
        };
        assert!(text.contains(expected), "{text}");
    }
}
