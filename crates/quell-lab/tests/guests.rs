//! Real guests. Where the lab has not been set up (`quell lab setup`, `./dev test` does it), these tests are
//! skipped: they never download by themselves.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use quell_lab::{
    Boot, Clock, Image, Kernel, KernelChoice, Lab, LabError, Qemu, Quiet, Stream, boot,
};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

struct Guests {
    lab: Lab,
    qemu: Qemu,
    kernel: Kernel,
}

fn guests() -> Option<Guests> {
    let lab = match Lab::open() {
        Ok(lab) => lab,
        Err(e) => {
            quell_testkit::skip!(Lab, "{e}");
            return None;
        }
    };
    let kernel = KernelChoice::SCHED_EXT;
    if !lab.is_ready(&kernel).unwrap() {
        quell_testkit::skip!(
            Lab,
            "the lab is not set up here (`quell lab setup --kernel sched_ext`)"
        );
        return None;
    }
    Some(Guests {
        qemu: lab.qemu(&Quiet).unwrap(),
        kernel: lab.kernel(&kernel, &Quiet).unwrap(),
        lab,
    })
}

impl Guests {
    /// Runs a shell script; gives its exit code, its standard output and its standard error.
    fn run(
        &self,
        script: &str,
        options: &Boot,
        out: Option<&Path>,
    ) -> Result<(i32, String, String), LabError> {
        let mut image = Image::new(&self.kernel, &self.lab.busybox(&Quiet)?)?;
        image.command(&["sh".into(), "-c".into(), script.into()]);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let finished = boot(
            &self.qemu,
            &self.kernel,
            &image,
            options,
            out,
            &AtomicBool::new(false),
            |stream, bytes| match stream {
                Stream::Stdout => stdout.extend_from_slice(bytes),
                Stream::Stderr => stderr.extend_from_slice(bytes),
            },
        )?;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ok((finished.exit_code, text(stdout), text(stderr)))
    }
}

/// A script that shows any difference in timing: threads that wake each other on several CPUs, the kernel's
/// log with its clock in microseconds, and the scheduler's own counters in nanoseconds.
const SENSITIVE: &str = "
    for worker in 1 2 3 4; do
        (for turn in $(seq 30); do echo $turn | cat | wc -c >/dev/null; done; sleep 0.0$worker) &
    done
    wait
    dmesg
    cat /proc/interrupts /proc/schedstat
    for process in /proc/[0-9]*; do cat $process/schedstat; done
    head -c 16 /dev/urandom | sha256sum
    cat /proc/uptime
    date
";

#[test]
fn the_same_image_gives_the_same_output_to_the_byte() {
    let Some(guests) = guests() else { return };
    let snapshots = tempfile::tempdir().unwrap();
    let options = Boot {
        cpus: 2,
        memory_mib: 512,
        snapshots: Some(snapshots.path().to_path_buf()),
        ..Boot::default()
    };
    let kept = || std::fs::read_dir(snapshots.path()).unwrap().count();
    let first = guests.run(SENSITIVE, &options, None).unwrap();
    assert_eq!((first.0, first.2.as_str()), (0, ""), "{}", first.1);
    assert!(first.1.contains("Linux version"), "{}", first.1);
    assert!(first.1.contains("UTC 2026"), "{}", first.1);
    // The second run goes on from the first run's snapshot.
    assert_eq!(kept(), 1);
    let second = guests.run(SENSITIVE, &options, None).unwrap();
    assert_eq!(kept(), 1);
    let differing = first.1.lines().zip(second.1.lines()).find(|(a, b)| a != b);
    assert!(first == second, "first difference: {differing:?}");
    // The comparison can fail: with another seed the output differs.
    let seed = Boot { seed: 7, ..options };
    let other = guests.run(SENSITIVE, &seed, None).unwrap().1;
    let random = |text: &str| {
        text.lines()
            .find(|line| line.ends_with("  -"))
            .map(str::to_string)
    };
    assert!(random(&first.1).is_some() && random(&first.1) != random(&other));
}

#[test]
fn a_command_gives_its_exit_code_its_streams_and_its_files() {
    let Some(guests) = guests() else { return };
    let options = Boot {
        cpus: 1,
        memory_mib: 512,
        ..Boot::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let script = "echo out; echo err >&2; mkdir $OUT/a; seq 50000 >$OUT/a/numbers; exit 7";
    let (code, stdout, stderr) = guests.run(script, &options, Some(folder.path())).unwrap();
    assert_eq!(
        (code, stdout.as_str(), stderr.as_str()),
        (7, "out\n", "err\n")
    );
    let numbers = std::fs::read_to_string(folder.path().join("a/numbers")).unwrap();
    assert_eq!(numbers.lines().count(), 50_000);
    assert!(numbers.ends_with("\n50000\n"));
}

#[test]
fn the_real_clock_works_too() {
    let Some(guests) = guests() else { return };
    let kvm = guests.lab.kvm_runs(&guests.qemu, &guests.kernel).unwrap();
    let options = Boot {
        cpus: 2,
        memory_mib: 512,
        clock: Clock::Real,
        kvm,
        ..Boot::default()
    };
    let (code, stdout, _) = guests.run("nproc; date +%Y", &options, None).unwrap();
    let year: u32 = stdout.lines().nth(1).unwrap().parse().unwrap();
    assert_eq!((code, stdout.lines().next()), (0, Some("2")));
    assert!(year >= 2025, "{year}");
}

#[test]
fn a_guest_that_panics_or_hangs_is_told_apart_and_shown() {
    let Some(guests) = guests() else { return };
    let snapshots = tempfile::tempdir().unwrap();
    let options = Boot {
        cpus: 1,
        memory_mib: 512,
        snapshots: Some(snapshots.path().to_path_buf()),
        ..Boot::default()
    };
    let panics = guests.run("echo c >/proc/sysrq-trigger", &options, None);
    let Err(LabError::Panicked { console }) = panics else {
        panic!("{panics:?}")
    };
    assert!(console.contains("sysrq"), "{console}");

    let brief = Boot {
        limit: Duration::from_secs(1),
        ..options.clone()
    };
    let hangs = guests.run("while :; do :; done", &brief, None);
    assert!(matches!(hangs, Err(LabError::TimedOut { .. })), "{hangs:?}");

    let early = guests.run("poweroff -f", &options, None);
    assert!(matches!(early, Err(LabError::Ended { .. })), "{early:?}");

    let brief = Boot {
        boot_limit: Duration::from_millis(500),
        snapshots: None,
        ..options
    };
    let slow = guests.run("true", &brief, None);
    assert!(matches!(slow, Err(LabError::NotBooted { .. })), "{slow:?}");
}

#[test]
fn an_emulated_guest_that_hangs_before_its_first_process_is_started_again() {
    let Some(guests) = guests() else { return };
    let options = Boot {
        cpus: 2,
        clock: Clock::Real,
        // The kernel waits for a root file system that never comes.
        append: "rdinit=/none root=/dev/none rootwait".into(),
        boot_limit: Duration::from_secs(10),
        ..Boot::default()
    };
    let hangs = guests.run("true", &options, None);
    assert!(
        matches!(hangs, Err(LabError::NotBooted { starts: 3, .. })),
        "{hangs:?}"
    );
}
