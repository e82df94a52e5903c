//! Loads the BPF programs, and maps the memory that they share with this process.

use super::error::MonitorError;
use super::layout::{
    CpuLog, EVENT_BYTES, OCCASIONS_BYTES, Stats, TID_PAGE_BYTES, TIDS_PER_PAGE, ThreadSlot, WaitRow,
};
use super::reading::TenantIndex;
use libbpf_rs::{Iter, Link, MapCore, MapHandle, Object, ObjectBuilder};
use quell_bpf::Log;
use quell_sys::capability::{self, Capabilities};
use quell_sys::mapping::{Access, Mapped, SharedMemory};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::mem::size_of;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The compiled `bpf/monitor.bpf.c`.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/monitor.bpf.o"));

/// The programs that walk all tasks on demand; the others run on their own events.
const SYNC: &str = "sync_task";
const SEE_AGAIN: &str = "see_again";

/// The programs at the hot trace points, which a scheduler can stand in for.
const HOT: [&str; 4] = ["on_switch", "on_waking", "on_wakeup", "on_migrate"];

/// The bytes of a map that are mapped at first: 146 threads, 7 tenants.
const FIRST_BYTES: usize = 64 << 10;

/// The maps that the programs at hot trace points write.
const LENT: [&str; 5] = ["threads", "tid_slots", "cpu_logs", "wait_rows", "occasions"];

/// The capacity of the monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most threads at a time, 1 to 65 534. Each takes 448 bytes once used.
    pub threads: u32,
    /// The most tenants, 1 to [`TenantIndex::LIMIT`]. Each takes 9 KiB.
    pub tenants: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            threads: 16_384,
            tenants: 64,
        }
    }
}

/// The loaded programs and their maps.
#[derive(Debug)]
pub struct Programs {
    pub threads: View<ThreadSlot>,
    pub cpus: View<CpuLog>,
    pub wait_rows: View<WaitRow>,
    pub stats: View<Stats>,
    pub occasions: MapHandle,
    pub free_slots: MapHandle,
    pub told: MapHandle,
    pub processes: MapHandle,
    pub process_events: MapHandle,
    /// The attachment of the pass over all tasks.
    pub sync: Link,
    pub trace_points: TracePoints,
    /// The attachments of the other programs, which are detached when these are dropped.
    _links: Vec<Link>,
}

/// The monitor's hot trace points (switches, wakeups, migrations). A component that sees the same events can
/// stand in for them: a scheduler that counts the events itself, into the monitor's maps. Clones refer to the
/// same trace points; after the end of the monitor nothing reads the counts.
#[derive(Debug, Clone)]
pub struct TracePoints(Arc<Mutex<Attached>>);

#[derive(Debug)]
struct Attached {
    object: Object,
    hot: Vec<Link>,
    see_again: Link,
}

impl PartialEq for TracePoints {
    /// Whether both belong to the same monitor.
    fn eq(&self, other: &TracePoints) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl TracePoints {
    /// The maps to count into, by name.
    ///
    /// # Errors
    /// The call fails if the kernel does not give out a handle of a map ([`MonitorError::Io`]) or the
    /// programs have no such map ([`MonitorError::Refused`]).
    pub fn maps(&self) -> Result<Vec<(&'static str, MapHandle)>, MonitorError> {
        let attached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lend = |name| Ok((name, map_named(&attached.object, name)?));
        LENT.into_iter().map(lend).collect()
    }

    /// Detaches the trace points' programs: another component counts from now on.
    pub fn stop(&self) {
        let mut attached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        attached.hot.clear();
    }

    /// Attaches the programs again if they were detached.
    ///
    /// # Errors
    /// The call fails if the kernel does not attach a program ([`MonitorError::Io`]).
    pub fn start(&self) -> Result<(), MonitorError> {
        let mut attached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if attached.hot.is_empty() {
            attached.hot = attach_hot(&attached.object)?;
        }
        Ok(())
    }

    /// Reads the state of all threads again after the counting component changed, as events in between were
    /// missed.
    ///
    /// # Errors
    /// The call fails if the pass over all tasks cannot run ([`MonitorError::Io`]).
    pub fn see_again(&self) -> Result<(), MonitorError> {
        let attached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        walk(&attached.see_again)
    }
}

/// Runs a program over all tasks.
///
/// # Errors
/// The call fails if the iterator cannot be created or read ([`MonitorError::Io`]).
pub fn walk(program: &Link) -> Result<(), MonitorError> {
    let what = "walking over all tasks";
    let mut pass = Iter::new(program).map_err(io_error(what))?;
    let mut buffer = [0; 64];
    loop {
        match pass.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(source) => return Err(MonitorError::Io { what, source }),
        }
    }
}

fn attach_hot(object: &Object) -> Result<Vec<Link>, MonitorError> {
    let hot = object
        .progs_mut()
        .filter(|program| HOT.iter().any(|name| program.name() == OsStr::new(name)));
    hot.map(|program| {
        program
            .attach()
            .map_err(io_error("attaching a trace point"))
    })
    .collect()
}

pub(crate) fn map_named(object: &Object, name: &'static str) -> Result<MapHandle, MonitorError> {
    let map = object
        .maps()
        .find(|map| map.name() == OsStr::new(name))
        .ok_or_else(|| MonitorError::Refused {
            reason: format!("no map `{name}`"),
            log: String::new(),
        })?;
    MapHandle::try_from(&map).map_err(io_error(name))
}

impl Programs {
    /// Loads the programs with maps of the size that `limits` asks for.
    ///
    /// # Errors
    /// The call fails if the process may not load BPF programs, the kernel has no type information or refuses
    /// the programs, or a map cannot be used; the variants of [`MonitorError`] tell these apart.
    pub fn load(limits: Limits) -> Result<Programs, MonitorError> {
        if limits.threads == 0 || limits.threads >= u32::from(u16::MAX) {
            return Err(MonitorError::Limit {
                what: "threads",
                range: "1 to 65534",
                value: limits.threads.into(),
            });
        }
        if limits.tenants == 0 || limits.tenants > u32::from(TenantIndex::LIMIT) {
            return Err(MonitorError::Limit {
                what: "tenants",
                range: "1 to 1024",
                value: limits.tenants.into(),
            });
        }
        check_bpf()?;

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
                Some("wait_rows" | "occasions") => limits.tenants,
                Some("cpu_logs") => cpus,
                _ => continue,
            };
            map.set_max_entries(entries).map_err(refused)?;
        }
        let object = open.load().map_err(refused)?;

        let map = |name: &'static str, value_size: usize| {
            let map = map_named(&object, name)?;
            if map.value_size() as usize != value_size {
                return Err(MonitorError::Refused {
                    reason: format!("map `{name}` is not as this program expects it"),
                    log: String::new(),
                });
            }
            Ok(map)
        };
        map("tid_slots", TID_PAGE_BYTES)?;
        let (threads, cpu_logs) = (size_of::<ThreadSlot>(), size_of::<CpuLog>());
        let (rows, stats) = (size_of::<WaitRow>(), size_of::<Stats>());
        let read = Access::Read;
        let threads = View::new(map("threads", threads)?, limits.threads as usize + 1, read)?;
        let mut cpus = View::new(map("cpu_logs", cpu_logs)?, cpus as usize, read)?;
        cpus.reach(cpus.len())?;
        // The reader clears what says which causes changed.
        let rows = map("wait_rows", rows)?;
        let wait_rows = View::new(rows, limits.tenants as usize, Access::ReadWrite)?;
        let stats = View::new(map("stats", stats)?, 1, read)?;
        let occasions = map("occasions", OCCASIONS_BYTES)?;
        let free_slots = map("free_slots", 4)?;
        let told = map("told", 8)?;
        let processes = map("processes", 4)?;
        let process_events = map("process_events", EVENT_BYTES)?;

        let mut links = BTreeMap::new();
        for program in object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            if !HOT.contains(&&*name) {
                links.insert(name, program.attach().map_err(refused)?);
            }
        }
        let mut walker = |name: &str| {
            links.remove(name).ok_or_else(|| MonitorError::Refused {
                reason: format!("no program `{name}`"),
                log: String::new(),
            })
        };
        let (sync, see_again) = (walker(SYNC)?, walker(SEE_AGAIN)?);
        let trace_points = TracePoints(Arc::new(Mutex::new(Attached {
            hot: attach_hot(&object)?,
            see_again,
            object,
        })));
        Ok(Programs {
            threads,
            cpus,
            wait_rows,
            stats,
            occasions,
            free_slots,
            told,
            processes,
            process_events,
            sync,
            trace_points,
            _links: links.into_values().collect(),
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

/// The memory of an array map: `T`s that the kernel writes at any time.
///
/// Only the first entries are mapped, and more when they are asked for ([`View::reach`]): mapped memory
/// counts as this process's memory, used or not.
#[derive(Debug)]
pub struct View<T: SharedMemory> {
    map: MapHandle,
    /// The number of entries of the map.
    entries: usize,
    access: Access,
    mapped: Mapped<T>,
}

impl<T: SharedMemory> View<T> {
    /// A view of the first `entries` values of a mappable array map whose value is a `T`. The size of `T`
    /// must be a multiple of 8 (the map's stride).
    fn new(map: MapHandle, entries: usize, access: Access) -> Result<View<T>, MonitorError> {
        const { assert!(size_of::<T>() % 8 == 0) };
        if entries == 0 || entries > map.max_entries() as usize {
            return Err(MonitorError::Io {
                what: "mapping a map",
                source: io::ErrorKind::InvalidInput.into(),
            });
        }
        let first = entries.min((FIRST_BYTES / size_of::<T>()).max(1));
        Ok(View {
            mapped: map_values(&map, first, access)?,
            map,
            entries,
            access,
        })
    }

    /// The number of entries of the map.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Maps at least the first `entries` entries, or all entries that there are.
    ///
    /// # Errors
    /// The call fails if the kernel has no memory for the mapping; the entries mapped before stay mapped.
    pub fn reach(&mut self, entries: usize) -> Result<(), MonitorError> {
        let entries = entries.min(self.entries);
        if entries > self.mapped_entries() {
            // Twice as many, so that this happens seldom.
            let entries = self.entries.min(entries.next_power_of_two());
            self.mapped = map_values(&self.map, entries, self.access)?;
        }
        Ok(())
    }

    fn mapped_entries(&self) -> usize {
        self.mapped.all().len()
    }

    /// One entry, if it is mapped.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.mapped.all().get(index)
    }
}

/// Maps the first `entries` values of a map.
fn map_values<T: SharedMemory>(
    map: &MapHandle,
    entries: usize,
    access: Access,
) -> Result<Mapped<T>, MonitorError> {
    Mapped::new(map, entries, access).map_err(|source| MonitorError::Io {
        what: "mapping a map",
        source,
    })
}

/// Checks what loading needs: type information, and CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN which includes
/// them.
///
/// # Errors
/// The call fails if the kernel has no type information ([`MonitorError::NoBtf`]), a capability is missing
/// ([`MonitorError::Capability`]), or `/proc/self/status` cannot be read ([`MonitorError::Io`]).
pub fn check_bpf() -> Result<(), MonitorError> {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(MonitorError::NoBtf);
    }
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
    // Where the kernel does not tell, loading says what is missing.
    let effective = Capabilities::from_status(status).unwrap_or(Capabilities(u64::MAX));
    if effective.has(capability::SYS_ADMIN) {
        return Vec::new();
    }
    let needed = [
        ("CAP_BPF", capability::BPF),
        ("CAP_PERFMON", capability::PERFMON),
    ];
    needed
        .iter()
        .filter(|(_, number)| !effective.has(*number))
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
        for (limits, expected) in [0, 65_535, u32::MAX]
            .map(|threads| {
                (
                    Limits {
                        threads,
                        ..Limits::default()
                    },
                    "threads",
                )
            })
            .into_iter()
            .chain([0, 1_025].map(|tenants| {
                (
                    Limits {
                        tenants,
                        ..Limits::default()
                    },
                    "tenants",
                )
            }))
        {
            let loaded = Programs::load(limits);
            assert!(matches!(loaded, Err(MonitorError::Limit { what, .. }) if what == expected));
        }
    }
}
