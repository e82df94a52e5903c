//! `quell-studies reproduce`: a paper's experiments, with the paper's numbers beside ours.

use super::settings;
use crate::catalogue::CATALOGUE;
use crate::cli::Reproduce;
use crate::report;
use crate::reproduce::{
    Figure, PointResult, Sharers, consolidation_ratio, figures, loads, objectives_us,
};
use quell::cli::Measure;
use quell::commands::InputError;
use quell::commands::bench::{Job, files_writable};
use quell_bench::progress::Progress;
use quell_bench::result::{BenchResult, Substrate};
use quell_bench::run::interrupt_flag;
use quell_bench::side::Side;
use quell_bench::sweep;
use quell_bench::workload::Interrupted;
use quell_scenario::set::Setting;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Lists the figures, or measures one.
///
/// # Errors
/// Wrong arguments, files that cannot be written, an interrupt, and a simulation that fails; on a real kernel
/// also points of which none could be measured.
pub fn reproduce(args: &Reproduce) -> anyhow::Result<()> {
    let Some(name) = args.figure.as_deref().filter(|_| !args.list) else {
        return list();
    };
    let figure = Figure::named(name, args.on);
    let figure = figure.ok_or_else(|| InputError(unknown(name)))?;
    let on = args.on.unwrap_or(figure.on[0]);
    let named = args.policy.as_deref();
    let named = named.map(|it| CATALOGUE.sides(it, on)).transpose()?;
    let mut measure = args.measure.clone();
    measure.scheduling |= figure.scheduling;
    files_writable(measure.files())?;
    let jobs = jobs(figure, named.as_deref(), &args.set, &measure)?;
    let interrupt = interrupt_flag()?;
    let points = match on {
        Substrate::Sim => simulated(&jobs, &interrupt)?,
        Substrate::Vm | Substrate::Host => measured(&jobs, on, args, &interrupt)?,
    };
    anyhow::ensure!(!points.is_empty(), Interrupted);
    report::deliver_reproduction(&figure.conclude(points, jobs.len()), measure.files())
}

/// Measures all points on the simulator, several at once.
fn simulated(jobs: &[PointJob<'_>], interrupt: &AtomicBool) -> anyhow::Result<Vec<PointResult>> {
    let point = |PointJob { job, .. }: &PointJob<'_>| Ok((job.options()?, job.set.clone()));
    let points: Vec<_> = jobs.iter().map(point).collect::<anyhow::Result<_>>()?;
    let planned = points.iter().map(|(options, _)| options.planned()).sum();
    let results = sweep::measure(&points, interrupt, &Progress::stderr(planned))?;
    let of_point = |(job, result): (&PointJob<'_>, Option<BenchResult>)| Some(job.point(result?));
    Ok(jobs.iter().zip(results).filter_map(of_point).collect())
}

/// Measures one point after the other, in a guest or on this machine.
fn measured(
    jobs: &[PointJob<'_>],
    on: Substrate,
    args: &Reproduce,
    interrupt: &Arc<AtomicBool>,
) -> anyhow::Result<Vec<PointResult>> {
    let (mut points, mut failed) = (Vec::new(), None);
    for (number, point) in jobs.iter().enumerate() {
        let job = &point.job;
        let cpus = args.guest.cpus.or_else(|| {
            let host = job.scenario.host.as_ref();
            host.map(|host| host.topology().cpus.len() as u32)
        });
        let name = match consolidation_ratio(&job.scenario, cpus.unwrap_or(1)) {
            // No tenant of the scenario answers requests.
            0.0 => format!("{} {}", job.scenario.name, point.set.join(" ")),
            ratio => format!("{} at ratio {ratio}", job.scenario.name),
        };
        let (number, all) = (number + 1, jobs.len());
        let _ = writeln!(io::stderr(), "{number} of {all}: {name}");
        match job.run(on, &args.guest, interrupt) {
            Ok(result) => points.push(point.point(result)),
            // After an interrupt the points so far are worth showing, and after another error the further
            // points take hours.
            Err(error) => {
                let _ = writeln!(io::stderr(), "quell: {error:#}");
                failed = failed.or(Some(error.context(name)));
            }
        }
        if interrupt.load(Ordering::Relaxed) {
            break;
        }
    }
    match failed {
        Some(error) if points.is_empty() => Err(error),
        _ => Ok(points),
    }
}

/// A point to measure.
struct PointJob<'a> {
    job: Job<'a>,
    /// The figure's settings of the point, without the user's.
    set: Vec<String>,
}

impl PointJob<'_> {
    fn point(&self, result: BenchResult) -> PointResult {
        let (scenario, cpus) = (&self.job.scenario, result.host.cpus);
        PointResult {
            scenario: scenario.name.clone(),
            set: self.set.clone(),
            ratio: consolidation_ratio(scenario, cpus),
            sharers: Sharers::of(scenario, cpus),
            loads: loads(scenario),
            objectives_us: objectives_us(scenario),
            result,
        }
    }
}

/// The message for a figure that cannot be redone, or not on the substrate asked for.
fn unknown(name: &str) -> String {
    let same = figures().filter(|figure| figure.name == name);
    let places: Vec<String> = same.map(places).collect();
    if !places.is_empty() {
        return format!(
            "`--on`: figure `{name}` is redone on: {}",
            places.join(", ")
        );
    }
    let mut names: Vec<&str> = figures().map(|figure| figure.name).collect();
    names.sort_unstable();
    names.dedup();
    format!(
        "no figure `{name}` can be redone; there are: {}",
        names.join(", ")
    )
}

/// The places of a figure as `--on` takes them.
fn places(figure: &Figure) -> String {
    let places: Vec<String> = figure.on.iter().map(ToString::to_string).collect();
    places.join(", ")
}

/// The scenario of every point to measure, under the sides named, else the figure's; all are checked before
/// the first runs.
fn jobs<'a>(
    figure: &Figure,
    named: Option<&[Side]>,
    set: &[Setting],
    measure: &'a Measure,
) -> anyhow::Result<Vec<PointJob<'a>>> {
    let mut jobs = Vec::new();
    let mut of_no_use: Vec<Side> = named.unwrap_or_default().to_vec();
    for point in figure.points() {
        let own = CATALOGUE.sides.parse_list(point.sides)?;
        let sides = match named {
            Some(named) if point.only => {
                let suited = named.iter().filter(|side| own.contains(side));
                suited.cloned().collect()
            }
            Some(named) => named.to_vec(),
            None => own,
        };
        of_no_use.retain(|side| !sides.contains(side));
        if sides.is_empty() {
            continue;
        }
        let settings = settings(&point.set, set)?;
        jobs.push(PointJob {
            job: Job::named(&CATALOGUE, point.scenario, &settings, sides, measure)?,
            set: point.set,
        });
    }
    match of_no_use.first() {
        Some(side) => Err(InputError(format!(
            "`--policy`: {} is set for its own sides and measures some of `{}`, not `{side}`",
            figure.name, figure.sides
        ))
        .into()),
        None => Ok(jobs),
    }
}

fn list() -> anyhow::Result<()> {
    let mut out = io::stdout();
    for figure in figures() {
        writeln!(
            out,
            "{:<13} {:<8}  {}",
            figure.name,
            places(figure),
            figure.title
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn arguments(words: &[&str]) -> Reproduce {
        let words = ["quell-studies", "reproduce"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Reproduce(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_figures_scenarios_are_there_and_have_these_ratios() {
        let args = arguments(&[]);
        let mut all = String::new();
        for figure in figures() {
            let mut ratios: Vec<(String, String)> = Vec::new();
            for PointJob { job, .. } in jobs(figure, None, &[], &args.measure).unwrap() {
                let cpus = job.scenario.host.as_ref().unwrap().topology().cpus.len() as u32;
                let ratio = format!("{:.1}", consolidation_ratio(&job.scenario, cpus));
                match ratios
                    .last_mut()
                    .filter(|(name, _)| *name == job.scenario.name)
                {
                    Some((_, ratios)) => *ratios += &format!(" {ratio}"),
                    None => ratios.push((job.scenario.name.clone(), format!("{cpus}: {ratio}"))),
                }
            }
            for (scenario, ratios) in ratios {
                let words: Vec<&str> = ratios.split(' ').collect();
                let run = |same: &[&str]| match same.len() {
                    // A ratio that repeats four times or more is not what is varied.
                    4.. => format!("{} x{}", same[0], same.len()),
                    _ => same.join(" "),
                };
                let ratios: Vec<String> = words.chunk_by(|a, b| a == b).map(run).collect();
                all += &format!("{} {scenario} {}\n", figure.name, ratios.join(" "));
            }
        }
        let expected = "\
dasec-fig1 edge-key-value 80: 0.4 0.8 1.6 2.4 3.2
dasec-fig1 edge-image 80: 0.4 0.8 1.6 2.4 3.2
dasec-fig3 edge-key-value 80: 3.2
dasec-fig3 edge-image 80: 3.2
dasec-fig3 edge-transactions 80: 3.2
dasec-fig3 edge-cache 80: 3.2
dasec-fig7 edge-cache 80: 0.4 0.8 1.6 2.4 3.2
dasec-fig7 edge-transactions 80: 0.4 0.8 1.6 2.4 3.2
dasec-fig9 edge-inference 80: 1.6 3.2
dasec-fig11 edge-containers 80: 3.2 4.0 4.8 5.6 6.4
dasec-fig12 edge-containers 80: 3.2 4.0 4.8 5.6 6.4
dasec-fig13 edge-key-value 80: 3.2
dasec-fig13 edge-image 80: 3.2
dasec-fig13 edge-cache 80: 3.2
dasec-fig13 edge-transactions 80: 3.2
dasec-fig14 edge-containers 80: 3.2 4.0 4.8 5.6 6.4
dasec-fig16 edge-matrix 80: 1.6
dasec-fig1 key-value-sweep 8: 0.5 1.0 1.5 2.0 2.5 3.0 4.0
dasec-fig1 image-sweep 8: 0.5 1.0 1.5 2.0 2.5 3.0 4.0
dasec-fig7 fork-join-sweep 8: 0.5 1.0 1.5 2.0 2.5 3.0 4.0
dasec-fig7 pipeline-sweep 8: 0.5 1.0 1.5 2.0 2.5 3.0 4.0
dasec-fig9 image-beside-key-value 8: 1.5 3.0 4.0
dasec-fig9 mixed 8: 4.0
dasec-fig13 fork-join-sweep 8: 4.0
dasec-fig13 key-value-sweep 8: 4.0
dasec-fig13 mixed 8: 4.0
dasec-fig16 matrix-beside-key-value 8: 1.5
groups-fig1 barriers 8: 0.0 x8
groups-fig1 locks 8: 0.0 x8
groups-fig1 stages 8: 0.0 x8
groups-fig1 independent 8: 0.0 x8
groups-fig1 barriers 8: 0.0 0.0 0.0
groups-fig1 locks 8: 0.0 0.0 0.0
groups-fig1 stages 8: 0.0 0.0 0.0
groups-fig1 independent 8: 0.0 0.0 0.0
groups-fig3 group 2: 0.0 0.0 0.0
groups-fig3 individual 2: 0.0
groups-fig3 dedicated 2: 0.0
groups-fig3 nested 2: 0.0
groups-fig3 none 2: 0.0
groups-fig3 group 2: 0.0 0.0 0.0
groups-fig3 individual 2: 0.0
groups-fig3 dedicated 2: 0.0
groups-fig3 nested 2: 0.0
groups-fig3 none 2: 0.0
groups-cycles group 2: 0.0 x8
groups-cycles individual 2: 0.0 0.0
groups-cycles dedicated 2: 0.0
groups-cycles nested 2: 0.0 0.0
groups-cycles group 2: 0.0 x8
groups-cycles individual 2: 0.0 0.0
groups-cycles dedicated 2: 0.0
groups-cycles nested 2: 0.0 0.0
groups-cycles group 2: 0.0 x8
groups-cycles individual 2: 0.0 0.0
groups-cycles dedicated 2: 0.0
groups-cycles nested 2: 0.0 0.0
groups-cycles group 2: 0.0 x8
groups-cycles individual 2: 0.0 0.0
groups-cycles dedicated 2: 0.0
groups-cycles nested 2: 0.0 0.0
groups-cycles group 2: 0.0 x8
groups-cycles individual 2: 0.0 0.0
groups-cycles dedicated 2: 0.0
groups-cycles nested 2: 0.0 0.0
groups-cycles group 2: 0.0 x8
groups-cycles individual 2: 0.0 0.0
groups-cycles dedicated 2: 0.0
groups-cycles nested 2: 0.0 0.0
groups-cycles group 2: 0.0 x8
groups-cycles individual 2: 0.0 0.0
groups-cycles dedicated 2: 0.0
groups-cycles nested 2: 0.0 0.0
groups-cycles group 2: 0.0 x8
groups-cycles individual 2: 0.0 0.0
groups-cycles dedicated 2: 0.0
groups-cycles nested 2: 0.0 0.0
akita-fig4 types 2: 1.0
akita-fig5 beside-hogs 2: 0.5 0.5
akita-fig5 beside-hogs 1: 1.0 1.0
akita-fig6 several 2: 1.0 1.0 1.5 2.0
akita-fig6 several 1: 2.0 2.0 3.0 4.0
akita-fig7 utilisation 1: 0.0 x4
akita-fig7 utilisation 1: 0.0 x4
akita-fig8 rpc 12: 0.1 x6
akita-fig8 rpc 1: 1.0 1.0 1.0
akita-fig9 rpc 12: 0.1 x6
akita-fig9 rpc 12: 0.1 x5
ufo-fig2 four 32: 1.0 x31
ufo-fig2b batch 16: 0.0
ufo-fig3 four 32: 1.0 1.0 1.0
ufo-fig4 alone 16: 0.1 x9 0.2 x11 0.4 x10 0.5 x10
ufo-fig5 alone 16: 0.5 x12 0.4 x12 0.5 x12 0.4 x12 0.5 x12 0.4 x12
ufo-fig6 four 32: 1.0 1.0 1.0
ufo-fig6 batch 16: 0.0
ufo-fig18 alone 16: 0.1 x9 0.2 x11 0.4 x10 0.5 x10 0.1 x9 0.2 x11 0.4 x10 0.5 x10
ufo-fig20 alone 16: 0.5 x5
ufo-fig12 pair 16: 1.0 x10 4.0 x6 2.7 x6 2.0 x6 1.6 x6 1.3 x6 1.1 x6 1.0 x29 4.0 x4 2.7 x4 2.0 x4 1.6 x4 1.3 x4 1.1 x4 1.0 x25 4.0 4.0 2.7 2.7 2.0 2.0 1.6 1.6 1.3 1.3 1.1 1.1 1.0 x41
ufo-fig13 pair 16: 1.0 x16 4.0 x4 2.7 x4 2.0 x4 1.6 x4 1.3 x4 1.1 x4 1.0 x37 4.0 x4 2.7 x4 2.0 x4 1.6 x4 1.3 x4 1.1 x4 1.0 x37 4.0 x4 2.7 x4 2.0 x4 1.6 x4 1.3 x4 1.1 x4 1.0 x37 4.0 x4 2.7 x4 2.0 x4 1.6 x4 1.3 x4 1.1 x4 1.0 x37 4.0 x4 2.7 x4 2.0 x4 1.6 x4 1.3 x4 1.1 x4 1.0 x37 4.0 x4 2.7 x4 2.0 x4 1.6 x4 1.3 x4 1.1 x4 1.0 x21
ufo-fig14 day 22: 1.1
ufo-fig15 alone 16: 1.0 x15 0.5 x15 1.0 x15 0.4 x15 1.0 x15 0.8 x15 1.0 x15 0.5 x15 1.0 x45 0.8 x15 1.0 x15 0.5 x15 1.0 x15 0.4 x15 1.0 x15 0.8 x15 1.0 x15 0.6 x15 1.0 x45 0.9 x15
";
        assert_eq!(all, expected);
    }

    #[test]
    fn values_of_every_point_can_be_set() {
        let figure = Figure::named("dasec-fig16", Some(Substrate::Vm)).unwrap();
        let args = arguments(&["dasec-fig16", "--set", "tenant.kv.load.rate=5"]);
        let text = &jobs(figure, None, &args.set, &args.measure).unwrap()[0]
            .job
            .text;
        assert!(text.contains("rate = 5"), "{text}");
        let args = arguments(&["dasec-fig16", "--set", "tenant.nobody.count=5"]);
        let error = jobs(figure, None, &args.set, &args.measure).err().unwrap();
        assert!(quell::commands::is_users(&error), "{error:#}");
    }

    #[test]
    fn sides_are_measured_where_the_figure_suits_them() {
        let args = arguments(&[]);
        let warm_ups = |figure: &str, named: &str| {
            let named = CATALOGUE.sides.parse_list(named).unwrap();
            let figure = Figure::named(figure, None).unwrap();
            let jobs = jobs(figure, Some(&named), &[], &args.measure)?;
            let mut warm_ups: Vec<String> = jobs
                .iter()
                .map(|it| {
                    let sides: Vec<String> = it.job.sides.iter().map(Side::to_string).collect();
                    format!("{} {}", sides.join(","), it.job.scenario.warmup_seconds)
                })
                .collect();
            warm_ups.dedup();
            anyhow::Ok(warm_ups)
        };
        let of_pairs = warm_ups("ufo-fig13", "ufo,parties").unwrap();
        assert_eq!(of_pairs[..2], ["parties 6", "ufo 22"]);
        assert_eq!(of_pairs.len(), 2 * 6);
        assert_eq!(warm_ups("dasec-fig16", "eevdf,sched").unwrap().len(), 1);
        let error = warm_ups("ufo-fig13", "ufo,eevdf").unwrap_err();
        assert!(quell::commands::is_users(&error), "{error:#}");
        assert!(error.to_string().ends_with("not `eevdf`"), "{error}");
    }

    #[test]
    fn figures_that_are_not_there_say_what_is() {
        assert!(unknown("dasec-fig2").contains("there are: akita-fig4, akita-fig5,"));
        let elsewhere = unknown("dasec-fig3");
        assert_eq!(elsewhere, "`--on`: figure `dasec-fig3` is redone on: sim");
        assert!(unknown("dasec-fig1").ends_with("sim, vm, host"));
    }
}
