//! Hand-worked cases of controllers that Quell is compared with: `baselines/*.txt` has the latencies and
//! the cores that must change hands.
//!
//! A file holds any number of cases. Each starts with `case NAME`; then come
//!
//! - `targets TENANT=MS...` and `cores TENANT=N... free=N`, or `split N`: N cores dealt out; with `vcpus
//!   TENANT=N... core=N` between them the controller is DynIso, on cores of N CPUs, else PARTIES;
//! - `ticks N TENANT=MS...`: N ticks with these latencies, those of other tenants without any; after
//!   `----` follow the core that changed hands at each tick of the case, and the cores that all tenants
//!   hold then, up to an empty line.
//!
//! `QUELL_REWRITE_GOLDEN=1 cargo test -p quell-studies --test baselines` replaces the expected decisions by
//! the actual ones.
#![allow(clippy::unwrap_used)] // a test that cannot go on must fail

use quell_studies::baselines::{Parties, dyniso};
use std::fmt::Write;
use std::path::Path;

#[test]
fn every_case_decides_as_worked_out() {
    for name in ["parties.txt", "dyniso.txt"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/baselines");
        let file = folder.join(name);
        let text = std::fs::read_to_string(&file).unwrap();
        let decided = replay(&text);
        if std::env::var_os("QUELL_REWRITE_GOLDEN").is_some() {
            std::fs::write(&file, decided).unwrap();
        } else {
            assert_eq!(text, decided, "{} (left)", file.display());
        }
    }
}

#[derive(Default)]
struct Case {
    names: Vec<String>,
    held: Vec<u32>,
    free: u32,
    tick: u32,
    targets_ns: Vec<u64>,
    parties: Option<Parties>,
}

fn replay(text: &str) -> String {
    let mut out = String::new();
    let mut case = Case::default();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        writeln!(out, "{line}").unwrap();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "" | "#" => {}
            "case" => case = Case::default(),
            "targets" => {
                let targets: Vec<_> = pairs(rest).collect();
                case.names = targets.iter().map(|(name, _)| name.clone()).collect();
                case.targets_ns = targets.iter().map(|(_, ms)| nanos(*ms)).collect();
                case.parties = Some(Parties::new(&case.targets_ns));
            }
            "vcpus" => {
                let vcpus: Vec<_> = pairs(rest).map(|(_, count)| Some(count as u32)).collect();
                let (of_core, vcpus) = vcpus.split_last().unwrap();
                case.parties = Some(dyniso(&case.targets_ns, vcpus, of_core.unwrap()));
            }
            "split" => {
                let cores = rest.parse().unwrap();
                case.held = case.parties.as_ref().unwrap().begin(cores);
                case.free = cores - case.held.iter().sum::<u32>();
            }
            "cores" => {
                let cores: Vec<u32> = pairs(rest).map(|(_, count)| count as u32).collect();
                let (free, held) = cores.split_last().unwrap();
                (case.free, case.held) = (*free, held.to_vec());
            }
            "ticks" => {
                assert_eq!(lines.next(), Some("----"), "{line}");
                for _ in lines.by_ref().take_while(|line| !line.is_empty()) {}
                let decided = case.ticks(rest);
                writeln!(out, "----\n{decided}").unwrap();
            }
            _ => panic!("{line}"),
        }
    }
    out
}

fn pairs(text: &str) -> impl Iterator<Item = (String, f64)> + '_ {
    text.split_whitespace().map(|pair| {
        let (name, value) = pair.split_once('=').unwrap();
        (name.to_string(), value.parse().unwrap())
    })
}

fn nanos(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

impl Case {
    fn ticks(&mut self, text: &str) -> String {
        let (count, latencies) = text.split_once(' ').unwrap_or((text, ""));
        let mut seen = vec![None; self.names.len()];
        for (name, ms) in pairs(latencies) {
            seen[self.names.iter().position(|own| *own == name).unwrap()] = Some(nanos(ms));
        }
        let mut text = String::new();
        for _ in 0..count.parse().unwrap() {
            self.tick += 1;
            let parties = self.parties.as_mut().unwrap();
            let Some(step) = parties.tick(&seen, &self.held, self.free) else {
                continue;
            };
            for (holder, change) in [(step.from, -1), (step.to, 1)] {
                let held = match holder {
                    Some(tenant) => &mut self.held[tenant],
                    None => &mut self.free,
                };
                *held = held.checked_add_signed(change).unwrap();
            }
            let name = |holder: Option<usize>| holder.map_or("free", |of| &self.names[of]);
            write!(
                text,
                "{}: {} -> {}:",
                self.tick,
                name(step.from),
                name(step.to)
            )
            .unwrap();
            for (name, held) in self.names.iter().zip(&self.held) {
                write!(text, " {name}={held}").unwrap();
            }
            writeln!(text, " free={}", self.free).unwrap();
        }
        text
    }
}
