//! Threads counted by the BPF monitor: from two readings to the figures of a period.
//!
//! The counters of the monitor only grow, so the figures of a period are a difference. A thread that is
//! new under the monitor starts from zero. A slot whose generation changed holds another thread. In the
//! steady state no code here enters the kernel per thread: settings are read by system calls only for
//! threads that are new, of which the monitor saw a setting change, or whose refresh is due (one in
//! 128 threads per period, which catches changes to threads that sleep).
//!
//! Waits that go on count up to the reading, and their causes are divided by [`causes`](super::causes).
//! Threads that ended within the period are in no list: their sums are the tenant's [`Ended`]. Time in which
//! an idle CPU was being woken up counts as the host's.

use super::ObserveError;
use super::causes::Causes;
use super::discover::Discovery;
use super::host::CpuTimes;
use super::monitor::{
    Limits, Monitor, MonitorError, OCCASION_BUCKETS, ProcessEvent, RawTenant, RawThread, Reading,
    TenantIndex as MonitorIndex, TracePoints, WAIT_BUCKETS, cause,
};
use super::proc::{Reader, Stat};
use super::roster::Roster;
use super::selector::TenantIndex;
use super::settings::SettingsReader;
use quell_model::{
    CpuId, Ended, Nice, Occasions, Pid, SchedClass, TenantName, ThreadId, ThreadRole, ThreadSample,
    ThreadSettings, ThreadState, Tid, WaitBreakdown, Waker,
};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// Periods in which the settings of every thread are read once, even if nothing seemed to change.
const PERIODS_PER_REFRESH: u64 = 128;

/// After this many periods without a change the sample of a thread from two periods before equals a new
/// sample: nothing changed in that period, in the next one and in this one.
const QUIET: u8 = 3;

/// The most tenants that a tenant's waits of a period are put down to by name. On a host of many tenants a
/// thread waits for hundreds of others a little each.
const CAUSES_MOST: usize = 16;

pub(crate) struct BpfSource {
    monitor: Monitor,
    /// For each tenant, the processes assigned to it in the monitor.
    assigned: Vec<BTreeSet<u32>>,
    /// Processes that the monitor may still assign to a tenant that was followed before.
    strays: BTreeSet<u32>,
    /// Whether the tenants are others than those that the monitor was told of.
    unsettled: bool,
    threads: Threads,
    /// For each tenant number of the monitor (after a reload, numbers of other tenants): how its threads were
    /// served up to the reading before, and the causes of their waits.
    tenants: Vec<(Served, Causes)>,
    /// Calls of [`BpfSource::sample`] that succeeded since a call failed.
    unbroken: u32,
    kinds_epoch: u64,
    unmonitored: u64,
}

/// What is kept of the monitor's threads from one reading to the next.
#[derive(Default)]
struct Threads {
    /// The remembered thread of each slot of the monitor.
    known: Vec<Option<Known>>,
    /// The short record of each slot of the monitor.
    slot_states: Vec<SlotState>,
    /// The [`Reading::membership`] that `known` and `lengths` correspond to.
    membership: u64,
    /// For each tenant, its number of threads.
    lengths: Vec<usize>,
    /// The slots of the threads whose samples are not all alike yet, see [`QUIET`].
    lively: Vec<u32>,
    /// The [`Threads::round`] in which the lists' order last changed.
    placed: u64,
    settings: SettingsReader,
    names: Names,
    reader: Reader,
    /// The number of readings.
    round: u64,
}

/// The state of a thread that is kept from one reading to the next.
struct Known {
    raw: RawThread,
    /// The part of its waiting that counted as throttled so far, in ns.
    throttled_ns: u64,
    name: Arc<str>,
    role: ThreadRole,
    settings: ThreadSettings,
    /// Its state as long as the monitor has seen no event of it.
    first_state: ThreadState,
}

/// The record that says that there is nothing to do for a slot's thread. It is kept apart, since for most
/// threads in most periods it is all that is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SlotState {
    /// The index of the thread in the list of its tenant.
    index: u32,
    /// The index of the thread in the reading.
    at: u32,
    /// The [`RawThread::copied`] of [`Known::raw`]; `None` before the first reading.
    copied: Option<u32>,
    /// Successive periods in which nothing changed, up to [`QUIET`].
    quiet: u8,
}

/// Keeps one copy of each name: the threads of a process mostly share one name, and touching a thousand
/// copies would cost more than everything else that is done for a sleeping thread.
#[derive(Default)]
struct Names(HashSet<Arc<str>>);

impl Names {
    fn intern(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return Arc::clone(known);
        }
        // Names that are no longer used are dropped before the table would grow.
        if self.0.len() == self.0.capacity() {
            self.0.retain(|name| Arc::strong_count(name) > 1);
        }
        let name: Arc<str> = name.into();
        self.0.insert(Arc::clone(&name));
        name
    }
}

/// How a tenant's threads were served up to a reading: the fields of [`RawTenant`]. Zeros before the first.
#[derive(Debug, Clone)]
struct Served {
    occasions_ns: [u64; OCCASION_BUCKETS],
    busy_ns: u64,
    busy_periods: u64,
}

impl Default for Served {
    fn default() -> Served {
        Served {
            occasions_ns: [0; OCCASION_BUCKETS],
            busy_ns: 0,
            busy_periods: 0,
        }
    }
}

/// The observations of one period.
pub(crate) struct Counts {
    pub(crate) time_ns: u64,
    /// For each tenant, its threads, ascending by id.
    pub(crate) threads: Vec<Vec<ThreadSample>>,
    pub(crate) tenants: Vec<Explained>,
    /// Cumulative times of each CPU.
    pub(crate) cpus: BTreeMap<u32, CpuTimes>,
}

/// The observations of a tenant in one period, besides its threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct Explained {
    /// The CPU time of its threads, in ns, without those that ended.
    pub(crate) run_ns: u64,
    pub(crate) waits: WaitBreakdown,
    pub(crate) occasions: Occasions,
    pub(crate) ended: Ended,
}

impl BpfSource {
    /// Loads the monitor, for `most` tenants at the most. `Err` says why it cannot be used and what it would
    /// need.
    pub(crate) fn load(tenants: usize, most: usize) -> Result<BpfSource, String> {
        let limits = Limits {
            tenants: u32::try_from(most).unwrap_or(u32::MAX),
            ..Limits::default()
        };
        Ok(BpfSource {
            monitor: Monitor::load(limits).map_err(|error| explain(&error))?,
            assigned: vec![BTreeSet::new(); tenants],
            strays: BTreeSet::new(),
            unsettled: false,
            threads: Threads {
                lengths: vec![0; tenants],
                ..Threads::default()
            },
            tenants: vec![Default::default(); tenants],
            unbroken: 0,
            kinds_epoch: 0,
            unmonitored: 0,
        })
    }

    /// Whether the monitor can tell this many tenants apart.
    pub(crate) fn can_follow(&self, tenants: usize) -> bool {
        tenants <= self.monitor.tenants_most() as usize
    }

    /// Follows this many other tenants from the next call of [`BpfSource::follow`] on. Nothing is known here
    /// yet of their discovery.
    pub(crate) fn follow_others(&mut self, tenants: usize) {
        let before = std::mem::replace(&mut self.assigned, vec![BTreeSet::new(); tenants]);
        self.strays.extend(before.into_iter().flatten());
        self.unsettled = true;
        self.threads.forget(tenants);
        let most = self.tenants.len().max(tenants);
        self.tenants.resize_with(most, Default::default);
        self.unbroken = 0;
    }

    /// The trace points of the monitor, see [`Monitor::trace_points`].
    pub fn trace_points(&self) -> TracePoints {
        self.monitor.trace_points()
    }

    /// Brings discovery up to date with the process events, and the monitor with the processes' tenants.
    /// Returns the tenants that gained or lost a process.
    pub(crate) fn follow(
        &mut self,
        discovery: &mut Discovery,
    ) -> Result<BTreeSet<TenantIndex>, ObserveError> {
        let happened = self.monitor.process_events().map_err(failed)?;
        let mut touched = BTreeSet::new();
        for event in happened.events {
            match event {
                ProcessEvent::Changed { process, .. } => discovery.look_again(process.0),
                ProcessEvent::Forked {
                    process,
                    parent,
                    tenant,
                } => {
                    discovery.forked(parent.0, process.0);
                    // The event may be of a tenant that was followed before.
                    match self.assigned.get_mut(usize::from(tenant.0)) {
                        Some(assigned) => {
                            assigned.insert(process.0);
                            touched.insert(usize::from(tenant.0));
                            self.strays.remove(&process.0);
                        }
                        None => drop(self.strays.insert(process.0)),
                    }
                }
                ProcessEvent::Exited { process, tenant } => {
                    discovery.exited(process.0);
                    if let Some(assigned) = self.assigned.get_mut(usize::from(tenant.0)) {
                        assigned.remove(&process.0);
                    }
                }
            }
        }
        // Events that arrived while other tenants were followed went to the discovery of those tenants.
        if happened.lost || self.unsettled {
            discovery.relist()?;
        }
        discovery.step()?;
        let places = discovery.roster().places();
        if self.assigned.len() < places {
            self.assigned.resize_with(places, BTreeSet::new);
        }
        if self.tenants.len() < places {
            self.tenants.resize_with(places, Default::default);
        }
        for place in discovery.take_reused() {
            let own = place as u16; // there are no more places than the monitor tells tenants apart
            self.tenants[place].1.begin_anew(None);
            for (_, causes) in &mut self.tenants {
                causes.begin_anew(Some(own));
            }
        }
        let changed = discovery.take_changed();
        touched.extend(&changed);
        if self.unsettled {
            touched.extend(0..self.assigned.len());
        }
        for &tenant in &touched {
            let members = discovery.members(tenant);
            let left: Vec<u32> = self.assigned[tenant].difference(members).copied().collect();
            for pid in left {
                self.monitor.unassign(Pid(pid)).map_err(failed)?;
                self.assigned[tenant].remove(&pid);
            }
        }
        // After all departures, because a process may have moved to another tenant.
        for &tenant in &touched {
            let members = discovery.members(tenant);
            let joined: Vec<u32> = members
                .difference(&self.assigned[tenant])
                .copied()
                .collect();
            for pid in joined {
                let index = MonitorIndex(tenant as u16); // below its limit: checked by `load`
                self.monitor.assign(Pid(pid), index).map_err(failed)?;
                self.assigned[tenant].insert(pid);
                self.strays.remove(&pid);
            }
        }
        while let Some(&pid) = self.strays.first() {
            self.monitor.unassign(Pid(pid)).map_err(failed)?;
            self.strays.remove(&pid);
        }
        self.unsettled = false;
        Ok(changed)
    }

    /// Reads all counters. The period is from `before_ns` to now. `lists` are the lists of the call before
    /// the last, or empty; their memory is used again.
    pub(crate) fn sample(
        &mut self,
        discovery: &Discovery,
        before_ns: u64,
        mut lists: Vec<Vec<ThreadSample>>,
    ) -> Result<Counts, ObserveError> {
        self.threads.round += 1;
        // A call that failed has counted periods for which there are no lists.
        let unbroken = std::mem::take(&mut self.unbroken);
        if unbroken < 2 {
            lists.clear();
        }
        let reading = self.monitor.read().map_err(failed)?;
        if reading.unmonitored > self.unmonitored {
            let threads = reading.unmonitored - self.unmonitored;
            tracing::warn!(
                threads,
                "more threads than the monitor can follow: some are not seen"
            );
            self.unmonitored = reading.unmonitored;
        }
        let period_ns = reading.time_ns.saturating_sub(before_ns);
        let kinds_changed = self.kinds_epoch != discovery.kinds_epoch();
        self.kinds_epoch = discovery.kinds_epoch();
        let role = |raw: &RawThread, name: &str| discovery.role(raw.process.0, raw.id.tid.0, name);
        let roster = discovery.roster();
        let places = roster.places();
        let mut tenants = vec![Explained::default(); places];

        if self.threads.membership != reading.membership {
            self.threads.add_ended(reading, &mut tenants, period_ns);
            self.threads.follow(reading, places, role)?;
        }
        // Lists that are not those of the call before the last have samples of other threads, or none.
        let mut known = self.threads.placed + 2 < self.threads.round && !kinds_changed;
        lists.resize_with(places, Vec::new);
        for (list, &length) in lists.iter_mut().zip(&self.threads.lengths) {
            known &= list.len() == length;
            list.resize_with(length, blank);
        }
        let lively = self.threads.lively(reading);
        let visited = match known {
            true => lively,
            false => (0..reading.threads.len() as u32).collect(), // there are fewer slots
        };
        let mut waited = vec![0; places];
        for at in visited {
            let raw = &reading.threads[at as usize];
            if raw.ended {
                continue;
            }
            let tenant = usize::from(raw.tenant.0);
            if let Some(list) = lists.get_mut(tenant) {
                let (ran, waits) =
                    (self.threads).sample(raw, list, role, kinds_changed, period_ns)?;
                tenants[tenant].run_ns += ran;
                waited[tenant] += waits;
            }
        }
        explain_tenants(&mut self.tenants, reading, roster, &waited, &mut tenants);
        self.unbroken = unbroken.saturating_add(1);
        Ok(Counts {
            time_ns: reading.time_ns,
            threads: lists,
            tenants,
            cpus: cpu_times(reading),
        })
    }
}

impl Threads {
    /// The indices in the reading of the threads whose samples may differ from those of the call before the
    /// last, each once: they did not sleep on, or not long enough, or their refresh is due.
    fn lively(&mut self, reading: &Reading) -> Vec<u32> {
        let slots = self.slot_states.len() as u64;
        let due = (PERIODS_PER_REFRESH - self.round % PERIODS_PER_REFRESH) % PERIODS_PER_REFRESH;
        let due = (due..slots).step_by(PERIODS_PER_REFRESH as usize);
        let due = due.filter(|&slot| self.known.get(slot as usize).is_some_and(Option::is_some));
        let lively = self.lively.drain(..).map(u64::from).chain(due);
        let at = lively.map(|slot| self.slot_states[slot as usize].at);
        let mut all: Vec<u32> = reading.changed.iter().copied().chain(at).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Forgets all threads: those of this many other tenants come next.
    fn forget(&mut self, tenants: usize) {
        self.known.clear();
        self.slot_states.clear();
        self.lively.clear();
        self.membership = 0;
        self.lengths = vec![0; tenants];
    }

    /// Adds the threads that ended in the period to their tenants' sums.
    fn add_ended(&self, reading: &Reading, tenants: &mut [Explained], period_ns: u64) {
        for raw in reading.threads.iter().filter(|raw| raw.ended) {
            let known = self.known.get(raw.slot as usize).and_then(Option::as_ref);
            let known = known.filter(|it| it.raw.generation == raw.generation);
            if let Some(tenant) = tenants.get_mut(usize::from(raw.tenant.0)) {
                add_ended(&mut tenant.ended, raw, known, period_ns);
            }
        }
    }

    /// Forgets the threads that ended, and begins to know those that are new.
    fn follow(
        &mut self,
        reading: &Reading,
        tenants: usize,
        role: impl Fn(&RawThread, &str) -> ThreadRole,
    ) -> Result<(), ObserveError> {
        self.lengths = place_threads(
            &mut self.known,
            &mut self.slot_states,
            reading,
            tenants,
            |raw| {
                let Some(settings) = read_settings(&mut self.settings, raw)? else {
                    return Ok(None);
                };
                let Some(first_state) = first_state(&mut self.reader, raw)? else {
                    return Ok(None);
                };
                let name = self.names.intern(&raw.name());
                Ok(Some(Known {
                    raw: unseen(raw),
                    throttled_ns: 0,
                    role: role(raw, &name),
                    name,
                    settings,
                    first_state,
                }))
            },
        )?;
        self.membership = reading.membership;
        self.placed = self.round;
        Ok(())
    }

    /// Brings a thread's sample in its tenant's list up to date with the reading. Returns how long the thread
    /// ran and waited in the period, in ns.
    fn sample(
        &mut self,
        raw: &RawThread,
        list: &mut [ThreadSample],
        role: impl Fn(&RawThread, &str) -> ThreadRole,
        kinds_changed: bool,
        period_ns: u64,
    ) -> Result<(u64, u64), ObserveError> {
        let slot = raw.slot as usize;
        let Some(slot_state) = self.slot_states.get_mut(slot) else {
            return Ok((0, 0));
        };
        let Some(sample) = list.get_mut(slot_state.index as usize) else {
            return Ok((0, 0));
        };
        let moved = slot_state.copied != Some(raw.copied);
        let refresh = (slot as u64 + self.round) % PERIODS_PER_REFRESH == 0;
        if moved || refresh || kinds_changed {
            slot_state.quiet = 0;
        } else if slot_state.quiet < QUIET {
            slot_state.quiet += 1;
        }
        let Some(known) = self.known.get_mut(slot).and_then(Option::as_mut) else {
            return Ok((0, 0));
        };
        if slot_state.quiet < QUIET {
            self.lively.push(raw.slot);
        } else if sample.id == raw.id {
            return Ok((0, 0));
        }
        let first = slot_state.copied.replace(raw.copied).is_none();
        let before = moved.then(|| std::mem::replace(&mut known.raw, *raw));
        let renamed = before
            .as_ref()
            .is_some_and(|before| before.name != raw.name);
        if renamed {
            known.name = self.names.intern(&raw.name());
        }
        if renamed || kinds_changed {
            known.role = role(raw, &known.name);
        }
        let reset = before
            .as_ref()
            .is_some_and(|before| settings_key(before) != settings_key(raw));
        if reset || refresh {
            if let Some(settings) = read_settings(&mut self.settings, raw)? {
                known.settings = settings;
            }
        }
        fill(sample, known, before.as_ref(), period_ns);
        // The time for which a thread was throttled before it was followed here is not to be shown.
        match first {
            true => known.throttled_ns = known.raw.throttled_ns,
            false => known.throttled_ns += sample.throttled_ns.unwrap_or(0),
        }
        Ok((sample.run_ns, waited_ns(sample)))
    }
}

/// Divides by its causes the time for which each tenant's threads waited: `waited` ns those that go on,
/// beside those that ended. `counters` has each tenant's counters in the reading before, and is brought up to
/// date.
fn explain_tenants(
    counters: &mut [(Served, Causes)],
    reading: &Reading,
    roster: &Roster,
    waited: &[u64],
    tenants: &mut [Explained],
) {
    for raw in &reading.tenants {
        let index = usize::from(raw.tenant.0);
        let Some((before, causes)) = counters.get_mut(index) else {
            continue;
        };
        if let Some(tenant) = tenants.get_mut(index) {
            let waited = waited[index] + tenant.ended.ready.sum_ns + tenant.ended.throttled_ns;
            let parts = causes.divide(
                raw.changed_times(),
                &raw.going_on,
                waited,
                cause::UNKNOWN as u16,
            );
            tenant.waits = breakdown(index, &parts, roster);
            tenant.occasions = before.occasions_until(raw);
        }
        before.go_on(raw);
    }
}

/// The text of a monitor's error, with what would help.
fn explain(error: &MonitorError) -> String {
    match error {
        MonitorError::Capability { .. } => {
            format!("{error}; run as root or give the program CAP_BPF and CAP_PERFMON")
        }
        // The verifier's log is for the developers of the monitor; its last line says the most.
        MonitorError::Refused { reason, log } => {
            let last = log
                .lines()
                .rev()
                .find(|line| !line.trim().is_empty())
                .unwrap_or("no log");
            format!("the kernel refused the BPF programs ({reason}): {last}")
        }
        other => other.to_string(),
    }
}

fn failed(error: MonitorError) -> ObserveError {
    ObserveError::Bpf {
        reason: error.to_string(),
    }
}

/// The settings that the monitor sees; if they change, the other settings are worth reading.
fn settings_key(raw: &RawThread) -> (i8, u8, u16, u64, Option<u64>) {
    (
        raw.nice,
        raw.policy,
        raw.allowed_cpus,
        raw.affinity_word,
        raw.slice_ns,
    )
}

fn read_settings(
    reader: &mut SettingsReader,
    raw: &RawThread,
) -> Result<Option<ThreadSettings>, ObserveError> {
    reader.read(raw.id.tid.0)
}

/// The state of a new thread of which the monitor has seen no event yet: it neither woke nor gave up
/// a CPU since it came under the monitor. `None`: the thread is gone.
fn first_state(reader: &mut Reader, raw: &RawThread) -> Result<Option<ThreadState>, ObserveError> {
    if raw.state.is_some() {
        return Ok(raw.state);
    }
    let text = reader.read(format_args!(
        "/proc/{}/task/{}/stat",
        raw.process, raw.id.tid
    ))?;
    Ok(text.and_then(Stat::parse).map(|stat| match stat.state {
        b'R' => ThreadState::Running,
        b'T' | b't' => ThreadState::Stopped,
        _ => ThreadState::Blocked,
    }))
}

/// The counters of a thread before it came under the monitor: zero. Other fields are as they are now.
fn unseen(raw: &RawThread) -> RawThread {
    RawThread {
        run_ns: 0,
        ready_ns: 0,
        throttled_ns: 0,
        waits: 0,
        wait_histogram: Default::default(),
        switches: 0,
        preemptions: 0,
        wakeups: 0,
        migrations: 0,
        wakers: Default::default(),
        ..*raw
    }
}

/// Brings `known` up to date with the threads of the reading: forgets threads that are gone, makes new
/// ones with `make` (`None`: the thread is gone meanwhile) and gives each thread its index in its tenant's
/// list, ascending by id. Returns the lengths of the lists.
fn place_threads(
    known: &mut Vec<Option<Known>>,
    slot_states: &mut Vec<SlotState>,
    reading: &Reading,
    tenants: usize,
    mut make: impl FnMut(&RawThread) -> Result<Option<Known>, ObserveError>,
) -> Result<Vec<usize>, ObserveError> {
    let mut members: Vec<Vec<(ThreadId, usize)>> = vec![Vec::new(); tenants];
    for (at, raw) in reading.threads.iter().enumerate() {
        let slot = raw.slot as usize;
        if known.len() <= slot {
            known.resize_with(slot + 1, || None);
            slot_states.resize(slot + 1, SlotState::default());
        }
        let entry = &mut known[slot];
        if raw.ended {
            *entry = None;
            continue;
        }
        if !matches!(entry, Some(known) if known.raw.generation == raw.generation) {
            *entry = make(raw)?;
            slot_states[slot] = SlotState::default();
        }
        slot_states[slot].at = at as u32; // there are fewer slots
        if entry.is_some() {
            if let Some(members) = members.get_mut(usize::from(raw.tenant.0)) {
                members.push((raw.id, slot));
            }
        }
    }
    for members in &mut members {
        members.sort_unstable();
        for (place, &(_, slot)) in members.iter().enumerate() {
            slot_states[slot].index = place as u32; // fewer than there are slots
        }
    }
    Ok(members.iter().map(Vec::len).collect())
}

/// An empty sample, to be filled.
pub(crate) fn blank() -> ThreadSample {
    ThreadSample {
        id: ThreadId {
            tid: Tid(0),
            start_ticks: 0,
        },
        process: Pid(0),
        name: Arc::default(),
        role: ThreadRole::Ordinary,
        forked_by: None,
        state: ThreadState::Blocked,
        cpu: CpuId(0),
        run_ns: 0,
        ready: None,
        throttled_ns: None,
        preemptions: None,
        wakeups: None,
        wakers: None,
        switches: None,
        migrations: None,
        settings: ThreadSettings {
            class: SchedClass::Fair,
            nice: Nice::default(),
            slice_ns: None,
            affinity: Arc::default(),
        },
    }
}

/// Writes all fields of a sample, into the memory it has. `before`: the thread's counters in the reading
/// before; `None` if nothing changed since.
fn fill(sample: &mut ThreadSample, known: &Known, before: Option<&RawThread>, period_ns: u64) {
    let now = &known.raw;
    let since = |counter: fn(&RawThread) -> u64| {
        before.map_or(0, |before| counter(now).saturating_sub(counter(before)))
    };
    let run_ns = since(|t| t.run_ns).min(period_ns);
    let (ready_ns, throttled_ns) = before.map_or((0, 0), |before| {
        waits(now, before, known.throttled_ns, period_ns - run_ns)
    });
    sample.throttled_ns = Some(throttled_ns);
    let ready = sample.ready.get_or_insert_default();
    ready.sum_ns = ready_ns;
    ready.count = Some(since(|t| t.waits));
    let histogram = ready.histogram.get_or_insert_default();
    histogram.clear();
    if let Some(before) = before.filter(|before| before.waits != now.waits) {
        let pairs = now.wait_histogram.iter().zip(&before.wait_histogram);
        histogram.extend(pairs.map(|(now, before)| now.wrapping_sub(*before)));
        trim(histogram);
    }
    let list = sample.wakers.get_or_insert_default();
    list.clear();
    if let Some(before) = before {
        wakers(list, now, before);
    }
    sample.id = now.id;
    sample.process = now.process;
    if !Arc::ptr_eq(&sample.name, &known.name) {
        sample.name = Arc::clone(&known.name);
    }
    sample.role = known.role;
    sample.forked_by = now.creator;
    sample.state = now.state.unwrap_or(known.first_state);
    sample.cpu = CpuId(now.cpu);
    sample.run_ns = run_ns;
    sample.preemptions = Some(since(|t| t.preemptions));
    sample.wakeups = Some(since(|t| t.wakeups));
    sample.switches = Some(since(|t| t.switches));
    sample.migrations = Some(since(|t| t.migrations));
    if sample.settings != known.settings {
        sample.settings = known.settings.clone();
    }
}

/// Adds the threads that woke a thread between two readings, most frequent first.
fn wakers(list: &mut Vec<Waker>, now: &RawThread, before: &RawThread) {
    if now.wakers == before.wakers {
        return;
    }
    let earlier = |id| before.wakers.iter().flatten().find(|waker| waker.id == id);
    for waker in now.wakers.iter().flatten() {
        let count = match earlier(waker.id) {
            Some(earlier) if earlier.count <= waker.count => waker.count - earlier.count,
            // The waker left the table and came back.
            _ => waker.count,
        };
        if count > 0 {
            list.push(Waker {
                id: waker.id,
                count: count.into(),
            });
        }
    }
    list.sort_unstable_by_key(|waker| (std::cmp::Reverse(waker.count), waker.id));
}

/// The waits of a tenant in a period, by cause.
fn breakdown(own: TenantIndex, parts: &[(u16, u64)], roster: &Roster) -> WaitBreakdown {
    let mut waits = WaitBreakdown::default();
    let mut others: Vec<(u64, &TenantName)> = Vec::new();
    for &(by, ns) in parts {
        match usize::from(by) {
            cause::HOST | cause::IDLE => waits.host_ns += ns,
            cause::BANDWIDTH => waits.bandwidth_ns += ns,
            cause::STEAL => waits.steal_ns += ns,
            tenant if tenant == own => waits.own_ns += ns,
            tenant => match roster.name(tenant) {
                Some(name) => others.push((ns, name)),
                // The cause is undefined, or a tenant that is gone.
                None => waits.unknown_ns += ns,
            },
        }
    }
    // Those that had the CPU longest, and of equal ones the first by name.
    if others.len() > CAUSES_MOST {
        others.select_nth_unstable_by(CAUSES_MOST, |a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        let rest = others.drain(CAUSES_MOST..);
        waits.others_ns = rest.map(|(ns, _)| ns).sum();
    }
    others.sort_unstable_by_key(|(_, name)| *name);
    let named = others.into_iter().map(|(ns, name)| (name.clone(), ns));
    waits.tenants = named.collect();
    waits
}

/// The time for which the thread of a sample wanted to run and did not, in ns.
fn waited_ns(sample: &ThreadSample) -> u64 {
    let ready = sample.ready.as_ref().map_or(0, |ready| ready.sum_ns);
    ready + sample.throttled_ns.unwrap_or(0)
}

/// Adds a thread that ended since the reading before. `known`: its state then, if it existed.
fn add_ended(ended: &mut Ended, now: &RawThread, known: Option<&Known>, period_ns: u64) {
    let none = unseen(now);
    let before = known.map_or(&none, |known| &known.raw);
    let run_ns = now.run_ns.saturating_sub(before.run_ns).min(period_ns);
    let throttled_before = known.map_or(0, |known| known.throttled_ns);
    let (ready_ns, throttled_ns) = waits(now, before, throttled_before, period_ns - run_ns);
    ended.threads += 1;
    ended.run_ns += run_ns;
    ended.ready.sum_ns += ready_ns;
    ended.throttled_ns += throttled_ns;
    *ended.ready.count.get_or_insert(0) += now.waits.saturating_sub(before.waits);
    let histogram = ended.ready.histogram.get_or_insert_default();
    histogram.resize(WAIT_BUCKETS, 0);
    let pairs = now.wait_histogram.iter().zip(&before.wait_histogram);
    for (sum, (now, before)) in histogram.iter_mut().zip(pairs) {
        *sum = sum.wrapping_add(now.wrapping_sub(*before));
    }
}

/// Ready and throttled time between two readings, at most `most_ns`. The end of a wait tells how much of it
/// was throttled time: what had counted as ready time until then is subtracted from the following ready time.
/// `throttled_before`: what counted as throttled so far.
fn waits(now: &RawThread, before: &RawThread, throttled_before: u64, most_ns: u64) -> (u64, u64) {
    let all = |t: &RawThread| t.ready_ns + t.throttled_ns;
    let waited = all(now).saturating_sub(all(before)).min(most_ns);
    let throttled = now
        .throttled_ns
        .saturating_sub(throttled_before)
        .min(waited);
    (waited - throttled, throttled)
}

impl Served {
    /// The occasions since then.
    fn occasions_until(&self, now: &RawTenant) -> Occasions {
        let pairs = || now.occasions_ns.iter().zip(&self.occasions_ns);
        let used = pairs().rposition(|(now, before)| now > before);
        let used = used.map_or(0, |last| last + 1);
        let since = pairs().map(|(now, before)| now.saturating_sub(*before));
        Occasions {
            by_blocked_ns: since.take(used).collect(),
            busy_ns: now.busy_ns.saturating_sub(self.busy_ns),
            busy_periods: now.busy_periods.saturating_sub(self.busy_periods),
        }
    }

    fn go_on(&mut self, now: &RawTenant) {
        self.occasions_ns = now.occasions_ns;
        (self.busy_ns, self.busy_periods) = (now.busy_ns, now.busy_periods);
    }
}

fn cpu_times(reading: &Reading) -> BTreeMap<u32, CpuTimes> {
    let times = reading.cpus.iter().map(|cpu| {
        (
            cpu.cpu,
            CpuTimes {
                busy_ns: cpu.busy_ns,
                steal_ns: cpu.steal_ns,
            },
        )
    });
    times.collect()
}

/// Removes trailing zeros from a list.
fn trim<T: Default + PartialEq>(list: &mut Vec<T>) {
    let used = list
        .iter()
        .rposition(|entry| *entry != T::default())
        .map_or(0, |last| last + 1);
    list.truncate(used);
}

#[cfg(test)]
mod tests {
    use super::super::monitor::RawWaker;
    use super::*;
    use proptest::prelude::*;
    use quell_model::ReadyTime;

    fn id(tid: u32) -> ThreadId {
        ThreadId {
            tid: Tid(tid),
            start_ticks: 5,
        }
    }

    fn raw() -> RawThread {
        RawThread {
            slot: 1,
            generation: 1,
            copied: 0,
            id: id(10),
            process: Pid(10),
            tenant: MonitorIndex(0),
            ended: false,
            state: Some(ThreadState::Blocked),
            since_ns: 0,
            cpu: 1,
            run_ns: 0,
            ready_ns: 0,
            throttled_ns: 0,
            waits: 0,
            wait_histogram: Default::default(),
            switches: 0,
            preemptions: 0,
            wakeups: 0,
            migrations: 0,
            wakers: Default::default(),
            creator: Some(id(9)),
            name: *b"worker\0\0\0\0\0\0\0\0\0\0",
            nice: 0,
            policy: 0,
            allowed_cpus: 2,
            affinity_word: 3,
            slice_ns: Some(3_000_000),
        }
    }

    fn known(raw: RawThread) -> Known {
        Known {
            raw,
            throttled_ns: 0,
            name: raw.name().into(),
            role: ThreadRole::Ordinary,
            settings: ThreadSettings {
                class: SchedClass::Fair,
                nice: quell_model::Nice::default(),
                slice_ns: None,
                affinity: Arc::default(),
            },
            first_state: ThreadState::Running,
        }
    }

    fn sample(now: RawThread, before: Option<&RawThread>, period_ns: u64) -> ThreadSample {
        let mut sample = blank();
        fill(&mut sample, &known(now), before, period_ns);
        sample
    }

    #[test]
    fn whatever_the_memory_held_before_the_sample_is_the_same() {
        let (mut before, mut now) = (raw(), raw());
        (before.waits, before.wait_histogram[3]) = (1, 1);
        (now.run_ns, now.waits, now.wait_histogram[9]) = (70, 4, 3);
        now.wakers[0] = Some(RawWaker {
            id: id(3),
            count: 2,
        });
        let mut other = raw();
        (other.id, other.name, other.creator) = (id(77), *b"other\0\0\0\0\0\0\0\0\0\0\0", None);
        for (one, another) in [
            ((now, Some(before)), (other, None)),
            ((other, None), (now, Some(before))),
        ] {
            let mut used = sample(another.0, another.1.as_ref(), 1000);
            used.settings.nice = Nice::new(5).unwrap();
            fill(&mut used, &known(one.0), one.1.as_ref(), 1000);
            assert_eq!(used, sample(one.0, one.1.as_ref(), 1000));
        }
    }

    #[test]
    fn places_follow_who_comes_and_goes() {
        let thread = |slot: u32, generation: u32, tid: u32, tenant: u16| RawThread {
            slot,
            generation,
            id: id(tid),
            tenant: MonitorIndex(tenant),
            ..raw()
        };
        let (mut table, mut slot_states) = (Vec::new(), Vec::new());
        let mut made = Vec::new();
        let mut place = |threads: Vec<RawThread>| {
            let reading = Reading {
                threads,
                ..Reading::default()
            };
            let lengths = place_threads(&mut table, &mut slot_states, &reading, 2, |raw| {
                made.push(raw.id.tid.0);
                // Thread 13 is gone before its settings can be read.
                Ok((raw.id.tid.0 != 13).then(|| known(*raw)))
            });
            let mut places: Vec<(u16, u32, u32)> = (table.iter().flatten().zip(&slot_states[1..]))
                .map(|(k, slot_state): (&Known, &SlotState)| {
                    (k.raw.tenant.0, slot_state.index, k.raw.id.tid.0)
                })
                .collect();
            places.sort_unstable();
            (lengths.unwrap(), places, std::mem::take(&mut made))
        };
        let first = vec![
            thread(1, 1, 30, 0),
            thread(2, 1, 12, 0),
            thread(3, 1, 20, 1),
            thread(4, 1, 13, 0),
        ];
        let expected = (
            vec![2, 1],
            vec![(0, 0, 12), (0, 1, 30), (1, 0, 20)],
            vec![30, 12, 20, 13],
        );
        assert_eq!(place(first), expected);
        // Thread 12 has ended, and thread 30's slot is thread 31's now.
        let mut ended = thread(2, 1, 12, 0);
        ended.ended = true;
        let second = vec![thread(1, 2, 31, 0), ended, thread(3, 1, 20, 1)];
        assert_eq!(
            place(second),
            (vec![1, 1], vec![(0, 0, 31), (1, 0, 20)], vec![31])
        );
    }

    #[test]
    fn a_period_is_the_difference_of_two_readings() {
        let mut before = raw();
        (before.run_ns, before.ready_ns, before.waits) = (1000, 500, 3);
        (before.wait_histogram[4], before.switches, before.wakeups) = (3, 7, 6);
        let mut now = before;
        (now.run_ns, now.ready_ns, now.waits) = (1600, 700, 5);
        (now.wait_histogram[4], now.wait_histogram[6], now.switches) = (4, 1, 9);
        let seen = sample(now, Some(&before), 1000);
        assert_eq!(
            (seen.run_ns, seen.switches, seen.wakeups),
            (600, Some(2), Some(0))
        );
        let expected = ReadyTime {
            sum_ns: 200,
            count: Some(2),
            histogram: Some(vec![0, 0, 0, 0, 1, 0, 1]),
        };
        assert_eq!(seen.ready, Some(expected));
        assert_eq!(
            (&*seen.name, seen.cpu, seen.forked_by),
            ("worker", CpuId(1), Some(id(9)))
        );
    }

    #[test]
    fn a_new_thread_counts_from_zero_and_an_unchanged_one_is_all_zero_but_seen() {
        let mut now = raw();
        (now.run_ns, now.switches) = (400, 2);
        assert_eq!(sample(now, Some(&unseen(&now)), 1000).run_ns, 400);
        let idle = sample(now, None, 1000);
        assert_eq!((idle.run_ns, idle.switches), (0, Some(0)));
        let nothing = ReadyTime {
            sum_ns: 0,
            count: Some(0),
            histogram: Some(Vec::new()),
        };
        assert_eq!((idle.ready, idle.wakers), (Some(nothing), Some(Vec::new())));
    }

    #[test]
    fn the_first_state_counts_until_the_monitor_sees_one() {
        let mut now = raw();
        assert_eq!(sample(now, None, 1).state, ThreadState::Blocked);
        now.state = None;
        assert_eq!(sample(now, None, 1).state, ThreadState::Running);
    }

    #[test]
    fn wakers_by_frequency_also_when_they_left_the_table_meanwhile() {
        let waker = |tid, count| Some(RawWaker { id: id(tid), count });
        let (mut before, mut now) = (raw(), raw());
        before.wakers[..3].copy_from_slice(&[waker(1, 10), waker(2, 4), waker(3, 8)]);
        // Waker 1 woke it twice more, 2 did not, 3 left and came back with 5, 4 is new.
        now.wakers[..4].copy_from_slice(&[waker(4, 2), waker(1, 12), waker(2, 4), waker(3, 5)]);
        let mut list = Vec::new();
        wakers(&mut list, &now, &before);
        let seen: Vec<_> = list.iter().map(|w| (w.id.tid.0, w.count)).collect();
        assert_eq!(seen, [(3, 5), (1, 2), (4, 2)]);
    }

    #[test]
    fn waits_by_who_had_the_cpu() {
        let tables = ["own", "zoo", "bat"].map(quell_model::config::AgentTenant::named);
        let roster = Roster::of(&tables, 256);
        let parts = [
            (0, 20),
            (1, 4),
            (2, 6),
            (3, 5),
            (cause::HOST as u16, 3),
            (cause::IDLE as u16, 2),
            (cause::BANDWIDTH as u16, 11),
            (cause::STEAL as u16, 12),
            (cause::UNKNOWN as u16, 8),
        ];
        let expected = WaitBreakdown {
            own_ns: 20,
            tenants: vec![("bat".into(), 6), ("zoo".into(), 4)],
            others_ns: 0,
            host_ns: 5,
            bandwidth_ns: 11,
            steal_ns: 12,
            unknown_ns: 13,
        };
        assert_eq!(breakdown(0, &parts, &roster), expected);
        assert_eq!(
            expected.total_ns(),
            parts.iter().map(|(_, ns)| ns).sum::<u64>()
        );
    }

    /// A period of 100; the thread waits from 40 on. At 150 it becomes known that a limit had stopped it
    /// until then; the next reading is at 200.
    #[test]
    fn throttled_time_is_not_ready_and_what_counted_as_ready_is_taken_off() {
        let mut known = known(raw());
        let mut periods = Vec::new();
        for (ready_ns, throttled_ns, run_ns) in
            [(60, 0, 0), (0, 110, 50), (30, 110, 70), (130, 110, 70)]
        {
            let before = known.raw;
            (known.raw.ready_ns, known.raw.throttled_ns, known.raw.run_ns) =
                (ready_ns, throttled_ns, run_ns);
            let mut seen = blank();
            fill(&mut seen, &known, Some(&before), 100);
            known.throttled_ns += seen.throttled_ns.unwrap();
            periods.push((
                seen.run_ns,
                seen.ready.unwrap().sum_ns,
                seen.throttled_ns.unwrap(),
            ));
        }
        assert_eq!(periods, [(0, 60, 0), (50, 0, 50), (20, 0, 30), (0, 70, 30)]);
    }

    #[test]
    fn what_threads_did_that_ended_is_summed() {
        let mut before = raw();
        (
            before.run_ns,
            before.ready_ns,
            before.waits,
            before.wait_histogram[4],
        ) = (500, 100, 3, 3);
        let mut now = before;
        (now.run_ns, now.ready_ns, now.throttled_ns) = (530, 120, 10);
        (now.waits, now.wait_histogram[5]) = (5, 2);
        let mut ended = Ended::default();
        add_ended(&mut ended, &now, Some(&known(before)), 1000);
        assert_eq!(
            (ended.threads, ended.run_ns, ended.throttled_ns),
            (1, 30, 10)
        );
        assert_eq!((ended.ready.sum_ns, ended.ready.count), (20, Some(2)));
        // The same for a wait that began within the period.
        add_ended(&mut ended, &now, None, 1000);
        assert_eq!(
            (ended.threads, ended.run_ns, ended.ready.count),
            (2, 560, Some(7))
        );
        let histogram = ended.ready.histogram.unwrap();
        assert_eq!(
            (histogram[4], histogram[5], histogram.iter().sum::<u32>()),
            (3, 4, 7)
        );
    }

    #[test]
    fn occasions_are_differences_without_trailing_zeros() {
        let tenant = |first: u64, third: u64| {
            let mut occasions_ns = [0; OCCASION_BUCKETS];
            (occasions_ns[0], occasions_ns[2]) = (first, third);
            RawTenant {
                tenant: MonitorIndex(0),
                ended: Vec::new(),
                changed: Vec::new(),
                going_on: Vec::new(),
                occasions_ns,
                busy_ns: 10 * first,
                busy_periods: third,
                ready: 0,
                blocked: 0,
            }
        };
        let mut before = Served::default();
        before.go_on(&tenant(4, 20));
        let seen = before.occasions_until(&tenant(9, 50));
        assert_eq!(seen.by_blocked_ns, [5, 0, 30]);
        assert_eq!((seen.busy_ns, seen.busy_periods), (50, 30));
        before.go_on(&tenant(9, 50));
        let nothing = before.occasions_until(&tenant(9, 50));
        assert!(nothing.by_blocked_ns.is_empty());
    }

    #[test]
    fn reasons_say_what_would_be_needed() {
        let missing = MonitorError::Capability {
            missing: vec!["CAP_BPF"],
        };
        let text = explain(&missing);
        assert!(
            text.contains("missing CAP_BPF") && text.contains("run as root"),
            "{text}"
        );
        let log = "one\nR1 is not a pointer\n\n".to_string();
        let refused = MonitorError::Refused {
            reason: "Permission denied".to_string(),
            log,
        };
        assert!(explain(&refused).ends_with("(Permission denied): R1 is not a pointer"));
    }

    proptest! {
        /// Whatever two readings say, run, ready and throttled time fit into the period.
        #[test]
        fn never_negative_and_never_more_than_the_period(
            run: [u64; 2], ready: [u32; 2], throttled: [u32; 2], waits: [u64; 2], period_ns in 0..u64::MAX / 2,
        ) {
            let (ready, throttled) = (ready.map(u64::from), throttled.map(u64::from));
            let (mut before, mut now) = (raw(), raw());
            (before.run_ns, before.ready_ns, before.waits) = (run[0], ready[0], waits[0]);
            (now.run_ns, now.ready_ns, now.waits) = (run[1], ready[1], waits[1]);
            (before.throttled_ns, now.throttled_ns) = (throttled[0], throttled[1]);
            let seen = sample(now, Some(&before), period_ns);
            prop_assert!(seen.run_ns + waited_ns(&seen) <= period_ns);
        }
    }
}
