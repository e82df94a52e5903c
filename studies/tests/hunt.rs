//! Holds what the hunt has found, and checks that the reference waits as a real kernel's threads do.
//!
//! Each file in `hunt/` is a workload on which a light task waited too long once (`quell-studies hunt
//! --keep`). Workloads on which a light task still does are in [`KNOWN`], and must not get worse; all others
//! must hold.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use quell_bench::side::{Side, Simulated};
use quell_studies::hunt::measure::{Light, measure_tasks};
use quell_studies::hunt::workload::{Group, Kind, Task};
use quell_studies::hunt::{Case, LIMIT, Workload, judge};
use std::path::{Path, PathBuf};

/// Workloads that are still finds, and their ratios on the day when they were kept.
const KNOWN: &[(&str, f64)] = &[];

/// How much worse a known find may become, as it changes with every change of the scheduler.
const WORSE: f64 = 1.25;

fn cases() -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hunt");
    let files = std::fs::read_dir(folder).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let named = files.map(|file| {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        (name, file)
    });
    let mut cases: Vec<_> = named.collect();
    cases.sort();
    cases
}

#[test]
fn what_was_found_is_gone_or_known() {
    let (eevdf, sched) = (Side::Simulated(Simulated::Eevdf), Side::sched());
    let mut faults = Vec::new();
    let cases = cases();
    for (name, file) in &cases {
        let case = Case::read(file).unwrap();
        let score = judge(&case.workload, &eevdf, &sched, case.seconds).unwrap();
        let known = KNOWN.iter().find(|(known, _)| known == name);
        let most = known.map_or(LIMIT, |(_, ratio)| ratio * WORSE);
        println!(
            "{name}: {:.1}, at most {most:.1}: {}",
            score.ratio, case.workload
        );
        if score.ratio > most {
            faults.push(format!(
                "{name}: {:.1}, at most {most:.1}: {}",
                score.ratio, case.workload
            ));
        } else if known.is_some() && !score.exceeds() {
            println!("{name} is gone: take it out of KNOWN");
        }
    }
    let there = |name: &str| cases.iter().any(|(case, _)| case == name);
    faults.extend(
        KNOWN
            .iter()
            .filter(|it| !there(it.0))
            .map(|it| format!("no case {}", it.0)),
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A task beside other tasks on two CPUs, in a group of its own or not, under Linux 7.2's fair class, for 7
/// s.
fn beside(others: (u32, Kind), task: Kind, grouped: bool) -> Light {
    let of = |count, does, group| Task {
        count,
        nice: 0,
        group: grouped.then_some(group),
        cpus: None,
        does,
    };
    let group = Group {
        within: None,
        weight: 100,
    };
    let workload = Workload {
        cpus: 2,
        cache_cpus: 2,
        groups: if grouped { vec![group; 2] } else { Vec::new() },
        tasks: vec![of(others.0, others.1, 0), of(1, task, 1)],
    };
    let eevdf = Side::Simulated(Simulated::Eevdf);
    measure_tasks(&workload, &[1], &eevdf, 7.0).unwrap().light[0]
}

/// In the lab, Linux 7.2.13 on two CPUs, the kernel's own work takes as many times as long as CPUs are busy:
/// 99th percentile and longest wait. The simulator's waits are shorter, by half beside processes that begin
/// and end.
#[test]
fn the_simulated_eevdf_waits_as_in_the_lab() {
    let periodic = |run_us, sleep_us| Kind::Periodic {
        run_us,
        sleep_us,
        drawn: false,
    };
    let maker = Kind::Maker {
        run_us: 15_000,
        drawn: false,
    };
    let (short, long) = (periodic(50, 2000), periodic(3000, 17_000));
    // Spinning processes that all come from one session compete as one group with others (autogroups).
    let rows = [
        (
            "8 makers, 50 us every 2 ms",
            beside((8, maker), short, false),
            2.4,
            Some(3.6),
        ),
        (
            "8 makers, 3 ms every 20 ms",
            beside((8, maker), long, false),
            3.3,
            Some(4.0),
        ),
        (
            "200 loops, 50 us every 2 ms",
            beside((200, Kind::Loop), short, true),
            0.9,
            Some(2.1),
        ),
        (
            "4 loops, 50 us every 2 ms",
            beside((4, Kind::Loop), short, false),
            1.5,
            None,
        ),
    ];
    for (what, is, p99_ms, worst_ms) in rows {
        let text = format!(
            "{what}: p99 {:.2} ms (lab {p99_ms}), worst {:.2} (lab {worst_ms:?}), {} wakeups",
            is.p99_ms, is.worst_ms, is.served
        );
        println!("{text}");
        assert!((0.4..1.5).contains(&(is.p99_ms / p99_ms)), "{text}");
    }
    // The lab served 3,133 wakeups.
    assert!((2900..3300).contains(&rows[0].1.served), "{:?}", rows[0].1);
}
