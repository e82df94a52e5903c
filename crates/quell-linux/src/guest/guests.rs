//! The guests of a host: each is asked once a second on a thread of its own, and told what changes.
//!
//! Who observes and who acts have the same ones ([`Guests`] is a handle), since a guest agent speaks to one at a time.

use super::agent::AgentSocket;
use super::watch::{Question, Said, Watched};
use super::{GuestError, Online};
use crate::observe::qemu;
use nix::time::{ClockId, clock_gettime};
use quell_model::{
    CpuSet, GuestSample, Pid, Snapshot, TenantName, TenantSample, ThreadId, ThreadRole,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A guest is asked so often.
const EVERY: Duration = Duration::from_secs(1);
/// And given so long for an answer.
const WITHIN: Duration = Duration::from_secs(2);
/// How often who gives back looks for answers.
const LOOK: Duration = Duration::from_millis(5);

/// How a guest is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// The thread of its first virtual CPU: the guest lives as long as that.
    pub thread: ThreadId,
    /// Its QEMU.
    pub process: Pid,
    /// Where that listens.
    pub socket: PathBuf,
}

/// All guests of virtual machines that are tenants.
#[derive(Debug, Clone, Default)]
pub struct Guests(Arc<Mutex<BTreeMap<TenantName, One>>>);

#[derive(Debug)]
struct One {
    way: Result<(Way, Watched), ThreadId>,
    asked: Option<Instant>,
    sample: Option<GuestSample>,
    online: CpuSet,
    /// What it was told last, when, and what it had online then, once it has answered.
    told: Option<(Online, Instant, Option<CpuSet>)>,
    /// Not said yet.
    news: Option<String>,
    /// It did not answer last time.
    silent: bool,
}

impl Guests {
    fn all(&self) -> MutexGuard<'_, BTreeMap<TenantName, One>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks those of the snapshot's virtual machines whose turn it is, and notes there what they said last.
    pub fn see(&self, snapshot: &mut Snapshot) {
        let mut all = self.all();
        let is = |name: &TenantName, one: &One| {
            let thread = snapshot.tenant(name).and_then(first_vcpu);
            thread.map(|it| it.0) == Some(one.thread())
        };
        all.retain(|name, one| is(name, one));
        for sample in &mut snapshot.tenants {
            let Some((thread, process)) = first_vcpu(sample) else {
                continue;
            };
            let one = all
                .entry(sample.name.clone())
                .or_insert_with(|| One::new(thread, process));
            one.ask();
            one.hear();
            sample.guest = one.sample;
        }
    }

    /// How a tenant's guest is reached and which virtual CPUs it has online, once it has answered.
    pub fn known(&self, tenant: &TenantName) -> Option<(Way, CpuSet)> {
        let all = self.all();
        let one = all.get(tenant)?;
        let (way, _) = one.way.as_ref().ok()?;
        one.sample.map(|_| (way.clone(), one.online.clone()))
    }

    /// Tells a tenant's guest, which does it in its time, not more than once a second. False: not now, or it did so without effect.
    pub fn tell(&self, tenant: &TenantName, online: Online) -> bool {
        let mut all = self.all();
        let Some(one) = all.get_mut(tenant) else {
            return false;
        };
        let Ok((_, watched)) = &one.way else {
            return false;
        };
        let again = |(told, at, came): &(Online, Instant, Option<CpuSet>)| {
            // What came of it will come of it again.
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

    /// What is new of guests, in words.
    pub fn news(&self) -> Vec<(TenantName, String)> {
        let mut all = self.all();
        let news = all.iter_mut();
        news.filter_map(|(name, one)| Some((name.clone(), one.news.take()?)))
            .collect()
    }

    /// Tells guests, and waits until all have done it, so long at most; gives for each what came of it.
    pub fn put_back(
        &self,
        wanted: &[(Way, CpuSet)],
        within: Duration,
    ) -> Vec<Result<CpuSet, GuestError>> {
        let until = Instant::now() + within;
        let mut all = self.all();
        let mut waits: Vec<Waiting> = wanted
            .iter()
            .map(|(way, online)| {
                let mut ones = std::mem::take(&mut *all).into_iter();
                let mut found = None;
                let rest = ones.by_ref().filter_map(|(name, one)| match one.way {
                    // It is asked nothing else from now on: the agent begins anew with it.
                    Ok((known, watched)) if known == *way => {
                        found = Some(watched);
                        None
                    }
                    way => Some((name, One { way, ..one })),
                });
                *all = rest.collect();
                let watched = match found {
                    Some(watched) => Ok(watched),
                    None => way.watched().map_err(GuestError::Away),
                };
                Waiting::new(watched, Online::Exactly(online.clone()))
            })
            .collect();
        drop(all);
        // All of them, whoever is not done.
        while waits
            .iter_mut()
            .filter_map(|it| (!it.done()).then_some(()))
            .count()
            > 0
            && Instant::now() < until
        {
            std::thread::sleep(LOOK);
        }
        let late = || GuestError::Silent {
            within_ms: within.as_millis() as u64,
        };
        waits
            .into_iter()
            .map(|it| it.said.unwrap_or_else(|| Err(late())))
            .collect()
    }
}

/// One that is told and waited for.
struct Waiting {
    watched: Option<Watched>,
    wanted: Option<Online>,
    said: Option<Result<CpuSet, GuestError>>,
}

impl Waiting {
    fn new(watched: Result<Watched, GuestError>, wanted: Online) -> Waiting {
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
            // What it was told before comes first.
            watched.answers().for_each(drop);
            if watched.is_idle() && watched.ask(Question::SetOnline(wanted.clone())) {
                self.wanted = None;
            }
            return false;
        }
        let answers = watched.answers().filter_map(|(_, said)| match said {
            Said::Online(online) => Some(online),
            Said::Stat(_) => None,
        });
        self.said = answers.last();
        self.said.is_some()
    }
}

impl Way {
    fn watched(&self) -> std::io::Result<Watched> {
        Watched::new(Box::new(AgentSocket::of(
            self.process,
            &self.socket,
            WITHIN,
        )))
    }
}

impl One {
    fn new(thread: ThreadId, process: Pid) -> One {
        let cmdline = std::fs::read(format!("/proc/{process}/cmdline"));
        let socket = cmdline.ok().and_then(|it| qemu::agent_socket(&it));
        let socket = socket.map(|it| in_folder_of(process, it));
        // A journal has to be able to name it.
        let named = |it: &PathBuf| it.to_str().is_some_and(|it| !it.contains('\n'));
        let way = socket.filter(named).map(|socket| Way {
            thread,
            process,
            socket,
        });
        let (way, news) = match way.map(|way| way.watched().map(|watched| (way, watched))) {
            Some(Ok(both)) => (Ok(both), None),
            Some(Err(error)) => (Err(thread), Some(format!("its guest cannot be asked: {error}"))),
            None => (
                Err(thread),
                Some("its guest cannot be asked: its QEMU has no socket for a guest agent; its CPUs are chosen by what it uses".to_string()),
            ),
        };
        One {
            way,
            asked: None,
            sample: None,
            online: CpuSet::new(),
            told: None,
            news,
            silent: false,
        }
    }

    fn thread(&self) -> ThreadId {
        match &self.way {
            Ok((way, _)) => way.thread,
            Err(thread) => *thread,
        }
    }

    fn ask(&mut self) {
        let Ok((_, watched)) = &self.way else {
            return;
        };
        if self.asked.is_none_or(|at| at.elapsed() >= EVERY) && watched.ask(Question::Stat) {
            self.asked = Some(Instant::now());
        }
    }

    /// What it said since.
    fn hear(&mut self) {
        let Ok((_, watched)) = &self.way else {
            return;
        };
        for (at, said) in watched.answers() {
            let failed = match said {
                Said::Stat(Ok(stat)) => {
                    self.sample = Some(GuestSample {
                        at_ns: monotonic_ns().saturating_sub(at.elapsed().as_nanos() as u64),
                        used_ns: stat.used_ns(),
                        switches: stat.switches,
                        online: stat.online.len() as u32,
                    });
                    self.online = stat.online;
                    None
                }
                Said::Online(Ok(online)) => {
                    if let Some((_, _, came)) = &mut self.told {
                        *came = Some(online.clone());
                    }
                    self.online = online;
                    None
                }
                Said::Online(Err(error)) | Said::Stat(Err(error)) => Some(error),
            };
            let silent = failed.is_some();
            if silent != self.silent {
                self.news = Some(match failed {
                    Some(error) => {
                        format!("{error}; until it answers its CPUs are chosen by what it uses")
                    }
                    None => "its guest answers".to_string(),
                });
            }
            self.silent = silent;
        }
    }
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |it| {
        it.tv_sec() as u64 * 1_000_000_000 + it.tv_nsec() as u64
    })
}

/// The thread of its first virtual CPU, and its process.
fn first_vcpu(sample: &TenantSample) -> Option<(ThreadId, Pid)> {
    let number = |role| match role {
        ThreadRole::Vcpu(number) => Some(number),
        _ => None,
    };
    let vcpus = sample
        .threads
        .iter()
        .filter_map(|it| Some((number(it.role)?, it)));
    let (_, first) = vcpus.min_by_key(|(number, it)| (*number, it.id))?;
    Some((first.id, first.process))
}

/// Paths that are not absolute are from where the process is.
fn in_folder_of(process: Pid, path: PathBuf) -> PathBuf {
    let folder = std::fs::read_link(format!("/proc/{process}/cwd"));
    folder.map_or_else(|_| path.clone(), |folder| folder.join(&path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Guest;
    use crate::guest::stat::GuestStat;
    use quell_model::config::TenantSpec;
    use quell_model::{
        CpuSample, HostSample, Nice, SchedClass, Source, ThreadSample, ThreadSettings, ThreadState,
        Tid, Topology,
    };
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Answers at once, or never.
    struct Fake {
        online: CpuSet,
        /// What it does not get while that is open.
        hangs: Option<Receiver<()>>,
    }

    impl Fake {
        fn wait(&self) {
            if let Some(hangs) = &self.hangs {
                let _ = hangs.recv();
            }
        }
    }

    impl Guest for Fake {
        fn stat(&mut self) -> Result<GuestStat, GuestError> {
            self.wait();
            Ok(GuestStat {
                switches: 1,
                busy_ticks: 2,
                online: self.online.clone(),
            })
        }

        fn set_online(&mut self, wanted: &Online) -> Result<CpuSet, GuestError> {
            self.wait();
            self.online = match wanted {
                Online::First(count) => CpuSet::first(*count),
                Online::Exactly(cpus) => cpus.clone(),
            };
            Ok(self.online.clone())
        }
    }

    fn name(number: u32) -> TenantName {
        format!("vm-{number:02}").as_str().into()
    }

    fn way(number: u32) -> Way {
        Way {
            thread: ThreadId {
                tid: Tid(100 + number),
                start_ticks: 1,
            },
            process: Pid(100 + number),
            socket: format!("/{number}").into(),
        }
    }

    /// Fifty of them, of which the first hangs as long as what comes with them is there.
    fn fifty() -> (Guests, Sender<()>) {
        let (holds, hangs) = channel();
        let mut hangs = Some(hangs);
        let guests = Guests::default();
        for number in 0..50 {
            let fake = Fake {
                online: CpuSet::first(4),
                hangs: hangs.take(),
            };
            let one = One {
                way: Ok((way(number), Watched::new(Box::new(fake)).unwrap())),
                asked: None,
                sample: None,
                online: CpuSet::new(),
                told: None,
                news: None,
                silent: false,
            };
            guests.all().insert(name(number), one);
        }
        (guests, holds)
    }

    fn snapshot() -> Snapshot {
        let thread = |number: u32| ThreadSample {
            id: way(number).thread,
            process: way(number).process,
            name: "CPU 0/KVM".into(),
            role: ThreadRole::Vcpu(0),
            forked_by: None,
            state: ThreadState::Blocked,
            cpu: quell_model::CpuId(0),
            run_ns: 0,
            ready: None,
            preemptions: None,
            wakeups: None,
            wakers: None,
            switches: None,
            migrations: None,
            settings: ThreadSettings {
                class: SchedClass::Fair,
                nice: Nice::default(),
                slice_ns: None,
                affinity: Arc::new(CpuSet::first(2)),
            },
        };
        let tenant = |number: u32| TenantSample {
            name: name(number),
            spec: Arc::new(TenantSpec::named(name(number).as_str())),
            cgroup: None,
            threads: vec![thread(number)],
            waits: None,
            occasions: None,
            guest: None,
        };
        Snapshot {
            seq: 0,
            time_ns: 0,
            period_ns: 0,
            source: Source::Procfs,
            host: HostSample {
                topology: Arc::new(Topology::flat(2)),
                cpus: Vec::<CpuSample>::new(),
            },
            tenants: (0..50).map(tenant).collect(),
        }
    }

    fn seen(guests: &Guests) -> Vec<Option<GuestSample>> {
        let mut snapshot = snapshot();
        guests.see(&mut snapshot);
        snapshot.tenants.iter().map(|it| it.guest).collect()
    }

    fn until(what: &str, mut reached: impl FnMut() -> bool) {
        let start = Instant::now();
        while !reached() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn who_hangs_holds_up_nobody() {
        let (guests, holds) = fifty();
        until("49 answer", || seen(&guests).iter().flatten().count() == 49);
        assert!(seen(&guests)[0].is_none() && guests.known(&name(0)).is_none());
        let first = seen(&guests);
        let newer = |now: &[Option<GuestSample>]| {
            let both = now.iter().zip(&first).skip(1);
            let mut both = both.filter_map(|(now, first)| now.zip(*first));
            both.all(|(now, first)| now.at_ns > first.at_ns)
        };
        until("and again", || newer(&seen(&guests)));
        // One is told, which is seen, and in vain not told again.
        assert!(guests.tell(&name(7), Online::First(2)));
        until("told", || {
            seen(&guests);
            guests
                .known(&name(7))
                .is_some_and(|it| it.1 == CpuSet::first(2))
        });
        assert!(!guests.tell(&name(7), Online::First(2)));
        drop(holds);
        until("the first one answers", || seen(&guests)[0].is_some());
    }

    #[test]
    fn all_that_answer_are_given_back_what_they_had() {
        let (guests, holds) = fifty();
        until("49 answer", || seen(&guests).iter().flatten().count() == 49);
        let wanted: Vec<_> = (0..50)
            .map(|it| (way(it), CpuSet::first(it % 4 + 1)))
            .collect();
        let said = guests.put_back(&wanted, Duration::from_secs(2));
        assert!(
            matches!(said[0], Err(GuestError::Silent { .. })),
            "{:?}",
            said[0]
        );
        for (number, said) in said.iter().enumerate().skip(1) {
            assert_eq!(said.as_ref().unwrap(), &wanted[number].1, "{number}");
        }
        drop(holds);
    }
}
