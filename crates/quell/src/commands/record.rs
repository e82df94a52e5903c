//! `quell record`: a trace of this host, and how long each process waited in it.

use super::{InputError, bench::writable};
use crate::cli::Record;
use crate::table;
use anyhow::Context;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeVal;
use nix::unistd::Pid as UnixPid;
use quell_linux::record::{POLL, Recorder, Totals, hurry};
use quell_model::{shown, shown_json};
use quell_trace::{Analyser, Analysis, Delays, ProcessStats, Reader, Writer};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a command may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// How many processes the summary's table has.
const SHOWN: usize = 12;

/// The summary, as `--json` writes it.
#[derive(Serialize)]
struct Summary {
    file: String,
    bytes: u64,
    seconds: f64,
    cpus: u64,
    events: u64,
    /// Events for which the buffers had no room.
    lost: u64,
    gaps: Gaps,
    threads: usize,
    switches: u64,
    recorder: Cost,
    processes: Vec<Process>,
}

/// Gaps in the trace.
#[derive(Serialize)]
struct Gaps {
    lost_places: u64,
    unseen_switches: u64,
    unexplained_states: u64,
    unattributed_ms: f64,
}

/// The CPU time that recording took, in percent of one CPU.
#[derive(Serialize)]
struct Cost {
    pid: u32,
    user_space_percent: f64,
    /// CPU time of the BPF programs, on all CPUs together.
    kernel_percent: f64,
}

#[derive(Serialize)]
struct Process {
    pid: u32,
    name: String,
    threads: u64,
    cpu_percent: f64,
    switches: u64,
    preemptions: u64,
    migrations: u64,
    wakeups: u64,
    run_delay: Delay,
}

#[derive(Serialize)]
struct Delay {
    count: u64,
    sum_ms: f64,
    mean_us: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
}

/// Records, and prints the summary.
///
/// # Errors
/// Where the trace cannot be written or read, BPF cannot load, or the command cannot be run.
pub fn record(args: &Record) -> anyhow::Result<ExitCode> {
    writable(&args.out)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }

    let recorder = Recorder::start(args.buffer << 10)?;
    // Beside the trace's place, so that a rename puts it there; it stays for the user if this ends early.
    let folder = match args.out.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut prefix = args.out.file_name().unwrap_or_default().to_os_string();
    prefix.push(".");
    let partial = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".partial")
        .permissions(Permissions::from_mode(0o666)) // less the umask, as any file
        .tempfile_in(folder)
        .map_err(|e| InputError(format!("{}: cannot be written: {e}", folder.display())))?;

    let (began, before) = (Instant::now(), cpu_time()?);
    let recorded = run(args, recorder, partial.as_file(), &stop);
    let (totals, status) = match recorded {
        Ok(recorded) => recorded,
        // The recording did not begin.
        Err(error) if super::is_users(&error) => return Err(error),
        Err(error) => {
            let place = partial.into_temp_path().keep()?;
            let place = place.display();
            return Err(error.context(format!("the recording ended early; it is in {place}")));
        }
    };
    let (seconds, after) = (began.elapsed().as_secs_f64(), cpu_time()?);
    partial
        .persist(&args.out)
        .with_context(|| args.out.display().to_string())?;

    let mut analyser = Analyser::default();
    for event in Reader::open(&args.out)? {
        analyser.add(&event?);
    }
    let analysis = analyser.finish(Some(totals.end_ns));
    let percent = |time: Duration| time.as_secs_f64() / seconds * 100.0;
    let cost = Cost {
        pid: std::process::id(),
        user_space_percent: percent(after.saturating_sub(before)),
        kernel_percent: percent(Duration::from_nanos(totals.kernel_ns)),
    };
    let summary = summary(&args.out, &analysis, &totals, cost)?;
    let mut out = io::stdout().lock();
    if args.json {
        let json = serde_json::to_string_pretty(&summary)?;
        writeln!(out, "{}", shown_json(&json))?;
    } else {
        write!(out, "{}", text(&summary))?;
    }
    Ok(exit_code(status))
}

/// Records until it is time to end; gives the command's exit status too, if there is one and it ended by
/// itself.
fn run(
    args: &Record,
    mut recorder: Recorder,
    file: &fs::File,
    stop: &AtomicBool,
) -> anyhow::Result<(Totals, Option<ExitStatus>)> {
    let mut writer = Writer::new(file, &recorder.system()?)?;
    let mut command = Running::start(&args.command)?;
    // On stderr, as stdout is for the summary; a closed stderr is no reason to end.
    let _ = writeln!(io::stderr(), "{}", begun(args));
    // After the command's start, as the command would inherit the priority.
    hurry();
    let began = Instant::now();
    let limit = args.seconds.map(Duration::from_secs_f64);
    let mut status = None;
    while status.is_none() && !stop.load(Ordering::Relaxed) {
        let left = limit.map_or(POLL, |limit| limit.saturating_sub(began.elapsed()));
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(POLL));
        recorder.poll(|event| writer.write(event))?;
        writer.flush()?;
        status = command.ended()?;
    }
    let totals = recorder.finish(|event| writer.write(event))?;
    writer.finish()?;
    Ok((totals, status))
}

/// The message that the recording has begun, and how to end it.
fn begun(args: &Record) -> String {
    let seconds = args.seconds.map(|seconds| format!("for {seconds} s"));
    let command = args.command.first().map(|program| {
        let program = program.to_string_lossy();
        format!("while `{}` runs", shown(&program))
    });
    let how_long = match (command, seconds) {
        (Some(command), Some(seconds)) => format!(" {command}, {seconds} at most"),
        (Some(how), None) | (None, Some(how)) => format!(" {how}"),
        (None, None) => String::new(),
    };
    let out = args.out.to_string_lossy();
    format!("Recording into {}{how_long}; Ctrl-C ends it.", shown(&out))
}

/// The command that runs meanwhile; it does not outlive the recording.
struct Running(Option<Child>);

impl Running {
    fn start(command: &[OsString]) -> anyhow::Result<Running> {
        let Some((program, arguments)) = command.split_first() else {
            return Ok(Running(None));
        };
        let child = Command::new(program).args(arguments).spawn().map_err(|e| {
            let program = Path::new(program).display();
            InputError(format!("{program}: cannot be run: {e}"))
        })?;
        Ok(Running(Some(child)))
    }

    fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        match &mut self.0 {
            Some(child) => child.try_wait(),
            None => Ok(None),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(child) = &mut self.0 else { return };
        let asked = Instant::now();
        if matches!(child.try_wait(), Ok(None)) {
            // The child has not been waited for, so the id is still its own.
            let _ = kill(UnixPid::from_raw(child.id() as i32), Signal::SIGTERM);
        }
        while matches!(child.try_wait(), Ok(None)) && asked.elapsed() < GRACE {
            std::thread::sleep(POLL);
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn exit_code(status: Option<ExitStatus>) -> ExitCode {
    let Some(status) = status else {
        return ExitCode::SUCCESS;
    };
    // As shells do: 128 plus the signal's number.
    let code = status.code().or(status.signal().map(|s| 128 + s));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// CPU time of this process.
fn cpu_time() -> anyhow::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let time = |time: TimeVal| {
        Duration::new(time.tv_sec().try_into().unwrap_or(0), 0)
            + Duration::from_micros(time.tv_usec().try_into().unwrap_or(0))
    };
    Ok(time(usage.user_time()) + time(usage.system_time()))
}

fn summary(
    file: &Path,
    analysis: &Analysis,
    totals: &Totals,
    recorder: Cost,
) -> anyhow::Result<Summary> {
    let span_ns = analysis.window.end - analysis.window.start;
    let own = recorder.pid;
    let mut processes = analysis.processes(|thread| thread.pid.0 != own);
    processes.sort_by_key(|process| std::cmp::Reverse(process.run_ns));
    let gaps = analysis.gaps;
    Ok(Summary {
        file: file.display().to_string(),
        bytes: fs::metadata(file)?.len(),
        seconds: span_ns as f64 / 1e9,
        cpus: analysis.cpus,
        events: totals.events,
        lost: totals.lost,
        gaps: Gaps {
            lost_places: gaps.lost,
            unseen_switches: gaps.switches,
            unexplained_states: gaps.states,
            unattributed_ms: gaps.unattributed_ns as f64 / 1e6,
        },
        threads: analysis.threads.len(),
        switches: analysis.threads.iter().map(|t| t.switches).sum(),
        recorder,
        processes: processes.iter().map(|p| process(p, span_ns)).collect(),
    })
}

fn process(stats: &ProcessStats, span_ns: u64) -> Process {
    Process {
        pid: stats.pid.0,
        name: stats.name.to_string(),
        threads: stats.threads,
        cpu_percent: stats.run_ns as f64 / span_ns.max(1) as f64 * 100.0,
        switches: stats.switches,
        preemptions: stats.preemptions,
        migrations: stats.migrations,
        wakeups: stats.wakeups,
        run_delay: delay(&stats.delays),
    }
}

fn delay(delays: &Delays) -> Delay {
    let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
    Delay {
        count: delays.count(),
        sum_ms: delays.sum_ns() as f64 / 1e6,
        mean_us: us(delays.mean_ns()),
        p50_us: us(delays.quantile_ns(0.5)),
        p99_us: us(delays.quantile_ns(0.99)),
        max_us: us(delays.max_ns()),
    }
}

fn text(summary: &Summary) -> String {
    let mut text = format!(
        "{}: {:.1} s of {} CPUs, {} events in {}; it opens at https://ui.perfetto.dev\n\
         {} threads, {} switches. The processes with the most CPU time, and how long their threads were ready without a CPU:\n",
        shown(&summary.file),
        summary.seconds,
        summary.cpus,
        summary.events,
        table::bytes(summary.bytes),
        summary.threads,
        summary.switches,
    );
    let headings = [
        "PROCESS",
        "PID",
        "THREADS",
        "CPU",
        "SWITCHES",
        "PREEMPTED",
        "MIGRATED",
        "WAITS",
        "MEAN",
        "P99",
        "MAX",
    ];
    let mut rows = table::new(headings, 1);
    let ran = summary.processes.iter().filter(|p| p.cpu_percent > 0.0);
    for process in ran.take(SHOWN) {
        let delay = &process.run_delay;
        let time = |us| table::or_dash(us, table::micros);
        rows.add_row([
            shown(&process.name).into_owned(),
            process.pid.to_string(),
            process.threads.to_string(),
            format!("{:.1} %", process.cpu_percent),
            process.switches.to_string(),
            process.preemptions.to_string(),
            process.migrations.to_string(),
            delay.count.to_string(),
            time(delay.mean_us),
            time(delay.p99_us),
            time(delay.max_us),
        ]);
    }
    text.push_str(&format!("{rows}\n"));
    let (gaps, cost) = (&summary.gaps, &summary.recorder);
    text.push_str(&format!(
        "Recording took {:.1} % of one CPU in this process and about {:.1} % in the kernel. Events lost: {}.\n",
        cost.user_space_percent, cost.kernel_percent, summary.lost
    ));
    if summary.lost > 0 {
        text.push_str("More fit into a larger --buffer.\n");
    }
    if gaps.unseen_switches + gaps.unexplained_states > 0 {
        text.push_str(&format!(
            "The kernel did not tell of {} switches; {} times a thread did what nothing told explains. \
             {:.1} ms of CPU time belong to no thread for that.\n",
            gaps.unseen_switches, gaps.unexplained_states, gaps.unattributed_ms
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command as Subcommand};
    use clap::Parser;

    #[test]
    fn it_says_that_it_records_and_how_to_end_it() {
        let said = |args: &[&str]| {
            let cli = Cli::parse_from([&["quell", "record", "-o", "t"], args].concat());
            match cli.command {
                Subcommand::Record(args) => begun(&args),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(said(&[]), "Recording into t; Ctrl-C ends it.");
        assert_eq!(
            said(&["--seconds", "10"]),
            "Recording into t for 10 s; Ctrl-C ends it."
        );
        assert_eq!(
            said(&["--seconds", "2.5", "--", "make", "-j8"]),
            "Recording into t while `make` runs, for 2.5 s at most; Ctrl-C ends it."
        );
    }

    #[test]
    fn names_of_threads_are_shown_and_not_obeyed() {
        let none = Delay {
            count: 0,
            sum_ms: 0.0,
            mean_us: None,
            p50_us: None,
            p99_us: None,
            max_us: None,
        };
        let process = Process {
            pid: 7,
            name: "\x1b[2J\x07\nx\u{9b}2J".to_string(),
            threads: 1,
            cpu_percent: 5.0,
            switches: 1,
            preemptions: 0,
            migrations: 0,
            wakeups: 0,
            run_delay: none,
        };
        let summary = Summary {
            file: "t".to_string(),
            bytes: 1,
            seconds: 1.0,
            cpus: 1,
            events: 1,
            lost: 0,
            gaps: Gaps {
                lost_places: 0,
                unseen_switches: 0,
                unexplained_states: 0,
                unattributed_ms: 0.0,
            },
            threads: 1,
            switches: 1,
            recorder: Cost {
                pid: 8,
                user_space_percent: 0.0,
                kernel_percent: 0.0,
            },
            processes: vec![process],
        };
        let text = text(&summary);
        assert!(text.contains("\\x1b[2J\\x07\\nx\\x9b2J"), "{text}");
        assert_eq!(shown(&text.replace('\n', "")), text.replace('\n', ""));
    }
}
