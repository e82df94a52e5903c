//! What waking and switching cost, under the kernel's own scheduler and under Quell's.
//!
//! Threads that do nothing else wake each other through pipes, or yield to each other. On the lab's
//! virtual clock a nanosecond is an instruction, so that these are exact; elsewhere they are times.

use anyhow::Context;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, pipe, read, write};
use quell_model::CpuId;
use quell_sched::{Options, Scheduler};
use serde::Serialize;
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

/// Rounds that are measured, and before that as many again for warming up.
const ROUNDS: u32 = 2000;

/// Nanoseconds of each case.
#[derive(Debug, Serialize)]
pub struct Costs {
    /// A thread wakes another on its own CPU and sleeps: a write, a wakeup, a switch, a read.
    wake_here: u64,
    /// The same, the other on another CPU, which idles meanwhile.
    wake_there: Option<u64>,
    /// The same, both on any CPU.
    wake_anywhere: u64,
    /// The write and the read alone.
    no_wake: u64,
    /// A switch between two threads that stay ready.
    switch: u64,
}

/// Measures under the kernel's own scheduler, then under Quell's.
pub fn compare(options: &Options) -> anyhow::Result<(Costs, Costs)> {
    let topology = quell_linux::observe::topology::read()?;
    let cpus: Vec<CpuId> = topology.cpus.iter().map(|cpu| cpu.id).collect();
    let kernel = measure(&cpus)?;
    let scheduler = Scheduler::load(&topology, options)?;
    let quell = measure(&cpus)?;
    drop(scheduler);
    Ok((kernel, quell))
}

fn measure(cpus: &[CpuId]) -> anyhow::Result<Costs> {
    let first = *cpus.first().context("no CPU is online")?;
    let there = cpus
        .get(1)
        .map(|second| ping_pong(Some(first), Some(*second)));
    Ok(Costs {
        wake_here: ping_pong(Some(first), Some(first))?,
        wake_there: there.transpose()?,
        wake_anywhere: ping_pong(None, None)?,
        no_wake: alone()?,
        switch: yields(first)?,
    })
}

/// Half a round trip between two threads.
fn ping_pong(a: Option<CpuId>, b: Option<CpuId>) -> anyhow::Result<u64> {
    let (ping, pong) = (pipe()?, pipe()?);
    thread::scope(|scope| {
        let echo = scope.spawn(|| -> anyhow::Result<()> {
            pin(b)?;
            for _ in 0..2 * ROUNDS {
                receive(&ping.0)?;
                send(&pong.1)?;
            }
            Ok(())
        });
        let caller = scope.spawn(|| -> anyhow::Result<u64> {
            pin(a)?;
            let mut began = Instant::now();
            for round in 0..2 * ROUNDS {
                if round == ROUNDS {
                    began = Instant::now();
                }
                send(&ping.1)?;
                receive(&pong.0)?;
            }
            Ok(each(began, 2 * ROUNDS))
        });
        let took = joined(caller.join())?;
        joined(echo.join())?;
        Ok(took)
    })
}

/// A pipe's write and read by one thread, which never sleeps.
fn alone() -> anyhow::Result<u64> {
    let ends = pipe()?;
    let began = Instant::now();
    for _ in 0..ROUNDS {
        send(&ends.1)?;
        receive(&ends.0)?;
    }
    Ok(each(began, ROUNDS))
}

/// A turn of two threads that yield to each other on one CPU.
fn yields(cpu: CpuId) -> anyhow::Result<u64> {
    let together = Barrier::new(2);
    thread::scope(|scope| {
        let turns: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| -> anyhow::Result<u64> {
                    pin(Some(cpu))?;
                    together.wait();
                    let began = Instant::now();
                    for _ in 0..ROUNDS {
                        thread::yield_now();
                    }
                    Ok(each(began, 2 * ROUNDS))
                })
            })
            .collect();
        let mut longest = 0;
        for turn in turns {
            longest = longest.max(joined(turn.join())?);
        }
        Ok(longest)
    })
}

fn each(began: Instant, turns: u32) -> u64 {
    // Fits: these are milliseconds.
    (began.elapsed() / turns).as_nanos() as u64
}

fn joined<T>(result: thread::Result<anyhow::Result<T>>) -> anyhow::Result<T> {
    result.map_err(|_| anyhow::anyhow!("a measuring thread panicked"))?
}

fn pin(cpu: Option<CpuId>) -> anyhow::Result<()> {
    if let Some(cpu) = cpu {
        let mut set = CpuSet::new();
        set.set(cpu.0 as usize)?;
        sched_setaffinity(Pid::from_raw(0), &set)?;
    }
    Ok(())
}

fn send(end: &OwnedFd) -> anyhow::Result<()> {
    write(end, &[1])?;
    Ok(())
}

fn receive(end: &OwnedFd) -> anyhow::Result<()> {
    read(end, &mut [0])?;
    Ok(())
}

impl Costs {
    /// Name and value of each case that could be measured.
    pub fn cases(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("wake and sleep, one CPU", Some(self.wake_here)),
            ("wake and sleep, two CPUs", self.wake_there),
            ("wake and sleep, any CPU", Some(self.wake_anywhere)),
            ("of that, the pipe", Some(self.no_wake)),
            ("switch by yielding", Some(self.switch)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
}
