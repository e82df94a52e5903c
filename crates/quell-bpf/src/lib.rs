//! The parts that Quell's BPF programs and their loaders share.
//!
//! `include/quell` has the headers: the kernel's types (`kernel.bpf.h`), and the observation of threads by
//! any program that sees them switch and wake: the programs at the monitor's trace points or the scheduler.
//! Two files are for build scripts: `compile.rs` compiles programs, and `shared.rs` writes the Rust side of
//! the structures that programs share with their loader. This library is the part for loaders.
//!
//! ```
//! // Captures what libbpf prints while programs load; here no program is loaded.
//! let log = quell_bpf::Log::capture();
//! assert_eq!(log.tail(), "");
//! ```

mod log;
mod shared;

pub use log::Log;
pub use shared::{Plain, Shared, as_bytes, from_bytes};

use libbpf_rs::OpenObject;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{DataSec, Struct, Var};
use std::ffi::OsStr;

/// Tells programs where x86 keeps its per-CPU preempt count (`kernel.bpf.h`), to be called before
/// they are loaded. It has no effect where the count is not among the per-CPU variables (arm64).
///
/// # Errors
/// The call fails if the kernel has no BTF, or the programs' data cannot be set.
pub fn set_preempt_count(object: &mut OpenObject) -> libbpf_rs::Result<()> {
    let place = preempt_count()?;
    for mut map in object.maps_mut() {
        if map.name() == OsStr::new(".rodata.preempt") {
            map.set_initial_value(&place)?;
        }
    }
    Ok(())
}

/// The contents of `struct preempt_count_at`: the offset of the count from the CPU's run queue.
fn preempt_count() -> libbpf_rs::Result<[u8; 16]> {
    let mut place = [0; 16];
    let btf = Btf::from_vmlinux()?;
    let Some(section) = btf.type_by_name::<DataSec>(".data..percpu") else {
        return Ok(place);
    };
    let offset_of = |name: &str| {
        section
            .iter()
            .find(|v| btf.type_by_id::<Var>(v.ty).and_then(|v| v.name()) == Some(OsStr::new(name)))
            .map(|variable| i64::from(variable.offset))
    };
    // Since Linux 6.15 the count is a variable of its own; the structure's type may outlive its use.
    let own = offset_of("__preempt_count");
    let hot = offset_of("pcpu_hot").filter(|_| btf.type_by_name::<Struct>("pcpu_hot").is_some());
    if let (Some(run_queue), Some(count)) = (offset_of("runqueues"), own.or(hot)) {
        place[..4].copy_from_slice(&1u32.to_ne_bytes());
        place[4..8].copy_from_slice(&u32::from(own.is_none()).to_ne_bytes());
        place[8..].copy_from_slice(&(count - run_queue).to_ne_bytes());
    }
    Ok(place)
}
