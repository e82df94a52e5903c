//! `quell replay`: how long a trace's threads would have waited under other schedulers.

use super::InputError;
use super::bench::{print, writable};
use crate::cli::Replay;
use crate::table;
use anyhow::Context;
use quell_bench::replay::{Replayed, Times, replay as run, sides};
use quell_model::shown;

/// How many processes the table has where the user names none.
const SHOWN: usize = 8;

/// Replays a trace, and prints each process's figures as recorded and under each side.
///
/// # Errors
/// Where the user's arguments are wrong, the trace cannot be read, or the result cannot be written.
pub fn replay(args: &Replay) -> anyhow::Result<()> {
    let sides = sides(&args.policy).context("`--policy`")?;
    if let Some(json) = &args.json {
        writable(json)?;
    }
    let mut replayed = run(&args.trace, &sides, args.cpus)?;
    if let Some(name) = &args.process {
        // By the process's name, or by the name as the table shows it.
        let called = |it: &str| it == name || shown(it) == *name;
        replayed.processes.retain(|process| called(&process.name));
        if replayed.processes.is_empty() {
            let trace = args.trace.display();
            let message = format!("`--process`: no process `{name}` does anything in {trace}");
            return Err(InputError(message).into());
        }
    }
    let text = text(&replayed);
    print(&replayed, text, args.json.as_deref())
}

fn text(replayed: &Replayed) -> String {
    let mut text = format!(
        "{}: {:.1} s of {} CPUs, replayed on {} simulated ones. Run delays (ready without a CPU) and turnarounds (woken to asleep):\n",
        shown(&replayed.file),
        replayed.seconds,
        replayed.recorded_cpus,
        replayed.cpus
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
    let mut rows_of = vec![("all processes".to_string(), &replayed.all)];
    for process in replayed.processes.iter().take(SHOWN) {
        let name = shown(&process.name);
        rows_of.push((format!("{name} {}", process.pid), &process.under));
    }
    for (name, under) in rows_of {
        for (number, under) in under.iter().enumerate() {
            let name = if number == 0 { &name } else { "" };
            let mut row = vec![
                name.to_string(),
                under.side.clone(),
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
        text.push_str(&format!("{}\n", shown(note)));
    }
    text
}

fn times(of: &Times) -> [String; 4] {
    [of.mean_us, of.p50_us, of.p99_us, of.max_us].map(|us| table::or_dash(us, table::micros))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_bench::replay::{ReplayedProcess, Under};

    #[test]
    fn names_of_a_trace_are_shown_and_not_obeyed() {
        let none = Times {
            count: 0,
            mean_us: None,
            p50_us: None,
            p99_us: None,
            max_us: None,
        };
        let under = vec![Under {
            side: "recorded".to_string(),
            cpu_ms: 1.0,
            run_delay: none.clone(),
            turnaround: none,
            switches: 1,
            preemptions: 0,
            migrations: 0,
        }];
        let process = ReplayedProcess {
            pid: 7,
            name: "\x1b]0;x\x07\nall processes\u{202e}\u{9b}2J".to_string(),
            threads: 1,
            under: under.clone(),
        };
        let replayed = Replayed {
            file: "t\x1b[2J".to_string(),
            seconds: 1.0,
            recorded_cpus: 1,
            cpus: 1,
            gaps: 0,
            notes: vec!["\x1b[31mred".to_string()],
            all: under,
            processes: vec![process],
        };
        let text = text(&replayed);
        assert_eq!(shown(&text.replace('\n', "")), text.replace('\n', ""));
        assert!(
            text.contains("\\x1b]0;x\\x07\\nall processes\\u{202e}\\x9b2J 7"),
            "{text}"
        );
        assert_eq!(
            text.lines()
                .filter(|line| line.starts_with("all processes"))
                .count(),
            1
        );
    }

    #[test]
    fn the_help_offers_what_replay_takes() {
        use clap::CommandFactory;
        let mut cli = crate::cli::Cli::command();
        let replay = cli.find_subcommand_mut("replay").unwrap();
        let policy = replay.get_arguments().find(|it| it.get_id() == "policy");
        let help = policy.unwrap().get_help().unwrap().to_string();
        let all: Vec<&str> = quell_bench::replay::names().collect();
        assert!(help.contains(&all.join(", ")), "{help}");
    }
}
