use super::*;
use crate::act::journal::{Contents, Journal};
use crate::act::report::RestoreReport;
use crate::act::state::State;
use crate::act::thread;
use crate::guest::pins::to_change;
use crate::guest::stat::GuestStat;
use crate::guest::{Guest, GuestError, Online, Transport};
use crate::observe::bpf_source::blank;
use proptest::prelude::*;
use quell_model::config::TenantSpec;
use quell_model::{
    CpuId, HostSample, Pid, Source, TenantName, ThreadPlan, ThreadSample, ThreadSettings, Topology,
};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A manager that runs a domain, for tests: keeps its pins, and if it is to wait, answers once it is
/// released.
struct Fake {
    pins: Arc<Mutex<Pins>>,
    hangs: Option<Receiver<()>>,
}

impl Guest for Fake {
    fn stat(&mut self) -> Result<GuestStat, GuestError> {
        Ok(GuestStat {
            switches: 1,
            busy_ticks: 2,
            online: CpuSet::first(1),
        })
    }

    fn set_online(&mut self, _: &Online) -> Result<CpuSet, GuestError> {
        Err(GuestError::Unresponsive { why: "so".into() })
    }

    fn pins(&mut self) -> Result<Pins, GuestError> {
        if let Some(hangs) = &self.hangs {
            let _ = hangs.recv();
        }
        Ok(self.pins.lock().unwrap().clone())
    }

    fn pin(&mut self, expected: &[Pins], wanted: &Pins) -> Result<Pins, GuestError> {
        let mut pins = self.pins.lock().unwrap();
        let changes: Vec<_> = to_change(&pins, expected, wanted)
            .map(|(part, cpus)| (part, cpus.clone()))
            .collect();
        for (part, cpus) in changes {
            pins.set(part, cpus);
        }
        Ok(pins.clone())
    }
}

fn pins(text: &str) -> Pins {
    text.parse().unwrap()
}

fn name(number: u32) -> TenantName {
    format!("vm-{number:02}").as_str().into()
}

/// The first thread of this process, which stays.
fn here() -> ThreadId {
    let tid = quell_model::Tid(std::process::id());
    let start_ticks = thread::stat(tid).unwrap().start_ticks;
    ThreadId { tid, start_ticks }
}

/// A domain of two threads. Numbers other than 0 name threads that do not exist.
fn endpoint(number: u32) -> GuestEndpoint {
    let mut thread = here();
    thread.start_ticks += u64::from(number);
    GuestEndpoint {
        thread,
        process: Pid(std::process::id()),
        transport: Transport::Libvirt {
            uuid: format!("6f0d3e3c-7c1a-4b43-9d6e-1f8f3a{number:06x}"),
            uri: "test:///default".into(),
        },
    }
}

fn thread_of_role(id: ThreadId, role: ThreadRole) -> ThreadSample {
    let blank = blank();
    ThreadSample {
        id,
        process: Pid(std::process::id()),
        role,
        settings: ThreadSettings {
            affinity: Arc::new(CpuSet::first(4)),
            ..blank.settings
        },
        ..blank
    }
}

fn emulator(number: u32) -> ThreadId {
    let mut id = endpoint(number).thread;
    id.start_ticks += 1_000_000;
    id
}

fn snapshot(count: u32) -> Snapshot {
    let tenant = |number| TenantSample {
        name: name(number),
        spec: Arc::new(TenantSpec::named(name(number).as_str())),
        selectors: Arc::default(),
        cgroup: None,
        threads: vec![
            thread_of_role(endpoint(number).thread, ThreadRole::Vcpu(0)),
            thread_of_role(emulator(number), ThreadRole::Emulator),
        ],
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
            topology: Arc::new(Topology::flat(4)),
            cpus: Vec::new(),
        },
        tenants: (0..count).map(tenant).collect(),
    }
}

/// A plan that puts all virtual CPUs on the first CPUs and all emulators on the second; without them it plans
/// nothing.
fn plan(count: u32, places: Option<(&str, &str)>) -> Plan {
    let thread = |id, cpus: &str| ThreadPlan {
        cpus: Some(cpus.parse().unwrap()),
        ..ThreadPlan::leaving(id)
    };
    let tenant = |number| TenantPlan {
        name: name(number),
        weight: None,
        threads: places.map_or(Vec::new(), |(vcpus, others)| {
            vec![
                thread(endpoint(number).thread, vcpus),
                thread(emulator(number), others),
            ]
        }),
        promise: None,
        group: None,
    };
    Plan {
        seq: 0,
        tenants: (0..count).map(tenant).collect(),
        ..Plan::default()
    }
}

struct Scene {
    dir: tempfile::TempDir,
    actuator: Actuator,
    held: Vec<Arc<Mutex<Pins>>>,
    notes: Vec<String>,
}

impl Scene {
    fn new(count: u32, original: &str, hangs: Option<Receiver<()>>) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let (journal, lock) = (dir.path().join("journal"), dir.path().join("lock"));
        let actuator = Actuator::open_with_lock(&journal, &lock).unwrap();
        let mut hangs = hangs;
        let held: Vec<_> = (0..count)
            .map(|number| {
                let pins = Arc::new(Mutex::new(pins(original)));
                let fake = |hangs| {
                    let pins = pins.clone();
                    Box::new(Fake { pins, hangs })
                };
                let (agent, parts) = (fake(None), fake(hangs.take()));
                let guests = actuator.guests();
                guests.with(&name(number), endpoint(number), agent, Some(parts));
                pins
            })
            .collect();
        Scene {
            dir,
            actuator,
            held,
            notes: Vec::new(),
        }
    }

    fn held(&self, number: usize) -> String {
        self.held[number].lock().unwrap().to_string()
    }

    fn records(&self) -> Vec<Record> {
        records(&self.dir.path().join("journal"))
    }

    fn period(&mut self, places: Option<(&str, &str)>) -> ApplyReport {
        let count = self.held.len() as u32;
        let mut snapshot = snapshot(count);
        self.actuator.guests().sample_into(&mut snapshot);
        let report = self.actuator.apply(&snapshot, &plan(count, places));
        self.notes
            .extend(report.notes.iter().map(|it| it.text.clone()));
        report
    }

    /// Applies periods until `reached` holds.
    fn until(&mut self, places: Option<(&str, &str)>, reached: impl Fn(&Scene) -> bool) {
        let start = Instant::now();
        while !reached(self) {
            let notes = &self.notes;
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{:?} {notes:?}",
                self.held(0)
            );
            self.period(places);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The records of a journal that is in use.
fn records(path: &Path) -> Vec<Record> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    crate::act::journal::parse(&std::fs::read(path).unwrap(), boot.trim()).records
}

const ORIGINAL: &str = "vcpu0=0-3/emulator=0-3/iothread1=0-3";

#[test]
fn parts_are_where_the_plan_has_threads_and_then_where_they_were() {
    let mut scene = Scene::new(1, ORIGINAL, None);
    let first = "vcpu0=2/emulator=0/iothread1=0";
    scene.until(Some(("2", "0")), |it| it.held(0) == first);
    // Journaled before the change, and not again.
    let expected = Record::Parts {
        endpoint: endpoint(0),
        original: pins(ORIGINAL),
        from: pins(ORIGINAL),
        to: pins(first),
    };
    assert_eq!(scene.records(), [expected]);
    for _ in 0..20 {
        scene.period(Some(("2", "0")));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(scene.records().len(), 1);
    // The affinities of its threads are left to the manager that pins its parts.
    assert!(scene.actuator.state.threads.is_empty());
    scene.until(Some(("2-3", "0")), |it| {
        it.held(0).starts_with("vcpu0=2-3/")
    });
    scene.until(None, |it| {
        it.records().last() == Some(&Record::DropParts(here()))
    });
    assert_eq!(scene.held(0), ORIGINAL);
    assert!(scene.actuator.state.is_empty());
    assert_eq!(scene.notes, [""; 0]);
}

#[test]
fn what_its_owner_pinned_is_not_exceeded() {
    let mut scene = Scene::new(1, "vcpu0=0-2/emulator=3/iothread1=0-3", None);
    let held = "vcpu0=2/emulator=3/iothread1=0";
    scene.until(Some(("2-3", "0")), |it| it.held(0) == held);
    scene.until(Some(("2-3", "0")), |it| !it.notes.is_empty());
    scene.period(Some(("2-3", "0")));
    assert_eq!(
        scene.notes,
        ["emulator stays where it is: its owner pinned it to CPUs 3"]
    );
    let report = scene.actuator.restore();
    assert_eq!(scene.held(0), "vcpu0=0-2/emulator=3/iothread1=0-3");
    assert_eq!((report.restored, report.unchanged), (2, 1), "{report}");
}

#[test]
fn what_somebody_pins_by_hand_stays() {
    let mut scene = Scene::new(1, ORIGINAL, None);
    let first = "vcpu0=2/emulator=0/iothread1=0";
    scene.until(Some(("2", "0")), |it| it.held(0) == first);
    scene.held[0]
        .lock()
        .unwrap()
        .set(Part::Emulator, "3".parse().unwrap());
    scene.until(Some(("2", "1")), |it| !it.notes.is_empty());
    assert_eq!(
        scene.notes,
        ["emulator left on CPUs 3 from now on: someone else pinned it there"]
    );
    let moved = "vcpu0=2/emulator=3/iothread1=1";
    scene.until(Some(("2", "1")), |it| it.held(0) == moved);
    let report = scene.actuator.restore();
    assert_eq!(scene.held(0), "vcpu0=0-3/emulator=3/iothread1=0-3");
    assert_eq!((report.restored, report.failed), (2, 0), "{report}");
    assert!(scene.actuator.state.is_empty());
}

#[test]
fn a_domain_that_hangs_holds_up_nobody() {
    let (holds, hangs) = channel();
    let mut scene = Scene::new(50, ORIGINAL, Some(hangs));
    let (mut took, start) = (Vec::new(), Instant::now());
    let pinned = |it: &Scene| (1..50).all(|at| it.held(at).starts_with("vcpu0=2/"));
    while !pinned(&scene) {
        let began = Instant::now();
        scene.period(Some(("2", "0")));
        took.push(began.elapsed());
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(scene.held(0), ORIGINAL);
    // The bound does not hold for periods in which the journal's disk was slow.
    took.sort_unstable();
    assert!(
        took[took.len() * 9 / 10] < Duration::from_millis(100),
        "{took:?}"
    );
    drop(holds);
    scene.until(Some(("2", "0")), |it| it.held(0).starts_with("vcpu0=2/"));
}

/// One part: its CPUs originally, before and after the last change, and now.
fn part() -> impl Strategy<Value = [u32; 4]> {
    [0..4_u32, 0..4, 0..4, 0..6]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Wherever a run died: parts that Quell has or may have pinned are put back, and parts that are
    /// somewhere else stay.
    #[test]
    fn undone_after_any_death(parts in prop::collection::vec(part(), 1..6)) {
        let at = |which: usize| -> Pins {
            let cpus = |cpu| [CpuId(cpu)].into_iter().collect::<CpuSet>();
            (0..).zip(&parts).map(|(number, it)| (Part::Vcpu(number), cpus(it[which]))).collect()
        };
        let (original, from, to, found) = (at(0), at(1), at(2), at(3));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.start(&[]).unwrap();
        let record = Record::Parts { endpoint: endpoint(0), original: original.clone(), from: from.clone(), to: to.clone() };
        journal.append(&[record], true).unwrap();
        let contents = Contents { records: records(&path), ..Contents::default() };
        let mut state = State::from_journal(contents);
        let (guests, held) = (crate::guest::Guests::default(), Arc::new(Mutex::new(found.clone())));
        let fake = || Box::new(Fake { pins: held.clone(), hangs: None });
        guests.with(&name(0), endpoint(0), fake(), Some(fake()));
        let mut report = RestoreReport::default();
        crate::act::undo::undo_guests(&mut state, &guests, &Default::default(), &mut report);
        prop_assert!(state.is_empty() && report.is_complete(), "{report}");
        let held = held.lock().unwrap().clone();
        let mut foreign = 0;
        for (number, it) in (0..).zip(&parts) {
            let part = Part::Vcpu(number);
            let ours = it[3] == it[1] || it[3] == it[2] || it[3] == it[0];
            foreign += u64::from(!ours);
            let expected = if ours { &original } else { &found };
            prop_assert_eq!(held.get(part), expected.get(part), "{}: {}", part, &report);
        }
        prop_assert_eq!(report.left_alone, foreign);
    }
}
