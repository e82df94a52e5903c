//! `quell bench` and `quell demo`.

use super::{InputError, vm};
use crate::cli::{AgentCost, Bench, Measure, Substrate};
use anyhow::Context;
use quell_bench::agent_bench::{self, AgentBenchOptions};
use quell_bench::progress::Progress;
use quell_bench::report;
use quell_bench::run::{self, BenchOptions};
use quell_bench::side::Side;
use quell_model::config::Scenario;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The repository's scenarios by name, each with its text.
const BUILT_IN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/scenarios.rs"));

/// Where the demo's report goes unless told otherwise.
const DEMO_REPORT: &str = "quell-demo.html";

/// The demo: the built-in scenario of that name, the kernel's default against Quell.
pub fn demo(measure: &Measure) -> anyhow::Result<()> {
    let report = measure
        .report
        .clone()
        .unwrap_or_else(|| PathBuf::from(DEMO_REPORT));
    let sides = vec![Side::Default, Side::Quell];
    compare(scenario("demo")?.0, sides, measure, Some(&report))
}

/// One scenario, several sides; or the agent's own cost.
pub fn bench(args: &Bench) -> anyhow::Result<()> {
    if matches!(args.on, Substrate::Sim) {
        let message = "`--on`: the simulator is not built yet; there are: host, vm";
        return Err(InputError(message.to_string()).into());
    }
    if args.scenario == "agent" {
        if matches!(args.on, Substrate::Vm) {
            let message = "the agent's own cost is measured on the host; in a guest: \
                `quell lab run -- quell bench agent`";
            return Err(InputError(message.to_string()).into());
        }
        return cost(&args.measure, &args.cost);
    }
    let sides = Side::parse_list(&args.policy).context("`--policy`")?;
    let (scenario, text) = scenario(&args.scenario)?;
    if matches!(args.on, Substrate::Vm) {
        return vm::bench(args, &scenario, &text, &sides);
    }
    compare(
        scenario,
        sides,
        &args.measure,
        args.measure.report.as_deref(),
    )
}

fn compare(
    scenario: Scenario,
    sides: Vec<Side>,
    measure: &Measure,
    report: Option<&Path>,
) -> anyhow::Result<()> {
    let mut options = BenchOptions::new(scenario, this_program()?);
    options.sides = sides;
    options.seconds = measure.seconds.unwrap_or(options.seconds);
    options.pairs = measure.pairs.unwrap_or(options.pairs);
    options.seed = measure.seed;
    // Found out before two minutes of measuring and not after.
    for file in report.iter().chain(&measure.json.as_deref()) {
        writable(file)?;
    }
    let interrupt = run::interrupt_flag()?;
    let progress = Progress::stderr(options.planned());
    let result = run::run(&options, &interrupt, &progress)?;
    report::deliver(&result, measure.json.as_deref(), report)
}

fn cost(measure: &Measure, args: &AgentCost) -> anyhow::Result<()> {
    let mut options = AgentBenchOptions::new(this_program()?);
    if let Some(threads) = args.threads {
        options.threads = vec![threads];
    }
    if args.growth {
        options.threads = agent_bench::GROWTH.to_vec();
    }
    options.tenants = args.tenants.unwrap_or(options.tenants);
    options.active_percent = args.active.unwrap_or(options.active_percent);
    options.seconds = measure.seconds.unwrap_or(options.seconds);
    if let Some(file) = &measure.json {
        writable(file)?;
    }
    let interrupt = run::interrupt_flag()?;
    let progress = Progress::stderr(options.planned());
    let result = agent_bench::run(&options, &interrupt, &progress)?;
    let json = || serde_json::to_string_pretty(&result).map(|json| json + "\n");
    let text = match &measure.json {
        Some(file) if file.as_os_str() == "-" => json()?,
        Some(file) => {
            fs::write(file, json()?).with_context(|| file.display().to_string())?;
            agent_bench::table(&result)
        }
        None => agent_bench::table(&result),
    };
    writeln!(io::stdout(), "{}", text.trim_end())?;
    Ok(())
}

/// A scenario by its file's path, or by the name of a built-in one; and its text.
fn scenario(name: &str) -> anyhow::Result<(Scenario, String)> {
    let looks_like_file = name.contains('/') || name.ends_with(".toml");
    if !looks_like_file {
        if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            let file = PathBuf::from(format!("{name}.toml"));
            return Ok((Scenario::parse(&file, text)?, text.to_string()));
        }
        if !Path::new(name).is_file() {
            let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            let message = format!(
                "no built-in scenario `{name}`; there are: {}, agent; a file is given by its path",
                names.join(", ")
            );
            return Err(InputError(message).into());
        }
    }
    let path = Path::new(name);
    let text = fs::read_to_string(path)
        .map_err(|e| InputError(format!("{name}: the scenario cannot be read: {e}")))?;
    Ok((Scenario::parse(path, &text)?, text))
}

/// The running program, which also plays tenants and is the agent.
fn this_program() -> anyhow::Result<PathBuf> {
    env::current_exe().context("cannot find the quell program's own file")
}

/// Checks that a file can be written, without changing one that is there.
pub(super) fn writable(file: &Path) -> anyhow::Result<()> {
    if file.as_os_str() == "-" {
        return Ok(());
    }
    let existed = file.exists();
    let opened = fs::OpenOptions::new().append(true).create(true).open(file);
    opened.map_err(|e| InputError(format!("{}: cannot be written: {e}", file.display())))?;
    if !existed {
        fs::remove_file(file).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_scenario_is_right() {
        for (name, _) in BUILT_IN {
            assert_eq!(scenario(name).unwrap().0.name, *name);
        }
    }

    #[test]
    fn checking_a_file_neither_leaves_nor_changes_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.html");
        writable(&file).unwrap();
        assert!(!file.exists());
        fs::write(&file, "kept").unwrap();
        writable(&file).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"kept");
        let error = writable(&file.join("below")).unwrap_err();
        assert!(super::super::is_users(&error), "{error}");
    }
}
