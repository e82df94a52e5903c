//! The command line of `quell-studies`.

use clap::{Args, Parser, Subcommand};
use quell::cli::{Bench, Capacity, Guest, Measure, seconds};
use quell_bench::report::Files;
use quell_bench::result::Substrate;
use quell_scenario::set::Setting;
use std::path::PathBuf;

/// Studies of Quell: what its authors measure it by. They need the program `quell` beside them.
#[derive(Debug, Parser)]
#[command(
    name = "quell-studies",
    version,
    propagate_version = true,
    max_term_width = 100
)]
#[command(
    after_help = "Exit codes: 0 done, 1 the run failed or a study found something, 2 the input is wrong."
)]
pub struct Cli {
    /// The study to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The studies.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compare sides on one scenario, as `quell bench` does
    ///
    /// Beside the sides that `quell` has, on the simulator: credit, credit2, bvt, isolation, host-aware,
    /// parties, dyniso and ideal. Without a scenario the built-in ones are listed, those of papers among
    /// them.
    Bench(Box<Bench>),
    /// How many tenants fit, as `quell capacity` tells; with the same sides as `bench`
    Capacity(Box<Capacity>),
    /// The tests that everybody runs on a new scheduler, beside periodic victims, on several sides
    Standard(Box<Standard>),
    /// Whether a side is worse than the kernel's default on any shared scenario
    Harm(Box<Harm>),
    /// Search random workloads for one on which a light task waits too long
    Hunt(Hunt),
    /// Play finds of the hunt on a real kernel, and say which hold there
    Confirm(Box<Confirm>),
    /// How exactly random hosts are shared by weight
    Shares(Box<Shares>),
    /// Whether the CPU time promised on random hosts is received
    Promises(Box<Promises>),
    /// How many random task sets each admission test accepts
    Acceptance(Acceptance),
    /// How far the simulator is from the kernel lab
    Calibration(Box<Calibration>),
    /// What a wakeup and a switch cost on each side
    Overhead(Box<Overhead>),
    /// What the agent itself costs
    Agent(AgentCost),
    /// How fast the simulator is
    Speed(Speed),
    /// Redo a paper's experiment and print its numbers beside those measured here
    ///
    /// In the kernel lab's guest unless told otherwise, where it takes minutes to an hour.
    Reproduce(Box<Reproduce>),
    /// Be one tenant of many threads (started by `agent`)
    #[command(hide = true)]
    Fleet {
        /// Its description
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Be a victim or a load (started by `standard`)
    #[command(hide = true)]
    StandardPart {
        /// Its description
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

/// The arguments of every study.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Seed of everything random; the same seed gives the same study
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also write the result as JSON (`-`: to stdout, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Common {
    /// How a scenario of the study is measured, for `seconds` and in `pairs` pairs where these are given.
    pub fn measure(&self, seconds: Option<f64>, pairs: Option<u32>) -> Measure {
        Measure {
            seconds,
            pairs,
            seed: self.seed,
            scheduling: false,
            json: self.json.clone(),
            report: None,
            csv: None,
            parquet: None,
        }
    }

    /// Where the result goes.
    pub fn files(&self) -> Files<'_> {
        Files {
            json: self.json.as_deref(),
            ..Files::default()
        }
    }
}

/// Arguments of [`crate::standard`].
#[derive(Debug, Args)]
pub struct Standard {
    /// Where to run it: vm, or host
    #[arg(long, value_enum, default_value_t)]
    pub on: Substrate,
    /// The sides, the baseline first
    #[arg(long, value_name = "SIDE,SIDE", default_value = "default,sched")]
    pub policy: String,
    /// Only cases with this in their names; may be given several times
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// List the cases
    #[arg(long)]
    pub list: bool,
    /// How long each side of a pair is measured, in seconds
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// How many interleaved pairs to measure
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pairs: Option<u32>,
    /// Also write a self-contained HTML report
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// The seed, and where the result goes.
    #[command(flatten)]
    pub common: Common,
    /// What the lab's guest is made of.
    #[command(flatten)]
    pub guest: Guest,
}

/// Arguments of [`crate::harm`].
#[derive(Debug, Args)]
pub struct Harm {
    /// Where to run it
    #[arg(long, value_enum, default_value_t)]
    pub on: Substrate,
    /// The sides, the baseline first
    #[arg(long, value_name = "SIDE,SIDE", default_value = "default,quell")]
    pub policy: String,
    /// Only scenarios with this in their names; may be given several times
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// List the scenarios
    #[arg(long)]
    pub list: bool,
    /// Set a value of every scenario otherwise than its file: tenant.NAME.count=4
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// How long each side of a pair is measured, in seconds; the scenario's own unless given
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// How many interleaved pairs to measure; the scenario's own unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pairs: Option<u32>,
    /// Also compare what could stand for latency without asking the application
    #[arg(long)]
    pub scheduling: bool,
    /// The seed, and where the result goes.
    #[command(flatten)]
    pub common: Common,
    /// What the lab's guest is made of.
    #[command(flatten)]
    pub guest: Guest,
}

/// Arguments of [`crate::hunt`].
#[derive(Debug, Args)]
pub struct Hunt {
    /// The sides, the reference first
    #[arg(long, value_name = "SIDE,SIDE", default_value = "eevdf,sched")]
    pub policy: String,
    /// How many random workloads
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub workloads: u64,
    /// Begin no more workloads after this many minutes
    #[arg(long, value_name = "N", value_parser = minutes)]
    pub minutes: Option<f64>,
    /// Write each find, made smaller, into this folder: SIDE-SEED.toml
    #[arg(long, value_name = "FOLDER")]
    pub keep: Option<PathBuf>,
    /// How long each workload runs, in seconds of the simulated machine
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// The seed, and where the result goes.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of [`crate::hunt::confirm`].
#[derive(Debug, Args)]
pub struct Confirm {
    /// Finds, as `hunt --keep` writes them
    #[arg(value_name = "FILE", required = true)]
    pub finds: Vec<PathBuf>,
    /// Where to play them
    #[arg(long, value_enum, default_value = "vm")]
    pub on: Substrate,
    /// The sides, the reference first
    #[arg(long, value_name = "SIDE,SIDE", default_value = "default,sched")]
    pub policy: String,
    /// How long each side of a pair is measured, in seconds; the find's own unless given
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// How many interleaved pairs to measure; 3 unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pairs: Option<u32>,
    /// Write each find as a scenario into this folder, and play nothing
    #[arg(long, value_name = "FOLDER")]
    pub scenarios: Option<PathBuf>,
    /// The seed, and where the result goes.
    #[command(flatten)]
    pub common: Common,
    /// What the lab's guest is made of.
    #[command(flatten)]
    pub guest: Guest,
}

/// Arguments of [`crate::shares`].
#[derive(Debug, Args)]
pub struct Shares {
    /// Where to run it
    #[arg(long, value_enum, default_value_t)]
    pub on: Substrate,
    /// The sides
    #[arg(
        long,
        value_name = "SIDE,SIDE",
        default_value = "share=quell sched --share"
    )]
    pub policy: String,
    /// How many random hosts
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub hosts: u32,
    /// The most CPUs of a simulated host; a real one has all of its machine's
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub most_cpus: u32,
    /// The most groups on a host
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub most_groups: u32,
    /// Draw and begin simulated hosts as on a real machine: all have --most-cpus CPUs, bursts begin at once,
    /// periods are 10 ms at least, and threads that always want a CPU have run for 3 s before
    #[arg(long)]
    pub like_real: bool,
    /// How many CPUs of a simulated host share a last-level cache; all if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub cache_cpus: Option<u32>,
    /// How long each host is measured, in seconds
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// The seed, and where the result goes.
    #[command(flatten)]
    pub common: Common,
    /// What the lab's guest is made of.
    #[command(flatten)]
    pub guest: Guest,
}

/// Arguments of [`crate::promises`].
#[derive(Debug, Args)]
pub struct Promises {
    /// Where to run it
    #[arg(long, value_enum, default_value_t)]
    pub on: Substrate,
    /// The sides
    #[arg(long, value_name = "SIDE,SIDE", default_value = "akita")]
    pub policy: String,
    /// How many random hosts
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub hosts: u32,
    /// The most CPUs of a simulated host; a real one has all of its machine's
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub most_cpus: u32,
    /// Also write a Perfetto trace of each host on which a promise was broken or enforced late into this
    /// folder, beside its scenario: SIDE-SEED.perfetto-trace, SIDE-SEED.toml
    #[arg(long, value_name = "FOLDER")]
    pub trace: Option<PathBuf>,
    /// How long each host is measured, in seconds
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// The seed, and where the result goes.
    #[command(flatten)]
    pub common: Common,
    /// What the lab's guest is made of.
    #[command(flatten)]
    pub guest: Guest,
}

/// Arguments of [`crate::acceptance`].
#[derive(Debug, Args)]
pub struct Acceptance {
    /// How many random sets for each utilization
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sets: u32,
    /// Also write a self-contained HTML report
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// The seed, and where the result goes.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of [`crate::calibration`].
#[derive(Debug, Args)]
pub struct Calibration {
    /// Only this scenario; may be given several times
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Set a value of every scenario otherwise than its file: tenant.NAME.count=4
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// How long each side of a pair is measured, in seconds; the scenario's own unless given
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// How many interleaved pairs to measure
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pairs: Option<u32>,
    /// The seed, and where the result goes.
    #[command(flatten)]
    pub common: Common,
    /// What the lab's guest is made of.
    #[command(flatten)]
    pub guest: Guest,
}

/// Arguments of [`crate::overhead`].
#[derive(Debug, Args)]
pub struct Overhead {
    /// Where to run it: vm, or host
    #[arg(long, value_enum, default_value_t)]
    pub on: Substrate,
    /// The sides, the baseline first
    #[arg(long, value_name = "SIDE,SIDE", default_value = "default,quell")]
    pub policy: String,
    /// How many cgroups the threads are in, one in the other
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=16))]
    pub nesting: u32,
    /// The seed, and where the result goes.
    #[command(flatten)]
    pub common: Common,
    /// What the lab's guest is made of.
    #[command(flatten)]
    pub guest: Guest,
}

/// Arguments of [`crate::agent_bench`].
#[derive(Debug, Args)]
pub struct AgentCost {
    /// Threads altogether [default: 1000; with --vms 250]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=30_000))]
    pub threads: Option<u32>,
    /// Tenants they belong to [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub tenants: Option<u32>,
    /// Share of the threads that wake and run, in percent [default: 10]
    #[arg(long, value_name = "PERCENT")]
    pub active: Option<f64>,
    /// Tenants are virtual machines, under the pools mechanism: all of their threads but one are virtual
    /// CPUs, and guest agents answer, the first one after 5 s
    #[arg(long)]
    pub vms: bool,
    /// How the cost grows, from 100 to 10,000 threads
    #[arg(long, conflicts_with = "threads")]
    pub growth: bool,
    /// How long it is measured, in seconds
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// The seed, and where the result goes.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of [`crate::sim_bench`].
#[derive(Debug, Args)]
pub struct Speed {
    /// The simulator's sides
    #[arg(long, value_name = "SIDE,SIDE", default_value = "eevdf,sched")]
    pub policy: String,
    /// Virtual time of each case, in seconds
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// The seed, and where the result goes.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of [`crate::reproduce`].
#[derive(Debug, Args)]
pub struct Reproduce {
    /// The figure; without one, or with --list, all are listed
    pub figure: Option<String>,
    /// List the figures
    #[arg(long)]
    pub list: bool,
    /// Where to run it; the first place that --list names for it unless given
    #[arg(long, value_enum)]
    pub on: Option<Substrate>,
    /// The sides to compare, the baseline first; the figure's own unless given, and only these where it is
    /// set for each of them
    #[arg(long, value_name = "SIDE,SIDE")]
    pub policy: Option<String>,
    /// Set a value of every point's scenario otherwise than its file: warmup_seconds=2
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// How it is measured.
    #[command(flatten)]
    pub measure: Measure,
    /// What the lab's guest is made of.
    #[command(flatten)]
    pub guest: Guest,
}

fn minutes(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    let number = number.filter(|it| (0.01..=10_000.0).contains(it));
    number.ok_or_else(|| "must be 0.01 to 10000".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
