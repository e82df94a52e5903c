//! The real agent as a child process: as one side of a comparison, or because the agent itself is measured.

use super::host;
use super::startup_boost::{ease, hurry};
use crate::result::{AgentLog, ChangeCount, ThreadTrack, TrackPoint, WaitCause};
use crate::workload::Interrupted;
use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use quell_agent::client::Client;
use quell_agent::wire::{Decision, Status};
use quell_model::config::{AgentFile, AgentTenant};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long the agent may take to complete its first period (it loads BPF programs).
const READY: Duration = Duration::from_secs(120);

/// How long the agent may take to put all settings back and exit.
const STOP: Duration = Duration::from_secs(15);

/// A running agent with its own socket, journal and configuration in a temporary folder.
pub struct AgentChild {
    child: Child,
    client: Client,
    exe: PathBuf,
    folder: TempDir,
    stopped: bool,
}

impl AgentChild {
    /// Starts an agent for these tenants and waits until it has completed its first period.
    ///
    /// # Errors
    /// [`Interrupted`]; and where the configuration is not valid, or the agent cannot be started, ends by
    /// itself or completes no period within two minutes.
    pub fn start(
        exe: &Path,
        settings: AgentFile,
        tenants: Vec<AgentTenant>,
        interrupt: &AtomicBool,
    ) -> anyhow::Result<AgentChild> {
        let folder = TempDir::with_prefix("quell-bench-")?;
        let config = folder.path().join("quell.toml");
        let file = AgentFile {
            tenants,
            rules: Vec::new(),
            ..settings
        };
        let text = toml::to_string(&file)?;
        AgentFile::parse(&config, &text).context("the agent's generated configuration")?;
        std::fs::write(&config, text).with_context(|| config.display().to_string())?;
        let log = File::create(folder.path().join("agent.log"))?;
        let socket = folder.path().join("agent.sock");
        let mut command = Command::new(exe);
        command
            .arg("run")
            .arg("-c")
            .arg(&config)
            .arg("--socket")
            .arg(&socket)
            .arg("--journal")
            .arg(folder.path().join("journal"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C reaches the terminal's whole process group; the agent must outlive the measurement that
            // it is part of and be stopped in order.
            .process_group(0);
        hurry(&mut command, Signal::SIGTERM);
        let child = command.spawn().with_context(|| exe.display().to_string())?;
        let client = Client::new(socket);
        let exe = exe.to_path_buf();
        let mut agent = AgentChild {
            child,
            client,
            exe,
            folder,
            stopped: false,
        };
        agent.wait_ready(interrupt)?;
        ease(agent.pid());
        Ok(agent)
    }

    /// The id of the agent's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the agent says of itself.
    ///
    /// # Errors
    /// Where the agent does not answer.
    pub fn status(&self) -> anyhow::Result<Status> {
        Ok(self.client.status()?)
    }

    /// Peak resident memory of the agent, in bytes.
    ///
    /// # Errors
    /// As [`host::peak_rss_bytes`].
    pub fn peak_rss_bytes(&self) -> anyhow::Result<u64> {
        host::peak_rss_bytes(self.pid())
    }

    /// What the agent decided and saw since `start_ns` (CLOCK_MONOTONIC), and how many decisions it has
    /// forgotten since.
    ///
    /// # Errors
    /// Where the agent does not answer.
    pub fn log(&self, pair: u32, side: &str, start_ns: u64) -> anyhow::Result<(AgentLog, u64)> {
        let mut decisions = Vec::new();
        let (mut since, mut lost) = (0, 0);
        loop {
            let answer = self.client.decisions(since)?;
            lost += answer.lost;
            if answer.decisions.is_empty() {
                break;
            }
            since = answer.next;
            decisions.extend(answer.decisions);
        }
        let matrix = self.client.matrix(1)?.total;
        let mut waits = Vec::new();
        for row in matrix.rows {
            let Some(breakdown) = row.waits else { continue };
            let mut add = |cause: &str, ns: u64| {
                if ns > 0 {
                    let tenant = row.tenant.to_string();
                    waits.push(WaitCause {
                        tenant,
                        cause: cause.into(),
                        ready_ms: ns as f64 / 1e6,
                    });
                }
            };
            add("own", breakdown.own_ns);
            for (other, ns) in &breakdown.tenants {
                add(other.as_str(), *ns);
            }
            add("host", breakdown.host_ns);
            add("bandwidth", breakdown.bandwidth_ns);
            add("steal", breakdown.steal_ns);
            add("unknown", breakdown.unknown_ns);
            add("others", breakdown.others_ns);
        }
        let status = self.status()?;
        let log = AgentLog {
            pair,
            side: side.to_string(),
            period_ms: status.period_ms as f64,
            effects: status.effects.to_vec(),
            changes: count_changes(&decisions, start_ns),
            threads: thread_tracks(&decisions, start_ns),
            waits,
        };
        Ok((log, lost))
    }

    /// Ends the agent with SIGTERM and waits for it.
    ///
    /// # Errors
    /// Where the agent does not exit with success; the message says whether all settings are back.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.terminate()
    }

    fn wait_ready(&mut self, interrupt: &AtomicBool) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.stopped = true;
                return self.ended(status).context("the agent did not start");
            }
            if interrupt.load(Ordering::Relaxed) {
                bail!(Interrupted);
            }
            let state = match self.client.status() {
                Ok(status) if status.periods > 0 => return Ok(()),
                Ok(_) => "no period is complete".to_string(),
                Err(error) => error.to_string(),
            };
            if began.elapsed() > READY {
                bail!(
                    "the agent is not ready after {READY:?}: {state}\n{}",
                    self.last_words()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends SIGTERM, and SIGKILL where that does not help.
    fn terminate(&mut self) -> anyhow::Result<()> {
        self.stopped = true;
        // The child is not reaped yet, so the id is still its own.
        kill(
            nix::unistd::Pid::from_raw(self.pid() as i32),
            Signal::SIGTERM,
        )?;
        let began = Instant::now();
        while began.elapsed() < STOP {
            if let Some(status) = self.child.try_wait()? {
                return self.ended(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.child.kill()?;
        let status = self.child.wait()?;
        self.ended(status)
            .with_context(|| format!("killed {STOP:?} after SIGTERM"))
    }

    /// Judges the agent's exit. An agent that did not exit in order may have left settings changed: `quell
    /// restore` then puts them back, and where that fails the journal is kept.
    fn ended(&mut self, status: ExitStatus) -> anyhow::Result<()> {
        if status.success() {
            return Ok(());
        }
        let journal = self.folder.path().join("journal");
        let words = self.last_words();
        // The agent ended before it could have changed anything.
        if matches!(journal.try_exists(), Ok(false)) {
            bail!("the agent ended with {status}:\n{words}");
        }
        let restored = Command::new(&self.exe)
            .arg("restore")
            .arg("--journal")
            .arg(&journal)
            .stdin(Stdio::null())
            .output();
        let failure = match restored {
            Ok(output) if output.status.success() => None,
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                Some(format!("{}: {}", output.status, said.trim_end()))
            }
            Err(error) => Some(format!("{}: {error}", self.exe.display())),
        };
        if let Some(failure) = failure {
            self.folder.disable_cleanup(true);
            bail!(
                "the agent ended with {status}, and not all settings could be put back: {failure}\n\
                 try `quell restore --journal {}`\n{words}",
                journal.display()
            );
        }
        bail!("the agent ended with {status}; all settings are back\n{words}")
    }

    /// The last lines of the agent's log.
    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path().join("agent.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for AgentChild {
    fn drop(&mut self) {
        if !self.stopped {
            if let Err(error) = self.terminate() {
                tracing::error!("{error:#}");
            }
        }
    }
}

/// Milliseconds from `start_ns` to a decision; earlier decisions are at 0.
fn at_ms(decision: &Decision, start_ns: u64) -> u64 {
    decision.time_ns.saturating_sub(start_ns) / 1_000_000
}

fn count_changes(decisions: &[Arc<Decision>], start_ns: u64) -> Vec<ChangeCount> {
    let mut counts: BTreeMap<(u64, &str, &str), u64> = BTreeMap::new();
    for decision in decisions {
        let at = at_ms(decision, start_ns);
        *counts
            .entry((at, decision.tenant.as_str(), decision.rule.as_str()))
            .or_default() += 1;
    }
    counts
        .into_iter()
        .map(|((at_ms, tenant, rule), count)| ChangeCount {
            at_ms,
            tenant: tenant.to_string(),
            rule: rule.to_string(),
            count,
        })
        .collect()
}

fn thread_tracks(decisions: &[Arc<Decision>], start_ns: u64) -> Vec<ThreadTrack> {
    let mut tracks: BTreeMap<_, ThreadTrack> = BTreeMap::new();
    for decision in decisions {
        let key = (decision.tenant.clone(), decision.thread);
        let track = tracks.entry(key).or_insert_with(|| ThreadTrack {
            tenant: decision.tenant.to_string(),
            tid: decision.thread.tid.0,
            name: decision.name.to_string(),
            points: Vec::new(),
        });
        let point = TrackPoint {
            at_ms: at_ms(decision, start_ns),
            latency_us: decision.latency_ns.map(|ns| ns as f64 / 1e3),
            weight: decision.weight.map(|weight| weight.as_load()),
        };
        // Several decisions of one period end in equal settings: one point.
        match track.points.last_mut() {
            Some(last) if last.at_ms == point.at_ms => *last = point,
            _ => track.points.push(point),
        }
    }
    tracks.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_model::{Rule, ThreadId, Tid};

    fn decision(at_ms: u64, tid: u32, rule: Rule, latency_us: u64) -> Arc<Decision> {
        Arc::new(Decision {
            number: 0,
            seq: 0,
            time_ns: 1_000_000_000 + at_ms * 1_000_000,
            tenant: "web".into(),
            thread: ThreadId {
                tid: Tid(tid),
                start_ticks: 1,
            },
            name: "worker".into(),
            rule,
            text: String::new(),
            weight: None,
            latency_ns: Some(latency_us * 1_000),
            cpus: None,
        })
    }

    /// A shell command `run` stands for the agent, as the real one ends in order; for `quell restore` stands
    /// a program of which only the exit code counts.
    fn child(folder: TempDir, run: &str, restore: &str) -> AgentChild {
        AgentChild {
            child: Command::new("sh").args(["-c", run]).spawn().unwrap(),
            client: Client::new(folder.path().join("agent.sock")),
            exe: restore.into(),
            folder,
            stopped: false,
        }
    }

    #[test]
    fn after_an_end_that_was_not_in_order_settings_are_restored_or_the_journal_is_kept() {
        for (run, restore, journaled, kept) in [
            ("exec sleep 1000", "true", true, false),
            ("kill -9 $$", "true", true, false),
            ("kill -9 $$", "false", true, true),
            ("exit 1", "/no/such/quell", true, true),
            ("exit 1", "false", false, false),
        ] {
            let folder = TempDir::with_prefix("quell-bench-test-").unwrap();
            let path = folder.path().to_path_buf();
            if journaled {
                std::fs::write(path.join("journal"), "").unwrap();
            }
            let error = child(folder, run, restore).stop().unwrap_err();
            let error = format!("{error:#}");
            let journal = path.join("journal").display().to_string();
            assert_eq!(path.exists(), kept, "{error}");
            assert_eq!(error.contains(&journal), kept, "{error}");
            if kept {
                std::fs::remove_dir_all(&path).unwrap();
            }
        }
    }

    #[test]
    fn an_interrupt_ends_the_wait_for_an_agent_that_is_not_ready() {
        let folder = TempDir::new().unwrap();
        let mut agent = child(
            folder,
            "trap 'exit 0' TERM; while :; do sleep 0.1; done",
            "true",
        );
        let error = agent.wait_ready(&AtomicBool::new(true)).unwrap_err();
        assert!(error.is::<Interrupted>(), "{error:#}");
    }

    #[test]
    fn decisions_become_counts_and_tracks() {
        let decisions = [
            decision(80, 7, Rule::LatencyLowered, 2_700),
            decision(80, 8, Rule::LatencyLowered, 2_700),
            decision(160, 7, Rule::LatencyLowered, 2_430),
            decision(160, 7, Rule::WakerChased, 2_400),
        ];
        let counts = count_changes(&decisions, 1_000_000_000);
        let seen: Vec<_> = counts
            .iter()
            .map(|c| (c.at_ms, c.rule.as_str(), c.count))
            .collect();
        assert_eq!(
            seen,
            [
                (80, "latency_lowered", 2),
                (160, "latency_lowered", 1),
                (160, "waker_chased", 1)
            ]
        );
        let tracks = thread_tracks(&decisions, 1_000_000_000);
        let points: Vec<_> = tracks[0]
            .points
            .iter()
            .map(|p| (p.at_ms, p.latency_us))
            .collect();
        assert_eq!(points, [(80, Some(2_700.0)), (160, Some(2_400.0))]);
        assert_eq!(tracks.len(), 2);
    }
}
