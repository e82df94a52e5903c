//! The search: on all CPUs of this machine, one workload at a time on each.

use super::measure::measure;
use super::score::{Score, judge, score};
use super::shrink::shrink;
use super::workload::Workload;
use super::{Find, Hunt, HuntOptions, SideFinds};
use anyhow::bail;
use quell_bench::progress::Progress;
use quell_bench::result::SCHEMA;
use quell_bench::side::Side;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many finds of a side are made smaller, to show finds of different kinds.
const SHRUNK: usize = 30;
/// How many finds of a side are shown.
const TOLD: usize = 10;

/// The seed of a workload, and the workload's score under each side but the reference.
type Scored = (u64, Vec<Score>);

/// Draws workloads, measures them and makes the worst smaller. Setting `interrupt` ends the search with the
/// finds so far.
///
/// # Errors
/// Where a side does not run on the simulator, or a simulation panics.
pub fn hunt(
    options: &HuntOptions,
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Hunt> {
    let labels = Side::labels(&options.sides);
    let scored = search(options, interrupt, progress)?;
    let mut sides = Vec::new();
    for (number, side) in options.sides.iter().enumerate().skip(1) {
        let label = &labels[number];
        let of = |(seed, scores): &Scored| (*seed, scores[number - 1].clone());
        let scores: Vec<(u64, Score)> = scored.iter().map(of).collect();
        let finds = finds(options, side, label, &scores, interrupt, progress)?;
        sides.push(SideFinds {
            side: label.clone(),
            workloads: scores.len() as u64,
            exceeding: scores.iter().filter(|(_, it)| it.exceeds()).count() as u64,
            ratios: ratios(&scores),
            finds,
            shares: shares(&scores),
        });
    }
    progress.finish();
    Ok(Hunt {
        schema: SCHEMA,
        quell_version: env!("CARGO_PKG_VERSION").to_string(),
        reference: labels.first().cloned().unwrap_or_default(),
        seconds: options.seconds,
        interrupted: interrupt.load(Ordering::Relaxed),
        sides,
    })
}

/// Draws and measures workloads on all CPUs of this machine; gives the scores by seed.
fn search(
    options: &HuntOptions,
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Vec<Scored>> {
    let (next, done) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let began = Instant::now();
    let over = || options.limit.is_some_and(|limit| began.elapsed() > limit);
    on_all_cpus(|| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= options.workloads || interrupt.load(Ordering::Relaxed) || over() {
                return Ok(());
            }
            let seed = options.seed + number;
            let scores = scores(options, seed)?;
            let mut done: std::sync::MutexGuard<'_, Vec<Scored>> =
                done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((seed, scores));
            let finds = done.iter().filter(|(_, it)| it.iter().any(Score::exceeds));
            let (count, all) = (finds.count(), options.workloads);
            let text = format!("{} of {all} workloads, {count} finds", done.len());
            match done.len() % 100 {
                0 => progress.step(Duration::ZERO, &text),
                _ => progress.tick(Duration::ZERO, &text),
            }
        }
    })?;
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(seed, _)| *seed);
    Ok(done)
}

/// The score of a seed's workload under each side but the reference. A panic of a simulation becomes an error
/// with the seed and the workload: it is a find, too.
fn scores(options: &HuntOptions, seed: u64) -> anyhow::Result<Vec<Score>> {
    let workload = Workload::random(seed);
    let scores = || {
        let mut scores = Vec::new();
        let reference = measure(&workload, &options.sides[0], options.seconds)?;
        for side in &options.sides[1..] {
            let measured = measure(&workload, side, options.seconds)?;
            scores.push(score(&reference, &measured));
        }
        anyhow::Ok(scores)
    };
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(scores));
    caught.unwrap_or_else(|_| bail!("the simulation of seed {seed} panicked: {workload}"))
}

/// Does the work on a thread for each CPU of this machine.
fn on_all_cpus(work: impl Fn() -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(&work)).collect();
        let failed = || anyhow::anyhow!("a simulation panicked");
        let mut ended = workers.into_iter().map(|it| it.join());
        ended.try_for_each(|ended| ended.unwrap_or_else(|_| Err(failed())))
    })
}

/// The worst finds of a side, made smaller, each of another kind.
fn finds(
    options: &HuntOptions,
    side: &Side,
    label: &str,
    scores: &[(u64, Score)],
    interrupt: &AtomicBool,
    progress: &Progress,
) -> anyhow::Result<Vec<Find>> {
    let mut worst: Vec<&(u64, Score)> = scores.iter().filter(|(_, it)| it.exceeds()).collect();
    worst.sort_by(|a, b| b.1.ratio.total_cmp(&a.1.ratio));
    worst.truncate(SHRUNK);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    on_all_cpus(|| {
        while let Some((seed, drawn)) = worst.get(next.fetch_add(1, Ordering::Relaxed)) {
            let find = smaller(options, side, *seed, drawn, interrupt)?;
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push(find);
            let text = format!(
                "{label}: {} of {} finds made smaller",
                done.len(),
                worst.len()
            );
            progress.tick(Duration::ZERO, &text);
        }
        Ok(())
    })?;
    let mut finds: Vec<Find> = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    finds.sort_by(|a, b| {
        let ratio = b.score.ratio.total_cmp(&a.score.ratio);
        ratio.then(a.seed.cmp(&b.seed))
    });
    let mut kinds = BTreeSet::new();
    finds.retain(|find| kinds.insert(kind(&find.workload)));
    finds.truncate(TOLD);
    Ok(finds)
}

/// A find made smaller; as it was drawn, where there is no time for that.
fn smaller(
    options: &HuntOptions,
    side: &Side,
    seed: u64,
    drawn: &Score,
    interrupt: &AtomicBool,
) -> anyhow::Result<Find> {
    let workload = Workload::random(seed);
    let judged = |it: &Workload| judge(it, &options.sides[0], side, options.seconds);
    let mut failed = None;
    let workload = shrink(&workload, |it| {
        let over = interrupt.load(Ordering::Relaxed) || failed.is_some();
        !over
            && judged(it).map_or_else(
                |error| {
                    failed = Some(error);
                    false
                },
                |score| score.exceeds(),
            )
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let (score, workload) = match interrupt.load(Ordering::Relaxed) {
        true => (drawn.clone(), Workload::random(seed)),
        false => (judged(&workload)?, workload),
    };
    Ok(Find {
        seed,
        drawn_ratio: drawn.ratio,
        workload,
        score,
    })
}

/// What a workload's tasks do, without their numbers.
fn kind(workload: &Workload) -> String {
    let mut tasks: Vec<String> = workload
        .tasks
        .iter()
        .map(|task| {
            let text = format!("{:?}", task.does);
            let kind = text.split(' ').next().unwrap_or_default().to_string();
            format!("{kind} {} {}", task.group.is_some(), task.cpus.is_some())
        })
        .collect();
    tasks.sort();
    tasks.dedup();
    tasks.join("; ")
}

/// The median, the 90th and the 99th percentile of the ratios.
fn ratios(scores: &[(u64, Score)]) -> [f64; 3] {
    let mut ratios: Vec<f64> = scores.iter().map(|(_, it)| it.ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |part: f64| (ratios.len().saturating_sub(1) as f64 * part).round() as usize;
    [0.5, 0.9, 0.99].map(|part| ratios.get(at(part)).copied().unwrap_or(0.0))
}

/// The workloads on which groups' shares differ most.
fn shares(scores: &[(u64, Score)]) -> Vec<Find> {
    let mut worst: Vec<&(u64, Score)> =
        scores.iter().filter(|(_, it)| it.group.is_some()).collect();
    worst.sort_by(|a, b| b.1.share.total_cmp(&a.1.share));
    let find = |(seed, score): &&(u64, Score)| Find {
        seed: *seed,
        score: score.clone(),
        drawn_ratio: score.ratio,
        workload: Workload::random(*seed),
    };
    worst.iter().take(TOLD / 2).map(find).collect()
}
