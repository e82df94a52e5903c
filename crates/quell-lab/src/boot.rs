//! Boots one guest, follows what it says, and brings back what it wrote.
//!
//! The guest reports over virtio-serial ports that QEMU writes into files: QEMU never waits for a
//! reader, so on the virtual clock nothing of the host's timing gets in. `lab/init` is the other end.

use crate::error::LabError;
use crate::image::Image;
use crate::kernel::Kernel;
use crate::qemu::Qemu;
use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How often the guest is looked after.
const POLL: Duration = Duration::from_millis(20);

/// How long QEMU may take to end after it was asked to.
const GRACE: Duration = Duration::from_secs(5);

/// What a kernel says when it gives up.
const PANIC: &str = "Kernel panic";

/// The guest's ports, in the order of `lab/init`'s description.
const PORTS: [&str; 4] = ["status", "stdout", "stderr", "files"];

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
        }
    }
}

impl Boot {
    fn accelerator(&self) -> Accelerator {
        match (self.clock, self.kvm) {
            (Clock::Virtual, _) => Accelerator::Counting,
            (Clock::Real, true) => Accelerator::Kvm,
            (Clock::Real, false) => Accelerator::Emulated,
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

/// How the guest's instructions are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accelerator {
    Counting,
    Emulated,
    Kvm,
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
    let accelerator = options.accelerator();
    let folder = run_folder()?;
    let archive = folder.path().join("image.cpio");
    image.write(&archive)?;
    let mut command = machine(qemu, kernel, &archive, options, accelerator);
    let console = folder.path().join("console");
    chardev(&mut command, "console", &console);
    command.args(["-serial", "chardev:console"]);
    // Notifications by eventfd would be handled by another thread, some time later.
    command.args(["-device", "virtio-serial-pci,ioeventfd=off"]);
    for port in PORTS {
        chardev(&mut command, port, &folder.path().join(port));
        command.arg("-device");
        command.arg(format!("virtserialport,chardev={port},name=lab.{port}"));
    }
    let errors = File::create(folder.path().join("qemu")).map_err(LabError::io(folder.path()))?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors);
    let mut guest = Guest::spawn(command)?;
    let mut streams = [
        (Stream::Stdout, Tail::new(&folder.path().join("stdout"))),
        (Stream::Stderr, Tail::new(&folder.path().join("stderr"))),
    ];
    let mut status = Tail::new(&folder.path().join("status"));
    let mut report = Report::default();
    let mut deadline = Instant::now() + options.boot_limit;
    let tail = || console_tail(&console);
    loop {
        // Read before looking whether it has ended: what it said last is not missed.
        let ended = guest.ended()?;
        let was_ready = report.ready_s.is_some();
        report.read(&status.new_bytes()?);
        if report.ready_s.is_some() && !was_ready {
            deadline = Instant::now() + options.limit;
        }
        for (stream, tail) in &mut streams {
            let bytes = tail.new_bytes()?;
            if !bytes.is_empty() {
                say(*stream, &bytes);
            }
        }
        if report.done {
            break;
        }
        if let Some(status) = ended {
            let console = tail();
            if console.contains(PANIC) {
                return Err(LabError::Panicked { console });
            }
            let said = fs::read_to_string(folder.path().join("qemu")).unwrap_or_default();
            let said = said.trim();
            return Err(LabError::Ended {
                status: status.to_string(),
                said: if said.is_empty() {
                    String::new()
                } else {
                    format!("it said: {said}\n")
                },
                console,
            });
        }
        if interrupt.load(Ordering::Relaxed) {
            return Err(LabError::Interrupted);
        }
        if Instant::now() > deadline {
            if report.ready_s.is_some() {
                return Err(LabError::TimedOut {
                    seconds: options.limit.as_secs(),
                    console: tail(),
                });
            }
            let hint = match (options.clock, kernel.runs_on_virtual_clock()) {
                (Clock::Virtual, false) => {
                    " (kernels of the 6.1 era hang on the virtual clock: --clock real)"
                }
                _ => "",
            };
            return Err(LabError::NotBooted {
                seconds: options.boot_limit.as_secs(),
                hint,
                console: tail(),
            });
        }
        sleep(POLL);
    }
    guest.wait(GRACE)?;
    if let Some(out) = out {
        report.take_files(&folder.path().join("files"), out)?;
    }
    Ok(Finished {
        exit_code: report.exit_code,
        uptime_s: (report.ready_s.unwrap_or_default(), report.end_s),
        accelerator: if accelerator == Accelerator::Kvm {
            "kvm"
        } else {
            "tcg"
        },
    })
}

/// Boots a guest whose console is this terminal; for an image without a command.
pub fn shell(qemu: &Qemu, kernel: &Kernel, image: &Image, options: &Boot) -> Result<(), LabError> {
    let accelerator = options.accelerator();
    let folder = run_folder()?;
    let archive = folder.path().join("image.cpio");
    image.write(&archive)?;
    let mut command = machine(qemu, kernel, &archive, options, accelerator);
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

fn run_folder() -> Result<TempDir, LabError> {
    TempDir::with_prefix("quell-lab-").map_err(LabError::io(&std::env::temp_dir()))
}

/// The QEMU command for a machine without devices.
fn machine(
    qemu: &Qemu,
    kernel: &Kernel,
    archive: &Path,
    options: &Boot,
    accelerator: Accelerator,
) -> Command {
    let mut command = qemu.command();
    match accelerator {
        Accelerator::Counting => {
            command.args(["-accel", "tcg,thread=single"]);
            command.args(["-icount", "shift=0,sleep=off"]);
            // CPUs take turns, each for its part of the time until the next timer of any is due: so late
            // they see each other's wakeups. A filter of a network that nothing is connected to
            // has a timer that is due so often, in microseconds, and no part of the guest.
            command.args(["-netdev", "hubport,id=turns,hubid=0"]);
            command.args(["-object", TURNS]);
            command.args(["-rtc", "base=2026-01-01,clock=vm"]);
            command.args(["-cpu", "max,-rdrand,-rdseed"]);
        }
        Accelerator::Emulated => {
            command.args(["-accel", "tcg,thread=multi", "-cpu", "max"]);
        }
        Accelerator::Kvm => {
            command.args(["-accel", "kvm", "-cpu", "host"]);
        }
    }
    if accelerator == Accelerator::Counting {
        let places = places();
        // SAFETY: `keep_order` makes system calls only, which are async-signal-safe.
        unsafe {
            command.pre_exec(move || keep_order(&places));
        }
    }
    command.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
    command.args(["-display", "none"]);
    command.arg("-seed").arg(options.seed.to_string());
    let Boot {
        cpus, sockets, smt, ..
    } = options;
    let cores = cpus / (sockets * smt).max(1);
    command.arg("-smp").arg(format!(
        "{cpus},sockets={sockets},cores={cores},threads={smt}"
    ));
    command.arg("-m").arg(format!("{}M", options.memory_mib));
    command.arg("-kernel").arg(&kernel.image);
    command.arg("-initrd").arg(archive);
    let mut words = String::from(
        // Waiting loops and self-tests at boot are slow in emulation: none is needed for these CPUs and timers.
        "console=ttyS0 quiet panic=-1 mitigations=off cpu_init_udelay=0 no_timer_check cryptomgr.notests",
    );
    if accelerator == Accelerator::Counting {
        // Nothing random but the seed, which the kernel mixes into its pool with all of this line.
        words.push_str(" random.trust_cpu=off nokaslr tsc=reliable quell.seed=");
        words.push_str(&options.seed.to_string());
    }
    if !options.append.is_empty() {
        words.push(' ');
        words.push_str(&options.append);
    }
    command.arg("-append").arg(words);
    command
}

/// The CPUs of this machine that a guest may have, each with a name that one guest at a time can take.
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

/// Lets QEMU's two threads take their steps in an order that does not depend on this machine; for a process about to
/// become QEMU.
///
/// One emulates the CPUs. At each timer it wakes the other, which then runs the timers that are due by then: at once or
/// some time later, between others of the guest's steps (seen where there are many timers of 0.1 ms). So both have
/// the same CPU, and the second goes before the first.
fn keep_order(places: &[(usize, UnixAddr)]) -> io::Result<()> {
    // The kernel starts a process where there is least to do. It does not know yet of other guests that are about to
    // start there, hence names, taken until QEMU ends.
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
    // The threads that it starts are as others again. Not everybody may do this: without, the order is another only
    // where the machine has other work for this CPU, and seldom then.
    // SAFETY: `first` outlives the call, which only reads it.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &first) };
    Ok(())
}

/// What one CPU wakes another runs 0.2 ms later at most, where it were up to 1 ms (seen on Linux 7.2). Shorter turns take longer to emulate.
const TURNS: &str = "filter-buffer,id=turns-timer,netdev=turns,interval=200";

fn chardev(command: &mut Command, id: &str, file: &Path) {
    // A comma in a value is written twice.
    let path = file.display().to_string().replace(',', ",,");
    command
        .arg("-chardev")
        .arg(format!("file,id={id},path={path}"));
}

/// Whether a kernel really boots under KVM here: the device may be there and open, and QEMU still
/// abort. The kernel finds no root file system, panics, and QEMU ends in order.
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
    chardev(&mut command, "console", &console);
    command.args(["-serial", "chardev:console"]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut guest = Guest::spawn(command)?;
    // Hardware needs a second or two for this; what needs longer is not worth having.
    guest.wait(Duration::from_secs(10))?;
    Ok(console_tail(&console).contains(PANIC))
}

/// QEMU's process; ended when dropped.
struct Guest {
    child: Child,
}

impl Guest {
    fn spawn(mut command: Command) -> Result<Guest, LabError> {
        // Ctrl-C in the terminal is for this program, which then ends the guest.
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

    fn ended(&mut self) -> Result<Option<std::process::ExitStatus>, LabError> {
        self.child
            .try_wait()
            .map_err(LabError::io(Path::new("QEMU")))
    }

    /// Waits until it ends by itself, and ends it after a while.
    fn wait(&mut self, limit: Duration) -> Result<(), LabError> {
        let deadline = Instant::now() + limit;
        while self.ended()?.is_none() && Instant::now() < deadline {
            sleep(POLL);
        }
        self.end();
        Ok(())
    }

    fn end(&mut self) {
        let still = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        if !still(&mut self.child) {
            return;
        }
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // It has not been waited for, so the number is still its own.
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

/// A file that another process appends to.
struct Tail {
    path: PathBuf,
    read: u64,
}

impl Tail {
    fn new(path: &Path) -> Tail {
        Tail {
            path: path.to_path_buf(),
            read: 0,
        }
    }

    fn new_bytes(&mut self) -> Result<Vec<u8>, LabError> {
        let mut bytes = Vec::new();
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            // QEMU has not come so far.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(bytes),
            Err(e) => return Err(LabError::io(&self.path)(e)),
        };
        let position = io::SeekFrom::Start(self.read);
        file.seek(position).map_err(LabError::io(&self.path))?;
        file.read_to_end(&mut bytes)
            .map_err(LabError::io(&self.path))?;
        self.read += bytes.len() as u64;
        Ok(bytes)
    }
}

/// What the guest has reported so far.
#[derive(Debug, Default, PartialEq)]
struct Report {
    ready_s: Option<f64>,
    exit_code: i32,
    end_s: f64,
    /// The size and checksum of what it wrote.
    files: Option<(u64, String)>,
    done: bool,
    /// A line that is not whole yet.
    partial: String,
}

impl Report {
    fn read(&mut self, bytes: &[u8]) {
        self.partial.push_str(&String::from_utf8_lossy(bytes));
        while let Some(end) = self.partial.find('\n') {
            let line: String = self.partial.drain(..=end).collect();
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["ready", uptime] => self.ready_s = uptime.parse().ok(),
                ["exit", code, uptime] => {
                    self.exit_code = code.parse().unwrap_or(1);
                    self.end_s = uptime.parse().unwrap_or_default();
                }
                ["files", size, sum] => {
                    self.files = size.parse().ok().map(|size| (size, sum.to_string()));
                }
                ["done"] => self.done = true,
                _ => {}
            }
        }
    }

    /// Checks and unpacks what the guest wrote.
    fn take_files(&self, archive: &Path, out: &Path) -> Result<(), LabError> {
        let Some((size, sum)) = &self.files else {
            return Ok(());
        };
        let bytes = fs::read(archive).map_err(LabError::io(archive))?;
        if bytes.len() as u64 != *size {
            let damage = format!("{} bytes instead of {size}", bytes.len());
            return Err(LabError::Damaged(damage));
        }
        let digest = Sha256::digest(&bytes);
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        if hex != *sum {
            return Err(LabError::Damaged(format!(
                "checksum {hex} instead of {sum}"
            )));
        }
        fs::create_dir_all(out).map_err(LabError::io(out))?;
        let mut archive = tar::Archive::new(&bytes[..]);
        // The guest's dates are not of this world.
        archive.set_preserve_mtime(false);
        archive.set_preserve_permissions(false);
        archive.unpack(out).map_err(LabError::io(out))
    }
}

/// The last lines of the guest's console, without what a terminal would act on; from the panic on,
/// if there was one.
fn console_tail(console: &Path) -> String {
    let bytes = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let clean: String = text
        .chars()
        .filter(|c| *c == '\n' || !c.is_control())
        .collect();
    let lines: Vec<&str> = clean.lines().filter(|line| !line.is_empty()).collect();
    let end = lines.len().saturating_sub(25);
    match lines.iter().position(|line| line.contains(PANIC)) {
        Some(panic) => {
            let start = panic.saturating_sub(10);
            lines[start..lines.len().min(start + 25)].join("\n")
        }
        None => lines[end..].join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_come_in_any_pieces() {
        let text = "ready 2.31\nexit 7 12.50\nfiles 5 abc\ndone\n";
        for cut in 0..text.len() {
            let mut report = Report::default();
            report.read(&text.as_bytes()[..cut]);
            assert!(!report.done);
            report.read(&text.as_bytes()[cut..]);
            assert!(report.done);
            assert_eq!(
                (report.ready_s, report.exit_code, report.end_s),
                (Some(2.31), 7, 12.5)
            );
            assert_eq!(report.files, Some((5, "abc".into())));
        }
    }

    #[test]
    fn files_are_taken_only_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(2);
        header.set_mode(0o644);
        builder.append_data(&mut header, "a/b", &b"hi"[..]).unwrap();
        let bytes = builder.into_inner().unwrap();
        let archive = folder.path().join("files");
        fs::write(&archive, &bytes).unwrap();
        let sum: String = Sha256::digest(&bytes)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let out = folder.path().join("out");
        let take = |size: u64, sum: &str| {
            let report = Report {
                files: Some((size, sum.into())),
                ..Report::default()
            };
            report.take_files(&archive, &out)
        };
        let size = bytes.len() as u64;
        assert!(matches!(take(size + 1, &sum), Err(LabError::Damaged(_))));
        assert!(matches!(
            take(size, &sum.replace('0', "1")),
            Err(LabError::Damaged(_))
        ));
        assert!(!out.exists());
        take(size, &sum).unwrap();
        assert_eq!(fs::read(out.join("a/b")).unwrap(), b"hi");
    }

    #[test]
    fn a_console_is_shown_without_control_codes() {
        let folder = tempfile::tempdir().unwrap();
        let console = folder.path().join("console");
        fs::write(&console, "\x1bc\x1b[?7lBooting\r\n\r\nKernel panic\r\n").unwrap();
        let tail = console_tail(&console);
        assert!(tail.ends_with("Booting\nKernel panic"), "{tail:?}");
        fs::write(
            &console,
            format!("before\nKernel panic: x\n{}", "trace\n".repeat(100)),
        )
        .unwrap();
        let tail = console_tail(&console);
        assert!(
            tail.starts_with("before\nKernel panic: x\ntrace"),
            "{tail:?}"
        );
    }
}
