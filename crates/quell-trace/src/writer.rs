//! Writes a trace, an event at a time.

use crate::event::{Event, IDLE, Kind, Thread};
use crate::proto::{
    CLOCK_BOOTTIME, CLOCK_MONOTONIC, CLOCK_REALTIME, CLONE_THREAD, Clock, ClockSnapshot,
    FLAG_HARDIRQ, FtraceEvent, FtraceEventBundle, Process, ProcessTree, SchedSwitch, SchedWaking,
    SystemInfo, TaskNewtask, TaskRename, TracePacket, TreeThread, Utsname,
};
use crate::threads::Threads;
use prost::Message;
use prost::bytes::Bytes;
use quell_model::Tid;
use std::io::{self, Write};

/// The number of bytes gathered before they are written.
const BUFFER: usize = 1 << 16;

/// The most events of a CPU, or threads, in a packet.
const PACKET_EVENTS: usize = 256;

/// The only sequence of packets.
const SEQUENCE: u32 = 1;

/// The system that a trace is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// The kernel's release, as `uname -r` says it. Perfetto reads thread states by it.
    pub release: String,
    /// The kernel's build, as `uname -v` says it; may be empty.
    pub version: String,
    /// The architecture, as `uname -m` says it.
    pub machine: String,
    /// The clocks when the trace began; `None` for a simulated machine.
    pub clocks: Option<Clocks>,
}

/// One moment on several clocks, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// CLOCK_BOOTTIME, the clock of all events.
    pub boottime_ns: u64,
    /// CLOCK_MONOTONIC at that moment.
    pub monotonic_ns: u64,
    /// CLOCK_REALTIME at that moment: since 1970.
    pub realtime_ns: u64,
}

/// A writer of a trace. Events must come in the order of their times, as the reader gives them in the order
/// of the file.
///
/// Events that were not flushed are lost when the writer is dropped: [`Writer::finish`] ends a trace.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    buffer: Vec<u8>,
    open: Open,
    threads: Threads,
}

/// The packet that is being filled.
#[derive(Debug)]
enum Open {
    None,
    /// A bundle of events, with a time where the packet needs one.
    Bundle(Option<u64>, Box<FtraceEventBundle>),
    Tree(u64, ProcessTree),
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// The call fails if `out` cannot be written.
    pub fn new(out: W, system: &System) -> io::Result<Writer<W>> {
        let mut writer = Writer {
            out,
            buffer: Vec::with_capacity(BUFFER + 4096),
            open: Open::None,
            threads: Threads::default(),
        };
        if let Some(clocks) = &system.clocks {
            let clock = |id, ns| Clock {
                clock_id: Some(id),
                timestamp: Some(ns),
            };
            writer.packet(TracePacket {
                timestamp: Some(clocks.boottime_ns),
                clock_snapshot: Some(ClockSnapshot {
                    clocks: vec![
                        clock(CLOCK_BOOTTIME, clocks.boottime_ns),
                        clock(CLOCK_MONOTONIC, clocks.monotonic_ns),
                        clock(CLOCK_REALTIME, clocks.realtime_ns),
                    ],
                    primary_trace_clock: Some(CLOCK_BOOTTIME),
                }),
                ..TracePacket::default()
            })?;
        }
        writer.packet(TracePacket {
            system_info: Some(SystemInfo {
                utsname: Some(Utsname {
                    sysname: Some("Linux".to_string()),
                    version: Some(system.version.clone()),
                    release: Some(system.release.clone()),
                    machine: Some(system.machine.clone()),
                }),
            }),
            ..TracePacket::default()
        })?;
        Ok(writer)
    }

    /// Adds an event.
    ///
    /// # Errors
    /// The call fails if the file cannot be written.
    pub fn write(&mut self, event: &Event) -> io::Result<()> {
        match &event.kind {
            Kind::Thread(thread) => self.thread(event.at_ns, thread)?,
            Kind::Lost => {
                self.close()?;
                let bundle = FtraceEventBundle {
                    lost_events: Some(true),
                    cpu: Some(event.cpu),
                    ..FtraceEventBundle::default()
                };
                // The time of the packet says where events are missing even if none follow.
                self.open = Open::Bundle(Some(event.at_ns), Box::new(bundle));
            }
            _ => {
                let bytes = self.ftrace(event).encode_to_vec().into();
                self.bundle(event.cpu)?.event.push(bytes);
                if let Kind::New { thread, by } = &event.kind {
                    // The process of a new thread is its creator's; where that is not known it has to be
                    // written.
                    let own = thread.pid.0 == thread.tid.0;
                    if !own && self.threads.process_of(*by) != Some(thread.pid) {
                        self.thread(event.at_ns, thread)?;
                    }
                }
            }
        }
        self.threads.follow(event);
        Ok(())
    }

    /// Writes all events to the file: the file can then be read up to here.
    ///
    /// # Errors
    /// The call fails if the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.close()?;
        self.out.write_all(&self.buffer)?;
        self.buffer.clear();
        self.out.flush()
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// The call fails if the file cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.out)
    }

    /// A bundle of this CPU with room for an event: the present bundle, if it is this CPU's, so that the
    /// order of the file is the order of the events.
    fn bundle(&mut self, cpu: u32) -> io::Result<&mut FtraceEventBundle> {
        let fits = matches!(&self.open, Open::Bundle(_, bundle)
            if bundle.cpu == Some(cpu) && bundle.event.len() < PACKET_EVENTS);
        if !fits {
            self.close()?;
            let bundle = FtraceEventBundle {
                cpu: Some(cpu),
                ..FtraceEventBundle::default()
            };
            self.open = Open::Bundle(None, Box::new(bundle));
        }
        match &mut self.open {
            Open::Bundle(_, bundle) => Ok(bundle),
            Open::None | Open::Tree(..) => Err(io::ErrorKind::Other.into()),
        }
    }

    fn thread(&mut self, at_ns: u64, thread: &Thread) -> io::Result<()> {
        let fits = matches!(&self.open, Open::Tree(at, tree)
            if *at == at_ns && tree.threads.len() < PACKET_EVENTS);
        if !fits {
            self.close()?;
            self.open = Open::Tree(at_ns, ProcessTree::default());
        }
        let Open::Tree(_, tree) = &mut self.open else {
            return Ok(());
        };
        let name = Bytes::copy_from_slice(thread.name.as_bytes());
        if thread.tid.0 == thread.pid.0 {
            tree.processes.push(Process {
                pid: Some(thread.pid.0 as i32),
                cmdline: vec![name.clone()],
                cmdline_is_comm: Some(true),
            });
        }
        tree.threads.push(TreeThread {
            tid: Some(thread.tid.0 as i32),
            tgid: Some(thread.pid.0 as i32),
            name: Some(name),
        });
        Ok(())
    }

    /// Writes the packet that is being filled.
    fn close(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.open, Open::None) {
            Open::None => Ok(()),
            Open::Bundle(timestamp, bundle) => self.packet(TracePacket {
                timestamp,
                ftrace_events: Some(*bundle),
                ..TracePacket::default()
            }),
            Open::Tree(at_ns, tree) => self.packet(TracePacket {
                timestamp: Some(at_ns),
                process_tree: Some(tree),
                ..TracePacket::default()
            }),
        }
    }

    /// Writes a packet, which is field 1 of the whole file's message.
    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let packet = TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            ..packet
        };
        prost::encoding::message::encode(1, &packet, &mut self.buffer);
        if self.buffer.len() >= BUFFER {
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    fn ftrace(&self, event: &Event) -> FtraceEvent {
        let base = FtraceEvent {
            timestamp: Some(event.at_ns),
            ..FtraceEvent::default()
        };
        match &event.kind {
            Kind::Switch {
                prev,
                prev_state,
                next,
                next_priority,
            } => FtraceEvent {
                pid: Some(prev.0),
                sched_switch: Some(SchedSwitch {
                    prev_comm: self.name(*prev, event.cpu),
                    prev_pid: Some(prev.0 as i32),
                    prev_state: Some(prev_state.0.into()),
                    next_comm: self.name(*next, event.cpu),
                    next_pid: Some(next.0 as i32),
                    next_prio: Some(*next_priority),
                }),
                ..base
            },
            Kind::Wakeup {
                thread,
                by,
                last_cpu,
            } => FtraceEvent {
                pid: Some(by.unwrap_or(IDLE).0),
                common_flags: by.is_none().then_some(FLAG_HARDIRQ),
                sched_waking: Some(SchedWaking {
                    comm: self.name(*thread, event.cpu),
                    pid: Some(thread.0 as i32),
                    success: Some(1),
                    target_cpu: Some(*last_cpu as i32),
                }),
                ..base
            },
            Kind::New { thread, by } => FtraceEvent {
                pid: Some(by.0),
                task_newtask: Some(TaskNewtask {
                    pid: Some(thread.tid.0 as i32),
                    comm: Some(Bytes::copy_from_slice(thread.name.as_bytes())),
                    clone_flags: Some(if thread.tid.0 == thread.pid.0 {
                        0
                    } else {
                        CLONE_THREAD
                    }),
                }),
                ..base
            },
            Kind::Rename { tid, name } => FtraceEvent {
                pid: Some(tid.0),
                task_rename: Some(TaskRename {
                    pid: Some(tid.0 as i32),
                    oldcomm: self.name(*tid, event.cpu),
                    newcomm: Some(Bytes::copy_from_slice(name.as_bytes())),
                }),
                ..base
            },
            // These events are not in a bundle: write() handles them.
            Kind::Thread(_) | Kind::Lost => base,
        }
    }

    /// The name of a thread where it is known; idle threads have the names that the kernel gives them.
    fn name(&self, tid: Tid, cpu: u32) -> Option<Bytes> {
        match self.threads.get(tid) {
            Some(known) => Some(Bytes::copy_from_slice(known.name.as_bytes())),
            None if tid == IDLE => Some(format!("swapper/{cpu}").into()),
            None => None,
        }
    }
}
