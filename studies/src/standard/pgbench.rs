//! PostgreSQL and its own benchmark: clients that query a server, each again as soon as it has its answer.
//!
//! The server has a cluster of its own in this process's folder, made for each window, and answers only on a
//! socket there. PostgreSQL refuses to run as root, so it runs as another user then. pgbench writes for each
//! transaction when it ended and how long it took, so exactly the transactions that ended in the window
//! count.

use super::figures::VictimFigures;
use super::own::OwnDone;
use super::program::Program;
use super::victim::{Window, histogram};
use super::{now_ns, wait_answer};
use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use nix::sched::{CloneFlags, unshare};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{User, chown, geteuid};
use quell_bench::workload::{Nursery, Process};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The users that the server may run as where this process is root; the first that exists is taken.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// The owner of the database.
const OWNER: &str = "quell";

/// The prefix of pgbench's files of transactions.
const LOG: &str = "transactions";

/// Makes a cluster in `folder` and fills it, starts its server, calls `ready`, and has `clients` clients read
/// from it until the window is over.
///
/// # Errors
/// Where there is no user to run as, or the cluster, the server, a client or a log of theirs fails.
pub(super) fn run(
    folder: &Path,
    clients: u32,
    ready: impl FnOnce() -> anyhow::Result<Window>,
) -> anyhow::Result<OwnDone> {
    // A server that is killed leaves a piece of System V shared memory behind, which goes with this
    // namespace. Without the permission the memory is the machine's.
    let _ = unshare(CloneFlags::CLONE_NEWIPC);
    let nursery = Nursery::new()?;
    let cluster = Cluster::make(folder, &nursery)?;
    let _server = cluster.serve()?;
    cluster.run(Program::PGBENCH, "--initialize --quiet --scale=1 postgres")?;
    let window = ready()?;
    let left_s = window
        .until_ns
        .saturating_sub(now_ns())
        .div_ceil(1_000_000_000);
    let seconds = left_s.max(1);
    cluster.run(
        Program::PGBENCH,
        &format!(
            "--select-only --no-vacuum --client={clients} --time={seconds} --log --log-prefix={LOG} postgres"
        ),
    )?;
    let mut response = histogram();
    for file in fs::read_dir(&cluster.folder)?.flatten() {
        if file.file_name().to_string_lossy().starts_with(LOG) {
            record(
                &fs::read_to_string(file.path())?,
                window,
                ahead_ns()?,
                &mut response,
            );
        }
    }
    Ok(OwnDone {
        per_s: Some(response.len() as f64 / window.seconds()),
        figures: Some(VictimFigures::of(None, Some(&response))),
    })
}

/// By how many ns CLOCK_REALTIME is ahead of CLOCK_MONOTONIC.
fn ahead_ns() -> anyhow::Result<u64> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_REALTIME)?);
    Ok((now.as_nanos() as u64).saturating_sub(now_ns()))
}

/// Records how long the transactions took that ended in the window, in ns.
fn record(log: &str, window: Window, ahead_ns: u64, response: &mut Histogram<u64>) {
    for line in log.lines() {
        // CLIENT NUMBER TOOK_US SCRIPT ENDED_S ENDED_US, and more columns where pgbench is asked for more. A
        // transaction that failed has a word in place of its time.
        let words = line.split_whitespace().map(|word| word.parse::<u64>().ok());
        if let [_, _, Some(took_us), _, Some(s), Some(us)] = words.take(6).collect::<Vec<_>>()[..] {
            let ended_ns = (s * 1_000_000 + us) * 1000;
            if window.holds(ended_ns.saturating_sub(ahead_ns)) {
                response.saturating_record((took_us * 1000).max(1));
            }
        }
    }
}

/// A cluster of databases.
struct Cluster<'a> {
    nursery: &'a Nursery,
    /// The cluster's folder, which belongs to its user.
    folder: PathBuf,
    /// The user that its programs run as; `None`: this process's user.
    user: Option<User>,
}

impl<'a> Cluster<'a> {
    fn make(folder: &Path, nursery: &'a Nursery) -> anyhow::Result<Cluster<'a>> {
        let user = match geteuid().is_root() {
            true => Some(other_user()?),
            false => None,
        };
        let folder = folder.join("cluster");
        fs::create_dir(&folder)?;
        if let Some(user) = &user {
            chown(&folder, Some(user.uid), Some(user.gid)).context("the cluster's folder")?;
        }
        let cluster = Cluster {
            nursery,
            folder,
            user,
        };
        // Disks tell nothing of a scheduler, so nothing waits for them, neither here nor while the server
        // runs.
        let how = "--pgdata=data --auth=trust --no-sync --encoding=UTF8 --locale=C";
        cluster.run(Program::INITDB, &format!("{how} --username={OWNER}"))?;
        Ok(cluster)
    }

    /// Starts the server, and waits until it takes connections.
    fn serve(&self) -> anyhow::Result<Process> {
        let server = self.start(
            Program::POSTGRES,
            "-D data -k . -c listen_addresses= -c fsync=off",
        )?;
        // The last line of this file says when the server takes connections.
        let pid_file = self.folder.join("data/postmaster.pid");
        wait_answer(
            || fs::read_to_string(&pid_file).is_ok_and(|it| it.trim_end().ends_with("ready")),
            || server.check_alive(),
        )?;
        Ok(server)
    }

    /// Runs a program to its end.
    fn run(&self, program: Program, arguments: &str) -> anyhow::Result<()> {
        let mut process = self.start(program, arguments)?;
        let status = process.child().wait()?;
        let log = fs::read_to_string(self.log(program)).unwrap_or_default();
        let last = log.lines().last().unwrap_or_default();
        ensure!(
            status.success(),
            "{} ended with {status}: {last}",
            program.name
        );
        Ok(())
    }

    fn start(&self, program: Program, arguments: &str) -> anyhow::Result<Process> {
        let mut command = Command::new(program.find()?);
        command.args(arguments.split_whitespace());
        command
            .current_dir(&self.folder)
            .env("PGHOST", self.folder.join("data"))
            .env("PGUSER", OWNER);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if let Some(user) = &self.user {
            // The child keeps none of this process's other groups.
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        self.nursery.start(command, &self.log(program))
    }

    fn log(&self, program: Program) -> PathBuf {
        self.folder.with_file_name(format!("{}.log", program.name))
    }
}

/// The first of [`USERS`].
fn other_user() -> anyhow::Result<User> {
    let mut found = USERS
        .iter()
        .filter_map(|name| User::from_name(name).ok().flatten());
    found.next().with_context(|| {
        format!(
            "PostgreSQL refuses to be root, and there is no user {}",
            USERS.join(" or ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_count_that_ended_in_the_window() {
        let window = Window {
            from_ns: 2_000_000_000,
            until_ns: 3_000_000_000,
        };
        let log = "0 1 250 0 101 999999\n1 1 300 0 102 0\n0 2 500 0 102 999999 0\n\
                   0 3 failed 0 102 5\n1 2 400 0 103 0\n1 3 4";
        let mut response = histogram();
        record(log, window, 100_000_000_000, &mut response);
        assert_eq!(response.len(), 2);
        assert!((299_000..301_000).contains(&response.min()));
        assert!((499_000..502_000).contains(&response.max()));
    }

    #[test]
    fn a_clusters_clients_are_measured_and_nothing_is_left() {
        for program in [Program::INITDB, Program::POSTGRES, Program::PGBENCH] {
            if let Some(reason) = program.missing() {
                quell_testkit::skip!(Apps, "{reason}");
                return;
            }
        }
        let reached = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        let folder = tempfile::Builder::new().permissions(reached).tempdir();
        let folder = folder.unwrap();
        let window = || {
            let (warmup, length) = (Duration::from_millis(200), Duration::from_secs(1));
            Ok(Window::after(warmup, length))
        };
        let done = run(folder.path(), 2, window).unwrap();
        assert!(done.per_s.unwrap() > 20.0, "{done:?}");
        let figures = done.figures.unwrap();
        assert!(
            figures.response_worst_us >= figures.response_mean_us,
            "{done:?}"
        );
        // The server has removed its socket and this file.
        let data = folder.path().join("cluster/data");
        assert!(!data.join("postmaster.pid").exists() && data.is_dir());
    }
}
