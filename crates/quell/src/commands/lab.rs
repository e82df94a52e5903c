//! `quell lab`: commands under other kernels.

use super::InputError;
use super::bench::this_program;
use crate::cli::{Guest, Lab as LabCommand, LabClock, LabRun};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quell_bench::run::interrupt_flag;
use quell_lab::{Boot, Clock, Image, Kernel, KernelChoice, Lab, Peer, Progress, Qemu, Stream};
use quell_scenario::HostSpec;
use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Executes one of the lab's commands; a guest's command gives its own exit code.
///
/// # Errors
/// Where the user's arguments are wrong, a package cannot be fetched, or a guest did not get to its command's
/// end.
pub fn lab(command: &LabCommand) -> anyhow::Result<ExitCode> {
    match command {
        LabCommand::Setup {
            kernel,
            peers,
            system,
        } => setup(kernel, peers.as_deref(), *system).map(|()| ExitCode::SUCCESS),
        LabCommand::Run(run) => run_command(run, None),
        LabCommand::Host(host) => run_command(&host.run, Some(&host.packages)),
        LabCommand::Shell { guest } => shell(guest).map(|()| ExitCode::SUCCESS),
    }
}

fn setup(kernels: &[String], peers: Option<&[String]>, system: bool) -> anyhow::Result<()> {
    let peers = match peers {
        None => Vec::new(),
        Some([]) => quell_lab::PEERS.to_vec(),
        Some(names) => names
            .iter()
            .map(|name| peer_name(name))
            .collect::<Result<_, _>>()?,
    };
    let mut choices = Vec::new();
    for name in kernels {
        choices.push(name.parse::<KernelChoice>()?);
    }
    if choices.is_empty() {
        choices = KernelChoice::all();
    }
    let lab = Lab::open()?;
    let progress = Bar::new();
    let qemu = lab.fetch_qemu(&progress)?;
    lab.busybox(&progress)?;
    let mut fetched = Vec::new();
    for choice in &choices {
        fetched.push(lab.fetch_kernel(choice, &progress)?);
    }
    let peers = lab.fetch_peers(&peers, &progress)?;
    let system = system.then(|| lab.system(&[], &progress)).transpose()?;
    progress.finish();
    let mut out = io::stdout();
    writeln!(out, "QEMU {}: {}", qemu.version, qemu.program.display())?;
    for kernel in fetched {
        let sched_ext = match kernel.require_sched_ext() {
            Ok(()) => "with sched_ext",
            Err(_) => "without sched_ext",
        };
        writeln!(
            out,
            "Linux {} ({sched_ext}): {}",
            kernel.release,
            kernel.image.display()
        )?;
    }
    if let Some(system) = system {
        writeln!(out, "Debian system: {}", system.display())?;
    }
    for peer in peers {
        writeln!(
            out,
            "{} {}: {}",
            peer.name,
            peer.version,
            peer.program.display()
        )?;
    }
    Ok(())
}

/// A published scheduler by its name, with or without `scx_`.
fn peer_name(name: &str) -> Result<&'static str, InputError> {
    let known = quell_lab::PEERS;
    let found = known
        .into_iter()
        .find(|peer| *peer == name || peer.strip_prefix("scx_") == Some(name));
    found.ok_or_else(|| {
        InputError(format!(
            "`--peers`: `{name}` is no scheduler the lab knows; there are: {}",
            known.join(", ")
        ))
    })
}

/// Runs a command in a guest; with packages, in a Debian system that has them.
fn run_command(run: &LabRun, packages: Option<&[String]>) -> anyhow::Result<ExitCode> {
    let mut prepared = prepare_with(&run.guest, LabClock::Virtual, None, packages)?;
    prepared.image.command(&run.command);
    prepared.boot.seed = run.seed;
    prepared.boot.limit = Duration::from_secs(run.limit);
    prepared.boot.limits_silence = false;
    let interrupt = interrupt_flag()?;
    let Prepared {
        qemu,
        kernel,
        image,
        boot,
        ..
    } = prepared;
    let out = run.out.as_deref();
    let finished = quell_lab::boot(&qemu, &kernel, &image, &boot, out, &interrupt, pass_on)?;
    Ok(ExitCode::from(
        u8::try_from(finished.exit_code).unwrap_or(1),
    ))
}

fn shell(guest: &Guest) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        let message = "a shell needs a terminal; `quell lab run -- CMD` does not".to_string();
        return Err(InputError(message).into());
    }
    let mut prepared = prepare(guest, LabClock::Real, None)?;
    prepared.image.command(&[]);
    let Prepared {
        qemu,
        kernel,
        image,
        boot,
        ..
    } = prepared;
    quell_lab::boot::shell(&qemu, &kernel, &image, &boot)?;
    Ok(())
}

/// A guest that lacks only its command.
pub struct Prepared {
    /// The emulator.
    pub qemu: Qemu,
    /// The guest's kernel.
    pub kernel: Kernel,
    /// The guest's files.
    pub image: Image,
    /// The guest's machine.
    pub boot: Boot,
    /// Published schedulers that the guest has.
    pub peers: Vec<Peer>,
    lab: Lab,
}

/// Puts published schedulers into the guest, on its path.
///
/// # Errors
/// Where a scheduler cannot be built, or its files cannot be read.
pub fn add_peers(prepared: &mut Prepared, names: &[&str]) -> anyhow::Result<()> {
    let progress = Bar::new();
    prepared.peers = prepared.lab.peers(names, &progress)?;
    progress.finish();
    for peer in &prepared.peers {
        let place = Path::new("/usr/bin").join(peer.name);
        prepared.image.program(&peer.program, &place)?;
    }
    Ok(())
}

/// Prepares a guest, and fetches what it lacks; `host` is the scenario's, for what the user does not specify.
///
/// # Errors
/// Where the user's arguments are wrong, a package cannot be fetched, or a file for the guest cannot be read.
pub fn prepare(
    guest: &Guest,
    clock: LabClock,
    host: Option<&HostSpec>,
) -> anyhow::Result<Prepared> {
    prepare_with(guest, clock, host, None)
}

fn prepare_with(
    guest: &Guest,
    clock: LabClock,
    host: Option<&HostSpec>,
    packages: Option<&[String]>,
) -> anyhow::Result<Prepared> {
    let (cpus, sockets, smt) = shape(guest, host)?;
    let choice: KernelChoice = guest.kernel.parse()?;
    let lab = Lab::open()?;
    let progress = Bar::new();
    let kernel = lab.kernel(&choice, &progress)?;
    let qemu = lab.qemu(&progress)?;
    let mut image = Image::new(&kernel, &lab.busybox(&progress)?)?;
    if let Some(packages) = packages {
        image.system(&lab.system(packages, &progress)?, &kernel)?;
    }
    progress.finish();
    image.program(&this_program()?, Path::new("/usr/bin/quell"))?;
    for file in &guest.files {
        image.add(file)?;
    }
    let clock = clock_for(&kernel, guest.clock, clock)?;
    let boot = Boot {
        kvm: clock == Clock::Real && lab.kvm_runs(&qemu, &kernel)?,
        cpus,
        sockets,
        smt,
        memory_mib: guest.memory,
        clock,
        append: guest.append.clone(),
        snapshots: (!guest.no_snapshot).then(|| lab.snapshots()),
        ..Boot::default()
    };
    Ok(Prepared {
        qemu,
        kernel,
        image,
        boot,
        peers: Vec::new(),
        lab,
    })
}

/// The guest's CPUs, sockets and CPUs of each core.
fn shape(guest: &Guest, host: Option<&HostSpec>) -> anyhow::Result<(u32, u32, u32)> {
    let spec = host.and_then(|host| host.topology);
    let cpus = host.map(|host| host.topology().cpus.len() as u32);
    // Where the user gives a number of CPUs, the scenario's topology does not say how to spread them.
    let spec = spec.filter(|_| guest.cpus.is_none());
    let cpus = guest.cpus.or(cpus).unwrap_or(8);
    let sockets = guest.sockets.or(spec.map(|s| s.sockets)).unwrap_or(1);
    let smt = guest.smt.or(spec.map(|s| s.smt)).unwrap_or(1);
    if cpus % (sockets * smt) != 0 {
        let message = format!(
            "{cpus} CPUs cannot be spread over {sockets} sockets with {smt} CPUs a core: \
             --cpus must be a multiple of --sockets times --smt"
        );
        return Err(InputError(message).into());
    }
    Ok((cpus, sockets, smt))
}

/// The clock that the user asked for, or the usual one where the kernel runs on it.
fn clock_for(
    kernel: &Kernel,
    asked: Option<LabClock>,
    usual: LabClock,
) -> Result<Clock, InputError> {
    let runs = kernel.runs_on_virtual_clock();
    match (asked, usual) {
        (Some(LabClock::Virtual), _) if !runs => Err(InputError(format!(
            "`--clock`: Linux {} hangs on the virtual clock; `--clock real` works",
            kernel.release
        ))),
        (None, LabClock::Virtual) if !runs => {
            let _ = writeln!(
                io::stderr(),
                "quell: Linux {} hangs on the virtual clock: using the real one, figures will vary",
                kernel.release
            );
            Ok(Clock::Real)
        }
        (Some(LabClock::Virtual), _) | (None, LabClock::Virtual) => Ok(Clock::Virtual),
        _ => Ok(Clock::Real),
    }
}

/// Passes the guest's output on to our stream of the same kind.
fn pass_on(stream: Stream, bytes: &[u8]) {
    // A closed stream of ours must not end the guest, as its files still come back.
    let _ = match stream {
        Stream::Stdout => io::stdout()
            .write_all(bytes)
            .and_then(|()| io::stdout().flush()),
        Stream::Stderr => io::stderr().write_all(bytes),
    };
}

/// Progress on stderr: a bar on a terminal, plain lines elsewhere.
struct Bar {
    bar: Option<ProgressBar>,
    last: RefCell<String>,
}

impl Bar {
    fn new() -> Bar {
        let bar = io::stderr().is_terminal().then(|| {
            let target = ProgressDrawTarget::stderr_with_hz(5);
            let bar = ProgressBar::with_draw_target(Some(100), target);
            if let Ok(style) = ProgressStyle::with_template("{bar:28} {percent:>3} %  {msg}") {
                bar.set_style(style.progress_chars("━╸─"));
            }
            bar
        });
        Bar {
            bar,
            last: RefCell::default(),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Bar {
    fn step(&self, text: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_position(0);
                bar.set_message(text.to_string());
            }
            None if *self.last.borrow() != text => {
                let _ = writeln!(io::stderr(), "quell: {text}");
            }
            None => {}
        }
        self.last.replace(text.to_string());
    }

    fn percent(&self, percent: f64) {
        if let Some(bar) = &self.bar {
            // Whole percents are enough for a bar of 28 characters.
            bar.set_position(percent.clamp(0.0, 100.0) as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_bench::side::Side;

    #[test]
    fn every_scheduler_the_lab_builds_is_a_side_and_the_other_way_round() {
        let sides: Vec<&str> = Side::NAMES
            .into_iter()
            .filter(|name| name.parse::<Side>().unwrap().is_peer())
            .collect();
        assert_eq!(sides, quell_lab::PEERS);
    }

    #[test]
    fn schedulers_are_named_with_or_without_their_prefix() {
        assert_eq!(peer_name("rusty").unwrap(), "scx_rusty");
        assert_eq!(peer_name("scx_lavd").unwrap(), "scx_lavd");
        let error = peer_name("scx_nope").unwrap_err().to_string();
        assert!(error.contains("scx_bpfland, scx_rusty"), "{error}");
    }
}
