//! Loading the BPF programs, and the memory they share with this process.

use super::layout::{
    CpuLog, EVENT_BYTES, OCCASIONS_BYTES, Stats, TID_PAGE_BYTES, TIDS_PER_PAGE, ThreadSlot, WaitRow,
};
use super::reading::TenantIndex;
use super::{Limits, MonitorError};
use libbpf_rs::{Link, MapCore, MapHandle, Object, ObjectBuilder};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use quell_bpf::Log;
use std::ffi::{OsStr, c_void};
use std::io;
use std::marker::PhantomData;
use std::mem::size_of;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;

/// The compiled `bpf/monitor.bpf.c`.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/monitor.bpf.o"));

/// The program that walks all tasks on demand; the others run by themselves.
const SYNC: &str = "sync_task";

/// The loaded programs and their maps.
#[derive(Debug)]
pub struct Programs {
    pub threads: View<ThreadSlot>,
    pub cpus: View<CpuLog>,
    pub wait_rows: View<WaitRow>,
    pub stats: View<Stats>,
    pub occasions: MapHandle,
    pub free_slots: MapHandle,
    pub processes: MapHandle,
    pub process_events: MapHandle,
    /// Attachment of the pass over all tasks.
    pub sync: Link,
    /// Dropping these detaches the programs.
    _links: Vec<Link>,
    _object: Object,
}

impl Programs {
    pub fn load(limits: Limits) -> Result<Programs, MonitorError> {
        if limits.threads == 0 || limits.threads >= u32::from(u16::MAX) {
            return Err(MonitorError::Limit {
                what: "threads",
                range: "1 to 65534",
                value: limits.threads.into(),
            });
        }
        if !Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(MonitorError::NoBtf);
        }
        check_capabilities()?;

        let log = Log::capture();
        let refused = |error: libbpf_rs::Error| MonitorError::Refused {
            reason: error.to_string(),
            log: log.tail(),
        };
        let cpus = libbpf_rs::num_possible_cpus().map_err(refused)? as u32;
        let pid_max = std::fs::read_to_string("/proc/sys/kernel/pid_max")
            .ok()
            .and_then(|text| text.trim().parse::<u32>().ok())
            .unwrap_or(1 << 22);

        let mut open = ObjectBuilder::default()
            .name("quell")
            .and_then(|builder| builder.open_memory(OBJECT))
            .map_err(refused)?;
        quell_bpf::set_preempt_count(&mut open).map_err(refused)?;
        for mut map in open.maps_mut() {
            let entries = match map.name().to_str() {
                // Slot 0 stands for "none".
                Some("threads") => limits.threads + 1,
                Some("free_slots" | "processes") => limits.threads,
                Some("tid_slots") => pid_max / TIDS_PER_PAGE + 1,
                Some("cpu_logs") => cpus,
                _ => continue,
            };
            map.set_max_entries(entries).map_err(refused)?;
        }
        let object = open.load().map_err(refused)?;

        let map = |name: &'static str, value_size: usize| {
            let map = object
                .maps()
                .find(|map| map.name() == OsStr::new(name))
                .filter(|map| map.value_size() as usize == value_size)
                .ok_or_else(|| MonitorError::Refused {
                    reason: format!("map `{name}` is not as this program expects it"),
                    log: String::new(),
                })?;
            MapHandle::try_from(&map).map_err(io_error(name))
        };
        map("tid_slots", TID_PAGE_BYTES)?;
        let (threads, cpu_logs) = (size_of::<ThreadSlot>(), size_of::<CpuLog>());
        let (rows, stats) = (size_of::<WaitRow>(), size_of::<Stats>());
        let threads = View::new(&map("threads", threads)?, limits.threads as usize + 1)?;
        let cpus = View::new(&map("cpu_logs", cpu_logs)?, cpus as usize)?;
        let wait_rows = View::new(&map("wait_rows", rows)?, TenantIndex::LIMIT.into())?;
        let stats = View::new(&map("stats", stats)?, 1)?;
        let occasions = map("occasions", OCCASIONS_BYTES)?;
        let free_slots = map("free_slots", 4)?;
        let processes = map("processes", 4)?;
        let process_events = map("process_events", EVENT_BYTES)?;

        let (mut links, mut sync) = (Vec::new(), None);
        for program in object.progs_mut() {
            let link = program.attach().map_err(refused)?;
            if program.name() == OsStr::new(SYNC) {
                sync = Some(link);
            } else {
                links.push(link);
            }
        }
        let sync = sync.ok_or_else(|| MonitorError::Refused {
            reason: format!("no program `{SYNC}`"),
            log: String::new(),
        })?;
        Ok(Programs {
            threads,
            cpus,
            wait_rows,
            stats,
            occasions,
            free_slots,
            processes,
            process_events,
            sync,
            _links: links,
            _object: object,
        })
    }
}

/// An error of a call on the named thing.
pub fn io_error(what: &'static str) -> impl Fn(libbpf_rs::Error) -> MonitorError {
    move |error| MonitorError::Io {
        what,
        source: io::Error::other(error),
    }
}

/// An array map's memory, mapped read-only: `T`s that the kernel writes at any time.
#[derive(Debug)]
pub struct View<T> {
    memory: NonNull<c_void>,
    bytes: NonZeroUsize,
    entries: usize,
    of: PhantomData<T>,
}

// SAFETY: the memory is only read, through atomics, and unmapped only by the one owner's drop.
unsafe impl<T: Sync> Send for View<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for View<T> {}

impl<T> View<T> {
    /// Maps the first `entries` values of a mappable array map whose value is a `T`. `T` must
    /// consist of atomics only, and be of a size that is a multiple of 8 (the map's stride).
    fn new(map: &MapHandle, entries: usize) -> Result<View<T>, MonitorError> {
        const { assert!(size_of::<T>() % 8 == 0) };
        let error = |source: io::Error| MonitorError::Io {
            what: "mapping a map",
            source,
        };
        if entries > map.max_entries() as usize {
            return Err(error(io::ErrorKind::InvalidInput.into()));
        }
        let bytes = NonZeroUsize::new(entries * size_of::<T>())
            .ok_or_else(|| error(io::ErrorKind::InvalidInput.into()))?;
        // SAFETY: a new mapping at an address the kernel chooses touches no existing memory.
        let memory = unsafe {
            mmap(
                None,
                bytes,
                ProtFlags::PROT_READ,
                MapFlags::MAP_SHARED,
                map,
                0,
            )
        }
        .map_err(|errno| error(errno.into()))?;
        Ok(View {
            memory,
            bytes,
            entries,
            of: PhantomData,
        })
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// One entry.
    pub fn get(&self, index: usize) -> Option<&T> {
        if index >= self.entries {
            return None;
        }
        // SAFETY: the index is within the mapping, which lives as long as self and is aligned to
        // a page; T consists of atomics of the sizes that the kernel writes, and every bit
        // pattern is a value of theirs. Nothing is ever written through the reference.
        Some(unsafe { &*self.memory.as_ptr().cast::<T>().add(index) })
    }
}

impl<T> Drop for View<T> {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that new() made, and no reference into it outlives self.
        let _ = unsafe { munmap(self.memory, self.bytes.get()) };
    }
}

/// Loading needs CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN which includes them.
fn check_capabilities() -> Result<(), MonitorError> {
    let status =
        std::fs::read_to_string("/proc/self/status").map_err(|source| MonitorError::Io {
            what: "reading /proc/self/status",
            source,
        })?;
    match missing_capabilities(&status) {
        missing if missing.is_empty() => Ok(()),
        missing => Err(MonitorError::Capability { missing }),
    }
}

fn missing_capabilities(status: &str) -> Vec<&'static str> {
    let (sys_admin, perfmon, bpf) = (1 << 21, 1 << 38, 1u64 << 39);
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(u64::MAX);
    if effective & sys_admin != 0 {
        return Vec::new();
    }
    let needed = [("CAP_BPF", bpf), ("CAP_PERFMON", perfmon)];
    needed
        .iter()
        .filter(|(_, bit)| effective & bit == 0)
        .map(|&(name, _)| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        let missing = |hex: &str| missing_capabilities(&format!("Name:\tx\nCapEff:\t{hex}\n"));
        assert!(missing("000001ffffffffff").is_empty());
        assert!(missing("0000000000200000").is_empty()); // CAP_SYS_ADMIN
        assert!(missing("000000c000000000").is_empty());
        assert_eq!(missing("0000008000000000"), ["CAP_PERFMON"]);
        assert_eq!(missing("0000000000000000"), ["CAP_BPF", "CAP_PERFMON"]);
    }

    #[test]
    fn limits_are_checked_before_anything_is_loaded() {
        for threads in [0, 65_535, u32::MAX] {
            assert!(matches!(
                Programs::load(Limits { threads }),
                Err(MonitorError::Limit {
                    what: "threads",
                    ..
                })
            ));
        }
    }
}
