//! Loads of our own: processes that are started one after another, a fork bomb, and the loads of asked.rs,
//! messages.rs, pgbench.rs, repeat.rs and served.rs.
//!
//! Each load is a process of this program ([`part`]); it ends by itself when the window is over.

use super::figures::VictimFigures;
use super::victim::Window;
use super::{asked, messages, now_ns, part, pgbench, repeat, served};
use anyhow::Context;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};
use quell_bench::workload::player::Burner;
use quell_scenario::App;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

/// What a load of our own does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnLoad {
    /// Loops that each start a process, wait for its end, and start the next, as `make -j` does.
    Starts {
        /// The number of loops.
        loops: u32,
        /// CPU time of each process, in µs.
        run_us: u64,
    },
    /// A process that forks as often as it can, as all its children do.
    Bomb,
    /// A thread that wakes workers, each again as soon as it has done its part.
    Messages {
        /// The number of workers.
        workers: u32,
        /// CPU time of each part, in µs.
        run_us: u64,
    },
    /// A program that is run again and again by several loops; programs that run at the end are killed.
    Repeat {
        /// The program and its arguments.
        command: Vec<String>,
        /// The number of loops.
        loops: u32,
        /// Units of work in each round.
        per_round: f64,
    },
    /// A server, and a client of it that is run again and again; `PORT` in their arguments stands for a free
    /// port.
    Served {
        /// The server and its arguments.
        server: Vec<String>,
        /// The client, which reports as redis-benchmark does with `--csv`.
        client: Vec<String>,
        /// Requests in each round.
        per_round: f64,
    },
    /// An application that gets requests whether it has answered earlier ones or not: a victim, without work
    /// of its own.
    Asked {
        /// The application.
        app: App,
        /// Requests per second, in the mean.
        rate: f64,
    },
    /// PostgreSQL with its own benchmark.
    Pgbench {
        /// The number of clients that read from it.
        clients: u32,
    },
    /// Copies of a program that reads text for ever; their work is the bytes that they read.
    Feed {
        /// The program and its arguments.
        command: Vec<String>,
        /// The number of copies.
        copies: u32,
    },
}

/// The order for a process that is a load of our own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnOrder {
    /// What it does.
    pub load: OwnLoad,
    /// The seed of what is random in the load.
    pub seed: u64,
}

/// What a load of our own reports at its end.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct OwnDone {
    /// Work per second, where the load has any.
    pub per_s: Option<f64>,
    /// What its threads saw, where they report it.
    pub figures: Option<VictimFigures>,
}

/// The process of a load of our own.
///
/// # Errors
/// Where the order cannot be read, the load fails, or its report cannot be written.
pub(super) fn main(order: &str) -> anyhow::Result<()> {
    let OwnOrder { load, seed } = serde_json::from_str(order).context("the load's order")?;
    let folder = std::env::current_dir()?;
    let done = match load {
        OwnLoad::Starts { loops, run_us } => OwnDone {
            per_s: Some(starts(loops, run_us, part::ready()?)?),
            figures: None,
        },
        OwnLoad::Bomb => {
            bomb(part::ready()?.until_ns);
            OwnDone::default()
        }
        OwnLoad::Messages { workers, run_us } => messages::run(workers, run_us, part::ready()?)?,
        OwnLoad::Repeat {
            command,
            loops,
            per_round,
        } => OwnDone {
            per_s: repeat::repeat(&command, loops, part::ready()?)?.map(|it| it * per_round),
            figures: None,
        },
        OwnLoad::Served {
            server,
            client,
            per_round,
        } => served::run(&server, &client, per_round, part::ready)?,
        OwnLoad::Asked { app, rate } => asked::run(folder, &app, (rate, seed), part::ready)?,
        OwnLoad::Pgbench { clients } => pgbench::run(&folder, clients, part::ready)?,
        OwnLoad::Feed { command, copies } => OwnDone {
            per_s: Some(repeat::feed_all(&command, copies, part::ready()?)?),
            figures: None,
        },
    };
    part::tell(&done)
}

/// Loops that start processes; how many of these processes ended in the window, per second.
fn starts(loops: u32, run_us: u64, window: Window) -> anyhow::Result<f64> {
    let mut burner = Burner::calibrate();
    let mut counts: Vec<File> = Vec::new();
    for _ in 0..loops {
        let (read, write): (OwnedFd, OwnedFd) = nix::unistd::pipe()?;
        // SAFETY: this process has one thread, so its child may call anything; the child ends without
        // returning.
        match unsafe { fork() }? {
            ForkResult::Parent { .. } => counts.push(File::from(read)),
            ForkResult::Child => {
                drop(read);
                let count = start_loop(&mut burner, run_us, window);
                let told = File::from(write).write_all(&count.to_le_bytes());
                exit_now(i32::from(told.is_err()));
            }
        }
    }
    let mut sum = 0;
    for mut pipe in counts {
        let mut count = [0; 8];
        pipe.read_exact(&mut count)
            .context("a loop that starts processes has ended")?;
        sum += u64::from_le_bytes(count);
    }
    Ok(sum as f64 / window.seconds())
}

/// One loop: how many of its processes ended in the window.
fn start_loop(burner: &mut Burner, run_us: u64, window: Window) -> u64 {
    let mut count = 0;
    while now_ns() < window.until_ns {
        // SAFETY: this process has one thread, so its child may call anything; the child ends without
        // returning.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                burner.burn(run_us * 1000);
                exit_now(0);
            }
            Ok(ForkResult::Parent { child }) => {
                if waitpid(child, None).is_ok() && window.holds(now_ns()) {
                    count += 1;
                }
            }
            // The machine's limit of processes is reached: the loop tries again.
            Err(_) => std::thread::yield_now(),
        }
    }
    count
}

/// Forks, as every child does, until `until_ns`. Only the first process returns.
fn bomb(until_ns: u64) {
    let mut first = true;
    while now_ns() < until_ns {
        // SAFETY: this process has one thread, so its child may call anything; the child ends without
        // returning.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => first = false,
            Ok(ForkResult::Parent { .. }) => {}
            Err(_) => std::thread::yield_now(),
        }
    }
    if !first {
        exit_now(0);
    }
}

/// Ends this process, which is a fork of another, without what the other process does at its end.
fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes any code and does not return.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_scenario::Nginx;

    #[test]
    fn orders_are_read_as_they_were_written() {
        let loads = [
            OwnLoad::Bomb,
            OwnLoad::Starts {
                loops: 8,
                run_us: 15_000,
            },
            OwnLoad::Repeat {
                command: vec!["true".into()],
                loops: 1,
                per_round: 1.0,
            },
            OwnLoad::Asked {
                app: App::Nginx(Nginx::default()),
                rate: 100.0,
            },
        ];
        for load in loads {
            let order = OwnOrder {
                load,
                seed: u64::MAX,
            };
            let text = serde_json::to_string(&order).unwrap();
            assert_eq!(serde_json::from_str::<OwnOrder>(&text).unwrap(), order);
        }
    }
}
