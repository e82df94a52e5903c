//! The recorder: every switch, wakeup and new thread of the host, as events of a trace.
//!
//! Problem: events come on all CPUs at once, up to a million a second, and a trace needs them in one order.
//!
//! Approach: BPF programs (`src/bpf/record.bpf.c`) put the events into a ring buffer per CPU and wake no
//! thread; [`Recorder::poll`], called every [`POLL`], takes them out, sorts them and emits those older than
//! the poll before: by then every program that took a time stamp before that poll has put its event in.
//! Events that find no room are counted and reported.
//!
//! Units: ns of CLOCK_BOOTTIME. Needs what the monitor needs: Linux 5.15 with BTF (arm64: 5.18), CAP_BPF and
//! CAP_PERFMON, and to run in the host's pid namespace. Kernel memory: the buffers.

use crate::observe::monitor::MonitorError;
use crate::observe::monitor::program::{check_bpf, io_error, map_named};
use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, RingBuffer,
    RingBufferBuilder, libbpf_sys,
};
use quell_bpf::Log;
use quell_model::{Pid, Tid};
use quell_sys::clock;
use quell_sys::sched::{CALLER, set_nice};
use quell_trace::{Clocks, Event, Kind, State, System, Thread};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::time::Duration;

/// The interval at which to call [`Recorder::poll`].
pub const POLL: Duration = Duration::from_millis(20);

/// The compiled `bpf/record.bpf.c`.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/record.bpf.o"));

/// The program that is attached last: before it, no thread runs as far as the trace tells.
const SWITCH: &str = "on_switch";

/// The size of `struct record_event` and `struct record_counts`.
const EVENT_BYTES: usize = 48;
/// The bytes that an event takes in a ring, with its header.
const ROOM_BYTES: u64 = EVENT_BYTES as u64 + 8;
const COUNTS_BYTES: usize = 64;

/// The reason why a recording cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The programs cannot be loaded, or their memory cannot be read.
    #[error(transparent)]
    Bpf(#[from] MonitorError),
    /// The sink that takes the events failed.
    #[error("the trace cannot be written: {0}")]
    Sink(#[source] io::Error),
}

/// The totals of a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of events that the kernel reported.
    pub events: u64,
    /// The number of events that found no room.
    pub lost: u64,
    /// CPU time that the BPF programs took, in ns: measured at one event in 64, without the entry into a
    /// program and the exit from it.
    pub kernel_ns: u64,
    /// The end of the recording, in ns of CLOCK_BOOTTIME.
    pub end_ns: u64,
}

/// A running recording. Dropping it detaches the programs.
#[derive(Debug)]
pub struct Recorder {
    events: Events,
    rings: RingBuffer<'static>,
    counts: MapHandle,
    cpus: u32,
    buffer_bytes: u32,
    /// For each CPU, the events reported that [`Recorder::poll_half_full`] has taken out since; there may be
    /// more.
    taken: Vec<u64>,
    links: Vec<Link>,
    /// The maps of the rings, kept so that the rings stay mapped.
    _maps: Vec<MapHandle>,
    _object: Object,
    sorter: Sorter,
    clocks: Clocks,
}

/// The contents of the rings since the last poll: `struct record_event` and the CPU.
type Events = Rc<RefCell<Vec<Raw>>>;

/// A `struct record_event`, with its CPU.
#[derive(Debug, Clone, Copy)]
struct Raw {
    at_ns: u64,
    lost: u32,
    kind: u8,
    interrupt: bool,
    state: u16,
    tid: Tid,
    tgid: Pid,
    other: Tid,
    value: u32,
    comm: [u8; 16],
    cpu: u32,
}

impl Recorder {
    /// Starts a recording. `buffer_bytes` is the size of each CPU's buffer, a power of two and a multiple of
    /// the page size; an event takes 56 bytes.
    ///
    /// # Errors
    /// The call fails if the process may not load BPF programs, the kernel has no type information, or it
    /// refuses the programs.
    pub fn start(buffer_bytes: u32) -> Result<Recorder, RecordError> {
        check_bpf()?;
        let log = Log::capture();
        let refused = |error: libbpf_rs::Error| MonitorError::Refused {
            reason: error.to_string(),
            log: log.tail(),
        };
        let cpus = libbpf_rs::num_possible_cpus().map_err(refused)? as u32;
        let mut open = ObjectBuilder::default()
            .name("quell_record")
            .and_then(|builder| builder.open_memory(OBJECT))
            .map_err(refused)?;
        quell_bpf::set_preempt_count(&mut open).map_err(refused)?;
        for mut map in open.maps_mut() {
            if matches!(map.name().to_str(), Some("rings" | "counts")) {
                map.set_max_entries(cpus).map_err(refused)?;
            }
        }
        let object = open.load().map_err(refused)?;
        let (outer, counts) = (map_named(&object, "rings")?, map_named(&object, "counts")?);
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let mut maps = Vec::new();
        for cpu in 0..cpus {
            let name = Some("quell_record");
            let ring = MapHandle::create(MapType::RingBuf, name, 0, 0, buffer_bytes, &options);
            let ring = ring.map_err(io_error("making a buffer"))?;
            let fd = ring.as_fd().as_raw_fd().to_ne_bytes();
            outer
                .update(&cpu.to_ne_bytes(), &fd, MapFlags::ANY)
                .map_err(io_error("handing over a buffer"))?;
            maps.push(ring);
        }
        let events = Events::default();
        let rings = rings(&maps, &events).map_err(io_error("mapping a buffer"))?;

        let mut links = Vec::new();
        let mut programs: Vec<_> = object.progs_mut().collect();
        programs.sort_by_key(|program| program.name() == OsStr::new(SWITCH));
        for program in programs {
            links.push(program.attach().map_err(refused)?);
        }
        let recorder = Recorder {
            events,
            rings,
            counts,
            cpus,
            buffer_bytes,
            taken: vec![0; cpus as usize],
            links,
            _maps: maps,
            _object: object,
            sorter: Sorter::default(),
            clocks: Clocks {
                boottime_ns: clock::boottime_ns(),
                monotonic_ns: clock::monotonic_ns(),
                realtime_ns: clock::now_ns(clock::ClockId::CLOCK_REALTIME),
            },
        };
        let there = list(recorder.clocks.boottime_ns).map_err(|source| MonitorError::Io {
            what: "listing /proc",
            source,
        })?;
        recorder.events.borrow_mut().extend(there);
        Ok(recorder)
    }

    /// The system that the trace is from.
    ///
    /// # Errors
    /// The call fails if `/proc` cannot be read.
    pub fn system(&self) -> io::Result<System> {
        let read = |name| fs::read_to_string(format!("/proc/sys/kernel/{name}"));
        Ok(System {
            release: read("osrelease")?.trim().to_string(),
            version: read("version")?.trim().to_string(),
            machine: std::env::consts::ARCH.to_string(),
            clocks: Some(self.clocks),
        })
    }

    /// Takes out all events in the buffers and emits the complete ones, in the order of time.
    ///
    /// # Errors
    /// The call fails if the buffers cannot be read, or `sink` fails.
    pub fn poll(&mut self, sink: impl FnMut(&Event) -> io::Result<()>) -> Result<(), RecordError> {
        let now = clock::boottime_ns();
        self.consume()?;
        self.sorter.give(now, sink).map_err(RecordError::Sink)
    }

    /// Polls as [`Recorder::poll`] does, but takes nothing out unless a buffer may be half full, which costs
    /// far less.
    ///
    /// # Errors
    /// The call fails as [`Recorder::poll`] does.
    pub fn poll_half_full(
        &mut self,
        sink: impl FnMut(&Event) -> io::Result<()>,
    ) -> Result<(), RecordError> {
        let told = (0..self.cpus).map(|cpu| Ok(self.counts_of(cpu)?[0]));
        let told: Vec<u64> = told.collect::<Result<_, MonitorError>>()?;
        let waiting = told
            .iter()
            .zip(&self.taken)
            .map(|(told, taken)| told - taken);
        let most = waiting.max().unwrap_or(0) * ROOM_BYTES;
        if most < u64::from(self.buffer_bytes) / 2 {
            return Ok(());
        }
        self.taken = told;
        self.poll(sink)
    }

    fn consume(&mut self) -> Result<(), MonitorError> {
        self.rings.consume().map_err(io_error("reading a buffer"))?;
        self.sorter.pending.append(&mut self.events.borrow_mut());
        Ok(())
    }

    /// Ends the recording and emits the remaining events.
    ///
    /// # Errors
    /// The call fails as [`Recorder::poll`] does.
    pub fn finish(
        mut self,
        mut sink: impl FnMut(&Event) -> io::Result<()>,
    ) -> Result<Totals, RecordError> {
        let end_ns = clock::boottime_ns();
        self.links.clear();
        self.consume()?;
        self.sorter.polled_ns = u64::MAX;
        self.sorter
            .give(u64::MAX, &mut sink)
            .map_err(RecordError::Sink)?;
        let mut totals = Totals {
            end_ns,
            ..Totals::default()
        };
        for cpu in 0..self.cpus {
            let [events, lost, told, timed, timed_ns] = self.counts_of(cpu)?;
            totals.events += events;
            totals.lost += lost;
            let kernel_ns = u128::from(timed_ns) * u128::from(events) / u128::from(timed.max(1));
            totals.kernel_ns += kernel_ns as u64;
            if lost > told {
                let kind = Kind::Lost;
                let at_ns = end_ns;
                sink(&Event { at_ns, cpu, kind }).map_err(RecordError::Sink)?;
            }
        }
        Ok(totals)
    }

    /// The first fields of `struct record_counts`.
    fn counts_of(&self, cpu: u32) -> Result<[u64; 5], MonitorError> {
        let what = "reading the counts";
        let value = self.counts.lookup(&cpu.to_ne_bytes(), MapFlags::ANY);
        let value = value.map_err(io_error(what))?;
        let value = value.filter(|value| value.len() == COUNTS_BYTES);
        let value = value.ok_or_else(|| MonitorError::Io {
            what,
            source: io::ErrorKind::NotFound.into(),
        })?;
        let mut counts = [0; 5];
        for (count, bytes) in counts.iter_mut().zip(value.chunks_exact(8)) {
            *count = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        Ok(counts)
    }
}

/// The threads that exist, as events at the time `at_ns`.
fn list(at_ns: u64) -> io::Result<Vec<Raw>> {
    let number = |entry: io::Result<DirEntry>| {
        let name = entry.ok()?.file_name();
        name.to_str()?.parse::<u32>().ok()
    };
    let mut threads = Vec::new();
    for process in fs::read_dir("/proc")?.filter_map(number) {
        // The process may have ended meanwhile, as may any of its threads.
        let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else {
            continue;
        };
        for tid in tasks.filter_map(number) {
            let Ok(name) = fs::read(format!("/proc/{process}/task/{tid}/comm")) else {
                continue;
            };
            threads.push(Raw::there(
                at_ns,
                Tid(tid),
                Pid(process),
                name.trim_ascii_end(),
            ));
        }
    }
    Ok(threads)
}

/// Makes the calling thread, which is to poll, urgent (nice -20) where it may: on a busy host the buffers
/// would otherwise be full before it gets a CPU. The thread uses no more CPU time for that, but other threads
/// wait for it, not it for them.
pub fn hurry() {
    if let Err(error) = set_nice(CALLER, -20) {
        tracing::debug!("no right to nice -20: {error}");
    }
}

/// The rings of all CPUs, by CPU, read into `events`.
fn rings(maps: &[MapHandle], events: &Events) -> libbpf_rs::Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    for (cpu, map) in (0..).zip(maps) {
        let events = events.clone();
        builder.add(map, move |bytes| {
            events.borrow_mut().extend(Raw::parse(bytes, cpu));
            0
        })?;
    }
    builder.build()
}

/// The values of `enum record_kind`.
mod kind {
    pub const SWITCH: u8 = 1;
    pub const WAKEUP: u8 = 2;
    pub const NEW: u8 = 3;
    #[cfg(test)]
    pub const NAME: u8 = 4;
    /// A kind that the kernel does not send: the thread exists.
    pub const THREAD: u8 = 5;
}

impl Raw {
    /// Decodes a `struct record_event`; `None` if the bytes are no such structure.
    fn parse(bytes: &[u8], cpu: u32) -> Option<Raw> {
        let bytes: &[u8; EVENT_BYTES] = bytes.get(..EVENT_BYTES)?.try_into().ok()?;
        let u32_at = |at: usize| {
            let mut four = [0; 4];
            four.copy_from_slice(&bytes[at..at + 4]);
            u32::from_ne_bytes(four)
        };
        let mut at_ns = [0; 8];
        at_ns.copy_from_slice(&bytes[..8]);
        let mut comm = [0; 16];
        comm.copy_from_slice(&bytes[32..]);
        Some(Raw {
            at_ns: u64::from_ne_bytes(at_ns),
            lost: u32_at(8),
            kind: bytes[12],
            interrupt: bytes[13] != 0,
            state: u16::from_ne_bytes([bytes[14], bytes[15]]),
            tid: Tid(u32_at(16)),
            tgid: Pid(u32_at(20)),
            other: Tid(u32_at(24)),
            value: u32_at(28),
            comm,
            cpu,
        })
    }

    fn there(at_ns: u64, tid: Tid, tgid: Pid, name: &[u8]) -> Raw {
        let mut comm = [0; 16];
        // 15 bytes at most; a kernel worker's name in /proc is longer, and no event has the rest.
        for (to, from) in comm.iter_mut().zip(name.iter().take(15)) {
            *to = *from;
        }
        Raw {
            at_ns,
            lost: 0,
            kind: kind::THREAD,
            interrupt: false,
            state: 0,
            tid,
            tgid,
            other: Tid(0),
            value: 0,
            comm,
            cpu: 0,
        }
    }

    fn thread(&self) -> Thread {
        let end = self.comm.iter().position(|&byte| byte == 0);
        let name = &self.comm[..end.unwrap_or(self.comm.len())];
        Thread {
            tid: self.tid,
            pid: self.tgid,
            name: String::from_utf8_lossy(name).into(),
        }
    }
}

/// Puts events in order, and adds the identity of threads that the trace has not named yet.
#[derive(Debug, Default)]
struct Sorter {
    pending: Vec<Raw>,
    /// The time at which the poll before this one began.
    polled_ns: u64,
    /// The process and the name of the threads that the trace knows.
    known: HashMap<Tid, (Pid, [u8; 16])>,
}

impl Sorter {
    /// Emits the events older than the last call.
    fn give(&mut self, now: u64, mut sink: impl FnMut(&Event) -> io::Result<()>) -> io::Result<()> {
        let until = std::mem::replace(&mut self.polled_ns, now);
        let mut pending = std::mem::take(&mut self.pending);
        // Stable: events of one CPU with the same time stay in their order.
        pending.sort_by_key(|raw| raw.at_ns);
        let complete = pending.partition_point(|raw| raw.at_ns < until);
        for raw in pending.drain(..complete) {
            self.translate(&raw, &mut sink)?;
        }
        self.pending = pending;
        Ok(())
    }

    fn translate(
        &mut self,
        raw: &Raw,
        sink: &mut impl FnMut(&Event) -> io::Result<()>,
    ) -> io::Result<()> {
        let (at_ns, cpu) = (raw.at_ns, raw.cpu);
        let mut tell = |cpu, kind| sink(&Event { at_ns, cpu, kind });
        if raw.lost > 0 {
            tell(cpu, Kind::Lost)?;
        }
        if raw.tid.0 != 0 {
            let is = (raw.tgid, raw.comm);
            let was = self.known.insert(raw.tid, is);
            let thread = raw.thread();
            match (raw.kind, was) {
                (kind::NEW, _) => {
                    let by = raw.other;
                    return tell(cpu, Kind::New { thread, by });
                }
                (_, Some(was)) if was == is => {}
                (_, Some((process, _))) if process == raw.tgid => {
                    let (tid, name) = (thread.tid, thread.name);
                    tell(cpu, Kind::Rename { tid, name })?;
                }
                _ => tell(0, Kind::Thread(thread))?,
            }
        }
        match raw.kind {
            kind::SWITCH => {
                let prev_state = State(raw.state);
                if prev_state.has_ended() {
                    self.known.remove(&raw.other);
                }
                let kind = Kind::Switch {
                    prev: raw.other,
                    prev_state,
                    next: raw.tid,
                    next_priority: raw.value as i32,
                };
                tell(cpu, kind)
            }
            kind::WAKEUP => {
                let kind = Kind::Wakeup {
                    thread: raw.tid,
                    by: (!raw.interrupt).then_some(raw.other),
                    last_cpu: raw.value,
                };
                tell(cpu, kind)
            }
            // NAME, THREAD: the event only tells the identity of the thread.
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(at_ns: u64, cpu: u32, kind: u8, tid: u32, other: u32, comm: &[u8]) -> Raw {
        let mut bytes = [0; EVENT_BYTES];
        bytes[..8].copy_from_slice(&at_ns.to_ne_bytes());
        bytes[12] = kind;
        bytes[16..20].copy_from_slice(&tid.to_ne_bytes());
        bytes[20..24].copy_from_slice(&10u32.to_ne_bytes());
        bytes[24..28].copy_from_slice(&other.to_ne_bytes());
        bytes[32..32 + comm.len()].copy_from_slice(comm);
        Raw::parse(&bytes, cpu).unwrap()
    }

    fn given(sorter: &mut Sorter, now: u64) -> Vec<String> {
        let mut events = Vec::new();
        let sink = |event: &Event| {
            let what = match &event.kind {
                Kind::Switch { prev, next, .. } => format!("{prev}>{next}"),
                Kind::Wakeup { thread, .. } => format!("wake {thread}"),
                Kind::New { thread, by } => format!("new {} by {by}", thread.tid),
                Kind::Thread(thread) => format!("{} is {}", thread.tid, thread.name),
                Kind::Rename { tid, name } => format!("{tid} now {name}"),
                Kind::Lost => "lost".to_string(),
            };
            events.push(format!("{}: {what}", event.at_ns));
            Ok(())
        };
        sorter.give(now, sink).unwrap();
        events
    }

    #[test]
    fn events_of_several_cpus_come_in_one_order_once_they_are_complete() {
        let mut sorter = Sorter::default();
        sorter.pending.extend([
            raw(5, 0, kind::WAKEUP, 7, 1, b"a"),
            raw(12, 0, kind::SWITCH, 7, 0, b"a"),
            raw(3, 1, kind::NEW, 8, 7, b"a"),
        ]);
        assert!(given(&mut sorter, 10).is_empty()); // the first poll: nothing is sure yet
        // Put in late, by a CPU that was stopped between reading its clock and writing its buffer.
        sorter.pending.push(raw(4, 1, kind::NAME, 8, 0, b"b"));
        let first = ["3: new 8 by 7", "4: 8 now b", "5: 7 is a", "5: wake 7"];
        assert_eq!(given(&mut sorter, 20), first);
        assert_eq!(given(&mut sorter, 30), ["12: 0>7"]);
    }

    #[test]
    fn who_a_thread_is_is_told_once_until_it_changes_or_ends() {
        let mut sorter = Sorter::default();
        let mut ended = raw(5, 0, kind::SWITCH, 0, 7, b"swapper/0");
        ended.state = State::DEAD.0;
        let mut after_loss = raw(6, 0, kind::SWITCH, 7, 0, b"other");
        after_loss.lost = 3;
        sorter.pending.extend([
            raw(1, 0, kind::THREAD, 7, 0, b"sixteen bytes ok"),
            raw(2, 0, kind::SWITCH, 7, 0, b"sixteen bytes ok"),
            raw(3, 0, kind::NAME, 7, 0, b"\xffnew"),
            ended,
            after_loss,
        ]);
        given(&mut sorter, 10);
        assert_eq!(
            given(&mut sorter, 20),
            [
                "1: 7 is sixteen bytes ok",
                "2: 0>7",
                "3: 7 now \u{fffd}new",
                "5: 7>0",
                "6: lost",
                "6: 7 is other",
                "6: 0>7"
            ]
        );
    }

    #[test]
    fn bytes_that_are_no_event_are_none() {
        assert!(Raw::parse(&[0; EVENT_BYTES - 1], 0).is_none());
    }
}
