//! What a scenario's tenants do: thread programs and the load they get.
//!
//! Each of a tenant's threads repeats a small program, most for ever. A program is a list of steps;
//! the few kinds of steps compose into the patterns of the papers:
//!
//! ```toml
//! [[tenant.thread]]                       # fork-join: half the serial part, the parallel parts
//! name = "main"                           # (one its own), the other half
//! program = ["request", { run_us = 200 },
//!            { fork_join = { pool = "p", parts = 4, program = [{ run_us = 400 }] } },
//!            { run_us = 200 }, "respond"]
//! [[tenant.thread]]
//! name = "helper"
//! count = 3
//! program = [{ help = "p" }]
//! ```
//!
//! A request is held by one thread at a time: `request` takes the tenant's next one, `send` passes
//! it on with the message, `receive` gets it, `respond` answers it. Drawn times depend on the
//! request's own seed, so a request is the same amount of work on every side of a comparison.
//!
//! Times are microseconds (`_us`), fixed or drawn from a distribution ([`TimeUs`]).

use quell_model::{CpuSet, Nice, Weight};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::path::PathBuf;

/// The longest time of a step, in µs, fixed or as a distribution's parameter: a minute.
pub(crate) const MAX_TIME_US: f64 = 60e6;

/// The longest time that [`TimeUs::Pareto`] draws, in multiples of its mean. Without a bound, the
/// mean of the draws of one run says little about the mean of the distribution.
pub const PARETO_BOUND: f64 = 1000.0;

/// One `[[tenant.thread]]` table: threads that run the same program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadProgram {
    /// The threads' name as the kernel shows it; `helper` becomes `helper-0`, `helper-1`, ... when
    /// there are several. At most 15 characters with its number.
    pub name: String,
    /// The number of such threads.
    #[serde(default)]
    pub count: Count,
    /// How long a thread spins before it blocks, wherever it waits for another thread or for a
    /// request, in µs (spin-then-block). 0: the thread blocks at once.
    #[serde(default)]
    pub spin_us: f64,
    /// The CPUs that the threads may run on; not given: the tenant's.
    #[serde(default, deserialize_with = "crate::cpus::deserialize")]
    pub cpus: Option<CpuSet>,
    /// The scheduling policy of the threads.
    #[serde(default)]
    pub policy: ThreadPolicy,
    /// The threads' nice value, -20 to 19 (policies `other` and `batch`); not given: that of the
    /// tenant's process, 0.
    pub nice: Option<i32>,
    /// The threads' real-time priority, 1 to 99 (policies `fifo` and `rr`, which need it).
    pub priority: Option<u32>,
    /// The slice that the threads request from EEVDF, in µs, 100 to 100 000 (policies `other` and
    /// `batch`; Linux 6.12 and newer); not given: the kernel's own.
    pub slice_us: Option<f64>,
    /// The time from the tenant's start to the threads' start, in µs.
    #[serde(default)]
    pub delay_us: f64,
    /// How often the threads run the program before they end, 1 to 1 000 000 000; not given: for ever.
    pub rounds: Option<u32>,
    /// The steps of the program, which is repeated.
    pub program: Vec<Step>,
}

/// A thread's scheduling policy (sched(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadPolicy {
    /// SCHED_OTHER: by weight, which follows from the nice value.
    #[default]
    Other,
    /// SCHED_BATCH: like `Other`, without wakeup preemption by the thread.
    Batch,
    /// SCHED_IDLE: by the lowest weight, for threads that should wait for all others.
    Idle,
    /// SCHED_FIFO: before all policies above, by priority, until the thread waits.
    Fifo,
    /// SCHED_RR: like `Fifo`, in turns with other threads of the same priority.
    Rr,
}

impl ThreadPolicy {
    /// The policy's name in files.
    pub fn name(self) -> &'static str {
        match self {
            ThreadPolicy::Other => "other",
            ThreadPolicy::Batch => "batch",
            ThreadPolicy::Idle => "idle",
            ThreadPolicy::Fifo => "fifo",
            ThreadPolicy::Rr => "rr",
        }
    }

    /// Whether threads of the policy run before all threads that are scheduled by weight.
    pub fn is_realtime(self) -> bool {
        matches!(self, ThreadPolicy::Fifo | ThreadPolicy::Rr)
    }

    /// The weight of a thread of this policy and nice value.
    pub fn weight(self, nice: Nice) -> Weight {
        match self {
            // WEIGHT_IDLEPRIO (kernel/sched/sched.h); nice values do not matter.
            ThreadPolicy::Idle => Weight::from_load(3),
            _ => nice.weight(),
        }
    }
}

impl ThreadProgram {
    /// Threads that repeat a program for ever, with the default of every other key.
    pub fn new(name: &str, count: Count, program: Vec<Step>) -> ThreadProgram {
        ThreadProgram {
            name: name.to_string(),
            count,
            spin_us: 0.0,
            cpus: None,
            policy: ThreadPolicy::Other,
            nice: None,
            priority: None,
            slice_us: None,
            delay_us: 0.0,
            rounds: None,
            program,
        }
    }

    /// The slice that the threads request, in ns.
    pub fn slice_ns(&self) -> Option<u64> {
        self.slice_us.map(|us| (us * 1e3) as u64)
    }

    /// The time from the tenant's start to the threads' start, in ns.
    pub fn delay_ns(&self) -> u64 {
        (self.delay_us * 1e3) as u64
    }

    /// Whether the threads start processes ([`Step::Spawn`]).
    pub fn spawns(&self) -> bool {
        fn spawns(step: &Step) -> bool {
            match step {
                Step::Spawn(_) => true,
                Step::Repeat(repeat) => repeat.program.iter().any(spawns),
                _ => false,
            }
        }
        self.program.iter().any(spawns)
    }
}

/// One step of a thread's program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Uses this much CPU time, in µs. Preemption makes the step take longer, never do less.
    RunUs(TimeUs),
    /// Sleeps, in µs.
    SleepUs(TimeUs),
    /// Sends the client a question and sleeps until the reply, which takes the client and the network
    /// that long, in µs. In a simulated VM question and reply pass its emulator threads, as requests
    /// and answers do; elsewhere the step is a sleep.
    ExchangeUs(TimeUs),
    /// Sleeps until the next multiple of this period since the thread's start, in µs: the work since the
    /// last one and the sleep are one period together, and never drift. Periods that went by meanwhile
    /// are skipped.
    TimerUs(f64),
    /// Sleeps until one period after the timer's last end, at first after the thread's start.
    Timer(Timer),
    /// Waits for the tenant's next request.
    Request,
    /// Answers the request that the thread holds.
    Respond,
    /// Runs a program (`run_us`, `sleep_us`, `lock`, `repeat`) with a lock of the tenant held.
    Lock(Critical),
    /// Runs a program with a reader-writer lock held for reading. A waiting writer keeps new readers out.
    Read(Critical),
    /// Runs a program with a reader-writer lock held for writing.
    Write(Critical),
    /// Decrements a counting semaphore, and waits while it is zero.
    Acquire(Acquire),
    /// Increments a counting semaphore.
    Release(String),
    /// Waits for an event: a `signal` of another thread that no thread has taken, or a `broadcast` since
    /// this thread last waited. No earlier one is lost.
    Wait(String),
    /// Waits for the next `signal` or `broadcast` of an event; earlier ones do not count (a POSIX
    /// condition). With a lock held, the thread gives the lock back while it waits, and takes it again.
    WaitNext(String),
    /// Lets one thread past its wait: the one that has waited longest, or, if no thread waits, the next
    /// other thread that comes to a `wait`.
    Signal(String),
    /// Lets every thread past its wait: those that wait now, and each other thread once, when it next
    /// comes to a `wait`.
    Broadcast(String),
    /// Waits until every thread whose program names this barrier has come to it.
    Barrier(String),
    /// Gives all parts but one to the threads that help this pool, does one part itself, and waits for
    /// all parts.
    ForkJoin(ForkJoin),
    /// Does one part of a `fork_join` of this pool, and waits for a part if there is none.
    Help(String),
    /// Puts a message in a queue, with the request that the thread holds, if any. Waits while the queue
    /// is full ([`QUEUE_CAPACITY`]).
    Send(String),
    /// Takes a message from a queue, and the request that comes with it.
    Receive(String),
    /// Runs a program several times.
    Repeat(Repeat),
    /// Starts a process that runs a program once and ends, as `make` does.
    Spawn(Spawn),
}

/// The number of messages that a queue of a thread program holds before its senders wait.
pub const QUEUE_CAPACITY: usize = 1024;

/// The parameters of [`Step::Lock`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Critical {
    /// The lock's name.
    pub name: String,
    /// The steps that run with the lock held.
    pub program: Vec<Step>,
}

/// The parameters of [`Step::Timer`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timer {
    /// The period, in µs.
    pub period_us: f64,
    /// The timer's name; a thread's steps with the same name share one timer.
    #[serde(default)]
    pub name: String,
    /// What the timer does if its end has passed. In both cases the thread does not sleep.
    #[serde(default)]
    pub missed: Missed,
}

/// What a [`Timer`] does if its end has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// The next period begins now.
    #[default]
    Restart,
    /// The next period began when this one should have ended.
    CatchUp,
}

/// The parameters of [`Step::Acquire`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acquire {
    /// The semaphore's name.
    pub name: String,
    /// The semaphore's initial value; 0 unless one of the steps that name the semaphore gives it.
    pub initial: Option<u32>,
}

/// The parameters of [`Step::ForkJoin`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkJoin {
    /// The pool whose helpers do the other parts.
    pub pool: String,
    /// The number of parts, the caller's own included: 2 to 1024.
    pub parts: u32,
    /// The steps of each part: `run_us`, `sleep_us`, `lock` and `repeat`.
    pub program: Vec<Step>,
}

/// The parameters of [`Step::Repeat`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// The number of repetitions: 1 to 1 000 000.
    pub times: u32,
    /// The repeated steps.
    pub program: Vec<Step>,
}

/// The parameters of [`Step::Spawn`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spawn {
    /// The steps of the process, run once: `run_us`, `sleep_us`, `timer_us`, `repeat` and `spawn`.
    pub program: Vec<Step>,
    /// Whether the thread then waits until all processes that it started have ended; else it goes on
    /// beside them.
    #[serde(default = "default_wait")]
    pub wait: bool,
    /// The most processes of the thread at a time, this one included: 1 to 4096. At that number the
    /// thread waits for one to end before it starts another.
    #[serde(default = "default_most")]
    pub most: u32,
}

fn default_wait() -> bool {
    true
}

fn default_most() -> u32 {
    64
}

/// The period of a [`Step::TimerUs`], in ns.
pub fn timer_period_ns(period_us: f64) -> u64 {
    ((period_us * 1e3) as u64).max(1)
}

/// The seed for the next thread that holds a request, when this thread draws from `seed`.
pub fn next_holders_seed(seed: u64) -> u64 {
    seed.wrapping_add(0x9e37_79b9_7f4a_7c15)
}

/// A time in microseconds, fixed (`400`) or drawn anew each time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeUs {
    /// `400` or `{ constant = 400 }`: always this time.
    Constant(f64),
    /// `{ exponential = 400 }`: exponentially distributed with this mean.
    Exponential(f64),
    /// `{ uniform = [100, 300] }`: uniformly distributed between these two.
    Uniform(f64, f64),
    /// `{ lognormal = { mean = 400, sigma = 0.5 } }`: lognormally distributed.
    Lognormal {
        /// The mean, in µs.
        mean: f64,
        /// The standard deviation of the logarithm: 0 to 5.
        sigma: f64,
    },
    /// `{ pareto = { mean = 400, alpha = 1.5 } }`: heavy-tailed. A longer time than [`PARETO_BOUND`]
    /// times the mean is cut to that; `mean` is the mean after the cut.
    Pareto {
        /// The mean, in µs.
        mean: f64,
        /// The tail exponent: the share of times longer than `t` is proportional to `t` to the power of
        /// -alpha. 1.01 to 100.
        alpha: f64,
    },
    /// `{ bimodal = { short = 100, long = 10000, share_long = 0.01 } }`: one of two times.
    Bimodal {
        /// The short time, in µs.
        short: f64,
        /// The long time, in µs.
        long: f64,
        /// The probability of `long`: 0 to 1.
        share_long: f64,
    },
}

impl TimeUs {
    /// The mean, in µs.
    pub fn mean_us(&self) -> f64 {
        match *self {
            TimeUs::Constant(mean)
            | TimeUs::Exponential(mean)
            | TimeUs::Lognormal { mean, .. }
            | TimeUs::Pareto { mean, .. } => mean,
            TimeUs::Uniform(low, high) => (low + high) / 2.0,
            TimeUs::Bimodal {
                short,
                long,
                share_long,
            } => short + (long - short) * share_long,
        }
    }

    /// Draws a time, in ns, at most a minute. `uniform` yields numbers uniform over [0, 1); the
    /// same numbers give the same time, on real threads and simulated ones.
    pub fn draw_ns(&self, mut uniform: impl FnMut() -> f64) -> u64 {
        let us = match *self {
            TimeUs::Constant(time) => time,
            TimeUs::Exponential(mean) => -mean * (1.0 - uniform()).ln(),
            TimeUs::Uniform(low, high) => low + (high - low) * uniform(),
            TimeUs::Lognormal { mean, sigma } => {
                // A normal deviate by Box and Muller.
                let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * uniform()).cos();
                mean * (sigma * normal - sigma * sigma / 2.0).exp()
            }
            TimeUs::Pareto { mean, alpha } => {
                let drawn = pareto_least(alpha) * (1.0 - uniform()).powf(-1.0 / alpha);
                mean * drawn.min(PARETO_BOUND)
            }
            TimeUs::Bimodal {
                short,
                long,
                share_long,
            } => {
                if uniform() < share_long {
                    long
                } else {
                    short
                }
            }
        };
        (us.clamp(0.0, MAX_TIME_US) * 1e3) as u64
    }
}

/// The shortest time of a bounded Pareto distribution with mean 1. The mean of `min(X, bound)` is the
/// area under `P(X > x)` up to the bound:
/// `least * (alpha - (least / bound)^(alpha - 1)) / (alpha - 1)`. Solved for `least` by fixed-point
/// iteration, where each step reduces the error to a tenth.
fn pareto_least(alpha: f64) -> f64 {
    let mut least = (alpha - 1.0) / alpha;
    for _ in 0..8 {
        least = (alpha - 1.0) / (alpha - (least / PARETO_BOUND).powf(alpha - 1.0));
    }
    least
}

impl<'de> Deserialize<'de> for TimeUs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Serde's untagged enums would do, but they report every mistake as "did not match any variant";
        // this names the mistake.
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Distribution {
            Constant(f64),
            Exponential(f64),
            Uniform(f64, f64),
            Lognormal(Lognormal),
            Pareto(Pareto),
            Bimodal(Bimodal),
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Lognormal {
            mean: f64,
            sigma: f64,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Pareto {
            mean: f64,
            alpha: f64,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Bimodal {
            short: f64,
            long: f64,
            share_long: f64,
        }
        struct TimeVisitor;
        impl<'de> Visitor<'de> for TimeVisitor {
            type Value = TimeUs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a number of microseconds or a distribution such as { exponential = 400 }",
                )
            }

            fn visit_i64<E>(self, value: i64) -> Result<TimeUs, E> {
                Ok(TimeUs::Constant(value as f64))
            }

            fn visit_u64<E>(self, value: u64) -> Result<TimeUs, E> {
                Ok(TimeUs::Constant(value as f64))
            }

            fn visit_f64<E>(self, value: f64) -> Result<TimeUs, E> {
                Ok(TimeUs::Constant(value))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TimeUs, A::Error> {
                Ok(
                    match Distribution::deserialize(MapAccessDeserializer::new(map))? {
                        Distribution::Constant(time) => TimeUs::Constant(time),
                        Distribution::Exponential(mean) => TimeUs::Exponential(mean),
                        Distribution::Uniform(low, high) => TimeUs::Uniform(low, high),
                        Distribution::Lognormal(Lognormal { mean, sigma }) => {
                            TimeUs::Lognormal { mean, sigma }
                        }
                        Distribution::Pareto(Pareto { mean, alpha }) => {
                            TimeUs::Pareto { mean, alpha }
                        }
                        Distribution::Bimodal(Bimodal {
                            short,
                            long,
                            share_long,
                        }) => TimeUs::Bimodal {
                            short,
                            long,
                            share_long,
                        },
                    },
                )
            }
        }
        deserializer.deserialize_any(TimeVisitor)
    }
}

/// A number of threads: fixed, or `"cpus"` for one on each online CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// This many threads.
    Fixed(u32),
    /// As many threads as there are online CPUs; also written `0`.
    Cpus,
}

impl Count {
    /// The number of threads on a host with this many CPUs.
    pub fn on(self, cpus: u32) -> u32 {
        match self {
            Count::Fixed(count) => count,
            Count::Cpus => cpus,
        }
    }
}

impl Default for Count {
    fn default() -> Self {
        Count::Fixed(1)
    }
}

impl Serialize for Count {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Count::Fixed(count) => serializer.serialize_u32(*count),
            Count::Cpus => serializer.serialize_str("cpus"),
        }
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CountVisitor;
        impl Visitor<'_> for CountVisitor {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 1 to 1024, or \"cpus\" for one on each CPU")
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Count, E> {
                self.visit_u64(u64::try_from(value).unwrap_or(u64::MAX))
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Count, E> {
                match value {
                    0 => Ok(Count::Cpus),
                    1..=1024 => Ok(Count::Fixed(value as u32)),
                    _ => Err(E::invalid_value(
                        serde::de::Unexpected::Unsigned(value),
                        &self,
                    )),
                }
            }

            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Count, E> {
                match value {
                    "cpus" => Ok(Count::Cpus),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(value), &self)),
                }
            }
        }
        deserializer.deserialize_any(CountVisitor)
    }
}

/// The requests a tenant gets: an open loop, which sends at the intended times whether earlier
/// requests have been answered or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// How the intended times are drawn.
    #[serde(default)]
    pub arrival: Arrival,
    /// Requests per second, in the mean (all but `trace`).
    pub rate: Option<f64>,
    /// Requests per second and online CPU, so that a scenario asks the same share of any machine
    /// (all but `trace`).
    pub rate_per_cpu: Option<f64>,
    /// The CPU time that the requests take, as a part: of one CPU beside `rate`, of all CPUs beside
    /// `rate_per_cpu`; in percent, 0.1 to 100. On a real machine the rate is set so that the requests
    /// take this part, as measured first at a part of the given rate.
    pub busy_percent: Option<f64>,
    /// The greatest rate at which the tenant keeps its objective when it runs alone, per second. It is
    /// the base of `percent`, and of steps without `rate`.
    pub max_rate: Option<f64>,
    /// Requests per second, in the mean, in percent of `max_rate` (all but `trace`).
    pub percent: Option<f64>,
    /// How long requests come in each burst, in ms ([`Arrival::Bursts`]).
    pub on_ms: Option<f64>,
    /// The pause without requests after each burst, in ms.
    pub off_ms: Option<f64>,
    /// The length of one swing of the rate, in s ([`Arrival::Diurnal`]).
    pub period_s: Option<f64>,
    /// The amplitude of the rate to both sides, as a share of the mean: 0 to 1.
    pub swing: Option<f64>,
    /// Pairs of a time in s, the first 0, and the rate from then on, in percent of `rate` or of
    /// `max_rate` ([`Arrival::Steps`]).
    pub steps: Option<Vec<(f64, f64)>>,
    /// The file of [`Arrival::Trace`], relative to the scenario's folder.
    pub trace: Option<PathBuf>,
    /// Connections the requests are spread over (applications; thread programs have one queue).
    #[serde(default = "default_connections")]
    pub connections: u32,
    /// How long after the last intended time answers are waited for, in ms. A request that is unanswered
    /// then is an error, and its latency counts as the time until then.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
}

fn default_connections() -> u32 {
    8
}

fn default_timeout_ms() -> u64 {
    2000
}

/// How the intended times of requests are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// Independent arrivals: exponentially distributed gaps.
    #[default]
    Poisson,
    /// Equal gaps between requests.
    Fixed,
    /// The arrivals of a file ([`super::Trace`]).
    Trace,
    /// Independent arrivals for `on_ms`, none for `off_ms`, and so on; from time 0, so that the bursts of
    /// tenants with the same load coincide.
    Bursts,
    /// Independent arrivals at a rate that varies about its mean as a sine, upwards first.
    Diurnal,
    /// Independent arrivals at rates that hold from one time to the next; at the last time the steps
    /// start over.
    Steps,
}

impl Load {
    /// Requests per second on a host with this many CPUs; `None` for a trace.
    pub fn rate_on(&self, cpus: u32) -> Option<f64> {
        let of_max = self.max_rate.zip(self.percent);
        self.rate
            .or(self.rate_per_cpu.map(|rate| rate * f64::from(cpus)))
            .or(of_max.map(|(most, percent)| most * percent / 100.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cheap uniform sequence, good enough for means.
    fn uniform() -> impl FnMut() -> f64 {
        let mut state = 1u64;
        move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    #[test]
    fn every_distribution_has_the_mean_it_states() {
        for time in [
            TimeUs::Constant(400.0),
            TimeUs::Exponential(400.0),
            TimeUs::Uniform(100.0, 700.0),
            TimeUs::Lognormal {
                mean: 400.0,
                sigma: 0.5,
            },
            TimeUs::Pareto {
                mean: 400.0,
                alpha: 2.0,
            },
            TimeUs::Bimodal {
                short: 300.0,
                long: 1300.0,
                share_long: 0.1,
            },
        ] {
            let (mut draw, n) = (uniform(), 100_000);
            let sum: u64 = (0..n).map(|_| time.draw_ns(&mut draw)).sum();
            let mean_us = sum as f64 / n as f64 / 1e3;
            assert!((mean_us / 400.0 - 1.0).abs() < 0.02, "{time:?}: {mean_us}");
            assert_eq!(time.mean_us(), 400.0);
        }
    }

    #[test]
    fn a_heavy_tail_has_its_mean_its_bound_and_its_slope() {
        for alpha in [1.2, 1.5, 3.0] {
            let mean = 10.0;
            let time = TimeUs::Pareto { mean, alpha };
            let (mut draw, n) = (uniform(), 400_000);
            let us: Vec<f64> = (0..n)
                .map(|_| time.draw_ns(&mut draw) as f64 / 1e3)
                .collect();
            let drawn = us.iter().sum::<f64>() / n as f64;
            assert!((drawn / mean - 1.0).abs() < 0.06, "{alpha}: {drawn}");
            assert!(us.iter().all(|&us| us <= PARETO_BOUND * mean));
            let longer = |than: f64| us.iter().filter(|&&us| us > than).count() as f64;
            let slope = (longer(20.0) / longer(40.0)).log2();
            assert!((slope / alpha - 1.0).abs() < 0.05, "{alpha}: {slope}");
        }
    }

    #[test]
    fn steps_survive_the_way_to_a_player_process() {
        let steps = vec![
            Step::Request,
            Step::RunUs(TimeUs::Lognormal {
                mean: 3.0,
                sigma: 1.0,
            }),
            Step::SleepUs(TimeUs::Uniform(1.0, 2.0)),
            Step::ForkJoin(ForkJoin {
                pool: "p".into(),
                parts: 4,
                program: vec![],
            }),
            Step::Respond,
        ];
        let text = serde_json::to_string(&steps).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Step>>(&text).unwrap(), steps);
    }
}
