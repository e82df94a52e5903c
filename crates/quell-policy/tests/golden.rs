//! Hand-worked cases: `golden/*.txt` has the observations and the plans that DASEC must decide.
//!
//! A file holds any number of cases. Each starts with `case NAME`; then come, in any order and as
//! often as wanted:
//!
//! - `settings KEY=VALUE...`: keys of the `[asymmetry]` table, whose three parts are on unless a case turns
//!   them off
//! - `host cpus=N period=N ms`
//! - `tenant NAME [weight=N] [class=batch] [cgroup]`
//! - `thread TENANT TID [STATE] [run=MS] [cpu=N] [preempted=N] [waits=NxUS] [wakers=TID:N,...]
//!   [nice=N] [affinity=LIST] [by=TID] [realtime]`: how the thread is seen from now on; `?` for a
//!   value means that it is not seen
//! - `gone TENANT TID`
//! - `decide [xN]`: one period passes, or N equal ones; after `----` the last decision's plan follows,
//!   up to an empty line. A thread that was placed is seen where it was placed.
//!
//! `QUELL_REWRITE_GOLDEN=1 cargo test -p quell-policy --test golden` replaces the expected plans by the
//! actual ones; read the difference as you would read a proof.
#![allow(clippy::unwrap_used)] // a test that cannot go on must fail

mod common;

use common::{MS, id, planned, snapshot, take_effect, tenant, thread, waits};
use quell_model::config::{AgentFile, TenantClass, TenantSpec};
use quell_model::{CpuId, Nice, Plan, SchedClass, TenantWeight, ThreadSample, ThreadState, Waker};
use quell_policy::{Policy, dasec::Dasec};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

#[test]
fn every_case_decides_as_worked_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let decided = replay(&text, &file.display().to_string());
        if std::env::var_os("QUELL_REWRITE_GOLDEN").is_some() {
            std::fs::write(&file, decided).unwrap();
        } else {
            assert_eq!(
                text,
                decided,
                "{} (left) is not what is decided (right)",
                file.display()
            );
        }
    }
}

struct Case {
    settings: String,
    cpus: u32,
    period_ns: u64,
    tenants: BTreeMap<String, (TenantSpec, bool)>,
    threads: BTreeMap<(String, u32), ThreadSample>,
    policy: Option<Dasec>,
    plan: Plan,
}

/// The file with the actual decisions in place of the expected ones.
fn replay(text: &str, file: &str) -> String {
    let mut out = String::new();
    let mut case = Case::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        writeln!(out, "{line}").unwrap();
        let mut words = line.split_whitespace();
        let at = || format!("{file}:{}", number + 1);
        match words.next() {
            None | Some("#") => {}
            Some("case") => case = Case::new(),
            Some("settings") => words.for_each(|word| {
                case.settings += &format!("{}\n", word.replace('=', " = "));
            }),
            Some("host") => words.for_each(|word| match word.split_once('=') {
                Some(("cpus", n)) => case.cpus = n.parse().unwrap(),
                Some(("period", ms)) => case.period_ns = millis(ms),
                _ => panic!("{}: {word}", at()),
            }),
            Some("tenant") => case.tenant(words, &at()),
            Some("thread") => case.thread(words, &at()),
            Some("gone") => {
                let key = (
                    words.next().unwrap().to_string(),
                    words.next().unwrap().parse(),
                );
                case.threads.remove(&(key.0, key.1.unwrap())).unwrap();
            }
            Some("decide") => {
                let times = words.next().map_or(1, |n| n[1..].parse().unwrap());
                assert_eq!(lines.next().map(|(_, line)| line), Some("----"), "{}", at());
                for _ in lines.by_ref().take_while(|(_, line)| !line.is_empty()) {}
                (0..times).for_each(|_| case.decide());
                writeln!(out, "----\n{}", case.render()).unwrap();
            }
            Some(word) => panic!("{}: {word}", at()),
        }
    }
    out
}

fn millis(text: &str) -> u64 {
    (text.trim_end_matches("ms").parse::<f64>().unwrap() * MS as f64).round() as u64
}

impl Case {
    fn new() -> Case {
        Case {
            settings: "[asymmetry]\n".to_string(),
            cpus: 2,
            period_ns: 80 * MS,
            tenants: BTreeMap::new(),
            threads: BTreeMap::new(),
            policy: None,
            plan: Plan::default(),
        }
    }

    fn tenant<'a>(&mut self, mut words: impl Iterator<Item = &'a str>, at: &str) {
        let name = words.next().unwrap();
        let entry = self.tenants.entry(name.to_string());
        let (spec, cgroup) = entry.or_insert_with(|| (TenantSpec::named(name), false));
        for word in words {
            match word.split_once('=').unwrap_or((word, "")) {
                ("weight", n) => spec.weight = Some(TenantWeight(n.parse().unwrap())),
                ("class", "batch") => spec.class = TenantClass::Batch,
                ("cgroup", _) => *cgroup = true,
                _ => panic!("{at}: {word}"),
            }
        }
    }

    fn thread<'a>(&mut self, mut words: impl Iterator<Item = &'a str>, at: &str) {
        let name = words.next().unwrap().to_string();
        assert!(self.tenants.contains_key(&name), "{at}: no tenant {name}");
        let tid: u32 = words.next().unwrap().parse().unwrap();
        let sample = self
            .threads
            .entry((name, tid))
            .or_insert_with(|| thread(tid, self.cpus));
        for word in words {
            match word.split_once('=').unwrap_or((word, "")) {
                ("blocked", _) => sample.state = ThreadState::Blocked,
                ("ready", _) => sample.state = ThreadState::Ready,
                ("running", _) => sample.state = ThreadState::Running,
                ("realtime", _) => sample.settings.class = SchedClass::RealTime,
                ("run", ms) => sample.run_ns = millis(ms),
                ("cpu", n) => sample.cpu = CpuId(n.parse().unwrap()),
                ("preempted", "?") => sample.preemptions = None,
                ("preempted", n) => sample.preemptions = Some(n.parse().unwrap()),
                ("waits", "?") => sample.ready = None,
                ("waits", text) => {
                    let (count, us) = text.split_once('x').unwrap();
                    let us: u64 = us.trim_end_matches("us").parse().unwrap();
                    sample.ready = Some(waits(count.parse().unwrap(), us * 1000));
                }
                ("wakers", "?") => sample.wakers = None,
                ("wakers", text) => {
                    let waker = |text: &str| {
                        let (tid, count) = text.split_once(':').unwrap();
                        Waker {
                            id: id(tid.parse().unwrap()),
                            count: count.parse().unwrap(),
                        }
                    };
                    sample.wakers = Some(text.split(',').map(waker).collect());
                }
                ("nice", n) => sample.settings.nice = Nice::new(n.parse().unwrap()).unwrap(),
                ("affinity", list) => sample.settings.affinity = Arc::new(list.parse().unwrap()),
                ("by", tid) => sample.forked_by = Some(id(tid.parse().unwrap())),
                _ => panic!("{at}: {word}"),
            }
        }
    }

    fn decide(&mut self) {
        // All three parts are on unless a case says otherwise.
        let parts = ["slices", "latencies", "conflicts"];
        let others = parts.iter().filter(|part| !self.settings.contains(**part));
        let settings = others.fold(self.settings.clone(), |all, part| {
            all + &format!("{part} = true\n")
        });
        let policy = self.policy.get_or_insert_with(|| {
            Dasec::new(
                AgentFile::parse(Path::new("golden"), &settings)
                    .unwrap()
                    .asymmetry,
            )
        });
        let sample = |(name, (spec, cgroup)): (&String, &(TenantSpec, bool))| {
            let threads = self.threads.iter().filter(|((of, _), _)| of == name);
            tenant(
                spec.clone(),
                *cgroup,
                threads.map(|(_, thread)| thread.clone()).collect(),
            )
        };
        let tenants = self.tenants.iter().map(sample).collect();
        let mut seen = snapshot(self.plan.seq + 1, self.cpus, self.period_ns, tenants);
        take_effect(&self.plan, &mut seen);
        // A placed thread stays there until something moves it.
        for ((_, tid), thread) in &mut self.threads {
            let placed = planned(&self.plan, id(*tid)).and_then(|plan| plan.cpus.as_ref());
            if let Some(cpu) = placed.and_then(|cpus| cpus.iter().next()) {
                thread.cpu = cpu;
            }
        }
        self.plan = policy.decide(&seen);
    }

    fn render(&self) -> String {
        let mut text = String::new();
        for tenant in &self.plan.tenants {
            for thread in &tenant.threads {
                write!(text, "{} {}:", tenant.name, thread.id).unwrap();
                if let Some(weight) = thread.weight {
                    write!(text, " weight {:.3}", weight.as_load()).unwrap();
                }
                if let Some(ns) = thread.latency_ns {
                    write!(text, " latency {:.3} us", ns as f64 / 1000.0).unwrap();
                }
                if let Some(cpus) = &thread.cpus {
                    write!(text, " cpus {cpus}").unwrap();
                }
                text.push('\n');
                for reason in &thread.reasons {
                    writeln!(text, "  {}: {}", reason.rule, reason.text).unwrap();
                }
            }
            let weights: Option<Vec<u64>> = tenant
                .threads
                .iter()
                .map(|thread| Some(thread.weight?.0))
                .collect();
            if let Some(weights) = weights.filter(|it| !it.is_empty()) {
                let total: u64 = weights.iter().sum();
                writeln!(text, "{} total {:.3}", tenant.name, total as f64 / 1000.0).unwrap();
            }
        }
        text
    }
}
