//! How a thread is scheduled: policy, nice value or priority, and slice, as its program says.

use anyhow::{Context, ensure};
use quell_model::config::{ThreadPolicy, ThreadProgram};
use std::io;

/// `struct sched_attr` without utilisation clamps (SCHED_ATTR_SIZE_VER0).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// Of threads with a weight the slice in ns; 0: the kernel's own.
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Has the kernel schedule the calling thread as the program says. Where that says nothing, nothing is changed.
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
        let got = attr().context("cannot find out how a thread is scheduled")?;
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
    let before = attr()?;
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: policy as u32,
        nice: program.nice.unwrap_or(before.nice),
        priority: program.priority.unwrap_or(0),
        runtime: program.slice_ns().unwrap_or(0),
        ..SchedAttr::default()
    };
    // SAFETY: the kernel reads `attr.size` bytes, which is the size of `attr`; 0 is this thread.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    match rc {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How the calling thread is scheduled.
fn attr() -> io::Result<SchedAttr> {
    let mut attr = SchedAttr::default();
    // SAFETY: the kernel writes at most the size passed, which is that of `attr`; all bit patterns are valid for its
    // integer fields; 0 is this thread.
    let rc = unsafe {
        let size = size_of::<SchedAttr>();
        libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0)
    };
    match rc {
        0 => Ok(attr),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_model::config::Count;

    /// What a new thread has after that.
    fn after(program: ThreadProgram) -> anyhow::Result<SchedAttr> {
        let set = move || {
            set(&program)?;
            Ok(attr()?)
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
        // Kernels that have none say so.
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
