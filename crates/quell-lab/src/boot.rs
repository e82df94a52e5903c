//! Boots one guest, follows what it says, and brings back what it wrote.
//!
//! The guest reports over virtio-serial ports that QEMU writes into files: QEMU never waits for a
//! reader, so on the virtual clock nothing of the host's timing gets in. `lab/init` is the other end.

use crate::error::LabError;
use crate::image::Image;
use crate::kernel::Kernel;
use crate::machine::{self, Accelerator, GRACE, Guest, run_folder};
use crate::qemu::Qemu;
use crate::report::{Report, Tail, console_tail};
use crate::snapshot::Source;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often the guest is looked after.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// The clock that a guest lives by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// One instruction is one nanosecond, for all CPUs together, and idle time is skipped. The same
    /// image gives the same numbers on any machine, however busy.
    Virtual,
    /// The host's time; with KVM where that works, else emulated on several threads.
    Real,
}

/// What a guest is to be.
#[derive(Debug, Clone)]
pub struct Boot {
    /// Its CPUs, a multiple of `sockets` times `smt`.
    pub cpus: u32,
    /// Sockets that they are spread over, each with a last-level cache of its own.
    pub sockets: u32,
    /// CPUs of each core.
    pub smt: u32,
    /// Its memory in MiB.
    pub memory_mib: u32,
    /// Its clock.
    pub clock: Clock,
    /// Whether the real clock may use KVM: where [`crate::Lab::kvm_runs`] says so.
    pub kvm: bool,
    /// Seed of the guest's own random numbers, and with them of its boot history; on the virtual clock.
    pub seed: u64,
    /// More words for the kernel's command line.
    pub append: String,
    /// How long it may take to reach its command, on the host's clock.
    pub boot_limit: Duration,
    /// How long its command may take, on the host's clock.
    pub limit: Duration,
    /// That time begins anew whenever the command says something: for studies, which say how far they are.
    pub limits_silence: bool,
    /// Where booted guests are kept to start from, on the virtual clock: see [`crate::Lab::snapshots`]. Without it each one boots.
    pub snapshots: Option<PathBuf>,
}

impl Default for Boot {
    /// Eight CPUs, 3 GiB, virtual clock.
    fn default() -> Boot {
        Boot {
            cpus: 8,
            sockets: 1,
            smt: 1,
            memory_mib: 3072,
            clock: Clock::Virtual,
            kvm: false,
            seed: 42,
            append: String::new(),
            boot_limit: Duration::from_secs(300),
            limit: Duration::from_secs(3600),
            limits_silence: true,
            snapshots: None,
        }
    }
}

impl Boot {
    /// It did not come as far as its command in time.
    pub(crate) fn not_booted(&self, kernel: &Kernel, folder: &Path) -> LabError {
        let hint = match (self.clock, kernel.runs_on_virtual_clock()) {
            (Clock::Virtual, false) => {
                " (kernels of the 6.1 era hang on the virtual clock: --clock real)"
            }
            _ => "",
        };
        LabError::NotBooted {
            seconds: self.boot_limit.as_secs(),
            hint,
            console: console_tail(&folder.join("console")),
        }
    }
}

/// Which of the command's two streams said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Its standard output.
    Stdout,
    /// Its standard error.
    Stderr,
}

/// How a guest's command ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Its exit code; 128 and the signal's number if a signal ended it.
    pub exit_code: i32,
    /// The guest's uptime when the command started and when it ended, in seconds of its clock.
    pub uptime_s: (f64, f64),
    /// How the guest's instructions were executed: `kvm` or `tcg`.
    pub accelerator: &'static str,
}

/// Boots a guest, runs its image's command and puts what that wrote below `$OUT` into a folder.
///
/// `say` is given what the command says, as it comes. Setting `interrupt` ends the guest.
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
    let (mut guest, _control) = match resumed.flatten() {
        Some((guest, control)) => (guest, Some(control)),
        None => {
            let archive = folder.join("image.cpio");
            image.write(&archive)?;
            let mut command = machine::command(qemu, accelerator);
            command.args(machine::machine(options));
            command.args(machine::channels(folder));
            let line = machine::command_line(options, kernel);
            machine::kernel(&mut command, kernel, &archive, &line);
            (Guest::spawn(command, folder)?, None)
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
    loop {
        // Read before looking whether it has ended: what it said last is not missed.
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
            return Err(options.not_booted(kernel, folder));
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

/// Boots a guest whose console is this terminal; for an image without a command.
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
