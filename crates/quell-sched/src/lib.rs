//! Quell's own scheduler: a sched_ext scheduler (Linux 6.12 or newer) that runs every ordinary thread
//! of the host, and its loader.
//!
//! Problem: Stock interfaces can nudge the kernel's scheduler, not tell it which thread must not wait.
//! Approach: BPF programs (`src/bpf`) decide which thread runs, when and where; the arithmetic of those
//! decisions (`src/policy`) calls nothing and is compiled natively as well. This crate loads the programs,
//! tells them what the agent wants of threads, and reads their counters. Without an agent the programs
//! schedule well by themselves; if the loader ends in any way, the kernel's own scheduler takes over.
//!
//! Units: nanoseconds; weights in the scale of cgroup v2 (1 to 10 000, 100 by default).

mod arguments;
mod layout;
pub mod native;
pub mod policy;
mod rate_loop;
mod rate_solver;
mod stats;

pub use arguments::Arguments;
pub use rate_solver::PERIOD as RATE_PERIOD;
pub use stats::{CpuStats, Stats};

use layout::{CpuCtx, ExitRecord, Options as RawOptions, as_bytes, from_bytes};
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, Program, ProgramInput};
use quell_bpf::Log;
use quell_model::config::{AgentFile, Criticality, Mechanism};
use quell_model::{CpuId, ServerTerms, TenantWeight, ThreadPlan, Tid, Topology, Weight};
use rate_loop::RateLoop;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;

/// The compiled `bpf/quell.bpf.c`.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/quell.bpf.o"));

/// The maps of quell-bpf's headers: a monitor lends some of them; without a monitor none is needed.
const OBSERVING: [&str; 8] = [
    "threads",
    "tid_slots",
    "cpu_logs",
    "wait_rows",
    "occasions",
    "free_slots",
    "publish",
    "stats",
];

const STATE: &str = "/sys/kernel/sched_ext/state";
const OPS: &str = "/sys/kernel/sched_ext/root/ops";

/// Options of the scheduler, which are fixed once it is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Order threads by how long the work that they serve waits, not by when they became ready themselves.
    pub causal: bool,
    /// Give threads private rescheduling latencies and let urgent ones preempt.
    pub asymmetry: bool,
    /// Put threads of short requests before threads of long requests that came at the same time.
    pub requests: bool,
    /// Give every tenant (a cgroup directly below the root, or a thread in none) its share of the whole host,
    /// by weight. Off by default, as it costs latency where CPUs lack: docs/results/scheduler.md.
    pub share: bool,
    /// Run threads with servers ([`Scheduler::set_server`]) before threads that only have weights, which
    /// share what servers leave. Needs `share`.
    pub criticality: bool,
    /// A thread's rescheduling latency, where nobody set one, as a multiple of the time it usually
    /// runs per wakeup: 0 to 16, in steps of 1/16.
    pub stretch: f64,
    /// How much earlier a ready thread's deadline must be than a running thread's, in ns, to preempt it.
    pub margin_ns: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            causal: true,
            asymmetry: true,
            requests: true,
            share: false,
            criticality: false,
            stretch: 1.0,
            margin_ns: 1_000_000,
        }
    }
}

impl Options {
    /// The options that a configuration asks for.
    pub fn configured(file: &AgentFile) -> Options {
        let defaults = Options::default();
        let has = |mechanism| file.agent.has(mechanism);
        Options {
            causal: match has(Mechanism::Asymmetry) {
                true => file.asymmetry.causal,
                false => defaults.causal,
            },
            // Threads without servers share what servers leave.
            share: has(Mechanism::Share) || has(Mechanism::Criticality),
            criticality: has(Mechanism::Criticality),
            ..defaults
        }
    }
}

/// The reason why this host cannot run the scheduler.
#[derive(Debug, thiserror::Error)]
pub enum Unsupported {
    /// The kernel has no sched_ext (CONFIG_SCHED_CLASS_EXT).
    #[error(
        "the kernel has no sched_ext ({STATE} is missing; Linux 6.12 with CONFIG_SCHED_CLASS_EXT)"
    )]
    NoSchedExt,
    /// The kernel has no type information (CONFIG_DEBUG_INFO_BTF).
    #[error("the kernel has no BTF (/sys/kernel/btf/vmlinux is missing)")]
    NoBtf,
    /// The kernel's BTF describes its functions with arguments that callers cannot give.
    #[error(
        "the kernel's BTF is malformed: `{0}` has an implicit argument, so no sched_ext scheduler \
         loads on it; another build of the kernel may do"
    )]
    MalformedBtf(&'static str),
}

/// The reason why the scheduler did not load, or why a request to it failed.
#[derive(Debug, thiserror::Error)]
pub enum SchedError {
    /// The host cannot run the scheduler.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// Another sched_ext scheduler runs, of this name.
    #[error("another sched_ext scheduler runs (`{0}`): stop it first")]
    Occupied(String),
    /// The host has more CPUs, or more caches, than the scheduler is made for.
    #[error("{what} {value}: this scheduler handles up to {max}")]
    Limit {
        /// The thing that the host has too many of, in words.
        what: &'static str,
        /// The number that the host has.
        value: usize,
        /// The number that the scheduler is made for.
        max: usize,
    },
    /// The kernel refused the scheduler.
    #[error("the kernel refused the scheduler: {reason}{log}")]
    Refused {
        /// The step that failed, in words.
        reason: String,
        /// The end of libbpf's log, after a line break, or nothing.
        log: String,
    },
    /// The thread does not exist, or is not under the scheduler.
    #[error("thread {0} is not there")]
    NoThread(Tid),
    /// A call on the loaded scheduler failed.
    #[error("{what}: {source}")]
    Io {
        /// The step that was attempted, in words.
        what: &'static str,
        /// The kernel's answer.
        source: libbpf_rs::Error,
    },
}

/// How the scheduler exited.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Exit {
    /// The kernel's category (`enum scx_exit_kind`): 64 to 1023 on request, 1024 and above for errors.
    pub kind: u32,
    /// The exit code, for exits on request.
    pub code: i64,
    /// The category in the kernel's words.
    pub reason: String,
    /// The kernel's message on what happened.
    pub message: String,
}

impl Exit {
    /// Whether the kernel ended the scheduler for an error (a stall, a wrong request), not on request.
    pub fn is_error(&self) -> bool {
        self.kind >= 1024
    }

    /// Whether the kernel asks to load the scheduler again.
    pub fn wants_restart(&self) -> bool {
        !self.is_error() && (self.code as u64) >> 48 & 1 == 1
    }
}

/// The settings that the agent wants of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadSetting {
    /// The tenant that the thread competes in ([`Scheduler::set_tenant`]); 0: it competes in its cgroup.
    pub tenant: u32,
    /// The server that serves the thread while the thread is pinned to the server's CPU; 0: none.
    pub server: u32,
    /// The thread's weight, 1 to 10 000; `None`: by nice.
    pub weight: Option<u32>,
    /// The thread's rescheduling latency, in ns; `None`: from the thread's own behaviour.
    pub latency_ns: Option<u64>,
}

/// A server of a CPU, and its terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerSetting {
    /// A number of the caller's choice, 1 to 1023; 0: the best-effort server of the CPU.
    pub number: u32,
    /// The CPU that the server is on.
    pub cpu: CpuId,
    /// The server's terms; `None` ends the server: its threads compete by weight again.
    pub terms: Option<ServerTerms>,
}

impl ServerSetting {
    fn raw(&self) -> layout::ServerSetting {
        let terms =
            self.terms
                .map_or_else(layout::ServerTerms::default, |it| layout::ServerTerms {
                    period_ns: it.server.period_ns,
                    budget_lo_ns: it.server.budget_ns,
                    budget_hi_ns: it.server.pessimistic_ns,
                    rel_vdeadline_ns: it.virtual_deadline_ns,
                    chunk_ns: match it.parts {
                        0 | 1 => 0,
                        parts => it.server.budget_ns.div_ceil(parts.into()),
                    },
                    hi_crit: (it.server.criticality == Criticality::High).into(),
                    hi_periods: it.temperature,
                });
        layout::ServerSetting {
            server: self.number,
            cpu: self.cpu.0,
            terms,
        }
    }
}

/// The CPU time that a server got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct ServerStats {
    /// CPU time used of the budget of the present period, in ns.
    pub used_ns: u64,
    /// The number of periods that ended before the server had its budget.
    pub missed: u64,
}

impl ThreadSetting {
    fn raw(&self, tid: u32) -> layout::ThreadSetting {
        layout::ThreadSetting {
            tid,
            tenant: self.tenant,
            weight: self.weight.unwrap_or(0).min(10_000),
            server: self.server,
            latency_ns: self.latency_ns.unwrap_or(0),
        }
    }

    /// The settings that a plan wants of a thread. `tenant`: the number of the tenant that the thread
    /// competes in; 0: the thread competes in its cgroup.
    pub fn planned(tenant: u32, plan: &ThreadPlan) -> ThreadSetting {
        // cgroup v2's scale, in which nice 0 is 100.
        let weight = |weight: Weight| {
            let units = (weight.0 * 100 + Weight::NICE_0.0 / 2) / Weight::NICE_0.0;
            units.clamp(1, 10_000) as u32
        };
        ThreadSetting {
            tenant,
            server: plan.server.unwrap_or(0),
            weight: plan.weight.map(weight),
            latency_ns: plan.latency_ns,
        }
    }
}

/// The loaded scheduler. Dropping this ends the scheduler, and the kernel's own scheduler takes over.
#[derive(Debug)]
pub struct Scheduler {
    cpus: MapHandle,
    llcs: MapHandle,
    servers: MapHandle,
    groups: MapHandle,
    exit: MapHandle,
    numbers: Vec<CpuId>,
    // Before the object: ends the scheduler.
    _link: Link,
    // After the link: the end of the scheduler does not wait for a step of the loop.
    _rate_loop: Option<RateLoop>,
    object: Object,
}

impl Scheduler {
    /// Checks that this host can run the scheduler, as far as that can be told without trying.
    ///
    /// # Errors
    /// The kernel has no sched_ext, or no BTF.
    pub fn supported() -> Result<(), Unsupported> {
        if !Path::new(STATE).exists() {
            return Err(Unsupported::NoSchedExt);
        }
        if !Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(Unsupported::NoBtf);
        }
        Ok(())
    }

    /// The name of the sched_ext scheduler that runs now, if one does.
    pub fn running() -> Option<String> {
        let state = std::fs::read_to_string(STATE).ok()?;
        if state.trim() == "disabled" {
            return None;
        }
        let name = std::fs::read_to_string(OPS).unwrap_or_else(|_| state.clone());
        Some(name.trim().to_string())
    }

    /// Loads the scheduler. When this returns, every thread of the host under an ordinary policy is scheduled
    /// by the scheduler.
    ///
    /// # Errors
    /// As [`Scheduler::observing`].
    pub fn load(topology: &Topology, options: &Options) -> Result<Scheduler, SchedError> {
        Scheduler::observing(topology, options, &[], || ())
    }

    /// Loads the scheduler to count what threads do into a monitor's maps (by name) as well. `take_over` is
    /// called right before the scheduler takes over: a monitor that counted until then must stop. Without
    /// maps the scheduler counts nothing.
    ///
    /// # Errors
    /// The host cannot run the scheduler ([`Scheduler::supported`]) or has more CPUs or caches than the
    /// scheduler is made for, another sched_ext scheduler runs, the kernel refuses the programs, or the rate
    /// loop cannot be started.
    pub fn observing(
        topology: &Topology,
        options: &Options,
        maps: &[(&'static str, MapHandle)],
        take_over: impl FnOnce(),
    ) -> Result<Scheduler, SchedError> {
        Scheduler::supported()?;
        if let Some(name) = Scheduler::running() {
            return Err(SchedError::Occupied(name));
        }
        let possible = libbpf_rs::num_possible_cpus().map_err(io("counting CPUs"))?;
        let llc_of = llcs_of_cpus(topology, possible)?;
        let log = Log::capture();
        let refused = |error: libbpf_rs::Error| SchedError::Refused {
            reason: error.to_string(),
            log: Some(log.tail())
                .filter(|tail| !tail.is_empty())
                .map_or(String::new(), |tail| format!("\n{tail}")),
        };
        let mut open = ObjectBuilder::default()
            .name("quell")
            .and_then(|builder| builder.open_memory(OBJECT))
            .map_err(refused)?;
        quell_bpf::set_preempt_count(&mut open).map_err(refused)?;
        let mut raw = raw_options(options, &llc_of, possible);
        raw.observe = (!maps.is_empty()).into();
        for mut map in open.maps_mut() {
            let name = map.name().to_str().unwrap_or_default();
            if name == ".rodata.options" {
                map.set_initial_value(as_bytes(&raw)).map_err(refused)?;
            } else if let Some((_, lent)) = maps.iter().find(|(known, _)| *known == name) {
                map.reuse_fd(lent.as_fd()).map_err(refused)?;
            } else if OBSERVING.contains(&name) {
                map.set_autocreate(false).map_err(refused)?;
            }
        }
        let mut object = open.load().map_err(refused)?;
        let cpus = map(&object, ".bss.cpus")?;
        let llcs = map(&object, ".bss.llcs")?;
        let servers = map(&object, ".bss.servers")?;
        let groups = map(&object, "groups")?;
        let exit = map(&object, ".bss.exit")?;
        let rate_inputs = match raw.share {
            0 => None,
            _ => Some(rate_loop::RateInputs::open(
                &map(&object, ".bss.slot_hints")?,
                &map(&object, ".bss.slots")?,
                map(&object, ".bss.cpus")?,
                map(&object, "groups")?,
                possible,
            )?),
        };
        let mut link = None;
        take_over();
        for mut map in object.maps_mut() {
            if map.name() == OsStr::new("quell_ops") {
                link = Some(map.attach_struct_ops().map_err(refused)?);
            }
        }
        let link = link.ok_or_else(|| SchedError::Refused {
            reason: "the object has no operations".into(),
            log: String::new(),
        })?;
        let numbers: Vec<CpuId> = topology.cpus.iter().map(|cpu| cpu.id).collect();
        let rate_loop = rate_inputs.map(rate_loop::RateInputs::start).transpose()?;
        let scheduler = Scheduler {
            cpus,
            llcs,
            servers,
            groups,
            exit,
            numbers,
            _rate_loop: rate_loop,
            _link: link,
            object,
        };
        if let Some(exit) = scheduler.exited()? {
            return Err(SchedError::Refused {
                reason: format!("{}: {}", exit.reason, exit.message),
                log: String::new(),
            });
        }
        Ok(scheduler)
    }

    /// Sets what is wanted of a thread, until the thread exits.
    ///
    /// # Errors
    /// [`SchedError::NoThread`] if the thread does not exist, or is not under the scheduler;
    /// [`SchedError::Io`] if the scheduler's program cannot be run.
    pub fn set_thread(&mut self, tid: Tid, setting: ThreadSetting) -> Result<(), SchedError> {
        match self.call("quell_set_thread", &setting.raw(tid.0), "setting a thread")? {
            0 => Ok(()),
            _ => Err(SchedError::NoThread(tid)),
        }
    }

    /// Makes a tenant that is no cgroup, which threads can then compete as part of from their next wakeup or
    /// turn on, or changes its weight; `None` ends it. `tenant`: a number of the caller's choice, from 1.
    ///
    /// # Errors
    /// There are 65536 tenants and cgroups already, or the scheduler's program cannot be run.
    pub fn set_tenant(
        &mut self,
        tenant: u32,
        weight: Option<TenantWeight>,
    ) -> Result<(), SchedError> {
        let raw = layout::TenantSetting {
            tenant,
            weight: weight.map_or(0, |weight| weight.0),
        };
        let what = "setting a tenant";
        match self.call("quell_set_tenant", &raw, what)? {
            0 => Ok(()),
            error => Err(io(what)(std::io::Error::from_raw_os_error(-error).into())),
        }
    }

    /// Makes a server of a CPU, changes its terms from its next period on, or ends it.
    ///
    /// # Errors
    /// The CPU has 32 servers already (ENOSPC), the server's threads are still runnable on its previous CPU
    /// (EBUSY), the scheduler was loaded without `criticality` or does not know the CPU or the number
    /// (EINVAL), or the scheduler's program cannot be run.
    pub fn set_server(&mut self, setting: ServerSetting) -> Result<(), SchedError> {
        let what = "setting a server";
        match self.call("quell_set_server", &setting.raw(), what)? {
            0 => Ok(()),
            error => Err(io(what)(std::io::Error::from_raw_os_error(-error).into())),
        }
    }

    /// Runs one of the scheduler's syscall programs; returns the program's result.
    fn call<T: layout::Plain>(
        &mut self,
        name: &str,
        argument: &T,
        what: &'static str,
    ) -> Result<i32, SchedError> {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        let program = self
            .object
            .progs_mut()
            .find(|program| program.name() == OsStr::new(name))
            .ok_or_else(|| io(what)(missing.into()))?;
        let mut bytes = as_bytes(argument).to_vec();
        let input = ProgramInput {
            context_in: Some(&mut bytes),
            ..ProgramInput::default()
        };
        let output = program.test_run(input).map_err(io(what))?;
        Ok(output.return_value as i32)
    }

    /// Clears what was wanted of a thread.
    ///
    /// # Errors
    /// As [`Scheduler::set_thread`].
    pub fn clear_thread(&mut self, tid: Tid) -> Result<(), SchedError> {
        self.set_thread(tid, ThreadSetting::default())
    }

    /// The number of instructions that the kernel's verifier processed when the scheduler was loaded.
    ///
    /// # Errors
    /// The kernel does not tell the ids of the scheduler's programs.
    pub fn verified(&self) -> Result<u64, SchedError> {
        let id = |program: Program<'_>| Program::id_from_fd(program.as_fd());
        let ids: Result<Vec<u32>, _> = self.object.progs().map(id).collect();
        let ids = ids.map_err(io("looking at programs"))?;
        Ok(ProgInfoIter::default()
            .filter(|info| ids.contains(&info.id))
            .map(|info| u64::from(info.verified_insns))
            .sum())
    }

    /// The CPU time that the servers got, each at the server's number.
    ///
    /// # Errors
    /// As [`Scheduler::stats`].
    pub fn servers(&self) -> Result<Vec<ServerStats>, SchedError> {
        let bytes = value(&self.servers, "reading the servers")?;
        let slots = bytes.chunks_exact(size_of::<layout::ServerCtx>());
        let slots = slots.map(from_bytes::<layout::ServerCtx>);
        Ok(slots.map(|slot| slot.stats()).collect())
    }

    /// The scheduler's counters since it was loaded.
    ///
    /// # Errors
    /// The kernel does not let one of the scheduler's maps be read.
    pub fn stats(&self) -> Result<Stats, SchedError> {
        let bytes = value(&self.cpus, "reading the CPUs' counters")?;
        let slots: Vec<CpuCtx> = bytes
            .chunks_exact(size_of::<CpuCtx>())
            .map(from_bytes)
            .collect();
        let known = self
            .numbers
            .iter()
            .filter_map(|cpu| Some((*cpu, slots.get(cpu.0 as usize)?)));
        let mut stats = Stats::of(known);
        let bytes = value(&self.llcs, "reading the LLCs")?;
        for bytes in bytes.chunks_exact(size_of::<layout::LlcCtx>()) {
            let llc: layout::LlcCtx = from_bytes(bytes);
            stats.load += layout::weight(llc.weight_sum);
            stats.queued += u64::from(llc.nr_queued);
        }
        for key in self.groups.keys() {
            // The group may have been deleted meanwhile: it had no threads.
            let found = self.groups.lookup(&key, MapFlags::ANY);
            if let Some(bytes) = found.map_err(io("reading the groups"))? {
                let group: layout::Group = from_bytes(&bytes);
                stats.group_load += layout::weight(group.active_weight);
            }
        }
        Ok(stats)
    }

    /// The scheduler's exit; `None`: the scheduler has not exited.
    ///
    /// # Errors
    /// As [`Scheduler::stats`].
    pub fn exited(&self) -> Result<Option<Exit>, SchedError> {
        let bytes = value(&self.exit, "reading the exit record")?;
        let record: ExitRecord = from_bytes(&bytes);
        if record.kind == 0 {
            return Ok(None);
        }
        Ok(Some(Exit {
            kind: record.kind,
            code: record.code,
            reason: text(&record.reason),
            message: text(&record.message),
        }))
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn io(what: &'static str) -> impl Fn(libbpf_rs::Error) -> SchedError {
    move |source| SchedError::Io { what, source }
}

fn map(object: &Object, name: &'static str) -> Result<MapHandle, SchedError> {
    let map = object
        .maps()
        .find(|map| map.name() == OsStr::new(name))
        .ok_or_else(|| SchedError::Refused {
            reason: format!("the object has no map `{name}`"),
            log: String::new(),
        })?;
    MapHandle::try_from(&map).map_err(io("opening a map"))
}

fn value(map: &MapHandle, what: &'static str) -> Result<Vec<u8>, SchedError> {
    let found = map
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(io(what))?;
    Ok(found.unwrap_or_default())
}

/// The LLC of each possible CPU: CPUs that share a last-level cache, in parts of at most 64. Offline CPUs
/// belong to the last LLC with room, or to further ones.
fn llcs_of_cpus(topology: &Topology, possible: usize) -> Result<Vec<u16>, SchedError> {
    if possible > layout::MAX_CPUS {
        return Err(SchedError::Limit {
            what: "possible CPUs:",
            value: possible,
            max: layout::MAX_CPUS,
        });
    }
    let mut llc_of = vec![layout::NO_LLC; layout::MAX_CPUS];
    let mut caches: BTreeMap<u32, Vec<CpuId>> = BTreeMap::new();
    for cpu in &topology.cpus {
        caches.entry(cpu.llc).or_default().push(cpu.id);
    }
    let mut next = 0u16;
    let mut room = 0;
    for cpus in caches.values() {
        for part in cpus.chunks(layout::LLC_CPUS) {
            for cpu in part {
                if let Some(entry) = llc_of.get_mut(cpu.0 as usize) {
                    *entry = next;
                }
            }
            room = layout::LLC_CPUS - part.len();
            next += 1;
        }
    }
    for entry in llc_of.iter_mut().take(possible) {
        if *entry == layout::NO_LLC {
            if room == 0 {
                next += 1;
                room = layout::LLC_CPUS;
            }
            room -= 1;
            *entry = (next - 1) | layout::OFFLINE;
        }
    }
    if usize::from(next) > layout::MAX_LLCS {
        return Err(SchedError::Limit {
            what: "last-level caches:",
            value: next.into(),
            max: layout::MAX_LLCS,
        });
    }
    Ok(llc_of)
}

fn raw_options(options: &Options, llc_of: &[u16], possible: usize) -> RawOptions {
    let mut raw = RawOptions {
        margin_ns: options.margin_ns,
        stretch: (options.stretch.clamp(0.0, 16.0) * 16.0) as u32,
        causal: options.causal.into(),
        asymmetry: options.asymmetry.into(),
        share: options.share.into(),
        nr_llcs: llc_of
            .iter()
            .filter(|llc| **llc != layout::NO_LLC)
            .map(|llc| u32::from(llc & !layout::OFFLINE) + 1)
            .max()
            .unwrap_or(0),
        nr_cpus: possible as u32,
        observe: 0,
        // Requests only affect deadlines that asymmetry turns on.
        requests: (options.requests && options.asymmetry).into(),
        criticality: (options.criticality && options.share).into(),
        unused: 0,
        llc_of: [layout::NO_LLC; layout::MAX_CPUS],
    };
    raw.llc_of.copy_from_slice(llc_of);
    raw
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_model::Cpu;

    #[test]
    fn llcs_are_split_into_parts() {
        let mut topology = Topology::flat(70);
        topology.cpus.push(Cpu {
            id: CpuId(70),
            core: 70,
            llc: 1,
            socket: 0,
        });
        let found = llcs_of_cpus(&topology, 73).unwrap();
        assert_eq!(found[0], 0);
        assert_eq!((found[63], found[64], found[69], found[70]), (0, 1, 1, 2));
        assert_eq!(found[72], 2 | layout::OFFLINE);
        assert_eq!(found[73], layout::NO_LLC);
        assert_eq!(raw_options(&Options::default(), &found, 73).nr_llcs, 3);
    }

    #[test]
    fn too_many_cpus_are_an_error() {
        assert!(matches!(
            llcs_of_cpus(&Topology::flat(1), 2000),
            Err(SchedError::Limit { value: 2000, .. })
        ));
    }

    /// Of a bool that a kernel function returns only the lowest byte is defined: code that reads more sees
    /// true at times.
    #[test]
    fn the_kernels_bools_are_looked_at_as_such() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bpf");
        let sources: Vec<(String, String)> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                (
                    path.display().to_string(),
                    std::fs::read_to_string(path).unwrap(),
                )
            })
            .collect();
        let declared = |line: &str| {
            let (name, _) = line.strip_prefix("bool ")?.split_once('(')?;
            (name.contains("scx_bpf") || name.starts_with("bpf_")).then(|| format!("{name}("))
        };
        let names = sources.iter().flat_map(|(_, text)| text.lines());
        let names: Vec<String> = names.filter_map(declared).collect();
        assert!(names.len() > 10, "{names:?}");
        for (file, text) in &sources {
            let code = |line: &&str| declared(line).is_none() && !line.starts_with(['/', ' ']);
            for line in text.lines().filter(code) {
                for name in names.iter().filter(|name| line.contains(*name)) {
                    let masked = line.contains(&format!("IS_TRUE({name}"));
                    let not_looked_at = line.trim_start().starts_with(name);
                    assert!(masked || not_looked_at, "{file}: {line}");
                }
            }
        }
    }
}
