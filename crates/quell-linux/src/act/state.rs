//! The state that Quell holds: for each setting it manages, the original and the value it wrote. Built up
//! while acting, or from the journal after a run that did not end well; undone the same way in both cases.

use super::cgroup::{self, Cgroups};
use super::journal::{Contents, Record, Value};
use super::report::{Note, RestoreReport, Subject};
use super::thread::{self, Sched};
use crate::guest::{GuestEndpoint, Part, Pins};
use indexmap::IndexMap;
use quell_model::{CgroupPath, CpuSet, Pid, TenantName, ThreadId, Tid};
use quell_sys::sched;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The number of recently written values that are remembered, to recognise them in children, which inherit.
const WRITTEN_MAX: usize = 8;

/// A thread's settings, as indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attr {
    Nice = 0,
    Slice = 1,
    Cpus = 2,
}

pub(super) const ATTRS: [Attr; 3] = [Attr::Nice, Attr::Slice, Attr::Cpus];

/// One managed setting.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Setting {
    /// The value that the owner had set.
    pub original: Value,
    /// The value that holds, unless another program has changed it.
    pub last: Value,
    /// From the journal only: the value before the last write, which may not have happened.
    also: Option<Value>,
    /// The values that Quell wrote lately.
    written: Vec<Value>,
    /// Whether the journal has the original.
    pub journaled: bool,
    /// Whether the thread was born with the value that Quell had given its creator; `original` is the
    /// creator's.
    pub inherited: bool,
    /// The reason why the setting is left alone from now on, if it is.
    pub hands_off: Option<HandsOff>,
    /// Whether it could not be given back, which has been noted; the attempt is repeated.
    pub stuck: bool,
}

/// The reason why a setting is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandsOff {
    /// Another program has changed it, so it is no longer Quell's to give back.
    Foreign,
    /// The kernel did not let Quell change it. An earlier value that Quell wrote is still to be given back.
    Refused,
}

/// One managed thread.
#[derive(Debug, Clone)]
pub(super) struct Thread {
    pub process: Pid,
    /// The tenant of the thread; unknown when the record comes from the journal.
    pub tenant: Option<TenantName>,
    pub settings: [Option<Setting>; 3],
    /// The CPUs last asked of the kernel, which may have given fewer (cpusets).
    pub cpus_requested: Option<CpuSet>,
    /// The CPUs that the thread has and the CPUs that it was to have, where they differ: its cpuset is
    /// smaller, or CPUs went offline.
    pub narrowed: Option<(CpuSet, CpuSet)>,
    pub nice_dither: super::nice_dither::NiceDither,
    /// The last period in which the thread was in the plan.
    pub planned: u64,
    /// Whether the thread has exited; it is kept a while, since children may yet show up with its settings.
    pub gone: bool,
}

/// One managed cgroup.
#[derive(Debug, Clone)]
pub(super) struct Cgroup {
    pub inode: u64,
    pub tenant: Option<TenantName>,
    pub setting: Setting,
    pub planned: u64,
    /// The reason why the planned weight does not hold, if it does not.
    pub unmet: Option<String>,
    /// Whether the cgroup was idle when it was last checked.
    pub idle: bool,
}

/// The guest of one virtual machine that was told to change its online virtual CPUs.
#[derive(Debug, Clone)]
pub(super) struct Guest {
    pub endpoint: GuestEndpoint,
    /// The virtual CPUs that the guest had online before.
    pub original: CpuSet,
    /// The tenant of the guest; unknown when the record comes from the journal.
    pub tenant: Option<TenantName>,
    pub planned: u64,
}

/// One virtual machine whose parts are pinned by the manager that runs it.
#[derive(Debug, Clone)]
pub(super) struct Domain {
    pub endpoint: GuestEndpoint,
    /// The original pins of the parts.
    pub original: Pins,
    /// The present pins of the parts, unless another program has changed them.
    pub last: Pins,
    /// The pins before the last change, as long as its outcome is not known.
    pub also: Option<Pins>,
    /// Parts that another program has pinned: they are left alone from now on.
    pub foreign: BTreeSet<Part>,
    /// The tenant of the domain; unknown when the record comes from the journal.
    pub tenant: Option<TenantName>,
    pub planned: u64,
}

impl Domain {
    /// The journal's record of the domain, with `to` about to hold.
    pub fn record(&self, to: &Pins) -> Record {
        Record::Parts {
            endpoint: self.endpoint.clone(),
            original: self.original.clone(),
            from: self.also.as_ref().unwrap_or(&self.last).clone(),
            to: to.clone(),
        }
    }

    /// The pins that may hold without a decision of another program.
    pub fn expected(&self) -> Vec<Pins> {
        let also = self.also.iter().cloned();
        [self.last.clone()].into_iter().chain(also).collect()
    }

    /// The pins that hold once `wanted` is pinned.
    pub fn with(&self, wanted: &Pins) -> Pins {
        let ours = self.last.iter().filter(|it| !self.foreign.contains(&it.0));
        let part = |(part, cpus): (Part, &CpuSet)| (part, wanted.get(part).unwrap_or(cpus).clone());
        ours.map(part).collect()
    }

    /// The originals of the parts that no other program has pinned.
    pub fn ours(&self) -> Pins {
        let ours = |part| !self.foreign.contains(&part) && self.last.get(part).is_some();
        self.original.only(ours)
    }
}

impl Guest {
    /// The journal's record of the guest.
    pub fn record(&self) -> Record {
        Record::Guest {
            endpoint: self.endpoint.clone(),
            original: self.original.clone(),
        }
    }
}

/// All settings that Quell holds.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The managed threads in the order in which they came, which is nearly that of the plan.
    pub threads: IndexMap<ThreadId, Thread>,
    pub cgroups: BTreeMap<CgroupPath, Cgroup>,
    /// The guests, by the thread of their first virtual CPU.
    pub guests: BTreeMap<ThreadId, Guest>,
    /// The domains, by the thread of their first virtual CPU.
    pub domains: BTreeMap<ThreadId, Domain>,
    /// The indices in `threads` of the plan's threads, by their position in the plan.
    places: Vec<usize>,
}

/// The facts about the host that undoing needs.
#[derive(Debug)]
pub(super) struct Host {
    /// The kernel's own slice in ns; `None` if the kernel takes no custom slices.
    pub default_slice: Option<u64>,
    pub cgroups: Cgroups,
}

impl Setting {
    pub fn new(original: Value, last: Value) -> Setting {
        Setting {
            original,
            last,
            also: None,
            written: Vec::new(),
            journaled: false,
            inherited: false,
            hands_off: None,
            stuck: false,
        }
    }

    /// Whether the value is what Quell left.
    pub fn expects(&self, value: &Value) -> bool {
        self.last == *value || self.also.as_ref() == Some(value)
    }

    /// Whether a child may have inherited this value from the thread.
    pub fn gave(&self, value: &Value) -> bool {
        self.written.contains(value) || self.expects(value)
    }

    /// Whether Quell has changed the setting, here or in the thread's creator.
    pub fn touched(&self) -> bool {
        self.inherited || !self.written.is_empty()
    }

    /// Takes note of a write.
    pub fn wrote(&mut self, value: Value) {
        self.last = value.clone();
        self.also = None;
        if !self.written.contains(&value) {
            if self.written.len() == WRITTEN_MAX {
                self.written.remove(0);
            }
            self.written.push(value);
        }
    }
}

impl Thread {
    pub fn new(process: Pid, tenant: Option<TenantName>) -> Thread {
        Thread {
            process,
            tenant,
            settings: [None, None, None],
            cpus_requested: None,
            narrowed: None,
            nice_dither: Default::default(),
            planned: 0,
            gone: false,
        }
    }

    pub fn get(&self, attr: Attr) -> Option<&Setting> {
        self.settings[attr as usize].as_ref()
    }

    pub fn get_mut(&mut self, attr: Attr) -> Option<&mut Setting> {
        self.settings[attr as usize].as_mut()
    }

    /// The journal record for a setting about to become `to`.
    pub fn record(&self, id: ThreadId, attr: Attr, to: Value) -> Option<Record> {
        let setting = self.get(attr)?;
        let (original, from) = (setting.original.clone(), setting.last.clone());
        Some(Record::Thread {
            id,
            process: self.process,
            original,
            from,
            to,
        })
    }
}

impl Host {
    /// Reads a setting, as the journal writes it: the kernel's own slice is 0.
    pub fn value(&self, sched: &Sched, cpus: &CpuSet, attr: Attr) -> Value {
        match attr {
            Attr::Nice => Value::Nice(sched.nice),
            Attr::Cpus => Value::Cpus(cpus.clone()),
            Attr::Slice if Some(sched.slice_ns) == self.default_slice => Value::Slice(0),
            Attr::Slice => Value::Slice(sched.slice_ns),
        }
    }

    /// Whether the affinity is all that the thread's cpuset and the online CPUs allow, so that its
    /// owner has not chosen one.
    pub fn is_unrestricted(&self, tid: Tid, cpus: &CpuSet) -> bool {
        let online = online();
        online == *cpus || self.allowed(tid) == *cpus
    }

    /// Whether a setting is still as Quell left it. An affinity also is when only CPUs that went offline
    /// or out of the cpuset are missing; when all are missing, the kernel lets the thread run on all of
    /// its cpuset, but (since Linux 6.2) keeps the affinity for when they come back.
    pub fn is_as_left(&self, tid: Tid, setting: &Setting, now: &Value) -> bool {
        if setting.hands_off == Some(HandsOff::Foreign) {
            return false;
        }
        setting.expects(now)
            || match (&setting.original, &setting.last, now) {
                (Value::Cpus(original), Value::Cpus(last), Value::Cpus(now)) => {
                    let allowed = self.allowed(tid);
                    let left = last.intersection(&allowed);
                    left == *now
                        || (left.is_empty() && allowed == *now)
                        || (original.is_empty()
                            && setting.written.is_empty()
                            && self.is_unrestricted(tid, now))
                }
                _ => false,
            }
    }

    /// The CPUs that the thread's cpuset and the online CPUs allow.
    fn allowed(&self, tid: Tid) -> CpuSet {
        let online = online();
        self.cgroups
            .cpuset_of(tid)
            .map_or(online.clone(), |set| set.intersection(&online))
    }
}

fn online() -> CpuSet {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    text.parse().unwrap_or_default()
}

impl State {
    /// The state that a journal records. Later records supersede earlier ones.
    pub fn from_journal(contents: Contents) -> State {
        let mut state = State::default();
        let setting = |slot: &mut Option<Setting>, original: Value, from: Value, to: Value| {
            let setting = slot.get_or_insert_with(|| Setting::new(original.clone(), from.clone()));
            setting.original = original;
            setting.wrote(to);
            setting.also = Some(from);
            setting.journaled = true;
        };
        for record in contents.records {
            match record {
                Record::Thread {
                    id,
                    process,
                    original,
                    from,
                    to,
                } => {
                    let thread = state
                        .threads
                        .entry(id)
                        .or_insert_with(|| Thread::new(process, None));
                    let attr = match original {
                        Value::Nice(_) => Attr::Nice,
                        Value::Slice(_) => Attr::Slice,
                        _ => Attr::Cpus,
                    };
                    setting(&mut thread.settings[attr as usize], original, from, to);
                }
                Record::Cgroup {
                    inode,
                    path,
                    original,
                    from,
                    to,
                } => {
                    let old = state.cgroups.remove(&path).filter(|old| old.inode == inode);
                    let mut slot = old.map(|old| old.setting);
                    let [original, from, to] = [original, from, to].map(Value::Weight);
                    setting(&mut slot, original, from, to);
                    if let Some(setting) = slot {
                        let cgroup = Cgroup {
                            inode,
                            tenant: None,
                            setting,
                            planned: 0,
                            unmet: None,
                            idle: false,
                        };
                        state.cgroups.insert(path, cgroup);
                    }
                }
                Record::Guest { endpoint, original } => {
                    let guest = Guest {
                        endpoint,
                        original,
                        tenant: None,
                        planned: 0,
                    };
                    state.guests.insert(guest.endpoint.thread, guest);
                }
                Record::DropGuest(id) => drop(state.guests.remove(&id)),
                Record::Parts {
                    endpoint,
                    original,
                    from,
                    to,
                } => {
                    let domain = Domain {
                        endpoint,
                        original,
                        last: to,
                        also: Some(from),
                        foreign: BTreeSet::new(),
                        tenant: None,
                        planned: 0,
                    };
                    state.domains.insert(domain.endpoint.thread, domain);
                }
                Record::DropParts(id) => drop(state.domains.remove(&id)),
                Record::DropThread(id) => drop(state.threads.swap_remove(&id)),
                Record::DropCgroup { inode } => state.cgroups.retain(|_, c| c.inode != inode),
            }
        }
        state
    }

    /// The thread that is `nth` in the plan. A thread mostly keeps its position in the plan, so the
    /// usual case needs no search.
    pub fn planned_thread(&mut self, nth: usize, id: ThreadId) -> Option<&mut Thread> {
        if self.places.len() <= nth {
            self.places.resize(nth + 1, 0);
        }
        let place = &mut self.places[nth];
        if self
            .threads
            .get_index(*place)
            .is_none_or(|(at, _)| *at != id)
        {
            *place = self.threads.get_index_of(&id)?;
        }
        self.threads.get_index_mut(*place).map(|(_, thread)| thread)
    }

    /// Whether no setting is held.
    pub fn is_empty(&self) -> bool {
        let guests = self.guests.is_empty() && self.domains.is_empty();
        self.threads.is_empty() && self.cgroups.is_empty() && guests
    }

    /// The shortest journal that records this state.
    pub fn records(&self) -> Vec<Record> {
        let mut records: Vec<Record> = self.guests.values().map(Guest::record).collect();
        records.extend(self.domains.values().map(|it| it.record(&it.last)));
        let live = |s: &&Setting| s.journaled && s.hands_off != Some(HandsOff::Foreign);
        for (&id, thread) in self.threads.iter().filter(|(_, t)| !t.gone) {
            for setting in thread.settings.iter().flatten().filter(live) {
                let from = setting.also.clone().unwrap_or_else(|| setting.last.clone());
                let (original, to) = (setting.original.clone(), setting.last.clone());
                records.push(Record::Thread {
                    id,
                    process: thread.process,
                    original,
                    from,
                    to,
                });
            }
        }
        for (path, cgroup) in self.cgroups.iter().filter(|(_, c)| live(&&c.setting)) {
            let setting = &cgroup.setting;
            let from = setting.also.as_ref().unwrap_or(&setting.last);
            if let (Value::Weight(original), Value::Weight(from), Value::Weight(to)) =
                (&setting.original, from, &setting.last)
            {
                let (inode, path) = (cgroup.inode, path.clone());
                let (original, from, to) = (*original, *from, *to);
                records.push(Record::Cgroup {
                    inode,
                    path,
                    original,
                    from,
                    to,
                });
            }
        }
        records
    }

    /// Puts every original back where the present value is Quell's, except the affinities of the threads that
    /// stay bound. Afterwards the state holds only these, and the settings that could not be put back.
    /// `opened_ticks`: when Quell began, in ticks since boot.
    pub fn undo(
        &mut self,
        host: &Host,
        opened_ticks: u64,
        bound: &BTreeSet<ThreadId>,
    ) -> RestoreReport {
        let mut report = RestoreReport::default();
        for (id, thread) in self.children(host, opened_ticks) {
            self.threads.insert(id, thread);
        }
        let mut left = IndexMap::new();
        for (id, mut thread) in std::mem::take(&mut self.threads) {
            let stays = bound.contains(&id) && !thread.gone;
            let slot = &mut thread.settings[Attr::Cpus as usize];
            let cpus = if stays { slot.take() } else { None };
            let known = !thread.gone && thread.settings.iter().any(Option::is_some);
            let failed = known && undo_thread(id, &mut thread, host, &mut report);
            if !failed {
                thread.settings = [None, None, None];
            }
            if cpus.is_some() {
                thread.settings[Attr::Cpus as usize] = cpus;
            }
            if thread.settings.iter().any(Option::is_some) {
                left.insert(id, thread);
            }
        }
        self.threads = left;
        self.cgroups
            .retain(|path, cgroup| undo_cgroup(path, cgroup, host, &mut report));
        report
    }

    /// Threads that Quell does not know and that inherited their settings from a managed thread: created by
    /// it, or in its process or a child process, after Quell began, with all of its values.
    fn children(&self, host: &Host, opened_ticks: u64) -> Vec<(ThreadId, Thread)> {
        let mut by_process: BTreeMap<u32, Vec<&Thread>> = BTreeMap::new();
        for thread in self
            .threads
            .values()
            .filter(|t| t.settings.iter().any(Option::is_some))
        {
            by_process.entry(thread.process.0).or_default().push(thread);
        }
        let known: BTreeSet<Tid> = self.threads.keys().map(|id| id.tid).collect();
        let mut found = Vec::new();
        if by_process.is_empty() {
            return found;
        }
        let parents: BTreeMap<u32, u32> = numbers("/proc")
            .filter_map(|pid| Some((pid, thread::stat(Tid(pid)).ok()?.parent)))
            .collect();
        for &process in parents.keys() {
            // The nearest process upwards that Quell manages; parents have no cycles, but the table
            // was not read in one moment.
            let lineage = std::iter::successors(Some(process), |pid| parents.get(pid).copied());
            let Some(creators) = lineage.take(64).find_map(|pid| by_process.get(&pid)) else {
                continue;
            };
            for tid in numbers(&format!("/proc/{process}/task")).map(Tid) {
                let Ok(stat) = thread::stat(tid) else {
                    continue;
                };
                if known.contains(&tid) || stat.start_ticks <= opened_ticks {
                    continue;
                }
                let (Ok(sched), Ok(cpus)) = (thread::scheduling(tid), sched::affinity(tid)) else {
                    continue;
                };
                let inherited = creators.iter().find(|creator| {
                    ATTRS.iter().all(|&attr| {
                        creator
                            .get(attr)
                            .is_none_or(|s| s.gave(&host.value(&sched, &cpus, attr)))
                    })
                });
                if let Some(creator) = inherited {
                    let mut thread = Thread::new(Pid(process), creator.tenant.clone());
                    thread.settings = creator.settings.clone();
                    for attr in ATTRS {
                        if let Some(setting) = thread.get_mut(attr) {
                            setting.hands_off = None;
                            setting.also = None;
                            setting.last = host.value(&sched, &cpus, attr);
                        }
                    }
                    found.push((
                        ThreadId {
                            tid,
                            start_ticks: stat.start_ticks,
                        },
                        thread,
                    ));
                }
            }
        }
        found
    }
}

/// The entries of a `/proc` folder that are numbers, ascending.
fn numbers(folder: &str) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let found: BTreeSet<u32> = entries
        .filter_map(|e| e.file_name().to_str().and_then(|n| n.parse().ok()))
        .collect();
    found.into_iter()
}

/// Puts the originals of one thread back. Returns whether something failed and should be tried again.
fn undo_thread(id: ThreadId, thread: &mut Thread, host: &Host, report: &mut RestoreReport) -> bool {
    let tid = id.tid;
    if !thread::is_there(id) {
        report.gone += 1;
        return false;
    }
    let note = |text: String| Note {
        tenant: thread.tenant.clone(),
        subject: Subject::Thread(id),
        text,
    };
    let mut back: [Option<Value>; 3] = [None, None, None];
    for attr in ATTRS {
        let Some(setting) = &thread.settings[attr as usize] else {
            continue;
        };
        let now = match (attr, thread::scheduling(tid), sched::affinity(tid)) {
            (Attr::Cpus, _, Ok(cpus)) => Value::Cpus(cpus),
            (Attr::Nice | Attr::Slice, Ok(sched), Ok(cpus)) if sched.fair => {
                host.value(&sched, &cpus, attr)
            }
            (Attr::Nice | Attr::Slice, Ok(_), Ok(_)) => {
                report.left_alone += 1;
                let name = setting.original.name();
                report.notes.push(note(format!(
                    "{name} left alone: it is no longer an ordinary thread"
                )));
                continue;
            }
            _ => {
                report.gone += 1;
                return false;
            }
        };
        let whole = |cpus: &CpuSet| cpus.is_empty();
        let same = match (&setting.original, &now) {
            (Value::Cpus(all), Value::Cpus(cpus)) if whole(all) => host.is_unrestricted(tid, cpus),
            (original, now) => original == now,
        };
        // An affinity may read as the original and yet differ from it, see `Host::is_as_left`.
        let hidden =
            attr == Attr::Cpus && setting.touched() && setting.hands_off != Some(HandsOff::Foreign);
        if same && !hidden {
            report.unchanged += 1;
        } else if !same && !host.is_as_left(tid, setting, &now) {
            report.left_alone += 1;
            report.notes.push(note(format!(
                "{} left at {now}: someone else changed it since Quell wrote {} (it was {})",
                now.name(),
                setting.last,
                setting.original
            )));
        } else if !setting.touched() {
            report.unchanged += 1; // planned or refused, but never written
        } else {
            back[attr as usize] = Some(setting.original.clone());
        }
    }
    let wanted = back.iter().flatten().count() as u64;
    if wanted == 0 {
        return false;
    }
    let result = write_back(tid, &mut back);
    let failed = back.iter().flatten().count() as u64;
    report.restored += wanted - failed;
    match result {
        Ok(()) => false,
        Err(error) if thread::is_gone(&error) => {
            report.gone += 1;
            false
        }
        Err(error) => {
            report.failed += failed;
            let text = format!("could not be put back: {error}{}", hint(&error));
            let note = note(text);
            report.notes.push(note);
            for (setting, back) in thread.settings.iter_mut().zip(&back) {
                if back.is_none() {
                    *setting = None;
                }
            }
            true
        }
    }
}

/// Writes originals to a thread known to be the right one. The values left in `back` on an error could
/// not be written.
pub(super) fn write_back(tid: Tid, back: &mut [Option<Value>; 3]) -> io::Result<()> {
    let [nice, slice, cpus] = back;
    let sched = match (&*nice, &*slice) {
        (Some(Value::Nice(nice)), Some(Value::Slice(slice))) => {
            thread::set_sched(tid, *nice, *slice)
        }
        (None, Some(Value::Slice(slice))) => {
            thread::scheduling(tid).and_then(|now| thread::set_sched(tid, now.nice, *slice))
        }
        (Some(Value::Nice(nice)), _) => sched::set_nice(tid, *nice),
        _ => Ok(()),
    };
    if sched.is_ok() {
        (*nice, *slice) = (None, None);
    }
    let affinity = match &*cpus {
        Some(Value::Cpus(set)) => thread::set_affinity(tid, set),
        _ => Ok(()),
    };
    if affinity.is_ok() {
        *cpus = None;
    }
    sched.and(affinity)
}

/// Puts the weight of one cgroup back. Returns whether that failed and should be tried again.
pub(super) fn undo_cgroup(
    path: &CgroupPath,
    cgroup: &Cgroup,
    host: &Host,
    report: &mut RestoreReport,
) -> bool {
    let setting = &cgroup.setting;
    let file = host.cgroups.cpu.as_ref().and_then(|h| h.weight_file(path));
    let now = file
        .as_ref()
        .and_then(|file| cgroup::read_weight(file).ok());
    let (Some(file), Some((inode, now))) = (file, now) else {
        report.gone += 1;
        return false;
    };
    let mut note = |text: String| {
        let subject = Subject::Cgroup(path.clone());
        report.notes.push(Note {
            tenant: cgroup.tenant.clone(),
            subject,
            text,
        });
    };
    let now = Value::Weight(now);
    if inode != cgroup.inode {
        report.gone += 1;
    } else if now == setting.original || cgroup::is_idle(&file) {
        // The kernel forgets what was written before to a cgroup that is idle.
        report.unchanged += 1;
    } else if setting.hands_off == Some(HandsOff::Foreign) || !setting.expects(&now) {
        note(format!(
            "weight left at {now}: someone else changed it since Quell wrote {} (it was {})",
            setting.last, setting.original
        ));
        report.left_alone += 1;
    } else if let Value::Weight(original) = setting.original {
        match cgroup::write_weight(&file, original) {
            Ok(()) => report.restored += 1,
            Err(error) => {
                note(format!(
                    "weight could not be put back: {error}{}",
                    hint(&error)
                ));
                report.failed += 1;
                return true;
            }
        }
    }
    false
}

/// The remedy for an error that an operator can apply.
pub(super) fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => " (run as root or with CAP_SYS_NICE)",
        Some(libc::EACCES | libc::EROFS) => " (run as root, with a writable cgroup file system)",
        Some(libc::EINVAL) => " (its cpuset or policy does not allow it)",
        _ => "",
    }
}
