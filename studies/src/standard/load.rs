//! The loads beside the victims: programs of the distribution and our own; how each is started, ended and
//! asked for its work.

use super::own::{OwnDone, OwnLoad, OwnOrder};
use super::part::Part;
use super::program::Program;
use super::victim::Window;
use super::{parse, sources};
use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use quell_bench::workload::{Nursery, Place, Process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How long a load may take to end after its time.
const GRACE: Duration = Duration::from_secs(20);

/// A load of a case.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadSpec {
    /// Its name in the results.
    pub name: String,
    /// The unit of its work; `None`: it has no throughput.
    pub unit: Option<&'static str>,
    /// What the load does.
    pub kind: LoadKind,
    /// The greatest number of its processes and threads, in a cgroup of its own; `None`: it is in the root
    /// cgroup.
    pub most: Option<u32>,
    /// The programs that it needs beside `quell`.
    pub needs: Vec<Program>,
    /// How many files of C are in the folder that it runs in, with a makefile for them.
    pub sources: u32,
}

/// What a load does.
#[derive(Debug, Clone, PartialEq)]
pub enum LoadKind {
    /// Stressors of stress-ng.
    StressNg {
        /// The stressor's name.
        stressor: &'static str,
        /// The number of stressors.
        workers: u32,
        /// More arguments.
        more: &'static [&'static str],
    },
    /// The real cyclictest: a victim, which is among the loads because it is another program.
    Cyclictest {
        /// The number of its threads.
        threads: u32,
        /// Its period, in µs.
        period_us: u64,
    },
    /// A load of our own.
    Own(OwnLoad),
}

impl LoadSpec {
    /// A load of our own.
    pub(super) fn own(name: &str, unit: Option<&'static str>, load: OwnLoad) -> LoadSpec {
        LoadSpec {
            name: name.to_string(),
            unit,
            kind: LoadKind::Own(load),
            most: None,
            needs: Vec::new(),
            sources: 0,
        }
    }

    /// Instances of a stressor, with more arguments.
    pub(super) fn stress_ng(
        stressor: &'static str,
        workers: u32,
        more: &'static [&'static str],
    ) -> LoadSpec {
        let arguments = [&["stress-ng"], more].concat().join(" ");
        LoadSpec {
            name: arguments.replacen("stress-ng", &format!("stress-ng --{stressor} {workers}"), 1),
            unit: Some("ops/s"),
            kind: LoadKind::StressNg {
                stressor,
                workers,
                more,
            },
            most: None,
            needs: vec![Program::STRESS_NG],
            sources: 0,
        }
    }

    /// A program that is run again and again by one loop.
    pub(super) fn repeat(program: Program, arguments: &str) -> LoadSpec {
        let command = std::iter::once(program.name).chain(arguments.split_whitespace());
        let load = OwnLoad::Repeat {
            command: command.map(str::to_string).collect(),
            loops: 1,
            per_round: 1.0,
        };
        LoadSpec {
            needs: vec![program],
            ..LoadSpec::own(
                &format!("{} {arguments}", program.name),
                Some("rounds/s"),
                load,
            )
        }
    }

    /// Starts the load in `folder`, at `place`, with the seed of what is random in it. A load of our own then
    /// waits for its window; another program runs at once.
    ///
    /// # Errors
    /// Where a program that the load needs is missing or cannot be started, or a file cannot be written.
    pub(super) fn start(
        &self,
        exe: &Path,
        seed: u64,
        folder: &Path,
        place: &Place,
        nursery: &Nursery,
    ) -> anyhow::Result<Running> {
        sources::write(folder, self.sources)?;
        let program = |it: Program| it.find().map(Command::new);
        let mut command = match &self.kind {
            LoadKind::Own(load) => {
                let load = load.clone();
                let order = OwnOrder { load, seed };
                let part = Part::start(exe, ("load", &order), folder, place, nursery)?;
                return Ok(Running {
                    spec: self.clone(),
                    what: What::Ours(part),
                });
            }
            LoadKind::StressNg {
                stressor,
                workers,
                more,
            } => {
                let mut command = program(Program::STRESS_NG)?;
                command.args(*more);
                command
                    .arg(format!("--{stressor}"))
                    .arg(workers.to_string());
                command
                    .args(["--metrics-brief", "--timeout", "1h", "--temp-path"])
                    .arg(folder);
                command
            }
            LoadKind::Cyclictest { threads, period_us } => {
                let mut command = program(Program::CYCLICTEST)?;
                command.args(["--policy=other", "--quiet", "--histogram=50000"]);
                command
                    .arg(format!("--threads={threads}"))
                    .arg(format!("--interval={period_us}"));
                command.arg(format!("--json={JSON}"));
                command
            }
        };
        let out = folder.join(OUT);
        let file = File::create(&out).with_context(|| out.display().to_string())?;
        // Programs that report on stdout write all of their report at once.
        command
            .stdin(Stdio::null())
            .stdout(file)
            .current_dir(folder);
        place.put(&mut command)?;
        let process = nursery.start(command, &folder.join(LOG))?;
        Ok(Running {
            spec: self.clone(),
            what: What::Theirs(process, folder.to_path_buf()),
        })
    }
}

/// A load that runs; dropping ends it.
pub(super) struct Running {
    pub(super) spec: LoadSpec,
    what: What,
}

/// What runs.
enum What {
    Ours(Part),
    /// Another program, and the folder that it runs in.
    Theirs(Process, PathBuf),
}

// Files in the folder of another program: its output, its errors, and what cyclictest writes.
const OUT: &str = "out";
const LOG: &str = "log";
const JSON: &str = "result.json";

impl Running {
    /// Waits until the load can begin.
    ///
    /// # Errors
    /// [`Interrupted`](quell_bench::workload::Interrupted), or the load ended or is not ready in time.
    pub(super) fn wait_ready(&self, interrupt: &AtomicBool) -> anyhow::Result<()> {
        let ready = match &self.what {
            What::Ours(part) => part.wait_ready(interrupt),
            What::Theirs(..) => Ok(()),
        };
        ready.with_context(|| self.spec.name.clone())
    }

    /// Tells the load its window; a program that runs already needs none.
    ///
    /// # Errors
    /// Where the load does not read it.
    pub(super) fn begin(&mut self, window: Window) -> anyhow::Result<()> {
        let begun = match &mut self.what {
            What::Ours(part) => part.begin(window),
            What::Theirs(..) => Ok(()),
        };
        begun.with_context(|| self.spec.name.clone())
    }

    /// Checks that the load has not ended, which it must not before its window has.
    ///
    /// # Errors
    /// Where it has ended.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let alive = match &self.what {
            What::Ours(part) => part.check(),
            What::Theirs(process, _) => process.check_alive(),
        };
        alive.with_context(|| self.spec.name.clone())
    }

    /// Tells the load that the window is over, if it does not know that by itself.
    pub(super) fn finish(&self) {
        if let What::Theirs(process, _) = &self.what {
            // The child is not reaped yet, so the id is still its own.
            let _ = kill(Pid::from_raw(process.pid() as i32), Signal::SIGINT);
        }
    }

    /// Waits until the load ends, and takes its report.
    ///
    /// # Errors
    /// [`Interrupted`](quell_bench::workload::Interrupted), or the load does not end in time or gives no
    /// report.
    pub(super) fn done(self, interrupt: &AtomicBool) -> anyhow::Result<OwnDone> {
        let done = match &self.what {
            What::Ours(part) => part.result(interrupt),
            What::Theirs(process, folder) => {
                wait_for_end(process).and_then(|()| said(&self.spec.kind, folder))
            }
        };
        done.with_context(|| self.spec.name.clone())
    }
}

fn wait_for_end(process: &Process) -> anyhow::Result<()> {
    let give_up = Instant::now() + GRACE;
    while process.check_alive().is_ok() {
        if Instant::now() >= give_up {
            bail!("it did not end within {GRACE:?} after its time");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// What another program reports of its work, in the folder that it ran in.
fn said(kind: &LoadKind, folder: &Path) -> anyhow::Result<OwnDone> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let text = read(OUT) + &read(LOG);
    let nothing = || {
        let last: Vec<&str> = text.lines().collect();
        let last = last[last.len().saturating_sub(5)..].join("; ");
        format!("it does not say what it did: {last}")
    };
    Ok(match kind {
        LoadKind::StressNg { stressor, .. } => OwnDone {
            per_s: Some(parse::stress_ng(&text, stressor).with_context(nothing)?),
            figures: None,
        },
        _ => OwnDone {
            per_s: None,
            figures: Some(parse::cyclictest(&read(JSON)).with_context(nothing)?),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_named_as_it_is_called() {
        let load = LoadSpec::repeat(Program::HACKBENCH, "-g 1 -l 50 -T");
        assert_eq!(load.name, "hackbench -g 1 -l 50 -T");
        let LoadKind::Own(OwnLoad::Repeat { command, .. }) = load.kind else {
            panic!("{load:?}");
        };
        assert_eq!(command, ["hackbench", "-g", "1", "-l", "50", "-T"]);
        assert_eq!(
            LoadSpec::stress_ng("pipe", 4, &["-x"]).name,
            "stress-ng --pipe 4 -x"
        );
    }
}
