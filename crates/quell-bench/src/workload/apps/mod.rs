//! Real applications as tenants: the distribution's own, started as ordinary children in a folder of their
//! own on a free port of 127.0.0.1. Nothing of the system's configuration is read or changed.
//!
//! Every answer is compared with the right one. So each application's module knows three things: how to start
//! it, what to store in it, and what a request and its right answer are.

mod memcached;
mod nginx;
mod redis;
mod xz;

use super::Interrupted;
use super::load::{Connect, open, probe};
use super::place::Place;
use super::player::Counts;
use super::process::{Nursery, Process};
use anyhow::Context;
use quell_scenario::App;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long an application may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a start is tried again when another process took the free port meanwhile.
const START_TRIES: u32 = 3;

/// What starting a tenant needs.
pub struct Launch<'a> {
    /// Starts children.
    pub nursery: &'a Nursery,
    /// The tenant's own folder.
    pub folder: PathBuf,
    /// The cgroup and CPUs it runs on.
    pub place: Place,
    /// Number of CPUs.
    pub cpus: u32,
    /// Ends waiting when it is set.
    pub interrupt: &'a AtomicBool,
}

/// A tenant that runs. Fields are dropped in this order: the process ends before the thread that feeds it.
pub struct Started {
    /// The tenant's first process.
    pub process: Process,
    /// How to connect to it, if it takes requests.
    pub connect: Option<Box<dyn Connect>>,
    /// The counter of its work, if it does batch work.
    pub work: Option<Box<dyn Work>>,
    /// What its processes used that have ended, where its threads start processes.
    pub counts: Option<Arc<Counts>>,
}

/// Counts batch work.
pub trait Work: Send + Sync {
    /// Work done so far.
    fn done(&self) -> f64;

    /// The unit of the work.
    fn unit(&self) -> &'static str;
}

/// Starts an application, stores its data and checks that it answers.
///
/// # Errors
/// Where it is not installed, does not start or answer in time, or answers wrongly; and [`Interrupted`].
pub fn start(app: &App, launch: &Launch<'_>) -> anyhow::Result<Started> {
    let mut tries = 1;
    let started = loop {
        let port = free_port()?;
        let started = match app {
            App::Memcached(app) => memcached::start(app, launch, port),
            App::Nginx(app) => nginx::start(app, launch, port),
            App::Redis(app) => redis::start(app, launch, port),
            App::Xz(app) => xz::start(app, launch),
        };
        match started {
            Err(e) if tries < START_TRIES && format!("{e:#}").contains("in use") => tries += 1,
            started => break started?,
        }
    };
    if let Some(connect) = &started.connect {
        probe(&**connect, launch.interrupt)
            .with_context(|| format!("{} does not answer as it must", app.name()))?;
    }
    Ok(started)
}

impl Launch<'_> {
    /// Starts the tenant's process in its place; its stderr goes to the file `log` of the tenant's folder.
    ///
    /// # Errors
    /// Where the process cannot be started or put into its cgroup.
    pub fn start(&self, mut command: Command) -> anyhow::Result<Process> {
        self.place.put(&mut command)?;
        self.nursery.start(command, &self.folder.join("log"))
    }

    /// Repeats `attempt` until it succeeds.
    ///
    /// # Errors
    /// The last error of `attempt` after 20 s, [`Interrupted`], or that the process has ended.
    pub fn until<T>(
        &self,
        process: &Process,
        mut attempt: impl FnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let give_up = Instant::now() + START_TIMEOUT;
        loop {
            let error = match attempt() {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            process.check_alive()?;
            if self.interrupt.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
            if Instant::now() > give_up {
                return Err(error.context(format!("not ready after {START_TIMEOUT:?}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A connection in blocking mode, as soon as the process takes one.
    ///
    /// # Errors
    /// As [`Launch::until`]; or where the connection's timeouts cannot be set.
    pub fn connection(&self, process: &Process, port: u16) -> anyhow::Result<TcpStream> {
        let stream = self.until(process, || open(local(port)))?;
        stream
            .set_read_timeout(Some(START_TIMEOUT))
            .context("cannot set a timeout")?;
        stream
            .set_write_timeout(Some(START_TIMEOUT))
            .context("cannot set a timeout")?;
        Ok(stream)
    }
}

/// The loopback address with this port.
fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A port on which no process listens at the moment.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(local(0)).context("cannot listen on 127.0.0.1")?;
    Ok(listener.local_addr().context("no local address")?.port())
}

/// Text much like prose to a compressor: words of a small vocabulary, a few of them much more often than
/// others. Equal seeds give equal texts.
pub fn text(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let words: Vec<Vec<u8>> = (0..2048)
        .map(|_| {
            (0..rng.random_range(2..11))
                .map(|_| rng.random_range(b'a'..=b'z'))
                .collect()
        })
        .collect();
    let mut text = Vec::with_capacity(length + 16);
    while text.len() < length {
        // The logarithm of the rank is uniform: Zipf's law, nearly.
        let rank = (words.len() as f64).powf(rng.random::<f64>()) as usize - 1;
        text.extend_from_slice(&words[rank]);
        text.push(if rng.random_ratio(1, 12) { b'\n' } else { b' ' });
    }
    text.truncate(length);
    text
}

/// Whether we are root; some servers run as root only if told to.
fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
