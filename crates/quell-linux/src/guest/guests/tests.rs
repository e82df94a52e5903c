use super::*;
use crate::guest::Guest;
use crate::guest::stat::GuestStat;
use crate::observe::bpf_source::blank;
use quell_model::config::TenantSpec;
use quell_model::{CpuSample, HostSample, Source, ThreadSample, ThreadSettings, Tid, Topology};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A guest that answers at once, or never.
struct Fake {
    online: CpuSet,
    /// The guest does not answer while the other end of this channel is open.
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

fn endpoint(number: u32) -> GuestEndpoint {
    GuestEndpoint {
        thread: ThreadId {
            tid: Tid(100 + number),
            start_ticks: 1,
        },
        process: Pid(100 + number),
        transport: Transport::Socket(format!("/{number}").into()),
    }
}

/// Fifty guests, of which the first hangs as long as the returned sender exists.
fn fifty() -> (Guests, Sender<()>) {
    let (holds, hangs) = channel();
    let mut hangs = Some(hangs);
    let guests = Guests::default();
    for number in 0..50 {
        let fake = Fake {
            online: CpuSet::first(4),
            hangs: hangs.take(),
        };
        guests.with(&name(number), endpoint(number), Box::new(fake), None);
    }
    (guests, holds)
}

fn snapshot() -> Snapshot {
    let thread = |number: u32| {
        let blank = blank();
        ThreadSample {
            id: endpoint(number).thread,
            process: endpoint(number).process,
            role: ThreadRole::Vcpu(0),
            settings: ThreadSettings {
                affinity: Arc::new(CpuSet::first(2)),
                ..blank.settings
            },
            ..blank
        }
    };
    let tenant = |number: u32| TenantSample {
        name: name(number),
        spec: Arc::new(TenantSpec::named(name(number).as_str())),
        selectors: Arc::default(),
        cgroup: None,
        threads: vec![thread(number)],
        limit_cpus: None,
        taken_by: None,
        labels: Arc::default(),
        ended: None,
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
    guests.sample_into(&mut snapshot);
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
    assert!(seen(&guests)[0].is_none() && guests.online(&name(0)).is_none());
    let first = seen(&guests);
    let newer = |now: &[Option<GuestSample>]| {
        let both = now.iter().zip(&first).skip(1);
        let mut both = both.filter_map(|(now, first)| now.zip(*first));
        both.all(|(now, first)| now.at_ns > first.at_ns)
    };
    until("and again", || newer(&seen(&guests)));
    // One guest is told, which is seen, and is not told again in vain.
    assert!(guests.set_online(&name(7), Online::First(2)));
    until("told", || {
        seen(&guests);
        guests
            .online(&name(7))
            .is_some_and(|it| it.1 == CpuSet::first(2))
    });
    assert!(!guests.set_online(&name(7), Online::First(2)));
    drop(holds);
    until("the first one answers", || seen(&guests)[0].is_some());
}

#[test]
fn all_that_answer_are_given_back_what_they_had() {
    let (guests, holds) = fifty();
    until("49 answer", || seen(&guests).iter().flatten().count() == 49);
    let wanted: Vec<_> = (0..50)
        .map(|it| (endpoint(it), CpuSet::first(it % 4 + 1)))
        .collect();
    let told = wanted.iter().map(|(endpoint, online)| {
        let online = Online::Exactly(online.clone());
        (endpoint.clone(), Question::SetOnline(online))
    });
    let said = guests.put_back(told.collect(), Duration::from_secs(2));
    assert!(
        matches!(said[0], Err(GuestError::Silent { .. })),
        "{:?}",
        said[0]
    );
    for (number, said) in said.iter().enumerate().skip(1) {
        let Ok(Answer::Online(Ok(online))) = said else {
            panic!("{number}: {said:?}");
        };
        assert_eq!(online, &wanted[number].1, "{number}");
    }
    drop(holds);
}

#[test]
fn of_several_machines_none_says_what_all_need() {
    let (guests, _holds) = fifty();
    until("49 answer", || seen(&guests).iter().flatten().count() == 49);
    assert!(!guests.has_several_machines(&name(1)));
    let mut snapshot = snapshot();
    let second = snapshot.tenants[2].threads[0].clone();
    snapshot.tenants[1].threads.push(second);
    guests.sample_into(&mut snapshot);
    assert!(guests.has_several_machines(&name(1)) && snapshot.tenants[1].guest.is_none());
    // The first guest is still reached: it is to be given back what it had.
    assert!(guests.online(&name(1)).is_some());
    let news = guests.news();
    let [(tenant, said)] = &news[..] else {
        panic!("{news:?}");
    };
    assert!(
        *tenant == name(1) && said.contains("more than one"),
        "{said}"
    );
    guests.sample_into(&mut snapshot);
    assert!(guests.news().is_empty());
}
