//! How a thread is scheduled: policy, nice value or priority, and slice, as its program says.

use anyhow::{Context, ensure};
use quell_scenario::{ThreadPolicy, ThreadProgram};
use quell_sys::sched::{CALLER, SchedAttr};
use std::io;

/// Has the kernel schedule the calling thread as the program says; a program that says nothing changes
/// nothing.
///
/// # Errors
/// Where the kernel refuses (mostly without CAP_SYS_NICE), or has no slices for single threads.
pub fn set(program: &ThreadProgram) -> anyhow::Result<()> {
    let says = (program.policy, program.nice, program.slice_us);
    if says == (ThreadPolicy::Other, None, None) {
        return Ok(());
    }
    let name = &program.name;
    set_attr(program).with_context(|| match program.policy.is_realtime() {
        true => format!(
            "cannot give thread `{name}` policy \"{}\" (needs CAP_SYS_NICE)",
            program.policy.name()
        ),
        false => format!(
            "cannot schedule thread `{name}` as its program says (a nice value below that of others needs CAP_SYS_NICE)"
        ),
    })?;
    if let Some(slice) = program.slice_ns() {
        let got = SchedAttr::of(CALLER).context("cannot find out how a thread is scheduled")?;
        ensure!(
            got.runtime == slice,
            "thread `{name}` did not get its slice_us: this kernel has no slices of threads' own (Linux 6.12 and newer have)"
        );
    }
    Ok(())
}

fn set_attr(program: &ThreadProgram) -> io::Result<()> {
    let policy = match program.policy {
        ThreadPolicy::Other => libc::SCHED_OTHER,
        ThreadPolicy::Batch => libc::SCHED_BATCH,
        ThreadPolicy::Idle => libc::SCHED_IDLE,
        ThreadPolicy::Fifo => libc::SCHED_FIFO,
        ThreadPolicy::Rr => libc::SCHED_RR,
    };
    let before = SchedAttr::of(CALLER)?;
    let attr = SchedAttr {
        policy: policy as u32,
        nice: program.nice.unwrap_or(before.nice),
        priority: program.priority.unwrap_or(0),
        runtime: program.slice_ns().unwrap_or(0),
        ..SchedAttr::default()
    };
    attr.set(CALLER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_scenario::Count;

    /// The attributes of a new thread after [`set`].
    fn after(program: ThreadProgram) -> anyhow::Result<SchedAttr> {
        let set = move || {
            set(&program)?;
            Ok(SchedAttr::of(CALLER)?)
        };
        std::thread::spawn(set).join().unwrap()
    }

    #[test]
    fn a_thread_is_scheduled_as_its_program_says() {
        let new = || ThreadProgram::new("t", Count::Fixed(1), Vec::new());
        let plain = after(new()).unwrap();
        let idle = ThreadProgram {
            policy: ThreadPolicy::Idle,
            ..new()
        };
        assert_eq!(after(idle).unwrap().policy, libc::SCHED_IDLE as u32);
        let nice = ThreadProgram {
            nice: Some(19),
            policy: ThreadPolicy::Batch,
            ..new()
        };
        let got = after(nice).unwrap();
        assert_eq!((got.nice, got.policy), (19, libc::SCHED_BATCH as u32));
        let slice = ThreadProgram {
            slice_us: Some(3000.0),
            ..new()
        };
        // Kernels without such slices say so.
        match after(slice) {
            Ok(got) => assert_eq!((got.runtime, got.nice), (3_000_000, plain.nice)),
            Err(error) => assert!(error.to_string().contains("slice_us"), "{error:#}"),
        }
        let realtime = ThreadProgram {
            policy: ThreadPolicy::Fifo,
            priority: Some(1),
            ..new()
        };
        match after(realtime) {
            Ok(got) => assert_eq!((got.policy, got.priority), (libc::SCHED_FIFO as u32, 1)),
            Err(error) => assert!(error.to_string().contains("CAP_SYS_NICE"), "{error:#}"),
        }
    }
}
