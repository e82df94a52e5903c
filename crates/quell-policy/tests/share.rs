//! Ideals worked out by hand: `share/*.txt` has groups and threads, and the CPU time that each deserves.
//!
//! A file holds any number of cases. Each starts with `case NAME`; then come, in this order:
//!
//! - `host cpus=LIST`
//! - `group NAME [in=NAME] [weight=N] [limit=N]`: after the group that it is in
//! - `thread NAME [in=NAME] [weight=N] [cpus=LIST] [demand=N]`: all CPUs and 1 CPU unless given
//! - `group NAME weight=N`, `thread NAME demand=N` once more change it, also between ideals
//! - `ideal NAME=N...`: the CPU time that each deserves; all groups and threads are named once
//!
//! Numbers may be fractions, `2/3`.
#![allow(clippy::unwrap_used)] // a test that cannot go on must fail

use quell_model::{CpuId, CpuSet};
use quell_policy::share::{Group, Problem, ProblemError, Thread, ideal};
use std::path::Path;

#[test]
fn every_case_is_divided_as_worked_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/share");
    let mut checked = 0;
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut case = Case::default();
        for (number, line) in text.lines().enumerate() {
            let at = format!("{}:{}", file.display(), number + 1);
            checked += usize::from(case.line(line, &at));
        }
    }
    assert!(checked > 30, "{checked}");
}

#[derive(Default)]
struct Case {
    groups: Vec<String>,
    threads: Vec<String>,
    problem: Problem,
}

impl Case {
    /// Reads a line; returns whether it is an ideal, which was then checked.
    fn line(&mut self, line: &str, at: &str) -> bool {
        let mut words = line.split_whitespace();
        match words.next() {
            None | Some("#") => {}
            Some("case") => *self = Case::default(),
            Some("host") => self.problem.cpus = value(words.next().unwrap(), "cpus", at),
            Some("group") => self.group(words, at),
            Some("thread") => self.thread(words, at),
            Some("ideal") => {
                self.compare(words, at);
                return true;
            }
            Some(word) => panic!("{at}: {word}"),
        }
        false
    }

    fn group<'a>(&mut self, mut words: impl Iterator<Item = &'a str>, at: &str) {
        let place = place(&mut self.groups, words.next().unwrap());
        if place == self.problem.groups.len() {
            self.problem.groups.push(Group {
                parent: None,
                weight: 100,
                limit: None,
            });
        }
        for word in words {
            let group = &mut self.problem.groups[place];
            match word.split_once('=').unwrap() {
                ("in", name) => group.parent = Some(known(&self.groups, name, at)),
                ("weight", n) => group.weight = n.parse().unwrap(),
                ("limit", n) => group.limit = Some(number(n)),
                _ => panic!("{at}: {word}"),
            }
        }
    }

    fn thread<'a>(&mut self, mut words: impl Iterator<Item = &'a str>, at: &str) {
        let place = place(&mut self.threads, words.next().unwrap());
        if place == self.problem.threads.len() {
            self.problem.threads.push(Thread {
                group: None,
                weight: 100,
                cpus: self.problem.cpus.clone(),
                demand: 1.0,
            });
        }
        for word in words {
            let thread = &mut self.problem.threads[place];
            match word.split_once('=').unwrap() {
                ("in", name) => thread.group = Some(known(&self.groups, name, at)),
                ("weight", n) => thread.weight = n.parse().unwrap(),
                ("cpus", _) => thread.cpus = value(word, "cpus", at),
                ("demand", n) => thread.demand = number(n),
                _ => panic!("{at}: {word}"),
            }
        }
    }

    fn compare<'a>(&self, words: impl Iterator<Item = &'a str>, at: &str) {
        let found = ideal(&self.problem).unwrap();
        let names: Vec<&String> = self.groups.iter().chain(&self.threads).collect();
        let rates: Vec<f64> = found.groups.into_iter().chain(found.threads).collect();
        let mut named = vec![false; names.len()];
        for word in words {
            let (name, rate) = word.split_once('=').unwrap();
            let place = names.iter().position(|n| *n == name);
            let place = place.unwrap_or_else(|| panic!("{at}: {name}"));
            assert!(!std::mem::replace(&mut named[place], true), "{at}: {name}");
            assert!(
                (rates[place] - number(rate)).abs() < 1e-9,
                "{at}: {name} gets {}, deserves {rate}",
                rates[place]
            );
        }
        assert!(
            named.iter().all(|&n| n),
            "{at}: all must be named: {names:?}"
        );
    }
}

/// The index of a name; a new name is added at the end.
fn place(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|n| n == name).unwrap_or_else(|| {
        names.push(name.to_string());
        names.len() - 1
    })
}

fn known(names: &[String], name: &str, at: &str) -> usize {
    let place = names.iter().position(|n| n == name);
    place.unwrap_or_else(|| panic!("{at}: no group {name}"))
}

fn value(word: &str, key: &str, at: &str) -> CpuSet {
    let (found, list) = word.split_once('=').unwrap();
    assert_eq!(found, key, "{at}");
    list.parse().unwrap()
}

fn number(text: &str) -> f64 {
    match text.split_once('/') {
        Some((a, b)) => a.parse::<f64>().unwrap() / b.parse::<f64>().unwrap(),
        None => text.parse().unwrap(),
    }
}

fn group(parent: Option<usize>) -> Group {
    Group {
        parent,
        weight: 100,
        limit: None,
    }
}

fn thread(group: Option<usize>, cpus: &str) -> Thread {
    Thread {
        group,
        weight: 100,
        cpus: cpus.parse().unwrap(),
        demand: 1.0,
    }
}

fn host(cpus: u32, groups: Vec<Group>, threads: Vec<Thread>) -> Problem {
    Problem {
        cpus: CpuSet::first(cpus),
        groups,
        threads,
    }
}

#[test]
fn what_makes_no_sense_is_named() {
    let sound = || host(2, vec![group(None)], vec![thread(Some(0), "0-1")]);
    let refused = |change: fn(&mut Problem)| {
        let mut problem = sound();
        change(&mut problem);
        ideal(&problem).unwrap_err()
    };
    assert!(ideal(&sound()).is_ok());
    assert_eq!(
        refused(|p| p.groups[0].parent = Some(1)),
        ProblemError::UnknownParent {
            group: 0,
            parent: 1
        }
    );
    assert_eq!(
        refused(|p| p.groups[0].parent = Some(0)),
        ProblemError::ParentCycle { group: 0 }
    );
    assert_eq!(
        refused(|p| p
            .groups
            .extend([group(Some(2)), group(Some(3)), group(Some(2))])),
        ProblemError::ParentCycle { group: 1 }
    );
    assert_eq!(
        refused(|p| p.groups[0].weight = 0),
        ProblemError::GroupWeight {
            group: 0,
            weight: 0
        }
    );
    for limit in [-0.1, f64::INFINITY] {
        assert_eq!(
            {
                let mut problem = sound();
                problem.groups[0].limit = Some(limit);
                ideal(&problem).unwrap_err()
            },
            ProblemError::Limit { group: 0, limit }
        );
    }
    assert_eq!(
        refused(|p| p.threads[0].group = Some(7)),
        ProblemError::UnknownGroup {
            thread: 0,
            group: 7
        }
    );
    assert_eq!(
        refused(|p| p.threads[0].weight = 10_001),
        ProblemError::ThreadWeight {
            thread: 0,
            weight: 10_001
        }
    );
    assert_eq!(
        refused(|p| p.threads[0].demand = 1.5),
        ProblemError::Demand {
            thread: 0,
            demand: 1.5
        }
    );
    let no_number = refused(|p| p.threads[0].demand = f64::NAN).to_string();
    assert_eq!(
        no_number,
        "thread 0: a demand of NaN CPUs is not in 0.0 to 1.0"
    );
    assert_eq!(
        refused(|p| p.threads[0].cpus = CpuSet::new()),
        ProblemError::NoCpu { thread: 0 }
    );
    assert_eq!(
        refused(|p| p.threads[0].cpus.insert(CpuId(2))),
        ProblemError::UnknownCpu {
            thread: 0,
            cpu: CpuId(2)
        }
    );
}

#[test]
fn an_empty_host_divides_nothing() {
    let found = ideal(&host(0, vec![group(None)], Vec::new())).unwrap();
    assert_eq!((found.groups, found.threads), (vec![0.0], Vec::new()));
}
