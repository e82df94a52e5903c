//! The command line: commands, options, and their help.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use quell_agent::{DEFAULT_CONFIG, DEFAULT_JOURNAL, DEFAULT_SOCKET};
use quell_bench::report::Files;
use quell_bench::result::Substrate;
use quell_model::config::AdmissionTest;
use quell_scenario::set::{Setting, Sweep};
use std::ffi::OsString;
use std::path::PathBuf;

/// Keeps the tenants of one Linux host out of each other's critical path.
#[derive(Debug, Parser)]
#[command(
    name = "quell",
    version,
    propagate_version = true,
    max_term_width = 100
)]
#[command(
    after_help = "Exit codes: 0 done, 1 the run failed, 2 the input is wrong, 3 the answer is no.\n\
    Try it: quell demo"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure real co-located tenants on this machine: the kernel's default, the same
    /// weights set by hand, and Quell
    ///
    /// Where this machine's kernel has no sched_ext, `--on vm` shows Quell's scheduler in a virtual machine
    /// of the kernel lab, on the newest kernel; that takes some minutes more.
    Demo(Demo),
    /// Run the agent in the foreground; it puts everything back when it ends
    ///
    /// SIGTERM and SIGINT end it, SIGHUP makes it read its configuration anew.
    Run(Run),
    /// Show the running agent, its tenants and how they fare
    Status(Status),
    /// Show the same live; q quits, m switches to who made whom wait
    Top(Top),
    /// Show what a tenant's threads have, and the last decisions with their reasons
    Explain(Explain),
    /// Measure what Quell does to this host's tenants, in random turns with doing nothing
    ///
    /// Runs the agent in the foreground, so stop a running one first. It acts and rests in blocks of 5 s in
    /// random order and compares the tenants' responses as the kernel sees them. Ctrl-C ends it early;
    /// everything is put back.
    Prove(Prove),
    /// Put back what an agent that was killed had changed
    ///
    /// An agent that ends by itself or by SIGTERM has done so already.
    Restore(Restore),
    /// Check a configuration without running it
    Check(Check),
    /// Measure a scenario under several schedulers, interleaved
    Bench(Box<Bench>),
    /// Find how many tenants of a mix fit while each keeps its objective, on the simulator, under each
    /// scheduler
    ///
    /// The scenario is one copy of the mix: what its tenants count are proportions. The number of copies
    /// grows on the scenario's host (`--set host.cpus=N`) until a latency tenant's 99th percentile leaves its
    /// objective.
    Capacity(Capacity),
    /// Say whether tenants fit on a host with what is promised to them, on which CPUs, and if not, why not
    /// and what would do
    ///
    /// Exit code 3: not all fit.
    Admit(Admit),
    /// Write a scenario that says the same as another tool's file
    ///
    /// To stdout; what a scenario cannot say is named on stderr.
    #[command(subcommand)]
    Import(Import),
    /// Run commands under other kernels, in QEMU, on a clock that gives the same numbers twice
    ///
    /// Kernels and QEMU come from Debian through apt, into a cache; the machine's own packages stay
    /// as they are.
    #[command(subcommand)]
    Lab(Lab),
    /// Run Quell's own scheduler alone, without an agent, until Ctrl-C (needs sched_ext)
    ///
    /// It schedules every ordinary thread of the host; when this command ends, in whatever way, the
    /// kernel's own scheduler takes over.
    Sched(Sched),
    /// Record every switch and wakeup of this host, and say who waited how long for a CPU (needs BPF)
    ///
    /// Until Ctrl-C, for --seconds, or while COMMAND runs, whose exit code it then ends with. The trace
    /// opens at ui.perfetto.dev and holds the whole host: all processes, and this recorder itself.
    Record(Record),
    /// Run a recorded trace again on the simulated machine: what would its threads have waited?
    ///
    /// Takes traces of `quell record`, and of `quell bench --trace`. The same trace gives the same answer.
    Replay(Replay),
    /// Write the JSON schema of quell.toml to stdout, by which editors complete, explain and check it
    ///
    /// A package has it at /usr/share/quell/quell.schema.json, and the example configuration names it there
    /// in its first line: `#:schema /usr/share/quell/quell.schema.json`.
    Schema {
        /// The schema of the files in quell.d instead, which have tenants and rules only
        #[arg(long)]
        drop_in: bool,
    },
    /// Write shell completions to stdout
    Completion {
        /// For which shell
        shell: Shell,
    },
    /// Write the man pages into a folder
    Man {
        /// The folder; made if it is not there
        folder: PathBuf,
    },
    /// Play a scenario's thread programs (started by `bench`)
    #[command(hide = true)]
    Player {
        /// Its description
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

/// Arguments of `quell demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Where to run it
    #[arg(long, value_enum, default_value_t)]
    pub on: DemoOn,
    /// How it is measured.
    #[command(flatten)]
    pub measure: Measure,
}

/// Where the demo runs: its applications are real.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum DemoOn {
    /// Real threads on this machine
    #[default]
    Host,
    /// The kernel lab's guest
    Vm,
}

/// Arguments of `quell run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The configuration
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_CONFIG, env = "QUELL_CONFIG")]
    pub config: PathBuf,
    /// Observe and decide, explain on request, change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Where the agent listens.
    #[command(flatten)]
    pub socket: Socket,
    /// Where the values to put back are kept
    #[arg(long, value_name = "FILE", default_value = DEFAULT_JOURNAL, env = "QUELL_JOURNAL")]
    pub journal: PathBuf,
    /// How to observe: BPF sees everything, /proc works everywhere
    #[arg(long, value_enum, default_value_t)]
    pub source: Source,
    /// The least severe messages to show
    #[arg(long, value_enum, default_value_t, env = "QUELL_LOG")]
    pub log_level: LogLevel,
    /// How to write messages to stderr
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
}

/// Arguments of `quell prove`.
#[derive(Debug, Args)]
pub struct Prove {
    /// The configuration
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_CONFIG, env = "QUELL_CONFIG")]
    pub config: PathBuf,
    /// How long, such as 90s, 10m or 1h
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = humantime::parse_duration)]
    pub length: std::time::Duration,
    /// Write the result as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with a plot
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Where the agent listens.
    #[command(flatten)]
    pub socket: Socket,
    /// Where the values to put back are kept
    #[arg(long, value_name = "FILE", default_value = DEFAULT_JOURNAL, env = "QUELL_JOURNAL")]
    pub journal: PathBuf,
}

/// How the agent observes.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum Source {
    /// BPF where it loads, else /proc
    #[default]
    Auto,
    /// BPF or nothing
    Bpf,
    /// /proc
    Procfs,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum LogLevel {
    /// Only what ends the agent
    Error,
    /// And what limits it
    Warn,
    /// And what it does once
    #[default]
    Info,
    /// And what it does each period
    Debug,
    /// And everything else
    Trace,
}

/// How it is logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Where the agent listens.
#[derive(Debug, Args)]
pub struct Socket {
    /// Where the agent listens
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, env = "QUELL_SOCKET")]
    pub socket: PathBuf,
}

/// The time that figures cover.
#[derive(Debug, Args)]
pub struct Window {
    /// The time that the figures cover, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=60))]
    pub window: u32,
}

/// Arguments of `quell status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Show who made whom wait, and how much
    #[arg(long)]
    pub matrix: bool,
    /// Write the agent's answer as JSON
    #[arg(long)]
    pub json: bool,
    /// The time that the figures cover.
    #[command(flatten)]
    pub window: Window,
    /// Where the agent listens.
    #[command(flatten)]
    pub socket: Socket,
}

/// Arguments of `quell top`.
#[derive(Debug, Args)]
pub struct Top {
    /// The time that the figures cover.
    #[command(flatten)]
    pub window: Window,
    /// Where the agent listens.
    #[command(flatten)]
    pub socket: Socket,
}

/// Arguments of `quell explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// The tenant's name
    pub tenant: String,
    /// Write the agent's answer as JSON
    #[arg(long)]
    pub json: bool,
    /// Where the agent listens.
    #[command(flatten)]
    pub socket: Socket,
}

/// Arguments of `quell admit`.
#[derive(Debug, Args)]
pub struct Admit {
    /// The host, and the tenants that are on it
    #[arg(value_name = "HOST.toml", required_unless_present = "running")]
    pub host: Option<PathBuf>,
    /// Tenants that ask for room
    #[arg(value_name = "TENANTS.toml")]
    pub tenants: Option<PathBuf>,
    /// Ask for room on this host, as the running agent has it: `quell admit --running TENANTS.toml`
    #[arg(long, conflicts_with_all = ["tenants", "test"])]
    pub running: bool,
    /// Where the agent listens.
    #[command(flatten)]
    pub socket: Socket,
    /// The test that decides, whatever the host's file says
    #[arg(long, value_name = "TEST",
          value_parser = PossibleValuesParser::new(AdmissionTest::ALL.map(AdmissionTest::name))
              .try_map(|name| name.parse::<AdmissionTest>()))]
    pub test: Option<AdmissionTest>,
    /// Write the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// From what a scenario is made.
#[derive(Debug, Subcommand)]
pub enum Import {
    /// From rt-app's JSON
    RtApp {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Arguments of `quell restore`.
#[derive(Debug, Args)]
pub struct Restore {
    /// The journal of the agent that was killed
    #[arg(long, value_name = "FILE", default_value = DEFAULT_JOURNAL, env = "QUELL_JOURNAL")]
    pub journal: PathBuf,
}

/// Arguments of `quell check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The configuration
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_CONFIG, env = "QUELL_CONFIG")]
    pub config: PathBuf,
}

/// The sides that `bench` compares by default.
pub const DEFAULT_SIDES: &str = "default,quell";

/// Arguments of `quell bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// A scenario file, or the name of a built-in scenario; without, the built-in ones are listed
    #[arg(default_value = "", hide_default_value = true)]
    pub scenario: String,
    /// Where to run it
    #[arg(long, value_enum, default_value_t)]
    pub on: Substrate,
    /// The sides, the baseline of a comparison first: default, weights, stock, dasec, quell, mechanisms of
    /// Quell's (asymmetry+share+criticality+pools, or some of them), sched, a published scheduler
    /// (scx_bpfland, scx_rusty, scx_flash, scx_lavd, scx_layered), NAME=COMMAND for one of yours; on the
    /// simulator sched, cfs, eevdf-6.12, eevdf, fifo and ufo
    #[arg(long, value_name = "SIDE,SIDE", default_value = DEFAULT_SIDES)]
    pub policy: String,
    /// How many of the sides, from the first on, are baselines: the others are compared with each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2), hide = true)]
    pub baselines: u8,
    /// Set a value of the scenario otherwise than its file: tenant.NAME.count=4
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// On the simulator: measure at each of these values, all of them at once; several times for every
    /// combination
    #[arg(long, value_name = "KEY=V1,V2")]
    pub sweep: Vec<Sweep>,
    /// Also write a Perfetto trace of each side and pair into this folder: SIDE-PAIR.perfetto-trace
    #[arg(long, value_name = "FOLDER")]
    pub trace: Option<PathBuf>,
    /// How it is measured.
    #[command(flatten)]
    pub measure: Measure,
    /// What the guest is made of.
    #[command(flatten)]
    pub guest: Guest,
}

/// Arguments of `quell capacity`.
#[derive(Debug, Args)]
pub struct Capacity {
    /// A scenario file, or the name of a built-in scenario
    pub scenario: String,
    /// The schedulers: sched, cfs, eevdf-6.12, eevdf, fifo and ufo
    #[arg(long, value_name = "SIDE,SIDE", default_value = "eevdf,sched")]
    pub policy: String,
    /// Only this tenant grows, from 1; the others stay as the scenario has them [default: the whole mix
    /// grows]
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// What latency tenants that state no objective must keep, in ms
    #[arg(long, value_name = "p99_ms=N", value_parser = objective)]
    pub objective: Option<f64>,
    /// The greatest number to try; as many as a scenario may have unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub most: Option<u32>,
    /// Set a value of the scenario otherwise than its file: host.cpus=16
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// How it is measured.
    #[command(flatten)]
    pub measure: Measure,
}

fn objective(text: &str) -> Result<f64, String> {
    let number = text.strip_prefix("p99_ms=");
    let number = number.and_then(|number| number.parse::<f64>().ok());
    let number = number.filter(|ms| (1e-3..=60_000.0).contains(ms));
    number.ok_or_else(|| "must be p99_ms=N, N from 0.001 to 60000".to_string())
}

/// Arguments of `quell sched`.
#[derive(Debug, Args)]
pub struct Sched {
    /// Write one JSON object a line
    #[arg(long)]
    pub json: bool,
    /// How often to write what happened, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: f64,
    /// The scheduler's own options.
    #[command(flatten)]
    pub scheduler: quell_sched::Arguments,
}

/// Arguments of `quell record`.
#[derive(Debug, Args)]
pub struct Record {
    /// How long to record, in seconds; a COMMAND that still runs then is ended
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Where the trace goes
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "quell.perfetto-trace"
    )]
    pub out: PathBuf,
    /// Each CPU's buffer, in KiB: more where events are lost
    #[arg(long, value_name = "KIB", default_value = "4096", value_parser = buffer_kib)]
    pub buffer: u32,
    /// Write the summary as JSON, with every process
    #[arg(long)]
    pub json: bool,
    /// A command to run meanwhile, and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Arguments of `quell replay`.
#[derive(Debug, Args)]
pub struct Replay {
    /// The trace: of `quell record`, `quell bench --trace`, or Perfetto's own recorder; it may be gzipped
    pub trace: PathBuf,
    /// The schedulers to run it under: sched, cfs, eevdf-6.12, eevdf, fifo; NAME=quell sched OPTIONS for
    /// Quell's otherwise
    #[arg(long, value_name = "SIDE,SIDE", default_value = "eevdf,sched")]
    pub policy: String,
    /// CPUs of the simulated machine; as many as the trace has unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub cpus: Option<u32>,
    /// Show the processes of this name; those with the most CPU time unless given
    #[arg(long, value_name = "NAME")]
    pub process: Option<String>,
    /// Also write the result as JSON, with every process (`-`: to stdout, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What to do in the kernel lab.
#[derive(Debug, Subcommand)]
pub enum Lab {
    /// Fetch QEMU and kernels, or newer ones if there are
    ///
    /// The other commands fetch what is missing too; they do not look for newer versions.
    Setup {
        /// The kernel: sched_ext, 6.12, 6.1; all of them unless given
        #[arg(long, value_name = "KERNEL", value_delimiter = ',')]
        kernel: Vec<String>,
        /// Also build the newest published sched_ext schedulers, for `bench --on vm --policy scx_...`:
        /// these, or all the lab knows; 5 to 15 minutes of CPU time each
        #[arg(long, value_name = "NAME", value_delimiter = ',', num_args = 0..)]
        peers: Option<Vec<String>>,
        /// Also the Debian system of `quell lab host`, about 60 MB
        #[arg(long)]
        system: bool,
    },
    /// Boot a kernel, run a command under it, and end with the command's exit code
    ///
    /// The command runs as root in /root, with /proc, /sys, cgroup v2, BPF and tracing there, busybox
    /// and quell on its path, and the loopback interface as its only network. What it writes to the
    /// folder $OUT comes back.
    Run(LabRun),
    /// Boot a Debian system with systemd as its first process, and run a command in it
    ///
    /// A host as operators have it: systemd, cgroup v2, and the packages that are asked for, as Debian has
    /// them, but unpacked only: their installation scripts do not run. The command is a unit
    /// (quell-lab.service), as root in /root. What it writes to the folder $OUT comes back.
    Host(LabHost),
    /// Boot a kernel and open a shell under it; `exit` ends it, as Ctrl-A X does
    Shell {
        /// What the guest is made of.
        #[command(flatten)]
        guest: Guest,
    },
}

/// Arguments of `quell lab run`.
#[derive(Debug, Args)]
pub struct LabRun {
    /// What the guest is made of.
    #[command(flatten)]
    pub guest: Guest,
    /// Seed of the guest's own random numbers
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    /// Where what the command wrote to $OUT is put
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// How long the command may take, in seconds of this machine's clock
    #[arg(long, value_name = "SECONDS", default_value_t = 3600,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// Arguments of `quell lab host`.
#[derive(Debug, Args)]
pub struct LabHost {
    /// A package to have, with all that it depends on; may be given several times
    #[arg(long = "package", value_name = "NAME")]
    pub packages: Vec<String>,
    /// The guest and its command.
    #[command(flatten)]
    pub run: LabRun,
}

/// What a guest is made of.
#[derive(Debug, Args)]
#[command(next_help_heading = "The lab's guest (`lab`, `--on vm`)")]
pub struct Guest {
    /// The kernel: sched_ext (the newest with sched_ext), 6.12, 6.1, or a bzImage's path
    #[arg(long, value_name = "KERNEL", default_value = "sched_ext")]
    pub kernel: String,
    /// CPUs; the scenario's number if it says one, else 8
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=255))]
    pub cpus: Option<u32>,
    /// Sockets the CPUs are spread over, each with its last-level cache; the scenario's if it says so, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub sockets: Option<u32>,
    /// CPUs of each core; the scenario's if it says so, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    pub smt: Option<u32>,
    /// Memory, as 3G or 512M
    #[arg(long, value_name = "SIZE", default_value = "3G", value_parser = mebibytes)]
    pub memory: u32,
    /// The guest's clock: virtual unless the kernel cannot, for a shell real
    #[arg(long, value_enum)]
    pub clock: Option<LabClock>,
    /// A file or folder to put into the guest, at /root/NAME or where GUEST says; a program brings
    /// its libraries, and one named without a slash is taken from PATH
    #[arg(long = "file", value_name = "HOST[:GUEST]")]
    pub files: Vec<String>,
    /// More words for the kernel's command line
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub append: String,
    /// Boot, instead of going on from a snapshot of such a guest (on the virtual clock)
    #[arg(long)]
    pub no_snapshot: bool,
}

impl Default for Guest {
    /// The guest where none of these options is given.
    fn default() -> Guest {
        #[derive(Parser)]
        struct Alone {
            #[command(flatten)]
            guest: Guest,
        }
        Alone::parse_from(["quell"]).guest
    }
}

/// The guest's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LabClock {
    /// One instruction is one nanosecond: the same image gives the same numbers, on any machine
    Virtual,
    /// This machine's time, with KVM where a guest was seen to run under it
    Real,
}

fn mebibytes(text: &str) -> Result<u32, String> {
    let factor = match text.chars().last() {
        Some('G' | 'g') => 1024,
        Some('M' | 'm') => 1,
        _ => 0,
    };
    let number = text.get(..text.len().saturating_sub(1)).unwrap_or_default();
    let size = number
        .parse::<u32>()
        .ok()
        .and_then(|n| n.checked_mul(factor));
    size.filter(|mib| *mib >= 256)
        .ok_or_else(|| "must be a size of at least 256M, as 3G or 512M".to_string())
}

/// How to measure.
#[derive(Debug, Clone, Args)]
pub struct Measure {
    /// How long each side of a pair is measured, in seconds; the scenario's own unless given
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// How many interleaved pairs to measure; the scenario's own unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pairs: Option<u32>,
    /// Seed of everything random; the same seed gives the same requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also record what the scheduler does to the tenants' threads: run delays, switches, preemptions,
    /// migrations
    #[arg(long)]
    pub scheduling: bool,
    /// Also write the result as JSON (`-`: to stdout, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write a self-contained HTML report
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Also write a flat table, a row for each run, side and tenant, as CSV (`-`: to stdout)
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
    /// Also write the same as Parquet (`-`: to stdout)
    #[arg(long, value_name = "FILE.parquet")]
    pub parquet: Option<PathBuf>,
}

impl Measure {
    /// The files that the result is written to.
    pub fn files(&self) -> Files<'_> {
        Files {
            json: self.json.as_deref(),
            html: self.report.as_deref(),
            csv: self.csv.as_deref(),
            parquet: self.parquet.as_deref(),
        }
    }
}

/// Parses a number of seconds, 0.1 to 3600.
///
/// # Errors
/// A message for the user where the text is no number, or is out of this range.
pub fn seconds(text: &str) -> Result<f64, String> {
    let number = text
        .parse::<f64>()
        .ok()
        .filter(|n| (0.1..=3600.0).contains(n));
    number.ok_or_else(|| "must be a number of seconds from 0.1 to 3600".to_string())
}

fn buffer_kib(text: &str) -> Result<u32, String> {
    let number = text.parse::<u32>().ok();
    // The kernel takes whole pages, of 64 KiB at most, and a power of two of them.
    let number = number.filter(|kib| kib.is_power_of_two() && (64..=1 << 19).contains(kib));
    number.ok_or_else(|| "must be a power of two from 64 to 524288".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn objectives_name_their_unit() {
        assert_eq!(objective("p99_ms=2.5"), Ok(2.5));
        for wrong in ["", "2.5", "p99_ms=", "p99_ms=0", "p99_ms=NaN", "p99_us=3"] {
            assert!(objective(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_of_memory_have_a_unit() {
        assert_eq!(mebibytes("3G"), Ok(3072));
        assert_eq!(mebibytes("512m"), Ok(512));
        for wrong in ["", "G", "3", "3T", "-1G", "128M", "5000000G"] {
            assert!(mebibytes(wrong).is_err(), "{wrong}");
        }
    }
}
