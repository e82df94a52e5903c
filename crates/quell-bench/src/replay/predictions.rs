//! How good replays are: compared with the traces that they come from, and with simulations of the traced
//! scenarios.

use super::{Replayed, Under, replay};
use crate::progress::Progress;
use crate::run::{BenchOptions, simulated};
use crate::side::Side;
use quell_scenario::Scenario;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const SIDES: [&str; 3] = ["eevdf", "sched", "fifo"];
const PAIRS: u32 = 3;

/// Fork-joins, locks, pipelines and image inference on 8 CPUs, 80 % busy.
const MIXED: &str = include_str!("../../../../scenarios/lab/mixed.toml");

/// Traces a scenario under every side and replays each trace under every side: by recorded side and pair.
fn replayed(text: &str) -> Vec<Vec<Replayed>> {
    let scenario = Scenario::parse(Path::new("t.toml"), text).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let sides: Vec<Side> = SIDES.iter().map(|side| side.parse().unwrap()).collect();
    let options = BenchOptions {
        sides: sides.clone(),
        warmup_seconds: 0.5,
        seconds: 10.0,
        pairs: PAIRS,
        trace: Some(folder.path().into()),
        ..BenchOptions::new(scenario, "quell".into())
    };
    let interrupt = AtomicBool::new(false);
    simulated::run(&options, &interrupt, &Progress::silent()).unwrap();
    let of = |side: &str, pair| {
        let file = folder.path().join(format!("{side}-{pair}.perfetto-trace"));
        let replayed = replay(&file, &sides, None).unwrap();
        assert_eq!(replayed.notes, [""; 0]);
        replayed
    };
    let all = |side: &&str| (1..=PAIRS).map(|pair| of(side, pair)).collect();
    SIDES.iter().map(all).collect()
}

type Figure = fn(&Under) -> Option<f64>;

/// The mean of a figure over all pairs.
fn mean(replayed: &[Replayed], side: &str, figure: Figure) -> f64 {
    let of = |replayed: &Replayed| {
        let mut all = replayed.all.iter();
        figure(all.find(|under| under.side == side).unwrap()).unwrap()
    };
    replayed.iter().map(of).sum::<f64>() / replayed.len() as f64
}

const FIGURES: [(&str, Figure); 4] = [
    ("turnaround, mean", |under| under.turnaround.mean_us),
    ("turnaround, p99", |under| under.turnaround.p99_us),
    ("run delay, mean", |under| under.run_delay.mean_us),
    ("run delay, p99", |under| under.run_delay.p99_us),
];

#[test]
fn replays_agree_with_what_they_are_from_and_with_simulations() {
    let all = replayed(MIXED);
    let mut wrong = Vec::new();
    for (from, side) in all.iter().zip(SIDES) {
        for (number, (name, figure)) in FIGURES.into_iter().enumerate() {
            let recorded = mean(from, "recorded", figure);
            for (to, other) in all.iter().zip(SIDES) {
                let off = |value: f64, of: f64| 100.0 * (value / of - 1.0);
                // The prediction is the replay of this side's trace under the other side; what it must match
                // is the simulation under the other side.
                let predicted = mean(from, other, figure);
                let simulated = mean(to, "recorded", figure);
                let change = [off(predicted, recorded), off(simulated, recorded)];
                let error = off(predicted, simulated);
                eprintln!(
                    "| `{side}` | `{other}` | {name} | {recorded:.0} | {:+.1} % | {:+.1} % | {error:+.1} % |",
                    change[0], change[1]
                );
                let turnaround = number < 2;
                let (most, what) = match (side == other, turnaround, number) {
                    // Where the course differs by more than a microsecond, as under EEVDF, a thread that is
                    // bound to its recorded work waits longer than a thread that takes any work there is.
                    (true, true, _) if side == "eevdf" => (6.0, "its own trace"),
                    // Quell's scheduler orders by lags as well, so its replays differ in that way, too.
                    (true, true, _) if side == "sched" => (3.0, "its own trace"),
                    (true, true, _) => (2.0, "its own trace"),
                    (true, false, _) => (15.0, "its own trace"),
                    (false, true, 0) => (15.0, "another's trace"),
                    // The 99th percentiles are not of equal sets of bursts: where a pool's thread was late,
                    // another thread took its work, and so one thread had a longer burst instead of two.
                    (false, true, _) => (20.0, "another's trace"),
                    (false, false, _) => (f64::INFINITY, ""),
                };
                if error.abs() >= most {
                    wrong.push(format!("{side} to {other}, {what}: {name} {error:+.1} %"));
                }
                // The predicted change has the direction of the simulated one, if that is clear.
                let clear = if number == 0 { 5.0 } else { 15.0 };
                if turnaround && change[1].abs() > clear && change[0] * change[1] <= 0.0 {
                    wrong.push(format!("{side} to {other}: {name} {change:?}"));
                }
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}
