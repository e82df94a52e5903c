//! Undoing and cgroup v2 in states that only tests inside the module can set up: journals with chosen
//! contents, and a folder in place of a cgroup hierarchy.

use super::cgroup::Cgroups;
use super::journal::{Contents, Journal, Record, Value};
use super::state::{Host, State};
use super::thread::{self, own_tid};
use super::*;
use quell_model::{
    CgroupPath, HostSample, Nice, Pid, Plan, Snapshot, Source, TenantPlan, TenantSample,
    TenantWeight, ThreadId, ThreadPlan, Tid, Topology,
};
use quell_sys::sched;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// A thread of this process that sleeps until it is dropped.
struct Sleeper {
    id: ThreadId,
    _end: Sender<()>,
}

impl Sleeper {
    fn start() -> Sleeper {
        let (sender, receiver) = channel();
        let (end, wait) = channel::<()>();
        std::thread::spawn(move || {
            sender.send(own_tid()).unwrap();
            let _ = wait.recv();
        });
        let tid = receiver.recv().unwrap();
        let start_ticks = thread::stat(tid).unwrap().start_ticks;
        Sleeper {
            id: ThreadId { tid, start_ticks },
            _end: end,
        }
    }

    fn nice(&self) -> i32 {
        thread::scheduling(self.id.tid).unwrap().nice
    }

    fn record(&self, original: i32, from: i32, to: i32) -> Record {
        let [original, from, to] = [original, from, to].map(Value::Nice);
        Record::Thread {
            id: self.id,
            process: Pid(std::process::id()),
            original,
            from,
            to,
        }
    }
}

/// A journal with these records, as a run that was killed leaves it.
fn left_behind(path: &Path, records: &[Record]) {
    let (mut journal, _) = Journal::open(path).unwrap();
    journal.start(&[]).unwrap();
    journal.append(records, true).unwrap();
}

fn snapshot(tenants: Vec<TenantSample>) -> Snapshot {
    Snapshot {
        seq: 0,
        time_ns: 0,
        period_ns: 80_000_000,
        source: Source::Procfs,
        host: HostSample {
            topology: Arc::new(Topology::flat(1)),
            cpus: Vec::new(),
        },
        tenants,
    }
}

/// Calls `restore` under a lock of the test's own.
fn restore_own(path: &Path) -> Result<RestoreReport, ActError> {
    restore_with_lock(path, &path.with_extension("host-lock"))
}

#[test]
fn only_what_quell_left_is_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let written = Sleeper::start();
    let about_to = Sleeper::start();
    let foreign = Sleeper::start();
    let reused = Sleeper::start();
    let dropped = Sleeper::start();
    for (sleeper, nice) in [
        (&written, 7),
        (&about_to, 4),
        (&foreign, 9),
        (&reused, 7),
        (&dropped, 7),
    ] {
        sched::set_nice(sleeper.id.tid, nice).unwrap();
    }
    let mut other = reused.record(0, 0, 7);
    if let Record::Thread { id, .. } = &mut other {
        id.start_ticks += 1;
    }
    let records = [
        written.record(2, 2, 4),
        written.record(2, 4, 7),
        about_to.record(3, 4, 6), // killed between journal and write
        foreign.record(0, 0, 7),
        other,
        dropped.record(0, 0, 7),
        Record::DropThread(dropped.id),
    ];
    left_behind(&path, &records);
    if !nix::unistd::geteuid().is_root() {
        quell_testkit::skip!(Root, "lowering nice values needs root");
        return;
    }
    let report = restore_own(&path).unwrap();
    assert_eq!((written.nice(), about_to.nice()), (2, 3), "{report}");
    assert_eq!(
        (foreign.nice(), reused.nice(), dropped.nice()),
        (9, 7, 7),
        "{report}"
    );
    assert_eq!(
        (
            report.restored,
            report.left_alone,
            report.gone,
            report.failed
        ),
        (2, 1, 1, 0)
    );
    assert_eq!(report.notes.len(), 1, "{report}");
    assert_eq!(restore_own(&path).unwrap(), RestoreReport::default());
}

#[test]
fn a_damaged_journal_is_said_used_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (lost, found) = (Sleeper::start(), Sleeper::start());
    for sleeper in [&lost, &found] {
        sched::set_nice(sleeper.id.tid, 7).unwrap();
    }
    left_behind(&path, &[lost.record(0, 0, 7), found.record(7, 7, 7)]);
    let mut bytes = std::fs::read(&path).unwrap();
    let second_line = bytes.iter().position(|&b| b == b'\n').unwrap() + 1;
    bytes[second_line + 20] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let report = restore_own(&path).unwrap();
    assert_eq!(
        (report.damaged, report.unchanged, report.is_complete()),
        (1, 1, false),
        "{report}"
    );
    assert!(report.to_string().contains("line 2"), "{report}");
    assert_eq!(lost.nice(), 7);
    assert_eq!(
        std::fs::read(dir.path().join("journal.damaged")).unwrap(),
        bytes
    );
}

#[test]
fn the_shortest_journal_says_the_same() {
    let sleeper = Sleeper::start();
    let id = ThreadId {
        tid: Tid(4),
        start_ticks: 5,
    };
    let path = CgroupPath("/x".into());
    let records = vec![
        sleeper.record(0, 0, 3),
        sleeper.record(0, 3, 5),
        Record::Cgroup {
            inode: 3,
            path: path.clone(),
            original: 100,
            from: 100,
            to: 50,
        },
        Record::Cgroup {
            inode: 8,
            path,
            original: 100,
            from: 100,
            to: 70,
        },
        Record::DropThread(id),
    ];
    let contents = |records: &[Record]| Contents {
        records: records.to_vec(),
        ..Contents::default()
    };
    let short = State::from_journal(contents(&records)).records();
    assert_eq!(short, [records[1].clone(), records[3].clone()]);
    assert_eq!(State::from_journal(contents(&short)).records(), short);
}

#[test]
fn a_tenants_weight_in_v2() {
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().join("mount");
    std::fs::create_dir_all(mount.join("web")).unwrap();
    std::fs::create_dir_all(mount.join("plain")).unwrap();
    std::fs::write(mount.join("cgroup.controllers"), "cpu\n").unwrap();
    let file = mount.join("web/cpu.weight");
    std::fs::write(&file, "150\n").unwrap();
    let read = || {
        std::fs::read_to_string(&file)
            .unwrap()
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    let mounts = format!("41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n", mount.display());
    let open = || {
        let (capabilities, host) = capabilities::detect();
        let host = Host {
            cgroups: Cgroups::from_mountinfo(&mounts),
            ..host
        };
        Actuator::open_on(
            &dir.path().join("journal"),
            &dir.path().join("host.lock"),
            capabilities,
            host,
        )
        .unwrap()
    };
    let text = "[[tenant]]
name = 't'
pid = [1]
";
    let config = quell_model::config::AgentFile::parse(Path::new("t.toml"), text);
    let spec = Arc::new(config.unwrap().tenants.remove(0).spec);
    let tenant = |name: &str, cgroup: &str| TenantSample {
        name: name.into(),
        spec: Arc::clone(&spec),
        selectors: Arc::default(),
        cgroup: Some(CgroupPath(cgroup.into())),
        threads: Vec::new(),
        limit_cpus: None,
        taken_by: None,
        labels: Arc::default(),
        ended: None,
        waits: None,
        occasions: None,
        guest: None,
    };
    let snapshot = snapshot(vec![tenant("a", "/web"), tenant("b", "/plain")]);
    let plan = |weight: u32| Plan {
        seq: 0,
        tenants: ["a", "b"]
            .map(|n| TenantPlan {
                name: n.into(),
                weight: Some(TenantWeight(weight)),
                threads: vec![],
                promise: None,
                group: None,
            })
            .into(),
        ..Plan::default()
    };
    let mut actuator = open();
    let report = actuator.apply(&snapshot, &plan(400));
    assert_eq!(
        (report.writes.cgroup_weight, report.left_alone, read()),
        (1, 1, 400),
        "{report}"
    );
    assert_eq!(
        report.notes.len(),
        1,
        "a cgroup without the controller is said: {report}"
    );
    let report = actuator.apply(&snapshot, &plan(400));
    assert_eq!(
        (report.writes.total(), report.notes.len()),
        (0, 0),
        "and only once"
    );
    actuator.apply(&snapshot, &plan(30));
    assert_eq!(read(), 30);
    drop(actuator);
    assert_eq!(read(), 150, "dropping undoes");
    let mut actuator = open();
    actuator.apply(&snapshot, &plan(30));
    // Removed and created again: no longer the cgroup that Quell changed.
    std::fs::rename(mount.join("web"), mount.join("old")).unwrap();
    std::fs::create_dir(mount.join("web")).unwrap();
    std::fs::write(&file, "30\n").unwrap();
    let report = actuator.restore();
    assert_eq!(
        (report.gone, report.restored, read()),
        (1, 0, 30),
        "{report}"
    );
}

#[test]
fn a_thread_id_that_has_gone_to_another_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("host.lock");
    let mut actuator = Actuator::open_with_lock(&dir.path().join("journal"), &lock).unwrap();
    let sleeper = Sleeper::start();
    let own = sleeper.nice();
    let nice = |id: ThreadId, nice: i32| Plan {
        seq: 0,
        tenants: vec![TenantPlan {
            name: "t".into(),
            weight: None,
            threads: vec![ThreadPlan {
                weight: Some(Nice::new(nice).unwrap().weight()),
                ..ThreadPlan::leaving(id)
            }],
            promise: None,
            group: None,
        }],
        ..Plan::default()
    };
    // The record that Quell has of an earlier thread with this id.
    let mut earlier = sleeper.id;
    earlier.start_ticks -= 1;
    let mut known = state::Thread::new(Pid(std::process::id()), Some("t".into()));
    known.settings[0] = Some(state::Setting::new(Value::Nice(own), Value::Nice(own)));
    actuator.state.threads.insert(earlier, known);
    let snapshot = snapshot(Vec::new());
    let report = actuator.apply(&snapshot, &nice(earlier, 15));
    assert_eq!(
        (report.writes.total(), report.gone, sleeper.nice()),
        (0, 1, own),
        "{report}"
    );
}

#[test]
fn what_was_refused_later_is_still_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("host.lock");
    let mut actuator = Actuator::open_with_lock(&dir.path().join("journal"), &lock).unwrap();
    if !nix::unistd::geteuid().is_root() {
        quell_testkit::skip!(Root, "lowering nice values needs root");
        return;
    }
    let sleeper = Sleeper::start();
    sched::set_nice(sleeper.id.tid, 7).unwrap();
    let mut known = state::Thread::new(Pid(std::process::id()), Some("t".into()));
    let mut setting = state::Setting::new(Value::Nice(2), Value::Nice(2));
    setting.wrote(Value::Nice(7));
    setting.hands_off = Some(state::HandsOff::Refused);
    known.settings[0] = Some(setting);
    actuator.state.threads.insert(sleeper.id, known);
    let snapshot = snapshot(Vec::new());
    let nothing = Plan {
        seq: 0,
        ..Plan::default()
    };
    let report = actuator.apply(&snapshot, &nothing);
    assert_eq!((report.given_back, sleeper.nice()), (1, 2), "{report}");
    assert!(actuator.state.is_empty());
}
