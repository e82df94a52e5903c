//! `quell reproduce`: a paper's experiments, the paper's numbers beside ours.

use super::InputError;
use super::bench::{self, Job, files_writable};
use crate::cli::Reproduce;
use anyhow::Context;
use quell_bench::report;
use quell_bench::reproduce::{FIGURES, Figure, Point, PointResult, consolidation_ratio};
use quell_bench::run::interrupt_flag;
use quell_bench::set::Setting;
use quell_bench::side::Side;
use quell_bench::workload::Interrupted;
use std::io::{self, Write};
use std::sync::atomic::Ordering;

/// Lists the figures, or measures one.
pub fn reproduce(args: &Reproduce) -> anyhow::Result<()> {
    let Some(name) = args.figure.as_deref().filter(|_| !args.list) else {
        return list();
    };
    let Some(figure) = Figure::named(name) else {
        let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
        let message = format!(
            "no figure `{name}` can be redone; there are: {}",
            names.join(", ")
        );
        return Err(InputError(message).into());
    };
    let sides = args.policy.as_deref().unwrap_or(figure.sides);
    let sides = bench::sides(sides, args.on)?;
    let measure = &args.measure;
    files_writable(measure.files())?;
    let jobs = jobs(figure, &sides, args)?;
    let interrupt = interrupt_flag()?;
    let mut points = Vec::new();
    for (number, job) in jobs.iter().enumerate() {
        let cpus = args.guest.cpus.map(|cpus| cpus as usize);
        let of_host = || {
            job.scenario
                .host
                .as_ref()
                .map(|host| host.topology().cpus.len())
        };
        let _ = writeln!(
            io::stderr(),
            "{} of {}: {} at ratio {}",
            number + 1,
            jobs.len(),
            job.scenario.name,
            consolidation_ratio(&job.scenario, cpus.or_else(of_host).unwrap_or(1) as u32)
        );
        let result = match job.run(args.on, &args.guest, &interrupt) {
            // What was measured before is worth showing.
            Err(error) if interrupt.load(Ordering::Relaxed) && !points.is_empty() => {
                let _ = writeln!(io::stderr(), "quell: {error:#}");
                break;
            }
            other => other.with_context(|| job.scenario.name.clone())?,
        };
        points.push(PointResult {
            scenario: job.scenario.name.clone(),
            ratio: consolidation_ratio(&job.scenario, result.host.cpus),
            result,
        });
        if interrupt.load(Ordering::Relaxed) {
            break;
        }
    }
    anyhow::ensure!(!points.is_empty(), Interrupted);
    let reproduction = figure.conclude(points);
    report::deliver_reproduction(&reproduction, measure.files())
}

/// Every point's scenario, checked before the first is measured.
fn jobs<'a>(figure: &Figure, sides: &[Side], args: &'a Reproduce) -> anyhow::Result<Vec<Job<'a>>> {
    let job = |point: Point| {
        let mut settings = Vec::new();
        if let Some(set) = &point.set {
            settings.push(set.parse::<Setting>().map_err(InputError)?);
        }
        settings.extend(args.set.iter().cloned());
        Job::new(point.scenario, &settings, sides.to_vec(), &args.measure)
    };
    figure.points().into_iter().map(job).collect()
}

fn list() -> anyhow::Result<()> {
    let mut out = io::stdout();
    for figure in FIGURES {
        writeln!(out, "{:<13} {}", figure.name, figure.title)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn arguments(words: &[&str]) -> Reproduce {
        let words = ["quell", "reproduce"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Reproduce(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_figures_scenarios_are_there_and_have_these_ratios() {
        let args = arguments(&[]);
        let mut all = String::new();
        for figure in FIGURES {
            let sides = Side::parse_list(figure.sides).unwrap();
            for job in jobs(figure, &sides, &args).unwrap() {
                let cpus = job.scenario.host.as_ref().unwrap().topology().cpus.len();
                assert_eq!(cpus, 8, "{}", job.scenario.name);
                let ratio = consolidation_ratio(&job.scenario, 8);
                all += &format!("{} {} {ratio}\n", figure.name, job.scenario.name);
            }
        }
        let ratios = ["0.5", "1", "1.5", "2", "2.5", "3", "4"];
        let sweep = |name: &str| ratios.map(|ratio| format!("{name} {ratio}\n")).concat();
        let expected = [
            sweep("dasec-fig1 key-value-sweep"),
            sweep("dasec-fig1 image-sweep"),
            sweep("dasec-fig7 fork-join-sweep"),
            sweep("dasec-fig7 pipeline-sweep"),
        ]
        .concat()
            + "\
dasec-fig9 image-beside-key-value 1.5
dasec-fig9 image-beside-key-value 3
dasec-fig9 image-beside-key-value 4
dasec-fig9 mixed 4
dasec-fig13 fork-join-sweep 4
dasec-fig13 key-value-sweep 4
dasec-fig13 mixed 4
dasec-fig16 matrix-beside-key-value 1.5
";
        assert_eq!(all, expected);
    }

    #[test]
    fn values_of_every_point_can_be_set() {
        let figure = Figure::named("dasec-fig16").unwrap();
        let sides = Side::parse_list(figure.sides).unwrap();
        let args = arguments(&["dasec-fig16", "--set", "tenant.kv.load.rate=5"]);
        let text = &jobs(figure, &sides, &args).unwrap()[0].text;
        assert!(text.contains("rate = 5"), "{text}");
        let args = arguments(&["dasec-fig16", "--set", "tenant.nobody.count=5"]);
        let error = jobs(figure, &sides, &args).err().unwrap();
        assert!(super::super::is_users(&error), "{error:#}");
    }
}
