//! A tenant of thread programs: the player process, and the connection to it.

use super::apps::{Launch, Started, Work};
use super::load::{Connect, SeqpacketTarget, Target};
use super::player::{Counts, PlayerSpec, READY, Ticket};
use anyhow::{Context, ensure};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, recv, setsockopt, socketpair, sockopt,
};
use quell_scenario::ThreadProgram;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Bytes of requests the socket holds, where permitted: a message takes about 1 KiB of it, and requests that
/// do not fit wait in the load generator.
const SOCKET_BYTES: usize = 4 << 20;

/// How long a player may take to answer requests that an earlier window left with it.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a player for these programs.
///
/// # Errors
/// Where the player's files or socket pair cannot be made, or the player does not start in time; and
/// [`Interrupted`](super::Interrupted).
pub fn start(
    threads: &[ThreadProgram],
    takes_requests: bool,
    quell_exe: &Path,
    launch: &Launch<'_>,
) -> anyhow::Result<Started> {
    let counts_file = launch.folder.join("counts");
    let file = File::create(&counts_file).context("cannot make the player's counts")?;
    file.set_len(Counts::SIZE)
        .context("cannot make the player's counts")?;
    let counts = Arc::new(Counts::open(&counts_file)?);
    let spec = PlayerSpec {
        threads: threads.to_vec(),
        cpus: launch.cpus,
        counts: counts_file,
    };
    let spec_file = launch.folder.join("player.json");
    std::fs::write(&spec_file, serde_json::to_vec(&spec)?)
        .context("cannot write the player's spec")?;

    let (ours, theirs) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .context("cannot make a socket pair")?;
    // Not every user may set this; the default size then does.
    let _ = setsockopt(&ours, sockopt::SndBufForce, &SOCKET_BYTES);
    let mut command = Command::new(quell_exe);
    command
        .arg("player")
        .arg(&spec_file)
        .current_dir(&launch.folder);
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
    let process = launch.start(command)?;
    launch.until(&process, || {
        let mut bytes = [0; Ticket::SIZE];
        match recv(ours.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Ok(Ticket::SIZE) => {
                ensure!(
                    Ticket::from_bytes(bytes).id == READY,
                    "the player's first word is wrong"
                );
                Ok(())
            }
            Ok(_) => anyhow::bail!("the player has closed its socket"),
            Err(Errno::EAGAIN) => anyhow::bail!("the player does not start"),
            Err(errno) => Err(errno).context("cannot reach the player"),
        }
    })?;
    let connect = takes_requests.then(|| {
        Box::new(Link {
            socket: ours,
            inside: Arc::default(),
        }) as Box<dyn Connect>
    });
    let work = (!takes_requests).then(|| Box::new(Arc::clone(&counts)) as Box<dyn Work>);
    let spawns = threads.iter().any(ThreadProgram::spawns);
    Ok(Started {
        process,
        connect,
        work,
        counts: spawns.then_some(counts),
    })
}

/// Our end of the socket pair.
struct Link {
    socket: OwnedFd,
    /// Requests that the player has and has not answered.
    inside: Arc<AtomicU64>,
}

impl Connect for Link {
    fn connect(&self, _connections: u32) -> anyhow::Result<Box<dyn Target>> {
        let socket = self
            .socket
            .try_clone()
            .context("cannot duplicate the player's socket")?;
        let mut target = SeqpacketTarget::new(socket, Arc::clone(&self.inside));
        target.settle(SETTLE_TIMEOUT)?;
        Ok(Box::new(target))
    }
}

impl Work for Arc<Counts> {
    fn done(&self) -> f64 {
        self.rounds() as f64
    }

    fn unit(&self) -> &'static str {
        "rounds"
    }
}
