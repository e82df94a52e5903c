//! KVM guests within the lab's guest, on the real clock, where emulated CPUs have their own emulated
//! virtualization (SVM).

use super::common;
use quell_lab::{Boot, Clock, Image, Kernel, KernelChoice, Lab, Quiet, Stream, boot};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The exit code of a script whose inner guest ended by itself; the script is then tried again. Under
/// emulated virtualization a guest does so now and then (twice in some forty runs, both beside other work;
/// the cause is not known, and its console says nothing).
const ENDED: i32 = 75;

/// Puts the program under test into a guest.
pub fn bring_quell(image: &mut Image) {
    let quell = Path::new(env!("CARGO_BIN_EXE_quell"));
    image.program(quell, Path::new("/usr/bin/quell")).unwrap();
}

/// Runs a script in a guest that has quell, qemu, a kernel for inner guests (`/root/vmlinuz`), KVM's modules
/// (`/root/modules`, to be loaded by the script), and the files that `bring` adds. Gives the script's output,
/// at the third try at the latest; `None` where the lab has not been set up, and the test is skipped.
pub fn run(
    cpus: u32,
    memory_mib: u32,
    limit: Duration,
    script: &str,
    bring: impl FnOnce(&Lab, &Kernel, &mut Image),
) -> Option<String> {
    if !common::lab_is_ready() {
        return None;
    }
    let lab = Lab::open().unwrap();
    let kernel = lab.kernel(&KernelChoice::SCHED_EXT, &Quiet).unwrap();
    let qemu = lab.qemu(&Quiet).unwrap();
    let mut image = Image::new(&kernel, &lab.busybox(&Quiet).unwrap()).unwrap();
    bring_quell(&mut image);
    image.emulator(&qemu).unwrap();
    let vmlinuz = Path::new("/root/vmlinuz");
    image.file(&kernel.image, vmlinuz).unwrap();
    image
        .modules(&kernel, &["kvm-amd"], "/root/modules")
        .unwrap();
    bring(&lab, &kernel, &mut image);
    image.command(&["sh".into(), "-c".into(), script.into()]);
    let options = Boot {
        cpus,
        memory_mib,
        clock: Clock::Real,
        // Three levels of virtualization would be too much.
        kvm: false,
        limit,
        ..Boot::default()
    };
    let mut tries = 0;
    loop {
        tries += 1;
        let (mut said, mut errors) = (Vec::new(), Vec::new());
        let finished = boot(
            &qemu,
            &kernel,
            &image,
            &options,
            None,
            &AtomicBool::new(false),
            |stream, bytes| match stream {
                Stream::Stdout => said.extend_from_slice(bytes),
                Stream::Stderr => errors.extend_from_slice(bytes),
            },
        );
        let said = String::from_utf8_lossy(&said).into_owned();
        println!("{said}");
        let finished = finished.unwrap();
        if finished.exit_code == ENDED && tries < 3 {
            continue;
        }
        let errors = String::from_utf8_lossy(&errors);
        assert_eq!(finished.exit_code, 0, "{said}\n{errors}");
        return Some(said);
    }
}
