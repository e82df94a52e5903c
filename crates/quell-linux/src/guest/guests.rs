//! The guests of a host: each is asked once a second on a thread of its own, and told of changes.
//!
//! The observing and the acting component share one set ([`Guests`] is a handle), since a guest agent speaks
//! to one client at a time. A domain of libvirt's has a second thread, which pins its parts: pinning needs no
//! answer of the guest, and does not wait for one.

use super::endpoint::{GuestEndpoint, Transport};
use super::libvirt::{self, Domains, Found};
use super::watch::{Answer, Question, Watched};
use super::{GuestError, Online, Pins};
use crate::observe::qemu;
use quell_model::{
    CpuSet, GuestSample, Pid, Snapshot, TenantName, TenantSample, ThreadId, ThreadRole,
};
use quell_sys::clock::monotonic_ns;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The interval at which a guest is asked.
const EVERY: Duration = Duration::from_secs(1);
/// The greatest interval for a guest of libvirt's that does not answer, which is asked less and less often:
/// each try costs libvirt one of its few workers for 5 s. The guest is asked at once when libvirt reports
/// that its agent has come.
const SELDOM: Duration = Duration::from_secs(32);
/// The time for which a QEMU that libvirt starts may exist before libvirt reports that it runs.
const STARTS: Duration = Duration::from_secs(10);
/// The interval at which the pins of libvirt are read: another program may have changed them.
const PINS_EVERY: Duration = Duration::from_secs(5);
/// The time for which an ending process waits until guests have closed their files.
const LEAVE: Duration = Duration::from_millis(200);
/// The interval at which answers are looked for while originals are given back.
const LOOK: Duration = Duration::from_millis(5);

/// All guests of virtual machines that are tenants.
#[derive(Debug, Clone)]
pub struct Guests(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    all: Mutex<BTreeMap<TenantName, GuestState>>,
    domains: Domains,
}

/// The authority over the CPUs that the threads of a tenant's virtual machine may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AffinityOwner {
    /// Each thread has its own affinity.
    #[default]
    Threads,
    /// libvirt decides, by the pins of that process's parts.
    Libvirt(Pid),
    /// The authority is not known yet.
    Unknown(Pid),
}

#[derive(Debug)]
struct GuestState {
    /// The thread of the guest's first virtual CPU.
    thread: ThreadId,
    process: Pid,
    /// The number of virtual machines of the tenant.
    machines: usize,
    contact: Contact,
    /// The time at which the guest was first seen.
    since: Instant,
    asked: Option<Instant>,
    /// The interval for which the guest is left alone after it was asked.
    every: Duration,
    sample: Option<GuestSample>,
    online: CpuSet,
    /// The last change that the guest was told, its time, and the virtual CPUs that it had online then, once
    /// it has answered.
    told: Option<(Online, Instant, Option<CpuSet>)>,
    /// News that were not reported yet.
    news: Option<String>,
    /// Whether the guest did not answer last time.
    silent: bool,
}

/// Whether and how a guest is spoken to.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "there are as many as virtual machines, and nearly all are asked"
)]
enum Contact {
    /// The guest cannot be asked.
    None,
    /// libvirt is asked for the domain of that UUID; `said`: the reported reason why it is not available.
    Searching { uuid: String, said: Option<String> },
    /// The guest is asked through `endpoint`.
    Connected {
        endpoint: GuestEndpoint,
        agent: Watched,
        /// The pins of its parts, where libvirt keeps pins.
        libvirt_pins: Option<LibvirtPins>,
    },
}

/// The pins of one domain as libvirt last reported them ([`Pins`]), and the thread that reads and changes
/// them. What they are to become, and what they were before Quell, is the matter of `act::libvirt_pins`.
#[derive(Debug)]
struct LibvirtPins {
    watched: Watched,
    /// The number of times its agent had come.
    agents: u64,
    /// The pins that libvirt last reported.
    pins: Option<Pins>,
    /// The time at which the pins were last asked for.
    asked: Option<Instant>,
    /// The reported reason why reading or changing the pins failed.
    failed: Option<String>,
}

impl Default for Guests {
    fn default() -> Guests {
        Guests(Arc::new(Shared {
            all: Mutex::default(),
            domains: Domains::of(libvirt::uri()),
        }))
    }
}

impl Guests {
    fn all(&self) -> MutexGuard<'_, BTreeMap<TenantName, GuestState>> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the guests of the snapshot's virtual machines that are due, and enters their latest answers into
    /// the snapshot.
    pub fn sample_into(&self, snapshot: &mut Snapshot) {
        let mut all = self.all();
        let is = |name: &TenantName, one: &GuestState| {
            let machine = snapshot.tenant(name).and_then(machine);
            machine.map(|it| (it.0, it.1)) == Some((one.thread, one.process))
        };
        all.retain(|name, one| is(name, one));
        for sample in &mut snapshot.tenants {
            let Some((thread, process, machines)) = machine(sample) else {
                continue;
            };
            let one = all
                .entry(sample.name.clone())
                .or_insert_with(|| GuestState::new(thread, process));
            one.count(machines);
            one.find_domain(&self.0.domains);
            one.ask(&self.0.domains);
            one.take_answers();
            // The figures of one guest are not the needs of several.
            sample.guest = one.sample.filter(|_| machines == 1);
        }
    }

    /// The endpoint of a tenant's guest and the virtual CPUs that it has online, once it has answered.
    pub fn online(&self, tenant: &TenantName) -> Option<(GuestEndpoint, CpuSet)> {
        let all = self.all();
        let one = all.get(tenant)?;
        let (endpoint, _) = one.contact.agent()?;
        one.sample.map(|_| (endpoint.clone(), one.online.clone()))
    }

    /// Whether a tenant is more than one virtual machine, in which case none is to have other CPUs online
    /// than it had.
    pub fn has_several_machines(&self, tenant: &TenantName) -> bool {
        self.all().get(tenant).is_some_and(|it| it.machines > 1)
    }

    /// Tells a tenant's guest of a change, which it makes in its own time; not more than once a second.
    /// Returns false if it was not told: it cannot be told now, or the same change had no effect before.
    pub fn set_online(&self, tenant: &TenantName, online: Online) -> bool {
        let mut all = self.all();
        let Some(one) = all.get_mut(tenant) else {
            return false;
        };
        let Some((_, watched)) = one.contact.agent() else {
            return false;
        };
        let again = |(told, at, came): &(Online, Instant, Option<CpuSet>)| {
            // The same change would have the same result again.
            let vain = *told == online && came.as_ref() == Some(&one.online);
            !vain && at.elapsed() >= EVERY
        };
        if !one.told.as_ref().is_none_or(again) || !watched.ask(Question::SetOnline(online.clone()))
        {
            return false;
        }
        one.told = Some((online, Instant::now(), None));
        true
    }

    /// The authority over the CPUs that the threads of a tenant's virtual machine may use.
    pub fn affinity_owner(&self, tenant: &TenantName) -> AffinityOwner {
        let all = self.all();
        match all.get(tenant).map(|one| (&one.contact, one.process)) {
            Some((
                Contact::Connected {
                    libvirt_pins: Some(_),
                    ..
                },
                process,
            )) => AffinityOwner::Libvirt(process),
            Some((Contact::Searching { said: None, .. }, process)) => {
                AffinityOwner::Unknown(process)
            }
            _ => AffinityOwner::Threads,
        }
    }

    /// The endpoint of a tenant's domain and the pins of its parts, unless they are just being changed.
    pub fn pins(&self, tenant: &TenantName) -> Option<(GuestEndpoint, Pins)> {
        let all = self.all();
        let Contact::Connected {
            endpoint,
            libvirt_pins,
            ..
        } = &all.get(tenant)?.contact
        else {
            return None;
        };
        let libvirt_pins = libvirt_pins.as_ref().filter(|it| it.watched.is_idle())?;
        Some((endpoint.clone(), libvirt_pins.pins.clone()?))
    }

    /// Has those parts of a tenant's domain pinned that are as in one of `expected`. Returns false if that
    /// cannot be asked now.
    pub fn pin(&self, tenant: &TenantName, expected: Vec<Pins>, wanted: Pins) -> bool {
        let mut all = self.all();
        match all.get_mut(tenant).map(|it| &mut it.contact) {
            Some(Contact::Connected {
                libvirt_pins: Some(libvirt_pins),
                ..
            }) => {
                libvirt_pins.watched.is_idle()
                    && libvirt_pins.watched.ask(Question::Pin { expected, wanted })
            }
            _ => false,
        }
    }

    /// The tenant whose guest has that endpoint.
    pub fn tenant_at(&self, endpoint: &GuestEndpoint) -> Option<TenantName> {
        let all = self.all();
        let is = |one: &GuestState| one.contact.agent().is_some_and(|it| it.0 == endpoint);
        let mut found = all.iter().filter(|(_, one)| is(one));
        found.next().map(|(name, _)| name.clone())
    }

    /// The news of guests, in words.
    pub fn news(&self) -> Vec<(TenantName, String)> {
        let mut all = self.all();
        let news = all.iter_mut();
        news.filter_map(|(name, one)| Some((name.clone(), one.news.take()?)))
            .collect()
    }

    /// Tells guests of changes, or has their parts pinned, and waits until all of that is done, for `within`
    /// at most. Returns the outcome for each, in the order of `wanted`: the answer, or an error if the guest
    /// could not be asked or did not answer in time. Afterwards no guest is asked any more: the agent begins
    /// anew with all of them.
    ///
    /// # Errors
    /// An entry of the result is an error if its guest could not be asked, refused, or did not answer within
    /// that time.
    pub fn put_back(
        &self,
        wanted: Vec<(GuestEndpoint, Question)>,
        within: Duration,
    ) -> Vec<Result<Answer, GuestError>> {
        let until = Instant::now() + within;
        let all = std::mem::take(&mut *self.all());
        let mut known: Vec<(GuestEndpoint, Option<Watched>, Option<Watched>)> = all
            .into_values()
            .filter_map(|one| match one.contact {
                Contact::Connected {
                    endpoint,
                    agent,
                    libvirt_pins,
                } => Some((endpoint, Some(agent), libvirt_pins.map(|it| it.watched))),
                Contact::None | Contact::Searching { .. } => None,
            })
            .collect();
        let wait = |(endpoint, question): (GuestEndpoint, Question)| {
            let found = known.iter_mut().find(|(it, ..)| *it == endpoint);
            let watched = found.and_then(|(_, agent, libvirt_pins)| match question {
                Question::Pins | Question::Pin { .. } => libvirt_pins.take(),
                Question::Stat | Question::SetOnline(_) => agent.take(),
            });
            let watched = watched.map_or_else(|| endpoint.watched().map_err(GuestError::Away), Ok);
            Waiting::new(watched, question)
        };
        let mut waits: Vec<Waiting> = wanted.iter().cloned().map(wait).collect();
        // All of them are polled, so that each begins, even if another is not done.
        while waits
            .iter_mut()
            .filter_map(|it| (!it.done()).then_some(()))
            .count()
            > 0
            && Instant::now() < until
        {
            std::thread::sleep(LOOK);
        }
        let said: Vec<_> = waits.iter_mut().map(|it| it.said.take()).collect();
        let others = known
            .into_iter()
            .flat_map(|(_, agent, libvirt_pins)| [agent, libvirt_pins]);
        let told = waits.into_iter().map(|it| it.watched);
        leave(told.chain(others).flatten());
        let within_ms = within.as_millis() as u64;
        let late = |question: &Question| match question {
            Question::Pins | Question::Pin { .. } => GuestError::Libvirt {
                call: "pin",
                why: format!("it did not answer within {within_ms} ms"),
            },
            Question::Stat | Question::SetOnline(_) => GuestError::Silent { within_ms },
        };
        let said = said.into_iter().zip(&wanted);
        said.map(|(it, (_, question))| it.unwrap_or_else(|| Err(late(question))))
            .collect()
    }
}

/// Gives guests that are not at a question time to close the files that they have open.
fn leave(all: impl Iterator<Item = Watched>) {
    let until = Instant::now() + LEAVE;
    let idle: Vec<_> = all.filter(Watched::is_idle).map(Watched::leave).collect();
    while !idle.iter().all(JoinHandle::is_finished) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}

/// A guest that is told of a change and waited for.
struct Waiting {
    watched: Option<Watched>,
    wanted: Option<Question>,
    said: Option<Result<Answer, GuestError>>,
}

impl Waiting {
    fn new(watched: Result<Watched, GuestError>, wanted: Question) -> Waiting {
        let (watched, said) = match watched {
            Ok(watched) => (Some(watched), None),
            Err(error) => (None, Some(Err(error))),
        };
        Waiting {
            watched,
            wanted: Some(wanted),
            said,
        }
    }

    fn done(&mut self) -> bool {
        let Some(watched) = self.watched.as_ref().filter(|_| self.said.is_none()) else {
            return true;
        };
        if let Some(wanted) = &self.wanted {
            // Answers to earlier questions come first.
            watched.answers().for_each(drop);
            if watched.is_idle() && watched.ask(wanted.clone()) {
                self.wanted = None;
            }
            return false;
        }
        self.said = watched.answers().map(|(_, said)| Ok(said)).last();
        self.said.is_some()
    }
}

impl Contact {
    fn agent(&self) -> Option<(&GuestEndpoint, &Watched)> {
        match self {
            Contact::Connected {
                endpoint, agent, ..
            } => Some((endpoint, agent)),
            _ => None,
        }
    }
}

impl GuestState {
    fn new(thread: ThreadId, process: Pid) -> GuestState {
        let mut one = GuestState {
            thread,
            process,
            machines: 1,
            contact: Contact::None,
            since: Instant::now(),
            asked: None,
            every: EVERY,
            sample: None,
            online: CpuSet::new(),
            told: None,
            news: None,
            silent: false,
        };
        let cmdline = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let socket = qemu::agent_socket(&cmdline);
        let uuid = qemu::uuid(&cmdline).filter(|it| libvirt::is_uuid(it));
        match (socket, uuid) {
            (Some(socket), _) => one.connect(Transport::Socket(in_folder_of(process, socket)), 0),
            (None, Some(uuid)) => one.contact = Contact::Searching { uuid, said: None },
            (None, None) => one.unreachable("its QEMU has no socket for a guest agent"),
        }
        one
    }

    /// Takes the number of virtual machines of its tenant.
    fn count(&mut self, machines: usize) {
        let before = std::mem::replace(&mut self.machines, machines);
        if machines > 1 && before == 1 {
            self.news = Some(
                "it is more than one virtual machine: they are sized together, by what they use, and their guests are asked where each is a \
                 tenant of its own"
                    .to_string(),
            );
        }
    }

    /// Marks the guest as one that cannot be asked, which is to be reported.
    fn unreachable(&mut self, why: &str) {
        self.news = Some(format!(
            "its guest cannot be asked: {why}; what it uses is all that its CPUs can be chosen by"
        ));
    }

    fn connect(&mut self, transport: Transport, agents: u64) {
        let (thread, process) = (self.thread, self.process);
        let endpoint = GuestEndpoint {
            thread,
            process,
            transport,
        };
        // A journal has to be able to name the guest.
        if !endpoint.transport.is_a_line() {
            return self.unreachable("the way to its guest agent has more than one line");
        }
        let libvirt_pins =
            matches!(endpoint.transport, Transport::Libvirt { .. }).then(|| endpoint.watched());
        match (endpoint.watched(), libvirt_pins.transpose()) {
            (Ok(agent), Ok(watched)) => {
                let libvirt_pins = watched.map(|watched| LibvirtPins {
                    watched,
                    agents,
                    pins: None,
                    asked: None,
                    failed: None,
                });
                self.contact = Contact::Connected {
                    endpoint,
                    agent,
                    libvirt_pins,
                };
            }
            (Err(error), _) | (_, Err(error)) => {
                self.contact = Contact::None;
                self.unreachable(&error.to_string());
            }
        }
    }

    /// Looks for the domain in libvirt, as long as it is not found.
    fn find_domain(&mut self, domains: &Domains) {
        let Contact::Searching { uuid, said } = &mut self.contact else {
            return;
        };
        let why = match domains.find(uuid) {
            Found::NotYet => return,
            Found::Unknown if said.is_none() && self.since.elapsed() < STARTS => return,
            Found::Running { agents } => {
                if said.is_some() {
                    self.news = Some("libvirt has it now: its guest is asked".to_string());
                }
                let (uuid, uri) = (uuid.clone(), domains.uri().to_string());
                return self.connect(Transport::Libvirt { uuid, uri }, agents);
            }
            Found::Unknown => {
                format!(
                    "its QEMU has no socket for a guest agent, and libvirt at {} does not run {uuid}",
                    domains.uri()
                )
            }
            Found::Away(why) => {
                format!("its QEMU has no socket for a guest agent, and {why}")
            }
        };
        if said.as_ref() != Some(&why) {
            *said = Some(why.clone());
            self.unreachable(&why);
        }
    }

    fn ask(&mut self, domains: &Domains) {
        let Contact::Connected {
            endpoint,
            agent,
            libvirt_pins,
        } = &mut self.contact
        else {
            return;
        };
        if let (Some(libvirt_pins), Transport::Libvirt { uuid, .. }) =
            (libvirt_pins, &endpoint.transport)
        {
            if let Found::Running { agents } = domains.find(uuid) {
                // The agent has come just now: it may answer again.
                if agents > std::mem::replace(&mut libvirt_pins.agents, agents) {
                    (self.asked, self.every) = (None, EVERY);
                }
            }
            let every = if libvirt_pins.pins.is_some() {
                PINS_EVERY
            } else {
                EVERY
            };
            let due = libvirt_pins.asked.is_none_or(|it| it.elapsed() >= every);
            if due && libvirt_pins.watched.is_idle() {
                libvirt_pins.asked = Some(Instant::now());
                libvirt_pins.watched.ask(Question::Pins);
            }
        }
        let due = self.asked.is_none_or(|at| at.elapsed() >= self.every);
        if due && agent.ask(Question::Stat) {
            self.asked = Some(Instant::now());
        }
    }

    /// Takes the answers that came since the last call.
    fn take_answers(&mut self) {
        let Contact::Connected {
            endpoint,
            agent,
            libvirt_pins,
        } = &mut self.contact
        else {
            return;
        };
        if let Some(libvirt_pins) = libvirt_pins {
            for (_, said) in libvirt_pins.watched.answers() {
                let (what, pins) = match said {
                    Answer::Pins(pins) => ("read", pins),
                    Answer::Pinned(pins) => ("changed", pins),
                    Answer::Stat(_) | Answer::Online(_) => continue,
                };
                let failed = pins.as_ref().err();
                let failed = failed
                    .map(|it| format!("its pins could not be {what} ({it}), which is tried again"));
                if failed.is_some() && failed != libvirt_pins.failed {
                    self.news.clone_from(&failed);
                }
                libvirt_pins.failed = failed;
                libvirt_pins.pins = pins.ok();
            }
        }
        for (at, said) in agent.answers() {
            let failed = match said {
                Answer::Stat(Ok(stat)) => {
                    self.sample = Some(GuestSample {
                        at_ns: monotonic_ns().saturating_sub(at.elapsed().as_nanos() as u64),
                        used_ns: stat.used_ns(),
                        switches: stat.switches,
                        online: stat.online.len() as u32,
                    });
                    self.online = stat.online;
                    None
                }
                Answer::Online(Ok(online)) => {
                    if let Some((_, _, came)) = &mut self.told {
                        *came = Some(online.clone());
                    }
                    self.online = online;
                    None
                }
                Answer::Online(Err(error)) | Answer::Stat(Err(error)) => Some(error),
                Answer::Pins(_) | Answer::Pinned(_) => continue,
            };
            let silent = failed.is_some();
            let by_libvirt = matches!(endpoint.transport, Transport::Libvirt { .. });
            self.every = match silent && by_libvirt {
                true => (self.every * 2).min(SELDOM),
                false => EVERY,
            };
            if silent != self.silent {
                self.news = Some(match failed {
                    Some(error) => {
                        format!(
                            "{error}; until it answers what it uses is all that its CPUs can be chosen by"
                        )
                    }
                    None => "its guest answers".to_string(),
                });
            }
            self.silent = silent;
        }
    }
}

/// The thread of the first virtual CPU, its process, and the number of virtual machines.
fn machine(sample: &TenantSample) -> Option<(ThreadId, Pid, usize)> {
    let number = |role| match role {
        ThreadRole::Vcpu(number) => Some(number),
        _ => None,
    };
    let vcpus = || {
        let threads = sample.threads.iter();
        threads.filter_map(|it| Some((number(it.role)?, it)))
    };
    let (_, first) = vcpus().min_by_key(|(number, it)| (*number, it.id))?;
    let machines: BTreeSet<Pid> = vcpus().map(|(_, it)| it.process).collect();
    Some((first.id, first.process, machines.len()))
}

/// A path that is not absolute is relative to the working directory of the process.
fn in_folder_of(process: Pid, path: PathBuf) -> PathBuf {
    let folder = std::fs::read_link(format!("/proc/{process}/cwd"));
    folder.map_or_else(|_| path.clone(), |folder| folder.join(&path))
}

#[cfg(test)]
impl Guests {
    /// A guest that is spoken to by the given threads, its parts too.
    pub(crate) fn with(
        &self,
        tenant: &TenantName,
        endpoint: GuestEndpoint,
        agent: Box<dyn super::Guest>,
        libvirt_pins: Option<Box<dyn super::Guest>>,
    ) {
        let mut one = GuestState::new(endpoint.thread, endpoint.process);
        one.news = None;
        one.contact = Contact::Connected {
            endpoint,
            agent: Watched::new(agent).unwrap(),
            libvirt_pins: libvirt_pins.map(|it| LibvirtPins {
                watched: Watched::new(it).unwrap(),
                agents: 0,
                pins: None,
                asked: None,
                failed: None,
            }),
        };
        self.all().insert(tenant.clone(), one);
    }
}

#[cfg(test)]
mod tests;
