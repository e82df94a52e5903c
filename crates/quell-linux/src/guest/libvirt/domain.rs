//! A domain of libvirt: its guest agent, and the pins of its parts.

use super::api::{
    ERROR_INTERNAL, ERROR_REFUSED, ERROR_TIMEOUT, ERROR_UNRESPONSIVE, IoThreadInfo, LIVE,
    VCPUS_MAXIMUM, VcpuInfo,
};
use super::connection::{Connection, Handle, text};
use crate::guest::agent::{Agent, Channel, nonsense, shortened};
use crate::guest::pins::{from_map, to_change, to_map};
use crate::guest::stat::GuestStat;
use crate::guest::{Guest, GuestError, Online, Part, Pins};
use crate::observe::{proc::Stat, qemu};
use quell_model::{CpuSet, Pid, ThreadRole, Tid};
use quell_sys::sched;
use serde_json::{Value, json};
use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::time::Duration;

/// The greatest size of an answer, in bytes.
const ANSWER_MAX: usize = 256 << 10;
/// `/proc` counts in ticks of USER_HZ.
const TICK_NS: u64 = 10_000_000;
/// A number of virtual CPUs above that of any domain.
const VCPUS_MAX: c_int = 8192;

/// A domain that can be asked, told and pinned.
#[derive(Debug)]
pub struct Domain {
    agent: Agent<Libvirt>,
    process: Pid,
}

/// The connection through libvirt, made when it is used.
#[derive(Debug)]
pub struct Libvirt {
    uuid: String,
    uri: String,
    /// The thread that must be the domain's first virtual CPU, if that is checked.
    first: Option<Tid>,
    handle: Option<Handle>,
}

impl Domain {
    /// The domain of that UUID, of the libvirt at `uri`, which should run in that process.
    pub fn new(process: Pid, uuid: &str, uri: &str, within: Duration) -> Domain {
        let libvirt = Libvirt {
            uuid: uuid.to_string(),
            uri: uri.to_string(),
            first: None,
            handle: None,
        };
        Domain {
            agent: Agent::new(libvirt, within),
            process,
        }
    }

    /// Requires that the first virtual CPU of the domain is that thread: a command line that states a UUID
    /// may lie.
    pub fn with_first(mut self, first: Tid) -> Domain {
        self.agent.channel().first = Some(first);
        self
    }
}

impl Guest for Domain {
    fn stat(&mut self) -> Result<GuestStat, GuestError> {
        self.agent.stat()
    }

    fn set_online(&mut self, wanted: &Online) -> Result<CpuSet, GuestError> {
        self.agent.set_online(wanted)
    }

    fn pins(&mut self) -> Result<Pins, GuestError> {
        self.agent.channel().with(Handle::pins)
    }

    fn pin(&mut self, expected: &[Pins], wanted: &Pins) -> Result<Pins, GuestError> {
        let process = self.process;
        self.agent.channel().with(|handle| {
            let now = handle.pins()?;
            for (part, cpus) in to_change(&now, expected, wanted) {
                handle.pin(part, cpus)?;
            }
            let after = handle.pins()?;
            if let Some(cpus) = wanted.get(Part::Emulator) {
                if after.get(Part::Emulator) == Some(cpus) {
                    let held = expected.iter().filter_map(|it| it.get(Part::Emulator));
                    take_along(process, &held.collect::<Vec<_>>(), cpus);
                }
            }
            Ok(after)
        })
    }
}

/// Moves the emulator's other threads that had the CPUs `from` to the CPUs `to`: without a cpuset controller
/// libvirt moves the main thread of the emulator only.
fn take_along(process: Pid, from: &[&CpuSet], to: &CpuSet) {
    let folder = format!("/proc/{process}/task");
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    for tid in entries.filter_map(|it| it.file_name().to_str()?.parse().ok()) {
        let Ok(name) = std::fs::read_to_string(format!("{folder}/{tid}/comm")) else {
            continue;
        };
        // QEMU's own iothreads, such as the monitor's, belong to the emulator.
        let vcpu = matches!(qemu::role(name.trim_end()), ThreadRole::Vcpu(_));
        if vcpu || name.starts_with("IO iothread") {
            continue;
        }
        let held = sched::affinity(Tid(tid));
        if held.is_ok_and(|held| held != *to && from.iter().any(|it| **it == held)) {
            // The thread may just have ended.
            let _ = sched::set_affinity(Tid(tid), to);
        }
    }
}

impl Libvirt {
    /// Runs `what` on the domain; a connection that broke is given up.
    fn with<T>(
        &mut self,
        what: impl FnOnce(&Handle) -> Result<T, GuestError>,
    ) -> Result<T, GuestError> {
        let handle = match self.handle.take() {
            Some(handle) if handle.connection.is_alive() => handle,
            _ => {
                let handle = Connection::open(&self.uri)?.domain(&self.uuid)?;
                self.first.map_or(Ok(()), |it| handle.has_first(it))?;
                handle
            }
        };
        let done = what(&handle);
        if handle.connection.is_alive() {
            self.handle = Some(handle);
        }
        done
    }
}

impl Channel for Libvirt {
    fn ask(
        &mut self,
        command: &'static str,
        arguments: &Value,
        within: Duration,
    ) -> Result<Value, GuestError> {
        let question = json!({ "execute": command, "arguments": arguments }).to_string();
        let answer = self.with(|handle| handle.ask_agent(command, &question, within))?;
        let answer: Value = serde_json::from_slice(&answer)
            .map_err(|error| nonsense(command, &error.to_string()))?;
        let returned = answer.get("return").cloned();
        returned.ok_or_else(|| nonsense(command, "no result"))
    }

    fn agent(&self) -> u64 {
        // A new connection leads to the same agent: files that it has opened stay open.
        0
    }

    fn give_up(&mut self) {}
}

impl Handle {
    /// The whole answer of the guest agent. libvirt first synchronizes with the agent, for up to 5 s, and
    /// then waits as long as it is told.
    fn ask_agent(
        &self,
        command: &'static str,
        question: &str,
        within: Duration,
    ) -> Result<Vec<u8>, GuestError> {
        let api = self.connection.api;
        let question = text(question)?;
        let seconds = within.as_millis().div_ceil(1000) as c_int;
        // SAFETY: the domain is valid, and the text outlives the call.
        let answer = unsafe {
            (api.qemu.virDomainQemuAgentCommand)(self.as_ptr(), question.as_ptr(), seconds, 0)
        };
        if answer.is_null() {
            let (code, why) = api.last_error();
            let alive = self.connection.is_alive();
            return Err(match code {
                ERROR_UNRESPONSIVE | ERROR_TIMEOUT => GuestError::Unresponsive { why },
                ERROR_INTERNAL | ERROR_REFUSED if alive => GuestError::Refused {
                    command,
                    why: shortened(&why),
                },
                _ => GuestError::Libvirt { call: command, why },
            });
        }
        // SAFETY: libvirt returns a text with a NUL at its end, which belongs to the caller, was allocated
        // with malloc(3) and is freed once after its last use.
        let bytes = unsafe {
            let bytes = CStr::from_ptr(answer).to_bytes().to_vec();
            libc::free(answer.cast());
            bytes
        };
        match bytes.len() <= ANSWER_MAX {
            true => Ok(bytes),
            false => Err(nonsense(command, &format!("more than {ANSWER_MAX} bytes"))),
        }
    }

    /// Checks that the domain's first virtual CPU is that thread. libvirt reports no thread ids, but it reads
    /// the run time of the threads where this process does.
    fn has_first(&self, thread: Tid) -> Result<(), GuestError> {
        let before = ran_ns(thread);
        let mut info = VcpuInfo::default();
        // SAFETY: the domain is valid; at most one `info` is written, and there is one; no map is passed.
        let count = unsafe {
            let get = self.connection.api.libvirt.virDomainGetVcpus;
            get(self.as_ptr(), &raw mut info, 1, null_mut(), 0)
        };
        if count < 1 {
            return Err(self.failed("virDomainGetVcpus"));
        }
        let between = before.zip(ran_ns(thread));
        if between.is_some_and(|(from, to)| (from..=to).contains(&info.cpu_time_ns)) {
            return Ok(());
        }
        Err(GuestError::Libvirt {
            call: "virDomainGetVcpus",
            why: format!(
                "its first virtual CPU is not thread {thread}: its QEMU's UUID is another's"
            ),
        })
    }

    /// The pins of all parts.
    fn pins(&self) -> Result<Pins, GuestError> {
        let api = &self.connection.api.libvirt;
        let bytes = map_bytes();
        let mut pins = Pins::default();
        // SAFETY: the domain is valid.
        let vcpus = unsafe { (api.virDomainGetVcpusFlags)(self.as_ptr(), VCPUS_MAXIMUM) };
        if !(1..=VCPUS_MAX).contains(&vcpus) {
            return Err(self.failed("virDomainGetVcpusFlags"));
        }
        let mut maps = vec![0u8; vcpus as usize * bytes];
        // SAFETY: at most as many maps of as many bytes are written as there is room for.
        let count = unsafe {
            let maps = maps.as_mut_ptr();
            (api.virDomainGetVcpuPinInfo)(self.as_ptr(), vcpus, maps, bytes as c_int, LIVE)
        };
        if count < 0 {
            return Err(self.failed("virDomainGetVcpuPinInfo"));
        }
        for (number, map) in (0..).zip(maps.chunks(bytes)).take(count as usize) {
            pins.set(Part::Vcpu(number), from_map(map));
        }
        let mut map = vec![0u8; bytes];
        // SAFETY: at most one map of as many bytes is written, and there is room for it.
        let count = unsafe {
            let map = map.as_mut_ptr();
            (api.virDomainGetEmulatorPinInfo)(self.as_ptr(), map, bytes as c_int, LIVE)
        };
        match count {
            ..0 => return Err(self.failed("virDomainGetEmulatorPinInfo")),
            // The emulator has no pins of its own.
            0 => pins.set(Part::Emulator, online()),
            _ => pins.set(Part::Emulator, from_map(&map)),
        }
        let mut infos: *mut *mut IoThreadInfo = null_mut();
        // SAFETY: the array is written to `infos` and belongs to the caller, with all that is in it.
        let count = unsafe { (api.virDomainGetIOThreadInfo)(self.as_ptr(), &raw mut infos, LIVE) };
        if count < 0 {
            return Err(self.failed("virDomainGetIOThreadInfo"));
        }
        for at in 0..count as usize {
            // SAFETY: the array has `count` entries; each has a map of as many bytes as it says, and is freed
            // once after its last use.
            unsafe {
                let info = *infos.add(at);
                let (map, length) = ((*info).cpumap, (*info).cpumaplen);
                if !map.is_null() && length > 0 {
                    let map = std::slice::from_raw_parts(map, length as usize);
                    pins.set(Part::Iothread((*info).id), from_map(map));
                }
                (api.virDomainIOThreadInfoFree)(info);
            }
        }
        // SAFETY: the array was allocated by libvirt for the caller, with malloc(3).
        unsafe { libc::free(infos.cast()) };
        Ok(pins)
    }

    /// Pins one part, of the running domain only.
    fn pin(&self, part: Part, cpus: &CpuSet) -> Result<(), GuestError> {
        let api = &self.connection.api.libvirt;
        let mut map = to_map(cpus, map_bytes());
        let (domain, length) = (self.as_ptr(), map.len() as c_int);
        let map = map.as_mut_ptr();
        // SAFETY: the domain is valid; the map has `length` bytes, is read only, and outlives the calls.
        let (call, done) = unsafe {
            match part {
                Part::Vcpu(number) => (
                    "virDomainPinVcpuFlags",
                    (api.virDomainPinVcpuFlags)(domain, number, map, length, LIVE),
                ),
                Part::Emulator => (
                    "virDomainPinEmulator",
                    (api.virDomainPinEmulator)(domain, map, length, LIVE),
                ),
                Part::Iothread(number) => (
                    "virDomainPinIOThread",
                    (api.virDomainPinIOThread)(domain, number, map, length, LIVE),
                ),
            }
        };
        match done {
            0 => Ok(()),
            _ => Err(self.failed(call)),
        }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a domain")
    }
}

/// The run time of a thread, in ns, as exactly as `/proc` has it.
fn ran_ns(thread: Tid) -> Option<u64> {
    let line = std::fs::read(format!("/proc/{thread}/task/{thread}/stat")).ok()?;
    let stat = Stat::parse(&line)?;
    Some((stat.utime + stat.stime) * TICK_NS)
}

/// The number of bytes of a map of this host's CPUs.
fn map_bytes() -> usize {
    let last = cpus("possible").iter().last();
    last.map_or(1, |it| it.0 as usize / 8 + 1)
}

fn online() -> CpuSet {
    cpus("online")
}

fn cpus(which: &str) -> CpuSet {
    let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{which}"));
    text.unwrap_or_default().trim().parse().unwrap_or_default()
}
