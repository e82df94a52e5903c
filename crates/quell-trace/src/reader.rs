//! Reading a trace, an event at a time.

use crate::event::{Event, IDLE, Kind, State, Thread};
use crate::proto::{
    CLONE_THREAD, FLAG_HARDIRQ, FLAG_SOFTIRQ, FtraceEvent, FtraceEventBundle, ProcessTree,
    TracePacket,
};
use crate::threads::Threads;
use prost::Message;
use prost::bytes::Bytes;
use prost::encoding::WireType;
use quell_model::{Pid, Tid};
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The longest packet that is taken for one, in bytes. Ours have some KiB, Perfetto's own seldom more than one MiB.
const LONGEST_PACKET: u64 = 8 << 20;

/// Why a trace cannot be read on. What came before it is as written.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("{}: cannot be read at byte {offset}: {source}", file.display())]
    Io {
        /// Which.
        file: PathBuf,
        /// Bytes read before.
        offset: u64,
        /// Why.
        source: io::Error,
    },
    /// The file ends within a packet: who wrote it was stopped, or it is still being written.
    #[error("{}: ends within the packet that begins at byte {offset}", file.display())]
    Truncated {
        /// Which.
        file: PathBuf,
        /// Where the packet begins that is not whole; everything before it was given.
        offset: u64,
    },
    /// No trace, or not from here on.
    #[error("{}: no Perfetto trace from byte {offset} on: {why}", file.display())]
    Corrupt {
        /// Which.
        file: PathBuf,
        /// Where the packet begins that is wrong; everything before it was given.
        offset: u64,
        /// What is wrong.
        why: String,
    },
}

/// Reads a trace: an iterator over its events in the order of the file, which is the order of their times in traces that
/// [`Writer`](crate::Writer) wrote. Ends after the first error.
///
/// Packets of other kinds are passed over. Where a thread's name is told by an event only, as in traces of
/// other recorders, a [`Kind::Rename`] comes first. Memory is bounded by the threads alive and the longest packet.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    file: PathBuf,
    /// Bytes read.
    offset: u64,
    /// Where the packet at hand begins.
    packet_at: u64,
    /// The bundle at hand: its CPU and the events still to come.
    bundle: (u32, std::vec::IntoIter<Bytes>),
    ready: VecDeque<Event>,
    threads: Threads,
    last_ns: u64,
    ended: bool,
}

impl Reader<BufReader<File>> {
    /// A file's trace.
    ///
    /// # Errors
    /// The file cannot be opened.
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
    /// The trace that `input` gives; `file` names it in errors.
    pub fn new(input: R, file: impl Into<PathBuf>) -> Reader<R> {
        Reader {
            input,
            file: file.into(),
            offset: 0,
            packet_at: 0,
            bundle: (0, Vec::new().into_iter()),
            ready: VecDeque::new(),
            threads: Threads::default(),
            last_ns: 0,
            ended: false,
        }
    }

    fn corrupt(&self, why: impl Into<String>) -> ReadError {
        ReadError::Corrupt {
            file: self.file.clone(),
            offset: self.packet_at,
            why: why.into(),
        }
    }

    /// An error of the file, or its early end.
    fn io(&self, source: io::Error) -> ReadError {
        let file = self.file.clone();
        match source.kind() {
            io::ErrorKind::UnexpectedEof => ReadError::Truncated {
                file,
                offset: self.packet_at,
            },
            _ => ReadError::Io {
                file,
                offset: self.offset,
                source,
            },
        }
    }

    /// The next byte; none where the file ends.
    fn byte(&mut self) -> Result<Option<u8>, ReadError> {
        let mut byte = [0];
        match self.input.read_exact(&mut byte) {
            Ok(()) => {
                self.offset += 1;
                Ok(Some(byte[0]))
            }
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(self.io(e)),
        }
    }

    fn varint(&mut self, first: u8) -> Result<u64, ReadError> {
        let (mut value, mut byte) = (0, first);
        for shift in (0..64).step_by(7) {
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            byte = self.some_byte()?;
        }
        Err(self.corrupt("a number of more than ten bytes"))
    }

    fn some_byte(&mut self) -> Result<u8, ReadError> {
        match self.byte()? {
            Some(byte) => Ok(byte),
            None => Err(self.io(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn bytes(&mut self, length: u64) -> Result<Vec<u8>, ReadError> {
        // Not allocated by what the length claims, but as bytes come.
        let mut bytes = Vec::new();
        let got = self.input.by_ref().take(length).read_to_end(&mut bytes);
        let got = got.map_err(|e| self.io(e))? as u64;
        self.offset += got;
        if got < length {
            return Err(self.io(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(bytes)
    }

    /// The next packet; none at the end of the file.
    fn packet(&mut self) -> Result<Option<TracePacket>, ReadError> {
        loop {
            self.packet_at = self.offset;
            let Some(first) = self.byte()? else {
                return Ok(None);
            };
            if self.packet_at == 0 && first == 0x1f {
                return Err(self.corrupt("it is compressed (gunzip it)"));
            }
            let key = self.varint(first)?;
            let wire = WireType::try_from(key & 7).map_err(|e| self.corrupt(e.to_string()))?;
            let length = match wire {
                WireType::LengthDelimited => {
                    let first = self.some_byte()?;
                    self.varint(first)?
                }
                WireType::Varint => {
                    let first = self.some_byte()?;
                    self.varint(first)?;
                    0
                }
                WireType::SixtyFourBit => 8,
                WireType::ThirtyTwoBit => 4,
                WireType::StartGroup | WireType::EndGroup => {
                    return Err(self.corrupt("no packet begins there"));
                }
            };
            if length > LONGEST_PACKET {
                return Err(self.corrupt(format!(
                    "a packet of {length} bytes; {LONGEST_PACKET} are the most"
                )));
            }
            let bytes = self.bytes(length)?;
            if key >> 3 == 1 && wire == WireType::LengthDelimited {
                let packet = TracePacket::decode(Bytes::from(bytes));
                return packet.map(Some).map_err(|e| self.corrupt(e.to_string()));
            }
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
        if bundle.compact_sched.is_some_and(|bytes| !bytes.is_empty()) {
            return Err(self.corrupt(
                "switches in Perfetto's compact form, which is not read here \
                 (record with `compact_sched { enabled: false }`)",
            ));
        }
        if bundle.lost_events == Some(true) {
            self.give(at_ns.unwrap_or(self.last_ns), cpu, Kind::Lost);
        }
        self.bundle = (cpu, bundle.event.into_iter());
        Ok(())
    }

    /// Who the threads are; a process's first thread goes without saying in traces of older recorders.
    fn tree(&mut self, at_ns: u64, tree: ProcessTree) {
        let said: HashSet<Option<i32>> = tree.threads.iter().map(|t| t.tid).collect();
        let leaders = tree.processes.into_iter().filter_map(|p| {
            let pid = p.pid.filter(|pid| !said.contains(&Some(*pid)))?;
            Some((pid, pid, p.cmdline.into_iter().next()))
        });
        let others = tree.threads.into_iter();
        let others = others.filter_map(|t| Some((t.tid?, t.tgid?, t.name)));
        for (tid, pid, name) in leaders.chain(others) {
            let thread = Thread {
                tid: Tid(tid as u32),
                pid: Pid(pid as u32),
                name: text(&name.unwrap_or_default()),
            };
            self.give(at_ns, 0, Kind::Thread(thread));
        }
    }

    fn event(&mut self, cpu: u32, bytes: Bytes) -> Result<(), ReadError> {
        let event = FtraceEvent::decode(bytes).map_err(|e| self.corrupt(e.to_string()))?;
        let at = event.timestamp.unwrap_or(self.last_ns);
        let by = Tid(event.pid.unwrap_or(0));
        let tid = |pid: Option<i32>| Tid(pid.unwrap_or(0) as u32);
        if let Some(switch) = event.sched_switch {
            let (prev, next) = (tid(switch.prev_pid), tid(switch.next_pid));
            self.called(at, cpu, prev, switch.prev_comm);
            self.called(at, cpu, next, switch.next_comm);
            let kind = Kind::Switch {
                prev,
                prev_state: State(switch.prev_state.unwrap_or(0) as u16),
                next,
                next_priority: switch.next_prio.unwrap_or(0),
            };
            self.give(at, cpu, kind);
        } else if let Some(waking) = event.sched_waking {
            let thread = tid(waking.pid);
            self.called(at, cpu, thread, waking.comm);
            let flags = event.common_flags.unwrap_or(0);
            let kind = Kind::Wakeup {
                thread,
                by: (flags & (FLAG_HARDIRQ | FLAG_SOFTIRQ) == 0).then_some(by),
                last_cpu: waking.target_cpu.unwrap_or(0) as u32,
            };
            self.give(at, cpu, kind);
        } else if let Some(new) = event.task_newtask {
            let tid = tid(new.pid);
            let joins = new.clone_flags.unwrap_or(0) & CLONE_THREAD != 0;
            let process = joins.then(|| self.threads.process_of(by)).flatten();
            let thread = Thread {
                tid,
                pid: process.unwrap_or(Pid(tid.0)),
                name: text(&new.comm.unwrap_or_default()),
            };
            self.give(at, cpu, Kind::New { thread, by });
        } else if let Some(rename) = event.task_rename {
            let (tid, name) = (tid(rename.pid), rename.newcomm.unwrap_or_default());
            let name = text(&name);
            self.give(at, cpu, Kind::Rename { tid, name });
        }
        Ok(())
    }

    /// An event calls a thread so: news, if the trace has not said so before.
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
            if let Some(bytes) = self.bundle.1.next() {
                self.event(self.bundle.0, bytes)?;
                continue;
            }
            let Some(packet) = self.packet()? else {
                return Ok(None);
            };
            if let Some(tree) = packet.process_tree {
                self.tree(packet.timestamp.unwrap_or(self.last_ns), tree);
            }
            if let Some(bundle) = packet.ftrace_events {
                self.begin_bundle(packet.timestamp, bundle)?;
            }
        }
    }
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
