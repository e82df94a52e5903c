//! Reads a trace, an event at a time.

use crate::compact::{self, Compact, What};
use crate::event::{Event, IDLE, Kind, State, Thread};
use crate::packets::{MOST_UNPACKED, Packets, Wrong, too_much, unpacked};
use crate::proto::{
    CLONE_THREAD, FLAG_HARDIRQ, FLAG_SOFTIRQ, FTRACE_CLOCK_LOCAL, FtraceEvent, FtraceEventBundle,
    ProcessTree, SchedWaking, TracePacket,
};
use crate::threads::Threads;
use prost::Message;
use prost::bytes::Bytes;
use quell_model::{Pid, Tid};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most wakeups that are kept until it is known whether they are needed.
const MOST_KEPT: usize = 1 << 26;

/// The reason why a trace cannot be read further. The events before it are valid.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("{}: cannot be read at byte {offset}: {source}", file.display())]
    Io {
        /// The file of the trace.
        file: PathBuf,
        /// The number of bytes read before.
        offset: u64,
        /// The error of the read.
        source: io::Error,
    },
    /// The file ends within a packet: its writer was stopped, or is still writing it.
    #[error("{}: ends within the packet that begins at byte {offset}", file.display())]
    Truncated {
        /// The file of the trace.
        file: PathBuf,
        /// The offset of the packet that is not whole; all events before it were given.
        offset: u64,
    },
    /// The file is no trace, or not from here on.
    #[error("{}: no Perfetto trace from byte {offset} on: {why}", file.display())]
    Corrupt {
        /// The file of the trace.
        file: PathBuf,
        /// The offset of the packet that is wrong; all events before it were given.
        offset: u64,
        /// The error in the packet.
        why: String,
    },
}

/// A reader of a trace: an iterator over its events in the order of the file, which is the order of their
/// times in traces that [`Writer`](crate::Writer) wrote. It ends after the first error.
///
/// The file may be gzipped, its packets compressed, its switches in compact form; offsets in errors are those
/// of the unpacked trace. Packets of other kinds are skipped. Where a thread's name is told by an event only,
/// as in traces of other recorders, a [`Kind::Rename`] comes first. Memory is bounded by the threads alive
/// and the longest packet, and by the wakeups of [`Reader::into_told`].
#[derive(Debug)]
pub struct Reader<R: BufRead> {
    packets: Packets<R>,
    /// The packets that were compressed in the present packet.
    inner: Option<Packets<Cursor<Vec<u8>>>>,
    /// The number of bytes unpacked from compressed packets so far.
    unpacked: u64,
    file: PathBuf,
    bundle: Bundle,
    /// The thread that runs on each CPU, since compact switches do not tell it.
    runs: HashMap<u32, Tid>,
    ready: VecDeque<Event>,
    threads: Threads,
    told: Told,
    /// Wakeups by `sched_wakeup`, kept as long as no better event was seen.
    wakeups: Vec<Event>,
    /// Wakeups by `sched_wakeup_new`, kept as long as no better event was seen.
    births: Vec<Event>,
    last_ns: u64,
    ended: bool,
}

/// The part of the present bundle that is still to come.
#[derive(Debug, Default)]
struct Bundle {
    cpu: u32,
    plain: std::vec::IntoIter<Bytes>,
    /// The first of the remaining events.
    next: Option<FtraceEvent>,
    compact: VecDeque<Compact>,
}

/// The contents of a trace, as far as it was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Told {
    /// The number of packets of any kind.
    pub packets: u64,
    /// The number of kernel events of any kind.
    pub kernel_events: u64,
    /// The number of switches.
    pub switches: u64,
    /// The number of `sched_waking` events: a thread or an interrupt begins to wake a thread.
    pub wakings: u64,
    /// The number of `sched_wakeup` events: a woken thread is put in a queue.
    pub wakeups: u64,
    /// The number of `task_newtask` events: a thread is created.
    pub births: u64,
    /// The number of `wakings` and `wakeups` that are attributed to interrupts.
    pub interrupts: u64,
    /// Whether the CPUs' times are of clocks of their own, which need not agree.
    pub local_clocks: bool,
}

impl Reader<BufReader<File>> {
    /// Opens the trace in a file.
    ///
    /// # Errors
    /// The call fails if the file cannot be opened ([`ReadError::Io`]).
    pub fn open(file: &Path) -> Result<Reader<BufReader<File>>, ReadError> {
        match File::open(file) {
            Ok(input) => Ok(Reader::new(BufReader::with_capacity(1 << 18, input), file)),
            Err(source) => Err(ReadError::Io {
                file: file.into(),
                offset: 0,
                source,
            }),
        }
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads the trace from `input`; `file` names it in errors.
    pub fn new(input: R, file: impl Into<PathBuf>) -> Reader<R> {
        Reader {
            packets: Packets::new(input),
            inner: None,
            unpacked: 0,
            file: file.into(),
            bundle: Bundle::default(),
            runs: HashMap::new(),
            ready: VecDeque::new(),
            threads: Threads::default(),
            told: Told::default(),
            wakeups: Vec::new(),
            births: Vec::new(),
            last_ns: 0,
            ended: false,
        }
    }

    /// The contents of the trace up to here, and the wakeups that were not given: a thread's `sched_wakeup`
    /// follows its `sched_waking`, and its `sched_wakeup_new` its `task_newtask`, so that they count only if
    /// a trace has none of these.
    pub fn into_told(self) -> (Told, Vec<Event>) {
        let mut wakeups = self.wakeups;
        wakeups.extend(self.births);
        (self.told, wakeups)
    }

    fn corrupt(&self, why: impl Into<String>) -> ReadError {
        self.wrong(Wrong::Corrupt(why.into()))
    }

    fn wrong(&self, wrong: Wrong) -> ReadError {
        let (file, offset) = (self.file.clone(), self.packets.packet_at);
        match wrong {
            Wrong::Ends => ReadError::Truncated { file, offset },
            Wrong::Corrupt(why) => ReadError::Corrupt { file, offset, why },
            Wrong::Io(source) => ReadError::Io {
                file,
                offset: self.packets.offset,
                source,
            },
        }
    }

    /// The next packet, compressed packets included; `None` at the end of the file.
    fn packet(&mut self) -> Result<Option<TracePacket>, ReadError> {
        loop {
            if let Some(inner) = &mut self.inner {
                match inner.next() {
                    Ok(Some(packet)) if packet.compressed_packets.is_some() => {
                        return Err(self.corrupt("compressed packets within compressed packets"));
                    }
                    Ok(Some(packet)) => return Ok(Some(packet)),
                    Ok(None) => self.inner = None,
                    Err(Wrong::Corrupt(why)) => {
                        return Err(self.corrupt(format!("compressed packets: {why}")));
                    }
                    Err(Wrong::Ends | Wrong::Io(_)) => {
                        return Err(self.corrupt("compressed packets: they end within one"));
                    }
                }
            }
            let Some(packet) = self.packets.next().map_err(|e| self.wrong(e))? else {
                return Ok(None);
            };
            if packet.zstd_compressed_packets.is_some() {
                return Err(self.corrupt(
                    "packets compressed with zstd, which is not read here \
                     (record with `compression_type: COMPRESSION_TYPE_DEFLATE`, or without)",
                ));
            }
            let Some(packed) = &packet.compressed_packets else {
                return Ok(Some(packet));
            };
            let bytes = match unpacked(packed) {
                Ok(bytes) => bytes,
                Err(Wrong::Corrupt(why)) => {
                    return Err(self.corrupt(format!("compressed packets: {why}")));
                }
                Err(other) => return Err(self.wrong(other)),
            };
            self.unpacked += bytes.len() as u64;
            if self.unpacked > MOST_UNPACKED {
                return Err(self.wrong(too_much(MOST_UNPACKED)));
            }
            self.inner = Some(Packets::within(Cursor::new(bytes)));
        }
    }

    fn give(&mut self, at_ns: u64, cpu: u32, kind: Kind) {
        let event = Event { at_ns, cpu, kind };
        self.threads.follow(&event);
        self.last_ns = at_ns;
        self.ready.push_back(event);
    }

    fn begin_bundle(
        &mut self,
        at_ns: Option<u64>,
        bundle: FtraceEventBundle,
    ) -> Result<(), ReadError> {
        let Some(cpu) = bundle.cpu else {
            return Err(self.corrupt("events of no CPU"));
        };
        self.told.local_clocks |= bundle.ftrace_clock == Some(FTRACE_CLOCK_LOCAL);
        let compact = compact::events(bundle.compact_sched.unwrap_or_default());
        self.bundle = Bundle {
            cpu,
            plain: bundle.event.into_iter(),
            next: None,
            compact: compact.map_err(|why| self.corrupt(why))?.into(),
        };
        if bundle.lost_events == Some(true) {
            // A loss in a trace of another recorder has no time: the events are missing before the first of
            // these.
            let at_ns = match at_ns {
                Some(at_ns) => at_ns,
                None => self.next_at()?.unwrap_or(self.last_ns),
            };
            self.runs.remove(&cpu);
            self.give(at_ns, cpu, Kind::Lost);
        }
        Ok(())
    }

    /// The time of the next event of the bundle; `None` if there is none.
    fn next_at(&mut self) -> Result<Option<u64>, ReadError> {
        if self.bundle.next.is_none() {
            if let Some(bytes) = self.bundle.plain.next() {
                let event = FtraceEvent::decode(bytes).map_err(|e| self.corrupt(e.to_string()))?;
                self.bundle.next = Some(event);
            }
        }
        let (plain, last) = (self.bundle.next.as_ref(), self.last_ns);
        let plain = plain.map(|event| event.timestamp.unwrap_or(last));
        let compact = self.bundle.compact.front().map(|event| event.at_ns);
        Ok([plain, compact].into_iter().flatten().min())
    }

    /// Takes the bundle's next event; returns whether there was one.
    fn next_event(&mut self) -> Result<bool, ReadError> {
        let Some(at_ns) = self.next_at()? else {
            return Ok(false);
        };
        self.told.kernel_events += 1;
        let cpu = self.bundle.cpu;
        let compact = &mut self.bundle.compact;
        let first = compact.front().filter(|event| event.at_ns == at_ns);
        if first.is_some() {
            if let Some(event) = compact.pop_front() {
                self.compact(cpu, event);
            }
        } else if let Some(event) = self.bundle.next.take() {
            self.event(cpu, event)?;
        }
        Ok(true)
    }

    /// Takes the identities of threads; traces of older recorders leave out a process's first thread.
    fn tree(&mut self, at_ns: u64, tree: ProcessTree) {
        let said: HashSet<Option<i32>> = tree.threads.iter().map(|t| t.tid).collect();
        let leaders = tree.processes.into_iter().filter_map(|p| {
            let pid = p.pid.filter(|pid| !said.contains(&Some(*pid)))?;
            Some((pid, pid, p.cmdline.into_iter().next()))
        });
        let others = tree.threads.into_iter();
        let others = others.filter_map(|t| Some((t.tid?, t.tgid?, t.name)));
        for (tid, pid, name) in leaders.chain(others) {
            let tid = Tid(tid as u32);
            // Newer recorders leave names to events.
            let name = match name {
                Some(name) => text(&name),
                None => self
                    .threads
                    .get(tid)
                    .map_or("".into(), |it| it.name.clone()),
            };
            let pid = Pid(pid as u32);
            self.give(at_ns, 0, Kind::Thread(Thread { tid, pid, name }));
        }
    }

    fn compact(&mut self, cpu: u32, event: Compact) {
        let (at, thread) = (event.at_ns, event.thread);
        self.called(at, cpu, thread, Some(event.name));
        match event.what {
            What::Switch {
                prev_state,
                priority,
            } => {
                // The previous thread is unknown at a CPU's first switch and where events were lost.
                let before = self.runs.get(&cpu).copied();
                let (prev, prev_state) = match before {
                    Some(prev) => (prev, prev_state),
                    None => (IDLE, State::READY),
                };
                self.switch(at, cpu, prev, prev_state, thread, priority);
            }
            What::Waking { last_cpu, flags } => {
                let by = self.runs.get(&cpu).copied().filter(|_| !interrupts(flags));
                self.told.wakings += 1;
                self.told.interrupts += u64::from(interrupts(flags));
                self.wakeups = Vec::new();
                self.give(
                    at,
                    cpu,
                    Kind::Wakeup {
                        thread,
                        by,
                        last_cpu,
                    },
                );
            }
        }
    }

    fn switch(
        &mut self,
        at: u64,
        cpu: u32,
        prev: Tid,
        prev_state: State,
        next: Tid,
        priority: i32,
    ) {
        self.told.switches += 1;
        self.runs.insert(cpu, next);
        let kind = Kind::Switch {
            prev,
            prev_state,
            next,
            next_priority: priority,
        };
        self.give(at, cpu, kind);
    }

    /// The wakeup that one of the wakeup events reports.
    fn wakeup(&mut self, at_ns: u64, cpu: u32, by: Tid, flags: u32, event: SchedWaking) -> Event {
        let thread = Tid(event.pid.unwrap_or(0) as u32);
        self.called(at_ns, cpu, thread, event.comm);
        self.told.interrupts += u64::from(interrupts(flags));
        let kind = Kind::Wakeup {
            thread,
            by: (!interrupts(flags)).then_some(by),
            last_cpu: event.target_cpu.unwrap_or(0) as u32,
        };
        Event { at_ns, cpu, kind }
    }

    fn event(&mut self, cpu: u32, event: FtraceEvent) -> Result<(), ReadError> {
        let at = event.timestamp.unwrap_or(self.last_ns);
        let by = Tid(event.pid.unwrap_or(0));
        let flags = event.common_flags.unwrap_or(0);
        if event.pid.is_some() && !interrupts(flags) {
            self.runs.entry(cpu).or_insert(by);
        }
        let tid = |pid: Option<i32>| Tid(pid.unwrap_or(0) as u32);
        if let Some(switch) = event.sched_switch {
            let (prev, next) = (tid(switch.prev_pid), tid(switch.next_pid));
            self.called(at, cpu, prev, switch.prev_comm);
            self.called(at, cpu, next, switch.next_comm);
            let state = State(switch.prev_state.unwrap_or(0) as u16);
            let priority = switch.next_prio.unwrap_or(0);
            self.switch(at, cpu, prev, state, next, priority);
        } else if let Some(waking) = event.sched_waking {
            let waking = self.wakeup(at, cpu, by, flags, waking);
            self.told.wakings += 1;
            self.wakeups = Vec::new();
            self.give(at, cpu, waking.kind);
        } else if let Some(wakeup) = event.sched_wakeup {
            let wakeup = self.wakeup(at, cpu, by, flags, wakeup);
            self.told.wakeups += 1;
            if self.told.wakings == 0 {
                self.wakeups.push(wakeup);
            }
        } else if let Some(wakeup) = event.sched_wakeup_new {
            let wakeup = self.wakeup(at, cpu, by, flags, wakeup);
            if self.told.births == 0 {
                self.births.push(wakeup);
            }
        } else if let Some(new) = event.task_newtask {
            let tid = tid(new.pid);
            let joins = new.clone_flags.unwrap_or(0) & CLONE_THREAD != 0;
            let process = joins.then(|| self.threads.process_of(by)).flatten();
            let thread = Thread {
                tid,
                pid: process.unwrap_or(Pid(tid.0)),
                name: text(&new.comm.unwrap_or_default()),
            };
            self.told.births += 1;
            self.births = Vec::new();
            self.give(at, cpu, Kind::New { thread, by });
        } else if let Some(rename) = event.task_rename {
            let (tid, name) = (tid(rename.pid), rename.newcomm.unwrap_or_default());
            let name = text(&name);
            self.give(at, cpu, Kind::Rename { tid, name });
        }
        if self.wakeups.len() + self.births.len() > MOST_KEPT {
            let why = format!("more than {MOST_KEPT} wakeups in a trace without `sched_waking`");
            return Err(self.corrupt(why));
        }
        Ok(())
    }

    /// Takes the name by which an event calls a thread: it is given as an event if the trace has not told it
    /// before.
    fn called(&mut self, at_ns: u64, cpu: u32, tid: Tid, name: Option<Bytes>) {
        let Some(name) = name.filter(|_| tid != IDLE) else {
            return;
        };
        let known = self.threads.get(tid);
        if known.is_none_or(|known| known.name.as_bytes() != name && *known.name != *text(&name)) {
            let name = text(&name);
            self.give(at_ns, cpu, Kind::Rename { tid, name });
        }
    }

    fn advance(&mut self) -> Result<Option<Event>, ReadError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.next_event()? {
                continue;
            }
            let Some(packet) = self.packet()? else {
                return Ok(None);
            };
            self.told.packets += 1;
            if let Some(tree) = packet.process_tree {
                self.tree(packet.timestamp.unwrap_or(self.last_ns), tree);
            }
            if let Some(bundle) = packet.ftrace_events {
                self.begin_bundle(packet.timestamp, bundle)?;
            }
        }
    }
}

/// Whether the flags of an event say that it happened in an interrupt.
fn interrupts(flags: u32) -> bool {
    flags & (FLAG_HARDIRQ | FLAG_SOFTIRQ) != 0
}

fn text(bytes: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(bytes).into()
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.advance();
        self.ended = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::read::{GzEncoder, ZlibEncoder};
    use std::io::Read;

    fn why(mut reader: Reader<&[u8]>) -> Option<String> {
        reader.find_map(|event| event.err()).map(|e| e.to_string())
    }

    /// Files that unpack to that size take a while to unpack: the test begins near the end.
    #[test]
    fn a_trace_may_unpack_to_so_much_and_no_more() {
        let packets = b"\x0a\x02\x40\x01".repeat(3);
        let mut packed = Vec::new();
        let mut encoder = ZlibEncoder::new(&packets[..], Compression::fast());
        assert!(encoder.read_to_end(&mut packed).is_ok());
        let file = TracePacket {
            compressed_packets: Some(packed.into()),
            ..TracePacket::default()
        };
        let mut framed = Vec::new();
        prost::encoding::message::encode(1, &file, &mut framed);
        let mut gzipped = Vec::new();
        let mut encoder = GzEncoder::new(&packets[..], Compression::fast());
        assert!(encoder.read_to_end(&mut gzipped).is_ok());
        for (left, fits) in [(12, true), (11, false)] {
            let mut reader = Reader::new(&framed[..], "t");
            reader.unpacked = MOST_UNPACKED - left;
            let error = why(reader);
            assert_eq!(error.is_none(), fits, "{error:?}");
            let mut reader = Reader::new(&gzipped[..], "t");
            reader.packets.offset = MOST_UNPACKED - left;
            let error = why(reader);
            assert_eq!(error.is_none(), fits, "{error:?}");
            let text = error.unwrap_or_default();
            assert!(
                fits || text.contains("more than 4294967296 bytes"),
                "{text}"
            );
        }
    }
}
