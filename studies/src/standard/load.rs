//! The loads beside the victims: programs of the distribution and our own, how each is started, ended and
//! asked for what it did.

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
    /// What its work is counted in; none: it has no throughput.
    pub unit: Option<&'static str>,
    /// What it does.
    pub kind: LoadKind,
    /// Most processes and threads of it, in a cgroup of its own; none: it is in the root cgroup.
    pub most: Option<u32>,
    /// What it needs beside `quell`.
    pub needs: Vec<Program>,
    /// How many files of C are in the folder that it runs in, and a makefile for them.
    pub sources: u32,
}

/// What a load does.
#[derive(Debug, Clone, PartialEq)]
pub enum LoadKind {
    /// Stressors of stress-ng.
    StressNg {
        /// Which.
        stressor: &'static str,
        /// How many.
        workers: u32,
        /// More arguments.
        more: &'static [&'static str],
    },
    /// The real cyclictest: it is a victim, and among the loads because it is a program of others.
    Cyclictest {
        /// Its threads.
        threads: u32,
        /// Its period, in µs.
        period_us: u64,
    },
    /// One of ours.
    Own(OwnLoad),
}

impl LoadSpec {
    /// An own load.
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

    /// So many instances of a stressor, with these arguments.
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

    /// Starts it. `folder` is its own, `place` where it runs, `seed` that of what is random in it. Ours wait for the
    /// window then, others run.
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
        // Programs that say all on stdout say it at once.
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
    /// A program of others, and the folder that it runs in.
    Theirs(Process, PathBuf),
}

// Files in the folder of a program of others: what it says, of errors too, and what cyclictest writes.
const OUT: &str = "out";
const LOG: &str = "log";
const JSON: &str = "result.json";

impl Running {
    /// Waits until it can begin.
    pub(super) fn wait_ready(&self, interrupt: &AtomicBool) -> anyhow::Result<()> {
        let ready = match &self.what {
            What::Ours(part) => part.wait_ready(interrupt),
            What::Theirs(..) => Ok(()),
        };
        ready.with_context(|| self.spec.name.clone())
    }

    /// Tells it the window; who runs already needs none.
    pub(super) fn begin(&mut self, window: Window) -> anyhow::Result<()> {
        let begun = match &mut self.what {
            What::Ours(part) => part.begin(window),
            What::Theirs(..) => Ok(()),
        };
        begun.with_context(|| self.spec.name.clone())
    }

    /// Fails if it has ended already, which it must not before its window has.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let alive = match &self.what {
            What::Ours(part) => part.check(),
            What::Theirs(process, _) => process.check_alive(),
        };
        alive.with_context(|| self.spec.name.clone())
    }

    /// Tells it that the window is over, if it does not know by itself.
    pub(super) fn finish(&self) {
        if let What::Theirs(process, _) = &self.what {
            // Not reaped yet, so the id is still its own.
            let _ = kill(Pid::from_raw(process.pid() as i32), Signal::SIGINT);
        }
    }

    /// Waits for its end, and takes what it says of its work.
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

/// What a program of others says of its work, in the folder that it ran in.
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
