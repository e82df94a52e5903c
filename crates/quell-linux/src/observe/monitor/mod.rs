//! The BPF monitor: counts inside the kernel what every thread of every tenant did.
//!
//! Problem: a policy must know how long each thread ran, how long it was ready and what it waited for.
//! Following every scheduler event from user space would cost more than it saves.
//!
//! Approach: BPF programs at the scheduler's trace points count in the kernel (`src/bpf`, each
//! header says how). [`Monitor::read`] copies the counters from mapped memory, without a system call
//! per thread. Counters only grow, so a reader that is late or misses a thread loses only
//! resolution; the figures of a period are the difference of two readings. Processes are assigned to
//! tenants by the caller; the children that they fork follow without a call.
//!
//! Units: ns of CLOCK_MONOTONIC. Needs Linux 5.15 with BTF (arm64: 5.18), CAP_BPF and CAP_PERFMON,
//! and to run in the host's pid namespace. Kernel memory: 448 bytes per thread of [`Limits`],
//! 2 bytes per possible thread id (`kernel.pid_max`), 2 KiB per CPU, 9 KiB per tenant
//! of [`Limits`], 0.2 MiB besides.
//!
//! Cost, as CPU time of a pipe ping-pong on one CPU (Linux 6.18 in a virtual machine, 1.0 us per
//! switch without the monitor): 0.1 us more per switch for threads of no tenant, 0.2 us for threads
//! of a tenant, their wakeups included.

mod error;
mod layout;
pub(crate) mod program;
#[cfg(test)]
mod random_histories;
mod reading;

pub use reading::{
    OCCASION_BUCKETS, ProcessEvent, ProcessEvents, RawCpu, RawTenant, RawThread, RawWaker, Reading,
    TenantIndex, WAIT_BUCKETS, WAKERS,
};

pub use error::MonitorError;
pub use layout::cause;
use layout::{OccasionsCopy, ThreadSlot, event};
use libbpf_rs::{MapCore, MapFlags};
pub use program::{Limits, TracePoints};
use program::{Programs, io_error, walk};
use quell_model::{Pid, ThreadState};
use quell_sys::clock::monotonic_ns;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering::Relaxed;

/// The loaded and attached monitor. Dropping it detaches and unloads everything.
#[derive(Debug)]
pub struct Monitor {
    programs: Programs,
    reading: Reading,
    /// Counts readings (wraps).
    readings: u32,
    /// Tenants to which some process was ever assigned, ascending.
    tenants: Vec<TenantIndex>,
    /// Processes assigned that may have exited before the assignment took effect.
    unverified: Vec<(Pid, TenantIndex)>,
    /// Whether assignments changed since the last pass over all tasks.
    dirty: bool,
    /// For each thread of the reading, what shows that it slept on. It is kept apart, since for most threads
    /// it is all that is read.
    sleepers: Vec<Sleeper>,
    /// For each slot, the generation that was reported as ended.
    reported: Vec<u32>,
    /// Slots reported as ended by the last reading, free from the next reading on. One reading of delay
    /// gives programs that looked a slot up before its thread ended ample time to let go of it.
    ended: Vec<u32>,
    /// Events of processes that exited before they were assigned.
    stillborn: Vec<ProcessEvent>,
    events_lost: u64,
}

/// A thread of the last reading.
#[derive(Debug, Clone, Copy)]
struct Sleeper {
    slot: u32,
    /// The slot's stamp while the thread sleeps on; `None`: the thread did not sleep.
    asleep: Option<u64>,
}

impl Monitor {
    /// Loads the programs and attaches them.
    ///
    /// # Errors
    /// The call fails if a limit is out of range ([`MonitorError::Limit`]), the process may not load BPF
    /// programs ([`MonitorError::Capability`]), the kernel has no type information ([`MonitorError::NoBtf`])
    /// or refuses the programs ([`MonitorError::Refused`]), or a map cannot be used ([`MonitorError::Io`]).
    pub fn load(limits: Limits) -> Result<Monitor, MonitorError> {
        Ok(Monitor {
            programs: Programs::load(limits)?,
            reading: Reading::default(),
            readings: 0,
            tenants: Vec::new(),
            unverified: Vec::new(),
            dirty: false,
            sleepers: Vec::new(),
            reported: Vec::new(),
            ended: Vec::new(),
            stillborn: Vec::new(),
            events_lost: 0,
        })
    }

    /// How many tenants the monitor can tell apart.
    pub fn tenants_most(&self) -> u32 {
        self.programs.wait_rows.len() as u32 // the map has so many entries
    }

    /// The monitor's trace points on hot paths, for a scheduler that stands in for them.
    pub fn trace_points(&self) -> TracePoints {
        self.programs.trace_points.clone()
    }

    /// Follows all threads of a process from now on. Threads and processes that it creates belong to the
    /// tenant from their first moment; threads that exist already are picked up by the next
    /// [`Monitor::read`]. A process that is in another tenant moves (its threads end there).
    ///
    /// If the process is gone, or goes, [`Monitor::process_events`] reports it.
    ///
    /// # Errors
    /// The call fails if the tenant's number is out of range ([`MonitorError::Limit`]) or the monitor's maps
    /// cannot be written ([`MonitorError::Io`]).
    pub fn assign(&mut self, process: Pid, tenant: TenantIndex) -> Result<(), MonitorError> {
        if u32::from(tenant.0) >= self.tenants_most() {
            return Err(MonitorError::Limit {
                what: "tenant",
                range: "0 to one less than were asked for",
                value: tenant.0.into(),
            });
        }
        let (key, value) = (process.0.to_ne_bytes(), u32::from(tenant.0).to_ne_bytes());
        self.programs
            .processes
            .update(&key, &value, MapFlags::ANY)
            .map_err(io_error("assigning a process"))?;
        if let Err(place) = self.tenants.binary_search(&tenant) {
            self.tenants.insert(place, tenant);
        }
        self.unverified.push((process, tenant));
        self.dirty = true;
        Ok(())
    }

    /// Stops following a process; its threads end with the next [`Monitor::read`]. Unknown processes are
    /// no error.
    ///
    /// # Errors
    /// The call fails if the monitor's map cannot be written ([`MonitorError::Io`]).
    pub fn unassign(&mut self, process: Pid) -> Result<(), MonitorError> {
        self.unverified.retain(|&(other, _)| other != process);
        match self.programs.processes.delete(&process.0.to_ne_bytes()) {
            Ok(()) => {
                self.dirty = true;
                Ok(())
            }
            Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(io_error("unassigning a process")(error)),
        }
    }

    /// Processes that changed, forked or exited since the last call.
    ///
    /// # Errors
    /// The call fails if the event queue or the counters cannot be read ([`MonitorError::Io`]).
    pub fn process_events(&mut self) -> Result<ProcessEvents, MonitorError> {
        let mut events = std::mem::take(&mut self.stillborn);
        loop {
            match self.programs.process_events.lookup_and_delete(&[]) {
                Ok(Some(bytes)) => events.extend(decode_event(&bytes)),
                Ok(None) => break,
                Err(error) => return Err(io_error("reading process events")(error)),
            }
        }
        let lost = self
            .programs
            .stats
            .get(0)
            .map_or(0, |s| s.events_lost.load(Relaxed));
        let any_lost = lost != self.events_lost;
        self.events_lost = lost;
        Ok(ProcessEvents {
            events,
            lost: any_lost,
        })
    }

    /// Reads all counters as of now.
    ///
    /// A slot that is being written for the whole time of several attempts (its CPU is stopped
    /// by a hypervisor) is left out of this reading and is in the next reading.
    ///
    /// # Errors
    /// The call fails if the pass over all tasks or the reading of a map fails ([`MonitorError::Io`]).
    pub fn read(&mut self) -> Result<&Reading, MonitorError> {
        if self.dirty {
            self.sync()?;
        }
        for slot in self.ended.drain(..) {
            self.programs
                .free_slots
                .update(&[], &slot.to_ne_bytes(), MapFlags::ANY)
                .map_err(io_error("freeing a slot"))?;
        }

        let time_ns = monotonic_ns();
        self.programs
            .told
            .update(&0u32.to_ne_bytes(), &time_ns.to_ne_bytes(), MapFlags::ANY)
            .map_err(io_error("saying when it was read"))?;
        self.reading.time_ns = time_ns;
        self.read_threads(time_ns)?;
        self.read_tenants(time_ns)?;
        self.read_cpus(time_ns);
        Ok(&self.reading)
    }

    /// Makes the tenants of the threads' slots agree with the assigned processes.
    fn sync(&mut self) -> Result<(), MonitorError> {
        walk(&self.programs.sync)?;

        // A process that exited before it was assigned left no event that would remove it again, and its
        // id may be given to another process.
        self.dirty = false;
        for (process, tenant) in std::mem::take(&mut self.unverified) {
            match process_state(process) {
                Some(b'Z') => self.unverified.push((process, tenant)),
                Some(_) => {}
                None => {
                    self.unassign(process)?;
                    self.stillborn
                        .push(ProcessEvent::Exited { process, tenant });
                }
            }
        }
        self.dirty |= !self.unverified.is_empty();
        Ok(())
    }

    fn read_threads(&mut self, time_ns: u64) -> Result<(), MonitorError> {
        self.readings = self.readings.wrapping_add(1);
        let threads = &mut self.reading.threads;
        let (used, unmonitored) = match self.programs.stats.get(0) {
            Some(stats) => (
                stats.used_slots.load(Relaxed),
                stats.unmonitored.load(Relaxed),
            ),
            None => (0, 0),
        };
        self.reading.unmonitored = unmonitored;
        // Slots are counted from 1.
        let end = self.programs.threads.len().min(used as usize + 1);
        self.programs.threads.reach(end)?;
        self.reported.resize(end.max(self.reported.len()), 0);
        // The previous reading is updated in place: most threads sleep on, and of those only the stamp is
        // read. From the first thread that came or went on, all are copied.
        let sleepers = &mut self.sleepers;
        let changed = &mut self.reading.changed;
        changed.clear();
        let (mut done, mut others) = (0, false);
        for index in 1..end {
            let Some(slot) = self.programs.threads.get(index) else {
                break;
            };
            let earlier = sleepers.get(done).filter(|it| it.slot == index as u32);
            if earlier.is_some_and(|it| slot.sleeps_on(it.asleep)) {
                done += 1;
                continue;
            }
            if slot
                .ended()
                .is_some_and(|generation| generation == self.reported[index])
            {
                continue;
            }
            let Some(mut thread) = slot.copy(index as u32, time_ns) else {
                continue;
            };
            thread.copied = self.readings;
            if thread.ended {
                self.reported[index] = thread.generation;
                self.ended.push(thread.slot);
            }
            let listed = earlier.is_some();
            let same = listed && threads[done].generation == thread.generation;
            others |= thread.ended || !same;
            let sleeper = Sleeper {
                slot: thread.slot,
                asleep: ThreadSlot::asleep(&thread),
            };
            if listed {
                (threads[done], sleepers[done]) = (thread, sleeper);
            } else {
                threads.truncate(done);
                sleepers.truncate(done);
                threads.push(thread);
                sleepers.push(sleeper);
            }
            changed.push(done as u32); // there are fewer slots
            done += 1;
        }
        self.reading.membership += u64::from(others || done < threads.len());
        threads.truncate(done);
        sleepers.truncate(done);
        Ok(())
    }

    fn read_tenants(&mut self, time_ns: u64) -> Result<(), MonitorError> {
        let Some(&TenantIndex(highest)) = self.tenants.last() else {
            return Ok(());
        };
        // All rows in one system call; each is copied under its lock.
        let count = u32::from(highest) + 1;
        self.programs.wait_rows.reach(count as usize)?;
        let mut occasions = self
            .programs
            .occasions
            .lookup_batch(count, MapFlags::LOCK, MapFlags::ANY)
            .map_err(io_error("reading occasions"))?
            .take(count as usize)
            .enumerate();
        let mut going_on = self.waits_that_go_on(time_ns);
        for (place, &tenant) in self.tenants.iter().enumerate() {
            // Tenants only come, and in this order.
            let tenants = &mut self.reading.tenants;
            if tenants.get(place).is_none_or(|it| it.tenant != tenant) {
                tenants.insert(place, RawTenant::unread(tenant));
            }
            let raw = &mut tenants[place];
            raw.going_on.clear();
            if let Some(row) = self.programs.wait_rows.get(tenant.0.into()) {
                row.read_changed(&mut raw.ended, &mut raw.changed);
            }
            raw.going_on
                .extend(going_on.remove(&tenant).unwrap_or_default());
            let occasions = occasions
                .find(|(index, _)| *index == usize::from(tenant.0))
                .and_then(|(_, (_, bytes))| OccasionsCopy::decode(&bytes, time_ns))
                .ok_or_else(|| MonitorError::Io {
                    what: "reading occasions",
                    source: io::ErrorKind::InvalidData.into(),
                })?;
            raw.occasions_ns = occasions.by_blocked_ns;
            raw.busy_ns = occasions.busy_ns;
            raw.busy_periods = occasions.busy_periods;
            (raw.ready, raw.blocked) = (occasions.ready, occasions.blocked);
        }
        Ok(())
    }

    /// Waits that go on, up to the reading, by the waiting tenant and by cause. Causes that the kernel tells
    /// only at the end of a wait, limits and stolen time, are not included.
    fn waits_that_go_on(&self, time_ns: u64) -> BTreeMap<TenantIndex, BTreeMap<u16, u64>> {
        let mut sums: BTreeMap<TenantIndex, BTreeMap<u16, u64>> = BTreeMap::new();
        let waiting = |thread: &&RawThread| thread.state == Some(ThreadState::Ready);
        let changed = self.reading.changed.iter(); // a thread that waits does not sleep
        let changed = changed.map(|&at| &self.reading.threads[at as usize]);
        for thread in changed.filter(waiting) {
            let Some(log) = self.programs.cpus.get(thread.cpu as usize) else {
                continue;
            };
            let row = sums.entry(thread.tenant).or_default();
            log.who_had_it(thread.since_ns, time_ns, |who, ns| {
                *row.entry(who as u16).or_default() += ns; // a number of `enum cause`
            });
        }
        sums
    }

    fn read_cpus(&mut self, time_ns: u64) {
        let cpus = &mut self.reading.cpus;
        cpus.clear();
        for cpu in 0..self.programs.cpus.len() {
            let copy = self.programs.cpus.get(cpu).and_then(|log| log.copy());
            cpus.push(RawCpu {
                cpu: cpu as u32,
                busy_ns: copy.and_then(|copy| copy.busy_ns(time_ns)),
                steal_ns: copy
                    .filter(|copy| copy.first_ns > 0)
                    .map(|copy| copy.steal_ns),
            });
        }
    }
}

/// The state letter of a process's first thread; `None` if there is no such process.
fn process_state(process: Pid) -> Option<u8> {
    let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    let name_end = stat.iter().rposition(|&b| b == b')')?;
    stat.get(name_end + 2).copied()
}

/// Decodes a `struct process_event`.
fn decode_event(bytes: &[u8]) -> Option<ProcessEvent> {
    let word = |i: usize| {
        bytes
            .get(4 * i..4 * i + 4)?
            .try_into()
            .map(u32::from_ne_bytes)
            .ok()
    };
    let (kind, process, parent, tenant) = (word(0)?, Pid(word(1)?), Pid(word(2)?), word(3)?);
    let tenant = (tenant != event::NO_TENANT).then_some(TenantIndex(tenant as u16));
    match (kind, tenant) {
        (event::CHANGED, tenant) => Some(ProcessEvent::Changed { process, tenant }),
        (event::FORKED, Some(tenant)) => Some(ProcessEvent::Forked {
            process,
            parent,
            tenant,
        }),
        (event::EXITED, Some(tenant)) => Some(ProcessEvent::Exited { process, tenant }),
        _ => None,
    }
}
