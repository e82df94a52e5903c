//! The machine that a guest runs on: QEMU's arguments for it, and QEMU's process.

use crate::error::LabError;
use crate::kernel::Kernel;
use crate::options::{Boot, Clock};
use crate::qemu::Qemu;
use crate::report::{PANIC, console_tail};
use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use nix::unistd::Pid;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How often a guest's process and output are looked at.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// How long QEMU may take to end after a request to end.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// The guest's ports, in the order of `lab/init`'s description.
const PORTS: [&str; 4] = ["status", "stdout", "stderr", "files"];

/// The timer that bounds the CPUs' turns. A thread that one CPU wakes on another runs 0.2 ms later at most;
/// without this timer it was up to 1 ms (seen on Linux 7.2). Shorter turns take longer to emulate.
const TURNS: &str = "filter-buffer,id=turns-timer,netdev=turns,interval=200";

/// How the guest's instructions are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accelerator {
    Counting,
    Emulated,
    Kvm,
}

impl Accelerator {
    pub(crate) fn of(options: &Boot) -> Accelerator {
        match (options.clock, options.kvm) {
            (Clock::Virtual, _) => Accelerator::Counting,
            (Clock::Real, true) => Accelerator::Kvm,
            (Clock::Real, false) => Accelerator::Emulated,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Counting | Accelerator::Emulated => "tcg",
        }
    }
}

/// QEMU's arguments for a machine without devices, kernel or files.
pub(crate) fn machine(options: &Boot) -> Vec<String> {
    let mut words: Vec<&str> = Vec::new();
    match Accelerator::of(options) {
        Accelerator::Counting => {
            words.extend(["-accel", "tcg,thread=single"]);
            words.extend(["-icount", "shift=0,sleep=off"]);
            // CPUs take turns, each for its part of the time until the next timer is due, and a CPU sees
            // another's wakeup only at its next turn. A filter of a network without peers has a timer of
            // this period, in microseconds, that is no part of the guest.
            words.extend(["-netdev", "hubport,id=turns,hubid=0", "-object", TURNS]);
            words.extend(["-rtc", "base=2026-01-01,clock=vm"]);
            // Fast string instructions are the slowest here: each of their steps counts as an instruction,
            // and leaves the emulator's fast path.
            words.extend(["-cpu", "max,-rdrand,-rdseed,-erms,-fsrm,-fsrs"]);
        }
        Accelerator::Emulated => {
            words.extend(["-accel", "tcg,thread=multi", "-cpu", "max"]);
        }
        Accelerator::Kvm => {
            words.extend(["-accel", "kvm", "-cpu", "host"]);
        }
    }
    words.extend(["-nodefaults", "-no-user-config", "-no-reboot"]);
    words.extend(["-display", "none"]);
    let Boot {
        cpus,
        sockets,
        smt,
        memory_mib,
        seed,
        ..
    } = options;
    let cores = cpus / (sockets * smt).max(1);
    let mut words: Vec<String> = words.into_iter().map(str::to_string).collect();
    words.extend([
        "-seed".to_string(),
        seed.to_string(),
        "-smp".to_string(),
        format!("{cpus},sockets={sockets},cores={cores},threads={smt}"),
        "-m".to_string(),
        format!("{memory_mib}M"),
    ]);
    words
}

/// The kernel's command line.
pub(crate) fn command_line(options: &Boot, kernel: &Kernel) -> String {
    // On the real clock the console shows how far a guest came that hangs.
    let console = match options.clock {
        Clock::Virtual => "quiet",
        Clock::Real => "earlyprintk=ttyS0",
    };
    // Busy waits and self-tests at boot are slow in emulation, and these CPUs and timers need none.
    let mut words = format!(
        "console=ttyS0 {console} panic=-1 mitigations=off cpu_init_udelay=0 no_timer_check cryptomgr.notests"
    );
    if Accelerator::of(options) == Accelerator::Counting {
        // Nothing is random but the seed: the kernel mixes all of this line into its pool.
        words.push_str(" random.trust_cpu=off nokaslr tsc=reliable");
        // The kernel would take this model's plain `rep stos` for fast, and fill pages with it.
        words.push_str(" clearcpuid=rep_good");
        // Without `lpj` each CPU but the first calibrates its delay loop, which consists of pauses; they
        // leave the emulator's fast path too. One instruction takes 1 ns.
        if let Some(hz) = kernel.ticks_per_s() {
            words.push_str(&format!(" lpj={}", 1_000_000_000 / hz));
        }
        words.push_str(" quell.seed=");
        words.push_str(&options.seed.to_string());
    }
    if !options.append.is_empty() {
        words.push(' ');
        words.push_str(&options.append);
    }
    words
}

/// QEMU's arguments for the guest's console and ports, each written to a file of this folder.
pub(crate) fn channels(folder: &Path) -> Vec<String> {
    let mut words = chardev("console", &folder.join("console"));
    // QEMU would handle notifications by eventfd in another thread, some time later.
    for word in [
        "-serial",
        "chardev:console",
        "-device",
        "virtio-serial-pci,ioeventfd=off",
    ] {
        words.push(word.to_string());
    }
    for port in PORTS {
        words.extend(chardev(port, &folder.join(port)));
        words.push("-device".to_string());
        words.push(format!("virtserialport,chardev={port},name=lab.{port}"));
    }
    words
}

fn chardev(id: &str, file: &Path) -> Vec<String> {
    // A comma in a value is written twice.
    let path = file.display().to_string().replace(',', ",,");
    vec!["-chardev".to_string(), format!("file,id={id},path={path}")]
}

/// Adds the kernel, its initial file system and its command line to QEMU's arguments.
pub(crate) fn kernel(command: &mut Command, kernel: &Kernel, archive: &Path, line: &str) {
    command.arg("-kernel").arg(&kernel.image);
    command.arg("-initrd").arg(archive);
    command.arg("-append").arg(line);
}

/// The command that starts QEMU, with its threads in order where instructions are counted; still without
/// arguments.
pub(crate) fn command(qemu: &Qemu, accelerator: Accelerator) -> Command {
    let mut command = qemu.command();
    if accelerator == Accelerator::Counting {
        let places = places();
        // SAFETY: `keep_order` makes system calls only, which are async-signal-safe.
        unsafe {
            command.pre_exec(move || keep_order(&places));
        }
    }
    command
}

/// The CPUs of this machine that a guest may have, each with a socket's name that one guest at a time can
/// take.
fn places() -> Vec<(usize, UnixAddr)> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count())
        .filter(|cpu| allowed.is_set(*cpu).unwrap_or(false))
        .filter_map(|cpu| {
            let name = format!("quell-lab-cpu-{cpu}");
            Some((cpu, UnixAddr::new_abstract(name.as_bytes()).ok()?))
        })
        .collect()
}

/// Makes the order in which QEMU's two threads take their steps independent of this machine; for a process
/// about to become QEMU.
///
/// The first thread emulates the CPUs. At each timer it wakes the second, which runs the timers that are due:
/// at once or some time later, between other steps of the guest (seen where there are many timers of 0.1 ms).
/// So both threads share one CPU, and the second preempts the first.
fn keep_order(places: &[(usize, UnixAddr)]) -> io::Result<()> {
    // The kernel starts a process on the least busy CPU, and does not know of other guests that are about to
    // start there. So a guest takes the name of its CPU until QEMU ends.
    let here = sched_getcpu()?;
    let from = places.iter().position(|(cpu, _)| *cpu == here);
    let (before, after) = places.split_at(from.unwrap_or(0));
    let taken = socket(
        AddressFamily::Unix,
        SockType::Datagram,
        SockFlag::empty(),
        None,
    )?;
    let free = after
        .iter()
        .chain(before)
        .find(|(_, name)| bind(taken.as_raw_fd(), name).is_ok());
    let _ = taken.into_raw_fd();
    let mut cpus = CpuSet::new();
    cpus.set(free.map_or(here, |(cpu, _)| *cpu))?;
    sched_setaffinity(Pid::from_raw(0), &cpus)?;
    let first = libc::sched_param { sched_priority: 1 };
    // Threads that QEMU starts are of the ordinary class again. Not every user may set real-time priority:
    // without it the order may change where the machine has other work for this CPU, see
    // `Guest::keeps_order`. SAFETY: `first` outlives the call, which only reads it.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &first) };
    Ok(())
}

/// A folder for one run, removed afterwards.
pub(crate) fn run_folder() -> Result<TempDir, LabError> {
    TempDir::with_prefix("quell-lab-").map_err(LabError::io(&std::env::temp_dir()))
}

/// Whether a kernel really boots under KVM here: QEMU may abort although the device is there and opens. A
/// kernel that boots finds no root file system and panics, and QEMU ends in order.
pub(crate) fn kvm_runs(qemu: &Qemu, kernel: &Kernel) -> Result<bool, LabError> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if device.is_err() {
        return Ok(false);
    }
    let folder = run_folder()?;
    let console = folder.path().join("console");
    let mut command = qemu.command();
    command.args(["-accel", "kvm", "-cpu", "host", "-m", "512M"]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
    command
        .args(["-display", "none"])
        .arg("-kernel")
        .arg(&kernel.image);
    command.args(["-append", "console=ttyS0 panic=-1"]);
    command.args(chardev("console", &console));
    command.args(["-serial", "chardev:console"]);
    let mut guest = Guest::spawn(command, folder.path())?;
    // Hardware needs a second or two for this boot; a KVM that needs longer is not worth using.
    guest.wait(Duration::from_secs(10))?;
    Ok(console_tail(&console).contains(PANIC))
}

/// QEMU's process; dropping it ends the process.
pub(crate) struct Guest {
    child: Child,
}

impl Guest {
    /// Starts QEMU; its own messages go to the folder's file `qemu`.
    pub(crate) fn spawn(mut command: Command, folder: &Path) -> Result<Guest, LabError> {
        let errors = folder.join("qemu");
        let errors = File::create(&errors).map_err(LabError::io(&errors))?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors);
        // Ctrl-C in the terminal reaches this program only, which then ends the guest.
        command.process_group(0);
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                // However this program ends, no guest stays behind.
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from)
            });
        }
        let program = PathBuf::from(command.get_program());
        let child = command.spawn().map_err(LabError::io(&program))?;
        Ok(Guest { child })
    }

    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, LabError> {
        self.child
            .try_wait()
            .map_err(LabError::io(Path::new("QEMU")))
    }

    /// Whether QEMU's threads take their steps in order, see [`keep_order`]; `false` where this user may not
    /// set real-time priority.
    pub(crate) fn keeps_order(&self) -> bool {
        let pid = i32::try_from(self.child.id()).unwrap_or(-1);
        // SAFETY: no memory is passed.
        let policy = unsafe { libc::sched_getscheduler(pid) };
        policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_FIFO
    }

    /// Why QEMU ended, if it did, with its output from the run's folder.
    pub(crate) fn trouble(&mut self, folder: &Path) -> Result<Option<LabError>, LabError> {
        let Some(status) = self.ended()? else {
            return Ok(None);
        };
        let console = console_tail(&folder.join("console"));
        if console.contains(PANIC) {
            return Ok(Some(LabError::Panicked { console }));
        }
        let said = fs::read_to_string(folder.join("qemu")).unwrap_or_default();
        let said = said.trim();
        Ok(Some(LabError::Ended {
            status: status.to_string(),
            said: if said.is_empty() {
                String::new()
            } else {
                format!("it said: {said}\n")
            },
            console,
        }))
    }

    /// Waits until QEMU ends by itself, and ends it after the limit. Gives whether QEMU ended by itself.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<bool, LabError> {
        let deadline = Instant::now() + limit;
        while self.ended()?.is_none() && Instant::now() < deadline {
            sleep(POLL);
        }
        let ended = self.ended()?.is_some();
        self.end();
        Ok(ended)
    }

    /// The reason of a failure: why QEMU ended, if it ended by itself, else the error that was seen first.
    pub(crate) fn blame(&mut self, folder: &Path, seen: LabError) -> Result<LabError, LabError> {
        let ended = self.wait(GRACE)?;
        let why = self.trouble(folder)?.filter(|_| ended);
        Ok(why.unwrap_or(seen))
    }

    fn end(&mut self) {
        let still = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        if !still(&mut self.child) {
            return;
        }
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // The child has not been waited for, so the number is still its own.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let deadline = Instant::now() + GRACE;
        while still(&mut self.child) && Instant::now() < deadline {
            sleep(POLL);
        }
        if still(&mut self.child) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.end();
    }
}
