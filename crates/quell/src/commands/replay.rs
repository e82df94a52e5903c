//! `quell replay`: what a trace's threads would have waited under other schedulers.

use super::InputError;
use super::bench::{self, print, writable};
use crate::cli::Replay;
use crate::table;
use anyhow::Context;
use quell_bench::replay::{Replayed, Times, check, replay as run};
use quell_bench::result::Substrate;
use quell_bench::side::Side;

/// Processes in the table where none is named.
const SHOWN: usize = 8;

/// Replays, and prints what each process had and would have had.
pub fn replay(args: &Replay) -> anyhow::Result<()> {
    let sides = sides(&args.policy)?;
    if let Some(json) = &args.json {
        writable(json)?;
    }
    let mut replayed = run(&args.trace, &sides, args.cpus)?;
    if let Some(name) = &args.process {
        replayed.processes.retain(|process| process.name == *name);
        if replayed.processes.is_empty() {
            let trace = args.trace.display();
            let message = format!("`--process`: no process `{name}` does anything in {trace}");
            return Err(InputError(message).into());
        }
    }
    let text = text(&replayed);
    print(&replayed, text, args.json.as_deref())
}

fn sides(policy: &str) -> anyhow::Result<Vec<Side>> {
    let sides = bench::sides(policy, Substrate::Sim)?;
    check(&sides).context("`--policy`")?;
    Ok(sides)
}

fn text(replayed: &Replayed) -> String {
    let mut text = format!(
        "{}: {:.1} s of {} CPUs, replayed on {} simulated ones. Run delays (ready without a CPU) and turnarounds (woken to asleep):\n",
        replayed.file, replayed.seconds, replayed.recorded_cpus, replayed.cpus
    );
    let headings = [
        "PROCESS",
        "UNDER",
        "CPU",
        "SWITCHES",
        "PREEMPTED",
        "MIGRATED",
        "DELAY",
        "P50",
        "P99",
        "MAX",
        "TURNAROUND",
        "P50",
        "P99",
        "MAX",
    ];
    let mut rows = table::new(headings, 2);
    let mut shown = vec![("all processes".to_string(), &replayed.all)];
    for process in replayed.processes.iter().take(SHOWN) {
        shown.push((format!("{} {}", process.name, process.pid), &process.under));
    }
    for (name, under) in shown {
        for (number, under) in under.iter().enumerate() {
            let name = if number == 0 { &name } else { "" };
            let mut row = vec![
                name.to_string(),
                under.policy.clone(),
                table::micros(under.cpu_ms * 1e3),
                under.switches.to_string(),
                under.preemptions.to_string(),
                under.migrations.to_string(),
            ];
            row.extend(times(&under.run_delay));
            row.extend(times(&under.turnaround));
            rows.add_row(row);
        }
    }
    text.push_str(&format!("{rows}\n"));
    for note in &replayed.notes {
        text.push_str(&format!("{note}\n"));
    }
    text
}

fn times(of: &Times) -> [String; 4] {
    [of.mean_us, of.p50_us, of.p99_us, of.max_us].map(|us| table::or_dash(us, table::micros))
}
