//! What observing costs: CPU time per period with idle threads, for each source.
//!
//!     cargo run --release -p quell-linux --example observe_cost -- [THREADS [TENANTS]]
//!
//! Starts TENANTS processes (50) with THREADS sleeping threads between them (1000), observes 250
//! periods of 80 ms and prints the CPU time of the observing thread per period.

#![allow(clippy::unwrap_used)]

use nix::time::{ClockId, clock_gettime};
use quell_linux::observe::{Observer, Preference};
use quell_model::config::TenantSpec;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PERIODS: usize = 250;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some("idle") = arguments.first().map(String::as_str) {
        return idle(arguments[1].parse().unwrap());
    }
    let argument = |n: usize, default| arguments.get(n).map_or(default, |a| a.parse().unwrap());
    let (threads, tenants): (usize, usize) = (argument(0, 1000), argument(1, 50));
    let fleet: Vec<Child> = (0..tenants)
        .map(|_| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["idle", &(threads / tenants).to_string()]);
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let fleet: Vec<Child> = fleet
        .into_iter()
        .map(|mut child| {
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap(); // all its threads run
            child
        })
        .collect();
    let specs: Vec<TenantSpec> = fleet
        .iter()
        .enumerate()
        .map(|(n, child)| TenantSpec {
            pid: vec![child.id()],
            ..TenantSpec::named(&format!("t{n}"))
        })
        .collect();
    for preference in [Preference::Bpf, Preference::Procfs] {
        match Observer::new(&specs, preference) {
            Ok(observer) => measure(observer),
            Err(error) => println!("{preference:?}: {error}"),
        }
    }
    for mut child in fleet {
        drop(child.stdin.take()); // its signal to end
        child.wait().unwrap();
    }
}

fn measure(mut observer: Observer) {
    let mut costs: Vec<u64> = Vec::with_capacity(PERIODS);
    let mut seen = 0;
    for _ in 0..PERIODS {
        std::thread::sleep(Duration::from_millis(80));
        let before = cpu_ns();
        let snapshot = observer.sample().unwrap();
        seen = snapshot.tenants.iter().map(|t| t.threads.len()).sum();
        drop(snapshot);
        costs.push(cpu_ns() - before);
    }
    let total: u64 = costs.iter().sum();
    costs.sort_unstable();
    let us = |ns: u64| ns / 1000;
    println!(
        "{:?}: {seen} threads; per period: mean {} us, median {} us, 99 % {} us",
        observer.source(),
        us(total / PERIODS as u64),
        us(costs[PERIODS / 2]),
        us(costs[PERIODS * 99 / 100])
    );
}

/// CPU time of this thread.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// Sleeps in so many threads until standard input ends.
fn idle(threads: usize) {
    for _ in 1..threads {
        let builder = std::thread::Builder::new().stack_size(64 * 1024);
        builder.spawn(std::thread::park).unwrap();
    }
    print!(".");
    std::io::Write::flush(&mut std::io::stdout()).unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}
