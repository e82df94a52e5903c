//! Processes of this program: victims and loads of our own.
//!
//! Each process is started with an order, writes `ready` when all that it needs is there, reads the window
//! from its standard input, and writes what it measured, a line of JSON each. So a slow start, such as a
//! server's, is no part of the warm-up.

use super::PART;
use super::victim::Window;
use anyhow::{Context, bail, ensure};
use quell_bench::workload::{Interrupted, Nursery, Place, Process};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a process may take to be ready, and to report after its time.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often an interrupt is looked for.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// How long a process that writes no more may take to end.
const GRACE: Duration = Duration::from_secs(1);

/// The line that says that all is there.
const READY: &str = "ready";

/// A process that runs; dropping ends it.
pub(super) struct Part {
    process: Process,
    lines: Receiver<String>,
}

impl Part {
    /// Starts a process, with `role` and order as [`super::part_main`] reads them. It runs in `folder`, and
    /// its stderr goes to the file `log` there.
    ///
    /// # Errors
    /// Where the process cannot be started or put into its place.
    pub(super) fn start(
        exe: &Path,
        (role, order): (&str, &impl Serialize),
        folder: &Path,
        place: &Place,
        nursery: &Nursery,
    ) -> anyhow::Result<Part> {
        let mut command = Command::new(exe);
        command.args([PART, role, &serde_json::to_string(order)?]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.current_dir(folder);
        place.put(&mut command)?;
        let mut process = nursery.start(command, &folder.join("log"))?;
        let out = process.child().stdout.take().context("no pipe")?;
        Ok(Part {
            process,
            lines: read_lines(out),
        })
    }

    /// Waits until all that the process needs is there.
    ///
    /// # Errors
    /// [`Interrupted`]; and where the process ends, writes something else, or is not ready in time.
    pub(super) fn wait_ready(&self, interrupt: &AtomicBool) -> anyhow::Result<()> {
        let line = self.line(interrupt)?;
        ensure!(line == READY, "it says `{line}` instead of `{READY}`");
        Ok(())
    }

    /// Tells the process its window, and thereby starts its work.
    ///
    /// # Errors
    /// Where the process does not read it.
    pub(super) fn begin(&mut self, window: Window) -> anyhow::Result<()> {
        let mut pipe = self.process.child().stdin.take().context("no pipe")?;
        let line = serde_json::to_string(&window)? + "\n";
        pipe.write_all(line.as_bytes())
            .context("it does not listen")
    }

    /// The next line that the process reports.
    ///
    /// # Errors
    /// [`Interrupted`]; and where the process ends, writes nothing in time, or writes something else.
    pub(super) fn result<T: for<'a> Deserialize<'a>>(
        &self,
        interrupt: &AtomicBool,
    ) -> anyhow::Result<T> {
        let line = self.line(interrupt)?;
        serde_json::from_str(&line).with_context(|| format!("it says `{line}`"))
    }

    /// Checks that the process has not ended.
    ///
    /// # Errors
    /// Where it has ended.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.process.check_alive()
    }

    fn line(&self, interrupt: &AtomicBool) -> anyhow::Result<String> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => return Err(self.end()),
                Err(RecvTimeoutError::Timeout) if interrupt.load(Ordering::Relaxed) => {
                    bail!(Interrupted)
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() >= give_up => {
                    bail!("it says nothing for {PATIENCE:?}")
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Why the process writes no more.
    fn end(&self) -> anyhow::Error {
        let give_up = Instant::now() + GRACE;
        loop {
            match self.process.check_alive() {
                Err(ended) => return ended,
                Ok(()) if Instant::now() >= give_up => return anyhow::anyhow!("it says no more"),
                Ok(()) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }
}

/// The lines that a child writes, as they come.
fn read_lines(out: ChildStdout) -> Receiver<String> {
    let (say, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if say.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// In such a process: says that all is there, and waits for the window.
///
/// # Errors
/// Where standard output or input fails, or the window cannot be read.
pub(super) fn ready() -> anyhow::Result<Window> {
    say(READY)?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    serde_json::from_str(&line).context("the window")
}

/// In such a process: reports what it measured.
///
/// # Errors
/// Where standard output fails.
pub(super) fn tell(result: &impl Serialize) -> anyhow::Result<()> {
    say(&serde_json::to_string(result)?)
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell in place of the program: its script is a file with the subcommand's name.
    fn part(nursery: &Nursery, folder: &Path, script: &str) -> Part {
        std::fs::write(folder.join(PART), script).unwrap();
        let place = Place::default();
        Part::start(Path::new("sh"), ("load", &1), folder, &place, nursery).unwrap()
    }

    #[test]
    fn one_is_told_the_window_when_it_is_ready() {
        let (folder, nursery) = (tempfile::tempdir().unwrap(), Nursery::new().unwrap());
        let script = "echo ready; read it; echo \"$it\"; read it";
        let mut part = part(&nursery, folder.path(), script);
        let never = AtomicBool::new(false);
        part.wait_ready(&never).unwrap();
        let window = Window {
            from_ns: 1,
            until_ns: 2,
        };
        part.begin(window).unwrap();
        assert_eq!(part.result::<Window>(&never).unwrap(), window);
    }

    #[test]
    fn why_one_has_ended_is_said() {
        let (folder, nursery) = (tempfile::tempdir().unwrap(), Nursery::new().unwrap());
        let script = "echo no server here >&2; exit 1";
        let part = part(&nursery, folder.path(), script);
        let error = part.wait_ready(&AtomicBool::new(false)).unwrap_err();
        assert!(format!("{error:#}").contains("no server here"), "{error:#}");
    }

    #[test]
    fn an_interrupt_ends_waiting() {
        let (folder, nursery) = (tempfile::tempdir().unwrap(), Nursery::new().unwrap());
        let part = part(&nursery, folder.path(), "sleep 1000");
        let error = part.wait_ready(&AtomicBool::new(true)).unwrap_err();
        assert!(error.is::<Interrupted>());
    }
}
