//! Real applications as tenants: from the distribution, started as ordinary children in a folder of
//! their own on a free port of 127.0.0.1. Nothing of the system's configuration is read or changed.
//!
//! Every answer is compared with what it must be. So each application's module knows three things:
//! how to start it, what to store in it, and what a request and its right answer are.

mod memcached;
mod nginx;
mod redis;
mod xz;

use super::Interrupted;
use super::load::{Connect, open, probe};
use super::place::Place;
use super::process::{Nursery, Process};
use anyhow::Context;
use quell_scenario::App;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
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
    /// Where it runs.
    pub place: Place,
    /// Number of CPUs.
    pub cpus: u32,
    /// Ends waiting.
    pub interrupt: &'a AtomicBool,
}

/// A tenant that runs. Dropped in this order: the process ends before what feeds it.
pub struct Started {
    /// Its (first) process.
    pub process: Process,
    /// How to reach it, if it takes requests.
    pub connect: Option<Box<dyn Connect>>,
    /// What it has done, if it does batch work.
    pub work: Option<Box<dyn Work>>,
}

/// Counts batch work.
pub trait Work: Send + Sync {
    /// Work done so far.
    fn done(&self) -> f64;

    /// What is counted.
    fn unit(&self) -> &'static str;
}

/// Starts an application, stores its data and checks that it answers.
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
    /// Starts the tenant's process in its place; what it says goes to the file `log` of the tenant's folder.
    pub fn start(&self, mut command: Command) -> anyhow::Result<Process> {
        self.place.put(&mut command)?;
        self.nursery.start(command, &self.folder.join("log"))
    }

    /// Tries until it succeeds, the process ends, or it takes too long.
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

/// A port nobody listens on at the moment.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(local(0)).context("cannot listen on 127.0.0.1")?;
    Ok(listener.local_addr().context("no local address")?.port())
}

/// Text much like prose to a compressor, the same for the same seed: words of a small vocabulary,
/// frequent ones much more often.
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

/// Whether we are root, whom some servers refuse to run as unless told.
fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
