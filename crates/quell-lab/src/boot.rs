//! Boots one guest, follows its output, and brings back the files that it wrote.
//!
//! The guest reports over virtio-serial ports, and QEMU writes them into files: QEMU never waits for a
//! reader, so on the virtual clock the host's timing has no influence. `lab/init` is the other end.

use crate::error::LabError;
use crate::image::Image;
use crate::kernel::Kernel;
use crate::machine::{self, Accelerator, GRACE, Guest, POLL, run_folder};
use crate::options::Boot;
use crate::qemu::Qemu;
use crate::report::{Report, Tail, console_tail};
use crate::snapshot::Source;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often a guest of emulated CPUs is started, at most, until its kernel runs its first process. Of 12
/// boots with 3 CPUs of QEMU 10.0's multi-threaded emulation one hung for ever where Linux 7.2 had just
/// started its secondary CPUs.
const STARTS: u32 = 3;

/// What the kernel prints last before its first process runs.
const FIRST_PROCESS: &[u8] = b"as init process";

/// One of the command's two streams of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a guest's command ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// The command's exit code; 128 plus the signal's number if a signal ended the command.
    pub exit_code: i32,
    /// The guest's uptime when the command started and when it ended, in seconds of its clock.
    pub uptime_s: (f64, f64),
    /// How the guest's instructions were executed: `kvm` or `tcg`.
    pub accelerator: &'static str,
}

/// Boots a guest, runs its image's command, and copies the files that the command wrote below `$OUT` into the
/// folder `out`.
///
/// `say` is given the command's output, as it comes. Setting `interrupt` ends the guest.
///
/// # Errors
/// [`LabError::NotBooted`], [`LabError::Panicked`], [`LabError::Ended`] or [`LabError::TimedOut`] where the
/// guest did not get to its command's end; [`LabError::Interrupted`] after `interrupt` was set;
/// [`LabError::Damaged`] where the files that came back are not those that the guest sent; [`LabError::Io`]
/// where QEMU could not be started, or a file of the run not be read or written.
pub fn boot(
    qemu: &Qemu,
    kernel: &Kernel,
    image: &Image,
    options: &Boot,
    out: Option<&Path>,
    interrupt: &AtomicBool,
    mut say: impl FnMut(Stream, &[u8]),
) -> Result<Finished, LabError> {
    let accelerator = Accelerator::of(options);
    let folder = run_folder()?;
    let folder = folder.path();
    let source = Source {
        qemu,
        kernel,
        image,
        options,
        interrupt,
    };
    let kept = options.snapshots.as_ref();
    let kept = kept.filter(|_| accelerator == Accelerator::Counting && image.can_go_on());
    let resumed = kept.map(|dir| source.start(dir, folder)).transpose()?;
    let archive = folder.join("image.cpio");
    let start = || {
        let mut command = machine::command(qemu, accelerator);
        command.args(machine::machine(options));
        command.args(machine::channels(folder));
        let line = machine::command_line(options, kernel);
        machine::kernel(&mut command, kernel, &archive, &line);
        Guest::spawn(command, folder)
    };
    let (mut guest, _control) = match resumed.flatten() {
        Some((guest, control)) => (guest, Some(control)),
        None => {
            image.write(&archive)?;
            (start()?, None)
        }
    };
    if accelerator == Accelerator::Counting && !guest.keeps_order() {
        tracing::warn!(
            "without CAP_SYS_NICE what guests say may differ from run to run where they share this machine's CPUs with other work"
        );
    }
    let mut streams = [
        (Stream::Stdout, Tail::new(&folder.join("stdout"))),
        (Stream::Stderr, Tail::new(&folder.join("stderr"))),
    ];
    let mut status = Tail::new(&folder.join("status"));
    let mut report = Report::default();
    let mut deadline = Instant::now() + options.boot_limit;
    let mut starts = 1;
    let mut started = Instant::now();
    loop {
        // The guest's end is looked for before its output is read, so that its last output is not missed.
        let trouble = guest.trouble(folder)?;
        let was_ready = report.ready_s.is_some();
        report.read(&status.new_bytes()?);
        if report.ready_s.is_some() && !was_ready {
            deadline = Instant::now() + options.limit;
        }
        for (stream, tail) in &mut streams {
            let bytes = tail.new_bytes()?;
            if !bytes.is_empty() {
                if options.limits_silence && report.ready_s.is_some() {
                    deadline = Instant::now() + options.limit;
                }
                say(*stream, &bytes);
            }
        }
        if report.done {
            break;
        }
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        if interrupt.load(Ordering::Relaxed) {
            return Err(LabError::Interrupted);
        }
        if Instant::now() > deadline {
            if report.ready_s.is_some() {
                return Err(LabError::TimedOut {
                    silent: options.limits_silence,
                    seconds: options.limit.as_secs(),
                    console: console_tail(&folder.join("console")),
                });
            }
            return Err(options.not_booted(kernel, folder, starts));
        }
        let may_hang = accelerator == Accelerator::Emulated && report.ready_s.is_none();
        if may_hang
            && starts < STARTS
            && started.elapsed() > patience(options)
            && !first_process_runs(folder)
        {
            tracing::warn!(
                "the guest's kernel has run no process for {} s: it is started again",
                started.elapsed().as_secs()
            );
            // Nothing has been read yet: QEMU empties the run's files when it opens them.
            drop(guest);
            guest = start()?;
            starts += 1;
            started = Instant::now();
        }
        sleep(POLL);
    }
    guest.wait(GRACE)?;
    if let Some(out) = out {
        report.take_files(&folder.join("files"), out)?;
    }
    Ok(Finished {
        exit_code: report.exit_code,
        uptime_s: (report.ready_s.unwrap_or_default(), report.end_s),
        accelerator: accelerator.name(),
    })
}

/// How long the kernel of a guest of emulated CPUs may take to its first process before it is started again.
/// The last start has more than half of the limit.
fn patience(options: &Boot) -> Duration {
    options.boot_limit / 5
}

/// Whether the guest's kernel has come to its first process, by the run's console.
fn first_process_runs(folder: &Path) -> bool {
    let console = fs::read(folder.join("console")).unwrap_or_default();
    console
        .windows(FIRST_PROCESS.len())
        .any(|words| words == FIRST_PROCESS)
}

/// Boots a guest that has this terminal as its console; for an image without a command.
///
/// # Errors
/// [`LabError::Io`] where the image could not be written or QEMU not be started; [`LabError::Ended`] where
/// QEMU failed.
pub fn shell(qemu: &Qemu, kernel: &Kernel, image: &Image, options: &Boot) -> Result<(), LabError> {
    let folder = run_folder()?;
    let archive = folder.path().join("image.cpio");
    image.write(&archive)?;
    let mut command = machine::command(qemu, Accelerator::of(options));
    command.args(machine::machine(options));
    machine::kernel(
        &mut command,
        kernel,
        &archive,
        &machine::command_line(options, kernel),
    );
    // Ctrl-C is the guest's; Ctrl-A X ends QEMU.
    command.args(["-serial", "mon:stdio"]);
    let program = qemu.program.clone();
    let status = command.status().map_err(LabError::io(&program))?;
    if status.success() {
        return Ok(());
    }
    Err(LabError::Ended {
        status: status.to_string(),
        said: String::new(),
        console: String::new(),
    })
}
